"""LSMR, for least squares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from finelu.arithmetic import ignore_fp_errors
from finelu.krylov.least_squares import LeastSquares, Limits, Step, bidiagonalization
from finelu.krylov.least_squares_course import solved
from finelu.krylov.loop import Callback
from finelu.result import LeastSquaresSolution


@ignore_fp_errors
def lsmr(
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
    """Minimize ||b - A x||^2 + damp^2 ||x - x0||^2 by LSMR, which is MINRES for the normal equations.

    The arguments, those of SciPy's lsmr and after them finelu's, are also those of `lsqr` and `cgls`:
    A : (m, n), m and n of any size: scipy.sparse or cupyx.scipy.sparse in any format, a dense array, or a
        LinearOperator with matvec and rmatvec.
    b : (m,) or (m, k), on the device of A; columns are solved one after the other.
    atol, btol : converged means, for r = b - A x (with damp, -damp (x - x0) below it) computed anew, one of these:
        1. ||r|| <= btol ||b|| + atol ||A|| ||x||: x solves A x = b;
        2. ||A^H r|| <= atol ||A|| ||r||: x is the least-squares solution.
        ||A|| is a lower bound: the longest column of a matrix, which makes the test no weaker than SciPy's.
    conlim : the iterations end where the condition number seems to exceed it; 0 or Inf: they do not.
    maxiter : the largest number of iterations; by default min(m, n) in `lsmr`, and 2 n in `lsqr` and `cgls`. An
        iteration is a product with A, and one with A^H.
    show : True prints ||r|| and ||A^H r|| after each iteration, by the recurrence.
    x0 : (n,), for all columns, or (n, k): the initial guess, 0 by default.
    M : approximates the inverse of A^H A + damp^2 I, Hermitian positive definite: factors of `ICNE`, or as in
        `finelu.krylov`. M = R^-1 R^-H is the right preconditioner R: the iterations are those of A R^-1, and R itself
        is not needed. Without M, and x0 = 0, x has the least norm of all solutions, where A leaves x open; with M it
        has the least norm of R x.
    callback : callback(x), called after each iteration with the iterate (n,). It ends the iterations of this column
        with Status.INTERRUPTED by returning True or raising StopIteration. Each call costs a new vector x.
    raise_on_failure : True raises NotConverged unless it converged.
    Returns a LeastSquaresSolution, which unpacks as SciPy's tuple.
    Cost of an iteration: two products and, if given, one with M; memory 2 vectors of m numbers and 8 of n, and of a
    matrix also A^H. ||A^H r|| falls in each iteration.
    Raises MatrixError for wrong shapes, NaN or Inf, ParameterError for meaningless numbers.
    Source: D. C.-L. Fong, M. Saunders: LSMR: An iterative algorithm for sparse least-squares problems, 2011.
    """
    problem = LeastSquares(A, b, x0, M, damp)
    limits = Limits.checked(atol, btol, conlim, maxiter, usual=min(problem.m, problem.n))
    return solved("lsmr", steps, problem, limits, show=show, callback=callback, raise_on_failure=raise_on_failure)


def steps(problem: LeastSquares, r: Any, x: Any) -> Iterator[Step]:
    """The paper's algorithm, with its names; damp is a part of the problem, so that its alpha hat is alpha bar."""
    process = bidiagonalization(problem, r)
    beta, alpha, v = next(process)
    if not alpha > 0:
        yield from () if alpha == 0 else (Step(math.nan, math.nan, 1.0),)
        return
    zeta_bar, alpha_bar, rho, rho_bar, c_bar, s_bar = alpha * beta, alpha, 1.0, 1.0, 1.0, 0.0
    h, h_bar = v.copy(), problem.xp.zeros_like(v)
    zeta = tau_tilde = theta_tilde = beta_dot = 0.0  # for ||r||, section 5
    beta_double_dot, rho_dot = beta, 1.0
    largest, smallest, first = 0.0, math.inf, True
    for beta, alpha, v in process:
        if math.isnan(alpha):
            yield Step(math.nan, math.nan, 1.0)
            return
        rho_old, rho_bar_old, zeta_old = rho, rho_bar, zeta
        rho = math.hypot(alpha_bar, beta)
        c, s = alpha_bar / rho, beta / rho
        theta, alpha_bar = s * alpha, c * alpha

        theta_bar, rho_temp = s_bar * rho, c_bar * rho
        rho_bar = math.hypot(rho_temp, theta)
        c_bar, s_bar = rho_temp / rho_bar, theta / rho_bar
        zeta, zeta_bar = c_bar * zeta_bar, -s_bar * zeta_bar

        h_bar *= -theta_bar * rho / (rho_old * rho_bar_old)
        h_bar += h
        x += (zeta / (rho * rho_bar)) * h_bar
        h *= -theta / rho
        h += v

        beta_hat, beta_double_dot = c * beta_double_dot, -s * beta_double_dot
        rho_tilde = math.hypot(rho_dot, theta_bar)
        c_tilde, s_tilde = rho_dot / rho_tilde, theta_bar / rho_tilde
        tau_tilde = (zeta_old - theta_tilde * tau_tilde) / rho_tilde
        theta_tilde, rho_dot = s_tilde * rho_bar, c_tilde * rho_bar
        beta_dot = c_tilde * beta_hat - s_tilde * beta_dot
        tau_dot = (zeta - theta_tilde * tau_tilde) / rho_dot

        if not first:
            largest, smallest = max(largest, rho_bar_old), min(smallest, rho_bar_old)
        first = False
        condition = max(largest, rho_temp) / min(smallest, rho_temp)
        yield Step(math.hypot(beta_dot - tau_dot, beta_double_dot), abs(zeta_bar), condition)
