"""The course that lsmr, lsqr and cgls share.

A method is a generator of iterations, which changes x in place and yields norms by its recurrence. `solved` stops it by
the tests of Paige and Saunders. A claim of convergence is tested by the true residuals of x, formed anew; without
success the iteration goes on, or begins again where the recurrence has drifted. Of all x that were measured, the best
is returned unless one has converged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace
from finelu.errors import NotConverged
from finelu.kernels.monitor import DRIFTED
from finelu.krylov.least_squares import LeastSquares, Limits, Step
from finelu.krylov.loop import Callback
from finelu.krylov.residual import largest
from finelu.matrix import norm
from finelu.matrix.vectors import all_finite, power_of_two, times_power
from finelu.result import LeastSquaresSolution, Status
from finelu.validation import flag, require_functions

LIMIT = 4.0  # roundings of |A^H| (|A| |x| + |b|), up to which A^H (b - A x) is at the limit of the precision
WITHOUT_M = 0.01  # of a rounding of s, down to which iterations without M, where x cannot grow so fast, may help
STRICTER = 2.0  # by which the recurrence must be smaller after a claim that the true residuals did not confirm

Steps = Callable[[LeastSquares, Any, Any], Iterator[Step]]


@dataclass
class Measured:
    """The true residuals of an x.

    r : b - A x, with damp stacked on -damp (x - x0).  residual : ||b - A x||.  size : ||r||.
    normal : ||s||, s = A^H (b - A x) - damp^2 (x - x0); never less than what rounding leaves unknown.
    weighted : (s^H M s)^(1/2).
    passed : 1 if the test of btol holds, else 2 if that of atol does, else 0: SciPy's istop. Neither holds for an x
        whose ||r|| is larger than that of another x, beyond rounding.
    """

    r: Any
    residual: float
    size: float
    normal: float
    weighted: float
    passed: int
    x_norm: float


def beyond(problem: LeastSquares) -> float:
    """The ratio of two ||r|| up to which they may be the same minimum: ||r|| is flat there, and s tells more."""
    return 1 + math.sqrt(float(np.finfo(problem.dtype).eps))


def measured(problem: LeastSquares, b: Any, x: Any, start: Any, limits: Limits, least: float) -> Measured:
    """The true residuals of x, formed anew.  start : x0.

    least : the smallest ||r|| of an x before. An x with a larger one does not solve A x = b, however long it is, unless
        that is at most btol ||b||.
    """
    x_norm, norm_b = norm(x), norm(b)
    least = max(least, limits.btol * norm_b)
    tolerance = limits.of_residual(problem, norm_b, x_norm)
    r, residual = problem.residual(b, x, tolerance)
    moved = x - start if problem.damp else problem.xp.zeros_like(x)
    size = math.hypot(residual, problem.damp * norm(moved))
    of_normal = limits.atol * problem.longest * size
    damp = problem.real.type(problem.damp)
    s, normal = problem.normal_residual(damp * (damp * moved), r, of_normal)
    weighted = problem.weighted(s)[1]
    passed = 1 if size <= min(tolerance, least) else 2 if normal <= of_normal and size <= beyond(problem) * least else 0
    if problem.damp:
        r = problem.xp.concatenate([r, -damp * moved])
    return Measured(r, residual, size, normal, weighted, passed, x_norm)


def solved(
    name: str,
    steps: Steps,
    problem: LeastSquares,
    limits: Limits,
    *,
    show: bool = False,
    callback: Callback = None,
    raise_on_failure: bool = False,
    at: Any = None,
) -> LeastSquaresSolution:
    """The solution for all columns of b, one after the other.  steps : the iterations of the method.

    at : of x0's shape: x is this, without an iteration, and the residuals are its own.
    """
    started = perf_counter()
    require_functions(callback=callback)
    flag("show", show)
    flag("raise_on_failure", raise_on_failure)
    columns = problem.b.reshape(problem.m, -1)
    starts = None if problem.x0 is None else problem.x0.reshape(problem.n, -1)
    found = []
    for c in range(columns.shape[1]):
        start = problem.xp.zeros(problem.n, problem.dtype)
        if starts is not None:
            start[:] = starts[:, min(c, starts.shape[1] - 1)]
        course = Course(problem, problem.xp.ascontiguousarray(columns[:, c]), start, limits, show, callback)
        found.append(course.run(name, steps) if at is None else course.at(name, at.reshape(problem.n, -1)[:, c]))
    worst = max(found, key=lambda s: (not s.converged, s.normal_residual_norm / (s.residual_norm or 1.0)))
    solution = replace(
        worst,
        x=worst.x if problem.b.ndim == 1 else problem.xp.stack([s.x for s in found], axis=1),
        iterations=sum(s.iterations for s in found),
        timings={"solve": perf_counter() - started},
    )
    if raise_on_failure and not solution.converged:
        raise NotConverged("the least-squares problem", solution, limits.atol)
    return solution


def unscaled(
    found: LeastSquaresSolution, of_A: int, of_b: int, start: Any, at: Callable[[Any], LeastSquaresSolution]
) -> LeastSquaresSolution:
    """The solution for A and b, from that for 2^-of_A A and 2^-of_b b.

    An x that is rounded on the way is measured anew. Its elements that are out of range become 0. Where this leaves a
    longer residual than that of the initial guess, it is the guess.
    at : at(x) is the solution with this x instead, for 2^-of_A A and 2^-of_b b.  start : the initial guess there.
    """
    power = of_b - of_A
    if of_A == of_b == 0:
        return found
    xp, x = namespace(found.x), times_power(found.x, power) if power else found.x
    x = x if all_finite(x) else xp.where(xp.isfinite(x), x, 0)
    back = times_power(x, -power) if power else x
    if bool((back != found.x).any()):
        rest = at(back)
        if not rest.damped_residual_norm <= (first := at(start)).damped_residual_norm:
            x, rest = times_power(start, power), first
        status, seen = found.status, found.seen
        if found.converged and not rest.converged:
            status, seen = Status.PRECISION_LIMIT, (*seen, out_of_range(x))
        measures = ("residual_norm", "normal_residual_norm", "damped_residual_norm", "passed", "x_norm")
        history = np.append(found.history[:-1], rest.normal_residual_norm)
        figures = {name: getattr(rest, name) for name in measures}
        found = replace(found, status=status, seen=seen, history=history, **figures)
    norms = {
        "residual_norm": of_b,
        "damped_residual_norm": of_b,
        "normal_residual_norm": of_A + of_b,
        "history": of_A + of_b,
        "matrix_norm": of_A,
        "x_norm": power,
    }
    changed = {name: np.ldexp(getattr(found, name), p) for name, p in norms.items()}
    changed = {name: value if name == "history" else float(value) for name, value in changed.items()}
    return replace(found, x=x, **changed)


def out_of_range(x: Any) -> str:
    return f"x is so small or so large that {x.dtype} cannot hold it"


class Course:
    """The iterations for one b (m,), from start (n,): for 2^-power b, where squares of b may over- or underflow.

    x : the iterate, at the beginning of a cycle.  now : its true residuals.  best : the x that is returned unless one
    has converged, and its residuals.  history : ||s|| after each iteration, see `Measured`; true at both ends.
    """

    def __init__(
        self, problem: LeastSquares, b: Any, start: Any, limits: Limits, show: bool, callback: Callback = None
    ):
        self.problem, self.limits, self.show, self.callback = problem, limits, show, callback
        sizes = (largest(b), 0), (largest(start), problem.power)
        self.power = power_of_two(problem.dtype, *(math.frexp(most)[1] + power for most, power in sizes if most > 0))
        self.b = times_power(b, -self.power) if self.power else b
        of_x = problem.power - self.power
        self.start = times_power(start, of_x) if of_x else start
        self.norm_b = norm(b)
        self.x = self.start.copy()
        self.least = math.inf
        self.now = self._measured(self.x)
        self.best = self.x, replace(self.now, r=None)
        self.at_once = self.now.normal == 0
        self.history = [self.now.normal]
        self.iterations, self.condition = 0, 1.0
        self.seen: tuple[str, ...] = ()

    def run(self, name: str, steps: Steps) -> LeastSquaresSolution:
        """Cycles of iterations until the true residuals pass, or there is a reason to stop."""
        status = Status.CONVERGED if self.at_once or self.now.passed else None
        if status is None and self.limits.maxiter == 0:
            status = Status.MAX_ITERATIONS
        while status is None:
            status = self._cycle(steps)
        if status is not Status.CONVERGED:
            self.x, self.now = self.best
        self.history[-1] = self.now.normal
        return self._unscaled(self._solution(name, status, self.x, self.now))

    def at(self, name: str, x: Any) -> LeastSquaresSolution:
        """The solution with x, in the caller's units, without an iteration."""
        of_x = self.problem.power - self.power
        return self._unscaled(self._of(name, times_power(x, of_x) if of_x else self.problem.xp.ascontiguousarray(x)))

    def _of(self, name: str, x: Any) -> LeastSquaresSolution:
        now = self._measured(x)
        return self._solution(name, Status.CONVERGED if now.passed else Status.MAX_ITERATIONS, x, now)

    def _unscaled(self, found: LeastSquaresSolution) -> LeastSquaresSolution:
        return unscaled(found, self.problem.power, self.power, self.start, partial(self._of, found.method))

    def _solution(self, name: str, status: Status, x: Any, now: Measured) -> LeastSquaresSolution:
        """The solution with an x of which the residuals are known, in the units of the iterations."""
        return LeastSquaresSolution(
            x=x,
            status=status,
            iterations=self.iterations,
            residual_norm=now.residual,
            history=np.array(self.history),
            method=name,
            recipe=self.problem.M.recipe,
            seen=self.seen,
            normal_residual_norm=now.normal,
            damped_residual_norm=now.size,
            passed=0 if self.at_once else now.passed,
            matrix_norm=self.problem.longest,
            condition=self.condition,
            x_norm=now.x_norm,
        )

    def _cycle(self, steps: Steps) -> Status | None:
        """Iterate from the true residual of x on: why the solve is over, or None if another cycle follows.

        It ends where the recurrence falls below the rounding of s, in its own norm. From there on it would let x grow
        along null vectors of A.
        """
        before, problem = self.now, self.problem
        change = problem.xp.zeros_like(self.x)
        unit, margin, rounding = self._unit(), 1.0, math.nan
        looked_at = math.sqrt(float(np.finfo(problem.dtype).eps)) * before.weighted if before.x_norm == 0 else math.inf
        step = None
        for step in steps(problem, before.r, change):
            if math.isnan(step.normal):  # x has not been changed by this iteration
                return self._broken(change)
            self.iterations += 1
            self.condition = step.condition
            normal = step.normal * unit
            self.history.append(normal)
            if self.show:
                shown = np.ldexp([step.residual, normal], [self.power, self.power + problem.power])
                print(f"{self.iterations:8d}  {shown[0]:.6e}  {shown[1]:.6e}", file=sys.stdout)
            if self.callback is not None and self._is_asked_to_end(change):
                self._measure(self.x + change)
                return self._ended(change, Status.CONVERGED if self.now.passed else Status.INTERRUPTED)
            if math.isnan(rounding) and step.normal <= looked_at:
                rounding = problem.weighted(self._rounding(self.x + change))[1]
                rounding *= 1.0 if problem.preconditioned else WITHOUT_M
            finished = step.normal <= rounding
            if finished or self._claims(step.residual / margin, normal / margin, change) or self._is_over():
                self._measure(self.x + change)
                if status := self._verdict():
                    return self._ended(change, status)
                if finished or self._has_drifted(step):
                    break
                unit, margin = self._unit(), margin / STRICTER
        else:
            self._measure(self.x + change)
            if status := self._verdict():
                return self._ended(change, status)
        self.x = self.x + change
        if step is None and self.now.weighted == 0:  # though s is not 0
            return self._indefinite()
        return None if step is not None and self.now.weighted <= before.weighted / 2 else self._stagnated()

    def _is_asked_to_end(self, change: Any) -> bool:
        """Call the caller's callback with the iterate, in the caller's units: whether it ends the iterations."""
        assert self.callback is not None
        try:
            return self.callback(times_power(self.x + change, self.power - self.problem.power)) is True
        except StopIteration:
            return True

    def _has_drifted(self, step: Step) -> bool:
        return self.now.weighted > DRIFTED * step.normal or self.now.size > DRIFTED * step.residual

    def _measured(self, x: Any) -> Measured:
        found = measured(self.problem, self.b, x, self.start, self.limits, self.least)
        self.least = min(self.least, found.size)
        return found

    def _measure(self, x: Any) -> None:
        """Make the residuals of x `now`, and x the best if it is."""
        self.now = self._measured(x)
        if not self._is_worse(self.now, self.best[1]):
            self.best = x, replace(self.now, r=None)

    def _is_worse(self, found: Measured, best: Measured) -> bool:
        """Whether its r is longer, or as long with a larger s: methods make r shorter with s longer at times."""
        if not (math.isfinite(found.size) and math.isfinite(found.normal)):
            return True
        ratio = beyond(self.problem)
        if found.size > ratio * best.size:
            return True
        return found.weighted > best.weighted and not ratio * found.size < best.size

    def _unit(self) -> float:
        """||s|| / (s^H M s)^(1/2) of the last x whose true residuals are known."""
        return self.now.normal / self.now.weighted if self.now.weighted > 0 else 1.0

    def _claims(self, residual: float, normal: float, change: Any) -> bool:
        """Whether x + change passes one of the tests by these norms."""
        limits, problem = self.limits, self.problem
        if normal <= limits.atol * problem.longest * residual:
            return True
        size = self.now.x_norm + norm(change)  # no less than ||x + change||
        return residual <= limits.of_residual(problem, self.norm_b, size)

    def _is_over(self) -> bool:
        return self.iterations >= self.limits.maxiter or self.condition >= self.limits.conlim

    def _verdict(self) -> Status | None:
        """Why the solve is over for the x whose true residuals are known; None if it is not."""
        if self.now.passed:
            return Status.CONVERGED
        if not math.isfinite(self.now.size):
            return Status.NOT_FINITE
        if not self._is_over():
            return None
        return Status.MAX_ITERATIONS if self.iterations >= self.limits.maxiter else Status.CONDITION_LIMIT

    def _ended(self, change: Any, status: Status) -> Status:
        if status is Status.NOT_FINITE:
            return self._broken(change * 0)
        self.x = self.x + change
        return status

    def _broken(self, change: Any) -> Status:
        """The status after NaN in the recurrence; x is the last iterate without it."""
        x = self.x + change
        self.x = x if bool(self.problem.xp.isfinite(x).all()) else self.start.copy()
        self._measure(self.x)
        if self.now.passed:
            return Status.CONVERGED
        return self._indefinite() if self.problem.preconditioned else Status.NOT_FINITE

    def _indefinite(self) -> Status:
        self.seen = ("M is not positive definite; M approximates the inverse of A^H A",)
        return Status.INDEFINITE_PRECONDITIONER

    def _stagnated(self) -> Status:
        """PRECISION_LIMIT if A^H (b - A x) is rounding of its terms, and of those of b - A x; else STAGNATED.

        Rounding is seen in the 2-norm or, as the recurrence sees it, in the norm of M.
        """
        self.x, self.now = self.best
        rounding = self._rounding(self.x)
        at_limit = self.now.normal <= LIMIT * norm(rounding)
        at_limit = at_limit or self.now.weighted <= LIMIT * self.problem.weighted(rounding)[1]
        return Status.PRECISION_LIMIT if at_limit else Status.STAGNATED

    def _rounding(self, x: Any) -> Any:
        """One rounding of |A^H| (|A| |x| + |b|) in each row, with signs at random; 0 if no entries of A are known."""
        problem = self.problem
        terms = problem.residual.magnitudes(self.b, x)
        if terms is None:
            return problem.xp.zeros_like(x)
        terms = problem.normal_residual.magnitudes(problem.xp.zeros_like(x), terms.astype(problem.dtype))
        signs = problem.xp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], problem.n))
        return (float(np.finfo(problem.dtype).eps) * signs * terms).astype(problem.dtype)
