"""Claim: on a GPU `finelu.solve` answers reservoir systems of three phases in half of the time of ILU(0) and bicgstab.

A x = b to ||b - A x|| <= 1e-8 ||b||, b uniform in [-0.5, 0.5], from the matrix in memory on, set-up included: by
`finelu.solve` as called, which takes CPR there; by `CPR()` with bicgstab; by `ILU0()` with bicgstab; and by `ILU0()`
with gmres, restarted as by default. A round calls each once; the first round warms up, and the medians of the others
count. The residual is computed here.

    python -m benchmarks.claims.reservoir --gpu [--matrices opm_egg_3ph] [--seconds 20]
    python -m benchmarks.claims.reservoir --cpu --threads 2
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import synchronized
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_device, add_options, add_source, command, wants_gpu
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import names_of, suite
from benchmarks.harness.table import cell, mean, ratio, table
from finelu.device import to_host
from finelu.recent import RECENT

RTOL, ROUNDED, SEED, MOST, ROUNDS = 1e-8, 1.01, 0, 3000, 7
SYSTEMS = ("opm_egg_3ph", "black_oil:48,48,48", "black_oil:100,100,10,seed=1")
QUICK = ("black_oil:13,13,13",)
SOLVE, CPR, BICGSTAB, GMRES = VARIANTS = ("solve", "CPR, bicgstab", "ILU0, bicgstab", "ILU0, gmres")

Found = tuple[Any, dict[str, Any]]  # a Solution, and more of it


def solved(A: Any, b: Any) -> Found:
    found = finelu.solve(A, b, rtol=RTOL)
    return found, {"tried": [f"{attempt.recipe} {attempt.method}" for attempt in found.attempts]}


def by(recipe: Any, method: Callable[..., Any], A: Any, b: Any) -> Found:
    F = recipe.factor(A)
    return method(A, b, M=F, rtol=RTOL, maxiter=MOST), {"nnz": F.nnz}


CALLS: dict[str, Callable[[Any, Any], Found]] = {
    SOLVE: solved,
    CPR: partial(by, finelu.CPR(), finelu.bicgstab),
    BICGSTAB: partial(by, finelu.ILU0(), finelu.bicgstab),
    GMRES: partial(by, finelu.ILU0(), finelu.gmres),
}


def measure(run: Run, name: str, S: sp.csr_matrix, seconds: float, *, gpu: bool) -> None:
    """The rounds for one system, which end after `seconds`, but not before the first that is timed."""
    b = np.random.default_rng(SEED).uniform(-0.5, 0.5, S.shape[0])
    A, right = S, b
    if gpu:
        import cupy
        from cupyx.scipy.sparse import csr_matrix

        A, right = csr_matrix(S), cupy.asarray(b)
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    last: dict[str, tuple[float, dict[str, Any]]] = {}
    begin = time.perf_counter()
    for turn in range(ROUNDS + 1):
        if turn > 1 and time.perf_counter() - begin > seconds:
            break
        for variant in VARIANTS[turn % len(VARIANTS) :] + VARIANTS[: turn % len(VARIANTS)]:
            RECENT.forget()  # orders and analyses of the call before
            with run.attempt(name, variant):
                start = synchronized(gpu)
                found, more = CALLS[variant](A, right)
                passed = synchronized(gpu) - start
                residual = float(np.linalg.norm(b - S @ to_host(found.x)) / np.linalg.norm(b))
                last[variant] = residual, more | {"iterations": found.iterations, "status": str(found.status)}
                if turn:
                    times[variant].append(passed)
    for variant, (residual, more) in last.items():
        sound = residual <= ROUNDED * RTOL and times[variant]
        ms = 1e3 * median(times[variant]) if sound else None
        what = (name, "solution", "gpu" if gpu else "cpu", "finelu", variant, ms)
        threads = 0 if gpu else run.options["threads"]
        run.records.append(Record(*what, error=residual, threads=threads, detail=more | {"times": times[variant]}))


def ms_of(run: Run, name: str, variant: str) -> float | None:
    """The time of the variant that solved the system; else None."""
    return next((r.numeric_ms for r in run.find(name) if r.variant == variant), None)


def gains(run: Run, variant: str) -> dict[str, float]:
    """name -> how many times sooner `variant` answers than ILU0 with bicgstab, where both do."""
    ratios = {name: ratio(ms_of(run, name, BICGSTAB), ms_of(run, name, variant)) for name in run.matrices}
    return {name: gain for name, gain in ratios.items() if gain is not None}


def claims(run: Run) -> str:
    lines = []
    for variant in (SOLVE, CPR, GMRES):
        if found := gains(run, variant):
            worst = min(found, key=lambda name: found[name])
            lines.append((variant, len(found), mean(found.values()), found[worst], worst))
    return table(("against ILU0, bicgstab", "systems", "times sooner, mean", "least", "there"), lines)


def page(run: Run) -> str:
    lines = []
    for name, facts in run.matrices.items():
        line: list[Any] = [name, facts["n"]]
        for variant in VARIANTS:
            found = next((r for r in run.find(name) if r.variant == variant), None)
            line += [found and found.numeric_ms, found and found.detail["iterations"]]
        tried = next((r.detail["tried"] for r in run.find(name) if r.variant == SOLVE), [])
        lines.append((*line, "; then ".join(tried), gains(run, SOLVE).get(name)))
    heads = [head for variant in VARIANTS for head in (f"{variant}, ms", "iterations")]
    times = table(("system", "rows", *heads, "solve took", "ILU0, bicgstab / solve"), lines)
    unsolved = [(r.matrix, r.variant, r.detail["status"], r.error) for r in run.records if r.numeric_ms is None]
    text = f"{run.heading()}\n{claims(run)}\n## Times\n\n{times}"
    if unsolved:
        text += "\n## Not solved\n\n" + table(("system", "by", "status", "relative residual"), unsolved)
    return text + run.footing()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.reservoir", description=__doc__.splitlines()[0])
    add_device(parser, "A and b on the GPU", "on the CPU")
    add_options(parser)
    add_source(parser)
    parser.add_argument("--threads", type=int, default=finelu.get_num_threads(), help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the rounds of a system (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.source:
        run = Run.load(options.source)
        run.publish(options.out, page(run))
        return 0
    gpu = wants_gpu(options)
    run = new_run("reservoir-gpu" if gpu else "reservoir-cpu", gpu=gpu, machine_name=options.machine)
    run.options = {"threads": options.threads, "seconds": options.seconds}
    finelu.set_num_threads(options.threads)

    def one(name: str, problem: Any) -> str:
        S = problem.load()
        run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz}
        measure(run, name, S, options.seconds, gpu=gpu)
        if gpu:
            release_gpu()
        return ", ".join(f"{r.variant} {cell(r.numeric_ms)} ms ({r.detail['iterations']})" for r in run.find(name))

    names = names_of(options.matrices) or (QUICK if options.quick else SYSTEMS)
    systems = ((problem.name, problem) for problem in suite(options.matrix_folder, names))
    return carry_out(run, systems, one, options, page, claims)


if __name__ == "__main__":
    command(main)
