"""The measurements that the benchmarks share: finelu and its peers on one matrix, each result checked, into a `Run`.

Checked against: the sequential factors of the CPU (relative error), and the definition T x = b (backward error).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.common import (
    Budget,
    LeftOut,
    Problem,
    Record,
    Run,
    RunEnded,
    backward_error,
    cpu_time,
    gpu_time,
    names_of,
    relative_error,
    suite,
)
from benchmarks.peers import mkl
from finelu.kernels import kernels_for
from finelu.matrix import CSR

DIRECT_SOLVES = {
    "gpu": ("sync_free", "level_packed", "one_block", "auto"),
    "cpu": ("sequential", "levels", "auto"),
}
APPROXIMATE_SOLVES = ("jacobi", "isai")
UNWRITTEN = 1e30  # what results hold beforehand, so that an entry left out shows; not NaN: MKL multiplies it by 0
BUFFERS = 4  # right-hand sides taken in turn, so that no cache holds the one asked for
SIDES = ("lower", "upper")


@dataclass
class Case:
    """A matrix with what all its measurements need: the checked CSR and the reference factors, all on the host."""

    problem: Problem
    S: sp.csr_matrix

    @staticmethod
    def load(problem: Problem) -> Case:
        """Read or make the matrix; LeftOut if it has no ILU(0)."""
        case = Case(problem, problem.load())
        if case.lu_bad_row >= 0:
            raise LeftOut(f"ILU(0) meets a zero pivot in row {case.lu_bad_row}")
        return case

    @property
    def name(self) -> str:
        return self.problem.name

    @cached_property
    def A(self) -> CSR:
        return finelu.as_csr(self.S)

    @cached_property
    def _ilu0(self):
        return _sequential("ilu0", self.A)

    @property
    def lu_bad_row(self) -> int:
        return self._ilu0[0]

    @property
    def lu(self) -> np.ndarray:
        """The factors L and U of ILU(0), (nnz,) in A's order."""
        return self._ilu0[1]

    @cached_property
    def lower_triangle(self) -> CSR:
        return finelu.as_csr(sp.tril(self.S, format="csr"))

    @cached_property
    def symmetric(self) -> bool:
        difference = abs(self.S - self.S.T)
        return difference.nnz == 0 or difference.max() <= 1e-14 * abs(self.S).max()

    @cached_property
    def cholesky(self) -> np.ndarray | None:
        """The factor of IC(0) in the order of `lower_triangle`, or None where A has none."""
        if not self.symmetric or np.any(self.S.diagonal() <= 0):
            return None
        bad, values = _sequential("ic0", self.lower_triangle)
        return values if bad < 0 else None

    @cached_property
    def factors(self) -> CSR:
        """L and U of ILU(0) in one CSR."""
        return CSR(self.A.indptr, self.A.indices, self.lu, self.A.diag)

    def triangle(self, side: str) -> sp.csr_matrix:
        """Strict L or U with its diagonal, alone in a matrix."""
        LU = self.factors.tosparse()
        return sp.tril(LU, -1, format="csr") if side == "lower" else sp.triu(LU, format="csr")

    def full_triangle(self, side: str) -> sp.csr_matrix:
        """The triangle as a mathematical matrix: L with its unit diagonal, or U."""
        T = self.triangle(side)
        return T + sp.identity(T.shape[0], format="csr") if side == "lower" else T

    def facts(self) -> dict:
        """What tables and figures sort by; levels are those of L, found by the triangular solver's analysis."""
        row_lengths = np.diff(self.A.indptr)
        levels = finelu.TriangularSolver(self.factors, lower=True, unit=True, method="levels").levels
        return {
            "n": self.A.n,
            "nnz": self.A.nnz,
            "levels": int(levels),
            "rows_per_level": self.A.n / levels,
            "row_mean": float(row_lengths.mean()),
            "row_max": int(row_lengths.max()),
            "symmetric": bool(self.symmetric),
            "ic0": self.cholesky is not None,
            "apart": self.problem.apart,
        }

    def right_hand_sides(self) -> list[np.ndarray]:
        rng = np.random.default_rng(2024)
        return [rng.standard_normal(self.A.n) for _ in range(BUFFERS)]


def over_suite(run: Run, options, budget: Budget, measure_one: Callable[[Case], None]) -> bool:
    """Call measure_one on each matrix that `options` names and that has an ILU(0), saving `run` after each.

    What is left out is written down with the reason. False if the run had to end, because measure_one raised (a GPU
    that answers no more) or the user interrupted it.
    """
    try:
        for problem in suite(options.matrix_folder, names_of(options.matrices), quick=options.quick):
            if budget.over():
                run.left_out[problem.name] = "the budget was spent"
                continue
            begun = budget.spent()
            try:
                case = Case.load(problem)
                run.matrices[case.name] = case.facts()
            except LeftOut as reason:
                run.left_out[problem.name] = str(reason)
                continue
            except Exception as error:
                run.left_out[problem.name] = f"{type(error).__name__}: {error}"
                continue
            with run.attempt(case.name, "the rest of the run", fatal=True):
                measure_one(case)
            run.save(options.out)
            took = budget.spent() - begun
            print(f"{budget.spent():5.0f} s  {case.name}: {case.A.n} rows, {took:.1f} s", flush=True)
    except (RunEnded, KeyboardInterrupt):
        return False
    return True


def _sequential(work: str, pattern: CSR) -> tuple[int, np.ndarray]:
    """The first bad row (or -1) and the values of the sequential factorization on the CPU."""
    k = kernels_for(pattern.data)
    values = np.empty_like(pattern.data)
    bad = getattr(k, work)(getattr(k, f"{work}_analysis")(pattern, "sequential"), pattern.data, values)
    return int(bad), values


def release_gpu() -> None:
    """Wait for the device, which raises if it broke, and give its memory back."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()


def to_gpu(M) -> CSR:
    """A CSR (finelu's or scipy's) as a CSR of CuPy arrays."""
    import cupy

    diag = cupy.asarray(M.diag) if hasattr(M, "diag") else None
    return CSR(cupy.asarray(M.indptr), cupy.asarray(M.indices), cupy.asarray(M.data), diag)


def one_block_rows(itemsize: int) -> int:
    from finelu.kernels.cuda.runtime import schedule

    return schedule.one_block_rows(itemsize)


# Factorizations -----------------------------------------------------------------------------------------------------


def factorization(run: Run, case: Case, work: str, device: str, threads: int = 0) -> None:
    """Every variant of finelu's "ilu0" or "ic0" on "gpu" or "cpu", analysis and numeric part apart."""
    pattern, reference = (case.A, case.lu) if work == "ilu0" else (case.lower_triangle, case.cholesky)
    clock = _clocks(device)
    pattern = to_gpu(pattern) if device == "gpu" else pattern
    k = kernels_for(pattern.data)
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


def mkl_ilu0(run: Run, case: Case, threads: int) -> None:
    """dcsrilu0, which has no analysis; its 1-based copies of the pattern are made before the clock starts."""
    with run.attempt(case.name, f"mkl ilu0 {threads} threads"), mkl_threads(threads):
        peer = mkl.ILU0(case.A)
        numeric = cpu_time(lambda i: peer.factor())
        error = relative_error(peer.lu, case.lu)
        run.records.append(
            Record(
                case.name,
                "ilu0",
                "cpu",
                "mkl",
                "dcsrilu0",
                numeric.ms,
                0.0,
                error,
                threads,
                detail={"numeric": vars(numeric)},
            )
        )


@contextmanager
def mkl_threads(threads: int) -> Iterator[None]:
    """MKL with this many threads, and a pause on both sides: idle threads of a library spin for some 0.2 s."""
    mkl.set_num_threads(threads)
    time.sleep(0.25)
    yield
    time.sleep(0.25)


# Triangular solves --------------------------------------------------------------------------------------------------


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
    with run.attempt(case.name, f"mkl trsv {side} {threads} threads"), mkl_threads(threads):
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


# Whole solves -------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------------------


def host(array) -> np.ndarray:
    return array.get() if hasattr(array, "get") else array


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
