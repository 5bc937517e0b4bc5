"""The answer of a ladder for a right-hand side: its status, and in words what was seen of A and b."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from finelu.auto.attempt import RightHandSide
from finelu.auto.certify import certificate
from finelu.auto.choose import COMPLETE, IS_SMALL
from finelu.auto.singular import condition_in_words, is_unresolved
from finelu.errors import counted
from finelu.krylov.nullspace import NullSpace
from finelu.preconditioners.direct import cudss
from finelu.preconditioners.direct.factors import SparseLUFactors
from finelu.result import Certificate, Solution, Status

if TYPE_CHECKING:
    from finelu.auto.ladder import Ladder

HOPELESS = (Status.SINGULAR, Status.NUMERICALLY_SINGULAR, Status.PRECISION_LIMIT)
OVER = (Status.CONVERGED, Status.INTERRUPTED, Status.OUT_OF_TIME, *HOPELESS)  # no other rung is tried
LIMITS = (*OVER[:3], Status.MAX_ITERATIONS, Status.OUT_OF_MEMORY)  # set by the caller, or not needed: A is not to blame


def answer(ladder: Ladder, rhs: RightHandSide, left: list[str]) -> Solution:
    """The answer for a right-hand side after its last attempt.  left : the rungs that were not tried."""
    status, seen, check = rhs.status, ladder.traits.sentences(), rhs.residual
    reached, history, of_rows = rhs.size, np.array(rhs.history), ""
    if check.looks_at_rows:
        if not check.has_seen(rhs.x):
            check(rhs.b, rhs.x, rhs.target)
        reached = history[-1] = check.norm
        of_rows = check.sentence()
    if status in HOPELESS:
        ladder.solvability.look_at_structure()
    of_attempt = status is Status.MAX_ITERATIONS and rhs.iterations < ladder.most  # the limit of an attempt
    if status not in OVER:
        in_memory = [rung for rung in left if ladder.asked or ladder.costs.seconds(rung) < math.inf]
        if rhs.iterations >= ladder.most:
            status = Status.MAX_ITERATIONS
        elif in_memory:
            status = Status.OUT_OF_TIME
        elif not left and is_unresolved(ladder.condition, rhs.b):
            status = Status.PRECISION_LIMIT
            rhs.verdict = f"{condition_in_words(ladder.condition)}, which no digit of x survives"
        elif left and not rhs.tried:
            status = Status.OUT_OF_MEMORY
        of_attempt = of_attempt and status is Status.MAX_ITERATIONS
        if status not in LIMITS or of_attempt:
            ladder.solvability.look_at_structure()
        for rung in left if status is not Status.MAX_ITERATIONS else ():
            why = "the time left is too short for it" if rung in in_memory else "its factors may not fit in memory"
            seen += (f"{ladder.name(rung)} was left out: {why}",)
    singular = ladder.solvability.structure and (status not in LIMITS or of_attempt)  # b may be in A's range
    outside = ladder.solvability.empty_rows(rhs.b) if singular and not ladder.nested else ""
    if outside:
        status, rhs.verdict = Status.SINGULAR, rhs.verdict or outside
    elif of_attempt:
        last = next(attempt for attempt in reversed(rhs.attempts) if attempt.method)  # the others had no factors
        rhs.verdict = f"the limit of {counted(last.iterations, 'iteration')} is that of an attempt"
    elif (
        status is Status.CONVERGED
        and not ladder.nested
        and (
            ladder.solvability.constants
            or ladder.solvability.structure
            or ladder.traits.diagonal.missing
            or ladder.preferred == "multilevel"
            or ladder.zero_pivot
            or is_unresolved(ladder.condition, rhs.b)
        )
    ):
        ladder.not_unique = ladder.solvability.not_unique(ladder.factors.get(ladder.preferred or ""))
        if not ladder.not_unique and is_unresolved(ladder.condition, rhs.b):
            words = condition_in_words(ladder.condition)
            ladder.not_unique = f"A is singular to working precision, or nearly ({words}): x may not be unique"
        rhs.verdict = ladder.not_unique
    on_host = "direct" in ladder.factors and ladder.rungs["direct"].reason != IS_SMALL
    if ladder.traits.gpu and on_host and (why := cudss.missing()):
        seen += (f"complete factors were made on the CPU: {why}",)
    return Solution(
        x=rhs.x,
        status=status,
        iterations=rhs.iterations,
        breakdowns=rhs.breakdowns,
        residual_norm=reached,
        history=history,
        row_residual=check.rows if check.looks_at_rows else None,
        recurrence=np.array(rhs.recurrence),
        method=rhs.best.method if rhs.best else "",
        recipe=rhs.best.recipe if rhs.best else "",
        seen=seen + tuple(text for text in (of_rows, rhs.verdict, ladder.solvability.structure) if text),
        attempts=tuple(rhs.attempts),
        tolerance=rhs.target,
        called="finelu.solve",
        null_vector=ladder.solvability.null_vector if rhs.status is Status.CONVERGED else None,
    )


def certificate_of(ladder: Ladder, b: Any, x: Any, space: NullSpace | None = None) -> Certificate:
    """The certificate of an x that the ladder found for b.  space : the null vectors of a singular A."""
    order = ladder.preferred or "", *COMPLETE, *ladder.factors
    F = next((ladder.factors[rung] for rung in order if rung in ladder.factors), None)
    if ladder.unshifted is not None and space is None and ladder.preferred in (None, "direct"):
        F = ladder.unshifted
    complete = isinstance(F, SparseLUFactors | cudss.CudssFactors) and not F.recipe.shift
    return certificate(ladder.A, b, x, F, complete=complete, deadline=ladder.costs.deadline, space=space)
