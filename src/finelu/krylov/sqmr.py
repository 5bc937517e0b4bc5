"""The simplified quasi-minimal residual method for symmetric systems."""

from __future__ import annotations

from typing import Any

from finelu.errors import ParameterError
from finelu.kernels.monitor import TAU
from finelu.krylov.bicg import FirstCorrection
from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.krylov.symmetry import asymmetric, asymmetry
from finelu.result import Solution, Status


class SQMR(Method):
    """Solve A x = b for a symmetric A and a symmetric M, both possibly indefinite, by simplified QMR.

    Arguments as in `finelu.krylov`, and
    hermitian : which symmetry a complex A and M have; it makes no difference if A, b and M are real.
        True: A = A^H, and the recurrence forms x^H y.
        False: A = A^T (Helmholtz and Maxwell equations with absorption), and the recurrence forms x^T y.
        None: the symmetry that two products with A show; A = A^H if they show both.
    callback(x) is called after each iteration. Cost of an iteration: one product with A, one with M, two dot products,
    three norms and three passes over vectors; memory 9 vectors. Before the first iteration A and M are each applied
    once more to test the symmetry; the solve ends with Status.NOT_SYMMETRIC if one does not have it.
    Unlike `minres` it accepts an indefinite preconditioner, such as an L D L^T of an indefinite A.
    The residual of x is updated along with x, so that the convergence test uses its 2-norm, whatever M is. If the
    recurrence breaks down, or the residual of the conjugate gradients inside it has grown so much that no digit is
    left, it is started again from the true residual. The solve ends with Status.BREAKDOWN only if the residual was not
    halved in between. It breaks down at once if b^T A b = 0, as for a saddle point with a right-hand side in its zero
    block only and no M: use `minres`, or an x0. If r^T M r is 0 at the start, one step x += M r comes first.
    Source: Freund & Nachtigal 1994, with M on the right; Zhou & Walker 1994 for the residual of x.
    """

    needs = "symmetric"
    by_rows = True

    @classmethod
    def together(cls, options: dict[str, Any]) -> bool:
        return True

    @staticmethod
    def iterate(loop: Loop, *, hermitian: bool | None = None) -> Solution:
        """Conjugate gradients in the bilinear form, whose iterates are smoothed. Iteration k, rho = r^T z, z = M^-1 r:

        (1) alpha = rho / p^T A p,  r -= alpha A p
        (2) theta_k = ||r|| / tau,  c^2 = 1 / (1 + theta_k^2),  tau = tau theta_k c
        (3) d = c^2 theta_(k-1)^2 d + c^2 alpha p,  x += d
        (4) s = (1 - c^2) s + c^2 r: the residual of x
        (5) beta = rho / rho_old,  p = z + beta p
        """
        if hermitian not in (None, True, False):
            raise ParameterError(f"hermitian={hermitian!r}; True, False or None is needed.")
        A, M, x, best, k = loop.A, loop.M, loop.x, loop.keeps_best(), loop.kernels
        state, norms = loop.state, loop.norms
        r, p, d, s = loop.vectors(4)
        rho, rho_old, sigma, alpha = loop.scalars(4)
        r_norm, size = loop.real_scalar(), loop.real_scalar()
        smoothing = loop.xp.zeros(5, loop.real)
        dot, first = k.vectors.dot, True
        corrections = {one: FirstCorrection(one) for (one,) in loop.singly()}
        while loop.cycle(r):
            z, failed = M @ r, []
            if first:
                first = False
                if loop.dtype.kind == "c" and not (_hermitian(loop.singly()[0][0]) if hermitian is None else hermitian):
                    dot = k.vectors.dotu
                failed = asymmetric(loop, M, r, z, dot) + asymmetric(loop, A, z, A @ z, dot)
                for one in failed:
                    one.fail(Status.NOT_SYMMETRIC)
            dot(r, z, rho)
            corrected = [one for one, *own in loop.singly(rho, r, z) if one not in failed and corrections[one](*own)]
            loop.xp.copyto(s, r)
            loop.xp.copyto(p, z)
            k.vectors.size_of_dot(r, z, size)
            if not loop.without(failed + corrected):
                continue
            d.fill(0)
            k.vectors.norm(r, r_norm)
            for one, own, length in loop.singly(smoothing, r_norm):
                own.fill(0)
                one.xp.copyto(own[TAU : TAU + 1], length)  # tau = ||r||, theta = 0
            while loop.goes_on():
                q = A @ p
                dot(p, q, sigma)
                k.recurrences.ratio(state, rho, sigma, size, alpha)  # (1)
                k.recurrences.bicgstab_half(state, rho, sigma, q, r)  # r -= rho / sigma q
                k.vectors.norm(r, r_norm)
                k.recurrences.sqmr_smooth(state, smoothing, r_norm)  # (2)
                k.recurrences.sqmr_step(state, smoothing, alpha, p, r, d, x, best, s)  # (3), (4)
                k.vectors.norm(s, loop.norm)
                k.recurrences.record(state, norms, loop.history, r_norm)
                loop.tell()
                z = M @ r
                rho, rho_old = rho_old, rho
                dot(r, z, rho)
                k.vectors.size_of_dot(r, z, size)
                k.recurrences.direction(state, rho, rho_old, z, p, None, None)  # (5)
        return loop.end()


sqmr = SQMR.solve


def _hermitian(loop: Loop) -> bool:
    """Whether A is nearer to A^H than to A^T, by a product with a vector without zeros: b may be zero wherever A is
    complex."""
    A, k, xp = loop.A, loop.kernels, loop.xp
    u = xp.exp(1j * xp.arange(loop.x.size)).astype(loop.dtype)
    y = A @ u
    ((_, of_dot),), ((_, of_dotu),) = (asymmetry(loop, A, u, y, dot) for dot in (k.vectors.dot, k.vectors.dotu))
    return of_dot <= of_dotu
