"""Entries added to and removed from the factors; magnitudes; a triangle by columns; on all threads."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.indices import pointers
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.arrays import renumbered
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.row_blocks import even_blocks, pattern_arrays, reach_of, row_parts, threads_for
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.operands import CSR, INT32_LIMIT


def columns_of(F):
    """The lower triangle F by columns: indptr (n + 1,), rows (nnz,) ascending, places (nnz,) in F.data.

    Cost: a counting sort; besides the result an integer for each column that a part of the rows may have, for each of
    up to 2 nnz / n threads.
    """
    n, index = F.n, F.indices.dtype
    parts = max(1, min(threads_for(F.nnz), 2 * F.nnz // n))
    items = row_parts(F.indptr, F.nnz, parts)
    parts = items.size - 1
    first = np.maximum(items[:-1] - (reach_of(F) if parts > 1 else n), 0)  # column of the rows of each part
    starts = np.zeros((parts, int((items[1:] - first).max())), F.indptr.dtype)
    indptr, rows, places = np.empty(n + 1, F.indptr.dtype), np.empty(F.nnz, index), np.empty(F.nnz, index)
    run_items(_count_columns, parts, items, first, unsigned(F.indptr), unsigned(F.indices), starts)
    groups = np.linspace(0, n, parts + 1).astype(np.int64)  # of columns
    totals = np.zeros(parts, np.int64)
    run_items(_total_columns, parts, groups, items, first, starts, totals)
    run_items(_start_columns, parts, groups, items, first, starts, np.cumsum(totals) - totals, indptr)
    indptr[n] = F.nnz
    pattern = unsigned(F.indptr), unsigned(F.indices)
    run_items(_fill_columns, parts, items, first, *pattern, unsigned(starts), rows, places)
    return indptr, rows, places


@by_items
def _count_columns(t, items, first, indptr, indices, counts):
    """counts[t, j - first[t]] : entries of column j in part t of the rows."""
    mine = renumbered(counts[t], first[t])
    for p in range(np.uint64(indptr[items[t]]), np.uint64(indptr[items[t + 1]])):
        mine[indices[p]] += 1


@by_items
def _total_columns(t, groups, items, first, counts, totals):
    """totals[t] : the entries of the columns of group t."""
    total = np.int64(0)
    for part in range(counts.shape[0]):
        for j in range(max(groups[t], first[part]), min(groups[t + 1], items[part + 1])):
            total += counts[part, j - first[part]]
    totals[t] = total


@by_items
def _start_columns(t, groups, items, first, starts, before, indptr):
    """Counts become the places where each part's entries of a column begin; before[t] : entries of earlier groups."""
    total = before[t]
    begin = end = 0  # the parts that may have column j
    for j in range(groups[t], groups[t + 1]):
        indptr[j] = total
        while items[begin + 1] <= j:
            begin += 1
        while end < first.size and first[end] <= j:
            end += 1
        for part in range(begin, end):
            count = starts[part, j - first[part]]
            starts[part, j - first[part]] = total
            total += count


@by_items
def _fill_columns(t, items, first, indptr, indices, starts, rows, places):
    next = renumbered(starts[t], first[t])
    for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            q = next[indices[p]]
            next[indices[p]] = q + ONE
            rows[q] = i
            places[q] = p


def add(B, F, indptr, indices, values, scaled=False):
    """B, and F with candidates, as a CSR with ascending columns; see kernels/reference/pattern.py.

    indptr (n + 1,), indices, values : ascending in a row, none of them in F.  scaled : a new l_ij is r_ij / u_jj,
    else r_ij |u_jj| / u_jj. The index arrays of both are int64 where int32 cannot count the entries of F. Cost: one
    pass over F.
    """
    nnz = F.nnz + values.size
    wide = np.int64 if nnz > INT32_LIMIT else F.indptr.dtype
    new_indptr, new_diag = np.add(F.indptr, indptr, dtype=wide), np.empty(F.n, wide)
    new_indices, data = np.empty(nnz, np.int64 if nnz > INT32_LIMIT else F.indices.dtype), np.empty(nnz, F.data.dtype)
    items = even_blocks(new_indptr)
    more = unsigned(indptr), unsigned(indices), values
    out = unsigned(new_indptr), new_indices, new_diag, data
    run_items(_add, items.size - 1, items, (*pattern_arrays(F), F.data), more, bool(scaled), out)
    return B.with_index(new_indices.dtype), CSR(new_indptr, new_indices, data, new_diag)


@by_items
def _add(t, items, F, candidates, scaled, results):
    """Row by row: merge the entries below the diagonal, then those above it."""
    (indptr, indices, diag, f), (more_indptr, more_indices, more) = F, candidates
    out_indptr, out_indices, out_diag, out = results
    for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
        pivot, q, end = np.uint64(diag[i]), np.uint64(more_indptr[i]), np.uint64(more_indptr[i + ONE])
        middle, m = q, np.uint64(out_indptr[i])
        while middle < end and more_indices[middle] < i:
            middle += ONE
        p = np.uint64(indptr[i])
        while q < middle:  # the diagonal ends row p
            j, k = indices[p], more_indices[q]
            old = j < k
            out_indices[m] = j if old else k
            value = more[q]
            if not old:
                pivot_k = f[diag[k]]
                value = divide(value, pivot_k) if scaled else value * (np.conj(pivot_k) / abs(pivot_k))
            out[m] = f[p] if old else value
            m += ONE
            p += np.uint64(old)
            q += np.uint64(not old)
        while p <= pivot:
            out_indices[m] = indices[p]
            out[m] = f[p]
            m += ONE
            p += ONE
        out_diag[i] = m - ONE
        stop = np.uint64(indptr[i + ONE])
        while q < end and p < stop:
            j, k = indices[p], more_indices[q]
            old = j < k
            out_indices[m] = j if old else k
            out[m] = f[p] if old else more[q]
            m += ONE
            p += np.uint64(old)
            q += np.uint64(not old)
        while p < stop:
            out_indices[m] = indices[p]
            out[m] = f[p]
            m += ONE
            p += ONE
        while q < end:
            out_indices[m] = more_indices[q]
            out[m] = more[q]
            m += ONE
            q += ONE


def values_at(B, F):
    """The values of B at the places of F (nnz of F,), 0 where B has no entry. Columns ascend; a pass over both."""
    out = np.empty(F.nnz, B.data.dtype)
    items = even_blocks(F.indptr)
    patterns = (unsigned(x) for x in (B.indptr, B.indices, F.indptr, F.indices))
    run_items(_values_at, items.size - 1, items, *patterns, B.data, out)
    return out


@by_items
def _values_at(t, items, b_indptr, b_indices, indptr, indices, b, out):
    for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
        q, end = np.uint64(b_indptr[i]), np.uint64(b_indptr[i + ONE])
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            j = indices[p]
            while q < end and b_indices[q] < j:
                q += ONE
            out[p] = 0
            if q < end and b_indices[q] == j:
                out[p] = b[q]


def magnitudes(F):
    """|values| of F strictly below (k_L,) and strictly above (k_U,) the diagonal, in the order of their places."""
    items = even_blocks(F.indptr)
    below = np.zeros(items.size, np.int64)
    run_items(_below, items.size - 1, items, F.indptr, F.diag, below)
    np.cumsum(below, out=below)
    real = F.data.dtype.type(0).real.dtype
    lower, upper = np.empty(int(below[-1]), real), np.empty(F.nnz - F.n - int(below[-1]), real)
    run_items(_magnitudes, items.size - 1, items, unsigned(F.indptr), unsigned(F.diag), F.data, below, lower, upper)
    return lower, upper


@by_items
def _below(t, items, indptr, diag, below):
    """below[t + 1] : the entries below the diagonal in block t."""
    total = np.int64(0)
    for i in range(items[t], items[t + 1]):
        total += np.int64(diag[i]) - np.int64(indptr[i])
    below[t + 1] = total


@by_items
def _magnitudes(t, items, indptr, diag, f, below, lower, upper):
    l = np.uint64(below[t])
    u = np.uint64(indptr[items[t]]) - np.uint64(items[t]) - l
    for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
        pivot = np.uint64(diag[i])
        for p in range(np.uint64(indptr[i]), pivot):
            lower[l] = abs(f[p])
            l += ONE
        for p in range(pivot + ONE, np.uint64(indptr[i + ONE])):
            upper[u] = abs(f[p])
            u += ONE


def remove(F, least, drop, values=None):
    """F without its smallest entries, as a CSR; see kernels/reference/pattern.py.

    least (2,) reals, drop (2,) integers: thresholds, and how many entries to drop, below and above the diagonal.
    values (nnz,) : the values of the result, if not F's. Returns a CSR of F's dtypes. Cost: a pass over the values and
    a copy of the remaining entries.
    """
    real = F.data.dtype.type(0).real.dtype.type
    items = even_blocks(F.indptr)
    blocks = items.size - 1
    least = real(least[0]), real(least[1])
    counts = np.zeros((blocks + 1, 4), np.int64)  # smaller and equal, below the diagonal, then above
    run_items(_tally, blocks, items, unsigned(F.indptr), unsigned(F.diag), F.data, *least, counts)
    smaller, ties = counts[:, 0::2].sum(axis=0), counts[:, 1::2].sum(axis=0)
    want = np.clip(np.array([int(drop[0]), int(drop[1])]) - smaller, 0, ties)
    before = np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(counts[:blocks, 1::2], axis=0)])  # ties, by blocks
    dropped = np.diff(before * want // np.maximum(ties, 1), axis=0) + counts[:blocks, 0::2]
    kept = np.diff(F.indptr[items].astype(np.int64)) - dropped.sum(axis=1)
    begin = np.concatenate([[0], np.cumsum(kept)])
    nnz = int(begin[-1])
    indptr, diag = np.empty(F.n + 1, F.indptr.dtype), np.empty(F.n, F.diag.dtype)
    indptr[F.n] = nnz
    indices, data = np.empty(nnz, F.indices.dtype), np.empty(nnz, F.data.dtype)
    values = F.data if values is None else values
    rests, results = before * want % np.maximum(ties, 1), (indptr, indices, diag, data)
    factors = *pattern_arrays(F), F.data
    run_items(_keep, blocks, items, factors, values, least, rests, want, ties, begin, results)
    return CSR(indptr, indices, data, diag)


@by_items
def _tally(t, items, indptr, diag, f, least_below, least_above, counts):
    """counts[t] : values of block t smaller than and equal to the threshold, below the diagonal and above."""
    smaller = ties = 0  # of both sides, 32 bits each
    for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
        pivot = np.uint64(diag[i])
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            size = abs(f[p])
            least = least_below if p < pivot else least_above
            one = 0 if p == pivot else 1 if p < pivot else 1 << 32
            smaller += one if size < least else 0
            ties += one if size == least else 0
    counts[t, 0] = smaller & 0xFFFFFFFF
    counts[t, 1] = ties & 0xFFFFFFFF
    counts[t, 2] = smaller >> 32
    counts[t, 3] = ties >> 32


@by_items
def _keep(t, items, F, values, least, rests, want, ties, begin, results):
    """Row by row: every entry is written to the next free place, which moves on if the entry stays.

    Behind the last entry that stays in a block nothing is written: the place is another block's.
    """
    (indptr, indices, diag, f), (out_indptr, out_indices, out_diag, out) = F, results
    least_below, least_above = least
    m, end = np.uint64(begin[t]), np.uint64(begin[t + 1])
    rest_below, rest_above = rests[t, 0], rests[t, 1]
    for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
        pivot = np.uint64(diag[i])
        out_indptr[i] = m
        for p in range(np.uint64(indptr[i]), pivot):
            size = abs(f[p])
            out_indices[m] = indices[p]
            out[m] = values[p]
            keep = not size < least_below
            if size == least_below:
                rest_below += want[0]
                keep = rest_below < ties[0]
                rest_below -= 0 if keep else ties[0]
            m += np.uint64(keep)
        out_indices[m] = i
        out[m] = values[pivot]
        out_diag[i] = m
        m += ONE
        for p in range(pivot + ONE, np.uint64(indptr[i + ONE])):
            if m == end:
                break
            size = abs(f[p])
            out_indices[m] = indices[p]
            out[m] = values[p]
            keep = not size < least_above  # so that NaN stays
            if size == least_above:
                rest_above += want[1]
                keep = rest_above < ties[1]
                rest_above -= 0 if keep else ties[1]
            m += np.uint64(keep)


def lower_triangle(indptr, indices, data, diag):
    """The lower triangle with its diagonal, by rows; see kernels/reference/pattern.py. Cost: one pass over it."""
    items, (starts, nnz) = even_blocks(indptr), pointers(diag - indptr[:-1] + indptr.dtype.type(1))
    columns, values, places = np.empty(nnz, indices.dtype), np.empty(nnz, data.dtype), np.empty(nnz, indptr.dtype)
    pattern = unsigned(indptr), unsigned(starts), indices, data
    run_items(_lower_rows, items.size - 1, items, *pattern, columns, values, places)
    return starts, columns, values, places


@by_items
def _lower_rows(t, items, indptr, starts, indices, data, columns, values, places):
    """The rows of item t. Threads take blocks of rows."""
    for i in range(items[t], items[t + 1]):
        ahead = np.uint64(indptr[i]) - np.uint64(starts[i])
        for q in range(np.uint64(starts[i]), np.uint64(starts[i + 1])):
            p = q + ahead
            columns[q], values[q], places[q] = indices[p], data[p], p


def facts(A) -> tuple[int, int, int, int]:
    """The numbers that CSR.facts describes. Cost: a pass over indptr and diag."""
    items = even_blocks(A.indptr)
    found = np.zeros((items.size - 1, 4), np.int64)
    run_items(_facts, items.size - 1, items, A.indptr, A.diag, found)
    longest, most_below, most_above = (int(v) for v in found[:, :3].max(axis=0))
    return longest, most_below, most_above, int(found[:, 3].sum())


@by_items
def _facts(t, items, indptr, diag, found):
    """found[t] : the numbers for block t. Threads take blocks of rows."""
    longest = most_below = most_above = total = 0
    for i in range(items[t], items[t + 1]):
        below, above = np.int64(diag[i]) - np.int64(indptr[i]), np.int64(indptr[i + 1]) - np.int64(diag[i]) - 1
        longest = max(longest, below + above + 1)
        most_below, most_above = max(most_below, below), max(most_above, above)
        total += below
    found[t, 0] = longest
    found[t, 1] = most_below
    found[t, 2] = most_above
    found[t, 3] = total
