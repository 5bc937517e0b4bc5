"""The cases of examples/body_flow.py: what is measured of a flow around a cylinder or an airfoil, and its pictures.

Values of others, for the cylinder: S. C. R. Dennis, G.-Z. Chang 1970, B. Fornberg 1980 (Re 40); C. H. K. Williamson
1989 (Re 100).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline, LinearNDInterpolator

from benchmarks.papers.flow.curved import flow_on
from benchmarks.papers.flow.grids import means
from benchmarks.papers.flow.program import canvas, save
from benchmarks.papers.flow.pseudo_time import U

SIZES = {  # cells around and away from the body, and the physical time step
    "cylinder": {"coarse": (80, 56, 0.1), "medium": (120, 84, 0.1 / 1.5), "fine": (180, 126, 0.1 / 2.25)},
    "airfoil": {"coarse": (128, 40, 0.02), "medium": (256, 80, 0.01), "fine": (512, 160, 0.005)},
}
UNTIL = {"cylinder": 60.0, "airfoil": 20.0}  # time that a flow is followed for
LEAST = {"cylinder": 1, "airfoil": 3}  # blocks of a grid
ONSET = 47.0  # Reynolds number from which the flow around a cylinder is unsteady


def bubble(blocks, state):
    """Length of the recirculation behind a cylinder, in diameters; 0 if there is none. On an O-grid from angle 0."""
    names = list(blocks.nodes)
    sides = []
    for name, (first, second) in ((names[0], (0, 1)), (names[-1], (-1, -2))):
        x = blocks.nodes[name]
        x = means(x, (-2, -1))[0]
        both = np.stack((x, state[name][U]))
        sides.append((9 * both[:, first] - both[:, second]) / 8)  # on the axis, where both are even
    x, u = sum(sides) / 2
    roots = CubicSpline(np.r_[0.5, x], np.r_[0.0, u]).roots(extrapolate=False)
    roots = roots[(roots > 0.51) & (roots < 20)]
    return float(roots[-1] - 0.5) if roots.size else 0.0


@dataclass(frozen=True)
class Cycle:
    """Strouhal number, mean drag and the amplitude of lift over the last periods; `drift` of it between them."""

    periods: int
    strouhal: float
    drag: float
    lift: float
    drift: float


def cycle(times, drag, lift, periods=5):
    """The Cycle of a history; None where the lift crosses its mean too seldom, or its amplitude changes by a half.

    Crossings and extrema are those of cubic splines, which follow BDF2's steps to fourth order.
    """
    times, drag, lift = (np.asarray(a) for a in (times, drag, lift))
    late = times > times[-1] / 3
    if late.sum() < 8:
        return None
    middle = (lift[late].max() + lift[late].min()) / 2
    curve = CubicSpline(times[late], lift[late] - middle)
    rising = curve.roots(extrapolate=False)
    rising = rising[curve(rising, 1) > 0]
    periods = min(periods, len(rising) - 1)
    if periods < 2:
        return None
    begin, end = rising[-1 - periods], rising[-1]
    turns = curve.derivative().roots(extrapolate=False)
    peaks = abs(curve(turns[(turns > begin) & (turns < end)]))
    lift, drift = float(peaks.mean()), float(np.ptp(peaks) / peaks.mean())
    if drift > 0.5:
        return None
    mean = float(CubicSpline(times, drag).integrate(begin, end) / (end - begin))
    return Cycle(periods, periods / (end - begin), mean, lift, drift)


def cells_in(cells, blocks):
    return f"{cells} cells in {blocks} block{'s' if blocks > 1 else ''}"


def stream_of(args):
    angle = math.radians(getattr(args, "alpha", 0.0))
    return math.cos(angle), math.sin(angle)


def time_step(args):
    """The physical time step of these options, 0 for a steady flow."""
    if args.dt is not None:
        return args.dt
    return SIZES[args.case][args.grid][2] if args.case == "cylinder" and args.re >= ONSET else 0.0


def disturb(flow, q):
    """Push the fluid behind the body aside, for vortices to be shed soon."""
    x, y = flow.centres
    q[U + 1] += 0.5 * flow.xp.exp(-((x - 1.5) ** 2) - y**2)


def coefficients(flow, q):
    """The coefficients of drag and lift, along the free stream and across it."""
    (x, y), (a, b) = flow.force(q), flow.stream
    return 2 * (x * a + y * b), 2 * (y * a - x * b)


def run_in_time(args, flow, q, march, say, dt):
    """The flow after the last step, with the history (times, drag, lift)."""
    done: list[Any] = []
    history: list[tuple[float, float, float]] = []
    count = args.steps or math.ceil(UNTIL[args.case] / dt)
    say("      time      drag      lift  pseudo steps  corrections")

    def watch(time, q, steps):
        done.extend(steps)
        history.append((time, *coefficients(flow, q)))
        if len(history) == 1 or len(history) % args.every == 0 or len(history) == count:
            corrections = sum(step.corrections for step in steps)
            say(f"{time:10.4g} {history[-1][1]:9.4f} {history[-1][2]:9.4f} {len(steps):13d} {corrections:12d}")

    disturb(flow, q)
    q = march.in_time(q, dt, count, tolerance=args.tolerance or 3e-3, watch=watch)
    return q, done, np.array(history).T


def report(args, blocks, state, drag, lift, history, say):
    """What the flow is compared by, next to the values of others."""
    if history is None and args.case == "cylinder":
        known = " (others: drag 1.50 to 1.55, length 2.2 to 2.35)" if args.re == 40 else ""
        say(f"drag {drag:.5f}, length of the recirculation {bubble(blocks, state):.5f}{known}")
        return
    if history is None:
        say(f"drag {drag:.5f}, lift {lift:.5f}")
        return
    known = " (others: Strouhal 0.164 to 0.166)" if args.case == "cylinder" and args.re == 100 else ""
    result = cycle(*history)
    if result is None:
        say("no periods that repeat themselves; allow more --steps")
    else:
        say(
            f"Strouhal {result.strouhal:.5f}, mean drag {result.drag:.5f}, lift amplitude {result.lift:.5f} "
            f"over the last {result.periods} periods, in which it changes by {result.drift:.1%}{known}"
        )


def draw(args, blocks, state, history, say):
    """Vorticity with streamlines, and the pressure on the wall or the history of drag and lift."""
    figure, axes = canvas(args.png)
    flow = flow_on(blocks, viscosity=1 / args.re, stream=stream_of(args))
    q = np.concatenate([state[name].reshape(flow.n, -1) for name in flow.grid.names], axis=1)
    window, most = {"cylinder": ((-1.5, 8.0, -2.5, 2.5), 4), "airfoil": ((-0.4, 2.6, -0.8, 0.8), 15)}[args.case]
    for name, values in flow.by_name(np.concatenate([v.ravel() for v in flow.vorticity(q)])).items():
        colours = axes[0].pcolormesh(*blocks.nodes[name], values, cmap="RdBu_r", vmin=-most, vmax=most)
    figure.colorbar(colours, ax=axes[0], label="vorticity", shrink=0.7)
    x, y = flow.centres
    near = (x > window[0] - 1) & (x < window[1] + 1) & (abs(y) < window[3] + 1)
    grid = np.linspace(*window[:2], 160), np.linspace(*window[2:], 90)
    velocity = LinearNDInterpolator(np.c_[x, y][near], q[U:, near].T)(*np.meshgrid(*grid))
    u, v = np.moveaxis(velocity, -1, 0)
    axes[0].streamplot(*grid, u, v, color="0.3", linewidth=0.4, density=1.3, arrowsize=0.5)
    walls = [name for name in blocks.nodes if blocks.ends[name].get("j-") is not None]
    axes[0].fill(*np.concatenate([blocks.nodes[name][..., 0] for name in walls], axis=1), color="0.85", zorder=3)
    axes[0].set(xlim=window[:2], ylim=window[2:], aspect="equal", xlabel="x", ylabel="y")
    axes[0].set_title(f"{args.case}, Re = {args.re:g}, {cells_in(flow.cells, len(blocks.nodes))}")
    if history is None:
        middle, pressure = flow.wall_pressure(q)
        axes[1].plot(
            *np.concatenate([(middle[name][0], 2 * pressure[name]) for name in walls], axis=1),
            label="pressure coefficient of the wall",
        )
        axes[1].set(xlabel="x")
    else:
        axes[1].plot(history[0], history[1], label="drag coefficient")
        axes[1].plot(history[0], history[2], label="lift coefficient")
        axes[1].set(xlabel="t", ylim=(-1, 2))
    save(figure, axes, args.png, say)
