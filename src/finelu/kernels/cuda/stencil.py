"""Launchers of stencil.cu and stencil_warps.cu: 7-point block matrices on a grid, their block ILU(0) by wavefronts."""

from __future__ import annotations

from functools import lru_cache

import cupy
import numpy as np

from finelu.errors import ParameterError
from finelu.kernels.cuda.runtime.launch import BLOCK, device_limits, kernel, optional
from finelu.kernels.cuda.runtime.launch import blocks as blocks_for
from finelu.kernels.cuda.runtime.memory import set_pending, while_alive

LARGEST_BLOCK = 32  # n^2 threads a cell, and a thread block has at most 1024
TILE, MOST_TILES = (
    32,
    4,
)  # a larger block is cut into tiles x tiles of at most 32 x 32, as many elements a thread as tiles
MOST_CELLS = 2**31 - 1  # in wavefront order: they are numbered by 32-bit integers
MOST_BLOCKS = 2**30 - 1  # thread blocks of a sweep; a solve launches two sweeps
OTHER_WAYS = "Factor on the CPU, where blocks have any size."
# Threads of a thread block that takes several cells, at least and at most: where no cell waits; and in sweeps, where
# the cells of a block wait for each other, over hyperplanes that are PRELOADED or larger.
ALONE, NARROW, WIDE = (96, 320), (64, 128), (64, 160)
PRELOADED = 32  # cells a multiprocessor, of hyperplanes for which rows of lower blocks are worth their registers
LARGEST_PRELOADED = 8  # n, up to which there are registers for it
SMALLEST_BY_WARPS, LARGEST_BY_WARPS = 5, 8  # n, in float64, for which a warp works on a cell
WARPS = 5  # of a thread block then
PADDED_FROM, ONCE_FROM = 9, 16  # n: see stencil.cu
TRANS = {"N": "PLAIN", "T": "TRANSPOSED", "H": "ADJOINT"}


def cells_of_a_block(n: int, threads: tuple[int, int] = ALONE) -> int:
    """How many cells of n x n threads fill the warps of a thread block best; of equals the fewest."""
    least, most = threads
    fewest = max(1, -(-least // (n * n)))
    fits = range(fewest, most // (n * n) + 1)
    return max(fits, key=lambda cells: cells * n * n / (-(-cells * n * n // 32)), default=1)


def row_stride(n: int, itemsize: int) -> int:
    """Numbers from one row of n to the next in the shared memory of a solve: ROW_STRIDE of stencil.cu."""
    apart = n >= PADDED_FROM and n * itemsize % (32 if n < ONCE_FROM else 128) == 0
    return n + (16 // itemsize if apart else 0)


def tiles_of(n: int) -> tuple[int, int]:
    """(tiles, edge): a block of n > 32 is cut into tiles x tiles tiles of edge x edge elements, a thread each."""
    tiles = -(-n // TILE)
    return tiles, -(-n // tiles)


def _power_of_two(number: int) -> int:
    """The smallest one that is not less: few kernels to compile for many small grids."""
    return 1 << (number - 1).bit_length()


def _inverse(divisor: int) -> np.uint32:
    """For `quotient` in stencil_warps.cu."""
    return np.uint32(-(-(1 << 31 + (divisor - 1).bit_length()) // divisor))


class StencilPlan:
    """The cells of a grid by hyperplane i + j + k, and how many a thread block takes; made on the device, once a grid.

    shape : (I, J, K).  n : block size.  by_warps : a warp a cell, for float64 and n = 5 to 8 (stencil_warps.cu), else
    n^2 threads.  cells_per_block : 0 to choose, WARPS by warps, else by cells_of_a_block.  preload : keep rows of lower
    blocks in registers; None for hyperplanes of up to PRELOADED cells and n <= 8; by warps without a meaning. The
    last two change no bit of a result, only its time.
    order : (places,) int32 on the device, see stencil.cu.  starts, counts : where each hyperplane begins in it and how
    many cells it has, on the host.  depth : number of hyperplanes, I + J + K - 2.
    Raises ParameterError for an empty grid, n < 1, warps that do not fit, or more than 2^31 - 1 places.
    Cost: O(I J K), 4 bytes a cell.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        n: int,
        *,
        by_warps: bool = False,
        cells_per_block: int = 0,
        preload: bool | None = None,
    ):
        self.shape = I, J, K = tuple(int(s) for s in shape)
        self.n = int(n)
        if min(self.shape) < 1 or self.n < 1:
            raise ParameterError(
                f"A grid of {I} x {J} x {K} cells with blocks of size {n} is empty; give sizes from 1 on."
            )
        if by_warps and not _fits_warps(self.n):
            raise ParameterError(
                f"by_warps=True, with blocks of size {n}, on a GPU of capability {device_limits()['capability'] / 10}; "
                f"it is for sizes from {SMALLEST_BY_WARPS} to {LARGEST_BY_WARPS}, from 8.0 on. Leave it out."
            )
        self.cells = I * J * K
        self.grid = tuple(np.int32(min(s, MOST_CELLS)) for s in self.shape)
        self._kernels: dict = {}
        self.depth = I + J + K - 2
        ones = [np.ones(size, np.int64) for size in self.shape]
        in_plane = np.convolve(ones[1], ones[2])  # (j, k) with j + k = 0, 1, ...
        self.counts = np.convolve(ones[0], in_plane)
        widest = int(self.counts.max())
        fits = widest <= PRELOADED * device_limits()["processors"]
        self.preload = self.n <= LARGEST_PRELOADED and (fits if preload is None else preload)
        self.by_warps, self.dtype = by_warps, np.dtype(np.float64) if by_warps else None
        self.inverses = _inverse(J), _inverse(K)
        threads = 32 if by_warps else self.n**2  # a cell
        chosen = WARPS if by_warps else cells_of_a_block(self.n, NARROW if fits else WIDE)
        self.cells_per_block = int(cells_per_block) or min(chosen, _power_of_two(widest))
        most = 1024 // threads if self.n <= LARGEST_BLOCK else 1
        if not 1 <= self.cells_per_block <= most:
            raise ParameterError(
                f"cells_per_block={cells_per_block}; with blocks of size {self.n} there is room for 1 to {most}."
            )
        if self.n <= LARGEST_BLOCK:
            self._template: tuple[int, ...] = (self.n, self.cells_per_block)
            self._block = (self.cells_per_block * threads,)
        else:
            tiles, edge = tiles_of(self.n)
            self._template, self._block = (tiles,), (edge * edge,)
        padded = -(-self.counts // self.cells_per_block) * self.cells_per_block
        ends = np.cumsum(padded)
        if ends[-1] > MOST_CELLS:
            raise ParameterError(
                f"A grid of {I} x {J} x {K} cells needs {ends[-1]} places in wavefront order; at most {MOST_CELLS} are "
                f"numbered. Divide the grid."
            )
        self.n_blocks = int(ends[-1]) // self.cells_per_block
        if self.n_blocks > MOST_BLOCKS:
            raise ParameterError(
                f"A grid of {I} x {J} x {K} cells needs {self.n_blocks} thread blocks for a sweep; at most "
                f"{MOST_BLOCKS} are launched. Divide the grid."
            )
        self.starts = ends - padded
        self.order = cupy.empty(int(ends[-1]), np.int32)
        set_pending(self.order)
        starts = cupy.asarray(self.starts.astype(np.int32))
        diagonals = cupy.asarray(np.concatenate(([0], np.cumsum(in_plane))).astype(np.int32))
        kernel("stencil", "wavefront_order")(
            (blocks_for(self.cells, BLOCK),), (BLOCK,), (*self.grid, starts, diagonals, self.order)
        )

    def launch(self, function: str, sweeps: int, numbers: int, dtype, parameters: tuple, arguments: tuple) -> None:
        """Queue a kernel over the grid, `sweeps` times one after the other; `numbers` : of shared memory, a block.

        arguments : those after the grid's own.  Of stencil_warps.cu where the plan is by warps, else of stencil.cu.
        """
        key = (function, dtype.char, parameters)
        found = self._kernels.get(key)
        if found is None:
            _check_shared(self.n, numbers * dtype.itemsize)
            stem, types = ("stencil_warps", ()) if self.by_warps else ("stencil", (dtype,))
            found = self._kernels[key] = kernel(stem, function, *types, *self._template, *parameters)
        shared = numbers * dtype.itemsize
        found((sweeps * self.n_blocks,), self._block, (*self.grid, *arguments), shared_mem=shared)


@lru_cache(maxsize=8)
def _plan_on(device: int, shape, n: int, by_warps: bool) -> StencilPlan:
    plan = StencilPlan(shape, n, by_warps=by_warps)
    cupy.cuda.get_current_stream().synchronize()  # other streams will read the order too
    return plan


def plan_of(blocks) -> StencilPlan:
    """The plan for these blocks on the current device; the last eight are kept."""
    if blocks.ndim != 6 or blocks.shape[0] != 7:
        raise ParameterError(f"blocks are {blocks.shape}; the shape of 7-point block matrices is (7, I, J, K, n, n).")
    n = blocks.shape[-1]
    by_warps = blocks.dtype == np.float64 and _fits_warps(n)
    return _plan_on(cupy.cuda.runtime.getDevice(), blocks.shape[1:4], n, by_warps)


def _plan_for(blocks, d) -> StencilPlan:
    """plan_of(blocks), the same one while d lives: a graph that was recorded with d reads it at each launch, however
    many other grids have come since."""
    key = id(d), cupy.cuda.runtime.getDevice(), blocks.shape, blocks.dtype
    return while_alive(d, key, lambda: plan_of(blocks))


def _fits_warps(n: int) -> bool:
    """Whether stencil_warps.cu takes such blocks, and the current device, as all from Ampere on, its tensor cores."""
    return SMALLEST_BY_WARPS <= n <= LARGEST_BY_WARPS and device_limits()["capability"] >= 80


def _check_block_size(n: int) -> None:
    if n > MOST_TILES * TILE:
        raise ParameterError(f"Blocks of size {n} do not fit a thread block of the GPU; n is at most 128. {OTHER_WAYS}")


def _check_shared(n: int, wanted: int) -> None:
    room = device_limits()["shared"]
    if wanted > room:
        raise ParameterError(
            f"Blocks of size {n} need {wanted} bytes of shared memory, and a thread block of this GPU has {room}. "
            f"{OTHER_WAYS}"
        )


def _check(shape, n: int, blocks, d, *vectors, dtype=None) -> None:
    _check_array("blocks", blocks, (7, *shape, n, n), dtype or blocks.dtype)
    if d is not None:
        _check_array("d", d, (*shape, n, n), blocks.dtype)
    for vector in vectors:
        _check_array("a vector", vector, (shape[0] * shape[1] * shape[2] * n,), blocks.dtype)


def _check_array(name, array, shape, dtype) -> None:
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous or array.data.ptr % dtype.itemsize:
        raise ParameterError(
            f"{name} is {array.dtype} {array.shape}; {dtype} {shape}, C-contiguous and aligned, is needed here. "
            f"Copy or convert it, or use the StencilPlan of its shape and type."
        )


def stencil_residual(blocks, periodic, x, b, out) -> None:
    """out = b - A x, or A x if b is None; queued on the current stream.

    blocks : (7, I, J, K, n, n), see stencil.cu.  periodic : three booleans, for i, j, k.  x, b, out : (I J K n,);
    out may be b, not x. Cost: each block is read once, 7 n^2 + 3 n values a cell. By n^2 threads a cell; above n = 32
    in tiles, above 128 by Algorithm 7 as it is in the paper, a row a thread.
    """
    _, I, J, K, n, _ = blocks.shape
    _check((I, J, K), n, blocks, None, x, out, *(() if b is None else (b,)))
    along_i, along_j, along_k = (bool(p) for p in periodic)
    closed = np.int32(along_k | along_j << 1 | along_i << 2)
    grid, vectors = tuple(np.int32(s) for s in (I, J, K)), (blocks, x, optional(b), out)
    items, size, dtype = I * J * K, np.int32(n), x.dtype
    if n > MOST_TILES * TILE:
        kernel("stencil", "residual_by_rows", dtype)(
            (min(blocks_for(items * n, BLOCK), 2**20),), (BLOCK,), (*grid, size, closed, *vectors)
        )
    elif n > LARGEST_BLOCK:
        tiles, edge = tiles_of(n)
        numbers = tiles * edge * ((edge | 1) + 7)
        kernel("stencil", "residual_by_tiles", dtype, tiles)(
            (items,), (edge * edge,), (*grid, size, closed, *vectors), shared_mem=numbers * dtype.itemsize
        )
    else:
        cells = cells_of_a_block(n)
        threads = cells * n * n
        kernel("stencil", "stencil_residual", dtype, n, cells)(
            (blocks_for(items, cells),), (threads,), (*grid, closed, *vectors), shared_mem=threads * dtype.itemsize
        )


def block_ilu_factor(blocks, d, pivoting, plan: StencilPlan | None = None):
    """d (I, J, K, n, n) = inverses of the factorized diagonal blocks, in one launch; Algorithm 9.

    pivoting : Gauss-Jordan takes the largest entry of a column as its pivot.  plan : None for plan_of(blocks), which is
        then kept as long as d.
    Returns the first bad cell as a device array for first_bad; it is one whose block is singular (or, without
    pivoting, has a zero pivot) or not finite by itself, not by another's fault. n is at most 128: above 32 a thread
    owns several elements of a block. Nothing waits for the host.
    """
    plan = plan or _plan_for(blocks, d)
    _check_block_size(plan.n)
    _check(plan.shape, plan.n, blocks, d, dtype=plan.dtype)
    n, cells = plan.n, plan.cells_per_block
    words = cupy.empty(2, np.int32)
    bad, counter = words[:1], words[1:]
    set_pending(words)
    set_pending(d)
    rest = (plan.order, blocks, d, bad, counter)
    if plan.by_warps:
        of_plan = (*plan.inverses, np.int32(plan.n_blocks), *rest)
        plan.launch("factor_by_warps", 1, 0, d.dtype, (bool(pivoting),), of_plan)
    elif n <= LARGEST_BLOCK:
        numbers = cells * (9 * n * n + 4 * n)
        parameters = bool(pivoting), plan.preload
        plan.launch("factor_by_cells", 1, numbers, d.dtype, parameters, rest)
    else:
        tiles, edge = tiles_of(n)
        numbers = tiles * edge * (2 * edge + 4)
        plan.launch("factor_by_tiles", 1, numbers, d.dtype, (bool(pivoting),), (np.int32(n), *rest))
    return bad


def block_ilu_solve(blocks, d, b, x, trans, plan: StencilPlan | None = None) -> None:
    """x with M x = b ("N"), M^T x = b ("T") or M^H x = b ("H"), both sweeps in one launch; Algorithm 10.

    d : of block_ilu_factor.  b, x : (I J K n,), not overlapping. n is at most 128. Nothing waits for the host.
    plan : as in block_ilu_factor; one that is given must outlive a recording of this.
    """
    plan = plan or _plan_for(blocks, d)
    _check_block_size(plan.n)
    _check(plan.shape, plan.n, blocks, d, b, x, dtype=plan.dtype)
    if trans not in TRANS:
        raise ParameterError(f"trans={trans!r}; choose 'N', 'T' or 'H'.")
    if trans == "H" and x.dtype.kind != "c":
        trans = "T"  # the same, and no other kernel to compile
    n, cells = plan.n, plan.cells_per_block
    y = cupy.empty(x.size + 1, x.dtype)  # and the ticket counter
    set_pending(y)
    set_pending(x)
    rest = (plan.order, blocks, d, b, y, x, y[x.size :])
    of_plan = (np.int32(plan.n_blocks), *rest)
    if plan.by_warps:
        aligned = n % 2 == 0 and not any(v.data.ptr % 16 for v in (blocks, d, y, x))
        plan.launch("solve_by_warps", 2, 0, x.dtype, (trans != "N", aligned), (*plan.inverses, *of_plan))
    elif n <= LARGEST_BLOCK:
        numbers = cells * 2 * n * row_stride(n, x.dtype.itemsize)
        plan.launch("solve_by_cells", 2, numbers, x.dtype, (TRANS[trans],), of_plan)
    else:
        tiles, edge = tiles_of(n)
        numbers = tiles * edge * ((edge | 1) + 3)
        plan.launch("solve_by_tiles", 2, numbers, x.dtype, (TRANS[trans],), (np.int32(n), *rest))
