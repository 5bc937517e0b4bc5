"""The columns of the GPU in the block ILU paper's tables: finelu's styles and cuSPARSE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.harness.clock import Timing, gpu_time
from benchmarks.harness.record import Run
from benchmarks.papers.fgbilu_cpu import FLUSH, Reference, add
from benchmarks.papers.fgbilu_systems import residual_by_arrays
from finelu.matrix.stencil import StencilMatrix

LARGEST_OF_CL = 32  # n


@cache
def _scratch():
    import cupy

    return cupy.zeros(FLUSH // 8), cupy.empty(())


def flush(i: int = 0) -> None:
    """Read so much that the GPU's cache holds nothing else; queued."""
    values, total = _scratch()
    values.sum(out=total)


def cold_gpu_time(call: Callable[[int], Any], before: Callable[[int], Any] | None = None) -> Timing:
    """gpu_time with nothing of use in the cache; before(i), if any, comes first."""

    def prepare(i):
        if before:
            before(i)
        flush()

    return gpu_time(call, before=prepare)


class Device:
    """A and b on the GPU, the output arrays of the measurements, and the reference for their results."""

    def __init__(self, A: StencilMatrix, b, reference: Reference | None):
        import cupy

        self.A, self.b, self.reference = A, b, reference
        self.d, (self.x, self.r) = cupy.empty(A.blocks.shape[1:]), (cupy.empty_like(b) for _ in range(2))
        self.solution = None if reference is None else cupy.asarray(reference.x.reshape(-1))
        self.scale = float(cupy.linalg.norm(b))

    def of_solve(self, x: Any) -> float | None:
        """The relative difference from the reference's M^-1 b; the first result becomes the reference if none is."""
        import cupy

        if not bool(cupy.isfinite(x).all()):
            raise RuntimeError("M^-1 b is not finite")
        if self.solution is None:
            self.solution = x.copy()
            return None
        return float(cupy.linalg.norm(x - self.solution) / cupy.linalg.norm(self.solution))

    def of_residual(self, r: Any) -> float:
        """How far r is from b - A x of CuPy's own products, over the norm of b."""
        import cupy

        return float(cupy.linalg.norm(r - residual_by_arrays(self.A, self.solution, self.b)) / self.scale)


def raise_if_bad(bad: Any) -> None:
    """RuntimeError for a factorization on the GPU that met a bad pivot."""
    if (cell := int(bad.item())) >= 0:
        raise RuntimeError(f"reports a bad pivot in cell or block row {cell}")


def acc_style(run: Run, name: str, on: Device) -> None:
    from benchmarks.papers import fgbilu_acc

    A = on.A
    with run.attempt(name, "GPU ACC"):
        raise_if_bad(fgbilu_acc.block_ilu_factor_acc(A.blocks, on.d))
        factor = cold_gpu_time(lambda i: fgbilu_acc.block_ilu_factor_acc(A.blocks, on.d))
        solve = cold_gpu_time(lambda i: fgbilu_acc.block_ilu_solve_acc(A.blocks, on.d, on.b, on.x))
        error = on.of_solve(on.x)
        add(run, name, "factor", "gpu", "finelu", "ACC", factor, error)
        add(run, name, "solve", "gpu", "finelu", "ACC", solve, error)


def cl_launches(run: Run, name: str, on: Device) -> None:
    """The CL style as the paper has it, a launch a hyperplane; a cell has n^2 threads, so n is at most 32."""
    from benchmarks.papers import fgbilu_cl

    A = on.A
    if A.n_block > LARGEST_OF_CL:
        run.left_out[f"GPU CL, launches, {name}"] = f"n^2 threads a cell, of at most {LARGEST_OF_CL**2}"
        return
    with run.attempt(name, "GPU CL, launches"):
        raise_if_bad(fgbilu_cl.block_ilu_factor_cl(A.blocks, on.d))
        factor = cold_gpu_time(lambda i: fgbilu_cl.block_ilu_factor_cl(A.blocks, on.d))
        solve = cold_gpu_time(lambda i: fgbilu_cl.block_ilu_solve_cl(A.blocks, on.d, on.b, on.x))
        error = on.of_solve(on.x)
        add(run, name, "factor", "gpu", "finelu", "CL, launches", factor, error)
        add(run, name, "solve", "gpu", "finelu", "CL, launches", solve, error)


def cl_style(run: Run, name: str, on: Device, ways: Sequence[bool]) -> None:
    """ways : with pivoting or without; the last leaves its factors. There is one residual for all styles."""
    from finelu.kernels.cuda import stencil

    A = on.A
    for pivoting in ways:
        variant = "CL, pivoting" if pivoting else "CL"
        with run.attempt(name, f"GPU {variant}"):
            raise_if_bad(stencil.block_ilu_factor(A.blocks, on.d, pivoting))
            plan = gpu_time(lambda i: stencil.StencilPlan(A.shape_cells, A.n_block), host=True)
            factor = cold_gpu_time(lambda i, p=pivoting: stencil.block_ilu_factor(A.blocks, on.d, p))
            solve = cold_gpu_time(lambda i: stencil.block_ilu_solve(A.blocks, on.d, on.b, on.x, "N"))
            error = on.of_solve(on.x)
            add(run, name, "factor", "gpu", "finelu", variant, factor, error, analysis=plan)
            add(run, name, "solve", "gpu", "finelu", variant, solve, error, analysis=0.0)
    with run.attempt(name, "GPU residual"):
        residual = cold_gpu_time(lambda i: stencil.stencil_residual(A.blocks, A.periodic, on.solution, on.b, on.r))
        add(run, name, "residual", "gpu", "finelu", "CL", residual, on.of_residual(on.r))


def without_grid(run: Run, name: str, on: Device, B: SimpleNamespace) -> None:
    """The same matrix as BSR, by finelu."""
    import cupy

    from finelu.kernels.cuda import blocks

    with run.attempt(name, "GPU BSR"):
        lu, places, n = B.data.copy(), cupy.arange(B.indices.size, dtype=np.int32), B.data.shape[1]
        pattern = B.indptr, B.indices, B.diag
        batch = blocks.batch_for(n, lu.dtype)
        plan = blocks.factor_plan(*pattern, n, batch)
        plan_of_solves = blocks.solve_plan(*pattern, n)
        analysis = gpu_time(lambda i: blocks.factor_plan(*pattern, n, batch), host=True)
        analysis_of_solves = gpu_time(lambda i: blocks.solve_plan(*pattern, n), host=True)

        def load(i):
            lu[...] = B.data

        def factor(i):
            return blocks.bsr_ilu0_factor(*pattern, lu, False, plan)

        def solve_once(i):
            blocks.bsr_ilu0_solve(B.indptr, B.indices, places, B.diag, lu, on.b, on.x, "N", plan_of_solves)

        raise_if_bad(factor(0))
        factored = cold_gpu_time(factor, before=load)
        solve = cold_gpu_time(solve_once)
        error = on.of_solve(on.x)
        add(run, name, "factor", "gpu", "finelu", "BSR", factored, error, analysis=analysis)
        add(run, name, "solve", "gpu", "finelu", "BSR", solve, error, analysis=analysis_of_solves)
        residual = cold_gpu_time(lambda i: blocks.bsr_residual(B.indptr, B.indices, B.data, on.solution, on.b, on.r))
        add(run, name, "residual", "gpu", "finelu", "BSR", residual, on.of_residual(on.r))


def cusparse_peers(run: Run, name: str, on: Device, B: SimpleNamespace) -> None:
    """bsrilu02 and bsrsv2 under both policies and with both ways to store a block."""
    import cupy

    from benchmarks.peers import cusparse_bsr

    if B.data.size > cusparse_bsr.LARGEST:
        run.left_out[f"cuSPARSE, {name}"] = f"{B.data.size} entries; its buffers are counted by an int"
        return
    y = cupy.empty_like(on.b)
    for direction in cusparse_bsr.DIRECTIONS:
        for policy in cusparse_bsr.POLICIES:
            variant = f"{policy} {direction}"
            with run.attempt(name, f"cuSPARSE {variant}"):
                peer = cusparse_bsr.BlockILU0(B.indptr, B.indices, B.data, policy, direction)
                analysis = gpu_time(lambda i, p=peer: p.analyse(), before=lambda i, p=peer: p.renew(), host=True)
                factor = cold_gpu_time(lambda i, p=peer: p.factor(), before=lambda i, p=peer: p.load())
                if (row := peer.zero_pivot()) >= 0:
                    raise RuntimeError(f"bsrilu02 reports a zero pivot in block row {row}")
                solves = gpu_time(
                    lambda i, p=peer: p.analyse_solves(), before=lambda i, p=peer: p.renew_solves(), host=True
                )
                lower = cold_gpu_time(lambda i, p=peer: p.lower(on.b, y))
                upper = cold_gpu_time(lambda i, p=peer: p.upper(y, on.x))
                error = on.of_solve(on.x)
                both = cold_gpu_time(lambda i, p=peer: (p.lower(on.b, y), p.upper(y, on.x)))
                add(run, name, "factor", "gpu", "cusparse", variant, factor, error, analysis=analysis)
                sides = {"lower_ms": lower.ms, "upper_ms": upper.ms}
                add(run, name, "solve", "gpu", "cusparse", variant, both, error, analysis=solves, **sides)
                cupy.cuda.get_current_stream().synchronize()
                peer.close()
