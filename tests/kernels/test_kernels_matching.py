"""Matchings and cut cycles: the CPU's form against the specification, and by definition."""

import numpy as np
import scipy.sparse as sp
from checks import PATTERNS
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

from finelu.kernels import cpu, reference


@st.composite
def weighted(draw, largest=6):
    """(indptr, indices, weight, number of columns) : rows of a bipartite graph; few different weights, so ties."""
    n = draw(st.integers(1, largest))
    m = draw(st.sampled_from([n, draw(st.integers(1, largest))]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    there = rng.random((n, m)) < draw(st.sampled_from([0.1, 0.3, 0.6, 1.0]))
    A = sp.csr_matrix(there.astype(float))
    weight = rng.integers(0, 4, A.nnz).astype(float) if draw(st.booleans()) else rng.standard_normal(A.nnz)
    return A.indptr, A.indices, weight, m


def matched(form, graph):
    indptr, indices, weight, m = graph
    columns, v = np.empty(indptr.size - 1, np.int64), np.empty(m)
    form.matching.lightest_matching(indptr, indices, weight, columns, v)
    return columns, v


def total(graph, columns):
    indptr, indices, weight, _ = graph
    entries = {(i, indices[p]): weight[p] for i in range(columns.size) for p in range(indptr[i], indptr[i + 1])}
    return sum(entries[i, j] for i, j in enumerate(columns) if j >= 0)


@PATTERNS
@given(graph=weighted())
def test_as_many_rows_as_can_be_at_the_smallest_weight(graph):
    indptr, indices, weight, m = graph
    n = indptr.size - 1
    pattern = sp.csr_matrix((np.ones(indices.size), indices, indptr), (n, m))
    most = np.count_nonzero(maximum_bipartite_matching(pattern, perm_type="column") >= 0)
    for form in (cpu, reference):
        columns, v = matched(form, graph)
        taken = columns[columns >= 0]
        assert np.unique(taken).size == taken.size == most
        weight_of_all = total(graph, columns)  # of entries that are there
        if most == n == m:
            big = np.full((n, m), 1e6)
            big[np.repeat(np.arange(n), np.diff(indptr)), indices] = weight
            np.testing.assert_allclose(weight_of_all, big[linear_sum_assignment(big)].sum(), atol=1e-9)
        for i in range(n) if most == n else ():
            reduced = {indices[p]: weight[p] - v[indices[p]] for p in range(indptr[i], indptr[i + 1])}
            assert reduced[columns[i]] <= min(reduced.values()) + 1e-9


@PATTERNS
@given(n=st.integers(1, 30), seed=st.integers(0, 2**16), few=st.booleans())
def test_cut_cycles_are_those_of_the_specification(n, seed, few):
    rng = np.random.default_rng(seed)
    columns = rng.permutation(n)
    diagonal = rng.integers(0, 3, n).astype(float) if few else rng.random(n)
    found = []
    for form in (cpu, reference):
        order, first = np.full(n, -1), np.zeros(n, np.bool_)
        form.matching.cut_cycles(columns, diagonal, order, first)
        found.append((order, first))
    for mine, its in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, its)
    order, first = found[0]
    assert sorted(order) == list(range(n))
    for p in np.flatnonzero(first):
        i, j = order[p], order[p + 1]
        assert i < j and not first[p + 1] and (columns[i] == j or columns[j] == i)


@PATTERNS
@given(n=st.integers(1, 40), edges=st.integers(0, 60), seed=st.integers(0, 2**16))
def test_connected_parts_are_those_of_the_specification_and_of_scipy(n, edges, seed):
    rows, columns = np.random.default_rng(seed).integers(0, n, (2, edges))
    found = []
    for form in (cpu, reference):
        part = np.empty(n, np.int64)
        found.append((form.matching.connected_parts(rows, columns, part), part))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])
    count, want = connected_components(sp.coo_matrix((np.ones(edges), (rows, columns)), shape=(n, n)), directed=False)
    assert found[0][0] == count
    assert len(set(zip(want, found[0][1], strict=True))) == count  # the same parts, whatever their numbers
