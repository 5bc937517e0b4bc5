"""Claim: `finelu.solve` answers from 10^4 to 10^8 unknowns, where other solvers give up on the way.

A x = b on cubes of the seven-point Laplacian, b uniform in [-0.5, 0.5], from the matrix in memory to an x with
||b - A x|| <= 1e-8 ||b||, set-up included: by `finelu.solve` on the CPU and on a GPU, as called; by SciPy's `splu`
(MMD_AT_PLUS_A, symmetric mode); by PARDISO (pypardiso, a triangle, as for a symmetric definite matrix); by AMGCL and
pyamg at their faster setting (see benchmarks/claims/elliptic.py). Each solver and size is a process of its own, on
`--threads` threads: the first call warms up, and the median of the next ones counts. A solver gives up at a size if a
call takes longer than `--limit` seconds, or fails without memory; larger sizes are then left out.

    python -m benchmarks.claims.sizes --threads 2 --limit 60
    python -m benchmarks.claims.sizes --solvers "finelu, GPU" --sides 46,100,215,464 --limit 20
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import finelu
from benchmarks.claims import elliptic
from benchmarks.harness import ROOT
from benchmarks.harness.clock import Budget, synchronized
from benchmarks.harness.options import add_budget, add_place, add_source, command
from benchmarks.harness.record import Record, Run, RunEnded, new_run
from benchmarks.harness.table import cell, table
from benchmarks.peers import amgcl
from finelu.errors import ParameterError

CPU, GPU, SPLU, PARDISO, AMGCL, PYAMG = SOLVERS = ("finelu, CPU", "finelu, GPU", "SciPy", "PARDISO", "AMGCL", "pyamg")
SIDES = (22, 46, 100, 215, 294, 464)  # 10^4 to 10^8 unknowns
RTOL, SEED, CALLS = 1e-8, 0, 3
SET_UP, WARM = 300.0, 15.0  # seconds: of a process besides its calls; of a first call besides the limit, for kernels
SHARE = 0.9  # of the machine's memory that a process on the CPU may hold
MEMORY = "no memory"


def system(side: int) -> tuple[sp.csr_matrix, Any]:
    A = finelu.gallery.problem(f"poisson7:{side}")
    return A, np.random.default_rng(SEED).uniform(-0.5, 0.5, A.shape[0])


# The solvers: each takes A and b, and gives the function that a call of it is, which returns x -----------------------


def on_cpu(A: sp.csr_matrix, b: Any, threads: int) -> Callable[[], Any]:
    def call() -> Any:
        elliptic.RECENT.forget()  # nothing of the call before
        return finelu.solve(A, b, rtol=RTOL).x

    return call


def on_gpu(A: sp.csr_matrix, b: Any, threads: int) -> Callable[[], Any]:
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    there, right = csr_matrix(A), cupy.asarray(b)

    def call() -> Any:
        elliptic.RECENT.forget()
        return finelu.solve(there, right, rtol=RTOL).x

    return call


def by_splu(A: sp.csr_matrix, b: Any, threads: int) -> Callable[[], Any]:
    columns = A.T  # A is symmetric: its rows are its columns
    options = {"SymmetricMode": True}
    return lambda: spla.splu(columns, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options).solve(b)


def by_pardiso(A: sp.csr_matrix, b: Any, threads: int) -> Callable[[], Any]:
    import pypardiso

    upper = sp.csr_matrix(sp.triu(A))

    def call() -> Any:
        solver = pypardiso.PyPardisoSolver(mtype=2)
        x = solver.solve(upper, b)
        solver.free_memory(everything=True)
        return x

    return call


def by_elliptic(solvers: Sequence[Any]) -> Callable[[], Any]:
    """The faster of the settings of a multigrid library, found by the first call of each."""
    taken: list[Any] = []

    def call() -> Any:
        if taken:
            return taken[0].call(RTOL)[0]
        tried = []
        for solver in solvers:
            start = time.perf_counter()
            x, *_ = solver.call(RTOL)
            tried.append((time.perf_counter() - start, solver, x))
        _, best, x = min(tried, key=lambda found: found[0])
        taken.append(best)
        return x

    return call


def by_amgcl(A: sp.csr_matrix, b: Any, threads: int) -> Callable[[], Any]:
    return by_elliptic(elliptic.of_amgcl(amgcl.System(A, b, None, threads), True, None))


def by_pyamg(A: sp.csr_matrix, b: Any, threads: int) -> Callable[[], Any]:
    return by_elliptic(elliptic.of_pyamg(A, b, True, None, time.perf_counter))


CALL = dict(zip(SOLVERS, (on_cpu, on_gpu, by_splu, by_pardiso, by_amgcl, by_pyamg), strict=True))


# A process for each ---------------------------------------------------------------------------------------------------


def measured(who: str, side: int, threads: int, limit: float) -> dict[str, Any]:
    """In a process of its own: the times of the calls after the first, and the residual of the last x."""
    gpu = who == GPU
    if not gpu:
        room = int(SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
    finelu.set_num_threads(threads)
    A, b = system(side)
    call = CALL[who](A, b, threads)
    times, x = [], None
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also within a library
    for turn in range(CALLS + 1):
        signal.setitimer(signal.ITIMER_REAL, limit if turn else limit + WARM)
        start = synchronized(gpu)
        x = call()
        seconds = synchronized(gpu) - start
        if turn > 0 or seconds > limit:
            times.append(seconds)
        if turn > 0 and sum(times) + seconds > limit:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)
    x = x.get() if gpu else x
    return {"times": times, "residual": float(np.linalg.norm(b - A @ x) / np.linalg.norm(b))}


def in_a_process(who: str, side: int, threads: int, limit: float) -> dict[str, Any]:
    """What `measured` found; {"ended": why} if it found nothing."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "FINELU_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(threads))
    words = [sys.executable, "-m", "benchmarks.claims.sizes", "--one", json.dumps([who, side, threads, limit])]
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SET_UP + (CALLS + 1) * limit,
        )
    except subprocess.TimeoutExpired:
        return {"ended": f"more than {limit:g} s"}
    if done.returncode == -signal.SIGALRM:
        return {"ended": f"more than {limit:g} s"}
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"ended with {done.returncode}"]
        short = done.returncode == -9 or "Memory" in said[0] or "bad_alloc" in said[0] or "alloc" in said[0].lower()
        return {"ended": MEMORY if short else said[0][:100]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if not found["residual"] <= elliptic.ROUNDED * RTOL:
        found["ended"] = f"residual {found['residual']:.1e}"
    elif median(found["times"]) > limit:
        found["ended"] = f"more than {limit:g} s"
    return found


# The page -------------------------------------------------------------------------------------------------------------


def seconds(run: Run, who: str) -> dict[int, float]:
    """rows -> seconds, of a solver."""
    found = run.find(who=who)
    return {int(run.matrices[r.matrix]["n"]): r.numeric_ms / 1e3 for r in found if r.numeric_ms is not None}


def times(run: Run) -> str:
    present = [who for who in SOLVERS if run.find(who=who)]
    lines = []
    for name, facts in run.matrices.items():
        line: list[Any] = [f"{facts['n']:,}"]
        for who in present:
            r = run.one(matrix=name, who=who)
            line.append(None if r is None else r.numeric_ms / 1e3 if r.numeric_ms is not None else r.detail["ended"])
        lines.append(line)
    return table(("unknowns", *(f"{who}, s" for who in present)), lines)


def page(run: Run) -> str:
    return f"{run.heading()}\n{times(run)}" + run.footing()


def why_not(who: str) -> str:
    """Why a solver takes no part, in words; "" if it does."""
    if who == AMGCL:
        return amgcl.missing()
    needed = {GPU: "cupy", PARDISO: "pypardiso", PYAMG: "pyamg"}.get(who)
    if needed is None:
        return ""
    try:
        __import__(needed)
    except ImportError:
        return f"{needed} is not installed"
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.sizes", description=__doc__.splitlines()[0])
    add_place(parser)
    add_budget(parser)
    add_source(parser)
    parser.add_argument("--threads", type=int, default=finelu.get_num_threads(), help="(default: %(default)s)")
    parser.add_argument("--solvers", default=";".join(SOLVERS), help="with ; between them (default: %(default)s)")
    parser.add_argument("--sides", default=",".join(map(str, SIDES)), help="of the cubes (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a call (default: %(default)s)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(measured(*json.loads(options.one))))
        return 0
    if options.source:
        print(page(Run.load(options.source)))
        return 0
    wanted = options.solvers.split(";")
    if unknown := [who for who in wanted if who not in SOLVERS]:
        raise ParameterError(f"--solvers: there is no {', '.join(unknown)}; choose from {'; '.join(SOLVERS)}.")
    run = new_run("sizes", gpu=GPU in wanted and not why_not(GPU), machine_name=options.machine)
    run.options = {"threads": options.threads, "limit, seconds": options.limit}
    for who in [who for who in wanted if why_not(who)]:
        run.left_out[who] = why_not(who)
    left, budget, complete = [who for who in wanted if who not in run.left_out], Budget(options.budget), True
    try:
        for side in map(int, options.sides.split(",")):
            name = f"poisson7:{side}"
            run.matrices[name] = {"n": side**3, "nnz": 7 * side**3 - 6 * side**2}
            for who in list(left):
                if budget.over():
                    run.left_out[f"{name}, {who}"] = "the budget was spent"
                    continue
                found = in_a_process(who, side, options.threads, options.limit)
                ended = found.get("ended", "")
                ms = None if ended else 1e3 * median(found["times"])
                device, threads = ("gpu", 0) if who == GPU else ("cpu", options.threads)
                detail = {"ended": ended, "times": found.get("times", [])}
                error = found.get("residual", math.nan)
                run.records.append(
                    Record(name, "solution", device, who, "", ms, error=error, threads=threads, detail=detail)
                )
                if ended:
                    left.remove(who)
                run.save(options.out)
                print(f"{budget.spent():5.0f} s  {side**3:,}: {who} {ended or f'{cell(ms)} ms'}", flush=True)
    except (RunEnded, KeyboardInterrupt):
        complete = False
    path = run.publish(options.out, page(run))
    print(f"\n{times(run)}{path}")
    return 0 if complete else 1


if __name__ == "__main__":
    command(main)
