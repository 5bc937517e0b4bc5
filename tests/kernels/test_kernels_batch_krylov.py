"""The Krylov methods of batches against their specification, on every device."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, in_dtype, values

from finelu import gallery
from finelu.kernels import kernels_for, monitor, reference
from finelu.kernels.operands import BatchPlan
from finelu.matrix import as_csr

K, N = 35, 20
METHODS = ("cg", "bicgstab", "gmres")


def ilu0(pattern, real):
    """The plan of ILU(0) in A's own order."""
    order, ones = np.arange(pattern.n, dtype=np.int32), np.ones(pattern.n, real)
    indptr, indices, diag = (v.astype(np.int32) for v in (pattern.indptr, pattern.indices, pattern.diag))
    places, weights = np.arange(pattern.nnz, dtype=np.int32), np.ones(pattern.nnz, real)
    return BatchPlan(indptr, indices, diag, places, weights, order, order, ones, ones)


def run(kernels, move, xp, method, A, data, b, rtol, most=200, restart=5):
    """x, norms, roundings, errors, iterations and codes, on the host."""
    pattern = as_csr(A)
    real = b.real.dtype
    plan = kernels.batch.prepared(BatchPlan(*map(move, ilu0(pattern, real))))
    matrix, data, there = move(pattern), move(data), move(b)
    bad, replaced = xp.empty(len(b), np.int64), xp.empty(len(b), np.int64)
    lu = kernels.batch.room(len(b), pattern.nnz, data)
    kernels.batch.factor(plan, data, 0.0, False, lu, bad, replaced)
    tolerance = move((rtol * np.linalg.norm(b, axis=1)).astype(real))
    x = xp.empty_like(there)
    figures, counts = [xp.empty(len(b), real) for _ in range(3)], [xp.empty(len(b), np.int64) for _ in range(2)]
    options = (restart,) if method == "gmres" else ()
    step = getattr(kernels.batch_krylov, method)
    step(matrix, plan, lu, data, there, tolerance, most, *options, x, *figures, *counts)
    return x, *figures, *counts


def both(backend, *given, **options):
    there = run(kernels_for(backend.move(np.empty(1))), backend.move, backend.xp, *given, **options)
    return [backend.fetch(v) for v in there], run(reference, lambda v: v, np, *given, **options)


def problem(method, dtype):
    A = gallery.poisson5(5, 4) if method == "cg" else gallery.convection_diffusion(5, 4, 1, peclet=9)
    A = in_dtype(A, dtype)
    data = np.tile(A.data, (K, 1))
    data[:, as_csr(A).diag] *= np.geomspace(1, 20, K)[:, None].astype(A.real.dtype)  # ever more dominant
    return A, data.astype(dtype), values((K, N), dtype, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_system_converges_as_by_the_specification(backend, method, dtype):
    A, data, b = problem(method, dtype)
    rtol = 1e-4 if np.finfo(dtype).eps > 1e-10 else 1e-9
    (x, norms, _, _, iterations, code), want = both(backend, method, A, data, b, rtol)
    assert (code == monitor.CONVERGED).all()
    assert abs(iterations - want[4]).max() <= 1 and len(set(iterations.tolist())) > 1  # each ends for itself
    for s in range(K):
        M = sp.csr_matrix((data[s], A.indices, A.indptr))
        size = np.linalg.norm(b[s] - M @ x[s])
        assert size <= 1.01 * rtol * np.linalg.norm(b[s])
        assert abs(size - norms[s]) <= 100 * np.finfo(dtype).eps * np.linalg.norm(b[s])


@pytest.mark.parametrize("method", METHODS)
def test_the_most_iterations(backend, method):
    A, data, b = problem(method, "float64")
    data, b = data[:10], b[:10]  # those that need more
    (x, norms, _, _, iterations, code), want = both(backend, method, A, data, b, 1e-12, most=2)
    assert (iterations == 2).all() and (code == monitor.RUNNING).all()
    np.testing.assert_allclose(norms, want[1], rtol=1e-6)
    assert (norms < np.linalg.norm(b, axis=1)).all() and np.isfinite(x).all()


@pytest.mark.parametrize("method", METHODS)
def test_systems_that_fail_beside_others(backend, method):
    """Zeros have no inverse, NaN no product, minus A is not positive, b = 0 is solved by 0: the others converge."""
    A, data, b = problem(method, "float64")
    data, b = data.copy(), b.copy()
    data[3] = 0
    data[11, 5] = np.nan
    data[20] *= -1
    b[30] = 0
    (x, norms, _, _, iterations, code), want = both(backend, method, A, data, b, 1e-9)
    np.testing.assert_array_equal(code, want[5])
    rest = np.setdiff1d(np.arange(K), [3, 11, 20])
    assert (code[rest] == monitor.CONVERGED).all() and not x[30].any() and iterations[30] == norms[30] == 0
    assert monitor.CONVERGED not in code[[3, 11]]
    assert (code[20] == monitor.CONVERGED) == (method != "cg")
    np.testing.assert_allclose(norms[3], np.linalg.norm(b[3]))
    assert np.isfinite(x).all()


def test_a_basis_of_one_vector_stagnates_or_converges_as_specified(backend):
    A, data, b = problem("gmres", "float64")
    got, want = both(backend, "gmres", A, data, b, 1e-9, restart=1)
    np.testing.assert_array_equal(got[5], want[5])
    assert abs(got[4] - want[4]).max() <= 1
