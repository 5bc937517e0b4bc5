"""What kernels take and return, on either device: `CSR`; `Triangle`, a triangle within the arrays of a matrix; what a
threshold factorization has found; what a coarse space asks of the solves with subdomains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from finelu.device import namespace, on_gpu, sparse_module, to_host
from finelu.errors import MatrixError
from finelu.kernels import kernels_for

INT32_LIMIT = 2**31 - 2**13  # what kernels step beyond the last place still fits
KNOWN = ("missing", "facts", "longest_column")  # of the pattern, once they were asked for

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

    @property
    def n(self) -> int:
        return self.indptr.size - 1

    @property
    def shape(self) -> tuple[int, int]:
        return (self.n, self.n)

    @property
    def nnz(self) -> int:
        return self.data.size

    @property
    def dtype(self):
        return self.data.dtype

    @cached_property
    def missing(self) -> int:
        """How many diagonal entries are not stored."""
        return int((self.diag < 0).sum())

    @cached_property
    def facts(self) -> tuple[int, int, int, int]:
        """The most entries of a row, below and above the diagonal; all entries below it. The diagonal must be full."""
        return kernels_for(self.data).pattern.facts(self)

    def mirrored(self) -> Mirrored:
        """What A has in common with its transpose; see reference/inspection.py. Found anew, as values may have changed,
        except for what `unchanged` was given."""
        known = self.__dict__.get("_mirrored")
        return known or kernels_for(self.data).inspection.mirrored(self.indptr, self.indices, self.data, self.diag)

    @contextmanager
    def unchanged(self, mirrored: Mirrored) -> Iterator[None]:
        """In this block the values are not written to, so that `mirrored` gives this without looking."""
        self.__dict__["_mirrored"] = mirrored
        try:
            yield
        finally:
            self.__dict__.pop("_mirrored", None)  # another thread may have been first

    @property
    def below(self) -> int:
        """How many entries are stored below the diagonal; of a matrix whose diagonal is full."""
        return self.facts[3]

    @property
    def longest(self) -> tuple[int, int, int]:
        """The most entries of a row, below and above the diagonal; of a matrix whose diagonal is full."""
        return self.facts[:3]

    def with_values(self, data) -> CSR:
        """The same pattern, with its analyses, and other values (nnz,)."""
        other = CSR(self.indptr, self.indices, data, self.diag)
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k in KNOWN})
        return other

    def with_index(self, index) -> CSR:
        """The same matrix with index arrays of this type; itself if they are."""
        if self.indices.dtype == index:
            return self
        other = CSR(self.indptr.astype(index), self.indices.astype(index), self.data, self.diag.astype(index))
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k in KNOWN})
        return other

    def copy(self) -> CSR:
        """A copy of the matrix, with its analyses, in arrays of its own."""
        other = CSR(*(part.copy() for part in (self.indptr, self.indices, self.data, self.diag)))
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k in KNOWN})
        return other

    def with_own_pattern(self) -> CSR:
        """The same matrix with a pattern of its own, which a caller who changes A in place does not change; itself on a
        GPU, where CuPy changes no pattern in place."""
        if on_gpu(self.data):
            return self
        other = CSR(self.indptr.copy(), self.indices.copy(), self.data, self.diag)
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k in KNOWN})
        return other

    def on(self, xp) -> CSR:
        """The same matrix, with its analyses, in the memory of xp, numpy or cupy; itself if it is there. Cost: a copy
        between the two."""
        if xp is namespace(self.data):
            return self
        move = to_host if on_gpu(self.data) else xp.asarray
        other = CSR(*(move(part) for part in (self.indptr, self.indices, self.data, self.diag)))
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k in KNOWN})
        return other

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


def require_indices(what: str, total: int, dtype) -> None:
    """A MatrixError if these are more entries than integers of `dtype` count."""
    if total > np.iinfo(dtype).max:
        raise MatrixError(f"{what} would have {total} entries, more than its {dtype} indices count; take larger parts.")


@dataclass(frozen=True, eq=False)
class Triangle:
    """The strict triangle of a sparse matrix, where it lies in another's arrays, and its diagonal.

    n : rows.  begin, end (n,) : row i owns places begin[i] <= p < end[i] of indices, columns ascending.
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
    """What came out of ILUT or ICT, also where it stopped early.

    rows : how many rows (of ICT: columns) were finished; n if all.
    stored : how many entries they have; more than the `most` that were allowed: this is why it stopped, else because
        of row `rows`: its pivot is `pivot` (NaN if a multiplier was not finite already), or one of its entries is Inf.
        On a GPU rows behind a bad one may have been made, too, and count in `stored`, and of too many entries half of
        the rows are said to be finished.
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
    """A Z, with m vectors Z a part, by pairs of parts that it couples: a coupling is a part of rows and one of vectors.

    starts (parts + 1,) : those of part p of rows are starts[p] <= c < starts[p + 1], their parts of vectors ascending.
    ends (couplings + 1,) : coupling c has the entries ends[c] <= e < ends[c + 1].
    rows (entries,) : its row as a position within the part, from 0 on; uint16 on a GPU.  of_rows (entries,) : its row
        of A.  values (entries, m).
    vector_starts (parts + 1,), members (couplings,) : those of part q of vectors are members[k], ascending, for
        vector_starts[q] <= k < vector_starts[q + 1].
    Integers are int32.
    """

    starts: Any
    ends: Any
    rows: Any
    of_rows: Any
    values: Any
    vector_starts: Any
    members: Any


@dataclass(frozen=True, eq=False)
class Sums:
    """What a solve x = M^-1 r with the parts of a coarse space adds up besides, into arrays of x's dtype.

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
