"""Claim: with factors of `ICNE`, `lsmr` takes a third of the iterations of `lsmr` alone on fixed effects, and a fifth
of the time of SciPy's.

    python -m benchmarks.claims.least_squares --budget 600       # on the CPU, 10^6 rows
    python -m benchmarks.claims.least_squares --rows 20000       # small ones
    python -m benchmarks.claims.least_squares --gpu              # A and b are on the GPU; SciPy on the host

Problems, all generated: two fixed effects of ROWS observations with ROWS / 10 workers and ROWS / 100 firms, in each row
two ones; the firm of an observation is random with a heavy tail, or moves at one in ten observations by at most 300
firms, or to the next one; the heights of a network by differences of weights from 0.1 to 10; tomography by random rays.
b = A x + noise. Every solver has atol = btol = 1e-8, no limit of the condition number, and at most MOST iterations: a
solver that needs more has a lower bound of its time. Times are those of one call after a small one, and include the
set-up of factors; the least of REPEATS calls for those of less than LONG seconds. "scaled" is SciPy's lsmr for the A
with columns of unit length, which its users can make. The error is ||A^T r|| / (||A||_F ||r||), computed apart.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import finelu
from benchmarks.harness.clock import Budget, synchronized
from benchmarks.harness.options import add_budget, add_place, command
from benchmarks.harness.record import Record, Run, RunEnded, new_run
from benchmarks.harness.table import cell, table

ROWS, SEED, TOL, MOST, REPEATS, LONG = 10**6, 0, 1e-8, 1000, 3, 10.0
PLAIN, WITH, LSTSQ, SCIPY, SCALED = "lsmr", "lsmr, ICNE", "lstsq", "SciPy", "SciPy, scaled"
SOLVERS = (PLAIN, WITH, LSTSQ, SCIPY, SCALED)
EFFECTS = "fixed effects"


def two_effects(worker: np.ndarray, firm: np.ndarray) -> sp.csr_matrix:
    """A row for each observation, with a one for its worker and one for its firm."""
    m, workers = worker.size, int(worker.max()) + 1
    columns = np.stack([worker, workers + firm], axis=1).ravel()
    return sp.csr_matrix((np.ones(2 * m), columns, np.arange(0, 2 * m + 1, 2)))


def random_effects(rows: int) -> sp.csr_matrix:
    rng, firms = np.random.default_rng(SEED), rows // 100
    weights = rng.pareto(1.0, firms) + 1
    return two_effects(rng.integers(0, rows // 10, rows), rng.choice(firms, rows, p=weights / weights.sum()))


def moving_effects(rows: int, farthest: int) -> sp.csr_matrix:
    """Ten observations of each worker, who moves after one in ten by at most `farthest` firms."""
    rng, firms, workers = np.random.default_rng(SEED), rows // 100, rows // 10
    moves = (rng.random((workers, 10)) < 0.1) * rng.integers(-farthest, farthest + 1, (workers, 10))
    firm = (np.arange(workers) * firms // workers)[:, None] + np.cumsum(moves, axis=1)
    return two_effects(np.repeat(np.arange(workers), 10), np.clip(firm, 0, firms - 1).ravel())


def network(rows: int) -> sp.csr_matrix:
    """Differences of heights between neighbours of a square grid, with weights, and one height."""
    n = max(int(math.sqrt(rows / 2)), 3)
    T = sp.diags([-1.0, 1.0], [0, 1], shape=(n - 1, n))
    G = sp.vstack([sp.kron(T, sp.identity(n)), sp.kron(sp.identity(n), T)])
    W = sp.diags(10 ** np.random.default_rng(SEED).uniform(-1, 1, G.shape[0]))
    return sp.csr_matrix(sp.vstack([W @ G, sp.csr_matrix(([1.0], ([0], [0])), shape=(1, n * n))]))


def tomography(rows: int) -> sp.csr_matrix:
    """The lengths of random rays in the cells of a square, about twice as many rays as cells."""
    rng, m = np.random.default_rng(SEED), max(rows // 100, 50)
    n = max(int(math.sqrt(m / 2)), 3)
    t = np.linspace(-1.5 * n, 1.5 * n, 8 * n)
    lines = []
    for _ in range(m):
        (x, y), angle = rng.random(2) * n, rng.random() * np.pi
        cells = np.floor(np.stack([x + t * np.cos(angle), y + t * np.sin(angle)])).astype(int)
        inside = cells[:, ((cells >= 0) & (cells < n)).all(axis=0)]
        cell, times = np.unique(inside[0] * n + inside[1], return_counts=True)
        lines.append(sp.csr_matrix((times * (t[1] - t[0]), ([0] * cell.size, cell)), shape=(1, n * n)))
    return sp.csr_matrix(sp.vstack(lines))


PROBLEMS: dict[str, Callable[[int], sp.csr_matrix]] = {
    f"{EFFECTS}, random": random_effects,
    f"{EFFECTS}, moves of 300 firms": lambda rows: moving_effects(rows, 300),
    f"{EFFECTS}, moves of 1 firm": lambda rows: moving_effects(rows, 1),
    "network": lambda rows: network(rows // 5),
    "tomography": tomography,
}


def solvers(A: Any, b: Any, on_host: sp.csr_matrix, right: np.ndarray) -> dict[str, Callable[[], tuple[Any, int]]]:
    """name -> a call that returns x and the number of iterations."""

    def own(M: Any = None) -> tuple[Any, int]:
        found = finelu.lsmr(A, b, M=M, atol=TOL, btol=TOL, conlim=0, maxiter=MOST)
        return found.x, found.iterations

    def lstsq() -> tuple[Any, int]:
        found = finelu.lstsq(A, b, rtol=TOL, minimum_norm=False)
        return found.x, found.iterations

    def scipy() -> tuple[Any, int]:
        x, _, iterations, *_ = spla.lsmr(on_host, right, atol=TOL, btol=TOL, conlim=0, maxiter=MOST)
        return x, iterations

    def scaled() -> tuple[Any, int]:
        sizes = np.sqrt(np.bincount(on_host.indices, on_host.data**2, on_host.shape[1]))
        d = 1 / np.where(sizes > 0, sizes, 1)
        S = sp.csr_matrix((on_host.data * d[on_host.indices], on_host.indices, on_host.indptr), shape=on_host.shape)
        x, _, iterations, *_ = spla.lsmr(S, right, atol=TOL, btol=TOL, conlim=0, maxiter=MOST)
        return d * x, iterations

    return {PLAIN: own, WITH: lambda: own(finelu.ICNE().factor(A)), LSTSQ: lstsq, SCIPY: scipy, SCALED: scaled}


def measure(run: Run, name: str, S: sp.csr_matrix, gpu: bool) -> None:
    rng = np.random.default_rng(SEED)
    right = S @ rng.standard_normal(S.shape[1]) + rng.standard_normal(S.shape[0])
    A, b = S, right
    if gpu:
        import cupy
        import cupyx.scipy.sparse as csp

        A, b = csp.csr_matrix(S), cupy.asarray(right)
    for variant, solve in solvers(A, b, S, right).items():
        with run.attempt(name, variant):
            times, found = [], None
            while found is None or (len(times) < REPEATS and times[0] < LONG):
                start = synchronized(gpu)
                found = solve()
                times.append(synchronized(gpu) - start)
            x, iterations = found
            x = x.get() if gpu and variant not in (SCIPY, SCALED) else x
            r = right - S @ x
            error = float(np.linalg.norm(S.T @ r) / (spla.norm(S) * np.linalg.norm(r)))
            who, place = ("scipy", "cpu") if variant in (SCIPY, SCALED) else ("finelu", "gpu" if gpu else "cpu")
            detail = {"iterations": int(iterations), "seconds": times, "ended": iterations < MOST}
            run.records.append(Record(name, "lsmr", place, who, variant, 1e3 * min(times), None, error, detail=detail))


def page(run: Run) -> str:
    lines = []
    for name, facts in run.matrices.items():
        found = {v: run.one(matrix=name, variant=v) for v in SOLVERS}
        shown = [
            f"{'' if r.detail['ended'] else '>'}{cell(1e-3 * (r.numeric_ms or 0.0))} ({r.detail['iterations']})"
            if r
            else ""
            for r in found.values()
        ]
        own, plain, scipy = found[WITH], found[PLAIN], found[SCIPY]
        gains = ["", ""]
        if own and plain and scipy:
            gains[0] = cell(plain.detail["iterations"] / max(own.detail["iterations"], 1))
            gains[1] = cell((scipy.numeric_ms or 0.0) / (own.numeric_ms or 1.0))
        errors = ", ".join(f"{r.error:.0e}" for r in found.values() if r and r.error is not None)
        lines.append((name, facts["m"], facts["n"], *shown, *gains, errors))
    heads = (
        "problem",
        "rows",
        "columns",
        *SOLVERS,
        "iterations of lsmr over with ICNE",
        "time of SciPy's over with ICNE",
    )
    head = f"{run.heading()}\n## Seconds (iterations); `>`: not converged after {MOST}\n\n"
    return f"{head}{table((*heads, 'errors'), lines)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.least_squares", description=__doc__)
    add_place(parser)
    add_budget(parser)
    parser.add_argument("--gpu", action="store_true", help="A and b are on the GPU")
    parser.add_argument("--rows", type=int, default=ROWS, help="observations (default: %(default)s)")
    options = parser.parse_args(argv)
    name = "least-squares-gpu" if options.gpu else "least-squares-cpu"
    run = new_run(name, gpu=options.gpu, machine_name=options.machine)
    run.options = {"rows": options.rows, "threads": finelu.get_num_threads()}
    budget, complete = Budget(options.budget), True
    try:
        warm = Run("warm", run.machine, run.date)
        measure(warm, "warm", random_effects(2000), options.gpu)  # kernels are compiled, or loaded
        for problem, make in PROBLEMS.items():
            if budget.over():
                run.left_out[problem] = "the budget was spent"
                continue
            S = make(options.rows)
            run.matrices[problem] = {"m": S.shape[0], "n": S.shape[1], "nnz": S.nnz}
            measure(run, problem, S, options.gpu)
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {problem}", flush=True)
    except (RunEnded, KeyboardInterrupt):
        complete = False
    path = run.publish(options.out, page(run))
    print(f"{page(run)}{len(run.failures)} failures; {path}")
    return 0 if complete else 1


if __name__ == "__main__":
    command(main)
