"""Incompressible Navier-Stokes in 2D and 3D, whose Jacobians are block matrices on the 7-point stencil.

    python examples/channel_flow.py cavity --re 100 --cells 64 --png cavity.png
    python examples/channel_flow.py channel --cells 8 32 8 --section duct --drive inflow --device cuda
    python examples/channel_flow.py channel --unknowns 6 --re 395 --cells 2 64 1 --stretch 2.5
    python examples/channel_flow.py taylor-green --cells 32 --steps 40

benchmarks/papers/flow has the equations: four unknowns a cell, or six with k and omega, on one Cartesian block.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.papers.flow import channel, program

CASES = {
    "cavity": "2D, a lid moves over the unit square; against the tables of Ghia, Ghia, Shin 1982",
    "channel": "3D, between plates or in a square duct; against Poiseuille's profiles",
    "taylor-green": "2D, unsteady: vortices whose energy decays as exp(-4 t / Re)",
}


def parser():
    top = program.Parser(description=__doc__.split("\n\n")[0])
    cases = top.add_subparsers(dest="case", required=True, metavar="|".join(CASES))
    for name, about in CASES.items():
        case = cases.add_parser(name, help=about, description=about)
        case.add_argument("--re", type=program.positive, default=100.0, help="Reynolds number; channel: 1 / nu (100)")
        if name == "channel":
            count = program.at_least(1)
            case.add_argument("--cells", type=count, nargs=3, default=(8, 32, 8), metavar=("I", "J", "K"))
            case.add_argument("--section", choices=("plates", "duct"), default="plates", help="(default plates)")
            case.add_argument("--drive", choices=("force", "inflow"), default="force", help="force: periodic along x")
            case.add_argument("--stretch", type=program.not_negative, default=0.0, help="to the walls, 0 (none) to 5")
        else:
            edge = 64 if name == "cavity" else 32
            case.add_argument("--cells", type=program.at_least(4), default=edge, help="along x, and y")
        if name == "taylor-green":
            case.add_argument("--dt", type=program.positive, default=0.1, help="physical time step (default 0.1)")
            case.add_argument("--steps", type=program.at_least(1), default=20, help="physical time steps (default 20)")
        else:
            case.add_argument("--unknowns", type=int, choices=(4, 6), default=4, help="of a cell; 6: k and omega too")
            case.add_argument("--steps", type=program.at_least(1), default=500, help="the most pseudo steps (500)")
        program.add_march(case, corrections=20, rtol=0.1, tolerance="1e-6, six unknowns 1e-8, in time 1e-4")
    return top


def run(args, comm, say):
    runs = {"cavity": channel.run_cavity, "channel": channel.run_channel, "taylor-green": channel.run_taylor_green}
    runs[args.case](args, say)


def main(arguments=None):
    return program.main(parser(), run, arguments)


if __name__ == "__main__":
    sys.exit(main())
