"""Transposes, symmetric graphs and their cores: the CPU's form against the specification, and by definition."""

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


def graph_of(form, A, index="int32"):
    starts, columns = np.full(A.shape[0] + 1, -1, np.int64), np.empty(2 * A.nnz, index)
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


@PATTERNS
@given(A=patterns(), least=st.integers(0, 5), data=st.data())
def test_what_is_left_after_peeling_is_the_core(A, least, data):
    starts, columns = graph_of(cpu, A)
    n = A.shape[0]
    before = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    left, want = before.copy(), before.copy()
    cpu.graph.peel(starts, columns, left, least)
    reference.graph.peel(starts, columns, want, least)
    np.testing.assert_array_equal(left, want)
    assert not (left & ~before).any()
    S = sp.csr_matrix((np.ones(columns.size), columns, starts), A.shape)
    assert (S[left][:, left].sum(axis=1) >= least).all()
