"""Launchers of batch.cu: many systems of one pattern, 32 of them in a thread block."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.device import free_memory
from finelu.errors import ParameterError
from finelu.kernels.cuda.runtime.launch import BLOCK, blocks, device_limits, kernel

GROUP = 32  # systems of a group, as in batch.cuh
WARPS = 8  # of a block, which share the rows of its group
TOGETHER = 8  # blocks a multiprocessor for which `solve_direct` has room: no more run at a time
PART = 0.5  # of the free memory that this room may take
MOST_GROUPS = 65535  # of a grid's second dimension


def prepared(plan):
    """The plan as the kernels take it: with the level sets, and the products that are subtracted from each entry."""
    indptr, indices, diag = (part.get() for part in plan[:3])
    n = diag.size
    order, starts = _level_sets(indptr[:-1], diag, indices, range(n))
    upper_order, upper_starts = _level_sets(diag + 1, indptr[1:], indices, range(n - 1, -1, -1))
    sets = order, starts, upper_order, upper_starts, *_products(indptr, indices, diag)
    counts = np.int32(n), np.int32(starts.size - 1), np.int32(upper_starts.size - 1)
    return (*counts, *plan, *(cupy.asarray(part.astype(np.int32)) for part in sets))


def _level_sets(begin, end, indices, rows):
    """The rows in the order of their levels, and where levels begin; entries begin[i]..end[i] - 1 come before row i."""
    level = np.zeros(begin.size, np.int64)
    for i in rows:
        if begin[i] < end[i]:
            level[i] = 1 + level[indices[begin[i] : end[i]]].max()
    return np.argsort(level, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(level))])


def _products(indptr, indices, diag):
    """begin (m + 1,), left, right: the products of entries left[u] and right[u], begin[p] <= u < begin[p + 1], are
    subtracted from entry p.

    Of (i, k) below the diagonal and all (k, j) behind it, those whose (i, j) is in the pattern; by ascending k.
    """
    n, m = diag.size, indices.size
    row = np.repeat(np.arange(n), np.diff(indptr))
    below = np.flatnonzero(indices < row)
    first, counts = diag[indices[below]] + 1, indptr[indices[below] + 1] - diag[indices[below]] - 1
    left = np.repeat(below, counts)
    right = np.arange(left.size) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    wanted, keys = row[left] * np.int64(n) + indices[right], row * np.int64(n) + indices
    target = np.minimum(np.searchsorted(keys, wanted), m - 1)
    kept = np.flatnonzero(keys[target] == wanted)
    kept = kept[np.argsort(target[kept], kind="stable")]
    begin = np.concatenate([[0], np.cumsum(np.bincount(target[kept], minlength=m))])
    return begin, left[kept], right[kept]


def room(systems, entries, like):
    """Room for the factors of that many systems, of the dtype of `like`; `solve` reads them."""
    return cupy.empty((blocks(systems, GROUP), entries * GROUP), like.dtype)


def factor(plan, values, guard, positive, lu, first_bad, replaced):
    """The factors of every system; see kernels/reference/batch.py. Waits for nothing."""
    k, nnz = values.shape
    real = values.real.dtype.type
    given = np.int32(nnz), np.int32(k), grouped(values), real(guard), np.int32(positive)
    kernel("batch", "factor_groups", values.dtype)(
        (blocks(k, GROUP),), (WARPS * GROUP,), (*plan, *given, lu, first_bad, replaced)
    )


def solve(plan, lu, r, x):
    """x = (L U)^-1 r for every system; see kernels/reference/batch.py. Waits for nothing."""
    k = x.shape[0]
    r = grouped(r, k)
    y, found = cupy.empty_like(r), cupy.empty_like(r)
    kernel("batch", "solve_groups", x.dtype)(
        (blocks(k, GROUP),), (WARPS * GROUP,), (*plan, np.int32(k), lu, r, y, found)
    )
    separate(found, x)


def solve_direct(matrix, plan, values, b, limits, tolerance, x, norms, roundings, errors, steps, first_bad, replaced):
    """x = A^-1 b for every system, refined; see kernels/reference/batch.py. Waits for nothing.

    Copies of values, b and x are made of as many systems at a time as the free memory takes. The room for factors is
    that of the blocks that run at a time, or of fewer.
    """
    k, nnz = values.shape
    n, entries = x.shape[1], plan[4].size
    guard, wanted, most = limits
    fitting = int(PART * free_memory(x) / ((nnz + 2 * n) * x.dtype.itemsize)) // GROUP * GROUP
    piece = max(min(fitting, MOST_GROUPS * GROUP), GROUP)
    if k > piece:
        for begin in range(0, k, piece):
            own = slice(begin, begin + piece)
            results = (each[own] for each in (x, norms, roundings, errors, steps, first_bad, replaced))
            rhs = b[own] if len(b) > 1 else b
            solve_direct(matrix, plan, values[own], rhs, limits, tolerance[own], *results)
        return
    a, b, found = grouped(values), grouped(b, k), cupy.empty((blocks(k, GROUP), n, GROUP), x.dtype)
    fitting = int(PART * free_memory(x) / ((entries + 3 * n) * GROUP * x.dtype.itemsize))
    grid = max(min(blocks(k, GROUP), TOGETHER * device_limits()["processors"], fitting), 1)
    lu = cupy.empty((grid, entries * GROUP), x.dtype)
    work = cupy.empty((grid, 3 * n * GROUP), x.dtype)
    limits = np.finfo(x.dtype)
    real = x.real.dtype.type
    numbers = real(guard), real(wanted), np.int32(most), real(limits.eps), real(limits.tiny)
    pattern = pattern_of(matrix)
    results = norms, roundings, errors, steps, first_bad, replaced
    kernel("batch", "solve_direct_groups", x.dtype)(
        (grid,),
        (WARPS * GROUP,),
        (*plan, np.int32(nnz), np.int32(k), *pattern, a, b, *numbers, tolerance, lu, work, found, *results),
    )
    separate(found, x)


def residual_twice(matrix, values, b, x, which, norms):
    """Norms of b - A x in twice the precision; see kernels/reference/batch.py. Waits for nothing."""
    pattern = pattern_of(matrix)
    sizes = np.int32(x.shape[1]), np.int32(values.shape[1]), np.int32(b.shape[0])
    kernel("batch", "residual_twice", x.dtype)((which.size,), (BLOCK,), (*sizes, *pattern, values, x, b, which, norms))


def pattern_of(matrix):
    return tuple(part.astype(np.int32, copy=False) for part in (matrix.indptr, matrix.indices))


def grouped(rows, k=None):
    """rows (k, length), or (1, length) for all k, as (groups, length, 32)."""
    given, length = rows.shape
    groups = _groups(given if k is None else k)
    out = cupy.empty((groups, length, GROUP), rows.dtype)
    launch = kernel("batch", "interleave", rows.dtype)
    launch((blocks(length, GROUP), groups), (GROUP, WARPS), (np.int32(given), np.int32(length), rows, out))
    return out


def separate(found, rows):
    """The reverse of `grouped`, into rows (k, length)."""
    k, length = rows.shape
    launch = kernel("batch", "separate", rows.dtype)
    grid = blocks(length, GROUP), found.shape[0]
    launch(grid, (GROUP, WARPS), (np.int32(k), np.int32(length), found, rows))


def _groups(systems):
    groups = blocks(systems, GROUP)
    if groups > MOST_GROUPS:
        raise ParameterError(f"a Batch of {systems} systems; the GPU takes at most {MOST_GROUPS * GROUP} at once.")
    return groups
