"""The conjugate gradient method."""

from __future__ import annotations

from finelu.arithmetic import judged
from finelu.krylov.progress import Progress
from finelu.result import Solution


@judged
def cg(A, b, x0=None, *, rtol=1e-5, atol=0.0, maxiter=None, M=None, callback=None, watch=None) -> Solution:
    """Solve A x = b for a Hermitian positive definite A by preconditioned conjugate gradients.

    Arguments as in `finelu.krylov`; M must be Hermitian positive definite too (IC0, Jacobi). callback(x) is called
    after each iteration. Cost of an iteration: one product with A, one with M, two dot products, a norm and two passes
    over vectors; memory 7 vectors.
    Ends with Status.INDEFINITE or INDEFINITE_PRECONDITIONER where a curvature p^H A p or r^H M r is not positive.
    Source: Hestenes & Stiefel 1952; Saad 2003, Alg. 9.1.
    """
    progress = Progress("cg", A, b, x0, rtol=rtol, atol=atol, maxiter=maxiter, M=M, callback=callback, watch=watch)
    A, M, x, best, k = progress.A, progress.M, progress.x, progress.keeps_best(), progress.kernels
    state, norms = progress.state, progress.norms
    r, p = progress.vectors(2)
    rho, rho_old, curvature = progress.scalars(3)
    while progress.cycle(r):
        z = M @ r
        p[:] = z
        k.vectors.dot(r, z, rho)
        while progress.goes_on():
            q = A @ p
            k.vectors.dot(p, q, curvature)
            k.recurrences.cg_step(state, rho, curvature, p, q, x, best, r)  # x += alpha p, r -= alpha q
            k.vectors.norm(r, progress.norm)
            k.recurrences.cg_record(state, norms, progress.history, rho, curvature)
            progress.tell()
            z = M @ r
            rho, rho_old = rho_old, rho
            k.vectors.dot(r, z, rho)
            k.recurrences.cg_direction(state, rho, rho_old, z, p)  # p = z + beta p
    return progress.end()
