"""The simplified quasi-minimal residual method for symmetric systems."""

from __future__ import annotations

from typing import Any

from finelu.arithmetic import ignore_fp_errors
from finelu.errors import ParameterError
from finelu.krylov.criterion import solved
from finelu.krylov.progress import Callback, Progress, Watch
from finelu.krylov.system import System
from finelu.result import Solution, Status


@ignore_fp_errors
def sqmr(
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
    hermitian: bool | None = None,
) -> Solution:
    """Solve A x = b for a symmetric A and a symmetric M, both possibly indefinite, by simplified QMR.

    Arguments as in `finelu.krylov`, and
    hermitian : which symmetry a complex A and M have. True: A = A^H, and the recurrence forms x^H y; False: A = A^T
        (Helmholtz and Maxwell equations with absorption), and it forms x^T y. None: whichever two products with A show,
        A = A^H where they show both. It makes no difference where A, b and M are real.
    callback(x) is called after each iteration. Cost of an iteration: one product with A, one with M, two dot products,
    three norms and three passes over vectors; memory 9 vectors. Before the first, A and M are each tried once more for
    the symmetry: Status.NOT_SYMMETRIC.
    It takes what `minres` cannot: a preconditioner that is indefinite itself, such as an L D L^T of an indefinite A.
    The residual of x is carried along, so that its 2-norm is the one that is tested, whatever M is. Where the
    recurrence breaks down, or the residual of the conjugate gradients inside it has grown so much that no digit is
    left, it is started again from the true residual; it ends with Status.BREAKDOWN only if the residual was not halved
    in between. So it does at once where b^T A b = 0, as for a saddle point with a right-hand side in its zero block
    only and no M: use `minres`, or an x0. Where r^T M r is 0 at the start, one step x += M r comes first.
    Source: Freund & Nachtigal 1994, with M on the right; Zhou & Walker 1994 for the residual of x.
    """
    return solved(
        "sqmr",
        iterate,
        System.checked(A, b, x0, M),
        criterion=criterion,
        rtol=rtol,
        atol=atol,
        maxiter=maxiter,
        callback=callback,
        watch=watch,
        hermitian=hermitian,
    )


def iterate(progress: Progress, *, hermitian: bool | None = None) -> Solution:
    """Conjugate gradients in the bilinear form, whose iterates are smoothed. Iteration k, with rho = r^T z, z = M^-1 r:

    (1) alpha = rho / p^T A p,  r -= alpha A p
    (2) theta_k = ||r|| / tau,  c^2 = 1 / (1 + theta_k^2),  tau = tau theta_k c
    (3) d = c^2 theta_(k-1)^2 d + c^2 alpha p,  x += d
    (4) s = (1 - c^2) s + c^2 r: the residual of x
    (5) beta = rho / rho_old,  p = z + beta p
    """
    if hermitian not in (None, True, False):
        raise ParameterError(f"hermitian={hermitian!r}; True, False or None is needed.")
    A, M, x, best, k = progress.A, progress.M, progress.x, progress.keeps_best(), progress.kernels
    state, norms = progress.state, progress.norms
    r, p, d, s = progress.vectors(4)
    rho, rho_old, sigma, alpha = progress.scalars(4)
    r_norm, size = progress.real_scalar(), progress.real_scalar()
    smoothing = progress.xp.zeros(5, progress.real)
    dot = k.vectors.dot
    while progress.cycle(r):
        z = M @ r
        if progress.cycles == 1:
            if progress.dtype.kind == "c" and not (_hermitian(progress) if hermitian is None else hermitian):
                dot = k.vectors.dotu
            if not (progress.symmetric(M, r, z, dot) and progress.symmetric(A, z, A @ z, dot)):
                progress.fail(Status.NOT_SYMMETRIC)
                break
        s[:] = r
        p[:] = z
        d.fill(0)
        dot(r, z, rho)
        if progress.corrected(rho, r, z):
            continue
        k.vectors.norm(r, r_norm)
        k.recurrences.sqmr_begin(state, smoothing, r_norm)  # tau = ||r||, theta = 0
        while progress.goes_on():
            q = A @ p
            k.vectors.size_of_dot(r, z, size)
            dot(p, q, sigma)
            k.recurrences.bicg_alpha(state, rho, sigma, size, alpha)  # (1)
            k.recurrences.sqmr_residual(state, alpha, q, r)
            k.vectors.norm(r, r_norm)
            k.recurrences.sqmr_smooth(state, smoothing, r_norm)  # (2)
            k.recurrences.sqmr_step(state, smoothing, alpha, p, r, d, x, best, s)  # (3), (4)
            k.vectors.norm(s, progress.norm)
            k.recurrences.bicg_record(state, norms, progress.history, r_norm)
            progress.tell()
            z = M @ r
            rho, rho_old = rho_old, rho
            dot(r, z, rho)
            k.recurrences.sqmr_direction(state, rho, rho_old, z, p)  # (5)
    return progress.end()


def _hermitian(progress: Progress) -> bool:
    """Whether A is nearer to A^H than to A^T, on a vector without zeros: b may be zero wherever A is complex."""
    A, k, xp = progress.A, progress.kernels, progress.xp
    u = xp.exp(1j * xp.arange(progress.x.size)).astype(progress.dtype)
    y = A @ u
    return progress.asymmetry(A, u, y, k.vectors.dot) <= progress.asymmetry(A, u, y, k.vectors.dotu)
