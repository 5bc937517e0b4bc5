"""Inspection of a matrix: its validity, its diagonal, and its comparison with the transpose. The specification."""

from __future__ import annotations

import numpy as np


def inspect(indptr, indices, data, diag):
    """Validity of a CSR matrix with n rows, and its diagonal.

    diag (n,) receives the place of each diagonal entry, or -1; any of its places if the rows are not sorted.
    Returns, in this order: the first row with a column outside 0..n-1, or with row pointers that descend or leave the
    arrays (row 0 if they do not span the arrays), or -1; if there is such a row, the other results are undefined. The
    number of neighbouring columns that do not ascend. The number of values that are NaN or Inf, and the first row with
    one or -1. The number of rows without a stored diagonal entry, and the first of them or -1.
    """
    n = indptr.size - 1
    corrupt, unsorted, not_finite, missing = [], 0, [], []
    if indptr[0] != 0 or indptr[n] != indices.size:
        return 0, 0, 0, -1, 0, -1
    for i in range(n):
        row = slice(indptr[i], indptr[i + 1])
        columns = indices[row]
        if not 0 <= indptr[i] <= indptr[i + 1] <= indices.size or (columns < 0).any() or (columns >= n).any():
            corrupt.append(i)
        unsorted += int(np.count_nonzero(columns[1:] <= columns[:-1]))
        not_finite += [i] * int(np.count_nonzero(~np.isfinite(data[row])))
        on_diagonal = np.flatnonzero(columns == i)
        diag[i] = indptr[i] + on_diagonal[-1] if on_diagonal.size else -1
        if not on_diagonal.size:
            missing.append(i)
    first = (rows[0] if rows else -1 for rows in (corrupt, not_finite, missing))
    first_corrupt, first_not_finite, first_missing = first
    return first_corrupt, unsorted, len(not_finite), first_not_finite, len(missing), first_missing


def finite(data) -> bool:
    """Whether no number (n,) is NaN or Inf."""
    return bool(np.isfinite(data).all())


def same(a, b) -> bool:
    """Whether two integer arrays (n,) are of one dtype and equal."""
    return a.dtype == b.dtype and bool(np.array_equal(a, b))


def alike(indptr, indices, data, pattern_indptr, pattern_indices) -> bool:
    """Whether a matrix has the places of another, in integers of one dtype, and finite values."""
    return same(indptr, pattern_indptr) and same(indices, pattern_indices) and finite(data)


def mirrored(indptr, indices, data, diag):
    """The comparison of A with its transpose, b_ij = a_ji, or 0 if (j, i) is not stored:

    (largest |a_ij|, largest |a_ij - conj(b_ij)|, largest |a_ij - b_ij|, these two relative, entries with a stored b_ij)

    relative: to the largest of |a_ij|, |b_ij| and the root of s_i s_j, s_i = |a_ii|, or the largest magnitude of row i
    where that is at most 1000 eps of it. Inf where a difference overflows. data[diag[i]] is a_ii; diag[i] is -1 where
    it is not stored.
    """
    rows = [range(indptr[i], indptr[i + 1]) for i in range(len(indptr) - 1)]
    entries = {(i, int(indices[p])): data[p] for i, row in enumerate(rows) for p in row}
    sizes = [abs(data[place]) if place >= 0 else 0.0 for place in diag]
    row_sizes, noise = [max((abs(data[p]) for p in row), default=0.0) for row in rows], 1000 * np.finfo(data.dtype).eps
    sizes = [most if size <= noise * most else size for size, most in zip(sizes, row_sizes, strict=True)]

    def largest(difference):
        most = most_relative = 0.0
        for (i, j), a in entries.items():
            b = entries.get((j, i), 0)
            d = float(difference(a, b))
            if d > 0:
                most = max(most, d)
                size = max(abs(a), abs(b), float(sizes[i]) ** 0.5 * float(sizes[j]) ** 0.5)
                most_relative = max(most_relative, d / float(size) if d < np.inf else np.inf)
        return most, most_relative

    adjoint, transposed = largest(lambda a, b: abs(a - np.conj(b))), largest(lambda a, b: abs(a - b))
    size = max((float(abs(a)) for a in entries.values()), default=0.0)
    partners = sum((j, i) in entries for i, j in entries)
    return size, adjoint[0], transposed[0], adjoint[1], transposed[1], partners


def extremes(values):
    """(the number of values (nnz,) that are not 0, the least of their sizes and the largest)

    The size of a complex number is the larger part of it, as the magnitude may overflow. Inf and 0 if all are 0.
    """
    sizes = [max(abs(float(v.real)), abs(float(v.imag))) for v in values if v != 0]
    return len(sizes), min(sizes, default=np.inf), max(sizes, default=0.0)


def without_zeros(indptr, indices, data, starts, columns, values, diag, kept):
    """A CSR matrix (n, n) without its stored zeros: starts (n + 1,), columns (m,), values (m,), and diag (n,), the
    places of its diagonal, -1 where there is none, and kept (m,), the places of its entries among those of A; all out.

    data (nnz,) : of which m are not 0.
    """
    kept[:] = np.flatnonzero(data)
    columns[:], values[:] = indices[kept], data[kept]
    starts[:] = np.searchsorted(kept, indptr)
    diag[:] = -1
    rows = np.repeat(np.arange(diag.size), np.diff(starts))
    on_diagonal = np.flatnonzero(columns == rows)
    diag[rows[on_diagonal]] = on_diagonal


def diagonal(data, diag):
    """(rows that store no diagonal entry, the first of them, rows where it is 0, the first of them, rows where it is
    not a positive real number, or not stored); a first row of -1 for none."""
    missing = [i for i, place in enumerate(diag) if place < 0]
    zero = [i for i, place in enumerate(diag) if place >= 0 and data[place] == 0]
    positive = sum(place >= 0 and data[place].real > 0 and data[place].imag == 0 for place in diag)
    first = (rows[0] if rows else -1 for rows in (missing, zero))
    return len(missing), next(first), len(zero), next(first), int(diag.size - positive)


def signs(indptr, data, diag, tolerance, share):
    """(sum of |a_ij| of the diagonal's sign, of the other sign, rows with |a_ii| + the rest >= -tolerance |a_ii|, rows
    where the magnitudes of the rest add up to more than share |a_ii|)."""
    same = opposite = 0.0
    fine = coupled = 0
    for i, place in enumerate(diag):
        d = data[place]
        others = [data[p] if d >= 0 else -data[p] for p in range(indptr[i], indptr[i + 1]) if p != place]
        same += sum(a for a in others if a > 0)
        opposite -= sum(a for a in others if a <= 0)
        fine += abs(d) + sum(others) >= -tolerance * abs(d)
        coupled += sum(abs(float(a)) for a in others) > share * abs(d)
    return same, opposite, fine, coupled
