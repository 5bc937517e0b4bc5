"""The table at the front of README.md: what to call for which system, and what to expect, from the records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from benchmarks import records
from benchmarks.claims import regret_tables, sizes
from benchmarks.harness import RESULTS
from benchmarks.harness.record import ENDING, Run
from benchmarks.harness.table import mean, table

# The records: names in benchmarks/results, without ending.
REGRET = "regret-intel-xeon-2-cores-2026-11-28"  # solve and others on small and medium systems
SIZES_CPU, SIZES_GPU = "sizes-amd-epyc-2-cores-2026-11-27", "sizes-nvidia-h100-2026-11-27"
CLIENTS = "clients-2-core-amd-epyc-2026-11-27"  # programs, a page without a record
SQUARES = "least-squares-cpu-amd-epyc-2-cores-2026-11-27"
MILLION, MOST = 10**6, 464**3  # unknowns of which times are named


@cache
def load(name: str) -> Run:
    return Run.load(RESULTS / f"{name}{ENDING}")


def seconds(value: float) -> str:
    return f"{value:.2g} s" if value >= 0.1 else f"{1e3 * value:.2g} ms"


def link(name: str, machine: str) -> str:
    """The record by the name of its machine, with a dagger if it does not speak of the present code."""
    return f"[{machine}](benchmarks/results/{name}.md){' †' if name in records.reasons() else ''}"


def over_scipy() -> dict[str, float]:
    """system -> the time of the best of SciPy's three solvers over that of solve."""
    return regret_tables.over(load(REGRET), lambda name: regret_tables.SCIPY, regret_tables.median_ms)


def programs() -> tuple[list[float], float]:
    """The time with finelu over that of the program's own solver: a geometric mean for each program, and the largest
    ratio of an example."""
    text = (RESULTS / f"{CLIENTS}.md").read_text()
    means = re.findall(r"^## .*geometric mean of the ratios ([\d.]+)", text, re.MULTILINE)
    ratios, place = [], 0
    for cells in (line.split(" | ") for line in text.splitlines() if line.startswith("| ")):
        if "ratio" in cells:
            place = cells.index("ratio")
        else:
            ratios.append(float(cells[place]))
    return [float(number) for number in means], max(ratios)


def against(gain: float) -> str:
    return f"{gain:.2g} times as fast" if gain >= 1 else f"{1 / gain:.2g} times slower"


def rows() -> Iterator[tuple[str, str, str, str]]:
    gains = over_scipy()
    sizes_of = [load(REGRET).matrices[name]["n"] for name in gains]
    yield (
        f"any kind, {min(sizes_of):,} to {max(sizes_of):,} unknowns",
        "`fl.solve(A, b)`",
        f"{mean(gains.values()):.2g} times as fast as the best of SciPy's `splu`, two settings, and `spilu`: "
        f"geometric mean of {len(gains)} systems, {min(gains.values()):.2g} on the worst; with `finelu[direct,mkl]`",
        link(REGRET, "2 cores, Intel"),
    )
    on_cpu, theirs = (sizes.seconds(load(SIZES_CPU), who) for who in (sizes.CPU, sizes.AMGCL))
    yield (
        "Laplacian (heat, pressure) in 3D",
        "`fl.solve(A, b)`",
        f"10⁶ unknowns: {seconds(on_cpu[MILLION])} from A and b to x; the multigrid library AMGCL takes "
        f"{seconds(theirs[MILLION])}",
        link(SIZES_CPU, "2 cores, AMD"),
    )
    on_gpu = sizes.seconds(load(SIZES_GPU), sizes.GPU)
    yield (
        "the same on a GPU",
        "`fl.solve(A, b)`, CuPy arrays",
        f"10⁶ unknowns: {seconds(on_gpu[MILLION])}; 10⁸ unknowns: {seconds(on_gpu[MOST])}",
        link(SIZES_GPU, "one H100"),
    )
    gains, slowest = programs()
    yield (
        "[programs](docs/programs.md) with solvers of their own: pandapower, FiPy, ...",
        "`fl.install()`, or an adapter",
        f"solves take {mean(gains):.2g} of the time of the program's own solver: geometric mean of {len(gains)} "
        f"programs; {min(gains):.2g} (against a dense solver) to {max(gains):.2g} for each; one example takes "
        f"{slowest:.2g} times as long",
        link(CLIENTS, "2 cores, AMD"),
    )
    found = [r for r in load(SQUARES).records if r.matrix.startswith("fixed effects")]
    ours = {r.matrix: r.numeric_ms for r in found if r.variant == "lstsq"}
    gains = [
        min(r.numeric_ms for r in found if r.matrix == name and r.who == "scipy" and r.numeric_ms) / ms
        for name, ms in ours.items()
        if ms
    ]
    yield (
        "least squares",
        "`fl.lstsq(A, b)`",
        f"{', '.join(against(gain) for gain in sorted(gains, reverse=True))}: {len(gains)} regressions of 10⁶ rows, "
        f"against SciPy's `lsmr` at its better setting",
        link(SQUARES, "2 cores, AMD"),
    )


def front() -> str:
    return table(("your system", "call", "what to expect", "measured on"), rows())
