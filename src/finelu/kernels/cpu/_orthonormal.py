"""Vectors of a coarse space that are orthonormal in each part."""

from __future__ import annotations

import math

import numpy as np

from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import nested
from finelu.kernels.cpu.runtime.row_blocks import even_items
from finelu.kernels.cpu.runtime.sharing import run_items


def orthonormal(parts, starts, rows, B, least):
    """The columns of B, orthonormal in each part; see kernels/reference/subdomains.py. Threads share the parts."""
    B, count, m = np.ascontiguousarray(B), starts.size - 1, B.shape[1]
    Z, dependent = np.empty(B.shape, B.dtype), np.empty((count, m), np.bool_)
    by_position = np.empty((m, rows.size), B.dtype)
    items = even_items(count, rows.size * m * (m + 1))
    run_items(_orthonormal, items.size - 1, items, starts, rows, B, least, by_position, Z, dependent)
    return Z, dependent.reshape(-1)


@nested
def _length(v):
    total = 0.0
    for x in v:
        re, im = np.float64(x.real), np.float64(x.imag)
        total += re * re + im * im
    return math.sqrt(total)


@by_items
def _orthonormal(t, items, starts, rows, B, least, by_position, Z, dependent):
    """by_position (m, n) : Z^T, its columns in the order of the positions."""
    m = B.shape[1]
    along = np.empty(m, B.dtype)
    for p in range(items[t], items[t + 1]):
        first, end = np.int64(starts[p]), np.int64(starts[p + 1])
        for c in range(m):
            v = by_position[c, first:end]
            for k in range(v.size):
                v[k] = B[rows[first + k], c]
            before = _length(v)
            scale = before if before > 0 else 1.0
            for k in range(v.size):
                v[k] /= scale
            for _ in range(2):
                for d in range(c):
                    u, total = by_position[d, first:end], B.dtype.type(0)
                    for k in range(v.size):
                        total += np.conj(u[k]) * v[k]
                    along[d] = total
                for d in range(c):
                    u, factor = by_position[d, first:end], along[d]
                    for k in range(v.size):
                        v[k] -= factor * u[k]
            left = _length(v)
            none = not left > least or before == 0
            dependent[p, c] = none
            for k in range(v.size):
                v[k] = B.dtype.type(0) if none else v[k] / left
                Z[rows[first + k], c] = v[k]
