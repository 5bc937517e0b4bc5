"""Launchers of vectors.cu: inner products, norms, scaled gathers and scatters."""

from __future__ import annotations

from functools import partial

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import (
    BLOCK,
    blocks,
    by_columns,
    device_limits,
    for_each,
    kernel,
    optional,
    over_elements,
    summing,
)
from finelu.kernels.cuda.runtime.memory import set_pending, set_zero

NONE = 2**64 - 1  # stands for no place
WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long", 16: "ulonglong2"}  # by bytes
_sum, _each = partial(summing, "vectors"), partial(for_each, "vectors")


def dot(x, y, out):
    _sum("dot", x, x, y, out)


def dotu(x, y, out):
    _sum("dotu", x, x, y, out)


def norm(x, out):
    _sum("norm", x, x, out)


def dot_and_norm(x, y, out, size):
    _sum("dot_and_norm", x, x, y, out, size)


def gather(x, places):
    """x[places], of rows if x has two dimensions; see kernels/reference/vectors.py."""
    x = cupy.ascontiguousarray(x)
    out = cupy.empty((places.size, *x.shape[1:]), x.dtype)
    columns = np.int32(x[:1].size)
    _each("gather", (WORDS[x.itemsize], places.dtype), np.int64(out.size), columns, places, x, out)
    return out


def added(x, y):
    r = cupy.empty(x.size, x.dtype)
    over_elements("vectors", "added", r, x, y, r)
    return r


def copy(x, out):
    """out = x: by the driver where both are contiguous."""
    cupy.copyto(out, x)


def difference(b, y, r):
    over_elements("vectors", "difference", r, b, y, r)


def moved_on(d, v, x, r):
    over_elements("vectors", "moved_on", x, d, v, x, r)


def turned(a, d, b, z):
    real = d.real.dtype.type
    over_elements("vectors", "turned", d, real(a), d, real(b), z)


def scaled(factor, x, out):
    over_elements("vectors", "scaled", out, factor, x, out)


def rounded(x, out, lost):
    """out = x in single precision; see kernels/reference/vectors.py. Waits for nothing."""
    set_zero(lost)
    _each("rounded", (x.dtype, out.dtype), np.int64(x.size), x, out, lost)


def largest(x):
    x, most = cupy.ascontiguousarray(x), cupy.empty(1, np.float64)
    set_zero(most)
    grid = min(blocks(x.size, BLOCK), 8 * device_limits()["processors"])
    kernel("vectors", "largest", x.dtype)((grid,), (BLOCK,), (np.int64(x.size), x, most))
    return float(x.real.dtype.type(most.item()))


def first_not_finite(x) -> int:
    """The first place of NaN or Inf, -1 for none; waits for the device."""
    found = _nothing_found()
    over_elements("vectors", "first_not_finite", x, x, found)
    return _found(found)


def first_not_positive(x, places) -> int:
    """The first i for which x[places[i]] is not above 0; see kernels/reference/vectors.py. Waits for the device."""
    found = _nothing_found()
    _each("first_not_positive", (x.dtype, places.dtype), np.int64(places.size), x, places, found)
    return _found(found)


def first_of_other_sign(x, places, y) -> int:
    """The first i for which one of x[places[i]] and y[i] is above 0 and the other is not, -1 for none; waits."""
    found = _nothing_found()
    _each("first_of_other_sign", (x.dtype, places.dtype), np.int64(places.size), x, places, y, found)
    return _found(found)


def _nothing_found():
    found = cupy.empty(1, np.uint64)
    set_pending(found)
    return found


def _found(found) -> int:
    first = int(found.item())
    return -1 if first == NONE else first


def size_of_dot(x, y, out):
    _sum("size_of_dot", x, x, y, out)


def gather_scaled(rows, scale, r):
    """scale_i r[rows_i]; see kernels/reference/vectors.py."""
    r = cupy.ascontiguousarray(r)
    out, columns = by_columns(rows.size, r)
    given = rows.dtype.type(rows.size), np.int32(columns), rows, scale, r, out
    _each("gather_scaled", (r.dtype, rows.dtype), *given, columns=columns)
    return out


def scatter_scaled(places, scale, s, t, w):
    """scale_i (s - t, w)_i at places_i; see kernels/reference/vectors.py. t and w may be None."""
    out, columns = by_columns(places.size, s)
    index = places.dtype
    sizes = index.type(places.size), index.type(s.shape[0]), np.int32(columns)
    given = places, scale, s, optional(t), optional(w), out
    _each("scatter_scaled", (s.dtype, index), *sizes, *given, columns=columns)
    return out


def first_bad(bad) -> int:
    """The row a kernel reported, or -1; waits for the device."""
    return int(bad.item())
