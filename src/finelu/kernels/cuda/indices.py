"""Launchers of indices.cu: lists of integers. CuPy would compile a kernel of its own for each such operation."""

from __future__ import annotations

from functools import partial

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import BLOCK, NULL, blocks, device_limits, for_each, kernel
from finelu.kernels.cuda.runtime.memory import counter, set_zero
from finelu.kernels.cuda.vectors import gather

CHUNK = 4096  # as in indices.cu


_each = partial(for_each, "indices")


def progression(n, first, step, dtype, like):
    """first, first + step, ...; see kernels/reference/indices.py."""
    out = cupy.empty(n, dtype)
    _each("progression", (out.dtype,), np.int64(n), np.int64(first), np.int64(step), out)
    return out


def shifted(x, by, dtype=None):
    """x + by, itself where nothing is to be changed; see kernels/reference/indices.py."""
    dtype = x.dtype if dtype is None else np.dtype(dtype)
    if by == 0 and dtype == x.dtype:
        return x
    out = cupy.empty(x.size, dtype)
    _each("shifted", (x.dtype, dtype), np.int64(x.size), np.int64(by), x, out)
    return out


def lengths(begin, end):
    out = cupy.empty(begin.size, begin.dtype)
    _each("lengths", (out.dtype,), np.int64(out.size), begin, end, out)
    return out


def pointers(counts):
    """Where lists of these lengths begin, and how many places they have in all; see kernels/reference/indices.py."""
    out, total = queue_pointers(counts)
    return out, int(total.item())


def queue_pointers(counts):
    """`pointers` without a wait: the number of places (1,) stays on the device."""
    n, chunks = counts.size, blocks(counts.size, CHUNK)
    out, sums = cupy.empty(n + 1, counts.dtype), cupy.empty(chunks + 1, np.int64)
    given = np.int64(n), counts, sums
    kernel("indices", "sums_of_chunks", counts.dtype)((chunks,), (256,), (*given, counter(), sums[chunks:]))
    kernel("indices", "write_pointers", counts.dtype)((chunks,), (256,), (*given, out))
    return out, sums[chunks:]


def entries(pointers, total, begin):
    """Rows and places of entries; see kernels/reference/indices.py."""
    index = pointers.dtype
    rows, places = cupy.empty(total, index), cupy.empty(total, index)
    _each("entries", (index,), np.int64(total), index.type(begin.size), pointers, begin, rows, places)
    return rows, places


def rows_of_entries(pointers, total):
    index = pointers.dtype
    rows = cupy.empty(total, index)
    _each("entries", (index,), np.int64(total), index.type(pointers.size - 1), pointers, NULL, rows, NULL)
    return rows


def inverse(order):
    out = cupy.empty(order.size, np.int32)
    _each("inverse", (order.dtype,), np.int64(out.size), order, out)
    return out


def starts(numbers, count):
    out = cupy.empty(count + 1, numbers.dtype)
    _each("starts", (numbers.dtype,), np.int64(out.size), np.int64(numbers.size), numbers, out)
    return out


def longest(pointers):
    n, most = pointers.size - 1, cupy.empty(1, np.int64)
    set_zero(most)
    grid = min(blocks(n, BLOCK), 4 * device_limits()["processors"])
    kernel("indices", "longest", pointers.dtype)((grid,), (BLOCK,), (np.int64(n), pointers, most))
    return int(most.item())


def grouped(numbers, count):
    order = shifted(cupy.argsort(numbers, kind="stable"), 0, np.int32)
    return order, starts(shifted(gather(numbers, order), 0, np.int32), count)
