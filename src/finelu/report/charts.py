"""The charts and pictures of the page, as its template draws them: places in SVG units, and images as data URIs."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finelu.compare import Comparison, Measurement
from finelu.compare.worker import BINS
from finelu.matrix import CSR
from finelu.properties import density, level_sizes
from finelu.report.comparison import method_name
from finelu.report.plots import binned

COLOURS = 8  # of curves; further curves are dashed
DASHES = ("", "7 4", "2 3", "9 3 2 3")
WIDTH, HEIGHT = 480, 350  # of a chart, in pixels
BOX = (
    58,
    30,
    WIDTH - 24,
    HEIGHT - 44,
)  # the frame: left, top, right, bottom; the names of the axes stand outside of it
LEFT, TOP, RIGHT, BOTTOM = BOX

Curve = tuple[int, Measurement, ArrayLike, ArrayLike]  # number, measurement, x (k,), y (k,)


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` (their log10 if `log`), drawn from `begin` to `end`; ticks : (place, text)."""

    low: float
    high: float
    log: bool
    begin: float
    end: float
    ticks: list[tuple[float, str]]

    def place(self, values: ArrayLike) -> NDArray[np.float64]:
        at = np.log10(values) if self.log else np.asarray(values, np.float64)
        return self.begin + (at - self.low) / (self.high - self.low) * (self.end - self.begin)

    def points(self, up: Axis, x: ArrayLike, y: ArrayLike) -> str:
        """The points (x, y) of a polyline, y on the axis `up`."""
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(self.place(x), up.place(y), strict=True))


def colour(k: int) -> tuple[int, str]:
    """The colour of curve k, one of `COLOURS`, and its dashes."""
    return k % COLOURS, DASHES[k // COLOURS % len(DASHES)]


def charts(result: Comparison, drawn: Sequence[Measurement], last_stage: int) -> list[dict[str, Any]]:
    """The residual over iterations and over time, and the time over the number of right-hand sides.

    last_stage : the number of right-hand sides from which on the last of `stages` is the best.
    """
    over_iterations: list[Curve] = []
    over_time: list[Curve] = []
    over_many: list[Curve] = []
    many = np.geomspace(1, 10.0 ** math.ceil(math.log10(max(100, 10 * last_stage))), 60)
    for k, m in enumerate(drawn):
        if m.history is not None:
            iteration, when, residual = m.history.T
            over_iterations.append((k, m, iteration, residual))
            over_time.append((k, m, when + m.setup, residual))
        if m.solved:
            setup, solve = m.times
            over_many.append((k, m, many, setup + many * solve))
    goal = ("rtol", result.rtol)
    return [
        chart("Residual over iterations", over_iterations, "iteration", "relative residual", goal=goal),
        chart("Residual over time, set-up included", over_time, "seconds", "relative residual", log_x=True, goal=goal),
        chart("Time for many right-hand sides", over_many, "right-hand sides", "seconds, set-up included", log_x=True),
    ]


def chart(
    title: str,
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    goal: tuple[str, float] | None = None,
) -> dict[str, Any]:
    """The data from which the template draws the curves; y is on a logarithmic axis.

    goal : (name, y) of a horizontal line.  Numbers without a place on a logarithmic axis are left out, residuals above
    10 are drawn at 10, and curves that did not reach the goal end at the end of the last curve that did.
    """
    kept = []
    ends = [np.max(np.asarray(x)) for _, m, x, _ in curves if m.solved]
    for k, m, given_x, given_y in curves:
        x, y = np.asarray(given_x, np.float64), np.asarray(given_y, np.float64)
        y = y if goal is None else np.minimum(y, 10.0)
        if ends:
            x = np.where(x <= 1.05 * max(ends), x, np.nan)
        shown = np.isfinite(x) & np.isfinite(y) & (y > 0) & ((x > 0) if log_x else True)
        if shown.any():
            kept.append((k, m, x[shown], y[shown]))
    if not kept:
        return {"title": title, "curves": []}
    heights = [*(y for *_, y in kept), *([np.array([goal[1]])] if goal else [])]
    x_low, x_high = min(x.min() for *_, x, _ in kept), max(x.max() for *_, x, _ in kept)
    y_low, y_high = min(y.min() for y in heights), max(y.max() for y in heights)
    across = (_log_axis if log_x else _linear_axis)(x_low, x_high, LEFT, RIGHT)
    up = _log_axis(y_low, y_high, BOTTOM, TOP)
    lines = [
        {"k": k, "m": m, "method": method_name(m), "colour": colour(k), "points": across.points(up, x, y)}
        for k, m, x, y in kept
    ]
    return {
        "title": title,
        "curves": lines,
        "width": WIDTH,
        "height": HEIGHT,
        "box": BOX,
        "x": across,
        "y": up,
        "x_label": x_label,
        "y_label": y_label,
        "goal": goal and {"name": goal[0], "at": float(up.place([goal[1]])[0])},
    }


def _log_axis(low: float, high: float, begin: float, end: float) -> Axis:
    low, high = math.log10(low), math.log10(high)
    if high - low < 0.5:
        middle = (low + high) / 2
        low, high = middle - 0.5, middle + 0.5
    step = max(1, math.ceil((high - low) / 7))
    decades = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    ticks = [(float(d), _power(d)) for d in decades if d % step == 0]
    if len(ticks) < 2:
        around = range(math.floor(low), math.ceil(high) + 1)
        fine = [(d + math.log10(f), f"{f * 10.0**d:.3g}") for d in around for f in (1, 2, 5)]
        ticks = [(at, text) for at, text in fine if low <= at <= high]
    return _axis(low, high, True, begin, end, ticks)


def _linear_axis(low: float, high: float, begin: float, end: float) -> Axis:
    high = high if high > low else low + 1
    raw = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(raw))
    width = next(f * unit for f in (1, 2, 5, 10) if f * unit >= raw)
    first, last = math.ceil(low / width), math.floor(high / width + 1e-6)
    return _axis(low, high, False, begin, end, [(k * width, f"{k * width:g}") for k in range(first, last + 1)])


def _axis(low: float, high: float, log: bool, begin: float, end: float, ticks: Sequence[tuple[float, str]]) -> Axis:
    scale = (end - begin) / (high - low)
    return Axis(low, high, log, begin, end, [(begin + (at - low) * scale, text) for at, text in ticks])


def _power(d: int) -> str:
    if -3 < d < 4:
        return f"{10.0**d:g}"
    return "10" + str(d).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def pattern_pictures(result: Comparison, A: CSR, name: str) -> list[dict[str, Any]]:
    """Pattern and levels of A, and of the factors of the best recipe that has an L and a U."""
    pictures = [_picture("A", f"{name}: {A.nnz} entries", density(A.tosparse(), BINS), A.n, *level_sizes(A))]
    for m in result.ranked:
        if m.solved and m.pictures is not None:
            text = f"L and U of {m.recipe}: {round((m.fill or 0.0) * A.nnz)} entries"
            p = m.pictures
            return [*pictures, _picture(m.recipe, text, p.density, A.n, p.lower, p.upper)]
    return pictures


def _picture(
    name: str, text: str, counts: NDArray[Any], n: int, lower: NDArray[Any], upper: NDArray[Any]
) -> dict[str, Any]:
    sides = {"lower": lower, "upper": upper}
    highest = max(int(sizes.max()) for sizes in sides.values())
    across = _linear_axis(0, max(sizes.size for sizes in sides.values()), LEFT, RIGHT)
    up = _log_axis(0.7, max(highest, 2) * 1.2, BOTTOM, TOP)
    steps = []
    for side, sizes in sides.items():
        mean, edges = binned(sizes)
        points = across.points(up, np.repeat(edges, 2)[1:-1], np.repeat(np.maximum(mean, 0.7), 2))
        end = f"{across.place(edges[-1:])[0]:.1f}"
        steps.append({"end": end, "side": side, "points": points, "levels": sizes.size, "mean": n / sizes.size})
    return {
        "name": name,
        "text": text,
        "pixels": counts.shape[0],
        "spy": _png(counts),
        "levels": steps,
        "width": WIDTH,
        "height": HEIGHT,
        "box": BOX,
        "x": across,
        "y": up,
    }


def _png(counts: NDArray[Any]) -> str:
    """A data URI: one colour that reads on light and on dark ground, the more opaque the more entries a square has."""
    from matplotlib.image import imsave

    image = np.zeros((*counts.shape, 4), np.uint8)
    image[..., :3] = (59, 130, 246)
    share = np.log1p(counts) / math.log1p(counts.max(initial=1))
    image[..., 3] = np.where(counts > 0, np.round(255 * (0.35 + 0.65 * share)), 0)
    file = io.BytesIO()
    imsave(file, image, format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
