"""Wanted: on one GPU block ILU(0) factors 200 times, solves 60 times as fast as one core, 8 and 3 times as cuSPARSE.

Tables 1 to 4 and Figures 9 and 10 of L. Luo, J. R. Edwards, H. Luo, F. Mueller, "A fine-grained block ILU scheme on
regular structures for GPGPUs", with the paper's numbers. The matrices are Jacobians of the channel flow of
benchmarks/papers/flow with n = 4 and n = 6 unknowns a cell, float64; other n by the paper's block-diagonal
construction from these two.

- sequential: the global algorithm in natural order on one core, as one writes it, compiled by Numba
- CPU: finelu with this number of threads
- GPU CL: finelu, the paper's CL style in one launch, without pivoting as in the paper; GPU CL, pivoting: as by default
- GPU CL, launches: the CL style as the paper has it, a launch a hyperplane, n up to 32; GPU ACC: its ACC style
- GPU BSR: the same matrix without knowledge of its grid
- cuSPARSE: bsrilu02, and bsrsv2 with L and with U; the best of both policies and both ways to store a block
- MKL, ilupp: the scalar ILU(0) of the same matrix written out, which is the same factorization

Per-point times are those of one sweep over the domain. Before each call on the GPU 256 MiB are read, on the CPU calls
take copies of the matrix in turn, so that no cache holds it. Results are compared with the sequential ones (on grids
that are too large for these with those of the ACC style): relative differences of M^-1 b and of the factors. Table 1 is
compared with the sequential algorithm that keeps the L U factors of the diagonal blocks; all others keep inverses.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import Budget, copy_bandwidth
from benchmarks.harness.figure import draw
from benchmarks.harness.options import (
    add_budget,
    add_device,
    add_place,
    add_sources,
    chosen_parts,
    command,
    wants_gpu,
)
from benchmarks.harness.record import Run, RunEnded, new_run
from benchmarks.papers.fgbilu_figures import FIGURES
from benchmarks.papers.fgbilu_measure import cpu_unknowns, measure_matrix, measure_steps, scalar_only
from benchmarks.papers.fgbilu_systems import ENTRIES, edge_for
from benchmarks.papers.fgbilu_tables import bandwidth, tables, wrong_table
from finelu.threads import available_cores

EDGES = (15, 25, 35, 45, 55, 65, 100, 150, 200)  # Figure 9; the paper's are those up to 65
UNKNOWNS = (4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 48, 64)  # Figure 10
DOMAIN = (51, 97, 63)  # of Table 1
LARGEST_ON_CPU = 65**3  # cells of Figure 9 on the CPU
PARTS = ("sizes", "steps", "unknowns")
QUICK = {"edges": (6, 9), "unknowns": (4, 6, 10), "entries": 2e4, "domain": (7, 5, 6)}


def page(run: Run, out: Path) -> str:
    """Tables and figures as Markdown; the PNGs are written into `out`."""
    text = run.heading() + "\n" + (__doc__ or "").partition("\n\n")[2].rstrip() + "\n"
    for title, body in tables(run).items():
        text += f"\n## {title}\n\n{body or 'Absent: not measured in this run.'}" + ("" if body else "\n")
    for number, (title, drawing) in FIGURES.items():
        target = out / f"{run.stem}-fig{number}.png"
        text += f"\n## Figure {number}: {title}\n\n"
        drawn = draw(target, f"Figure {number}: {title}", drawing, run)
        text += f"![Figure {number}]({target.name})\n" if drawn else "Absent: not measured in this run.\n"
    if wrong := wrong_table(run):
        text += f"\n## Results that are not those of the reference; they count in no ratio\n\n{wrong}"
    return text + run.footing()


def tasks(run: Run, options: argparse.Namespace) -> Iterable[tuple[str, Callable[[], None]]]:
    """The measurements, the most important first: (name, function to call)."""
    small = [e for e in options.edges if e**3 <= options.largest_on_cpu]
    large = [e for e in options.edges if e**3 > options.largest_on_cpu]

    def sizes(edges, on_cpu):
        for e in edges:
            call = partial(measure_matrix, run, "sizes", (e,) * 3, 6, options, on_cpu=on_cpu, peers=True)
            yield f"{e}^3, n = 6", call

    def unknowns(call, more=None, numbers=options.unknowns):
        for n in numbers:
            shape = (edge_for(n, options.entries),) * 3
            yield f"{shape[0]}^3, n = {n}", partial(call, run, *(more or ()), shape, n, options)

    if "sizes" in options.parts:
        yield from sizes(small, True)
    if "steps" in options.parts:
        yield "Table 1", partial(measure_steps, run, options.domain, options)
    if not options.gpu and "sizes" in options.parts:
        run.left_out |= {f"{e}^3, n = 6": "larger than what the CPU is given" for e in large}
    if options.gpu:
        if "sizes" in options.parts:
            yield from sizes(large, False)
        if "unknowns" in options.parts:
            on_gpu = partial(measure_matrix, on_cpu=False, peers=False)
            yield from unknowns(on_gpu, ("unknowns",))
        if "sizes" in options.parts and small:
            yield f"{small[-1]}^3, scalar", partial(scalar_only, run, (small[-1],) * 3, 6, options)
        if "unknowns" in options.parts:
            yield from unknowns(cpu_unknowns)
    elif "unknowns" in options.parts:
        yield from unknowns(partial(measure_matrix, on_cpu=True, peers=False), ("unknowns",))


def measure(run: Run, options: argparse.Namespace) -> None:
    """Fill the run with the measurements that the options ask for."""
    budget = Budget(options.budget)
    try:
        for name, call in tasks(run, options):
            if budget.over():
                run.left_out[name] = "the budget was spent"
                continue
            begun = budget.spent()
            with run.attempt(name, "the rest of this matrix"):
                call()
            if options.gpu:
                with run.attempt(name, "the rest of the run", fatal=True):
                    release_gpu()
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {name}: {budget.spent() - begun:.1f} s", flush=True)
    except (RunEnded, KeyboardInterrupt) as end:
        run.left_out["the rest"] = f"the run ended early ({type(end).__name__})"
    run.options |= {"seconds": round(budget.spent()), "load average at the end": round(os.getloadavg()[0], 1)}
    run.save(options.out)


def merged(paths: Sequence[Path]) -> Run:
    """The first file's run, completed by the others."""
    run, others = Run.merged(paths, lambda r: (r.matrix, r.work, r.device, r.who, r.variant, r.threads))
    for other in others:
        run.failures += [f for f in other.failures if f not in run.failures]
        run.left_out = other.left_out | run.left_out
        run.matrices = other.matrices | run.matrices
        if bandwidth(run) is None and bandwidth(other) is not None:
            run.options["copy GB/s"] = bandwidth(other)
    return run


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, from 1 on."""
    found = tuple(int(part) for part in text.split(","))
    if min(found) < 1:
        raise ValueError(text)
    return found


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, with their defaults filled in."""
    parser = argparse.ArgumentParser(prog="finelu bench fgbilu", description=__doc__)
    add_device(parser, "on the GPU and the CPU", "on the CPU only")
    add_sources(parser)
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s")
    parser.add_argument("--edges", type=numbers, help="edges of the cubes of Figure 9 (default: 15 to 200; CPU: to 65)")
    parser.add_argument("--unknowns", type=numbers, help="n of Figure 10, even and from 4 on (default: 4 to 64)")
    parser.add_argument("--threads", type=numbers, help="on the CPU (default: 1, 2 and all cores)")
    parser.add_argument("--quick", action="store_true", help="tiny grids: whether it runs, not how fast")
    add_place(parser)
    add_budget(parser)
    options = parser.parse_args(argv)
    options.parts = chosen_parts(parser, options.parts, PARTS)
    default = QUICK if options.quick else {"edges": EDGES, "unknowns": UNKNOWNS, "entries": ENTRIES, "domain": DOMAIN}
    options.edges = sorted(options.edges or default["edges"])
    options.unknowns = options.unknowns or default["unknowns"]
    options.entries, options.domain = default["entries"], default["domain"]
    options.largest_on_cpu = LARGEST_ON_CPU
    if odd := [n for n in options.unknowns if n % 2 or n < 4]:
        parser.error(f"--unknowns: {odd[0]} is not a sum of 4s and 6s")
    options.threads = options.threads or sorted({1, 2, available_cores()})
    options.gpu = not options.sources and wants_gpu(options)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parsed(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.sources:
        run = merged(options.sources)
    else:
        run = new_run("fgbilu", gpu=options.gpu, machine_name=options.machine)
        run.options = {"parts": ",".join(options.parts), "threads": ",".join(map(str, options.threads))}
        if options.gpu:
            run.options["copy GB/s"] = copy_bandwidth()
        measure(run, options)
    for title, body in tables(run).items():
        print(f"\n{title}\n{body or 'absent'}", end="" if body else "\n")
    target = run.publish(options.out, page(run, options.out))
    print(f"\n{len(run.matrices)} matrices, {len(run.failures)} failures; {target}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    command(main)
