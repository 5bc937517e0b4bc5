"""The steps of BiCGStab(l) between two products: one pass over the vectors each; see kernels/reference/bicgstabl.py."""

from __future__ import annotations

import math

import numpy as np

from finelu.kernels.cpu.recurrences import record
from finelu.kernels.cpu.runtime.jit import compiled, summing
from finelu.kernels.cpu.vectors import inner, length, subtract, sum_of_squares
from finelu.kernels.monitor import ANGLE, BROKEN, CODE, IMPROVED, NORM, RUNNING

ROWS = 1024  # that a step goes over the columns with; they stay in the first cache


@compiled
def stopped(sigma, steps):
    none = False
    for i in range(steps):
        none |= sigma[i] == 0
    return none


@compiled
def _turn(beta, r, u):
    for i in range(u.size):
        u[i] = r[i] - beta * u[i]


@compiled
def _put(w, r):
    for i in range(r.size):
        r[i] = w[i]


@compiled
def direction(state, rho, sigma, omega, w, z, R, U, V, W, j):
    """R_j = w and V_(j-1) = z where j > 0; U_i = R_i - beta U_i for i <= j, and so W_i."""
    if state[CODE] != RUNNING or stopped(sigma, j):
        return
    beta = -rho[0] / sigma[sigma.size - 1] / omega[0] if j == 0 else rho[j] / sigma[j - 1]
    for begin in range(0, R.shape[0], ROWS):
        k = slice(begin, begin + ROWS)
        if j > 0:
            _put(w[k], R[k, j])
            if V is not None:
                _put(z[k], V[k, j - 1])
        for i in range(j + 1):
            _turn(beta, R[k, i], U[k, i])
            if V is not None:  # noqa: SIM102 (apart, as Numba leaves such a branch out before it types it)
                if i < j:
                    _turn(beta, V[k, i], W[k, i])


@compiled
def bicg_step(state, rho, sigma, w, z, x, best, R, U, V, W, size, j):
    """U_(j+1) = w, W_j = z, alpha = rho_j / sigma_j, R_i -= alpha U_(i+1), so V_i, and x += alpha M^-1 u_0.

    size : the largest ||r_0||.
    """
    if state[CODE] != RUNNING or stopped(sigma, j + 1):
        return
    alpha, keep, square = rho[j] / sigma[j], j == 0 and state[IMPROVED], 0.0
    for begin in range(0, x.size, ROWS):
        k = slice(begin, begin + ROWS)
        _put(w[k], U[k, j + 1])
        if W is not None:
            _put(z[k], W[k, j])
        for i in range(j + 1):
            subtract(alpha, U[k, i + 1], R[k, i])
            if V is not None:  # noqa: SIM102 (apart, as Numba leaves such a branch out before it types it)
                if i < j:
                    subtract(alpha, W[k, i + 1], V[k, i])
        if keep:
            _put(x[k], best[k])
        if W is None:
            subtract(-alpha, U[k, 0], x[k])
        else:
            subtract(-alpha, W[k, 0], x[k])
        square += sum_of_squares(R[k, 0])
    size[0] = max(size[0], math.sqrt(square))  # also where that is NaN, which the end of the iteration will show


@summing
def _wide_inner(zero, x, y):
    """x^H y, in the type of `zero`."""
    total = zero
    for i in range(x.size):
        total += np.conj(zero + x[i]) * (zero + y[i])
    return total


@compiled
def gram(state, sigma, w, R, G):
    """The inner products of the columns of R and of w, in double precision."""
    if state[CODE] != RUNNING or stopped(sigma, sigma.size):
        return
    steps, zero = R.shape[1], G.dtype.type(0)
    G[:] = 0
    for begin in range(0, w.size, ROWS):
        k = slice(begin, begin + ROWS)
        for b in range(steps + 1):
            right = w[k] if b == steps else R[k, b]
            for a in range(b + 1):
                G[a, b] += _wide_inner(zero, w[k] if a == steps else R[k, a], right)
    for b in range(steps + 1):
        for a in range(b):
            G[b, a] = np.conj(G[a, b])


@compiled
def polynomial(state, sigma, G, gamma, omega):
    """gamma of the least ||r_0 - sum gamma_i r_i||, the last one made larger where it stands for a small cosine."""
    if state[CODE] != RUNNING or stopped(sigma, sigma.size):
        return
    steps, eps = gamma.size, np.finfo(np.float64).eps
    first, last = G[1:steps, 0].copy(), G[1:steps, steps].copy()
    _solve(G[1:steps, 1:steps], first, last)
    square_first, square_last, product = G[0, 0].real, G[steps, steps].real, G[steps, 0]
    for i in range(steps - 1):
        square_first -= (np.conj(G[i + 1, 0]) * first[i]).real
        square_last -= (np.conj(G[i + 1, steps]) * last[i]).real
        product -= np.conj(G[i + 1, steps]) * first[i]
    factor = 0 * product
    if not square_last <= steps * eps * G[steps, steps].real:
        factor = product / square_last
        cosine = 1.0
        if square_first > 0:
            cosine = abs(product) / math.sqrt(square_last) / math.sqrt(square_first)
        if 0 < cosine < ANGLE:
            factor *= ANGLE / cosine
    for i in range(steps - 1):
        gamma[i] = first[i] - factor * last[i]
    gamma[steps - 1] = factor
    omega[0] = gamma[steps - 1]


@compiled
def _solve(Z, first, last):
    """Z^-1 times each, by L D L^H; 0 for a column that depends on those before it."""
    n, eps = first.size, np.finfo(np.float64).eps
    L, d = np.zeros_like(Z), np.zeros(n)
    for i in range(n):
        rest = Z[i, i].real
        for k in range(i):
            rest -= (L[i, k] * d[k] * np.conj(L[i, k])).real
        d[i] = 0.0 if rest <= (n + 1) * eps * Z[i, i].real else rest
        for a in range(i + 1, n):
            part = Z[a, i]
            for k in range(i):
                part -= L[a, k] * d[k] * np.conj(L[i, k])
            L[a, i] = part / d[i] if d[i] > 0 else 0 * part
    for y in (first, last):
        for i in range(n):
            for k in range(i):
                y[i] -= L[i, k] * y[k]
        for i in range(n - 1, -1, -1):
            y[i] = y[i] / d[i] if d[i] > 0 else 0 * y[i]
            for k in range(i + 1, n):
                y[i] -= np.conj(L[k, i]) * y[k]


@compiled
def minimize(state, norms, history, rho, sigma, gamma, omega, shadow, shadow_norm, w, z, x, R, U, V, size):
    """x += sum gamma_i M^-1 r_(i-1), r_0 -= sum gamma_i r_i, u_0 -= sum gamma_i u_i, and `record` of ||r_0||."""
    if state[CODE] != RUNNING:
        return
    if sigma[0] == 0:
        state[CODE] = BROKEN
        return
    steps, whole, r = gamma.size, not stopped(sigma, sigma.size), R[:, 0]
    if whole:
        for begin in range(0, x.size, ROWS):
            k = slice(begin, begin + ROWS)
            for i in range(steps - 1):
                if V is None:
                    subtract(-gamma[i], R[k, i], x[k])
                else:
                    subtract(-gamma[i], V[k, i], x[k])
            subtract(-gamma[steps - 1], z[k], x[k])
            for i in range(steps - 1):
                subtract(gamma[i], R[k, i + 1], r[k])
            subtract(gamma[steps - 1], w[k], r[k])
            for i in range(steps):
                subtract(gamma[i], U[k, i + 1], U[k, 0])
    norms[NORM] = length(r)
    rho[0] = inner(shadow, r)
    record(state, norms, history, size)
    if state[CODE] != RUNNING:
        return
    lost = abs(rho[0]) <= np.finfo(norms.dtype).eps * shadow_norm[0] * norms[NORM]
    last = sigma[sigma.size - 1]
    if not whole or lost or omega[0] == 0 or not np.isfinite(rho[0] / last / omega[0]):
        state[CODE] = BROKEN
