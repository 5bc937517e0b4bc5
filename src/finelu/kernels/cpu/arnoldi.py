"""The Arnoldi process and the small least-squares problem of GMRES.

Q (n, m + 1) in Fortran order holds the basis, H (m + 1, m) in Fortran order the Hessenberg matrix, whose columns become
those of the triangular factor R; c (m,) and s (m,) the Givens rotations, g (m + 1,) the rotated right-hand side.
v (n,) is the newest vector of the basis once more. The column j of a step is state[COLUMNS]. `state`, `norms` and
`history` are described in kernels/monitor.py.
"""

from __future__ import annotations

import math

import numpy as np

from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled, summing
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.vectors import CHUNK, SHARED, chunks, inner, length, subtract
from finelu.kernels.monitor import (
    BROKEN,
    CLAIM,
    CLAIMED,
    CODE,
    COLUMNS,
    ITERATIONS,
    NORM,
    NOT_FINITE,
    RUNNING,
)

ROWS = 1024  # that `combine` goes over the columns with; they stay in the first cache
REORTHOGONALIZE = 0.99  # tau of Figure 2: the squared cosine above which a vector is orthogonalized again


@compiled
def arnoldi_begin(state, norms, r, Q, g, v):
    """v = Q[:, 0] = r / ||r||, g[0] = ||r||; norms[NORM] is ||r||."""
    if state[CODE] != RUNNING:
        return
    g[0] = norms[NORM]
    for i in range(r.size):
        Q[i, 0] = r[i] / norms[NORM]
        v[i] = Q[i, 0]


@compiled
def keep_column(state, z, Z):
    """Z[:, j] = z."""
    if state[CODE] != RUNNING:
        return
    column = Z[:, state[COLUMNS]]
    for i in range(z.size):
        column[i] = z[i]


@compiled
def mgs_step(state, Q, w, H, v):
    """Orthogonalize w against Q[:, :j + 1] by modified Gram-Schmidt with selective reorthogonalization.

    Writes H[:j + 2, j] and the unit vector v = Q[:, j + 1]; w may be v. A remainder below rounding (eps times what came
    in) counts as 0: H[j + 1, j] = 0 and Q[:, j + 1] = 0. Cost: j + 1 dot products and updates, twice as many where all
    are repeated.
    Source: Figure 2 of Aliaga, Dufrechou, Ezzatti & Quintana-Orti 2019 (K0 to K5).
    """
    if state[CODE] != RUNNING:
        return
    j = state[COLUMNS]
    z = Q[:, j + 1]
    for i in range(w.size):
        z[i] = w[i]
    incoming = length(z)  # K0; what follows is relative to it, so that no square leaves the range
    omega = 1.0
    for i in range(j + 1):
        q = Q[:, i]
        h = inner(q, z)  # K1
        subtract(h, q, z)  # K2
        if _share(h, incoming) > omega * REORTHOGONALIZE:
            beta = inner(q, z)  # K3
            h += beta
            subtract(beta, q, z)  # K4
        H[i, j] = h
        omega = max(omega - _share(h, incoming), 0.0)
    _unit(z, incoming, H, j)  # K5
    for i in range(w.size):
        v[i] = z[i]


@compiled
def _share(h, incoming):
    """|h|^2 / incoming^2, 0 where nothing came in."""
    return (abs(h) / incoming) ** 2 if incoming > 0 else 0.0


@compiled
def _unit(z, incoming, H, j):
    """H[j + 1, j] = ||z||, z /= ||z||; both 0 where z is only the rounding of what came in."""
    rest = length(z)
    if rest <= np.finfo(z.dtype).eps * incoming:
        rest = 0.0
        z[:] = 0
    else:
        for i in range(z.size):
            z[i] /= rest
    H[j + 1, j] = rest


def cgs2_step(state, Q, w, H, v):
    """The same by classical Gram-Schmidt done twice, in four matrix-vector products. Threads change no bit.

    Orthogonal to rounding whenever the basis is numerically independent (Giraud, Langou & Rozloznik 2005).
    """
    if state[CODE] != RUNNING:
        return
    j = int(state[COLUMNS])
    z = Q[:, j + 1]
    z[:] = w
    basis = Q[:, : j + 1]
    part = np.empty(j + 1, z.dtype)
    incoming = length(z)
    H[: j + 1, j] = 0
    for _ in range(2):
        moments(basis, z, part)
        take_off(state, basis, part, z)
        H[: j + 1, j] += part
    _unit(z, incoming, H, j)
    v[:] = z


@compiled
def givens_step(state, norms, history, H, c, s, g):
    """Apply the rotations 0..j-1 to column j of H, make rotation j, apply it to g; |g[j + 1]| is the residual norm.

    A column that is not finite, or that is numerically dependent on those before it while the basis has ended (a
    singular operator), is not counted in state[COLUMNS]: the solution is then made from the columns before.
    """
    if state[CODE] != RUNNING:
        return
    j = state[COLUMNS]
    column = abs(H[0, j])
    for i in range(1, j + 2):
        column = np.hypot(column, abs(H[i, j]))
    for i in range(j):
        a, b = H[i, j], H[i + 1, j]
        H[i, j] = c[i] * a + s[i] * b
        H[i + 1, j] = c[i] * b - np.conj(s[i]) * a
    a, b = H[j, j], H[j + 1, j]
    size = abs(a)
    radius = np.hypot(size, abs(b))
    if not math.isfinite(column) or not math.isfinite(radius):
        state[CODE] = NOT_FINITE
        return
    if radius <= 4 * (j + 1) * np.finfo(norms.dtype).eps * column:
        state[CODE] = BROKEN
        return
    phase = a / size if size > 0 else a * 0 + 1
    c[j] = size / radius
    s[j] = phase * np.conj(b) / radius
    H[j, j] = phase * radius
    H[j + 1, j] = 0
    g[j + 1] = -np.conj(s[j]) * g[j]
    g[j] = c[j] * g[j]
    norms[NORM] = abs(g[j + 1])
    state[COLUMNS] = j + 1
    state[ITERATIONS] += 1
    history[state[ITERATIONS]] = norms[NORM]
    if norms[NORM] <= norms[CLAIM]:
        state[CODE] = CLAIMED


@compiled
def hessenberg_solve(state, H, g, y):
    """y[:k] = R^-1 g[:k] for the k = state[COLUMNS] columns that are ready; the rest of y is 0."""
    k = state[COLUMNS]
    for i in range(k, y.size):
        y[i] = 0
    for i in range(k - 1, -1, -1):
        total = g[i]
        for p in range(i + 1, k):
            total -= H[i, p] * y[p]
        y[i] = total / H[i, i]


@compiled
def combine(state, Q, y, u):
    """u = Q[:, :k] y[:k], k = state[COLUMNS]; columns from k on are not read, whatever they hold.

    Not BLAS: after a call its threads keep cores busy for a tenth of a second, which the next kernel needs.
    """
    k = state[COLUMNS]
    for begin in range(0, u.size, ROWS):
        part = u[begin : begin + ROWS]
        part[:] = 0
        for j in range(0, k - 3, 4):
            a, b = Q[begin : begin + ROWS, j], Q[begin : begin + ROWS, j + 1]
            c, d = Q[begin : begin + ROWS, j + 2], Q[begin : begin + ROWS, j + 3]
            ya, yb, yc, yd = y[j], y[j + 1], y[j + 2], y[j + 3]
            for i in range(part.size):
                part[i] += ya * a[i] + yb * b[i] + yc * c[i] + yd * d[i]
        for j in range(k - k % 4, k):
            a, ya = Q[begin : begin + ROWS, j], y[j]
            for i in range(part.size):
                part[i] += ya * a[i]


@compiled
def update_solution(state, u, x):
    """x += u; nothing where the cycle has no column."""
    if state[COLUMNS] == 0:
        return
    for i in range(x.size):
        x[i] += u[i]


@summing
def _four_inner(a, b, c, d, w, out):
    s, t, u, v = w[0] * 0, w[0] * 0, w[0] * 0, w[0] * 0
    for i in range(w.size):
        s += np.conj(a[i]) * w[i]
        t += np.conj(b[i]) * w[i]
        u += np.conj(c[i]) * w[i]
        v += np.conj(d[i]) * w[i]
    out[0], out[1], out[2], out[3] = s, t, u, v


@by_items
def _moments(t, Q, w, sums):
    """sums[t] = Q^H w over the rows of chunk t; four columns at a time, so that w is read a quarter as often."""
    begin, end, k = t * CHUNK, min((t + 1) * CHUNK, w.size), Q.shape[1]
    part, own = w[begin:end], sums[t]
    for j in range(0, k - 3, 4):
        a, b, c, d = Q[begin:end, j], Q[begin:end, j + 1], Q[begin:end, j + 2], Q[begin:end, j + 3]
        _four_inner(a, b, c, d, part, own[j : j + 4])
    for j in range(k - k % 4, k):
        own[j] = inner(Q[begin:end, j], part)


def moments(Q, w, y):
    """y = Q^H w: sums over chunks of rows, which threads share; the same bits on any number of them."""
    sums = np.empty((chunks(w.size), y.size), w.dtype)
    run_items(_moments, sums.shape[0], Q, w, sums, threads=None if w.size >= SHARED else 1)
    sums.sum(axis=0, out=y)


@by_items
def _take_off(t, Q, y, w):
    k = y.size
    for begin in range(t * CHUNK, min((t + 1) * CHUNK, w.size), ROWS):
        end = min(begin + ROWS, w.size)
        part = w[begin:end]
        for j in range(0, k - 3, 4):
            a, b, c, d = Q[begin:end, j], Q[begin:end, j + 1], Q[begin:end, j + 2], Q[begin:end, j + 3]
            ya, yb, yc, yd = y[j], y[j + 1], y[j + 2], y[j + 3]
            for i in range(part.size):
                part[i] -= ya * a[i] + yb * b[i] + yc * c[i] + yd * d[i]
        for j in range(k - k % 4, k):
            a, ya = Q[begin:end, j], y[j]
            for i in range(part.size):
                part[i] -= ya * a[i]


def take_off(state, Q, y, w):
    """w -= Q y, in one pass over w. Each row has one writer, so threads share the rows."""
    if state[CODE] == RUNNING:
        run_items(_take_off, chunks(w.size), Q, y, w, threads=None if w.size >= SHARED else 1)
