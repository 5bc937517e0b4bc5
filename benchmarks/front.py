"""The table at the front of README.md: what to call for which system, and what to expect, from the records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from benchmarks import records
from benchmarks.claims import regret_tables, sizes
from benchmarks.harness import RESULTS
from benchmarks.harness.record import ENDING, Run
from benchmarks.harness.table import mean, table

# The records: names in benchmarks/results, without ending.
REGRET = "regret-intel-xeon-2-cores-quiet-2026-11-28"  # solve and others on small and medium systems
SIZES_CPU, SIZES_GPU = "sizes-intel-xeon-2-cores-2026-11-28", "sizes-nvidia-h200-2026-11-28"
CLIENTS = "clients-2-core-amd-epyc-2026-11-27"  # programs, a page without a record
SQUARES = "least-squares-cpu-amd-epyc-2-cores-2026-11-27"
MOVES = {
    "random": "if workers move to any firm",
    "moves of 300 firms": "if to one of 300 near firms on each side",
    "moves of 1 firm": "if to the next firm",
}  # fixed effects of the record of least squares -> in words
MILLION, MOST = 10**6, 464**3  # unknowns of which times are named


@cache
def load(name: str) -> Run:
    return Run.load(RESULTS / f"{name}{ENDING}")


def seconds(value: float) -> str:
    return f"{value:.2g} s" if value >= 0.1 else f"{1e3 * value:.2g} ms"


def link(name: str, machine: str) -> str:
    """The record by the name of its machine, with a dagger if it does not speak of the present code."""
    return f"[{machine}](benchmarks/results/{name}.md){' †' if name in records.reasons() else ''}"


def over(others: Callable[[str], Iterable[str]]) -> dict[str, float]:
    """system -> the time of the fastest of these others over that of solve."""
    return regret_tables.over(load(REGRET), others, regret_tables.median_ms)


def programs() -> tuple[dict[str, float], tuple[float, str]]:
    """The time with finelu over that of the program's own solver: program -> a geometric mean, and the largest ratio of
    an example, with its program."""
    means, ratios, place, program = {}, [], 0, ""
    for line in (RESULTS / f"{CLIENTS}.md").read_text().splitlines():
        cells = line.split(" | ")
        if found := re.match(r"## (\S+) .*geometric mean of the ratios ([\d.]+)", line):
            program = found[1]
            means[program] = float(found[2])
        elif "ratio" in cells:
            place = cells.index("ratio")
        elif line.startswith("| "):
            ratios.append((float(cells[place]), program))
    return means, max(ratios)


def of_lsmr() -> dict[str, str]:
    """problem -> the time of `lstsq` over that of SciPy's `lsmr`, plain or scaled, whichever takes less time. If that
    did not converge, its time is a lower bound."""
    found, said = load(SQUARES).records, {}
    for ours in found:
        if ours.variant == "lstsq" and ours.numeric_ms:
            theirs = (r for r in found if r.matrix == ours.matrix and r.who == "scipy")
            best, ended = min((r.numeric_ms, r.detail["ended"]) for r in theirs if r.numeric_ms)
            gain = best / ours.numeric_ms
            said[ours.matrix] = f"{'' if ended else 'at most '}{1 / gain:.2g}"
    return said


def rows() -> Iterator[tuple[str, str, str, str]]:
    gains = over(lambda name: regret_tables.SCIPY)
    others = over(lambda name: regret_tables.others_of(load(REGRET), name)).values()
    slower = sum(gain < 1 for gain in others)
    sizes_of = [load(REGRET).matrices[name]["n"] for name in gains]
    yield (
        f"any kind, {min(sizes_of):,} to {max(sizes_of):,} unknowns",
        "`fl.solve(A, b)`",
        f"`fl.solve` takes {1 / mean(gains.values()):.2g} times as long as the fastest SciPy solver (`splu` with two "
        f"orderings, `spilu`): geometric mean over {len(gains)} systems. Worst system: {1 / min(gains.values()):.2g} "
        f"times as long. The optional direct solvers KLU, feral (LDLᵀ) and PARDISO were installed "
        f"(`pip install '.[direct,mkl]'`). Against the fastest of all libraries, not only SciPy, `fl.solve` is slower "
        f"on {slower} of {len(others)} systems",
        link(REGRET, "2 cores, Intel"),
    )
    on_cpu, theirs = (sizes.seconds(load(SIZES_CPU), who) for who in (sizes.CPU, sizes.AMGCL))
    yield (
        "Laplacian (heat, pressure) in 3D",
        "`fl.solve(A, b)`",
        f"10⁶ unknowns: {seconds(on_cpu[MILLION])} from A and b to x; the multigrid library AMGCL takes "
        f"{seconds(theirs[MILLION])}",
        link(SIZES_CPU, "2 cores, Intel"),
    )
    on_gpu = sizes.seconds(load(SIZES_GPU), sizes.GPU)
    yield (
        "the same on a GPU",
        "`fl.solve(A, b)`, CuPy arrays",
        f"10⁶ unknowns: {seconds(on_gpu[MILLION])}; 10⁸ unknowns: {seconds(on_gpu[MOST])}",
        link(SIZES_GPU, "one H200"),
    )
    means, (slowest, whose) = programs()
    best, worst = (choose(means, key=lambda program: means[program]) for choose in (min, max))
    peer = ", against dense LU" if best == "lineax" else ""
    yield (
        "[programs](docs/programs.md) with solvers of their own: pandapower, FiPy, scikit-fem, ...",
        "`fl.install()`, or an adapter",
        f"{mean(means.values()):.2g} times the time of the program's own solver (geometric mean of {len(means)} "
        f"programs). Mean of one program: {means[best]:.2g} ({best}{peer}) to {means[worst]:.2g} ({worst}). Worst "
        f"single example: {slowest:.2g} ({whose})",
        link(CLIENTS, "2 cores, AMD"),
    )
    said = of_lsmr()
    effects = "; ".join(f"{said[f'fixed effects, {kind}']} {where}" for kind, where in MOVES.items())
    yield (
        "least squares",
        "`fl.lstsq(A, b)`",
        "Time of `lstsq` over the time of SciPy's `lsmr` (the faster of plain and column-scaled). Tomography: "
        f"{said['tomography']}. Worker-firm fixed effects, 10⁶ rows: {effects}",
        link(SQUARES, "2 cores, AMD"),
    )


def front() -> str:
    return table(("your system", "call", "what to expect", "measured on"), rows())
