"""Triangles of many independent parts, interleaved: LANES parts are solved at once, a part a lane of vector registers.

The row that a substitution solves waits for the row before it, so that one part leaves a processor idle most of the
time. LANES parts make a full group. The places of row t of all of them are consecutive, and so are those of their
entries; shorter rows are filled up with zeros that belong to a row of zeros behind the last one. Parts of one size and
pattern, such as bricks of a grid, are put into the same groups, whose columns are stored once. A part that has no
others like it makes a group of one lane, without zeros. The bits of a part's solution do not depend on its group.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.indices import pointers
from finelu.kernels.cpu.runtime.arithmetic import beyond_single, divide
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.columns import divide_row, divisor, scale_row, subtract_entries
from finelu.kernels.cpu.runtime.indices import ONE
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lanes import LANES, subtract_products
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.operands import narrowed

# The time of a full group of alike parts, in times of one of them alone: parts of a 5-point grid of 300^2, 16 or more,
# took twice the time one by one.
FULL = 4
# Consecutive parts among which those of a group are sought, so that a cache holds their unknowns: of 21,944 aggregates
# of a 5-point grid a solve takes 25 ms, and 41 if the groups are sought among all.
WINDOW = 128
SMALLEST_NORMAL = 2.3e-308  # of double precision
BASIS, PRIME = np.uint64(14695981039346656037), np.uint64(1099511628211)  # of the FNV-1a hash


def in_groups(starts, plans, items, threads):
    """The parts that are solved at once, and the number of full groups.

    Returns groups (count, LANES) int64, the parts of each, the largest first, or -1: first the full groups, of up to
    LANES parts, then those of one part, in both in the order of `_order`.
    items : the parts at which items of work begin.
    threads : that share the groups. Parts that these solve sooner one by one make groups of their own, as do those of
        groups that would hold too many zeros.
    """
    keys = np.empty(starts.size - 1, np.uint64)
    patterns = [plan.pattern for plan in plans]
    run_items(_fingerprints, items.size - 1, items, starts, *patterns, keys)
    sizes = np.append(np.diff(starts), 0)  # of -1, too
    order = _order(sizes[:-1], keys)
    groups = np.full(-(-order.size // LANES) * LANES, -1, np.int64)
    groups[: order.size] = order
    groups = groups.reshape(-1, LANES)
    groups = np.take_along_axis(groups, np.argsort(-sizes[groups], axis=1, kind="stable"), axis=1)
    if -(-order.size // threads) < FULL * -(-groups.shape[0] // threads):
        full = np.zeros(groups.shape[0], np.bool_)
    else:
        real, padded = (np.empty(groups.shape[0], np.int64) for _ in range(2))
        places = np.linspace(0, groups.shape[0], items.size).astype(np.int64)
        run_items(_count_places, places.size - 1, places, starts, groups, keys, *patterns, real, padded)
        full = FULL * padded <= LANES * real
    single = groups[~full].ravel()
    single = single[single >= 0]
    alone = np.full((single.size, LANES), -1, np.int64)
    alone[:, 0] = single
    return np.concatenate([groups[full], alone]), int(full.sum())


def _order(sizes, keys):
    """The parts (count,): those with at least LANES of one size and pattern, the largest first; then the others in
    their order, those of a window by size, so that parts solved at once, or one after the other, are near each other.
    """
    _, kind, numbers = np.unique(keys, return_inverse=True, return_counts=True)
    shared = numbers[kind] >= LANES
    parts, others = np.flatnonzero(shared), np.flatnonzero(~shared)
    windows = np.arange(others.size) // WINDOW
    parts = parts[np.lexsort((keys[parts], -sizes[parts]))]
    return np.concatenate([parts, others[np.lexsort((-sizes[others], windows))]])


@by_items
def _count_places(t, items, starts, groups, keys, first, second, real, padded):
    """The rows and entries of the parts of each group, and their places in a full group; 1 and 1 for parts of one
    pattern."""
    for g in range(items[t], items[t + 1]):
        one = groups[g, LANES - 1] >= 0
        for lane in range(1, LANES):
            one = one and keys[groups[g, lane]] == keys[groups[g, 0]]
        real[g] = padded[g] = 1 if one else 0
        if one:
            continue
        height = starts[groups[g, 0] + 1] - starts[groups[g, 0]]
        for k in range(height):
            for begin, end, _ in (first, second):
                widest = np.int64(0)
                for lane in range(LANES):
                    p = groups[g, lane]
                    if p >= 0 and k < starts[p + 1] - starts[p]:
                        i = np.uint64(starts[p] + k)
                        width = np.int64(end[i]) - np.int64(begin[i])
                        widest = max(widest, width)
                        real[g] += width + 1
                padded[g] += LANES * (widest + 1)


@by_items
def _fingerprints(t, items, starts, first, second, keys):
    """keys[p] : a hash of the patterns of both triangles in part p."""
    for p in range(items[t], items[t + 1]):
        keys[p] = _hashed(_hashed(BASIS, starts[p], starts[p + 1], *first), starts[p], starts[p + 1], *second)


@compiled
def _hashed(key, first, last, begin, end, indices):
    for i in range(np.uint64(first), np.uint64(last)):
        key = (key ^ np.uint64(end[i] - begin[i])) * PRIME
        for p in range(np.uint64(begin[i]), np.uint64(end[i])):
            key = (key ^ (np.uint64(indices[p]) - np.uint64(first))) * PRIME
    return key


class Interleaved:
    """A triangle of all parts.

    groups : of `in_groups`.  lanes (groups,) : the lanes of each.  items : the groups at which items of work begin.
    row_starts (groups + 1,) : the first row of each group, which has as many rows as its largest part.
    """

    def __init__(self, starts, groups, lanes, row_starts, items, plan):
        self.plan, self.reverse = plan, plan.triangle.reverse
        self._parts, self._items, self._lanes = (starts, groups, lanes, row_starts), items, lanes
        count, rows = groups.shape[0], int(row_starts[-1])
        self.alike, widths = np.empty(count, np.bool_), np.empty(rows, np.int64)
        run_items(_measure, items.size - 1, items, *self._parts, plan.pattern, self.alike, widths)
        self.begins, _ = pointers(widths)
        ends = self.begins[row_starts]
        self.offsets, places = _offsets(np.where(self.alike, 1, lanes), ends)
        self._value_offsets, self._values = _offsets(lanes, ends)
        self._pivot_offsets, self._pivots = _offsets(lanes, row_starts)
        most = int(np.diff(row_starts).max(initial=0))
        self.columns = np.empty(places, np.uint16 if most < 2**16 else np.uint32)
        layout = self.alike, self.begins, self.offsets
        run_items(_lay_out, items.size - 1, items, *self._parts, plan.pattern, *layout, self.columns)

    def load(self, narrow, mirrored=None, squared=False):
        """Take the values of the plan; whether all fit the stored precision.

        narrow : store entries in single precision, relative to the diagonal entry of their row.
        mirrored : the plan of U, if L is loaded and is to be (D^-1 U)^H, without a diagonal. L's own entries differ
            from that by rounding, and some would become another number of single precision.
        squared : whether the diagonal is to be D^2, for a plan of L^H, where D is the diagonal of L: L L^H = K D^2 K^H
            for K = L D^-1, which is (D^-1 L^H)^H, and D^2 K^H has the entries of L^H relative to its diagonal.
        """
        given, plan = self.plan.values.dtype, self.plan
        self.stored = narrowed(given) if narrow else given
        self.scaled = self.stored != given
        self.values = np.empty(self._values, self.stored)
        self.pivots = np.empty(0 if plan.triangle.diag is None or mirrored is not None else self._pivots, given)
        operands, upper = (
            (*each.pattern, each.values, each.places, each.pivots)
            for each in (plan, plan if mirrored is None else mirrored)
        )
        cursors = np.empty(0 if mirrored is None else upper[0].size, np.uint64)
        operands = operands, upper, cursors
        layout = self.begins, self._value_offsets, self._pivot_offsets
        results = self.scaled, squared, self.values, self.pivots
        return not run_items(_load, self._items.size - 1, self._items, *self._parts, *operands, *layout, *results)

    def arguments(self):
        return (
            *(self.reverse, self.alike, self.begins, self.columns, self.offsets),
            *(self._value_offsets, self._pivot_offsets, self.values, self.pivots, self.scaled),
        )


def _offsets(lanes, begins):
    """Where groups of these lanes lie behind one another, as (offsets, size): number e of group g, which has those
    from begins[g] to before begins[g + 1], has the places from e * lanes[g] + offsets[g] on."""
    ends = np.concatenate([[0], np.cumsum(lanes * np.diff(begins))])
    return ends[:-1] - lanes * begins[:-1], int(ends[-1])


@by_items
def _measure(t, items, starts, groups, lanes, row_starts, pattern, alike, widths):
    begin, end, indices = pattern
    for g in range(items[t], items[t + 1]):
        base, height = row_starts[g], row_starts[g + 1] - row_starts[g]
        widths[base : base + height] = 0
        example = np.uint64(starts[groups[g, 0]])
        same = True
        for lane in range(lanes[g]):
            p = groups[g, lane]
            if p < 0:
                continue
            first, size = np.uint64(starts[p]), starts[p + 1] - starts[p]
            same = same and size == height
            for k in range(size):
                i = first + np.uint64(k)
                width = np.int64(end[i]) - np.int64(begin[i])
                widths[base + k] = max(widths[base + k], width)
                if same:
                    other = example + np.uint64(k)
                    same = np.int64(end[other]) - np.int64(begin[other]) == width
                    if same:
                        for e in range(np.uint64(width)):
                            mine, its = np.uint64(indices[begin[i] + e]), np.uint64(indices[begin[other] + e])
                            same = same and mine - first == its - example
        alike[g] = same


@by_items
def _lay_out(t, items, starts, groups, lanes, row_starts, pattern, alike, begins, offsets, columns):
    begin, end, indices = pattern
    for g in range(items[t], items[t + 1]):
        height = row_starts[g + 1] - row_starts[g]
        for lane in range(1 if alike[g] else lanes[g]):
            p = groups[g, lane]
            first = 0 if p < 0 else np.int64(starts[p])
            size = 0 if p < 0 else np.int64(starts[p + 1]) - first
            for k in range(height):
                source = np.int64(begin[first + k]) if k < size else np.int64(0)
                last = np.int64(end[first + k]) if k < size else np.int64(0)
                for e in range(begins[row_starts[g] + k], begins[row_starts[g] + k + 1]):
                    place = (e if alike[g] else e * lanes[g] + lane) + offsets[g]
                    columns[place] = np.int64(indices[source]) - first if source < last else height
                    source += 1


@by_items
def _load(
    t,
    items,
    state,
    starts,
    groups,
    lanes,
    row_starts,
    operands,
    upper,
    cursors,
    begins,
    value_offsets,
    pivot_offsets,
    scaled,
    squared,
    stored,
    stored_pivots,
):
    """state[2] counts the values out of the range of single precision.

    cursors (n,) : if the entries are to be those of (D^-1 U)^H: for each row of U the place of the first entry that was
        not asked for, as rows ascend. A part has its own rows. Else (0,).
    """
    begin, end, indices, values, places, pivots = operands
    upper_begin, upper_end, upper_indices, upper_values, upper_places, upper_pivots = upper
    unfit = 0
    for g in range(items[t], items[t + 1]):
        height = row_starts[g + 1] - row_starts[g]
        for lane in range(lanes[g]):
            p = groups[g, lane]
            first = 0 if p < 0 else np.int64(starts[p])
            size = 0 if p < 0 else np.int64(starts[p + 1]) - first
            for k in range(size if cursors.size else 0):
                cursors[first + k] = upper_begin[first + k]
            for k in range(height):
                i, row = first + k, row_starts[g] + k
                source = np.int64(begin[i]) if k < size else np.int64(0)
                last = np.int64(end[i]) if k < size else np.int64(0)
                one = pivot = values.dtype.type(1)
                if stored_pivots.size:
                    pivot = pivots[places[np.uint64(i)]] if k < size else one
                    inverse = divide(divide(one, pivot), pivot) if squared else divide(one, pivot)
                    if scaled and pivot != 0 and np.isfinite(pivot) and not _is_normal(inverse):
                        unfit += 1
                    stored_pivots[row * lanes[g] + lane + pivot_offsets[g]] = inverse if scaled else pivot
                for e in range(begins[row], begins[row + 1]):
                    v = values.dtype.type(0)
                    if source < last:
                        v = divide(values[source], pivot) if scaled else values[source]
                        if cursors.size:
                            j = np.uint64(indices[source])
                            place, stop = np.uint64(cursors[j]), np.uint64(upper_end[j])
                            while place < stop and np.int64(upper_indices[place]) < i:
                                place += ONE
                            cursors[j] = place
                            if place < stop and np.int64(upper_indices[place]) == i:
                                v = np.conj(divide(upper_values[place], upper_pivots[upper_places[j]]))
                        if scaled and _is_lost(v, values[source]):
                            unfit += 1
                    stored[e * lanes[g] + lane + value_offsets[g]] = v
                    source += 1
    if unfit:
        fetch_add(state, 2, unfit)


@compiled
def _is_normal(v):
    return SMALLEST_NORMAL <= max(abs(v.real), abs(v.imag)) < np.inf


@compiled
def _is_lost(v, source):
    """Whether v, made of the source, is beyond the range in which single precision has all its digits; not so of a
    source that is 0, NaN or Inf."""
    if source == 0 or not np.isfinite(source):
        return False
    return v == 0 or beyond_single(v.real) or beyond_single(v.imag)


@compiled
def substitute(
    s,
    g,
    lanes,
    first,
    last,
    reverse,
    alike,
    begins,
    columns,
    offsets,
    value_offsets,
    pivot_offsets,
    values,
    pivots,
    scaled,
):
    """s = T^-1 s in group g, whose rows are those from `first` to before `last`. s has a place for each lane and row,
    and a row of zeros more.

    With pivots a row is divided by its own; or, if scaled, multiplied by it before the other rows, whose entries are
    relative to it, are subtracted.
    """
    if lanes == 1:
        own = begins, columns, offsets[g], value_offsets[g], pivot_offsets[g]
        _substitute_one(s, first, last, reverse, *own, values, pivots, scaled)
        return
    for t in range(last - first):
        k = last - first - 1 - t if reverse else t
        row = first + k
        if pivots.size and scaled:
            for lane in range(LANES):
                s[np.uint64(k * LANES + lane)] *= pivots[np.uint64(row * LANES + lane)]
        begin, end = begins[np.uint64(row)], begins[np.uint64(row) + ONE]
        subtract_products(s, k, alike[g], columns, offsets[g], values, begin, end)
        if pivots.size and not scaled:
            for lane in range(LANES):
                place = np.uint64(k * LANES + lane)
                s[place] = divide(s[place], pivots[np.uint64(row * LANES + lane)])


@compiled
def _substitute_one(
    s, first, last, reverse, begins, columns, column_offset, value_offset, pivot_offset, values, pivots, scaled
):
    """s = T^-1 s in a group of one lane, with the operations of a lane of a full group."""
    for t in range(last - first):
        k = last - first - 1 - t if reverse else t
        row = first + k
        total = s[np.uint64(k)]
        if pivots.size and scaled:
            total *= pivots[np.uint64(row + pivot_offset)]
        for e in range(begins[np.uint64(row)], begins[np.uint64(row) + ONE]):
            total -= values[np.uint64(e + value_offset)] * s[np.uint64(columns[np.uint64(e + column_offset)])]
        if pivots.size and not scaled:
            total = divide(total, pivots[np.uint64(row + pivot_offset)])
        s[np.uint64(k)] = total


@compiled
def substitute_columns(
    s, blocks, size, g, lane, lanes, first, last, reverse, alike, begins, columns, offsets, value_offsets,
    pivot_offsets, values, pivots, scaled,
):  # fmt: skip
    """s = T^-1 s for the part of `size` rows in a lane of group g, for the columns in the rows of s: LANES a block,
    with the operations of `substitute` for each."""
    step, one = np.uint64(lanes), np.uint64(1)
    column_step, column_lane = (one, 0) if alike[g] else (step, lane)
    stride = np.uint64(blocks * LANES)
    for t in range(size):
        k = size - 1 - t if reverse else t
        row = first + k
        i, begin = np.uint64(k), begins[np.uint64(row)]
        count = np.uint64(begins[np.uint64(row) + ONE] - begin)
        column = np.uint64(begin * np.int64(column_step) + column_lane + offsets[g])
        value = np.uint64(begin * lanes + lane + value_offsets[g])
        for block in range(blocks):
            tile = np.uint64(block * LANES)
            if pivots.size and scaled:
                scale_row(s, stride, tile, i, pivots[row * lanes + lane + pivot_offsets[g]])
            subtract_entries(s, stride, tile, i, columns, column, values, value, step, column_step, count)
            if pivots.size and not scaled:
                divide_row(s, stride, tile, i, *divisor(pivots[row * lanes + lane + pivot_offsets[g]]))
