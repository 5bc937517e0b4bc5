"""IDR(s): induced dimension reduction, with biorthogonal residuals."""

from __future__ import annotations

from typing import Any

from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.krylov.scaled import evened
from finelu.krylov.shadow import Shadows
from finelu.result import Solution
from finelu.validation import count

MOST = 32  # dimension of the shadow space


class IDRs(Method):
    """Solve A x = b for any nonsingular A by right-preconditioned IDR(s).

    Arguments as in `finelu.krylov`, and
    s : the dimension of the shadow space, 1 to 32; min(4, n) by default. A larger one takes fewer iterations, and more
        work and memory for each.
    An iteration is one product with A and one with M, and about (6 s + 10) n operations on vectors; memory 3 s + 10
    vectors. callback(x) is called after each iteration. If the iteration is recorded (on a GPU), the vectors that its
    products make are also kept until the solve ends.
    Residuals lie in spaces whose dimension falls by s with every s + 1 iterations, so that n + n / s suffice in exact
    arithmetic. With s = 1 it is as good as `bicgstab`, and with s = 4 it is often near the full `gmres`, with a fixed
    amount of memory. The shadow space is the same in every run: orthonormal vectors from random numbers with a fixed
    seed, real for a real system.
    A real omega, the factor of each step into a smaller space, cannot stand for a pair of imaginary eigenvalues: for a
    real A that is nearly skew, A = -A^H, take `bicgstabl`, or give b as complex numbers, so that the shadow space is
    complex, too.
    If the recurrence breaks down, it is started again from the true residual with another shadow space; `breakdowns` of
    the Solution counts that. The solve ends with Status.BREAKDOWN after four such cycles in a row that have not halved
    the residual. The residual norms may jump; x is the best iterate.
    Source: van Gijzen & Sonneveld 2011, Alg. 2; Sleijpen & van der Vorst 1995 for omega.
    """

    name = "idrs"

    @staticmethod
    def iterate(loop: Loop, *, s: int = 4) -> Solution:
        """van Gijzen & Sonneveld 2011, Alg. 2, a step for each product: state[COLUMNS] is their k, s where omega is
        chosen; Q is their M."""
        s = min(count("s", s, 1, MOST), loop.x.size)
        A, x, best, k, xp = loop.A, loop.x, loop.keeps_best(), loop.kernels.idrs, loop.xp
        state, norms = loop.state, loop.norms
        r, v, u = loop.vectors(3)
        shadows = Shadows(loop)
        if not shadows.cycle(r):
            return shadows.end()
        M, first = evened(loop, r)
        P, G, U = (xp.zeros((x.size, s), loop.dtype, order="F") for _ in range(3))
        Q = xp.zeros((s, s), loop.dtype, order="F")
        f, c = (xp.zeros(s, loop.dtype) for _ in range(2))
        (omega,), size = loop.scalars(1), loop.real_scalar()

        def step(first: Any = None) -> None:  # first: M^-1 r and A M^-1 r
            k.begin(state, P, r, Q, f, c)
            k.residual_part(state, G, c, r, v)
            k.direction(state, omega, U, c, M @ v if first is None else first[0], u)
            w = A @ u if first is None else first[1]
            k.orthogonality(state, P, w, r, Q, f, c, omega)
            k.step(state, norms, loop.history, Q, f, c, omega, u, w, G, U, x, best, r, size)

        def begin() -> None:
            shadows.draw(P)
            for zero in (G, U):
                zero.fill(0)
            xp.copyto(Q, xp.eye(s, dtype=loop.dtype))
            omega.fill(1)
            size.fill(0)

        return shadows.run(r, begin, step, first)


idrs = IDRs.solve
