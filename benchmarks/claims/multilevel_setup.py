"""Claim: on a GPU the set-up of MultilevelILU takes less than a second and a half for meshes of a million rows; on two
threads at most 5 times as long as ilupp's, on the ten matrices of BOTH, which both solve.

As called: `MultilevelILU(form=...).factor(A)` for an A on the device, from the call to the end of its queued work,
kernels compiled; then GMRES(50) with b = A x, x uniform in [-0.5, 0.5], to 1e-8 in at most 500 iterations. On a GPU
both forms, independent sets there and Crout's on the processor of the same machine; on the CPU Crout's alone,
with `--matrices both` compared with ilupp's `ILUppPreconditioner(A)`, its defaults, in turns in one process.

    python -m benchmarks.claims.multilevel_setup [--cpu [--threads 2]] [--matrices poisson7:100,cage11 | both]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import finelu
from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import Budget
from benchmarks.harness.options import add_device, add_options, add_source, command, wants_gpu
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import Problem, names_of, suite
from benchmarks.harness.table import mean, ratio, smallest, table
from benchmarks.peers.solvers import ilupp_multilevel, int32_csr
from finelu.device import synchronize, to_host

INDEPENDENT, CROUT, ILUPP = "independent", "crout", "ilupp"
RTOL, RESTART, MAXITER = 1e-8, 50, 500
CALLS, ENOUGH = 3, 4.0  # set-ups at most, and seconds after which there is no further one
TURNS, LONG = 15, 20.0  # the same of turns of both packages
BOTH = (
    "Trefethen_20000",
    "cage10",
    "cage11",
    "memplus",
    "of_airfoil_nuTilda",
    "of_pitzDaily_U",
    "of_pitzDaily_eps",
    "trilinos_xpetra_A13366",
    "poisson27:60",
    "poisson7:100",
)
FIRST = ("poisson7:100", "poisson27:60", "poisson5:1000,1000")


def timed(call: Any, like: Any) -> tuple[float, Any]:
    """Seconds until all that the call has queued on the device of `like` has ended, and its result."""
    synchronize(like)
    begin = time.perf_counter()
    made = call()
    synchronize(like)
    return time.perf_counter() - begin, made


def measure(run: Run, problem: Problem, gpu: bool) -> None:
    """Both forms on one matrix."""
    S = problem.read()
    b = S @ np.random.default_rng(0).uniform(-0.5, 0.5, S.shape[0])
    run.matrices[problem.name] = {"n": S.shape[0], "nnz": S.nnz}
    A, right = S, b
    if gpu:
        import cupy
        import cupyx.scipy.sparse as csp

        A, right = csp.csr_matrix(S), cupy.asarray(b)
    for form in (INDEPENDENT, CROUT) if gpu else (CROUT,):
        with run.attempt(problem.name, form):
            seconds: list[float] = []
            F: Any = None
            while not seconds or (len(seconds) < CALLS and sum(seconds) < ENOUGH):
                F = None
                taken, F = timed(lambda form=form: finelu.MultilevelILU(form=form).factor(A), right)  # type: ignore[misc]
                seconds.append(taken)

            def solve(F: Any = F) -> Any:
                return finelu.gmres(A, right, M=F, rtol=RTOL, restart=RESTART, maxiter=MAXITER)

            solve()
            taken, solution = timed(solve, right)
            error = float(np.linalg.norm(b - S @ to_host(solution.x)) / np.linalg.norm(b))
            record = Record(problem.name, "setup", "gpu" if gpu else "cpu", "finelu", form, 1e3 * taken, error=error)
            record.analysis_ms, report = 1e3 * min(seconds), F.report
            record.threads = 0 if gpu else run.options["threads"]
            record.detail = {
                "iterations": solution.iterations,
                "solved": error <= 2 * RTOL,
                "seconds": seconds,
                "levels": [(level["n"], level.get("steps", 0)) for level in report.levels],
                **{name: report[name] for name in ("fill", "trial_residual", "drop_tol", "kind")},
            }
            run.records.append(record)
    if gpu:
        release_gpu()


def measure_both(run: Run, problem: Problem) -> None:
    """Crout's form and ilupp's multilevel ILU, in turns: the least seconds of the clock, and of the CPU."""
    S = problem.read()
    b, A = S @ np.random.default_rng(0).uniform(-0.5, 0.5, S.shape[0]), int32_csr(S)
    run.matrices[problem.name] = {"n": S.shape[0], "nnz": S.nnz}
    calls: dict[str, Any] = {
        CROUT: lambda: finelu.MultilevelILU().factor(S),
        ILUPP: lambda: ilupp_multilevel(A, None),
    }
    with run.attempt(problem.name, "ilupp and finelu"):
        made = {name: call() for name, call in calls.items()}
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        begin = time.perf_counter()
        while len(seconds[ILUPP]) < TURNS and time.perf_counter() - begin < LONG:
            for name, call in calls.items():
                made[name], busy = None, time.process_time()
                taken, made[name] = timed(call, b)
                seconds[name].append((taken, time.process_time() - busy))
        for name, M in made.items():
            solution = finelu.gmres(S, b, M=M, rtol=RTOL, restart=RESTART, maxiter=MAXITER)
            error = float(np.linalg.norm(b - S @ solution.x) / np.linalg.norm(b))
            record = Record(problem.name, "setup", "cpu", "ilupp" if name == ILUPP else "finelu", name, None)
            record.analysis_ms, record.error = 1e3 * min(clock for clock, _ in seconds[name]), error
            record.threads = run.options["threads"]
            record.detail = {
                "iterations": solution.iterations,
                "solved": error <= 2 * RTOL,
                "seconds": seconds[name],
                "busy": min(busy for _, busy in seconds[name]),
                "fill": M.total_nnz / S.nnz if name == ILUPP else M.report["fill"],
            }
            run.records.append(record)


def page_of_both(run: Run) -> str:
    """The table of finelu and ilupp."""
    lines, clocks, busy = [], [], []
    for name, facts in run.matrices.items():
        ours, other = (run.one(matrix=name, variant=form) for form in (CROUT, ILUPP))
        if not (ours and other):
            continue
        cells: list[Any] = [name, facts["n"]]
        for r in (ours, other):
            its = r.detail["iterations"] if r.detail["solved"] else "not solved"
            cells += [r.analysis_ms, 1e3 * r.detail["busy"], its, r.detail["fill"]]
        gains = ratio(ours.analysis_ms, other.analysis_ms), ratio(ours.detail["busy"], other.detail["busy"])
        if ours.detail["solved"] and other.detail["solved"]:
            clocks.append(gains[0])
            busy.append(gains[1])
        lines.append([*cells, *gains])
    header = ["matrix", "rows"]
    header += [f"{who}: {what}" for who in ("finelu", "ilupp") for what in ("clock, ms", "CPU, ms", "its", "fill")]
    text = f"# The set-up of MultilevelILU and of ilupp, {run.machine['name']}, {run.date}\n\n"
    text += (
        f"- {run.machine.get('cpu', '')}; {run.options['threads']} threads; commit {run.machine.get('commit', '?')}\n"
    )
    text += f"- the least of up to {TURNS} turns of both, in one process; CPU: of all threads together\n\n"
    text += table([*header, "times, clock", "times, CPU"], lines)
    if clocks:
        text += (
            f"\nOf {len(clocks)} matrices that both solve, geometric means: finelu's set-up takes {mean(clocks):.2f} "
            f"times as long as ilupp's by the clock (worst {max(clocks):.2f}), {mean(busy):.2f} times by the CPU "
            f"(worst {max(busy):.2f}).\n"
        )
    return text + "".join(f"\n{failure}" for failure in run.failures)


def page(run: Run) -> str:
    """The tables of a run."""
    if any(record.variant == ILUPP for record in run.records):
        return page_of_both(run)
    lines, gains, solves = [], [], []
    for name, facts in run.matrices.items():
        ours, other = (run.one(matrix=name, variant=form) for form in (INDEPENDENT, CROUT))
        gain, faster = None, None
        if ours and other and ours.detail["solved"] and other.detail["solved"]:
            gain, faster = ratio(other.analysis_ms, ours.analysis_ms), ratio(other.numeric_ms, ours.numeric_ms)
            gains.append(gain)
            solves.append(faster)
        cells: list[Any] = [name, facts["n"]]
        for r in (ours, other):
            cells += [
                r and r.analysis_ms and r.analysis_ms / 1e3,
                r and r.numeric_ms,
                (r.detail["iterations"] if r.detail["solved"] else "not solved") if r else None,
                r and r.detail["fill"],
            ]
        lines.append([*cells, gain, faster])
    header = ["matrix", "rows"]
    header += [f"{form}: {what}" for form in (INDEPENDENT, CROUT) for what in ("set-up, s", "GMRES, ms", "its", "fill")]
    where = run.machine.get("gpu", run.machine.get("cpu", ""))
    said = (__doc__ or "").partition("\n")[2].strip()
    text = f"# The set-up of MultilevelILU, {run.machine['name']}, {run.date}\n\n{said}\n\n"
    text += f"- {where}; {run.machine.get('cores', '?')} cores; commit {run.machine.get('commit', '?')}\n"
    text += f"- set-up: the least of up to {CALLS} calls; fill: entries kept over those of A\n\n"
    text += table([*header, "set-up, times", "GMRES, times"], lines)
    if gains:
        text += (
            f"\nOf {len(gains)} matrices that both solve, geometric means: the set-up by independent sets is "
            f"{mean(gains):.2f} times as fast as Crout's (worst {smallest(gains):.2f}), GMRES with it "
            f"{mean(solves):.2f} times (worst {smallest(solves):.2f}).\n"
        )
    return text + "".join(f"\n{failure}" for failure in run.failures)


def measured(options: argparse.Namespace) -> Run:
    both = options.matrices == "both"
    gpu = wants_gpu(options) and not both
    run = new_run("multilevel-setup", gpu=gpu, machine_name=options.machine)
    if options.threads:
        finelu.set_num_threads(options.threads)
    run.options = {"threads": finelu.get_num_threads()}
    names, budget = list(BOTH) if both else names_of(options.matrices), Budget(options.budget)
    problems = suite(options.matrix_folder, names, quick=options.quick)
    if not names and not options.quick:
        problems = [Problem(name) for name in FIRST] + [p for p in problems if p.path]
    measure(Run("", {}, "", run.options), Problem("poisson5:40,40"), gpu)
    for problem in problems:
        if budget.over():
            run.left_out[problem.name] = "the budget was spent"
            continue
        if both:
            measure_both(run, problem)
        else:
            measure(run, problem, gpu)
        run.save(options.out)
        print(f"{budget.spent():5.0f} s  {problem.name}", flush=True)
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.multilevel_setup", description=__doc__)
    add_device(parser, "both forms", "Crout's form")
    add_source(parser)
    parser.add_argument("--threads", type=int, default=0, help="on the CPU (default: all)")
    add_options(parser)
    options = parser.parse_args(argv)
    run = Run.load(options.source) if options.source else measured(options)
    target = run.publish(options.out, page(run))
    print(f"{page(run)}\n{len(run.matrices)} matrices, {len(run.failures)} failures; {target}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    command(main)
