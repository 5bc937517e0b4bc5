"""Claim: `solve` on a GPU is never slower than on the CPU of the same machine, and twice as fast in the mean.

`python -m benchmarks.claims.solve_gpu` solves A x = b to 1e-8 by finelu.solve with defaults, b uniform in [-0.5, 0.5],
A and b on the GPU, and then both on the host: matrices of 5000 rows or more of a folder (FINELU_MATRICES, or
../shared/matrices), whatever their diagonals, and the gallery's. The first call, which compiles, is not counted; then
the median of up to five is, from an idle device to an idle device. ||b - A x|| / ||b|| is computed apart, on the host.
--peers adds cudss: cuDSS alone, where it is installed (`SparseLU(backend="cudss")`, plan included, and one solve);
splu: SciPy's with its better ordering, up to --limit entries; spilu: CuPy's spilu(fill_factor=1) with its gmres. Each
is stopped after --longest seconds, which counts as a failure; splu and spilu run apart. `--peers cudss splu` adds two.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import synchronized
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_options, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import GALLERY, Problem, files, matrix_folder, names_of, rows, suite
from benchmarks.harness.table import cell, mean, table
from benchmarks.peers import PeerError, cupy_spilu
from benchmarks.peers.solvers import scipy_splu
from finelu.preconditioners.direct import cudss

RTOL, SEED, LONGEST, SMALLEST, LARGE = 1e-8, 0, 20.0, 5000, 100_000
TWICE = 2 * RTOL  # what ||b - A x|| may be, formed with other roundings
ENOUGH, MOST = 1.0, 5  # seconds after which a call is not repeated; calls
LIMIT = 2_000_000  # entries up to which splu is tried
GPU, CPU, CUDSS, SPLU, SPILU = "solve, GPU", "solve, CPU", "cuDSS", "splu", "CuPy's spilu"
PEERS = "cudss", "splu", "spilu"
SPLU_SETTINGS: tuple[dict[str, Any], ...] = ({}, {"permc_spec": "MMD_AT_PLUS_A", "options": {"SymmetricMode": True}})
STARTS = 60.0  # seconds that a process may take until it begins


def problems(options: argparse.Namespace) -> list[Problem]:
    names = names_of(options.matrices)
    if names or options.quick:
        return suite(options.matrix_folder, names, quick=options.quick)
    real = files(options.matrix_folder or matrix_folder()).items()
    return [Problem(name, path) for name, path in real if rows(path) >= SMALLEST] + [Problem(name) for name in GALLERY]


def matrix_of(problem: Problem) -> sp.csr_matrix:
    """The matrix in double precision, real or complex, whatever its diagonal."""
    S = problem.read()
    S = S.astype(np.complex128 if S.dtype.kind == "c" else np.float64)
    S.sum_duplicates()
    return S


def timed(call: Callable[[], Any], gpu: bool) -> tuple[float, float, Any]:
    """ms of the first call; the median ms of the later calls; the result of the last."""
    times: list[float] = []
    while len(times) <= MOST and sum(times[1:]) < ENOUGH:
        start = synchronized(gpu)
        found = call()
        times.append(synchronized(gpu) - start)
    return 1e3 * times[0], 1e3 * median(times[1:]), found


def measure(run: Run, problem: Problem, S: sp.csr_matrix, longest: float, limit: int, peers: Sequence[str]) -> None:
    import cupy
    import cupyx.scipy.sparse as csp

    b = np.random.default_rng(SEED).uniform(-0.5, 0.5, S.shape[0]).astype(S.dtype)
    on_gpu = csp.csr_matrix(tuple(cupy.asarray(v) for v in (S.data, S.indices, S.indptr)), shape=S.shape)
    b_on_gpu, name = cupy.asarray(b), problem.name

    def keep(variant: str, call: Callable[[], Any], gpu: bool, x_of: Callable[[Any], Any]) -> None:
        with run.attempt(name, variant):
            first, ms, found = timed(call, gpu)
            x = x_of(found)
            residual = float(np.linalg.norm(b - S @ (x.get() if gpu else x)) / np.linalg.norm(b))
            detail: dict[str, Any] = {"first": first}
            if isinstance(found, finelu.Solution):
                detail |= {
                    "converged": bool(found.converged),
                    "status": found.status.name,
                    "iterations": found.iterations,
                    "method": found.method,
                    "recipes": [a.recipe.partition("(")[0] for a in found.attempts],
                    "seconds": [(a.setup_seconds, a.seconds) for a in found.attempts],
                }
            place = "gpu" if gpu else "cpu"
            run.records.append(Record(name, "solution", place, variant, variant, ms, None, residual, detail=detail))

    def solution(A: Any, v: Any) -> Callable[[], Any]:
        return lambda: finelu.solve(A, v, RTOL, time_limit=longest, verbose=False)

    def by_cudss() -> Any:
        with ended_after(longest):
            return finelu.SparseLU(backend="cudss").factor(on_gpu).solve(b_on_gpu)

    keep(GPU, solution(on_gpu, b_on_gpu), True, lambda found: found.x)
    keep(CPU, solution(S, b), False, lambda found: found.x)
    if "cudss" in peers and not cudss.missing():
        keep(CUDSS, by_cudss, True, lambda x: x)
    if "splu" in peers and S.nnz <= limit:
        with run.attempt(name, SPLU):
            found = [splu_apart(S, b, longest, settings) for settings in SPLU_SETTINGS]
            if not any(found):
                raise PeerError(f"stopped after {longest:.3g} s")
            seconds, x = min((f for f in found if f is not None), key=lambda f: f[0])
            residual = float(np.linalg.norm(b - S @ x) / np.linalg.norm(b))
            run.records.append(Record(name, "solution", "cpu", SPLU, SPLU, 1e3 * seconds, None, residual))
    if "spilu" in peers:
        with run.attempt(name, SPILU):
            found = cupy_spilu.run_apart(problem, longest)
            residual = found.get("relative_residual") if found.get("converged") else None
            run.records.append(Record(name, "solution", "gpu", SPILU, SPILU, found["ms"], None, residual))


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """An error in the main thread once the block has taken that long."""

    def end(*_: Any) -> None:
        raise PeerError(f"stopped after {seconds:.3g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def splu_apart(S: sp.csr_matrix, b: np.ndarray, longest: float, settings: dict[str, Any]) -> tuple[float, Any] | None:
    """(seconds, x) of SciPy's splu in a process of its own, as nothing else ends it; None where it took too long."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_splu, args=(S, b, settings, theirs), daemon=True)
    child.start()
    try:
        return ours.recv() if ours.poll(STARTS) and ours.recv() and ours.poll(longest) else None
    except EOFError:
        raise PeerError("splu ended without an answer") from None
    finally:
        child.kill()
        child.join()


def _splu(S: sp.csr_matrix, b: np.ndarray, settings: dict[str, Any], pipe: Any) -> None:
    pipe.send(True)
    start = perf_counter()
    x = scipy_splu(S, b, 0.0, **settings)["x"]
    pipe.send((perf_counter() - start, x))


def total(run: Run, name: str, variant: str) -> float | None:
    """ms, None where the residual is above the requested one."""
    r = run.one(matrix=name, variant=variant)
    right = r is not None and r.error is not None and r.error <= TWICE and r.detail.get("converged", True)
    return r.numeric_ms if r is not None and right else None


def ratios(run: Run, others: Sequence[str], names: Sequence[str]) -> list[tuple[float, str]]:
    """(the best of the others over `solve` on the GPU, matrix), least first; 0 where only that fails."""
    found = []
    for name in names:
        mine, theirs = total(run, name, GPU), [t for v in others if (t := total(run, name, v)) is not None]
        if theirs and any(run.one(matrix=name, variant=v) for v in others):
            found.append((min(theirs) / mine if mine else 0.0, name))
    return sorted(found)


def claims(run: Run) -> str:
    names, lines = list(run.matrices), []
    large = [name for name in names if run.matrices[name]["n"] >= LARGE]
    for what, others, chosen in (
        ("solve on the CPU, all matrices", (CPU,), names),
        (f"solve on the CPU, {LARGE} rows or more", (CPU,), large),
        ("the best of cuDSS, spilu and splu", (CUDSS, SPILU, SPLU), names),
    ):
        found = ratios(run, others, chosen)
        both = [r for r, _ in found if r > 0]
        if both:
            low = sum(r < 0.9 for r, _ in found)
            lines.append((what, len(found), f"{mean(both):.2f}", low, f"{found[0][0]:.2f} {found[0][1]}"))
    solved = [sum(total(run, name, v) is not None for name in names) for v in (GPU, CPU)]
    false = [r.matrix for r in run.records if r.detail.get("converged") and not (r.error or 0.0) <= TWICE]
    heads = ("solve on the GPU against", "matrices", "mean ratio", "below 0.9", "worst")
    solved_by = f"Solved of {len(names)}: {solved[0]} on the GPU, {solved[1]} on the CPU."
    return f"{table(heads, lines)}\n{solved_by} Claims that are false: {', '.join(false) or 'none'}.\n"


def times(run: Run) -> str:
    lines = []
    for name, facts in run.matrices.items():
        gpu, cpu = (run.one(matrix=name, variant=v) for v in (GPU, CPU))
        both = total(run, name, GPU), total(run, name, CPU)
        lines.append(
            (
                *(name, facts["n"], facts["nnz"], cell(gpu and gpu.detail["first"]), cell(both[0]), cell(both[1])),
                f"{both[1] / both[0]:.2f}" if both[0] and both[1] else "",
                *(cell(total(run, name, v)) for v in (CUDSS, SPLU, SPILU)),
                *(_way(r) for r in (gpu, cpu)),
            )
        )
    heads = (
        "matrix",
        "rows",
        "entries",
        "first call",
        GPU,
        CPU,
        "ratio",
        CUDSS,
        SPLU,
        SPILU,
        "on the GPU",
        "on the CPU",
    )
    return table(heads, lines)


def _way(r: Record | None) -> str:
    if r is None:
        return "failed"
    d = r.detail
    return f"{' > '.join(d['recipes'])}: {d['method']}, {d['iterations']}, {d['status']}"


def page(run: Run) -> str:
    return f"{run.heading()}\n{claims(run)}\n## Times, ms\n\n{times(run)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.solve_gpu", description=__doc__)
    add_options(parser)
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds of a solve (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=LIMIT, help="entries up to which splu runs (default: %(default)s)")
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="other libraries too (default of the option: all)")
    options = parser.parse_args(argv)
    peers = () if options.peers is None else options.peers or PEERS
    run = new_run("solve-gpu", gpu=True, machine_name=options.machine)
    run.options = {"longest": options.longest, "threads": finelu.get_num_threads(), "peers": list(peers)}

    def one(name: str, problem: Any) -> str:
        S = matrix_of(problem)
        run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz}
        measure(run, problem, S, options.longest, options.limit, peers)
        release_gpu()
        return " ".join(cell(total(run, name, v)) for v in (GPU, CPU))

    return carry_out(run, ((problem.name, problem) for problem in problems(options)), one, options, page, claims)


if __name__ == "__main__":
    command(main)
