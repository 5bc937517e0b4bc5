"""The factorization of a multilevel ILU: Crout's form, with rows and columns deferred where the factors would grow.

Bollhoefer & Saad 2006 for what is deferred and dropped; Li, Saad & Chow 2003 for Crout's form and the estimates.
Independent parts of the matrix are factored by the threads, each part by one of them. What a part reads and writes does
not depend on the others, and sums run in ascending order of the eliminated unknown: so the bits are the same on any
number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from finelu.errors import MatrixError, ParameterError
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.arrays import Handed, grown, hand_over
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.claims import wait_until_done
from finelu.kernels.cpu.runtime.crew import run
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.sort import kth_largest, sort_by_bitmap

ESTIMATE, PIVOT = 1, 2  # why a row and column are deferred
SPARE = 4.0  # the sums inside a complex product or quotient are larger than the result, by less than this
BLOCK = 2**18  # multiplications of a block of rows of the Schur complement
BEGIN, FRONT, NEXT, END = range(4)  # see Factor


@dataclass(frozen=True, eq=False)
class CroutFactors:
    """A ~ L D U on the pivots; all in A's numbering, n rows.

    deferred (n,) uint8 : 0, or why a row and column was deferred: 1 its estimate is too large, 2 its pivot unusable.
    interface : the rows from this one on were never pivots.  d (n,) : the pivots, 0 where there is none.
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


class SchurComplement(NamedTuple):
    """S (m, m) in CSR, sorted, every diagonal entry stored; row and column r of S are rows[r] of A.

    first_bad : the first row of S with an entry whose magnitude is not finite, or -1.
    """

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    rows: np.ndarray
    first_bad: int


class Factor(NamedTuple):
    """What is known of the rows of U, or the columns of L, while they are made; each part uses its own slice.

    places (n, 4) : where a row lies in the memory of its part: entries BEGIN..FRONT are in columns that were deferred,
        FRONT..NEXT in columns whose turn is over, NEXT..END, sorted, in those to come.
    head, follower (n,) : lists, as in Crout's ILUT: that of column j holds the rows whose entry at NEXT is in column j.
    nu (n,) : what the entries of a column add to its estimate.
    """

    places: np.ndarray
    head: np.ndarray
    follower: np.ndarray
    nu: np.ndarray


class Row(NamedTuple):
    """A thread's memory for a row, or column, in the making.

    x (n,) : its values, 0 between steps.  touched (n,) : the places that are in use.  seen (n,) : the last step
    that touched a place.  sources (n,) : the earlier rows to subtract.  size (n,) float64.
    """

    x: np.ndarray
    touched: np.ndarray
    seen: np.ndarray
    sources: np.ndarray
    size: np.ndarray


class Bitmap(NamedTuple):
    """A thread's memory to sort places in: (n / 64,) and (n / 4096,), zero between uses."""

    words: np.ndarray
    pages: np.ndarray


def crout(A, T, parts, drop_tol, condest, pivot_tol, row_room, column_room) -> CroutFactors:
    """Incomplete L D U of A that defers rows whose elimination would do harm; see kernels/reference/crout.py.

    A : CSR, (n, n), sorted, scaled and permuted, finite; diagonal entries may be missing.  T : CSR of its transpose.
    parts (p + 1,) : part t has the rows and columns parts[t]..parts[t + 1] - 1, from 0 on; those from parts[p] on are
        the interface and never pivots. A stores no entry that couples two parts.
    drop_tol : u_kj is dropped if |u_kj| times the estimate of ||U^-1 e_k|| is not larger, l_ik likewise; 0 drops zeros.
    condest : k is deferred if its estimate for L or for U is larger, or not finite; may be inf.
    pivot_tol : k is deferred unless |d_k| is larger than pivot_tol times the rest of row and column k, and if its
        elimination would overflow.
    row_room, column_room (n,) integers : how many entries of row k of U, and of column k of L, are kept at most.
    Raises MatrixError (a ValueError) that names the first entry between parts, ParameterError if parts do not ascend.
    Cost: the multiplications; per row of U and column of L a sort of its entries and of what is subtracted from it.
        Memory: each part grows its own, twice the factors in all; 2 x (n, 5) numbers for each thread.
    """
    n, dtype, index = A.indptr.size - 1, A.data.dtype, A.indices.dtype
    real = dtype.type(0).real.dtype.type
    parts = _checked_parts(A, T, np.ascontiguousarray(parts, np.int64))
    interface = int(parts[-1])
    with np.errstate(over="ignore"):  # tolerances beyond what the dtype holds are as good as the largest number
        tolerances = real(drop_tol), min(real(condest), np.finfo(real).max), real(pivot_tol)
    rows, columns = (A.indptr, A.indices, A.data), (T.indptr, T.indices, T.data)
    room = np.ascontiguousarray(row_room, np.int64), np.ascontiguousarray(column_room, np.int64)
    deferred, d = np.zeros(n, np.uint8), np.zeros(n, dtype)
    U, L = _factor(interface, index, dtype), _factor(interface, index, dtype)
    one = dtype.type(1)

    def begin():
        return _row(n, index, dtype), _row(n, index, dtype), _bitmap(n)

    def make(t, workspace):
        limits = *tolerances, *room
        with Handed(4) as handed:
            counts = _part(
                parts[t], parts[t + 1], one, rows, columns, *limits, deferred, d, U, L, *workspace, handed.slots
            )
            l_rows, l_values, u_columns, u_values = (handed.take(e, (index, dtype)[e % 2]) for e in range(4))
        return (l_rows, l_values), (u_columns, u_values), counts

    made = shared_out(parts.size - 1, begin, make)
    kept = (_joined(n, parts, F.places, [part[f] for part in made], index, dtype) for f, F in enumerate((L, U)))
    counts = np.array([part[2] for part in made])
    return CroutFactors(
        deferred,
        interface,
        d,
        *(array for factor in kept for array in factor),
        *(float(x) for x in counts[:, :2].max(axis=0)),
        *(int(x) for x in counts[:, 2:].sum(axis=0)),
    )


def _checked_parts(A, T, parts):
    n = A.indptr.size - 1
    if T.indptr.size != n + 1 or T.data.size != A.data.size or T.data.dtype != A.data.dtype:
        raise MatrixError(f"T has {T.data.size} entries and A {A.data.size}; the transpose of A is needed.")
    if parts.size < 2 or parts[0] != 0 or parts[-1] > n or (np.diff(parts) < 0).any():
        raise ParameterError(f"parts = {parts}: at least two numbers that ascend from 0 to at most n = {n} are needed.")
    i, j = first_coupling(parts, A.indptr, A.indices)
    if i >= 0:
        s, t = np.searchsorted(parts, (i, j), side="right") - 1
        raise MatrixError(
            f"A stores an entry in row {i} and column {j}, between parts {s} and {t}; move one to the interface."
        )
    return parts


@compiled
def first_coupling(parts, indptr, indices):
    """The first entry (row, column) between two parts, or (-1, -1)."""
    interface = parts[-1]
    for t in range(parts.size - 1):
        start, stop = parts[t], parts[t + 1]
        for i in range(start, stop):
            for p in range(indptr[i], indptr[i + 1]):
                j = np.int64(indices[p])
                if j < start or (j >= stop and j < interface):
                    return i, j
    return np.int64(-1), np.int64(-1)


def _factor(n, index, dtype):
    return Factor(np.zeros((n, 4), np.int64), np.full(n, -1, index), np.empty(n, index), np.zeros(n, dtype))


def _row(n, index, dtype):
    return Row(np.zeros(n, dtype), np.empty(n, index), np.full(n, -1, index), np.empty(n, index), np.empty(n))


def _bitmap(n):
    return Bitmap(np.zeros((n >> 6) + 1, np.uint64), np.zeros((n >> 12) + 1, np.uint64))


def shared_out(items: int, begin: Callable[[], Any], make: Callable[[int, Any], Any]) -> list:
    """[make(t, workspace) for t in range(items)], claimed by the threads; begin() gives each its workspace."""
    counter, done = np.zeros(1, np.int64), np.zeros(items, np.int8)
    made: list[Any] = [None] * items
    failures: list[Exception] = []

    def work():
        workspace = None
        while (t := _claim(counter)) < items:
            try:
                workspace = workspace or begin()
                made[t] = make(t, workspace)
            except Exception as failure:
                failures.append(failure)
            finally:
                done[t] = 1

    run(work, items)
    _finish(done)
    if failures:
        raise failures[0]
    return made


@compiled
def _claim(counter):
    return fetch_add(counter, 0, 1)


@compiled
def _finish(done):
    wait_until_done(done, 0, done.size)


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
    row_room,
    column_room,
    deferred,
    d,
    U,
    L,
    Z,
    W,
    bitmap,
    slots,
):
    """Factor the rows start..stop - 1: step k makes row k of U in Z and column k of L in W.

    Leaves in the slots rows and values of L, columns and values of U, for `places`; returns what was counted.
    """
    indptr, t_indptr = A[0], T[0]
    u_columns = np.empty(indptr[stop] - indptr[start] + 1, A[1].dtype)
    u_values = np.empty(u_columns.size, A[2].dtype)
    l_rows = np.empty(t_indptr[stop] - t_indptr[start] + 1, A[1].dtype)
    l_values = np.empty(l_rows.size, A[2].dtype)
    u_used = l_used = 0
    unit = one.real
    l_largest = u_largest = unit - unit
    by_tolerance = by_limit = by_estimate = by_pivot = 0
    for k in range(start, stop):
        l_count = _members(L.head, L.follower, k, Z.sources)
        u_count = _members(U.head, U.follower, k, W.sources)
        l_size, u_size = abs(farthest(one, L.nu[k])), abs(farthest(one, U.nu[k]))
        rights = unders = 0
        if not (l_size <= condest and u_size <= condest):
            deferred[k] = ESTIMATE
            by_estimate += 1
        else:
            _sort(Z.sources, l_count, bitmap)
            _sort(W.sources, u_count, bitmap)
            rights = _remaining(k, A, deferred, d, L.places, l_values, l_count, U.places, u_columns, u_values, Z)
            unders = _remaining(k, T, deferred, d, U.places, u_values, u_count, L.places, l_rows, l_values, W)
            right, under = _largest(k, Z, rights, unit), _largest(k, W, unders, unit)
            if not _usable(abs(Z.x[k]), right, under, pivot_tol, unit):
                deferred[k] = PIVOT
                by_pivot += 1
        _advance(stop, deferred[k], L.places, L.head, L.follower, l_rows, l_values, Z.sources, l_count)
        _advance(stop, deferred[k], U.places, U.head, U.follower, u_columns, u_values, W.sources, u_count)
        if deferred[k]:
            _clear(Z, rights)
            _clear(W, unders)
            continue
        d[k] = Z.x[k]
        l_largest, u_largest = max(l_largest, l_size), max(u_largest, u_size)
        rights, s, c = _keep(k, d[k], max(unit, u_size), drop_tol, row_room[k], Z, rights, bitmap)
        unders, t, e = _keep(k, d[k], max(unit, l_size), drop_tol, column_room[k], W, unders, bitmap)
        by_tolerance += s + t
        by_limit += c + e
        u_columns, u_values = grown(u_columns, u_used, u_used + rights), grown(u_values, u_used, u_used + rights)
        l_rows, l_values = grown(l_rows, l_used, l_used + unders), grown(l_values, l_used, l_used + unders)
        u_used = _store(k, stop, one, Z, rights, U, u_columns, u_values, u_used)
        l_used = _store(k, stop, one, W, unders, L, l_rows, l_values, l_used)
    hand_over(l_rows, slots, 0)
    hand_over(l_values, slots, 1)
    hand_over(u_columns, slots, 2)
    hand_over(u_values, slots, 3)
    return l_largest, u_largest, by_tolerance, by_limit, by_estimate, by_pivot


@compiled
def _members(head, follower, k, out):
    """The list of k in `out`; returns its length."""
    count = 0
    i = head[k]
    while i >= 0:
        out[count] = i
        count += 1
        i = follower[i]
    return count


@compiled
def _sort(places, count, bitmap):
    sort_by_bitmap(places, np.uint64(count), bitmap.words, bitmap.pages)


@compiled
def farthest(one, nu):
    """1 - nu or -1 - nu, the larger: the next unknown of a triangular system with a right-hand side of signs."""
    return one - nu if nu.real <= 0 else -one - nu


@compiled
def feed(k, stop, one, nu, columns, values, begin, end):
    """nu += xi times row k, whose columns beyond k lie in the places from `begin` to before `end`, where they are below
    `stop`: others belong to other threads, too. See kernels/reference/crout.py:ahead for xi."""
    best = farthest(one, nu[k])
    other = -one - nu[k] if nu[k].real <= 0 else one - nu[k]
    far, near = abs(best), abs(other)
    for q in range(begin, end):
        if columns[q] < stop:
            j = np.uint64(columns[q])
            far += abs(nu[j] + best * values[q])
            near += abs(nu[j] + other * values[q])
    xi = other if near > far else best
    for q in range(begin, end):
        if columns[q] < stop:
            nu[np.uint64(columns[q])] += xi * values[q]


@compiled
def _remaining(k, A, deferred, d, source_places, source_values, count, places, columns, values, Z):
    """x = row k of A minus l_kp d_p times row p of U for each p in sources[:count], in the columns that are active.

    l_kp is what column p of L has at NEXT. With L and U exchanged and the transpose of A: column k.
    Returns the number of places that are touched.
    """
    x, touched, seen, sources = Z.x, Z.touched, Z.seen, Z.sources
    indptr, indices, a = A
    met = np.uint64(0)
    for q in range(np.uint64(indptr[k]), np.uint64(indptr[k + 1])):
        j = np.uint64(indices[q])
        if indices[q] >= k or deferred[j]:
            x[j] = a[q]
            seen[j] = k
            touched[met] = j
            met += np.uint64(1)
    for e in range(count):
        p = np.uint64(sources[e])
        factor = source_values[np.uint64(source_places[p, NEXT])] * d[p]
        met = _subtract(factor, places[p, BEGIN], places[p, FRONT], columns, values, k, x, touched, seen, met)
        met = _subtract(factor, places[p, NEXT], places[p, END], columns, values, k, x, touched, seen, met)
    return np.int64(met)


@compiled
def _subtract(factor, begin, end, columns, values, k, x, touched, seen, met):
    """x -= factor times the entries begin..end; returns how many places are touched now."""
    for q in range(np.uint64(begin), np.uint64(end)):
        j = np.uint64(columns[q])
        x[j] -= factor * values[q]
        if seen[j] != k:
            seen[j] = k
            touched[met] = j
            met += np.uint64(1)
    return met


@compiled
def _largest(k, Z, count, unit):
    """The largest magnitude but the pivot's; Inf if any is not finite."""
    x, touched = Z.x, Z.touched
    largest = unit - unit
    for e in range(count):
        size = abs(x[np.uint64(touched[e])])
        if not np.isfinite(size):
            return unit / (unit - unit)
        if size > largest and touched[e] != k:
            largest = size
    return largest


@compiled
def _usable(pivot, right, under, pivot_tol, unit):
    """Whether the pivot is large enough, and what its elimination computes is finite: quotients, and products."""
    spare = unit * SPARE
    largest = max(right, under)
    if not (np.isfinite(spare * pivot) and np.isfinite(spare * largest)) or pivot == 0 or pivot <= pivot_tol * largest:
        return False
    steepest = spare * (right / pivot)
    return np.isfinite(unit / pivot) and np.isfinite(spare * (largest / pivot)) and np.isfinite(steepest * under)


@compiled
def _advance(stop, defers, places, head, follower, columns, values, sources, count):
    """The turn of a column is over: its entries join those of columns deferred, or passed; its rows change lists.

    Without a function for a single row: its arrays would be counted, by atomic operations, at each entry.
    """
    for e in range(count):
        p = np.uint64(sources[e])
        q = np.uint64(places[p, NEXT])
        if defers:
            f = np.uint64(places[p, FRONT])
            columns[f], columns[q] = columns[q], columns[f]
            values[f], values[q] = values[q], values[f]
            places[p, FRONT] += 1
        places[p, NEXT] += 1
        q = np.uint64(places[p, NEXT])
        if places[p, NEXT] < places[p, END] and columns[q] < stop:
            j = np.uint64(columns[q])
            follower[p] = head[j]
            head[j] = p


@compiled
def _clear(Z, count):
    x, touched = Z.x, Z.touched
    for e in range(count):
        x[np.uint64(touched[e])] = 0


@compiled
def _keep(k, pivot, weight, drop_tol, room, Z, count, bitmap):
    """x = x / pivot where that, times weight, is larger than drop_tol: of these at most `room`, sorted; elsewhere 0.

    Returns the number of entries kept, and those that were dropped by tolerance and by the fill limit.
    """
    x, touched, size = Z.x, Z.touched, Z.size
    x[k] = 0
    kept = by_tolerance = 0
    for e in range(count):
        j = np.uint64(touched[e])
        v = divide(x[j], pivot)
        magnitude = abs(v)
        if magnitude * weight > drop_tol:
            x[j] = v
            touched[kept] = j
            size[kept] = magnitude
            kept += 1
        else:
            by_tolerance += x[j] != 0
            x[j] = 0
    if kept <= room:
        _sort(touched, kept, bitmap)
        return kept, by_tolerance, 0
    if room <= 0:
        for e in range(kept):
            x[np.uint64(touched[e])] = 0
        return 0, by_tolerance, kept
    found = kept
    cut = kth_largest(size, kept, room)
    ties, kept = room, 0
    for e in range(found):
        j = np.uint64(touched[e])
        magnitude = abs(x[j])
        if magnitude >= cut:
            touched[kept] = j
            kept += 1
            ties -= magnitude > cut
        else:
            x[j] = 0
    _sort(touched, kept, bitmap)
    if kept > room:
        equal, kept = kept, 0
        for e in range(equal):
            j = np.uint64(touched[e])
            tie = abs(x[j]) == cut
            if tie and ties <= 0:
                x[j] = 0
                continue
            ties -= tie
            touched[kept] = j
            kept += 1
    return kept, by_tolerance, found - kept


@compiled
def _store(k, stop, one, Z, count, F, columns, values, used):
    """Row k goes to the places from `used` on, to the lists and to the estimates; x becomes 0. Returns their end."""
    x, touched, places = Z.x, Z.touched, F.places
    front = used
    for e in range(count):
        j = np.uint64(touched[e])
        v = x[j]
        x[j] = 0
        columns[used + e] = j
        values[used + e] = v
        front += touched[e] < k
    feed(k, stop, one, F.nu, columns, values, front, used + count)
    places[k, BEGIN] = used
    places[k, FRONT] = places[k, NEXT] = front
    places[k, END] = used + count
    if front < used + count and columns[front] < stop:
        j = np.uint64(columns[front])
        F.follower[k] = F.head[j]
        F.head[j] = k
    return used + count


def _joined(n, parts, places, made, index, dtype):
    """(indptr, indices, data) of all parts, sorted."""
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(places[:, END] - places[:, BEGIN], out=indptr[1 : places.shape[0] + 1])
    indptr[places.shape[0] + 1 :] = indptr[places.shape[0]]
    indices, data = np.empty(indptr[n], index), np.empty(indptr[n], dtype)

    def begin():
        return np.empty(n, dtype), _bitmap(n)

    def make(t, workspace):
        _assemble(parts[t], parts[t + 1], places, *made[t], indptr, indices, data, *workspace)

    shared_out(parts.size - 1, begin, make)
    return indptr, indices, data


@compiled
def _assemble(start, stop, places, columns, values, indptr, out_columns, out_values, x, bitmap):
    for k in range(start, stop):
        first, m = places[k, BEGIN], indptr[k]
        count = indptr[k + 1] - m
        ascending = True
        for e in range(count):
            out_columns[m + e] = columns[first + e]
            out_values[m + e] = values[first + e]
            ascending &= e == 0 or columns[first + e - 1] < columns[first + e]
        if not ascending:
            for e in range(count):
                x[np.uint64(columns[first + e])] = values[first + e]
            _sort(out_columns[m : m + count], count, bitmap)
            for e in range(count):
                out_values[m + e] = x[np.uint64(out_columns[m + e])]


def schur_complement(A, factors: CroutFactors, drop_tol) -> SchurComplement:
    """S = C - L_C D U_C on the rows and columns that are no pivots, in A's order; see kernels/reference/crout.py.

    drop_tol : off the diagonal s_ij is dropped where |s_ij| <= drop_tol min(r_i, c_j), r_i and c_j the largest
        magnitudes of row i and column j: no row and no column loses its largest entry.
    Cost: a pass over A, L and U, and the multiplications, over the threads. An entry that is small for its row waits
    for the largest of its column, unless the thread that made it has already met one that is large enough: so what is
    kept does not depend on the threads, and the room before the dropping stays near that of S.
    """
    n, dtype, index = factors.n, A.data.dtype, A.indices.dtype
    rows = np.flatnonzero((factors.deferred != 0) | (np.arange(n) >= factors.interface))
    m, real = rows.size, dtype.type(0).real.dtype.type
    if m == 0:
        nothing = np.empty(0, np.int64)
        return SchurComplement(np.zeros(1, np.int64), A.indices[:0].copy(), A.data[:0].copy(), nothing, -1)
    number = np.full(n, -1, index)
    number[rows] = np.arange(m)
    rows = rows.astype(np.int64)
    u_starts, l_starts, work = np.zeros(n + 1, np.int64), np.zeros(m + 1, np.int64), np.ones(m, np.int64)
    l_columns = factors.l_indptr, factors.l_indices, factors.l_data
    with Handed(4) as handed:
        _columns_left(number, factors.u_indptr, factors.u_indices, factors.u_data, u_starts, handed.slots)
        _rows_left(number, *l_columns, factors.d, u_starts, l_starts, work, handed.slots)
        U, L = ((at, handed.take(e, index), handed.take(e + 1, dtype)) for e, at in ((0, u_starts), (2, l_starts)))
    total = np.cumsum(work)
    blocks = max(1, int(total[-1] // BLOCK))
    inner = np.searchsorted(total, np.arange(1, blocks) * (total[-1] / blocks)) + 1
    items = np.minimum(np.unique(np.concatenate([[0], inner, [m]])), m)
    indptr = np.zeros(m + 1, np.int64)
    unit = real(1)
    with np.errstate(over="ignore"):
        drop_tol = real(drop_tol)

    row_size, column_sizes = np.zeros(m, real), []

    def begin():
        column_sizes.append(np.zeros(m, real))
        return row_size, column_sizes[-1], indptr, _row(m, index, dtype), _bitmap(m)

    def make(b, workspace):
        S = A.indptr, A.indices, A.data
        with Handed(2) as handed:
            used, bad = _schur_rows(
                items[b], items[b + 1], S, number, rows, L, U, drop_tol, unit, *workspace, handed.slots
            )
            return handed.take(0, index)[:used], handed.take(1, dtype)[:used], bad

    made = shared_out(items.size - 1, begin, make)
    column_size = np.max(column_sizes, axis=0)

    def drop(b, _):
        columns, values, _ = made[b]
        kept = _drop(items[b], items[b + 1], row_size, column_size, drop_tol, indptr, columns, values)
        return columns[:kept], values[:kept]

    left = shared_out(items.size - 1, lambda: True, drop)
    np.cumsum(indptr, out=indptr)
    bad = [block[2] for block in made if block[2] >= 0]
    indices, data = (np.concatenate([block[f] for block in left]) for f in (0, 1))
    return SchurComplement(indptr, indices, data, rows, int(bad[0]) if bad else -1)


@compiled
def _columns_left(number, indptr, indices, data, starts, slots):
    """The rows of U in the columns that are left, by their numbers there.

    starts (n + 1,) : zeros; out.  Columns and values come in the slots 0 and 1.
    """
    n = number.size
    total = 0
    for k in range(n):
        for p in range(indptr[k], indptr[k + 1]):
            total += number[np.uint64(indices[p])] >= 0
        starts[k + 1] = total
    columns, values = np.empty(total, indices.dtype), np.empty(total, data.dtype)
    used = np.uint64(0)
    for p in range(np.uint64(0), np.uint64(indptr[n])):
        j = number[np.uint64(indices[p])]
        if j >= 0:
            columns[used] = j
            values[used] = data[p]
            used += np.uint64(1)
    hand_over(columns, slots, 0)
    hand_over(values, slots, 1)


@compiled
def _rows_left(number, indptr, indices, data, d, u_indptr, starts, work, slots):
    """L_C D by rows, columns in A's numbering, and the multiplications that each row of S takes.

    starts (m + 1,), zeros, work (m,), ones : out.  Columns and values come in the slots 2 and 3.
    """
    m = work.size
    for p in range(np.uint64(0), np.uint64(indptr[number.size])):
        r = number[np.uint64(indices[p])]
        if r >= 0:
            starts[r + 1] += 1
    for r in range(m):
        starts[r + 1] += starts[r]
    place = starts[:-1].copy()
    columns, values = np.empty(starts[m], indices.dtype), np.empty(starts[m], data.dtype)
    for k in range(number.size):
        for p in range(np.uint64(indptr[k]), np.uint64(indptr[k + 1])):
            r = number[np.uint64(indices[p])]
            if r >= 0:
                columns[place[r]] = k
                values[place[r]] = data[p] * d[k]
                place[r] += 1
                work[r] += u_indptr[k + 1] - u_indptr[k] + 4
    hand_over(columns, slots, 2)
    hand_over(values, slots, 3)


@compiled
def _schur_rows(first, last, A, number, rows, L, U, drop_tol, unit, row_size, column_size, counts, Z, bitmap, slots):
    """Rows first..last - 1 of S: indices and values in the slots, lengths in counts[1:].

    Returns how many entries there are, and the first row with one whose magnitude is not finite, or -1.
    row_size (m,) : the largest of each of these rows, on return.  column_size (m,) : of each column, of all rows that
    have been made with this workspace; entries that are too small even for these are dropped.
    """
    indptr, indices, a = A
    l_indptr, l_columns, l_values = L
    u_indptr, u_columns, u_values = U
    x, touched, seen = Z.x, Z.touched, Z.seen
    columns = np.empty(indptr[rows[last - 1] + 1] - indptr[rows[first]] + 2 * (last - first), u_columns.dtype)
    values = np.empty(columns.size, a.dtype)
    used, bad = 0, -1
    for r in range(first, last):
        seen[r] = r
        touched[0] = r
        met = np.uint64(1)
        for q in range(np.uint64(indptr[rows[r]]), np.uint64(indptr[rows[r] + 1])):
            j = np.int64(number[np.uint64(indices[q])])
            if j >= 0:
                x[j] = a[q]
                seen[j] = r
                if j != r:
                    touched[met] = j
                    met += np.uint64(1)
        for p in range(np.uint64(l_indptr[r]), np.uint64(l_indptr[r + 1])):
            k = np.uint64(l_columns[p])
            end = u_indptr[k + np.uint64(1)]
            met = _subtract(l_values[p], u_indptr[k], end, u_columns, u_values, r, x, touched, seen, met)
        count = np.int64(met)
        largest = unit - unit
        for e in range(count):
            j = np.uint64(touched[e])
            size = abs(x[j])
            if not np.isfinite(size) and bad < 0:
                bad = r
            largest = max(largest, size)
            column_size[j] = max(column_size[j], size)
        row_size[r] = largest
        kept = 0
        for e in range(count):
            j = np.uint64(touched[e])
            if abs(x[j]) <= drop_tol * min(largest, column_size[j]) and touched[e] != r:
                x[j] = 0
            else:
                touched[kept] = j
                kept += 1
        _sort(touched, kept, bitmap)
        columns, values = grown(columns, used, used + kept), grown(values, used, used + kept)
        for e in range(kept):
            j = np.uint64(touched[e])
            columns[used + e] = touched[e]
            values[used + e] = x[j]
            x[j] = 0
        used += kept
        counts[r + 1] = kept
    hand_over(columns, slots, 0)
    hand_over(values, slots, 1)
    return used, bad


@compiled
def _drop(first, last, row_size, column_size, drop_tol, counts, columns, values):
    """Drop from the (columns, values) of rows first..last - 1, in place, what is small; returns how many are left."""
    begin, used = np.uint64(0), np.uint64(0)
    for r in range(first, last):
        end = begin + np.uint64(counts[r + 1])
        start = used
        for q in range(begin, end):
            j = np.uint64(columns[q])
            if not abs(values[q]) <= drop_tol * min(row_size[r], column_size[j]) or columns[q] == r:
                columns[used] = columns[q]
                values[used] = values[q]
                used += np.uint64(1)
        counts[r + 1] = used - start
        begin = end
    return used
