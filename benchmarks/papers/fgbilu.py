"""Wanted: on one GPU block ILU(0) factors 200 times, solves 60 times as fast as one core, 8 and 3 times as cuSPARSE.

Tables 1 to 4 and Figures 9 and 10 of L. Luo, J. R. Edwards, H. Luo, F. Mueller, "A fine-grained block ILU scheme on
regular structures for GPGPUs", the paper's numbers beside ours. The matrices are Jacobians of the channel flow of
examples/channel_flow.py with n = 4 and n = 6 unknowns a cell, float64; other n by the paper's block-diagonal
construction from these two.

- sequential: the global algorithm in natural order on one core, as one writes it, compiled by Numba
- CPU: finelu with so many threads
- GPU CL, GPU ACC: finelu in the paper's two styles, without pivoting as in the paper; GPU CL, pivoting: as by default
- GPU BSR: the same matrix without knowledge of its grid
- cuSPARSE: bsrilu02, and bsrsv2 with L and with U; the best of both policies and both ways to store a block
- MKL, ilupp: the scalar ILU(0) of the same matrix written out, which is the same factorization

Per-point times are those of one sweep over the domain. Before each call on the GPU 256 MiB are read, on the CPU calls
take copies of the matrix in turn, so that no cache holds it. Results are compared with the sequential ones (on grids
that are too large for these with those of the ACC style): relative differences of M^-1 b and of the factors.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import finelu
from benchmarks import measure
from benchmarks.common import (
    RESULTS,
    ROOT,
    Budget,
    Record,
    Run,
    RunEnded,
    Timing,
    command,
    copy_bandwidth,
    cpu_time,
    gpu_time,
    new_run,
    ratio,
    relative_error,
    repeats_for,
    table,
)
from benchmarks.papers.parilut import draw
from benchmarks.peers import mkl
from benchmarks.spine import have_gpu
from finelu.device import namespace, require_gpu, to_host
from finelu.kernels.cpu import stencil as cpu
from finelu.matrix.stencil import StencilMatrix
from finelu.threads import available_cores

EDGES = (15, 25, 35, 45, 55, 65, 100, 150, 200)  # Figure 9; the paper's are those up to 65
UNKNOWNS = (4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 48, 64)  # Figure 10
ENTRIES = 1.8e7  # n^2 I J K in Figure 10
DOMAIN = (51, 97, 63)  # of Table 1
CFL = 10.0  # of the pseudo step whose matrix it is: corrections converge about as fast as the paper's
LARGEST_ON_CPU = 65**3  # cells of Figure 9 on the CPU
STEPS, CORRECTIONS = 20, 3  # of Table 1; of Figures 9 and 10
WORKS = ("factor", "solve", "residual")
VARIANTS = ("CL", "CL, pivoting", "ACC", "BSR")  # of finelu on the GPU
TITLES = {"factor": "factorization", "solve": "triangular solve", "residual": "residual", "overall": "overall"}
PARTS = ("sizes", "steps", "unknowns")
QUICK = {"edges": (6, 9), "unknowns": (4, 6, 10), "entries": 2e4, "domain": (7, 5, 6)}
FLUSH = 2**28  # bytes, some times what the caches hold
AGREE = 1e-8  # relative: a result that is further away from the reference counts in no ratio
ONCE = 1000.0  # ms from which a call on the CPU is not repeated

TABLE_1 = {  # iteration: sum of squares of the residuals, sequential and FGBILU
    0: (0.542674993335e05, 0.542674993335e05),
    1: (0.170814598038e04, 0.170814598038e04),
    2: (0.131446936261e03, 0.131446936261e03),
    11: (0.138239874038e-05, 0.138239874038e-05),
    12: (0.180227555902e-06, 0.180227555901e-06),
    19: (0.126561189429e-12, 0.126561185003e-12),
}
TABLE_3 = {"factor": (3480.0, 122.0), "solve": (840.0, 60.4), "residual": (510.0, 32.4)}  # ns a point, n = 6
TABLE_4 = {  # ns a thread, FLOP, bytes, GB/s, GFLOPS
    "factor": (3.38, 48, 56, 16.6, 14.2),
    "solve": (1.68, 8, 68, 40.5, 4.8),
    "residual": (5.41, 42, 360, 66.5, 7.8),
}


# Counting -----------------------------------------------------------------------------------------------------------


def threads_of_a_point(work: str, n: int) -> int:
    """Table 2."""
    return n if work == "residual" else n * n


def flops(work: str, n: int) -> int:
    """Multiplications and divisions a point, as Table 2 counts them."""
    return {"factor": 8 * n**3, "solve": 8 * n**2, "residual": 7 * n**2}[work]


def bytes_of_paper(work: str, n: int) -> int:
    """Bytes a point, as Table 2 counts them."""
    return 8 * {"factor": 7 * n**2, "solve": 8 * n**2 + 3 * n, "residual": 7 * n**2 + 3 * n}[work]


def bytes_to_move(work: str, n: int, shape: Sequence[int]) -> int:
    """Bytes that have to move between memory and processor on the whole grid, blocks that point outside left out.

    The factorization reads each block of A once and writes D; a solve reads each block off the diagonal once and D
    twice, once a sweep, reads b, writes and reads what is between the sweeps, and writes x; the residual reads each
    block, x and b once and writes r.
    """
    cells = math.prod(shape)
    off = 6 * cells - 2 * sum(cells // s for s in shape)
    blocks, vectors = {
        "factor": (off + 2 * cells, 0),
        "solve": (off + 2 * cells, 4 * cells),
        "residual": (off + cells, 3 * cells),
    }[work]
    return 8 * (blocks * n**2 + vectors * n)


def digits(value: float, reference: float) -> float:
    """To how many decimal digits two positive numbers agree; 16 if they are the same."""
    apart = abs(value - reference) / abs(reference)
    return 16.0 if apart == 0 else min(16.0, -math.log10(apart))


# The matrices -------------------------------------------------------------------------------------------------------


def flow(shape: Sequence[int], n: int, device: str) -> tuple[StencilMatrix, Any]:
    """The Jacobian of the channel flow on I x J x K cells with 4 or 6 unknowns each, and its right-hand side (N,)."""
    return channel_flow().channel_system(tuple(shape), n, cfl=CFL, xp=require_gpu() if device == "cuda" else np)


@cache
def channel_flow():
    """The module examples/channel_flow.py of this checkout."""
    spec = spec_from_file_location("channel_flow", ROOT / "examples" / "channel_flow.py")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parts_of(n: int) -> list[int]:
    """4s and 6s that add up to n, with as few 4s as possible; n is even and at least 4."""
    sixes = next(s for s in range(n // 6, -1, -1) if (n - 6 * s) % 4 == 0)
    return [4] * ((n - 6 * sixes) // 4) + [6] * sixes


def block_diagonal(systems: Sequence[tuple[StencilMatrix, Any]]) -> tuple[StencilMatrix, Any]:
    """The system whose blocks hold those of `systems`, all on one grid, along their diagonal: the paper's 4.3."""
    xp = namespace(systems[0][1])
    shape = systems[0][0].shape_cells
    n = sum(A.n_block for A, _ in systems)
    blocks = xp.zeros((7, *shape, n, n))
    b = xp.empty((*shape, n))
    at = 0
    for A, right in systems:
        part = slice(at, at + A.n_block)
        blocks[..., part, part] = A.blocks
        b[..., part] = right.reshape(*shape, A.n_block)
        at += A.n_block
    return StencilMatrix(blocks), b.reshape(-1)


def system(shape: Sequence[int], n: int, device: str) -> tuple[StencilMatrix, Any]:
    """The matrix with n unknowns a cell and its right-hand side: the flow's own, or made from those of 4 and 6."""
    if n in (4, 6):
        return flow(shape, n, device)
    given = {m: flow(shape, m, device) for m in set(parts_of(n))}
    return block_diagonal([given[m] for m in parts_of(n)])


def bsr(A: StencilMatrix) -> SimpleNamespace:
    """indptr, indices, diag (int32) and data (blocks, n, n) of A as BSR, where A lives."""
    xp = namespace(A.blocks)
    rows, columns, places = A._block_pattern()
    data = A.blocks.reshape(-1, A.n_block, A.n_block)[places]
    return SimpleNamespace(
        indptr=xp.searchsorted(rows, xp.arange(A.cells + 1)).astype(np.int32),
        indices=columns.astype(np.int32),
        diag=xp.flatnonzero(rows == columns).astype(np.int32),
        data=data,
    )


def name_of(shape: Sequence[int], n: int, part: str) -> str:
    """What a matrix is called in the record: Figure 10's by n first, so that no other has its name."""
    grid = "x".join(map(str, shape))
    return f"n={n}, {grid}" if part == "unknowns" else grid


def edge_for(n: int, entries: float) -> int:
    """Cells along an edge of the cube with n^2 I J K nearest to `entries`."""
    return max(2, round((entries / n**2) ** (1 / 3)))


# Clocks and records -------------------------------------------------------------------------------------------------


def patient_cpu_time(call: Callable[[int], Any]) -> Timing:
    """Time call(i) on the host, warm; only once more where it takes a second or more."""
    found = []
    for i in range(2):
        start = time.perf_counter()
        call(i)
        found.append(1e3 * (time.perf_counter() - start))
    return Timing.of([found[1]], [found[1]]) if found[1] >= ONCE else cpu_time(call, min(repeats_for(found[1]), 5))


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


def copies(array: np.ndarray) -> list[np.ndarray]:
    """The array and so many copies that they take FLUSH bytes together."""
    return [array] + [array.copy() for _ in range(min(40, -(-FLUSH // array.nbytes)) - 1)]


def add(run: Run, name: str, work: str, device: str, who: str, variant: str, timing: Timing, error, **more) -> None:
    analysis, threads = more.pop("analysis", None), more.pop("threads", 0)
    detail = {"numeric": vars(timing)} | more
    if isinstance(analysis, Timing):
        detail["analysis"] = vars(analysis)
        analysis = analysis.ms
    run.records.append(Record(name, work, device, who, variant, timing.ms, analysis, error, threads, detail=detail))


# One matrix on the CPU ----------------------------------------------------------------------------------------------


class Reference:
    """The sequential factors d, x = M^-1 b and r = b - A x, on the host, and how long each took."""

    def __init__(self, A: StencilMatrix, b: np.ndarray, *, timed: bool = True):
        vector = (*A.shape_cells, A.n_block)
        self.d, (self.x, self.r) = np.full(A.blocks.shape[1:], 0.0), (np.full(vector, 0.0) for _ in range(2))
        right, turns = b.reshape(vector), copies(A.blocks) if timed else [A.blocks]
        clock = patient_cpu_time if timed else (lambda call: call(0))

        def factor(i):
            bad = cpu.sequential_factor(turns[i % len(turns)], self.d)
            if bad >= 0:
                raise RuntimeError(f"the sequential factorization meets a bad pivot in cell {bad}")

        calls = {
            "factor": factor,
            "solve": lambda i: cpu.sequential_solve(turns[i % len(turns)], self.d, right, self.x),
            "residual": lambda i: cpu.sequential_residual(turns[i % len(turns)], self.x, right, self.r),
        }
        self.times = {work: clock(call) for work, call in calls.items()}

    def error(self, work: str, value) -> float:
        """How far a result is from the sequential one: relative, the residual relative to what it started from."""
        expected = {"factor": self.d, "solve": self.x, "residual": self.r}[work].ravel()
        if work == "residual":
            return float(np.linalg.norm(to_host(value).ravel() - expected) / self.scale)
        return relative_error(to_host(value).ravel(), expected)

    scale = 1.0  # the norm of b


@cache
def warm_up_cpu(n: int) -> None:
    """Compile what the CPU needs for n unknowns, sequential and threaded."""
    blocks = np.zeros((7, 3, 3, 3, n, n))
    blocks[3] = np.eye(n)
    A, b = StencilMatrix(blocks), np.ones(27 * n)
    reference = Reference(A, b, timed=False)
    x = np.empty_like(b)
    cpu.block_ilu_factor(A.blocks, reference.d, False)
    cpu.block_ilu_solve(A.blocks, reference.d, b, x, "N")
    cpu.stencil_residual(A.blocks, A.periodic, x, b, np.empty_like(b))


def sequential(run: Run, name: str, A: StencilMatrix, b: np.ndarray) -> Reference:
    """The reference, and its times as records."""
    warm_up_cpu(A.n_block)
    reference = Reference(A, b)
    reference.scale = float(np.linalg.norm(b))
    for work, timing in reference.times.items():
        add(run, name, work, "cpu", "sequential", "natural order", timing, 0.0, threads=1)
    return reference


def on_threads(run: Run, name: str, A: StencilMatrix, b: np.ndarray, threads: int, reference: Reference) -> None:
    """finelu on the CPU."""
    finelu.set_num_threads(threads)
    turns = copies(A.blocks)
    d, x, r = np.full(A.blocks.shape[1:], 0.0), np.full_like(b, 0.0), np.full_like(b, 0.0)

    def factor(i):
        bad = cpu.block_ilu_factor(turns[i % len(turns)], d, False)
        if bad >= 0:
            raise RuntimeError(f"reports a bad pivot in cell {bad}, where the sequential factorization has none")

    calls = {
        "factor": (factor, d),
        "solve": (lambda i: cpu.block_ilu_solve(turns[i % len(turns)], d, b, x, "N"), x),
        "residual": (lambda i: cpu.stencil_residual(turns[i % len(turns)], A.periodic, x, b, r), r),
    }
    for work, (call, out) in calls.items():
        with run.attempt(name, f"finelu {work}, {threads} threads"):
            timing = patient_cpu_time(call)
            error = reference.error(work, out)
            add(run, name, work, "cpu", "finelu", "wavefronts", timing, error, threads=threads)


def scalar_peers(run: Run, name: str, A: StencilMatrix, b: np.ndarray, threads: int, reference: Reference) -> None:
    """MKL's dcsrilu0 and solves, and ilupp's ILU(0), of the same matrix written out."""
    S = A.tocsr()
    if mkl.available():
        with run.attempt(name, "MKL"), measure.mkl_threads(threads):
            scalar_mkl(run, name, S, b, threads, reference)
    else:
        run.left_out["MKL"] = "not installed"
    try:
        import ilupp
    except ImportError:
        run.left_out["ilupp"] = "not installed"
        return
    with run.attempt(name, "ilupp"):
        made: list[Any] = [None]

        def factor_by_ilupp(i):
            made[0] = ilupp.ILU0Preconditioner(S)

        timing = patient_cpu_time(factor_by_ilupp)
        add(run, name, "factor", "cpu", "ilupp", "ILU0", timing, reference.error("solve", made[0] @ b), threads=1)


def scalar_mkl(run: Run, name: str, S, b: np.ndarray, threads: int, reference: Reference) -> None:
    import scipy.sparse as sp

    peer = mkl.ILU0(S)
    factor = patient_cpu_time(lambda i, p=peer: p.factor())
    LU = sp.csr_matrix((peer.lu, S.indices, S.indptr), shape=S.shape)
    L = mkl.TriangularSolve(sp.tril(LU, -1, format="csr"), lower=True, unit=True)
    U = mkl.TriangularSolve(sp.triu(LU, format="csr"), lower=False, unit=False)
    y, x = np.zeros_like(b), np.zeros_like(b)  # zeros: MKL multiplies what is there by 0
    solve = patient_cpu_time(lambda i: U.solve(L.solve(b, y), x))
    error = reference.error("solve", x)
    L.close()
    U.close()
    add(run, name, "factor", "cpu", "mkl", "dcsrilu0", factor, error, threads=1)
    add(run, name, "solve", "cpu", "mkl", "trsv", solve, error, threads=threads)


# One matrix on the GPU ----------------------------------------------------------------------------------------------


class Device:
    """A and b on the GPU, what the measurements write, and what their results are compared with."""

    def __init__(self, A: StencilMatrix, b, reference: Reference | None):
        import cupy

        self.A, self.b, self.reference = A, b, reference
        self.d, (self.x, self.r) = cupy.empty(A.blocks.shape[1:]), (cupy.empty_like(b) for _ in range(2))
        self.solution = None if reference is None else cupy.asarray(reference.x.reshape(-1))
        self.scale = float(cupy.linalg.norm(b))

    def of_solve(self, x) -> float | None:
        """The relative difference from the reference's M^-1 b; the first result becomes the reference if none is."""
        import cupy

        if not bool(cupy.isfinite(x).all()):
            raise RuntimeError("M^-1 b is not finite")
        if self.solution is None:
            self.solution = x.copy()
            return None
        return float(cupy.linalg.norm(x - self.solution) / cupy.linalg.norm(self.solution))

    def of_residual(self, r) -> float:
        """How far r is from b - A x of CuPy's own products, over the norm of b."""
        import cupy

        return float(cupy.linalg.norm(r - residual_by_arrays(self.A, self.solution, self.b)) / self.scale)


def residual_by_arrays(A: StencilMatrix, x, b):
    """b - A x, block by block along the seven directions, by the array module's own products."""
    from finelu.matrix.stencil import OFFSETS

    xp = namespace(b)
    shape = (*A.shape_cells, A.n_block)
    at, r = x.reshape(shape), b.reshape(shape).copy()
    for place, offset in enumerate(OFFSETS):  # blocks that point outside are zero
        r -= xp.matmul(A.blocks[place], xp.roll(at, [-o for o in offset], axis=(0, 1, 2))[..., None])[..., 0]
    return r.reshape(-1)


def raise_if_bad(bad) -> None:
    """RuntimeError for a factorization on the GPU that met a bad pivot."""
    from finelu.kernels.cuda.vectors import first_bad

    cell = int(first_bad(bad))
    if cell >= 0:
        raise RuntimeError(f"reports a bad pivot in cell or block row {cell}")


def acc_style(run: Run, name: str, on: Device) -> None:
    from finelu.kernels.cuda import stencil

    A = on.A
    with run.attempt(name, "GPU ACC"):
        raise_if_bad(stencil.block_ilu_factor_acc(A.blocks, on.d))
        factor = cold_gpu_time(lambda i: stencil.block_ilu_factor_acc(A.blocks, on.d))
        solve = cold_gpu_time(lambda i: stencil.block_ilu_solve_acc(A.blocks, on.d, on.b, on.x))
        error = on.of_solve(on.x)
        add(run, name, "factor", "gpu", "finelu", "ACC", factor, error)
        add(run, name, "solve", "gpu", "finelu", "ACC", solve, error)


def cl_style(run: Run, name: str, on: Device, ways: Sequence[bool]) -> None:
    """ways : with pivoting or without; the last leaves its factors. There is one residual, which counts for ACC too."""
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


# The parts ----------------------------------------------------------------------------------------------------------


def facts(shape: Sequence[int], n: int, part: str) -> dict[str, Any]:
    return {"part": part, "shape": list(shape), "n": n, "cells": math.prod(shape)}


def on_host(A: StencilMatrix, b) -> tuple[StencilMatrix, np.ndarray]:
    """A and b on the host; themselves if they are there."""
    return (A if isinstance(A.blocks, np.ndarray) else StencilMatrix(to_host(A.blocks))), to_host(b)


def measure_matrix(run: Run, part: str, shape, n: int, options, *, on_cpu: bool, peers: bool) -> None:
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
        cl_style(run, name, on, (True, False) if peers else (False,))
        if peers:
            B = bsr(A)
            without_grid(run, name, on, B)
            cusparse_peers(run, name, on, B)


def scalar_only(run: Run, shape, n: int, options) -> None:
    """The scalar peers of a matrix whose other columns were measured before, in a run with a GPU."""
    name = name_of(shape, n, "sizes")
    A, b = on_host(*system(shape, n, "cuda"))
    reference = Reference(A, b, timed=False)
    reference.scale = float(np.linalg.norm(b))
    scalar_peers(run, name, A, b, min(2, max(options.threads)), reference)


def cpu_unknowns(run: Run, shape, n: int, options) -> None:
    """The columns of the CPU in Figure 10, in a run with a GPU."""
    name = name_of(shape, n, "unknowns")
    A, b = on_host(*system(shape, n, "cuda"))
    reference = sequential(run, name, A, b)
    for threads in options.threads:
        on_threads(run, name, A, b, threads, reference)


def history(factor: Callable, solve: Callable, residual: Callable, b, steps: int = STEPS) -> list[float]:
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


def sequential_history(A: StencilMatrix, b: np.ndarray, steps: int = STEPS) -> list[float]:
    """Table 1's first column."""
    vector = (*A.shape_cells, A.n_block)

    def factor():
        d = np.empty(A.blocks.shape[1:])
        cpu.sequential_factor(A.blocks, d)
        return d

    def solve(d, r):
        x = np.empty(vector)
        cpu.sequential_solve(A.blocks, d, r.reshape(vector), x)
        return x

    def residual(x):
        r = np.empty(vector)
        cpu.sequential_residual(A.blocks, x, b.reshape(vector), r)
        return r

    return history(factor, solve, residual, b, steps)


def finelu_history(A: StencilMatrix, b, steps: int = STEPS, *, pivoting: bool = False) -> list[float]:
    """The same by BlockILU0, where A lives."""
    recipe = finelu.BlockILU0(pivoting=pivoting)
    return history(lambda: recipe.factor(A), lambda F, r: F.solve(r), lambda x: A.residual(b, x), b, steps)


def acc_history(A: StencilMatrix, b, steps: int = STEPS) -> list[float]:
    import cupy

    from finelu.kernels.cuda import stencil

    def factor():
        d = cupy.empty(A.blocks.shape[1:])
        raise_if_bad(stencil.block_ilu_factor_acc(A.blocks, d))
        return d

    def solve(d, r):
        x = cupy.empty_like(b)
        stencil.block_ilu_solve_acc(A.blocks, d, r, x)
        return x

    return history(factor, solve, lambda x: A.residual(b, x), b, steps)


def measure_steps(run: Run, shape, options) -> None:
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

    note("cpu", "sequential", "natural order", lambda: sequential_history(here, right), 1)
    finelu.set_num_threads(max(options.threads))
    note("cpu", "finelu", "wavefronts", lambda: finelu_history(here, right), max(options.threads))
    if options.gpu:
        note("gpu", "finelu", "CL", lambda: finelu_history(A, b))
        note("gpu", "finelu", "CL, pivoting", lambda: finelu_history(A, b, pivoting=True))
        note("gpu", "finelu", "ACC", lambda: acc_history(A, b))


# What was measured --------------------------------------------------------------------------------------------------


def sound(record: Record) -> bool:
    """Whether a result was right; the ACC style alone may be the reference of a large grid, with nothing to compare."""
    if record.error is None:
        return record.variant == "ACC"
    return record.error <= AGREE


def columns(run: Run) -> dict[str, dict[str, Any]]:
    """Title of a column -> which records it shows (the best where several)."""
    threads = sorted({r.threads for r in run.records if (r.device, r.who) == ("cpu", "finelu") and r.work in WORKS})
    every: dict[str, dict[str, Any]] = {"sequential": {"who": "sequential"}}
    every |= {f"CPU, {t}": {"device": "cpu", "who": "finelu", "threads": t} for t in threads}
    every |= {f"GPU {v}": {"device": "gpu", "who": "finelu", "variant": v} for v in VARIANTS}
    return every | {"cuSPARSE": {"who": "cusparse"}, "MKL": {"who": "mkl"}, "ilupp": {"who": "ilupp"}}


def best(run: Run, name: str, work: str, **which) -> Record | None:
    """The fastest sound record."""
    found = [r for r in run.find(matrix=name, work=work, **which) if sound(r) and r.numeric_ms]
    return min(found, key=lambda r: r.numeric_ms, default=None)


def ms(run: Run, name: str, work: str, **which) -> float | None:
    """Milliseconds of one sweep; of "overall" those of a factorization, four solves and three residuals."""
    if work == "overall":
        residual = which | ({"variant": "CL"} if which.get("variant") in ("ACC", "CL, pivoting") else {})
        each = [ms(run, name, w, **(residual if w == "residual" else which)) for w in WORKS]
        if None in each:
            return None
        factor, solve, left = each
        return factor + (CORRECTIONS + 1) * solve + CORRECTIONS * left
    record = best(run, name, work, **which)
    return record and record.numeric_ms


def per_point(run: Run, name: str, work: str, **which) -> float | None:
    """Nanoseconds a point."""
    found = ms(run, name, work, **which)
    return found and 1e6 * found / run.matrices[name]["cells"]


def of_part(run: Run, part: str) -> list[str]:
    """The matrices of a part, small ones (Figure 9) or few unknowns (Figure 10) first."""
    names = [m for m, f in run.matrices.items() if f["part"] == part]
    return sorted(names, key=lambda m: run.matrices[m]["cells" if part == "sizes" else "n"])


def bandwidth(run: Run) -> float | None:
    """GB/s of a copy on the GPU."""
    return run.options.get("copy GB/s")


def over_copy(run: Run, name: str, work: str, **which) -> float | None:
    """The time over that in which a copy moves the bytes that have to move."""
    found, gbs = ms(run, name, work, **which), bandwidth(run)
    fact = run.matrices[name]
    return found and gbs and found * 1e6 * gbs / bytes_to_move(work, fact["n"], fact["shape"])


# Tables -------------------------------------------------------------------------------------------------------------

CL = {"device": "gpu", "who": "finelu", "variant": "CL"}
SEQUENTIAL = {"who": "sequential"}


def bars(run: Run) -> list[tuple]:
    """(what, matrix, peer, wanted, peer's ms, our ms, reached, holds) of every bar that was measured."""
    lines: list[tuple] = []

    def faster(what: str, name: str, peer: str, wanted: float, theirs: float | None, ours: float | None) -> None:
        reached = ratio(theirs, ours)
        if reached is not None:
            holds = "yes" if reached >= wanted else "no"
            lines.append((what, name, peer, f">= {wanted:g}x", theirs, ours, reached, holds))

    def total(name: str, **which) -> float | None:
        both = [ms(run, name, work, **which) for work in ("factor", "solve")]
        return None if None in both else sum(both)

    names = of_part(run, "sizes")
    large = [m for m in names if run.matrices[m]["cells"] >= 65**3]
    for name in large:
        for work, wanted in (("factor", 200), ("solve", 60)):
            peer, ours = (ms(run, name, work, **which) for which in (SEQUENTIAL, CL))
            faster(f"{TITLES[work]}, GPU", name, "sequential BILU, one core", wanted, peer, ours)
    for name in large:
        limit = over_copy(run, name, "residual", **CL)
        if limit is not None:
            ours = ms(run, name, "residual", **CL)
            holds = "yes" if limit <= 1.5 else "no"
            lines.append(("residual, GPU", name, "copy of its bytes", "<= 1.5x", ours / limit, ours, limit, holds))
    for name in large:
        for work, wanted, peer in (("factor", 8, "cuSPARSE bsrilu02"), ("solve", 3, "cuSPARSE bsrsv2, L and U")):
            faster(f"{TITLES[work]}, GPU", name, peer, wanted, ms(run, name, work, who="cusparse"),
                   ms(run, name, work, **CL))  # fmt: skip
    for name in names[:1]:
        if run.matrices[name]["shape"] == [15, 15, 15]:
            faster("factorization and solve, GPU", name, "sequential BILU, one core", 1,
                   total(name, **SEQUENTIAL), total(name, **CL))  # fmt: skip
    two = {"device": "cpu", "who": "finelu", "threads": 2}
    for name in large:
        for work in WORKS:
            faster(f"{TITLES[work]}, CPU, 2 threads", name, "sequential BILU, one core", 1.7,
                   ms(run, name, work, **SEQUENTIAL), ms(run, name, work, **two))  # fmt: skip
        for who in ("mkl", "ilupp"):
            faster("factorization, CPU, 2 threads", name, f"{who}, scalar ILU(0)", 2,
                   ms(run, name, "factor", who=who), ms(run, name, "factor", **two))  # fmt: skip
    for title, agreeing in agreement(run).items():
        found = norm_digits(run, title)
        holds = "yes" if found >= 12 else "no"
        what = f"Table 1, {title}"
        lines.append(
            (f"{what}: residual norms over the first", "", "sequential", ">= 12 digits", None, None, found, holds)
        )
        paper = f"paper: {digits(*TABLE_1[19][::-1]):.3g} digits"
        lines.append(
            (f"{what}: sums of squares, each over itself", "", "sequential", paper, None, None, min(agreeing), "")
        )
    return lines


def bar_table(run: Run) -> str | None:
    header = ("work", "matrix", "beside", "wanted", "peer's ms", "our ms", "reached", "holds")
    lines = bars(run)
    return table(header, lines) if lines else None


def histories(run: Run) -> dict[str, list[float]]:
    """Title -> sums of squares, the sequential one first."""
    found = {}
    for r in run.find(work="steps"):
        title = "sequential" if r.who == "sequential" else f"{r.device.upper()} {r.variant}"
        found[title] = r.detail["history"]
    return dict(sorted(found.items(), key=lambda item: item[0] != "sequential"))


def agreement(run: Run) -> dict[str, list[float]]:
    """Title -> digits in which each iteration agrees with the sequential one."""
    found = histories(run)
    reference = found.pop("sequential", None)
    if reference is None:
        return {}
    return {title: [digits(v, e) for v, e in zip(sums, reference, strict=True)] for title, sums in found.items()}


def norm_digits(run: Run, title: str) -> float:
    """Digits in which all residual norms agree with the sequential ones, counted from the size of the first.

    A residual is known to rounding errors of about the size of b times the precision: where the iteration has made it
    small, its own leading digits are fewer.
    """
    ours, reference = (np.sqrt(histories(run)[t]) for t in (title, "sequential"))
    return min(digits(1.0 + apart, 1.0) for apart in abs(ours - reference) / reference[0])


def table_1(run: Run) -> str | None:
    sums, agreeing = histories(run), agreement(run)
    if not agreeing:
        return None
    lines = []
    for k in range(len(sums["sequential"])):
        ours = [v for title in agreeing for v in (f"{sums[title][k]:.12e}", f"{agreeing[title][k]:.1f}")]
        paper = TABLE_1.get(k)
        theirs = (f"{paper[0]:.12e}", f"{digits(paper[1], paper[0]):.1f}") if paper else ("", "")
        lines.append((k, f"{sums['sequential'][k]:.12e}", *ours, *theirs))
    header = ["iteration", "sequential", *(h for title in agreeing for h in (title, "digits"))]
    return table([*header, "paper, sequential", "paper, digits"], lines)


def point_table(run: Run, part: str, work: str) -> str | None:
    """A panel of Figure 9 or 10: ns a point, a line for each matrix."""
    names, every = of_part(run, part), columns(run)
    cells = {m: {title: per_point(run, m, work, **which) for title, which in every.items()} for m in names}
    shown = [title for title in every if any(cells[m][title] for m in names)]
    if not shown:
        return None
    lines = [(m, run.matrices[m]["cells"], *(cells[m][title] for title in shown)) for m in names]
    return table(("matrix", "cells", *shown), lines)


def table_2(n: int = 6) -> str:
    """Complexity and data, in the paper's counting, and what has to move on a large grid."""
    endless = (10**6, 10**6, 10**6)
    lines = []
    for work in WORKS:
        moved = bytes_to_move(work, n, endless) / math.prod(endless)
        lines.append((TITLES[work], threads_of_a_point(work, n), flops(work, n), bytes_of_paper(work, n), round(moved)))
    return table(("task", "threads", "FLOP", "bytes, paper's count", "bytes that must move"), lines)


def table_3(run: Run) -> str | None:
    """ns a point of the sequential code and of the GPU, and the ratio; the paper's below."""
    lines: list[tuple] = []
    for work in WORKS:
        for name in of_part(run, "sizes"):
            one, ours = (per_point(run, name, work, **which) for which in (SEQUENTIAL, CL))
            if one and ours and run.matrices[name]["cells"] >= 65**3:
                lines.append((TITLES[work], name, one, ours, one / ours))
        if any(line[0] == TITLES[work] for line in lines):
            one, ours = TABLE_3[work]
            lines.append((TITLES[work], "paper, M2050", one, ours, one / ours))
    return table(("task", "matrix", "sequential, ns", "GPU, ns", "speed-up"), lines) if lines else None


def table_4(run: Run) -> str | None:
    """Per thread in the paper's counting, and beside it what has to move, and its share of a copy's bandwidth."""
    lines: list[tuple] = []
    for work in WORKS:
        for name in of_part(run, "sizes"):
            fact = run.matrices[name]
            point = per_point(run, name, work, **CL)
            if point is None or fact["cells"] < 65**3:
                continue
            n = fact["n"]
            threads, counted, flop = threads_of_a_point(work, n), bytes_of_paper(work, n), flops(work, n)
            must = bytes_to_move(work, n, fact["shape"]) / fact["cells"]
            share = over_copy(run, name, work, **CL)
            thread = point / threads, flop // threads, counted // threads
            rates = counted / flop, counted / point, flop / point, must / point
            lines.append((TITLES[work], name, *thread, *rates, share and 100 / share))
        if lines and lines[-1][0] == TITLES[work]:
            ns, flop, data, rate, gflops = TABLE_4[work]
            lines.append((TITLES[work], "paper, M2050", ns, flop, data, data / flop, rate, gflops, None, None))
    header = (
        "task",
        "matrix",
        "ns a thread",
        "FLOP",
        "bytes",
        "B/F",
        "GB/s, paper's count",
        "GFLOPS",
        "GB/s that must move",
        "% of a copy",
    )
    return table(header, lines) if lines else None


def peer_table(run: Run) -> str | None:
    """cuSPARSE by policy and storage, with the analyses, beside ours: ms."""
    lines: list[tuple] = []
    for name in of_part(run, "sizes"):
        factors = run.find(matrix=name, work="factor", who="cusparse")
        for factor in factors:
            solve = run.one(matrix=name, work="solve", who="cusparse", variant=factor.variant)
            if solve:
                numbers = factor.analysis_ms, factor.numeric_ms, solve.analysis_ms, solve.numeric_ms
                sides = solve.detail["lower_ms"], solve.detail["upper_ms"]
                lines.append((name, f"cuSPARSE {factor.variant}", *numbers, *sides, factor.error))
        for variant in VARIANTS if factors else ():
            ours = run.one(matrix=name, work="factor", who="finelu", variant=variant)
            solve = run.one(matrix=name, work="solve", who="finelu", variant=variant)
            if ours and solve:
                numbers = ours.analysis_ms, ours.numeric_ms, solve.analysis_ms, solve.numeric_ms
                lines.append((name, f"finelu {variant}", *numbers, None, None, ours.error))
    header = ("matrix", "who", "analysis", "factorization", "analysis, solves", "L and U", "L", "U", "apart")
    return table(header, lines) if lines else None


def wrong_table(run: Run) -> str | None:
    """Results that counted in no ratio."""
    lines = [(r.matrix, r.work, r.who, r.variant, r.threads, r.error) for r in run.records
             if r.work in WORKS and not sound(r)]  # fmt: skip
    return table(("matrix", "work", "who", "variant", "threads", "apart"), lines) if lines else None


# Figures ------------------------------------------------------------------------------------------------------------


def _panels(run: Run, figure, part: str, across: str, label: str) -> bool:
    """Four panels, a line for each column that has points; across : the fact of a matrix that runs along the axis."""
    names, lines = of_part(run, part), {}
    for place, work in enumerate(("overall", *WORKS), 1):
        ax = figure.add_subplot(2, 2, place)
        for k, (title, which) in enumerate(columns(run).items()):
            points = [(run.matrices[m][across], per_point(run, m, work, **which)) for m in names]
            points = [(x, y) for x, y in points if y]
            if points:
                look = {"color": f"C{k % 10}", "marker": "os"[k // 10], "markersize": 3, "linewidth": 1}
                (lines[title],) = ax.loglog(*zip(*points, strict=True), **look)
        ax.set_title(TITLES[work], fontsize="small")
        ax.set_xlabel(label, fontsize="small")
        ax.set_ylabel("ns a point", fontsize="small")
        ax.set_xticks([run.matrices[m][across] for m in names], labels=[_tick(run.matrices[m], across) for m in names])
        ax.minorticks_off()
        ax.grid(True, linewidth=0.3)
        ax.tick_params(labelsize="x-small")
    if lines:
        figure.legend(lines.values(), lines.keys(), loc="outside right center", fontsize="x-small")
    return bool(lines)


def _tick(fact: dict[str, Any], across: str) -> str:
    return f"{fact['shape'][0]}^3" if across == "cells" else str(fact[across])


def figure_9(run: Run, figure) -> bool:
    return _panels(run, figure, "sizes", "cells", "cells")


def figure_10(run: Run, figure) -> bool:
    return _panels(run, figure, "unknowns", "n", "unknowns n")


FIGURES = {
    "9": ("ns a point against the domain, n = 6", figure_9),
    "10": (f"ns a point against n, n^2 IJK = {ENTRIES:g}", figure_10),
}


def tables(run: Run) -> dict[str, str | None]:
    """Title -> body, None where nothing of it was measured."""
    found: dict[str, str | None] = {"What was wanted": bar_table(run)}
    found["Table 1: sums of squares of the residuals"] = table_1(run)
    for number, part in (("9", "sizes"), ("10", "unknowns")):
        for panel, work in zip("abcd", ("overall", *WORKS), strict=True):
            found[f"Figure {number}({panel}): {TITLES[work]}, ns a point"] = point_table(run, part, work)
    found["Table 2: complexity and data a point, n = 6"] = table_2()
    found["Table 3: ns a point, n = 6"] = table_3(run)
    found["Table 4: a thread's time, work and data, n = 6"] = table_4(run)
    found["cuSPARSE: analyses, policies, storage, ms"] = peer_table(run)
    return found


def page(run: Run, out: Path) -> str:
    """Tables and figures as Markdown; the PNGs are written into `out`."""
    text = run.heading() + "\n" + (__doc__ or "").partition("\n\n")[2].rstrip() + "\n"
    for title, body in tables(run).items():
        text += f"\n## {title}\n\n{body or 'Absent: not measured in this run.'}" + ("" if body else "\n")
    for number, (title, drawing) in FIGURES.items():
        target = out / f"{run.stem}-fig{number}.png"
        text += f"\n## Figure {number}: {title}\n\n"
        drawn = draw(target, f"Figure {number}: {title}", drawing, run)
        text += f"![Figure {number}]({target.name})\n" if drawn else "Absent: not measured in this run.\n"
    if wrong := wrong_table(run):
        text += f"\n## Results that are not those of the reference; they count in no ratio\n\n{wrong}"
    return text + run.footing()


# The run ------------------------------------------------------------------------------------------------------------


def tasks(run: Run, options) -> Iterable[tuple[str, Callable[[], None]]]:
    """What is measured, the most important first: (name, what to call)."""
    small = [e for e in options.edges if e**3 <= LARGEST_ON_CPU]
    large = [e for e in options.edges if e**3 > LARGEST_ON_CPU]

    def sizes(edges, on_cpu):
        for e in edges:
            call = partial(measure_matrix, run, "sizes", (e,) * 3, 6, options, on_cpu=on_cpu, peers=True)
            yield f"{e}^3, n = 6", call

    def unknowns(call, more=None, numbers=options.unknowns):
        for n in numbers:
            shape = (edge_for(n, options.entries),) * 3
            yield f"{shape[0]}^3, n = {n}", partial(call, run, *(more or ()), shape, n, options)

    if "sizes" in options.parts:
        yield from sizes(small, True)
    if "steps" in options.parts:
        yield "Table 1", partial(measure_steps, run, options.domain, options)
    if not options.gpu and "sizes" in options.parts:
        run.left_out |= {f"{e}^3, n = 6": "larger than what the CPU is given" for e in large}
    if options.gpu:
        if "sizes" in options.parts:
            yield from sizes(large, False)
        if "unknowns" in options.parts:
            on_gpu = partial(measure_matrix, on_cpu=False, peers=False)
            yield from unknowns(on_gpu, ("unknowns",))
        if "sizes" in options.parts and small:
            yield f"{small[-1]}^3, scalar", partial(scalar_only, run, (small[-1],) * 3, 6, options)
        if "unknowns" in options.parts:
            yield from unknowns(cpu_unknowns)
    elif "unknowns" in options.parts:
        yield from unknowns(partial(measure_matrix, on_cpu=True, peers=False), ("unknowns",))


def measured(options) -> Run:
    run = new_run("fgbilu", gpu=options.gpu, machine_name=options.machine)
    run.options = {"parts": ",".join(options.parts), "threads": ",".join(map(str, options.threads))}
    budget = Budget(options.budget)
    if options.gpu:
        with run.attempt("", "copy bandwidth"):
            run.options["copy GB/s"] = copy_bandwidth()
    try:
        for name, call in tasks(run, options):
            if budget.over():
                run.left_out[name] = "the budget was spent"
                continue
            begun = budget.spent()
            with run.attempt(name, "the rest of this matrix"):
                call()
            if options.gpu:
                with run.attempt(name, "the rest of the run", fatal=True):
                    measure.release_gpu()
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {name}: {budget.spent() - begun:.1f} s", flush=True)
    except (RunEnded, KeyboardInterrupt) as end:
        run.left_out["the rest"] = f"the run ended early ({type(end).__name__})"
    run.options |= {"seconds": round(budget.spent()), "load average at the end": round(os.getloadavg()[0], 1)}
    run.save(options.out)
    return run


def merged(paths: Sequence[Path]) -> Run:
    """The first file's run, and from the others what it lacks."""
    run, *others = map(Run.load, paths)

    def key(r: Record) -> tuple:
        return r.matrix, r.work, r.device, r.who, r.variant, r.threads

    for other in others:
        have = {key(r) for r in run.records}
        added = [r for r in other.records if key(r) not in have]
        run.records += added
        run.failures += [f for f in other.failures if f not in run.failures]
        run.left_out = other.left_out | run.left_out
        for name, fact in other.matrices.items():
            run.matrices.setdefault(name, fact)
        if bandwidth(run) is None and bandwidth(other) is not None:
            run.options["copy GB/s"] = bandwidth(other)
        for device in sorted({r.device for r in added}):
            run.options[f"{device} from"] = f"{other.machine['name']}, {other.machine['cpu']}, {other.date}"
    return run


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, from 1 on."""
    found = tuple(int(part) for part in text.split(","))
    if min(found) < 1:
        raise ValueError(text)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="finelu bench fgbilu", description=__doc__)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--gpu", action="store_true", help="on the GPU and the CPU (default if there is a GPU)")
    where.add_argument("--cpu", action="store_true", help="on the CPU only")
    parser.add_argument("--from", dest="sources", type=Path, nargs="+", metavar="JSON", help="draw what was measured")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s")
    parser.add_argument("--edges", type=numbers, help="edges of the cubes of Figure 9 (default: 15 to 200; CPU: to 65)")
    parser.add_argument("--unknowns", type=numbers, help="n of Figure 10, even and from 4 on (default: 4 to 64)")
    parser.add_argument("--threads", type=numbers, help="on the CPU (default: 1, 2 and all cores)")
    parser.add_argument("--quick", action="store_true", help="tiny grids: whether it runs, not how fast")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    parser.add_argument("--budget", type=float, help="seconds after which no further matrix is begun")
    parser.add_argument("--machine", default="", help="a name for this machine in file names and tables")
    options = parser.parse_args(argv)
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts: there is no {', '.join(sorted(unknown))}; choose from {','.join(PARTS)}")
    default = QUICK if options.quick else {"edges": EDGES, "unknowns": UNKNOWNS, "entries": ENTRIES, "domain": DOMAIN}
    options.edges = sorted(options.edges or default["edges"])
    options.unknowns = options.unknowns or default["unknowns"]
    options.entries, options.domain = default["entries"], default["domain"]
    if odd := [n for n in options.unknowns if n % 2 or n < 4]:
        parser.error(f"--unknowns: {odd[0]} is not a sum of 4s and 6s")
    options.threads = options.threads or sorted({1, 2, available_cores()})

    options.out.mkdir(parents=True, exist_ok=True)
    if options.sources:
        run = merged(options.sources)
    else:
        options.gpu = options.gpu or (not options.cpu and have_gpu())
        run = measured(options)
    for title, body in tables(run).items():
        print(f"\n{title}\n{body or 'absent'}", end="" if body else "\n")
    target = run.save(options.out, page(run, options.out)).with_suffix(".md")
    print(f"\n{len(run.matrices)} matrices, {len(run.failures)} failures; {target}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    command(main)
