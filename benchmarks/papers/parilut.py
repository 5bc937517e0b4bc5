"""Claim: on the papers' own matrices ParILUT and ParICT need as many iterations as in the papers, step by step.

The tables and figures of H. Anzt, E. Chow, J. Dongarra, "ParILUT - a new parallel threshold ILU factorization", 2018,
and the figures of the experiments of H. Anzt, T. Ribizel, G. Flegar, E. Chow, J. Dongarra, "ParILUT - a parallel
threshold ILU for GPUs", 2019, with finelu, with the papers' numbers where the matrix is theirs.

As in 2018: float64, the right-hand side uniform in [-0.5, 0.5] (fixed seed), x0 = 0, relative residual 1e-10, GMRES not
restarted, matrices in reverse Cuthill-McKee order of A + A^T, scaled to a unit diagonal, sweep="paper", classical
ILUT and ICT with as many entries as A; "by eliminations" is the default, sweep="exact". ">k": stopped after the limit
of k iterations; "-": no factors, or a breakdown; the reasons are in a list, with the solves that the clock ended.
`--from a.json.gz b.json.gz` draws again from what was measured; the second file gives what the first has not (another
device).
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import finelu
from benchmarks.claims.parilut import problems
from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import Budget
from benchmarks.harness.figure import draw
from benchmarks.harness.options import add_device, add_options, add_sources, chosen_parts, command, wants_gpu
from benchmarks.harness.record import Run, RunEnded, new_run
from benchmarks.harness.suite import WORST_CASE, LeftOut, Problem, suite
from benchmarks.papers.parilut_figures import FIGURES
from benchmarks.papers.parilut_measure import (
    LONGEST,
    METHODS,
    ORDERS,
    RTOL,
    Case,
    measure_exactness,
    measure_selection,
    measure_size,
    measure_steps,
    measure_tables,
    measure_time,
)
from benchmarks.papers.parilut_tables import TABLE_3, numbers, own, tables

PARTS = ("steps", "sizes", "exactness", "selection", "tables", "time")
FIRST = ("ani5", "ani6", "cage10", "cage11", "ani7")
SMALLEST = ("ani3", "anisotropic_triangles:3")  # the papers' own, or one of its kind
SERIES = (*(f"anisotropic_triangles:{k}" for k in range(3, 8)), *(f"ani{k}" for k in range(3, 8)))  # 2018, Figure 3
EXACTNESS = ("ani5", "ani6")  # 2019, Figure 10
# ANI of the gallery: a name of the papers -> that of another mesh, with which none of their numbers is compared.
STAND_INS = {name: made for name, made in finelu.gallery.PAPER_SIZES.items() if made.startswith("anisotropic")}


def renamed(found: Sequence[Problem]) -> list[Problem]:
    """The problems, each once; a stand-in under its own name."""
    return list(dict.fromkeys(p if p.path else Problem(STAND_INS.get(p.name, p.name)) for p in found))


def in_order(options: argparse.Namespace) -> list[Problem]:
    """The problems asked for; else the papers' own first, then all others, small files first, generated ones last."""
    if options.matrices or options.quick:
        return renamed(problems(options)[0])
    own = renamed(problems(options, FIRST)[0])
    chosen = suite(options.matrix_folder)
    files = sorted((p for p in chosen if p.path and p.name not in FIRST), key=lambda p: p.path.stat().st_size)
    generated = [p for p in chosen if not p.path and p.name != WORST_CASE]
    return [*own, *files, Problem("apache2_like:8,101,100"), *generated, Problem("apache2_like")]


def page(run: Run, out: Path) -> str:
    """Tables and figures as Markdown; the PNGs are written into `out`."""
    text = run.heading()
    text += (
        "\n`=`: the papers' matrix (rebuilt; ANI with another order of equals in RCM). "
        "`~`: of its kind, with other entries, so that the papers have no numbers for it. Right-hand side "
        f"uniform in [-0.5, 0.5], x0 = 0, relative residual {RTOL:g}, full GMRES of up to {LONGEST} iterations, "
        '`sweep="paper"`. `>k`: stopped at the limit of k iterations, `-`: no factors or a breakdown.\n'
    )
    for title, body in tables(run).items():
        text += f"\n## {title}\n\n{body or 'Absent: not measured in this run.'}"
        text += "" if body else "\n"
    for name, (title, part, drawing) in FIGURES.items():
        year, _, number = name.partition("-")
        text += f"\n## {year}, Figure {number}: {title}\n\n"
        target = out / f"{run.stem}-{year}-fig{number}.png"
        if draw(target, f"{year}, Figure {number}: {title}", drawing, run):
            text += f"![{year}, Figure {number}]({target.name})\n"
        else:
            text += run.left_out.get(part) or "Absent: not measured in this run."
            text += "\n"
    return text + numbers(run) + run.footing()


def measured(options: argparse.Namespace, parts: Sequence[str]) -> Run:
    gpu = wants_gpu(options)
    device = "gpu" if gpu else "cpu"
    run = new_run("parilut-papers", gpu=gpu, machine_name=options.machine)
    run.options = {"parts": ",".join(parts), "threads": 0 if gpu else options.threads}
    run.options["basis"], methods = options.basis, options.methods.split(",")
    run.options["rows"] = f"{options.rows} at most" if options.rows else "any number"
    if not gpu:
        finelu.set_num_threads(options.threads)
        run.left_out["selection"] = "no GPU here, or not asked for: Figures 8 and 9 of 2019 are absent"
        print(run.left_out["selection"], flush=True)
    budget = Budget(options.budget)

    def each(chosen: Sequence[Problem], part: str, what: Callable[[Case], None], orders: Sequence[str] = ("",)) -> None:
        for problem, order in itertools.product(chosen, orders):
            if budget.over():
                run.left_out.setdefault(f"{problem.name} ({part})", "the budget was spent")
                continue
            try:
                case = Case.load(problem, device, order)
            except LeftOut as reason:
                run.left_out[problem.name] = str(reason)
                continue
            if options.rows and case.S.shape[0] > options.rows:
                run.left_out[problem.name] = f"{case.S.shape[0]} rows"
                continue
            run.matrices.setdefault(case.name, case.facts())
            with run.attempt(case.name, part):
                what(case)
            if gpu:
                with run.attempt(case.name, "the rest of the run", fatal=True):
                    release_gpu()
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {part}: {case.name}", flush=True)

    def here(names: Sequence[str]) -> list[Problem]:
        plain = argparse.Namespace(matrices="", quick=False, matrix_folder=options.matrix_folder)
        return renamed(problems(plain, names)[0])

    def one_matrix(case: Case) -> None:
        if "tables" in parts:
            measure_tables(run, case, options.limit, budget, TABLE_3.get(own(case.name)), methods)
        if "time" in parts:
            measure_time(run, case, options.superlu_limit)

    try:
        if "steps" in parts:
            each(here(SMALLEST)[:1], "steps", lambda case: measure_steps(run, case))
        if "sizes" in parts:
            each(here(SERIES), "sizes", lambda case: measure_size(run, case))
        if "exactness" in parts:
            each(here(EXACTNESS), "exactness", lambda case: measure_exactness(run, case, options.limit))
        if "selection" in parts and gpu:
            with run.attempt("selection", "Figures 8 and 9"):
                measure_selection(run, budget)
        if {"tables", "time"} & set(parts):
            each(in_order(options), "tables, time", one_matrix, options.orders.split(","))
    except (RunEnded, KeyboardInterrupt) as end:
        run.left_out["the rest"] = f"the run ended early ({type(end).__name__})"
    run.options |= {"seconds": round(budget.spent()), "load average at the end": round(os.getloadavg()[0], 1)}
    run.save(options.out)
    return run


def merged(paths: Sequence[Path]) -> Run:
    """The first file's run, completed by the others."""
    return Run.merged(paths, lambda r: (r.matrix, r.work, r.device, r.who, r.variant))[0]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="finelu bench parilut", description=__doc__)
    add_device(parser, "on the GPU", "on the CPU")
    add_sources(parser)
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each solve (default: %(default)s)")
    parser.add_argument("--superlu-limit", type=float, default=60.0, help="seconds for SuperLU (default: %(default)s)")
    parser.add_argument(
        "--orders", default="", help=f"of the tables: {','.join(ORDERS)} for both (default: RCM, as in the papers)"
    )
    parser.add_argument("--methods", default=",".join(METHODS), help="of the tables (default: %(default)s)")
    parser.add_argument(
        "--basis", type=float, default=4.0, help="GiB that the basis of full GMRES may take (default: %(default)s)"
    )
    parser.add_argument("--rows", type=int, default=0, help="leave out matrices with more rows")
    add_options(parser)
    options = parser.parse_args(argv)
    parts = chosen_parts(parser, options.parts, PARTS)
    if not set(options.orders.split(",")) <= {"", *ORDERS}:
        parser.error(f"--orders {options.orders}: {' and '.join(ORDERS)} are the orders")
    if not set(options.methods.split(",")) <= set(METHODS):
        parser.error(f"--methods {options.methods}: {' and '.join(METHODS)} are the methods")

    options.out.mkdir(parents=True, exist_ok=True)
    run = merged(options.sources) if options.sources else measured(options, parts)
    for title, body in tables(run).items():
        print(f"\n{title}\n{body or 'absent'}", end="")
    target = run.publish(options.out, page(run, options.out))
    print(f"\n{len(run.matrices)} matrices, {len(run.failures)} failures; {target}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    command(main)
