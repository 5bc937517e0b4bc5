"""Lists of integers: places, lengths and starts, for analyses. The specification.

With pointers (n + 1,) list i has the places pointers[i] <= p < pointers[i + 1].
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def progression(n, first, step, dtype, like):
    """(n,) of `dtype` : first, first + step, ..., on the device of `like`."""
    return np.array([first + k * step for k in range(n)], dtype)


def shifted(x, by, dtype=None):
    """x + by, of `dtype`, that of x if None, which must hold it."""
    return np.array([int(v) + by for v in x], dtype or x.dtype)


def lengths(begin, end):
    """end - begin."""
    return np.array([int(b) - int(a) for a, b in zip(begin, end)], begin.dtype)


def pointers(counts):
    """The starts of lists of these lengths, one after the other: (n + 1,) of their dtype; and the total number of
    places. If that exceeds the dtype, the pointers are undefined. Waits for a GPU."""
    out, total = np.zeros(counts.size + 1, counts.dtype), 0
    for i, count in enumerate(counts):
        total += int(count)
        out[i + 1] = total if total <= np.iinfo(counts.dtype).max else 0
    return out, total


def entries(pointers, total, begin):
    """For each place of lists one after the other, `total` in all: its list i, and begin[i] + its place in the list."""
    rows = [i for i in range(begin.size) for _ in range(pointers[i], pointers[i + 1])]
    places = [begin[i] + k for i in range(begin.size) for k in range(pointers[i + 1] - pointers[i])]
    return np.array(rows, pointers.dtype), np.array(places, pointers.dtype)


def rows_of_entries(pointers, total):
    """(total,) : the list of each place."""
    return entries(pointers, total, pointers[:-1])[0]


def inverse(order):
    """(n,) int32 : the inverse of the permutation `order`."""
    out = np.empty(order.size, np.int32)
    for k, i in enumerate(order):
        out[i] = k
    return out


def starts(numbers, count):
    """(count + 1,) of their dtype : the index at which each of 0, ..., count - 1 begins in the ascending numbers."""
    return np.array([sum(int(v) < i for v in numbers) for i in range(count + 1)], numbers.dtype)


def longest(pointers):
    """The most places of a list, 0 for no lists. Waits for a GPU."""
    return max((int(b) - int(a) for a, b in pairwise(pointers)), default=0)


def grouped(numbers, count):
    """The places of the numbers 0, ..., count - 1: (n,) int32, those of equal numbers one after the other and
    ascending; and (count + 1,) int32, where those of each number begin."""
    order = sorted(range(numbers.size), key=lambda i: int(numbers[i]))
    return np.array(order, np.int32), starts(numbers[order].astype(np.int32), count)
