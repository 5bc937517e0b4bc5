"""Launchers of packing.cu: the rows of a triangular pattern in the order of their levels, entirely on the GPU."""

from __future__ import annotations

import math

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import NULL, device_limits, for_each, kernel
from finelu.kernels.cuda.runtime.memory import set_zero
from finelu.kernels.operands import Triangle

CLASSES = 6  # as in packing.cu
EARLY_ROWS = 250_000  # up to here rows are ordered before the host knows how many levels there are


def lanes_for(mean: float, largest: int = 32) -> int:
    """Threads a row of natural-order kernels for `mean` entries a row; measured on an H200, see benchmarks/results."""
    return min(2 ** round(math.log2(0.6 * mean + 1)), largest)


def padding_for(warps: float, block: int) -> int:
    """Bytes of shared memory that a block must ask for so that about `warps` warps are resident on the whole GPU.

    Warps that wait far ahead of the front only load the L2 cache with their polling, and slow down those at the front:
    keeping a few levels resident is up to twice as fast as filling the GPU (benchmarks/results, elimination-variants).
    0 where more than four blocks a multiprocessor are wanted: then the registers are the limit.
    """
    limits = device_limits()
    wanted = max(1.0, warps / limits["processors"] / (block // 32))
    resident = 2 ** round(math.log2(wanted))
    return 0 if resident > 4 else limits["shared"] // resident - 4096


def jobs_at_most(triangle: Triangle, depth: int, longest: int) -> int:
    """A bound of the number of jobs of a warp that level_order makes; `longest` is the most entries of a row."""
    lanes = 1 if longest <= 1 else min(32, 2 ** (longest - 1).bit_length())
    return min(triangle.n, depth * CLASSES + triangle.n * lanes // 32 + 1)


def warps_per_level(triangle: Triangle, depth: int) -> float:
    """About how many jobs a level has, from the mean length of a row (the rule of lanes_log2)."""
    mean = triangle.entries / triangle.n
    lanes = 2 ** math.ceil(math.log2(max(1.0, mean if mean <= 4 else mean / 2)))
    return max(1.0, triangle.n * min(lanes, 32) / 32 / depth)


def level_order(triangle: Triangle, level, deepest, depth: int | None, per_lane: int = 0, *, most_jobs: int = 0):
    """(order (n,), jobs (most_jobs, 2) int32, their number (1,) int32): rows by level and size class; see packing.cu.

    level, deepest : of `levels_on_device`.  depth : number of levels, or None if the host does not know it yet: room is
    then made for n of them.  per_lane : entries a thread, 0 for the rule of lanes_log2.  most_jobs : see jobs_at_most;
    0 for the order only. Cost: O(n + depth) by three kernels. Nothing goes to the host.
    """
    n, dtype = triangle.n, triangle.indices.dtype
    segments = (n if depth is None else depth) * CLASSES
    words = cupy.empty(n + 3 * segments + 2, np.int32)
    starts, total = words[: 2 * segments], words[2 * segments :]
    counts, rank = words[2 * segments + 2 :], words[3 * segments + 2 :]
    order, jobs = cupy.empty(n, dtype), cupy.empty((most_jobs, 2), np.int32)
    set_zero(counts[:segments])
    rows = (dtype.type(n), np.int32(triangle.reverse), np.int32(per_lane), triangle.begin, triangle.end, level, rank)
    for_each("runtime/packing", "count_rows", (dtype,), *rows, counts)
    kernel("runtime/packing", "segment_starts")((1,), (1024,), (deepest, counts, starts, total))
    places = counts, starts, order, jobs if most_jobs else NULL
    for_each("runtime/packing", "place_rows", (dtype,), *rows, *places)
    return order, jobs, total


def one_block_rows(itemsize: int) -> int:
    """The largest system whose unknowns fit into the shared memory of one block."""
    return device_limits()["shared"] // itemsize
