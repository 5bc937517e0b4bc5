"""Claim: idrs and bicgstabl take fewer products with A than bicgstab on most unsymmetric systems, and hold on more.

    python -m benchmarks.claims.short_recurrences                       # some minutes on one core
    python -m benchmarks.claims.short_recurrences --matrices sherman3,memplus

A x = b to 1e-8 with the factors of ILU0, b = A 1, or of ones without them: bicgstab, gmres with cycles of 50, bicgstabl
with l = 1, 2 and 4, and idrs with s = 1, 2, 4 and 8, each until LIMIT products with A. Matrices: the real unsymmetric
ones of a folder (FINELU_MATRICES, or ../shared/matrices) that have such factors, and systems with a skew A and
a small multiple of I, without a preconditioner. Counted are products with A of the iterations, and the processor's time
of the second call on one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from time import process_time
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.clock import Budget
from benchmarks.harness.options import add_budget, add_place, command
from benchmarks.harness.record import Record, Run, RunEnded, new_run
from benchmarks.harness.suite import LeftOut, matrix_folder, names_of, suite
from benchmarks.harness.table import cell, mean, table

RTOL, LIMIT, ROWS = 1e-8, 4000, 400
METHODS: dict[str, tuple[Any, dict[str, int], int]] = {
    "bicgstab": (finelu.bicgstab, {}, 2),
    "gmres(50)": (finelu.gmres, {"restart": 50}, 1),
    **{f"bicgstabl({steps})": (finelu.bicgstabl, {"l": steps}, 2 * steps) for steps in (1, 2, 4)},
    **{f"idrs({s})": (finelu.idrs, {"s": s}, 1) for s in (1, 2, 4, 8)},
}
UNSYMMETRIC = (
    "orsirr_1,orsreg_1,sherman3,watt_1,bfw782a,cage8,cage10,cage11,cryg2500,memplus,mipt_two_wells_saddle_darcy,"
    "of_airfoil_nuTilda,of_hotRoom_h,of_pitzDaily_U,of_pitzDaily_eps,of_squareBend_p,opm_egg_3ph,qccfd_cavity_pc_128,"
    "trilinos_nsjac_1,trilinos_nsjac,ng_dg_convdiff_b6,fidapex6,gre_115,trilinos_xpetra_A13366,mcca,trilinos_rapA"
)
SKEW = {"skew + 0.1": 0.1, "skew + 0.01": 0.01, "skew": 0.0}


def systems(names: str, run: Run) -> Iterator[tuple[str, sp.csr_matrix, Any]]:
    """(name, A, factors or None)."""
    for name, part in SKEW.items():
        A = part * sp.eye(ROWS) + sp.diags([-1.0, 0.0, 1.0], [-1, 0, 1], shape=(ROWS, ROWS))
        yield name, sp.csr_matrix(A), None
    for problem in suite(matrix_folder(), names_of(names), quick=False):
        try:
            A = sp.csr_matrix(problem.read())
            yield problem.name, A, finelu.ILU0().factor(A)
        except (finelu.FineluError, LeftOut) as error:
            run.left_out[problem.name] = str(error)


def measure(run: Run, name: str, A: sp.csr_matrix, F: Any) -> None:
    b = np.ones(ROWS) if F is None else A @ np.ones(A.shape[0])
    run.matrices[name] = {"n": A.shape[0], "nnz": A.nnz, "preconditioner": "" if F is None else repr(F.recipe)}
    for variant, (method, own, each) in METHODS.items():
        with run.attempt(name, variant):
            for _ in range(2):
                start = process_time()
                found = method(A, b, M=F, rtol=RTOL, maxiter=LIMIT // each, **own)
                ms = 1e3 * (process_time() - start)
            error = float(np.linalg.norm(b - A @ found.x) / np.linalg.norm(b))
            detail = {"products": each * found.iterations, "status": found.status.name, "breakdowns": found.breakdowns}
            run.records.append(Record(name, "iterations", "cpu", variant, variant, ms, None, error, 1, detail=detail))
    print(f"  {name}: {[shown(run, name, variant) for variant in METHODS]}", flush=True)


def products(run: Run, name: str, variant: str) -> int | None:
    """The products of a solve that converged, else None."""
    found = run.one(matrix=name, variant=variant)
    return None if found is None or found.detail["status"] != "CONVERGED" else int(found.detail["products"])


def ms_of(run: Run, name: str, variant: str) -> float:
    (found,) = run.find(matrix=name, variant=variant)
    return float(found.numeric_ms or 0)


def shown(run: Run, name: str, variant: str) -> str:
    count, found = products(run, name, variant), run.one(matrix=name, variant=variant)
    if count is not None:
        return str(count)
    return "" if found is None else found.detail["status"].lower().replace("_", " ")


def claims(run: Run) -> str:
    lines = []
    real = [name for name in run.matrices if name not in SKEW]
    for variant in METHODS:
        solved = sum(products(run, name, variant) is not None for name in run.matrices)
        ratios = {
            name: mine / other
            for name in real
            if (mine := products(run, name, variant)) and (other := products(run, name, "bicgstab"))
        }
        times = [ms_of(run, name, variant) / ms_of(run, name, "bicgstab") for name in ratios]
        worst = max(ratios, key=lambda name: ratios[name], default="")
        products_mean, time_mean = (cell(mean(found)) if found else "" for found in (list(ratios.values()), times))
        largest = f"{ratios[worst]:.2f} {worst}" if worst else ""
        lines.append((variant, f"{solved} of {len(run.matrices)}", len(ratios), products_mean, largest, time_mean))
    heads = (
        "method",
        "solved",
        "bicgstab too",
        "products over bicgstab's, mean",
        "largest",
        "time over bicgstab's, mean",
    )
    return table(heads, lines)


def page(run: Run) -> str:
    lines = [
        (name, facts["n"], facts["nnz"], facts["preconditioner"], *(shown(run, name, variant) for variant in METHODS))
        for name, facts in run.matrices.items()
    ]
    times = [
        (name, *(cell(None if r is None else r.numeric_ms) for r in (run.one(matrix=name, variant=v) for v in METHODS)))
        for name in run.matrices
    ]
    counts = table(("matrix", "rows", "entries", "M", *METHODS), lines)
    return (
        f"{run.heading()}\n{claims(run)}\n## Products with A to 1e-8\n\n{counts}\n"
        f"## Processor's time, ms\n\n{table(('matrix', *METHODS), times)}{run.footing()}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.short_recurrences", description=__doc__)
    add_place(parser)
    add_budget(parser)
    parser.add_argument("--matrices", default=UNSYMMETRIC, help="names with commas between them")
    options = parser.parse_args(argv)
    run = new_run("short-recurrences", gpu=False, machine_name=options.machine)
    finelu.set_num_threads(1)
    run.options = {"threads": 1, "rtol": RTOL, "limit": f"{LIMIT} products"}
    budget, complete = Budget(options.budget), True
    try:
        for name, A, F in systems(options.matrices, run):
            if budget.over():
                run.left_out[name] = "the budget was spent"
                continue
            measure(run, name, A, F)
    except RunEnded:
        complete = False
    print(claims(run))
    run.publish(options.out, page(run))
    return 0 if complete else 1


if __name__ == "__main__":
    command(main)
