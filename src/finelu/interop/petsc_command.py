"""`finelu solve A.mtx --petsc`.

Outside of the package `finelu.interop.petsc`: importing that starts PETSc, which takes its options only then.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from time import sleep
from typing import TYPE_CHECKING, Any

from finelu.errors import FineluError, ParameterError

if TYPE_CHECKING:
    from finelu.interop.petsc import Outcome

# What launchers call the number of a process.
RANK = (
    "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "PALS_RANKID", "FLUX_TASK_RANK",
    "SLURM_PROCID",
)  # fmt: skip
VALUES = {"-b": "b", "--rhs": "b", "-o": "output", "--output": "output", "--partition": "partition"}
NUMBERS = {"--rtol": ("rtol", float), "--maxiter": ("maxiter", int)}


def command(arguments: Sequence[str]) -> int:
    """Run with the arguments after "solve"; returns the exit status of this process."""
    as_json = "--json" in arguments
    try:
        path, given, for_petsc = _command_line(list(arguments))
    except ParameterError as error:
        if launched_first():
            return _print_error(error, as_json)
        sleep(1.0)  # some launchers end all processes when one ends: let the first say why
        return 2
    try:
        import petsc4py
    except ImportError:
        return _print_error(
            ParameterError("--petsc needs petsc4py, the one of your PETSc: see docs/petsc.md."), as_json
        )
    petsc4py.init(["finelu", *for_petsc])
    from petsc4py import PETSc

    from finelu.interop.petsc.processes import mpi
    from finelu.interop.petsc.solve import solve_mtx
    from finelu.processes import DEFECT, met_by_all

    first = PETSc.COMM_WORLD.getRank() == 0
    try:
        outcome = solve_mtx(path, **given)
    except FineluError as error:
        if isinstance(error.__cause__, PETSc.Error) and not met_by_all(mpi(PETSc.COMM_WORLD)):
            _print_error(error, as_json)  # on this process: the others wait inside PETSc
            mpi(PETSc.COMM_WORLD).Abort(2)
        return _print_error(error, as_json) if first else 2
    except BaseException:
        if PETSc.COMM_WORLD.getSize() > 1:  # the others would wait for this one
            traceback.print_exc()
            mpi(PETSc.COMM_WORLD).Abort(DEFECT)
        raise
    if first:
        _print_outcome(path, given, outcome, as_json)
    return 0 if outcome.converged else 1


def launched_first() -> bool:
    """Whether the launcher calls this the first process; before MPI starts nothing else can say so."""
    return next((int(text) for name in RANK if (text := os.environ.get(name, "")).isdecimal()), 0) == 0


def _command_line(arguments: list[str]) -> tuple[str, dict[str, Any], list[str]]:
    """The matrix, the parameters of solve_mtx, and the arguments for PETSc."""
    paths: list[str] = []
    given: dict[str, Any] = {}
    for_petsc: list[str] = []
    while arguments:
        word = arguments.pop(0)
        name, equals, value = word.partition("=")
        if name in VALUES or name in NUMBERS:
            if not equals and not arguments:
                raise ParameterError(f"{name} needs a value.")
            text = value if equals else arguments.pop(0)
            try:
                key, kind = NUMBERS.get(name) or (VALUES[name], str)
                given[key] = kind(text)
            except ValueError:
                raise ParameterError(f"{name} {text}: a number is needed.") from None
        elif word in ("--petsc", "--json"):
            continue
        elif word.startswith("--"):
            known = ", ".join((*VALUES, *NUMBERS, "--json"))
            raise ParameterError(
                f"{word} has no meaning with --petsc; there are {known}, and PETSc's options, such as "
                "-sub_finelu_recipe ilut."
            )
        elif word.startswith("-") or for_petsc:
            for_petsc.append(word)
        else:
            paths.append(word)
    if len(paths) != 1:
        raise ParameterError(f"one matrix file, before PETSc's options, is needed; there are {len(paths)}.")
    return paths[0], given, for_petsc


def _print_error(error: Exception, as_json: bool) -> int:
    text = " ".join(str(error).split())
    where = sys.stdout if as_json else sys.stderr
    print(json.dumps({"error": text}) if as_json else f"finelu: {text}", file=where, flush=True)
    return 2


def _print_outcome(path: str, given: dict[str, Any], outcome: Outcome, as_json: bool) -> None:
    from finelu.interop.petsc.files import SEED

    facts = {name: value for name, value in vars(outcome).items() if name != "x" and value is not None}
    if as_json:
        print(json.dumps({"matrix": path, **given, **facts}))
        return
    times = ", ".join(f"{name} {value:.3g} s" for name, value in facts.pop("seconds").items())
    low, high = facts["rows"]
    rows = {
        "n": facts["n"],
        "nnz": facts["nnz"],
        "right-hand side": given.get("b", f"uniform in [-0.5, 0.5], seed {SEED}"),
        "processes": f"{facts['processes']}, of {low} to {high} rows",
        "solver": f"{facts['ksp']}, {facts['pc']} (-ksp_view shows all)",
        "status": f"{'converged' if outcome.converged else 'not converged'}: {outcome.reason}",
        "iterations": outcome.iterations,
        "relative residual": f"{outcome.relative_residual:.3e} (true, of the x returned)",
        "time": times,
    }
    if outcome.cut is not None:
        rows["partition"] = f"{given['partition']}: {outcome.cut} entries couple rows of different processes"
    if "output" in given:
        rows["output"] = given["output"]
    from rich.console import Console
    from rich.table import Table

    table = Table(title=path, show_header=False)
    for name, value in rows.items():
        table.add_row(name, str(value))
    Console(highlight=False).print(table)
