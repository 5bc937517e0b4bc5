"""The steps of IDR(s) between two products: one pass over the vectors each; see kernels/reference/idrs.py."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.recurrences import record
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.vectors import inner, length, subtract
from finelu.kernels.monitor import ANGLE, BROKEN, CODE, COLUMNS, IMPROVED, NORM, RUNNING

ROWS = 1024  # that a step goes over the columns with; they stay in the first cache


@compiled
def _between(key):
    z = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return np.float64(z >> np.uint64(11)) * 2.0**-52 - 1.0


@compiled
def _draw(seed, first, P, imaginary):
    n, s = P.shape
    for j in range(s):
        for i in range(n):
            key = 2 * (((first + i) * s + j) + seed * 2**40)
            P[i, j] = _between(key) + imaginary * _between(key + 1)


def draw(seed, first, P):
    """P_ij = a number in [-1, 1) that depends on seed, the row first + i and the column j; complex: two numbers."""
    _draw(seed, first, P, 1j if P.dtype.kind == "c" else 0.0)


@compiled
def begin(state, P, r, Q, f, c):
    """Where k = 0: f = P^H r, and c of step 0."""
    if state[CODE] != RUNNING or state[COLUMNS] != 0:
        return
    for i in range(f.size):
        f[i] = inner(P[:, i], r)
    _weights(0, Q, f, c)


@compiled
def _weights(k, Q, f, c):
    for i in range(k, f.size):
        total = f[i]
        for p in range(k, i):
            total -= Q[i, p] * c[p]
        c[i] = total / Q[i, i]


@compiled
def residual_part(state, G, c, r, v):
    """v = r - G[:, k:] c[k:]."""
    if state[CODE] != RUNNING:
        return
    for begin in range(0, v.size, ROWS):
        rows = slice(begin, begin + ROWS)
        part = v[rows]
        part[:] = r[rows]
        for j in range(state[COLUMNS], c.size):
            subtract(c[j], G[rows, j], part)


@compiled
def direction(state, omega, U, c, z, u):
    """u = U[:, k:] c[k:] + omega z for k < s, else z."""
    if state[CODE] != RUNNING:
        return
    k = state[COLUMNS]
    for begin in range(0, u.size, ROWS):
        rows = slice(begin, begin + ROWS)
        part, fresh = u[rows], z[rows]
        for i in range(part.size):
            part[i] = omega[0] * fresh[i] if k < c.size else fresh[i]
        for j in range(k, c.size):
            subtract(-c[j], U[rows, j], part)


@compiled
def orthogonality(state, P, w, r, Q, f, c, omega):
    """From w = A u: c[:k], column k of Q, c_k = f_k / Q_kk and f for k < s; omega for k = s."""
    if state[CODE] != RUNNING:
        return
    k, s = state[COLUMNS], f.size
    size = length(w)
    if k == s:
        product, other = inner(w, r), length(r)
        cosine = abs(product) / size / other if size != 0 and other != 0 else 0.0  # NaN goes on, to `record`
        if cosine == 0:
            state[CODE] = BROKEN
            return
        omega[0] = product / size / size * (ANGLE / cosine if cosine < ANGLE else 1.0)
        return
    d = np.empty_like(f)
    for i in range(s):
        d[i] = inner(P[:, i], w)
    for i in range(k):
        c[i] = d[i] / Q[i, i]
        for p in range(i + 1, s):
            d[p] -= c[i] * Q[p, i]
    if abs(d[k]) <= np.finfo(P.dtype).eps * size < np.inf:
        state[CODE] = BROKEN
        return
    for i in range(k, s):
        Q[i, k] = d[i]
    c[k] = f[k] / Q[k, k]
    for i in range(k + 1, s):
        f[i] -= c[k] * Q[i, k]


@compiled
def step(state, norms, history, Q, f, c, omega, u, w, G, U, x, best, r, size):
    """The new columns of G and U, x += c_k U_k, r -= c_k G_k, or the step with omega; `record` of ||r||; the next k."""
    if state[CODE] != RUNNING:
        return
    k, s, keep = state[COLUMNS], f.size, state[IMPROVED]
    for begin in range(0, x.size, ROWS):
        rows = slice(begin, begin + ROWS)
        if keep:
            best[rows] = x[rows]
        if k < s:
            g, d = G[rows, k], U[rows, k]
            g[:] = w[rows]
            d[:] = u[rows]
            for i in range(k):
                subtract(c[i], G[rows, i], g)
                subtract(c[i], U[rows, i], d)
            subtract(-c[k], d, x[rows])
            subtract(c[k], g, r[rows])
        else:
            subtract(-omega[0], u[rows], x[rows])
            subtract(omega[0], w[rows], r[rows])
    norms[NORM] = length(r)
    if norms[NORM] > size[0]:
        size[0] = norms[NORM]
    record(state, norms, history, size)
    if state[CODE] == RUNNING:
        state[COLUMNS] = (k + 1) % (s + 1)
        if 0 < state[COLUMNS] < s:
            _weights(state[COLUMNS], Q, f, c)
