"""Tables from the record of `benchmarks.claims.regret`, and the regret of any rule by that record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.claims.solve_tables import OURS, SCIPY, attempt_in_words, solve_record
from benchmarks.harness.record import Record, Run
from benchmarks.harness.systems import solved, verdict
from benchmarks.harness.table import cell, mean, ratio, smallest, table
from benchmarks.harness.worker import SEED
from benchmarks.peers.solvers import RTOL

Rule = Callable[[dict[str, Any]], str | Sequence[str]]

ON_CPU = f"{OURS} on the CPU"  # for a record of a GPU: the same call with A and b on the host
CLAIMS = ("what", "bar", "by medians", "holds", "by minima", "by processor time")
SIZES = ((2000, "below 2,000"), (20_000, "2,000 to 20,000"), (math.inf, "20,000 or more"))  # rows
PLANE = 4.0  # flops of complete factors over n^1.5, below which separators are smaller than those of a plane mesh
ONE_WAY = 0.5  # part of the entries with a partner, below which a pattern is that of a network
FAR = 1.5  # regret from which on a system counts as missed


# The regret of a rule -------------------------------------------------------------------------------------------------


def rungs_of(run: Run, name: str) -> list[str]:
    """The rungs of finelu that ran alone on a system."""
    return [r.variant for r in run.find(name, who="finelu") if r.variant != OURS]


def others_of(run: Run, name: str) -> list[str]:
    return [r.variant for r in run.find(name) if r.who != "finelu"]


def median_ms(record: Record) -> float | None:
    return record.numeric_ms


def least_ms(record: Record) -> float | None:
    """The least time of a solver that solved the system; that until it failed for others."""
    runs = record.detail["runs"] if record.detail["status"] == "" else ()
    return min((1e3 * seconds for seconds in runs), default=record.numeric_ms)


def cpu_ms(record: Record) -> float | None:
    """The least time of the processor, of all threads together, which other work on the machine changes less."""
    return min((1e3 * seconds for seconds in record.detail.get("cpu", ())), default=record.numeric_ms)


def least(
    run: Run, name: str, solvers: Iterable[str], of: Callable[[Record], float | None] = median_ms
) -> tuple[float | None, str]:
    """The ms of the fastest of the solvers that solved a system, and its name."""
    times = {s: of(solve_record(run, name, s)) for s in solvers if solved(run, name, s)}
    ms = smallest(times.values())
    return ms, next((s for s, t in times.items() if t == ms), "")


def attempts_ms(record: Record) -> float:
    """The time of finelu's attempts alone, without its look at why they failed."""
    return 1e3 * sum(attempt["setup_s"] + attempt["iterating_s"] for attempt in record.detail.get("tried", ()))


def regret(rule: Rule, run: Run, of: Callable[[Record], float | None] = median_ms) -> dict[str, float]:
    """system -> the time that a rule takes over that of the best rung, from the record alone.

    rule : a function of the features of a matrix, `run.matrices[name]`, that returns the name of a solver in the
        record, or the names of several: the next one is tried where one fails, and the times of all are added up; of
        rungs that fail those of their attempts.
    of : `median_ms`, `least_ms` or `cpu_ms`.
    Inf where no solver of the rule solves the system, NaN where one is not in the record. Systems that no rung solves
    are left out. Where the record has a solver that was stopped, its part of the time is a lower bound.
    """
    found = {}
    for name, facts in run.matrices.items():
        best_ms, _ = least(run, name, rungs_of(run, name), of)
        if best_ms is None:
            continue
        names, spent = rule(facts), 0.0
        for solver in [names] if isinstance(names, str) else names:
            record = solve_record(run, name, solver)
            ms = None if record is None else of(record)
            if ms is None:
                spent = math.nan
                break
            if record.detail["status"] == "":
                spent += ms
                break
            spent += attempts_ms(record) or ms
        else:
            spent = math.inf
        found[name] = spent / best_ms
    return found


def of_solve(facts: dict[str, Any]) -> str:
    """The rule of `finelu.solve`, with the time that it took itself."""
    return OURS


# Kinds of systems -----------------------------------------------------------------------------------------------------


def kind_of(run: Run, name: str) -> str:
    """SPD where the diagonal allows for it and no rung has met a curvature that is not positive."""
    facts = run.matrices[name]
    tried = (attempt["outcome"] for r in run.find(name, who="finelu") for attempt in r.detail.get("tried", ()))
    if facts["kind"] == "general":
        return "unsymmetric"
    return "SPD" if facts["definite"] and "indefinite" not in tried else "symmetric indefinite"


def shape_of(facts: dict[str, Any]) -> str:
    """network: complete factors take less work than those of a plane mesh, or most entries have no partner."""
    return "network" if facts["flops"] < PLANE * facts["n"] ** 1.5 or facts["paired"] < ONE_WAY else "mesh"


def size_of(facts: dict[str, Any]) -> str:
    return next(text for end, text in SIZES if facts["n"] < end)


# Tables ---------------------------------------------------------------------------------------------------------------


def over(run: Run, of_others: Callable[[str], Iterable[str]], of: Callable[[Record], float | None]) -> dict[str, float]:
    """system -> time of the fastest of other solvers over that of finelu.solve, where both solve."""
    found = {}
    for name in run.matrices:
        faster = ratio(least(run, name, of_others(name), of)[0], least(run, name, (OURS,), of)[0])
        if faster is not None:
            found[name] = faster
    return found


def spread(found: dict[str, float], worst: Callable[..., str]) -> str:
    """Geometric mean and worst of ratios, in words.  worst : min or max."""
    if not found:
        return "-"
    name = worst(found, key=lambda name: found[name])
    finite = {n: r for n, r in found.items() if math.isfinite(r)}
    unsolved = f"; {len(found) - len(finite)} not solved" if len(finite) < len(found) else ""
    return f"{cell(mean(finite.values()))} on {len(finite)}, {cell(found[name])} ({name}){unsolved}"


def claims(run: Run) -> list[tuple[str, ...]]:
    """The lines of CLAIMS."""
    by_median, by_least, by_cpu = (known(regret(of_solve, run, of)) for of in (median_ms, least_ms, cpu_ms))
    lines = [
        (
            f"regret of {OURS} over its best rung, geometric mean and largest",
            "<= 1.2, <= 2",
            spread(by_median, max),
            verdict(None if not by_median else (mean(by_median.values()) or 0) <= 1.2 and max(by_median.values()) <= 2),
            spread(by_least, max),
            spread(by_cpu, max),
        )
    ]
    on_cpu = [(f"{OURS} on the CPU of the same machine", lambda name: (ON_CPU,), 2.0, 0.9)]
    on_host = [
        ("the best of the others", lambda name: others_of(run, name), 1.0, 0.5),
        ("SciPy's best of three", lambda name: SCIPY, 2.3, 0.7),
    ]
    for what, solvers, bar, worst in on_cpu if "gpu" in run.machine else on_host:
        by_median, by_least, by_cpu = (over(run, solvers, of) for of in (median_ms, least_ms, cpu_ms))
        holds = None if not by_median else mean(by_median.values()) >= bar and min(by_median.values()) >= worst
        lines.append(
            (
                f"time of {what} over that of {OURS}, geometric mean and smallest",
                f">= {bar:g}, >= {worst:g}",
                spread(by_median, min),
                verdict(holds),
                spread(by_least, min),
                spread(by_cpu, min),
            )
        )
    return lines


def known(found: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in found.items() if not math.isnan(value)}


def kind_table(run: Run) -> str:
    """Regret by kind of matrix, shape of its graph, and size."""
    found = known(regret(of_solve, run))
    groups: dict[tuple[str, str, str], dict[str, float]] = {}
    for name, value in found.items():
        facts = run.matrices[name]
        groups.setdefault((kind_of(run, name), shape_of(facts), size_of(facts)), {})[name] = value
    order = [text for _, text in SIZES]
    lines = []
    for kind, shape, size in sorted(groups, key=lambda group: (group[0], group[1], order.index(group[2]))):
        group = groups[kind, shape, size]
        missed = sum(value > FAR for value in group.values())
        lines.append((kind, shape, size, len(group), mean(group.values()), max(group.values()), missed))
    return table(("kind", "graph", "rows", "systems", "regret", "largest", f"above {FAR:g}"), lines)


def worst_table(run: Run) -> str:
    """A row for each system: the best rung and what finelu.solve took, the largest regret first."""
    by_median, by_least, by_cpu = (regret(of_solve, run, of) for of in (median_ms, least_ms, cpu_ms))
    ours, lines = over(run, lambda name: others_of(run, name), median_ms), []
    for name in sorted(by_median, key=lambda name: -math.inf if math.isnan(by_median[name]) else -by_median[name]):
        facts, record = run.matrices[name], solve_record(run, name, OURS)
        (ms, rung), (other_ms, other) = (least(run, name, names(run, name)) for names in (rungs_of, others_of))
        tried = [a | {"outcome": a["outcome"].partition(":")[0]} for a in record.detail.get("tried", [])]
        took = "; ".join(map(attempt_in_words, tried)) or record.detail["status"]
        lines.append(
            (name, facts["n"], f"{kind_of(run, name)}, {shape_of(facts)}", by_median[name], by_least[name],
             by_cpu[name], record.numeric_ms, took, ms, rung, other_ms, other or "-", ours.get(name))
        )  # fmt: skip
    header = (
        "system",
        "n",
        "kind",
        "regret",
        "by minima",
        "by processor",
        "solve, ms",
        "it tried",
        "best, ms",
        "best rung",
    )
    return table((*header, "other, ms", "best other", "over solve"), lines)


def rung_table(run: Run) -> str:
    """A row for each solver: on how many systems it is the best or near it, and the regret of always taking it."""
    names = dict.fromkeys(r.variant for r in run.records)
    lines = []
    for solver in names:
        found = known(regret(lambda facts, solver=solver: solver, run))
        values = [value for value in found.values() if math.isfinite(value)]
        near = sum(value <= FAR for value in values)
        lines.append((solver, len(found), len(values), sum(value <= 1 for value in values), near, mean(values)))
    header = ("solver", "systems", "solved", "the best rung", f"regret of {FAR:g} at most", "mean regret where solved")
    return table(header, sorted(lines, key=lambda line: -line[4]))


def in_words(run: Run, name: str) -> str:
    """The line of a system while the benchmark runs."""
    ours, (ms, rung) = solve_record(run, name, OURS), least(run, name, rungs_of(run, name))
    said = ours.detail["status"] or f"{cell(ours.numeric_ms)} ms"
    none = "no solution" if rungs_of(run, name) else "not measured"
    return f"{OURS} {said}; its best rung: " + (f"{rung} {cell(ms)} ms" if rung else none)


def page(run: Run) -> str:
    text = run.heading()
    text += (
        f"\nb uniform in [-0.5, 0.5] (seed {SEED}); solved where ||b - A x||_2 <= {RTOL:g} ||b||_2, computed apart "
        "from the solvers, and where finelu's test by rows, if it makes one, passes, too. Times: of everything, "
        "kernels compiled before; medians of interleaved runs after the first, of the first alone where a solver is "
        "far from the best. Processor time: the least of a run, of all threads together. "
        "Regret: the time of `finelu.solve` over that of its best rung alone. Graph: network where "
        f"complete factors take fewer than {PLANE:g} n^1.5 flops, or fewer than half of the entries have a partner. A "
        "solver that was stopped has at least the time shown. Where the seconds for a system were spent early (see the "
        "end of the page), not all rungs ran, or only once, and its regret is a lower bound or noise.\n"
    )
    text += "\n## Claims\n\n" + table(CLAIMS, claims(run))
    text += "\n## Regret by kind\n\n" + kind_table(run)
    text += "\n## Every system, the largest regret first\n\n" + worst_table(run)
    text += "\n## Every solver\n\n" + rung_table(run)
    return text + run.footing()
