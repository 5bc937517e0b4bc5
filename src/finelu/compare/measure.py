"""`compare`: sends one candidate after the other to a second process, and keeps to the budget.

A running kernel cannot be interrupted, so that process does the work. Each candidate gets a share of the remaining
time; if a set-up takes longer, the process is ended and replaced.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.compare.choose import best, candidates, requested_devices, requested_names
from finelu.compare.model import INTERRUPTED, NOT_REACHED, TIME_LIMIT, Candidate, Comparison, Measurement
from finelu.compare.worker import PATIENCE, System
from finelu.compiling import compile_clock
from finelu.device import to_host
from finelu.errors import MatrixError, ParameterError
from finelu.krylov import method_name
from finelu.matrix import as_csr, check_vector
from finelu.properties import properties
from finelu.threads import get_num_threads
from finelu.validation import number

FIRST, FIRST_SHARE = 3, 3  # the first three, which set the time to beat, may each take a third of the rest
LEAST_PATIENCE = 0.5  # s that any solve may take
GRACE = 1.0  # s that the other process has to end without being killed

Watch = Callable[[str, int, int], object]


@ignore_fp_errors
def compare(
    A: Any,
    b: Any,
    *,
    rtol: float = 1e-8,
    budget: float = 60.0,
    device: str = "auto",
    recipes: Any = None,
    method: Any = "auto",
    pictures: bool = False,
    watch: Watch | None = None,
) -> Comparison:
    """Measure every recipe that applies to A x = b.

    A : (n, n), anything that `as_csr` takes; b (n,).  budget : seconds for everything but compiling the CPU's kernels
    or loading compiled ones; each of the first three candidates may take a third of the rest, each other one an
    equal share. The call ends within a second or two after it.
    device : "cpu", "cuda", or "auto", the CPU and the GPU if there is one.
    recipes : a name of RECIPES, "none", "solve" for `finelu.solve`, "spilu" or "splu" for SciPy's, a recipe with its
    default parameters, or several of these; all by default.
    method : "auto", for those that fit A and the recipe, or a Krylov method by its name, its function or its class: the
    only one that all recipes, and `finelu.solve`, are measured with.
    pictures : keep patterns and levels of the factors, too.
    watch(text, done, of) : called with the candidate being measured. Ctrl-C ends the measurements, not the call.
    Raises MatrixError, ParameterError or DeviceError for bad input, before anything is measured; ParameterError, too,
    where A is not what the method needs.
    """
    start = time.monotonic()
    budget, rtol = number("budget", budget), number("rtol", rtol)
    if budget == 0:
        raise ParameterError("budget=0; a finite number of seconds > 0 is needed.")
    if not 0 < rtol < 1:
        raise ParameterError(f"rtol={rtol}; a number between 0 and 1 is needed.")
    names, devices, method = requested_names(recipes), requested_devices(device), method_name(method, "auto")
    with compile_clock() as compiling:
        A = as_csr(A, diagonal=False).on(np)
        b = np.asarray(check_vector(to_host(b), A.n, A.data))
        if b.ndim == 2:
            raise MatrixError(f"b has {b.shape[1]} columns; one right-hand side is compared at a time.")
        found = properties(A)
        todo, left_out = candidates(A, found, names, devices, method)
        compiled = compiling()  # in this process, and in those that have ended
    rows: list[Measurement] = []
    interrupted, worker = False, None
    try:
        for k, candidate in enumerate(todo):
            now = time.monotonic()
            deadline = start + budget + compiled + (0.0 if worker is None else worker.compiled)
            if now >= deadline:
                break
            if worker is None:
                worker = Worker(System(A.tosparse(), b, rtol, pictures, get_num_threads()))
            rival = best([m for m in rows if m.device == candidate.device])
            enough = math.inf if rival is None else max(PATIENCE * rival.total(), LEAST_PATIENCE)
            limit = (deadline - now) / min(len(todo) - k, FIRST_SHARE if k < FIRST else len(todo))
            for row in worker.measure(candidate, limit, deadline, enough, _stage(watch, candidate, k, len(todo))):
                rows.append(row)
            if worker.ended:
                compiled, worker = compiled + worker.compiled, None
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if worker is not None:
            compiled += worker.compiled
            worker.end()
    done = {(m.name, m.device, m.permc) for m in rows}
    outcome, reason = (INTERRUPTED, "Ctrl-C came before it") if interrupted else (NOT_REACHED, "the budget was spent")
    rows += [c.row(outcome, reason) for c in todo if (c.name, c.device, c.permc) not in done]
    return Comparison(
        properties=found,
        rtol=rtol,
        budget=budget,
        seconds=time.monotonic() - start,
        compile_seconds=compiled,
        measurements=rows,
        left_out=left_out,
        interrupted=interrupted,
    )


def _stage(watch: Watch | None, candidate: Candidate, k: int, of: int) -> Callable[[str], object]:
    """A function that reports the stage of candidate k to `watch`."""

    def stage(text: str) -> None:
        if watch is not None:
            watch(f"{candidate.label} on {candidate.device}: {text}", k, of)

    return stage


class Worker:
    """A process that measures candidates. It ignores Ctrl-C, and ends by itself when this process is gone."""

    def __init__(self, system: System):
        self.channel, there = Pipe()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from finelu.compare.worker import serve; serve({there.fileno()})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get("FINELU_DEBUG") else subprocess.DEVNULL,
            start_new_session=True,
        )
        there.close()
        self.ended, self.compiled = False, 0.0
        self.system: System | None = system

    def measure(
        self, candidate: Candidate, limit: float, deadline: float, enough: float, stage: Callable[[str], object]
    ) -> Iterator[Measurement]:
        """The rows that the process sends for the candidate; if it had to be ended, one row with the reason."""
        method, text = candidate.method, "getting ready"
        until, compiling = math.inf, 0.0  # the end of its share; when the compilation began that goes on, if any
        try:
            if self.system is not None:
                self.channel.send(self.system)
                self.system = None
            self.channel.send((candidate, limit, deadline, enough))
            while True:
                stage("compiling kernels, once" if compiling else text)
                now = time.monotonic()
                left = math.inf if compiling else min(until, deadline) + GRACE - now
                if left <= 0:
                    self.end()
                    reason = f"{text} was stopped: its share of the budget was spent"
                    yield candidate.row(TIME_LIMIT, reason, method=method)
                    return
                if not self.channel.poll(min(left, 0.1)):
                    continue
                message, now = self.channel.recv(), time.monotonic()
                if isinstance(message, Measurement):
                    yield message
                elif message[0] == "stage":
                    _, method, text = message
                    until = now + limit if math.isinf(until) else until
                elif message[0] == "compiling":
                    if message[1] is None:
                        compiling = now
                    else:
                        until, deadline, compiling = until + now - compiling, deadline + now - compiling, 0.0
                        self.compiled = message[1]
                else:
                    return
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)  # it ends without being killed, and its own status is wanted
            self.end()
            code = self.process.returncode
            signal = f"by signal {-code}, as where memory ran out" if code < 0 else f"with status {code}"
            yield candidate.row("ended", f"the process ended {signal} ({text})", method=method)

    def end(self) -> None:
        """Kill the process."""
        self.ended = True
        self.process.kill()
        self.channel.close()
        while True:
            try:
                self.process.wait()
                return
            except KeyboardInterrupt:  # it has been killed: this takes no time
                pass
