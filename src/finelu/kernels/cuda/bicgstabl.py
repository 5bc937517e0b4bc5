"""Launchers of bicgstabl.cu; names and meanings as in kernels/cpu/bicgstabl.py."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import (
    BLOCK,
    blocks,
    device_limits,
    kernel,
    optional,
    over_elements,
    single_thread,
    summing,
)
from finelu.kernels.cuda.runtime.memory import counter

PER_PROCESSOR = 4  # blocks of `gram` a multiprocessor: its sums take the registers


def direction(state, rho, sigma, omega, w, z, R, U, V, W, j):
    arguments = state, rho, sigma, omega, w, z, R, U, optional(V), optional(W)
    over_elements("bicgstabl", "direction", w, np.int32(rho.size), np.int32(j), *arguments)


def bicg_step(state, rho, sigma, w, z, x, best, R, U, V, W, size, j):
    arguments = state, rho, sigma, w, z, x, best, R, U, optional(V), optional(W), size
    summing("bicgstabl", "bicg_step", x, np.int32(j), *arguments)


def gram(state, sigma, w, R, G):
    n, columns = w.size, G.shape[0]
    grid = min(blocks(n, BLOCK), PER_PROCESSOR * device_limits()["processors"])
    room = cupy.empty(columns * (columns + 1) * grid, np.float64)
    launch = kernel("bicgstabl", "gram", w.dtype, columns - 1)
    launch((grid,), (BLOCK,), (np.int64(n), room, counter(), state, sigma, w, R, G))


def polynomial(state, sigma, G, gamma, omega):
    single_thread("bicgstabl", "polynomial", gamma.dtype, np.int32(gamma.size), state, sigma, G, gamma, omega)


def minimize(state, norms, history, rho, sigma, gamma, omega, shadow, shadow_norm, w, z, x, R, U, V, size):
    scalars = np.int32(gamma.size), state, norms, history, rho, sigma, gamma, omega, shadow, shadow_norm
    summing("bicgstabl", "minimize", x, *scalars, w, z, x, R, U, optional(V), size)
