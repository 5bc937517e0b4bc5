"""Small dense blocks in flat arrays: products with vectors and with each other, and inverses in place.

A block of n x n numbers lies by rows from a place on. For n <= LARGEST_COMPILED the length of the loops over n is known
when the code is compiled, and rows of real blocks are vectors (rows.py); `size`, a tuple of n zeros, carries it. For
larger n `size` is empty and `order` is n. Places and orders are unsigned.
"""

from __future__ import annotations

import math

import numpy as np

from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.indices import ONE
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.rows import add_rows, subtract_rows

LARGEST_COMPILED = 8  # rows of a block whose loops have a length that the compiler knows


def sizes(n):
    """(size, order) of n, the first arguments of all that follows."""
    return (0,) * n if n <= LARGEST_COMPILED else (), np.uint64(n)


@compiled
def order_of(size, order):
    """n; a constant where the compiler knows it."""
    return np.uint64(len(size)) if len(size) > 0 else order


@compiled
def subtract_block(size, order, blocks, p, x, q, out, r):
    """out[r:r + n] -= (block at p) x[q:q + n]."""
    n = order_of(size, order)
    for u in range(n):
        total = out[r + u]
        for v in range(n):
            total -= blocks[p + u * n + v] * x[q + v]
        out[r + u] = total


@compiled
def subtract_transposed(size, order, blocks, p, conjugate, x, q, out, r):
    """out[r:r + n] -= (block at p)^T x[q:q + n], or ^H."""
    n = order_of(size, order)
    if conjugate:
        for v in range(n):
            for u in range(n):
                out[r + u] -= np.conj(blocks[p + v * n + u]) * x[q + v]
    else:
        for v in range(n):
            for u in range(n):
                out[r + u] -= blocks[p + v * n + u] * x[q + v]


@compiled
def multiply(size, order, a, p, b, q, out, r):
    """(block at r of out) = (block at p of a) (block at q of b); out holds neither of the two."""
    n = order_of(size, order)
    for u in range(n):
        for v in range(n):
            out[r + u * n + v] = 0
        add_rows(size, size, order, a, p + u * n, b, q, out, r + u * n)


@compiled
def subtract_product(size, order, a, p, b, q, out, r):
    """(block at r of out) -= (block at p of a) (block at q of b)."""
    n = order_of(size, order)
    for u in range(n):
        subtract_rows(size, size, order, a, p + u * n, b, q, out, r + u * n)


@compiled
def _jordan_step(size, order, d, at, r):
    """Step r of Algorithm 5: the r-th unknown and the r-th right-hand side change places. False for a bad pivot."""
    n = order_of(size, order)
    one = d.dtype.type(1)
    row = at + r * n
    pivot = d[row + r]
    reciprocal = divide(one, pivot)
    d[row + r] = 1
    for v in range(n):
        d[row + v] *= reciprocal
    for u in range(n):
        if u != r:
            factor = d[at + u * n + r]
            subtract_rows((0,), size, order, d, at + u * n + r, d, row, d, at + u * n)
            d[at + u * n + r] = -(factor * reciprocal)
    return pivot != 0 and np.isfinite(pivot)


@compiled
def finite(size, order, d, at):
    """Whether all numbers of the block are."""
    n = order_of(size, order)
    good = True
    for q in range(n * n):
        good &= np.isfinite(d[at + q])
    return good


@compiled
def invert(size, order, d, at):
    """The block at `at` becomes its inverse by Gauss-Jordan elimination in place. False: a pivot was zero, or the
    inverse is not finite."""
    good = True
    for r in range(order_of(size, order)):
        good &= _jordan_step(size, order, d, at, r)
    return good and finite(size, order, d, at)


@compiled
def power_against(size, order, d, p, limit):
    """The power of two that brings the largest |re| + |im| of the n numbers from place p on to 1 to 2, its exponent
    from -limit to limit + 1."""
    largest = 0.0
    for v in range(order_of(size, order)):
        largest = max(largest, abs(d[p + v].real) + abs(d[p + v].imag))
    exponent = math.frexp(largest)[1] - 1 if largest < np.inf else limit
    return math.ldexp(1.0, -min(max(exponent, -limit - 1), limit))


@compiled
def invert_pivoting(size, order, d, at, swaps, powers):
    """The same with rows scaled by powers of two, after an exchange of row r with that of the largest |re| + |im| in
    column r; both undone in the columns. swaps (n,) and powers (n,), of the real type of d, are overwritten."""
    n = order_of(size, order)
    good = True
    limit = 126 if powers.itemsize == 4 else 1022
    for u in range(n):
        power = power_against(size, order, d, at + u * n, limit)
        powers[u] = power
        for v in range(n):
            d[at + u * n + v] *= powers[u]
    for r in range(n):
        best, largest = r, abs(d[at + r * n + r].real) + abs(d[at + r * n + r].imag)
        for u in range(r + ONE, n):
            here = abs(d[at + u * n + r].real) + abs(d[at + u * n + r].imag)
            if here > largest:
                best, largest = u, here
        swaps[r] = best
        if best != r:
            for v in range(n):
                d[at + r * n + v], d[at + best * n + v] = d[at + best * n + v], d[at + r * n + v]
        good &= _jordan_step(size, order, d, at, r)
    for step in range(n):
        r = n - ONE - step
        other = swaps[r]
        if other != r:
            for u in range(n):
                d[at + u * n + r], d[at + u * n + other] = d[at + u * n + other], d[at + u * n + r]
    for u in range(n):
        for v in range(n):
            d[at + u * n + v] *= powers[v]
    return good and finite(size, order, d, at)
