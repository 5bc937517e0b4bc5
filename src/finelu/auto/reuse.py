"""The cost of old factors in a Sequence, and the decision whether to go on with them."""

from __future__ import annotations

from dataclasses import dataclass

RETRY = 16  # updates in a row, after which it is seen again what old factors cost


@dataclass
class ReuseCosts:
    """Iterations and seconds, without the time to compile kernels, since factors were made.

    made : seconds to make the factors.
    updated : seconds to update the factors; before the first update, seconds to compute the values alone when the
        factors were made, 0 if unknown.
    fresh : iterations of the last solve with fresh factors.
    last : iterations of the last solve.
    pace : seconds per iteration.
    excess : seconds spent since the factors were fresh in iterations beyond `fresh`.
    first : such seconds of the latest solve that was the first reuse after fresh factors.
    unseen : updates since that solve.
    reuses : solves since the factors were fresh, with values that were not factored.
    """

    made: float = 0.0
    updated: float = 0.0
    fresh: int = 0
    last: int = 0
    pace: float = 0.0
    excess: float = 0.0
    first: float = 0.0
    unseen: int = 0
    reuses: int = 0

    @property
    def price(self) -> float:
        """Seconds of an update."""
        return self.updated or self.made

    def decide(self) -> tuple[str, str]:
        """The action for the next step, "reuse" or "update", and the reason."""
        price = self.price
        if self.excess > price:
            return "update", f"old factors have cost {self.excess:.2g} s by now, an update takes {price:.2g} s"
        if self.first > price and self.unseen < RETRY:
            return "update", f"factors of one step before have cost {self.first:.2g} s, an update takes {price:.2g} s"
        return "reuse", f"an update takes {price:.2g} s, and old factors have cost {self.excess:.2g} s by now"

    def solved_afresh(self) -> None:
        """Record that the last solve had fresh factors."""
        self.fresh, self.excess, self.reuses, self.unseen = self.last, 0.0, 0, self.unseen + 1

    def gave_up(self, seconds: float) -> None:
        """Record that factors of other values did not lead to x in `seconds`, so that an update was made, too."""
        if self.reuses == 0:
            self.first, self.unseen = self.price + seconds, 0

    def solved_with_old(self) -> None:
        """Record that the last solve had factors of other values."""
        excess = max(self.last - self.fresh, 0) * self.pace
        if self.reuses == 0:
            self.first, self.unseen = excess, 0
        self.reuses += 1
        self.excess += excess
