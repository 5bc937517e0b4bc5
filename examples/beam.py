"""A beam that is held at one end and bends under its weight: linear elasticity in three dimensions.

    python examples/beam.py --width 8 --png build/beam.png

Three displacements a node, 81 entries a row. The matrix is positive definite; the longer the beam, the worse it is
conditioned. `--width` is the number of elements across; the beam is six times as long as it is wide.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import finelu as fl

LENGTH = 6  # over the width
WEIGHT = 1e-4  # of an element, relative to Young's modulus


def bend(width: int) -> tuple[fl.Solution, Any]:
    """(Solution, displacements (width + 1, width + 1, LENGTH width + 1, 3) by z, y, x; zero at x = 0)."""
    long = LENGTH * width
    A = fl.gallery.elasticity(long, width, width)
    share = np.ones((width + 1, width + 1, long))  # of the weight of the elements around each node
    for axis in (0, 1):
        share[(slice(None),) * axis + ([0, -1],)] /= 2
    share[:, :, -1] /= 2
    b = np.zeros((share.size, 3))
    b[:, 2] = -WEIGHT / width**3 * share.ravel()
    solution = fl.solve(A, b.ravel())
    u = np.zeros((width + 1, width + 1, long + 1, 3))
    u[:, :, 1:] = solution.x.reshape(width + 1, width + 1, long, 3)
    return solution, u


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=8, help="elements across")
    parser.add_argument("--png", help="file for a picture, by matplotlib")
    given = parser.parse_args(arguments)
    solution, u = bend(given.width)
    print(solution.explain())
    print(f"the end sinks by {-u[:, :, -1, 2].mean():.4g} widths of an element")
    if given.png:
        draw(u, given.png)


def draw(u: Any, name: str) -> None:
    from matplotlib.figure import Figure

    width = u.shape[0] - 1
    x, z = np.meshgrid(np.arange(u.shape[2]), np.arange(width + 1))
    side, stretched = u[:, 0], 3 * width / abs(u[..., 2]).max()
    strain = np.diff((side[:-1] + side[1:])[..., 0] / 2, axis=1)  # along x, in the elements of the side
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    most = abs(strain).max()
    bent = (x + stretched * side[..., 0], z + stretched * side[..., 2])
    shown = axes.pcolormesh(*bent, strain / most, cmap="coolwarm", vmin=-1, vmax=1, edgecolor="black", linewidth=0.1)
    axes.set(aspect="equal", xticks=[], yticks=[], title="a beam under its weight, deformation enlarged")
    figure.colorbar(shown, label="strain along the beam, relative")
    figure.savefig(name, dpi=133)


if __name__ == "__main__":
    main()
