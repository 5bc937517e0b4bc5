"""Sequence: systems one after the other, as in time steps and Newton's method; factors are kept while they pay."""

from __future__ import annotations

import math
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.auto.attempt import Iterations, RightHandSide, joined
from finelu.auto.choose import ASKED, recipe_asked, unfit
from finelu.auto.guess import FirstGuess
from finelu.auto.ladder import Ladder
from finelu.auto.precision import after, may_need_double, precise
from finelu.auto.rates import current_on_gpu
from finelu.auto.recycling import Recycling
from finelu.auto.reuse import COMPLETE, ENTRY, STEP, Ageing, Patience, logarithm, update_in_iterations
from finelu.auto.solve import sooner_here_on_host
from finelu.compiling import compile_seconds
from finelu.device import namespace, on_gpu, synchronize, to_host
from finelu.errors import FineluError, MatrixError, ParameterError, counted
from finelu.krylov import method_name
from finelu.krylov.criterion import criterion_asked
from finelu.krylov.nullspace import NullSpace
from finelu.krylov.operators import as_operator
from finelu.krylov.underflow import diminished, power_for
from finelu.matrix import CSR, check_vector, checked_csr, norm
from finelu.matrix.traits import traits
from finelu.matrix.vectors import as_dtype, times_power
from finelu.ordering import OrderingJob
from finelu.page import facts_as_html
from finelu.preconditioners import SparseLU
from finelu.preconditioners.direct import cudss
from finelu.result import Attempt, Solution, Status
from finelu.validation import number

GAIN = 1.5  # a step with cuDSS must be expected to be this many times as fast as the last
WHY = {  # an attempt is made
    "reuse": "the factors of an earlier matrix may be good enough",
    "update": "the factors were updated",
    "rebuild": "A has another pattern, and the factors are new",
}


class Sequence:
    """Solves A_k x_k = b_k one after the other, as in time steps and Newton's method, and keeps factors while they pay.

    A : the first matrix, or None to take that of the first step.  rtol, recipe, method, criterion, nullspace : as in
        `solve`; the null vectors are those of every A_k.
    The first step solves as `solve` does, and keeps the factors that worked. Each later step first decides:
    - reuse: A has the pattern of the factors, and the next step with old factors is expected to cost less than a step
      has cost in the mean since the last update, which counts too. The cost of old factors is the iterations that they
      take beyond those that fresh factors take for as many digits; that of an update is modelled in iterations, by the
      recipe and the counts of complete factors. After 16 updates in a row what was seen of old factors is forgotten;
    - update (`F.update`) with the values of A_k: old factors are expected to cost more;
    - rebuild: the pattern has changed;
    - solve from the beginning: size, device or precision has changed.
    With recipe=None, which is no preconditioner, each later step is a reuse: of the method and of past solutions.
    No clock is read for it, except on a GPU where cuDSS may take over: the same systems give the same bits.
    If single precision does not reach rtol, that step and all later ones are solved in double precision.
    A reuse or update is given up if it breaks down, or is expected to take more iterations than better factors would.
    Update and `solve`, which may choose another recipe, then follow in this order, from the best x so far; `attempts`
    lists every try, and `iterations` counts all. With method="auto", `solve` follows at once if an iteration takes long
    and its method needs a symmetry that A has no longer.
    The first guess is the last x, or the combination of the last four or eight x with the least residual, if that is
    smaller than b: the last x if two iterations are expected, a combination if the last one has saved more of them than
    its products with A take; after 250 iterations without a combination it is tried again. Source: P. F. Fischer:
    Projection techniques for iterative solution of Ax = b with successive right-hand sides, 1998. Cost: up to nine
    products with A, and 24 vectors.
    cg and gmres with incomplete factors take a `RecycledSpace` of 4 to 16 vectors, where it saves more iterations than
    it takes by a model of its cost; it is dropped after the first solve that shows that it does not, and tried again
    rarely, which `explain()` says. A try takes at most as long as one solve.
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
        nullspace: Any = None,
    ):
        self.criterion = criterion_asked(criterion)
        self.rtol, self.recipe, self.method = number("rtol", rtol), recipe_asked(recipe), method_name(method, "auto")
        self.nullspace = nullspace
        self.decisions: list[str] = []
        self._A: Any = A
        self._guesses = FirstGuess()  # from the solutions since the last step that failed
        self._F: Any = None
        self._pattern: CSR | None = None
        self._method = ""
        self._looked_at, self._on_host = 0, ""  # rows of the A that was looked at, and why it went to the CPU
        self._current = False  # whether the factors are those of the last A
        self._ageing = Ageing(0.0, complete=False)
        self._spent = self._taken = 0.0  # seconds of all steps, and of the last, without compiling
        self._direct_looked_at = False  # whether complete factors by cuDSS were thought of, once
        self._count: OrderingJob | None = None  # counts their fill
        self._indefinite = False  # A was found not to be positive definite, or is not Hermitian
        self._recycling = Recycling()
        self._plain_figures = self._ageing.figures()  # of the last iterations before those with a recycled space
        self._precise = self.rtol  # 0 once single precision was not enough: see `precise`

    def __repr__(self) -> str:
        steps = counted(len(self.decisions), "step")
        return f"Sequence(rtol={self.rtol:g}, recipe={self.recipe!r}, method={self.method!r}; {steps} done)"

    def _repr_html_(self) -> str:
        counts = Counter(self.decisions)
        facts = [("steps", len(self.decisions)), ("rtol", self.rtol), ("method", self._method or self.method)]
        facts += [("factors", self._F if self._F is None else repr(self._F)), ("seconds", f"{self._spent:.3g}")]
        return facts_as_html("Sequence", [*facts, *((f"steps by {name}", k) for name, k in counts.items())])

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
        A = checked_csr(A, diagonal=False)
        b = check_vector(b, A.n, A.data)
        if b.ndim == 2 and b.shape[1] != 1:
            raise MatrixError(f"b has {b.shape[1]} columns; a step solves for one: call it for each.")
        self._A, self._current = A, same and self._current
        self._recycling.why = ""
        A, v = precise(A, b.reshape(-1), self._precise)
        compiled = compile_seconds()
        space = None
        if self.nullspace is not None:
            given, space = v, NullSpace.of(self.nullspace, as_operator(A, "A", v, v.dtype), v)
            v = v if space is None else space.in_range(v)
        power = power_for(v, A)  # of the smallest numbers: see `finelu.krylov.underflow`
        larger = times_power(v, power) if power else v
        solution, decision, why, on_host = self._solved(A, larger)
        if power:
            A, v = precise(A, v, self._precise)  # which the step may have changed
            found, product = replace(solution, x=namespace(v).asarray(solution.x)), as_operator(A, "A", v, v.dtype)
            solution = diminished(found, product, v, self.criterion, power, self.rtol * norm(larger))
        if space is not None:
            A, v = precise(A, v, self._precise)
            product = as_operator(A, "A", v, v.dtype)
            found = replace(solution, x=namespace(v).asarray(solution.x))
            solution = space.completed(found, product, v, given, self.rtol, 0.0)
        self._taken = perf_counter() - start - (compile_seconds() - compiled)
        self._spent += self._taken
        if solution.converged:
            self._guesses.keep(solution.x)
        else:
            self._guesses.forget()
        self._guesses.without += solution.iterations
        self.decisions.append(decision)
        recycled = self._recycling.why
        seen = (
            *solution.seen,
            *([recycled] if recycled else ()),
            *([f"it was solved on the CPU: {on_host}"] if on_host else ()),
            f"{decision}: {why}",
        )
        return replace(
            solution,
            x=namespace(b).asarray(solution.x).reshape(b.shape),
            seen=seen,
            timings={"solve": perf_counter() - start},
            called="",
        )

    def _solved(self, A: CSR, b: Any) -> tuple[Solution, str, str, str]:
        """The solution, the decision and its reason, and why it was solved on the CPU ("" if not)."""
        scale = norm(b)
        if self._begun and (scale == 0 or self.rtol >= 1):
            zero, sizes = namespace(b).zeros_like(b), np.array([scale])
            return Solution(zero, Status.CONVERGED, 0, scale, sizes, recurrence=sizes), "reuse", "x = 0 is enough", ""
        why, failed = self._direct_pays(A), ""
        if why:
            failed = self._rebuild_by_cudss(A)
            if not failed:
                solution, _, why = self._with_factors(A, self._right(A, b, scale), "reuse", why)
                if solution is not None:
                    return solution, "rebuild", why, ""
                self._F, self._looked_at, failed = None, 0, "; complete factors by cuDSS did not lead to x"
        on_host = self._sooner_on_host(A)
        if on_host:
            A, b = A.on(np), to_host(b)
        decision, why = self._need(A)
        if decision == "solve":
            return (
                self._from_the_beginning(A, b, next(iter(self._guesses.known(b)), None)),
                "solve",
                why + failed,
                on_host,
            )
        if decision == "" and self._pattern is not None:
            A = self._pattern.with_values(A.data)  # its pattern is not compared again
        rhs = self._right(A, b, scale)
        product = self._product(A)
        self._guesses.begin(rhs, self._ageing.likely(logarithm(rhs.scale, rhs.target)), product)
        if rhs.size <= rhs.target:
            return self._found(rhs, Status.CONVERGED), "reuse", "the first guess is good enough" + failed, on_host
        if decision == "":
            decision, why = self._ageing.decide(logarithm(rhs.size, rhs.target))
        solution, decision, why = self._with_factors(A, rhs, decision, why + failed)
        if solution is None:
            solution, decision = joined(rhs, self._from_the_beginning(A, b, rhs.x)), "solve"
        return solution, decision, why, on_host

    def _right(self, A: CSR, b: Any, scale: float) -> RightHandSide:
        return RightHandSide(A, namespace(b).ascontiguousarray(b), scale, self.rtol, self.criterion)

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
        try:
            most, indefinite = self._most_entries(), self._indefinite
            F = cudss.CudssFactors(SparseLU(backend="cudss"), A, most, indefinite=indefinite)
        except (FineluError, ArithmeticError, MemoryError) as error:
            return f"; there are no complete factors by cuDSS: {str(error) or type(error).__name__}"
        self._F, self._pattern, self._method, self._current = F, A, "gmres", True
        self._looked_at, self._on_host = A.n, ""
        self._ageing = self._aged(A)
        return ""

    def _sooner_on_host(self, A: CSR) -> str:
        """Why the CPU should solve such systems on a GPU, by the rules of `solve`; "" if it should not. Decided once,
        and again if the size has changed."""
        if not on_gpu(A.data) or not isinstance(self.recipe, str):
            return ""
        if self._looked_at != A.n:
            self._looked_at, self._on_host = A.n, sooner_here_on_host(traits(A))
        return self._on_host

    @property
    def _begun(self) -> bool:
        """Whether a step has found factors, or needs none."""
        return self._pattern is not None and (self._F is not None or self.recipe is None)

    def _need(self, A: CSR) -> tuple[str, str]:
        """What A needs, "solve", "rebuild" or "reuse", and why; "" for old factors or an update of them."""
        known = self._pattern
        if known is None or not self._begun:
            return "solve", "there are no factors" + (" yet" if not self.decisions else "")
        if on_gpu(A.data) != on_gpu(known.data) or A.n != known.n or A.dtype != known.dtype:
            self._direct_looked_at, self._count = False, None  # of another A
            self._recycling.drop()
            return "solve", "A has another size, device or precision"
        if self.recipe is None:
            self._current = True
            return "reuse", "no preconditioner was asked for"
        if self._current:
            return "reuse", "A is the same"
        if not known.same_pattern(A):
            self._count = None
            self._recycling.drop()
            return "rebuild", "the pattern of A has changed"
        return "", ""

    def _with_factors(self, A: CSR, rhs: RightHandSide, decision: str, why: str) -> tuple[Solution | None, str, str]:
        """The solution or None, the last decision, and its reason. Each try goes on from the best x of `rhs`."""
        ways = ("reuse", "update") if decision == "reuse" and not self._current else (decision,)
        for way in ways:
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
            if way == "update":
                self._ageing.renewed()
            elif way == "rebuild":
                self._ageing = self._aged(A)
            space = self._recycling.space
            solution = self._iterate(A, rhs, way, _seconds_since(start, compiled))
            if not solution.converged and space is not None and self._recycling.space is None:  # once more without it
                why += f"; {self._recycling.why} ({rhs.attempts[-1].outcome})"
                self._recycling.why = ""
                solution = self._iterate(A, rhs, way, 0.0)
            if solution.converged:
                return solution, way, why
            why += f"; {way} did not converge ({rhs.attempts[-1].outcome})"
            if solution.status is Status.NOT_SYMMETRIC:
                break
        return None, decision, why

    def _aged(self, A: CSR) -> Ageing:
        """The ageing of factors that were just made of A."""
        return Ageing(update_in_iterations(self._F, A), isinstance(self._F, COMPLETE) and not self._F.recipe.shift)

    def _iterate(self, A: CSR, rhs: RightHandSide, way: str, made: float) -> Solution:
        """Solve with the present factors, which took `made` seconds, from the best x of `rhs`, which is kept there."""
        ageing, fresh = self._ageing, self._current
        why = WHY[way] if way != "reuse" or not fresh else "the factors are those of this matrix"
        recipe, why = (repr(self._F.recipe), why) if self._F is not None else ("no preconditioner", ASKED)
        before, wanted = rhs.size, logarithm(rhs.size, rhs.target)
        start, compiled = perf_counter(), compile_seconds()
        complete = fresh and ageing.complete
        space = self._recycling.space_for(self._method, self._F, A, wanted, ageing.likely(wanted))
        if self._recycling.begins:
            self._plain_figures = ageing.figures()
        watched = not fresh or (way != "rebuild" and isinstance(self.recipe, str))  # whether others could be better
        iterations = Iterations(
            factors=self._F,
            recipe=recipe,
            methods=(self._method,),
            recycle=space,
            complete=complete,
            refine=complete and self.method == "auto",
            begins=lambda method, target: Patience(
                target if watched else 0.0, ageing, old=not fresh, unfit=partial(self._unfit, A), scale=rhs.scale
            ),
        )
        usual = math.inf if space is None else space.usual
        if space is not None and not fresh:
            space.usual = math.inf  # it is that of other factors, and `Patience` judges old ones
        found, patience = iterations.run(rhs)
        if space is not None and space.usual == math.inf:
            space.usual = usual
        seconds = _seconds_since(start, compiled)
        solved = found.residual_norm <= rhs.target
        status = Status.CONVERGED if solved else found.status
        outcome = "solved" if solved else patience.why or status.name.lower().replace("_", " ")
        reached = found.residual_norm / rhs.scale
        rhs.attempts.append(Attempt(found.recipe, found.method, why, outcome, found.iterations, made, seconds, reached))
        rhs.iterations, rhs.breakdowns = rhs.iterations + found.iterations, rhs.breakdowns + found.breakdowns
        rhs.history.extend(found.history[1:])
        rhs.recurrence.extend(found.recurrence[1:])
        if found.residual_norm < rhs.size:
            rhs.x, rhs.size = found.x, found.residual_norm
        gained = logarithm(before, rhs.size)
        if self._recycled_in_vain(found.iterations, gained, status):
            ageing.taken_back(self._plain_figures)
            ageing.age += int(solved and not fresh)
        elif fresh and solved:
            ageing.solved(found.iterations, gained, logarithm(rhs.scale, rhs.target), found.history / rhs.scale)
        elif solved:
            ageing.solved_with_old(found.iterations, gained)
        elif not fresh:
            ageing.gave_up(found.iterations, wanted)
        return self._found(rhs, status)

    def _recycled_in_vain(self, iterations: int, gained: float, status: Status) -> bool:
        """Record iterations that ended with `status`; whether the space was dropped. Old factors may have ended them,
        too, if they were only slow; and a method that does not fit A says nothing of the space."""
        if status is Status.CONVERGED:
            return self._recycling.seen(iterations, gained)
        slow = status is Status.MAX_ITERATIONS and not self._current
        return not slow and status is not Status.NOT_SYMMETRIC and self._recycling.failed()

    def _unfit(self, A: CSR) -> str:
        """Why the method that `solve` chose for an earlier matrix does not fit A; "" if it does."""
        return unfit(self._method, A, "general") if self.method == "auto" else ""

    def _found(self, rhs: RightHandSide, status: Status) -> Solution:
        """The solution of a step without a ladder."""
        check, last = rhs.residual, rhs.attempts[-1] if rhs.attempts else None
        if not check.has_seen(rhs.x):
            check(rhs.b, rhs.x, rhs.target)
        rhs.history[-1] = check.norm
        return Solution(
            x=rhs.x,
            status=status,
            iterations=rhs.iterations,
            breakdowns=rhs.breakdowns,
            residual_norm=check.norm,
            history=np.array(rhs.history),
            recurrence=np.array(rhs.recurrence),
            row_residual=check.rows,
            method=last.method if last else "",
            recipe=last.recipe if last else "",
            seen=(check.sentence(),) if check.rows is not None else (),
            attempts=tuple(rhs.attempts),
            tolerance=rhs.target,
        )

    def _product(self, A: CSR) -> float:
        """A product with A in iterations, relative to that in iterations with factors of A's own pattern."""
        entries = getattr(self._F, "nnz", A.nnz) if isinstance(self._F, COMPLETE) else A.nnz
        return 2 * A.nnz / (A.nnz + entries)

    def _from_the_beginning(self, A: CSR, b: Any, x0: Any = None) -> Solution:
        """Solve as `solve` does, from x0 if its residual is smaller than b."""
        self._F = self._pattern = None
        self._recycling.forget()
        ladder = Ladder(A, self.rtol, self.recipe, self.method, criterion=self.criterion)
        solution = ladder.solve(b, x0)
        if may_need_double(solution, b):
            self._precise = 0.0
            A, b = precise(A, b, self._precise)
            ladder = Ladder(A, self.rtol, self.recipe, self.method, criterion=self.criterion)
            solution = after(solution, ladder.solve(b, as_dtype(solution.x, b.dtype)))
        if solution.converged and ladder.preferred is not None and len(solution.attempts) > 0:
            *before, done = solution.attempts
            self._F, self._pattern = ladder.factors[ladder.preferred], A
            self._method = "gmres" if done.method == "refinement" else done.method
            self._current = True
            self._indefinite = not ladder.traits.definite
            self._ageing = self._aged(A)
            start = min([1.0, solution.history[0] / norm(b), *(attempt.residual for attempt in before)])
            norms = solution.history[-done.iterations - 1 :] / norm(b)
            self._ageing.solved(done.iterations, logarithm(start, done.residual), logarithm(1.0, self.rtol), norms)
        return solution


def _seconds_since(start: float, compiled: float) -> float:
    """The seconds since `start` without those that were spent compiling, of which there were `compiled` then."""
    return max(perf_counter() - start - (compile_seconds() - compiled), 0.0)
