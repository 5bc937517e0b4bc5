"""Launchers of residual.cu; names and meanings as in kernels/reference.py."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.launch import blocks, kernel

BLOCK = 256


def _rows(function, indptr, indices, data, *arguments):
    n = indptr.size - 1
    launch = kernel("residual", function, data.dtype.name, indices.dtype.name)
    launch((blocks(32 * n, BLOCK),), (BLOCK,), (indices.dtype.type(n), indptr, indices, data, *arguments))


def residual(indptr, indices, data, x, b, factor, r, bound):
    real = bound.dtype.type
    _rows("residual", indptr, indices, data, x, b, real(factor), real(np.finfo(real).eps), r, bound)


def residual_twice(indptr, indices, data, x, b, factor, r):
    _rows("residual_twice", indptr, indices, data, x, b, cupy.float64(factor), r)
