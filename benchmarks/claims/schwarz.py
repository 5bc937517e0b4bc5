"""Claim: on a GPU Schwarz() solves scalar elliptic, parabolic and pressure systems at least 4 times as fast (mean)
as the best of ILU(0) or IC(0), MILU(0) and ParILUT or ParICT, and none more slowly.

`python -m benchmarks.claims.schwarz` solves A x = b to 1e-8, b uniform in [-0.5, 0.5], from the CSR matrix on:
`factor` and the solve are the second of two calls. The method is cg where A is symmetric with a positive diagonal, else
bicgstab. A solve ends after --longest seconds. `application` is F.solve(b) of one right-hand side, a median.
On the CPU (--cpu) the peers are the same and, where the method is cg and MKL is installed, MKL's ILU(0) (dcsrilu0, two
mkl_sparse_d_trsv), once in a cg of which every operation is a call of MKL, once in finelu.cg. Its triangular solves are
tried on all threads, half and one, with and without mkl_sparse_optimize, then its products; the fastest counts. The
time of MKL's cg ends at the residual that it carries along; finelu.cg also forms the true one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims.parilut import spd
from benchmarks.harness.case import loaded, release_gpu, to_gpu
from benchmarks.harness.clock import Budget, cpu_time, gpu_time, synchronized
from benchmarks.harness.options import add_device, add_options, command, wants_gpu
from benchmarks.harness.record import Record, Run, RunEnded, new_run
from benchmarks.harness.suite import names_of, suite
from benchmarks.harness.table import cell, mean, ratio, table
from benchmarks.peers import mkl, mkl_cg

MOST, RTOL, SEED, LONGEST = 5000, 1e-8, 0, 4.0
WANTED = 4.0
SCHWARZ, TRANSLATIONS, MODES = "Schwarz", "Schwarz, translations", "Schwarz, rigid body modes"
MKL_CG, FINELU_CG = "MKL's cg", "MKL in finelu.cg"
# Scalar elliptic, parabolic and pressure equations among the matrices; the others are reported next to them.
SCALAR = (
    *("of_pitzDaily_p", "of_squareBend_p", "parabolic_fem_nat", "ng_heatsink2d", "qccfd_cavity_pc_128", "ani7"),
    *("poisson7:100", "poisson27:60", "poisson5:1000,1000", "anisotropic_triangles:5", "anisotropic_triangles:6"),
    *("anisotropic_triangles:7", "ecology2_like"),
)
ELASTIC = {"ccx_hueeber1": 3, "topopt3d_060": 3, "ng_elast3d_plate_b3": 3}  # unknowns a node
BLOCKS = ("elasticity:40,20,20", "elasticity:100,20,20")  # of the gallery, whose nodes are known
GRIDS = tuple(f"poisson7:{side}" for side in (32, 64, 128, 160))  # iterations against the width of the grid


def recipes(name: str, symmetric: bool, n: int) -> dict[str, Any]:
    exact, adapted = (finelu.IC0, finelu.ParICT) if symmetric else (finelu.ILU0, finelu.ParILUT)
    found: dict[str, Any] = {SCHWARZ: finelu.Schwarz()}
    unknowns = ELASTIC.get(name)
    if unknowns and n % unknowns == 0:
        found[TRANSLATIONS] = finelu.Schwarz(near_nullspace=np.tile(np.eye(unknowns), (n // unknowns, 1)))
    if name in BLOCKS:
        nx, ny, nz = (int(number) for number in name.partition(":")[2].split(","))
        z, y, x = np.meshgrid(np.arange(nz + 1), np.arange(ny + 1), np.arange(1, nx + 1), indexing="ij")
        modes = finelu.rigid_body_modes(np.column_stack([x.ravel(), y.ravel(), z.ravel()]))
        found[MODES] = finelu.Schwarz(near_nullspace=modes)
    if name not in GRIDS:
        found |= {"exact": exact(), "MILU0": finelu.MILU0(), "adapted": adapted()}
    return found


def after(limit: float) -> Callable[[int, float], bool]:
    """What ends a solve at a point of perf_counter."""
    return lambda iteration, residual: perf_counter() > limit


def applied(M: Any, b: Any) -> Callable[[int], Any]:
    """What a clock calls: one application of the preconditioner."""
    return lambda i: M.solve(b)


def measure(run: Run, name: str, S: sp.csr_matrix, gpu: bool, longest: float = LONGEST) -> None:
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
                found = method(A, b, M=F, rtol=RTOL, maxiter=MOST, watch=after(middle + longest))
                end = synchronized(gpu)
            detail: dict[str, Any] = {
                "setup": 1e3 * (middle - start),
                "solve": 1e3 * (end - middle),
                "iterations": found.iterations,
                "converged": bool(found.converged),
                "application": (gpu_time if gpu else cpu_time)(applied(F, b)).ms,
                "nnz": F.nnz,
            }
            if variant.startswith(SCHWARZ):
                report = F.report
                facts = ("partition", "parts", "largest", "cut", "levels", "coarse_rank")
                detail |= {fact: report.get(fact) for fact in facts}
            run.records.append(
                Record(name, "solution", "gpu" if gpu else "cpu", "finelu", variant, 1e3 * (end - start), detail=detail)
            )


def measure_mkl(run: Run, name: str, S: sp.csr_matrix, longest: float = LONGEST) -> None:
    """MKL's ILU(0) with cg: each setting of the triangles, and with the fastest of them the products and finelu.cg."""
    A, threads = finelu.as_csr(S), finelu.get_num_threads()
    b = np.random.default_rng(SEED).uniform(-0.5, 0.5, S.shape[0])
    counts = dict.fromkeys((threads, max(threads // 2, 1), 1))
    settings = [mkl_cg.Setting(k, optimized) for k in counts for optimized in (True, False)]
    with mkl.num_threads(threads):
        times = {setting: mkl_solve(run, name, A, b, setting, longest) for setting in settings}
        best = min(times, key=lambda setting: times[setting])
        for product in mkl_cg.PRODUCTS:
            if product != best.product:
                mkl_solve(run, name, A, b, replace(best, product=product), longest)
        for setting in dict.fromkeys((best, replace(best, threads=1))):
            mkl_solve(run, name, A, b, setting, longest, ours=True)


def mkl_solve(
    run: Run, name: str, A: Any, b: Any, setting: mkl_cg.Setting, longest: float, *, ours: bool = False
) -> float:
    """ms of set-up and solve, the second of two; Inf where it failed.  ours: by finelu.cg, which forms its products."""
    variant = f"{FINELU_CG}, {setting.triangles}" if ours else f"{MKL_CG}, {setting.triangles}, {setting.product}"
    with run.attempt(name, variant):
        for again in (True, False):
            with ExitStack() as held:
                start = perf_counter()
                M = mkl_cg.ILU0(A, setting)
                held.callback(M.close)
                product = None if ours else mkl_cg.Product(A, setting.product)
                if product is not None:
                    held.callback(product.close)
                middle = perf_counter()
                if product is None:
                    found = finelu.cg(A, b, M=M.solve, rtol=RTOL, maxiter=MOST, watch=after(middle + longest))
                    x, iterations, converged = found.x, found.iterations, bool(found.converged)
                else:
                    x, iterations, converged = mkl_cg.cg(product, b, M, RTOL, MOST, middle + longest)
                end = perf_counter()
                application = 0.0 if again else cpu_time(applied(M, b)).ms
        detail = {
            "setup": 1e3 * (middle - start),
            "solve": 1e3 * (end - middle),
            "iterations": iterations,
            "converged": converged,
            "application": application,
            "nnz": A.nnz,
        }
        ms, residual = 1e3 * (end - start), float(np.linalg.norm(b - A.tosparse() @ x) / np.linalg.norm(b))
        run.records.append(
            Record(name, "solution", "cpu", "mkl", variant, ms, None, residual, setting.threads, detail=detail)
        )
        return ms if converged else float("inf")
    return float("inf")


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
        ("elasticity, rigid body modes", MODES, [n for n in names if n in BLOCKS]),
        ("all others", SCHWARZ, [n for n in names if n not in (*SCALAR, *ELASTIC, *BLOCKS)]),
        ("elasticity, the constant alone", SCHWARZ, [n for n in names if n in (*ELASTIC, *BLOCKS)]),
    ):
        found = ratios(run, variant, chosen)
        both = [(r, n) for r, n in found if 0 < r < float("inf")]
        if both:
            alone = sum(r == float("inf") for r, _ in found)
            worst = f"{found[0][0]:.2f} {found[0][1]}"
            lines.append((what, len(found), alone, f"{mean(r for r, _ in both):.2f}", worst))
    return table(("systems", "cases", "Schwarz alone converged", "mean of the others", "worst"), lines)


def mkl_claims(run: Run) -> str:
    """Schwarz against the fastest setting of MKL's ILU(0), for each cg; empty where MKL took no part."""
    lines = []
    for name in run.matrices:
        ours = total(run.one(matrix=name, variant=SCHWARZ))
        for driver in (MKL_CG, FINELU_CG):
            theirs = [r for r in run.find(name, who="mkl") if r.variant.startswith(driver)]
            best = min(
                (r for r in theirs if total(r) and (r.error or 0) <= 2 * RTOL),
                key=lambda r: r.numeric_ms or 0.0,
                default=None,
            )
            if theirs:
                setting = best.variant.removeprefix(f"{driver}, ") if best else "none converged"
                lines.append((name, driver, ours, total(best), cell(ratio(total(best), ours)), setting))
    heads = ("matrix", "MKL's ILU0 in", "Schwarz, ms", "MKL, ms", "ratio", "MKL's fastest setting")
    return "\n" + table(heads, lines) if lines else ""


def times(run: Run) -> str:
    lines = []
    for r in run.records:
        d = r.detail
        best, mine = min(peers(run, r.matrix).values(), default=None), total(r)
        lines.append(
            (
                *(r.matrix, run.matrices[r.matrix]["n"], run.matrices[r.matrix]["nnz"], r.variant),
                *(cell(d["setup"]), cell(d["solve"]), f"{d['iterations']}{'' if d['converged'] else ' *'}"),
                *(cell(d["application"]), d.get("partition", ""), d.get("parts", ""), d.get("levels", "")),
                f"{best / mine:.2f}" if best and mine and r.variant.startswith(SCHWARZ) else "",
            )
        )
    heads = ("matrix", "rows", "entries", "recipe", "setup", "solve", "iterations", "application", "parts by", "parts")
    return table((*heads, "levels", "ratio"), lines)


def page(run: Run) -> str:
    longest = run.options.get("longest", LONGEST)
    notes = (
        f"*: not converged in {MOST} iterations or {longest:g} s. exact: IC0 where A is symmetric with a positive "
        "diagonal, else ILU0; adapted: ParICT or ParILUT. ratio: the best of the three over Schwarz, set-up included."
    )
    return f"{run.heading()}\n{claims(run)}{mkl_claims(run)}\n## Times, ms\n\n{notes}\n\n{times(run)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.schwarz", description=__doc__)
    add_device(parser, "on the GPU", "on the CPU")
    add_options(parser)
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds of a solve (default: %(default)s)")
    options = parser.parse_args(argv)
    gpu = wants_gpu(options)
    run = new_run("schwarz-gpu" if gpu else "schwarz-cpu", gpu=gpu, machine_name=options.machine)
    run.options = {"longest": options.longest} | ({} if gpu else {"threads": finelu.get_num_threads()})
    if not gpu and not mkl.available():
        run.left_out["MKL"] = "not installed (pip install mkl)"
    budget, complete = Budget(options.budget), True
    try:
        names = names_of(options.matrices)
        chosen = suite(options.matrix_folder, names, quick=options.quick)
        if not names and not options.quick:
            chosen = [p for p in chosen if not p.apart] + suite(options.matrix_folder, (*BLOCKS, *GRIDS))
        for name, S in loaded(run, budget, chosen):
            run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "spd": spd(S)}
            measure(run, name, S, gpu, options.longest)
            if not gpu and run.matrices[name]["spd"] and name not in GRIDS and mkl.available():
                measure_mkl(run, name, S, options.longest)
            if gpu:
                release_gpu()
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {name}", flush=True)
    except (RunEnded, KeyboardInterrupt):
        complete = False
    path = run.publish(options.out, page(run))
    print(f"\n{claims(run)}{mkl_claims(run)}{len(run.failures)} failures; {path}")
    return 0 if complete else 1


if __name__ == "__main__":
    command(main)
