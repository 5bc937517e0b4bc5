"""Flow around a hot sphere in 3D with six unknowns a cell: p, u, v, w, temperature, and a turbulence equation.

    python examples/sphere_flow.py --re 100 --grid medium --png sphere.png
    python examples/sphere_flow.py --re 100 --cells 32 64 --device cuda
    mpirun -n 2 python examples/sphere_flow.py --re 40 --mpi

Six blocks around the sphere, as from a cube blown up to it, meet at twelve edges. At these Reynolds numbers the flow is
laminar: the turbulence equation (Spalart, Allmaras) carries what the free stream brings, --chi, and changes little.
benchmarks/papers/flow has the equations.
"""

import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.papers.flow import grids, program, sphere
from benchmarks.papers.flow.curved import flow_on, gathered


def parser():
    top = program.Parser(description=__doc__.split("\n\n")[0])
    top.add_argument("--re", type=program.positive, default=100.0, help="Reynolds number (default %(default)g)")
    top.add_argument("--grid", choices=tuple(sphere.SIZES), default="coarse", help="(default coarse)")
    top.add_argument("--cells", type=program.at_least(3), nargs=2, metavar=("M", "L"), help="an edge, and away")
    top.add_argument("--chi", type=program.not_negative, default=0.1, help="nu~ / nu far away (default 0.1)")
    top.add_argument("--steps", type=program.at_least(1), help="the most pseudo steps (default 500)")
    program.add_blocks(top, 20.0, "a multiple of 6, default 6; more are cut along the radius")
    program.add_march(top, corrections=60, rtol=0.05)
    return top


def run(args, comm, say):
    begin = perf_counter()
    program.canvas(args.png)
    args.cells = args.cells or sphere.SIZES[args.grid]
    blocks = grids.sphere(args.cells, sphere.shells(args.blocks or 6), args.distance)
    stream, xp = (1.0, 0.0, 0.0, 0.0, args.chi), program.arrays(args, comm)
    flow = flow_on(blocks, comm, viscosity=1 / args.re, stream=stream, beta=args.beta or 1.0, xp=xp)
    say(f"sphere, Re {args.re:g}: {flow.all_cells} cells in {len(blocks.nodes)} blocks, boundary at {args.distance:g}")
    q, done = program.to_steady(program.make_march(flow, args), flow.start(), args, say)
    found = sphere.measured(flow, q)
    known = f"(others: {sphere.clift_drag(args.re):.3f})"
    say(f"drag {found.drag:.5f} {known}, sideways {max(map(abs, found.sideways)):.1e}")
    say(f"Nusselt number {found.nusselt:.4f} (others: {sphere.clift_nusselt(args.re):.2f})")
    program.say_totals(done, say)
    say(f"{perf_counter() - begin:.1f} s in all")
    state = gathered(flow, q)
    if args.png is not None and state is not None:
        sphere.draw(args, blocks, state, say)


def main(arguments=None):
    return program.main(parser(), run, arguments)


if __name__ == "__main__":
    sys.exit(main())
