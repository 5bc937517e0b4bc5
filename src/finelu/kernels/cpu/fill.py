"""The pattern of ILU(k): where fill of a level of at most k falls."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.handed import Handed, hand_over
from finelu.kernels.cpu.recurrences import compiled
from finelu.kernels.cpu.threshold import grown, pop, push, sort


def pattern_iluk(indptr, indices, level):
    """The pattern of L + U of ILU(level), and where the entries of A lie in it; see kernels/reference.py.

    indptr (n + 1,), indices (nnz,) : the pattern of A, rows sorted, the diagonal full.  level : >= 0; n - 1 and all
        beyond give the pattern of the complete factors.
    Returns indptr (n + 1,) int64, indices of A's dtype, sorted, and places (nnz,) int64: entry p of A is entry
    places[p]. Cost: as an elimination on the new pattern; 4 bytes for the level of each entry besides.
    """
    n = indptr.size - 1
    begin, places = np.zeros(n + 1, np.int64), np.empty(indices.size, np.int64)
    with Handed(1) as handed:
        stored = _pattern(indptr, indices, min(level, n), begin, places, handed.slots)
        return begin, handed.take(0, indices.dtype)[:stored].copy(), places


@compiled
def _pattern(indptr, indices, level, begin, places, slots):
    """Row by row; the columns before the diagonal, in ascending order from a heap, bring those of their rows of U.

    A level is the number of inner vertices of a shortest path through eliminated unknowns (Hysom & Pothen 2002), so
    that none exceeds n - 2.
    """
    n = indptr.size - 1
    behind = np.empty(n, np.int64)  # the place after the diagonal
    columns, levels = np.empty(2 * indices.size, indices.dtype), np.empty(2 * indices.size, np.int32)
    own = np.empty(n, np.int32)  # of column j in row i
    seen = np.full(n, -1, indices.dtype)
    heap, upper = np.empty_like(seen), np.empty_like(seen)
    stored = 0
    for i in range(n):
        waiting = above = 0
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            own[j] = 0
            seen[j] = i
            if j < i:
                heap[waiting] = j
                waiting += 1
            else:
                upper[above] = j
                above += 1
        at = indptr[i]
        while waiting > 0:
            k = heap[0]
            waiting = pop(heap, waiting)
            columns, levels = grown(columns, stored, stored + 1), grown(levels, stored, stored + 1)
            columns[stored] = k
            levels[stored] = own[k]
            if indices[at] == k:
                places[at] = stored
                at += 1
            stored += 1
            for q in range(behind[k], begin[k + 1]):
                j = columns[q]
                new = own[k] + levels[q] + 1
                if new > level:
                    continue
                if seen[j] == i:
                    own[j] = min(own[j], new)
                    continue
                seen[j] = i
                own[j] = new
                if j < i:
                    waiting = push(heap, waiting, j)
                else:
                    upper[above] = j
                    above += 1
        sort(upper, above)
        columns, levels = grown(columns, stored, stored + above), grown(levels, stored, stored + above)
        behind[i] = stored + 1
        for e in range(above):
            columns[stored] = upper[e]
            levels[stored] = own[upper[e]]
            if at < indptr[i + 1] and indices[at] == upper[e]:
                places[at] = stored
                at += 1
            stored += 1
        begin[i + 1] = stored
    hand_over(columns, slots, 0)
    return stored
