"""What the benchmarks that solve whole systems share: peers, the judgement, the process apart, cells of their tables.

solver(S, b, end, extra) -> dict: x; iterations; status, "" if the solver claims success; setup, seconds of each; fill.
end: time.perf_counter() at which to stop.  extra: what one benchmark hands to its solvers, or None.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as splinalg

import finelu
from benchmarks.common import Budget, Record, Run, cell, files, matrix_folder, names_of, table
from finelu.errors import FileError, MatrixError, ParameterError, ZeroPivot

SEED, RTOL, RESTART, MAXITER = 0, 1e-8, 50, 500
ROUNDING = 1.01  # the residual here and that of a solver are rounded differently
MEMORY_GIB = 12  # address space of the process apart
READING, GRACE = 120.0, 3.0  # seconds to read a matrix and compile; over the limit, for a solver to see it itself
WARM_UP = ("poisson5:9,8", "convection_diffusion:9,8", "helmholtz:9,k=3,absorbing=False", "stokes:6")

Solver = Callable[..., dict[str, Any]]


class OutOfTime(Exception):
    """Raised in the callback of a peer, since the limit was reached."""


# Peers --------------------------------------------------------------------------------------------------------------


def finelu_gmres(S, b, M, end: float, maxiter: int = MAXITER) -> dict[str, Any]:
    solution = finelu.gmres(
        S,
        b,
        M=M,
        rtol=RTOL,
        restart=RESTART,
        maxiter=maxiter,
        watch=lambda *_: time.perf_counter() > end,
    )
    status = "" if solution.converged else solution.status.name.lower().replace("_", " ")
    status = {"interrupted": "time", "max iterations": f"{maxiter} iterations"}.get(status, status)
    return {"x": solution.x, "iterations": solution.iterations, "status": status}


def int32_csr(S) -> sp.csr_matrix:
    """S as ilupp takes it."""
    return sp.csr_matrix((S.data, S.indices.astype(np.int32), S.indptr.astype(np.int32)), shape=S.shape)


def ilupp_multilevel(S, threshold: float | None):
    import ilupp

    A = int32_csr(S)
    return ilupp.ILUppPreconditioner(A) if threshold is None else ilupp.ILUppPreconditioner(A, threshold=threshold)


def scipy_spilu(S, b, end: float, extra=None, maxiter: int = MAXITER) -> dict[str, Any]:
    begin, count = time.perf_counter(), 0
    F = splinalg.spilu(sp.csc_matrix(S))
    setup = time.perf_counter() - begin

    def watch(_):
        nonlocal count
        count += 1
        if time.perf_counter() > end:
            raise OutOfTime

    M = splinalg.LinearOperator(S.shape, F.solve, dtype=S.dtype)
    options = {"restart": RESTART, "maxiter": maxiter // RESTART, "callback": watch, "callback_type": "pr_norm"}
    x, info = splinalg.gmres(S, b, M=M, rtol=RTOL, **options)
    status = "" if info == 0 else f"{maxiter} iterations" if count >= maxiter else "breakdown"
    return {"x": x, "iterations": count, "status": status, "setup": [setup], "fill": F.nnz / S.nnz}


def scipy_splu(S, b, end: float, extra=None, **settings) -> dict[str, Any]:
    begin = time.perf_counter()
    F = splinalg.splu(sp.csc_matrix(S), **settings)
    setup = time.perf_counter() - begin
    return {"x": F.solve(b), "iterations": None, "status": "", "setup": [setup], "fill": F.nnz / S.nnz}


# The judgement -------------------------------------------------------------------------------------------------------


def reason_of(error: Exception) -> str:
    """Why there is no solution, in a few words."""
    if isinstance(error, ZeroPivot):
        return f"pivot of row {error.row}"
    if isinstance(error, MatrixError) and "stores no" in str(error):
        return "no diagonal"
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, OutOfTime):
        return "time"
    if "singular" in str(error).lower():
        return "singular"
    return f"{type(error).__name__}: {error}".splitlines()[0][:60]


def judge(S, b, result: dict[str, Any]) -> None:
    """Replace the x of a result by its residual, and its status by what that says; "claimed": a claim was false."""
    x = result.pop("x", None)
    if x is None:
        return
    with np.errstate(all="ignore"):
        residual = float(np.linalg.norm(b - S @ x) / np.linalg.norm(b))
    result["residual"] = residual
    if residual <= ROUNDING * RTOL:
        result["status"] = ""
    elif result["status"] == "":
        result["status"], result["claimed"] = f"residual {residual:.2g}", True


# The process apart --------------------------------------------------------------------------------------------------


def serve(pipe, threads: int, outcome: Callable[..., dict[str, Any]], warm_up: Callable[[str], object]) -> None:
    """In the process apart: (path, solver, limit, extra) in; seconds of warm_up(solver) at its first turn, which say
    that the clock may start, then outcome(solver, S, limit, extra), out."""
    for stream in (1, 2):  # ILU++ reports each of its inner errors there, without end
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_GIB * 2**30,) * 2)
    finelu.set_num_threads(threads)
    warm, path, S = set(), None, None
    while True:
        try:
            wanted, solver, limit, extra = pipe.recv()
        except EOFError:
            return
        begin = time.perf_counter()
        if solver not in warm:
            warm_up(solver)
            warm.add(solver)
        compiled = time.perf_counter() - begin
        if wanted != path:
            path, S = wanted, finelu.read_matrix(wanted)
        pipe.send(compiled)
        pipe.send(outcome(solver, S, limit, extra))


class Worker:
    """A process that solves one system after another, and is started again after a crash or a time limit.

    serve : serve(pipe, threads), what the process runs; a function of a module, as another process is to find it.
    """

    def __init__(self, threads: int, serve: Callable[[Any, int], None]):
        self.threads, self.serve, self.child, self.pipe = threads, serve, None, None
        self.first: dict[str, float] = {}  # seconds of the first calls of a solver, which compile

    def ask(self, path: Path, solver: str, limit: float, extra=None, *, besides: float = 0.0) -> dict[str, Any]:
        """What `solver` made of the matrix in `path`, within the limit and what it may take besides, in seconds."""
        if self.child is None:
            context = multiprocessing.get_context("spawn")  # a forked child would inherit threads that wait for ever
            self.pipe, theirs = context.Pipe()
            self.child = context.Process(target=self.serve, args=(theirs, self.threads), daemon=True)
            self.child.start()
            theirs.close()
        self.pipe.send((path, solver, limit, extra))
        try:
            compiled = self._receive(READING)
            if compiled is None:
                return {"status": "not read"}
            self.first.setdefault(solver, compiled)
            found = self._receive(limit + besides + GRACE)
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
    """Whether any of the solvers has solved the system."""
    return any((r := run.one(matrix=matrix, variant=s)) is not None and r.detail["status"] == "" for s in solvers)


def solver_names(run: Run, known: Iterable[str]) -> list[str]:
    """Those of the known solvers that took part in a run."""
    present = {r.variant for r in run.records}
    return [s for s in known if s in present]


def shown(record: Record | None) -> str:
    """Iterations and seconds, or why not."""
    if record is None:
        return ""
    if record.detail["status"]:
        return record.detail["status"]
    iterations = record.detail.get("iterations")
    seconds = "" if record.numeric_ms is None else f"{cell(record.numeric_ms / 1e3)} s"
    return ", ".join(part for part in ("" if iterations is None else str(iterations), seconds) if part) or "solved"


def verdict(holds) -> str:
    return "not measured" if holds is None else "yes" if holds else "no"


def reason_counts(run: Run, solvers: Iterable[str]) -> str:
    """How often each solver failed for which reason."""
    lines = []
    for solver in solvers:
        # neither the row of a pivot nor the size of a residual makes another reason
        reasons = Counter(re.sub("^(residual|pivot) .*", r"\1", r.detail["status"]) for r in run.find(variant=solver))
        reasons.pop("", None)
        lines.append((solver, ", ".join(f"{k} {why}" for why, k in reasons.most_common())))
    return table(("solver", "failed by"), lines)


# The run ------------------------------------------------------------------------------------------------------------


def chosen_files(options: argparse.Namespace) -> dict[str, Path]:
    """name -> file of the matrices that --matrices, --quick and --matrix-folder ask for, the smallest file first."""
    folder = options.matrix_folder or matrix_folder()
    found = files(folder)
    if not found:
        raise FileError(f"{folder}: no matrix here; set FINELU_MATRICES to a folder.")
    names = names_of(options.matrices) or list(found)
    if unknown := [name for name in names if name not in found]:
        raise ParameterError(f"there is no matrix {', '.join(unknown)} in {folder}.")
    names = sorted(names, key=lambda name: found[name].stat().st_size)
    return {name: found[name] for name in (names[:5] if options.quick and not options.matrices else names)}


def chosen_solvers(text: str, known: Mapping[str, Solver]) -> list[str]:
    """The names in --solvers; ParameterError for one that is not known."""
    solvers = text.split(",")
    if unknown := [s for s in solvers if s not in known]:
        raise ParameterError(f"--solvers: there is no {', '.join(unknown)}; choose from {', '.join(known)}.")
    return solvers


def installed(run: Run, solvers: Iterable[str]) -> list[str]:
    """The solvers without those of packages that are not there, which the run then says; versions go to its machine."""
    solvers = list(solvers)
    for package in ("ilupp", "pyamg"):
        try:
            run.machine[package] = package_version(package)
        except PackageNotFoundError:
            run.left_out[package] = f"not installed (pip install {package})"
            solvers = [s for s in solvers if not s.startswith(package)]
    return solvers


def affordable(run: Run, budget: Budget, paths: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """The matrices one by one; those after the budget's end are left out, which the run then says."""
    for name, path in paths.items():
        if budget.over():
            run.left_out[name] = "the budget was spent"
        else:
            yield name, path


@contextmanager
def with_worker(run: Run, budget: Budget, worker: Worker) -> Iterator[None]:
    """Ctrl-C ends the block and keeps what was measured; the worker ends in any case; what the run took is noted."""
    try:
        yield
    except KeyboardInterrupt:
        run.left_out["the rest"] = "the run was interrupted"
    finally:
        worker.stop()
    run.options["first calls, which compile or load, seconds"] = ", ".join(
        f"{solver} {cell(seconds)}" for solver, seconds in worker.first.items()
    )
    run.options |= {"seconds": round(budget.spent()), "load average at the end": round(os.getloadavg()[0], 1)}
