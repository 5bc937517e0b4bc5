"""Pictures of what was measured, from the records in benchmarks/results: python docs/pictures/measured.py [NAME ...].

The picture of speed has the ratios of the tables in README.md and docs/measured.md (benchmarks/figures.py).
"""

import math
import sys
from pathlib import Path

import numpy as np
from style import COLOURS, panels, write

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import figures, front  # noqa: E402
from benchmarks.claims import calls, robustness_tables  # noqa: E402
from benchmarks.claims import sizes as of_sizes  # noqa: E402
from benchmarks.harness import RESULTS  # noqa: E402
from benchmarks.harness.record import ENDING, read  # noqa: E402

WRONG = 1e-6  # the error of factors or a backward error from which on a result is in no ratio


def records(name, **wanted):
    """The records of the one result file that begins with `name` and has an ISO date behind the machine."""
    run = read(RESULTS / f"{name}{ENDING}")
    found = [r for r in run["records"] if all(r[key] == value for key, value in wanted.items())]
    assert found, (name, wanted)
    return run, found


def best(found):
    """matrix -> the least time in ms among its records."""
    times = {}
    for r in found:
        if r["numeric_ms"] and (r["error"] is None or r["error"] < WRONG):
            times[r["matrix"]] = min(r["numeric_ms"], times.get(r["matrix"], math.inf))
    return times


def mean(x):
    return float(np.exp(np.log(x).mean()))


GPU, CPU = figures.SPINE_GPU, figures.SPINE_CPU


def speed_rows():
    """(label, ratios a matrix) of each line of the picture of speed: rows of the tables of benchmarks.figures.

    Of ILU(0) on 2 cores the calls, if there is a record of them, else the kernels.
    """
    labels = {
        (figures.SPINE_GMRES, "`ILU0().factor(A)` and `gmres` to 1e-8"): (
            "GPU, as called: ILU(0) and GMRES\nbeside CuPy's spilu and gmres"
        ),
        (figures.SPINE_GPU, "triangular solve"): "GPU kernel: triangular solve\nbeside cuSPARSE SpSV",
        (figures.SPINE_GPU, "ILU(0), new values"): "GPU kernel: ILU(0), new values\nbeside csrilu02",
        (figures.SPINE_GPU, "IC(0), new values"): "GPU kernel: IC(0), new values\nbeside csric02",
    }
    if figures.CALLS is None:
        labels[figures.SPINE_CPU, "ILU(0), new values"] = "2 cores, kernel: ILU(0), new values\nbeside MKL dcsrilu0"
        labels[figures.SPINE_CPU, "triangular solve"] = "2 cores, kernel: triangular solve\nbeside MKL trsv"
    else:
        for work, peer in (("factor", "dcsrilu0 and optimize"), ("update", "dcsrilu0"), ("solve", "trsv, L and U")):
            called = calls.OURS[work]
            labels[figures.CALLS, called] = f"2 cores, as called: {called.strip('`')}\nbeside MKL {peer}"
    rows = {}
    for row in figures.figures():  # of the calls MKL's row comes first
        rows.setdefault((row.record, row.called), np.array(list(row.found.values())))
    return [(label, rows[key]) for key, label in labels.items()]


def speed():
    rows = speed_rows()
    figure, (axis,) = panels(width=7.2, height=3.6)
    for place, (label, x) in enumerate(rows):
        y = -place + np.linspace(-0.17, 0.17, x.size)[np.random.default_rng(0).permutation(x.size)]
        axis.plot(x, y, "o", ms=3, mew=0, alpha=0.55, color=COLOURS[0 if label.startswith("GPU") else 2])
        axis.plot([mean(x)] * 2, [-place - 0.34, -place + 0.34], color=COLOURS[1], lw=2.5)
        axis.text(mean(x), -place + 0.36, f"{mean(x):.2g}x", color=COLOURS[1], ha="center", va="bottom", fontsize=8)
    axis.axvline(1, color="black", lw=0.8)
    axis.set(xscale="log", yticks=[-p for p in range(len(rows))], yticklabels=[label for label, _ in rows])
    axis.set_ylim(-len(rows) + 0.4, 0.75)
    axis.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axis.minorticks_off()
    axis.set_xlabel("peer's time over finelu's; a dot is a matrix, the bar the geometric mean")
    write(figure, "speed")


def solved():
    """The number of systems, and solver -> {matrix: seconds} of what it solved to 1e-8."""
    run = front.load(figures.ROBUSTNESS)
    return len(run.matrices), robustness_tables.seconds(run)


def robustness():
    run, (count, times) = front.load(figures.ROBUSTNESS), solved()
    order = sorted(times, key=lambda name: -len(times[name]))
    labels = [robustness_tables.NAMES[name] for name in order]
    figure, axes = panels(2, 5, 3.1)
    for place, (name, label) in enumerate(zip(order, labels, strict=True)):
        ours = label.startswith("finelu")
        axes[0].barh(-place, len(times[name]), color=COLOURS[0] if ours else "#b5b5b5")
        axes[0].text(len(times[name]) - 1, -place, len(times[name]), ha="right", va="center", fontsize=8, color="white")
    axes[0].set(yticks=[-p for p in range(len(order))], yticklabels=labels, xlim=(0, count))
    axes[0].set_xlabel(f"real systems solved to 1e-8, of {count}")
    limit = run.options["limit, seconds"]
    shown = [name for name in ("solve", "MultilevelILU", "splu", "ilupp at our fill", "spilu", "pyamg", "ILU0")
             if name in times][: len(COLOURS)]  # fmt: skip
    for name, colour in zip(shown, COLOURS, strict=False):
        seconds = np.sort(list(times[name].values()))
        axes[1].step([*seconds, limit], [*range(1, seconds.size + 1), seconds.size], where="post", color=colour,
                     label=robustness_tables.NAMES[name], lw=2 if name == shown[0] else 1.2)  # fmt: skip
    axes[1].set(
        xscale="log", xlabel=f"seconds, {run.machine['cores']} cores", ylabel="solved within", ylim=(0, 1.03 * count)
    )
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    write(figure, "robustness")


def crossover_points():
    """(rows a level, CPU ms, GPU ms, matrix) of each lower triangular solve."""
    run, mine = records(GPU, work="trsv_lower", who="finelu", variant="auto")
    gpu, sizes = best(mine), run["matrices"]
    cpu = best(records(CPU, work="trsv_lower", who="finelu", variant="auto", threads=2)[1])
    return sorted((sizes[m]["n"] / sizes[m]["levels"], cpu[m], gpu[m], m) for m in gpu if m in cpu)


def crossover():
    figure, (axis,) = panels(width=5.6, height=3.2)
    points = crossover_points()
    x, ratio = [p[0] for p in points], [p[1] / p[2] for p in points]
    axis.loglog(x, ratio, "o", ms=4)
    named = {"Trefethen_20000": "left", "trilinos_nsjac": "left", "hypre_tucker21935": "left", "cage10": "left",
             "poisson7:100": "right"}  # the side of the label that is at the dot  # fmt: skip
    for k, point in enumerate(points):
        if side := named.get(point[3]):
            place = (6, -8) if side == "left" else (-7, -3)
            axis.annotate(point[3], (x[k], ratio[k]), xytext=place, textcoords="offset points", fontsize=7, ha=side)
    axis.axhline(1, color="black", lw=0.8)
    axis.set_ylim(bottom=0.015)
    axis.set(xlabel="rows a level, mean", ylabel="time on 2 CPU cores over\ntime on the GPU", title="triangular solves")
    write(figure, "crossover")


def sizes():
    """Seconds against unknowns; a curve ends where its solver gave up."""
    figure, (axis,) = panels(width=6.4, height=4.2)
    lines = [(front.SIZES_GPU, of_sizes.GPU, "finelu, one GPU", COLOURS[0], "o-", 4)]
    lines += [(front.SIZES_CPU, of_sizes.CPU, "finelu, 2 cores", COLOURS[0], "o--", 4)]
    others = {of_sizes.AMGCL: "s:", of_sizes.PYAMG: "^:", of_sizes.PARDISO: "D:", of_sizes.SPLU: "x"}
    lines += [
        (front.SIZES_CPU, who, f"{who}, 2 cores", COLOURS[k], style, 8 if style == "x" else 4)
        for k, (who, style) in enumerate(others.items(), 1)
    ]
    for record, who, label, colour, style, size in lines:
        found = of_sizes.seconds(front.load(record), who)
        label += "" if len(found) > 1 else ": one size"
        colour = "black" if style == "x" else colour  # on top of another
        axis.loglog(list(found), list(found.values()), style, ms=size, color=colour, label=label)
    axis.set(xlabel="unknowns", ylabel="seconds from A and b to x")
    axis.minorticks_off()
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), borderaxespad=0, fontsize=8, ncols=3, handlelength=3)
    write(figure, "sizes")


LEVELS, COUPLED = "schwarz-levels-nvidia-h200-2026-11-27", "petsc-scaling-2-core-amd-epyc-2026-11-27"


def levels_on_a_gpu():
    """levels -> (rows, seconds, iterations) of each grid, from the table of the record."""
    lines = (RESULTS / f"{LEVELS}.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    columns = [cells[0].index(name) for name in ("levels", "rows", "both s", "iterations")]
    found = {}
    for line in cells[1:]:
        levels, *numbers = (line[k] for k in columns)
        found.setdefault(levels, []).append(tuple(map(float, numbers)))
    return found


def elliptic():
    """Iterations and seconds against the rows of a 7-point grid."""
    figure, (iterations, seconds) = panels(2, 4.2, 4.2)
    on_gpu = {"auto": "GPU: Schwarz()", "2": "GPU: Schwarz(levels=2)"}
    for levels, label in on_gpu.items():
        rows, times, counts = zip(*levels_on_a_gpu()[levels], strict=True)
        iterations.loglog(rows, counts, "o-", label=f"{label}: {counts[0]:.0f} to {counts[-1]:.0f}")
        first = levels == "auto"  # whose first time waits for kernels, as its record says
        seconds.loglog(rows[first:], times[first:], "o-", label=f"{label}, one H200")
    lines = [r for r in read(RESULTS / f"{COUPLED}{ENDING}")["results"]["coupled"] if r["kind"] == "constant"]
    names = {"Schwarz": "Schwarz", "Schwarz in each": "Schwarz in each alone", "ILU0, asm": "ILU0, asm", "gamg": "gamg"}
    for name, label in names.items():
        counts = [r[name]["iterations"] for r in lines]
        iterations.loglog(
            [r["rows"] for r in lines],
            counts,
            "s--",
            ms=4,
            label=f"1 to 16 processes: {label}: {counts[0]} to {counts[-1]}",
        )
    for axis, what in ((iterations, "iterations of cg to 1e-8"), (seconds, "seconds, set-up included")):
        axis.set(xlabel="rows of the 7-point grid", ylabel=what)
        axis.minorticks_off()
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), borderaxespad=0, fontsize=8)
    iterations.set_yticks([10, 20, 40, 80, 160], ["10", "20", "40", "80", "160"])
    write(figure, "elliptic")


PICTURES = {"sizes": sizes, "speed": speed, "robustness": robustness, "crossover": crossover, "elliptic": elliptic}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
