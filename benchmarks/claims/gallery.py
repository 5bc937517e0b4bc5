"""Claim: finelu takes less time for the systems of the gallery (docs/gallery.md) than SciPy's direct solver.

Each program of examples/ runs at the size of its picture, and the systems that it solves are kept. They are solved
again: by what the program calls, `finelu.solve` or, for the time steps of heat.py, a new `finelu.Sequence`; and by
SciPy's `spsolve` as one calls it, and `splu` in the order MMD_AT_PLUS_A with SymmetricMode, the better setting for
patterns that are symmetric, as these are. Nothing is kept from earlier calls. Times are of
the processor, the least of some rounds after one that warms up, so that a machine may do other work, too; one thread:

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 python -m benchmarks.claims.gallery

A time counts only if ||b - A x|| <= rtol ||b|| for each system, with the program's rtol.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import distributions, version
from io import StringIO
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu, spsolve

import finelu
from benchmarks.harness import ROOT
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_budget, add_place, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.table import cell, mean, table
from finelu.recent import RECENT

Systems = list[tuple[Any, Any, float]]  # A, b and rtol of each
PROGRAMS = {  # name of the picture -> arguments of its program, as on docs/gallery.md
    "heat": ("--cells", "200", "--steps", "30"),
    "circuit": ("--width", "120"),
    "room": ("--frequency", "500"),
    "reservoir": ("--cells", "128"),
    "power_grid": ("--width", "200"),
    "beam": ("--width", "8"),
    "matting": ("--height", "120"),
}
SMALL = {"circuit": ("--width", "12"), "heat": ("--cells", "12", "--steps", "3")}
FINELU, DEFAULT, SYMMETRIC = SOLVERS = ("finelu", "spsolve", "splu, SymmetricMode")
LIBRARIES = ("nbklu", "feral-solver", "pypardiso", "pymetis")  # which finelu may call
ROUNDS, LONG = 5, 3.0  # rounds; seconds from which on one is enough
ROUNDED = 1.01  # the residual computed here and that of the solver are rounded differently


@contextmanager
def kept() -> Iterator[Systems]:
    """The systems that `finelu.solve` and `finelu.Sequence` are given meanwhile."""
    found: Systems = []
    solve, sequence = finelu.solve, finelu.Sequence

    def keeping(A: Any, b: Any, rtol: float = 1e-8, **more: Any) -> Any:
        found.append((sp.csr_matrix(A), np.array(b), rtol))
        return solve(A, b, rtol, **more)

    class Keeping(sequence):  # type: ignore[misc, valid-type]
        def __init__(self, rtol: float):
            super().__init__(rtol=rtol)
            self.wanted = rtol

        def step(self, A: Any, b: Any) -> Any:
            found.append((sp.csr_matrix(A), np.array(b), self.wanted))
            return super().step(A, b)

    finelu.solve, finelu.Sequence = keeping, Keeping
    try:
        yield found
    finally:
        finelu.solve, finelu.Sequence = solve, sequence


def systems(name: str, arguments: Sequence[str]) -> Systems:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        program = importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "examples"))
    with kept() as found, redirect_stdout(StringIO()):
        program.main([*arguments])
    return found


def by_finelu(given: Systems) -> list[Any]:
    if len(given) == 1:
        ((A, b, rtol),) = given
        return [finelu.solve(A, b, rtol).x]
    sequence = finelu.Sequence(rtol=given[0][2])
    return [sequence.step(A, b).x for A, b, _ in given]


def by_default(given: Systems) -> list[Any]:
    return [spsolve(A.tocsc(), b) for A, b, _ in given]


def by_symmetric_mode(given: Systems) -> list[Any]:
    options = {"SymmetricMode": True}
    return [splu(A.tocsc(), permc_spec="MMD_AT_PLUS_A", options=options).solve(b) for A, b, _ in given]


def installed() -> set[str]:
    return {found.metadata["Name"] for found in distributions()}


def measure(run: Run, name: str, given: Systems) -> None:
    calls: dict[str, Callable[[Systems], list[Any]]] = dict(
        zip(SOLVERS, (by_finelu, by_default, by_symmetric_mode), strict=True)
    )
    times: dict[str, list[float]] = {who: [] for who in calls}
    error, passes = dict.fromkeys(calls, 0.0), dict.fromkeys(calls, True)
    for turn in range(1 + ROUNDS):
        for who, call in calls.items():
            if turn > 1 and min(times[who]) > LONG:
                continue
            RECENT.forget()  # orders and analyses of the call before
            start = time.process_time()
            found = call(given)
            seconds = time.process_time() - start
            if turn or seconds > LONG:
                times[who].append(seconds)
            for (A, b, rtol), x in zip(given, found, strict=True):
                residual = float(np.linalg.norm(b - A @ x) / np.linalg.norm(b))
                error[who], passes[who] = max(error[who], residual), passes[who] and residual <= ROUNDED * rtol
    for who in calls:
        detail = {"rounds": len(times[who]), "passes": passes[who]}
        ms = 1e3 * min(times[who]) if passes[who] else None
        library = who if who == FINELU else "scipy"
        run.records.append(Record(name, "systems", "cpu", library, who, ms, None, error[who], 1, detail=detail))


def rows(run: Run) -> Iterator[tuple[str, int, int, list[float | None]]]:
    """Name, number of systems, unknowns of one, and the seconds of each of SOLVERS."""
    for name, facts in run.matrices.items():
        found = (run.one(matrix=name, variant=who) for who in SOLVERS)
        yield name, facts["systems"], facts["n"], [r.numeric_ms / 1e3 if r and r.numeric_ms else None for r in found]


def gains(run: Run) -> dict[str, float]:
    """Name -> the time of SciPy at its better setting over that of finelu."""
    found = {name: (seconds[0], [s for s in seconds[1:] if s]) for name, _, _, seconds in rows(run)}
    return {name: min(theirs) / ours for name, (ours, theirs) in found.items() if ours and theirs}


def summary(run: Run) -> str:
    found = gains(run)
    lines = [
        (name, count, f"{n:,}", *map(cell, seconds), f"{found[name]:.2g}" if name in found else "-")
        for name, count, n, seconds in rows(run)
    ]
    heads = ("picture", "systems", "unknowns", *(f"{who}, s" for who in SOLVERS), "the better of SciPy / finelu")
    return table(heads, lines)


def page(run: Run) -> str:
    found = gains(run)
    claim = f"mean {mean(found.values()):.2f} of {len(found)}, worst {min(found.values()):.2f}" if found else "no time"
    return f"{run.heading()}\nSciPy's better setting over finelu: {claim}.\n\n{summary(run)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.gallery", description=__doc__)
    add_place(parser)
    add_budget(parser)
    parser.add_argument("--quick", action="store_true", help="two small systems")
    options = parser.parse_args(argv)
    finelu.set_num_threads(1)
    run = new_run("gallery", gpu=False, machine_name=options.machine)
    run.options = {"threads": 1, "times": "processor, the least of a call", "rounds": ROUNDS}
    run.options |= {library: version(library) for library in LIBRARIES if library in installed()}

    def one(name: str, arguments: Sequence[str]) -> str:
        given = systems(name, arguments)
        run.matrices[name] = {"n": given[0][0].shape[0], "nnz": given[0][0].nnz, "systems": len(given)}
        measure(run, name, given)
        return str(gains(run).get(name))

    return carry_out(run, (SMALL if options.quick else PROGRAMS).items(), one, options, page, summary)


if __name__ == "__main__":
    command(main)
