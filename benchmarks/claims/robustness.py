"""Claim: MultilevelILU solves more than 90% of the real systems that anything here solves, and more than each peer.
`solve` solves all that anything here solves.

Every matrix of a folder (FINELU_MATRICES, or ../shared/matrices) with b = A x, x standard normal: GMRES(50), at most
500 iterations, ||b - A x||_2 <= 1e-8 ||b||_2, a limit of seconds for set-up and solve together. finelu's recipes and
ilupp's multilevel ILU with finelu's gmres; finelu's `solve`, which chooses all of that itself; SciPy's spilu with its
own gmres, and splu; pyamg with its own fgmres. All with default parameters; ilupp also with the threshold that gives
the fill of MultilevelILU, since its own is far lower.
A solve is judged here, by the matrix as it was read. The solvers run in a process of their own, which a crash or the
limit ends.

    python -m benchmarks.claims.robustness [--matrices memplus,fv2] [--limit 40] [--solvers MultilevelILU,ILU0]
    python -m benchmarks.claims.robustness --from A B    # one record of two, whose solvers differ
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims import solve as of_solve
from benchmarks.claims.robustness_tables import MATCHED, OURS, RECIPES, WHOLE
from benchmarks.harness.clock import Budget
from benchmarks.harness.options import add_options, add_sources, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.systems import (
    affordable,
    chosen_files,
    chosen_solvers,
    installed,
    matrix_table,
    reason_counts,
    shown,
    solved,
    solver_names,
    verdict,
    with_worker,
)
from benchmarks.harness.table import cell, mean, table
from benchmarks.harness.worker import READING, SEED, Worker, judge, reason_of, serve_with
from benchmarks.peers.solvers import (
    MAXITER,
    RESTART,
    RTOL,
    WARM_UP,
    OutOfTime,
    Solver,
    finelu_gmres,
    ilupp_multilevel,
    scipy_spilu,
    scipy_splu,
)
from finelu.compiling import compile_clock
from finelu.errors import FineluError, ParameterError

FINELU = (WHOLE, *RECIPES)
AMG = ("pyamg SA", "pyamg RS")  # counted together: pyamg solves what either of them solves
NEAR = 1.25  # fills within this factor of each other are compared
SETUP_ROWS = 5000  # smaller matrices are left out of the comparison of set-up times
CHEAP = 1.0  # seconds up to which a set-up is timed again


# The solvers ----------------------------------------------------------------------------------------------------------


def timed(make: Callable[[], Any]) -> tuple[Any, list[float]]:
    """What make() gives, and the seconds of it: three times where it is cheap."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < 3 and seconds[0] < CHEAP):
        begin = time.perf_counter()
        made = make()
        seconds.append(time.perf_counter() - begin)
    return made, seconds


def recipe(made: Any, S: sp.csr_matrix, b: Any, end: float, fill: float | None) -> dict[str, Any]:
    F, seconds = timed(lambda: made.factor(S))
    return finelu_gmres(S, b, F, end) | {"setup": seconds, "fill": F.nnz / S.nnz}


def whole(S: sp.csr_matrix, b: Any, end: float, fill: float | None) -> dict[str, Any]:
    """finelu.solve, once more if its first run compiled kernels or loaded them."""
    begin = time.perf_counter()
    limit = end - begin
    with compile_clock() as compiling:
        result = of_solve.finelu_solve(S.copy(), b.copy(), end)
    if compiling():
        begin = time.perf_counter()
        result = of_solve.finelu_solve(S, b, begin + limit)
    return result | {"seconds": time.perf_counter() - begin}


def ilupp_default(S: sp.csr_matrix, b: Any, end: float, fill: float | None) -> dict[str, Any]:
    M, seconds = timed(lambda: ilupp_multilevel(S, None))
    return finelu_gmres(S, b, M, end) | {"setup": seconds, "fill": M.total_nnz / S.nnz}


def ilupp_matched(S: sp.csr_matrix, b: Any, end: float, fill: float | None) -> dict[str, Any]:
    """With the threshold, searched from above, that gives `fill` within 10%, or as near as could be."""
    if fill is None:
        return {"status": f"no {OURS}"}
    limit = end - time.perf_counter()
    threshold, most, least, best = 0.1, 1.0, None, None
    for _ in range(10):
        if time.perf_counter() > end:
            break
        reached = ilupp_multilevel(S, threshold).total_nnz / S.nnz
        if best is None or abs(np.log(reached / fill)) < abs(np.log(best[1] / fill)):
            best = threshold, reached
        if abs(reached / fill - 1) < 0.1 or threshold < 1e-9:
            break
        if reached < fill:
            most = threshold
        else:
            least = threshold
        threshold = threshold / 4 if least is None else float(np.sqrt(least * most))
    M, seconds = timed(lambda: ilupp_multilevel(S, best[0]))
    begin = time.perf_counter()
    result = finelu_gmres(S, b, M, begin + max(limit - seconds[0], 0.0))
    solve = time.perf_counter() - begin
    fill = M.total_nnz / S.nnz
    return result | {"setup": seconds, "fill": fill, "threshold": best[0], "seconds": seconds[0] + solve}


def pyamg_solver(kind: str, S: sp.csr_matrix, b: Any, end: float, fill: float | None) -> dict[str, Any]:
    """fgmres, as that of its methods whose stopping rule is the true residual; its gmres stops by that of M^-1."""
    import pyamg

    symmetry = finelu.matrix.traits.symmetry(finelu.as_csr(S, diagonal=False))
    begin = time.perf_counter()
    if kind == "RS":
        hierarchy = pyamg.ruge_stuben_solver(S)
    else:
        word = {"general": "nonsymmetric"}.get(symmetry, symmetry)
        hierarchy = pyamg.smoothed_aggregation_solver(S, symmetry=word)
    setup = time.perf_counter() - begin
    history: list[float] = []

    def accelerate(A, b, x0=None, tol=RTOL, maxiter=None, M=None, callback=None, residuals=None):
        def watch(_):
            if time.perf_counter() > end:
                raise OutOfTime

        restart = min(RESTART, b.size)
        return pyamg.krylov.fgmres(
            A, b, x0=x0, tol=tol, restart=restart, maxiter=MAXITER // RESTART, M=M, callback=watch, residuals=history
        )

    x = hierarchy.solve(b, tol=RTOL, maxiter=MAXITER, accel=accelerate)
    iterations = max(len(history) - 1, 0)
    status = f"{MAXITER} iterations" if iterations >= MAXITER else ""
    fill = hierarchy.operator_complexity()
    return {"x": x, "iterations": iterations, "status": status, "setup": [setup], "fill": fill}


SOLVERS: dict[str, Solver] = {
    WHOLE: whole,
    OURS: partial(recipe, finelu.MultilevelILU()),
    "ILU0": partial(recipe, finelu.ILU0()),
    "ILUT": partial(recipe, finelu.ILUT()),
    "ParILUT": partial(recipe, finelu.ParILUT()),
    "spilu": scipy_spilu,
    "splu (direct)": scipy_splu,
    "ilupp": ilupp_default,
    MATCHED: ilupp_matched,
    "pyamg SA": partial(pyamg_solver, "SA"),
    "pyamg RS": partial(pyamg_solver, "RS"),
}


def outcome(solver: Solver, S: sp.csr_matrix, limit: float, fill: float | None) -> dict[str, Any]:
    """One solver on one matrix: status ("" if solved, else why not), iterations, seconds, setup, residual, fill."""
    b = S @ np.random.default_rng(SEED).standard_normal(S.shape[0])
    begin = time.perf_counter()
    try:
        with np.errstate(all="ignore"):
            result = solver(S.copy(), b, begin + limit, fill)  # a solver may write to its matrix
    except Exception as error:  # a peer may fail in any way
        return {"status": reason_of(error), "seconds": time.perf_counter() - begin}
    again = sum(result.get("setup", [])[1:])  # repeats of the set-up are no part of a solve
    result.setdefault("seconds", time.perf_counter() - begin - again)
    judge(S, b, result)
    return result


def warm_up(solver: str) -> None:
    if solver == WHOLE:
        of_solve.warm_up(of_solve.OURS)
        return
    for name in WARM_UP:
        outcome(SOLVERS[solver], sp.csr_matrix(finelu.gallery.problem(name)), READING, 1.0)


def serve(pipe: Any, threads: int) -> None:
    serve_with(pipe, threads, lambda name, *rest: outcome(SOLVERS[name], *rest), warm_up)


# Tables ---------------------------------------------------------------------------------------------------------------


def setups(run: Run) -> list[tuple[str, Record, Record]]:
    """Matrices of SETUP_ROWS rows or more that both MultilevelILU and ilupp factored, at fills that are near."""
    found = []
    for name, facts in run.matrices.items():
        ours, theirs = (run.one(matrix=name, variant=s) for s in (OURS, MATCHED))
        if facts["n"] < SETUP_ROWS or ours is None or theirs is None or not (ours.analysis_ms and theirs.analysis_ms):
            continue
        if 1 / NEAR <= theirs.detail["fill"] / ours.detail["fill"] <= NEAR:
            found.append((name, ours, theirs))
    return found


def setup_table(run: Run) -> str | None:
    lines = [
        (name, run.matrices[name]["n"], a.detail["fill"], b.detail["fill"], a.analysis_ms, b.analysis_ms,
         a.analysis_ms / b.analysis_ms, shown(a), shown(b))
        for name, a, b in setups(run)
    ]  # fmt: skip
    header = ("matrix", "n", "fill", "ilupp's", "set-up ms", "ilupp's", "ours / ilupp's", "solve", "with ilupp's")
    return table(header, lines) if lines else None


def claims(run: Run) -> list[tuple[str, str, str, str]]:
    """(what, at least, measured, holds); a claim that could not be tested says so."""
    names = list(run.matrices)
    any_solver = [name for name in names if solved(run, name, *SOLVERS)]
    took_part = set(solver_names(run, SOLVERS))
    ours = sum(solved(run, name, OURS) for name in names)
    share = ours / len(any_solver) if any_solver else None
    lines = [
        (
            f"{OURS}: of the {len(any_solver)} matrices that anything solves",
            "> 90%",
            "-" if share is None else f"{ours} = {100 * share:.1f}%",
            verdict(share and share > 0.9),
        )
    ]
    if WHOLE in took_part:
        whole, most = sum(solved(run, name, WHOLE) for name in names), len(any_solver)
        lines.append((f"{WHOLE}: of the same {most}", f">= {most}", str(whole), verdict(whole >= most)))
    for label, solvers in (
        ("ILU0", ("ILU0",)),
        ("spilu + gmres", ("spilu",)),
        ("ilupp's multilevel", ("ilupp",)),
        ("ilupp's multilevel, our fill", (MATCHED,)),
        ("pyamg (SA or RS)", AMG),
    ):
        if took_part.isdisjoint(solvers):
            continue
        theirs = sum(solved(run, name, *solvers) for name in names)
        lines.append((f"{OURS} against {label}", f"> {theirs}", str(ours), verdict(ours > theirs)))
    ratios = [a.analysis_ms / b.analysis_ms for _, a, b in setups(run)]
    slower = mean(ratios)
    lines.append(
        (
            f"set-up, ours over ilupp's at near fill, geometric mean of {len(ratios)}",
            "<= 2",
            cell(slower),
            verdict(None if slower is None else slower <= 2),
        )
    )
    return lines


def failure_table(run: Run) -> str | None:
    """Matrices that something solves and MultilevelILU does not, and why; which solvers do."""
    lines = []
    for name in run.matrices:
        record = run.one(matrix=name, variant=OURS)
        if record is None or record.detail["status"] == "":
            continue
        others = [s for s in solver_names(run, SOLVERS) if solved(run, name, s)]
        lines.append(
            (name, record.detail["status"], record.error, record.detail.get("fill"), ", ".join(others) or "none")
        )
    return table(("matrix", "why", "residual", "fill", "solved by"), lines) if lines else None


def page(run: Run) -> str:
    text = run.heading()
    text += (
        f"\nb = A x, x standard normal (seed {SEED}); GMRES({RESTART}), at most {MAXITER} iterations; solved where "
        f"||b - A x||_2 <= {RTOL:g} ||b||_2, computed by the benchmark. Cells: iterations, seconds of set-up and "
        "solve together (kernels compiled before), or why there is no solution. All with default parameters; "
        f"`{MATCHED}`: ilupp's multilevel ILU with the threshold that gives the fill of {OURS}. `{WHOLE}` is "
        "`finelu.solve`, which chooses the method and the number of iterations itself.\n"
    )
    text += "\n## Claims\n\n" + table(("what", "bar", "measured", "holds"), claims(run))
    text += "\n## Every matrix\n\n" + matrix_table(run, SOLVERS)
    text += f"\n## What {OURS} does not solve\n\n" + (failure_table(run) or "Nothing.\n")
    text += "\n## Reasons\n\n" + reason_counts(run, solver_names(run, SOLVERS))
    text += f"\n## Set-up times, {SETUP_ROWS} rows or more, fill within a factor of {NEAR:g}\n\n"
    text += (setup_table(run) or "Absent: not measured in this run.\n") + (
        "\nfill: entries kept over those of A, as each library counts its own. ms: the median of three where one takes "
        "less than a second, else the only one.\n"
    )
    return text + run.footing()


# The run --------------------------------------------------------------------------------------------------------------


def measure_one(run: Run, worker: Worker, name: str, path: Path, solvers: Sequence[str], limit: float) -> None:
    S = finelu.read_matrix(path)
    run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "zero diagonal": int((S.diagonal() == 0).sum())}
    fill = None
    for solver in solvers:
        found = worker.ask(path, solver, limit, fill, more=limit if solver == MATCHED else 0.0)
        seconds, setup = found.pop("seconds", None), found.pop("setup", None)
        record = Record(name, "gmres", "cpu", solver.split()[0], solver, seconds and 1e3 * seconds)
        record.analysis_ms = 1e3 * median(setup) if setup else None
        record.error, record.threads = found.pop("residual", None), run.options["threads"]
        record.detail = found | {"setup_s": setup}
        run.records.append(record)
        fill = found.get("fill") if solver == OURS else fill


def measured(options: argparse.Namespace, solvers: Sequence[str]) -> Run:
    run = new_run("robustness", gpu=False, machine_name=options.machine)
    solvers = installed(run, solvers)
    run.options = {"limit, seconds": options.limit, "threads": options.threads}
    paths = chosen_files(options)
    budget, worker = Budget(options.budget), Worker(options.threads, serve)
    with with_worker(run, budget, worker):
        for name, path in affordable(run, budget, paths):
            measure_one(run, worker, name, path, solvers, options.limit)
            run.save(options.out)
            fine = [s for s in solvers if solved(run, name, s)]
            print(f"{budget.spent():5.0f} s  {name}: {', '.join(fine) or 'none'}", flush=True)
    return run


def joined(paths: Sequence[Path]) -> Run:
    """The first record with the solvers of the others; ParameterError if these had another limit, threads or code."""
    run, others = Run.merged(paths, lambda r: (r.matrix, r.variant), source=lambda r: r.variant)
    for other, path in zip(others, paths[1:], strict=True):
        for name in ("limit, seconds", "threads", "commit"):
            here, there = ((r.options | r.machine).get(name) for r in (run, other))
            if here != there:
                raise ParameterError(f"{path}: {name} is {there}, and {here} in {paths[0]}.")
        run.left_out |= other.left_out
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.robustness", description=__doc__)
    parser.add_argument("--limit", type=float, default=40.0, help="seconds for each solver (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of finelu (default: %(default)s)")
    parser.add_argument("--solvers", default=",".join(SOLVERS), help="with commas between them (default: all)")
    add_sources(parser)
    add_options(parser)
    options = parser.parse_args(argv)
    solvers = chosen_solvers(options.solvers, SOLVERS)
    run = joined(options.sources) if options.sources else measured(options, solvers)
    target = run.publish(options.out, page(run))
    print(table(("what", "bar", "measured", "holds"), claims(run)), end="")
    wrong = [r.matrix for r in run.records if r.detail.get("claimed") and r.who in FINELU]
    if wrong:
        raise FineluError(f"a claim of convergence was wrong for {', '.join(wrong)}; {target}")
    print(f"{len(run.matrices)} matrices; {target}")
    return 0


if __name__ == "__main__":
    command(main)
