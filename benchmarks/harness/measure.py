"""finelu's kernels and those of its peers on one matrix, each result checked, into a `Run`."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

import finelu
from benchmarks.harness.case import BUFFERS, UNWRITTEN, Case, backward_error, host, relative_error, to_gpu
from benchmarks.harness.clock import cpu_time, gpu_time
from benchmarks.harness.record import Record, Run
from benchmarks.peers import mkl
from finelu.kernels import kernels_for

DIRECT_SOLVES = {
    "gpu": ("sync_free", "level_packed", "one_block", "auto"),
    "cpu": ("sequential", "levels", "auto"),
}
APPROXIMATE_SOLVES = ("jacobi", "isai")


# Factorizations -------------------------------------------------------------------------------------------------------


def factorization(run: Run, case: Case, work: str, device: str, threads: int = 0) -> None:
    """Every variant of finelu's "ilu0" or "ic0" on "gpu" or "cpu", analysis and numeric part timed separately."""
    pattern, reference = (case.A, case.lu) if work == "ilu0" else (case.lower_triangle, case.cholesky)
    clock = _clocks(device)
    pattern = to_gpu(pattern) if device == "gpu" else pattern
    k = kernels_for(pattern.data).elimination
    analyse, factor = getattr(k, f"{work}_analysis"), getattr(k, work)
    for variant in (*getattr(k, f"{work.upper()}_VARIANTS"), "auto", "auto once"):
        name, once = variant.removesuffix(" once"), {"once": True} if variant == "auto once" else {}
        with run.attempt(case.name, f"finelu {work} {variant} {device}"):
            values = pattern.data * 0 + UNWRITTEN
            plan = analyse(pattern, name, **once)
            bad = kernels_for(values).vectors.first_bad(factor(plan, pattern.data, values))
            if bad >= 0:
                raise RuntimeError(f"reports a bad pivot in row {bad}, where the sequential factorization has none")
            error = relative_error(host(values), reference)
            analysis = clock.analysis(lambda i, v=name, o=once: analyse(pattern, v, **o))
            numeric = clock.numeric(lambda i, p=plan, out=values: factor(p, pattern.data, out))
            run.records.append(
                Record(
                    case.name,
                    work,
                    device,
                    "finelu",
                    variant,
                    numeric.ms,
                    analysis.ms,
                    error,
                    threads,
                    str(getattr(plan, "variant", "")),
                    {"numeric": vars(numeric), "analysis": vars(analysis)},
                )
            )


def cusparse_factorization(run: Run, case: Case, work: str) -> None:
    """csrilu02 or csric02 under both policies."""
    from benchmarks.peers import cusparse

    pattern, reference = (case.A, case.lu) if work == "ilu0" else (case.lower_triangle, case.cholesky)
    pattern = to_gpu(pattern)
    Peer = cusparse.Csrilu02 if work == "ilu0" else cusparse.Csric02
    for policy in cusparse.POLICIES:
        with run.attempt(case.name, f"cusparse {work} {policy}"):
            peer = Peer(pattern, policy)
            analysis = gpu_time(lambda i, p=peer: p.analyse(), before=lambda i, p=peer: p.renew(), host=True)
            numeric = gpu_time(lambda i, p=peer: p.factor(), before=lambda i, p=peer: p.load())
            error = relative_error(host(peer.values), reference)
            detail = {"numeric": vars(numeric), "analysis": vars(analysis), "zero_pivot": peer.zero_pivot()}
            peer.close()
            run.records.append(
                Record(case.name, work, "gpu", "cusparse", policy, numeric.ms, analysis.ms, error, detail=detail)
            )


def mkl_ilu0(run: Run, case: Case, threads: int, *, busy: bool = False) -> None:
    """dcsrilu0, which has no analysis; its 1-based copies of the pattern are made before the clock starts.

    busy : the machine does other work, too: the least CPU time of this thread counts, not the median by the wall clock.
    """
    with run.attempt(case.name, f"mkl ilu0 {threads} threads"), mkl.num_threads(threads):
        peer = mkl.ILU0(case.A)
        numeric = cpu_time(lambda i: peer.factor(), clock=time.thread_time if busy else time.perf_counter)
        error = relative_error(peer.lu, case.lu)
        run.records.append(
            Record(
                case.name,
                "ilu0",
                "cpu",
                "mkl",
                "dcsrilu0",
                numeric.low if busy else numeric.ms,
                0.0,
                error,
                threads,
                detail={"numeric": vars(numeric), "busy": busy},
            )
        )


# Triangular solves ----------------------------------------------------------------------------------------------------


def triangular(run: Run, case: Case, side: str, device: str, threads: int = 0, *, approximate: bool) -> None:
    """Every direct method of TriangularSolver, and on demand the approximate ones, with L ("lower") or U of ILU(0)."""
    clock = _clocks(device)
    factors = to_gpu(case.factors) if device == "gpu" else case.factors
    pairs = _pairs(case, device)
    lower = side == "lower"
    T = case.full_triangle(side)
    for method in DIRECT_SOLVES[device] + (APPROXIMATE_SOLVES if approximate else ()):
        if method == "one_block" and case.A.n > one_block_rows(case.A.dtype.itemsize):
            continue  # its unknowns have to fit into the shared memory of one block
        with run.attempt(case.name, f"finelu trsv {side} {method} {device}"):

            def analyse(i, method=method):
                return finelu.TriangularSolver(factors, lower=lower, unit=lower, method=method, check=False)

            solver = analyse(0)
            b, x = pairs[0]
            x.fill(UNWRITTEN)
            solver.solve(b, out=x)
            error = backward_error(T, host(b), host(x))
            analysis = clock.analysis(analyse)
            numeric = clock.numeric(lambda i, s=solver: s.solve(pairs[i % BUFFERS][0], out=pairs[i % BUFFERS][1]))
            run.records.append(
                Record(
                    case.name,
                    f"trsv_{side}",
                    device,
                    "finelu",
                    method,
                    numeric.ms,
                    analysis.ms,
                    error,
                    threads,
                    str(solver.method),
                    {"numeric": vars(numeric), "analysis": vars(analysis), "levels": solver.levels},
                )
            )


def cusparse_triangular(run: Run, case: Case, side: str) -> None:
    """SpSV with L or U alone in a matrix."""
    from benchmarks.peers import cusparse

    with run.attempt(case.name, f"cusparse trsv {side}"):
        pairs = _pairs(case, "gpu")
        lower = side == "lower"
        peer = cusparse.SpSV(to_gpu(case.triangle(side)), pairs, lower=lower, unit=lower)
        analysis = gpu_time(lambda i: peer.analyse(), before=lambda i: peer.renew(), host=True)
        numeric = gpu_time(peer.solve)
        b, x = pairs[0]
        x.fill(UNWRITTEN)
        peer.solve(0)
        error = backward_error(case.full_triangle(side), host(b), host(x))
        peer.close()
        detail = {"numeric": vars(numeric), "analysis": vars(analysis)}
        run.records.append(
            Record(case.name, f"trsv_{side}", "gpu", "cusparse", "SpSV", numeric.ms, analysis.ms, error, detail=detail)
        )


def mkl_triangular(run: Run, case: Case, side: str, threads: int) -> None:
    """mkl_sparse_d_trsv after mkl_sparse_optimize with a hint for many solves."""
    with run.attempt(case.name, f"mkl trsv {side} {threads} threads"), mkl.num_threads(threads):
        pairs = _pairs(case, "cpu")
        lower = side == "lower"
        triangle = case.triangle(side)
        peers = []

        def analyse(i):
            peers.append(mkl.TriangularSolve(triangle, lower=lower, unit=lower))

        analysis = cpu_time(analyse, repeats=3)
        numeric = cpu_time(lambda i: peers[0].solve(*pairs[i % BUFFERS]))
        error = backward_error(case.full_triangle(side), *pairs[0])
        for peer in peers:
            peer.close()
        detail = {"numeric": vars(numeric), "analysis": vars(analysis)}
        run.records.append(
            Record(
                case.name, f"trsv_{side}", "cpu", "mkl", "trsv", numeric.ms, analysis.ms, error, threads, detail=detail
            )
        )


# Whole solves ---------------------------------------------------------------------------------------------------------


def gmres_gpu(run: Run, case: Case, limit: float) -> None:
    """GMRES(30) with ILU(0) to 1e-8, set-up included: finelu, and CuPy's spilu and gmres in a child process.

    limit : wall-clock seconds that CuPy's solve may take; past it the record says so and the ratio is a lower bound.
    """
    from benchmarks.peers import cupy_spilu

    b = cupy_spilu.right_hand_side(case.S)
    with run.attempt(case.name, "finelu gmres"):
        run.records.append(finelu_gmres(case, b))
    with run.attempt(case.name, "cupy gmres"):
        result = cupy_spilu.run_apart(case.problem, limit)
        run.records.append(
            Record(
                case.name,
                "gmres",
                "gpu",
                "cupy",
                "spilu(fill_factor=1)+gmres(30)",
                result.pop("ms"),
                error=result.pop("relative_residual", None),
                detail=result,
            )
        )


def finelu_gmres(case: Case, b: np.ndarray) -> Record:
    """Factor and solve on the GPU from a CSR matrix there; the median of three after one for the compiler."""
    import cupy
    import cupyx.scipy.sparse as csp

    from benchmarks.peers import cupy_spilu

    A, b = csp.csr_matrix(case.S), cupy.asarray(b)
    solutions = []

    def solve(i):
        F = finelu.ILU0().factor(A)
        solutions[:] = [
            finelu.gmres(A, b, M=F, rtol=cupy_spilu.RTOL, restart=cupy_spilu.RESTART, maxiter=cupy_spilu.MAXITER)
        ]

    timing = gpu_time(solve, host=True)
    solution = solutions[0]
    detail = {"numeric": vars(timing), "iterations": solution.iterations, "converged": solution.converged}
    return Record(
        case.name,
        "gmres",
        "gpu",
        "finelu",
        "ILU0+gmres(30)",
        timing.ms,
        error=solution.residual_norm / float(cupy.linalg.norm(b)),
        detail=detail,
    )


# Shared by these ------------------------------------------------------------------------------------------------------


def one_block_rows(itemsize: int) -> int:
    from finelu.kernels.cuda.runtime import schedule

    return schedule.one_block_rows(itemsize)


def _pairs(case: Case, device: str):
    """BUFFERS pairs of a right-hand side and a place for the solution."""
    if device == "gpu":
        import cupy

        return [(cupy.asarray(b), cupy.full(b.size, UNWRITTEN)) for b in case.right_hand_sides()]
    return [(b, np.full_like(b, UNWRITTEN)) for b in case.right_hand_sides()]


def _clocks(device: str) -> SimpleNamespace:
    """How to time an analysis (work of the host counts) and a numeric call (queued work counts) on a device."""
    if device == "cpu":
        return SimpleNamespace(analysis=cpu_time, numeric=cpu_time)

    def analysis(call: Callable):
        return gpu_time(call, host=True)

    return SimpleNamespace(analysis=analysis, numeric=gpu_time)
