"""Schedules: the order in which dependent rows are visited, and their distribution among threads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from finelu.kernels.cpu.runtime.indices import unsigned
from finelu.kernels.cpu.runtime.jit import compiled, ready
from finelu.kernels.operands import Triangle
from finelu.threads import get_num_threads

LONGEST = 255  # rows are sorted by length inside a level; longer ones count as equal

# Measured on 2 and on 16 cores of an Intel Xeon, in ns.
# Time to take an item, to see that earlier ones are done, and to fetch their results from other caches; more with each
# thread, as all of them write to the same places.
ITEM, SHARER = 500.0, 125.0
CALL = 60_000.0  # to call a second thread
WORTH = 300_000.0  # least work for which a schedule is looked for
COMES = 50_000.0  # until one more helper has joined
GRAIN = 20_000.0  # of an item for one thread: its unknowns stay in the second-level cache
GRAINS = (2_500.0, 5_000.0, 10_000.0, 20_000.0, 40_000.0, 80_000.0)  # for several threads
COMPILES = 3e9  # to compile the kernels that make a schedule and those that follow one

_forgone = 0.0  # ns of work in this process for which a schedule would have been looked for


@dataclass(frozen=True, eq=False)
class Schedule:
    """Rows in the order `order` (n,), shared out as items of consecutive ones (see items.py).

    items (m + 1,) : item t is the rows order[items[t]:items[t + 1]].
    after (m,) : item t needs the results of items before after[t] only.
    level (n,) : rows of one item and one level do not depend on each other; or None where all are visited one by one.
    threads : how many can share it with profit.
    """

    order: np.ndarray
    items: np.ndarray
    after: np.ndarray
    level: np.ndarray | None
    threads: int

    def state(self):
        """The shared state of the threads of one call: (next item, first bad row), and a mask of finished items."""
        return np.array([0, self.order.size], np.int64), np.zeros(self.after.size, np.int8)


def sequential(triangle: Triangle) -> Schedule:
    """All rows in natural order, one item."""
    return Schedule(_visits(triangle), np.array([0, triangle.n]), np.zeros(1, np.int64), None, 1)


def _visits(triangle: Triangle):
    rows = np.arange(triangle.n, dtype=triangle.indices.dtype)
    return rows[::-1].copy() if triangle.reverse else rows


def schedule(
    triangle: Triangle, cost, level, *, sort: bool, scattered: float, required: bool = False
) -> Schedule | None:
    """The schedule with the shortest estimated time on up to get_num_threads() threads; None if one is as fast.

    Tried are blocks of consecutive rows and level sets, and the better of them with items of several sizes.
    cost (n,) float32 : ns of each row.
    level (n,) : of each row; None: for a single use only blocks of one size are tried, in a quarter of the time.
    sort : see Blocks.schedule.
    scattered : factor of a row's time in level order, where the data of its neighbours is far away.
    required : True makes a schedule for all threads, without comparing it with one thread.
    Cost: a few passes over the entries for each size.
    """
    once, work, most = level is None, float(cost.sum(dtype=np.float64)), get_num_threads()
    if not (required or could_pay(work)):
        return None
    counts = [most] if required else thread_counts(most)
    order = None if once else in_level_order(triangle, level)

    def tried(kind, size: int):
        """Its estimated time, the threads that take it, and the candidate with items of GRAINS[size]."""
        blocks = kind is Blocks
        found = Blocks(triangle, cost, GRAINS[size]) if blocks else Levels(triangle, cost, GRAINS[size], level, order)
        each = found.work if blocks else scattered * found.work
        return *min((makespan(each, found.after, count), count) for count in counts), found

    middle = len(GRAINS) // 2
    kinds = (Blocks,) if once else (Blocks, Levels)
    best_time, threads, best, kind = min(((*tried(kind, middle), kind) for kind in kinds), key=lambda found: found[0])
    for step in () if once else (-1, 1):
        size, improved = middle + step, False
        while 0 <= size < len(GRAINS):
            time, count, found = tried(kind, size)
            if time >= best_time:
                break
            best_time, threads, best, size, improved = time, count, found, size + step, True
        if improved:
            break
    return best.schedule(sort, threads) if required or best_time < 0.75 * work else None


def could_pay(work: float) -> bool:
    """Whether a schedule may shorten work of that many ns."""
    return get_num_threads() > 1 and work >= WORTH


def forgo(work: float) -> int:
    """The number of further calls of such work (ns) without a schedule, until all of them take as long as to compile
    the kernels that make one; 0: make one now. Always 0 once these are compiled.
    """
    global _forgone
    if _forgone < COMPILES and ready(makespan):
        _forgone = COMPILES  # the disk is not asked again
    if _forgone >= COMPILES:
        return 0
    _forgone += work  # threads that add at once may lose one addend
    return max(math.ceil((COMPILES - _forgone) / max(work, 1.0)), 0)


class Blocks:
    """Blocks of consecutive rows of about `grain` ns, in the order of their own levels.

    block, level (n,) : the block of each row, and the row's level inside it.  place (m,) : the place of a block in the
    order.  work, after (m,) : ns of a block, and the number of earlier blocks that must be done; both in this order.
    """

    def __init__(self, triangle: Triangle, cost, grain: float):
        n = triangle.n
        self.triangle, self.block, self.level = triangle, np.empty(n, np.int32), np.empty(n, np.int32)
        operand = (triangle.reverse, triangle.begin, triangle.end, unsigned(triangle.indices))
        m = _cut(*operand, cost, grain, self.block)
        block_level, self.place = np.zeros(m, np.int32), np.empty(m, np.int32)
        _block_levels(*operand, self.block, self.level, block_level)
        self.place[np.argsort(block_level, kind="stable")] = np.arange(m)
        self.work, self.after = np.zeros(m), np.zeros(m, np.int64)
        _dependencies(*operand[1:], self.place[self.block], cost, self.work, self.after)

    def schedule(self, sort: bool, threads: int) -> Schedule:
        """A schedule with the rows of a block in natural order, whose data is closest in memory, or with `sort` by
        level and length, so that neighbours rarely depend on each other and their latencies overlap.
        """
        item = self.place[self.block]
        rows = in_level_order(self.triangle, self.level) if sort else _visits(self.triangle)
        items = np.zeros(self.place.size + 1, np.int64)
        np.cumsum(np.bincount(item), out=items[1:])
        return Schedule(by_key(rows, item), items, self.after, self.level if sort else None, threads)


@compiled
def _cut(reverse, begin, end, indices, cost, grain, block):
    """block[i] for blocks that cost about `grain`, cut at rows that do not depend on the previous block. Returns m.

    That is where a plane of a grid begins: a block across two planes would have to wait for the end of the first. A
    block that such a row cuts off early, below half of `grain`, is added to the previous one.
    """
    n = block.size
    m = 0
    load = previous_load = np.float64(0)
    first = previous_first = 0  # visits at which this block and the one before begin
    for t in range(n):
        i = n - 1 - t if reverse else t
        nearest = -1  # visit of the last row that row i needs
        for p in range(begin[i], end[i]):
            j = np.int64(indices[p])
            nearest = max(nearest, n - 1 - j if reverse else j)
        if load >= grain or (nearest < first and load >= grain / 2):
            m += 1
            previous_first, previous_load = first, load
            first, load = t, 0.0
        elif m > 0 and nearest < previous_first and first < t and previous_load + load <= 1.5 * grain:
            for s in range(first, t):
                block[n - 1 - s if reverse else s] = m - 1
            previous_load += load
            first, load = t, 0.0
        block[i] = m
        load += cost[i]
    return m + 1


@compiled
def _block_levels(reverse, begin, end, indices, block, level, block_level):
    """Levels of the blocks, and of the rows inside their blocks."""
    n = block.size
    for t in range(n):
        i = n - 1 - t if reverse else t
        highest, own = 0, block[i]
        above = block_level[own]
        for p in range(begin[i], end[i]):
            j = indices[p]
            if block[j] == own:
                highest = max(highest, level[j] + 1)
            else:
                above = max(above, block_level[block[j]] + 1)
        level[i] = highest
        block_level[own] = above


def in_level_order(triangle: Triangle, level):
    """The rows sorted by level, then by length."""
    return by_key(by_key(_visits(triangle), np.minimum(triangle.end - triangle.begin, LONGEST)), level)


def by_key(rows, key):
    """`rows` sorted by key[row] >= 0, rows of one key in the order in which they come."""
    counts = np.zeros(int(key.max()) + 2, np.int64)
    np.cumsum(np.bincount(key), out=counts[1:])
    out = np.empty_like(rows)
    _scatter(rows, key, counts, out)
    return out


@compiled
def _scatter(rows, key, counts, out):
    for r in range(rows.size):
        k = key[rows[r]]
        out[counts[k]] = rows[r]
        counts[k] += 1


class Levels:
    """Rows in level order; a wide level is cut into items of `grain` ns, neighbouring narrow ones become one item.

    order (n,) : the rows sorted by `level`.  work, after (m,) : as in Blocks.
    """

    def __init__(self, triangle: Triangle, cost, grain: float, level, order):
        self.level, self.order = level, order
        cuts, item = np.empty(triangle.n + 1, np.int64), np.empty(triangle.n, np.int32)
        m = _cut_levels(order, level, cost, np.bincount(level, cost), grain, cuts, item)
        self.items = cuts[: m + 1].copy()
        self.work, self.after = np.zeros(m), np.zeros(m, np.int64)
        _dependencies(triangle.begin, triangle.end, unsigned(triangle.indices), item, cost, self.work, self.after)

    def schedule(self, sort: bool, threads: int) -> Schedule:
        return Schedule(self.order, self.items, self.after, self.level if sort else None, threads)


@compiled
def _cut_levels(order, level, cost, work, grain, items, item):
    """items[:m + 1] and the item of each row: levels with the work of two items are cut, others merged. Returns m."""
    m = 0
    items[0] = 0
    load = 0.0
    for r in range(order.size):
        now = level[order[r]]
        before = level[order[r - 1]] if r > 0 else now
        wide = work[now] >= 2 * grain
        if load > 0 and ((wide and load >= grain) or (now != before and (wide or work[before] >= 2 * grain))):
            m += 1
            items[m] = r
            load = 0.0
        item[order[r]] = m
        load += cost[order[r]]
    items[m + 1] = order.size
    return m + 1


@compiled
def _dependencies(begin, end, indices, item, cost, work, after):
    """work[t] of item t, and after[t] = 1 + the last other item that holds a column of a row of item t."""
    for i in range(item.size):
        t = item[i]
        work[t] += cost[i]
        for p in range(begin[i], end[i]):
            other = item[indices[p]]
            if other != t:
                after[t] = max(after[t], other + 1)


def sharers(work: float, items: int) -> int:
    """The number of threads that share `items` independent items of `work` ns in all: one, unless the others save as
    much time as a call to them takes."""
    threads = min(get_num_threads(), items)
    return threads if work * (threads - 1) >= CALL * threads else 1


def thread_counts(most: int) -> list[int]:
    """The numbers of threads that are compared."""
    return [2**k for k in range(1, 15) if 2**k < most] + [most]


@compiled
def makespan(work, after, threads):
    """ns until threads that take items in turn have done all items; the helpers join one after the other."""
    item = ITEM + SHARER * threads
    free = np.arange(threads) * COMES
    complete = np.zeros(after.size + 1)  # when all items before t are done
    for t in range(after.size):
        who = np.argmin(free)
        free[who] = max(free[who], complete[after[t]]) + work[t] + item
        complete[t + 1] = max(complete[t], free[who])
    return complete[after.size]
