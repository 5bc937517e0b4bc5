"""The factorization of a level of the multilevel ILU in Crout's form, and its Schur complement. The specification."""

from __future__ import annotations

import numpy as np

from finelu.errors import TooManyEntries
from finelu.kernels.reference.sweeps import row_of
from finelu.kernels.reference.threshold import finite, strongest


def farthest(nu):
    """1 - nu or -1 - nu, the larger."""
    one = nu.dtype.type(1)
    return one - nu if nu.real <= 0 else -one - nu


def ahead(nu, k, row, stop):
    """1 - nu_k or -1 - nu_k: that for which its magnitude and those of nu_j + xi row_j for k < j < stop add up to more;
    of equals the larger (Cline, Moler, Stewart, Wilkinson 1979)."""
    one, best = nu.dtype.type(1), farthest(nu[k])
    other = -one - nu[k] if nu[k].real <= 0 else one - nu[k]
    far, near = abs(best), abs(other)
    for j in sorted(row):
        if k < j < stop:
            far, near = far + abs(nu[j] + best * row[j]), near + abs(nu[j] + other * row[j])
    return other if near > far else best


def usable(pivot, row, column, pivot_tol, least=0):
    """Whether a pivot is larger than `least` and than pivot_tol times the rest of its row and column, and its
    elimination finite.

    Quotients by the pivot, and products of entries of its row and column, may not overflow; the factor 4 is for sums.
    """
    real = pivot.real.dtype.type
    size, spare = abs(pivot), real(4)
    right, under = (max((abs(v) for v in part), default=real(0)) for part in (row, column))
    if not finite(dict(enumerate([pivot, *row, *column]))) or size <= max(least, pivot_tol * max(right, under)):
        return False
    with np.errstate(all="ignore"):
        sizes = spare * size, spare * max(right, under), real(1) / size, spare * (max(right, under) / size)
        return bool(np.isfinite([*sizes, spare * (right / size) * under]).all())


def crout(A, T, parts, drop_tol, condest, pivot_tol, row_room, column_room, above=None, least=0.0, most=None):
    """Crout's L D U, L and U with unit diagonals, that defers rows and columns whose elimination would do harm.

    Bollhoefer & Saad 2006; the form and the estimates are those of Li, Saad & Chow 2003, section 3. T is the transpose
    of A. Only rows before parts[-1] can be pivots; `above` only says which parts can be factored at the same time. The
    unknowns that are not pivots before k stay active in row and column k. k is deferred if the estimate of
    ||e_k^T L^-1|| or of ||U^-1 e_k|| is larger than condest or not finite (1), or if its pivot is not usable (2). u_kj
    is dropped if its magnitude times the estimate of ||U^-1 e_k|| is not larger than drop_tol, l_ik likewise; of the
    others the row_room[k] and column_room[k] largest are kept. Raises TooManyEntries beyond `most` entries of L and U.

    Returns deferred (n,): 0, 1, 2; d (n,); the columns of L and the rows of U as lists of {index: value}; the largest
    estimates of the pivots for L and for U; the numbers of nonzero entries dropped by tolerance, and by the fill limit.
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
            z, w = ({j: v for j, v in row_of(B, k).items() if j >= k or deferred[j]} for B in (A, T))
            for p in range(k):
                for x, source, other in ((z, L, U), (w, U, L)):
                    if k in source[p]:
                        factor = source[p][k] * d[p]
                        for j, v in other[p].items():
                            if j >= k or deferred[j]:
                                x[j] = x.get(j, dtype.type(0)) - factor * v
            pivot, _ = z.pop(k, dtype.type(0)), w.pop(k, 0)
            if not usable(pivot, z.values(), w.values(), pivot_tol, real(least)):
                deferred[k] = 2
                continue
            d[k] = pivot
            for side, x, room, F in ((0, w, column_room[k], L), (1, z, row_room[k], U)):
                weight = max(real(1), abs(xi[side]))
                over = {j: v / pivot for j, v in x.items() if abs(v / pivot) * weight > drop_tol}
                F[k] = strongest(over, -1, max(int(room), 0))
                dropped[0] += sum(v != 0 for j, v in x.items() if j not in over)
                dropped[1] += len(over) - len(F[k])
                taken = ahead(nu[side], k, F[k], parts[np.searchsorted(parts, k, side="right")])
                for j, v in F[k].items():
                    nu[side, j] += taken * v
                largest[side] = max(largest[side], float(abs(xi[side])))
    if most is not None and sum(map(len, L + U)) > most:
        raise TooManyEntries(most)
    return deferred, d, L, U, largest, dropped


def without_small(S, drop_tol):
    """(indptr, indices, data) of the rows S, without the entries off the diagonal that are not larger than drop_tol
    times the largest of their row, nor than that times the largest of their column."""
    row_size = [max(abs(v) for v in row.values()) for row in S]
    column_size = [max((abs(row[j]) for row in S if j in row), default=0) for j in range(len(S))]
    indptr, indices, data = [0], [], []
    for r, row in enumerate(S):
        kept = [j for j in sorted(row) if j == r or not abs(row[j]) <= drop_tol * min(row_size[r], column_size[j])]
        indices += kept
        data += [row[j] for j in kept]
        indptr.append(len(indices))
    return indptr, indices, data


def schur_complement(A, factors, drop_tol, most=None):
    """S = C - L_C D U_C on the rows and columns that are no pivots of `factors` (deferred, interface, d, l_..., u_...).

    Entries off the diagonal are dropped if they are not larger than drop_tol times the largest of their row, nor than
    that times the largest of their column; the diagonal is always stored. Returns indptr, indices, data, the numbers of
    the rows in A, the first row that is not finite or -1. Raises TooManyEntries beyond `most` entries.
    """
    n, dtype = factors.d.size, A.data.dtype
    rows = [i for i in range(n) if factors.deferred[i] or i >= factors.interface]
    number = {i: r for r, i in enumerate(rows)}
    S = [{number[j]: v for j, v in row_of(A, i).items() if j in number} for i in rows]
    first_bad = -1
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
    out = without_small(S, dtype.type(0).real.dtype.type(drop_tol))
    if most is not None and len(out[1]) > most:
        raise TooManyEntries(most)
    types = np.int64, A.indices.dtype, dtype
    return *(np.array(a, t) for a, t in zip(out, types, strict=True)), np.array(rows, np.int64), first_bad
