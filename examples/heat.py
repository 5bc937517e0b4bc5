"""Heat in a square by implicit Euler steps of growing length: one linear system a step, with the same pattern.

    python examples/heat.py --cells 200 --steps 30 --png build/heat.png

(I + dt_k K) u_(k+1) = u_k, where K is the 5-point stencil over h^2. `Sequence` decides at each step whether the factors
of an earlier matrix still serve, are refreshed with the new values, or are made anew; `explain()` tells which.
"""

from __future__ import annotations

import argparse
from typing import Any

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
    parser.add_argument("--png", help="file for a picture, by matplotlib")
    options = parser.parse_args(arguments)
    hottest = []

    def report(k, time, solution):
        print(f"step {k + 1}, t = {time:.2e}, {solution.iterations} iterations\n{solution.explain()}")
        hottest.append(solution.x.max())

    u, times = heat(options.cells, options.steps, report=report)
    print(f"hottest: {u.max():.4f}")
    if options.png:
        draw(u, times[1:], hottest, options.png)


def draw(u: Any, times: Any, hottest: list[float], name: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    plate, decay = figure.subplots(1, 2)
    shown = plate.imshow(u, origin="lower", cmap="inferno", extent=(0, 1, 0, 1), vmin=0)
    plate.set(xticks=[], yticks=[], title=f"temperature at t = {times[-1]:.2g}")
    figure.colorbar(shown)
    decay.plot(times, hottest, "o", ms=4, label="implicit Euler, steps of growing length")
    decay.plot(times, np.exp(-2 * np.pi**2 * times), "-", color="0.4", lw=1, label="exact decay")
    decay.set(xlabel="t", ylabel="hottest point")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(name, dpi=133)


if __name__ == "__main__":
    main()
