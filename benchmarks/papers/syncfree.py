"""Tables I to III and Figures 4 to 9 of Freire, Dufrechou and Ezzatti, "A synchronization-free incomplete LU
factorization for GPUs with level-set analysis", for a hundred matrices: finelu's kernels, cuSPARSE's csrilu02 and MKL's
dcsrilu0.

The paper has 400 matrices of 10,000 rows or more. Here these are the real ones of the suite and GENERATED: families of
the gallery in several sizes and shapes, which have from 2 to 4000 levels and 3 to 200 entries a row.

`finelu bench syncfree` measures (float64, a speed-up of x over y is y's time over x's) and draws; `--from a.json.gz`
draws again from what was measured, also by `benchmarks.claims.spine`; a second file may give MKL's times from another
machine. Without a GPU only MKL and finelu's CPU variants are measured, and the page says which parts are absent.

As in the paper, csrilu02 with NO_LEVEL and the routines shared, vect and adapt count by their computing stage, and
csrilu02 with USE_LEVEL and levs by the sum of analysis and computing stage, unless a figure shows the two. cuSPARSE
asks for a call of its analysis under NO_LEVEL too; its cost is in the record. "natural" and "auto", the choice among
the variants that the paper leaves as future work, are finelu's own. The tridiagonal worst case is in the list of times
only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

import numpy as np

from benchmarks.claims.spine import counted
from benchmarks.harness import measure
from benchmarks.harness.case import Case, over_suite, release_gpu
from benchmarks.harness.clock import Budget
from benchmarks.harness.figure import new_figure, save
from benchmarks.harness.options import add_options, add_sources, command, have_gpu
from benchmarks.harness.record import Record, Run, new_run, replace_text
from benchmarks.harness.suite import WORST_CASE, suite
from benchmarks.harness.table import cell, mean, ratio, table
from benchmarks.peers import mkl

WITHOUT_ANALYSIS = (
    "cusparse",
    "shared",
    "vect",
    "adapt",
)  # the paper's columns; NO_LEVEL is what "cusparse" means there
OURS = ("shared", "vect", "adapt")
FINELUS = ("natural", "auto")
CPU_VARIANTS = ("sequential", "levels", "auto")
# family of the gallery -> the parameters of each matrix
GENERATED = {
    "poisson5": "100 160 250 400 640 1000 20,1000 1000,20 10,4000 50,4000 4000,50 500,2000",
    "poisson7": "22 28 36 46 60 80 100 100,100,2 200,200,4 10,10,200 200,10,10 20,20,500 4,50,100",
    "poisson27": "22 28 36 46 60 100,100,2 6,6,400 400,6,6 60,60,8",
    "convection_diffusion": "120,120,1 300,100,1 100,900,1 25 40 64 50,50,10",
    "atmosmodd_like": "40,40,16 74,74,29 148",
    "apache2_like": "4,50,60 8,100,101 8,200,201",
    "anisotropic_triangles": "5 6 7 5,rcm=False 6,rcm=False 7,rcm=False",
    "elasticity": "15,15,15 20,20,20 28,28,28 36,36,4 150,4,4 4,4,170",
    "ecology2_like": "120,120 300,300 40,1000 1000,1000",
    "g3_circuit_like": "10000 50000 200000 500000",
    "cage": "10 11 12",
    "random_dominant": "10000,density=5e-4 20000,density=5e-4 50000,density=1e-4 100000,density=1e-4 "
    "300000,density=1e-5 10000,density=3e-3 20000,density=3e-3 10000,density=1e-2 10000,density=2e-2 "
    "20000,density=5e-4,hermitian=True 100000,density=5e-5,hermitian=True 10000,density=1e-2,hermitian=True",
    "arrow": "10000 40000",
}
COLOURS = {
    "cusparse": "tab:green",
    "cusparse USE_LEVEL": "tab:green",
    "shared": "tab:blue",
    "vect": "tab:red",
    "adapt": "tab:orange",
    "natural": "tab:brown",
    "levs": "tab:purple",
    "auto": "black",
    "sequential": "tab:blue",
    "levels": "tab:red",
    "analysis": "tab:red",
    "computing": "tab:blue",
}


def matrices(folder: Path | None) -> list[str]:
    """The real matrices of the suite, GENERATED, and the worst case."""
    real = [problem.name for problem in suite(folder) if problem.path]
    return real + [f"{family}:{size}" for family, sizes in GENERATED.items() for size in sizes.split()] + [WORST_CASE]


def record(run: Run, matrix: str, routine: str) -> Record | None:
    """The ILU(0) record of a routine as the paper names them, or of "auto" or a CPU variant; None if it was wrong."""
    found = [r for r in run.find(matrix=matrix, work="ilu0") if r.sound]
    if routine == "mkl":
        return min((r for r in found if r.who == "mkl"), key=lambda r: r.numeric_ms, default=None)
    if routine.startswith("cusparse"):
        policy = routine.partition(" ")[2] or "NO_LEVEL"
        return next((r for r in found if r.who == "cusparse" and r.variant == policy), None)
    device, _, variant = routine.rpartition(" ")
    wanted = [r for r in found if r.who == "finelu" and r.variant == variant and r.device == (device or "gpu")]
    return min(wanted, key=lambda r: r.numeric_ms, default=None)


def speedup(
    run: Run, matrix: str, routine: str, over: str, stage: str = "numeric_ms", over_stage: str = ""
) -> float | None:
    """How many times faster `routine` is than `over` on a matrix, comparing a stage of each; None if one is absent."""
    a, b = record(run, matrix, routine), record(run, matrix, over)
    return ratio(b and getattr(b, over_stage or stage), a and getattr(a, stage))


# Tables ---------------------------------------------------------------------------------------------------------------


def table_1(run: Run) -> str | None:
    """How often MKL is faster than each routine, and the median rows per level of those matrices."""
    routines = [*WITHOUT_ANALYSIS, "natural", "levs", "auto", *(f"cpu {v}" for v in CPU_VARIANTS)]
    columns = {}
    for routine in routines:
        speedups = [(m, speedup(run, m, routine, "mkl")) for m in counted(run)]
        known = [(m, s) for m, s in speedups if s]
        if known:
            slower = [run.matrices[m]["rows_per_level"] for m, s in known if s < 1]
            columns[routine] = (len(slower), median(slower) if slower else None, len(known))
    if not columns:
        return None
    labels = ("N", "median rows per level", "of matrices")
    return table(("", *columns), [(label, *(c[k] for c in columns.values())) for k, label in enumerate(labels)])


def table_2(run: Run, routines: Sequence[str]) -> str | None:
    """How often each routine is the fastest of them, in all and for each quartile of the number of levels."""
    matrices = [m for m in counted(run) if all(record(run, m, r) for r in routines)]
    if not matrices:
        return None
    matrices.sort(key=lambda m: run.matrices[m]["levels"])
    winners = [min(routines, key=lambda r, m=m: record(run, m, r).numeric_ms) for m in matrices]
    groups = {"Total": winners} | {f"Q{k + 1}": list(q) for k, q in enumerate(np.array_split(winners, 4))}
    return table(("", *routines), [(name, *(group.count(r) for r in routines)) for name, group in groups.items()])


def table_3(run: Run) -> str | None:
    """How often each routine is faster than cusparse, and its average speed-up (the paper's, arithmetic; geometric)."""
    columns = {}
    for routine in (*OURS, "natural", "levs", "auto"):
        speedups = [s for m in counted(run) if (s := speedup(run, m, routine, "cusparse"))]
        if speedups:
            columns[routine] = (sum(s > 1 for s in speedups), fmean(speedups), mean(speedups), len(speedups))
    if not columns:
        return None
    labels = ("N", "average speed-up", "geometric mean", "of matrices")
    return table(("", *columns), [(label, *(c[k] for c in columns.values())) for k, label in enumerate(labels)])


TABLES: dict[str, tuple[str, Callable[[Run], str | None]]] = {
    "Table I": ("matrices on which MKL is faster, and their median rows per level", table_1),
    "Table II": (
        "the fastest of the four, in all and by quartile of the levels",
        lambda run: table_2(run, WITHOUT_ANALYSIS),
    ),
    "Table II with natural and auto": (
        "the same with finelu's own among them",
        lambda run: table_2(run, (*WITHOUT_ANALYSIS, *FINELUS)),
    ),
    "Table III": ("matrices on which cusparse is slower, and the average speed-up over it", table_3),
}


# Figures --------------------------------------------------------------------------------------------------------------


Points = dict[str, list[tuple[float, float]]]


def points(run: Run, by: str, series: dict[str, Callable[[str], float | None]]) -> Points:
    """name -> [(fact `by` of the matrix, speed-up)], for each counted matrix that has one; empty names are dropped."""
    found = {
        name: [(run.matrices[matrix][by], s) for matrix in counted(run) if (s := of(matrix))]
        for name, of in series.items()
    }
    return {name: pairs for name, pairs in found.items() if pairs}


def figure_4(run: Run) -> list[Points]:
    names = {r: r for r in (*WITHOUT_ANALYSIS, *FINELUS)} | {f"cpu {v}": f"cpu {v}" for v in CPU_VARIANTS}
    return [points(run, "levels", {name: lambda m, r=r: speedup(run, m, r, "mkl") for name, r in names.items()})]


def figure_5(run: Run) -> list[Points]:
    routines = (*OURS, *FINELUS)
    return [points(run, "rows_per_level", {r: lambda m, r=r: speedup(run, m, r, "cusparse") for r in routines})]


def figure_6(run: Run) -> list[Points]:
    series = {r: lambda m, r=r: speedup(run, m, r, "mkl", "total_ms") for r in ("cusparse USE_LEVEL", "levs", "auto")}
    return [points(run, "nnz", series)]


def figure_7(run: Run) -> list[Points]:
    series = {r: lambda m, r=r: speedup(run, m, r, "cusparse USE_LEVEL", "total_ms") for r in ("levs", "auto")}
    return [points(run, "nnz", series)]


def figure_8(run: Run) -> list[Points]:
    stages = {"analysis": "analysis_ms", "computing": "numeric_ms"}
    series = {name: lambda m, s=s: speedup(run, m, "levs", "cusparse USE_LEVEL", s) for name, s in stages.items()}
    return [points(run, "nnz", series)]


def figure_9(run: Run) -> list[Points]:
    return [
        points(run, "nnz", {r: lambda m, r=r: speedup(run, m, r, "cusparse", "total_ms", "numeric_ms")})
        for r in ("cusparse USE_LEVEL", "levs")
    ]


FIGURES: dict[int, tuple[str, str, Callable[[Run], list[Points]]]] = {
    4: ("speed-up over MKL, computing stage", "levels", figure_4),
    5: ("speed-up over cusparse NO_LEVEL, computing stage", "rows per level", figure_5),
    6: ("speed-up over MKL, analysis and computing stage", "nonzeros", figure_6),
    7: ("speed-up over cusparse USE_LEVEL, analysis and computing stage", "nonzeros", figure_7),
    8: ("levs over cusparse USE_LEVEL, each stage", "nonzeros", figure_8),
    9: ("with analysis, over cusparse NO_LEVEL without", "nonzeros", figure_9),
}


def draw(path: Path, title: str, label: str, panels: Sequence[Points]) -> None:
    """Scatter each panel's series on logarithmic axes with the line of equal speed, and write a PNG."""
    figure = new_figure(7.5, 4.5 if len(panels) == 1 else 7.0)
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for ax, series in zip(axes, panels, strict=True):
        for name, pairs in series.items():
            ax.scatter(
                *zip(*pairs, strict=True), s=18, label=name, color=COLOURS[name.rpartition("cpu ")[2]], alpha=0.8
            )
        ax.axhline(1.0, color="0.4", linewidth=0.8)
        ax.set(xscale="log", yscale="log", ylabel="speed-up")
        ax.grid(True, alpha=0.3)
        ax.legend(fontsize="small")
    axes[-1].set_xlabel(label)
    save(figure, path, title)


# The page -------------------------------------------------------------------------------------------------------------


def page(run: Run, out: Path) -> str:
    """The tables and figures as Markdown; the PNGs are written into `out`. Absent ones are named with the reason."""
    text = run.heading()
    if any(r.detail.get("busy") for r in run.find(who="mkl")):
        text += "\nMKL: the least CPU time of its one thread, on a machine that did other work, too.\n"
    for name, (caption, make) in TABLES.items():
        text += f"\n## {name}: {caption}\n\n{make(run) or absent(run)}"
    for number, (title, label, make) in FIGURES.items():
        panels = make(run)
        text += f"\n## Figure {number}: {title}, by {label}\n\n"
        if not all(panels):
            text += absent(run)
            continue
        target = out / f"{run.stem}-fig{number}.png"
        draw(target, f"Figure {number}: {title}", label, panels)
        text += f"![Figure {number}]({target.name})\n\n{means(panels)}"
    return text + "\n## Milliseconds, computing stage\n\n" + milliseconds(run) + run.footing()


def absent(run: Run) -> str:
    """The reason why a table or figure is missing: one of its measurements was not made."""
    who = {(r.who, r.device) for r in run.find(work="ilu0")}
    missing = [("finelu", "gpu", "finelu on a GPU"), ("cusparse", "gpu", "cuSPARSE"), ("mkl", "cpu", "MKL")]
    names = [name for library, device, name in missing if (library, device) not in who]
    return f"Absent: {' and '.join(names) or 'its variants'} not measured in this run.\n"


def means(panels: Iterable[Points]) -> str:
    parts = (
        f"{name} {cell(mean(s for _, s in pairs))} ({len(pairs)} matrices)"
        for series in panels
        for name, pairs in series.items()
    )
    return f"Geometric means: {', '.join(parts)}.\n"


def milliseconds(run: Run) -> str:
    """Each matrix with its levels and the computing stage of every routine measured."""
    routines = [
        *WITHOUT_ANALYSIS,
        "natural",
        "cusparse USE_LEVEL",
        "levs",
        "auto",
        *(f"cpu {v}" for v in CPU_VARIANTS),
        "mkl",
    ]
    present = [r for r in routines if any(record(run, m, r) for m in run.matrices)]
    lines = []
    for matrix, facts in sorted(run.matrices.items(), key=lambda item: item[1]["levels"]):
        times = [(found := record(run, matrix, r)) and found.numeric_ms for r in present]
        lines.append((matrix, facts["n"], facts["nnz"], facts["levels"], facts["rows_per_level"], *times))
    return table(("matrix", "n", "nnz", "levels", "rows/level", *present), lines)


# The run --------------------------------------------------------------------------------------------------------------


def measured(options: argparse.Namespace) -> Run:
    """ILU(0) of every matrix by every routine that this machine has."""
    import finelu

    gpu = not (options.cpu or options.mkl_alone) and have_gpu()
    run = new_run("syncfree", gpu=gpu, machine_name=options.machine)
    run.options = {"threads": options.threads}
    if not gpu:
        print("no GPU here: the columns of finelu's GPU kernels and of cuSPARSE will be absent", flush=True)
    if not mkl.available():
        print("no MKL here: its columns will be absent (pip install mkl)", flush=True)
    finelu.set_num_threads(options.threads)

    def measure_one(case: Case) -> None:
        if options.mkl_alone:
            measure.mkl_ilu0(run, case, 1, busy=True)
            return
        if gpu:
            measure.cusparse_factorization(run, case, "ilu0")
            measure.factorization(run, case, "ilu0", "gpu")
            release_gpu()
        else:
            measure.factorization(run, case, "ilu0", "cpu", options.threads)
        if mkl.available():
            measure.mkl_ilu0(run, case, options.threads)

    if not (options.matrices or options.quick):
        options.matrices = ",".join(matrices(options.matrix_folder))
    over_suite(run, options, Budget(options.budget), measure_one)
    return run


def merged(paths: Sequence[Path]) -> Run:
    """The first file's run, completed by the others: with libraries on devices that it did not measure."""
    run, _ = Run.merged(
        paths,
        lambda r: (r.work, r.who, r.device),
        wanted=lambda run, r: r.work == "ilu0" and r.matrix in run.matrices,
        source=lambda r: f"{r.who} ({r.device})",
    )
    run.bench = "syncfree"
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="finelu bench syncfree", description=__doc__)
    add_sources(parser)
    parser.add_argument("--cpu", action="store_true", help="leave the GPU alone")
    parser.add_argument(
        "--mkl-alone",
        action="store_true",
        help="MKL alone, one thread, its least CPU time: on a machine that does other work",
    )
    parser.add_argument("--threads", type=int, default=1, help="of finelu and MKL on the CPU (default: %(default)s)")
    add_options(parser)
    options = parser.parse_args(argv)

    options.out.mkdir(parents=True, exist_ok=True)
    run = merged(options.sources) if options.sources else measured(options)
    for name, (caption, make) in TABLES.items():
        print(f"\n{name}: {caption}\n{make(run) or absent(run)}", end="")
    target = options.out / f"{run.stem}.md"
    replace_text(target, page(run, options.out))
    print(f"\n{len(run.matrices)} matrices, {len(run.failures)} failures; {target}")
    return 0


if __name__ == "__main__":
    command(main)
