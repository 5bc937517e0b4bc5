"""Claim: with `finelu.spsolve` instead of SciPy's, programs wait less for their systems, small ones included.

The systems are those that pandapower, scikit-fem's examples and SimPEG solve, written by `tests/clients/systems.py`:

    python tests/clients/run.py pandapower simpeg skfem                       # makes their environments
    ~/.cache/finelu/clients/pandapower/bin/python tests/clients/systems.py pandapower SYSTEMS    # and so on
    python -m benchmarks.claims.programs SYSTEMS [--without pypardiso,nbklu,feral] [--repeats 9]

The systems of an example are solved in their order by SciPy's `spsolve` and by `finelu.spsolve`: "first" with nothing
kept from earlier calls, so that only systems of the example share an analysis; and "again", where all patterns are
known. For each system with another pattern than those before, the time of a second call with other values is compared
with that of the first. Right-hand sides of many columns, and matrices that a program factors, with COLUMNS random
columns, are compared apart: with SciPy's `splu` in the orders COLAMD and MMD. Times are those of the fastest of some
runs, in turn; with --processor, for a machine that does other work, too, those of the processor: set OMP_NUM_THREADS,
OPENBLAS_NUM_THREADS and FINELU_NUM_THREADS to 1 then. The error of x is ||b - A x|| / (||A|| ||x|| + ||b||) in 1-norms,
the largest of an example.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_budget, add_place, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.table import mean, table
from finelu.errors import ParameterError

REPEATS, COLUMNS, SEED = 5, 54, 0
SCIPY, FIRST, AGAIN, SECOND = "SciPy", "first", "again", "second"
MMD, MMD_SYMMETRIC, COLAMD = "splu, MMD", "splu, MMD, symmetric mode", "splu, COLAMD"
SPSOLVE, SPLU, OURS = "spsolve", "finelu.splu", "finelu.spsolve"
NEWTON, EACH, TWICE, MANY = "Newton", "each", "twice", "many columns"  # Record.work
RANGES = ((0, 400), (400, 3000), (3000, 10**9))  # rows: more than, up to
DENSE = 64  # rows up to which spsolve needs no analysis
System = tuple[Any, Any]
clock = time.perf_counter


def load(path: Path) -> System:
    with np.load(path) as z:
        make = sp.csr_matrix if str(z["format"]) == "csr" else sp.csc_matrix
        return make((z["data"], z["indices"], z["indptr"]), shape=tuple(z["shape"])), z["b"]


def forget() -> None:
    """Drop all that finelu has kept. Factors that are dropped give back an analysis, which is then kept: so twice."""
    from finelu.recent import RECENT

    for _ in range(2):
        RECENT.__init__()  # type: ignore[misc]


def error(A: Any, x: Any, b: Any) -> float:
    if not b.size:
        return 0.0
    sizes = spla.norm(A, 1) * np.linalg.norm(x, 1) + np.linalg.norm(b, 1)
    found = float(np.linalg.norm(b - A @ x, 1) / sizes) if sizes else 0.0
    return found if math.isfinite(found) else math.inf


def seconds(calls: Sequence[Callable[[], Any]]) -> np.ndarray:
    """The time of each call (k,), by `clock`."""
    found = np.empty(len(calls))
    for k, call in enumerate(calls):
        begun = clock()
        call()
        found[k] = clock() - begun
    return found


def fastest(variants: dict[str, Callable[[], np.ndarray]], repeats: int) -> dict[str, np.ndarray]:
    """The least times of each variant, which are called in turn."""
    best: dict[str, np.ndarray] = {}
    for _ in range(repeats):
        for name, run in variants.items():
            times = run()
            best[name] = np.minimum(best.get(name, times), times)
    return best


def newton(run: Run, name: str, systems: list[System], repeats: int) -> None:
    """All systems of an example in their order."""
    from finelu import spsolve

    own = [partial(spla.spsolve, *system) for system in systems]
    ours = [partial(spsolve, *system) for system in systems]

    def anew() -> np.ndarray:
        forget()
        return seconds(ours)

    anew()  # kernels are compiled, or loaded
    wrong = max(error(A, spsolve(A, b), b) for A, b in systems)
    best = fastest({SCIPY: partial(seconds, own), FIRST: anew, AGAIN: partial(seconds, ours)}, repeats)
    facts = {"rows": max(A.shape[0] for A, _ in systems), "solves": len(systems)}
    for variant, times in best.items():
        who = "scipy" if variant == SCIPY else "finelu"
        detail = facts | {"each": [1e3 * t for t in times], "n": [A.shape[0] for A, _ in systems]}
        total = 1e3 * float(times.sum())
        run.records.append(Record(name, NEWTON, "cpu", who, variant, total, None, wrong, detail=detail))


def twice(run: Run, name: str, system: System, repeats: int) -> None:
    """A pattern for the first time, and a second time with other values."""
    from finelu import spsolve

    (A, b), other = system, system[0].copy()
    other.data = other.data * 1.37

    def both() -> np.ndarray:
        forget()
        return seconds([partial(spsolve, A, b), partial(spsolve, other, b)])

    best = fastest({TWICE: both}, repeats)[TWICE]
    for variant, t in zip((FIRST, SECOND), best, strict=True):
        detail = {"rows": A.shape[0], "nnz": A.nnz}
        run.records.append(Record(name, TWICE, "cpu", "finelu", variant, 1e3 * float(t), None, 0.0, detail=detail))


def many(run: Run, name: str, system: System, repeats: int) -> None:
    """Factors, and a solve for many columns."""
    import finelu

    A, b = system
    if not b.size:
        rng = np.random.default_rng(SEED)
        b = rng.standard_normal((A.shape[0], COLUMNS))
        b = b + 1j * rng.standard_normal(b.shape) if A.dtype.kind == "c" else b
    C = A.tocsc()
    symmetric = {"options": {"SymmetricMode": True}, "diag_pivot_thresh": 0.0}
    ways: dict[str, Callable[[], Any]] = {
        COLAMD: lambda: spla.splu(C).solve(b),
        MMD: lambda: spla.splu(C, permc_spec="MMD_AT_PLUS_A").solve(b),
        MMD_SYMMETRIC: lambda: spla.splu(C, permc_spec="MMD_AT_PLUS_A", **symmetric).solve(b),
        SPLU: lambda: finelu.splu(C).solve(b),
        SPSOLVE: lambda: spla.spsolve(A, b),
        OURS: lambda: finelu.spsolve(A, b),
    }

    def timed(way: Callable[[], Any]) -> np.ndarray:
        forget()
        return seconds([way])

    found = {variant: way() for variant, way in ways.items()}  # kernels are compiled, or loaded
    best = fastest({variant: partial(timed, way) for variant, way in ways.items()}, repeats)
    for variant, times in best.items():
        who = "finelu" if variant in (SPLU, OURS) else "scipy"
        detail = {"rows": A.shape[0], "columns": b.shape[1]}
        wrong = error(A, found[variant], b)
        run.records.append(Record(name, MANY, "cpu", who, variant, 1e3 * float(times[0]), None, wrong, detail=detail))


def page(run: Run) -> str:
    parts = [run.heading()]
    by_name = {name: [r for r in run.find(work=NEWTON) if r.matrix == name] for name in run.matrices}
    for program in dict.fromkeys(name.partition("/")[0] for name in run.matrices):
        lines, ratios = [], {FIRST: [], AGAIN: []}
        for name, records in by_name.items():
            if name.partition("/")[0] != program or not records:
                continue
            own, first, again = records
            both = [r.numeric_ms / own.numeric_ms for r in (first, again)]  # type: ignore[operator]
            for kind, value in zip(ratios, both, strict=True):
                ratios[kind].append(value)
            facts = own.detail["rows"], own.detail["solves"], own.numeric_ms, first.numeric_ms, again.numeric_ms
            lines.append((name.partition("/")[2], *facts, *both, f"{own.error:.0e}"))
        if not lines:
            continue
        heads = "example", "rows", "solves", "SciPy, ms", "first, ms", "again, ms", "first / SciPy", "again / SciPy"
        parts.append(f"\n## {program}: all systems of an example\n\n" + table((*heads, "error"), lines))
        parts.append(
            f"\nGeometric mean of first / SciPy: {mean(ratios[FIRST]):.2f}, the largest {max(ratios[FIRST]):.2f}; of "
            f"again / SciPy: {mean(ratios[AGAIN]):.2f}, the largest {max(ratios[AGAIN]):.2f}.\n"
        )
        parts.append(f"\nBy rows, each solve alone:\n\n{_by_rows(by_name, program)}")
    parts.append(f"\n## The second call with a pattern over the first\n\n{_second(run)}")
    lines = []
    for name in dict.fromkeys(r.matrix for r in run.find(work=MANY)):
        found = {r.variant: r for r in run.find(matrix=name, work=MANY)}
        one = found[SPLU]
        times = {v: found[v].numeric_ms or math.nan for v in (COLAMD, MMD, MMD_SYMMETRIC, SPLU, SPSOLVE, OURS)}
        ratios = times[SPLU] / times[MMD], times[OURS] / times[SPSOLVE]
        lines.append((name, one.detail["rows"], one.detail["columns"], *times.values(), *ratios))
    heads = "system", "rows", "columns", *times, f"{SPLU} / {MMD}", f"{OURS} / {SPSOLVE}"
    parts.append(f"\n## Many columns, ms, with the factorization\n\n{table(heads, lines)}")
    return "".join(parts) + run.footing()


def _by_rows(by_name: dict[str, list[Record]], program: str) -> str:
    found: dict[tuple[int, int], list[float]] = {ends: [] for ends in RANGES}
    for name, records in by_name.items():
        if name.partition("/")[0] == program and records:
            own, first, _ = records
            for n, a, b in zip(own.detail["n"], own.detail["each"], first.detail["each"], strict=True):
                found[next(ends for ends in RANGES if ends[0] < n <= ends[1])].append(b / a)
    lines = [(_named(ends), len(r), mean(r), max(r)) for ends, r in found.items() if r]
    return table(("rows", "solves", "first / SciPy, geometric mean", "the largest"), lines)


def _second(run: Run) -> str:
    found: dict[str, list[float]] = {}
    firsts, seconds_ = run.find(work=TWICE, variant=FIRST), run.find(work=TWICE, variant=SECOND)
    for a, b in zip(firsts, seconds_, strict=True):
        value, n = b.numeric_ms / a.numeric_ms, a.detail["rows"]  # type: ignore[operator]
        ends = next(ends for ends in ((0, DENSE), (DENSE, 400), *RANGES[1:]) if ends[0] < n <= ends[1])
        found.setdefault(_named(ends), []).append(value)
        if n > DENSE:
            found.setdefault(f"all with more than {DENSE}", []).append(value)
    return table(
        ("rows", "patterns", "geometric mean", "the largest"), [(k, len(r), mean(r), max(r)) for k, r in found.items()]
    )


def _named(ends: tuple[int, int]) -> str:
    return f"more than {ends[0]}" if ends[1] == RANGES[-1][1] else f"{ends[0] + 1} to {ends[1]}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.programs", description=__doc__)
    parser.add_argument("systems", type=Path, help="folder that tests/clients/systems.py has written")
    add_place(parser)
    add_budget(parser)
    parser.add_argument("--without", default="", help="libraries of direct solvers to do without")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs, of which the fastest counts")
    parser.add_argument("--processor", action="store_true", help="the time of the processor, of all threads")
    options = parser.parse_args(argv)
    global clock
    clock = time.process_time if options.processor else time.perf_counter
    folders = sorted(folder for folder in options.systems.glob("*/*") if any(folder.glob("*.npz")))
    if not folders:
        raise ParameterError(f"{options.systems} has no systems; tests/clients/systems.py writes them.")
    without = [name for name in options.without.split(",") if name]
    sys.modules.update(dict.fromkeys(without))  # an import of them fails
    import finelu

    warnings.simplefilter("ignore")
    run = new_run("programs", gpu=False, machine_name=options.machine)
    run.options = {"repeats": options.repeats, "threads": finelu.get_num_threads(), "without": ",".join(without) or "-"}
    run.options |= {"load": f"{os.getloadavg()[1]:.1f}", "times": "processor" if options.processor else "clock"}
    patterns = set()

    def one(name: str, folder: Path) -> str:
        systems = [load(path) for path in sorted(folder.glob("*.npz"))]
        run.matrices[name] = {"n": systems[0][0].shape[0], "nnz": systems[0][0].nnz, "systems": len(systems)}
        wide = next((s for s in systems if not s[1].size or (s[1].ndim == 2 and s[1].shape[1] > 1)), None)
        if wide is not None:
            with run.attempt(name, MANY):
                many(run, name, wide, options.repeats)
            return ""
        with run.attempt(name, NEWTON):
            newton(run, name, systems, options.repeats)
        for k, (A, b) in enumerate(systems):
            key = (A.shape, A.indptr.tobytes(), A.indices.tobytes())
            if key not in patterns:
                patterns.add(key)
                with run.attempt(name, TWICE):
                    twice(run, f"{name} {k}", (A, b), options.repeats)
        return ""

    named = ((f"{folder.parent.name}/{folder.name}", folder) for folder in folders)
    return carry_out(run, named, one, options, page, page)


if __name__ == "__main__":
    command(main)
