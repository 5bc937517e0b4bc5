"""Launchers of levels.cu and packing.cu: the analysis of a triangular pattern, all of it on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from finelu.kernels.cuda.launch import blocks, device_limits, kernel
from finelu.kernels.triangle import Triangle

BLOCK = 256


def set_pending(array) -> None:
    """Fill with 0xff bytes, in stream order: every value and counter in it is pending (see finelu.cuh)."""
    cupy.cuda.runtime.memsetAsync(array.data.ptr, 0xFF, array.nbytes, cupy.cuda.get_current_stream().ptr)


def lanes_for(mean: float, largest: int = 32) -> int:
    """Threads a row of natural-order kernels for `mean` entries a row; measured on an H200, see benchmarks/results."""
    lanes = 2 ** round(np.log2(0.6 * mean + 1))
    return int(min(lanes, largest))


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


@dataclass(frozen=True, eq=False)
class Packing:
    """A triangular pattern stored in level order, cut into jobs of a warp each; see triangular.cu:solve_job.

    order (n,) rows in level order; ptr (n + 1,), cols (nnz,) their entries; source (nnz,) where the values are;
    jobs (n_jobs, 2) int32.
    """

    order: Any
    ptr: Any
    cols: Any
    source: Any
    jobs: Any


def level_order(triangle: Triangle, level, per_lane: int = 0):
    """(order (n,) int64, keys (n,)): rows sorted stably by level, then by size class."""
    n, dtype = triangle.n, triangle.indices.dtype
    key = cupy.empty(n, np.int32)
    kernel("packing", "pack_keys", dtype.name)(
        (blocks(n, BLOCK),), (BLOCK,), (dtype.type(n), np.int32(per_lane), triangle.begin, triangle.end, level, key)
    )
    return cupy.argsort(key, kind="stable"), key


def pack(triangle: Triangle, level, per_lane: int = 0) -> Packing:
    """Store a triangle in level order. Cost: one sort of n keys and O(nnz); one number goes to the host."""
    n, dtype = triangle.n, triangle.indices.dtype
    order64, key = level_order(triangle, level, per_lane)
    order, ptr = cupy.empty(n, dtype), cupy.zeros(n + 1, dtype)
    first, count = cupy.empty(n, np.int32), cupy.empty(n, np.int32)
    grid = (blocks(n, BLOCK),)
    size = ptr[1:]
    kernel("packing", "pack_rows", dtype.name)(
        grid, (BLOCK,), (dtype.type(n), order64, key, triangle.begin, triangle.end, order, size, first, count)
    )
    cupy.cumsum(size, out=size)
    place = cupy.cumsum(first, dtype=np.int32)
    n_jobs = int(place[-1])
    jobs = cupy.empty((n_jobs, 2), np.int32)
    kernel("packing", "pack_jobs", dtype.name)(grid, (BLOCK,), (dtype.type(n), place, first, count, order, key, jobs))
    entries = triangle.entries
    cols, source = cupy.empty(entries, dtype), cupy.empty(entries, dtype)
    values_at = np.uint64(0) if triangle.source is None else triangle.source
    kernel("packing", "pack_entries", dtype.name)(
        grid, (BLOCK,), (dtype.type(n), order, triangle.begin, ptr, triangle.indices, values_at, cols, source)
    )
    return Packing(order, ptr, cols, source, jobs)


def one_block_rows(itemsize: int) -> int:
    """The largest system whose unknowns fit into the shared memory of one block."""
    return device_limits()["shared"] // itemsize
