"""The course of a Krylov method for one system or several: its iterations, then corrections of x until the criterion
holds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from finelu.errors import ParameterError, counted
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.krylov.columns import Columns, gains
from finelu.krylov.criterion import LIMIT, OUTGROWN, Criterion, backward_error, criterion_asked, is_array
from finelu.krylov.loop import Callback, Loop, Watch
from finelu.krylov.operators import Operator
from finelu.krylov.residual import Residual
from finelu.krylov.rows import ColumnsInRows
from finelu.krylov.system import System
from finelu.krylov.underflow import (
    diminished,
    in_double_precision,
    in_single_precision,
    magnified,
    needs_double,
    of_given_size,
    of_unit_size,
    power_for,
    reduced,
    rounded,
)
from finelu.matrix.vectors import all_finite, in_single, norm, times_power
from finelu.result import Solution, Status
from finelu.validation import number, require_functions

if TYPE_CHECKING:
    from finelu.krylov.method import Method


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
    together = as_given and method.together(every[0].options) and gains(systems[0], len(systems))
    in_rows = together and ColumnsInRows.suits(loops)
    if not in_rows and (not together or ColumnsInRows.alone(loops[0])):
        return [one.finished(method.iterate(one.loop, **one.options)) for one in every]
    columns: Any = ColumnsInRows(loops) if in_rows else Columns(loops)
    found: Any = method.iterate(columns, **every[0].options)
    return [one.finished(solution) for one, solution in zip(every, found, strict=True)]


def solved_in_block(method: type[Method], systems: list[System], /, **arguments: Any) -> list[Solution]:
    """As `solved_together`, by the method's `in_block`. The method itself then checks each column, from the x that it
    has, and goes on by itself if that does not pass. Raises ParameterError for a callback or watch: no column iterates
    by itself."""
    for name in ("callback", "watch"):
        if arguments[name] is not None:
            raise ParameterError(f"block=True iterates on all columns as one and has no {name}; leave out one of them.")
    every = [Solving(method, system, **arguments) for system in systems]
    loops = [one.loop for one in every]
    if any(one.system is not one.given or one.loop.scale != 1 for one in every):
        return solved_together(method, systems, **arguments, block=True)  # so that it refuses what a block has not
    targets, options = np.array([loop.tolerance for loop in loops]), every[0].options
    in_block: Any = method.in_block
    X, iterations, histories = in_block(systems, [loop.x for loop in loops], targets, loops[0].maxiter, **options)
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


OVERFLOWN = (  # the ends of iterations in which products with A leave the range of numbers
    Status.NOT_FINITE,
    Status.NOT_SYMMETRIC,
    Status.BREAKDOWN,
    Status.STAGNATED,
    Status.INDEFINITE,
    Status.INDEFINITE_PRECONDITIONER,
)
CORRECTED = (Status.CONVERGED, Status.STAGNATED)  # the ends of iterations after which corrections may help


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
        require_functions(callback=callback, watch=watch)
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
        self.limits: dict[str, Any] = {"rtol": rtol, "atol": atol, "maxiter": maxiter, "callback": callback}
        self.loop = Loop(method, system, rtol=rtol, atol=atol, maxiter=maxiter, callback=callback, watch=watch)

    def finished(self, found: Solution) -> Solution:
        """The solution after corrections of what the iterations found, in the terms of the given system."""
        kind, given, loop, system = self.kind, self.given, self.loop, self.system
        if found.status in OVERFLOWN and (unit := of_unit_size(system, stationary=loop.method.stationary)):
            found = self._of_unit_size(*unit, found)
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

    def _of_unit_size(self, unit: System, power: int, first: Solution) -> Solution:
        """The solution by way of the system of `of_unit_size`.  first : what the iterations without that found."""
        limits, callback, method = self.limits, self.limits["callback"], self.loop.method
        if callback is not None:
            limits = limits | {"callback": lambda x: callback(times_power(x, -power))}
        found = solved(method, unit, criterion=self.kind, watch=self.watch, **limits, **self.options)
        found = of_given_size(found, unit, self.kind, power, max(limits["rtol"] * norm(unit.b), limits["atol"]))
        if all_finite(first.x) and first.residual_norm < found.residual_norm and not found.converged:
            return first
        text = f"products with A left the range of numbers after {counted(first.iterations, 'iteration')}, so that "
        text += f"(2^{-power} A) (2^{power} x) = b was solved"
        return replace(found, seen=(*found.seen, text))


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

    def correction(x: Any, rest: Any, tolerance: float, left: int, done: int) -> Solution:
        """The solution d of A d = rest, after `done` iterations, with at most `left` more."""
        again = Loop(
            loop.method,
            System(system.A, rest, system.M, narrow=system.narrow),
            rtol=0.0,
            atol=tolerance,
            maxiter=left,
            callback=None if callback is None else lambda d: callback(x + d),
            watch=None if watch is None else lambda k, norm: watch(done + k, norm),
        )
        return loop.method.iterate(again, **options)

    if kind == "backward" and size > target and isinstance(system.M, Operator):
        x, r, size = _by_preconditioner(check, system, x, r, size, target)
    while size > target and left > 0 and found.status in CORRECTED:
        rest, tolerance = check.correction(x, r, size, target)
        more = correction(x, rest, tolerance, left, found.iterations)
        better = kernels_for(x).vectors.added(x, more.x)
        before = check.rows, check.norm
        r, reached = check(system.b, better, target)
        found = replace(
            found,
            status=more.status,
            iterations=found.iterations + more.iterations,
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
    elif status in CORRECTED and left <= 0:
        status = Status.MAX_ITERATIONS
    elif status in CORRECTED:
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


def _by_preconditioner(check: Criterion, system: System, x: Any, r: Any, size: float, target: float) -> Any:
    """(x, b - A x, its size by the criterion) for x + M r if its size is smaller, as M may solve small rows that a norm
    does not see; else those of x, as they are given."""
    better, before = kernels_for(x).vectors.added(x, system.M @ r), (check.rows, check.norm)
    rest, reached = check(system.b, better, target)
    if reached < size:
        return better, rest, reached
    check.rows, check.norm = before
    return x, r, size


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
