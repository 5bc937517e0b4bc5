"""Heat waves in a cube of layers: the response to a heater at many frequencies, from one matrix with many shifts.

    python examples/frequency_sweep.py --cells 24 --frequencies 32

The temperature T exp(i w t) above a heater that is driven at w rad/s obeys -div(k grad T) + i w c T = q: the systems
(A + i w c I) x = b, with one A and one b. `solve_shifted` solves them from one Krylov space, where each product with A
serves all frequencies, or with factors of a few frequencies for all. --each also solves every frequency by itself.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl

SIDE = 0.1  # of the cube, m
CAPACITY = 2e6  # J/(m^3 K)
LAYERS = (1.0, 0.3, 2.0)  # conductivity from the bottom to the top, W/(m K)
HEATER = 5.0  # W, in a disc in the middle
SLOWEST, FASTEST = 1e-3, 10.0  # rad/s


def cube(cells: int) -> tuple[Any, Any, Any]:
    """(A, b, place): for the temperatures of cells^3 cells, the lowest layer first, between six walls held at 0; the
    cell above the middle of the heater."""
    h = SIDE / cells
    k = np.asarray(LAYERS)[np.arange(cells) * len(LAYERS) // cells]
    faces = np.r_[2 * k[0], 2 / (1 / k[:-1] + 1 / k[1:]), 2 * k[-1]]  # between layers, and to the walls
    vertical = sp.diags([-faces[1:-1], faces[:-1] + faces[1:], -faces[1:-1]], [-1, 0, 1])
    ends = np.full(cells, 2.0)
    ends[[0, -1]] = 3  # half a cell to the wall
    across = sp.diags([-np.ones(cells - 1), ends, -np.ones(cells - 1)], [-1, 0, 1])
    plane = sp.kronsum(across, across)
    A = sp.csr_matrix((sp.kron(vertical, sp.identity(cells**2)) + sp.kron(sp.diags(k), plane)) / h**2)
    z, y, x = (np.arange(cells) + 0.5) / cells - 0.5, *np.meshgrid(*2 * [(np.arange(cells) + 0.5) / cells - 0.5])
    heated = (abs(z) == abs(z).min())[:, None, None] & (x**2 + y**2 < 0.2**2)
    b = heated.ravel() * HEATER / (heated.sum() * h**3)
    return A, b, cells**2 * (cells // 2 + 1) + cells * (cells // 2) + cells // 2


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=24, help="a side")
    parser.add_argument("--frequencies", type=int, default=32)
    parser.add_argument("--each", action="store_true", help="solve every frequency by itself, too")
    given = parser.parse_args(arguments)
    A, b, place = cube(given.cells)
    omega = np.geomspace(SLOWEST, FASTEST, given.frequencies)
    shifts = 1j * CAPACITY * omega
    for name, options in {"one space": {}, "factors of 3 frequencies": {"recipe": fl.ILU0()}}.items():
        start = perf_counter()
        found = fl.solve_shifted(A, b, shifts, **options)
        print(
            f"{name}: {found[0].method}, {found.products} products, {perf_counter() - start:.2f} s, "
            f"{'all' if found.all_converged else 'not all'} converged"
        )
    if given.each:
        start, unit = perf_counter(), sp.identity(b.size, format="csr")
        alone = [fl.sqmr(A + s * unit, b, rtol=1e-8, hermitian=False) for s in shifts]
        print(f"each by itself: {sum(s.iterations for s in alone)} products, {perf_counter() - start:.2f} s")
    print("  rad/s   amplitude, K   lag, degrees")
    for w, value in list(zip(omega, found.x[place], strict=True))[:: max(given.frequencies // 8, 1)]:
        print(f"{w:7.3f}   {abs(value):12.4f}   {-np.degrees(np.angle(value)):12.1f}")


if __name__ == "__main__":
    main()
