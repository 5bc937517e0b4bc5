"""The factorization of a multilevel ILU: Crout's form, with rows and columns deferred where the factors would grow.

The rules for deferring and dropping are from Bollhoefer & Saad 2006, Crout's form and the estimates from Li, Saad &
Chow 2003.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finelu.errors import MatrixError
from finelu.kernels.cpu._crout_rows import (
    ESTIMATE,
    NEXT,
    PIVOT,
    Carried,
    advance,
    checked_parts,
    clear,
    defer,
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
from finelu.kernels.cpu._schur import SchurComplement, add_term, complement, empty, new_terms, remaining_rows
from finelu.kernels.cpu.runtime.arrays import grown, hand_over
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.jit import compiled


@dataclass(frozen=True, eq=False)
class CroutFactors:
    """A ~ L D U on the pivots; all in A's numbering, n rows.

    deferred (n,) uint8 : 0, or why a row and column was deferred: 1 its estimate is too large, 2 its pivot unusable.
    interface : the rows from this one on were never pivots.  d (n,) : the pivots, 0 for other rows.
    l_indptr (n + 1,) int64, l_indices, l_data : the columns of L below its unit diagonal, sorted, with later rows,
        deferred rows and rows of the interface; empty if k is no pivot.  u_... : U by rows, likewise.
    l_estimate, u_estimate : the largest estimates of ||e_k^T L^-1||_1 and ||U^-1 e_k||_1 of a pivot, 0 without pivots.
        Each is attained by a vector of signs, so it never exceeds the norm; it is the norm if L, or U, is an M-matrix.
        The signs look one row ahead (Cline, Moler, Stewart, Wilkinson 1979), since signs that make one unknown the
        largest may cancel in all later ones.
    dropped_by_tolerance, dropped_by_fill_limit : the numbers of nonzero entries dropped for either reason.
    deferred_by_estimate, deferred_by_pivot : the numbers of rows deferred for either reason.
    """

    deferred: np.ndarray
    interface: int
    d: np.ndarray
    l_indptr: np.ndarray
    l_indices: np.ndarray
    l_data: np.ndarray
    u_indptr: np.ndarray
    u_indices: np.ndarray
    u_data: np.ndarray
    l_estimate: float
    u_estimate: float
    dropped_by_tolerance: int
    dropped_by_fill_limit: int
    deferred_by_estimate: int
    deferred_by_pivot: int

    @property
    def n(self) -> int:
        return self.d.size

    @property
    def nnz(self) -> int:
        """The entries of L and U without diagonals, and the pivots."""
        pivots = self.interface - self.deferred_by_estimate - self.deferred_by_pivot
        return self.l_indices.size + self.u_indices.size + pivots


def crout(
    A, T, parts, drop_tol, condest, pivot_tol, row_room, column_room, above=None, least=0.0, most=None
) -> CroutFactors:
    """Incomplete L D U of A that defers rows whose elimination would do harm; see kernels/reference/crout.py.

    A : CSR, (n, n), sorted, scaled and permuted, finite; diagonal entries may be missing.  T : CSR of its transpose.
    parts (p + 1,) : part t has the rows and columns parts[t]..parts[t + 1] - 1, from 0 on; those from parts[p] on are
        the interface and never pivots.  above (p,) : the part next above each, of a larger number, or -1; None: all -1.
        A stores no entry that couples two parts of which neither is above the other.
    drop_tol : u_kj is dropped if |u_kj| times the estimate of ||U^-1 e_k|| is not larger, l_ik likewise; 0 drops zeros.
    condest : k is deferred if its estimate for L or for U is larger, or not finite; may be inf.
    pivot_tol, least : k is deferred unless |d_k| is larger than pivot_tol times the rest of row and column k, and than
        `least`, and if its elimination would overflow.
    row_room, column_room (n,) integers : how many entries of row k of U, and of column k of L, are kept at most.
    most : entries of L and U, at which it stops; None: no limit.
    Raises MatrixError (a ValueError) that names the first entry between parts, ParameterError if parts do not ascend,
    TooManyEntries beyond `most`.
    Cost: the multiplications; per row of U and column of L a sort of its entries and of the rows subtracted from it.
        Memory: each part grows its own, twice the factors in all; 2 x (n, 7) numbers for each thread.
    """
    n, dtype, index = A.indptr.size - 1, A.data.dtype, A.indices.dtype
    if T.indptr.size != n + 1 or T.data.size != A.data.size or T.data.dtype != A.data.dtype:
        raise MatrixError(f"T has {T.data.size} entries and A {A.data.size}; the transpose of A is needed.")
    parts = checked_parts(A, parts, above)
    interface = int(parts.starts[-1])
    limits = tolerances(A.data.real.dtype.type, drop_tol, condest, pivot_tol, least)
    rows, columns = (A.indptr, A.indices, A.data), (T.indptr, T.indices, T.data)
    room = np.ascontiguousarray(row_room, np.int64), np.ascontiguousarray(column_room, np.int64)
    deferred, d = np.zeros(n, np.uint8), np.zeros(n, dtype)
    L, U = new_factor(interface, index, dtype), new_factor(interface, index, dtype)
    carried = Carried(parts, (L, U), index, dtype, np.zeros(n, dtype))  # there are no pivots of two rows

    def part(start, stop, *own):
        return _part(start, stop, rows, columns, limits, room, deferred, d, U, L, *own)

    counts = factor_parts(carried, part, n, most)
    return CroutFactors(
        deferred,
        interface,
        d,
        *carried.joined(n),
        *(float(x) for x in counts[:, :2].max(axis=0)),
        *(int(x) for x in counts[:, 2:6].sum(axis=0)),
    )


@compiled
def _part(start, stop, A, T, limits, room, deferred, d, U, L, below, rows, slots, most, halt):
    """Factor the rows start..stop - 1: step k makes row k of U in Z and column k of L in W, the two `rows`.

    limits : drop_tol, condest, pivot_tol, least.  room : of rows and columns.
    below : rows and values of the columns of L of the parts below, then columns and values of the rows of U.
    Leaves in the slots rows and values of L, columns and values of U, for `places`; returns seven numbers, the last
    being the entries that it has made: more than `most` where it has stopped.
    """
    (indptr, indices, data), (t_indptr, t_indices, t_data) = A, T
    (drop_tol, condest, pivot_tol, least), (row_room, column_room), (Z, W) = limits, room, rows
    u_places, u_head, u_follower, u_nu, u_xi = U
    l_places, l_head, l_follower, l_nu, l_xi = L
    z, z_touched, z_seen, z_sources, _, z_factors, z_size, words, pages = Z
    w, w_touched, w_seen, w_sources, _, w_factors, w_size, _, _ = W
    l_below, lv_below, u_below, uv_below = below
    rights = room_for(start, stop, indptr, row_room)
    unders = room_for(start, stop, t_indptr, column_room)
    u_used, l_used = u_below.size, l_below.size  # with more room than that `grown` makes new arrays, to be handed over
    u_columns, u_values = grown(u_below, u_used, u_used + rights), grown(uv_below, u_used, u_used + rights)
    l_rows, l_values = grown(l_below, l_used, l_used + unders), grown(lv_below, l_used, l_used + unders)
    one = d.dtype.type(1)
    unit = one.real
    l_largest = u_largest = unit - unit
    by_tolerance = by_limit = by_estimate = by_pivot = 0
    for k in range(start, stop):
        if u_used - u_below.size + l_used - l_below.size > most or halted(halt):
            break
        # z: row k less l_kp d_p times row p of U for each p with an entry in row k of L; w: column k likewise
        l_count = members(k, l_head, l_follower, l_places, l_rows, l_values, z_sources, words, pages)
        u_count = members(k, u_head, u_follower, u_places, u_columns, u_values, w_sources, words, pages)
        l_size, u_size = abs(farthest(one, l_nu[k])), abs(farthest(one, u_nu[k]))
        rights = unders = 0
        if not (l_size <= condest and u_size <= condest):
            deferred[k] = ESTIMATE
            by_estimate += 1
        else:
            _factors(l_count, z_sources, l_places, l_values, d, z_factors)
            _factors(u_count, w_sources, u_places, u_values, d, w_factors)
            met = row_of(k, indptr, indices, data, deferred, z, z_touched)
            rights = subtract(
                k, l_count, z_sources, z_factors, u_places, u_columns, u_values, z, z_touched, z_seen, met
            )
            met = row_of(k, t_indptr, t_indices, t_data, deferred, w, w_touched)
            unders = subtract(k, u_count, w_sources, w_factors, l_places, l_rows, l_values, w, w_touched, w_seen, met)
            right, under = largest_of(k, unit, z, z_touched, rights), largest_of(k, unit, w, w_touched, unders)
            if not usable(abs(z[k]), right, under, pivot_tol, least, unit):
                deferred[k] = PIVOT
                by_pivot += 1
        advance(stop, z_sources, l_count, l_places, l_head, l_follower, l_rows)
        advance(stop, w_sources, u_count, u_places, u_head, u_follower, u_columns)
        if deferred[k]:
            defer(z_sources, l_count, l_places, l_rows, l_values)
            defer(w_sources, u_count, u_places, u_columns, u_values)
            clear(z, z_touched, rights)
            clear(w, w_touched, unders)
            continue
        d[k] = z[k]
        l_largest, u_largest = max(l_largest, l_size), max(u_largest, u_size)
        weight = max(unit, u_size)
        rights, s, c = keep(
            k, d[k], weight, drop_tol, row_room[k], z, z_touched, rights, z_factors, z_size, words, pages
        )
        weight = max(unit, l_size)
        unders, t, e = keep(
            k, d[k], weight, drop_tol, column_room[k], w, w_touched, unders, w_factors, w_size, words, pages
        )
        by_tolerance += s + t
        by_limit += c + e
        u_columns, u_values = grown(u_columns, u_used, u_used + rights), grown(u_values, u_used, u_used + rights)
        l_rows, l_values = grown(l_rows, l_used, l_used + unders), grown(l_values, l_used, l_used + unders)
        u_used = store(
            k, stop, one, z, z_touched, rights, u_places, u_head, u_follower, u_nu, u_xi, u_columns, u_values, u_used
        )
        l_used = store(
            k, stop, one, w, w_touched, unders, l_places, l_head, l_follower, l_nu, l_xi, l_rows, l_values, l_used
        )
    hand_over(l_rows, slots, 0)
    hand_over(l_values, slots, 1)
    hand_over(u_columns, slots, 2)
    hand_over(u_values, slots, 3)
    made = u_used - u_below.size + l_used - l_below.size
    return l_largest, u_largest, by_tolerance, by_limit, by_estimate, by_pivot, made


@inlined
def _factors(count, sources, places, values, d, factors):
    """l_kp d_p for each row p in the list of column k, where l_kp is its entry at NEXT; likewise u_pk d_p."""
    for e in range(np.uint64(count)):
        p = np.uint64(sources[e])
        factors[e] = values[np.uint64(places[p, NEXT])] * d[p]


def schur_complement(A, factors: CroutFactors, drop_tol, most=None) -> SchurComplement:
    """S = C - L_C D U_C on the rows and columns that are no pivots, in A's order; see kernels/reference/crout.py.

    drop_tol, most : as for `complement`, which also describes the memory.
    Cost: a pass over A, L and U, and the multiplications, shared by the threads.
    """
    left = remaining_rows(factors, factors.u_indptr, factors.u_indices, factors.u_data)
    if left is None:
        return empty(A)
    columns = factors.l_indptr, factors.l_indices, factors.l_data
    counts = np.bincount(left.number[factors.l_indices] + 1, minlength=left.rows.size + 1)[1:]
    terms = new_terms(counts, A.indices.dtype, A.data.dtype)
    _terms(left.number, *columns, factors.d, left.starts, terms.starts[:-1].copy(), terms)
    return complement(A, left, terms, drop_tol, False, False, most)


@compiled
def _terms(number, indptr, indices, data, d, u_starts, place, terms):
    """The terms of row r of S, from row r of L_C D, for each remaining row."""
    for k in range(number.size):
        for p in range(np.uint64(indptr[k]), np.uint64(indptr[k + 1])):
            r = number[np.uint64(indices[p])]
            if r >= 0:
                add_term(r, k, u_starts[k], u_starts[k + 1], data[p] * d[k], place, terms)
