"""Orderings and scalings, and the kernels that scale: by definition, by twin, by bad input."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    PATTERNS,
    assert_close,
    dominant_matrices,
    in_dtype,
    long_rows,
    one_line,
    perturbed,
    values,
    with_index,
)
from hypothesis import given

from finelu import ParameterError, gallery
from finelu.kernels import kernels_for, reference
from finelu.matrix import CSR, as_csr, lower_triangle
from finelu.ordering import hermitian_pattern, permutation, rcm

NOBODY = 2**62


def on(backend, A):
    return CSR(*(backend.move(part) for part in (A.indptr, A.indices, A.data, A.diag)))


def dense(backend, A):
    return sp.csr_matrix(tuple(backend.fetch(v) for v in (A.data, A.indices, A.indptr)), shape=A.shape).toarray()


def bandwidth(A):
    i, j = A.nonzero()
    return int(abs(i - j).max(initial=0))


def shuffled(A, seed=0):
    p = np.random.default_rng(seed).permutation(A.shape[0])
    return sp.csr_matrix(A[p][:, p])


# Orderings


@PATTERNS
@given(A=dominant_matrices())
def test_rcm_is_an_order_of_all_rows(A):
    order = rcm(as_csr(A))
    np.testing.assert_array_equal(np.sort(order), np.arange(A.shape[0]))


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_rcm_brings_entries_to_the_diagonal(index):
    for A in (gallery.poisson5(20), gallery.tridiagonal(100), gallery.convection_diffusion(30, 12, 1)):
        mixed = shuffled(A)
        order = rcm(with_index(mixed, index))
        assert bandwidth(mixed[order][:, order]) <= 1.5 * bandwidth(A) < bandwidth(mixed) / 2


def test_rcm_takes_a_pattern_that_is_not_symmetric_and_one_in_parts():
    A = sp.csr_matrix(sp.block_diag([gallery.bidiagonal(40), gallery.poisson5(5), sp.identity(3)]))
    mixed = shuffled(A)
    order = rcm(as_csr(mixed))
    assert bandwidth(mixed[order][:, order]) <= 7


@PATTERNS
@given(A=dominant_matrices(dtype="complex128"))
def test_a_permutation_is_p_a_pt_and_follows_new_values(backend, A):
    P = permutation(on(backend, as_csr(A)), "rcm")
    order, inverse = (backend.fetch(v) for v in (P.order, P.inverse))
    np.testing.assert_array_equal(order[inverse], np.arange(A.shape[0]))
    for B in (A, perturbed(A)):
        B_permuted = P.matrix(on(backend, as_csr(B)))
        np.testing.assert_array_equal(dense(backend, B_permuted), B.toarray()[np.ix_(order, order)])
        np.testing.assert_array_equal(backend.fetch(B_permuted.data[B_permuted.diag]), B.diagonal()[order])
        indptr, indices = backend.fetch(B_permuted.indptr), backend.fetch(B_permuted.indices)
        assert all((np.diff(indices[a:b]) > 0).all() for a, b in pairwise(indptr))


@PATTERNS
@given(A=dominant_matrices(hermitian=True))
def test_of_a_lower_triangle_the_lower_triangle_of_p_a_pt_comes_out(backend, A):
    A = sp.csr_matrix(A + 1j * (sp.tril(A, -1) - sp.triu(A, 1)))  # Hermitian, and not symmetric
    for B in (A, sp.csr_matrix(A.multiply(A.real))):
        half, _ = lower_triangle(as_csr(B))
        P = permutation(on(backend, half), "rcm", hermitian=True)
        order = backend.fetch(P.order)
        want = np.tril(B.toarray()[np.ix_(order, order)])
        np.testing.assert_array_equal(dense(backend, P.matrix(on(backend, half))), want)
        np.testing.assert_array_equal(backend.fetch(P.pattern.diag) + 1, backend.fetch(P.pattern.indptr)[1:])


def test_the_index_type_is_kept(backend):
    for index in (np.int32, np.int64):
        P = permutation(on(backend, with_index(gallery.poisson5(5), index)), "rcm")
        assert {v.dtype for v in (P.order, P.inverse, P.places, P.pattern.indptr, P.pattern.diag)} == {np.dtype(index)}


def test_the_pattern_of_both_triangles():
    A = gallery.anisotropic_triangles(1)
    half, _ = lower_triangle(as_csr(A))
    whole = hermitian_pattern(half)
    np.testing.assert_array_equal(whole.indptr, A.indptr)
    np.testing.assert_array_equal(whole.indices, A.indices)


def test_no_ordering_and_one_that_there_is_not():
    A = as_csr(gallery.poisson5(3))
    assert permutation(A, None) is None
    with pytest.raises(ParameterError, match="ordering='amd'") as error:
        permutation(A, "amd")
    assert "None, 'rcm'" in one_line(error)


# Scalings


def backend_pivots(A):
    """The scaling to a unit diagonal, on the device of A."""
    return kernels_for(A.data).pivots(A, False)[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_diagonal_makes_pivots_of_magnitude_one(backend, dtype):
    A = in_dtype(gallery.random_dominant(60, 0.1, 1), dtype)
    A = as_csr(sp.csr_matrix(sp.diags(np.where(np.arange(60) % 2, -1e4, 1e-3)).astype(dtype) @ A))
    d = backend.fetch(backend_pivots(on(backend, A)))
    assert d.dtype == A.data.real.dtype
    assert_close(d * d * abs(A.data[A.diag]), np.ones(60, d.dtype), 4)


def test_unit_diagonal_leaves_a_zero_alone(backend):
    A = as_csr(sp.csr_matrix(np.array([[4.0, 1], [1, 3]])))
    A.data[A.diag[1]] = 0
    np.testing.assert_array_equal(backend.fetch(backend_pivots(on(backend, A))), [0.5, 1])


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_is_its_twin_and_by_definition(backend, dtype, index):
    A = with_index(in_dtype(long_rows(150), dtype), index)
    real = A.data.real.dtype
    a, b, c, d = (values(A.n, real, seed) for seed in range(4))
    for below, above in (
        ((a, b), (c, d)),
        ((a, None), (None, d)),
        ((None, b), (c, None)),
        ((None, None), (None, None)),
    ):
        want = reference.scale(A, np.empty_like(A.data), below, above)
        sides = [tuple(v if v is None else backend.move(v) for v in side) for side in (below, above)]
        out = backend.xp.empty(A.nnz, dtype)
        assert kernels_for(out).scale(on(backend, A), out, *sides) is out
        np.testing.assert_array_equal(backend.fetch(out), want)
    M = A.tosparse().toarray()
    by_definition = np.tril(a[:, None] * M * b, -1) + np.triu(c[:, None] * M * d)
    scaled = reference.scale(A, np.empty_like(A.data), (a, b), (c, d))
    assert_close(A.with_values(scaled).tosparse().toarray(), by_definition.astype(dtype), 4, scale=abs(by_definition))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_use_new_pivots_is_its_twin(backend, dtype, index):
    F = with_index(in_dtype(long_rows(150), dtype), index)
    new = values(F.nnz, dtype)
    new[F.diag] += 3
    want, counted = new.copy(), np.array([0, NOBODY])
    reference.use_new_pivots(F, want, counted)
    out, refused = backend.move(new.copy()), backend.move(np.array([0, NOBODY]))
    assert kernels_for(out).use_new_pivots(on(backend, F), out, refused) is out
    assert_close(backend.fetch(out), want, 0 if backend.name == "cpu" else 8, scale=abs(want))
    np.testing.assert_array_equal(backend.fetch(refused), [0, NOBODY])
    above = F.tosparse().indices >= np.repeat(np.arange(F.n), np.diff(F.indptr))
    np.testing.assert_array_equal(backend.fetch(out)[above], new[above])
    assert not np.array_equal(backend.fetch(out)[~above], new[~above])


def test_what_a_new_pivot_would_make_infinite_stays_and_is_counted(backend):
    F = as_csr(sp.csr_matrix(np.array([[1e200, 0, 0], [1, 1, 0], [1, 1, 1.0]])))
    new = F.data.copy()
    new[0] = 1e-200
    want, counted = new.copy(), np.array([0, NOBODY])
    reference.use_new_pivots(F, want, counted)
    out, refused = backend.move(new.copy()), backend.move(np.array([0, NOBODY]))
    kernels_for(out).use_new_pivots(on(backend, F), out, refused)
    for got, count in ((want, counted), (backend.fetch(out), backend.fetch(refused))):
        np.testing.assert_array_equal(got, new)
        np.testing.assert_array_equal(count, [2, 1])


def test_scaling_is_the_same_on_any_number_of_threads(threads):
    A = as_csr(gallery.poisson7(25))  # more rows than a block has
    d = values(A.n, "float64") + 5
    new = A.data + values(A.nnz, "float64") / 8
    made = []
    for count in (1, 2, 4):
        threads(count)
        kernels = kernels_for(d)
        refused = np.array([0, NOBODY])
        scaled = kernels.scale(A, np.empty_like(A.data), (d, None), (d, d))
        made.append((scaled, kernels.use_new_pivots(A, new.copy(), refused)))
    rows = np.repeat(np.arange(A.n), np.diff(A.indptr))
    want = A.data * d[rows] * np.where(A.indices < rows, 1, d[A.indices])
    for scaled, pivoted in made:
        np.testing.assert_array_equal(scaled, want)
        np.testing.assert_array_equal(pivoted, made[0][1])
