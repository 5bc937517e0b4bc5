"""The ageing of factors in a Sequence: the iterations that old ones take beyond new ones, and when an update pays.

Costs are counted in iterations, modelled and not measured, so that the same systems lead to the same decisions, bits
included, whatever else the machine does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from finelu.auto.monitor import LEAST, iterations_left, worth
from finelu.auto.rates import RATES, current_on_gpu
from finelu.device import on_gpu
from finelu.errors import counted
from finelu.matrix import CSR
from finelu.preconditioners import ICT, ILUT, MultilevelILU, ParICT, ParILUT
from finelu.preconditioners.direct import cudss
from finelu.preconditioners.direct.factors import SparseLUFactors
from finelu.result import Status

COMPLETE = SparseLUFactors | cudss.CudssFactors
RETRY = 16  # updates after which the excess of old factors is forgotten, and they are tried again
FRESH = 2.0  # times that iterations may exceed what is expected of fresh factors, or that they may be slower
DIGITS = 1e-17  # part of a residual below which nothing is counted as gained
# Iterations beyond those with new factors that old complete ones are presumed to take in their first step, until it is
# seen. On 14 sequences, six of Newton's method for power flow and eight of values that swing by 1%, the processor time
# with 6 was 0.95 of that with 3, 0.89 of that with 0 (they are always tried), and 0.92 of that without a try.
FIRST = 6.0
NEAR = 0.7  # the logarithm of 2: so much larger a residual is not much above another
TELLING = 3  # iterations with old factors from which on their excess is taken from them: fewer are whole numbers first
# Iterations that take as long as an update, of recipes without fill; with fill by size; and of several levels. Medians
# of 43 systems of 2000 to 200,000 rows, a product and a solve for an iteration, in processor time of one thread: ILU0
# 3.7, MILU0 4.4, IC0 7.9; ICT 41, ILUT 60; MultilevelILU 63. A quarter is below 3.1 for ILU0, and above 11 for IC0.
UPDATE, UPDATE_FILLED, UPDATE_LEVELS = 4.0, 50.0, 60.0
# Seconds of a step with complete factors by cuDSS: fixed, and for each entry of L and U. On an H100 an update took 3 ms
# and mostly 0.5 to 2 ns for each of up to 1.6e8 entries (cudss-nvidia-h100-2026-11-25.md); 2 ms are for the rest.
STEP, ENTRY = 5e-3, 1e-9


def update_in_iterations(F: Any, A: CSR) -> float:
    """The iterations with factors F of A that take as long as `F.update(A)`, about.

    Complete factors: by the calibrated rates and the counts of their entries and operations. Others: by the recipe.
    """
    if not isinstance(F, COMPLETE):
        recipe = getattr(F, "recipe", None)
        if isinstance(recipe, MultilevelILU):
            return UPDATE_LEVELS
        return UPDATE_FILLED if isinstance(recipe, ICT | ILUT | ParICT | ParILUT) else UPDATE
    rates = current_on_gpu() if on_gpu(A.data) else RATES
    iteration = rates.overhead + rates.gmres * (A.nnz + F.nnz) / 2  # a product and a solve
    if isinstance(F, cudss.CudssFactors):
        return (STEP + ENTRY * F.nnz) / iteration
    _, entry, flop = RATES.of(F.report.backend)
    work = F.report.expected_flops
    return (entry * F.nnz + flop * (F.nnz**2 / A.n if work is None else work)) / iteration


def logarithm(size: float, target: float) -> float:
    """ln(size / target), what is to be taken off a residual norm, at most that of all digits; 0 if nothing is."""
    return math.log(size / max(target, DIGITS * size)) if size > target else 0.0


@dataclass
class Ageing:
    """The iterations that factors and older ones before them have taken.

    price : iterations that take as long as an update.
    complete : whether the factors are those of their matrix up to rounding.
    gained, taken : the natural logarithm of the residual that iterations with fresh factors took off, and how many
        they were, of the latest solves that make one from nothing together.
    excess : excess[k], the iterations beyond those of fresh factors for each unit of the logarithm in the (k + 1)-st
        step after their matrix; the latest that were seen.
    age : steps with other values since the factors were fresh.
    spent : the iterations beyond those of fresh factors in these steps.
    unseen : updates since the excess of the oldest factors was seen.
    course : course[k], the natural logarithm of ||b|| over the least residual norm until the k-th iteration of the last
        solve with fresh factors.
    """

    price: float
    complete: bool
    gained: float = 0.0
    taken: float = 0.0
    excess: list[float] = field(default_factory=list)
    age: int = 0
    spent: float = 0.0
    unseen: int = 0
    course: list[float] = field(default_factory=list)

    def expected(self, wanted: float) -> float:
        """The iterations with fresh factors that take the logarithm `wanted` off the residual; Inf if unknown."""
        if wanted <= 0:
            return 0.0
        if self.gained > 0:
            return max(wanted * self.taken / self.gained, 1.0)
        return 1.0 if self.complete else math.inf

    def likely(self, wanted: float) -> float:
        """The iterations of a step that takes the logarithm `wanted` off the residual, with what `decide` would say of
        it: those beyond fresh factors, or the price of an update, counted in."""
        more = 0.0
        if wanted > 0 and (self.excess or self.complete):
            more = min(wanted * self._following() if self.excess else FIRST, self.price)
        return self.expected(wanted) + more

    def _following(self) -> float:
        """The excess that is expected of the next step with old factors: the last that was seen at this age."""
        return self.excess[min(self.age, len(self.excess) - 1)]

    def decide(self, wanted: float) -> tuple[str, str]:
        """The action for a step that is to take the logarithm `wanted` off the residual, "reuse" or "update", and the
        reason.

        An update pays once the next step with old factors is expected to cost more than a step has cost in the mean
        since the last update, this one included. Incomplete old factors are tried, so that their cost is seen.
        """
        if not self.excess and not self.complete:
            return "reuse", "it is not known how many iterations old factors take"
        following = wanted * self._following() if self.excess else FIRST
        mean = (self.price + self.spent) / (self.age + 1)
        old = f"old factors are expected to take {following:.2g} iterations more than new ones"
        return (
            "reuse" if following < mean else "update",
            f"{old}, and an update takes as long as {self.price:.2g} iterations",
        )

    def solved(self, iterations: int, gained: float, wanted: float, norms: Any = ()) -> None:
        """Record iterations with fresh factors that took the logarithm `gained` off the residual.

        wanted : that of a solve from x = 0.  norms : of the residual as a part of ||b||, from the first on, if known.
        """
        if len(norms) > 1:
            least = np.minimum.accumulate(np.nan_to_num(norms, nan=math.inf))
            self.course = [logarithm(1.0, float(norm)) for norm in least]
        if iterations and 0 < gained < math.inf:
            rest = max(1 - gained / wanted, 0.0)  # of the solves before
            self.gained, self.taken = rest * self.gained + gained, rest * self.taken + iterations

    def figures(self) -> tuple[float, float, list[float], list[float]]:
        """What iterations have taken, to be taken back by `taken_back`."""
        return self.gained, self.taken, [*self.excess], [*self.course]

    def taken_back(self, figures: tuple[float, float, list[float], list[float]]) -> None:
        """Forget what iterations have taken since `figures` were: they were of another kind than those that follow."""
        self.gained, self.taken, self.excess, self.course = figures

    def renewed(self) -> None:
        """Record an update."""
        self.age, self.spent, self.unseen = 0, 0.0, self.unseen + 1
        if self.unseen >= RETRY:
            self.excess, self.unseen = [], 0

    def solved_with_old(self, iterations: int, gained: float) -> None:
        """Record iterations with old factors that took the logarithm `gained` off the residual."""
        expected = self.expected(gained)
        if expected == math.inf:  # an update then shows what is expected
            expected = 1.0
        more = max(iterations - expected, 0.0)
        if iterations >= TELLING or not self.excess:
            self._seen(more, gained)
        self.spent, self.age = self.spent + more, self.age + 1

    def gave_up(self, iterations: int, wanted: float) -> None:
        """Record that old factors were given up after `iterations`, so that an update follows."""
        self._seen(self.price + max(iterations, 1), wanted)

    def _seen(self, more: float, wanted: float) -> None:
        if self.age >= len(self.excess) - 1:
            self.unseen = 0
        if 0 < wanted < math.inf:
            self.excess[self.age :] = [more / wanted, *self.excess[self.age + 1 :]]


class Patience:
    """A function called as `watch` at each look at an iteration; it ends an iteration that better factors would end
    sooner, counted in iterations, or whose method does not fit A.

    target : the residual norm to reach.
    ageing : the iterations of fresh factors, and the price of an update.
    old : whether the factors are those of other values; else of these, and only others could be better.
    unfit : says why the method does not fit A, "" if it does. It is asked once, as it may take as long as an iteration:
        after FRESH times the iterations that were expected.
    scale : ||b||.

    Attributes after the end:
    status : NOT_SYMMETRIC if the method does not fit A, else None.
    change : "update" if better factors would end the iteration sooner, else None.
    why : the reason, in words.
    """

    looks_at_claims = True  # the residual of the x that a method has found is formed

    def __init__(
        self, target: float, ageing: Ageing, *, old: bool, unfit: Callable[[], str] = str, scale: float = math.inf
    ):
        self.target, self.ageing, self.old, self.unfit, self.scale = target, ageing, old, unfit, scale
        self.status: Status | None = None
        self.asked = False  # whether the method fits A
        self.norms: list[tuple[int, float]] = []  # of looks, each with the smallest norm until then
        self.change: str | None = None
        self.why = ""

    def __call__(self, iteration: int, norm: float) -> bool:
        least = self.norms[-1][1] if self.norms else math.inf
        self.norms.append((iteration, norm if norm < least else least))  # not a NaN
        first = self.norms[0][1]
        if not self.asked and iteration >= LEAST + FRESH * self._usual(logarithm(first, self.target)):
            self.asked, self.why = True, self.unfit()
            if self.why:
                self.status = Status.NOT_SYMMETRIC
                return True
        if iteration < LEAST or not 0 < self.target < first:
            return False
        if self._as_usual(iteration):
            return False
        (rest, _), expected, price = iterations_left(self.norms, self.target), self.ageing.expected, self.ageing.price
        if self.old:  # a method that begins anew takes about as long as from here, for the digits that it has to find
            cost = price + expected(logarithm(first, self.target))
        else:
            cost = FRESH * (price + expected(logarithm(first, self.target)))
        if not worth(cost, iteration, rest):
            return False
        self.change = "update"
        self.why = f"stopped, as {counted(math.ceil(rest), 'more iteration')} were expected"
        return True

    def _as_usual(self, iteration: int) -> bool:
        """Whether the residual is not much above that of fresh factors FRESH times sooner, and the iterations are not
        many more than expected: norms may stand still for long before they fall, with these factors as with others."""
        course, (_, first), (_, least) = self.ageing.course, self.norms[0], self.norms[-1]
        if not course or iteration > FRESH * self._usual(logarithm(first, self.target)):
            return False
        return logarithm(self.scale, least) + NEAR >= course[min(int(iteration / FRESH), len(course) - 1)]

    def _usual(self, wanted: float) -> float:
        """The iterations that are expected, 1 if nothing is known."""
        expected = self.ageing.expected(wanted)
        return expected if expected < math.inf else 1.0
