"""Claims: precision="auto" makes a whole solve on a GPU 1.25 times as fast in the mean, and none slower by more than
3%; where solves are Jacobi sweeps "half" makes it faster still.

    python -m benchmarks.claims.precision --gpu --budget 150
    python -m benchmarks.claims.precision --gpu --recipes IC0-jacobi,ILU0-jacobi
    python -m benchmarks.claims.precision --cpu --matrices poisson7:40

A x = b to 1e-8, b uniform in [-0.5, 0.5]: `recipe.factor(A)`, then cg where the recipe is for Hermitian matrices (and A
is), else gmres, as called, from an idle device to an idle device. precision=None, "auto" and, on a GPU with Jacobi
sweeps, "half" are measured in turn, RUNS times (slow ones FEW times) after a first call of each, which compiles; a
ratio is that of the medians. The same with M^-1 r alone, of one vector, and with `update`. ||b - A x|| / ||b|| is
computed apart, on the host.

What can be expected: a solve with a triangle reads 8 + 4 bytes an entry, and 4 + 4 after rounding; and in both forms
for each row 36 bytes (two pointers, its place in the order, 1 / D_ii, b and x): with m entries a row 1.20 times fewer
bytes for m = 3 (poisson7), 1.37 for m = 13 (poisson27), less than 1.5 always. In half precision it reads 2 + 4: 1.33
times fewer than in double for m = 3, 1.68 for m = 13. Where levels are narrow the time is that
of a chain of round trips, and does not change; so "red-black:100" is poisson7:100 with the unknowns of even points of
the grid first, whose triangles have two levels. The choice itself takes a solve, a product and a pass over the values.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims.solve_gpu import matrix_of
from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import Budget, synchronized
from benchmarks.harness.options import add_budget, add_device, add_place, command, wants_gpu
from benchmarks.harness.record import Record, Run, RunEnded, new_run
from benchmarks.harness.suite import matrix_folder, names_of, suite
from benchmarks.harness.table import cell, mean, table

RTOL, SEED, MOST = 1e-8, 0, 400
RUNS, FEW, SLOW = 7, 3, 300.0  # measurements; of calls that take longer than SLOW ms FEW
WORKS = ("solve", "M^-1 r", "update")
PRECISIONS = (None, "auto", "half")
DOUBLE, *ROUNDED = map(str, PRECISIONS)
SWEPT = "-jacobi"  # recipes whose solves are Jacobi sweeps
RECIPES: dict[str, Callable[[str | None], Any]] = {
    "IC0": lambda p: finelu.IC0(precision=p),
    "IC0-jacobi": lambda p: finelu.IC0(triangular="jacobi", precision=p),
    "ILU0": lambda p: finelu.ILU0(precision=p),
    "ILU0-jacobi": lambda p: finelu.ILU0(triangular="jacobi", precision=p),
    "ILUK": lambda p: finelu.ILUK(level=1, precision=p),
    "MILU0": lambda p: finelu.MILU0(precision=p),
    "ParIC": lambda p: finelu.ParIC(precision=p),
    "ParILU": lambda p: finelu.ParILU(precision=p),
    "ParICT": lambda p: finelu.ParICT(precision=p),
    "ParILUT": lambda p: finelu.ParILUT(precision=p),
}
RED_BLACK = "red-black:"  # the points of a side
MATRICES = (
    "red-black:100,poisson7:100,poisson27:60,poisson5:1000,1000,anisotropic_triangles:6,atmosmodd_like,ecology2_like,"
    "g3_circuit_like,parabolic_fem_nat,topopt3d_060,of_pitzDaily_p,ng_heatsink2d,memplus"
)


def matrices(names: str) -> list[tuple[str, Callable[[], sp.csr_matrix]]]:
    """(name, its matrix)."""

    def red_black(side: int) -> sp.csr_matrix:
        order = np.argsort(np.indices((side,) * 3).sum(axis=0).ravel() % 2, kind="stable")
        return finelu.gallery.poisson7(side)[order][:, order].tocsr()

    found: list[tuple[str, Callable[[], sp.csr_matrix]]] = []
    for name in names_of(names):
        if name.startswith(RED_BLACK):
            found.append((name, partial(red_black, int(name.removeprefix(RED_BLACK)))))
        else:
            (problem,) = suite(matrix_folder(), [name], quick=False)
            found.append((name, partial(matrix_of, problem)))
    return found


def in_turn(calls: Sequence[Callable[[], Any]], gpu: bool) -> list[tuple[float, Any]]:
    """(the median ms, the last result) of each, after a first call of each, which does not count."""
    times: list[list[float]] = [[] for _ in calls]
    found: list[Any] = [call() for call in calls]
    start = synchronized(gpu)
    calls[0]()
    for run in range(FEW if 1e3 * (synchronized(gpu) - start) > SLOW else RUNS):
        for k in range(len(calls))[:: 1 if run % 2 else -1]:
            start = synchronized(gpu)
            found[k] = calls[k]()
            times[k].append(1e3 * (synchronized(gpu) - start))
    return [(median(each), result) for each, result in zip(times, found, strict=True)]


def measure(run: Run, name: str, S: sp.csr_matrix, recipes: Sequence[str], gpu: bool) -> None:
    b = np.random.default_rng(SEED).uniform(-0.5, 0.5, S.shape[0]).astype(S.dtype)
    A, right, place = S, b, "cpu"
    if gpu:
        import cupy
        import cupyx.scipy.sparse as csp

        A, right, place = csp.csr_matrix(S), cupy.asarray(b), "gpu"
    hermitian = abs(S - S.conj().T).max() <= 1e-12 * abs(S).max()
    run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz}
    for key in recipes:
        made = [RECIPES[key](p) for p in PRECISIONS if p != "half" or (gpu and key.endswith(SWEPT))]
        if made[0].hermitian and not hermitian:
            continue
        method = finelu.cg if made[0].hermitian else finelu.gmres

        def whole(recipe: Any, method: Any = method) -> Callable[[], tuple[Any, Any]]:
            def call() -> tuple[Any, Any]:
                F = recipe.factor(A)
                return F, method(A, right, M=F, rtol=RTOL, maxiter=MOST)

            return call

        with run.attempt(name, key):
            solved = in_turn([whole(recipe) for recipe in made], gpu)
            factors = [F for _, (F, _) in solved]
            applied = in_turn([lambda F=F: F.solve(right) for F in factors], gpu)
            updated = in_turn([lambda F=F: F.update(A) for F in factors], gpu)
            for F, (ms, (_, solution)), (apply_ms, _), (update_ms, _) in zip(
                factors, solved, applied, updated, strict=True
            ):
                x = solution.x.get() if gpu else solution.x
                residual = float(np.linalg.norm(b - S @ x) / np.linalg.norm(b))
                facts = {key: F.report.get(key) for key in ("stored", "stored_since", "rounding_change")}
                facts |= {"iterations": solution.iterations, "converged": bool(solution.converged), "entries": F.nnz}
                facts |= {"triangular": F.report.triangular, "method": method.__name__}
                for work, each in zip(WORKS, (ms, apply_ms, update_ms), strict=True):
                    variant = str(F.recipe.precision)
                    record = Record(name, work, place, key, variant, each, None, residual, detail=facts)
                    run.records.append(record)
        print(f"  {name}, {key}: {[[ratio_of(run, name, key, w, v) for w in WORKS] for v in ROUNDED]}", flush=True)
        if gpu:
            release_gpu()


def found(run: Run, name: str, recipe: str, work: str) -> list[Record | None]:
    return [run.one(matrix=name, who=recipe, work=work, variant=str(p)) for p in PRECISIONS]


def ratio_of(run: Run, name: str, recipe: str, work: str, variant: str) -> float | None:
    """The time with None over that with the variant; None unless both converged to the tolerance."""
    double, rounded = (run.one(matrix=name, who=recipe, work=work, variant=v) for v in (DOUBLE, variant))
    if double is None or rounded is None or not (double.detail["converged"] and rounded.detail["converged"]):
        return None
    return round((double.numeric_ms or 0.0) / (rounded.numeric_ms or 1.0), 3)


def claims(run: Run) -> str:
    lines = []
    recipes = list(dict.fromkeys(r.who for r in run.records))
    for variant, work, recipe in product(ROUNDED, WORKS, (*recipes, "all")):
        of = recipes if recipe == "all" else [recipe]
        every = {(n, k): r for n in run.matrices for k in of if (r := ratio_of(run, n, k, work, variant)) is not None}
        if every:
            worst = min(every, key=lambda at: every[at])
            slower = sum(r < 0.97 for r in every.values())
            shown = f"{mean(list(every.values())):.3f}", slower, f"{every[worst]:.2f} {worst[0]} {worst[1]}"
            lines.append((variant, work, recipe, len(every), *shown))
    heads = ("with", "work", "recipe", "systems", "None over it", "slower by 3%", "worst")
    return table(heads, lines)


def page(run: Run) -> str:
    lines = []
    for name, facts in run.matrices.items():
        for recipe in dict.fromkeys(r.who for r in run.records if r.matrix == name):
            shown: list[Any] = []
            for work in WORKS:
                shown += [cell(None if r is None else r.numeric_ms) for r in found(run, name, recipe, work)]
            details = [r.detail if r else {} for r in found(run, name, recipe, "solve")]
            counts = [f"{d['iterations']}{'' if d['converged'] else ' (not converged)'}" if d else "" for d in details]
            double, auto, half = details
            changes = [f"{c:.1e}" if (c := d.get("rounding_change")) is not None else "" for d in (auto, half)]
            levels = " ".join(f"{t['method']} {t['levels']}" for t in double.get("triangular", {}).values())
            ratios = [cell(ratio_of(run, name, recipe, "solve", variant)) for variant in ROUNDED]
            entries = f"{double.get('entries', 0) / facts['n']:.1f}"
            lines.append((name, recipe, *shown, *ratios, *counts, auto.get("stored"), *changes, entries, levels))
    heads = ("matrix", "recipe", *(f"{work}, {p}" for work in WORKS for p in map(str, PRECISIONS)))
    heads += (*(f"solve, {variant}, ratio" for variant in ROUNDED), "iterations", *(f"with {v}" for v in ROUNDED))
    heads += ("stored by auto", "change", "change in half", "entries a row", "solves")
    return f"{run.heading()}\n{claims(run)}\n## ms\n\n{table(heads, lines)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.precision", description=__doc__)
    add_place(parser)
    add_budget(parser)
    add_device(parser, "A and b are on the GPU", "A and b are on the host")
    parser.add_argument("--matrices", default=MATRICES, help="names with commas between them (default: %(default)s)")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="names with commas between them")
    options = parser.parse_args(argv)
    recipes = options.recipes.split(",")
    if unknown := [key for key in recipes if key not in RECIPES]:
        parser.error(f"--recipes: there is no {', '.join(unknown)}; choose from {','.join(RECIPES)}")
    gpu = wants_gpu(options)
    run = new_run("precision-gpu" if gpu else "precision-cpu", gpu=gpu, machine_name=options.machine)
    run.options = {"threads": finelu.get_num_threads()}
    budget, complete = Budget(options.budget), True
    try:
        for name, read in matrices(options.matrices):
            if budget.over():
                run.left_out[name] = "the budget was spent"
                continue
            measure(run, name, read(), recipes, gpu)
            run.save(options.out)
    except (RunEnded, KeyboardInterrupt):
        complete = False
    path = run.publish(options.out, page(run))
    print(f"\n{claims(run)}{len(run.failures)} failures; {path}")
    return 0 if complete else 1


if __name__ == "__main__":
    command(main)
