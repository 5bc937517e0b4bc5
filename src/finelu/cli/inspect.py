"""`finelu inspect`: properties of a matrix."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from finelu.cli.arguments import CONVERGED, Json, Matrix, check_outputs, load
from finelu.cli.output import console, print_json


def inspect(
    matrix: Matrix,
    plot: Annotated[str | None, typer.Option(metavar="P.png", help="draw pattern, levels, rows to this file")] = None,
    as_json: Json = False,
) -> int:
    """Show properties of A: symmetry, diagonal, dominance, levels, blocks, and the first attempt of solve."""
    check_outputs(matrix, plot=plot)
    from finelu.auto.solve import first_try
    from finelu.properties import properties
    from finelu.report import plot_matrix, properties_in_words, table

    A = load(matrix)
    found, first = properties(A), first_try(A)
    if plot is not None:
        plot_matrix(plot, A, title=f"{matrix}, n = {A.n}")
    if as_json:
        print_json({"matrix": matrix, **asdict(found), "suggestion": first, "plot": plot})
        return CONVERGED

    words = "none: too little memory is free"
    if first:
        words = f"{first['recipe']} with {first['method']}: {first['reason']}"
    rows = properties_in_words(found) | {"suggestion": f"finelu solve chooses by itself; first {words}"}
    if plot is not None:
        rows["plot"] = plot
    with console() as out:
        out.print(table(matrix, rows))
    return CONVERGED
