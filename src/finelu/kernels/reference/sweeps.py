"""Fixed-point sweeps of ParILU and ParILUT. The specification."""

from __future__ import annotations

import numpy as np

# ParILU and ParILUT (Anzt, Chow, Dongarra 2018; Anzt, Ribizel, Flegar, Chow, Dongarra 2019). Factors F are one CSR: L
# below the diagonal (unit, not stored), U on and above; for Cholesky L alone, by rows, the diagonal last. A synchronous
# sweep reads old values only, so it is done row by row like a product of sparse matrices; sums over k ascend.


def row_of(A, i):
    """{column: value} of row i."""
    return {int(A.indices[p]): A.data[p] for p in range(A.indptr[i], A.indptr[i + 1])}


def row_on_pattern(A, F, i):
    """{column: value} of row i of A on the pattern of F, 0 where A has no entry."""
    row = row_of(A, i)
    return {j: row.get(j, F.data.dtype.type(0)) for j in row_of(F, i)}


def product_row(F, i, columns):
    """((k, j), l_ik u_kj) for k < i, k < j, in ascending order of k, then j; for Cholesky l_ik conj(l_jk), k < j <= i.

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


def sweep(A, F, out, squares, refused, columns=None, damping=1.0, part="whole"):
    """One synchronous fixed-point sweep on the pattern of F (2018, Algorithm 1, with the diagonal in U).

    out (nnz of F): l_ij = s_ij / u_jj below the diagonal and u_ij = s_ij elsewhere, s_ij = a_ij - sum over
    k < min(i, j) of l_ik u_kj with the old values; for Cholesky (columns given; A and F lower triangles)
    l_ij = s_ij / l_jj and l_ii = sqrt(s_ii). Times `damping`, plus 1 - damping times the old value. A value that is not
    finite, a pivot of LU that is 0, and a square that is not positive are refused: the old value stays, refused[0]
    counts it and refused[1] is the smallest such row so far.
    part: "upper": only entries on and above the diagonal are new, for Cholesky the diagonal; "lower": only entries
    below it. The rest of out has the old values. Two calls, "upper" and then "lower", make U and then L from the new U.
    squares (n,) float64, or None: the sum of |r_ij|^2 over the pattern of F in row i, R = A - L U of the old values.
    For Cholesky r_ij below the diagonal stands for r_ji, too, and counts twice.
    """
    shares = [F.data.real.dtype.type(share) for share in (damping, 1 - damping)]
    for i in range(F.n):
        s = row_on_pattern(A, F, i)
        for (_, j), product in product_row(F, i, columns):
            if j in s:
                s[j] -= product
        square = 0.0
        for p in range(F.indptr[i], F.indptr[i + 1]):
            j, old = int(F.indices[p]), F.data[p]
            with np.errstate(all="ignore"):
                if j < i:
                    new, residual = s[j] / F.data[F.diag[j]], s[j] - old * F.data[F.diag[j]]
                elif columns is None:
                    new, residual = s[j], s[j] - old
                else:
                    new, residual = np.sqrt(s[j].real) if s[j].real > 0 else np.nan, s[j].real - abs(old) ** 2
                new = shares[0] * new + shares[1] * old if damping != 1 else new
            if part == ("upper" if j < i else "lower"):
                new = old
            elif not np.isfinite(new) or (j == i and new == 0):
                refused[0] += 1
                refused[1] = min(refused[1], i)
                new = old
            out[p] = new
            square += (2 if columns is not None and j < i else 1) * abs(residual) ** 2
        if squares is not None:
            squares[i] = square


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
    """An asynchronous sweep as one thread would do it, row after row: new values are read as soon as they are made.

    Inside a row l_ik is final before it is used, so that in this order one sweep is the incomplete factorization on the
    pattern of F; with several threads a row may meet older values of other rows. Refuses as `sweep` does.
    """
    for i in range(F.n):
        s = row_on_pattern(A, F, i)
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
                for (k, m), product in product_row(F, i, columns):
                    if k == j and m in s:
                        s[m] -= product
