"""How the pictures of the documentation look, and how they are written: small, with the same bytes in every run."""

from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
COLOURS = ("#1f5fa8", "#d1651f", "#3a8f4e", "#8a4fa0", "#777777", "#b8292f")

mpl.rcParams.update(
    {
        "axes.prop_cycle": mpl.cycler(color=COLOURS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "figure.facecolor": "white",
        "font.size": 9,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "svg.fonttype": "path",
        "svg.hashsalt": "finelu",
    }
)


def panels(count=1, width=3.6, height=2.7):
    """(figure, axes as a list) of `count` panels side by side."""
    figure, axes = plt.subplots(1, count, figsize=(width * count, height), squeeze=False, layout="constrained")
    return figure, list(axes[0])


def history(axis, solution, label):
    """The residual norms of a solve, relative to the first."""
    norms = solution.history / solution.history[0]
    axis.semilogy(norms, label=f"{label}: {solution.iterations}")


def write(figure, name, raster=False):
    """<name>.svg, or <name>.png where the picture is a pattern of many points."""
    if raster:
        figure.savefig(HERE / f"{name}.png", dpi=120, metadata={"Software": None})
    else:
        figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
