"""Triangles of many independent parts, interleaved: LANES parts are solved at once, a part a lane of vector registers.

The row that a substitution solves waits for the row before it, so that one part leaves a processor idle most of the
time. LANES parts make a group. The places of row t of all of them are consecutive, and so are those of their entries;
shorter rows are filled up with zeros that belong to a row of zeros behind the last one. Parts of one size and pattern,
such as bricks of a grid, are put into the same groups, whose columns are stored once.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.indices import ONE
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lanes import LANES, subtract_products
from finelu.kernels.cpu.runtime.sharing import run_items

NARROWED = {"d": np.float32, "D": np.complex64}
SMALLEST, LARGEST = 1.2e-38, 3.4e38  # beyond which single precision loses digits
BASIS, PRIME = np.uint64(14695981039346656037), np.uint64(1099511628211)  # of the FNV-1a hash


def grouped(starts, plans, items):
    """(groups, LANES) int64 : parts that are solved at once, -1 for none: the largest first, those of one pattern in a
    row.

    items : the parts at which items of work begin.
    """
    keys = np.empty(starts.size - 1, np.uint64)
    run_items(_fingerprints, items.size - 1, items, starts, *(plan.pattern for plan in plans), keys)
    order = np.lexsort((keys, -np.diff(starts)))
    groups = np.full(-(-order.size // LANES) * LANES, -1, np.int64)
    groups[: order.size] = order
    return groups.reshape(-1, LANES)


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

    groups : of `grouped`.  items : the groups at which items of work begin.
    row_starts (groups + 1,) : the first row of each group, which has as many rows as its largest part.
    """

    def __init__(self, starts, groups, row_starts, items, plan):
        self.plan, self.reverse = plan, plan.triangle.reverse
        self._parts, self._items = (starts, groups, row_starts), items
        count, rows = groups.shape[0], int(row_starts[-1])
        self.alike, widths = np.empty(count, np.bool_), np.empty(rows, np.int64)
        run_items(_measure, items.size - 1, items, *self._parts, plan.pattern, self.alike, widths)
        self.begins = np.zeros(rows + 1, np.int64)
        np.cumsum(widths, out=self.begins[1:])
        entries = np.diff(self.begins[row_starts])
        columns = np.concatenate([[0], np.cumsum(np.where(self.alike, 1, LANES) * entries)])
        # of the column of entry e, see `subtract_products`
        self.offsets = columns[:-1] - np.where(self.alike, 1, LANES) * self.begins[row_starts[:-1]]
        most = int(np.diff(row_starts).max(initial=0))
        self.columns = np.empty(columns[-1], np.uint16 if most < 2**16 else np.uint32)
        layout = self.alike, self.begins, self.offsets
        run_items(_lay_out, items.size - 1, items, *self._parts, plan.pattern, *layout, self.columns)

    def load(self, narrow):
        """Take the values of the plan; whether all fit the stored precision.

        narrow : store entries in single precision, relative to the diagonal entry of their row.
        """
        given, plan = self.plan.values.dtype, self.plan
        self.stored = np.dtype(NARROWED.get(given.char, given) if narrow else given)
        self.scaled = self.stored != given
        self.values = np.empty(int(self.begins[-1]) * LANES, self.stored)
        rows = 0 if plan.triangle.diag is None else self.begins.size - 1
        self.pivots = np.empty(rows * LANES, given)
        operands = *plan.pattern, plan.values, plan.places, plan.pivots
        results = self.begins, self.scaled, self.values, self.pivots
        return not run_items(_load, self._items.size - 1, self._items, *self._parts, operands, *results)

    def arguments(self):
        return (
            *(self.reverse, self.alike, self.begins, self.columns, self.offsets),
            *(self.values, self.pivots, self.scaled),
        )


@by_items
def _measure(t, items, starts, groups, row_starts, pattern, alike, widths):
    begin, end, indices = pattern
    for g in range(items[t], items[t + 1]):
        base, height = row_starts[g], row_starts[g + 1] - row_starts[g]
        widths[base : base + height] = 0
        example = np.uint64(starts[groups[g, 0]])
        same = True
        for lane in range(LANES):
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
def _lay_out(t, items, starts, groups, row_starts, pattern, alike, begins, offsets, columns):
    begin, end, indices = pattern
    for g in range(items[t], items[t + 1]):
        height = row_starts[g + 1] - row_starts[g]
        for lane in range(1 if alike[g] else LANES):
            p = groups[g, lane]
            first = 0 if p < 0 else np.int64(starts[p])
            size = 0 if p < 0 else np.int64(starts[p + 1]) - first
            for k in range(height):
                source = np.int64(begin[first + k]) if k < size else np.int64(0)
                last = np.int64(end[first + k]) if k < size else np.int64(0)
                for e in range(begins[row_starts[g] + k], begins[row_starts[g] + k + 1]):
                    place = (e if alike[g] else e * LANES + lane) + offsets[g]
                    columns[place] = np.int64(indices[source]) - first if source < last else height
                    source += 1


@by_items
def _load(t, items, state, starts, groups, row_starts, operands, begins, scaled, stored, stored_pivots):
    """state[2] counts the values out of the range of single precision."""
    begin, end, _, values, places, pivots = operands
    unfit = 0
    for g in range(items[t], items[t + 1]):
        height = row_starts[g + 1] - row_starts[g]
        for lane in range(LANES):
            p = groups[g, lane]
            first = 0 if p < 0 else np.int64(starts[p])
            size = 0 if p < 0 else np.int64(starts[p + 1]) - first
            for k in range(height):
                i, row = first + k, row_starts[g] + k
                source = np.int64(begin[i]) if k < size else np.int64(0)
                last = np.int64(end[i]) if k < size else np.int64(0)
                scale = values.dtype.type(1)
                if stored_pivots.size:
                    pivot = pivots[places[np.uint64(i)]] if k < size else scale
                    if scaled:
                        pivot = scale = divide(scale, pivot)
                    stored_pivots[row * LANES + lane] = pivot
                for e in range(begins[row], begins[row + 1]):
                    v = values.dtype.type(0)
                    if source < last:
                        v = values[source] * scale if scaled else values[source]
                        if scaled and (_lost(v.real) or _lost(v.imag)):
                            unfit += 1
                    stored[e * LANES + lane] = v
                    source += 1
    if unfit:
        fetch_add(state, 2, unfit)


@compiled
def _lost(v):
    """Whether v is beyond the range in which single precision has all its digits; not so of 0, NaN and Inf."""
    return np.isfinite(v) and v != 0 and not SMALLEST <= abs(v) <= LARGEST


@compiled
def substitute(s, g, first, last, reverse, alike, begins, columns, offsets, values, pivots, scaled):
    """s = T^-1 s in group g, whose rows are those from `first` to before `last`. s has LANES places for each row and a
    row of zeros more.

    With pivots a row is divided by its own; or, if scaled, multiplied by it before the other rows, whose entries are
    relative to it, are subtracted.
    """
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
