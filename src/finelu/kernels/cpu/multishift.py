"""The shifted systems of multi-shift cg and COCG; see kernels/reference/multishift.py. Threads share `step`."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.vectors import CHUNK, SHARED, chunks
from finelu.kernels.monitor import BROKEN, CLAIM, CLAIMED, CODE, INDEFINITE, ITERATIONS, NORM, NOT_FINITE, RUNNING


@compiled
def coefficients(
    state, norms, sizes, definite, rho, rho_old, curvature, past, sigma, theta, zeta, alpha, beta, moving, ended
):
    """The scalars of the iteration whose seed system has alpha = rho_old / curvature and beta = rho / rho_old."""
    moving[:] = 0
    if state[CODE] != RUNNING:
        return
    if not np.isfinite(curvature[0]) or not np.isfinite(rho[0]) or not np.isfinite(norms[NORM]):
        state[CODE] = NOT_FINITE
        return
    if curvature[0] == 0 or (definite and curvature[0].real <= 0):
        state[CODE] = INDEFINITE if definite else BROKEN
        return
    seed_alpha = rho_old[0] / curvature[0]
    if seed_alpha == 0:  # rho_old is 0, or it underflows
        state[CODE] = BROKEN
        return
    seed_beta = rho[0] / rho_old[0]
    state[ITERATIONS] += 1
    left = 0
    for j in range(sigma.size):
        if ended[j] != 0:
            continue
        inverse = 1 + sigma[j] * seed_alpha + seed_alpha * past[1] / past[0] * (1 - theta[j])
        if inverse == 0 or not np.isfinite(inverse) or not np.isfinite(1 / inverse):
            ended[j] = -state[ITERATIONS]
            continue
        theta[j] = 1 / inverse
        zeta[j] *= theta[j]
        alpha[j] = seed_alpha * theta[j]
        beta[j] = seed_beta * theta[j] * theta[j]
        sizes[j, state[ITERATIONS]] = abs(zeta[j]) * norms[NORM]
        if sizes[j, state[ITERATIONS]] <= norms[CLAIM]:
            moving[j], ended[j] = 1, state[ITERATIONS]
        else:
            moving[j] = 2
            left += 1
    past[0], past[1] = seed_alpha, seed_beta
    if left == 0:
        state[CODE] = CLAIMED
    elif abs(rho[0]) <= np.finfo(norms.dtype).eps * norms[NORM] ** 2:
        state[CODE] = BROKEN


@by_items
def _step_of_chunks(t, moving, zeta, alpha, beta, r, P, X):
    k = slice(t * CHUNK, min((t + 1) * CHUNK, r.size))
    for j in range(zeta.size):
        if moving[j] != 0:
            _move(moving[j] == 2, zeta[j], alpha[j], beta[j], r[k], P[j, k], X[j, k])


@compiled
def _move(turns, zeta, alpha, beta, r, p, x):
    for i in range(x.size):
        x[i] += alpha * p[i]
        if turns:
            p[i] = zeta * r[i] + beta * p[i]


def step(moving, zeta, alpha, beta, r, P, X):
    """x_j += alpha_j p_j, p_j = zeta_j r + beta_j p_j."""
    threads = None if X.size >= SHARED else 1
    run_items(_step_of_chunks, chunks(r.size), moving, zeta, alpha, beta, r, P, X, threads=threads)
