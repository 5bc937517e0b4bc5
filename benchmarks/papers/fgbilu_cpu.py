"""The columns of the CPU in the block ILU paper's tables: sequential, finelu, MKL, ilupp."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.case import relative_error
from benchmarks.harness.clock import Timing, cpu_time, repeats_for
from benchmarks.harness.record import Record, Run
from benchmarks.papers.fgbilu_sequential import sequential_factor, sequential_residual, sequential_solve
from benchmarks.peers import mkl
from finelu.device import to_host
from finelu.kernels.cpu import stencil as cpu
from finelu.matrix.stencil import StencilMatrix

FLUSH = 2**28  # bytes, several times the size of the caches
ONCE = 1000.0  # ms from which a call on the CPU is not repeated
AGREE = 1e-8  # relative: a result that is further away from the reference counts in no ratio


def patient_cpu_time(call: Callable[[int], Any]) -> Timing:
    """Time call(i) on the host, warm; only once more where it takes a second or more."""
    found = []
    for i in range(2):
        start = time.perf_counter()
        call(i)
        found.append(1e3 * (time.perf_counter() - start))
    return Timing.of([found[1]], [found[1]]) if found[1] >= ONCE else cpu_time(call, min(repeats_for(found[1]), 5))


def copies(array: np.ndarray) -> list[np.ndarray]:
    """The array and copies of it that together take FLUSH bytes."""
    return [array] + [array.copy() for _ in range(min(40, -(-FLUSH // array.nbytes)) - 1)]


def add(
    run: Run, name: str, work: str, device: str, who: str, variant: str, timing: Timing, error: float | None, **more
) -> None:
    analysis, threads = more.pop("analysis", None), more.pop("threads", 0)
    detail = {"numeric": vars(timing)} | more
    if isinstance(analysis, Timing):
        detail["analysis"] = vars(analysis)
        analysis = analysis.ms
    run.records.append(Record(name, work, device, who, variant, timing.ms, analysis, error, threads, detail=detail))


class Reference:
    """The sequential factors d, x = M^-1 b and r = b - A x, on the host, and how long each took."""

    def __init__(self, A: StencilMatrix, b: np.ndarray, *, timed: bool = True):
        vector = (*A.shape_cells, A.n_block)
        self.d, (self.x, self.r) = np.full(A.blocks.shape[1:], 0.0), (np.full(vector, 0.0) for _ in range(2))
        right, turns = b.reshape(vector), copies(A.blocks) if timed else [A.blocks]
        clock = patient_cpu_time if timed else (lambda call: call(0))

        def factor(i):
            bad = sequential_factor(turns[i % len(turns)], self.d)
            if bad >= 0:
                raise RuntimeError(f"the sequential factorization meets a bad pivot in cell {bad}")

        calls = {
            "factor": factor,
            "solve": lambda i: sequential_solve(turns[i % len(turns)], self.d, right, self.x),
            "residual": lambda i: sequential_residual(turns[i % len(turns)], self.x, right, self.r),
        }
        self.times = {work: clock(call) for work, call in calls.items()}

    def error(self, work: str, value: Any) -> float:
        """How far a result is from the sequential one: relative, the residual relative to the initial one."""
        expected = {"factor": self.d, "solve": self.x, "residual": self.r}[work].ravel()
        if work == "residual":
            return float(np.linalg.norm(to_host(value).ravel() - expected) / self.scale)
        return relative_error(to_host(value).ravel(), expected)

    scale = 1.0  # the norm of b


@cache
def warm_up_cpu(n: int) -> None:
    """Compile the kernels that the CPU needs for n unknowns, sequential and threaded."""
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
        with run.attempt(name, "MKL"), mkl.num_threads(threads):
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


def scalar_mkl(run: Run, name: str, S: sp.csr_matrix, b: np.ndarray, threads: int, reference: Reference) -> None:
    peer = mkl.ILU0(S)
    factor = patient_cpu_time(lambda i, p=peer: p.factor())
    LU = sp.csr_matrix((peer.lu, S.indices, S.indptr), shape=S.shape)
    L = mkl.TriangularSolve(sp.tril(LU, -1, format="csr"), lower=True, unit=True)
    U = mkl.TriangularSolve(sp.triu(LU, format="csr"), lower=False, unit=False)
    y, x = np.zeros_like(b), np.zeros_like(b)  # zeros: MKL multiplies the old values by 0
    solve = patient_cpu_time(lambda i: U.solve(L.solve(b, y), x))
    error = reference.error("solve", x)
    L.close()
    U.close()
    add(run, name, "factor", "cpu", "mkl", "dcsrilu0", factor, error, threads=1)
    add(run, name, "solve", "cpu", "mkl", "trsv", solve, error, threads=threads)
