"""The stabilized bi-conjugate gradient method."""

from __future__ import annotations

from typing import Any

from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.result import Solution


class BiCGStab(Method):
    """Solve A x = b for any nonsingular A by right-preconditioned BiCGSTAB.

    Arguments as in `finelu.krylov`; callback(x) is called after each iteration. Cost of an iteration: two products with
    A, two with M, three dot products, two norms and three passes over vectors; memory 10 vectors. If the iteration is
    recorded (on a GPU), the intermediate vectors of both products with M are also kept until the solve ends.
    If the recurrence breaks down, it is started again from the true residual with a new shadow vector. The solve ends
    with Status.BREAKDOWN only if the residual was not halved in between. The residual norms may jump; x is the best
    iterate.
    Source: van der Vorst 1992; Saad 2003, Alg. 7.7.
    """

    products = 2
    by_rows = True

    @classmethod
    def together(cls, options: dict[str, Any]) -> bool:
        return True

    @staticmethod
    def iterate(loop: Loop) -> Solution:
        """Saad 2003, Alg. 7.7, for A M^-1 and x = M^-1 u: p_hat = M^-1 p and s_hat = M^-1 s; shadow is his r0*."""
        A, M, x, best, k = loop.A, loop.M, loop.x, loop.keeps_best(), loop.kernels
        state, norms = loop.state, loop.norms
        r, p, shadow = loop.vectors(3)
        rho, sigma, ts = loop.scalars(3)
        shadow_norm, t_norm = loop.real_scalar(), loop.real_scalar()

        @loop.repeated
        def iteration() -> None:
            p_hat = M @ p
            v = A.with_dot(p_hat, shadow, sigma)  # line 4: alpha = (r, r0*) / (A p_hat, r0*)
            k.recurrences.bicgstab_half(state, rho, sigma, v, r)  # line 5: s = r - alpha A p_hat, overwrites r
            s_hat = M @ r
            t = A @ s_hat
            k.vectors.dot_and_norm(t, r, ts, t_norm)  # line 6: omega = (A s_hat, s) / (A s_hat, A s_hat)
            # lines 7, 8: x += alpha p_hat + omega s_hat, r = s - omega A s_hat; part of line 9: rho = (r, r0*)
            scalars = rho, sigma, ts, t_norm, shadow, shadow_norm
            k.recurrences.bicgstab_step(state, norms, loop.history, *scalars, p_hat, s_hat, t, x, best, r)
            # lines 9, 10: beta = (r, r0*) / (r_old, r0*) alpha / omega, p = r + beta (p - omega A p_hat)
            k.recurrences.bicgstab_direction(state, rho, sigma, ts, t_norm, r, v, p)

        while loop.cycle(r):  # line 1: r = b - A x, r0* = r
            loop.copyto(shadow, r)
            loop.copyto(p, r)  # line 2
            k.vectors.norm(shadow, shadow_norm)
            k.vectors.dot(shadow, r, rho)
            while loop.goes_on():  # line 3
                iteration()
                loop.tell()
        return loop.end()


bicgstab = BiCGStab.solve
