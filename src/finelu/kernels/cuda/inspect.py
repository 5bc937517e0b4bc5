"""Launchers of inspect.cu."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.launch import blocks, device_limits, kernel

BLOCK = 256
RESIDENT = 8  # thread blocks of a multiprocessor
NONE = np.uint64(2**64 - 1)


def inspect(indptr, indices, data, diag):
    """Soundness of a CSR matrix, and its diagonal; see kernels/reference.py. Six numbers go to the host."""
    n = indptr.size - 1
    found = cupy.array([NONE, 0, 0, NONE, 0, NONE], dtype=np.uint64)
    kernel("inspect", "inspect", data.dtype.name, indices.dtype.name)(
        (blocks(n, BLOCK),),
        (BLOCK,),
        (indices.dtype.type(n), indices.dtype.type(indices.size), indptr, indices, data, diag, found),
    )
    return tuple(-1 if value == NONE else int(value) for value in found.get())


def mirrored(indptr, indices, data):
    """A matrix beside its transpose; see kernels/reference.py. Four numbers go to the host."""
    found = cupy.zeros(4, np.uint64)
    grid = min(blocks(indices.size, BLOCK), RESIDENT * device_limits()["processors"])
    kernel("inspect", "mirrored", data.dtype.name, indices.dtype.name)(
        (grid,), (BLOCK,), (indices.dtype.type(indptr.size - 1), indptr, indices, data, found)
    )
    words = found.get()
    return *(float(size) for size in words[:3].view(np.float64)), int(words[3])
