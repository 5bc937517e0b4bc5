"""Claim: M^-1 and all of GMRES are 3 times faster than the paper's GPU version, Gram-Schmidt is 10 times faster.

Tables 2 to 5 of J. I. Aliaga, E. Dufrechou, P. Ezzatti, E. S. Quintana-Ortí, "An efficient GPU version of the
preconditioned GMRES method", 2019, for the matrices at hand, with the paper's numbers. GMRES(30), float64, with
MultilevelILU; right-hand side, tolerance and drop tolerance are not in the paper: b = A x, x standard normal, 1e-8 and
1e-3 (`--drop-tol`). M stands on the right of A here, on the left there.

For symmetric matrices the paper gives the number of entries of one triangle. Its iterations are nearer to those of that
triangle alone, taken for the matrix, than to those of the whole matrix: "tril(...)", variant (a).

(a) CPU      finelu on the CPU.
(b) baseline the paper's: A and M^-1 on the GPU, by cuSPARSE's SpMV and SpSV and equation (11); modified Gram-Schmidt
             and the basis on the CPU, to and from which each vector is copied (pinned memory; a column of its own).
(p) paper    the paper's own: equation (11) on the GPU with solves level by level, Gram-Schmidt by cuBLAS.
(c) finelu   everything on the GPU.
(s) same     as (c), with the preconditioner of (b): Crout's form, and equation (11); solves in the rows' own order.
(l) levels   as (s), with solves level by level.
(o) order    as (c), with solves level by level; "auto" of (c) takes the rows' own order for large levels of short rows.
(i) own      as (c), with solves in the rows' own order.

A stage is the time between events around it, in a loop of this file that takes the very steps of `finelu.gmres`; the
total of (a), (c), (s), (l), (o) and (i) is that of `finelu.gmres` itself, of (b) that of the loop without events.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import Budget, cpu_time, gpu_time, synchronized
from benchmarks.harness.options import add_device, add_options, add_sources, command, wants_gpu
from benchmarks.harness.record import Record, Run, RunEnded, new_run
from benchmarks.harness.suite import WORST_CASE, Problem, names_of, suite
from benchmarks.harness.worker import ROUNDING
from benchmarks.papers.ilupack_baseline import MAXITER, RESTART, RTOL, SEED, STAGES, Baseline, Clock, staged
from benchmarks.papers.ilupack_tables import VARIANTS, claim_table, gain_table, lower, page, stage_table, theirs
from finelu.device import on_gpu, to_host
from finelu.krylov.operators import as_operator

AGREE = 1e-6  # relative: how far two ways to apply the same M may differ
ENOUGH, TOO_LONG = 2.0, 10.0  # seconds after which a solve, and a factorization, is not repeated
FIRST = ("parabolic_fem_nat", "cage11", "apache2_like", "ecology2_like", "atmosmodd_like", "g3_circuit_like")


# Measuring ------------------------------------------------------------------------------------------------------------


def load(problem: Problem) -> sp.csr_matrix:
    """The matrix; unlike `Problem.load` with zeros on its diagonal, if it has them."""
    S = finelu.read_matrix(problem.path) if problem.path else finelu.gallery.problem(problem.name)
    S = sp.csr_matrix(S, dtype=np.float64)
    S.sort_indices()
    return S


def repeated(call: Callable[[], Any], *, warm: bool) -> list[tuple[float, Any]]:
    """(ms, what call() gave), up to five times or until ENOUGH seconds are spent; warm=False: after one for itself."""
    if not warm:
        call()
    found: list[tuple[float, Any]] = []
    while not found or (len(found) < 5 and sum(ms for ms, _ in found) < 1e3 * ENOUGH):
        begin = time.perf_counter()
        result = call()
        found.append((1e3 * (time.perf_counter() - begin), result))
    return found


def measure_variant(
    run: Run, name: str, S: sp.csr_matrix, b: Any, variant: str, F: Any, apply: Callable[[Any], Any] | None = None
) -> Record:
    """One variant on one matrix.  F : the factors where it works (those of the host for (b)).  apply : (b)'s M^-1."""
    gpu, on_host = variant != "a", variant == "b"
    A_here, b_here, elsewhere = S, b, lambda: None
    if gpu:
        import cupy
        import cupyx.scipy.sparse as csp

        A_here, b_here = csp.csr_matrix(S), cupy.asarray(b)
        elsewhere = cupy.cuda.get_current_stream().synchronize
    apply = apply or F.solve
    A = A_here if on_host else as_operator(A_here, "A", b_here, b_here.dtype)  # cuSPARSE's product; finelu's

    def whole():
        if variant in "bp":
            found = staged(A, apply, b_here, Clock(gpu, off=True), on_host=on_host, by_blas=variant == "p")
        else:
            solution = finelu.gmres(A_here, b_here, M=F, rtol=RTOL, restart=RESTART, maxiter=MAXITER)
            found = solution.x, solution.iterations
        elsewhere()
        return found

    def by_stages():
        clock = Clock(gpu)
        staged(A, apply, b_here, clock, on_host=on_host, by_blas=variant == "p")
        return clock.ms()

    solves = repeated(whole, warm=False)
    clocks = [ms for _, ms in repeated(by_stages, warm=True)]
    x, iterations = solves[-1][1]
    residual = float(np.linalg.norm(b - S @ to_host(x)) / np.linalg.norm(b))
    one = (gpu_time if gpu else cpu_time)(lambda i: apply(b_here))
    detail = {
        "iterations": iterations,
        "converged": residual <= ROUNDING * RTOL,
        "stages": {stage: median(ms[stage] for ms in clocks) for stage in STAGES},
        "application": vars(one),
        "repeats": len(solves),
    }
    record = Record(name, "gmres", "gpu" if gpu else "cpu", {"b": "cusparse"}.get(variant, "finelu"), variant,
                    median(ms for ms, _ in solves), error=residual, detail=detail)  # fmt: skip
    record.threads = 0 if gpu else run.options["threads"]
    return record


def agreement(apply: Callable[[Any], Any], F: Any, b: Any) -> float:
    """How far the baseline's M^-1 b is from the factors' own, relative; RuntimeError if it is another M."""
    ours, other = to_host(F.solve(b)), to_host(apply(b if not on_gpu(apply.last) else apply.xp.asarray(b)))
    apart = float(np.linalg.norm(ours - other) / np.linalg.norm(ours))
    if not apart <= AGREE:
        raise RuntimeError(f"the baseline applies another M: {apart:.2g} apart")
    return apart


def measure_one(run: Run, name: str, S: sp.csr_matrix, recipe: Any, gpu: bool, variants: str) -> None:
    """These variants on one matrix; the matrix itself is described by the factors of the host, or by those of (c)."""
    b = S @ np.random.default_rng(SEED).standard_normal(S.shape[0])
    F = None
    if not gpu or set("ab") & set(variants):
        F, seconds = factored(recipe, S)
        describe(run, name, S, F, seconds)
    if F is not None and "a" in variants:
        with run.attempt(name, VARIANTS["a"]):
            run.records.append(measure_variant(run, name, S, b, "a", F))
    if not gpu:
        return
    import cupy
    import cupyx.scipy.sparse as csp

    if F is not None and "b" in variants:
        with run.attempt(name, VARIANTS["b"]):
            baseline = Baseline(F, cupy)
            apart = agreement(baseline, F, b)
            record = measure_variant(run, name, S, b, "b", F, baseline)
            record.detail["apart"] = apart
            run.records.append(record)
            release_gpu()
            baseline.close()
            del baseline
    if "p" in variants:
        with run.attempt(name, VARIANTS["p"]):
            S_here = csp.csr_matrix(S)
            method = "level_packed" if on_gpu(S_here.data) else "auto"
            run.records.append(measure_variant(
                run, name, S, b, "p", replace(recipe, form="crout", low_memory=True, triangular=method).factor(S_here)
            ))  # fmt: skip
            release_gpu()
    for variant, method in (("s", "sync_free"), ("l", "level_packed")):
        if variant in variants:
            with run.attempt(name, VARIANTS[variant]):
                same = replace(recipe, form="crout", low_memory=True, triangular=method)
                run.records.append(measure_variant(run, name, S, b, variant, same.factor(csp.csr_matrix(S))))
                release_gpu()
    for variant, method in (("o", "level_packed"), ("i", "sync_free"), ("c", "auto")):
        if variant in variants:
            with run.attempt(name, VARIANTS[variant]):
                F, seconds = factored(replace(recipe, triangular=method), csp.csr_matrix(S))
                record = measure_variant(run, name, S, b, variant, F)
                run.records.append(record)
                first = F.report["levels"][0]
                record.detail |= {"fill": F.report["fill"], "set-up": seconds}
                record.detail["entries a row"] = first["nnz"] / first["n"]
                if name not in run.matrices:
                    describe(run, name, S, F, seconds)
                if variant == "c":
                    # the same parts by SpSV, so that the gain of the kernels is not mixed with that of another formula
                    baseline = Baseline(F, cupy)
                    record.detail["apart"] = agreement(baseline, F, cupy.asarray(b))
                    R = cupy.asarray(b)
                    record.detail["application by SpSV"] = vars(gpu_time(lambda i, apply=baseline, r=R: apply(r)))
                    release_gpu()
                    baseline.close()


def factored(recipe: Any, S: Any) -> tuple[Any, float]:
    """The factors and the seconds of the second of two calls, as the first may compile; of one that takes TOO_LONG."""
    F, seconds = None, 0.0
    for _ in range(2):
        begin = time.perf_counter()
        F = recipe.factor(S)
        seconds = synchronized(on_gpu(S.data)) - begin
        if seconds > TOO_LONG:
            break
    return F, seconds


def describe(run: Run, name: str, S: sp.csr_matrix, F: Any, seconds: float) -> None:
    """The facts of a matrix: its size, and those of its factors."""
    levels = [level["n"] for level in F.report["levels"] if level["n"]]
    run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "levels": levels, "fill": F.report["fill"]}
    run.matrices[name] |= {"kind": F.report["kind"], "seconds": seconds}


# The run --------------------------------------------------------------------------------------------------------------


def chosen(options: argparse.Namespace) -> list[Problem]:
    """The problems asked for; else the paper's and its kind first, then the real matrices, small files first."""
    if options.matrices or options.quick:
        return suite(options.matrix_folder, names_of(options.matrices), quick=options.quick)
    everything = suite(options.matrix_folder)
    real = sorted((p for p in everything if p.path), key=lambda p: p.path.stat().st_size)
    by_name = {p.name: p for p in everything} | {n: Problem(n) for n in FIRST if n.endswith("_like")}
    first = [by_name[n] for n in (*FIRST, "cage13") if n in by_name]
    taken = {p.name for p in first}
    return first + [p for p in real if p.name not in taken and p.name != WORST_CASE]


def measured(options: argparse.Namespace) -> Run:
    gpu = wants_gpu(options)
    run = new_run("ilupack", gpu=gpu, machine_name=options.machine)
    recipe = finelu.MultilevelILU(drop_tol=options.drop_tol, condest=5.0, fill=10.0)  # one setting for all matrices
    run.options = {"threads": options.threads, "recipe": repr(recipe)}
    finelu.set_num_threads(options.threads)
    if not gpu:
        run.left_out["(b) and (c)"] = "no GPU here, or not asked for: Tables 4 and 5 are absent"
        print(run.left_out["(b) and (c)"], flush=True)
    problems, budget = chosen(options), Budget(options.budget)
    small = finelu.gallery.problem("poisson5:40,40")
    measure_one(Run("", {}, "", run.options), "warm-up", small, recipe, gpu, options.variants)
    try:
        for problem in problems:
            if budget.over():
                run.left_out[problem.name] = "the budget was spent"
                continue
            S = load(problem)
            if options.rows and S.shape[0] > options.rows:
                run.left_out[problem.name] = f"{S.shape[0]} rows"
                continue
            with run.attempt(problem.name, "the factorization"):
                measure_one(run, problem.name, S, recipe, gpu, options.variants)
            if (
                "a" in options.variants
                and theirs(problem.name)
                and run.matrices.get(problem.name, {}).get("kind", "general") != "general"
            ):
                with run.attempt(lower(problem.name), "the factorization"):
                    measure_one(run, lower(problem.name), sp.csr_matrix(sp.tril(S)), recipe, False, "a")
            if gpu:
                with run.attempt(problem.name, "the rest of the run", fatal=True):
                    release_gpu()
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {problem.name}: {S.shape[0]} rows", flush=True)
    except (RunEnded, KeyboardInterrupt) as end:
        run.left_out["the rest"] = f"the run ended early ({type(end).__name__})"
    run.options["seconds"] = round(budget.spent())
    return run


def merged(paths: Sequence[Path]) -> Run:
    """The first file's run, completed by the others."""
    return Run.merged(paths, lambda r: (r.matrix, r.work, r.device, r.variant))[0]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="finelu bench ilupack", description=__doc__)
    add_device(parser, "all variants", "variant (a) only")
    add_sources(parser)
    parser.add_argument("--drop-tol", type=float, default=1e-3, help="of MultilevelILU (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=0, help="leave out matrices with more rows")
    parser.add_argument("--variants", default="".join(VARIANTS), help="which of %(default)s, on a GPU")
    add_options(parser)
    options = parser.parse_args(argv)
    if not set(options.variants) <= set(VARIANTS):
        parser.error(f"--variants {options.variants}: {', '.join(VARIANTS)} are the variants")
    run = merged(options.sources) if options.sources else measured(options)
    target = run.publish(options.out, page(run))
    print(f"\nTable 3, ms\n{stage_table(run)}\nTables 4 and 5, ms\n{gain_table(run) or 'absent'}")
    print(f"Claims\n{claim_table(run)}\n{len(run.matrices)} matrices, {len(run.failures)} failures; {target}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    command(main)
