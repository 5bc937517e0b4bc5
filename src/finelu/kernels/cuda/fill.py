"""Launchers of fill.cu: the pattern of ILU(k)."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.cuda.indices import shifted
from finelu.kernels.cuda.runtime.launch import for_each
from finelu.kernels.cuda.threshold import UNLIMITED, grow


def pattern_iluk(indptr, indices, level):
    """The pattern of L + U of ILU(level), and where the entries of A lie in it; see kernels/reference/fill.py.

    indptr (n + 1,), indices (nnz,) : the pattern of A, rows sorted, the diagonal full.  level : >= 0; n - 1 and all
        beyond give the pattern of the complete factors.
    Returns indptr (n + 1,), indices and places (nnz,), of A's index type or, where that cannot count them, int64. The
    host waits twice, and once more whenever there was too little room. Cost: a warp a row, in natural order, and for
    each step of a row a wait for another.
    """
    n = indptr.size - 1
    launched = "fill", "pattern_iluk", indices.dtype
    grown = grow(launched, indices, n, np.int32, UNLIMITED, indptr, indices, np.int32(min(level, n)), values=False)
    index = grown.indices.dtype
    of_A, places = (shifted(indptr, 0, index), shifted(indices, 0, index)), cupy.empty(indices.size, index)
    for_each("fill", "places_in", (index,), index.type(n), *of_A, grown.indptr, grown.indices, places, lanes=32)
    return grown.indptr, grown.indices, places
