"""Block matrices on the 7-point stencil of a structured grid, without index arrays.

L. Luo, J. R. Edwards, H. Luo, F. Mueller: A fine-grained block ILU scheme on regular structures for GPGPUs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.device import as_any_other, namespace, on_gpu, sparse_module, to_host
from finelu.errors import DeviceError, MatrixError
from finelu.kernels import kernels_for
from finelu.kernels.operands import INT32_LIMIT
from finelu.matrix.products import BlockProducts
from finelu.matrix.vectors import DTYPES, all_finite, as_dtype

# the neighbours of a cell, in the order of its blocks
OFFSETS = ((0, 0, -1), (0, -1, 0), (-1, 0, 0), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
WIDE = 8  # n, above which a row of a block is long enough to be summed by itself
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta")


class StencilMatrix(BlockProducts):
    """A with n unknowns a cell on an I x J x K grid, each cell coupled to itself and its six neighbours.

    blocks : (7, I, J, K, n, n), NumPy or CuPy, float32, float64, complex64 or complex128 (integers become float64):
        for cell (i, j, k) the blocks alpha (of k-1), beta (j-1), gamma (i-1), delta (the cell itself), epsilon (i+1),
        zeta (j+1) and eta (k+1). Two dimensions: K = 1; one: J = K = 1. A valid C-contiguous array is kept without a
        copy; finelu never writes to it, and the caller should not either.
    periodic : whether the grid closes on itself along i, j and k. If it does not, blocks that point outside are
        ignored, whatever they hold: if one is not zero, `blocks` is a copy in which all of these are zero.
    Raises MatrixError for a wrong shape or dtype, and, naming block and cell, for NaN and Inf.

    Cell (i, j, k) has the unknowns x[p:p + n], p = ((i J + j) K + k) n. Has shape, dtype, nnz, `@`, matvec and
    rmatvec, so that Krylov methods take it as A. Cost of a product: one pass over the blocks for each column of x.
    """

    _at_one_place = 7  # on a closed grid of one cell

    def __init__(self, blocks: Any, periodic: Any = (False, False, False)) -> None:
        if not on_gpu(blocks):
            blocks = as_any_other(np.asarray(blocks))
        xp = namespace(blocks)
        if blocks.ndim != 6 or blocks.shape[0] != 7 or blocks.shape[4] != blocks.shape[5] or 0 in blocks.shape:
            raise MatrixError(
                f"blocks has shape {blocks.shape}; (7, I, J, K, n, n) is needed: alpha, beta, gamma, delta, epsilon, "
                "zeta, eta of each cell."
            )
        if str(blocks.dtype) not in DTYPES:
            if blocks.dtype.kind not in "biu":
                raise MatrixError(
                    f"blocks has dtype {blocks.dtype}; one of {', '.join(DTYPES)} is needed (integers become float64)."
                )
            blocks = blocks.astype(np.float64)
        self.periodic: tuple[bool, bool, bool] = _checked_periodic(periodic)
        self.blocks = _without_outside(xp, xp.ascontiguousarray(blocks), self.periodic)
        if not all_finite(self.blocks):
            finite = xp.isfinite(self.blocks).all(axis=(4, 5))
            place, *cell = (int(c) for c in np.unravel_index(int(xp.argmin(finite)), finite.shape))
            count = int((~finite).sum())
            raise MatrixError(
                f"blocks holds NaN or Inf in {NAMES[place]} of cell {tuple(cell)} ({count} such "
                f"{'block' if count == 1 else 'blocks'}); find where they come from before solving."
            )
        self._wider: dict[np.dtype, StencilMatrix] = {}

    @classmethod
    def _of(cls, blocks: Any, periodic: Any) -> StencilMatrix:
        """A StencilMatrix of blocks that are known to be valid."""
        matrix = cls.__new__(cls)
        matrix.blocks, matrix.periodic, matrix._wider = blocks, periodic, {}
        return matrix

    @property
    def shape_cells(self) -> tuple[int, int, int]:
        """(I, J, K)."""
        I, J, K = self.blocks.shape[1:4]
        return I, J, K

    @property
    def cells(self) -> int:
        """I J K."""
        return math.prod(self.shape_cells)

    @property
    def shape(self) -> tuple[int, int]:
        size = self.cells * self.n_block
        return (size, size)

    @property
    def data(self) -> Any:
        """The blocks, under the name that they have in a sparse matrix."""
        return self.blocks

    @property
    def nnz(self) -> int:
        """Entries of the blocks that point inside, zeros among them."""
        I, J, K = self.shape_cells
        faces = (J * K, I * K, I * J)
        outside = sum(2 * face for face, closed in zip(faces, self.periodic, strict=True) if not closed)
        return (7 * self.cells - outside) * self.n_block**2

    @property
    def T(self) -> StencilMatrix:
        """A^T as a StencilMatrix of its own."""
        xp = namespace(self.blocks)
        transposed = xp.empty_like(self.blocks)
        for place, offset in enumerate(OFFSETS):  # (A^T)_cd = (A_dc)^T: the block that d has for c
            other = xp.roll(self.blocks[6 - place], [-o for o in offset], axis=(0, 1, 2))
            transposed[place] = other.transpose(0, 1, 2, 4, 3)
        return StencilMatrix._of(transposed, self.periodic)

    def astype(self, dtype: Any) -> StencilMatrix:
        """This matrix in another dtype; itself if the dtype is the same."""
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self
        if dtype.name not in DTYPES or (self.dtype.kind == "c" and dtype.kind != "c"):
            raise MatrixError(f"a StencilMatrix of dtype {self.dtype} cannot be made one of {dtype}.")
        return StencilMatrix._of(as_dtype(self.blocks, dtype), self.periodic)

    def _product(self, x: Any, b: Any, out: Any) -> None:
        kernels_for(self.blocks).stencil.stencil_residual(self.blocks, self.periodic, x, b, out)

    def _block_pattern(self) -> tuple[Any, Any, Any]:
        """Block rows, columns and places (7 I J K,) of the blocks that point inside, sorted by rows, then columns."""
        xp = namespace(self.blocks)
        shape = self.shape_cells
        cell = xp.arange(self.cells).reshape(shape)
        index = xp.stack(xp.meshgrid(*(xp.arange(s) for s in shape), indexing="ij"))
        rows, columns, places = [], [], []
        for place, offset in enumerate(OFFSETS):
            inside = xp.ones(shape, bool)
            for axis, step in enumerate(offset):
                if step and not self.periodic[axis]:
                    inside &= (index[axis] + step >= 0) & (index[axis] + step < shape[axis])
            rows.append(cell[inside])
            columns.append(xp.roll(cell, [-o for o in offset], axis=(0, 1, 2))[inside])
            places.append(place * self.cells + cell[inside])
        r, c, p = (xp.concatenate(part) for part in (rows, columns, places))
        order = xp.argsort(r * self.cells + c)
        return r[order], c[order], p[order]

    @property
    def most_in_row(self) -> int:
        return 7 * self.n_block

    def bounds(self) -> tuple[int, float, float]:
        """The most entries of a row, and upper bounds of the sums of magnitudes of a row and of a column."""
        rows, columns = self.largest_sums()
        return self.most_in_row, float(rows.sum()), float(columns.sum())

    def largest_sums(self) -> tuple[Any, Any]:
        """The largest sums of magnitudes in a row, and in a column, of a block of each kind: (7,) each, on the host."""
        xp, n = namespace(self.blocks), self.n_block
        if n > WIDE:
            found = [(size.sum(axis=-1).max(), size.sum(axis=-2).max()) for size in map(abs, self.blocks)]
            rows, columns = xp.array([r for r, _ in found]), xp.array([c for _, c in found])
        else:  # one product with ones and zeros: NumPy sums a few numbers slowly
            one = xp.eye(n, dtype=self.blocks.real.dtype)
            adds = xp.concatenate((xp.repeat(one, n, axis=0), xp.tile(one, (n, 1))), axis=1)
            sums = xp.stack([(abs(kind).reshape(-1, n * n) @ adds).max(axis=0) for kind in self.blocks])
            rows, columns = sums[:, :n].max(axis=1), sums[:, n:].max(axis=1)
        return tuple(np.nan_to_num(to_host(sums), nan=np.inf, posinf=np.inf) for sums in (rows, columns))

    def to_bsr(self) -> Any:
        """A as a scipy.sparse.bsr_matrix with n x n blocks, sorted; blocks of a periodic grid that fall on the same
        place (of 1 or 2 cells along an axis) are added. For a matrix on the GPU it raises DeviceError; use `tocsr`.
        """
        if on_gpu(self.blocks):
            raise DeviceError("CuPy has no BSR format; use tocsr(), or move the blocks to the host first.")
        rows, columns, places = self._block_pattern()
        n, size = self.n_block, self.shape[0]
        data = self.blocks.reshape(-1, n, n)[places]
        first = np.ones(rows.size, bool)
        first[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
        if not first.all():
            data = np.add.reduceat(data, np.flatnonzero(first), axis=0)
            rows, columns = rows[first], columns[first]
        indptr = np.searchsorted(rows, np.arange(self.cells + 1))
        index = np.int32 if max(size, data.size) <= INT32_LIMIT else np.int64
        return sp.bsr_matrix((data, columns.astype(index), indptr.astype(index)), shape=(size, size))

    def tocsr(self) -> Any:
        """A as a scipy.sparse or cupyx.scipy.sparse csr_matrix, sorted; every entry of a block inside is stored."""
        if not on_gpu(self.blocks):
            csr = self.to_bsr().tocsr()
            csr.sort_indices()
            return csr
        xp = namespace(self.blocks)
        rows, columns, places = self._block_pattern()
        n = self.n_block
        within = xp.arange(n)
        index = np.int32 if max(self.shape[0], self.nnz) <= INT32_LIMIT else np.int64
        shape = (rows.size, n, n)
        r = xp.broadcast_to((rows * n)[:, None, None] + within[None, :, None], shape).ravel().astype(index)
        c = xp.broadcast_to((columns * n)[:, None, None] + within[None, None, :], shape).ravel().astype(index)
        data = self.blocks.reshape(-1, n, n)[places].ravel()
        csr = sparse_module(data).coo_matrix((data, (r, c)), shape=self.shape).tocsr()  # adds entries at one place
        csr.sort_indices()
        return csr

    @classmethod
    def from_bsr(cls, B: Any, shape_cells: Any, periodic: Any = (False, False, False)) -> StencilMatrix:
        """The StencilMatrix with the blocks of B, a scipy.sparse BSR matrix whose block rows are the cells, k fastest.

        A block that could be both a neighbour inside and one that closes a periodic grid (2 cells) counts as the
        former. Raises MatrixError if the sizes do not fit, or, naming the block, if one is not on the stencil.
        """
        if not isinstance(B, sp.bsr_matrix | sp.bsr_array):
            raise MatrixError(f"B is a {type(B).__name__}; a scipy.sparse BSR matrix is needed: B.tobsr((n, n)).")
        periodic = _checked_periodic(periodic)
        shape = tuple(shape_cells)
        if len(shape) != 3 or not all(isinstance(s, int | np.integer) and s > 0 for s in shape):
            raise MatrixError(f"shape_cells={shape_cells!r}; three positive integers (I, J, K) are needed.")
        cells, (n, width) = int(np.prod(shape, dtype=object)), B.blocksize
        if n != width or B.shape != (cells * n, cells * n):
            raise MatrixError(
                f"B has shape {B.shape} and blocks {B.blocksize}, but a grid of {shape} has {cells} cells; square "
                f"blocks of n and shape ({cells} n, {cells} n) are needed."
            )
        B = B.copy()
        B.sum_duplicates()
        rows = np.repeat(np.arange(cells), np.diff(B.indptr))
        step = np.array(np.unravel_index(B.indices, shape)) - np.array(np.unravel_index(rows, shape))
        for axis in range(3):
            if periodic[axis] and shape[axis] > 2:
                step[axis][step[axis] == shape[axis] - 1] = -1
                step[axis][step[axis] == 1 - shape[axis]] = 1
        place = np.full(rows.size, -1)
        for p, offset in enumerate(OFFSETS):
            place[(step == np.array(offset)[:, None]).all(axis=0)] = p
        if (place < 0).any():
            bad = int(np.argmax(place < 0))
            cell, other = (tuple(int(c) for c in np.unravel_index(v, shape)) for v in (rows[bad], B.indices[bad]))
            raise MatrixError(f"B couples cell {cell} to cell {other}, which is not on the 7-point stencil of {shape}.")
        blocks = np.zeros((7, cells, n, n), B.dtype)
        blocks[place, rows] = B.data
        return cls(blocks.reshape(7, *shape, n, n), periodic)

    def __repr__(self) -> str:
        grid, device = " x ".join(map(str, self.shape_cells)), "GPU" if on_gpu(self.blocks) else "CPU"
        closed = f", periodic={self.periodic}" if any(self.periodic) else ""
        return f"StencilMatrix({grid} cells, n={self.n_block}, {self.dtype}, {device}{closed})"


def _checked_periodic(periodic: Any) -> tuple[bool, bool, bool]:
    values = tuple(periodic) if isinstance(periodic, tuple | list | np.ndarray) else ()
    if len(values) != 3 or not all(isinstance(v, bool | np.bool_) for v in values):
        raise MatrixError(f"periodic={periodic!r}; three booleans, for i, j and k, are needed.")
    i, j, k = (bool(v) for v in values)
    return i, j, k


def _without_outside(xp: Any, blocks: Any, periodic: Any) -> Any:
    """`blocks`, or, if a block that points outside is not zero, a copy in which all such blocks are zero."""
    outside = []
    for place, offset in enumerate(OFFSETS):
        for axis, step in enumerate(offset):
            if step and not periodic[axis]:
                edge = 0 if step < 0 else blocks.shape[1 + axis] - 1
                outside.append((place, *((slice(None),) * axis), edge))
    if outside and bool(xp.stack([(blocks[face] != 0).any() for face in outside]).any()):  # one wait for a GPU
        blocks = blocks.copy()
        for face in outside:
            blocks[face] = 0
    return blocks
