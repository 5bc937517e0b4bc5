"""Transposes, other orders, small entries, symmetric graphs, parts, minimum degree: against the specification, and by
definition."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, values
from hypothesis import given
from hypothesis import strategies as st

from finelu.kernels import cpu, reference


@st.composite
def patterns(draw, largest=20):
    """Square CSR matrices of any pattern, with empty rows and without a full diagonal."""
    n = draw(st.integers(1, largest))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    A = sp.csr_matrix(rng.random((n, n)) < draw(st.sampled_from([0.0, 0.1, 0.3, 1.0])), dtype=float)
    A.data = values(A.nnz, "float64", n)
    return A


@pytest.mark.parametrize("dtype", DTYPES)
@PATTERNS
@given(A=patterns())
def test_transposed(dtype, A):
    A = A.astype(dtype)
    got, want = (form.graph.transposed(A.indptr, A.indices, A.data) for form in (cpu, reference))
    for mine, its in zip(got, want, strict=True):
        assert mine.dtype == its.dtype
        np.testing.assert_array_equal(mine, its)
    np.testing.assert_array_equal(sp.csr_matrix((got[2], got[1], got[0]), A.shape).toarray(), A.toarray().T)


@pytest.mark.parametrize("dtype", DTYPES)
@PATTERNS
@given(A=patterns(), seed=st.integers(0, 2**16))
def test_a_block(dtype, A, seed):
    A, rng = A.astype(dtype), np.random.default_rng(seed)
    n = A.shape[0]
    rows, columns = (rng.permutation(n)[: rng.integers(0, n + 1)] for _ in range(2))
    place = np.full(n, -1)
    place[columns] = np.arange(columns.size)
    got, want = (form.graph.block(A.indptr, A.indices, A.data, rows, place) for form in (cpu, reference))
    for mine, its in zip(got, want, strict=True):
        assert mine.dtype == its.dtype
        np.testing.assert_array_equal(mine, its)
    for form in (cpu, reference):
        starts = np.empty(rows.size + 1, np.int64)
        form.graph.block_starts(A.indptr, A.indices, rows, place, starts)
        np.testing.assert_array_equal(starts, got[0])
    found = sp.csr_matrix((got[2], got[1], got[0]), (rows.size, columns.size)).toarray()
    np.testing.assert_array_equal(found, A.toarray()[rows][:, columns])


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@PATTERNS
@given(A=patterns(), seed=st.integers(0, 99))
def test_a_matrix_from_triangles(dtype, A, seed, scaled):
    A, rng = A.astype(dtype), np.random.default_rng(seed)
    n = A.shape[0]
    d = values(n, dtype, 1)
    L, U = sp.csc_matrix(sp.tril(A, -1)), sp.csr_matrix(sp.triu(A, 1))
    lower, upper = ((M.indptr, M.indices, M.data) for M in (L, U))
    pivots, place = np.flatnonzero(rng.random(n) < rng.choice([0.5, 1])), np.full(n, -1)
    place[pivots] = np.arange(pivots.size)
    got, want = (form.graph.triangles(lower, d, upper, pivots, place, scaled) for form in (cpu, reference))
    for mine, its in zip(got, want, strict=True):
        assert mine.dtype == its.dtype
        np.testing.assert_array_equal(mine, its)
    found = sp.csr_matrix((got[2], got[1], got[0]), (pivots.size, pivots.size))
    assert found.has_canonical_format
    right = U.toarray() * d[:, None] if scaled else U.toarray()
    whole = L.toarray() + np.diag(d) + right
    np.testing.assert_array_equal(found.toarray(), whole[np.ix_(pivots, pivots)])


@PATTERNS
@given(A=patterns(), seed=st.integers(0, 99))
def test_places_in_a_transpose(A, seed):
    rng = np.random.default_rng(seed)
    begin = A.indptr[:-1] + rng.integers(0, 2, A.shape[0]).astype(np.int32)
    begin, end = np.minimum(begin, A.indptr[1:]), A.indptr[1:].copy()
    got, want = (form.graph.transposed_places(begin, end, A.indices) for form in (cpu, reference))
    for mine, its in zip(got, want, strict=True):
        assert mine.dtype == its.dtype
        np.testing.assert_array_equal(mine, its)
    indptr, rows, places = got
    of = np.repeat(np.arange(A.shape[0]), np.diff(indptr))
    np.testing.assert_array_equal(A.indices[places], of)
    assert (begin[rows] <= places).all() and (places < end[rows]).all()
    assert indptr[-1] == (end - begin).sum() and (np.diff(rows)[np.diff(of) == 0] > 0).all()


def graph_of(form, A, index="int32"):
    starts, columns = np.full(A.shape[0] + 1, -1, index), np.empty(2 * A.nnz, index)
    form.graph.symmetric_graph(A.indptr.astype(index), A.indices.astype(index), starts, columns)
    return starts, columns[: starts[-1]]


@pytest.mark.parametrize("index", ["int32", "int64"])
@PATTERNS
@given(A=patterns())
def test_the_graph_of_a_and_its_transpose(index, A):
    starts, columns = graph_of(cpu, A, index)
    for mine, its in zip((starts, columns), graph_of(reference, A, index), strict=True):
        np.testing.assert_array_equal(mine, its)
    S = sp.csr_matrix((np.ones(columns.size), columns, starts), A.shape).toarray()
    stored = sp.csr_matrix((np.ones(A.nnz), A.indices, A.indptr), A.shape).toarray()
    np.testing.assert_array_equal(S, (stored + stored.T > 0) & ~np.eye(A.shape[0], dtype=bool))


@pytest.mark.parametrize("index", ["int32", "int64"])
@PATTERNS
@given(A=patterns())
def test_parts_of_a_pattern_beside_the_diagonal(index, A):
    """All but the diagonal; and what is on and above it, with places from 1 on, 0 for what is not stored."""
    n, nnz, pattern = A.shape[0], A.nnz, (A.indptr.astype(index), A.indices.astype(index))
    dense = np.zeros(A.shape, int)
    dense[np.repeat(np.arange(n), np.diff(A.indptr)), A.indices] = np.arange(1, nnz + 1)
    for form in (cpu, reference):
        starts, columns, places = np.full(n + 1, -1, index), np.empty(nnz + 1, index), np.empty(nnz + n, index)
        form.graph.without_diagonal(*pattern, starts, columns)
        S = sp.csr_matrix((np.ones(starts[-1]), columns[: starts[-1]], starts), A.shape)
        np.testing.assert_array_equal(S.toarray() > 0, (dense > 0) & ~np.eye(n, dtype=bool))
        assert S.has_canonical_format
        columns = np.empty(nnz + n, index)
        form.graph.behind_diagonal(*pattern, starts, columns, places)
        rows, columns = np.repeat(np.arange(n), np.diff(starts)), columns[: starts[-1]]
        wanted = np.triu((dense > 0) | np.eye(n, dtype=bool))
        np.testing.assert_array_equal(np.argwhere(wanted), np.stack((rows, columns), axis=1))
        np.testing.assert_array_equal(places[: starts[-1]], dense[rows, columns])


@pytest.mark.parametrize("index", ["int32", "int64"])
@PATTERNS
@given(A=patterns(40), dense=st.integers(0, 40), most=st.integers(0, 40), halted=st.booleans())
def test_minimum_degree_orders(index, A, dense, most, halted):
    n = A.shape[0]
    starts, columns = graph_of(cpu, A, index)
    halt, got, want = np.array([int(halted)]), np.full(n, -1, index), np.full(n, -1, index)
    left = cpu.minimum_degree.minimum_degree(starts, columns, dense, most, halt, got)
    assert left == reference.minimum_degree.minimum_degree(starts, columns, dense, most, halt, want)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.sort(got), np.full(n, -1) if halted else np.arange(n))


def test_the_lists_of_a_minimum_degree_order_move_together_where_no_place_is_left(monkeypatch):
    from finelu.kernels.cpu import minimum_degree

    moves, moved = [], minimum_degree._moved
    A = sp.random(300, 300, 0.03, rng=np.random.default_rng(1), format="csr")
    starts, columns = graph_of(cpu, A)
    got, want = np.empty(300, np.int32), np.empty(300, np.int32)
    minimum_degree.minimum_degree(starts, columns, 300, 300, np.zeros(1, int), want)
    monkeypatch.setattr(minimum_degree, "_moved", lambda *lists: moves.append(1) or moved(*lists))
    monkeypatch.setattr(minimum_degree, "_order", minimum_degree._order.py_func)
    monkeypatch.setattr(minimum_degree, "halted", lambda halt: halt[0] != 0)  # which has no entry for Python
    minimum_degree.minimum_degree(starts, columns, 300, 300, np.zeros(1, int), got)
    assert moves
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@PATTERNS
@given(A=patterns(), seed=st.integers(0, 99))
def test_a_matrix_in_another_order_by_columns(dtype, A, seed):
    n, rng = A.shape[0], np.random.default_rng(seed)
    A = A.astype(dtype)
    rows, columns = rng.permutation(n), rng.permutation(n)
    scales = [rng.uniform(0.5, 2, n).astype(A.data.real.dtype) for _ in range(2)]
    found = []
    for form in (cpu, reference):
        starts, places, values = np.empty(n + 1, np.int32), np.empty(A.nnz, np.int32), np.empty(A.nnz, A.dtype)
        form.graph.arranged_columns(A.indptr, A.indices, A.data, rows, columns, *scales, starts, places, values)
        found.append((starts, places, values))
    for mine, its in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, its)
    want = (A.toarray()[np.ix_(rows, columns)] * scales[0][:, None] * scales[1]).astype(dtype)
    np.testing.assert_array_equal(sp.csc_matrix((values, places, starts), A.shape).toarray(), want)


@pytest.mark.parametrize("drop_tol", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
@PATTERNS
@given(A=patterns(), seed=st.integers(0, 99))
def test_a_matrix_without_small_entries(dtype, drop_tol, A, seed):
    A, rng = A.astype(dtype), np.random.default_rng(seed)
    scales = [np.exp2(rng.integers(-3, 4, A.shape[0])).astype(A.data.real.dtype) for _ in range(2)]
    arguments = A.indptr, A.indices, A.data
    got, want = (form.graph.without_small(*arguments, *scales, drop_tol) for form in (cpu, reference))
    for mine, its, argument in zip(got, want, arguments, strict=True):
        assert mine.dtype == its.dtype and (mine is argument) == (its is argument)
        np.testing.assert_array_equal(mine, its)
    assert drop_tol or got[2] is A.data
    before, after = (abs(sp.csr_matrix(M, A.shape).toarray()) for M in (A, got[::-1]))
    size = before * scales[0][:, None] * scales[1]
    large = size > drop_tol * np.minimum(size.max(axis=1)[:, None], size.max(axis=0)) * (1 + 1e-6)
    np.testing.assert_array_equal(after[large], before[large])
    assert drop_tol == 1 or (before.any(axis=1) == after.any(axis=1)).all()
    assert drop_tol == 1 or (before.any(axis=0) == after.any(axis=0)).all()


@PATTERNS
@given(A=patterns(), seed=st.integers(0, 2**16))
def test_the_first_entry_between_parts(A, seed):
    n, rng = A.shape[0], np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    parts = np.sort(rng.integers(0, n + 1, count + 1))
    parts[0] = 0
    above = np.array([rng.integers(t + 1, count) if t + 1 < count and rng.random() < 0.7 else -1 for t in range(count)])
    got, want = (form.fill.first_coupling(parts, above, A.indptr, A.indices) for form in (cpu, reference))
    assert got == want


@PATTERNS
@given(A=patterns(), seed=st.integers(0, 2**16))
def test_level_sets(A, seed):
    starts, columns = graph_of(cpu, A)
    rng, n = np.random.default_rng(seed), A.shape[0]
    label = rng.integers(0, 2, n)
    first = rng.integers(n)
    rows = np.flatnonzero(label == label[first])
    found = []
    for form in (cpu, reference):
        level, queue = np.full(n, -7), np.empty(rows.size, np.int32)
        found.append((form.graph.level_sets(starts, columns, rows, label, first, level, queue), level, queue))
    for mine, its in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, its)
    depth, level, queue = found[0]
    assert sorted(queue) == list(rows) and set(level[rows]) == set(range(depth)) and level[first] == 0
    for i in rows:  # an entry leads to the next level at most
        for j in columns[starts[i] : starts[i + 1]]:
            assert label[j] != label[i] or abs(level[i] - level[j]) <= 1
