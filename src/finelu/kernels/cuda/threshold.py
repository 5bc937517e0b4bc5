"""Launchers of threshold.cu: ILUT by rows and ICT; and `grow`, for kernels that find the pattern of their rows as they
proceed: it runs them again with more memory if theirs was too small, see runtime/growing.cuh."""

from __future__ import annotations

from typing import NamedTuple

import cupy
import numpy as np

from finelu import deadline
from finelu.device import free_memory
from finelu.errors import MatrixError
from finelu.kernels.cuda.indices import pointers, shifted
from finelu.kernels.cuda.pattern import columns_of
from finelu.kernels.cuda.runtime.launch import blocks, device_limits, for_each, kernel, most_shared, optional
from finelu.kernels.cuda.runtime.memory import set_pending, set_zero
from finelu.kernels.cuda.vectors import gather
from finelu.kernels.operands import CSR, INT32_LIMIT, Factored

WARPS = 4  # of a block, as in growing.cuh
SMALLEST, LARGEST = 256, 2**23  # columns that the table of a row has places for
SHARED = 1024  # most of a table in shared memory: larger ones leave too few rows at a time
TABLE_FULL, POOL_FULL = 1, 2  # as in growing.cuh
ROOM = 4  # times the entries of A, of the pool at first
BLOCKS = 16  # most of a multiprocessor
NONE, UNLIMITED = 2**32 - 1, 2**62  # no row; a number of entries that none has


class Grown(NamedTuple):
    """The result of a kernel for n rows.

    bad : the first bad row, -1 if none.  pivot : its own.  stored : entries, more than `most` where it ended for that.
    indptr (n + 1,), indices, data (stored,), diag (n,) : the rows, of A's index type; None where there are not all.
    """

    bad: int
    pivot: object
    stored: int
    indptr: object = None
    indices: object = None
    data: object = None
    diag: object = None


def grow(launched: tuple, indices, n: int, value, most: int, *arguments, values: bool = True) -> Grown:
    """Run a kernel for n rows, with `arguments` before those that all such kernels have.

    launched : as `kernel` takes it, without the type of the numbers of slots.  indices : of A, or an array with as many
        entries.  value : dtype of what the pool holds of a column.  most : entries that may be made.
    values : whether they are wanted. The host waits once for each launch, of which another follows where there was too
    little room, and once for the size. Cost: that of the kernel, and a copy.
    """
    index, value = indices.dtype, np.dtype(value)
    size, room = SMALLEST, min(max(ROOM * indices.size, n), most)
    ready, before, pivots = cupy.empty(n, np.uint64), cupy.empty(n, np.int32), cupy.empty(n, value)
    columns, data, state = cupy.empty(room, index), cupy.empty(room, value), cupy.empty(5, np.int64)
    set_pending(ready)
    set_zero(state)
    set_pending(state[3:4])
    while True:
        deadline.check()
        set_zero(state[1:2])
        set_pending(state[2:3])
        run, grid, shared, scratch = _shape(launched, n, size, value.itemsize + index.itemsize, ready)
        pool = columns, data, ready, before, state, np.int64(room), pivots
        run(
            (grid,),
            (32 * WARPS,),
            (index.type(n), *arguments, *pool, optional(scratch), np.int32(size)),
            shared_mem=shared,
        )
        stored, ended, _, bad, end = (int(word) for word in state.get())
        if not ended:
            break
        if ended & POOL_FULL:
            stored = end
            state[0] = stored
        if ended & TABLE_FULL:
            size *= 2
        if size > LARGEST and most == UNLIMITED:
            raise MatrixError(f"a row of the factors meets more than {LARGEST * 3 // 4} columns; allow less fill.")
        if size > LARGEST or (ended & POOL_FULL and room == most):  # a bad row may be known, or not yet
            return Grown(-1, np.nan, most + 1)
        if ended & POOL_FULL:
            room = min(2 * room, most)
            columns, data = _longer(columns, room, stored), _longer(data, room, stored)
    if (bad := bad & NONE) != NONE:
        return Grown(bad, pivots[bad].item(), stored)
    return Grown(-1, 0, stored, *_collected(ready, before, columns, data, values))


def _shape(launched: tuple, n: int, size: int, bytes_of_column: int, like):
    """(kernel, blocks, bytes of shared memory of each, memory for the tables elsewhere or None)."""
    grid = min(blocks(n, WARPS), BLOCKS * device_limits()["processors"])
    run, of_block = kernel(*launched, "unsigned short"), WARPS * size * (bytes_of_column + 4)
    if size <= SHARED and of_block <= most_shared(run):
        return run, grid, of_block, None
    run, of_block = kernel(*launched, "unsigned"), WARPS * size * (bytes_of_column + 8)
    grid = max(1, min(grid, free_memory(like) // 4 // of_block))
    return run, grid, 0, cupy.empty(grid * of_block, np.uint8)


def _longer(array, size: int, stored: int):
    """An array of `size` with the first `stored` numbers of this one."""
    longer = cupy.empty(size, array.dtype)
    longer.data.copy_from_device_async(array.data, stored * array.itemsize)
    return longer


def _collected(ready, before, columns, data, values: bool):
    """indptr, indices, data and diag of the rows in the pool, one after the other."""
    n, lengths = ready.size, cupy.empty(ready.size, np.int64)
    for_each("runtime/growing", "pool_lengths", (), np.int64(n), ready, before, lengths)
    indptr, stored = pointers(lengths)
    index = columns.dtype if stored <= INT32_LIMIT else np.dtype(np.int64)
    indptr, columns = shifted(indptr, 0, index), shifted(columns[:stored], 0, index)
    indices, diag = cupy.empty(stored, index), cupy.empty(n, index)
    out = cupy.empty(stored, data.dtype) if values else None
    given = index.type(n), ready, before, columns, data, indptr, indices, optional(out), diag
    for_each("runtime/growing", "collect", (data.dtype, index), *given, lanes=32)
    return indptr, indices, out, diag


def _turns(indptr, indices):
    """The rows (n,) int32 of a matrix of diagonal blocks in the order in which warps take them: the first of each
    block, the second of each, ..., so that blocks do not wait for each other; None where there is one block.

    indptr, indices : CSR of all entries, or of a triangle; columns ascending. A row needs only rows before it in its
    block. Waits once for the number of blocks.
    """
    n, types = indptr.size - 1, (indices.dtype,)
    crossing, begins, places = cupy.empty(n + 1, np.int32), cupy.empty(n, np.int32), cupy.empty(n, np.int32)
    set_zero(crossing)
    for_each("threshold", "mark_couplings", types, indices.dtype.type(n), indptr, indices, crossing)
    for_each("threshold", "block_begins", (), np.int32(n), cupy.cumsum(crossing, dtype=np.int32), begins)
    until, blocks_in_all = pointers(begins)
    if blocks_in_all == 1:
        return None
    starts = cupy.empty(blocks_in_all, np.int32)
    for_each("threshold", "block_starts", (), np.int32(n), until, starts)
    for_each("threshold", "places_in_blocks", (), np.int32(n), until, starts, places)
    return shifted(cupy.argsort(places, kind="stable"), 0, np.int32)


def ilut(A, tau, fill, most) -> Factored:
    """ILUT by rows; see kernels/reference/threshold.py, and kernels/cpu/threshold.py for the arguments.

    Where it stopped for the sake of `most`, half of the rows count as finished: how many were depends on the order of
    events. The host waits three times, and once more whenever there was too little room.
    """
    launched = "threshold", "ilut", A.dtype, A.indices.dtype
    given = A.indptr, A.indices, A.diag, A.data, tau, np.float64(fill), optional(_turns(A.indptr, A.indices))
    return _factored(A, grow(launched, A.indices, A.n, A.dtype, most, *given))


def ict(L, tau, fill, most) -> Factored:
    """ICT of the lower triangle, column by column; as `ilut`."""
    launched = "threshold", "ict", L.dtype, L.indices.dtype
    given = L.indptr, L.indices, L.data, *columns_of(L), tau, np.float64(fill), optional(_turns(L.indptr, L.indices))
    found = _factored(L, grow(launched, L.indices, L.n, L.dtype, most, *given))
    if found.rows < L.n:
        return found._replace(pivot=np.real(found.pivot))
    indptr, indices, places = columns_of(CSR(*found[3:]))
    return found._replace(indptr=indptr, indices=indices, data=gather(found.data, places), diag=shifted(indptr[1:], -1))


def _factored(A, grown: Grown) -> Factored:
    if grown.indptr is None:
        rows = A.n // 2 if grown.bad < 0 else grown.bad
        return Factored(rows, grown.stored, grown.pivot, A.indptr[:0], A.indices[:0], A.data[:0], A.diag[:0])
    return Factored(A.n, grown.stored, 1.0, grown.indptr, grown.indices, grown.data, grown.diag)
