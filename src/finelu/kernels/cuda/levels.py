"""Level sets of a triangular pattern, on the GPU."""

from __future__ import annotations

from finelu.kernels.cuda.runtime.schedule import levels_on_device
from finelu.kernels.operands import Triangle


def levels(triangle: Triangle):
    """(level (n,) int32, number of levels); see kernels/reference/levels.py:levels."""
    level, deepest = levels_on_device(triangle)
    return level, deepest.item() + 1
