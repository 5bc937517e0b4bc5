"""Matrices on the 7-point stencil of a grid of several blocks: `MultiblockMatrix`.

L. Luo, J. R. Edwards, H. Luo, F. Mueller: A fine-grained block ILU scheme on regular structures for GPGPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.device import as_any_other, namespace, on_gpu, same_gpu, sparse_module
from finelu.errors import DeviceError, MatrixError
from finelu.kernels import kernels_for
from finelu.kernels.operands import INT32_LIMIT
from finelu.matrix.ghosts import Ghosts, gpu_of
from finelu.matrix.interfaces import FACES, MultiblockGrid, Name, layers_at
from finelu.matrix.products import BlockProducts
from finelu.matrix.stencil import NAMES, StencilMatrix
from finelu.matrix.vectors import DTYPES, all_finite
from finelu.processes import agreed

PLACES = dict(zip(FACES, (0, 1, 2, 4, 5, 6), strict=True))  # of the block that points out of a face


class MultiblockMatrix(BlockProducts):
    """A with n unknowns a cell on a `MultiblockGrid`: each cell is coupled to itself and its neighbours, also across
    interfaces. Its rows are those of the blocks of this process.

    blocks : {name: (7, I, J, K, n, n)}, for the blocks of this process, as a StencilMatrix takes them, all of one n,
        dtype and device; a list for a grid whose names are 0, 1, ... At a face that is in an interface the block that
        points outside couples with the cell beyond it; at other faces it is ignored. Valid C-contiguous arrays are kept
        without a copy; do not change them while A is in use.
    Raises MatrixError, the same on all processes, for blocks that do not fit, NaN and Inf, and a differing n or dtype.

    Vectors (N,) hold the blocks one after the other, in the order of `grid.names`; `split` and `join` convert them.
    Each of several processes has its own part; norms are those of the whole vector. All processes must call products,
    `rmatvec`, `residual` and `richardson` together, with vectors of one dtype. On one process A is an operator like any
    other; `tocsr` returns it as one matrix.
    stencils : {name: StencilMatrix}, the blocks without the interfaces.
    grid : as given.
    Cost of a product: one pass over the blocks. The cells at interfaces are gathered, sent while the blocks are worked
    on, and followed by one pass over the couplings.
    """

    _at_one_place = 7  # on a closed grid of one cell

    def __init__(self, grid: MultiblockGrid, blocks: Any):
        if not isinstance(grid, MultiblockGrid):
            raise MatrixError(f"grid is a {type(grid).__name__}; a MultiblockGrid is needed.")
        self.grid, self._wider = grid, {}
        self.stencils: dict[Name, StencilMatrix] = self._together(lambda: _checked(grid, blocks))
        facts = [(self.n_block, self.dtype.name, self._device)]
        if grid.comm is not None:
            facts = grid.comm.allgather(facts[0])
            other = next((k for k, fact in enumerate(facts) if fact[:2] != facts[0][:2]), None)
            if other is not None:
                raise MatrixError(
                    f"the blocks of process 0 have n={facts[0][0]} and dtype {facts[0][1]}, those of process {other} "
                    f"n={facts[other][0]} and dtype {facts[other][1]}; all need the same."
                )
        self._devices = tuple(fact[2] for fact in facts)  # of all processes: they decide how cells are sent
        if self._devices not in grid.across:
            grid.across[self._devices] = Across.of(grid, namespace(self.data))

    def _of(self, stencils: dict[Name, StencilMatrix]) -> MultiblockMatrix:
        """A MultiblockMatrix with other blocks on the same devices."""
        matrix = MultiblockMatrix.__new__(MultiblockMatrix)
        matrix.grid, matrix._devices, matrix.stencils, matrix._wider = self.grid, self._devices, stencils, {}
        return matrix

    def _together(self, work: Callable[[], Any]) -> Any:
        return work() if self.grid.comm is None else agreed(self.grid.comm, work, named=True)

    @property
    def comm(self) -> Any:
        """The communicator of the processes; None for one process."""
        return self.grid.comm

    @property
    def data(self) -> Any:
        """The data of the first block of this process, for its dtype and device."""
        return self.stencils[self.grid.names[0]].blocks

    @property
    def cells(self) -> int:
        """Cells of this process."""
        return self.grid.cells

    @property
    def shape(self) -> tuple[int, int]:
        """(N, N), with the N unknowns of this process."""
        size = self.cells * self.n_block
        return (size, size)

    @property
    def nnz(self) -> int:
        """Entries of the blocks of this process that point to a cell, zeros among them."""
        return sum(S.nnz for S in self.stencils.values()) + int(self._across.order.size) * self.n_block**2

    def split(self, x: Any) -> dict[Name, Any]:
        """{name: (I, J, K, n)}, or (I, J, K, n, k), of x (N,), or (N, k): views if x is contiguous."""
        parts, at = {}, 0
        for name, (I, J, K) in self.grid.shapes.items():
            end = at + I * J * K * self.n_block
            parts[name] = x[at:end].reshape(I, J, K, self.n_block, *x.shape[1:])
            at = end
        return parts

    def join(self, parts: Mapping[Name, Any]) -> Any:
        """x (N,), a new array, of {name: (I, J, K, n)}; a MatrixError for a part of another shape."""
        arrays = [parts[name] for name in self.grid.names]
        for name, array in zip(self.grid.names, arrays, strict=True):
            if tuple(array.shape) != (*self.grid.shapes[name], self.n_block):
                needed = (*self.grid.shapes[name], self.n_block)
                raise MatrixError(f"the part of block {name!r} has shape {array.shape}; {needed} is needed.")
        return namespace(arrays[0]).concatenate([array.reshape(-1) for array in arrays])

    def astype(self, dtype: Any) -> MultiblockMatrix:
        """The same matrix with other numbers; itself where the dtype is the same."""
        if np.dtype(dtype) == self.dtype:
            return self
        return self._of({name: S.astype(dtype) for name, S in self.stencils.items()})

    @property
    def T(self) -> MultiblockMatrix:
        """A^T as a matrix of its own; all processes must call it."""
        transposed = {name: S.T for name, S in self.stencils.items()}
        found = self.grid.traded(
            {
                name: {face: layers_at(S.blocks[PLACES[face]], face, 1) for face in self.grid.joined(name)}
                for name, S in self.stencils.items()
            },
            self._across.ghosts.connection,
        )
        for name, faces in found.items():
            for face, blocks in faces.items():
                layers_at(transposed[name].blocks[PLACES[face]], face, 1)[...] = blocks.swapaxes(-1, -2)
        return self._of(transposed)

    @cached_property
    def H(self) -> MultiblockMatrix:
        """A^H as a matrix of its own, kept; all processes must call it."""
        transposed = self.T
        if self.dtype.kind == "c":
            for S in transposed.stencils.values():
                namespace(S.blocks).conj(S.blocks, out=S.blocks)
        return transposed

    # Products

    @property
    def _device(self) -> int:
        return gpu_of(self.data)

    @property
    def _across(self) -> Across:
        if self.comm is None and self._devices not in self.grid.across:  # of a copy
            self.grid.across[self._devices] = Across.of(self.grid, namespace(self.data))
        across: Across = self.grid.across[self._devices]
        return across

    @cached_property
    def _couplings(self) -> Any:
        """The blocks (m, n, n) across interfaces, in the order of the columns of `Across`."""
        xp, n = namespace(self.data), self.n_block
        parts = [
            layers_at(S.blocks[PLACES[face]], face, 1).reshape(-1, n, n)
            for name, S in self.stencils.items()
            for face in self.grid.joined(name)
        ]
        if not parts:
            return xp.empty((0, n, n), self.dtype)
        return xp.ascontiguousarray(xp.concatenate(parts)[self._across.order])

    def _product(self, x: Any, b: Any, out: Any) -> None:
        n, ghosts, rows = self.n_block, self._across.ghosts, self._across.rows
        couplings = self._couplings
        if ghosts.needed:
            ghosts.begin(x.reshape(-1, n))
        at = 0
        for S in self.stencils.values():
            end = at + S.shape[0]
            own = slice(at, end)
            S._product(x[own], None if b is None else b[own], out[own])
            at = end
        if not ghosts.needed:
            return
        beyond = ghosts.finish()
        if rows.size:
            pattern = rows, self._across.indptr, self._across.columns
            kernels_for(self.data).blocks.bsr_accumulate(*pattern, couplings, beyond.reshape(-1), out, b is not None)

    @property
    def most_in_row(self) -> int:
        return 7 * self.n_block

    def _stored(self) -> list[Any]:
        return [S.blocks for S in self.stencils.values()]

    def bounds(self) -> tuple[int, float, float]:
        """The most entries of a row, and upper bounds of the sums of magnitudes of a row and of a column, over all
        processes, which must all call it; inf if they overflow."""
        rows, own, other = 0.0, 0.0, 0.0
        for S in self.stencils.values():  # the blocks across interfaces are among theirs
            of_rows, of_columns = S.largest_sums()
            rows = max(rows, float(of_rows.sum()))
            own, other = max(own, float(of_columns[3])), max(other, float(np.delete(of_columns, 3).max()))
        if self.comm is not None:
            rows, own, other = (max(self.comm.allgather(v)) for v in (rows, own, other))
        return self.most_in_row, rows, own + 6 * other  # six blocks of a column belong to neighbouring cells

    # Conversions

    def _pattern(self) -> tuple[Any, Any, Any]:
        """Rows, columns and values of all blocks of this process, (m,), (m,), (m, n, n), by cells; cells beyond an
        interface come after those of this process, in the order of `ghosts`."""
        xp, n = namespace(self.data), self.n_block
        rows, columns, values, at = [], [], [], 0
        for S in self.stencils.values():
            r, c, places = S._block_pattern()
            rows.append(r + at)
            columns.append(c + at)
            values.append(S.blocks.reshape(-1, n, n)[places])
            at += S.cells
        across = self._across
        if across.rows.size:
            places = xp.arange(across.columns.size)
            rows.append(across.rows[xp.searchsorted(across.indptr, places, side="right") - 1])
            columns.append(across.columns.astype(rows[0].dtype) + at)
            values.append(self._couplings)
        return xp.concatenate(rows), xp.concatenate(columns), xp.concatenate(values)

    def tocsr(self) -> Any:
        """A as one scipy.sparse or cupyx.scipy.sparse csr_matrix, sorted; on one process only (else a MatrixError)."""
        if self.comm is not None:
            raise MatrixError(
                f"A is spread over {self.comm.size} processes, so it is no single CSR matrix; BlockILU0 and "
                "BlockJacobi factor each block by itself, richardson and PETSc's solvers work on all processes."
            )
        rows, columns, values = self._pattern()
        cells, ghosts = self.cells, self._across.ghosts
        if ghosts.needed:  # the cell itself replaces its ghost
            xp = namespace(values)
            columns = xp.concatenate((xp.arange(cells), ghosts.own))[columns]
        return _csr(rows, columns, values, cells, cells)

    def to_bsr(self) -> Any:
        """A as one scipy.sparse.bsr_matrix with n x n blocks, on one process and on the host only."""
        if on_gpu(self.data):
            raise DeviceError("CuPy has no BSR format; use tocsr(), or move the blocks to the host first.")
        return sp.bsr_matrix(self.tocsr(), blocksize=(self.n_block, self.n_block))

    def extended(self) -> Any:
        """The rows of this process as a CSR matrix (N, N + G): the columns of the G unknowns beyond interfaces come
        last, in the order of `Ghosts`. Memory: the entries of A once more, with an index each."""
        rows, columns, values = self._pattern()
        return _csr(rows, columns, values, self.cells, self.cells + self._across.ghosts.count)

    def with_ghosts(self, x: Any) -> Any:
        """(N + G,): x (N,) followed by the unknowns beyond interfaces; all processes must call it."""
        ghosts = self._across.ghosts
        if not ghosts.needed:
            return x
        ghosts.begin(x.reshape(-1, self.n_block))
        return namespace(x).concatenate((x, ghosts.finish().reshape(-1)))

    def same_grid(self, other: MultiblockMatrix) -> bool:
        """Whether both have the same blocks, interfaces and processes, and as many unknowns a cell."""
        mine, theirs = self.grid, other.grid
        alike = mine is theirs or (
            list(mine.shapes.items()) == list(theirs.shapes.items())  # in the same order
            and mine.interfaces == theirs.interfaces
            and mine.comm == theirs.comm
        )
        return alike and self.n_block == other.n_block

    def __repr__(self) -> str:
        grid, device = f"{len(self.grid.names)} blocks, {self.cells} cells", "GPU" if on_gpu(self.data) else "CPU"
        where = "" if self.comm is None else f", process {self.comm.rank} of {self.comm.size}"
        return f"MultiblockMatrix({grid}, n={self.n_block}, {self.dtype}, {device}{where})"


def _checked(grid: MultiblockGrid, blocks: Any) -> dict[Name, StencilMatrix]:
    """The block of each name as a StencilMatrix, which keeps the coefficients across interfaces in its blocks."""
    given = dict(blocks.items() if isinstance(blocks, Mapping) else enumerate(blocks))
    wrong = set(given) ^ set(grid.names)
    if wrong:
        name = min(wrong, key=repr)
        fault = "no" if name in grid.shapes else "a"
        raise MatrixError(f"blocks has {fault} block {name!r}; the grid has {', '.join(map(repr, grid.names))} here.")
    stencils: dict[Name, StencilMatrix] = {}
    for name in grid.names:
        try:
            stencils[name] = _stencil(given[name], {face: PLACES[face] for face in grid.joined(name)})
        except MatrixError as error:
            raise MatrixError(f"block {name!r}: {error}") from error
        first, own = stencils[grid.names[0]], stencils[name]
        if own.shape_cells != grid.shapes[name]:
            raise MatrixError(f"block {name!r} has {own.shape_cells} cells, but the grid gives it {grid.shapes[name]}.")
        if (own.n_block, own.dtype) != (first.n_block, first.dtype) or on_gpu(own.blocks) != on_gpu(first.blocks):
            raise MatrixError(f"block {name!r} is {own!r}, but block {grid.names[0]!r} {first!r}; all need the same n, "
                              "dtype and device.")  # fmt: skip
        same_gpu(own.blocks, first.blocks)
    return stencils


def _stencil(blocks: Any, across: dict[str, int]) -> StencilMatrix:
    """A StencilMatrix of these blocks; those that point across interfaces keep their values."""
    blocks = blocks if on_gpu(blocks) else np.asarray(blocks)
    shape: tuple[int, ...] = blocks.shape
    if not across or len(shape) != 6 or shape[0] != 7 or shape[4] != shape[5] or 0 in shape:
        return StencilMatrix(blocks)
    xp = namespace(blocks)
    if blocks.flags.c_contiguous and str(blocks.dtype) in DTYPES and all_finite(blocks):
        blocks = blocks if on_gpu(blocks) else as_any_other(blocks)
        return StencilMatrix._of(blocks, (False, False, False))  # no kernel reads what points outside
    for face, place in across.items():
        couplings = layers_at(blocks[place], face, 1)
        if blocks.dtype.kind in "fc" and not bool(xp.isfinite(couplings).all()):
            raise MatrixError(f"blocks holds NaN or Inf in {NAMES[place]} at face {face}; find where they come from.")
    matrix = StencilMatrix(blocks)
    own = matrix.blocks if matrix.blocks is not blocks else matrix.blocks.copy()
    for face, place in across.items():
        layers_at(own[place], face, 1)[...] = layers_at(blocks[place], face, 1)
    return StencilMatrix._of(own, (False, False, False))


@dataclass(frozen=True)
class Across:
    """The couplings of this process with cells beyond interfaces: the same for all matrices of a grid.

    rows (r,) : the cells of this process that have such couplings, ascending.
    indptr (r + 1,), columns (m,) : the pattern of a block matrix with these rows, whose columns are the ghosts.
    order (m,) : for each of its blocks, the index among the blocks of all faces, one face after the other.
    """

    ghosts: Ghosts
    rows: Any
    indptr: Any
    columns: Any
    order: Any

    @classmethod
    def of(cls, grid: MultiblockGrid, xp: Any) -> Across:
        """The couplings of a grid, for numpy or cupy; all processes must call it."""
        numbers, at = {}, 0
        for name, shape in grid.shapes.items():
            size = math.prod(shape)
            numbers[name] = np.arange(at, at + size, dtype=np.int64).reshape(shape)
            at += size
        sides = [(name, face, side) for name in grid.names for face, side in grid.joined(name).items()]
        near = {name: {face: layers_at(numbers[name], face, 1) for face in grid.joined(name)} for name in grid.names}
        far = grid.traded(near, None)
        rank, none = 0 if grid.comm is None else grid.comm.rank, np.empty(0, np.int64)
        row = np.concatenate([none, *(near[name][face].reshape(-1) for name, face, _ in sides)])
        cell = np.concatenate([none, *(far[name][face].reshape(-1) for name, face, _ in sides)])
        owner = np.repeat(
            np.array([grid.owner[side.other] for *_, side in sides], np.int64),
            [near[name][face].size for name, face, _ in sides],
        )
        owner[owner == rank] = -1  # ghosts of this process come first
        by_owner = np.argsort(owner, kind="stable")
        ghost = np.empty(owner.size, np.int32)
        ghost[by_owner] = np.arange(owner.size)
        wanted = {int(k): cell[owner == k] for k in np.unique(owner) if k >= 0}
        order = np.argsort(row, kind="stable")
        rows, counts = np.unique(row, return_counts=True)
        indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        ghosts = Ghosts(grid.comm, xp, wanted, cell[owner == -1])
        return cls(ghosts, *(xp.asarray(v) for v in (rows, indptr, ghost[order], order)))


def _csr(rows: Any, columns: Any, values: Any, height: int, width: int) -> Any:
    """The csr_matrix, sorted, of blocks (m, n, n) at these places; blocks at the same place are added."""
    xp, n = namespace(values), values.shape[1]
    index = np.int32 if max(height * n, width * n, values.size) <= INT32_LIMIT else np.int64
    within = xp.arange(n)
    shape = values.shape
    r = xp.broadcast_to((rows * n)[:, None, None] + within[None, :, None], shape).ravel().astype(index)
    c = xp.broadcast_to((columns * n)[:, None, None] + within[None, None, :], shape).ravel().astype(index)
    matrix = sparse_module(values).coo_matrix((values.ravel(), (r, c)), shape=(height * n, width * n)).tocsr()
    matrix.sort_indices()
    return matrix
