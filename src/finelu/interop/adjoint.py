"""A linear system and its transpose solved with one factorization, as derivatives of a solve need them.

x = A^-1 b has the adjoints b' = A^-H x' and A' = -b' x^H, of which the stored entries of A take theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import finelu.krylov
from finelu.errors import MatrixError, NotConverged, ParameterError
from finelu.factors import Factors
from finelu.kernels import namespace
from finelu.krylov.progress import count
from finelu.matrix import CSR, check_vector
from finelu.preconditioners import RECIPES
from finelu.properties import suggest

SELF_ADJOINT = ("cg", "minres")  # methods for A = A^H, and so for A^H
NAMES = {"N": "A x = b", "T": "the adjoint system A^T y = g", "H": "the adjoint system A^H y = g"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to solve.

    recipe : a recipe, Factors that exist already (of a matrix near A, on its device), or "auto": the rule of
        `finelu.properties.suggest`.
    method : the name of a function of `finelu.krylov`, a function with their arguments, or "auto": the same rule.
    rtol : both solves end with ||b - A x||_2 <= rtol ||b||_2; None: 1e-10 in double precision, 1e-5 in single.
    maxiter : as in `finelu.krylov`, of each solve.
    """

    recipe: Any = "auto"
    method: str | Callable[..., Any] = "auto"
    rtol: float | None = None
    maxiter: int | None = None

    def __post_init__(self):
        if self.recipe != "auto" and not hasattr(self.recipe, "factor") and not isinstance(self.recipe, Factors):
            raise ParameterError(
                f"recipe={self.recipe!r}; a recipe such as finelu.ILU0(), Factors or 'auto' is needed."
            )
        names = (*finelu.krylov.__all__, "auto")
        if not callable(self.method) and self.method not in names:
            raise ParameterError(f"method={self.method!r}; a function or one of {', '.join(names)} is needed.")
        if self.rtol is not None and not (isinstance(self.rtol, int | float) and 0 < self.rtol < 1):
            raise ParameterError(f"rtol={self.rtol!r}; a number between 0 and 1 is needed.")
        if self.maxiter is not None:
            count("maxiter", self.maxiter, 1)


class System:
    """A, its factors M, and the method: `solve(B)` and, with the same factors, `solve(B, "T")` and `solve(B, "H")`."""

    def __init__(self, A: CSR, options: Options):
        recipe, method = options.recipe, options.method
        if recipe == "auto" or method == "auto":
            found = suggest(A)
            recipe = RECIPES[found.recipe]() if recipe == "auto" else recipe
            method = found.method if method == "auto" else method
        self.A, self.options = A, options
        self.M = recipe if isinstance(recipe, Factors) else recipe.factor(A)
        if self.M.shape != A.shape:
            raise MatrixError(f"the factors have shape {self.M.shape}, but A has {A.shape}.")
        self._method = method if callable(method) else getattr(finelu.krylov, method)
        self._self_adjoint = method in SELF_ADJOINT

    def solve(self, B, trans: str = "N"):
        """A^-1 B, A^-T B or A^-H B, for B (n,) or (n, k) on the device of A, column by column; NotConverged if not."""
        B = check_vector(B, self.A.n, self.A.data, "b" if trans == "N" else "the gradient that comes in")
        if trans == "T":
            return self.solve(B.conj(), "H").conj()
        if B.ndim == 1:
            return self._column(B, trans, NAMES[trans])
        columns = [self._column(B[:, k], trans, f"column {k} of {NAMES[trans]}") for k in range(B.shape[1])]
        xp = namespace(B)
        return xp.stack(columns, axis=1) if columns else xp.empty(B.shape, np.result_type(self.A.dtype, B.dtype))

    def _column(self, b, trans: str, what: str):
        A, M = (self.A, self.M) if trans == "N" or self._self_adjoint else self._adjoint
        rtol = self.options.rtol
        if rtol is None:
            rtol = 1e-5 if np.result_type(self.A.dtype, b.dtype) in (np.float32, np.complex64) else 1e-10
        solution = self._method(A, b, rtol=rtol, maxiter=self.options.maxiter, M=M)
        if not solution.converged:
            raise NotConverged(what, solution, rtol)
        return solution.x

    @cached_property
    def _adjoint(self):
        return self.A.tosparse().conj().T.tocsr(), _Adjoint(self.M)


class _Adjoint:
    """M^H as a preconditioner."""

    def __init__(self, M: Factors):
        self.shape, self.dtype, self.recipe = M.shape, M.dtype, M.recipe
        self.matvec, self.rmatvec = M.rmatvec, M.matvec
