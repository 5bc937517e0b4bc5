"""`finelu compare`: every recipe measured on one system."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

import finelu
from finelu.cli.arguments import (
    CONVERGED,
    NOT_CONVERGED,
    Json,
    Matrix,
    RightHandSide,
    Rtol,
    Threads,
    check_outputs,
    duration,
    load,
    right_hand_side,
    set_threads,
)
from finelu.cli.output import AlreadyReported, console, print_json, write_line
from finelu.errors import FileError
from finelu.progress import progress


def compare(
    matrix: Matrix,
    b: RightHandSide = None,
    html: Annotated[str | None, typer.Option(metavar="PAGE.html", help="write a page with tables and pictures")] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="for all measurements but compiling: 60s, 5m, 1h")
    ] = "60s",
    rtol: Rtol = 1e-8,
    device: Annotated[
        Literal["cpu", "cuda", "both", "auto"], typer.Option(help="auto: the CPU, and the GPU if there is one")
    ] = "auto",
    recipes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="only these: {names}, none, solve, spilu, splu; solve is fl.solve, spilu and splu are SciPy's",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="the only Krylov method: {names}; auto takes those that fit the matrix and the recipe")
    ] = "auto",
    threads: Threads = None,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="keeps what was measured there, not in the cache folder")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="measure anew what an earlier call measured")] = False,
    as_json: Json = False,
) -> int:
    """Measure every recipe that applies to this system, and recommend one for a single solve and one for many."""
    seconds = duration("--budget", budget)
    names = None if recipes is None else [name.strip() for name in recipes.split(",") if name.strip()]
    check_outputs(matrix, b, page=html)
    set_threads(threads)
    import finelu.compare as comparing
    from finelu import report

    with progress(as_json) as shown:
        if out is not None and not os.path.isdir(out):
            raise FileError(f"--out {out}: there is no such folder.")
        shown.stage(f"reading {matrix}")
        A = load(matrix)
        rhs, rhs_name, _ = right_hand_side(b, A, "finelu solve takes several")
        result = comparing.compare(
            A,
            rhs,
            rtol=rtol,
            budget=seconds,
            device=device,
            recipes=names,
            method=method,
            pictures=html is not None,
            keep=comparing.cache_folder() if out is None else out,
            again=again,
            watch=shown.stage,
        )
        if html is not None:
            shown.stage(f"writing {html}")
            report.write_page(html, result, A, matrix, b, rhs_name, version=finelu.__version__)
    if as_json:
        facts = report.comparison_facts(result, matrix, b)
        print_json({"matrix": matrix, "rhs": rhs_name, "page": html, **facts})
    else:
        with console() as terminal:
            report.print_comparison(terminal, result, matrix, b, html)
    if result.interrupted:
        if not as_json:
            write_line("finelu: interrupted; the earlier measurements are shown")
        raise AlreadyReported
    return CONVERGED if any(m.solved for m in result.measurements) else NOT_CONVERGED
