"""The run of several solvers over the real matrices: the choices of the command line, and cells of the tables."""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from benchmarks.harness.clock import Budget
from benchmarks.harness.record import Record, Run
from benchmarks.harness.suite import files, matrix_folder, names_of
from benchmarks.harness.table import cell, table
from benchmarks.harness.worker import Worker
from benchmarks.peers.solvers import Solver
from finelu.errors import FileError, ParameterError

# The run --------------------------------------------------------------------------------------------------------------


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


PACKAGES = {"ilupp": "ilupp", "pyamg": "pyamg", "nbklu": "nbklu", "feral-solver": "feral", "pypardiso": "pypardiso"}


def installed(run: Run, solvers: Iterable[str]) -> list[str]:
    """The solvers whose packages are installed; the run notes the versions of those, and which packages are missing."""
    solvers = list(solvers)
    for package, prefix in PACKAGES.items():
        try:
            run.machine[package] = package_version(package)
        except PackageNotFoundError:
            run.left_out[package] = f"not installed (pip install {package})"
            solvers = [s for s in solvers if not s.startswith(prefix)]
    return solvers


def affordable(run: Run, budget: Budget, paths: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """The matrices one by one; once the budget is spent the run notes the others as left out."""
    for name, path in paths.items():
        if budget.over():
            run.left_out[name] = "the budget was spent"
        else:
            yield name, path


@contextmanager
def with_worker(run: Run, budget: Budget, worker: Worker) -> Iterator[None]:
    """Ctrl-C ends the block and keeps its measurements; the worker is ended in any case; the seconds are noted."""
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


# Tables ---------------------------------------------------------------------------------------------------------------


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


def verdict(holds: bool | None) -> str:
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


def matrix_table(run: Run, known: Iterable[str]) -> str:
    """A row a matrix: what each solver made of it; the last row counts the systems solved."""
    solvers = solver_names(run, known)
    lines: list[Sequence[Any]] = []
    for name, facts in run.matrices.items():
        cells = [shown(run.one(matrix=name, variant=s)) for s in solvers]
        lines.append((name, facts["n"], facts["nnz"], facts["zero diagonal"], *cells))
    totals = [sum(solved(run, name, s) for name in run.matrices) for s in solvers]
    lines.append((f"solved of {len(run.matrices)}", "", "", "", *totals))
    return table(("matrix", "n", "nnz", "zero diagonal", *solvers), lines)
