"""Crout's symmetric factorization of a level of the multilevel ILU, and its Schur complement. The specification."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from finelu.errors import TooManyEntries
from finelu.kernels.reference.crout import ahead, farthest, usable


def multipliers(c, d, e, p, conj):
    """c times D of the pivot p, of one row or of two, as e[p] says."""
    if not e[p]:
        return (c[0] * d[p],)
    return c[0] * d[p] + c[1] * conj(e[p]), c[0] * e[p] + c[1] * d[p + 1]


def crout_symmetric(A, pairs, parts, drop_tol, condest, pivot_tol, room, hermitian, above=None, least=0.0, most=None):
    """A ~ U^T D U (U^H D U) with pivots of one or two rows in each part, and rows deferred. Raises
    TooManyEntries beyond `most` entries of U.

    Returns deferred (n,), d (n,), e (n,), U as [{column: value}] without its diagonal, the largest estimate, and the
    numbers of entries dropped by tolerance and by the fill limit.
    """
    n, kind, real = A.indptr.size - 1, A.data.dtype.type, A.data.real.dtype.type
    with np.errstate(over="ignore"):
        drop_tol, condest, pivot_tol = real(drop_tol), min(real(condest), np.finfo(real).max), real(pivot_tol)
    deferred, d, e = np.zeros(n, np.uint8), np.zeros(n, kind), np.zeros(n, kind)
    U, nu = [{} for _ in range(n)], np.zeros(n, kind)
    largest, dropped = 0.0, [0, 0]
    steepest = real(1) / pivot_tol if pivot_tol > 0 else real(np.inf)

    def conj(x):
        return np.conj(x) if hermitian else x

    def remaining(k):
        """Row k of A after the elimination of the pivots before it: {column: value}, k first."""
        z = {k: kind(0)}
        z |= {int(j): A.data[p] for p in range(A.indptr[k], A.indptr[k + 1]) if (j := A.indices[p]) >= k or deferred[j]}
        p = 0
        while p < k:
            rows = (p, p + 1) if e[p] else (p,)
            if any(k in U[q] for q in rows):
                c = [conj(U[q].get(k, kind(0))) for q in rows]
                for q, factor in zip(rows, multipliers(c, d, e, p, conj)):
                    for j, u in U[q].items():
                        if j >= k or deferred[j]:
                            z[j] = z.get(j, kind(0)) - factor * u
            p += len(rows)
        if hermitian:
            z[k] = kind(z[k].real)
        return z

    def finite(*x):
        return all(np.isfinite(abs(y)) for y in x)

    def keep(k, row, pivot, estimate, stop):
        """Row k of U: the entries of row / pivot that are large enough."""
        x, weight = {j: row[j] / pivot for j in row}, max(real(1), estimate)
        large = sorted((j for j in x if abs(x[j]) * weight > drop_tol), key=lambda j: (-abs(x[j]), j))
        U[k] = {j: x[j] for j in sorted(large[: room[k]])}
        dropped[0] += sum(row[j] != 0 for j in row.keys() - set(large))
        dropped[1] += len(large) - len(U[k])
        xi = ahead(nu, k, U[k], stop)
        for j in U[k]:
            nu[j] += xi * U[k][j]

    def as_pair(k, z):
        """The pivot of the rows k and k + 1 and their multipliers, or None."""
        w = remaining(k + 1)
        a, b, c = z[k], z[k + 1], w[k + 1]
        columns = (z.keys() | w.keys()) - {k, k + 1}
        s = max(max(abs(x.real), abs(x.imag)) for x in (a, b, c))
        a_, b_, c_ = a / kind(s), b / kind(s), c / kind(s)
        determinant = a_ * c_ - b_ * conj(b_)
        p, q, r = (x / determinant / kind(s) for x in (c_, b_, a_))
        u = {j: p * z.get(j, kind(0)) - q * w.get(j, kind(0)) for j in columns}
        v = {j: r * w.get(j, kind(0)) - conj(q) * z.get(j, kind(0)) for j in columns}
        top = max((abs(x) for row in (u, v) for x in row.values()), default=0 * s)
        good = finite(p, q, r, *u.values(), *v.values(), s * top * top) and top <= steepest
        good = good and real(least) * max(max(abs(x.real), abs(x.imag)) for x in (p, q, r)) < 1
        return ((a, b, c), u, v) if good else None

    for start, stop in pairwise(parts):
        k = int(start)
        while k < stop:
            pair, z = None, None
            estimate = abs(farthest(nu[k]))
            if estimate <= condest:
                z = remaining(k)
            if z and pairs[k] and z.get(k + 1, 0) != 0:
                common = max(estimate, abs(farthest(nu[k + 1])))
                if common <= condest:
                    pair = as_pair(k, z)
            if pair:
                (d[k], e[k], d[k + 1]), u, v = pair
                keep(k, u, kind(1), common, stop)
                keep(k + 1, v, kind(1), common, stop)
                largest = max(largest, float(common))
                k += 2
                continue
            others = [x for j, x in z.items() if j != k] if z else []
            if not z or not usable(z[k], others, others, pivot_tol, real(least)):
                deferred[k] = 2 if z else 1
            else:
                d[k] = z.pop(k)
                keep(k, z, d[k], estimate, stop)
                largest = max(largest, float(estimate))
            k += 1
    if most is not None and sum(map(len, U)) > most:
        raise TooManyEntries(most)
    return deferred, d, e, U, largest, *dropped


def schur_complement_symmetric(A, factors, drop_tol, hermitian, most=None):
    """S = C - U_C^T D U_C (Hermitian: U_C^H D U_C) on the rows that are no pivots of `factors`, in ascending order.

    The upper triangle is computed, zeros off the diagonal left out; of it s_ij is dropped, off the diagonal, where
    |s_ij| <= drop_tol min(m_i, m_j), m_i the largest magnitude of row i of S; the rest is mirrored.
    Returns indptr, indices, data, the number in A of each row, and the first row with an entry in its upper triangle
    that is not finite, or -1. Raises TooManyEntries beyond `most` entries of the upper triangle.
    """
    n, kind, (d, e) = factors.d.size, A.data.dtype.type, (factors.d, factors.e)
    drop_tol = A.data.real.dtype.type(drop_tol)
    numbers = [i for i in range(n) if factors.deferred[i] or i >= factors.interface]
    number = {i: r for r, i in enumerate(numbers)}

    def conj(x):
        return np.conj(x) if hermitian else x

    def left(M, k):
        """Row k of M in the columns that are left: {column of S: value}."""
        places = range(M.indptr[k], M.indptr[k + 1])
        return {number[int(M.indices[p])]: M.data[p] for p in places if int(M.indices[p]) in number}

    U = [left(factors, k) for k in range(n)]
    S = [{i: kind(0)} | {j: v for j, v in left(A, numbers[i]).items() if j >= i} for i in range(len(numbers))]
    with np.errstate(all="ignore"):
        k = 0
        while k < n:
            rows = (k, k + 1) if e[k] else (k,)
            for i in set().union(*(U[q] for q in rows)):
                c = [conj(U[q].get(i, kind(0))) for q in rows]
                for q, multiplier in zip(rows, multipliers(c, d, e, k, conj)):
                    for j, u in U[q].items():
                        if j >= i:
                            S[i][j] = S[i].get(j, kind(0)) - multiplier * u
            k += len(rows)
        if hermitian:
            for i, row in enumerate(S):
                row[i] = kind(row[i].real)
    S = [{j: v for j, v in row.items() if j == i or v != 0} for i, row in enumerate(S)]
    bad = [i for i, row in enumerate(S) if not np.isfinite([abs(v) for v in row.values()]).all()]
    size = [abs(row[i]) for i, row in enumerate(S)]
    for i, row in enumerate(S):
        for j, v in row.items():
            size[i], size[j] = max(size[i], abs(v)), max(size[j], abs(v))
    kept = [
        {j: v for j, v in row.items() if j == i or not abs(v) <= drop_tol * min(size[i], size[j])}
        for i, row in enumerate(S)
    ]
    if most is not None and sum(map(len, kept)) > most:
        raise TooManyEntries(most)
    both = [dict(row) for row in kept]
    for i, row in enumerate(kept):
        for j in row.keys() - {i}:
            both[j][i] = conj(row[j])
    indptr = np.cumsum([0, *(len(row) for row in both)])
    indices = np.array([j for row in both for j in sorted(row)], A.indices.dtype)
    data = np.array([row[j] for row in both for j in sorted(row)], A.data.dtype)
    return indptr.astype(np.int64), indices, data, np.array(numbers, np.int64), bad[0] if bad else -1
