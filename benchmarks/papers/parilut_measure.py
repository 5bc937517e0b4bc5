"""Measurements for the ParILUT papers: iterations, steps, times, SuperLU, selections."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as splinalg

import finelu
from benchmarks.claims import selection
from benchmarks.claims.parilut import spd
from benchmarks.harness.building_blocks import Blocks, all_steps, factor_time, profile, without_solves
from benchmarks.harness.case import to_gpu
from benchmarks.harness.clock import Budget, copy_bandwidth, gpu_time
from benchmarks.harness.record import Record, Run
from benchmarks.harness.suite import Problem
from finelu.device import to_host
from finelu.errors import ZeroPivot
from finelu.ordering import rcm

SEED, RTOL, MAXITER, LONGEST = 0, 1e-10, 10_000, 4000  # LONGEST: the most iterations of full GMRES
METHODS = {"cg": 2, "gmres": 3}  # the tables
STEPS = range(6)
EXACT = "exact"  # the first word of variants whose values come of eliminations
IN_RCM = (*(f"ani{k}" for k in range(3, 8)), *(f"anisotropic_triangles:{k}" for k in range(3, 8)))
ORDERS = {"stored": "as stored", "rcm": "RCM here"}
DELTAS = {"all": None, "1": 1.0, "0.5": 0.5, "0.1": 0.1}  # 2018, section 4.1
MANY_STEPS = 15
REPEATED = (1, 16, 256, 4096, 65536, 2**24)  # how many different values: 2019, Figure 8, right
PAPER_SIZE = 24
SELECTIONS = {
    "sselect-s": {"counting": "shared"},
    "sselect-g": {"counting": "global"},
    "qselect-s": {"method": "quickselect", "counting": "shared"},
    "qselect-g": {"method": "quickselect", "counting": "global"},
    "sselect, as it comes": {},
    "approximate, as it comes": {"exact": False},
}
AGGREGATED = {
    f"{name} aggregated": arguments | {"counting": f"{arguments['counting']}_aggregated"}
    for name, arguments in SELECTIONS.items()
    if "counting" in arguments
}


# Matrices -------------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A matrix as it is factored, ordered and with a unit diagonal; its right-hand side; both where the run works.

    Scaled here, so that it is the same system for all preconditioners, none and the classical ones too.
    """

    name: str
    S: sp.csr_matrix
    spd: bool
    order: str
    device: str

    @staticmethod
    def load(problem: Problem, device: str, order: str = "") -> Case:
        """order : a key of ORDERS, which the name then ends with; without one reverse Cuthill-McKee, as in the paper,
        where a matrix that is stored in such an order keeps it."""
        S, name, is_rcm = problem.load(), problem.name, problem.name in IN_RCM
        described = ORDERS[order or ("stored" if is_rcm else "rcm")]
        name += order and f" {described}"
        if described == ORDERS["rcm"]:
            p = rcm(finelu.as_csr(S))
            S = sp.csr_matrix(S[p][:, p])
            S.sort_indices()
        elif is_rcm:
            described += " (RCM)"
        d = 1 / np.sqrt(abs(S.diagonal()))
        S.data *= np.repeat(d, np.diff(S.indptr)) * d[S.indices]  # one product d_i d_j: symmetric where S is
        return Case(name, S, spd(S), described, device)

    def __post_init__(self):
        self.b = np.random.default_rng(SEED).uniform(-0.5, 0.5, self.S.shape[0])
        self.A = finelu.as_csr(self.S)
        self.A_here, self.b_here = self.S, self.b
        if self.device == "gpu":
            import cupy
            import cupyx.scipy.sparse as csp

            self.A, self.A_here, self.b_here = to_gpu(self.A), csp.csr_matrix(self.S), cupy.asarray(self.b)

    def facts(self) -> dict[str, Any]:
        return {"n": self.S.shape[0], "nnz": self.S.nnz, "spd": self.spd, "order": self.order}


# 2018, Tables 2 and 3 -------------------------------------------------------------------------------------------------


def recipes(cholesky: bool, nnz: int) -> dict[str, Any]:
    """The columns of Table 2 (cholesky) or 3, and those of the default: name -> recipe, None for no preconditioner."""
    base = finelu.IC0() if cholesky else finelu.ILU0()
    classical = finelu.ICT(nnz=nnz) if cholesky else finelu.ILUT(nnz=nnz)
    Adapted = finelu.ParICT if cholesky else finelu.ParILUT
    return {
        "none": None,
        type(base).__name__: base,
        type(classical).__name__: classical,
        **{str(k): Adapted(steps=k, sweep="paper") for k in STEPS},
        **{f"{EXACT} {k}": Adapted(steps=k) for k in STEPS},
    }


def longest_gmres(run: Run, case: Case) -> int:
    """The most iterations of full GMRES, whose basis takes at most the GiB of run.options["basis"]."""
    return int(max(min(LONGEST, run.options["basis"] * 2**30 / (8 * case.S.shape[0])), 1))


def solve(run: Run, case: Case, method: str, variant: str, recipe: Any, seconds: float) -> Record:
    """Factor and solve once; the residual is computed here, by SciPy, from the matrix itself."""
    record = Record(case.name, method, case.device, "finelu", variant, None, threads=run.options["threads"])
    options: dict[str, Any] = {"maxiter": MAXITER}
    if method == "gmres":
        options = dict.fromkeys(("maxiter", "restart"), longest_gmres(run, case))
    begin = time.perf_counter()
    try:
        F = recipe and recipe.factor(case.A)
    except ZeroPivot as error:
        record.detail = {"status": "no factors", "reason": str(error).partition(", so ")[0]}
        run.records.append(record)
        return record
    record.analysis_ms = 1e3 * (time.perf_counter() - begin)
    end = time.perf_counter() + seconds
    solution = getattr(finelu, method)(
        case.A_here, case.b_here, M=F, rtol=RTOL, watch=lambda *_: time.perf_counter() > end, **options
    )
    record.numeric_ms = 1e3 * solution.timings["solve"]
    x = to_host(solution.x)
    record.error = float(np.linalg.norm(case.b - case.S @ x) / np.linalg.norm(case.b))
    record.detail = {"status": solution.status.name, "iterations": solution.iterations}
    if F is not None:
        asked = (case.S.nnz - case.S.shape[0]) // 2 + case.S.shape[0] if method == "cg" else case.S.nnz
        record.detail |= {"entries": F.nnz / asked, "refused": F.report.get("refused", 0)}
        record.detail |= {"warning": F.report["warning"]} if "warning" in F.report else {}
        if F.report.get("steps", 0) < getattr(recipe, "steps", 0):
            record.detail["stopped"] = f"{F.report['steps']} steps: {F.report['stopped']}"
    run.records.append(record)
    return record


def shown(record: Record | None) -> str:
    """The iterations as the tables show them; nothing of a solve that the clock ended."""
    if record is None:
        return ""
    status, iterations = record.detail["status"], record.detail.get("iterations")
    if status == "CONVERGED" and record.error <= 1.01 * RTOL:
        return str(iterations)
    if status == "INTERRUPTED":
        return ""
    return f">{iterations}" if status == "MAX_ITERATIONS" else "-"


def measure_tables(
    run: Run, case: Case, limit: float, budget: Budget, theirs: Sequence[int | None] | None, methods: Sequence[str]
) -> None:
    """Table 2 for SPD matrices; Table 3 for the others, where the classical ICT breaks down, and where the paper has
    the matrix there, with `theirs`. A solve that took more iterations in the paper than are allowed is left out.

    methods : "cg" for Table 2, "gmres" for Table 3.
    """
    longest = longest_gmres(run, case)

    def all_columns(method: str) -> list[Record]:
        found: list[Record] = []
        if method not in methods:
            return found
        for variant, recipe in recipes(method == "cg", case.S.nnz).items():
            what = f"Table {METHODS[method]}, {variant}"
            if budget.over():
                run.left_out[f"{case.name} ({what})"] = "the budget was spent"
                continue
            paper = dict(zip(recipes(False, case.S.nnz), theirs or (), strict=False)).get(variant)
            if method == "gmres" and paper and paper > longest:
                run.left_out[f"{case.name} ({what})"] = f"{paper} iterations in the paper; {longest} are allowed"
                continue
            with run.attempt(case.name, what):
                found.append(solve(run, case, method, variant, recipe, min(limit, budget.left())))
        return found

    broke = bool(theirs) or not case.spd
    if case.spd:
        records = all_columns("cg")
        broke = broke or any(r.variant == "ICT" and r.detail["status"] == "no factors" for r in records)
    if broke:
        all_columns("gmres")


# 2018, Figures 1 to 3; 2019, Figure 10 --------------------------------------------------------------------------------


def residual_norm(S: sp.csr_matrix, L: Any) -> float:
    """||A - L L^T||_F."""
    return float(splinalg.norm(S - L @ L.T))


def discrepancy(P: Any, Q: Any) -> int:
    """2018, section 4.1: the number of entries that only one of the two patterns has."""
    P, Q = ((M != 0).astype(np.int64) for M in (P, Q))
    return int(P.sum() + Q.sum() - 2 * P.multiply(Q).sum())


def measure_steps(run: Run, case: Case) -> None:
    """PCG iterations, residual norm and pattern over 15 steps, for each fraction of candidates; IC(0) and ICT."""

    def count(F) -> str:
        solution = finelu.cg(case.A_here, case.b_here, M=F, rtol=RTOL, maxiter=MAXITER)
        return solution.iterations if solution.converged else None

    factors = {name: recipes(True, case.S.nnz)[name].factor(case.A) for name in ("IC0", "ICT")}
    triangles = {name: sp.csr_matrix(to_host(F.L)) for name, F in factors.items()}
    for name, F in factors.items():
        detail = {"iterations": [count(F)], "norms": [residual_norm(case.S, triangles[name])]}
        detail["discrepancy"] = [discrepancy(triangles[name], triangles["ICT"])]
        run.records.append(Record(case.name, "steps", case.device, "finelu", name, None, detail=detail))
    for name, delta in DELTAS.items():
        detail = {"iterations": [], "norms": [], "discrepancy": [], "most": []}
        for steps in range(MANY_STEPS + 1):
            recipe = finelu.ParICT(steps=steps, sweep="paper", sweeps=finelu.Sweeps(add_fraction=delta))
            F = recipe.factor(case.A)
            L = sp.csr_matrix(to_host(F.L))
            detail["iterations"].append(count(F))
            detail["norms"].append(residual_norm(case.S, L))
            detail["discrepancy"].append(discrepancy(L, triangles["ICT"]))
            added = sum(F.report["candidates"])  # each may be a place of ICT's, and push one out that is not
            detail["most"].append(max(detail["discrepancy"][0] - 2 * added, 0))
        run.records.append(Record(case.name, "steps", case.device, "finelu", name, None, detail=detail))


def measure_size(run: Run, case: Case, repeats: int = 9) -> None:
    """2018, Figure 3: the number of candidates and the time of step 3 of ParICT, the least of some runs."""
    recipe = finelu.ParICT(steps=3, sweep="paper")
    F = recipe.factor(case.A)
    times: list[tuple[float, float, float]] = []
    with without_solves(type(F)):
        for _ in range(repeats):
            with Blocks(case.A.data) as blocks:
                recipe.factor(case.A)
            searches = [ms for label, ms in blocks.calls if label == "candidates"]
            sweeps = [ms for label, ms in blocks.calls if label == "sweep after add"]
            times.append((blocks.step_ms(3), searches[2], sweeps[2]))
    whole, search, sweep = map(min, zip(*times, strict=True))
    detail = {"n": case.S.shape[0], "candidates": F.report["candidates"][2], "search_ms": search, "sweep_ms": sweep}
    threads = run.options["threads"]
    run.records.append(
        Record(case.name, "step 3", case.device, "finelu", "ParICT", whole, threads=threads, detail=detail)
    )


def measure_exactness(run: Run, case: Case, seconds: float, steps: int = 8) -> None:
    """GMRES iterations over the steps with exact and with approximate thresholds, and with ILU(0)."""
    for variant in ("ILU0", "exact", "approximate"):
        detail: dict[str, list] = {"iterations": [], "entries": []}
        for k in range(steps + 1) if variant != "ILU0" else (0,):
            recipe: Any = finelu.ILU0()
            if variant != "ILU0":
                recipe = finelu.ParILUT(steps=k, sweep="paper", sweeps=finelu.Sweeps(select=variant))
            scratch = Run("", {}, "", {name: run.options[name] for name in ("threads", "basis")})
            record = solve(scratch, case, "gmres", str(k), recipe, seconds)
            detail["iterations"].append(record.detail["iterations"] if shown(record).isdigit() else None)
            detail["entries"].append(record.detail.get("entries"))
        run.records.append(Record(case.name, "exactness", case.device, "finelu", variant, None, detail=detail))


# 2018, Table 4; 2019, Figures 11 to 13 --------------------------------------------------------------------------------


def _spilu(S, fill_factor: float, drop_tol: float, results) -> None:
    """In a process of its own: the seconds of one factorization and the entries of L + U."""
    begin = time.perf_counter()
    try:
        F = splinalg.spilu(S, drop_tol=drop_tol, fill_factor=fill_factor, permc_spec="NATURAL")
        seconds = time.perf_counter() - begin
        results.put((seconds, F.L.nnz + F.U.nnz - S.shape[0], ""))
    except RuntimeError as error:  # SuperLU: singular
        results.put((None, None, str(error)))


def superlu(S: sp.csr_matrix, wanted: int, limit: float) -> dict[str, Any]:
    """SciPy's spilu in the order of S with `wanted` entries, within 2% after up to four tries at fill_factor.

    Where its default drop_tol=1e-4 leaves much fewer than fill_factor allows, it is set to 0. Returns seconds, nnz,
    fill_factor and drop_tol of the nearest, or a reason if a try took longer than `limit` or failed.
    """
    context = multiprocessing.get_context("spawn")  # a forked child would inherit threads that wait for ever
    S, fill_factor, drop_tol, best = sp.csc_matrix(S), 1.0, 1e-4, None
    for _ in range(4):
        results = context.Queue()
        child = context.Process(target=_spilu, args=(S, fill_factor, drop_tol, results), daemon=True)
        child.start()
        try:
            seconds, nnz, why = results.get(timeout=limit + 10)  # imports and the copy of S are not SuperLU's time
        except Empty:
            seconds, nnz, why = None, None, f"SuperLU took more than {limit:g} s"
        child.kill()
        child.join()
        if seconds is None:
            return best or {"reason": why}
        if best is None or abs(nnz - wanted) < abs(best["nnz"] - wanted):
            best = {"seconds": seconds, "nnz": nnz, "fill_factor": fill_factor, "drop_tol": drop_tol}
        if abs(nnz - wanted) <= 0.02 * wanted:
            break
        if nnz < 0.9 * wanted and drop_tol:
            drop_tol = 0.0
        else:
            fill_factor *= wanted / nnz
    return best


def measure_time(run: Run, case: Case, limit: float) -> None:
    """ParICT, ParILUT with approximate and exact thresholds, each with its blocks, and SuperLU."""
    approximate = finelu.Sweeps(select="approximate")
    chosen = {
        "ParILUT": finelu.ParILUT(steps=5, sweep="paper", sweeps=approximate),
        "ParILUT exact": finelu.ParILUT(steps=5, sweep="paper"),
    }
    if case.spd:
        chosen["ParICT"] = finelu.ParICT(steps=5, sweep="paper")
    for variant, recipe in chosen.items():
        with run.attempt(case.name, f"{variant} {case.device}"), all_steps():
            first, timing, F = factor_time(recipe, case.A)
            detail = {"first_ms": first, "numeric": vars(timing), "nnz": F.nnz}
            detail["blocks"] = profile(recipe, case.A, type(F))
            threads = run.options["threads"]
            run.records.append(
                Record(case.name, "factor", case.device, "finelu", variant, timing.ms, threads=threads, detail=detail)
            )
    with run.attempt(case.name, "SuperLU"):
        found = superlu(case.S, case.S.nnz, limit)
        ms = 1e3 * found["seconds"] if "seconds" in found else None
        run.records.append(Record(case.name, "factor", "cpu", "superlu", "spilu", ms, threads=1, detail=found))


# 2019, Figures 8 and 9 ------------------------------------------------------------------------------------------------


@contextmanager
def timed_kernels(marks: list[tuple[str, Any, Any]]) -> Iterator[None]:
    """Every kernel that a selection on the GPU launches is put between two events, listed in `marks`."""
    import cupy

    from finelu.kernels.cuda import selection as module

    before = module.kernel

    def kernel(file: str, name: str, *kinds):
        launch = before(file, name, *kinds)

        def timed(*arguments, **named):
            first, last = cupy.cuda.Event(), cupy.cuda.Event()
            first.record()
            launch(*arguments, **named)
            last.record()
            marks.append((name, first, last))

        return timed

    module.kernel = kernel
    try:
        yield
    finally:
        module.kernel = before


def measure_selection(run: Run, budget: Budget) -> None:
    """Throughput over size, over the number of different values, and the kernels of a search, on the GPU."""
    import cupy

    from finelu.kernels import kernels_for

    run.machine["copy GB/s"] = round(copy_bandwidth(), 1)
    for exponent in reversed(selection.EXPONENTS):
        if budget.over():
            run.left_out[f"selection of 2^{exponent}"] = "the budget was spent"
            continue
        x = selection.values(cupy, "uniform", 2**exponent, "float64")
        selection.ours(run, ("uniform", "float64", exponent, "gpu", 0), x, cupy, gpu_time, SELECTIONS)
        del x
        cupy.get_default_memory_pool().free_all_blocks()
    if budget.over():
        return
    x = selection.values(cupy, "uniform", 2**PAPER_SIZE, "float64")
    for different in REPEATED:
        case = (f"{different} values", "float64", PAPER_SIZE, "gpu", 0)
        selection.ours(run, case, cupy.floor(different * x), cupy, gpu_time, SELECTIONS | AGGREGATED)
    for variant in ("approximate, as it comes", "sselect-s", "qselect-s"):
        plan = kernels_for(x).selection.Selection(x.size, x.dtype, **SELECTIONS[variant])
        for _ in range(2):
            marks: list[tuple[str, Any, Any]] = []
            with timed_kernels(marks):
                plan.select(x, x.size // 3)
        cupy.cuda.get_current_stream().synchronize()
        detail = {"kernels": [(name, cupy.cuda.get_elapsed_time(a, b)) for name, a, b in marks]}
        run.records.append(
            Record(f"2^{PAPER_SIZE}", "selection kernels", "gpu", "finelu", variant, None, detail=detail)
        )
