"""`finelu inspect`: properties of a matrix."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from finelu.cli.arguments import CONVERGED, Json, Matrix, check_outputs, load
from finelu.cli.output import console, print_json
from finelu.errors import StructurallySingular


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
    from finelu.scaling import unmatched

    A = load(matrix)
    found, first, singular = properties(A), first_try(A), ""
    if not found.diagonal.usable and (left := unmatched(A)).size:  # else the diagonal is a matching
        singular = str(StructurallySingular(left))
    if plot is not None:
        plot_matrix(plot, A, title=f"{matrix}, n = {A.n}")
    if as_json:
        print_json({"matrix": matrix, **asdict(found), "singular": singular, "suggestion": first, "plot": plot})
        return CONVERGED

    words = "none: too little memory is free"
    if first:
        words = f"{first['recipe']} with {first['method']}: {first['reason']}"
    rows = properties_in_words(found) | ({"singular": singular} if singular else {})
    also = "; it says whether b fits" if singular else ""
    rows["suggestion"] = f"finelu solve chooses by itself{also}; first {words}"
    if plot is not None:
        rows["plot"] = plot
    with console() as out:
        out.print(table(matrix, rows))
    return CONVERGED
