"""A linear system and its transpose solved with one factorization, for derivatives of a solve.

x = A^-1 b has the adjoints b' = A^-H x' and A' = -b' x^H, of which only the stored entries of A are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from finelu.auto.attempt import BROKEN, INDEFINITE, MAXITER
from finelu.auto.choose import choose
from finelu.auto.ladder import Ladder
from finelu.auto.solve import solve as solve_by_the_rules
from finelu.device import namespace
from finelu.errors import MatrixError, NotConverged, ParameterError
from finelu.factors import Factors
from finelu.krylov import CYCLE, METHODS, Method, method_name
from finelu.matrix import CSR, as_csr, check_vector
from finelu.matrix.batch import Batch
from finelu.matrix.traits import traits
from finelu.preconditioners import recipe_of
from finelu.result import Solution
from finelu.validation import count

NAMES = {"N": "A x = b", "T": "the adjoint system A^T y = g", "H": "the adjoint system A^H y = g"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to solve.

    recipe : a recipe, its class or name, Factors that exist already (of a matrix near A, on its device), or "auto":
        those that `finelu.solve` tries, one after the other until one converges. Gradients are then computed with its
        factors, transposed, and if that does not converge, by a new search for A^H.
    method : a method of `finelu.krylov`, or one that is registered, by its name or its function, or "auto": what
        `finelu.solve` takes; with a recipe, cg where A is Hermitian with a positive diagonal and the recipe keeps that,
        else gmres. With a recipe it may also be any function with the same arguments.
    rtol : both solves end with ||b - A x||_2 <= rtol ||b||_2; None: 1e-10 in double precision, 1e-5 in single.
    maxiter : as in `finelu.krylov`, of each solve; with a recipe only.
    """

    recipe: Any = "auto"
    method: str | Callable[..., Any] = "auto"
    rtol: float | None = None
    maxiter: int | None = None

    @property
    def by_the_rules(self) -> bool:
        """Whether the way to solve is left to finelu, so that the systems of a Batch are solved together."""
        return self.recipe == "auto" and self.method == "auto"

    def tolerance(self, dtype: Any) -> float:
        """rtol for vectors of this dtype."""
        if self.rtol is not None:
            return self.rtol
        return 1e-5 if dtype in (np.float32, np.complex64) else 1e-10

    def __post_init__(self) -> None:
        if isinstance(self.recipe, type) or not (hasattr(self.recipe, "factor") or isinstance(self.recipe, Factors)):
            object.__setattr__(self, "recipe", recipe_of(self.recipe, "auto"))
        kind = getattr(self.method, "method", self.method)
        if not callable(self.method) or (isinstance(kind, type) and issubclass(kind, Method)):
            object.__setattr__(self, "method", method_name(self.method, "auto"))
        if self.rtol is not None and not (isinstance(self.rtol, int | float) and 0 < self.rtol < 1):
            raise ParameterError(f"rtol={self.rtol!r}; a number between 0 and 1 is needed.")
        if self.maxiter is not None:
            count("maxiter", self.maxiter, 1)
        if self.recipe == "auto":
            for name, given in (("maxiter", self.maxiter is not None), ("a function as method", callable(self.method))):
                if given:
                    raise ParameterError(f"{name} needs a recipe, such as finelu.ILU0(); recipe='auto' tries several.")


class System:
    """A with its factors: `solve(B)` and, with the same factors, `solve(B, "T")` and `solve(B, "H")`."""

    def __init__(self, A: CSR, options: Options):
        self.A, self.options = A, options
        self._ladders: dict[str, Ladder] = {}  # for recipe="auto": of A, "N", and of A^H, "H"
        self._solved: dict[str, tuple[Any, str]] = {}  # the factors and the method that solved each last
        self._lock = Lock()
        if options.recipe == "auto":
            return
        self.M = options.recipe if isinstance(options.recipe, Factors) else options.recipe.factor(A)
        if self.M.shape != A.shape:
            raise MatrixError(f"the factors have shape {self.M.shape}, but A has {A.shape}.")
        fixed = options.method != "auto"
        self._methods: tuple[Any, ...] = (options.method,) if fixed else choose(traits(A), self.M.recipe).methods

    def solve(self, B: Any, trans: str = "N") -> Any:
        """A^-1 B, A^-T B or A^-H B, for B (n,) or (n, k) on the device of A, column by column; NotConverged if not."""
        B = check_vector(B, self.A.n, self.A.data, "b" if trans == "N" else "the gradient that comes in")
        if trans == "T":
            return self.solve(B.conj(), "H").conj()
        if B.ndim == 1:
            return self._column(B, trans, NAMES[trans])
        columns = [self._column(B[:, k], trans, f"column {k} of {NAMES[trans]}") for k in range(B.shape[1])]
        xp = namespace(B)
        return xp.stack(columns, axis=1) if columns else xp.empty(B.shape, np.result_type(self.A.dtype, B.dtype))

    def _column(self, b: Any, trans: str, what: str) -> Any:
        dtype = np.result_type(self.A.dtype, b.dtype)
        rtol = self.options.tolerance(dtype)
        if self.options.recipe == "auto":
            with self._lock:  # a ladder remembers its attempts
                solution = self._automatic(b.astype(dtype, copy=False), trans, rtol)
        else:
            solution = self._with_factors(b, trans, rtol)
        if not solution.converged:
            raise NotConverged(what, solution, rtol)
        return solution.x

    def _with_factors(self, b: Any, trans: str, rtol: float) -> Solution:
        """Solve by the first method, or by the next if that breaks down."""
        for method in self._methods:
            same = trans == "N" or (not callable(method) and METHODS[method].self_adjoint())
            A, M = (self.A, self.M) if same else (self._adjoint, _Adjoint(self.M))
            function = method if callable(method) else METHODS[method].solve
            solution: Solution = function(A, b, rtol=rtol, maxiter=self.options.maxiter, M=M)
            if solution.converged or solution.status not in BROKEN + INDEFINITE:
                break
        return solution

    def _automatic(self, b: Any, trans: str, rtol: float) -> Solution:
        """Solve by the transposed factors that solved the adjoint system; if these do not converge, by a new ladder."""
        other = "H" if trans == "N" else "N"
        if trans not in self._ladders and other in self._solved:
            F, method = self._solved[other]
            kind = METHODS[method]
            A, M = (self._matrix(other), F) if kind.self_adjoint() else (self._matrix(trans), _Adjoint(F))
            solution: Solution = kind.solve(A, b, M=M, rtol=rtol, maxiter=MAXITER, **kind.in_cycles(CYCLE))
            if solution.converged:
                return solution
        if trans not in self._ladders:
            assert isinstance(self.options.method, str)  # Options refuses a function here
            self._ladders[trans] = Ladder(self._matrix(trans), rtol, method=self.options.method)
        ladder = self._ladders[trans]
        solution = ladder.solve(b)
        if solution.converged and ladder.preferred is not None and solution.attempts:
            method = solution.attempts[-1].method
            self._solved[trans] = ladder.factors[ladder.preferred], "gmres" if method == "refinement" else method
        return solution

    def _matrix(self, trans: str) -> CSR:
        return self.A if trans == "N" else self._adjoint

    @cached_property
    def _adjoint(self) -> CSR:
        return as_csr(self.A.tosparse().conj().T.tocsr(), diagonal=False)


class _Adjoint:
    """M^H as a preconditioner."""

    def __init__(self, M: Factors):
        self.shape, self.dtype, self.recipe = M.shape, M.dtype, M.recipe
        self.matvec, self.rmatvec = M.rmatvec, M.matvec


class BatchSystem:
    """The systems of a Batch: `solve(B)`, and `solve(B, "T")` and `solve(B, "H")`, which make factors of their own."""

    def __init__(self, batch: Batch, options: Options):
        if not options.by_the_rules:
            raise ParameterError(
                "a batch of systems is solved by complete factors: leave recipe and method out, or solve the systems "
                "one by one."
            )
        self.batch, self.options = batch, options

    def solve(self, B: Any, trans: str = "N") -> Any:
        """A_s^-1 b_s, A_s^-T b_s or A_s^-H b_s for each row b_s of B (k, n), or for B (n,), on the device of the Batch;
        NotConverged, naming the first system, if not all are solved."""
        if trans == "T":
            return self.solve(B.conj(), "H").conj()
        batch = self.batch if trans == "N" else self._adjoint
        rtol = self.options.tolerance(np.result_type(batch.dtype, B.dtype))
        found: Any = solve_by_the_rules(batch, B, rtol)
        if not found.all_converged:
            s = int(np.flatnonzero(~found.converged)[0])
            raise NotConverged(f"system {s} of the batch, {NAMES[trans]}", found[s], rtol)
        return found.x

    @cached_property
    def _adjoint(self) -> Batch:
        pattern, values = self.batch.pattern, self.batch.values
        numbers = namespace(values).arange(1, pattern.nnz + 1, dtype=np.float64)
        turned = as_csr(pattern.with_values(numbers).tosparse().T.tocsr(), diagonal=False)
        return Batch(turned, namespace(values).take(values, turned.data.astype(np.int64) - 1, axis=1).conj())
