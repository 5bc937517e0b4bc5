"""The generalized minimal residual method, restarted."""

from __future__ import annotations

from finelu.arithmetic import judged
from finelu.errors import ParameterError, meant
from finelu.krylov.progress import Progress
from finelu.matrix import count
from finelu.result import Solution

ORTHOGONALIZATIONS = ("mgs", "cgs2")
RESTART = 30  # iterations of a cycle where `restart` is not given


@judged
def gmres(
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
    """Solve A x = b for any nonsingular A by right-preconditioned, restarted GMRES.

    Arguments as in `finelu.krylov`, and
    restart : iterations of a cycle, that is the size of the basis; min(30, n) by default.
    orthogonalization : "mgs", modified Gram-Schmidt with selective reorthogonalization, or "cgs2", classical
        Gram-Schmidt twice: more work, in four matrix-vector products, and a basis that is orthogonal to rounding.
    M stands on the right, so that the residual of the recurrence is b - A x itself and rtol means what it says.
    maxiter counts inner iterations, over all cycles (SciPy's counts cycles); callback(x) is called after each cycle,
    since x does not exist in between.
    Cost of an iteration k: one product with A, one with M, 4 n k operations (up to twice as many); memory restart + 6
    vectors. A lucky breakdown ends in the exact solution; a basis that ends without one (A or M singular) in
    Status.BREAKDOWN, if starting again does not help.
    Source: Saad & Schultz 1986; Aliaga, Dufrechou, Ezzatti & Quintana-Orti 2019, Figures 1 and 2.
    """
    return arnoldi_solve("gmres", A, b, x0, rtol, atol, restart, maxiter, M, callback, watch, orthogonalization)


def arnoldi_solve(method, A, b, x0, rtol, atol, restart, maxiter, M, callback, watch, orthogonalization) -> Solution:
    """The loop of gmres and fgmres; fgmres keeps the preconditioned basis in Z instead of applying M to u."""
    if orthogonalization not in ORTHOGONALIZATIONS:
        raise ParameterError(
            f"orthogonalization={orthogonalization!r}; one of {', '.join(ORTHOGONALIZATIONS)} is needed."
            + meant(orthogonalization, ORTHOGONALIZATIONS)
        )
    m = count("restart", RESTART if restart is None else restart, 1)
    progress = Progress(method, A, b, x0, rtol=rtol, atol=atol, maxiter=maxiter, M=M, callback=callback, watch=watch)
    A, M, x, k, xp = progress.A, progress.M, progress.x, progress.kernels, progress.xp
    state, norms = progress.state, progress.norms
    n = x.size
    m = max(min(m, n, progress.maxiter), 1)
    r, u = progress.vectors(2)
    Q = xp.zeros((n, m + 1), progress.dtype, order="F")
    Z = xp.zeros((n, m), progress.dtype, order="F") if method == "fgmres" else None
    H = xp.zeros((m + 1, m), progress.dtype, order="F")
    g = xp.zeros(m + 1, progress.dtype)
    s, y, work = (xp.zeros(m, progress.dtype) for _ in range(3))
    c = xp.zeros(m, progress.real)
    while progress.cycle(r):
        k.arnoldi.arnoldi_begin(state, norms, r, Q, g)
        j = 0
        while j < m and progress.goes_on():
            z = M @ Q[:, j]
            if Z is not None:
                Z[:, j] = z
            Q[:, j + 1] = A @ z
            if orthogonalization == "mgs":
                k.arnoldi.mgs_step(state, Q, j, H)
            else:
                k.arnoldi.cgs2_step(state, Q, j, H, work)
            k.arnoldi.givens_step(state, norms, progress.history, H, c, s, g, j)
            j += 1
        if j == 0:
            continue  # the solve ended with the last column of the cycle before; only now is it known here
        k.arnoldi.hessenberg_solve(state, H, g, y)
        if Z is None:
            k.arnoldi.combine(state, Q, y, u)
            k.arnoldi.update_solution(state, M @ u, x)
        else:
            k.arnoldi.combine(state, Z, y, u)
            k.arnoldi.update_solution(state, u, x)
        progress.tell()
    return progress.end()
