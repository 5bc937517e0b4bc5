"""Every recipe that applies, measured on one's own system: set-up, iterations, seconds a solve, memory; which to take.

SciPy's direct solver comes first, as the yardstick, and `fl.solve` second, called as a user calls it.

A kernel that has begun cannot be interrupted, so the work is done by a second process. It gets one candidate after
the other, each with a share of the time that is left, and is ended and replaced where a set-up takes longer.
"""

from __future__ import annotations

import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.linalg import SuperLU

from finelu import krylov
from finelu.arithmetic import judged
from finelu.device import on_gpu, require_gpu, synchronize, to_host
from finelu.errors import DeviceError, FineluError, MatrixError, ParameterError, meant
from finelu.kernels.compiling import compile_clock
from finelu.krylov import CYCLE
from finelu.krylov.operators import as_operator
from finelu.matrix import CSR, as_csr, check_vector, number
from finelu.preconditioners import RECIPES, Recipe, recipe_name, recipe_of
from finelu.preconditioners.recipe import ON_CPU
from finelu.properties import Properties, density, level_sizes, properties, suggest
from finelu.residual import Residual
from finelu.result import Status
from finelu.solver import solve
from finelu.threads import get_num_threads, set_num_threads

REFERENCES = ("spilu", "splu")  # SciPy's, for comparison
# How splu is called: by default, and where the pattern is symmetric; that halves its factors on most such matrices.
PERMC: dict[str, dict[str, Any]] = {
    "COLAMD": {"permc_spec": "COLAMD"},
    "MMD_AT_PLUS_A": {"permc_spec": "MMD_AT_PLUS_A", "options": {"SymmetricMode": True}},
}
CHEAP_FIRST = (
    *("none", "jacobi", "block_jacobi", "ic0", "ilu0", "milu0", "paric", "parilu", "iluk", "ict", "ilut", "multilevel"),
)
MAXITER = 5000  # or 10 n, which is less for small systems
FIRST, FIRST_SHARE = 3, 3  # the first three, which set the mark for the others, may each take a third of what is left
PATIENCE = 10.0  # times the cheapest total of the device: a solve that takes longer is given up: it cannot win
LEAST_PATIENCE = 0.5  # s
RUNS, REPEAT = 3, 0.5  # the fastest of so many runs counts; none is begun once they have taken so many seconds
GRACE = 1.0  # s that the other process has for ending by itself
ROUNDING = 1.01  # the residual here and that of the method are rounded differently
INDEX = 4  # bytes of SuperLU's indices
CURVE = 300  # points that are kept of a residual history
BINS = 360  # of a picture of a pattern, a side

SOLVED, TIME_LIMIT, TOO_SLOW = "converged", "time limit", "too slow"
NOT_REACHED, INTERRUPTED = "not reached", "interrupted"


@dataclass(frozen=True)
class Candidate:
    """What is measured: a recipe (None without one and for SciPy's), by its name, on "cpu" or "cuda", with a method.

    permc : of splu, a key of PERMC.
    """

    name: str
    recipe: Any
    method: str
    device: str
    permc: str = ""

    @property
    def label(self) -> str:
        if self.name in REFERENCES:
            return f"scipy {self.name}" + (f", {self.permc}" if self.permc else "")
        return "fl.solve" if self.name == "solve" else repr(self.recipe) if self.recipe else "none"


@dataclass(frozen=True, eq=False)
class Pictures:
    """The factors to look at: `density` of L + U, and the rows of each level of L and of U."""

    density: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """One recipe with one method on one device; what could not be measured is None.

    name, recipe : as the command line and as Python write it; "solve" and "fl.solve" for `finelu.solve`, which makes
    its set-up anew in each call: its setup is 0, and its solve the whole call.  chosen : what that took, in words.
    method : "cg", "gmres", "bicgstab", "direct", "auto".  permc : of splu, its permc_spec.
    outcome : "converged", the name of a `Status`, or "no factors", "time limit", "too slow", "out of memory",
    "inaccurate", "ended", "error", "not reached", "interrupted".  reason : the outcome in a line.
    fill : entries of the factors over those of A; of SuperLU's with the zeros that it stores.  memory : bytes of the
    arrays that the factors hold, those of A not counted (of SuperLU's: entries times a value and an index).
    setup, solve : seconds, the fastest of `runs`, without compilation.
    residual : ||b - A x||_2 / ||b||_2 of the x returned, computed from A as it was given, and again in twice the
    precision where rounding could have brought it below rtol.
    history (k, 3) : iteration, seconds since the solve began, relative residual norm.
    """

    name: str
    recipe: str
    method: str
    device: str
    outcome: str
    reason: str = ""
    fill: float | None = None
    memory: int | None = None
    setup: float | None = None
    solve: float | None = None
    iterations: int | None = None
    residual: float | None = None
    runs: int = 0
    permc: str = ""
    chosen: str = ""
    history: Any = field(default=None, repr=False)
    pictures: Pictures | None = field(default=None, repr=False)

    @property
    def solved(self) -> bool:
        return self.outcome == SOLVED

    def total(self, solves: float = 1) -> float:
        """Seconds for the set-up and so many solves; inf where the system was not solved."""
        return self.setup + solves * self.solve if self.solved else math.inf  # type: ignore[operator]


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What `compare` found out.

    properties : of A.  measurements : in the order in which they were made.  left_out : name -> why a recipe does not
    apply.  seconds : the whole call.  compile_seconds : of them spent compiling kernels, or fetching compiled ones;
    they are in no measurement, and do not count in the budget.
    interrupted : by Ctrl-C.
    """

    properties: Properties
    rtol: float
    budget: float
    seconds: float
    compile_seconds: float
    measurements: list[Measurement]
    left_out: dict[str, str]
    interrupted: bool

    @property
    def ranked(self) -> list[Measurement]:
        """The cheapest for one right-hand side first, then those that did not solve, the smallest residual first."""
        last = (math.inf,)

        def key(m: Measurement) -> tuple[float, ...]:
            return (m.total(), 0.0) if m.solved else (math.inf, *(last if m.residual is None else (m.residual,)))

        return sorted(self.measurements, key=key)


# ---- which to take


def best(measurements: Sequence[Measurement], solves: float = 1) -> Measurement | None:
    """The one that solved with the least set-up + solves * solve; inf: the least solve. None where nothing solved.

    Of equal ones that with the smaller set-up.
    """
    solved = [m for m in measurements if m.solved]
    if not solved:
        return None
    if math.isinf(solves):
        return min(solved, key=lambda m: (m.solve, m.setup))
    return min(solved, key=lambda m: (m.total(solves), m.setup))


def crossover(m: Measurement, cheapest: Measurement) -> int | None:
    """From how many right-hand sides on m costs less than `cheapest`, the best for one; None: never. Its own is 1."""
    if m is cheapest:
        return 1
    if not m.solved or m.solve >= cheapest.solve:  # type: ignore[operator]
        return None
    return max(math.floor((m.setup - cheapest.setup) / (cheapest.solve - m.solve)) + 1, 1)  # type: ignore[operator]


def stages(measurements: Sequence[Measurement]) -> list[tuple[int, Measurement]]:
    """The best by the number of right-hand sides: (from so many on, measurement), from 1 to any number."""
    found = best(measurements)
    result = [] if found is None else [(1, found)]
    while result:
        _, last = result[-1]
        later = [(k, m) for m in measurements if m is not last and (k := crossover(m, last)) is not None]
        later = [(k, m) for k, m in later if m.solve < last.solve]  # type: ignore[operator]
        if not later:
            break
        first = max(min(k for k, _ in later), result[-1][0] + 1)
        winner = best([m for _, m in later], first)
        assert winner is not None
        result.append((first, winner))
    return result


def script(m: Measurement, matrix: str, rhs: str | None, rtol: float) -> str:
    """The Python program that repeats m: reads the matrix (a file, or gallery:NAME:ARGS), factors and solves.

    rhs : file of the right-hand side; None: the random one that the command line makes.
    """
    gpu, direct = m.device == "cuda", m.name == "splu"
    imports = ["import finelu as fl"]
    if matrix.startswith("gallery:"):
        lines = [f"A = fl.gallery.problem({matrix.removeprefix('gallery:')!r})"]
    else:
        lines = [f"A = fl.read_matrix({matrix!r})"]
    if rhs is None:
        imports.insert(0, "import numpy as np")
        lines.append("b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0]).astype(A.dtype)")
    else:
        imports.append("from finelu.io import read_vector")
        lines.append(f"b = read_vector({rhs!r})")
    if gpu:
        imports = ["import cupy as cp", "import cupyx.scipy.sparse as csp", *imports]
        lines.append("A, b = csp.csr_matrix(A), cp.asarray(b)")
    if m.name in REFERENCES:
        imports.insert(len(imports) - 1 - (rhs is not None), "import scipy.sparse.linalg as sla")
    given = "b, M=M" if m.name == "spilu" else "b" if m.name == "none" else "b, M=F"
    options = f"rtol={rtol:g}" + (f", restart={CYCLE}" if m.method == "gmres" else "")
    solve = f"solution = fl.{m.method}(A, {given}, {options})"
    if direct:
        given = ", ".join(f"{name}={value!r}" for name, value in PERMC[m.permc or "COLAMD"].items())
        lines += [f"lu = sla.splu(A.tocsc(), {given})", "x = lu.solve(b)"]
    elif m.name == "solve":
        lines.append(f"solution = fl.solve(A, b, rtol={rtol:g})")
    elif m.name == "spilu":
        lines += ["ilu = sla.spilu(A.tocsc())", "M = sla.LinearOperator(A.shape, ilu.solve, dtype=A.dtype)", solve]
    elif m.name == "none":
        lines.append(solve)
    else:
        kind = RECIPES.get(m.name)
        where = "fl."
        if kind is not None and not kind.__module__.startswith("finelu."):  # of another package
            imports.append(f"from {kind.__module__} import {kind.__name__}")
            where = ""
        lines += [f"F = {where}{m.recipe}.factor(A)", solve]
    if not direct:
        lines += ["assert solution.converged, solution.status.value", "x = solution.x"]
    return "\n".join([*imports, "", *lines]) + "\n"


# ---- what is measured


def candidates(A: CSR, found: Properties, names: Sequence[str], devices: Sequence[str]):
    """The candidates in the order in which they are measured, and why the other names do not apply.

    First splu and fl.solve, and the one that `suggest` names, then the cheap ones, so that it is known early what the
    others must beat. Where the pattern is symmetric, splu comes with PERMC["MMD_AT_PLUS_A"]; by default it comes last.
    """
    first = suggest(A).recipe
    known = ("splu", "solve", first, *CHEAP_FIRST, *(name for name in RECIPES if name not in CHEAP_FIRST), "spilu")
    todo: list[Candidate] = []
    last: list[Candidate] = []
    left_out: dict[str, str] = {}
    for name in sorted(names, key=known.index):
        recipe, reason = _made(name, found)
        if reason:
            left_out[name] = reason
            continue
        keeps_definite = name == "none" if recipe is None else recipe.keeps_definite
        definite = found.hermitian and found.diagonal.positive and keeps_definite
        method = {"splu": "direct", "solve": "auto"}.get(name, "cg" if definite else "gmres")
        on_cpu = name in REFERENCES if recipe is None else recipe.factored_on == recipe.applied_on == ON_CPU
        places = [d for d in devices if d == "cpu" or not on_cpu]
        if not places:
            left_out[name] = "it works on the CPU alone"
        if name == "splu":
            orders = ("MMD_AT_PLUS_A", "COLAMD") if found.pattern_symmetric else ("COLAMD",)
            by_order = [Candidate(name, recipe, method, d, order) for order in orders for d in places]
            todo, last = [*todo, *by_order[:1]], by_order[1:]
        else:
            todo += [Candidate(name, recipe, method, d) for d in places]
    return [*todo, *last], left_out


def _made(name: str, found: Properties) -> tuple[Any, str]:
    """The recipe of this name for such a matrix, and why there is none."""
    if name in ("none", "solve", *REFERENCES):
        return None, ""
    try:
        kind, d = RECIPES[name], found.diagonal
    except ParameterError as error:  # of an installed package that is broken
        return None, str(error)
    if kind.hermitian and not (found.hermitian and d.positive):
        what = "has a diagonal that is not positive" if found.hermitian else "is not Hermitian"
        return None, f"A {what}"
    if kind.full_diagonal and d.missing:
        return None, f"row {d.first_missing} stores no diagonal entry ({d.missing} such rows)"
    if "BlockMatrix" in kind.matrices:
        if found.block_size == 1:
            return None, "no dense blocks were found"
        return kind(block_size=found.block_size), ""  # type: ignore[call-arg]
    return kind(), ""


@judged
def compare(
    A,
    b,
    *,
    rtol: float = 1e-8,
    budget: float = 60.0,
    device: str = "auto",
    recipes: Any = None,
    pictures: bool = False,
    watch: Callable[[str, int, int], object] | None = None,
) -> Comparison:
    """Measure every recipe that applies to A x = b.

    A : (n, n), anything that `as_csr` takes; b (n,).  budget : seconds for all of it but compiling the CPU's kernels,
    or fetching compiled ones; each of the first three candidates may take a third of what is left, each other its
    share. Past it the call ends within a second or two.
    device : "cpu", "cuda", or "auto", the CPU and the GPU if there is one.
    recipes : a name of RECIPES, "none", "solve" for `finelu.solve`, "spilu" or "splu" for SciPy's, a recipe as it is by
    default, or several of these; all by default.  pictures : look at patterns and levels of the factors, too.
    watch(text, done, of) : told what is being measured.  Ctrl-C ends the measurements, not the call.
    Raises MatrixError, ParameterError or DeviceError for bad input, before anything is measured.
    """
    start = time.monotonic()
    budget, rtol = number("budget", budget), number("rtol", rtol)
    if budget == 0:
        raise ParameterError("budget=0; a finite number of seconds > 0 is needed.")
    if not 0 < rtol < 1:
        raise ParameterError(f"rtol={rtol}; a number between 0 and 1 is needed.")
    names, devices = _names(recipes), _devices(device)
    with compile_clock() as compiling:
        A = as_csr(A, diagonal=False)
        A = A.on(np)
        b = np.asarray(check_vector(to_host(b), A.n, A.data))
        if b.ndim == 2:
            raise MatrixError(f"b has {b.shape[1]} columns; one right-hand side is compared at a time.")
        found = properties(A)
        todo, left_out = candidates(A, found, names, devices)
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
                worker = _Worker(_System(A.tosparse(), b, rtol, pictures, get_num_threads()))
            rival = best([m for m in rows if m.device == candidate.device])
            enough = math.inf if rival is None else max(PATIENCE * rival.total(), LEAST_PATIENCE)
            limit = (deadline - now) / min(len(todo) - k, FIRST_SHARE if k < FIRST else len(todo))
            tell = partial(_tell, watch, candidate, k, len(todo))
            for row in worker.measure(candidate, limit, deadline, enough, tell):
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
    rows += [_row(c, outcome, reason) for c in todo if (c.name, c.device, c.permc) not in done]
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


def _tell(watch, candidate: Candidate, k: int, of: int, text: str) -> None:
    if watch is not None:
        watch(f"{candidate.label} on {candidate.device}: {text}", k, of)


def _names(recipes) -> list[str]:
    """The names of what is to be compared: of one recipe or name, of several, or of all where None are given."""
    references = ("none", "solve", *REFERENCES)
    if recipes is None:
        return ["none", "solve", *RECIPES, *REFERENCES]
    one = isinstance(recipes, str | Recipe | type)
    try:
        given = [recipes] if one else list(recipes)
    except TypeError:
        raise ParameterError(f"recipes is of type {type(recipes).__name__}; names of recipes are needed.") from None
    if not given:
        raise ParameterError("no recipe is named to compare; leave recipes out for all of them.")
    return list(dict.fromkeys(_name(recipe, references) for recipe in given))


def _name(recipe, references: Sequence[str]) -> str:
    if isinstance(recipe, str):
        return recipe_name(recipe, *references)
    found = recipe_of(recipe, *references)
    if found != type(found)():
        raise ParameterError(f"{found!r}: recipes are compared by their names alone, with what they are by default.")
    return recipe_name(found.name)


def _devices(device: str) -> list[str]:
    if device not in ("cpu", "cuda", "auto"):
        raise ParameterError(
            f"device={device!r}; one of cpu, cuda, auto is needed." + meant(device, ("cpu", "cuda", "auto"))
        )
    if device == "cpu":
        return ["cpu"]
    try:
        require_gpu()
    except DeviceError:
        if device == "cuda":
            raise
        return ["cpu"]
    return ["cuda"] if device == "cuda" else ["cuda", "cpu"]


def _row(candidate: Candidate, outcome: str, reason: str, **measured) -> Measurement:
    method = measured.pop("method", candidate.method)
    return Measurement(
        name=candidate.name,
        recipe=candidate.label,
        method=method,
        device=candidate.device,
        permc=candidate.permc,
        outcome=outcome,
        reason=" ".join(reason.split()),
        **measured,
    )


# ---- the process that works, as the one that waits sees it


@dataclass(frozen=True, eq=False)
class _System:
    """What the other process is given: A scipy.sparse, b (n,) on the host."""

    A: Any
    b: np.ndarray
    rtol: float
    pictures: bool
    threads: int


class _Worker:
    """A process that measures candidates. It does not hear Ctrl-C, and ends by itself when this one is gone."""

    def __init__(self, system: _System):
        self.channel, there = Pipe()
        code = f"import sys; sys.path[:] = {sys.path!r}; from finelu.compare import serve; serve({there.fileno()})"
        heard = None if os.environ.get("FINELU_DEBUG") else subprocess.DEVNULL
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=heard,
            start_new_session=True,
        )
        there.close()
        self.ended, self.compiled = False, 0.0
        self.system: _System | None = system

    def measure(
        self, candidate: Candidate, limit: float, deadline: float, enough: float, tell
    ) -> Iterator[Measurement]:
        """What the process says of the candidate; a row that says why where it had to be ended."""
        method, text = candidate.method, "getting ready"
        until, compiling = math.inf, 0.0  # the end of its share; since when kernels are compiled, which does not count
        try:
            if self.system is not None:
                self.channel.send(self.system)
                self.system = None
            self.channel.send((candidate, limit, deadline, enough))
            while True:
                tell("compiling kernels, once" if compiling else text)
                now = time.monotonic()
                left = math.inf if compiling else min(until, deadline) + GRACE - now
                if left <= 0:
                    self.end()
                    reason = f"{text} was stopped: its share of the budget was spent"
                    yield _row(candidate, TIME_LIMIT, reason, method=method)
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
                self.process.wait(GRACE)  # it ends by itself, and its own status is wanted
            self.end()
            code = self.process.returncode
            signal = f"by signal {-code}, as where memory ran out" if code < 0 else f"with status {code}"
            yield _row(candidate, "ended", f"the process ended {signal} ({text})", method=method)

    def end(self) -> None:
        """End the process, whatever it does."""
        self.ended = True
        self.process.kill()
        self.channel.close()
        while True:
            try:
                self.process.wait()
                return
            except KeyboardInterrupt:  # it has been killed: this takes no time
                pass


# ---- the process that works, from within


def serve(handle: int) -> None:
    """Measure the candidates that come through the connection with this file descriptor, until it is closed."""
    channel, requests = Connection(handle), queue.SimpleQueue[Any]()
    threading.Thread(target=_listen, args=(channel, requests), daemon=True).start()
    _first_to_go()
    with compile_clock(lambda seconds: channel.send(("compiling", seconds))) as spent:
        bench = _Bench(requests.get(), channel.send, spent)
        while True:
            candidate, limit, deadline, enough = requests.get()
            share = _Share(limit, deadline, spent)
            for row in bench.measure(candidate, share, enough):
                channel.send(row)
            channel.send(("end",))


def _listen(channel: Connection, requests) -> None:
    """Kernels run without the interpreter's lock, so this thread hears even then that the other process is gone."""
    try:
        while True:
            requests.put(channel.recv())
    except (EOFError, OSError):
        os._exit(0)


def _first_to_go() -> None:
    """Where memory runs out, the system is to end this process and not the one that shows the results."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:  # another system than Linux
        pass


class _Share:
    """What a candidate may take: `limit` seconds, and nothing past the deadline, besides the first use of kernels."""

    def __init__(self, limit: float, deadline: float, spent: Callable[[], float]):
        self.limit, self.deadline, self.spent = limit, deadline, spent
        self.begin, self.before = time.monotonic(), spent()

    @property
    def left(self) -> float:
        now = time.monotonic()
        return min(self.begin + self.limit, self.deadline) + self.spent() - self.before - now


class _Watch:
    """Ends a Krylov method when its share is spent, or after `enough` seconds; notes when each iteration was.

    `seen` counts iterations on where `solve` begins another method.
    """

    def __init__(self, share: _Share, enough: float, norm_b: float, stage):
        self.share, self.enough, self.norm_b, self.stage = share, enough, norm_b, stage
        self.begin = self.said = time.monotonic()
        self.before = share.spent()
        self.seen: list[tuple[int, float]] = []
        self.earlier = self.last = 0  # iterations of methods before, and of this one
        self.stopped = ""

    def __call__(self, iteration: int, residual_norm: float) -> bool:
        now = time.monotonic()
        seconds = now - self.begin - (self.share.spent() - self.before)
        self.earlier += self.last if iteration < self.last else 0
        self.last = iteration
        self.seen.append((self.earlier + iteration, seconds))
        if now - self.said > 0.1:
            self.said = now
            self.stage(f"iteration {iteration}, relative residual {residual_norm / self.norm_b:.1e}")
        self.stopped = TIME_LIMIT if self.share.left < 0 else TOO_SLOW if seconds > self.enough else ""
        return bool(self.stopped)


class _Bench:
    """A system, on each device that it was wanted on, and the ways of measuring on it."""

    def __init__(self, system: _System, send, spent):
        self.system, self.send, self.spent = system, send, spent
        set_num_threads(system.threads)
        self.norm_b = float(scipy.linalg.norm(system.b)) or 1.0
        self.maxiter = min(MAXITER, 10 * system.b.size)
        self.places: dict[str, tuple[CSR, Any]] = {}
        self.residuals: dict[np.dtype, Residual] = {}

    def on(self, device: str) -> tuple[CSR, Any]:
        if device not in self.places:
            A, b = as_csr(self.system.A, diagonal=False), self.system.b
            if device == "cuda":
                cupy = require_gpu()
                A, b = A.on(cupy), cupy.asarray(b)
            self.places[device] = (A, b)
        return self.places[device]

    def measure(self, candidate: Candidate, share: _Share, enough: float) -> Iterator[Measurement]:
        """A row for each method that was tried; an error in a candidate is a row, too."""
        try:
            if candidate.name == "solve":
                yield self._automatic(candidate, share, enough)
            elif candidate.name in REFERENCES:
                yield from self._scipy(candidate, share, enough)
            else:
                yield from self._ours(candidate, share, enough)
        except MemoryError as error:
            yield _row(candidate, "out of memory", str(error) or "no memory is left")
        except FineluError as error:
            yield _row(candidate, "no factors", str(error))
        except Exception as error:
            yield _row(candidate, "error", f"{type(error).__name__}: {error}")

    def _ours(self, candidate: Candidate, share: _Share, enough: float) -> Iterator[Measurement]:
        A, b = self.on(candidate.device)
        self._stage(candidate.method, f"the set-up of {candidate.label}")
        F, setup, runs = None, 0.0, 1
        if candidate.recipe is not None:
            F, setup, runs = self._fastest(lambda: candidate.recipe.factor(A), A.data, share)
        made = {
            "fill": 0.0 if F is None else F.nnz / A.nnz,
            "memory": 0 if F is None else held_bytes(F, A),
            "setup": setup,
        }
        yield from self._solved(candidate, A, b, F, made, runs, share, enough)

    def _automatic(self, candidate: Candidate, share: _Share, enough: float) -> Measurement:
        """`finelu.solve` as a user calls it; the set-up is a part of each call, and so of its seconds."""
        A, b = self.on(candidate.device)

        def work(watch):
            return solve(A, b, rtol=self.system.rtol, time_limit=max(share.left, 0.0), watch=watch)

        return self._watched(candidate, "auto", work, A.data, {"setup": 0.0}, 0, share, enough)

    def _scipy(self, candidate: Candidate, share: _Share, enough: float) -> Iterator[Measurement]:
        import scipy.sparse.linalg as sla

        S, b = self.system.A.tocsc(), self.system.b
        self._stage(candidate.method, f"the set-up of {candidate.label}")
        work = partial(sla.splu, S, **PERMC[candidate.permc]) if candidate.permc else partial(sla.spilu, S)
        try:
            lu, setup, runs = self._fastest(work, S.data, share)
        except (RuntimeError, ValueError) as error:  # singular; or indices of 64 bits
            yield _row(candidate, "no factors", str(error))
            return
        memory = lu.nnz * (S.dtype.itemsize + INDEX)
        made = {"fill": (lu.nnz - S.shape[0]) / S.nnz, "memory": memory, "setup": setup}
        if candidate.name == "spilu":
            M = sla.LinearOperator(S.shape, lu.solve, dtype=S.dtype)
            yield from self._solved(candidate, self.on("cpu")[0], b, M, made, runs, share, enough)
            return
        x, solve, _ = self._fastest(lambda: lu.solve(b), b, share)
        residual = self.residual(x)
        good = residual <= ROUNDING * self.system.rtol
        outcome, reason = (SOLVED, Status.CONVERGED.value) if good else ("inaccurate", "the direct solve is not exact")
        yield _row(candidate, outcome, reason, **made, solve=solve, iterations=0, residual=residual, runs=runs)

    def _solved(self, candidate, A, b, M, made, runs, share, enough) -> Iterator[Measurement]:
        """The rows of the candidate's method, and of bicgstab where gmres had to begin anew or did not converge."""
        row = self._krylov(candidate, candidate.method, A, b, M, made, runs, share, enough)
        if row.solved and self.system.pictures:
            row = replace(row, pictures=_pictures(M))
        yield row
        again = row.iterations is not None and (row.iterations > CYCLE or not row.solved)
        if candidate.method == "gmres" and again and share.left > 0:
            other = self._krylov(candidate, "bicgstab", A, b, M, made, runs, share, enough)
            yield replace(other, pictures=row.pictures)

    def _krylov(self, candidate, method, A, b, M, made, runs, share, enough) -> Measurement:
        options: dict[str, Any] = {"restart": CYCLE} if method == "gmres" else {}
        options |= {"rtol": self.system.rtol, "maxiter": self.maxiter}

        def work(watch):
            return getattr(krylov, method)(A, b, M=M, watch=watch, **options)

        return self._watched(candidate, method, work, A.data, made, runs, share, enough)

    def _watched(self, candidate, method, work, data, made, runs, share, enough) -> Measurement:
        """The row of the fastest run of work(watch), which gives a Solution."""
        watch: Any = None

        def once():
            nonlocal watch
            watch = _Watch(share, enough, self.norm_b, partial(self._stage, method))
            return work(watch)

        self._stage(method, "the solve")
        solution, seconds, times = self._fastest(once, data, share, lambda s: s.converged)
        residual = self.residual(solution.x)
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
        took = solution.recipe and f"{solution.recipe} with {solution.method}"
        return _row(
            candidate,
            outcome,
            reason,
            method=method,
            **made,
            chosen=took if method == "auto" else "",
            solve=seconds,
            iterations=solution.iterations,
            residual=residual,
            runs=runs or times,
            history=_curve(solution.history / self.norm_b, watch.seen, seconds),
        )

    def residual(self, x) -> float:
        """||b - A x|| / ||b||, which rounding does not make smaller than rtol."""
        x, b = to_host(x), self.system.b
        dtype = np.result_type(x.dtype, b.dtype, self.system.A.dtype)  # solve may have gone over to double precision
        if dtype not in self.residuals:
            product = as_operator(self.system.A, "A", b, dtype)
            self.residuals[dtype] = Residual(product.matrix, product.__matmul__, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            _, size = self.residuals[dtype](b.astype(dtype), x.astype(dtype), self.system.rtol * self.norm_b)
        return float(size) / self.norm_b

    def _stage(self, method: str, text: str) -> None:
        self.send(("stage", method, text))

    def _fastest(self, work, data, share: _Share, good=lambda result: True):
        """The result of the last run, the seconds of the fastest one without compilation, and how many runs there were.

        On a GPU the first run compiles, and counts only where there is no time for another.
        """
        times: list[float] = []
        while True:
            result = None  # its memory is free for the next
            before, start = self.spent(), time.perf_counter()
            result = work()
            synchronize(data)
            times.append(time.perf_counter() - start - (self.spent() - before))
            compiles = on_gpu(data) and len(times) == 1
            more = len(times) < RUNS and (sum(times) < REPEAT or compiles)
            if not (more and good(result)) or times[-1] > share.left:
                break
        counted = times[1:] if on_gpu(data) and len(times) > 1 else times
        return result, min(counted), len(counted)


def _curve(history, seen: Sequence[tuple[int, float]], seconds: float) -> np.ndarray:
    """(k, 3): iteration, seconds, relative residual norm, at most `CURVE` of them; the last is the end of the solve."""
    history = np.asarray(history, dtype=np.float64)
    k = np.unique(np.linspace(0, history.size - 1, min(history.size, CURVE)).round().astype(int))
    iterations, at = np.array(seen or [(0, 0.0)], dtype=np.float64).T
    when = np.interp(k, iterations, at)
    if k.size and when[-1] > 0:
        when = when * (seconds / when[-1])  # of the fastest run, as the end is
    return np.column_stack([k, when, history[k]])


def _pictures(F) -> Pictures | None:
    """Of factors that have an L and a U, in their own order; on the host."""
    if not hasattr(F, "L"):
        return None
    L, U = (sp.csr_matrix(to_host(part)) for part in (F.L, F.U))
    lower, _ = level_sizes(as_csr(L))
    _, upper = level_sizes(as_csr(U))
    return Pictures(density(sp.csr_matrix(sp.tril(L, -1)), BINS) + density(U, BINS), lower, upper)


def held_bytes(F, A: CSR) -> int:
    """The bytes of all arrays that F refers to, each counted once, those of A left out; of SuperLU's, which cannot be
    seen, a value and an index an entry."""
    theirs = {id(_owner(part)) for part in (A.indptr, A.indices, A.data, A.diag)}
    seen: set[int] = set()
    sizes: dict[int, int] = {}
    waiting = [F]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, SuperLU):
            sizes[id(thing)] = thing.nnz * (F.dtype.itemsize + INDEX)
        elif isinstance(thing, np.ndarray) or (on_gpu(thing) and hasattr(thing, "nbytes")):
            owner = _owner(thing)
            sizes[id(owner)] = owner.nbytes
        elif isinstance(thing, Mapping):
            waiting += thing.values()
        elif isinstance(thing, list | tuple | set):
            waiting += thing
        elif isinstance(thing, MethodType):
            waiting.append(thing.__self__)
        elif isinstance(thing, FunctionType):
            waiting += [cell.cell_contents for cell in thing.__closure__ or ()]
        elif isinstance(thing, partial):
            waiting += [thing.func, thing.args, thing.keywords]
        elif hasattr(thing, "__dict__") and (
            thing is F or type(thing).__module__.split(".")[0] in ("finelu", "scipy", "cupyx")
        ):
            waiting += vars(thing).values()
    return sum(size for key, size in sizes.items() if key not in theirs)


def _owner(array):
    """The array whose memory `array` is a view of; itself if it is none."""
    while type(array.base) is type(array):
        array = array.base
    return array
