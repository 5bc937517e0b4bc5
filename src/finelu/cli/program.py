"""The `finelu` program: its commands, and how each error becomes one line and an exit status."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer

import finelu
from finelu.cli.arguments import BAD_INPUT, CONVERGED, INTERNAL_ERROR, INTERRUPTED
from finelu.cli.bench import bench
from finelu.cli.calibrate import calibrate
from finelu.cli.compare import compare
from finelu.cli.info import info
from finelu.cli.inspect import inspect
from finelu.cli.output import AlreadyReported, StdoutError, prepare_streams, print_json, write_line, write_out
from finelu.cli.recipes import RecipeHelp
from finelu.cli.solve import solve
from finelu.cli.warmup import warmup
from finelu.errors import FineluError

app = typer.Typer(
    help="Solve large sparse systems A x = b on the CPU or an NVIDIA GPU, and compare methods for a matrix.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _finelu(version: Annotated[bool, typer.Option("--version", help="print the version and end")] = False) -> None:
    if version:
        write_out(f"finelu {finelu.__version__}\n")
        raise typer.Exit


app.command(cls=RecipeHelp)(solve)
app.command(cls=RecipeHelp)(compare)
app.command()(inspect)
app.command()(info)
app.command()(warmup)
app.command()(calibrate)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    prepare_streams()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["solve"] and "--petsc" in arguments and "--help" not in arguments:
        from finelu.interop.petsc_command import command

        return command(arguments[1:])
    try:
        status = app(arguments, prog_name="finelu", standalone_mode=False) or CONVERGED
        error = "interrupted" if status == INTERRUPTED else None
    except StdoutError as problem:
        status, error = BAD_INPUT, None
        write_line(f"finelu: {problem}")
    except (FineluError, typer.TyperException, OSError, MemoryError) as problem:
        status, error = BAD_INPUT, _message(problem)
    except KeyboardInterrupt:
        status, error = INTERRUPTED, "interrupted"
    except AlreadyReported:
        status, error = INTERRUPTED, None
    except Exception as problem:  # a defect, which must not look like a solve that has not converged
        if debug := os.environ.get("FINELU_DEBUG"):
            write_line(traceback.format_exc().rstrip())
        hint = "" if debug else "; set FINELU_DEBUG=1 for the traceback"
        status, error = INTERNAL_ERROR, f"internal error: {type(problem).__name__}: {_message(problem)}{hint}"
    try:
        if error and "--json" in arguments:  # typer has printed its help if the text is empty
            print_json({"error": error})
        elif error:
            write_line(f"finelu: {error}")
        write_out("")  # flushes the buffer
    except StdoutError as lost:
        status = status or BAD_INPUT
        if not error or "--json" in arguments:
            write_line(f"finelu: {error or lost}")
    return status


def _remedy(error: typer.TyperException, text: str) -> str:
    """What to type instead of an option that is a parameter of a recipe, or of a command that does not exist."""
    context: Any = getattr(error, "ctx", None)
    parameter = getattr(error, "option_name", "").strip("-").replace("-", "_")
    if context is not None and context.command.name == "solve" and parameter:
        from finelu.preconditioners import RECIPES

        if any(field.name == parameter for kind in RECIPES.values() for field in fields(kind)):
            return f". It is a parameter of a recipe: --set {parameter}=VALUE"
    if text.startswith("No such command") and "Did you mean" not in text:
        return f" The commands are {', '.join(context.command.commands)}."
    return ""


def _message(error: BaseException) -> str:
    """The error as one line."""
    if isinstance(error, typer.TyperException):
        text = error.format_message().replace(": Value error, ", ": ")  # the type of the exception, as typer tells it
        text += _remedy(error, text)
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    elif isinstance(error, MemoryError):
        text = f"out of memory: {error}" if str(error) else "out of memory"
    else:
        text = str(error)
    return " ".join(text.split())
