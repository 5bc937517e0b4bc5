"""Triangular solves T x = b, T = D + N: plans that keep the analysis of a triangle and solve as often as wanted."""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.kernels.cpu.levels import levels
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.columns import (
    AHEAD,
    blocks_of,
    divisor,
    fetch_row,
    flat,
    in_place,
    lie_in_tiles,
    read_row,
    solve_row,
    solve_row_of_two,
    tiles_of,
    write_row,
)
from finelu.kernels.cpu.runtime.indices import unsigned
from finelu.kernels.cpu.runtime.items import by_items, by_ordered_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lanes import LANES
from finelu.kernels.cpu.runtime.row_blocks import threads_for
from finelu.kernels.cpu.runtime.schedule import GRAIN, Blocks, Schedule, could_pay, forgo, schedule
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.runtime.workers import run
from finelu.kernels.operands import Triangle
from finelu.threads import get_num_threads

TRIANGULAR_METHODS = ("sequential", "levels", "jacobi", "isai")
ROW, ENTRY = 1.0, 0.9  # ns for a row and for an entry of it in a slice of four, measured as in schedule.py
SCATTERED = 1.35  # how much longer a row takes in level order than in blocks
# Solves in natural order before the analysis: PAYS for triangles of at least MANY rows with at most SHORT entries on
# average, where threads may share the work, and once new values have come. LATER for others, whose values lie in a
# cache, or whose rows are so long that the sums of one are enough work to overlap. The analysis takes as long as 20 to
# 70 solves. With LATER instead of PAYS nine whole solves of such systems (1,030 to 4,884 rows, 16 to 77 iterations)
# took 0.82 to 0.93 of the time (medians of ten ratios, processor time of one thread); three of 5,005 to 5,316 short
# rows took 1.00 to 1.09.
PAYS, LATER, MANY, SHORT = 20, 80, 5_000, 6.0
COPY_PAYS = 3  # the solve that copies new values: those before it lose about as much time as that takes
FEW = 4  # columns a thread from which on they are solved together: a row of LANES takes as long as four of them
# Columns of a thread: two cache lines of float64, which a processor fetches as a pair. Two threads with one line of
# each pair take longer than one thread with both, since the pair moves back and forth between their caches.
COLUMNS_A_THREAD = 2 * LANES
GATHERED = 2**15  # values that a thread gathers at a time
ROWS_AN_ITEM = 4096  # of the methods whose rows do not depend on each other
ONE, TWO, THREE, FOUR, EIGHT = (
    np.uint64(k) for k in (1, 2, 3, 4, 8)
)  # an int would turn an unsigned index into a float
FAR = np.uint64(AHEAD)  # rows; a row of the result is asked for that early, as nothing else has read it


def solve_in_turn(plans, b, x) -> None:
    """Solve with the plans in turn, each for the result of the one before; see kernels/reference/triangular.py.

    Many columns are solved together, two times LANES of them in each row, in natural order: no row waits for another
    thread.
    b and x (n, k) may be column-major.
    """
    if b.ndim == 2 and b.shape[1] > 1:
        naturals = [plan.natural(b.shape[1]) for plan in plans]
        if None not in naturals:
            _solve_columns(naturals, b, x)
            return
        if not (b.flags.c_contiguous and x.flags.c_contiguous):
            by_rows = np.empty(x.shape, x.dtype)
            solve_in_turn(plans, np.ascontiguousarray(b), by_rows)
            x[...] = by_rows
            return
    for plan in plans[:-1]:
        between = np.empty_like(x)
        plan.solve(b, between)
        b = between
    plans[-1].solve(b, x)


def _solve_columns(naturals, b, x) -> None:
    n, k = b.shape
    entries = sum(natural.triangle.entries for natural in naturals)
    threads = min(threads_for(k * entries), max(k // COLUMNS_A_THREAD, 1))
    blocks, width = blocks_of(k, threads)
    there = lie_in_tiles(x) and width == LANES
    tiles = in_place(x) if there else tiles_of(blocks, n, b.dtype)
    items = min(threads, blocks)
    counts = (np.uint64(number) for number in (items, blocks, k, width))
    shared = *tiles, *counts
    for natural in naturals:
        ends = natural is naturals[0], *flat(b), natural is naturals[-1] and not there, *flat(x)
        operands = natural.triangle.reverse, *natural.pattern, natural.values, natural.places, natural.pivots
        run_items(_substitute_tiles, items, *shared, *operands, *ends)


def triangular_plan(triangle: Triangle, method: str, sweeps: int):
    """The plan of one of TRIANGULAR_METHODS, for "auto" the faster exact one; only jacobi and isai use `sweeps`."""
    if method == "jacobi":
        return Jacobi(triangle, sweeps)
    if method == "isai":
        return ISAI(triangle, sweeps)
    if method == "sequential":
        return Natural(triangle)
    return Deferred(triangle) if method == "auto" else _by_levels(triangle)


def bound_by_bytes(plan) -> bool:
    """Always, as a core reads the values one after the other; see kernels/reference/triangular.py."""
    return True


def triangle_product(triangle: Triangle, values, x):
    """(D + N) x; see kernels/reference/triangular.py."""
    t, y = triangle, np.empty_like(x)
    diag = np.empty(0, t.indices.dtype) if t.diag is None else t.diag
    pattern = (unsigned(a) for a in (t.begin, t.end, t.indices, diag))
    run_items(_multiply, -(-t.n // ROWS_AN_ITEM), *pattern, values, x, y, threads=threads_for(t.entries))
    return y


def _by_levels(triangle: Triangle, chains: bool = False):
    """Substitution in the order of a schedule; with `chains` in natural order if no two rows could overlap."""
    level, depth = levels(triangle)
    if chains and depth > triangle.n // 2:
        return Natural(triangle, depth)
    cost = ROW + ENTRY * (triangle.end - triangle.begin).astype(np.float32)
    shared = schedule(triangle, cost, level, sort=True, scattered=SCATTERED)
    return Exact(triangle, shared or Blocks(triangle, cost, GRAIN).schedule(True, 1), depth)


class Deferred:
    """Natural order at first. The order of a schedule once its analysis is expected to take less time than it saves in
    as many solves again: the two together take little more than twice the time of the better one. From then on new
    values are copied into the order of the schedule in the same way, after some solves with the values where they lie.
    The bits stay the same. If the kernels of the analysis have never been compiled, the time to compile them counts as
    well: see `forgo`.
    """

    def __init__(self, triangle: Triangle):
        self.triangle, self._natural, self._solved, self._deciding = triangle, Natural(triangle), 0, False
        gains = triangle.n >= MANY and triangle.entries <= SHORT * triangle.n
        self._natural_first = PAYS if gains or could_pay(self._work()) else LATER  # solves before the analysis
        self._now: Natural | Exact = self._natural  # the better one, once it is known
        self._behind, self._since = False, 0  # whether _now has older values; the solves since then
        self._values: Any = None

    @property
    def method(self) -> str:
        return self._now.method

    @property
    def depth(self) -> int | None:
        return self._now.depth

    @property
    def threads(self) -> int:
        """The number of threads that the next solve may take."""
        return get_num_threads() if self._solved < self._natural_first else self._now.threads

    def __getstate__(self):
        """Without an analysis that another thread is making, and without data that can be made again."""
        decided = self._solved >= self._natural_first and not self._deciding
        state = self.__dict__ | {"_deciding": False, "_solved": self._natural_first if decided else 0}
        return state if self._now is self._natural else state | {"_natural": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self._natural is None:
            self._natural = Natural(self.triangle)
            if self._behind:
                self._natural.load(self._values, check=False)

    def load(self, values, check: bool = True) -> int:
        if self._solved < self._natural_first or self._deciding:
            self._solved = 0  # counted anew: the new values are ready for natural order at no cost
            if self._values is not None:  # new values may come again and again, and the analysis serves them all
                self._natural_first = PAYS
        self._values = values
        if self.triangle.source is not None:  # of a transpose both are copies
            if self._now is not self._natural:
                self._natural.values = None
            return self._now.load(values, check)
        self._behind, self._since = self._now is not self._natural, 0
        return self._natural.load(values, check)

    def solve(self, b, x) -> None:
        solves = max(b.size // self.triangle.n, 1)
        if self._solved < self._natural_first:
            self._solved += solves
            if self._solved >= self._natural_first and not self._deciding:
                if forgo(self._solved * self._work()):
                    self._solved = 0
                else:
                    self._decide()
        plan = self._now
        if self._behind:
            self._since += solves
            if self._since >= COPY_PAYS:
                plan.load(self._values, check=False)  # two threads that both do copy the same values
                self._behind = False
            else:
                plan = self._natural
        plan.solve(b, x)

    def _work(self) -> float:
        """The time of a solve in natural order, in ns."""
        return ROW * self.triangle.n + ENTRY * self.triangle.entries

    def natural(self, columns: int) -> Natural | None:
        """The plan in natural order if it solves for that many columns, all in each row, sooner; else None."""
        if not _pays(columns, self._now):
            return None
        natural = self._natural  # another thread may replace it meanwhile
        if natural.values is None:
            natural = self._natural = _loaded(self.triangle, self._values)
        return natural

    def _decide(self) -> None:
        self._deciding = True  # another thread that solves meanwhile does so in natural order
        try:
            better = _by_levels(self.triangle, chains=True)
            if isinstance(better, Natural):
                self._natural.depth = better.depth
            else:
                better.load(self._values, check=False)
                self._now = better
                if self.triangle.source is not None:
                    self._natural = Natural(self.triangle)  # without its copy of the values
        except MemoryError:
            pass  # natural order needs no memory
        except BaseException:
            self._solved = 0
            raise
        finally:
            self._deciding = False


class Natural:
    """Substitution in natural order, on one thread, with the values where they lie. It needs no analysis."""

    method, threads = "sequential", 1

    def __init__(self, triangle: Triangle, depth: int | None = None):
        self.triangle, self.depth = triangle, depth
        self.pattern = tuple(unsigned(a) for a in (triangle.begin, triangle.end, triangle.indices))
        self.values: Any = None
        t = triangle
        places = np.empty(0, t.indices.dtype) if t.diag is None else np.arange(t.n) if t.conjugate else t.diag
        self.places = unsigned(places.astype(t.indices.dtype, copy=False))
        self.pivots: Any = None

    def load(self, values, check: bool = True) -> int:
        """Take new values; they are not copied unless T is a transpose. Returns the same as Exact.load."""
        t = self.triangle
        self.pivots = values
        if t.conjugate:
            self.pivots = values[t.diag].conj() if t.diag is not None else values[:0]
        if t.source is None:
            self.values = values
        else:
            self.values = _room(self.values, t.indices.size, values.dtype)
            _gather(t.conjugate, t.source, values, self.values)
        if not check or t.diag is None:
            return -1
        return _first_bad_diagonal(np.arange(t.n, dtype=t.indices.dtype), self.pivots[self.places])

    def natural(self, columns: int) -> Natural | None:
        """As `Deferred.natural`."""
        return self

    def solve(self, b, x) -> None:
        t = self.triangle
        operands = self.values, self.places, self.pivots, _columns(b, t.n), b.reshape(-1), x.reshape(-1)
        _substitute(t.reverse, *self.pattern, *operands)


def _room(array, size: int, dtype):
    """The array if it has this dtype, else a new one, (size,)."""
    return array if array is not None and array.dtype == dtype else np.empty(size, dtype)


def _loaded(triangle: Triangle, values: Any) -> Natural:
    """A plan in natural order that no other thread sees before it has its values."""
    natural = Natural(triangle)
    natural.load(values, check=False)
    return natural


def _pays(columns: int, plan: Natural | Exact) -> bool:
    """Whether as many columns are solved sooner in natural order, all in each row, than one after the other."""
    return isinstance(plan, Natural) or columns >= FEW * plan.threads


def _columns(b, n: int):
    """The number of columns of b, (n,) or (n, k); None for one, so that a kernel knows it when it is compiled."""
    return None if b.size == n else np.uint64(b.size // n)


@by_items
def _substitute_tiles(
    t, tiles, stride, size, items, blocks, columns, width, reverse, begin, end, indices, values, places, pivots,
    reads, b, b_row, b_column, writes, x, x_row, x_column,
):  # fmt: skip
    """T^-1 of the blocks of `width` columns of item t, two in each row: from b if `reads`, else from their tiles. The
    result is left in the tiles, and goes to x if `writes`. A thread has blocks of its own."""
    n, own = begin.size, np.uint64(t)
    block, end_block = own * blocks // items, (own + ONE) * blocks // items
    one, wide, divided = values.dtype.type(1), tiles.dtype.type, places.size > 0
    while block < end_block:
        two, first, tile = block + ONE < end_block, block * width, block * size
        b_first, x_first, last = first * b_column, first * x_column, min(width, columns - first) - ONE
        b_next, x_next, last_of_next = width * b_column, width * x_column, min(width, columns - first - width) - ONE
        for visit in range(n):
            i = np.uint64(n - 1 - visit if reverse else visit)
            pivot = divisor(wide(pivots[places[i]] if divided else one))
            ahead = i - FAR if reverse else i + FAR
            if reads:
                fetch_row(tiles, stride, tile, ahead)
                read_row(tiles, stride, tile, i, b, i * b_row + b_first, b_column, last)
            if two:
                if reads:
                    fetch_row(tiles, stride, tile + size, ahead)
                    read_row(tiles, stride, tile + size, i, b, i * b_row + b_first + b_next, b_column, last_of_next)
                both = tile, tile + size
                solve_row_of_two(tiles, stride, *both, i, indices, values, begin[i], end[i], divided, *pivot)
                if writes:
                    write_row(tiles, stride, tile + size, i, x, i * x_row + x_first + x_next, x_column, last_of_next)
            else:
                solve_row(tiles, stride, tile, i, indices, values, begin[i], end[i], divided, *pivot)
            if writes:
                write_row(tiles, stride, tile, i, x, i * x_row + x_first, x_column, last)
        block += TWO


@by_items
def _multiply(t, begin, end, indices, diag, values, x, y):
    for i in range(t * ROWS_AN_ITEM, min(y.size, (t + 1) * ROWS_AN_ITEM)):
        total = values[diag[i]] * x[i] if diag.size else x[i]
        for p in range(begin[i], end[i]):
            total += values[p] * x[indices[p]]
        y[i] = total


@compiled
def _substitute(reverse, begin, end, indices, values, places, pivots, columns, b, x):
    n, k = begin.size, ONE if columns is None else columns
    for t in range(n):
        i = np.uint64(n - 1 - t if reverse else t)
        for c in range(k):
            total = b[i * k + c]
            for p in range(begin[i], end[i]):
                total -= values[p] * x[indices[p] * k + c]
            x[i * k + c] = divide(total, pivots[places[i]]) if places.size else total


class Exact:
    """Substitution, row by row in the order of a schedule, in which the entries are stored too.

    Four rows in sequence that have as many entries as each other and do not depend on each other are a slice of four:
    their entries lie side by side, the first of each row, then the second of each, and they are solved at once. The
    terms of a row are subtracted in ascending order of columns all the same: the bits are those of the sequential
    algorithm.
    """

    method = "levels"

    def __init__(self, triangle: Triangle, schedule: Schedule, depth: int | None):
        self.depth, self.threads, self.triangle = depth, schedule.threads, triangle
        self.schedule = schedule
        order, index = schedule.order, triangle.indices.dtype
        items = np.empty(schedule.items.size, np.int64)
        slices = np.empty(triangle.n + 1, index)
        level = np.empty(0, np.int32) if schedule.level is None else schedule.level
        count = _slice(order, schedule.items, level, triangle.begin, triangle.end, items, slices)
        slices = slices[: count + 1].copy()
        ptr = np.empty(count + 1, index)
        cols, self.source = np.empty(triangle.entries, index), np.empty(triangle.entries, index)
        _pack(slices, order, triangle.begin, triangle.end, triangle.indices, ptr, cols, self.source)
        self.pattern = tuple(unsigned(a) for a in (items, slices, order, ptr, cols))
        if triangle.source is not None:
            self.source = triangle.source[self.source]
        self.diag_source = np.empty(0, index) if triangle.diag is None else triangle.diag[order]
        self.vals = self.diag = None
        self._values: Any = None
        self._natural: Natural | None = None  # for many columns

    def load(self, values, check: bool = True) -> int:
        """Take new values. Returns the first row whose diagonal has no finite reciprocal, -1 for none or no `check`."""
        conjugate = self.triangle.conjugate
        self.vals = _room(self.vals, self.source.size, values.dtype)
        self.diag = _room(self.diag, self.diag_source.size, values.dtype)
        _gather(conjugate, unsigned(self.source), values, self.vals)
        _gather(conjugate, unsigned(self.diag_source), values, self.diag)
        self._values, self._natural = values, None
        return _first_bad_diagonal(self.schedule.order, self.diag) if check else -1

    def natural(self, columns: int) -> Natural | None:
        """As `Deferred.natural`."""
        if not _pays(columns, self):
            return None
        natural = self._natural
        if natural is None:
            natural = self._natural = _loaded(self.triangle, self._values)
        return natural

    def solve(self, b, x) -> None:
        """x = T^-1 b, both (n,) or (n, k) and C-contiguous."""
        s, operands = self.schedule, (self.vals, self.diag, _columns(b, self.triangle.n), b.reshape(-1), x.reshape(-1))
        run(_solve, s.threads, s.after, *s.state(), *self.pattern, *operands)


@compiled
def _slice(order, items, level, begin, end, item_slices, slices):
    """slices[:count + 1] : where slices of four rows or one begin in `order`; item_slices : those of each item."""
    count = 0
    for t in range(items.size - 1):
        item_slices[t] = count
        r = items[t]
        while r < items[t + 1]:
            slices[count] = r
            count += 1
            i = order[r]
            wide = level.size > 0 and r + 4 <= items[t + 1]
            if wide:
                for e in range(1, 4):
                    j = order[r + e]
                    wide &= level[j] == level[i] and end[j] - begin[j] == end[i] - begin[i]
            r += 4 if wide else 1
    item_slices[items.size - 1] = count
    slices[count] = order.size
    return count


@compiled
def _pack(slices, order, begin, end, indices, ptr, cols, source):
    """Copy the columns slice by slice; entry q of the copy lies at place source[q]."""
    q = 0
    for s in range(slices.size - 1):
        ptr[s] = q
        first = order[slices[s]]
        for k in range(end[first] - begin[first]):
            for r in range(slices[s], slices[s + 1]):
                source[q] = begin[order[r]] + k
                cols[q] = indices[source[q]]
                q += 1
    ptr[slices.size - 1] = q


def _gather(conjugate, source, values, out) -> None:
    """out[q] = values[source[q]], conjugated on demand; shared out among threads."""
    count = max(-(-out.size // GATHERED), 1)
    run_items(_gather_items, count, conjugate, source, values, out, threads=threads_for(out.size))


@by_items
def _gather_items(t, conjugate, source, values, out):
    begin, end = t * GATHERED, min(out.size, (t + 1) * GATHERED)
    if conjugate:
        for q in range(begin, end):
            out[q] = np.conj(values[source[q]])
    else:
        for q in range(begin, end):
            out[q] = values[source[q]]


@compiled
def _first_bad_diagonal(order, diag):
    """The smallest row order[r] for which 1 / diag[r] is not finite, or -1."""
    first = order.size
    one = diag.dtype.type(1)
    for r in range(diag.size):
        if order[r] < first and not np.isfinite(divide(one, diag[r])):
            first = order[r]
    return first if first < order.size else -1


@by_ordered_items
def _solve(t, items, slices, order, ptr, cols, vals, diag, columns, b, x):
    """x = T^-1 b, all columns of a slice before the next slice; several threads may run it, see items.py."""
    k = ONE if columns is None else columns
    for s in range(items[t], items[t + 1]):
        r = np.uint64(slices[s])
        begin, stop = np.uint64(ptr[s]), np.uint64(ptr[s + ONE])
        if np.uint64(slices[s + ONE]) - r == FOUR:
            i0, i1, i2, i3 = order[r] * k, order[r + ONE] * k, order[r + TWO] * k, order[r + THREE] * k
            for c in range(k):
                s0, s1, s2, s3 = b[i0 + c], b[i1 + c], b[i2 + c], b[i3 + c]
                p = begin
                while p < stop:
                    s0 -= vals[p] * x[cols[p] * k + c]
                    s1 -= vals[p + ONE] * x[cols[p + ONE] * k + c]
                    s2 -= vals[p + TWO] * x[cols[p + TWO] * k + c]
                    s3 -= vals[p + THREE] * x[cols[p + THREE] * k + c]
                    p += FOUR
                if diag.size:
                    s0, s1 = divide(s0, diag[r]), divide(s1, diag[r + ONE])
                    s2, s3 = divide(s2, diag[r + TWO]), divide(s3, diag[r + THREE])
                x[i0 + c], x[i1 + c], x[i2 + c], x[i3 + c] = s0, s1, s2, s3
        else:
            i = order[r] * k
            for c in range(k):
                total = b[i + c]
                for p in range(begin, stop):
                    total -= vals[p] * x[cols[p] * k + c]
                x[i + c] = divide(total, diag[r]) if diag.size else total


class _Sweeping:
    """Common to jacobi and isai: values in natural order, and passes over all rows, each of which needs the one before.

    Item t of a call is chunk t % m of pass t // m; it starts when the pass before is complete.
    """

    depth = None

    def natural(self, columns: int) -> None:
        """As `Deferred.natural`: all columns of a row are swept before the next row already."""

    def __init__(self, triangle: Triangle, sweeps: int):
        self.triangle, self.sweeps = triangle, sweeps
        self.values: Any = None
        self.diag: Any = None
        self.rows = np.arange(triangle.n, dtype=triangle.indices.dtype)

    def load(self, values, check: bool = True) -> int:
        t = self.triangle
        if t.source is None and not t.conjugate:
            self.values = values
        else:
            self.values = _room(self.values, t.indices.size, values.dtype)
            source = np.arange(t.indices.size) if t.source is None else t.source
            _gather(t.conjugate, source, values, self.values)
        self.diag = _room(self.diag, 0 if t.diag is None else t.n, values.dtype)
        if t.diag is not None:
            _gather(t.conjugate, t.diag, values, self.diag)
        return _first_bad_diagonal(self.rows, self.diag) if check else -1

    def _run(self, kernel, passes, *args):
        t = self.triangle
        chunks = -(-t.n // ROWS_AN_ITEM)
        after = np.repeat(np.arange(passes) * chunks, chunks)
        state, done = np.zeros(1, np.int64), np.zeros(passes * chunks, np.int8)
        run(kernel, chunks, after, state, done, chunks, unsigned(t.begin), unsigned(t.end), unsigned(t.indices), *args)


class Jacobi(_Sweeping):
    """`sweeps` times x <- D^-1 (b - N x), from x = D^-1 b."""

    method = "jacobi"

    def solve(self, b, x) -> None:
        shape = (x.shape[0], x.size // x.shape[0])
        old, new = np.empty(shape, x.dtype), x.reshape(shape)
        if self.sweeps % 2:
            old, new = new, old
        old[...] = 0  # the first pass makes D^-1 b of it, the last one writes x
        self._run(_jacobi, self.sweeps + 1, self.values, self.diag, b.reshape(shape), old, new)


@by_ordered_items
def _jacobi(t, chunks, begin, end, indices, values, diag, b, x, y):
    """Even passes: y = D^-1 (b - N x). Odd passes: the same with x and y exchanged."""
    n = b.shape[0]
    s, chunk = divmod(t, chunks)
    old, new = (x, y) if s % 2 == 0 else (y, x)
    for i in range(chunk * ROWS_AN_ITEM, min(n, (chunk + 1) * ROWS_AN_ITEM)):
        for c in range(b.shape[1]):
            total = b[i, c]
            for p in range(begin[i], end[i]):
                total -= values[p] * old[indices[p], c]
            new[i, c] = divide(total, diag[i]) if diag.size else total


class ISAI(_Sweeping):
    """x = W b with an incomplete sparse approximate inverse W; then `sweeps` - 1 corrections x <- x + W (b - T x)."""

    method = "isai"

    def load(self, values, check: bool = True) -> int:
        bad = super().load(values, check)
        t = self.triangle
        self.w, self.w_diag = np.empty(t.indices.size, values.dtype), np.empty(t.n, values.dtype)
        self._run(_isai, 1, t.reverse, self.values, self.diag, self.w, self.w_diag)
        return bad

    def solve(self, b, x) -> None:
        shape = (x.shape[0], x.size // x.shape[0])
        r, x = b.reshape(shape).copy(), x.reshape(shape)
        x[...] = 0
        operands = (self.values, self.diag, self.w, self.w_diag, b.reshape(shape), r, x)
        self._run(_isai_solve, 2 * self.sweeps - 1, *operands)


@by_ordered_items
def _isai(t, chunks, begin, end, indices, reverse, values, diag, w, w_diag):
    """Row i of W, from the column nearest to the diagonal outwards: (W T)_ij = 0 gives w_ij from those before it.

    Entry j needs T_mj for the columns m between j and i, found by binary search in row m. Each row by itself.
    """
    n = w_diag.size
    one = values.dtype.type(1)
    for i in range(t * ROWS_AN_ITEM, min(n, (t + 1) * ROWS_AN_ITEM)):
        w_diag[i] = divide(one, diag[i]) if diag.size else one
        lo, length = np.int64(begin[i]), np.int64(end[i]) - np.int64(begin[i])
        for step in range(length):
            p = lo + step if reverse else lo + length - 1 - step
            j = indices[p]
            total = w_diag[i] * values[p]
            for before in range(step):
                q = lo + before if reverse else lo + length - 1 - before
                m = indices[q]
                row = indices[begin[m] : end[m]]
                at = np.searchsorted(row, j)
                if at < row.size and row[at] == j:
                    total += w[q] * values[np.int64(begin[m]) + at]
            w[p] = divide(-total, diag[j]) if diag.size else -total


@by_ordered_items
def _isai_solve(t, chunks, begin, end, indices, values, diag, w, w_diag, b, r, x):
    """Even passes: x += W r (r = b and x = 0 at first). Odd passes: r = b - T x."""
    n = b.shape[0]
    s, chunk = divmod(t, chunks)
    for i in range(chunk * ROWS_AN_ITEM, min(n, (chunk + 1) * ROWS_AN_ITEM)):
        for c in range(b.shape[1]):
            if s % 2 == 0:
                total = w_diag[i] * r[i, c]
                for p in range(begin[i], end[i]):
                    total += w[p] * r[indices[p], c]
                x[i, c] += total
            else:
                total = b[i, c] - (diag[i] * x[i, c] if diag.size else x[i, c])
                for p in range(begin[i], end[i]):
                    total -= values[p] * x[indices[p], c]
                r[i, c] = total
