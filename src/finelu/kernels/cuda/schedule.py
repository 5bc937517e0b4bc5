"""Launchers of levels.cu and packing.cu: the analysis of a triangular pattern, all of it on the GPU."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.launch import blocks, device_limits, kernel
from finelu.kernels.triangle import Triangle

BLOCK = 256
CLASSES = 6  # as in packing.cu


def set_pending(array) -> None:
    """Fill with 0xff bytes, in stream order: every value and counter in it is pending (see finelu.cuh)."""
    cupy.cuda.runtime.memsetAsync(array.data.ptr, 0xFF, array.nbytes, cupy.cuda.get_current_stream().ptr)


def lanes_for(mean: float, largest: int = 32) -> int:
    """Threads a row of natural-order kernels for `mean` entries a row; measured on an H200, see benchmarks/results."""
    lanes = 2 ** round(np.log2(0.6 * mean + 1))
    return int(min(lanes, largest))


def padding_for(warps: float, block: int) -> int:
    """Bytes of shared memory that a block must ask for so that about `warps` warps are resident on the whole GPU.

    Warps that wait far ahead of the front only load the L2 cache with their polling, and slow down those at the front:
    keeping a few levels resident is up to 1.7 times faster than filling the GPU (measured, benchmarks/results). 0 where
    more than four blocks a multiprocessor are wanted: then the registers are the limit.
    """
    limits = device_limits()
    wanted = max(1.0, warps / limits["processors"] / (block // 32))
    resident = 2 ** round(np.log2(wanted))
    return 0 if resident > 4 else limits["shared"] // resident - 4096


def levels_on_device(triangle: Triangle):
    """Level of each row and, in an array of one int, the largest level; nothing waits for the host."""
    n, dtype = triangle.n, triangle.indices.dtype
    mean = triangle.entries / n
    lanes = lanes_for(mean, 8)
    if n * lanes > 1_500_000:  # more threads than can wait at the same time: they would only be in the way
        lanes = 1
    work = cupy.empty(n + 2, np.int32)  # levels, the largest level, the ticket counter
    set_pending(work)
    kernel("levels", "levels_sync_free", dtype.name, lanes)(
        (blocks(n * lanes, BLOCK),),
        (BLOCK,),
        (
            dtype.type(n),
            np.int32(triangle.reverse),
            triangle.begin,
            triangle.end,
            triangle.indices,
            work,
            work[n:],
            work[n + 1 :],
        ),
        shared_mem=BLOCK // lanes * 4,
    )
    return work[:n], work[n : n + 1]


def levels(triangle: Triangle):
    """(level (n,) int32, number of levels); see kernels/reference.py:levels."""
    level, deepest = levels_on_device(triangle)
    return level, int(deepest[0]) + 1


def level_order(triangle: Triangle, level, depth: int, per_lane: int = 0, *, with_jobs: bool = True):
    """(order (n,), jobs (n_jobs, 2) int32): rows by level and size class, cut into jobs of a warp; see packing.cu.

    per_lane : entries a thread, 0 for the rule of lanes_log2.  with_jobs=False : the order only, and no transfer.
    Cost: O(n + depth) by three kernels; one number goes to the host.
    """
    n, dtype = triangle.n, triangle.indices.dtype
    segments = depth * CLASSES
    rank, counts = cupy.empty(n, np.int32), cupy.empty(segments, np.int32)
    starts, total = cupy.empty((segments, 2), np.int32), cupy.empty(1, np.int32)
    cupy.cuda.runtime.memsetAsync(counts.data.ptr, 0, counts.nbytes, cupy.cuda.get_current_stream().ptr)
    grid = (blocks(n, BLOCK),)
    rows = (dtype.type(n), np.int32(triangle.reverse), np.int32(per_lane), triangle.begin, triangle.end, level, rank)
    kernel("packing", "count_rows", dtype.name)(grid, (BLOCK,), (*rows, counts))
    kernel("packing", "segment_starts")((1,), (1024,), (np.int32(segments), counts, starts, total))
    order = cupy.empty(n, dtype)
    jobs = cupy.empty((int(total[0]), 2), np.int32) if with_jobs else np.uint64(0)
    kernel("packing", "place_rows", dtype.name)(grid, (BLOCK,), (*rows, counts, starts, order, jobs))
    return order, jobs


def one_block_rows(itemsize: int) -> int:
    """The largest system whose unknowns fit into the shared memory of one block."""
    return device_limits()["shared"] // itemsize
