"""Transposes; the graph of A + A^T and its cores. The specification."""

from __future__ import annotations

import numpy as np


def transposed(indptr, indices, data):
    """(indptr, indices, data) of the transpose of a square matrix, rows sorted; indptr is int64."""
    n = indptr.size - 1
    columns = [[] for _ in range(n)]
    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            columns[indices[p]].append((i, data[p]))
    starts = np.cumsum([0, *(len(column) for column in columns)])
    rows, values = ([entry[part] for column in columns for entry in column] for part in (0, 1))
    return starts.astype(np.int64), np.array(rows, indices.dtype), np.array(values, data.dtype)


def symmetric_graph(indptr, indices, starts, columns):
    """The pattern of A + A^T without the diagonal, rows sorted, in columns[:starts[n]].

    indptr, indices : of A, by rows.  starts (n + 1,), columns (2 nnz,) : out.
    """
    n = indptr.size - 1
    neighbours = [set() for _ in range(n)]
    for i in range(n):
        for j in indices[indptr[i] : indptr[i + 1]]:
            neighbours[i].add(int(j))
            neighbours[j].add(i)
    starts[0] = 0
    for i in range(n):
        found = sorted(neighbours[i] - {i})
        starts[i + 1] = starts[i] + len(found)
        columns[starts[i] : starts[i + 1]] = found


def permuted_graph(indptr, indices, order, starts, columns):
    """The pattern whose row i is row order[i] of a symmetric one, its columns likewise, as they come.

    starts (n + 1,), columns (nnz,) : out.
    """
    place = {int(row): i for i, row in enumerate(order)}
    rows = [[place[int(j)] for j in indices[indptr[row] : indptr[row + 1]]] for row in order]
    starts[:] = np.cumsum([0, *(len(row) for row in rows)])
    columns[:] = [j for row in rows for j in row]


def peel(indptr, indices, left, least):
    """Take rows with fewer than `least` neighbours out of a symmetric graph until there are none.

    left (n,) : in, the rows that count; out, those that remain.
    """
    sparse = [-1]
    while sparse:
        sparse = [
            i
            for i in range(left.size)
            if left[i] and np.count_nonzero(left[indices[indptr[i] : indptr[i + 1]]]) < least
        ]
        left[sparse] = False
