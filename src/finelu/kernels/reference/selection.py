"""The value of a given rank. The specification."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from finelu.errors import MatrixError

SUBSETS, SEQUENTIAL = 64, 100_000  # subsets of the approximate selection on the CPU; below this many values it is exact


def select(values, rank, order="magnitudes"):
    """(the element with `rank` others before it, the number of smaller ones), of the values or of their magnitudes.

    The rank n, which no element has, gives (Inf, n). There must be no NaN, which has no place in any order.
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


class Selection:
    """A plan for searches among up to n_max values: `select`, or if not `exact`, for many values, approximately.

    The approximate form is the CPU's; the GPU's takes the nearest splitter of one level of sampleselect.
    out (1,), below (1,) : the results of the last `select`.
    """

    def __init__(self, n_max, dtype, *, order="magnitudes", exact=True, method="auto"):
        self.order, self.exact = order, exact
        self.out, self.below = np.zeros(1, np.dtype(dtype).char.lower()), np.zeros(1, np.int64)

    def select(self, values, rank=None, *, keep=None, count=None):
        """The value of rank `rank`, or n - keep (0 if keep > n), of the first `count` values; returns `out`."""
        values = values[:count]
        rank = rank if keep is None else max(values.size - keep, 0)
        self.nan = np.flatnonzero(np.isnan(values))
        if self.nan.size:
            found = np.inf, values.size
        elif self.exact or values.size < SEQUENTIAL:
            found = select(values, rank, self.order)
        else:
            found = median_of_thresholds(values, rank, SUBSETS, self.order)
        self.out[0], self.below[0] = found
        return self.out

    def check(self):
        """Raise MatrixError, naming the place of the first NaN, if there was one in the last `select`."""
        if self.nan.size:
            raise MatrixError(f"values[{self.nan[0]}] is NaN, which has no place in any order; remove or replace it.")

    def result(self):
        """The result of the last `select`; raises what `check` does."""
        self.check()
        return self.out[0]
