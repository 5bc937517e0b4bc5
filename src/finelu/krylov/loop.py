"""The parts that all Krylov methods share: stopping rule, history, best iterate, the true residual at the end.

Decisions are made on the device of the vectors: the kernels write `state`, `norms` and `history`
(finelu.kernels.monitor) and stop changing x by themselves once the solve is over. The host looks at a copy every few
iterations and so never waits for a step (krylov/ahead.py). The returned x, iterations and history do not depend on how
often the host looks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from finelu.device import copied, to_host
from finelu.kernels import monitor
from finelu.krylov.ahead import LOOK_EVERY, Ahead
from finelu.krylov.residual import Residual, terms_are_even
from finelu.krylov.scaled import scaled
from finelu.krylov.system import System
from finelu.krylov.workspace import Workspace
from finelu.result import Solution, Status
from finelu.validation import count, number, require_functions

if TYPE_CHECKING:
    from finelu.krylov.method import Method

ROOM = 1024  # iterations that the history has room for at first
GROWN = 1e8  # the most by which the residual of a stationary iteration may grow, as a factor of the first
ORDINARY = 1e-10, 1e10  # norms of b of which every precision holds the squares of residuals

Callback = Callable[[Any], object] | None
Watch = Callable[[int, float], object] | None

STATUS = {
    monitor.CONVERGED: Status.CONVERGED,
    monitor.STAGNATED: Status.STAGNATED,
    monitor.BREAKDOWN: Status.BREAKDOWN,
    monitor.INDEFINITE: Status.INDEFINITE,
    monitor.INDEFINITE_PRECONDITIONER: Status.INDEFINITE_PRECONDITIONER,
    monitor.NOT_FINITE: Status.NOT_FINITE,
    monitor.DIVERGED: Status.DIVERGED,
}


class Loop(Workspace):
    """One solve in progress: `while loop.cycle(r)` around `while loop.goes_on()`, then `loop.end()`.

    A cycle begins with the true residual, r = b - A x. It is over when the recurrence has converged, or when the method
    restarts. Another cycle follows if the true residual has not converged, unless a claimed convergence did not even
    halve it (Status.STAGNATED). The test is ||b - A x||_2 <= max(rtol ||b||_2, atol).

    Attributes after construction:
    A, M : operators.  b (n,) : the right-hand side.  x (n,) : the iterate.
    xp, kernels : numpy or cupy, and the kernels, for the device of b.
    state, norms, history : as in finelu.kernels.monitor.
    verified (n,) : the iterate with the smallest true residual at the start of a cycle, x0 at first.

    The system's b and x0 are never written or returned. If the norm of b is extreme, A, M, b and x0 are those of
    `scaled`, and norms and history are relative to its `scale`; callers and callbacks see them multiplied by it.

    `Residual` tests a claim of convergence. If rounding alone may have made the residual small, the residual is formed
    in twice the precision; another cycle begins with it, or the claim is dropped (STAGNATED). A `watch` whose
    `looks_at_claims` is true makes this test itself, for the system to which this one computes a correction.

    method : the class, whose `name` and `stationary` are read. A stationary method forms r = b - A x itself in each
        iteration. So a cycle need not form it again, a norm below the tolerance claims convergence, and the x with the
        smallest norm is the best iterate. Its iterations are few and expensive: on a GPU no more than one is queued
        before the host looks at the previous one.
    """

    def __init__(
        self,
        method: type[Method],
        system: System,
        *,
        rtol: float,
        atol: float,
        maxiter: int | None,
        callback: Callback,
        watch: Watch,
    ):
        self.method, self.system, self.comm = method, system, system.comm
        rtol, atol = number("rtol", rtol, infinite=True), number("atol", atol, infinite=True)
        self.rtol, self.atol = rtol, atol = min(rtol, sys.float_info.max), atol  # Inf times a norm of 0 would be NaN
        self.maxiter = 10 * system.unknowns if maxiter is None else count("maxiter", maxiter, 0)
        require_functions(callback=callback, watch=watch)
        self.callback, self.watch = callback, watch
        self.xp, self.decides, self.kernels = system.xp, system.decides, system.kernels
        self.dtype, self.real = system.dtype, system.real

        self.A, self.M, self.b, self.start, self.scale = system.A, system.M, system.b, system.x0, 1.0
        norm_b = self.size(self.b)
        if not ORDINARY[0] <= norm_b <= ORDINARY[1]:
            self.A, self.M, self.b, self.start, self.scale, norm_b = scaled(system, self, norm_b)
        self.x, self.verified = self.vectors(2)
        if self.start is not None:
            self.copyto(self.x, self.start)
            self.copyto(self.verified, self.start)
        self.best: Any = None  # until keeps_best()
        self.residual = Residual(self.A, self.b, system)
        self.spares = self.A.lengthening is not None  # products with A, at the cost of a little else
        self.believed = math.inf  # the true norm of the last claim that `Residual` tested
        self.doubted = math.inf  # the true norm of the last claim that it rejected

        limits = np.finfo(self.real)
        tolerance = min(max(rtol * norm_b, atol / self.scale), float(limits.max))
        claim = tolerance if method.stationary else max(tolerance, float(limits.eps) * norm_b / 16)
        growth = GROWN if method.stationary else np.inf
        norms = np.array([0.0, tolerance, claim, np.inf, np.inf, 0.0, growth], self.real)
        monitored = self.decides.asarray(np.concatenate([np.zeros(4, np.int32).view(np.uint8), norms.view(np.uint8)]))
        self.state, self.norms = monitored[:16].view(np.int32), monitored[16:].view(self.real)  # for a look at both
        self.norm = self.norms[monitor.NORM : monitor.NORM + 1]  # where `record` and `begin_cycle` expect the norm of r
        room = min(self.maxiter + 1, ROOM)
        self.history = self.decides.zeros(room, self.real)
        self.checks = self.decides.asarray(np.full(room, np.nan, self.real))  # true norms, where they were formed
        if norm_b == 0:
            self.x[:] = 0
            self.state[monitor.CODE] = monitor.CONVERGED

        longest = LOOK_EVERY[self.xp.__name__]
        self.ahead: Ahead | None = None  # None if the host sees each iteration at once, without waiting
        if longest > 1 and self.comm is None:
            snapshots = [self.kernels.cycle.Snapshot(self.state, self.norms) for _ in range(2)]
            self.ahead = Ahead(snapshots, 1 if method.stationary else longest)
        self.launched = 0  # iterations queued; includes those after the last valid one until the host learns of it
        self.recorded: Any = None  # the step of the iteration, if `repeated` records it
        self.cycles = 0
        self.reported = -1  # the last iteration that `watch` was called with
        self.shown = 0  # the iteration whose x `callback` saw last
        self.stopped: Status | None = None  # set by the host: interrupted, not symmetric
        # the host's latest copy of the device's state
        self.code: int = monitor.RUNNING
        self.iterations, self.improved, self.seen_norm, self.tolerance = 0, False, math.inf, tolerance
        self.earlier: list[tuple[Any, float]] = []  # the best x and its true norm, each time that the solve resumed
        self.minimizes = False  # whether `doubts_restarts` was called
        self.is_believed = False  # after the end: whether the returned x is the last iterate, and has converged

    # the steps of a method without kernels of its own: nothing waits for the host. Once the cycle is over, which
    # perhaps only the device knows, x and the recorded norms stay as they are

    def advance(self, z: Any) -> None:
        """x += z. The old x is kept first if it is the best so far by the recorded norms."""
        best = self.keeps_best() if self.best is None else self.best
        self.kernels.recurrences.advance(self.state, z, self.x, best)

    def record(self, r: Any) -> None:
        """End an iteration whose residual, by the recurrence, is r.

        The cycle is over if ||r|| meets the tolerance, or if ||r|| has grown so much that its rounding is as large as
        the smallest recorded norm.
        """
        self.kernels.vectors.norm(r, self.norm)
        self.kernels.recurrences.record(self.state, self.norms, self.history, self.norm)

    def restart(self, where: Any) -> None:
        """End the cycle if `where`, an array of one element, is True. The next cycle begins with the true residual; the
        solve ends with Status.BREAKDOWN if that was not halved in between."""
        code = self.state[monitor.CODE : monitor.CODE + 1]
        code[:] = self.xp.where(where & (code == monitor.RUNNING), monitor.BROKEN, code)

    def keeps_best(self) -> Any:
        """Memory for the best iterate by the recurrence, for a method that writes it; `end` tries that iterate, too."""
        (self.best,) = self.vectors(1)
        if self.start is not None or self.cycles:  # else x is 0, too
            self.copyto(self.best, self.x)
        return self.best

    # the course of a solve

    def repeated(self, step: Callable[[], None]) -> Callable[[], None]:
        """The function to call instead of step() in each iteration: on a GPU a single launch, if A and M allow that.

        step must queue the same kernels on the same arrays each time (only `history` may be replaced); values that
        change from one iteration to the next must lie on the device. Once step is recorded, all vectors that it makes,
        also in the products with A and M, are kept until `end`, each in memory of its own.
        """
        if not (self.A.capturable and self.M.capturable):
            return step
        self.recorded = self.kernels.recording.Repeated(step)
        recorded: Callable[[], None] = self.recorded
        return recorded

    def forget(self) -> None:
        """Drop the recorded step, which has changed, so that it is recorded anew."""
        if self.recorded is not None:
            self.recorded.forget()

    def cycle(self, r: Any) -> bool:
        """Whether another cycle is due; if so, r is b - A x, and its norm has been tested."""
        if self.cycles:
            if self.launched >= self.maxiter:
                self._look(wait=True)
            if self.stopped:
                return False
            if self.code > monitor.BROKEN:
                return self._doubts(r)
            if self.code == monitor.RUNNING and self.launched >= self.maxiter:
                return False
        else:
            self._look(wait=True)
            if self.code == monitor.CONVERGED:  # b = 0
                self.believed = 0.0
                return False
        if not self.cycles and self.start is None:
            self.copyto(r, self.b)
        elif not self.cycles or not self.method.stationary:
            self.kernels.vectors.difference(self.b, self.A @ self.x, r)
        follows = bool(self.cycles) and self.minimizes
        norm = self.real_scalar() if follows else self.norm
        self.kernels.vectors.norm(r, norm)
        if self.cycles:  # an Inf in x may belong to an empty column of A: then r is finite, but proves nothing
            self.kernels.cycle.unless_finite(self.x, norm)
        if follows:
            self.kernels.cycle.claim_unless_it_follows(self.state, self.norms, norm)
        if self.best is not None and self.code != monitor.RUNNING:
            self._turn_back(r)
        return self._begins(r)

    def doubts_restarts(self) -> None:
        """For a method whose recurrence has the norm of b - A x itself, and never lets it grow: each cycle's end is
        tested as a claim of convergence is."""
        self.minimizes = True

    def _begins(self, r: Any) -> bool:
        """Whether a cycle begins with r, whose norm is in `norms`."""
        self.kernels.cycle.begin_cycle(self.state, self.norms, self.history, self.checks)
        self.kernels.cycle.keep_verified(self.state, self.x, self.verified)
        wait = self.cycles == 0 or self.code != monitor.RUNNING  # the usual case, a restart of gmres, does not wait
        self.cycles += 1
        self.code = monitor.RUNNING
        if wait:
            self._look(wait=True)
        if self.code > monitor.BROKEN:
            return self._doubts(r)
        return self.code == monitor.RUNNING and self.maxiter > 0

    def moved(self, r: Any) -> bool:
        """After a change of x as a cycle begins: whether the cycle goes on from that x; if so, r is b - A x anew, and
        its norm has been tested. This waits for the device."""
        self.kernels.vectors.difference(self.b, self.A @ self.x, r)
        self.kernels.vectors.norm(r, self.norm)
        self.kernels.cycle.unless_finite(self.x, self.norm)
        self.code = monitor.CLAIMED  # so that the host waits for the result
        return self._begins(r)

    def resumed(self, r: Any) -> bool:
        """After the last cycle: whether there is another one, for a method that goes on in another way: the solve has
        failed, and iterations are left. Then r = b - A x, whose norm has been tested, and x is the best iterate known;
        or x0, if the rounding of the best one's residual is above the tolerance, which no change of it would meet."""
        self._look(wait=True)
        over = self.code == monitor.CONVERGED and self.believed <= self.tolerance
        if self.stopped or over or self.code <= monitor.BROKEN or self.launched >= self.maxiter:
            return False
        self._begin_anew()
        self.state[monitor.CODE] = monitor.RUNNING
        return self.moved(r)

    def left_off(self) -> bool:
        """Within a cycle: whether the method leaves it, to go on in another way from the x that `resumed` takes; not if
        the cycle is over, which perhaps only the device knows until now."""
        self._look(wait=True)
        if self.stopped or self.code != monitor.RUNNING:
            return False
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        """x = the best iterate known, or x0, as `resumed` says. The best is kept for the end, with its true norm."""
        best, size = self._best()
        self.earlier.append((copied(best), size))
        if self.is_lost_in_rounding(best):
            self.return_to_start()
        else:
            self.copyto(self.x, best)
        self.doubted = math.inf
        self.norms[monitor.START : monitor.BEST + 1] = math.inf

    def led_further(self, solution: Solution) -> bool:
        """Whether the other way to go on has led to `solution`, whose residual is less than half of that before."""
        return solution.converged or not 2 * solution.residual_norm >= self.earlier[-1][1] * self.scale

    def is_lost_in_rounding(self, x: Any) -> bool:
        """Whether a rounding of the terms of b - A x is above the tolerance; False where no entries of A are known."""
        terms = self.residual.magnitudes(self.b, x)
        eps = float(np.finfo(self.real).eps)
        return terms is not None and eps * self.size(terms.astype(self.dtype)) > self.tolerance

    def return_to_start(self) -> None:
        """x = x0."""
        if self.start is None:
            self.x[:] = 0
        else:
            self.copyto(self.x, self.start)

    def _doubts(self, r: Any) -> bool:
        """At the end: whether a claim of convergence was due to rounding, and another cycle follows, from the residual
        r formed in twice the precision. Such cycles go on while they halve the residual."""
        if self.code != monitor.CONVERGED or self.stopped:
            return False
        if getattr(self.watch, "looks_at_claims", False):
            self.believed = self.seen_norm
            return False
        true, self.believed = self.residual(self.b, self.x, self.tolerance, formed=r if self.spares else None)
        if self.believed <= self.tolerance or not self.believed <= self.doubted / 2 or self.launched >= self.maxiter:
            return False
        self.doubted = self.believed
        r[:] = true
        self.norm[:] = self.believed
        self.norms[monitor.START : monitor.BEST + 1] = math.inf
        self.state[monitor.CODE] = monitor.RUNNING
        self.code = monitor.CLAIMED  # so that the host waits for the result
        return self._begins(r)

    def _turn_back(self, r: Any) -> None:
        """After a breakdown or a false claim: x = best, the best iterate by the recurrence, if its true residual is
        smaller."""
        reached = float(self.norm[0])
        if reached <= self.tolerance:
            return
        if self.kernels.vectors.first_not_finite(self.best) >= 0:
            return
        other = self.b - self.A @ self.best
        size = self.size(other)
        if size < (reached if math.isfinite(reached) else math.inf):
            self.x[:] = self.best
            r[:] = other
            self.norm[:] = size

    def goes_on(self) -> bool:
        """Whether one more iteration is due in this cycle, as far as the host knows without waiting."""
        if self.stopped or self.code != monitor.RUNNING:
            return False
        if self.launched >= self.maxiter:
            self._look(wait=True)  # frozen iterations do not count: the device knows how many there were
        elif self.ahead is None or self.launched >= self.ahead.due:
            self._look(wait=False)
        if self.stopped or self.code != monitor.RUNNING or self.launched >= self.maxiter:
            return False
        self.launched += 1
        if self.launched >= self.history.size:
            room = min(2 * self.history.size, self.maxiter + 1)
            self.checks, self.history = self.longer(self.checks, room), self.longer(self.history, room)
            self.forget()
        return True

    def singly(self, *arrays: Any) -> list[tuple[Any, ...]]:
        """Itself with these arrays: for `Columns`, each column's loop with its own."""
        return [(self, *arrays)]

    def without(self, some: list[Any]) -> bool:
        """Whether the cycle has anything left to iterate on without these loops."""
        return not some

    def rejoin(self) -> None:
        """For `Columns`: all columns of the cycle take part in what ends it."""

    def tell(self) -> None:
        """Call the caller's callback with x, if x is new: x itself, not a copy. This waits for the device."""
        if self.callback is None or self.stopped:
            return
        self._look(wait=True)
        if self.iterations > self.shown and not self.stopped:
            self.shown = self.iterations
            self._ask(self.callback, self.x)

    def fail(self, status: Status) -> None:
        """End the solve with `status`, by a decision of the host, unless it was stopped before."""
        self.stopped = self.stopped or status

    def is_even(self) -> bool:
        """After the end: whether x converged, and the terms of its rows are known to differ so little that one norm
        suffices. False if the system was scaled, since the terms of small rows may then have underflowed."""
        return self.is_believed and self.scale == 1 and terms_are_even(self.residual.bound, self.residual.noise)

    def end(self) -> Solution:
        """The solution: x if it converged, else the best iterate known, with the true residual norm of just that x."""
        self.recorded = None  # breaks a cycle of references, so that memory is freed without the garbage collector
        if self.code <= monitor.BROKEN:  # else the host's copy is final
            self._look(wait=True)
        status = self.stopped or STATUS.get(self.code, Status.MAX_ITERATIONS)
        if status is Status.INDEFINITE_PRECONDITIONER and self.M.recipe == "":
            status = Status.BREAKDOWN  # r^H r = 0 without a preconditioner: underflow
        x, residual_norm = self.x, self.believed
        self.is_believed = self.code == monitor.CONVERGED and residual_norm <= self.tolerance
        if not self.is_believed:
            x, residual_norm = min(
                [self._best(), *self.earlier], key=lambda found: math.inf if math.isnan(found[1]) else found[1]
            )
        if residual_norm <= self.tolerance:
            status = Status.CONVERGED
        elif status is Status.CONVERGED:
            status = Status.STAGNATED
        whose_norm = math.nan if self.method.stationary and x is not self.x else residual_norm
        history, recurrence = self._histories(whose_norm)
        return Solution(
            x=x,
            status=status,
            iterations=self.iterations,
            residual_norm=residual_norm * self.scale,
            history=history,
            recurrence=recurrence,
            method=self.method.name,
            recipe=self.M.recipe,
            timings={"solve": perf_counter() - self.system.started},
            tolerance=self.tolerance * self.scale,
        )

    def _histories(self, last: float) -> tuple[Any, Any]:
        """(history, recurrence) on the host.

        history : the true norms where they were formed, those of the recurrence elsewhere; `last` at the end if finite.
        recurrence : the norms of the recurrence.
        """
        history, checks = (to_host(v[: self.iterations + 1]) for v in (self.history, self.checks))
        true = np.where(np.isnan(checks), history, checks)
        true[-1] = last if math.isfinite(last) else true[-1]
        with np.errstate(over="ignore", under="ignore"):
            scale, most = self.real.type(self.scale), np.finfo(self.real).max  # a norm beyond that may be recorded
            return np.minimum(true * scale, most), np.minimum(history * scale, most)

    def _best(self) -> tuple[Any, float]:
        """(x, its true residual norm) for the candidate with the smallest such norm.

        The candidates are the last iterate, the best by the recurrence, the verified one and, if a claim was rejected,
        the first. If the norm is NaN for all, x is the best by the recurrence.
        """
        iterates = [self.x] if self.best is None else [self.x, self.best] if self.improved else [self.best, self.x]
        doubted = self.doubted < math.inf
        few = self.spares or self.stopped is Status.INTERRUPTED  # who stops does not wait for products
        if few and not doubted and (found := self._best_of_few(iterates)):
            return found
        iterates = iterates[:1] if self.method.stationary and not doubted else [*iterates, self.verified]
        candidates = [x for x in iterates if self.kernels.vectors.first_not_finite(x) < 0] or [self.verified]
        if doubted:  # perhaps the verified one has a small residual by rounding only
            candidates.append(self.xp.zeros_like(self.x) if self.start is None else copied(self.start))
        norms = [self.residual(self.b, x, self.tolerance)[1] for x in candidates]
        # of equal ones the last, the verified: the others may have grown along null vectors
        k = min(range(len(norms)), key=lambda k: (math.inf, k) if math.isnan(norms[k]) else (norms[k], -k))
        return candidates[k], norms[k]

    def _best_of_few(self, iterates: list[Any]) -> tuple[Any, float] | None:
        """`_best` by one product with A, unless the recurrence has drifted; None if that gives NaN or Inf.

        iterates : the last iterate and the best by the recurrence, the better one first.
        """
        found = self.verified, float(self.norms[monitor.START])
        for x in iterates:
            if self.kernels.vectors.first_not_finite(x) >= 0:
                continue
            size = self.residual(self.b, x, self.tolerance)[1]
            if not math.isfinite(size):
                return None
            if size < found[1]:
                found = x, size
            if size <= monitor.DRIFTED * float(self.norms[monitor.BEST]):
                break
        return found

    def _look(self, wait: bool) -> None:
        """Read the device's progress: the present one with `wait`, else that at the previous look, without waiting."""
        cycle, state, norms = self.cycles, self.state, self.norms
        if self.ahead is not None:
            seen = self.ahead.look(cycle, self.launched, wait)
            if seen is None:
                return
            cycle, state, norms = seen
        code = int(state[monitor.CODE])
        if code > monitor.BROKEN or cycle == self.cycles:  # the end of an earlier cycle says nothing of this one
            self.code = code
        self.iterations, self.improved = int(state[monitor.ITERATIONS]), bool(state[monitor.IMPROVED])
        self.seen_norm, self.tolerance = float(norms[monitor.NORM]), float(norms[monitor.TOLERANCE])
        if wait or self.ahead is None:
            self.launched = self.iterations
        if self.watch is not None and self.cycles and self.reported < self.iterations and not self.stopped:
            self.reported = self.iterations
            self._ask(self.watch, self.iterations, self.seen_norm * self.scale)

    def _ask(self, function: Callable[..., object], *arguments: Any) -> None:
        updates = self.recorded and updates_of(self.M)
        try:
            stop = function(*arguments) is True
        except StopIteration:
            stop = True
        if self.comm is not None:
            stop = any(self.comm.allgather(stop))
        if stop:
            self.stopped = Status.INTERRUPTED
        if self.recorded is not None and updates_of(self.M) != updates:
            self.forget()  # an update of the factors may have replaced their arrays


def updates_of(M: Any) -> int:
    """How often the factors of M have been updated."""
    return getattr(getattr(M, "given", None), "updates", 0)
