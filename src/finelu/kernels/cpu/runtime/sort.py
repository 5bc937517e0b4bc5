"""Sorting, heaps and the k-th largest of a few numbers, inside kernels."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import intrinsic

from finelu.kernels.cpu.runtime.indices import ONE
from finelu.kernels.cpu.runtime.jit import compiled

FEW = 24  # numbers, up to which they are sorted by insertion
FEW_COLUMNS = 12  # columns, the same


@compiled
def sort(keys, count):
    """Sort keys[:count] in place."""
    if count > FEW:
        keys[:count].sort()
        return
    for e in range(1, count):
        key = keys[e]
        f = e - 1
        while f >= 0 and keys[f] > key:
            keys[f + 1] = keys[f]
            f -= 1
        keys[f + 1] = key


@compiled
def push(heap, size, key):
    """Add a key to heap[:size], whose smallest is the first; returns the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= key:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = key
    return size + 1


@compiled
def pop(heap, size):
    """Take heap[0], which the caller has read, out of heap[:size]; returns the new size."""
    size -= 1
    key = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key
    return size


@compiled
def kth_largest(x, count, k):
    """The k-th largest of x[:count], 1 <= k <= count, which are put into another order (Hoare 1961: quickselect)."""
    lo, hi, place = 0, count - 1, k - 1
    while lo < hi:
        a, b, c = x[lo], x[(lo + hi) >> 1], x[hi]
        pivot = max(min(a, b), min(max(a, b), c))
        left, right = lo, hi
        while left <= right:
            while x[left] > pivot:
                left += 1
            while x[right] < pivot:
                right -= 1
            if left <= right:
                x[left], x[right] = x[right], x[left]
                left += 1
                right -= 1
        if place <= right:
            hi = right
        elif place >= left:
            lo = left
        else:
            break
    return x[place]


@compiled
def strongest(columns, count, tau, limit, w, size):
    """Keep those of columns[:count] with |w[j]| > tau, and of these the `limit` largest, in ascending order of j.

    Returns their number, or -1 if one |w[j]| is not finite. size : workspace for `count` numbers.
    """
    kept = 0
    for e in range(count):
        j = columns[e]
        magnitude = abs(w[j])
        if not np.isfinite(magnitude):
            return -1
        if magnitude > tau:
            columns[kept] = j
            size[kept] = magnitude
            kept += 1
    if kept <= limit:
        sort(columns, kept)
        return kept
    cut = kth_largest(size, kept, limit)
    survivors, ties = 0, limit
    for e in range(kept):
        j = columns[e]
        magnitude = abs(w[j])
        if magnitude >= cut:
            columns[survivors] = j
            survivors += 1
        if magnitude > cut:
            ties -= 1
    sort(columns, survivors)
    kept = 0
    for e in range(survivors):
        j = columns[e]
        tie = abs(w[j]) == cut
        if not tie or ties > 0:
            columns[kept] = j
            kept += 1
        if tie:
            ties -= 1
    return kept


@intrinsic
def lowest_bit(typing, bits):
    """The place of the lowest bit that is set; bits != 0."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), generate


@compiled
def sort_by_bitmap(columns, count, words, pages):
    """Sort columns[:count], all different: a few by insertion, more by a bitmap whose words are marked in `pages`.

    words (n / 64,), pages (n / 4096,) : zero before and after.
    """
    if count <= FEW_COLUMNS:
        for e in range(ONE, count):
            key, g = columns[e], e
            while g > 0 and columns[g - ONE] > key:
                columns[g] = columns[g - ONE]
                g -= ONE
            columns[g] = key
        return
    first = last = np.uint64(columns[0])
    for e in range(count):
        first, last = min(first, np.uint64(columns[e])), max(last, np.uint64(columns[e]))
    if (last - first) >> np.uint64(12) > count << np.uint64(2):  # too far apart
        columns[:count].sort()
        return
    low, six = np.uint64(63), np.uint64(6)
    for e in range(count):
        j = np.uint64(columns[e])
        words[j >> six] |= ONE << (j & low)
        pages[j >> np.uint64(12)] |= ONE << ((j >> six) & low)
    e = np.uint64(0)
    for page in range(first >> np.uint64(12), (last >> np.uint64(12)) + ONE):
        marked = pages[page]
        pages[page] = 0
        while marked != 0:
            word = (page << six) | lowest_bit(marked)
            marked &= marked - ONE
            bits = words[word]
            words[word] = 0
            while bits != 0:
                columns[e] = (word << six) | lowest_bit(bits)
                bits &= bits - ONE
                e += ONE
