"""What notebooks show of finelu's objects: a small table, and the residual norms as a curve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

WIDTH, HEIGHT = 320, 90  # of a curve, in pixels


def facts_as_html(title: str, facts: Iterable[tuple[str, Any]], below: str = "") -> str:
    """A table of two columns with a title; the value is shown by `plain`.  below : HTML to follow it."""
    shown = ((name, plain(value)) for name, value in facts)
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in shown
    )
    return f"<div><b>{escape(title)}</b><table>{rows}</table>{below}</div>"


def plain(value: Any, between: str = ", ") -> str:
    """A value without brackets and quotes: a float has four digits; what is None in a dict is left out.

    between : stands between the elements of a list; in a dict a space does, as commas stand between its items.
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        deep = any(isinstance(of, Mapping) for of in value.values())
        items = (f"{name}{': ' if isinstance(of, Mapping) else ' '}{plain(of, ' ')}" for name, of in value.items()
                 if of is not None)  # fmt: skip
        return ("; " if deep else ", ").join(items)
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(of, Mapping) for of in value) else between).join(map(plain, value))
    return str(value)


def norms_as_svg(norms: ArrayLike, tolerance: float | None) -> str:
    """The norms on a logarithmic axis, and the tolerance as a dashed line; "" for fewer than two positive norms."""
    sizes = np.asarray(norms, np.float64)
    at = np.flatnonzero(np.isfinite(sizes) & (sizes > 0))
    if at.size < 2:
        return ""
    at = at[np.unique(np.linspace(0, at.size - 1, min(at.size, WIDTH)).astype(int))]
    decades = np.log10(sizes[at])
    ends = [*decades, np.log10(tolerance)] if tolerance else decades
    low, high = min(ends) - 0.1, max(ends) + 0.1

    def height(decade: float) -> float:
        return float(HEIGHT * (high - decade) / (high - low))

    across = WIDTH * (at - at[0]) / (at[-1] - at[0])
    points = " ".join(f"{x:.1f},{height(decade):.1f}" for x, decade in zip(across, decades, strict=True))
    line = ""
    if tolerance:
        level = f"{height(np.log10(tolerance)):.1f}"
        line = f'<line x1="0" x2="{WIDTH}" y1="{level}" y2="{level}" stroke="gray" stroke-dasharray="4"/>'
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="residual norms over iterations">'
        f'<polyline points="{points}" fill="none" stroke="currentColor"/>{line}</svg>'
    )
