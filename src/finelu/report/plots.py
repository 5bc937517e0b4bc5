"""Plots: residual norms over iterations, and the structure of a matrix. They need matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finelu.compare.worker import BINS
from finelu.device import to_host
from finelu.drawing import draw_norms, matplotlib_class
from finelu.io import check_writable, replacing
from finelu.matrix import CSR, as_csr
from finelu.properties import density, dominance, level_sizes

PLOT_FORMATS = (".png", ".pdf", ".svg")
LENGTHS = 60  # bins of the lengths of rows, at most


def check_plot(path: str) -> None:
    """Raise, before any work is done, if a plot cannot be drawn to `path`."""
    check_writable(path, PLOT_FORMATS)
    figure_class()


def figure_class() -> Any:
    """matplotlib's Figure, which needs no display; a FineluError without matplotlib."""
    return matplotlib_class("figure", "Figure")


def plot_convergence(path: str, histories: Mapping[str, ArrayLike], rtol: float, title: str = "") -> None:
    """Draw relative residual norms over iterations, a curve for each name in `histories`, and the tolerance.

    path : ends in .png, .pdf or .svg; written to another file that is then renamed, so that it is never half-written.
    histories : name -> residual norms (k,), divided by the norm of b. Raises FineluError without matplotlib.
    """
    figure = figure_class()(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    draw_norms(axes, histories, rtol, f"rtol = {rtol:g}", "residual norm / norm of b")
    axes.set(title=title)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)  # where no curve is
    _save(figure, path, dpi=150)


def plot_matrix(path: str, A: CSR, title: str = "") -> None:
    """Draw the pattern of A, the rows of its level sets, and the length and dominance of its rows.

    path : ends in .png, .pdf or .svg.  A : on the host. Raises FineluError without matplotlib.
    """
    figure = figure_class()(figsize=(9.0, 8.0), layout="constrained")
    figure.suptitle(title)
    (pattern, levels), (rows, dominant) = figure.subplots(2, 2)
    _draw_pattern(pattern, A)
    for name, style, sizes in zip(("lower", "upper"), ("-", "--"), level_sizes(A), strict=True):
        label = f"{name}: {sizes.size} levels, mean {A.n / sizes.size:.1f} rows"
        levels.stairs(*binned(sizes), label=label, linestyle=style, linewidth=1.6)
    levels.set(title="rows of each level", xlabel="level", ylabel="rows", yscale="log")
    levels.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)  # below, where no curve is
    lengths = np.diff(A.indptr)
    width = -(-(int(np.ptp(lengths)) + 1) // LENGTHS)  # whole numbers of entries in each bin
    rows.hist(lengths, bins=np.arange(lengths.min() - 0.5, lengths.max() + width, width), log=True)
    rows.set(title="lengths of rows", xlabel="entries", ylabel="rows")
    rows.xaxis.get_major_locator().set_params(integer=True)
    ends = np.array([1e-4, 1e4])
    dominant.hist(np.clip(dominance(A), *ends), bins=np.geomspace(ends[0], ends[1], 65), log=True)
    dominant.axvline(1, color="0.5", linestyle="--", linewidth=1.0)
    dominant.set(title="dominance of rows", ylabel="rows", xscale="log")
    dominant.set(xlabel="|diagonal| / sum of the others; dominant from 1 on", xlim=ends * (0.7, 1.4))
    dominant.set_xticks([*ends, 1e-2, 1, 1e2], ["≤ 0.0001", "≥ 10000", "0.01", "1", "100"])
    dominant.minorticks_off()
    for axes in (levels, rows, dominant):  # numbers of rows
        axes.set_ylim(bottom=0.7, top=1.3 * axes.dataLim.y1)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    _save(figure, path, dpi=130)


def spy(A: Any, axes: Any = None) -> Any:
    """Draw the pattern of A: the number of entries in each square, on a logarithmic scale of colours.

    A : (n, n), anything that `finelu.as_csr` takes.  axes : matplotlib's, to draw on; None: those of a new figure.
    Returns the axes. Cost: one pass over the entries. Raises FineluError without matplotlib.
    """
    if axes is None:
        axes = matplotlib_class("pyplot", "subplots")(layout="constrained")[1]
    _draw_pattern(axes, as_csr(A, diagonal=False))
    return axes


def _draw_pattern(axes: Any, A: CSR) -> None:
    counts = density(to_host(A.tosparse()), BINS)
    shown = np.where(counts > 0, counts, np.nan)
    image = axes.imshow(shown, cmap="viridis", norm="log", interpolation="none", extent=(0, A.n, A.n, 0))
    if counts.max(initial=0) > 1:
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.8, label="entries in a square")
        low, high = np.nanmin(shown), np.nanmax(shown)
        if high < 20 * low:  # two powers of ten at most
            bar.set_ticks([t for d in (1, 10, 100, 1000, 10_000) for t in (d, 2 * d, 5 * d) if low <= t <= high])
            bar.ax.yaxis.set_major_formatter("{x:g}")
            bar.minorticks_off()
    axes.locator_params(nbins=6, integer=True)  # more numbers of columns would touch each other
    axes.set(title=f"pattern, {A.nnz:,} entries", xlabel="column", ylabel="row")


def _save(figure: Any, path: str, dpi: int) -> None:
    with replacing(path, "the plot") as file:
        figure.savefig(file, format=Path(path).suffix[1:].lower(), dpi=dpi)


def binned(sizes: NDArray[Any], most: int = 240) -> tuple[NDArray[Any], NDArray[Any]]:
    """The mean of `sizes` in at most `most` bins of equal width, and the edges of the bins."""
    edges = np.linspace(0, sizes.size, min(sizes.size, most) + 1).round().astype(int)
    return np.add.reduceat(sizes, edges[:-1]) / np.diff(edges), edges
