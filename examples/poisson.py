"""The Poisson equation -div grad u = f in the unit cube, u = 0 on its boundary, by the 7-point stencil.

    python examples/poisson.py --cells 40

The exact solution is known, so that the error of the discretization can be seen to fall with the square of the width.
"""

from __future__ import annotations

import argparse

import numpy as np

import finelu as fl


def poisson(cells: int, rtol: float = 1e-8):
    """(Solution, largest error) with `cells` inner points a side."""
    h = 1 / (cells + 1)
    A = fl.gallery.poisson7(cells)  # the stencil without its factor 1 / h^2
    s = np.sin(np.pi * h * np.arange(1, cells + 1))
    exact = (s[:, None, None] * s[:, None] * s).ravel()
    b = h**2 * 3 * np.pi**2 * exact
    solution = fl.solve(A, b, rtol)
    return solution, float(abs(solution.x - exact).max())


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=40, help="inner points a side")
    cells = parser.parse_args(arguments).cells
    solution, error = poisson(cells)
    print(solution.explain())
    print(f"largest error of the discretization: {error:.2e}")


if __name__ == "__main__":
    main()
