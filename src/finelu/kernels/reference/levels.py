"""Level sets of a triangular pattern. The specification."""

from __future__ import annotations

import numpy as np

from finelu.kernels.operands import Triangle
from finelu.kernels.reference.triangular import rows_in_order


def levels(triangle: Triangle):
    """The level of each row, 0 without entries and else 1 + the highest level among its columns, and their number."""
    level = np.zeros(triangle.n, np.int32)
    for i in rows_in_order(triangle):
        columns = triangle.indices[triangle.begin[i] : triangle.end[i]]
        level[i] = 1 + level[columns].max() if columns.size else 0
    return level, int(level.max()) + 1
