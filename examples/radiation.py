"""Newton's method in time with recycling: a plate of many materials that cools by radiation.

    python examples/radiation.py --cells 120 --steps 6

dT/dt = div(k grad T) - r T^4, by implicit Euler steps; nothing flows through the edges. Each step is a nonlinear one,
whose Jacobians are symmetric and positive definite and differ little from one to the next, so that one incomplete
factorization serves all. Tiles that conduct well among others that do not leave a few small eigenvalues, which make cg
slow: a `RecycledSpace` keeps their vectors out of the iterations of the next solve. The same steps are made without it:
what it saves in iterations pays in time only where an iteration costs more than products with its vectors, which
`Sequence` finds out by itself.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl

TILES = 6  # a side, each of one material
RATIO = 1e5  # of the largest conductivity to the smallest
LOSS = 0.05  # r
NEWTON = 1e-8  # times the first residual of a step, where Newton's method ends


def conduction(cells: int) -> Any:
    """K (n, n) : -div(k grad T) on cells^2 cells of width 1, with the harmonic means of k between two cells."""
    tile = np.arange(cells) * TILES // cells
    k = np.where((tile[:, None] + tile) % 2, 1.0, 1 / RATIO)
    one = sp.diags([-np.ones(cells - 1), np.ones(cells - 1)], [0, 1], (cells - 1, cells))
    K = sp.csr_matrix((cells**2, cells**2))
    for axis, G in enumerate((sp.kron(one, sp.identity(cells)), sp.kron(sp.identity(cells), one))):
        t = np.moveaxis(k, axis, 0)
        between = np.moveaxis(2 / (1 / t[:-1] + 1 / t[1:]), 0, axis)
        K = K + G.T @ sp.diags(between.ravel()) @ G
    return sp.csr_matrix(K)


def cool(cells: int, steps: int, dt: float, recycle: bool) -> tuple[Any, int, int, float]:
    """(T (cells^2,), Newton steps, iterations of cg, seconds in cg) after `steps` steps from T = 1 to 2."""
    K, x = conduction(cells), np.linspace(0, 1, cells)
    T = np.add.outer(x, np.ones(cells)).ravel()
    unit = sp.identity(T.size, format="csr")
    space = fl.RecycledSpace(16) if recycle else None
    M, newton, iterations, seconds = None, 0, 0, 0.0
    for _ in range(steps):
        before, first = T, None
        while True:
            F = T - before + dt * (K @ T + LOSS * T**4)
            size = np.linalg.norm(F)
            first = first or size
            if size <= NEWTON * first:
                break
            J = sp.csr_matrix(unit + dt * (K + sp.diags(4 * LOSS * T**3)))
            M = M or fl.IC0().factor(J)
            start = perf_counter()
            solution = fl.cg(J, -F, rtol=1e-6, M=M, recycle=space)
            seconds += perf_counter() - start
            if not solution.converged:
                raise RuntimeError(f"cg: {solution.status.value}")
            T = T + solution.x
            newton, iterations = newton + 1, iterations + solution.iterations
    return T, newton, iterations, seconds


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=120, help="a side")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--dt", type=float, default=1e4)
    given = parser.parse_args(arguments)
    cool(given.cells, 1, given.dt, True)  # what is compiled at first use
    found = []
    for name, recycle in (("without recycling", False), ("with a recycled space", True)):
        T, newton, iterations, seconds = cool(given.cells, given.steps, given.dt, recycle)
        found.append((iterations, seconds))
        print(f"{name}: {newton} Newton steps, {iterations} iterations of cg, {seconds:.2f} s; hottest {T.max():.4f}")
    (plain, before), (kept, after) = found
    print(f"the space saves {1 - kept / plain:.0%} of the iterations, and takes {after / before:.2f} of the time")


if __name__ == "__main__":
    main()
