"""The flexible generalized minimal residual method: GMRES with another preconditioner at each step."""

from __future__ import annotations

from typing import Any

from finelu.arithmetic import ignore_fp_errors
from finelu.krylov.criterion import solved
from finelu.krylov.gmres import iterate as iterate_gmres
from finelu.krylov.progress import Callback, Progress, Watch
from finelu.krylov.system import System
from finelu.result import Solution


@ignore_fp_errors
def fgmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    criterion: str = "auto",
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callback = None,
    watch: Watch = None,
    orthogonalization: str = "mgs",
) -> Solution:
    """`gmres` for an M that may change from one application to the next, such as a solver or a function of a vector.

    Arguments as in `gmres`. The preconditioned vectors are kept: memory 2 restart + 7 vectors, with those of a recorded
    iteration as in `gmres`, and one application of M less in each cycle.
    Source: Saad 1993; Saad 2003, Alg. 9.6.
    """
    return solved(
        "fgmres",
        iterate,
        System.checked(A, b, x0, M),
        criterion=criterion,
        rtol=rtol,
        atol=atol,
        maxiter=maxiter,
        callback=callback,
        watch=watch,
        restart=restart,
        orthogonalization=orthogonalization,
    )


def iterate(progress: Progress, *, restart: int | None = None, orthogonalization: str = "mgs") -> Solution:
    """Saad 2003, Alg. 9.6."""
    return iterate_gmres(progress, restart=restart, orthogonalization=orthogonalization, flexible=True)
