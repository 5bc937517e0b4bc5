"""A tower in gusty wind whose material softens where it is strained: implicit time steps with values that drift.

    python examples/tower.py --width 8 --steps 24

A viscoelastic block that stands on the ground, K(d) (u + TAU du/dt) = f(t), by implicit Euler steps, with eight-node
bricks. The damage d of each brick grows with its strain energy, so that the matrix changes a little in each step; the
gusts differ from step to step, so that the last displacement says little of the next. A few slow motions, in which the
tower bends and turns, cost most of the iterations: `Sequence` finds their vectors and recycles them. The same steps are
made by hand: factors that are updated in each step, and cg from the last displacement.

The stiffness of a step is that of the damage after the step before, so that each step is one linear system. The program
takes some seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl

HEIGHT = 2.4  # over the width
POISSON = 0.2
TAU = 1.0  # s, of the material
DT = 2.0  # s, of a step
MOST = 0.5  # of the stiffness that damage takes
GUST = 3  # bricks from one gust to the next
RTOL = 1e-6


def brick() -> Any:
    """(24, 24), the stiffness of a unit cube of Young's modulus 1; three displacements a corner, x slowest."""
    corners = np.array(list(product((0, 1), repeat=3)))
    shear, K = 0.5 / (1 + POISSON), np.zeros((24, 24))
    lame = POISSON / ((1 + POISSON) * (1 - 2 * POISSON))
    D = np.diag([2 * shear] * 3 + [shear] * 3)
    D[:3, :3] += lame
    for point in product((0.5 - 0.5 / 3**0.5, 0.5 + 0.5 / 3**0.5), repeat=3):
        hat = np.where(corners == 1, point, 1 - np.array(point))
        x, y, z = ((2 * corners[:, i] - 1) * np.delete(hat, i, axis=1).prod(axis=1) for i in range(3))
        B = np.zeros((6, 8, 3))  # strains in the order xx, yy, zz, xy, yz, zx
        for row, column, slope in zip(
            (0, 1, 2, 3, 3, 4, 4, 5, 5), (0, 1, 2, 1, 0, 2, 1, 0, 2), (x, y, z, x, y, y, z, z, x)
        ):
            B[row, :, column] = slope
        K += B.reshape(6, 24).T @ D @ B.reshape(6, 24) / 8
    return K


class Tower:
    """width x width x (HEIGHT width) bricks, whose nodes at the bottom are held."""

    def __init__(self, width: int):
        high = round(HEIGHT * width)
        nodes = np.arange((high + 1) * (width + 1) ** 2).reshape(high + 1, width + 1, width + 1)  # z, y, x
        corners = [nodes[z : z + high, y : y + width, x : x + width].ravel() for x, y, z in product((0, 1), repeat=3)]
        self.held = nodes[0].size * 3  # the first displacements
        self.places = (3 * np.stack(corners, axis=1)[:, :, None] + np.arange(3)).reshape(-1, 24) - self.held
        self.n, self.side, self.brick = nodes.size * 3 - self.held, nodes[1:, :, 0], brick()
        pairs = np.broadcast_arrays(self.places[:, :, None], self.places[:, None, :])
        self.free = (pairs[0] >= 0) & (pairs[1] >= 0)
        keys, self.entry = np.unique(pairs[0][self.free] * self.n + pairs[1][self.free], return_inverse=True)
        self.indices, self.indptr = keys % self.n, np.searchsorted(keys, self.n * np.arange(self.n + 1))

    def stiffness(self, moduli: Any) -> Any:
        """K (n, n) for Young's moduli (bricks,)."""
        values = (moduli[:, None, None] * self.brick)[self.free]
        data = np.bincount(self.entry, values, self.indices.size)
        return sp.csr_matrix((data, self.indices, self.indptr), shape=(self.n, self.n))

    def wind(self, step: int) -> Any:
        """f (n,) : a pressure in x on the side x = 0, 1 in the mean, that changes over GUST bricks and in each step."""
        high, across = self.side.shape
        knots = np.random.default_rng(step).standard_normal((high // GUST + 2, across // GUST + 2))
        z, y = np.arange(high) / GUST, np.arange(across) / GUST
        rows = np.array([np.interp(y, np.arange(knots.shape[1]), row) for row in knots])
        gusts = np.array([np.interp(z, np.arange(knots.shape[0]), column) for column in rows.T]).T
        f = np.zeros(self.n)
        f[3 * self.side.ravel() - self.held] = (1 + 0.7 * gusts).ravel()
        return f

    def energy(self, u: Any) -> Any:
        """(bricks,) : the strain energies of displacements u (n,), for a modulus of 1."""
        e = np.where(self.places >= 0, u[self.places], 0.0)
        return np.einsum("bi,ij,bj->b", e, self.brick, e) / 2


def stand(tower: Tower, steps: int, solve: Callable[[Any, Any], fl.Solution]) -> tuple[Any, Any, list[fl.Solution]]:
    """(u, d, the solutions of all steps) after that number of steps in the wind."""
    u, d, found = np.zeros(tower.n), np.zeros(len(tower.places)), []
    scale = 0.0  # the strain energy at which a brick takes 1 - 1/e of MOST, by the first step
    for step in range(steps):
        K = tower.stiffness(1 - d)
        solution = solve((1 + TAU / DT) * K, tower.wind(step) + TAU / DT * (K @ u))
        if not solution.converged:
            raise RuntimeError(f"step {step}: {solution.status.value}")
        u, found = solution.x, [*found, solution]
        energy = tower.energy(u)
        scale = scale or 3 * np.percentile(energy, 99)
        d = np.maximum(d, MOST * (1 - np.exp(-energy / scale)))
    return u, d, found


def by_hand() -> Callable[[Any, Any], fl.Solution]:
    """Steps with factors that are updated each time, from the last x."""
    F: Any = None
    x: Any = None

    def solve(A: Any, b: Any) -> fl.Solution:
        nonlocal F, x
        # the shift is a margin, should a pivot not be positive once the material has softened
        F = fl.IC0(shift=1e-2).factor(A) if F is None else F.update(A)
        solution = fl.cg(A, b, x, rtol=RTOL, M=F)
        x = solution.x
        return solution

    return solve


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=8, help="bricks across")
    parser.add_argument("--steps", type=int, default=24)
    given = parser.parse_args(arguments)
    tower = Tower(given.width)
    ways = {"Sequence": fl.Sequence(rtol=RTOL).step, "by hand": by_hand()}
    for name, solve in ways.items():
        seconds = 0.0

        def timed(A: Any, b: Any, solve: Callable[[Any, Any], fl.Solution] = solve) -> fl.Solution:
            nonlocal seconds
            start = perf_counter()
            solution = solve(A, b)
            seconds += perf_counter() - start
            return solution

        u, d, found = stand(tower, given.steps, timed)
        iterations = [s.iterations for s in found]
        print(f"{name}: {sum(iterations)} iterations, {seconds:.2f} s in the solves; each step {iterations}")
        if name == "Sequence":
            print(found[-1].explain())
    print(f"the top leans by {u.reshape(-1, 3)[-1, 0]:.4g}; the largest damage is {d.max():.2f}")


if __name__ == "__main__":
    main()
