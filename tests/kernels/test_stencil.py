"""StencilMatrix: by definition, by twin, by its conversions there and back, by bad input."""

import numpy as np
import pytest
import scipy.sparse as sp
from block_cases import own_path
from checks import DTYPES, PATTERNS, assert_close, refused, values
from hypothesis import given
from hypothesis import strategies as st
from stencil_cases import OPEN, SHAPES, dense, random_blocks

import finelu as fl
from finelu import gallery
from finelu.errors import DeviceError, MatrixError
from finelu.kernels import kernels_for, reference
from finelu.matrix.stencil import NAMES, StencilMatrix


@st.composite
def grids(draw):
    shape = tuple(draw(st.integers(1, 4)) for _ in range(3))
    periodic = tuple(draw(st.booleans()) for _ in range(3))
    return shape, draw(st.sampled_from([1, 2, 3])), periodic, draw(st.integers(0, 99))


# By definition


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_the_dense_matrix(backend, shape, dtype):
    blocks = random_blocks(shape, 2, dtype)
    A, D = StencilMatrix(backend.move(blocks)), dense(blocks)
    assert A.shape == D.shape and A.dtype == dtype and A.shape_cells == shape and A.n_block == 2
    x, X = values(D.shape[0], dtype, 1), values((D.shape[0], 3), dtype, 2)
    for v in (x, X):
        moved = backend.move(v)
        assert_close(backend.fetch(A @ moved), D @ v, 64)
        assert_close(backend.fetch(A.matvec(moved)), D @ v, 64)
        assert_close(backend.fetch(A.rmatvec(moved)), D.conj().T @ v, 64)
        assert_close(backend.fetch(A.T @ moved), D.T @ v, 64)
        b = values(v.shape, dtype, 3)
        assert_close(backend.fetch(A.residual(backend.move(b), moved)), b - D @ v, 64)


@PATTERNS
@given(grid=grids())
def test_products_on_any_grid_periodic_or_not(backend, grid):
    shape, n, periodic, seed = grid
    blocks = random_blocks(shape, n, seed=seed)
    A, D = StencilMatrix(backend.move(blocks), periodic), dense(blocks, periodic)
    x = values(D.shape[0], "float64", 1)
    assert_close(backend.fetch(A @ backend.move(x)), D @ x, 128)
    assert_close(backend.fetch(A.rmatvec(backend.move(x))), D.T @ x, 128)
    assert_close(backend.fetch(A.tocsr()).toarray(), D, 8)


def test_blocks_that_point_outside_are_ignored_and_the_callers_are_not_written():
    blocks = random_blocks((3, 2, 4), 2)
    blocks[0, :, :, 0] = np.nan
    before = blocks.copy()
    A = StencilMatrix(blocks)
    np.testing.assert_array_equal(blocks, before)
    assert not A.blocks[0, :, :, 0].any() and not A.blocks[4, -1].any() and not A.blocks[5, :, -1].any()
    assert np.isfinite(A @ np.ones(A.shape[0])).all()
    assert StencilMatrix(A.blocks).blocks is A.blocks  # no copy where nothing has to be done


def test_a_wider_right_hand_side_widens_the_product():
    blocks = random_blocks((2, 3, 2), 2, "float32")
    A, D = StencilMatrix(blocks), dense(blocks)
    x = values(A.shape[0], "complex128")
    got = A @ x
    assert got.dtype == "complex128"
    assert_close(got, D.astype("complex128") @ x, 64)
    assert (A @ np.arange(A.shape[0])).dtype == "float64"


# By twin: the same bits, on any number of threads


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 9])
def test_the_residual_is_its_twin(backend, n, dtype):
    own_path(backend, n, dtype)
    blocks = random_blocks((3, 4, 2), n, dtype)
    for periodic in (OPEN, (True, False, True), (True, True, True)):
        A = StencilMatrix(blocks, periodic).blocks
        x, b = values(24 * n, dtype, 1), values(24 * n, dtype, 2)
        for right in (b, None):
            want, got = np.empty_like(x), backend.move(np.empty_like(x))
            reference.stencil.stencil_residual(A, periodic, x, right, want)
            moved = [v if v is None else backend.move(v) for v in (A, x, right)]
            kernels_for(got).stencil.stencil_residual(moved[0], periodic, *moved[1:], got)
            assert_close(backend.fetch(got), want, 0 if backend.name == "cpu" else 64)


def test_the_residual_has_the_same_bits_on_any_number_of_threads(threads):
    A = StencilMatrix(random_blocks((13, 11, 9), 3))
    x = values(A.shape[0], "float64")
    results = []
    for count in (1, 2, 4):
        threads(count)
        results.append(A @ x)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


# There and back


@pytest.mark.parametrize("periodic", [OPEN, (True, False, True), (True, True, True)], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 5), (5, 1, 3)], ids=str)
def test_bsr_there_and_back(shape, periodic):
    A = StencilMatrix(random_blocks(shape, 3), periodic)
    B = A.to_bsr()
    assert isinstance(B, sp.bsr_matrix) and B.blocksize == (3, 3) and B.has_sorted_indices
    assert_close(B.toarray(), dense(A.blocks, periodic), 8)
    again = StencilMatrix.from_bsr(B, shape, periodic)
    assert_close(dense(again.blocks, periodic), dense(A.blocks, periodic), 8)
    if 1 not in shape or not any(periodic):
        np.testing.assert_array_equal(again.blocks, A.blocks)
        assert A.nnz == B.nnz == A.tocsr().nnz


def test_from_a_scalar_matrix_of_the_gallery():
    P = gallery.problem("poisson7:5,4,3")  # x fastest
    A = StencilMatrix.from_bsr(P.tobsr((1, 1)), (3, 4, 5))
    assert abs(A.tocsr() - P).max() == 0
    x = values(60, "float64")
    assert_close(A @ x, P @ x, 8)


@pytest.mark.parametrize("periodic", [OPEN, (True, True, True)], ids=str)
def test_scalar_recipes_take_it_as_a(backend, periodic):
    blocks = random_blocks((2, 3, 4), 3)
    A = StencilMatrix(backend.move(blocks), periodic)
    b = backend.move(values(A.shape[0], "float64"))
    csr = A.tocsr()
    for M in (A, fl.BlockMatrix.from_csr(csr, 3)):
        want, got = (backend.fetch(fl.ILU0().factor(S).solve(b)) for S in (csr, M))
        np.testing.assert_array_equal(got, want)


def test_krylov_methods_take_it_as_a(backend):
    blocks = random_blocks((4, 3, 5), 2)
    A = StencilMatrix(backend.move(blocks))
    b = values(A.shape[0], "float64")
    for method in (fl.gmres, fl.bicgstab, fl.bicg):
        solution = method(A, backend.move(b), rtol=1e-10)
        assert solution.converged
        assert np.linalg.norm(b - dense(blocks) @ backend.fetch(solution.x)) <= 1.01e-10 * np.linalg.norm(b)


# Bad input


def test_not_finite_names_block_and_cell():
    blocks = random_blocks((3, 4, 5), 2)
    blocks[4, 1, 2, 3, 0, 1] = np.inf
    blocks[6, 2, 2, 3, 0, 1] = np.nan
    with refused(MatrixError, match=r"NaN or Inf in epsilon of cell \(1, 2, 3\) \(2 such blocks\)"):
        StencilMatrix(blocks)
    assert NAMES[4] == "epsilon"


def test_finite_numbers_whose_sum_is_not_are_fine():
    for dtype, large in (("float64", 1e308), ("float32", 3e38), ("complex128", 1e308 - 1e308j)):
        blocks = np.full((7, 2, 2, 2, 2, 2), large, dtype)
        assert StencilMatrix(blocks).dtype == fl.BlockMatrix(blocks[0, 0, 0], [0, 1], [0, 1, 2]).dtype == dtype
        blocks[3, 0, 1, 0], blocks[3, 1, 1, 0] = np.inf, -np.inf  # of which a sum is NaN
        with pytest.raises(MatrixError, match=r"in delta of cell \(0, 1, 0\) \(2 such"):
            StencilMatrix(blocks)


@pytest.mark.parametrize(
    "shape", [(7, 2, 2, 2, 3), (6, 2, 2, 2, 3, 3), (7, 2, 2, 2, 3, 2), (7, 2, 0, 2, 3, 3)], ids=str
)
def test_wrong_shapes(shape):
    with refused(MatrixError, match="is needed: alpha"):
        StencilMatrix(np.ones(shape))


def test_dtypes():
    assert StencilMatrix(np.ones((7, 1, 1, 1, 1, 1), int)).dtype == "float64"
    for dtype in ("float16", "object", "U1", "longdouble"):
        with pytest.raises(MatrixError, match="has dtype"):
            StencilMatrix(np.ones((7, 1, 1, 1, 1, 1)).astype(dtype))


def test_bad_vectors_and_periodic():
    A = StencilMatrix(random_blocks((2, 2, 2), 2))
    for bad in (np.ones(15), np.ones((16, 1, 1)), np.array(1.0)):
        with pytest.raises(MatrixError, match="A has 16 rows"):
            A @ bad
    with pytest.raises(MatrixError, match="b has shape"):
        A.residual(np.ones((16, 2)), np.ones(16))
    for periodic in (True, (True, False), (1, 2, 3), "yes"):
        with pytest.raises(MatrixError, match="three booleans"):
            StencilMatrix(A.blocks, periodic)
    with pytest.raises(MatrixError, match="cannot be made"):
        A.T.astype("complex128").astype("float64")


def test_from_bsr_says_what_does_not_fit():
    A = StencilMatrix(random_blocks((3, 4, 5), 2))
    with pytest.raises(MatrixError, match="BSR"):
        StencilMatrix.from_bsr(A.tocsr(), (3, 4, 5))
    with pytest.raises(MatrixError, match="has 24 cells"):
        StencilMatrix.from_bsr(A.to_bsr(), (2, 3, 4))
    with pytest.raises(MatrixError, match="three positive integers"):
        StencilMatrix.from_bsr(A.to_bsr(), (3, 4.0, 5))
    with refused(MatrixError, match=r"couples cell \(\d, \d, \d\) to cell"):
        StencilMatrix.from_bsr(A.to_bsr(), (5, 4, 3))
    closed = StencilMatrix(random_blocks((3, 4, 5), 2), (True, False, False))
    with pytest.raises(MatrixError, match=r"cell \(0, 0, 0\) to cell \(2, 0, 0\)"):
        StencilMatrix.from_bsr(closed.to_bsr(), (3, 4, 5))


@pytest.mark.gpu
def test_there_is_no_bsr_on_the_gpu(backend):
    if backend.name == "cpu":
        pytest.skip("of the GPU")
    with pytest.raises(DeviceError, match="tocsr"):
        StencilMatrix(backend.move(random_blocks((2, 2, 2), 2))).to_bsr()
