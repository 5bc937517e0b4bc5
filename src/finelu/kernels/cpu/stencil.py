"""Block matrices on the 7-point stencil of an I x J x K grid: residual, block ILU(0) and its solves.

Threads share tiles, which are boxes of neighbouring cells, in the order of the hyperplanes ti + tj + tk = const of tile
indices. Tiles of a hyperplane do not depend on each other, nor do the cells of a hyperplane i + j + k = const. So a
thread may run a whole tile in natural order as soon as the tiles before it in the three directions are done. Every cell
is computed from the same numbers in the same order, for all tile sizes: the bits are those of the natural order.

Operations on a single block, and the meaning of `size` and `order`, are in dense.py.

Luo, Edwards, Luo, Mueller: A fine-grained block ILU scheme on regular structures for GPGPUs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from finelu.kernels.cpu.runtime.atomics import fetch_min
from finelu.kernels.cpu.runtime.dense import (
    invert,
    invert_pivoting,
    multiply,
    order_of,
    sizes,
    subtract_block,
    subtract_product,
    subtract_transposed,
)
from finelu.kernels.cpu.runtime.items import by_items, by_ordered_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.schedule import CALL, makespan, sharers, thread_counts
from finelu.kernels.cpu.runtime.workers import run
from finelu.threads import get_num_threads

# ns of a cell, per n^3 or n^2: to factor it, to solve with it in one sweep; measured on two cores of an Intel Xeon.
FACTOR, SWEEP = 1.5, 0.5
EDGES = ((1, 1, 0), (1, 4, 0), (2, 2, 0), (4, 4, 0), (8, 8, 0), (4, 4, 4), (8, 8, 8), (16, 16, 16), (64, 64, 64))
PENCILS = 16  # of an item of the residual
ONE, TWO, THREE, FOUR, FIVE, SIX = (np.uint64(k) for k in range(1, 7))  # an int would turn an unsigned index to a float


def stencil_residual(blocks, periodic, x, b, out) -> None:
    """out = b - A x, or A x where b is None; see kernels/reference/stencil.py."""
    _, I, J, K, n, _ = blocks.shape
    items = -(-I * J // PENCILS)
    threads = sharers(SWEEP * 7 * n**2 * I * J * K, items)
    state, done = np.zeros(1, np.int64), np.zeros(items, np.int8)
    flat = blocks.reshape(-1), x, (out if b is None else b), out
    run(_residual, threads, state, done, *sizes(n), _grid(I, J, K), periodic, b is None, *flat)


def block_ilu_factor(blocks, d, pivoting) -> int:
    """d = inverses of the diagonal blocks of the factorization; returns the first bad cell or -1."""
    _, I, J, K, n, _ = blocks.shape
    threads, after, lo, hi = tiles(I, J, K, FACTOR * n**3 + 60.0, get_num_threads())
    state, done = np.array([0, I * J * K], np.int64), np.zeros(after.size, np.int8)
    operands = blocks.reshape(-1), d.reshape(-1), pivoting
    run(_factor, threads, after, state, done, *sizes(n), _grid(I, J, K), lo, hi, *operands)
    return int(state[1]) if state[1] < I * J * K else -1


def block_ilu_solve(blocks, d, b, x, trans) -> None:
    """x = M^-1 b, M^-T b or M^-H b; see kernels/reference/stencil.py. b may be x."""
    _, I, J, K, n, _ = blocks.shape
    threads, after, lo, hi = tiles(I, J, K, SWEEP * 4 * n**2 + 40.0, get_num_threads())
    after = np.concatenate([after, after.size + after])  # of the sweep back, too
    state, done = np.zeros(1, np.int64), np.zeros(after.size, np.int8)
    shared = *sizes(n), _grid(I, J, K), after, lo, hi, state, done, blocks.reshape(-1), d.reshape(-1), b, x
    if trans == "N":
        run(_solve, threads, *shared)
    else:
        run(_solve_transposed, threads, *shared, trans == "H" and d.dtype.kind == "c")


def _grid(I, J, K):
    return np.uint64(I), np.uint64(J), np.uint64(K)


@lru_cache(maxsize=256)
def tiles(I, J, K, cost, threads):
    """How many threads share an I x J x K grid with profit, and its tiles: after (m,), lo and hi (m, 3) uint64.

    Tile t is the cells lo[t] <= (i, j, k) < hi[t]; it needs the results of tiles before after[t] only.
    cost : ns that a cell takes. The tiles are those of EDGES (0: the whole edge) with the shortest estimated time.
    """
    cells = np.array([I, J, K])
    whole = 1, np.zeros(1, np.int64), np.zeros((1, 3), np.uint64), cells[None].astype(np.uint64)
    best_time, best = 0.8 * cost * cells.prod(), whole
    if threads < 2 or cost * cells.prod() < 2 * CALL:
        return whole
    tried = set()
    for edges in EDGES:
        edge = tuple(min(e, c) if e else c for e, c in zip(edges, (I, J, K)))
        if edge in tried:
            continue
        tried.add(edge)
        candidate = _cut(cells, np.array(edge))
        work = cost * (candidate[2] - candidate[1]).prod(axis=1).astype(float)
        time, count = min((makespan(work, candidate[0], count), count) for count in thread_counts(threads))
        if time < best_time:
            best_time, best = time, (count, *candidate)
    return best


def _cut(cells, edge):
    counts = -(-cells // edge)
    index = np.indices(counts).reshape(3, -1).T
    plane = index.sum(axis=1)
    order = np.argsort(plane, kind="stable")
    place = np.empty(counts, np.int64)
    place[tuple(index[order].T)] = np.arange(order.size)
    after = np.zeros(order.size, np.int64)
    for axis in range(3):
        inside = index[order, axis] > 0
        before = index[order][inside]
        before[:, axis] -= 1
        after[inside] = np.maximum(after[inside], place[tuple(before.T)] + 1)
    lo = index[order] * edge
    return after, lo.astype(np.uint64), np.minimum(lo + edge, cells).astype(np.uint64)


@by_items
def _residual(t, size, order, grid, periodic, product, blocks, x, b, out):
    """Threads take runs of PENCILS lines of cells along k, and each cell is written by one of them."""
    n = order_of(size, order)
    nn = n * n
    I, J, K = grid
    lines, cells = I * J, I * J * K
    z, pencils = np.empty(n, out.dtype), np.uint64(PENCILS)
    first = np.uint64(t) * pencils
    for line in range(first, min(lines, first + pencils)):
        i, j = line // J, line % J
        begin = line * K
        for k in range(K):
            c = begin + k
            for u in range(n):
                z[u] = 0 if product else b[c * n + u]
            if k > 0 or periodic[2]:
                at = c - ONE if k > 0 else begin + K - ONE
                subtract_block(size, order, blocks, c * nn, x, at * n, z, np.uint64(0))
            if j > 0 or periodic[1]:
                at = c - K if j > 0 else c + (J - ONE) * K
                subtract_block(size, order, blocks, (cells + c) * nn, x, at * n, z, np.uint64(0))
            if i > 0 or periodic[0]:
                at = c - J * K if i > 0 else c + (I - ONE) * J * K
                subtract_block(size, order, blocks, (TWO * cells + c) * nn, x, at * n, z, np.uint64(0))
            subtract_block(size, order, blocks, (THREE * cells + c) * nn, x, c * n, z, np.uint64(0))
            if i + ONE < I or periodic[0]:
                at = c + J * K if i + ONE < I else c - (I - ONE) * J * K
                subtract_block(size, order, blocks, (FOUR * cells + c) * nn, x, at * n, z, np.uint64(0))
            if j + ONE < J or periodic[1]:
                at = c + K if j + ONE < J else c - (J - ONE) * K
                subtract_block(size, order, blocks, (FIVE * cells + c) * nn, x, at * n, z, np.uint64(0))
            if k + ONE < K or periodic[2]:
                at = c + ONE if k + ONE < K else begin
                subtract_block(size, order, blocks, (SIX * cells + c) * nn, x, at * n, z, np.uint64(0))
            for u in range(n):
                out[c * n + u] = -z[u] if product else z[u]


@by_ordered_items
def _factor(t, state, size, order, grid, lo, hi, blocks, d, pivoting):
    """Tile by tile; several threads may run it on the same arguments, see items.py."""
    n = order_of(size, order)
    nn = n * n
    I, J, K = grid
    cells = I * J * K
    product, swaps, powers = np.empty(nn, d.dtype), np.empty(n, np.uint64), np.empty(n, d.real.dtype)
    for i in range(lo[t, 0], hi[t, 0]):
        for j in range(lo[t, 1], hi[t, 1]):
            for k in range(lo[t, 2], hi[t, 2]):
                c = (i * J + j) * K + k
                at, delta = c * nn, (THREE * cells + c) * nn
                for q in range(nn):
                    d[at + q] = blocks[delta + q]
                if k > 0:
                    e = c - ONE
                    _eliminate(size, order, blocks, c * nn, e * nn, (SIX * cells + e) * nn, product, d, at)
                if j > 0:
                    e = c - K
                    _eliminate(size, order, blocks, (cells + c) * nn, e * nn, (FIVE * cells + e) * nn, product, d, at)
                if i > 0:
                    e = c - J * K
                    _eliminate(
                        size, order, blocks, (TWO * cells + c) * nn, e * nn, (FOUR * cells + e) * nn, product, d, at
                    )
                if pivoting:
                    good = invert_pivoting(size, order, d, at, swaps, powers)
                else:
                    good = invert(size, order, d, at)
                if not good:
                    fetch_min(state, 1, np.int64(c))


@compiled
def _eliminate(size, order, blocks, lower, inverse, upper, product, d, at):
    """(d at `at`) -= (block at lower) (d at inverse) (block at upper); product (n n,) is overwritten."""
    zero = np.uint64(0)
    multiply(size, order, blocks, lower, d, inverse, product, zero)
    subtract_product(size, order, product, zero, blocks, upper, d, at)


# Written out, with their arguments in this order: LLVM's code is a quarter faster so than made by `by_ordered_items`.
@compiled
def _solve(size, order, grid, after, lo, hi, state, done, blocks, d, b, x):
    """Items t < m are the tiles of the sweep forward, the others those of the sweep back, counted from the end."""
    n = order_of(size, order)
    nn, zero = n * n, np.uint64(0)
    I, J, K = grid
    cells = I * J * K
    z = np.empty(n, x.dtype)
    m = after.size // 2
    known, t = 0, next_item(state)
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        if t < m:
            for i in range(lo[t, 0], hi[t, 0]):
                for j in range(lo[t, 1], hi[t, 1]):
                    for k in range(lo[t, 2], hi[t, 2]):
                        c = (i * J + j) * K + k
                        for u in range(n):
                            z[u] = b[c * n + u]
                        if k > 0:
                            subtract_block(size, order, blocks, c * nn, x, (c - ONE) * n, z, zero)
                        if j > 0:
                            subtract_block(size, order, blocks, (cells + c) * nn, x, (c - K) * n, z, zero)
                        if i > 0:
                            subtract_block(size, order, blocks, (TWO * cells + c) * nn, x, (c - J * K) * n, z, zero)
                        for u in range(n):
                            total = d[c * nn + u * n] * z[0]
                            for v in range(ONE, n):
                                total += d[c * nn + u * n + v] * z[v]
                            x[c * n + u] = total
        else:
            s = t - m
            for back_i in range(lo[s, 0], hi[s, 0]):
                i = I - ONE - back_i
                for back_j in range(lo[s, 1], hi[s, 1]):
                    j = J - ONE - back_j
                    for back_k in range(lo[s, 2], hi[s, 2]):
                        k = K - ONE - back_k
                        c = (i * J + j) * K + k
                        for u in range(n):
                            z[u] = 0
                        if back_i > 0:
                            subtract_block(size, order, blocks, (FOUR * cells + c) * nn, x, (c + J * K) * n, z, zero)
                        if back_j > 0:
                            subtract_block(size, order, blocks, (FIVE * cells + c) * nn, x, (c + K) * n, z, zero)
                        if back_k > 0:
                            subtract_block(size, order, blocks, (SIX * cells + c) * nn, x, (c + ONE) * n, z, zero)
                        for u in range(n):
                            total = d[c * nn + u * n] * z[0]
                            for v in range(ONE, n):
                                total += d[c * nn + u * n + v] * z[v]
                            x[c * n + u] += total
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)


@compiled
def _solve_transposed(size, order, grid, after, lo, hi, state, done, blocks, d, b, x, conjugate):
    """The same with M^T = (D^T + F^T) D^-T (D^T + E^T): the blocks are those that the neighbours have for this cell."""
    n = order_of(size, order)
    nn, zero = n * n, np.uint64(0)
    I, J, K = grid
    cells = I * J * K
    z, y = np.empty(n, x.dtype), np.empty(n, x.dtype)
    m = after.size // 2
    known, t = 0, next_item(state)
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        forward = t < m
        s = t if forward else t - m
        for go_i in range(lo[s, 0], hi[s, 0]):
            i = go_i if forward else I - ONE - go_i
            for go_j in range(lo[s, 1], hi[s, 1]):
                j = go_j if forward else J - ONE - go_j
                for go_k in range(lo[s, 2], hi[s, 2]):
                    k = go_k if forward else K - ONE - go_k
                    c = (i * J + j) * K + k
                    for u in range(n):
                        z[u] = b[c * n + u] if forward else 0
                        y[u] = 0
                    if forward:
                        if k > 0:
                            e = c - ONE
                            subtract_transposed(
                                size, order, blocks, (SIX * cells + e) * nn, conjugate, x, e * n, z, zero
                            )
                        if j > 0:
                            e = c - K
                            subtract_transposed(
                                size, order, blocks, (FIVE * cells + e) * nn, conjugate, x, e * n, z, zero
                            )
                        if i > 0:
                            e = c - J * K
                            subtract_transposed(
                                size, order, blocks, (FOUR * cells + e) * nn, conjugate, x, e * n, z, zero
                            )
                    else:
                        if go_i > 0:
                            e = c + J * K
                            subtract_transposed(
                                size, order, blocks, (TWO * cells + e) * nn, conjugate, x, e * n, z, zero
                            )
                        if go_j > 0:
                            e = c + K
                            subtract_transposed(size, order, blocks, (cells + e) * nn, conjugate, x, e * n, z, zero)
                        if go_k > 0:
                            e = c + ONE
                            subtract_transposed(size, order, blocks, e * nn, conjugate, x, e * n, z, zero)
                    subtract_transposed(size, order, d, c * nn, conjugate, z, zero, y, zero)
                    for u in range(n):
                        x[c * n + u] = -y[u] if forward else x[c * n + u] - y[u]
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)
