"""Launchers of multishift.cu; names and meanings as in kernels/cpu/multishift.py."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cuda.runtime.launch import BLOCK, MOST_COLUMNS, blocks, kernel


def coefficients(
    state, norms, sizes, definite, rho, rho_old, curvature, past, sigma, theta, zeta, alpha, beta, moving, ended
):
    launch = kernel("multishift", "coefficients", rho.dtype, sigma.dtype)
    scalars = np.int32(definite), rho, rho_old, curvature, past
    shifts = sigma, theta, zeta, alpha, beta, moving, ended
    launch((1,), (BLOCK,), (np.int32(sigma.size), state, norms, np.int64(sizes.shape[1]), sizes, *scalars, *shifts))


def step(moving, zeta, alpha, beta, r, P, X):
    launch = kernel("multishift", "step", r.dtype, zeta.dtype)
    for first in range(0, zeta.size, MOST_COLUMNS):
        k = slice(first, first + MOST_COLUMNS)
        shifts = moving[k], zeta[k], alpha[k], beta[k], r, P[k], X[k]
        launch((blocks(r.size, BLOCK), shifts[0].size), (BLOCK,), (np.int64(r.size), *shifts))
