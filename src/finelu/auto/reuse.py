"""What old factors have cost a Sequence, and whether to go on with them."""

from __future__ import annotations

from dataclasses import dataclass

RETRY = 16  # updates in a row, after which it is seen again what old factors cost


@dataclass
class ReuseCosts:
    """Iterations and seconds, without what compiling took, since factors were made.

    made, updated : seconds to make the factors, and to update them: at first, those of the values alone when they were
    made, 0 where that is not known.
    fresh, last : iterations with fresh factors, and of the last solve.  pace : seconds of an iteration.
    excess : seconds that the iterations beyond the fresh ones have taken since the factors were fresh.
    first : those of the first reuse after fresh factors, the last time that there was one.
    unseen : updates since then.  reuses : since the factors were fresh, with values that were not factored.
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
        """What the next step is to do, "reuse" or "update", and why."""
        price = self.price
        if self.excess > price:
            return "update", f"old factors have cost {self.excess:.2g} s by now, an update takes {price:.2g} s"
        if self.first > price and self.unseen < RETRY:
            return "update", f"factors of one step before have cost {self.first:.2g} s, an update takes {price:.2g} s"
        return "reuse", f"an update takes {price:.2g} s, and old factors have cost {self.excess:.2g} s by now"

    def solved_afresh(self) -> None:
        """The last solve was with factors that were new."""
        self.fresh, self.excess, self.reuses, self.unseen = self.last, 0.0, 0, self.unseen + 1

    def gave_up(self, seconds: float) -> None:
        """Those of other values did not lead to x in that time, and an update came on top."""
        if self.reuses == 0:
            self.first, self.unseen = self.price + seconds, 0

    def solved_with_old(self) -> None:
        """It was with those of other values."""
        excess = max(self.last - self.fresh, 0) * self.pace
        if self.reuses == 0:
            self.first, self.unseen = excess, 0
        self.reuses += 1
        self.excess += excess
