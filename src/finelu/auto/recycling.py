"""Whether a Sequence, or shifts of one matrix, keep a recycled space: as long as it saves more than it takes, by a
modelled cost."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

from finelu.auto.rates import RATES, current_on_gpu
from finelu.auto.reuse import COMPLETE
from finelu.device import on_gpu
from finelu.krylov import CYCLE, METHODS
from finelu.krylov.recycle import RecycledSpace
from finelu.matrix import CSR

FEWEST, MOST = 4, 16  # vectors
SHARE = 0.3  # of the time of an iteration, that its products with the vectors take at most, with FEWEST of them or more
DIRECTIONS = 4  # times the vectors: search directions from which they are formed
LEAST = 20  # iterations of a step from which on a space is tried
EACH = 0.03  # part of the iterations that each vector is presumed to save, until it is seen
RIPE = 3  # solves with the space, after each of which it is formed anew
AT_RISK = 0.75  # of a plain solve, that a try may lose until its first solve shows that it saves nothing
TRIAL = 0.25  # of a plain solve, that the solves with the space may lose until it is ripe, and that forming it may take
GROWN = 1.25  # times the iterations that it had with the space when it was ripe, from which on it is formed anew
DOUBTED = 2.0  # times the time of the last solve with vectors, that a plain solve takes at most that doubts them
BASIS = 1.0  # of the time of products with A and M that the basis of gmres takes at most, where it is taken before idrs
# Plain iterations after which a space that did not pay is tried again, and for each iteration that the try has lost:
# these are then 2% of them. Twice as many each time.
REST, OF_LOSS = 1000, 50
# Seconds for each entry of a dense array (n, m) that a product with a vector reads, and for each operation of a product
# of two of them: on a core, of arrays beyond the caches 0.36 to 0.42 ns (inside 0.17); on an H100 8 bytes at 2.5 TB/s.
ENTRY, FLOP = 4e-10, 1e-10
ENTRY_ON_GPU, FLOP_ON_GPU, LAUNCHES = 3.2e-12, 1e-13, 2e-5
TOGETHER = 0.5  # of the time of a product with A, where several vectors are multiplied at once
FORGOTTEN = (
    "the recycled vectors were dropped: the method failed with them or took too long, or A takes them to rounding"
)


class Recycling:
    """The space, and what solves with it and without it have taken.

    space : None before a try, and where it does not pay.
    plain, kept : the last iterations without the space and with it, for each unit of the logarithm that they took off
        the residual; None until they are seen.
    best : the least of `kept` since the space was last begun.
    used : solves with the space since then.  lost : the plain iterations that they took more than plain solves.
    left : plain iterations until the next try.
    tries : how many have failed.
    why : the last decision of a step, in words; "" if there was none.
    """

    def __init__(self) -> None:
        self.space: RecycledSpace | None = None
        self.plain: float | None = None
        self.kept: float | None = None
        self.best = math.inf
        self.used, self.lost, self.left, self.tries = 0, 0.0, 0.0, 0
        self.why = ""
        self._cost = Cost()
        self._with = False  # whether the present solve has vectors

    def drop(self) -> None:
        """Forget the space: of another pattern, size or device. The next try still waits as long: where patterns change
        often, each would be lost."""
        self.space, self.kept, self.best, self.used, self.lost, self.why = None, None, math.inf, 0, 0.0, ""

    def forget(self) -> None:
        """Forget the space, and the plain iterations: of other factors, or another method."""
        self.drop()
        self.plain = None

    def failed(self) -> bool:
        """Record a solve that did not reach its tolerance, and drop the space if it had vectors; whether it had."""
        if not self._with or self.space is None:
            return False
        m = self.space.size
        self._rest()
        self.why = f"{m} recycled vectors were dropped: a solve with them failed" if m else FORGOTTEN
        return True

    def _rest(self) -> None:
        """Drop the space, and try again later."""
        self.left, self.tries = max(REST, OF_LOSS * self.lost) * 2**self.tries, self.tries + 1
        self.drop()
        self._with = False

    @property
    def begins(self) -> bool:
        """Whether the present solve is the first with vectors."""
        return self._with and self.used == 0

    def space_for(self, method: str, F: Any, A: CSR, wanted: float, expected: float) -> RecycledSpace | None:
        """The space for a solve that is to take the logarithm `wanted` off the residual, None for a plain one.

        expected : the iterations that it is expected to take as the last ones did.
        """
        self._with = False
        if method not in METHODS or not METHODS[method].recycles or isinstance(F, COMPLETE):
            return None  # with complete factors of an earlier A no eigenvalue of M A is far from all others
        if self.left > 0 or wanted <= 0:
            return None
        self._cost = Cost.of(F, A, cycles=METHODS[method].restarts)
        plain = expected if self.plain is None else self.plain * wanted
        if self.space is None:
            m = self._most(plain) if LEAST <= plain < math.inf else 0
            if not m:
                return None
            self.drop()
            self.space, self.lost = RecycledSpace(m, directions=DIRECTIONS * m), self._cost.forming(m)
        space = self.space
        if not space.size and self.used:  # its vectors are gone, and it is filled anew
            self.kept, self.best, self.used = None, math.inf, 0
        kept = math.inf if self.kept is None else self.kept * wanted
        if self.used < RIPE:
            kept = min(kept, (1 - EACH * space.size) * plain)
        if space.size and not self._cost.pays(plain, kept, space.size):
            return None  # the guess was good: a few iterations are left, which the space would not shorten
        cheap = not space.size or self._cost.forming(space.size) <= TRIAL * plain
        space.renew = cheap and (self.used < RIPE or (self.kept is not None and self.kept > GROWN * self.best))
        self._with = space.size > 0
        return space

    def _most(self, plain: float) -> int:
        """The most vectors that are expected to pay for solves of `plain` iterations, and whose try does not risk
        too much; 0 if there are none."""
        for m in range(self._cost.vectors(), FEWEST - 1, -1):
            expected = self._cost.pays(plain, (1 - EACH * m) * plain, m)
            if expected and self._cost.of_trial(plain, m) <= AT_RISK * plain:
                return m
        return 0

    def seen(self, iterations: int, gained: float) -> bool:
        """Record a solve that took the logarithm `gained` off the residual; whether it led to the end of the space, as
        a space does that has forgotten its vectors, with which the method failed."""
        if not 0 < gained < math.inf or not iterations:
            return False
        rate = iterations / gained
        if not self._with:
            self.plain, self.left = rate, max(self.left - iterations, 0)
            return False
        if self.space is not None and not self.space.size:
            return self.failed()
        self.used, self.kept, self.best = self.used + 1, rate, min(self.best, rate)
        space, plain = self.space, self.plain
        if space is None or plain is None:
            return False
        more = self._cost.of_solve(iterations, space.size) - plain * gained
        self.lost += more + (self._cost.forming(space.size) if space.renew else 0.0)
        if more < 0 or (self.used < RIPE and self.lost <= TRIAL * plain * gained):
            saved = f"{1 - rate / plain:.0%}"
            keep = "no iterations" if saved[0] in "-0" else f"about {saved} of the iterations"
            self.why = f"{space.size} recycled vectors keep {keep} away"
            return False
        m, per = space.size, self._cost.share(space.size)
        self._rest()
        self.why = (
            f"{m} recycled vectors were dropped: {rate / plain:.0%} of the iterations were left, each {1 + per:.2f} "
            "times as long"
        )
        return True


class SpaceOverShifts:
    """The recycled space of (A + s_j I) x_j = b by gmres, one shift after the other, each group with its own factors.

    The first solve finds the vectors. Within a group the shifts move away from that of the factors, so that plain
    solves take more and more iterations: a solve with the vectors that takes less than the last plain one has gained.
    After another the next solve is plain; if that has taken no longer, the vectors are dropped, and else they go on. It
    is ended once it has taken twice as long as the last one with the vectors, which then take it further.

    space : None where it does not pay.
    asked : True keeps it whatever it costs; None by the model.
    limit : the most iterations of the present solve, if it is one of those that are ended; else `sys.maxsize`.
    why : the last decision, in words; "" if there was none.
    """

    def __init__(self, F: Any, A: CSR, restart: int, asked: bool | None):
        self.asked, self.restart, self.why = asked, restart, ""
        self.space: RecycledSpace | None = None
        self._at: complex | None = None  # the shift whose A W the space has
        self._plain = self._kept = math.nan  # the last iterations for each unit of the logarithm of the residual
        self._best, self._used, self._size = math.inf, 0, 0
        self.limit = sys.maxsize
        self.group(F, A)
        m = MOST if asked else self._cost.vectors()
        if asked or self._pays(restart, (1 - EACH * m) * restart, m):
            self.space = RecycledSpace(m)

    def group(self, F: Any, A: CSR) -> None:
        """Take factors F of A: their vectors are others, so that the space is formed anew again."""
        self._cost, self._used, self._best = Cost.of(F, A, cycles=True), 0, math.inf

    def space_for(self, shift: complex) -> RecycledSpace | None:
        """The space for a solve with A + shift I, whose A W it then has, or None for a plain one."""
        self._size, self.why = 0, ""
        if self.space is None or self._doubts:
            return None
        if self._at is not None:
            self.space.shift(shift - self._at)
        self._at, self._size = shift, self.space.size
        self.space.renew = not self._size or self._used < RIPE or self._kept > GROWN * self._best
        return self.space

    @property
    def _doubts(self) -> bool:
        """Whether the next solve is a plain one that tells whether the vectors go on."""
        return self.limit < sys.maxsize

    def seen(self, iterations: int, gained: float, *, converged: bool = True) -> None:
        """Record a solve that took the logarithm `gained` off the residual, and whether it reached its tolerance."""
        if self.space is not None and self._doubts and not converged and iterations >= self.limit:
            self._plain, self.limit = DOUBTED * self._kept, sys.maxsize  # at least
            self.why = f"a solve without the recycled vectors was ended after {iterations} iterations, and they went on"
            return
        if self.space is None or not 0 < gained < math.inf or not iterations:
            return
        if self._size and not self.space.size:
            self.why, self._used, self._best = FORGOTTEN, 0, math.inf
            if not self.asked:
                self.space = None
        elif self._size:
            self._used, self._kept = self._used + 1, iterations / gained
            self._best = min(self._best, self._kept)
            if self.asked:
                self.why = f"{self._size} recycled vectors were kept out of the iterations, as was asked"
                return
            per = f"{self._kept / self._plain:.0%}"
            self.why = (
                f"with {self._size} recycled vectors a digit took {per} of the iterations of the last plain solve"
            )
            if not self._pays(self._plain * gained, iterations, self._size):
                taken = self._cost.of_cycles(iterations, self.restart, self._size)
                column = self._cost.of_cycles(self.restart, self.restart) / self.restart
                self.limit = math.ceil(DOUBTED * max(taken / column, iterations))
        elif self._doubts:
            self._plain, self.limit = iterations / gained, sys.maxsize
            if not self._pays(iterations, self._kept * gained, self.space.size):
                left = self._kept / self._plain
                self.why = f"{self.space.size} recycled vectors were dropped: {left:.0%} of the iterations were left"
                self.space = None
        else:
            self._plain, m = iterations / gained, self.space.size
            if not (self.asked or self._pays(iterations, (1 - EACH * m) * iterations, m)):
                self.space = None  # its vectors would take longer than they save

    def _pays(self, plain: float, kept: float, m: int) -> bool:
        """Whether `kept` iterations with m vectors take less time than `plain` ones without."""
        return self._cost.of_cycles(kept, self.restart, m) < self._cost.of_cycles(plain, self.restart)


def basis_is_cheap(F: Any, A: CSR, restart: int) -> bool:
    """Whether a cycle of gmres takes most of its time for products with A and with factors F."""
    return Cost.of(F, A, cycles=True).of_cycles(restart, restart) < (1 + BASIS) * restart


@dataclass(frozen=True)
class Cost:
    """The cost of a recycled space, in plain iterations.

    vector : part of an iteration that one vector adds to each.  image, solve : of forming A w, and M A w, for a vector.
    square : of a product of (n, m) with (m, m), for each of the m^2.  launches : of those of the kernels on a GPU.
    cycles : whether the vectors are formed anew after each cycle, not once for a solve.
    """

    vector: float = 0.0
    image: float = 0.0
    solve: float = 0.0
    square: float = 0.0
    launches: float = 0.0
    cycles: bool = False

    @classmethod
    def of(cls, F: Any, A: CSR, *, cycles: bool) -> Cost:
        """For factors F, or None, of A."""
        gpu, entries = on_gpu(A.data), A.nnz if F is None else max(float(getattr(F, "nnz", A.nnz)), A.nnz)
        rates: Any = current_on_gpu() if gpu else RATES
        iteration = rates.overhead + rates.cg * (A.nnz + entries) / 2
        entry, flop, launches = (ENTRY_ON_GPU, FLOP_ON_GPU, LAUNCHES) if gpu else (ENTRY, FLOP, 0.0)
        product = rates.cg / 2 / iteration
        return cls(
            2 * A.n * entry / iteration,
            TOGETHER * product * A.nnz,
            product * entries,
            2 * A.n * flop / iteration,
            launches / iteration,
            cycles,
        )

    def share(self, m: int) -> float:
        """What m vectors add to an iteration: two products with them; five of dense arrays after each cycle."""
        anew = 5 * m * (1 + m / CYCLE) * self.square if self.cycles else 0.0
        return m * self.vector + self.launches + anew

    def vectors(self) -> int:
        return int(min(max(SHARE / self.vector, FEWEST), MOST)) if self.vector > 0 else MOST

    def pays(self, plain: float, kept: float, m: int) -> bool:
        """Whether `kept` iterations with m vectors take less time than `plain` ones without."""
        return self.of_solve(kept, m) < plain

    def of_solve(self, kept: float, m: int) -> float:
        """The plain iterations that take as long as `kept` ones with m vectors, and as what these take once."""
        once = (m + 1 / TOGETHER) * self.image + 3 * m * m * self.square  # A W and A v; three products of W
        return kept * (1 + self.share(m)) + once

    def of_cycles(self, iterations: float, restart: int, m: int = 0) -> float:
        """The time of iterations of gmres, whose basis counts, too, with m vectors whose images need no products, and
        which are not formed anew."""
        rest = iterations % restart
        columns = ((iterations - rest) * restart + rest * rest) / 2  # of the basis, of all iterations together
        share = m * self.vector + (self.launches if m else 0.0)
        return iterations * (1 + share) + self.vector * columns + 5 * m * m * self.square

    def of_trial(self, plain: float, m: int) -> float:
        """What a try loses that saves nothing: vectors are formed twice, and a solve has them."""
        return 2 * self.forming(m) + self.of_solve(plain, m) - plain

    def forming(self, m: int) -> float:
        """The cost of m vectors that are formed at the end of a solve: products with M, and of arrays."""
        return 0.0 if self.cycles else m * self.solve + (1 + DIRECTIONS) * m * m * self.square
