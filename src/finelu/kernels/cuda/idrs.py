"""Launchers of idrs.cu; names and meanings as in kernels/cpu/idrs.py."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import BLOCK, blocks, device_limits, kernel, over_elements
from finelu.kernels.cuda.runtime.memory import counter


def draw(seed, first, P):
    over_elements("idrs", "draw", P[:, 0], np.int32(P.shape[1]), np.int64(seed), np.int64(first), P)


def begin(state, P, r, Q, f, c):
    _summing("begin", r, f.size, state, P, r, Q, f, c)


def residual_part(state, G, c, r, v):
    over_elements("idrs", "residual_part", v, np.int32(c.size), state, G, c, r, v)


def direction(state, omega, U, c, z, u):
    over_elements("idrs", "direction", u, np.int32(c.size), state, omega, U, c, z, u)


def orthogonality(state, P, w, r, Q, f, c, omega):
    _summing("orthogonality", w, f.size, state, P, w, r, Q, f, c, omega)


def step(state, norms, history, Q, f, c, omega, u, w, G, U, x, best, r, size):
    _summing("step", x, f.size, state, norms, history, Q, f, c, omega, u, w, G, U, x, best, r, size)


def _summing(function, x, s, *arguments):
    """Launch a kernel that forms up to s + 2 sums over the elements of x."""
    grid = min(blocks(x.size, BLOCK), 8 * device_limits()["processors"])
    room = cupy.empty(2 * (s + 2) * grid, np.float64)
    kernel("idrs", function, x.dtype)((grid,), (BLOCK,), (np.int64(x.size), room, counter(), np.int32(s), *arguments))
