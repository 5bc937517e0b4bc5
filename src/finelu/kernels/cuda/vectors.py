"""Launchers of vectors.cu: inner products, norms, scaled gathers and scatters."""

from __future__ import annotations

from functools import partial

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import blocks, by_columns, kernel, optional, over_elements, summing

NONE = np.uint64(2**64 - 1)  # a place that is none
_sum = partial(summing, "vectors")


def dot(x, y, out):
    _sum("dot", x, x, y, out)


def dotu(x, y, out):
    _sum("dotu", x, x, y, out)


def norm(x, out):
    _sum("norm", x, x, out)


def dot_and_norm(x, y, out, size):
    _sum("dot_and_norm", x, x, y, out, size)


def gather(x, places):
    return x[places]


def difference(b, y, r):
    over_elements("vectors", "difference", r, b, y, r)


def first_not_finite(x) -> int:
    """The first place of NaN or Inf, -1 for none; waits for the device."""
    found = cupy.asarray(np.full(1, NONE))
    over_elements("vectors", "first_not_finite", x, x, found)
    first = int(found.item())
    return -1 if first == NONE else first


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
    parts = s, optional(t), optional(w)
    if out.size:
        kernel("vectors", "scatter_scaled", s.dtype, index)(
            (blocks(places.size, BLOCK), grid), (BLOCK,), (*sizes, places, scale, *parts, out)
        )
    return out


def first_bad(bad) -> int:
    """The row a kernel reported, or -1; waits for the device."""
    return int(bad.item())
