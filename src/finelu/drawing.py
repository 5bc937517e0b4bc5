"""Residual norms over iterations, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from finelu.errors import FineluError, WrongType


def matplotlib_class(module: str, name: str) -> Any:
    """`name` of a module of matplotlib; a FineluError without matplotlib."""
    from importlib import import_module

    try:
        return getattr(import_module(f"matplotlib.{module}"), name)
    except ImportError as error:
        raise FineluError("a plot needs matplotlib, which is not installed; pip install 'finelu[report]'") from error


def axes_for(axes: Any) -> Any:
    """The axes of matplotlib that `plot` was given, or those of a new figure for None; else a WrongType."""
    if axes is None:
        return matplotlib_class("pyplot", "subplots")(layout="constrained")[1]
    if not hasattr(axes, "semilogy"):
        file = axes if isinstance(axes, str) else "norms.png"
        raise WrongType(
            f"plot takes axes of matplotlib, not a {type(axes).__name__}; solution.plot().figure.savefig({file!r}) "
            "writes a file."
        )
    return axes


def curves(name: str, history: ArrayLike, attempts: Sequence[Any]) -> dict[str, Any]:
    """The part of `history` that belongs to each attempt, by its number and its name; before it stands NaN.

    name : of the whole history, which stays one curve if one attempt iterated, or if it is not that of all attempts in
        turn, as with k columns.  attempts : of `finelu.solve`, each with method, recipe and iterations.
    """
    norms = np.asarray(history, dtype=np.float64)
    tried = [(k, attempt) for k, attempt in enumerate(attempts, start=1) if attempt.iterations]
    if len(tried) < 2 or sum(attempt.iterations for _, attempt in tried) != len(norms) - 1:
        return {name: norms}
    found, begin = {}, 0
    for k, attempt in tried:
        end = begin + attempt.iterations
        before = np.full(begin, np.nan)
        found[f"{k}. {attempt.method} with {attempt.recipe}"] = np.append(before, norms[begin : end + 1])
        begin = end
    return found


def draw_norms(axes: Any, histories: Mapping[str, ArrayLike], tolerance: float | None, named: str, label: str) -> None:
    """Draw a curve for each name in `histories`, and the tolerance, on logarithmic axes.

    histories : name -> norms (k,); NaN is not drawn.  tolerance : None: no line for it.  named : its name.
    label : of the norms.
    """
    for name, history in histories.items():
        norms = np.asarray(history, dtype=np.float64)
        positive = np.where(norms > 0, norms, np.nan)  # a residual of 0 has no place on a log axis
        axes.semilogy(positive, label=name, marker="." if len(positive) < 60 else "")
    if tolerance is not None:
        axes.axhline(tolerance, color="0.5", linestyle="--", linewidth=1.0, label=named)
    axes.set(xlabel="iteration", ylabel=label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(True, which="major", alpha=0.3)


def legend_above(axes: Any) -> None:
    """Add a legend to logarithmic axes; more than two lines of it stand in a band that is added above the curves."""
    lines = axes.legend().get_texts()
    (low, high), height = axes.get_ylim(), axes.get_window_extent().height * 72 / axes.figure.dpi  # in points
    band = sum(1.4 * text.get_fontsize() for text in lines) + lines[0].get_fontsize()
    if len(lines) > 2 and band < height / 2:
        decades = np.log10(high / low) * height / (height - band)
        if np.log10(low) + decades < np.log10(np.finfo(float).max):
            axes.set_ylim(low, low * 10**decades)
            axes.legend(loc="upper center")
