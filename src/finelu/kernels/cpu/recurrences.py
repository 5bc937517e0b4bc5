"""The steps of the Krylov methods between two products: one pass over the vectors each, and the stopping test in it.

`state`, `norms` and `history` are described in kernels/monitor.py. Scalars are arrays of one element, so that on the
GPU the same calls read them from device memory. Threads share the steps of cg and bicgstab of long vectors.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.vectors import CHUNK, SHARED, add_up, chunks, inner, length, shared, subtract
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

# The part of the residual norm that the rounding of x may be before an iterate is not kept for the best any more, and
# before the cycle ends. Directions between the two lose digits as the square of the condition (Sleijpen et al. 2000).
TRUSTED, LOST = 1e-4, 0.1


@compiled
def ratio(state, rho, sigma, size, alpha):
    """alpha = rho / sigma; BROKEN where rho or sigma is (nearly) nothing to divide by.

    size : the sum of the magnitudes of the terms of rho. The recurrence is lost once rho is below their rounding.
    """
    if state[CODE] != RUNNING:
        return
    eps = np.finfo(size.dtype).eps
    if not np.isfinite(rho[0]) or not np.isfinite(sigma[0]):
        state[CODE] = NOT_FINITE
    elif sigma[0] == 0 or not np.isfinite(rho[0] / sigma[0]) or abs(rho[0]) <= eps * size[0]:
        state[CODE] = BROKEN
    else:
        alpha[0] = rho[0] / sigma[0]


@compiled
def advance(state, z, x, best):
    """x += z."""
    if state[CODE] != RUNNING:
        return
    keep = state[IMPROVED]
    for i in range(x.size):
        if keep:
            best[i] = x[i]
        x[i] += z[i]


@compiled
def _turn(beta, z, p):
    for i in range(p.size):
        p[i] = z[i] + beta * p[i]


@by_items
def _direction_of_chunks(t, monitor, rho, rho_old, z, p, z_shadow, p_shadow):
    k = slice(t * CHUNK, min((t + 1) * CHUNK, p.size))
    if monitor[CODE] == RUNNING:
        beta = rho[0] / rho_old[0]
        _turn(beta, z[k], p[k])
        if z_shadow is not None:
            _turn(np.conj(beta), z_shadow[k], p_shadow[k])


def _long_direction(*arguments):
    run_items(_direction_of_chunks, chunks(arguments[4].size), *arguments)


@shared(_long_direction, 4)
@compiled
def direction(state, rho, rho_old, z, p, z_shadow, p_shadow):
    """p = z + beta p with beta = rho / rho_old, and p_shadow = z_shadow + conj(beta) p_shadow if these are not None."""
    if state[CODE] != RUNNING:
        return
    beta = rho[0] / rho_old[0]  # a division of complex numbers by 0 raises an exception
    _turn(beta, z, p)
    if z_shadow is not None:
        _turn(np.conj(beta), z_shadow, p_shadow)


@compiled
def record(state, norms, history, size):
    """Take norms[NORM] as the residual norm of one more iteration: history, best iterate, claim of convergence.

    x is kept as the best only while its rounding, norms[DRIFT], cannot hide in the residual, and given up beyond. Where
    x grows without end, as for a singular A and a b outside its range, the recurrence goes on to fall below the
    residual of any x.
    size : the norm of a residual that leaves its rounding in x, or None. The residual that is computed from x differs
        from the recurrence's by as much as the best one so far, once `size` has outgrown the precision.
    """
    if state[CODE] != RUNNING:
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
    elif size is not None and np.finfo(norms.dtype).eps * size[0] >= norms[BEST]:
        state[CODE] = BROKEN
    elif norm / norms[GROWTH] > history[0]:
        state[CODE] = DIVERGED


@by_items
def _cg_step_of_chunks(t, monitor, rho, curvature, p, q, x, best, r, parts):
    if cg_sound(monitor, rho, curvature):
        k = slice(t * CHUNK, min((t + 1) * CHUNK, x.size))
        parts[t] = _cg_move(monitor[IMPROVED], rho, curvature, p[k], q[k], x[k], best[k], r[k])


@compiled
def cg_sound(state, rho, curvature):
    """Whether there is a step."""
    finite = np.isfinite(rho[0]) and np.isfinite(curvature[0])
    return state[CODE] == RUNNING and finite and rho[0].real > 0 and curvature[0].real > 0


@compiled
def _cg_move(keep, rho, curvature, p, q, x, best, r):
    """The step in these elements; the norm of r."""
    alpha = rho[0].real / curvature[0].real
    for i in range(x.size):
        if keep:
            best[i] = x[i]
        x[i] += alpha * p[i]
        r[i] -= alpha * q[i]
    return length(r)


@compiled
def cg_end(state, norms, history, rho, curvature, rho_old, parts):
    """parts : norms of r in its parts, if there was a step."""
    if state[CODE] != RUNNING:
        return
    if cg_sound(state, rho, curvature):
        norms[NORM] = length(parts) if parts.size > 1 else parts[0]
        record(state, norms, history, None)
    elif not np.isfinite(rho[0]) or not np.isfinite(curvature[0]):
        state[CODE] = NOT_FINITE
    else:
        state[CODE] = INDEFINITE_PRECONDITIONER if rho[0].real <= 0 else INDEFINITE
    rho_old[0] = rho[0]


def _long_cg_step(state, norms, history, rho, curvature, rho_old, *vectors):
    parts = np.empty(chunks(vectors[0].size))
    run_items(_cg_step_of_chunks, parts.size, state, rho, curvature, *vectors, parts)
    cg_end(state, norms, history, rho, curvature, rho_old, parts)


@shared(_long_cg_step, -1)
@compiled
def cg_step(state, norms, history, rho, curvature, rho_old, p, q, x, best, r):
    """x += alpha p, r -= alpha q with alpha = rho / curvature, and `record` of the norm of r, or why there is no step.

    rho_old = rho, for `direction`.
    """
    parts = np.zeros(max(-(-x.size // CHUNK), 1))
    if cg_sound(state, rho, curvature):
        for t in range(parts.size):
            k = slice(t * CHUNK, (t + 1) * CHUNK)
            parts[t] = _cg_move(state[IMPROVED], rho, curvature, p[k], q[k], x[k], best[k], r[k])
    cg_end(state, norms, history, rho, curvature, rho_old, parts)


def residual_step(state, norms, history, rho, curvature, rho_old, q, r, alpha, kept):
    """r -= alpha q, and `record` as `cg_step` has it; see kernels/reference/recurrences.py."""
    parts = np.empty(chunks(r.size))
    threads = None if r.size >= SHARED else 1
    run_items(_residual_move, parts.size, state, rho, curvature, q, r, parts, threads=threads)
    _residual_end(state, norms, history, rho, curvature, rho_old, parts, alpha, kept)


@by_items
def _residual_move(t, monitor, rho, curvature, q, r, parts):
    if cg_sound(monitor, rho, curvature):
        alpha, k = rho[0].real / curvature[0].real, slice(t * CHUNK, min((t + 1) * CHUNK, r.size))
        Q, R = q[k], r[k]
        for i in range(R.size):
            R[i] -= alpha * Q[i]
        parts[t] = length(R)


@compiled
def _residual_end(state, norms, history, rho, curvature, rho_old, parts, alpha, kept):
    sound, improved = cg_sound(state, rho, curvature), state[IMPROVED] != 0
    alpha[0] = rho[0].real / curvature[0].real if sound else 0
    cg_end(state, norms, history, rho, curvature, rho_old, parts)
    kept[0] = sound and improved and state[IMPROVED] == 0


@compiled
def bicg_step(state, alpha, p, q, q_shadow, x, best, r, r_shadow):
    """x += alpha p, r -= alpha q and r_shadow -= conj(alpha) q_shadow."""
    if state[CODE] != RUNNING:
        return
    keep = state[IMPROVED]
    step, shadow_step = alpha[0], np.conj(alpha[0])
    for i in range(x.size):
        if keep:
            best[i] = x[i]
        x[i] += step * p[i]
        r[i] -= step * q[i]
        r_shadow[i] -= shadow_step * q_shadow[i]


@compiled
def sqmr_smooth(state, smoothing, size):
    """theta = size / tau, c = 1 / sqrt(1 + theta^2), tau = tau theta c: size is the norm of bicg's residual."""
    if state[CODE] != RUNNING:
        return
    if not np.isfinite(size[0]):
        state[CODE] = NOT_FINITE
        return
    theta_old, theta = smoothing[THETA], size[0] / smoothing[TAU]
    hypotenuse = np.hypot(smoothing.dtype.type(1), theta)
    c, s = 1 / hypotenuse, theta / hypotenuse
    smoothing[THETA] = theta
    smoothing[TAU] *= s
    smoothing[KEPT] = (c * theta_old) ** 2
    smoothing[TAKEN] = c * c
    smoothing[LEFT] = s * s


@compiled
def sqmr_step(state, smoothing, alpha, p, r, d, x, best, s):
    """d = c^2 theta_old^2 d + c^2 alpha p, x += d, and the residual of x: s = (1 - c^2) s + c^2 r.

    x is the mean of all iterates of bicg, weighted by the inverse squares of their residual norms, and s that of their
    residuals (Zhou & Walker 1994): the residual itself, so that its 2-norm is known.
    """
    if state[CODE] != RUNNING:
        return
    keep = state[IMPROVED]
    kept, taken, left = smoothing[KEPT], smoothing[TAKEN], smoothing[LEFT]
    step = taken * alpha[0]
    for i in range(x.size):
        if keep:
            best[i] = x[i]
        d[i] = kept * d[i] + step * p[i]
        x[i] += d[i]
        s[i] = left * s[i] + taken * r[i]


@by_items
def _bicgstab_half_of_chunks(t, monitor, rho, sigma, v, r):
    if monitor[CODE] == RUNNING and sigma[0] != 0:
        k = slice(t * CHUNK, min((t + 1) * CHUNK, r.size))
        subtract(rho[0] / sigma[0], v[k], r[k])


def _long_bicgstab_half(*arguments):
    run_items(_bicgstab_half_of_chunks, chunks(arguments[-1].size), *arguments)


@shared(_long_bicgstab_half, -1)
@compiled
def bicgstab_half(state, rho, sigma, v, r):
    """r -= alpha v with alpha = rho / sigma; nothing where sigma is 0."""
    if state[CODE] == RUNNING and sigma[0] != 0:
        subtract(rho[0] / sigma[0], v, r)


@compiled
def stabilizer(ts, t_norm):
    """omega = t^H s / ||t||^2, the step along s that leaves least of s - omega t; 0 where t is 0, or by underflow."""
    return ts[0] / t_norm[0] / t_norm[0] if t_norm[0] != 0 else ts[0]  # t^H s of t = 0


@compiled
def _bicgstab_move(monitor, t, rho, sigma, ts, t_norm, shadow, p, s, q, x, best, r, sums, parts):
    """The step in chunk t, in which q is A s; its part of shadow^H r, and its norm of r."""
    k = slice(t * CHUNK, min((t + 1) * CHUNK, x.size))
    P, S, X, B = p[k], s[k], x[k], best[k]
    alpha, omega = rho[0] / sigma[0], stabilizer(ts, t_norm)
    if monitor[IMPROVED]:
        B[:] = X
    for i in range(X.size):
        X[i] += alpha * P[i] + omega * S[i]
    subtract(omega, q[k], r[k])
    sums[t], parts[t] = inner(shadow[k], r[k]), length(r[k])


@by_items
def _bicgstab_step_of_chunks(t, monitor, rho, sigma, ts, t_norm, shadow, p, s, q, x, best, r, sums, parts):
    if monitor[CODE] == RUNNING and sigma[0] != 0:
        _bicgstab_move(monitor, t, rho, sigma, ts, t_norm, shadow, p, s, q, x, best, r, sums, parts)


def _long_bicgstab_step(state, norms, history, rho, sigma, ts, t_norm, shadow, shadow_norm, *vectors):
    sums = np.empty(chunks(shadow.size), shadow.dtype), np.empty(chunks(shadow.size))
    run_items(_bicgstab_step_of_chunks, sums[0].size, state, rho, sigma, ts, t_norm, shadow, *vectors, *sums)
    _bicgstab_judge(state, norms, history, rho, sigma, ts, t_norm, shadow_norm, *sums)


@compiled
def _bicgstab_judge(state, norms, history, rho, sigma, ts, t_norm, shadow_norm, sums, parts):
    if state[CODE] != RUNNING:
        return
    if sigma[0] == 0:
        state[CODE] = BROKEN
        return
    norms[NORM] = length(parts) if parts.size > 1 else parts[0]
    add_up(sums, rho)
    bicgstab_end(state, norms, history, rho, sigma, stabilizer(ts, t_norm), shadow_norm)


@shared(_long_bicgstab_step, -1)
@compiled
def bicgstab_step(state, norms, history, rho, sigma, ts, t_norm, shadow, shadow_norm, p, s, t, x, best, r):
    """x += alpha p + omega s, r -= omega t with omega of `stabilizer`, and `record` of the norm of r; rho = shadow^H r.

    p and s are preconditioned. BROKEN where the next direction would need a division by (nearly) nothing: the
    recurrence is lost once the cosine of shadow and r is below rounding. So it is where omega, another divisor, is 0 or
    so near to it that beta overflows: t is orthogonal to s or enormous.
    """
    count = max(-(-x.size // CHUNK), 1)
    sums, parts = np.zeros(count, r.dtype), np.zeros(count)
    if state[CODE] == RUNNING and sigma[0] != 0:
        for c in range(count):
            _bicgstab_move(state, c, rho, sigma, ts, t_norm, shadow, p, s, t, x, best, r, sums, parts)
    _bicgstab_judge(state, norms, history, rho, sigma, ts, t_norm, shadow_norm, sums, parts)


@compiled
def bicgstab_end(state, norms, history, rho, sigma, omega, shadow_norm):
    """`record` of norms[NORM], and whether the recurrence is lost."""
    record(state, norms, history, None)
    if state[CODE] != RUNNING:
        return
    lost = abs(rho[0]) <= np.finfo(norms.dtype).eps * shadow_norm[0] * norms[NORM]
    if lost or omega == 0 or not np.isfinite(rho[0] / sigma[0] / omega):
        state[CODE] = BROKEN


@compiled
def _bicgstab_turn(rho, sigma, ts, t_norm, r, v, p):
    omega = stabilizer(ts, t_norm)
    beta = rho[0] / sigma[0] / omega
    for i in range(p.size):
        p[i] = r[i] + beta * (p[i] - omega * v[i])


@by_items
def _bicgstab_direction_of_chunks(t, monitor, rho, sigma, ts, t_norm, r, v, p):
    if monitor[CODE] == RUNNING:
        k = slice(t * CHUNK, min((t + 1) * CHUNK, p.size))
        _bicgstab_turn(rho, sigma, ts, t_norm, r[k], v[k], p[k])


def _long_bicgstab_direction(*arguments):
    run_items(_bicgstab_direction_of_chunks, chunks(arguments[-1].size), *arguments)


@shared(_long_bicgstab_direction, -1)
@compiled
def bicgstab_direction(state, rho, sigma, ts, t_norm, r, v, p):
    """p = r + beta (p - omega v) with beta = (rho / rho_old) (alpha / omega) = (rho / sigma) / omega."""
    if state[CODE] == RUNNING:
        _bicgstab_turn(rho, sigma, ts, t_norm, r, v, p)


@compiled
def minres_lanczos(state, lanczos, alpha, p, v, v_old):
    """v_old = p - alpha v - beta v_old: the next Lanczos vector, not yet scaled, in place of the oldest."""
    if state[CODE] != RUNNING:
        return
    beta = lanczos[BETA]
    for i in range(v.size):
        v_old[i] = p[i] - alpha[0].real * v[i] - beta * v_old[i]


@compiled
def minres_rotation(state, norms, lanczos, alpha, square):
    """One more column of the tridiagonal T through the rotations (Paige & Saunders 1975); square = v^H M v."""
    if state[CODE] != RUNNING:
        return
    if not np.isfinite(alpha[0]) or not np.isfinite(square[0]):
        state[CODE] = NOT_FINITE
        return
    if square[0].real < 0:
        state[CODE] = INDEFINITE_PRECONDITIONER
        return
    beta, beta_next = lanczos[BETA], np.sqrt(square[0].real)
    above = lanczos[COS_OLD] * beta
    gamma_bar = lanczos[COS] * alpha[0].real - lanczos[SIN] * above
    gamma = np.hypot(gamma_bar, beta_next)
    column = np.hypot(np.hypot(beta, alpha[0].real), beta_next)
    if gamma <= 4 * np.finfo(lanczos.dtype).eps * column:
        state[CODE] = BROKEN
        return
    epsilon = lanczos[SIN_OLD] * beta
    delta = lanczos[COS] * above + lanczos[SIN] * alpha[0].real
    lanczos[EPSILON], lanczos[DELTA], lanczos[GAMMA] = epsilon, delta, gamma
    lanczos[COS_OLD], lanczos[SIN_OLD] = lanczos[COS], lanczos[SIN]
    lanczos[COS], lanczos[SIN] = gamma_bar / gamma, beta_next / gamma
    phi = lanczos[COS] * lanczos[PHI_BAR]
    lanczos[PHI] = phi / lanczos[SCALE]
    lanczos[PHI_BAR] *= -lanczos[SIN]
    lanczos[BETA] = beta_next
    lanczos[INVERSE] = 1 / beta_next if beta_next > 0 else 0.0
    # Norms in that of M^-1, in which z is a unit vector, orthogonal to x and to the directions w before it.
    if lanczos[UNIT] == 0:
        lanczos[UNIT] = column
    unit, beta_1 = lanczos[UNIT], lanczos[BETA_1]
    fresh, d, e, step = unit / gamma, delta / gamma, epsilon / gamma, phi / beta_1  # w = fresh z - d w - e w_old
    ww, ww_old, cross = lanczos[WW], lanczos[WW_OLD], lanczos[WW_CROSS]
    lanczos[WW_OLD] = ww
    lanczos[WW_CROSS] = -(d * ww + e * cross)
    lanczos[WW] = fresh * fresh + d * d * ww + 2 * d * e * cross + e * e * ww_old
    xw, xw_old = lanczos[XW], lanczos[XW_OLD]
    along = -(d * xw + e * xw_old)
    lanczos[XX] += 2 * step * along + step * step * lanczos[WW]
    lanczos[XW_OLD] = xw + step * lanczos[WW_CROSS]
    lanczos[XW] = along + step * lanczos[WW]
    lanczos[SIZE] = max(lanczos[SIZE], column / unit)
    rounding = np.finfo(lanczos.dtype).eps * lanczos[SIZE] * np.sqrt(abs(lanczos[XX]))
    norms[DRIFT] = rounding / (abs(lanczos[PHI_BAR]) / beta_1) if rounding != 0 else 0.0


@compiled
def minres_step(state, lanczos, y, v, z, w, w_old, x, best, r):
    """The new direction in w_old, x += phi w_old, the residual, and the next v and z = M v, scaled.

    r_k = sin^2 r_{k-1} + phi_bar cos v_{k+1}: the residual itself, so that its 2-norm is known whatever M is.
    """
    if state[CODE] != RUNNING:
        return
    keep = state[IMPROVED]
    sin, cos, phi, phi_bar = lanczos[SIN], lanczos[COS], lanczos[PHI], lanczos[PHI_BAR]
    epsilon, delta, gamma, inverse = lanczos[EPSILON], lanczos[DELTA], lanczos[GAMMA], lanczos[INVERSE]
    for i in range(x.size):
        direction = (z[i] - epsilon * w_old[i] - delta * w[i]) / gamma
        w_old[i] = direction
        if keep:
            best[i] = x[i]
        x[i] += phi * direction
        z[i] = inverse * y[i]  # before v, which y is where there is no preconditioner
        v[i] *= inverse
        r[i] = sin * sin * r[i] + phi_bar * cos * v[i]
