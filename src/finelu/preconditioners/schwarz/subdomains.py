"""The subdomains of a Schwarz method: their rows, the diagonal blocks, and the solves with their factors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu, sparse_module, synchronize, to_host
from finelu.errors import ParameterError, ZeroPivot
from finelu.factors.base import random_numbers
from finelu.factors.triangles import MOST_CHANGE, TriangularFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, Correction, Sums
from finelu.matrix import full_csr
from finelu.triangular import TriangularSolver


class Subdomains:
    """The local positions of each part, see kernels/reference/subdomains.py: its own rows and `overlap` layers more.

    parts (n,) : the part that owns each row.  count : the number of parts.
    starts, rows, part : of the positions.  own_starts, own_rows : the same without overlap.
    """

    def __init__(self, A: CSR, parts: Any, count: int, overlap: int):
        self.parts, self.count, self.n = parts, count, A.n
        kernels = kernels_for(A.data)
        self.own_rows, self.own_starts = kernels.indices.grouped(parts, count)
        self.part = kernels.vectors.gather(parts, self.own_rows)
        self.starts, self.rows = self.own_starts, self.own_rows
        for _ in range(overlap):
            self._grow(A)
        self.overlap = self.rows.size > A.n

    def _grow(self, A: CSR) -> None:
        """Add a layer: the rows that A couples to the rows of a part, in either direction."""
        xp = namespace(A.data)
        pattern = sparse_module(A.data).csr_matrix((xp.ones(A.nnz), A.indices, A.indptr), shape=A.shape)
        members = sparse_module(A.data).csr_matrix(
            (xp.ones(self.rows.size), (self.part, self.rows)), shape=(self.count, A.n)
        )
        grown = (members @ (pattern + pattern.T) + members).tocsr()
        grown.sort_indices()
        index = self.rows.dtype
        self.rows, self.starts = grown.indices.astype(index), grown.indptr.astype(index)
        self.part = kernels_for(A.data).indices.rows_of_entries(self.starts, self.rows.size)

    @property
    def owned(self) -> Any:
        """(len(rows),) : whether a position belongs to the part that owns its row."""
        return self.parts[self.rows] == self.part

    def sizes(self) -> Any:
        """(count,) : the rows of each part, on the host."""
        return np.diff(to_host(self.starts))


class LocalFactors:
    """The factors of all diagonal blocks, and x = sum_p R_p^T W_2 B_p^-1 W_1 R_p r with them.

    R_p takes the rows of part p; W are diagonal. Without overlap they are 1. With overlap W_2 is 1 on the rows that a
    part owns and 0 on the others, and W_1 is 1 (restricted additive Schwarz); or, if `symmetric`, both are the roots of
    1 / (number of parts that share the row). The transposes exchange W_1 and W_2. Complex factors without "T" are asked
    only for "H".
    narrow : "", or how solves may read the factors in single precision. "adjoint": those of an ILU(0) of Hermitian
        definite blocks, on the CPU also L L^H of these. The CPU stores L as (D^-1 U)^H, so that the solves stay
        Hermitian; on a GPU L and D^-1 U are rounded one by one, and an entry close to the middle of two numbers of
        single precision may become both. "each", on the CPU: those of an ILU(0) of any blocks, L and D^-1 U one by one,
        unless that changes the solve for a random vector by more than `MOST_CHANGE`, as where pivots are small; the
        transposes read the same numbers in double precision.
    """

    def __init__(self, recipe: Any, local: Any, A: CSR, domains: Subdomains, symmetric: bool, narrow: str):
        self._recipe, self._domains, self._narrow = recipe, domains, narrow
        kernels = kernels_for(A.data)
        indptr, indices, self._places = kernels.subdomains.inside(domains.starts, domains.rows, A.indptr, A.indices)
        self._blocks = full_csr(indptr, indices, kernels.vectors.gather(A.data, self._places)).owning()
        changes: dict[str, Any] = {"triangular": "sync_free" if on_gpu(A.data) else "sequential"}
        if on_gpu(A.data) and getattr(local, "variant", None) == "auto":
            changes["variant"] = "levs"  # all parts at once; in natural order they would be factored one by one
        self.factors: Any = self._named(lambda: replace(local, **changes).factor(self._blocks))
        if not isinstance(self.factors, TriangularFactors) or self.factors.permutation is not None:
            raise ParameterError(no_triangles(recipe, local))
        self._pattern = self.factors.triangles.indices
        self._before = self._after = self._sum = None
        if domains.overlap:
            self._weigh(symmetric, A.dtype)
        self._solves: dict[Any, Any] = {}  # by the sequence of triangles
        self._asked, self._change = narrow, 0.0
        self._hold_to_double()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_solves": {}, "_pattern": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pattern = self.factors.triangles.indices

    def _named(self, make: Any) -> Any:
        """make(); the error of a failed pivot names its part and its row of A."""
        try:
            return make()
        except ZeroPivot as error:
            raise self._bad_pivot(error.row, error.value, error.recipe) from error

    def _bad_pivot(self, position: int, value: Any, local: Any) -> ZeroPivot:
        domains, shift = self._domains, max(10 * local.shift, 1e-3)
        return ZeroPivot(
            self._recipe,
            int(domains.rows[position]),
            value,
            f"the factors of part {int(domains.part[position])} cannot have",
            f"Try local={type(local).__name__}(shift={shift:g}), or another local recipe.",
        )

    def require_positive_pivots(self) -> None:
        """A ZeroPivot for the first pivot of U that is not positive."""
        triangles = self.factors.triangles
        first = kernels_for(triangles.data).vectors.first_not_positive(triangles.data, triangles.diag)
        if first >= 0:
            pivot = float(triangles.data[triangles.diag[first]].real)
            raise self._bad_pivot(first, f"{pivot:g}, which is not positive", self.factors.recipe)

    def _weigh(self, symmetric: bool, dtype: Any) -> None:
        domains, xp = self._domains, namespace(self._places)
        real = np.dtype(dtype.char.lower())
        if symmetric:
            times = xp.bincount(domains.rows, minlength=domains.n)
            self._before = self._after = xp.sqrt(1 / times)[domains.rows].astype(real)
        else:
            self._after = domains.owned.astype(real)
        positions = xp.argsort(domains.rows, kind="stable").astype(np.int32)
        pointers = kernels_for(positions).indices.starts(domains.rows[positions], domains.n)
        ones = xp.ones(domains.rows.size, dtype)
        shape = (domains.n, domains.rows.size)
        self._sum = sparse_module(ones).csr_matrix((ones, positions, pointers), shape=shape)

    def update(self, A: CSR) -> None:
        """Take the values of A: the pattern work is kept."""
        self._blocks = self._blocks.with_values(kernels_for(A.data).vectors.gather(A.data, self._places))
        self._named(lambda: self.factors.update(self._blocks))
        if self.factors.triangles.indices is not self._pattern:
            self._pattern, self._solves = self.factors.triangles.indices, {}
        if self._asked == "each":  # the transposes are of the rounded values before
            self._narrow, self._solves = "each", {}
        for solve in self._solves.values():
            solve.load()
        self._hold_to_double()

    def _hold_to_double(self) -> None:
        """Read the factors in double precision if L and D^-1 U, rounded one by one, solve too differently."""
        solve = self._solve("N")
        if self._narrow != "each" or solve.stored == self.factors.triangles.dtype:
            return
        r = random_numbers(self._domains.n).astype(self._blocks.dtype)
        x = np.empty(self._domains.rows.size, r.dtype)
        solve.solve(r, x, self._domains.rows, None, None, False)
        y = self.factors.apply(r[self._domains.rows])
        with np.errstate(all="ignore"):
            size = abs(y).max()  # whose square may be out of range
            self._change = float(np.linalg.norm((x - y) / size) / np.linalg.norm(y / size))
        if not self._change <= MOST_CHANGE:
            self._narrow, self._solves = "", {}
            self._solve("N")

    def _solve(self, trans: str) -> Any:
        key = self.factors.SOLVES[trans]
        found = self._solves.get(key)
        if found is None:
            kernels = kernels_for(self._places).subdomains
            plans = [solver.plan for solver in self._solvers(trans)]
            narrow = self._narrow if trans == "N" else ""
            found = kernels.SubdomainSolve(self._domains.starts, plans, narrow)
            synchronize(self._places)  # another thread may use it on another stream
            self._solves[key] = found
        return found

    def _solvers(self, trans: str) -> Any:
        """The solves of the parts' factors, or of their transposes; those of rounded factors if "N" has these."""
        T = self.factors.triangles
        if trans == "N" or self._narrow != "each" or self.stored == T.dtype:
            return self.factors.solvers(trans)
        rows = kernels_for(T.data).indices.rows_of_entries(T.indptr, T.nnz)
        pivots = np.where(rows < T.indices, T.data[T.diag][rows], 1)  # of U, whose rows are relative to them
        rounded = (T.data / pivots).astype(self.stored).astype(T.dtype) * pivots
        rounded[T.diag] = T.data[T.diag]
        S = T.with_values(rounded)
        method = self.factors.recipe.triangular
        return [TriangularSolver(S, **s._asdict(), method=method, check=False) for s in self.factors.SOLVES[trans]]

    @property
    def starts(self) -> Any:
        """(parts + 1,) : where the positions of each part begin."""
        return self._domains.starts

    @property
    def entries(self) -> int:
        """The number of entries of the diagonal blocks."""
        stored: int = self._places.size
        return stored

    def levels(self) -> int:
        """The most level sets of a triangle of a part."""
        levels: int = self._solve("N").levels
        return levels

    @property
    def stored(self) -> Any:
        """The dtype of the entries that a solve reads."""
        return self._solve("N").stored

    @property
    def not_narrow(self) -> str:
        """Why the entries are not in single precision although they might be; else ""."""
        if not self._asked or self.stored != self.factors.triangles.dtype:
            return ""
        if not self._narrow:
            by = f"by {self._change:.1e}, {MOST_CHANGE:g} is allowed" if np.isfinite(self._change) else "out of range"
            return f"rounding to single precision changes M too much: {by}"
        return "L or D^-1 U of a part has an entry or a pivot beyond the range of single precision"

    def apply(self, r: Any, trans: str, x: Any, correction: Correction | None = None, sums: Sums | None = None) -> None:
        """x = the sum over the parts, for r (n,), on the CPU (n, k), too, or with the blocks' transposes.

        correction : r - A Z q replaces r; with overlap nothing is added to x.
        sums : sums to be computed in addition; not with overlap.
        """
        domains = self._domains
        if self._narrow == "adjoint" and self.stored != r.dtype:  # Hermitian; transposes would round other numbers
            trans = "N"
        before, after = (self._before, self._after) if trans == "N" else (self._after, self._before)
        if self._sum is None:
            self._solve(trans).solve(r, x, domains.rows, before, after, True, correction, sums)
        else:
            copies = namespace(r).empty((domains.rows.size, *r.shape[1:]), r.dtype)
            self._solve(trans).solve(r, copies, domains.rows, before, after, False, correction)
            x[...] = kernels_for(r).products.subtract_product(self._sum, copies)


def no_triangles(recipe: Any, local: Any) -> str:
    return (
        f"{recipe!r}: the factors of local={local!r} are no two triangles in A's order; take ILU0, IC0, ILUK, ILUT, "
        "ICT or another such recipe, with ordering=None."
    )
