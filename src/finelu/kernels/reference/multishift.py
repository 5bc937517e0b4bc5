"""The shifted systems of multi-shift cg and COCG, whose residuals are multiples of that of the seed system. The
specification.

For (A + sigma_j I) x_j = b, j < k: zeta (k,), by which r of the seed system is multiplied; theta (k,), zeta of this
iteration by that of the one before; alpha and beta (k,); X and P (k, n), iterates and directions, a row a shift. All of
the widest dtype of A, b and the shifts. past (2,): alpha and beta of the seed system in the iteration before.
moving (k,) int32: 2 where `step` changes x_j and p_j, 1 where it changes x_j only, for the last time, 0 where nothing.
sizes (k, iterations + 1): ||b - (A + sigma_j I) x_j|| by the recurrence, after each iteration.
ended (k,) int32: the iteration after which x_j has converged by the recurrence, minus it where the recurrence of this
shift broke down; 0 before. `state` and `norms` are described in kernels/monitor.py.
Source: Jegerlehner 1996; Frommer & Maass 1999; Frommer 2003 for complex symmetric A.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.monitor import BROKEN, CLAIM, CLAIMED, CODE, INDEFINITE, ITERATIONS, NORM, NOT_FINITE
from finelu.kernels.reference.recurrences import eps_of, running


def coefficients(
    state, norms, sizes, definite, rho, rho_old, curvature, past, sigma, theta, zeta, alpha, beta, moving, ended
):
    """The scalars of the iteration whose seed system has alpha = rho_old / curvature and beta = rho / rho_old.

    rho = r^H r (r^T r), norms[NORM] = ||r|| of the new r.  definite : whether curvature must be positive.
    CLAIMED once all shifts have ended; INDEFINITE, BROKEN, NOT_FINITE where there is no such iteration, and no further
    one.
    """
    moving[:] = 0
    if not running(state):
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
    for j in range(sigma.size):
        if ended[j]:
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
        done = sizes[j, state[ITERATIONS]] <= norms[CLAIM]
        moving[j] = 1 if done else 2
        ended[j] = state[ITERATIONS] if done else 0
    past[0], past[1] = seed_alpha, seed_beta
    if (ended != 0).all():
        state[CODE] = CLAIMED
    elif abs(rho[0]) <= eps_of(norms) * norms[NORM] ** 2:
        state[CODE] = BROKEN


def step(moving, zeta, alpha, beta, r, P, X):
    """x_j += alpha_j p_j, p_j = zeta_j r + beta_j p_j."""
    for j in range(zeta.size):
        if moving[j]:
            X[j] += alpha[j] * P[j]
        if moving[j] == 2:
            P[j] = zeta[j] * r + beta[j] * P[j]
