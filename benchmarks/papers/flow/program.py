"""What the programs of flows share: options, processes, lines of a table, pictures, and the exit status."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.launch import own_gpu
from benchmarks.papers.flow.pseudo_time import Diverged, PseudoTime, Step
from finelu.device import require_gpu
from finelu.errors import FineluError, ParameterError
from finelu.processes import met_by_all

CONVERGED, NOT_CONVERGED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
PARTS = {"FACT": "BILU FACT", "SOLVE": "BILU SOLV/CORR", "RHS": "RHS", "AFILL": "AFILL", "MPI": "MPI"}  # of Figure 8


# Options --------------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """An error is one line."""

    def error(self, message):
        self.exit(BAD_INPUT, f"{self.prog}: error: {message}\n")


def number(holds, needed):
    """A type of options: a finite number for which `holds`, which the error describes as `needed`."""

    def value(text):
        found = float(text)
        if not (math.isfinite(found) and holds(found)):
            raise argparse.ArgumentTypeError(f"{text} is {needed}")
        return found

    value.__name__ = "number"
    return value


positive = number(lambda v: v > 0, "not a finite number above 0")
not_negative = number(lambda v: v >= 0, "not a finite number, 0 or larger")
degrees = number(lambda v: abs(v) <= 90, "not between -90 and 90")


def at_least(least):
    def count(text):
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        return value

    count.__name__ = "whole number"
    return count


def add_march(case, *, corrections, rtol, method="correct", tolerance="1e-6", in_time=False):
    """The options of pseudo steps, with their defaults; in_time : rtol and cfl have others within time steps."""
    time = ", in time {}" if in_time else ""
    case.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to work (default cpu)")
    case.add_argument("--method", choices=("correct", "gmres"), help=f"for the linear systems (default {method})")
    case.add_argument(
        "--corrections", type=at_least(1), default=corrections, help="the most in a pseudo step (default %(default)s)"
    )
    case.add_argument("--rtol", type=positive, help=f"of a linear solve (default {rtol:g}{time.format(0.2)})")
    case.add_argument("--cfl", type=positive, help=f"of the first pseudo step (default 5{time.format('--cfl-max')})")
    case.add_argument("--cfl-max", type=positive, default=1000.0, help="that it may grow to (default 1000)")
    case.add_argument("--tolerance", type=positive, help=f"fall of the residual (default {tolerance})")
    case.add_argument("--every", type=at_least(1), default=10, help="steps between printed lines (default 10)")
    case.add_argument("--png", type=Path, metavar="FILE", help="draw the flow, and its profiles or history next to it")
    case.set_defaults(default_rtol=rtol)


def add_blocks(case, distance, blocks):
    """The options of a grid of several blocks, and of the processes that share them."""
    case.add_argument("--blocks", type=at_least(1), help=f"that the grid is cut into ({blocks})")
    case.add_argument("--distance", type=positive, default=distance, help="of the outer boundary (default %(default)g)")
    case.add_argument("--beta", type=positive, help="of artificial compressibility (default 1, in time 10)")
    case.add_argument("--mpi", action="store_true", help="deal the blocks out to the processes of mpirun")


def make_march(flow, args, dt=0.0):
    """The PseudoTime of these options; dt : the physical time step, 0 for a steady flow."""
    return PseudoTime(
        flow,
        method=args.method or "correct",
        corrections=args.corrections,
        rtol=args.rtol or (0.2 if dt else args.default_rtol),
        cfl=args.cfl or (args.cfl_max if dt else 5.0),
        cfl_max=args.cfl_max,
    )


def arrays(args, comm=None):
    """numpy or cupy, with the GPU of this process."""
    if args.device == "cpu":
        return np
    return require_gpu() if comm is None else own_gpu(comm)


# Lines ----------------------------------------------------------------------------------------------------------------


def to_steady(march, q, args, say, tolerance=1e-6):
    """The steady state and its steps, with a line for each `every` steps, for the first and for the last."""
    done: list[Step] = []
    names = march.flow.names

    def line(step):
        if len(done) == 1:
            say(f"  step    CFL{''.join(f'{name:>9}' for name in names)}  corrections  held")
        residuals = "".join(f"{r:9.1e}" for r in step.residuals)
        say(f"{len(done):6d} {step.cfl:6.4g}{residuals}  {step.corrections:11d}{step.held:6d}")

    def watch(step):
        done.append(step)
        if len(done) == 1 or len(done) % args.every == 0:
            line(step)

    q, _ = march.steady(q, tolerance=args.tolerance or tolerance, steps=args.steps or 500, watch=watch)
    if len(done) > 1 and len(done) % args.every:
        line(done[-1])
    return q, done


def seconds_of(done):
    """The seconds of the steps, {part: s}."""
    return {part: sum(step.seconds[part] for step in done) for part in PARTS}


def say_totals(done, say):
    say(f"{len(done)} pseudo steps, {sum(step.corrections for step in done)} corrections")
    say("main loop: " + ", ".join(f"{PARTS[part]} {s:.2f} s" for part, s in seconds_of(done).items()))


# Pictures -------------------------------------------------------------------------------------------------------------


def canvas(png):
    """A figure and its two axes, before any work; a ParameterError where it could not be drawn or written."""
    if png is None:
        return None, None
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ParameterError("--png needs matplotlib, which is not installed; install finelu[report].") from error
    if png.suffix != ".png" or not png.parent.is_dir():
        raise ParameterError(f"--png {png}: the name of a .png in a folder that exists is needed.")
    figure = Figure(figsize=(13, 5.5), layout="constrained")
    return figure, figure.subplots(1, 2)


def save(figure, axes, png, say):
    axes[1].legend()
    axes[1].grid(alpha=0.3)
    figure.savefig(png, dpi=120)
    say(f"drew {png}")


# The program ----------------------------------------------------------------------------------------------------------


def ended(comm, text, status):
    """Say why, once where all processes met it; where one did, end the others, which wait for it."""
    alone = comm is not None and not met_by_all(comm)
    if comm is None or alone or comm.rank == 0:
        print(f"process {comm.rank}: {text}" if alone else text, file=sys.stderr, flush=True)
    if alone:
        comm.Abort(status)
    return status


def main(parser, run, arguments=None):
    """Call run(args, comm, say) with the options; comm : None without --mpi.  say : print, on the first process.

    Exit status: 0 converged, 1 not, 2 bad input, 130 interrupted.
    """
    args = parser.parse_args(arguments)
    comm: Any = None

    def say(*words, file=None):
        if comm is None or comm.rank == 0:
            print(*words, file=file, flush=True)

    try:
        if getattr(args, "mpi", False):
            try:
                from mpi4py import MPI
            except ImportError as error:
                raise ParameterError("--mpi needs mpi4py, which is not installed.") from error
            comm = MPI.COMM_WORLD
        run(args, comm, say)
    except Diverged as error:
        return ended(comm, f"not converged: {error}", NOT_CONVERGED)
    except FineluError as error:
        return ended(comm, f"error: {error}", BAD_INPUT)
    except MemoryError as error:
        return ended(comm, f"error: the grid does not fit into memory ({error}); take fewer cells.", BAD_INPUT)
    except KeyboardInterrupt:
        say("interrupted", file=sys.stderr)
        return INTERRUPTED
    return CONVERGED
