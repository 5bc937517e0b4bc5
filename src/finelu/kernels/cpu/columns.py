"""The steps of Krylov methods for several right-hand sides at once: one pass over the vectors of all of them.

The vectors of k columns are the columns of arrays (n, k), row-major. `which` (k,) gives the number of each of them
among all right-hand sides: row which[c] of `states`, `norms` and `histories`, and element which[c] of scalars, belong
to column c. Each is written as kernels/cpu/recurrences.py and vectors.py write it for one column, to the bit. A column
whose state is not RUNNING stays as it is. Threads share the rows.

A pass runs over PERIOD rows at a time as over one vector, whose factors are those of the columns, repeated: the
compiler then needs no care for the number of columns. Loops write one array each, as it vectorizes no others.
"""

from __future__ import annotations

import math

import numpy as np

from finelu.kernels.cpu import recurrences
from finelu.kernels.cpu.recurrences import bicgstab_end, cg_end, cg_sound, stabilizer
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.vectors import CHUNK, LANES, add_products, add_sizes, add_squares, chunks, fold, length, root
from finelu.kernels.monitor import (
    BETA,
    BROKEN,
    CODE,
    COS,
    DELTA,
    EPSILON,
    GAMMA,
    IMPROVED,
    INVERSE,
    KEPT,
    LEFT,
    NORM,
    PHI,
    PHI_BAR,
    RUNNING,
    SIN,
    TAKEN,
)

PERIOD = LANES  # rows
SHARED = 2**15  # elements, from which on threads share a pass


def _run(kernel, n, k, *arguments):
    run_items(kernel, chunks(n), *arguments, threads=None if n * k >= SHARED else 1)


def _repeated(values):
    """(PERIOD k,) : a value for each column, for PERIOD rows."""
    return np.tile(values, PERIOD)


# sums


def dot(which, x, y, out):
    """out = x^H y of each column."""
    sums = np.empty((chunks(x.shape[0]), which.size), x.dtype)
    _run(_products, *x.shape, x.reshape(-1), y.reshape(-1), True, sums)
    add_up(which, sums, out)


def dotu(which, x, y, out):
    """out = x^T y of each column."""
    sums = np.empty((chunks(x.shape[0]), which.size), x.dtype)
    _run(_products, *x.shape, x.reshape(-1), y.reshape(-1), False, sums)
    add_up(which, sums, out)


def size_of_dot(which, x, y, out):
    """out = the sum of the magnitudes of the terms of x^H y of each column."""
    sums = np.empty((chunks(x.shape[0]), which.size), out.dtype)
    _run(_sizes, *x.shape, x.reshape(-1), y.reshape(-1), sums)
    add_up(which, sums, out)


def scaled(which, factor, x, out):
    """out = factor x of each column."""
    np.multiply(factor[which], x, out=out)


def norm(which, x, out):
    """out = ||x||_2 of each column."""
    norms = np.empty((chunks(x.shape[0]), which.size))
    _run(_norms, *x.shape, x.reshape(-1), norms)
    _add_up_norms(which, norms, out)


def dot_and_norm(which, x, y, out, size):
    """out = x^H y and size = ||x||_2 of each column."""
    sums = np.empty((chunks(x.shape[0]), which.size), x.dtype)
    norms = np.empty(sums.shape)
    _run(_products_and_norms, *x.shape, x.reshape(-1), y.reshape(-1), sums, norms)
    add_up(which, sums, out)
    _add_up_norms(which, norms, size)


@compiled
def part_of(t, x, k):
    """Where chunk t of k columns lies in x."""
    return slice(t * CHUNK * k, min((t + 1) * CHUNK * k, x.size))


@compiled
def inner_of_columns(x, y, sums, conjugate=True):
    own = np.zeros(PERIOD * sums.size, x.dtype)
    add_products(x, y, own, conjugate)
    fold(own)
    for c in range(sums.size):
        sums[c] = own[c]


@compiled
def _lengths(x, own, norms):
    """norms of the columns of x from the sums `own` of their squares."""
    k = norms.size
    fold(own)
    for c in range(k):
        square = own[c]
        if 1e-270 < square < 1e270 or math.isnan(square):
            norms[c] = math.sqrt(square)
        else:
            norms[c] = root(x[c::k].copy(), square)


@by_items
def _products(t, x, y, conjugate, sums):
    k = part_of(t, x, sums.shape[1])
    inner_of_columns(x[k], y[k], sums[t], conjugate)


@by_items
def _sizes(t, x, y, sums):
    k = part_of(t, x, sums.shape[1])
    own = np.zeros(PERIOD * sums.shape[1], sums.dtype)
    add_sizes(x[k], y[k], own)
    fold(own)
    for c in range(sums.shape[1]):
        sums[t, c] = own[c]


@by_items
def _norms(t, x, norms):
    part = x[part_of(t, x, norms.shape[1])]
    own = np.zeros(PERIOD * norms.shape[1])
    add_squares(part, own)
    _lengths(part, own, norms[t])


@by_items
def _products_and_norms(t, x, y, sums, norms):
    k = part_of(t, x, norms.shape[1])
    X, Y = x[k], y[k]
    own = np.zeros(PERIOD * norms.shape[1])
    products = np.zeros(own.size, x.dtype)
    for begin in range(0, X.size, own.size):
        stop = min(begin + own.size, X.size)
        add_products(X[begin:stop], Y[begin:stop], products, True)
        add_squares(X[begin:stop], own)
    fold(products)
    for c in range(norms.shape[1]):
        sums[t, c] = products[c]
    _lengths(X, own, norms[t])


@compiled
def add_up(which, sums, out):
    for c in range(which.size):
        total = sums[0, c]
        for t in range(1, sums.shape[0]):
            total += sums[t, c]
        out[which[c]] = total


@compiled
def _total_norm(norms, c):
    return length(norms[:, c].copy()) if norms.shape[0] > 1 else norms[0, c]


@compiled
def _add_up_norms(which, norms, out):
    for c in range(which.size):
        out[which[c]] = _total_norm(norms, c)


# passes


@compiled
def _move(x, factor, p, moving):
    """x += factor p."""
    for i in range(x.size):
        v = x[i] + factor[i] * p[i]
        x[i] = v if moving[i] else x[i]


@compiled
def _move_back(x, factor, p, moving):
    """x -= factor p."""
    for i in range(x.size):
        v = x[i] - factor[i] * p[i]
        x[i] = v if moving[i] else x[i]


@compiled
def _keep(best, x, kept):
    for i in range(x.size):
        best[i] = x[i] if kept[i] else best[i]


@compiled
def _quotients(which, states, rho, sigma):
    """The running columns whose sigma is not 0, and their rho / sigma."""
    moving, factors = np.zeros(which.size, np.bool_), np.zeros(which.size, rho.dtype)
    for c in range(which.size):
        j = which[c]
        moving[c] = states[j, CODE] == RUNNING and sigma[j] != 0
        if moving[c]:
            factors[c] = rho[j] / sigma[j]
    return moving, factors


@compiled
def _kept(which, states, moving):
    kept = np.empty(which.size, np.bool_)
    for c in range(which.size):
        kept[c] = moving[c] and states[which[c], IMPROVED] != 0
    return kept


def direction(which, states, rho, rho_old, z, p, z_shadow, p_shadow):
    """p = z + beta p with beta = rho / rho_old; z_shadow and p_shadow are None."""
    moving, beta = _quotients(which, states, np.ascontiguousarray(rho), np.ascontiguousarray(rho_old))
    _run(_turn, *p.shape, which.size, _repeated(moving), _repeated(beta), z.reshape(-1), p.reshape(-1))


@by_items
def _turn(t, k, moving, beta, z, p):
    part = part_of(t, p, k)
    Z, P = z[part], p[part]
    for begin in range(0, P.size, beta.size):
        a, b = Z[begin : begin + beta.size], P[begin : begin + beta.size]
        for i in range(b.size):
            v = a[i] + beta[i] * b[i]
            b[i] = v if moving[i] else b[i]


def cg_step(which, states, norms, histories, rho, curvature, rho_old, p, q, x, best, r):
    """As `recurrences.cg_step`."""
    moving, alpha = _cg_steps(which, states, rho, curvature)
    kept = _kept(which, states, moving)
    vectors = (v.reshape(-1) for v in (p, q, x, best, r))
    parts = np.empty((chunks(x.shape[0]), which.size))
    _run(_cg_move, *x.shape, _repeated(moving), _repeated(kept), kept.any(), _repeated(alpha), *vectors, parts)
    _cg_ends(which, states, norms, histories, rho, curvature, rho_old, parts)


def residual_step(which, states, norms, histories, rho, curvature, rho_old, q, r, alpha, kept):
    """As `recurrences.residual_step`."""
    moving, factors = _cg_steps(which, states, rho, curvature)
    improved = states[which, IMPROVED] != 0
    parts = np.empty((chunks(r.shape[0]), which.size))
    _run(_residual_move, *r.shape, _repeated(moving), _repeated(factors), q.reshape(-1), r.reshape(-1), parts)
    _cg_ends(which, states, norms, histories, rho, curvature, rho_old, parts)
    alpha[which], kept[which] = factors, moving & improved & (states[which, IMPROVED] == 0)


@by_items
def _residual_move(t, moving, alpha, q, r, parts):
    part = part_of(t, r, parts.shape[1])
    Q, R = q[part], r[part]
    own, period = np.zeros(alpha.size), alpha.size
    for begin in range(0, R.size, period):
        k = slice(begin, begin + period)
        _move_back(R[k], alpha, Q[k], moving)
        add_squares(R[k], own)
    _lengths(R, own, parts[t])


@compiled
def _cg_steps(which, states, rho, curvature):
    moving, alpha = np.zeros(which.size, np.bool_), np.zeros(which.size, rho.real.dtype)
    for c in range(which.size):
        j = which[c]
        moving[c] = cg_sound(states[j], rho[j : j + 1], curvature[j : j + 1])
        if moving[c]:
            alpha[c] = rho[j].real / curvature[j].real
    return moving, alpha


@by_items
def _cg_move(t, moving, kept, some_kept, alpha, p, q, x, best, r, parts):
    part = part_of(t, x, parts.shape[1])
    P, Q, X, B, R = p[part], q[part], x[part], best[part], r[part]
    own, period = np.zeros(alpha.size), alpha.size
    for begin in range(0, X.size, period):
        k = slice(begin, begin + period)
        if some_kept:
            _keep(B[k], X[k], kept)
        _move(X[k], alpha, P[k], moving)
        _move_back(R[k], alpha, Q[k], moving)
        add_squares(R[k], own)
    _lengths(R, own, parts[t])


@compiled
def _cg_ends(which, states, norms, histories, rho, curvature, rho_old, parts):
    for c in range(which.size):
        j = which[c]
        own, scalar = parts[:, c].copy(), slice(j, j + 1)
        cg_end(states[j], norms[j], histories[j], rho[scalar], curvature[scalar], rho_old[scalar], own)


def bicgstab_half(which, states, rho, sigma, v, r):
    """As `recurrences.bicgstab_half`."""
    moving, alpha = _quotients(which, states, rho, sigma)
    _run(_back, *r.shape, which.size, _repeated(moving), _repeated(alpha), v.reshape(-1), r.reshape(-1))


@by_items
def _back(t, k, moving, alpha, v, r):
    part = part_of(t, r, k)
    V, R = v[part], r[part]
    for begin in range(0, R.size, alpha.size):
        _move_back(R[begin : begin + alpha.size], alpha, V[begin : begin + alpha.size], moving)


def bicgstab_step(
    which, states, norms, histories, rho, sigma, ts, t_norm, shadow, shadow_norm, p, s, t, x, best, r
):  # fmt: skip
    """As `recurrences.bicgstab_step`."""
    moving, alpha, omega = _bicgstab_steps(which, states, rho, sigma, ts, t_norm)
    kept = _kept(which, states, moving)
    factors = _repeated(moving), _repeated(kept), kept.any(), _repeated(alpha), _repeated(omega)
    vectors = (v.reshape(-1) for v in (shadow, p, s, t, x, best, r))
    sums = np.empty((chunks(x.shape[0]), which.size), x.dtype)
    parts = np.empty(sums.shape)
    _run(_bicgstab_move, *x.shape, *factors, *vectors, sums, parts)
    scalars = rho, sigma, omega, shadow_norm
    _bicgstab_ends(which, states, norms, histories, *scalars, sums, parts)


@compiled
def _bicgstab_steps(which, states, rho, sigma, ts, t_norm):
    """The columns that have a step, alpha and omega; BROKEN where sigma is 0."""
    k = which.size
    moving, alpha, omega = np.zeros(k, np.bool_), np.zeros(k, rho.dtype), np.zeros(k, rho.dtype)
    for c in range(k):
        j = which[c]
        if states[j, CODE] == RUNNING and sigma[j] == 0:
            states[j, CODE] = BROKEN
        moving[c] = states[j, CODE] == RUNNING
        if moving[c]:
            alpha[c] = rho[j] / sigma[j]
            omega[c] = stabilizer(ts[j : j + 1], t_norm[j : j + 1])
    return moving, alpha, omega


@by_items
def _bicgstab_move(t, moving, kept, some_kept, alpha, omega, shadow, p, s, image, x, best, r, sums, parts):
    part = part_of(t, x, parts.shape[1])
    W, P, S, T, X, B, R = shadow[part], p[part], s[part], image[part], x[part], best[part], r[part]
    own, period = np.zeros(alpha.size), alpha.size
    products = np.zeros(period, x.dtype)
    for begin in range(0, X.size, period):
        k = slice(begin, begin + period)
        if some_kept:
            _keep(B[k], X[k], kept)
        a, b, c = X[k], P[k], S[k]
        for i in range(a.size):
            v = a[i] + (alpha[i] * b[i] + omega[i] * c[i])
            a[i] = v if moving[i] else a[i]
        _move_back(R[k], omega, T[k], moving)
        add_squares(R[k], own)
        add_products(W[k], R[k], products, True)
    fold(products)
    for c in range(parts.shape[1]):
        sums[t, c] = products[c]
    _lengths(R, own, parts[t])


@compiled
def _bicgstab_ends(which, states, norms, histories, rho, sigma, omega, shadow_norm, sums, parts):
    for c in range(which.size):
        j = which[c]
        if states[j, CODE] != RUNNING:
            continue
        norms[j, NORM] = _total_norm(parts, c)
        total = sums[0, c]
        for t in range(1, sums.shape[0]):
            total += sums[t, c]
        rho[j] = total
        own = slice(j, j + 1)
        bicgstab_end(states[j], norms[j], histories[j], rho[own], sigma[own], omega[c], shadow_norm[own])


def bicgstab_direction(which, states, rho, sigma, ts, t_norm, r, v, p):
    """As `recurrences.bicgstab_direction`."""
    moving, beta, omega = _bicgstab_turns(which, states, rho, sigma, ts, t_norm)
    factors = which.size, _repeated(moving), _repeated(beta), _repeated(omega)
    _run(_bicgstab_turn, *p.shape, *factors, r.reshape(-1), v.reshape(-1), p.reshape(-1))


@compiled
def _bicgstab_turns(which, states, rho, sigma, ts, t_norm):
    k = which.size
    moving, beta, omega = np.zeros(k, np.bool_), np.zeros(k, rho.dtype), np.zeros(k, rho.dtype)
    for c in range(k):
        j = which[c]
        moving[c] = states[j, CODE] == RUNNING
        if moving[c]:
            omega[c] = stabilizer(ts[j : j + 1], t_norm[j : j + 1])
            beta[c] = rho[j] / sigma[j] / omega[c]
    return moving, beta, omega


@by_items
def _bicgstab_turn(t, k, moving, beta, omega, r, v, p):
    part = part_of(t, p, k)
    R, V, P = r[part], v[part], p[part]
    for begin in range(0, P.size, beta.size):
        own = slice(begin, begin + beta.size)
        a, b, c = P[own], R[own], V[own]
        for i in range(a.size):
            w = b[i] + beta[i] * (a[i] - omega[i] * c[i])
            a[i] = w if moving[i] else a[i]


# decisions of one column after the other


@compiled
def record(which, states, norms, histories, sizes):
    """As `recurrences.record`; sizes may be None."""
    for c in range(which.size):
        j = which[c]
        recurrences.record(states[j], norms[j], histories[j], None if sizes is None else sizes[j : j + 1])


@compiled
def ratio(which, states, rho, sigma, size, alpha):
    """As `recurrences.ratio`."""
    for c in range(which.size):
        j = slice(which[c], which[c] + 1)
        recurrences.ratio(states[which[c]], rho[j], sigma[j], size[j], alpha[j])


@compiled
def sqmr_smooth(which, states, smoothing, size):
    """As `recurrences.sqmr_smooth`."""
    for c in range(which.size):
        j = which[c]
        recurrences.sqmr_smooth(states[j], smoothing[j], size[j : j + 1])


@compiled
def minres_rotation(which, states, norms, lanczos, alpha, square):
    """As `recurrences.minres_rotation`."""
    for c in range(which.size):
        j = which[c]
        recurrences.minres_rotation(states[j], norms[j], lanczos[j], alpha[j : j + 1], square[j : j + 1])


def _moving(which, states):
    return states[which, CODE] == RUNNING


def advance(which, states, z, x, best):
    """As `recurrences.advance`."""
    moving = _moving(which, states)
    kept, vectors = _kept(which, states, moving), (v.reshape(-1) for v in (z, x, best))
    _run(_advance, *x.shape, which.size, _repeated(moving), _repeated(kept), *vectors)


@by_items
def _advance(t, k, moving, kept, z, x, best):
    part = part_of(t, x, k)
    Z, X, B = z[part], x[part], best[part]
    for begin in range(0, X.size, moving.size):
        own = slice(begin, begin + moving.size)
        _keep(B[own], X[own], kept)
        _add(X[own], Z[own], moving)


@compiled
def _add(x, z, moving):
    """x += z."""
    for i in range(x.size):
        v = x[i] + z[i]
        x[i] = v if moving[i] else x[i]


def sqmr_step(which, states, smoothing, alpha, p, r, d, x, best, s):
    """As `recurrences.sqmr_step`."""
    moving = _moving(which, states)
    kept, own = _kept(which, states, moving), smoothing[which]
    factors = own[:, KEPT], own[:, TAKEN] * alpha[which], own[:, LEFT], own[:, TAKEN]
    repeated = (_repeated(values) for values in (moving, kept, *factors))
    _run(_sqmr_move, *x.shape, which.size, *repeated, *(v.reshape(-1) for v in (p, r, d, x, best, s)))


@by_items
def _sqmr_move(t, k, moving, kept, stay, step, left, taken, p, r, d, x, best, s):
    part = part_of(t, x, k)
    P, R, D, X, B, S = p[part], r[part], d[part], x[part], best[part], s[part]
    for begin in range(0, X.size, moving.size):
        own = slice(begin, begin + moving.size)
        _keep(B[own], X[own], kept)
        _mix(D[own], stay, step, P[own], moving)
        _add(X[own], D[own], moving)
        _mix(S[own], left, taken, R[own], moving)


@compiled
def _mix(x, stay, step, p, moving):
    """x = stay x + step p."""
    for i in range(x.size):
        v = stay[i] * x[i] + step[i] * p[i]
        x[i] = v if moving[i] else x[i]


def minres_lanczos(which, states, lanczos, alpha, p, v, v_old):
    """As `recurrences.minres_lanczos`."""
    factors = _moving(which, states), alpha[which].real, lanczos[which, BETA]
    repeated = (_repeated(values) for values in factors)
    _run(_lanczos, *v.shape, which.size, *repeated, *(u.reshape(-1) for u in (p, v, v_old)))


@by_items
def _lanczos(t, k, moving, alpha, beta, p, v, v_old):
    part = part_of(t, v, k)
    P, V, W = p[part], v[part], v_old[part]
    for begin in range(0, W.size, moving.size):
        own = slice(begin, begin + moving.size)
        a, b, c = W[own], P[own], V[own]
        for i in range(a.size):
            w = b[i] - alpha[i] * c[i] - beta[i] * a[i]
            a[i] = w if moving[i] else a[i]


def minres_step(which, states, lanczos, y, v, z, w, w_old, x, best, r):
    """As `recurrences.minres_step`."""
    moving, own = _moving(which, states), lanczos[which]
    kept, sin, cos = _kept(which, states, moving), own[:, SIN], own[:, COS]
    factors = (
        own[:, EPSILON],
        own[:, DELTA],
        own[:, GAMMA],
        own[:, PHI],
        own[:, INVERSE],
        sin * sin,
        own[:, PHI_BAR] * cos,
    )
    repeated = (_repeated(values) for values in (moving, kept, *factors))
    _run(_minres_move, *x.shape, which.size, *repeated, *(u.reshape(-1) for u in (y, v, z, w, w_old, x, best, r)))


@by_items
def _minres_move(
    t, k, moving, kept, epsilon, delta, gamma, phi, inverse, left, new, y, v, z, w, w_old, x, best, r
):  # fmt: skip
    part = part_of(t, x, k)
    Y, V, Z, W, D, X, B, R = y[part], v[part], z[part], w[part], w_old[part], x[part], best[part], r[part]
    for begin in range(0, X.size, moving.size):
        own = slice(begin, begin + moving.size)
        a, b, c = D[own], Z[own], W[own]
        for i in range(a.size):
            direction = (b[i] - epsilon[i] * a[i] - delta[i] * c[i]) / gamma[i]
            a[i] = direction if moving[i] else a[i]
        _keep(B[own], X[own], kept)
        _move(X[own], phi, D[own], moving)
        _multiply(Z[own], inverse, Y[own], moving)  # before v, which y is where there is no preconditioner
        _multiply(V[own], inverse, V[own], moving)
        _mix(R[own], left, new, V[own], moving)


@compiled
def _multiply(z, factor, y, moving):
    """z = factor y."""
    for i in range(z.size):
        v = factor[i] * y[i]
        z[i] = v if moving[i] else z[i]
