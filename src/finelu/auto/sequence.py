"""Sequence: systems one after the other, as in time steps and Newton's method; factors are kept while they pay."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from finelu import krylov
from finelu.arithmetic import ignore_fp_errors
from finelu.auto.attempt import MAXITER
from finelu.auto.choose import recipe_asked
from finelu.auto.ladder import Ladder
from finelu.auto.precision import after, may_need_double, precise
from finelu.auto.rates import current_on_gpu
from finelu.auto.reuse import ReuseCosts
from finelu.auto.solve import sooner_here_on_host
from finelu.compiling import compile_seconds
from finelu.device import namespace, on_gpu, synchronize, to_host
from finelu.errors import FineluError, MatrixError, ParameterError, counted
from finelu.kernels import kernels_for
from finelu.krylov import method_name
from finelu.krylov.criterion import Criterion, criterion_asked, diminished, power_for, times_power
from finelu.krylov.operators import as_operator
from finelu.krylov.residual import Residual
from finelu.krylov.system import System
from finelu.matrix import CSR, as_csr, check_vector, norm
from finelu.matrix.traits import traits
from finelu.matrix.vectors import as_dtype
from finelu.ordering import OrderingJob
from finelu.preconditioners import SparseLU
from finelu.preconditioners.direct import cudss
from finelu.result import Solution, Status
from finelu.validation import number

PATIENCE = 0.01  # seconds that old factors get in any case
PAST = 4  # past solutions in the combination for a first guess
# Seconds of a step with complete factors by cuDSS: fixed, and for each entry of L and U. On an H100 an update took 3 ms
# and mostly 0.5 to 2 ns for each of up to 1.6e8 entries (cudss-nvidia-h100-2026-11-25.md); 2 ms are for the rest.
STEP, ENTRY = 5e-3, 1e-9
GAIN = 1.5  # such a step must be expected to be this many times as fast as the last
GUESSES = 4  # a guess is made if this many take no longer than a solve: each saves some two of eight digits
INDEPENDENT = 1e-12  # times the largest eigenvalue of the Gram matrix: smaller eigenvalues are left out


class Sequence:
    """Solves A_k x_k = b_k one after the other, as in time steps and Newton's method, and keeps factors while they pay.

    A : the first matrix, or None to take that of the first step.  rtol, recipe, method, criterion : as in `solve`.
    The first step solves as `solve` does, and keeps the factors that worked. Each later step first decides:
    - reuse: A has the pattern of the factors, and old factors have cost less than an update. Their cost is the time of
      the iterations beyond those of the first solve with them, summed over all steps; the first reuse after the last
      update must have cost less than an update, too. After 16 updates in a row a reuse is tried in any case;
    - update (`F.update`) with the values of A_k: old factors have cost more;
    - rebuild: the pattern has changed;
    - solve from the beginning: size, device or precision has changed.
    If single precision does not reach rtol, that step and all later ones are solved in double precision.
    A reuse or update is given up if it breaks down, or does not converge within twice the time of a fresh start.
    Update, rebuild and `solve`, which may choose another recipe, then follow in this order.
    The first guess is the last x, or the combination of the last four x with the least residual, if that is smaller
    than b. The combination is tried if it takes less than a quarter of the iterations' time. Source: P. F. Fischer:
    Projection techniques for iterative solution of Ax = b with successive right-hand sides, 1998. Cost: up to six
    products with A, and eight vectors.
    On a GPU, A and b are moved to the CPU, and x back, if `solve` would do so. With cuDSS its complete factors replace
    other factors once, by one more rebuild: when the steps so far have taken as long as cuDSS's plan is expected to
    take, and a step with it is expected to take less than two thirds of the last one. Updates then repeat the numeric
    factorization.
    decisions : the decision of each step: "solve", "reuse", "update" or "rebuild".
    """

    @ignore_fp_errors
    def __init__(
        self,
        A: Any = None,
        *,
        rtol: float = 1e-8,
        recipe: Any = "auto",
        method: Any = "auto",
        criterion: str = "auto",
    ):
        self.criterion = criterion_asked(criterion)
        self.rtol, self.recipe, self.method = number("rtol", rtol), recipe_asked(recipe), method_name(method, "auto")
        self.decisions: list[str] = []
        self._A: Any = A
        self._past: list[Any] = []  # solutions, the last first; none of before a step that failed
        self._F: Any = None
        self._pattern: CSR | None = None
        self._method = ""
        self._looked_at, self._on_host = 0, ""  # rows of the A that was looked at, and why it went to the CPU
        self._current = False  # whether the factors are those of the last A
        self._reuse_costs = ReuseCosts()
        self._spent = self._taken = 0.0  # seconds of all steps, and of the last, without compiling
        self._direct_looked_at = False  # whether complete factors by cuDSS were thought of, once
        self._count: OrderingJob | None = None  # counts their fill
        self._indefinite = False  # A was found not to be positive definite, or is not Hermitian
        self._precise = self.rtol  # 0 once single precision was not enough: see `precise`
        self._guessing = 0.0  # the least that a first guess of PAST solutions has taken

    def __repr__(self) -> str:
        steps = counted(len(self.decisions), "step")
        return f"Sequence(rtol={self.rtol:g}, recipe={self.recipe!r}, method={self.method!r}; {steps} done)"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_count": None}  # which is another thread's

    def __copy__(self) -> Sequence:
        """A deep copy: an update by one of two that share factors would change the other."""
        return deepcopy(self)

    @ignore_fp_errors
    def step(self, A: Any = None, b: Any = None) -> Solution:
        """Solve A x = b; A=None: the matrix of the previous step. `explain()` of the Solution reports the decision.

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
        self._A, self._current = A, same and self._current
        A, v = precise(A, b.reshape(-1), self._precise)
        compiled = compile_seconds()
        power = power_for(v, A)  # of the smallest numbers: see `finelu.krylov.criterion`
        larger = times_power(v, power) if power else v
        solution, decision, why, on_host = self._solved(A, larger)
        if power:
            A, v = precise(A, v, self._precise)  # which the step may have changed
            found, product = replace(solution, x=namespace(v).asarray(solution.x)), as_operator(A, "A", v, v.dtype)
            solution = diminished(found, product, v, self.criterion, power, self.rtol * norm(larger))
        self._taken = perf_counter() - start - (compile_seconds() - compiled)
        self._spent += self._taken
        self._past = [solution.x, *self._past[: PAST - 1]] if solution.converged else []
        self.decisions.append(decision)
        seen = (*solution.seen, *([f"it was solved on the CPU: {on_host}"] if on_host else ()), f"{decision}: {why}")
        return replace(
            solution,
            x=namespace(b).asarray(solution.x).reshape(b.shape),
            seen=seen,
            timings={"solve": perf_counter() - start},
        )

    def _solved(self, A: CSR, b: Any) -> tuple[Solution, str, str, str]:
        """The solution, the decision and its reason, and why it was solved on the CPU ("" if not)."""
        why, failed = self._direct_pays(A), ""
        if why:
            failed = self._rebuild_by_cudss(A)
            if not failed:
                solution, _, why = self._with_factors(A, b, "reuse", why)
                if solution is not None:
                    return solution, "rebuild", why, ""
                self._F, self._looked_at, failed = None, 0, "; complete factors by cuDSS did not lead to x"
        on_host = self._sooner_on_host(A)
        if on_host:
            A, b = A.on(np), to_host(b)
        decision, why = self._decide(A)
        why += failed
        if decision != "solve":
            solution, decision, why = self._with_factors(A, b, decision, why)
            if solution is not None:
                return solution, decision, why, on_host
        return self._from_the_beginning(A, b), "solve", why, on_host

    def _direct_pays(self, A: CSR) -> str:
        """Why complete factors by cuDSS should replace the present ones; "" if they should not.

        Their fill is counted once, on the host, while the steps go on, if this needs no compilation of kernels.
        """
        ready = self._F is not None and on_gpu(A.data) and isinstance(self.recipe, str) and self.method == "auto"
        if not ready or self._direct_looked_at or isinstance(self._F, cudss.CudssFactors) or self._pattern is None:
            return ""
        rates, alike = current_on_gpu(), self._pattern.n == A.n and self._pattern.nnz == A.nnz
        plan = rates.cudss_overhead + rates.cudss_row * A.n
        if self._spent < plan or not alike or self._most_entries() <= 0 or cudss.missing():
            return ""
        if self._count is None and OrderingJob.possible():  # by another thread, as it may take long
            self._count = OrderingJob(A.on(np))
        if self.decisions[-1:] == ["solve"] or (self._count is not None and not self._count.over):
            return ""  # the last step made factors, so its time is not that of a step
        self._direct_looked_at, count, self._count = True, self._count, None
        try:
            if count is not None and count.found()[2].nnz > self._most_entries():
                return ""
        except MemoryError:
            return ""
        return f"a step takes {self._taken:.2g} s, one with complete factors by cuDSS is expected to take less"

    def _most_entries(self) -> float:
        """The most entries of L and U by cuDSS with which a step is expected to be faster than the last."""
        return (self._taken / GAIN - STEP) / ENTRY

    def _rebuild_by_cudss(self, A: CSR) -> str:
        """Replace the factors by complete ones of A by cuDSS; "", or why there are none, and nothing is changed."""
        start = perf_counter()
        try:
            most, indefinite = self._most_entries(), self._indefinite
            F = cudss.CudssFactors(SparseLU(backend="cudss"), A, most, indefinite=indefinite)
        except (FineluError, ArithmeticError, MemoryError) as error:
            return f"; there are no complete factors by cuDSS: {str(error) or type(error).__name__}"
        self._F, self._pattern, self._method, self._current = F, A, "gmres", True
        self._looked_at, self._on_host = A.n, ""
        made = perf_counter() - start
        self._reuse_costs = ReuseCosts(made, min(F.report.numeric_seconds or 0.0, made), fresh=1, last=1)
        return ""

    def _sooner_on_host(self, A: CSR) -> str:
        """Why the CPU should solve such systems on a GPU, by the rules of `solve`; "" if it should not. Decided once,
        and again if the size has changed."""
        if not on_gpu(A.data) or not isinstance(self.recipe, str):
            return ""
        if self._looked_at != A.n:
            self._looked_at, self._on_host = A.n, sooner_here_on_host(traits(A))
        return self._on_host

    def _decide(self, A: CSR) -> tuple[str, str]:
        if self._F is None or self._pattern is None:
            return "solve", "there are no factors" + (" yet" if not self.decisions else "")
        known = self._pattern
        if on_gpu(A.data) != on_gpu(known.data) or A.n != known.n or A.dtype != known.dtype:
            self._direct_looked_at, self._count = False, None  # of another A
            return "solve", "A has another size, device or precision"
        if self._current:
            return "reuse", "A is the same"
        if not known.same_pattern(A):
            self._count = None
            return "rebuild", "the pattern of A has changed"
        return self._reuse_costs.decide()

    def _with_factors(self, A: CSR, b: Any, decision: str, why: str) -> tuple[Solution | None, str, str]:
        """The solution or None, the last decision, and its reason."""
        ways, costs = ("reuse", "update", "rebuild"), self._reuse_costs
        for way in ("reuse",) if self._current else ways[ways.index(decision) :]:
            start, compiled = perf_counter(), compile_seconds()
            try:
                if way == "update":
                    self._F.update(A)
                elif way == "rebuild":
                    self._F = self._F.recipe.factor(A)
                    self._pattern = A
                synchronize(A.data)
            except (FineluError, ArithmeticError, np.linalg.LinAlgError, MemoryError) as error:
                why += f"; {way} failed: {error}"
                continue
            except BaseException:
                self._F = None  # an interrupt may leave factors that are half new; the next step begins anew
                raise
            self._current = self._current or way != "reuse"
            spent = _seconds_since(start, compiled)
            if way == "update":
                costs.updated = spent
            elif way == "rebuild":
                costs.made = spent
            patience = math.inf if way == "rebuild" else 2 * (costs.fresh * costs.pace + costs.price) + PATIENCE
            start, compiled = perf_counter(), compile_seconds()
            solution = self._iterate(A, b, patience)
            spent = _seconds_since(start, compiled)
            if solution.converged:
                if way != "reuse":
                    costs.solved_afresh()
                elif not self._current:
                    costs.solved_with_old()
                return solution, way, why
            why += f"; {way} did not converge ({solution.status.name.lower().replace('_', ' ')})"
            if way == "reuse":
                costs.gave_up(spent)
        return None, decision, why

    def _iterate(self, A: CSR, b: Any, patience: float) -> Solution:
        """Solve with the present factors, for at most `patience` seconds after the first iteration, which may load
        code."""
        product, scale = as_operator(A, "A", b, b.dtype), norm(b)
        residual, target = Criterion(self.criterion, Residual(product, b), b), self.rtol * scale
        x, r = namespace(b).zeros_like(b), b
        known, least = self._known(b), scale
        worth = GUESSES * self._guessing <= self._reuse_costs.last * self._reuse_costs.pace
        for combine in (False, True) if known else ():
            if least > self.rtol * scale and (worth or not combine):
                begin = perf_counter()
                guess = _combined(product, known, b) if combine else known[0]
                rest, size = residual(b, guess, self.rtol * scale)
                if size < least:
                    x, r, least = guess, rest, size
                if combine and len(known) == PAST:
                    self._guessing = min(self._guessing or math.inf, perf_counter() - begin)
        began: list[tuple[int, float]] = []

        def too_long(iteration: int, _: float) -> bool:
            if iteration > 0 and not began:
                began.append((iteration, perf_counter()))
            return bool(began) and perf_counter() - began[0][1] > patience

        too_long.looks_at_claims = True  # type: ignore[attr-defined]  # the residual of x is formed below
        M, history, recurrence, goes_on, iterations = as_operator(self._F, "M", b, b.dtype), [least], [least], True, 0
        while goes_on:  # once, unless rows of A differ much in size
            before, (rest, tolerance) = least, (r, target)
            if least > target:
                rest, tolerance = residual.correction(x, r, least, target)
            system, most = System(product, rest, M), MAXITER - iterations
            solution = krylov.iterate(
                self._method, system, rtol=0.0, atol=tolerance, maxiter=most, watch=too_long, restart=krylov.CYCLE
            )
            iterations += solution.iterations
            x = kernels_for(b).vectors.added(x, solution.x)
            r, least = residual(b, x, target)
            history, recurrence = [*history, *solution.history[1:]], [*recurrence, *solution.recurrence[1:]]
            goes_on = residual.by_rows and solution.converged and target < least <= before / 2 and iterations < MAXITER
        end = perf_counter()
        status = Status.CONVERGED if least <= target else solution.status
        if least > target and status is Status.CONVERGED:
            status = Status.STAGNATED
        self._reuse_costs.last = iterations
        if began and iterations > began[0][0]:
            self._reuse_costs.pace = (end - began[0][1]) / (iterations - began[0][0])
        history[-1] = residual.norm
        return replace(
            solution,
            x=x,
            status=status,
            iterations=iterations,
            residual_norm=residual.norm,
            history=np.array(history),
            recurrence=np.array(recurrence),
            row_residual=residual.rows,
            seen=(residual.sentence(),) if residual.rows is not None else (),
        )

    def _known(self, b: Any) -> list[Any]:
        """The last solutions that fit b, the last first."""
        fits = [x for x in self._past if x.shape == b.shape and on_gpu(x) == on_gpu(b)]
        return [x.astype(b.dtype, copy=False) for x in fits if np.can_cast(x.dtype, b.dtype)]

    def _from_the_beginning(self, A: CSR, b: Any) -> Solution:
        self._F = self._pattern = None
        ladder = Ladder(A, self.rtol, self.recipe, self.method, criterion=self.criterion)
        solution = ladder.solve(b)
        if may_need_double(solution, b):
            self._precise = 0.0
            A, b = precise(A, b, self._precise)
            ladder = Ladder(A, self.rtol, self.recipe, self.method, criterion=self.criterion)
            solution = after(solution, ladder.solve(b, as_dtype(solution.x, b.dtype)))
        if solution.converged and ladder.preferred is not None and len(solution.attempts) > 0:
            done = solution.attempts[-1]
            self._F, self._pattern = ladder.factors[ladder.preferred], A
            self._method = "gmres" if done.method == "refinement" else done.method
            self._current = True
            self._indefinite = not ladder.traits.definite
            made = done.setup_seconds
            numeric = getattr(getattr(self._F, "report", None), "numeric_seconds", None)
            self._reuse_costs = ReuseCosts(
                made=made,
                updated=min(numeric or 0.0, made),
                fresh=done.iterations,
                last=done.iterations,
                pace=done.seconds / max(done.iterations, 1),
            )
        return solution


def _seconds_since(start: float, compiled: float) -> float:
    """The seconds since `start` without those that were spent compiling, of which there were `compiled` then."""
    return max(perf_counter() - start - (compile_seconds() - compiled), 0.0)


def _combined(product: Any, known: list[Any], b: Any) -> Any:
    """The combination V y of the `known` vectors with the least ||b - A V y||; NaN where numbers overflow, or the
    eigenvalues of their products are not found."""
    xp = namespace(b)
    V, W = xp.stack(known), xp.stack([product @ x for x in known])
    gram, right = to_host(W.conj() @ W.T), to_host(W.conj() @ b)
    if not (np.isfinite(gram).all() and np.isfinite(right).all()):
        return xp.full_like(b, np.nan)
    try:
        values, vectors = np.linalg.eigh(gram)
    except np.linalg.LinAlgError:
        return xp.full_like(b, np.nan)
    kept = values > max(INDEPENDENT, 10 * float(np.finfo(gram.dtype).eps)) * abs(values[-1])
    y = vectors[:, kept] @ ((vectors[:, kept].conj().T @ right) / values[kept])
    return xp.asarray(y.astype(b.dtype)) @ V
