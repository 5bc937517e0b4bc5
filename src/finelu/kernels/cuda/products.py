"""Launchers of products.cu: products of a matrix with vectors, and residuals."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import blocks, by_columns, kernel, optional
from finelu.kernels.cuda.runtime.schedule import lanes_for

BLOCK = 256


def _rows(function, indptr, indices, data, *arguments):
    n = indptr.size - 1
    launch = kernel("products", function, data.dtype.name, indices.dtype.name)
    launch((blocks(32 * n, BLOCK),), (BLOCK,), (indices.dtype.type(n), indptr, indices, data, *arguments))


class Product:
    """y = A x by cuSPARSE; see kernels/reference/products.py. S : cupyx.scipy.sparse CSR."""

    def __init__(self, S):
        self.matrix = S

    def __call__(self, x):
        return self.matrix @ x


def residual(indptr, indices, data, x, b, factor, r, bound):
    real = bound.dtype.type
    _rows("residual", indptr, indices, data, x, b, real(factor), real(np.finfo(real).eps), r, bound)


def residual_twice(indptr, indices, data, x, b, factor, r):
    _rows("residual_twice", indptr, indices, data, x, b, cupy.float64(factor), r)


def subtract_product(M, x, y=None):
    """y - M x, or M x; see kernels/reference/products.py. M : cupyx.scipy.sparse CSR."""
    n = M.shape[0]
    out, grid, columns = by_columns(n, x)
    index, lanes = M.indices.dtype, lanes_for(M.nnz / max(n, 1))
    if out.size:
        kernel("products", "subtract_product", x.dtype, index)(
            (blocks(n * lanes, BLOCK), grid),
            (BLOCK,),
            (
                index.type(n),
                columns,
                np.int32(lanes),
                M.indptr,
                M.indices,
                M.data,
                x,
                optional(y),
                out,
            ),
        )
    return out


def dense_product(matrix, x):
    """matrix x; see kernels/reference/products.py. matrix (n, n) C-contiguous."""
    n, x = matrix.shape[0], cupy.ascontiguousarray(x)
    out, grid, columns = by_columns(n, x)
    if out.size:
        kernel("products", "dense_product", x.dtype)(
            (blocks(32 * n, BLOCK), grid), (BLOCK,), (np.int32(n), columns, matrix, x, out)
        )
    return out
