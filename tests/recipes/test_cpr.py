"""CPR: its formula, limits, weights, the pressure that it finds, steps of Chebyshev, and what has no cells."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import assert_close, in_dtype, one_line, values

import finelu as fl
from finelu import CPR, MatrixError, ParameterError, gallery
from finelu.errors import UnstableFactors, ZeroPivot
from finelu.matrix import looks as matrix_looks
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.looks import block_size, flow, likely_block_size, two_way
from finelu.matrix.traits import traits
from finelu.preconditioners.polynomial import chebyshev, ritz_values

RESERVOIR = gallery.black_oil(6, 5, 4)
CELLS = 120


def complex_one():
    """RESERVOIR with complex entries, its structure kept."""
    A = RESERVOIR.astype(complex)
    A.data *= 1 + 0.2j * values(A.nnz, "float64")
    return A


def reordered(order):
    """RESERVOIR with the unknowns of a cell in another order; all entries of the blocks are stored."""
    B = RESERVOIR.tobsr((3, 3))
    return sp.bsr_matrix((B.data[:, :, order], B.indices, B.indptr)).tocsr()


def blocks(A, size=3):
    return A.toarray().reshape(A.shape[0] // size, size, A.shape[0] // size, size).transpose(0, 2, 1, 3)


def weights(A, unknown, kind):
    """(cells, 3) : by definition."""
    B = blocks(A)
    found = [np.linalg.inv(B[c, c] if kind == "quasi-impes" else B[:, c].sum(axis=0))[unknown] for c in range(len(B))]
    return np.array([w / abs(w).max() for w in found])


def pieces(A, unknown, kind):
    """W, C and A_p, dense."""
    count = A.shape[0] // 3
    W, C = np.zeros((count, A.shape[0]), A.dtype), np.zeros((A.shape[0], count))
    for c, w in enumerate(weights(A, unknown, kind)):
        W[c, 3 * c : 3 * c + 3] = w
        C[3 * c + unknown, c] = 1
    return W, C, W @ A.toarray() @ C


def dense(backend, F):
    return backend.fetch(F.solve(backend.move(np.eye(F.shape[0], dtype=F.dtype))))


@pytest.mark.parametrize("kind", ["quasi-impes", "true-impes"])
@pytest.mark.parametrize("A", [RESERVOIR, complex_one()], ids=["real", "complex"])
def test_two_stages_by_definition(backend, A, kind):
    W, C, A_p = pieces(A, 0, kind)
    F = CPR(weights=kind, pressure="ilu0", whole="jacobi", steps=1).factor(backend.move(A))
    assert_close(backend.fetch(F.weights), weights(A, 0, kind), 1e4)
    assert_close(backend.fetch(F.system.data), A_p[sp.csr_matrix(A_p).nonzero()], 1e6, abs(A_p).max())
    G = fl.ILU0().factor(sp.csr_matrix(A_p))
    first = C @ np.linalg.inv((G.L @ G.U).toarray()) @ W
    want = first + (np.eye(A.shape[0]) - A.toarray() @ first) / A.diagonal()[:, None]
    assert np.linalg.norm(dense(backend, F) - want, 2) <= 1e-8 * np.linalg.norm(want, 2)


def test_complete_factors_of_the_whole_are_its_inverse():
    A = RESERVOIR
    F = CPR(whole=fl.SparseLU()).factor(A)
    x = values(A.shape[0], "float64")
    assert np.linalg.norm(F.solve(A @ x) - x) <= 1e-8 * np.linalg.norm(x)


def test_true_weights_leave_the_change_of_a_cells_content():
    A, A_p = RESERVOIR, pieces(RESERVOIR, 0, "true-impes")[2]
    F = CPR(weights="true-impes").factor(A)
    columns = blocks(A).sum(axis=0)  # of cell c the sum of its columns
    for w, block in zip(F.weights, columns, strict=True):
        assert abs((w @ block)[1:]).max() <= 1e-10 * abs(block).max()
    assert abs(F.system.tosparse() - A_p).max() <= 1e-10 * abs(A_p).max()


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_the_pressure_is_found(backend, order):
    F = CPR(whole="block_ilu0").factor(backend.move(reordered(order)))
    assert F.report.unknown == F.unknown == order.index(0) and F.report.block_size == 3


def test_new_values_may_move_the_pressure():
    moved = reordered((2, 1, 0))
    F = CPR(whole="block_ilu0").factor(RESERVOIR)
    assert F.unknown == 0
    r = values(3 * CELLS, "float64")
    assert F.update(moved).unknown == 2
    np.testing.assert_array_equal(F.solve(r), CPR(whole="block_ilu0").factor(moved).solve(r))


def test_every_form_of_a_block_matrix_gives_the_same(backend):
    r = values(3 * CELLS, "float64")
    plain = RESERVOIR.copy()
    plain.eliminate_zeros()
    found = [
        backend.fetch(recipe.factor(backend.move(A)).solve(backend.move(r)))
        for recipe, A in (
            (CPR(whole="block_ilu0"), RESERVOIR),
            (CPR(whole="block_ilu0", block_size=3), RESERVOIR),
            (CPR(whole="block_ilu0", block_size=3), plain),
        )
    ]
    if backend.name == "cpu":
        bsr = RESERVOIR.tobsr((3, 3))
        found += [CPR(whole="block_ilu0").factor(A).solve(r) for A in (bsr, BlockMatrix.from_bsr(bsr))]
    for other in found[1:]:
        assert_close(other, found[0], 64)


def test_fewer_iterations_than_the_second_stage_alone(backend):
    A = gallery.black_oil(16, 16, 10)
    b = values(A.shape[0], "float64")
    A, b = backend.move(A), backend.move(b)

    def count(M):
        found = fl.bicgstab(A, b, M=M.factor(A), rtol=1e-8)
        assert found.converged
        return found.iterations

    plain, default = count(fl.ILU0()), count(CPR())
    assert default <= 0.4 * plain
    assert count(CPR(pressure=fl.SparseLU())) < default < count(CPR(steps=1)) < plain
    assert count(CPR(unknown=1)) > 2 * default
    assert count(CPR(weights="true-impes")) <= 0.4 * plain


def test_steps_of_chebyshev_by_definition():
    F = CPR(steps=4, pressure="ilu0", whole="jacobi").factor(RESERVOIR)
    low, high = F.report.spectrum
    assert F.report.steps == 4 and 0 < low < high
    P = np.linalg.inv((F.pressure.L @ F.pressure.U).toarray()) @ F.system.tosparse().toarray()
    largest = abs(np.linalg.eigvals(P)).max()
    assert 0.9 * largest <= high <= 1.2 * largest

    def T(x):  # of degree 4
        return 8 * x @ x @ x @ x - 8 * x @ x + np.eye(len(x))

    middle, half = (high + low) / 2, (high - low) / 2
    left = T((middle * np.eye(CELLS) - P) / half) / T(np.array([[middle / half]]))
    x = values(CELLS, "float64")
    product, apply = F.system.tosparse().__matmul__, F.pressure.solve
    found = chebyshev(product, apply, np.zeros(CELLS), product(x), middle, half, 4)
    assert_close(found, x - left @ x, 1e6, np.linalg.norm(x))


def test_complete_factors_of_the_pressure_have_one_step():
    F = CPR(pressure="sparse_lu", steps=5).factor(RESERVOIR)
    assert F.report.steps == 1 and F.report.spectrum is None


def test_a_pressure_without_an_elliptic_equation_is_reported():
    A = sp.kron(sp.diags([1.0, 1e-3, 1.0], [-1, 0, 1], shape=(60, 60)) + sp.eye(60, k=7), np.ones((2, 2)))
    A = sp.csr_matrix(A + sp.kron(sp.eye(60), [[0.1, 0.0], [0.0, 0.2]]))
    F = CPR(block_size=2, pressure="jacobi").factor(A)
    assert F.report.steps == 1 and "not in the right half-plane" in F.report.warning


def test_ritz_values(backend):
    D = np.arange(1.0, 41.0)
    found = ritz_values(lambda v: backend.move(D) * v, backend.move(np.ones(40)), 12)
    assert found.shape == (12,) and found.min() >= 1 - 1e-12 and 37 < found.max() <= 40 + 1e-12
    few = ritz_values(lambda v: backend.move(D) * v, backend.move((D < 4) * 1.0), 12)
    assert_close(np.sort(few.real)[-3:], np.array([1.0, 2.0, 3.0]), 1e4)
    assert ritz_values(lambda v: v * np.nan, backend.move(np.ones(40)), 12).size == 0


def test_factors_that_overflow_are_refused():
    A = sp.kron(sp.eye(30) + sp.eye(30, k=1) * 1e300, np.eye(2) + 0.5)
    with pytest.raises((UnstableFactors, ZeroPivot)):
        CPR(block_size=2, pressure="ilu0", whole="jacobi").factor(sp.csr_matrix(A + A.T))


def test_a_cell_without_weights_is_named():
    A = RESERVOIR.tolil()
    A[9:12, 9:12] = np.ones((3, 3))  # as good as the balance of one phase, three times
    A = sp.csr_matrix(A)
    with pytest.raises(ZeroPivot, match=r"the pivot of row 9 is rounding of a block of condition .* Try weights='true"):
        CPR().factor(A)
    assert np.isfinite(CPR(weights="true-impes", whole="jacobi").factor(A).weights).all()


@pytest.mark.parametrize(
    ("given", "A", "message"),
    [
        ({}, gallery.poisson5(6, 5), "A's pattern shows no blocks of 2 to 8 unknowns; give block_size"),
        ({"block_size": 7}, gallery.poisson5(6, 5), "30 rows, which is not a multiple of the block size 7"),
        ({"block_size": 2}, RESERVOIR.tobsr((3, 3)), "A has 3 x 3 blocks; leave block_size out"),
        ({"unknown": 3}, RESERVOIR, "unknown must be an integer from 0 to 2"),
    ],
)
def test_a_matrix_without_such_cells(given, A, message):
    with pytest.raises(ParameterError, match=message) as error:
        CPR(**given).factor(A)
    one_line(error)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": "impes"}, "weights .*one of quasi-impes, true-impes"),
        ({"unknown": "pressure"}, "unknown"),
        ({"steps": 0}, "steps"),
        ({"pressure": fl.IC0()}, r"pressure=IC0\(\) does not fit a matrix that is not symmetric"),
        ({"whole": fl.ICNE()}, r"whole=ICNE\(\) does not fit"),
        ({"whole": CPR()}, r"whole=CPR\(\) does not fit"),
        ({"whole": fl.ILU0(precision="float32")}, r"leave precision of whole as it is, and set CPR\(precision"),
    ],
)
def test_parameters_without_a_meaning(given, message):
    with pytest.raises(ParameterError, match=message) as error:
        CPR(**given)
    one_line(error)


def test_a_missing_diagonal_entry_is_named():
    A = RESERVOIR.tolil()
    A[4, 4] = 0
    A = sp.csr_matrix(A)
    A.eliminate_zeros()
    with pytest.raises(MatrixError, match="row 4 "):
        CPR(block_size=3).factor(A)


def test_single_precision_is_that_of_all_factors():
    F = CPR(precision="float32").factor(RESERVOIR)
    assert F.dtype == F.pressure.dtype == F.whole.dtype == F.weights.dtype == np.float32
    assert CPR().factor(in_dtype(RESERVOIR, "float32")).dtype == np.float32


# What shows the cells and the pressure


def test_likely_blocks_are_those_that_all_rows_show(backend):
    for A, size in (
        (RESERVOIR, 3),
        (gallery.elasticity(4, 4, 4), 3),
        (gallery.poisson5(12), 1),
        (sp.kron(gallery.poisson5(20), np.ones((8, 8))), 8),
        (sp.kron(gallery.poisson5(50), np.ones((2, 2))), 2),  # several windows
        (sp.csr_matrix([[2.0]]), 1),
    ):
        C = fl.as_csr(backend.move(sp.csr_matrix(A)))
        assert likely_block_size(C) == block_size(C) == size


def test_couplings_that_go_both_ways_by_definition(backend):
    B = blocks(RESERVOIR)
    sizes = abs(B).sum(axis=2) * ~np.eye(CELLS, dtype=bool)[:, :, None]
    opposite = sizes.transpose(1, 0, 2)
    want = np.minimum(sizes, opposite).sum(axis=(0, 1)) / np.maximum(sizes, opposite).sum(axis=(0, 1))
    found = two_way(fl.as_csr(backend.move(RESERVOIR)), 3)
    assert abs(found - want).max() < 0.05  # most cells are looked at
    assert found[0] > 0.99 > 0.01 > found[1:].max()
    assert (two_way(fl.as_csr(sp.eye(12)), 3) == 0).all()


def test_couplings_are_looked_at_once_while_values_stay(backend, meanwhile):
    """In a block with the same comparison; in one with another, or in none, they are looked at anew."""
    A, looks = fl.as_csr(backend.move(RESERVOIR)), []
    look = matrix_looks._two_way
    meanwhile(matrix_looks, _two_way=lambda A, size: looks.append(size) or look(A, size))
    mirrored = A.mirrored()
    for comparison, count in ((mirrored, 1), (mirrored, 1), (A.mirrored(), 2)):
        with A.unchanged(comparison):
            assert (two_way(A, 3) == look(A, 3)).all() and len(looks) == count
    two_way(A, 3)
    two_way(A, 3)
    assert len(looks) == 4


def test_a_flow_has_one_pressure():
    flowing = gallery.black_oil(15, 15, 15)
    assert flow(fl.as_csr(flowing)) == traits(fl.as_csr(flowing)).flow == 3
    both_ways = sp.csr_matrix(sp.kron(gallery.convection_diffusion(12), np.ones((3, 3)) + 2 * np.eye(3)))
    one_way = sp.csr_matrix(sp.kron(sp.eye(600) - sp.eye(600, k=-1), np.ones((3, 3)) + np.eye(3)))
    assert flow(fl.as_csr(both_ways)) == flow(fl.as_csr(one_way)) == flow(fl.as_csr(gallery.poisson5(30))) == 0
    assert traits(fl.as_csr(gallery.black_oil(5))).flow == 0  # too few rows
