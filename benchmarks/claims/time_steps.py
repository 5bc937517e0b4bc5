"""Claim: a `Sequence` takes no more iterations and no more time than factors that are kept by hand.

    python tests/clients/run.py pandapower                                    # makes its environment
    ~/.cache/finelu/clients/pandapower/bin/python tests/clients/systems.py pandapower SYSTEMS
    python -m benchmarks.claims.time_steps SYSTEMS

The systems are those of `examples/heat.py` (30 implicit Euler steps of growing length on 200 x 200 points, to 1e-10)
and, from SYSTEMS, those of Newton's method for the load flow of six networks of pandapower (to 1e-8), without the first
guess by a DC load flow, whose matrix is another. Without SYSTEMS the networks are left out, and the record says so.

Each run begins with nothing kept, so the first step counts as a first one does. By hand is what a user writes with the
recipe and the method with which the Sequence ended: factors updated in each step, the method from the last x; the first
factors kept, the method from the last x; and complete factors updated in each step and one solve, whose residual is
looked at, and counts as an iteration. The iterations of a Sequence are those of all tries, interrupted ones included.
They are compared with those of factors that are updated, and the time with the least of the three. Variants run in
turn; the time is that of the processor, the least of some runs: set OMP_NUM_THREADS, OPENBLAS_NUM_THREADS,
MKL_NUM_THREADS and FINELU_NUM_THREADS to 1 on a machine that does other work, too.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims.programs import forget, load
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_budget, add_place, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.table import mean, table

NETWORKS = ("case118", "case1888rte", "case2848rte", "GBnetwork", "case6470rte", "case9241pegase")
HEAT, CELLS, STEPS = "heat", 200, 30
REPEATS = 7
SEQUENCE, UPDATED, KEPT, ALONE = "Sequence", "updated", "kept", "complete factors alone"
HANDS = (UPDATED, KEPT, ALONE)
MOST = 1.05  # times the tolerance that the residual, formed here, may be
System = tuple[sp.csr_matrix, np.ndarray]


def heat(cells: int = CELLS, steps: int = STEPS, dt: float = 1e-4, growth: float = 1.1) -> list[System]:
    """The systems of `examples/heat.py`, each with the solution of the one before on the right."""
    h = 1 / (cells + 1)
    K, identity = sp.csr_matrix(finelu.gallery.poisson5(cells)) / h**2, sp.identity(cells**2, format="csr")
    s = np.sin(np.pi * h * np.arange(1, cells + 1))
    u, found = np.outer(s, s).ravel(), []
    for _ in range(steps):
        A = sp.csr_matrix(identity + dt * K)
        found.append((A, u))
        u, dt = finelu.SparseLU().factor(A).solve(u), growth * dt
    return found


def network(folder: Path) -> list[System]:
    """The systems with the pattern of the last one."""
    read = [load(path) for path in sorted(folder.glob("*.npz"))]
    found = [(sp.csr_matrix(A), np.asarray(b, np.float64).ravel()) for A, b in read]
    last = found[-1][0]
    return [(A, b) for A, b in found if A.shape == last.shape and np.array_equal(A.indices, last.indices)]


def by_hand(recipe: Any, method: str, *, kept: bool) -> Callable[[Any, Any, float], Any]:
    """A step by factors that are kept, or updated each time. "refinement" solves with the factors alone."""
    F: Any = None
    x: Any = None

    def step(A: Any, b: Any, rtol: float) -> Any:
        nonlocal F, x
        if F is None:
            F = recipe.factor(A)
        elif not kept:
            F.update(A)
        if method == "refinement":
            x = F.solve(b)
            right = np.linalg.norm(b - A @ x) <= rtol * np.linalg.norm(b)
            return SimpleNamespace(x=x, iterations=1, converged=bool(right))
        found = getattr(finelu, method)(A, b, M=F, x0=x, rtol=rtol)
        x = found.x
        return found

    return step


def measure(run: Run, name: str, systems: list[System], rtol: float, repeats: int) -> None:
    """The least time of each variant, with its iterations and residuals."""
    used: list[Any] = []

    def sequence() -> Callable[[Any, Any, float], Any]:
        used[:] = [finelu.Sequence(rtol=rtol)]
        return lambda A, b, _: used[0].step(A, b)

    variants: dict[str, Callable[[], Any]] = {SEQUENCE: sequence}
    times: dict[str, list[float]] = {}
    found: dict[str, list[Any]] = {}
    for k in range(repeats + 1):  # the first round only warms up
        for variant in list(variants):
            forget()
            begun = time.process_time()
            step = variants[variant]()
            found[variant] = [step(A, b, rtol) for A, b in systems]
            if k:
                times.setdefault(variant, []).append(1e3 * (time.process_time() - begun))
            if k == 0 and variant == SEQUENCE:
                recipe, method = used[0]._F.recipe, used[0]._method
                variants[UPDATED] = lambda recipe=recipe, method=method: by_hand(recipe, method, kept=False)
                variants[KEPT] = lambda recipe=recipe, method=method: by_hand(recipe, method, kept=True)
                variants[ALONE] = lambda: by_hand(finelu.SparseLU(), "refinement", kept=False)
    decisions = dict(Counter(used[0].decisions))
    for variant, all_times in times.items():
        residuals = [
            float(np.linalg.norm(b - A @ s.x) / np.linalg.norm(b))
            for (A, b), s in zip(systems, found[variant], strict=True)
        ]
        detail = {"iterations": [s.iterations for s in found[variant]], "each": all_times}
        detail["solved"] = all(s.converged for s in found[variant]) and max(residuals) <= MOST * rtol
        if variant == SEQUENCE:
            detail |= {"decisions": decisions, "recipe": repr(recipe), "method": method}
        run.records.append(
            Record(name, "steps", "cpu", "finelu", variant, min(all_times), None, max(residuals), detail=detail)
        )


def ratios(run: Run, name: str) -> tuple[float, float] | None:
    """Iterations of the Sequence over those with factors that are updated; its time over the least by hand."""
    of = {r.variant: r for r in run.find(name) if r.detail["solved"] and r.numeric_ms}
    by_hand = [r.numeric_ms or 0.0 for variant, r in of.items() if variant != SEQUENCE]
    if SEQUENCE not in of or UPDATED not in of:
        return None
    own, other = (max(sum(of[variant].detail["iterations"]), 1) for variant in (SEQUENCE, UPDATED))
    return own / other, (of[SEQUENCE].numeric_ms or 0.0) / min(by_hand)


def claims(run: Run) -> str:
    found = {name: both for name in run.matrices if (both := ratios(run, name)) is not None}
    lines = []
    for what, k in (("iterations", 0), ("time", 1)):
        if found:
            worst = max(found, key=lambda name: found[name][k])
            shown = f"{mean([both[k] for both in found.values()]):.2f}"
            lines.append((what, len(found), shown, f"{found[worst][k]:.2f} {worst}"))
    return table(("Sequence over by hand", "sequences of systems", "mean", "worst"), lines)


def page(run: Run) -> str:
    lines = []
    for name, facts in run.matrices.items():
        of = {r.variant: r for r in run.find(name)}
        both = ratios(run, name) or (None, None)
        times = [of[v].numeric_ms if v in of and of[v].detail["solved"] else None for v in (SEQUENCE, *HANDS)]
        iterations = [sum(of[v].detail["iterations"]) if v in of else None for v in (SEQUENCE, UPDATED, KEPT)]
        own = of[SEQUENCE].detail if SEQUENCE in of else {"decisions": {}, "recipe": "", "method": ""}
        decisions = ", ".join(f"{n} {what}" for what, n in own["decisions"].items())
        lines.append(
            (
                name,
                facts["n"],
                facts["steps"],
                *times,
                *iterations,
                *both,
                f"{own['method']}, {own['recipe']}",
                decisions,
            )
        )
    heads = ("systems", "rows", "steps", SEQUENCE, *HANDS, "iterations", UPDATED, KEPT, "iterations over", "time over")
    heads += ("by", "decisions")
    shown = table(heads, lines) + run.footing()
    return f"{run.heading()}\n{claims(run)}\n## ms of the processor, and iterations\n\n{shown}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.time_steps", description=__doc__)
    parser.add_argument("systems", type=Path, nargs="?", help="folder that tests/clients/systems.py has written")
    add_place(parser)
    add_budget(parser)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs, of which the fastest counts")
    options = parser.parse_args(argv)
    run = new_run("time-steps", gpu=False, machine_name=options.machine)
    run.options = {"repeats": options.repeats, "threads": finelu.get_num_threads(), "times": "processor"}
    sources: list[tuple[str, Path | None]] = [(HEAT, None)]
    for name in NETWORKS:
        folder = None if options.systems is None else options.systems / "pandapower" / name
        if folder is not None and any(folder.glob("*.npz")):
            sources.append((name, folder))
        else:
            run.left_out[name] = "its systems were not given; tests/clients/systems.py writes them where pandapower is"

    def one(name: str, folder: Path | None) -> str:
        systems = heat() if folder is None else network(folder)
        run.matrices[name] = {"n": systems[0][0].shape[0], "nnz": systems[0][0].nnz, "steps": len(systems)}
        with run.attempt(name, SEQUENCE):
            measure(run, name, systems, 1e-10 if folder is None else 1e-8, options.repeats)
        both = ratios(run, name)
        return "" if both is None else f"iterations {both[0]:.2f}, time {both[1]:.2f}"

    return carry_out(run, sources, one, options, page, claims)


if __name__ == "__main__":
    command(main)
