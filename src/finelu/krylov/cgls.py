"""CGLS, conjugate gradients for least squares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from finelu.arithmetic import ignore_fp_errors
from finelu.krylov.least_squares import LeastSquares, Limits, Step
from finelu.krylov.least_squares_course import solved
from finelu.matrix import norm
from finelu.result import LeastSquaresSolution
from finelu.validation import count


@ignore_fp_errors
def cgls(
    A: Any,
    b: Any,
    damp: float = 0.0,
    atol: float = 1e-6,
    btol: float = 1e-6,
    maxiter: int | None = None,
    show: bool = False,
    x0: Any = None,
    *,
    M: Any = None,
    raise_on_failure: bool = False,
) -> LeastSquaresSolution:
    """Minimize ||b - A x||^2 + damp^2 ||x - x0||^2 by conjugate gradients for the normal equations.

    Arguments as in `lsmr`; maxiter is 2 n by default. The iterates are those of `lsqr` without rounding, and a vector
    less is kept. A condition number is not estimated.
    Source: M. R. Hestenes, E. Stiefel: Methods of conjugate gradients for solving linear systems, 1952, section 10;
    A. Bjorck: Numerical Methods for Least Squares Problems, 1996, algorithm 7.4.1.
    """
    problem = LeastSquares(A, b, x0, M, damp)
    most = 2 * problem.n if maxiter is None else count("maxiter", maxiter)
    limits = Limits.checked(atol, btol, 0.0, most)
    return solved("cgls", steps, problem, limits, show=show, raise_on_failure=raise_on_failure)


def steps(problem: LeastSquares, r: Any, x: Any) -> Iterator[Step]:
    """Bjorck's algorithm: r is the residual, s = A^H r, z = M s, p the direction and q = A p."""
    s = problem.adjoint(r)
    z, length = problem.weighted(s)
    p = z.copy()
    while length > 0:
        q = problem.forward(p)
        of_q = norm(q)
        if of_q == 0:
            return
        alpha = (length / of_q) ** 2
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
        yield Step(norm(r), length, math.nan)
    if math.isnan(length):
        yield Step(math.nan, math.nan, math.nan)
