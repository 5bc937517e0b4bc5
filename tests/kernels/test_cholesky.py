"""Complete factors by the subtrees of an elimination tree: by definition, by twin, by threads, by singular matrices."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import assert_close

import finelu as fl
from finelu import gallery
from finelu.kernels import cpu, reference
from finelu.matrix import as_csr, without_zeros
from finelu.ordering import OrderingJob, elimination_tree

CASES = ("poisson5:7,5", "poisson5:40,33", "poisson7:9", "convection_diffusion:6,peclet=0", "tridiagonal:50")


def hermitian(name, dtype):
    S = gallery.problem(name).astype(dtype).tocsr()
    if dtype == np.complex128:
        phases = sp.diags_array(np.exp(1j * np.arange(S.shape[0])))
        S = (phases @ S @ phases.conj()).tocsr()
    S.sort_indices()
    return S


def factors(S, form):
    A = without_zeros(as_csr(S))
    order = OrderingJob(A, aside=False).found()[1]
    return form.cholesky.Cholesky(A.indptr, A.indices, order, elimination_tree(A, order)), A


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("name", CASES)
def test_solutions_and_pivots_are_those_of_the_specification(name, dtype):
    S = hermitian(name, dtype)
    rng = np.random.default_rng(0)
    weights, g = rng.uniform(0.5, 2, S.shape[0]), rng.standard_normal(S.shape[0]).astype(dtype)
    found = []
    for form in (cpu, reference):
        F, A = factors(S, form)
        pivots, x = F.factor(A.data, weights), np.empty_like(g)
        F.solve(g, x)
        found.append((pivots, x))
    (pivots, x), (want_pivots, want) = found
    assert_close(pivots, want_pivots, 256)
    assert_close(x, want, 1e4)
    assert np.linalg.norm(S @ x - g) < 1e-11 * np.linalg.norm(g) * abs(S).max() * abs(x).max()


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_threads_find_the_same_bits(monkeypatch, threads, dtype):
    module = fl.kernels.cpu.cholesky
    monkeypatch.setattr(module, "threads_for", lambda work, alone: fl.threads.get_num_threads())
    S, found = hermitian("poisson5:60,50", dtype), []
    g = np.random.default_rng(1).standard_normal(S.shape[0]).astype(dtype)
    for number in (1, 2, 5, 5):
        threads(number)
        F, A = factors(S, cpu)
        pivots, x = F.factor(A.data, np.ones(S.shape[0])), np.empty_like(g)
        F.solve(g, x)
        found.append((pivots.tobytes(), x.tobytes()))
    assert F._starts.size > 8 and F._below < S.shape[0]  # several subtrees, and rows above them
    assert len(set(found)) == 1


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("k", [1, 3, 8, 13])
def test_columns_have_the_bits_that_they_have_alone(monkeypatch, threads, dtype, k):
    monkeypatch.setattr(fl.kernels.cpu.cholesky, "threads_for", lambda work, alone: fl.threads.get_num_threads())
    S = hermitian("poisson5:40,33", dtype)
    rng = np.random.default_rng(2)
    g = np.asfortranarray(rng.standard_normal((S.shape[0], k)).astype(dtype))
    weights = rng.uniform(0.5, 2, S.shape[0])
    weights[7] = 0
    for number, out_dtype in ((1, dtype), (3, np.result_type(dtype, np.complex64)), (2, dtype)):
        threads(number)
        F, A = factors(S, cpu)
        F.factor(A.data, weights)
        together, want = np.empty(g.shape, out_dtype), np.empty(g.shape, out_dtype, order="F")
        F.solve(g, together)
        for c in range(k):
            F.solve(g[:, c].copy(), want[:, c])
        np.testing.assert_array_equal(together, want)
    specified, A = factors(hermitian("poisson5:7,5", dtype), reference)
    specified.factor(A.data, np.ones(35))
    x = np.empty((35, k), dtype)
    specified.solve(g[:35], x)
    assert_close(A.tosparse() @ x, g[:35], 1e4)


def test_a_row_without_weight_is_that_of_the_identity():
    S = hermitian("poisson5:12,9", np.float64)
    weights, g = np.ones(S.shape[0]), np.arange(1.0, S.shape[0] + 1)
    weights[[3, 50]] = 0
    F, A = factors(S, cpu)
    pivots, x = F.factor(A.data, weights), np.empty_like(g)
    F.solve(g, x)
    kept = weights > 0
    assert (pivots[~kept] == 1).all() and (x[~kept] == 0).all()
    assert_close(S[kept][:, kept] @ x[kept], g[kept], 1e4, scale=g.max())


def test_a_dependent_row_has_a_pivot_of_rounding():
    S = hermitian("poisson5:12,9", np.float64)
    S = sp.csr_array(S - sp.diags_array(np.asarray(S.sum(axis=1)).ravel()))  # rows that add up to 0
    pivots = np.sort(factors(S, cpu)[0].factor(as_csr(S).data, np.ones(S.shape[0])))
    assert abs(pivots[0]) < 1e-13 < 0.05 < pivots[1]


def general(name, dtype):
    """Another matrix with the pattern of `hermitian`, and the values of its adjoint in this pattern."""
    S = hermitian(name, dtype)
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    factor = np.where(S.indices == rows, 1.5, 1 + 0.4 * np.sin(rows + 3.0 * S.indices))
    if dtype == np.complex128:
        factor = factor + 0.1j * np.cos(rows * S.indices)
    S = sp.csr_array((S.data * factor, S.indices, S.indptr), S.shape)
    T = S.conj().T.tocsr()
    T.sort_indices()
    assert (T.indices == S.indices).all()
    return S, T.data


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("name", CASES)
def test_general_solutions_and_pivots_are_those_of_the_specification(name, dtype):
    S, opposite = general(name, dtype)
    rng = np.random.default_rng(3)
    weights, g = rng.uniform(0.5, 2, S.shape[0]), rng.standard_normal(S.shape[0]).astype(dtype)
    weights[3] = 0
    found = []
    for form in (cpu, reference):
        F, A = factors(S, form)
        pivots = F.factor(A.data, weights, opposite)
        solutions = [np.empty_like(g) for _ in range(2)]
        for adjoint, x in enumerate(solutions):
            F.solve(g, x, bool(adjoint))
        found.append((pivots, solutions))
    (pivots, solutions), (want_pivots, want) = found
    assert pivots.dtype == dtype and pivots[3] == 1
    assert_close(pivots, want_pivots, 256)
    kept = weights > 0
    for x, expected, B in zip(solutions, want, (S, S.conj().T.tocsr()), strict=True):
        assert_close(x, expected, 1e4)
        left = B[kept][:, kept] @ x[kept] - g[kept]
        assert x[3] == 0 and np.linalg.norm(left) < 1e-11 * np.linalg.norm(g) * abs(S).max() * abs(x).max()


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_threads_find_the_same_bits_of_general_factors(monkeypatch, threads, dtype):
    monkeypatch.setattr(fl.kernels.cpu.cholesky, "threads_for", lambda work, alone: fl.threads.get_num_threads())
    (S, opposite), found = general("poisson5:60,50", dtype), set()
    G = np.random.default_rng(4).standard_normal((S.shape[0], 3)).astype(dtype)
    for number in (1, 2, 5):
        threads(number)
        F, A = factors(S, cpu)
        F.factor(A.data, np.ones(S.shape[0]), opposite)
        for adjoint in (False, True):
            together, alone = np.empty_like(G), np.empty(G.shape, dtype, order="F")
            F.solve(G, together, adjoint)
            for c in range(G.shape[1]):
                F.solve(G[:, c].copy(), alone[:, c], adjoint)
            np.testing.assert_array_equal(together, alone)
            found.add((adjoint, together.tobytes()))
    assert len(found) == 2
