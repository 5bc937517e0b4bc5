"""The arrangement of a matrix: its rows and columns in another order, and scaled."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools

from finelu.device import namespace
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.recent import MOST, RECENT

TILE = 256  # rows that are moved at a time into an array in the order of Fortran, so that they stay in the cache
FEW = 1000  # entries up to which the transpose is not kept: it is made in 2 to 5 us, and to keep it takes 12
PART = 8  # of the bytes that are kept of all patterns: the transpose of one takes at most this part


def by_columns_in_memory(R: Any, rows: Any = None) -> Any:
    """R (n,) or (n, k) on the host, or R[rows] with `rows` (m,), in the order of Fortran; R itself if it is so.

    Cost: for many rows in the order of C a quarter of the time of `np.asfortranarray`.
    """
    if R.ndim == 1 or R.flags.f_contiguous:
        return np.asfortranarray(R) if rows is None else np.take(R.T, rows, axis=-1).T
    m = R.shape[0] if rows is None else rows.size
    found = np.empty((m, R.shape[1]), R.dtype, order="F")
    for i in range(0, m, TILE):
        found[i : i + TILE] = R[i : i + TILE] if rows is None else R[rows[i : i + TILE]]
    return found


class Transposed(NamedTuple):
    """The pattern by columns, sorted: column j has rows[starts[j]:starts[j + 1]], and the values of its entries are
    data[places[p]]. They are shared: no caller writes to these arrays. Of a symmetric pattern only the places are kept;
    the rest is its own."""

    starts: Any
    rows: Any
    places: Any


def transposed(indptr: Any, indices: Any) -> Transposed:
    """The transpose of a square pattern, from its arrays (n + 1,) and (nnz,) of one dtype.

    Cost: a comparison of the pattern if its transpose is kept, else some passes over it.
    """
    kind = "transposed", indices.dtype.char  # a pattern equals one of another dtype
    few = indices.size <= FEW
    kept: Transposed | None = None if few else RECENT.get(kind, indptr, indices)
    if kept is not None:
        return kept if kept.rows is not None else Transposed(indptr, indices, kept.places)
    n, nnz, index = indptr.size - 1, indices.size, indices.dtype
    found = Transposed(np.empty(n + 1, index), np.empty(nnz, index), np.empty(nnz, index))
    _sparsetools.csr_tocsc(n, n, indptr, indices, np.arange(nnz, dtype=index), *found)
    if few:
        return found
    symmetric = np.array_equal(found.starts, indptr) and np.array_equal(found.rows, indices)
    kept = Transposed(None, None, found.places) if symmetric else found
    size = sum(part.nbytes for part in kept if part is not None)
    if PART * (size + indptr.nbytes + indices.nbytes) <= MOST:
        RECENT.keep(kind, indptr, indices, kept, size, light=True)
    return found


class Columns(NamedTuple):
    """A matrix by columns, sorted, with 32-bit indices on the host: the arrays of a scipy.sparse.csc_matrix, without
    SciPy's checks of them, which take as long as a small factorization."""

    indptr: np.ndarray[Any, Any]
    indices: np.ndarray[Any, Any]
    data: np.ndarray[Any, Any]
    shape: tuple[int, int]

    @property
    def nnz(self) -> int:
        return self.data.size

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    def tosparse(self) -> Any:
        """The scipy.sparse.csc_matrix with these arrays (no copy)."""
        S = sp.csc_matrix((self.data, self.indices, self.indptr), shape=self.shape)
        S.has_canonical_format = True
        return S


@dataclass(frozen=True, eq=False)
class Arrangement:
    """P_r D_r A D_c P_c, whose row i and column j are rows[i] and columns[j] of A, scaled.

    rows, columns (n,) : integers; both None for the order of A without scaling.
    row_scale, column_scale (n,) : reals in the order of the arranged matrix; both None without scaling. All are on one
        device.
    To solve with A: `gather_scaled`, a solve with the arranged matrix, `scatter_scaled`.
    """

    rows: Any = None
    columns: Any = None
    row_scale: Any = None
    column_scale: Any = None

    def gather_scaled(self, R: Any, trans: str = "N") -> Any:
        """P_r D_r R, or P_c^T D_c R for a transpose: a right-hand side (n,) or (n, k) of the arranged matrix; R
        itself in the order of A."""
        rows, scale = (self.rows, self.row_scale) if trans == "N" else (self.columns, self.column_scale)
        if rows is None:
            return R
        return R[rows] if scale is None else kernels_for(R).vectors.gather_scaled(rows, scale, R)

    def scatter_scaled(self, s: Any, trans: str = "N", minus: Any = None, rest: Any = None) -> Any:
        """D_c P_c x, or D_r P_r^T x for a transpose, in the order of A; x is s, or with a scaling (s - minus, rest).

        minus : None for 0.  rest : the rows of x below s; None if there are no such rows.
        In the order of A the result is s itself, and the others are None.
        """
        places, scale = (self.columns, self.column_scale) if trans == "N" else (self.rows, self.row_scale)
        if places is None:
            return s
        if scale is not None:
            return kernels_for(s).vectors.scatter_scaled(places, scale, s, minus, rest)
        x = namespace(s).empty(s.shape, s.dtype)
        x[places] = s
        return x

    def matrix(self, A: CSR) -> Any:
        """The arranged matrix, scipy.sparse CSR, of an A on the host; rows are scaled before columns."""
        S = sp.csr_matrix(A.tosparse())
        if self.rows is None:
            return S
        if self.row_scale is not None:
            row_scale, column_scale = np.empty_like(self.row_scale), np.empty_like(self.column_scale)
            row_scale[self.rows], column_scale[self.columns] = self.row_scale, self.column_scale
            S.data = S.data * np.repeat(row_scale, np.diff(S.indptr)) * column_scale[S.indices]
        return S[self.rows][:, self.columns]

    def by_columns(self, A: CSR) -> Columns:
        """As `matrix`, but by columns, in new arrays."""
        if self.rows is None:
            if A.is_known_to_be_symmetric:  # its rows are its columns
                return Columns(A.indptr.astype(np.int32), A.indices.astype(np.int32), A.data.copy(), A.shape)
            if A.indices.dtype != np.int32:
                A = A.with_index(np.int32)
            known = transposed(A.indptr, A.indices)
            return Columns(known.starts.copy(), known.rows.copy(), A.data.take(known.places), A.shape)
        starts, places = np.empty(A.n + 1, np.int32), np.empty(A.nnz, np.int32)
        values = np.empty(A.nnz, A.dtype)
        ones = np.ones(A.n, A.data.real.dtype) if self.row_scale is None else None
        scales = (self.row_scale, self.column_scale) if ones is None else (ones, ones)
        order = self.rows, self.columns, *scales
        kernels_for(values).graph.arranged_columns(A.indptr, A.indices, A.data, *order, starts, places, values)
        return Columns(starts, places, values, A.shape)

    def row(self, i: int) -> int:
        """The row of A that is row i of the arranged matrix."""
        return i if self.rows is None else int(self.rows[i])

    def ordered(self, order: Any) -> Arrangement:
        """The arrangement whose row and column k are row and column order[k] of this one."""
        if self.rows is None:
            return Arrangement(order, order)
        parts = self.rows, self.columns, self.row_scale, self.column_scale
        return Arrangement(*(None if part is None else part[order] for part in parts))

    def on(self, xp: ModuleType) -> Arrangement:
        """This arrangement in the memory of xp, numpy or cupy; from the host to a GPU."""
        parts = (self.rows, self.columns, self.row_scale, self.column_scale)
        return Arrangement(*(None if part is None else xp.asarray(part) for part in parts))
