"""The ladder of `solve`: what is tried first, what next, when to change, and what shows that A is singular.

First a factorization that costs next to nothing (ILU0, IC0, MILU0); while it iterates, the rest of its time is
predicted from the digits gained so far, and compared with what the next rungs are expected to take: a threshold
factorization (ILUT, ICT; ParILUT on a GPU), a complete sparse L U, whose fill and work are counted before, and the
multilevel ILU. What is predicted to end first goes on, from the best x so far. A breakdown or a stagnation ends a rung
at once. No rung is tried twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from finelu import krylov
from finelu.device import free_memory, namespace, on_gpu, synchronize
from finelu.errors import FineluError, MatrixError, StructurallySingular
from finelu.kernels.cpu.inspection import signs
from finelu.kernels.operands import Mirrored
from finelu.krylov.operators import as_operator
from finelu.krylov.residual import Residual
from finelu.matrix import CSR, as_csr, norm
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
from finelu.preconditioners.direct import SHORT, SparseLUFactors
from finelu.preconditioners.recipe import Recipe
from finelu.properties import Diagonal, diagonal, mirror
from finelu.result import Attempt, Solution, Status
from finelu.scaling import require_matching
from finelu.singular import NUDGE, condition, evidence

INDEFINITE = (Status.INDEFINITE, Status.INDEFINITE_PRECONDITIONER)
GOES_ON = (Status.BREAKDOWN, Status.STAGNATED, Status.NOT_FINITE)  # of a method, with gmres
HOPELESS = (Status.SINGULAR, Status.NUMERICALLY_SINGULAR, Status.PRECISION_LIMIT)
ENDS = (Status.CONVERGED, Status.INTERRUPTED, Status.OUT_OF_TIME, *HOPELESS)
LIMITS = (*ENDS[:3], Status.MAX_ITERATIONS, Status.OUT_OF_MEMORY)  # of the caller's, or none was needed
FEW = 6  # a cycle of the iterations that refine a complete factorization; so many cycles at most
MAXITER = 2000  # of one attempt
MOST_ROWS = 400  # up to which the direct solve comes first: it takes less than the look at anything else

# What to expect, in seconds an entry of A, measured on one core of an Intel Xeon; only their ratios to the iterations
# matter, since the pace of the first attempt corrects them.
STEP = {"cg": 4e-9, "bicgstab": 5e-9, "gmres": 8e-9}  # an iteration with factors of A's own pattern
ANALYSIS_ROW, ANALYSIS = 0.6e-6, 0.08e-6  # ordering, elimination tree and column counts of the direct solve
THRESHOLD, MULTILEVEL = 1.5e-6, 5.0e-6  # set-up and iterations together
COLUMNWISE = 0.5e-6  # SuperLU with its column ordering, of rows no longer than SHORT
DIRECT_ROW, DIRECT_ENTRY, DIRECT_FLOP = 0.5e-6, 25e-9, 0.09e-9  # of the complete factors
DENSE_FLOP = 0.2e-9  # of SuperLU, where its factors turn out to be dense
OVERHEAD = 1e-4  # seconds of an iteration whatever its size
ON_GPU = 0.1  # part of THRESHOLD that a factorization on the GPU takes
UNASKED = 2**24  # bytes that any process has that runs at all
USABLE = 0.8  # part of the free memory that factors may take
BESIDE = 8  # bytes an entry of factors takes besides its value
COLUMN_FILL = 10  # times the entries of A, the room that is expected of factors with columns ordered alone
SYMMETRIC_PATTERN = 0.5  # part of the entries with a partner, from which on rows and columns are ordered together
NEARLY_ALL = 0.99
LIMIT = 4  # roundings of |A| |x| + |b|, up to which a residual is at the limit of the precision
UNRESOLVED = 0.1  # times 1 / eps, the condition number beyond which no digit of x can be told
OUT_OF_REACH = 1 / 16  # of such a rounding, below which no x of that size has its residual
CAUTION = 3.0  # how many times longer than the other an iteration that has just begun must be expected to take
PRIOR = 1 / 60  # of the digits wanted, that count as gained before the first iteration
LEAST = 5  # iterations before anything is expected
SINGLE = 1e-5  # the least rtol that single precision is trusted with


@dataclass(frozen=True)
class Look:
    """What decides about the ladder. m_matrix: hardly an entry beside the diagonal has its sign or a row outweighs it.

    mirrored : A beside its transpose, see kernels/reference.
    """

    n: int
    nnz: int
    kind: str
    diagonal: Diagonal
    m_matrix: bool
    mirrored: Mirrored
    gpu: bool

    @property
    def paired(self) -> float:
        """The part of the entries (i, j) with an entry (j, i)."""
        return self.mirrored[-1] / max(self.nnz, 1)

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
    """Look at A. Cost: a few passes over the entries, on the host."""
    host = A.on(np)
    mirrored, found = host.mirrored(), diagonal(host)
    m_matrix = False
    if found.usable and A.dtype.kind != "c":
        same, opposite, fine = signs(host.indptr, host.indices, host.data, host.diag, 1e-8)
        m_matrix = opposite > 0 and same <= (1 - NEARLY_ALL) * opposite and fine >= NEARLY_ALL * A.n
    return Look(A.n, A.nnz, mirror(mirrored, A.dtype), found, m_matrix, mirrored, on_gpu(A.data))


class Ladder:
    """The rungs for one A, their factors once made, and what is known of their cost."""

    def __init__(
        self,
        A: CSR,
        rtol,
        recipe="auto",
        method="auto",
        deadline=math.inf,
        memory=None,
        watch=None,
        callback=None,
        norm_callback=None,
        most: float = math.inf,
    ):
        """callback, norm_callback : called with each new x, with each new relative residual norm.  most : iterations of
        one right-hand side."""
        self.A, self.rtol, self.method = A, rtol, method
        self.callback, self.norm_callback, self.most = callback, norm_callback, most
        self.deadline, self.limit, self.watch = deadline, memory, watch
        self.seen = look(A)
        self.definite = self.seen.definite  # until a curvature says otherwise
        self.pace = 1.0  # how much slower than STEP and its like this machine is
        self.order: np.ndarray | None = None
        self.fill: Fill | None = None  # of the direct solve, once counted
        self.factors: dict[str, Any] = {}
        self.broken: set[str] = set()  # rungs without factors
        self.structure = ""  # what a recipe says of a structural singularity
        self.interrupted = False
        self.condition = 1.0  # what complete factors have shown A's condition number not to be below
        self.asked = recipe != "auto"
        self.recipes: dict[str, tuple[Recipe | None, ...]] = {"asked": (recipe,)} if self.asked else self._rungs()
        self.preferred: str | None = None  # the rung that solved the column before
        self.left_behind: set[str] = set()  # rungs that an earlier column has given up, which come last from then on

    @property
    def by_columns(self) -> bool:
        """Whether the direct solve orders columns alone: where rows and columns differ, or rows are to be permuted."""
        return self.seen.paired < SYMMETRIC_PATTERN or (not self.seen.diagonal.usable and self.short)

    def _rungs(self) -> dict[str, tuple[Recipe | None, ...]]:
        """The recipes of each rung: the first, and others for where it finds no factors."""
        seen = self.seen
        rungs: dict[str, tuple[Recipe | None, ...]] = {}
        if seen.diagonal.usable:
            plain: Recipe = IC0() if self.definite else ILU0()
            rungs["cheap"] = (MILU0(), plain) if seen.m_matrix else (plain,)
            general = ParILUT() if seen.gpu else ILUT()
            definite = (ParICT(),) if seen.gpu else (ICT(), ICT(shift=2e-3))
            rungs["threshold"] = (*definite, general) if self.definite else (general,)
        direct = SparseLU(ordering="colamd") if self.by_columns else SparseLU()
        rungs["direct"] = (direct, replace(direct, matching=not seen.diagonal.usable, shift=NUDGE))
        rungs["multilevel"] = (MultilevelILU(),)
        return rungs

    # what a rung costs

    def room(self, rung: str) -> float:
        """Bytes that the factors of a rung may take: counted for the direct solve, where that is possible, else what
        the recipe's `fill` allows."""
        n, nnz, entry = self.seen.n, self.seen.nnz, self.A.dtype.itemsize + BESIDE
        if rung != "direct":
            return entry * nnz * max(1.0, *(float(getattr(recipe, "fill", 1.0)) for recipe in self.recipes[rung]))
        if self.by_columns:
            return entry * (min(COLUMN_FILL * nnz, n**2) if self.short else n**2)
        return entry * (nnz if self.fill is None else self.fill.nnz)

    @property
    def short(self) -> bool:
        """Whether rows are so short that factors with columns ordered alone stay sparse, as experience has it."""
        return self.seen.nnz <= SHORT * self.seen.n

    @property
    def analysis(self) -> float:
        """Seconds, on an idle machine, that it takes to order A and to count what the direct solve would take."""
        return ANALYSIS_ROW * self.seen.n + ANALYSIS * self.seen.nnz

    def cost(self, rung: str) -> float:
        """Seconds that a rung is expected to take, its iterations included; Inf where it finds no room."""
        seen = self.seen
        if not self._fits(self.room(rung)):
            return math.inf
        if rung == "direct":
            if self.by_columns:  # for long rows nothing is known but what dense factors take
                dense = DENSE_FLOP * 2 / 3 * float(seen.n) ** 3
                return self.pace * (COLUMNWISE * seen.nnz if self.short else dense)
            if self.fill is None:
                return self.pace * self.analysis
            return self.pace * (DIRECT_ROW * seen.n + DIRECT_ENTRY * self.fill.nnz + DIRECT_FLOP * self.fill.flops)
        typical = {"cheap": STEP["bicgstab"] * 20, "threshold": THRESHOLD, "multilevel": MULTILEVEL}
        seconds = typical.get(rung, 0.0) * seen.nnz * self.pace
        return seconds * (ON_GPU if seen.gpu and rung == "threshold" else 1.0)

    @cached_property
    def memory(self) -> float:
        """Bytes that the factors of a rung may take."""
        if self.limit is not None:
            return self.limit
        here = free_memory(np.empty(0))
        return USABLE * (min(free_memory(self.A.data), here) if self.seen.gpu else here)

    def _fits(self, room: float) -> bool:
        """Whether so many bytes are there; what is small is not asked for, since asking takes longer than a solve."""
        return (self.limit is None and room <= UNASKED) or room <= self.memory

    def count_fill(self) -> None:
        """Order A as the direct solve will, and count what it takes."""
        if self.fill is None and not self.by_columns:
            self.order, self.fill = with_little_fill(self.A)

    def next_rung(self, left: list[str]) -> str | None:
        """The cheapest of those left that fits the memory and the time."""
        if self.asked:
            return left[0] if left else None
        entry = self.A.dtype.itemsize + BESIDE
        if "direct" in left and self.seen.n <= MOST_ROWS and self._fits(entry * self.seen.n**2):
            return "direct"
        if "cheap" in left and self.cost("cheap") < math.inf:
            return "cheap"
        if "direct" in left and self.cost("direct") < math.inf:
            self.count_fill()
        costs = {rung: self.cost(rung) for rung in left}
        fits = [rung for rung in left if costs[rung] < math.inf and self._in_time(costs[rung] / self.pace)]
        return min(fits, key=lambda rung: costs[rung]) if fits else None

    def _in_time(self, seconds: float) -> bool:
        """Whether so many seconds, at the pace of an idle machine, end before the deadline."""
        return perf_counter() + seconds < self.deadline

    def _next(self, left: list[str]) -> str | None:
        return self.next_rung([rung for rung in left if rung not in self.left_behind]) or self.next_rung(left)

    def better(self, left: list[str], elapsed: float, rest: float) -> str | None:
        """The rung to change to instead of going on for `rest` more seconds, after `elapsed`; None: go on.

        What is expected is uncertain, so the less has been spent, compared with what the other costs, the larger must
        be the gain; that bounds the loss by a wrong expectation. The fill of the direct solve is counted when its
        ordering costs little beside what is expected anyway.
        """
        uncounted = "direct" in left and self.fill is None and not self.by_columns
        if uncounted and self._in_time(self.analysis) and worth(2 * self.pace * self.analysis, elapsed, rest):
            self.count_fill()
            uncounted = False
        costs = {rung: self.cost(rung) for rung in left if not (uncounted and rung == "direct")}
        costs = {rung: cost for rung, cost in costs.items() if self._in_time(cost / self.pace)}
        rung = min(costs, key=lambda rung: costs[rung], default=None)
        return rung if rung is not None and worth(costs[rung], elapsed, rest) else None

    def first(self) -> dict[str, str]:
        """What is tried first: recipe, method and reason, in words; {} where nothing fits the memory."""
        rung = self.next_rung(list(self.recipes))
        if rung is None:
            return {}
        method = "refinement" if rung == "direct" else self._methods(rung)[0]
        return {"recipe": self._name(rung), "method": method, "reason": self._reason(rung)}

    # a right-hand side

    def solve(self, b, x0=None, atol: float = 0.0) -> Solution:
        """Solve for one b (n,) in the dtype of x, to max(rtol ||b||, atol), from x0 where its residual is below b's."""
        b = namespace(b).ascontiguousarray(b)
        scale = norm(b)
        if not math.isfinite(scale):
            raise MatrixError(f"the norm of b overflows in {b.real.dtype}; scale the system down.")
        self.wanted = max(self.rtol, atol / scale) if scale > 0 else 1.0
        if self.wanted >= 1:  # x = 0 is good enough
            return self.nothing(b, Status.CONVERGED, scale)
        if self.interrupted:
            return self.nothing(b, Status.INTERRUPTED, scale)
        target = self.wanted * scale
        product = as_operator(self.A, "A", b, b.dtype)
        self.residual = Residual(product.matrix, product.__matmul__, b.dtype)
        x, residual = namespace(b).zeros_like(b), 1.0
        if x0 is not None:
            _, size = self.residual(b, x0, target)
            if size < scale:
                x, residual = x0.copy(), size / scale
                if size <= target:
                    return replace(self.nothing(b, Status.CONVERGED, size), x=x)
        if self.most == 0:
            return replace(self.nothing(b, Status.MAX_ITERATIONS, residual * scale), x=x)
        last, history, recurrence = None, [residual * scale], [residual * scale]
        left = [rung for rung in self.recipes if rung not in self.broken]
        attempts: list[Attempt] = []
        best: Attempt | None = None  # the one that x is of
        self.iterations = 0  # of this right-hand side
        rung = self.preferred or self._next(left)
        why = "it solved the column before" if self.preferred else self._reason(rung)
        status, verdict = Status.BREAKDOWN, ""
        while rung is not None and perf_counter() <= self.deadline:
            left.remove(rung)
            others = [other for other in left if other not in self.left_behind]
            found, attempt, change = self._attempt(rung, why, b, x, residual, scale, others)
            attempts.append(attempt)
            if found is not None:
                last, status = found, found.status
                self.iterations += found.iterations
                history.extend(found.history[1:])
                recurrence.extend(found.recurrence[1:])
                if attempt.residual < residual:
                    x, residual, best = found.x, attempt.residual, attempt
                if found.residual_norm <= target:
                    status, best, self.preferred = Status.CONVERGED, attempt, rung
                    break
                if status in (Status.OUT_OF_TIME, Status.INTERRUPTED) or self.iterations >= self.most:
                    self.interrupted = status is Status.INTERRUPTED
                    break
                hopeless, verdict = self._hopeless(rung, b, x, residual * scale, change is not None)
                if hopeless is not None:
                    status = hopeless
                    break
            self.left_behind.add(rung)
            before, rung = rung, change or self._next(left)
            why = f"{self._name(before)} " + ("was expected to take longer" if change else "failed")
        seen = self.seen.sentences()
        if status in HOPELESS:
            self._look_at_structure()
        if status not in ENDS:
            in_memory = [rung for rung in left if self.asked or self.cost(rung) < math.inf]
            if self.iterations >= self.most:
                status = Status.MAX_ITERATIONS
            elif in_memory:
                status = Status.OUT_OF_TIME
            elif not left and self.condition * float(np.finfo(b.dtype).eps) > UNRESOLVED:
                status = Status.PRECISION_LIMIT
                verdict = f"the condition number of A is {self.condition:.0e} or more, which no digit of x survives"
            elif left and last is None:
                status = Status.OUT_OF_MEMORY
            if status not in LIMITS:
                self._look_at_structure()
            for rung in left if status is not Status.MAX_ITERATIONS else ():
                why = "the time left is too short for it" if rung in in_memory else "its factors may not find room"
                seen += (f"{self._name(rung)} was left out: {why}",)
        if self.structure and status not in LIMITS:
            status = Status.SINGULAR
        seen += tuple(text for text in (verdict, self.structure) if text)
        return Solution(
            x=x,
            status=status,
            iterations=self.iterations,
            residual_norm=residual * scale,
            history=np.array(history),
            recurrence=np.array(recurrence),
            method=best.method if best else "",
            recipe=best.recipe if best else "",
            seen=seen,
            attempts=tuple(attempts),
        )

    def _look_at_structure(self) -> None:
        """Whether the pattern alone shows that A is singular."""
        if not self.structure:
            try:
                require_matching(self.A)
            except StructurallySingular as error:
                self.structure = str(error)

    def nothing(self, b, status: Status, size: float) -> Solution:
        """x = 0, and nothing tried."""
        x, history = namespace(b).zeros_like(b), np.array([size])
        return Solution(x, status, 0, size, history, recurrence=history, seen=self.seen.sentences())

    def _hopeless(self, rung, b, x, size: float, given_up: bool) -> tuple[Status | None, str]:
        """(status, evidence) where A is shown to be singular, or x to be as good as the precision allows.

        After a rung with incomplete factors, or one that was given up, only the second is asked, unless it holds: a
        null vector is found with good factors only, and then x itself, which has grown, leads to it.
        """
        at_limit = self._at_limit(b, x, size)
        if not at_limit and (given_up or rung in ("cheap", "threshold")):
            return None, ""
        F = self.factors[rung]
        found = evidence(self.A, F, b, self.wanted, x if at_limit else None)
        if found is not None:
            return (Status.SINGULAR if found.exact else Status.NUMERICALLY_SINGULAR), found.text
        if at_limit:
            return Status.PRECISION_LIMIT, self._limit(F, b, x, size)
        self.condition = max(self.condition, condition(self.A, F, b))
        return None, ""

    def _at_limit(self, b, x, size: float) -> bool:
        """Whether the residual norm `size` of x is what rounding x leaves, and more than 16 times what is wanted."""
        rounding = self._rounding(b, x)
        return size <= LIMIT * rounding and self.wanted * norm(b) <= OUT_OF_REACH * rounding

    def _rounding(self, b, x) -> float:
        return float(np.finfo(b.dtype).eps) * norm(self.residual.magnitudes(b, x))

    def _limit(self, F, b, x, size: float) -> str:
        precision = "double" if b.real.dtype == np.float64 else "single"
        rounding = self._rounding(b, x)
        cure = "" if precision == "double" else ", or pass A and b in float64"
        known = condition(self.A, F, x)
        near = ", which may be singular but for rounding," if known * float(np.finfo(b.dtype).eps) > UNRESOLVED else ""
        return (
            f"||b - A x|| is {size / rounding:.1g} roundings of |A| |x| + |b| (backward error "
            f"{size / rounding * float(np.finfo(b.dtype).eps):.1e}): {precision} precision ends here; the condition "
            f"number of A{near} is {known:.0e} or more; ask for rtol >= {2 * size / norm(b):.0e}, rescale "
            f"the unknowns and equations{cure}"
        )

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
        begin = perf_counter()
        try:
            found, judge = self._improve(rung, b, x, residual, scale, left)
        except MemoryError:
            if self.asked:
                raise
            del self.factors[rung]
            self.broken.add(rung)
            self.preferred = None if self.preferred == rung else self.preferred
            outcome = "no memory for its iterations"
            return None, Attempt(self._name(rung), "", why, outcome, 0, made, perf_counter() - begin, residual), None
        reached = found.residual_norm / scale
        said = judge.why or found.status.name.lower().replace("_", " ")
        outcome = "solved" if found.residual_norm <= self.wanted * scale else said
        spent = perf_counter() - begin
        attempt = Attempt(self._name(rung), found.method, why, outcome, found.iterations, made, spent, reached)
        return found, attempt, judge.change

    def _improve(self, rung, b, x, residual, scale, left):
        """(Solution, Judge) of the iterations with the factors of a rung, from x; x where they find nothing better."""
        F, target = self.factors[rung], self.wanted * scale
        r = b if residual == 1.0 else self.residual(b, x, target)[0]
        judge = Judge(self, rung, "refinement", left, scale)
        method, status, iterations, better = "refinement", Status.CONVERGED, 0, x
        history = recurrence = np.array([scale * residual])
        size = scale * residual
        if rung == "direct" and self.method == "auto":
            better, r, size, history = self._refine(F, x, b, r, size, judge)
            iterations, recurrence = len(history) - 1, history
        for method in self._methods(rung) if size > target and judge.status is None else ():
            if self.iterations + iterations >= self.most:
                break
            judge = Judge(self, rung, method, left, scale)
            most = min(self.most - self.iterations - iterations, FEW**2 if rung == "direct" else MAXITER)
            found = self._iterate(method, better, r, F, judge, FEW if rung == "direct" else krylov.CYCLE, most)
            iterations, status = iterations + found.iterations, found.status
            better = better + found.x  # corrections are solved for: rtol keeps its meaning
            r, size = self.residual(b, better, target)
            history, recurrence = np.append(history, found.history[1:]), np.append(recurrence, found.recurrence[1:])
            if found.iterations and math.isfinite(size):
                history[-1] = size
            if status is Status.INDEFINITE:
                self.definite = False
            if status is Status.INDEFINITE and not self.asked:
                self.recipes |= {name: rest for name, rest in self._rungs().items() if name not in self.factors}
            claimed = status is Status.CONVERGED and size > target  # by rounding: from here, r is a better one
            if judge.status or (status not in (GOES_ON + INDEFINITE if self.asked else GOES_ON) and not claimed):
                break
        if not math.isfinite(size) or not bool(namespace(b).isfinite(better).all()):
            better, size = x, residual * scale
        if size > target and status is Status.CONVERGED:
            status = Status.STAGNATED  # the method's claim, which the check here does not share
        status = judge.status or (Status.MAX_ITERATIONS if judge.change else status)
        result = Solution(
            better, status, iterations, size, history, recurrence=recurrence, method=method, recipe=self._name(rung)
        )
        return result, judge

    def _iterate(self, method: str, x, r, F, judge, restart: int, most: int) -> Solution:
        callback = None if self.callback is None else lambda correction: self.callback(x + correction)
        return getattr(krylov, method)(
            self.A,
            r,
            M=F,
            rtol=0.0,
            atol=judge.target,
            maxiter=most,
            callback=callback,
            watch=judge,
            **restart_of(method, restart),
        )

    def _refine(self, F, x, b, r, size: float, judge):
        """(x, b - A x, its norm, history) after x <- x + M^-1 (b - A x), as long as that halves the residual."""
        history, most = [size], min(FEW, self.most - self.iterations)
        stops = judge(0, size)
        while size > judge.target and len(history) <= most and not stops:
            with np.errstate(over="ignore", invalid="ignore"):
                better = x + F.solve(r)
                rest, reached = self.residual(b, better, judge.target)
            if not reached <= size / 2 or not bool(namespace(x).isfinite(better).all()):
                break
            x, r, size = better, rest, reached
            history.append(size)
            stops = (self.callback is not None and judge.stops(self.callback, x.copy())) or judge(
                len(history) - 1, size
            )
        return x, r, size, np.array(history)

    def _factor(self, rung: str) -> str:
        """Make the factors of a rung, by its first recipe that finds some; "" or why there are none."""
        outcome = ""
        for recipe in self.recipes[rung]:
            try:
                if rung == "direct" and isinstance(recipe, SparseLU):
                    known = None if self.order is None or self.fill is None else (self.order, self.fill)
                    most = self.memory / (self.A.dtype.itemsize + BESIDE)
                    self.factors[rung] = SparseLUFactors(recipe, self.A, known=known, most=most)
                else:
                    with self.A.unchanged(self.seen.mirrored):  # until solve returns
                        self.factors[rung] = None if recipe is None else recipe.factor(self.A)  # type: ignore[attr-defined]
            except (FineluError, ArithmeticError, np.linalg.LinAlgError, MemoryError) as error:
                if self.asked:
                    raise
                outcome = outcome or str(error).split(": ", 1)[-1].rstrip(".")
                if isinstance(error, StructurallySingular):
                    self.structure = str(error)
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
        if self.definite and (rung == "cheap" or keeps_definite(self.recipes[rung][0])):
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
            if seen.n <= MOST_ROWS:
                return "the system is small enough"
            return "its cost, " + ("estimated" if self.by_columns else "counted before") + ", is the least"
        if not seen.diagonal.usable:
            return "the diagonal has gaps or zeros"
        return "it is expected to take the least" if rung == "threshold" else "it is the strongest"

    def _name(self, rung) -> str:
        recipe = self.recipes[rung][0]
        return "no preconditioner" if recipe is None else repr(recipe)


def worth(cost: float, elapsed: float, rest: float) -> bool:
    """Whether to change to what costs `cost`, where `rest` more seconds are expected after `elapsed`."""
    return rest > cost * (1 + CAUTION * max(0.0, 1 - elapsed / cost)) if 0 < cost < math.inf else False


class Judge:
    """Called at each look at the iteration: whether it goes on, and else why not."""

    looks_at_claims = True  # the ladder forms b - A x of what a method has found

    def __init__(self, ladder: Ladder, rung: str, method: str, left: list[str], scale: float):
        self.ladder, self.rung, self.left = ladder, rung, left
        self.expected = STEP.get(method, STEP["gmres"]) * ladder.seen.nnz
        self.scale, self.target = scale, ladder.wanted * scale
        self.first: float | None = None
        self.began = self.start = 0.0  # the first iteration, and when it was over: before it, kernels may be compiled
        self.smallest = math.inf
        self.next = self.apart = 0.0  # seconds of its own before the next look; of what it spent on looks
        self.status: Status | None = None
        self.change: str | None = None
        self.why = ""

    def __call__(self, iteration: int, norm: float) -> bool:
        ladder, now = self.ladder, perf_counter()
        if self.stops(ladder.watch, iteration, norm):
            return True
        if iteration and self.stops(ladder.norm_callback, norm / self.scale):
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

    def stops(self, function, *arguments) -> bool:
        """Whether a function of the caller's, None for none, ends the solve."""
        if function is None:
            return False
        try:
            stop = function(*arguments) is True
        except StopIteration:
            stop = True
        if stop:
            self.status, self.why = Status.INTERRUPTED, "stopped by the caller"
        return stop


def keeps_definite(recipe) -> bool:
    """Whether the factors of a positive definite matrix are so, too, as cg needs."""
    return recipe is None or type(recipe) in [RECIPES[name] for name in DEFINITE_RECIPES]


def precise(A: CSR, b, rtol: float):
    """A and b in a precision that allows for rtol; b in the dtype of x."""
    dtype = np.result_type(A.dtype, b.dtype, *([np.float64] if rtol < SINGLE else []))
    real = np.empty(0, dtype).real.dtype
    return as_csr(A, diagonal=False, dtype=np.result_type(A.dtype, real)), b.astype(dtype, copy=False)


def restart_of(method: str, length: int) -> dict[str, int]:
    return {"restart": length} if method in krylov.RESTARTED else {}
