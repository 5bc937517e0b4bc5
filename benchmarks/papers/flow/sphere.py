"""The case of examples/sphere_flow.py: what is measured of a flow around a hot sphere, and its picture.

Values of others: R. Clift, J. R. Grace, M. E. Weber, Bubbles, Drops, and Particles, 1978, chapter 5: the standard drag
curve, here for Re up to 260, and the transfer of heat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.flow.curved import flow_on
from benchmarks.papers.flow.program import canvas, save
from benchmarks.papers.flow.pseudo_time import K
from benchmarks.papers.flow.turbulence import PRANDTL
from finelu.errors import ParameterError

SIZES = {"coarse": (8, 24), "medium": (12, 36), "fine": (18, 54)}  # along an edge of the cube, and away from the sphere


def shells(blocks):
    """The shells of six blocks that make up this number of blocks."""
    if blocks % 6:
        raise ParameterError(f"{blocks} blocks; around a sphere a multiple of 6 is needed.")
    return blocks // 6


def clift_drag(re):
    """The drag coefficient of a sphere, for Reynolds numbers from 0.01 to 260."""
    if re <= 20:
        return 24 / re * (1 + 0.1315 * re ** (0.82 - 0.05 * math.log10(re)))
    return 24 / re * (1 + 0.1935 * re**0.6305)


def clift_nusselt(re):
    """The mean Nusselt number of a sphere in air, for Reynolds numbers from 1 to 400."""
    return 1 + (1 + re * PRANDTL) ** (1 / 3) * re**0.077


@dataclass(frozen=True)
class Measured:
    """The coefficients of a sphere of diameter 1 in the stream (1, 0, 0): forces over pi / 8, mean Nusselt number."""

    drag: float
    sideways: tuple[float, float]
    nusselt: float


def measured(flow, q):
    """The Measured of a state; collective over the processes."""
    through = flow.through_walls(q)
    drag, *sideways = (through[flow.velocity] * 8 / math.pi).tolist()
    return Measured(drag, tuple(sideways), float(-through[K] / through[-1] * PRANDTL / flow.viscosity))


def draw(args, blocks, state, say):
    """Temperature next to the plane z = 0, and the pressure of the wall against the angle from the front."""
    figure, axes = canvas(args.png)
    flow = flow_on(blocks, viscosity=1 / args.re, stream=(1.0, 0.0, 0.0, 0.0, args.chi))
    q = np.concatenate([state[name].reshape(flow.n, -1) for name in flow.grid.names], axis=1)
    x, y, z = flow.centres
    flat = abs(z) < 1.01 * np.tan(math.pi / 4 / args.cells[0]) * np.hypot(x, y)  # the layers on both sides
    near = flat & (abs(x - 1) < 5) & (abs(y) < 3)
    colours = axes[0].tricontourf(x[near], y[near], q[K, near], 24, cmap="inferno")
    figure.colorbar(colours, ax=axes[0], label="temperature", shrink=0.7)
    angle = np.linspace(0, 2 * math.pi, 100)
    axes[0].fill(np.cos(angle) / 2, np.sin(angle) / 2, color="0.85", zorder=3)
    axes[0].set(xlim=(-1.5, 3.5), ylim=(-1.5, 1.5), aspect="equal", xlabel="x", ylabel="y")
    axes[0].set_title(f"sphere, Re = {args.re:g}, {flow.cells} cells in {len(blocks.nodes)} blocks")
    middles, pressures = flow.wall_pressure(q)
    x, *_ = np.concatenate([middle.reshape(3, -1) for middle in middles.values()], axis=1)
    pressure = np.concatenate([p.ravel() for p in pressures.values()])
    axes[1].plot(np.degrees(np.arccos(-2 * x)), 2 * pressure, ".", ms=3, label="pressure coefficient of the wall")
    axes[1].set(xlabel="angle from the front, degrees")
    save(figure, axes, args.png, say)
