"""The operating point of a circuit: a sheet of resistors over two decades, fed by voltage and current sources.

    python examples/circuit.py --width 200 --png build/circuit.png

Modified nodal analysis: a row a node (the currents that leave it add up to zero) and a row a voltage source (the
potential between its ends). The rows of the sources have no diagonal entry, on which the factorizations without
exchanges of rows end with an error that names the row; `solve` sees it, and chooses another.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl


@dataclass(frozen=True)
class Circuit:
    """A : the matrix.  b : the sources.  wires (m, 2), conductances (m,) : of the resistors; node 0 is the ground.
    sources (k, 2), volts (k,) : the potential of the first end over the second.  currents : into each node."""

    A: Any
    b: Any
    wires: Any
    conductances: Any
    sources: Any
    volts: Any
    currents: Any


def sheet(width: int, sources: int = 8, seed: int = 0) -> Circuit:
    """width x width nodes in addition to the ground, `sources` voltage sources between random nodes and the ground."""
    rng = np.random.default_rng(seed)
    node = 1 + np.arange(width**2).reshape(width, width)
    along = np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()], 1)
    across = np.stack([node[:-1].ravel(), node[1:].ravel()], 1)
    wires = np.concatenate([along, across])
    g = 10 ** rng.uniform(-1, 1, len(wires))
    fed = np.stack([rng.choice(np.arange(1, width**2 + 1), sources, replace=False), np.zeros(sources, int)], 1)
    volts = rng.uniform(1, 5, sources)
    currents = np.zeros(width**2 + 1)
    currents[rng.integers(1, width**2 + 1, 5)] = 0.1

    n, one, two = width**2, wires[:, 0], wires[:, 1]
    stamps = sp.coo_matrix((np.concatenate([g, g, -g, -g]), (np.r_[one, two, one, two], np.r_[one, two, two, one])))
    G = stamps.tocsr()[1:, 1:]  # the ground's row and column are left out
    sign = np.r_[np.ones(sources), -np.ones(sources)]
    ends = sp.coo_matrix((sign, (np.r_[fed[:, 0], fed[:, 1]], np.r_[:sources, :sources])), shape=(n + 1, sources))
    B = ends.tocsr()[1:]
    A = sp.csr_matrix(sp.bmat([[G, B], [B.T, None]]))
    return Circuit(A, np.concatenate([currents[1:], volts]), wires, g, fed, volts, currents)


def powers(circuit: Circuit, x):
    """(power that the resistors take, power that all sources give), in watts."""
    n = circuit.currents.size - 1
    potential = np.concatenate([[0.0], x[:n]])
    drop = potential[circuit.wires[:, 0]] - potential[circuit.wires[:, 1]]
    given = circuit.currents @ potential - x[n:] @ circuit.volts  # x[n:] leaves the nodes for the sources
    return float(circuit.conductances @ drop**2), float(given)


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=200, help="nodes a side")
    parser.add_argument("--png", help="file for a picture, by matplotlib")
    options = parser.parse_args(arguments)
    circuit = sheet(options.width)
    solution = fl.solve(circuit.A, circuit.b, 1e-10)
    print(solution.explain())
    taken, given = powers(circuit, solution.x)
    print(f"power taken {taken:.9g} W, given {given:.9g} W")
    if options.png:
        draw(circuit, solution.x[: options.width**2].reshape(options.width, -1), options.png)


def draw(circuit: Circuit, potential: Any, name: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(potential, origin="lower", cmap="viridis")
    for node, volts in zip(circuit.sources[:, 0] - 1, circuit.volts):
        y, x = divmod(node, len(potential))
        axes.plot(x, y, "wo", ms=4, mec="black")
        right = x > 0.8 * len(potential)
        axes.annotate(f"{volts:.1f} V", (x, y), xytext=(-6 if right else 6, 0), textcoords="offset points",
                      ha="right" if right else "left", va="center", color="white", fontsize=8)  # fmt: skip
    axes.set(xticks=[], yticks=[], title="potential of a sheet of resistors")
    figure.colorbar(shown, label="V")
    figure.savefig(name, dpi=133)


if __name__ == "__main__":
    main()
