"""The value of a given rank. The specification."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def select(values, rank, order="magnitudes"):
    """(the element with `rank` others before it, how many are less than it), of the values or of their magnitudes.

    The rank n, which nobody has, gives (Inf, n). There must be no NaN, which has no place in any order.
    """
    ordered = np.sort(abs(values) if order == "magnitudes" else values)
    if rank == ordered.size:
        return ordered.dtype.type(np.inf), rank
    return ordered[rank], int(np.count_nonzero(ordered < ordered[rank]))


def median_of_thresholds(values, rank, subsets, order="magnitudes"):
    """`select`, approximately: the median of the elements that have the same share of the rank in equal subsets."""
    bounds = np.linspace(0, values.size, subsets + 1).astype(int)
    parts = [values[begin:end] for begin, end in pairwise(bounds)]
    thresholds = [select(part, min(part.size * rank // values.size, part.size - 1), order)[0] for part in parts]
    threshold = np.sort(thresholds)[subsets // 2]
    return threshold, int(np.count_nonzero((abs(values) if order == "magnitudes" else values) < threshold))
