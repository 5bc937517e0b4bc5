"""Specifications of plans and of limits: the CPU's forms give the same bits, or what the definition asks for."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, dominant_matrices, values
from hypothesis import given
from hypothesis import strategies as st

from finelu import MatrixError, gallery
from finelu.kernels import cpu, reference
from finelu.kernels.operands import CSR
from finelu.matrix import as_csr
from finelu.triangular import triangle


def indefinite(n, dtype, hermitian, seed):
    """A symmetric or Hermitian CSR with zeros on its diagonal, not all of them stored."""
    rng = np.random.default_rng(seed)
    M = np.where(rng.random((n, n)) < 0.3, values((n, n), dtype, seed), 0)
    M = M + (M.conj().T if hermitian else M.T)
    M[np.diag_indices(n)] *= rng.random(n) >= 0.5
    M = sp.csr_matrix(M.astype(dtype))
    M.sort_indices()
    return CSR(M.indptr, M.indices, M.data, None)


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@PATTERNS
@given(
    n=st.integers(1, 16),
    seed=st.integers(0, 2**16),
    drop_tol=st.sampled_from([0.0, 0.1, 0.5]),
    condest=st.sampled_from([1.5, 5.0]),
)
def test_the_symmetric_schur_complement(dtype, hermitian, n, seed, drop_tol, condest):
    A = indefinite(n, dtype, hermitian, seed)
    pairs = np.zeros(n, np.uint8)
    interface = n - n // 4
    pairs[0 : max(interface - 1, 0) : 2] = 1
    room = np.full(n, n)
    factors = cpu.crout_symmetric.crout_symmetric(
        A, pairs, np.array([0, interface]), 0.0, condest, 0.1, room, hermitian
    )
    got = cpu.crout_symmetric.schur_complement_symmetric(A, factors, drop_tol, hermitian)
    want = reference.crout_symmetric.schur_complement_symmetric(A, factors, drop_tol, hermitian)
    for mine, its in zip(got, want, strict=True):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_plan_of_a_selection(dtype):
    x = values(5000, dtype)
    for order in ("values", "magnitudes"):
        mine, its = (form.selection.Selection(6000, dtype, order=order) for form in (cpu, reference))
        for request in ({"rank": 0}, {"rank": 4999}, {"rank": 5000}, {"keep": 10}, {"keep": 9000}):
            assert mine.select(x, **request) == its.select(x, **request), request
            assert mine.below == its.below and mine.out.dtype == its.out.dtype and mine.result() == its.result()
        assert mine.select(x, 7, count=20) == its.select(x, 7, count=20)


def test_a_plan_of_a_selection_by_the_median_of_thresholds():
    x = values(150_000, "float64")
    mine, its = (form.selection.Selection(x.size, "float64", exact=False) for form in (cpu, reference))
    assert mine.select(x, 40_000) == its.select(x, 40_000) and mine.below == its.below


def test_a_plan_of_a_selection_names_the_first_nan():
    x = np.array([1.0, np.nan, 2.0, np.nan])
    for form in (cpu, reference):
        plan = form.selection.Selection(4, "float64")
        assert plan.select(x, 1) == np.inf
        with pytest.raises(MatrixError, match=r"values\[1\]"):
            plan.check()


def test_a_plan_of_a_triangle_names_the_first_zero_of_the_diagonal():
    A = as_csr(sp.csr_matrix(np.tril(np.ones((5, 5)))))
    A.data[A.diag[[2, 4]]] = 0
    for form in (cpu, reference):
        assert form.triangular.triangular_plan(triangle(A, True, False), "auto", 1).load(A.data) == 2


@PATTERNS
@given(A=dominant_matrices(hermitian=True), share=st.sampled_from([0.3, 0.8, 1.0, 1.5]))
def test_thresholds_stop_where_there_would_be_too_many_entries(A, share):
    A = as_csr(A)
    tau, most = np.full(A.n, 1e-3), max(1, int(share * A.nnz))
    made, (L, U) = cpu.threshold.ilut(A, tau, 2.0, most), reference.threshold.ilut(A, tau, 2.0, most)
    assert made.rows == len(U) == len(L)
    made, (L, U) = (
        cpu.threshold.ilut_crout(A, tau, tau, 2.0, most),
        reference.threshold.ilut_crout(A, tau, tau, 2.0, most),
    )
    assert made.rows == len(U) == len(L)
    lower = sp.csr_matrix(sp.tril(sp.csr_matrix((A.data, A.indices, A.indptr))))
    lower.sort_indices()
    lower = CSR(lower.indptr, lower.indices, lower.data, lower.indptr[1:] - 1)
    made, columns = cpu.threshold.ict(lower, tau, 2.0, most), reference.threshold.ict(lower, tau, 2.0, most)
    assert made.rows == len(columns)


@pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
def test_a_limit_of_candidates_keeps_those_of_the_largest_products(share):
    A = as_csr(gallery.problem("poisson5:8"))
    F = A.with_values(A.data * (1 + 0.1 * values(A.nnz, "float64")))  # so that products differ in size
    everything = reference.candidates.candidates(A, F)
    most = int(share * everything[1].size)
    want, got = (form.candidates.candidates(A, F, most=most) for form in (reference, cpu))
    assert got[1].size <= want[1].size <= most
    assert want[4] == everything[1].size - want[1].size and got[4] == everything[1].size - got[1].size
    places = [set(zip(np.repeat(np.arange(A.n), np.diff(found[0])), found[1])) for found in (got, want)]
    assert places[0] <= places[1]
