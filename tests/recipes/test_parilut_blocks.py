"""The building blocks of ParILU and ParILUT on every backend: by twin, by definition, by limit, by bad values."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from checks import IN_TYPES, PATTERNS, assert_close, dominant_matrices, in_dtype, long_rows, values, with_index
from hypothesis import given
from hypothesis import strategies as st

from finelu import gallery, threads
from finelu.kernels import kernels_for, reference
from finelu.kernels.cpu import candidates, pattern, sweeps
from finelu.kernels.cpu.runtime import row_blocks
from finelu.kernels.cpu.runtime.sort import sort_by_bitmap
from finelu.matrix import CSR, as_csr, lower_triangle

KINDS = pytest.mark.parametrize("cholesky", [False, True], ids=["lu", "cholesky"])
NONE_YET = 2**62


@pytest.fixture(autouse=True)
def three_threads(small_blocks):
    before = threads._wanted
    threads.set_num_threads(3)
    yield
    threads.set_num_threads(before or threads.available_cores())


def ulps(backend):
    return 0 if backend.name == "cpu" else 64


def fetched(backend, parts):
    if isinstance(parts, CSR):
        parts = (parts.indptr, parts.indices, parts.data, parts.diag)
    return [backend.fetch(part) for part in parts]


def kernels(backend):
    return kernels_for(backend.xp.empty(0))


def tables(backend, F, cholesky):
    """columns_of F for the twin and for the backend, None of LU."""
    if not cholesky:
        return None, None
    columns = reference.pattern.columns_of(F)
    return columns, tuple(backend.move(part) for part in columns)


def pair(dtype="float64", index="int32", cholesky=False, n=150, seed=0, density=0.03):
    """A, and factors F on another pattern that overlaps with A's, both with a full diagonal."""
    made = []
    for k in range(2):
        S = sp.random(n, n, density, random_state=np.random.default_rng(seed + k), format="csr")
        S = S + S.T if cholesky else S
        S = in_dtype(sp.csr_matrix(S + sp.diags(1.0 + np.asarray(abs(S).sum(axis=1)).ravel())), dtype)
        made.append(with_index(sp.csr_matrix(sp.tril(S)) if cholesky else S, index))
    return made


def same_pattern(got, want):
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(g, w)


def swept(backend, A, F, columns=None, squares=True, **options):
    """out, squares and refused of the backend."""
    xp = backend.xp
    out, refused = xp.empty_like(backend.move(F.data)), xp.asarray(np.array([0, NONE_YET]))
    sums = xp.empty(F.n) if squares else None
    kernels(backend).sweeps.sweep(backend.move(A), backend.move(F), out, sums, refused, columns, **options)
    return [x if x is None else backend.fetch(x) for x in (out, sums, refused)]


def twin_swept(A, F, columns=None, **options):
    out, squares, refused = np.empty_like(F.data), np.empty(F.n), np.array([0, NONE_YET])
    with np.errstate(all="ignore"):
        reference.sweeps.sweep(A, F, out, squares, refused, columns, **options)
    return out, squares, refused


def check_sweep(backend, A, F, cholesky, **options):
    columns, there = tables(backend, F, cholesky)
    want, want_squares, want_refused = twin_swept(A, F, columns, **options)
    got, squares, refused = swept(backend, A, F, there, **options)
    assert_close(got, want, ulps(backend))
    assert_close(squares.astype(F.data.real.dtype), want_squares.astype(F.data.real.dtype), 64)
    np.testing.assert_array_equal(refused, want_refused)
    got, _, refused = swept(backend, A, F, there, squares=False, **options)
    assert_close(got, want, ulps(backend))
    np.testing.assert_array_equal(refused, want_refused)


def check_candidates(backend, A, F, cholesky, least=0.0):
    columns, there = tables(backend, F, cholesky)
    indptr, indices, data, squares, _ = reference.candidates.candidates(A, F, columns, least)
    *got, got_squares, left_out = kernels(backend).candidates.candidates(backend.move(A), backend.move(F), there, least)
    got = fetched(backend, got)
    same_pattern(got[:2], (indptr, indices))
    assert got[2].dtype == data.dtype
    assert_close(got[2], data, ulps(backend), abs(A.data).max())
    real = F.data.real.dtype
    assert_close(backend.fetch(got_squares).T.astype(real), squares.T.astype(real), 64)
    assert int(left_out) == reference.candidates.candidates(A, F, columns)[1].size - indices.size
    return indptr, indices, data


# ---------------------------------------------------------------------------------------------------------- columns_of


@IN_TYPES
def test_columns_of_is_its_twin(backend, dtype, index):
    F = pair(dtype, index, cholesky=True)[1]
    got = fetched(backend, kernels(backend).pattern.columns_of(backend.move(F)))
    same_pattern(got, reference.pattern.columns_of(F))


@given(S=dominant_matrices(hermitian=True))
@PATTERNS
def test_columns_of_lists_every_entry_by_columns(backend, S):
    F = as_csr(sp.csr_matrix(sp.tril(S)))
    indptr, rows, places = fetched(backend, kernels(backend).pattern.columns_of(backend.move(F)))
    same = sp.csc_matrix((F.data[places], rows, indptr), shape=F.shape)
    assert (same != F.tosparse()).nnz == 0
    assert same.has_sorted_indices


# --------------------------------------------------------------------------------------------------------------- sweep


@KINDS
@IN_TYPES
@pytest.mark.parametrize("damping", [1.0, 0.7])
def test_sweep_is_its_twin(backend, dtype, index, cholesky, damping):
    check_sweep(backend, *pair(dtype, index, cholesky), cholesky, damping=damping)


@KINDS
@IN_TYPES
@pytest.mark.parametrize("part", ["upper", "lower"])
def test_a_part_of_a_sweep_is_its_twin(backend, dtype, index, cholesky, part):
    check_sweep(backend, *pair(dtype, index, cholesky), cholesky, part=part)


def by_rows(kind, cholesky):
    """A and F whose rows suit the registers of a GPU, a table, or neither."""
    if kind == "table":
        return pair(cholesky=cholesky)
    S = gallery.poisson7(6) if kind == "registers" else long_rows(1300, dense=3, density=0.001)
    A = as_csr(sp.csr_matrix(sp.tril(S + S.T)) if cholesky else S)
    return A, A.with_values(A.data * np.random.default_rng(0).uniform(0.9, 1.1, A.nnz))


@KINDS
@pytest.mark.parametrize("kind", ["registers", "table", "long"])
def test_the_parts_of_a_sweep_are_those_of_the_whole_and_the_rest_is_kept(backend, cholesky, kind):
    A, F = by_rows(kind, cholesky)
    there = tables(backend, F, cholesky)[1]
    rows = np.repeat(np.arange(F.n), np.diff(F.indptr))
    whole, squares, _ = swept(backend, A, F, there)
    for part, new in (("upper", F.indices >= rows), ("lower", F.indices < rows)):
        for with_squares in (True, False):
            out, sums, _ = swept(backend, A, F, there, squares=with_squares, part=part)
            np.testing.assert_array_equal(out[~new], F.data[~new])
            assert_close(out[new], whole[new], 0 if backend.name == "cpu" else 64, scale=abs(whole[new]))
            assert abs(out[new] - F.data[new]).max() > 1e-3
            if with_squares:
                np.testing.assert_array_equal(sums, squares)


def test_a_pivot_that_is_refused_divides_as_it_was(backend):
    F = as_csr(sp.csr_matrix(np.array([[2.0, 1], [1, 4]])))
    A = F.with_values(np.array([0.0, 1, 1, 4]))  # u_00 would be 0
    upper, _, refused = swept(backend, A, F, part="upper")
    np.testing.assert_array_equal(upper, [2, 1, 1, 3])
    np.testing.assert_array_equal(refused, [1, 0])
    lower, _, refused = swept(backend, A, F.with_values(upper), part="lower")
    np.testing.assert_array_equal(lower, [2, 1, 0.5, 3])
    np.testing.assert_array_equal(refused, [0, NONE_YET])


@given(S=dominant_matrices(), T=dominant_matrices(), cholesky=st.booleans())
@PATTERNS
def test_sweep_on_any_pattern(backend, S, T, cholesky):
    n = min(S.shape[0], T.shape[0])
    A, F = (as_csr(sp.csr_matrix(sp.tril(M[:n, :n]) if cholesky else M[:n, :n])) for M in (S, T))
    check_sweep(backend, A, F, cholesky)


@KINDS
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("n", [60, 1100])
def test_rows_of_few_entries_that_meet_rows_of_many(backend, n, dtype, cholesky):
    # row 0 of U (column 0 of L) is full, the rows that need it have two to four entries; some are full as well
    rng = np.random.default_rng(n)
    S = sp.lil_matrix(gallery.arrow(n)[::-1, ::-1])
    for row in (n // 2, n - 5):
        S[row, :] = rng.uniform(-1, 1, n)
    S = sp.csr_matrix(S)
    S = in_dtype(sp.csr_matrix(S + S.T + sp.diags(np.full(n, 2.0 * n))), dtype)
    A = as_csr(sp.csr_matrix(sp.tril(S)) if cholesky else S)
    F = A.with_values(A.data * rng.uniform(0.9, 1.1, A.nnz).astype(A.dtype.char.lower()))
    check_sweep(backend, A, F, cholesky)


def check_sweeps(backend, A, F, cholesky, count):
    columns, there = tables(backend, F, cholesky)
    want_squares, want_refused = np.zeros((count, F.n)), np.array([0, NONE_YET])
    want = reference.sweeps.sweeps(A, F, count, want_squares, want_refused, columns, 0.9)
    squares, refused = backend.move(np.zeros((count, F.n))), backend.move(np.array([0, NONE_YET]))
    G = backend.move(F)
    got = kernels(backend).sweeps.sweeps(backend.move(A), G, count, squares, refused, there, 0.9)
    assert_close(backend.fetch(got), want, 4 * ulps(backend))
    real = F.data.real.dtype
    assert_close(backend.fetch(squares).astype(real), want_squares.astype(real), 1024)
    np.testing.assert_array_equal(backend.fetch(refused), want_refused)
    np.testing.assert_array_equal(backend.fetch(G.data), F.data)
    again = kernels(backend).sweeps.sweeps(backend.move(A), G, count, None, refused, there, 0.9)
    np.testing.assert_array_equal(backend.fetch(again), backend.fetch(got))


@KINDS
@IN_TYPES
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_several_sweeps_are_their_twin(backend, dtype, index, cholesky, count):
    check_sweeps(backend, *pair(dtype, index, cholesky, density=0.02), cholesky, count)


@KINDS
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("grid", [(40,), (9, 8), (5, 4, 6)], ids=str)
def test_several_sweeps_of_rows_of_two_to_eight_entries(backend, grid, together, cholesky, monkeypatch):
    if not together and backend.name != "cpu":
        import sys

        monkeypatch.setattr(sys.modules["finelu.kernels.cuda.sweeps"], "ROUNDS", 0)  # one launch a sweep
    S = [gallery.tridiagonal, gallery.poisson5, gallery.poisson7][len(grid) - 1](*grid)
    A = as_csr(sp.csr_matrix(sp.tril(S)) if cholesky else S)
    check_sweeps(backend, A, A.with_values(A.data * np.linspace(0.9, 1.1, A.nnz)), cholesky, 4)


@KINDS
@IN_TYPES
def test_facts_are_their_twin(backend, dtype, index, cholesky):
    F = pair(dtype, index, cholesky, n=700)[0]
    assert kernels(backend).pattern.facts(backend.move(F)) == reference.pattern.facts(F)


def test_values_that_are_not_finite_are_refused_and_counted(backend):
    A, F = pair(n=60, density=0.1)
    data = F.data.copy()
    j = int(F.indices[F.diag[40] - 1])  # some column that row 40 has below the diagonal
    data[F.diag[j]] = 0.0
    F = F.with_values(data)
    out, _, refused = swept(backend, A, F)
    rows = np.repeat(np.arange(F.n), np.diff(F.indptr))
    hit = np.flatnonzero((F.indices == j) & (rows > j))  # l_ij = s_ij / 0
    np.testing.assert_array_equal(refused, [hit.size, rows[hit[0]]])
    np.testing.assert_array_equal(out[hit], data[hit])
    assert out[F.diag[j]] != 0  # the pivot itself recovers


def test_a_pivot_of_zero_is_refused_and_the_count_goes_on(backend):
    A = as_csr(sp.csr_matrix(np.array([[2.0, 1.0, 0.0], [2.0, 1.0, 1.0], [0.0, 1.0, 3.0]])))
    F = A.with_values(np.array([2.0, 1.0, 1.0, 5.0, 1.0, 0.5, 3.0]))  # l_10 u_01 = 1 = a_11
    out, refused = backend.xp.empty_like(backend.move(F.data)), backend.move(np.array([3, 2]))
    kernels(backend).sweeps.sweep(backend.move(A), backend.move(F), out, None, refused)
    np.testing.assert_array_equal(backend.fetch(refused), [4, 1])
    assert backend.fetch(out)[3] == 5.0


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_a_square_that_is_not_positive_is_refused(backend, dtype, damping):
    A = as_csr(sp.csr_matrix(np.array([[1.0, 0, 0], [2.0, 4.0, 0], [0, 1.0, -1.0]], dtype)))  # 4 - 2 * 2 and -1 - 1
    out, _, refused = swept(backend, A, A, tables(backend, A, True)[1], damping=damping)
    np.testing.assert_array_equal(refused, [2, 1])
    np.testing.assert_array_equal(out[[2, 4]], A.data[[2, 4]])


# ------------------------------------------------------------------------------------------------------ sweep_in_place


@KINDS
@IN_TYPES
def test_sweep_in_place_of_one_thread_is_its_twin(dtype, index, cholesky):
    A, F = pair(dtype, index, cholesky)
    threads.set_num_threads(1)
    columns = reference.pattern.columns_of(F) if cholesky else None
    mine, twin = F.with_values(F.data.copy()), F.with_values(F.data.copy())
    refused, twin_refused = np.array([0, NONE_YET]), np.array([0, NONE_YET])
    sweeps.sweep_in_place(A, mine, refused, columns)
    reference.sweeps.sweep_in_place(A, twin, twin_refused, columns)
    np.testing.assert_array_equal(mine.data, twin.data)
    np.testing.assert_array_equal(refused, twin_refused)


def test_sweep_in_place_refuses_as_sweep_does(backend):
    A = as_csr(sp.csr_matrix(np.array([[1.0, 1.0], [1.0, 1.0]])))
    F = backend.move(A.with_values(np.array([1.0, 1.0, 1.0, 7.0])))  # u_11 = 1 - 1
    refused = backend.move(np.array([0, NONE_YET]))
    for _ in range(3):
        kernels(backend).sweeps.sweep_in_place(backend.move(A), F, refused)
    np.testing.assert_array_equal(backend.fetch(F.data), [1, 1, 1, 7])
    np.testing.assert_array_equal(backend.fetch(refused), [3, 1])


# ---------------------------------------------------------------------------------------------------------- candidates


@KINDS
@IN_TYPES
@pytest.mark.parametrize("least", [0.0, 0.05])
def test_candidates_are_those_of_the_twin(backend, dtype, index, cholesky, least):
    if backend.name == "cpu" and index == "int64" and least:
        pytest.skip("on the CPU int32 takes the same path")
    indices = check_candidates(backend, *pair(dtype, index, cholesky), cholesky, least)[1]
    assert indices.size > 100


@KINDS
def test_candidates_of_rows_of_more_than_1024_entries(backend, cholesky):
    S = long_rows(1300, dense=2, density=0.001)
    A = as_csr(sp.csr_matrix(sp.tril(S + S.T)) if cholesky else S)
    F = as_csr(sp.csr_matrix(sp.triu(sp.tril(A.tosparse(), 3), -3) + sp.triu(A.tosparse(), 1270)))  # A's rows are new
    got = kernels(backend).candidates.candidates(backend.move(A), backend.move(F), tables(backend, F, cholesky)[1])
    indptr, indices, data = fetched(backend, got[:3])
    L, U = sp.tril(F.tosparse(), -1) + sp.eye(F.n), sp.triu(F.tosparse())
    product = sp.tril(F.tosparse() @ F.tosparse().T) if cholesky else L @ U
    R = (A.tosparse() - product).tocsr()
    places = abs(A.tosparse().sign()) + abs(sp.csr_matrix(product)).sign()
    new = sp.csr_matrix(places - places.multiply(F.tosparse() != 0))
    new.eliminate_zeros()
    new.sort_indices()
    assert np.diff(indptr).max() > 1024
    same_pattern((indptr, indices), (new.indptr, new.indices))
    rows = np.repeat(np.arange(F.n), np.diff(indptr))
    assert_close(data, np.asarray(R[rows, indices]).ravel(), 100)


@given(S=dominant_matrices(), T=dominant_matrices(), cholesky=st.booleans(), least=st.sampled_from([0.0, 0.1]))
@PATTERNS
def test_candidates_and_their_adding_on_any_pattern(backend, S, T, cholesky, least):
    n = min(S.shape[0], T.shape[0])
    A, F = (as_csr(sp.csr_matrix(sp.tril(M[:n, :n]) if cholesky else M[:n, :n])) for M in (S, T))
    new = check_candidates(backend, A, F, cholesky, least)
    got = fetched(backend, _added(backend, A, F, *(backend.move(part) for part in new)))
    same_pattern(got, reference.pattern.add(A, F, *new)[1])


def test_where_nothing_is_new_there_are_no_candidates(backend):
    A = as_csr(sp.csr_matrix(np.ones((5, 5)) + 5 * np.eye(5)))
    indptr, indices, data, squares, left_out = kernels(backend).candidates.candidates(backend.move(A), backend.move(A))
    assert indices.size == data.size == int(left_out) == 0
    np.testing.assert_array_equal(backend.fetch(indptr), np.zeros(6))
    np.testing.assert_array_equal(backend.fetch(squares)[1], np.zeros(5))
    got = _added(backend, A, A, indptr, indices, data)
    same_pattern(fetched(backend, got), (A.indptr, A.indices, A.data, A.diag))


@KINDS
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("share", [0.6, 0.9])
def test_no_more_candidates_than_allowed_and_those_of_the_largest_products(backend, cholesky, dtype, share):
    A, F = pair(dtype, "int32", cholesky)
    columns, there = tables(backend, F, cholesky)
    twin = partial(reference.candidates.candidates, A, F, columns)
    everything = twin()[1].size
    most = int(share * everything)
    indptr, indices, data, _, left_out = kernels(backend).candidates.candidates(
        backend.move(A), backend.move(F), there, most=most
    )
    indptr, indices, data = fetched(backend, (indptr, indices, data))
    assert 0.7 * most <= indices.size <= most
    assert int(left_out) == everything - indices.size
    largest, a_has = {}, set(zip(*A.tosparse().nonzero(), strict=True))
    for i in range(F.n):
        for (_, j), product in reference.sweeps.product_row(F, i, columns):
            largest[i, j] = max(largest.get((i, j), 0.0), abs(product))
    rows = np.repeat(np.arange(F.n), np.diff(indptr))
    kept = set(zip(rows.tolist(), indices.tolist(), strict=True))
    new = set(zip(np.repeat(np.arange(F.n), np.diff(twin()[0])).tolist(), twin()[1].tolist(), strict=True))
    assert kept <= new
    assert {place for place in new if place in a_has} <= kept
    least_kept = min(largest[place] for place in kept if place not in a_has)
    assert max(largest[place] for place in new - kept) <= least_kept * (1 + 1e-5)
    want = twin(least_kept * (1 - 1e-5))
    same_pattern((indptr, indices), want[:2])
    assert_close(data, want[2], ulps(backend), abs(A.data).max())


def test_a_limit_that_is_not_reached_changes_nothing(backend):
    A, F = pair()
    without = kernels(backend).candidates.candidates(backend.move(A), backend.move(F))
    with_limit = kernels(backend).candidates.candidates(backend.move(A), backend.move(F), most=without[1].size)
    same_pattern(fetched(backend, with_limit[:4]), fetched(backend, without[:4]))
    assert int(with_limit[4]) == 0


def test_entries_of_A_stay_however_few_candidates_are_allowed(backend):
    A, F = pair()
    indptr, indices, *_ = kernels(backend).candidates.candidates(backend.move(A), backend.move(F), most=1)
    rows = np.repeat(np.arange(F.n), np.diff(backend.fetch(indptr)))
    got = set(zip(rows.tolist(), backend.fetch(indices).tolist(), strict=True))
    own = set(zip(*A.tosparse().nonzero(), strict=True)) - set(zip(*F.tosparse().nonzero(), strict=True))
    assert got == own


# ----------------------------------------------------------------------------------------------------------------- add


def _added(backend, A, F, *candidates, **how):
    """F with the candidates, by the kernel."""
    return kernels(backend).pattern.add(backend.move(A), backend.move(F), *candidates, **how)[1]


@KINDS
@IN_TYPES
@pytest.mark.parametrize("scaled", [False, True])
def test_add_is_its_twin(backend, dtype, index, cholesky, scaled):
    A, F = pair(dtype, index, cholesky)
    columns = reference.pattern.columns_of(F) if cholesky else None
    new = reference.candidates.candidates(A, F, columns)[:3]
    want = reference.pattern.add(A, F, *new, scaled=scaled)[1]
    got = fetched(backend, _added(backend, A, F, *(backend.move(x) for x in new), scaled=scaled))
    same_pattern([got[0], got[1], got[3]], [want[0], want[1], want[3]])
    assert_close(got[2], want[2], max(ulps(backend), 4 * (np.dtype(dtype).kind == "c")))  # |u_jj| of complex numbers
    assert (got[1][got[3]] == np.arange(F.n)).all()


@KINDS
@IN_TYPES
def test_values_at_is_its_twin(backend, dtype, index, cholesky):
    A, F = pair(dtype, index, cholesky)
    for B, G in ((A, F), (F, A), (A, A)):
        got = backend.fetch(kernels(backend).pattern.values_at(backend.move(B), backend.move(G)))
        want = reference.pattern.values_at(B, G)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@given(S=dominant_matrices(), T=dominant_matrices())
@PATTERNS
def test_values_at_any_pattern(backend, S, T):
    n = min(S.shape[0], T.shape[0])
    B, F = (as_csr(sp.csr_matrix(M[:n, :n])) for M in (S, T))
    got = backend.fetch(kernels(backend).pattern.values_at(backend.move(B), backend.move(F)))
    rows = np.repeat(np.arange(n), np.diff(F.indptr))
    np.testing.assert_array_equal(got, np.asarray(B.tosparse()[rows, F.indices]).ravel())


def test_below_the_diagonal_what_is_added_has_the_sign_of_its_pivot_taken_out(backend):
    S = sp.csr_matrix(np.array([[-2.0, 1, 1], [1, 4, 0], [1, 0, 4]]))
    F = as_csr(S)
    new = [
        backend.move(np.array(part, dtype))
        for part, dtype in (([0, 0, 1, 2], "int32"), ([2, 1], "int32"), ([0.5, 0.5], "float64"))
    ]
    for sign, want in ((1, 0.5), (-1, -0.5)):
        G = F.with_values(np.where(F.indices == 1, sign, 1) * F.data)
        data = fetched(backend, _added(backend, F, G, *new))[2]
        assert data[-2] == want and data[5] == 0.5


def test_indices_become_wide_where_entries_are_too_many(everywhere):
    A, F = pair()
    new = candidates.candidates(A, F)
    everywhere("INT32_LIMIT", F.nnz + new[1].size - 1)
    B, G = pattern.add(A, F, *new[:3])
    assert {M.dtype for T in (B, G) for M in (T.indptr, T.indices, T.diag)} == {np.dtype(np.int64)}
    want = reference.pattern.add(A, F, *new[:3])[1]
    for got, part in zip((G.indptr, G.indices, G.data, G.diag), want, strict=True):
        np.testing.assert_array_equal(got, part)
    everywhere("INT32_LIMIT", new[1].size - 1)
    wide = candidates.candidates(A, F)
    assert wide[0].dtype == np.int64
    for got, part in zip(wide[:4], new[:4], strict=True):
        np.testing.assert_array_equal(got, part)


# ------------------------------------------------------------------------------------------------ magnitudes and remove


@KINDS
@IN_TYPES
def test_magnitudes_are_those_of_the_strict_triangles(backend, dtype, index, cholesky):
    F = pair(dtype, index, cholesky)[1]
    got, want = (
        fetched(backend, kernels(backend).pattern.magnitudes(backend.move(F))),
        reference.pattern.magnitudes(F),
    )
    rows = np.repeat(np.arange(F.n), np.diff(F.indptr))
    for mine, its, side in zip(got, want, (F.indices < rows, F.indices > rows), strict=True):
        assert mine.dtype == its.dtype == F.data.real.dtype
        assert_close(mine, its, 2, scale=its)
        assert_close(its, abs(F.data[side]), 2)


def few_values(F, dtype, seed=0):
    """Values of a few magnitudes, all exact: many are equal."""
    rng = np.random.default_rng(seed)
    data = rng.choice([0.25, 0.5, 1.0, 2.0], F.nnz) * rng.choice([-1, 1], F.nnz)
    if np.dtype(dtype).kind == "c":
        data = data * rng.choice([1, 1j, 3 + 4j, 4 - 3j], F.nnz)
    return F.with_values(data.astype(dtype))


def removed(backend, F, least, drop):
    least = backend.move(np.array(least, F.data.real.dtype))
    return fetched(backend, kernels(backend).pattern.remove(backend.move(F), least, drop))


@KINDS
@IN_TYPES
def test_remove_is_its_twin(backend, dtype, index, cholesky):
    F = few_values(pair(dtype, index, cholesky)[1], dtype)
    for least, shares in (((0.5, 0.5), (0.3, 0.4)), ((1.0, 0.25), (0.45, 0.1)), ((9.0, 2.0), (0.5, 1.0))):
        sides = [F.below, F.nnz - F.n - F.below]
        drop = tuple(int(share * side) for share, side in zip(shares, sides, strict=True))
        same_pattern(removed(backend, F, least, drop), reference.pattern.remove(F, np.array(least), np.array(drop)))


@given(S=dominant_matrices(), least=st.tuples(*[st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0])] * 2), data=st.data())
@PATTERNS
def test_remove_drops_what_it_should_on_any_pattern(backend, S, least, data):
    F = few_values(as_csr(S), "float64")
    drop = tuple(data.draw(st.integers(0, side + 2)) for side in (F.below, F.nnz - F.n - F.below))
    got = removed(backend, F, least, drop)
    same_pattern(got, reference.pattern.remove(F, np.array(least), np.array(drop)))
    assert (got[1][got[3]] == np.arange(F.n)).all()


def test_thresholds_of_the_magnitudes_remove_exactly_as_many_as_wanted(backend):
    S = gallery.poisson7(8, 8, 8)
    F = as_csr(sp.csr_matrix((values(S.nnz, "float64"), S.indices, S.indptr)))
    parts = fetched(backend, kernels(backend).pattern.magnitudes(backend.move(F)))
    drop = [part.size // 3 for part in parts]
    least = [np.partition(part, k)[k] for part, k in zip(parts, drop, strict=True)]
    _, indices, data, diag = removed(backend, F, least, drop)
    assert indices.size == F.nnz - sum(drop)
    np.testing.assert_array_equal(data[diag], F.data[F.diag])


def test_equal_entries_are_dropped_evenly_over_the_rows(backend):
    S = gallery.poisson7(10, 10, 10)
    F = as_csr(S)  # all entries off the diagonal are -1
    indptr, indices, _, _ = removed(backend, F, (1.0, 1.0), (F.below // 4, 0))
    rows = np.repeat(np.arange(F.n), np.diff(indptr))
    before = np.repeat(np.arange(F.n), np.diff(F.indptr))
    had, has = (np.bincount(r[j < r] // 100) for r, j in ((before, F.indices), (rows, indices)))
    assert abs(has - 0.75 * had).max() <= 1
    assert indices.size == F.nnz - F.below // 4


def test_nothing_is_removed_below_a_threshold_of_zero_and_all_below_infinity(backend):
    F = pair()[1]
    same_pattern(removed(backend, F, (0.0, 0.0), (0, 0)), (F.indptr, F.indices, F.data, F.diag))
    other = values(F.nnz, "float64")
    kept = kernels(backend).pattern.remove(
        backend.move(F), backend.move(np.array([0.1, 0.2])), (F.nnz, F.nnz), backend.move(other)
    )
    want = reference.pattern.remove(F, np.array([0.1, 0.2]), np.array([F.nnz] * 2), other)
    same_pattern(fetched(backend, kept), want)
    assert kept.nnz < F.nnz
    _, indices, data, _ = removed(backend, F, (np.inf, np.inf), (F.nnz, F.nnz))
    np.testing.assert_array_equal(indices, np.arange(F.n))
    np.testing.assert_array_equal(data, F.data[F.diag])


def test_a_value_that_is_not_a_number_stays():
    F = pair()[1]
    data = F.data.copy()
    spoilt = np.flatnonzero(F.indices > np.repeat(np.arange(F.n), np.diff(F.indptr)))[::3]
    data[spoilt] = np.nan
    got = pattern.remove(F.with_values(data), (np.inf, np.inf), (0, 0))
    assert np.isnan(got.data).sum() == spoilt.size
    assert got.nnz == F.n + spoilt.size


# ------------------------------------------------------------------------------------------------------ threads, blocks


def everything(A, F, cholesky):
    """What each deterministic block makes of A and F."""
    columns = pattern.columns_of(F) if cholesky else None
    made = list(columns or ())
    out, squares, refused = np.empty_like(F.data), np.empty(F.n), np.array([0, NONE_YET])
    sweeps.sweep(A, F, out, squares, refused, columns)
    *new, left_out = candidates.candidates(A, F, columns)
    *few, few_left_out = candidates.candidates(A, F, columns, most=new[1].size // 2)
    _, G = pattern.add(A, F, *new[:3])
    H = pattern.remove(G, (0.2, 0.3), (G.nnz // 3, G.nnz // 4))
    made += [out, squares, refused, *new, left_out, *few, few_left_out, *pattern.magnitudes(G)]
    for X in (G, H):
        made += [X.indptr, X.indices, X.data, X.diag]
    return made


@KINDS
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_the_bits_do_not_depend_on_threads_or_blocks(monkeypatch, cholesky, dtype):
    A, F = pair(dtype, "int32", cholesky, n=700, density=0.01)
    threads.set_num_threads(1)
    want = everything(A, F, cholesky)
    for count, changes in (
        (2, {}),
        (5, {"GRAIN": 8, "COPY": 8}),
        (3, {"GRAIN": 8, "GRANULES": 20}),  # 32 rows stay together
        (3, {"WAITING": 4}),  # a thread keeps next to nothing back
        (3, {"ROOM": 0}),  # the number of candidates is found out first
        (4, {"ALONE": 2**40}),  # one block
    ):
        with monkeypatch.context() as m:
            for name, value in changes.items():
                m.setattr(candidates if name in ("WAITING", "ROOM") else row_blocks, name, value)
            threads.set_num_threads(count)
            for got, expected in zip(everything(A, F, cholesky), want, strict=True):
                np.testing.assert_array_equal(got, expected)


@KINDS
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("side", [(7, 300), (30, 30), (300, 7)])
def test_the_bits_are_the_same_with_places_for_the_columns_of_a_block_only(cholesky, dtype, side):
    A = as_csr(in_dtype(gallery.poisson5(*side), dtype))
    A = lower_triangle(A)[0] if cholesky else A
    rng = np.random.default_rng(0)
    A = A.with_values((A.data * rng.uniform(0.5, 1.0, A.nnz)).astype(dtype))
    columns = pattern.columns_of(A) if cholesky else None
    F = pattern.add(A, A, *candidates.candidates(A, A, columns)[:3])[1]
    items = row_blocks.row_blocks(F, pattern.columns_of(F) if cholesky else None)
    reach, size = row_blocks.window(items, F, A)
    assert reach > 0 and size < A.n
    threads.set_num_threads(1)
    assert row_blocks.window(items, F, A) == (A.n, A.n)
    want = everything(A, F, cholesky)
    threads.set_num_threads(4)
    for got, expected in zip(everything(A, F, cholesky), want, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("count", "n"), [(1, 64), (5, 5), (12, 100), (13, 100), (700, 5000), (40, 200_000), (20, 10**6)]
)
def test_columns_are_sorted_whether_few_or_many_near_or_far(count, n):
    columns = np.random.default_rng(count).permutation(n)[:count].astype(np.uint32)
    words, pages = np.zeros((n >> 6) + 1, np.uint64), np.zeros((n >> 12) + 1, np.uint64)
    want = np.sort(columns)
    sort_by_bitmap(columns, np.uint64(count), words, pages)
    np.testing.assert_array_equal(columns, want)
    assert not words.any() and not pages.any()
