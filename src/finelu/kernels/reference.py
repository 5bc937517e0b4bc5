"""The building blocks in plain Python: slow, short and obviously right, the specification of both backends.

Sums run over the entries of a row in ascending order of columns. The CPU gives the same bits, whatever the number of
threads; the GPU multiplies by reciprocals and adds up in trees, so it agrees to a few units in the last place.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

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


def residual(indptr, indices, data, x, b, factor, r, bound):
    """r = b - factor A x, and bound_i = (k_i + 1) eps (factor |A| |x| + |b|)_i for the k_i entries of row i.

    r (n,) and b in the dtype of data and x, bound (n,) in its real one; factor is a power of two. bound is as much as
    rounding may have put into r (Higham 2002, section 3.5). |a| is |Re a| + |Im a|.
    """

    def size(v):
        return abs(v.real) + abs(v.imag)

    eps = np.finfo(bound.dtype).eps
    for i in range(r.size):
        row = range(indptr[i], indptr[i + 1])
        r[i] = b[i] - factor * sum((data[p] * x[indices[p]] for p in row), start=r.dtype.type(0))
        sizes = sum(size(data[p]) * size(x[indices[p]]) for p in row)
        bound[i] = (len(row) + 1) * eps * (factor * sizes + size(b[i]))


def residual_twice(indptr, indices, data, x, b, factor, r):
    """r = b - factor A x, as if added up in twice the precision of float64 (in float64 for single precision) and then
    rounded. Here it is added up exactly. factor is a power of two."""

    def product(a, b):
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    def exact(v):
        return Fraction(float(v.real)), Fraction(float(v.imag))

    for i in range(r.size):
        parts = list(exact(b[i]))
        for p in range(indptr[i], indptr[i + 1]):
            terms = product(exact(data[p]), exact(x[indices[p]]))
            parts = [part - Fraction(factor) * term for part, term in zip(parts, terms)]
        r[i] = float(parts[0]) if r.dtype.kind == "f" else complex(*map(float, parts))


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


def strongest(entries, tau, limit):
    """Of {j: v} those with |v| > tau, and of these the `limit` largest (of equals the smaller j; None: all), by j."""
    above = [j for j in sorted(entries) if abs(entries[j]) > tau]
    kept = sorted(above, key=lambda j: -abs(entries[j]))[:limit]  # a stable sort
    return {j: entries[j] for j in sorted(kept)}


def allowed(fill, entries):
    """How many entries of a row of L or U are kept where A has so many."""
    return None if np.isinf(fill) else max(1, int(fill * entries))


def finite(*parts):
    return all(np.isfinite(abs(v)) for part in parts for v in part.values())


def ilut(indptr, indices, a, tau, fill):
    """ILUT: row by row, small entries dropped, the largest kept. Saad 1994; Saad 2003, Algorithm 10.6.

    tau (n,) : row i drops what is not larger than tau[i] in magnitude: an entry before the diagonal when its turn comes
    to be divided by the pivot, one behind it in the end. `fill` times as many entries as A has are kept before, and
    behind, the diagonal of a row, at least one. Returns the rows of L (without its diagonal) and of U as lists of
    {column: value}, shorter than n if the next row has a zero pivot or a value that is not finite.
    """
    L, U = [], []
    for i in range(indptr.size - 1):
        row = {indices[p]: a[p] for p in range(indptr[i], indptr[i + 1])}
        before, behind = sum(j < i for j in row), sum(j > i for j in row)
        lower, waiting = {}, {j for j in row if j < i}
        while waiting:
            k = min(waiting)
            waiting.remove(k)
            if abs(row[k]) <= tau[i]:
                continue
            lower[k] = row[k] / U[k][k]
            for j, u in U[k].items():
                if j > k:
                    if j < i and j not in row:
                        waiting.add(j)
                    row[j] = row.get(j, a.dtype.type(0)) - lower[k] * u
        upper = {j: v for j, v in row.items() if j > i}
        if not finite(row, lower, upper) or row[i] == 0:
            break
        L.append(strongest(lower, 0, allowed(fill, before)))
        U.append({i: row[i], **strongest(upper, tau[i], allowed(fill, behind))})
    return L, U


def ilut_crout(indptr, indices, a, tau_rows, tau_columns, fill):
    """ILUT in Crout's form: row k of U and column k of L together. Li, Saad & Chow 2003, Algorithm 3.1.

    Row k of U drops what is not larger than tau_rows[k], column k of L what is not larger than tau_columns[k] before it
    is divided by the pivot; `fill` as in `ilut`, for L by columns. Returns the columns of L (without its diagonal) and
    the rows of U as lists of {index: value}, shorter than n if the next step has a zero pivot or a value that is not
    finite.
    """
    n = indptr.size - 1
    A = [{indices[p]: a[p] for p in range(indptr[i], indptr[i + 1])} for i in range(n)]
    L, U = [], []
    for k in range(n):
        z = {j: v for j, v in A[k].items() if j >= k}
        w = {i: A[i][k] for i in range(k + 1, n) if k in A[i]}
        fill_row, fill_column = allowed(fill, len(z) - 1), allowed(fill, len(w))
        for i in range(k):
            if k in L[i]:
                for j in U[i]:
                    if j >= k:
                        z[j] = z.get(j, a.dtype.type(0)) - L[i][k] * U[i][j]
            if k in U[i]:
                for j in L[i]:
                    if j > k:
                        w[j] = w.get(j, a.dtype.type(0)) - L[i][j] * U[i][k]
        pivot = z.pop(k)
        if not finite(z, w, {k: pivot}) or pivot == 0:
            break
        column = {i: v / pivot for i, v in strongest(w, tau_columns[k], fill_column).items()}
        if not finite(column):
            break
        L.append(column)
        U.append({k: pivot, **strongest(z, tau_rows[k], fill_row)})
    return L, U


def ict(indptr, indices, a, tau, fill):
    """ICT: incomplete Cholesky by threshold, column by column, from the lower triangle by rows, the diagonal last.

    Column k of L drops what is not larger than tau[k] before it is divided by the root of the pivot; `fill` times as
    many entries as the column has in A are kept below the diagonal, at least one. An imaginary part of the diagonal is
    not read. Returns the columns of L as a list of {row: value}, shorter than n if the next pivot is not a positive
    number or an entry is not finite. Jones & Plassmann 1995; Li, Saad & Chow 2003 for the form.
    """
    n = indptr.size - 1
    A = [{indices[p]: a[p] for p in range(indptr[i], indptr[i + 1])} for i in range(n)]
    L = []
    for k in range(n):
        square, w = A[k][k].real, {i: A[i][k] for i in range(k + 1, n) if k in A[i]}
        limit = allowed(fill, len(w))
        for j in range(k):
            if k in L[j]:
                square = square - (L[j][k] * np.conj(L[j][k])).real
                for i in L[j]:
                    if i > k:
                        w[i] = w.get(i, a.dtype.type(0)) - L[j][i] * np.conj(L[j][k])
        if not finite(w) or not np.isfinite(square) or square <= 0:
            break
        root = a.dtype.type(np.sqrt(square))
        column = {i: v / root for i, v in strongest(w, tau[k], limit).items()}
        if not finite(column):
            break
        L.append({k: root, **column})
    return L


def pattern_iluk(indptr, indices, level):
    """The pattern of ILU(level), by rows. Saad 2003, Algorithm 10.5: entries with a level of fill of at most `level`.

    Entries of A have level 0; a product l_ik u_kj brings (i, j) the sum of its levels and 1, of all the least.
    """
    levels = []
    for i in range(indptr.size - 1):
        row = {int(j): 0 for j in indices[indptr[i] : indptr[i + 1]]}
        for k in range(i):
            if k in row:
                for j, fill in levels[k].items():
                    if j > k and row[k] + fill + 1 <= level:
                        row[j] = min(row.get(j, level), row[k] + fill + 1)
        levels.append(row)
    counts = [0, *(len(row) for row in levels)]
    return np.cumsum(counts).astype(indptr.dtype), np.array([j for row in levels for j in sorted(row)], indices.dtype)


def milu0(indptr, indices, diag, a, relax, lu):
    """MILU(0): ILU(0), and `relax` times what falls outside of the pattern of a row is added to its diagonal.

    With relax = 1 the rows of L U have the sums of the rows of A. Arguments and result as in `ilu0`; relax is a number
    of a's dtype. Saad 2003, section 10.3.5.
    """
    for i in range(diag.size):
        row = {indices[p]: a[p] for p in range(indptr[i], indptr[i + 1])}
        dropped = a.dtype.type(0)
        for p in range(indptr[i], diag[i]):
            k = indices[p]
            row[k] = row[k] / lu[diag[k]]
            for q in range(diag[k] + 1, indptr[k + 1]):
                if indices[q] in row:
                    row[indices[q]] -= row[k] * lu[q]
                else:
                    dropped -= row[k] * lu[q]
        row[i] += relax * dropped
        lu[indptr[i] : indptr[i + 1]] = list(row.values())
        if not np.isfinite(lu[indptr[i] : indptr[i + 1]]).all() or lu[diag[i]] == 0:
            return i
    return -1


# ParILU and ParILUT (Anzt, Chow, Dongarra 2018; Anzt, Ribizel, Flegar, Chow, Dongarra 2019). Factors F are one CSR: L
# below the diagonal (unit, not stored), U on and above; of Cholesky L alone, by rows, the diagonal last. A synchronous
# sweep reads old values only, so it is done row by row like a product of sparse matrices; sums over k ascend.


def _row(A, i):
    """{column: value} of row i."""
    return {int(A.indices[p]): A.data[p] for p in range(A.indptr[i], A.indptr[i + 1])}


def _product_row(F, i, columns):
    """((k, j), l_ik u_kj) for k < i, k < j, in ascending order of k, then j; of Cholesky l_ik conj(l_jk), k < j <= i.

    columns: None for LU, else columns_of(F).
    """
    for p in range(F.indptr[i], F.diag[i]):
        k = int(F.indices[p])
        if columns is None:
            for q in range(F.diag[k] + 1, F.indptr[k + 1]):
                yield (k, int(F.indices[q])), F.data[p] * F.data[q]
        else:
            indptr, rows, places = columns
            for q in range(indptr[k] + 1, indptr[k + 1]):
                if rows[q] <= i:
                    yield (k, int(rows[q])), F.data[p] * np.conj(F.data[places[q]])


def columns_of(F):
    """F (lower triangle and diagonal) by columns: indptr (n + 1,), rows (nnz,) ascending, places (nnz,) in F.data."""
    order = np.lexsort((np.repeat(np.arange(F.n), np.diff(F.indptr)), F.indices))
    rows = np.repeat(np.arange(F.n), np.diff(F.indptr))[order]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(F.indices, minlength=F.n))])
    return indptr.astype(F.indptr.dtype), rows.astype(F.indices.dtype), order.astype(F.indices.dtype)


def facts(A):
    """The most entries of a row, below and above the diagonal; all entries below it. The diagonal is full."""
    below, above = A.diag - A.indptr[:-1], A.indptr[1:] - A.diag - 1
    return int((below + above).max()) + 1, int(below.max()), int(above.max()), int(below.sum(dtype=np.int64))


def sweep(A, F, out, squares, refused, columns=None, damping=1.0):
    """One synchronous fixed-point sweep on the pattern of F (2018, Algorithm 1, with the diagonal in U).

    out (nnz of F): l_ij = s_ij / u_jj below the diagonal and u_ij = s_ij elsewhere, s_ij = a_ij - sum over
    k < min(i, j) of l_ik u_kj with the old values; of Cholesky (columns given; A and F lower triangles)
    l_ij = s_ij / l_jj and l_ii = sqrt(s_ii). Times `damping`, plus 1 - damping times the old value. A value that is not
    finite, a pivot of LU that is 0, and a square that is not positive are refused: the old value stays, refused[0]
    counts it and refused[1] is the smallest such row so far.
    squares (n,) float64: the sum of |r_ij|^2 over the pattern of F in row i, R = A - L U of the old values.
    """
    for i in range(F.n):
        s = dict.fromkeys((int(j) for j in F.indices[F.indptr[i] : F.indptr[i + 1]]), F.data.dtype.type(0))
        s.update((j, a) for j, a in _row(A, i).items() if j in s)
        for (_, j), product in _product_row(F, i, columns):
            if j in s:
                s[j] -= product
        squares[i] = 0
        for p in range(F.indptr[i], F.indptr[i + 1]):
            j, old = int(F.indices[p]), F.data[p]
            with np.errstate(all="ignore"):
                if j < i:
                    new, residual = s[j] / F.data[F.diag[j]], s[j] - old * F.data[F.diag[j]]
                elif columns is None:
                    new, residual = s[j], s[j] - old
                else:
                    new, residual = np.sqrt(s[j].real) if s[j].real > 0 else np.nan, s[j].real - abs(old) ** 2
                new = damping * new + (1 - damping) * old if damping != 1 else new
            if not np.isfinite(new) or (j == i and new == 0):
                refused[0] += 1
                refused[1] = min(refused[1], i)
                new = old
            out[p] = new
            squares[i] += abs(residual) ** 2


def sweeps(A, F, count, squares, refused, columns=None, damping=1.0):
    """`count` sweeps; returns the last values (nnz of F), F's own array if count is 0. F.data is not written.

    squares (count, n) float64: those of each sweep, or None.
    """
    for k in range(count):
        out, sums = np.empty_like(F.data), np.empty(F.n)
        sweep(A, F, out, sums, refused, columns, damping)
        if squares is not None:
            squares[k] = sums
        F = F.with_values(out)
    return F.data


def sweep_in_place(A, F, refused, columns=None):
    """An asynchronous sweep as one thread would do it, row after row: new values are read as soon as they are there.

    Inside a row l_ik is final before it is used, so that in this order one sweep is the incomplete factorization on the
    pattern of F; with several threads a row may meet older values of other rows. Refuses as `sweep` does.
    """
    for i in range(F.n):
        s = dict.fromkeys((int(j) for j in F.indices[F.indptr[i] : F.indptr[i + 1]]), F.data.dtype.type(0))
        s.update((j, a) for j, a in _row(A, i).items() if j in s)
        for p in range(F.indptr[i], F.indptr[i + 1]):
            j, old = int(F.indices[p]), F.data[p]
            with np.errstate(all="ignore"):
                if j < i:
                    new = s[j] / F.data[F.diag[j]]
                else:
                    new = s[j] if columns is None else np.sqrt(s[j].real) if s[j].real > 0 else np.nan
            if not np.isfinite(new) or (j == i and new == 0):
                refused[0] += 1
                refused[1] = min(refused[1], i)
                new = old
            F.data[p] = new
            if j < i:
                for (k, m), product in _product_row(F, i, columns):
                    if k == j and m in s:
                        s[m] -= product


def candidates(A, F, columns=None, least=0.0):
    """The candidates of F, row by row: the places of A and of the product L U that F has not, with R = A - L U there.

    Products l_ik u_kj of magnitude below `least` make no candidate of (i, j), but count in r_ij if another does. Of
    Cholesky (columns given) the lower triangle. Returns indptr (n + 1,), indices ascending in a row, values; squares
    (2, n) float64: sums of |r_ij|^2 in row i over the pattern of F, and over the candidates.
    """
    indptr, indices, values, squares = [0], [], [], np.zeros((2, F.n))
    for i in range(F.n):
        mine = {int(j) for j in F.indices[F.indptr[i] : F.indptr[i + 1]]}
        r = _row(A, i)
        wanted = set(r) - mine
        for (_, j), product in _product_row(F, i, columns):
            r[j] = r.get(j, F.data.dtype.type(0)) - product
            if j not in mine and abs(product) >= least:
                wanted.add(j)
        for p in range(F.indptr[i], F.indptr[i + 1]):
            j = int(F.indices[p])
            held = F.data[p] * F.data[F.diag[j]] if j < i else F.data[p] if columns is None else abs(F.data[p]) ** 2
            squares[0, i] += abs(r.get(j, 0) - held) ** 2
        for j in sorted(wanted):
            indices.append(j)
            values.append(r[j])
            squares[1, i] += abs(r[j]) ** 2
        indptr.append(len(indices))
    types = F.indptr.dtype, F.indices.dtype, F.data.dtype
    return *(np.array(a, t) for a, t in zip((indptr, indices, values), types, strict=True)), squares


def add(F, indptr, indices, values, scaled=False):
    """F with the candidates (rows as `candidates` gives them): (indptr, indices, data, diag), columns ascending.

    The initial value is r_ij (2018, equation 5); with `scaled` below the diagonal r_ij / F_jj.
    """
    out = [[0], [], [], []]
    for i in range(F.n):
        row = _row(F, i)
        for p in range(indptr[i], indptr[i + 1]):
            j = int(indices[p])
            row[j] = values[p] / F.data[F.diag[j]] if scaled and j < i else values[p]
        for j in sorted(row):
            if j == i:
                out[3].append(len(out[1]))
            out[1].append(j)
            out[2].append(row[j])
        out[0].append(len(out[1]))
    types = F.indptr.dtype, F.indices.dtype, F.data.dtype, F.diag.dtype
    return tuple(np.array(a, t) for a, t in zip(out, types, strict=True))


def magnitudes(F):
    """|values| of F below the diagonal, and above it, in the order of their places."""
    rows = np.repeat(np.arange(F.n), np.diff(F.indptr))
    return abs(F.data[F.indices < rows]), abs(F.data[F.indices > rows])


def remove(F, least, drop):
    """F without its smallest entries: (indptr, indices, data, diag). The diagonal stays.

    least (2,): thresholds below and above the diagonal; drop (2,): how many entries to drop there. Entries below the
    threshold in magnitude are dropped, all of them, those above it none, and of those equal to it as many as it takes
    to come to `drop`, spread evenly over them in the order of their places: of T such entries, t = 0, 1, ..., with w
    to drop, those with (t + 1) w // T > t w // T.
    """
    rows = np.repeat(np.arange(F.n), np.diff(F.indptr))
    magnitude, keep = abs(F.data), np.ones(F.nnz, bool)
    for side, here in enumerate((F.indices < rows, F.indices > rows)):
        keep &= ~(here & (magnitude < least[side]))
        equal = np.flatnonzero(here & (magnitude == least[side]))
        want = min(max(int(drop[side]) - int((here & (magnitude < least[side])).sum()), 0), equal.size)
        t = np.arange(equal.size)
        keep[equal[(t + 1) * want // max(equal.size, 1) > t * want // max(equal.size, 1)]] = False
    kept = np.concatenate([[0], np.cumsum(keep)])
    return kept[F.indptr].astype(F.indptr.dtype), F.indices[keep], F.data[keep], kept[F.diag].astype(F.diag.dtype)


def select(values, rank, order="magnitudes"):
    """(the element with `rank` others before it, how many are less than it), of the values or of their magnitudes.

    The rank n, which nobody has, gives (Inf, n). There must be no NaN, which has no place in any order.
    """
    ordered = np.sort(abs(values) if order == "magnitudes" else values)
    if rank == ordered.size:
        return ordered.dtype.type(np.inf), rank
    return ordered[rank], int(np.count_nonzero(ordered < ordered[rank]))


def median_of_thresholds(values, rank, subsets, order="magnitudes"):
    """`select`, approximately: the median of the elements that have the same share of the rank in equal subsets."""
    bounds = np.linspace(0, values.size, subsets + 1).astype(int)
    parts = [values[begin:end] for begin, end in pairwise(bounds)]
    thresholds = [select(part, min(part.size * rank // values.size, part.size - 1), order)[0] for part in parts]
    threshold = np.sort(thresholds)[subsets // 2]
    return threshold, int(np.count_nonzero((abs(values) if order == "magnitudes" else values) < threshold))


def scale(A, out, below, above):
    """out (nnz,) = a_ij left[i] right[j]; (left, right) = below where j < i, and above elsewhere.

    The vectors are real, (n,); None: a vector of ones. Returns out.
    """
    for i in range(A.n):
        for p in range(A.indptr[i], A.indptr[i + 1]):
            left, right = below if A.indices[p] < i else above
            value = A.data[p] * (1 if left is None else left[i])
            out[p] = value * (1 if right is None else right[A.indices[p]])
    return out


def use_new_pivots(F, out, refused):
    """After a sweep of F into out: below the diagonal out_ij times F_jj / out_jj, so that l_ij is divided by the pivot
    of the same sweep instead of the one before. What would not be finite stays, and is counted in `refused` (2,), see
    `sweep`. Returns out."""
    for i in range(F.n):
        for p in range(F.indptr[i], F.diag[i]):
            pivot = F.diag[F.indices[p]]
            with np.errstate(all="ignore"):
                new = out[p] * (F.data[pivot] / out[pivot])
            if np.isfinite(new):
                out[p] = new
            else:
                refused[0] += 1
                refused[1] = min(refused[1], i)
    return out


def pivots(A, cholesky):
    """d (n,), d_i = 1 / sqrt(|a_ii|) or 1 if that is 0; the first row whose pivot is not finite or zero, of Cholesky
    not positive, or -1; and whether all pivots are positive real numbers."""
    values = [A.data[p] for p in A.diag]
    d = [1 / np.sqrt(abs(v)) if v != 0 else 1 for v in values]
    bad = [i for i, v in enumerate(values) if not np.isfinite(v) or (not v.real > 0 if cholesky else v == 0)]
    plain = all(v.real > 0 and v.imag == 0 for v in values)
    return np.array(d, A.data.real.dtype), bad[0] if bad else -1, plain


def first_unusable(F):
    """The first row with a value that is not finite or a zero pivot, or -1."""
    for i in range(F.n):
        if not np.isfinite(F.data[F.indptr[i] : F.indptr[i + 1]]).all() or F.data[F.diag[i]] == 0:
            return i
    return -1


def farthest(nu):
    """1 - nu or -1 - nu, the larger."""
    one = nu.dtype.type(1)
    return one - nu if nu.real <= 0 else -one - nu


def usable(pivot, row, column, pivot_tol):
    """Whether a pivot is larger than pivot_tol times the rest of its row and column, and its elimination is finite.

    The quotients and the products of what is beside the pivot may not overflow; 4 is spare for sums in them.
    """
    real = pivot.real.dtype.type
    size, spare = abs(pivot), real(4)
    right, under = (max((abs(v) for v in part), default=real(0)) for part in (row, column))
    if not finite(dict(enumerate([pivot, *row, *column]))) or size == 0 or size <= pivot_tol * max(right, under):
        return False
    with np.errstate(all="ignore"):
        sizes = spare * size, spare * max(right, under), real(1) / size, spare * (max(right, under) / size)
        return bool(np.isfinite([*sizes, spare * (right / size) * under]).all())


def crout(A, T, parts, drop_tol, condest, pivot_tol, row_room, column_room):
    """Crout's L D U, L and U with unit diagonals, that puts off rows and columns whose elimination would harm.

    Bollhoefer & Saad 2006; the form and the estimates are those of Li, Saad & Chow 2003, section 3. T is the transpose
    of A. Only rows before parts[-1] can be pivots. What stays active of row and column k: the unknowns that are not
    pivots before k. k is put off if the estimate of ||e_k^T L^-1|| or of ||U^-1 e_k|| is larger than condest or not
    finite (1), or if its pivot is not usable (2). u_kj is dropped if its magnitude times the estimate of ||U^-1 e_k||
    is not larger than drop_tol, l_ik likewise; of the others the row_room[k] and column_room[k] largest are kept.

    Returns deferred (n,): 0, 1, 2; d (n,); the columns of L and the rows of U as lists of {index: value}; the largest
    estimates of the pivots for L and for U; how many entries, not zero, were dropped by tolerance, and by room.
    """
    n, dtype = A.indptr.size - 1, A.data.dtype
    real = A.data.real.dtype.type
    with np.errstate(over="ignore"):
        drop_tol, condest, pivot_tol = real(drop_tol), min(real(condest), np.finfo(real).max), real(pivot_tol)
    deferred, d = np.zeros(n, np.uint8), np.zeros(n, dtype)
    L, U = [{} for _ in range(n)], [{} for _ in range(n)]
    nu, largest, dropped = np.zeros((2, n), dtype), [0.0, 0.0], [0, 0]
    for k in range(parts[-1]):
        with np.errstate(all="ignore"):
            xi = [farthest(nu[0, k]), farthest(nu[1, k])]
            if not (abs(xi[0]) <= condest and abs(xi[1]) <= condest):
                deferred[k] = 1
                continue
            z, w = ({j: v for j, v in _row(B, k).items() if j >= k or deferred[j]} for B in (A, T))
            for p in range(k):
                for x, source, other in ((z, L, U), (w, U, L)):
                    if k in source[p]:
                        factor = source[p][k] * d[p]
                        for j, v in other[p].items():
                            if j >= k or deferred[j]:
                                x[j] = x.get(j, dtype.type(0)) - factor * v
            pivot, _ = z.pop(k, dtype.type(0)), w.pop(k, 0)
            if not usable(pivot, z.values(), w.values(), pivot_tol):
                deferred[k] = 2
                continue
            d[k] = pivot
            for side, x, room, F in ((0, w, column_room[k], L), (1, z, row_room[k], U)):
                weight = max(real(1), abs(xi[side]))
                over = {j: v / pivot for j, v in x.items() if abs(v / pivot) * weight > drop_tol}
                F[k] = strongest(over, -1, max(int(room), 0))
                dropped[0] += sum(v != 0 for j, v in x.items() if j not in over)
                dropped[1] += len(over) - len(F[k])
                for j, v in F[k].items():
                    nu[side, j] += xi[side] * v
                largest[side] = max(largest[side], float(abs(xi[side])))
    return deferred, d, L, U, largest, dropped


def schur_complement(A, factors, drop_tol):
    """S = C - L_C D U_C on the rows and columns that are no pivots of `factors` (deferred, interface, d, l_..., u_...).

    Entries beside the diagonal go if they are not larger than drop_tol times the largest of their row, nor than that
    times the largest of their column; the diagonal is always stored. Returns indptr, indices, data, the numbers of the
    rows in A, the first row that is not finite or -1.
    """
    n, dtype = factors.d.size, A.data.dtype
    rows = [i for i in range(n) if factors.deferred[i] or i >= factors.interface]
    number = {i: r for r, i in enumerate(rows)}
    S = [{number[j]: v for j, v in _row(A, i).items() if j in number} for i in rows]
    out, first_bad = [[0], [], []], -1
    for k in range(n):
        for p in range(factors.l_indptr[k], factors.l_indptr[k + 1]):
            if int(factors.l_indices[p]) in number:
                row = S[number[int(factors.l_indices[p])]]
                for q in range(factors.u_indptr[k], factors.u_indptr[k + 1]):
                    if int(factors.u_indices[q]) in number:
                        j = number[int(factors.u_indices[q])]
                        row[j] = row.get(j, dtype.type(0)) - factors.l_data[p] * factors.d[k] * factors.u_data[q]
    for r, row in enumerate(S):
        row.setdefault(r, dtype.type(0))
        if not finite(row) and first_bad < 0:
            first_bad = r
    row_size = [max(abs(v) for v in row.values()) for row in S]
    column_size = [max(abs(row[j]) for row in S if j in row) for j in range(len(S))]
    for r, row in enumerate(S):
        for j in sorted(row):
            cut = dtype.type(0).real.dtype.type(drop_tol) * min(row_size[r], column_size[j])
            if j == r or not abs(row[j]) <= cut:
                out[1].append(j)
                out[2].append(row[j])
        out[0].append(len(out[1]))
    types = np.int64, A.indices.dtype, dtype
    return *(np.array(a, t) for a, t in zip(out, types, strict=True)), np.array(rows, np.int64), first_bad


# What is applied of a multilevel factorization besides its triangular solves; vectors are (n,) or (n, k).


def enter(rows, scale, r):
    """out_i = scale_i r[rows_i]."""
    return np.stack([scale[i] * r[rows[i]] for i in range(rows.size)])


def leave(places, scale, s, t, w):
    """out[places_i] = scale_i v_i, v being s - t (s, where t is None) and then w (which may be None, for no rows)."""
    v = s if t is None else s - t
    v = v if w is None else np.concatenate([v, w])
    out = np.empty_like(v)
    for i in range(places.size):
        out[places[i]] = scale[i] * v[i]
    return out


def subtract_product(M, x, y=None):
    """y - M x, or M x where y is None. M : a sparse matrix."""
    product = M.toarray() @ x
    return product if y is None else y - product


def dense_product(matrix, x):
    """matrix x, matrix (n, n)."""
    return matrix @ x


# Block matrices on the 7-point stencil of an I x J x K grid. blocks (7, I, J, K, n, n), those of a cell in the order
# of STENCIL; the unknowns of cell (i, j, k) are x[((i J + j) K + k) n:][:n].

STENCIL = ((0, 0, -1), (0, -1, 0), (-1, 0, 0), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))


def neighbour(cell, offset, shape, periodic=(False, False, False)):
    """The cell at `offset` from `cell`, round the grid where it is periodic; None outside."""
    moved = [c + o for c, o in zip(cell, offset, strict=True)]
    for axis in range(3):
        if not 0 <= moved[axis] < shape[axis]:
            if not periodic[axis]:
                return None
            moved[axis] %= shape[axis]
    return tuple(moved)


def subtract_block_product(block, x, out):
    """out_u -= block_uv x_v, v ascending."""
    for u in range(out.size):
        for v in range(x.size):
            out[u] -= block[u, v] * x[v]


def stencil_residual(blocks, periodic, x, b, out):
    """out = b - A x, or A x where b is None; all (N,). Terms in the order of STENCIL; blocks outside count for none."""
    shape, n = blocks.shape[1:4], blocks.shape[-1]
    X = x.reshape(*shape, n)
    for c, cell in enumerate(np.ndindex(shape)):
        r = np.zeros(n, out.dtype) if b is None else b[c * n : (c + 1) * n].copy()
        for place, offset in enumerate(STENCIL):
            other = neighbour(cell, offset, shape, periodic)
            if other is not None:
                subtract_block_product(blocks[place][cell], X[other], r)
        out[c * n : (c + 1) * n] = -r if b is None else r


def gauss_jordan(d, pivoting):
    """d (n, n) becomes its inverse, in place (Algorithm 5). Returns whether all pivots and the inverse are sound.

    pivoting : rows are scaled by powers of two, so that the largest |re| + |im| of each is from 1 to 2, and the columns
    of the result by the same. Row r is first exchanged with the row u >= r of the largest |re d_ur| + |im d_ur|, the
    first of equals; the same columns of the result are exchanged in reverse order.
    """
    n, good = d.shape[0], True
    swaps = []
    powers = np.array([power_against(row) for row in d]) if pivoting else np.ones(n)
    d *= powers[:, None].astype(d.real.dtype)
    for r in range(n):
        if pivoting:
            best = r
            for u in range(r + 1, n):
                if abs(d[u, r].real) + abs(d[u, r].imag) > abs(d[best, r].real) + abs(d[best, r].imag):
                    best = u
            swaps.append(best)
            d[[r, best]] = d[[best, r]]
        pivot = d[r, r]
        good = good and bool(pivot != 0 and np.isfinite(pivot))
        reciprocal = d.dtype.type(1) / pivot
        d[r, r] = 1
        for v in range(n):
            d[r, v] = d[r, v] * reciprocal
        for u in range(n):
            if u != r:
                factor = d[u, r]
                d[u, r] = 0
                for v in range(n):
                    d[u, v] -= factor * d[r, v]
    for r, best in reversed(list(enumerate(swaps))):
        d[:, [r, best]] = d[:, [best, r]]
    d *= powers.astype(d.real.dtype)
    return good and bool(np.isfinite(d).all())


def power_against(row):
    """The power of two that brings the largest |re| + |im| of `row` to 1 to 2, as far as there is one in float32 or
    float64, whichever the row is in."""
    largest = float((abs(row.real) + abs(row.imag)).max())
    limit = np.finfo(row.dtype).maxexp - 2
    exponent = math.frexp(largest)[1] - 1 if largest < math.inf else limit
    return math.ldexp(1.0, -min(max(exponent, -limit - 1), limit))


def block_ilu_factor(blocks, d, pivoting):
    """d (I, J, K, n, n) receives the inverses of the diagonal blocks of M = (D + E) D^-1 (D + F).

    d_ijk = (delta - alpha d_k-1 eta_k-1 - beta d_j-1 zeta_j-1 - gamma d_i-1 epsilon_i-1)^-1, the products from left to
    right, terms outside of the grid left out: what a periodic grid couples across its ends is not factored.
    Returns the first cell ((i J + j) K + k) with a pivot that is zero or not finite, or with such an inverse, or -1.
    """
    shape, n = blocks.shape[1:4], blocks.shape[-1]
    first = -1
    for c, cell in enumerate(np.ndindex(shape)):
        d[cell] = blocks[3][cell]
        for place in range(3):
            other = neighbour(cell, STENCIL[place], shape)
            if other is not None:
                product = np.zeros((n, n), d.dtype)
                for u, w, v in np.ndindex(n, n, n):
                    product[u, v] += blocks[place][cell][u, w] * d[other][w, v]
                for u, w, v in np.ndindex(n, n, n):
                    d[cell][u, v] -= product[u, w] * blocks[6 - place][other][w, v]
        if not gauss_jordan(d[cell], pivoting) and first < 0:
            first = c
    return first


def block_ilu_solve(blocks, d, b, x, trans):
    """x = M^-1 b, or M^-T b or M^-H b, all (N,): a sweep through the cells and one back.

    "N": y = d (b - alpha y_k-1 - beta y_j-1 - gamma y_i-1), x = y - d (epsilon x_i+1 + zeta x_j+1 + eta x_k+1).
    "T", "H": the same with the transposed matrix, whose blocks stand at the neighbours.
    """
    shape, n = blocks.shape[1:4], blocks.shape[-1]
    X, B = x.reshape(*shape, n), b.reshape(*shape, n)

    def block(place, cell, other):
        if trans == "N":
            return blocks[place][cell]
        transposed = blocks[6 - place][other].T
        return transposed.conj() if trans == "H" else transposed

    def times_inverse(cell, z):
        inverse = d[cell] if trans == "N" else d[cell].T if trans == "T" else d[cell].conj().T
        y = np.zeros(n, x.dtype)
        subtract_block_product(inverse, z, y)
        return -y

    cells = list(np.ndindex(shape))
    for cell, places in [(c, (0, 1, 2)) for c in cells] + [(c, (4, 5, 6)) for c in reversed(cells)]:
        z = B[cell].copy() if places[0] == 0 else np.zeros(n, x.dtype)
        for place in places:
            other = neighbour(cell, STENCIL[place], shape)
            if other is not None:
                subtract_block_product(block(place, cell, other), X[other], z)
        X[cell] = times_inverse(cell, z) + (0 if places[0] == 0 else X[cell])


def elimination_tree(indptr, indices, parent):
    """parent[j]: the first row below the diagonal in column j of the Cholesky factor of the pattern; -1: none."""
    for j, column in enumerate(_eliminated(indptr, indices)):
        parent[j] = min(column, default=-1)


def column_counts(indptr, indices, parent, count):
    """count[j]: the entries of column j of the Cholesky factor of the pattern, the diagonal among them."""
    for j, column in enumerate(_eliminated(indptr, indices)):
        count[j] = 1 + len(column)


def _eliminated(indptr, indices):
    """The rows below the diagonal of each column of the Cholesky factor: elimination joins all neighbours of a row."""
    n = len(indptr) - 1
    below = [{int(i) for i in indices[indptr[j] : indptr[j + 1]] if i > j} for j in range(n)]
    for j in range(n):
        for i in below[j]:
            below[i] |= {k for k in below[j] if k > i}
    return below


def mirrored(indptr, indices, data, diag):
    """What A has in common with its transpose, b_ij = a_ji, or 0 where (j, i) is not stored:

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


def signs(indptr, indices, data, diag, tolerance):
    """(sum of |a_ij| of the diagonal's sign, of the other sign, rows with |a_ii| + the rest >= -tolerance |a_ii|)."""
    same = opposite = 0.0
    fine = 0
    for i, place in enumerate(diag):
        d = data[place]
        beside = [data[p] if d >= 0 else -data[p] for p in range(indptr[i], indptr[i + 1]) if p != place]
        same += sum(a for a in beside if a > 0)
        opposite -= sum(a for a in beside if a <= 0)
        fine += abs(d) + sum(beside) >= -tolerance * abs(d)
    return same, opposite, fine
