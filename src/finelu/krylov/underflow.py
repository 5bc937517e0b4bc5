"""Systems near the smallest or the largest numbers of their precision, whose x or products would under- or overflow.

Such a system is solved times a power of two, or in double precision; the residual of the x that is returned is formed
without a loss of digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from finelu.device import namespace
from finelu.kernels.operands import CSR
from finelu.krylov.criterion import Criterion, is_array
from finelu.krylov.loop import Callback, Watch
from finelu.krylov.operators import Operator, as_operator
from finelu.krylov.residual import Residual, largest
from finelu.krylov.system import System
from finelu.matrix.vectors import (
    all_finite,
    as_dtype,
    flushes,
    in_single,
    norm,
    power_of_two,
    times_power,
    underflows,
)
from finelu.result import Solution, Status

# Exponents of 2. Sums are safe while b is below the largest number by ROOM; a larger b is divided by 2^SPARE.
ROOM, SPARE = 24, 48

# right-hand sides so small that x or its products would lose digits by underflow, or so large that norms, or A x, would
# overflow


def power_for(b: Any, matrix: Any) -> int:
    """The exponent of a power of two by which b is to be multiplied if its entries are near the smallest or the largest
    numbers; else 0.

    The power takes the largest entry of a small b to about the largest entry of the matrix, but at most to about 1.
    Multiplication by it is exact: a large b that would lose digits stays as it is. A x then loses no digits by
    underflow. x itself may lose digits, or leave the range, when it is rounded to its dtype at the end; `diminished`
    tests for that.
    """
    most, limits = largest(b), np.finfo(b.real.dtype)
    if not most < math.ldexp(1.0, int(limits.maxexp) - ROOM):
        again = times_power(times_power(b, -SPARE), SPARE)
        return -SPARE if bool((again == b).all()) else 0
    if not most < float(limits.tiny) / float(limits.eps):
        return 0
    if flushes(b):
        most = largest(as_dtype(b, np.result_type(b.dtype, np.float64)))
    if most == 0:
        return 0
    entries = matrix.data if isinstance(matrix, CSR) else matrix if is_array(matrix) else None
    of_A = 1.0 if entries is None else min(largest(entries), 1.0)
    return max(math.frexp(of_A)[1] - math.frexp(most)[1], 0)


def magnified(system: System, power: int) -> System:
    found = copy(system)
    found.b = times_power(system.b, power)
    if system.x0 is not None:
        found.x0 = times_power(system.x0, power)
        most = math.sqrt(float(np.finfo(found.x0.dtype).max))
        with np.errstate(over="ignore", invalid="ignore"):
            sizes = [float(abs(v).max()) for v in (found.x0, found.A @ found.x0.copy())]
        if not all(size < most for size in sizes):  # as NaN is not
            found.x0 = None  # b is nothing compared with A x0, whose norm may be Inf
    return found


def reduced(callback: Callback, watch: Watch, power: int) -> tuple[Callback, Watch]:
    """The caller's functions, wrapped so that they see x and norms without the power of two."""
    seen_x = None if callback is None else lambda x: callback(times_power(x, -power))
    seen_norm = None if watch is None else lambda k, norm: watch(k, _times(norm, -power))
    return seen_x, seen_norm


def _times(norms: Any, power: int) -> Any:
    """2^power times norms, on the host; the largest number for those that exceed it."""
    made = np.minimum(np.ldexp(norms, power), np.finfo(np.asarray(norms).dtype).max)
    return made if made.ndim else float(made)


def diminished(found: Solution, A: Any, b: Any, kind: str, power: int, target: float) -> Solution:
    """The solution for b, from the solution for 2^power b.

    x is rounded to its dtype. The residual that this rounding leaves is formed for 2^power x and 2^power b, without a
    loss of digits. An x out of range becomes 0, and the status NOT_FINITE.
    A : the operator.  target : the size that the criterion must reach, for 2^power b.
    """
    x = times_power(found.x, -power)
    if power < 0 and not all_finite(x):
        history = np.append(found.history[:-1], found.residual_norm)
        x, found = namespace(x).zeros_like(x), replace(found, status=Status.NOT_FINITE, history=history)
    again = times_power(x, power)
    if bool((again != found.x).any()):
        found = rounded(
            found, again, A, times_power(b, power), kind, target, f"b is so {'small' if power > 0 else 'large'}"
        )
    with np.errstate(under="ignore", over="ignore"):
        norms = {name: _times(getattr(found, name), -power) for name in ("history", "recurrence", "residual_norm")}
        if found.tolerance is not None:
            norms["tolerance"] = _times(found.tolerance, -power)
    return replace(found, x=x, **norms)


def rounded(found: Solution, x: Any, A: Any, b: Any, kind: str, target: float, why: str) -> Solution:
    """The solution with `x` instead of the computed x; `x` is the nearest vector that can be returned.

    A, b, target : in the precision, and with the power of two, in which the residual of x is formed.
    why : the reason, in words, why the computed x cannot be returned.
    """
    check = Criterion(kind, Residual(A, b), b)
    _, reached = check(b, as_dtype(x, b.dtype), target)
    found = replace(found, x=x, residual_norm=check.norm)
    if not found.converged or reached <= target:
        return found
    limit = f"{why} that x, rounded to what {x.dtype} can hold, leaves a relative residual of {reached / norm(b):.1e}"
    return replace(found, status=Status.PRECISION_LIMIT, seen=(*found.seen, limit))


# matrices with entries near the smallest or the largest numbers


def of_unit_size(system: System, *, stationary: bool) -> tuple[System, int] | None:
    """(2^-p A) (2^p x) = b, and p, where products with A may leave the range of numbers; None for any other A.

    The residuals are those of A x = b. The power takes the largest part of an entry to about 1.
    stationary : whether the method is changed by a multiple of M, which is 2^p M then; for others A M has about
        unit size.
    """
    matrix = system.A.matrix
    values = matrix.data if isinstance(matrix, CSR) else matrix
    if system.comm is not None or values is None or not is_array(values):
        return None
    most = largest(values) if values.dtype.kind != "c" else max(largest(values.real), largest(values.imag))
    limits = np.finfo(values.dtype)
    exponent = math.frexp(most)[1]
    power = power_of_two(values.dtype, exponent) if most > 0 else 0
    if power == 0 or (abs(exponent) <= int(limits.maxexp) - ROOM and not _leaves_range(system)):
        return None
    power = max(min(power, int(limits.maxexp) - ROOM), ROOM - int(limits.maxexp))
    smaller = times_power(values, -power)
    smaller = matrix.with_values(smaller) if isinstance(matrix, CSR) else smaller
    A, of_M = as_operator(smaller, "A", system.b, system.dtype), power
    if isinstance(system.M, Operator) and not stationary:
        unit = times_power(system.b, -math.frexp(largest(system.b))[1])
        if 0 < (size := largest(A @ (system.M @ unit))) < math.inf:
            of_M = -math.frexp(size)[1]
    M = system.M.scaled(math.ldexp(1.0, of_M), levels=False)
    x0 = None if system.x0 is None else times_power(system.x0, power)
    x0 = x0 if x0 is None or all_finite(x0) else None
    return System(A, system.b, M, x0, narrow=system.narrow, started=system.started), power


def _leaves_range(system: System) -> bool:
    """Whether A M takes vectors of unit size near the smallest or the largest numbers, or beyond them."""
    if not isinstance(system.M, Operator):
        return False
    unit = times_power(system.b, -math.frexp(largest(system.b))[1])
    size = largest(system.A @ (system.M @ unit))
    return not 0 < size < math.inf or power_of_two(unit.real.dtype, math.frexp(size)[1]) != 0


def of_given_size(found: Solution, system: System, kind: str, power: int, target: float) -> Solution:
    """The solution of A x = b, from that of the `system` (2^-power A) (2^power x) = b, x rounded to what its dtype can
    hold.  target : the size that the criterion must reach."""
    x = times_power(found.x, -power)
    if not all_finite(x):
        x, found = namespace(x).zeros_like(x), replace(found, status=Status.NOT_FINITE)
    again = times_power(x, power)
    if bool((again != found.x).any()):
        why = f"entries of A are so {'large' if power > 0 else 'small'}"
        found = rounded(found, again, system.A, system.b, kind, target, why)
    return replace(found, x=x)


# matrices whose products, or those of the inverse, would underflow on a GPU


def needs_double(system: System) -> bool:
    """Whether entries of A are so small or large that a solve in single precision would lose terms by underflow."""
    matrix = system.A.matrix
    if system.comm is not None or matrix is None or not flushes(system.b):
        return False
    parts = [matrix.data] if isinstance(matrix, CSR) else [matrix] if is_array(matrix) else matrix._stored()
    return any(map(underflows, parts))


def in_double_precision(system: System) -> System:
    """The same system in double precision. The range `narrow` of residuals stays that of the given M."""
    wide = np.result_type(system.dtype, np.float64)
    matrix = system.A.matrix
    known = isinstance(matrix, CSR) or is_array(matrix)
    matrix = as_dtype(matrix, wide) if known else matrix.astype(wide)
    b, x0 = as_dtype(system.b, wide), None if system.x0 is None else as_dtype(system.x0, wide)
    A, M = as_operator(matrix, "A", b, wide), as_operator(getattr(system.M, "given", None), "M", b, wide)
    return System(A, b, M, x0, narrow=system.narrow, started=system.started)


def in_single_precision(callback: Callable[[Any], object]) -> Callable[[Any], object]:
    """The caller's function, wrapped so that it sees x in single precision."""
    return lambda x: callback(in_single(x))
