"""The flexible generalized minimal residual method: GMRES with another preconditioner at each step."""

from __future__ import annotations

from finelu.arithmetic import judged
from finelu.krylov.gmres import arnoldi_solve
from finelu.result import Solution


@judged
def fgmres(
    A,
    b,
    x0=None,
    *,
    rtol=1e-5,
    atol=0.0,
    restart=None,
    maxiter=None,
    M=None,
    callback=None,
    watch=None,
    orthogonalization="mgs",
) -> Solution:
    """`gmres` for an M that may change from one application to the next, such as a solver or a function of a vector.

    Arguments as in `gmres`. The preconditioned vectors are kept: memory 2 restart + 6 vectors, and one application of
    M less in each cycle. Source: Saad 1993; Saad 2003, Alg. 9.6.
    """
    return arnoldi_solve("fgmres", A, b, x0, rtol, atol, restart, maxiter, M, callback, watch, orthogonalization)
