"""Smoothers and coarse solvers for PyAMG's multigrid hierarchies, from any recipe; and the Krylov methods `cg`,
`bicgstab`, `gmres` and `fgmres` with the arguments of PyAMG's."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from finelu import krylov
from finelu.arithmetic import ignore_fp_errors
from finelu.errors import ParameterError
from finelu.factors import Factors
from finelu.factors.base import TRANSPOSES
from finelu.krylov.operators import order
from finelu.preconditioners import MultilevelILU, recipe_of
from finelu.result import Solution
from finelu.validation import choice, count

Smoother = Callable[[Any, np.ndarray, np.ndarray], None]
CRITERIA = ("rr", "rr+")  # of PyAMG's criteria, those that hold where the true residual is small
FULL = 40  # iterations of PyAMG's gmres where neither restart nor maxiter is given


class _OfMatrix:
    """The factors of a matrix, made at their first use and kept as long as the matrix lives."""

    def __init__(self, recipe: Any):
        named = isinstance(recipe, type) or not hasattr(recipe, "factor")
        self.recipe = recipe_of(recipe) if named else recipe
        self._known: dict[int, tuple[Any, Factors]] = {}

    def __call__(self, A: Any) -> Factors:
        known, key = self._known, id(A)
        if key not in known:
            known[key] = weakref.ref(A, lambda _: known.pop(key, None)), self.recipe.factor(A)
        return known[key][1]


def smoother(recipe: Any, *, iterations: int = 1, trans: str = "N") -> Smoother:
    """A function f(A, x, b) that does x <- x + M^-1 (b - A x), in place, for the levels of a PyAMG hierarchy.

    recipe : makes M from the matrix of each level when that is first smoothed; later changes of its values in place
        are not noticed.
    iterations : number of steps.  trans : "H" takes M^-H, for a postsmoother: with M^-1 before and M^-H after the
        coarse correction the cycle is Hermitian if A is, as cg needs it. A Hermitian M, such as that of IC0, needs no
        "H".

        ml = pyamg.smoothed_aggregation_solver(A)
        for level in ml.levels[:-1]:
            level.presmoother, level.postsmoother = smoother(fl.ILU0()), smoother(fl.ILU0(), trans="H")

    `change_smoothers` does this, sharing the factors. Raises what `recipe.factor` raises, at the first cycle.
    Cost an iteration: a product with A and a solve with M.
    """
    return _smoother(_OfMatrix(recipe), iterations, trans)


def _smoother(factors: _OfMatrix, iterations: int, trans: str) -> Smoother:
    count("iterations", iterations, 1)
    if trans not in TRANSPOSES:
        raise ParameterError(f"trans={trans!r}; one of {', '.join(TRANSPOSES)} is needed.")

    def smooth(A: Any, x: np.ndarray, b: np.ndarray) -> None:
        M = factors(A)
        for _ in range(iterations):
            x += M.solve(b - A @ x, trans)

    smooth.__name__ = f"finelu_{type(factors.recipe).__name__}"
    return smooth


def change_smoothers(ml: Any, recipe: Any, *, iterations: int = 1) -> Any:
    """Smooth all levels of `ml` but the coarsest with M before the coarse correction and with M^H after it. Returns ml.

    ml : a MultilevelSolver of PyAMG, changed in place; a cycle is then Hermitian where A is.  recipe, iterations : as
    in `smoother`. M is made here, once for each level. Raises what `recipe.factor` raises.
    """
    factors = _OfMatrix(recipe)
    for level in ml.levels[:-1]:
        factors(level.A)
        level.presmoother = _smoother(factors, iterations, "N")
        level.postsmoother = _smoother(factors, iterations, "H")
    ml.symmetric_smoothing = True
    return ml


def coarse_solver(recipe: Any = None) -> Callable[[Any, np.ndarray], np.ndarray]:
    """A function f(A, b) that returns M^-1 b, for PyAMG's `coarse_solver=`.

    recipe : makes M from the coarsest matrix at the first cycle; None: MultilevelILU(), which is LAPACK's LU up to 500
        rows, and needs little memory for more.

        ml = pyamg.ruge_stuben_solver(A, max_coarse=5000, coarse_solver=coarse_solver())
    """
    factors = _OfMatrix(MultilevelILU() if recipe is None else recipe)

    def solve(A: Any, b: np.ndarray) -> np.ndarray:
        x: np.ndarray = factors(A).solve(b)
        return x

    return solve


@ignore_fp_errors
def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    tol: float = 1e-5,
    criteria: str = "rr",
    maxiter: int | None = None,
    M: Any = None,
    callback: Any = None,
    residuals: list[float] | None = None,
) -> tuple[Any, int]:
    """`finelu.cg` as PyAMG's cg is called: `ml.solve(b, accel=finelu.interop.pyamg.cg)`. Returns (x, info).

    A, b, x0, M, callback : as in `finelu.krylov`.
    tol : converged means ||b - A x|| <= tol ||b||, for the true residual.
    criteria : "rr"; or "rr+", which is weaker and holds, too. PyAMG's "MrMr" and "rMr", of the preconditioned
        residual, are refused.
    maxiter : the largest number of iterations, 1.3 n + 2 by default.
    residuals : a list, which is filled with the norms of b - A x, from x0 on.
    """
    choice("criteria", criteria, CRITERIA)
    most = int(1.3 * order(A)) + 2 if maxiter is None else maxiter
    return _as_pyamg(krylov.cg(A, b, x0, rtol=tol, maxiter=most, M=M, callback=callback), residuals)


@ignore_fp_errors
def bicgstab(
    A: Any,
    b: Any,
    x0: Any = None,
    tol: float = 1e-5,
    criteria: str = "rr",
    maxiter: int | None = None,
    M: Any = None,
    callback: Any = None,
    residuals: list[float] | None = None,
) -> tuple[Any, int]:
    """`finelu.bicgstab` as PyAMG's is called; arguments as in `cg`, but maxiter is n + 5 by default."""
    choice("criteria", criteria, CRITERIA)
    most = order(A) + 5 if maxiter is None else maxiter
    return _as_pyamg(krylov.bicgstab(A, b, x0, rtol=tol, maxiter=most, M=M, callback=callback), residuals)


@ignore_fp_errors
def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    tol: float = 1e-5,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Any = None,
    residuals: list[float] | None = None,
) -> tuple[Any, int]:
    """`finelu.gmres` as PyAMG's is called; arguments as in `cg`, except these.

    restart : iterations per cycle; None: as many as maxiter, without a restart.
    maxiter : the largest number of cycles, or without restart of iterations, by default min(n, 40).
    callback : callback(x) is called after each cycle.
    """
    cycles, length = _cycles(A, restart, maxiter)
    options = {"rtol": tol, "restart": length, "maxiter": cycles, "callback": callback, "callback_type": "x"}
    return _as_pyamg(krylov.gmres(A, b, x0, M=M, **options), residuals)


@ignore_fp_errors
def fgmres(
    A: Any,
    b: Any,
    x0: Any = None,
    tol: float = 1e-5,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Any = None,
    residuals: list[float] | None = None,
) -> tuple[Any, int]:
    """`finelu.fgmres` as PyAMG's is called; arguments as in `gmres`."""
    cycles, length = _cycles(A, restart, maxiter)
    options = {"rtol": tol, "restart": length, "maxiter": cycles * length, "callback": callback}
    return _as_pyamg(krylov.fgmres(A, b, x0, M=M, **options), residuals)


def _cycles(A: Any, restart: int | None, maxiter: int | None) -> tuple[int, int]:
    """(largest number of cycles, iterations of one)."""
    n = order(A)
    most = min(n, FULL) if maxiter is None else count("maxiter", maxiter, 1)
    return (1, min(most, n)) if restart is None else (most, min(count("restart", restart, 1), n))


def _as_pyamg(solution: Solution, residuals: list[float] | None) -> tuple[Any, int]:
    if residuals is not None:
        residuals[:] = solution.history.tolist()
    return solution.x, solution.iterations if solution.info > 0 else solution.info
