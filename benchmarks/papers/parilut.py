"""Claim: on the papers' own matrices ParILUT and ParICT need as many iterations as in the papers, step by step.

The tables and figures of H. Anzt, E. Chow, J. Dongarra, "ParILUT - a new parallel threshold ILU factorization", 2018,
and the figures of the experiments of H. Anzt, T. Ribizel, G. Flegar, E. Chow, J. Dongarra, "ParILUT - a parallel
threshold ILU for GPUs", 2019, with finelu, the papers' numbers beside ours where the matrix is theirs.

As in 2018: float64, the right-hand side uniform in [-0.5, 0.5] (fixed seed), x0 = 0, relative residual 1e-10, GMRES not
restarted, matrices in reverse Cuthill-McKee order of A + A^T, scaled to a unit diagonal, synchronous sweeps, classical
ILUT and ICT with as many entries as A. ">k": stopped after k iterations, by their limit or that of time; "-": no
factors, or a breakdown; the reasons are in a list. `--from a.json b.json` draws again from what was measured, the
second file giving what the first has not (another device).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as splinalg

import finelu
from benchmarks import measure, selection
from benchmarks.common import (
    WORST_CASE,
    Budget,
    LeftOut,
    Problem,
    Record,
    Run,
    RunEnded,
    add_options,
    cell,
    command,
    copy_bandwidth,
    gpu_time,
    new_run,
    ratio,
    suite,
    table,
)
from benchmarks.parilut import BLOCKS, Blocks, all_steps, factor_time, problems, profile, spd, without_solves
from benchmarks.spine import have_gpu
from finelu.device import to_host
from finelu.errors import FineluError, ZeroPivot
from finelu.ordering import rcm

SEED, RTOL, MAXITER, LONGEST = 0, 1e-10, 10_000, 1200  # LONGEST: the most iterations of full GMRES
BASIS_GIB = 4.0  # that the basis of full GMRES may take
STEPS = range(6)
PARTS = ("steps", "sizes", "exactness", "selection", "tables", "time")

# 2018, Tables 2 to 4. Columns: no preconditioner, IC(0) or ILU(0), ICT or ILUT, ParICT or ParILUT with 0 to 5 steps.
TABLE_2 = {
    "ANI5": (951, 226, None, 297, 184, 136, 108, 93, 86),
    "ANI6": (1926, 621, None, 595, 374, 275, 219, 181, 172),
    "ANI7": (3895, 1469, None, 1199, 753, 559, 455, 405, 377),
    "APACHE1": (3727, 368, 331, 1480, 933, 517, 321, 323, 323),
    "APACHE2": (4574, 1150, 785, 1890, 1197, 799, 766, 760, 754),
    "THERMAL1": (1640, 453, 412, 626, 447, 409, 389, 385, 383),
    "THERMAL2": (6253, 1729, 1604, 2372, 1674, 1503, 1457, 1472, 1433),
    "THERMOMECH_DM": (21, 8, 8, 8, 7, 7, 7, 7, 7),
    "THERMOMECH_TC": (21, 8, 7, 8, 7, 7, 7, 7, 7),
    "TMT_SYM": (5481, 1453, 1185, 1963, 1234, 1071, 1012, 992, 1004),
    "TOPOPT010": (2613, 692, 331, 845, 551, 402, 342, 316, 313),
    "TOPOPT060": (3123, 871, None, 988, 749, 693, 1116, None, None),
    "TOPOPT120": (3062, 886, None, 991, 837, 784, 2185, None, None),
}
TABLE_3 = {
    "ANI5": (882, 172, 78, 278, 161, 105, 84, 74, 66),
    "ANI6": (1751, 391, 127, 547, 315, 211, 168, 143, 131),
    "ANI7": (3499, 828, 290, 1083, 641, 459, 370, 318, 289),
    "CAGE10": (20, 8, 8, 9, 7, 8, 8, 8, 8),
    "CAGE11": (21, 9, 8, 9, 7, 7, 7, 7, 7),
    "JACOBIANMAT0": (315, 40, 34, 63, 36, 33, 33, 33, 33),
    "JACOBIANMAT9": (539, 66, 65, 110, 60, 55, 54, 53, 53),
    "MAJORBASIS": (95, 15, 9, 26, 12, 11, 11, 11, 11),
    "TOPOPT010": (2399, 565, 303, 835, 492, 375, 348, 340, 339),
    "TOPOPT060": (2852, 666, 397, 963, 584, 445, 417, 412, 410),
    "TOPOPT120": (2765, 668, 396, 959, 584, 445, 416, 408, 408),
    "TORSO2": (46, 10, 7, 18, 8, 6, 7, 7, 7),
    "VENKAT01": (195, 22, 17, 42, 18, 17, 17, 17, 17),
}
TABLE_4 = {  # seconds of ParICT and ParILUT with 68 threads of a Xeon Phi 7250, and of SuperLU with one
    "ANI5": (0.16, 0.18, 0.65),
    "ANI6": (0.19, 0.23, 2.68),
    "ANI7": (0.30, 0.43, 10.48),
    "APACHE1": (0.24, 0.33, 6.20),
    "APACHE2": (0.65, 1.17, 62.27),
    "CAGE10": (None, 0.29, 7.82),
    "CAGE11": (None, 0.51, 60.89),
    "JACOBIANMAT0": (None, 6.99, 153.17),
    "JACOBIANMAT9": (None, 7.08, 153.84),
    "MAJORBASIS": (None, 0.46, 9.23),
    "THERMAL1": (0.19, 0.24, 6.09),
    "THERMAL2": (0.68, 1.17, 91.83),
    "THERMOMECH_DM": (0.22, 0.27, 15.20),
    "THERMOMECH_TC": (0.20, 0.22, 7.65),
    "TMT_SYM": (0.41, 0.67, 53.42),
    "TOPOPT060": (8.01, 13.96, 43.12),
    "TOPOPT120": (8.24, 14.15, 44.22),
    "TORSO2": (None, 0.26, 10.78),
    "VENKAT01": (None, 0.72, 8.53),
}

# The papers' own matrices among ours (ANI: rebuilt from ANI4's file, entries to 2e-12, but another order of equals in
# RCM; CAGE: regenerated from the model, entries to 1e-15), and others of the same kind, with other entries.
OWN = {"ani4": "ANI4", "ani5": "ANI5", "ani7": "ANI7", "cage10": "CAGE10", "cage11": "CAGE11"}
LIKE = {f"anisotropic_triangles:{k}": f"ANI{k}" for k in range(3, 8)} | {
    "apache2_like:8,101,100": "APACHE1",
    "apache2_like": "APACHE2",
    "topopt3d_060": "TOPOPT060",
    "ng_heatsink2d": "THERMAL1",
}
IN_RCM = ("ani5", "ani7", *(f"anisotropic_triangles:{k}" for k in range(3, 8)))
AGAIN = " again"
FIRST = ("ani5", "cage10", "cage11", "ani7")
SMALLEST = "anisotropic_triangles:3"
SERIES = (*(f"anisotropic_triangles:{k}" for k in range(3, 8)), "ani4", "ani5", "ani7")  # 2018, Figure 3
EXACTNESS = ("ani5", "anisotropic_triangles:6")  # 2019, Figure 10
DELTAS = (1.0, 0.5, 0.1)
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


# The matrices -------------------------------------------------------------------------------------------------------


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
    def load(problem: Problem, device: str, again: bool = False) -> Case:
        """again : also a matrix that is in reverse Cuthill-McKee order is ordered by ours, and named so."""
        S, name, order = problem.load(), problem.name, "as stored (RCM)"
        if name not in IN_RCM or again:
            p = rcm(finelu.as_csr(S))
            S, name, order = sp.csr_matrix(S[p][:, p]), name + AGAIN * (name in IN_RCM), "RCM here"
            S.sort_indices()
        d = 1 / np.sqrt(abs(S.diagonal()))
        S.data *= np.repeat(d, np.diff(S.indptr)) * d[S.indices]  # one product d_i d_j: symmetric where S is
        return Case(name, S, spd(S), order, device)

    def __post_init__(self):
        self.b = np.random.default_rng(SEED).uniform(-0.5, 0.5, self.S.shape[0])
        self.A = finelu.as_csr(self.S)
        self.A_here, self.b_here = self.S, self.b
        if self.device == "gpu":
            import cupy
            import cupyx.scipy.sparse as csp

            self.A, self.A_here, self.b_here = measure.to_gpu(self.A), csp.csr_matrix(self.S), cupy.asarray(self.b)

    def facts(self) -> dict[str, Any]:
        return {"n": self.S.shape[0], "nnz": self.S.nnz, "spd": self.spd, "order": self.order}


def own(name: str) -> str:
    """The papers' name of their own matrix, "" for others."""
    return OWN.get(name.removesuffix(AGAIN), "")


def marked(name: str) -> str:
    """The name, with that of the papers: "=" for their matrix, "~" for one of its kind."""
    if own(name):
        return f"{name} = {own(name)}"
    like = LIKE.get(name.removesuffix(AGAIN))
    return f"{name} ~ {like}" if like else name


# Tables 2 and 3 -----------------------------------------------------------------------------------------------------


def recipes(cholesky: bool, nnz: int) -> dict[str, Any]:
    """The columns of Table 2 (cholesky) or 3: name -> recipe, or None for no preconditioner."""
    base = finelu.IC0() if cholesky else finelu.ILU0()
    classical = finelu.ICT(nnz=nnz) if cholesky else finelu.ILUT(nnz=nnz)
    Adapted = finelu.ParICT if cholesky else finelu.ParILUT
    return {
        "none": None,
        type(base).__name__: base,
        type(classical).__name__: classical,
        **{str(k): Adapted(steps=k) for k in STEPS},
    }


def solve(run: Run, case: Case, method: str, variant: str, recipe, seconds: float) -> Record:
    """Factor and solve once; the residual is computed here, by SciPy, from the matrix itself."""
    record = Record(case.name, method, case.device, "finelu", variant, None, threads=run.options["threads"])
    options: dict[str, Any] = {"maxiter": MAXITER}
    if method == "gmres":
        longest = int(max(min(LONGEST, BASIS_GIB * 2**30 / (8 * case.S.shape[0])), 1))
        options = {"maxiter": longest, "restart": longest}
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
    """The iterations as the tables show them."""
    if record is None:
        return ""
    status, iterations = record.detail["status"], record.detail.get("iterations")
    if status == "CONVERGED" and record.error <= 1.01 * RTOL:
        return str(iterations)
    return f">{iterations}" if status in ("MAX_ITERATIONS", "INTERRUPTED") else "-"


def measure_tables(run: Run, case: Case, limit: float, budget: Budget) -> None:
    """Table 2 for SPD matrices; Table 3 for the others and, as in the paper, where the classical ICT breaks down."""

    def all_columns(method: str, number: int) -> list[Record]:
        found = []
        for variant, recipe in recipes(method == "cg", case.S.nnz).items():
            what = f"Table {number}, {variant}"
            if budget.over():
                run.left_out[f"{case.name} ({what})"] = "the budget was spent"
                continue
            with run.attempt(case.name, what):
                found.append(solve(run, case, method, variant, recipe, min(limit, budget.left())))
        return found

    broke = not case.spd
    if case.spd:
        records = all_columns("cg", 2)
        broke = any(r.variant == "ICT" and r.detail["status"] == "no factors" for r in records)
    if broke:
        all_columns("gmres", 3)


def iteration_table(run: Run, method: str, paper: dict[str, tuple]) -> str | None:
    """A row a matrix; below the papers' own their numbers, and what ours is more or less in per cent."""
    lines: list[tuple[str, ...]] = []
    variants = list(recipes(method == "cg", 10**9))
    for name, facts in run.matrices.items():
        records = [run.one(matrix=name, work=method, variant=v) for v in variants]
        if not any(records):
            continue
        lines.append((marked(name), facts["order"], *map(shown, records)))
        if theirs := paper.get(own(name)):
            lines.append(("paper", "RCM", *("-" if v is None else str(v) for v in theirs)))
            deviations = [
                f"{100 * (int(shown(r)) / v - 1):+.0f}%" if v and shown(r).isdigit() else ""
                for r, v in zip(records, theirs, strict=True)
            ]
            lines.append(("deviation", "", *deviations))
    header = ("none", "IC(0)" if method == "cg" else "ILU(0)", "ICT" if method == "cg" else "ILUT", *map(str, STEPS))
    return table(("matrix", "order", *header), lines) if lines else None


def entry_table(run: Run) -> str | None:
    """Entries of the adapted and classical factors over those of ILU(0) or IC(0)."""
    lines = []
    for method in ("cg", "gmres"):
        variants = list(recipes(method == "cg", 10**9))[2:]
        for name in run.matrices:
            records = [run.one(matrix=name, work=method, variant=v) for v in variants]
            found = [r and r.detail.get("entries") for r in records]
            if any(found):
                lines.append((marked(name), method, *(v and f"{v:.3f}" for v in found)))
    return table(("matrix", "with", "ICT or ILUT", *map(str, STEPS)), lines) if lines else None


def reason_table(run: Run) -> str | None:
    """Why there is no number, or one to look at: no factors, a breakdown, refused updates, steps that were not done."""
    lines = []
    for record in (r for r in run.records if r.work in ("cg", "gmres")):
        detail = record.detail
        if detail["status"] == "CONVERGED" and shown(record) == "-":
            detail = detail | {"reason": f"the residual is {record.error:.2g}"}
        why = "; ".join(detail[key] for key in ("reason", "stopped", "warning") if key in detail)
        if detail["status"] != "CONVERGED" or why:
            lines.append((record.matrix, record.work, record.variant, detail["status"], record.error, why))
    return table(("matrix", "method", "preconditioner", "status", "residual", "why"), lines) if lines else None


# Figures 1 to 3 of 2018 ---------------------------------------------------------------------------------------------


def residual_norm(S, L) -> float:
    """||A - L L^T||_F."""
    return float(splinalg.norm(S - L @ L.T))


def discrepancy(P, Q) -> int:
    """2018, section 4.1: how many places one of the patterns has and the other has not."""
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
    for delta in DELTAS:
        detail = {"iterations": [], "norms": [], "discrepancy": [], "most": []}
        for steps in range(MANY_STEPS + 1):
            F = finelu.ParICT(steps=steps, select="exact", add_fraction=delta).factor(case.A)
            L = sp.csr_matrix(to_host(F.L))
            detail["iterations"].append(count(F))
            detail["norms"].append(residual_norm(case.S, L))
            detail["discrepancy"].append(discrepancy(L, triangles["ICT"]))
            added = sum(F.report["candidates"])  # each may be a place of ICT's, and push one out that is not
            detail["most"].append(max(detail["discrepancy"][0] - 2 * added, 0))
        run.records.append(Record(case.name, "steps", case.device, "finelu", f"{delta:g}", None, detail=detail))


def measure_size(run: Run, case: Case, repeats: int = 3) -> None:
    """2018, Figure 3: the number of candidates and the time of step 3 of ParICT."""
    recipe = finelu.ParICT(steps=3)
    F = recipe.factor(case.A)
    times: list[tuple[float, float, float]] = []
    with without_solves(type(F)):
        for _ in range(repeats):
            with Blocks(case.A.data) as blocks:
                recipe.factor(case.A)
            searches = [ms for label, ms in blocks.calls if label == "candidates"]
            sweeps = [ms for label, ms in blocks.calls if label == "sweep after add"]
            times.append((blocks.step_ms(3), searches[2], sweeps[2]))
    whole, search, sweep = (median(column) for column in zip(*times, strict=True))
    detail = {"n": case.S.shape[0], "candidates": F.report["candidates"][2], "search_ms": search, "sweep_ms": sweep}
    threads = run.options["threads"]
    run.records.append(
        Record(case.name, "step 3", case.device, "finelu", "ParICT", whole, threads=threads, detail=detail)
    )


# Figure 10 of 2019 --------------------------------------------------------------------------------------------------


def measure_exactness(run: Run, case: Case, seconds: float, steps: int = 8) -> None:
    """GMRES iterations over the steps with exact and with approximate thresholds, and with ILU(0)."""
    for variant in ("ILU0", "exact", "approximate"):
        detail: dict[str, list] = {"iterations": [], "entries": []}
        for k in range(steps + 1) if variant != "ILU0" else (0,):
            recipe = finelu.ILU0() if variant == "ILU0" else finelu.ParILUT(steps=k, select=variant)
            scratch = Run("", {}, "", {"threads": run.options["threads"]})
            record = solve(scratch, case, "gmres", str(k), recipe, seconds)
            detail["iterations"].append(record.detail["iterations"] if shown(record).isdigit() else None)
            detail["entries"].append(record.detail.get("entries"))
        run.records.append(Record(case.name, "exactness", case.device, "finelu", variant, None, detail=detail))


# Table 4 of 2018, Figures 11 to 13 of 2019 ---------------------------------------------------------------------------


def _spilu(S, fill_factor: float, drop_tol: float, results) -> None:
    """In a process of its own: the seconds of one factorization and the entries of L + U."""
    begin = time.perf_counter()
    try:
        F = splinalg.spilu(S, drop_tol=drop_tol, fill_factor=fill_factor, permc_spec="NATURAL")
        seconds = time.perf_counter() - begin
        results.put((seconds, F.L.nnz + F.U.nnz - S.shape[0], ""))
    except RuntimeError as error:  # SuperLU: singular
        results.put((None, None, str(error)))


def superlu(S, wanted: int, limit: float) -> dict[str, Any]:
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
    chosen = {"ParILUT": finelu.ParILUT(), "ParILUT exact": finelu.ParILUT(select="exact")}
    if case.spd:
        chosen["ParICT"] = finelu.ParICT()
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


def time_table(run: Run) -> str | None:
    """2018, Table 4: seconds, the papers' below their own matrices."""
    lines: list[tuple] = []
    devices = [d for d in ("gpu", "cpu") if run.find(work="factor", device=d, who="finelu")]
    for name in run.matrices:
        peer = run.one(matrix=name, work="factor", who="superlu")
        for device in devices:
            times = [
                (r := run.one(matrix=name, work="factor", who="finelu", device=device, variant=v))
                and r.numeric_ms / 1e3
                for v in ("ParICT", "ParILUT")
            ]
            if not any(times):
                continue
            seconds = peer and peer.numeric_ms and peer.numeric_ms / 1e3
            entries = peer and "nnz" in peer.detail and f"{peer.detail['nnz'] / run.matrices[name]['nnz']:.2f}"
            why = peer.detail.get("reason", "") if peer else ""
            lines.append((marked(name), device, *times, seconds, ratio(seconds, times[1]), entries or None, why))
        if (theirs := TABLE_4.get(own(name))) and peer:
            lines.append(("paper", "68 threads", *theirs, theirs[2] / theirs[1], None, ""))
    header = ("matrix", "device", "ParICT s", "ParILUT s", "SuperLU s", "speed-up", "SuperLU entries/A's", "")
    return table(header, lines) if lines else None


# Figures 8 and 9 of 2019 --------------------------------------------------------------------------------------------


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


# Drawing ------------------------------------------------------------------------------------------------------------

Drawing = Callable[[Run, Any], bool]  # draws into a matplotlib figure; False where nothing was measured


def _grid(ax, **what) -> None:
    ax.set(**what)
    ax.grid(True, alpha=0.3)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize="small")


def _known(values: Sequence) -> list[float]:
    return [np.nan if v is None else v for v in values]


def figure_1(run: Run, figure) -> bool:
    records = run.find(work="steps")
    left, right = figure.subplots(1, 2)
    for record in records:
        iterations, norms = record.detail["iterations"], record.detail["norms"]
        if len(norms) == 1:
            style = {"linestyle": "--" if record.variant == "IC0" else "-.", "color": "0.3", "label": record.variant}
            if iterations[0]:
                left.axhline(iterations[0], **style)
            right.axhline(norms[0], **style)
        else:
            for ax, values in ((left, iterations), (right, norms)):
                ax.plot(_known(values), marker="o", markersize=3, label=f"ParICT, δ = {record.variant}")
    _grid(left, xlabel="steps", ylabel="PCG iterations")
    _grid(right, xlabel="steps", ylabel="$||A - L L^T||_F$")
    return bool(records)


def figure_2(run: Run, figure) -> bool:
    records = [r for r in run.find(work="steps") if len(r.detail["norms"]) > 1]
    ax = figure.subplots()
    for k, record in enumerate(records):
        ax.plot(record.detail["discrepancy"], f"C{k}o-", markersize=3, label=f"ParICT, δ = {record.variant}")
        ax.plot(record.detail["most"], f"C{k}:", linewidth=1)
    for record in run.find(work="steps", variant="IC0"):
        ax.axhline(record.detail["discrepancy"][0], linestyle="--", color="0.3", label="IC(0)")
    _grid(ax, xlabel="steps", ylabel="places in one pattern only")
    return bool(records)


def figure_3(run: Run, figure) -> bool:
    found = run.find(work="step 3")
    left, right = figure.subplots(1, 2)
    for theirs, style in ((False, "o-"), (True, "x")):
        records = sorted((r for r in found if bool(own(r.matrix)) == theirs), key=lambda r: r.detail["n"])
        if not records:
            continue
        n, mark = [r.detail["n"] for r in records], " (the paper's)" if theirs else ""
        left.plot(n, [r.detail["candidates"] for r in records], f"C0{style}", label=f"candidates{mark}")
        series = {
            "step 3": [r.numeric_ms for r in records],
            "candidates": [r.detail["search_ms"] for r in records],
            "first sweep": [r.detail["sweep_ms"] for r in records],
        }
        for k, (name, values) in enumerate(series.items()):
            right.plot(n, [v / 1e3 for v in values], f"C{k}{style}", label=name + mark)
    _grid(left, xscale="log", yscale="log", xlabel="rows", ylabel="candidates at step 3")
    _grid(right, xscale="log", yscale="log", xlabel="rows", ylabel="s")
    return bool(found)


def figure_8(run: Run, figure) -> bool:
    records = run.find(work="selection")
    left, right = figure.subplots(1, 2, sharey=True)
    for variant in dict.fromkeys(r.variant for r in records):
        ours = [r for r in records if r.variant == variant]
        sizes = sorted((r for r in ours if r.detail["kind"] == "uniform"), key=lambda r: r.detail["exponent"])
        if sizes:
            throughput = [2 ** r.detail["exponent"] / r.numeric_ms / 1e6 for r in sizes]
            left.plot([2 ** r.detail["exponent"] for r in sizes], throughput, "o-", markersize=3, label=variant)
        repeated = [r for r in ours if r.detail["kind"].endswith(" values")]
        if repeated:
            different = [int(r.detail["kind"].split()[0]) for r in repeated]
            throughput = [2 ** r.detail["exponent"] / r.numeric_ms / 1e6 for r in repeated]
            right.plot(different, throughput, "o-", markersize=3, label=variant)
    _grid(left, xscale="log", yscale="log", xlabel="values", ylabel="10⁹ values a second")
    _grid(right, xscale="log", xlabel=f"different values among 2^{PAPER_SIZE}")
    return bool(records)


def figure_9(run: Run, figure) -> bool:
    records = run.find(work="selection kernels")
    names = list(dict.fromkeys(name for r in records for name, _ in r.detail["kernels"]))
    ax = figure.subplots()
    bottoms = np.zeros(len(records))
    for name in names:
        heights = np.array([sum(ms for k, ms in r.detail["kernels"] if k == name) for r in records])
        ax.bar([r.variant for r in records], heights, bottom=bottoms, label=name)
        bottoms += heights
    _grid(ax, ylabel=f"ms of a search among 2^{PAPER_SIZE}")
    return bool(records)


def figure_10(run: Run, figure) -> bool:
    records = run.find(work="exactness")
    names = list(dict.fromkeys((r.matrix, r.device) for r in records))
    axes = figure.subplots(max(len(names), 1), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (name, device) in zip(axes, names, strict=False):
        for record in run.find(work="exactness", matrix=name, device=device):
            values = _known(record.detail["iterations"])
            if record.variant == "ILU0":
                ax.axhline(values[0], linestyle="--", color="0.3", label="ILU(0)")
            else:
                ax.plot(values, "o-" if record.variant == "exact" else "x--", label=f"{record.variant} thresholds")
        _grid(ax, ylabel="GMRES iterations", title=f"{marked(name)}, {device}")
    axes[-1].set_xlabel("steps")
    return bool(records)


def _stacked(ax, columns: list[tuple[str, dict[str, float]]]) -> None:
    """Bars of height one, parted by building block."""
    bottoms = np.zeros(len(columns))
    for label in BLOCKS:
        heights = np.array([blocks.get(label, 0.0) / sum(blocks.values()) for _, blocks in columns])
        ax.bar(range(len(columns)), heights, bottom=bottoms, label=label, width=0.8)
        bottoms += heights
    ax.set_xticks(range(len(columns)), [name for name, _ in columns], rotation=90, fontsize=6)
    ax.legend(fontsize="x-small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    ax.set_ylabel("share of the time")


def figure_11(run: Run, figure) -> bool:
    device = "gpu" if run.find(work="factor", device="gpu") else "cpu"
    columns = [
        (f"{name} {short}", record.detail["blocks"])
        for name in run.matrices
        for variant, short in (("ParILUT exact", "exact"), ("ParILUT", "approx."))
        if (record := run.one(matrix=name, work="factor", device=device, variant=variant))
    ]
    _stacked(figure.subplots(), columns)
    return bool(columns)


def figure_12(run: Run, figure) -> bool:
    columns = [
        (f"{name} {device}", record.detail["blocks"])
        for name in run.matrices
        for device in ("cpu", "gpu")
        if (record := run.one(matrix=name, work="factor", device=device, variant="ParILUT"))
    ]
    _stacked(figure.subplots(), columns)
    return bool(columns)


def figure_13(run: Run, figure) -> bool:
    def speedup(name: str, device: str) -> float | None:
        peer = run.one(matrix=name, work="factor", who="superlu")
        ours = run.one(matrix=name, work="factor", device=device, variant="ParILUT")
        return ratio(peer and peer.numeric_ms, ours and ours.numeric_ms)

    devices = [d for d in ("cpu", "gpu") if run.find(work="factor", device=d, who="finelu")]
    names = [name for name in run.matrices if any(speedup(name, d) for d in devices)]
    ax = figure.subplots()
    for k, device in enumerate(devices):
        heights = [speedup(name, device) or np.nan for name in names]
        ax.bar(
            np.arange(len(names)) + 0.4 * (k - (len(devices) - 1) / 2), heights, width=0.4, label=f"ParILUT, {device}"
        )
    theirs = [(k, v[2] / v[1]) for k, name in enumerate(names) if (v := TABLE_4.get(own(name)))]
    if theirs:
        ax.plot(*zip(*theirs, strict=True), "k_", markersize=12, label="2018: 68 threads of a Xeon Phi, its SuperLU")
    ax.axhline(1.0, color="0.4", linewidth=0.8)
    ax.set_xticks(range(len(names)), [marked(name) for name in names], rotation=90, fontsize=6)
    _grid(ax, yscale="log", ylabel="SuperLU's time over ours")
    return bool(names)


FIGURES: dict[str, tuple[str, str, Drawing]] = {
    "2018-1": ("PCG iterations and residual norm over the steps, exact thresholds", "steps", figure_1),
    "2018-2": ("pattern discrepancy to the classical ICT; dotted: the least it could be", "steps", figure_2),
    "2018-3": ("candidates and time of step 3 of ParICT over the size", "sizes", figure_3),
    "2019-8": ("throughput of the selections on the GPU", "selection", figure_8),
    "2019-9": ("the kernels of a search on the GPU", "selection", figure_9),
    "2019-10": ("GMRES iterations with exact and approximate thresholds", "exactness", figure_10),
    "2019-11": ("share of the building blocks, exact and approximate thresholds", "time", figure_11),
    "2019-12": ("share of the building blocks by device (2018: Figure 4, left)", "time", figure_12),
    "2019-13": ("ParILUT over SuperLU (SciPy's spilu with as many entries, one thread)", "time", figure_13),
}


def draw(path: Path, title: str, drawing: Drawing, run: Run) -> bool:
    """A PNG; False, and none, where nothing of it was measured."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FineluError("the figures need matplotlib; pip install 'finelu[bench]'.") from error

    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    if not drawing(run, figure):
        return False
    figure.suptitle(title, fontsize="medium")
    beside = path.with_name(f".{path.stem}.part.png")
    figure.savefig(beside, dpi=150)
    beside.replace(path)
    return True


# The page -----------------------------------------------------------------------------------------------------------


def tables(run: Run) -> dict[str, str | None]:
    return {
        "2018, Table 2: PCG iterations, ParICT with 0 to 5 steps": iteration_table(run, "cg", TABLE_2),
        "2018, Table 3: GMRES iterations, ParILUT with 0 to 5 steps": iteration_table(run, "gmres", TABLE_3),
        "Entries of the factors over those of IC(0) or ILU(0)": entry_table(run),
        "2018, Table 4: seconds of the factorization, five steps": time_table(run),
        "Remarks": reason_table(run),
    }


def page(run: Run, out: Path) -> str:
    """Tables and figures as Markdown; the PNGs are written into `out`."""
    text = run.heading()
    text += (
        "\n`=`: the papers' matrix (rebuilt; ANI with another order of equals in RCM: as stored, and `again` by "
        "SciPy's). `~`: of its kind, with other entries, so that no number of theirs stands beside it. Right-hand side "
        f"uniform in [-0.5, 0.5], x0 = 0, relative residual {RTOL:g}, full GMRES of up to {LONGEST} iterations, "
        "synchronous sweeps. `>k`: stopped after k iterations, `-`: no factors or a breakdown.\n"
    )
    for title, body in tables(run).items():
        text += f"\n## {title}\n\n{body or 'Absent: not measured in this run.'}"
        text += "" if body else "\n"
    for name, (title, part, drawing) in FIGURES.items():
        year, _, number = name.partition("-")
        text += f"\n## {year}, Figure {number}: {title}\n\n"
        target = out / f"{run.stem}-{year}-fig{number}.png"
        if draw(target, f"{year}, Figure {number}: {title}", drawing, run):
            text += f"![{year}, Figure {number}]({target.name})\n"
        else:
            text += run.left_out.get(part) or "Absent: not measured in this run."
            text += "\n"
    return text + numbers(run) + run.footing()


def numbers(run: Run) -> str:
    """The numbers behind Figures 1, 2, 3 and 10."""
    text = ""
    lines = [
        (r.matrix, r.variant, what, *(cell(v) for v in r.detail[key]), *[""] * (MANY_STEPS + 1 - len(r.detail[key])))
        for key, what in (("iterations", "iterations"), ("norms", "norm"), ("discrepancy", "discrepancy"))
        for r in run.find(work="steps")
    ]
    if lines:
        text += "\n## Numbers of Figures 1 and 2\n\n"
        text += table(("matrix", "δ", "", *map(str, range(MANY_STEPS + 1))), lines)
    if found := run.find(work="step 3"):
        lines = [
            (marked(r.matrix), r.device, r.detail["n"], r.detail["candidates"], r.detail["candidates"] / r.detail["n"],
             r.numeric_ms, r.detail["search_ms"], r.detail["sweep_ms"])
            for r in found
        ]  # fmt: skip
        text += "\n## Numbers of Figure 3\n\n"
        header = ("matrix", "device", "n", "candidates", "a row", "step 3 ms", "candidates ms", "first sweep ms")
        text += table(header, lines)
    if found := run.find(work="exactness"):
        longest = max(len(r.detail["iterations"]) for r in found)
        lines = [
            (marked(r.matrix), r.device, r.variant, *map(cell, r.detail["iterations"]),
             *[""] * (longest - len(r.detail["iterations"])))
            for r in found
        ]  # fmt: skip
        text += "\n## Numbers of Figure 10\n\n"
        text += table(("matrix", "device", "thresholds", *map(str, range(longest))), lines)
    return text


# The run ------------------------------------------------------------------------------------------------------------


def in_order(options) -> list[Problem]:
    """The problems asked for; else the papers' own first, then all others, small files first, generated ones last."""
    if options.matrices or options.quick:
        return problems(options)[0]
    own, _ = problems(options, FIRST)
    chosen = suite(options.matrix_folder)
    files = sorted((p for p in chosen if p.path and p.name not in FIRST), key=lambda p: p.path.stat().st_size)
    generated = [p for p in chosen if not p.path and p.name != WORST_CASE]
    return [*own, *files, Problem("apache2_like:8,101,100"), *generated, Problem("apache2_like")]


def measured(options, parts: Sequence[str]) -> Run:
    gpu = options.gpu or (not options.cpu and have_gpu())
    device = "gpu" if gpu else "cpu"
    run = new_run("parilut-papers", gpu=gpu, machine_name=options.machine)
    run.options = {"parts": ",".join(parts), "threads": 0 if gpu else options.threads}
    run.options["rows"] = f"{options.rows} at most" if options.rows else "any number"
    if not gpu:
        finelu.set_num_threads(options.threads)
        run.left_out["selection"] = "no GPU here, or not asked for: Figures 8 and 9 of 2019 are absent"
        print(run.left_out["selection"], flush=True)
    budget = Budget(options.budget)

    def each(chosen: Sequence[Problem], part: str, what: Callable[[Case], None]) -> None:
        for problem in chosen:
            if budget.over():
                run.left_out.setdefault(f"{problem.name} ({part})", "the budget was spent")
                continue
            try:
                case = Case.load(problem, device, options.again)
            except LeftOut as reason:
                run.left_out[problem.name] = str(reason)
                continue
            if options.rows and case.S.shape[0] > options.rows:
                run.left_out[problem.name] = f"{case.S.shape[0]} rows"
                continue
            run.matrices.setdefault(case.name, case.facts())
            with run.attempt(case.name, part):
                what(case)
            if gpu:
                with run.attempt(case.name, "the rest of the run", fatal=True):
                    measure.release_gpu()
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {part}: {case.name}", flush=True)

    def here(names: Sequence[str]) -> list[Problem]:
        plain = argparse.Namespace(matrices="", quick=False, matrix_folder=options.matrix_folder)
        return problems(plain, names)[0]

    def one_matrix(case: Case) -> None:
        if "tables" in parts:
            measure_tables(run, case, options.limit, budget)
        if "time" in parts:
            measure_time(run, case, options.superlu_limit)

    try:
        if "steps" in parts:
            each(here([SMALLEST]), "steps", lambda case: measure_steps(run, case))
        if "sizes" in parts:
            each(here(SERIES), "sizes", lambda case: measure_size(run, case))
        if "exactness" in parts:
            each(here(EXACTNESS), "exactness", lambda case: measure_exactness(run, case, options.limit))
        if "selection" in parts and gpu:
            with run.attempt("selection", "Figures 8 and 9"):
                measure_selection(run, budget)
        if {"tables", "time"} & set(parts):
            each(in_order(options), "tables, time", one_matrix)
    except (RunEnded, KeyboardInterrupt) as end:
        run.left_out["the rest"] = f"the run ended early ({type(end).__name__})"
    run.options |= {"seconds": round(budget.spent()), "load average at the end": round(os.getloadavg()[0], 1)}
    run.save(options.out)
    return run


def merged(paths: Sequence[Path]) -> Run:
    """The first file's run, and from the others what it lacks."""
    run, *others = map(Run.load, paths)

    def key(r: Record) -> tuple:
        return r.matrix, r.work, r.device, r.who, r.variant

    for other in others:
        have = {key(r) for r in run.records}
        added = [r for r in other.records if key(r) not in have]
        run.records += added
        for r in added:
            if r.matrix in other.matrices:
                run.matrices.setdefault(r.matrix, other.matrices[r.matrix])
        for device in sorted({r.device for r in added}):
            run.options[f"{device} from"] = f"{other.machine['name']}, {other.machine['cpu']}, {other.date}"
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="finelu bench parilut", description=__doc__)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--gpu", action="store_true", help="on the GPU (default if there is one)")
    where.add_argument("--cpu", action="store_true", help="on the CPU")
    parser.add_argument("--from", dest="sources", type=Path, nargs="+", metavar="JSON", help="draw what was measured")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each solve (default: %(default)s)")
    parser.add_argument("--superlu-limit", type=float, default=60.0, help="seconds for SuperLU (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="order anew also what is in RCM: another order of equals")
    parser.add_argument("--rows", type=int, default=0, help="leave out matrices with more rows")
    add_options(parser)
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: there is no {', '.join(sorted(unknown))}; choose from {','.join(PARTS)}")

    options.out.mkdir(parents=True, exist_ok=True)
    run = merged(options.sources) if options.sources else measured(options, parts)
    for title, body in tables(run).items():
        print(f"\n{title}\n{body or 'absent'}", end="")
    target = run.save(options.out, page(run, options.out)).with_suffix(".md")
    print(f"\n{len(run.matrices)} matrices, {len(run.failures)} failures; {target}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    command(main)
