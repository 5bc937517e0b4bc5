"""Heat in a square by implicit Euler steps of growing length: one linear system a step, with the same pattern.

    python examples/heat.py --cells 200 --steps 30

(I + dt_k K) u_(k+1) = u_k, where K is the 5-point stencil over h^2. `Sequence` decides at each step whether the factors
of an earlier matrix still serve, are refreshed with the new values, or are made anew; `explain()` tells which.
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.sparse as sp

import finelu as fl


def heat(cells: int, steps: int, dt: float = 1e-4, growth: float = 1.1, report=None):
    """The temperatures (cells, cells) after `steps` steps from the lowest mode, and the times of all steps.

    report(k, time, solution) is called after each step.
    """
    h = 1 / (cells + 1)
    K = sp.csr_matrix(fl.gallery.poisson5(cells)) / h**2
    identity = sp.identity(cells**2, format="csr")
    s = np.sin(np.pi * h * np.arange(1, cells + 1))
    u, times = np.outer(s, s).ravel(), [0.0]
    sequence = fl.Sequence(rtol=1e-10)
    for k in range(steps):
        solution = sequence.step(identity + dt * K, u)
        if not solution.converged:
            raise RuntimeError(f"step {k}: {solution.status.value}")
        u = solution.x
        times.append(times[-1] + dt)
        if report:
            report(k, times[-1], solution)
        dt *= growth
    return u.reshape(cells, cells), np.array(times)


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=200, help="inner points a side")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args(arguments)

    def report(k, time, solution):
        print(f"step {k + 1}, t = {time:.2e}, {solution.iterations} iterations\n{solution.explain()}")

    u, _ = heat(options.cells, options.steps, report=report)
    print(f"hottest: {u.max():.4f}")


if __name__ == "__main__":
    main()
