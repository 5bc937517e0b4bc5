"""Level sets of a triangular pattern."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.indices import unsigned
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.operands import Triangle


def levels(triangle: Triangle):
    """The level of each row and their number; see kernels/reference/levels.py. One serial pass over the entries."""
    level = np.empty(triangle.n, np.int32)
    depth = _levels(triangle.reverse, triangle.begin, triangle.end, unsigned(triangle.indices), level)
    return level, depth


@compiled
def _levels(reverse, begin, end, indices, level):
    n = level.size
    deepest = 0
    for t in range(n):
        i = n - 1 - t if reverse else t
        highest = 0
        for p in range(begin[i], end[i]):
            highest = max(highest, level[indices[p]] + 1)
        level[i] = highest
        deepest = max(deepest, highest)
    return deepest + 1
