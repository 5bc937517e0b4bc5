"""LSQR, for least squares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from finelu.arithmetic import ignore_fp_errors
from finelu.errors import MatrixError
from finelu.krylov.least_squares import LeastSquares, Limits, Step, bidiagonalization
from finelu.krylov.least_squares_course import solved
from finelu.krylov.loop import Callback
from finelu.matrix.vectors import times_power
from finelu.result import LeastSquaresSolution
from finelu.validation import flag


@ignore_fp_errors
def lsqr(
    A: Any,
    b: Any,
    damp: float = 0.0,
    atol: float = 1e-6,
    btol: float = 1e-6,
    conlim: float = 1e8,
    maxiter: int | None = None,
    show: bool = False,
    x0: Any = None,
    *,
    M: Any = None,
    callback: Callback = None,
    raise_on_failure: bool = False,
    calc_var: bool = False,
) -> LeastSquaresSolution:
    """Minimize ||b - A x||^2 + damp^2 ||x - x0||^2 by LSQR, which is CG for the normal equations, but more accurate.

    Arguments as in `lsmr`, and
    calc_var : True estimates the diagonal of (A^H A + damp^2 I)^-1, `variance` of the solution: sums that grow towards
        it with the iterations. b has one column then.
    ||r|| falls in each iteration; ||A^H r|| does not, so that LSMR ends earlier as a rule.
    Source: C. C. Paige, M. A. Saunders: LSQR: An algorithm for sparse linear equations and sparse least squares, 1982.
    """
    problem = LeastSquares(A, b, x0, M, damp)
    limits = Limits.checked(atol, btol, conlim, maxiter, usual=2 * problem.n)
    flag("calc_var", calc_var)
    if calc_var and problem.b.size != problem.m:
        raise MatrixError(
            f"calc_var=True takes one column, but b has {problem.b.shape[1]}; call it for the first alone."
        )
    variance = problem.xp.zeros(problem.n, problem.real) if calc_var else None
    found = solved(
        "lsqr",
        partial(steps, variance),
        problem,
        limits,
        show=show,
        callback=callback,
        raise_on_failure=raise_on_failure,
    )
    if variance is not None and problem.power:
        variance = times_power(variance, -2 * problem.power)
    return replace(found, variance=variance)


def steps(variance: Any, problem: LeastSquares, r: Any, x: Any) -> Iterator[Step]:
    """The paper's algorithm, with its names.  variance : an array to which the squares of d_k = w_k / rho_k are added,
    or None."""
    process = bidiagonalization(problem, r)
    phi_bar, rho_bar, v = next(process)
    if not rho_bar > 0:
        yield from () if rho_bar == 0 else (Step(math.nan, math.nan, 1.0),)
        return
    w, largest, smallest = v.copy(), 0.0, math.inf
    if variance is not None:
        variance[:] = 0
    for beta, alpha, v in process:
        if math.isnan(alpha):
            yield Step(math.nan, math.nan, 1.0)
            return
        rho = math.hypot(rho_bar, beta)
        c, s = rho_bar / rho, beta / rho
        theta, rho_bar = s * alpha, -c * alpha
        phi, phi_bar = c * phi_bar, s * phi_bar
        if variance is not None:
            variance += abs(w / rho) ** 2
        x += (phi / rho) * w
        w *= -theta / rho
        w += v
        largest, smallest = max(largest, rho), min(smallest, rho)
        yield Step(phi_bar, phi_bar * alpha * abs(c), largest / smallest)
