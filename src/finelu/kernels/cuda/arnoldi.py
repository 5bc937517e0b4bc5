"""Launchers of arnoldi.cu; names and meanings as in kernels/cpu/arnoldi.py."""

from __future__ import annotations

from functools import partial

import cupy
from cupy import cublas

from finelu.kernels.cuda.runtime.launch import blocks, device_limits, kernel, over_elements, single_thread

MGS_BLOCK = 512
MGS_ROWS = 4 * MGS_BLOCK  # rows of a block below which more blocks cost more to bring together than they save


_all = partial(over_elements, "arnoldi")


def arnoldi_begin(state, norms, r, Q, g):
    _all("arnoldi_begin", r, state, norms, r, Q, g)


def mgs_step(state, Q, j, H):
    n = Q.shape[0]
    grid = min(blocks(n, MGS_ROWS), device_limits()["processors"])
    partial = cupy.empty((2 * j + 8) * grid, Q.dtype)
    partial.data.memset_async(0xFF, partial.nbytes)
    # cooperative: all blocks run at the same time; a matter of the launch alone, compiled like any other kernel
    kernel("arnoldi", "mgs_step", Q.dtype.name).kernel(
        (grid,),
        (MGS_BLOCK,),
        (cupy.int64(n), state, cupy.int32(j), cupy.int64(H.shape[0]), Q, H, partial),
        enable_cooperative_groups=True,
    )


def cgs2_step(state, Q, j, H, h):
    basis, z, part, column = Q[:, : j + 1], Q[:, j + 1], h[: j + 1], H[: j + 1, j]
    lengths = cupy.empty(2, Q.dtype.char.lower())
    cublas.nrm2(z, out=lengths[:1])
    column.fill(0)
    for _ in range(2):
        cublas.gemv("H", 1, basis, z, 0, part)
        cublas.gemv("N", -1, basis, part, 1, z)
        column += part
    cublas.nrm2(z, out=lengths[1:])
    ldh = cupy.int64(H.shape[0])
    _all("unit_step", z, state, cupy.int32(j), ldh, lengths[:1], lengths[1:], Q, H)


def givens_step(state, norms, history, H, c, s, g, j):
    ldh = cupy.int64(H.shape[0])
    single_thread("arnoldi", "givens_step", H.dtype, state, norms, history, ldh, H, c, s, g, cupy.int32(j))


def hessenberg_solve(state, H, g, y):
    launch = kernel("arnoldi", "hessenberg_solve", H.dtype.name)
    launch((1,), (32,), (state, cupy.int32(y.size), H, g, y), shared_mem=y.nbytes)


def combine(state, Q, y, u):
    _all("combine", u, state, Q, y, u)


def update_solution(state, u, x):
    _all("update_solution", x, state, u, x)
