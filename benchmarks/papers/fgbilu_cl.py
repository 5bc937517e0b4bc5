"""Launchers of fgbilu_cl.cu: block ILU(0) on a grid in the CL style of its paper, a launch a hyperplane; n up to 32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cupy
import numpy as np

from benchmarks.papers.fgbilu_acc import planes
from finelu.errors import ParameterError
from finelu.kernels.cuda.runtime.launch import kernel
from finelu.kernels.cuda.stencil import LARGEST_BLOCK, StencilPlan, cells_of_a_block, plan_of

SOURCE = str(Path(__file__).with_name("fgbilu_cl"))


def _plan_of(blocks: Any) -> StencilPlan:
    if blocks.shape[-1] > LARGEST_BLOCK:
        raise ParameterError(
            f"Blocks of size {blocks.shape[-1]}; the CL style has n^2 threads a cell, so n is at most 32."
        )
    return plan_of(blocks)


def _launch(function: str, dtype: Any, n: int, cells: int, numbers: int, arguments: tuple) -> None:
    """A kernel over the cells of a hyperplane; numbers : of shared memory, a cell."""
    together = cells_of_a_block(n)  # as the paper, a common multiple of n^2 and the warp while n is small: 8 for n = 6
    kernel(SOURCE, function, dtype, n)(
        (-(-cells // together),), (together * n * n,), arguments, shared_mem=together * numbers * dtype.itemsize
    )


def block_ilu_factor_cl(blocks: Any, d: Any) -> Any:
    """The same as finelu's block_ilu_factor without pivoting, in a launch a hyperplane: Algorithm 9.

    Returns the first bad cell as a device array, which holds -1 if no cell is bad. ParameterError above n = 32.
    """
    plan = _plan_of(blocks)
    n, dtype = plan.n, d.dtype
    bad = cupy.full(1, -1, np.int32)
    for cells, plane in planes(plan):
        _launch("cl_factor", dtype, n, cells, 3 * n * n, (*plan.grid, np.int32(cells), plane, blocks, d, bad))
    return bad


def block_ilu_solve_cl(blocks: Any, d: Any, b: Any, x: Any) -> None:
    """The same as finelu's block_ilu_solve with trans="N", in two launches a hyperplane, one a sweep: Algorithm 10."""
    plan = _plan_of(blocks)
    n, dtype = plan.n, x.dtype
    for function, backward, vectors in (("cl_forward", False, (b, x)), ("cl_backward", True, (x,))):
        for cells, plane in planes(plan, backward):
            _launch(function, dtype, n, cells, n * n + n, (*plan.grid, np.int32(cells), plane, blocks, d, *vectors))
