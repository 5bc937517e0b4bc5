"""What all Krylov methods share: stopping rule, history, best iterate, the true residual at the end.

The decisions fall where the vectors are: the kernels write `state`, `norms` and `history` (finelu.kernels.monitor) and
stop changing x by themselves once the solve is over. The host looks at a copy every few iterations and so never waits
for a step; the x, the iterations and the history it returns do not depend on how often it looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from finelu.device import copied, to_host
from finelu.errors import MatrixError
from finelu.kernels import monitor
from finelu.krylov.residual import Measures, Residual, terms_are_even
from finelu.krylov.system import System
from finelu.result import Solution, Status
from finelu.validation import count, number

if TYPE_CHECKING:
    from finelu.krylov.method import Method

# The most iterations between two looks of the host. On the GPU a look reads the copy that was queued at the look
# before, and up to twice as many iterations are queued after the last that counts. Where the host has to wait for that
# copy, the device is behind, looks cost nothing, and the next comes twice as early; where it finds it there, twice as
# late, but so that no more than one of AHEAD iterations is queued for nothing, and one or two in any case: those take
# the device as long as any other.
LOOK_EVERY = {"numpy": 1, "cupy": 8}
AHEAD = 4

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


class Progress(Measures):
    """One solve on its way: `while progress.cycle(r)` around `while progress.goes_on()`, then `progress.end()`.

    A cycle begins with the true residual, r = b - A x. It is over when the recurrence has converged, or when the method
    restarts; another follows if the true residual has not converged, unless a claimed convergence did not even halve it
    (Status.STAGNATED). The test is ||b - A x||_2 <= max(rtol ||b||_2, atol).

    After construction: A, M operators; x (n,) the iterate; verified (n,) the iterate of the smallest true residual at
    the begin of a cycle, x0 at first; kernels the building blocks; state, norms, history as in finelu.kernels.monitor.
    The system's b and x0 are never written or returned.

    Where the norm of b is so extreme that products of residuals would over- or underflow, (A / s) x = b / s is solved
    with s M, s a power of two about as large as b: the same x by the same steps. norms and history are then relative to
    s; callers and callbacks see them multiplied by it. The range is that of M where M has less precision than x. An x0
    whose residual is so much larger than b that b / s would lose digits next to it is left out for x = 0.

    A claim of convergence is looked at by `Residual`: where rounding alone may have made the residual small, it is
    formed in twice the precision, and another cycle begins with it, or the claim is dropped (STAGNATED). A `watch`
    whose `looks_at_claims` is true does so by itself, for the system that this one is a correction of.

    method : of which `name` and `stationary` are read. A stationary one forms r = b - A x itself in each iteration, so
        that a cycle need not do so again, a norm below the tolerance claims convergence, and the x of the smallest norm
        is the best there is. Its iterations are few and expensive: on a GPU no more than one is queued before the host
        looks at the one before.
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
        self.started = system.started
        self.method = method
        self.stationary = stationary = method.stationary
        self.rtol, self.atol = rtol, atol = number("rtol", rtol), number("atol", atol)
        self.xp, self.decides, self.kernels = system.xp, system.decides, system.kernels
        self.dtype, self.real, self.shape = system.dtype, system.real, system.shape
        self.A, self.M, self.b = system.A, system.M, system.b
        self.recipe = system.M.recipe
        n = self.b.size
        self.comm = system.comm
        self.maxiter = 10 * system.unknowns if maxiter is None else count("maxiter", maxiter, 0)
        self.callback, self.watch = callback, watch
        self.range = np.finfo(min(self.real, system.narrow, key=lambda real: real.itemsize))
        self.best: Any = None  # until keeps_best()

        x0 = system.x0
        norm_b = self.size(self.b)
        if not math.isfinite(norm_b):
            raise MatrixError(f"the norm of b overflows in {self.real}; scale the system down.")
        self.scale = self.power(norm_b)
        if x0 is not None and self.scale != 1:
            self.scale = self.power(max(norm_b, self.size(self.b - self.A @ x0.copy())))  # max drops NaN so
            if norm_b / self.scale < math.sqrt(float(self.range.tiny)) / float(self.range.eps):
                x0, self.scale = None, self.power(norm_b)
        self.start = x0  # never written
        self.x = self.xp.zeros(n, self.dtype) if x0 is None else copied(x0)
        self.verified = copied(self.x)
        if self.scale != 1:
            self.b = self.b / self.scale
            self.A = self.A.scaled(1 / self.scale, levels=False)
            self.M = self.M.scaled(self.scale, levels=system.narrow.itemsize < self.real.itemsize, comm=self.comm)
            norm_b /= self.scale
        self.residual = Residual(self.A.matrix, self.A.__matmul__, self.dtype, self.A.factor, system)
        finfo = np.finfo(self.real)
        tolerance = min(max(rtol * norm_b, atol / self.scale), float(finfo.max))
        claim = tolerance if stationary else max(tolerance, float(finfo.eps) * norm_b / 16)
        norms = np.array([0.0, tolerance, claim, np.inf, np.inf], self.real)
        monitored = self.decides.asarray(np.concatenate([np.zeros(4, np.int32).view(np.uint8), norms.view(np.uint8)]))
        self.state, self.norms = monitored[:16].view(np.int32), monitored[16:].view(self.real)  # for a look at both
        self.norm = self.norms[monitor.NORM : monitor.NORM + 1]  # where `record` and `begin_cycle` expect the norm of r
        self.history = self.decides.zeros(min(self.maxiter + 1, 1024), self.real)
        self.checks = self._unknown(self.history.size)  # true norms, where they were formed
        self.believed = math.inf  # the true norm of the last claim that `Residual` was asked about
        self.doubted = math.inf  # the same, of one that it did not share
        self.before_correction = math.inf  # the true norm before the last step of `corrected`
        if norm_b == 0:
            self.x[:] = 0
            self.state[monitor.CODE] = monitor.CONVERGED

        longest = LOOK_EVERY[self.xp.__name__]
        self.waits = longest == 1 or self.comm is not None  # for each iteration: there is nothing to wait for
        self.longest = 1 if stationary else longest
        self.every = 1  # iterations until the next look, from 1 to longest
        self.due = 0  # launched, at the next look
        self.snapshots = [self.kernels.cycle.Snapshot(self.state, self.norms) for _ in range(2)]
        self.posted: list[int] = []  # the cycle in which each snapshot that waits was posted, oldest first
        self.looks = 0
        self.cycles = 0
        self.launched = 0  # iterations queued, those after the last that counts included until the host knows
        self.reported = -1  # the last iteration that `watch` was called with
        self.shown = 0  # the iteration whose x `callback` saw last
        self.recorded: Any = None  # the step of the iteration, where `repeated` records it
        self.stopped: Status | None = None  # set by the host: interrupted, not symmetric
        self.code: int = monitor.RUNNING  # as far as the host has seen

    # vectors and scalars on the device of b

    def vectors(self, k: int) -> list[Any]:
        return [self.xp.zeros(self.b.size, self.dtype) for _ in range(k)]

    def scalars(self, k: int) -> list[Any]:
        return [self.xp.zeros(1, self.dtype) for _ in range(k)]

    def real_scalar(self) -> Any:
        return self.decides.zeros(1, self.real)

    def symmetric(self, op: Any, u: Any, y: Any, dot: Callable[..., None]) -> bool:
        """Whether `asymmetry` is zero to a third of the digits; where it is NaN, the iteration will say so."""
        return not self.asymmetry(op, u, y, dot) > float(np.finfo(self.real).eps) ** (1 / 3)

    def asymmetry(self, op: Any, u: Any, y: Any, dot: Callable[..., None]) -> float:
        """|<y, y> - <u, op y>| / ||y||^2 for y = op u: 0 for an op that is symmetric in the sense of `dot`, that is
        Hermitian in that of kernels.dot and op = op^T in that of kernels.dotu; 0, too, where nothing can be said."""
        size = self.size(y)
        if not 0 < size < math.inf:
            return 0.0
        y_scaled = y / size  # no square leaves the range
        left, right = self.scalars(2)
        dot(y, y_scaled, left)
        dot(u, op @ y_scaled, right)
        return abs(complex(left[0]) - complex(right[0])) / size

    def power(self, size: float) -> float:
        """The power of two just below `size`, where squares of such numbers leave the range; 1.0 where they do not."""
        small = math.sqrt(float(self.range.tiny)) / float(self.range.eps)
        if size == 0 or not math.isfinite(size) or small <= size <= 1 / small:
            return 1.0
        return max(math.ldexp(0.5, math.frexp(size)[1]), float(np.finfo(self.real).tiny))

    def keeps_best(self) -> Any:
        """Room for the iterate that the recurrence thinks best, of a method that writes it; `end` looks at it, too."""
        self.best = copied(self.x)
        return self.best

    def norm_while(self, r: Any, work: Callable[[], Any]) -> Any:
        """Form the norm of r. The result of work(), where it is done meanwhile: see `ahead` in krylov/spread.py."""
        if self.comm is None:
            self.kernels.vectors.norm(r, self.norm)
            return None
        return self.kernels.vectors.norm(r, self.norm, work)

    # the course of a solve

    def repeated(self, step: Callable[[], None]) -> Callable[[], None]:
        """What is called in the place of step() in each iteration: on a GPU a single launch, where A and M allow that.

        step queues the same kernels on the same arrays each time (`history` may be another); what changes from one
        iteration to the next lies on the device. Once it is recorded, all vectors that one step makes, in the products
        with A and M too, are kept until `end`, each in memory of its own.
        """
        if not (self.A.capturable and self.M.capturable):
            return step
        self.recorded = self.kernels.recording.Repeated(step)
        recorded: Callable[[], None] = self.recorded
        return recorded

    def forget(self) -> None:
        """The step has changed, and is recorded anew."""
        if self.recorded is not None:
            self.recorded.forget()

    def cycle(self, r: Any) -> bool:
        """Whether another cycle is wanted; if so, r is b - A x and its norm has been judged."""
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
            self.xp.copyto(r, self.b)
        elif not self.cycles or not self.stationary:
            self.kernels.vectors.difference(self.b, self.A @ self.x, r)
        self.kernels.vectors.norm(r, self.norm)
        if self.cycles:  # an Inf in x may meet a column of A that is empty; no norm of r is to be claimed of it
            self.kernels.cycle.unless_finite(self.x, self.norm)
        if self.best is not None and self.code != monitor.RUNNING:
            self._turn_back(r)
        return self._begins(r)

    def _begins(self, r: Any) -> bool:
        """Whether a cycle begins with r, whose norm stands in norms."""
        self.kernels.cycle.begin_cycle(self.state, self.norms, self.history, self.checks)
        self.kernels.cycle.keep_verified(self.state, self.x, self.verified)
        wait = self.cycles == 0 or self.code != monitor.RUNNING  # what is usual costs no wait: a restart of gmres
        self.cycles += 1
        self.code = monitor.RUNNING
        if wait:
            self._look(wait=True)
        if self.code > monitor.BROKEN:
            return self._doubts(r)
        return self.code == monitor.RUNNING and self.maxiter > 0

    def _doubts(self, r: Any) -> bool:
        """At the end: whether a claim of convergence was one of rounding, and another cycle, from the residual r formed
        in twice the precision, may come nearer. It does while such cycles halve the residual."""
        if self.code != monitor.CONVERGED or self.stopped:
            return False
        if getattr(self.watch, "looks_at_claims", False):
            self.believed = self._seen_norm
            return False
        true, self.believed = self.residual(self.b, self.x, self._tolerance)
        if self.believed <= self._tolerance or not self.believed <= self.doubted / 2 or self.launched >= self.maxiter:
            return False
        self.doubted = self.believed
        r[:] = true
        self.norm[:] = self.believed
        self.norms[monitor.START :] = math.inf
        self.state[monitor.CODE] = monitor.RUNNING
        self.code = monitor.CLAIMED  # so that the host waits for what comes of it
        return self._begins(r)

    def corrected(self, rho: Any, r: Any, z: Any) -> bool:
        """Where rho = r^H M r, formed of z = M r, is 0 to rounding, so that a method has nothing to divide by: one step
        x += z, which counts as an iteration. True: it was done, and another cycle is due. It is not done twice unless
        the residual was halved in between."""
        k, size, rounding = self.kernels, self.real_scalar(), float(np.finfo(self.real).eps)
        k.vectors.size_of_dot(r, z, size)
        if not abs(complex(rho[0])) <= rounding * float(size[0]) or self.recipe == "":
            return False
        before = float(self.norm[0])
        if not before <= self.before_correction / 2 or not self.goes_on():
            return False
        self.before_correction = before
        one = self.xp.ones(1, self.dtype)
        best = self.x if self.best is None else self.best
        scalars = one, one, one.copy()
        k.recurrences.cg_step(self.state, self.norms, self.history, *scalars, z, self.A @ z, self.x, best, r)
        self.tell()
        return True

    def _turn_back(self, r: Any) -> None:
        """After a breakdown or a false claim: x = best, the recurrence's, if the true residual of that is smaller."""
        reached = float(self.norm[0])
        if reached <= self._tolerance:
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
        """Whether one more iteration is wanted in this cycle, as far as can be known without waiting."""
        if self.stopped or self.code != monitor.RUNNING:
            return False
        if self.launched >= self.maxiter:
            self._look(wait=True)  # frozen iterations do not count: the device knows how many there were
        elif self.launched >= self.due:
            self._look(wait=self.waits)
            self.due = self.launched + self.every
        if self.stopped or self.code != monitor.RUNNING or self.launched >= self.maxiter:
            return False
        self.launched += 1
        if self.launched >= self.history.size:
            room = min(2 * self.history.size, self.maxiter + 1)
            self.checks = self._longer(self.checks, room)
            self.history = self._longer(self.history, room)
            self.forget()
        return True

    def _longer(self, array: Any, room: int) -> Any:
        longer = self._unknown(room)
        self.decides.copyto(longer[: array.size], array)
        return longer

    def _unknown(self, room: int) -> Any:
        """NaN for each iteration; by a copy from the host, since on a GPU CuPy would compile what fills an array."""
        return self.decides.asarray(np.full(room, np.nan, self.real))

    def tell(self) -> None:
        """Show x to the caller's callback, if it is a new one; it is x itself, not a copy. Waits for the device."""
        if self.callback is None or self.stopped:
            return
        self._look(wait=True)
        if self.iterations > self.shown and not self.stopped:
            self.shown = self.iterations
            self._ask(self.callback, self.x)

    def fail(self, status: Status) -> None:
        """End the solve with `status`, which the host has found."""
        self.stopped = status

    def is_even(self) -> bool:
        """After the end: whether x converged, and the terms of its rows are known to differ so little that one norm
        says it all. Where the system was scaled, those of small rows may have underflowed."""
        return self._believed_x and self.scale == 1 and terms_are_even(self.residual.bound)

    def end(self) -> Solution:
        """The solution: x if it converged, else the best iterate known, with the true residual norm of just that x."""
        self.recorded = None  # which knows the step, which knows this: nothing of it shall wait for the collector
        if self.code <= monitor.BROKEN:  # else what the host has seen is final
            self._look(wait=True)
        status = self.stopped or STATUS.get(self.code, Status.MAX_ITERATIONS)
        if status is Status.INDEFINITE_PRECONDITIONER and self.recipe == "":
            status = Status.BREAKDOWN  # r^H r = 0 without a preconditioner: underflow
        x, residual_norm = self.x, self.believed
        self._believed_x = self.code == monitor.CONVERGED and residual_norm <= self._tolerance
        if not self._believed_x:
            x, residual_norm = self._best()
        if residual_norm <= self._tolerance:
            status = Status.CONVERGED
        elif status is Status.CONVERGED:
            status = Status.STAGNATED
        whose_norm = math.nan if self.stationary and x is not self.x else residual_norm
        history, recurrence = self._histories(whose_norm)
        return Solution(
            x=x.reshape(self.shape),
            status=status,
            iterations=self.iterations,
            residual_norm=residual_norm * self.scale,
            history=history,
            recurrence=recurrence,
            method=self.method.name,
            recipe=self.recipe,
            timings={"solve": perf_counter() - self.started},
        )

    def _histories(self, last: float) -> tuple[Any, Any]:
        """(history, recurrence) on the host: true norms wherever they were formed, `last` at the end where it is
        finite; and the norms of the recurrence."""
        history, checks = (to_host(v[: self.iterations + 1]) for v in (self.history, self.checks))
        true = np.where(np.isnan(checks), history, checks)
        true[-1] = last if math.isfinite(last) else true[-1]
        with np.errstate(over="ignore", under="ignore"):
            return true * self.real.type(self.scale), history * self.real.type(self.scale)

    def _best(self) -> tuple[Any, float]:
        """Of the last iterate, the recurrence's best, the verified and the first: the one with the smallest true
        residual norm. Where that is NaN for all of them, it is the one that the recurrence thinks best."""
        iterates = [self.x] if self.best is None else [self.x, self.best] if self._improved else [self.best, self.x]
        doubted = self.doubted < math.inf
        iterates = iterates[:1] if self.stationary and not doubted else [*iterates, self.verified]
        candidates = [x for x in iterates if self.kernels.vectors.first_not_finite(x) < 0] or [self.verified]
        if doubted:  # the verified one was so by rounding, perhaps
            candidates.append(self.xp.zeros_like(self.x) if self.start is None else copied(self.start))
        norms = [self.residual(self.b, x, self._tolerance)[1] for x in candidates]
        k = min(range(len(norms)), key=lambda k: math.inf if math.isnan(norms[k]) else norms[k])
        return candidates[k], norms[k]

    def _look(self, wait: bool) -> None:
        """Learn how far the device is: with `wait` as of now, else as of the look before, which costs no waiting."""
        self.snapshots[self.looks % 2].post()
        self.posted.append(self.cycles)
        self.looks += 1
        if wait:
            self.posted = self.posted[-1:]
            snapshot = self.snapshots[(self.looks - 1) % 2]
        elif len(self.posted) == 2:
            snapshot = self.snapshots[self.looks % 2]
            later = min(2 * self.every, self.longest, 1 + self.launched // AHEAD)
            self.every = later if snapshot.ready() else max(self.every // 2, 1)
        else:
            return
        cycle = self.posted.pop(0)
        state, norms = snapshot.read()
        code = int(state[monitor.CODE])
        if code > monitor.BROKEN or cycle == self.cycles:  # the end of an earlier cycle says nothing of this one
            self.code = code
        self.iterations, self._improved = int(state[monitor.ITERATIONS]), bool(state[monitor.IMPROVED])
        self._seen_norm, self._tolerance = float(norms[monitor.NORM]), float(norms[monitor.TOLERANCE])
        if wait:
            self.launched = self.due = self.iterations
        if self.watch is not None and self.cycles and self.reported < self.iterations and not self.stopped:
            self.reported = self.iterations
            self._ask(self.watch, self.iterations, self._seen_norm * self.scale)

    def _ask(self, function: Callable[..., object], *arguments: Any) -> None:
        updates = self.recorded and self._updates()
        try:
            stop = function(*arguments) is True
        except StopIteration:
            stop = True
        if self.comm is not None:
            stop = any(self.comm.allgather(stop))
        if stop:
            self.stopped = Status.INTERRUPTED
        if self.recorded is not None and self._updates() != updates:
            self.forget()  # an update of the factors may have replaced their arrays

    def _updates(self) -> int:
        """How often the factors of M have been updated."""
        return getattr(getattr(self.M, "given", None), "updates", 0)
