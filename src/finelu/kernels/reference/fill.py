"""Fill, without its values: the pattern of ILU(k), the columns of a Cholesky factor. The specification."""

from __future__ import annotations

import numpy as np


def pattern_iluk(indptr, indices, level):
    """The pattern of ILU(level), by rows. Saad 2003, Algorithm 10.5: entries with a level of fill of at most `level`.

    Entries of A have level 0; a product l_ik u_kj gives (i, j) the sum of its two levels plus 1; the least of these is
    the level of (i, j).
    """
    levels = []
    for i in range(indptr.size - 1):
        row = {int(j): 0 for j in indices[indptr[i] : indptr[i + 1]]}
        for k in range(i):
            if k in row:
                for j, fill in levels[k].items():
                    if j > k and row[k] + fill + 1 <= level:
                        row[j] = min(row.get(j, level), row[k] + fill + 1)
        levels.append(row)
    counts = [0, *(len(row) for row in levels)]
    return np.cumsum(counts).astype(indptr.dtype), np.array([j for row in levels for j in sorted(row)], indices.dtype)


def elimination_tree(indptr, indices, parent):
    """parent[j]: the first row below the diagonal in column j of the Cholesky factor of the pattern; -1: none."""
    for j, column in enumerate(_eliminated(indptr, indices)):
        parent[j] = min(column, default=-1)


def postorder(parent, post):
    """post (n,): each column after its children and their subtrees; siblings ascend, as do roots."""
    children = {j: [i for i in range(parent.size) if parent[i] == j] for j in range(-1, parent.size)}

    def subtree(j):
        return [k for i in children[j] for k in subtree(i)] + ([j] if j >= 0 else [])

    post[:] = subtree(-1)


def column_counts(indptr, indices, parent, post, count):
    """count[j]: the entries of column j of the Cholesky factor of the pattern, the diagonal among them."""
    for j, column in enumerate(_eliminated(indptr, indices)):
        count[j] = 1 + len(column)


def _eliminated(indptr, indices):
    """The rows below the diagonal of each column of the Cholesky factor: elimination joins all neighbours of a row."""
    n = len(indptr) - 1
    below = [{int(i) for i in indices[indptr[j] : indptr[j + 1]] if i > j} for j in range(n)]
    for j in range(n):
        for i in below[j]:
            below[i] |= {k for k in below[j] if k > i}
    return below


def subtrees(parent, work, small, large, part, above):
    """Cuts a forest in postorder into parts: the elimination of a row changes only rows above it.

    There are three kinds of parts: subtrees of at most `small` work, combined with neighbours that hang on the same
    part if the sum is not more; the remainders of subtrees of at most `large` work; the remaining rows. part[k] is the
    part of row k, above[t] the part above part t, or -1. Parts are numbered by kind, and within a kind by their last
    rows. Returns the number of parts.
    """
    n = len(parent)
    total = [float(w) for w in work]
    for k in range(n):
        if parent[k] >= 0:
            total[parent[k]] += total[k]

    def top(k, most):
        """The highest row above k whose subtree has at most that work."""
        while parent[k] >= 0 and total[parent[k]] <= most:
            k = parent[k]
        return k

    def over(k):
        """The part of row k, if it is not in a pack."""
        return None if k < 0 else "rest" if total[k] > large else ("piece", top(k, large))

    packs, of = [], {}
    for k in range(n - 1, -1, -1):
        if total[k] <= small:
            if top(k, small) != k:
                of[k] = of[top(k, small)]
                continue
            owner = over(parent[k])
            if not packs or packs[-1][0] != owner or packs[-1][1] + total[k] > small:
                packs.append([owner, 0.0])
            packs[-1][1] += total[k]
            of[k] = ("pack", len(packs) - 1)
        else:
            of[k] = over(k)
    pieces = sorted({x for x in of.values() if x[0] == "piece"})
    names = [("pack", t) for t in reversed(range(len(packs)))] + pieces + ["rest"] * ("rest" in of.values())
    for k in range(n):
        part[k] = names.index(of[k])
    for t, name in enumerate(names):
        owner = packs[name[1]][0] if name[0] == "pack" else None if name == "rest" else over(parent[name[1]])
        above[t] = -1 if owner is None else names.index(owner)
    return len(names)


def first_coupling(parts, above, indptr, indices):
    """The first entry (row, column) between two parts of which neither is above the other, or (-1, -1).

    parts (p + 1,), above (p,) : part t has the rows parts[t]..parts[t + 1] - 1, and above[t] is the part above it, or
    -1. Entries in rows and columns from parts[p] on do not count.
    """

    def with_those_above(t):
        return [t, *with_those_above(above[t])] if t >= 0 else []

    part_of = [t for t in range(len(above)) for _ in range(parts[t], parts[t + 1])]
    for i, t in enumerate(part_of):
        for j in indices[indptr[i] : indptr[i + 1]]:
            if j < parts[-1] and part_of[j] not in with_those_above(t) and t not in with_those_above(part_of[j]):
                return i, int(j)
    return -1, -1
