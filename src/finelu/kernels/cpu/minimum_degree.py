"""The approximate minimum degree order of a symmetric pattern. On one thread."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.jit import compiled, ready


def minimum_degree(starts, columns, dense, most, halt, order):
    """An approximate minimum degree order of a symmetric pattern; see kernels/reference/minimum_degree.py.

    starts (n + 1,), columns (nnz,) : the pattern without its diagonal.  dense : rows of more neighbours come last.
    most : so do all rows that are left once the least degree is larger. Returns the number of these.
    halt (1,) : where it is no longer 0, as another thread may set it, this ends.  order (n,) : out, row order[k] comes
        k-th; after a halt it means nothing.
    The lists of all rows and elements lie in one array of 1.2 nnz + n places. A new element is put behind the last one;
    where there is no place left, all lists move together. Cost: O(n nnz) at worst, nearly O(nnz) for short rows.
    """
    n, index = order.size, columns.dtype
    store = np.empty(columns.size + columns.size // 5 + n, index)
    store[: columns.size] = columns
    lists = np.zeros((4, n), index)
    degrees, keys, members = (np.full((3, n), -1, index) for _ in range(3))
    begin, mark = starts[:-1].astype(np.int64), np.ones(n, np.int64)
    return _order(starts, dense, most, halt, order, store, begin, lists, degrees, keys, members, mark)


def is_compiled():
    """Whether a call only has to fetch it. To compile it takes seconds, in which no other kernel can be compiled."""
    return ready(_order)


@compiled
def _order(starts, dense, most, halt, order, store, begin, lists, degrees, keys, members, mark):
    """As `minimum_degree`.

    begin, length : of the list in `store` of a row or an element; that of a row holds elements first, then rows.
    weight : of rows of A in a row, 0 of one that was merged or eliminated.  mark : 0 of an element that no longer
        exists.
    """
    n = order.size
    length, elements, weight, degree = lists[0], lists[1], lists[2], lists[3]
    head, after, before = degrees[0], degrees[1], degrees[2]  # the rows of each degree
    bucket, chained, key = keys[0], keys[1], keys[2]  # the rows of each key
    member, tail = members[0], members[1]  # the rows that were merged into each
    free, stamp, longest, left = np.int64(starts[n]), 2, 0, n
    for i in range(n):
        degree[i] = length[i] = starts[i + 1] - starts[i]
        tail[i] = i
        weight[i] = 1
        if degree[i] > dense:
            weight[i] = length[i] = 0
            left -= 1
            continue
        after[i], before[i] = head[degree[i]], -1
        if head[degree[i]] >= 0:
            before[head[degree[i]]] = i
        head[degree[i]] = i
    found = least = 0
    while left > 0 and not halted(halt):
        while head[least] < 0:
            least += 1
        if least > most:
            break
        p = head[least]
        head[least] = after[p]
        if after[p] >= 0:
            before[after[p]] = -1
        inside = weight[p]  # rows that are eliminated with p
        weight[p] = 0
        if elements[p]:
            needed = np.int64(length[p])
            for k in range(begin[p], begin[p] + elements[p]):
                needed += length[store[k]]
            if free + min(needed, n) > store.size:
                store, free = _moved(store, begin, length)
        # The rows of the new element: those of p's elements, and p's own.
        first = begin[p] if elements[p] == 0 else free
        end, size, last = first, 0, begin[p] + elements[p]
        for k in range(begin[p], last + 1):
            if k < last:
                e = store[k]
                q, stop = begin[e], begin[e] + length[e]
                mark[e] = length[e] = 0
            else:
                q, stop = last, begin[p] + length[p]
            while q < stop:
                i = store[q]
                q += 1
                if weight[i] <= 0:
                    continue
                size += weight[i]
                weight[i] = -weight[i]
                store[end] = i
                end += 1
                if before[i] >= 0:
                    after[before[i]] = after[i]
                else:
                    head[degree[i]] = after[i]
                if after[i] >= 0:
                    before[after[i]] = before[i]
        # The rows outside of the new element, of each element that meets it: mark - stamp.
        for q in range(first, end):
            i = store[q]
            for k in range(begin[i], begin[i] + elements[i]):
                e = store[k]
                if mark[e] >= stamp:
                    mark[e] += weight[i]
                elif mark[e]:
                    mark[e] = degree[e] + stamp + weight[i]
        for q in range(first, end):
            i = store[q]
            put, outside, hashed = begin[i], 0, 0
            middle, stop = put + elements[i], put + length[i]
            for k in range(put, middle):
                e = store[k]
                if mark[e] > stamp:
                    outside += mark[e] - stamp
                    store[put] = e
                    put += 1
                    hashed += e
                elif mark[e]:
                    mark[e] = length[e] = 0  # all of it is in the new one
            last = put
            for k in range(middle, stop):
                j = store[k]
                if weight[j] > 0:
                    outside += weight[j]
                    store[put] = j
                    put += 1
                    hashed += j
            if outside == 0:  # it goes with p
                size += weight[i]
                inside -= weight[i]
                weight[i] = length[i] = 0
                member[tail[p]] = i
                tail[p] = tail[i]
                continue
            degree[i] = min(degree[i], outside)
            store[put] = store[last]
            store[last] = p
            elements[i], length[i], key[i] = last + 1 - begin[i], put + 1 - begin[i], hashed % n
            chained[i] = bucket[key[i]]
            bucket[key[i]] = i
        longest = max(longest, size)
        stamp += longest + 1
        # Rows with the same list are one from here on.
        for q in range(first, end):
            i = store[q]
            if weight[i] == 0:
                continue
            same_key = key[i]
            i = bucket[same_key]
            bucket[same_key] = -1
            while i >= 0 and chained[i] >= 0:
                for k in range(begin[i], begin[i] + length[i]):
                    mark[store[k]] = stamp
                last, j = np.int64(i), chained[i]
                while j >= 0:
                    same = length[j] == length[i] and elements[j] == elements[i]
                    k = begin[j]
                    while same and k < begin[j] + length[j]:
                        same = mark[store[k]] == stamp
                        k += 1
                    if same:
                        weight[i] += weight[j]
                        weight[j] = length[j] = 0
                        member[tail[i]] = j
                        tail[i] = tail[j]
                        chained[last] = chained[j]
                    else:
                        last = np.int64(j)
                    j = chained[j]
                stamp += 1
                i = chained[i]
        left -= inside
        put = first
        for q in range(first, end):
            i = store[q]
            if weight[i] == 0:
                continue
            weight[i] = -weight[i]
            d = min(degree[i] + size, left) - weight[i]
            degree[i] = d
            after[i], before[i] = head[d], -1
            if head[d] >= 0:
                before[head[d]] = i
            head[d] = i
            least = min(least, d)
            store[put] = i
            put += 1
        if first == free:
            free = put
        begin[p], length[p], elements[p], degree[p], mark[p] = first, put - first, 0, size, put > first
        i = p
        while i >= 0:
            order[found] = i
            found += 1
            i = member[i]
    for k in range(found):
        tail[order[k]] = -1
    for i in range(n):
        if tail[i] >= 0 and halt[0] == 0:
            order[found] = i
            found += 1
    return left


@compiled
def _moved(store, begin, length):
    """All lists, together in a new array, and the place behind the last one."""
    moved, free = np.empty_like(store), 0
    for i in range(begin.size):
        for k in range(length[i]):
            moved[free + k] = store[begin[i] + k]
        begin[i] = free
        free += length[i]
    return moved, free
