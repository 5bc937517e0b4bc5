"""Electrical resistivity of the ground: the potentials of 64 sources, from one matrix with 64 right-hand sides.

    python examples/resistivity.py --cells 24 --sources 64

Electrodes on the surface feed 1 A into the ground, one after the other, and the potentials at all electrodes tell what
lies below: -div(s grad u) = I delta, by finite volumes, with no current through the surface and u = 0 at the other
sides. `solve(A, B)` makes one preconditioner for all columns of B, and its products and triangular solves take all
columns in one pass. For comparison some sources are solved for one after the other.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl

SIDE = 100.0  # of the cube of ground, m
GROUND, BODY = 0.01, 1.0  # conductivity of the ground, and of a mineral body in it, S/m
ALONE = 4  # sources that are solved for one by one, too


def conductivity(cells: int) -> Any:
    """(cells, cells, cells) : by depth, y and x; the body is a ball below the middle of the surface."""
    at = (np.arange(cells) + 0.5) / cells - 0.5
    z, y, x = np.meshgrid(at + 0.5, at, at, indexing="ij")
    return np.where((z - 0.3) ** 2 + y**2 + x**2 < 0.15**2, BODY, GROUND)


def ground(s: Any) -> Any:
    """A (n, n) : the currents out of each cell; s, the conductivity of cells in a cube. Between two cells it is the
    harmonic mean, and to a side that is held at 0 half a cell is left."""
    cells = len(s)
    h, place = SIDE / cells, np.arange(s.size).reshape(s.shape)
    diagonal, rows, columns, values = np.zeros(s.shape), [], [], []
    for axis in range(3):
        t, p = np.moveaxis(s, axis, 0), np.moveaxis(place, axis, 0)
        between = h * 2 / (1 / t[:-1] + 1 / t[1:])
        of_cells = np.moveaxis(diagonal, axis, 0)  # a view
        of_cells[:-1] += between
        of_cells[1:] += between
        of_cells[-1] += 2 * h * t[-1]
        if axis:  # the first layer of the first axis is the surface
            of_cells[0] += 2 * h * t[0]
        rows += [p[:-1].ravel(), p[1:].ravel()]
        columns += [p[1:].ravel(), p[:-1].ravel()]
        values += [-between.ravel()] * 2
    rows, columns = [*rows, place.ravel()], [*columns, place.ravel()]
    entries = np.concatenate([*values, diagonal.ravel()])
    return sp.csr_matrix((entries, (np.concatenate(rows), np.concatenate(columns))))


def electrodes(cells: int, sources: int) -> Any:
    """The surface cells under a square array of electrodes, over the middle half of the surface."""
    a_side = int(np.ceil(np.sqrt(sources)))
    at = np.round(np.linspace(0.25, 0.75, a_side) * (cells - 1)).astype(int)
    return (at[:, None] * cells + at).ravel()[:sources]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=24, help="a side")
    parser.add_argument("--sources", type=int, default=64)
    given = parser.parse_args(arguments)
    A, places = ground(conductivity(given.cells)), electrodes(given.cells, given.sources)
    B = np.zeros((A.shape[0], places.size))
    B[places, np.arange(places.size)] = 1.0
    fl.solve(A, B[:, :2])  # what is compiled at first use
    start = perf_counter()
    found = fl.solve(A, B)
    together = perf_counter() - start
    start = perf_counter()
    alone = [fl.solve(A, B[:, c]) for c in range(min(ALONE, places.size))]
    each = (perf_counter() - start) / len(alone)
    print(
        f"{places.size} sources, {A.shape[0]} cells: {'all' if found.all_converged else 'not all'} converged in "
        f"{together:.2f} s, {found.method} with {found.recipe or 'no preconditioner'}"
    )
    print(
        f"one by one {each:.3f} s a source: together they take {together / places.size / each:.2f} of that, a gain of "
        f"{each * places.size / together:.1f}"
    )
    potentials = found.x[places]
    print(f"reciprocity: potentials differ by {abs(potentials - potentials.T).max() / abs(potentials).max():.1e}")


if __name__ == "__main__":
    main()
