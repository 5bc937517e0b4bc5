"""The factorization of a multilevel ILU: Crout's form, with rows and columns deferred where the factors would grow.

The rules for deferring and dropping are from Bollhoefer & Saad 2006, Crout's form and the estimates from Li, Saad &
Chow 2003.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finelu import deadline
from finelu.errors import MatrixError, TooManyEntries
from finelu.kernels.cpu.runtime.arrays import Handed, grown, hand_over
from finelu.kernels.cpu.runtime.crout_rows import (
    ESTIMATE,
    NEXT,
    PIVOT,
    Carried,
    Workspaces,
    advance,
    checked_parts,
    clear,
    defer,
    farthest,
    keep,
    largest_of,
    members,
    new_factor,
    new_row,
    room_for,
    row_of,
    store,
    subtract,
    usable,
)
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.schur import SchurComplement, add_term, complement, new_terms, what_is_left
from finelu.threads import each


@dataclass(frozen=True, eq=False)
class CroutFactors:
    """A ~ L D U on the pivots; all in A's numbering, n rows.

    deferred (n,) uint8 : 0, or why a row and column was deferred: 1 its estimate is too large, 2 its pivot unusable.
    interface : the rows from this one on were never pivots.  d (n,) : the pivots, 0 if there is none.
    l_indptr (n + 1,) int64, l_indices, l_data : the columns of L below its unit diagonal: rows that come later, that
        are deferred, or of the interface; sorted. Void where there is no pivot. u_... : likewise U by rows.
    l_estimate, u_estimate : the largest estimates of ||e_k^T L^-1||_1 and ||U^-1 e_k||_1 of a pivot, 0 without any.
        Each is attained by a vector of signs, so never more than the norm; the norm itself where L, or U, is an
        M-matrix, else less. The signs look one row ahead (Cline, Moler, Stewart, Wilkinson 1979), since those that
        make one unknown the largest may cancel in all that follow.
    dropped_by_tolerance, dropped_by_fill_limit : how many entries, not zero, were dropped for either reason.
    deferred_by_estimate, deferred_by_pivot : how many rows were deferred for either reason.
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
    Cost: the multiplications; per row of U and column of L a sort of its entries and of what is subtracted from it.
        Memory: each part grows its own, twice the factors in all; 2 x (n, 7) numbers for each thread.
    """
    n, dtype, index = A.indptr.size - 1, A.data.dtype, A.indices.dtype
    if T.indptr.size != n + 1 or T.data.size != A.data.size or T.data.dtype != A.data.dtype:
        raise MatrixError(f"T has {T.data.size} entries and A {A.data.size}; the transpose of A is needed.")
    real = dtype.type(0).real.dtype.type
    parts = checked_parts(A, parts, above)
    interface = int(parts.starts[-1])
    with np.errstate(over="ignore"):  # tolerances beyond what the dtype holds are as good as the largest number
        tolerances = real(drop_tol), min(real(condest), np.finfo(real).max), real(pivot_tol), real(least)
    rows, columns = (A.indptr, A.indices, A.data), (T.indptr, T.indices, T.data)
    room = np.ascontiguousarray(row_room, np.int64), np.ascontiguousarray(column_room, np.int64)
    deferred, d = np.zeros(n, np.uint8), np.zeros(n, dtype)
    L, U = new_factor(interface, index, dtype), new_factor(interface, index, dtype)
    none = np.zeros(n, dtype)  # there are no pivots of two rows
    carried = Carried(parts, (L, U), index, dtype, none)
    one, counts = dtype.type(1), np.zeros((parts.above.size, 7))

    workspaces = Workspaces(lambda: (new_row(n, index, dtype), new_row(n, index, dtype)))

    def make(t, workspace):
        deadline.check()
        if most is not None and counts[:, 6].sum() > most:
            raise TooManyEntries(most)
        below, limits = carried.to(t), (*tolerances, *room)
        with Handed(4) as handed:
            counts[t] = _part(
                *parts.starts[t : t + 2],
                one,
                rows,
                columns,
                *limits,
                deferred,
                d,
                U,
                L,
                *below,
                *workspace,
                handed.slots,
                2**62 if most is None else most,
                deadline.halt(),
            )
            deadline.check()
            if most is not None and counts[t, 6] > most:
                raise TooManyEntries(most)
            carried.take(t, [(handed.take(e, index), handed.take(e + 1, dtype)) for e in (0, 2)])

    for turn in parts.turns:
        each(turn.size, lambda k, workspace, turn=turn: make(turn[k], workspace), workspaces.one)
        workspaces.back()
    deadline.check()
    if most is not None and counts[:, 6].sum() > most:
        raise TooManyEntries(most)
    return CroutFactors(
        deferred,
        interface,
        d,
        *carried.joined(n),
        *(float(x) for x in counts[:, :2].max(axis=0)),
        *(int(x) for x in counts[:, 2:6].sum(axis=0)),
    )


@compiled
def _part(
    start,
    stop,
    one,
    A,
    T,
    drop_tol,
    condest,
    pivot_tol,
    least,
    row_room,
    column_room,
    deferred,
    d,
    U,
    L,
    l_below,
    lv_below,
    u_below,
    uv_below,
    Z,
    W,
    slots,
    most,
    halt,
):
    """Factor the rows start..stop - 1: step k makes row k of U in Z and column k of L in W.

    l_below, lv_below : rows and values of the columns of L of the parts below; u_below, uv_below : of U.
    Leaves in the slots rows and values of L, columns and values of U, for `places`; returns what was counted, the last
    being the entries that it has made: more than `most` where it has stopped.
    """
    (indptr, indices, data), (t_indptr, t_indices, t_data) = A, T
    u_places, u_head, u_follower, u_nu, u_xi = U
    l_places, l_head, l_follower, l_nu, l_xi = L
    z, z_touched, z_seen, z_sources, _, z_factors, z_size, words, pages = Z
    w, w_touched, w_seen, w_sources, _, w_factors, w_size, _, _ = W
    rights = room_for(start, stop, indptr, row_room)
    unders = room_for(start, stop, t_indptr, column_room)
    u_used, l_used = u_below.size, l_below.size  # with more room than that `grown` makes new arrays, to be handed over
    u_columns, u_values = grown(u_below, u_used, u_used + rights), grown(uv_below, u_used, u_used + rights)
    l_rows, l_values = grown(l_below, l_used, l_used + unders), grown(lv_below, l_used, l_used + unders)
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
            met = row_of(k, indptr, indices, data, deferred, z, z_touched, z_seen)
            rights = subtract(
                k, l_count, z_sources, z_factors, u_places, u_columns, u_values, z, z_touched, z_seen, met
            )
            met = row_of(k, t_indptr, t_indices, t_data, deferred, w, w_touched, w_seen)
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
        rights, s, c = keep(k, d[k], weight, drop_tol, row_room[k], z, z_touched, rights, z_size, words, pages)
        weight = max(unit, l_size)
        unders, t, e = keep(k, d[k], weight, drop_tol, column_room[k], w, w_touched, unders, w_size, words, pages)
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


@compiled
def _factors(count, sources, places, values, d, factors):
    """l_kp d_p for each row p in the list of column k, where l_kp is its entry at NEXT; likewise u_pk d_p."""
    for e in range(np.uint64(count)):
        p = np.uint64(sources[e])
        factors[e] = values[np.uint64(places[p, NEXT])] * d[p]


def schur_complement(A, factors: CroutFactors, drop_tol, most=None) -> SchurComplement:
    """S = C - L_C D U_C on the rows and columns that are no pivots, in A's order; see kernels/reference/crout.py.

    drop_tol : off the diagonal s_ij is dropped where |s_ij| <= drop_tol min(r_i, c_j), r_i and c_j the largest
        magnitudes of row i and column j: no row and no column loses its largest entry.
    most : entries, beyond which TooManyEntries is raised; None: no limit.
    Cost: a pass over A, L and U, and the multiplications, over the threads. An entry that is small for its row waits
    for the largest of its column, unless the thread that made it has already met one that is large enough: so what is
    kept does not depend on the threads, and the room before the dropping stays near that of S.
    """
    left = what_is_left(factors, factors.u_indptr, factors.u_indices, factors.u_data)
    columns = factors.l_indptr, factors.l_indices, factors.l_data
    counts = np.bincount(left.number[factors.l_indices] + 1, minlength=left.rows.size + 1)[1:]
    terms = new_terms(counts, A.indices.dtype, A.data.dtype)
    _terms(left.number, *columns, factors.d, left.starts, terms.starts[:-1].copy(), terms)
    return complement(A, left, terms, drop_tol, False, False, most)


@compiled
def _terms(number, indptr, indices, data, d, u_starts, place, terms):
    """Row r of L_C D, for each row that is left."""
    for k in range(number.size):
        for p in range(np.uint64(indptr[k]), np.uint64(indptr[k + 1])):
            r = number[np.uint64(indices[p])]
            if r >= 0:
                add_term(r, k, u_starts[k], u_starts[k + 1], data[p] * d[k], place, terms)
