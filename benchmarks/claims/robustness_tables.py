"""What docs/measured.md and its picture say of a record of benchmarks.claims.robustness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from textwrap import fill

from benchmarks.harness.record import Run
from benchmarks.harness.table import mean, table
from finelu.errors import FineluError, counted

WHOLE, OURS, MATCHED = "solve", "MultilevelILU", "ilupp at our fill"
RECIPES = ("ILU0", "ILUT", "ParILUT", OURS)
NAMES = {
    WHOLE: "finelu solve",
    "splu": "SciPy splu (direct)",
    OURS: "finelu MultilevelILU",
    MATCHED: "ilupp multilevel, same fill",
    "spilu": "SciPy spilu",
    "ILUT": "finelu ILUT",
    "ParILUT": "finelu ParILUT",
    "pyamg": "pyamg, SA or RS",
    "ILU0": "finelu ILU0",
    "ilupp": "ilupp multilevel, its defaults",
}  # solver -> how a reader knows it
VARIANTS = {"splu": "splu (direct)"}  # as a record calls it
LARGE = 10_000  # rows


def seconds(run: Run) -> dict[str, dict[str, float]]:
    """Solver of NAMES -> {matrix: seconds} of what it solved, set-up and iterations together; pyamg's better way."""
    times: dict[str, dict[str, float]] = {
        name: {} for name in NAMES if any(_name(r.variant) == name for r in run.records)
    }
    for r in run.records:
        if r.detail["status"] == "" and r.numeric_ms is not None:
            of = times[_name(r.variant)]
            of[r.matrix] = min(r.numeric_ms / 1e3, of.get(r.matrix, float("inf")))
    return times


def _name(variant: str) -> str:
    return variant if variant in NAMES else variant.split()[0]


def fastest(times: Mapping[str, Mapping[str, float]], matrices: Iterable[str]) -> Counter[str]:
    """Solver -> of how many of the matrices it is the fastest of those that solve it."""
    solved = ([(found[m], name) for name, found in times.items() if m in found] for m in matrices)
    return Counter(min(pairs)[1] for pairs in solved if pairs)


def words(run: Run, record: str) -> str:
    """How many systems each solver solves, and how the recipes compare, from a record with all recipes and splu.

    FineluError if a solver has not been tried on each matrix: it would count as one that failed.
    """
    for solver in {r.variant for r in run.records}:
        if left := set(run.matrices) - {r.matrix for r in run.find(variant=solver)}:
            raise FineluError(f"{record}: {solver} was not tried on {', '.join(sorted(left))}.")
    times, n = seconds(run), {name: facts["n"] for name, facts in run.matrices.items()}
    large = [m for m in n if n[m] >= LARGE]
    first, first_large = fastest(times, n), fastest(times, large)
    lines = [
        (NAMES[name], len(found), first[name], first_large[name])
        for name, found in sorted(times.items(), key=lambda pair: -len(pair[1]))
    ]
    header = ("solver", f"solves of {len(n)}", "is the fastest on", f"of the {len(large)} with {LARGE:,} rows or more")
    chosen = ", `solve` by what it chooses" if WHOLE in times else ""
    text = _wrapped(
        f"`{record}`: b = A x with a random x, at most {run.options['limit, seconds']:g} s for set-up and solve, "
        f"{run.machine['cores']} cores. The preconditioners work with GMRES(50), at most 500 iterations{chosen}. A "
        "system counts as solved where ‖b − A x‖ ≤ 1e-8 ‖b‖."
    )
    points = "\n".join(_wrapped(f"- {line}", "  ") for line in _comparisons(run, times, large))
    return f"{text}\n\n{table(header, lines)}\n{points}\n"


def _wrapped(text: str, indent: str = "") -> str:
    return fill(text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _comparisons(run: Run, times: Mapping[str, Mapping[str, float]], large: list[str]) -> Iterable[str]:
    plain, threshold, multilevel = (times[name] for name in ("ILU0", "ILUT", OURS))
    both = [m for m in threshold if m in plain]
    iterations = {name: {r.matrix: r.detail.get("iterations") for r in run.find(variant=name)} for name in RECIPES}
    more = mean([iterations["ILU0"][m] / iterations["ILUT"][m] for m in both if iterations["ILUT"][m]])
    shares = [mean([threshold[m] / plain[m] for m in of]) for of in (both, [m for m in both if m in large])]
    alone = counted(len(set(threshold) - set(plain)), "system")
    yield (
        f"**ILUT and ILU0.** ILUT solves {alone} that ILU0 does not; the two together solve "
        f"{len({*threshold, *plain})}. On the {len(both)} that both solve, ILU0 takes {_said(more)} times the "
        f"iterations (geometric mean), and ILUT {_said(shares[0])} of its time, {_said(shares[1])} on those with "
        f"{LARGE:,} rows or more."
    )
    ours = {name: times[name] for name in RECIPES if name in times}
    first = fastest(ours, run.matrices)
    solved = set().union(*ours.values())
    counts = ", ".join(f"{name} {first[name]} times" for name in ours)
    yield f"**Any recipe.** One of {', '.join(ours)} solves {len(solved)}. The fastest of these is {counts}."
    gaps = [m for m, facts in run.matrices.items() if facts["zero diagonal"]]
    of_gaps = [sum(m in times[name] for m in gaps) for name in (OURS, "ILUT", "ILU0")]
    both = [m for m in threshold if m in multilevel]
    longer = mean([multilevel[m] / threshold[m] for m in both])
    yield (
        f"**MultilevelILU** takes {_said(longer)} times as long as ILUT where both work ({len(both)} systems). Of the "
        f"{len(gaps)} systems whose diagonal has zeros or gaps it solves {of_gaps[0]}, ILUT {of_gaps[1]}, ILU0 "
        f"{of_gaps[2]}."
    )
    for name in (WHOLE, OURS, "splu"):
        whys = [
            f"{r.matrix} ({r.detail['status']})"
            for r in run.find(variant=VARIANTS.get(name, name))
            if r.detail["status"]
        ]
        if whys:
            yield f"Not solved by {NAMES[name]}: {', '.join(whys)}."


def _said(value: float | None) -> str:
    assert value is not None
    return f"{value:.2g}"
