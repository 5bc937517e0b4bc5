"""Tables for the terminal, and the words and units in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich import box
from rich.table import Table
from rich.text import Text

from finelu.errors import counted
from finelu.properties import Properties

BARS = "▁▂▃▄▅▆▇█"
CLEARLY = 0.95  # times the mean |i - j| of an order, from which on another one is advised


def table(title: str, rows: Mapping[str, str]) -> Table:
    """A rich table of names and values, one per row; the values are printed as they are, without markup."""
    result = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    result.add_column(style="bold", no_wrap=True)
    result.add_column(overflow="fold")
    for name, value in rows.items():
        result.add_row(name, Text(value))
    return result


def seconds(t: float) -> str:
    """A time in three digits: "1.23 s", "45.6 ms", "7.89 µs", "0 s"."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if t >= scale:
            return f"{t / scale:.3g} {unit}" if t < 1000 else f"{t:.0f} s"
    return f"{t / 1e-6:.3g} µs" if t > 0 else "0 s"


def size(count: float) -> str:
    """A number of bytes in three digits: "1.23 MB"."""
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {unit}"
    return f"{count:.0f} B"


def sparkline(history: ArrayLike, width: int = 50) -> str:
    """The residual norms as a line of bars on a logarithmic scale, at most `width` characters wide.

    history : (k,) residual norms. Entries that are 0 or not finite take the smallest or the largest bar. "" if k = 0.
    """
    norms = np.asarray(history, dtype=np.float64)
    if norms.size == 0:
        return ""
    if norms.size > width:
        norms = norms[np.linspace(0, norms.size - 1, width).round().astype(int)]
    shown = np.isfinite(norms) & (norms > 0)
    logs = np.log10(norms, where=shown, out=np.where(norms <= 0, -np.inf, np.inf))
    low, high = (logs[shown].min(), logs[shown].max()) if shown.any() else (0.0, 0.0)
    span = high - low if high > low else 1.0
    heights = np.clip((logs - low) / span, 0.0, 1.0) * (len(BARS) - 1)
    return "".join(BARS[round(h)] for h in heights)


def properties_in_words(found: Properties) -> dict[str, str]:
    """Name -> text, one for each row of the table of `finelu inspect`."""
    d = found.diagonal
    if d.missing:
        diagonal = f"missing in {counted(d.missing, 'row')} (first: row {d.first_missing})"
    elif d.zero:
        diagonal = f"zero in {counted(d.zero, 'row')} (first: row {d.first_zero})"
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
        "mean |i - j|": _distances(found),
        "levels": f"{found.levels_lower} lower, {found.levels_upper} upper",
        "block size": f"{found.block_size}" if found.block_size > 1 else "1 (no dense blocks found)",
    }


def _distances(found: Properties) -> str:
    text = f"{found.distance:.4g}; in reverse Cuthill-McKee order {found.distance_rcm:.4g}"
    advised = found.distance_rcm < CLEARLY * found.distance
    return text + (": take ordering='rcm' with ParILUT and ParICT" if advised else "")


def solution_in_words(result: Mapping[str, Any]) -> dict[str, str]:
    """Name -> text, one for each row of the table of `finelu solve`.

    result : the output of `finelu solve --json`.
    """
    rows = {
        "n": f"{result['n']}",
        "nnz": f"{result['nnz']} ({result['dtype']})",
        "right-hand side": result["rhs"],
        "device": result["device"],
    }
    attempts = result["attempts"]
    if result["seen"]:
        rows["seen"] = "\n".join(result["seen"])
    if len(attempts) > 1 or (attempts and not result["converged"]):  # the rows below describe a single one that solved
        rows["tried"] = "\n".join(map(_attempt, attempts))
    if result["method"]:
        rows["recipe"] = f"{result['recipe']} ({result['reason']})"
    elif not attempts:
        rows["tried"] = f"nothing: {result['reason']}"
    if result["fill"]:
        rows["fill"] = f"{result['fill']:.3g} ({result['factors_nnz']} entries in the factors)"
    if result["factor_seconds"] > 0:
        rows["factor time"] = seconds(result["factor_seconds"])
    if result["method"]:
        rows["method"] = result["method"] if result["restart"] is None else f"{result['method']}({result['restart']})"
    rows |= {
        "status": f"{result['status']}: {result['advice']}",
        "iterations": f"{result['iterations']}",
        "relative residual": f"{result['relative_residual']:.3e} (true, of the x returned; wanted {result['rtol']:g})",
        "solve time": seconds(result["solve_seconds"]),
        "total time": seconds(result["total_seconds"]),
    }
    if result["compile_seconds"] > 0:
        rows["kernels"] = f"{seconds(result['compile_seconds'])} of the total, compiled or loaded at their first use"
    rows |= {name: result[name] for name in ("output", "plot") if result[name] is not None}
    if result["plot"] is None:
        rows["residual norms"] = sparkline(result["history"])
    return rows


def _attempt(attempt: Mapping[str, Any]) -> str:
    """An attempt of finelu.solve in two short lines, or one if there were no factors."""
    took = seconds(attempt["setup_seconds"] + attempt["seconds"])
    if not attempt["method"]:  # without the advice for those who name this recipe
        return f"{attempt['recipe']}: {attempt['outcome'].partition('. ')[0]}"
    return (
        f"{attempt['recipe']}, {attempt['method']}: {attempt['outcome']}\n"
        f"  {counted(attempt['iterations'], 'iteration')}, {took}, relative residual {attempt['residual']:.1e}"
    )
