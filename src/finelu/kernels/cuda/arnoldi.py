"""Launchers of arnoldi.cu; names and meanings as in kernels/cpu/arnoldi.py."""

from __future__ import annotations

from functools import partial

import cupy

from finelu.kernels.cuda.runtime.launch import BLOCK, blocks, device_limits, kernel, over_elements
from finelu.kernels.cuda.runtime.memory import set_pending

MGS_BLOCK = 512  # as in arnoldi.cu
PER_THREAD = 4  # entries of the new vector in the registers of a thread
MGS_ROWS = PER_THREAD * MGS_BLOCK  # of a block; with fewer, more blocks cost more to bring together than they save


_all = partial(over_elements, "arnoldi")


def arnoldi_begin(state, norms, r, Q, g, v):
    _all("arnoldi_begin", r, state, norms, r, Q, g, v)


def keep_column(state, z, Z):
    _all("keep_column", z, state, z, Z)


def mgs_step(state, Q, w, H, v):
    in_registers = blocks(w.size, MGS_ROWS) <= device_limits()["processors"]
    launch = kernel("arnoldi", "mgs_step", Q.dtype.name, PER_THREAD if in_registers else 0)
    _together(launch, 0, state, Q, w, H, v)


def cgs2_step(state, Q, w, H, v):
    _together(kernel("arnoldi", "cgs2_step", Q.dtype.name), H.shape[1] * H.itemsize, state, Q, w, H, v)


def _together(launch, shared, state, Q, w, H, v):
    """A step whose blocks wait for one another."""
    n, m = w.size, H.shape[1]
    grid = min(blocks(n, MGS_ROWS), device_limits()["processors"])
    words = cupy.empty((2 * m + 6) * grid, Q.dtype)
    set_pending(words)
    # cooperative: all blocks run at the same time; a matter of the launch alone, compiled like any other kernel
    launch(
        (grid,),
        (MGS_BLOCK,),
        (cupy.int64(n), state, cupy.int64(H.shape[0]), Q, w, H, v, words),
        shared_mem=shared,
        enable_cooperative_groups=True,
    )


def givens_step(state, norms, history, H, c, s, g):
    kernel("arnoldi", "givens_step", H.dtype)((1,), (32,), (state, norms, history, cupy.int64(H.shape[0]), H, c, s, g))


def hessenberg_solve(state, H, g, y):
    launch = kernel("arnoldi", "hessenberg_solve", H.dtype.name)
    launch((1,), (32,), (state, cupy.int32(y.size), H, g, y), shared_mem=y.nbytes)


def combine(state, Q, y, u):
    _all("combine", u, state, Q, y, u)


def update_solution(state, u, x):
    _all("update_solution", x, state, u, x)


def moments(Q, w, y):
    n, k = Q.shape
    grid = max(min(blocks(n, 4 * BLOCK), 4 * device_limits()["processors"] // k), 1)
    partial_sums = cupy.empty(k * grid, Q.dtype)
    kernel("arnoldi", "partial_moments", Q.dtype)((grid, k), (BLOCK,), (cupy.int64(n), Q, w, partial_sums))
    kernel("arnoldi", "sum_moments", Q.dtype)((k,), (BLOCK,), (cupy.int32(grid), partial_sums, y))


def take_off(state, Q, y, w):
    launch = kernel("arnoldi", "take_off", Q.dtype)
    launch((blocks(w.size, BLOCK),), (BLOCK,), (cupy.int64(w.size), state, cupy.int32(y.size), Q, y, w))
