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


def columns_pay(indptr, indices, diag) -> bool:
    """Whether it takes less time than the rows alone, for the pattern of L by rows, with the diagonal last. Cost:
    O(nnz)."""
    n = diag.size
    if indices.size < COLUMNS_PAY * n:
        return False
    columns = np.bincount(indices, minlength=n).astype(float) - 1
    rows = (diag[:n] - indptr[:n]).astype(float)
    return float(columns @ columns) / 2 <= PRODUCTS_LEFT * float(columns @ rows)


def ic0_by_columns(indptr, indices, diag, a, l) -> int:
    """l (nnz,) receives the factor of a (nnz,); returns the first bad row or -1. Memory: a copy of the factor."""
    bad, n = np.array([diag.size], np.int64), diag.size
    begin, pattern = np.zeros(n + 1, indptr.dtype), [unsigned(x) for x in (indptr, indices, diag)]
    rows, values = np.empty_like(pattern[1]), np.empty_like(l)
    run(_by_columns, 1, bad, *pattern, a, l, unsigned(begin), rows, values, deadline.halt())
    deadline.check()
    return int(bad[0]) if bad[0] < n else -1


@compiled
def _by_columns(bad, indptr, indices, diag, a, l, begin, rows, values, halt):
    """Row by row, up-looking; row i meets only the rows before it in column k.

    The products of an entry are subtracted in the order of `elimination`, for the same bits. What lands in w outside of
    the pattern is never read.
    bad (1,) : out, the first bad row.  begin (n + 1,) : zeros.  rows, values (nnz,) : workspace.
    """
    n = diag.size
    for i in range(n):
        for p in range(np.uint64(indptr[i]), np.uint64(diag[i])):
            begin[indices[p] + ONE] += ONE
    for k in range(n):
        begin[k + 1] += begin[k]
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
