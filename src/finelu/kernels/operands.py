"""Arguments and results of kernels, on either device: `CSR`; `Triangle`, a triangle within the arrays of a matrix;
`BatchPlan`, for many matrices of one pattern; `Factored`, the result of a threshold factorization; `Couplings` and
`Sums`, for the coarse space of subdomains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from finelu.device import namespace, on_gpu, sparse_module, to_host
from finelu.errors import MatrixError
from finelu.kernels import kernels_for

INT32_LIMIT = 2**31 - 2**13  # kernels may step a little beyond the last place, and that must fit, too
KNOWN = ("missing", "facts", "longest_column", "likely_block_size", "owned")  # of the pattern, once they are known

Mirrored = tuple[float, float, float, float, float, int]


@dataclass(frozen=True, eq=False)
class CSR:
    """A square sparse matrix in compressed sparse rows, checked: sorted, no duplicates, finite.

    indptr (n + 1,), indices (nnz,) int32 (int64 once n or nnz needs it); data (nnz,) one of the four dtypes;
    diag (n,) the place of each diagonal entry in `data`, or -1 where none is stored. All on one device.
    The arrays may be the caller's own: nothing in finelu writes to them.
    """

    indptr: Any
    indices: Any
    data: Any
    diag: Any
    n: int = field(init=False, repr=False)
    nnz: int = field(init=False, repr=False)
    shape: tuple[int, int] = field(init=False, repr=False)
    dtype: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        n = self.indptr.size - 1
        self.__dict__.update(n=n, nnz=self.data.size, shape=(n, n), dtype=self.data.dtype)

    def _like(self, indptr: Any, indices: Any, data: Any, diag: Any) -> CSR:
        """The matrix with these arrays, of the same pattern, with its analyses."""
        other = CSR(indptr, indices, data, diag)
        other.__dict__.update({name: self.__dict__[name] for name in KNOWN if name in self.__dict__})
        return other

    @cached_property
    def missing(self) -> int:
        """The number of diagonal entries that are not stored."""
        return int((to_host(self.diag) < 0).sum())

    @cached_property
    def facts(self) -> tuple[int, int, int, int]:
        """The most entries of a row, below and above the diagonal; all entries below it. The diagonal must be full."""
        return kernels_for(self.data).pattern.facts(self)

    def mirrored(self) -> Mirrored:
        """The comparison of A with its transpose; see reference/inspection.py. Computed anew at each call, since values
        may have changed, except within `unchanged`."""
        known = self.__dict__.get("_mirrored")
        return known or kernels_for(self.data).inspection.mirrored(self.indptr, self.indices, self.data, self.diag)

    @contextmanager
    def unchanged(self, mirrored: Mirrored) -> Iterator[None]:
        """A block in which the values are not written to, so that `mirrored` returns this argument."""
        before = self.__dict__.get("_mirrored")  # of a block around this one
        self.__dict__["_mirrored"] = mirrored
        try:
            yield
        finally:
            self.__dict__.pop("_mirrored", None)  # another thread may have been first
            if before is not None:
                self.__dict__["_mirrored"] = before

    @property
    def is_known_to_be_paired(self) -> bool:
        """Whether the comparison within `unchanged` has shown that the pattern is symmetric."""
        known = self.__dict__.get("_mirrored")
        return known is not None and known[-1] == self.nnz

    @property
    def is_known_to_be_symmetric(self) -> bool:
        """Whether the comparison within `unchanged` has shown that A = A^T, in each bit but the sign of a 0."""
        known = self.__dict__.get("_mirrored")
        return known is not None and known[2] == 0 and known[-1] == self.nnz

    @property
    def below(self) -> int:
        """The number of stored entries below the diagonal; the diagonal must be full."""
        return self.facts[3]

    @property
    def longest(self) -> tuple[int, int, int]:
        """The most entries of a row, and below and above its diagonal; the diagonal must be full."""
        return self.facts[:3]

    def with_values(self, data) -> CSR:
        """The same pattern, with its analyses, and other values (nnz,)."""
        return self._like(self.indptr, self.indices, data, self.diag)

    def with_index(self, index) -> CSR:
        """The same matrix with index arrays of this type; itself if they are."""
        if self.indices.dtype == index:
            return self
        return self._like(self.indptr.astype(index), self.indices.astype(index), self.data, self.diag.astype(index))

    def copy(self) -> CSR:
        """A copy of the matrix, with its analyses, in arrays of its own."""
        other = self._like(*(part.copy() for part in (self.indptr, self.indices, self.data, self.diag)))
        other.__dict__.pop("owned", None)  # the caller of `copy` has the arrays
        return other

    def owning(self) -> CSR:
        """The matrix itself, marked as one whose pattern no caller can change, as no caller has its arrays."""
        self.__dict__["owned"] = True
        return self

    def with_own_pattern(self) -> CSR:
        """The same matrix with a pattern of its own, so that a caller may change A in place; itself if it has one, and
        on a GPU, where CuPy changes no pattern in place."""
        if on_gpu(self.data) or "owned" in self.__dict__:
            return self
        own, copy = (np.empty_like(self.indptr), np.empty_like(self.indices)), kernels_for(self.data).vectors.copy
        copy(self.indptr, own[0])
        copy(self.indices, own[1])
        return self._like(*own, self.data, self.diag).owning()

    def on(self, xp) -> CSR:
        """The same matrix, with its analyses, in the memory of xp, numpy or cupy; itself if it is there. Cost: a copy
        between the two."""
        if xp is namespace(self.data):
            return self
        move = to_host if on_gpu(self.data) else xp.asarray
        return self._like(*(move(part) for part in (self.indptr, self.indices, self.data, self.diag)))

    def same_pattern(self, other: CSR) -> bool:
        """Whether `other` stores entries at the same places (and on the same device)."""
        if self.nnz != other.nnz or self.n != other.n or on_gpu(self.data) != on_gpu(other.data):
            return False
        if self.indices is other.indices and self.indptr is other.indptr:
            return True
        same, other = kernels_for(self.data).inspection.same, other.with_index(self.indices.dtype)
        return bool(same(self.indptr, other.indptr) and same(self.indices, other.indices))

    def tosparse(self) -> Any:
        """The scipy.sparse or cupyx.scipy.sparse CSR matrix with these arrays (no copy)."""
        return sparse_module(self.data).csr_matrix((self.data, self.indices, self.indptr), shape=self.shape)


def narrowed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of single precision in which values of this one may be stored, real or complex as it is."""
    return np.dtype(np.complex64 if dtype.kind == "c" else np.float32)


def require_indices(what: str, total: int, dtype) -> None:
    """A MatrixError if these are more entries than integers of `dtype` count."""
    if total > np.iinfo(dtype).max:
        raise MatrixError(f"{what} would have {total} entries, more than its {dtype} indices count; take larger parts.")


class BatchPlan(NamedTuple):
    """How each matrix of one pattern is factored: the pattern of L + U, and which entries of A come there.

    indptr (n + 1,), indices (m,), diag (n,) : the pattern, rows sorted, and the places of its diagonal.
    places (m,), weights (m,) : entry p begins as weights[p] a[places[p]]; weights[p] is 0 where A has no entry.
    rows (n,), columns (n,) : row i and column j of L U are those of A with the numbers rows[i] and columns[j].
    row_scale (n,), column_scale (n,) : L U is the permuted diag(row_scale) A diag(column_scale); both in that order.
    Indices int32, weights and scales in the real dtype of A; on the device of A.
    """

    indptr: Any
    indices: Any
    diag: Any
    places: Any
    weights: Any
    rows: Any
    columns: Any
    row_scale: Any
    column_scale: Any


@dataclass(frozen=True, eq=False)
class Triangle:
    """The strict triangle of a sparse matrix, within the arrays of the whole matrix, and its diagonal.

    n : rows.  begin, end (n,) : row i has the places begin[i] <= p < end[i] of indices, columns ascending.
    reverse : rows are visited n - 1, ..., 0 (an upper triangle) instead of 0, ..., n - 1.
    diag (n,) : the place of D_ii in the values, or None for a unit diagonal.
    source : None if the value of place p is values[p]; else (len(indices),) and it is values[source[p]].
    conjugate : values, the diagonal too, are conjugated (trans="H").
    entries : number of strict entries, the sum of end - begin.  longest : the most entries of a row.
    dtype : of the values.
    """

    n: int
    begin: Any
    end: Any
    indices: Any
    reverse: bool
    diag: Any
    source: Any
    conjugate: bool
    entries: int
    longest: int
    dtype: Any


class Factored(NamedTuple):
    """The result of ILUT or ICT, also if it stopped early.

    rows : the number of finished rows (ICT: columns); n if all.
    stored : the number of their entries. If it exceeds the allowed `most`, this is why the factorization stopped.
        Otherwise row `rows` stopped it: its pivot is `pivot` (NaN if a multiplier was not finite), or one of its
        entries is Inf. On a GPU `stored` may include rows after the bad one; if the limit was exceeded, `rows` is n /
        2.
    indptr (n + 1,), indices, data (stored,), diag (n,) : L below and U on and above the diagonal, or the Cholesky
        factor by rows, sorted, indices of A's dtype; empty if it stopped.
    """

    rows: int
    stored: int
    pivot: Any
    indptr: Any
    indices: Any
    data: Any
    diag: Any


@dataclass(frozen=True, eq=False)
class Couplings:
    """A Z, with m vectors Z a part, by couplings: a coupling is a pair of a part of rows and a part of vectors.

    starts (parts + 1,) : part p of rows has the couplings starts[p] <= c < starts[p + 1], by ascending parts of
    vectors.
    ends (couplings + 1,) : coupling c has the entries ends[c] <= e < ends[c + 1].
    rows (entries,) : the row of each entry as a position within its part, from 0 on; uint16, int32 on the CPU
        where a part has more rows than that counts.
    of_rows (entries,) : the row of A of each entry.
    vectors (entries,) : the part of vectors of each entry; None on a GPU, where no kernel reads it.
    values (entries, m).
    vector_starts (parts + 1,), members (couplings,) : part q of vectors has the couplings members[k], ascending, for
        vector_starts[q] <= k < vector_starts[q + 1].
    Integers are int32.
    """

    starts: Any
    ends: Any
    rows: Any
    of_rows: Any
    vectors: Any
    values: Any
    vector_starts: Any
    members: Any

    @cached_property
    def bounds(self) -> Any:
        """(parts + 1,) : the entries of part p of rows are bounds[p] <= e < bounds[p + 1]."""
        return self.ends[self.starts]


@dataclass(frozen=True, eq=False)
class Correction:
    """A coarse component Z q of a solve with the parts: r - A Z q stands for r, and if `added`, Z q is added to x.

    products : A Z, of `coarse_products`; None on the CPU unless parts overlap.  couplings : the same, of `couple`.
    q : (parts * m,), or (parts * m, k).
    parts (n,) : the part of each row, whose vectors are rows of Z (n, m); None for one column of ones.
    """

    products: Any
    couplings: Couplings
    q: Any
    parts: Any
    Z: Any
    added: bool


@dataclass(frozen=True, eq=False)
class Sums:
    """Additional sums of a solve x = M^-1 r with the parts, for the coarse space, in arrays of x's dtype.

    of (couplings, m) : the sums of conj(v) x over the entries of each coupling.  restricted (parts * m,) : Z^H r.
    dots (parts,) : r^H x of each part.
    Z (n, m) : the vectors by positions, or None for the constant.  conjugate : whether v and Z are.
    """

    couplings: Couplings
    Z: Any
    conjugate: bool
    of: Any
    restricted: Any
    dots: Any
