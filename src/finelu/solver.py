"""solve(A, b): checks its arguments, brings A and b where they are wanted, and goes up the ladder for each column."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter

import numpy as np

from finelu.errors import ParameterError
from finelu.kernels import namespace, on_gpu, require_gpu, to_host
from finelu.kernels.compiling import compile_clock, quietly
from finelu.krylov import METHODS
from finelu.ladder import Ladder, precise
from finelu.matrix import CSR, as_csr, check_vector, number
from finelu.preconditioners import RECIPES
from finelu.preconditioners.recipe import Recipe
from finelu.result import Solution, Status


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
    verbose: bool = True,
) -> Solution:
    """Solve A x = b to ||b - A x|| <= rtol ||b||, choosing what it takes.

    A : (n, n), anything that `finelu.as_csr` takes; its diagonal may have gaps.  b : (n,) or (n, k), one column after
        the other with the factors that the first has chosen.
    device : "cpu" or "cuda" to work there whatever A is; None: where A lives. x comes back where b was.
    recipe : "auto", or a recipe or its name: then only that is tried.  method : "auto" or a method's name.
    time_limit : seconds for everything; a factorization that has begun is not stopped.  memory_limit : bytes for the
        factors that it chooses, estimated before they are made; None: 80% of what the machine, or the GPU, has free.
    watch : watch(iteration, residual_norm), as the Krylov methods call it; True ends the solve.
    verbose : False: print nothing; else one line on stderr, if that is a terminal, where kernels are to be compiled.
    Returns a Solution with `explain()`; of many columns: residual_norm, history and status of the worst one, the
    iterations of all. `converged` only if ||b - A x|| <= rtol ||b|| for the x returned, computed apart; else x is the
    best iterate known. Status.SINGULAR where a vector v with A v = 0 to rounding shows that there is no solution.
    float32 and complex64 are solved in double precision where rtol is below 1e-5, and x is double then.
    Raises MatrixError for a wrong shape, NaN or Inf, ParameterError for a meaningless argument.
    The rules are those of ladder.py's head and constants; docs/solve.md tells them.
    """
    start = perf_counter()
    rtol = number("rtol", rtol)
    time_limit = math.inf if time_limit is None else number("time_limit", time_limit)
    memory_limit = None if memory_limit is None else number("memory_limit", memory_limit)
    if device not in (None, "cpu", "cuda"):
        raise ParameterError(f"device={device!r}; None, 'cpu' or 'cuda' is needed.")
    chosen, method = chosen_recipe(recipe), known_method(method)
    with compile_clock() as compiling, quietly(not verbose):
        A = as_csr(A, diagonal=False)
        home = b = check_vector(b, A.n, b)
        A, b = _placed(A, b, device)
        A, b = precise(A, b, rtol)
        ladder = Ladder(A, rtol, chosen, method, start + time_limit, memory_limit, watch)
        columns = b.reshape(A.n, -1) if b.size else b
        found = [ladder.solve(columns[:, c]) for c in range(columns.shape[-1])] or [
            ladder.nothing(b, Status.CONVERGED, 0.0)
        ]
    return _together(found, b.shape, home, start, compiling())


def first_try(A) -> dict[str, str]:
    """What `solve` tries first on A: recipe, method and reason, in words; {} where nothing fits the free memory.

    A : anything that `finelu.as_csr` takes; its diagonal may have gaps. Cost: `look`, at times an ordering.
    """
    return Ladder(as_csr(A, diagonal=False), 1e-8).first()


def known_method(method):
    if method != "auto" and method not in METHODS:
        raise ParameterError(f"there is no method {method!r}; one of auto, {', '.join(METHODS)} is needed.")
    return method


def chosen_recipe(recipe):
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
        A = A.on(cupy)
    if device == "cpu" and on_gpu(A.data):
        A = A.on(np)
    if device is not None:
        b = namespace(A.data).asarray(b) if on_gpu(A.data) else to_host(b)
    return A, check_vector(b, A.n, A.data)


def _together(found: list[Solution], shape, home, start: float, compiling: float) -> Solution:
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
        timings={"solve": perf_counter() - start, "compile": compiling},
    )
