"""One attempt of `solve`: the iterations with the factors of one rung, from the best x so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from finelu import krylov
from finelu.auto.monitor import Listener, SwitchMonitor
from finelu.auto.null_space import Evidence
from finelu.device import namespace
from finelu.errors import MatrixError
from finelu.kernels import kernels_for
from finelu.krylov.criterion import OUTGROWN, Criterion, settled
from finelu.krylov.operators import as_operator, matrix_operator
from finelu.krylov.recycle import RecycledSpace
from finelu.krylov.residual import Residual
from finelu.krylov.system import System
from finelu.matrix import CSR, norm
from finelu.matrix.vectors import as_dtype
from finelu.preconditioners.direct.factors import SparseLUFactors
from finelu.result import Attempt, Solution, Status

INDEFINITE = (Status.INDEFINITE, Status.INDEFINITE_PRECONDITIONER)
BROKEN = (Status.BREAKDOWN, Status.STAGNATED, Status.NOT_FINITE)
REFINEMENTS = 6  # steps of refinement with complete factors; also the length of the cycles of gmres, and their number
MAXITER = 2000  # of one attempt


class RightHandSide:
    """One right-hand side and the best x so far.

    A : the operator on vectors of the dtype of b.
    scale : ||b||.
    wanted : the relative tolerance.
    target : the absolute tolerance.
    row_sums : see `Criterion`.
    x : the best x so far.
    size : the size of the residual of x by the criterion, comparable with ||b||.
    best : the attempt that found x.
    aside : the best x that has grown, an answer only if no better one is found; or None.
    tried : whether a rung had factors.
    indefinite : whether a curvature has shown that A is not positive definite.
    verdict : evidence for the status, in words.
    evidence : the evidence that A is singular and b outside its range, or None.
    """

    def __init__(
        self,
        A: CSR,
        b: Any,
        scale: float,
        wanted: float,
        criterion: str = "auto",
        row_sums: dict[Any, Any] | None = None,
    ):
        if not math.isfinite(scale):
            raise MatrixError(f"the norm of b overflows in {b.real.dtype}; scale the system down.")
        self.A = matrix_operator(A if A.dtype == b.dtype else as_dtype(A, b.dtype))
        self.b, self.scale, self.wanted, self.target = b, scale, wanted, wanted * scale
        self.residual = Criterion(criterion, Residual(self.A, b), b, row_sums)
        self.attempts: list[Attempt] = []
        self.best: Attempt | None = None
        self.tried = self.indefinite = False
        self.iterations = self.breakdowns = 0
        self.status, self.verdict = Status.BREAKDOWN, ""
        self.evidence: Evidence | None = None
        zero = namespace(b).zeros(b.shape, b.dtype)
        self.x, self.size, self.history, self.recurrence = zero, scale, [scale], [scale]
        self.aside: Grown | None = None

    def has_grown(self, part: float) -> bool:
        """Whether one rounding of |A| |x| + |b| is more than the tolerance and this part of ||b||."""
        return self.residual.reaches(self.b, self.x, max(self.target, part * self.scale))

    def put_aside(self) -> None:
        """Begin anew from x = 0. The present x is kept, with its status and verdict, if it is the best put aside."""
        if self._is_better():
            self.aside = Grown(self.x, self.size, self.best, self.status, self.verdict)
        self.x, self.size, self.best = self.b * 0, self.scale, None
        self.status, self.verdict = Status.STAGNATED, ""

    def take_back(self) -> None:
        """Take the x put aside as the answer, with its status and verdict, if no better one was found."""
        if self.aside is not None and not self._is_better():
            self.x, self.size, self.best = self.aside.x, self.aside.size, self.aside.best
            self.history[-1] = self.size
            if self.status not in (Status.OUT_OF_TIME, Status.INTERRUPTED):
                self.status, self.verdict = self.aside.status, self.aside.verdict
        self.aside = None

    def add(self, found: Solution, attempt: Attempt) -> None:
        """Add an attempt, with its iterations and norms."""
        self.attempts.append(attempt)
        self.iterations, self.breakdowns = self.iterations + found.iterations, self.breakdowns + found.breakdowns
        self.history.extend(found.history[1:].tolist())
        self.recurrence.extend(found.recurrence[1:].tolist())

    def is_settled(self, F: Any, x: Any = None) -> bool:
        """Whether x is as accurate as the precision allows, though ||b - A x|| is not small. If so, x is kept.

        x : None for what the factors F alone give.
        """
        b, residual = self.b, self.residual.residual
        if x is None:
            x = b * 0
            for _ in range(2):  # the second refines
                x = x + F.solved(residual.twice(b, x)[0])
                if not bool(namespace(b).isfinite(x).all()):
                    return False
        error = settled(residual, F.solved, b, x)
        if math.isnan(error):
            return False
        _, self.size = self.residual(b, x, self.target)
        self.x = x
        if self.status is not Status.PRECISION_LIMIT:  # whose verdict says more
            self.verdict = (
                f"x solves exactly a system that differs from A x = b by at most {error:.1e} of each entry "
                "(componentwise backward error): b - A x is rounding of the terms of its rows, which are large"
            )
            if (times := self.residual.norm / self.scale) > 1:
                self.verdict += (
                    f". So ||b - A x|| = {times:.1e} ||b|| is larger than that of x = 0. But the elements of x have "
                    "correct digits, which those of an x with a smaller residual need not have"
                )
        return True

    def passes_by_rows(self, rtol: float) -> bool:
        """Whether x solves the system with rows of equal size: then a large row hides that, and A may be regular."""
        check = self.residual
        if not check.has_seen(self.x):
            check(self.b, self.x, self.target)
        return check.rows is not None and check.rows <= rtol

    def _is_better(self) -> bool:
        """Whether x is a better answer than the one put aside: its residual is smaller, and tells something where that
        of the other is only rounding."""
        if self.aside is None:
            return True
        most = OUTGROWN * self.scale if self.aside.status is Status.PRECISION_LIMIT else math.inf
        return self.size < min(most, self.aside.size)


def are_from_earlier(F: Any) -> bool:
    """Whether they are complete factors that began from those of earlier values: if refinement with them does not
    solve, new ones may."""
    return isinstance(F, SparseLUFactors) and F.from_earlier


@dataclass(frozen=True)
class Grown:
    """An x that A takes to a vector far smaller than |A| |x|, the size of its residual, and what was found of it."""

    x: Any
    size: float
    best: Attempt | None
    status: Status
    verdict: str


def joined(first: RightHandSide | Solution, second: Solution) -> Solution:
    """The second solution, from the x of the first, with the iterations, breakdowns and attempts of both."""
    return replace(
        second,
        iterations=first.iterations + second.iterations,
        breakdowns=first.breakdowns + second.breakdowns,
        history=np.append(first.history, second.history[1:]),
        recurrence=np.append(first.recurrence, second.recurrence[1:]),
        attempts=(*first.attempts, *second.attempts),
    )


def combined(rhs: RightHandSide, evidence: Evidence, inner: Solution, found: Solution) -> Solution:
    """The solution with the earlier attempts, and with the norms for b instead of its part in A's range."""
    within, outside = norm(rhs.b - evidence.outside), norm(evidence.outside)
    history, recurrence = (np.hypot(norms, outside)[1:] for norms in (inner.history, inner.recurrence))
    history = np.append(rhs.history, history)
    history[-1] = rhs.residual.norm
    return replace(
        found,
        iterations=rhs.iterations + inner.iterations,
        breakdowns=rhs.breakdowns + inner.breakdowns,
        residual_norm=rhs.residual.norm,
        null_vector=None if evidence.null is None else evidence.null.vector(),
        history=history,
        recurrence=np.append(rhs.recurrence, recurrence),
        attempts=(
            *rhs.attempts,
            *(replace(a, residual=math.hypot(a.residual * within, outside) / rhs.scale) for a in inner.attempts),
        ),
    )


@dataclass(eq=False)
class Iterations:
    """The iterations of one attempt with the factors of a rung.

    factors : the factors, None for no preconditioner.
    recipe : the name of the factors.
    methods : the first method, then others in case it breaks down.
    complete : whether the factors are those of A up to rounding.
    refine : whether refinement comes before the methods.
    begins : a function of (method, target) that returns the monitor of a method's iterations to that norm: a
        `SwitchMonitor`, or another `watch` with its attributes.
    most : the largest number of iterations.
    ended : the statuses of a method after which the next one goes on.
    callback : called with each new x.
    recycle : vectors for the methods that take them.
    """

    factors: Any
    recipe: str
    methods: tuple[str, ...]
    complete: bool
    refine: bool
    begins: Callable[[str, float], Any]
    most: float = math.inf
    ended: tuple[Status, ...] = field(default=BROKEN)
    callback: Listener = None
    recycle: RecycledSpace | None = None

    def run(self, rhs: RightHandSide) -> tuple[Solution, SwitchMonitor]:
        """The solution that the iterations find from the x of `rhs`, or that x if they find no better one."""
        b, x, size, target, callback = rhs.b, rhs.x, rhs.size, rhs.target, self.callback
        r = b if size == rhs.scale else rhs.residual(b, x, target)[0]
        monitor, method, status, iterations = self.begins("refinement", target), "refinement", Status.CONVERGED, 0
        known, breakdowns = [size], 0
        if self.refine:
            x, r, size, known = self._refine(rhs, r, monitor)
            iterations = len(known) - 1
        history = recurrence = np.array(known)
        refined = x  # finite, as is its size
        goes_on = size > target and monitor.status is None and not (self.refine and are_from_earlier(self.factors))
        for method in self.methods if goes_on else ():
            M, goes_on, corrected = as_operator(self.factors, "M", b, b.dtype), True, False
            while goes_on:  # once, unless rows differ in size, so that one norm does not meet the criterion
                most = min(self.most - iterations, REFINEMENTS**2 if self.complete else MAXITER)
                if most <= 0:
                    break
                before, (rest, tolerance) = size, rhs.residual.correction(x, r, size, target)
                monitor = self.begins(method, tolerance)
                found = krylov.iterate(
                    method,
                    System(rhs.A, rest, M),
                    rtol=0.0,
                    atol=tolerance,
                    maxiter=int(most),
                    callback=None if callback is None else lambda correction, x=x: callback(x + correction),  # type: ignore[misc]
                    watch=monitor,
                    restart=REFINEMENTS if self.complete else krylov.CYCLE,
                    recycle=self.recycle,
                )
                iterations, status = iterations + found.iterations, found.status
                breakdowns += found.breakdowns
                better = kernels_for(b).vectors.added(x, found.x)  # corrections are solved for: rtol keeps its meaning
                rest, reached = rhs.residual(b, better, target)
                history, recurrence = np.append(history, found.history[1:]), np.append(recurrence, found.recurrence[1:])
                if found.iterations and math.isfinite(reached):
                    history[-1] = reached
                rhs.indefinite |= status is Status.INDEFINITE
                if corrected and not reached < size:
                    break
                x, r, size, corrected = better, rest, reached, True
                claimed = status is Status.CONVERGED and size > target
                goes_on = claimed and rhs.residual.by_rows and size <= before / 2 and monitor.status is None
            if most <= 0 or monitor.status or (status not in self.ended and not claimed):
                break  # after a claim due to rounding the next method goes on: from here r is more accurate
        if x is not refined and (not math.isfinite(size) or kernels_for(b).vectors.first_not_finite(x) >= 0):
            x, size = rhs.x, rhs.size
        if size > target and status is Status.CONVERGED:
            status = Status.STAGNATED  # the method claimed convergence, and the check here does not confirm it
        status = monitor.status or (Status.MAX_ITERATIONS if monitor.change else status)
        facts: dict[str, Any] = {
            "method": method,
            "recipe": self.recipe,
            "recurrence": recurrence,
            "breakdowns": breakdowns,
        }
        return Solution(x, status, iterations, size, history, **facts), monitor

    def _refine(self, rhs: RightHandSide, r: Any, monitor: SwitchMonitor) -> tuple[Any, Any, float, list[float]]:
        """(x, b - A x, its norm, history) after x <- x + M^-1 (b - A x), as long as that halves the residual."""
        x, size = rhs.x, rhs.size
        history, most = [size], min(REFINEMENTS, self.most)
        solve = self.factors.apply if self.factors.dtype == x.dtype else self.factors.solve
        stops = monitor(0, size)
        while size > rhs.target and len(history) <= most and not stops:
            better = kernels_for(x).vectors.added(x, solve(r))
            rest, reached = rhs.residual(rhs.b, better, rhs.target)
            if not reached <= size / 2 or kernels_for(better).vectors.first_not_finite(better) >= 0:
                break
            x, r, size = better, rest, reached
            history.append(size)
            stops = self.callback is not None and monitor.stops(self.callback, x.copy())
            stops = stops or monitor(len(history) - 1, size)
        return x, r, size, history
