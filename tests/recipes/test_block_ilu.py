"""BlockILU0: by definition, by limit, by twin, by the effect of each parameter, by behaviour, by bad input."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse.linalg
from block_cases import own_path
from checks import DTYPES, PATTERNS, assert_close, one_line, values
from hypothesis import given
from hypothesis import strategies as st
from stencil_cases import OPEN, SHAPES, dense, random_blocks

import finelu as fl
from finelu import ILU0, MatrixError, ParameterError, ZeroPivot, gallery
from finelu.kernels import kernels_for, reference
from finelu.kernels.cpu import stencil
from finelu.krylov import richardson
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.stencil import StencilMatrix
from finelu.preconditioners.block_ilu import BlockILU0
from finelu.result import Status


def factored(backend, blocks, periodic=OPEN, **parameters):
    A = StencilMatrix(backend.move(blocks), periodic)
    return A, BlockILU0(**parameters).factor(A)


# By definition: that of the same blocks in any pattern, which test_block_ilu_bsr.py holds to its definition


def check_against_blocks(backend, blocks, pivoting, ulps):
    host = StencilMatrix(blocks)
    B = BlockMatrix.from_bsr(host.to_bsr())
    G = BlockILU0(pivoting=pivoting).factor(BlockMatrix(*(backend.move(v) for v in (B.data, B.indices, B.indptr))))
    A, F = factored(backend, blocks, pivoting=pivoting)
    assert F.dtype == blocks.dtype and F.shape == A.shape and F.nnz == A.nnz
    d = backend.fetch(G.lu)[B.diag]
    assert_close(backend.fetch(F.d).reshape(d.shape), d, ulps, scale=abs(d).max())
    R = backend.move(values((A.shape[0], 2), blocks.dtype))
    for trans in "NTH":
        x = backend.fetch(F.solve(R, trans))
        assert_close(x, backend.fetch(G.solve(R, trans)), 4 * ulps)
        np.testing.assert_array_equal(backend.fetch(F.solve(R[:, 1], trans)), x[:, 1])


@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_factorization_of_the_same_blocks_in_any_pattern(backend, shape, dtype, pivoting):
    check_against_blocks(backend, random_blocks(shape, 2 if dtype == "float64" else 3, dtype), pivoting, 128)


@PATTERNS
@given(
    shape=st.tuples(*[st.integers(1, 4)] * 3),
    n=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 99),
    pivoting=st.booleans(),
)
def test_it_is_that_on_any_grid(backend, shape, n, seed, pivoting):
    check_against_blocks(backend, random_blocks(shape, n, seed=seed), pivoting, 512)


# By limit: along a line there is no fill, and a single cell is its inverse


@pytest.mark.parametrize("n", [3, 8, 9])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 23), (1, 23, 1), (23, 1, 1)], ids=str)
def test_along_a_line_one_solve_is_exact(backend, shape, n):
    blocks = random_blocks(shape, n)
    A, F = factored(backend, blocks)
    x = values(A.shape[0], "float64")
    assert_close(backend.fetch(F.solve(A @ backend.move(x))), x, 1024)
    H = dense(blocks).T
    assert_close(backend.fetch(F.solve(backend.move(H @ x), "T")), x, 1024)


@pytest.mark.parametrize("name", ["poisson7:5,4,3", "convection_diffusion:7,6,5,peclet=50", "poisson5:9,7"])
def test_with_one_unknown_it_is_ilu0(backend, name):
    P = gallery.problem(name)
    shape = {"poisson7:5,4,3": (3, 4, 5), "poisson5:9,7": (1, 7, 9)}.get(name, (5, 6, 7))
    host = StencilMatrix.from_bsr(P.tobsr((1, 1)), shape)
    F = BlockILU0().factor(StencilMatrix(backend.move(host.blocks)))
    G = ILU0().factor(P)
    assert_close(1 / backend.fetch(F.d).ravel(), G.U.diagonal(), 16)
    b = values(P.shape[0], "float64")
    for trans in ("N", "T"):
        want = G.solve(b, trans)
        assert_close(backend.fetch(F.solve(backend.move(b), trans)), want, 64)


# By twin: the CPU gives the reference's bits, on any number of threads and by any tiles


@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 9])
def test_the_kernels_are_their_twins(backend, n, dtype, pivoting):
    own_path(backend, n, dtype)
    shape = (3, 2, 4)
    blocks = StencilMatrix(random_blocks(shape, n, dtype)).blocks.copy()
    if pivoting and n > 1:
        blocks[3] = blocks[3][..., ::-1, :]  # the large entries are off the diagonal
    d = np.empty(blocks.shape[1:], dtype)
    assert reference.stencil.block_ilu_factor(blocks, d, pivoting) == -1
    got = backend.move(np.empty_like(d))
    moved = backend.move(blocks)
    kernels = kernels_for(got)
    assert kernels.vectors.first_bad(kernels.stencil.block_ilu_factor(moved, got, pivoting)) == -1
    exact = backend.name == "cpu"
    assert_close(backend.fetch(got), d, 0 if exact else 256, scale=abs(d).max())
    b = values(24 * n, dtype)
    for trans in ("N", "T", "H"):
        x, y = np.empty_like(b), backend.move(np.empty_like(b))
        reference.stencil.block_ilu_solve(blocks, d, b, x, trans)
        kernels.stencil.block_ilu_solve(moved, backend.move(d), backend.move(b), y, trans)
        assert_close(backend.fetch(y), x, 0 if backend.name == "cpu" else 256)


@pytest.mark.parametrize("shape", [(13, 11, 9), (2, 3, 97), (64, 31, 1), (1, 1, 50)], ids=str)
def test_the_same_bits_on_any_number_of_threads_and_by_any_tiles(threads, monkeypatch, shape):
    blocks = StencilMatrix(random_blocks(shape, 3)).blocks
    b = values(int(np.prod(shape)) * 3, "float64")

    def outcome():
        F = BlockILU0().factor(StencilMatrix(blocks))
        return [F.d, *(F.solve(b, trans) for trans in ("N", "T"))]

    threads(1)
    want = outcome()
    for edge in ((1, 1, 1), (2, 2, 3), shape):
        cut = stencil._cut(np.array(shape), np.minimum(edge, shape))
        monkeypatch.setattr(stencil, "tiles", lambda *_, cut=cut: (4, *cut))
        for count in (1, 2, 4):
            threads(count)
            for got, one in zip(outcome(), want, strict=True):
                np.testing.assert_array_equal(got, one)


@pytest.mark.parametrize("shape", [(5, 4, 3), (1, 7, 9), (40, 3, 1)], ids=str)
def test_tiles_cover_the_grid_once_and_wait_for_their_neighbours(shape):
    for edge in ((1, 1, 1), (2, 3, 2), (4, 4, 4)):
        after, lo, hi = stencil._cut(np.array(shape), np.minimum(edge, shape))
        owner = np.full(shape, -1)
        for t in range(after.size):
            box = tuple(slice(int(a), int(b)) for a, b in zip(lo[t], hi[t], strict=True))
            assert (owner[box] == -1).all()
            owner[box] = t
            assert after[t] <= t
        assert (owner >= 0).all()
        for axis in range(3):
            before, behind = np.moveaxis(owner, axis, 0)[:-1], np.moveaxis(owner, axis, 0)[1:]
            assert ((before == behind) | (before < after[behind])).all()


# By behaviour


def test_twenty_corrections_agree_with_the_sequential_algorithm_to_twelve_digits(backend, monkeypatch):
    """Table 1: sums of squares of the residual, by the global sequential algorithm and by wavefronts."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2])
    from benchmarks.papers import fgbilu_sequential

    shape, n = (13, 17, 11), 6
    blocks = StencilMatrix(random_blocks(shape, n)).blocks
    b = values((*shape, n), "float64")
    d, x, r, z = np.empty(blocks.shape[1:]), np.zeros_like(b), b.copy(), np.empty_like(b)
    assert fgbilu_sequential.sequential_factor(blocks, d) == -1
    sequential = [np.linalg.norm(b)]
    for _ in range(20):
        fgbilu_sequential.sequential_solve(blocks, d, r, z)
        x += z
        fgbilu_sequential.sequential_residual(blocks, x, b, r)
        sequential.append(np.linalg.norm(r))
    A, F = factored(backend, blocks)
    solution = richardson(A, backend.move(b.ravel()), M=F, maxiter=20, rtol=0.0)
    ours = np.array(solution.history)
    assert ours.size == 21 and solution.status is Status.MAX_ITERATIONS and solution.iterations == 20
    assert abs(ours - sequential).max() <= 1e-12 * sequential[0]
    assert_close(backend.fetch(solution.x), x.ravel(), 4500)  # 4500 ulps are 12 digits
    early = [k for k in range(21) if sequential[k] > 1e-3 * sequential[0]]
    np.testing.assert_allclose(ours[early], np.array(sequential)[early], rtol=1e-12)
    assert ours[-1] < 1e-10 * ours[0]


def test_the_correction_iteration_says_what_it_did(backend):
    blocks = random_blocks((5, 6, 7), 3)
    A, F = factored(backend, blocks)
    D = dense(blocks)
    b = values((A.shape[0], 1), "float64")
    solution = richardson(A, backend.move(b), M=F, rtol=1e-8, maxiter=20)
    x = backend.fetch(solution.x)
    b = b.ravel()
    assert solution.converged and x.shape == b.shape and solution.iterations == len(solution.history) - 1
    assert np.linalg.norm(b - D @ x) == pytest.approx(solution.residual_norm, rel=1e-5)
    assert solution.residual_norm <= 1e-8 * np.linalg.norm(b) < solution.history[-2]
    assert solution.history[1] == pytest.approx(np.linalg.norm(b - D @ backend.fetch(F.solve(backend.move(b)))))
    assert "BlockILU0" in repr(solution) and solution.method == "richardson"
    none = richardson(A, backend.move(b), M=F, maxiter=0)
    assert none.iterations == 0 and none.status is Status.MAX_ITERATIONS and not backend.fetch(none.x).any()
    assert richardson(A, backend.move(0 * b), M=F).converged


def test_where_corrections_diverge_the_best_iterate_comes_back(backend):
    blocks = random_blocks((4, 4, 4), 2)
    b = backend.move(values(128, "float64"))
    for of_m, of_a, steps, status, iterations in (
        (1, -50, 1000, Status.DIVERGED, 5),  # 51^4 < 1e8 < 51^5: no more of it
        (1, -50, 2, Status.DIVERGED, 2),  # the residual has grown
        (1e-200, 1e200, 1000, Status.NOT_FINITE, 0),
    ):
        _, F = factored(backend, of_m * blocks)
        solution = richardson(StencilMatrix(backend.move(of_a * blocks)), b, M=F, maxiter=steps)
        assert (solution.status, solution.iterations) == (status, iterations) and solution.info != 0
        assert not backend.fetch(solution.x).any() and solution.residual_norm == solution.history[0]
        assert np.isfinite(solution.history).all()


def test_it_preconditions_on_a_periodic_grid_and_in_scipy(backend):
    blocks = random_blocks((6, 5, 4), 3)
    blocks[3] = blocks[3] / 2
    A, F = factored(backend, blocks, (True, True, False))
    _, cut = factored(backend, blocks)
    np.testing.assert_array_equal(backend.fetch(F.d), backend.fetch(cut.d))  # what closes the grid is not factored
    b = backend.move(values(A.shape[0], "float64"))
    plain, preconditioned = fl.gmres(A, b, rtol=1e-10), fl.gmres(A, b, M=F, rtol=1e-10)
    assert preconditioned.converged and preconditioned.iterations < plain.iterations
    if backend.name == "cpu":
        M = scipy.sparse.linalg.aslinearoperator(F)
        x, info = scipy.sparse.linalg.gmres(A.tocsr(), b, M=M, rtol=1e-10)
        assert info == 0 and np.linalg.norm(b - A @ x) <= 1e-9 * np.linalg.norm(b)


def test_real_factors_take_complex_right_hand_sides(backend):
    _, F = factored(backend, random_blocks((3, 4, 2), 2))
    b = values(48, "complex128")
    real, imag = (backend.fetch(F.solve(backend.move(part.copy()), "H")) for part in (b.real, b.imag))
    np.testing.assert_array_equal(backend.fetch(F.solve(backend.move(b), "H")), real + 1j * imag)


# The effect of each parameter


def test_pivoting_inverts_blocks_with_a_zero_diagonal(backend):
    blocks = random_blocks((2, 3, 4), 3)
    blocks[3] = blocks[3][..., [1, 2, 0], :]
    blocks[3][..., [0, 1, 2], [0, 1, 2]] = 0
    blocks[:3] = 0
    with pytest.raises(ZeroPivot, match=r"cell \(0, 0, 0\).*pivoting=True") as error:
        factored(backend, blocks, pivoting=False)
    assert error.value.condition < 100  # not the block's fault
    one_line(error)
    _, F = factored(backend, blocks)
    assert_close(backend.fetch(F.d), np.linalg.inv(blocks[3]), 512, scale=1)


# Bad input


def test_bad_matrices_and_right_hand_sides():
    A = StencilMatrix(random_blocks((2, 2, 2), 2))
    F = BlockILU0().factor(A)
    with pytest.raises(ParameterError, match=r"give block_size \(its pattern suggests 2\)"):
        BlockILU0().factor(A.tocsr())
    with pytest.raises(MatrixError, match="beyond the range of float32"):
        BlockILU0(precision="float32").factor(StencilMatrix(1e300 * A.blocks))
    with pytest.raises(MatrixError, match="NaN"):
        richardson(A, np.full(16, np.nan), M=F)
    assert richardson(A, np.ones((16, 2)), M=F).x.shape == (16, 2)  # one after the other
    for bad in ({"maxiter": -1}, {"maxiter": 1.5}, {"rtol": -1.0}, {"rtol": np.nan}, {"rtol": True}):
        with pytest.raises(ParameterError, match=next(iter(bad))):
            richardson(A, np.ones(16), M=F, **bad)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 8, 12, 33, 40])
def test_pivots_do_not_depend_on_how_rows_are_scaled(backend, n):
    own_path(backend, n)
    blocks = random_blocks((2, 2, 1), n, "float64")
    powers = np.exp2(np.random.default_rng(n).integers(-40, 40, blocks.shape[1:5]))
    plain, scaled = (factored(backend, b)[1] for b in (blocks, blocks * powers[..., None]))
    want = backend.fetch(plain.d) / powers[..., None, :]
    np.testing.assert_array_equal(backend.fetch(scaled.d), want)  # to the last bit
