"""The decision whether an attempt of `solve` goes on: by the caller, by the time limit, or because another attempt is
expected to end first.

Time is counted in iterations, each with its expected seconds. The clock is read for the time limit only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from finelu.auto.cost import Costs
from finelu.compiling import now
from finelu.krylov import CYCLE, METHODS
from finelu.result import Status

# An attempt is given up at the first look after it has spent BUDGET of the time of the alternative, unless the rest of
# it is clearly expected to take less: CLEAR of that time. Before, its rest must be expected to take longer, at the
# start by CAUTION of that time. An attempt that is kept at that look is given up later on only if it is expected to
# take LATE times as long as the alternative, since its time is then lost. BUDGET is below a quarter, as the set-up of
# the attempt is not counted. On the records of regret of two processors, with MKL, KLU and feral and without, times
# alter by 0.5% at most for BUDGET of 0.15 to 0.25, CLEAR of 0.75 to 1 and CAUTION of 1 to 4.
# On residual histories of 40 shared systems, with times of a processor, the regret against the best of three rungs is
# 1.10 in the mean, and 1.08 to 1.13 for BUDGET of 0.1 to 0.22 without an order, 1.15 for 0.25, 1.15 for a rest that is
# known, 1.10 to 1.11 with the set-up as spent, 1.12 to 1.18 if the rate is expected to fall on as it has fallen.
CAUTION, BUDGET, CLEAR, LATE = 1.0, 0.2, 0.75, 2.0
BEGUN = 0.05  # of the digits wanted, from which on the residual has begun to fall
# The part of the digits wanted that is added to those gained in the later half of the iterations. On these records 0.04
# to 0.05 are best: less ends attempts whose residual stands still before it falls, more keeps those that are hopeless.
PRIOR = 0.05
LEAST = 3  # iterations before anything is expected
STILL, CYCLES = 1e-3, 3  # part of the residual that this many cycles of a restarted method must take away

Listener = Callable[..., Any] | None


class SwitchMonitor:
    """A function called as `watch` at each look at an iteration; it ends the iteration by returning True.

    method : the method of the iteration.
    left : the rungs with which it is compared; () for no comparison.
    scale : ||b||.
    target : the residual norm to reach.
    entries, by_parts, levels : of the factors with which it iterates, see `Costs.of_iteration`.
    watch : the caller's function of (iteration, residual norm), or None.
    norm_callback : the caller's function of the relative residual norm, or None.

    Attributes after the end:
    status : set if the caller or the time limit ended the iteration, or if the cycles of a restarted method reduce the
        residual so little that they never will succeed; else None.
    change : the rung to change to, or None.
    why : the reason, in words.
    """

    looks_at_claims = True  # the ladder forms b - A x for the x that a method has found

    def __init__(
        self,
        costs: Costs,
        method: str,
        left: Sequence[str],
        *,
        scale: float,
        target: float,
        entries: float | None = None,
        by_parts: bool = False,
        levels: int | None = None,
        watch: Listener = None,
        norm_callback: Listener = None,
    ):
        self.costs, self.left = costs, left
        self.step = costs.of_iteration(method, entries, by_parts=by_parts, levels=levels) if left else 0.0
        self.scale, self.target = scale, target
        self.watch, self.norm_callback = watch, norm_callback
        self.smallest = math.inf
        self.norms: list[tuple[int, float]] = []  # of looks, each with the smallest norm until then
        self.restarted = method != "refinement" and METHODS.registered[method].restarts
        self.seen = 0, math.inf  # the iteration of the last test for stagnation of cycles, and the smallest norm then
        self.next = LEAST  # the iteration of the next comparison
        self.before = 0.0  # seconds until the last one
        self.counting = 0.0  # until the last one at which a count of the fill was open, see `may_count`
        self.least = least(costs, left) if left else math.inf  # seconds, up to which no rung is worth a change
        self.status: Status | None = None
        self.change: str | None = None
        self.why = ""

    def __call__(self, iteration: int, norm: float) -> bool:
        late = self.costs.deadline < math.inf and now() > self.costs.deadline  # before the watch takes its time
        if self.watch is not None and self.stops(self.watch, iteration, norm):
            return True
        if self.norm_callback is not None and iteration and self.stops(self.norm_callback, norm / self.scale):
            return True
        if late:
            self.status, self.why = Status.OUT_OF_TIME, "the time limit was reached"
            return True
        if self.seen[1] == math.inf:
            self.seen = iteration, norm
        if norm < self.smallest:  # False for NaN
            self.smallest = norm
        if self.left:
            self.norms.append((iteration, self.smallest))
        if self.restarted and iteration >= self.seen[0] + CYCLES * CYCLE:
            if self.smallest > (1 - STILL) * self.seen[1]:
                self.status, self.why = Status.STAGNATED, f"{CYCLES} cycles took nothing off the residual"
                return True
            self.seen = iteration, self.smallest
        if iteration < self.next or not self.left or self.target == 0:
            return False
        self.next, elapsed = math.floor(1.1 * iteration) + 1, iteration * self.step
        before, self.before = self.before, elapsed
        more, begun = iterations_left(self.norms, self.target)
        rest, counted = more * self.step, self.counting
        if may_count(self.costs, elapsed, begun=begun):
            self.counting = elapsed
        if rest <= CLEAR * self.least:
            return False
        self.change = better(self.costs, self.left, elapsed, rest, begun=begun, before=before, counted=counted)
        if self.change is None:
            self.least = least(self.costs, self.left)  # it may have counted the fill
            return False
        self.why = f"stopped, as it was expected to take {rest:.2g} s more, and the next attempt less"
        return True

    def stops(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """Whether a caller's function ends the solve."""
        try:
            stop = function(*arguments) is True
        except StopIteration:
            stop = True
        if stop:
            self.status, self.why = Status.INTERRUPTED, "stopped by the caller"
        return stop


def least(costs: Costs, left: Sequence[str]) -> float:
    """The least seconds that a rung of `left` is expected to take, as far as known without work."""
    known = (costs.seconds(rung) if rung != "direct" or costs.counted else costs.counting() for rung in left)
    return min(known, default=math.inf)


def may_count(costs: Costs, elapsed: float, *, begun: bool) -> bool:
    """Whether the fill of the direct solve may be counted: the residual has begun to fall, or iterations have taken as
    long as a count takes; or it was counted. Before, the expected rest tells little."""
    return begun or costs.counted or elapsed >= costs.analysis_seconds


def better(
    costs: Costs,
    left: Sequence[str],
    elapsed: float,
    rest: float,
    *,
    begun: bool = True,
    before: float = 0.0,
    counted: float | None = None,
) -> str | None:
    """The rung to change to instead of going on for `rest` more seconds, after `elapsed`; None: go on.

    The fill of the direct solve is counted once that costs little compared with `rest`.
    begun : whether the residual has begun to fall.
    before : as in `worth`.
    counted : the same for the direct solve: the seconds until the last look at which its fill might be counted. None
        for `before`.
    """
    counted = before if counted is None else counted
    open_to_count = may_count(costs, elapsed, begun=begun)
    if "direct" in left and not costs.counted and open_to_count and _pays(costs, elapsed, rest, counted):
        costs.order()
        if _pays(costs, elapsed, rest, counted):
            costs.count_fill()
    rung, seconds = _soonest(costs, left)
    if rung is None or not worth(seconds, elapsed, rest, counted if rung == "direct" else before):
        return None
    if "direct" in left and not costs.counted and costs.counting() < seconds:  # complete factors may take less time
        costs.order()
        if costs.counting() < seconds and costs.in_time(costs.counting() + seconds):  # else it would leave no time
            costs.count_fill()
            rung = _soonest(costs, left)[0] or rung
    return rung


def _soonest(costs: Costs, left: Sequence[str]) -> tuple[str | None, float]:
    """The rung of `left` that is expected to take the least time, as far as known, and its seconds; None if none of
    them is in time."""
    known = {rung: costs.seconds(rung) for rung in left if rung != "direct" or costs.counted}
    in_time = {rung: seconds for rung, seconds in known.items() if costs.in_time(seconds)}
    rung = min(in_time, key=lambda rung: in_time[rung], default=None)
    return rung, math.inf if rung is None else in_time[rung]


def _pays(costs: Costs, elapsed: float, rest: float, before: float) -> bool:
    """Whether to go on with the count of the fill."""
    counting = costs.counting()
    return costs.in_time(counting) and (counting == 0 or worth(counting, elapsed, rest, before))


def iterations_left(norms: Sequence[tuple[int, float]], target: float) -> tuple[float, bool]:
    """The expected iterations that are left, and whether the residual has begun to fall.

    norms : some iterations, from the first on, and the smallest residual norm until each.
    The rest of the digits is expected at the rate of the later half of all iterations: the first few take away what is
    rough, up to 15% of the digits in three iterations, and tell nothing of the rest.
    """
    first, (last, least) = norms[0][1], norms[-1]
    wanted = math.log(max(first / target, 1.0))
    gained = math.log(first / least) if least > 0 else wanted
    half, before = max(seen for seen in norms if 2 * seen[0] <= last)
    lately = math.log(before / least) if least > 0 else wanted
    left = (wanted - gained) * (last - half) / (lately + PRIOR * wanted) if wanted > gained else 0.0
    return left, gained >= BEGUN * wanted


def worth(cost: float, elapsed: float, rest: float, before: float = 0.0) -> bool:
    """Whether to change to a rung that costs `cost` seconds, if `rest` more seconds are expected after `elapsed`.

    The expectation is uncertain. So the less time has been spent, compared with BUDGET of `cost`, the larger the gain
    must be. Once that part of `cost` has been spent, the rest must be clearly shorter than `cost` to go on, but only
    once: later on, half of the time must be gained.
    before : the seconds until the last look, at which there was no change.
    """
    if not 0 < cost < math.inf:
        return False
    spent, decided = elapsed / (BUDGET * cost), before >= BUDGET * cost
    return rest > cost * (LATE if decided else CLEAR + CAUTION * max(0.0, 1 - spent))
