"""Transposes; blocks; matrices from triangles, in another order, or without small entries; the graph of A + A^T; level
sets. On one thread."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.indices import ONE
from finelu.kernels.cpu.runtime.jit import compiled


def transposed(indptr, indices, data):
    """(indptr, indices, data) of the transpose of a square matrix, sorted. Cost: two passes over the entries."""
    starts, nnz = np.zeros(indptr.size, np.int64), int(indptr[-1])
    rows, values = np.empty(nnz, indices.dtype), np.empty(nnz, data.dtype)
    _transpose(indptr, indices, data, starts, rows, values)
    return starts, rows, values


@compiled
def _transpose(indptr, indices, data, starts, rows, values):
    """As `transposed`.  starts (n + 1,) int64, zeros, rows (nnz,), values (nnz,) : out."""
    n = starts.size - 1
    for p in range(np.uint64(0), np.uint64(indptr[n])):
        starts[np.uint64(indices[p]) + ONE] += 1
    for j in range(n):
        starts[j + 1] += starts[j]
    place = starts[:-1].copy()
    for i in range(n):
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            j = np.uint64(indices[p])
            q = np.uint64(place[j])
            place[j] += 1
            rows[q] = i
            values[q] = data[p]


def block(indptr, indices, data, rows, place):
    """(indptr, indices, data) of some rows of a matrix, with the entries in those columns that have a place.

    rows (m,) : the rows that are wanted, in that order.  place (n,) : of each column, or -1. Entries keep the order
    that they have in their rows. Cost: two passes over these rows.
    """
    starts = np.empty(rows.size + 1, np.int64)
    block_starts(indptr, indices, rows, place, starts)
    columns, values = np.empty(starts[-1], indices.dtype), np.empty(starts[-1], data.dtype)
    _block_entries(indptr, indices, data, rows, place, columns, values)
    return starts, columns, values


@compiled
def block_starts(indptr, indices, rows, place, starts):
    """starts (rows.size + 1,) : out, the indptr of `block`."""
    starts[0] = 0
    for r in range(rows.size):
        found = 0
        for p in range(np.uint64(indptr[rows[r]]), np.uint64(indptr[rows[r] + 1])):
            found += place[np.uint64(indices[p])] >= 0
        starts[r + 1] = starts[r] + found


@compiled
def _block_entries(indptr, indices, data, rows, place, columns, values):
    q = np.uint64(0)
    for r in range(rows.size):
        for p in range(np.uint64(indptr[rows[r]]), np.uint64(indptr[rows[r] + 1])):
            j = place[np.uint64(indices[p])]
            if j >= 0:
                columns[q] = j
                values[q] = data[p]
                q += ONE


def triangles(lower, d, upper, pivots, place, scaled):
    """(indptr, indices, data) of L + D + U, or with `scaled` of L + D (I + U), by rows, restricted to some pivots.

    lower : (indptr, indices, data) of the columns of L below its diagonal, sorted.  upper : of the rows of U above it.
    d (n,) : D.  pivots (m,) : ascending.  place (n,) : the number of each in `pivots`, or -1. Cost: two passes over L,
    and over U.
    """
    starts = np.zeros(pivots.size + 1, np.int64)
    _triangle_starts(*lower[:2], *upper[:2], pivots, place, starts)
    columns, values = np.empty(starts[-1], upper[1].dtype), np.empty(starts[-1], d.dtype)
    _triangles(*lower, d, *upper, pivots, place, scaled, starts, columns, values)
    return starts, columns, values


@compiled
def _triangle_starts(l_indptr, l_indices, u_indptr, u_indices, pivots, place, starts):
    """starts (m + 1,) : zeros; out."""
    for r in range(np.uint64(pivots.size)):
        k = np.uint64(pivots[r])
        found = 1
        for p in range(np.uint64(u_indptr[k]), np.uint64(u_indptr[k + ONE])):
            found += place[np.uint64(u_indices[p])] >= 0
        starts[r + ONE] += found
        for p in range(np.uint64(l_indptr[k]), np.uint64(l_indptr[k + ONE])):
            i = place[np.uint64(l_indices[p])]
            if i >= 0:
                starts[np.uint64(i) + ONE] += 1
    for r in range(pivots.size):
        starts[r + 1] += starts[r]


@compiled
def _triangles(
    l_indptr, l_indices, lower, d, u_indptr, u_indices, upper, pivots, place, scaled, starts, columns, values
):
    one = d.dtype.type(1)
    after = starts[:-1].copy()  # the next place of each row
    for c in range(np.uint64(pivots.size)):
        k = np.uint64(pivots[c])
        for p in range(np.uint64(l_indptr[k]), np.uint64(l_indptr[k + ONE])):
            i = place[np.uint64(l_indices[p])]
            if i >= 0:
                q = np.uint64(after[np.uint64(i)])
                columns[q] = c
                values[q] = lower[p]
                after[np.uint64(i)] += 1
    for r in range(np.uint64(pivots.size)):
        k, q = np.uint64(pivots[r]), np.uint64(after[r])
        columns[q] = r
        values[q] = d[k]
        q += ONE
        scale = d[k] if scaled else one
        for p in range(np.uint64(u_indptr[k]), np.uint64(u_indptr[k + ONE])):
            j = place[np.uint64(u_indices[p])]
            if j >= 0:
                columns[q] = j
                values[q] = scale * upper[p]
                q += ONE


def transposed_places(begin, end, indices):
    """(indptr, rows, places) of the transpose of a part of a square matrix, sorted by rows: places of the entries.

    begin, end (n,) : row i of the part has the entries begin[i]..end[i] - 1 of `indices`. All of the type of `indices`.
    Cost: two passes over the entries.
    """
    starts = np.zeros(begin.size + 1, indices.dtype)
    _transposed_starts(begin, end, indices, starts)
    rows, places = (np.empty(starts[-1], indices.dtype) for _ in range(2))
    _transposed_places(begin, end, indices, starts[:-1].copy(), rows, places)
    return starts, rows, places


@compiled
def _transposed_starts(begin, end, indices, starts):
    n = begin.size
    for i in range(n):
        for p in range(np.uint64(begin[i]), np.uint64(end[i])):
            starts[np.uint64(indices[p]) + ONE] += 1
    for j in range(n):
        starts[j + 1] += starts[j]


@compiled
def _transposed_places(begin, end, indices, after, rows, places):
    """after (n,) : the next place of each row of the transpose."""
    for i in range(begin.size):
        for p in range(np.uint64(begin[i]), np.uint64(end[i])):
            j = np.uint64(indices[p])
            q = np.uint64(after[j])
            rows[q] = i
            places[q] = p
            after[j] += 1


@compiled
def arranged_columns(indptr, indices, data, rows, columns, row_scale, column_scale, starts, places, values):
    """A with its rows and columns in another order, scaled, by columns, in places and values[:starts[n]].

    indptr, indices, data : of A, by rows.  rows, columns (n,) : row i and column j are rows[i] and columns[j] of A.
    row_scale, column_scale (n,) : in the new order; rows are scaled before columns.
    starts (n + 1,), places (nnz,), the rows of each column, ascending, values (nnz,) : out. Cost: two passes over A.
    """
    n = rows.size
    to = np.empty(n, np.int64)
    for j in range(n):
        to[columns[j]] = j
    for j in range(n + 1):
        starts[j] = 0
    for p in range(np.uint64(0), np.uint64(indptr[n])):
        starts[np.uint64(to[np.uint64(indices[p])]) + ONE] += 1
    for j in range(n):
        starts[j + 1] += starts[j]
    for i in range(n):
        for p in range(np.uint64(indptr[rows[i]]), np.uint64(indptr[rows[i] + 1])):
            j = np.uint64(to[np.uint64(indices[p])])
            q = np.uint64(starts[j])
            starts[j] += 1
            places[q] = i
            values[q] = data[p] * row_scale[i] * column_scale[j]
    for j in range(n, 0, -1):
        starts[j] = starts[j - 1]
    starts[0] = 0


def without_small(indptr, indices, data, row_scale, column_scale, drop_tol):
    """(indptr, indices, data) of a square matrix without its small entries off the diagonal; the arguments
    themselves if it has none.

    Small : row_scale_i |a_ij| column_scale_j is at most drop_tol min(r_i, c_j), where r_i and c_j are the largest of
    these products in row i and column j. So no row and no column loses its largest entry.
    row_scale, column_scale (n,) : in the real dtype of `data`. Cost: two passes over the entries, or three.
    """
    n = indptr.size - 1
    starts, limits = np.zeros(n + 1, np.int64), np.zeros((2, n), row_scale.dtype)
    scaled = indptr, indices, data, row_scale, column_scale
    _largest_scaled(*scaled, row_scale.dtype.type(drop_tol), limits)
    _large_starts(*scaled, limits, starts)
    if starts[-1] == indices.size:
        return indptr, indices, data
    columns, values = np.empty(starts[-1], indices.dtype), np.empty(starts[-1], data.dtype)
    _large_entries(*scaled, limits, columns, values)
    return starts, columns, values


@compiled
def _largest_scaled(indptr, indices, data, row_scale, column_scale, drop_tol, limits):
    """limits (2, n) : zeros; out, drop_tol times the largest of each row, and of each column, scaled."""
    for i in range(row_scale.size):
        largest = limits[0, i]
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            j = np.uint64(indices[p])
            size = abs(data[p]) * row_scale[i] * column_scale[j]
            largest = max(largest, size)
            limits[1, j] = max(limits[1, j], size)
        limits[0, i] = largest
    limits *= drop_tol


@compiled
def _large_starts(indptr, indices, data, row_scale, column_scale, limits, starts):
    for i in range(row_scale.size):
        found = 0
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            j = np.uint64(indices[p])
            size = abs(data[p]) * row_scale[i] * column_scale[j]
            found += not size <= min(limits[0, i], limits[1, j]) or indices[p] == i
        starts[i + 1] = starts[i] + found


@compiled
def _large_entries(indptr, indices, data, row_scale, column_scale, limits, columns, values):
    q = np.uint64(0)
    for i in range(row_scale.size):
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            j = np.uint64(indices[p])
            size = abs(data[p]) * row_scale[i] * column_scale[j]
            if not size <= min(limits[0, i], limits[1, j]) or indices[p] == i:
                columns[q] = indices[p]
                values[q] = data[p]
                q += ONE


@compiled
def has_small_line(indptr, indices, data, low):
    """Whether a row or a column has entries that are not 0, all below `low`; see the specification."""
    met = np.zeros(indptr.size - 1, np.uint8)  # of each column: 1 a small entry, 2 a larger one
    for i in range(np.uint64(indptr.size - 1)):
        of_row = np.uint8(0)
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            size = np.float64(max(abs(data[p].real), abs(data[p].imag)))
            kind = np.uint8(2 if size >= low else 1 if size > 0 else 0)
            of_row |= kind
            met[np.uint64(indices[p])] |= kind
        if of_row == 1:
            return True
    return bool((met == 1).any())


@compiled
def symmetric_graph(indptr, indices, starts, columns):
    """The pattern of A + A^T without the diagonal, rows sorted, in columns[:starts[n]].

    indptr, indices : of A, by rows, sorted, without duplicates.  starts (n + 1,), columns (2 nnz,) : out.
    Cost: three passes over A.
    """
    n = starts.size - 1
    to, rows = np.zeros(n + 1, np.int64), np.empty(indptr[n], indices.dtype)
    _transpose(indptr, indices, indices, to, rows, np.empty_like(rows))
    found = 0
    starts[0] = 0
    for i in range(n):
        p, q = indptr[i], to[i]
        while p < indptr[i + 1] or q < to[i + 1]:
            j = n
            if p < indptr[i + 1]:
                j = indices[p]
            if q < to[i + 1] and rows[q] < j:
                j = rows[q]
            if p < indptr[i + 1] and indices[p] == j:
                p += 1
            if q < to[i + 1] and rows[q] == j:
                q += 1
            if j != i:
                columns[found] = j
                found += 1
        starts[i + 1] = found


@compiled
def without_diagonal(indptr, indices, starts, columns):
    """The pattern without its diagonal, in columns[:starts[n]]; see kernels/reference/graph.py. Cost: one pass."""
    found = np.uint64(0)
    starts[0] = 0
    for i in range(np.uint64(indptr.size - 1)):
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            columns[found] = indices[p]
            found += np.uint64(np.uint64(indices[p]) != i)
        starts[i + ONE] = found


@compiled
def behind_diagonal(indptr, indices, starts, columns, places):
    """The entries from the diagonal on, and a whole diagonal; see kernels/reference/graph.py. Cost: one pass."""
    found = np.uint64(0)
    starts[0] = 0
    for i in range(np.uint64(indptr.size - 1)):
        p, end = np.uint64(indptr[i]), np.uint64(indptr[i + ONE])
        while p < end and np.uint64(indices[p]) < i:
            p += ONE
        if p == end or np.uint64(indices[p]) != i:
            columns[found], places[found] = i, 0
            found += ONE
        while p < end:
            columns[found], places[found] = indices[p], p + ONE
            found += ONE
            p += ONE
        starts[i + ONE] = found


@compiled
def permuted_graph(indptr, indices, order, starts, columns):
    """The pattern whose row i is row order[i] of a symmetric one, its columns likewise; rows are not sorted.

    starts (n + 1,), columns (nnz,) : out. Cost: one pass over the pattern.
    """
    n = order.size
    place = np.empty(n, np.int64)
    for i in range(n):
        place[order[i]] = i
    found = 0
    starts[0] = 0
    for i in range(n):
        for p in range(indptr[order[i]], indptr[order[i] + 1]):
            columns[found] = place[indices[p]]
            found += 1
        starts[i + 1] = found


@compiled
def level_sets(indptr, indices, rows, label, first, level, queue):
    """The distances from row `first` among rows of its label; see kernels/reference/graph.py. Cost: O(nnz)."""
    wanted = label[first]
    for i in rows:
        level[i] = -1
    head = tail = later = 0
    start, depth = np.int64(first), np.int64(0)
    while True:
        level[start] = depth
        queue[tail] = start
        tail += 1
        while head < tail:
            i = np.uint64(queue[head])
            head += 1
            for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
                j = np.uint64(indices[p])
                if label[j] == wanted and level[j] < 0:
                    level[j] = level[i] + 1
                    queue[tail] = j
                    tail += 1
        depth = level[queue[tail - 1]] + 1
        if tail == rows.size:
            return depth
        while level[rows[later]] >= 0:
            later += 1
        start = np.int64(rows[later])
