"""What is applied of a multilevel factorization besides its triangular solves, by NumPy and SciPy."""

from __future__ import annotations

import numpy as np


def _scaled(scale, x):
    return (scale if x.ndim == 1 else scale[:, None]) * x


def enter(rows, scale, r):
    """scale_i r[rows_i]; see kernels/reference.py."""
    return _scaled(scale, r[rows])


def leave(places, scale, s, t, w):
    """scale_i (s - t, w)_i at places_i; see kernels/reference.py. t and w may be None."""
    out = np.empty((places.size, *s.shape[1:]), s.dtype)
    m = s.shape[0]
    out[places[:m]] = _scaled(scale[:m], s if t is None else s - t)
    if w is not None:
        out[places[m:]] = _scaled(scale[m:], w)
    return out


def subtract_product(M, x, y=None):
    """y - M x, or M x; see kernels/reference.py. M : scipy.sparse CSR."""
    return M @ x if y is None else y - M @ x


def dense_product(matrix, x):
    """matrix x; see kernels/reference.py."""
    return matrix @ x
