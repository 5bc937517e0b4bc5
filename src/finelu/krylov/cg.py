"""The conjugate gradient method."""

from __future__ import annotations

from typing import Any

from finelu.krylov.block import Block, block_cg
from finelu.krylov.deflated_cg import deflated_cg
from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.krylov.recycle import RecycledSpace, space_asked
from finelu.krylov.system import System
from finelu.result import Solution


class CG(Method):
    """Solve A x = b for a Hermitian positive definite A by preconditioned conjugate gradients.

    Arguments as in `finelu.krylov`; M must be Hermitian positive definite too (IC0, Jacobi). callback(x) is called
    after each iteration. Cost of an iteration: one product with A, one with M, two dot products, a norm and two passes
    over vectors; memory 7 vectors. If the iteration is recorded (on a GPU), the intermediate vectors of a product with
    M are also kept until the solve ends.
    block : of several columns b (n, k): True searches for all of them in one space, `block_cg`. That takes fewer
        iterations where few eigenvalues are far from the others, and 12 n k operations more for a column in each.
    recycle : a `RecycledSpace`, which gives the vectors W that a solve before has left in it, and takes new ones: the
        search directions are kept conjugate to W (deflated cg, Saad, Yeung, Erhel & Guyomarc'h 2000). That pays where a
        few small eigenvalues of M A are far from the others, and systems follow each other. Several columns of b are
        then solved in turn. Its docstring has the cost.
    It ends with Status.INDEFINITE if a curvature p^H A p is not positive, and with INDEFINITE_PRECONDITIONER if r^H M r
    is not positive.
    Source: Hestenes & Stiefel 1952; Saad 2003, Alg. 9.1.
    """

    needs = "spd"
    by_rows = True
    recycles = True

    @classmethod
    def together(cls, options: dict[str, Any]) -> bool:
        return options.get("recycle") is None

    @staticmethod
    def in_block(
        systems: list[System], starts: list[Any], targets: Any, maxiter: int, *, recycle: None = None
    ) -> Block:
        return block_cg(systems, starts, targets, maxiter)

    @staticmethod
    def iterate(loop: Loop, *, block: bool = False, recycle: RecycledSpace | None = None) -> Solution:
        """Saad 2003, Alg. 9.1, line by line; alpha and beta are formed on the device, in the step that uses them."""
        space = space_asked(recycle)
        if space is not None:
            return deflated_cg(loop, space)
        A, M, x, best, k = loop.A, loop.M, loop.x, loop.keeps_best(), loop.kernels
        state, norms = loop.state, loop.norms
        r, p = loop.vectors(2)
        rho, rho_old, curvature = loop.scalars(3)
        real_parts = rho.real, rho_old.real
        deflated = M.deflated
        M = M if deflated is None else deflated
        moves = deflated is not None and deflated.moves
        alpha, kept = loop.real_scalar(), loop.real_scalar()  # of a step that x takes later

        @loop.repeated
        def iteration() -> None:
            q = A.with_dot(p, p, curvature)  # line 3: alpha = (r, z) / (A p, p)
            if moves and M is deflated:  # line 4 waits until p is read anyway
                k.recurrences.residual_step(state, norms, loop.history, rho, curvature, rho_old, q, r, alpha, kept)
                M.turn(state, r, rho, rho_old, p, (alpha, kept, x, best))
                return
            # lines 4, 5: x += alpha p, r -= alpha A p
            k.recurrences.cg_step(state, norms, loop.history, rho, curvature, rho_old, p, q, x, best, r)
            if M is deflated:  # lines 6 to 8 at once
                M.turn(state, r, rho, rho_old, p)
                return
            z = M @ r  # line 6
            k.vectors.dot(r, z, rho)  # line 7: beta = (r, z) / (r_old, z_old)
            k.recurrences.direction(state, *real_parts, z, p, None, None)  # line 8: p = z + beta p

        while loop.cycle(r):  # line 1: r = b - A x,
            if deflated is not None and not deflated.start(A, x, r):  # if it succeeds, r has no coarse component
                M, deflated = loop.M, None
                loop.forget()
            z = M @ r  # z = M^-1 r,
            loop.copyto(p, z)  # p = z
            k.vectors.dot(r, z, rho)
            while loop.goes_on():  # line 2
                iteration()
                loop.tell()
        return loop.end()


cg = CG.solve
