"""Corrections x <- x + M^-1 (b - A x): the stationary iteration of Richardson, preconditioned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.result import Solution, Status


class Richardson(Method):
    """Solve A x = b by corrections x <- x + M^-1 (b - A x): equation (3) of Luo et al.

    Arguments as in `finelu.krylov`. It converges if the spectral radius of 1 - M^-1 A is below 1, as with block factors
    in the implicit time steps of flow solvers; otherwise use `gmres` with the same M. callback(x) is called after each
    correction. rtol=0 makes all maxiter corrections that do not diverge.
    history holds the norms of b - A x, all computed anew; x is the iterate with the smallest of them, x0 among them.
    The status is DIVERGED if the residual at the end is not below the first, or as soon as it is 1e8 times the first;
    it is NOT_FINITE if the residual overflows.
    Cost of a correction: one product with M, one pass over A (one for b - A x if A is a StencilMatrix or BlockMatrix),
    a norm and one pass over vectors; memory 7 vectors. On a GPU the next correction is queued before the host looks at
    the norm of this one, so that the last correction may be unneeded; with several processes the last product with M
    may be.
    A MultiblockMatrix may be spread over processes. b, x0 and x are then the parts of this process, all processes call
    `richardson` with the same parameters, and norms are those of the whole vectors. A correction then sends the cells
    at interfaces and gathers the norm. A callback or watch may be given on some processes only; if it ends the solve,
    it ends it on all. With several processes, if any of them has a GPU, an update of M by a callback takes effect one
    correction later.
    Source: Luo, Edwards, Luo & Mueller, equation (3).
    """

    stationary = spread = by_rows = True

    @classmethod
    def together(cls, options: dict[str, Any]) -> bool:
        return True

    @staticmethod
    def iterate(loop: Loop) -> Solution:
        """x <- x + M^-1 r with r = b - A x; loop must be `stationary`."""
        A, M, x, best, k = loop.A, loop.M, loop.x, loop.keeps_best(), loop.kernels
        (r,) = loop.vectors(1)
        while loop.cycle(r):
            z: Any = None
            while loop.goes_on():
                k.recurrences.advance(loop.state, M @ r if z is None else z, x, best)
                r = A.residual(loop.b, x)
                if loop.comm is None:
                    k.vectors.norm(r, loop.norm)
                    z = None
                else:  # M @ r is formed while the norm is gathered: see `ahead` in krylov/spread.py
                    z = k.vectors.norm(r, loop.norm, lambda r=r: M @ r)
                k.recurrences.record(loop.state, loop.norms, loop.history, None)
                loop.tell()
        found: Any = loop.end()
        return [_judged(one) for one in found] if isinstance(found, list) else _judged(found)  # type: ignore[return-value]


richardson = Richardson.solve


def _judged(solution: Solution) -> Solution:
    """The solution with DIVERGED instead of MAX_ITERATIONS if its residual is not below the first."""
    grown = solution.iterations and solution.recurrence[-1] >= solution.recurrence[0]
    return replace(solution, status=Status.DIVERGED) if grown and solution.status is Status.MAX_ITERATIONS else solution
