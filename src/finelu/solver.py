"""solve(A, b): looks at A, picks recipe and method, changes to another where one fails or takes too long, and says so.

The ladder. First a factorization that costs next to nothing (ILU0, IC0, MILU0); while it iterates, the rest of its time
is predicted from the digits gained so far, and compared with what the next rungs are expected to take: a threshold
factorization (ILUT, ICT; ParILUT on a GPU), a complete sparse L U, whose fill and work are counted before, and the
multilevel ILU. What is predicted to end first goes on, from the best x so far. A breakdown or a stagnation ends a rung
at once. No rung is tried twice.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu import krylov
from finelu.errors import FineluError, MatrixError, ParameterError, StructurallySingular
from finelu.kernels import free_memory, kernels_for, namespace, on_gpu, require_gpu, synchronize, to_host
from finelu.krylov.operators import as_operator
from finelu.matrix import CSR, as_csr, check_vector
from finelu.ordering import Fill, with_little_fill
from finelu.preconditioners import (
    DEFINITE_RECIPES,
    IC0,
    ICT,
    ILU0,
    ILUT,
    MILU0,
    RECIPES,
    MultilevelILU,
    ParICT,
    ParILUT,
    SparseLU,
)
from finelu.preconditioners.direct import SparseLUFactors
from finelu.preconditioners.recipe import Recipe
from finelu.properties import Diagonal, diagonal, symmetry
from finelu.result import Attempt, Solution, Status

METHODS = ("cg", "minres", "sqmr", "gmres", "fgmres", "bicgstab", "bicg")
RESTART = 50
FEW = 6  # a cycle of the iterations that refine a complete factorization; so many cycles at most
MAXITER = 2000  # of one attempt
MOST_ROWS = 400  # up to which the direct solve comes first: it takes less than the look at anything else

# What to expect, in seconds an entry of A, measured on one core of an Intel Xeon; only their ratios to the iterations
# matter, since the pace of the first attempt corrects them.
STEP = {"cg": 4e-9, "bicgstab": 5e-9, "gmres": 8e-9}  # an iteration with factors of A's own pattern
ANALYSIS = 0.3e-6  # ordering, elimination tree and column counts of the direct solve
THRESHOLD, MULTILEVEL = 1.5e-6, 5.0e-6  # set-up and iterations together
COLUMNWISE = 1.5e-6  # SuperLU with its column ordering, of rows no longer than SHORT
DIRECT_ENTRY, DIRECT_FLOP = 20e-9, 0.25e-9  # of the complete factors
SHORT = 12  # mean entries a row
OVERHEAD = 1e-4  # seconds of an iteration whatever its size
ON_GPU = 0.1  # part of THRESHOLD that a factorization on the GPU takes
USABLE = 0.8  # part of the free memory that factors may take
BYTES = 16  # an entry of factors
SYMMETRIC_PATTERN = 0.5  # part of the entries with a partner, from which on rows and columns are ordered together
NEARLY_ALL = 0.99
ROUNDINGS = 8  # of the terms of A v, up to which it is 0
CAUTION = 4.0  # how many times longer than the other an iteration that has just begun must be expected to take
PRIOR = 1 / 60  # of the digits wanted, that count as gained before the first iteration
PATIENCE = 0.05  # seconds that old factors get in any case
LEAST = 5  # iterations before anything is expected
SINGLE = 1e-5  # the least rtol that single precision is trusted with
NUDGE = 1e-10  # of its diagonal, that makes a singular A one that can be factored


@dataclass(frozen=True)
class Look:
    """What decides about the ladder. m_matrix: hardly an entry beside the diagonal has its sign or a row outweighs it.

    paired : the part of the entries (i, j) with an entry (j, i).
    """

    n: int
    nnz: int
    kind: str
    diagonal: Diagonal
    m_matrix: bool
    paired: float
    gpu: bool

    @property
    def definite(self) -> bool:
        """May be positive definite: Hermitian, with a positive diagonal."""
        return self.kind == "hermitian" and self.diagonal.positive

    def sentences(self) -> tuple[str, ...]:
        kind = {"hermitian": "Hermitian", "symmetric": "complex symmetric", "general": "not symmetric"}[self.kind]
        if self.diagonal.missing or self.diagonal.zero:
            on_diagonal = f"{self.diagonal.missing + self.diagonal.zero} diagonal entries are missing or zero"
        else:
            on_diagonal = "the diagonal is full" + (", all positive" if self.diagonal.positive else "")
        signs = "; the other entries have the opposite sign and are no larger in sum" if self.m_matrix else ""
        return (f"{self.n} rows, {self.nnz} entries, {kind}; {on_diagonal}{signs}",)


def look(A: CSR) -> Look:
    """Look at A. Cost: a transposition and a few passes over the entries, on the host."""
    host = A.on(np)
    kind, found, S = symmetry(host), diagonal(host), host.tosparse()
    m_matrix, paired = False, 1.0
    if found.usable and A.dtype.kind != "c":
        rows = np.repeat(np.arange(A.n), np.diff(S.indptr))
        beside = np.where(rows == S.indices, 0.0, S.data)
        on_diagonal = S.diagonal()
        sign = np.sign(on_diagonal)
        beside = beside * sign[rows]
        wrong, right = np.maximum(beside, 0).sum(), -np.minimum(beside, 0).sum()
        sums = abs(on_diagonal) + np.bincount(rows, beside, minlength=A.n)
        fine = (sums >= -1e-8 * abs(on_diagonal)).mean()
        m_matrix = bool(right > 0 and wrong <= (1 - NEARLY_ALL) * right and fine >= NEARLY_ALL)
    if kind == "general":
        ones = sp.csr_matrix((np.ones(S.nnz, np.int8), S.indices, S.indptr), shape=S.shape)
        paired = float(ones.multiply(ones.T.tocsr()).nnz / max(S.nnz, 1))
    return Look(A.n, A.nnz, kind, found, m_matrix, paired, on_gpu(A.data))


def solve(
    A,
    b,
    rtol=1e-8,
    *,
    device=None,
    recipe="auto",
    method="auto",
    time_limit=None,
    memory_limit=None,
    watch=None,
) -> Solution:
    """Solve A x = b to ||b - A x|| <= rtol ||b||, choosing what it takes.

    A : (n, n), anything that `finelu.as_csr` takes; its diagonal may have gaps.  b : (n,) or (n, k), one column after
        the other with the factors that the first has chosen.
    device : "cpu" or "cuda" to work there whatever A is; None: where A lives. x comes back where b was.
    recipe : "auto", or a recipe or its name: then only that is tried.  method : "auto" or a method's name.
    time_limit : seconds for everything; a factorization that has begun is not stopped.  memory_limit : bytes for the
        factors that it chooses, estimated before they are made; None: 80% of what the machine has free.
    watch : watch(iteration, residual_norm), as the Krylov methods call it; True ends the solve.
    Returns a Solution with `explain()`; of many columns: residual_norm, history and status of the worst one, the
    iterations of all. `converged` only if ||b - A x|| <= rtol ||b|| for the x returned, computed apart; else x is the
    best iterate known. Status.SINGULAR where a vector v with A v = 0 to rounding shows that there is no solution.
    float32 and complex64 are solved in double precision where rtol is below 1e-5, and x is double then.
    Raises MatrixError for a wrong shape, NaN or Inf, ParameterError for a meaningless argument.
    The rules are those of this module's head and constants; docs/solve.md tells them.
    """
    start = perf_counter()
    rtol = _number("rtol", rtol)
    time_limit = math.inf if time_limit is None else _number("time_limit", time_limit)
    memory_limit = USABLE * free_memory(np.empty(0)) if memory_limit is None else _number("memory_limit", memory_limit)
    if device not in (None, "cpu", "cuda"):
        raise ParameterError(f"device={device!r}; None, 'cpu' or 'cuda' is needed.")
    chosen, method = _chosen(recipe), _known(method)
    A = as_csr(A, diagonal=False)
    home = b = check_vector(b, A.n, b)
    A, b = _placed(A, b, device)
    A, b = _precise(A, b, rtol)
    with _word_about_compiling(watch is None and sys.stderr is not None and sys.stderr.isatty()):
        ladder = _Ladder(A, rtol, chosen, method, start + time_limit, memory_limit, watch)
        columns = b.reshape(A.n, -1) if b.size else b
        found = [ladder.solve(columns[:, c]) for c in range(columns.shape[-1])] or [
            ladder.nothing(b, Status.CONVERGED, 0.0)
        ]
    return _together(found, b.shape, home, start)


def first_try(A) -> dict[str, str]:
    """What `solve` tries first on A: recipe, method and reason, in words; {} where nothing fits the free memory.

    A : anything that `finelu.as_csr` takes; its diagonal may have gaps. Cost: `look`, at times an ordering.
    """
    ladder = _Ladder(as_csr(A, diagonal=False), 1e-8, "auto", "auto", memory=USABLE * free_memory(np.empty(0)))
    rung = ladder.next_rung(list(ladder.recipes))
    if rung is None:
        return {}
    method = "refinement" if rung == "direct" else ladder._methods(rung)[0]
    return {"recipe": ladder._name(rung), "method": method, "reason": ladder._reason(rung)}


@contextmanager
def _word_about_compiling(wanted: bool) -> Iterator[None]:
    """One line on stderr when Numba begins to compile: the first use on a machine takes seconds."""
    if not wanted:
        yield
        return
    from numba.core import event

    class Word(event.Listener):
        said = False

        def on_start(self, _):
            if not self.said:
                self.said = True
                print("finelu: compiling its CPU kernels, once on this machine; seconds ...", file=sys.stderr)

        def on_end(self, _):
            """Nothing to say."""

    with event.install_listener("numba:compile", Word()):
        yield


def _number(name: str, value) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ParameterError(f"{name}={value!r}; a number is needed.") from None
    if not (number >= 0 and math.isfinite(number)):
        raise ParameterError(f"{name}={number}; a finite number, zero or larger, is needed.")
    return number


def _known(method):
    if method != "auto" and method not in METHODS:
        raise ParameterError(f"there is no method {method!r}; one of auto, {', '.join(METHODS)} is needed.")
    return method


def _chosen(recipe):
    if isinstance(recipe, Recipe) or recipe is None or recipe == "auto":
        return recipe
    if recipe == "none":
        return None
    if not isinstance(recipe, str) or recipe not in RECIPES:
        raise ParameterError(f"there is no recipe {recipe!r}; one of auto, {', '.join(RECIPES)}, none is needed.")
    return RECIPES[recipe]()


def _precise(A: CSR, b, rtol: float):
    """A and b in a precision that allows for rtol; b in the dtype of x."""
    dtype = np.result_type(A.dtype, b.dtype, *([np.float64] if rtol < SINGLE else []))
    real = np.empty(0, dtype).real.dtype
    return as_csr(A, diagonal=False, dtype=np.result_type(A.dtype, real)), b.astype(dtype, copy=False)


def _placed(A: CSR, b, device):
    if device == "cuda" and not on_gpu(A.data):
        cupy = require_gpu()
        A = A.on(cupy)
    if device == "cpu" and on_gpu(A.data):
        A = A.on(np)
    if device is not None:
        b = namespace(A.data).asarray(b) if on_gpu(A.data) else to_host(b)
    return A, check_vector(b, A.n, A.data)


def _together(found: list[Solution], shape, home, start: float) -> Solution:
    """One Solution of those of all columns."""
    xp = namespace(found[0].x)
    worst = max(
        found,
        key=lambda s: (not s.converged, min((a.residual for a in s.attempts), default=float(s.residual_norm > 0))),
    )
    x = found[0].x.reshape(shape) if len(found) == 1 else xp.stack([s.x for s in found], axis=1)
    if on_gpu(x) != on_gpu(home):
        x = namespace(home).asarray(to_host(x))
    return replace(
        worst,
        x=x,
        iterations=sum(s.iterations for s in found),
        attempts=tuple(a for s in found for a in s.attempts),
        timings={"solve": perf_counter() - start},
    )


class _Ladder:
    """The rungs for one A, their factors once made, and what is known of their cost."""

    def __init__(self, A: CSR, rtol, recipe, method, deadline=math.inf, memory=math.inf, watch=None):
        self.A, self.rtol, self.method = A, rtol, method
        self.deadline, self.memory, self.watch = deadline, memory, watch
        self.seen = look(A)
        self.pace = 1.0  # how much slower than STEP and its like this machine is
        self.order: np.ndarray | None = None
        self.fill: Fill | None = None  # of the direct solve, once counted
        self.factors: dict[str, Any] = {}
        self.broken: set[str] = set()  # rungs without factors
        self.structure = ""  # what a recipe says of a structural singularity
        self.interrupted = False
        self.asked = recipe != "auto"
        self.recipes: dict[str, tuple[Recipe | None, ...]] = {"asked": (recipe,)} if self.asked else self._rungs()
        self.preferred: str | None = None  # the rung that solved the column before

    @property
    def by_columns(self) -> bool:
        """Whether the direct solve orders columns alone: where rows and columns differ, or rows are to be permuted."""
        return self.seen.paired < SYMMETRIC_PATTERN or (
            not self.seen.diagonal.usable and self.seen.nnz <= SHORT * self.seen.n
        )

    def _rungs(self) -> dict[str, tuple[Recipe | None, ...]]:
        """The recipes of each rung: the first, and others for where it finds no factors."""
        seen = self.seen
        rungs: dict[str, tuple[Recipe | None, ...]] = {}
        if seen.diagonal.usable:
            plain: Recipe = IC0() if seen.definite else ILU0()
            rungs["cheap"] = (MILU0(), plain) if seen.m_matrix else (plain,)
            general = ParILUT() if seen.gpu else ILUT()
            definite = (ParICT(),) if seen.gpu else (ICT(), ICT(shift=2e-3))
            rungs["threshold"] = (*definite, general) if seen.definite else (general,)
        direct = SparseLU(ordering="colamd") if self.by_columns else SparseLU()
        rungs["direct"] = (direct, replace(direct, matching=not seen.diagonal.usable, shift=NUDGE))
        rungs["multilevel"] = (MultilevelILU(),)
        return rungs

    # what a rung costs

    def cost(self, rung: str) -> float:
        """Seconds that a rung is expected to take, its iterations included; Inf where it finds no room."""
        seen = self.seen
        if BYTES * seen.nnz > self.memory:
            return math.inf
        if rung == "direct":
            if self.by_columns:
                return COLUMNWISE * seen.nnz if seen.nnz <= SHORT * seen.n else math.inf
            if self.fill is None:
                return ANALYSIS * seen.nnz
            if BYTES * self.fill.nnz > self.memory:
                return math.inf
            return self.pace * (DIRECT_ENTRY * self.fill.nnz + DIRECT_FLOP * self.fill.flops)
        typical = {"cheap": STEP["bicgstab"] * 20, "threshold": THRESHOLD, "multilevel": MULTILEVEL}
        seconds = typical.get(rung, 0.0) * seen.nnz * self.pace
        return seconds * (ON_GPU if seen.gpu and rung == "threshold" else 1.0)

    def count_fill(self) -> None:
        """Order A as the direct solve will, and count what it takes."""
        if self.fill is None and not self.by_columns:
            self.order, self.fill = with_little_fill(self.A)

    def next_rung(self, left: list[str]) -> str | None:
        """The cheapest of those left that fits the memory and the time."""
        if self.asked:
            return left[0] if left else None
        if "direct" in left and self.seen.n <= MOST_ROWS and BYTES * self.seen.n**2 <= self.memory:
            return "direct"
        if "cheap" in left and self.cost("cheap") < math.inf:
            return "cheap"
        if "direct" in left and self.cost("direct") < math.inf:
            self.count_fill()
        costs = {rung: self.cost(rung) for rung in left}
        fits = [rung for rung in left if costs[rung] < math.inf and perf_counter() + costs[rung] < self.deadline]
        return min(fits, key=lambda rung: costs[rung]) if fits else None

    def better(self, left: list[str], elapsed: float, rest: float) -> str | None:
        """The rung to change to instead of going on for `rest` more seconds, after `elapsed`; None: go on.

        What is expected is uncertain, so the less has been spent, compared with what the other costs, the larger must
        be the gain; that bounds the loss by a wrong expectation. The fill of the direct solve is counted when its
        ordering costs little beside what is expected anyway.
        """
        uncounted = "direct" in left and self.fill is None and not self.by_columns
        if uncounted:
            analysis = self.pace * ANALYSIS * self.seen.nnz
            if worth(analysis * 2, elapsed, rest):
                self.count_fill()
                uncounted = False
        costs = {rung: self.cost(rung) for rung in left if not (uncounted and rung == "direct")}
        rung = min(costs, key=lambda rung: costs[rung], default=None)
        return rung if rung is not None and worth(costs[rung], elapsed, rest) else None

    # a right-hand side

    def solve(self, b) -> Solution:
        scale = _norm(b)
        if not math.isfinite(scale):
            raise MatrixError(f"the norm of b overflows in {b.real.dtype}; scale the system down.")
        if scale == 0 or self.rtol >= 1:  # x = 0 is good enough
            return self.nothing(b, Status.CONVERGED, scale)
        if self.interrupted:
            return self.nothing(b, Status.INTERRUPTED, scale)
        self.product = as_operator(self.A, "A", b, b.dtype)
        x, residual, last = namespace(b).zeros_like(b), 1.0, None
        left = [rung for rung in self.recipes if rung not in self.broken]
        attempts: list[Attempt] = []
        rung = self.preferred or self.next_rung(left)
        why = "it solved the column before" if self.preferred else self._reason(rung)
        status, evidence = Status.BREAKDOWN, ""
        while rung is not None and perf_counter() <= self.deadline:
            left.remove(rung)
            found, attempt, change = self._attempt(rung, why, b, x, residual, scale, left)
            attempts.append(attempt)
            if found is not None:
                last, status = found, found.status
                if attempt.residual < residual:
                    x, residual = found.x, attempt.residual
                if residual <= self.rtol:
                    status, self.preferred = Status.CONVERGED, rung
                    break
                if status in (Status.OUT_OF_TIME, Status.INTERRUPTED):
                    self.interrupted = status is Status.INTERRUPTED
                    break
                if change is None and rung not in ("cheap", "threshold"):
                    evidence = self._singular(self.factors[rung], b, scale)
                if evidence:
                    status = Status.SINGULAR
                    break
            before, rung = rung, change or self.next_rung(left)
            why = f"{self._name(before)} " + ("was expected to take longer" if change else "failed")
        seen = self.seen.sentences()
        if status not in (Status.CONVERGED, Status.INTERRUPTED, Status.OUT_OF_TIME, Status.SINGULAR):
            in_memory = [rung for rung in left if self.asked or self.cost(rung) < math.inf]
            if in_memory:
                status = Status.OUT_OF_TIME
            elif left and last is None:
                status = Status.OUT_OF_MEMORY
            for rung in left:
                why = "the time left is too short for it" if rung in in_memory else "its factors may not find room"
                seen += (f"{self._name(rung)} was left out: {why}",)
        seen += tuple(text for text in (evidence, self.structure) if text)
        done = attempts[-1] if attempts else None
        return Solution(
            x=x,
            status=status,
            iterations=sum(a.iterations for a in attempts),
            residual_norm=residual * scale,
            history=last.history if last is not None else np.array([scale]),
            method=done.method if done else "",
            recipe=done.recipe if done else "",
            seen=seen,
            attempts=tuple(attempts),
        )

    def nothing(self, b, status: Status, scale: float) -> Solution:
        """x = 0, and nothing tried."""
        x = namespace(b).zeros_like(b)
        return Solution(x, status, 0, scale, np.array([scale]), seen=self.seen.sentences())

    def _attempt(self, rung, why, b, x, residual, scale, left):
        """(Solution or None, Attempt, the rung to change to or None), from the best x so far."""
        start, made = perf_counter(), 0.0
        if rung not in self.factors:
            first, outcome = self._name(rung), self._factor(rung)
            made = perf_counter() - start
            if outcome:
                self.broken.add(rung)
                return None, Attempt(self._name(rung), "", why, f"no factors: {outcome}", 0, made, 0.0, residual), None
            why += f", and {first} found no factors" if first != self._name(rung) else ""
        begin, F = perf_counter(), self.factors[rung]
        r = b if residual == 1.0 else b - self.product @ x
        judge = _Judge(self, rung, "refinement", left, scale)
        method, status, iterations, better, history = "refinement", Status.CONVERGED, 0, x, [scale * residual]
        if rung == "direct" and self.method == "auto":
            better, r, history = self._refine(F, x, b, r, judge)
            iterations = len(history) - 1
        for method in self._methods(rung) if history[-1] > judge.target and judge.status is None else ():
            judge = _Judge(self, rung, method, left, scale)
            found = self._iterate(method, r, F, judge, FEW if rung == "direct" else RESTART)
            iterations, history, status = iterations + found.iterations, found.history, found.status
            better = better + found.x  # corrections are solved for: rtol keeps its meaning
            r = b - self.product @ better
            if judge.status or status not in (Status.BREAKDOWN, Status.STAGNATED, Status.NOT_FINITE):
                break
        reached = _norm(r) / scale
        if not math.isfinite(reached):
            better, reached = x, residual
        if reached > self.rtol and status is Status.CONVERGED:
            status = Status.STAGNATED  # the method's claim, which the check here does not share
        status = judge.status or (Status.MAX_ITERATIONS if judge.change else status)
        outcome = "solved" if reached <= self.rtol else judge.why or status.name.lower().replace("_", " ")
        attempt = Attempt(self._name(rung), method, why, outcome, iterations, made, perf_counter() - begin, reached)
        found = Solution(better, status, iterations, reached * scale, np.asarray(history), method, self._name(rung))
        return found, attempt, judge.change

    def _iterate(self, method: str, r, F, judge, restart: int) -> Solution:
        most, options = FEW**2 if restart == FEW else MAXITER, _restart(method, restart)
        return getattr(krylov, method)(
            self.A, r, M=F, rtol=0.0, atol=judge.target, maxiter=most, watch=judge, **options
        )

    def _refine(self, F, x, b, r, judge):
        """(x, b - A x, history) after x <- x + M^-1 (b - A x), as long as that at least halves the residual."""
        history = [_norm(r)]
        while history[-1] > judge.target and len(history) <= FEW and not judge(len(history) - 1, history[-1]):
            with np.errstate(over="ignore", invalid="ignore"):
                better = x + F.solve(r)
                rest = b - self.product @ better
            size = _norm(rest)
            if not size <= history[-1] / 2:
                break
            x, r = better, rest
            history.append(size)
        return x, r, history

    def _factor(self, rung: str) -> str:
        """Make the factors of a rung, by its first recipe that finds some; "" or why there are none."""
        outcome = ""
        for recipe in self.recipes[rung]:
            try:
                if (
                    rung == "direct"
                    and isinstance(recipe, SparseLU)
                    and self.order is not None
                    and self.fill is not None
                ):
                    self.factors[rung] = SparseLUFactors(recipe, self.A, known=(self.order, self.fill))
                else:
                    self.factors[rung] = None if recipe is None else recipe.factor(self.A)  # type: ignore[attr-defined]
            except (FineluError, MemoryError) as error:
                if self.asked:
                    raise
                outcome = outcome or str(error).split(": ", 1)[-1].rstrip(".")
                if isinstance(error, StructurallySingular):
                    self.structure = str(error).rstrip(".")
            else:
                self.recipes[rung] = (recipe,)
                synchronize(self.A.data)
                return ""
        return outcome

    def _methods(self, rung: str) -> tuple[str, ...]:
        """The method for a rung, and gmres for where it breaks down."""
        if self.method != "auto":
            return (self.method,)
        if rung in ("direct", "multilevel"):
            return ("gmres",)
        if self.seen.definite and (rung == "cheap" or _keeps_definite(self.recipes[rung][0])):
            return ("cg", "gmres")
        return ("gmres",) if rung == "asked" else ("bicgstab", "gmres")

    def _reason(self, rung) -> str:
        seen = self.seen
        if self.asked:
            return "it was asked for"
        if rung == "cheap":
            if seen.m_matrix:
                return "row sums are kept, which fits a matrix of this sign pattern"
            return "A may be positive definite" if seen.definite else "it costs next to nothing"
        if rung == "direct":
            return "the system is small enough" if seen.n <= MOST_ROWS else "its cost, counted before, is the least"
        return "the diagonal has gaps or zeros" if not seen.diagonal.usable else "it is the strongest"

    def _name(self, rung) -> str:
        recipe = self.recipes[rung][0]
        return "no preconditioner" if recipe is None else repr(recipe)

    def _singular(self, F, b, scale: float) -> str:
        """The evidence that no x solves A x = b, or "".

        It is a vector v with A v = 0, and a u with u^H A = 0, both to rounding, where b has a part along u: then
        u^H (b - A x) is the same for all x. Both are found by inverse iteration with the factors F, which finds none
        unless they are good ones; u from b itself, which leads to the part of b that is outside of the range of A.
        """
        if F is None:
            return ""
        S, xp, eps = self.A.tosparse(), namespace(b), float(np.finfo(self.A.dtype).eps)
        begin = xp.asarray(np.random.default_rng(0).standard_normal(self.A.n)).astype(b.dtype)
        v = _null_vector(S, F, begin, "N", eps)
        u = None if v is None else _null_vector(S.conj().T.tocsr(), F, b / scale, "H", eps)
        outside = 0.0 if u is None else abs(complex((u.conj() * (b / scale)).sum()))
        if outside <= self.rtol:
            return ""
        return (
            f"A v = 0 to rounding for a v of length 1 (||A v|| = {_norm(S @ v):.1e}, largest entry of A "
            f"{float(abs(S).max()):.1e}), and b has a part of {outside:.1e} of its length outside of A's range"
        )


def _null_vector(S, F, v, trans: str, eps: float):
    """A unit vector with S v = 0 to rounding, from v, with factors F of about S (trans "N") or S^H ("H"); None if it
    is not found.

    Inverse iteration with F^H F, for the right singular vector of the smallest singular value. Then F^-1 (F v - S v)
    takes away what a shift in F has brought in. v is looked at with and without its small entries.
    """
    other = "H" if trans == "N" else "N"
    for step in range(5):
        with np.errstate(over="ignore", invalid="ignore"):
            if step < 3:
                w = F.solve(v, other)
                v = F.solve(w / (_norm(w) or 1.0), trans)
            else:
                v = v - F.solve(S @ v, trans)
            size = _norm(v)
        if not (math.isfinite(size) and size > 0):
            return None
        v = v / size
        for small in (0.0, eps, 10 * NUDGE) if step >= 2 else ():
            v[abs(v) <= small * abs(v).max()] = 0
            if _norm(S @ v) <= ROUNDINGS * eps * _norm(abs(S) @ abs(v)):
                return v / _norm(v)
    return None


def worth(cost: float, elapsed: float, rest: float) -> bool:
    """Whether to change to what costs `cost`, where `rest` more seconds are expected after `elapsed`."""
    return rest > cost * (1 + CAUTION * max(0.0, 1 - elapsed / cost)) if 0 < cost < math.inf else False


class _Judge:
    """Called at each look at the iteration: whether it goes on, and else why not."""

    def __init__(self, ladder: _Ladder, rung: str, method: str, left: list[str], scale: float):
        self.ladder, self.rung, self.left = ladder, rung, left
        self.expected = STEP.get(method, STEP["gmres"]) * ladder.seen.nnz
        self.target = ladder.rtol * scale
        self.first: float | None = None
        self.began = self.start = 0.0  # the first iteration, and when it was over: before it, kernels may be compiled
        self.smallest = math.inf
        self.next = self.apart = 0.0  # seconds of its own before the next look; of what it spent on looks
        self.status: Status | None = None
        self.change: str | None = None
        self.why = ""

    def __call__(self, iteration: int, norm: float) -> bool:
        ladder, now = self.ladder, perf_counter()
        if ladder.watch is not None and ladder.watch(iteration, norm) is True:
            self.status, self.why = Status.INTERRUPTED, "stopped by the caller"
            return True
        if now > ladder.deadline:
            self.status, self.why = Status.OUT_OF_TIME, "the time limit was reached"
            return True
        if self.first is None:
            self.first = norm
        if norm < self.smallest:
            self.smallest = norm
        if not self.began and iteration > 0:
            self.began, self.start = iteration, now
        if iteration < LEAST or iteration == self.began or not self.left or ladder.asked or self.rung == "direct":
            return False
        elapsed = (now - self.start - self.apart) * iteration / (iteration - self.began)
        if elapsed < self.next or self.target == 0:
            return False
        self.next = 1.1 * elapsed
        if self.rung == "cheap" and not ladder.seen.gpu:
            ladder.pace = min(max(elapsed / iteration / (self.expected + OVERHEAD), 1.0), 5.0)
        wanted = math.log(max(self.first / self.target, 1.0))
        gained = math.log(self.first / self.smallest) if self.smallest > 0 else wanted
        rest = elapsed * (wanted / (gained + PRIOR * wanted) - 1)
        self.change = ladder.better(self.left, elapsed, rest)
        self.apart += perf_counter() - now
        if self.change is None:
            return False
        self.why = f"given up: it was expected to take {rest:.2g} s more"
        return True


def _keeps_definite(recipe) -> bool:
    """Whether the factors of a positive definite matrix are so, too, as cg needs."""
    return recipe is None or type(recipe) in [RECIPES[name] for name in DEFINITE_RECIPES]


def _norm(v) -> float:
    """||v||_2, by finelu's own kernel: BLAS may wake all its threads for it."""
    v = namespace(v).ascontiguousarray(v)
    out = namespace(v).zeros(1, v.real.dtype)
    kernels_for(v).norm(v, out)
    return float(out[0])


class Sequence:
    """Solves A_k x_k = b_k one after the other, as in time steps and Newton's method, and keeps factors while they pay.

    A : the first matrix, or None to take that of the first step.  rtol, recipe, method : as in `solve`.
    The first step solves as `solve` does, and keeps what worked. Each later one decides first:
    - reuse the factors, if A has the pattern that was factored, and the iterations that the last solve took more than
      the first with these factors cost less time than an update;
    - update them (`F.update`) with the values of A_k, if they cost more;
    - rebuild, where the pattern has changed;
    - solve as at first, where size, device or precision have.
    A reuse or update that breaks down, or does not converge within twice the time that a fresh start would take, is
    given up for an update or rebuild, and that, if it fails, for `solve` from the beginning, which may choose another
    recipe. The last x is the first guess where its residual is smaller than b.
    decisions : what was done at each step, "solve", "reuse", "update" or "rebuild".
    """

    def __init__(self, A=None, *, rtol=1e-8, recipe="auto", method="auto"):
        self.rtol, self.recipe, self.method = _number("rtol", rtol), _chosen(recipe), _known(method)
        self.decisions: list[str] = []
        self._A, self._F, self._x = A, None, None
        self._pattern: CSR | None = None
        self._name = ""
        self._fresh = self._last = 0  # iterations with fresh factors, and of the last solve
        self._pace = 0.0  # seconds of an iteration
        self._made = self._updated = 0.0  # seconds to make the factors, and to update them

    def step(self, A=None, b=None) -> Solution:
        """Solve A x = b; A=None: the matrix of the step before. `explain()` of the Solution tells the decision.

        Raises as `solve` does.
        """
        start = perf_counter()
        same = A is None
        A = self._A if same else A
        if A is None or b is None:
            raise ParameterError("Sequence.step(A, b): a matrix, here or when the Sequence was made, and b are needed.")
        A = as_csr(A, diagonal=False)
        b = check_vector(b, A.n, A.data)
        if b.ndim == 2 and b.shape[1] != 1:
            raise MatrixError(f"b has {b.shape[1]} columns; a step solves for one: call it for each.")
        self._A = A
        A, v = _precise(A, b.reshape(-1), self.rtol)
        decision, why = self._decide(A, same)
        solution = None
        if decision != "solve":
            solution, decision, why = self._with_factors(A, v, decision, why, same)
        if solution is None:
            decision, solution = "solve", self._from_the_beginning(A, v)
        self._x = solution.x if solution.converged else None
        self.decisions.append(decision)
        return replace(
            solution,
            x=solution.x.reshape(b.shape),
            seen=(*solution.seen, f"{decision}: {why}"),
            timings={"solve": perf_counter() - start},
        )

    def _decide(self, A: CSR, same: bool) -> tuple[str, str]:
        if self._F is None or self._pattern is None:
            return "solve", "there are no factors" + (" yet" if not self.decisions else "")
        known = self._pattern
        if on_gpu(A.data) != on_gpu(known.data) or A.n != known.n or A.dtype != known.dtype:
            return "solve", "A has another size, device or precision"
        if same:
            return "reuse", "A is the same"
        if not known.same_pattern(A):
            return "rebuild", "the pattern of A has changed"
        excess = max(self._last - self._fresh, 0) * self._pace
        price = self._updated or self._made
        if excess > price:
            return "update", f"the last solve took {excess:.2g} s more than with fresh factors, an update {price:.2g} s"
        return "reuse", f"an update takes {price:.2g} s, and old factors cost {excess:.2g} s at the last step"

    def _with_factors(self, A: CSR, b, decision: str, why: str, same: bool):
        """(Solution or None, what was done in the end, why)."""
        ways = {"reuse": ("reuse",) if same else ("reuse", "update", "rebuild"), "update": ("update", "rebuild")}
        for way in ways.get(decision, ("rebuild",)):
            start = perf_counter()
            try:
                if way == "update":
                    self._F.update(A)
                elif way == "rebuild":
                    self._F = self._F.recipe.factor(A)
                    self._pattern = A
            except (FineluError, ArithmeticError, MemoryError) as error:
                why += f"; {way} failed: {error}"
                continue
            synchronize(A.data)
            spent = perf_counter() - start
            if way == "update":
                self._updated = spent
            elif way == "rebuild":
                self._made = spent
            price = self._updated or self._made
            patience = math.inf if way == "rebuild" else 2 * (self._fresh * self._pace + price) + PATIENCE
            solution = self._iterate(A, b, patience)
            if solution.converged:
                if way != "reuse":
                    self._fresh = self._last
                return solution, way, why
            why += f"; {way} did not converge ({solution.status.name.lower().replace('_', ' ')})"
        return None, decision, why

    def _iterate(self, A: CSR, b, patience: float) -> Solution:
        """With the factors at hand, for at most `patience` seconds."""
        begin = perf_counter()
        product, scale = as_operator(A, "A", b, b.dtype), _norm(b)
        x, r = namespace(b).zeros_like(b), b
        if self._x is not None and np.can_cast(self._x.dtype, b.dtype):
            rest = b - product @ self._x
            if _norm(rest) < scale:
                x, r = self._x, rest
        solution = getattr(krylov, self._name)(
            A,
            r,
            M=self._F,
            rtol=0.0,
            atol=self.rtol * scale,
            maxiter=MAXITER,
            watch=lambda *_: perf_counter() - begin > patience,
            **_restart(self._name, RESTART),
        )
        x = x + solution.x
        size = _norm(b - product @ x)
        status = solution.status
        if status is Status.CONVERGED and not size <= self.rtol * scale:
            status = Status.STAGNATED
        self._last = solution.iterations
        if solution.iterations:
            self._pace = (perf_counter() - begin) / solution.iterations
        return replace(solution, x=x, status=status, residual_norm=size)

    def _from_the_beginning(self, A: CSR, b) -> Solution:
        self._F = self._pattern = None
        ladder = _Ladder(A, self.rtol, self.recipe, self.method, memory=USABLE * free_memory(np.empty(0)))
        solution = ladder.solve(b)
        if solution.converged and ladder.preferred is not None and len(solution.attempts) > 0:
            done = solution.attempts[-1]
            self._F, self._pattern = ladder.factors[ladder.preferred], A
            self._name = "gmres" if done.method == "refinement" else done.method
            self._made, self._updated = done.setup_seconds, 0.0
            self._fresh = self._last = done.iterations
            self._pace = done.seconds / max(done.iterations, 1)
        return solution


def _restart(method: str, length: int) -> dict[str, int]:
    return {"restart": length} if method in ("gmres", "fgmres") else {}
