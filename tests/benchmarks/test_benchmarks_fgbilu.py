"""The benchmark of the block ILU: what it counts, the systems it makes, its peers' calls, its bars and tables."""

import ctypes
import math
import sys
from ctypes import POINTER, c_int, c_void_p, cast
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import numpy_for_cupy
import pytest
import scipy.sparse as sp

import finelu
from finelu.errors import FileError
from finelu.matrix.stencil import StencilMatrix

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness.record import Record, Run, page_of  # noqa: E402
from benchmarks.papers import (  # noqa: E402
    fgbilu,
    fgbilu_cpu,
    fgbilu_gpu,
    fgbilu_measure,
    fgbilu_sequential,
    fgbilu_systems,
    fgbilu_tables,
)
from benchmarks.peers import PeerError, cusparse, cusparse_bsr  # noqa: E402


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


def cells(text: str, begin: str) -> list[str]:
    (line,) = [li for li in text.splitlines() if li.startswith(f"| {begin}")]
    return [c.strip() for c in line.strip("|").split("|")]


# Counting -----------------------------------------------------------------------------------------------------------


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


def test_digits():
    assert fgbilu_tables.digits(2.0, 2.0) == 16
    assert fgbilu_tables.digits(1.001, 1.0) == pytest.approx(3)
    assert fgbilu_tables.digits(*fgbilu_tables.TABLE_1[19]) == pytest.approx(7.456, abs=1e-3)


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


# The systems --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [4, 6, *range(8, 66, 2)])
def test_every_even_n_is_made_of_4_and_6(n):
    parts = fgbilu_systems.parts_of(n)
    assert sum(parts) == n and set(parts) <= {4, 6} and parts.count(4) <= 2


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


# Measuring on the CPU -----------------------------------------------------------------------------------------------


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


def test_pivots_and_inverses_differ_by_rounding_alone():
    # Table 1: the same in all digits at first, and apart where the residual is of the size of rounding errors
    A, b = stencil((5, 6, 4), 6)
    lu, inverse = (fgbilu_measure.sequential_history(A, b, 12, lu=way) for way in (True, False))
    assert lu[:3] == pytest.approx(inverse[:3], rel=1e-12) and lu != inverse
    assert [fgbilu_tables.first_apart(*pair) for pair in zip(inverse, lu, strict=True)][-1] is not None


def test_a_bad_pivot_of_the_sequential_code_is_said():
    A, b = stencil((3, 2, 2), 4)
    A.blocks[3, 1, 0, 1, 0] = 0.0  # a row of cell 5
    A.blocks[:3, 1, 0, 1] = 0.0
    for lu in (True, False):
        with pytest.raises(RuntimeError, match="cell 5"):
            fgbilu_measure.sequential_history(A, b, 2, lu=lu)


def test_a_measurement_that_fails_is_written_down_and_the_next_goes_on():
    run = Run("fgbilu", {"name": "box"}, "2026-01-02")
    A, b = stencil((3, 3, 3), 4)
    reference = fgbilu_cpu.Reference(A, b, timed=False)
    A.blocks[:, 0, 1, 2] = 0.0  # cell 5, after the reference was made
    fgbilu_cpu.on_threads(run, "3x3x3", A, b, 1, reference)
    assert [f["what"] for f in run.failures] == ["finelu factor, 1 threads"] and "cell 5" in run.failures[0]["error"]
    assert {r.work for r in run.records} == {"solve", "residual"}


def test_scalar_peers_make_the_same_factorization():
    run = Run("fgbilu", {"name": "box"}, "2026-01-02")
    A, b = stencil((4, 3, 3), 4)
    fgbilu_cpu.scalar_peers(run, "4x3x3", A, b, 1, fgbilu_cpu.Reference(A, b, timed=False))
    assert not run.failures and set(run.left_out.values()) <= {"not installed"}
    assert len(run.records) + 2 * ("MKL" in run.left_out) + ("ilupp" in run.left_out) == 3
    assert all(r.error < 1e-10 for r in run.records)


# cuSPARSE -----------------------------------------------------------------------------------------------------------


class Library:
    """Stands in for cuSPARSE: functions with the arguments that the header declares, called through ctypes.

    It hands out descriptors and infos, and notes the calls. bsrilu02 doubles the values.
    """

    def __init__(self, without=()):
        self.calls, self._keep, self._next = [], {}, 100
        for name, arguments in (cusparse_bsr.SIGNATURES | self.more()).items():
            if name in without:
                continue
            prototype = ctypes.CFUNCTYPE(c_int, *arguments)
            self._keep[name] = prototype(lambda *a, name=name: self.answer(name, a))
        self.cusparseGetErrorString = lambda status: b"an error"

    @staticmethod
    def more():
        return {"cusparseCreateMatDescr": [POINTER(c_void_p)], "cusparseDestroyMatDescr": [c_void_p]}

    def __getattr__(self, name):
        if name.startswith("_") or name not in self._keep:
            raise AttributeError(name)
        return self._keep[name]

    def answer(self, name, arguments):
        if "Create" in name:
            self._next += 1
            arguments[0][0] = self._next
        elif name.endswith("bufferSize"):
            arguments[-1][0] = 256
        elif name.endswith("zeroPivot"):
            arguments[-1][0] = 7
            return cusparse.STATUS_ZERO_PIVOT
        elif name == "cusparseDbsrilu02":
            blocks, size = arguments[3], arguments[8]
            values = cast(arguments[5], POINTER(ctypes.c_double))
            for p in range(blocks * size * size):
                values[p] *= 2
        plain = [a for a in arguments if isinstance(a, (int, type(None)))]
        self.calls.append((name, plain))
        return 0


class Array(np.ndarray):
    """A NumPy array with CuPy's `data.ptr`."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


@pytest.fixture
def library(monkeypatch):
    fake = Library()
    monkeypatch.setattr(cusparse, "library", lambda: fake)
    monkeypatch.setattr(cusparse, "handle", lambda: c_void_p(11))
    cupy = SimpleNamespace(
        empty=lambda size, dtype: np.empty(size, dtype).view(Array),
        uint8=np.uint8,
        ascontiguousarray=lambda a: np.ascontiguousarray(a).view(Array),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return fake


@pytest.mark.parametrize("direction", cusparse_bsr.DIRECTIONS)
@pytest.mark.parametrize("policy", ["NO_LEVEL", "USE_LEVEL"])
def test_cusparse_is_called_as_its_header_says(library, policy, direction):
    A, b = stencil((2, 3, 2), 3)
    B = SimpleNamespace(**{k: v.view(Array) for k, v in vars(fgbilu_systems.bsr(A)).items()})
    before = np.array(B.data)
    peer = cusparse_bsr.BlockILU0(B.indptr, B.indices, B.data, policy, direction)
    peer.load()
    peer.analyse()
    peer.factor()
    assert peer.zero_pivot() == 7
    y, x = (np.zeros_like(b).view(Array) for _ in range(2))
    peer.analyse_solves()
    peer.lower(b.view(Array), y)
    peer.upper(y, x)
    peer.renew()
    peer.renew_solves()
    peer.close()
    stored = before if direction == "row" else before.transpose(0, 2, 1)
    assert np.array_equal(peer.values, 2 * stored) and np.array_equal(B.data, before)

    by_name = {}
    for name, arguments in library.calls:
        by_name.setdefault(name, []).append(arguments)
    way, policy = cusparse_bsr.DIRECTIONS[direction], cusparse_bsr.POLICIES[policy]
    rows, blocks = 12, B.indices.size
    values, offsets, columns = (v.ctypes.data for v in (peer.values, B.indptr, B.indices))
    handle, ilu_way, mb, nnzb, _, *arrays, _, ilu_policy, _ = by_name["cusparseDbsrilu02"][0]
    assert (handle, ilu_way, mb, nnzb, ilu_policy) == (11, way, rows, blocks, policy)
    assert arrays == [values, offsets, columns, 3]
    solves = by_name["cusparseDbsrsv2_solve"]
    fills = {a[0]: a[1] for a in by_name["cusparseSetMatFillMode"]}
    units = {a[0]: a[1] for a in by_name["cusparseSetMatDiagType"]}
    for (_, sv_way, trans, mb, nnzb, one, descr, *arrays, size, _, f, out, _, _), fill, unit, pair in zip(
        solves, (0, 1), (1, 0), ((b, y), (y, x)), strict=True
    ):
        assert (sv_way, trans, mb, nnzb, size, fills[descr], units[descr]) == (way, 0, rows, blocks, 3, fill, unit)
        assert cast(one, POINTER(ctypes.c_double))[0] == 1.0
        assert arrays == [values, offsets, columns] and (f, out) == tuple(v.ctypes.data for v in pair)
    made = [name for name, _ in library.calls if "Create" in name]
    gone = [name for name, _ in library.calls if "Destroy" in name]
    assert sorted(name.replace("Create", "Destroy") for name in made) == sorted(gone)


def test_cusparse_without_bsrsv2_is_named():
    with pytest.raises(PeerError, match="cusparseDbsrsv2_solve"):
        cusparse.declare(Library(without=["cusparseDbsrsv2_solve"]), cusparse_bsr.SIGNATURES)


def test_cusparse_is_not_asked_beyond_its_counts(library):
    data = np.broadcast_to(np.zeros(1), (2**20, 33, 33)).view(Array)
    with pytest.raises(PeerError, match="1141899264 entries"):
        cusparse_bsr.BlockILU0(None, None, data, "NO_LEVEL", "row")


# What is made of it -------------------------------------------------------------------------------------------------

EDGE = 65


def a_run(**changes) -> Run:
    """A run in which every bar is reached by a little; changes : milliseconds of "who variant work"."""
    run = Run("fgbilu", {"name": "box", "cpu": "a cpu"}, "2026-01-02", {"copy GB/s": 4000.0})
    shape = [EDGE] * 3
    run.matrices["65x65x65"] = fgbilu_systems.facts(shape, 6, "sizes")
    run.matrices["15x15x15"] = fgbilu_systems.facts([15] * 3, 6, "sizes")
    limit = fgbilu_tables.bytes_to_move("residual", 6, shape) / 4000 / 1e6
    times = {
        ("65x65x65", "cpu", "sequential", "natural order", 1): (300.0, 90.0, 80.0),
        ("65x65x65", "cpu", "finelu", "wavefronts", 2): (170.0, 50.0, 45.0),
        ("65x65x65", "cpu", "mkl", "dcsrilu0", 1): (400.0, None, None),
        ("65x65x65", "gpu", "finelu", "CL", 0): (1.4, 1.4, 1.4 * limit),
        ("65x65x65", "gpu", "finelu", "ACC", 0): (40.0, 9.0, None),
        ("65x65x65", "gpu", "cusparse", "NO_LEVEL row", 0): (19.0, 5.0, None),
        ("65x65x65", "gpu", "cusparse", "USE_LEVEL row", 0): (12.0, 6.0, None),
        ("15x15x15", "cpu", "sequential", "natural order", 1): (3.0, 1.0, None),
        ("15x15x15", "gpu", "finelu", "CL", 0): (2.0, 1.0, None),
    }
    for (matrix, device, who, variant, threads), values in times.items():
        for work, ms in zip(fgbilu_tables.WORKS, values, strict=True):
            if ms is not None:
                ms = changes.get(f"{who} {variant} {work}".replace(" ", "_"), ms)
                error = None if variant == "ACC" else 1e-15
                run.records.append(Record(matrix, work, device, who, variant, ms, 2.0, error, threads))
    sums = [10.0 ** (2 - k) for k in range(20)]
    for device, who, variant, apart in (("cpu", "sequential", "natural order", 0.0), ("gpu", "finelu", "CL", 1e-13)):
        detail = {"history": [s * (1 + apart) for s in sums]}
        run.records.append(Record("51x97x63", "steps", device, who, variant, 1.0, detail=detail))
    run.matrices["51x97x63"] = fgbilu_systems.facts([51, 97, 63], 6, "steps")
    return run


def verdicts(run):
    return {(what, peer): (reached, holds) for what, _, peer, _, _, _, reached, holds in fgbilu_tables.bars(run)}


def test_bars_that_are_reached():
    found = verdicts(a_run())
    assert sorted({holds for _, holds in found.values()}) == ["", "yes"] and len(found) == 12
    assert found["factorization, GPU", "sequential BILU, one core"][0] == pytest.approx(300 / 1.4)
    assert found["factorization, GPU", "cuSPARSE bsrilu02"][0] == pytest.approx(12 / 1.4)  # of two policies the better
    assert found["triangular solve, GPU", "cuSPARSE bsrsv2, L and U"][0] == pytest.approx(5 / 1.4)
    assert found["residual, GPU", "copy of its bytes"][0] == pytest.approx(1.4)
    assert found["factorization and solve, GPU", "sequential BILU, one core"][0] == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"finelu_CL_factor": 1.6}, {"sequential BILU, one core", "cuSPARSE bsrilu02"}),
        ({"finelu_CL_solve": 1.7}, {"sequential BILU, one core", "cuSPARSE bsrsv2, L and U"}),
        ({"finelu_CL_residual": 0.3}, {"copy of its bytes"}),
        ({"finelu_wavefronts_residual": 60.0}, {"sequential BILU, one core"}),
        ({"mkl_dcsrilu0_factor": 330.0}, {"mkl, scalar ILU(0)"}),
    ],
)
def test_bars_that_are_missed(change, missed):
    found = verdicts(a_run(**change))
    assert {peer for (_, peer), (_, holds) in found.items() if holds == "no"} == missed


def test_digits_of_table_1_count_from_the_first_residual():
    run = a_run()
    sums = run.one(work="steps", device="gpu").detail["history"]
    sums[-1] *= 1.1  # 10^-17 of ||b||^2
    assert fgbilu_tables.norm_digits(run, "GPU CL") == pytest.approx(-math.log10(10**-9.5 * (1.1**0.5 - 1)), abs=0.01)
    assert min(fgbilu_tables.agreement(run)["GPU CL"]) == pytest.approx(1.0, abs=0.01)
    assert [holds for *_, holds in fgbilu_tables.bars(run)][-2:] == ["no", ""]


def test_a_wrong_result_counts_nowhere():
    run = a_run()
    run.one(matrix="65x65x65", work="factor", who="cusparse", variant="USE_LEVEL row").error = 1e-3
    run.one(matrix="65x65x65", work="solve", who="finelu", variant="CL").error = None
    found = verdicts(run)
    assert found["factorization, GPU", "cuSPARSE bsrilu02"][0] == pytest.approx(19 / 1.4)
    assert not any(what == "triangular solve, GPU" for what, _ in found)
    assert len(fgbilu_tables.wrong_table(run).splitlines()) == 4


def test_tables_say_what_was_measured():
    run = a_run()
    line = cells(fgbilu_tables.point_table(run, "sizes", "overall"), "65x65x65")
    header = cells(fgbilu_tables.point_table(run, "sizes", "overall"), "matrix")
    whole = (300 + 4 * 90 + 3 * 80) * 1e6 / EDGE**3
    assert float(line[header.index("sequential")]) == pytest.approx(whole, rel=1e-3)
    residual = run.one(work="residual", variant="CL").numeric_ms  # of which there is one kernel for both styles
    assert float(line[header.index("GPU ACC")]) == pytest.approx((40 + 36 + 3 * residual) * 1e6 / EDGE**3, rel=5e-3)
    assert "cuSPARSE" not in header  # which has no residual
    assert float(cells(fgbilu_tables.table_3(run), "factorization    | 65")[4]) == pytest.approx(300 / 1.4, rel=5e-3)
    ours = cells(fgbilu_tables.table_4(run), "residual         | 65")
    assert ours[3:5] == ["42", "360"] and float(ours[-1]) == pytest.approx(100 / 1.4, rel=5e-3)
    text = fgbilu_tables.table_1(run)
    assert cells(text, "0 ")[1:4] == ["0.100000000000E+03", "0.100000000000E+03", "-"]
    assert cells(text, "19")[-2:] == ["0.126561185003E-12", "9"]
    launched = [Record("65x65x65", w, "gpu", "finelu", "CL, launches", 3.0, error=1e-15) for w in ("factor", "solve")]
    run.records += launched
    line = cells(fgbilu_tables.table_3(run), "factorization    | 65")
    assert float(line[6]) == pytest.approx(300 / 3.0, rel=5e-3)


def test_table_1_compares_with_the_pivots_where_there_are_some():
    run = a_run()
    assert set(fgbilu_tables.agreement(run)) == {"GPU CL"} and "paper, sequential, LU" in fgbilu_tables.table_1(run)
    sums = [1.01 * s for s in run.one(work="steps", who="sequential").detail["history"]]
    run.records.append(Record("51x97x63", "steps", "cpu", "sequential", "LU", 1.0, detail={"history": sums}))
    assert set(fgbilu_tables.agreement(run)) == {"sequential, Gauss-Jordan", "GPU CL"}
    assert cells(fgbilu_tables.table_1(run), "0 ")[1:4] == ["0.101000000000E+03", "0.100000000000E+03", "3"]


def test_what_one_run_lacks_comes_from_another(tmp_path):
    first, second = a_run(), a_run(finelu_CL_factor=99.0)
    first.records = [r for r in first.records if r.device == "cpu"]
    first.options = {}
    one = first.save(tmp_path / "one")
    second.machine["name"] = "other"
    two = second.save(tmp_path / "two")
    run = fgbilu.merged([one, two])
    assert len(run.records) == len(second.records) and fgbilu_tables.bandwidth(run) == 4000
    assert run.one(matrix="65x65x65", work="factor", variant="CL").numeric_ms == 99.0
    assert run.one(matrix="65x65x65", work="factor", who="sequential").numeric_ms == 300.0
    assert run.options["gpu from"].startswith("other")
    with pytest.raises(FileError):
        fgbilu.merged([tmp_path / "absent.json.gz"])


def test_it_runs_whole(flow, tmp_path, capsys):
    arguments = ["--cpu", "--quick", "--edges", "3,4", "--unknowns", "4,10", "--threads", "1,2", "--machine", "box"]
    assert fgbilu.main([*arguments, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("fgbilu-box-*.json.gz")
    run = Run.load(path)
    assert fgbilu_tables.of_part(run, "sizes") == ["3x3x3", "4x4x4"]
    assert [run.matrices[m]["n"] for m in fgbilu_tables.of_part(run, "unknowns")] == [4, 10]
    assert not fgbilu_tables.wrong_table(run) and min(fgbilu_tables.agreement(run)["CPU wavefronts"][:2]) > 10
    text = page_of(path).read_text()
    assert "fig9.png" in text and "fig10.png" in text and len(list(tmp_path.glob("*.png"))) == 2
    assert fgbilu.main(["--from", str(path), "--out", str(tmp_path / "again")]) == 0
    assert next((tmp_path / "again").glob("*.md")).read_text() == text


class Made:
    """Stands in for cusparse_bsr.BlockILU0: the same calls in their order, by finelu on the CPU."""

    def __init__(self, indptr, indices, data, policy, direction):
        n = data.shape[1]
        self.A = sp.bsr_matrix((data, indices, indptr), shape=(n * (indptr.size - 1),) * 2)
        self.known, self.F = set(), None

    def renew(self):
        self.known -= {"factor"}

    def renew_solves(self):
        self.known -= {"solve"}

    def load(self):
        self.F = None

    def analyse(self):
        self.known |= {"factor"}

    def factor(self):
        assert "factor" in self.known and self.F is None, "analysed, and the values are those of A"
        self.F = finelu.BlockILU0(pivoting=False).factor(self.A)

    def zero_pivot(self):
        return -1

    def analyse_solves(self):
        self.known |= {"solve"}

    def lower(self, b, y):
        assert "solve" in self.known
        y[:] = b

    def upper(self, y, x):
        assert "solve" in self.known
        x[:] = self.F.solve(y)

    def close(self):
        self.known.clear()


def factored(factor, *arguments):
    """What a factorization of the CPU returns, as that of the GPU does: an array."""
    return np.array([factor(*arguments)])


@pytest.fixture
def acc(flow, monkeypatch):
    """The part on the GPU with NumPy for CuPy, the kernels of the CPU and, for cuSPARSE, Made; the kernels of ACC."""
    from finelu.kernels.cpu import blocks, stencil

    cuda = ModuleType("finelu.kernels.cuda")
    cuda.stencil = SimpleNamespace(
        StencilPlan=lambda shape, n: None,
        block_ilu_factor=lambda A, d, pivoting: factored(stencil.block_ilu_factor, A, d, pivoting),
        block_ilu_solve=stencil.block_ilu_solve,
        stencil_residual=stencil.stencil_residual,
    )
    cuda.blocks = SimpleNamespace(
        batch_for=lambda n, dtype: 4,
        factor_plan=lambda indptr, indices, diag, n, batch: "plan",
        solve_plan=lambda indptr, indices, diag, n: "plan",
        bsr_ilu0_factor=lambda *arguments: factored(blocks.bsr_ilu0_factor, *arguments[:-1]),
        bsr_ilu0_solve=lambda *arguments: blocks.bsr_ilu0_solve(*arguments[:-1]),
        bsr_residual=blocks.bsr_residual,
    )
    acc = SimpleNamespace(
        block_ilu_factor_acc=lambda A, d: factored(stencil.block_ilu_factor, A, d, False),
        block_ilu_solve_acc=lambda A, d, b, x: stencil.block_ilu_solve(A, d, b, x, "N"),
    )
    cl = SimpleNamespace(
        block_ilu_factor_cl=lambda A, d: factored(stencil.block_ilu_factor, A, d, False),
        block_ilu_solve_cl=lambda A, d, b, x: stencil.block_ilu_solve(A, d, b, x, "N"),
    )
    stand_ins = numpy_for_cupy.modules() | {
        "finelu.kernels.cuda": cuda,
        "benchmarks.papers.fgbilu_acc": acc,
        "benchmarks.papers.fgbilu_cl": cl,
    }
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules["benchmarks.papers"], "fgbilu_acc", acc, raising=False)
    monkeypatch.setattr(sys.modules["benchmarks.papers"], "fgbilu_cl", cl, raising=False)
    monkeypatch.setattr(cusparse_bsr, "BlockILU0", Made)
    monkeypatch.setattr(fgbilu_gpu, "FLUSH", 2**10)
    fgbilu_gpu._scratch.cache_clear()
    yield acc
    fgbilu_gpu._scratch.cache_clear()


def on_a_gpu(out, *arguments, **more) -> Run:
    """The run that these arguments ask for, with what a machine with a GPU would say of itself."""
    options = fgbilu.parsed(["--gpu", "--quick", "--threads", "1", "--out", str(out), *arguments])
    vars(options).update(more)
    run = Run("fgbilu", {"name": "box"}, "2026-01-02", {"copy GB/s": 4000.0})
    fgbilu.measure(run, options)
    assert fgbilu.page(run, out)
    return Run.load(out / "fgbilu-box-2026-01-02.json.gz")


def test_the_part_on_the_gpu_fills_every_column(acc, tmp_path):
    run = on_a_gpu(tmp_path, "--edges", "3,4", "--unknowns", "4,10", largest_on_cpu=30)  # so that 4^3 is large
    assert not run.failures and not fgbilu_tables.wrong_table(run) and fgbilu_tables.bandwidth(run) == 4000
    columns = fgbilu_tables.columns(run)
    every = {c for c, which in columns.items() if fgbilu_tables.per_point(run, "3x3x3", "factor", **which)}
    assert {
        "sequential",
        "CPU, 1",
        "GPU CL",
        "GPU CL, pivoting",
        "GPU CL, launches",
        "GPU ACC",
        "GPU BSR",
        "cuSPARSE",
    } <= every
    peers = run.find(matrix="4x4x4", who="cusparse", work="solve")
    assert {r.variant for r in peers} == {f"{p} {d}" for p in cusparse_bsr.POLICIES for d in ("row", "column")}
    assert all({"lower_ms", "upper_ms"} <= set(r.detail) and r.error < 1e-12 for r in peers)
    assert run.one(matrix="4x4x4", variant="ACC", work="solve").error is None  # what the others are compared with
    assert not run.find(matrix="4x4x4", device="cpu")
    assert {r.device for r in run.find(matrix="n=10, 6x6x6", work="factor")} == {"gpu", "cpu"}
    styles = {f"GPU {style}" for style in ("CL", "CL, pivoting", "CL, launches", "ACC")}
    assert set(fgbilu_tables.agreement(run)) == {"sequential, Gauss-Jordan", "CPU wavefronts"} | styles
    assert fgbilu_tables.histories(run)["GPU CL, launches"] == fgbilu_tables.histories(run)["GPU CL"]


def test_blocks_that_have_too_many_elements_for_a_launch_a_hyperplane_are_left_out(acc, monkeypatch, tmp_path):
    monkeypatch.setattr(fgbilu_gpu, "LARGEST_OF_CL", 6)
    run = on_a_gpu(tmp_path, "--parts", "unknowns", "--unknowns", "4,10")
    assert {r.matrix.partition(",")[0] for r in run.find(variant="CL, launches")} == {"n=4"}
    (why,) = (why for what, why in run.left_out.items() if "CL, launches, n=10" in what)
    assert "at most 36" in why


def test_peers_that_fail_leave_the_others(acc, monkeypatch, tmp_path):
    def broken(*_):
        raise PeerError("cusparseDbsrilu02: not supported")

    monkeypatch.setattr(cusparse_bsr, "BlockILU0", broken)
    acc.block_ilu_factor_acc = lambda A, d: np.array([3])
    run = on_a_gpu(tmp_path, "--edges", "3", "--parts", "sizes")
    failed = {f["what"]: f["error"] for f in run.failures if f["what"] != "MKL"}
    assert len(failed) == 5 and "not supported" in failed["cuSPARSE NO_LEVEL row"] and "cell" in failed["GPU ACC"]
    assert {r.variant for r in run.find(work="solve", device="gpu")} == {"CL", "CL, pivoting", "CL, launches", "BSR"}


def test_a_spent_budget_is_said(flow, tmp_path):
    assert fgbilu.main(["--cpu", "--quick", "--budget", "0", "--machine", "box", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.json.gz")
    run = Run.load(path)
    assert not run.records and set(run.left_out.values()) == {"the budget was spent"} and "Table 1" in run.left_out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--unknowns", "4,7"], "7 is not a sum"), (["--parts", "tables"], "no tables"), (["--edges", "0"], "invalid")],
)
def test_it_refuses_what_it_cannot_do(arguments, words, tmp_path, capsys):
    with pytest.raises(SystemExit):
        fgbilu.main([*arguments, "--out", str(tmp_path)])
    assert words in capsys.readouterr().err


def test_it_is_found_by_name():
    from typer.testing import CliRunner

    from finelu.cli import app

    found = CliRunner().invoke(app, ["bench", "nothing"])
    assert "fgbilu" in {w.strip(",") for w in str(found.exception or found.output).split()}
