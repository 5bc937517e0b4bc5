"""A comparison in words: its table, the recommendation, and its facts for JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from finelu.auto.rates import gpu, processor
from finelu.compare import Comparison, Measurement, best, crossover, margin, script, stages
from finelu.errors import counted
from finelu.krylov import CYCLE, METHODS
from finelu.report.tables import seconds, size
from finelu.threads import get_num_threads

DISPENSABLE = ("residual", "memory", "total", "fill")  # columns, in the order in which a narrow terminal loses them
SINGULAR = ("singular", "numerically_singular")  # outcomes of `finelu.solve` where no x solves A x = b
EXPLAINED = ("no factors", "error", "ended", "out of memory", "inaccurate", "breakdown", "indefinite")  # outcomes
SCHEMA = 1  # of the facts for JSON: docs/compare.md lists them
FILE_WIDTH = 140  # least characters of a table that is not printed to a terminal

T = TypeVar("T", int, float)


def method_name(m: Measurement) -> str:
    if m.name == "solve":  # the last name in "IC0() with cg", or "auto" where nothing was chosen
        return m.chosen.rpartition(" ")[2] or m.method
    kind = METHODS.get(m.method)  # None for "direct"
    return f"{m.method}({CYCLE})" if kind is not None and kind.restarts else m.method


def cells(m: Measurement, cheapest: Measurement | None) -> dict[str, tuple[str, float | None]]:
    """Column -> the text and the number that it is sorted by."""

    def cell(value: T | None, text: Callable[[T], str]) -> tuple[str, float | None]:
        return ("", None) if value is None else (text(value), float(value))

    pays = None if cheapest is None else crossover(m, cheapest)
    return {
        "fill": cell(m.fill, lambda v: f"{v:.3g}"),
        "memory": cell(m.memory, size),
        "set-up": cell(m.setup, lambda v: "each time" if m.name == "solve" else seconds(v)),
        "iterations": cell(None if m.method == "direct" else m.iterations, str),
        "a solve": cell(m.solve, seconds),
        "total": cell(m.total() if m.solved else None, seconds),
        "pays from": cell(pays, str) if m.solved and pays is not None else ("never" if m.solved else "", None),
        "residual": cell(m.residual, lambda v: f"{v:.1e}"),
    }


def print_comparison(console: Console, result: Comparison, matrix: str, rhs: str | None, page: str | None) -> None:
    """Print the table, the reasons for rows without figures, and the recommended recipe."""

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    shown, left_out = _fitting_table(console, result, matrix)
    console.print(shown)
    if left_out:
        line(f"the terminal is too narrow for: {', '.join(left_out)}")
    for m in result.ranked:
        if m.outcome in EXPLAINED:
            line(f"{m.recipe}, {method_name(m)}, {m.device}: {m.reason.split('; ')[0]}")
    for why, names in names_by_reason(result).items():
        line(f"does not apply: {', '.join(names)}: {why}")
    for m in result.ranked:
        if m.chosen and m.solved:
            line(f"fl.solve took {m.chosen}, {m.device}; its set-up is in each call")
    if sum(m.solved for m in result.measurements) > 1 and "pays from" not in left_out:
        line("pays from: the number of right-hand sides from which on a row costs less than the first row")
    line(timing_note(result))
    if result.not_kept:
        line(f"for another call nothing is kept: {result.not_kept}")
    for text in verdict(result):
        line(text)
    for title, text, code in advice(result, matrix, rhs):
        console.print()
        line(f"{title}: {text}", style="bold")
        if code:
            line(code.rstrip())
    if page is not None:
        line(f"\nwritten: {page}")


def _fitting_table(console: Console, result: Comparison, title: str) -> tuple[Table, list[str]]:
    """The table without the columns that the console is too narrow for, and the names of these."""
    cheapest = best(result.measurements)
    columns = list(cells(result.measurements[0], None)) if result.measurements else []
    unbound = console.options.update(width=10_000)
    for count in range(len(DISPENSABLE) + 1):
        left_out = list(DISPENSABLE[:count])
        kept = [name for name in columns if name not in left_out]
        shown = _table(result, cheapest, kept, title)
        if not columns or console.measure(shown, options=unbound).maximum <= console.width:
            break
    return shown, left_out


def _table(result: Comparison, cheapest: Measurement | None, columns: list[str], title: str) -> Table:
    devices = len({m.device for m in result.measurements}) > 1
    shown = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("recipe", "method", *(["on"] if devices else [])):
        shown.add_column(name, no_wrap=True)
    for name in columns:
        shown.add_column({"iterations": "iter."}.get(name, name), justify="right", no_wrap=True)
    shown.add_column("outcome", no_wrap=True)
    for m in result.ranked:
        texts = cells(m, cheapest)
        on = [m.device] if devices else []
        shown.add_row(*map(Text, (m.recipe, method_name(m), *on, *(texts[name][0] for name in columns), m.outcome)))
    return shown


def names_by_reason(result: Comparison) -> dict[str, list[str]]:
    """Reason why recipes do not apply -> their names."""
    names: dict[str, list[str]] = {}
    for name, why in result.left_out.items():
        names.setdefault(why, []).append(name)
    return names


def timing_note(result: Comparison) -> str:
    spent = max(result.seconds - result.compile_seconds, 0.0)
    rows = len(result.measurements)
    note = f"measured in {seconds(spent)} of {seconds(result.budget)}"
    if result.kept:
        which = f"all {rows}" if result.kept == rows else f"{result.kept} of {rows}"
        note += f"; {which} rows are of an earlier call (--again measures anew)"
    note += "; figures are medians of the rounds, or of the first look where there was none"
    if result.compile_seconds > 0.005:
        note += f"; both without the {seconds(result.compile_seconds)} that compiling or fetching kernels took, once"
    return note + ("; interrupted" if result.interrupted else "")


def _how(m: Measurement) -> str:
    """Method and recipe in words."""
    if m.name == "splu":
        return f"SciPy's splu ({m.permc})"
    if m.name == "solve":
        return f"fl.solve, which takes {m.chosen}" if m.chosen else "fl.solve"
    recipes = {"none": "no preconditioner", "spilu": "SciPy's spilu"}
    return f"{method_name(m)} with {recipes.get(m.name, m.recipe)}"


def advice(result: Comparison, matrix: str, rhs: str | None) -> list[tuple[str, str, str]]:
    """The recommendation for one right-hand side and for many, each as (the number of them, in words, as Python)."""
    found = stages(result.measurements)
    if not found:
        if any(m.name == "solve" and m.outcome in SINGULAR for m in result.measurements):
            return [
                ("No recommendation", f"A is singular, and no x solves A x = b; finelu solve {matrix} says why.", "")
            ]
        tried = [m for m in result.ranked if m.residual is not None]
        nearest = f" {_how(tried[0])} came nearest, {tried[0].residual:.1e}." if tried else ""
        text = f"nothing reached a relative residual of {result.rtol:g}.{nearest} Give more time, or a larger rtol."
        return [("No recommendation", text, "")]

    def words(m: Measurement) -> str:
        on = "GPU" if m.device == "cuda" else "CPU"
        setup, solve = map(seconds, m.times)
        if m.name == "solve":
            return f"{_how(m)}, on the {on}: {solve} a call, set-up included"
        return f"{_how(m)} on the {on}: {setup} to set up, {solve} a solve"

    (_, one), (first, many) = found[0], found[-1]
    title = "For one right-hand side and for many" if one is many else "For one right-hand side"
    advised = [(title, words(one), script(one, matrix, rhs, result.rtol))]
    if one is not many:
        advised.append((f"For {first} right-hand sides and more", words(many), script(many, matrix, rhs, result.rtol)))
    return advised


def verdict(result: Comparison) -> list[str]:
    """By how much the cheapest wins, and how sure that is; and how the devices compare where both were measured."""
    won, lines = margin(result.measurements), []
    if won is not None:
        first, second = _how(won.first), _how(won.second)
        sure = f", a {100 * won.confidence:.0f} % interval for the median" if won.rounds > 1 else ""
        low_high = f"{won.low:.3g} to {won.high:.3g} in {counted(won.rounds, 'round')}{sure}"
        if not won.rounds:
            lines.append(f"{second} takes {won.ratio:.3g} times as long as {first}, by a single look at each.")
        elif won.low > 1:
            lines.append(f"{second} takes {won.ratio:.3g} times as long as {first} ({low_high}).")
        else:
            lines.append(f"Either may be faster, {first} or {second}: time of the second over the first {low_high}.")
    places = {device: best([m for m in result.measurements if m.device == device]) for device in ("cuda", "cpu")}
    on_gpu, on_cpu = places["cuda"], places["cpu"]
    if on_gpu is not None and on_cpu is not None:
        gain = on_cpu.total() / on_gpu.total()
        ratio = f"{gain:.3g} times" if gain >= 1 else f"1/{1 / gain:.3g}"
        lines.append(f"GPU and CPU: {_how(on_gpu)} on the GPU is {ratio} as fast as {_how(on_cpu)} on the CPU.")
    return lines


def comparison_facts(result: Comparison, matrix: str, rhs: str | None) -> dict[str, Any]:
    """All facts except the pictures, for JSON."""
    cheapest, found = best(result.measurements), stages(result.measurements)
    rows = []
    for m in result.ranked:
        row = {name: value for name, value in vars(m).items() if name not in ("history", "pictures")}
        row["total"] = m.total() if m.solved else None
        row["pays_from"] = None if cheapest is None else crossover(m, cheapest)
        row["history"] = [] if m.history is None else m.history
        rows.append(row)
    won = margin(result.measurements)
    return {
        "schema": SCHEMA,
        "machine": machine(result),
        "properties": asdict(result.properties),
        "rtol": result.rtol,
        "restart": CYCLE,
        "budget": result.budget,
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
        "interrupted": result.interrupted,
        "kept": result.kept,
        "file": result.file,
        "not_kept": result.not_kept,
        "measurements": rows,
        "left_out": result.left_out,
        "margin": won
        and {
            "first": _facts_of_row(won.first),
            "second": _facts_of_row(won.second),
            "ratio": won.ratio,
            "low": won.low,
            "high": won.high,
            "rounds": won.rounds,
            "confidence": won.confidence,
        },
        "stages": [{"from": k, **_facts_of_row(m)} for k, m in found],
        "recommendation": [{"for": t, "text": w, "code": c} for t, w, c in advice(result, matrix, rhs)],
    }


def _facts_of_row(m: Measurement) -> dict[str, str]:
    return {"recipe": m.recipe, "method": m.method, "device": m.device}


def machine(result: Comparison) -> str:
    """The processor, threads and GPU of the measurements, in one line."""
    text = f"{processor()}, {get_num_threads()} threads"
    return f"{text}; {gpu()}" if any(m.device == "cuda" for m in result.measurements) else text
