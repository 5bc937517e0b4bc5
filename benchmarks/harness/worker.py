"""A process that solves systems, so that a crash or a time limit ends that process only; the verdict on a solution."""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import finelu
from benchmarks.peers.solvers import RTOL, OutOfTime
from finelu.errors import MatrixError, ZeroPivot

SEED = 0
ROUNDING = 1.01  # this residual and that of a solver are rounded differently
MEMORY_GIB = 12  # address space of the process
READING, GRACE = 120.0, 3.0  # seconds to read a matrix and compile; over the limit, for a solver to see it itself


def reason_of(error: Exception) -> str:
    """Why there is no solution, in a few words."""
    if isinstance(error, ZeroPivot):
        return f"pivot of row {error.row}"
    if isinstance(error, MatrixError) and "stores no" in str(error):
        return "no diagonal"
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, OutOfTime):
        return "time"
    if "singular" in str(error).lower():
        return "singular"
    return f"{type(error).__name__}: {error}".splitlines()[0][:60]


def judge(S: Any, b: Any, result: dict[str, Any]) -> None:
    """Replace the x of a result by its residual, and its status by what that says; "claimed": a claim was false."""
    x = result.pop("x", None)
    if x is None:
        return
    with np.errstate(all="ignore"):
        residual = length(b - S @ x) / length(b)
    result["residual"] = residual
    if residual <= ROUNDING * RTOL:
        result["status"] = ""
    elif result["status"] == "":
        result["status"], result["claimed"] = f"residual {residual:.2g}", True


def length(v: Any) -> float:
    """||v||_2, not by BLAS: its threads would spin for tens of milliseconds on the cores of the run that comes next."""
    return float(np.sqrt(np.sum(np.abs(v) ** 2)))


def serve_with(
    pipe: Any,
    threads: int,
    outcome: Callable[..., dict[str, Any]],
    warm_up: Callable[[str], object],
    *,
    limited: bool = True,
) -> None:
    """The loop of the process: receives (path, solver, limit, extra); sends the seconds of warm_up(solver), which is
    called at the first turn of a solver, and then outcome(solver, S, limit, extra).

    limited : whether the address space is; CUDA reserves far more of it than it uses.
    """
    for stream in (1, 2):  # ILU++ reports each of its inner errors there, without end
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    if limited:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_GIB * 2**30,) * 2)
    finelu.set_num_threads(threads)
    warm, path, S = set(), None, None
    while True:
        try:
            wanted, solver, limit, extra = pipe.recv()
        except EOFError:
            return
        begin = time.perf_counter()
        if solver not in warm:
            warm_up(solver)
            warm.add(solver)
        compiled = time.perf_counter() - begin
        if wanted != path:
            path, S = wanted, finelu.read_matrix(wanted)
        pipe.send(compiled)
        pipe.send(outcome(solver, S, limit, extra))


class Worker:
    """A process that solves one system after another, and is started again after a crash or a time limit.

    serve : serve(pipe, threads), what the process runs; a function of a module, as another process is to find it.
    grace : seconds over its limit in which a solver may notice that itself.
    """

    def __init__(self, threads: int, serve: Callable[[Any, int], None], grace: float = GRACE):
        self.threads, self.serve, self.grace, self.child, self.pipe = threads, serve, grace, None, None
        self.first: dict[str, float] = {}  # seconds of the first calls of a solver, which compile
        self.prepared = 0.0  # seconds until all runs began: processes started, kernels compiled, matrices read

    def ask(self, path: Path, solver: str, limit: float, extra: Any = None, *, more: float = 0.0) -> dict[str, Any]:
        """What `solver` made of the matrix in `path`, within limit + more seconds."""
        begin = time.perf_counter()
        if self.child is None:
            context = multiprocessing.get_context("spawn")  # a forked child would inherit threads that wait for ever
            self.pipe, theirs = context.Pipe()
            self.child = context.Process(target=self.serve, args=(theirs, self.threads), daemon=True)
            self.child.start()
            theirs.close()
        self.pipe.send((path, solver, limit, extra))
        try:
            compiled = self._receive(READING)
            self.prepared += time.perf_counter() - begin
            if compiled is None:
                return {"status": "not read"}
            self.first.setdefault(solver, compiled)
            found = self._receive(limit + more + self.grace)
        except EOFError:
            self.stop()
            return {"status": "crashed"}
        return {"status": "time", "seconds": limit} if found is None else found

    def _receive(self, seconds: float):
        """The next message. If none comes within these seconds, the process is ended and None returned."""
        if self.pipe.poll(seconds):
            return self.pipe.recv()
        self.stop()
        return None

    def stop(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.join()
            self.child = None


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A block during which `count` other processes compute without a pause; they are ended with it."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
