"""How the pictures of the documentation look, and how they are written: small, with the same bytes in every run."""

from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import AutoLocator, LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

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


def legend_below(axis):
    """A legend under the axis, for a picture whose curves leave no corner free."""
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.27), borderaxespad=0, fontsize=8)


def collisions(figure):
    """What is drawn over a legend or a label of the figure: a line of words each."""
    figure.draw_without_rendering()
    found = []
    for axis in figure.axes:
        labels = [text for text in axis.texts if text.get_text() and text.get_window_extent().width > 12]
        boxes = {id(text): (f"the label {text.get_text()!r}", text.get_window_extent()) for text in labels}
        if (legend := axis.get_legend()) is not None:
            boxes[id(legend)] = ("the legend", legend.get_window_extent())
        for what, box in boxes.values():
            for line in axis.lines:
                path = line.get_path().transformed(line.get_transform())
                joined = line.get_linestyle() != "None" and path.intersects_bbox(box, filled=False)
                if joined or any(box.contains(x, y) for x, y in path.vertices):
                    found.append(f"{what} lies on the line {line.get_label()!r}")
        placed = list(boxes.values())
        for k, (what, box) in enumerate(placed):
            found += [f"{what} lies on {other}" for other, second in placed[k + 1 :] if box.overlaps(second)]
    return found


def ticks(axis):
    """Whole numbers where all that is drawn lies on such; on a short logarithmic axis 1, 2, 5, on others decades alone.

    Ticks that a picture has set itself stay as they are.
    """
    drawn = np.vstack([line.get_xydata() for line in axis.lines]) if axis.lines else np.empty((0, 2))
    for side, values in ((axis.xaxis, drawn[:, 0]), (axis.yaxis, drawn[:, 1])):
        locator = side.get_major_locator()
        if isinstance(locator, LogLocator):
            low, high = side.get_view_interval()
            if np.log10(high / low) < 1.5:
                locator = LogLocator(subs=(1, 2, 5))
                side.set_major_locator(locator)
                side.set_major_formatter(StrMethodFormatter("{x:g}"))
            side.set_minor_formatter(NullFormatter())
        elif isinstance(locator, AutoLocator) and values.size and np.all(values == np.round(values)):
            side.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def write(figure, name, raster=False):
    """<name>.svg, or <name>.png where the picture is a pattern of many points.

    Refuses a picture whose legends and labels are drawn upon.
    """
    for axis in figure.axes:
        ticks(axis)
    if found := collisions(figure):
        raise AssertionError(f"{name}: {'; '.join(found)}")
    if raster:
        figure.savefig(HERE / f"{name}.png", dpi=120, metadata={"Software": None})
    else:
        figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
