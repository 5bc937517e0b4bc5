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


def write(figure, name, raster=False):
    """<name>.svg, or <name>.png where the picture is a pattern of many points.

    Refuses a picture whose legends and labels are drawn upon.
    """
    if found := collisions(figure):
        raise AssertionError(f"{name}: {'; '.join(found)}")
    if raster:
        figure.savefig(HERE / f"{name}.png", dpi=120, metadata={"Software": None})
    else:
        figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
