"""Launchers of batch_krylov.cu: Krylov methods for many systems of one pattern, each of which ends for itself."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.device import free_memory
from finelu.kernels.cuda.batch import GROUP, PART, TOGETHER, WARPS, grouped, pattern_of, separate
from finelu.kernels.cuda.runtime.launch import blocks, device_limits, kernel

VECTORS = 9  # of a block, as in batch_krylov.cu


def cg(matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code):
    """Conjugate gradients; see kernels/reference/batch_krylov.py. Waits for nothing."""
    _iterate("CG", 0, matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code)


def bicgstab(matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code):
    """BiCGStab; see kernels/reference/batch_krylov.py. Waits for nothing."""
    _iterate("BICGSTAB", 0, matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code)


def gmres(matrix, plan, lu, values, b, tolerance, most, restart, x, norms, roundings, errors, iterations, code):
    """GMRES; see kernels/reference/batch_krylov.py. Waits for nothing."""
    results = x, norms, roundings, errors, iterations, code
    _iterate("GMRES", restart, matrix, plan, lu, values, b, tolerance, most, *results)


def _iterate(method, restart, matrix, plan, lu, values, b, tolerance, most, x, *results):
    """results : the arrays of figures and counts."""
    (k, nnz), n, dtype = values.shape, x.shape[1], x.dtype
    m = min(restart, most, n)
    real, limits = x.real.dtype, np.finfo(dtype)
    a, b, found = grouped(values), grouped(b, k), cupy.empty((blocks(k, GROUP), n, GROUP), dtype)
    room = ((VECTORS + (m + 1 if m else 0)) * n + (m + 1) * (m + 3)) * GROUP * dtype.itemsize
    fitting = int(PART * free_memory(x) / room)
    grid = max(min(blocks(k, GROUP), TOGETHER * device_limits()["processors"], fitting), 1)
    work, basis = (
        cupy.empty((grid, VECTORS * n * GROUP), dtype),
        cupy.empty((grid, (m + 1) * n * GROUP if m else 0), dtype),
    )
    hessenberg, cosines = (
        cupy.empty((grid, (m + 1) * (m + 2) * GROUP), dtype),
        cupy.empty((grid, (m + 1) * GROUP), real),
    )
    numbers = real.type(limits.eps), real.type(limits.tiny), tolerance, np.int32(most), np.int32(m)
    given = np.int32(nnz), np.int32(k), *pattern_of(matrix), a, lu, b, *numbers, work, basis, hessenberg, cosines
    kernel("batch_krylov", "iterate", dtype, method)((grid,), (WARPS * GROUP,), (*plan, *given, found, *results))
    separate(found, x)
