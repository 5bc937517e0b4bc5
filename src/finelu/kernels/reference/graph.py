"""Transposes; blocks; matrices in another order, by columns, or without small entries; the graph of A + A^T. The
specification."""

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


def block(indptr, indices, data, rows, place):
    """(indptr, indices, data) of some rows of a matrix, restricted to the columns that have a place.

    rows (m,) : the wanted rows, in that order.  place (n,) : of each column, or -1. Entries keep their order within
    their rows; indptr is int64.
    """
    found = [[p for p in range(indptr[i], indptr[i + 1]) if place[indices[p]] >= 0] for i in rows]
    places = [p for row in found for p in row]
    starts = np.cumsum([0, *map(len, found)], dtype=np.int64)
    columns = [place[indices[p]] for p in places]
    return starts, np.array(columns, indices.dtype), np.array([data[p] for p in places], data.dtype)


def block_starts(indptr, indices, rows, place, starts):
    """starts (rows.size + 1,) : out, the indptr of `block`."""
    starts[:] = block(indptr, indices, indices, rows, place)[0]


def triangles(lower, d, upper, pivots, place, scaled):
    """(indptr, indices, data) of L + D + U, or with `scaled` of L + D (I + U), by rows, restricted to some pivots.

    lower : (indptr, indices, data) of the columns of L below its diagonal, sorted.  upper : of the rows of U above it.
    d (n,) : D.  pivots (m,) : ascending.  place (n,) : the number of each in `pivots`, or -1. indptr is int64.
    """

    def entries(part, k):
        indptr, indices, data = part
        return [(int(place[indices[p]]), data[p]) for p in range(indptr[k], indptr[k + 1]) if place[indices[p]] >= 0]

    one = d.dtype.type(1)
    rows = [[] for _ in pivots]
    for c, k in enumerate(pivots):
        for i, v in entries(lower, k):
            rows[i].append((c, v))
    for r, k in enumerate(pivots):
        rows[r] += [(r, d[k]), *((j, (d[k] if scaled else one) * v) for j, v in entries(upper, k))]
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    columns, values = ([entry[part] for row in rows for entry in row] for part in (0, 1))
    return starts, np.array(columns, upper[1].dtype), np.array(values, d.dtype)


def transposed_places(begin, end, indices):
    """(indptr, rows, places) of the transpose of a part of a square matrix, sorted by rows: places of the entries.

    begin, end (n,) : row i of the part has the entries begin[i]..end[i] - 1 of `indices`. All of the type of `indices`.
    """
    columns = [[] for _ in begin]
    for i in range(len(begin)):
        for p in range(begin[i], end[i]):
            columns[indices[p]].append((i, p))
    starts = np.cumsum([0, *map(len, columns)])
    rows, places = ([entry[part] for column in columns for entry in column] for part in (0, 1))
    return tuple(np.array(x, indices.dtype) for x in (starts, rows, places))


def arranged_columns(indptr, indices, data, rows, columns, row_scale, column_scale, starts, places, values):
    """A with its rows and columns in another order, scaled, by columns, in places and values[:starts[n]].

    indptr, indices, data : of A, by rows.  rows, columns (n,) : row i and column j are rows[i] and columns[j] of A.
    row_scale, column_scale (n,) : in the new order; rows are scaled before columns.
    starts (n + 1,), places (nnz,), the rows of each column, ascending, values (nnz,) : out.
    """
    where = {(i, int(indices[p])): p for i in range(len(rows)) for p in range(indptr[i], indptr[i + 1])}
    found = 0
    starts[0] = 0
    for j, column in enumerate(columns):
        for i, row in enumerate(rows):
            p = where.get((int(row), int(column)))
            if p is not None:
                places[found], values[found] = i, data[p] * row_scale[i] * column_scale[j]
                found += 1
        starts[j + 1] = found


def without_small(indptr, indices, data, row_scale, column_scale, drop_tol):
    """(indptr, indices, data) of a square matrix without its small entries off the diagonal; the arguments
    themselves if it has none.

    Small : row_scale_i |a_ij| column_scale_j is at most drop_tol min(r_i, c_j), where r_i and c_j are the largest of
    these products in row i and column j.
    row_scale, column_scale (n,) : in the real dtype of `data`.
    """
    n = indptr.size - 1
    rows = np.repeat(np.arange(n), np.diff(indptr))
    size = abs(data) * row_scale[rows] * column_scale[indices]
    limits = np.zeros((2, n), row_scale.dtype)
    for i, j, s in zip(rows, indices, size, strict=True):
        limits[0, i], limits[1, j] = max(limits[0, i], s), max(limits[1, j], s)
    limits *= row_scale.dtype.type(drop_tol)
    large = ~(size <= np.minimum(limits[0, rows], limits[1, indices])) | (rows == indices)
    if large.all():
        return indptr, indices, data
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows[large], minlength=n))]).astype(np.int64)
    return starts, indices[large], data[large]


def has_small_line(indptr, indices, data, low):
    """Whether a row or a column of a CSR matrix (n, n) has entries that are not 0, all of them smaller than `low`.

    The size of a complex number is the larger part of it.
    """
    lines: dict[tuple[str, int], float] = {}
    for i in range(indptr.size - 1):
        for p in range(indptr[i], indptr[i + 1]):
            size = max(abs(float(data[p].real)), abs(float(data[p].imag)))
            for line in (("row", i), ("column", int(indices[p]))):
                lines[line] = max(lines.get(line, 0.0), size)
    return any(0 < largest < low for largest in lines.values())


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


def without_diagonal(indptr, indices, starts, columns):
    """The pattern without its diagonal, in columns[:starts[n]].

    starts (n + 1,), columns (nnz + 1,) : out.
    """
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    kept = np.flatnonzero(indices != rows)
    starts[:], columns[: kept.size] = np.searchsorted(kept, indptr), indices[kept]


def behind_diagonal(indptr, indices, starts, columns, places):
    """The entries of a sorted pattern from the diagonal on, and a whole diagonal, in columns[:starts[n]].

    starts (n + 1,), columns (nnz + n,), places (nnz + n,) : out; places in `indices`, from 1 on, and 0 for a diagonal
    entry that is not stored.
    """
    found = 0
    starts[0] = 0
    for i in range(indptr.size - 1):
        row = {int(indices[p]): p + 1 for p in range(indptr[i], indptr[i + 1]) if indices[p] >= i}
        for j in sorted(row | {i: row.get(i, 0)}):
            columns[found], places[found] = j, row.get(j, 0)
            found += 1
        starts[i + 1] = found


def permuted_graph(indptr, indices, order, starts, columns):
    """The pattern whose row i is row order[i] of a symmetric one, its columns likewise, as they come.

    starts (n + 1,), columns (nnz,) : out.
    """
    place = {int(row): i for i, row in enumerate(order)}
    rows = [[place[int(j)] for j in indices[indptr[row] : indptr[row + 1]]] for row in order]
    starts[:] = np.cumsum([0, *(len(row) for row in rows)])
    columns[:] = [j for row in rows for j in row]


def level_sets(indptr, indices, rows, label, first, level, queue):
    """level[i] for `rows` that all have one label: the distance of row i from `first` among them.

    If they are not connected, the search goes on one level further, from the first row in `rows` that was not reached.
    queue (rows.size,) : the rows, each after those of lower levels. Returns the number of levels.
    """
    left, found, depth, start = {int(i) for i in rows}, [], 0, int(first)
    while left:
        front = [start]
        while front:
            for i in front:
                level[i] = depth
            found += front
            left -= set(front)
            front = [j for i in front for j in map(int, indices[indptr[i] : indptr[i + 1]]) if j in left]
            front = list(dict.fromkeys(front))
            depth += 1
        start = next((int(i) for i in rows if int(i) in left), -1)
    queue[:] = found
    return depth
