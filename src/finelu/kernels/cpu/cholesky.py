"""A complete L D L^H, or L D M^H, without pivoting by the subtrees of an elimination tree, and the solves with it.

The rows of a subtree need no rows of others: threads share the subtrees. Above them are the rows that separate these.
Each is an item of its own, that waits for the rows which it needs: the last ones only at its end, so that threads
share dense rows, too. In a solve only the block of the rows above is left to one thread.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.atomics import fetch_add, load_acquire, relax
from finelu.kernels.cpu.runtime.columns import (
    divide_row_by_real,
    subtract_entries,
    subtract_from_rows,
    subtract_inner,
)
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import by_ordered_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled, summing
from finelu.kernels.cpu.runtime.lanes import LANES
from finelu.kernels.cpu.runtime.row_blocks import threads_for, workspace
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.runtime.workers import run

SHARE = 32  # of all entries of L the most that the rows of a subtree have
ROWS = 64  # rows of an item where the pattern is sought
LONG = np.uint64(16)  # entries of a run from which vector registers pay
ALONE = 2**15  # entries of L up to which one thread is as fast as several


class Cholesky:
    """The analysis of a pattern, and factors with it; see kernels/reference/cholesky.py.

    The bits do not depend on the number of threads. Cost of the analysis: O(entries of L).
    """

    def __init__(self, indptr, indices, order, parent):
        n, index = order.size, np.int32
        self.indptr, self.indices = indptr, indices
        inverse, lengths = np.empty(n, index), np.empty(n, np.int64)
        inverse[order] = np.arange(n, dtype=index)
        parent = parent.astype(index)
        nothing, empty = np.zeros(n + 1, np.int64), np.empty(0, index)
        self._reach(order, inverse, parent, nothing, empty, lengths)
        place, starts = np.empty(n, index), np.empty(n + 1, np.int64)
        items, self._below = _divide(parent, lengths, int(lengths.sum()) // SHARE, place, starts)
        self._starts = starts[: items + 1].copy()  # the rows of the subtrees
        self.order = np.empty(n, np.int64)
        self.order[place] = order
        above = np.full(n, -1, index)
        above[place] = np.where(parent >= 0, place[parent], -1)
        inverse[self.order] = np.arange(n, dtype=index)
        self.begin = np.zeros(n + 1, np.int64)
        ordered = np.empty(n, np.int64)
        ordered[place] = lengths
        np.cumsum(ordered, out=self.begin[1:])
        self.columns = np.empty(int(self.begin[-1]), index)
        self._reach(self.order, inverse, above, self.begin, self.columns, lengths)
        _sort(self.begin, self.columns)
        self._inverse = inverse
        starts_run = np.ones(self.columns.size, np.bool_)
        _find_runs(self.begin, self.columns, starts_run)
        runs = np.flatnonzero(starts_run)  # of columns next to one another
        self._runs = np.searchsorted(runs, self.begin), np.append(runs, self.columns.size), self.columns[runs]
        self._split = np.empty(n - self._below, np.int64)  # of each row above, where its columns above begin
        self._lower = np.zeros(self._below + 1, np.int64)  # the entries of rows above, by the columns of the subtrees
        _count_columns(self.begin, self.columns, self._below, self._split, self._lower)
        self._rows, self._places = np.empty(int(self._lower[-1]), index), np.empty(int(self._lower[-1]), np.int64)
        _sort_columns(self.begin, self.columns, self._below, self._split, self._lower, self._rows, self._places)
        self._threads = None if threads_for(self.columns.size, ALONE) > 1 else 1

    def _reach(self, order, inverse, parent, begin, columns, lengths):
        n = order.size
        items = np.append(np.arange(0, n, ROWS), n)
        marks = workspace(items.size - 1, n, np.int32)
        marks[:] = -1
        arguments = items, self.indptr, self.indices, order, inverse, parent, marks, begin, columns, lengths
        run_items(_reach, items.size - 1, *arguments, threads=marks.shape[0])

    def factor(self, data, weights, opposite=None):
        """Factor W A W, with ones on the diagonal where a weight is 0; returns the pivots (n,), in A's order."""
        n, hermitian = self.order.size, opposite is None
        self.weights, self.values = weights, np.empty(self.columns.size, data.dtype)
        self.others = self.values if hermitian else np.empty_like(self.values)  # of M, as those of L
        self.pivots = np.empty(n, np.float64 if hermitian else data.dtype)
        items = self._starts.size - 1 + n - self._below
        work = workspace(1 if self._threads == 1 else items, n if hermitian else 2 * n, data.dtype)
        work[:] = 0
        A = self.indptr, self.indices, data, weights
        run_items(
            *(_factor, items, self._starts, self._below, A, opposite, self.order, self._inverse),
            *(self.begin, self.columns, self._runs, self.values, self.others, self.pivots, work),
            threads=work.shape[0],
        )
        self._of_columns = {False: self.others[self._places].conj()}
        pivots = np.empty_like(self.pivots)
        pivots[self.order] = self.pivots
        return pivots

    def _of(self, adjoint):
        """The values of L, M, the pivots, and M's entries of the rows above, by columns, conjugated; or for A^H."""
        if not adjoint or self.others is self.values:
            return self.values, self.others, self.pivots, self._of_columns[False]
        if adjoint not in self._of_columns:
            self._of_columns[adjoint] = self.values[self._places].conj()
        return self.others, self.values, self.pivots.conj(), self._of_columns[adjoint]

    def solve(self, g, out, adjoint=False):
        """out = W (W A W)^-1 W g, for g (n,) or (n, k) and such an `out`, or with W A^H W."""
        if g.ndim == 2 and self.pivots.dtype.kind == "c":  # tiles are divided by real pivots
            for c, column in enumerate(np.ascontiguousarray(g.T)):
                found = np.empty(column.size, out.dtype)
                self.solve(column, found, adjoint)
                out[:, c] = found
            return
        if g.ndim == 2:
            self._solve_columns(g, out, adjoint)
            return
        after, chunks = self._steps()
        x = np.empty(self.order.size, self.values.dtype)
        shared = np.zeros(3, np.int64), np.zeros(after.size, np.int8)
        values, others, pivots, of_columns = self._of(adjoint)
        run(
            *(_solve, self._threads or after.size, after, *shared, self._starts, self._below, chunks),
            *(self.order, self.weights, self.begin, self.columns, values, others, self._split, pivots),
            *(self._lower, self._rows, of_columns, g, x, out),
        )

    def _solve_columns(self, g, out, adjoint):
        """LANES columns in each row."""
        after, chunks = self._steps()
        blocks, weights = -(-g.shape[1] // LANES), self.weights[self.order, None]
        x = np.zeros((self.order.size, blocks * LANES), self.values.dtype)
        x[:, : g.shape[1]] = weights * g[self.order]
        shared = np.zeros(3, np.int64), np.zeros(after.size, np.int8)
        pattern = (unsigned(a) for a in (self.begin, self.columns, self._split, self._lower, self._rows))
        values, others, pivots, of_columns = self._of(adjoint)
        run(
            *(_solve_tiles, self._threads or after.size, after, *shared, self._starts, self._below, chunks),
            *(*pattern, values, others, of_columns, pivots, x.reshape(-1), np.uint64(blocks)),
        )
        out[self.order] = weights * x[:, : g.shape[1]]

    def _steps(self):
        """What each item of a solve waits for, and the items of rows above; see `_solve`."""
        trees, above = self._starts.size - 1, self.order.size - self._below
        chunks = -(-above // ROWS)
        after = np.zeros(2 * trees + chunks + 1, np.int64)
        after[trees : trees + chunks] = trees
        after[trees + chunks] = trees + chunks
        after[trees + chunks + 1 :] = trees + chunks + 1
        return after, chunks


@compiled
def _divide(parent, lengths, most, place, starts):
    """Cut subtrees of up to `most` entries off the tree, whose rows are in postorder. Returns how many items they make,
    each of rows next to one another, and how many rows they have.

    place (n,) : out: where each row comes, those of the subtrees first, both in their order.
    starts (n + 1,) : out: the places where items begin.
    """
    n = parent.size
    total = np.empty(n, np.int64)
    for k in range(n):
        total[k] = lengths[k] + 1
    for k in range(n):
        if parent[k] >= 0:
            total[parent[k]] += total[k]
    size = np.ones(n, np.int64)
    for k in range(n):
        if parent[k] >= 0:
            size[parent[k]] += size[k]
    items, below, filled, last = 0, 0, most + 1, n
    for k in range(n - 1, -1, -1):
        if total[k] > most:
            last -= 1
            place[k] = last
    for k in range(n):
        if total[k] > most:
            continue
        place[k] = below
        below += 1
        if parent[k] < 0 or total[parent[k]] > most:  # the root of a subtree, whose rows end here
            if filled + total[k] > most:
                starts[items] = below - size[k]
                items, filled = items + 1, 0
            filled += total[k]
    starts[items] = below
    return items, below


@compiled
def _reach(state, done, items, indptr, indices, order, inverse, parent, workspaces, begin, columns, lengths):
    """The columns of the rows of L, in no order; where `columns` is empty, their numbers alone.

    A row has the entries of A, and all that is between these and the row in the tree.
    """
    t = next_item(state)
    mark = workspaces[fetch_add(state, 1, 1) if t < done.size else 0]
    while t < done.size:
        for i in range(items[t], items[t + 1]):
            mark[i] = i
            count, first = 0, begin[i]
            for p in range(np.uint64(indptr[order[i]]), np.uint64(indptr[order[i] + 1])):
                j = inverse[indices[p]]
                while 0 <= j < i and mark[j] != i:
                    mark[j] = i
                    if columns.size:
                        columns[first + count] = j
                    count += 1
                    j = parent[j]
            lengths[i] = count
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


@compiled
def _sort(begin, columns):
    """Sort the columns of each row, by transposition and back."""
    n = begin.size - 1
    starts, rows = np.zeros(n + 1, np.int64), np.empty(columns.size, columns.dtype)
    for p in range(columns.size):
        starts[columns[p] + 1] += 1
    for j in range(n):
        starts[j + 1] += starts[j]
    at = starts.copy()
    for i in range(n):
        for p in range(begin[i], begin[i + 1]):
            rows[at[columns[p]]] = i
            at[columns[p]] += 1
    at = begin.copy()
    for j in range(n):
        for p in range(starts[j], starts[j + 1]):
            columns[at[rows[p]]] = j
            at[rows[p]] += 1


@compiled
def _count_columns(begin, columns, below, split, lower):
    for i in range(below, begin.size - 1):
        p = begin[i]
        while p < begin[i + 1] and columns[p] < below:
            lower[columns[p] + 1] += 1
            p += 1
        split[i - below] = p
    for j in range(below):
        lower[j + 1] += lower[j]


@compiled
def _sort_columns(begin, columns, below, split, lower, rows, places):
    at = lower.copy()
    for i in range(below, begin.size - 1):
        for p in range(begin[i], split[i - below]):
            j = columns[p]
            rows[at[j]], places[at[j]] = i, p
            at[j] += 1


@compiled
def _factor(
    state, done, starts, below, A, opposite, order, inverse, begin, columns, runs, values, others, pivots, workspaces
):  # fmt: skip
    """Items are the subtrees, then the rows above one by one. work (n,), or (2 n,) : zeros, outside of a row."""
    trees, known = starts.size - 1, 0
    t = next_item(state)
    work = workspaces[fetch_add(state, 1, 1) if t < done.size else 0]
    factors = values, others, pivots, work
    while t < done.size:
        if t < trees:
            for i in range(starts[t], starts[t + 1]):
                _row(i, trees, below, done, A, opposite, order, inverse, begin, columns, runs, *factors)
        else:
            known = wait_until_done(done, known, trees)
            i = below + t - trees
            _row(i, trees, below, done, A, opposite, order, inverse, begin, columns, runs, *factors)
        t = complete(state, done, t)
    wait_until_done(done, known, done.size)


@compiled
def _row(i, trees, below, done, A, opposite, order, inverse, begin, columns, runs, values, others, pivots, both):
    """Row i of L, of M, and its pivot, once the rows of its columns are there. work[k] = l_ik d_k in the columns so
    far, second[k] = m_ik conj(d_k)."""
    indptr, indices, data, weights = A
    row = order[i]
    scale = weights[row]
    work, second = both[: order.size], both[order.size :]
    pivot = pivots.dtype.type(1.0 if scale == 0 else 0.0)
    for p in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
        j = inverse[indices[p]]
        if j < i:
            work[j] = data[p] * (scale * weights[indices[p]])
            if opposite is not None:
                second[j] = opposite[p] * (scale * weights[indices[p]])
        elif j == i:
            if opposite is None:
                pivot += data[p].real * (scale * scale)
            else:
                pivot += data[p] * (scale * scale)
    first, last = np.uint64(begin[i]), np.uint64(begin[i + 1])
    for p in range(first, last):
        j = columns[p]
        if j >= below:
            rounds = 0
            while load_acquire(done, trees + j - below) == 0:
                relax(rounds)
                rounds += 1
        if opposite is None:
            total = work[j] - _product(j, runs, values, work)
        else:
            of_work, of_second = _two_products(j, runs, values, others, work, second)
            total, other = work[j] - of_work, second[j] - of_second
            second[j] = other
            others[p] = other / np.conj(pivots[j]) if pivots[j] != 0 else other
        work[j] = total
        values[p] = total / pivots[j] if pivots[j] != 0 else total
    for p in range(first, last):
        j = columns[p]
        if opposite is None:
            pivot -= (work[j] * np.conj(values[p])).real
        else:
            pivot -= work[j] * np.conj(others[p])
            second[j] = 0
        work[j] = 0
    pivots[i] = pivot


@summing
def _long_product(k, p, end, values, work):
    total = work.dtype.type(0)
    for e in range(end - p):
        total += work[k + e] * np.conj(values[p + e])
    return total


@compiled
def _find_runs(begin, columns, starts):
    for i in range(begin.size - 1):
        for p in range(begin[i] + 1, begin[i + 1]):
            starts[p] = columns[p] != columns[p - 1] + 1


@compiled
def _product(j, runs, values, work):
    """The sum of work conj(l) over row j of L, in four sums whose terms do not wait for one another."""
    starts, places, firsts = runs
    a = b = c = d = work.dtype.type(0)
    for r in range(np.uint64(starts[j]), np.uint64(starts[j + 1])):
        p, end, k = np.uint64(places[r]), np.uint64(places[r + ONE]), np.uint64(firsts[r])
        if end - p >= LONG:
            a += _long_product(k, p, end, values, work)
            continue
        while p + np.uint64(3) < end:
            a += work[k] * np.conj(values[p])
            b += work[k + np.uint64(1)] * np.conj(values[p + np.uint64(1)])
            c += work[k + np.uint64(2)] * np.conj(values[p + np.uint64(2)])
            d += work[k + np.uint64(3)] * np.conj(values[p + np.uint64(3)])
            p += np.uint64(4)
            k += np.uint64(4)
        while p < end:
            a += work[k] * np.conj(values[p])
            p += ONE
            k += ONE
    return (a + b) + (c + d)


@compiled
def _two_products(j, runs, values, others, work, second):
    """The sums of work conj(m) over row j of M, and of second conj(l) over row j of L, whose terms do not wait for one
    another."""
    starts, places, firsts = runs
    a = b = c = d = work.dtype.type(0)
    for r in range(np.uint64(starts[j]), np.uint64(starts[j + 1])):
        p, end, k = np.uint64(places[r]), np.uint64(places[r + ONE]), np.uint64(firsts[r])
        if end - p >= LONG:
            a += _long_product(k, p, end, others, work)
            c += _long_product(k, p, end, values, second)
            continue
        while p + ONE < end:
            a += work[k] * np.conj(others[p])
            b += work[k + ONE] * np.conj(others[p + ONE])
            c += second[k] * np.conj(values[p])
            d += second[k + ONE] * np.conj(values[p + ONE])
            p += np.uint64(2)
            k += np.uint64(2)
        if p < end:
            a += work[k] * np.conj(others[p])
            c += second[k] * np.conj(values[p])
    return a + b, c + d


@by_ordered_items
def _solve(
    t, starts, below, chunks, order, weights, begin, columns, values, others, split, pivots, lower, rows, of_columns, g,
    x, out,
):  # fmt: skip
    """Items are: the rows of the subtrees, forward; those above, as far as their columns are below; the block of the
    rows above, forward and backward, on one thread; the subtrees, backward.

    rows, of_columns : M's entries of the rows above in the columns of the subtrees, by these columns, conjugated.
    """
    trees = starts.size - 1
    if t < trees:
        for i in range(starts[t], starts[t + 1]):
            total = x.dtype.type(weights[order[i]] * g[order[i]])
            x[i] = total - _inner(np.uint64(begin[i]), np.uint64(begin[i + 1]), columns, values, x)
    elif t < trees + chunks:
        first = below + (t - trees) * ROWS
        for i in range(first, min(first + ROWS, x.size)):
            total = x.dtype.type(weights[order[i]] * g[order[i]])
            x[i] = total - _inner(np.uint64(begin[i]), np.uint64(split[i - below]), columns, values, x)
    elif t == trees + chunks:
        for i in range(below, x.size):
            x[i] -= _inner(np.uint64(split[i - below]), np.uint64(begin[i + 1]), columns, values, x)
        for i in range(below, x.size):
            x[i] /= pivots[i]
        for i in range(x.size - 1, below - 1, -1):
            _scatter(np.uint64(split[i - below]), np.uint64(begin[i + 1]), columns, others, x[i], x)
            out[order[i]] = weights[order[i]] * x[i]
    else:
        first, last = starts[t - trees - chunks - 1], starts[t - trees - chunks]
        for j in range(first, last):
            total = x[j] / pivots[j]
            for p in range(np.uint64(lower[j]), np.uint64(lower[j + 1])):
                total -= of_columns[p] * x[rows[p]]
            x[j] = total
        for i in range(last - 1, first - 1, -1):
            _scatter(np.uint64(begin[i]), np.uint64(begin[i + 1]), columns, others, x[i], x)
            out[order[i]] = weights[order[i]] * x[i]


@compiled
def _inner(begin, end, columns, values, x):
    """The sum of l x over entries of a row of L, in four sums whose terms do not wait for one another."""
    a = b = c = d = x.dtype.type(0)
    p, rest = begin, begin + ((end - begin) & ~np.uint64(3))
    while p < rest:
        a += values[p] * x[columns[p]]
        b += values[p + ONE] * x[columns[p + ONE]]
        c += values[p + ONE + ONE] * x[columns[p + ONE + ONE]]
        d += values[p + ONE + ONE + ONE] * x[columns[p + ONE + ONE + ONE]]
        p += np.uint64(4)
    while p < end:
        a += values[p] * x[columns[p]]
        p += ONE
    return (a + b) + (c + d)


@compiled
def _scatter(begin, end, columns, values, v, x):
    for p in range(begin, end):
        x[columns[p]] -= np.conj(values[p]) * v


@by_ordered_items
def _solve_tiles(
    t, starts, below, chunks, begin, columns, split, lower, rows, values, others, of_columns, pivots, x, blocks
):  # fmt: skip
    """As `_solve`, for W g in `blocks` tiles, whose rows are next to each other in x, in the order of the rows."""
    trees, n, stride = starts.size - 1, begin.size - 1, blocks * np.uint64(LANES)
    if t < trees:
        for i in range(starts[t], starts[t + 1]):
            for block in range(blocks):
                tile = block * np.uint64(LANES)
                subtract_inner(x, stride, tile, np.uint64(i), columns, values, begin[i], begin[i + 1])
    elif t < trees + chunks:
        first = below + (t - trees) * ROWS
        for i in range(first, min(first + ROWS, n)):
            for block in range(blocks):
                tile = block * np.uint64(LANES)
                subtract_inner(x, stride, tile, np.uint64(i), columns, values, begin[i], split[i - below])
    elif t == trees + chunks:
        for block in range(blocks):
            tile = block * np.uint64(LANES)
            for i in range(below, n):
                subtract_inner(x, stride, tile, np.uint64(i), columns, values, split[i - below], begin[i + 1])
            for i in range(below, n):
                divide_row_by_real(x, stride, tile, np.uint64(i), pivots[i])
            for i in range(n - 1, below - 1, -1):
                subtract_from_rows(x, stride, tile, np.uint64(i), columns, others, split[i - below], begin[i + 1])
    else:
        first, last = starts[t - trees - chunks - 1], starts[t - trees - chunks]
        for j in range(first, last):
            count = lower[j + 1] - lower[j]
            for block in range(blocks):
                tile = block * np.uint64(LANES)
                divide_row_by_real(x, stride, tile, np.uint64(j), pivots[j])
                entries = rows, lower[j], of_columns, lower[j], ONE, ONE, count
                subtract_entries(x, stride, tile, np.uint64(j), *entries)
        for i in range(last - 1, first - 1, -1):
            for block in range(blocks):
                tile = block * np.uint64(LANES)
                subtract_from_rows(x, stride, tile, np.uint64(i), columns, others, begin[i], begin[i + 1])
