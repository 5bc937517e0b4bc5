"""Claim: finelu.solve solves 97% of what anything here solves, claims nothing falsely, and takes less time than all.

Every matrix of a folder (FINELU_MATRICES, or ../shared/matrices) with b uniform in [-0.5, 0.5], a limit of seconds for
everything, ||b - A x||_2 <= 1e-8 ||b||_2 by the matrix as it was read: `finelu.solve` with defaults; SciPy's splu with
defaults (COLAMD), "splu symmetric" with permc_spec="MMD_AT_PLUS_A" and options={"SymmetricMode": True}, and spilu with
defaults and its own gmres(50); pyamg's `solve`; ilupp's multilevel ILU and ILU(0) with defaults and finelu's gmres(50).
What takes less than a second, or compiled kernels, runs again; the median of up to five warm runs counts.
The solvers run in a process apart, which a crash or the limit ends. Then `import finelu` in fresh processes, and the
first solve with and without compiled kernels in the cache.

    python -m benchmarks.solve [--matrices memplus,fv2] [--limit 60] [--parts systems,first] [--from JSON]
    python -m benchmarks.solve --parts systems --limit 20 --solvers "finelu.solve,splu,splu symmetric,spilu"  # 8 min
    python -m benchmarks.solve --parts systems --limit 5                                                     # 12 min

A peer that --limit stops has not solved the system and is in no ratio, so a small limit leaves out what peers lose.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks import systems
from benchmarks.common import (
    ROOT,
    SMALLEST,
    Budget,
    Record,
    Run,
    add_options,
    cell,
    command,
    mean,
    new_run,
    ratio,
    smallest,
    table,
)
from benchmarks.systems import (
    READING,
    RESTART,
    RTOL,
    SEED,
    WARM_UP,
    Solver,
    Worker,
    affordable,
    chosen_files,
    chosen_solvers,
    finelu_gmres,
    ilupp_multilevel,
    installed,
    int32_csr,
    judge,
    reason_counts,
    reason_of,
    scipy_spilu,
    scipy_splu,
    shown,
    solved,
    solver_names,
    verdict,
    with_worker,
)
from finelu.errors import FineluError, ParameterError
from finelu.kernels.compiling import compile_clock
from finelu.preconditioners import RECIPES

OURS = "finelu.solve"
SCIPY = ("splu", "splu symmetric", "spilu")
ITERATIONS = 2000  # of the gmres beside spilu and ilupp, as many as an attempt of finelu.solve has
CHEAP, RUNS, AGAIN = 1.0, 5, 3.0  # seconds up to which a solve runs again, how often, and seconds for all of that
LARGER = ("poisson5:30,30", "convection_diffusion:11", "helmholtz:24,k=9,absorbing=False", "stokes:16")
FIRST_SYSTEMS = ("poisson5:150,150", "convection_diffusion:28", "stokes:40")
SINGULAR = finelu.Status.SINGULAR.name.lower()
MEASURED = "first use"  # Record.work of what fresh processes measure
IMPORT, EMPTY, LATER = "import", "empty cache", "later process"
PARTS = ("systems", "first")


# The solvers --------------------------------------------------------------------------------------------------------


def finelu_solve(S, b, end: float, extra=None) -> dict[str, Any]:
    solution = finelu.solve(S, b, rtol=RTOL, time_limit=max(end - time.perf_counter(), 0.0))
    said = solution.status.name.lower().replace("_", " ")
    tried = [
        {"recipe": a.recipe, "method": a.method, "outcome": a.outcome, "iterations": a.iterations,
         "setup_s": a.setup_seconds, "iterating_s": a.seconds, "residual": a.residual}
        for a in solution.attempts
    ]  # fmt: skip
    result = {"x": solution.x, "iterations": solution.iterations, "status": "" if solution.converged else said}
    return result | {"said": said, "seen": list(solution.seen), "tried": tried}


def pyamg_solve(S, b, end: float, extra=None) -> dict[str, Any]:
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


def ilupp_solve(S, b, end: float, extra=None) -> dict[str, Any]:
    return finelu_gmres(S, b, ilupp_multilevel(S, None), end, ITERATIONS)


def spilu_gmres(S, b, end: float, extra=None) -> dict[str, Any]:
    return scipy_spilu(S, b, end, extra, ITERATIONS)


def ilupp_ilu0(S, b, end: float, extra=None) -> dict[str, Any]:
    import ilupp

    return finelu_gmres(S, b, ilupp.ILU0Preconditioner(int32_csr(S)), end, ITERATIONS)


def splu_symmetric(S, b, end: float, extra=None) -> dict[str, Any]:
    """With the setting that SuperLU's guide has for patterns that are nearly symmetric."""
    return scipy_splu(S, b, end, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})


SOLVERS: dict[str, Solver] = {
    OURS: finelu_solve,
    "splu": scipy_splu,
    "splu symmetric": splu_symmetric,
    "spilu": spilu_gmres,
    "pyamg": pyamg_solve,
    "ilupp": ilupp_solve,
    "ilupp ILU0": ilupp_ilu0,
}


def right_hand_side(n: int) -> np.ndarray:
    return np.random.default_rng(SEED).uniform(-0.5, 0.5, n)


def once(solver: str, S, b, limit: float) -> dict[str, Any]:
    """One run of one solver, judged: status ("" if solved in time, else why not), seconds, residual, iterations."""
    handed, rhs = S.copy(), b.copy()  # whoever writes to them, S and b stay
    begin = time.perf_counter()
    try:
        with np.errstate(all="ignore"), compile_clock() as compiling:
            result = SOLVERS[solver](handed, rhs, begin + limit)
    except Exception as error:  # a peer may fail in any way
        return {"status": reason_of(error), "seconds": time.perf_counter() - begin}
    result["seconds"], result["compiling"] = time.perf_counter() - begin, compiling()
    result.pop("setup", None)
    judge(S, b, result)
    if result["status"] == "" and result["seconds"] > limit:
        result["status"] = "time"
    return result


def outcome(solver: str, S, limit: float, extra=None) -> dict[str, Any]:
    """As `once`; a cheap solve runs up to RUNS times more, and the median of these counts; one whose first run compiled
    kernels, or loaded compiled ones, runs again whatever it costs. Each run is judged: the first that does not solve
    the system is the outcome."""
    b = right_hand_side(S.shape[0])
    result = once(solver, S, b, limit)
    first, seconds = result["seconds"], []
    wanted = RUNS if first < CHEAP else 1 if result.get("compiling") else 0
    begin = time.perf_counter()
    while result["status"] == "" and len(seconds) < wanted and (not seconds or time.perf_counter() - begin < AGAIN):
        result = once(solver, S, b, limit)
        seconds.append(result["seconds"])
    if result["status"] == "" and seconds:
        result |= {"seconds": median(seconds), "runs": seconds}
    return result | {"first": first}


def warm_up(solver: str) -> None:
    """Compile, or load, what a solver may need: for finelu.solve every rung with every method that it may take."""
    for name in LARGER if solver == OURS else ():
        S = sp.csr_matrix(finelu.gallery.problem(name))
        once(solver, S, right_hand_side(S.shape[0]), 5.0)
    for name in WARM_UP if solver == OURS else WARM_UP[:2]:  # ILU++ crashes where the diagonal is zero
        S = sp.csr_matrix(finelu.gallery.problem(name))
        once(solver, S, right_hand_side(S.shape[0]), READING)
        if solver != OURS:
            continue
        for recipe in RECIPES:
            for method in ("cg", "bicgstab", "gmres"):
                try:
                    finelu.solve(S, right_hand_side(S.shape[0]), recipe=recipe, method=method, time_limit=1.0)
                except (FineluError, ArithmeticError):  # a recipe that does not fit this system
                    break


def serve(pipe, threads: int) -> None:
    systems.serve(pipe, threads, outcome, warm_up)


# Fresh processes ----------------------------------------------------------------------------------------------------

FRESH = """
import json, sys, time
import numpy as np, scipy.sparse as sp, scipy.sparse.linalg
begin = time.perf_counter()
import finelu
result = {"import": time.perf_counter() - begin}
if len(sys.argv) > 1:
    S = sp.load_npz(sys.argv[1])
    b = np.random.default_rng(0).uniform(-0.5, 0.5, S.shape[0])
    begin = time.perf_counter()
    solution = finelu.solve(S, b)
    result |= {"solve": time.perf_counter() - begin, "converged": solution.converged}
    begin = time.perf_counter()
    finelu.solve(S, b)
    result["again"] = time.perf_counter() - begin
print(json.dumps(result))
"""


def fresh(threads: int, cache: Path | None = None, system: Path | None = None) -> dict[str, Any]:
    """What FRESH measures in a process of its own; said: what it wrote to the terminal that its stderr is.

    cache : the folder of compiled kernels (default: the usual one).  system : .npz of the matrix to solve for.
    """
    environment = os.environ | {"FINELU_NUM_THREADS": str(threads)}
    environment["PYTHONPATH"] = str(Path(finelu.__file__).parents[1])
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    ours, theirs = os.openpty()
    arguments = [sys.executable, "-c", FRESH, *([str(system)] if system else [])]
    process = subprocess.Popen(arguments, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the terminal has no writer left
        pass
    finally:
        os.close(ours)
    text = said.decode(errors="replace")
    out, _ = process.communicate()
    if process.returncode:
        raise FineluError(f"a fresh process failed: {(text.strip().splitlines() or ['no word'])[-1]}")
    return json.loads(out.splitlines()[-1]) | {"said": text}


def first_use(run: Run, threads: int) -> Iterator[Record]:
    """The seconds of an import, of a first solve with an empty cache, and of the first in later processes."""

    def record(name: str, what: str, seconds: list[float], **detail) -> Record:
        made = Record(name, MEASURED, "cpu", "finelu", what, 1e3 * median(seconds), threads=threads)
        made.detail = {"runs": seconds} | detail
        return made

    fresh(threads)  # the files are in the system's cache
    yield record("finelu", IMPORT, [fresh(threads)["import"] for _ in range(RUNS)])
    for name in FIRST_SYSTEMS:
        with tempfile.TemporaryDirectory() as folder:
            system, cache = Path(folder) / "system.npz", Path(folder) / "cache"
            sp.save_npz(system, sp.csr_matrix(finelu.gallery.problem(name)))
            cache.mkdir()
            with run.attempt(name, "the first solve"):
                found = fresh(threads, cache, system)
                said = " ".join(found["said"].split())
                yield record(name, EMPTY, [found["solve"]], said=said, converged=found["converged"])
                later = [fresh(threads, cache, system) for _ in range(RUNS)]
                again = median(f["again"] for f in later)
                yield record(name, LATER, [f["solve"] for f in later], again_s=again)


# Tables -------------------------------------------------------------------------------------------------------------


def solve_record(run: Run, name: str, solver: str) -> Record | None:
    return run.one(matrix=name, variant=solver, work="solve")


def peers(run: Run) -> list[str]:
    return [s for s in solver_names(run, SOLVERS) if s != OURS]


def solvers_of(run: Run, name: str) -> list[str]:
    return [s for s in solver_names(run, SOLVERS) if solved(run, name, s)]


def false_claims(run: Run) -> list[str]:
    """The matrices for which finelu.solve said that it converged, and did not."""
    return [r.matrix for r in run.find(variant=OURS) if r.detail.get("claimed")]


def called_singular(run: Run) -> list[str]:
    return [r.matrix for r in run.find(variant=OURS) if r.detail.get("said") == SINGULAR]


def best(run: Run, name: str, solvers: Sequence[str]) -> tuple[float | None, str]:
    """The ms of the fastest of the solvers that solved the system, and its name."""
    times = {s: r.numeric_ms for s in solvers if solved(run, name, s) and (r := solve_record(run, name, s))}
    ms = smallest(times.values())
    return ms, next((s for s, t in times.items() if t == ms), "")


def ratios(run: Run, solvers: Sequence[str], least: int = SMALLEST) -> dict[str, float]:
    """matrix -> time of the fastest of the solvers over ours, for `least` rows or more, where both solve."""
    found = {}
    for name, facts in run.matrices.items():
        theirs, ours = best(run, name, solvers)[0], best(run, name, (OURS,))[0]
        if facts["n"] >= least and (faster := ratio(theirs, ours)) is not None:
            found[name] = faster
    return found


def spread(found: dict[str, float]) -> str:
    """Mean, median and worst of ratios, and how many are below one, in words."""
    if not found:
        return "-"
    worst = min(found, key=lambda name: found[name])
    return (
        f"{cell(mean(found.values()))}, median {cell(median(found.values()))}, worst {cell(found[worst])} ({worst}), "
        f"slower on {sum(r < 1 for r in found.values())}"
    )


def claims(run: Run) -> list[tuple[str, str, str, str]]:
    """(what, bar, measured, holds); what was not measured says so."""
    lines: list[tuple[str, str, str, str]] = []
    names = list(run.matrices)
    if names:
        any_solver = [name for name in names if solvers_of(run, name)]
        ours = [name for name in names if solved(run, name, OURS)]
        alone = [name for name in ours if not solved(run, name, *peers(run))]
        share = len(ours) / len(any_solver) if any_solver else None
        measured = "-" if share is None else f"{len(ours)} = {100 * share:.1f}%"
        holds = verdict(None if share is None else share >= 0.97)
        lines.append((f"{OURS}: of the {len(any_solver)} systems that anything solves", ">= 97%", measured, holds))
        lines.append(
            ("solved that no other solves", ">= 1", ", ".join([str(len(alone)), *alone]), verdict(bool(alone)))
        )
        wrong, singular = false_claims(run), called_singular(run)
        lines.append(("false claims of convergence", "0", ", ".join([str(len(wrong)), *wrong]), verdict(not wrong)))
        refuted = [name for name in singular if solvers_of(run, name)]
        text = ", ".join([str(len(refuted)), *refuted])
        lines.append((f"called singular ({len(singular)}), but solved by another", "0", text, verdict(not refuted)))
    for label, solvers, bar in (("SciPy's best", SCIPY, 3.0), ("the best of all others", peers(run), 1.2)):
        for least in (SMALLEST, 0):
            found = ratios(run, solvers, least)
            if not found and not least:
                continue
            of = f"{len(found)} systems" + (f" of {least} rows or more" if least else " of any size")
            faster = mean(found.values())
            holds = verdict(None if faster is None else faster >= bar) if least else ""
            what = f"time of {label} over ours, geometric mean of {of}"
            lines.append((what, f">= {bar:g}" if least else "-", spread(found), holds))
    for what, text, bar in (
        (IMPORT, "`import finelu` beyond NumPy and SciPy, seconds", 0.3),
        (EMPTY, "the first solve with an empty kernel cache, the slowest system, seconds", 15.0),
        (LATER, "the first solve of later processes, the slowest system, seconds", 1.0),
    ):
        records = run.find(work=MEASURED, variant=what)
        slowest = max((r.numeric_ms / 1e3 for r in records), default=None)
        lines.append((text, f"< {bar:g}", cell(slowest), verdict(None if slowest is None else slowest < bar)))
    told = [r.detail["said"] for r in run.find(work=MEASURED, variant=EMPTY)]
    if told:
        words = sum("compil" in text.lower() for text in told)
        lines.append(
            ("first solves with a word about compilation on the terminal", str(len(told)), str(words),
             verdict(words == len(told)))
        )  # fmt: skip
    return lines


def matrix_table(run: Run) -> str:
    solvers = solver_names(run, SOLVERS)
    lines: list[Sequence[Any]] = []
    for name, facts in run.matrices.items():
        cells = [shown(solve_record(run, name, s)) for s in solvers]
        lines.append((name, facts["n"], facts["nnz"], facts["zero diagonal"], *cells))
    totals = [sum(solved(run, name, s) for name in run.matrices) for s in solvers]
    lines.append((f"solved of {len(run.matrices)}", "", "", "", *totals))
    return table(("matrix", "n", "nnz", "zero diagonal", *solvers), lines)


def attempt_in_words(attempt: dict[str, Any]) -> str:
    recipe = attempt["recipe"].partition("(")[0]
    text = f"{recipe} {attempt['method']}".strip()
    return f"{text}: {attempt['outcome']}, {cell(attempt['setup_s'])} + {cell(attempt['iterating_s'])} s"


def tried_table(run: Run) -> str:
    lines = []
    for name in run.matrices:
        record = solve_record(run, name, OURS)
        if record is None:
            continue
        said = record.detail.get("said") or record.detail["status"]
        tried = "; ".join(attempt_in_words(a) for a in record.detail.get("tried", []))
        lines.append((name, said, record.error, tried))
    return table(("matrix", "status", "residual", "tried"), lines)


def failure_table(run: Run) -> str | None:
    """Systems that finelu.solve does not solve: why, and who does."""
    lines = []
    for name in run.matrices:
        record = solve_record(run, name, OURS)
        if record is not None and record.detail["status"]:
            lines.append((name, record.detail["status"], record.error, ", ".join(solvers_of(run, name)) or "none"))
    return table(("matrix", "why", "residual", "solved by"), lines) if lines else None


def singular_table(run: Run) -> str | None:
    """Systems that finelu.solve calls singular, with what it has seen, and who solves them all the same."""
    lines = []
    for name in called_singular(run):
        seen = solve_record(run, name, OURS).detail["seen"]
        lines.append((name, seen[-1] if len(seen) > 1 else "-", ", ".join(solvers_of(run, name)) or "none"))
    return table(("matrix", "evidence", "solved by"), lines) if lines else None


def time_table(run: Run) -> str | None:
    lines: list[Sequence[Any]] = []
    beside_scipy, beside_all = ratios(run, SCIPY, 0), ratios(run, peers(run), 0)
    for name in sorted(beside_all, key=lambda name: beside_all[name]):
        ours, (scipy_ms, scipy_name) = best(run, name, (OURS,))[0], best(run, name, SCIPY)
        other_ms, other = best(run, name, peers(run))
        lines.append(
            (name, run.matrices[name]["n"], ours, scipy_ms, scipy_name or "-", beside_scipy.get(name), other_ms, other,
             beside_all[name])
        )  # fmt: skip
    header = ("matrix", "n", "ours, ms", "SciPy's best", "by", "over ours", "best of all", "by", "over ours")
    return table(header, lines) if lines else None


def first_table(run: Run) -> str | None:
    lines = [
        (r.variant, r.matrix, r.numeric_ms / 1e3, ", ".join(cell(s) for s in r.detail["runs"]),
         r.detail.get("again_s"), r.detail.get("said") or "-")
        for r in run.find(work=MEASURED)
    ]  # fmt: skip
    header = ("what", "of", "median, s", "runs, s", "the next solve, s", "said on the terminal")
    return table(header, lines) if lines else None


def page(run: Run) -> str:
    absent = "Absent: not measured in this run.\n"
    present = "splu symmetric" in solver_names(run, SOLVERS)
    symmetric = "; splu symmetric: permc_spec='MMD_AT_PLUS_A', options=dict(SymmetricMode=True)" if present else ""
    text = run.heading()
    text += (
        f"\nb uniform in [-0.5, 0.5] (seed {SEED}); solved where ||b - A x||_2 <= {RTOL:g} ||b||_2, computed apart "
        f"from the solvers, within the limit. All with default parameters{symmetric}; gmres({RESTART}) with at most "
        f"{ITERATIONS} iterations beside spilu and "
        "ilupp; pyamg's `solve` is called again from its x while that halves the residual. "
        "Cells: iterations, seconds of everything (kernels compiled before), or why there is no solution. What takes "
        f"less than {CHEAP:g} s: the median of up to {RUNS} further runs.\n"
    )
    text += "\n## Claims\n\n" + table(("what", "bar", "measured", "holds"), claims(run))
    if run.matrices:
        text += "\n## Every matrix\n\n" + matrix_table(run)
        text += f"\n## What {OURS} does not solve\n\n" + (failure_table(run) or "Nothing.\n")
        text += f"\n## What {OURS} calls singular\n\n" + (singular_table(run) or "Nothing.\n")
        text += f"\n## What {OURS} tried\n\nSeconds: of set-up + of iterations.\n\n" + tried_table(run)
        text += "\n## Reasons\n\n" + reason_counts(run, solver_names(run, SOLVERS))
    text += "\n## Time to solution, systems of all sizes\n\n" + (time_table(run) or absent)
    text += "\n## First use, in fresh processes\n\n" + (first_table(run) or absent)
    text += (
        "\nimport: of `finelu` after numpy, scipy.sparse and scipy.sparse.linalg. A first solve includes what it "
        "imports, Numba among it; an empty cache holds no compiled kernel.\n"
    )
    return text + run.footing()


# The run ------------------------------------------------------------------------------------------------------------


def measure_one(run: Run, worker: Worker, name: str, path: Path, solvers: Sequence[str], limit: float) -> None:
    S = finelu.read_matrix(path)
    run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "zero diagonal": int((S.diagonal() == 0).sum())}
    del S
    for solver in solvers:
        found = worker.ask(path, solver, limit, besides=AGAIN)
        seconds = found.pop("seconds", None)
        who = "finelu" if solver == OURS else "scipy" if solver in SCIPY else solver.split()[0]
        record = Record(name, "solve", "cpu", who, solver, None if seconds is None else 1e3 * seconds)
        record.error, record.threads = found.pop("residual", None), run.options["threads"]
        record.detail = found
        run.records.append(record)


def measured(options, solvers: Sequence[str], parts: Sequence[str]) -> Run:
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
            cells = (f"{s} {shown(solve_record(run, name, s))}" for s in solvers)
            print(f"{budget.spent():5.0f} s  {name}: {'; '.join(cells)}", flush=True)
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solve", description=__doc__)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each solver (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of every library (default: %(default)s)")
    parser.add_argument("--solvers", default=",".join(SOLVERS), help="with commas between them (default: all)")
    parser.add_argument("--parts", default=",".join(PARTS), help="systems, first (use), or both (default)")
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON", help="the tables of what was measured")
    add_options(parser)
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    if unknown := [p for p in parts if p not in PARTS]:
        raise ParameterError(f"--parts: there is no {', '.join(unknown)}; choose from {', '.join(PARTS)}.")
    solvers = chosen_solvers(options.solvers, SOLVERS)
    run = Run.load(options.source) if options.source else measured(options, solvers, parts)
    target = run.save(options.out, page(run)).with_suffix(".md")
    print(table(("what", "bar", "measured", "holds"), claims(run)), end="")
    if wrong := false_claims(run):
        raise FineluError(f"a claim of convergence was wrong for {', '.join(wrong)}; {target}")
    print(f"{len(run.matrices)} matrices; {target}")
    return 0


if __name__ == "__main__":
    command(main)
