"""Matching of rows with columns, and the division of its cycles into pairs. On one thread."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from finelu import deadline
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.jit import compiled


def lightest_matching(indptr, indices, weight, columns, v):
    """Match as many rows with columns as possible, by shortest augmenting paths; if all, at the smallest weight.

    indptr, indices, weight : by rows; there may be more columns than rows, or fewer, and then weights do not count.
    columns (rows,) : out, the column of each row, or -1.  v (columns,) : out, dual variables: if all rows are matched,
    weight_ij - v_j is the smallest of its row where i is matched to j, up to rounding.
    Dijkstra's algorithm over the reduced weights from each row that is left. Rows and columns that a search without
    success has reached are left out of later ones: no path through them ends at a free column.
    Cost: O(rows nnz log nnz) at worst.
    Source: I. S. Duff, J. Koster: On algorithms for permuting large entries to the diagonal of a sparse matrix, 2001.
    """
    _lightest_matching(indptr, indices, weight, columns, v, deadline.halt())
    deadline.check()


@compiled
def _lightest_matching(indptr, indices, weight, columns, v, halt):
    """As `lightest_matching`; after a halt the matching means nothing."""
    n, m = columns.size, v.size
    v[:] = np.inf
    for p in range(indices.size):
        v[indices[p]] = min(v[indices[p]], weight[p])
    u = np.zeros(n)
    rows = np.full(m, -1)
    for i in range(n):
        columns[i] = -1
        if indptr[i] < indptr[i + 1]:
            u[i] = np.inf
        for p in range(indptr[i], indptr[i + 1]):
            u[i] = min(u[i], weight[p] - v[indices[p]])
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            if rows[j] < 0 and weight[p] - v[j] == u[i]:
                columns[i] = j
                rows[j] = i
                break
    for i in range(n):  # paths of two steps, from i to the column j of a row k that has a free one, without a search
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            if columns[i] >= 0 or weight[p] - v[j] != u[i]:
                continue
            k = rows[j]
            for q in range(indptr[k], indptr[k + 1]):
                if rows[indices[q]] < 0 and weight[q] - v[indices[q]] == u[k]:
                    columns[k], columns[i] = indices[q], j
                    rows[indices[q]], rows[j] = k, i
                    break
    distance = np.full(m, np.inf)
    done = np.zeros(m, np.bool_)
    before = np.empty(m, np.int64)  # the row from which a column was reached
    seen = np.empty(m, np.int64)
    for root in range(n):
        if columns[root] >= 0:
            continue
        heap = [(0.0, 0)]
        heap.pop()
        count, sink, best, i, base = 0, -1, np.inf, root, 0.0
        while True:
            if halted(halt):
                return
            for p in range(indptr[i], indptr[i + 1]):
                j = np.int64(indices[p])  # of one type on the heap
                new = base + max(0.0, weight[p] - v[j] - u[i])
                if done[j] or new >= min(distance[j], best):
                    continue
                if distance[j] == np.inf:
                    seen[count] = j
                    count += 1
                distance[j] = new
                before[j] = i
                if rows[j] < 0:
                    sink, best = j, new
                else:
                    heappush(heap, (new, j))
            j = -1
            while len(heap) > 0 and heap[0][0] < best and j < 0:
                base, j = heappop(heap)
                if done[j]:
                    j = -1
            if j < 0:
                break
            done[j] = True
            i = rows[j]
        if sink < 0:
            continue
        u[root] += best
        for s in range(count):
            j = seen[s]
            if done[j]:
                u[rows[j]] += best - distance[j]
                v[j] -= best - distance[j]
            distance[j] = np.inf
            done[j] = False
        j, i = sink, -1
        while i != root:
            i = before[j]
            rows[j] = i
            columns[i], j = j, columns[i]


@compiled
def cut_cycles(columns, diagonal, order, first):
    """Cut the cycles of the permutation `columns` (n,) into pairs of neighbours, and a single in each odd one.

    diagonal (n,) : how large; the single is the row of a cycle where it is the largest, the first of them.
    order (n,) : a pair stands where the earlier of its rows would, the later right behind. first (n,) : place p of
    order begins a pair.
    """
    n = columns.size
    partner = np.full(n, -1)
    for start in range(n):
        if partner[start] >= 0:
            continue
        length, i, single = 0, start, start
        while length == 0 or i != start:
            if diagonal[i] > diagonal[single]:
                single = i
            length += 1
            i = columns[i]
        i = start
        if length % 2:
            partner[single] = single
            i = columns[single]
        for _ in range(length // 2):
            j = columns[i]
            partner[i], partner[j] = j, i
            i = columns[j]
    place = 0
    for i in range(n):
        j = partner[i]
        if j < i:
            continue
        order[place] = i
        first[place] = j > i
        place += 1
        if j > i:
            order[place] = j
            first[place] = False
            place += 1


@compiled
def connected_parts(rows, columns, part):
    """The connected parts of a graph with the edges rows[p], columns[p]; see kernels/reference/matching.py.

    Cost: nearly O(n + edges), by union-find.
    """
    n = part.size
    for i in range(n):
        part[i] = i
    for p in range(rows.size):
        i, j = np.uint64(rows[p]), np.uint64(columns[p])
        while part[i] != part[j]:  # each points to a smaller one, or itself; the larger of the two moves on
            if part[i] < part[j]:
                i, j = j, i
            above = part[i]
            part[i] = part[j]
            if np.uint64(above) == i:
                break
            i = np.uint64(above)
    count = 0
    for i in range(n):
        if part[i] == i:
            part[i] = count
            count += 1
        else:
            part[i] = part[np.uint64(part[i])]
    return count
