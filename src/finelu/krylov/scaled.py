"""Scaling of right-hand sides whose norm is so large or small that products of residuals would over- or underflow."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from finelu.errors import MatrixError
from finelu.krylov.operators import Identity, Operator
from finelu.krylov.residual import Measures
from finelu.krylov.system import System

ROOM = 24  # exponent of 2 of the largest number over the divisor of an A M that overflows


class Scaled(NamedTuple):
    """(A / s) x = b / s with s M instead of M: the same x by the same steps.

    A, M, b : A / s, s M and b / s.
    x0 : the initial guess, None for 0.
    scale : s, a power of two.
    norm_b : ||b|| / s.
    """

    A: Any
    M: Any
    b: Any
    x0: Any
    scale: float
    norm_b: float


def scaled(system: System, measures: Measures, norm_b: float) -> Scaled:
    """The system with s about as large as b if the norm of b is extreme; else with s = 1 and without copies.

    The range that decides is that of M if M has less precision than x. x0 is replaced by 0 if its residual is so much
    larger than b that b / s would lose digits.
    Raises MatrixError if the norm of b overflows.
    """
    A, M, b, x0, real = system.A, system.M, system.b, system.x0, system.real
    if not math.isfinite(norm_b):
        raise MatrixError(f"the norm of b overflows in {real}; scale the system down.")
    scale = power_of_two(norm_b, system)
    if x0 is not None and scale != 1:
        scale = power_of_two(max(norm_b, measures.size(b - A @ x0.copy())), system)  # max in this order drops a NaN
        limits = narrowest(system)
        if norm_b / scale < math.sqrt(float(limits.tiny)) / float(limits.eps):
            x0, scale = None, power_of_two(norm_b, system)
    if scale != 1:
        b, A = b / scale, A.scaled(1 / scale, levels=False)
        M = M.scaled(scale, levels=system.narrow.itemsize < real.itemsize, comm=system.comm)
    return Scaled(A, M, b, x0, scale, norm_b / scale)


def power_of_two(size: float, system: System) -> float:
    """The power of two just below `size` if squares of such numbers over- or underflow; else 1.0."""
    limits = narrowest(system)
    small = math.sqrt(float(limits.tiny)) / float(limits.eps)
    if size == 0 or not math.isfinite(size) or small <= size <= 1 / small:
        return 1.0
    return max(math.ldexp(0.5, math.frexp(size)[1]), float(np.finfo(system.real).tiny))


def narrowest(system: System) -> Any:
    """The limits of the real dtype with the least range among those in which residuals are held."""
    return np.finfo(min(system.real, system.narrow, key=lambda real: real.itemsize))


def evened(loop: Any, r: Any) -> tuple[Any, Any]:
    """(M, first): M, or M / s for a power of two s about as large as A M if powers of A M would over- or underflow.

    s is the length of A M r by that of r, or near the largest number if A M r overflows.
    first : M r and A M r, which a method begins with; None if M was divided.
    Cost: a product with each. Waits for a GPU.
    """
    M, size = loop.M, loop.size(r)
    z = M @ r
    w = loop.A @ z
    length = loop.size(w)
    if math.isfinite(length):
        unit = loop.power(length / size) if size > 0 else 1.0
    else:  # with entries of A near the largest number
        unit = math.ldexp(1.0, int(narrowest(loop.system).maxexp) - ROOM)
    if unit == 1:
        return M, (z, w)
    if isinstance(M, Identity):
        M = Operator(lambda v: v, None, "M", capturable=True)
    return M.scaled(1 / unit, levels=M.levels, comm=M.comm), None
