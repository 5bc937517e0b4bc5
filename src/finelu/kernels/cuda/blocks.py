"""Launchers of blocks.cu: block matrices of any pattern, their block ILU(0) and its solves; inverses of many blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cupy
import numpy as np

from finelu.device import free_memory
from finelu.errors import MatrixError, ParameterError
from finelu.kernels.cuda.levels import levels_on_device
from finelu.kernels.cuda.runtime.launch import BLOCK, NULL, device_limits, for_each, kernel, optional
from finelu.kernels.cuda.runtime.launch import blocks as blocks_for
from finelu.kernels.cuda.runtime.memory import new_bad, set_pending, set_zero, while_alive
from finelu.kernels.operands import Triangle

LARGEST_BLOCK = 32  # the rows that have been pivots are the bits of one word
MOST_PLACES = 2**31 - 1  # in level order: they are numbered by 32-bit integers
CHUNK = 4  # as in blocks.cu
TRANS = {"N": "PLAIN", "T": "TRANSPOSED", "H": "ADJOINT"}


class Team(NamedTuple):
    """How many threads share a block row; see blocks.cuh.

    per_thread : elements of a block a thread has.  threads : of a block row.  per_warp : block rows of a warp.
    rows, block : block rows and threads of a thread block.
    """

    per_thread: int
    threads: int
    per_warp: int
    rows: int
    block: int


def team_for(n: int) -> Team:
    """Up to n = 8 a warp or a part of it, so that few of its threads idle; beyond, n^2 / 2 or n^2 / 4 threads."""
    per_thread = 1 if n <= 4 else 3 if n == 6 else 2 if n <= 16 else 4
    threads = -(-n // per_thread) * n
    if threads > 32:
        return Team(per_thread, threads, 1, 1, threads)
    per_warp = 32 // threads
    return Team(per_thread, threads, per_warp, 4 * per_warp, 128)


def batch_for(n: int, dtype) -> int:
    """Steps of a factorization whose operands are asked for at once; fewer where blocks fill the shared memory."""
    size = n * n * np.dtype(dtype).itemsize
    return 6 if size <= 2048 else 4 if size <= 8192 else 2


class Order(NamedTuple):
    """Block rows in level order; -1 fills a level up to the rows of a warp, and the end to those of a thread block.

    order (places,) int32.  level, parent (rows,) int32, see blocks.cu.  depth : how many levels.
    """

    order: Any
    level: Any
    parent: Any
    depth: int


def _in_level_order(triangle: Triangle, team: Team) -> Order:
    n, index = triangle.n, triangle.indices.dtype
    level, deepest = levels_on_device(triangle)
    depth = int(deepest[0]) + 1
    counts = cupy.bincount(level, minlength=depth)
    padded = -(-counts // team.per_warp) * team.per_warp
    ends = cupy.cumsum(padded)
    places = -(-int(ends[-1]) // team.rows) * team.rows
    if places > MOST_PLACES:
        raise MatrixError(f"{n} block rows need {places} places in level order; at most {MOST_PLACES} are numbered.")
    by_level = cupy.argsort(level, kind="stable")
    shift = (ends - padded) - (cupy.cumsum(counts) - counts)  # how far a level is moved by the filling of those before
    order = cupy.full(places, -1, np.int32)
    order[cupy.arange(n) + shift[level[by_level]]] = by_level.astype(np.int32)
    parent = cupy.empty(n, np.int32)
    entries = triangle.begin, triangle.end, triangle.indices
    for_each("blocks", "parents", (index,), index.type(n), *entries, level, parent)
    return Order(order, level, parent, depth)


def _early_rows(order: Order, triangle: Triangle, steps, batch: int):
    early = cupy.empty(order.order.size, np.int32)
    given = order.order, triangle.begin, triangle.end, optional(steps), np.int32(batch), order.parent, early
    for_each("blocks", "early_rows", (triangle.indices.dtype,), np.int32(early.size), *given)
    return early


def _triangle(indptr, indices, diag, *, lower: bool) -> Triangle:
    begin, end = (indptr[:-1], diag) if lower else (diag + 1, indptr[1:])
    entries = max(0, indices.size - diag.size) // 2  # about: how many threads look for levels depends on it
    return Triangle(diag.size, begin, end, indices, not lower, None, None, False, entries, 0, None)


@dataclass(eq=False)
class FactorPlan:
    """The plan of bsr_ilu0_factor for a pattern: the order of the rows, and the operations on each; see blocks.cu.

    order, early : as in blocks.cu.  depth : levels.  program (rows + 1,) int64 : where the steps of a row begin in
    codes (int32) and operands.  fresh_start (rows + 1,) int64 : where the blocks that other rows need of a row begin in
    an array of `fresh` blocks.  longest : the most blocks of a row that change, without the diagonal one.  batch : see
    batch_for.
    Memory: 8 bytes (12 with 64-bit indices) for each product of two blocks that the elimination makes.
    """

    order: Any
    early: Any
    depth: int
    program: Any
    codes: Any
    operands: Any
    fresh_start: Any
    fresh: int
    longest: int
    batch: int


def factor_plan(indptr, indices, diag, n: int, batch: int) -> FactorPlan:
    """The plan of a pattern whose diagonal blocks are all stored; made on the device.

    Raises MatrixError where the steps do not fit into the free memory. Cost: a search for each product of two blocks,
    a sort of the rows by level; the host waits for four numbers.
    """
    rows, index = diag.size, indices.dtype
    lower = _triangle(indptr, indices, diag, lower=True)
    order = _in_level_order(lower, team_for(n))
    length, changed = cupy.empty(indices.size, np.int32), cupy.empty(rows, np.int32)
    set_zero(changed)
    grid, pattern = (blocks_for(indices.size * 32, BLOCK),), (index.type(rows), indptr, indices, diag)
    kernel("blocks", "count_intersections", index)(grid, (BLOCK,), (*pattern, length, changed))
    ends = cupy.cumsum(length, dtype=np.int64)
    fresh_start = _starts(cupy.cumsum(changed + 1, dtype=np.int64))
    steps, fresh = int(ends[-1]), int(fresh_start[-1])
    longest = int((diag - indptr[:-1] + changed).max())
    needed, free = steps * (4 + index.itemsize), free_memory(indices)
    if needed > free:
        raise MatrixError(
            f"the elimination of this pattern multiplies blocks {steps} times, and the list of them takes "
            f"{needed / 2**30:.1f} GiB; {free / 2**30:.1f} GiB of the GPU's memory are free. Use the CPU, or a sparser "
            "pattern."
        )
    codes, operands = cupy.empty(max(steps, 1), np.int32), cupy.empty(max(steps, 1), index)
    kernel("blocks", "write_intersections", index)(
        grid, (BLOCK,), (*pattern, length, ends, fresh_start, codes, operands)
    )
    program = _starts(ends)[indptr]
    early = _early_rows(order, lower, program, batch)
    return FactorPlan(order.order, early, order.depth, program, codes, operands, fresh_start, fresh, longest, batch)


def _starts(ends):
    starts = cupy.empty(ends.size + 1, ends.dtype)
    starts[0], starts[1:] = 0, ends
    return starts


@dataclass(eq=False)
class SolvePlan:
    """The plan of bsr_ilu0_solve for a pattern: the order of the rows in each sweep, and its number of levels."""

    order_lower: Any
    early_lower: Any
    depth_lower: int
    order_upper: Any
    early_upper: Any
    depth_upper: int


def solve_plan(indptr, indices, diag, n: int) -> SolvePlan:
    """The plan of a pattern (for "T" and "H" of the transposed one) whose diagonal blocks are all stored.

    Cost: two sorts of the rows by level; the host waits for four numbers.
    """
    parts: list[Any] = []
    for lower in (True, False):
        triangle = _triangle(indptr, indices, diag, lower=lower)
        order = _in_level_order(triangle, team_for(n))
        parts += [order.order, _early_rows(order, triangle, None, CHUNK), order.depth]
    return SolvePlan(*parts)


def _for_pattern(make, indptr, indices, diag, *options):
    """make(indptr, indices, diag, *options), once for these very arrays, while `indices` lives."""
    key = make, id(indptr), id(indices), id(diag), *options

    def made():
        plan = make(indptr, indices, diag, *options)
        cupy.cuda.get_current_stream().synchronize()  # other streams will read it too
        return plan, indptr, diag  # while these two are held, no other array has their id

    return while_alive(indices, key, made)[0]


def _check_block_size(n: int) -> None:
    if not 1 <= n <= LARGEST_BLOCK:
        raise ParameterError(f"Blocks of size {n}; on the GPU they have 1 to {LARGEST_BLOCK} rows. Use the CPU.")


def _check(name: str, array, shape, dtype) -> None:
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise ParameterError(
            f"{name} is {array.dtype} {array.shape}; {dtype} {shape}, C-contiguous, is needed here. Convert it."
        )


def _check_pattern(indptr, indices, diag, data) -> None:
    """Arrays of one index type, and blocks (nb, n, n), n from 1 to 32."""
    _check_block_size(data.shape[-1])
    rows, index = indptr.size - 1, indices.dtype
    _check("data", data, (indices.size, data.shape[-1], data.shape[-1]), data.dtype)
    for name, array, size in (("indptr", indptr, rows + 1), ("indices", indices, indices.size), ("diag", diag, rows)):
        if array is not None:
            _check(name, array, (size,), index)


def _way(trans, dtype) -> str:
    """The constant of blocks.cu for `trans`; a real matrix has no other adjoint than its transpose."""
    if trans not in TRANS:
        raise ParameterError(f"trans={trans!r}; choose 'N', 'T' or 'H'.")
    return TRANS["T" if trans == "H" and dtype.kind != "c" else trans]


def bsr_residual(indptr, indices, data, x, b, out) -> None:
    """out = b - A x, or A x if b is None; queued on the current stream.

    data : (nb, n, n), n at most 32.  x : (columns n,).  b, out : (rows n,); out may be b, not x. Cost: each block is
    read once.
    """
    _check_pattern(indptr, indices, None, data)
    n, rows = data.shape[-1], indptr.size - 1
    _check("x", x, (x.size // n * n,), data.dtype)
    for name, vector in (("b", b), ("out", out)):
        if vector is not None:
            _check(name, vector, (rows * n,), data.dtype)
    _product("RESIDUAL", NULL, indptr, indices, data, x, optional(b), out)


def _product(result: str, rows, indptr, indices, data, x, b, out) -> None:
    """A x, used as `result` says, see bsr_product of blocks.cu."""
    n, index, count = data.shape[-1], indices.dtype, indptr.size - 1
    team = team_for(n)
    kernel("blocks", "bsr_product", data.dtype, index, n, team.per_thread, result)(
        (blocks_for(count, team.rows),),
        (team.block,),
        (index.type(count), rows, indptr, indices, data, x, b, out),
        shared_mem=team.rows * n * n * data.dtype.itemsize,
    )


def bsr_accumulate(rows, indptr, indices, data, x, out, subtract) -> None:
    """out_rows[i] += (A x)_i, or -= where `subtract`, for each block row i of A; queued on the current stream.

    rows : (rows of A,) int64, block rows of out, each once.  data : (nb, n, n), n at most 32.  x : (columns n,), not
    overlapping out, (m n,). Cost: each block is read once.
    """
    _check_pattern(indptr, indices, None, data)
    n, count = data.shape[-1], indptr.size - 1
    _check("rows", rows, (count,), np.int64)
    for name, vector in (("x", x), ("out", out)):
        _check(name, vector, (vector.size // n * n,), data.dtype)
    _product("SUBTRACT" if subtract else "ADD", rows, indptr, indices, data, x, NULL, out)


def bsr_ilu0_factor(indptr, indices, diag, lu, pivoting, plan: FactorPlan | None = None):
    """lu (nb, n, n), the blocks of A, becomes L, the inverses of U's diagonal blocks, and U, in one launch.

    pivoting : Gauss-Jordan takes the largest entry of a column as its pivot.  plan : None for that of the pattern,
    which is made at the first call with these very arrays and kept while `indices` lives; they must not be changed.
    Returns the first bad block row as a device array for first_bad: it has a pivot that is zero or without a finite
    reciprocal, or gets a value that is not finite. A's blocks are finite, and its diagonal blocks all stored; n is at
    most 32. Workspace: plan.fresh blocks, which are those of the diagonal and the upper ones that change.
    """
    _check_pattern(indptr, indices, diag, lu)
    n, dtype = lu.shape[-1], lu.dtype
    if plan is None:
        plan = _for_pattern(factor_plan, indptr, indices, diag, n, batch_for(n, dtype))
    team = team_for(n)
    per_block = team.rows * dtype.itemsize
    fixed = (plan.batch + 1) * n * n + 4 * n
    # as many blocks of a row in shared memory as leave room for two thread blocks a multiprocessor
    room = (device_limits()["shared"] // 2 - 1024) // per_block - fixed
    room = min(plan.longest, max(0, room // (n * n)))
    fresh, words = cupy.empty(plan.fresh * n * n, dtype), cupy.empty(2, np.int32)
    bad, counter = words[:1], words[1:]
    set_pending(words)
    set_pending(fresh)
    kernel("blocks", "bsr_factor", dtype, indices.dtype, n, team.per_thread, plan.batch, bool(pivoting))(
        (plan.order.size // team.rows,),
        (team.block,),
        (
            *(plan.order, plan.early, indptr, diag, plan.program, plan.codes, plan.operands, plan.fresh_start),
            *(np.int32(room), lu, fresh, bad, counter),
        ),
        shared_mem=per_block * (room * n * n + fixed),
    )
    return bad


def bsr_ilu0_solve(indptr, indices, places, diag, lu, b, x, trans, plan: SolvePlan | None = None) -> None:
    """x with M x = b ("N"), M^T x = b ("T") or M^H x = b ("H"), both sweeps in one launch.

    indptr, indices, places, diag : the pattern, for "T" and "H" the transposed one, see kernels/reference/blocks.py;
    plan : as for bsr_ilu0_factor.  lu : of bsr_ilu0_factor.  b, x : (rows n,); where they overlap, b is copied.
    """
    _check_pattern(indptr, indices, diag, lu)
    way = _way(trans, lu.dtype)
    n, dtype, index = lu.shape[-1], lu.dtype, indices.dtype
    _check("places", places, indices.shape, index)
    size = diag.size * n
    _check("b", b, (size,), dtype)
    _check("x", x, (size,), dtype)
    if plan is None:
        plan = _for_pattern(solve_plan, indptr, indices, diag, n)
    if cupy.may_share_memory(b, x):
        b = b.copy()
    team = team_for(n)
    y = cupy.empty(size + 1, dtype)  # and the ticket counter
    set_pending(y)
    set_pending(x)
    forward, backward = (order.size // team.rows for order in (plan.order_lower, plan.order_upper))
    kernel("blocks", "bsr_solve", dtype, index, n, team.per_thread, way)(
        (forward + backward,),
        (team.block,),
        (
            *(np.int32(forward), plan.order_lower, plan.early_lower, plan.order_upper, plan.early_upper),
            *(indptr, indices, NULL if trans == "N" else places, diag, lu, b, y, x, y[size:]),
        ),
        shared_mem=team.rows * (n * n + n) * dtype.itemsize,
    )


def invert_blocks(blocks, out, pivoting):
    """out (m, n, n) = the inverses of blocks (m, n, n); out may be blocks. n is at most 32.

    Returns the first bad block as a device array for first_bad: one with a pivot that is zero or without a finite
    reciprocal, or whose inverse is not finite.
    """
    m, n = blocks.shape[:2]
    _check_block_size(n)
    for name, array in (("blocks", blocks), ("out", out)):
        _check(name, array, (m, n, n), blocks.dtype)
    team, bad = team_for(n), new_bad()
    if m:
        kernel("blocks", "invert_blocks", blocks.dtype, n, team.per_thread, bool(pivoting))(
            (blocks_for(m, team.rows),),
            (team.block,),
            (np.int64(m), blocks, out, bad),
            shared_mem=team.rows * 4 * n * blocks.dtype.itemsize,
        )
    return bad


def blocks_times(blocks, x, out, trans) -> None:
    """out_i = B_i x_i ("N"), B_i^T x_i ("T") or B_i^H x_i ("H"): blocks (m, n, n), n up to 32, x and out (m n,), or
    (m n, k) in one pass over the blocks.

    out may be x.
    """
    m, n = blocks.shape[:2]
    _check_block_size(n)
    way = _way(trans, blocks.dtype)
    _check("blocks", blocks, (m, n, n), blocks.dtype)
    shape = (m * n, *x.shape[1:])
    _check("x", x, shape, blocks.dtype)
    _check("out", out, shape, blocks.dtype)
    team = team_for(n)
    if out.size:
        kernel("blocks", "blocks_times", blocks.dtype, n, team.per_thread, way)(
            (blocks_for(m, team.rows),),
            (team.block,),
            (np.int64(m), np.int32(x.size // (m * n)), blocks, x, out),
            shared_mem=team.rows * (n * n + n) * blocks.dtype.itemsize,
        )
