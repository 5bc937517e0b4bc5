"""Launchers of scaling.cu."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import blocks, kernel, optional
from finelu.kernels.cuda.runtime.memory import set_bytes

BLOCK, LANES = 256, 8  # as in scaling.cu


def scale(A, out, below, above):
    """out (nnz,) = A's values, times left[i] right[j]; see kernels/reference/scaling.py. Returns out."""
    vectors = (optional(v) for v in (*below, *above))
    real = np.dtype(A.dtype.char.lower())
    kernel("scaling", "scale", A.dtype, real, A.indices.dtype)(
        (blocks(A.n * LANES, BLOCK),),
        (BLOCK,),
        (A.indices.dtype.type(A.n), A.indptr, A.indices, A.data, *vectors, out),
    )
    return out


def divide_by_pivots(F, out, refused):
    """Divide what is below the diagonal by the pivot of its column; see kernels/reference/scaling.py. Returns out."""
    index = F.indices.dtype
    kernel("scaling", "divide_by_pivots", out.dtype, index)(
        (blocks(F.n * LANES, BLOCK),), (BLOCK,), (index.type(F.n), F.indptr, F.indices, F.diag, out, refused)
    )
    return out


def pivots(A, cholesky: bool):
    """(d, bad, plain): see kernels/reference/scaling.py. Waits for the host, once."""
    d, found = cupy.empty(A.n, A.dtype.char.lower()), _no_rows(2)
    index = A.indices.dtype
    kernel("scaling", "pivots", A.dtype, d.dtype, index)(
        (blocks(A.n, BLOCK),), (BLOCK,), (index.type(A.n), A.diag, A.data, np.int32(cholesky), d, found)
    )
    bad, other = (int(row) for row in found.get())
    return d, bad if bad < A.n else -1, other >= A.n


def dropping_weights(F, diagonal, cholesky: bool):
    """What entries are multiplied by before they are compared; see kernels/reference/scaling.py."""
    found, index = cupy.empty((3, F.n), F.dtype.char.lower()), F.indices.dtype
    kernel("scaling", "dropping_weights", F.dtype, found.dtype, index)(
        (blocks(F.n, BLOCK),), (BLOCK,), (index.type(F.n), F.diag, F.data, diagonal, np.int32(cholesky), *found)
    )
    return tuple(found)


def first_unusable(F) -> int:
    """The first row with a value that is not finite or a zero pivot, or -1. Waits for the host, once."""
    found, index = _no_rows(1), F.indices.dtype
    kernel("scaling", "unusable", F.dtype, index)(
        (blocks(F.n * LANES, BLOCK),), (BLOCK,), (index.type(F.n), F.indptr, F.diag, F.data, found)
    )
    row = found.item()
    return row if row < F.n else -1


def row_norms(indptr, data):
    """The 2-norm of each row (n,) float64; see kernels/reference/scaling.py. Waits for nothing."""
    n, norms = indptr.size - 1, cupy.empty(indptr.size - 1, np.float64)
    kernel("scaling", "row_norms", data.dtype, indptr.dtype)(
        (blocks(n * LANES, BLOCK),), (BLOCK,), (indptr.dtype.type(n), indptr, data, norms)
    )
    return norms


def definite_scale(A, out) -> bool:
    """Whether A may be positive definite, and scales; see kernels/reference/scaling.py. Waits for the host, once."""
    bad, index = cupy.empty(1, np.uint32), A.indices.dtype
    set_bytes(bad, 0)
    limit = out.dtype.type(1 + 8 * np.finfo(out.dtype).eps)
    kernel("scaling", "definite_scale", A.dtype, out.dtype, index)(
        (blocks(A.n * LANES, BLOCK),), (BLOCK,), (index.type(A.n), A.indptr, A.indices, A.diag, A.data, limit, out, bad)
    )
    return int(bad.item()) == 0


def _no_rows(k: int):
    """(k,) places for the smallest of many rows, larger than any at first."""
    found = cupy.empty(k, np.int64)
    set_bytes(found, 0x7F)
    return found
