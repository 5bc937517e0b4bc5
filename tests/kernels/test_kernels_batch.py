"""The kernels of batches against their specification, on every device."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, assert_close, in_dtype, values

from finelu.kernels import cpu, kernels_for, reference
from finelu.kernels.operands import BatchPlan
from finelu.matrix import as_csr

N, K = 23, 37  # more than one group of 32, and not a full one


def system(dtype, complete):
    """(pattern, plan, values, b) of K systems with a full diagonal; the plan turns and scales rows and columns."""
    rng = np.random.default_rng(3)
    coupled = sp.random(N - 1, N - 1, 0.12, random_state=rng) + sp.diags(np.full(N - 1, 1.5))
    A = in_dtype(sp.block_diag([coupled, [[1.5]]]), dtype)  # the last row stands alone
    pattern = as_csr(A)
    data = pattern.data * (1 + 0.2 * values((K, pattern.nnz), dtype, 5))
    order = rng.permutation(N)
    numbered = sp.csr_matrix((np.arange(1.0, pattern.nnz + 1), pattern.indices, pattern.indptr), shape=(N, N))
    turned = as_csr(numbered[order][:, order])
    level = N if complete else 0
    indptr, indices, inside = cpu.fill.pattern_iluk(turned.indptr, turned.indices, level)
    places = np.zeros(len(indices), np.int32)
    weights = np.zeros(len(indices), A.real.dtype)
    scale = np.ldexp(1.0, rng.integers(-2, 3, N)).astype(A.real.dtype)
    row = np.repeat(np.arange(N), np.diff(indptr))
    indices = np.asarray(indices, np.int32)
    places[inside] = turned.data - 1
    weights[inside] = (scale[row] * scale[indices])[inside]
    diag = np.flatnonzero(row == indices).astype(np.int32)
    turn = order.astype(np.int32)
    plan = BatchPlan(np.asarray(indptr, np.int32), indices, diag, places, weights, turn, turn, scale, scale)
    return pattern, plan, data.astype(dtype), values((K, N), dtype, 7)


def both(backend, dtype, complete):
    """(kernels, their pattern, prepared plan, values and b, xp) of the device and of the specification."""
    pattern, plan, data, b = system(dtype, complete)
    there = BatchPlan(*(backend.move(part) for part in plan))
    kernels = kernels_for(there.weights).batch
    yield kernels, backend.move(pattern), kernels.prepared(there), backend.move(data), backend.move(b), backend.xp
    yield reference.batch, pattern, reference.batch.prepared(plan), data, b, np


def factored(kernels, plan, data, b, xp, entries, guard=0.0, positive=False):
    bad, replaced, x = xp.empty(K, np.int64), xp.empty(K, np.int64), xp.empty_like(b)
    lu = kernels.room(K, entries, data)
    with np.errstate(all="ignore"):
        kernels.factor(plan, data, guard, positive, lu, bad, replaced)
        kernels.solve(plan, lu, b, x)
    return x, bad, replaced


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("complete", [False, True])
def test_factors_and_solves(backend, dtype, complete):
    entries = system(dtype, complete)[1].indices.size
    (x, bad, replaced), (want, *_) = (
        factored(kernels, plan, data, b, xp, entries)
        for kernels, _, plan, data, b, xp in both(backend, dtype, complete)
    )
    assert (backend.fetch(bad) == -1).all() and not backend.fetch(replaced).any()
    assert_close(backend.fetch(x), want, 2000, scale=abs(want).max())


def test_one_right_hand_side_is_that_of_every_system(backend):
    kernels, _, plan, data, b, xp = next(both(backend, "float64", True))
    entries = system("float64", True)[1].indices.size
    bad, replaced, x, repeated = xp.empty(K, np.int64), xp.empty(K, np.int64), xp.empty_like(b), xp.empty_like(b)
    lu = kernels.room(K, entries, data)
    kernels.factor(plan, data, 0.0, False, lu, bad, replaced)
    kernels.solve(plan, lu, b[:1], x)
    kernels.solve(plan, lu, xp.ascontiguousarray(xp.repeat(b[:1], K, axis=0)), repeated)
    np.testing.assert_array_equal(backend.fetch(x), backend.fetch(repeated))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_pivots_that_are_zero_small_negative_or_not_finite(backend, dtype):
    """The last entry of the diagonal, alone in its row and column, is a pivot as it is."""
    pattern, plan, *_ = system(dtype, False)
    i, entries, found = N - 1, plan.indices.size, []
    for kernels, _, plan, data, b, xp in both(backend, dtype, False):
        data = data.copy()
        place = int(pattern.diag[i])
        for s, value in enumerate([0, np.nan, np.inf, -1]):
            data[s, place] = value
        _, bad, replaced = factored(kernels, plan, data, b, xp, entries)
        _, positive, _ = factored(kernels, plan, data, b, xp, entries, positive=True)
        _, _, guarded = factored(kernels, plan, data, b, xp, entries, guard=2.0)
        found.append([backend.fetch(v).tolist() for v in (bad, replaced, positive, guarded)])
    assert found[0] == found[1]
    bad, replaced, positive, guarded = found[0]
    assert bad[:4] == [i, i, i, -1] and set(bad[4:]) == {-1} and not any(replaced)
    assert positive[:4] == [i, i, i, i] and min(guarded[4:]) > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("most", [0, 2])
def test_direct_solves_with_refinement(backend, dtype, most):
    found = []
    for kernels, pattern, plan, data, b, xp in both(backend, dtype, True):
        x, real = xp.empty_like(b), b.real.dtype
        figures, counts = [xp.empty(K, real) for _ in range(3)], [xp.empty(K, np.int64) for _ in range(3)]
        limits, tolerance = (0.9, 4 * np.finfo(real).eps, most), xp.zeros(K, real)  # a guard that changes many pivots
        kernels.solve_direct(pattern, plan, data, b, limits, tolerance, x, *figures, *counts)
        found.append([backend.fetch(v) for v in (x, *figures, *counts)])
    (x, norms, roundings, errors, steps, bad, replaced), want = found
    pattern, _, data, b = system(dtype, True)
    assert (bad == -1).all()
    np.testing.assert_array_equal(replaced, want[6])
    assert replaced.any() and (steps.max() == most == want[4].max())
    eps = np.finfo(dtype).eps
    for s in range(K):
        A = pattern.with_values(data[s]).tosparse()
        r, sizes = b[s] - A @ x[s], abs(A) @ abs(x[s]) + abs(b[s])
        assert abs(np.linalg.norm(r) - norms[s]) <= 2 * roundings[s] + 100 * eps * norms[s]
        assert abs((abs(r) / sizes).max() - errors[s]) <= 100 * eps * max(1, errors[s])
        wanted = np.linalg.norm((np.diff(pattern.indptr) + 1) * eps * sizes)
        np.testing.assert_allclose(roundings[s], wanted, rtol=100 * eps)
    if most == 0:
        assert_close(x, want[0], 4000, scale=abs(want[0]).max())
    else:
        without = backend.fetch(norms)
        assert (without <= want[1] * 1.5 + 100 * eps * abs(b).max()).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_in_twice_the_precision(backend, dtype):
    """x is the rounded solution of a dense solve, of which a residual in working precision has no digit."""
    pattern, _, data, b = system(dtype, True)
    x = np.empty_like(b)
    for s in range(K):
        x[s] = np.linalg.solve(pattern.with_values(data[s]).tosparse().toarray(), b[s])
    which, found = np.array([0, 5, 36]), []
    for kernels, xp in ((kernels_for(backend.move(b)).batch, backend.xp), (reference.batch, np)):
        move = backend.move if xp is backend.xp else np.asarray
        norms = xp.empty(3)
        kernels.residual_twice(move(pattern) if xp is backend.xp else pattern, *map(move, (data, b, x, which)), norms)
        found.append(backend.fetch(norms))
    np.testing.assert_allclose(*found, rtol=2 * np.finfo(dtype).eps)  # the specification rounds each element
