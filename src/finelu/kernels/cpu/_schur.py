"""The Schur complement of the deferred rows and the interface, after Crout's elimination.

S = C - L_C D U_C, row by row. A term of a row of S is a row of U_C and its factor; the symmetric form computes only the
upper triangle, and mirrors it. Threads share blocks of rows. Sums run in ascending order of the pivots, so the bits are
the same on any number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from finelu import deadline
from finelu.errors import TooManyEntries
from finelu.kernels.cpu._crout_rows import Workspaces, new_row
from finelu.kernels.cpu.runtime.arrays import Handed, grown, hand_over
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.indices import ONE
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.prefetch import prefetch
from finelu.kernels.cpu.runtime.sort import sort_by_bitmap
from finelu.threads import each, get_num_threads

BLOCK = 2**18  # multiplications of a block of rows
WAVE, SHARE = 64, 8  # blocks, and those of each thread, at least, between two looks at how many entries are kept
AHEAD = 4  # terms, whose entries are asked for


class SchurComplement(NamedTuple):
    """S (m, m) in CSR, sorted, every diagonal entry stored; row and column r of S are rows[r] of A.

    first_bad : the first row of S with an entry whose magnitude is not finite, or -1; of a symmetric S, with one in
        its upper triangle.
    """

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    rows: np.ndarray
    first_bad: int


def empty(A) -> SchurComplement:
    """S where all rows are pivots."""
    rows = np.zeros(0, np.int64)
    return SchurComplement(np.zeros(1, np.int64), A.indices[:0].copy(), A.data[:0].copy(), rows, -1)


class Rest(NamedTuple):
    """The remaining rows of A, which are those of S, and the part of U in their columns.

    rows (m,) int64.  number (n,) : of each row of A in S, or -1.  starts (n + 1,), columns, values : U_C by rows, its
    columns numbered as in S.
    """

    rows: np.ndarray
    number: np.ndarray
    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray


class Terms(NamedTuple):
    """The terms of row r of S are q = starts[r]..starts[r + 1]: factors[q] times row source[q] of U_C, from its place
    begin[q] on, is subtracted.

    work (m,) : about the number of multiplications of each row.
    """

    starts: np.ndarray
    source: np.ndarray
    begin: np.ndarray
    factors: np.ndarray
    work: np.ndarray


def remaining_rows(factors, indptr, indices, data) -> Rest | None:
    """None if there are none.  factors : with `deferred` and `interface`.  indptr, indices, data : U by rows."""
    n = factors.n
    rows = np.flatnonzero((factors.deferred != 0) | (np.arange(n) >= factors.interface)).astype(np.int64)
    if rows.size == 0:
        return None
    number = np.full(n, -1, indices.dtype)
    number[rows] = np.arange(rows.size)
    starts = np.zeros(n + 1, np.int64)
    with Handed(2) as handed:
        _columns_left(number, indptr, indices, data, starts, handed.slots)
        return Rest(rows, number, starts, handed.take(0, indices.dtype), handed.take(1, data.dtype))


@compiled
def _columns_left(number, indptr, indices, data, starts, slots):
    n = number.size
    total = 0
    for k in range(n):
        for p in range(np.uint64(indptr[k]), np.uint64(indptr[k + 1])):
            total += number[np.uint64(indices[p])] >= 0
        starts[k + 1] = total
    columns, values = np.empty(total, indices.dtype), np.empty(total, data.dtype)
    used = np.uint64(0)
    for p in range(np.uint64(0), np.uint64(indptr[n])):
        j = number[np.uint64(indices[p])]
        if j >= 0:
            columns[used] = j
            values[used] = data[p]
            used += ONE
    hand_over(columns, slots, 0)
    hand_over(values, slots, 1)


def new_terms(counts, index, dtype) -> Terms:
    """Room for counts[r] terms of row r."""
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    total = int(starts[-1])
    types, work = (index, np.int64, dtype), np.ones(counts.size, np.int64)
    return Terms(starts, *(np.empty(total, kind) for kind in types), work)


@compiled
def add_term(r, source, begin, end, factor, place, terms):
    """Add a term of row r, at place[r]."""
    _, sources, begins, factors, work = terms
    q = np.uint64(place[r])
    sources[q], begins[q], factors[q] = source, begin, factor
    place[r] += 1
    work[r] += end - begin + 4


def complement(A, left: Rest, terms: Terms, drop_tol, upper: bool, hermitian: bool, most=None) -> SchurComplement:
    """S, or its upper triangle, whose sizes are then those of the whole.

    drop_tol : off the diagonal s_ij is dropped where |s_ij| <= drop_tol min(r_i, c_j), r_i and c_j the largest
        magnitudes of row i and column j: no row and no column loses its largest entry.
    most : the limit of entries, or None. TooManyEntries is raised once the rows so far are known to keep more.
    Cost: the multiplications, over the threads. An entry that is small for its row waits for the largest of its column,
    unless the thread that made it has already met one that is large enough. So the kept entries do not depend on the
    threads, and the memory before the dropping stays near that of S.
    """
    m, dtype, index = left.rows.size, A.data.dtype, A.indices.dtype
    unit = dtype.type(0).real.dtype.type(1)
    with np.errstate(over="ignore"):
        drop_tol = unit.dtype.type(drop_tol)
    total = np.cumsum(terms.work)
    blocks = max(1, int(total[-1] // BLOCK))
    inner = np.searchsorted(total, np.arange(1, blocks) * (total[-1] / blocks)) + 1
    items = np.minimum(np.unique(np.concatenate([[0], inner, [m]])), m)
    indptr, row_size = np.zeros(m + 1, np.int64), np.zeros(m, unit.dtype)
    matrix, halt = (A.indptr, A.indices, A.data), deadline.halt()
    blocks, made, bad = items.size - 1, [], []
    workspaces = Workspaces(lambda: (row_size, np.zeros(m, unit.dtype), indptr, new_row(m, index, dtype)))

    def make(b, workspace):
        deadline.check()
        block = items[b], items[b + 1]
        with Handed(2) as handed:
            slots = handed.slots
            used, wrong = _rows(*block, matrix, left, terms, drop_tol, unit, upper, hermitian, *workspace, slots, halt)
            bad.extend([wrong] if wrong >= 0 else [])
            return handed.take(0, index)[:used], handed.take(1, dtype)[:used]

    def drop(first, last):
        """Drop the entries of these blocks that are small for the rows so far. Returns the number of entries that are
        kept in any case."""
        column_size = np.max([workspace[1] for workspace in workspaces.all], axis=0)
        both = np.maximum(row_size, column_size)  # of a symmetric S: those of the rows so far are final
        sizes = (both, both) if upper else (row_size, column_size)

        def of_block(t):
            b = first + t
            columns, values = made[b]
            kept, sure = _drop(items[b], items[b + 1], *sizes, drop_tol, indptr, columns, values)
            made[b] = columns[:kept], values[:kept]
            return sure

        return sum(each(last - first, of_block))

    wave, sure = blocks if most is None else max(WAVE, SHARE * get_num_threads()), 0
    for first in range(0, blocks, wave):
        last = min(first + wave, blocks)
        workspaces.back()
        made += each(last - first, lambda t, workspace, first=first: make(first + t, workspace), workspaces.one)
        deadline.check()
        sure += drop(first, last)
        if most is not None and sure > most:
            raise TooManyEntries(most)
    if blocks > wave:
        drop(0, blocks)
    np.cumsum(indptr, out=indptr)
    if most is not None and indptr[m] > most:
        raise TooManyEntries(most)
    indices, data = (np.concatenate([block[f] for block in made]) for f in (0, 1))
    return SchurComplement(indptr, indices, data, left.rows, min(bad, default=-1))


@compiled
def _rows(first, last, A, left, terms, drop_tol, unit, upper, hermitian, row_size, column_size, counts, Z, slots, halt):
    """Rows first..last - 1 of S: indices and values in the slots, lengths in counts[1:].

    Returns how many entries there are, and the first row with one whose magnitude is not finite, or -1.
    row_size (m,) : the largest of each of these rows, on return.  column_size (m,) : of each column, of all rows that
    have been made with this workspace; entries that are too small even for these are dropped.
    """
    indptr, indices, a = A
    rows, number, u_indptr, u_columns, u_values = left
    starts, source, begins, factors, _ = terms
    x, touched, seen, words, pages = Z.x, Z.touched, Z.seen, Z.words, Z.pages
    columns = np.empty(indptr[rows[last - 1] + 1] - indptr[rows[first]] + 2 * (last - first), u_columns.dtype)
    values = np.empty(columns.size, a.dtype)
    used, bad = 0, -1
    for r in range(first, last):
        if halted(halt):
            break
        seen[r] = ~r
        touched[0] = r
        met = ONE
        for q in range(np.uint64(indptr[rows[r]]), np.uint64(indptr[rows[r] + 1])):
            j = np.int64(number[np.uint64(indices[q])])
            if j >= 0 and (j >= r or not upper):
                x[j] = a[q]
                seen[j] = ~r
                if j != r:
                    touched[met] = j
                    met += ONE
        stop = np.uint64(starts[r + 1])
        for p in range(np.uint64(starts[r]), stop):
            if p + np.uint64(AHEAD) < stop:
                prefetch(u_columns, begins[p + np.uint64(AHEAD)])
                prefetch(u_values, begins[p + np.uint64(AHEAD)])
            factor = factors[p]
            for q in range(np.uint64(begins[p]), np.uint64(u_indptr[np.uint64(source[p]) + ONE])):
                j = np.uint64(u_columns[q])
                x[j] -= factor * u_values[q]
                touched[met] = j
                met += np.uint64(seen[j] != ~r)
                seen[j] = ~r
        if hermitian:
            x[r] = x[r].real
        largest = unit - unit
        for e in range(met):
            j = np.uint64(touched[e])
            size = abs(x[j])
            if not np.isfinite(size) and bad < 0:
                bad = r
            largest = max(largest, size)
            column_size[j] = max(column_size[j], size)
        row_size[r] = largest
        kept = np.uint64(0)
        for e in range(met):
            j = np.uint64(touched[e])
            size = abs(x[j])
            if size <= drop_tol * min(largest, column_size[j]) and touched[e] != r:
                x[j] = 0
            else:
                touched[kept] = j
                kept += ONE
        sort_by_bitmap(touched, kept, words, pages)
        columns, values = grown(columns, used, used + np.int64(kept)), grown(values, used, used + np.int64(kept))
        at = np.uint64(used)
        for e in range(kept):
            j = np.uint64(touched[e])
            columns[at + e] = touched[e]
            values[at + e] = x[j]
            x[j] = 0
        used += np.int64(kept)
        counts[r + 1] = np.int64(kept)
    hand_over(columns, slots, 0)
    hand_over(values, slots, 1)
    return used, bad


@compiled
def _drop(first, last, row_size, column_size, drop_tol, counts, columns, values):
    """Drop the small entries of rows first..last - 1, in place in (columns, values). Returns the number of entries that
    remain, and how many of these are kept whatever the columns are."""
    begin, used, large = np.uint64(0), np.uint64(0), 0
    for r in range(first, last):
        end = begin + np.uint64(counts[r + 1])
        start = used
        for q in range(begin, end):
            j = np.uint64(columns[q])
            if not abs(values[q]) <= drop_tol * min(row_size[r], column_size[j]) or columns[q] == r:
                columns[used] = columns[q]
                values[used] = values[q]
                used += ONE
                large += not abs(values[q]) <= drop_tol * row_size[r] or columns[q] == r
        counts[r + 1] = used - start
        begin = end
    return np.int64(used), large


def mirrored(S: SchurComplement, hermitian: bool) -> SchurComplement:
    """The whole of a symmetric S, of which the argument is the upper triangle, with the diagonal first in each row."""
    starts = np.zeros_like(S.indptr)
    total = 2 * S.indices.size - (S.indptr.size - 1)
    indices, data = np.empty(total, S.indices.dtype), np.empty(total, S.data.dtype)
    _mirrored(S.indptr, S.indices, S.data, hermitian, starts, indices, data)
    return S._replace(indptr=starts, indices=indices, data=data)


@compiled
def _mirrored(indptr, indices, data, hermitian, starts, out_indices, out):
    m = indptr.size - 1
    for i in range(m):
        starts[i + 1] += indptr[i + 1] - indptr[i]
        for p in range(np.uint64(indptr[i] + 1), np.uint64(indptr[i + 1])):
            starts[np.uint64(indices[p]) + ONE] += 1
    for i in range(m):
        starts[i + 1] += starts[i]
    place = starts[:-1].copy()
    for i in range(m):  # the rows before have put theirs of row i to its places, in ascending order
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            j = np.uint64(indices[p])
            q = np.uint64(place[i])
            place[i] += 1
            out_indices[q] = indices[p]
            out[q] = data[p]
            if indices[p] != i:
                q = np.uint64(place[j])
                place[j] += 1
                out_indices[q] = i
                out[q] = np.conj(data[p]) if hermitian else data[p]
