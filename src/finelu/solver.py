"""solve(A, b): checks its arguments, brings A and b where they are wanted, and goes up the ladder for each column."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import numpy as np

from finelu import krylov
from finelu.errors import ParameterError, meant
from finelu.kernels import namespace, on_gpu, require_gpu, to_host
from finelu.kernels.arithmetic import judged
from finelu.krylov import METHODS
from finelu.ladder import Ladder, precise
from finelu.matrix import CSR, as_csr, check_vector, number, shown
from finelu.preconditioners import recipe_of
from finelu.result import Solution, Status


@judged
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
    recipe : "auto", or a recipe, its class or its name: then only that is tried.  method : "auto" or a method's name.
    time_limit : seconds for everything; a factorization that has begun is not stopped.  memory_limit : bytes for the
        factors that it chooses, estimated before they are made; None: 80% of what the machine, or the GPU, has free.
    watch : watch(iteration, residual_norm), as the Krylov methods call it; True ends the solve.
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
        raise ParameterError(f"device={device!r}; None, 'cpu' or 'cuda' is needed." + meant(device, ("cpu", "cuda")))
    chosen, method = chosen_recipe(recipe), known_method(method)
    A = as_csr(A, diagonal=False)
    home = b = check_vector(b, A.n, b)
    A, b = _placed(A, b, device)
    A, b = precise(A, b, rtol)
    with _word_about_compiling(watch is None and sys.stderr is not None and sys.stderr.isatty()):
        ladder = Ladder(A, rtol, chosen, method, start + time_limit, memory_limit, watch)
        columns = b.reshape(A.n, -1) if b.size else b
        found = [ladder.solve(columns[:, c]) for c in range(columns.shape[-1])] or [
            ladder.nothing(b, Status.CONVERGED, 0.0)
        ]
    return _together(found, b.shape, home, start)


@judged
def first_try(A) -> dict[str, str]:
    """What `solve` tries first on A: recipe, method and reason, in words; {} where nothing fits the free memory.

    A : anything that `finelu.as_csr` takes; its diagonal may have gaps. Cost: `look`, at times an ordering.
    """
    return Ladder(as_csr(A, diagonal=False), 1e-8).first()


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


def known_method(method) -> str:
    """The name of the method that is meant: "auto", a name, in letters of any size, or the function itself."""
    name = method.__name__ if any(method is getattr(krylov, known) for known in METHODS) else method
    if isinstance(name, str) and name.lower() in ("auto", *METHODS):
        return name.lower()
    raise ParameterError(
        f"there is no method {shown(method)}; one of auto, {', '.join(METHODS)} is needed." + meant(method, METHODS)
    )


def chosen_recipe(recipe):
    """The recipe that is meant, None for no preconditioner, or "auto": of a recipe, its class, or a name of either."""
    chosen = None if recipe is None else recipe_of(recipe, "auto", "none")
    return None if chosen == "none" else chosen


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
