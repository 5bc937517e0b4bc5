"""Block ILU(0) of block matrices, on the stencil of a grid or of any pattern.

L. Luo, J. R. Edwards, H. Luo, F. Mueller: A fine-grained block ILU scheme on regular structures for GPGPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.device import namespace, on_gpu, to_host
from finelu.errors import MatrixError, ParameterError, ZeroPivot
from finelu.factors import Factors
from finelu.kernels import kernels_for
from finelu.matrix import all_finite, as_csr
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.looks import LARGEST_BLOCK, block_size
from finelu.matrix.multiblock import MultiblockMatrix
from finelu.matrix.stencil import OFFSETS, StencilMatrix
from finelu.preconditioners.recipe import Recipe, in_precision
from finelu.processes import agreed
from finelu.validation import count, flag


class SingularBlock(ZeroPivot):
    """A diagonal block of the factorization that has no inverse, or none without pivoting.

    cell : (i, j, k) of a StencilMatrix, else the block row; the first such block in natural order.
    row : the first row of the block.
    condition : number of the block, in the infinity norm; Inf if it is singular or not finite.
    """

    def __init__(
        self,
        recipe: Any,
        cell: int | tuple[int, ...],
        row: int,
        condition: float,
        what: str = "has a pivot, or makes a block, that is zero or not finite",
    ):
        self.recipe, self.cell, self.row, self.value = recipe, cell, row, None
        self.condition = condition
        where = f"cell {cell}" if isinstance(cell, tuple) else f"block row {cell}"
        pivoting = "" if getattr(recipe, "pivoting", True) else "pivoting=True, "
        shift = f"a shift above {recipe.shift:g}" if recipe.shift else "shift=1e-3 (or larger)"
        ArithmeticError.__init__(
            self,
            f"{recipe!r}: the diagonal block of {where} (from row {row} on), of condition {condition:.1e}, {what}, so "
            f"there are no such factors. Try {pivoting}{shift}, or another recipe.",
        )

    def of_block(self, name: Any) -> SingularBlock:
        """The same error, naming the block of a grid of several blocks; `row` counts within that block."""
        self.args = (self.args[0].replace("the diagonal block of", f"block {name!r}: the diagonal block of", 1),)
        return self


@dataclass(frozen=True, kw_only=True, repr=False)
class BlockILU0(Recipe):
    """Block ILU without fill: (L U)_ij = A_ij for every block that A stores; the diagonal blocks of L are ones.

    For a StencilMatrix M = L U = (D + E) D^-1 (D + F): E and F are the blocks of A below and above the diagonal, D is
    block diagonal. On a periodic grid the blocks that close it are not factored: M is that of the same grid cut open,
    and still a good preconditioner.
    block_size : rows of the blocks into which a matrix without blocks of its own (CSR) is cut; missing entries of a
        block are zeros. None for a StencilMatrix, a BlockMatrix or a BSR matrix.
    pivoting : whether diagonal blocks are inverted with partial pivoting, after scaling their rows by powers of two.
        False is a little faster, but a zero on the diagonal of a block stops the factorization.
    precision : "float32" or "float64" for the factors, None for A's own.
    shift : moves the diagonal away from zero before factoring, by this fraction of |A_ii|, or, if A_ii is 0, of the
        largest |A_ij| in the row of the diagonal block.
    Cost, in products of n x n blocks: two for each diagonal block; for each block (i, k) below the diagonal one, and
    one for each block of row k that row i has, too. That is eight for a cell of a grid.
    Memory: for a StencilMatrix one block a cell in addition to A's blocks, to which the factors refer (a copy if the
    precision differs); else the blocks of A once more.
    Depth: the level sets of the block pattern below the diagonal; on a grid the I + J + K - 2 hyperplanes
    i + j + k = const. The same bits on any number of CPU threads.
    Source: Luo, Edwards, Luo, Mueller, Algorithms 2, 3 and 5.
    """

    name = "block_ilu0"
    matrices = ("StencilMatrix", "MultiblockMatrix", "BlockMatrix")

    block_size: int | None = None
    pivoting: bool = True
    precision: str | None = None
    shift: float = 0.0

    def check(self) -> None:
        super().check()
        check_block_size(self)
        flag("pivoting", self.pivoting, of=self)

    def factor(self, A: Any) -> StencilBlockILUFactors | BlockILUFactors | MultiblockFactors:
        """Factor A where it lives: a StencilMatrix, a MultiblockMatrix (each block by itself), a BlockMatrix, a
        scipy.sparse BSR matrix, or with block_size any matrix that `finelu.as_csr` takes. A is not written; blocks of a
        grid must not be changed while M is in use.

        Raises MatrixError for a matrix that cannot be factored, naming the first block row without a diagonal block;
        SingularBlock, naming the cell or block row and the condition of its block, if there are no factors.
        """
        if isinstance(A, MultiblockMatrix):
            return MultiblockFactors(self, A)
        A = as_blocks(self, A)
        return (StencilBlockILUFactors if isinstance(A, StencilMatrix) else BlockILUFactors)(self, A)


def as_blocks(recipe: Any, A: Any) -> StencilMatrix | MultiblockMatrix | BlockMatrix:
    """A in the blocks and the precision of the recipe."""
    size, known = recipe.block_size, isinstance(A, StencilMatrix | MultiblockMatrix | BlockMatrix)
    if not known and getattr(A, "format", None) == "bsr":
        A, known = BlockMatrix.from_bsr(A), True
    if known and size not in (None, A.n_block):
        n = A.n_block
        raise ParameterError(f"{recipe!r}: A has {n} x {n} blocks; leave block_size out, or give A.tocsr() to cut it.")
    if not known and size is None:
        kind, A = type(A).__name__, as_csr(A, diagonal=False)
        found = block_size(A)
        hint = f"its pattern suggests {found}" if found > 1 else f"its pattern shows no blocks of 2 to {LARGEST_BLOCK}"
        raise ParameterError(
            f"{recipe!r}: A is a {kind}, which does not say how large its blocks are; give block_size ({hint}), or a "
            "BSR matrix, a BlockMatrix or a StencilMatrix."
        )
    if not known:
        A = BlockMatrix.from_csr(A, size)
    if isinstance(A, BlockMatrix) and A.pattern.missing[0]:
        missing, first = A.pattern.missing
        raise MatrixError(
            f"A stores no diagonal block in block row {first} (from row {first * A.n_block} on; {missing} such block "
            f"{'row' if missing == 1 else 'rows'}); the factorization inverts it. Store it, or permute A so that its "
            "block diagonal is full."
        )
    blocks: StencilMatrix | MultiblockMatrix | BlockMatrix = A
    if recipe.precision is None:
        return blocks
    with np.errstate(over="ignore"):
        other = blocks.astype(in_precision(recipe.precision, A.dtype))
    parts = [S.blocks for S in other.stencils.values()] if isinstance(other, MultiblockMatrix) else [other.data]
    if other is not blocks and recipe.precision == "float32" and not all(map(all_finite, parts)):
        raise MatrixError(f"{recipe!r}: A has entries beyond the range of {recipe.precision}; scale it down.")
    return other


def check_block_size(recipe: Any) -> None:
    """A ParameterError for a block_size that has no meaning."""
    if recipe.block_size is not None:
        count("block_size", recipe.block_size, 1, of=recipe)


class BlockFactors(Factors):
    """Factors of a StencilMatrix or BlockMatrix; subclasses implement `_refresh` and `_solve(b, x, trans)` for one
    column."""

    well_formed = capturable = True
    pattern: Any

    @ignore_fp_errors
    def update(self, A: Any, f: Any = None) -> BlockFactors:
        """Factor a matrix of the same grid or block pattern, block size and device anew; the memory is kept. Returns
        self.

        A : as `factor` takes it; entries of a block that it does not store are zeros. Raises MatrixError for another
        grid or pattern, and as `factor` does; after a SingularBlock, solve raises NoFactors.  f : as in
        `finelu.Factors.update`.
        """
        if f is not None:
            self._require_point(A, f)
            return self
        self._update_values(self._checked(A))
        return self

    def _checked(self, A: Any) -> Any:
        """A as `_refresh` takes it; a MatrixError if it does not fit."""
        A, old = as_blocks(self.recipe, A), self.pattern
        if type(A) is not type(old) or on_gpu(A.data) != on_gpu(old.data) or not _same_places(A, old):
            what = "block pattern" if isinstance(old, BlockMatrix) else "grid"
            raise MatrixError(
                f"update needs the {what} and the device that were factored, {old!r}; this is {A!r}"
                f"{' with blocks elsewhere' if repr(A) == repr(old) else ''}."
            )
        if A.dtype != self.dtype:
            if A.dtype.kind == "c" and self.dtype.kind != "c":
                raise MatrixError(f"update needs numbers as those that were factored, {self.dtype}; these are complex.")
            A = A.astype(self.dtype)
        # The factored pattern has the plans of the solves.
        return old.with_values(A.data) if isinstance(A, BlockMatrix) else A

    def _apply(self, R: Any, trans: str) -> Any:
        xp = namespace(R)
        columns = xp.ascontiguousarray(R.T)
        X = xp.empty(columns.shape, self.dtype)
        for c in [...] if R.ndim == 1 else range(R.shape[1]):
            self._solve(columns[c], X[c], trans)
        return xp.ascontiguousarray(X.T)

    def _solve(self, b: Any, x: Any, trans: str) -> None:
        raise NotImplementedError


def _same_places(A: Any, B: Any) -> bool:
    if isinstance(A, BlockMatrix):
        return bool(A.same_pattern(B))
    if isinstance(A, MultiblockMatrix):
        return A.same_grid(B)
    return bool(A.blocks.shape == B.blocks.shape) and A.periodic == B.periodic


class MultiblockFactors(BlockFactors):
    """M = diag(M_0, M_1, ...) of a MultiblockMatrix; `parts` {name: factors} has the factors of each block.

    Factors are made on all processes together; each process solves alone. A SingularBlock names the block of the
    grid, and is raised on all processes.
    """

    def __init__(self, recipe: Any, A: MultiblockMatrix):
        A = _on_all(A.comm, lambda: as_blocks(recipe, A))
        super().__init__(recipe, A)  # type: ignore[arg-type]
        self.parts: dict[Any, Factors] = {}
        self._refresh(A)

    def _checked(self, A: Any) -> Any:
        return _on_all(self.pattern.comm, lambda: super(MultiblockFactors, self)._checked(A))

    def _refresh(self, A: MultiblockMatrix) -> None:  # type: ignore[override]
        start = perf_counter()
        self.pattern = A
        _on_all(A.comm, lambda: self._make(A))
        self.report["numeric_seconds"] = perf_counter() - start

    def _make(self, A: MultiblockMatrix) -> None:
        for name, block in A.stencils.items():
            try:
                if name in self.parts:
                    self.parts[name].update(block)
                else:
                    self.parts[name] = self.recipe.factor(block)
            except SingularBlock as error:
                raise error.of_block(name) from None

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        return all(F.capturable for F in self.parts.values())

    def _apply(self, R: Any, trans: str) -> Any:
        ends = np.cumsum([F.shape[0] for F in self.parts.values()])
        X = namespace(R).empty_like(R)
        for F, end in zip(self.parts.values(), ends, strict=True):
            own = slice(end - F.shape[0], end)
            F.apply(R[own], trans, X[own])
        return X

    @property
    def nnz(self) -> int:
        """Entries of the factors of the blocks of this process."""
        return sum(F.nnz for F in self.parts.values())


def _on_all(comm: Any, work: Callable[[], Any]) -> Any:
    """work(), on all processes of a communicator, if there is one: an error of one process is raised on all."""
    return work() if comm is None else agreed(comm, work, named=True)


class BlockILUFactors(BlockFactors):
    """M = L U on the block pattern of A: `lu` (nb, n, n) holds the blocks of L below the diagonal, the inverses of U's
    diagonal blocks, and the blocks of U above the diagonal, in A's order."""

    def __init__(self, recipe: BlockILU0, A: BlockMatrix):
        super().__init__(recipe, A)  # type: ignore[arg-type]
        self.lu = namespace(A.data).empty_like(A.data)
        self.pattern = A.with_values(self.lu)
        self._refresh(A)

    def _refresh(self, A: BlockMatrix) -> None:  # type: ignore[override]
        start = perf_counter()
        self.lu[...] = A.data
        if self.recipe.shift:
            self.lu[A.diag] = moved(A.data[A.diag], self.recipe.shift)
        kernels = kernels_for(self.lu)
        bad = kernels.vectors.first_bad(
            kernels.blocks.bsr_ilu0_factor(A.indptr, A.indices, A.diag, self.lu, self.recipe.pivoting)
        )
        if bad >= 0:
            raise SingularBlock(self.recipe, bad, bad * A.n_block, condition(self._diagonal_block(A, bad)))
        self.report["numeric_seconds"] = perf_counter() - start

    def _diagonal_block(self, A: BlockMatrix, i: int) -> Any:
        """U_ii, computed from row i and the rows before it; on the host."""

        def places(row: int) -> range:
            return range(*(int(p) for p in A.indptr[row : row + 2]))

        diag = int(A.diag[i])
        block = to_host(moved(A.data[diag : diag + 1], self.recipe.shift))[0].copy()
        for p in places(i):
            k = int(A.indices[p])
            for q in places(k) if k < i else ():
                if int(A.indices[q]) == i:
                    with np.errstate(all="ignore"):  # what is not finite shows in the condition
                        block -= to_host(self.lu[p]) @ to_host(self.lu[q])
        return block

    def _solve(self, b: Any, x: Any, trans: str) -> None:
        kernels_for(x).blocks.bsr_ilu0_solve(*self.pattern.pattern.sweep(trans), self.lu, b, x, trans)

    @property
    def nnz(self) -> int:
        """Entries of L and U; the diagonal blocks of L, which are ones, not counted."""
        return int(self.pattern.nnz)

    @property
    def L(self) -> BlockMatrix:
        """The unit lower factor on the device of A, its diagonal blocks of ones stored."""
        L, diag = self._triangle(lower=True)
        L.data[diag] = namespace(L.data).eye(L.n_block, dtype=self.dtype)
        return L

    @property
    def U(self) -> BlockMatrix:
        """The upper factor on the device of A; its diagonal blocks are inverted back."""
        U, diag = self._triangle(lower=False)
        kernels, inverses = kernels_for(U.data), U.data[diag]
        blocks = namespace(inverses).empty_like(inverses)
        bad = kernels.vectors.first_bad(kernels.blocks.invert_blocks(inverses, blocks, True))
        if bad >= 0:
            number = condition(to_host(inverses[bad]))
            raise SingularBlock(self.recipe, bad, bad * U.n_block, number, "overflows when its inverse is inverted")
        U.data[diag] = blocks
        return U

    def _triangle(self, *, lower: bool) -> tuple[BlockMatrix, Any]:
        """The blocks of `lu` on one side of the diagonal and on it, as a new matrix; the places of the diagonal
        blocks."""
        self._require_valid()
        P, xp = self.pattern.pattern, namespace(self.lu)
        rows = P.row_of()
        kept = xp.flatnonzero(P.indices <= rows if lower else P.indices >= rows)
        indptr = xp.searchsorted(rows[kept], xp.arange(P.rows + 1, dtype=rows.dtype)).astype(rows.dtype)
        T = BlockMatrix(self.lu[kept], P.indices[kept], indptr)
        return T, T.diag


class StencilBlockILUFactors(BlockFactors):
    """M = (D + E) D^-1 (D + F): E and F are A's own blocks, D is kept as the inverses `d` (I, J, K, n, n)."""

    def __init__(self, recipe: BlockILU0, A: StencilMatrix):
        super().__init__(recipe, A)  # type: ignore[arg-type]
        self.A = A
        self.d = namespace(A.data).empty(A.blocks.shape[1:], A.dtype)
        self.report["hyperplanes"] = sum(A.shape_cells) - 2
        self._refresh(A)

    def _refresh(self, A: StencilMatrix) -> None:  # type: ignore[override]
        start = perf_counter()
        self.A = self.pattern = A
        blocks = _shifted(A.blocks, self.recipe.shift)
        kernels = kernels_for(blocks)
        bad = kernels.vectors.first_bad(kernels.stencil.block_ilu_factor(blocks, self.d, self.recipe.pivoting))
        if bad >= 0:
            cell = tuple(int(c) for c in np.unravel_index(bad, A.shape_cells))
            raise SingularBlock(self.recipe, cell, bad * A.n_block, condition(self._diagonal_block(blocks, cell)))
        self.report["numeric_seconds"] = perf_counter() - start

    def _diagonal_block(self, blocks: Any, cell: tuple[int, ...]) -> Any:
        """The block of D for a cell, from the inverses of earlier cells; on the host."""
        block = to_host(blocks[(3, *cell)]).copy()
        for place in range(3):
            other = tuple(c + o for c, o in zip(cell, OFFSETS[place], strict=True))
            if min(other) >= 0:
                lower, inverse, upper = (
                    to_host(v) for v in (blocks[(place, *cell)], self.d[other], blocks[(6 - place, *other)])
                )
                with np.errstate(all="ignore"):  # what is not finite shows in the condition
                    block -= lower @ inverse @ upper
        return block

    def _apply_into(self, R: Any, trans: str, out: Any) -> None:
        if R.ndim == 1 and R.flags.c_contiguous and out.flags.c_contiguous:
            self._solve(R, out, trans)
        else:
            super()._apply_into(R, trans, out)

    def _solve(self, b: Any, x: Any, trans: str) -> None:
        kernels_for(x).stencil.block_ilu_solve(self.A.blocks, self.d, b, x, trans)

    @property
    def nnz(self) -> int:
        """Entries of D, E and F."""
        return int(self.pattern.nnz)


def _shifted(blocks: Any, shift: float) -> Any:
    """The blocks with the diagonal of delta moved away from zero; the caller's own if shift is 0."""
    if shift == 0:
        return blocks
    blocks = blocks.copy()
    blocks[3] = moved(blocks[3], shift)
    return blocks


def moved(diagonal: Any, shift: float) -> Any:
    """Diagonal blocks (..., n, n) with their diagonals moved away from zero; the caller's own if shift is 0."""
    if shift == 0:
        return diagonal
    xp, diagonal = namespace(diagonal), diagonal.copy()
    within = xp.arange(diagonal.shape[-1])
    d = diagonal[..., within, within]
    away = xp.where(d == 0, shift * abs(diagonal).max(axis=-1), d * (1 + shift))
    diagonal[..., within, within] = away.astype(diagonal.dtype)
    return diagonal


def condition(block: Any) -> float:
    """||B|| ||B^-1|| in the infinity norm; Inf for a singular block or one that is not finite."""
    if not np.isfinite(block).all():
        return math.inf
    block = block.astype(np.complex128)
    try:
        with np.errstate(all="ignore"):
            sizes = (abs(B).sum(axis=1).max() for B in (block, np.linalg.inv(block)))
            number = float(math.prod(sizes))  # NumPy's cond of a complex block is complex before NumPy 2
    except np.linalg.LinAlgError:
        return math.inf
    return number if math.isfinite(number) else math.inf
