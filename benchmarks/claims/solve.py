"""Claim: finelu.solve solves 97% of what anything here solves, claims nothing falsely, and takes less time than all.

Every matrix of a folder (FINELU_MATRICES, or ../shared/matrices) with b uniform in [-0.5, 0.5], a limit of seconds for
everything, ||b - A x||_2 <= 1e-8 ||b||_2 by the matrix as it was read: `finelu.solve` with defaults; SciPy's splu with
defaults (COLAMD), "splu symmetric" with permc_spec="MMD_AT_PLUS_A" and options={"SymmetricMode": True}, and spilu with
defaults and its own gmres(50); pyamg's `solve`; ilupp's multilevel ILU and ILU(0) with defaults and finelu's gmres(50);
nbklu's KLU; feral's L D L^T of symmetric matrices; MKL's PARDISO by pypardiso, with a general matrix and "pypardiso
symmetric" with the upper triangle of a symmetric one. finelu uses the last three libraries, too, if they are installed.
What takes less than a second, or compiled kernels, runs again; the median of up to five warm runs counts.
The solvers run in a process of their own, which a crash or the limit ends. Then `import finelu` in fresh processes,
and the first solve with and without compiled kernels in the cache.

    python -m benchmarks.claims.solve [--matrices memplus,fv2] [--limit 60] [--parts systems,first] [--from RECORD]
    python -m benchmarks.claims.solve --parts systems --limit 20 --solvers "finelu.solve,splu,splu symmetric,spilu"
    python -m benchmarks.claims.solve --parts systems --limit 5

The second of these takes 8 minutes, the third 20.

A peer that --limit stops has not solved the system and is in no ratio, so a small limit leaves out what peers lose.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims import solve_tables
from benchmarks.claims.solve_first_use import RUNS, first_use
from benchmarks.claims.solve_tables import AGAIN, CHEAP, ITERATIONS, OURS, SCIPY, claims, false_claims, page
from benchmarks.harness.clock import Budget
from benchmarks.harness.options import add_options, add_source, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.systems import affordable, chosen_files, chosen_solvers, installed, shown, with_worker
from benchmarks.harness.table import cell, table
from benchmarks.harness.worker import READING, SEED, Worker, judge, reason_of, serve_with
from benchmarks.peers.solvers import (
    RTOL,
    WARM_UP,
    Solver,
    finelu_gmres,
    ilupp_multilevel,
    int32_csr,
    scipy_spilu,
    scipy_splu,
)
from finelu.compiling import compile_clock
from finelu.errors import FineluError, ParameterError
from finelu.preconditioners import RECIPES

LARGER = ("poisson5:30,30", "convection_diffusion:11", "helmholtz:24,k=9,absorbing=False", "stokes:16")
PARTS = ("systems", "first")


# The solvers ----------------------------------------------------------------------------------------------------------


def finelu_solve(S: sp.csr_matrix, b: Any, end: float, extra: Any = None, **options: Any) -> dict[str, Any]:
    solution = finelu.solve(S, b, rtol=RTOL, time_limit=max(end - time.perf_counter(), 0.0), **options)
    said = solution.status.name.lower().replace("_", " ")
    tried = [
        {"recipe": a.recipe, "method": a.method, "outcome": a.outcome, "iterations": a.iterations,
         "setup_s": a.setup_seconds, "iterating_s": a.seconds, "residual": a.residual}
        for a in solution.attempts
    ]  # fmt: skip
    result = {"x": solution.x, "iterations": solution.iterations, "status": "" if solution.converged else said}
    return result | {"said": said, "seen": list(solution.seen), "tried": tried}


def pyamg_solve(S: sp.csr_matrix, b: Any, end: float, extra: Any = None) -> dict[str, Any]:
    """Its black box; as its stopping rule is a preconditioned residual, again from its x while that helps."""
    import pyamg

    guess = np.random.default_rng(SEED).random(b.size)  # as its own first guess, but the same in each run
    history: list[float] = []
    x, hierarchy = pyamg.solve(S, b, x0=guess, tol=RTOL, verb=False, return_solver=True, residuals=history)
    iterations, before = len(history) - 1, np.inf
    while RTOL * np.linalg.norm(b) < (now := np.linalg.norm(b - S @ x)) < before / 2 and time.perf_counter() < end:
        before = now
        x = pyamg.solve(S, b, x0=x, tol=RTOL, existing_solver=hierarchy, verb=False, residuals=history)
        iterations += len(history) - 1
    return {"x": x, "iterations": iterations, "status": ""}


def ilupp_solve(S: sp.csr_matrix, b: Any, end: float, extra: Any = None) -> dict[str, Any]:
    return finelu_gmres(S, b, ilupp_multilevel(S, None), end, ITERATIONS)


def spilu_gmres(S: sp.csr_matrix, b: Any, end: float, extra: Any = None) -> dict[str, Any]:
    return scipy_spilu(S, b, end, extra, ITERATIONS)


def ilupp_ilu0(S: sp.csr_matrix, b: Any, end: float, extra: Any = None) -> dict[str, Any]:
    import ilupp

    return finelu_gmres(S, b, ilupp.ILU0Preconditioner(int32_csr(S)), end, ITERATIONS)


def splu_symmetric(S: sp.csr_matrix, b: Any, end: float, extra: Any = None) -> dict[str, Any]:
    """With the setting that SuperLU's guide has for patterns that are nearly symmetric."""
    return scipy_splu(S, b, end, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})


def nbklu_solve(S: sp.csr_matrix, b: Any, end: float, extra: Any = None) -> dict[str, Any]:
    import nbklu

    columns = S.tocsc()
    with nbklu.KLUSolver(index_bits=32, complex_values=False, singular_as_error=True) as solver:
        solver.analyze(S.shape[0], columns.indptr, columns.indices)
        solver.factor(columns.data)
        return {"x": solver.solve_(b.copy()), "iterations": 0, "status": ""}


def feral_solve(S: sp.csr_matrix, b: Any, end: float, extra: Any = None) -> dict[str, Any]:
    """With its own choice of ordering, on all cores. That A is symmetric its user knows."""
    import feral

    if not _is_symmetric(S):
        return {"x": None, "iterations": 0, "status": "not symmetric"}
    lower = sp.tril(S, format="csc")
    solver = feral.Solver(ordering="auto", parallel=True)
    starts, rows = lower.indptr.astype(np.int64), lower.indices.astype(np.int64)
    solver.factor(feral.CscMatrix(S.shape[0], starts, rows, lower.data))
    return {"x": solver.solve(b), "iterations": 0, "status": ""}


def pypardiso_solve(S: sp.csr_matrix, b: Any, end: float, extra: Any = None) -> dict[str, Any]:
    return _by_pardiso(S, b, GENERAL)


def pypardiso_symmetric(S: sp.csr_matrix, b: Any, end: float, extra: Any = None) -> dict[str, Any]:
    """Positive definite where the diagonal allows for it, else indefinite. That A is symmetric its user knows."""
    if not _is_symmetric(S):
        return {"x": None, "iterations": 0, "status": "not symmetric"}
    upper = sp.triu(S, format="csr")
    if (S.diagonal() > 0).all():
        try:
            return _by_pardiso(upper, b, DEFINITE)
        except Exception:  # pypardiso's error has no other base
            pass
    return _by_pardiso(upper, b, INDEFINITE)


def _by_pardiso(S: sp.csr_matrix, b: Any, kind: int) -> dict[str, Any]:
    solver = _pardiso(kind)
    try:
        return {"x": solver.solve(S, b), "iterations": 0, "status": ""}
    finally:
        solver.free_memory()


@cache
def _pardiso(kind: int) -> Any:
    """With the settings that its guide has for such matrices; made once, as it looks for MKL on the disk."""
    import pypardiso

    solver = pypardiso.PyPardisoSolver(mtype=kind)
    if kind == INDEFINITE:
        for place, value in ((1, 1), (2, 2), (10, 8), (11, 1), (13, 1), (21, 1)):
            solver.set_iparm(place, value)
    return solver


def _is_symmetric(S: sp.csr_matrix) -> bool:
    """Found in the first run with a matrix, which the warm ones leave out."""
    facts = S.shape[0], S.nnz, float(S.data.sum())
    if facts not in KNOWN:
        KNOWN[facts] = bool(abs(S - S.T).max() <= 1e-14 * abs(S.data).max())
    return KNOWN[facts]


GENERAL, DEFINITE, INDEFINITE = 11, 2, -2  # matrices of PARDISO
KNOWN: dict[tuple[int, int, float], bool] = {}  # whether the matrix with this size, entries and sum is symmetric

SOLVERS: dict[str, Solver] = {
    OURS: finelu_solve,
    "splu": scipy_splu,
    "splu symmetric": splu_symmetric,
    "spilu": spilu_gmres,
    "pyamg": pyamg_solve,
    "ilupp": ilupp_solve,
    "ilupp ILU0": ilupp_ilu0,
    "nbklu": nbklu_solve,
    "feral": feral_solve,
    "pypardiso": pypardiso_solve,
    "pypardiso symmetric": pypardiso_symmetric,
}


def right_hand_side(n: int) -> np.ndarray:
    return np.random.default_rng(SEED).uniform(-0.5, 0.5, n)


def once(
    solver: Solver, S: sp.csr_matrix, b: Any, limit: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """One run of one solver, judged: status ("" if solved in time, else why not), seconds, residual, iterations."""
    handed, rhs = S.copy(), b.copy()  # a solver may write to them
    begin = clock()
    try:
        with np.errstate(all="ignore"), compile_clock() as compiling:
            result = solver(handed, rhs, begin + limit)
    except Exception as error:  # a peer may fail in any way
        return {"status": reason_of(error), "seconds": clock() - begin}
    result["seconds"], result["compiling"] = clock() - begin, compiling()
    result.pop("setup", None)
    judge(S, b, result)
    if result["status"] == "" and result["seconds"] > limit:
        result["status"] = "time"
    return result


def outcome(
    solver: Solver, S: sp.csr_matrix, limit: float, extra: Any = None, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """As `once`; a cheap solve runs up to RUNS times more, and the median of these counts; one whose first run compiled
    kernels, or loaded compiled ones, runs again whatever it costs. Each run is judged: the first that does not solve
    the system is the outcome."""
    b = right_hand_side(S.shape[0])
    result = once(solver, S, b, limit, clock)
    first, seconds = result["seconds"], []
    wanted = RUNS if first < CHEAP else 1 if result.get("compiling") else 0
    begin = clock()
    while result["status"] == "" and len(seconds) < wanted and (not seconds or clock() - begin < AGAIN):
        result = once(solver, S, b, limit, clock)
        seconds.append(result["seconds"])
    if result["status"] == "" and seconds:
        result |= {"seconds": median(seconds), "runs": seconds}
    return result | {"first": first}


def warm_up(solver: str) -> None:
    """Compile, or load, what a solver may need: for finelu.solve every rung with every method that it may take."""
    for name in LARGER if solver == OURS else ():
        S = sp.csr_matrix(finelu.gallery.problem(name))
        once(SOLVERS[solver], S, right_hand_side(S.shape[0]), 5.0)
    for name in WARM_UP if solver == OURS else WARM_UP[:2]:  # ILU++ crashes where the diagonal is zero
        S = sp.csr_matrix(finelu.gallery.problem(name))
        once(SOLVERS[solver], S, right_hand_side(S.shape[0]), READING)
        if solver != OURS:
            continue
        for recipe in RECIPES:
            for method in ("cg", "bicgstab", "gmres"):
                try:
                    finelu.solve(S, right_hand_side(S.shape[0]), recipe=recipe, method=method, time_limit=1.0)
                except (FineluError, ArithmeticError):  # a recipe that does not fit this system
                    break


def serve(pipe: Any, threads: int) -> None:
    serve_with(pipe, threads, lambda name, *rest: outcome(SOLVERS[name], *rest), warm_up)


# The run --------------------------------------------------------------------------------------------------------------


def measure_one(run: Run, worker: Worker, name: str, path: Path, solvers: Sequence[str], limit: float) -> None:
    S = finelu.read_matrix(path)
    run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "zero diagonal": int((S.diagonal() == 0).sum())}
    del S
    for solver in solvers:
        found = worker.ask(path, solver, limit, more=AGAIN)
        seconds = found.pop("seconds", None)
        who = "finelu" if solver == OURS else "scipy" if solver in SCIPY else solver.split()[0]
        record = Record(name, "solve", "cpu", who, solver, None if seconds is None else 1e3 * seconds)
        record.error, record.threads = found.pop("residual", None), run.options["threads"]
        record.detail = found
        run.records.append(record)
        if who == "pypardiso":
            time.sleep(0.25)  # idle threads of MKL spin for some 0.2 s


def measured(options: argparse.Namespace, solvers: Sequence[str], parts: Sequence[str]) -> Run:
    paths = chosen_files(options) if "systems" in parts else {}
    run = new_run("solve", gpu=False, machine_name=options.machine)
    solvers = installed(run, solvers)
    run.options = {"limit, seconds": options.limit, "threads": options.threads}
    budget, worker = Budget(options.budget), Worker(options.threads, serve)
    # read by the libraries of the processes to come, so that SciPy's BLAS has as many threads as finelu
    os.environ |= {name: str(options.threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    with with_worker(run, budget, worker):
        if "first" in parts:
            for record in first_use(run, options.threads):
                run.records.append(record)
                run.save(options.out)
                print(
                    f"{budget.spent():5.0f} s  {record.variant}, {record.matrix}: {cell(record.numeric_ms / 1e3)} s",
                    flush=True,
                )
        for name, path in affordable(run, budget, paths):
            measure_one(run, worker, name, path, solvers, options.limit)
            run.save(options.out)
            cells = (f"{s} {shown(solve_tables.solve_record(run, name, s))}" for s in solvers)
            print(f"{budget.spent():5.0f} s  {name}: {'; '.join(cells)}", flush=True)
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.solve", description=__doc__)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each solver (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of every library (default: %(default)s)")
    parser.add_argument("--solvers", default=",".join(SOLVERS), help="with commas between them (default: all)")
    parser.add_argument("--parts", default=",".join(PARTS), help="systems, first (use), or both (default)")
    add_source(parser)
    add_options(parser)
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    if unknown := [p for p in parts if p not in PARTS]:
        raise ParameterError(f"--parts: there is no {', '.join(unknown)}; choose from {', '.join(PARTS)}.")
    solvers = chosen_solvers(options.solvers, SOLVERS)
    run = Run.load(options.source) if options.source else measured(options, solvers, parts)
    target = run.publish(options.out, page(run))
    print(table(("what", "bar", "measured", "holds"), claims(run)), end="")
    if wrong := false_claims(run):
        raise FineluError(f"a claim of convergence was wrong for {', '.join(wrong)}; {target}")
    print(f"{len(run.matrices)} matrices; {target}")
    return 0


if __name__ == "__main__":
    command(main)
