"""ILUT, by rows and in Crout's form, and ICT. The specification."""

from __future__ import annotations

import numpy as np

from finelu.kernels.reference.sweeps import row_of


def strongest(entries, tau, limit):
    """Those of {j: v} with |v| > tau, and of these the `limit` largest (of equals the smaller j; None: all), by j."""
    above = [j for j in sorted(entries) if abs(entries[j]) > tau]
    kept = sorted(above, key=lambda j: -abs(entries[j]))[:limit]  # a stable sort
    return {j: entries[j] for j in sorted(kept)}


def allowed(fill, entries):
    """How many entries of a row of L or U are kept where the row of A has `entries` there."""
    return None if np.isinf(fill) else max(1, int(fill * entries))


def finite(*parts):
    return all(np.isfinite(abs(v)) for part in parts for v in part.values())


def exceeds(most, *parts):
    """Whether the parts have more than `most` entries; never, if that is None."""
    return most is not None and sum(len(part) for part in parts) > most


def ilut(A, tau, fill, most=None):
    """ILUT: row by row, small entries dropped, the largest kept. Saad 1994; Saad 2003, Algorithm 10.6.

    tau (n,) : row i drops entries not larger than tau[i] in magnitude: an entry before the diagonal when its turn comes
    to be divided by the pivot, one behind it in the end. `fill` times as many entries as A has are kept before, and
    behind, the diagonal of a row, at least one. Returns the rows of L (without its diagonal) and of U as lists of
    {column: value}, shorter than n if the next row has a zero pivot or a value that is not finite, or would make more
    than `most` entries.
    """
    L, U = [], []
    for i in range(A.n):
        row = row_of(A, i)
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
                    row[j] = row.get(j, A.dtype.type(0)) - lower[k] * u
        upper = {j: v for j, v in row.items() if j > i}
        if not finite(row, lower, upper) or row[i] == 0:
            break
        lower = strongest(lower, 0, allowed(fill, before))
        upper = {i: row[i], **strongest(upper, tau[i], allowed(fill, behind))}
        if exceeds(most, *L, *U, lower, upper):
            break
        L.append(lower)
        U.append(upper)
    return L, U


def ilut_crout(A, tau_rows, tau_columns, fill, most=None):
    """ILUT in Crout's form: row k of U and column k of L together. Li, Saad & Chow 2003, Algorithm 3.1.

    Row k of U drops entries not larger than tau_rows[k], column k of L entries not larger than tau_columns[k] before it
    is divided by the pivot; `fill` as in `ilut`, for L by columns. Returns the columns of L (without its diagonal) and
    the rows of U as lists of {index: value}, shorter than n if the next step has a zero pivot or a value that is not
    finite, or would make more than `most` entries.
    """
    rows, zero = [row_of(A, i) for i in range(A.n)], A.dtype.type(0)
    L, U = [], []
    for k in range(A.n):
        z = {j: v for j, v in rows[k].items() if j >= k}
        w = {i: rows[i][k] for i in range(k + 1, A.n) if k in rows[i]}
        fill_row, fill_column = allowed(fill, len(z) - 1), allowed(fill, len(w))
        for i in range(k):
            if k in L[i]:
                for j in U[i]:
                    if j >= k:
                        z[j] = z.get(j, zero) - L[i][k] * U[i][j]
            if k in U[i]:
                for j in L[i]:
                    if j > k:
                        w[j] = w.get(j, zero) - L[i][j] * U[i][k]
        pivot = z.pop(k)
        if not finite(z, w, {k: pivot}) or pivot == 0:
            break
        column = {i: v / pivot for i, v in strongest(w, tau_columns[k], fill_column).items()}
        row = {k: pivot, **strongest(z, tau_rows[k], fill_row)}
        if not finite(column) or exceeds(most, *L, *U, column, row):
            break
        L.append(column)
        U.append(row)
    return L, U


def ict(L, tau, fill, most=None):
    """ICT: incomplete Cholesky by threshold, by columns, from the lower triangle L of A.

    Column k of L drops entries not larger than tau[k] before it is divided by the root of the pivot; `fill` times as
    many entries as the column has in A are kept below the diagonal, at least one. An imaginary part of the diagonal is
    not read. Returns the columns of the factor as a list of {row: value}, shorter than n if the next pivot is not a
    positive number or an entry is not finite, or if there would be more than `most` entries. Jones & Plassmann 1995;
    Li, Saad & Chow 2003 for the form.
    """
    n, zero, rows = L.n, L.dtype.type(0), [row_of(L, i) for i in range(L.n)]
    columns = []
    for k in range(n):
        square, w = rows[k][k].real, {i: rows[i][k] for i in range(k + 1, n) if k in rows[i]}
        limit = allowed(fill, len(w))
        for before in columns:
            if k in before:
                square = square - (before[k] * np.conj(before[k])).real
                for i in before:
                    if i > k:
                        w[i] = w.get(i, zero) - before[i] * np.conj(before[k])
        if not finite(w) or not np.isfinite(square) or square <= 0:
            break
        root = L.dtype.type(np.sqrt(square))
        column = {k: root} | {i: v / root for i, v in strongest(w, tau[k], limit).items()}
        if not finite(column) or exceeds(most, *columns, column):
            break
        columns.append(column)
    return columns
