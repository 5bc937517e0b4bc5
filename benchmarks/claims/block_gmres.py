"""Claim, to be measured: block GMRES takes at most 0.7 of the iterations of single columns where those are many.

    python -m benchmarks.claims.block_gmres                       # some minutes on one core
    python -m benchmarks.claims.block_gmres --matrices sherman3,memplus

A X = B to 1e-8 for 16 columns of random numbers: gmres(block=True) against gmres on the columns together, with the same
cycles, each with at most LIMIT iterations. Matrices: of the gallery, and of a folder (FINELU_MATRICES, or
../shared/matrices), with the factors of ILU0 if they have some, and of Jacobi. Counted are the iterations of a column,
the columns that are solved, and the processor's time of the second call on one thread. Where single columns take no
more than 50 iterations, or where the block does not solve all, the page says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from time import process_time
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_budget, add_place, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import LeftOut, matrix_folder, names_of, suite
from benchmarks.harness.table import cell, mean, table

COLUMNS, RTOL, RESTART, LIMIT = 16, 1e-8, 30, 1000
MATRICES = (
    "sherman3,orsreg_1,orsirr_1,watt_1,cage10,memplus,cryg2500,of_pitzDaily_U,opm_egg_3ph,ng_dg_convdiff_b6,"
    "qccfd_cavity_pc_128,trilinos_nsjac_1,ng_helmholtz_k40"
)
GALLERY = ("convection_diffusion:20", "convection_diffusion:30", "helmholtz:60,k=20")
RECIPES = (finelu.ILU0(), finelu.Jacobi())


def systems(names: str, run: Run) -> Iterator[tuple[str, sp.csr_matrix]]:
    if names == MATRICES:
        for name in GALLERY:
            yield name, finelu.gallery.problem(name)
    for problem in suite(matrix_folder(), names_of(names), quick=False):
        try:
            yield problem.name, sp.csr_matrix(problem.read())
        except LeftOut as error:
            run.left_out[problem.name] = str(error)


def measure(run: Run, name: str, A: sp.csr_matrix, recipe: Any) -> None:
    kind = type(recipe).__name__
    try:
        F = recipe.factor(A)
    except finelu.FineluError as error:
        run.left_out[f"{name}, {kind}"] = str(error)
        return
    run.matrices[name] = {"n": A.shape[0], "nnz": A.nnz}
    B = np.random.default_rng(0).standard_normal((A.shape[0], COLUMNS)).astype(A.dtype)
    for block in (False, True):
        with run.attempt(name, kind):
            limits = {"M": F, "rtol": RTOL, "restart": RESTART, "criterion": "residual", "block": block}
            finelu.gmres(A, B, maxiter=2, **limits)
            start = process_time()
            found = finelu.gmres(A, B, maxiter=LIMIT, **limits)
            ms = 1e3 * (process_time() - start)
            error = float(np.max(np.linalg.norm(B - A @ found.x, axis=0) / np.linalg.norm(B, axis=0)))
            counts = [column.iterations for column in found.columns]
            solved = sum(column.converged for column in found.columns)
            detail = {"iterations": float(np.mean(counts)), "most": max(counts), "solved": solved}
            variant = f"{kind}, block" if block else kind
            run.records.append(Record(name, "iterations", "cpu", variant, variant, ms, None, error, 1, detail=detail))
    print(f"  {name}, {kind}: {row(run, name, kind)}", flush=True)


def row(run: Run, name: str, kind: str) -> tuple[Any, ...] | None:
    """What the record says of a matrix and a recipe; None if a run failed."""
    single, block = run.one(matrix=name, variant=kind), run.one(matrix=name, variant=f"{kind}, block")
    if single is None or block is None:
        return None
    one, other = single.detail, block.detail
    ratio = other["iterations"] / one["iterations"]
    time = float(block.numeric_ms or 0) / float(single.numeric_ms or 1)
    return one["iterations"], one["solved"], other["iterations"], other["solved"], ratio, time


def claims(run: Run) -> str:
    lines = []
    found = {(name, kind): row(run, name, kind) for name in run.matrices for kind in kinds()}
    for heading, chosen in (
        ("more than 50 iterations of single columns", [r for r in found.values() if r and r[0] > 50]),
        ("at most 50", [r for r in found.values() if r and r[0] <= 50]),
    ):
        if chosen:
            ratios, times = ([r[place] for r in chosen] for place in (4, 5))
            counts = f"{sum(r[1] for r in chosen)}, {sum(r[3] for r in chosen)}"
            means = cell(mean(ratios)), f"{max(ratios):.2f}", cell(mean(times)), f"{max(times):.2f}"
            lines.append((heading, len(chosen), counts, *means))
    heads = "case", "pairs of matrix and recipe", "columns solved: single, block", "iterations, mean", "largest"
    return table((*heads, "processor's time, mean", "largest time"), lines)


def kinds() -> list[str]:
    return [type(recipe).__name__ for recipe in RECIPES]


def page(run: Run) -> str:
    heads = ("matrix", "rows", "M", "single: iterations", "solved", "block: iterations", "solved", "over single")
    lines = [
        (name, facts["n"], kind, f"{r[0]:.1f}", r[1], f"{r[2]:.1f}", r[3], f"{r[4]:.2f}", f"{r[5]:.2f}")
        for name, facts in run.matrices.items()
        for kind in kinds()
        if (r := row(run, name, kind))
    ]
    return f"{run.heading()}\n{claims(run)}\n{table((*heads, 'time over single'), lines)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.block_gmres", description=__doc__)
    add_place(parser)
    add_budget(parser)
    parser.add_argument("--matrices", default=MATRICES, help="names with commas between them")
    options = parser.parse_args(argv)
    run = new_run("block-gmres", gpu=False, machine_name=options.machine)
    finelu.set_num_threads(1)
    run.options = {"threads": 1, "columns": COLUMNS, "rtol": RTOL, "restart": RESTART, "limit": f"{LIMIT} iterations"}

    def one(name: str, A: Any) -> str:
        for recipe in RECIPES:
            measure(run, name, A, recipe)
        return ""

    return carry_out(run, systems(options.matrices, run), one, options, page, claims)


if __name__ == "__main__":
    command(main)
