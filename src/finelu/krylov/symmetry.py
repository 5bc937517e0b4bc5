"""Test by two products whether an operator is symmetric, for minres and sqmr before their first iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from finelu.device import namespace
from finelu.krylov.loop import Loop

ROUNDINGS = 4  # times sqrt(n) roundings, that a dot product may be off: those of n terms add up like random numbers


def asymmetric(loop: Loop, op: Any, u: Any, y: Any, dot: Callable[..., None]) -> list[Loop]:
    """The loops, of each column, for which `asymmetry` is not zero to a third of the digits. NaN passes, which the
    iteration will report."""
    return [one for one, size in asymmetry(loop, op, u, y, dot) if size > third_of_digits(loop)]


def third_of_digits(loop: Loop) -> float:
    return math.cbrt(float(np.finfo(loop.real).eps))


def asymmetry(loop: Loop, op: Any, u: Any, y: Any, dot: Callable[..., None]) -> list[tuple[Loop, float]]:
    """(loop, |<y, y> - <u, op y>| / ||y||^2) of each column, for y = op u, with the product <x, y> that `dot` forms.

    It is 0 for a Hermitian op with the kernel `dot`, and for op = op^T with the kernel `dotu`. It is also 0 if ||y|| is
    0, subnormal or not finite, or the difference no more than rounding, so that nothing is known.
    """
    inverse, sizes, least = loop.real_factor(), [], np.finfo(loop.real).tiny
    for one, own, factor in loop.singly(y, inverse):
        size = one.size(own)
        sizes.append(size if least <= size < math.inf else 0.0)
        xp = namespace(factor)  # whose assignment of a number would compile code on a GPU
        xp.copyto(factor, xp.asarray(np.full(1, 1 / size if sizes[-1] else 0, loop.real)))
    if not any(sizes):
        return [(one, 0.0) for (one,) in loop.singly()]
    y_scaled = loop.xp.empty_like(y)  # y / ||y||, so that no square over- or underflows
    loop.kernels.vectors.scaled(inverse, y, y_scaled)
    left, right = loop.scalars(2)
    dot(y, y_scaled, left)
    product = op @ y_scaled
    dot(u, product, right)
    found = []
    for (one, *both), size in zip(loop.singly(left, right), sizes, strict=True):
        of_left, of_right = (complex(value[0]) for value in both)
        found.append((one, float(np.abs(of_left - of_right)) / size if size else 0.0))
    if not any(part > third_of_digits(loop) for _, part in found):  # else two norms are saved
        return found
    doubted = zip(found, loop.singly(u, product), sizes, strict=True)
    return [(one, 0.0 if part * size <= rounding(one, (v, w)) else part) for (one, part), (_, v, w), size in doubted]


def rounding(loop: Loop, *pairs: tuple[Any, Any]) -> float:
    """What rounding may add to the sum of the products <x, y> of these pairs: ROUNDINGS sqrt(n) eps ||x|| ||y|| each.
    It is large compared with ||op u|| where u is nearly a null vector of op."""
    unit = ROUNDINGS * math.sqrt(max(pairs[0][0].size, 1)) * float(np.finfo(loop.real).eps)
    return unit * sum(loop.size(x) * loop.size(y) for x, y in pairs)
