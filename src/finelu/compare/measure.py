"""`compare`: sends one candidate after the other to a second process, and keeps to the budget.

A running kernel cannot be interrupted, so that process does the work. All candidates get a short first look, those that
may win are then measured again in rounds, and the rest of the budget goes to those whose first look was cut short.
If a set-up takes longer than its share, the process is ended and replaced.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.compare.choose import best, candidates, requested_devices, requested_names
from finelu.compare.kept import LATER, Kept
from finelu.compare.model import INTERRUPTED, NOT_REACHED, TIME_LIMIT, Candidate, Comparison, Measurement
from finelu.compare.rounds import ROUNDS, common_rounds, contenders, joined
from finelu.compare.worker import PATIENCE, System
from finelu.compiling import compile_clock
from finelu.device import to_host
from finelu.errors import MatrixError, ParameterError
from finelu.krylov import METHODS, method_name
from finelu.matrix import as_csr, check_vector
from finelu.properties import properties
from finelu.threads import get_num_threads
from finelu.validation import number

FIRST_LOOK = 0.5  # of the budget, at most, for the first look at all candidates
FIRST, FIRST_SHARE = 3, 3  # the first three, which set the time to beat, may each take a third of its rest
LEAST_PATIENCE = 0.5  # s that any solve may take
LEAST_LOOK = 2.0  # s that a first look may take on the CPU: another process takes about as long to begin
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
    keep: str | os.PathLike[str] | None = None,
    again: bool = False,
    watch: Watch | None = None,
) -> Comparison:
    """Measure every recipe that applies to A x = b.

    A : (n, n), anything that `as_csr` takes; b (n,).  budget : seconds for everything but compiling the CPU's kernels
    or loading compiled ones. At most half of them go to a first look at each candidate, in which the first three may
    each take a third, each other one an equal share, and none much more than ten times the cheapest total so far. Then
    those that may win are measured in rounds, of which each halves their number; the rest goes to those that were cut
    short. The call ends within a second or two after its budget, and before it where all is measured.
    device : "cpu", "cuda", "both", or "auto", the CPU and the GPU if there is one.
    recipes : a name of RECIPES, "none", "solve" for `finelu.solve`, "spilu" or "splu" for SciPy's, a recipe with its
    default parameters, or several of these; all by default.
    method : "auto", for those that fit A and the recipe, or a Krylov method by its name, its function or its class: the
    only one that all recipes, and `finelu.solve`, are measured with.
    pictures : keep patterns and levels of the factors, too.
    keep : a folder, in which a file named by the system, the settings, the machine and the versions holds what was
    measured: another such call goes on from there. The versions are also those of the libraries for complete factors,
    and the settings the rates of `finelu calibrate`. Where it cannot be written, the result says so.
    again : measure anew what that file holds.
    watch(text, done, of) : called with the candidate being measured. Ctrl-C ends the measurements, not the call.
    Raises MatrixError, ParameterError, FileError or DeviceError for bad input, before anything is measured;
    ParameterError, too, where A is not what the method needs.
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
        kept = Kept(None if keep is None else Path(keep), A, b, rtol, method, devices, again)
        compiled = compiling()  # in this process, and in those that have ended
    course = _Course(System(A.tosparse(), b, rtol, pictures, get_num_threads()), todo, kept, watch)
    before, interrupted = len(course.rows), False
    try:
        course.begin(start, budget, compiled)
        course.first_look()
        course.rounds(pictures and not any(m.pictures for m in course.rows))
        course.second_look()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        course.end()
    course.save()
    outcome, reason = (INTERRUPTED, "Ctrl-C came before it") if interrupted else (NOT_REACHED, "the budget was spent")
    seen = {m.key for m in course.rows}
    return Comparison(
        properties=found,
        rtol=rtol,
        budget=budget,
        seconds=time.monotonic() - start,
        compile_seconds=course.compiled,
        measurements=course.rows + [c.row(outcome, reason) for c in todo if c.key not in seen],
        left_out=left_out,
        interrupted=interrupted,
        kept=before,
        file=None if kept.path is None else str(kept.path),
        not_kept=kept.failure,
    )


def _is_ours(thing: Any) -> bool:
    """Whether finelu's sources say what this recipe or method does: what others install may change without them."""
    kind = thing if isinstance(thing, type) else type(thing)
    return thing is None or kind.__module__.startswith("finelu.")


class _Course:
    """The measurements of one call: which candidate has the process now, for how long, and the rows so far."""

    def __init__(self, system: System, todo: Sequence[Candidate], kept: Kept, watch: Watch | None):
        self.system, self.todo, self.kept, self.watch = system, todo, kept, watch
        self.lasting = {c.key for c in todo if all(map(_is_ours, (c.recipe, c.asked)))}
        self.rows = [m for c in todo if c.key in self.lasting for m in kept.rows.get(c.key, ())]
        self.worker: Worker | None = None
        self.shares: dict[tuple[str, str, str], float] = {}  # the last one of each candidate
        self.turn = kept.turn  # the last one
        self.start, self.budget, self._compiled = 0.0, 0.0, 0.0

    def begin(self, start: float, budget: float, compiled: float) -> None:
        self.start, self.budget, self._compiled = start, budget, compiled

    @property
    def compiled(self) -> float:
        return self._compiled + (0.0 if self.worker is None else self.worker.compiled)

    def left(self, part: float = 1.0) -> float:
        """Seconds until this part of the budget is spent."""
        return self.start + part * self.budget + self.compiled - time.monotonic()

    def first_look(self) -> None:
        """Each candidate that has no row yet, once; none takes much longer than one that can win would."""
        todo = [c for c in self.todo if not any(m.key == c.key for m in self.rows)]
        for k, candidate in enumerate(todo):
            if (left := self.left(FIRST_LOOK)) <= 0:
                return
            share, enough = left / min(len(todo) - k, FIRST_SHARE if k < FIRST else len(todo)), self._enough(candidate)
            if candidate.device == "cpu":  # on a GPU the first run compiles
                share = min(share, max(2 * enough, LEAST_LOOK))
            self._measure(candidate, share, FIRST_LOOK, enough, 0, k, "")
            self.save()

    def rounds(self, once_more: bool) -> None:
        """Rounds over those that may win, in turn, until the last ones have had ROUNDS of them together.

        once_more : one round at least, for what rows of before do not have.
        """
        last = contenders(self.rows, ROUNDS - 1)
        begin = min(common_rounds(last), ROUNDS) if last else ROUNDS
        for made in range(min(begin, ROUNDS - 1) if once_more else begin, ROUNDS):
            rows, self.turn = contenders(self.rows, made), self.turn + 1
            for m in rows if self.turn % 2 else reversed(rows):
                if (left := self.left()) <= m.total():
                    continue
                (candidate,) = (c for c in self.todo if c.key == m.key)
                if m.method in METHODS and candidate.name != "solve":
                    candidate = replace(candidate, method=m.method, asked=METHODS[m.method])  # and no other
                text = f"round {made + 1} of {ROUNDS}, "
                self._measure(candidate, left, 1.0, PATIENCE * m.total(), self.turn, len(self.todo), text)
            self.save()

    def second_look(self) -> None:
        """Candidates that were not reached, then those that were cut short, for an equal share of the rest.

        One that may win has its rounds before the next candidate has its look.
        """
        seen = {m.key for m in self.rows}
        late = {m.key for m in self.rows if m.outcome in LATER}
        todo = [c for c in self.todo if c.key not in seen] + [c for c in self.todo if c.key in late]
        for k, candidate in enumerate(todo):
            if (left := self.left()) <= 0:
                return
            share = left / (len(todo) - k)
            if share <= self.shares.get(candidate.key, 0.0):  # less than what was too short
                continue
            self._measure(candidate, share, 1.0, self._enough(candidate), 0, len(self.todo), "a longer look, ")
            self.save()
            self.rounds(False)

    def _enough(self, candidate: Candidate) -> float:
        """The seconds after which a solve cannot win any more."""
        rival = best([m for m in self.rows if m.device == candidate.device])
        return math.inf if rival is None else max(PATIENCE * rival.total(), LEAST_PATIENCE)

    def _measure(
        self, candidate: Candidate, share: float, part: float, enough: float, turn: int, done: int, text: str
    ) -> None:
        """Give the candidate its share, which ends with this part of the budget, and take its rows in."""
        if self.worker is None:
            self.worker = Worker(self.system)

        def stage(what: str) -> None:
            if self.watch is not None:
                self.watch(f"{candidate.label} on {candidate.device}: {text}{what}", done, len(self.todo))

        deadline = time.monotonic() + self.left(part)
        self.shares[candidate.key] = share
        for row in self.worker.measure(candidate, share, deadline, enough, stage):
            self._take(row, turn)
        if self.worker.ended:
            self._compiled, self.worker = self.compiled, None

    def _take(self, row: Measurement, turn: int) -> None:
        """A row takes the place of the one with its method, or of one that an earlier look left without an answer."""
        alike = [k for k, old in enumerate(self.rows) if old.key == row.key]
        places = [k for k in alike if self.rows[k].method == row.method]
        places += [k for k in alike if self.rows[k].outcome in LATER]
        if places:
            self.rows[places[0]] = joined(self.rows[places[0]], row, turn)
        else:
            self.rows.append(joined(None, row, turn))

    def save(self) -> None:
        self.kept.save(m for m in self.rows if m.key in self.lasting)

    def end(self) -> None:
        if self.worker is not None:
            self._compiled, worker, self.worker = self.compiled, self.worker, None
            worker.end()


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
