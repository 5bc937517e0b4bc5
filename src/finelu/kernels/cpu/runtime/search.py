"""The columns that a short row shares with a much longer one, at a cost that grows with the shorter row."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.indices import ONE
from finelu.kernels.cpu.runtime.jit import compiled

LONGER = 8  # times as long as another a row is searched in, not looked through
LONG = 128  # entries of a row up to which nothing is gained by a search


@compiled
def place_of(indices, first, last, j):
    """The first place in [first, last) whose column is not before j, or last. Places are unsigned, columns ascend."""
    while first < last:
        middle = first + (last - first) // np.uint64(2)
        if np.uint64(indices[middle]) < np.uint64(j):
            first = middle + ONE
        else:
            last = middle
    return first
