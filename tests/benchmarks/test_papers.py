"""What the benchmarks of the papers compute themselves: sequential codes, baselines, systems, counts."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as splinalg

import finelu
from finelu.matrix.stencil import StencilMatrix

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness.suite import Problem  # noqa: E402
from benchmarks.papers import (  # noqa: E402
    fgbilu,
    fgbilu_cpu,
    fgbilu_measure,
    fgbilu_sequential,
    fgbilu_systems,
    fgbilu_tables,
    ilupack,
    ilupack_baseline,
    ilupack_tables,
    parilut_measure,
    parilut_tables,
)

# Block ILU on structured grids --------------------------------------------------------------------------------------


def stencil(shape, n, seed=0, device="cpu"):
    """A matrix whose diagonal blocks outweigh the others, and a right-hand side."""
    rng = np.random.default_rng(seed + n)
    blocks = rng.standard_normal((7, *shape, n, n)) / (8 * n)
    blocks[3] += 2 * np.eye(n)
    return StencilMatrix(blocks), rng.standard_normal(math.prod(shape) * n)


@pytest.fixture
def flow(monkeypatch):
    """Stands in for the channel flow, whose Jacobians take longer to make."""
    monkeypatch.setattr(fgbilu_systems, "flow", lambda shape, n, device: stencil(shape, n))


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 7, 2), (6, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("n", [1, 6])
def test_bytes_that_must_move_are_those_of_the_arrays(shape, n):
    A, b = stencil(shape, n)
    d, off = 8 * A.cells * n * n, 8 * A.nnz - 8 * A.cells * n * n
    assert fgbilu_tables.bytes_to_move("residual", n, shape) == 8 * A.nnz + 3 * b.nbytes
    assert fgbilu_tables.bytes_to_move("factor", n, shape) == 8 * A.nnz + d
    assert fgbilu_tables.bytes_to_move("solve", n, shape) == off + 2 * d + 4 * b.nbytes


@pytest.mark.parametrize("work", fgbilu_tables.WORKS)
def test_the_paper_counts_as_its_tables_say(work):
    _, flop, data, rate, gflops = fgbilu_tables.TABLE_4[work]
    threads, point = fgbilu_tables.threads_of_a_point(work, 6), fgbilu_tables.TABLE_3[work][1]
    assert fgbilu_tables.flops(work, 6) == flop * threads and fgbilu_tables.bytes_of_paper(work, 6) == data * threads
    # its throughput follows from its own times; GFLOPS of the factorization too, to its rounding
    assert fgbilu_tables.bytes_of_paper(work, 6) / point == pytest.approx(rate, rel=0.01)
    assert fgbilu_tables.flops(work, 6) / point == pytest.approx(gflops, rel=0.02)


def test_digits_are_printed_as_in_the_paper():
    assert fgbilu_tables.as_printed(0.542674993335e05) == "0.542674993335E+05"
    assert fgbilu_tables.as_printed(0.126561185003e-12) == "0.126561185003E-12"
    paper = [fgbilu_tables.first_apart(ours, lu) for lu, ours in fgbilu_tables.TABLE_1.values()]
    assert paper == [None, None, None, None, 12, 9]
    assert fgbilu_tables.first_apart(1.0, 1.0 + 1e-13) is None and fgbilu_tables.first_apart(1.0, 10.0) == 1


def test_edges_keep_the_number_of_entries():
    for n in fgbilu.UNKNOWNS:
        edge = fgbilu_systems.edge_for(n, fgbilu_systems.ENTRIES)
        below, above = (n**2 * (edge + s) ** 3 for s in (-0.5, 0.5))
        assert below <= fgbilu_systems.ENTRIES <= above


@pytest.mark.parametrize("n", [4, 6, 10, 14])
def test_the_construction_solves_the_given_systems_side_by_side(flow, n):
    shape = (3, 2, 4)
    A, b = fgbilu_systems.system(shape, n, "cpu")
    assert A.n_block == n and A.shape_cells == shape
    x = finelu.BlockILU0(pivoting=False).factor(A).solve(b).reshape(*shape, n)
    at = 0
    for m in fgbilu_systems.parts_of(n):
        given, right = stencil(shape, m)
        alone = finelu.BlockILU0(pivoting=False).factor(given).solve(right)
        np.testing.assert_allclose(x[..., at : at + m].reshape(-1), alone, rtol=1e-12, atol=1e-14)
        at += m


@pytest.mark.parametrize("shape", [(4, 3, 5), (1, 6, 2), (5, 1, 1)])
def test_bsr_is_that_of_the_matrix(shape):
    A, _ = stencil(shape, 3)
    B, expected = fgbilu_systems.bsr(A), A.to_bsr()
    assert np.array_equal(B.indptr, expected.indptr) and np.array_equal(B.indices, expected.indices)
    assert np.array_equal(B.data, expected.data) and np.array_equal(B.data[B.diag], A.blocks[3].reshape(-1, 3, 3))
    assert {v.dtype.name for v in (B.indptr, B.indices, B.diag)} == {"int32"} and B.data.flags.c_contiguous


@pytest.mark.parametrize("shape", [(4, 3, 5), (1, 6, 2), (1, 1, 1)])
def test_the_residual_that_results_are_compared_with(shape):
    A, b = stencil(shape, 4)
    x = np.linspace(-1, 1, b.size)
    np.testing.assert_allclose(fgbilu_systems.residual_by_arrays(A, x, b), b - A.tocsr() @ x, rtol=1e-13, atol=1e-14)


def test_the_reference_is_block_ilu_by_definition():
    A, b = stencil((3, 4, 2), 6)
    reference = fgbilu_cpu.Reference(A, b, timed=False)
    F = finelu.BlockILU0(pivoting=False).factor(A)
    assert reference.error("factor", F.d) < 1e-13
    assert reference.error("solve", F.solve(b)) < 1e-13
    assert reference.error("residual", b - A.tocsr() @ F.solve(b)) < 1e-13
    assert reference.error("solve", 1.001 * F.solve(b)) == pytest.approx(1e-3)
    assert not reference.error("solve", np.full_like(b, np.nan)) <= fgbilu_cpu.AGREE


def test_table_1_is_the_correction_iteration():
    A, b = stencil((4, 3, 5), 6)
    F = finelu.BlockILU0(pivoting=False).factor(A)
    expected = finelu.richardson(A, b, M=F, maxiter=3, rtol=0.0).history[1:] ** 2
    for sums in (
        fgbilu_measure.sequential_history(A, b, 3, lu=True),
        fgbilu_measure.sequential_history(A, b, 3),
        fgbilu_measure.finelu_history(A, b, 3),
    ):
        assert len(sums) == 3
        np.testing.assert_allclose(sums, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 3, 5), (1, 6, 2), (1, 1, 1)])
@pytest.mark.parametrize("n", [1, 2, 6])
def test_factors_of_the_diagonal_blocks_are_those_of_what_is_inverted(shape, n):
    A, b = stencil(shape, n)
    lu, d = (np.full(A.blocks.shape[1:], np.nan) for _ in range(2))
    assert fgbilu_sequential.sequential_lu_factor(A.blocks, lu) == -1
    assert fgbilu_sequential.sequential_factor(A.blocks, d) == -1
    L, U = np.tril(lu, -1) + np.eye(n), np.triu(lu)
    np.testing.assert_allclose(L @ U @ d, np.broadcast_to(np.eye(n), d.shape), atol=1e-14)
    right = b.reshape(*shape, n)
    x, y = np.empty_like(right), np.empty_like(right)
    fgbilu_sequential.sequential_lu_solve(A.blocks, lu, right, x)
    fgbilu_sequential.sequential_solve(A.blocks, d, right, y)
    np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-14)


def test_a_bad_pivot_of_the_sequential_code_is_said():
    A, b = stencil((3, 2, 2), 4)
    A.blocks[3, 1, 0, 1, 0] = 0.0  # a row of cell 5
    A.blocks[:3, 1, 0, 1] = 0.0
    for lu in (True, False):
        with pytest.raises(RuntimeError, match="cell 5"):
            fgbilu_measure.sequential_history(A, b, 2, lu=lu)


# Multilevel ILU and GMRES by stages ---------------------------------------------------------------------------------


class HostSpSV:
    """Stands in for cuSPARSE's: the same arguments and contract, by SciPy."""

    def __init__(self, T, pairs, *, lower: bool, unit: bool):
        n = pairs[0][1].size
        S = sp.csr_matrix((T.data, T.indices, T.indptr), shape=(n, n))
        assert (sp.triu(S, 0) if lower else sp.tril(S, -1)).nnz == 0 < S.nnz, "one triangle, not an empty one"
        self.S, self.pairs, self.lower, self.unit = S, pairs, lower, unit
        self.analysed = False

    def analyse(self):
        self.analysed = True

    def solve(self, i=0):
        assert self.analysed
        b, y = self.pairs[i % len(self.pairs)]
        S = self.S + sp.identity(b.size, format="csr") if self.unit else self.S
        y[:] = splinalg.spsolve_triangular(S, b, lower=self.lower)

    def close(self):
        self.analysed = False


def on_host(F):
    return ilupack_baseline.Baseline(F, np, HostSpSV, lambda matrix: matrix)


@pytest.mark.parametrize("low_memory", [True, False])
@pytest.mark.parametrize(
    "name", ["poisson5:17,13", "convection_diffusion:16,14", "helmholtz:14,k=9,absorbing=False", "stokes:8"]
)
def test_the_baseline_applies_the_same_M(name, low_memory):
    S = sp.csr_matrix(finelu.gallery.problem(name))
    F = finelu.MultilevelILU(condest=2, dense_size=20, low_memory=low_memory).factor(S)
    assert sum(level["n"] > 0 for level in F.report["levels"]) >= 2, "levels are needed to say anything"
    baseline = on_host(F)
    rng = np.random.default_rng(1)
    for _ in range(2):  # the vectors that are kept hold the last result
        b = rng.standard_normal(S.shape[0])
        assert ilupack.agreement(baseline, F, b) < 1e-9
    baseline.close()


@pytest.mark.parametrize("symmetric", [None, False])
def test_the_baseline_does_without_triangles_that_are_empty(symmetric):
    n = 60
    S = sp.diags_array(np.concatenate([np.arange(1.0, n), [0.0]])).tolil()
    S[n - 1, 0] = S[0, n - 1] = 2.0  # a pair, or a zero pivot that is deferred
    F = finelu.MultilevelILU(matching=False, dense_size=1, symmetric=symmetric).factor(sp.csr_matrix(S))
    parts = ilupack_baseline.Parts(F)
    assert parts.levels[0].L.nnz == 0 and F.report["kind"] == ("hermitian" if symmetric is None else "general")
    assert ilupack.agreement(on_host(F), F, np.arange(1.0, n + 1)) < 1e-12


def test_another_M_is_an_error():
    S = finelu.gallery.problem("poisson5:12,12")
    F = finelu.MultilevelILU(dense_size=20).factor(S)
    other = on_host(finelu.MultilevelILU(dense_size=20, drop_tol=0.3).factor(S))
    with pytest.raises(RuntimeError, match="another M"):
        ilupack.agreement(other, F, np.ones(144))


@pytest.mark.parametrize(("by_host", "by_blas"), [(False, False), (True, False), (False, True)])
def test_the_loop_takes_the_steps_of_gmres(by_host, by_blas):
    S = Problem("poisson5:30,30").load()
    F = finelu.ILU0().factor(S)
    b = S @ np.random.default_rng(0).standard_normal(900)
    solution = finelu.gmres(S, b, M=F, rtol=1e-8, restart=5, maxiter=500)
    clock = ilupack_baseline.Clock(gpu=False)
    x, iterations = ilupack_baseline.staged(S, F.solve, b, clock, on_host=by_host, by_blas=by_blas, restart=5)
    assert iterations == solution.iterations > 10, "restarts are needed"
    np.testing.assert_allclose(x, solution.x, rtol=1e-9, atol=1e-9)
    ms = clock.ms()
    assert set(ms) == set(ilupack_baseline.STAGES) and all(
        ms[s] > 0 for s in ilupack_baseline.STAGES if s != ilupack_baseline.COPIES
    )
    assert (ms[ilupack_baseline.COPIES] > 0) == by_host


def test_the_loop_ends_at_its_limit_and_when_nothing_is_gained():
    S = Problem("poisson5:20,20").load()
    b = np.ones(400)
    clock = ilupack_baseline.Clock(gpu=False, off=True)
    assert ilupack_baseline.staged(S, lambda r: r, b, clock, maxiter=7, restart=4)[1] == 7
    assert ilupack_baseline.staged(S, lambda r: r * np.nan, b, clock)[1] == 0
    assert sum(clock.ms().values()) == 0


def test_the_papers_rows_are_whole():
    papers = set(ilupack_tables.TABLE_2)
    assert (
        papers
        == set(ilupack_tables.ITERATIONS)
        == set(ilupack_tables.TABLE_3)
        == set(ilupack_tables.TABLE_4)
        == set(ilupack_tables.TABLE_5)
    )
    rows = [
        *ilupack_tables.TABLE_3.values(),
        *(row for t in (ilupack_tables.TABLE_4, ilupack_tables.TABLE_5) for p in t.values() for row in p),
    ]
    assert len(rows) == 50
    for *parts, total in rows:
        assert sum(parts) == pytest.approx(total, abs=0.0035)  # the paper's own rounding
    assert set(ilupack_tables.OWN.values()) | set(ilupack_tables.LIKE.values()) <= papers
    assert all(n.partition(":")[0] in finelu.gallery.PROBLEMS for n in ilupack.FIRST if n.endswith("_like"))


# ParILUT ------------------------------------------------------------------------------------------------------------


def test_the_papers_numbers_have_all_columns():
    assert {len(row) for row in (*parilut_tables.TABLE_2.values(), *parilut_tables.TABLE_3.values())} == {9}
    swept, exact = parilut_tables.columns("cg")
    assert swept[3:] == [str(k) for k in parilut_measure.STEPS] and exact == [
        f"exact {k}" for k in parilut_measure.STEPS
    ]
    assert [*swept, *exact] == list(parilut_measure.recipes(True, 10**9))
    assert set(parilut_tables.OWN.values()) | set(parilut_tables.LIKE.values()) <= {
        *parilut_tables.TABLE_4,
        "ANI3",
        "ANI4",
    }


def test_a_case_is_ordered_scaled_and_symmetric():
    case = parilut_measure.Case.load(Problem("poisson7:6,5,4"), "cpu")
    assert case.spd and case.order == "RCM here"
    np.testing.assert_allclose(case.S.diagonal(), 1.0, rtol=1e-15)
    assert abs(case.S - case.S.T).nnz == 0 and (abs(case.b) <= 0.5).all()
    rows, columns = case.S.nonzero()
    assert abs(rows - columns).max() < 30  # a plane of the grid; in another order up to 119


def test_discrepancy_counts_places_that_one_pattern_has():
    P = sp.csr_matrix([[1.0, 0, 2], [0, 3, 0], [0, 0, 4]])
    Q = sp.csr_matrix([[-5.0, 1, 0], [0, 3, 0], [1, 0, 4]])
    assert parilut_measure.discrepancy(P, Q) == 3 and parilut_measure.discrepancy(P, 2 * P) == 0


def test_superlu_finds_the_entries_asked_for_and_ends_at_its_limit():
    S = Problem("poisson5:40,40").load()
    found = parilut_measure.superlu(S, S.nnz, 60.0)
    assert abs(found["nnz"] / S.nnz - 1) < 0.1 and found["seconds"] > 0
    assert parilut_measure.superlu(S, S.nnz, -10.0) == {"reason": "SuperLU took more than -10 s"}
