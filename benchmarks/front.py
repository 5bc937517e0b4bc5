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
REGRET = "regret-intel-xeon-2-cores-final-2026-11-27"  # solve and others on small and medium systems
SIZES_CPU, SIZES_GPU = "sizes-amd-epyc-2-cores-2026-11-27", "sizes-nvidia-h100-2026-11-27"
CLIENTS = "clients-2-core-amd-epyc-2026-11-27"  # programs, a page without a record
SQUARES = "least-squares-cpu-amd-epyc-2-cores-2026-11-27"
MILLION, MOST = 10**6, 464**3  # unknowns of which times are named


@cache
def load(name: str) -> Run:
    return Run.load(RESULTS / f"{name}{ENDING}")


def seconds(value: float) -> str:
    return f"{value:.2g} s" if value >= 0.1 else f"{1e3 * value:.2g} ms"


def link(name: str) -> str:
    return f"[{'older ' if name in records.reasons() else ''}record](benchmarks/results/{name}.md)"


def over_scipy() -> dict[str, float]:
    """system -> the time of the best of SciPy's three solvers over that of solve."""
    return regret_tables.over(load(REGRET), lambda name: regret_tables.SCIPY, regret_tables.median_ms)


def programs() -> list[float]:
    """The time with finelu over that of the program's own solver, a geometric mean for each program."""
    text = (RESULTS / f"{CLIENTS}.md").read_text()
    return [float(number) for number in re.findall(r"^## .*geometric mean of the ratios ([\d.]+)", text, re.MULTILINE)]


def rows() -> Iterator[tuple[str, str, str, str]]:
    gains = over_scipy()
    yield (
        "any, up to some 10⁵ unknowns",
        "`fl.solve(A, b)`",
        f"{mean(gains.values()):.2g} times as fast as the best of SciPy's solvers (mean of {len(gains)} systems; "
        f"at worst {min(gains.values()):.2g})",
        link(REGRET),
    )
    on_cpu, theirs = (sizes.seconds(load(SIZES_CPU), who) for who in (sizes.CPU, sizes.AMGCL))
    yield (
        "elliptic, 10⁶ unknowns, 2 cores",
        "`fl.solve(A, b)`",
        f"{seconds(on_cpu[MILLION])} from A, b to x; AMGCL {seconds(theirs[MILLION])}",
        link(SIZES_CPU),
    )
    on_gpu = sizes.seconds(load(SIZES_GPU), sizes.GPU)
    yield (
        "elliptic, 10⁶ to 10⁸ unknowns, one GPU",
        "`fl.solve(A, b)`, A of `cupyx.scipy.sparse`",
        f"{seconds(on_gpu[MILLION])} to {seconds(on_gpu[MOST])}",
        link(SIZES_GPU),
    )
    gains = programs()
    yield (
        "a program that calls SciPy",
        "`fl.install()`",
        f"its solvers take {mean(gains):.2g} of the time "
        f"(mean of {len(gains)} programs; {min(gains):.2g} to {max(gains):.2g})",
        link(CLIENTS),
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
        f"{min(gains):.2g} to {max(gains):.2g} times as fast as the better of SciPy's `lsmr` with and without "
        f"scaled columns ({len(gains)} panels of 10⁶ rows)",
        link(SQUARES),
    )


def front() -> str:
    return table(("your system", "call", "what to expect", "measured"), rows())
