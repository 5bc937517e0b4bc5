"""Launchers of triangular.cu: plans that keep the analysis of a triangle and solve with it as often as wanted."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.errors import ParameterError
from finelu.kernels.cuda.levels import levels_on_device
from finelu.kernels.cuda.runtime.launch import MOST_COLUMNS, across, blocks, device_limits, for_each, kernel, optional
from finelu.kernels.cuda.runtime.memory import new_bad, set_pending
from finelu.kernels.cuda.runtime.schedule import (
    jobs_at_most,
    lanes_for,
    level_order,
    one_block_rows,
    padding_for,
    warps_per_level,
)
from finelu.kernels.operands import Triangle

TRIANGULAR_METHODS = ("sync_free", "level_packed", "one_block", "jacobi", "isai")

BLOCK = 128  # threads of a thread block
BLOCK_OF_COLUMNS = 256  # the same of several right-hand sides

# Measured on an H200 (benchmarks/results): where a level has few rows, an L2 round trip a level is the cost, and one
# block that keeps the unknowns in shared memory is fastest; where it has many, level order with few waiting warps is.
ONE_BLOCK_ROWS_PER_LEVEL = 90
LEVEL_PACKED_ROWS_PER_LEVEL = 120


def gather(values, source, out, conjugate=False) -> None:
    """out[p] = values[source[p]], conjugated on request."""
    n = source.dtype.type(out.size)
    for_each("triangular", "gather_values", (values.dtype, n.dtype), n, np.int32(conjugate), source, values, out)


def bound_by_bytes(plan) -> bool:
    """Whether the plan is one of sweeps; see kernels/reference/triangular.py.

    Exact solves of 6,500 to 6,100,000 entries a level took 0.94 to 1.01 of the time with values in single precision,
    and 0.93 to 0.99 in half (precision-half-2026-11-28).
    """
    return isinstance(plan, Jacobi)


def triangle_product(triangle: Triangle, values, x):
    """(D + N) x; see kernels/reference/triangular.py."""
    t, y, n = triangle, cupy.empty_like(x), triangle.indices.dtype.type(triangle.n)
    operands = t.begin, t.end, t.indices, optional(t.diag), values, x, y
    for_each("triangular", "triangle_product", (x.dtype, n.dtype), n, *operands)
    return y


class _Plan:
    """Common code of all methods: the values, the inverse of the diagonal, solves of several right-hand sides."""

    method = ""

    def __init__(self, triangle: Triangle, depth: int | None):
        self.triangle, self.depth = triangle, depth
        self.index = triangle.indices.dtype
        self.n = triangle.n
        self.values = self.inverse = None

    def load(self, values, check=True):
        """Take new values; with `check` the first row whose diagonal has no finite reciprocal, as a device array for
        first_bad."""
        bad = new_bad() if check else None
        self._invert_diagonal(values, bad)
        self._load(values)
        return bad

    def _invert_diagonal(self, values, bad=None) -> None:
        t = self.triangle
        if t.diag is not None:
            if self.inverse is None:
                self.inverse = cupy.empty(self.n, t.dtype)
            given = np.int32(t.conjugate), t.diag, values, self.inverse, optional(bad)
            for_each(
                "triangular", "invert_diagonal", (t.dtype, values.dtype, self.index), self.index.type(self.n), *given
            )

    def _load(self, values) -> None:  # natural order
        t = self.triangle
        if t.source is None:
            self.values = values
            return
        if self.values is None or self.values.dtype != values.dtype:
            self.values = cupy.empty(t.indices.size, values.dtype)
        gather(values, t.source, self.values, t.conjugate)

    def _matrix(self):
        """The rows of the triangle and its inverse diagonal, as arguments of a kernel."""
        t = self.triangle
        return t.begin, t.end, t.indices, self.values, optional(self.inverse)

    def _each(self, function: str, types: tuple, x, *arguments) -> None:
        """Launch a kernel of these types of values with a thread for each row and column of x."""
        columns, groups = across(x.size // self.n)
        given, lanes = (self.index.type(self.n), *columns, *arguments), 1 << int(columns[-1])
        for_each("triangular", function, (*types, self.index), *given, lanes=lanes, columns=groups)

    def solve(self, b, x) -> None:
        """x with T x = b, queued on the current stream; b and x (n,) or (n, k), C-contiguous, not overlapping."""
        solve_in_turn((self,), b, x)

    def _solve(self, b, x) -> None:
        raise NotImplementedError


class _Queued(_Plan):
    """Solves that are one kernel each, for which arrays or their addresses serve."""

    pending = True  # x, and a ticket counter for each of its columns, before the launch

    def _solve(self, b, x) -> None:
        _queue_in_turn((self,), b, x)

    def _queue(self, b, x, counters, columns: int, dtype) -> None:
        raise NotImplementedError

    def _queue_columns(self, order, warps: float, b, x, counters, columns: int, dtype) -> None:
        """Several right-hand sides, a warp a row.  order : None for natural order.  warps : that should be resident, 0
        for as many as there is room for."""
        columns, groups = across(columns)
        rows = self.index.type(self.n), *columns, np.int32(self.triangle.reverse), optional(order), *self._matrix()
        kernel("triangular", "trsv_columns", dtype, self.values.dtype, self.index)(
            (blocks(self.n * 32, BLOCK_OF_COLUMNS), groups),
            (BLOCK_OF_COLUMNS,),
            (*rows, b, x, counters),
            shared_mem=padding_for(warps * groups, BLOCK_OF_COLUMNS) if warps else 0,
        )


class SyncFree(_Queued):
    """Natural order, no analysis."""

    method = "sync_free"

    def __init__(self, triangle, depth=None):
        super().__init__(triangle, depth)
        self.lanes = lanes_for(triangle.entries / triangle.n)
        if triangle.n * self.lanes > 1_500_000:
            self.lanes = 1

    def _queue(self, b, x, counters, columns, dtype):
        if columns > 1:
            self._queue_columns(None, 0, b, x, counters, columns, dtype)
            return
        t, n = self.triangle, self.n
        kernel("triangular", "trsv_sync_free", dtype, self.values.dtype, self.index, self.lanes)(
            (blocks(n * self.lanes, BLOCK), 1),
            (BLOCK,),
            (self.index.type(n), np.int32(t.reverse), *self._matrix(), b, x, counters),
            shared_mem=BLOCK // self.lanes * dtype.itemsize,
        )


class _InLevelOrder(_Queued):
    """Rows in level order, cut into jobs of a warp each."""

    per_lane = 0

    def __init__(self, triangle, depth, packed):
        super().__init__(triangle, depth)
        self.order, self.jobs, self.n_jobs = packed

    @classmethod
    def packed(cls, triangle, level, deepest, depth):
        """Rows and jobs, see level_order."""
        most = triangle.n if depth is None else jobs_at_most(triangle, depth, triangle.longest)
        return level_order(triangle, level, deepest, depth, cls.per_lane, most_jobs=most)

    def _operand(self):
        return self.n_jobs, self.jobs, np.int32(self.triangle.reverse), self.order, *self._matrix()


class LevelPacked(_InLevelOrder):
    method = "level_packed"

    def __init__(self, triangle, depth, packed):
        super().__init__(triangle, depth, packed)
        self.warps = 5 * warps_per_level(triangle, depth)

    def _queue(self, b, x, counters, columns, dtype):
        if columns > 1:
            rows_a_level = self.n / self.depth
            self._queue_columns(self.order, 5 * rows_a_level, b, x, counters, columns, dtype)
            return
        warps = self.warps
        block = BLOCK if warps < 2 * device_limits()["processors"] * BLOCK / 32 else 2 * BLOCK
        kernel("triangular", "trsv_level_packed", dtype, self.values.dtype, self.index)(
            (blocks(self.jobs.shape[0] * 32, block), 1),
            (block,),
            (*self._operand(), b, x, counters),
            shared_mem=padding_for(warps, block),
        )


class OneBlock(_InLevelOrder):
    method = "one_block"
    pending = False  # in shared memory
    per_lane = 8
    threads = 512

    def _queue(self, b, x, counters, columns, dtype):
        kernel("triangular", "trsv_one_block", dtype, self.values.dtype, self.index)(
            (1, columns),
            (self.threads,),
            (self.index.type(self.n), *self._operand(), b, x),
            shared_mem=self.n * dtype.itemsize,
        )


class Jacobi(_Plan):
    """x <- D^-1 (b - N x), `sweeps` times, from x = D^-1 b."""

    method = "jacobi"

    def __init__(self, triangle, sweeps):
        super().__init__(triangle, None)
        self.sweeps = sweeps

    def load_half(self, values, room, lost):
        """Take new values, real ones, and keep those off the diagonal in half precision.

        room (nnz,) float16 : where they go if they are read in natural order, which two triangles of one matrix may
            share; else the plan has memory of its own.
        lost (1,) : becomes 1 if a value is out of range, of 65504 times its diagonal entry or twice that. Waits for
            nothing.
        """
        t = self.triangle
        self._invert_diagonal(values)
        if t.source is not None:
            room = cupy.empty(t.indices.size, np.float16)
        given = t.begin, t.end, optional(t.source), values, optional(self.inverse), room, lost
        for_each("triangular", "halved", (t.dtype, self.index), self.index.type(self.n), *given)
        self.values = room

    def _solve(self, b, x):
        other = cupy.empty_like(x)
        source, target = (other, x) if self.sweeps % 2 == 0 else (x, other)
        source.fill(0)  # the first call makes D^-1 b of it; then come the sweeps, the last of which writes x
        for _ in range(self.sweeps + 1):
            self._each("jacobi_sweep", (x.dtype, self.values.dtype), x, *self._matrix(), b, source, target)
            source, target = target, source


class ISAI(_Plan):
    """x = W b with an incomplete sparse approximate inverse W; then `sweeps` - 1 corrections x <- x + W (b - T x)."""

    method = "isai"

    def __init__(self, triangle, sweeps):
        super().__init__(triangle, None)
        self.sweeps = sweeps
        self.w = self.w_diag = None

    def load(self, values, check=True):
        bad = super().load(values, check)
        t, n = self.triangle, self.n
        if self.w is None:
            self.w, self.w_diag = cupy.empty(t.indices.size, values.dtype), cupy.empty(n, values.dtype)
        given = np.int32(t.reverse), *self._matrix(), self.w, self.w_diag
        for_each("triangular", "isai", (values.dtype, self.index), self.index.type(n), *given, block=128)
        return bad

    def _solve(self, b, x):
        t = self.triangle
        inverse = t.begin, t.end, t.indices, self.w, self.w_diag
        self._each("isai_apply", (x.dtype,), x, *inverse, b, np.int32(0), x)
        r = cupy.empty_like(x) if self.sweeps > 1 else None
        for _ in range(self.sweeps - 1):
            self._each("triangle_residual", (x.dtype,), x, *self._matrix(), b, x, r)
            self._each("isai_apply", (x.dtype,), x, *inverse, r, np.int32(1), x)


def solve_in_turn(plans, b, x) -> None:
    """Solve with one plan after the other, each with the solution of the one before as right-hand side, from b to x.
    Queued on the current stream."""
    columns = x.size // plans[0].n
    if columns > MOST_COLUMNS:
        raise ParameterError(f"{columns} right-hand sides at once; the GPU takes at most {MOST_COLUMNS}.")
    if all(isinstance(plan, _Queued) for plan in plans):
        _queue_in_turn(plans, b, x)
        return
    for plan in plans[:-1]:
        between = cupy.empty_like(x)
        plan._solve(b, between)
        b = between
    plans[-1]._solve(b, x)


def _queue_in_turn(plans, b, x) -> None:
    """`solve_in_turn` with the ticket counters, and the vectors between the solves, in one array."""
    columns, last = x.size // plans[0].n, len(plans) - 1
    counters, between = (-(-size // 16) * 16 for size in (4 * columns, x.nbytes))  # bytes, where 16 divide each place
    space = cupy.empty(len(plans) * counters + last * between, np.uint8)
    if any(plan.pending for plan in plans):
        set_pending(space)
    place = space.data.ptr
    for number, plan in enumerate(plans):
        if number == last and plan.pending:
            set_pending(x)  # only now, as it may be b
        tickets, target = np.uint64(place), x if number == last else np.uint64(place + counters)
        plan._queue(b, target, tickets, columns, x.dtype)
        b, place = target, place + counters + between


def triangular_plan(triangle: Triangle, method: str, sweeps: int):
    """The plan of a method, or of the one that should be fastest here (`auto`); see TRIANGULAR_METHODS.

    auto: the levels are found first. One block if the unknowns fit into its shared memory and a level has few rows;
    sync-free if a level has few rows; else level-packed.
    """
    if method == "jacobi":
        return Jacobi(triangle, sweeps)
    if method == "isai":
        return ISAI(triangle, sweeps)
    if method == "sync_free":
        return SyncFree(triangle)
    level, deepest = levels_on_device(triangle)
    fits = triangle.n <= one_block_rows(np.dtype(triangle.dtype).itemsize)
    if method == "one_block" and not fits:
        raise ParameterError(
            f"method='one_block' keeps the unknowns in the shared memory of one block, which holds "
            f"{one_block_rows(np.dtype(triangle.dtype).itemsize)} of them; this system has {triangle.n} rows."
        )
    # one block is likely: the host makes its launches ready while the levels are found
    early = OneBlock.packed(triangle, level, deepest, None) if fits and method in ("auto", "one_block") else None
    depth = deepest.item() + 1
    width = triangle.n / depth
    if method == "auto":
        if fits and width <= ONE_BLOCK_ROWS_PER_LEVEL:
            method = "one_block"
        else:
            method = "sync_free" if width <= LEVEL_PACKED_ROWS_PER_LEVEL else "level_packed"
    if method == "sync_free":
        return SyncFree(triangle, depth)
    if method == "one_block":
        return OneBlock(triangle, depth, early)
    return LevelPacked(triangle, depth, LevelPacked.packed(triangle, level, deepest, depth))
