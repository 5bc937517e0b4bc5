"""Crout's factorizations of a level, which put off what would make the inverses large, in plain Python.

The specification of kernels/cpu/crout*.py: slow, short and obviously right. Sums run over the pivots, ascending.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def crout_symmetric(A, pairs, parts, drop_tol, condest, pivot_tol, room, hermitian):
    """A ~ U^T D U (U^H D U) with pivots of one or two rows in each part, and rows put off.

    Returns deferred (n,), d (n,), e (n,), U as [{column: value}] without its diagonal, the largest estimate, and how
    many entries were dropped by tolerance and by room.
    """
    n, kind = A.indptr.size - 1, A.data.dtype.type
    deferred, d, e = np.zeros(n, np.uint8), np.zeros(n, kind), np.zeros(n, kind)
    U, nu = [{} for _ in range(n)], np.zeros(n, kind)
    largest, dropped = 0.0, [0, 0]
    most = 1 / pivot_tol if pivot_tol > 0 else np.inf

    def conj(x):
        return np.conj(x) if hermitian else x

    def remaining(k, start):
        """Row k of what the pivots before it have left of A: {column: value}, k first."""
        z = {k: kind(0)}
        z |= {int(j): A.data[p] for p in range(A.indptr[k], A.indptr[k + 1]) if (j := A.indices[p]) >= k or deferred[j]}
        p = start
        while p < k:
            rows = (p, p + 1) if e[p] else (p,)
            if any(k in U[q] for q in rows):
                c = [conj(U[q].get(k, kind(0))) for q in rows]
                factors = [c[0] * d[p]]
                if e[p]:
                    factors = [c[0] * d[p] + c[1] * conj(e[p]), c[0] * e[p] + c[1] * d[p + 1]]
                for q, factor in zip(rows, factors):
                    for j, u in U[q].items():
                        if j >= k or deferred[j]:
                            z[j] = z.get(j, kind(0)) - factor * u
            p += len(rows)
        if hermitian:
            z[k] = kind(z[k].real)
        return z

    def finite(*x):
        return all(np.isfinite(abs(y)) for y in x)

    def larger(x):
        return kind(1) - x if x.real <= 0 else kind(-1) - x

    def keep(k, row, xi, estimate):
        tau = drop_tol / max(1.0, estimate)
        large = sorted((j for j in row if float(abs(row[j])) > tau), key=lambda j: (-abs(row[j]), j))
        U[k] = {j: row[j] for j in sorted(large[: room[k]])}
        dropped[0] += sum(row[j] != 0 for j in row) - len(large)
        dropped[1] += len(large) - len(U[k])
        for j in U[k]:
            nu[j] += xi * U[k][j]

    def as_pair(k, start, z):
        """The pivot of the rows k and k + 1 and their multipliers, or None."""
        w = remaining(k + 1, start)
        a, b, c = z[k], z[k + 1], w[k + 1]
        columns = (z.keys() | w.keys()) - {k, k + 1}
        s = max(max(abs(x.real), abs(x.imag)) for x in (a, b, c))
        a_, b_, c_ = a / kind(s), b / kind(s), c / kind(s)
        determinant = a_ * c_ - b_ * conj(b_)
        p, q, r = (x / determinant / kind(s) for x in (c_, b_, a_))
        u = {j: p * z.get(j, kind(0)) - q * w.get(j, kind(0)) for j in columns}
        v = {j: r * w.get(j, kind(0)) - conj(q) * z.get(j, kind(0)) for j in columns}
        top = max((abs(x) for row in (u, v) for x in row.values()), default=0 * s)
        good = finite(p, q, r, *u.values(), *v.values(), s * top * top) and float(top) <= most
        return ((a, b, c), u, v) if good else None

    def as_one(k, z):
        """The multipliers of row k, or None."""
        beside, pivot = {j: x for j, x in z.items() if j != k}, abs(z[k])
        top = max((abs(x) for x in beside.values()), default=pivot - pivot)
        good = finite(*z.values(), type(pivot)(1) / pivot, 2 * top / pivot * (2 * top))
        return {j: x / z[k] for j, x in beside.items()} if good and float(pivot) > pivot_tol * float(top) else None

    for start, stop in pairwise(parts):
        k = int(start)
        while k < stop:
            xi, pair, z, row = larger(nu[k]), None, None, None
            estimate = float(abs(xi))
            if np.isfinite(estimate) and estimate <= condest:
                z = remaining(k, start)
                row = as_one(k, z)
            if z and pairs[k] and z.get(k + 1, 0) != 0:
                xi_next = larger(nu[k + 1])
                common = max(estimate, float(abs(xi_next)))
                if np.isfinite(common) and common <= condest:
                    pair = as_pair(k, start, z)
            if pair:
                (d[k], e[k], d[k + 1]), u, v = pair
                keep(k, u, xi, common)
                keep(k + 1, v, xi_next, common)
                largest = max(largest, common)
                k += 2
                continue
            if row is None:
                deferred[k] = 2 if z else 1
            else:
                d[k] = z[k]
                keep(k, row, xi, estimate)
                largest = max(largest, estimate)
            k += 1
    return deferred, d, e, U, largest, *dropped
