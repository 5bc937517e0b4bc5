"""Block matrices of any pattern: residual, block ILU(0) and its solves; inverses of many blocks, products with them.

Threads share the rows of blocks by the schedules of levels.py, which are made at the first call with a pattern and kept
for as long as its `indices` live. Every row is computed from the same numbers in the same order by every schedule: the
bits do not depend on the number of threads. Operations on a single block are in dense.py.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np

from finelu import deadline
from finelu.kernels.cpu.levels import levels
from finelu.kernels.cpu.runtime.atomics import fetch_min
from finelu.kernels.cpu.runtime.columns import combine_rows, combine_rows_as_they_lie, flat, read_row
from finelu.kernels.cpu.runtime.dense import (
    finite,
    invert,
    invert_pivoting,
    multiply,
    order_of,
    sizes,
    subtract_block,
    subtract_product,
    subtract_transposed,
)
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import by_items, by_ordered_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lanes import LANES
from finelu.kernels.cpu.runtime.schedule import Schedule, schedule, sequential, sharers
from finelu.kernels.cpu.runtime.workers import run
from finelu.kernels.operands import Triangle
from finelu.threads import get_num_threads

# ns of a row; of a product of two blocks, per n^3; of a block times a vector, per n^2.
ROW, PRODUCT, TIMES = 20.0, 0.2, 0.5
SCATTERED = 1.3  # how much longer a row takes in level order than in natural order
# Products take columns in vector registers from this number on; one by one if they do not lie side by side, and blocks
# have at most as many rows as the second says.
TOGETHER, SMALL = 4, 4
NUMBER, TERM = 0.6, 0.06  # ns of a number and of a term of its sum in such a product of many columns as they lie
CHUNK = 20_000.0  # ns of an item of rows or blocks that do not depend on each other

_kept: dict[tuple, tuple] = {}


def bsr_residual(indptr, indices, data, x, b, out) -> None:
    """out = b - A x, or A x where b is None; see kernels/reference/blocks.py."""
    rows, n = indptr.size - 1, data.shape[1]
    pattern = unsigned(indptr), unsigned(indices)
    operands = data.reshape(-1), x, (out if b is None else b), out
    _share(_residual, rows, ROW + TIMES * n * n * indices.size / rows, n, *pattern, b is None, *operands)


def bsr_accumulate(rows, indptr, indices, data, x, out, subtract) -> None:
    """out_rows[i] += (A x)_i, or -= where `subtract`; see kernels/reference/blocks.py."""
    count, n = rows.size, data.shape[1]
    pattern = unsigned(rows), unsigned(indptr), unsigned(indices)
    _share(
        _accumulate, count, ROW + TIMES * n * n * indices.size / count, n, *pattern, data.reshape(-1), x, out, subtract
    )


def bsr_ilu0_factor(indptr, indices, diag, lu, pivoting) -> int:
    """lu becomes the factors in place; returns the first bad block row or -1. See kernels/reference/blocks.py."""
    n = lu.shape[1]
    plan = _for_pattern(_elimination, indptr, indices, diag, n)
    state, done = plan.state()
    pattern = [unsigned(v) for v in (plan.items, plan.order, indptr, indices, diag)]
    run(_factor, plan.threads, *sizes(n), plan.after, state, done, *pattern, lu.reshape(-1), pivoting, deadline.halt())
    deadline.check()
    return int(state[1]) if state[1] < diag.size else -1


def bsr_ilu0_solve(indptr, indices, places, diag, lu, b, x, trans) -> None:
    """x = M^-1 b, M^-T b or M^-H b; see kernels/reference/blocks.py. b may be x."""
    n = lu.shape[1]
    plan = _for_pattern(_sweeps, indptr, indices, diag, n)
    state, done = np.zeros(1, np.int64), np.zeros(plan.after.size, np.int8)
    pattern = [unsigned(v) for v in (plan.items, plan.order, indptr, indices, diag)]
    shared = plan.after, state, done, *sizes(n), plan.turn, *pattern
    if trans == "N":
        run(_solve, plan.threads, *shared, lu.reshape(-1), b, x)
    else:
        conjugate = trans == "H" and lu.dtype.kind == "c"
        run(_solve_transposed, plan.threads, *shared, unsigned(places), lu.reshape(-1), b, x, conjugate)


def invert_blocks(blocks, out, pivoting) -> int:
    """out = the inverses of blocks (m, n, n); returns the first bad one or -1. See kernels/reference/blocks.py."""
    m, n = blocks.shape[:2]
    first = np.array([m], np.int64)
    _share(_invert, m, ROW + 3 * PRODUCT * n**3, n, blocks.reshape(-1), out.reshape(-1), pivoting, first)
    return int(first[0]) if first[0] < m else -1


def blocks_times(blocks, x, out, trans) -> None:
    """out_i = B_i x_i, B_i^T x_i or B_i^H x_i; see kernels/reference/blocks.py."""
    m, n = blocks.shape[:2]
    if x.ndim == 2:
        columns, transposed, conjugate = x.shape[1], trans != "N", trans == "H" and blocks.dtype.kind == "c"
        few = columns < TOGETHER or (not x.flags.c_contiguous and n <= SMALL)
        given = np.uint64(columns), transposed, (blocks.conj() if conjugate and not few else blocks).reshape(-1)
        if columns >= LANES and x.flags.c_contiguous and out.flags.c_contiguous:
            work = n * columns * (NUMBER + TERM * n)
            _share(_times_as_they_lie, m, work, n, *given, x.reshape(-1), out.reshape(-1))
            return
        work, operands = ROW + TIMES * n * n * columns, (*flat(x), *flat(out))
        if few:
            _share(_times_each, m, work, n, *given[:2], conjugate, given[2], *operands)
            return
        _share(_times_tiles, m, work, n, *given, *operands)
        return
    kernel, more = (_times, ()) if trans == "N" else (_times_transposed, (trans == "H" and blocks.dtype.kind == "c",))
    _share(kernel, m, ROW + TIMES * n * n, n, blocks.reshape(-1), x, out, *more)


def _share(kernel, count, cost, n, *operands) -> None:
    """Run a kernel whose `count` rows or blocks of `cost` ns each do not depend on each other."""
    chunk = max(1, int(CHUNK / cost))
    items = -(-count // chunk)
    state, done = np.zeros(1, np.int64), np.zeros(items, np.int8)
    run(kernel, sharers(count * cost, items), state, done, *sizes(n), np.uint64(count), np.uint64(chunk), *operands)


def _for_pattern(make, indptr, indices, diag, n):
    """make(indptr, indices, diag, n), once for these very arrays and the number of threads, while `indices` lives."""
    key = make, id(indptr), id(indices), id(diag), n, get_num_threads()
    if key not in _kept:
        plan = make(indptr, indices, diag, n)
        alive = weakref.ref(indices, lambda _: _kept.pop(key, None))
        _kept[key] = plan, alive, indptr, diag  # while these two are held, no other array has their id
    return _kept[key][0]


def _triangle(indptr, indices, diag, *, lower: bool) -> Triangle:
    begin, end = (indptr[:-1], diag) if lower else (diag + 1, indptr[1:])
    lengths = end - begin
    return Triangle(
        diag.size, begin, end, indices, not lower, None, None, False, int(lengths.sum()), int(lengths.max()), None
    )


def _shared(triangle: Triangle, cost) -> Schedule:
    cost = cost.astype(np.float32)
    return schedule(triangle, cost, levels(triangle)[0], sort=False, scattered=SCATTERED) or sequential(triangle)


def _elimination(indptr, indices, diag, n) -> Schedule:
    """How the rows are shared out to be factored."""
    products = np.empty(diag.size)
    _products(unsigned(indptr), unsigned(indices), unsigned(diag), products)
    return _shared(_triangle(indptr, indices, diag, lower=True), ROW + PRODUCT * n**3 * (3 + products))


@compiled
def _products(indptr, indices, diag, products):
    """products[i] : of two blocks, that the elimination of row i takes."""
    place = np.full(diag.size, np.uint64(indices.size))
    for i in range(diag.size):
        lo, hi = np.uint64(indptr[i]), np.uint64(indptr[i + ONE])
        for p in range(lo, hi):
            place[indices[p]] = p
        count = np.uint64(diag[i]) - lo
        for p in range(lo, np.uint64(diag[i])):
            k = indices[p]
            for q in range(np.uint64(diag[k]) + ONE, np.uint64(indptr[k + ONE])):
                target = place[indices[q]]
                if lo <= target and target < hi:
                    count += ONE
        products[i] = count


@compiled
def _factor(size, order, after, state, done, items, rows, indptr, indices, diag, lu, pivoting, halt):
    """Item by item; several threads may run it on the same arguments, see items.py.

    `place` says where the row at hand stores a block column; what other rows have left there lies outside of lo:hi.
    """
    n = order_of(size, order)
    nn, zero = n * n, np.uint64(0)
    product, swaps, powers = np.empty(nn, lu.dtype), np.empty(n, np.uint64), np.empty(n, lu.real.dtype)
    place = np.full(diag.size, np.uint64(indices.size))
    known, t = 0, next_item(state)
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        for r in range(items[t], items[t + 1]):
            if halted(halt):
                break
            i = np.uint64(rows[r])
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
            for p in range(lo, hi):
                place[indices[p]] = p
            good = True
            for p in range(lo, pivot):
                k = indices[p]
                multiply(size, order, lu, p * nn, lu, np.uint64(diag[k]) * nn, product, zero)
                for q in range(nn):
                    lu[p * nn + q] = product[q]
                good &= finite(size, order, lu, p * nn)
                for q in range(np.uint64(diag[k]) + ONE, np.uint64(indptr[k + ONE])):
                    target = place[indices[q]]
                    if lo <= target and target < hi:
                        subtract_product(size, order, lu, p * nn, lu, q * nn, lu, target * nn)
            if pivoting:
                good &= invert_pivoting(size, order, lu, pivot * nn, swaps, powers)
            else:
                good &= invert(size, order, lu, pivot * nn)
            for p in range(pivot + ONE, hi):
                good &= finite(size, order, lu, p * nn)
            if not good:
                fetch_min(state, 1, np.int64(i))
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)


@dataclass(frozen=True, eq=False)
class Sweeps:
    """Items as in a Schedule, those of the sweep through the rows before those of the sweep back, which begin at `turn`
    and wait for all of the former."""

    order: np.ndarray
    items: np.ndarray
    after: np.ndarray
    turn: int
    threads: int


def _sweeps(indptr, indices, diag, n) -> Sweeps:
    """How the rows are shared out for a solve."""
    there, back = (
        _shared(triangle, ROW + TIMES * n * n * (0.5 + triangle.end - triangle.begin))
        for triangle in (_triangle(indptr, indices, diag, lower=lower) for lower in (True, False))
    )
    turn = there.after.size
    return Sweeps(
        np.concatenate([there.order, back.order]),
        np.concatenate([there.items, diag.size + back.items[1:]]),
        np.concatenate([there.after, turn + back.after]),
        turn,
        max(there.threads, back.threads),
    )


@by_ordered_items
def _solve(t, size, order, turn, items, rows, indptr, indices, diag, lu, b, x):
    n = order_of(size, order)
    nn, zero = n * n, np.uint64(0)
    z = np.empty(n, x.dtype)
    for r in range(items[t], items[t + 1]):
        i = np.uint64(rows[r])
        if t < turn:
            for u in range(n):
                z[u] = b[i * n + u]
            for p in range(np.uint64(indptr[i]), np.uint64(diag[i])):
                subtract_block(size, order, lu, p * nn, x, indices[p] * n, z, zero)
            for u in range(n):
                x[i * n + u] = z[u]
        else:
            for u in range(n):
                z[u] = x[i * n + u]
            for p in range(np.uint64(diag[i]) + ONE, np.uint64(indptr[i + ONE])):
                subtract_block(size, order, lu, p * nn, x, indices[p] * n, z, zero)
            _store_product(size, order, lu, np.uint64(diag[i]) * nn, z, zero, x, i * n)


@by_ordered_items
def _solve_transposed(t, size, order, turn, items, rows, indptr, indices, diag, places, lu, b, x, conj):
    n = order_of(size, order)
    nn, zero = n * n, np.uint64(0)
    z, y = np.empty(n, x.dtype), np.empty(n, x.dtype)
    for r in range(items[t], items[t + 1]):
        i = np.uint64(rows[r])
        if t < turn:
            for u in range(n):
                z[u] = b[i * n + u]
                y[u] = 0
            for p in range(np.uint64(indptr[i]), np.uint64(diag[i])):
                subtract_transposed(size, order, lu, places[p] * nn, conj, x, indices[p] * n, z, zero)
            subtract_transposed(size, order, lu, places[diag[i]] * nn, conj, z, zero, y, zero)
            for u in range(n):
                x[i * n + u] = -y[u]
        else:
            for u in range(n):
                z[u] = x[i * n + u]
            for p in range(np.uint64(diag[i]) + ONE, np.uint64(indptr[i + ONE])):
                subtract_transposed(size, order, lu, places[p] * nn, conj, x, indices[p] * n, z, zero)
            for u in range(n):
                x[i * n + u] = z[u]


@compiled
def _store_product(size, order, blocks, p, x, q, out, r):
    """out[r:r + n] = (block at p) x[q:q + n]."""
    n = order_of(size, order)
    for u in range(n):
        total = blocks[p + u * n] * x[q]
        for v in range(ONE, n):
            total += blocks[p + u * n + v] * x[q + v]
        out[r + u] = total


# Rows and blocks that do not depend on each other: threads take `chunk` of them in turn.


@compiled
def _residual(state, done, size, order, count, chunk, indptr, indices, product, data, x, b, out):
    n = order_of(size, order)
    nn, zero = n * n, np.uint64(0)
    z = np.empty(n, out.dtype)
    t = next_item(state)
    while t < done.size:
        first = np.uint64(t) * chunk
        for i in range(first, min(count, first + chunk)):
            for u in range(n):
                z[u] = 0 if product else b[i * n + u]
            for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
                subtract_block(size, order, data, p * nn, x, indices[p] * n, z, zero)
            for u in range(n):
                out[i * n + u] = -z[u] if product else z[u]
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


@by_items
def _accumulate(t, size, order, count, chunk, rows, indptr, indices, data, x, out, subtract):
    n = order_of(size, order)
    nn, zero = n * n, np.uint64(0)
    z = np.empty(n, out.dtype)
    first = np.uint64(t) * chunk
    for i in range(first, min(count, first + chunk)):
        own = np.uint64(rows[i]) * n
        for u in range(n):
            z[u] = out[own + u] if subtract else -out[own + u]
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            subtract_block(size, order, data, p * nn, x, indices[p] * n, z, zero)
        for u in range(n):
            out[own + u] = z[u] if subtract else -z[u]


@by_items
def _invert(t, size, order, count, chunk, blocks, out, pivoting, bad):
    n = order_of(size, order)
    nn = n * n
    swaps, powers = np.empty(n, np.uint64), np.empty(n, out.real.dtype)
    first = np.uint64(t) * chunk
    for k in range(first, min(count, first + chunk)):
        for q in range(nn):
            out[k * nn + q] = blocks[k * nn + q]
        if pivoting:
            good = invert_pivoting(size, order, out, k * nn, swaps, powers)
        else:
            good = invert(size, order, out, k * nn)
        if not good:
            fetch_min(bad, 0, np.int64(k))


@by_items
def _times(t, size, order, count, chunk, blocks, x, out):
    n = order_of(size, order)
    first = np.uint64(t) * chunk
    for k in range(first, min(count, first + chunk)):
        _store_product(size, order, blocks, k * n * n, x, k * n, out, k * n)


@by_items
def _times_each(
    t, size, order, count, chunk, columns, transposed, conjugate, blocks, x, x_row, x_column, out, out_row, out_column
):
    """`_times` or `_times_transposed` for each column in turn, while the blocks of the item are in the cache.

    x_row, x_column : the distances of rows and of columns in x; likewise of out.
    """
    n = order_of(size, order)
    z, zero = np.empty(n, out.dtype), np.uint64(0)
    first = np.uint64(t) * chunk
    end = min(count, first + chunk)
    if n == ONE and x_row != ONE:
        for k in range(first, end):
            a = np.conj(blocks[k]) if conjugate else blocks[k]
            for c in range(columns):
                out[k * out_row + c * out_column] = a * x[k * x_row + c * x_column]
        return
    for c in range(columns):
        q, r = c * x_column, c * out_column
        for k in range(first, end):
            if not transposed:
                if x_row == ONE and out_row == ONE:
                    _store_product(size, order, blocks, k * n * n, x, q + k * n, out, r + k * n)
                else:
                    for u in range(n):
                        total = blocks[(k * n + u) * n] * x[q + k * n * x_row]
                        for v in range(ONE, n):
                            total += blocks[(k * n + u) * n + v] * x[q + (k * n + v) * x_row]
                        out[r + (k * n + u) * out_row] = total
                continue
            for u in range(n):
                z[u] = 0
            if x_row == ONE:
                subtract_transposed(size, order, blocks, k * n * n, conjugate, x, q + k * n, z, zero)
            else:
                for v in range(n):
                    a = x[q + (k * n + v) * x_row]
                    for u in range(n):
                        entry = blocks[(k * n + v) * n + u]
                        z[u] -= (np.conj(entry) if conjugate else entry) * a
            for u in range(n):
                out[r + (k * n + u) * out_row] = -z[u]


@by_items
def _times_as_they_lie(t, size, order, count, chunk, columns, transposed, blocks, x, out):
    """`_times_tiles` for row-major x and out with at least LANES columns."""
    n, lanes = order_of(size, order), np.uint64(LANES)
    first = np.uint64(t) * chunk
    for k in range(first, min(count, first + chunk)):
        begin = np.uint64(0)
        while begin < columns:
            place = min(begin, columns - lanes)
            for u in range(n):
                value, step = (k * n * n + u, n) if transposed else ((k * n + u) * n, ONE)
                to = (k * n + u) * columns + place
                combine_rows_as_they_lie(x, columns, k * n * columns + place, blocks, value, step, n, out, to)
            begin += lanes


@by_items
def _times_tiles(
    t, size, order, count, chunk, columns, transposed, blocks, x, x_row, x_column, out, out_row, out_column
):
    """The same: the sums of LANES columns at a time stay in vector registers. The last tile overlaps with the one
    before; only where there are fewer columns than LANES, the last one is repeated."""
    n = order_of(size, order)
    first, lanes, zero = np.uint64(t) * chunk, np.uint64(LANES), np.uint64(0)
    last = min(columns, lanes) - ONE
    tile = np.empty(n * lanes, out.dtype)
    for k in range(first, min(count, first + chunk)):
        for block in range((columns + lanes - ONE) // lanes):
            begin = min(block * lanes, columns - last - ONE)
            for v in range(n):
                read_row(tile, lanes, zero, v, x, (k * n + v) * x_row + begin * x_column, x_column, last)
            for u in range(n):
                value, step = (k * n * n + u, n) if transposed else ((k * n + u) * n, ONE)
                place = (k * n + u) * out_row + begin * out_column
                combine_rows(tile, lanes, zero, zero, blocks, value, step, n, out, place, out_column, last)


@by_items
def _times_transposed(t, size, order, count, chunk, blocks, x, out, conjugate):
    n = order_of(size, order)
    z, zero = np.empty(n, out.dtype), np.uint64(0)
    first = np.uint64(t) * chunk
    for k in range(first, min(count, first + chunk)):
        for u in range(n):
            z[u] = 0
        subtract_transposed(size, order, blocks, k * n * n, conjugate, x, k * n, z, zero)
        for u in range(n):
            out[k * n + u] = -z[u]
