"""Shared by both forms of Crout's elimination: rows in the making, kept rows, and the estimates of their growth.

The general form (`crout`) makes rows of U and columns of L, the symmetric one (`crout_symmetric`) rows of U. Threads
factor parts of the matrix, one thread a part, in the order of the dependencies. A part receives the active entries of
the rows of the parts below it. Its reads and writes do not depend on the threads, and sums run in ascending order of
the eliminated unknown, so the bits are the same on any number of threads. Steps write without branches that would often
be mispredicted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from finelu import deadline
from finelu.errors import MatrixError, ParameterError, TooManyEntries
from finelu.kernels.cpu.fill import first_coupling
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.arrays import Handed
from finelu.kernels.cpu.runtime.indices import ONE
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.prefetch import prefetch
from finelu.kernels.cpu.runtime.sort import kth_largest, sort_by_bitmap
from finelu.threads import each

# A call in compiled code passes each array as seven numbers, which takes about as long as the work on a short row.
inlined = partial(compiled, forceinline=True)

ESTIMATE, PIVOT = 1, 2  # why a row and column are deferred
BEGIN, FRONT, NEXT, END = range(4)  # see Factor
SPARE = 8  # entries of the factors of a part per entry of A; real matrices usually had fewer


class Factor(NamedTuple):
    """The state of the rows of U, or the columns of L, while they are made; each part uses its own slice.

    places (n, 4) : where a row lies in the memory of its part: entries BEGIN..FRONT are in columns that were deferred,
        FRONT..NEXT in columns whose turn is over, NEXT..END, sorted, in those to come.
    head, follower (n,) : lists, as in Crout's ILUT: that of column j holds the rows whose entry at NEXT is in column j.
    nu (n,) : the contributions of the entries of a column to its estimate.  xi (n,) : the factors of a row's entries in
        these.
    """

    places: np.ndarray
    head: np.ndarray
    follower: np.ndarray
    nu: np.ndarray
    xi: np.ndarray


class Row(NamedTuple):
    """A thread's memory for a row, or column, in the making.

    x (n,) : its values, 0 between steps.  touched (2 n + 1,) : the places that are in use; a place stands there more
    than once if its value has become 0 and changed again.  seen (n,) : marks of `distinct`.  sources (n,) : the earlier
    rows in a list.  terms (n,), factors (n + 1,) : those to subtract, and how often; factors are then the quotients of
    `keep`.  size (n + 1,) float64.
    words (n / 64,), pages (n / 4096,) : to sort places in, zero between uses.
    """

    x: np.ndarray
    touched: np.ndarray
    seen: np.ndarray
    sources: np.ndarray
    terms: np.ndarray
    factors: np.ndarray
    size: np.ndarray
    words: np.ndarray
    pages: np.ndarray


def new_factor(n, index, dtype) -> Factor:
    places, head, follower = np.zeros((n, 4), np.int64), np.full(n, -1, index), np.empty(n, index)
    return Factor(places, head, follower, np.zeros(n, dtype), np.zeros(n, dtype))


def new_row(n, index, dtype) -> Row:
    # zeros take no memory before they are written, and a part of the matrix writes few
    x, touched, seen = np.zeros(n, dtype), np.empty(2 * n + 1, index), np.zeros(n, index)
    sources, terms = np.empty(n, index), np.empty(n, index)
    return Row(x, touched, seen, sources, terms, np.empty(n + 1, dtype), np.empty(n + 1), *new_bitmap(n))


def new_bitmap(n):
    return np.zeros((n >> 6) + 1, np.uint64), np.zeros((n >> 12) + 1, np.uint64)


class Workspaces:
    """Workspaces of threads: each is made once, and lent again after `back`.  all : those made so far."""

    def __init__(self, make: Callable[[], Any]):
        self._make, self._free = make, []
        self.all: list[Any] = []

    def one(self):
        try:
            return self._free.pop()
        except IndexError:
            self.all.append(found := self._make())
            return found

    def back(self) -> None:
        """No thread uses its workspace any more."""
        self._free = [*self.all]


def tolerances(real, drop_tol, condest, pivot_tol, least):
    """The four in the real type of the matrix. A value beyond its range is as good as its largest number."""
    with np.errstate(over="ignore"):
        return real(drop_tol), min(real(condest), np.finfo(real).max), real(pivot_tol), real(least)


def factor_parts(carried: Carried, part: Callable[..., tuple], n: int, most: int | None):
    """Factor all parts, those at the same time that do not depend on each other.

    part(start, stop, below, workspace, slots, most, halt) : the kernel for the rows start..stop - 1. below: of
        `Carried.to`; workspace: two rows; slots: of `Handed`, for columns and values of each factor. Returns seven
        numbers, the last the entries that it has made.
    Returns these numbers (parts, 7). Raises TooManyEntries beyond `most` entries in all; None: no limit.
    """
    parts, index, dtype = carried.parts, carried.index, carried.dtype
    counts, limit = np.zeros((parts.above.size, 7)), 2**62 if most is None else most
    workspaces = Workspaces(lambda: (new_row(n, index, dtype), new_row(n, index, dtype)))

    def check():
        deadline.check()
        if counts[:, 6].sum() > limit:
            raise TooManyEntries(most)

    def make(t, workspace):
        check()
        below, places = carried.to(t), range(0, 2 * len(carried.factors), 2)
        with Handed(2 * len(carried.factors)) as handed:
            own = *parts.starts[t : t + 2], below, workspace
            counts[t] = part(*own, handed.slots, limit, deadline.halt())
            check()
            carried.take(t, [(handed.take(e, index), handed.take(e + 1, dtype)) for e in places])

    for turn in parts.turns:
        each(turn.size, lambda k, workspace, turn=turn: make(turn[k], workspace), workspaces.one)
        workspaces.back()
    check()
    return counts


@compiled
def room_for(start, stop, indptr, room):
    """The number of entries of rows start..stop - 1 that get memory at first; an unused part of it is never taken."""
    limit, most = SPARE * (indptr[stop] - indptr[start]) + 1, np.int64(1)
    for k in range(start, stop):
        most += min(room[k], limit)
        if most >= limit:
            return np.int64(limit)
    return most


class Parts(NamedTuple):
    """Parts of the matrix, which are the nodes of a forest: the elimination of a part changes only parts above it.

    starts (p + 1,) : part t has the rows and columns starts[t]..starts[t + 1] - 1; those from starts[p] on are the
        interface.  above (p,) : the part next above, of a larger number, or -1.
    """

    starts: np.ndarray
    above: np.ndarray

    @property
    def turns(self) -> list[np.ndarray]:
        """The parts that can be factored at the same time, in their order."""
        turn = np.zeros(self.above.size, np.int64)
        for t, above in enumerate(self.above):
            if above >= 0:
                turn[above] = max(turn[above], turn[t] + 1)
        return [np.flatnonzero(turn == k) for k in range(turn.max(initial=-1) + 1)]


def checked_parts(A, parts, above) -> Parts:
    n, parts = A.indptr.size - 1, np.ascontiguousarray(parts, np.int64)
    if parts.size < 2 or parts[0] != 0 or parts[-1] > n or (np.diff(parts) < 0).any():
        raise ParameterError(f"parts = {parts}: at least two numbers that ascend from 0 to at most n = {n} are needed.")
    count = parts.size - 1
    above = np.full(count, -1) if above is None else np.ascontiguousarray(above, np.int64)
    if above.shape != (count,) or ((above != -1) & (above <= np.arange(count))).any() or (above >= count).any():
        raise ParameterError(f"above = {above}: of each of {count} parts a later one, or -1, is needed.")
    i, j = first_coupling(parts, above, A.indptr, A.indices)
    if i >= 0:
        s, t = np.searchsorted(parts, (i, j), side="right") - 1
        raise MatrixError(
            f"A stores an entry in row {i} and column {j}, between parts {s} and {t}; move one to the interface."
        )
    return Parts(parts, above)


class Carried:
    """The rows of U, and columns of L, with entries in columns of the parts above, which are passed to these.

    factors : U, or L and U; where a row of one is handed on, so is that of the other.  e (n,) : not 0 where a row and
    the next are one pivot: where one of them is handed on, so is the other.
    """

    def __init__(self, parts: Parts, factors: tuple[Factor, ...], index, dtype, e):
        self.parts, self.factors, self.index, self.dtype, self.e = parts, factors, index, dtype, e
        count = parts.above.size
        self.below: list[list[int]] = [[] for _ in range(count)]
        for t in np.flatnonzero(parts.above >= 0):
            self.below[parts.above[t]].append(t)
        self.rows: list[Any] = [None] * count
        self.lengths = np.zeros((count, len(factors)), np.int64)
        self.made: list[Any] = [None] * count
        self.extents = np.zeros((len(factors), int(parts.starts[-1]), 2), np.int64)

    def to(self, t: int) -> tuple[Any, ...]:
        """Columns and values, factor after factor, of the rows that part t needs from the parts below; puts these rows
        into its lists."""
        below, given = self.below[t], []
        rows = np.sort(np.concatenate([self.rows[s] for s in below])) if below else np.empty(0, np.int64)
        for f, factor in enumerate(self.factors):
            total = int(self.lengths[below, f].sum())
            columns, values, used = np.empty(total, self.index), np.empty(total, self.dtype), 0
            for s in below:
                used = _carry(self.rows[s], factor.places, *self.made[s][f], columns, values, used)
            _enlist(rows, self.parts.starts[t + 1], *factor, columns, values)
            given += [columns, values]
        self.rows[t] = rows
        return tuple(given)

    def take(self, t: int, made: list[tuple[Any, Any]]) -> None:
        """Part t is made: columns and values of the rows of each factor."""
        (start, stop), interface = self.parts.starts[t : t + 2], int(self.parts.starts[-1])
        self.made[t] = made
        for f, factor in enumerate(self.factors):
            self.extents[f, start:stop] = factor.places[start:stop, (BEGIN, END)]
        if self.parts.above[t] >= 0:
            rows = np.concatenate([self.rows[t], np.arange(start, stop)])
            more = np.zeros(rows.size, np.bool_)
            for factor, (columns, _) in zip(self.factors, made, strict=True):
                _has_more(rows, interface, factor.places, columns, self.e, more)
            self.rows[t] = rows[more]
            for f, factor in enumerate(self.factors):
                self.lengths[t, f] = _active_entries(self.rows[t], factor.places)

    def joined(self, n: int) -> list[Any]:
        """indptr, indices, data, of each factor: all parts, sorted."""
        found, starts, stop = [], self.parts.starts, self.extents.shape[1]
        for f, extents in enumerate(self.extents):
            indptr = np.zeros(n + 1, np.int64)
            np.cumsum(extents[:, 1] - extents[:, 0], out=indptr[1 : stop + 1])
            indptr[stop + 1 :] = indptr[stop]
            indices, data = np.empty(indptr[n], self.index), np.empty(indptr[n], self.dtype)

            def make(t, workspace, f=f, extents=extents, out=(indptr, indices, data)):
                _assemble(starts[t], starts[t + 1], extents, *self.made[t][f], *out, *workspace)
                self.made[t][f] = None  # otherwise all entries would be in memory twice

            each(self.parts.above.size, make, lambda: (np.empty(n, self.dtype), *new_bitmap(n)))
            found += [indptr, indices, data]
        return found


@compiled
def _has_more(rows, interface, places, columns, e, more):
    """more[r] = True where rows[r], or the other of its pivot, has entries in columns of parts whose turn comes."""
    for r in range(rows.size):
        p = rows[r]
        other = p + 1 if e[p] != 0 else p - 1 if p > 0 and e[p - 1] != 0 else p
        for q in (p, other):
            at = places[q, NEXT]
            if at < places[q, END] and columns[at] < interface:
                more[r] = True


@compiled
def _active_entries(rows, places):
    total = 0
    for p in rows:
        total += places[p, FRONT] - places[p, BEGIN] + places[p, END] - places[p, NEXT]
    return total


@compiled
def _carry(rows, places, columns, values, out_columns, out_values, used):
    """Copy the active entries of the rows to the places from `used` on; returns the end of these."""
    for p in rows:
        begin = used
        for q in range(places[p, BEGIN], places[p, FRONT]):
            out_columns[used], out_values[used] = columns[q], values[q]
            used += 1
        front = used
        for q in range(places[p, NEXT], places[p, END]):
            out_columns[used], out_values[used] = columns[q], values[q]
            used += 1
        places[p, BEGIN], places[p, FRONT], places[p, NEXT], places[p, END] = begin, front, front, used
    return used


@compiled
def _enlist(rows, stop, places, head, follower, nu, xi, columns, values):
    """The rows, ascending, go to the lists of the columns before `stop`, and to their estimates."""
    for p in rows:
        at, end = places[p, NEXT], places[p, END]
        for q in range(at, end):
            if columns[q] >= stop:
                break
            nu[columns[q]] += xi[p] * values[q]
        if at < end and columns[at] < stop:
            follower[p] = head[columns[at]]
            head[columns[at]] = p


@inlined
def members(k, head, follower, places, columns, values, out, words, pages):
    """The rows in the list of column k, sorted, in `out`; prefetches their entries. Returns their number."""
    count = np.uint64(0)
    i = head[k]
    while i >= 0:
        out[count] = i
        count += ONE
        prefetch(places, i)
        i = follower[np.uint64(i)]
    for e in range(count):
        q = places[np.uint64(out[e]), NEXT]
        prefetch(columns, q)
        prefetch(values, q)
        prefetch(values, q + 8)
    sort_by_bitmap(out, count, words, pages)
    return np.int64(count)


@inlined
def row_of(k, indptr, indices, data, deferred, x, touched):
    """Row k of A in the active columns, in x. Returns the number of touched places."""
    met = np.uint64(0)
    for q in range(np.uint64(indptr[k]), np.uint64(indptr[k + 1])):
        j = np.uint64(indices[q])
        if indices[q] >= k or deferred[j]:
            x[j] = data[q]
            touched[met] = j
            met += ONE
    return met


@inlined
def subtract(k, count, sources, factors, places, columns, values, x, touched, seen, met):
    """x -= factors[e] times the kept row sources[e], in the active columns, for e before `count`.

    Returns the number of touched places, which were `met` before. A value of 0 counts as not yet touched: to keep marks
    of what was touched takes half as long again.
    """
    most = np.uint64(x.size)  # a row has no more entries than that, and `touched` room for twice as many
    for e in range(np.uint64(count)):
        if met > most:
            met = distinct(k, touched, met, seen)
        p = np.uint64(sources[e])
        factor = factors[e]
        for first in range(BEGIN, END, 2):  # BEGIN to FRONT, and NEXT to END
            for q in range(np.uint64(places[p, first]), np.uint64(places[p, first + 1])):
                j = np.uint64(columns[q])
                before = x[j]
                x[j] = before - factor * values[q]
                touched[met] = j
                met += np.uint64(before == 0)
    return np.int64(met)


@inlined
def distinct(k, touched, count, seen):
    """Leave each place once in touched[:count], and ~k in its `seen`. Returns the number of places."""
    for e in range(np.uint64(count)):
        seen[np.uint64(touched[e])] = k
    met = np.uint64(0)
    for e in range(np.uint64(count)):
        j = np.uint64(touched[e])
        touched[met] = touched[e]
        met += np.uint64(seen[j] != ~k)
        seen[j] = ~k
    return met


@inlined
def largest_of(k, unit, x, touched, count):
    """The largest magnitude in x, x[k] left out; Inf if any is not finite."""
    largest, finite, here = unit - unit, np.isfinite(abs(x[k])), x[k]
    x[k] = 0
    for e in range(np.uint64(count)):
        size = abs(x[np.uint64(touched[e])])
        finite &= np.isfinite(size)
        largest = max(largest, size)
    x[k] = here
    return largest if finite else unit / (unit - unit)


@inlined
def usable(pivot, right, under, pivot_tol, least, unit):
    """Whether a pivot of this magnitude is large enough, and the quotients and products of its elimination are finite.

    right, under : the largest magnitudes of the rest of its row and column.  unit : 1 in their type.
    """
    spare = (unit + unit) * (unit + unit)  # the sums inside a complex product or quotient are larger by less than this
    largest = max(right, under)
    if not (np.isfinite(spare * pivot) and np.isfinite(spare * largest)) or pivot <= max(least, pivot_tol * largest):
        return False
    steepest = spare * (right / pivot)
    return np.isfinite(unit / pivot) and np.isfinite(spare * (largest / pivot)) and np.isfinite(steepest * under)


@inlined
def clear(x, touched, count):
    for e in range(np.uint64(count)):
        x[np.uint64(touched[e])] = 0


@inlined
def farthest(one, nu):
    """1 - nu or -1 - nu, the larger: the next unknown of a triangular system with a right-hand side of signs.

    one : 1 in the type of nu.
    """
    return one - nu if nu.real <= 0 else -one - nu


@inlined
def advance(stop, sources, count, places, head, follower, columns):
    """The turn of a column is over for the rows sources[:count]: they go to the lists of their next columns."""
    for e in range(np.uint64(count)):
        p = np.uint64(sources[e])
        q = np.uint64(places[p, NEXT]) + ONE
        places[p, NEXT] = q
        if q < np.uint64(places[p, END]) and columns[q] < stop:
            j = np.uint64(columns[q])
            follower[p] = head[j]
            head[j] = p


@inlined
def defer(sources, count, places, columns, values):
    """The column that the rows sources[:count] have just passed goes to their deferred columns."""
    for e in range(np.uint64(count)):
        p = np.uint64(sources[e])
        q, f = np.uint64(places[p, NEXT] - 1), np.uint64(places[p, FRONT])
        columns[q], columns[f] = columns[f], columns[q]
        values[q], values[f] = values[f], values[q]
        places[p, FRONT] += 1


@inlined
def keep(k, pivot, weight, drop_tol, room, x, touched, count, quotients, size, words, pages):
    """x = x / pivot where that, times weight, is larger than drop_tol: of these `room` at most, sorted; elsewhere 0.

    Returns the numbers of entries kept, dropped by tolerance, and dropped by the fill limit.
    """
    x[k] = 0
    large, kept, found = np.uint64(0), np.uint64(0), np.uint64(0)
    limit = _surely_small(abs(pivot), weight, drop_tol)
    for e in range(np.uint64(count)):
        j = np.uint64(touched[e])
        v = x[j]
        touched[large] = j
        quotients[large] = v
        large += np.uint64(not abs(v) <= limit)
        found += np.uint64(v != 0)
        x[j] = 0  # the next time that this place stands there, it is no entry
    for e in range(large):
        j = np.uint64(touched[e])
        v = divide(quotients[e], pivot)
        magnitude = abs(v)
        touched[kept] = j
        size[kept] = magnitude
        if magnitude * weight > drop_tol:
            x[j] = v
            kept += ONE
    by_tolerance = np.int64(found) - np.int64(kept)
    if np.int64(kept) <= room:
        sort_by_bitmap(touched, kept, words, pages)
        return np.int64(kept), by_tolerance, 0
    if room <= 0:
        clear(x, touched, kept)
        return 0, by_tolerance, np.int64(kept)
    found = np.int64(kept)
    cut = kth_largest(size, found, room)
    ties, kept = room, np.uint64(0)
    for e in range(np.uint64(found)):
        j = np.uint64(touched[e])
        magnitude = abs(x[j])
        if magnitude >= cut:
            touched[kept] = j
            kept += ONE
            ties -= magnitude > cut
        else:
            x[j] = 0
    sort_by_bitmap(touched, kept, words, pages)
    if np.int64(kept) > room:
        equal, kept = kept, np.uint64(0)
        for e in range(equal):
            j = np.uint64(touched[e])
            tie = abs(x[j]) == cut
            if tie and ties <= 0:
                x[j] = 0
                continue
            ties -= tie
            touched[kept] = j
            kept += ONE
    return np.int64(kept), by_tolerance, found - np.int64(kept)


@inlined
def _surely_small(pivot, weight, drop_tol):
    """A magnitude up to which x / pivot, times weight, is at most drop_tol however the two are rounded: most entries
    need no division."""
    one = weight / weight
    limit = drop_tol * pivot / weight * (one - one / 2**16)
    return limit if one / 2**96 < limit < np.inf else one - one


@inlined
def store(k, stop, one, x, touched, count, places, head, follower, nu, weights, columns, values, used):
    """Row k, now in x, goes to the places from `used` on, to the lists and to the estimates; x becomes 0.

    Columns from `stop` on belong to other parts, or to the interface: they get it later, or never. Returns the end of
    the used places.
    """
    used = np.uint64(used)
    end = used + np.uint64(count)
    front = used
    for e in range(np.uint64(count)):
        j = np.uint64(touched[e])
        columns[used + e] = j
        values[used + e] = x[j]
        x[j] = 0
        front += np.uint64(touched[e] < k)
    last = end
    while last > front and columns[last - ONE] >= stop:
        last -= ONE
    weights[k] = xi = _ahead(one, nu[k], nu, columns, values, front, last)
    for q in range(front, last):
        nu[np.uint64(columns[q])] += xi * values[q]
    places[k, BEGIN], places[k, FRONT], places[k, NEXT], places[k, END] = used, front, front, end
    if front < last:
        j = np.uint64(columns[front])
        follower[k] = head[j]
        head[j] = k
    return np.int64(end)


@inlined
def _ahead(one, here, nu, columns, values, begin, end):
    """See kernels/reference/crout.py:ahead."""
    best = farthest(one, here)
    other = -one - here if here.real <= 0 else one - here
    far, near = abs(best), abs(other)
    for q in range(begin, end):
        j = np.uint64(columns[q])
        far += abs(nu[j] + best * values[q])
        near += abs(nu[j] + other * values[q])
    return other if near > far else best


@compiled
def _assemble(start, stop, extents, columns, values, indptr, out_columns, out_values, x, words, pages):
    for k in range(np.uint64(start), np.uint64(stop)):
        first, m = np.uint64(extents[k, 0]), np.uint64(indptr[k])
        count = np.uint64(indptr[k + ONE]) - m
        ascending, before = True, -1
        for e in range(count):
            j = columns[first + e]
            out_columns[m + e] = j
            out_values[m + e] = values[first + e]
            ascending &= before < j
            before = j
        if not ascending:
            for e in range(count):
                x[np.uint64(columns[first + e])] = values[first + e]
            sort_by_bitmap(out_columns[m : m + count], count, words, pages)
            for e in range(count):
                out_values[m + e] = x[np.uint64(out_columns[m + e])]
