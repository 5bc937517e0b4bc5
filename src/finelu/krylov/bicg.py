"""The biconjugate gradient method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.result import Solution


class BiCG(Method):
    """Solve A x = b for any nonsingular A by preconditioned biconjugate gradients.

    Arguments as in `finelu.krylov`, but A^H and M^H are needed, too. Matrices are transposed once, a LinearOperator or
    Factors apply them by rmatvec, and a function of a vector raises MatrixError. callback(x) is called after each
    iteration. Cost of an iteration: one product each with A, A^H, M and M^H, two dot products, three norms and two
    passes over vectors; memory 11 vectors, and A^H if A is a sparse matrix.
    For a Hermitian A and M it takes the steps of `cg` at twice the cost. If the recurrence breaks down, or its residual
    has grown so much that no digit is left, the recurrence is started again from the true residual, which is then also
    the shadow residual. The solve ends with Status.BREAKDOWN only if the residual was not halved in between. If
    r^H M r, a divisor of the recurrence, is 0 at the start, one step x += M r comes first. The residual norms may jump;
    x is the best iterate.
    Source: Fletcher 1976; Barrett et al. 1994, section 2.3.5; Saad 2003, Alg. 7.3.
    """

    products = 2

    @staticmethod
    def iterate(loop: Loop) -> Solution:
        """Saad 2003, Alg. 7.3, preconditioned as in Barrett et al. 1994, Figure 2.7; r_shadow, p_shadow: his r*, p*."""
        A, M, x, best, k = loop.A, loop.M, loop.x, loop.keeps_best(), loop.kernels
        AH, MH = A.H, M.H
        state, norms = loop.state, loop.norms
        r, p, r_shadow, p_shadow = loop.vectors(4)
        rho, rho_old, sigma, alpha = loop.scalars(4)
        size, correction = loop.real_scalar(), FirstCorrection(loop)
        while loop.cycle(r):  # line 1: r = b - A x; r* = r, so that (r, r*) is not 0 without M
            r_shadow[:] = r
            z, z_shadow = M @ r, MH @ r_shadow
            p[:] = z  # line 2
            p_shadow[:] = z_shadow
            k.vectors.dot(r_shadow, z, rho)
            if correction(rho, r, z):
                continue
            while loop.goes_on():  # line 3
                q, q_shadow = A @ p, AH @ p_shadow
                k.vectors.size_of_dot(r_shadow, z, size)
                k.vectors.dot(p_shadow, q, sigma)
                k.recurrences.ratio(state, rho, sigma, size, alpha)  # line 4: alpha = (z, r*) / (A p, p*)
                k.recurrences.bicg_step(state, alpha, p, q, q_shadow, x, best, r, r_shadow)  # lines 5, 6, 7
                k.vectors.norm(r, loop.norm)
                k.recurrences.record(state, norms, loop.history, loop.norm)
                loop.tell()
                z, z_shadow = M @ r, MH @ r_shadow
                rho, rho_old = rho_old, rho
                k.vectors.dot(r_shadow, z, rho)  # line 8: beta = (z, r*) / (z_old, r*_old)
                # lines 9, 10: p = z + beta p
                k.recurrences.direction(state, rho, rho_old, z, p, z_shadow, p_shadow)
        return loop.end()


bicg = BiCG.solve


class FirstCorrection:
    """One step x += z with z = M r, done if rho = r^H z is 0 to rounding, since the method would divide by it.

    The step counts as an iteration. It is not repeated unless the residual was halved in between.
    """

    def __init__(self, loop: Loop):
        self.loop, self.before = loop, math.inf  # the true residual norm before the last such step

    def __call__(self, rho: Any, r: Any, z: Any) -> bool:
        """Whether the step was done, so that another cycle is due."""
        loop, k, size = self.loop, self.loop.kernels, self.loop.real_scalar()
        k.vectors.size_of_dot(r, z, size)
        if not abs(complex(rho[0])) <= float(np.finfo(loop.real).eps) * float(size[0]) or loop.M.recipe == "":
            return False
        before = float(loop.norm[0])
        if not before <= self.before / 2 or not loop.goes_on():
            return False
        self.before = before
        one = loop.xp.ones(1, loop.dtype)
        scalars = one, one, one.copy()
        k.recurrences.cg_step(loop.state, loop.norms, loop.history, *scalars, z, loop.A @ z, loop.x, loop.best, r)
        loop.tell()
        return True
