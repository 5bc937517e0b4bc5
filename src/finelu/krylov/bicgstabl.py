"""BiCGStab(l): biconjugate gradients, whose residual is minimized over l directions at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.krylov.operators import Identity
from finelu.krylov.scaled import evened
from finelu.krylov.shadow import Shadows
from finelu.result import Solution
from finelu.validation import count

MOST = 8  # steps of bicg before a minimization; beyond, the small least-squares problem loses its digits


class BiCGStabL(Method):
    """Solve A x = b for any nonsingular A by right-preconditioned BiCGStab(l).

    Arguments as in `finelu.krylov`, and
    l : steps of bicg before each minimization, 1 to 8; 2 by default, also where `solve` calls it.
    An iteration is l steps of bicg and a minimization: 2 l products with A, 2 l with M, and with l = 2 about 58 n
    operations on vectors; memory 4 l + 11 vectors, 2 l + 12 without M. callback(x) is called after each iteration. If
    the iteration is recorded (on a GPU), the vectors that its products make are also kept until the solve ends.
    With l = 1 it is `bicgstab`, except that the factor by which the residual is minimized is made larger where the
    residual and its product with A are nearly orthogonal. `bicgstab` breaks down where A is nearly skew, A = -A^H, as
    for convection without diffusion, since one factor cannot stand for a pair of imaginary eigenvalues; l = 2 can.
    The shadow residual is the first residual. If the recurrence breaks down, it is started again from the true residual
    with a vector of random numbers, the same in every run, for it; `breakdowns` of the Solution counts that. The solve
    ends with Status.BREAKDOWN after four such cycles in a row that have not halved the residual. The residual norms may
    jump; x is the best iterate.
    Source: Sleijpen & Fokkema 1993; Sleijpen & van der Vorst 1995 for the minimization.
    """

    products = 4

    @staticmethod
    def iterate(loop: Loop, *, l: int = 2) -> Solution:
        """Sleijpen & Fokkema 1993, Alg. 3.1, for A M^-1: R_j, U_j = (A M^-1)^j times the residual and the direction."""
        steps = count("l", l, 1, MOST)
        A, x, best, k, xp = loop.A, loop.x, loop.keeps_best(), loop.kernels.bicgstabl, loop.xp
        n, dtype = loop.x.size, loop.dtype
        state, norms = loop.state, loop.norms
        S, r = xp.zeros((n, 1), dtype, order="F"), loop.vectors(1)[0]
        shadow, shadows = S[:, 0], Shadows(loop)
        if not shadows.cycle(r):
            return shadows.end()
        M, first = evened(loop, r)
        R, U = (xp.zeros((n, columns), dtype, order="F") for columns in (steps, steps + 1))
        hats = not isinstance(M, Identity)
        V, W = (xp.zeros((n, c), dtype, order="F") if hats else None for c in (steps - 1, steps))
        wide = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
        G = xp.zeros((steps + 1, steps + 1), wide, order="F")
        rho, sigma, gamma = (xp.zeros(steps, dtype) for _ in range(3))
        (omega,), shadow_norm, size = loop.scalars(1), loop.real_scalar(), loop.real_scalar()

        def step(first: Any = None) -> None:  # first: M^-1 r and A M^-1 r
            w = z = R[:, 0]
            for j in range(steps):
                k.direction(state, rho, sigma, omega, w, z, R, U, V, W, j)
                if first is None or j > 0:
                    z = M @ U[:, j]
                    w = A.with_dot(z, shadow, sigma[j : j + 1])
                else:
                    z, w = first
                    loop.kernels.vectors.dot(shadow, w, sigma[:1])
                k.bicg_step(state, rho, sigma, w, z, x, best, R, U, V, W, size, j)
                z = M @ R[:, j]
                w = A.with_dot(z, shadow, rho[j + 1 : j + 2]) if j < steps - 1 else A @ z
            k.gram(state, sigma, w, R, G)
            k.polynomial(state, sigma, G, gamma, omega)
            scalars = rho, sigma, gamma, omega, shadow, shadow_norm
            k.minimize(state, norms, loop.history, *scalars, w, z, x, R, U, V, size)

        def begin() -> None:
            xp.copyto(R[:, 0], r)
            if shadows.breakdowns:
                shadows.draw(S)
            else:
                xp.copyto(shadow, r)
            U[:, 0].fill(0)  # so that the first direction is r_0, whatever beta is
            omega.fill(1)
            sigma.fill(1)
            size.fill(0)
            loop.kernels.vectors.norm(shadow, shadow_norm)
            loop.kernels.vectors.dot(shadow, r, rho[:1])

        return shadows.run(r, begin, step, first)


bicgstabl = BiCGStabL.solve
