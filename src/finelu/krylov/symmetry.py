"""Whether an operator is symmetric, by two products: what minres and sqmr ask before they begin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from finelu.krylov.loop import Loop


def symmetric(loop: Loop, op: Any, u: Any, y: Any, dot: Callable[..., None]) -> bool:
    """Whether `asymmetry` is zero to a third of the digits; where it is NaN, the iteration will say so."""
    return not asymmetry(loop, op, u, y, dot) > float(np.finfo(loop.real).eps) ** (1 / 3)


def asymmetry(loop: Loop, op: Any, u: Any, y: Any, dot: Callable[..., None]) -> float:
    """|<y, y> - <u, op y>| / ||y||^2 for y = op u: 0 for an op that is symmetric in the sense of `dot`, that is
    Hermitian in that of kernels.dot and op = op^T in that of kernels.dotu; 0, too, where nothing can be said."""
    size = loop.size(y)
    if not 0 < size < math.inf:
        return 0.0
    y_scaled = y / size  # no square leaves the range
    left, right = loop.scalars(2)
    dot(y, y_scaled, left)
    dot(u, op @ y_scaled, right)
    return abs(complex(left[0]) - complex(right[0])) / size
