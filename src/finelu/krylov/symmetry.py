"""Test by two products whether an operator is symmetric, for minres and sqmr before their first iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from finelu.krylov.loop import Loop

ROUNDINGS = 4  # times sqrt(n) roundings, that a dot product may be off: those of n terms add up like random numbers


def symmetric(loop: Loop, op: Any, u: Any, y: Any, dot: Callable[..., None]) -> bool:
    """Whether `asymmetry` is zero to a third of the digits; True if it is NaN, which the iteration will report."""
    return not asymmetry(loop, op, u, y, dot) > third_of_digits(loop)


def third_of_digits(loop: Loop) -> float:
    return math.cbrt(float(np.finfo(loop.real).eps))


def asymmetry(loop: Loop, op: Any, u: Any, y: Any, dot: Callable[..., None]) -> float:
    """|<y, y> - <u, op y>| / ||y||^2 for y = op u, with the product <x, y> that `dot` forms.

    It is 0 for a Hermitian op with the kernel `dot`, and for op = op^T with the kernel `dotu`. It is also 0 if ||y|| is
    0, subnormal or not finite, or the difference no more than rounding, so that nothing is known.
    """
    size = loop.size(y)
    if not np.finfo(loop.real).tiny <= size < math.inf:
        return 0.0
    y_scaled = loop.xp.empty_like(y)  # y / ||y||, so that no square over- or underflows
    loop.kernels.vectors.scaled(loop.xp.asarray(np.full(1, 1 / size, loop.real)), y, y_scaled)
    left, right = loop.scalars(2)
    dot(y, y_scaled, left)
    product = op @ y_scaled
    dot(u, product, right)
    differs = abs(complex(left[0]) - complex(right[0]))
    doubted = differs > third_of_digits(loop) * size  # else two norms are saved
    return 0.0 if doubted and differs <= rounding(loop, (u, product)) else differs / size


def rounding(loop: Loop, *pairs: tuple[Any, Any]) -> float:
    """What rounding may add to the sum of the products <x, y> of these pairs: ROUNDINGS sqrt(n) eps ||x|| ||y|| each.
    It is large compared with ||op u|| where u is nearly a null vector of op."""
    unit = ROUNDINGS * math.sqrt(max(pairs[0][0].size, 1)) * float(np.finfo(loop.real).eps)
    return unit * sum(loop.size(x) * loop.size(y) for x, y in pairs)
