"""Products of a sparse matrix with a vector, and residuals; threads share the rows."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.columns import add_up as add_up_columns
from finelu.kernels.cpu.columns import inner_of_columns, part_of
from finelu.kernels.cpu.runtime.arithmetic import fma
from finelu.kernels.cpu.runtime.columns import blocks_of, flat, in_place, lie_in_tiles, multiply_row, read_row, tiles_of
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.sharing import run_items, shared_out
from finelu.kernels.cpu.vectors import CHUNK, SHARED, add_up, chunks, dot, inner
from finelu.kernels.operands import CSR

ZERO = np.uint64(0)


class Product:
    """y = A x for a square A in CSR, sorted and without duplicates, with x (n,) or (n, k) of A's dtype.

    The terms of a row are added in ascending order of columns, as SciPy adds them: the bits are the same on any number
    of threads, and for a column of several as alone. y has the layout of x. Cost: one pass over the entries. Small
    products run on the calling thread alone.
    """

    def __init__(self, S):
        self.S, self.plan, self.of_chunks = S, None, None
        self.columns = 0, None  # a number of columns, and the items of work with as many

    def __call__(self, x, out=None):
        if x.ndim == 2:
            return self._of_columns(x, out)
        plan = self.plan or self._planned()
        x, y = np.ascontiguousarray(x), np.empty(x.size, self.S.data.dtype) if out is None else out
        run_items(_times, plan[0].size - 1, *plan, x, y)
        return y

    def _planned(self):
        """The rows at which items of work begin, and the arrays of S; kept."""
        S = self.S
        self.plan = shared_out(S.indptr, S.nnz), unsigned(S.indptr), unsigned(S.indices), S.data
        return self.plan

    def _of_columns(self, x, out):
        x = x if x.flags.c_contiguous or x.flags.f_contiguous else np.ascontiguousarray(x)
        y = np.empty_like(x) if out is None else out
        n, k = x.shape
        if k == 0:
            return y
        items, *matrix = self.plan or self._planned()
        if items.size == 2:  # one column is too little work to be shared
            if self.columns[0] != k:
                self.columns = k, shared_out(self.S.indptr, k * self.S.nnz)
            items = self.columns[1]
        blocks, width = blocks_of(k, 1)
        counts = np.uint64(k), np.uint64(width), np.uint64(blocks)
        tiles = in_place(x) if lie_in_tiles(x) else tiles_of(blocks, n, x.dtype)
        if not lie_in_tiles(x):
            run_items(_into_tiles, items.size - 1, items, *counts, *flat(x), *tiles)
        run_items(_times_columns, items.size - 1, items, *counts, *matrix, *tiles, *flat(y))
        return y

    def with_dot(self, x, y, total):
        """A x, and total[0] = y^H A x, added up chunk by chunk as `dot` does, while a cache holds the chunk of A x."""
        if x.ndim == 2 or x.size < SHARED or not y.flags.c_contiguous:
            product = self(x)
            dot(y, product, total)
            return product
        S = self.S
        if self.of_chunks is None:
            items = np.unique(np.rint(shared_out(S.indptr, S.nnz) / CHUNK).astype(np.int64))
            items[-1] = chunks(x.size)
            self.of_chunks = items, unsigned(S.indptr), unsigned(S.indices), S.data
        x, product = np.ascontiguousarray(x), np.empty(x.size, S.data.dtype)
        sums = np.empty(chunks(x.size), product.dtype)
        run_items(_times_with_dot, self.of_chunks[0].size - 1, *self.of_chunks, x, y, product, sums)
        add_up(sums, total)
        return product


def columns_with_dots(product, which, x, y, totals, out):
    """out = A x, and totals[which[c]] = y^H A x of column c, for x, y and out (n, k), row-major."""
    _, *matrix = product.plan or product._planned()
    k = x.shape[1]
    blocks, width = blocks_of(k, 1)
    counts = np.uint64(k), np.uint64(width), np.uint64(blocks)
    tiles = in_place(x) if lie_in_tiles(x) else tiles_of(blocks, x.shape[0], x.dtype)
    if not lie_in_tiles(x):
        items = shared_out(product.S.indptr, k * product.S.nnz)
        run_items(_into_tiles, items.size - 1, items, *counts, *flat(x), *tiles)
    sums = np.empty((chunks(x.shape[0]), k), x.dtype)
    threads = None if product.S.nnz * k >= SHARED else 1
    rows = np.append(np.arange(sums.shape[0]) * CHUNK, x.shape[0]).astype(np.uint64)
    arguments = rows, *counts, *matrix, *tiles, *flat(out), y.reshape(-1), sums
    run_items(_times_with_dots, sums.shape[0], *arguments, threads=threads)
    add_up_columns(which, sums, totals)


def residual(indptr, indices, data, x, b, factor, r, bound, eps=None):
    """r = b - factor A x, and a bound of the rounding error of each element; see kernels/reference/products.py."""
    real = r.real.dtype.type
    items, eps = shared_out(indptr, data.size), real(np.finfo(real).eps if eps is None else eps)
    arguments = items, unsigned(indptr), unsigned(indices), data, x, b, real(factor), eps, r, bound
    run_items(_residual, items.size - 1, *arguments)


def residual_twice(indptr, indices, data, x, b, factor, r):
    """r = b - factor A x, added up in twice the precision of float64 and rounded; see kernels/reference/products.py."""
    items = shared_out(indptr, 8 * data.size)
    parts = (_parts(v) for v in (data, x, b, r))
    run_items(_residual_twice, items.size - 1, items, unsigned(indptr), unsigned(indices), float(factor), *parts)


def _parts(v):
    """(n, 1), or for complex numbers (n, 2): real and imaginary parts."""
    return v.view(v.real.dtype).reshape(v.size, 2 if v.dtype.kind == "c" else 1)


@by_items
def _residual(t, items, indptr, indices, data, x, b, factor, eps, r, bound):
    for i in range(items[t], items[t + 1]):
        total = data.dtype.type(0)
        size = factor * 0
        for p in range(indptr[i], indptr[i + ONE]):
            a, v = data[p], x[indices[p]]
            total += a * v
            size += (abs(a.real) + abs(a.imag)) * (abs(v.real) + abs(v.imag))
        r[i] = b[i] - total * factor
        entries = indptr[i + ONE] - indptr[i]
        bound[i] = (entries + ONE) * eps * (size * factor + (abs(b[i].real) + abs(b[i].imag)))


@by_items
def _residual_twice(t, items, indptr, indices, factor, data, x, b, r):
    """Dot2 of Ogita, Rump & Oishi 2005 for each row."""
    for i in range(items[t], items[t + 1]):
        for part in range(r.shape[1]):
            total, rest = np.float64(b[i, part]) / factor, 0.0  # factor is a power of two
            for p in range(indptr[i], indptr[i + ONE]):
                j = indices[p]
                if r.shape[1] == 1:
                    total, rest = less(total, rest, data[p, 0], x[j, 0])
                else:  # the real part, then the imaginary one
                    total, rest = less(total, rest, data[p, 0], x[j, part])
                    total, rest = less(total, rest, data[p, 1] if part else -data[p, 1], x[j, 1 - part])
            r[i, part] = (total + rest) * factor


@compiled
def less(total, rest, a, b):
    """total + rest - a b; the rounding error of total is added to rest."""
    a, b = -np.float64(a), np.float64(b)
    product = a * b
    low = fma(a, b, -product)
    added = total + product
    part = added - total
    return added, rest + ((total - (added - part)) + (product - part) + low)


@by_items
def _times(t, items, indptr, indices, data, x, y):
    """y = A x; several threads may run it on the same arguments, see items.py."""
    for i in range(items[t], items[t + 1]):
        total = data.dtype.type(0)
        for p in range(indptr[i], indptr[i + ONE]):
            total += data[p] * x[indices[p]]
        y[i] = total


@by_items
def _times_with_dot(t, items, indptr, indices, data, x, other, y, sums):
    """y = A x and other^H y in the chunks of an item."""
    for c in range(items[t], items[t + 1]):
        k = slice(c * CHUNK, min((c + 1) * CHUNK, y.size))
        for i in range(np.uint64(k.start), np.uint64(k.stop)):
            total = data.dtype.type(0)
            for p in range(indptr[i], indptr[i + ONE]):
                total += data[p] * x[indices[p]]
            y[i] = total
        sums[c] = inner(other[k], y[k])


@by_items
def _into_tiles(t, items, columns, width, blocks, x, x_row, x_column, tiles, stride, size):
    """The rows of an item of x, `width` columns a tile."""
    for i in range(items[t], items[t + 1]):
        for block in range(blocks):
            first = block * width
            last, place = min(width, columns - first) - ONE, i * x_row + first * x_column
            read_row(tiles, stride, block * size, np.uint64(i), x, place, x_column, last)


@compiled
def _times_rows(
    begin, end, columns, width, blocks, indptr, indices, data, tiles, stride, size, y, y_row, y_column
):  # fmt: skip
    """y = A x for rows, with x in tiles: entries that were read for one are near for the next."""
    for i in range(begin, end):
        for block in range(blocks):
            first = block * width
            last, place = min(width, columns - first) - ONE, i * y_row + first * y_column
            entries = indptr[i], indptr[i + ONE]
            multiply_row(tiles, stride, block * size, indices, data, *entries, y, place, y_column, last)


@by_items
def _times_with_dots(
    t, items, columns, width, blocks, indptr, indices, data, tiles, stride, size, y, y_row, y_column, left, sums
):  # fmt: skip
    """`_times_columns` for a chunk, and left^H y of it, as `dot` adds it up."""
    operands = columns, width, blocks, indptr, indices, data, tiles, stride, size, y, y_row, y_column
    _times_rows(items[t], items[t + 1], *operands)
    chunk = part_of(t, y, sums.shape[1])
    inner_of_columns(left[chunk], y[chunk], sums[t])


@by_items
def _times_columns(
    t, items, columns, width, blocks, indptr, indices, data, tiles, stride, size, y, y_row, y_column
):  # fmt: skip
    """y = A x for the rows of an item."""
    operands = columns, width, blocks, indptr, indices, data, tiles, stride, size, y, y_row, y_column
    _times_rows(items[t], items[t + 1], *operands)


def subtract_product(M, x, y=None):
    """y - M x, or M x; see kernels/reference/products.py. M : a CSR, or scipy.sparse's."""
    if isinstance(M, CSR) and x.dtype == M.dtype and (x.ndim == 1 or M.shape[0] == M.shape[1]):
        product = Product(M)(x)
    else:
        product = (M.tosparse() if isinstance(M, CSR) else M) @ x
    return product if y is None else y - product


def magnitudes_of_terms(indptr, bound, factor):
    """See kernels/reference/products.py."""
    out = np.empty(bound.size)
    threads = None if bound.size >= SHARED else 1
    run_items(_magnitudes, chunks(bound.size), unsigned(indptr), bound, float(factor), out, threads=threads)
    return out


@by_items
def _magnitudes(t, indptr, bound, factor, out):
    for i in range(np.uint64(t * CHUNK), np.uint64(min((t + 1) * CHUNK, out.size))):
        out[i] = np.float64(bound[i]) / np.float64(indptr[i + ONE] - indptr[i] + ONE) * factor


def dense_product(matrix, x):
    """matrix x; see kernels/reference/products.py."""
    return matrix @ x
