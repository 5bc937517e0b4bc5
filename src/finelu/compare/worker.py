"""The process that measures: `serve` runs each candidate that it receives, and answers with rows."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from numpy.typing import NDArray

from finelu.auto.solve import solve
from finelu.compare.memory import SUPERLU_INDEX, held_bytes
from finelu.compare.model import PERMC, REFERENCES, SOLVED, TIME_LIMIT, TOO_SLOW, Candidate, Measurement, Pictures
from finelu.compiling import compile_clock, compile_eagerly
from finelu.device import on_gpu, require_gpu, synchronize, to_host
from finelu.errors import FineluError
from finelu.krylov import CYCLE, METHODS
from finelu.krylov.operators import as_operator
from finelu.krylov.residual import Residual
from finelu.matrix import CSR, as_csr
from finelu.properties import density, level_sizes
from finelu.recent import RECENT
from finelu.result import Solution, Status
from finelu.threads import set_num_threads

MAXITER = 5000  # or 10 n, which is less for small systems
RUNS, REPEAT = 3, 0.5  # at most RUNS runs a turn, of which the fastest counts; none begins after REPEAT seconds of them
PATIENCE = 10.0  # a solve that takes this many times the cheapest total of its device is given up: it cannot win
ROUNDING = 1.01  # the residual computed here and that of the method are rounded differently
CURVE = 300  # the most points of a residual history
BINS = 360  # squares a side in the picture of a pattern

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class System:
    """The system to measure on, as it is sent to the process: A scipy.sparse, b (n,) on the host."""

    A: Any
    b: NDArray[Any]
    rtol: float
    pictures: bool
    threads: int


def serve(handle: int) -> None:
    """Measure the candidates that come through the connection with this file descriptor, until it is closed."""
    channel, requests = Connection(handle), queue.SimpleQueue[Any]()
    threading.Thread(target=_listen, args=(channel, requests), daemon=True).start()
    _end_first_without_memory()
    compile_eagerly()
    with compile_clock(lambda seconds: channel.send(("compiling", seconds))) as spent:
        bench = _Bench(requests.get(), channel.send)
        while True:
            candidate, limit, deadline, enough = requests.get()
            for row in _Task(bench, candidate, Share(limit, deadline, spent), enough).rows():
                channel.send(row)
            channel.send(("end",))


def _listen(channel: Connection, requests: queue.SimpleQueue[Any]) -> None:
    """Runs in a thread, since kernels release the interpreter's lock: it ends this process with the other one."""
    try:
        while True:
            requests.put(channel.recv())
    except (EOFError, OSError):
        os._exit(0)


def _end_first_without_memory() -> None:
    """If memory runs out, let the system end this process and not the one that shows the results."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:  # another system than Linux
        pass


class Share:
    """The time of a candidate: `limit` seconds, not past the deadline; compiling, timed by `spent`, extends both."""

    def __init__(self, limit: float, deadline: float, spent: Callable[[], float]):
        self.limit, self.deadline, self.spent = limit, deadline, spent
        self.begin, self.before = time.monotonic(), spent()

    @property
    def left(self) -> float:
        now = time.monotonic()
        return min(self.begin + self.limit, self.deadline) + self.spent() - self.before - now


class _Watch:
    """Stops a Krylov method when its share is used up, or after `enough` seconds; records when each iteration was.

    `seen` goes on counting iterations when `solve` begins another method.
    """

    def __init__(self, share: Share, enough: float, norm_b: float, stage: Callable[[str], None]):
        self.share, self.enough, self.norm_b, self.stage = share, enough, norm_b, stage
        self.begin = self.last_stage = time.monotonic()
        self.before = share.spent()
        self.seen: list[tuple[int, float]] = []
        self.earlier = self.last = 0  # iterations of the methods before, and of this one
        self.stopped = ""

    def __call__(self, iteration: int, residual_norm: float) -> bool:
        now = time.monotonic()
        seconds = now - self.begin - (self.share.spent() - self.before)
        self.earlier += self.last if iteration < self.last else 0
        self.last = iteration
        self.seen.append((self.earlier + iteration, seconds))
        if now - self.last_stage > 0.1:
            self.last_stage = now
            self.stage(f"iteration {iteration}, relative residual {residual_norm / self.norm_b:.1e}")
        self.stopped = TIME_LIMIT if self.share.left < 0 else TOO_SLOW if seconds > self.enough else ""
        return bool(self.stopped)


class _Bench:
    """The system on each device that it was requested on, and the residuals of its solutions."""

    def __init__(self, system: System, send: Callable[[Any], None]):
        self.system, self.send = system, send
        set_num_threads(system.threads)
        self.norm_b = float(scipy.linalg.norm(system.b)) or 1.0
        self.maxiter = min(MAXITER, 10 * system.b.size)
        self.places: dict[str, tuple[CSR, Any]] = {}
        self.residuals: dict[np.dtype[Any], Residual] = {}

    def on(self, device: str) -> tuple[CSR, Any]:
        if device not in self.places:
            A, b = as_csr(self.system.A, diagonal=False), self.system.b
            if device == "cuda":
                cupy = require_gpu()
                A, b = A.on(cupy), cupy.asarray(b)
            self.places[device] = (A, b)
        return self.places[device]

    def residual(self, x: Any) -> float:
        """||b - A x|| / ||b||, computed so that rounding does not bring it below rtol."""
        x, b = to_host(x), self.system.b
        dtype = np.result_type(x.dtype, b.dtype, self.system.A.dtype)  # solve may have changed to double precision
        if dtype not in self.residuals:
            product = as_operator(self.system.A, "A", b, dtype)
            self.residuals[dtype] = Residual(product, b.astype(dtype))
        with np.errstate(over="ignore", invalid="ignore"):
            _, size = self.residuals[dtype](b.astype(dtype), x.astype(dtype), self.system.rtol * self.norm_b)
        return float(size) / self.norm_b


class _Task:
    """One candidate, measured within its share; a solve is given up after `enough` seconds."""

    def __init__(self, bench: _Bench, candidate: Candidate, share: Share, enough: float):
        self.bench, self.candidate, self.share, self.enough = bench, candidate, share, enough
        self.system = bench.system

    def rows(self) -> Iterator[Measurement]:
        """A row for each method that was tried; an error of the candidate is a row, too."""
        candidate = self.candidate
        try:
            if candidate.asked is not None:
                METHODS.register(candidate.asked)
            if candidate.name == "solve":
                yield self._automatic()
            elif candidate.name in REFERENCES:
                yield from self._scipy()
            else:
                yield from self._recipe()
        except MemoryError as error:
            yield candidate.row("out of memory", str(error) or "no memory is left")
        except FineluError as error:
            yield candidate.row("no factors", str(error))
        except Exception as error:
            yield candidate.row("error", f"{type(error).__name__}: {error}")

    def _recipe(self) -> Iterator[Measurement]:
        A, b = self.bench.on(self.candidate.device)
        recipe: Any = self.candidate.recipe
        self._stage(self.candidate.method, f"the set-up of {self.candidate.label}")
        if recipe is None:
            yield from self._solved(A, b, None, {"fill": 0.0, "memory": 0, "setup": 0.0, "runs": 1})
            return
        F, setup, runs = self._fastest(lambda: recipe.factor(A), A.data)
        made = {"fill": F.nnz / A.nnz, "memory": held_bytes(F, A), "setup": setup, "runs": runs}
        yield from self._solved(A, b, F, made)

    def _automatic(self) -> Measurement:
        """`finelu.solve` as a user calls it; the set-up is a part of each call, and so of its seconds."""
        A, b = self.bench.on(self.candidate.device)

        def work(watch: _Watch) -> Solution:
            device, left = self.candidate.device, max(self.share.left, 0.0)
            method = self.candidate.asked or "auto"
            return solve(A, b, rtol=self.system.rtol, method=method, device=device, time_limit=left, watch=watch)

        return self._watched(self.candidate.method, work, A.data, {"setup": 0.0})

    def _scipy(self) -> Iterator[Measurement]:
        S, b, candidate = self.system.A.tocsc(), self.system.b, self.candidate
        self._stage(candidate.method, f"the set-up of {candidate.label}")
        factor = partial(sla.splu, S, **PERMC[candidate.permc]) if candidate.permc else partial(sla.spilu, S)
        try:
            lu, setup, runs = self._fastest(factor, S.data)
        except (RuntimeError, ValueError) as error:  # singular; or indices of 64 bits
            yield candidate.row("no factors", str(error))
            return
        memory = lu.nnz * (S.dtype.itemsize + SUPERLU_INDEX)
        made = {"fill": (lu.nnz - S.shape[0]) / S.nnz, "memory": memory, "setup": setup, "runs": runs}
        if candidate.name == "spilu":
            M = sla.LinearOperator(S.shape, lu.solve, dtype=S.dtype)
            yield from self._solved(self.bench.on("cpu")[0], b, M, made)
            return
        x, seconds, _ = self._fastest(lambda: lu.solve(b), b)
        residual = self.bench.residual(x)
        good = residual <= ROUNDING * self.system.rtol
        outcome, reason = (SOLVED, Status.CONVERGED.value) if good else ("inaccurate", "the direct solve is not exact")
        yield candidate.row(outcome, reason, **made, solve=seconds, iterations=0, residual=residual)

    def _solved(self, A: CSR, b: Any, M: Any, made: dict[str, Any]) -> Iterator[Measurement]:
        """The rows of the candidate's method and, unless it was asked for, of gmres where cg found that A or M is not
        positive definite, and of bicgstab where gmres had to restart or did not converge."""
        method = self.candidate.method
        row = self._krylov(method, A, b, M, made)
        if row.solved and self.system.pictures:
            row = replace(row, pictures=_pictures(M))
        yield row
        if self.candidate.asked is not None:
            return
        if METHODS[method].needs == "spd" and row.outcome.startswith("indefinite") and self.share.left > 0:
            yield replace(self._krylov("gmres", A, b, M, made), pictures=row.pictures)
        again = row.iterations is not None and (row.iterations > CYCLE or not row.solved)
        if METHODS[method].restarts and again and self.share.left > 0:
            yield replace(self._krylov("bicgstab", A, b, M, made), pictures=row.pictures)

    def _krylov(self, method: str, A: CSR, b: Any, M: Any, made: dict[str, Any]) -> Measurement:
        kind = METHODS[method]
        options = {"rtol": self.system.rtol, "maxiter": self.bench.maxiter} | kind.in_cycles(CYCLE)

        def work(watch: _Watch) -> Solution:
            return kind.solve(A, b, M=M, watch=watch, **options)

        return self._watched(method, work, A.data, made)

    def _watched(self, method: str, work: Callable[[_Watch], Solution], data: Any, made: dict[str, Any]) -> Measurement:
        """The row of the fastest run of work(watch)."""
        watches: list[_Watch] = []

        def once() -> Solution:
            watches.append(_Watch(self.share, self.enough, self.bench.norm_b, partial(self._stage, method)))
            return work(watches[-1])

        self._stage(method, "the solve")
        solution, seconds, runs = self._fastest(once, data, lambda s: s.converged)
        watch, residual = watches[-1], self.bench.residual(solution.x)
        outcome, reason = solution.status.name.lower(), solution.status.value
        if solution.status in (Status.INTERRUPTED, Status.OUT_OF_TIME):
            outcome = watch.stopped or TIME_LIMIT
            reason = (
                "its share of the budget was spent"
                if outcome == TIME_LIMIT
                else f"given up after {PATIENCE:g} times the cheapest total so far"
            )
        elif solution.converged and residual > ROUNDING * self.system.rtol:
            outcome, reason = "inaccurate", "the residual computed from A is larger than that of the method"
        alone = self.candidate.name != "solve" or not solution.recipe
        chosen = "" if alone else f"{solution.recipe} with {solution.method}"
        measured = {
            "chosen": chosen,
            "solve": seconds,
            "iterations": solution.iterations,
            "residual": residual,
            "runs": runs,
            "history": _curve(solution.history / self.bench.norm_b, watch.seen, seconds),
        }
        return self.candidate.row(outcome, reason, method=method, **(measured | made))

    def _stage(self, method: str, text: str) -> None:
        self.bench.send(("stage", method, text))

    def _fastest(
        self, work: Callable[[], R], data: Any, good: Callable[[R], bool] = lambda result: True
    ) -> tuple[R, float, int]:
        """The result of the last run, the seconds of the fastest one without compilation, and the number of runs.

        On a GPU the first run compiles, and counts only if there is no time for another.
        """
        times: list[float] = []
        while True:
            result: Any = None  # frees the memory of the run before
            RECENT.forget()  # orders and analyses of the run before
            before, start = self.share.spent(), time.perf_counter()
            result = work()
            synchronize(data)
            times.append(time.perf_counter() - start - (self.share.spent() - before))
            compiles = on_gpu(data) and len(times) == 1
            more = len(times) < RUNS and (sum(times) < REPEAT or compiles)
            if not (more and good(result)) or times[-1] > self.share.left:
                break
        counted = times[1:] if on_gpu(data) and len(times) > 1 else times
        return result, min(counted), len(counted)


def _curve(history: Any, seen: Sequence[tuple[int, float]], seconds: float) -> NDArray[np.float64]:
    """(k, 3): iteration, seconds, relative residual norm, k <= `CURVE`; the last is the end of the solve."""
    history = np.asarray(history, dtype=np.float64)
    k = np.unique(np.linspace(0, history.size - 1, min(history.size, CURVE)).round().astype(int))
    iterations, at = np.array(seen or [(0, 0.0)], dtype=np.float64).T
    when = np.interp(k, iterations, at)
    if k.size and when[-1] > 0:
        when = when * (seconds / when[-1])  # of the fastest run, as the end is
    return np.column_stack([k, when, history[k]])


def _pictures(F: Any) -> Pictures | None:
    """The pictures of factors that have an L and a U, in their own order; on the host."""
    if not hasattr(F, "L"):
        return None
    L, U = (sp.csr_matrix(to_host(part)) for part in (F.L, F.U))
    lower, _ = level_sizes(as_csr(L))
    _, upper = level_sizes(as_csr(U))
    return Pictures(density(sp.csr_matrix(sp.tril(L, -1)), BINS) + density(U, BINS), lower, upper)
