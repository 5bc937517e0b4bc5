"""Claim: systems of one pattern whose values change a little are solved several times faster by a `Sequence`.

    python -m benchmarks.claims.sequence --budget 300            # on the CPU
    python -m benchmarks.claims.sequence --gpu --budget 300      # A and b of each step are on the GPU

STEPS systems A_k x_k = b_k to 1e-8: A_k = D_k A D_k, so that a symmetric A stays symmetric, with
D_k = 1 + CHANGE / 2 sin(k + p), p random in each row: values swing by 1% to both sides, in about six steps, and b_k
likewise. They are solved by `Sequence(rtol).step(A_k, b_k)`, and each by `finelu.solve(A_k, b_k, rtol)`; the clock
covers all steps, from an idle device to an idle device, after some steps of each that are not counted.
||b - A x|| / ||b|| is computed apart for each step, on the host. Matrices: as in `solve_gpu`.

"By hand" is what a user writes without a Sequence: the recipe and the method with which the Sequence ended, factors
updated in each step, the method from the last x; complete factors alone, without a method.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims.solve_gpu import TWICE, matrix_of, problems
from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import synchronized
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_options, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.table import cell, mean, table
from finelu.preconditioners.direct import cudss

RTOL, SEED, STEPS, CHANGE, LONGEST = 1e-8, 0, 20, 0.01, 20.0
WARM = 4
SOLVES, SEQUENCE, HAND, DIRECT = "solve", "Sequence", "by hand", "SparseLU"


def systems(S: sp.csr_matrix, steps: int = STEPS) -> list[tuple[sp.csr_matrix, np.ndarray]]:
    """(A_k, b_k) of each step."""
    rng, n = np.random.default_rng(SEED), S.shape[0]
    phase, other, b = rng.uniform(0, 2 * np.pi, n), rng.uniform(0, 2 * np.pi, n), rng.uniform(-0.5, 0.5, n)
    found = []
    for k in range(steps):
        d = 1 + CHANGE / 2 * np.sin(k + phase)
        scaled = S.data * np.repeat(d, np.diff(S.indptr)) * d[S.indices]
        right = b * (1 + CHANGE * np.sin(k + other))
        found.append((sp.csr_matrix((scaled, S.indices, S.indptr), shape=S.shape), right.astype(S.dtype)))
    return found


def moved(given: list[tuple[Any, Any]], gpu: bool) -> list[tuple[Any, Any]]:
    if not gpu:
        return given
    import cupy
    import cupyx.scipy.sparse as csp

    indptr, indices = cupy.asarray(given[0][0].indptr), cupy.asarray(given[0][0].indices)
    return [(csp.csr_matrix((cupy.asarray(S.data), indices, indptr), shape=S.shape), cupy.asarray(b)) for S, b in given]


def timed(step: Callable[[Any, Any], Any], given: list[tuple[Any, Any]], gpu: bool) -> tuple[float, list[Any]]:
    """ms of all steps, and their results."""
    start = synchronized(gpu)
    found = [step(A, b) for A, b in given]
    return 1e3 * (synchronized(gpu) - start), found


def measure(run: Run, name: str, S: sp.csr_matrix, gpu: bool, longest: float) -> None:
    on_host = systems(S)
    given = moved(on_host, gpu)

    def solve(A: Any, b: Any) -> Any:
        return finelu.solve(A, b, RTOL, time_limit=longest, verbose=False)

    for variant in (SOLVES, SEQUENCE):
        with run.attempt(name, variant):
            warm = solve if variant == SOLVES else finelu.Sequence(rtol=RTOL).step
            if not [warm(A, b) for A, b in given[:WARM]][-1].converged:
                run.left_out[name] = f"a system is not solved in {longest} s"
                return
            sequence = finelu.Sequence(rtol=RTOL)
            ms, found = timed(solve if variant == SOLVES else sequence.step, given, gpu)
            residuals = [
                float(np.linalg.norm(b - A @ (s.x.get() if gpu else s.x)) / np.linalg.norm(b))
                for (A, b), s in zip(on_host, found, strict=True)
            ]
            detail = {
                "converged": all(s.converged for s in found),
                "iterations": [s.iterations for s in found],
                "recipes": sorted({s.recipe.partition("(")[0] for s in found}),
                "decisions": dict(Counter(sequence.decisions)) if variant == SEQUENCE else {},
            }
            place = "gpu" if gpu else "cpu"
            record = Record(name, "steps", place, variant, variant, ms, None, max(residuals), detail=detail)
            run.records.append(record)
    tries = [a for s in found for a in s.attempts]
    if sequence._F is not None:
        recipe, method = sequence._F.recipe, tries[-1].method
        with run.attempt(name, HAND):
            timed(by_hand(recipe, method), given[:WARM], gpu)
            ms, found = timed(by_hand(recipe, method), given, gpu)
            residuals = [
                float(np.linalg.norm(b - A @ (x.get() if gpu else x)) / np.linalg.norm(b))
                for (A, b), (x, _) in zip(on_host, found, strict=True)
            ]
            names = [type(recipe).__name__]
            detail = {"converged": True, "iterations": [k for _, k in found], "recipes": names}
            place = "gpu" if gpu else "cpu"
            run.records.append(Record(name, "steps", place, HAND, HAND, ms, None, max(residuals), detail=detail))


def by_hand(recipe: Any, method: str) -> Callable[[Any, Any], tuple[Any, int]]:
    """A step by factors that are updated each time: (x, iterations)."""
    F: Any = None
    x: Any = None

    def step(A: Any, b: Any) -> tuple[Any, int]:
        nonlocal F, x
        if F is None:
            F = recipe.factor(A)
        else:
            F.update(A)
        if method == "refinement":
            return F.solve(b), 1
        found = getattr(finelu, method)(A, b, M=F, x0=x, rtol=RTOL)
        x = found.x
        return x, found.iterations

    return step


def total(run: Run, name: str, variant: str) -> float | None:
    """ms, None where a residual is above the requested one."""
    r = run.one(matrix=name, variant=variant)
    right = r is not None and r.error is not None and r.error <= TWICE and r.detail["converged"]
    return r.numeric_ms if r is not None and right else None


def ratios(run: Run) -> dict[str, float]:
    """matrix -> the time of the solves over that of the Sequence; 0 where only that fails."""
    both = {name: (total(run, name, SOLVES), total(run, name, SEQUENCE)) for name in run.matrices}
    return {name: solves / own if own else 0.0 for name, (solves, own) in both.items() if solves}


def against_hand(run: Run) -> dict[str, tuple[float, float]]:
    """matrix -> the iterations, and the time, of the Sequence over those by hand."""
    found = {}
    for name in run.matrices:
        own, hand = (run.one(matrix=name, variant=v) for v in (SEQUENCE, HAND))
        times = total(run, name, SEQUENCE), total(run, name, HAND)
        if own is not None and hand is not None and times[0] and times[1]:
            iterations = [max(sum(r.detail["iterations"]), 1) for r in (own, hand)]
            found[name] = (iterations[0] / iterations[1], times[0] / times[1])
    return found


def is_direct(run: Run, name: str) -> bool:
    r = run.one(matrix=name, variant=SEQUENCE)
    return r is not None and r.detail["recipes"] == [DIRECT]


def claims(run: Run) -> str:
    found, lines = ratios(run), []
    for what, chosen in (
        ("all matrices", found),
        ("those that a complete factorization serves", {k: r for k, r in found.items() if is_direct(run, k)}),
        ("the others", {k: r for k, r in found.items() if not is_direct(run, k)}),
    ):
        if chosen:
            worst = min(chosen, key=lambda name: chosen[name])
            both = [r for r in chosen.values() if r > 0]
            shown = f"{mean(both):.2f}" if both else "-"
            lines.append(
                (what, len(chosen), shown, sum(r < 1 for r in chosen.values()), f"{chosen[worst]:.2f} {worst}")
            )
    hand, rows = against_hand(run), []
    for what, k in (("iterations", 0), ("time", 1)):
        if hand:
            worst = max(hand, key=lambda name: hand[name][k])
            shown = f"{mean([r[k] for r in hand.values()]):.2f}"
            rows.append((what, len(hand), shown, sum(r[k] > 1 for r in hand.values()), f"{hand[worst][k]:.2f} {worst}"))
    first = table(("solve over Sequence", "matrices", "mean", "below 1", "worst"), lines)
    return first + "\n" + table(("Sequence over factors updated by hand", "matrices", "mean", "above 1", "worst"), rows)


def page(run: Run) -> str:
    lines = []
    for name, facts in run.matrices.items():
        r, solves = (run.one(matrix=name, variant=v) for v in (SEQUENCE, SOLVES))
        times = [total(run, name, v) for v in (SOLVES, SEQUENCE)]
        shown = f"{times[0] / times[1]:.2f}" if times[0] and times[1] else ""
        decisions = ", ".join(f"{n} {what}" for what, n in r.detail["decisions"].items()) if r else "failed"
        recipes = [", ".join(v.detail["recipes"]) if v else "" for v in (solves, r)]
        hand = [f"{r:.2f}" for r in against_hand(run).get(name, ())] or ["", ""]
        lines.append((name, facts["n"], facts["nnz"], *map(cell, times), shown, *hand, decisions, *recipes))
    heads = ("matrix", "rows", "entries", "solve", "Sequence", "ratio", "iterations over by hand", "time over by hand")
    heads += ("decisions", "solve by", "Sequence by")
    return f"{run.heading()}\n{claims(run)}\n## {STEPS} steps, ms\n\n{table(heads, lines)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.sequence", description=__doc__)
    add_options(parser)
    parser.add_argument("--gpu", action="store_true", help="A and b of each step are on the GPU")
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds of a solve (default: %(default)s)")
    options = parser.parse_args(argv)
    name = "sequence-gpu" if options.gpu else "sequence-cpu"
    run = new_run(name, gpu=options.gpu, machine_name=options.machine)
    run.options = {"longest": options.longest, "threads": finelu.get_num_threads()}
    if options.gpu and not cudss.missing():  # which compiles in its first use in a process
        S = sp.csr_matrix(finelu.gallery.problem("poisson5:20"))
        shifted, wind = S - 3.0 * sp.identity(S.shape[0]), finelu.gallery.problem("convection_diffusion:8")
        for values in (S, shifted, wind, shifted + 1j * sp.identity(S.shape[0])):  # of each kind
            (A, b), (B, _) = moved(systems(sp.csr_matrix(values), 2), gpu=True)
            finelu.SparseLU(backend="cudss").factor(A).update(B).solve(b)

    def one(name: str, problem: Any) -> str:
        S = matrix_of(problem)
        run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz}
        measure(run, name, S, options.gpu, options.longest)
        if options.gpu:
            release_gpu()
        found = ratios(run).get(name)
        return str(found and round(found, 2))

    return carry_out(run, ((problem.name, problem) for problem in problems(options)), one, options, page, claims)


if __name__ == "__main__":
    command(main)
