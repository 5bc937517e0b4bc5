"""Lists of integers; see kernels/reference/indices.py."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.row_blocks import COPY, threads_for
from finelu.kernels.cpu.runtime.sharing import run_items


def progression(n, first, step, dtype, like):
    return np.full(n, first, dtype) if step == 0 else np.arange(first, first + n * step, step, dtype=dtype)


def shifted(x, by, dtype=None):
    moved = x if by == 0 else x + x.dtype.type(by)
    return moved if dtype is None else moved.astype(dtype, copy=False)


def lengths(begin, end):
    return end - begin


def pointers(counts):
    """Where lists of these lengths begin, and how many places they have in all; see kernels/reference/indices.py."""
    n = counts.size
    out = np.zeros(n + 1, counts.dtype)
    blocks = n // COPY if threads_for(n, 4 * COPY) > 1 else 1
    if blocks <= 1:
        np.cumsum(counts, out=out[1:])
        return out, int(counts.sum(dtype=np.int64))
    items, sums = np.arange(blocks + 1) * n // blocks, np.empty(blocks, np.int64)
    run_items(_sum, blocks, items, counts, sums)
    before = np.cumsum(sums) - sums
    run_items(_add_up, blocks, items, counts, before, out)
    return out, int(before[-1] + sums[-1])


@by_items
def _sum(t, items, counts, sums):
    total = np.int64(0)
    for i in range(items[t], items[t + 1]):
        total += counts[i]
    sums[t] = total


@by_items
def _add_up(t, items, counts, before, out):
    """out[i + 1] : the sum of the counts up to i.  before : of the items before each."""
    total = before[t]
    for i in range(items[t], items[t + 1]):
        total += counts[i]
        out[i + 1] = total


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


def grouped(numbers, count):
    """The places of equal numbers one after the other; see kernels/reference/indices.py.

    Blocks of the places are counted and then written by threads, each block behind those before it.
    """
    n = numbers.size
    blocks = max(min(n // COPY, n // max(count, 1)), 1) if threads_for(n, 2 * COPY) > 1 else 1
    items, ends = np.arange(blocks + 1) * n // blocks, np.zeros((blocks, count), np.int32)
    run_items(_count, blocks, items, numbers, ends)
    starts = np.zeros(count + 1, np.int32)
    np.cumsum(ends.sum(axis=0, dtype=np.int32), out=starts[1:])
    if blocks > 1:
        ends[1:] = np.cumsum(ends[:-1], axis=0, dtype=np.int32)
    ends[0] = 0
    ends += starts[:-1]
    order = np.empty(n, np.int32)
    run_items(_place, blocks, items, numbers, ends, order)
    return order, starts


@by_items
def _count(t, items, numbers, counts):
    for i in range(items[t], items[t + 1]):
        counts[t, numbers[i]] += 1


@by_items
def _place(t, items, numbers, places, order):
    for i in range(items[t], items[t + 1]):
        k = numbers[i]
        order[places[t, k]] = i
        places[t, k] += 1
