"""Claim: a step of ParILUT with exact values takes at most 1.6 times as long as one of synchronous sweeps, and the
default solves a system at least 1.2 times as fast as five of those steps.

`python -m benchmarks.claims.parilut_steps` factors each matrix by RECIPES and solves A x = b to 1e-8, b of random
numbers, by GMRES(100), or by CG where A is symmetric with a positive diagonal: on a GPU, or on the CPU with each number
of threads of --threads. `factor` is the median of warm calls without the analyses of the triangular solves, all steps
done; `solve` is the second of two calls, these analyses included. A step is a factorization with five steps over
five. The recipes that are compared have as many entries as A. Building blocks (2018, Figure 4) come from further runs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims.parilut import spd
from benchmarks.harness.building_blocks import BLOCKS, all_steps, factor_time, profile
from benchmarks.harness.case import loaded, release_gpu, to_gpu
from benchmarks.harness.clock import Budget
from benchmarks.harness.options import add_device, add_options, command, wants_gpu
from benchmarks.harness.record import Record, Run, RunEnded, new_run
from benchmarks.harness.suite import names_of, suite
from benchmarks.harness.table import cell, mean, table

MOST, RTOL, RESTART, SEED, STEPS = 1000, 1e-8, 100, 0, 5
NAMES = (
    *("orsirr_1", "of_pitzDaily_p", "ani5", "cage11", "ccx_thread", "topopt3d_060", "ccx_hueeber1", "ng_heatsink2d"),
    *("memplus", "opm_egg_3ph", "poisson7:60", "convection_diffusion:60"),
)
SWEEPS, EXACT, DEFAULT, THRESHOLD, PLAIN = "synchronous", "exact", "default", "ILUT", "ILU0"
WANTED_STEP, WANTED_SOLUTION = 1.6, 1.2


def recipes(cholesky: bool, nnz: int) -> dict[str, Any]:
    """Name -> recipe; all of nnz entries in L + U."""
    Adapted, Threshold, Plain = (
        (finelu.ParICT, finelu.ICT, finelu.IC0) if cholesky else (finelu.ParILUT, finelu.ILUT, finelu.ILU0)
    )
    return {
        SWEEPS: Adapted(steps=STEPS, sweep="synchronous"),
        EXACT: Adapted(steps=STEPS),
        DEFAULT: Adapted(),
        THRESHOLD: Threshold(nnz=nnz),
        PLAIN: Plain(),
    }


def measure(run: Run, name: str, S: sp.csr_matrix, device: str, threads: int) -> None:
    """Every recipe on one matrix, ParICT and its like where S may be definite."""
    gpu = device == "gpu"
    A = finelu.as_csr(S)
    A = to_gpu(A) if gpu else A
    b = np.random.default_rng(SEED).standard_normal(S.shape[0])
    if gpu:
        import cupy

        b = cupy.asarray(b)
    for cholesky in (True, False) if run.matrices[name]["spd"] else (False,):
        work = "ParICT" if cholesky else "ParILUT"
        for variant, recipe in recipes(cholesky, S.nnz).items():
            with run.attempt(name, f"{work} {variant} {threads}"):
                with all_steps():
                    first, timing, F = factor_time(recipe, A)
                    blocks = {}
                    if variant in (SWEEPS, EXACT):
                        blocks = profile(recipe, A, type(F))
                solved = solve(recipe, A, b, cholesky, gpu)
                detail = {"first_ms": first, "steps": F.report.get("steps"), "nnz": F.nnz, "blocks": blocks, **solved}
                run.records.append(
                    Record(name, work, device, "finelu", variant, timing.ms, threads=threads, detail=detail)
                )


def solve(recipe: Any, A: Any, b: Any, cholesky: bool, gpu: bool) -> dict[str, Any]:
    """ms of the solve with fresh factors, of which the first use is not timed; iterations, and whether it converged."""
    for _ in range(2):
        M = recipe.factor(A)
        if gpu:
            import cupy

            cupy.cuda.get_current_stream().synchronize()
        start = perf_counter()
        if cholesky:
            found = finelu.cg(A, b, M=M, rtol=RTOL, maxiter=MOST)
        else:
            found = finelu.gmres(A, b, M=M, rtol=RTOL, maxiter=MOST, restart=RESTART)
        if gpu:
            cupy.cuda.get_current_stream().synchronize()
        ms = 1e3 * (perf_counter() - start)
    return {"solve ms": ms, "iterations": found.iterations, "converged": bool(found.converged)}


# Tables ---------------------------------------------------------------------------------------------------------------


def per_step(record: Record) -> float | None:
    steps = record.detail["steps"]
    return record.numeric_ms / steps if record.numeric_ms and steps else None


def to_solution(record: Record) -> float | None:
    """ms of factor and solve; None where it did not converge."""
    return record.numeric_ms + record.detail["solve ms"] if record.numeric_ms and record.detail["converged"] else None


def ratios(run: Run, theirs: str, ours: str, quantity: Any, threads: int) -> list[tuple[float, str]]:
    """(theirs over ours, matrix and recipe), least first."""
    found = []
    for record in run.find(variant=ours, threads=threads):
        other = run.one(matrix=record.matrix, work=record.work, variant=theirs, threads=threads)
        a, b = other and quantity(other), quantity(record)
        if a and b:
            found.append((a / b, f"{record.matrix}, {record.work}"))
    return sorted(found)


def claims(run: Run) -> str:
    lines = []
    for threads in sorted({r.threads for r in run.records}):
        where = "GPU" if threads == 0 else f"{threads} threads"
        for what, theirs, ours, quantity, wanted, turned in (
            ("a step, exact over synchronous", SWEEPS, EXACT, per_step, f"at most {WANTED_STEP}", True),
            ("to the solution, five synchronous steps over the default", SWEEPS, DEFAULT, to_solution,
             f"at least {WANTED_SOLUTION}", False),
            ("to the solution, ILUT or ICT over the default", THRESHOLD, DEFAULT, to_solution, "-", False),
            ("factor, ILUT or ICT over the default", THRESHOLD, DEFAULT, lambda r: r.numeric_ms, "-", False),
            ("to the solution, ILU(0) or IC(0) over the default", PLAIN, DEFAULT, to_solution, "-", False),
        ):  # fmt: skip
            found = ratios(run, theirs, ours, quantity, threads)
            if found:
                average = mean(r for r, _ in found)
                worst, at = found[0]
                if turned:
                    average, worst = 1 / average, 1 / worst
                lines.append((what, where, len(found), wanted, f"{average:.2f}", f"{worst:.2f}", at))
    return table(("what", "where", "cases", "wanted", "mean", "worst", "at"), lines)


def times(run: Run) -> str:
    names = (SWEEPS, EXACT, DEFAULT, THRESHOLD, PLAIN)
    lines = []
    for r in run.records:
        if r.variant != SWEEPS:
            continue
        row: list[Any] = [
            r.matrix,
            r.work,
            r.threads or "GPU",
            run.matrices[r.matrix]["n"],
            run.matrices[r.matrix]["nnz"],
        ]
        for variant in names:
            one = run.one(matrix=r.matrix, work=r.work, variant=variant, threads=r.threads)
            if one is None:
                row.append("-")
                continue
            star = "" if one.detail["converged"] else " *"
            row.append(f"{cell(one.numeric_ms)} + {cell(one.detail['solve ms'])} / {one.detail['iterations']}{star}")
        lines.append(row)
    return table(("matrix", "recipe", "threads", "rows", "entries", *names), lines)


def scaling(run: Run) -> str:
    """How many times faster a step of five, and each building block, is with more threads."""
    lines = []
    for r in run.records:
        base = run.one(matrix=r.matrix, work=r.work, variant=r.variant, threads=1)
        if r.variant not in (SWEEPS, EXACT) or r.work != "ParILUT" or not base or r.threads == 1:
            continue
        whole, ms, ones = base.numeric_ms / r.numeric_ms, r.detail["blocks"], base.detail["blocks"]
        parts = [ones[k] / ms[k] if ms.get(k, 0) > 0.01 and ones.get(k) else None for k in BLOCKS]
        lines.append((r.matrix, r.variant, r.threads, r.numeric_ms, f"{whole:.2f}", *parts))
    return table(("matrix", "values", "threads", "ms", "whole", *BLOCKS), lines) if lines else ""


def blocks_table(run: Run) -> str:
    lines = [
        (r.matrix, r.work, r.variant, r.threads or "GPU", *(r.detail["blocks"].get(k) for k in BLOCKS))
        for r in run.records
        if r.variant in (SWEEPS, EXACT)
    ]
    return table(("matrix", "recipe", "values", "threads", *BLOCKS), lines)


def page(run: Run) -> str:
    text = f"{run.heading()}\n{claims(run)}\n## factor + solve, ms / iterations\n\n"
    text += f"*: not converged in {MOST} iterations. ILUT and ILU0 stand for ICT and IC0 with ParICT.\n\n{times(run)}\n"
    scaled = scaling(run)
    if scaled:
        text += f"## Speed-up over one thread, ParILUT with five steps (2018: Figure 4, right)\n\n{scaled}\n"
    return text + f"## Building blocks of five steps, ms\n\n{blocks_table(run)}" + run.footing()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.parilut_steps", description=__doc__)
    add_device(parser, "on the GPU", "on the CPU")
    add_options(parser)
    parser.add_argument("--threads", default=str(os.cpu_count()), help="numbers of threads: 1,2,4 (default: all)")
    options = parser.parse_args(argv)
    gpu = wants_gpu(options)
    counts = [0] if gpu else [int(k) for k in options.threads.split(",")]
    run = new_run("parilut-steps-gpu" if gpu else "parilut-steps-cpu", gpu=gpu, machine_name=options.machine)
    budget, complete = Budget(options.budget), True
    try:
        chosen = suite(options.matrix_folder, names_of(options.matrices) or list(NAMES), quick=options.quick)
        for name, S in loaded(run, budget, chosen):
            run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "spd": spd(S)}
            for threads in counts:
                if not gpu:
                    finelu.set_num_threads(threads)
                measure(run, name, S, "gpu" if gpu else "cpu", threads)
            if gpu:
                release_gpu()
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {name}", flush=True)
    except (RunEnded, KeyboardInterrupt):
        complete = False
    path = run.publish(options.out, page(run))
    print(f"\n{claims(run)}{len(run.failures)} failures; {path}")
    return 0 if complete and not run.failures else 1


if __name__ == "__main__":
    command(main)
