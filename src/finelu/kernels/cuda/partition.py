"""Launchers of partition.cu."""

from __future__ import annotations

from functools import partial

import cupy
import numpy as np

from finelu.kernels.cuda.indices import queue_pointers
from finelu.kernels.cuda.runtime.launch import NULL, blocks, for_each, kernel
from finelu.kernels.cuda.runtime.memory import set_pending, set_zero

SLOTS, WARPS = 256, 8  # as in partition.cu
_each = partial(for_each, "partition")
SHORT = 16  # entries of a list, on average, up to which 8 threads look at it


def couplings(indptr, indices, data, diag, weights):
    """Weights of the entries, and how many have no mirror image; see kernels/reference/partition.py. The host waits."""
    n, unpaired, scale = np.int32(diag.size), cupy.empty(1, np.uint64), cupy.empty(diag.size)
    set_zero(unpaired)
    _each("scales", (data.dtype,), n, indptr, data, diag, scale)
    _each("couplings", (data.dtype,), n, indptr, indices, data, scale, weights, unpaired)
    return int(unpaired.item())


def both_directions(indptr, indices, weights, begin, end, neighbours, both):
    """The graph with each entry at both of its ends; see kernels/reference/partition.py."""
    n = np.int32(begin.size)
    set_zero(end)
    _each("count_ends", (), n, indptr, indices, end)
    pointers, _ = queue_pointers(end)
    for to in (begin, end):
        to.data.copy_from_device_async(pointers.data, to.nbytes)
    _each("place_ends", (), n, indptr, indices, weights, end, neighbours, both)


def propose(begin, end, neighbours, weights, sizes, most, before, wish):
    """The neighbour that each vertex likes most; see kernels/reference/partition.py."""
    lanes = 8 if neighbours.size <= SHORT * sizes.size else 32
    graph = begin, end, neighbours, weights, sizes
    _each("propose", (lanes,), np.int32(sizes.size), *graph, np.int64(most), before, wish, lanes=lanes)


def contract(begin, end, neighbours, weights, sizes, wish, most, owner, starts, stops, adjacent, sums, totals):
    """The graph of the pairs; see kernels/reference/partition.py. The host waits for their number."""
    n, size = sizes.size, np.int32(sizes.size)
    marks, lower, counts = cupy.empty(2 * n, np.int64), cupy.empty(n, np.int32), cupy.empty(3, np.int64)
    set_zero(counts)
    _each("pairs", (), size, begin, end, wish, marks, counts)
    pointers, _ = queue_pointers(marks)
    _each("enumerate", (), size, begin, end, sizes, wish, pointers[1:], owner, lower, totals, starts, counts)
    count, entries, longest = (int(v) for v in counts.get())
    tables = NULL, NULL
    if 2 * longest > SLOTS:
        tables = cupy.empty(2 * entries, np.int32), cupy.empty(2 * entries, np.uint64)
    graph = begin, end, neighbours, weights, wish, np.int64(most), owner, lower, totals, starts
    kernel("partition", "contract")(
        (blocks(count, WARPS),), (32 * WARPS,), (np.int32(count), *graph, *tables, stops, adjacent, sums)
    )
    return count


def grid_couplings(indptr, indices, data, diag, nx, ny, hole, sums):
    """A row that does not fit the grid, and the couplings along its directions; see kernels/reference/partition.py."""
    found = cupy.empty(7, np.int64)
    set_zero(found[:6])
    set_pending(found[6:])
    grid = np.int32(nx), np.int32(ny), np.int32(hole)
    _each("grid_couplings", (data.dtype,), np.int32(diag.size), indptr, indices, data, diag, *grid, found)
    found = found.get()
    sums[:] = found[:6]
    return int(found[6])


def bricks(nx, ny, nz, kx, ky, kz, hole, parts):
    """The brick of each node; see kernels/reference/partition.py."""
    sizes = (np.int32(k) for k in (nx, ny, nz, kx, ky, kz, hole))
    _each("bricks", (), np.int32(parts.size), *sizes, parts)
