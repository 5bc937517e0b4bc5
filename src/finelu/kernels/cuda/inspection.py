"""Launchers of inspection.cu."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import BLOCK, blocks, device_limits, for_each, kernel, over_elements
from finelu.kernels.cuda.runtime.memory import counter, set_zero

LANES = 8  # threads of a row, in `signs`
RESIDENT = 8  # thread blocks of a multiprocessor
ALL = 2**64 - 1  # all bits of a word


def inspect(indptr, indices, data, diag):
    """Soundness of a CSR matrix, and its diagonal; see kernels/reference/inspection.py. Six numbers go to the host."""
    index, found = indices.dtype, cupy.zeros(6, np.uint64)
    sizes = index.type(indptr.size - 1), index.type(indices.size)
    for_each("inspection", "inspect", (data.dtype, index), *sizes, indptr, indices, data, diag, found)
    corrupt, unsorted, strange, first_strange, missing, first_missing = (int(value) for value in found.get())
    return _row(corrupt), unsorted, strange, _row(first_strange), missing, _row(first_missing)


def mirrored(indptr, indices, data, diag):
    """A compared with its transpose; see kernels/reference/inspection.py. Six numbers go to the host."""
    n, types = indices.dtype.type(indptr.size - 1), (data.dtype, indices.dtype)
    root, found = cupy.empty(int(n)), cupy.zeros(6, np.uint64)
    for_each("inspection", "roots", types, n, indptr, data, diag, root)
    grid = _grid(indices.size)
    kernel("inspection", "mirrored", *types)((grid,), (BLOCK,), (n, indptr, indices, data, root, found))
    words = found.get()
    return *(float(size) for size in words[:5].view(np.float64)), int(words[5])


def diagonal(data, diag):
    """Rows without a diagonal entry, with one of 0, without a positive one; see kernels/reference/inspection.py. Five
    numbers go to the host."""
    found = cupy.zeros(5, np.uint64)
    for_each("inspection", "diagonal", (data.dtype, diag.dtype), diag.dtype.type(diag.size), data, diag, found)
    missing, first_missing, zero, first_zero, others = (int(value) for value in found.get())
    return missing, _row(first_missing), zero, _row(first_zero), others


def _grid(items: int) -> int:
    """Blocks for this many items, at most as many as the device takes at a time."""
    return min(blocks(items, BLOCK), RESIDENT * device_limits()["processors"])


def _row(word: int) -> int:
    """The least row, of which its complement was kept as the largest; -1 for none."""
    return ~word & ALL if word else -1


def signs(indptr, data, diag, tolerance, share):
    """Facts from the signs of a real matrix; see kernels/reference/inspection.py. Four numbers go to the host."""
    n, index = diag.size, indptr.dtype
    grid = _grid(LANES * n)
    found = cupy.zeros(4, np.uint64)
    kernel("inspection", "signs", data.dtype, index)(
        (grid,),
        (BLOCK,),
        (
            *(index.type(n), indptr, data, diag, np.float64(tolerance), np.float64(share)),
            *(cupy.empty(2 * grid), counter(), found[:2], found[2:]),
        ),
    )
    found = found.get()
    return *(float(v) for v in found[:2].view(np.float64)), *(int(v) for v in found[2:])


def same(a, b) -> bool:
    """Whether two integer arrays (n,) are of one dtype and equal. Waits for the device."""
    if a.size != b.size or a.dtype != b.dtype:
        return False
    unlike = cupy.zeros(1, np.int32)
    over_elements("inspection", "same", a, a, b, unlike)
    return not unlike.item()


def alike(indptr, indices, data, pattern_indptr, pattern_indices) -> bool:
    """Whether a matrix has the places of another and finite values; see kernels/reference/inspection.py. One launch,
    and one number goes to the host."""
    unlike = cupy.empty(1, np.int32)
    set_zero(unlike)
    return queue_alike(indptr, indices, data, pattern_indptr, pattern_indices, 1, unlike) and not unlike.item()


def queue_alike(indptr, indices, data, pattern_indptr, pattern_indices, mark: int, unlike) -> bool:
    """`alike` without a wait: `unlike` (1,) int32 becomes `mark` where not. False: not, and nothing was queued."""
    theirs = pattern_indptr, pattern_indices
    if any(a.size != b.size or a.dtype != b.dtype for a, b in zip((indptr, indices), theirs, strict=True)):
        return False
    grid, sizes = _grid(max(indices.size, indptr.size)), (np.int64(indptr.size), np.int64(indices.size))
    kernel("inspection", "alike", data.dtype, indices.dtype)(
        (grid,), (BLOCK,), (*sizes, indptr, indices, data, *theirs, np.int32(mark), unlike)
    )
    return True
