"""Inner products and norms by cuBLAS; launchers of vectors.cu: scaled gathers and scatters."""

from __future__ import annotations

import cupy
import numpy as np
from cupy import cublas

from finelu.errors import ParameterError
from finelu.kernels.cuda.runtime.launch import blocks, kernel
from finelu.kernels.cuda.runtime.row_products import NULL
from finelu.kernels.cuda.runtime.schedule import (
    set_pending,
)


def dot(x, y, out):
    cublas.dotc(x, y, out=out)


def dotu(x, y, out):
    cublas.dotu(x, y, out=out)


def norm(x, out):
    cublas.nrm2(x, out=out)


def size_of_dot(x, y, out):
    total = _sum_of_complex_products if x.dtype.kind == "c" else _sum_of_products
    total(x, y, out.reshape(()))


_sum_of_products = cupy.ReductionKernel(
    "T x, T y", "T total", "abs(x) * abs(y)", "a + b", "total = a", "0", "finelu_size_of_dot"
)

_sum_of_complex_products = cupy.ReductionKernel(
    "C x, C y",
    "T total",
    "(abs(x.real()) + abs(x.imag())) * (abs(y.real()) + abs(y.imag()))",
    "a + b",
    "total = a",
    "0",
    "finelu_size_of_complex_dot",
)

BLOCK = 256
MOST_COLUMNS = 65535  # of a grid's second dimension


def columns_in(x) -> int:
    return 1 if x.ndim == 1 else x.shape[1]


def by_columns(n: int, like):
    """(n,) or (n, columns), as `like`; the columns as a grid's dimension and as an argument."""
    if columns_in(like) > MOST_COLUMNS:
        raise ParameterError(f"{columns_in(like)} right-hand sides at once; the GPU takes at most {MOST_COLUMNS}.")
    return cupy.empty((n, *like.shape[1:]), like.dtype), columns_in(like), np.int32(columns_in(like))


def gather_scaled(rows, scale, r):
    """scale_i r[rows_i]; see kernels/reference/vectors.py."""
    r = cupy.ascontiguousarray(r)
    out, grid, columns = by_columns(rows.size, r)
    index = rows.dtype
    if out.size:
        kernel("vectors", "gather_scaled", r.dtype, index)(
            (blocks(rows.size, BLOCK), grid), (BLOCK,), (index.type(rows.size), columns, rows, scale, r, out)
        )
    return out


def scatter_scaled(places, scale, s, t, w):
    """scale_i (s - t, w)_i at places_i; see kernels/reference/vectors.py. t and w may be None."""
    out, grid, columns = by_columns(places.size, s)
    index = places.dtype
    sizes = index.type(places.size), index.type(s.shape[0]), columns
    parts = s, NULL if t is None else t, NULL if w is None else w
    if out.size:
        kernel("vectors", "scatter_scaled", s.dtype, index)(
            (blocks(places.size, BLOCK), grid), (BLOCK,), (*sizes, places, scale, *parts, out)
        )
    return out


def first_bad(bad) -> int:
    """The row a kernel reported, or -1; waits for the device."""
    return int(bad.item())


def new_bad():
    """A place for the first bad row, empty."""
    bad = cupy.empty(1, np.int32)
    set_pending(bad)
    return bad
