"""The steps of BiCGStab(l) between two products. The specification.

R (n, l), U (n, l + 1), W (n, l) and V (n, l - 1) hold, by columns, the residual and its products with A M^-1, the same
of the direction, and M^-1 times the columns of U and R; V and W are None without a preconditioner, whose columns are
then those of R and U. rho (l,) and sigma (l,): r_j and A M^-1 u_j times the shadow residual. gamma (l,): of the
minimal-residual polynomial. `state`, `norms` and `history` are described in kernels/monitor.py.
In every step: nothing changes once state[CODE] is not RUNNING, nor, in the rest of an iteration, once a sigma is 0.
Source: Sleijpen & Fokkema 1993; Sleijpen & van der Vorst 1995 for the polynomial.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.monitor import ANGLE, BROKEN, CODE, NORM
from finelu.kernels.reference.recurrences import eps_of, keep, record, running
from finelu.kernels.reference.vectors import length


def stopped(sigma, steps) -> bool:
    """Whether the first `steps` steps of bicg cannot all be taken."""
    return bool((sigma[:steps] == 0).any())


def direction(state, rho, sigma, omega, w, z, R, U, V, W, j):
    """Step j of bicg, first half: R_j = w and V_(j-1) = z where j > 0; U_i = R_i - beta U_i for i <= j, and so W_i.

    w = A M^-1 r_(j-1) and z = M^-1 r_(j-1); not read where j = 0.
    """
    if not running(state) or stopped(sigma, j):
        return
    if j == 0:
        beta = -rho[0] / sigma[-1] / omega[0]
    else:
        beta = rho[j] / sigma[j - 1]
        R[:, j] = w
        if V is not None:
            V[:, j - 1] = z
    for i in range(j + 1):
        U[:, i] = R[:, i] - beta * U[:, i]
        if V is not None and i < j:
            W[:, i] = V[:, i] - beta * W[:, i]


def bicg_step(state, rho, sigma, w, z, x, best, R, U, V, W, size, j):
    """Second half: U_(j+1) = w, W_j = z, alpha = rho_j / sigma_j, R_i -= alpha U_(i+1) for i <= j, V_i for i < j, and
    x += alpha M^-1 u_0; size = ||r_0|| if that is larger: residuals in between leave their rounding in x, too.

    w = A M^-1 u_j, z = M^-1 u_j. x is kept in `best` in the first step, if it is better than all earlier iterates.
    """
    if not running(state) or stopped(sigma, j + 1):
        return
    if j == 0:
        keep(state, x, best)
    alpha = rho[j] / sigma[j]
    U[:, j + 1] = w
    if W is not None:
        W[:, j] = z
    for i in range(j + 1):
        R[:, i] -= alpha * U[:, i + 1]
        if V is not None and i < j:
            V[:, i] -= alpha * W[:, i + 1]
    x += alpha * (U if W is None else W)[:, 0]
    size[0] = np.fmax(size[0], length(R[:, 0]))


def gram(state, sigma, w, R, G):
    """G (l + 1, l + 1), in double precision: the inner products of the columns of R and of w = r_l."""
    if not running(state) or stopped(sigma, sigma.size):
        return
    columns = np.column_stack([R, w]).astype(G.dtype)
    G[:] = columns.conj().T @ columns


def polynomial(state, sigma, G, gamma, omega):
    """gamma of the least ||r_0 - sum gamma_i r_i||, omega = gamma_l made larger where it stands for a small cosine.

    Not by all r_i at once: y_0 = r_0 and y_l = r_l without their parts along r_1 to r_(l-1), of which those that depend
    on the ones before them are left out; r_0 = y_0 - omega y_l.
    """
    if not running(state) or stopped(sigma, sigma.size):
        return
    steps = gamma.size
    inner = slice(1, steps)
    first, last = (solved(G[inner, inner], G[inner, c]) for c in (0, steps))
    square_first = (G[0, 0] - np.vdot(G[inner, 0], first)).real
    square_last = (G[steps, steps] - np.vdot(G[inner, steps], last)).real
    product = G[steps, 0] - np.vdot(G[inner, steps], first)
    if square_last <= steps * eps_of(G.real) * G[steps, steps].real:
        factor = 0 * product
    else:
        factor = product / square_last
        cosine = abs(product) / np.sqrt(square_last) / np.sqrt(square_first) if square_first > 0 else 1.0
        if 0 < cosine < ANGLE:
            factor *= ANGLE / cosine
    gamma[: steps - 1] = first - factor * last
    gamma[steps - 1] = factor
    omega[0] = gamma[steps - 1]


def solved(Z, b):
    """Z^-1 b for a Hermitian positive semidefinite Z; 0 for a column that depends on those before it."""
    n = b.size
    L, d, y = np.eye(n, dtype=Z.dtype), np.zeros(n), b.copy()
    for i in range(n):
        d[i] = (Z[i, i] - sum(L[i, k] * d[k] * np.conj(L[i, k]) for k in range(i))).real
        if d[i] <= (n + 1) * eps_of(Z.real) * Z[i, i].real:
            d[i] = 0
        for a in range(i + 1, n):
            rest = Z[a, i] - sum(L[a, k] * d[k] * np.conj(L[i, k]) for k in range(i))
            L[a, i] = rest / d[i] if d[i] > 0 else 0
    for i in range(n):
        y[i] -= L[i, :i] @ y[:i]
    y = np.array([y[i] / d[i] if d[i] > 0 else 0 * y[i] for i in range(n)], Z.dtype)
    for i in reversed(range(n)):
        y[i] -= L[i + 1 :, i].conj() @ y[i + 1 :]
    return y


def minimize(state, norms, history, rho, sigma, gamma, omega, shadow, shadow_norm, w, z, x, R, U, V, size):
    """x += sum gamma_i M^-1 r_(i-1), r_0 -= sum gamma_i r_i, u_0 -= sum gamma_i u_i, and `record` of ||r_0||; then
    rho_0 = (r_0, shadow).

    w = r_l, z = M^-1 r_(l-1). BROKEN where a sigma is 0, with no iteration if it is the first and with the steps before
    it else, or where the next direction would be lost: as in `bicgstab_step`.
    """
    if not running(state):
        return
    if sigma[0] == 0:
        state[CODE] = BROKEN
        return
    steps, whole = gamma.size, not stopped(sigma, sigma.size)
    if whole:
        for i in range(steps):
            before = z if i == steps - 1 else (R if V is None else V)[:, i]
            x += gamma[i] * before
        for i in range(steps):
            R[:, 0] -= gamma[i] * (w if i == steps - 1 else R[:, i + 1])
            U[:, 0] -= gamma[i] * U[:, i + 1]
    norms[NORM] = length(R[:, 0])
    rho[0] = np.vdot(shadow, R[:, 0])
    record(state, norms, history, size)
    if not running(state):
        return
    lost = abs(rho[0]) <= eps_of(norms) * shadow_norm[0] * norms[NORM]
    if not whole or lost or omega[0] == 0 or not np.isfinite(rho[0] / sigma[-1] / omega[0]):
        state[CODE] = BROKEN
