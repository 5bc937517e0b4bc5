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

# An attempt is given up if it is expected to take longer than the alternative: so much longer if it has just begun, and
# any longer at the first look after it has spent BUDGET of the time of the alternative. Most gain more digits later on.
# An attempt that promises to end sooner at that look is given up later on only if it is expected to take LATE times as
# long as the alternative, since its time is then lost.
CAUTION, BUDGET, LATE = 8.0, 0.25, 2.0
BEGUN = 0.05  # of the digits wanted, from which on the residual has begun to fall
PRIOR = 1 / 30  # of the digits wanted, that count as gained before the first iteration
LEAST = 3  # iterations before anything is expected
STILL, CYCLES = 1e-3, 3  # part of the residual that this many cycles of a restarted method must take away

Listener = Callable[..., Any] | None


class SwitchMonitor:
    """A function called as `watch` at each look at an iteration; it ends the iteration by returning True.

    method : the method of the iteration.
    left : the rungs with which it is compared; () for no comparison.
    scale : ||b||.
    target : the residual norm to reach.
    entries, by_parts : of the factors with which it iterates, see `Costs.of_iteration`.
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
        watch: Listener = None,
        norm_callback: Listener = None,
    ):
        self.costs, self.left = costs, left
        self.step = costs.of_iteration(method, entries, by_parts=by_parts) if left else 0.0
        self.scale, self.target = scale, target
        self.watch, self.norm_callback = watch, norm_callback
        self.smallest = math.inf
        self.norms: list[tuple[int, float]] = []  # of looks, each with the smallest norm until then
        self.restarted = method != "refinement" and METHODS.registered[method].restarts
        self.seen = 0, math.inf  # the iteration of the last test for stagnation of cycles, and the smallest norm then
        self.next = LEAST  # the iteration of the next comparison
        self.before = 0.0  # seconds until the last one
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
        rest = more * self.step
        if rest <= self.least:
            return False
        self.change = better(self.costs, self.left, elapsed, rest, begun=begun, before=before)
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


def better(
    costs: Costs, left: Sequence[str], elapsed: float, rest: float, *, begun: bool = True, before: float = 0.0
) -> str | None:
    """The rung to change to instead of going on for `rest` more seconds, after `elapsed`; None: go on.

    The fill of the direct solve is counted once that costs little compared with `rest`.
    begun : whether the residual has begun to fall. Before, `rest` tells little, and the count waits until iterations
        have taken as long as it takes.
    before : as in `worth`.
    """
    known = begun or elapsed >= costs.analysis_seconds
    if "direct" in left and not costs.counted and known and _pays(costs, elapsed, rest, before):
        costs.order()
        if _pays(costs, elapsed, rest, before):
            costs.count_fill()
    found = {rung: costs.seconds(rung) for rung in left if rung != "direct" or costs.counted}
    found = {rung: seconds for rung, seconds in found.items() if costs.in_time(seconds)}
    rung = min(found, key=lambda rung: found[rung], default=None)
    return rung if rung is not None and worth(found[rung], elapsed, rest, before) else None


def _pays(costs: Costs, elapsed: float, rest: float, before: float) -> bool:
    """Whether to go on with the count of the fill."""
    counting = costs.counting()
    return costs.in_time(counting) and (counting == 0 or worth(counting, elapsed, rest, before))


def iterations_left(norms: Sequence[tuple[int, float]], target: float) -> tuple[float, bool]:
    """The expected iterations that are left, and whether the residual has begun to fall.

    norms : some iterations, from the first on, and the smallest residual norm until each.
    It is the less of two: at the mean rate of all iterations, and at that of their later half, since the residual for a
    smooth b falls only after iterations have crossed the mesh.
    """
    first, (last, least) = norms[0][1], norms[-1]
    wanted = math.log(max(first / target, 1.0))
    gained = math.log(first / least) if least > 0 else wanted
    left = last * (wanted / (gained + PRIOR * wanted) - 1)
    half, before = max(seen for seen in norms if 2 * seen[0] <= last)
    lately = math.log(before / least) if least > 0 else wanted
    if lately > 0:
        left = min(left, (wanted - gained) * (last - half) / lately)
    return left, gained >= BEGUN * wanted


def worth(cost: float, elapsed: float, rest: float, before: float = 0.0) -> bool:
    """Whether to change to a rung that costs `cost` seconds, if `rest` more seconds are expected after `elapsed`.

    The expectation is uncertain. So the less time has been spent, compared with a quarter of `cost`, the larger the
    gain must be. Once a quarter of `cost` has been spent, any gain is enough, but only once: later on, half of the time
    must be gained.
    before : the seconds until the last look, at which there was no change.
    """
    if not 0 < cost < math.inf:
        return False
    spent, decided = elapsed / (BUDGET * cost), before >= BUDGET * cost
    return rest > cost * (LATE if decided else 1 + CAUTION * max(0.0, 1 - spent))
