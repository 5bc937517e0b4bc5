"""The time of a factorization by ParILUT, and the share of each of its building blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.harness.clock import cpu_time, elapsed, gpu_time, mark
from finelu.device import on_gpu
from finelu.kernels import kernels_for
from finelu.preconditioners import parilut as adaption

BLOCKS = (
    *("candidates", "add", "sweep after add", "analysis", "elimination", "select", "remove", "sweep after remove"),
    *("columns", "other"),
)
PROFILES = 3  # runs with every block timed; one where a run takes longer than SLOW_MS


class Blocks:
    """Times every call of a building block on the device of `like` while it is entered; by CUDA events on a GPU.

    calls : (label, ms) in their order.  ms() : label -> ms in all.  The labels are those of BLOCKS but "other"; a sweep
    is named by the change of the pattern before it, or "sweep" where there was none.
    """

    LABELS = {
        "candidates": "candidates",
        "add": "add",
        "remove": "remove",
        "magnitudes": "select",
        "columns_of": "columns",
        "values_at": "elimination",
        "ilu0": "elimination",
        "ic0": "elimination",
        "ilu0_analysis": "analysis",
        "ic0_analysis": "analysis",
    }
    PLACES = (
        ("candidates", "candidates"),
        *(("pattern", name) for name in ("add", "values_at", "remove", "magnitudes", "columns_of")),
        *(("elimination", name) for name in ("ilu0_analysis", "ilu0", "ic0_analysis", "ic0")),
        *(("sweeps", name) for name in ("sweep", "sweeps", "sweep_in_place")),
        ("selection", "Selection"),
    )

    def __init__(self, like):
        self.kernels, self.gpu = kernels_for(like), on_gpu(like)
        self._marks: list[tuple[str, Any, Any]] = []
        self._changed = ""

    def __enter__(self) -> Blocks:
        self._before = {place: getattr(getattr(self.kernels, place[0]), place[1]) for place in self.PLACES}
        for (family, name), function in self._before.items():
            timed = self._selection(function) if name == "Selection" else self._timed(name, function)
            setattr(getattr(self.kernels, family), name, timed)
        return self

    def __exit__(self, *_) -> None:
        for (family, name), function in self._before.items():
            setattr(getattr(self.kernels, family), name, function)

    def _timed(self, name: str, function: Callable) -> Callable:
        def call(*arguments, **named):
            if name in ("add", "remove"):
                self._changed = name
            label = self.LABELS.get(name) or ("sweep after " + self._changed if self._changed else "sweep")
            with self._between_marks(label):
                return function(*arguments, **named)

        return call

    def _selection(self, Selection: type) -> type:
        blocks = self

        class Timed(Selection):  # type: ignore[misc, valid-type]
            def __init__(self, *arguments, **named):
                with blocks._between_marks("select"):
                    super().__init__(*arguments, **named)

            def select(self, *arguments, **named):
                with blocks._between_marks("select"):
                    return super().select(*arguments, **named)

        return Timed

    @contextmanager
    def _between_marks(self, label: str) -> Iterator[None]:
        first = mark(self.gpu)
        yield
        self._marks.append((label, first, mark(self.gpu)))

    @property
    def calls(self) -> list[tuple[str, float]]:
        return [(label, elapsed(first, last)) for label, first, last in self._marks]

    def ms(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for label, ms in self.calls:
            sums[label] = sums.get(label, 0.0) + ms
        return sums

    def step_ms(self, step: int) -> float:
        """From the start of the candidates of a step, counted from 1, to the end of its second sweep."""
        begins = [k for k, (label, *_) in enumerate(self._marks) if label == "candidates"]
        ends = [k for k, (label, *_) in enumerate(self._marks) if label == "sweep after remove"]
        passes = len(ends) // (len(begins) - 1)  # of a sweep; candidates are also found after the last step
        return elapsed(self._marks[begins[step - 1]][1], self._marks[ends[passes * step - 1]][2])


@contextmanager
def without_solves(factors: type) -> Iterator[None]:
    """`factor` makes factors of this class without the analysis of their triangular solves; a trial solve gives r."""
    with patch.multiple(factors, SOLVES=dict.fromkeys("NTH", ()), _apply=lambda F, r, trans, out=None: r):
        yield


@contextmanager
def all_steps() -> Iterator[None]:
    """ParILUT and ParICT do all their steps, also where the residual grows: Ginkgo and the papers never stop."""
    with patch.multiple(adaption, DIVERGED=float("inf"), LAST_DIVERGED=float("inf")):
        yield


def factor_time(recipe, A, *, repeats: int | None = None):
    """(ms of the first call, Timing of later ones, the factors) of recipe.factor(A), solves not analysed."""
    gpu = on_gpu(A.data)
    begin = time.perf_counter()
    F = recipe.factor(A)
    if gpu:
        import cupy

        cupy.cuda.get_current_stream().synchronize()
    first = 1e3 * (time.perf_counter() - begin)
    with without_solves(type(F)):
        if gpu:
            timing = gpu_time(lambda i: recipe.factor(A), host=True)
        else:
            timing = cpu_time(lambda i: recipe.factor(A), repeats)
    return first, timing, F


def profile(recipe, A, factors: type, runs: int = PROFILES) -> dict[str, float]:
    """BLOCKS -> ms, medians of some runs; "other" is the time outside of the blocks."""
    found: list[dict[str, float]] = []
    with without_solves(factors):
        for _ in range(runs):
            with Blocks(A.data) as blocks:
                first = mark(blocks.gpu)
                recipe.factor(A)
                whole = elapsed(first, mark(blocks.gpu))
            ms = blocks.ms()
            found.append(ms | {"other": whole - sum(ms.values())})
    return {label: median(one.get(label, 0.0) for one in found) for label in dict.fromkeys(k for f in found for k in f)}
