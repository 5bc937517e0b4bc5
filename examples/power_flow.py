"""A Monte Carlo over power flows: 1000 states of one grid, whose Newton steps are batches of systems of one pattern.

    python examples/power_flow.py --samples 1000 [--buses 250] [--device cuda]

Each sample has loads and feeds of its own. Newton's method is run for all of them at the same time: a step solves
J_s d_s = -f_s for every sample s that has not converged, by `finelu.solve(batch, f)`. The places of the entries of J
are those of the grid, so that matching, order and pattern of the factors are chosen once. For comparison some samples
are solved one after the other with SciPy's splu.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from time import perf_counter

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

import finelu as fl

TOLERANCE = 1e-9  # of the mismatch of the powers, in units of the grid
STEPS = 12  # of Newton's method, at most


class Grid:
    """The admittances of a grid of buses, and the equations of its power flow; bus 0 holds its voltage.

    Unknowns x (k, 2 m) of k samples: angles, then magnitudes of the voltages of the m other buses.
    """

    def __init__(self, buses: int, seed: int = 0):
        rng = np.random.default_rng(seed)
        place = rng.random((buses, 2))
        far = np.linalg.norm(place[:, None] - place, axis=2)
        lines = {(int(far[i, :i].argmin()), i) for i in range(1, buses)}  # a tree of short lines
        near = np.argsort(far, axis=1)[:, 1:3]
        lines |= {(min(i, int(j)), max(i, int(j))) for i in range(buses) for j in near[i] if rng.random() < 0.4}
        i, j = np.array(sorted(lines)).T
        impedance = (0.02 + 0.1j) * (0.2 + far[i, j] / far[i, j].mean())
        y = 1 / impedance
        Y = sp.coo_matrix((np.concatenate([-y, -y]), (np.concatenate([i, j]), np.concatenate([j, i]))), (buses, buses))
        self.Y = sp.csr_matrix(Y - sp.diags(np.asarray(Y.sum(axis=1)).ravel()))
        self.Y.sort_indices()
        self.rows, self.columns = np.repeat(np.arange(buses), np.diff(self.Y.indptr)), self.Y.indices
        self.diagonal = np.flatnonzero(self.rows == self.columns)
        self.inner = np.flatnonzero((self.rows > 0) & (self.columns > 0))
        m, (r, c) = buses - 1, (self.rows[self.inner] - 1, self.columns[self.inner] - 1)
        at = np.concatenate([r, r, r + m, r + m]), np.concatenate([c, c + m, c, c + m])
        self.pattern = sp.coo_matrix((np.ones(4 * r.size), at), shape=(2 * m, 2 * m))  # the order of `jacobians`

    def powers(self, x):
        """Active and reactive power (k, 2 m) that flow into the grid, and what Jacobians are made of."""
        k, m = x.shape[0], x.shape[1] // 2
        angle, size = np.zeros((k, m + 1)), np.ones((k, m + 1))
        angle[:, 1:], size[:, 1:] = x[:, :m], x[:, m:]
        turned = np.exp(1j * (angle[:, self.rows] - angle[:, self.columns]))
        terms = size[:, self.rows] * size[:, self.columns] * turned * self.Y.data.conj()
        S = np.add.reduceat(terms, self.Y.indptr[:-1], axis=1)
        return np.concatenate([S.real[:, 1:], S.imag[:, 1:]], axis=1), (terms, S, size)

    def jacobians(self, parts):
        """The values (k, nnz) of the derivatives of `powers`, in the order of `pattern`."""
        terms, S, size = parts
        by_angle, by_size = -1j * terms, terms / size[:, self.columns]
        by_angle[:, self.diagonal] += 1j * S
        by_size[:, self.diagonal] += S / size
        by_angle, by_size = by_angle[:, self.inner], by_size[:, self.inner]
        return np.concatenate([by_angle.real, by_size.real, by_angle.imag, by_size.imag], axis=1)

    def loads(self, samples: int, seed: int = 1):
        """Random powers (samples, 2 m): loads and feeds that nearly balance."""
        rng, m = np.random.default_rng(seed), self.Y.shape[0] - 1
        typical = rng.normal(0, 0.007, m)
        active = typical * rng.normal(1, 0.3, (samples, m)) - 0.0006
        return np.concatenate([active, 0.3 * active], axis=1)


def power_flows(grid: Grid, wanted, xp=np):
    """The states x (k, 2 m) for the wanted powers, the steps of Newton's method, and the number of systems that were
    solved, with the seconds of that.

    xp : numpy, or cupy: then the systems are solved on the GPU.
    """
    m = wanted.shape[1] // 2
    x = np.tile(np.concatenate([np.zeros(m), np.ones(m)]), (len(wanted), 1))
    batch, solved, seconds = None, 0, 0.0
    for step in range(STEPS):
        now, parts = grid.powers(x)
        f = now - wanted
        left = np.flatnonzero(abs(f).max(axis=1) > TOLERANCE)
        if not left.size:
            return x, step, solved, seconds
        values = grid.jacobians([part[left] for part in parts])
        begin = perf_counter()
        if batch is None:
            pattern = grid.pattern
            if xp is not np:
                pattern = importlib.import_module("cupyx.scipy.sparse").coo_matrix(pattern)
            batch = fl.Batch(pattern, xp.asarray(values))
        else:
            batch = batch.with_values(xp.asarray(values))
        d = fl.solve(batch, xp.asarray(-f[left]), rtol=1e-10, raise_on_failure=True, verbose=False).x
        x[left] += d if xp is np else d.get()
        solved, seconds = solved + left.size, seconds + perf_counter() - begin
    raise SystemExit(f"{left.size} power flows have not converged in {STEPS} steps")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--buses", type=int, default=250)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args(arguments)
    xp = np if options.device == "cpu" else importlib.import_module("cupy")
    grid = Grid(options.buses)
    wanted = grid.loads(options.samples)
    power_flows(grid, wanted[:8], xp)  # compiles kernels at their first use
    begin = perf_counter()
    x, steps, solved, solving = power_flows(grid, wanted, xp)
    seconds = perf_counter() - begin
    lowest = x[:, x.shape[1] // 2 :].min(axis=1)
    print(f"{options.samples} power flows of {options.buses} buses, {steps} steps of Newton's method: {seconds:.3g} s")
    print(f"lowest voltage of each: {lowest.mean():.4f} +- {lowest.std():.4f}, of all: {lowest.min():.4f}")
    _, parts = grid.powers(x[:20])
    matrices = fl.Batch(grid.pattern, grid.jacobians(parts))
    begin = perf_counter()
    for s in range(len(matrices)):
        splu(sp.csc_matrix(matrices[s])).solve(x[s])
    each = (perf_counter() - begin) / len(matrices)
    print(f"{solved} systems were solved in {solving:.3g} s; a loop over SciPy's splu takes {solved * each:.3g} s")


if __name__ == "__main__":
    main()
