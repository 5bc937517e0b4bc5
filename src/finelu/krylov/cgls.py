"""CGLS, conjugate gradients for least squares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from finelu.arithmetic import ignore_fp_errors
from finelu.krylov.least_squares import LeastSquares, Limits, Step
from finelu.krylov.least_squares_course import solved
from finelu.krylov.loop import Callback
from finelu.matrix import norm
from finelu.result import LeastSquaresSolution


@ignore_fp_errors
def cgls(
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
) -> LeastSquaresSolution:
    """Minimize ||b - A x||^2 + damp^2 ||x - x0||^2 by conjugate gradients for the normal equations.

    Arguments as in `lsmr`. The iterates and the estimate of the condition number are those of `lsqr` without rounding,
    and a vector less is kept.
    Source: M. R. Hestenes, E. Stiefel: Methods of conjugate gradients for solving linear systems, 1952, section 10;
    A. Bjorck: Numerical Methods for Least Squares Problems, 1996, algorithm 7.4.1.
    """
    problem = LeastSquares(A, b, x0, M, damp)
    limits = Limits.checked(atol, btol, conlim, maxiter, usual=2 * problem.n)
    return solved("cgls", steps, problem, limits, show=show, callback=callback, raise_on_failure=raise_on_failure)


def steps(problem: LeastSquares, r: Any, x: Any) -> Iterator[Step]:
    """Bjorck's algorithm: r is the residual, s = A^H r, z = M s, p the direction and q = A p.

    ||q|| / (s^H M s)^(1/2) is the diagonal element rho of `lsqr`: both factor the same tridiagonal matrix.
    """
    s = problem.adjoint(r)
    z, length = problem.weighted(s)
    p, most, least = z.copy(), 0.0, math.inf
    while length > 0:
        q = problem.forward(p)
        of_q = norm(q)
        if of_q == 0:
            return
        alpha, rho = (length / of_q) ** 2, of_q / length
        most, least = max(most, rho), min(least, rho)
        x += alpha * p
        q *= alpha
        r -= q
        s, before = problem.adjoint(r), length
        z, length = problem.weighted(s)
        if math.isnan(length):
            x -= alpha * p
            break
        p *= (length / before) ** 2
        p += z
        yield Step(norm(r), length, most / least)
    if math.isnan(length):
        yield Step(math.nan, math.nan, math.nan)
