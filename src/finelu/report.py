"""What a person sees: tables for the terminal, a line of bars for a residual history, and the convergence plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from finelu.errors import FineluError
from finelu.io import check_writable, replacing

BARS = "▁▂▃▄▅▆▇█"
PLOT_FORMATS = (".png", ".pdf", ".svg")


def table(title: str, rows: Mapping[str, str]) -> Table:
    """A rich table of names and values, a row each; the values are taken as they are, without markup."""
    result = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    result.add_column(style="bold", no_wrap=True)
    result.add_column(overflow="fold")
    for name, value in rows.items():
        result.add_row(name, Text(value))
    return result


def seconds(t: float) -> str:
    """A time for people, three digits: "1.23 s", "45.6 ms", "7.89 µs"."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if t >= scale:
            return f"{t / scale:.3g} {unit}" if t < 1000 else f"{t:.0f} s"
    return f"{t / 1e-6:.3g} µs"


def sparkline(history, width: int = 50) -> str:
    """The residual norms as a line of bars on a logarithmic scale, at most `width` characters wide.

    history : (k,) residual norms. Entries that are 0 or not finite take the smallest or the largest bar. "" if k = 0.
    """
    history = np.asarray(history, dtype=float)
    if history.size == 0:
        return ""
    if history.size > width:
        history = history[np.linspace(0, history.size - 1, width).round().astype(int)]
    shown = np.isfinite(history) & (history > 0)
    logs = np.log10(history, where=shown, out=np.where(history <= 0, -np.inf, np.inf))
    low, high = (logs[shown].min(), logs[shown].max()) if shown.any() else (0.0, 0.0)
    span = high - low if high > low else 1.0
    heights = np.clip((logs - low) / span, 0.0, 1.0) * (len(BARS) - 1)
    return "".join(BARS[round(h)] for h in heights)


def check_plot(path: str) -> None:
    """Raise, before any work is done, if a plot cannot be drawn to `path`."""
    check_writable(path, PLOT_FORMATS)
    _figure()


def plot_convergence(path: str, histories: Mapping[str, np.ndarray], rtol: float, title: str = "") -> None:
    """Draw relative residual norms over iterations, a curve for each name in `histories`, and the tolerance.

    path : ends in .png, .pdf or .svg; written beside and then renamed, so that no half-written file is left.
    histories : name -> residual norms (k,), divided by the norm of b. Raises FineluError without matplotlib.
    """
    figure = _figure()(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, history in histories.items():
        positive = np.where(np.asarray(history) > 0, history, np.nan)  # a residual of 0 has no place on a log axis
        axes.semilogy(positive, label=name, marker="." if len(positive) < 60 else "")
    axes.axhline(rtol, color="0.5", linestyle="--", linewidth=1.0, label=f"rtol = {rtol:g}")
    axes.set(xlabel="iteration", ylabel="residual norm / norm of b", title=title)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    with replacing(path) as file:
        figure.savefig(file, format=Path(path).suffix[1:].lower(), dpi=150)


def _figure():
    """matplotlib's Figure, which needs no display; matplotlib is imported only where something is drawn."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FineluError("a plot needs matplotlib, which is not installed; pip install 'finelu[report]'") from error
    return Figure
