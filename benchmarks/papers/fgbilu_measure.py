"""One matrix of the block ILU paper with all its columns, and the corrections of its Table 1."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import finelu
from benchmarks.harness.record import Record, Run
from benchmarks.papers.fgbilu_cpu import Reference, on_threads, scalar_peers, sequential, warm_up_cpu
from benchmarks.papers.fgbilu_gpu import (
    Device,
    acc_style,
    cl_launches,
    cl_style,
    cusparse_peers,
    raise_if_bad,
    without_grid,
)
from benchmarks.papers.fgbilu_sequential import (
    sequential_factor,
    sequential_lu_factor,
    sequential_lu_solve,
    sequential_residual,
    sequential_solve,
)
from benchmarks.papers.fgbilu_systems import bsr, facts, name_of, on_host, system
from finelu.device import to_host
from finelu.matrix.stencil import StencilMatrix

STEPS, CORRECTIONS = 20, 3  # of Table 1; of Figures 9 and 10


def measure_matrix(
    run: Run, part: str, shape: Sequence[int], n: int, options: argparse.Namespace, *, on_cpu: bool, peers: bool
) -> None:
    """Every column of Figure 9 or 10 for one matrix. on_cpu : also the columns of the CPU; peers : other libraries."""
    name = name_of(shape, n, part)
    A, b = system(shape, n, "cuda" if options.gpu else "cpu")
    run.matrices[name] = facts(shape, n, part)
    reference = None
    if on_cpu:
        here, right = on_host(A, b)
        with run.attempt(name, "sequential", fatal=True):
            reference = sequential(run, name, here, right)
        for threads in options.threads:
            on_threads(run, name, here, right, threads, reference)
        if peers and not options.gpu:
            scalar_peers(run, name, here, right, min(2, max(options.threads)), reference)
    if options.gpu:
        on = Device(A, b, reference)
        acc_style(run, name, on)
        cl_launches(run, name, on)
        cl_style(run, name, on, (True, False) if peers else (False,))
        if peers:
            B = bsr(A)
            without_grid(run, name, on, B)
            cusparse_peers(run, name, on, B)


def scalar_only(run: Run, shape: Sequence[int], n: int, options: argparse.Namespace) -> None:
    """The scalar peers of a matrix whose other columns were measured before, in a run with a GPU."""
    name = name_of(shape, n, "sizes")
    A, b = on_host(*system(shape, n, "cuda"))
    reference = Reference(A, b, timed=False)
    reference.scale = float(np.linalg.norm(b))
    scalar_peers(run, name, A, b, min(2, max(options.threads)), reference)


def cpu_unknowns(run: Run, shape: Sequence[int], n: int, options: argparse.Namespace) -> None:
    """The columns of the CPU in Figure 10, in a run with a GPU."""
    name = name_of(shape, n, "unknowns")
    A, b = on_host(*system(shape, n, "cuda"))
    reference = sequential(run, name, A, b)
    for threads in options.threads:
        on_threads(run, name, A, b, threads, reference)


def history(factor: Callable, solve: Callable, residual: Callable, b: Any, steps: int = STEPS) -> list[float]:
    """Sums of squares of b - A x after the first estimate and after each correction of equation (3), `steps` in all.

    factor() -> F; solve(F, r) -> M^-1 r and residual(x) -> b - A x, new arrays. Sums are taken on the host by NumPy.
    """
    F = factor()
    x, sums = solve(F, b), []
    for step in range(steps):
        r = residual(x)
        on_host = to_host(r).ravel()
        sums.append(float(np.dot(on_host, on_host)))
        if step + 1 < steps:
            x = x + solve(F, r)
    return sums


def sequential_history(A: StencilMatrix, b: np.ndarray, steps: int = STEPS, *, lu: bool = False) -> list[float]:
    """The sequential code with inverses of the diagonal blocks; lu : with their factors, Table 1's first column."""
    vector = (*A.shape_cells, A.n_block)
    make, apply = (sequential_lu_factor, sequential_lu_solve) if lu else (sequential_factor, sequential_solve)

    def factor():
        d = np.empty(A.blocks.shape[1:])
        if (cell := make(A.blocks, d)) >= 0:
            raise RuntimeError(f"the sequential factorization meets a bad pivot in cell {cell}")
        return d

    def solve(d, r):
        x = np.empty(vector)
        apply(A.blocks, d, r.reshape(vector), x)
        return x

    def residual(x):
        r = np.empty(vector)
        sequential_residual(A.blocks, x, b.reshape(vector), r)
        return r

    return history(factor, solve, residual, b, steps)


def finelu_history(A: StencilMatrix, b: Any, steps: int = STEPS, *, pivoting: bool = False) -> list[float]:
    """The same by BlockILU0, where A lives."""
    recipe = finelu.BlockILU0(pivoting=pivoting)
    return history(lambda: recipe.factor(A), lambda F, r: F.solve(r), lambda x: A.residual(b, x), b, steps)


def acc_history(A: StencilMatrix, b: Any, steps: int = STEPS) -> list[float]:
    from benchmarks.papers import fgbilu_acc

    return _history_by(fgbilu_acc.block_ilu_factor_acc, fgbilu_acc.block_ilu_solve_acc, A, b, steps)


def launches_history(A: StencilMatrix, b: Any, steps: int = STEPS) -> list[float]:
    from benchmarks.papers import fgbilu_cl

    return _history_by(fgbilu_cl.block_ilu_factor_cl, fgbilu_cl.block_ilu_solve_cl, A, b, steps)


def _history_by(make: Callable, apply: Callable, A: StencilMatrix, b: Any, steps: int) -> list[float]:
    import cupy

    def factor():
        d = cupy.empty(A.blocks.shape[1:])
        raise_if_bad(make(A.blocks, d))
        return d

    def solve(d, r):
        x = cupy.empty_like(b)
        apply(A.blocks, d, r, x)
        return x

    return history(factor, solve, lambda x: A.residual(b, x), b, steps)


def measure_steps(run: Run, shape: Sequence[int], options: argparse.Namespace) -> None:
    """Table 1."""
    name = name_of(shape, 6, "steps")
    A, b = system(shape, 6, "cuda" if options.gpu else "cpu")
    run.matrices.setdefault(name, facts(shape, 6, "steps"))
    here, right = on_host(A, b)
    warm_up_cpu(6)

    def note(device: str, who: str, variant: str, made: Callable[[], list[float]], threads: int = 0) -> None:
        with run.attempt(name, f"Table 1, {variant} {device}"):
            start = time.perf_counter()
            sums = made()
            ms = 1e3 * (time.perf_counter() - start)
            record = Record(name, "steps", device, who, variant, ms, threads=threads, detail={"history": sums})
            run.records.append(record)

    note("cpu", "sequential", "LU", lambda: sequential_history(here, right, lu=True), 1)
    note("cpu", "sequential", "natural order", lambda: sequential_history(here, right), 1)
    finelu.set_num_threads(max(options.threads))
    note("cpu", "finelu", "wavefronts", lambda: finelu_history(here, right), max(options.threads))
    if options.gpu:
        note("gpu", "finelu", "CL", lambda: finelu_history(A, b))
        note("gpu", "finelu", "CL, pivoting", lambda: finelu_history(A, b, pivoting=True))
        note("gpu", "finelu", "CL, launches", lambda: launches_history(A, b))
        note("gpu", "finelu", "ACC", lambda: acc_history(A, b))
