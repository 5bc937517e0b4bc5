"""The minimal residual method."""

from __future__ import annotations

from finelu.arithmetic import judged
from finelu.krylov.progress import Progress
from finelu.result import Solution, Status


@judged
def minres(A, b, x0=None, *, rtol=1e-5, atol=0.0, maxiter=None, M=None, callback=None, watch=None) -> Solution:
    """Solve A x = b for a Hermitian, possibly indefinite A by preconditioned MINRES.

    Arguments as in `finelu.krylov`; M must be Hermitian positive definite. It minimizes the residual in the norm of M;
    the 2-norm that is tested is that of the residual itself, which is carried along. callback(x) is called after each
    iteration. Cost of an iteration: one product with A, one with M, two dot products, a norm and two passes over
    vectors; memory 11 vectors. Before the first, A and M are each tried once more for symmetry: Status.NOT_SYMMETRIC.
    Where A is singular and b outside its range it ends near the smallest residual there is, with Status.STAGNATED: x
    would grow without end, and a cycle is over once the rounding of x reaches a tenth of the residual.
    Source: Paige & Saunders 1975.
    """
    progress = Progress("minres", A, b, x0, rtol=rtol, atol=atol, maxiter=maxiter, M=M, callback=callback, watch=watch)
    A, M, x, best, k = progress.A, progress.M, progress.x, progress.keeps_best(), progress.kernels
    state, norms = progress.state, progress.norms
    r, v, v_old, z, w, w_old = progress.vectors(6)
    alpha, square = progress.scalars(2)
    lanczos = progress.xp.zeros(22, progress.real)
    scale = 1.0
    while progress.cycle(r):
        y = M @ r
        if progress.cycles == 1:
            p = A @ y
            if not (progress.symmetric(M, r, y, k.vectors.dot) and progress.symmetric(A, y, p, k.vectors.dot)):
                progress.fail(Status.NOT_SYMMETRIC)
                break
            scale = progress.power(progress.size(p) / progress.size(r))  # of A M: its square is to be in range
        k.vectors.dot(r, y, square)
        k.recurrences.minres_begin(state, lanczos, square, scale)
        k.recurrences.minres_start(state, lanczos, y, r, v, z)  # v = r / beta, z = M v
        for vector in (v_old, w, w_old):
            vector.fill(0)
        while progress.goes_on():
            p = A @ z if scale == 1 else (A @ z) / scale
            k.vectors.dot(z, p, alpha)
            k.recurrences.minres_lanczos(state, lanczos, alpha, p, v, v_old)
            v, v_old = v_old, v
            y = M @ v
            k.vectors.dot(v, y, square)
            k.recurrences.minres_rotation(state, lanczos, alpha, square)
            k.recurrences.minres_step(state, lanczos, y, v, z, w, w_old, x, best, r)
            w, w_old = w_old, w
            k.vectors.norm(r, progress.norm)
            k.recurrences.minres_record(state, norms, progress.history, lanczos)
            progress.tell()
    return progress.end()
