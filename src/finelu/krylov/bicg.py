"""The biconjugate gradient method."""

from __future__ import annotations

from typing import Any

from finelu.arithmetic import ignore_fp_errors
from finelu.krylov.criterion import solved
from finelu.krylov.progress import Callback, Progress, Watch
from finelu.krylov.system import System
from finelu.result import Solution


@ignore_fp_errors
def bicg(
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
    """Solve A x = b for any nonsingular A by preconditioned biconjugate gradients.

    Arguments as in `finelu.krylov`, but A^H and M^H are needed, too: matrices are transposed once, a LinearOperator or
    Factors apply them by rmatvec, and a function of a vector is a MatrixError. callback(x) is called after each
    iteration. Cost of an iteration: one product each with A, A^H, M and M^H, two dot products, three norms and two
    passes over vectors; memory 11 vectors, and A^H where A is a sparse matrix.
    For a Hermitian A and M it takes the steps of `cg` at twice the price. Where the recurrence breaks down, or its
    residual has grown so much that no digit is left, it is started again from the true residual, which is then the
    shadow residual, too; it ends with Status.BREAKDOWN only if the residual was not halved in between. Where r^H M r is
    0 at the start, which leaves nothing to divide by, one step x += M r comes first. The residual norms may jump; x is
    the best iterate.
    Source: Fletcher 1976; Barrett et al. 1994, section 2.3.5; Saad 2003, Alg. 7.3.
    """
    return solved(
        "bicg",
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
    """Saad 2003, Alg. 7.3, preconditioned as in Barrett et al. 1994, Figure 2.7; r_shadow, p_shadow are his r*, p*."""
    A, M, x, best, k = progress.A, progress.M, progress.x, progress.keeps_best(), progress.kernels
    AH, MH = A.H, M.H
    state, norms = progress.state, progress.norms
    r, p, r_shadow, p_shadow = progress.vectors(4)
    rho, rho_old, sigma, alpha = progress.scalars(4)
    size = progress.real_scalar()
    while progress.cycle(r):  # line 1: r = b - A x; r* = r, so that (r, r*) is not 0 without M
        r_shadow[:] = r
        z, z_shadow = M @ r, MH @ r_shadow
        p[:] = z  # line 2
        p_shadow[:] = z_shadow
        k.vectors.dot(r_shadow, z, rho)
        if progress.corrected(rho, r, z):
            continue
        while progress.goes_on():  # line 3
            q, q_shadow = A @ p, AH @ p_shadow
            k.vectors.size_of_dot(r_shadow, z, size)
            k.vectors.dot(p_shadow, q, sigma)
            k.recurrences.bicg_alpha(state, rho, sigma, size, alpha)  # line 4: alpha = (z, r*) / (A p, p*)
            k.recurrences.bicg_step(state, alpha, p, q, q_shadow, x, best, r, r_shadow)  # lines 5, 6, 7
            k.vectors.norm(r, progress.norm)
            k.recurrences.bicg_record(state, norms, progress.history, progress.norm)
            progress.tell()
            z, z_shadow = M @ r, MH @ r_shadow
            rho, rho_old = rho_old, rho
            k.vectors.dot(r_shadow, z, rho)  # line 8: beta = (z, r*) / (z_old, r*_old)
            k.recurrences.bicg_direction(state, rho, rho_old, z, z_shadow, p, p_shadow)  # lines 9, 10: p = z + beta p
    return progress.end()
