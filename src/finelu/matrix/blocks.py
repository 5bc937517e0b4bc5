"""Block matrices of any pattern: BSR arrays on either device, checked once."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from finelu.device import as_any_other, namespace, on_gpu, sparse_module, synchronize
from finelu.errors import DeviceError, MatrixError, counted
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, INT32_LIMIT
from finelu.matrix.door import as_csr
from finelu.matrix.products import BlockProducts
from finelu.matrix.vectors import DTYPES, all_finite, as_dtype


class Sweep(NamedTuple):
    """The pattern of a block triangular solve: row i has the columns indices[indptr[i]:indptr[i + 1]], `places` are the
    indices of their blocks in the data, and `diag` those of the diagonal blocks."""

    indptr: Any
    indices: Any
    places: Any
    diag: Any


class BlockPattern:
    """The pattern of a block matrix, with its analyses; matrices with other values share it.

    indptr (rows + 1,), indices (nb,) : as in `BlockMatrix`, checked.
    """

    def __init__(self, indptr: Any, indices: Any) -> None:
        self.indptr, self.indices = indptr, indices

    @property
    def rows(self) -> int:
        return int(self.indptr.size) - 1

    def row_of(self) -> Any:
        """The block row (nb,) of each block."""
        xp = namespace(self.indices)
        places = xp.arange(self.indices.size, dtype=self.indices.dtype)
        return (xp.searchsorted(self.indptr, places, side="right") - 1).astype(self.indices.dtype)

    @cached_property
    def diag(self) -> Any:
        """The place (rows,) of the diagonal block of each row, -1 where none is stored."""
        return self._ready(self._diagonal(self.row_of(), self.indices))

    def _diagonal(self, rows: Any, columns: Any) -> Any:
        xp = namespace(columns)
        diag = xp.full(self.rows, -1, columns.dtype)
        where = xp.flatnonzero(rows == columns)
        diag[rows[where]] = where
        return diag

    @cached_property
    def missing(self) -> tuple[int, int]:
        """The number of block rows without a stored diagonal block, and the first of them or -1."""
        where = namespace(self.indices).flatnonzero(self.diag < 0)
        return int(where.size), int(where[0]) if where.size else -1

    def sweep(self, trans: str) -> Sweep:
        """The pattern of a solve with the matrix ("N") or with its transpose ("T", "H"), made at the first call."""
        return self._plain if trans == "N" else self.transposed

    @cached_property
    def _plain(self) -> Sweep:
        places = namespace(self.indices).arange(self.indices.size, dtype=self.indices.dtype)
        return Sweep(self.indptr, self.indices, self._ready(places), self.diag)

    @cached_property
    def transposed(self) -> Sweep:
        """Row i lists the rows j that have a block in column i, ascending; block (j, i) lies at `places`. A sort."""
        xp, index = namespace(self.indices), self.indices.dtype
        rows = self.row_of()
        places = xp.argsort(self.indices.astype(np.int64) * self.rows + rows)
        columns = self.indices[places]
        indptr = xp.searchsorted(columns, xp.arange(self.rows + 1, dtype=index)).astype(index)
        indices = rows[places]
        return Sweep(indptr, indices, places.astype(index), self._ready(self._diagonal(columns, indices)))

    def same(self, other: BlockPattern) -> bool:
        """Whether the blocks of `other` have the same places (and device)."""
        if self.rows != other.rows or self.indices.size != other.indices.size:
            return False
        if on_gpu(self.indices) != on_gpu(other.indices):
            return False
        if self.indices is other.indices and self.indptr is other.indptr:
            return True
        xp = namespace(self.indices)
        same = xp.array_equal(self.indptr, other.indptr) & xp.array_equal(self.indices, other.indices)
        return bool(same)

    @staticmethod
    def _ready(array: Any) -> Any:
        """`array`, after waiting for it: another thread may use it on another stream."""
        synchronize(array)
        return array


class BlockMatrix(BlockProducts):
    """A in blocks of n x n numbers at any places: block compressed sparse rows (BSR), square.

    data (nb, n, n) : the blocks, float32, float64, complex64 or complex128 (integers become float64), NumPy or CuPy.
    indices (nb,), indptr (rows + 1,) : integers. Block row i has the blocks indptr[i] <= p < indptr[i + 1], and block
        p is in block column indices[p].
    The three are on one device. They are kept without a copy if data is C-contiguous, and the indices are int32 (int64
    if needed), sorted and without duplicates; otherwise a sorted copy is made, with duplicates added. finelu never
    writes to them, and the caller should not either.
    Raises MatrixError for shapes that do not fit, corrupt indices, and, naming block row and column, NaN and Inf.

    Has shape, dtype, nnz, `@`, matvec and rmatvec, so that Krylov methods take it as A. Cost of a product: one pass
    over the blocks for each column of x.
    """

    def __init__(self, data: Any, indices: Any, indptr: Any) -> None:
        data, indices, indptr = (v if on_gpu(v) else as_any_other(np.asarray(v)) for v in (data, indices, indptr))
        if not on_gpu(data) == on_gpu(indices) == on_gpu(indptr):
            raise DeviceError("data, indices and indptr are on different devices; move them to one.")
        xp = namespace(data)
        if data.ndim != 3 or data.shape[1] != data.shape[2] or data.shape[1] == 0:
            raise MatrixError(f"data has shape {data.shape}; (nb, n, n) is needed: nb square blocks.")
        if str(data.dtype) not in DTYPES:
            if data.dtype.kind not in "biu":
                raise MatrixError(
                    f"data has dtype {data.dtype}; one of {', '.join(DTYPES)} is needed (integers become float64)."
                )
            data = data.astype(np.float64)
        indptr, indices = _checked_pattern(xp, indptr, indices, data.shape[0])
        pattern = BlockPattern(indptr, indices)
        data = data[: indices.size]
        key = pattern.row_of().astype(np.int64) * pattern.rows + indices
        if not bool((key[1:] > key[:-1]).all()):
            pattern, data = _sorted_copy(xp, pattern, key, data)
        self.pattern, self.data = pattern, xp.ascontiguousarray(data)
        if not all_finite(self.data):
            finite = xp.isfinite(self.data).all(axis=(1, 2))
            place = int(xp.argmin(finite))
            row, count = int(pattern.row_of()[place]), int((~finite).sum())
            raise MatrixError(
                f"data holds NaN or Inf in the block of block row {row} and column {int(pattern.indices[place])} "
                f"({counted(count, 'such block')}); find where they come from before solving."
            )
        self._wider: dict[np.dtype, BlockMatrix] = {}

    @classmethod
    def _of(cls, data: Any, pattern: BlockPattern) -> BlockMatrix:
        """A BlockMatrix of arrays that are known to be valid."""
        matrix = cls.__new__(cls)
        matrix.data, matrix.pattern, matrix._wider = data, pattern, {}
        return matrix

    @classmethod
    def from_bsr(cls, B: Any) -> BlockMatrix:
        """The BlockMatrix of a scipy.sparse BSR matrix or array with square blocks; sorted, and duplicates added, in a
        copy."""
        if getattr(B, "format", None) != "bsr":
            raise MatrixError(f"B is a {type(B).__name__}; a scipy.sparse BSR matrix is needed, or use from_csr(B, n).")
        if B.blocksize[0] != B.blocksize[1]:
            raise MatrixError(
                f"B has blocks of {B.blocksize[0]} x {B.blocksize[1]}; square ones are needed: B.tocsr().tobsr((n, n))."
            )
        _require_square(B.shape, "B")
        return cls(B.data, B.indices, B.indptr)

    @classmethod
    def from_csr(cls, A: Any, n: int) -> BlockMatrix:
        """A, in any form that `as_csr` takes, cut into n x n blocks on its device; missing entries of a block are zero.

        Raises MatrixError if n does not divide the order of A, and as `as_csr` does. Cost: one pass over the entries on
        the CPU, a sort of them on the GPU.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise MatrixError(f"n={n!r}; the size of the blocks, an integer from 1 on, is needed.")
        A = as_csr(A, diagonal=False)
        if A.n % n:
            raise MatrixError(
                f"A has {A.n} rows, which is not a multiple of the block size {n}; choose one that divides it."
            )
        if not on_gpu(A.data):
            return cls.from_bsr(A.tosparse().tobsr((int(n), int(n))))
        return cls._of(*_cut(namespace(A.data), A, int(n)))

    @property
    def indptr(self) -> Any:
        return self.pattern.indptr

    @property
    def indices(self) -> Any:
        return self.pattern.indices

    @property
    def diag(self) -> Any:
        """The place (rows,) of the diagonal block of each row in data, -1 where none is stored."""
        return self.pattern.diag

    @property
    def rows(self) -> int:
        """Block rows."""
        return self.pattern.rows

    @property
    def shape(self) -> tuple[int, int]:
        size = self.rows * self.n_block
        return (size, size)

    @property
    def nnz(self) -> int:
        """Entries of the stored blocks, zeros among them."""
        return int(self.data.size)

    @property
    def T(self) -> BlockMatrix:
        """A^T as a BlockMatrix of its own."""
        t = self.pattern.transposed
        data = namespace(self.data).ascontiguousarray(self.data[t.places].transpose(0, 2, 1))
        return BlockMatrix._of(data, BlockPattern(t.indptr, t.indices))

    def astype(self, dtype: Any) -> BlockMatrix:
        """This matrix in another dtype; itself if the dtype is the same."""
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self
        if dtype.name not in DTYPES or (self.dtype.kind == "c" and dtype.kind != "c"):
            raise MatrixError(f"a BlockMatrix of dtype {self.dtype} cannot be made one of {dtype}.")
        return self.with_values(as_dtype(self.data, dtype))

    def with_values(self, data: Any) -> BlockMatrix:
        """This pattern, with its analyses, and other blocks (nb, n, n), which are not checked."""
        return BlockMatrix._of(data, self.pattern)

    def same_pattern(self, other: BlockMatrix) -> bool:
        """Whether the blocks of `other` have the same size and places (and are on the same device)."""
        return self.n_block == other.n_block and self.pattern.same(other.pattern)

    def _product(self, x: Any, b: Any, out: Any) -> None:
        kernels_for(self.data).blocks.bsr_residual(self.indptr, self.indices, self.data, x, b, out)

    def to_bsr(self) -> Any:
        """A as a scipy.sparse.bsr_matrix that shares its arrays. For a matrix on the GPU it raises DeviceError; use
        `tocsr`."""
        if on_gpu(self.data):
            raise DeviceError("CuPy has no BSR format; use tocsr(), or move the blocks to the host first.")
        return sp.bsr_matrix((self.data, self.indices, self.indptr), shape=self.shape)

    @cached_property
    def most_in_row(self) -> int:
        indptr = self.pattern.indptr
        return int((indptr[1:] - indptr[:-1]).max()) * self.n_block

    def bounds(self) -> tuple[int, float, float]:
        """The most entries of a row, and upper bounds of the sums of magnitudes of a row and of a column."""
        P, xp = self.pattern, namespace(self.data)
        sums = []
        for places, axis in ((P.row_of(), 2), (P.indices, 1)):
            by_block = abs(self.data).sum(axis=axis).max(axis=1).astype(np.float64)
            sums.append(float(xp.bincount(places, weights=by_block, minlength=1).max()))
        return self.most_in_row, sums[0], sums[1]

    def tocsr(self) -> Any:
        """A as a scipy.sparse or cupyx.scipy.sparse csr_matrix, sorted; every entry of a block is stored."""
        xp, n = namespace(self.data), self.n_block
        index = np.int32 if max(self.shape[0], self.nnz) <= INT32_LIMIT else np.int64
        row = self.pattern.row_of()
        begin = self.indptr.astype(np.int64)
        length = begin[1:] - begin[:-1]
        within = xp.arange(n)
        # Entry (u, v) of the e-th of m blocks of a row lies behind the n n entries of each block of the rows before,
        # u rows of m blocks, e blocks and v entries.
        e = xp.arange(row.size) - begin[row]
        first = (n * begin[row] + e)[:, None] + within * length[row][:, None]
        place = (n * first[:, :, None] + within).reshape(-1)
        data, indices = xp.empty(place.size, self.dtype), xp.empty(place.size, index)
        data[place] = self.data.reshape(-1)
        columns = (n * self.indices.astype(index))[:, None, None] + within.astype(index)
        indices[place] = xp.broadcast_to(columns, self.data.shape).reshape(-1)
        starts = n * n * begin[:-1, None] + n * length[:, None] * within
        indptr = xp.append(starts.reshape(-1), xp.asarray([place.size])).astype(index)
        return sparse_module(data).csr_matrix((data, indices, indptr), shape=self.shape)

    def __repr__(self) -> str:
        device = "GPU" if on_gpu(self.data) else "CPU"
        return f"BlockMatrix({self.rows} rows, {self.data.shape[0]} blocks, n={self.n_block}, {self.dtype}, {device})"


def _require_square(shape: Any, name: str) -> None:
    if shape[0] != shape[1]:
        raise MatrixError(f"{name} has shape {shape}; a square matrix is needed.")
    if shape[0] == 0:
        raise MatrixError(f"{name} is empty (0 x 0); there is nothing to solve.")


def _checked_pattern(xp: Any, indptr: Any, indices: Any, blocks: int) -> tuple[Any, Any]:
    """indptr and indices in the index type that the matrix needs, or a MatrixError that names the fault."""
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise MatrixError(f"{name} has dtype {array.dtype} and shape {array.shape}; a row of integers is needed.")
    if indptr.size < 2:
        raise MatrixError("A is empty (0 block rows); there is nothing to solve.")
    rows = indptr.size - 1
    index = np.int32 if max(rows, indices.size) <= INT32_LIMIT else np.int64
    length = indptr[1:].astype(np.int64) - indptr[:-1]
    last = int(indptr[-1])
    if int(indptr[0]) != 0 or not bool((length >= 0).all()) or last > min(indices.size, blocks):
        raise MatrixError(
            f"indptr must begin with 0, never descend, and end within the {min(indices.size, blocks)} blocks; it goes "
            f"from {int(indptr[0])} to {last}{'' if bool((length >= 0).all()) else ' and descends'}."
        )
    indices = indices[:last]  # as in SciPy, where the arrays may be longer than the pattern
    wrong = (indices < 0) | (indices >= rows)
    if bool(wrong.any()):
        place = int(xp.argmax(wrong))
        row = int((indptr <= place).sum()) - 1
        raise MatrixError(
            f"indices holds the block column {int(indices[place])} in block row {row}, but A has {rows} block rows "
            "(and is square)."
        )
    return indptr.astype(index, copy=False), indices.astype(index, copy=False)


def _cut(xp: Any, A: CSR, n: int) -> tuple[Any, Any]:
    """The n x n blocks with entries of A, and their pattern, by a sort; SciPy's tobsr on either device."""
    rows = A.n // n
    row = BlockPattern(A.indptr, A.indices).row_of().astype(np.int64)
    key, block = xp.unique((row // n) * rows + A.indices // n, return_inverse=True)
    data = xp.zeros((key.size, n, n), A.dtype)
    data[block.reshape(-1), row % n, A.indices % n] = A.data
    return data, _pattern_of(xp, key, rows)


def _pattern_of(xp: Any, key: Any, rows: int) -> BlockPattern:
    """The pattern of the sorted numbers row * rows + column."""
    index = np.int32 if max(rows, key.size) <= INT32_LIMIT else np.int64
    indptr = xp.searchsorted(key, xp.arange(rows + 1) * rows).astype(index)
    return BlockPattern(indptr, (key % rows).astype(index))


def _sorted_copy(xp: Any, pattern: BlockPattern, key: Any, data: Any) -> tuple[Any, Any]:
    """The same blocks in ascending order; blocks at the same place are added in their order."""
    order = xp.lexsort(xp.stack([xp.arange(key.size), key]))
    key = key[order]
    first = xp.concatenate([xp.ones(1, bool), key[1:] > key[:-1]])
    begin = xp.flatnonzero(first)
    group = xp.cumsum(first) - 1
    turn = xp.arange(key.size) - begin[group]  # the number of earlier blocks at the place
    added = data[order[begin]]
    for k in range(1, int(turn.max()) + 1):
        now = turn == k
        added[group[now]] += data[order[now]]
    return _pattern_of(xp, key[begin], pattern.rows), added
