"""Fill, without its values: the pattern of ILU(k), the columns of a Cholesky factor."""

from __future__ import annotations

import numpy as np

from finelu import deadline
from finelu.kernels.cpu.runtime.arrays import Handed, grown, hand_over
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.sort import pop, push, sort


def pattern_iluk(indptr, indices, level):
    """The pattern of L + U of ILU(level), and where the entries of A lie in it; see kernels/reference/fill.py.

    indptr (n + 1,), indices (nnz,) : the pattern of A, rows sorted, the diagonal full.  level : >= 0; n - 1 and all
        beyond give the pattern of the complete factors.
    Returns indptr (n + 1,) int64, indices of A's dtype, sorted, and places (nnz,) int64: entry p of A is entry
    places[p]. Cost: as an elimination on the new pattern; 4 bytes for the level of each entry besides.
    """
    n = indptr.size - 1
    begin, places = np.zeros(n + 1, np.int64), np.empty(indices.size, np.int64)
    with Handed(1) as handed:
        stored = _pattern(indptr, indices, min(level, n), begin, places, handed.slots, deadline.halt())
        deadline.check()
        return begin, handed.take(0, indices.dtype)[:stored].copy(), places


@compiled
def _pattern(indptr, indices, level, begin, places, slots, halt):
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
            if halted(halt):
                hand_over(columns, slots, 0)
                return stored
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


@compiled
def elimination_tree(indptr, indices, parent):
    """parent (n,) : the first row below the diagonal in each column of the Cholesky factor, -1 of a root.

    indptr, indices : a symmetric pattern by rows; its diagonal entries do not count. Cost: nearly O(nnz).
    Source: J. W. H. Liu: The role of elimination trees in sparse factorization, 1990, Algorithm 4.2.
    """
    ancestor = np.empty(parent.size, np.int64)
    for k in range(parent.size):
        parent[k] = ancestor[k] = -1
        for p in range(indptr[k], indptr[k + 1]):
            i = np.int64(indices[p])
            while i != -1 and i < k:
                above = ancestor[i]
                ancestor[i] = k
                if above == -1:
                    parent[i] = k
                i = above


@compiled
def postorder(parent, post):
    """post (n,) : the columns of the elimination tree, each after all of its subtree; siblings ascend.

    parent : of elimination_tree. Cost: O(n).
    """
    n = parent.size
    child, sibling = np.full(n, -1), np.full(n, -1)
    for j in range(n - 1, -1, -1):
        if parent[j] >= 0:
            sibling[j] = child[parent[j]]
            child[parent[j]] = j
    path, found = np.empty(n, np.int64), 0
    for root in range(n):
        if parent[root] >= 0:
            continue
        depth = 0
        path[0] = root
        while depth >= 0:
            j = path[depth]
            below = child[j]
            if below >= 0:
                child[j] = sibling[below]
                depth += 1
                path[depth] = below
            else:
                post[found] = j
                found += 1
                depth -= 1


@compiled
def column_counts(indptr, indices, parent, post, count):
    """count (n,) : entries of each column of the Cholesky factor of a symmetric pattern, the diagonal among them.

    parent, post : of elimination_tree and postorder. Cost: nearly O(nnz), whatever the fill.
    Source: J. R. Gilbert, E. G. Ng, B. W. Peyton: An efficient algorithm to compute row and column counts for sparse
    Cholesky factorization, 1994, Figure 3.
    """
    n = parent.size
    first = np.full(n, -1)  # of each column's subtree, the place of its first leaf in the postorder
    for k in range(n):
        j = post[k]
        count[j] = 1 if first[j] < 0 else 0
        while j >= 0 and first[j] < 0:
            first[j] = k
            j = parent[j]
    latest, leaf, ancestor = np.full(n, -1), np.full(n, -1), np.arange(n)
    for k in range(n):
        j = post[k]
        if parent[j] >= 0:
            count[parent[j]] -= 1
        for p in range(indptr[j], indptr[j + 1]):
            i = np.int64(indices[p])
            if i <= j or first[j] <= latest[i]:
                continue  # j is no leaf of the subtree of row i
            latest[i] = first[j]
            count[j] += 1
            if leaf[i] >= 0:  # the path from the last leaf is counted already, from their common ancestor up
                top = leaf[i]
                while ancestor[top] != top:
                    top = ancestor[top]
                low = leaf[i]
                while ancestor[low] != low:
                    ancestor[low], low = top, ancestor[low]
                count[top] -= 1
            leaf[i] = j
        if parent[j] >= 0:
            ancestor[j] = parent[j]
    for j in range(n):
        if parent[j] >= 0:
            count[parent[j]] += count[j]


@compiled
def subtrees(parent, work, small, large, part, above):
    """Cuts a forest in postorder into parts; returns how many; see kernels/reference/fill.py.

    parent (n,), work (n,) : the row above each row, or -1, and the work of each row.  small <= large : amounts of work.
    part (n,), above (n,) : out: the part of each row, and the part above each part, which has a larger number, or -1.
    Cost: O(n).
    """
    n = parent.size
    total = work.copy()
    for k in range(n):
        if parent[k] >= 0:
            total[parent[k]] += total[k]
    # while it is found: packs of subtrees 0, 1, ..., pieces -3, -4, ..., the rest -2
    packs, pieces, rest, filled = 0, 0, False, 0.0
    owner, over = np.empty(n, np.int64), np.empty(n, np.int64)  # of packs, and of pieces, what is above them
    for k in range(n - 1, -1, -1):
        p = parent[k]
        higher = np.int64(-1) if p < 0 else part[p]
        if total[k] > large:
            part[k], rest = -2, True
        elif total[k] > small:
            if p >= 0 and higher != -2:
                part[k] = higher
            else:
                part[k] = -3 - pieces
                over[pieces] = higher
                pieces += 1
        elif p >= 0 and higher >= 0:
            part[k] = higher
        else:
            if packs == 0 or owner[packs - 1] != higher or filled + total[k] > small:
                owner[packs] = higher
                packs += 1
                filled = 0.0
            filled += total[k]
            part[k] = packs - 1
    last = packs + pieces
    for t in range(packs):
        higher = owner[t]
        above[packs - 1 - t] = -1 if higher == -1 else last if higher == -2 else last - 1 - (-3 - higher)
    for t in range(pieces):
        above[last - 1 - t] = -1 if over[t] == -1 else last
    for k in range(n):
        label = part[k]
        part[k] = packs - 1 - label if label >= 0 else last if label == -2 else last - 1 - (-3 - label)
    if rest:
        above[last] = -1
    return last + rest


@compiled
def first_coupling(parts, above, indptr, indices):
    """The first entry (row, column) between two parts of which neither is above the other, or (-1, -1).

    parts (p + 1,), above (p,) : part t has the rows parts[t]..parts[t + 1] - 1, and above[t] is the part above it, or
    -1. Entries in rows and columns from parts[p] on do not count. Cost: a pass over the entries.
    """
    interface = parts[-1]
    owner = np.empty(interface, np.int32)
    for t in range(above.size):
        owner[parts[t] : parts[t + 1]] = t
    for t in range(above.size):
        for i in range(parts[t], parts[t + 1]):
            for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
                j = np.uint64(indices[p])
                if indices[p] < interface and owner[j] != t:
                    low, high = min(np.int64(owner[j]), t), max(np.int64(owner[j]), t)
                    while low >= 0 and low < high:
                        low = above[low]
                    if low != high:
                        return i, np.int64(indices[p])
    return np.int64(-1), np.int64(-1)
