"""The building blocks in plain Python: slow, short and obviously right, the specification of both backends.

Sums run over the entries of a row in ascending order of columns. The CPU gives the same bits, whatever the number of
threads; the GPU multiplies by reciprocals and adds up in trees, so it agrees to a few units in the last place.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.triangle import Triangle


def inspect(indptr, indices, data, diag):
    """Soundness of a CSR matrix with n rows, and its diagonal.

    diag (n,) receives the place of each diagonal entry, or -1; any of its places where the rows are not sorted.
    Returns the first row with a column outside 0..n-1 or with row pointers that descend or leave the arrays (row 0 if
    they do not span the arrays), or -1, in which case nothing else need be right; how many neighbouring columns do not
    ascend; how many values are NaN or Inf and the first row with one or -1; how many rows
    store no diagonal entry and the first of them or -1.
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


def rows_in_order(triangle: Triangle):
    """The rows in the order in which they can be solved one by one."""
    return range(triangle.n - 1, -1, -1) if triangle.reverse else range(triangle.n)


def value(triangle: Triangle, values, place):
    """The value of an entry, or of the diagonal, that `values` holds at `place`."""
    return np.conj(values[place]) if triangle.conjugate else values[place]


def entries(triangle: Triangle, values, i):
    """(column, value) of the strict entries of row i, in ascending order of columns."""
    for p in range(triangle.begin[i], triangle.end[i]):
        yield triangle.indices[p], value(triangle, values, p if triangle.source is None else triangle.source[p])


def pivot(triangle: Triangle, values, i):
    """D_ii."""
    return values.dtype.type(1) if triangle.diag is None else value(triangle, values, triangle.diag[i])


def levels(triangle: Triangle):
    """The level of each row, 0 without entries and else 1 + the highest level among its columns, and their number."""
    level = np.zeros(triangle.n, np.int32)
    for i in rows_in_order(triangle):
        columns = triangle.indices[triangle.begin[i] : triangle.end[i]]
        level[i] = 1 + level[columns].max() if columns.size else 0
    return level, int(level.max()) + 1


def first_bad_diagonal(triangle: Triangle, values):
    """The first row whose diagonal is zero or has no finite reciprocal, or -1."""
    for i in range(triangle.n):
        with np.errstate(all="ignore"):
            if not np.isfinite(values.dtype.type(1) / pivot(triangle, values, i)):
                return i
    return -1


def solve_triangular(triangle: Triangle, values, b):
    """x with (D + N) x = b, b (n,) or (n, k)."""
    if b.ndim == 2:  # column by column: NumPy rounds a product of complex arrays differently from one of scalars
        return np.stack([solve_triangular(triangle, values, column) for column in b.T], axis=1)
    x = np.empty_like(b)
    for i in rows_in_order(triangle):
        s = b[i]
        for j, v in entries(triangle, values, i):
            s -= v * x[j]
        x[i] = s if triangle.diag is None else s / pivot(triangle, values, i)
    return x


def jacobi_sweeps(triangle: Triangle, values, b, sweeps):
    """`sweeps` times x <- D^-1 (b - N x), from x = D^-1 b."""
    if b.ndim == 2:
        return np.stack([jacobi_sweeps(triangle, values, column, sweeps) for column in b.T], axis=1)
    x = np.zeros_like(b)
    for _ in range(sweeps + 1):
        old = x.copy()
        for i in range(triangle.n):
            s = b[i]
            for j, v in entries(triangle, values, i):
                s -= v * old[j]
            x[i] = s if triangle.diag is None else s / pivot(triangle, values, i)
    return x


def dense(triangle: Triangle, values):
    """T = D + N, (n, n)."""
    T = np.zeros((triangle.n, triangle.n), values.dtype)
    for i in range(triangle.n):
        T[i, i] = pivot(triangle, values, i)
        for j, v in entries(triangle, values, i):
            T[i, j] = v
    return T


def isai(triangle: Triangle, values):
    """The incomplete sparse approximate inverse W of T = D + N: the pattern of T, and (W T)_ij = I_ij on it.

    Returns a dense (n, n) array. Row i of W, on the columns J of row i of T, solves W_iJ T_JJ = I_iJ (Anzt, Huckle,
    Braeckle & Dongarra 2018).
    """
    T = dense(triangle, values)
    W = np.zeros_like(T)
    for i in range(triangle.n):
        J = np.append(triangle.indices[triangle.begin[i] : triangle.end[i]], i)
        W[i, J] = np.linalg.solve(T[np.ix_(J, J)].T, np.equal(J, i).astype(T.dtype))
    return W


def ilu0(indptr, indices, diag, a, lu):
    """ILU(0): (L U)_ij = A_ij wherever A stores an entry, L with a unit diagonal. Saad 2003, Algorithm 10.4.

    a (nnz,) is read, lu (nnz,) receives L below and U on and above the diagonal, places as in A. Returns -1, or the
    first row with a zero pivot or a value that is not finite; rows from there on are then worth nothing.
    """
    for i in range(diag.size):
        row = {indices[p]: a[p] for p in range(indptr[i], indptr[i + 1])}
        for p in range(indptr[i], diag[i]):
            k = indices[p]
            row[k] = row[k] / lu[diag[k]]
            for q in range(diag[k] + 1, indptr[k + 1]):
                if indices[q] in row:
                    row[indices[q]] -= row[k] * lu[q]
        lu[indptr[i] : indptr[i + 1]] = list(row.values())
        if not np.isfinite(lu[indptr[i] : indptr[i + 1]]).all() or lu[diag[i]] == 0:
            return i
    return -1


def ic0(indptr, indices, a, l):
    """IC(0): (L L^H)_ij = A_ij wherever the lower triangle of A stores an entry; by rows, the diagonal last.

    a (nnz,) is read, l (nnz,) receives L. Returns -1, or the first row whose pivot is not finite or has a real part
    <= 0; rows from there on are then worth nothing. An imaginary part of the diagonal is not read.
    """
    for i in range(indptr.size - 1):
        row = {}
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            s = a[p]
            for q in range(indptr[j], indptr[j + 1] - 1):
                if j == i:
                    s -= l[q] * np.conj(l[q])
                elif indices[q] in row:
                    s -= row[indices[q]] * np.conj(l[q])
            if j < i:
                row[j] = l[p] = s / l[indptr[j + 1] - 1]
            elif not np.isfinite(s.real) or s.real <= 0:
                return i
            else:
                l[p] = np.sqrt(s.real)
    return -1
