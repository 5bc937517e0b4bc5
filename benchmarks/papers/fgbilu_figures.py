"""Figures 9 and 10 of the block ILU paper."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.record import Run
from benchmarks.papers.fgbilu_systems import ENTRIES
from benchmarks.papers.fgbilu_tables import TITLES, WORKS, columns, of_part, per_point


def _panels(run: Run, figure, part: str, across: str, label: str) -> bool:
    """Four panels, a line for each column that has points; across : the fact of a matrix that runs along the axis."""
    names, lines = of_part(run, part), {}
    for place, work in enumerate(("overall", *WORKS), 1):
        ax = figure.add_subplot(2, 2, place)
        for k, (title, which) in enumerate(columns(run).items()):
            points = [(run.matrices[m][across], per_point(run, m, work, **which)) for m in names]
            points = [(x, y) for x, y in points if y]
            if points:
                look = {"color": f"C{k % 10}", "marker": "os"[k // 10], "markersize": 3, "linewidth": 1}
                (lines[title],) = ax.loglog(*zip(*points, strict=True), **look)
        ax.set_title(TITLES[work], fontsize="small")
        ax.set_xlabel(label, fontsize="small")
        ax.set_ylabel("ns a point", fontsize="small")
        ax.set_xticks([run.matrices[m][across] for m in names], labels=[_tick(run.matrices[m], across) for m in names])
        ax.minorticks_off()
        ax.grid(True, linewidth=0.3)
        ax.tick_params(labelsize="x-small")
    if lines:
        figure.legend(lines.values(), lines.keys(), loc="outside right center", fontsize="x-small")
    return bool(lines)


def _tick(fact: dict[str, Any], across: str) -> str:
    return f"{fact['shape'][0]}^3" if across == "cells" else str(fact[across])


def figure_9(run: Run, figure: Any) -> bool:
    return _panels(run, figure, "sizes", "cells", "cells")


def figure_10(run: Run, figure: Any) -> bool:
    return _panels(run, figure, "unknowns", "n", "unknowns n")


FIGURES = {
    "9": ("ns a point against the domain, n = 6", figure_9),
    "10": (f"ns a point against n, n^2 IJK = {ENTRIES:g}", figure_10),
}
