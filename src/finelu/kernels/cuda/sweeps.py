"""Launchers of sweeps.cu: the fixed-point sweeps of ParILU and ParILUT."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import NULL, blocks, device_limits, kernel, most_shared, optional
from finelu.kernels.cuda.runtime.memory import set_zero
from finelu.kernels.cuda.runtime.row_products import BLOCK, LONG_BLOCK, long_grid, operands, shape

ROW_SHAPES = ((4, 1), (8, 1), (8, 2))  # (threads a row, entries each) of row_sweeps
FEW = 10  # entries of a row on average, up to which registers are faster than a table
TOGETHER = 8  # blocks a multiprocessor that run at the same time, as in row_sweeps
PARTS = {"lower": 1, "upper": 2, "whole": 3}  # as in sweeps.cu
ROUNDS = 4  # of the whole grid, up to which one launch for all sweeps is faster than one for each


def _row_shape(F):
    """(threads a row, entries each) where every row fits into registers, or None."""
    if F.nnz > FEW * F.n:
        return None
    return next((s for s in ROW_SHAPES if s[0] * s[1] >= F.longest[0]), None)


def _row_sweeps(A, F, one, other, squares, refused, columns, damping, parts, row_shape, count, grid):
    lanes, per_lane = row_shape
    arrived = NULL
    if count > 1:
        arrived = cupy.empty(1, np.uint32)
        set_zero(arrived)
    launch = kernel("sweeps", "row_sweeps", F.dtype, F.indices.dtype, lanes, per_lane, columns is not None)
    given = np.float64(damping), one, other, optional(squares), refused, np.int32(parts), np.int32(count), arrived
    launch((grid,), (BLOCK,), (*operands(A, F, columns), *given), enable_cooperative_groups=count > 1)


def _table_sweep(A, F, out, squares, refused, columns, damping, parts, in_place):
    index, symmetric = F.indices.dtype, columns is not None
    longest = F.longest[0]
    mean = F.below / F.n if symmetric else (F.nnz - F.n - F.below) / F.n
    lanes, slots = shape(mean, min(longest, 512))
    most = slots // 2
    given = np.float64(damping), out, optional(squares), refused, np.int32(parts), np.int32(most)
    arguments = *operands(A, F, columns), *given
    kernel("sweeps", "short_sweep", F.dtype, index, lanes, slots, symmetric, in_place)(
        (blocks(F.n * lanes, BLOCK),),
        (BLOCK,),
        arguments,
        shared_mem=BLOCK // lanes * slots * (F.dtype.itemsize + index.itemsize),
    )
    if longest > most:
        launch = kernel("sweeps", "long_sweep", F.dtype, index, symmetric, in_place)
        row = F.n * F.dtype.itemsize
        in_shared = row <= most_shared(launch)
        grid = device_limits()["processors"] if in_shared else long_grid(F.n, F.dtype.itemsize)
        work = cupy.empty(0 if in_shared else grid * F.n, F.dtype)
        launch((grid,), (LONG_BLOCK,), (*arguments, work, np.int32(in_shared)), shared_mem=row if in_shared else 0)


def sweep(A, F, out, squares, refused, columns=None, damping=1.0, part="whole"):
    """One synchronous fixed-point sweep; see kernels/reference/sweeps.py:sweep. Waits for nothing."""
    row_shape, parts = _row_shape(F), PARTS[part]
    if row_shape is None:
        _table_sweep(A, F, out, squares, refused, columns, damping, parts, False)
    else:
        grid = blocks(F.n * row_shape[0], BLOCK)
        _row_sweeps(A, F, out, out, squares, refused, columns, damping, parts, row_shape, 1, grid)


def sweeps(A, F, count, squares, refused, columns=None, damping=1.0):
    """`count` of them, one after the other; see kernels/reference/sweeps.py:sweeps. Waits for nothing."""
    row_shape = _row_shape(F)
    if row_shape is not None and count > 1:
        wanted, grid = blocks(F.n * row_shape[0], BLOCK), TOGETHER * device_limits()["processors"]
        if wanted <= ROUNDS * grid:
            one, other = (cupy.empty(F.nnz, F.dtype) for _ in range(2))
            grid = min(wanted, grid)
            _row_sweeps(A, F, one, other, squares, refused, columns, damping, PARTS["whole"], row_shape, count, grid)
            return one if count % 2 else other
    values = F.data
    for k in range(count):
        out = cupy.empty(F.nnz, F.dtype)
        sweep(A, F.with_values(values), out, None if squares is None else squares[k], refused, columns, damping)
        values = out
    return values


def sweep_in_place(A, F, refused, columns=None):
    """An asynchronous sweep; see kernels/reference/sweeps.py:sweep_in_place. Rows read the present values, new or
    old."""
    _table_sweep(A, F, F.data, None, refused, columns, 1.0, PARTS["whole"], True)
