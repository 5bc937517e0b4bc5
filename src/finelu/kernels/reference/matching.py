"""Matching of rows with columns, and its cycles cut into pairs. The specification."""

from __future__ import annotations

import math
from fractions import Fraction


def lightest_matching(indptr, indices, weight, columns, v):
    """Match as many rows with columns as possible; if all rows and all columns, at the smallest sum of weights.

    columns (rows,) : out, the column of each row, or -1.  v (columns,) : out, dual variables: if all rows are matched,
    weight_ij - v_j is the smallest of its row where i is matched to j, up to rounding. Neither is unique.
    Row after row is matched along the shortest path of entries that are not in the matching and that are, in turn, to a
    free column. The numbers are exact, so that rounding makes no path round a cycle shorter.
    """
    n = columns.size
    A = [{int(indices[p]): Fraction(weight[p]) for p in range(indptr[i], indptr[i + 1])} for i in range(n)]
    row_of = {}  # of a matched column
    columns[:] = -1
    for root in range(n):
        length, before, waiting = {}, {}, {root: Fraction(0)}
        while waiting:
            (i, base), *_ = waiting.items()
            del waiting[i]
            for j, w in A[i].items():
                if base + w < length.get(j, math.inf):
                    length[j], before[j] = base + w, i
                    if j in row_of:
                        waiting[row_of[j]] = base + w - A[row_of[j]][j]
        free = [j for j in length if j not in row_of]
        j = min(free, key=length.get, default=-1)
        while j >= 0:
            i = before[j]
            row_of[j], columns[i], j = i, j, int(columns[i])
    dual, changes = [Fraction(0)] * v.size, True
    while changes and (columns >= 0).all():
        changes = False
        for i in range(n):
            own = A[i][int(columns[i])] - dual[columns[i]]
            for j, w in A[i].items():
                if w - dual[j] < own:
                    dual[j], changes = w - own, True
    v[:] = [float(d) for d in dual]


def cut_cycles(columns, diagonal, order, first):
    """Cut the cycles of the permutation `columns` (n,) into pairs of neighbours, and a single row in each odd one.

    diagonal (n,) : sizes. The single row of an odd cycle is the one with the largest size, the first of equals, counted
    from the smallest row of the cycle on. An even cycle is cut at its smallest row.
    order (n,) : the two rows of a pair are neighbours, at the place of the earlier row.
    first (n,) : True if place p of order begins a pair.
    """
    partner, place = {}, 0
    for start in range(columns.size):
        if start in partner:
            continue
        cycle, i = [start], int(columns[start])
        while i != start:
            cycle.append(i)
            i = int(columns[i])
        if len(cycle) % 2:
            e = max(range(len(cycle)), key=lambda e: diagonal[cycle[e]])
            partner[cycle[e]] = cycle[e]
            cycle = cycle[e + 1 :] + cycle[:e]
        for i, j in zip(cycle[::2], cycle[1::2]):
            partner[i], partner[j] = j, i
    for i in range(columns.size):
        for row in sorted({i, partner[i]}) if partner[i] >= i else ():
            order[place], first[place] = row, row < partner[row]
            place += 1


def connected_parts(rows, columns, part):
    """part (n,) : the connected component of each vertex of a graph with the edges rows[p], columns[p], numbered in the
    order of their first vertices. Returns the number of components."""
    part[:] = range(len(part))
    for i, j in zip(rows, columns, strict=True):
        low, high = sorted((part[i], part[j]))
        part[part == high] = low
    firsts = sorted(set(part))
    part[:] = [firsts.index(p) for p in part]
    return len(firsts)
