"""Triangular solves T x = b, T = D + N: plans that keep the analysis of a triangle and solve as often as wanted."""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.kernels.cpu.levels import levels
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.claims import claim, complete, wait_until_done
from finelu.kernels.cpu.runtime.indices import unsigned
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.schedule import GRAIN, Blocks, Schedule, schedule, sequential
from finelu.kernels.operands import Triangle
from finelu.threads import run

TRIANGULAR_METHODS = ("sequential", "levels", "jacobi", "isai")
ROW, ENTRY = 0.6, 0.35  # ns for a row and for an entry of it in a slice of four, measured as in levels.py
SCATTERED = 1.35  # how much longer a row takes in level order than in blocks
ROWS_AN_ITEM = 4096  # of the methods whose rows do not depend on each other
ONE, TWO, THREE, FOUR = (np.uint64(k) for k in (1, 2, 3, 4))  # an int would turn an unsigned index into a float


def triangular_plan(triangle: Triangle, method: str, sweeps: int):
    """The plan of one of TRIANGULAR_METHODS, or of the faster exact one for "auto"; `sweeps` is of jacobi and isai."""
    if method == "jacobi":
        return Jacobi(triangle, sweeps)
    if method == "isai":
        return ISAI(triangle, sweeps)
    if method == "sequential":
        return Exact(triangle, "sequential", sequential(triangle), None)
    level, depth = levels(triangle)
    if method == "auto" and depth > triangle.n // 2:  # a chain: few rows whose latencies could overlap
        return Exact(triangle, "sequential", sequential(triangle), depth)
    cost = ROW + ENTRY * (triangle.end - triangle.begin).astype(np.float32)
    shared = schedule(triangle, cost, level, sort=True, scattered=SCATTERED)
    return Exact(triangle, "levels", shared or Blocks(triangle, cost, GRAIN).schedule(True, 1), depth)


class Exact:
    """Substitution, row by row in the order of a schedule, in which the entries are stored too.

    Four rows in sequence that have as many entries as each other and do not depend on each other are a slice of four:
    their entries lie side by side, the first of each row, then the second of each, and they are solved at once. The
    terms of a row are subtracted in ascending order of columns all the same: the bits are those of the sequential
    algorithm.
    """

    def __init__(self, triangle: Triangle, method: str, schedule: Schedule, depth: int | None):
        self.method, self.depth, self.threads, self.triangle = method, depth, schedule.threads, triangle
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
        self.vals, self.diag = (
            np.empty(triangle.entries, triangle.dtype),
            np.empty(self.diag_source.size, triangle.dtype),
        )

    def load(self, values) -> int:
        """Take new values. Returns the first row whose diagonal has no finite reciprocal, or -1."""
        conjugate = self.triangle.conjugate
        _gather(conjugate, unsigned(self.source), values, self.vals)
        _gather(conjugate, unsigned(self.diag_source), values, self.diag)
        return _first_bad_diagonal(self.schedule.order, self.diag)

    def solve(self, b, x) -> None:
        """x = T^-1 b, both (n,) or (n, k) and C-contiguous."""
        s = self.schedule
        kernel = _solve_many
        if b.size == self.triangle.n:
            kernel, b, x = _solve, b.reshape(-1), x.reshape(-1)
        run(kernel, s.threads, s.after, *s.state(), *self.pattern, self.vals, self.diag, b, x)


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


@compiled
def _gather(conjugate, source, values, out):
    """out[q] = values[source[q]], conjugated on demand."""
    if conjugate:
        for q in range(source.size):
            out[q] = np.conj(values[source[q]])
    else:
        for q in range(source.size):
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


@compiled
def _solve(after, state, done, items, slices, order, ptr, cols, vals, diag, b, x):
    """x = T^-1 b; several threads may run it on the same arguments, see claims.py."""
    known, t = 0, claim(state)
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        for s in range(items[t], items[t + 1]):
            r = np.uint64(slices[s])
            p, stop = np.uint64(ptr[s]), np.uint64(ptr[s + ONE])
            if np.uint64(slices[s + ONE]) - r == FOUR:
                i0, i1, i2, i3 = order[r], order[r + ONE], order[r + TWO], order[r + THREE]
                s0, s1, s2, s3 = b[i0], b[i1], b[i2], b[i3]
                while p < stop:
                    s0 -= vals[p] * x[cols[p]]
                    s1 -= vals[p + ONE] * x[cols[p + ONE]]
                    s2 -= vals[p + TWO] * x[cols[p + TWO]]
                    s3 -= vals[p + THREE] * x[cols[p + THREE]]
                    p += FOUR
                if diag.size:
                    s0, s1 = divide(s0, diag[r]), divide(s1, diag[r + ONE])
                    s2, s3 = divide(s2, diag[r + TWO]), divide(s3, diag[r + THREE])
                x[i0], x[i1], x[i2], x[i3] = s0, s1, s2, s3
            else:
                i = order[r]
                total = b[i]
                while p < stop:
                    total -= vals[p] * x[cols[p]]
                    p += ONE
                x[i] = divide(total, diag[r]) if diag.size else total
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)


@compiled
def _solve_many(after, state, done, items, slices, order, ptr, cols, vals, diag, b, x):
    """The same for b and x (n, k): all columns of a slice before the next slice."""
    columns = np.uint64(b.shape[1])
    known, t = 0, claim(state)
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        for s in range(items[t], items[t + 1]):
            r = np.uint64(slices[s])
            begin, stop = np.uint64(ptr[s]), np.uint64(ptr[s + ONE])
            if np.uint64(slices[s + ONE]) - r == FOUR:
                i0, i1, i2, i3 = order[r], order[r + ONE], order[r + TWO], order[r + THREE]
                for c in range(columns):
                    s0, s1, s2, s3 = b[i0, c], b[i1, c], b[i2, c], b[i3, c]
                    p = begin
                    while p < stop:
                        s0 -= vals[p] * x[cols[p], c]
                        s1 -= vals[p + ONE] * x[cols[p + ONE], c]
                        s2 -= vals[p + TWO] * x[cols[p + TWO], c]
                        s3 -= vals[p + THREE] * x[cols[p + THREE], c]
                        p += FOUR
                    if diag.size:
                        s0, s1 = divide(s0, diag[r]), divide(s1, diag[r + ONE])
                        s2, s3 = divide(s2, diag[r + TWO]), divide(s3, diag[r + THREE])
                    x[i0, c], x[i1, c], x[i2, c], x[i3, c] = s0, s1, s2, s3
            else:
                i = order[r]
                for c in range(columns):
                    total = b[i, c]
                    for p in range(begin, stop):
                        total -= vals[p] * x[cols[p], c]
                    x[i, c] = divide(total, diag[r]) if diag.size else total
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)


class _Sweeping:
    """What jacobi and isai share: values in natural order, and passes over all rows that each need the one before.

    Item t of a call is chunk t % m of pass t // m; it starts when the pass before is complete.
    """

    depth = None

    def __init__(self, triangle: Triangle, sweeps: int):
        self.triangle, self.sweeps = triangle, sweeps
        self.values: Any = None
        self.diag: Any = None
        self.rows = np.arange(triangle.n, dtype=triangle.indices.dtype)

    def load(self, values) -> int:
        t = self.triangle
        if t.source is None and not t.conjugate:
            self.values = values
        else:
            if self.values is None:
                self.values = np.empty(t.indices.size, values.dtype)
            source = np.arange(t.indices.size) if t.source is None else t.source
            _gather(t.conjugate, source, values, self.values)
        if self.diag is None:
            self.diag = np.empty(0 if t.diag is None else t.n, values.dtype)
        if t.diag is not None:
            _gather(t.conjugate, t.diag, values, self.diag)
        return _first_bad_diagonal(self.rows, self.diag)

    def _run(self, kernel, passes, *args):
        t = self.triangle
        chunks = -(-t.n // ROWS_AN_ITEM)
        after = np.repeat(np.arange(passes) * chunks, chunks)
        state, done = np.zeros(1, np.int64), np.zeros(passes * chunks, np.int8)
        run(kernel, chunks, chunks, after, state, done, unsigned(t.begin), unsigned(t.end), unsigned(t.indices), *args)


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


@compiled
def _jacobi(chunks, after, state, done, begin, end, indices, values, diag, b, x, y):
    """Even passes: y = D^-1 (b - N x). Odd passes: the same with x and y exchanged."""
    n = b.shape[0]
    known, t = 0, claim(state)
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        s, chunk = divmod(t, chunks)
        old, new = (x, y) if s % 2 == 0 else (y, x)
        for i in range(chunk * ROWS_AN_ITEM, min(n, (chunk + 1) * ROWS_AN_ITEM)):
            for c in range(b.shape[1]):
                total = b[i, c]
                for p in range(begin[i], end[i]):
                    total -= values[p] * old[indices[p], c]
                new[i, c] = divide(total, diag[i]) if diag.size else total
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)


class ISAI(_Sweeping):
    """x = W b with an incomplete sparse approximate inverse W; then `sweeps` - 1 corrections x <- x + W (b - T x)."""

    method = "isai"

    def load(self, values) -> int:
        bad = super().load(values)
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


@compiled
def _isai(chunks, after, state, done, begin, end, indices, reverse, values, diag, w, w_diag):
    """Row i of W, from the column nearest to the diagonal outwards: (W T)_ij = 0 gives w_ij from those before it.

    Entry j needs T_mj for the columns m between j and i, found by binary search in row m. Each row by itself.
    """
    n = w_diag.size
    one = values.dtype.type(1)
    t = claim(state)
    while t < done.size:
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
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


@compiled
def _isai_solve(chunks, after, state, done, begin, end, indices, values, diag, w, w_diag, b, r, x):
    """Even passes: x += W r (r = b and x = 0 at first). Odd passes: r = b - T x."""
    n = b.shape[0]
    known, t = 0, claim(state)
    while t < after.size:
        known = wait_until_done(done, known, after[t])
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
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)
