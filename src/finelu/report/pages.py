"""The page of `finelu compare`: one file that needs no other. page.html is its template."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from finelu.compare import Comparison, Measurement, best, stages
from finelu.errors import FineluError
from finelu.io import check_writable, replacing
from finelu.matrix import CSR
from finelu.report.charts import charts, colour, pattern_pictures
from finelu.report.comparison import advice, cells, machine, method_name, names_by_reason, timing_note, verdict
from finelu.report.plots import figure_class
from finelu.report.tables import properties_in_words


def check_page(path: str) -> None:
    """Raise, before any work is done, if the page cannot be written to `path`."""
    check_writable(path, (".html", ".htm"))
    _template()
    figure_class()


def write_page(
    path: str, result: Comparison, A: CSR, matrix: str, rhs: str | None, rhs_name: str, version: str = ""
) -> None:
    """Write the page of a comparison: one file without links to others; needs matplotlib and jinja2."""
    ranked, found = result.ranked, stages(result.measurements)
    drawn = [m for m in ranked if m.history is not None or m.solved]
    name = matrix if matrix.startswith("gallery:") else Path(matrix).name
    text = _template().render(
        matrix=matrix,
        name=name,
        several=len({m.device for m in ranked}) > 1,
        version=version,
        date=datetime.now().strftime("%Y-%m-%d %H:%M"),
        machine=machine(result),
        result=result,
        left_out=names_by_reason(result),
        facts=properties_in_words(result.properties) | {"right-hand side": rhs_name},
        advice=advice(result, matrix, rhs),
        verdict=verdict(result),
        stages=_stages(found) if len(found) > 1 else [],
        rows=_rows(ranked, drawn, best(result.measurements)),
        columns=list(cells(ranked[0], None)) if ranked else [],
        note=timing_note(result),
        legend=[(k, m, method_name(m), colour(k)) for k, m in enumerate(drawn)],
        charts=charts(result, drawn, found[-1][0] if found else 1),
        pictures=pattern_pictures(result, A, name),
    )
    with replacing(path, "the page") as file:
        file.write(text.encode())


def _rows(
    ranked: Sequence[Measurement], drawn: Sequence[Measurement], cheapest: Measurement | None
) -> list[dict[str, Any]]:
    """The rows of the table; the bars of the shares are per cent of the longest total."""
    longest = max((m.total() for m in ranked if m.solved), default=0.0)
    rows = []
    for m in ranked:
        setup, solve = (100 * t / longest if m.solved and longest else 0.0 for t in m.times)
        rows.append(
            {
                "m": m,
                "method": method_name(m),
                "cells": cells(m, cheapest),
                "curve": colour(drawn.index(m)) if m in drawn else None,
                "setup_share": setup,
                "solve_share": solve,
            }
        )
    return rows


def _stages(found: Sequence[tuple[int, Measurement]]) -> list[tuple[str, Measurement, str]]:
    """The numbers of right-hand sides, in words, for which each is the best."""
    ends = [k - 1 for k, _ in found[1:]]
    numbers = [f"{k}" if k == end else f"{k} to {end}" for (k, _), end in zip(found, ends, strict=False)]
    numbers.append(f"{found[-1][0]} and more")
    return [(number, m, method_name(m)) for number, (_, m) in zip(numbers, found, strict=True)]


def _template() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise FineluError("the page needs jinja2, which is not installed; pip install 'finelu[report]'") from error
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html")
