"""Block Jacobi: the baseline that every block preconditioner has to beat."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu.device import lies_in_order, namespace, on_gpu, to_host
from finelu.factors import Factors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import checked_csr
from finelu.matrix.batch import Batch
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.multiblock import MultiblockMatrix
from finelu.matrix.stencil import StencilMatrix
from finelu.preconditioners.batch import Prepared, block_diagonal_plan
from finelu.preconditioners.block_ilu import (
    BlockFactors,
    MultiblockFactors,
    SingularBlock,
    as_blocks,
    check_block_size,
    condition,
    moved,
)
from finelu.preconditioners.recipe import Recipe, checked

OTHERWISE = 4  # rows of a block if neither the matrix nor the recipe gives a size
LARGEST_KERNEL = 32  # larger blocks are inverted by LAPACK or cuSOLVER, and multiplied by BLAS


@dataclass(frozen=True, kw_only=True, repr=False)
class BlockJacobi(Recipe):
    """M = the diagonal blocks of A, inverted: by Gauss-Jordan with pivoting, by LAPACK or cuSOLVER beyond 32 rows.

    The blocks of a StencilMatrix are its blocks delta (a periodic grid is cut open), those of a BlockMatrix or BSR
    matrix its diagonal blocks. Any other A is cut into blocks of `block_size` rows, of which the last may have fewer.
    block_size : rows of a block; None: that of a StencilMatrix, BlockMatrix or BSR matrix, and 4 for any other A.
    precision : "float32" or "float64" for the factors, None for A's own.
    shift : moves the diagonal away from zero, by this fraction of |A_ii|, or, if A_ii is 0, of the largest |A_ij| in
        the row of the diagonal block.
    Cost: O(n block_size^2) work and O(n block_size) memory. Source: Saad 2003, section 4.1.1.
    """

    batched = ("block_size", "shift")
    name = "block_jacobi"
    keeps_symmetry = keeps_definite = True
    matrices = ("CSR", "StencilMatrix", "MultiblockMatrix", "BlockMatrix")

    block_size: int | None = None
    precision: str | None = None
    shift: float = 0.0

    def check(self) -> None:
        super().check()
        check_block_size(self)

    def factor(self, A: Any) -> BlockJacobiFactors | CutBlockJacobiFactors | MultiblockFactors:
        """A : a StencilMatrix, a MultiblockMatrix, a BlockMatrix, a BSR matrix, or any matrix that `finelu.as_csr`
            takes, where it lives.

        Raises MatrixError if A has no full diagonal; SingularBlock, naming cell or block row, first row and condition,
        if a block is singular to working precision.
        """
        if isinstance(A, MultiblockMatrix):
            return MultiblockFactors(self, A)
        if isinstance(A, StencilMatrix | BlockMatrix) or getattr(A, "format", None) == "bsr":
            return BlockJacobiFactors(self, as_blocks(self, A))  # type: ignore[arg-type]
        return CutBlockJacobiFactors(self, checked(self, A))

    def prepared(self, batch: Batch) -> Prepared:
        """On the diagonal blocks, all of whose places are stored; they are factored without row exchanges."""
        return block_diagonal_plan(batch, checked_csr(batch.pattern), self.block_size or OTHERWISE, self.shift)


class BlockJacobiFactors(BlockFactors):
    """M = diag(B_0, B_1, ...) of a StencilMatrix or BlockMatrix, kept as the `inverses` (rows, n, n)."""

    def __init__(self, recipe: BlockJacobi, A: StencilMatrix | BlockMatrix):
        super().__init__(recipe, A)  # type: ignore[arg-type]
        self._refresh(A)

    def _refresh(self, A: Any) -> None:
        self.pattern = A
        n, in_cells = A.n_block, isinstance(A, StencilMatrix)
        blocks = A.blocks[3].reshape(-1, n, n) if in_cells else A.data[A.diag]

        def cell(bad: int) -> Any:
            return tuple(int(c) for c in np.unravel_index(bad, A.shape_cells)) if in_cells else bad

        self.inverses = inverted(self.recipe, blocks, cell)

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        return bool(self.inverses.shape[1] <= LARGEST_KERNEL)

    def _apply(self, R: Any, trans: str) -> Any:
        return times(self.inverses, R, trans)

    def _apply_into(self, R: Any, trans: str, out: Any) -> None:
        times_into(self.inverses, R, trans, out)

    @property
    def nnz(self) -> int:
        """Entries of the blocks, zeros among them."""
        return int(self.inverses.size)


class CutBlockJacobiFactors(Factors):
    """M = diag(B_0, B_1, ...) of a CSR matrix that is cut into blocks; the last is extended by ones on its diagonal."""

    well_formed = True

    def __init__(self, recipe: BlockJacobi, A: CSR):
        super().__init__(recipe, A)
        xp, size = namespace(A.data), recipe.block_size or OTHERWISE
        rows = xp.searchsorted(A.indptr, xp.arange(A.nnz, dtype=A.indptr.dtype), side="right") - 1
        inside = rows // size == A.indices // size
        self._places = xp.flatnonzero(inside)
        rows, columns = rows[inside], A.indices[inside]
        self._where = (rows // size, rows % size, columns % size)
        self._refresh(A)

    def _refresh(self, A: CSR) -> None:
        xp, size = namespace(A.data), self.recipe.block_size or OTHERWISE
        count = -(-A.n // size)
        blocks = xp.zeros((count, size, size), A.dtype)
        blocks[self._where] = A.data[self._places]
        fill = xp.arange(A.n, count * size) - (count - 1) * size
        blocks[-1, fill, fill] = 1
        self.inverses = inverted(self.recipe, blocks, int)

    @property
    def capturable(self) -> bool:
        return bool(self.inverses.shape[1] <= LARGEST_KERNEL)

    def _apply(self, R: Any, trans: str) -> Any:
        return times(self.inverses, R, trans)

    def _apply_into(self, R: Any, trans: str, out: Any) -> None:
        times_into(self.inverses, R, trans, out)

    @property
    def nnz(self) -> int:
        """Stored entries of A inside the blocks."""
        return int(self._places.size)


def inverted(recipe: BlockJacobi, blocks: Any, cell: Callable[[int], Any]) -> Any:
    """The inverses of blocks (m, n, n), their diagonals shifted; SingularBlock names the first bad one by `cell(k)`.

    Rows are scaled first, for good pivots and a meaningful condition number.
    """
    xp, kernels = namespace(blocks), kernels_for(blocks)
    n = blocks.shape[1]
    blocks = moved(blocks, recipe.shift)
    scale = abs(blocks).max(axis=2)
    empty = scale < xp.finfo(blocks.dtype).tiny
    scaled = blocks / xp.where(empty, 1, scale)[:, :, None]
    if n <= LARGEST_KERNEL:
        inverse = xp.empty_like(scaled)
        kernels.blocks.invert_blocks(scaled, inverse, True)  # a singular one shows in the condition
    else:
        singular = empty.any(axis=1) | ~xp.isfinite(xp.linalg.slogdet(scaled)[1])  # LAPACK would stop without a name
        inverse = xp.linalg.inv(xp.where(singular[:, None, None], xp.eye(n, dtype=blocks.dtype), scaled))
        inverse[singular] = math.inf
    with np.errstate(over="ignore", invalid="ignore"):
        number = abs(scaled).sum(axis=2).max(axis=1) * abs(inverse).sum(axis=2).max(axis=1)
        inverse = inverse / scale[:, None, :]
    sound = (number < 1 / xp.finfo(blocks.dtype).eps) & xp.isfinite(inverse).all(axis=(1, 2))
    bad = xp.flatnonzero(~sound | empty.any(axis=1))
    if bad.size:
        k = int(bad[0])
        of_it = math.inf if bool(empty[k].any()) else condition(to_host(scaled[k]))
        raise SingularBlock(recipe, cell(k), k * n, of_it, "is singular to working precision")
    return inverse


def times_into(blocks: Any, R: Any, trans: str, out: Any) -> None:
    """`times` with the result in `out`, which on the CPU is written at once, unless it is R: new memory would cost as
    much as the product."""
    (m, n), rows = blocks.shape[:2], R.shape[0]
    direct = n <= LARGEST_KERNEL and lies_in_order(R) and lies_in_order(out)
    if not direct or on_gpu(R) or np.may_share_memory(R, out):
        out[...] = times(blocks, R, trans)
        return
    full = rows // n
    if full:
        kernels_for(R).blocks.blocks_times(blocks[:full], R, out, trans)
    if full < m:
        last = np.zeros((n, *R.shape[1:]), R.dtype)
        last[: rows - full * n] = R[full * n :]
        product = np.empty_like(last)
        kernels_for(R).blocks.blocks_times(blocks[full:], last, product, trans)
        out[full * n :] = product[: rows - full * n]


def times(blocks: Any, R: Any, trans: str) -> Any:
    """diag(B_0, B_1, ...) R, or with B_i^T or B_i^H; blocks (m, n, n), R (rows,) or (rows, k) with rows <= m n."""
    xp = namespace(R)
    (m, n), rows = blocks.shape[:2], R.shape[0]
    given = R if lies_in_order(R) else xp.ascontiguousarray(R)
    if rows < m * n and n <= LARGEST_KERNEL and not on_gpu(R):
        out = np.empty_like(given)
        times_into(blocks, given, trans, out)
        return out
    if rows < m * n:
        given = xp.zeros((m * n, *R.shape[1:]), R.dtype)
        given[:rows] = R
    if n > LARGEST_KERNEL:
        B = blocks if trans == "N" else blocks.transpose(0, 2, 1)
        out = ((B.conj() if trans == "H" else B) @ given.reshape(m, n, R.size // rows)).reshape(given.shape)
    else:
        out = xp.empty_like(given)
        kernels_for(R).blocks.blocks_times(blocks, given, out, trans)
    return out[:rows]
