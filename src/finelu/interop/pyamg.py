"""Smoothers and coarse solvers for PyAMG's multigrid hierarchies, from any recipe."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from finelu.errors import ParameterError
from finelu.factors import Factors
from finelu.factors.base import TRANSPOSES
from finelu.preconditioners import MultilevelILU, recipe_of
from finelu.validation import count

Smoother = Callable[[Any, np.ndarray, np.ndarray], None]


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
