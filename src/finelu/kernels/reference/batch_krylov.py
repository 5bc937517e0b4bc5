"""Krylov methods for many systems of one pattern, each of which ends for itself. The specification.

Arguments as in kernels/reference/batch.py; plan and lu are those of factors M, of `factor`. x (k, n) receives the
solutions from x = 0. An iteration claims convergence by its own residual; a cycle ends there, where it breaks down, or
with the last column of a basis. b - A x is then formed anew, and another cycle follows if a system is above its
tolerance (k,), as long as each halves the norm.
norms, roundings, errors (k,) are of the returned x, see kernels/reference/batch.py:_residual.
iterations (k,), `most` of them at most.  code (k,) : one of kernels/monitor.py; RUNNING: `most` has been reached.
A system that ends with a norm above that at the begin of its last cycle, or with one that is not finite, gets back the
x of that begin.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.monitor import (
    BREAKDOWN,
    CONVERGED,
    INDEFINITE,
    INDEFINITE_PRECONDITIONER,
    NOT_FINITE,
    RUNNING,
    STAGNATED,
)
from finelu.kernels.reference import batch


def cg(matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code):
    """Saad 2003, Algorithm 9.1."""

    def cycle(A, M, r, x, tolerance, left):
        z = M(r)
        p, rho = z.copy(), np.vdot(r, z).real
        for step in range(1, left + 1):
            if not rho > 0:
                return step - 1, INDEFINITE_PRECONDITIONER
            q = A(p)
            curvature = np.vdot(p, q).real
            if not curvature > 0:
                return step - 1, INDEFINITE
            x += rho / curvature * p
            r -= rho / curvature * q
            if not np.linalg.norm(r) > tolerance:
                return step, RUNNING
            z = M(r)
            rho, old = np.vdot(r, z).real, rho
            p = z + rho / old * p
        return left, RUNNING

    _each(cycle, matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code)


def bicgstab(matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code):
    """Saad 2003, Algorithm 7.7, for A M^-1 and x = M^-1 u."""

    def cycle(A, M, r, x, tolerance, left):
        shadow, p, rho = r.copy(), r.copy(), np.vdot(r, r)
        for step in range(1, left + 1):
            p_hat = M(p)
            v = A(p_hat)
            sigma = np.vdot(shadow, v)
            if not abs(sigma) > 0:
                return step - 1, BREAKDOWN
            alpha = rho / sigma
            x += alpha * p_hat
            r -= alpha * v
            if not np.linalg.norm(r) > tolerance:
                return step, RUNNING
            s_hat = M(r)
            t = A(s_hat)
            size = np.vdot(t, t).real
            if not size > 0:
                return step, BREAKDOWN
            omega = np.vdot(t, r) / size
            x += omega * s_hat
            r -= omega * t
            if not np.linalg.norm(r) > tolerance:
                return step, RUNNING
            rho, old = np.vdot(shadow, r), rho
            if not abs(rho * omega) > 0:
                return step, BREAKDOWN
            p = r + rho / old * alpha / omega * (p - omega * v)
        return left, RUNNING

    _each(cycle, matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code)


def gmres(matrix, plan, lu, values, b, tolerance, most, restart, x, norms, roundings, errors, iterations, code):
    """Saad 2003, Algorithm 9.5, with modified Gram-Schmidt; a basis of `restart` vectors."""

    def cycle(A, M, r, x, tolerance, left):
        m = min(restart, left)
        basis, H, g = [r / np.linalg.norm(r)], np.zeros((m + 1, m), x.dtype), np.zeros(m + 1, x.dtype)
        c, s = np.zeros(m), np.zeros(m, x.dtype)
        g[0] = np.linalg.norm(r)
        columns = 0
        while columns < m:
            j = columns
            w = A(M(basis[j]))
            for i in range(j + 1):
                H[i, j] = np.vdot(basis[i], w)
                w -= H[i, j] * basis[i]
            below = np.linalg.norm(w)
            for i in range(j):
                H[i, j], H[i + 1, j] = c[i] * H[i, j] + s[i] * H[i + 1, j], c[i] * H[i + 1, j] - np.conj(s[i]) * H[i, j]
            size = np.hypot(abs(H[j, j]), below)
            if not size > 0:  # A M^-1 is singular on this space
                break
            c[j], s[j] = abs(H[j, j]) / size, below / size * (H[j, j] / abs(H[j, j]) if H[j, j] != 0 else 1)
            H[j, j] = c[j] * H[j, j] + s[j] * below
            g[j], g[j + 1] = c[j] * g[j], -np.conj(s[j]) * g[j]
            columns += 1
            if not abs(g[columns]) > tolerance or not below > 0:
                break
            basis.append(w / below)
        if columns:
            y = np.linalg.solve(H[:columns, :columns], g[:columns])
            x += M(sum(v * element for v, element in zip(basis, y)))
        return columns, BREAKDOWN if columns == 0 else RUNNING

    _each(cycle, matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code)


def _each(cycle, matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code):
    """cycle(A, M, r, x, tolerance, left) changes x, and returns its iterations and the reason for its end."""

    def product(a, v):
        rows = np.repeat(np.arange(v.size), np.diff(matrix.indptr))
        out = np.zeros_like(v)
        np.add.at(out, rows, a * v[matrix.indices])
        return out

    def solved(s, v):
        out = np.empty((1, v.size), v.dtype)
        batch.solve(plan, lu[s : s + 1], v[None], out)
        return out[0]

    for s, a in enumerate(values):
        rhs, start, steps, reason, kept = b[min(s, b.shape[0] - 1)], np.inf, 0, RUNNING, np.zeros_like(x[s])
        x[s] = 0
        with np.errstate(all="ignore"):
            while True:
                r, norm, *rest = batch._residual(matrix, a, rhs, x[s])
                if norm <= tolerance[s]:
                    reason = CONVERGED
                elif not norm < np.inf:
                    reason = NOT_FINITE
                elif reason in (RUNNING, BREAKDOWN) and steps < most and norm > start / 2:
                    reason = BREAKDOWN if reason == BREAKDOWN else STAGNATED
                elif reason in (RUNNING, BREAKDOWN) and steps < most:
                    start, kept = norm, x[s].copy()
                    taken, reason = cycle(
                        lambda v, a=a: product(a, v), lambda v, s=s: solved(s, v), r, x[s], tolerance[s], most - steps
                    )
                    steps += taken
                    continue
                elif reason == BREAKDOWN:
                    reason = RUNNING
                break
            if not norm <= start:
                x[s] = kept
                _, norm, *rest = batch._residual(matrix, a, rhs, kept)
        norms[s], (roundings[s], errors[s]), iterations[s], code[s] = norm, rest, steps, reason
