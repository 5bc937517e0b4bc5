"""Claim: many right-hand sides of one matrix are solved several times faster together than one after the other.

    python -m benchmarks.claims.columns --budget 300            # on the CPU
    python -m benchmarks.claims.columns --gpu --budget 120
    python -m benchmarks.claims.columns --parts factors --recipes ILU0,IC0

COLUMNS random right-hand sides, row-major. "factors": `F.solve(R)` with all of them against as many calls `F.solve(r)`,
for each recipe that factors the matrix, after warm calls of both. "solve": `finelu.solve(A, B)` against as many calls
of `finelu.solve(A, b)`, to 1e-8. Both sides take turns; the time of a side is the least of its repeats. The columns of
F.solve(R) are compared with those of the calls: on the CPU they have the same bits. ||b - A x|| / ||b|| of each column
of `solve` is computed apart, on the host.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import geometric_mean
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims.solve_gpu import TWICE, matrix_of
from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import synchronized
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_options, chosen_parts, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import names_of, suite
from benchmarks.harness.table import cell, table

COLUMNS, RTOL, SEED, WARM = 16, 1e-8, 0, 2
REPEATS, ENOUGH = 9, 1.0  # of a side, and the seconds after which no further one is begun
PARTS = ("factors", "solve")
RECIPES = "Jacobi,BlockJacobi,ILU0,MILU0,IC0,ILUK,ILUT,ICT,ParILU,ParIC,ParILUT,Schwarz,MultilevelILU,SparseLU"
SYSTEMS = (
    *("poisson7:32", "poisson27:24", "bcsstk16", "cage11", "fv2", "memplus"),
    *("of_pitzDaily_p", "ani5", "parabolic_fem_nat", "hypre_tucker21935", "trilinos_nsjac", "topopt3d_060"),
)
TOGETHER, APART = "together", "one after the other"


def moved(array: Any, gpu: bool) -> Any:
    if not gpu:
        return array
    import cupy
    import cupyx.scipy.sparse as csp

    return csp.csr_matrix(array) if sp.issparse(array) else cupy.asarray(array)


def least(sides: dict[str, Callable[[], Any]], gpu: bool) -> tuple[dict[str, float], dict[str, Any]]:
    """ms of each side, the least of its repeats, taken in turns; and its last result."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    found = {}
    while not times[TOGETHER] or (len(times[TOGETHER]) < REPEATS and sum(map(sum, times.values())) < ENOUGH):
        for side, call in sides.items():
            start = synchronized(gpu)
            found[side] = call()
            times[side].append(synchronized(gpu) - start)
    return {side: 1e3 * min(taken) for side, taken in times.items()}, found


def right_sides(S: sp.csr_matrix, gpu: bool) -> tuple[Any, list[Any]]:
    """(n, COLUMNS), row-major, and its columns."""
    rng = np.random.default_rng(SEED)
    R = rng.standard_normal((S.shape[0], COLUMNS)).astype(S.dtype)
    return moved(R, gpu), [moved(np.ascontiguousarray(R[:, c]), gpu) for c in range(COLUMNS)]


def keep(run: Run, name: str, work: str, gpu: bool, times: dict[str, float], error: float, detail: Any) -> None:
    place = "gpu" if gpu else "cpu"
    for side, ms in times.items():
        run.records.append(Record(name, work, place, "finelu", side, ms, None, error, detail=detail))


def measure_factors(run: Run, name: str, recipe: str, S: sp.csr_matrix, gpu: bool) -> None:
    try:
        F = getattr(finelu, recipe)().factor(moved(S, gpu))
    except finelu.FineluError as error:
        run.left_out[f"{name} {recipe}"] = str(error).splitlines()[0]
        return
    with run.attempt(name, recipe):
        R, columns = right_sides(S, gpu)
        sides = {APART: lambda: [F.solve(r) for r in columns], TOGETHER: lambda: F.solve(R)}
        for call in (*sides.values(), *sides.values()):
            call()
        times, found = least(sides, gpu)
        one = np.stack([x.get() if gpu else x for x in found[APART]], axis=1)
        all_ = found[TOGETHER].get() if gpu else found[TOGETHER]
        with np.errstate(all="ignore"):
            error = float(np.linalg.norm(all_ - one) / np.linalg.norm(one))
        keep(run, name, recipe, gpu, times, error, {"same bits": bool(np.array_equal(all_, one, equal_nan=True))})


def measure_solve(run: Run, name: str, S: sp.csr_matrix, gpu: bool) -> None:
    with run.attempt(name, "solve"):
        A, (B, columns) = moved(S, gpu), right_sides(S, gpu)
        sides = {
            APART: lambda: [finelu.solve(A, b, RTOL, verbose=False) for b in columns],
            TOGETHER: lambda: finelu.solve(A, B, RTOL, verbose=False),
        }
        finelu.solve(A, columns[0], RTOL, verbose=False)
        sides[TOGETHER]()
        times, found = least(sides, gpu)
        X, b = (v.get() if gpu else v for v in (found[TOGETHER].x, B))
        error = float((np.linalg.norm(b - S @ X, axis=0) / np.linalg.norm(b, axis=0)).max())
        detail = {
            "converged": bool(found[TOGETHER].converged and all(s.converged for s in found[APART])),
            "iterations": [found[TOGETHER].iterations, sum(s.iterations for s in found[APART])],
            "recipe": found[TOGETHER].recipe,
        }
        keep(run, name, "solve", gpu, times, error, detail)


def gains(run: Run) -> dict[tuple[str, str], float]:
    """(matrix, work) -> the time of one after the other over the time together."""
    found = {}
    for r in run.find(variant=TOGETHER):
        apart = run.one(matrix=r.matrix, work=r.work, variant=APART)
        if r.work == "solve" and not (r.detail["converged"] and r.error is not None and r.error <= TWICE):
            continue
        if apart is not None and apart.numeric_ms and r.numeric_ms:
            found[r.matrix, r.work] = apart.numeric_ms / r.numeric_ms
    return found


def claims(run: Run) -> str:
    found, lines = gains(run), []
    of_factors = [work for work in dict.fromkeys(work for _, work in found) if work != "solve"]
    for what, works in (("all factors", of_factors), *((w, [w]) for w in of_factors), ("solve(A, B)", ["solve"])):
        chosen = {key: gain for key, gain in found.items() if key[1] in works}
        if chosen:
            worst = min(chosen, key=lambda key: chosen[key])
            named = " ".join(worst[: 1 if len(works) == 1 else 2])
            lines.append((what, len(chosen), f"{geometric_mean(chosen.values()):.2f}", f"{chosen[worst]:.2f} {named}"))
    return table((f"{COLUMNS} columns together", "cases", "times as fast, mean", "worst"), lines)


def page(run: Run) -> str:
    found, lines = gains(run), []
    for r in run.find(variant=TOGETHER):
        apart, gain = run.one(matrix=r.matrix, work=r.work, variant=APART), found.get((r.matrix, r.work))
        how = r.detail["recipe"] if r.work == "solve" else "yes" if r.detail["same bits"] else f"to {r.error:.0e}"
        times = cell(apart.numeric_ms if apart else None), cell(r.numeric_ms)
        lines.append((r.matrix, run.matrices[r.matrix]["n"], r.work, *times, f"{gain:.2f}" if gain else "", how))
    heads = ("matrix", "rows", "work", APART, TOGETHER, "gain", "same bits, or recipe")
    return f"{run.heading()}\n{claims(run)}\n## ms\n\n{table(heads, lines)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.columns", description=__doc__)
    add_options(parser)
    parser.add_argument("--gpu", action="store_true", help="A and b are on the GPU")
    parser.add_argument("--parts", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument("--recipes", default=RECIPES, help="default: %(default)s")
    options = parser.parse_args(argv)
    parts, recipes = chosen_parts(parser, options.parts, PARTS), options.recipes.split(",")
    run = new_run("columns-gpu" if options.gpu else "columns-cpu", gpu=options.gpu, machine_name=options.machine)
    run.options = {"threads": finelu.get_num_threads()}
    names = names_of(options.matrices) or (() if options.quick else SYSTEMS)

    def one(name: str, problem: Any) -> str:
        S = matrix_of(problem)
        run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz}
        for recipe in recipes if "factors" in parts else ():
            measure_factors(run, name, recipe, S, options.gpu)
        if "solve" in parts:
            measure_solve(run, name, S, options.gpu)
        if options.gpu:
            release_gpu()
        return str({work: round(gain, 2) for (matrix, work), gain in gains(run).items() if matrix == name})

    problems = ((problem.name, problem) for problem in suite(options.matrix_folder, names, quick=options.quick))
    return carry_out(run, problems, one, options, page, claims)


if __name__ == "__main__":
    command(main)
