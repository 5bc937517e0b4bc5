"""Claim: MultilevelILU solves more than 90% of the real systems that anything here solves, and more than each peer.

Every matrix of a folder (FINELU_MATRICES, or ../shared/matrices) with b = A x, x standard normal: GMRES(50), at most
500 iterations, ||b - A x||_2 <= 1e-8 ||b||_2, a limit of seconds for set-up and solve together. finelu's recipes and
ilupp's multilevel ILU with finelu's gmres; SciPy's spilu with its own gmres, and splu; pyamg with its own fgmres. All
with default parameters; ilupp also with the threshold that gives the fill of MultilevelILU, since its own is far lower.
A solve is judged here, by the matrix as it was read. The solvers run in a process apart, which a crash or the limit
ends.

    python -m benchmarks.robustness [--matrices memplus,fv2] [--limit 40] [--solvers MultilevelILU,ILU0]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as splinalg

import finelu
from benchmarks.common import (
    Budget,
    Record,
    Run,
    add_options,
    cell,
    command,
    files,
    matrix_folder,
    mean,
    names_of,
    new_run,
    table,
)
from finelu.errors import FileError, FineluError, MatrixError, ParameterError, ZeroPivot

SEED, RTOL, RESTART, MAXITER = 0, 1e-8, 50, 500
ROUNDING = 1.01  # the residual here and that of a solver are rounded differently
OURS, MATCHED = "MultilevelILU", "ilupp at our fill"
AMG = ("pyamg SA", "pyamg RS")  # counted together: pyamg solves what either of them solves
NEAR = 1.25  # fills within this factor of each other are compared
SETUP_ROWS = 5000  # smaller matrices are left out of the comparison of set-up times
CHEAP = 1.0  # seconds up to which a set-up is timed again
MEMORY_GIB = 12  # address space of the process apart
READING, GRACE = 120.0, 3.0  # seconds to read a matrix and compile; over the limit, for a solver to see it itself
WARM_UP = ("poisson5:9,8", "convection_diffusion:9,8", "helmholtz:9,k=3,absorbing=False", "stokes:6")


class _OutOfTime(Exception):
    pass


# The solvers --------------------------------------------------------------------------------------------------------
# solver(S, b, end, fill) -> dict: x; iterations; status, "" if the solver claims success; setup, seconds of each; fill.
# end: time.perf_counter() at which to stop.  fill: entries of M over A's that MultilevelILU took, or None.


def finelu_gmres(S, b, M, end: float) -> dict[str, Any]:
    solution = finelu.gmres(
        S,
        b,
        M=M,
        rtol=RTOL,
        restart=RESTART,
        maxiter=MAXITER,
        watch=lambda *_: time.perf_counter() > end,
    )
    status = "" if solution.converged else solution.status.name.lower().replace("_", " ")
    status = {"interrupted": "time", "max iterations": f"{MAXITER} iterations"}.get(status, status)
    return {"x": solution.x, "iterations": solution.iterations, "status": status}


def timed(make: Callable[[], Any]) -> tuple[Any, list[float]]:
    """What make() gives, and the seconds of it: three times where it is cheap."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < 3 and seconds[0] < CHEAP):
        begin = time.perf_counter()
        made = make()
        seconds.append(time.perf_counter() - begin)
    return made, seconds


def recipe(made, S, b, end: float, fill) -> dict[str, Any]:
    F, seconds = timed(lambda: made.factor(S))
    return finelu_gmres(S, b, F, end) | {"setup": seconds, "fill": F.nnz / S.nnz}


def ilupp_multilevel(S, threshold: float | None):
    import ilupp

    A = sp.csr_matrix((S.data, S.indices.astype(np.int32), S.indptr.astype(np.int32)), shape=S.shape)
    return ilupp.ILUppPreconditioner(A) if threshold is None else ilupp.ILUppPreconditioner(A, threshold=threshold)


def ilupp_default(S, b, end: float, fill) -> dict[str, Any]:
    M, seconds = timed(lambda: ilupp_multilevel(S, None))
    return finelu_gmres(S, b, M, end) | {"setup": seconds, "fill": M.total_nnz / S.nnz}


def ilupp_matched(S, b, end: float, fill) -> dict[str, Any]:
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


def scipy_spilu(S, b, end: float, fill) -> dict[str, Any]:
    begin, count = time.perf_counter(), 0
    F = splinalg.spilu(sp.csc_matrix(S))
    setup = time.perf_counter() - begin

    def watch(_):
        nonlocal count
        count += 1
        if time.perf_counter() > end:
            raise _OutOfTime

    M = splinalg.LinearOperator(S.shape, F.solve, dtype=S.dtype)
    options = {"restart": RESTART, "maxiter": MAXITER // RESTART, "callback": watch, "callback_type": "pr_norm"}
    x, info = splinalg.gmres(S, b, M=M, rtol=RTOL, **options)
    status = "" if info == 0 else f"{MAXITER} iterations" if count >= MAXITER else "breakdown"
    return {"x": x, "iterations": count, "status": status, "setup": [setup], "fill": F.nnz / S.nnz}


def scipy_splu(S, b, end: float, fill) -> dict[str, Any]:
    begin = time.perf_counter()
    F = splinalg.splu(sp.csc_matrix(S))
    setup = time.perf_counter() - begin
    return {"x": F.solve(b), "iterations": None, "status": "", "setup": [setup], "fill": F.nnz / S.nnz}


def pyamg_solver(kind: str, S, b, end: float, fill) -> dict[str, Any]:
    """fgmres, as that of its methods whose stopping rule is the true residual; its gmres stops by that of M^-1."""
    import pyamg

    symmetry = finelu.properties.symmetry(finelu.as_csr(S, diagonal=False))
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
                raise _OutOfTime

        restart = min(RESTART, b.size)
        return pyamg.krylov.fgmres(
            A, b, x0=x0, tol=tol, restart=restart, maxiter=MAXITER // RESTART, M=M, callback=watch, residuals=history
        )

    x = hierarchy.solve(b, tol=RTOL, maxiter=MAXITER, accel=accelerate)
    iterations = max(len(history) - 1, 0)
    status = f"{MAXITER} iterations" if iterations >= MAXITER else ""
    fill = hierarchy.operator_complexity()
    return {"x": x, "iterations": iterations, "status": status, "setup": [setup], "fill": fill}


SOLVERS: dict[str, Callable[..., dict[str, Any]]] = {
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


def reason_of(error: Exception) -> str:
    """Why there is no solution, in a few words."""
    if isinstance(error, ZeroPivot):
        return f"pivot of row {error.row}"
    if isinstance(error, MatrixError) and "stores no" in str(error):
        return "no diagonal"
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, _OutOfTime):
        return "time"
    if "singular" in str(error).lower():
        return "singular"
    return f"{type(error).__name__}: {error}".splitlines()[0][:60]


def outcome(solver: str, S, limit: float, fill: float | None) -> dict[str, Any]:
    """One solver on one matrix: status ("" if solved, else why not), iterations, seconds, setup, residual, fill."""
    b = S @ np.random.default_rng(SEED).standard_normal(S.shape[0])
    begin = time.perf_counter()
    try:
        with np.errstate(all="ignore"):
            result = SOLVERS[solver](S.copy(), b, begin + limit, fill)  # whoever writes to it, S stays
    except Exception as error:  # a peer may fail in any way
        return {"status": reason_of(error), "seconds": time.perf_counter() - begin}
    again = sum(result.get("setup", [])[1:])  # repeats of the set-up are no part of a solve
    result.setdefault("seconds", time.perf_counter() - begin - again)
    x = result.pop("x", None)
    if x is None:
        return result
    with np.errstate(all="ignore"):
        residual = float(np.linalg.norm(b - S @ x) / np.linalg.norm(b))
    result["residual"] = residual
    if residual <= ROUNDING * RTOL:
        result["status"] = ""
    elif result["status"] == "":
        result["status"], result["claimed"] = f"residual {residual:.2g}", True
    return result


# The process apart --------------------------------------------------------------------------------------------------


def serve(pipe, threads: int) -> None:
    """In the process apart: (path, solver, limit, fill) in; "ready" once the clock may start, then the outcome, out."""
    for stream in (1, 2):  # ILU++ reports each of its inner errors there, without end
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_GIB * 2**30,) * 2)
    finelu.set_num_threads(threads)
    warm, path, S = set(), None, None
    while True:
        try:
            wanted, solver, limit, fill = pipe.recv()
        except EOFError:
            return
        begin = time.perf_counter()
        if solver not in warm:
            for name in WARM_UP:
                outcome(solver, sp.csr_matrix(finelu.gallery.problem(name)), READING, 1.0)
            warm.add(solver)
        compiled = time.perf_counter() - begin
        if wanted != path:
            path, S = wanted, finelu.read_matrix(wanted)
        pipe.send(compiled)
        pipe.send(outcome(solver, S, limit, fill))


class Worker:
    """A process that solves one system after another, and is started again after a crash or a time limit."""

    def __init__(self, threads: int):
        self.threads, self.child, self.pipe = threads, None, None
        self.first: dict[str, float] = {}  # seconds of the first calls of a solver, which compile

    def ask(self, path: Path, solver: str, limit: float, fill: float | None) -> dict[str, Any]:
        if self.child is None:
            context = multiprocessing.get_context("spawn")  # a forked child would inherit threads that wait for ever
            self.pipe, theirs = context.Pipe()
            self.child = context.Process(target=serve, args=(theirs, self.threads), daemon=True)
            self.child.start()
            theirs.close()
        self.pipe.send((path, solver, limit, fill))
        try:
            compiled = self._receive(READING)
            if compiled is None:
                return {"status": "not read"}
            self.first.setdefault(solver, compiled)
            found = self._receive((2 if solver == MATCHED else 1) * limit + GRACE)
        except EOFError:
            self.stop()
            return {"status": "crashed"}
        return {"status": "time", "seconds": limit} if found is None else found

    def _receive(self, seconds: float):
        """The next message, or None after so many seconds, and then the process is gone."""
        if self.pipe.poll(seconds):
            return self.pipe.recv()
        self.stop()
        return None

    def stop(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.join()
            self.child = None


# Tables -------------------------------------------------------------------------------------------------------------


def solved(run: Run, matrix: str, *solvers: str) -> bool:
    return any((r := run.one(matrix=matrix, variant=s)) is not None and r.detail["status"] == "" for s in solvers)


def solver_names(run: Run) -> list[str]:
    present = {r.variant for r in run.records}
    return [s for s in SOLVERS if s in present]


def shown(record: Record | None) -> str:
    """Iterations and seconds, or why not."""
    if record is None:
        return ""
    if record.detail["status"]:
        return record.detail["status"]
    iterations = record.detail.get("iterations")
    seconds = "" if record.numeric_ms is None else f"{cell(record.numeric_ms / 1e3)} s"
    return ", ".join(part for part in ("" if iterations is None else str(iterations), seconds) if part) or "solved"


def matrix_table(run: Run) -> str:
    solvers = solver_names(run)
    lines: list[Sequence[Any]] = []
    for name, facts in run.matrices.items():
        cells = [shown(run.one(matrix=name, variant=s)) for s in solvers]
        lines.append((name, facts["n"], facts["nnz"], facts["zero diagonal"], *cells))
    totals = [sum(solved(run, name, s) for name in run.matrices) for s in solvers]
    lines.append((f"solved of {len(run.matrices)}", "", "", "", *totals))
    return table(("matrix", "n", "nnz", "zero diagonal", *solvers), lines)


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
    for label, solvers in (
        ("ILU0", ("ILU0",)),
        ("spilu + gmres", ("spilu",)),
        ("ilupp's multilevel", ("ilupp",)),
        ("ilupp's multilevel, our fill", (MATCHED,)),
        ("pyamg (SA or RS)", AMG),
    ):
        if not any(r.variant in solvers for r in run.records):
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


def verdict(holds) -> str:
    return "not measured" if holds is None else "yes" if holds else "no"


def failure_table(run: Run) -> str | None:
    """Matrices that something solves and MultilevelILU does not, and why; who solves them."""
    lines = []
    for name in run.matrices:
        record = run.one(matrix=name, variant=OURS)
        if record is None or record.detail["status"] == "":
            continue
        others = [s for s in solver_names(run) if solved(run, name, s)]
        lines.append(
            (name, record.detail["status"], record.error, record.detail.get("fill"), ", ".join(others) or "none")
        )
    return table(("matrix", "why", "residual", "fill", "solved by"), lines) if lines else None


def reason_counts(run: Run) -> str:
    """How often each solver failed for which reason."""
    lines = []
    for solver in solver_names(run):
        # neither the row of a pivot nor the size of a residual makes another reason
        reasons = Counter(re.sub("^(residual|pivot) .*", r"\1", r.detail["status"]) for r in run.find(variant=solver))
        reasons.pop("", None)
        lines.append((solver, ", ".join(f"{k} {why}" for why, k in reasons.most_common())))
    return table(("solver", "failed by"), lines)


def page(run: Run) -> str:
    text = run.heading()
    text += (
        f"\nb = A x, x standard normal (seed {SEED}); GMRES({RESTART}), at most {MAXITER} iterations; solved where "
        f"||b - A x||_2 <= {RTOL:g} ||b||_2, computed apart from the solvers. Cells: iterations, seconds of set-up and "
        "solve together (kernels compiled before), or why there is no solution. All with default parameters; "
        f"`{MATCHED}`: ilupp's multilevel ILU with the threshold that gives the fill of {OURS}.\n"
    )
    text += "\n## Claims\n\n" + table(("what", "bar", "measured", "holds"), claims(run))
    text += "\n## Every matrix\n\n" + matrix_table(run)
    text += f"\n## What {OURS} does not solve\n\n" + (failure_table(run) or "Nothing.\n")
    text += "\n## Reasons\n\n" + reason_counts(run)
    text += f"\n## Set-up times, {SETUP_ROWS} rows or more, fill within a factor of {NEAR:g}\n\n"
    text += (setup_table(run) or "Absent: not measured in this run.\n") + (
        "\nfill: entries kept over those of A, as each library counts its own. ms: the median of three where one takes "
        "less than a second, else the only one.\n"
    )
    return text + run.footing()


# The run ------------------------------------------------------------------------------------------------------------


def measure_one(run: Run, worker: Worker, name: str, path: Path, solvers: Sequence[str], limit: float) -> None:
    S = finelu.read_matrix(path)
    run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "zero diagonal": int((S.diagonal() == 0).sum())}
    fill = None
    for solver in solvers:
        found = worker.ask(path, solver, limit, fill)
        seconds, setup = found.pop("seconds", None), found.pop("setup", None)
        record = Record(name, "gmres", "cpu", solver.split()[0], solver, seconds and 1e3 * seconds)
        record.analysis_ms = 1e3 * median(setup) if setup else None
        record.error, record.threads = found.pop("residual", None), run.options["threads"]
        record.detail = found | {"setup_s": setup}
        run.records.append(record)
        fill = found.get("fill") if solver == OURS else fill


def measured(options, solvers: Sequence[str]) -> Run:
    run = new_run("robustness", gpu=False, machine_name=options.machine)
    for package in ("ilupp", "pyamg"):
        try:
            run.machine[package] = package_version(package)
        except PackageNotFoundError:
            run.left_out[package] = f"not installed (pip install {package})"
            solvers = [s for s in solvers if not s.startswith(package)]
    run.options = {"limit, seconds": options.limit, "threads": options.threads}
    found = files(options.matrix_folder or matrix_folder())
    if not found:
        raise FileError(f"{options.matrix_folder or matrix_folder()}: no matrix here; set FINELU_MATRICES to a folder.")
    names = names_of(options.matrices) or list(found)
    if options.quick and not options.matrices:
        names = sorted(names, key=lambda name: found[name].stat().st_size)[:5]
    if unknown := [name for name in names if name not in found]:
        raise ParameterError(f"there is no matrix {', '.join(unknown)} in {options.matrix_folder or matrix_folder()}.")
    budget, worker = Budget(options.budget), Worker(options.threads)
    try:
        for name in sorted(names, key=lambda name: found[name].stat().st_size):
            if budget.over():
                run.left_out[name] = "the budget was spent"
                continue
            measure_one(run, worker, name, found[name], solvers, options.limit)
            run.save(options.out)
            fine = [s for s in solvers if solved(run, name, s)]
            print(f"{budget.spent():5.0f} s  {name}: {', '.join(fine) or 'none'}", flush=True)
    except KeyboardInterrupt:
        run.left_out["the rest"] = "the run was interrupted"
    finally:
        worker.stop()
    run.options["first calls, which compile or load, seconds"] = ", ".join(
        f"{solver} {cell(seconds)}" for solver, seconds in worker.first.items()
    )
    run.options |= {"seconds": round(budget.spent()), "load average at the end": round(os.getloadavg()[0], 1)}
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robustness", description=__doc__)
    parser.add_argument("--limit", type=float, default=40.0, help="seconds for each solver (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of finelu (default: %(default)s)")
    parser.add_argument("--solvers", default=",".join(SOLVERS), help="with commas between them (default: all)")
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON", help="the tables of what was measured")
    add_options(parser)
    options = parser.parse_args(argv)
    solvers = options.solvers.split(",")
    if unknown := [s for s in solvers if s not in SOLVERS]:
        raise ParameterError(f"--solvers: there is no {', '.join(unknown)}; choose from {', '.join(SOLVERS)}.")
    run = Run.load(options.source) if options.source else measured(options, solvers)
    target = run.save(options.out, page(run)).with_suffix(".md")
    print(table(("what", "bar", "measured", "holds"), claims(run)), end="")
    wrong = [r.matrix for r in run.records if r.detail.get("claimed") and r.who in ("MultilevelILU", "ILU0", "ILUT")]
    if wrong:
        raise FineluError(f"a claim of convergence was wrong for {', '.join(wrong)}; {target}")
    print(f"{len(run.matrices)} matrices; {target}")
    return 0


if __name__ == "__main__":
    command(main)
