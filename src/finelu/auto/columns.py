"""The other right-hand sides of `solve(A, B)` once one is solved: with its factors and its method, all together, or
with complete factors if these are expected to take less time for all of them.

The ladder then looks at each x. It has nothing left to do where x passes, and goes on from x where it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from finelu.auto.attempt import joined
from finelu.auto.choose import COMPLETE
from finelu.auto.ladder import Ladder
from finelu.auto.rates import RATES
from finelu.compiling import now
from finelu.deadline import limited
from finelu.device import free_memory, namespace
from finelu.errors import OutOfTime
from finelu.kernels import monitor
from finelu.krylov import CYCLE, METHODS
from finelu.krylov.columns import takes_columns
from finelu.krylov.loop import Loop
from finelu.krylov.operators import as_operator, matrix_operator
from finelu.krylov.rows import FEWEST, by_columns, by_rows
from finelu.krylov.solving import solved_together
from finelu.krylov.system import System
from finelu.matrix import norm
from finelu.matrix.vectors import as_dtype
from finelu.preconditioners.schwarz.factors import SchwarzFactors
from finelu.result import Attempt, Solution, Status

LONGER = 3  # times the iterations of the column before, after which a column is left to the ladder
LEAST = 20  # iterations that each may take in any case
SHARE = 0.25  # of the free memory, that the vectors of columns may take together
VECTORS = 15  # of a method without cycles
# An iteration of FEWEST columns or more together takes a column as long as this many entries take one alone, for each
# of its rows and of its entries. Subdomains take this part of the time of one, and all columns this many times its
# overhead. By cg with MILU0 or IC0 and 16 columns, the processor's time of two threads of an Intel Xeon: six systems of
# 4884 to 32,768 rows.
OF_ROW, OF_ENTRY, OF_PARTS, OF_ALL = 3.2, 0.11, 0.4, 6.0
# Part of the time of complete factors that a solve with them takes for a column of many. For 16 columns on two threads
# of an Intel Xeon it was 1/14 to 1/111 of the processor's time, in the median of 17 systems 1/42.
OF_A_SOLVE = 1 / 30
WHY = "it solved the column before; the others iterate together"


class Together(NamedTuple):
    """What columns reached together: a Solution for each, converged or not, or None.

    lost : the iterations of those that ended without a result.  why : this in words, or "".
    """

    solutions: list[Any]
    lost: int = 0
    why: str = ""


def by_complete_factors(ladder: Ladder, before: Solution, count: int) -> str:
    """Why complete factors come next, in words, since `count` columns are left; "" if the iterations that solved the
    column before are expected to take less time, or if the user listens to them. Their fill is counted if that takes
    less time than these."""
    rung, last, costs = ladder.preferred, before.attempts[-1], ladder.costs
    if rung is None or rung in COMPLETE or last.method not in METHODS or ladder.asked or ladder.traits.gpu:
        return ""
    tried = ladder.broken | ladder.given_up | set(ladder.factors)
    if count < 2 or "direct" not in ladder.rungs or "direct" in tried or _is_heard(ladder):
        return ""
    rest = last.iterations * _of_iteration(ladder, rung, last.method, count)
    if not costs.counted and rest > costs.counting() and costs.in_time(costs.counting()):
        costs.order()
        if rest > costs.counting() and costs.in_time(costs.counting()):
            costs.count_fill()
    seconds = costs.seconds("direct") * (1 + OF_A_SOLVE * count)
    known_size = costs.quick or costs.fill is not None
    if not known_size or not costs.fits(costs.bytes_of("direct")) or not seconds < rest or not costs.in_time(seconds):
        return ""
    ladder.preferred = "direct"
    return f"it is expected to take less time for {count} columns"


def _of_iteration(ladder: Ladder, rung: str, method: str, count: int) -> float:
    """The expected seconds of an iteration of `count` columns."""
    F, n, nnz = ladder.factors[rung], ladder.traits.n, ladder.traits.nnz
    by_parts, entries = isinstance(F, SchwarzFactors), ladder.costs.entries_read(F)
    single = ladder.costs.of_iteration(method, entries, by_parts=by_parts)
    if count < FEWEST:
        return count * single
    of_entry = (single - RATES.overhead) / ((nnz + entries) / 2)
    products = OF_PARTS * (single - RATES.overhead) if by_parts else of_entry * OF_ENTRY * (nnz + entries) / 2
    return count * (of_entry * OF_ROW * n + products) + OF_ALL * RATES.overhead


def _is_heard(ladder: Ladder) -> bool:
    """Whether the user listens to the iterations, or limits them: columns are then solved one after the other."""
    return bool(ladder.callback or ladder.watch or ladder.norm_callback) or ladder.most < math.inf


def iterated(ladder: Ladder, before: Solution, columns: Sequence[Any], guesses: Sequence[Any], atol: float) -> Together:
    """The iterations that solved the column before, for all of the columns, as far as there is something to be gained.

    columns, guesses : (n,) each, of one dtype; a guess may be None.  atol : as in `solve`.
    """
    rung, last = ladder.preferred, before.attempts[-1] if before.attempts else None
    nothing = Together([None] * len(columns))
    if rung is None or last is None or len(columns) < 2 or _is_heard(ladder):
        return nothing
    found: list[Solution] = []
    begun: list[Loop] = []
    why = ""
    b, F, start = columns[0], ladder.factors[rung], now()
    A = matrix_operator(as_dtype(ladder.A, b.dtype))
    try:
        with limited(ladder.costs.deadline), ladder.A.unchanged(ladder.traits.mirrored):
            if last.method == "refinement":
                found += _refined(A, F, columns, ladder.rtol, atol)
            elif METHODS[last.method].together({}):
                _by_method(A, F, last, columns, guesses, ladder.rtol, atol, found, begun)
            else:
                return nothing
    except OutOfTime:
        why = "the time limit was reached"
    except MemoryError:
        why = "the memory did not suffice for them"
    seconds = (now() - start) / len(columns)

    def as_attempt(solution: Solution, b: Any) -> Solution:
        reached = solution.residual_norm / (norm(b) or 1.0)
        outcome = "solved" if solution.converged else solution.status.name.lower().replace("_", " ")
        attempt = Attempt(last.recipe, last.method, WHY, outcome, solution.iterations, 0.0, seconds, reached)
        return replace(solution, attempts=(attempt,))

    solved: list[Any] = [as_attempt(solution, b) for solution, b in zip(found, columns, strict=False)]
    left = [None] * (len(columns) - len(solved))
    if not why:
        return Together(solved + left)
    lost = sum(int(loop.state[monitor.ITERATIONS]) for loop in begun)
    text = f"{len(left)} columns iterated together, but {why}: {lost} iterations were lost, and each goes on alone"
    return Together(solved + left, lost, text)


def completed(ladder: Ladder, started: Solution, b: Any, atol: float) -> Solution:
    """The answer of the ladder from the x of `iterated`, with the iterations of both."""
    found = joined(started, ladder.solve(b, started.x, atol))
    if found.method:
        return found
    by = started.attempts[0]
    return replace(found, method=by.method, recipe=by.recipe, tolerance=started.tolerance, called="finelu.solve")


def _by_method(
    A: Any,
    F: Any,
    last: Attempt,
    columns: Sequence[Any],
    guesses: Sequence[Any],
    rtol: float,
    atol: float,
    found: list[Solution],
    begun: list[Loop],
) -> None:
    """`found` takes the solutions, `begun` the loops of those columns whose solutions it does not have yet."""
    method, b = METHODS[last.method], columns[0]
    M, most = as_operator(F, "M", b, b.dtype), LONGER * last.iterations + LEAST
    vectors = CYCLE + VECTORS if method.restarts else VECTORS
    each = max(int(SHARE * free_memory(b) / (vectors * b.nbytes)), 1)
    xp = namespace(b)
    for first in range(0, len(columns), each):
        group = zip(columns[first : first + each], guesses[first : first + each], strict=True)
        systems = [System(A, xp.ascontiguousarray(column), M, guess) for column, guess in group]
        limits: dict[str, Any] = {"criterion": "residual", "rtol": rtol, "atol": atol, "maxiter": most}
        more = {"callback": None, "watch": None, **method.in_cycles(CYCLE)}
        found += solved_together(method, systems, begun, **limits, **more)
        begun.clear()


def _refined(A: Any, F: Any, columns: Sequence[Any], rtol: float, atol: float) -> list[Solution]:
    """x = M^-1 b, with one correction where b - A x is not yet small."""
    xp = namespace(columns[0])
    B = by_rows(columns)
    solve = F.apply if F.dtype == B.dtype else F.solved
    X, sizes = solve(B), [norm(b) for b in columns]
    targets = np.maximum(rtol * np.array(sizes), atol)

    def residual(which: Any) -> Any:
        given = X if which is None else X[:, which]
        product = A.apply(given) if takes_columns(A) else xp.stack([A @ x for x in given.T], axis=1)
        return (B if which is None else B[:, which]) - product

    R, steps = residual(None), np.ones(len(columns), int)
    norms = np.array([norm(r) for r in by_columns(R).T])
    left = np.flatnonzero(~(norms <= targets) & np.isfinite(norms))
    if left.size:
        X[:, left] += solve(R[:, left])
        steps[left] += 1
        norms[left] = [norm(r) for r in by_columns(residual(left)).T]
    X = by_columns(X)
    return [
        Solution(
            X[:, c],
            Status.CONVERGED if norms[c] <= targets[c] else Status.STAGNATED,
            int(steps[c]),
            float(norms[c]),
            np.array([sizes[c], *[norms[c]] * int(steps[c])]),
            method="refinement",
            recurrence=np.array([sizes[c], *[norms[c]] * int(steps[c])]),
            tolerance=float(targets[c]),
        )
        for c in range(len(columns))
    ]
