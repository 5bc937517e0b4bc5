"""Jacobi and block Jacobi: by definition, by limit, by behaviour, by bad input."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from block_cases import own_path
from checks import DTYPES, PATTERNS, assert_close, dominant_matrices, in_dtype, one_line, values
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import BlockJacobi, Jacobi, ZeroPivot, gallery


def block_diagonal(A, size):
    """The dense matrix of the diagonal blocks of A, `size` rows each."""
    dense = A.toarray()
    return scipy.linalg.block_diag(*(dense[i : i + size, i : i + size] for i in range(0, A.shape[0], size)))


def applied(M, r, trans):
    return np.linalg.solve({"N": M, "T": M.T, "H": M.conj().T}[trans], r)


# By definition


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_jacobi_divides_by_the_diagonal(backend, problem):
    A = problem.A
    F = Jacobi().factor(backend.move(A))
    for trans in ("N", "T", "H"):
        d = A.diagonal().conj() if trans == "H" else A.diagonal()
        for shape in ((), (1,), (3,)):
            r = values((A.shape[0], *shape), A.dtype)
            z = backend.fetch(F.solve(backend.move(r), trans=trans))
            assert z.shape == r.shape and z.dtype == r.dtype
            np.testing.assert_allclose(z, (r.T / d).T, rtol=8 * np.finfo(A.dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 8, 9, 60, 100])
def test_block_jacobi_solves_with_the_diagonal_blocks(backend, size, dtype):
    own_path(backend, size, dtype)
    A = in_dtype(gallery.convection_diffusion(5, 4, 3, peclet=9), dtype)
    F = BlockJacobi(block_size=size).factor(backend.move(A))
    M = block_diagonal(A, size)
    for trans in ("N", "T", "H"):
        for shape in ((60,), (60, 1), (60, 3)):
            r = values(shape, dtype)
            assert_close(backend.fetch(F.solve(backend.move(r), trans=trans)), applied(M, r, trans), 128)
    inside = np.arange(60)[:, None] // size == np.arange(60) // size
    assert F.nnz == np.count_nonzero((A.toarray() != 0) & inside)


@PATTERNS
@given(A=dominant_matrices(), size=st.sampled_from([1, 2, 3, 8, 9]))
def test_block_jacobi_of_any_pattern(backend, A, size):
    r = values(A.shape[0], A.dtype)
    z = backend.fetch(BlockJacobi(block_size=size).factor(backend.move(A)).solve(backend.move(r)))
    assert_close(z, applied(block_diagonal(A, size), r, "N"), 256)


# By limit


def test_blocks_of_one_row_are_jacobi(backend):
    A = gallery.convection_diffusion(5, 4, 3)
    r = backend.move(values(60, "float64"))
    one, two = BlockJacobi(block_size=1).factor(backend.move(A)), Jacobi().factor(backend.move(A))
    assert_close(backend.fetch(one.solve(r)), backend.fetch(two.solve(r)), 4)


@pytest.mark.parametrize("size", [60, 61, 1000])
def test_one_block_is_the_inverse(backend, size):
    A = gallery.convection_diffusion(5, 4, 3)
    x = values(60, "float64")
    F = BlockJacobi(block_size=size).factor(backend.move(A))
    assert_close(backend.fetch(F.solve(backend.move(A @ x))), x, 512)


def test_a_block_with_a_zero_on_its_diagonal_is_fine_if_it_is_regular(backend):
    A = sp.csr_matrix(np.array([[1.0, 2], [3, 1]]))
    A.data[A.data == 1] = 0
    x = np.array([5.0, 7])
    F = BlockJacobi(block_size=2).factor(backend.move(A))
    np.testing.assert_allclose(backend.fetch(F.solve(backend.move(A @ x))), x)


def test_badly_scaled_blocks_are_inverted_all_the_same(backend):
    A = sp.csr_matrix(np.diag([1e-150, 1e150, 1e-200, 1e100]) @ (np.ones((4, 4)) + 4 * np.eye(4)))
    x = np.arange(1.0, 5)
    F = BlockJacobi().factor(backend.move(A))
    np.testing.assert_allclose(backend.fetch(F.solve(backend.move(A @ x))), x, rtol=1e-10)


# By behaviour


def test_blocks_help_where_neighbours_are_coupled_strongly():
    A = gallery.apache2_like(8, 9, 10)  # rows of 8 along the thin direction are coupled 20000 times more strongly
    b = np.ones(A.shape[0])
    counts = [fl.cg(A, b, M=recipe.factor(A), rtol=1e-8).iterations for recipe in (Jacobi(), BlockJacobi(block_size=8))]
    assert counts[1] < 0.5 * counts[0]


# By bad input


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", [0, 33])
def test_a_zero_on_the_diagonal_is_named(backend, dtype, row):
    A = gallery.poisson7(5, 4, 3).astype(dtype)
    A.data[A.indptr[row] + np.flatnonzero(A.indices[A.indptr[row] : A.indptr[row + 1]] == row)] = 0
    with pytest.raises(ZeroPivot, match=f"the pivot of row {row} is") as error:
        Jacobi().factor(backend.move(A))
    assert error.value.row == row
    one_line(error)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_singular_block_is_named_by_its_first_row(backend, size):
    A = sp.csr_matrix(sp.block_diag([2 * np.eye(size)] * 3 + [np.ones((size, size))] + [2 * np.eye(size)] * 2))
    with pytest.raises(ZeroPivot, match=f"row {3 * size} .*singular") as error:
        BlockJacobi(block_size=size).factor(backend.move(A))
    assert error.value.row == 3 * size
    one_line(error)
