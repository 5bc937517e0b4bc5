"""solve(A, b): looks at A, picks recipe and method, changes to another where one fails or takes too long, and says so.

The ladder. First a factorization that costs next to nothing (ILU0, IC0, MILU0); while it iterates, the rest of its time
is predicted from the digits gained so far, and compared with what the next rungs are expected to take: a threshold
factorization (ILUT, ICT; ParILUT on a GPU), a complete sparse L U, whose fill and work are counted before, and the
multilevel ILU. What is predicted to end first goes on, from the best x so far. A breakdown or a stagnation ends a rung
at once. No rung is tried twice.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu import krylov
from finelu.errors import FineluError, MatrixError, ParameterError, SingularMatrix, StructurallySingular, ZeroPivot
from finelu.kernels import kernels_for, namespace, on_gpu, require_gpu, synchronize, to_host
from finelu.krylov.operators import as_operator
from finelu.matrix import CSR, as_csr, check_vector
from finelu.ordering import Fill, with_little_fill
from finelu.preconditioners import IC0, ICT, ILU0, ILUT, MILU0, RECIPES, MultilevelILU, ParICT, ParILUT, SparseLU
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
STEP = {"cg": 12e-9, "bicgstab": 24e-9, "gmres": 20e-9}  # an iteration with factors of A's own pattern
ANALYSIS = 0.3e-6  # ordering, elimination tree and column counts of the direct solve
THRESHOLD, MULTILEVEL = 1.5e-6, 5.0e-6  # set-up and iterations together
COLUMNWISE = 1.5e-6  # SuperLU with its column ordering, of rows no longer than SHORT
DIRECT_ENTRY, DIRECT_FLOP = 20e-9, 0.25e-9  # of the complete factors
SHORT = 12  # mean entries a row
OVERHEAD = 1e-4  # seconds of an iteration whatever its size
ON_GPU = 0.1  # part of THRESHOLD that a factorization on the GPU takes
BYTES = 16  # an entry of factors
SYMMETRIC_PATTERN = 0.5  # part of the entries with a partner, from which on rows and columns are ordered together
NEARLY_ALL = 0.99
ROUNDINGS = 8  # of the terms of A v, up to which it is 0
CAUTION = 4.0  # how many times longer than the other an iteration that has just begun must be expected to take
PRIOR = 1 / 60  # of the digits wanted, that count as gained before the first iteration
PATIENCE = 0.05  # seconds that old factors get in any case
LEAST = 5  # iterations before anything is expected


@dataclass(frozen=True)
class Look:
    """What decides about the ladder. m_matrix: positive entries beside the diagonal and negative row sums are rare."""

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
        signs = "; off the diagonal it is negative, with row sums that are not" if self.m_matrix else ""
        return (f"{self.n} rows, {self.nnz} entries, {kind}; {on_diagonal}{signs}",)


def look(A: CSR) -> Look:
    """Look at A. Cost: a transposition and a few passes over the entries, on the host."""
    kind, found = symmetry(A), diagonal(A)
    S = to_host(A.tosparse())
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
        m_matrix = bool(wrong <= (1 - NEARLY_ALL) * right and fine >= NEARLY_ALL)
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
        factors, estimated before they are made; None: what the machine has free.
    watch : watch(iteration, residual_norm), as the Krylov methods call it; True ends the solve.
    Returns a Solution with `explain()`; of many columns: residual_norm, history and status of the worst one, the
    iterations of all. `converged` only if ||b - A x|| <= rtol ||b|| for the x returned, computed apart; else x is the
    best iterate known. Status.SINGULAR where a vector v with A v = 0 to rounding shows that there is no solution.
    float32 and complex64 are solved in double precision where rtol is below 1e-5, and x is double then.
    Raises MatrixError for a wrong shape, NaN or Inf, ParameterError for a meaningless argument.
    The rules are those of this module's head and constants; docs/solve.md tells them.
    """
    start = perf_counter()
    rtol = _number("rtol", rtol, least=0.0)
    limits = [None if v is None else _number(name, v, least=0.0) for name, v in
              (("time_limit", time_limit), ("memory_limit", memory_limit))]  # fmt: skip
    if method != "auto" and method not in METHODS:
        raise ParameterError(f"there is no method {method!r}; one of auto, {', '.join(METHODS)} is needed.")
    if device not in (None, "cpu", "cuda"):
        raise ParameterError(f"device={device!r}; None, 'cpu' or 'cuda' is needed.")
    chosen = _chosen(recipe)
    A = as_csr(A, diagonal=False)
    b = check_vector(b, A.n, b)
    home = b
    A, b = _placed(A, b, device)
    dtype = np.result_type(A.dtype, b.dtype)
    if dtype.itemsize // (2 if dtype.kind == "c" else 1) == 4 and rtol < 1e-5:
        dtype = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    A = as_csr(A, diagonal=False, dtype=np.result_type(A.dtype, dtype.char.lower() if A.dtype.kind != "c" else dtype))
    with _word_about_compiling(watch is None and sys.stderr is not None and sys.stderr.isatty()):
        ladder = _Ladder(A, rtol, chosen, method, limits[0], limits[1], watch, start)
        columns = b.reshape(A.n, -1)
        found = [ladder.solve(columns[:, c]) for c in range(columns.shape[1])]
    return _together(found, b.shape, home, start)


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


def _number(name: str, value, least: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ParameterError(f"{name}={value!r}; a number is needed.") from None
    if not (number >= least and math.isfinite(number)):
        raise ParameterError(f"{name}={number}; a finite number, {least:g} or larger, is needed.")
    return number


def _chosen(recipe):
    if isinstance(recipe, Recipe) or recipe is None or recipe == "auto":
        return recipe
    if recipe == "none":
        return None
    if not isinstance(recipe, str) or recipe not in RECIPES:
        raise ParameterError(f"there is no recipe {recipe!r}; one of auto, {', '.join(RECIPES)}, none is needed.")
    return RECIPES[recipe]()


def _placed(A: CSR, b, device):
    if device == "cuda" and not on_gpu(A.data):
        cupy = require_gpu()
        A = CSR(*(cupy.asarray(part) for part in (A.indptr, A.indices, A.data, A.diag)))
    if device == "cpu" and on_gpu(A.data):
        A = CSR(*(to_host(part) for part in (A.indptr, A.indices, A.data, A.diag)))
    if device is not None:
        b = namespace(A.data).asarray(b) if on_gpu(A.data) else to_host(b)
    return A, check_vector(b, A.n, A.data)


def _together(found: list[Solution], shape, home, start: float) -> Solution:
    """One Solution of those of all columns."""
    xp = namespace(found[0].x)
    worst = max(found, key=lambda s: (not s.converged, s.attempts[-1].residual if s.attempts else 0.0))
    x = xp.stack([s.x for s in found], axis=1).reshape(shape)
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

    def __init__(self, A: CSR, rtol, recipe, method, time_limit, memory_limit, watch, start):
        self.A, self.rtol, self.method, self.watch = A, rtol, method, watch
        self.deadline = math.inf if time_limit is None else start + time_limit
        self.memory = _free_memory() if memory_limit is None else memory_limit
        self.seen = look(A)
        self.pace = 1.0  # how much slower than STEP and its like this machine is
        self.order: np.ndarray | None = None
        self.fill: Fill | None = None  # of the direct solve, once counted
        self.factors: dict[str, Any] = {}
        self.broken: dict[str, str] = {}
        self.proven_singular = ""
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
            rungs["threshold"] = (ParICT() if seen.gpu else ICT(), general) if seen.definite else (general,)
        rungs["direct"] = (SparseLU(ordering="colamd") if self.by_columns else SparseLU(),)
        rungs["multilevel"] = (MultilevelILU(),)
        return rungs

    # what a rung costs

    def cost(self, rung: str) -> float:
        """Seconds that a rung is expected to take, its iterations included; Inf where it finds no room."""
        seen = self.seen
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
        if BYTES * seen.nnz > self.memory:
            return math.inf
        return seconds * (ON_GPU if seen.gpu and rung == "threshold" else 1.0)

    def count_fill(self) -> None:
        """Order A as the direct solve will, and count what it takes."""
        if self.fill is None and not self.by_columns:
            self.order, self.fill = with_little_fill(self.A)

    def next_rung(self, left: list[str]) -> str | None:
        """The cheapest of those left that fits the memory and the time; without an order among equals lost."""
        if "direct" in left and self.seen.n <= MOST_ROWS:
            return "direct"
        if "cheap" in left or self.asked:
            return left[0] if left else None
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
        A, xp = self.A, namespace(b)
        self.product = as_operator(A, "A", b, np.result_type(A.dtype, b.dtype))
        scale = _norm(b)
        x, residual = xp.zeros(A.n, np.result_type(A.dtype, b.dtype)), 1.0
        left = [rung for rung in self.recipes if rung not in self.broken]
        if self.preferred in left:
            left.remove(self.preferred)
            left.insert(0, self.preferred)
        attempts: list[Attempt] = []
        last: Solution | None = None
        rung = self.preferred or self.next_rung(left)
        why = "it solved the column before" if self.preferred else self._reason(rung)
        status = Status.MAX_ITERATIONS
        while rung is not None:
            left.remove(rung)
            if perf_counter() > self.deadline:
                status = Status.OUT_OF_TIME
                break
            found, attempt, change = self._attempt(rung, why, b, x, residual, scale, left)
            attempts.append(attempt)
            if found is not None:
                last = found
                if attempt.residual < residual or scale == 0:
                    x, residual = found.x, attempt.residual
                status = found.status
                if residual <= self.rtol or scale == 0:
                    status, self.preferred = Status.CONVERGED, rung
                    break
                if status is Status.CONVERGED:
                    status = Status.STAGNATED  # the method's claim, which the check here does not share
                if status in (Status.INTERRUPTED, Status.OUT_OF_TIME) and change is None:
                    break
            rung, before = change or self.next_rung(left), rung
            why = (change and f"{self._name(before)} was expected to take longer") or f"{self._name(before)} failed"
        if status is not Status.CONVERGED and status not in (Status.INTERRUPTED, Status.OUT_OF_TIME):
            if self._singular(b):
                status = Status.SINGULAR
            elif last is None:
                status = Status.OUT_OF_TIME if perf_counter() > self.deadline else Status.BREAKDOWN
        done = attempts[-1] if attempts else None
        return Solution(
            x=x,
            status=status,
            iterations=sum(a.iterations for a in attempts),
            residual_norm=residual * scale,
            history=last.history if last is not None else np.array([scale]),
            method=done.method if done else "",
            recipe=done.recipe if done else "",
            seen=self.seen.sentences() + ((self.proven_singular,) if self.proven_singular else ()),
            attempts=tuple(attempts),
        )

    def _attempt(self, rung, why, b, x, residual, scale, left):
        """(Solution or None, Attempt, the rung to change to or None)."""
        start, made = perf_counter(), 0.0
        if rung not in self.factors:
            outcome = self._factor(rung)
            made = perf_counter() - start
            if outcome:
                self.broken[rung] = outcome
                return None, Attempt(self._name(rung), "", why, f"no factors: {outcome}", 0, made, 0.0, residual), None
        F, method, begin = self.factors[rung], self._method(rung), perf_counter()
        judge = _Judge(self, rung, method, left, scale)
        total, r, iterations, history = x, b if residual == 1.0 else b - self.product @ x, 0, [scale * residual]
        refined = self._refine(F, total, b, r, judge.target) if rung == "direct" and self.method == "auto" else None
        if refined is not None:
            total, r, history = refined
            iterations, status = len(history) - 1, Status.CONVERGED if history[-1] <= judge.target else Status.STAGNATED
        methods = [method, "gmres"] if self.method == "auto" and method != "gmres" else [method]
        if refined is None or status is not Status.CONVERGED:  # corrections are solved for: rtol keeps its meaning
            for method in methods:
                found = self._iterate(method, r, F, judge, FEW if rung == "direct" else RESTART)
                iterations, history, status = iterations + found.iterations, found.history, found.status
                total = total + found.x
                r = b - self.product @ total
                if judge.status or status not in (Status.BREAKDOWN, Status.STAGNATED, Status.NOT_FINITE):
                    break
        reached = _norm(r) / (scale or 1.0)
        if not math.isfinite(reached):
            total, reached = x, residual
        status = judge.status or status
        outcome = "solved" if reached <= self.rtol else judge.why or status.name.lower().replace("_", " ")
        method = "refinement" if refined is not None and status is Status.CONVERGED else method
        attempt = Attempt(self._name(rung), method, why, outcome, iterations, made, perf_counter() - begin, reached)
        found = Solution(total, status, iterations, reached * scale, np.asarray(history), method, self._name(rung))
        return found, attempt, judge.change

    def _iterate(self, method: str, r, F, judge, restart: int) -> Solution:
        options = {"restart": restart} if method in ("gmres", "fgmres") else {}
        most = restart * restart if restart == FEW else MAXITER
        return getattr(krylov, method)(
            self.A, r, M=F, rtol=0.0, atol=judge.target, maxiter=most, watch=judge, **options
        )

    def _refine(self, F, x, b, r, target: float):
        """(x, b - A x, history) after x <- x + M^-1 (b - A x), as long as that at least halves the residual; None if
        the first does not."""
        history = [_norm(r)]
        while history[-1] > target and len(history) <= FEW:
            better = x + F.solve(r)
            rest = b - self.product @ better
            size = _norm(rest)
            if not size <= history[-1] / 2:
                break
            x, r = better, rest
            history.append(size)
        return (x, r, history) if len(history) > 1 else None

    def _factor(self, rung: str) -> str:
        """Make the factors of a rung, by its first recipe that finds some; "" or why there are none."""
        outcome = ""
        for recipe in self.recipes[rung]:
            try:
                if isinstance(recipe, SparseLU) and self.order is not None and self.fill is not None:
                    self.factors[rung] = SparseLUFactors(recipe, self.A, known=(self.order, self.fill))
                else:
                    self.factors[rung] = None if recipe is None else recipe.factor(self.A)  # type: ignore[attr-defined]
            except (ZeroPivot, SingularMatrix, MatrixError, MemoryError) as error:
                if self.asked:
                    raise
                outcome = outcome or str(error).split(": ", 1)[-1].rstrip(".")
                if isinstance(error, StructurallySingular):
                    self.proven_singular = str(error)
            else:
                self.recipes[rung] = (recipe,)
                synchronize(self.A.data)
                return ""
        return outcome

    def _method(self, rung: str) -> str:
        if self.method != "auto":
            return self.method
        if rung == "direct":
            return "gmres"
        if self.seen.definite and (rung not in ("asked", "threshold") or _keeps_definite(self.recipes[rung][0])):
            return "gmres" if rung == "multilevel" else "cg"
        return "gmres" if rung in ("multilevel", "asked") else "bicgstab"

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

    def _singular(self, b) -> bool:
        """Whether a vector of the null space of A, found by inverse iteration, shows that b is outside of A's range."""
        if self.proven_singular:
            return True
        F = next((self.factors[rung] for rung in ("direct", "multilevel") if rung in self.factors), None)
        try:
            if F is None and any("singular" in text for text in self.broken.values()):
                F = SparseLU(shift=1e-10).factor(self.A)
        except (FineluError, MemoryError):
            return False
        if F is None:
            return False
        S, xp = self.A.tosparse(), namespace(b)
        eps = float(np.finfo(self.A.dtype).eps)
        largest = float(abs(S).max())
        rng = np.random.default_rng(0)
        vectors = []
        for matrix, trans in ((S, "N"), (S.conj().T.tocsr(), "H")):
            v = xp.asarray(rng.standard_normal(self.A.n)).astype(self.A.dtype)
            for _ in range(3):
                w = F.solve(v, trans)
                size = _norm(w)
                if not (math.isfinite(size) and size > 0):
                    return False
                v = w / size
            if _norm(matrix @ v) > ROUNDINGS * eps * _norm(abs(matrix) @ abs(v)):
                return False
            vectors.append(v)
        outside = abs(complex((vectors[1].conj() * b).sum())) / (_norm(b) or 1.0)
        if outside <= self.rtol:
            return False
        self.proven_singular = (
            f"A v = 0 to rounding for a v of length 1 (||A v|| = {_norm(S @ vectors[0]):.1e}, largest entry of A "
            f"{largest:.1e}), and b has a part of {outside:.1e} of its length outside of A's range"
        )
        return True


def worth(cost: float, elapsed: float, rest: float) -> bool:
    """Whether to change to what costs `cost`, where `rest` more seconds are expected after `elapsed`."""
    return rest > cost * (1 + CAUTION * max(0.0, 1 - elapsed / cost)) if 0 < cost < math.inf else False


class _Judge:
    """Called at each look at the iteration: whether it goes on, and else why not."""

    def __init__(self, ladder: _Ladder, rung: str, method: str, left: list[str], scale: float):
        self.ladder, self.rung, self.left = ladder, rung, left
        self.start, self.expected = perf_counter(), STEP.get(method, STEP["gmres"]) * ladder.seen.nnz
        self.target = ladder.rtol * scale
        self.first: float | None = None
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
        elapsed = now - self.start - self.apart
        if iteration < LEAST or elapsed < self.next or not self.left or ladder.asked or self.rung == "direct":
            return False
        self.next = 1.1 * elapsed
        if self.rung == "cheap" and not ladder.seen.gpu:
            ladder.pace = min(max(elapsed / iteration / (self.expected + OVERHEAD), 1.0), 5.0)
        wanted = math.log(max(self.first / self.target, 1.0)) if self.target > 0 else math.inf
        gained = math.log(self.first / self.smallest) if self.smallest > 0 else wanted
        rest = elapsed * (wanted / (gained + PRIOR * wanted) - 1)
        self.change = ladder.better(self.left, elapsed, rest)
        self.apart += perf_counter() - now
        if self.change is None:
            return False
        self.why = f"given up: it was expected to take {rest:.2g} s more"
        return True


def _keeps_definite(recipe) -> bool:
    """Whether the factors of a positive definite matrix are Hermitian, as cg needs."""
    return recipe is None or type(recipe).__name__ in (
        "IC0",
        "ICT",
        "ParIC",
        "ParICT",
        "Jacobi",
        "BlockJacobi",
        "MILU0",
    )


def _norm(v) -> float:
    """||v||_2, by finelu's own kernel: BLAS may wake all its threads for it."""
    v = namespace(v).ascontiguousarray(v)
    out = namespace(v).zeros(1, v.real.dtype)
    kernels_for(v).norm(v, out)
    return float(out[0])


def _free_memory() -> float:
    """Bytes that the machine has free, 80% of them."""
    return 0.8 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Sequence:
    """Solves A_k x_k = b_k one after the other, as in time steps and Newton's method, and keeps factors while they pay.

    A : the first matrix, or None to take that of the first step.  rtol, recipe, method : as in `solve`.
    The first step solves as `solve` does, and keeps what worked. Each later one decides first:
    - reuse the factors, if A is the same object or has the pattern that was factored, and the last solve was not slower
      than with fresh factors by more than an update takes;
    - update them (`F.update`) with the values of A_k, if it was;
    - rebuild, where the pattern has changed.
    A reuse or update that breaks down, or does not converge within twice the time that a fresh start would take, is
    given up for a rebuild, and that, if it fails, for `solve` from the beginning, which may choose another recipe.
    The last x is the first guess where its residual is smaller than b.
    decisions : what was done at each step, "solve", "reuse", "update" or "rebuild".
    """

    def __init__(self, A=None, *, rtol=1e-8, recipe="auto", method="auto"):
        self.rtol, self.recipe, self.method = _number("rtol", rtol, least=0.0), recipe, method
        _chosen(recipe)
        self.decisions: list[str] = []
        self._first, self._A, self._F, self._x = A, None, None, None
        self._pattern: CSR | None = None
        self._name = ""
        self._fresh = self._last = 0.0  # seconds of the iterations with fresh factors, and of the last solve
        self._made = self._updated = 0.0  # seconds to make the factors, and to update them

    def step(self, A=None, b=None) -> Solution:
        """Solve A x = b; A=None: the matrix of the step before. `explain()` of the Solution tells the decision.

        Raises as `solve` does.
        """
        A = self._first if A is None and self._A is None else self._A if A is None else A
        if A is None or b is None:
            raise ParameterError("Sequence.step(A, b): a matrix, here or when the Sequence was made, and b are needed.")
        A = as_csr(A, diagonal=False)
        b = check_vector(b, A.n, A.data)
        if b.ndim == 2 and b.shape[1] != 1:
            raise MatrixError(f"b has {b.shape[1]} columns; a step solves for one: call it for each.")
        decision, why = self._decide(A)
        solution = None
        if decision != "solve":
            solution, decision, why = self._with_factors(A, b.reshape(-1), decision, why)
        if solution is None or not solution.converged:
            decision, why = "solve", why if self.decisions else "there are no factors yet"
            solution = self._from_the_beginning(A, b.reshape(-1))
        self._A, self._x = A, solution.x if solution.converged else None
        self.decisions.append(decision)
        return replace(solution, x=solution.x.reshape(b.shape), seen=(*solution.seen, f"{decision}: {why}"))

    def _decide(self, A: CSR) -> tuple[str, str]:
        if self._F is None or self._pattern is None:
            return "solve", "there are no factors yet"
        if on_gpu(A.data) != on_gpu(self._pattern.data) or A.n != self._pattern.n:
            return "solve", "A has another size or device"
        if A is not self._A and not self._pattern.same_pattern(A):
            return "rebuild", "the pattern of A has changed"
        if A is self._A:
            return "reuse", "A is the same"
        excess = self._last - self._fresh
        price = self._updated or self._made
        if excess > price:
            return "update", f"the last solve took {excess:.2g} s more than with fresh factors, an update {price:.2g} s"
        return "reuse", f"an update takes {price:.2g} s, and old factors cost {max(excess, 0.0):.2g} s at the last step"

    def _with_factors(self, A: CSR, b, decision: str, why: str):
        """(Solution or None, what was done in the end, why)."""
        for attempt in dict.fromkeys((decision, "update" if decision == "reuse" else "rebuild", "rebuild")):
            if attempt == "update" and self._pattern is not None and not self._pattern.same_pattern(A):
                continue
            start = perf_counter()
            try:
                if attempt == "update":
                    self._F.update(A)
                elif attempt == "rebuild":
                    self._F = self._F.recipe.factor(A)
                    self._pattern = A
            except (FineluError, ArithmeticError, MemoryError) as error:
                why = f"{attempt} failed ({error})"
                if attempt == "rebuild":
                    self._F = None
                continue
            synchronize(A.data)
            spent = perf_counter() - start
            if attempt == "update":
                self._updated = spent
            elif attempt == "rebuild":
                self._made = spent
            patience = (
                math.inf if attempt == "rebuild" else 2 * (self._fresh + (self._updated or self._made)) + PATIENCE
            )
            solution = self._iterate(A, b, patience)
            if solution.converged:
                if attempt != "reuse":
                    self._fresh = self._last
                return solution, attempt, why
            why = f"{attempt} did not converge ({solution.status.name.lower().replace('_', ' ')})"
        return None, decision, why

    def _iterate(self, A: CSR, b, patience: float) -> Solution:
        """With the factors at hand, for at most `patience` seconds."""
        begin = perf_counter()
        x0, r, scale = None, b, _norm(b)
        if self._x is not None:
            product = as_operator(A, "A", b, np.result_type(A.dtype, b.dtype))
            rest = b - product @ self._x
            if _norm(rest) < scale:
                x0, r = self._x, rest
        options = {"restart": RESTART} if self._name in ("gmres", "fgmres") else {}
        solution = getattr(krylov, self._name)(
            A,
            r,
            M=self._F,
            rtol=0.0,
            atol=self.rtol * scale,
            maxiter=MAXITER,
            watch=lambda *_: perf_counter() - begin > patience,
            **options,
        )
        self._last = perf_counter() - begin
        return solution if x0 is None else replace(solution, x=x0 + solution.x)

    def _from_the_beginning(self, A: CSR, b) -> Solution:
        ladder = _Ladder(A, self.rtol, _chosen(self.recipe), self.method, None, None, None, perf_counter())
        solution = ladder.solve(b)
        self._F = None
        if solution.converged and ladder.preferred is not None:
            done = solution.attempts[-1]
            self._F, self._pattern = ladder.factors[ladder.preferred], A
            self._name = "gmres" if done.method == "refinement" else done.method
            self._made, self._updated, self._fresh, self._last = done.setup_seconds, 0.0, done.seconds, done.seconds
        return solution
