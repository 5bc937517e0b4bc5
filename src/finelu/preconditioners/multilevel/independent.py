"""A level of MultilevelILU by independent sets: many pivots at a time, none of which is coupled to another.

Y. Saad: ILUM, a multi-elimination ILU preconditioner for general sparse matrices, 1996. A step chooses an independent
set of good pivots; D of its rows and columns is diagonal, so that S - L D U, and with it the next step, is one sparse
product. Rows are deferred and entries dropped as in Crout's form: M. Bollhöfer, Y. Saad 2006.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu import deadline
from finelu.device import namespace, sparse_module, to_host
from finelu.errors import TooManyEntries, ZeroPivot
from finelu.factors import Arrangement
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, require_indices
from finelu.matrix import as_csr
from finelu.preconditioners.multilevel.dense import NOISE, is_last
from finelu.preconditioners.multilevel.level import PIVOT_TOL, SCHUR_TOL, Level, Limits, require_few
from finelu.preconditioners.multilevel.order import Order, advice, permuted
from finelu.preconditioners.multilevel.settings import Settings

ESTIMATE, PIVOT = 1, 2  # reasons of `choose` why a row is no pivot
LEAST_STEP = 1e-3  # part of the rows that a step must eliminate: a level ends with a smaller step


@dataclass(frozen=True, eq=False)
class Eliminated:
    """P A P^T ~ (L D U, and the rest), P by `order`: the pivots of each step, then the rows that are left.

    order (n,) : rows of A.
    d (p,) : the pivots.
    U : the rows of U, (p, n) in the new order, without the unit diagonal.
    LT : the rows of L^T likewise; None if L^T is U, or its conjugate.
    left : the rest, a CSR.  bad : its first row that is not finite, or -1.
    steps : their number.  estimate : the largest estimate of a pivot.
    deferred : rows by estimate, by pivot.  dropped : entries by tolerance, by the limit.
    """

    order: Any
    d: Any
    U: Any
    LT: Any
    left: CSR
    bad: int
    steps: int
    estimate: float
    deferred: tuple[int, int]
    dropped: tuple[int, int]


class _Rows:
    """Rows of U, or of L^T, of one step after the other."""

    def __init__(self) -> None:
        self.lengths: list[Any] = []
        self.columns: list[Any] = []
        self.values: list[Any] = []
        self.dropped: Any = 0

    def take(self, U: CSR, pivots: Any, ids: Any, dropped: Any, gather: Any) -> None:
        self.lengths.append(gather(U.indptr[1:], pivots) - gather(U.indptr[:-1], pivots))
        self.columns.append(gather(ids, U.indices))
        self.values.append(U.data)
        self.dropped = dropped + self.dropped

    def joined(self, place: Any, p: int) -> Any:
        """(p, n) by rows, sorted, column j at place[j]."""
        xp, sparse = namespace(place), sparse_module(place)
        require_indices("the factors", sum(part.size for part in self.values), place.dtype)
        indptr = xp.zeros(p + 1, place.dtype)
        xp.cumsum(xp.concatenate(self.lengths), out=indptr[1:])
        columns = place[xp.concatenate(self.columns)]
        U = sparse.csr_matrix((xp.concatenate(self.values), columns, indptr), shape=(p, place.size))
        U.sort_indices()
        return U


def eliminated(
    S: CSR,
    T: CSR,
    kind: str,
    drop_tol: float,
    schur_tol: float,
    condest: float,
    pivot_tol: float,
    most: int,
    last: Any,
    room: int | None = None,
) -> Eliminated | None:
    """Pivots of S until none is usable, or last(S); None if there is none at all.

    S : scaled, (n, n).  T : its transpose.  kind : "general", "symmetric" or "hermitian".
    drop_tol, condest, pivot_tol : as in `crout`.  schur_tol : the drop tolerance of the rest, after each step.
    most : the most entries of a row of U, and of a column of L.  room : the most of all, and of the rest; None: no
        limit.
    """
    kernels, xp = kernels_for(S.data).independent, namespace(S.data)
    gather = kernels_for(S.data).vectors.gather
    index, general = S.indices.dtype, kind == "general"
    ids = xp.arange(S.n, dtype=index)
    u_nu = xp.zeros(S.n, S.dtype)
    l_nu = xp.zeros(S.n, S.dtype) if general else u_nu
    order: list[Any] = []
    pivots_of: list[Any] = []
    upper, lower, bad, largest = _Rows(), _Rows(), -1, 0.0
    deferred = 0, 0
    gain = 1.0  # part of the rows that the last step eliminated
    while S.n > 0 and bad < 0 and gain >= LEAST_STEP and not (order and last(S)):
        deadline.check()
        if room is not None and S.nnz + sum(part.size for part in (*upper.values, *lower.values)) > room:
            raise TooManyEntries(room)
        state, d = kernels.choose(S, T, l_nu, u_nu, condest, pivot_tol, NOISE * np.finfo(S.dtype).eps)
        number, rest, pivots = kernels.split(state, index)
        if pivots.size == 0:
            deferred = int((state == ESTIMATE).sum()), int((state == PIVOT).sum())
            break
        gain = pivots.size / S.n
        U, dropped = kernels.pivot_rows(S, state, d, u_nu, drop_tol, most)
        upper.take(U, pivots, ids, dropped, gather)
        UT = kernels.transposed(U)
        if general:
            LT, dropped = kernels.pivot_rows(T, state, d, l_nu, drop_tol, most)
            lower.take(LT, pivots, ids, dropped, gather)
            L = kernels.transposed(LT)
        else:
            L = UT if kind == "symmetric" or S.dtype.kind != "c" else UT.with_values(UT.data.conj())
        for nu in (u_nu, l_nu) if general else (u_nu,):
            largest = max(largest, float(xp.maximum(abs(1 - nu[pivots]), abs(1 + nu[pivots])).max()))
        u_nu = gather(_after(UT, kernels.signs(U, state, u_nu), u_nu), rest)
        l_nu = gather(_after(L, kernels.signs(LT, state, l_nu), l_nu), rest) if general else u_nu
        S, bad = kernels.remainder(S, L, U, d, state, number, schur_tol, not general)
        T = kernels.transposed(S) if general else S.with_values(S.data.conj()) if S.dtype.kind == "c" else S
        order.append(gather(ids, pivots))
        pivots_of.append(gather(d, pivots))
        ids = gather(ids, rest)
    if not order:
        return None
    steps, p, dropped = len(order), sum(part.size for part in order), upper.dropped + lower.dropped
    whole = xp.concatenate([*order, ids])
    place = xp.empty_like(whole)
    place[whole] = xp.arange(whole.size, dtype=index)
    return Eliminated(
        whole,
        xp.concatenate(pivots_of),
        upper.joined(place, p),
        lower.joined(place, p) if general else None,
        S,
        bad,
        steps,
        largest,
        deferred,
        (int(dropped[0]), int(dropped[1])),
    )


def _after(UT: CSR, minus_xi: Any, nu: Any) -> Any:
    """nu plus the contributions of the pivots to the estimates of the other columns: U^T xi."""
    return kernels_for(nu).products.subtract_product(UT, minus_xi, nu)


def factored(
    recipe: Settings,
    S: CSR,
    kind: str,
    order: Order,
    powers: tuple[Any, Any],
    limits: Limits,
    condest: float,
    numbers: Any,
    low_memory: bool,
    most: int | None,
) -> tuple[Level | None, CSR, Any]:
    """As `level.factored`, for an S on a GPU, there."""
    xp, general = namespace(S.data), kind == "general"
    if general:
        A, T = (M.on(xp) for M in permuted(S.on(np), order, powers, kind))
    else:
        scale = xp.ldexp(xp.ones(S.n, S.data.real.dtype), xp.asarray(powers[0]))
        A = S.with_values(kernels_for(S.data).scaling.scale(S, xp.empty_like(S.data), (scale,) * 2, (scale,) * 2))
        T = A.with_values(A.data.conj()) if A.dtype.kind == "c" and kind == "hermitian" else A
    bounds = limits.drop_tol, SCHUR_TOL * limits.drop_tol, condest, PIVOT_TOL, limits.most(A)
    made = eliminated(A, T, kind, *bounds, lambda left: is_last(recipe, left, 0), most)
    if made is None:
        require_few(recipe, S)
        return None, S, np.arange(S.n)
    p, rest = made.d.size, made.order[made.d.size :]
    if made.bad >= 0:
        row = numbers[order.rows[int(rest[made.bad])]]
        raise ZeroPivot(recipe, row, np.inf, "remains of it", advice(recipe))
    at = (made.order, xp.asarray(order.columns.astype(made.order.dtype))[made.order]) if general else (made.order,) * 2
    scales = (xp.ldexp(xp.ones(S.n, S.data.real.dtype), xp.asarray(power)[q]) for power, q in zip(powers, at))
    facts: dict[str, Any] = {
        **{"n": A.n, "nnz_A": A.nnz, "interface": 0, "estimate": made.estimate, "pairs": 0, "steps": made.steps},
        **{"dropped": made.dropped, "put_off": made.deferred, "pivots": p},
        "smallest_pivot": float(abs(made.d).min()),
    }
    B, F, G, D, magnitude = _matrices(A, made, kind, low_memory, recipe.definite)
    level = Level(kind, Arrangement(*at, *scales), B, F, G, D, magnitude, facts)
    left = made.left
    if rest.size:
        left = as_csr(left.tosparse(), diagonal=False)
    return level, left, to_host(rest)


def _matrices(A: CSR, made: Eliminated, kind: str, low_memory: bool, definite: bool) -> tuple[Any, ...]:
    """B, F, G, D^-1 and |D|^-1 of a `Level`."""
    sparse, xp, p, d = sparse_module(A.data), namespace(A.data), made.d.size, made.d
    whole = p == A.n  # then F and G have no entries, and are not used
    nothing = sp.csr_matrix((p, 0), dtype=A.dtype)
    inside, across = (made.U, nothing) if whole else (made.U[:, :p].tocsr(), made.U[:, p:].tocsr())
    if kind == "general":
        below, left = (made.LT, nothing) if whole else (made.LT[:, :p].tocsr(), made.LT[:, p:].tocsr())
        require_indices("the factors", below.nnz + inside.nnz + p, A.indices.dtype)
        B = (below.T.tocsr() + _scaled(d, inside) + sparse.diags(d)).tocsr()
        D = magnitude = None
    else:
        B, left = (inside + sparse.identity(p, A.dtype, format="csr")).tocsr(), across
        D, magnitude = (
            sparse.diags(1 / v).tocsr() if v is not None else None for v in (d, abs(d) if definite else None)
        )
        if kind == "hermitian" and A.dtype.kind == "c":
            left = left.conj()
    if whole:
        F, G = nothing, nothing.T.tocsr()
    elif low_memory:
        arranged = A.tosparse()[made.order]
        place = xp.empty_like(made.order)
        place[made.order] = xp.arange(A.n, dtype=place.dtype)
        arranged = sparse.csr_matrix((arranged.data, place[arranged.indices], arranged.indptr), shape=A.shape)
        arranged.sort_indices()
        F, G = arranged[:p, p:].tocsr(), arranged[p:, :p].tocsr()
    else:
        F, G = _scaled(d, across), left.T.tocsr()
    for matrix in (B, F, G):
        matrix.sort_indices()
    return B, F, G, D, magnitude.astype(A.dtype) if magnitude is not None else None


def _scaled(d: Any, M: Any) -> Any:
    """diag(d) M."""
    rows = kernels_for(M.data).indices.rows_of_entries(M.indptr, M.nnz)
    return sparse_module(M.data).csr_matrix((M.data * d[rows], M.indices, M.indptr), shape=M.shape)
