"""A level: scaled and ordered, factored where pivots and inverses stay bounded, and applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from finelu.device import namespace, on_gpu, sparse_module, synchronize
from finelu.errors import FineluError, MatrixError, ZeroPivot
from finelu.factors import Arrangement, LUFactors
from finelu.factors.triangles import Solve
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import as_csr
from finelu.preconditioners.multilevel.dense import DENSE_MOST, NOISE
from finelu.preconditioners.multilevel.order import Order, advice, permuted, transposed
from finelu.preconditioners.multilevel.settings import Settings
from finelu.triangular import TriangularSolver

PIVOT_TOL = 0.01  # of the rest of its row and column that a pivot must exceed
SCHUR_TOL = 0.1  # times drop_tol: drop tolerance of S, relative to the largest entry of a row and of a column
LEAST_PRODUCTS = 100.0  # for S, for each entry of the level, from which on complete factors may take less
# A triangle on a GPU with more rows than the first, and fewer entries a row than the second, is solved in the rows' own
# order by "auto", and not in level order.
ORDERED_ROWS, LONG_ROWS = 28_000, 15


class Limits(NamedTuple):
    """The limits for the entries of a row or column: see `MultilevelILU`."""

    drop_tol: float
    fill: float

    def most(self, A: CSR) -> int:
        """The most entries of a row or column."""
        return A.n if np.isinf(self.fill) else int(min(np.ceil(self.fill * A.nnz / A.n), A.n))


class DenseRest(FineluError):
    """The rest is dense, and would take more work than complete factors of A."""

    def __init__(self, rows: int):
        super().__init__(f"the rest of {rows} rows is densely coupled, and complete factors of A take less work")


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
    work: Callable[[], float],
) -> tuple[Level | None, CSR, Any]:
    """(the level, the matrix of the next level, its rows in the order of this one); None and S itself without a pivot.

    most : the most entries of the factors, and of the next level's matrix; None: no limit.
    work : function that returns the flops of complete factors of A, inf if these are not wanted. It is called only if
        the matrix of the next level takes many flops.
    Raises DenseRest if it takes more than these.
    """
    A, T = permuted(S, order, powers, kind)
    room, bounds = np.full(A.n, limits.most(A)), (limits.drop_tol, condest, PIVOT_TOL)
    interface, tolerance = int(order.starts[-1]), SCHUR_TOL * limits.drop_tol
    least = NOISE * np.finfo(A.dtype).eps  # smaller pivots are rounding of entries of about 1
    kernels = kernels_for(A.data)
    facts: dict[str, Any] = {"n": A.n, "nnz_A": A.nnz, "interface": A.n - interface}
    parts, above = order.starts, order.above
    if order.partial and kernels.fill.first_coupling(parts, above, A.indptr, A.indices)[0] >= 0:
        parts, above = np.array([0, interface]), np.array([-1])
    if kind == "general":
        made = kernels.crout.crout(A, T, parts, *bounds, room, room, above, least, most)
        del T
        _require_fewer(recipe.dense_size, work, A, made, made.l_indptr, made.l_indices, made.u_indptr, made.u_indices)
        left = kernels.crout.schur_complement(A, made, tolerance, most)
        facts["estimate"] = max(made.l_estimate, made.u_estimate)
        facts["pairs"] = 0
    else:
        hermitian = kind == "hermitian" and A.dtype.kind == "c"
        made = kernels.crout_symmetric.crout_symmetric(
            A, order.pairs, parts, *bounds, room, hermitian, above, least, most
        )
        _require_fewer(recipe.dense_size, work, A, made, *(made.indptr, made.indices) * 2)
        left = kernels.crout_symmetric.schur_complement_symmetric(A, made, tolerance, hermitian, most)
        facts["estimate"] = made.largest_estimate
        facts["pairs"] = made.pairs_taken
    rows = left.rows
    facts["dropped"] = made.dropped_by_tolerance, made.dropped_by_fill_limit
    facts["put_off"] = made.deferred_by_estimate, made.deferred_by_pivot
    if left.first_bad >= 0:
        raise ZeroPivot(recipe, numbers[order.rows[rows[left.first_bad]]], np.inf, "remains of it", advice(recipe))
    pivots = np.setdiff1d(np.arange(A.n), rows, assume_unique=True)
    facts["pivots"] = int(pivots.size)
    if pivots.size == 0:  # another level would have none either
        require_few(recipe, S)
        return None, S, rows
    level = _of_crout(kind, A, made, pivots, rows, order, powers, facts, low_memory, recipe.definite)
    inverse = 1 / made.d[pivots] if level.D is None else level.D.data
    facts["smallest_pivot"] = float(1 / abs(inverse).max())
    rest = sp.csr_matrix((left.data, left.indices, left.indptr), shape=(rows.size, rows.size))
    return level, as_csr(rest, diagonal=False) if rows.size else _nothing(A), rows


def require_few(recipe: Settings, S: CSR) -> None:
    """A MatrixError if S, without a pivot in any row, is too large to be the last level."""
    if S.n > DENSE_MOST:
        raise MatrixError(
            f"{recipe!r}: none of the {S.n} rows that are left has a pivot, and they are more than are given to "
            f"LAPACK; use matching=True, or factor A anew after an update."
        )


def _require_fewer(
    few: int, work: Callable[[], float], A: CSR, made: Any, l_indptr: Any, l_indices: Any, u_indptr: Any, u_indices: Any
) -> None:
    """A DenseRest if S, with more than `few` rows, takes more flops than `work()`; L is by columns, and U by rows."""
    left = np.append(made.deferred[: made.interface] > 0, np.ones(A.n - made.interface, bool))
    rows = int(left.sum())
    if rows <= few:
        return
    starts, every, number = np.empty((2, A.n + 1), np.int64), np.arange(A.n), np.where(left, 0, -1)
    for indptr, indices, out in zip((l_indptr, u_indptr), (l_indices, u_indices), starts, strict=True):
        kernels_for(A.data).graph.block_starts(indptr, indices, every, number, out)
    products = float(np.diff(starts[0]) @ np.diff(starts[1]))
    if products > LEAST_PRODUCTS * A.nnz and 2 * products > work():
        raise DenseRest(rows)


def _nothing(A: CSR) -> CSR:
    none = np.zeros(0, A.indices.dtype)
    return CSR(np.zeros(1, A.indptr.dtype), none, np.zeros(0, A.dtype), none)


def _of_crout(
    kind: str,
    A: CSR,
    made: Any,
    pivots: Any,
    rest: Any,
    order: Order,
    powers: tuple[Any, Any],
    facts: dict[str, Any],
    low_memory: bool,
    definite: bool,
) -> Level:
    """The level made of the result of Crout's elimination of A."""
    hermitian = kind == "hermitian"
    r, c = powers
    numbers = np.concatenate([pivots, rest])
    real = A.data.real.dtype
    index = A.indices.dtype
    at = order.rows[numbers].astype(index), order.columns[numbers].astype(index)
    arranged = Arrangement(*at, *(np.ldexp(np.ones(A.n, real), part) for part in (r[at[0]], c[at[1]])))
    graph = kernels_for(A.data).graph
    inside, across = _places(A.n, pivots), _places(A.n, rest)  # of the columns of B, and of C
    d = made.d[pivots]
    inverse = magnitude = None
    if kind == "general":
        U = made.u_indptr, made.u_indices, made.u_data
        L = made.l_indptr, made.l_indices, made.l_data
        whole = graph.triangles(L, made.d, U, pivots, inside, True)
    else:
        U = made.indptr, made.indices, made.data
        e = made.e[pivots]
        inverse = inverse_of(d, e, hermitian)
        magnitude = magnitude_of(inverse, e) if definite else None
        nothing = np.zeros_like(made.indptr), made.indices[:0], made.data[:0]
        whole = graph.triangles(nothing, np.ones_like(made.d), U, pivots, inside, False)
    B, wide = _sparse((d.size, d.size), *whole), (pivots.size, rest.size)
    if rest.size == 0:
        F, G = (sp.csr_matrix(shape, dtype=A.dtype) for shape in (wide, wide[::-1]))
    elif low_memory:
        F = _sparse(wide, *graph.block(A.indptr, A.indices, A.data, pivots, across))
        G = _sparse(wide[::-1], *graph.block(A.indptr, A.indices, A.data, rest, inside))
    else:
        D, right = sp.diags_array(d), _sparse(wide, *graph.block(*U, pivots, across))
        if kind == "general":
            G = _sparse(wide, *graph.block(*L, pivots, across)).T.tocsr()
        else:
            D = D + sp.diags_array([e[:-1], (e.conj() if hermitian else e)[:-1]], offsets=[1, -1])
            G = transposed(right, "H" if hermitian else "T").tocsr()
        F = (D @ right).tocsr()
    return Level(kind, arranged, B, F, G, inverse, magnitude, facts)


class Level:
    """L_B D_B U_B, F and G of one level, and its arrangement: D and P.

    B : for "general", L_B D_B U_B, L_B without its unit diagonal; else U_B, with it.  D : D_B^-1; None for "general".
    magnitude : |D_B|^-1, if |D| replaces D.  facts : its part of the report.  All are on one device.
    """

    def __init__(
        self,
        kind: str,
        arranged: Arrangement,
        B: Any,
        F: Any,
        G: Any,
        D: Any,
        magnitude: Any,
        facts: dict[str, Any],
    ):
        self.arranged, self.B, self.D, self.magnitude = arranged, B, D, magnitude
        self.pivots, self.facts, self.hermitian = B.shape[0], facts, kind == "hermitian"
        self._F, self._G = {"N": F}, {"N": G}
        self._solves = LUFactors.SOLVES  # of B^-1
        if kind != "general":
            backward = Solve(lower=False, unit=True, trans="N")
            self._solves = dict.fromkeys("NTH", (backward._replace(trans="H" if self.hermitian else "T"), backward))
        kept = [B, F, G, *(matrix for matrix in (D, magnitude) if matrix is not None)]
        facts["nnz"] = sum(matrix.nnz for matrix in kept)
        facts["bytes"] = sum(x.nbytes for x in vars(arranged).values()) + sum(
            x.nbytes for matrix in kept for x in (matrix.indptr, matrix.indices, matrix.data)
        )

    def moved(self, like: Any, method: str) -> Level:
        """Move to the device of `like`, and analyse the triangles. Returns self."""
        xp, sparse = namespace(like), sparse_module(like)
        self.arranged = self.arranged.on(xp)
        if on_gpu(like):
            if self.arranged.rows.size > self.pivots:  # else F and G have no entries, and are not used
                self._F, self._G = ({"N": sparse.csr_matrix(x["N"])} for x in (self._F, self._G))
            self.D = self.D if self.D is None else sparse.csr_matrix(self.D)
            self.magnitude = self.magnitude if self.magnitude is None else sparse.csr_matrix(self.magnitude)
            self.B = sparse.csr_matrix(self.B)
        self._triangles, self._method = as_csr(self.B), method
        if method == "auto" and on_gpu(like) and in_own_order(self.pivots, self.B.nnz // (2 if self.D is None else 1)):
            self._method = "sync_free"
        self._solvers: dict[Solve, TriangularSolver] = {}
        for solve in self._solves["N"]:
            self._solver(solve)
        return self

    def F(self, trans: str) -> Any:
        """F of the matrix, or of its transpose, by `trans`: F of the transpose is G^T."""
        return self._of(self._F if trans == "N" else self._G, trans)

    def G(self, trans: str) -> Any:
        return self._of(self._G if trans == "N" else self._F, trans)

    @staticmethod
    def _of(matrices: dict[str, Any], trans: str) -> Any:
        if trans not in matrices:
            matrix = transposed(matrices["N"], trans).tocsr()
            synchronize(matrix.data)
            matrices[trans] = matrix
        return matrices[trans]

    def first(self, r: Any, trans: str) -> Any:
        """L_B^-1 r; of the transpose of B = L_B D_B U_B, (D_B U_B)^-T r, and so on."""
        return self._solver(self._solves[trans][0]).solve(r)

    def last(self, y: Any, trans: str) -> Any:
        """(D_B U_B)^-1 y, so that last(first(r)) is B^-1 r."""
        if self.D is not None:
            y = kernels_for(y).products.subtract_product(self.D, y)
        return self._solver(self._solves[trans][1]).solve(y)

    def last_of_definite(self, y: Any, v: Any, trans: str) -> Any:
        """U_B^-1 (|D_B|^-1 y - D_B^-1 v); v may be None: 0."""
        subtract = kernels_for(y).products.subtract_product
        y = subtract(self.magnitude, y)
        return self._solver(self._solves[trans][1]).solve(y if v is None else subtract(self.D, v, y))

    def _solver(self, solve: Solve) -> TriangularSolver:
        if solve not in self._solvers:
            solver = TriangularSolver(self._triangles, **solve._asdict(), method=self._method, check=False)
            synchronize(self._triangles.data)
            self._solvers[solve] = solver
        return self._solvers[solve]


def in_own_order(rows: int, entries: int) -> bool:
    """Whether "auto" solves with a triangle of this size in the rows' own order on a GPU.

    Level order takes 0.9 to 1.4 times as long where rows are short, and 0.35 to 0.75 of the time where they are long
    (applications of M^-1 on an H200).
    """
    return rows > ORDERED_ROWS and entries < LONG_ROWS * rows


def _places(n: int, rows: Any) -> Any:
    """The index of each of n rows in `rows`, or -1."""
    place = np.full(n, -1)
    place[rows] = np.arange(rows.size)
    return place


def _sparse(shape: tuple[int, int], indptr: Any, indices: Any, data: Any) -> Any:
    return sp.csr_matrix((data, indices, indptr), shape=shape)


def inverse_of(d: Any, e: Any, hermitian: bool) -> Any:
    """D^-1 of D with blocks (d_k, e_k; e_k', d_k+1) where e_k is not 0, e_k' its conjugate if `hermitian`."""
    n = d.size
    first = np.flatnonzero(e)
    second = first + 1
    # each block relative to its largest entry, as `crout_symmetric` does, which saw that these numbers are finite
    size = np.max([abs(d[first]), abs(e[first]), abs(d[second])], axis=0)
    a, off, c = d[first] / size, e[first] / size, d[second] / size
    mirrored = off.conj() if hermitian else off
    determinant = a * c - off * mirrored
    diagonal = np.empty_like(d)
    single = np.ones(n, bool)
    single[first] = single[second] = False
    diagonal[single] = 1 / d[single]
    diagonal[first], diagonal[second] = c / determinant / size, a / determinant / size
    if hermitian:
        diagonal = diagonal.real
    right, left = -off / determinant / size, -mirrored / determinant / size
    rows = np.concatenate([np.arange(n), first, second])
    columns = np.concatenate([np.arange(n), second, first])
    values = np.concatenate([diagonal, right, left]).astype(d.dtype, copy=False)
    return sp.csr_matrix((values, (rows, columns)), shape=(n, n))


def magnitude_of(D: Any, e: Any) -> Any:
    """|D| for a Hermitian D with blocks of one row, and of two where e (n,) is not 0: the eigenvalues' magnitudes.

    For a block T, T^2 = tr(T) T - det(T) I gives |T| = (tr(T) T + m I) / sqrt(tr(T)^2 + 2 m), m = |det T| - det T.
    """
    n = e.size
    first = np.flatnonzero(e)
    second = first + 1
    diagonal = D.diagonal().real
    off = D.diagonal(1)[first]
    size = np.max([abs(diagonal[first]), abs(off), abs(diagonal[second])], axis=0)  # relative to it nothing overflows
    a, b, c = diagonal[first] / size, off / size, diagonal[second] / size
    trace, determinant = a + c, a * c - abs(b) ** 2
    more = abs(determinant) - determinant
    scale = size / np.sqrt(trace**2 + 2 * more)
    diagonal = abs(diagonal)
    diagonal[first], diagonal[second] = scale * (trace * a + more), scale * (trace * c + more)
    right = scale * trace * b
    rows = np.concatenate([np.arange(n), first, second])
    columns = np.concatenate([np.arange(n), second, first])
    values = np.concatenate([diagonal, right, right.conj()]).astype(D.dtype, copy=False)
    return sp.csr_matrix((values, (rows, columns)), shape=(n, n))
