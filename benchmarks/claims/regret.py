"""Claim: finelu.solve takes at most 1.2 times the time of the best of its own rungs, and on no system twice that.

Every system of 500 rows or more of a folder (FINELU_MATRICES, or ../shared/matrices), with the right-hand side of
`benchmarks.claims.solve`, is solved by `finelu.solve` with defaults, by each of its rungs alone, and by the other
solvers of that benchmark. A rung alone is `finelu.solve` with a table that holds this rung only, so that it includes
the checks of A and the tests of x: each recipe that the table of `finelu.auto.choose` has for the CPU, with the method
that it gets there, and with gmres where that is bicgstab; and each installed library of direct solves with each of its
orderings. The regret of `solve` is its time over the least time of its rungs.

A system counts as solved if ||b - A x||_2 <= 1e-8 ||b||_2, and if x also passes finelu's test by rows where that is
made. Runs are interleaved: a round calls each solver once, in an order that differs from round to round. The first
round only warms up, except for solvers that are far from the best. A solver is stopped after LATE times the least time
so far: the record then holds a lower bound of its time.

    python -m benchmarks.claims.regret [--matrices memplus,fv2] [--limit 10] [--seconds 20] [--from RECORD]
    python -m benchmarks.claims.regret --quick                 # a minute
    python -m benchmarks.claims.regret --budget 1500           # 25 minutes on two cores
    python -m benchmarks.claims.regret --budget 1500 --without nbklu,feral,pypardiso  # SciPy's SuperLU alone
    python -m benchmarks.claims.regret --gpu --threads 16 --seconds 3 --budget 100    # two minutes on an H100

With --gpu A and b are on the GPU before the clock starts, x is on the host when it ends, the rungs are those that stay
on the GPU, with one recipe for all complete factors, and `solve` on the CPU of the same machine is the only other one.

The record holds the time of each run, on the clock and of the processor, and the features of each matrix, so that
`regret_tables.regret(rule, run)` gives the regret of any other rule without a measurement.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims import solve
from benchmarks.claims.regret_tables import CLAIMS, ON_CPU, claims, in_words, page
from benchmarks.claims.solve_tables import OURS
from benchmarks.harness.clock import Budget
from benchmarks.harness.options import add_options, add_source, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import files, matrix_folder, rows
from benchmarks.harness.systems import affordable, chosen_files, installed, with_worker
from benchmarks.harness.table import table
from benchmarks.harness.worker import READING, ROUNDING, SEED, Worker, length, serve_with
from benchmarks.peers.solvers import RTOL, WARM_UP, Solver
from finelu.auto import choose, ladder
from finelu.auto.cost import Costs
from finelu.device import on_gpu, require_gpu, to_host
from finelu.errors import FineluError
from finelu.krylov.criterion import Criterion
from finelu.krylov.operators import matrix_operator
from finelu.krylov.residual import Residual
from finelu.matrix import as_csr
from finelu.matrix.traits import Diagonal, MatrixTraits, traits
from finelu.ordering import ORDERS, Fill, with_little_fill
from finelu.preconditioners import IC0, ICT, ILUT, Jacobi, ParICT, ParILUT, Schwarz, SparseLU
from finelu.preconditioners.direct.analysis import COLAMD, is_light, is_quick, may_be_by_blocks
from finelu.recent import RECENT

LEAST_ROWS = 500  # of a system that is measured
NOT_LOOKED_AT = {
    "uneven": False,
    "alike": 0.0,
    "cancelling": 1.0,
    "flow": 0,
    "turns": False,
    "crosses": False,
    "skew": 1.0,
    "strictly": False,
}  # traits that older records lack
QUICK = ("trilinos_smooVec", "trilinos_nsjac_1", "mipt_two_wells_saddle_darcy", "ibmpg1_spd", "memplus")
ROUNDS, LEAST_ROUNDS = 9, 2  # after the first one; those that are made whatever they take
LATE, LEAST_LIMIT = 4.0, 0.5  # times the least time so far, and seconds, after which a solver is stopped
NEAR, CHEAP = 3.0, 0.1  # times the least time so far, and seconds, up to which a solver runs again after its first run
CLOSE = 1.5  # times the least time so far, up to which it does after its second
FIRST_ROUND = 0.6  # part of the seconds for a system that the first round may take
STILL, GLANCE, PATIENCE = 0.1, 0.01, 0.5  # of a core; s of a look at it; s at most, until threads of the last run rest
GRACE, GRACE_ON_GPU = 1.0, 10.0  # s over its limit in which a solver may notice that itself, or compile kernels
WARM_UP_ON_GPU = ("poisson5:120,120", "convection_diffusion:160,160", "helmholtz:160,k=9,absorbing=False")

# The rungs ------------------------------------------------------------------------------------------------------------

COMPLETE = "SparseLU("  # the names of rungs of complete factors begin with it
ON_GPU, ON_HOST = (Schwarz, ParICT, ParILUT), (ICT, ILUT)  # rungs of one device
ORDERINGS = {
    "superlu": (*ORDERS, COLAMD),
    "klu": (*ORDERS, COLAMD),
    "feral": ("auto", "amd", "nd"),
    "pardiso": ("auto", "mmd"),  # "auto" is "nd"
}
PACKAGES = {"klu": "nbklu", "feral": "feral", "pardiso": "pypardiso"}


def alone(recipe: Any, method: str, S: sp.csr_matrix, b: Any, end: float, extra: Any = None) -> dict[str, Any]:
    """finelu.solve with one rung.  method : a Krylov method; "auto" for complete factors, which are refined."""

    def only(known: MatrixTraits) -> dict[str, choose.Rung]:
        if not isinstance(recipe, SparseLU):
            return {"cheap": choose.Rung((recipe,), choose.ASKED)}
        by_itself = recipe.backend in ("auto", "superlu") and recipe.ordering == "auto"
        return {"direct": choose.Rung((recipe,), choose.ASKED, is_quick(known) and by_itself)}

    # `keep` looks for the direct rung
    with mock.patch.object(ladder, "rungs", only), mock.patch("finelu.auto.solve.keep"):
        return solve.finelu_solve(S, b, end, method=method, device="cuda" if on_gpu(S.data) else "cpu")


def iterative(gpu: bool = False) -> list[Any]:
    """The recipes of the table for the CPU or a GPU, except complete factors; and the cheapest of all."""
    of_table = (recipe for _, _, rung in choose.RUNGS for recipe in rung.recipes)
    kept = [recipe for recipe in of_table if not isinstance(recipe, (*(ON_HOST if gpu else ON_GPU), SparseLU))]
    return list(dict.fromkeys([*kept, Jacobi()]))


def direct() -> list[SparseLU]:
    """A recipe for each library with each of its orderings, that of `solve` first."""
    kept = [SparseLU(backend=library, ordering=order) for library, orders in ORDERINGS.items() for order in orders]
    return [SparseLU(), *kept]


def named(recipe: Any, method: str) -> str:
    """The name of a rung, also from an attempt of `solve`."""
    name = recipe if isinstance(recipe, str) else repr(recipe)
    return name if name.startswith(COMPLETE) else f"{name} {method}"


METHODS = ("cg", "minres", "bicgstab", "gmres")
ALONE: dict[str, Solver] = {named(recipe, ""): partial(alone, recipe, "auto") for recipe in direct()} | {
    named(recipe, method): partial(alone, recipe, method)
    for recipe in dict.fromkeys([*iterative(), *iterative(gpu=True)])
    for method in METHODS
}
OTHERS: dict[str, Solver] = {name: solver for name, solver in solve.SOLVERS.items() if name != OURS}
SOLVERS: dict[str, Solver] = {OURS: solve.finelu_solve, ON_CPU: solve.finelu_solve, **ALONE, **OTHERS}


def rungs_for(known: MatrixTraits, others: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of the rungs for a matrix: those that `solve` may try and each library with its own order; the others.

    Complete factors come before others: where they take too long, their count tells it at once.
    others : the other solvers that are installed; finelu calls the same libraries.
    """
    first, rest = [], []
    symmetric = known.kind == "hermitian" and not known.complex
    for recipe in direct()[:1] if known.gpu else direct():
        package = PACKAGES.get(recipe.backend)
        if (package is None or package in others) and (symmetric or recipe.backend != "feral"):
            (first if recipe.ordering == "auto" else rest).append(named(recipe, ""))
    of_table = [recipe for rung in choose.rungs(known).values() for recipe in rung.recipes]
    for recipe in iterative(known.gpu):
        if known.definite or not isinstance(recipe, IC0 | ICT | ParICT):
            method, *_ = choose.methods(known, recipe, alone=False)
            names = [named(recipe, m) for m in ((method, "gmres") if method == "bicgstab" else (method,))]
            (first if recipe in of_table else rest).extend(names)
    return first, rest


def features(S: sp.csr_matrix) -> dict[str, Any]:
    """What a rule may know of a matrix before it chooses: traits, lengths of rows, and the count of complete factors.

    fill, flops : of L and U by `amd` of A + A^T, without exchanges of rows.  count_s : seconds of that count.
    """
    A = as_csr(S, diagonal=False)
    known, lengths, begin = traits(A), np.diff(S.indptr), time.perf_counter()
    fill = with_little_fill(A, "amd")[1]
    facts = asdict(known)
    facts |= {f"diagonal_{name}": value for name, value in facts.pop("diagonal").items()}
    facts |= {"longest_row": int(lengths.max()), "rows_vary": float(lengths.std() / lengths.mean())}
    return facts | {"fill": fill.nnz, "flops": fill.flops, "count_s": time.perf_counter() - begin}


def first_rungs(facts: Mapping[str, Any]) -> list[str]:
    """The names of the rungs that `solve` takes first with all libraries, for a matrix with these `features`: the next
    one where one finds no factors, or that A is indefinite, and complete factors last.

    It follows the tables of `finelu.auto.choose` and the expected times of `finelu.auto.cost`, with the count in
    `facts`: `solve` takes another one where KLU finds blocks, and none where rows are to be matched.
    """
    diagonal = {name.removeprefix("diagonal_"): v for name, v in facts.items() if name.startswith("diagonal_")}
    own, facts = {field.name for field in fields(MatrixTraits)} - {"diagonal"}, {**NOT_LOOKED_AT, **facts}
    known = MatrixTraits(diagonal=Diagonal(**diagonal), **{name: facts[name] for name in own})
    rungs = choose.rungs(known)
    complete = named(rungs["direct"].recipes[0], "")
    if rungs["direct"].reason == choose.IS_SMALL or "cheap" not in rungs:
        return [complete]
    cheap = rungs["cheap"].recipes
    method, *_ = choose.methods(known, cheap[0], alone=False)
    any_matrix = as_csr(sp.identity(1, format="csr"))  # only its dtype counts
    costs, fill = Costs(any_matrix, known, rungs, math.inf, math.inf), Fill(facts["fill"], facts["flops"])
    if choose.asks_first(known):
        symmetric = known.kind == "hermitian"
        by_blocks = may_be_by_blocks(known, symmetric=symmetric, real=symmetric and not known.complex, fill=fill)
        library = "pardiso" if by_blocks else "klu" if is_light(fill) else "superlu"
        seconds = costs.of_library(fill, library, half=by_blocks and symmetric)
        if seconds <= choose.few_seconds(known, costs.of_iteration(method)):
            return [complete]
    return [*(named(recipe, method) for recipe in cheap), complete]


# One run --------------------------------------------------------------------------------------------------------------


def rest() -> None:
    """Wait until idle threads of libraries sleep: those of MKL spin for 0.2 s, and others for less, on the cores of the
    run that comes next."""
    end = time.perf_counter() + PATIENCE
    while time.perf_counter() < end:
        spent = time.process_time()
        time.sleep(GLANCE)
        if time.process_time() - spent < STILL * GLANCE:
            break


def once(name: str, S: sp.csr_matrix, limit: float, extra: Any = None, *, gpu: bool = False) -> dict[str, Any]:
    """One run of a solver: as `solve.once`, and not solved either if x does not pass finelu's test by rows.

    Each run meets its pattern for the first time. What earlier runs left would help complete factors alone, while the
    route of `solve` does not depend on it.
    A run that compiles kernels is repeated.
    gpu : whether A and b are on the GPU.
    """
    b, found = solve.right_hand_side(S.shape[0]), {}
    given = (as_csr(S, diagonal=False).on(require_gpu()).tosparse(), require_gpu().asarray(b)) if gpu else ()

    def kept(S: Any, b: Any, *rest: Any) -> dict[str, Any]:
        begin = time.process_time()
        found.update(SOLVERS[name](*(given or (S, b)), *rest))
        found["x"] = to_host(found["x"])
        return found | {"cpu": time.process_time() - begin}

    for _ in range(2):
        RECENT.forget()
        result = solve.once(kept, S, b, limit)
        if not result.get("compiling"):
            break
    if result["status"] == "":
        check = Criterion("auto", Residual(matrix_operator(as_csr(S, diagonal=False)), b), b)
        target = ROUNDING * RTOL * length(b)
        _, size = check(b, np.asarray(found["x"]), target)
        if size > target:
            result["status"] = f"rows {check.rows:.2g}"
            result["claimed"] = name in (OURS, *ALONE)
    result.pop("seen", None)
    return result


def warm_up(name: str) -> None:
    """Compile, or load, what a solver may need."""
    if name == OURS:
        solve.warm_up(OURS)
        return
    for problem in WARM_UP if name in ALONE else WARM_UP[:2]:  # ILU++ crashes where the diagonal is zero
        once(name, sp.csr_matrix(finelu.gallery.problem(problem)), READING)


def warm_up_on_gpu(name: str) -> None:
    """The same for A and b on a GPU, by systems that are large enough to stay there."""
    for problem in WARM_UP_ON_GPU:
        once(name, sp.csr_matrix(finelu.gallery.problem(problem)), READING, gpu=name != ON_CPU)


def serve(
    pipe: Any, threads: int, without: Sequence[str] = (), gpu: bool = False, of: Callable[..., dict[str, Any]] = once
) -> None:
    """The process that solves.

    without : packages that count as not installed.
    gpu : whether A and b are on the GPU, except for ON_CPU.
    of : the function that makes a run, called as `once`.
    """
    sys.modules.update(dict.fromkeys(without))

    def outcome(name: str, *arguments: Any) -> dict[str, Any]:
        rest()
        return of(name, *arguments, gpu=gpu and name != ON_CPU)

    serve_with(pipe, threads, outcome, warm_up_on_gpu if gpu else warm_up, limited=not gpu)


# The measurement ------------------------------------------------------------------------------------------------------


def rounds(worker: Worker, path: Path, names: Sequence[str], limit: float, seconds: float) -> dict[str, list[Any]]:
    """The results of all runs of each solver, the first round included. A solver that fails does not run again.

    names : the first of them is never stopped before `limit`, and runs in each round. Of the others those that are far
        from the best run once or twice, so that the seconds are spent on a comparison of the best.
    seconds : for all rounds, without those in which the worker prepares its runs; solvers that are not called within
        FIRST_ROUND of them have no result. Once they are spent, the first of all and those that are close to the best
        still run until they have run LEAST_ROUNDS times after the first round, which only warms up.
    """
    budget, best, order, begun = Budget(seconds), math.inf, list(names), worker.prepared
    results: dict[str, list[Any]] = {}
    shuffled = random.Random(SEED)

    def spent() -> float:
        return budget.spent() - (worker.prepared - begun)

    for turn in range(ROUNDS + 1):
        for name in order:
            if spent() > seconds * (1.0 if turn else FIRST_ROUND) and not 1 <= turn <= LEAST_ROUNDS:
                break
            allowed = limit if name == names[0] else min(limit, max(LEAST_LIMIT, LATE * best))
            result = worker.ask(path, name, allowed)
            results.setdefault(name, []).append(result)
            if result["status"] == "":
                best = min(best, result["seconds"])
            elif name.startswith(COMPLETE) and "time" in result["status"]:
                worker.stop()  # the call of a library, which was abandoned, goes on
        near = max(NEAR * best, CHEAP) if turn == 0 and spent() < seconds else CLOSE * best
        order = [n for n in order if n in results and solved_within(results[n], math.inf if n == names[0] else near)]
        shuffled.shuffle(order)
    return results


def solved_within(results: Sequence[Mapping[str, Any]], seconds: float) -> bool:
    """Whether all runs solved the system, and the fastest of them took no longer."""
    return all(result["status"] == "" for result in results) and min(r["seconds"] for r in results) <= seconds


def record_of(matrix: str, name: str, results: Sequence[dict[str, Any]], threads: int) -> Record:
    """The record of a solver: the median of the runs after the first, if there are any; or the first failure."""
    failed = next((result for result in results if result["status"]), None)
    warm = results[1:] or results
    runs = [result["seconds"] for result in warm if "seconds" in result]
    last = failed or warm[-1]
    seconds = last.get("seconds") if failed else median(runs)
    who = "finelu" if name == OURS or name in ALONE else "CPU" if name == ON_CPU else name.split()[0]
    record = Record(matrix, "solve", "cpu", who, name, None if seconds is None else 1e3 * seconds)
    record.error, record.threads = last.get("residual"), threads
    record.detail = {key: value for key, value in last.items() if key not in ("seconds", "residual", "cpu")}
    cpu = [result["cpu"] for result in warm if "cpu" in result]
    record.detail |= {"runs": runs, "cpu": cpu, "first": results[0].get("seconds")}
    return record


def measure_one(
    run: Run, worker: Worker, name: str, path: Path, others: Sequence[str], options: argparse.Namespace
) -> None:
    S = finelu.read_matrix(path)
    run.matrices[name] = features(S)
    A = as_csr(S, diagonal=False)
    first, rest = rungs_for(traits(A.on(require_gpu()) if options.gpu else A), others)
    names = [OURS, *others, *first, *rest] if options.gpu else [OURS, *first, *others, *rest]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"{name}.npz"  # a process that begins anew reads it sooner
        sp.save_npz(copy, S, compressed=False)
        del S
        results = rounds(worker, copy, names, options.limit, options.seconds)
    run.records += [record_of(name, solver, found, options.threads) for solver, found in results.items()]
    if absent := [solver for solver in names if solver not in results]:
        run.left_out[name] = f"{len(absent)} of {len(names)} solvers, as its seconds were spent: from {absent[0]} on"


def chosen(options: argparse.Namespace) -> dict[str, Path]:
    """name -> file of the systems to measure, the smallest file first."""
    if options.quick and not options.matrices:
        known = files(options.matrix_folder or matrix_folder())
        options.matrices = ",".join(name for name in QUICK if name in known)
    paths = chosen_files(options)
    return paths if options.matrices else {name: path for name, path in paths.items() if rows(path) >= LEAST_ROWS}


@contextmanager
def without_packages(names: Sequence[str], threads: int) -> Iterator[None]:
    """A block for measurements by other processes, in which packages count as not installed here, too."""
    # read by the processes to come: threads of SciPy's BLAS, and that no answer comes before kernels are compiled
    os.environ |= {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    os.environ["FINELU_BACKGROUND"] = "0"
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]  # an import of None fails
    try:
        yield
    finally:  # of these alone: modules that were imported meanwhile stay
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)


def measured(options: argparse.Namespace) -> Run:
    paths = chosen(options)
    run = new_run("regret-gpu" if options.gpu else "regret", gpu=options.gpu, machine_name=options.machine)
    run.options = {"limit, seconds": options.limit, "seconds for a system": options.seconds, "threads": options.threads}
    run.options |= {"load average before": round(os.getloadavg()[0], 1)}
    without = [name for name in options.without.split(",") if name]
    run.options |= {"without": ", ".join(without) or "-"}
    serving = partial(serve, without=without, gpu=options.gpu)
    budget, worker = Budget(options.budget), Worker(options.threads, serving, GRACE_ON_GPU if options.gpu else GRACE)
    others = [solver for solver in installed(run, OTHERS) if solver.split()[0] not in without]
    others = [ON_CPU] if options.gpu else others
    with without_packages(without, options.threads), with_worker(run, budget, worker):
        for name, path in affordable(run, budget, paths):
            measure_one(run, worker, name, path, others, options)
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {name}: {in_words(run, name)}", flush=True)
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.regret", description=__doc__)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for each run (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for all runs of a system (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of every library (default: %(default)s)")
    parser.add_argument("--without", default="", help="packages that count as not installed, separated by commas")
    parser.add_argument("--gpu", action="store_true", help="the rungs of a GPU, and `solve` on its CPU")
    add_source(parser)
    add_options(parser)
    options = parser.parse_args(argv)
    run = Run.load(options.source) if options.source else measured(options)
    target = run.publish(options.out, page(run))
    print(table(CLAIMS, claims(run)), end="")
    if wrong := [f"{r.variant} on {r.matrix}" for r in run.records if r.who == "finelu" and r.detail.get("claimed")]:
        raise FineluError(f"a claim of convergence was wrong: {', '.join(wrong)}; {target}")
    print(f"{len(run.matrices)} systems; {target}")
    return 0


if __name__ == "__main__":
    command(main)
