"""The pressure in an oil reservoir: water is pumped in at the centre, oil taken out at the corners ("five-spot").

    python examples/reservoir.py --cells 128 --png build/reservoir.png

Darcy's law, -div(k grad p) = q, by finite volumes. The permeability k varies over five decades in channels, which makes
such systems hard; nothing flows through the boundary, so that only the wells at the corners fix the pressure.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl

WELL = 1.0  # conductance between a well and its cell, relative to the mean permeability


def permeability(cells: int, seed: int = 0) -> Any:
    """(cells, cells), lognormal over some five decades, smooth along layers that dip."""
    rng = np.random.default_rng(seed)
    frequency = np.fft.fftfreq(cells)
    fx, fy = np.meshgrid(frequency, frequency)
    along, across = (fx + 0.3 * fy) * cells, (fy - 0.3 * fx) * cells
    spectrum = 1 / (1 + (along / 2) ** 2 + (across / 8) ** 2) ** 1.2
    field = np.fft.ifft2(spectrum * np.fft.fft2(rng.standard_normal((cells, cells)))).real
    return 10 ** (1.1 * field / field.std())


def five_spot(k: Any) -> tuple[Any, Any, Any]:
    """(A, b, corners): the system for the pressure, and the cells of the wells whose pressure is 0."""
    cells = k.shape[0]
    number = np.arange(k.size).reshape(k.shape)
    first = np.concatenate([number[:, :-1].ravel(), number[:-1].ravel()])
    second = np.concatenate([number[:, 1:].ravel(), number[1:].ravel()])
    between = 2 / (1 / k.ravel()[first] + 1 / k.ravel()[second])  # two half cells one after the other
    corners = number[[0, 0, -1, -1], [0, -1, 0, -1]]
    wells = np.zeros(k.size)
    wells[corners] = WELL
    links = sp.coo_matrix((between, (first, second)), shape=(k.size, k.size))
    links = links + links.T
    b = np.zeros(k.size)
    b[number[cells // 2, cells // 2]] = 1.0  # the water
    return sp.csr_matrix(sp.diags(np.asarray(links.sum(axis=1)).ravel() + wells) - links), b, corners


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=128, help="cells a side")
    parser.add_argument("--png", help="file for a picture, by matplotlib")
    given = parser.parse_args(arguments)
    k = permeability(given.cells)
    A, b, corners = five_spot(k)
    solution = fl.solve(A, b)
    print(solution.explain())
    print(f"of 1 pumped in, the corners give {WELL * solution.x[corners].sum():.9f}")
    if given.png:
        draw(k, solution.x.reshape(k.shape), given.png)


def draw(k: Any, pressure: Any, name: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    axes = figure.subplots(1, 2)
    fields = ((np.log10(k), "permeability, log10", "cividis"), (pressure, "pressure", "viridis"))
    for axis, (field, title, colours) in zip(axes, fields, strict=True):
        shown = axis.imshow(field, origin="lower", cmap=colours)
        axis.set(title=title, xticks=[], yticks=[])
        figure.colorbar(shown, ax=axis)
    flux = np.gradient(-pressure)
    places = np.arange(k.shape[0])
    axes[1].streamplot(places, places, k * flux[1], k * flux[0], color="white", linewidth=0.5, density=1, arrowsize=0.6)
    axes[1].set(xlim=(0, places[-1]), ylim=(0, places[-1]))
    figure.savefig(name, dpi=133)


if __name__ == "__main__":
    main()
