"""Many systems of one pattern, each factored by one plan of places, without a search for pivots. The specification.

matrix : the pattern of all systems, whose values are the rows of `values` (k, nnz).  plan : a `BatchPlan`, `prepared`.
b (k, n), or (1, n) for all systems.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.operands import BatchPlan
from finelu.kernels.reference import products


def prepared(plan):
    """The plan as the kernels of this device take it."""
    return tuple(plan)


def room(systems, entries, like):
    """Room for the factors of that many systems, of the dtype of `like`; `solve` reads them."""
    return np.empty((systems, entries), like.dtype)


def factor(plan, values, guard, positive, lu, first_bad, replaced):
    """ILU(0) on the pattern of the plan: of complete factors that is the complete one. Saad 2003, Algorithm 10.4.

    lu of `room` receives L below and U above the diagonal, and the reciprocals of the pivots on it. A pivot below
    `guard` times the largest |a_ij| of its row is replaced by a number of that size; replaced (k,) counts them.
    first_bad (k,) : -1, or the first row of A whose pivot is zero, not finite or, if `positive`, not positive.
    Source of the replacement: X. S. Li, J. W. Demmel, SuperLU_DIST, 2003.
    """
    plan = BatchPlan(*plan)
    for s, a in enumerate(values):
        first_bad[s], replaced[s] = -1, 0
        for i, pivot in enumerate(plan.diag):
            own = range(plan.indptr[i], plan.indptr[i + 1])
            begins = [a[plan.places[p]] * plan.weights[p] if plan.weights[p] else a.dtype.type(0) for p in own]
            row = dict(zip(plan.indices[own.start : own.stop], begins, strict=True))
            largest = max(map(abs, row.values()))
            for p in range(plan.indptr[i], pivot):
                k = plan.indices[p]
                row[k] *= lu[s, plan.diag[k]]
                for q in range(plan.diag[k] + 1, plan.indptr[k + 1]):
                    if plan.indices[q] in row:
                        row[plan.indices[q]] -= row[k] * lu[s, q]
            size, least = abs(row[i]), guard * largest
            if size < least:
                row[i] = row[i] * (least / size) if size > 0 else row[i] + least
                replaced[s] += 1
            bad = not (size < np.inf and row[i] != 0) or (positive and not row[i].real > 0)
            if bad and first_bad[s] < 0:
                first_bad[s] = plan.rows[i]
            row[i] = 1 / row[i]
            lu[s, plan.indptr[i] : plan.indptr[i + 1]] = list(row.values())


def solve(plan, lu, r, x):
    """x = (L U)^-1 r for each system, in the order and the scaling of A.  r (k, n), or (1, n); x (k, n)."""
    plan = BatchPlan(*plan)
    n = plan.diag.size
    for s in range(x.shape[0]):
        y = r[min(s, r.shape[0] - 1)][plan.rows] * plan.row_scale
        for i in range(n):
            for p in range(plan.indptr[i], plan.diag[i]):
                y[i] -= lu[s, p] * y[plan.indices[p]]
        for i in range(n - 1, -1, -1):
            for p in range(plan.diag[i] + 1, plan.indptr[i + 1]):
                y[i] -= lu[s, p] * y[plan.indices[p]]
            y[i] *= lu[s, plan.diag[i]]
        x[s, plan.columns] = y * plan.column_scale


def residual_twice(matrix, values, b, x, which, norms):
    """norms[t] = ||b - A x||_2 of system which[t], its terms added up in twice the precision of float64."""
    for t, s in enumerate(which):
        r = np.empty_like(x[s])
        rhs = b[min(s, b.shape[0] - 1)]
        products.residual_twice(matrix.indptr, matrix.indices, values[s], x[s], rhs, 1.0, r)
        norms[t] = np.linalg.norm(r)


def _residual(matrix, a, b, x):
    """b - A x, its norm, the norm of its possible rounding, and the componentwise backward error, the largest
    |b - A x|_i / (|A| |x| + |b|)_i; NaN unless the norm is finite.

    The rounding of row i, with m entries, is at most (m + 1) eps (|A| |x| + |b|)_i (Higham 2002, section 3.5).
    """
    eps, least = np.finfo(x.dtype).eps, np.finfo(x.dtype).tiny
    r, sizes, terms = b.copy(), abs(b), np.diff(matrix.indptr) + 1
    for i in range(r.size):
        for p in range(matrix.indptr[i], matrix.indptr[i + 1]):
            r[i] -= a[p] * x[matrix.indices[p]]
            sizes[i] += abs(a[p] * x[matrix.indices[p]])
    norm = np.linalg.norm(r)
    error = (abs(r) / np.maximum(sizes, least)).max() if norm < np.inf else np.nan
    return r, norm, np.linalg.norm(terms * eps * sizes), error


def solve_direct(matrix, plan, values, b, limits, tolerance, x, norms, roundings, errors, steps, first_bad, replaced):
    """x (k, n) = A^-1 b by `factor` and `solve`, refined where that is wanted.

    limits : (guard, wanted, most). Up to `most` steps of refinement follow while the backward error of a system exceeds
        `wanted`, or its ||b - A x|| exceeds its tolerance (k,), and the last step has lowered the error. A step that
        has not is taken back. steps (k,) counts the others.
    norms, roundings and errors (k,) are those of this x, see `_residual`; first_bad and replaced those of `factor`.
    """
    guard, wanted, most = limits
    lu = room(len(values), len(plan[1]), values)
    factor(plan, values, guard, False, lu, first_bad, replaced)
    solve(plan, lu, b, x)
    for s in range(len(values)):
        rhs, steps[s] = b[min(s, b.shape[0] - 1)], 0
        r, *known = _residual(matrix, values[s], rhs, x[s])
        d = np.empty_like(x[:1])
        for _ in range(most):
            if not (known[2] > wanted or known[0] > tolerance[s]):
                break
            solve(plan, lu[s : s + 1], r[None], d)
            r, *figures = _residual(matrix, values[s], rhs, x[s] + d[0])
            if not figures[2] < known[2]:
                break
            x[s] += d[0]
            known = figures
            steps[s] += 1
        norms[s], roundings[s], errors[s] = known
