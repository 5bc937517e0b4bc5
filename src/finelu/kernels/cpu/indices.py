"""Lists of integers; see kernels/reference/indices.py."""

from __future__ import annotations

import numpy as np


def progression(n, first, step, dtype, like):
    return np.full(n, first, dtype) if step == 0 else np.arange(first, first + n * step, step, dtype=dtype)


def shifted(x, by, dtype=None):
    moved = x if by == 0 else x + x.dtype.type(by)
    return moved if dtype is None else moved.astype(dtype, copy=False)


def lengths(begin, end):
    return end - begin


def pointers(counts):
    """Where lists of these lengths begin, and how many places they have in all; see kernels/reference/indices.py."""
    out = np.zeros(counts.size + 1, counts.dtype)
    np.cumsum(counts, out=out[1:])
    return out, int(counts.sum(dtype=np.int64))


def entries(pointers, total, begin):
    """Rows and places of entries; see kernels/reference/indices.py."""
    rows = rows_of_entries(pointers, total)
    return rows, np.arange(total, dtype=pointers.dtype) - np.repeat(pointers[:-1] - begin, np.diff(pointers))


def rows_of_entries(pointers, total):
    return np.repeat(np.arange(pointers.size - 1, dtype=pointers.dtype), np.diff(pointers))


def inverse(order):
    out = np.empty(order.size, np.int32)
    out[order] = np.arange(order.size, dtype=np.int32)
    return out


def starts(numbers, count):
    return np.searchsorted(numbers, np.arange(count + 1, dtype=numbers.dtype)).astype(numbers.dtype)


def longest(pointers):
    return int((pointers[1:] - pointers[:-1]).max(initial=0))
