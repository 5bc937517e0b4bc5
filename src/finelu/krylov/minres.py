"""The minimal residual method."""

from __future__ import annotations

from finelu.krylov.progress import Progress
from finelu.result import Solution, Status


def minres(A, b, x0=None, *, rtol=1e-5, atol=0.0, maxiter=None, M=None, callback=None, watch=None) -> Solution:
    """Solve A x = b for a Hermitian, possibly indefinite A by preconditioned MINRES.

    Arguments as in `finelu.krylov`; M must be Hermitian positive definite. It minimizes the residual in the norm of M;
    the 2-norm that is tested is that of the residual itself, which is carried along. callback(x) is called after each
    iteration. Cost of an iteration: one product with A, one with M, two dot products, a norm and two passes over
    vectors; memory 8 vectors. Before the first, A and M are each tried once more for symmetry: Status.NOT_SYMMETRIC.
    Source: Paige & Saunders 1975.
    """
    progress = Progress("minres", A, b, x0, rtol=rtol, atol=atol, maxiter=maxiter, M=M, callback=callback, watch=watch)
    A, M, x, best, k = progress.A, progress.M, progress.x, progress.best, progress.kernels
    state, norms = progress.state, progress.norms
    r, v, v_old, z, w, w_old = progress.vectors(6)
    alpha, square = progress.scalars(2)
    lanczos = progress.xp.zeros(11, progress.real)
    while progress.cycle(r):
        if progress.cycles == 1 and not (_symmetric(progress, M, r) and _symmetric(progress, A, M @ r)):
            progress.fail(Status.NOT_SYMMETRIC)
            break
        y = M @ r
        k.dot(r, y, square)
        k.minres_begin(state, lanczos, square)
        k.minres_start(state, lanczos, y, r, v, z)  # v = r / beta, z = M v
        for vector in (v_old, w, w_old):
            vector.fill(0)
        while progress.goes_on():
            p = A @ z
            k.dot(z, p, alpha)
            k.minres_lanczos(state, lanczos, alpha, p, v, v_old)
            v, v_old = v_old, v
            y = M @ v
            k.dot(v, y, square)
            k.minres_rotation(state, lanczos, alpha, square)
            k.minres_step(state, lanczos, y, v, z, w, w_old, x, best, r)
            w, w_old = w_old, w
            k.norm(r, progress.norm)
            k.record(state, norms, progress.history)
            progress.tell()
    return progress.end()


def _symmetric(progress, op, u) -> bool:
    """Whether <op u, op u> = <u, op (op u)>, as it is for a Hermitian op, to a third of the digits."""
    (one, other) = progress.scalars(2)
    y = op @ u
    progress.kernels.dot(y, y, one)
    progress.kernels.dot(u, op @ y, other)
    a, b = complex(one[0]), complex(other[0])
    eps = float(progress.xp.finfo(progress.real).eps)
    return not abs(a - b) > abs(a) * eps ** (1 / 3)  # NaN is left to the iteration, which says so
