"""Laminar flow around a cylinder or an airfoil in 2D, on blocks of curvilinear grids that meet at interfaces.

    python examples/body_flow.py cylinder --re 40 --png cylinder.png
    python examples/body_flow.py cylinder --re 100 --grid medium --dt 0.1 --device cuda
    python examples/body_flow.py airfoil --re 500 --grid medium --png airfoil.png
    mpirun -n 4 python examples/body_flow.py cylinder --re 100 --mpi

A cylinder lies in an O-grid, an airfoil (NACA 0012, its trailing edge made sharp) in a C-grid, whose two wake blocks
meet along the line behind the airfoil and run against each other there. benchmarks/papers/flow has the equations.
"""

import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.papers.flow import body, grids, program
from benchmarks.papers.flow.curved import flow_on, gathered


def parser():
    top = program.Parser(description=__doc__.split("\n\n")[0])
    cases = top.add_subparsers(dest="case", required=True, metavar="cylinder|airfoil")
    for name, about, re in (
        ("cylinder", "O-grid; steady up to Re 47, above with vortex shedding", 40.0),
        ("airfoil", "NACA 0012 in a C-grid; steady, or in time with --dt", 500.0),
    ):
        case = cases.add_parser(name, help=about, description=about)
        case.add_argument("--re", type=program.positive, default=re, help="Reynolds number (default %(default)g)")
        case.add_argument("--grid", choices=tuple(body.SIZES[name]), default="coarse", help="(default coarse)")
        case.add_argument("--cells", type=program.at_least(4), nargs=2, metavar=("I", "J"), help="around and away")
        if name == "airfoil":
            case.add_argument("--alpha", type=program.degrees, default=0.0, help="angle of attack in degrees (0)")
        case.add_argument("--dt", type=program.not_negative, help="physical time step; 0: steady (by --re and --grid)")
        case.add_argument("--steps", type=program.at_least(1), help="the most: pseudo steps (500), or those in time")
        program.add_blocks(case, 50.0, f"{body.LEAST[name]}, or one a process")
        method, tolerance = "gmres; correct with --mpi", "1e-6, in time 3e-3"
        program.add_march(case, corrections=60, rtol=0.05, method=method, tolerance=tolerance, in_time=True)
    return top


def run(args, comm, say):
    begin = perf_counter()
    program.canvas(args.png)
    cells, dt = args.cells or body.SIZES[args.case][args.grid][:2], body.time_step(args)
    args.blocks = args.blocks or max(body.LEAST[args.case], 1 if comm is None else comm.size)
    beta = args.beta or (10.0 if dt else 1.0)  # with 1, drag jumps in the first small steps on 270 x 189 cells
    blocks = {"cylinder": grids.cylinder, "airfoil": grids.airfoil}[args.case](cells, args.blocks, args.distance)
    xp, stream = program.arrays(args, comm), body.stream_of(args)
    flow = flow_on(blocks, comm, viscosity=1 / args.re, stream=stream, beta=beta, xp=xp)
    say(f"{args.case}, Re {args.re:g}: {body.cells_in(flow.all_cells, args.blocks)}, boundary at {args.distance:g}")
    args.method = args.method or ("gmres" if comm is None else "correct")
    march, q, history = program.make_march(flow, args, dt), flow.start(), None
    if dt:
        q, done, history = body.run_in_time(args, flow, q, march, say, dt)
    else:
        q, done = program.to_steady(march, q, args, say)
    drag, lift = body.coefficients(flow, q)
    state = gathered(flow, q)
    if state is not None:
        body.report(args, blocks, state, drag, lift, history, say)
    program.say_totals(done, say)
    say(f"{perf_counter() - begin:.1f} s in all")
    if args.png is not None and state is not None:
        body.draw(args, blocks, state, history, say)


def main(arguments=None):
    return program.main(parser(), run, arguments)


if __name__ == "__main__":
    sys.exit(main())
