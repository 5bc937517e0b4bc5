"""Tables from the record of `benchmarks.claims.solve`: claims, and ratios of times."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import finelu
from benchmarks.claims.solve_first_use import EMPTY, IMPORT, LATER, MEASURED, RUNS
from benchmarks.harness.record import Record, Run
from benchmarks.harness.suite import SMALLEST
from benchmarks.harness.systems import matrix_table, reason_counts, solved, solver_names, verdict
from benchmarks.harness.table import cell, mean, ratio, smallest, table
from benchmarks.harness.worker import SEED
from benchmarks.peers.solvers import RESTART, RTOL

OURS = "finelu.solve"
SCIPY = ("splu", "splu symmetric", "spilu")
ORDER = (OURS, *SCIPY, "pyamg", "ilupp", "ilupp ILU0", "nbklu", "feral", "pypardiso", "pypardiso symmetric")  # columns
SINGULAR = finelu.Status.SINGULAR.name.lower()
ITERATIONS = 2000  # of gmres with spilu and ilupp, as many as an attempt of finelu.solve has
CHEAP, AGAIN = 1.0, 3.0  # seconds up to which a solve runs again, how often, and seconds for all of that


def solve_record(run: Run, name: str, solver: str) -> Record | None:
    return run.one(matrix=name, variant=solver, work="solve")


def peers(run: Run) -> list[str]:
    return [s for s in solver_names(run, ORDER) if s != OURS]


def solvers_of(run: Run, name: str) -> list[str]:
    return [s for s in solver_names(run, ORDER) if solved(run, name, s)]


def false_claims(run: Run) -> list[str]:
    """The matrices for which finelu.solve said that it converged, and did not."""
    return [r.matrix for r in run.find(variant=OURS) if r.detail.get("claimed")]


def called_singular(run: Run) -> list[str]:
    return [r.matrix for r in run.find(variant=OURS) if r.detail.get("said") == SINGULAR]


def best(run: Run, name: str, solvers: Sequence[str]) -> tuple[float | None, str]:
    """The ms of the fastest of the solvers that solved the system, and its name."""
    times = {s: r.numeric_ms for s in solvers if solved(run, name, s) and (r := solve_record(run, name, s))}
    ms = smallest(times.values())
    return ms, next((s for s, t in times.items() if t == ms), "")


def ratios(run: Run, solvers: Sequence[str], least: int = SMALLEST) -> dict[str, float]:
    """matrix -> time of the fastest of the solvers over ours, for `least` rows or more, where both solve."""
    found = {}
    for name, facts in run.matrices.items():
        theirs, ours = best(run, name, solvers)[0], best(run, name, (OURS,))[0]
        if facts["n"] >= least and (faster := ratio(theirs, ours)) is not None:
            found[name] = faster
    return found


def spread(found: dict[str, float]) -> str:
    """Mean, median and worst of ratios, and how many are below one, in words."""
    if not found:
        return "-"
    worst = min(found, key=lambda name: found[name])
    return (
        f"{cell(mean(found.values()))}, median {cell(median(found.values()))}, worst {cell(found[worst])} ({worst}), "
        f"slower on {sum(r < 1 for r in found.values())}"
    )


def claims(run: Run) -> list[tuple[str, str, str, str]]:
    """(what, bar, measured, holds); a claim that was not measured says so."""
    lines: list[tuple[str, str, str, str]] = []
    names = list(run.matrices)
    if names:
        any_solver = [name for name in names if solvers_of(run, name)]
        ours = [name for name in names if solved(run, name, OURS)]
        alone = [name for name in ours if not solved(run, name, *peers(run))]
        share = len(ours) / len(any_solver) if any_solver else None
        measured = "-" if share is None else f"{len(ours)} = {100 * share:.1f}%"
        holds = verdict(None if share is None else share >= 0.97)
        lines.append((f"{OURS}: of the {len(any_solver)} systems that anything solves", ">= 97%", measured, holds))
        lines.append(
            ("solved that no other solves", ">= 1", ", ".join([str(len(alone)), *alone]), verdict(bool(alone)))
        )
        wrong, singular = false_claims(run), called_singular(run)
        lines.append(("false claims of convergence", "0", ", ".join([str(len(wrong)), *wrong]), verdict(not wrong)))
        refuted = [name for name in singular if solvers_of(run, name)]
        text = ", ".join([str(len(refuted)), *refuted])
        lines.append((f"called singular ({len(singular)}), but solved by another", "0", text, verdict(not refuted)))
    for label, solvers, bar in (("SciPy's best", SCIPY, 3.0), ("the best of all others", peers(run), 1.2)):
        for least in (SMALLEST, 0):
            found = ratios(run, solvers, least)
            if not found and not least:
                continue
            of = f"{len(found)} systems" + (f" of {least} rows or more" if least else " of any size")
            faster = mean(found.values())
            holds = verdict(None if faster is None else faster >= bar) if least else ""
            what = f"time of {label} over ours, geometric mean of {of}"
            lines.append((what, f">= {bar:g}" if least else "-", spread(found), holds))
    for what, text, bar in (
        (IMPORT, "`import finelu` beyond NumPy and SciPy, seconds", 0.3),
        (EMPTY, "the first solve with an empty kernel cache, the slowest system, seconds", 15.0),
        (LATER, "the first solve of later processes, the slowest system, seconds", 1.0),
    ):
        records = run.find(work=MEASURED, variant=what)
        slowest = max((r.numeric_ms / 1e3 for r in records), default=None)
        lines.append((text, f"< {bar:g}", cell(slowest), verdict(None if slowest is None else slowest < bar)))
    texts = [r.detail["said"] for r in run.find(work=MEASURED, variant=EMPTY)]
    if texts:
        words = sum("compil" in text.lower() for text in texts)
        lines.append(
            ("first solves with a word about compilation on the terminal", str(len(texts)), str(words),
             verdict(words == len(texts)))
        )  # fmt: skip
    return lines


def attempt_in_words(attempt: dict[str, Any]) -> str:
    recipe = attempt["recipe"].partition("(")[0]
    text = f"{recipe} {attempt['method']}".strip()
    return f"{text}: {attempt['outcome']}, {cell(attempt['setup_s'])} + {cell(attempt['iterating_s'])} s"


def tried_table(run: Run) -> str:
    lines = []
    for name in run.matrices:
        record = solve_record(run, name, OURS)
        if record is None:
            continue
        said = record.detail.get("said") or record.detail["status"]
        tried = "; ".join(attempt_in_words(a) for a in record.detail.get("tried", []))
        lines.append((name, said, record.error, tried))
    return table(("matrix", "status", "residual", "tried"), lines)


def failure_table(run: Run) -> str | None:
    """Systems that finelu.solve does not solve: why, and which solvers do."""
    lines = []
    for name in run.matrices:
        record = solve_record(run, name, OURS)
        if record is not None and record.detail["status"]:
            lines.append((name, record.detail["status"], record.error, ", ".join(solvers_of(run, name)) or "none"))
    return table(("matrix", "why", "residual", "solved by"), lines) if lines else None


def singular_table(run: Run) -> str | None:
    """Systems that finelu.solve calls singular, with its evidence, and which solvers solve them."""
    lines = []
    for name in called_singular(run):
        seen = solve_record(run, name, OURS).detail["seen"]
        lines.append((name, seen[-1] if len(seen) > 1 else "-", ", ".join(solvers_of(run, name)) or "none"))
    return table(("matrix", "evidence", "solved by"), lines) if lines else None


def time_table(run: Run) -> str | None:
    lines: list[Sequence[Any]] = []
    over_scipy, over_all = ratios(run, SCIPY, 0), ratios(run, peers(run), 0)
    for name in sorted(over_all, key=lambda name: over_all[name]):
        ours, (scipy_ms, scipy_name) = best(run, name, (OURS,))[0], best(run, name, SCIPY)
        other_ms, other = best(run, name, peers(run))
        lines.append(
            (name, run.matrices[name]["n"], ours, scipy_ms, scipy_name or "-", over_scipy.get(name), other_ms, other,
             over_all[name])
        )  # fmt: skip
    header = ("matrix", "n", "ours, ms", "SciPy's best", "by", "over ours", "best of all", "by", "over ours")
    return table(header, lines) if lines else None


def first_table(run: Run) -> str | None:
    lines = [
        (r.variant, r.matrix, r.numeric_ms / 1e3, ", ".join(cell(s) for s in r.detail["runs"]),
         r.detail.get("again_s"), r.detail.get("said") or "-")
        for r in run.find(work=MEASURED)
    ]  # fmt: skip
    header = ("what", "of", "median, s", "runs, s", "the next solve, s", "said on the terminal")
    return table(header, lines) if lines else None


def page(run: Run) -> str:
    absent = "Absent: not measured in this run.\n"
    present = "splu symmetric" in solver_names(run, ORDER)
    symmetric = "; splu symmetric: permc_spec='MMD_AT_PLUS_A', options=dict(SymmetricMode=True)" if present else ""
    text = run.heading()
    text += (
        f"\nb uniform in [-0.5, 0.5] (seed {SEED}); solved where ||b - A x||_2 <= {RTOL:g} ||b||_2, computed apart "
        f"from the solvers, within the limit. All with default parameters{symmetric}; gmres({RESTART}) with at most "
        f"{ITERATIONS} iterations with spilu and "
        "ilupp; pyamg's `solve` is called again from its x while that halves the residual. "
        "Cells: iterations, seconds of everything (kernels compiled before), or why there is no solution. What takes "
        f"less than {CHEAP:g} s: the median of up to {RUNS} further runs.\n"
    )
    text += "\n## Claims\n\n" + table(("what", "bar", "measured", "holds"), claims(run))
    if run.matrices:
        text += "\n## Every matrix\n\n" + matrix_table(run, ORDER)
        text += f"\n## What {OURS} does not solve\n\n" + (failure_table(run) or "Nothing.\n")
        text += f"\n## What {OURS} calls singular\n\n" + (singular_table(run) or "Nothing.\n")
        text += f"\n## What {OURS} tried\n\nSeconds: of set-up + of iterations.\n\n" + tried_table(run)
        text += "\n## Reasons\n\n" + reason_counts(run, solver_names(run, ORDER))
    text += "\n## Time to solution, systems of all sizes\n\n" + (time_table(run) or absent)
    text += "\n## First use, in fresh processes\n\n" + (first_table(run) or absent)
    text += (
        "\nimport: of `finelu` after numpy, scipy.sparse and scipy.sparse.linalg. A first solve includes what it "
        "imports, Numba among it; an empty cache holds no compiled kernel.\n"
    )
    return text + run.footing()
