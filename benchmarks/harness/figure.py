"""Figures by matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.record import Run
from finelu.errors import FineluError

Drawing = Callable[[Run, Any], bool]  # draws into a matplotlib figure; False where nothing of it was measured


def new_figure(width: float, height: float) -> Any:
    """An empty figure, sizes in inches; FineluError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FineluError("the figures need matplotlib; pip install 'finelu[bench]'.") from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path, title: str) -> None:
    """Write a figure as PNG, so that a reader finds the old file or the whole new one."""
    figure.suptitle(title, fontsize="medium")
    part = path.with_name(f".{path.stem}.part.png")
    figure.savefig(part, dpi=150)
    part.replace(path)


def draw(path: Path, title: str, drawing: Drawing, run: Run) -> bool:
    """A PNG; False, and none, where nothing of it was measured."""
    figure = new_figure(9.0, 5.0)
    if not drawing(run, figure):
        return False
    save(figure, path, title)
    return True
