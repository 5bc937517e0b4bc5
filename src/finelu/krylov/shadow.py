"""The choice of shadow vectors, and the start of another cycle with others after a breakdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from finelu.kernels.monitor import BROKEN, CODE, RUNNING
from finelu.krylov.loop import Loop
from finelu.result import Solution

IN_VAIN = 3  # cycles in a row that may end by a breakdown without a residual that was halved


class Shadows:
    """The cycles of a method whose breakdowns may be due to its shadow vectors alone: after one the next cycle has
    others. IN_VAIN cycles in a row that break down without having halved the residual end the solve.

    breakdowns : how many there were so far.
    """

    def __init__(self, loop: Loop):
        self.loop, self.breakdowns = loop, 0
        self._in_vain, self._least = 0, float("inf")

    def cycle(self, r: Any) -> bool:
        """As `Loop.cycle`."""
        loop = self.loop
        broken = loop.cycles > 0 and loop.code == BROKEN
        if broken:
            self.breakdowns += 1
            if self._in_vain < IN_VAIN:
                loop.state[CODE] = RUNNING
        goes_on = loop.cycle(r)
        if not goes_on:
            return False
        if loop.cycles > 1 and broken:
            self._in_vain = 0 if loop.seen_norm <= self._least / 2 else self._in_vain + 1
        self._least = min(self._least, loop.seen_norm)
        return True

    def run(self, r: Any, begin: Callable[[], None], step: Callable[..., None], first: Any) -> Solution:
        """The cycles, after the first `cycle`, up to the end.

        begin : sets what the recurrence of a cycle starts with.  step : an iteration.  first : the products that are
        known before the first one, `step(first)`; None if there are none.
        """
        loop, iteration = self.loop, self.loop.repeated(step)
        while True:
            begin()
            while loop.goes_on():
                if first is None:
                    iteration()
                else:
                    step(first)
                    first = None
                loop.tell()
            if not self.cycle(r):
                return self.end()

    def draw(self, S: Any) -> Any:
        """S (n, s) in Fortran order becomes orthonormal: random numbers in [-1, 1), the same in every run and on every
        device, others in each cycle, after modified Gram-Schmidt; real for a real S. Returns S."""
        loop = self.loop
        loop.kernels.idrs.draw(loop.cycles, 0, S)
        for j in range(S.shape[1]):
            p = S[:, j]
            for i in range(j):
                p -= loop.dot(S[:, i], p) * S[:, i]
            p /= loop.length(p)
        return S

    def end(self) -> Solution:
        """The solution, which tells of the breakdowns."""
        return replace(self.loop.end(), breakdowns=self.breakdowns)
