"""Markdown tables, and the means and ratios that stand in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import geometric_mean
from typing import Any


def table(header: Sequence[str], lines: Iterable[Iterable[Any]]) -> str:
    """A Markdown table, padded so that it reads well as text; numbers with three digits, None as a dash."""
    cells = [[str(h) for h in header]] + [[cell(c) for c in line] for line in lines]
    widths = [max(len(line[k]) for line in cells) for k in range(len(header))]
    padded = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    return "\n".join([padded[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *padded[1:]]) + "\n"


def cell(value: Any) -> str:
    """A value as a table shows it: three significant digits, whole numbers as they are, "-" for nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"
    return str(value).replace("|", "\\|")


def ratio(peer: float | None, ours: float | None) -> float | None:
    """How many times faster ours is, or None where one of them is missing."""
    return peer / ours if peer and ours else None


def smallest(values: Iterable[float | None]) -> float | None:
    return min((v for v in values if v is not None), default=None)


def mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the values that are not None."""
    present = [v for v in values if v]
    return geometric_mean(present) if present else None
