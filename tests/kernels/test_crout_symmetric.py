"""The symmetric factorization of a level: by twin, by definition, by limit, by behaviour, by bad input."""

from dataclasses import fields

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, assert_close, in_dtype, refused, tree_of_parts, values
from hypothesis import given
from hypothesis import strategies as st

from finelu import gallery
from finelu.errors import MatrixError, ParameterError
from finelu.kernels.cpu import crout_symmetric as cpu_crout
from finelu.kernels.reference import crout_symmetric as reference_crout
from finelu.matrix import CSR, as_csr

INF = float("inf")


def stored(M, dtype="float64", index="int32"):
    """A sparse or dense matrix as CSR arrays; the diagonal need not be stored."""
    M = sp.csr_matrix(M)
    M.sort_indices()
    return CSR(M.indptr.astype(index), M.indices.astype(index), M.data.astype(dtype), None)


def dense(A):
    return sp.csr_matrix((A.data, A.indices, A.indptr), shape=A.shape).toarray()


def factored(
    A, pairs=None, parts=None, drop_tol=0.0, condest=INF, pivot_tol=0.0, room=None, hermitian=False, above=None
):
    pairs = np.zeros(A.n, np.uint8) if pairs is None else pairs
    parts = np.array([0, A.n]) if parts is None else parts
    room = np.full(A.n, A.n) if room is None else room
    return cpu_crout.crout_symmetric(A, pairs, parts, drop_tol, condest, pivot_tol, room, hermitian, above)


def all_pairs(n, first=0):
    """(n,) : first and the next, and so on."""
    pairs = np.zeros(n, np.uint8)
    pairs[first : n - 1 : 2] = 1
    return pairs


def pivots(F):
    rows = F.deferred == 0
    rows[F.interface :] = False
    return np.flatnonzero(rows)


def u_of(F):
    return sp.csr_matrix((F.data, F.indices, F.indptr), shape=2 * (F.d.size,)).toarray()


def dense_factors(F, hermitian=False):
    """U (pivots, n) with its unit diagonal, U^T or U^H, and D (pivots, pivots)."""
    B = pivots(F)
    U = u_of(F)
    U[B, B] = 1
    off = np.diag(F.e[:-1], 1)
    D = np.diag(F.d) + off + (off.conj().T if hermitian else off.T)
    U = U[B]
    return U, U.conj().T if hermitian else U.T, D[np.ix_(B, B)]


def symmetric(n, density, kind, hermitian, seed, zeros=0.5):
    """(n, n) dense, random, indefinite, some of the diagonal 0."""
    rng = np.random.default_rng(seed)
    M = np.where(rng.random((n, n)) < density, values((n, n), kind, seed), 0)
    M = M + (M.conj().T if hermitian else M.T)
    M[np.diag_indices(n)] *= rng.random(n) >= zeros
    return M.astype(kind)


def uncoupled(M, parts):
    """M without what couples two parts."""
    part = np.full(M.shape[0], -1)
    for t in range(parts.size - 1):
        part[parts[t] : parts[t + 1]] = t
    free = (part[:, None] == part) | (part < 0) | (part[:, None] < 0)
    return np.where(free, M, 0)


def random_pairs(parts, n, rng):
    pairs = np.zeros(n, np.uint8)
    for t in range(parts.size - 1):
        k = parts[t]
        while k + 1 < parts[t + 1]:
            pairs[k] = rng.random() < 0.6
            k += 1 + pairs[k]
    return pairs


@st.composite
def problems(draw, dtype, largest=18):
    """(M, pairs, parts, hermitian, above) : a random forest of parts, pairs and an interface, which may be empty."""
    n = draw(st.integers(1, largest))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    hermitian = draw(st.booleans())
    M = symmetric(n, draw(st.sampled_from([0.05, 0.2, 0.5, 1.0])), dtype, hermitian, seed)
    parts = np.array([0, *sorted(draw(st.lists(st.integers(0, n), min_size=1, max_size=4)))])
    above, apart = tree_of_parts(parts, n, rng)
    return np.where(apart, 0, M), random_pairs(parts, n, rng), parts, hermitian, above


# By twin


@pytest.mark.parametrize("dtype", DTYPES)
@PATTERNS
@given(data=st.data())
def test_the_bits_are_those_of_the_reference(dtype, data):
    M, pairs, parts, hermitian, above = data.draw(problems(dtype))
    A = stored(M, dtype, data.draw(st.sampled_from(["int32", "int64"] if dtype == "float64" else ["int32"])))
    drop_tol = data.draw(st.sampled_from([0.0, 0.01, 0.3]))
    condest = data.draw(st.sampled_from([1.0, 2.0, 10.0, INF]))
    pivot_tol = data.draw(st.sampled_from([0.0, 0.1, 0.5]))
    room = np.full(A.n, data.draw(st.sampled_from([0, 1, 3, A.n])))
    F = factored(A, pairs, parts, drop_tol, condest, pivot_tol, room, hermitian, above)
    with np.errstate(all="ignore"):
        want = reference_crout.crout_symmetric(A, pairs, parts, drop_tol, condest, pivot_tol, room, hermitian)
    deferred, d, e, U, largest, by_tolerance, by_room = want
    np.testing.assert_array_equal(F.deferred, deferred)
    np.testing.assert_array_equal(F.d, d)
    np.testing.assert_array_equal(F.e, e)
    np.testing.assert_array_equal(np.diff(F.indptr), [len(row) for row in U])
    np.testing.assert_array_equal(F.indices, [j for row in U for j in sorted(row)])
    np.testing.assert_array_equal(F.data, [row[j] for row in U for j in sorted(row)])
    assert F.d.dtype == F.e.dtype == F.data.dtype == A.dtype and F.indices.dtype == A.indices.dtype
    np.testing.assert_allclose(F.largest_estimate, largest, rtol=1e-6)
    assert (F.dropped_by_tolerance, F.dropped_by_fill_limit) == (by_tolerance, by_room)
    assert F.deferred_by_estimate == (deferred == 1).sum() and F.deferred_by_pivot == (deferred == 2).sum()
    assert F.pairs_taken == np.count_nonzero(e)


# By definition


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("hermitian", [False, True])
@PATTERNS
@given(data=st.data())
def test_what_is_kept_is_a_where_a_pivot_is_and_the_schur_complement_elsewhere(dtype, hermitian, data):
    M, pairs, parts, _, above = data.draw(problems(dtype).filter(lambda p: p[3] == hermitian))
    A = stored(M, dtype)
    F = factored(A, pairs, parts, 0.0, 3.0, 0.2, hermitian=hermitian, above=above)
    assert F.dropped_by_tolerance == F.dropped_by_fill_limit == 0 and F.n == A.n
    assert F.nnz == F.data.size + pivots(F).size + np.count_nonzero(F.e)
    U, U_T, D = dense_factors(F, hermitian)
    B, C = pivots(F), np.setdiff1d(np.arange(A.n), pivots(F))
    noise = 2000 * np.finfo(dtype).eps * max(1.0, (abs(U_T) @ abs(D) @ abs(U)).max(initial=0), abs(M).max(initial=0))
    assert abs((U_T @ D @ U)[B] - M[B]).max(initial=0) <= noise
    S = cpu_crout.schur_complement_symmetric(A, F, 0.0, hermitian)
    np.testing.assert_array_equal(S.rows, C)
    want = M[np.ix_(C, C)] - (U_T @ D @ U)[np.ix_(C, C)]
    got = sp.csr_matrix((S.data, S.indices, S.indptr), shape=(C.size, C.size)).toarray()
    assert abs(got - want).max(initial=0) <= noise
    np.testing.assert_array_equal(got, got.conj().T if hermitian else got.T)
    if B.size:  # the true Schur complement, too
        inner = np.linalg.svd(M[np.ix_(B, B)], compute_uv=False)
        if C.size and inner[-1] > 1e-3:
            true = M[np.ix_(C, C)] - M[np.ix_(C, B)] @ np.linalg.solve(M[np.ix_(B, B)], M[np.ix_(B, C)])
            assert abs(got - true).max() <= 1e6 * noise


def test_entries_and_rows_are_in_order():
    A = stored(symmetric(60, 0.3, "float64", False, 3))
    F = factored(A, all_pairs(60), None, 0.01, 2.0, 0.3)
    assert F.deferred_by_estimate > 0 and F.deferred_by_pivot > 0 and F.pairs_taken > 0
    rows = np.repeat(np.arange(60), np.diff(F.indptr))
    ascending = np.diff(F.indices) > 0
    assert ascending[np.diff(rows) == 0].all()
    assert ((F.deferred[F.indices] != 0) | (F.indices > rows)).all()  # to the left only what was deferred
    assert (F.deferred[rows] == 0).all()
    assert not ((F.e[rows] != 0) & (F.indices == rows + 1)).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hermitian", [False, True])
def test_without_dropping_it_is_the_factorization(dtype, hermitian):
    M = symmetric(40, 0.2, dtype, hermitian, 5) + 12 * np.eye(40, dtype=dtype)
    F = factored(stored(M, dtype), all_pairs(40), None, hermitian=hermitian)
    U, U_T, D = dense_factors(F, hermitian)
    assert F.pairs_taken > 5 and not F.deferred.any()
    assert_close(U_T @ D @ U, M, 64, scale=abs(M).max())
    if hermitian:
        assert (F.d.imag == 0).all()
    elif M.dtype.kind == "c":
        assert (F.d.imag != 0).any()


@pytest.mark.parametrize("problem", gallery.small_spd(), ids=str)
def test_a_positive_definite_matrix_has_positive_pivots(problem):
    A = as_csr(problem.A)
    for drop_tol in (0.0, 1e-2):
        F = factored(A, None, None, drop_tol, INF, 0.0, hermitian=True)
        assert (F.d > 0).all() and not F.deferred.any()
    for n_off in (A.n // 2, 0):  # and so has the rest of it
        F = factored(A, None, np.array([0, n_off]), hermitian=True)
        S = cpu_crout.schur_complement_symmetric(A, F, 0.0, True)
        rest = factored(CSR(S.indptr.astype(A.indices.dtype), S.indices, S.data, None), hermitian=True)
        assert S.rows.size == A.n - n_off and (rest.d > 0).all()


# Pairs


def test_a_saddle_point_with_zero_diagonal_is_factored_exactly_by_pairs():
    K = gallery.kkt(30, 30, 0.1).toarray()
    order = np.arange(60).reshape(2, 30).T.ravel()
    M = K.copy()
    M[:30, :30] = 0
    K, M = K[np.ix_(order, order)], M[np.ix_(order, order)]
    assert (M.diagonal() == 0).all()
    A = stored(M)
    F = factored(A, all_pairs(60), None, 0.0, INF, 0.01)
    assert F.pairs_taken == 30 and not F.deferred.any()
    U, U_T, D = dense_factors(F)
    assert_close(U_T @ D @ U, M, 1e3, scale=abs(M).max())
    without = factored(A, None, None, 0.0, INF, 0.01)
    assert without.pairs_taken == 0 and without.deferred_by_pivot > 0
    full = factored(stored(K), all_pairs(60), None, 0.0, INF, 0.01)
    U, U_T, D = dense_factors(full)
    assert full.pairs_taken == 30
    assert_close(U_T @ D @ U, K, 1e3, scale=abs(K).max())


def test_hermitian_pairs_keep_the_conjugate():
    M = np.array([[0, 1 + 2j, 1], [1 - 2j, 0, 1j], [1, -1j, 4]], np.complex64)
    F = factored(stored(M, "complex64"), all_pairs(3), hermitian=True)
    assert F.e[0] == 1 + 2j and F.pairs_taken == 1
    U, U_H, D = dense_factors(F, True)
    assert_close(U_H @ D @ U, M, 8, scale=4.0)


def test_an_unfit_pair_is_taken_apart():
    M = np.array([[4.0, 4, 1], [4, 4, 0], [1, 0, 9]])  # det 0 of the pair
    F = factored(stored(M), all_pairs(3))
    assert F.pairs_taken == 0 and F.d[0] == 4 and F.deferred.tolist() == [0, 2, 0]  # the second: 4 - 4
    M = np.array([[1e-9, 1e-9, 1.0], [1e-9, 3.0, 0.0], [1.0, 0.0, 1.0]])
    F = factored(stored(M), all_pairs(3), pivot_tol=0.1)
    assert F.pairs_taken == 0 and F.deferred.tolist() == [2, 0, 0]
    M[0, 0] = 4.0
    assert factored(stored(M), all_pairs(3), pivot_tol=0.1).pairs_taken == 1


# Deferring, dropping


def test_small_pivots_are_deferred_with_pivot_tol():
    M = np.diag([0.05, 2.0, 2.0]) + np.diag([1.0, 1.0], 1) + np.diag([1.0, 1.0], -1)
    assert factored(stored(M), pivot_tol=0.1).deferred.tolist() == [2, 0, 0]
    assert factored(stored(M), pivot_tol=0.01).deferred.tolist() == [0, 0, 0]
    assert factored(stored(M), pivot_tol=0.05).deferred[0] == 2  # equal is too small


@pytest.mark.parametrize("by", [cpu_crout.crout_symmetric, reference_crout.crout_symmetric])
def test_pivots_that_are_not_larger_than_the_least_are_deferred(by):
    small = 2.0**-30
    M = sp.block_diag(
        [np.array([[1.0, 2.0], [2.0, 1.0]]), small * np.array([[1.0, 2.0], [2.0, 1.0]]), [[small]], [[1.0]]]
    )
    made = by(stored(M), all_pairs(6), np.array([0, 6]), 0.0, INF, 0.0, np.full(6, 6), False, None, 4 * small)
    deferred = made.deferred if by is cpu_crout.crout_symmetric else made[0]
    assert deferred.tolist() == [0, 0, 2, 2, 2, 0]


def test_rows_are_deferred_once_the_inverse_grows():
    n = 12
    M = np.eye(n) + 2 * np.diag(np.ones(n - 1), 1)  # U^-1 grows as 2^n
    M = M.T @ M
    F = factored(stored(M), condest=20.0)
    assert F.deferred_by_estimate > 0 and F.deferred_by_pivot == 0 and 1 < F.largest_estimate <= 20
    assert factored(stored(M)).largest_estimate > 1000
    assert factored(stored(M), condest=0.5).deferred_by_estimate == n


@pytest.mark.parametrize("problem", [*gallery.small_spd(), "stokes:6", "kkt:40,20,0.1"], ids=str)
@pytest.mark.parametrize("condest", [3.0, INF])
def test_the_estimate_is_below_the_true_norm_and_near_it(problem, condest):
    M = gallery.problem(problem) if isinstance(problem, str) else problem.A
    A = as_csr(M) if not isinstance(problem, str) else stored(M)
    F = factored(A, all_pairs(A.n), None, 1e-3, condest, 0.01)
    U, _, _ = dense_factors(F)
    norm = np.linalg.norm(np.linalg.inv(U[:, pivots(F)]).T, np.inf)
    assert F.largest_estimate <= norm * (1 + 1e-10)
    assert norm <= 4 * F.largest_estimate
    assert F.largest_estimate <= condest


def test_no_row_is_longer_than_its_room_and_the_largest_stay():
    A = as_csr(gallery.random_dominant(120, 0.1, 2, hermitian=True))
    full = factored(A, all_pairs(A.n))
    room = np.random.default_rng(0).integers(0, 6, A.n)
    F = factored(A, None, None, 0.0, INF, 0.0, room)
    assert (np.diff(F.indptr) <= room).all() and (np.diff(F.indptr) == room).sum() > 100
    assert F.dropped_by_fill_limit > 0 and full.dropped_by_fill_limit == 0
    exact, limited = np.sort(abs(u_of(factored(A))[0])), np.sort(abs(u_of(F)[0]))
    np.testing.assert_array_equal(limited[A.n - room[0] :], exact[A.n - room[0] :])  # the first row is A's
    M = np.eye(6) * 4
    M[0, 1:] = M[1:, 0] = 1.0  # all equal: those with smaller indices stay
    assert u_of(factored(stored(M), room=np.full(6, 2)))[0].nonzero()[0].tolist() == [1, 2]


def test_what_is_dropped_is_small_compared_with_the_estimate():
    A = as_csr(gallery.anisotropic_triangles(2))
    F, G = factored(A, drop_tol=0.01), factored(A, drop_tol=0.1)
    assert G.dropped_by_tolerance > 0 and G.data.size < F.data.size < factored(A).data.size
    assert abs(G.data).min() > 0.1 / G.largest_estimate
    assert abs(u_of(G)[0][u_of(G)[0] != 0]).min() > 0.1  # the first estimate is 1
    M = np.array([[1.0, 0.1], [0.1, 1.0]])
    assert factored(stored(M), drop_tol=0.1).data.size == 0  # equal is dropped


def test_small_entries_of_the_schur_complement_are_dropped():
    A = as_csr(gallery.poisson7(6))
    F = factored(A, parts=np.array([0, A.n // 2]))
    exact, S = (cpu_crout.schur_complement_symmetric(A, F, tol, False) for tol in (0.0, 0.01))
    whole = dense(CSR(*exact[:3], None))
    m = abs(whole).max(axis=1)
    keep = (abs(whole) > 0.01 * np.minimum.outer(m, m)) | np.eye(m.size, dtype=bool)
    np.testing.assert_array_equal(dense(CSR(*S[:3], None)), np.where(keep, whole, 0))
    assert S.data.size == keep.sum() < exact.data.size


def test_the_diagonal_of_the_schur_complement_is_stored_where_it_is_zero():
    M = np.array([[2.0, 1, 0], [1, 0.5, 1], [0, 1, 0]])
    A = stored(M)
    F = factored(A, parts=np.array([0, 1]))
    S = cpu_crout.schur_complement_symmetric(A, F, 0.5, False)
    np.testing.assert_array_equal(S.indptr, [0, 2, 4])
    np.testing.assert_array_equal(S.data, [0.0, 1.0, 1.0, 0.0])


# Threads, extreme values


def parted(parts=7, size=90, interface=40, dtype="float64", hermitian=False):
    n = parts * size + interface
    borders = np.arange(parts + 1) * size
    return uncoupled(symmetric(n, 0.06, dtype, hermitian, 1, 0.1), borders), borders


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_any_number_of_threads_gives_the_same_bits(threads, dtype):
    M, borders = parted(dtype=dtype)
    A = stored(M, dtype)
    pairs = random_pairs(borders, A.n, np.random.default_rng(0))
    seen = []
    for count in (1, 2, 4):
        threads(count)
        F = factored(A, pairs, borders, 0.02, 8.0, 0.05, np.full(A.n, 30))
        S = cpu_crout.schur_complement_symmetric(A, F, 0.01, False)
        seen.append([np.asarray(getattr(F, field.name)).tobytes() for field in fields(F)])
        seen[-1] += [np.asarray(part).tobytes() for part in S]
    assert F.pairs_taken > 0 and F.deferred_by_estimate > 0 and F.deferred_by_pivot > 0
    assert S.rows.size > 40 and F.dropped_by_fill_limit > 0
    assert seen[0] == seen[1] == seen[2]


def test_parts_are_factored_as_if_each_were_alone():
    M, borders = parted(3, 40, 0)
    F = factored(stored(M), all_pairs(120), borders, 0.02, 8.0, 0.05)
    for t in range(3):
        rows = slice(borders[t], borders[t + 1])
        alone = factored(stored(M[rows, rows]), all_pairs(40), None, 0.02, 8.0, 0.05)
        np.testing.assert_array_equal(F.deferred[rows], alone.deferred)
        np.testing.assert_array_equal(F.d[rows], alone.d)
        np.testing.assert_array_equal(u_of(F)[rows, rows], u_of(alone))


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("pivot_tol", [0.0, 1e-2])
@PATTERNS
@given(seed=st.integers(0, 2**16), span=st.sampled_from([1 / 6, 1 / 2]))  # of the exponents that there are
def test_extreme_values_give_no_nan(dtype, pivot_tol, seed, span):
    rng = np.random.default_rng(seed)
    M = symmetric(14, 0.5, "float64" if dtype == "float64" else "complex128", False, seed)
    span *= {"float64": 300, "complex64": 36, "complex128": 300}[dtype]
    scale = 10.0 ** rng.uniform(-span, span, (14, 14))
    M = M * np.triu(scale)
    M = np.triu(M) + np.triu(M, 1).T
    A = stored(M, dtype)
    pairs = all_pairs(14)
    pairs[10:] = 0
    F = factored(A, pairs, np.array([0, 10]), 0.0, INF, pivot_tol)
    for x in (F.d, F.e, F.data):
        assert np.isfinite(x).all()
    S = cpu_crout.schur_complement_symmetric(A, F, 0.0, False)
    beyond = abs(S.data.astype("complex128")).max() > np.finfo(dtype).max  # finite parts may have a larger magnitude
    assert np.isfinite(S.data).all() and (S.first_bad == -1) == (not beyond)


def test_an_overflow_in_the_schur_complement_is_named():
    A = stored(np.array([[1.0, 1, 1.5e154], [1, 4, 0], [1.5e154, 0, -1.7e308]]))
    F = factored(A, parts=np.array([0, 1]))
    assert F.deferred[0] == 2  # the product of two entries of U overflows: not a pivot
    A = stored(np.array([[1.0, 1, 6e153], [1, 4, 0], [6e153, 0, -1.75e308]]))
    F = factored(A, parts=np.array([0, 1]))
    S = cpu_crout.schur_complement_symmetric(A, F, 0.0, False)
    assert S.first_bad == 1 and S.data[-1] == -INF and np.isfinite(S.data[:-1]).all()


# Bad input


def test_what_couples_two_parts_is_named():
    M = np.eye(6)
    M[1, 4] = M[4, 1] = 1
    with refused(MatrixError, match="row 1 and column 4, between parts 0 and 1"):
        factored(stored(M), parts=np.array([0, 3, 6]))
    factored(stored(M), parts=np.array([0, 3, 4]))  # 4 is of the interface


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pairs": np.array([0, 0, 1, 0, 0, 0], np.uint8), "parts": np.array([0, 3, 6])}, r"pairs\[2\]"),
        ({"pairs": np.array([0, 0, 0, 0, 1, 0], np.uint8), "parts": np.array([0, 5])}, r"pairs\[4\]"),
        ({"pairs": np.array([0, 1, 1, 0, 0, 0], np.uint8)}, r"pairs\[1\]"),
        ({"pairs": np.zeros(5, np.uint8)}, "n = 6 elements"),
        ({"room": np.array([1, 1, 1, -1, 1, 1])}, "room"),
        ({"parts": np.array([0, 7])}, "n = 6"),
        ({"parts": np.array([0, 4, 3])}, "ascend"),
        ({"parts": np.array([1, 4])}, "ascend"),
        ({"drop_tol": float("nan")}, "drop_tol=nan"),
        ({"condest": -1.0}, "condest=-1"),
        ({"pivot_tol": INF}, "pivot_tol=inf"),
    ],
)
def test_arguments_without_meaning_are_refused(given, message):
    with refused(ParameterError, match=message):
        factored(stored(np.eye(6)), **given)


def test_a_hermitian_matrix_has_a_real_diagonal():
    M = np.diag([1.0, 1 + 1j, 1])
    with refused(MatrixError, match="row 1 is not real"):
        factored(stored(M, "complex64"), hermitian=True)
    assert factored(stored(M, "complex64")).d[1] == 1 + 1j


def test_an_interface_alone_and_empty_parts_are_possible():
    A = stored(in_dtype(gallery.poisson5(4), "complex64"), "complex64")
    F = factored(A, parts=np.array([0, 0]), hermitian=True)
    S = cpu_crout.schur_complement_symmetric(A, F, 0.0, True)
    np.testing.assert_array_equal(dense(CSR(*S[:3], None)), dense(A))
    F = factored(A, parts=np.array([0, 0, A.n, A.n]), hermitian=True)
    assert not F.deferred.any()
    S = cpu_crout.schur_complement_symmetric(A, F, 0.0, True)
    assert S.rows.size == S.data.size == 0 and S.indptr.tolist() == [0]


def test_the_estimate_sees_what_grows_by_signs_that_differ():
    U = sp.csr_matrix(sp.kron(sp.eye(20, k=1), [[1.0, -1.0], [-1.0, 1.0]]) + sp.eye(40))
    A = as_csr(sp.csr_matrix(U.T @ U))
    norm = abs(np.linalg.inv(U.toarray())).sum(axis=0).max()
    room = np.full(40, 40)
    F = cpu_crout.crout_symmetric(A, np.zeros(40, np.uint8), np.array([0, 40]), 0.0, np.inf, 0.0, room, False)
    assert norm > 1e5 and norm / 4 <= F.largest_estimate <= norm * (1 + 1e-9)
