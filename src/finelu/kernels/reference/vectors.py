"""Operations with vectors. The specification."""

from __future__ import annotations

import numpy as np

# Results for the Krylov methods are arrays of one element, so that on the GPU nothing waits for them.


def dot(x, y, out):
    """out[0] = x^H y."""
    out[0] = np.vdot(x, y)


def dotu(x, y, out):
    """out[0] = x^T y, the product without conjugation."""
    out[0] = np.sum(x * y)


def size_of_dot(x, y, out):
    """out[0] = the sum of the magnitudes of the terms of x^H y, that of a complex number taken as |Re| + |Im|."""
    out[0] = np.sum((abs(x.real) + abs(x.imag)) * (abs(y.real) + abs(y.imag)))


def norm(x, out):
    """out[0] = ||x||_2, without overflow or underflow where the norm is representable; NaN and Inf show."""
    out[0] = length(x)


def dot_and_norm(x, y, out, size):
    """out[0] = x^H y and size[0] = ||x||_2, in one pass."""
    dot(x, y, out)
    norm(x, size)


def gather(x, places):
    """x[places], a new array (places,), or of rows (places, m) of x (n, m)."""
    return np.array([x[place] for place in places], x.dtype).reshape(-1, *x.shape[1:])


def copy(x, out):
    """out = x, of one shape and dtype."""
    out[...] = x


def difference(b, y, r):
    """r = b - y; r may be one of them."""
    r[:] = b - y


def added(x, y):
    """x + y, a new array."""
    return x + y


def moved_on(d, v, x, r):
    """x += d and r -= v, in one pass."""
    x += d
    r -= v


def turned(a, d, b, z):
    """d = a d + b z for real numbers a and b."""
    d[:] = a * d + b * z


def scaled(factor, x, out):
    """out = factor[0] x for a real factor (1,)."""
    out[:] = factor * x


def rounded(x, out, lost):
    """out = x in the dtype of `out`, of single precision.

    lost (1,) float64 : 1 if the real or imaginary part of an element is beyond the range in which single precision has
        all its digits, else 0. 0, NaN and Inf are within. A GPU may round numbers below that range to 0.
    """
    with np.errstate(over="ignore", under="ignore"):
        out[:] = x
    sizes = abs(np.concatenate([x.real, x.imag]))
    lost[0] = np.any(np.isfinite(sizes) & (sizes != 0) & ((sizes < 1.2e-38) | (sizes > 3.4e38)))


def largest(x):
    """The largest magnitude in x, NaN if there is one; x has any shape, and at least one element. Waits for a GPU."""
    return float(abs(x).max())


def first_not_positive(x, places):
    """The first i for which the real part of x[places[i]] is not above 0, -1 for none."""
    for i, place in enumerate(places):
        if not x[place].real > 0:
            return i
    return -1


def first_of_other_sign(x, places, y):
    """The first i for which one of the real x[places[i]] and y[i] is above 0 and the other is not, -1 for none."""
    for i, place in enumerate(places):
        if (x[place] > 0) != (y[i] > 0):
            return i
    return -1


def first_not_finite(x):
    """The first place of x (n,) that holds NaN or Inf, -1 for none."""
    for i, value in enumerate(x):
        if not np.isfinite(value):
            return i
    return -1


def length(x):
    """||x||_2 in double precision: the largest magnitude times the norm of x relative to it."""
    parts = np.concatenate([x.real, x.imag]).astype(np.float64)
    largest = abs(parts).max(initial=0)
    if largest == 0 or not np.isfinite(largest):
        return largest
    return largest * np.sqrt(np.sum((parts / largest) ** 2))


# The steps of a multilevel factorization besides its triangular solves; vectors are (n,) or (n, k).


def gather_scaled(rows, scale, r):
    """out_i = scale_i r[rows_i]."""
    return np.stack([scale[i] * r[rows[i]] for i in range(rows.size)])


def scatter_scaled(places, scale, s, t, w):
    """out[places_i] = scale_i v_i, v being s - t (s, where t is None) and then w (which may be None, for no rows)."""
    v = s if t is None else s - t
    v = v if w is None else np.concatenate([v, w])
    out = np.empty_like(v)
    for i in range(places.size):
        out[places[i]] = scale[i] * v[i]
    return out
