"""What is asked of x beyond a small norm of b - A x, and how a method goes on until x has it.

One norm over rows of very different size sees the large rows only: a boundary condition that a penalty of 1e12 imposes
hides every other equation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from finelu.device import namespace
from finelu.errors import ParameterError, meant
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.krylov.loop import Callback, Loop, Watch
from finelu.krylov.operators import Operator, as_operator
from finelu.krylov.residual import MANY, UNEVEN, Residual, largest, terms_are_even
from finelu.krylov.system import System
from finelu.matrix.vectors import as_dtype, flushes, in_single, underflows
from finelu.result import Solution, Status

if TYPE_CHECKING:
    from finelu.krylov.method import Method

CRITERIA = ("auto", "residual", "backward")
LIMIT = 4  # roundings of |A| |x| + |b|, up to which a residual is at the limit of the precision
SETTLED = 1e-3  # of an element of x, that a correction may change it by where x counts as known
AIM = 1 / 8  # of what would do, if the rows kept their shares of the norm, that a correction aims at: they do not quite


def criterion_asked(criterion: Any) -> str:
    """The name of the criterion, or a ParameterError."""
    if criterion in CRITERIA:
        return str(criterion)
    raise ParameterError(
        f"criterion={criterion!r}; one of {', '.join(map(repr, CRITERIA))} is needed." + meant(criterion, CRITERIA)
    )


class Criterion:
    """`criterion(b, x, tolerance)` gives b - A x and its size, which is to be at most `tolerance`, rtol ||b||_2.

    kind : "residual": the size is ||b - A x||_2.
        "auto": the same; but where the sums of |A| over the rows differ by more than 1e4, and the terms |A| |x| + |b|
        of the rows do, too, it is no less than ||D (b - A x)||_2 ||b||_2 / ||D b||_2, D the reciprocals of these sums:
        then x also solves the row-equilibrated system D A x = D b to rtol.
        "backward": max_i |b - A x|_i / (|A| |x| + |b|)_i times ||b||_2, the componentwise backward error of Oettli and
        Prager 1964: x solves a system whose entries differ from A's and b's by no more than rtol of each.
    residual : of A and vectors like b, which is the same in each call.
    After a call: norm, that of b - A x; rows, the same of the equilibrated system relative to ||D b||, or the backward
    error, None where it was not looked at; uneven, by how much rows of A differ.
    Of an A without entries (a LinearOperator), and of block and stencil matrices, "auto" knows no rows.
    Cost: that of `Residual`; where the terms of rows differ, one pass over the entries more for all calls together.
    """

    def __init__(self, kind: str, residual: Residual, b: Any):
        self.kind, self.residual, self.b = kind, residual, b
        self.norm = math.inf
        self.rows: float | None = None
        self.uneven = 1.0
        self.looks_at_rows = kind == "backward"  # whether there is more to ask than the norm
        self._x: Any = None  # of the last call
        self._sizes: Any = None  # of the rows; False where they are even
        self._of_b = self._of_scaled_b = 0.0
        self.by_rows = False  # whether the size is that of the rows by themselves
        if kind == "backward" and residual.matrix is None:
            raise ParameterError("criterion='backward' looks at the entries of A, but A is known by its products only.")

    def __call__(self, b: Any, x: Any, tolerance: float) -> tuple[Any, float]:
        r, self.norm = self.residual(b, x, tolerance)
        self.rows, self.by_rows, self._x = None, False, x
        if self.kind == "residual" or not math.isfinite(self.norm):
            return r, self.norm
        if self.kind == "backward":
            return self._backward(b, x, r, tolerance)
        if self._sizes is None and not terms_are_even(self.residual.bound):
            self._sizes = self._looked_at()
            self.looks_at_rows = self._sizes is not False
        if not self.looks_at_rows:
            return r, self.norm
        sizes = self._sizes
        ratio = self._of_scaled_b / self._of_b
        r, size = self._resolved(b, x, r, lambda v: norm_of(v / sizes), tolerance * ratio)
        self.rows = size / self._of_scaled_b
        self.by_rows = size / ratio > self.norm
        return r, max(self.norm, size / ratio)

    def _backward(self, b: Any, x: Any, r: Any, tolerance: float) -> tuple[Any, float]:
        xp = namespace(b)
        self._of_b = self._of_b or norm_of(self.b)
        if self._of_b == 0:
            return r, self.norm
        terms = self.residual.magnitudes(b, x)
        if not math.isfinite(largest(terms)):  # nothing is known of such a row
            self.rows = math.inf
            return r, math.inf
        terms = xp.where(terms > 0, terms, 1)  # 0 where all of a row is: so is its residual
        r, size = self._resolved(b, x, r, lambda v: largest(abs(v) / terms), tolerance / self._of_b)
        self.rows, self.by_rows = size, True
        return r, size * self._of_b

    def _resolved(self, b: Any, x: Any, r: Any, measure: Callable[[Any], float], tolerance: float) -> tuple[Any, float]:
        """b - A x, formed in twice the precision where its rounding may be what `measure` finds; and what it finds."""
        size, bound = measure(r), self._bound(b, x)
        noise = measure(bound)
        if noise > max(tolerance, size / 100):
            r, part = self.residual.twice(b, x)
            size = measure(r)
            if part * noise > tolerance:
                size = max(size, part * noise)
        return r, size

    def _bound(self, b: Any, x: Any) -> Any:
        if self.residual.bound is None:
            self.residual.bound = self.residual._rounding(*self.residual._prepared(b, x))[0]
        return self.residual.bound

    def _looked_at(self) -> Any:
        """The sums of |A| over the rows, their largest for empty ones; False where rows are even."""
        matrix, xp = self.residual.matrix, namespace(self.b)
        if isinstance(matrix, CSR):
            one, none = xp.full(self.b.size, 1 / MANY, self.b.dtype), xp.zeros(self.b.size, self.b.dtype)
            sums = self.residual.magnitudes(none, one)  # of A / MANY, so that few overflow: ratios count
        elif is_array(matrix):
            sums = abs(matrix).sum(axis=1).astype(self.b.real.dtype)
        else:
            return False
        sums = xp.where(sums > 0, sums, xp.asarray(largest(sums) or 1.0, sums.dtype))
        least, most = float(sums.min()), float(sums.max())
        if not most > UNEVEN * least or not math.isfinite(most):
            return False
        self.uneven, self._of_b = most / least, norm_of(self.b)
        self._of_scaled_b = norm_of(self.b / sums)
        return sums if 0 < self._of_scaled_b < math.inf else False

    def rounding(self, b: Any, x: Any) -> float:
        """What one rounding of |A| |x| + |b| in each row adds to the size."""
        self(b, x, 0.0)
        if not self.by_rows:
            return self.residual.rounding(b, x)
        eps, terms = float(np.finfo(b.dtype).eps), self.residual.magnitudes(b, x)
        if self.kind == "backward":
            return eps * self._of_b if bool((terms > 0).any()) else 0.0
        return eps * norm_of(terms / self._sizes) * self._of_b / self._of_scaled_b

    def has_seen(self, x: Any) -> bool:
        """Whether the last call was of this x."""
        return x is self._x

    def correction(self, x: Any, r: Any, size: float, tolerance: float) -> tuple[Any, float]:
        """(r, tolerance) of the system A d = r whose d takes the size of b - A (x + d) below `tolerance`, so far as one
        norm can ask that. r, size : of x, as a call has given them.

        Rows whose residual is rounding of their terms, which no change of x removes, are 0 in it: they would be all
        that a norm sees.
        """
        if not self.looks_at_rows:
            return r, tolerance
        if not self.has_seen(x):
            r, size = self(self.b, x, tolerance)
        if not self.by_rows or size <= tolerance:
            return r, tolerance
        rest = namespace(r).where(abs(r) > self.residual.bound, r, 0)
        length = norm_of(rest)
        return (rest, length * min(1.0, tolerance / size) * AIM) if length > 0 else (r, tolerance)

    def sentence(self) -> str:
        """The test in addition to the norm of b - A x, for `explain`; "" if there is none."""
        if self.rows is None:
            return ""
        if self.kind == "backward":
            return f"the componentwise backward error, max |b - A x|_i / (|A| |x| + |b|)_i, is {self.rows:.1e}"
        return (
            f"rows of A differ in size by {self.uneven:.0e}, so that each is compared with its own, too: the relative "
            f"residual of the row-equilibrated system is {self.rows:.1e}, that of A x = b {self.norm / self._of_b:.1e}"
        )


def norm_of(v: Any) -> float:
    """||v||_2, on the host."""
    v = namespace(v).ascontiguousarray(v)
    out = namespace(v).zeros(1, v.real.dtype)
    kernels_for(v).vectors.norm(v, out)
    return float(out[0])


def solved(
    method: type[Method],
    system: System,
    /,
    *,
    criterion: str,
    rtol: float,
    atol: float,
    maxiter: int | None,
    callback: Callback,
    watch: Watch,
    **options: Any,
) -> Solution:
    """What a Krylov method finds for a caller: its iterations, and corrections while the criterion asks for more.

    options : the method's own parameters.
    """
    kind = criterion_asked(criterion)
    if kind == "backward" and system.comm is not None:
        raise ParameterError("criterion='backward' is not for an A that is spread over processes; use 'residual'.")
    given, power = system, 0
    if needs_double(system):
        system = in_double_precision(system)
        callback = None if callback is None else in_single_precision(callback)
    elif system.comm is None and (power := power_for(system.b, system.A.matrix)):
        system = magnified(system, power)
        atol, (callback, watch) = float(np.ldexp(atol, power)), reduced(callback, watch, power)
    loop = Loop(method, system, rtol=rtol, atol=atol, maxiter=maxiter, callback=callback, watch=watch)
    found = method.iterate(loop, **options)
    matrix = system.A.matrix
    rows = isinstance(matrix, CSR) or is_array(matrix)
    if kind == "backward" or (kind == "auto" and rows and found.converged and not loop.is_even()):
        found = _corrected(found, kind, loop, system, watch, **options)
    if system is given:
        return found
    target = max(rtol * norm_of(system.b), atol)
    if not power:
        why = "entries of A are so small, or so large,"
        x = in_single(found.x)
        if not bool(system.xp.isfinite(x).all()):
            x = system.xp.zeros_like(x) if given.x0 is None else given.x0.reshape(x.shape).copy()
            found = replace(found, status=Status.NOT_FINITE)
        return rounded(found, x, system.A, system.b, kind, target, why)
    return diminished(found, given.A, given.b, kind, power, target)


def _corrected(
    found: Solution,
    kind: str,
    loop: Loop,
    system: System,
    watch: Watch,
    /,
    **options: Any,
) -> Solution:
    """x + d + ... where the criterion asks for more than a small norm, with A d = b - A x, as long as that halves the
    size."""
    residual = Residual(system.A.matrix, system.A.__matmul__, system.dtype, system.A.factor, system)
    check = Criterion(kind, residual, system.b)
    of_b = loop.size(system.b)
    target = max(loop.rtol * of_b, loop.atol)
    x, left, callback = found.x.reshape(-1), loop.maxiter - found.iterations, loop.callback
    r, size = check(system.b, x, target)
    if check.rows is None:
        return found
    if kind == "backward" and size > target and isinstance(system.M, Operator):
        better = kernels_for(x).vectors.added(x, system.M @ r)  # which the norm of b - A x may have thrown away
        before = check.rows, check.norm
        rest, reached = check(system.b, better, target)
        if reached < size:
            x, r, size = better, rest, reached
        else:
            check.rows, check.norm = before
    while size > target and left > 0 and found.status in (Status.CONVERGED, Status.STAGNATED):
        rest, tolerance = check.correction(x, r, size, target)
        done = found.iterations
        again = Loop(
            loop.method,
            System(system.A, rest, system.M, shape=system.shape, narrow=system.narrow),
            rtol=0.0,
            atol=tolerance,
            maxiter=left,
            callback=None if callback is None else lambda d, x=x: callback(x + d),  # type: ignore[misc]
            watch=None if watch is None else lambda k, norm, done=done: watch(done + k, norm),  # type: ignore[misc]
        )
        more = loop.method.iterate(again, **options)
        better = kernels_for(x).vectors.added(x, more.x.reshape(-1))
        before = check.rows, check.norm
        r, reached = check(system.b, better, target)
        found = replace(
            found,
            status=more.status,
            iterations=done + more.iterations,
            history=np.append(found.history, more.history[1:]),
            recurrence=np.append(found.recurrence, more.recurrence[1:]),
        )
        left -= more.iterations
        if not reached < size:
            check.rows, check.norm = before
            break
        halved = reached <= size / 2
        x, size = better, reached
        if not halved:
            break
    status = found.status
    if size <= target:
        status = Status.CONVERGED
    elif left <= 0 and status in (Status.CONVERGED, Status.STAGNATED):
        status = Status.MAX_ITERATIONS
    elif status in (Status.CONVERGED, Status.STAGNATED):
        limited = size <= LIMIT * check.rounding(system.b, x)
        status = Status.PRECISION_LIMIT if limited else Status.STAGNATED
    history = found.history.copy()
    history[-1] = check.norm
    return replace(
        found,
        x=x.reshape(system.shape),
        status=status,
        residual_norm=check.norm,
        history=history,
        row_residual=check.rows,
        seen=(*found.seen, check.sentence()) if check.rows is not None else found.seen,
    )


def settled(residual: Residual, solve: Callable[[Any], Any], b: Any, x: Any) -> float:
    """The componentwise backward error of x where that is rounding, and x is known to some digits at least; else NaN.

    Then x is what the precision has for A x = b, however large b - A x is: each row of it is rounding of its terms, and
    solve(b - A x), where solve(r) is about A^-1 r, changes each element of x by less than SETTLED of it. Without the
    second an x that has grown along a null vector would pass.
    """
    xp, terms = namespace(b), residual.magnitudes(b, x)
    r, _ = residual.twice(b, x)
    error = largest(abs(r) / xp.where(terms > 0, terms, 1))
    if not error <= LIMIT * float(np.finfo(b.dtype).eps):
        return math.nan
    return error if bool((abs(solve(r)) <= SETTLED * abs(x)).all()) else math.nan


# right-hand sides so small that x or its products would lose digits by underflow


def power_for(b: Any, matrix: Any) -> int:
    """0, or the power of two that takes the largest entry of b to about that of the matrix, or to 1 if that is larger,
    where ||b|| is next to the smallest numbers.

    To multiply by it is exact. A x then loses no digits by underflow; those that x itself loses, as it is rounded to
    what can be held, are looked at afterwards.
    """
    most, limits = largest(b), np.finfo(b.real.dtype)
    if not most < float(limits.tiny) / float(limits.eps):
        return 0
    if flushes(b):
        most = largest(as_dtype(b, np.result_type(b.dtype, np.float64)))
    if most == 0:
        return 0
    entries = matrix.data if isinstance(matrix, CSR) else matrix if is_array(matrix) else None
    of_A = 1.0 if entries is None else min(largest(entries), 1.0)
    return max(math.frexp(of_A)[1] - math.frexp(most)[1], 0)


def times_power(v: Any, power: int) -> Any:
    """2^power v, in steps that are numbers themselves; exact unless it is subnormal or beyond the range."""
    if flushes(v):
        return in_single(as_dtype(v, np.result_type(v.dtype, np.float64)) * 2.0**power)
    half = power // 2
    return v * v.real.dtype.type(2.0**half) * v.real.dtype.type(2.0 ** (power - half))


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
    """The caller's functions, which see x and norms as they are without the power."""
    seen_x = None if callback is None else lambda x: callback(times_power(x, -power))
    seen_norm = None if watch is None else lambda k, norm: watch(k, math.ldexp(norm, -power))
    return seen_x, seen_norm


def diminished(found: Solution, A: Any, b: Any, kind: str, power: int, target: float) -> Solution:
    """The solution for b itself, of the one for 2^power b. x is rounded to what can be held; what that leaves of
    b - A x is formed for 2^power x and 2^power b, where it loses no digits.

    A : the operator.  target : the size that the criterion was to have, for 2^power b.
    """
    x = times_power(found.x, -power)
    again = times_power(x, power)
    if bool((again != found.x).any()):
        found = rounded(found, again, A, times_power(b, power), kind, target, "b is so small")
    with np.errstate(under="ignore"):
        smaller = {name: np.ldexp(getattr(found, name), -power) for name in ("history", "recurrence")}
    return replace(found, x=x, residual_norm=math.ldexp(found.residual_norm, -power), **smaller)


def rounded(found: Solution, x: Any, A: Any, b: Any, kind: str, target: float, why: str) -> Solution:
    """The solution with x instead of the x that was found; x is the nearest vector that can be returned.

    A, b, target : in the precision, and with the power of two, in which the residual of x is formed.
    why : x cannot be returned as it was found.
    """
    check = Criterion(kind, Residual(A.matrix, A.__matmul__, b.dtype, A.factor), b)
    _, reached = check(b, as_dtype(x, b.dtype).reshape(-1), target)
    found = replace(found, x=x, residual_norm=check.norm)
    if not found.converged or reached <= target:
        return found
    limit = (
        f"{why} that x, rounded to what {x.dtype} can hold, leaves a relative residual of {reached / norm_of(b):.1e}"
    )
    return replace(found, status=Status.PRECISION_LIMIT, seen=(*found.seen, limit))


# matrices whose products, or those of the inverse, would underflow on a GPU


def needs_double(system: System) -> bool:
    """Whether a solve in single precision would take for 0 what matters, since entries of A are so small or large."""
    matrix = system.A.matrix
    if system.comm is not None or matrix is None or not flushes(system.b):
        return False
    if isinstance(matrix, CSR) or is_array(matrix):
        return underflows(matrix if is_array(matrix) else matrix.data)
    return any(underflows(part) for part in matrix._stored())


def in_double_precision(system: System) -> System:
    """The same system in double precision. M is what it was: its `narrow` range stays that of the residuals."""
    wide = np.result_type(system.dtype, np.float64)
    matrix = system.A.matrix
    if isinstance(matrix, CSR):
        matrix = matrix.with_values(as_dtype(matrix.data, wide))
    else:
        matrix = as_dtype(matrix, wide) if is_array(matrix) else matrix.astype(wide)
    b, x0 = as_dtype(system.b, wide), None if system.x0 is None else as_dtype(system.x0, wide)
    A, M = as_operator(matrix, "A", b, wide), as_operator(getattr(system.M, "given", None), "M", b, wide)
    return System(A, b, M, x0, shape=system.shape, narrow=system.narrow, started=system.started)


def in_single_precision(callback: Callable[[Any], object]) -> Callable[[Any], object]:
    """The caller's function, which sees x in single precision."""
    return lambda x: callback(in_single(x))


def is_array(matrix: Any) -> bool:
    """Whether it is a dense array, here or on a GPU."""
    return hasattr(matrix, "__array_interface__") or hasattr(matrix, "__cuda_array_interface__")
