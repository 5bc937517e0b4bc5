"""Incomplete U^T D U in Crout's form with pivots of one or two rows; it defers rows that would make U^-1 large.

This is a part of a level of a multilevel factorization (Bollhoefer and Saad 2006; Li and Saad 2005; pairs: Duff and
Pralet 2005). Rows that make no good pivot are deferred. The deferred rows and the interface between the parts form the
Schur complement, which is the matrix of the next level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finelu.errors import MatrixError, ParameterError
from finelu.kernels.cpu._crout_rows import (
    END,
    ESTIMATE,
    NEXT,
    PIVOT,
    Carried,
    advance,
    checked_parts,
    clear,
    defer,
    distinct,
    factor_parts,
    farthest,
    inlined,
    keep,
    largest_of,
    members,
    new_factor,
    room_for,
    row_of,
    store,
    subtract,
    tolerances,
    usable,
)
from finelu.kernels.cpu._schur import SchurComplement, add_term, complement, empty, mirrored, new_terms, remaining_rows
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.arrays import grown, hand_over
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.indices import ONE
from finelu.kernels.cpu.runtime.jit import compiled


@dataclass(frozen=True, eq=False)
class SymmetricCroutFactors:
    """A ~ U^T D U (Hermitian: U^H D U) where both a row and its column belong to pivots; see `crout_symmetric`.

    deferred (n,) uint8 : 0, or why the row was deferred: 1, the estimate is too large; 2, the pivot is not usable.
    d (n,), e (n,) : the diagonal of D, and e[k] = D[k, k + 1] != 0 where k and k + 1 are one pivot; 0 elsewhere.
    indptr (n + 1,), indices, data : rows of U without their unit diagonal, ascending, in A's numbering. They have
        entries in columns of pivots, of deferred rows and of the interface, but none inside a pivot of two rows.
    interface : the first row of the interface.  largest_estimate : of the pivots, 0 without pivots.
    dropped_by_tolerance, dropped_by_fill_limit : the numbers of nonzero entries dropped for either reason.
    deferred_by_estimate, deferred_by_pivot : the numbers of rows deferred for either reason.
    pairs_taken : the number of pivots of two rows.
    """

    deferred: np.ndarray
    d: np.ndarray
    e: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    interface: int
    largest_estimate: float
    dropped_by_tolerance: int
    dropped_by_fill_limit: int
    deferred_by_estimate: int
    deferred_by_pivot: int
    pairs_taken: int

    @property
    def n(self) -> int:
        return self.d.size

    @property
    def nnz(self) -> int:
        """The entries of U without its diagonal, and those of D in its upper triangle."""
        pivots = self.interface - self.deferred_by_estimate - self.deferred_by_pivot
        return self.indices.size + pivots + self.pairs_taken


def crout_symmetric(
    A, pairs, parts, drop_tol, condest, pivot_tol, room, hermitian, above=None, least=0.0, most=None
) -> SymmetricCroutFactors:
    """Factor the parts of A, row by row, rows without a good pivot deferred; see kernels/reference/crout_symmetric.py.

    A : CSR (n, n), sorted, both triangles; A = A^T, or A = A^H if `hermitian`, which is taken on trust. Diagonal
        entries need not be stored. It should be scaled: `drop_tol` and `pivot_tol` compare with 1.
    pairs (n,) uint8 : 1 where k and k + 1 are tried as one pivot, before each of them is tried alone.
    parts (p + 1,) : part t has rows parts[t]..parts[t + 1] - 1; rows from parts[p] on, the interface, are no pivots.
    above (p,) : the part next above each, of a larger number, or -1; None: all -1.
    drop_tol : u_kj is dropped if |u_kj| max(1, |xi|) <= drop_tol, where |xi| estimates the norm of row k of U^-T.
    condest : rows with a larger |xi| are deferred.
    pivot_tol : so are pivots not larger than pivot_tol times the rest of their row, or of two rows that would make an
        entry of U larger than 1 / pivot_tol; and those whose elimination would overflow.
    least : and those that are not larger than this; of two rows, 1 over the largest entry of their inverse.
    room (n,) : how many entries of a row of U are kept at most, the largest ones.
    Raises MatrixError if an entry couples two parts or the diagonal of a Hermitian A is not real, ParameterError for
    pairs or parts that do not exist.
    Cost: the multiplications; per row of U a sort of its entries and of the rows subtracted from it. Memory: each part
        grows its own, twice U in all; 2 x (n, 7) numbers for each thread.
    """
    n, dtype, index = A.indptr.size - 1, A.data.dtype, A.indices.dtype
    pairs, room = np.ascontiguousarray(pairs, np.uint8), np.ascontiguousarray(room, np.int64)
    parts = checked_parts(A, parts, above)
    _check(A, pairs, parts.starts, drop_tol, condest, pivot_tol, room, hermitian)
    interface, hermitian = int(parts.starts[-1]), bool(hermitian)
    limits = tolerances(A.data.real.dtype.type, drop_tol, condest, pivot_tol, least)
    matrix, deferred, d, e = (
        (A.indptr, A.indices, A.data),
        np.zeros(n, np.uint8),
        np.zeros(n, dtype),
        np.zeros(n, dtype),
    )
    U = new_factor(interface, index, dtype)
    carried = Carried(parts, (U,), index, dtype, e)

    def part(start, stop, *own):
        return _part(start, stop, matrix, pairs, limits, room, hermitian, deferred, d, e, U, *own)

    counts = factor_parts(carried, part, n, most)
    numbers = float(counts[:, 0].max()), *(int(x) for x in counts[:, 1:6].sum(axis=0))
    return SymmetricCroutFactors(deferred, d, e, *carried.joined(n), interface, *numbers)


def _check(A, pairs, parts, drop_tol, condest, pivot_tol, room, hermitian) -> None:
    n = A.indptr.size - 1
    for name, value in (("drop_tol", drop_tol), ("condest", condest), ("pivot_tol", pivot_tol)):
        if not value >= 0 or (np.isinf(value) and name != "condest"):
            raise ParameterError(f"crout_symmetric: {name}={value!r}; a finite number >= 0 is needed.")
    if pairs.shape != (n,) or room.shape != (n,) or (room < 0).any():
        raise ParameterError(f"crout_symmetric: pairs and room must have n = {n} elements, none of room below 0.")
    first = np.flatnonzero(pairs)
    alone = np.isin(first + 1, parts) | (first + 1 >= parts[-1]) | np.isin(first + 1, first)
    if alone.any():
        k = first[alone.argmax()]
        raise ParameterError(
            f"crout_symmetric: pairs[{k}] = 1, but rows {k} and {k + 1} are not of one part, or {k + 1} begins a pair."
        )
    if hermitian and A.data.dtype.kind == "c":
        i = _first_not_real(A.indptr, A.indices, A.data)
        if i >= 0:
            raise MatrixError(f"crout_symmetric: the diagonal entry of row {i} is not real, so A is not Hermitian.")


@compiled
def _first_not_real(indptr, indices, data):
    for i in range(indptr.size - 1):
        for p in range(indptr[i], indptr[i + 1]):
            if indices[p] == i and data[p].imag != 0:
                return i
    return -1


@compiled
def _part(start, stop, A, pairs, limits, room, hermitian, deferred, d, e, U, below, rows, slots, limit, halt):
    """Factor the rows start..stop - 1: step k makes row k of U in Z, and row k + 1 of a pair in W, the two `rows`.

    limits : drop_tol, condest, pivot_tol, least.  below : columns and values of the rows of the parts below.
    Leaves in the slots columns and values of U, for `places`; returns seven numbers, the last being the entries that
    it has made: more than `limit` where it has stopped.
    """
    (drop_tol, condest, pivot_tol, least), (Z, W), (columns_below, values_below) = limits, rows, below
    indptr, indices, data = A
    places, head, follower, nu, xi = U
    z, z_touched, z_seen, z_sources, z_terms, z_factors, size, words, pages = Z
    w, w_touched, w_seen, w_sources, w_terms, w_factors, _, _, _ = W
    more = room_for(start, stop, indptr, room)
    used = columns_below.size  # with more room than that `grown` makes new arrays, to be handed over
    columns, values = grown(columns_below, used, used + more), grown(values_below, used, used + more)
    one = d.dtype.type(1)
    unit = one.real
    most = unit / pivot_tol
    largest = unit - unit
    by_tolerance = by_limit = by_estimate = by_pivot = taken = 0
    k = start
    while k < stop:
        if used - columns_below.size > limit or halted(halt):
            break
        listed = members(k, head, follower, places, columns, values, z_sources, words, pages)
        estimate = abs(farthest(one, nu[k]))
        count = 0
        if not estimate <= condest:
            deferred[k] = ESTIMATE
            by_estimate += 1
        else:
            terms = _terms(k, listed, z_sources, places, columns, values, d, e, hermitian, z_terms, z_factors)
            met = row_of(k, indptr, indices, data, deferred, z, z_touched)
            count = subtract(k, terms, z_terms, z_factors, places, columns, values, z, z_touched, z_seen, met)
            if hermitian:
                z[k] = z[k].real
        advance(stop, z_sources, listed, places, head, follower, columns)
        if not deferred[k] and pairs[k] and z[k + 1] != 0:
            common = max(estimate, abs(farthest(one, nu[k + 1])))
            if common <= condest:
                after = members(k + 1, head, follower, places, columns, values, w_sources, words, pages)
                terms = _terms(k + 1, after, w_sources, places, columns, values, d, e, hermitian, w_terms, w_factors)
                met = row_of(k + 1, indptr, indices, data, deferred, w, w_touched)
                both = subtract(k + 1, terms, w_terms, w_factors, places, columns, values, w, w_touched, w_seen, met)
                if hermitian:
                    w[k + 1] = w[k + 1].real
                both = distinct(k + 1, w_touched, both, w_seen)
                both = _united(k, z_touched, count, w_touched, w_seen, both)
                a, b, c = z[k], z[k + 1], w[k + 1]
                z[k] = z[k + 1] = w[k + 1] = 0
                inverse = _inverse(a, b, c, hermitian)
                if _fit_pair(inverse, least, z, w, w_touched, both, most, hermitian):
                    advance(stop, w_sources, after, places, head, follower, columns)
                    d[k], e[k], d[k + 1] = a, b, c
                    _divided_pair(inverse, z, w, w_touched, both, hermitian)
                    z_touched[:both] = w_touched[:both]
                    weight = max(unit, common)
                    count, s, t = keep(
                        k, one, weight, drop_tol, room[k], z, z_touched, both, z_factors, size, words, pages
                    )
                    both, u, v = keep(
                        k + 1, one, weight, drop_tol, room[k + 1], w, w_touched, both, w_factors, size, words, pages
                    )
                    by_tolerance += s + u
                    by_limit += t + v
                    needed = used + count + both
                    columns, values = grown(columns, used, needed), grown(values, used, needed)
                    used = store(
                        k, stop, one, z, z_touched, count, places, head, follower, nu, xi, columns, values, used
                    )
                    used = store(
                        k + 1, stop, one, w, w_touched, both, places, head, follower, nu, xi, columns, values, used
                    )
                    largest = max(largest, common)
                    taken += 1
                    k += 2
                    continue
                z[k], z[k + 1] = a, b
                clear(w, w_touched, both)
        if not deferred[k]:
            rest = largest_of(k, unit, z, z_touched, count)
            if not usable(abs(z[k]), rest, rest, pivot_tol, least, unit):
                deferred[k] = PIVOT
                by_pivot += 1
        if deferred[k]:
            defer(z_sources, listed, places, columns, values)
            clear(z, z_touched, count)
            k += 1
            continue
        d[k] = z[k]
        largest, weight = max(largest, estimate), max(unit, estimate)
        count, s, t = keep(k, d[k], weight, drop_tol, room[k], z, z_touched, count, z_factors, size, words, pages)
        by_tolerance += s
        by_limit += t
        columns, values = grown(columns, used, used + count), grown(values, used, used + count)
        used = store(k, stop, one, z, z_touched, count, places, head, follower, nu, xi, columns, values, used)
        k += 1
    hand_over(columns, slots, 0)
    hand_over(values, slots, 1)
    return largest, by_tolerance, by_limit, by_estimate, by_pivot, taken, used - columns_below.size


@inlined
def _terms(k, count, sources, places, columns, values, d, e, hermitian, terms, factors):
    """Column k of U^T D (U^H D): the rows with entries there, both rows of a pair, in `terms`, and the factor of each
    in `factors`. Returns their number.

    sources : the rows with an entry in column k, at NEXT, ascending.
    """
    used, done = np.uint64(0), -1
    for s in range(np.uint64(count)):
        p = np.int64(sources[s])
        if p == done:
            continue
        at = np.uint64(p)
        if e[at] == 0 and (p == 0 or e[at - ONE] == 0):
            u = values[np.uint64(places[at, NEXT])]
            terms[used] = p
            factors[used] = (np.conj(u) if hermitian else u) * d[at]
            used += ONE
            continue
        if e[at] == 0:
            p -= 1
            at -= ONE
        done = p + 1
        u, v = _at(k, at, places, columns, values), _at(k, at + ONE, places, columns, values)
        terms[used], terms[used + ONE] = p, done
        factors[used], factors[used + ONE] = _multipliers(u, v, at, d, e, hermitian)
        used += np.uint64(2)
    return np.int64(used)


@inlined
def _at(k, p, places, columns, values):
    """The entry of row p in column k, which is the one at NEXT if there is one."""
    q = np.uint64(places[p, NEXT])
    if q < np.uint64(places[p, END]) and columns[q] == k:
        return values[q]
    return values.dtype.type(0)


@inlined
def _multipliers(u, v, p, d, e, hermitian):
    """(u, v) D of a pivot of two rows p and p + 1; the conjugates of u and v if Hermitian."""
    if hermitian:
        u, v = np.conj(u), np.conj(v)
        return u * d[p] + v * np.conj(e[p]), u * e[p] + v * d[p + ONE]
    return u * d[p] + v * e[p], u * e[p] + v * d[p + ONE]


@compiled
def _united(k, z_touched, z_count, w_touched, w_seen, w_count):
    """The columns of either of the rows k and k + 1, in w_touched; returns their number."""
    met = np.uint64(w_count)
    for m in range(np.uint64(z_count)):
        j = np.uint64(z_touched[m])
        if w_seen[j] != ~(k + 1):
            w_seen[j] = ~(k + 1)
            w_touched[met] = z_touched[m]
            met += ONE
    return np.int64(met)


@compiled
def _size(x):
    return max(abs(x.real), abs(x.imag))


@compiled
def _inverse(a, e, c, hermitian):
    """(p, q, r, largest): D^-1 = [[p, -q], [-q or its conjugate, r]] of D = [[a, e], [e or its conjugate, c]]."""
    largest = max(_size(a), _size(e), _size(c))
    scale = a - a + largest
    a, e, c = divide(a, scale), divide(e, scale), divide(c, scale)
    determinant = a * c - e * (np.conj(e) if hermitian else e)
    p, q, r = divide(c, determinant), divide(e, determinant), divide(a, determinant)
    return divide(p, scale), divide(q, scale), divide(r, scale), largest


@compiled
def _fit_pair(inverse, least, z, w, touched, count, most, hermitian):
    """Whether a pivot of two rows with this inverse, and the rows z and w, is usable: no multiplier above `most`."""
    p, q, r, size = inverse
    if not np.isfinite(abs(p)) or not np.isfinite(abs(q)) or not np.isfinite(abs(r)):
        return False
    if least * max(_size(p), _size(q), _size(r)) >= 1:
        return False
    q_conj = np.conj(q) if hermitian else q
    for m in range(np.uint64(count)):
        j = np.uint64(touched[m])
        u, v = abs(p * z[j] - q * w[j]), abs(r * w[j] - q_conj * z[j])
        largest = max(u, v)
        if not np.isfinite(u) or not np.isfinite(v) or largest > most or not np.isfinite(size * largest * largest):
            return False
    return True


@compiled
def _divided_pair(inverse, z, w, touched, count, hermitian):
    p, q, r, _ = inverse
    q_conj = np.conj(q) if hermitian else q
    for m in range(np.uint64(count)):
        j = np.uint64(touched[m])
        z[j], w[j] = p * z[j] - q * w[j], r * w[j] - q_conj * z[j]


def schur_complement_symmetric(A, factors: SymmetricCroutFactors, drop_tol, hermitian, most=None) -> SchurComplement:
    """S = C - U_C^T D U_C (Hermitian: U_C^H D U_C) on the deferred rows and the interface, in ascending order.

    A, hermitian : as for `crout_symmetric`, which made `factors`.
    drop_tol : off the diagonal s_ij is dropped if |s_ij| <= drop_tol min(m_i, m_j), m_i the largest magnitude of row i.
    most : entries of that triangle, beyond which TooManyEntries is raised; None: no limit.
    One triangle is computed and mirrored, so that S is symmetric (Hermitian) in its bits.
    An entry that overflows is kept as it is: look at `first_bad`.
    Cost: half of the products of entries of a row of U_C; else as for `schur_complement`.
    """
    if not drop_tol >= 0:
        raise ParameterError(f"schur_complement_symmetric: drop_tol={drop_tol!r}; a number >= 0 is needed.")
    hermitian = bool(hermitian)
    left = remaining_rows(factors, factors.indptr, factors.indices, factors.data)
    if left is None:
        return empty(A)
    D, counts = (factors.d, factors.e, hermitian), np.zeros(left.rows.size, np.int64)
    _terms_of_rest(left, *D, counts, new_terms(counts, A.indices.dtype, A.data.dtype), False)
    terms = new_terms(counts, A.indices.dtype, A.data.dtype)
    _terms_of_rest(left, *D, terms.starts[:-1].copy(), terms, True)
    return mirrored(complement(A, left, terms, drop_tol, True, hermitian, most), hermitian)


@compiled
def _terms_of_rest(left, d, e, hermitian, place, terms, fill):
    """The terms of row r of S, from row r of U_C^T D, each from column r of U_C on, for each remaining row. Without
    `fill` place[r], 0 at first, becomes their number."""
    _, _, starts, columns, values = left
    none = d.dtype.type(0)
    k = 0
    while k < d.size:
        begin, end = np.uint64(starts[k]), np.uint64(starts[k + 1])
        if e[k] == 0:
            for q in range(begin, end):
                r = np.uint64(columns[q])
                if fill:
                    factor = (np.conj(values[q]) if hermitian else values[q]) * d[k]
                    add_term(r, k, np.int64(q), np.int64(end), factor, place, terms)
                else:
                    place[r] += 1
            k += 1
            continue
        second, last = end, np.uint64(starts[k + 2])
        while begin < end or second < last:
            first = begin < end and (second >= last or columns[begin] <= columns[second])
            r = np.uint64(columns[begin] if first else columns[second])
            u = values[begin] if first else none
            other = second < last and np.uint64(columns[second]) == r
            v = values[second] if other else none
            if fill:
                u, v = _multipliers(u, v, np.uint64(k), d, e, hermitian)
                add_term(r, k, np.int64(begin), np.int64(end), u, place, terms)
                add_term(r, k + 1, np.int64(second), np.int64(last), v, place, terms)
            else:
                place[r] += 2
            begin += np.uint64(first)
            second += np.uint64(other)
        k += 2
