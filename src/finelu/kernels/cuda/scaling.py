"""Launchers of scaling.cu."""

from __future__ import annotations

from functools import partial

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import for_each, optional
from finelu.kernels.cuda.runtime.memory import set_bytes, set_zero

LANES = 8  # as in scaling.cu
_each = partial(for_each, "scaling")


def scale(A, out, below, above):
    """out (nnz,) = A's values, times left[i] right[j]; see kernels/reference/scaling.py. Returns out."""
    vectors = (optional(v) for v in (*below, *above))
    real = np.dtype(A.dtype.char.lower())
    n = A.indices.dtype.type(A.n)
    _each("scale", (A.dtype, real, n.dtype), n, A.indptr, A.indices, A.data, *vectors, out, lanes=LANES)
    return out


def divide_by_pivots(F, out, refused):
    """out, with the entries below the diagonal divided by their pivots; see kernels/reference/scaling.py."""
    n = F.indices.dtype.type(F.n)
    _each("divide_by_pivots", (out.dtype, n.dtype), n, F.indptr, F.indices, F.diag, out, refused, lanes=LANES)
    return out


def pivots(A, cholesky: bool):
    """(d, bad, plain): see kernels/reference/scaling.py. Waits for the host, once."""
    d, found = cupy.empty(A.n, A.dtype.char.lower()), _no_rows(2)
    n = A.indices.dtype.type(A.n)
    _each("pivots", (A.dtype, d.dtype, n.dtype), n, A.diag, A.data, np.int32(cholesky), d, found)
    bad, other = (int(row) for row in found.get())
    return d, bad if bad < A.n else -1, other >= A.n


def dropping_weights(F, diagonal, cholesky: bool):
    """The factors by which entries are multiplied before they are compared; see kernels/reference/scaling.py."""
    found, n = cupy.empty((3, F.n), F.dtype.char.lower()), F.indices.dtype.type(F.n)
    types = F.dtype, found.dtype, n.dtype
    _each("dropping_weights", types, n, F.diag, F.data, diagonal, np.int32(cholesky), *found)
    return tuple(found)


def first_unusable(F) -> int:
    """The first row with a value that is not finite or a zero pivot, or -1. Waits for the host, once."""
    found, n = _no_rows(1), F.indices.dtype.type(F.n)
    _each("unusable", (F.dtype, n.dtype), n, F.indptr, F.diag, F.data, found, lanes=LANES)
    row = found.item()
    return row if row < F.n else -1


def row_norms(indptr, data):
    """The 2-norm of each row (n,) float64; see kernels/reference/scaling.py. Waits for nothing."""
    norms = cupy.empty(indptr.size - 1, np.float64)
    n = indptr.dtype.type(norms.size)
    _each("row_norms", (data.dtype, n.dtype), n, indptr, data, norms, lanes=LANES)
    return norms


def definite_scale(A, out) -> bool:
    """Whether A may be positive definite, and scales; see kernels/reference/scaling.py. Waits for the host, once."""
    bad, n = cupy.empty(1, np.uint32), A.indices.dtype.type(A.n)
    set_zero(bad)
    types, limit = (A.dtype, out.dtype, n.dtype), out.dtype.type(1 + 8 * np.finfo(out.dtype).eps)
    _each("definite_scale", types, n, A.indptr, A.indices, A.diag, A.data, limit, out, bad, lanes=LANES)
    return int(bad.item()) == 0


def _no_rows(k: int):
    """(k,) places for the smallest of many rows, larger than any at first."""
    found = cupy.empty(k, np.int64)
    set_bytes(found, 0x7F)
    return found
