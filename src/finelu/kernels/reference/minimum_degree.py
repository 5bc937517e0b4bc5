"""The approximate minimum degree order of a symmetric pattern. The specification.

Source: P. R. Amestoy, T. A. Davis, I. S. Duff: An approximate minimum degree ordering algorithm, 1996.
"""

from __future__ import annotations


def minimum_degree(starts, columns, dense, most, halt, order):
    """An order in which each row has the fewest remaining neighbours, or nearly so, when it is eliminated.

    starts (n + 1,), columns (nnz,) : the pattern without its diagonal.
    dense : rows with more neighbours come last, in their own order, and do not count before.
    most : once the least degree is larger, the rows that are left come last, too. Returns the number of these.
    halt (1,) : ends the search once it is no longer 0; another thread may set it.
    order (n,) : out, row order[k] comes k-th; meaningless after a halt.

    The remaining neighbours of an eliminated p are coupled to each other: they form the element p, which represents all
    these entries. A row keeps its elements, and the rows that it is coupled to by none of them. Its degree is bounded
    by the rows of the new element, those of its other elements outside of that, and its own rows. Among rows with the
    least bound the one that got it last is next. Rows with the same elements and rows are merged.
    """
    n = len(order)
    rows = [[int(j) for j in columns[starts[i] : starts[i + 1]]] for i in range(n)]
    left = [i for i in range(n) if len(rows[i]) <= dense]
    weight = [int(len(rows[i]) <= dense) for i in range(n)]  # rows of A in it; 0: merged, eliminated or dense
    degree = [len(row) for row in rows]
    elements = [[] for _ in range(n)]  # of a row
    inside = {}  # the rows of each element
    members = [[i] for i in range(n)]  # the rows of A in a row, or that were eliminated with it
    found = []
    while left and not halt[0]:
        p = max(left, key=lambda i: (-degree[i], left.index(i)))
        if degree[p] > most:
            break
        left.remove(p)
        weight[p] = 0
        new = []
        for i in [i for e in elements[p] for i in inside.pop(e, [])] + rows[p]:
            if weight[i] and i not in new:
                new.append(i)
        size = sum(weight[i] for i in new)
        kept = []
        for i in new:
            left.remove(i)
            present = [e for e in elements[i] if e in inside]
            outside = {e: sum(weight[j] for j in inside[e] if j not in new) for e in present}
            elements[i] = [e for e in present if outside[e]]
            rows[i] = [j for j in rows[i] if weight[j] and j not in new]
            bound = sum(outside.values()) + sum(weight[j] for j in rows[i])
            degree[i] = min(degree[i], bound)
            if bound:
                kept.append(i)
        for i in new:
            if i not in kept:  # all its neighbours are in the element: it goes with p
                size -= weight[i]
                weight[i] = 0
                members[p] += members[i]
        for e in [e for e in inside if all(i in new or not weight[i] for i in inside[e])]:
            del inside[e]
        alike = {}
        for i in reversed(kept):
            of_first = alike.setdefault((frozenset(elements[i]), frozenset(rows[i])), i)
            if of_first != i:
                weight[of_first] += weight[i]
                weight[i] = 0
                members[of_first] += members[i]
            rows[i] = rows[i][1:] + rows[i][:1]
            elements[i].append(p)
        remaining = sum(weight)
        inside[p] = [i for i in kept if weight[i]]
        for i in inside[p]:
            degree[i] = min(degree[i] + size, remaining) - weight[i]
            left.append(i)
        found += members[p]
    if not halt[0]:
        order[:] = found + [i for i in range(n) if i not in found]
    return sum(weight)
