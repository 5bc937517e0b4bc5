"""The stabilized bi-conjugate gradient method."""

from __future__ import annotations

from finelu.arithmetic import judged
from finelu.krylov.progress import Progress
from finelu.result import Solution


@judged
def bicgstab(A, b, x0=None, *, rtol=1e-5, atol=0.0, maxiter=None, M=None, callback=None, watch=None) -> Solution:
    """Solve A x = b for any nonsingular A by right-preconditioned BiCGSTAB.

    Arguments as in `finelu.krylov`; callback(x) is called after each iteration. Cost of an iteration: two products with
    A, two with M, three dot products, two norms and three passes over vectors; memory 10 vectors.
    Where the recurrence breaks down it is started again from the true residual with a new shadow vector; it ends with
    Status.BREAKDOWN only if the residual was not halved in between. The residual norms may jump; x is the best iterate.
    Source: van der Vorst 1992; Saad 2003, Alg. 7.7.
    """
    progress = Progress(
        "bicgstab", A, b, x0, rtol=rtol, atol=atol, maxiter=maxiter, M=M, callback=callback, watch=watch
    )
    A, M, x, best, k = progress.A, progress.M, progress.x, progress.keeps_best(), progress.kernels
    state, norms = progress.state, progress.norms
    r, p, shadow = progress.vectors(3)
    rho, sigma, ts = progress.scalars(3)
    shadow_norm, t_norm = progress.real_scalar(), progress.real_scalar()
    while progress.cycle(r):
        shadow[:] = r
        p[:] = r
        k.vectors.norm(shadow, shadow_norm)
        k.vectors.dot(shadow, r, rho)
        while progress.goes_on():
            p_hat = M @ p
            v = A @ p_hat
            k.vectors.dot(shadow, v, sigma)
            k.recurrences.bicgstab_half(state, rho, sigma, v, r)  # r becomes s = r - alpha v
            s_hat = M @ r
            t = A @ s_hat
            k.vectors.dot(t, r, ts)
            k.vectors.norm(t, t_norm)
            k.recurrences.bicgstab_step(state, rho, sigma, ts, t_norm, p_hat, s_hat, t, x, best, r)
            k.vectors.norm(r, progress.norm)
            k.vectors.dot(shadow, r, rho)
            k.recurrences.bicgstab_record(state, norms, progress.history, rho, sigma, ts, t_norm, shadow_norm)
            progress.tell()
            k.recurrences.bicgstab_direction(state, rho, sigma, ts, t_norm, r, v, p)
    return progress.end()
