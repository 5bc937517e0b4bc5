"""The pattern of the factors grows and shrinks; magnitudes; a triangle by columns. The specification."""

from __future__ import annotations

import numpy as np

from finelu.kernels.reference.sweeps import row_of


def columns_of(F):
    """F (lower triangle and diagonal) by columns: indptr (n + 1,), rows (nnz,) ascending, places (nnz,) in F.data."""
    order = np.lexsort((np.repeat(np.arange(F.n), np.diff(F.indptr)), F.indices))
    rows = np.repeat(np.arange(F.n), np.diff(F.indptr))[order]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(F.indices, minlength=F.n))])
    return indptr.astype(F.indptr.dtype), rows.astype(F.indices.dtype), order.astype(F.indices.dtype)


def lower_triangle(indptr, indices, data, diag):
    """The entries on and below the full diagonal, by rows, the diagonal last: starts (n + 1,), columns, values and
    their places in `data` (m,)."""
    rows = [range(indptr[i], place + 1) for i, place in enumerate(diag)]
    places = np.array([p for row in rows for p in row], indptr.dtype)
    starts = np.cumsum([0, *map(len, rows)]).astype(indptr.dtype)
    return starts, indices[places], data[places], places


def facts(A):
    """The most entries of a row, below and above the diagonal; all entries below it. The diagonal is full."""
    below, above = A.diag - A.indptr[:-1], A.indptr[1:] - A.diag - 1
    return int((below + above).max()) + 1, int(below.max()), int(above.max()), int(below.sum(dtype=np.int64))


def add(B, F, indptr, indices, values, scaled=False):
    """B unchanged, and F with the candidates (rows of `candidates`): (indptr, indices, data, diag), columns ascending.
    The kernels return two CSR, whose index arrays are int64 if int32 cannot count the entries of F.

    The initial value is r_ij (2018, equation 5), below the diagonal times |F_jj| / F_jj, which is 1 where pivots are
    positive, as they are there; with `scaled` it is r_ij / F_jj.
    """
    out = [[0], [], [], []]
    for i in range(F.n):
        row = row_of(F, i)
        for p in range(indptr[i], indptr[i + 1]):
            j = int(indices[p])
            row[j], pivot = values[p], F.data[F.diag[j]]
            if j < i:
                row[j] = values[p] / pivot if scaled else values[p] * (np.conj(pivot) / abs(pivot))
        for j in sorted(row):
            if j == i:
                out[3].append(len(out[1]))
            out[1].append(j)
            out[2].append(row[j])
        out[0].append(len(out[1]))
    types = F.indptr.dtype, F.indices.dtype, F.data.dtype, F.diag.dtype
    return B, tuple(np.array(a, t) for a, t in zip(out, types, strict=True))


def values_at(B, F):
    """The values of B at the places of F (nnz of F,), 0 where B has no entry."""
    out = np.zeros(F.nnz, B.dtype)
    for i in range(F.n):
        row = row_of(B, i)
        for p in range(F.indptr[i], F.indptr[i + 1]):
            out[p] = row.get(int(F.indices[p]), 0)
    return out


def magnitudes(F):
    """|values| of F below the diagonal, and above it, in the order of their places."""
    rows = np.repeat(np.arange(F.n), np.diff(F.indptr))
    return abs(F.data[F.indices < rows]), abs(F.data[F.indices > rows])


def remove(F, least, drop, values=None):
    """F without its smallest entries: (indptr, indices, data, diag). The diagonal stays.

    values (nnz,) : the values of the result, if they are not the compared ones. least (2,) : thresholds below and above
    the diagonal.  drop (2,) : the number of entries to drop there. Entries less than the threshold in magnitude are
    dropped, larger ones kept. As many entries equal to it are dropped as `drop` still requires, spread evenly in the
    order of their places: if w of T such entries are to be dropped, entry t = 0, 1, ..., T - 1 is dropped if
    (t + 1) w // T > t w // T.
    """
    rows = np.repeat(np.arange(F.n), np.diff(F.indptr))
    magnitude, keep = abs(F.data), np.ones(F.nnz, bool)
    for side, here in enumerate((F.indices < rows, F.indices > rows)):
        keep &= ~(here & (magnitude < least[side]))
        equal = np.flatnonzero(here & (magnitude == least[side]))
        want = min(max(int(drop[side]) - int((here & (magnitude < least[side])).sum()), 0), equal.size)
        t = np.arange(equal.size)
        keep[equal[(t + 1) * want // max(equal.size, 1) > t * want // max(equal.size, 1)]] = False
    kept, data = np.concatenate([[0], np.cumsum(keep)]), F.data if values is None else values
    return kept[F.indptr].astype(F.indptr.dtype), F.indices[keep], data[keep], kept[F.diag].astype(F.diag.dtype)
