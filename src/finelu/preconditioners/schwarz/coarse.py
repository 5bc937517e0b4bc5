"""The coarse space of a Schwarz method: a few vectors Z in each part, and the Galerkin matrix E = Z^H A Z."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.device import copied, namespace, on_gpu, require_room, synchronize, to_host
from finelu.errors import MatrixError, SingularMatrix, ZeroPivot
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, Correction, Couplings, Sums
from finelu.matrix import as_csr, without_zeros
from finelu.ordering import OrderingJob, elimination_tree
from finelu.preconditioners.direct.superlu import SuperLU
from finelu.preconditioners.schwarz.levels import (
    CoarseLevels,
    coefficients,
    is_factored_sooner,
    no_vectors,
    on_levels,
)

# The least pivot of E relative to its diagonal: ten roundings of double precision for each of the K terms of its sum,
# and thirty of A's own dtype, in which A Z is formed.
ROUNDINGS, OWN_ROUNDINGS = 10.0, 30.0
NEGLIGIBLE = 1e-8  # part of the largest entry of its row that a diagonal entry of E must be, to scale it
MOST_FLOPS = 4e9  # of a complete L U of E, up to which it is factored row by row
GROWTH = 1e-9  # the largest backward error of a solve with factors without pivoting
# The largest ||E|| ||y|| / ||E y|| of such a solve, since its pivots do not show that E is singular: it was 2e6 or more
# for 197 singular matrices whose factors had a small backward error. 66 regular ones, of 36 flows, networks and
# reservoirs with the usual parts and with parts of 20 rows, had at most 3e4. One had 1e8, and a condition number of
# 6e10: SuperLU factors it, as it does a singular one.
CONDITION = 1e5
DEPENDENT = 1e-6  # part of a near null vector that must remain in a part once earlier ones are projected out


class CoarseSpace:
    """Q = Z E^-1 Z^H for Z with `columns` vectors a part, each zero outside of its part.

    parts (n,) : the part of each row.
    starts, rows : the parts as positions, see kernels/reference/subdomains.py.
    near_nullspace : (n, m), whose columns are restricted to each part; None for the constant.
    adjoint : "H" for a Hermitian A; "T" for a symmetric one, where Z^T and E = Z^T A Z keep the symmetry; None for any
        other. For the first two E^-1 is its own adjoint.
    coarser : the Schwarz recipe by which E is solved again, see `CoarseLevels`; None for an inverse or a factorization.
    required : whether an error is raised if `coarser` does not suit E; else E is inverted or factored, and `warning`
        says so.
    overlaps : whether parts share rows.
    products : A Z by rows, see kernels/reference/subdomains.py, on a GPU or if parts overlap, else None; also in the
        form of `Couplings`. Both only if `balanced`.
    dropped (K,) : vectors that depend on others, or whose pivot is only rounding; they are not used. On the host.
    """

    def __init__(
        self,
        A: CSR,
        parts: Any,
        starts: Any,
        rows: Any,
        near_nullspace: Any,
        adjoint: str | None,
        definite: bool,
        *,
        balanced: bool,
        overlaps: bool,
        coarser: Any = None,
        required: bool = True,
    ):
        self.parts, self.starts, self.rows, self.adjoint = parts, starts, rows, adjoint or "H"
        self._own_adjoint, self._balanced = adjoint is not None, balanced
        self._by_rows = on_gpu(A.data) or overlaps
        self._coarser, self._required, self.warning = coarser, required, ""
        self._kernels, xp = kernels_for(A.data), namespace(A.data)
        self._count = starts.size - 1
        self.Z: Any = None
        dependent = xp.zeros(self._count, bool)
        if near_nullspace is not None:
            self.Z, dependent = orthonormal(parts, starts, rows, near_nullspace.astype(A.dtype, copy=False))
        self.columns = 1 if self.Z is None else self.Z.shape[1]
        self.size = self._count * self.columns
        self._Z_by_parts = None if self.Z is None else self.Z[rows]
        self._dependent = dependent
        self._inverse: Any = None
        if coarser is not None:
            self._coefficients = None if near_nullspace is None else coefficients(self, near_nullspace)
        self.update(A, definite)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kernels": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._kernels = kernels_for(self.parts)

    def update(self, A: CSR, definite: bool) -> None:
        """Take the values of A: A Z and E anew, and the inverse of E, or its factors.

        definite : A is Hermitian with a positive diagonal, so that E needs no pivoting.
        """
        kernels = self._kernels.subdomains
        products = rows = order = None
        if self._by_rows:
            products = kernels.coarse_products(A.indptr, A.indices, A.data, self.parts, self._count, self.Z)
            pointers, part, _ = products
            rows = self._kernels.indices.rows_of_entries(pointers, part.size) if on_gpu(A.data) else None
            couplings, order = kernels.couple(products, rows, self.parts, self.starts, self.rows)
        else:
            own = self.parts, self.starts, self.rows
            couplings = kernels.couple_rows(A.indptr, A.indices, A.data, *own, self.Z)
        if self._balanced:
            self.products, self._couplings = products, couplings
        conjugate = self.adjoint == "H"
        if self._coarser is not None:
            blocks = kernels.coarse_blocks(products, rows, self.Z, conjugate, couplings, order)
            if self._on_levels(blocks, couplings, A, definite):
                return
        if on_gpu(A.data):
            advice = "take larger parts, or coarse=None"
            needed = 4 * self.size**2 * np.result_type(A.dtype, np.float64).itemsize
            require_room(f"the coarse matrix of {self.size} vectors and its inverse", needed, A.data, advice)
        E = kernels.coarse_matrix(products, rows, self.parts, self._count, self.Z, conjugate, couplings, order)
        self._inverse, self.dropped = inverse(E, self._dependent, A.dtype, definite)

    def _on_levels(self, blocks: Any, couplings: Couplings, A: CSR, definite: bool) -> bool:
        """Whether E, given by its blocks, is solved by Schwarz again."""
        known = self._inverse if isinstance(self._inverse, CoarseLevels) else None
        self._inverse, self.warning = None, ""

        def rounding() -> Any:
            squares = None if self.Z is None else abs(self.Z[self.rows]) ** 2
            sums = self._kernels.subdomains.restrict(self.starts, self.rows, squares, abs(A.data[A.diag]), False)
            return OWN_ROUNDINGS * float(np.finfo(A.dtype).eps) * sums

        try:
            own = self.adjoint if self._own_adjoint else None
            E, nodes, self.dropped = on_levels(blocks, couplings, own, A.dtype, definite, rounding)
            if known is None and not self._required and is_factored_sooner(E):
                return False
            self._inverse = CoarseLevels(self._coarser, E, nodes, self._coefficients, self.dropped, definite, known)
        except (MatrixError, ZeroPivot) as error:
            if self._required:
                raise
            self.warning = f"the coarse matrix of {self.size} vectors has no further levels: {error}"
        return self._inverse is not None

    @property
    def rank(self) -> int:
        left: int = self.size - int(self.dropped.sum())
        return left

    @property
    def levels(self) -> CoarseLevels | None:
        """The solver of E, if that is Schwarz again."""
        return self._inverse if isinstance(self._inverse, CoarseLevels) else None

    def restrict(self, r: Any) -> Any:
        """Z^H r, (K,)."""
        return self._kernels.subdomains.restrict(self.starts, self.rows, self._Z_by_parts, r, self.adjoint == "H")

    def solve(self, g: Any, adjoint: bool = False) -> Any:
        """E^-1 g, or E^-H g (E^-T if Z^T replaces Z^H); g (K,), or (K, k)."""
        if g.ndim == 2 and not isinstance(self._inverse, _Shared | _Dense):
            xp = namespace(g)
            return xp.stack([self.solve(xp.ascontiguousarray(c), adjoint) for c in g.T], axis=1)
        return self._inverse(g, self.adjoint if adjoint and not self._own_adjoint else "N")

    def closely(self, g: Any) -> tuple[Any, float]:
        """E^-1 g for a Hermitian E; and the part of g that may be left of it, where the solver of E is not exact."""
        return (self.solve(g), 0.0) if self.levels is None else self.levels.closely(g)

    def prolong(self, q: Any, x: Any, less: Any = None) -> None:
        """x += Z (q - less)."""
        self._kernels.subdomains.prolong(self.parts, self.Z, q, x, less)

    def correction(self, q: Any, added: bool) -> Correction:
        """r - A Z q instead of r, and Z q added to x if asked for."""
        return Correction(self.products, self._couplings, q, self.parts, self.Z, added)

    def sums(self, dtype: Any, k: int = 1) -> Sums:
        """Arrays for the sums that a solve with the parts, without overlap, computes for this space, for k columns."""
        xp, c, more = namespace(self.parts), self._couplings, () if k == 1 else (k,)
        of, restricted = xp.empty((c.members.size, self.columns * k), dtype), xp.empty((self.size, *more), dtype)
        return Sums(c, self._Z_by_parts, self.adjoint == "H", of, restricted, xp.empty((self._count, *more), dtype))

    def moments(self, sums: Sums) -> Any:
        """(A Z)^H x, (K,), or (K, k), for the x of the last solve with the parts."""
        return self._kernels.subdomains.sum_couplings(sums.couplings, sums.of).reshape(sums.restricted.shape)

    def rest(self, sums: Sums) -> Any:
        """Z^H r - (A Z)^H x, (K,), or (K, k), for the r and x of the last solve with the parts."""
        less = sums.restricted.reshape(-1)
        return self._kernels.subdomains.sum_couplings(sums.couplings, sums.of, less).reshape(sums.restricted.shape)

    def moments_of(self, x: Any) -> Any:
        """(A Z)^H x, (K,), for any vector."""
        c, restrict = self._couplings, self._kernels.subdomains.restrict
        sums = restrict(c.ends, c.of_rows, c.values, x, self.adjoint == "H")
        return self._kernels.subdomains.sum_couplings(c, sums.reshape(c.members.size, -1)).reshape(-1, *x.shape[1:])

    def correct(self, sums: Sums, rho: Any) -> Any:
        """q with z = x + Z q = M r, for an r without a component in this space, up to rounding, and the solve x of the
        parts with it; rho[0] = r^H z. For k columns rho (k,)."""
        rest = self.rest(sums)
        if rest.ndim == 1 or isinstance(self._inverse, _Shared):
            return self._inverse.with_dot(rest, sums.restricted, sums.dots, rho)
        columns = zip(*(np.ascontiguousarray(v.T) for v in (rest, sums.restricted, sums.dots)), strict=True)
        return np.stack([self._inverse.with_dot(*v, rho[c : c + 1]) for c, v in enumerate(columns)], axis=1)

    def add_direction(self, state: Any, rho: Any, rho_old: Any, q: Any, z: Any, p: Any, move: Any = None) -> None:
        """p = z + Z q + (rho / rho_old) p, see kernels/reference/subdomains.py.  move : see `Deflated.turn`."""
        direction = rho, rho_old, self.parts, self.Z, q, z, p
        if move is None:
            self._kernels.subdomains.direction_with_coarse(state, *direction)
        else:
            alpha, kept, x, best = move
            self._kernels.subdomains.step_and_direction(state, alpha, kept, *direction, x, best)

    def add_directions(
        self, which: Any, states: Any, rho: Any, rho_old: Any, q: Any, z: Any, p: Any, move: Any
    ) -> None:
        """The same for columns, on the CPU."""
        alpha, kept, x, best = move
        direction = rho, rho_old, self.parts, self.Z, q, z, p
        self._kernels.subdomains.steps_and_directions(which, states, alpha, kept, *direction, x, best)


def orthonormal(parts: Any, starts: Any, rows: Any, B: Any) -> tuple[Any, Any]:
    """The columns of B (n, m), orthonormal in each part, and a mask (K,) of those that are 0 as they depend on others.

    parts, starts, rows : as `CoarseSpace` has them. By the classical Gram-Schmidt process, twice for each column.
    """
    Z, dependent = kernels_for(B).subdomains.orthonormal(parts, starts, rows, B, DEPENDENT)
    return Z, dependent


class _Dense:
    """The inverse of E as a dense matrix, on a GPU."""

    def __init__(self, inverse: Any):
        self._inverse, self._transposed = inverse, None

    def __call__(self, g: Any, trans: str) -> Any:
        matrix = self._inverse
        if trans != "N":
            if self._transposed is None:
                T = matrix.T if trans == "T" else matrix.T.conj()
                transposed = namespace(matrix).ascontiguousarray(T)
                synchronize(transposed)  # another thread may use it on another stream
                self._transposed = transposed
            matrix = self._transposed
        return kernels_for(g).products.dense_product(matrix, g)

    def with_dot(self, g: Any, v: Any, dots: Any, total: Any) -> Any:
        """E^-1 g, and total[0] = v^H E^-1 g + the sum of dots."""
        return kernels_for(g).subdomains.product_with_dot(self._inverse, g, v, dots, total)


class _Sparse:
    """Factors of E on the CPU; S is E scaled by weights on both sides. A copy factors anew."""

    def __init__(self, S: Any, weights: Any, dtype: Any):
        self._S, self._weights, self._dtype = S, weights, dtype
        how: dict[str, Any] = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.1}
        self._factors = SuperLU(S, lambda: "the coarse matrix is singular", options={"SymmetricMode": True}, **how)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._S, self._weights, self._dtype

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def pivots(self) -> Any:
        """(K,) : the magnitude of the pivot of each column."""
        return self._factors.pivots()

    def __call__(self, g: Any, trans: str) -> Any:
        return (self._weights * self._factors.solve(self._weights * g, trans)).astype(self._dtype)

    def with_dot(self, g: Any, v: Any, dots: Any, total: Any) -> Any:
        """E^-1 g, and total[0] = v^H E^-1 g + the sum of dots. BLAS's threads would take the cores of the kernels."""
        q = self(g, "N")
        kernels_for(g).vectors.dot(v, q, total)
        total += dots.sum()
        return q


class _Shared:
    """Factors of E without pivoting on the CPU, which threads share; see kernels/reference/cholesky.py.

    E : of a symmetric pattern.  opposite : the values of E^H in it; None for a definite E.
    """

    def __init__(self, E: CSR, opposite: Any, order: Any, dtype: Any):
        self._dtype, self._data, self._opposite = dtype, E.data, opposite
        self._factors = kernels_for(E.data).cholesky.Cholesky(E.indptr, E.indices, order, elimination_tree(E, order))

    def factor(self, weights: Any) -> Any:
        """(K,) : the pivots of E scaled by weights on both sides, with ones on the diagonal where a weight is 0."""
        return self._factors.factor(self._data, weights, self._opposite)

    def __call__(self, g: Any, trans: str) -> Any:
        """E^-1 g, or with "H" E^-H g, for g (K,) or (K, k)."""
        q = np.empty(g.shape, self._dtype)
        self._factors.solve(g, q, trans != "N")
        return q

    def with_dot(self, g: Any, v: Any, dots: Any, total: Any) -> Any:
        """As `_Sparse.with_dot`; for k columns total (k,)."""
        q = self(g, "N")
        if g.ndim == 1:
            kernels_for(g).vectors.dot(v, q, total)
        else:
            kernels_for(g).columns.dot(np.arange(g.shape[1]), v, q, total)
        total += np.ascontiguousarray(dots.T).sum(axis=-1)
        return q


def inverse(E: Any, dependent: Any, dtype: Any, definite: bool) -> tuple[Any, Any]:
    """The inverse of E, or its factors, in the space of the remaining vectors, for vectors of `dtype`; and a mask (K,),
    on the host, of the dropped vectors.

    E (K, K) : in double precision, sparse on the CPU, dense on a GPU.
    dependent (K,) : vectors that are dropped in any case.
    Rows and columns are scaled by the root of the diagonal, or of their largest entry if the diagonal is negligible. A
    column that is only rounding once earlier ones are eliminated belongs to a vector which A Z takes into the span of
    the others: it is dropped, and E factored again, or, for a semidefinite E on a GPU, left out at once.
    Raises MatrixError if no vector remains.
    """
    gpu, K = on_gpu(E), E.shape[0]
    tolerance = max(ROUNDINGS * K * float(np.finfo(np.float64).eps), OWN_ROUNDINGS * float(np.finfo(dtype).eps))
    if gpu and definite and (ready := _definite(E, dependent, tolerance, dtype)) is not None:
        return ready
    size, largest = kernels_for(E).subdomains.magnitudes(E) if gpu else (abs(E.diagonal()), _largest(E))
    size = np.where(size > NEGLIGIBLE * largest, size, largest)
    dropped = to_host(dependent) | ~(size > 0)
    scale = 1 / np.sqrt(np.where(dropped, 1, size))
    factored = _factored_dense if gpu else _factored_sparse
    if not (gpu or dropped.all()):
        weights = np.where(dropped, 0.0, scale)
        if (shared := _without_pivoting(E, weights, tolerance, dtype, definite)) is not None:
            return shared, dropped
    while not dropped.all():  # with pivoting, it names the columns that are only rounding
        weights = np.where(dropped, 0.0, scale)
        found, tiny = factored(E, weights, dropped, tolerance, dtype)
        dropped = dropped | tiny
        if found is not None:
            return found, dropped
    raise no_vectors()


def _without_pivoting(E: Any, weights: Any, tolerance: float, dtype: Any, definite: bool) -> _Shared | None:
    """The factors of a sparse E scaled by weights; None if a pivot is not more than the tolerance, if an E that is not
    definite has factors that are not `_accurate`, or if they take more than MOST_FLOPS operations: SuperLU, which works
    on dense blocks, is then faster."""
    if not np.isfinite(E.data).all():
        return None
    if definite:
        S, opposite = without_zeros(as_csr(E, diagonal=False)), None
    else:
        S, opposite = _with_opposite(E)
    _, order, fill = OrderingJob(S, aside=False).found()
    if fill.flops > MOST_FLOPS:
        return None
    found = _Shared(S, opposite, order, dtype)
    pivots = found.factor(weights)
    if not bool(((pivots if definite else abs(pivots)) > tolerance).all()):
        return None
    return found if definite or _accurate(found, E, weights) else None


def _with_opposite(E: Any) -> tuple[CSR, Any]:
    """E in the pattern of E + E^H, and the values of E^H in it."""
    pair = [sp.csr_matrix(E), E.conj().T.tocsr()]
    for S in pair:
        S.sort_indices()
    first, second = pair
    if not (np.array_equal(first.indptr, second.indptr) and np.array_equal(first.indices, second.indices)):
        ones = [sp.csr_matrix((np.ones(S.nnz), S.indices, S.indptr), S.shape) for S in pair]
        both = (ones[0] + ones[1]).tocsr()
        both.sort_indices()
        places, *of_pair = (_places(S) for S in (both, *pair))
        for k, S in enumerate(pair):
            data = np.zeros(both.nnz, S.dtype)
            data[np.searchsorted(places, of_pair[k])] = S.data
            pair[k] = sp.csr_matrix((data, both.indices, both.indptr), S.shape)
    return as_csr(pair[0], diagonal=False), pair[1].data


def _places(S: Any) -> Any:
    """(nnz,) int64 : the place of each entry of a CSR among those of a dense matrix."""
    n = S.shape[0]
    return np.repeat(np.arange(n, dtype=np.int64) * n, np.diff(S.indptr)) + S.indices


def _accurate(found: _Shared, E: Any, weights: Any) -> bool:
    """Whether a solve with factors of E scaled by weights has a backward error of at most GROWTH, for one vector, and
    does not show that E may be singular."""
    kept = weights > 0
    scale = 1 / np.where(kept, weights, 1)
    g = np.where(kept, np.cos(np.arange(weights.size)), 0)
    x = found((scale * g).astype(E.dtype), "N")
    y = np.where(kept, scale * x, 0)
    left = np.where(kept, weights * (E @ (weights * y)), 0) - g
    largest = (np.repeat(weights, np.diff(E.indptr)) * weights[E.indices] * abs(E.data)).max()
    if largest * np.linalg.norm(y) > CONDITION * np.linalg.norm(g):
        return False
    limit = GROWTH * (largest * np.linalg.norm(y) + np.linalg.norm(g))
    return bool(np.linalg.norm(left) <= max(limit, ROUNDINGS * float(np.finfo(x.dtype).eps) * np.linalg.norm(y)))


def _largest(E: Any) -> Any:
    """(K,) : the largest magnitude of each row and column together, of a sparse E."""
    found = np.zeros(E.shape[0])
    for S in (sp.csr_matrix(E), sp.csc_matrix(E)):
        filled = np.flatnonzero(np.diff(S.indptr))
        if filled.size:
            found[filled] = np.maximum(found[filled], np.maximum.reduceat(abs(S.data), S.indptr[filled]))
    return found


# The functions below return two results: the factorization of E scaled by weights, with ones on the diagonal for
# vectors that are already dropped (None if E must be factored again); and a mask (K,) of linearly dependent vectors.


def _factored_sparse(E: Any, weights: Any, dropped: Any, tolerance: float, dtype: Any) -> tuple[Any, Any]:
    D = sp.diags(weights)
    S = (D @ E @ D + sp.diags(dropped.astype(np.float64))).tocsc()
    try:
        found: Any = _Sparse(S, weights, dtype)
        pivots = found.pivots()
    except SingularMatrix:  # SuperLU does not name the dependent columns; the shifted S shows them
        found, pivots = None, _Sparse(_moved(S, tolerance), weights, dtype).pivots()
        pivots[np.argmin(np.where(dropped, np.inf, pivots))] = 0
    tiny = ~(pivots > tolerance) & ~dropped
    return (None if tiny.any() else found), tiny


def _moved(S: Any, tolerance: float) -> Any:
    """S with a diagonal so much larger that a pivot of 0 becomes half the tolerance."""
    return (S + sp.identity(S.shape[0]) * (tolerance / 2)).tocsc()


def _factored_dense(E: Any, weights: Any, dropped: Any, tolerance: float, dtype: Any) -> tuple[Any, Any]:
    kernels = kernels_for(E).subdomains
    factored, pivots, finite = kernels.lu(E, weights, dropped.astype(np.float64))
    if not finite:  # beyond a pivot of 0
        _, pivots, _ = kernels.lu(E, weights, dropped + tolerance / 2)
        pivots[np.argmin(np.where(dropped, np.inf, pivots))] = 0
    tiny = ~(pivots > tolerance) & ~dropped
    return (None if tiny.any() else _Dense(kernels.inverse_by_lu(factored, weights, dtype))), tiny


def _definite(E: Any, dependent: Any, tolerance: float, dtype: Any) -> tuple[Any, Any] | None:
    """The result of `inverse` for a semidefinite E without pivoting; None if E is not semidefinite, has a diagonal
    entry of 0 or less for a vector that should be kept, or holds Inf or NaN."""
    kernels = kernels_for(E).subdomains
    weights = kernels.coarse_weights(E, dependent)
    if weights is None:
        return None
    X, found = kernels.hermitian_inverse(copied(E), weights, tolerance)
    left_out = to_host(found)
    if (left_out == 2).any():
        return None
    dropped = to_host(dependent) | (left_out == 1)
    return None if dropped.all() else (_Dense(X.astype(dtype, copy=False)), dropped)
