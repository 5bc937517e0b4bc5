"""Which rows are measured again, what their repeats say together, and by how much the first of them wins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from finelu.compare.model import Measurement

ROUNDS = 6  # of the last ones: the least with which the range of the ratios holds their median with 95 per cent
NEAR = 4.0  # only rows within this factor of the best are measured again
FINALISTS = 2  # rows that have all rounds, at least: for one right-hand side, and for many
FAR = 10.0  # the best for many right-hand sides has a place in the rounds up to this many times the least total


@dataclass(frozen=True)
class Margin:
    """By how much the cheapest row for one right-hand side wins.

    second : the next one.  ratio : its total over that of the first, the median of the rounds that both had.
    low, high : the range of the ratios of these rounds. It holds the median of all possible rounds with this
    `confidence`, 1 - 2**(1 - rounds), whatever the distribution of the times is (the sign test's interval).
    Without such a round the ratio is that of the first looks, and its range is not known: from 0 to inf.
    """

    first: Measurement
    second: Measurement
    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def confidence(self) -> float:
        return 1.0 - 2.0 ** (1 - self.rounds) if self.rounds else 0.0

    @property
    def decided(self) -> bool:
        """Whether the first was the faster one in each of ROUNDS rounds or more."""
        return self.rounds >= ROUNDS and self.low > 1.0


def joined(row: Measurement | None, again: Measurement, turn: int) -> Measurement:
    """`row` with what another turn measured; one that did not solve the system says nothing of a row that did."""
    if again.solved:
        again = replace(again, samples=((turn, *again.times),))
    if row is None or not row.solved:
        return again
    if not again.solved:
        return row
    samples = (*row.samples, *again.samples)
    counted = [sample for sample in samples if sample[0] > 0] or samples
    setup, solve = (median(times) for times in list(zip(*counted, strict=True))[1:])
    history = again.history
    if history is not None and solve and again.solve:  # its last point is the end of the solve
        history = history * np.array([1.0, solve / again.solve, 1.0])
    return replace(
        again,
        setup=setup,
        solve=solve,
        history=history,
        samples=samples,
        runs=row.runs + again.runs,
        pictures=again.pictures or row.pictures,
    )


def contenders(rows: Sequence[Measurement], made: int) -> list[Measurement]:
    """The rows for the next round after `made`: half as many each time of those that are near the best, at least two.

    Near the least total, or near the least solve unless the set-up is far from worth it for few right-hand sides.
    """
    solved = [m for m in rows if m.solved]
    least = min((m.total() for m in solved), default=math.inf)
    chosen: list[Measurement] = []
    for solves, within in ((1.0, NEAR), (math.inf, FAR)):
        ranked = sorted((m for m in solved if m.total() <= within * least), key=lambda m: m.total(solves))
        if math.isinf(solves):
            ranked.sort(key=lambda m: m.times[::-1])
        cost = [m.times[1] if math.isinf(solves) else m.total() for m in ranked]
        near = [m for m, seconds in zip(ranked, cost, strict=True) if seconds <= NEAR * cost[0]]
        chosen += near[: max(FINALISTS, math.ceil(len(near) / 2**made))]
    alone = len(set(map(id, chosen))) == 1
    return [] if alone else [m for m in solved if any(m is other for other in chosen)]


def common_rounds(rows: Sequence[Measurement]) -> int:
    """In how many rounds all of these rows, one at least, were measured in turn."""
    return len(set.intersection(*({turn for turn, *_ in m.samples if turn > 0} for m in rows)))


def margin(rows: Sequence[Measurement]) -> Margin | None:
    """How much the row with the least total wins, and how sure that is; None where fewer than two solved."""
    solved = sorted((m for m in rows if m.solved), key=lambda m: (m.total(), m.times[0]))
    if len(solved) < 2:
        return None
    first, second = solved[:2]
    ours, theirs = ({turn: setup + solve for turn, setup, solve in m.samples if turn > 0} for m in (first, second))
    ratios = [theirs[turn] / ours[turn] for turn in ours if turn in theirs and ours[turn] > 0]
    if not ratios:
        return Margin(first, second, second.total() / first.total() if first.total() else math.inf, 0.0, math.inf, 0)
    return Margin(first, second, median(ratios), min(ratios), max(ratios), len(ratios))
