"""Claim: under load finelu.solve loses at most 1.1 times what SciPy's splu loses, and on no system twice that.

Every system of 500 rows or more of a folder (FINELU_MATRICES, or ../shared/matrices), with the right-hand side of
`benchmarks.claims.solve`, is solved by `finelu.solve` with defaults and by splu with two settings, while the busy
processes are stopped, and while they run. Such a process computes without a pause; there are `--busy` for each core.
What a solver loses is its time with them over its time without them.

The runs of both states are interleaved: a round has one run of each solver in each state, in an order that differs from
round to round. A run is a series of calls that takes at least SERIES seconds: a scheduler gives turns of some
milliseconds, so that one call of a millisecond meets a wait or none by luck. Each call meets its pattern for the first
time. The first round only warms up. A system counts as solved as in `benchmarks.claims.regret`.

    python -m benchmarks.claims.busy [--busy 2] [--matrices memplus,fv2] [--seconds 6] [--budget 400] [--from RECORD]
    python -m benchmarks.claims.busy --without nbklu,feral,pypardiso  # SciPy's SuperLU alone
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import scipy.sparse as sp

import finelu
from benchmarks.claims.regret import chosen, once, serve, without_packages
from benchmarks.claims.regret_tables import spread
from benchmarks.claims.solve_tables import OURS
from benchmarks.harness.clock import Budget
from benchmarks.harness.options import add_options, add_source, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.systems import affordable, verdict, with_worker
from benchmarks.harness.table import mean, ratio, table
from benchmarks.harness.worker import SEED, Worker, busy_processes

SPLU = ("splu", "splu symmetric")
STATES = ("quiet", "busy")
SERIES, ROUNDS = 0.08, 5  # seconds that a run takes at least; rounds after the first one
CLAIMS = ("what", "bar", "by medians", "holds", "by minima")


# The measurement ------------------------------------------------------------------------------------------------------


def series(name: str, S: sp.csr_matrix, limit: float, extra: Any = None, *, gpu: bool = False) -> dict[str, Any]:
    """Calls of a solver, one after the other: the last result, with the mean of their seconds; or the first failure."""
    spent, calls = 0.0, 0
    while spent < SERIES:
        result = once(name, S, limit, gpu=gpu)
        if result["status"]:
            return result
        spent, calls = spent + result["seconds"], calls + 1
    return result | {"seconds": spent / calls, "calls": calls}


@contextmanager
def running(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """A block during which stopped processes run."""
    for process in processes:
        process.send_signal(signal.SIGCONT)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGSTOP)


def rounds(
    worker: Worker, path: Path, processes: Sequence[subprocess.Popen[bytes]], limit: float, seconds: float
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """(solver, state) -> the results of all runs, the first round included. A solver that fails does not run again.

    seconds : after which no further round begins, except the second.
    """
    budget, shuffled = Budget(seconds), random.Random(SEED)
    order = [(solver, state) for solver in (OURS, *SPLU) for state in STATES]
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for turn in range(ROUNDS + 1):
        if turn > 1 and budget.over():
            break
        for solver, state in order:
            with running(processes) if state == "busy" else nullcontext():
                results.setdefault((solver, state), []).append(worker.ask(path, solver, limit))
        failed = {solver for solver, state in order if results[solver, state][-1]["status"]}
        order = [(solver, state) for solver, state in order if solver not in failed]
        shuffled.shuffle(order)
    return results


def record_of(matrix: str, solver: str, of_state: dict[str, list[dict[str, Any]]], threads: int) -> Record:
    """The record of a solver: the median time of its runs without busy processes, and all times of both states."""
    failed = next((result for results in of_state.values() for result in results if result["status"]), None)
    record = Record(matrix, "solve", "cpu", "finelu" if solver == OURS else "scipy", solver, None)
    record.threads, record.detail = threads, {"status": failed["status"] if failed else ""}
    if failed is None:
        times = {state: [result["seconds"] for result in results[1:]] for state, results in of_state.items()}
        record.numeric_ms = 1e3 * median(times["quiet"])
        record.detail |= times | {f"tried, {state}": route(results[-1]) for state, results in of_state.items()}
    return record


def route(result: dict[str, Any]) -> list[list[Any]]:
    """The attempts of `finelu.solve` without their times."""
    return [[a["recipe"], a["method"], a["iterations"]] for a in result.get("tried", ())]


def measured(options: argparse.Namespace) -> Run:
    paths, cores = chosen(options), len(os.sched_getaffinity(0))
    run = new_run("busy", gpu=False, machine_name=options.machine)
    without = [name for name in options.without.split(",") if name]
    run.options = {"busy processes a core": options.busy, "threads": options.threads, "limit, seconds": options.limit}
    run.options |= {"seconds for a system": options.seconds, "without": ", ".join(without) or "-"}
    run.options |= {"load average before": round(os.getloadavg()[0], 1)}
    budget = Budget(options.budget)
    worker = Worker(options.threads, partial(serve, without=without, of=series))
    with without_packages(without, options.threads), busy_processes(options.busy * cores) as processes:
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        with with_worker(run, budget, worker):
            for name, path in affordable(run, budget, paths):
                measure_one(run, worker, name, path, processes, options)
                run.save(options.out)
                print(f"{budget.spent():5.0f} s  {name}: {in_words(run, name)}", flush=True)
    return run


def measure_one(
    run: Run, worker: Worker, name: str, path: Path, processes: Sequence[Any], options: argparse.Namespace
) -> None:
    S = finelu.read_matrix(path)
    run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"{name}.npz"  # a process that begins anew reads it sooner
        sp.save_npz(copy, S, compressed=False)
        results = rounds(worker, copy, processes, options.limit, options.seconds)
    for solver in (OURS, *SPLU):
        of_state = {state: results[solver, state] for state in STATES}
        run.records.append(record_of(name, solver, of_state, options.threads))


# Tables ---------------------------------------------------------------------------------------------------------------


def loss(run: Run, name: str, solver: str, of: Callable[[Sequence[float]], float] = median) -> float | None:
    """The time of a solver under load over that without; None where it does not solve the system."""
    found = run.one(matrix=name, variant=solver)
    return None if found is None or found.detail["status"] else of(found.detail["busy"]) / of(found.detail["quiet"])


def losses(run: Run, solver: str, of: Callable[[Sequence[float]], float] = median) -> dict[str, float]:
    """system -> what `finelu.solve` loses over what another solver loses, where both solve."""
    found = {name: ratio(loss(run, name, OURS, of), loss(run, name, solver, of)) for name in run.matrices}
    return {name: value for name, value in found.items() if value is not None}


def same_route(run: Run, name: str) -> bool | None:
    """Whether the attempts and their iterations are the same under load."""
    found = run.one(matrix=name, variant=OURS)
    known = found is not None and not found.detail["status"]
    return found.detail["tried, quiet"] == found.detail["tried, busy"] if known else None


def claims(run: Run) -> list[tuple[str, ...]]:
    """The lines of CLAIMS."""
    lines = []
    for solver in SPLU:
        by_median, by_least = losses(run, solver), losses(run, solver, min)
        holds = None if not by_median else (mean(by_median.values()) or 0) <= 1.1 and max(by_median.values()) < 2
        what = f"what {OURS} loses over what {solver} loses, geometric mean and largest"
        lines.append((what, "<= 1.1, < 2", spread(by_median, max), verdict(holds), spread(by_least, max)))
    routes = [known for name in run.matrices if (known := same_route(run, name)) is not None]
    what = "systems with the same attempts and iterations in both states"
    lines.append((what, "all", f"{sum(routes)} of {len(routes)}", verdict(all(routes) if routes else None), "-"))
    return lines


def in_words(run: Run, name: str) -> str:
    """The line of a system while the benchmark runs."""
    found = [(solver, loss(run, name, solver)) for solver in (OURS, *SPLU)]
    return ", ".join(f"{solver} " + ("not solved" if value is None else f"x{value:.2f}") for solver, value in found)


def system_table(run: Run) -> str:
    """A row for each system, the largest loss over that of splu first."""
    lines = []
    for name, facts in run.matrices.items():
        ours = run.one(matrix=name, variant=OURS)
        lost = [loss(run, name, solver) for solver in (OURS, *SPLU)]
        over = [ratio(lost[0], other) for other in lost[1:]]
        if lost[0] is not None and ours is not None:
            same = "yes" if same_route(run, name) else "no"
            lines.append((name, facts["n"], ours.numeric_ms, *lost, *over, same))
    header = ("system", "n", f"{OURS}, ms", "loses", *(f"{s} loses" for s in SPLU), *(f"over {s}" for s in SPLU))
    return table((*header, "same route"), sorted(lines, key=lambda line: -(line[6] or 0)))


def page(run: Run) -> str:
    text = run.heading()
    text += (
        f"\nTimes: medians of up to {ROUNDS} runs after the first, each the mean of a series of calls that takes "
        f"{SERIES:g} s or more; runs under load and without are interleaved. What a solver loses: its time while other "
        "processes are busy over its time while they are stopped.\n"
    )
    text += "\n## Claims\n\n" + table(CLAIMS, claims(run))
    text += "\n## Every system, the largest loss over that of splu first\n\n" + system_table(run)
    return text + run.footing()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.busy", description=__doc__)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for each call (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="for all runs of a system (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of every library (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=1, help="busy processes for each core (default: %(default)s)")
    parser.add_argument("--without", default="", help="packages that count as not installed, separated by commas")
    add_source(parser)
    add_options(parser)
    options = parser.parse_args(argv)
    run = Run.load(options.source) if options.source else measured(options)
    target = run.publish(options.out, page(run))
    print(table(CLAIMS, claims(run)), end="")
    print(f"{len(run.matrices)} systems; {target}")
    return 0


if __name__ == "__main__":
    command(main)
