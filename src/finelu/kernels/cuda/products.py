"""Launchers of products.cu: products of a matrix with vectors, and residuals."""

from __future__ import annotations

from functools import partial

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import (
    BLOCK,
    NULL,
    across,
    blocks,
    by_columns,
    device_limits,
    for_each,
    kernel,
    optional,
)
from finelu.kernels.cuda.runtime.memory import counter
from finelu.kernels.cuda.runtime.schedule import lanes_for

_each = partial(for_each, "products")

AT_ONCE = 2048  # terms of a block in shared memory, as in products.cu
TOGETHER = 4  # blocks a multiprocessor: fewer sums of blocks to add up, and none of them comes late
FEWEST_ROWS, MOST_ROWS = 8, 256  # of a block of `product`: 32 threads a row or one
SPREAD_ROWS = 64  # down to which a block has fewer rows where there would be fewer blocks than the GPU takes at a time


class Product:
    """y = A x; see kernels/reference/products.py. S : a CSR, or cupyx's. Waits for nothing."""

    def __init__(self, S):
        self.S = S
        n, index = S.shape[0], S.indices.dtype
        processors = device_limits()["processors"]
        rows = rows_of_a_block(n, S.nnz, processors)
        groups = blocks(n, rows)
        self.n, self.dtype, self.index = n, S.data.dtype, index
        self.grid = (blocks(groups, blocks(groups, TOGETHER * processors)),)  # each block as many groups of rows
        self.matrix = index.type(n), np.int32(rows), S.indptr, S.indices, S.data

    def __call__(self, x, out=None):
        if x.ndim == 2:
            product = subtract_product(self.S, x)
            if out is not None:
                out[...] = product
            return product if out is None else out
        return self._product(x, out, NULL, NULL, NULL, NULL)

    def with_dot(self, x, y, total):
        room = cupy.empty(self.grid[0], self.dtype)
        return self._product(x, None, cupy.ascontiguousarray(y), room, counter(), total)

    def _product(self, x, out, *dot):
        out = cupy.empty(self.n, self.dtype) if out is None else out
        launch = kernel("products", "product", self.dtype, self.index)
        launch(self.grid, (BLOCK,), (*self.matrix, cupy.ascontiguousarray(x), out, *dot))
        return out


def rows_of_a_block(n: int, nnz: int, processors: int) -> int:
    """Rows whose entries a block of `product` takes at a time, a power of two: as many as fill its shared memory in the
    mean, but fewer where the blocks would be too few to keep the GPU busy."""
    rows = MOST_ROWS
    while rows > FEWEST_ROWS and rows * nnz > AT_ONCE * n:
        rows //= 2
    while rows > SPREAD_ROWS and blocks(n, rows) < 2 * processors:
        rows //= 2
    return rows


def residual(indptr, indices, data, x, b, factor, r, bound, eps=None):
    n, real = indices.dtype.type(indptr.size - 1), bound.dtype.type
    lanes = lanes_for(indices.size / max(n, 1))
    matrix, scales = (indptr, indices, data), (real(factor), real(np.finfo(real).eps if eps is None else eps))
    _each("residual", (data.dtype, n.dtype), n, np.int32(lanes), *matrix, x, b, *scales, r, bound, lanes=lanes)


def residual_twice(indptr, indices, data, x, b, factor, r):
    n = indices.dtype.type(indptr.size - 1)
    _each("residual_twice", (data.dtype, n.dtype), n, indptr, indices, data, x, b, np.float64(factor), r, lanes=32)


def subtract_product(M, x, y=None):
    """y - M x, or M x; see kernels/reference/products.py. M : a CSR, or cupyx's."""
    n, x = M.indices.dtype.type(M.shape[0]), cupy.ascontiguousarray(x)
    out, columns = by_columns(M.shape[0], x)
    columns, groups = across(columns)
    width = 1 << int(columns[-1])
    threads = width * lanes_for(M.nnz / max(M.shape[0], 1), 32 // width)
    y = y if y is None else cupy.ascontiguousarray(y)
    matrix, vectors = (M.indptr, M.indices, M.data), (x, optional(y), out)
    given = n, *columns, np.int32(threads), *matrix, *vectors
    _each("subtract_product", (x.dtype, n.dtype), *given, lanes=threads, columns=groups)
    return out


def magnitudes_of_terms(indptr, bound, factor):
    """See kernels/reference/products.py."""
    out = cupy.empty(bound.size, np.float64)
    types = bound.dtype, indptr.dtype
    _each("magnitudes_of_terms", types, np.int64(bound.size), indptr, bound, np.float64(factor), out)
    return out


def dense_product(matrix, x):
    """matrix x; see kernels/reference/products.py. matrix (n, n) C-contiguous."""
    n, x = matrix.shape[0], cupy.ascontiguousarray(x)
    out, columns = by_columns(n, x)
    columns, groups = across(columns)
    _each("dense_product", (x.dtype,), np.int32(n), *columns, matrix, x, out, lanes=32, columns=groups)
    return out
