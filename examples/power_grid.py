"""The drop of voltage in the power grid of a chip: wires in two layers, supplied by pads, loaded by blocks of logic.

    python examples/power_grid.py --width 200 --png build/power_grid.png

Kirchhoff's laws for the drop: a symmetric positive definite matrix, as a network of resistors with a few nodes held.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl

SHEET = 20.0  # conductance of a wire between two nodes, siemens
VIA = 5.0  # between the layers
PAD = 50.0  # of a pad to the supply
BLOCKS = (  # x and y from, to, and amperes in all
    (0.1, 0.45, 0.1, 0.4, 1.6),
    (0.55, 0.9, 0.15, 0.5, 0.7),
    (0.2, 0.5, 0.6, 0.9, 0.5),
    (0.65, 0.85, 0.65, 0.95, 2.4),
)


def grid(width: int, pads: int = 5) -> tuple[Any, Any, Any]:
    """(A, b, held): for the drop in volts at 2 width^2 nodes, the upper layer first, and the nodes with pads.

    The lower layer has the wires along x, the upper one those along y; b has the currents that the blocks take from
    the lower layer.
    """
    upper, lower = np.arange(2 * width**2).reshape(2, width, width)
    ends = [(upper[:-1], upper[1:], SHEET), (lower[:, :-1], lower[:, 1:], SHEET), (upper, lower, VIA)]
    rows, columns = (np.concatenate([pair[k].ravel() for pair in ends]) for k in (0, 1))
    g = np.concatenate([np.full(pair[0].size, pair[2]) for pair in ends])
    links = sp.coo_matrix((g, (rows, columns)), shape=(2 * width**2, 2 * width**2))
    links = links + links.T
    at = ((np.arange(pads) + 0.5) * width / pads).astype(int)
    held = upper[np.ix_(at, at)].ravel()
    supply, b = np.zeros(2 * width**2), np.zeros(2 * width**2)
    supply[held] = PAD
    for x0, x1, y0, y1, amperes in BLOCKS:
        nodes = lower[int(y0 * width) : int(y1 * width), int(x0 * width) : int(x1 * width)].ravel()
        b[nodes] += amperes / nodes.size
    return sp.csr_matrix(sp.diags(np.asarray(links.sum(axis=1)).ravel() + supply) - links), b, held


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=200, help="nodes a side")
    parser.add_argument("--png", help="file for a picture, by matplotlib")
    given = parser.parse_args(arguments)
    A, b, held = grid(given.width)
    solution = fl.solve(A, b)
    print(solution.explain())
    print(
        f"largest drop {1e3 * solution.x.max():.3f} mV; pads give {PAD * solution.x[held].sum():.6f} of {b.sum():.6f} A"
    )
    if given.png:
        draw(1e3 * solution.x[given.width**2 :].reshape(given.width, -1), given.png)


def draw(drop: Any, name: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(drop, origin="lower", cmap="inferno", extent=(0, 1, 0, 1))
    for x0, x1, y0, y1, amperes in BLOCKS:
        axes.plot([x0, x1, x1, x0, x0], [y0, y0, y1, y1, y0], color="white", lw=0.8)
        axes.text(x0 + 0.01, y1 - 0.01, f"{amperes} A", color="white", fontsize=8, va="top")
    axes.set(xticks=[], yticks=[], title="drop of voltage in the power grid of a chip")
    figure.colorbar(shown, label="mV")
    figure.savefig(name, dpi=133)


if __name__ == "__main__":
    main()
