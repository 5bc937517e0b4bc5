"""The ladder of `solve`: the rungs that are tried, their order, and when the ladder ends.

The first rung is a factorization that costs next to nothing (ILU0, IC0, MILU0). While it iterates, the rest of its time
is predicted from the digits gained so far, and compared with the expected time of the other rungs: a threshold
factorization (ILUT, ICT; ParILUT on a GPU), a complete sparse L U, whose fill and work are counted before, and the
multilevel ILU. The rung that is predicted to end first goes on, from the best x so far. A breakdown or a stagnation
ends a rung at once. No rung is tried twice.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from finelu.auto.answer import HOPELESS, OVER, answer
from finelu.auto.attempt import BROKEN, INDEFINITE, Iterations, RightHandSide, are_from_earlier, combined
from finelu.auto.choose import (
    ASKED,
    COMPLETE,
    IS_SMALL,
    SMALL,
    Rung,
    asks_without_sums,
    compared,
    methods,
    rungs,
    unfit,
)
from finelu.auto.cost import Costs
from finelu.auto.monitor import Listener, SwitchMonitor
from finelu.auto.null_space import Evidence
from finelu.auto.singular import condition, is_unresolved, verdict
from finelu.auto.solvability import Solvability, nullity_of, shift_of
from finelu.compiling import now
from finelu.deadline import limited
from finelu.device import namespace, synchronize
from finelu.errors import FineluError, OutOfTime, SingularMatrix, StructurallySingular
from finelu.krylov.criterion import OUTGROWN
from finelu.krylov.operators import matrix_operator
from finelu.krylov.underflow import diminished, power_for, reduced
from finelu.matrix import CSR, norm
from finelu.matrix.traits import MatrixTraits, traits
from finelu.matrix.vectors import as_dtype, times_power
from finelu.preconditioners import MILU0, BlockJacobi, Jacobi, Schwarz, SparseLU
from finelu.preconditioners.direct import cudss
from finelu.preconditioners.direct.factors import SparseLUFactors
from finelu.preconditioners.recipe import Recipe
from finelu.preconditioners.schwarz.factors import SchwarzFactors
from finelu.result import Attempt, Solution, Status

DOUBT = 2.0  # times its cost that a threshold rung counts with if the cheap one found no factors, or A indefinite
WITHOUT_PIVOT = "A may be semidefinite with a null vector, and factors that keep A's row sums would have no last pivot"
NESTED = 2  # times that a part of b outside of A's range is taken away: what A's pattern leads to, and what factors do
NEAR = 10.0  # times the tolerance, up to which b has no part outside of A's range that would need another answer
EXACT = 1e-10  # rtol below which complete factors and their refinement come first
LONGER = 30.0  # times by which these may take longer than the cheap rung is expected to
TINY, HUGE = 1e-20, 1e30  # norms of b between which none is near the smallest or largest numbers of its precision


class Ladder:
    """The rungs for one A and the factors made so far, to solve for one right-hand side after the other."""

    def __init__(
        self,
        A: CSR,
        rtol: float,
        recipe: Recipe | Literal["auto"] | None = "auto",
        method: str = "auto",
        *,
        deadline: float = math.inf,
        memory: float | None = None,
        watch: Listener = None,
        callback: Listener = None,
        norm_callback: Listener = None,
        most: float = math.inf,
        known: MatrixTraits | None = None,
        criterion: str = "auto",
        certifies: bool = False,
    ):
        """Make the rungs for A.

        rtol : the relative tolerance.
        recipe, method : "auto", or the only recipe or method to try.
        deadline : a time of `compiling.now`.
        memory : the memory for the factors of a rung in bytes, None for a part of the free memory.
        watch, norm_callback : see `SwitchMonitor`.
        callback : called with each new x.
        most : the largest number of iterations for one right-hand side.
        known : the traits of A, None to compute them.
        criterion : see `finelu.krylov.criterion`.
        certifies : whether complete factors are kept for `certificate` where others take their place.
        """
        self.A, self.rtol, self.method, self.most = A, rtol, method, most
        self.wanted = rtol  # the relative tolerance for the current right-hand side
        self.watch, self.callback, self.norm_callback = watch, callback, norm_callback
        self.criterion, self.certifies, self.row_sums = criterion, certifies, dict[Any, Any]()
        self.traits = known or traits(A)  # `definite` holds until a curvature disproves it
        self.asked = not isinstance(recipe, str)
        self.rungs = rungs(self.traits) if isinstance(recipe, str) else {"asked": Rung((recipe,), ASKED)}
        self.costs = Costs(A, self.traits, self.rungs, memory, deadline)
        self.factors: dict[str, Any] = {}
        self.unshifted: Any = None  # the complete factors whose place those of a shifted A have taken
        self.broken: set[str] = set()  # rungs without factors
        self.disproved = False  # whether a curvature has shown that A, which might have been definite, is not
        self.solvability = Solvability(A, self.traits)
        self.least = False  # whether the last x for a b outside of A's range has the least residual
        self.nested = 0  # how many parts of b outside of A's range have been removed
        self.zero_pivot = ""  # what a library of direct solves said of A, if its complete factors have a pivot of 0
        self.condition = 1.0  # a lower bound of A's condition number, from complete factors
        self.not_unique = ""  # why an x that solves A x = b is not the only one, once that is known
        self.interrupted = False
        self.preferred: str | None = None  # the rung that solved the previous right-hand side
        self.given_up: set[str] = set()  # rungs that did not solve an earlier right-hand side: they come last

    def first(self) -> dict[str, str]:
        """The first attempt: recipe, method and reason, in words; {} if no rung fits the memory."""
        rung = self.next_rung(list(self.rungs))
        if rung is None:
            return {}
        method = "refinement" if rung in COMPLETE else self._methods(rung)[0]
        return {"recipe": self.name(rung), "method": method, "reason": self.rungs[rung].why(self.wanted < EXACT)}

    # the order of the rungs

    def next_rung(self, left: list[str]) -> str | None:
        """The cheapest rung of `left` that fits the memory and the time; rungs that were given up come last."""
        costs, given_up = self.costs, self.given_up.intersection(left)
        if given_up and (rung := self.next_rung([rung for rung in left if rung not in given_up])):
            return rung
        if self.asked:
            return left[0] if left else None
        if "direct" in left and self.rungs["direct"].reason == IS_SMALL and costs.fits(costs.entry * self.traits.n**2):
            return "direct"
        if self.wanted < EXACT and (rung := self._complete(left)):
            return rung
        if "cheap" in left and costs.fits(costs.bytes_of("cheap")):
            light = "direct" in compared(left) and costs.fits(costs.bytes_of("direct"))
            return "direct" if light and costs.direct_comes_first(self._methods("cheap")[0]) else "cheap"
        left = compared(left)
        if "direct" in left and costs.fits(costs.bytes_of("direct")):
            costs.count_fill()
        return costs.cheapest(left, {"threshold": DOUBT if "cheap" in self.broken or self.disproved else 1.0})

    def _complete(self, left: list[str]) -> str | None:
        """The rung of complete factors, for tolerances that an incomplete factorization reaches only by chance.

        None unless the rung is left, fits, and is not expected to take much longer than incomplete factors.
        """
        rung, costs = next((rung for rung in COMPLETE if rung in compared(left)), None), self.costs
        if rung == "direct" and costs.fits(costs.bytes_of(rung)):
            costs.count_fill()
        if rung is None or not costs.fits(costs.bytes_of(rung)):
            return None
        seconds, cheap = costs.seconds(rung), costs.seconds("cheap") if "cheap" in left else math.inf
        return rung if seconds < math.inf and seconds <= LONGER * cheap and costs.in_time(seconds) else None

    # a right-hand side

    def solve(self, b: Any, x0: Any = None, atol: float = 0.0, *, rung: str | None = None, why: str = "") -> Solution:
        """Solve for one b (n,) in the dtype of x, to max(rtol ||b||, atol).

        x0 : the initial guess; it is used if its residual is smaller than b.
        rung : the only rung to try, None for all.
        why : the reason for the first attempt, if the caller knows it.
        """
        b = namespace(b).ascontiguousarray(b)
        scale = norm(b)
        if not TINY <= scale < HUGE and (power := power_for(b, self.A)):
            return self._magnified(b, x0, atol, power)
        self.wanted = wanted = max(self.rtol, atol / scale) if scale > 0 else 1.0
        if wanted >= 1:  # x = 0 is good enough
            return self.nothing(b, Status.CONVERGED, scale)
        if self.interrupted:
            return self.nothing(b, Status.INTERRUPTED, scale)
        rhs = RightHandSide(self.A, b, scale, wanted, self.criterion, self.row_sums)
        length = scale  # ||b - A x||; the criterion may measure another size
        if x0 is not None:
            _, size = rhs.residual(b, x0, rhs.target)
            if size < scale:
                rhs.x, rhs.size, rhs.history, rhs.recurrence = x0.copy(), size, [size], [size]
                length = rhs.residual.norm
                if size <= rhs.target:
                    return replace(self.nothing(b, Status.CONVERGED, length), x=rhs.x)
        if self.method != "auto" and (differing := unfit(self.method, self.A, self.traits.kind)):
            found = self.nothing(b, Status.NOT_SYMMETRIC, length)
            return replace(found, x=rhs.x, method=self.method, seen=(*found.seen, differing))
        if self.most == 0:
            return replace(self.nothing(b, Status.MAX_ITERATIONS, length), x=rhs.x)
        left = [rung] if rung else [name for name in self.rungs if name not in self.broken]
        with limited(self.costs.deadline), self.A.unchanged(self.traits.mirrored):  # until solve returns
            try:
                if self.solvability.may_be_singular and (evidence := self._off_range(rhs)) is not None:
                    return self._least_squares(rhs, evidence, guess=rhs.x if rhs.size < scale else None)
                rung = self._climb(rhs, left, rung, why)
                if rhs.evidence is not None:
                    return self._least_squares(rhs, rhs.evidence, rung)
                ended = rhs.status is not Status.PRECISION_LIMIT and rhs.status in OVER
                if not ended and rhs.iterations < self.most:
                    evidence = self._off_range(rhs, thorough=True)
                    if evidence is not None:
                        return self._least_squares(rhs, evidence)
            except OutOfTime:
                rhs.status = Status.OUT_OF_TIME if rhs.attempts else rhs.status
            if rhs.aside is not None:
                rhs.take_back()
            ended_by_rounding = rhs.status is Status.PRECISION_LIMIT and rhs.b.real.dtype == np.float64
            if ended_by_rounding and self.zero_pivot and not rhs.passes_by_rows(self.rtol):
                rhs.status, rhs.verdict = Status.NUMERICALLY_SINGULAR, f"{self.zero_pivot}; {rhs.verdict}"
            return answer(self, rhs, left)

    def _climb(self, rhs: RightHandSide, left: list[str], rung: str | None, why: str) -> str | None:
        """Try the rungs of `left` until one solves or there is a reason to stop. Each tried rung is removed from
        `left`.

        Returns the last rung, or None if the evidence for a singular A was found without it.
        rung, why : as in `solve`.
        """
        rung = rung or self.preferred or self.next_rung(left)
        chosen = self.rungs[rung].why(self.wanted < EXACT) if rung else ""
        why = why or ("it solved the column before" if self.preferred else chosen)
        while rung is not None and now() <= self.costs.deadline:
            left.remove(rung)
            change = self._attempt(rhs, rung, why, left)
            goes_on = rhs.status not in OVER[:3] and rhs.iterations < self.most
            if self.solvability.may_be_singular and goes_on and (found := self._off_range(rhs, thorough=True)):
                rhs.evidence = found
                return None
            if rhs.status in OVER or not goes_on:
                break
            if self.solvability.may_be_singular:
                self.solvability.without_null_part(rhs)
            self.given_up.add(rung)
            why = f"{self.name(rung)} " + ("was expected to take longer than this" if change else "failed")
            if rung == "direct" and self._shifted_is_left(rhs):
                left.append(rung)
            rung = change or self.next_rung(left)
        return rung

    def _shifted_is_left(self, rhs: RightHandSide) -> bool:
        """Whether the complete factors that were made are those of an A that is singular up to rounding, and factors
        with a shifted diagonal were not tried. If so, they are the rung's from now on."""
        recipes: Any = self.rungs["direct"].recipes
        tried = len(recipes) == 1 or shift_of(self.factors.get("direct"))
        if tried or not recipes[-1].shift or not is_unresolved(self.condition, rhs.b):
            return False
        before = self.factors.pop("direct", None)
        self.unshifted = before if self.certifies else None
        self.rungs["direct"] = replace(self.rungs["direct"], recipes=recipes[-1:])
        return True

    def _off_range(self, rhs: RightHandSide, *, thorough: bool = False) -> Evidence | None:
        """`Solvability.off_range`. If A takes the constant vector to 0, factors that keep row sums are left out."""
        if self.criterion == "backward":
            return None
        known, small = self.solvability, self.traits.n <= SMALL and not thorough
        before = known.constant_is_null
        evidence, cheap = known.off_range(rhs, thorough=thorough, small=small), self.rungs.get("cheap")
        if known.constant_is_null and not before and cheap is not None and "cheap" not in self.factors:
            kept = tuple(r for r in cheap.recipes if not isinstance(r, MILU0) or not self.traits.definite)
            self.rungs["cheap"] = cheap if kept == cheap.recipes else Rung(kept, WITHOUT_PIVOT)
        return evidence

    def _least_squares(
        self, rhs: RightHandSide, evidence: Evidence, rung: str | None = None, guess: Any = None
    ) -> Solution:
        """The answer for a right-hand side outside of A's range: the x with the least residual and, as far as null
        vectors are known, the least norm.

        rung : the rung of good factors, if any.
        guess : the initial guess, None for 0: the x of earlier iterations with b has grown along null vectors.
        """
        b, null, within = rhs.b, evidence.null, rhs.b - evidence.outside
        if rung is not None:
            self.solvability.look_at_structure()
        status = Status.SINGULAR if evidence.exact or self.solvability.structure else Status.NUMERICALLY_SINGULAR
        inner = self.nothing(b, Status.CONVERGED if norm(within) <= rhs.target else status, norm(within))
        if not inner.converged and self.nested < NESTED:
            before, why = (self.most, self.given_up), "it solves for the part of b in A's range"
            self.most, self.given_up = max(self.most - rhs.iterations, 0), set()
            self.nested, self.least = self.nested + 1, False
            try:
                inner = self.solve(within, guess, rhs.target, rung=rung, why=why)
            finally:
                self.most, self.given_up = before
                self.nested -= 1
        found = [inner.x] if inner.converged else [b * 0, inner.x, rhs.x]
        if null is not None:
            found = [rest if bool(namespace(b).isfinite(rest := x - null.part(x)).all()) else x for x in found]
        x = min(found, key=lambda x: rhs.residual(b, x, rhs.target)[1])
        rhs.residual(b, x, rhs.target)
        self.least = inner.converged or self.least
        if inner.status in (Status.INTERRUPTED, Status.OUT_OF_TIME):
            status = inner.status
        elif not self.least and b.real.dtype == np.float32 and rhs.iterations + inner.iterations < self.most:
            status = Status.PRECISION_LIMIT  # so that double precision is tried
        least, ended = "x has the smallest possible residual", inner.status.name.lower().replace("_", " ")
        if not self.least:
            least = "x has the smallest residual that was found, as the iterations for the part of b in A's range ended"
            least += f": {ended}"
        words = (
            self.solvability.structure,  # what to do comes first
            self.solvability.empty_rows(b) if self.solvability.structure else "",
            evidence.text.replace("; b lies", "; the rest of b lies") if self.nested else evidence.text,
            least + (", and no part along v" if null is not None else ""),
        )
        seen = tuple(dict.fromkeys(text for text in (*inner.seen, *words) if text))
        return combined(rhs, evidence, inner, replace(inner, x=x, status=status, seen=seen))

    def _magnified(self, b: Any, x0: Any, atol: float, power: int) -> Solution:
        """The solution by way of A y = 2^power b, for a b so small, or large, that x or A x would leave the range."""
        x0, atol = None if x0 is None else times_power(x0, power), float(np.ldexp(atol, power))
        given = self.callback, self.watch
        self.callback, self.watch = reduced(*given, power)
        try:
            found = self.solve(times_power(b, power), x0, atol)
        finally:
            self.callback, self.watch = given
        A = matrix_operator(as_dtype(self.A, b.dtype))
        target = max(self.rtol * norm(times_power(b, power)), atol)
        return diminished(found, A, b, self.criterion, power, target)

    def _attempt(self, rhs: RightHandSide, rung: str, why: str, left: list[str]) -> str | None:
        """Try a rung, from the best x so far. Sets the status of `rhs`; returns the rung to change to, or None."""
        start, made, first, before = now(), 0.0, self.name(rung), self.costs.taken
        expected = None
        if rung not in self.factors:
            try:
                expected = self.costs.estimate(rung)
                outcome = self._factor(rung)
            except OutOfTime as error:
                outcome, rhs.status = str(error), Status.OUT_OF_TIME
            made = now() - start - (self.costs.taken - before)
            if outcome:
                self.broken.add(rung)
                reached = rhs.size / rhs.scale
                rhs.attempts.append(Attempt(self.name(rung), "", why, f"no factors: {outcome}", 0, made, 0.0, reached))
                return None
            why += f", and {first} found no factors" if first != self.name(rung) else ""
        begin, before = now(), self.costs.taken
        try:
            others = compared([other for other in left if other not in self.given_up])
            found, monitor = self._improve(rhs, rung, others)
            if rhs.indefinite and self.traits.definite:
                self._is_indefinite()
        except MemoryError:
            if self.asked:
                raise
            del self.factors[rung]
            self.broken.add(rung)
            self.preferred = None if self.preferred == rung else self.preferred
            outcome, spent = "no memory for its iterations", now() - begin - (self.costs.taken - before)
            rhs.attempts.append(Attempt(self.name(rung), "", why, outcome, 0, made, spent, rhs.size / rhs.scale))
            return None
        solved = found.residual_norm <= rhs.target
        whole = "solved for the part of b in A's range" if self.nested else "solved"
        outcome = whole if solved else monitor.why or found.status.name.lower().replace("_", " ")
        spent, reached = now() - begin - (self.costs.taken - before), found.residual_norm / rhs.scale
        facts = found.iterations, made, spent, reached, expected
        attempt = Attempt(self.name(rung), found.method, why, outcome, *facts)
        if not solved and are_from_earlier(self.factors[rung]) and found.status not in OVER[1:3]:
            self.factors.pop(rung).let_go()
            rhs.add(found, attempt)
            why = "its factors began from those of earlier values, and are made anew"
            change = self._attempt(rhs, rung, why, left)
            if found.residual_norm < rhs.size:  # there was no time for the new ones, or they are no better
                rhs.x, rhs.size, rhs.best = found.x, found.residual_norm, attempt
            return change
        self._take(rhs, rung, found, attempt, given_up=monitor.change is not None)
        return monitor.change

    def _take(self, rhs: RightHandSide, rung: str, found: Solution, attempt: Attempt, *, given_up: bool) -> None:
        """Record the result of a rung in `rhs`."""
        rhs.add(found, attempt)
        rhs.tried, rhs.status = True, found.status
        if found.residual_norm < rhs.size:
            rhs.x, rhs.size, rhs.best = found.x, found.residual_norm, attempt
        if found.residual_norm <= rhs.target:
            rhs.status, rhs.best, self.preferred = Status.CONVERGED, attempt, rung
        elif found.status in (Status.OUT_OF_TIME, Status.INTERRUPTED):
            self.interrupted = found.status is Status.INTERRUPTED
        else:
            good, F = not given_up and rung not in ("cheap", "threshold"), self.factors[rung]
            near = not given_up and rhs.size <= NEAR * rhs.target
            if near and F is not None and F.complete and rhs.is_settled(F, rhs.x):
                rhs.status, rhs.best = Status.PRECISION_LIMIT, attempt
                return
            if rhs.iterations < self.most:
                known = rhs.b, rhs.x, rhs.size, rhs.wanted
                status, rhs.verdict, rhs.evidence = verdict(
                    self.A, rhs.residual, F, *known, good=good, known=self.solvability.constants
                )
                rhs.status = status or rhs.status
            complete = not given_up and (rung in COMPLETE or self.asked)
            if rhs.evidence is None and complete and F is not None and rhs.is_settled(F):
                rhs.status, rhs.best = Status.PRECISION_LIMIT, attempt
            if rhs.evidence is None and rhs.b.real.dtype == np.float64:  # from float32, double precision comes next
                regular = not shift_of(F) and not nullity_of(F)  # no pivot was 0
                limited = regular and rhs.status is Status.PRECISION_LIMIT
                if rhs.has_grown(OUTGROWN if limited else math.sqrt(float(np.finfo(rhs.b.dtype).eps))):
                    rhs.put_aside()  # other factors may lead to an x that has not grown along null vectors
            if good and rhs.status not in HOPELESS and rhs.iterations < self.most:
                self.condition = max(self.condition, condition(self.A, self.factors[rung], rhs.b))

    def nothing(self, b: Any, status: Status, size: float) -> Solution:
        """The solution x = 0 without any attempt."""
        x, history = namespace(b).zeros_like(b), np.array([size])
        return Solution(x, status, 0, size, history, recurrence=history, seen=self.traits.sentences())

    # a rung

    def _factor(self, rung: str) -> str:
        """Make the factors of a rung by its first recipe that can. Returns "", or why none can."""
        outcome, chosen, costs = "", self.rungs[rung], self.costs
        for recipe in chosen.recipes:
            try:
                if rung == "cudss":
                    indefinite = not self.traits.definite
                    self.factors[rung] = cudss.CudssFactors(recipe, self.A, costs.most_entries, indefinite=indefinite)
                elif rung == "direct" and isinstance(recipe, SparseLU):
                    given = recipe, self.A, costs.known(recipe), costs.most
                    self.factors[rung] = SparseLUFactors(*given, trial=None, anew=self.most < math.inf)
                elif recipe is None:
                    self.factors[rung] = None
                elif isinstance(recipe, Jacobi | BlockJacobi) or (
                    costs.limit is None and not isinstance(recipe, Schwarz)
                ):
                    self.factors[rung] = recipe.factor(self.A)
                elif isinstance(recipe, SparseLU):
                    self.factors[rung] = recipe.within(self.A, costs.most_entries)
                else:
                    costs.require_room(recipe)
                    self.factors[rung] = recipe.factor(self.A)
            except OutOfTime:
                raise
            except (FineluError, ArithmeticError, np.linalg.LinAlgError, MemoryError) as error:
                if self.asked:
                    raise
                outcome = outcome or str(error).split(": ", 1)[-1].rstrip(".")
                if isinstance(error, SingularMatrix) and rung == "direct":
                    self.zero_pivot = str(error).split(": ", 1)[-1].rstrip(".")
                if isinstance(error, StructurallySingular):  # true of A, or of the matrix that a recipe factors
                    self.solvability.look_at_structure()
                if rung == "cheap" and isinstance(recipe, MILU0) and self._direct_comes_now():
                    break
            else:
                if recipe is not chosen.recipes[0]:
                    self.rungs[rung] = Rung((recipe,), chosen.reason)
                if self.traits.gpu:
                    synchronize(self.A.data)
                return ""
        return outcome

    def _direct_comes_now(self) -> bool:
        """Whether complete factors are to be tried before other incomplete ones, as none keep A's row sums."""
        if "direct" not in self.rungs or self.broken & set(COMPLETE):
            return False
        fits = self.costs.fits(self.costs.bytes_of("direct"))
        return fits and self.costs.direct_comes_first(self._methods("cheap")[0], asks_without_sums)

    def _improve(self, rhs: RightHandSide, rung: str, left: list[str]) -> tuple[Solution, SwitchMonitor]:
        """The solution by the iterations with the factors of a rung, and their monitor.

        left : the rungs with which they are compared.
        """
        direct, factors, costs = rung in COMPLETE, self.factors[rung], self.costs
        how: dict[str, Any] = {"watch": self.watch, "norm_callback": self.norm_callback}
        if left := [] if self.asked or direct else left:
            how |= {"entries": costs.entries_read(factors), "by_parts": isinstance(factors, SchwarzFactors)}
            if self.traits.gpu and not how["by_parts"]:
                how["levels"] = costs.levels_of(factors)
        iterations = Iterations(
            factors=factors,
            recipe=self.name(rung),
            methods=self._methods(rung),
            complete=direct,
            refine=direct and self.method == "auto",
            begins=lambda method, target: SwitchMonitor(costs, method, left, scale=rhs.scale, target=target, **how),
            most=self.most - rhs.iterations,
            ended=BROKEN + INDEFINITE if self.asked else BROKEN,
            callback=self.callback,
        )
        return iterations.run(rhs)

    def _is_indefinite(self) -> None:
        """Choose the rungs without factors anew, as for an indefinite matrix, since a curvature was not positive."""
        self.traits, self.disproved = replace(self.traits, definite=False), True
        if not self.asked:
            self.rungs.update({name: rung for name, rung in rungs(self.traits).items() if name not in self.factors})

    def _methods(self, rung: str) -> tuple[str, ...]:
        return methods(self.traits, self.rungs[rung].recipes[0], self.method, alone=self.asked)

    def name(self, rung: str) -> str:
        recipe = self.rungs[rung].recipes[0]
        return "no preconditioner" if recipe is None else repr(recipe)
