"""What a person sees: tables for the terminal, plots, and the page of `finelu compare`, which needs no other file."""

from __future__ import annotations

import base64
import io
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from finelu.compare import BINS, Comparison, Measurement, best, crossover, script, stages
from finelu.errors import FineluError
from finelu.io import check_writable, replacing
from finelu.krylov import CYCLE
from finelu.matrix import CSR
from finelu.properties import Properties, density, dominance, level_sizes
from finelu.threads import get_num_threads

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
    """A time for people, three digits: "1.23 s", "45.6 ms", "7.89 µs", "0 s"."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if t >= scale:
            return f"{t / scale:.3g} {unit}" if t < 1000 else f"{t:.0f} s"
    return f"{t / 1e-6:.3g} µs" if t > 0 else "0 s"


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
    figure.legend(loc="outside lower center", ncols=2, frameon=False)  # where no curve is
    with replacing(path, "the plot") as file:
        figure.savefig(file, format=Path(path).suffix[1:].lower(), dpi=150)


def _figure():
    """matplotlib's Figure, which needs no display; matplotlib is imported only where something is drawn."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FineluError("a plot needs matplotlib, which is not installed; pip install 'finelu[report]'") from error
    return Figure


# ---- what a matrix is like


def properties_in_words(found: Properties) -> dict[str, str]:
    """Name -> text, a row each of the table of `finelu inspect`."""
    d = found.diagonal
    if d.missing:
        diagonal = f"missing in {d.missing} rows (first: row {d.first_missing})"
    elif d.zero:
        diagonal = f"zero in {d.zero} rows (first: row {d.first_zero})"
    else:
        diagonal = "full, all positive" if d.positive else "full, of mixed sign, negative or complex"
    return {
        "n": f"{found.n}",
        "nnz": f"{found.nnz} ({found.dtype})",
        "entries a row": f"{found.row_shortest} to {found.row_longest}, mean {found.row_mean:.2f}",
        "symmetric pattern": "yes" if found.pattern_symmetric else "no",
        "Hermitian": "yes" if found.hermitian else f"no (max |A - A^H| / max |A| = {found.asymmetry:.1e})",
        "diagonal": diagonal,
        "dominant rows": f"{100 * found.dominant_rows:.1f} %",
        "bandwidth": f"{found.bandwidth}",
        "levels": f"{found.levels_lower} lower, {found.levels_upper} upper",
        "block size": f"{found.block_size}" if found.block_size > 1 else "1 (no dense blocks found)",
    }


def plot_matrix(path: str, A: CSR, title: str = "") -> None:
    """Draw the pattern of A, the rows of its level sets, and how long and how dominant its rows are.

    path : ends in .png, .pdf or .svg.  A : on the host. Raises FineluError without matplotlib.
    """
    figure = _figure()(figsize=(9.0, 8.0), layout="constrained")
    figure.suptitle(title)
    (spy, levels), (rows, dominant) = figure.subplots(2, 2)
    counts = density(A.tosparse(), BINS)
    shown = np.where(counts > 0, counts, np.nan)
    image = spy.imshow(shown, cmap="viridis", norm="log", interpolation="none", extent=(0, A.n, A.n, 0))
    if counts.max(initial=0) > 1:
        figure.colorbar(image, ax=spy, shrink=0.8, label="entries in a square")
    spy.set(title=f"pattern, {A.nnz} entries", xlabel="column", ylabel="row")
    for name, style, sizes in zip(("lower", "upper"), ("-", "--"), level_sizes(A), strict=True):
        label = f"{name}: {sizes.size} levels, mean {A.n / sizes.size:.1f} rows"
        levels.stairs(*_binned(sizes), label=label, linestyle=style, linewidth=1.6)
    levels.set(title="rows of each level", xlabel="level", ylabel="rows", yscale="log")
    levels.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)  # below, where no curve is
    rows.hist(np.diff(A.indptr), bins=40, log=True)
    rows.set(title="lengths of rows", xlabel="entries", ylabel="rows")
    ratio = np.log10(np.clip(dominance(A), 1e-4, 1e4))
    dominant.hist(ratio, bins=np.linspace(-4, 4, 65), log=True)
    dominant.axvline(0, color="0.5", linestyle="--", linewidth=1.0)
    dominant.set(title="dominance of rows", xlabel="log10 of |diagonal| / sum beside it, within -4 to 4")
    with replacing(path, "the plot") as file:
        figure.savefig(file, format=Path(path).suffix[1:].lower(), dpi=130)


def _binned(sizes: np.ndarray, most: int = 240) -> tuple[np.ndarray, np.ndarray]:
    """The mean of `sizes` in at most `most` bins of equal width, and the edges of the bins."""
    edges = np.linspace(0, sizes.size, min(sizes.size, most) + 1).round().astype(int)
    return np.add.reduceat(sizes, edges[:-1]) / np.diff(edges), edges


# ---- the table of a comparison


def size(count: float) -> str:
    """Bytes for people, three digits: "1.23 MB"."""
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {unit}"
    return f"{count:.0f} B"


def method_name(m: Measurement) -> str:
    if m.name == "solve":  # the last name in "IC0() with cg", or what was to choose it
        return m.chosen.rpartition(" ")[2] or m.method
    return f"gmres({CYCLE})" if m.method == "gmres" else m.method


def _cells(m: Measurement, cheapest: Measurement | None) -> dict[str, tuple[str, float | None]]:
    """Column -> the text and the number that it is sorted by."""

    def cell(value, text) -> tuple[str, float | None]:
        return ("", None) if value is None else (text(value), float(value))

    pays = None if cheapest is None else crossover(m, cheapest)
    total = m.total() if m.solved else None
    return {
        "fill": cell(m.fill, lambda v: f"{v:.3g}"),
        "memory": cell(m.memory, size),
        "set-up": cell(m.setup, lambda v: "each time" if m.name == "solve" else seconds(v)),
        "iterations": cell(None if m.method == "direct" else m.iterations, str),
        "a solve": cell(m.solve, seconds),
        "total": cell(total, seconds),
        "pays from": cell(pays, str) if m.solved and pays is not None else ("never" if m.solved else "", None),
        "residual": cell(m.residual, lambda v: f"{v:.1e}"),
    }


def print_comparison(console: Console, result: Comparison, matrix: str, rhs: str | None, page: str | None) -> None:
    """The table, why some rows have no figures, and what to take."""
    cheapest = best(result.measurements)
    devices = len({m.device for m in result.measurements}) > 1
    if not console.is_terminal:
        console.width = max(console.width, 140)  # nobody folds a file
    names = list(_cells(result.measurements[0], None)) if result.measurements else []
    narrow: list[str] = []
    unbound = console.options.update(width=10_000)
    while True:
        shown = Table(
            title=Text(matrix), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
        )
        for name in ("recipe", "method", *(["on"] if devices else [])):
            shown.add_column(name, no_wrap=True)
        for name in names:
            shown.add_column({"iterations": "iter."}.get(name, name), justify="right", no_wrap=True)
        shown.add_column("outcome", no_wrap=True)
        for m in result.ranked:
            cells = _cells(m, cheapest)
            on = [m.device] if devices else []
            shown.add_row(*map(Text, (m.recipe, method_name(m), *on, *(cells[name][0] for name in names), m.outcome)))
        if (
            len(narrow) == len(DISPENSABLE)
            or console.measure(shown, options=unbound).maximum <= console.width
            or not names
        ):
            break
        narrow.append(DISPENSABLE[len(narrow)])
        names.remove(narrow[-1])
    console.print(shown)
    if narrow:
        console.print(Text(f"the terminal is too narrow for: {', '.join(narrow)}"), soft_wrap=True)
    for m in result.ranked:
        if m.outcome in TOLD:
            reason = m.reason.split("; ")[0]
            console.print(Text(f"{m.recipe}, {method_name(m)}, {m.device}: {reason}"), soft_wrap=True)
    for why, left in _by_reason(result).items():
        console.print(Text(f"does not apply: {', '.join(left)}: {why}"), soft_wrap=True)
    for m in result.ranked:
        if m.chosen and m.solved:
            console.print(Text(f"fl.solve took {m.chosen}, {m.device}; its set-up is in each call"), soft_wrap=True)
    console.print(Text(timing_note(result)), soft_wrap=True)
    for title, text, code in advice(result, matrix, rhs):
        console.print()
        console.print(Text(f"{title}: {text}", style="bold"), soft_wrap=True)
        if code:
            console.print(Text(code.rstrip()), soft_wrap=True)
    if page is not None:
        console.print(Text(f"\nwritten: {page}"), soft_wrap=True)


def _by_reason(result: Comparison) -> dict[str, list[str]]:
    """Why recipes do not apply -> their names."""
    names: dict[str, list[str]] = {}
    for name, why in result.left_out.items():
        names.setdefault(why, []).append(name)
    return names


DISPENSABLE = ("residual", "memory", "total", "fill")  # columns, in the order in which a narrow terminal loses them
TOLD = ("no factors", "error", "ended", "out of memory", "inaccurate", "breakdown", "indefinite")


def timing_note(result: Comparison) -> str:
    spent = max(result.seconds - result.compile_seconds, 0.0)
    note = f"measured in {seconds(spent)} of {seconds(result.budget)}; figures are the fastest of up to 3 runs"
    if result.compile_seconds > 0.005:
        note += f"; both without the {seconds(result.compile_seconds)} that compiling or fetching kernels took, once"
    return note + ("; interrupted" if result.interrupted else "")


def how(m: Measurement) -> str:
    """Method and recipe in words."""
    if m.name == "splu":
        return f"SciPy's splu ({m.permc})"
    if m.name == "solve":
        return f"fl.solve, which takes {m.chosen}" if m.chosen else "fl.solve"
    recipes = {"none": "no preconditioner", "spilu": "SciPy's spilu"}
    return f"{method_name(m)} with {recipes.get(m.name, m.recipe)}"


def advice(result: Comparison, matrix: str, rhs: str | None) -> list[tuple[str, str, str]]:
    """What to take, as (for how many right-hand sides, in words, as Python), for one and for many."""
    found = stages(result.measurements)
    if not found:
        tried = [m for m in result.ranked if m.residual is not None]
        nearest = f" {how(tried[0])} came nearest, {tried[0].residual:.1e}." if tried else ""
        text = f"nothing reached a relative residual of {result.rtol:g}.{nearest} Give more time, or a larger rtol."
        return [("No recommendation", text, "")]

    def words(m: Measurement) -> str:
        on = "GPU" if m.device == "cuda" else "CPU"
        if m.name == "solve":
            return f"{how(m)}, on the {on}: {seconds(m.solve or 0.0)} a call, set-up included"
        return f"{how(m)} on the {on}: {seconds(m.setup or 0.0)} to set up, {seconds(m.solve or 0.0)} a solve"

    (_, one), (first, many) = found[0], found[-1]
    title = "For one right-hand side and for many" if one is many else "For one right-hand side"
    result_ = [(title, words(one), script(one, matrix, rhs, result.rtol))]
    if one is not many:
        result_.append((f"For {first} and more", words(many), script(many, matrix, rhs, result.rtol)))
    return result_


def comparison_facts(result: Comparison, matrix: str, rhs: str | None) -> dict[str, Any]:
    """Everything but the pictures, for JSON."""
    cheapest, found = best(result.measurements), stages(result.measurements)
    rows = []
    for m in result.ranked:
        row = {name: value for name, value in vars(m).items() if name not in ("history", "pictures")}
        row["total"] = m.total() if m.solved else None
        row["pays_from"] = None if cheapest is None else crossover(m, cheapest)
        row["history"] = [] if m.history is None else m.history
        rows.append(row)
    return {
        "machine": machine(result),
        "properties": asdict(result.properties),
        "rtol": result.rtol,
        "restart": CYCLE,
        "budget": result.budget,
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
        "interrupted": result.interrupted,
        "measurements": rows,
        "left_out": result.left_out,
        "stages": [{"from": k, "recipe": m.recipe, "method": m.method, "device": m.device} for k, m in found],
        "recommendation": [{"for": t, "text": w, "code": c} for t, w, c in advice(result, matrix, rhs)],
    }


def machine(result: Comparison) -> str:
    """Where it was measured, in a line."""
    name = platform.processor()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):  # another system than Linux on x86
        pass
    text = f"{name or platform.machine()}, {get_num_threads()} threads"
    if any(m.device == "cuda" for m in result.measurements):
        from finelu.device import require_gpu

        cupy = require_gpu()
        text += f"; {cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)['name'].decode()}"
    return text


# ---- the page


CURVES = 8  # colours; further curves are dashed
CHART = (480, 350)
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 30, 44  # the names of the axes stand outside of the frame, where no curve is
DASHES = ("", "7 4", "2 3", "9 3 2 3")


def check_page(path: str) -> None:
    """Raise, before any work is done, if the page cannot be written to `path`."""
    check_writable(path, (".html", ".htm"))
    _template()
    _figure()


def write_page(
    path: str, result: Comparison, A: CSR, matrix: str, rhs: str | None, rhs_name: str, version: str = ""
) -> None:
    """Write the page of a comparison: one file without links to others; needs matplotlib and jinja2."""
    cheapest = best(result.measurements)
    ranked = result.ranked
    drawn = [m for m in ranked if m.history is not None or m.solved]
    longest = max((m.total() for m in ranked if m.solved), default=0.0)
    rows = []
    for m in ranked:
        setup = 100 * (m.setup or 0.0) / longest if m.solved and longest else 0.0
        rows.append(
            {
                "m": m,
                "method": method_name(m),
                "cells": _cells(m, cheapest),
                "curve": _colour(drawn.index(m)) if m in drawn else None,
                "setup_share": setup,
                "solve_share": 100 * m.total() / longest - setup if m.solved and longest else 0.0,
            }
        )
    found = stages(result.measurements)
    ends = [k - 1 for k, _ in found[1:]]
    parts = [
        (f"{k}" if end == k else f"{k} to {end}" if end else f"{k} and more", m, method_name(m))
        for (k, m), end in zip(found, [*ends, 0][: len(found)], strict=True)
    ]
    name = matrix if matrix.startswith("gallery:") else Path(matrix).name
    text = _template().render(
        matrix=matrix,
        name=name,
        several=len({m.device for m in ranked}) > 1,
        version=version,
        date=datetime.now().strftime("%Y-%m-%d %H:%M"),
        machine=machine(result),
        rhs=rhs_name,
        result=result,
        left_out=_by_reason(result),
        facts=properties_in_words(result.properties) | {"right-hand side": rhs_name},
        advice=advice(result, matrix, rhs),
        stages=parts if len(parts) > 1 else [],
        rows=rows,
        columns=list(_cells(ranked[0], None)) if ranked else [],
        note=timing_note(result),
        legend=[(k, m, method_name(m), _colour(k)) for k, m in enumerate(drawn)],
        charts=_charts(result, drawn, found),
        pictures=_pattern_pictures(result, A, name),
        restart=CYCLE,
    )
    with replacing(path, "the page") as file:
        file.write(text.encode())


def _template():
    try:
        import jinja2
    except ImportError as error:
        raise FineluError("the page needs jinja2, which is not installed; pip install 'finelu[report]'") from error
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html")


def _colour(k: int) -> tuple[int, str]:
    """The colour of a curve, of `CURVES`, and how it is dashed."""
    return k % CURVES, DASHES[k // CURVES % len(DASHES)]


def _charts(result: Comparison, drawn: Sequence[Measurement], found) -> list[dict[str, Any]]:
    """The residual over iterations and over time, and the time over the number of right-hand sides."""
    over_iterations, over_time, over_many = [], [], []
    last = 10.0 ** math.ceil(math.log10(max(100, 10 * found[-1][0]))) if found else 100.0
    for k, m in enumerate(drawn):
        if m.history is not None:
            iteration, when, residual = m.history.T
            over_iterations.append((k, m, iteration, residual))
            over_time.append((k, m, when + m.setup, residual))
        if m.solved:
            many = np.geomspace(1, last, 60)
            over_many.append((k, m, many, (m.setup or 0.0) + many * (m.solve or 0.0)))
    goal = ("rtol", result.rtol)
    return [
        chart("Residual over iterations", over_iterations, "iteration", "relative residual", goal=goal),
        chart("Residual over time, set-up included", over_time, "seconds", "relative residual", log_x=True, goal=goal),
        chart("Time for many right-hand sides", over_many, "right-hand sides", "seconds, set-up included", log_x=True),
    ]


def chart(title: str, curves, x_label: str, y_label: str, *, log_x: bool = False, goal=None) -> dict[str, Any]:
    """What the template needs to draw curves (number, measurement, x (k,), y (k,)); y on a logarithmic axis.

    goal : (name, y) of a horizontal line.  What has no place on a logarithmic axis is left out, residuals above 10 are
    drawn at 10, and curves that did not reach the goal end where the last of those that did ends.
    """
    kept = []
    ends = [np.max(x) for _, m, x, _ in curves if m.solved]
    for k, m, x, y in curves:
        x, y = np.asarray(x, float), np.minimum(np.asarray(y, float), np.inf if goal is None else 10.0)
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
    across = _axis(x_low, x_high, log_x, LEFT, CHART[0] - RIGHT)
    up = _axis(y_low, y_high, True, CHART[1] - BOTTOM, TOP)
    lines = []
    for k, m, x, y in kept:
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across["place"](x), up["place"](y), strict=True))
        lines.append({"k": k, "m": m, "method": method_name(m), "colour": _colour(k), "points": points})
    return {
        "title": title,
        "curves": lines,
        "width": CHART[0],
        "height": CHART[1],
        "box": (LEFT, TOP, CHART[0] - RIGHT, CHART[1] - BOTTOM),
        "x": across,
        "y": up,
        "x_label": x_label,
        "y_label": y_label,
        "goal": goal and {"name": goal[0], "at": float(up["place"](np.array([goal[1]]))[0])},
    }


def _axis(low: float, high: float, log: bool, begin: float, end: float) -> dict[str, Any]:
    """An axis from `low` to `high` drawn from `begin` to `end`: its ticks (place, text), and where a value goes."""
    if log:
        low, high = math.log10(low), math.log10(high)
        if high - low < 0.5:
            middle = (low + high) / 2
            low, high = middle - 0.5, middle + 0.5
        step = max(1, math.ceil((high - low) / 7))
        ticks = [
            (float(d), _power(d)) for d in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1) if d % step == 0
        ]
        if len(ticks) < 2:
            decades = range(math.floor(low), math.ceil(high) + 1)
            fine = [(d + math.log10(f), f"{f * 10.0**d:.3g}") for d in decades for f in (1, 2, 5)]
            ticks = [(at, text) for at, text in fine if low <= at <= high]
    else:
        high = high if high > low else low + 1
        raw = (high - low) / 6
        unit = 10.0 ** math.floor(math.log10(raw))
        width = next(f * unit for f in (1, 2, 5, 10) if f * unit >= raw)
        first, last = math.ceil(low / width), math.floor(high / width + 1e-6)
        ticks = [(k * width, f"{k * width:g}") for k in range(first, last + 1)]

    def place(values):
        values = np.log10(values) if log else np.asarray(values, float)
        return begin + (values - low) / (high - low) * (end - begin)

    scale = (end - begin) / (high - low)
    return {
        "ticks": [(begin + (at - low) * scale, text) for at, text in ticks],
        "place": place,
        "low": low,
        "high": high,
        "log": log,
    }


def _power(d: int) -> str:
    if -3 < d < 4:
        return f"{10.0**d:g}"
    return "10" + str(d).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _pattern_pictures(result: Comparison, A: CSR, name: str) -> list[dict[str, Any]]:
    """Pattern and levels of A, and of the factors of the best recipe that has an L and a U."""
    lower, upper = level_sizes(A)
    pictures = [_picture("A", f"{name}: {A.nnz} entries", density(A.tosparse(), BINS), A.n, lower, upper)]
    with_factors = [m for m in result.ranked if m.solved and m.pictures is not None]
    if with_factors:
        m, p = with_factors[0], with_factors[0].pictures
        assert p is not None
        text = f"L and U of {m.recipe}: {round((m.fill or 0.0) * A.nnz)} entries"
        pictures.append(_picture(m.recipe, text, p.density, A.n, p.lower, p.upper))
    return pictures


def _picture(name: str, text: str, counts: np.ndarray, n: int, lower: np.ndarray, upper: np.ndarray) -> dict[str, Any]:
    places = ((lower, "lower"), (upper, "upper"))
    high = max(int(sizes.max()) for sizes, _ in places)
    across = _axis(0, max(sizes.size for sizes, _ in places), False, LEFT, CHART[0] - RIGHT)
    up = _axis(0.7, max(high, 2) * 1.2, True, CHART[1] - BOTTOM, TOP)
    steps = []
    for sizes, side in places:
        mean, edges = _binned(sizes)
        x = np.repeat(across["place"](edges), 2)[1:-1]
        y = np.repeat(up["place"](np.maximum(mean, 0.7)), 2)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        end = f"{across['place'](edges[-1]):.1f}"
        steps.append({"end": end, "side": side, "points": points, "levels": sizes.size, "mean": n / sizes.size})
    return {
        "name": name,
        "text": text,
        "n": n,
        "pixels": counts.shape[0],
        "spy": _png(counts),
        "levels": steps,
        "width": CHART[0],
        "height": CHART[1],
        "box": (LEFT, TOP, CHART[0] - RIGHT, CHART[1] - BOTTOM),
        "x": across,
        "y": up,
    }


def _png(counts: np.ndarray) -> str:
    """A data URI: one colour that reads on light and on dark ground, the more opaque the more entries a square has."""
    from matplotlib.image import imsave

    image = np.zeros((*counts.shape, 4), np.uint8)
    image[..., :3] = (59, 130, 246)
    largest = counts.max(initial=1)
    share = np.log1p(counts) / math.log1p(largest)
    image[..., 3] = np.where(counts > 0, np.round(255 * (0.35 + 0.65 * share)), 0)
    file = io.BytesIO()
    imsave(file, image, format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
