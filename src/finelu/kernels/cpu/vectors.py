"""Inner products, norms, scaled gathers and scatters of vectors."""

from __future__ import annotations

import math

import numpy as np

from finelu.kernels.cpu.runtime.jit import compiled, summing


@summing
def inner(x, y):
    """x^H y."""
    total = x[0] * 0
    for i in range(x.size):
        total += np.conj(x[i]) * y[i]
    return total


@summing
def bilinear(x, y):
    """x^T y."""
    total = x[0] * 0
    for i in range(x.size):
        total += x[i] * y[i]
    return total


@summing
def sum_of_squares(x):
    """x^H x, added up in double precision."""
    total = 0.0
    for i in range(x.size):
        re, im = np.float64(x[i].real), np.float64(x[i].imag)
        total += re * re + im * im
    return total


@summing
def sum_of_scaled_squares(x, scale):
    """The same for x / scale."""
    total = 0.0
    for i in range(x.size):
        re, im = np.float64(x[i].real) / scale, np.float64(x[i].imag) / scale
        total += re * re + im * im
    return total


@compiled
def length(x):
    """||x||_2, without overflow or underflow where it is representable; a second pass only where it is extreme."""
    square = sum_of_squares(x)
    if 1e-270 < square < 1e270 or math.isnan(square):
        return math.sqrt(square)
    largest = 0.0
    for i in range(x.size):
        largest = max(largest, abs(np.float64(x[i].real)), abs(np.float64(x[i].imag)))
    if largest == 0 or math.isinf(largest):
        return largest
    return largest * math.sqrt(sum_of_scaled_squares(x, largest))


@compiled
def dot(x, y, out):
    """out[0] = x^H y."""
    out[0] = inner(x, y)


@compiled
def dotu(x, y, out):
    """out[0] = x^T y, the product without conjugation."""
    out[0] = bilinear(x, y)


@summing
def sum_of_products(x, y):
    """sum |x_i| |y_i|; |a| is |Re a| + |Im a|."""
    total = abs(x[0].real) * 0
    for i in range(x.size):
        total += (abs(x[i].real) + abs(x[i].imag)) * (abs(y[i].real) + abs(y[i].imag))
    return total


@compiled
def size_of_dot(x, y, out):
    """out[0] = the sum of the magnitudes of the terms of x^H y, that of a complex number taken as |Re| + |Im|."""
    out[0] = sum_of_products(x, y)


@compiled
def norm(x, out):
    """out[0] = ||x||_2, without overflow or underflow where the norm is representable."""
    out[0] = length(x)


@compiled
def dot_and_norm(x, y, out, size):
    """out[0] = x^H y and size[0] = ||x||_2."""
    out[0] = inner(x, y)
    size[0] = length(x)


def _scaled(scale, x):
    return (scale if x.ndim == 1 else scale[:, None]) * x


def gather_scaled(rows, scale, r):
    """scale_i r[rows_i]; see kernels/reference/vectors.py."""
    return _scaled(scale, r[rows])


def scatter_scaled(places, scale, s, t, w):
    """scale_i (s - t, w)_i at places_i; see kernels/reference/vectors.py. t and w may be None."""
    out = np.empty((places.size, *s.shape[1:]), s.dtype)
    m = s.shape[0]
    out[places[:m]] = _scaled(scale[:m], s if t is None else s - t)
    if w is not None:
        out[places[m:]] = _scaled(scale[m:], w)
    return out


def first_bad(bad) -> int:
    """The row that a kernel reported, or -1."""
    return bad
