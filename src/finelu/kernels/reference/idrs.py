"""The steps of IDR(s) with biorthogonal residuals between two products. The specification.

P, G and U (n, s), by columns: the shadow space, products A U, and the directions U. Q (s, s) lower triangular: P^H G.
f (s,) = P^H r; c (s,): weights of the columns; omega (1,). state[COLUMNS] is the step k of a cycle of s + 1: s steps in
the old space, and the one with omega that enters the next. The same launch serves all of them.
`state`, `norms` and `history` are described in kernels/monitor.py.
In every step: nothing changes once state[CODE] is not RUNNING.
Source: van Gijzen & Sonneveld 2011, Alg. 2; Sleijpen & van der Vorst 1995 for omega.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.monitor import ANGLE, BROKEN, CODE, COLUMNS, NORM, RUNNING
from finelu.kernels.reference.recurrences import eps_of, keep, record, running
from finelu.kernels.reference.vectors import length

MASK = 2**64 - 1  # products of 64-bit integers are taken modulo 2^64


def scattered(key: int) -> int:
    """A 64-bit integer in which each bit depends on all of `key`. Source: Steele, Lea & Flood 2014 (SplitMix64)."""
    z = (key * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def between(key: int) -> float:
    """A number in [-1, 1)."""
    return (scattered(key) >> 11) * 2.0**-52 - 1


def draw(seed, first, P):
    """P_ij = a number in [-1, 1) that depends on seed, the row first + i and the column j; complex: two numbers."""
    n, s = P.shape
    for i in range(n):
        for j in range(s):
            key = 2 * (((first + i) * s + j) + seed * 2**40)
            P[i, j] = between(key) + (1j * between(key + 1) if P.dtype.kind == "c" else 0)


def begin(state, P, r, Q, f, c):
    """Where k = 0: f = P^H r, and c of step 0."""
    if not running(state) or state[COLUMNS] != 0:
        return
    f[:] = P.conj().T @ r
    weights(state, Q, f, c)


def weights(state, Q, f, c):
    """c[k:] of Q[k:, k:] c[k:] = f[k:], k = state[COLUMNS]; the rest of c is not changed."""
    for i in range(state[COLUMNS], f.size):
        c[i] = (f[i] - Q[i, state[COLUMNS] : i] @ c[state[COLUMNS] : i]) / Q[i, i]


def residual_part(state, G, c, r, v):
    """v = r - G[:, k:] c[k:]."""
    if not running(state):
        return
    k = state[COLUMNS]
    v[:] = r - G[:, k:] @ c[k:]


def direction(state, omega, U, c, z, u):
    """u = U[:, k:] c[k:] + omega z for k < s, else z. z = M^-1 v."""
    if not running(state):
        return
    k = state[COLUMNS]
    u[:] = U[:, k:] @ c[k:] + omega[0] * z if k < c.size else z


def orthogonality(state, P, w, r, Q, f, c, omega):
    """From w = A u: for k < s the weights c[:k] for which w - G[:, :k] c[:k] is orthogonal to the first k columns of P,
    the column k of Q, c[k] = f_k / Q_kk, and f[k + 1:] -= c[k] Q[k + 1:, k]. For k = s omega of the least
    ||r - omega w||, made larger where the cosine between r and w is small.

    BROKEN where there is no such number: the diagonal entry of Q is only the rounding of P_k^H w. Inf and NaN in w go
    on, to `record`.
    """
    if not running(state):
        return
    k, s = state[COLUMNS], f.size
    if k == s:
        square, product = np.vdot(w, w).real, np.vdot(w, r)
        cosine = abs(product) / np.sqrt(square) / length(r) if square != 0 else 0.0  # NaN goes on, to `record`
        if cosine == 0:
            state[CODE] = BROKEN
            return
        omega[0] = product / square * (ANGLE / cosine if cosine < ANGLE else 1.0)
        return
    d = P.conj().T @ w
    for i in range(k):
        c[i] = d[i] / Q[i, i]
        d[i + 1 :] -= c[i] * Q[i + 1 :, i]
    if abs(d[k]) <= eps_of(d.real) * length(w) < np.inf:
        state[CODE] = BROKEN
        return
    Q[k:, k] = d[k:]
    c[k] = f[k] / Q[k, k]
    f[k + 1 :] -= c[k] * Q[k + 1 :, k]


def step(state, norms, history, Q, f, c, omega, u, w, G, U, x, best, r, size):
    """For k < s: G_k = w - G[:, :k] c[:k] and U_k = u - U[:, :k] c[:k], x += c_k U_k, r -= c_k G_k. For k = s:
    x += omega u, r -= omega w. Then `record` of ||r||, k + 1 (0 after s) instead of k, and c of the next step.

    size : the largest ||r|| so far, whose rounding is left in x."""
    if not running(state):
        return
    keep(state, x, best)
    k, s = state[COLUMNS], f.size
    if k < s:
        G[:, k] = w - G[:, :k] @ c[:k]
        U[:, k] = u - U[:, :k] @ c[:k]
        x += c[k] * U[:, k]
        r -= c[k] * G[:, k]
    else:
        x += omega[0] * u
        r -= omega[0] * w
    norms[NORM] = length(r)
    size[0] = np.fmax(size[0], norms[NORM])
    record(state, norms, history, size)
    if state[CODE] == RUNNING:
        state[COLUMNS] = (k + 1) % (s + 1)
        if 0 < state[COLUMNS] < s:
            weights(state, Q, f, c)
