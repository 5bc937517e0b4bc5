"""Claim: on a GPU Schwarz() solves scalar elliptic, parabolic and pressure systems at least 4 times as fast (mean)
as the best of ILU(0) or IC(0), MILU(0) and ParILUT or ParICT, and none more slowly.

`python -m benchmarks.claims.schwarz` solves A x = b to 1e-8, b uniform in [-0.5, 0.5], from the CSR matrix on:
`factor` and the solve are the second of two calls. The method is cg where A is symmetric with a positive diagonal, else
bicgstab. A solve ends after LONGEST seconds. `application` is F.solve(b) of one right-hand side, a median. On the CPU
(--cpu) the peers are the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims.parilut import spd
from benchmarks.harness.case import loaded, release_gpu, to_gpu
from benchmarks.harness.clock import Budget, cpu_time, gpu_time
from benchmarks.harness.options import add_device, add_options, command, wants_gpu
from benchmarks.harness.record import Record, Run, RunEnded, new_run
from benchmarks.harness.suite import names_of, suite
from benchmarks.harness.table import cell, mean, table

MOST, RTOL, SEED, LONGEST = 5000, 1e-8, 0, 4.0
WANTED = 4.0
SCHWARZ, TRANSLATIONS = "Schwarz", "Schwarz, translations"
# Scalar elliptic, parabolic and pressure equations among the matrices; the others are reported next to them.
SCALAR = (
    *("of_pitzDaily_p", "of_squareBend_p", "parabolic_fem_nat", "ng_heatsink2d", "qccfd_cavity_pc_128", "ani7"),
    *("poisson7:100", "poisson27:60", "poisson5:1000,1000", "anisotropic_triangles:5", "anisotropic_triangles:6"),
    *("anisotropic_triangles:7", "ecology2_like"),
)
ELASTIC = {"ccx_hueeber1": 3, "topopt3d_060": 3, "ng_elast3d_plate_b3": 3}  # unknowns a node
GRIDS = tuple(f"poisson7:{side}" for side in (32, 64, 128, 160))  # iterations against the width of the grid


def recipes(name: str, symmetric: bool, n: int) -> dict[str, Any]:
    exact, adapted = (finelu.IC0, finelu.ParICT) if symmetric else (finelu.ILU0, finelu.ParILUT)
    found: dict[str, Any] = {SCHWARZ: finelu.Schwarz()}
    unknowns = ELASTIC.get(name)
    if unknowns and n % unknowns == 0:
        found[TRANSLATIONS] = finelu.Schwarz(near_nullspace=np.tile(np.eye(unknowns), (n // unknowns, 1)))
    if name not in GRIDS:
        found |= {"exact": exact(), "MILU0": finelu.MILU0(), "adapted": adapted()}
    return found


def synchronized(gpu: bool) -> float:
    if gpu:
        import cupy

        cupy.cuda.get_current_stream().synchronize()
    return perf_counter()


def measure(run: Run, name: str, S: sp.csr_matrix, gpu: bool) -> None:
    symmetric = bool(run.matrices[name]["spd"])
    A = finelu.as_csr(S)
    b = np.random.default_rng(SEED).uniform(-0.5, 0.5, S.shape[0])
    if gpu:
        import cupy

        A, b = to_gpu(A), cupy.asarray(b)
    method = finelu.cg if symmetric else finelu.bicgstab
    for variant, recipe in recipes(name, symmetric, S.shape[0]).items():
        with run.attempt(name, variant):
            for _ in range(2):
                start = synchronized(gpu)
                F = recipe.factor(A)
                middle = synchronized(gpu)
                limit = middle + LONGEST
                found = method(A, b, M=F, rtol=RTOL, maxiter=MOST, watch=lambda k, r, end=limit: perf_counter() > end)
                end = synchronized(gpu)
            detail: dict[str, Any] = {
                "setup": 1e3 * (middle - start),
                "solve": 1e3 * (end - middle),
                "iterations": found.iterations,
                "converged": bool(found.converged),
                "application": (gpu_time if gpu else cpu_time)(lambda i, F=F: F.solve(b)).ms,
                "nnz": F.nnz,
            }
            if variant.startswith(SCHWARZ):
                report = F.report
                facts = ("partition", "parts", "largest", "cut", "levels", "coarse_rank")
                detail |= {fact: report.get(fact) for fact in facts}
            run.records.append(
                Record(name, "solution", "gpu" if gpu else "cpu", "finelu", variant, 1e3 * (end - start), detail=detail)
            )


def total(record: Record | None) -> float | None:
    """ms of factor and solve; None where it did not converge."""
    return record.numeric_ms if record is not None and record.detail["converged"] else None


def peers(run: Run, name: str) -> dict[str, float]:
    found = {v: total(run.one(matrix=name, variant=v)) for v in ("exact", "MILU0", "adapted")}
    return {variant: ms for variant, ms in found.items() if ms is not None}


def ratios(run: Run, variant: str, names: Sequence[str]) -> list[tuple[float, str]]:
    """(the best of the others over ours, matrix), least first; 0 where ours fails, Inf where all others do."""
    found = []
    for name in names:
        ours = run.one(matrix=name, variant=variant)
        if ours is None or name in GRIDS:
            continue
        best, mine = min(peers(run, name).values(), default=float("inf")), total(ours)
        if mine is not None or best < float("inf"):
            found.append((0.0 if mine is None else best / mine, name))
    return sorted(found)


def claims(run: Run) -> str:
    names = list(run.matrices)
    lines = []
    for what, variant, chosen in (
        ("scalar elliptic, parabolic, pressure", SCHWARZ, [n for n in names if n in SCALAR]),
        ("elasticity, translations as near null space", TRANSLATIONS, [n for n in names if n in ELASTIC]),
        ("all others", SCHWARZ, [n for n in names if n not in SCALAR]),
    ):
        found = ratios(run, variant, chosen)
        both = [(r, n) for r, n in found if 0 < r < float("inf")]
        if both:
            alone = sum(r == float("inf") for r, _ in found)
            worst = f"{found[0][0]:.2f} {found[0][1]}"
            lines.append((what, len(found), alone, f"{mean(r for r, _ in both):.2f}", worst))
    return table(("systems", "cases", "Schwarz alone converged", "mean of the others", "worst"), lines)


def times(run: Run) -> str:
    lines = []
    for r in run.records:
        d = r.detail
        best = min(peers(run, r.matrix).values(), default=None)
        lines.append(
            (
                *(r.matrix, run.matrices[r.matrix]["n"], run.matrices[r.matrix]["nnz"], r.variant),
                *(cell(d["setup"]), cell(d["solve"]), f"{d['iterations']}{'' if d['converged'] else ' *'}"),
                *(cell(d["application"]), d.get("partition", ""), d.get("parts", ""), d.get("levels", "")),
                f"{best / total(r):.2f}" if best and total(r) and r.variant.startswith(SCHWARZ) else "",
            )
        )
    heads = ("matrix", "rows", "entries", "recipe", "setup", "solve", "iterations", "application", "parts by", "parts")
    return table((*heads, "levels", "ratio"), lines)


def page(run: Run) -> str:
    notes = (
        f"*: not converged in {MOST} iterations or {LONGEST:g} s. exact: IC0 where A is symmetric with a positive "
        "diagonal, else ILU0; adapted: ParICT or ParILUT. ratio: the best of the three over Schwarz, set-up included."
    )
    return f"{run.heading()}\n{claims(run)}\n## Times, ms\n\n{notes}\n\n{times(run)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.schwarz", description=__doc__)
    add_device(parser, "on the GPU", "on the CPU")
    add_options(parser)
    options = parser.parse_args(argv)
    gpu = wants_gpu(options)
    run = new_run("schwarz-gpu" if gpu else "schwarz-cpu", gpu=gpu, machine_name=options.machine)
    budget, complete = Budget(options.budget), True
    try:
        names = names_of(options.matrices)
        chosen = suite(options.matrix_folder, names, quick=options.quick)
        if not names and not options.quick:
            chosen = [p for p in chosen if not p.apart] + suite(options.matrix_folder, GRIDS)
        for name, S in loaded(run, budget, chosen):
            run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "spd": spd(S)}
            measure(run, name, S, gpu)
            if gpu:
                release_gpu()
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {name}", flush=True)
    except (RunEnded, KeyboardInterrupt):
        complete = False
    path = run.publish(options.out, page(run))
    print(f"\n{claims(run)}{len(run.failures)} failures; {path}")
    return 0 if complete else 1


if __name__ == "__main__":
    command(main)
