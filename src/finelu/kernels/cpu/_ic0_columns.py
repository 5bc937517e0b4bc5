"""IC(0) in natural order, on one thread, with the finished rows by columns, too.

Row i meets only the rows before it in each of its columns: where rows are long, and columns no longer, half of the
products of `elimination` are left.
"""

from __future__ import annotations

import numpy as np

from finelu import deadline
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.workers import run

# A copy of L by columns pays from that many entries of a row on, and where it leaves at most this part of the products:
# half of them where columns are as long as rows, but many times as many where a row that comes early is long.
COLUMNS_PAY, PRODUCTS_LEFT = 10, 0.6


def columns_that_pay(indptr, indices, diag):
    """The starts (n + 1,) of the columns of L below the diagonal, unsigned, if it takes less time with them than by
    rows alone; else None.  indptr, indices, diag : the pattern of L by rows, the diagonal last. Cost: O(nnz)."""
    if indices.size < COLUMNS_PAY * diag.size:
        return None
    begin = unsigned(np.zeros(diag.size + 1, indptr.dtype))
    by_columns, by_rows = _starts(*(unsigned(x) for x in (indptr, indices, diag)), begin)
    return begin if by_columns / 2 <= PRODUCTS_LEFT * by_rows else None


@compiled
def _starts(indptr, indices, diag, begin):
    """begin (n + 1,) : zeros; out, the starts of the columns. Returns how many products there are by columns, twice
    counted, and by rows."""
    n, by_columns, by_rows = diag.size, 0.0, 0.0
    for i in range(n):
        for p in range(np.uint64(indptr[i]), np.uint64(diag[i])):
            begin[indices[p] + ONE] += ONE
    for k in range(n):
        length = np.float64(begin[k + 1])
        by_columns += length * length
        by_rows += length * (np.float64(diag[k]) - np.float64(indptr[k]))
        begin[k + 1] += begin[k]
    return by_columns, by_rows


def ic0_by_columns(indptr, indices, diag, begin, a, l) -> int:
    """l (nnz,) receives the factor of a (nnz,); returns the first bad row or -1. Memory: a copy of the factor.

    begin : of `columns_that_pay`.
    """
    bad, pattern = np.array([diag.size], np.int64), [unsigned(x) for x in (indptr, indices, diag)]
    rows, values = np.empty_like(pattern[1]), np.empty_like(l)
    run(_by_columns, 1, bad, *pattern, a, l, begin, rows, values, deadline.halt())
    deadline.check()
    return int(bad[0]) if bad[0] < diag.size else -1


@compiled
def _by_columns(bad, indptr, indices, diag, a, l, begin, rows, values, halt):
    """Row by row, up-looking; row i meets only the rows before it in column k.

    The products of an entry are subtracted in the order of `elimination`, for the same bits. What lands in w outside of
    the pattern is never read.
    bad (1,) : out, the first bad row.  begin (n + 1,) : the starts of columns.  rows, values (nnz,) : workspace.
    """
    n = diag.size
    end, w = begin.copy(), np.empty(n, a.dtype)
    for i in range(np.uint64(n)):
        if halted(halt):
            break
        lo, pivot = np.uint64(indptr[i]), np.uint64(diag[i])
        for p in range(lo, pivot):
            w[indices[p]] = a[p]
        square = a[pivot].real
        for p in range(lo, pivot):
            k = np.uint64(indices[p])
            new = divide(w[k], l[diag[k]])
            last = np.uint64(end[k])
            for q in range(np.uint64(begin[k]), last):
                w[rows[q]] -= new * np.conj(values[q])
            square -= (new * np.conj(new)).real
            l[p] = new
            rows[last] = i
            values[last] = new
            end[k] = last + ONE
        if not np.isfinite(square) or square <= 0:
            bad[0] = i
            break
        l[pivot] = np.sqrt(square)
