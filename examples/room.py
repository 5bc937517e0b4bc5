"""Sound in a flat: Helmholtz's equation in the plane, with walls that damp and an outside that lets waves out.

    python examples/room.py --frequency 500 --png build/room.png

The matrix is complex symmetric and indefinite: incomplete factors without fill hardly help, and `solve` takes
others.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl

WIDTH, DEPTH = 8.0, 6.0  # m
SPEED = 343.0  # of sound, m/s
WALLS = ((2.9, 3.1, 0.0, 3.6), (2.9, 3.1, 4.6, 6.0), (5.0, 6.0, 2.9, 3.1), (7.0, 8.0, 2.9, 3.1))  # x and y from, to
DAMPING = 0.2 + 0.6j  # factor of k^2 inside of walls


def room(frequency: float, points: float = 12.0) -> tuple[Any, Any]:
    """(A, inside): the matrix, and whether a point of the grid (rows from y = 0 on) lies in a wall.

    points : of the grid in a wavelength.
    """
    h = SPEED / frequency / points
    x, y = (h * (np.arange(int(length / h)) + 0.5) for length in (WIDTH, DEPTH))
    X, Y = np.meshgrid(x, y)
    inside = np.zeros(X.shape, bool)
    for left, right, lower, upper in WALLS:
        inside |= (left <= X) & (right >= X) & (lower <= Y) & (upper >= Y)
    kh = 2 * np.pi * frequency / SPEED * h
    lines = []
    for n in (y.size, x.size):
        D = sp.diags([-np.ones(n - 1), np.full(n, 2.0 + 0j), -np.ones(n - 1)], [-1, 0, 1]).tolil()
        D[0, 0] = D[n - 1, n - 1] = 1 - 1j * kh  # du/dn = i k u: waves leave
        lines.append(sp.kron(D, sp.identity(x.size)) if n is y.size else sp.kron(sp.identity(y.size), D))
    return sp.csr_matrix(lines[0] + lines[1] - sp.diags(kh**2 * np.where(inside, DAMPING, 1).ravel())), inside


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frequency", type=float, default=500.0, help="Hz")
    parser.add_argument("--png", help="file for a picture, by matplotlib")
    given = parser.parse_args(arguments)
    A, inside = room(given.frequency)
    b = np.zeros(A.shape[0], complex)
    b[np.ravel_multi_index((inside.shape[0] // 4, inside.shape[1] // 6), inside.shape)] = 1  # the loudspeaker
    solution = fl.solve(A, b)
    print(solution.explain())
    if given.png:
        draw(solution.x.reshape(inside.shape), inside, given.png)


def draw(u: Any, inside: Any, name: str) -> None:
    from matplotlib.figure import Figure

    level = 20 * np.log10(abs(u) / abs(u).max())
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    place = {"extent": (0, WIDTH, 0, DEPTH), "origin": "lower"}
    shown = axes.imshow(np.ma.masked_array(level, inside), vmin=-50, vmax=-10, cmap="magma", **place)
    axes.imshow(np.ma.masked_array(np.ones(inside.shape), ~inside), vmin=0, vmax=1.2, cmap="gray", **place)
    axes.set(xlabel="m", ylabel="m", title="sound pressure of a loudspeaker in a flat")
    figure.colorbar(shown, label="dB below the source")
    figure.savefig(name, dpi=133)


if __name__ == "__main__":
    main()
