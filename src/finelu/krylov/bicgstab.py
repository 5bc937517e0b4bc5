"""The stabilized bi-conjugate gradient method."""

from __future__ import annotations

from typing import Any

from finelu.arithmetic import ignore_fp_errors
from finelu.krylov.criterion import solved
from finelu.krylov.progress import Callback, Progress, Watch
from finelu.krylov.system import System
from finelu.result import Solution


@ignore_fp_errors
def bicgstab(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    criterion: str = "auto",
    maxiter: int | None = None,
    M: Any = None,
    callback: Callback = None,
    watch: Watch = None,
) -> Solution:
    """Solve A x = b for any nonsingular A by right-preconditioned BiCGSTAB.

    Arguments as in `finelu.krylov`; callback(x) is called after each iteration. Cost of an iteration: two products with
    A, two with M, three dot products, two norms and three passes over vectors; memory 10 vectors, and where the
    iteration is recorded (on a GPU) those that M makes on the way to both of its results, as long as the solve lasts.
    Where the recurrence breaks down it is started again from the true residual with a new shadow vector; it ends with
    Status.BREAKDOWN only if the residual was not halved in between. The residual norms may jump; x is the best iterate.
    Source: van der Vorst 1992; Saad 2003, Alg. 7.7.
    """
    return solved(
        "bicgstab",
        iterate,
        System.checked(A, b, x0, M),
        criterion=criterion,
        rtol=rtol,
        atol=atol,
        maxiter=maxiter,
        callback=callback,
        watch=watch,
    )


def iterate(progress: Progress) -> Solution:
    """Saad 2003, Alg. 7.7, for A M^-1 and x = M^-1 u: p_hat = M^-1 p and s_hat = M^-1 s; shadow is his r0*."""
    A, M, x, best, k = progress.A, progress.M, progress.x, progress.keeps_best(), progress.kernels
    state, norms = progress.state, progress.norms
    r, p, shadow = progress.vectors(3)
    rho, sigma, ts = progress.scalars(3)
    shadow_norm, t_norm = progress.real_scalar(), progress.real_scalar()

    @progress.repeated
    def iteration() -> None:
        p_hat = M @ p
        v = A.with_dot(p_hat, shadow, sigma)  # line 4: alpha = (r, r0*) / (A p_hat, r0*)
        k.recurrences.bicgstab_half(state, rho, sigma, v, r)  # line 5: s = r - alpha A p_hat, in the place of r
        s_hat = M @ r
        t = A @ s_hat
        k.vectors.dot_and_norm(t, r, ts, t_norm)  # line 6: omega = (A s_hat, s) / (A s_hat, A s_hat)
        # lines 7, 8: x += alpha p_hat + omega s_hat, r = s - omega A s_hat; of line 9: rho = (r, r0*)
        scalars = rho, sigma, ts, t_norm, shadow, shadow_norm
        k.recurrences.bicgstab_step(state, norms, progress.history, *scalars, p_hat, s_hat, t, x, best, r)
        # lines 9, 10: beta = (r, r0*) / (r_old, r0*) alpha / omega, p = r + beta (p - omega A p_hat)
        k.recurrences.bicgstab_direction(state, rho, sigma, ts, t_norm, r, v, p)

    while progress.cycle(r):  # line 1: r = b - A x, r0* = r
        progress.xp.copyto(shadow, r)
        progress.xp.copyto(p, r)  # line 2
        k.vectors.norm(shadow, shadow_norm)
        k.vectors.dot(shadow, r, rho)
        while progress.goes_on():  # line 3
            iteration()
            progress.tell()
    return progress.end()
