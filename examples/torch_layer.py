"""A sparse solve as a layer of a PyTorch model: find the conductances of a network from the potentials they lead to.

    python examples/torch_layer.py --width 12 --steps 100

The layer holds the logarithm of the conductance of each wire of a grid, assembles the matrix of the network, and solves
it; the gradient comes from one more solve with the same factors, transposed. Needs `pip install '.[torch]'`.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from finelu.interop.torch import solve


class Network(torch.nn.Module):
    """currents (nodes,) -> potentials (nodes,) of a width x width grid of wires; each node is tied to the ground."""

    def __init__(self, width: int, ground: float = 0.1):
        super().__init__()
        node = np.arange(width**2).reshape(width, width)
        i = np.concatenate([node[:, :-1].ravel(), node[:-1].ravel()])
        j = np.concatenate([node[:, 1:].ravel(), node[1:].ravel()])
        diagonal = node.ravel()
        rows, columns = (np.concatenate(parts) for parts in ((i, j, i, j, diagonal), (j, i, i, j, diagonal)))
        self.register_buffer("places", torch.from_numpy(np.stack([rows, columns])))
        self.register_buffer("ground", torch.full((width**2,), ground, dtype=torch.float64))
        self.logarithms = torch.nn.Parameter(torch.zeros(i.size, dtype=torch.float64))

    def forward(self, currents):
        g = self.logarithms.exp()
        values = torch.cat([-g, -g, g, g, self.ground])  # entries of one place are added up
        n = self.ground.numel()
        return solve(torch.sparse_coo_tensor(self.places, values, (n, n), check_invariants=False), currents, rtol=1e-10)


def fit(width: int, steps: int, seed: int = 0):
    """The losses of each step while a network learns the wires of another from the potentials at all nodes."""
    rng = np.random.default_rng(seed)
    truth, model = Network(width), Network(width)
    with torch.no_grad():
        truth.logarithms += torch.from_numpy(rng.uniform(-1, 1, truth.logarithms.numel()))
    currents = torch.from_numpy(rng.standard_normal(width**2))
    potentials = truth(currents).detach()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((model(currents) - potentials) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=12, help="nodes a side")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args(arguments)
    losses = fit(options.width, options.steps)
    print(f"loss: {losses[0]:.3e} in the first step, {losses[-1]:.3e} in the last")


if __name__ == "__main__":
    main()
