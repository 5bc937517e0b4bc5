"""solve(batch, b): complete factors of all systems by one plan, and of those that need more by `solve` one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from finelu.auto.precision import SINGLE
from finelu.device import namespace, to_host
from finelu.errors import NotConverged
from finelu.kernels import kernels_for
from finelu.krylov.batch import BatchClaims
from finelu.matrix.batch import Batch
from finelu.preconditioners.batch import complete_plan
from finelu.preconditioners.direct import SparseLU
from finelu.result import BatchSolution, Solution
from finelu.validation import number

WANTED = 64.0  # roundings that the backward error of a refined solution may have: a few for each entry of a row
STEPS = 3  # of refinement, at most


def solve_batch(
    batch: Batch, b: Any, rtol: float, atol: float, raise_on_failure: bool, alone: Callable[..., Solution]
) -> BatchSolution:
    """The systems of a batch by complete factors without row exchanges.

    Those that miss the tolerance are solved by alone(A_s, b_s, rtol, atol=atol), one after the other, and `notes` of the
    result names them. float32 is solved in double precision if rtol is below 1e-5.
    """
    start = perf_counter()
    rtol, atol = number("rtol", rtol), number("atol", atol)
    b = batch.right_hand_sides(b)
    b = b.astype(np.result_type(b.dtype, np.float64), copy=False) if rtol < SINGLE else b
    batch = batch.in_dtype(b.dtype)
    xp, k, real = namespace(b), batch.k, b.real.dtype
    kernels, eps = kernels_for(b).batch, float(np.finfo(b.dtype).eps)
    x = xp.empty((k, batch.n), b.dtype)
    norms, roundings, errors = (xp.empty(k, real) for _ in range(3))
    steps, failed, replaced = (xp.empty(k, np.int64) for _ in range(3))
    plan = kernels.prepared(complete_plan(batch))
    results = x, norms, roundings, errors, steps, failed, replaced
    kernels.solve_direct(batch.pattern, plan, batch.values, b, math.sqrt(eps), WANTED * eps, STEPS, *results)
    claims = BatchClaims.of(batch, b, x, norms, roundings, rtol, atol)
    iterations, errors = to_host(steps), to_host(errors)
    status = np.full(k, None, object)
    rest = claims.open()
    for s in rest:
        found = alone(batch[s], b[min(s, b.shape[0] - 1)], rtol, atol=atol)
        x[s], claims.norms[s], claims.converged[s] = found.x, found.residual_norm, found.converged
        status[s], iterations[s], errors[s] = found.status, found.iterations, np.nan
    claims.note(
        rest,
        "factors without row exchanges did not reach the tolerance, so that it was solved by itself, with the choices "
        "of solve(A, b)",
    )
    recipe = repr(SparseLU())
    solution: BatchSolution = claims.solution(status, iterations, errors, "refinement", recipe, perf_counter() - start)
    if raise_on_failure and not solution.all_converged:
        s = int(np.flatnonzero(~solution.converged)[0])
        raise NotConverged(f"system {s} of the Batch", solution[s], rtol)
    return solution
