"""The Arnoldi process and the small least-squares problem of GMRES. The specification.

Q (n, m + 1) in Fortran order holds the basis, H (m + 1, m) in Fortran order the Hessenberg matrix, whose columns become
those of the triangular factor R; c (m,) and s (m,) the Givens rotations, g (m + 1,) the rotated right-hand side.
v (n,) is the newest vector of the basis once more, in a place that does not change with the column. The column j of a
step is state[COLUMNS]. `state`, `norms` and `history` are described in kernels/monitor.py.
"""

from __future__ import annotations

import numpy as np

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
from finelu.kernels.reference.vectors import length

REORTHOGONALIZE = 0.99  # tau of Figure 2: the squared cosine above which a vector is orthogonalized again


def arnoldi_begin(state, norms, r, Q, g, v):
    """beta = ||r||, g = beta e_1, v = Q[:, 0] = r / beta; norms[NORM] is ||r||."""
    if state[CODE] != RUNNING:
        return
    g[0] = norms[NORM]
    v[:] = Q[:, 0] = r / norms[NORM]


def keep_column(state, z, Z):
    """Z[:, j] = z. Z (n, m), in Fortran order."""
    if state[CODE] == RUNNING:
        Z[:, state[COLUMNS]] = z


def mgs_step(state, Q, w, H, v):
    """Orthogonalize w against Q[:, :j + 1] by modified Gram-Schmidt, some of it twice: v = Q[:, j + 1] is the rest.

    h_ij = (w, q_i), w -= h_ij q_i for i = 0..j, repeated for an i where |h_ij|^2 is more than 0.99 of the rest of
    ||w||^2; then h_(j+1),j = ||w|| and w /= ||w||. If w is only rounding of the incoming w, both are 0. The array w
    itself is not written; it may be v.
    Source: Figure 2 of Aliaga, Dufrechou, Ezzatti & Quintana-Orti 2019.
    """
    if state[CODE] != RUNNING:
        return
    j = state[COLUMNS]
    Q[:, j + 1] = w
    w = Q[:, j + 1]
    incoming, left = length(w), 1.0  # left: of ||w||^2, as a part of the incoming one
    for i in range(j + 1):
        q = Q[:, i]
        h = np.vdot(q, w)
        w -= h * q
        if _share(h, incoming) > left * REORTHOGONALIZE:
            again = np.vdot(q, w)
            w -= again * q
            h += again
        H[i, j] = h
        left = max(left - _share(h, incoming), 0.0)
    _unit(w, incoming, H, j)
    v[:] = w


def cgs2_step(state, Q, w, H, v):
    """As `mgs_step`, by classical Gram-Schmidt done twice: H[:j + 1, j] = Q^H w and w -= Q Q^H w."""
    if state[CODE] != RUNNING:
        return
    j = state[COLUMNS]
    Q[:, j + 1] = w
    w, basis = Q[:, j + 1], Q[:, : j + 1]
    incoming = length(w)
    H[: j + 1, j] = 0
    for _ in range(2):
        h = basis.conj().T @ w
        w -= basis @ h
        H[: j + 1, j] += h
    _unit(w, incoming, H, j)
    v[:] = w


def _share(h, incoming):
    return (abs(h) / incoming) ** 2 if incoming > 0 else 0.0


def _unit(w, incoming, H, j):
    rest = length(w)
    if rest <= np.finfo(w.dtype).eps * incoming:
        H[j + 1, j] = 0
        w[:] = 0
    else:
        H[j + 1, j] = rest
        w /= rest


def givens_step(state, norms, history, H, c, s, g):
    """Rotations 0..j-1 applied to column j of H; rotation j, which takes H[j + 1, j] to 0; |g[j + 1]| is ||b - A x||.

    A column that is not finite ends the solve. A column that depends on earlier ones, at the end of the basis (a
    singular operator), ends the cycle. Neither is counted in state[COLUMNS], so that x is made of the earlier columns.
    """
    if state[CODE] != RUNNING:
        return
    j = state[COLUMNS]
    size = 0.0
    for entry in H[: j + 2, j]:
        size = np.hypot(size, abs(entry))
    for i in range(j):
        a, b = H[i, j], H[i + 1, j]
        H[i, j], H[i + 1, j] = c[i] * a + s[i] * b, c[i] * b - np.conj(s[i]) * a
    a, b = H[j, j], H[j + 1, j]
    radius = np.hypot(abs(a), abs(b))
    if not np.isfinite(size) or not np.isfinite(radius):
        state[CODE] = NOT_FINITE
        return
    if radius <= 4 * (j + 1) * np.finfo(norms.dtype).eps * size:
        state[CODE] = BROKEN
        return
    phase = a / abs(a) if a != 0 else 1
    c[j] = abs(a) / radius
    s[j] = phase * np.conj(b) / radius
    H[j, j], H[j + 1, j] = phase * radius, 0
    g[j], g[j + 1] = c[j] * g[j], -np.conj(s[j]) * g[j]
    norms[NORM] = abs(g[j + 1])
    state[COLUMNS] = j + 1
    state[ITERATIONS] += 1
    history[state[ITERATIONS]] = norms[NORM]
    if norms[NORM] <= norms[CLAIM]:
        state[CODE] = CLAIMED


def hessenberg_solve(state, H, g, y):
    """y[:k] = R^-1 g[:k], of the least ||g - H y||, for the k = state[COLUMNS] columns that are ready; else y is 0."""
    k = state[COLUMNS]
    y[:] = 0
    for i in reversed(range(k)):
        y[i] = (g[i] - H[i, i + 1 : k] @ y[i + 1 : k]) / H[i, i]


def combine(state, Q, y, u):
    """u = Q[:, :k] y[:k], k = state[COLUMNS]; columns from k on are not read, whatever they hold."""
    k = state[COLUMNS]
    u[:] = Q[:, :k] @ y[:k]


def update_solution(state, u, x):
    """x += u; nothing if the cycle has no column."""
    if state[COLUMNS] > 0:
        x += u


def moments(Q, w, y):
    """y = Q^H w. Q (n, k), in Fortran order."""
    y[:] = Q.conj().T @ w


def take_off(state, Q, y, w):
    """w -= Q y. Q (n, k), in Fortran order."""
    if state[CODE] == RUNNING:
        w -= Q @ y
