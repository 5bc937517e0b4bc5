"""Launchers of fgbilu_acc.cu: block ILU(0) on a grid in the ACC style of its paper, for blocks of any size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from finelu.kernels.cuda.runtime.launch import kernel
from finelu.kernels.cuda.stencil import StencilPlan, plan_of

# An absolute path, which `kernel` takes as it takes the stem of a file of its own.
SOURCE = str(Path(__file__).with_name("fgbilu_acc"))
BLOCK, MOST_BLOCKS = 256, 2**20


def _launch(function: str, dtype: Any, items: int, arguments: tuple) -> None:
    """A kernel over `items`; nothing if there are none (n = 1)."""
    if items:
        kernel(SOURCE, function, dtype)((min(-(-items // BLOCK), MOST_BLOCKS),), (BLOCK,), arguments)


def planes(plan: StencilPlan, backward: bool = False) -> Iterator[tuple[int, Any]]:
    """(cells, their part of the plan's order) of each hyperplane."""
    for p in range(plan.depth - 1, -1, -1) if backward else range(plan.depth):
        start, count = int(plan.starts[p]), int(plan.counts[p])
        yield count, plan.order[start : start + count]


def block_ilu_factor_acc(blocks: Any, d: Any) -> Any:
    """The same as finelu's block_ilu_factor without pivoting, in 3 n + 2 launches a hyperplane: Algorithm 4.

    Returns the first bad cell as a device array, which holds -1 if no cell is bad.
    Workspace: 3 n^2 values for each cell of the widest hyperplane.
    """
    plan = plan_of(blocks)
    n, dtype = plan.n, d.dtype
    bad = cupy.full(1, -1, np.int32)
    s = cupy.empty(3 * int(plan.counts.max()) * n * n, dtype)
    grid, size = plan.grid, np.int32(n)
    for cells, plane in planes(plan):
        count = np.int32(cells)
        _launch("acc_products", dtype, cells * n * n, (*grid, size, count, plane, blocks, d, s))
        _launch("acc_subtract", dtype, cells * n * n, (*grid, size, count, plane, blocks, s, d))
        for r in range(n):
            step = (size, np.int32(r), count, plane, d, bad)
            _launch("acc_scale", dtype, cells * 2 * (n - 1), step)
            _launch("acc_eliminate", dtype, cells * (n - 1) ** 2, step)
            _launch("acc_invert_pivot", dtype, cells, step)
    return bad


def block_ilu_solve_acc(blocks: Any, d: Any, b: Any, x: Any) -> None:
    """The same as finelu's block_ilu_solve with trans="N", in 4 launches a hyperplane: Algorithm 6."""
    plan = plan_of(blocks)
    n, dtype = plan.n, x.dtype
    z = cupy.empty(int(plan.counts.max()) * n, dtype)
    grid, size = plan.grid, np.int32(n)
    for backward in (False, True):
        way = np.int32(backward)
        for cells, plane in planes(plan, backward):
            count = np.int32(cells)
            _launch("acc_gather", dtype, cells * n, (*grid, size, count, way, plane, blocks, b, x, z))
            _launch("acc_apply", dtype, cells * n, (size, count, way, plane, d, z, x))
