"""Test by two products whether an operator is symmetric, for minres and sqmr before their first iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from finelu.krylov.loop import Loop


def symmetric(loop: Loop, op: Any, u: Any, y: Any, dot: Callable[..., None]) -> bool:
    """Whether `asymmetry` is zero to a third of the digits; True if it is NaN, which the iteration will report."""
    return not asymmetry(loop, op, u, y, dot) > float(np.finfo(loop.real).eps) ** (1 / 3)


def asymmetry(loop: Loop, op: Any, u: Any, y: Any, dot: Callable[..., None]) -> float:
    """|<y, y> - <u, op y>| / ||y||^2 for y = op u, with the product <x, y> that `dot` forms.

    It is 0 for a Hermitian op with the kernel `dot`, and for op = op^T with the kernel `dotu`. It is also 0 if ||y|| is
    0, subnormal or not finite, so that nothing is known.
    """
    size = loop.size(y)
    if not np.finfo(loop.real).tiny <= size < math.inf:
        return 0.0
    y_scaled = loop.xp.empty_like(y)  # y / ||y||, so that no square over- or underflows
    loop.kernels.vectors.scaled(loop.xp.asarray(np.full(1, 1 / size, loop.real)), y, y_scaled)
    left, right = loop.scalars(2)
    dot(y, y_scaled, left)
    dot(u, op @ y_scaled, right)
    return abs(complex(left[0]) - complex(right[0])) / size
