"""Claim: many systems of one pattern are solved together in a fraction of the time that they take one by one.

    python -m benchmarks.claims.batch --cpu --budget 120                # 1,000 systems on the host
    python -m benchmarks.claims.batch --gpu --systems 10000             # 10,000 on the GPU

SYSTEMS systems A_s x_s = b_s to 1e-10: every entry of a matrix times 1 + CHANGE g, g normally distributed, b_s uniform.
"power flow" is the Jacobian of `examples/power_flow.py`, 250 buses. They are solved by `finelu.solve(batch, b, 1e-10)`
with a Batch made anew in each call, its analysis included; by a loop over SciPy's splu; by one over KLU, whose pivots
of the first system are kept for all (`refactor`); and by a loop over `finelu.solve(A_s, b_s, 1e-10)` on the host. Loops
are measured over the first SAMPLE systems, and counted for all. "with_values" has the analysis of the
pattern from before. On a GPU with cuDSS also by its uniform batch, ordered by minimum degree: planned, factored and
solved anew, and refactored and solved ("cuDSS, refactored"), which is compared with "with_values". Where SciPy's
factors do not reach 1e-10 for half of the sample, all solve to 1e-8. ||b - A x|| / ||b|| is computed apart, on the
host, for all systems of the batch.
"""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

import finelu
from benchmarks.claims.solve_gpu import matrix_of
from benchmarks.harness import ROOT
from benchmarks.harness.clock import synchronized
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_budget, add_device, add_place, command, wants_gpu
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import matrix_folder, names_of, suite
from benchmarks.harness.table import cell, mean, table
from benchmarks.peers import cudss_batch
from finelu.kernels.cuda.runtime import cudss
from finelu.preconditioners.direct.klu import nbklu

RTOL, SEED, CHANGE, SAMPLE, RUNS = (1e-10, 1e-8), 0, 0.1, 40, 5
BATCH, UPDATED, SPLU, KLU, SOLVE = "Batch", "with_values", "SciPy's splu", "KLU, refactored", "solve"
CUDSS, REFACTORED = "cuDSS", "cuDSS, refactored"
VARIANTS = (BATCH, UPDATED, CUDSS, REFACTORED, SPLU, KLU, SOLVE)
AGAINST = {REFACTORED: UPDATED}  # what the time of a variant is compared with, if it is not BATCH
POWER_FLOW = "power flow"
MATRICES = "west0479,mcca,gre_115,662_bus,bfw782a,orsirr_1,lhr01,adder_dcop_05"


def matrices(names: str) -> list[tuple[str, Callable[[], sp.csr_matrix]]]:
    """(name, its matrix); first the Jacobian of a power flow."""

    def power_flow() -> sp.csr_matrix:
        module = runpy.run_path(str(ROOT / "examples" / "power_flow.py"))
        grid = module["Grid"](250)
        x = np.concatenate([np.zeros((1, 249)), np.ones((1, 249))], axis=1)
        return finelu.Batch(grid.pattern, grid.jacobians(grid.powers(x)[1]))[0]

    found: list[tuple[str, Callable[[], sp.csr_matrix]]] = [(POWER_FLOW, power_flow)]
    for problem in suite(matrix_folder(), names_of(names), quick=False):
        found.append((problem.name, lambda problem=problem: matrix_of(problem)))
    return found


def timed(call: Callable[[], Any], gpu: bool) -> tuple[float, float, Any]:
    """ms of the first call; the median ms of the later calls; the last result."""
    times = []
    for _ in range(RUNS + 1):
        start = synchronized(gpu)
        found = call()
        times.append(1e3 * (synchronized(gpu) - start))
    return times[0], median(times[1:]), found


def residuals(S: sp.csr_matrix, values: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    found = np.empty(len(x))
    for s in range(len(x)):
        A = sp.csr_matrix((values[s], S.indices, S.indptr), shape=S.shape)
        found[s] = np.linalg.norm(b[s] - A @ x[s]) / np.linalg.norm(b[s])
    return found


def by_klu(S: sp.csr_matrix, values: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
    """x of the first systems, by the pivots of the first."""
    n = S.shape[0]
    solver = nbklu().KLUSolver(index_bits=32, singular_as_error=True)
    numbered = sp.csc_matrix(sp.csr_matrix((np.arange(1.0, S.nnz + 1), S.indices, S.indptr), shape=S.shape))
    numbered.sort_indices()
    order = numbered.data.astype(np.int64) - 1
    solver.analyze(n, numbered.indptr.astype(np.int32), numbered.indices.astype(np.int32))
    solver.factor(values[0, order])
    x = np.empty((count, n))
    for s in range(count):
        solver.refactor(values[s, order])
        x[s] = solver.solve(b[s])
    return x


def by_splu(S: sp.csr_matrix, values: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
    x = np.empty((count, S.shape[0]))
    for s in range(count):
        x[s] = splu(sp.csc_matrix(sp.csr_matrix((values[s], S.indices, S.indptr), shape=S.shape))).solve(b[s])
    return x


def by_solve(S: sp.csr_matrix, values: np.ndarray, b: np.ndarray, count: int, rtol: float) -> np.ndarray:
    x = np.empty((count, S.shape[0]))
    for s in range(count):
        A = sp.csr_matrix((values[s], S.indices, S.indptr), shape=S.shape)
        x[s] = finelu.solve(A, b[s], rtol, verbose=False).x
    return x


def measure(run: Run, name: str, S: sp.csr_matrix, systems: int, gpu: bool) -> None:
    rng = np.random.default_rng(SEED)
    values = S.data * (1 + CHANGE * rng.standard_normal((systems, S.nnz)))
    b = rng.uniform(-0.5, 0.5, (systems, S.shape[0]))
    count, place = min(SAMPLE, systems), "gpu" if gpu else "cpu"
    reached = residuals(S, values[:count], b, by_splu(S, values, b, count))
    rtol = RTOL[0] if np.median(reached) <= RTOL[0] else RTOL[1]
    run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "systems": systems, "rtol": rtol}
    if gpu:
        import cupy
        import cupyx.scipy.sparse as csp

        pattern, there, right = csp.csr_matrix(S), cupy.asarray(values), cupy.asarray(b)
    else:
        pattern, there, right = S, values, b

    def keep(variant: str, on_gpu: bool, call: Callable[[], Any], x_of: Callable[[Any], Any], times: float) -> None:
        with run.attempt(name, variant):
            first, ms, found = timed(call, on_gpu)
            x = x_of(found)
            errors = residuals(S, values, b, x)
            detail: dict[str, Any] = {
                "first": first * times,
                "within": int((errors <= 1.01 * rtol).sum()),
                "of": len(x),
            }
            if isinstance(found, finelu.BatchSolution):
                detail |= {"converged": int(found.converged.sum()), "iterations": int(found.iterations.sum())}
                detail["alone"] = sum(len(systems) for systems, _ in found.notes)
            where = "gpu" if on_gpu else "cpu"
            error = float(np.median(errors))
            run.records.append(Record(name, "systems", where, variant, variant, ms * times, None, error, detail=detail))

    whole = systems / count
    keep(
        BATCH,
        gpu,
        lambda: finelu.solve(finelu.Batch(pattern, there), right, rtol, verbose=False),
        lambda found: found.x.get() if gpu else found.x,
        1,
    )
    again = finelu.Batch(pattern, there)
    keep(
        UPDATED,
        gpu,
        lambda: finelu.solve(again.with_values(there), right, rtol, verbose=False),
        lambda found: found.x.get() if gpu else found.x,
        1,
    )
    if gpu and not cudss.library().missing:
        with run.attempt(name, CUDSS):
            keep(CUDSS, True, lambda: cudss_batch.solved(pattern, there, right), lambda x: x.get(), 1)
            kept = cudss_batch.UniformBatch(pattern, there, right, cudss.AMD)
            kept.run(cudss.ANALYSIS, cudss.FACTORIZATION)
            keep(REFACTORED, True, lambda: kept.run(cudss.REFACTORIZATION, cudss.SOLVE), lambda x: x.get(), 1)
            kept.close()
    keep(SPLU, False, lambda: by_splu(S, values, b, count), lambda x: x, whole)
    if nbklu() is not None:
        keep(KLU, False, lambda: by_klu(S, values, b, count), lambda x: x, whole)
    keep(SOLVE, False, lambda: by_solve(S, values, b, count, rtol), lambda x: x, whole)
    print(f"  {name} on the {place}: {ratios(run, name)}", flush=True)


def ms_of(run: Run, name: str, variant: str) -> float | None:
    found = run.one(matrix=name, variant=variant)
    return None if found is None else found.numeric_ms


def ratios(run: Run, name: str) -> dict[str, float]:
    """loop, or batch of cuDSS -> its time over that of the batch."""
    found = {}
    for variant in (CUDSS, REFACTORED, SPLU, KLU, SOLVE):
        ms, own = ms_of(run, name, variant), ms_of(run, name, AGAINST.get(variant, BATCH))
        if ms and own:
            found[variant] = round(ms / own, 2)
    return found


def claims(run: Run) -> str:
    lines = []
    for variant in (CUDSS, REFACTORED, SPLU, KLU, SOLVE):
        found = {name: r[variant] for name in run.matrices if variant in (r := ratios(run, name))}
        if found:
            worst = min(found, key=lambda name: found[name])
            shown = f"{mean(list(found.values())):.1f}"
            lines.append((variant, len(found), shown, f"{found[worst]:.1f} {worst}"))
    return table(("cuDSS, or a loop over ..., over the batch", "matrices", "mean", "least"), lines)


def page(run: Run) -> str:
    lines = []
    for name, facts in run.matrices.items():
        records = {v: run.one(matrix=name, variant=v) for v in VARIANTS}
        batch = records[BATCH]
        shown = [cell(None if r is None else r.numeric_ms) for r in records.values()]
        within = [
            f"{r.detail['within']} of {r.detail['of']}" if r else ""
            for r in (batch, records[CUDSS], records[SPLU], records[KLU])
        ]
        alone = "" if batch is None else batch.detail["alone"]
        size = facts["n"], facts["nnz"], facts["systems"], f"{facts['rtol']:g}"
        lines.append((name, *size, *shown, *within, alone))
    heads = ("matrix", "rows", "entries", "systems", "rtol", *VARIANTS)
    heads += ("Batch reaches rtol", "cuDSS reaches it", "splu reaches it", "KLU reaches it", "solved alone")
    return f"{run.heading()}\n{claims(run)}\n## All systems, ms\n\n{table(heads, lines)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.batch", description=__doc__)
    add_place(parser)
    add_budget(parser)
    add_device(parser, "the batch is on the GPU, the loops on the host", "all on the host")
    parser.add_argument("--systems", type=int, default=1000, help="of a batch (default: %(default)s)")
    parser.add_argument("--matrices", default=MATRICES, help="names with commas between them (default: %(default)s)")
    options = parser.parse_args(argv)
    gpu = wants_gpu(options)
    run = new_run("batch-gpu" if gpu else "batch-cpu", gpu=gpu, machine_name=options.machine)
    run.options = {"systems": options.systems, "threads": finelu.get_num_threads()}

    def one(name: str, read: Any) -> str:
        measure(run, name, read(), options.systems, gpu)
        return ""

    return carry_out(run, matrices(options.matrices), one, options, page, claims)


if __name__ == "__main__":
    command(main)
