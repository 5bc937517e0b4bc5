"""The generalized minimal residual method, restarted."""

from __future__ import annotations

from typing import Any

from finelu.errors import ParameterError, meant
from finelu.kernels.monitor import CLAIM, CLAIMED, CODE, NORM, RUNNING
from finelu.krylov.block import Block
from finelu.krylov.block_gmres import block_gmres
from finelu.krylov.gcrodr import gcrodr
from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.krylov.recycle import RecycledSpace, space_asked
from finelu.krylov.system import System
from finelu.result import Solution
from finelu.validation import choice, count

ORTHOGONALIZATIONS = ("mgs", "cgs2")
SIDES = ("right", "left")
LEAST_GAIN = 0.25  # of its first norm that a cycle on the left reaches before it ends, so that the true one is halved
RESTART = 30  # iterations of a cycle where `restart` is not given


class GMRES(Method):
    """Solve A x = b for any nonsingular A by restarted GMRES, preconditioned on the right or on the left.

    Arguments as in `finelu.krylov`, and
    restart : iterations per cycle, that is the size of the basis; min(30, n) by default.
    orthogonalization : "mgs", modified Gram-Schmidt with selective reorthogonalization, or "cgs2", classical
        Gram-Schmidt twice: more work, in four matrix-vector products, and a basis that is orthogonal to rounding. With
        block=True it holds only for columns that go on alone.
    side : "right" minimizes b - A x itself, of which the recurrence then knows the norm; "left" minimizes
        M^-1 (b - A x). On the left the recurrence counts in a unit in which each cycle begins with ||b - A x||: a cycle
        ends where that is met, and the solve where the true b - A x meets rtol, too, as on the right. As long as a
        cycle lowers M^-1 (b - A x) as it claims, another follows, even if b - A x has not been halved.
    block : of several columns b (n, k): True searches for all of them in one space, `block_gmres`, restarted after
        `restart` iterations of the block. That takes fewer iterations, but an iteration j orthogonalizes against j
        blocks: 8 n j k operations for a column, by classical Gram-Schmidt twice. It pays where M or A is expensive, or
        cycles of single columns stagnate. It has no side="left", recycle, callback, watch or callback_type.
    recycle : a `RecycledSpace`: the vectors that a solve before has left in it are kept out of the iterations, and new
        ones are formed after each cycle, so that a restart forgets less (GCRO-DR, Parks, de Sturler, Mackey, Johnson &
        Maiti 2006). M may then change from step to step; several columns of b are solved in turn. Memory 2 restart +
        8 vectors and 3 of the space for each of its k.
    callback_type : what callback gets, and what maxiter and `info` count:
        None: x after each cycle, since x does not exist in between; maxiter counts inner iterations over all cycles.
            As the default of SciPy's gmres is "legacy", a DeprecationWarning says so if there is a callback.
        "x": x after each cycle; maxiter counts cycles.
        "pr_norm": ||b - A x|| / ||b|| after each iteration; maxiter counts cycles. SciPy's is of M (b - A x).
        "legacy": as "pr_norm", but maxiter counts inner iterations.
        On a GPU the norms are those of every few iterations, as for `watch`.
    Cost of an iteration k: one product with A, one with M, 4 n k operations (up to twice as many); memory restart + 7
    vectors. If the iteration is recorded (on a GPU), the intermediate vectors of a product with M are also kept until
    the solve ends.
    A lucky breakdown ends with the exact solution. If the basis ends without the exact solution (A or M singular) and
    starting again does not help, the solve ends with Status.BREAKDOWN. With side="right" a cycle that claims less than
    half of the true residual, which it has not made smaller, ends the solve with Status.STAGNATED; so it may if M
    differs from product to product, for which there is `fgmres`.
    Source: Saad & Schultz 1986; Saad 2003, Alg. 9.5; Aliaga, Dufrechou, Ezzatti & Quintana-Orti 2019, Figures 1 and 2.
    """

    restarts = True
    recycles = True

    @classmethod
    def together(cls, options: dict[str, Any]) -> bool:
        return bool(options.get("side", "right") == "right") and options.get("recycle") is None

    @staticmethod
    def in_block(
        systems: list[System],
        starts: list[Any],
        targets: Any,
        maxiter: int,
        *,
        restart: int | None = None,
        orthogonalization: str = "mgs",
        side: str = "right",
        recycle: None = None,
    ) -> Block:
        _require_orthogonalization(orthogonalization)
        _require_side(side, block=True)
        return block_gmres(systems, starts, targets, maxiter, _length(restart, systems[0].b.size, maxiter))

    @staticmethod
    def iterate(
        loop: Loop,
        *,
        restart: int | None = None,
        orthogonalization: str = "mgs",
        side: str = "right",
        block: bool = False,
        recycle: RecycledSpace | None = None,
    ) -> Solution:
        """Saad 2003, Alg. 9.5, or Alg. 9.4 on the left."""
        _require_side(side, block)
        space = space_asked(recycle)
        if space is not None:
            if side == "left":
                raise ParameterError("side='left' has no recycle; leave out one of them.")
            m, orthogonalize = _checked(loop, restart, orthogonalization)
            return gcrodr(loop, space, m, orthogonalize)
        return arnoldi(loop, restart, orthogonalization, side)


gmres = GMRES.solve


def arnoldi(loop: Loop, restart: int | None, orthogonalization: str, side: str) -> Solution:
    """Saad 2003, Alg. 9.5, line by line. The columns q_j of Q are his v_j.

    side : "right"; "left", Alg. 9.4, whose basis is that of M^-1 A; or "flexible", Alg. 9.6, which keeps
        z_j = M^-1 q_j in Z instead of applying M to the combination of the q_j.
    """
    left, flexible = side == "left", side == "flexible"
    m, orthogonalize = _checked(loop, restart, orthogonalization)
    A, M, x, k, xp = loop.A, loop.M, loop.x, loop.kernels, loop.xp
    state, norms = loop.state, loop.norms
    n = x.size
    r, u, v = loop.vectors(3)
    Q = xp.zeros((n, m + 1), loop.dtype, order="F")
    Z = xp.zeros((n, m), loop.dtype, order="F") if flexible else None
    H = xp.zeros((m + 1, m), loop.dtype, order="F")
    g = xp.zeros(m + 1, loop.dtype)
    s, y = (xp.zeros(m, loop.dtype) for _ in range(2))
    c = xp.zeros(m, loop.real)

    @loop.repeated
    def iteration() -> None:
        z = v if left else M @ v
        if Z is not None:
            k.arnoldi.keep_column(state, z, Z)
        w = A @ z  # line 3: w = A M^-1 q_j
        if left:
            w = M @ w
        orthogonalize(state, Q, w, H, v)  # lines 4 to 8: h_ij = (w, q_i), w -= h_ij q_i; v = q_(j+1) = w / ||w||
        # line 11, one column at a time: the rotation that makes H triangular, and min ||beta e_1 - H y||
        k.arnoldi.givens_step(state, norms, loop.history, H, c, s, g)

    if left:
        claim, code = norms[CLAIM : CLAIM + 1].copy(), state[CODE : CODE + 1]
        length = least = xp.full_like(claim, xp.inf)  # of M^-1 r as a cycle begins; of the last cycle that was spared
    else:
        loop.doubts_restarts()
    while loop.cycle(r):  # line 1: r = b - A x,
        if left:
            norm, z = norms[NORM : NORM + 1], M @ r
            norms[CLAIM : CLAIM + 1] = xp.minimum(claim, norm * LEAST_GAIN)
            length = loop.length(z)
            unit = length / norm  # of the recurrence, whose first norm is ||r||
            unit = xp.where(unit > 0, unit, 1)
            r[:] = z / unit
        k.arnoldi.arnoldi_begin(state, norms, r, Q, g, v)  # beta = ||r||, v = q_0 = r / beta
        j = 0
        while j < m and loop.goes_on():  # line 2
            iteration()
            j += 1
        loop.rejoin()
        if j == 0:
            continue  # the solve ended with the last column of the previous cycle; the host learns that only now
        k.arnoldi.hessenberg_solve(state, H, g, y)  # line 11: y
        if Z is None:
            k.arnoldi.combine(state, Q, y, u)
            k.arnoldi.update_solution(state, u * unit if left else M @ u, x)  # line 11: x += M^-1 Q y
        else:
            k.arnoldi.combine(state, Z, y, u)
            k.arnoldi.update_solution(state, u, x)
        if left:  # the claim is of M^-1 r: as long as that falls from claim to claim, r need not be halved
            spared = (code == CLAIMED) & (length <= least / 2)
            least = xp.where(spared, length, least)
            code[:] = xp.where(spared, RUNNING, code)
        loop.tell()
    return loop.end()  # line 12 is the outer loop


def _checked(loop: Loop, restart: int | None, orthogonalization: str) -> tuple[int, Any]:
    """The iterations of a cycle, and the step of Gram-Schmidt."""
    _require_orthogonalization(orthogonalization)
    steps = loop.kernels.arnoldi
    step = steps.mgs_step if orthogonalization == "mgs" else steps.cgs2_step
    return _length(restart, loop.x.size, loop.maxiter), step


def _length(restart: int | None, n: int, maxiter: int) -> int:
    """The iterations of a cycle."""
    return max(min(count("restart", RESTART if restart is None else restart, 1), n, maxiter), 1)


def _require_side(side: str, block: bool) -> None:
    choice("side", side, SIDES)
    if block and side == "left":
        raise ParameterError("block=True has M on the right, and no side='left'; leave out one of them.")


def _require_orthogonalization(orthogonalization: str) -> None:
    if orthogonalization not in ORTHOGONALIZATIONS:
        raise ParameterError(
            f"orthogonalization={orthogonalization!r}; one of {', '.join(ORTHOGONALIZATIONS)} is needed."
            + meant(orthogonalization, ORTHOGONALIZATIONS)
        )
