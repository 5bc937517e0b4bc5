"""Launchers of levels.cu: the level sets of a triangular pattern."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import BLOCK, blocks, kernel
from finelu.kernels.cuda.runtime.memory import set_pending
from finelu.kernels.operands import Triangle


def levels(triangle: Triangle):
    """(level (n,) int32, number of levels); see kernels/reference/levels.py:levels. Waits for the device."""
    level, deepest = levels_on_device(triangle)
    return level, deepest.item() + 1


def levels_on_device(triangle: Triangle):
    """Level of each row and, in an array of one int, the largest level; nothing waits for the host."""
    n, dtype = triangle.n, triangle.indices.dtype
    lanes = 8 if triangle.entries > 8 * n else 4
    while lanes > 1 and n * lanes > 1_500_000:  # more threads than can wait at the same time would only be in the way
        lanes //= 2
    work = cupy.empty(n + 2, np.int32)  # levels, the largest level, the ticket counter
    level, deepest, counter = work[:n], work[n : n + 1], work[n + 1 :]
    set_pending(work)
    block = 4 * BLOCK if n * lanes <= 300_000 else BLOCK
    rows = (dtype.type(n), np.int32(triangle.reverse), triangle.begin, triangle.end, triangle.indices)
    kernel("levels", "levels_sync_free", dtype, lanes)(
        (blocks(n * lanes, block),), (block,), (*rows, level, deepest, counter), shared_mem=block // lanes * 4
    )
    return level, deepest
