"""Where finelu loses: systems that another solver answers sooner, from the records, the worst first.

A record of whole systems that is named here, or is of a family in FAMILIES, has its place in docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from textwrap import fill

from benchmarks import front, records
from benchmarks.claims import elliptic, regret_tables, rivals, sizes
from benchmarks.claims import solve_tables as solve
from benchmarks.front import load
from benchmarks.harness import RESULTS
from benchmarks.harness.record import ENDING, Run
from benchmarks.harness.table import mean, table

Pairs = dict[str, tuple[float, float, str]]  # system -> ms of finelu, ms of the fastest other, who that is
SOLVE_DIRECT = "solve-2-core-amd-epyc-with-extras-2026-11-23"  # with nbklu, feral-solver and pypardiso installed
MOST = 6  # losses of a record that are shown, and as many of the larger systems
LARGER = 50.0  # ms that finelu takes for these, at least


def of_solve(run: Run) -> Pairs:
    found = {}
    for name in run.matrices:
        ours, (theirs, who) = solve.best(run, name, (solve.OURS,))[0], solve.best(run, name, solve.peers(run))
        if ours and theirs:
            found[name] = (ours, theirs, who)
    return found


def of_regret(run: Run) -> Pairs:
    found = {}
    for name in run.matrices:
        ours, _ = regret_tables.least(run, name, (solve.OURS,))
        theirs, who = regret_tables.least(run, name, regret_tables.others_of(run, name))
        if ours and theirs:
            found[name] = (ours, theirs, who)
    return found


def of_sizes(run: Run) -> Pairs:
    ours, found = sizes.seconds(run, sizes.CPU), {}
    for n in ours:
        others = {who: sizes.seconds(run, who).get(n) for who in sizes.SOLVERS if not who.startswith("finelu")}
        timed = {who: s for who, s in others.items() if s}
        if timed:
            who = min(timed, key=lambda who: timed[who])
            found[f"7-point Laplacian, {n:,} rows"] = (1e3 * ours[n], 1e3 * timed[who], who)
    return found


def of_elliptic(run: Run) -> Pairs:
    found = {}
    for name in run.matrices:
        ours = elliptic.best(run, name, elliptic.FINELU)
        others = [r for who in elliptic.SOLVERS[2:] if (r := elliptic.best(run, name, who)) is not None]
        if ours is not None and ours.numeric_ms and others:
            theirs = min(others, key=lambda r: r.numeric_ms or 0.0)
            found[name] = (ours.numeric_ms, theirs.numeric_ms or 0.0, f"{theirs.who} {theirs.variant}")
    return found


NAMED: dict[str, Callable[[Run], Pairs]] = {
    SOLVE_DIRECT: of_solve,
    front.REGRET: of_regret,
    front.SIZES_CPU: of_sizes,
}
FAMILIES: dict[str, Callable[[Run], Pairs]] = {"elliptic-cpu": of_elliptic, "rivals": rivals.pairs}


def sources() -> Iterator[tuple[str, Pairs]]:
    """record -> its systems that both finelu and another solved."""
    taken = dict(NAMED)
    for family, pairs in FAMILIES.items():
        taken |= {path.name.removesuffix(ENDING): pairs for path in sorted(RESULTS.glob(f"{family}-*{ENDING}"))}
    for name, pairs in taken.items():
        if found := pairs(load(name)):
            yield name, found


def where(run: Run) -> str:
    return f"{run.machine['cpu']}, {run.options.get('threads', run.machine['cores'])} threads"


def link(name: str) -> str:
    age = "older " if name in records.reasons() else ""
    return f"{age}`{name}`"


def lost() -> str:
    """A line for each system that another solver answers sooner."""
    lines, count = [], 0
    for name, found in sources():
        slower = sorted((theirs / ours, system, ours, theirs, who) for system, (ours, theirs, who) in found.items())
        slower = [line for line in slower if line[0] < 1]
        larger = [line for line in slower if line[2] >= LARGER]
        shown = dict.fromkeys((*slower[:MOST], *larger[:MOST]))
        lines += [(*line, load(name).matrices.get(line[1], {}).get("n"), link(name)) for line in shown]
        count += len(slower)
    heads = ("system", "rows", "finelu, ms", "the other, ms", "the other / finelu", "who", "record")
    cells = [
        (system, n, ours, theirs, ratio, who, record) for ratio, system, ours, theirs, who, n, record in sorted(lines)
    ]
    which = f"the {MOST} worst of each record are shown, and the {MOST} worst of {LARGER:.0f} ms or more"
    return f"Another solver is sooner {count} times; {which}.\n\n{table(heads, cells)}"


def others() -> str:
    """How often another solver takes less time than `solve`: on the record of the README's table, and on the others."""
    found = dict(sources())
    pairs = found.pop(front.REGRET)
    run, ratios = load(front.REGRET), [theirs / ours for ours, theirs, _ in pairs.values()]
    rows = [run.matrices[name]["n"] for name in pairs]
    less = [sum(theirs < ours for ours, theirs, _ in pairs.values()) for pairs in found.values()]
    text = (
        f"On {sum(ratio < 1 for ratio in ratios)} of {len(ratios)} systems of {min(rows):,} to {max(rows):,} rows the "
        "fastest of SciPy, pyamg, ilupp, nbklu, feral-solver and pypardiso took less time than `solve` (with the "
        f"extras `direct` and `mkl`). It took {mean(ratios):.2f} of the time of `solve` in the geometric mean of all "
        f"{len(ratios)}, and {min(ratios):.2f} on the worst. In the other {len(found)} records another solver took "
        f"less time on {sum(less)} of {sum(map(len, found.values()))} systems."
    )
    return fill(text, 120, break_on_hyphens=False, break_long_words=False) + "\n"


def compared() -> str:
    """A line for each record, the one with the largest share of losses first."""
    lines = []
    for name, found in sources():
        ratios = {system: theirs / ours for system, (ours, theirs, _) in found.items()}
        worst = min(ratios, key=lambda system: ratios[system])
        slower = sum(ratio < 1 for ratio in ratios.values())
        figures = (mean(ratios.values()), median(ratios.values()), f"{ratios[worst]:.3g} ({worst})")
        lines.append((slower / len(ratios), (len(ratios), slower, *figures, where(load(name)), link(name))))
    lines.sort(key=lambda line: -line[0])
    heads = ("systems", "finelu is slower on", "mean", "median", "worst", "machine", "record")
    return table(heads, (cells for _, cells in lines))
