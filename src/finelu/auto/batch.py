"""solve(batch, b): complete factors of all systems by one plan, and of those that need more by `solve` one by one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from inspect import signature
from time import perf_counter
from typing import Any

import numpy as np

from finelu.auto.precision import SINGLE
from finelu.compiling import quietly
from finelu.device import namespace, to_host
from finelu.errors import NotConverged, ParameterError
from finelu.kernels import kernels_for
from finelu.krylov.batch import BatchClaims, tolerances
from finelu.matrix.batch import Batch
from finelu.preconditioners.batch import complete_plan, guard_of
from finelu.preconditioners.direct import SparseLU
from finelu.preconditioners.recipe import same
from finelu.result import BatchSolution, Solution, Status
from finelu.validation import flag, number, shown

WANTED = 64.0  # roundings of a backward error that no step of refinement lowers, whatever rtol is
ROUNDED = 4.0  # roundings of a backward error that no other factors lower: then the precision limits b - A x
TAKEN = ("A", "b", "rtol", "atol", "verbose", "raise_on_failure")  # parameters of solve(batch, b)
STEPS = 3  # of refinement, at most


def solve_batch(alone: Callable[..., Solution], given: dict[str, Any]) -> BatchSolution:
    """The systems of a batch by complete factors without row exchanges.

    given : the arguments of the call alone(batch, b, rtol, ...) by name, alone being `finelu.solve`. Systems that miss
    the tolerance are solved by alone(A_s, b_s, rtol), one after the other, and `notes` of the result names them.
    Systems in float32 are solved in double precision if rtol is below 1e-5.
    Raises ParameterError for a parameter that only a single system has.
    """
    start = perf_counter()
    for name, parameter in signature(alone).parameters.items():
        if name not in TAKEN and not same(given[name], parameter.default):
            raise ParameterError(
                f"{name}={shown(given[name])}: solve(batch, b) takes rtol, atol, verbose and raise_on_failure."
            )
    batch, verbose = given["A"], given["verbose"]
    rtol, atol = number("rtol", given["rtol"]), number("atol", given["atol"])
    flag("raise_on_failure", given["raise_on_failure"])
    b = batch.right_hand_sides(given["b"])
    b = b.astype(np.result_type(b.dtype, np.float64), copy=False) if rtol < SINGLE else b
    batch = batch.in_dtype(b.dtype)
    with nullcontext() if verbose else quietly():
        claims, status, iterations, errors = _solved(batch, b, rtol, atol, alone)
    seconds, recipe = perf_counter() - start, repr(SparseLU())
    solution: BatchSolution = claims.solution(status, iterations, errors, "refinement", recipe, seconds)
    if given["raise_on_failure"] and not solution.all_converged:
        s = int(np.flatnonzero(~solution.converged)[0])
        raise NotConverged(f"system {s} of the Batch", solution[s], rtol)
    return solution


def _solved(
    batch: Batch, b: Any, rtol: float, atol: float, alone: Callable[..., Solution]
) -> tuple[BatchClaims, Any, Any, Any]:
    """(claims, status of the systems that were solved alone, steps of refinement, backward errors)."""
    xp, k, real = namespace(b), batch.k, b.real.dtype
    kernels, eps = kernels_for(b).batch, float(np.finfo(b.dtype).eps)
    x = xp.empty((k, batch.n), b.dtype)
    norms, roundings, errors = (xp.empty(k, real) for _ in range(3))
    steps, failed, replaced = (xp.empty(k, np.int64) for _ in range(3))
    plan = complete_plan(batch).plan
    tolerance = tolerances(batch, b, rtol, atol)
    limits = guard_of(b.dtype), max(rtol, WANTED * eps), STEPS
    results = x, norms, roundings, errors, steps, failed, replaced
    kernels.solve_direct(batch.pattern, plan, batch.values, b, limits, xp.asarray(tolerance.astype(real)), *results)
    claims = BatchClaims.of(batch, b, x, norms, roundings, tolerance)
    iterations, errors = to_host(steps), to_host(errors)
    status = np.full(k, Status.PRECISION_LIMIT, object)
    rest = [s for s in claims.open() if not errors[s] <= ROUNDED * eps]
    for s in rest:
        found = alone(batch[s], b[min(s, b.shape[0] - 1)], rtol, atol=atol)
        x[s], claims.norms[s], claims.converged[s] = found.x, found.residual_norm, found.converged
        status[s], iterations[s], errors[s] = found.status, found.iterations, np.nan
        if found.x.dtype != x.dtype:  # it was solved in double precision, and x is rounded
            rounded = xp.empty(1, np.float64)
            kernels.residual_twice(batch.pattern, batch.values, b, x, xp.asarray([s]), rounded)
            claims.norms[s] = float(rounded[0])
            claims.converged[s] &= claims.norms[s] <= tolerance[s]
            status[s] = Status.PRECISION_LIMIT if found.converged else found.status
    claims.note(
        np.setdiff1d(np.flatnonzero((to_host(replaced) > 0) & claims.finite), rest),
        "pivots that were too small were replaced by larger ones; refinement makes up for that",
    )
    claims.note(
        rest,
        "factors without row exchanges did not reach the tolerance, so that it was solved by itself, with the choices "
        "of solve(A, b)",
    )
    return claims, status, iterations, errors
