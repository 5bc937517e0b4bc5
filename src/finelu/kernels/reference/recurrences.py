"""The steps of the Krylov methods between two products. The specification.

Vectors are (n,) of one dtype, scalars arrays of one element of it, or of its real dtype where they are norms. `state`,
`norms`, `history`, and the places in minres' `lanczos` and sqmr's `smoothing`, are described in kernels/monitor.py.
In every step: nothing changes once state[CODE] is not RUNNING; x is kept in `best` before it changes, if it is better
than all earlier iterates (state[IMPROVED]); state[CODE] names the reason if a step is not taken.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.monitor import (
    BEST,
    BETA,
    BETA_1,
    BROKEN,
    CLAIM,
    CLAIMED,
    CODE,
    COS,
    COS_OLD,
    DELTA,
    DIVERGED,
    DRIFT,
    EPSILON,
    GAMMA,
    GROWTH,
    IMPROVED,
    INDEFINITE,
    INDEFINITE_PRECONDITIONER,
    INVERSE,
    ITERATIONS,
    KEPT,
    LEFT,
    NORM,
    NOT_FINITE,
    PHI,
    PHI_BAR,
    RUNNING,
    SCALE,
    SIN,
    SIN_OLD,
    SIZE,
    TAKEN,
    TAU,
    THETA,
    UNIT,
    WW,
    WW_CROSS,
    WW_OLD,
    XW,
    XW_OLD,
    XX,
)
from finelu.kernels.reference.vectors import length

TRUSTED, LOST = 1e-4, 0.1  # largest rounding of x, as a part of the residual norm, to be kept as best, and at all


def running(state) -> bool:
    return state[CODE] == RUNNING


def keep(state, x, best) -> None:
    if state[IMPROVED]:
        best[:] = x


def eps_of(array):
    return np.finfo(array.dtype).eps


# The steps that methods share


def ratio(state, rho, sigma, size, alpha):
    """alpha = rho / sigma.

    size : the sum of the magnitudes of the terms of rho.
    BROKEN where there is no such number, or where rho is nothing but the rounding of its terms; NOT_FINITE where rho or
    sigma is not finite.
    """
    if not running(state):
        return
    if not np.isfinite(rho[0]) or not np.isfinite(sigma[0]):
        state[CODE] = NOT_FINITE
    elif sigma[0] == 0 or not np.isfinite(rho[0] / sigma[0]) or abs(rho[0]) <= eps_of(size) * size[0]:
        state[CODE] = BROKEN
    else:
        alpha[0] = rho[0] / sigma[0]


def advance(state, z, x, best):
    """x += z."""
    if not running(state):
        return
    keep(state, x, best)
    x += z


def direction(state, rho, rho_old, z, p, z_shadow, p_shadow):
    """beta = rho / rho_old, p = z + beta p, and p* = z* + conj(beta) p* in a method with shadow vectors, not None.

    rho, rho_old : of the dtype of the vectors, or of its real dtype.
    """
    if not running(state):
        return
    beta = rho[0] / rho_old[0]
    p[:] = z + beta * p
    if z_shadow is not None:
        p_shadow[:] = z_shadow + np.conj(beta) * p_shadow


def record(state, norms, history, size):
    """Take norms[NORM] as the residual norm of one more iteration.

    It goes into the history; state[IMPROVED] is 1 where it is the smallest, so that the next step keeps x before it
    changes x; at norms[CLAIM] or below the recurrence claims convergence. A norm that is not finite ends the solve, and
    its iteration is not counted. x is not kept as the best where norms[DRIFT] is beyond TRUSTED, and CLAIMED where it
    is beyond LOST. DIVERGED where the norm is beyond norms[GROWTH] times the first.
    size : the norm of a residual from which rounding errors of x come, or None. BROKEN where eps size has reached the
        best residual norm, since the rounding error of x is then as large as the best residual.
    """
    if not running(state):
        return
    norm = norms[NORM]
    state[IMPROVED] = 0
    if not np.isfinite(norm):
        state[CODE] = NOT_FINITE
        return
    if norm < norms[BEST] and norms[DRIFT] <= TRUSTED:
        norms[BEST] = norm
        state[IMPROVED] = 1
    state[ITERATIONS] += 1
    history[state[ITERATIONS]] = norm
    if norm <= norms[CLAIM] or not norms[DRIFT] <= LOST:
        state[CODE] = CLAIMED
    elif size is not None and eps_of(norms) * size[0] >= norms[BEST]:
        state[CODE] = BROKEN
    elif norm / norms[GROWTH] > history[0]:
        state[CODE] = DIVERGED


# Conjugate gradients: Saad 2003, Alg. 9.1


def cg_step(state, norms, history, rho, curvature, rho_old, p, q, x, best, r):
    """alpha = (r, z) / (A p, p), x += alpha p, r -= alpha q, and `record` of ||r||.

    rho = r^H z, curvature = p^H A p, q = A p. No step unless both are positive, as they are for positive definite A
    and M; then state says which is not.
    rho_old = rho, for `direction`.
    """
    if not running(state):
        return
    if not np.isfinite(rho[0]) or not np.isfinite(curvature[0]):
        state[CODE] = NOT_FINITE
    elif rho[0].real <= 0:
        state[CODE] = INDEFINITE_PRECONDITIONER
    elif curvature[0].real <= 0:
        state[CODE] = INDEFINITE
    else:
        keep(state, x, best)
        alpha = rho[0].real / curvature[0].real
        x += alpha * p
        r -= alpha * q
        norms[NORM] = length(r)
        record(state, norms, history, None)
    rho_old[:] = rho


def residual_step(state, norms, history, rho, curvature, rho_old, q, r, alpha, kept):
    """`cg_step` without x: r -= alpha q, and `record` of ||r||; `subdomains.step_and_direction` moves x.

    alpha : the factor, 0 if there is no step.  kept : 1 where x must be kept in `best` before it moves, else 0. That is
        where x is the best iterate and the next one is no better; one that is better is the best in its place.
    """
    improved, before, none = state[IMPROVED], np.zeros(1, r.dtype), np.zeros(1, r.dtype)
    cg_step(state, norms, history, rho, curvature, rho_old, before + 1, q, none, before, r)
    alpha[:] = none.real  # the step of a vector of one 1, from 0
    kept[:] = alpha[0] != 0 and improved and not state[IMPROVED]


# Biconjugate gradients: Saad 2003, Alg. 7.3


def bicg_step(state, alpha, p, q, q_shadow, x, best, r, r_shadow):
    """x += alpha p, r -= alpha A p, r* -= conj(alpha) A^H p*. q = A p, q_shadow = A^H p*."""
    if not running(state):
        return
    keep(state, x, best)
    x += alpha[0] * p
    r -= alpha[0] * q
    r_shadow -= np.conj(alpha[0]) * q_shadow


# Simplified QMR: Freund & Nachtigal 1994, smoothed as by Zhou & Walker 1994


def sqmr_smooth(state, smoothing, size):
    """theta = ||r|| / tau, c = 1 / sqrt(1 + theta^2), tau = tau theta c; size = ||r||.

    Weights for `sqmr_step`: KEPT = c^2 theta_old^2, TAKEN = c^2, LEFT = 1 - c^2 = (theta c)^2.
    """
    if not running(state):
        return
    if not np.isfinite(size[0]):
        state[CODE] = NOT_FINITE
        return
    theta_old, theta = smoothing[THETA], size[0] / smoothing[TAU]
    hypotenuse = np.hypot(smoothing.dtype.type(1), theta)
    c, s = 1 / hypotenuse, theta / hypotenuse
    smoothing[THETA] = theta
    smoothing[TAU] *= s
    smoothing[KEPT], smoothing[TAKEN], smoothing[LEFT] = (c * theta_old) ** 2, c * c, s * s


def sqmr_step(state, smoothing, alpha, p, r, d, x, best, s):
    """d = c^2 theta_old^2 d + c^2 alpha p, x += d, s = (1 - c^2) s + c^2 r: the residual of x."""
    if not running(state):
        return
    keep(state, x, best)
    d[:] = smoothing[KEPT] * d + smoothing[TAKEN] * alpha[0] * p
    x += d
    s[:] = smoothing[LEFT] * s + smoothing[TAKEN] * r


# BiCGSTAB: Saad 2003, Alg. 7.7


def bicgstab_half(state, rho, sigma, v, r):
    """alpha = rho / sigma, s = r - alpha v, which overwrites r. v = A M^-1 p, rho = (r, r0*), sigma = (v, r0*).

    Nothing where sigma is 0. sqmr takes it for r -= alpha A p, too.
    """
    if not running(state) or sigma[0] == 0:
        return
    alpha = rho[0] / sigma[0]
    r -= alpha * v


def stabilizer(ts, t_norm):
    """omega = t^H s / ||t||^2, of the least ||s - omega t||; 0 where t is 0. ts = t^H s, t_norm = ||t||."""
    return ts[0] / t_norm[0] / t_norm[0] if t_norm[0] != 0 else 0 * ts[0]


def bicgstab_step(state, norms, history, rho, sigma, ts, t_norm, shadow, shadow_norm, p, s, t, x, best, r):
    """x += alpha p + omega s, r -= omega t, and `record` of ||r||; then rho = (r, r0*) of the new r.

    p and s are preconditioned, t = A s, r is s before M, shadow is r0*. BROKEN where sigma = 0 keeps the step from
    being taken, or where the next direction would be lost: the cosine between r and r0* is below rounding, or omega, by
    which beta is divided, is 0 or so small that beta overflows.
    """
    if not running(state):
        return
    if sigma[0] == 0:
        state[CODE] = BROKEN
        return
    keep(state, x, best)
    alpha, omega = rho[0] / sigma[0], stabilizer(ts, t_norm)
    x += alpha * p + omega * s
    r -= omega * t
    norms[NORM] = length(r)
    rho[0] = np.vdot(shadow, r)
    record(state, norms, history, None)
    if not running(state):
        return
    lost = abs(rho[0]) <= eps_of(norms) * shadow_norm[0] * norms[NORM]
    if lost or omega == 0 or not np.isfinite(rho[0] / sigma[0] / omega):
        state[CODE] = BROKEN


def bicgstab_direction(state, rho, sigma, ts, t_norm, r, v, p):
    """beta = (rho / rho_old) (alpha / omega) = (rho / sigma) / omega, p = r + beta (p - omega v)."""
    if not running(state):
        return
    omega = stabilizer(ts, t_norm)
    beta = rho[0] / sigma[0] / omega
    p[:] = r + beta * (p - omega * v)


# MINRES: Paige & Saunders 1975; the numbers (1) to (7) are those of krylov/minres.py


def minres_lanczos(state, lanczos, alpha, p, v, v_old):
    """(2): v_old = p - alpha v - beta v_old, the next vector, not yet divided by its beta. p = A z."""
    if not running(state):
        return
    v_old[:] = p - alpha[0].real * v - lanczos[BETA] * v_old


def minres_rotation(state, norms, lanczos, alpha, square):
    """(3) to (5): column k of T through the rotations; square = beta_(k+1)^2 = v^H M^-1 v.

    NOT_FINITE, INDEFINITE_PRECONDITIONER where square < 0, BROKEN where gamma is only rounding: T, so A, is singular.
    """
    if not running(state):
        return
    if not np.isfinite(alpha[0]) or not np.isfinite(square[0]):
        state[CODE] = NOT_FINITE
        return
    if square[0].real < 0:
        state[CODE] = INDEFINITE_PRECONDITIONER
        return
    a, beta, beta_next = alpha[0].real, lanczos[BETA], np.sqrt(square[0].real)
    cos, sin, cos_old, sin_old = lanczos[COS], lanczos[SIN], lanczos[COS_OLD], lanczos[SIN_OLD]
    epsilon, above = sin_old * beta, cos_old * beta  # rotation k - 2
    delta, gamma_bar = cos * above + sin * a, cos * a - sin * above  # rotation k - 1
    gamma = np.hypot(gamma_bar, beta_next)
    column = np.hypot(np.hypot(beta, a), beta_next)
    if gamma <= 4 * eps_of(lanczos) * column:
        state[CODE] = BROKEN
        return
    lanczos[COS_OLD], lanczos[SIN_OLD] = cos, sin
    lanczos[COS], lanczos[SIN] = gamma_bar / gamma, beta_next / gamma
    phi = lanczos[COS] * lanczos[PHI_BAR]
    lanczos[PHI_BAR] *= -lanczos[SIN]
    lanczos[EPSILON], lanczos[DELTA], lanczos[GAMMA], lanczos[BETA] = epsilon, delta, gamma, beta_next
    lanczos[PHI] = phi / lanczos[SCALE]
    lanczos[INVERSE] = 1 / beta_next if beta_next > 0 else 0
    norms[DRIFT] = _drift(lanczos, phi, column)


def _drift(lanczos, phi, column):
    """The rounding of x, about eps ||A|| ||x||, relative to the residual phi_bar.

    Norms in that of M, in which z_k is a unit vector orthogonal to x_(k-1) and the w before it: from (6), with w w, x w
    and x x as the squares and products of w_k, w_(k-1) and x, in units of ||column 1 of T|| and of beta_1.
    """
    if lanczos[UNIT] == 0:
        lanczos[UNIT] = column
    unit, beta_1, gamma = lanczos[UNIT], lanczos[BETA_1], lanczos[GAMMA]
    fresh, d, e = unit / gamma, lanczos[DELTA] / gamma, lanczos[EPSILON] / gamma  # w = fresh z - d w_old - e w_older
    step = phi / beta_1  # x += step w
    ww_old, ww_older, cross_old = lanczos[WW], lanczos[WW_OLD], lanczos[WW_CROSS]
    xw_old, xw_older = lanczos[XW], lanczos[XW_OLD]
    ww = fresh * fresh + d * d * ww_old + 2 * d * e * cross_old + e * e * ww_older
    cross = -(d * ww_old + e * cross_old)
    along = -(d * xw_old + e * xw_older)  # the old x times w
    lanczos[WW], lanczos[WW_OLD], lanczos[WW_CROSS] = ww, ww_old, cross
    lanczos[XX] += 2 * step * along + step * step * ww
    lanczos[XW], lanczos[XW_OLD] = along + step * ww, xw_old + step * cross
    lanczos[SIZE] = max(lanczos[SIZE], column / unit)
    rounding = eps_of(lanczos) * lanczos[SIZE] * np.sqrt(abs(lanczos[XX]))
    return rounding / (abs(lanczos[PHI_BAR]) / beta_1) if rounding != 0 else 0


def minres_step(state, lanczos, y, v, z, w, w_old, x, best, r):
    """(6) with the new w, which overwrites w_old, (7), and the next v and z = M^-1 v, divided by beta. y = M^-1 v."""
    if not running(state):
        return
    keep(state, x, best)
    w_old[:] = (z - lanczos[EPSILON] * w_old - lanczos[DELTA] * w) / lanczos[GAMMA]
    x += lanczos[PHI] * w_old
    z[:] = lanczos[INVERSE] * y  # before v, which y is where there is no preconditioner
    v *= lanczos[INVERSE]
    r[:] = lanczos[SIN] * lanczos[SIN] * r + lanczos[PHI_BAR] * lanczos[COS] * v
