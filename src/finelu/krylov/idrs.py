"""IDR(s): induced dimension reduction, with biorthogonal residuals."""

from __future__ import annotations

from typing import Any

from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.krylov.scaled import evened
from finelu.result import Solution
from finelu.validation import count

MOST = 32  # dimension of the shadow space


class IDRs(Method):
    """Solve A x = b for any nonsingular A by right-preconditioned IDR(s).

    Arguments as in `finelu.krylov`, and
    s : the dimension of the shadow space, 1 to 32; min(4, n) by default. A larger one takes fewer iterations, and more
        work and memory for each.
    An iteration is one product with A and one with M, on average about 1.5 s + 4 dot products and 2 s + 6 passes over
    vectors; memory 3 s + 10 vectors. callback(x) is called after each iteration. If the iteration is recorded (on a
    GPU), the vectors that its products make are also kept until the solve ends.
    Residuals lie in spaces whose dimension falls by s with every s + 1 iterations, so that n + n / s suffice in exact
    arithmetic. With s = 1 it is as good as `bicgstab`, and with s = 4 it is often near the full `gmres`, with a fixed
    amount of memory. The shadow space is the same in every run: orthonormal vectors from random numbers with a fixed
    seed, real for a real system.
    If the recurrence breaks down, it is started again from the true residual with another shadow space. The solve ends
    with Status.BREAKDOWN only if the residual was not halved in between. The residual norms may jump; x is the best
    iterate.
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
        if not loop.cycle(r):
            return loop.end()
        M = evened(loop, r)
        P, G, U = (xp.zeros((x.size, s), loop.dtype, order="F") for _ in range(3))
        Q = xp.zeros((s, s), loop.dtype, order="F")
        f, c = (xp.zeros(s, loop.dtype) for _ in range(2))
        (omega,) = loop.scalars(1)

        @loop.repeated
        def iteration() -> None:
            k.begin(state, P, r, Q, f, c)
            k.residual_part(state, G, c, r, v)
            k.direction(state, omega, U, c, M @ v, u)
            w = A @ u
            k.orthogonality(state, P, w, r, Q, f, c, omega)
            k.step(state, norms, loop.history, Q, f, c, omega, u, w, G, U, x, best, r)

        while True:
            shadow_space(loop, P)
            for zero in (G, U, Q):
                zero.fill(0)
            xp.fill_diagonal(Q, 1)
            omega.fill(1)
            while loop.goes_on():
                iteration()
                loop.tell()
            if not loop.cycle(r):
                return loop.end()


idrs = IDRs.solve


def shadow_space(loop: Loop, P: Any) -> None:
    """P (n, s), orthonormal by modified Gram-Schmidt; another one in each cycle."""
    loop.kernels.idrs.draw(loop.cycles, 0, P)
    for j in range(P.shape[1]):
        p = P[:, j]
        for i in range(j):
            p -= loop.dot(P[:, i], p) * P[:, i]
        p /= loop.length(p)
