"""Launchers of inspection.cu."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import blocks, device_limits, kernel

BLOCK = 256
RESIDENT = 8  # thread blocks of a multiprocessor
NONE = np.uint64(2**64 - 1)


def inspect(indptr, indices, data, diag):
    """Soundness of a CSR matrix, and its diagonal; see kernels/reference/inspection.py. Six numbers go to the host."""
    n = indptr.size - 1
    found = cupy.array([NONE, 0, 0, NONE, 0, NONE], dtype=np.uint64)
    kernel("inspection", "inspect", data.dtype.name, indices.dtype.name)(
        (blocks(n, BLOCK),),
        (BLOCK,),
        (indices.dtype.type(n), indices.dtype.type(indices.size), indptr, indices, data, diag, found),
    )
    return tuple(-1 if value == NONE else int(value) for value in found.get())


def mirrored(indptr, indices, data, diag):
    """What A has in common with its transpose; see kernels/reference/inspection.py. Six numbers go to the host."""
    n, types = indptr.size - 1, (data.dtype.name, indices.dtype.name)
    root, found = cupy.empty(n), cupy.zeros(6, np.uint64)
    kernel("inspection", "roots", *types)(
        (blocks(n, BLOCK),), (BLOCK,), (indices.dtype.type(n), indptr, data, diag, root)
    )
    grid = min(blocks(indices.size, BLOCK), RESIDENT * device_limits()["processors"])
    kernel("inspection", "mirrored", *types)(
        (grid,), (BLOCK,), (indices.dtype.type(n), indptr, indices, data, root, found)
    )
    words = found.get()
    return *(float(size) for size in words[:5].view(np.float64)), int(words[5])
