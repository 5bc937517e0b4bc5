"""Operations with vectors. The specification."""

from __future__ import annotations

import numpy as np

# What is applied of a multilevel factorization besides its triangular solves; vectors are (n,) or (n, k).


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
