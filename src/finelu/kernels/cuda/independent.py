"""Launchers of independent.cu: elimination of many pivots at a time that are not coupled to each other."""

from __future__ import annotations

from functools import partial

import cupy
import numpy as np

from finelu import deadline
from finelu.device import free_memory
from finelu.errors import MatrixError
from finelu.kernels.cuda.indices import pointers
from finelu.kernels.cuda.pattern import columns_of
from finelu.kernels.cuda.runtime.launch import (
    BLOCK,
    NULL,
    blocks,
    device_limits,
    for_each,
    kernel,
    most_shared,
    optional,
)
from finelu.kernels.cuda.runtime.memory import set_zero
from finelu.kernels.cuda.vectors import gather
from finelu.kernels.operands import CSR, INT32_LIMIT

_each = partial(for_each, "independent")

LANES = 8  # as in independent.cu
WARPS = 4  # of a block, as in growing.cuh
SIZES = 128, 256, 512, 1024, 2048, 4096  # of tables, except for the last class; with that CLASSES in independent.cu
SHARED = 2**16  # bytes of shared memory that a block takes, unless one row needs more
LARGEST = 2**30  # of a table
BLOCKS, TABLES = 16, 4  # most of a multiprocessor, with their tables in its memory and elsewhere
AT_ONCE = 4  # looks at all rows, before the host asks whether all are decided
LEAST_ROOM = 2**16  # entries that the pool of new ones has at least
CHOSEN = 3  # the state of a row that is a pivot


def choose(S, T, l_nu, u_nu, condest, pivot_tol, least=0.0):
    """state (m,), d (m,); see kernels/reference/independent.py. The host waits a few times."""
    m, index, real = S.n, S.indices.dtype, np.dtype(S.dtype.char.lower())
    with np.errstate(over="ignore"):
        condest, pivot_tol = min(real.type(condest), np.finfo(real).max), real.type(pivot_tol)
    d, keys, state = cupy.empty(m, S.dtype), cupy.empty(m, np.uint64), cupy.empty(m, np.uint8)
    given = S.indptr, S.indices, S.data, T.indptr, T.indices, T.data, l_nu, u_nu
    limits = real.type(condest), pivot_tol, real.type(least)
    _each("weigh", (S.dtype, real, index), index.type(m), *given, *limits, d, keys, state, lanes=LANES)
    left = cupy.empty(1, np.uint32)
    look, grid = kernel("independent", "decide", index), (blocks(m * LANES, BLOCK),)
    while True:
        for _ in range(AT_ONCE):
            set_zero(left)
            look(grid, (BLOCK,), (index.type(m), S.indptr, S.indices, T.indptr, T.indices, keys, state, left))
        if not int(left.item()):
            return state, d


def split(state, index):
    """number (m + 1,), how many rows that are not chosen come before each; these rows; and those that are chosen."""
    m, index = state.size, np.dtype(index)
    flags = cupy.empty(m, index)
    _each("rest_flags", (index,), index.type(m), state, flags)
    number, r = pointers(flags)
    rest, pivots = cupy.empty(r, index), cupy.empty(m - r, index)
    _each("split", (index,), index.type(m), state, number, rest, pivots)
    return number, rest, pivots


def pivot_rows(S, state, d, nu, drop_tol, most):
    """U, and how many entries were dropped by tolerance and by the limit; see kernels/reference/independent.py."""
    m, index, real = S.n, S.indices.dtype, np.dtype(S.dtype.char.lower())
    with np.errstate(over="ignore"):
        drop_tol = real.type(drop_tol)
    lengths, cut, ties = cupy.empty(m, index), cupy.empty(m, np.float64), cupy.empty(m, np.int64)
    dropped = cupy.empty(2, np.uint64)
    set_zero(dropped)
    types, given = (S.dtype, real, index), (S.indptr, S.indices, S.data, state, d, nu, drop_tol, np.int64(most))
    head = index.type(m), *given, lengths, cut, ties, dropped
    _each("pivot_rows", (*types, False), *head, NULL, NULL, NULL, lanes=32)
    starts, total = pointers(lengths)
    columns, values = cupy.empty(total, index), cupy.empty(total, S.dtype)
    _each("pivot_rows", (*types, True), *head, starts, columns, values, lanes=32)
    return CSR(starts, columns, values, None), dropped


def signs(U, state, nu):
    """-xi (m,); see kernels/reference/independent.py."""
    m, index, real = state.size, U.indices.dtype, np.dtype(U.data.dtype.char.lower())
    out = cupy.empty(m, nu.dtype)
    given = U.indptr, U.indices, U.data, state, nu, out
    _each("signs", (nu.dtype, real, index), index.type(m), *given, lanes=32)
    return out


def transposed(U):
    """The transpose of a CSR (m, m), sorted."""
    if U.nnz == 0:
        return U
    indptr, rows, places = columns_of(U)
    return CSR(indptr, rows, gather(U.data, places), None)


def remainder(S, L, U, d, state, number, drop_tol, symmetric):
    """S - L D U on the rows that are not chosen, and the first bad row; see kernels/reference/independent.py.

    number : of `split`. The host waits two times, and once more where the room was too small.
    """
    m, index, real = S.n, S.indices.dtype, np.dtype(S.dtype.char.lower())
    with np.errstate(over="ignore"):
        drop_tol = real.type(drop_tol)
    r = int(number[m:].item())
    if r == 0:
        none = cupy.zeros(0, index)
        return CSR(cupy.zeros(1, index), none, cupy.empty(0, S.dtype), none), -1
    whole = 1 << (2 * r + 63).bit_length()  # in which any row has a place
    sizes = np.array([*SIZES, max(whole, SIZES[-1])], np.int64)
    if sizes[-1] > LARGEST:
        raise MatrixError(f"{r} rows are left, more than {LARGEST // 2}: the GPU has no table for them.")
    sizes = sizes.astype(np.int32)
    on_device = cupy.asarray(sizes)
    lists, words = cupy.empty((sizes.size + 1, m), index), cupy.empty(sizes.size + 1, np.uint32)
    place, length = cupy.empty(r, np.int64), cupy.empty(r, index)
    sums = cupy.empty(2, np.uint64)
    row_size, column_size = cupy.empty(r, real), cupy.empty(r, real)
    room = max(LEAST_ROOM, int(1.5 * S.nnz))
    while True:
        deadline.check()
        set_zero(words)
        set_zero(sums)
        set_zero(column_size)
        pattern = S.indptr, L.indptr, L.indices, U.indptr
        _each("classify", (index,), index.type(m), *pattern, state, on_device, lists, words)
        columns, values = cupy.empty(room, index), cupy.empty(room, S.dtype)
        arrays = tuple(part for M in (S, L, U) for part in (M.indptr, M.indices, M.data))
        out = columns, values, np.int64(room), sums, place, length, row_size, column_size, sums[1:]
        for c, size in enumerate(sizes):
            count = r if c < len(SIZES) else int(words[c].item())
            if count:
                run, grid, warps, shared, scratch = _shape((S.dtype, real, index), bool(symmetric), count, int(size), d)
                given = index.type(m), *arrays, d, state, number, lists[c], words[c:], lists[c + 1], *out
                run((grid,), (32 * warps,), (*given, optional(scratch), np.int32(size)), shared_mem=shared)
        used, bad = (int(word) for word in sums.get())
        if used <= room:
            break
        room = used
    if symmetric:
        column_size = row_size
    lengths, types = cupy.empty(r, index), (S.dtype, real, index)
    head = index.type(r), place, length, columns, values, row_size, column_size, drop_tol, lengths
    _each("kept_rows", (*types, False), *head, NULL, NULL, NULL, lanes=LANES)
    starts, total = pointers(lengths)
    if total > INT32_LIMIT and index == np.int32:
        raise MatrixError(f"{total} entries are left of the matrix, more than 32-bit indices can count; drop more.")
    out_columns, out = cupy.empty(total, index), cupy.empty(total, S.dtype)
    _each("kept_rows", (*types, True), *head, starts, out_columns, out, lanes=LANES)
    return CSR(starts, out_columns, out, None), (~bad & (2**64 - 1) if bad else -1)


def _shape(types, symmetric: bool, rows: int, size: int, like):
    """(kernel, blocks, warps and bytes of shared memory of each, memory for the tables elsewhere or None)."""
    processors, column = device_limits()["processors"], types[0].itemsize + types[2].itemsize
    run, of_row = kernel("independent", "remaining_rows", *types, "unsigned short", symmetric), size * (column + 4)
    if size <= SIZES[-1] and of_row <= most_shared(run):
        warps = max(1, min(WARPS, SHARED // of_row))
        return run, min(blocks(rows, warps), BLOCKS * processors), warps, warps * of_row, None
    run, of_block = kernel("independent", "remaining_rows", *types, "unsigned", symmetric), WARPS * size * (column + 8)
    grid = max(1, min(blocks(rows, WARPS), TABLES * processors, free_memory(like) // 4 // of_block))
    return run, grid, WARPS, 0, cupy.empty(grid * of_block, np.uint8)
