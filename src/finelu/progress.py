"""The progress that a command, or `solve` with progress=True, shows while it works: on stderr, or in a notebook."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Progress:
    """A spinner and a bar on stderr; without `bar`, a rich.progress.Progress, nothing is shown."""

    def __init__(self, bar: Any = None):
        self.bar = bar
        self.task = bar.add_task("starting", total=None) if bar is not None else None

    @property
    def enabled(self) -> bool:
        return self.bar is not None

    @property
    def text(self) -> str:
        return str(self.bar.tasks[0].description) if self.bar is not None else ""

    def stage(self, text: str, done: int | None = None, of: int | None = None) -> None:
        if self.bar is not None:
            self.bar.update(self.task, description=text, completed=done, total=of)

    def watcher(self, method: str, norm_b: float, rtol: float, maxiter: float) -> Callable[[int, float], None]:
        """A `watch` for a Krylov method: the bar shows the larger part of the decades gained or the iterations made."""
        wanted = -math.log10(rtol) if 0 < rtol < 1 else math.inf

        def watch(iteration: int, residual_norm: float) -> None:
            measurable = 0 < residual_norm < math.inf and norm_b > 0
            gained = -math.log10(residual_norm / norm_b) if measurable else 0.0
            done = max(gained / wanted, iteration / maxiter)
            text = f"{method}: iteration {iteration}, relative residual {residual_norm / (norm_b or 1.0):.2e}"
            self.bar.update(self.task, description=text, total=1.0, completed=min(max(done, 0.0), 1.0))

        return watch

    @contextmanager
    def compile_clock(self) -> Iterator[Callable[[], float]]:
        """`finelu.compiling.compile_clock`; a stage of its own while kernels are compiled."""
        from finelu.compiling import compile_clock

        before = ""

        def show(seconds: float | None) -> None:
            nonlocal before
            if seconds is None:
                before = self.text
                self.stage("compiling or loading the CPU kernels, at their first use")
            else:
                self.stage(before)

        with compile_clock(show) as compiled:
            yield compiled


@contextmanager
def progress(as_json: bool) -> Iterator[Progress]:
    """Progress on a terminal; nothing is shown with --json, or if stderr is no terminal."""
    with bar(not as_json and sys.stderr.isatty()) as shown:
        yield shown


@contextmanager
def bar(wanted: bool) -> Iterator[Progress]:
    """Progress on a terminal or in a notebook; nothing is shown if it is not wanted."""
    if not wanted:
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Bar(
        *columns, console=console, transient=True, disable=not (console.is_terminal or console.is_jupyter)
    ) as made:
        yield Progress(made)
