"""Convergence criteria beyond a small norm of b - A x, and the corrections of x until it satisfies them.

A single norm over rows of very different size is dominated by the large rows: a boundary condition imposed by a penalty
of 1e12 hides every other equation.
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
from finelu.krylov.block import block_cg
from finelu.krylov.columns import Columns, gains
from finelu.krylov.loop import Callback, Loop, Watch
from finelu.krylov.operators import Operator, as_operator
from finelu.krylov.residual import MANY, UNEVEN, Residual, largest, terms_are_even
from finelu.krylov.rows import ColumnsInRows
from finelu.krylov.system import System
from finelu.matrix.vectors import as_dtype, flushes, in_single, norm, times_power, underflows
from finelu.result import Solution, Status
from finelu.validation import number

if TYPE_CHECKING:
    from finelu.krylov.method import Method

CRITERIA = ("auto", "residual", "backward")
LIMIT = 4  # roundings of |A| |x| + |b|, up to which a residual is at the limit of the precision
SETTLED = 1e-3  # of an element of x, that a correction may change it by where x counts as known
OUTGROWN = 1e-2  # of the norm of b: rounding of |A| |x| beyond it shows an x that has grown along a null vector
AIM = 1 / 8  # of what would do, if the rows kept their shares of the norm, that a correction aims at: they do not quite


def criterion_asked(criterion: Any) -> str:
    """The name of the criterion, or a ParameterError."""
    if criterion in CRITERIA:
        return str(criterion)
    raise ParameterError(
        f"criterion={criterion!r}; one of {', '.join(map(repr, CRITERIA))} is needed." + meant(criterion, CRITERIA)
    )


class Criterion:
    """`criterion(b, x, tolerance)` gives b - A x and its size; x passes if that is at most `tolerance`, rtol ||b||_2.

    kind : how the size is defined:
        "residual": ||b - A x||_2.
        "auto": ||b - A x||_2. If the sums of |A| over the rows differ by more than 1e4, and the terms |A| |x| + |b|
        of the rows do, too, the size is at least ||D (b - A x)||_2 ||b||_2 / ||D b||_2, with D the reciprocals of these
        sums: an x that passes also solves the row-equilibrated system D A x = D b to rtol.
        "backward": max_i |b - A x|_i / (|A| |x| + |b|)_i times ||b||_2, the componentwise backward error of Oettli and
        Prager 1964: x solves a system whose entries differ from A's and b's by no more than rtol of each.
    residual : the `Residual` of A, for vectors like b.
    b : the right-hand side, the same in each call.

    Attributes after a call:
    norm : ||b - A x||_2.
    rows : the residual norm of the equilibrated system relative to ||D b||, or the backward error; None if neither was
        computed.
    uneven : the ratio of the largest to the smallest row sum of |A|.

    For an A without entries (a LinearOperator), and for block and stencil matrices, "auto" does not look at rows.
    Cost: that of `Residual`; if the terms of rows differ, one more pass over the entries for all calls together.
    """

    def __init__(self, kind: str, residual: Residual, b: Any):
        self.kind, self.residual, self.b = kind, residual, namespace(b).ascontiguousarray(b)
        self.norm = math.inf
        self.rows: float | None = None
        self.uneven = 1.0
        self.looks_at_rows = kind == "backward"  # whether the test is more than the norm
        self._x: Any = None  # the x of the last call
        self._sizes: Any = None  # the sizes of the rows; False if they are even
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
        if self._sizes is None and not terms_are_even(self.residual.bound, self.residual.noise):
            self._sizes = self._looked_at()
            self.looks_at_rows = self._sizes is not False
        if not self.looks_at_rows:
            return r, self.norm
        sizes = self._sizes
        ratio = self._of_scaled_b / self._of_b
        r, size = self._resolved(b, x, r, lambda v: self.residual.size(v / sizes), tolerance * ratio)
        self.rows = size / self._of_scaled_b
        self.by_rows = size / ratio > self.norm
        return r, max(self.norm, size / ratio)

    def _backward(self, b: Any, x: Any, r: Any, tolerance: float) -> tuple[Any, float]:
        xp = namespace(b)
        self._of_b = self._of_b or self.residual.size(self.b)
        if self._of_b == 0:
            return r, self.norm
        terms = self.residual.magnitudes(b, x)
        if not math.isfinite(largest(terms)):  # the backward error of such a row is unknown
            self.rows = math.inf
            return r, math.inf
        terms = xp.where(terms > 0, terms, 1)  # terms of 0 mean that the whole row is 0, and so is its residual
        r, size = self._resolved(b, x, r, lambda v: largest(abs(v) / terms), tolerance / self._of_b)
        self.rows, self.by_rows = size, True
        return r, size * self._of_b

    def _resolved(self, b: Any, x: Any, r: Any, measure: Callable[[Any], float], tolerance: float) -> tuple[Any, float]:
        """(r, measure(r)) for r = b - A x, formed in twice the precision if rounding may dominate `measure(r)`."""
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
            self.residual.bound = self.residual._rounding(b, x)[0]
        return self.residual.bound

    def _looked_at(self) -> Any:
        """The sums of |A| over the rows (the largest of them for empty rows); False if the rows are even."""
        matrix, xp = self.residual.matrix, namespace(self.b)
        if isinstance(matrix, CSR):
            one, none = xp.full(self.b.size, 1 / MANY, self.b.dtype), xp.zeros(self.b.size, self.b.dtype)
            sums = self.residual.magnitudes(none, one)  # the sums of A / MANY: few overflow, and only ratios matter
        elif is_array(matrix):
            sums = abs(matrix).sum(axis=1).astype(self.b.real.dtype)
        else:
            return False
        sums = xp.where(sums > 0, sums, xp.asarray(largest(sums) or 1.0, sums.dtype))
        least, most = float(sums.min()), float(sums.max())
        if not most > UNEVEN * least or not math.isfinite(most):
            return False
        self.uneven, self._of_b = most / least, self.residual.size(self.b)
        self._of_scaled_b = self.residual.size(self.b / sums)
        return sums if 0 < self._of_scaled_b < math.inf else False

    def rounding(self, b: Any, x: Any) -> float:
        """The part of the size that one rounding of |A| |x| + |b| in each row accounts for."""
        self(b, x, 0.0)
        if not self.by_rows:
            return self.residual.rounding(b, x)
        eps, terms = float(np.finfo(b.dtype).eps), self.residual.magnitudes(b, x)
        if self.kind == "backward":
            return eps * self._of_b if bool((terms > 0).any()) else 0.0
        return eps * self.residual.size(terms / self._sizes) * self._of_b / self._of_scaled_b

    def has_seen(self, x: Any) -> bool:
        """Whether the last call had this x."""
        return x is self._x

    def correction(self, x: Any, r: Any, size: float, tolerance: float) -> tuple[Any, float]:
        """(r, tolerance) of a system A d = r whose solution d should bring the size of b - A (x + d) below `tolerance`,
        as far as a norm can ensure that.

        r, size : the residual of x and its size, as returned by a call.
        Rows whose residual is only rounding of their terms are set to 0, since no change of x removes it, and it would
        dominate the norm.
        """
        if not self.looks_at_rows:
            return r, tolerance
        if not self.has_seen(x):
            r, size = self(self.b, x, tolerance)
        if not self.by_rows or size <= tolerance:
            return r, tolerance
        rest = namespace(r).where(abs(r) > self.residual.bound, r, 0)
        length = self.residual.size(rest)
        return (rest, length * min(1.0, tolerance / size) * AIM) if length > 0 else (r, tolerance)

    def sentence(self) -> str:
        """The result of the test by rows, in words, for `explain`; "" if there was no such test."""
        if self.rows is None:
            return ""
        if self.kind == "backward":
            return f"the componentwise backward error, max |b - A x|_i / (|A| |x| + |b|)_i, is {self.rows:.1e}"
        return (
            f"rows of A differ in size by {self.uneven:.0e}, so that each is compared with its own, too: the relative "
            f"residual of the row-equilibrated system is {self.rows:.1e}, that of A x = b {self.norm / self._of_b:.1e}"
        )


def solved(method: type[Method], system: System, /, **arguments: Any) -> Solution:
    """The solution of a Krylov method: its iterations, then corrections of x until the criterion holds.

    arguments : those of `Solving`.
    """
    solving = Solving(method, system, **arguments)
    return solving.finished(method.iterate(solving.loop, **solving.options))


def solved_together(
    method: type[Method], systems: list[System], begun: list[Loop] | None = None, /, **arguments: Any
) -> list[Solution]:
    """`solved` for systems with the same A and M: their iterations together if the method can do that and M takes less
    time for several columns, else one system after the other; then corrections of each by itself.

    begun : takes the loops, for a caller that must know how far they came if this raises an error.
    """
    every = [Solving(method, system, **arguments) for system in systems]
    if begun is not None:
        begun += [one.loop for one in every]
    loops = [one.loop for one in every]
    as_given = all(one.system is one.given for one in every)
    together = as_given and method.together(every[0].options) and gains(systems[0])
    in_rows = together and ColumnsInRows.suits(loops)
    if not in_rows and (not together or ColumnsInRows.alone(loops[0])):
        return [one.finished(method.iterate(one.loop, **one.options)) for one in every]
    columns: Any = ColumnsInRows(loops) if in_rows else Columns(loops)
    found: Any = method.iterate(columns, **every[0].options)
    return [one.finished(solution) for one, solution in zip(every, found, strict=True)]


def solved_in_block(method: type[Method], systems: list[System], /, **arguments: Any) -> list[Solution]:
    """As `solved_together`, by `block_cg`. The method itself then checks each column, from the x that it has, and goes
    on by itself if that does not pass. Raises ParameterError for a callback or watch: no column iterates by itself."""
    for name in ("callback", "watch"):
        if arguments[name] is not None:
            raise ParameterError(f"block=True iterates on all columns as one and has no {name}; leave out one of them.")
    every = [Solving(method, system, **arguments) for system in systems]
    loops = [one.loop for one in every]
    if any(one.system is not one.given or one.loop.scale != 1 for one in every):
        return solved_together(method, systems, **arguments)
    targets = np.array([loop.tolerance for loop in loops])
    X, iterations, histories = block_cg(systems, [loop.x for loop in loops], targets, loops[0].maxiter)
    found = []
    for c, (system, loop) in enumerate(zip(systems, loops, strict=True)):
        done, x = int(iterations[c]), system.xp.ascontiguousarray(X[:, c])
        start = x if kernels_for(x).vectors.first_not_finite(x) < 0 else system.x0
        rest = System(system.A, system.b, system.M, start, narrow=system.narrow, started=system.started)
        limits = {"rtol": 0.0, "atol": loop.tolerance, "maxiter": max(loop.maxiter - done, 0), "relative_to": "b"}
        more = solved(method, rest, **(arguments | limits))
        norms = [np.append(histories[c][:-1], history) for history in (more.history, more.recurrence)]
        found.append(replace(more, iterations=done + more.iterations, history=norms[0], recurrence=norms[1]))
    return found


class Solving:
    """A Krylov method for one system: `loop` is ready to iterate, and `finished` makes corrections afterwards.

    relative_to : the vector, "b" or "initial", b - A x0, relative to whose norm rtol is.
    options : the method's own parameters.
    """

    def __init__(
        self,
        method: type[Method],
        system: System,
        /,
        *,
        criterion: str,
        rtol: float,
        atol: float,
        relative_to: str = "b",
        maxiter: int | None,
        callback: Callback,
        watch: Watch,
        **options: Any,
    ):
        self.kind, self.options = criterion_asked(criterion), options
        if relative_to == "initial" and system.x0 is not None:
            first = Residual(system.A, system.b, system).size(system.A.residual(system.b, system.x0))
            rtol, atol = number("rtol", rtol, infinite=True), number("atol", atol, infinite=True)
            rtol, atol = 0.0, max(rtol * first if first else 0.0, atol)
        if self.kind == "backward" and system.comm is not None:
            raise ParameterError("criterion='backward' is not for an A that is spread over processes; use 'residual'.")
        self.given, self.power = system, 0
        if system.xp is not np and needs_double(system):
            system = in_double_precision(system)
            callback = None if callback is None else in_single_precision(callback)
        elif system.comm is None and (power := power_for(system.b, system.A.matrix)):
            self.power, system = power, magnified(system, power)
            atol, (callback, watch) = float(np.ldexp(atol, power)), reduced(callback, watch, power)
        self.system, self.watch = system, watch
        self.loop = Loop(method, system, rtol=rtol, atol=atol, maxiter=maxiter, callback=callback, watch=watch)

    def finished(self, found: Solution) -> Solution:
        """The solution after corrections of what the iterations found, in the terms of the given system."""
        kind, given, loop, system = self.kind, self.given, self.loop, self.system
        matrix = system.A.matrix
        rows = isinstance(matrix, CSR) or is_array(matrix)
        if kind == "backward" or (kind == "auto" and rows and found.status is Status.CONVERGED and not loop.is_even()):
            found = _corrected(found, kind, loop, system, self.watch, **self.options)
        elif found.status is Status.STAGNATED and rows and system.comm is None:
            found = _limited(found, system)
        if system is given:
            return found
        target = max(loop.rtol * norm(system.b), loop.atol)
        if not self.power:
            why = "entries of A are so small, or so large,"
            x = in_single(found.x)
            if not bool(system.xp.isfinite(x).all()):
                x = system.xp.zeros_like(x) if given.x0 is None else given.x0.copy()
                found = replace(found, status=Status.NOT_FINITE)
            return rounded(found, x, system.A, system.b, kind, target, why)
        return diminished(found, given.A, given.b, kind, self.power, target)


def _corrected(
    found: Solution,
    kind: str,
    loop: Loop,
    system: System,
    watch: Watch,
    /,
    **options: Any,
) -> Solution:
    """The solution with x + d + ... instead of x, where A d = b - A x, if the criterion asks for more than a small
    norm. Corrections d are added as long as each halves the size."""
    check = Criterion(kind, Residual(system.A, system.b, system), system.b)
    of_b = loop.size(system.b)
    target = max(loop.rtol * of_b, loop.atol)
    x, left, callback = found.x, loop.maxiter - found.iterations, loop.callback
    r, size = check(system.b, x, target)
    if check.rows is None:
        return found
    if kind == "backward" and size > target and isinstance(system.M, Operator):
        better = kernels_for(x).vectors.added(x, system.M @ r)  # M may solve small rows that a norm does not see
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
            System(system.A, rest, system.M, narrow=system.narrow),
            rtol=0.0,
            atol=tolerance,
            maxiter=left,
            callback=None if callback is None else lambda d, x=x: callback(x + d),  # type: ignore[misc]
            watch=None if watch is None else lambda k, norm, done=done: watch(done + k, norm),  # type: ignore[misc]
        )
        more = loop.method.iterate(again, **options)
        better = kernels_for(x).vectors.added(x, more.x)
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
        x=x,
        status=status,
        residual_norm=check.norm,
        history=history,
        row_residual=check.rows,
        seen=(*found.seen, check.sentence()) if check.rows is not None else found.seen,
    )


def _limited(found: Solution, system: System) -> Solution:
    """The solution with PRECISION_LIMIT instead of STAGNATED, if b - A x is only rounding of the terms of its rows.

    It remains STAGNATED if this rounding is not small compared with b. A is then nearly singular, and x has grown along
    a null vector until rounding hid the residual: the condition that `settled` tests by a solve, which M need not be.
    """
    residual = Residual(system.A, system.b, system)
    error, _ = backward_error(residual, system.b, found.x)
    if not error <= LIMIT * float(np.finfo(system.dtype).eps):
        return found
    if not residual.rounding(system.b, found.x) <= OUTGROWN * norm(system.b):
        return found
    text = f"the componentwise backward error is {error:.1e}: b - A x is rounding of the terms of its rows"
    return replace(found, status=Status.PRECISION_LIMIT, seen=(*found.seen, text))


def backward_error(residual: Residual, b: Any, x: Any) -> tuple[float, Any]:
    """The componentwise backward error of x, max |b - A x|_i / (|A| |x| + |b|)_i, and b - A x, formed in twice the
    precision."""
    terms = residual.magnitudes(b, x)
    r, _ = residual.twice(b, x)
    return largest(abs(r) / namespace(b).where(terms > 0, terms, 1)), r


def settled(residual: Residual, solve: Callable[[Any], Any], b: Any, x: Any) -> float:
    """The componentwise backward error of x if x is as accurate as the precision allows; else NaN.

    x is that accurate, however large b - A x is, if both conditions hold:
    1. Each row of b - A x is only rounding of its terms.
    2. solve(b - A x), where solve(r) is about A^-1 r, changes each element of x by at most the fraction SETTLED of it.
       Without this condition an x that has grown along a null vector would pass.
    """
    error, r = backward_error(residual, b, x)
    if not error <= LIMIT * float(np.finfo(b.dtype).eps):
        return math.nan
    return error if bool((abs(solve(r)) <= SETTLED * abs(x)).all()) else math.nan


# right-hand sides so small that x or its products would lose digits by underflow


def power_for(b: Any, matrix: Any) -> int:
    """The exponent of a power of two by which b is to be multiplied if its entries are near the smallest numbers; else
    0.

    The power takes the largest entry of b to about the largest entry of the matrix, but at most to about 1.
    Multiplication by it is exact. A x then loses no digits by underflow. x itself may lose digits when it is rounded to
    its dtype at the end; `diminished` tests for that.
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
    seen_norm = None if watch is None else lambda k, norm: watch(k, math.ldexp(norm, -power))
    return seen_x, seen_norm


def diminished(found: Solution, A: Any, b: Any, kind: str, power: int, target: float) -> Solution:
    """The solution for b, from the solution for 2^power b.

    x is rounded to its dtype. The residual that this rounding leaves is formed for 2^power x and 2^power b, without a
    loss of digits.
    A : the operator.  target : the size that the criterion must reach, for 2^power b.
    """
    x = times_power(found.x, -power)
    again = times_power(x, power)
    if bool((again != found.x).any()):
        found = rounded(found, again, A, times_power(b, power), kind, target, "b is so small")
    with np.errstate(under="ignore"):
        smaller = {name: np.ldexp(getattr(found, name), -power) for name in ("history", "recurrence")}
        if found.tolerance is not None:
            smaller["tolerance"] = float(np.ldexp(found.tolerance, -power))
    return replace(found, x=x, residual_norm=math.ldexp(found.residual_norm, -power), **smaller)


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
    if isinstance(matrix, CSR):
        matrix = matrix.with_values(as_dtype(matrix.data, wide))
    else:
        matrix = as_dtype(matrix, wide) if is_array(matrix) else matrix.astype(wide)
    b, x0 = as_dtype(system.b, wide), None if system.x0 is None else as_dtype(system.x0, wide)
    A, M = as_operator(matrix, "A", b, wide), as_operator(getattr(system.M, "given", None), "M", b, wide)
    return System(A, b, M, x0, narrow=system.narrow, started=system.started)


def in_single_precision(callback: Callable[[Any], object]) -> Callable[[Any], object]:
    """The caller's function, wrapped so that it sees x in single precision."""
    return lambda x: callback(in_single(x))


def is_array(matrix: Any) -> bool:
    """Whether it is a dense array, here or on a GPU."""
    return hasattr(matrix, "__array_interface__") or hasattr(matrix, "__cuda_array_interface__")
