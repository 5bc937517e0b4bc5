"""The factorization of a multilevel ILU: by definition, by limit, by twin, by effect, by bad input."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    PATTERNS,
    SOME_DTYPES,
    assert_close,
    in_dtype,
    refused,
    tree_of_parts,
    values,
    with_index,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import solve_triangular

from finelu import MatrixError, ParameterError, gallery, ordering
from finelu.kernels import cpu, reference
from finelu.kernels.cpu import _schur as schur
from finelu.kernels.cpu._crout_rows import ESTIMATE, PIVOT
from finelu.kernels.cpu.crout import crout, schur_complement
from finelu.threads import each

ALL = 2**62
NEVER = float("inf")


def factored(A, parts=None, drop_tol=0.0, condest=NEVER, pivot_tol=0.0, rows=ALL, columns=ALL, by=crout, above=None):
    A = sp.csr_matrix(A)
    A.sort_indices()
    T = sp.csr_matrix(A.T)
    T.sort_indices()
    n = A.shape[0]
    parts = [0, n] if parts is None else parts
    room = (np.full(n, rows) if np.ndim(rows) == 0 else rows, np.full(n, columns) if np.ndim(columns) == 0 else columns)
    return by(A, T, parts, drop_tol, condest, pivot_tol, *room, above)


def factors_of(F):
    """L, D, U (n, n) dense with unit diagonals at pivots, 0 at others; a mask of the pivots."""
    n = F.n
    L = sp.csc_matrix((F.l_data, F.l_indices, F.l_indptr), shape=(n, n)).toarray()
    U = sp.csr_matrix((F.u_data, F.u_indices, F.u_indptr), shape=(n, n)).toarray()
    pivots = (F.deferred == 0) & (np.arange(n) < F.interface)
    return L + np.diag(pivots), np.diag(F.d), U + np.diag(pivots), pivots


def dense(S):
    m = S.indptr.size - 1
    return sp.csr_matrix((S.data, S.indices, S.indptr), shape=(m, m)).toarray()


@st.composite
def matrices(draw, dtype=None, largest=22, strength=None):
    """(A, parts, above): any pattern that a forest of parts allows, with and without an interface, any diagonal."""
    dtype = draw(st.sampled_from(SOME_DTYPES)) if dtype is None else dtype
    n = draw(st.integers(1, largest))
    parts = [0, *sorted(draw(st.lists(st.integers(0, n), min_size=1, max_size=3)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    above, apart = tree_of_parts(parts, n, rng)
    pattern = rng.random((n, n)) < draw(st.sampled_from([0.0, 0.1, 0.3, 0.7]))
    pattern[draw(st.lists(st.integers(0, n - 1), max_size=2)), :] = True
    strength = draw(st.sampled_from([0.0, 0.5, 2.0, 10.0])) if strength is None else strength
    M = np.where(pattern, values((n, n), dtype, int(rng.integers(2**16))), 0)
    np.fill_diagonal(M, strength * (rng.random(n) + 0.5) * (rng.random(n) < 0.8) + 0.3 * np.diag(M))
    return sp.csr_matrix(np.where(apart, 0, M).astype(dtype)), np.array(parts), above


def split(A, layers, count):
    """A permuted into `count` parts and the interface between them: layers (n,), the number of each row's layer."""
    length = layers.max() + 1
    cuts = np.linspace(0, length, count + 1).astype(int)[1:-1]
    between = np.isin(layers, cuts)
    owner = np.where(between, count, np.searchsorted(cuts, layers, side="right"))
    order = np.argsort(owner, kind="stable")
    return sp.csr_matrix(A[order][:, order]), np.searchsorted(owner[order], np.arange(count + 1))


# By twin


@PATTERNS
@given(
    matrices(),
    st.sampled_from([0.0, 1e-2, 0.2]),
    st.sampled_from([1.5, 4.0, NEVER]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0, 1, 3, ALL]),
    st.sampled_from([2, ALL]),
)
def test_the_kernel_is_its_twin(problem, drop_tol, condest, pivot_tol, rows, columns):
    A, parts, above = problem
    arguments = parts, drop_tol, condest, pivot_tol, rows, columns
    F, (deferred, d, L, U, largest, dropped) = (
        factored(A, *arguments, by=cpu.crout.crout, above=above),
        factored(A, *arguments, by=reference.crout.crout),
    )
    np.testing.assert_array_equal(F.deferred, deferred)
    np.testing.assert_array_equal(F.d, d)
    for made, indptr, indices, data in ((L, F.l_indptr, F.l_indices, F.l_data), (U, F.u_indptr, F.u_indices, F.u_data)):
        np.testing.assert_array_equal(np.diff(indptr), [len(row) for row in made])
        np.testing.assert_array_equal(indices, [j for row in made for j in sorted(row)])
        np.testing.assert_array_equal(data, np.array([row[j] for row in made for j in sorted(row)], A.dtype))
        assert data.dtype == A.dtype and indices.dtype == A.indices.dtype
    assert (F.dropped_by_tolerance, F.dropped_by_fill_limit) == tuple(dropped)
    assert (F.deferred_by_estimate, F.deferred_by_pivot) == (np.sum(deferred == ESTIMATE), np.sum(deferred == PIVOT))
    assert_close([F.l_estimate, F.u_estimate], np.array(largest), 8 * np.finfo(A.dtype).eps / np.finfo(float).eps)
    S, want = (form.crout.schur_complement(A, F, drop_tol) for form in (cpu, reference))
    for got, expected in zip(S, want, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert S.first_bad == -1


# By definition


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_without_dropping_l_d_u_is_a(problem, dtype):
    A = in_dtype(problem.A.real if np.dtype(dtype).kind == "f" else problem.A, dtype)
    F = factored(A)
    assert F.dropped_by_tolerance == F.dropped_by_fill_limit == 0 and not F.deferred.any()
    L, D, U, pivots = factors_of(F)
    assert pivots.all() and F.nnz == F.l_data.size + F.u_data.size + A.shape[0]
    assert np.triu(L, 1).any() == np.tril(U, -1).any() == False  # noqa: E712
    assert_close(L @ D @ U, A.toarray(), 64, scale=(abs(L) @ abs(D) @ abs(U)).max())
    assert schur_complement(A, F, 0.0).rows.size == 0


@PATTERNS
@given(matrices(dtype="float64"), st.sampled_from([1.5, 4.0, NEVER]), st.sampled_from([0.0, 0.1]))
def test_of_pivots_l_d_u_is_a_and_the_rest_is_the_schur_complement(problem, condest, pivot_tol):
    A, parts, above = problem
    F = factored(A, parts, above=above, condest=condest, pivot_tol=pivot_tol)
    L, D, U, pivots = factors_of(F)
    product, M = L @ D @ U, A.toarray()
    grown = 1 + (abs(L) @ abs(D) @ abs(U)).max()
    for block in (np.ix_(pivots, pivots), np.ix_(pivots, ~pivots), np.ix_(~pivots, pivots)):
        assert abs(product - M)[block].max(initial=0) <= 1e-14 * grown
    S = schur_complement(A, F, 0.0)
    np.testing.assert_array_equal(S.rows, np.flatnonzero(~pivots))
    assert abs(dense(S) - (M - product)[np.ix_(S.rows, S.rows)]).max(initial=0) <= 1e-14 * grown
    # an L or U entry is where it may be: behind its pivot, deferred, or of the interface
    for indptr, indices in ((F.l_indptr, F.l_indices), (F.u_indptr, F.u_indices)):
        k = np.repeat(np.arange(F.n), np.diff(indptr))
        assert pivots[k].all() and ((indices > k) | ~pivots[indices]).all()


def test_the_schur_complement_is_that_of_linear_algebra():
    A, parts = split(gallery.convection_diffusion(9, 8, 1, peclet=20), np.arange(72) % 9, 2)
    F = factored(A, parts)
    S, p, M = schur_complement(A, F, 0.0), parts[-1], A.toarray()
    want = M[p:, p:] - M[p:, :p] @ np.linalg.solve(M[:p, :p], M[:p, p:])
    assert not F.deferred.any() and S.rows.size == 8
    assert_close(dense(S), want, 256, scale=abs(M).max())


def norms_of_inverses(F):
    """The largest ||e_k^T L^-1||_1 and ||U^-1 e_k||_1 over the pivots."""
    L, _, U, pivots = factors_of(F)
    block = np.ix_(pivots, pivots)
    identity = np.eye(np.count_nonzero(pivots))
    l_inverse = solve_triangular(L[block], identity, lower=True, unit_diagonal=True)
    u_inverse = solve_triangular(U[block], identity, unit_diagonal=True)
    return abs(l_inverse).sum(axis=1).max(initial=0), abs(u_inverse).sum(axis=0).max(initial=0)


@PATTERNS
@given(matrices(), st.sampled_from([0.0, 0.05]), st.sampled_from([1.5, 5.0, 50.0]))
def test_estimates_are_attained_by_the_inverses(problem, drop_tol, condest):
    A, parts, above = problem
    F = factored(A, parts, above=above, drop_tol=drop_tol, condest=condest)
    l_norm, u_norm = norms_of_inverses(F)
    assert F.l_estimate <= min(l_norm * (1 + 1e-3), condest * (1 + 1e-6))
    assert F.u_estimate <= min(u_norm * (1 + 1e-3), condest * (1 + 1e-6))


@pytest.mark.parametrize(("drop_tol", "condest"), [(0.0, NEVER), (1e-2, 5.0), (0.1, 2.0)])
@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_estimates_bound_the_inverses_within_a_factor_of_4(problem, drop_tol, condest):
    """Measured: 3.94 at most, of elasticity; exactly 1 where all multipliers have one sign, as for M-matrices."""
    F = factored(problem.A, drop_tol=drop_tol, condest=condest)
    for estimate, norm in zip((F.l_estimate, F.u_estimate), norms_of_inverses(F), strict=True):
        assert estimate * (1 - 1e-5) <= norm <= 4 * estimate
    if str(problem).startswith(("poisson", "ecology", "g3_circuit", "convection")):
        assert_close([F.l_estimate, F.u_estimate], np.array(norms_of_inverses(F)), 1e4)


def cancelling(n):
    """Unit upper triangular (2 n, 2 n), whose inverse grows like 2^n by signs (1, -1) of each pair: (1, 1) cancel."""
    U = sp.kron(sp.eye(n, k=1), [[1.0, -1.0], [-1.0, 1.0]]) + sp.eye(2 * n)
    return sp.csr_matrix(U)


def test_estimates_see_what_grows_by_signs_that_differ():
    U = cancelling(30)
    norm = abs(np.linalg.inv(U.toarray())).sum(axis=0).max()
    assert norm > 1e8
    for A, name in ((U, "u_estimate"), (sp.csr_matrix(U.T), "l_estimate")):
        for by in (crout, reference.crout.crout):
            F = factored(A, by=by)
            found = getattr(F, name) if by is crout else F[4][name == "u_estimate"]
            assert norm / 4 <= found <= norm * (1 + 1e-9)


def test_the_estimate_is_exact_where_all_signs_agree():
    n, q = 12, 0.9
    A = sp.diags([np.ones(n), np.full(n - 1, -q)], [0, -1], format="csr")
    F = factored(A)
    assert F.u_estimate == 1
    assert_close(F.l_estimate, np.sum(q ** np.arange(n)), 16)
    F = factored(sp.csr_matrix(A.T))
    assert F.l_estimate == 1
    assert_close(F.u_estimate, np.sum(q ** np.arange(n)), 16)


# By effect


def test_a_chain_is_cut_where_its_inverse_exceeds_condest():
    n = 10
    A = sp.diags([np.ones(n), np.full(n - 1, -1.0)], [0, -1], format="csr")  # ||e_k^T L^-1||_1 = k + 1
    F = factored(A, condest=3.0)
    np.testing.assert_array_equal(np.flatnonzero(F.deferred == ESTIMATE), [3, 7])
    assert F.l_estimate == 3 and F.deferred_by_estimate == 2 and F.deferred_by_pivot == 0
    S = schur_complement(A, F, 0.0)
    np.testing.assert_array_equal(S.rows, [3, 7])
    np.testing.assert_array_equal(dense(S), [[1, 0], [-1, 1]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_zero_diagonal_is_deferred_until_it_is_filled(dtype):
    """A saddle point with its constraints first: none can be eliminated before the unknowns that it ties."""
    n, m = 40, 10
    B = sp.csr_matrix(values((m, n), dtype) * (np.random.default_rng(1).random((m, n)) < 0.2))
    A = sp.block_array([[None, B], [B.T, in_dtype(gallery.poisson5(8, 5), dtype)]], format="csr")
    F = factored(A)
    np.testing.assert_array_equal(F.deferred, np.repeat([PIVOT, 0], [m, n]))
    S = schur_complement(A, F, 0.0)
    M = A.toarray().astype(np.complex128)
    want = -M[:m, m:] @ np.linalg.solve(M[m:, m:], M[m:, :m])
    assert abs(dense(S) - want).max() <= 256 * np.finfo(dtype).eps * abs(want).max()
    last = sp.csr_matrix(A[::-1][:, ::-1])
    assert not factored(last).deferred.any()


def test_rows_and_columns_with_nothing_are_put_off():
    F = factored(sp.csr_matrix(np.diag([2.0, 0.0, 3.0])))
    np.testing.assert_array_equal(F.deferred, [0, PIVOT, 0])
    S = schur_complement(sp.csr_matrix(np.diag([2.0, 0.0, 3.0])), F, 0.0)
    assert S.rows == [1] and dense(S) == [[0]]


@pytest.mark.parametrize("side", [1, -1])
def test_pivot_tol_compares_the_pivot_with_its_row_and_its_column(side):
    M = np.eye(3)
    M[0, 2], M[2, 2] = 8.0, 100.0
    M = M if side == 1 else M.T
    for pivot_tol, reason in ((0.124, 0), (0.125, PIVOT), (0.2, PIVOT)):
        np.testing.assert_array_equal(factored(sp.csr_matrix(M), pivot_tol=pivot_tol).deferred, [reason, 0, 0])


@pytest.mark.parametrize("by", [crout, reference.crout.crout])
def test_a_pivot_that_is_not_larger_than_the_least_is_deferred(by):
    A = sp.csr_matrix(np.diag([1.0, 2.0**-30, 2.0**-31, 0.5]))
    rooms = np.full(4, 4), np.full(4, 4)
    made = by(A, A, np.array([0, 4]), 0.0, NEVER, 0.0, *rooms, None, 2.0**-30)
    deferred = made.deferred if by is crout else made[0]
    assert deferred.tolist() == [0, PIVOT, PIVOT, 0]


@pytest.mark.parametrize("rows", [0, 1, 4, ALL])
@pytest.mark.parametrize("columns", [0, 1, 4, ALL])
def test_rooms_are_respected_and_filled(rows, columns):
    A = gallery.random_dominant(150, 0.05, 3)
    F = factored(A, rows=np.full(150, rows), columns=np.full(150, columns))
    for room, indptr in ((rows, F.u_indptr), (columns, F.l_indptr)):
        assert np.diff(indptr).max() == room or (room == ALL and np.diff(indptr).max() > 4)
    assert (F.dropped_by_fill_limit > 0) == (min(rows, columns) < ALL) and F.dropped_by_tolerance == 0


def test_room_is_given_row_by_row():
    A = gallery.poisson5(8)
    rows, columns = np.arange(64) % 4, (np.arange(64) + 1) % 3
    F = factored(A, rows=rows, columns=columns)
    assert (np.diff(F.u_indptr) <= rows).all() and (np.diff(F.l_indptr) <= columns).all()


def test_of_a_row_the_largest_are_kept_and_of_equal_ones_the_first():
    M = np.eye(5)
    M[0] = [4.0, 1, -3, 2, 2]
    for room, kept in ((1, [2]), (2, [2, 3]), (3, [2, 3, 4]), (4, [1, 2, 3, 4])):
        F = factored(sp.csr_matrix(M), rows=room)
        np.testing.assert_array_equal(F.u_indices, kept)
        assert F.dropped_by_fill_limit == 4 - room


def test_dropping_is_relative_to_the_inverse():
    """The rows of L^-1 grow along a chain: of two entries of 0.1, one at its end is worth n = 6 times."""
    n = 6
    M = np.eye(n + 1)
    M[np.arange(1, n), np.arange(n - 1)] = -1.0  # ||e_k^T L^-1||_1 = k + 1 for k < n
    M[n, [0, n - 1]] = 0.1
    for drop_tol, kept in ((0.09, [0, n - 1]), (0.1, [n - 1]), (0.59, [n - 1]), (0.61, [])):
        for A in (M, M.T):
            F = factored(sp.csr_matrix(A), drop_tol=drop_tol)
            L, _, U, _ = factors_of(F)
            np.testing.assert_array_equal(np.flatnonzero((L if A is M else U.T)[n, :n]), kept)
            assert F.dropped_by_tolerance == 2 - len(kept)


def test_a_schur_complement_drops_what_is_small_for_its_row_and_its_column():
    M = np.array([[1.0, 0, 0, 0], [0, 1, 0.1, 0.01], [0, 0, 100, 2], [0, 1e9, 0, 0]])
    pattern = {0.0: "111 011 101", 0.01: "110 011 101", 0.1: "100 011 101", 1.0: "100 010 001"}
    for A in (sp.csr_matrix(M), sp.csr_matrix(M.T)):
        F = factored(A, parts=[0, 1])
        for drop_tol, rows in pattern.items():
            S = schur_complement(A, F, drop_tol)
            stored = sp.csr_matrix((np.ones(S.data.size), S.indices, S.indptr)).toarray()
            want = np.array([[int(c) for c in row] for row in rows.split()])
            np.testing.assert_array_equal(stored, want if A[1, 2] == 0.1 else want.T)
            np.testing.assert_array_equal(dense(S), np.where(stored, A.toarray()[1:, 1:], 0))


@PATTERNS
@given(matrices(), st.integers(0, 2**16), st.sampled_from([1e-3, 0.1, 0.9]))
def test_no_row_and_no_column_of_a_schur_complement_vanishes(problem, seed, drop_tol):
    A, parts, above = problem
    r, c = 2.0 ** np.random.default_rng(seed).integers(-30, 31, (2, A.shape[0])).astype(A.dtype)
    A = sp.csr_matrix(sp.diags(r) @ A @ sp.diags(c))
    F = factored(A, parts, above=above, condest=2.0)
    exact, S = (abs(dense(schur_complement(A, F, tol))) for tol in (0.0, drop_tol))
    for axis in (0, 1):
        np.testing.assert_array_equal(S.max(axis, initial=0), exact.max(axis, initial=0))
    dropped = (S == 0) & (exact > 0)
    least = np.minimum.outer(exact.max(1, initial=0), exact.max(0, initial=0))
    assert (exact <= drop_tol * least * (1 + 1e-6))[dropped].all() and not dropped.diagonal().any()


# By behaviour


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_threads(threads, monkeypatch, dtype):
    monkeypatch.setattr(schur, "BLOCK", 200)  # several blocks of the Schur complement too
    A, parts = split(in_dtype(gallery.poisson7(8, 8, 17), dtype), np.arange(8 * 8 * 17) // 64, 4)
    A.data *= 1 + 0.5 * np.random.default_rng(0).random(A.nnz).astype(A.real.dtype)
    assert parts.size == 5 and parts[-1] == A.shape[0] - 3 * 64
    seen = []
    for count in (1, 2, 4):
        threads(count)
        F = factored(A, parts, drop_tol=1e-2, condest=2.0, rows=9)
        S = schur_complement(A, F, 1e-3)
        assert F.deferred.any() and F.dropped_by_fill_limit > 0 and F.dropped_by_tolerance > 0
        assert S.indices.size < schur_complement(A, F, 0.0).indices.size
        seen.append((*vars(F).values(), *S))
    for other in seen[1:]:
        for a, b in zip(seen[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", SOME_DTYPES)
def test_bits_of_a_tree_of_parts_do_not_depend_on_threads(threads, monkeypatch, dtype):
    monkeypatch.setattr(ordering, "LEAST_ROWS", 50)
    A = in_dtype(gallery.convection_diffusion(16, 16, 16, peclet=5), dtype)
    order, starts, above, _ = ordering.by_subtrees(A, "amd")
    assert above.size > 20 and starts[-1] == A.shape[0] and (above >= 0).any()
    A, seen = sp.csr_matrix(A[order][:, order]), []
    for count in (1, 2, 4):
        threads(count)
        seen.append(vars(factored(A, starts, above=above, drop_tol=1e-3, condest=2.0, rows=20, columns=20)).values())
    for other in seen[1:]:
        for a, b in zip(seen[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_tree_of_parts_changes_the_estimates_alone(monkeypatch):
    monkeypatch.setattr(ordering, "LEAST_ROWS", 50)
    A = gallery.convection_diffusion(12, 12, 12, peclet=5)
    order, starts, above, _ = ordering.by_subtrees(A, "amd")
    A = A[order][:, order]
    F, G = factored(A, starts, above=above), factored(A)
    assert above.size > 10 and not F.deferred.any()
    for name in ("d", "l_indptr", "l_indices", "l_data", "u_indptr", "u_indices", "u_data"):
        np.testing.assert_array_equal(getattr(F, name), getattr(G, name))


@pytest.mark.parametrize("above", [[1, 1], [2, -1], [-1], [0, -1], [-2, -1]])
def test_a_forest_whose_parts_are_not_below_later_ones(above):
    with refused(ParameterError, match="a later one, or -1"):
        factored(sp.eye_array(4, format="csr"), [0, 2, 4], above=above)


@pytest.mark.parametrize("index", [np.int32, pytest.param(np.int64, marks=pytest.mark.slow)])
def test_index_types(index):
    A = gallery.poisson7(5)
    A, T = with_index(A, index), with_index(sp.csr_matrix(A.T), index)
    room = np.full(A.n, 5, index)
    F = crout(A, T, np.array([0, A.n], index), 1e-2, 2.0, 0.0, room, room)
    S = schur_complement(A, F, 0.0)
    assert F.l_indices.dtype == F.u_indices.dtype == S.indices.dtype == index
    want = factored(gallery.poisson7(5), drop_tol=1e-2, condest=2.0, rows=5, columns=5)
    np.testing.assert_array_equal(F.u_data, want.u_data)
    np.testing.assert_array_equal(F.l_indices, want.l_indices)


def test_parts_are_factored_as_if_alone():
    A, B = gallery.poisson5(6), gallery.convection_diffusion(5, 5, 1, peclet=10)
    both = sp.csr_matrix(sp.block_diag([A, B]))
    F = factored(both, [0, 36, 36, 61], drop_tol=1e-2, condest=2.0)  # one part is void
    alone = [factored(M, drop_tol=1e-2, condest=2.0) for M in (A, B)]
    for name in ("deferred", "d", "l_data", "u_data"):
        np.testing.assert_array_equal(getattr(F, name), np.concatenate([getattr(G, name) for G in alone]))
    assert F.dropped_by_tolerance == sum(G.dropped_by_tolerance for G in alone) and F.l_estimate == max(
        G.l_estimate for G in alone
    )


@PATTERNS
@given(matrices(), st.integers(0, 2**16), st.sampled_from([0.0, 1e-3]), st.sampled_from([3.0, NEVER]))
def test_extreme_magnitudes_bring_no_nan(problem, seed, drop_tol, condest):
    A, parts, above = problem
    reach = 150 if np.finfo(A.dtype).precision > 10 else 18
    power = np.random.default_rng(seed).uniform(-reach, reach, A.nnz)
    A.data = (A.data * 10.0**power).astype(A.dtype)
    F = factored(A, parts, above=above, drop_tol=drop_tol, condest=condest)
    for part in (F.d, F.l_data, F.u_data, [F.l_estimate, F.u_estimate]):
        assert np.isfinite(part).all()
    pivots = (F.deferred == 0) & (np.arange(F.n) < F.interface)
    assert (F.d[pivots] != 0).all() and (F.d[~pivots] == 0).all()
    S = schur_complement(A, F, 0.0)
    finite = np.isfinite(abs(S.data))
    assert finite.all() == (S.first_bad < 0)
    if S.first_bad >= 0:
        assert not finite[S.indptr[S.first_bad] : S.indptr[S.first_bad + 1]].all()
        assert finite[: S.indptr[S.first_bad]].all()


@pytest.mark.parametrize(
    "M",
    [
        [[1e-200, 1e120], [1e120, 1.0]],  # l and u overflow
        [[1e-160, 1e140], [1e140, 1.0]],  # their product does
        [[1e-310, 0.0], [0.0, 1.0]],  # 1 / d does
        [[1e-100, 1e160], [1e-60, 1.0]],  # nothing does
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_pivot_whose_elimination_overflows_is_put_off(M, dtype):
    M = np.array(M)
    if dtype == "float32":  # whose exponents are an eighth as large
        M = np.where(M == 0, 0, M ** (1 / 8))
        M[0, 0] = 1e-39 if M[0, 1] == 0 else M[0, 0]
    F = factored(sp.csr_matrix(M.astype(dtype)))
    fits = M[1][0] < M[0][1]
    np.testing.assert_array_equal(F.deferred, [0 if fits else PIVOT, 0])
    assert np.isfinite(F.d).all() and np.isfinite(F.l_data).all() and np.isfinite(F.u_data).all()


def test_a_schur_complement_that_overflows_names_its_row():
    M = np.array([[1.0, 0, 1e153], [0, 1.0, 1e153], [1e154, 1e154, -1.7e308]])
    M[2, :2] = 1.0
    M[:2, 2] = 4e307
    F = factored(sp.csr_matrix(M), parts=[0, 2])
    S = schur_complement(sp.csr_matrix(M), F, 0.0)
    assert S.first_bad == 0 and not np.isfinite(S.data).all()


@pytest.mark.parametrize("by", [schur_complement, reference.crout.schur_complement])
def test_a_magnitude_that_overflows_is_not_finite(by):
    M = sp.csr_matrix(np.diag([1, 1, 3e38 + 3e38j, 1]).astype("complex64"))
    _, _, data, _, first_bad = by(M, factored(M, parts=[0, 1]), 0.0)
    assert np.isfinite(data).all() and first_bad == 1


# By bad input


def test_an_entry_between_parts_is_named():
    M = np.eye(6)
    M[[1, 2, 4], [4, 3, 5]] = M[5, 0] = 1.0
    A = sp.csr_matrix(M)
    with refused(MatrixError, match="row 1 and column 4, between parts 0 and 1"):
        factored(A, [0, 3, 5])
    factored(A, [0, 3])  # the others are of the interface: no matter what they couple


@pytest.mark.parametrize("parts", [[0], [1, 6], [0, 4, 3], [0, 7]])
def test_parts_that_do_not_ascend_within_the_matrix(parts):
    with pytest.raises(ParameterError, match="parts"):
        factored(sp.csr_matrix(np.eye(6)), parts)


def test_a_transpose_of_another_matrix():
    A, T = gallery.poisson5(4), gallery.poisson5(5)
    with pytest.raises(MatrixError, match="transpose"):
        crout(A, T, [0, 16], 0.0, 5.0, 0.0, np.full(16, 9), np.full(16, 9))


@pytest.mark.parametrize("count", [1, 3])
def test_a_failure_in_one_part_is_not_lost_and_stops_no_other(threads, count):
    threads(count)
    made = []

    def make(t, workspace):
        if t == 5:
            raise MemoryError("part 5")
        made.append((t, workspace))

    with pytest.raises(MemoryError, match="part 5"):
        each(20, make, lambda: ("workspace",))
    assert sorted(made) == [(t, ("workspace",)) for t in range(20) if t != 5]
