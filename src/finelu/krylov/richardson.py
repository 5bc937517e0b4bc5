"""Corrections x <- x + M^-1 (b - A x): the stationary iteration of Richardson, preconditioned."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from finelu.errors import MatrixError, ParameterError
from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.stencil import StencilMatrix
from finelu.result import Solution, Status
from finelu.validation import count


class Richardson(Method):
    """Solve A x = b by corrections x <- x + M^-1 (b - A x): equation (3) of Luo et al.

    Arguments as in `finelu.krylov`. It converges where the spectral radius of 1 - M^-1 A is below 1, as with block
    factors in the implicit time steps of flow solvers; elsewhere use `gmres` with the same M. callback(x) is called
    after each correction. rtol=0 makes all maxiter corrections that do not diverge.
    history holds the norms of b - A x, all computed anew; x is the iterate with the smallest of them, x0 among them.
    Status DIVERGED where the residual at the end is not below the first, or at once where it is 1e8 times the first;
    NOT_FINITE where it overflows.
    Cost of a correction: one product with M, one pass over A (one for b - A x where A is a StencilMatrix or
    BlockMatrix), a norm and one pass over vectors; memory 7 vectors. On a GPU the next correction is queued before the
    host looks at the norm of this one, so that one may be made in vain; with several processes a product with M may be.
    A MultiblockMatrix may be spread over processes: b, x0 and x are then the parts of this process, all call
    `richardson` with the same parameters, and norms are of the whole. A correction then sends the cells at interfaces
    and gathers the norm. A callback or watch may be that of some processes only; where it ends the solve it ends it on
    all. With several processes, any of them on a GPU, an update of M by a callback takes effect one correction later.
    Source: Luo, Edwards, Luo & Mueller, equation (3).
    """

    stationary = spread = True

    @staticmethod
    def iterate(loop: Loop) -> Solution:
        """x <- x + M^-1 r with r = b - A x; loop must be `stationary`."""
        A, M, x, best, k = loop.A, loop.M, loop.x, loop.keeps_best(), loop.kernels
        (r,) = loop.vectors(1)
        while loop.cycle(r):
            z: Any = None
            while loop.goes_on():
                k.recurrences.richardson_step(loop.state, M @ r if z is None else z, x, best)
                r = A.residual(loop.b, x)
                if loop.comm is None:
                    k.vectors.norm(r, loop.norm)
                    z = None
                else:  # done meanwhile: see `ahead` in krylov/spread.py
                    z = k.vectors.norm(r, loop.norm, lambda r=r: M @ r)
                k.recurrences.richardson_record(loop.state, loop.norms, loop.history)
                loop.tell()
        solution = loop.end()
        grown = solution.iterations and solution.recurrence[-1] >= solution.recurrence[0]
        if grown and solution.status is Status.MAX_ITERATIONS:
            return replace(solution, status=Status.DIVERGED)
        return solution


richardson = Richardson.solve


def correct(A: StencilMatrix | BlockMatrix, F: Any, b: Any, *, steps: int = 20, rtol: float = 1e-10) -> Solution:
    """`richardson(A, b, M=F, rtol=rtol, maxiter=steps)`, its name and arguments of before."""
    warnings.warn(
        "finelu.correct(A, F, b, steps=20, rtol=1e-10) is now finelu.richardson(A, b, M=F, maxiter=20, rtol=1e-10)",
        DeprecationWarning,
        stacklevel=2,
    )
    if not isinstance(A, StencilMatrix | BlockMatrix):
        raise MatrixError(
            f"correct: A is a {type(A).__name__}; a StencilMatrix is needed, or a BlockMatrix, as of "
            "BlockMatrix.from_bsr(A), or BlockMatrix.from_csr(A, n) with n rows a block."
        )
    if not hasattr(F, "solve"):
        raise ParameterError(f"correct: F is a {type(F).__name__} without `solve`; factors of A are needed.")
    M = F if hasattr(F, "matvec") else F.solve
    if hasattr(b, "dtype") and hasattr(F, "dtype"):
        b = b.astype(np.result_type(b.dtype, F.dtype), copy=False)
    solution = richardson(A, b, M=M, rtol=rtol, maxiter=count("steps", steps, 0))
    return replace(solution, method="correct", recipe=repr(getattr(F, "recipe", type(F).__name__)))
