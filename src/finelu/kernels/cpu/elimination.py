"""ILU(0) and IC(0): plans that keep the analysis of a pattern, and the numeric factorizations that threads share.

Most of the work of an elimination is to find the columns that two rows share. They depend on the pattern only, so the
analysis stores them: the numeric part is then a list of multiplications, without a comparison. If that list would be
much longer than the matrix (long rows that share nearly all columns), or would be used only once, a row is scattered
into a dense vector instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from finelu import deadline
from finelu.errors import ParameterError, meant
from finelu.kernels.cpu._ic0_columns import columns_that_pay, ic0_by_columns
from finelu.kernels.cpu._waiting import OVERLAP, Waiting, publish, wait_for_all, wait_for_row, waiting
from finelu.kernels.cpu.levels import levels
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.arrays import renumbered
from finelu.kernels.cpu.runtime.atomics import fetch_add, fetch_min
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import by_ordered_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.row_blocks import COPY, threads_for
from finelu.kernels.cpu.runtime.schedule import Schedule, could_pay, forgo, schedule, sequential
from finelu.kernels.cpu.runtime.search import LONG, LONGER, place_of
from finelu.kernels.cpu.runtime.workers import run
from finelu.kernels.operands import Triangle

ILU0_VARIANTS = IC0_VARIANTS = MILU0_VARIANTS = ("sequential", "levels")

# ns for a row, for an entry of it, and for a subtraction; measured on two cores of an AMD EPYC
ROW, ENTRY, UPDATE = 3.0, 1.0, 0.6
SCATTERED = 3.0  # how much longer a row takes in level order than in natural order
SEARCH = 20.0  # ns an entry below the diagonal that the search for a schedule takes
REPEATED = 12  # factorizations without list and schedule, which take about as long as the search for both
FAR_SHORTER = 4.0  # times, by which a search in the shorter of two rows beats a look at all of the other
UNEVEN_ROWS = 8  # times the mean length of a row, beyond which rows are so different that their work is counted
LOOK = np.uint64(7)  # a look at the time costs up to 3% of a short row
MEETINGS_PER_ENTRY = 32  # beyond, rows are scattered: the list would take more than ten times the memory of A


@dataclass(frozen=True, eq=False)
class Elimination:
    """The analysis of a pattern.

    variant : the chosen one; "levels" also names a `Waiting`.
    provisional : if not 0, list or schedule were left out; they pay after this many factorizations.
    schedule : the order of the rows.
    first, target, source : the columns that two rows share. Entry (i, k) below the diagonal, the e-th of all, owns the
        intersections first[e] <= q < first[e + 1]. target[q] is the place of a column in row i, source[q] its place in
        the part of row k behind the diagonal (ILU0: a multiple of it is subtracted) or before it (IC0: the two are
        multiplied). first is None if there is no list.
    """

    variant: str
    provisional: int
    schedule: Schedule | Waiting
    indptr: np.ndarray
    indices: np.ndarray
    diag: np.ndarray
    below: np.ndarray
    first: np.ndarray | None
    target: np.ndarray
    source: np.ndarray

    @cached_property
    def columns(self) -> np.ndarray | None:
        """Where columns start, if IC(0) on one thread takes less time with the finished rows by columns, too; else
        None. Cost: O(nnz), once."""
        in_order = self.variant == "sequential" and self.first is None
        return columns_that_pay(self.indptr, self.indices, self.diag) if in_order else None


def ilu0_analysis(A, variant: str = "auto", once: bool = False) -> Elimination:
    """The order in which the rows of A are eliminated, natural ("sequential") or by levels, and the columns that they
    share.

    once : whether "auto" may weigh the analysis against a single factorization, or has to expect many.
    Cost: O(nnz + intersections), and a binary search per entry of the shorter row where one is much longer.
    """
    longest, _, _, below = A.facts
    return _analysis(A, A.diag, A.diag + 1, A.indptr[1:], (longest, below), variant, once)


def ic0_analysis(L, variant: str = "auto", once: bool = False) -> Elimination:
    """The same for the lower triangle L by rows, the diagonal last in each."""
    longest, _, _, below = L.facts
    diag = L.indptr[1:] - 1
    return _analysis(L, diag, L.indptr[:-1], diag, (longest, below), variant, once)


def _analysis(A, diag, start, stop, lengths, variant, once):
    """lengths : the most entries of a row, and all below the diagonal."""
    indptr, indices = A.indptr, A.indices
    _require_variant(variant, "on the CPU")
    shared: Schedule | Waiting | None
    n, pattern = indptr.size - 1, (indptr, indices, diag)
    longest, entries = lengths
    even = entries >= OVERLAP * n and longest <= UNEVEN_ROWS * indices.size / n
    if once and variant == "auto" and (even or _plainly_hasty(n, indices.size, *lengths)):
        length = indices.size / n if even else longest
        most = ROW * n + ENTRY * indices.size + UPDATE * length * entries
        waits = forgo(most) if not even and could_pay(most) else 0
        triangle = Triangle(n, indptr[:-1], diag, indices, False, None, None, False, entries, longest, None)
        nothing = np.empty(0, np.uint16)
        shared = None if even else _apart(indptr, indices)
        if shared is None and not waits:
            shared = _waiting(A, diag, entries, most)
        if shared or not even:
            name, order = "levels" if shared else "sequential", shared or sequential(triangle)
            return Elimination(name, max(REPEATED, waits), order, *pattern, nothing, None, nothing, nothing)
    below = np.zeros(n + 1, indptr.dtype)
    np.cumsum(diag - indptr[:-1], out=below[1:])
    limit = MEETINGS_PER_ENTRY * indices.size
    first = np.zeros(below[n] + 1, np.int32 if limit < 2**31 else np.int64)
    offset = np.uint16 if np.diff(indptr).max() < 2**16 else np.uint32
    target = source = np.empty(0, offset)
    where = (indptr, unsigned(indices), diag, start, stop)
    updates = np.empty(n)
    searched = _scattered_updates(*where, updates)
    # a single factorization does not pay for the list, unless rows that are much longer than others make it far shorter
    scatter = once and variant == "auto" and updates.sum() <= max(limit, FAR_SHORTER * searched)
    halt = deadline.halt()
    intersections = limit + 1 if scatter else _meet(*where, below, limit, first, target, source, halt)
    if intersections <= limit:
        target, source = np.empty(intersections, offset), np.empty(intersections, offset)
        _meet(*where, below, limit, first, target, source, halt)
        updates = np.diff(first[below])
    else:
        first = None
    deadline.check()
    longest = int(np.diff(below).max())
    triangle = Triangle(n, indptr[:-1], diag, indices, False, None, None, False, int(below[n]), longest, None)
    cost = (ROW + ENTRY * np.diff(indptr) + UPDATE * updates).astype(np.float32)
    shared = None
    work, free = float(cost.sum(dtype=np.float64)), once and variant == "auto"
    hasty = free and SEARCH * int(below[n]) > work / 2  # nor, if rows are short, for the search for a schedule
    waits = forgo(work) if free and could_pay(work) else 0
    if scatter and not waits:
        shared = _waiting(A, diag, entries, work)
    if shared is None and variant != "sequential" and not hasty and not waits:
        level = None if scatter else levels(triangle)[0]
        deadline.check()
        required = variant == "levels"
        shared = schedule(triangle, cost, level, sort=False, scattered=SCATTERED, required=required)
    elif shared is None and free:
        shared = _apart(indptr, indices)
    name, order = "levels" if shared else "sequential", shared or sequential(triangle)
    provisional = max((scatter or hasty) * REPEATED, waits)
    return Elimination(name, provisional, order, *pattern, below, first, target, source)


def _require_variant(variant, by: str) -> None:
    offered = (*ILU0_VARIANTS, "auto")
    if variant not in offered:
        raise ParameterError(
            f"variant={variant!r} is not offered {by}; one of {', '.join(offered)} is needed." + meant(variant, offered)
        )


def _apart(indptr, indices) -> Schedule | None:
    """Items of rows in natural order that do not depend on each other, as in a block-diagonal matrix; None if there are
    no such items.

    Found without the search for a schedule. Cost: a test of each row; of every eighth, if there are no such items.
    """
    n, threads = indptr.size - 1, threads_for(indices.size, 2 * COPY)
    items = np.empty(indices.size // COPY + 2, np.int64)
    count = _cut_apart(unsigned(indptr), unsigned(indices), COPY, n - n // 8, items) if threads > 1 else 1
    if count == 1:
        return None
    order, after = np.arange(n, dtype=indices.dtype), np.zeros(count, np.int64)
    return Schedule(order, items[count::-1].copy(), after, None, min(threads, count))


def _waiting(A, diag, below: int, work: float) -> Waiting | None:
    """How all threads share a single elimination of `work` ns without the search for a schedule; None if they are few,
    or would gain little."""
    return waiting(A, diag, below, work) if could_pay(work) else None


@compiled
def _cut_apart(indptr, indices, least, given_up, items):
    """items[:count + 1] : n, then, descending to 0, rows from which on no row has a column before them, `least` entries
    or more apart. Returns the count; 1 if there is no such row from `given_up` on."""
    n = indptr.size - 1
    items[0], count = n, 0
    nearest = n  # to 0, of the columns seen
    for i in range(n - 1, 0, -1):
        nearest = min(nearest, np.int64(indices[indptr[i]]))
        if nearest == i:
            given_up = 0
            if indptr[items[count]] - indptr[i] >= least:
                count += 1
                items[count] = i
        elif i < given_up:
            break
    items[count + 1] = 0
    return count + 1


def _plainly_hasty(n: int, nnz: int, longest: int, below: int) -> bool:
    """Whether neither list nor schedule pays for one factorization, as the lengths of rows alone show."""
    return longest <= MEETINGS_PER_ENTRY and SEARCH * below > (ROW * n + ENTRY * nnz + UPDATE * longest * below) / 2


@compiled
def _scattered_updates(indptr, indices, diag, start, stop, updates):
    """updates[i] : the number of entries of other rows that row i is updated with, or multiplied by, without a list.

    Returns the number of entries that are looked at for a list, which is smaller for rows much longer than row i.
    """
    searched = 0
    for i in range(diag.size):
        longest = LONGER * (indptr[i + 1] - indptr[i])
        total = 0
        for p in range(indptr[i], diag[i]):
            length = np.int64(stop[indices[p]] - start[indices[p]])
            total += length
            searched += min(length, np.int64(longest))
        updates[i] = total
    return searched


@compiled
def _meet(indptr, indices, diag, start, stop, below, limit, first, target, source, halt):
    """Count the intersections (first), or write them down if target has room; returns their number.

    Entry (i, k) meets row k in the columns that row i and places start[k] <= q < stop[k] share. Each of these places is
    looked at; if they are many more than the entries of row i, a binary search is made for each entry of row i instead.
    """
    n = diag.size
    place = np.full(n, -1, np.int64)  # of column j in row i, from the begin of all
    write = target.size > 0
    m = 0
    for i in range(n):
        lo, hi = indptr[i], indptr[i + 1]
        for p in range(lo, hi):
            place[indices[p]] = p
        for p in range(lo, diag[i]):
            first[below[i] + p - lo] = m
            k = indices[p]
            if stop[k] - start[k] <= LONGER * (hi - lo):
                for q in range(start[k], stop[k]):
                    if place[indices[q]] >= lo:
                        if write:
                            target[m] = place[indices[q]] - lo
                            source[m] = q - start[k]
                        m += 1
            else:
                row = indices[start[k] : stop[k]]
                for e in range(lo, hi):
                    at = np.searchsorted(row, indices[e])
                    if at < row.size and row[at] == indices[e]:
                        if write:
                            target[m] = e - lo
                            source[m] = at
                        m += 1
        if m > limit or halted(halt):
            return m
    first[below[n]] = m
    return m


def ilu0(plan: Elimination, a, lu) -> int:
    """lu (nnz,) receives the factors of a (nnz,), in A's order; returns the first bad row or -1."""
    return _factor(_ilu0, _ilu0_scattered, _ilu0_waiting, plan, a, lu)


def ic0(plan: Elimination, a, l) -> int:
    """l (nnz,) receives the factor of a (nnz,), in L's order; returns the first bad row or -1."""
    if plan.columns is not None:
        return ic0_by_columns(plan.indptr, plan.indices, plan.diag, plan.columns, a, l)
    return _factor(_ic0, _ic0_scattered, _ic0_waiting, plan, a, l)


def _factor(listed, scattered, waits, plan, a, out):
    s = plan.schedule
    state, done = s.state()
    if isinstance(s, Waiting):
        pattern = [unsigned(x) for x in (plan.indptr, plan.indices, plan.diag)]
        blocks = s.workspaces(a.dtype), s.first, s.order, s.part, s.reach
        run(waits, s.threads, state, done, *blocks, *pattern, a, out, deadline.halt())
        deadline.check()
        return int(state[1]) if state[1] < plan.diag.size else -1
    pattern = [unsigned(x) for x in (s.items, s.order, plan.indptr, plan.indices, plan.diag)]
    if plan.first is None:
        run(scattered, s.threads, s.after, state, done, *pattern, a, out, deadline.halt())
    else:
        intersections = (unsigned(plan.below), unsigned(plan.first), plan.target, plan.source)
        run(listed, s.threads, s.after, state, done, *pattern, *intersections, a, out, deadline.halt())
    deadline.check()
    return int(state[1]) if state[1] < s.order.size else -1


@by_ordered_items
def _ilu0(t, state, items, order, indptr, indices, diag, below, first, target, source, a, lu, halt):
    """Row by row, in place: turn entry (i, k) into l_ik, subtract l_ik u_kj where row i and row k meet.

    Several threads may run it on the same arguments; see items.py.
    """
    for r in range(items[t], items[t + 1]):
        if r & LOOK == 0 and halted(halt):
            break
        i = order[r]
        lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
        for p in range(lo, hi):
            lu[p] = a[p]
        e = below[i]
        good = True
        for p in range(lo, pivot):
            k = indices[p]
            behind = np.uint64(diag[k]) + ONE
            factor = divide(lu[p], lu[diag[k]])
            lu[p] = factor
            good &= np.isfinite(factor)
            for q in range(first[e], first[e + ONE]):
                lu[lo + target[q]] -= factor * lu[behind + source[q]]
            e += ONE
        for p in range(pivot, hi):
            good &= np.isfinite(lu[p])
        if not good or lu[pivot] == 0:
            fetch_min(state, 1, np.int64(i))


@compiled
def _ilu0_scattered(after, state, done, items, order, indptr, indices, diag, a, lu, halt):
    """Row by row: scatter into w, subtract l_ik times row k of U for each k < i of the row, gather.

    All of row k is subtracted, without a look at the pattern of row i: what lands in w outside of it, finite or not, is
    never read, since every row first writes the places of its own pattern. Each thread has its own w.
    """
    w = np.empty(diag.size, a.dtype)
    known, t = 0, next_item(state)
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        for r in range(items[t], items[t + 1]):
            if r & LOOK == 0 and halted(halt):
                break
            i = order[r]
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
            for p in range(lo, hi):
                w[indices[p]] = a[p]
            good = True
            for p in range(lo, pivot):
                k = indices[p]
                factor = divide(w[k], lu[diag[k]])
                lu[p] = factor
                good &= np.isfinite(factor)
                for q in range(np.uint64(diag[k]) + ONE, np.uint64(indptr[k + ONE])):
                    w[indices[q]] -= factor * lu[q]
            for p in range(pivot, hi):
                lu[p] = w[indices[p]]
                good &= np.isfinite(lu[p])
            if not good or lu[pivot] == 0:
                fetch_min(state, 1, np.int64(i))
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)


@compiled
def _ilu0_waiting(state, done, workspaces, first, order, part, reach, indptr, indices, diag, a, lu, halt):
    """As `_ilu0_scattered`, block by block: done[i] is set once row i is complete, and read before row i is subtracted
    in another block.

    Progress: look at the first block of the order that is not complete. All blocks that it needs are before it; so the
    thread that has taken it waits for no other, and if none has, no thread waits. No other thread writes a row that is
    not done.
    """
    own = workspaces[fetch_add(state, 2, 1)]
    t = next_item(state)
    while t < order.size:
        begin, end = first[order[t]], first[order[t] + 1]
        known, w = begin, renumbered(own, max(begin - reach, 0))
        for i in range(begin, end):
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + 1])
            stopped = halted(halt)
            if stopped:
                hi = pivot = lo
            for p in range(lo, hi):
                w[indices[p]] = a[p]
            good = True
            for p in range(lo, pivot):
                k = indices[p]
                if k < begin:
                    wait_for_row(done, k, part)
                factor = divide(w[k], lu[diag[k]])
                lu[p] = factor
                good &= np.isfinite(factor)
                for q in range(np.uint64(diag[k]) + ONE, np.uint64(indptr[k + ONE])):
                    w[indices[q]] -= factor * lu[q]
            for p in range(pivot, hi):
                lu[p] = w[indices[p]]
                good &= np.isfinite(lu[p])
            if not stopped and (not good or lu[pivot] == 0):
                fetch_min(state, 1, i)
            if i + 1 - known == part:
                publish(done, known, i + 1, part)
                known = i + 1
        publish(done, known, end, part)
        t = next_item(state)
    wait_for_all(done, first, part)


@by_ordered_items
def _ic0(t, state, items, order, indptr, indices, diag, below, first, target, source, a, l, halt):
    """Row by row, up-looking: l_ij = (a_ij - sum_k l_ik conj(l_jk)) / l_jj over the k < j where rows i and j meet."""
    for r in range(items[t], items[t + 1]):
        if r & LOOK == 0 and halted(halt):
            break
        i = order[r]
        lo, pivot = np.uint64(indptr[i]), np.uint64(diag[i])
        e = below[i]
        square = a[pivot].real
        for p in range(lo, pivot):
            j = indices[p]
            begin = np.uint64(indptr[j])
            s = a[p]
            for q in range(first[e], first[e + ONE]):
                s -= l[lo + target[q]] * np.conj(l[begin + source[q]])
            l[p] = divide(s, l[diag[j]])
            square -= (l[p] * np.conj(l[p])).real
            e += ONE
        if not np.isfinite(square) or square <= 0:
            fetch_min(state, 1, np.int64(i))
        l[pivot] = np.sqrt(square)


@compiled
def _ic0_scattered(after, state, done, items, order, indptr, indices, diag, a, l, halt):
    """The same with the finished part of row i in w, zero elsewhere, so that all of row j can be multiplied."""
    w = np.zeros(diag.size, a.dtype)
    known, t = 0, next_item(state)
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        for r in range(items[t], items[t + 1]):
            if r & LOOK == 0 and halted(halt):
                break
            i = order[r]
            if state[1] < i:  # a row before it is bad
                continue
            lo, pivot = np.uint64(indptr[i]), np.uint64(diag[i])
            square = a[pivot].real
            for p in range(lo, pivot):
                j = indices[p]
                s = a[p]
                for q in range(np.uint64(indptr[j]), np.uint64(diag[j])):
                    s -= w[indices[q]] * np.conj(l[q])
                l[p] = divide(s, l[diag[j]])
                w[j] = l[p]
                square -= (l[p] * np.conj(l[p])).real
            for p in range(lo, pivot):
                w[indices[p]] = 0
            if not np.isfinite(square) or square <= 0:
                fetch_min(state, 1, np.int64(i))
            l[pivot] = np.sqrt(square)
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)


@compiled
def _ic0_waiting(state, done, workspaces, first, order, part, reach, indptr, indices, diag, a, l, halt):
    """As `_ic0_scattered`, block by block; see `_ilu0_waiting`."""
    own = workspaces[fetch_add(state, 2, 1)]
    t = next_item(state)
    while t < order.size:
        begin, end = first[order[t]], first[order[t] + 1]
        known, w = begin, renumbered(own, max(begin - reach, 0))
        for i in range(begin, end):
            lo, pivot = np.uint64(indptr[i]), np.uint64(diag[i])
            stopped = halted(halt)
            if stopped:
                lo = pivot
            square = a[pivot].real
            for p in range(lo, pivot):
                j = indices[p]
                if j < begin:
                    wait_for_row(done, j, part)
                s = a[p]
                for q in range(np.uint64(indptr[j]), np.uint64(diag[j])):
                    s -= w[indices[q]] * np.conj(l[q])
                l[p] = divide(s, l[diag[j]])
                w[j] = l[p]
                square -= (l[p] * np.conj(l[p])).real
            for p in range(lo, pivot):
                w[indices[p]] = 0
            if not stopped and (not np.isfinite(square) or square <= 0):
                fetch_min(state, 1, i)
            l[pivot] = np.sqrt(square)
            if i + 1 - known == part:
                publish(done, known, i + 1, part)
                known = i + 1
        publish(done, known, end, part)
        t = next_item(state)
    wait_for_all(done, first, part)


@dataclass(frozen=True, eq=False)
class ModifiedElimination:
    """The analysis of a pattern: the variant chosen, the order of the rows, and `provisional` as in `Elimination`."""

    variant: str
    schedule: Schedule
    A: Any
    provisional: int


def milu0_analysis(A, variant: str = "auto", once: bool = False) -> ModifiedElimination:
    """The order in which the rows of A are eliminated, natural ("sequential") or by levels. Cost: O(nnz).

    once : as in `ilu0_analysis`.
    """
    _require_variant(variant, "by MILU0")
    _, longest_below, _, below = A.facts
    triangle = Triangle(A.n, A.indptr[:-1], A.diag, A.indices, False, None, None, False, below, longest_below, None)
    shared, waits = None, 0
    required, most = variant == "levels", ROW * A.n + ENTRY * A.nnz + UPDATE * below * longest_below
    if required or (variant == "auto" and could_pay(most)):
        cost = np.empty(A.n, np.float32)
        _cost(A.indptr, unsigned(A.indices), A.diag, cost)
        work = float(cost.sum(dtype=np.float64))
        waits = forgo(work) if once and not required and could_pay(work) else 0
    if required or (variant == "auto" and could_pay(most) and not waits):
        shared = schedule(triangle, cost, levels(triangle)[0], sort=False, scattered=SCATTERED, required=required)
    return ModifiedElimination("levels" if shared else "sequential", shared or sequential(triangle), A, waits)


@compiled
def _cost(indptr, indices, diag, cost):
    for i in range(diag.size):
        updates = 0
        for p in range(indptr[i], diag[i]):
            k = indices[p]
            updates += min(indptr[k + ONE] - diag[k] - 1, LONG + LONGER * (indptr[i + 1] - p))
        cost[i] = ROW + ENTRY * (indptr[i + 1] - indptr[i]) + UPDATE * updates


def milu0(plan: ModifiedElimination, a, relax, lu) -> int:
    """lu (nnz,) receives the factors of a (nnz,), in A's order; returns the first bad row or -1."""
    s, A = plan.schedule, plan.A
    state, done = s.state()
    sums = np.empty(A.nnz if A.facts[2] > LONG else 0, a.dtype)
    pattern = [unsigned(x) for x in (s.items, s.order, A.indptr, A.indices, A.diag)]
    run(_milu0, s.threads, s.after, state, done, *pattern, a.dtype.type(relax), a, sums, lu, deadline.halt())
    deadline.check()
    return int(state[1]) if state[1] < s.order.size else -1


@compiled
def _halved(lu, sums, begin, end):
    """Sums of lu[begin..end - 1] by halves, at the same places of `sums`: a tree whose node j has the children 2 j and
    2 j + 1, those from end - begin on being the entries themselves."""
    size = end - begin
    for c in range(ONE, size):
        j = size - c
        sums[begin + j] = _node(lu, sums, begin, size, j + j) + _node(lu, sums, begin, size, j + j + ONE)


@compiled
def _node(lu, sums, begin, size, j):
    return lu[begin + j - size] if j >= size else sums[begin + j]


@compiled
def _added(total, lu, sums, begin, end, first, last):
    """`total` and lu[first..last - 1], of the row begin..end - 1 that is `_halved`: O(log(end - begin)) additions."""
    size = end - begin
    low, high = first - begin + size, last - begin + size
    while low < high:
        if low & ONE:
            total += _node(lu, sums, begin, size, low)
            low += ONE
        if high & ONE:
            high -= ONE
            total += _node(lu, sums, begin, size, high)
        low, high = low >> ONE, high >> ONE
    return total


@compiled
def _milu0(after, state, done, items, order, indptr, indices, diag, relax, a, sums, lu, halt):
    """Row by row: scatter into w, subtract l_ik times row k of U for each k < i of the row, gather; each thread its w.

    An update on a column that this row has not marked as its own is dropped, and summed up. If row k is far longer than
    the rest of row i, the columns of row i are looked up in row k; the dropped sum is then the sum over the gaps
    between the shared columns, by the `_halved` sums of row k. Nothing is subtracted from a sum, since that could
    cancel small entries next to a large one.

    sums (nnz,) : those of rows of U of more than LONG entries, at their places; (0,) without such rows.
    """
    w = np.empty(diag.size, a.dtype)
    owner = np.full(diag.size, diag.size, np.uint64)
    zero = relax - relax  # of a's dtype
    looked_up = sums.size > 0
    known, t = 0, next_item(state)
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        for r in range(items[t], items[t + 1]):
            if r & LOOK == 0 and halted(halt):
                break
            i = np.uint64(order[r])
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
            for p in range(lo, hi):
                w[indices[p]] = a[p]
                owner[indices[p]] = i
            good = True
            dropped = zero
            for p in range(lo, pivot):
                k = indices[p]
                factor = divide(w[k], lu[diag[k]])
                lu[p] = factor
                good &= np.isfinite(factor)
                first, last = np.uint64(diag[k]) + ONE, np.uint64(indptr[k + ONE])
                if looked_up and last > first + np.uint64(LONG) and last > first + np.uint64(LONGER) * (hi - p):
                    others, begin, gap = zero, first, first
                    for e in range(p + ONE, hi):
                        first = place_of(indices, first, last, indices[e])
                        if first < last and indices[first] == indices[e]:
                            w[indices[e]] -= factor * lu[first]
                            others = _added(others, lu, sums, begin, last, gap, first)
                            gap = first + ONE
                    others = _added(others, lu, sums, begin, last, gap, last)
                    dropped -= factor * others
                    continue
                for q in range(first, last):
                    if owner[indices[q]] == i:
                        w[indices[q]] -= factor * lu[q]
                    else:
                        dropped -= factor * lu[q]
            w[i] += relax * dropped
            for p in range(pivot, hi):
                lu[p] = w[indices[p]]
                good &= np.isfinite(lu[p])
            if not good or lu[pivot] == 0:
                fetch_min(state, 1, np.int64(i))
            if looked_up and hi - pivot > np.uint64(LONG) + ONE:
                _halved(lu, sums, pivot + ONE, hi)
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)
