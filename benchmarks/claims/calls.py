"""Claim: as a user calls them, new values and solves of ILU(0) take less time than MKL's and ilupp's on two cores.

The first factorization, which analyses the pattern, is compared with theirs, too.

    python -m benchmarks.claims.calls --budget 280                 # the suite, on two cores that do nothing else
    python -m benchmarks.claims.calls --quick
    python -m benchmarks.claims.calls --from benchmarks/results/calls-....json.gz   # its page again

Each call begins with a scipy.sparse CSR matrix or a vector, as a program has it, and ends with the result; checks,
copies, analyses and Python are inside of the clock on every side:

    work     finelu                 MKL (PyPI's mkl, through ctypes)                         ilupp
    factor   `ILU0().factor(A)`     1-based copies, dcsrilu0, mkl_sparse_optimize of L, U    `ILU0Preconditioner(A)`
    update   `F.update(A)`          dcsrilu0 of the new values, on the copies of before      `ILU0Preconditioner(A)`
    solve    `F.solve(b)`           mkl_sparse_d_trsv with L, then with U                    `P @ b`
    total    factor, then 10, 100 or 1000 times solve                                        likewise

"dcsrilu0 alone" of factor leaves mkl_sparse_optimize out. ilupp has no update: it factors anew.

update and solve are timed after SETTLED calls of both: by then finelu, which at first does what one call needs, has
made its analyses. What either library still has to do for solves with the new values is in no column: finelu's third
solve copies them, MKL's handles are made anew. What the analyses cost is in total, whose last 900
solves count with the median of settled ones. MKL's total is the shorter one of two, with mkl_sparse_optimize and
without.

Four matrices of one pattern (rows of A scaled by 0.9 to 1.1) and four right-hand sides are taken in turn. Medians of 4
to 20 calls (2 where one takes more than a quarter of a second) in two rounds, in which the libraries take turns, each
round after two warm calls (one); MKL then rests a quarter of a second, since its idle threads spin. One more call is
checked: max |L U x - b| over max(|L| |U| |x| + |b|) with the factors of the sequential elimination.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.case import Case
from benchmarks.harness.clock import Budget, Timing
from benchmarks.harness.options import add_options, add_source, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import LeftOut, Problem, names_of, suite
from benchmarks.harness.table import mean, ratio, table
from benchmarks.peers import mkl
from benchmarks.peers.solvers import int32_csr

WORKS = ("factor", "update", "solve")
TOTALS = {"factor and 10 solves": 10, "factor and 100 solves": 100, "factor and 1000 solves": 1000}
MOST_SOLVES = 100  # of a total that are made
SETTLED = 24
BUFFERS, ROUNDS, WARM = 4, 2, 2
SECONDS, LEAST, MOST = 0.25, 2, 10  # of the calls of one round: seconds for them all, fewest, most
SOUND = 1e-10  # a backward error above this is no result
FINELU, MKL, MKL_ALONE, ILUPP = "ILU0", "mkl", "dcsrilu0 alone", "ilupp"
PEERS = {
    "factor": (MKL, MKL_ALONE, ILUPP),
    "update": (MKL, ILUPP),
    "solve": (MKL, ILUPP),
    **dict.fromkeys(TOTALS, (MKL, ILUPP)),
}
CALLED = {
    ("factor", MKL): "MKL: dcsrilu0 and mkl_sparse_optimize, copies included",
    ("factor", MKL_ALONE): "MKL: dcsrilu0 alone, copies included",
    ("update", MKL): "MKL: dcsrilu0",
    ("solve", MKL): "MKL: mkl_sparse_d_trsv, L and U",
    ("factor", ILUPP): "ilupp: ILU0Preconditioner(A)",
    ("update", ILUPP): "ilupp: ILU0Preconditioner(A)",
    ("solve", ILUPP): "ilupp: P @ b",
}
for _total in TOTALS:
    CALLED[_total, MKL] = "MKL: with or without mkl_sparse_optimize, the shorter"
    CALLED[_total, ILUPP] = "ilupp"
OURS = {"factor": "`ILU0().factor(A)`", "update": "`F.update(A)`", "solve": "`F.solve(b)`"} | {t: t for t in TOTALS}


class Inputs:
    """Matrices of one pattern and right-hand sides, taken in turn; and what a result is checked with."""

    def __init__(self, problem: Problem):
        S = problem.load()
        S = S if S.indices.dtype == np.int32 else int32_csr(S)
        rng = np.random.default_rng(2024)
        self.matrices = [
            sp.csr_matrix((S.data * np.repeat(d, np.diff(S.indptr)), S.indices, S.indptr), shape=S.shape)
            for d in rng.uniform(0.9, 1.1, (BUFFERS, S.shape[0]))
        ]
        self.right = [rng.standard_normal(S.shape[0]) for _ in range(BUFFERS)]
        case = Case(problem, self.matrices[0])
        if case.lu_bad_row >= 0:
            raise LeftOut(f"ILU(0) meets a zero pivot in row {case.lu_bad_row}")
        self._factors = case.full_triangle("lower"), case.full_triangle("upper")

    def error(self, x: Any) -> float:
        """How far x is from solving L U x = b with the factors of the first matrix and the first right-hand side."""
        (L, U), b = self._factors, self.right[0]
        with np.errstate(all="ignore"):
            size = np.max(abs(L) @ (abs(U) @ np.abs(x)) + np.abs(b))
            return float(np.max(np.abs(L @ (U @ x) - b)) / size)


class Ours:
    who, variants = "finelu", dict.fromkeys(WORKS, FINELU)

    def __init__(self, threads: int):
        finelu.set_num_threads(threads)

    def factor(self, A: Any) -> None:
        self.F = finelu.ILU0().factor(A)

    def update(self, A: Any) -> None:
        self.F.update(A)

    def solve(self, b: Any) -> Any:
        return self.F.solve(b)

    def rest(self) -> None:
        """Its threads sleep while they wait."""


class MKLs:
    """dcsrilu0 and two trsv."""

    who = "mkl"

    def __init__(self, threads: int, *, optimizing: bool = True):
        mkl.set_num_threads(threads)
        self.optimizing, self.handles, self.stale = optimizing, [], True
        self.variants = dict.fromkeys(WORKS, MKL if optimizing else MKL_ALONE)

    def factor(self, A: Any) -> None:
        self.peer, self.pattern, self.stale = mkl.ILU0(A), A, True
        self.peer.factor()
        if self.optimizing:
            self._optimize()

    def update(self, A: Any) -> None:
        self.peer.load(A.data)
        self.peer.factor()
        self.stale = True

    def solve(self, b: Any) -> Any:
        if self.stale:  # in the check of an update, never inside of the clock
            self._optimize()
        lower, upper = self.handles
        y = lower.solve(b, np.zeros_like(b))
        return upper.solve(y, np.zeros_like(b))

    def _optimize(self):
        for handle in self.handles:
            handle.close()
        LU = sp.csr_matrix((self.peer.lu, self.pattern.indices, self.pattern.indptr), shape=self.pattern.shape)
        self.handles = [
            mkl.TriangularSolve(LU, lower=True, unit=True, optimize=self.optimizing),
            mkl.TriangularSolve(LU, lower=False, unit=False, optimize=self.optimizing),
        ]
        self.stale = False

    def rest(self) -> None:
        """Idle threads of MKL spin for some 0.2 s."""
        time.sleep(0.25)


class Ilupp:
    who, variants = "ilupp", dict.fromkeys(WORKS, ILUPP)

    def __init__(self, threads: int):
        """It runs on one thread, whatever the number."""

    def factor(self, A: Any) -> None:
        import ilupp

        self.P = ilupp.ILU0Preconditioner(A)

    update = factor

    def solve(self, b: Any) -> Any:
        return self.P @ b

    def rest(self) -> None:
        """It has no threads."""


def sides(run: Run, threads: int) -> list[tuple[Callable[[], Any], tuple[str, ...]]]:
    """(maker of a side, its works) for the installed libraries; the run names the missing ones."""
    found: list[tuple[Callable[[], Any], tuple[str, ...]]] = [(lambda: Ours(threads), WORKS)]
    if mkl.available():
        found.append((lambda: MKLs(threads), WORKS))
        found.append((lambda: MKLs(threads, optimizing=False), ("factor",)))
    else:
        run.left_out["mkl"] = "not installed (pip install mkl)"
    try:
        run.machine["ilupp"] = package_version("ilupp")
        found.append((lambda: Ilupp(threads), WORKS))
    except PackageNotFoundError:
        run.left_out["ilupp"] = "not installed (pip install ilupp)"
    return found


def timed(
    call: Callable[[Any], Any],
    inputs: Sequence[Any],
    seconds: list[float],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Add the seconds of some calls to `seconds`, after WARM ones, or one where that takes longer than SECONDS."""
    estimate = 0.0
    for k in range(WARM):
        if estimate <= SECONDS:
            begin = clock()
            call(inputs[k])
            estimate = clock() - begin
    least = LEAST if estimate <= SECONDS else 1
    for k in range(min(max(least, int(SECONDS / max(estimate, 1e-9))), MOST)):
        begin = clock()
        call(inputs[(k + 1) % BUFFERS])
        seconds.append(clock() - begin)


def totals(side: Any, inputs: Inputs) -> dict[str, float]:
    """Name of a total -> its seconds."""
    begin = time.perf_counter()
    side.factor(inputs.matrices[0])
    spent, solves = {0: time.perf_counter() - begin}, []
    for k in range(1, MOST_SOLVES + 1):
        start = time.perf_counter()
        side.solve(inputs.right[k % BUFFERS])
        end = time.perf_counter()
        solves.append(end - start)
        spent[k] = end - begin
    settled = median(solves[SETTLED:])
    return {name: spent[min(k, MOST_SOLVES)] + max(k - MOST_SOLVES, 0) * settled for name, k in TOTALS.items()}


def settle(side: Any, inputs: Any) -> None:
    for call, data in ((side.solve, inputs.right), (side.update, inputs.matrices)):
        for k in range(SETTLED):
            call(data[k % BUFFERS])


def measure_one(run: Run, problem: Problem, inputs: Inputs, threads: int) -> None:
    """All works of all sides on one matrix, each checked by a solve with its result."""
    made: list[tuple[Any, tuple[str, ...]]] = []
    seconds: dict[tuple[str, str, str], list[float]] = {}
    errors: dict[tuple[str, str, str], float] = {}
    for maker, works in sides(run, threads):
        with run.attempt(problem.name, "a side"):
            made.append((maker(), works))
    for turn, (side, works) in enumerate(made * ROUNDS):
        with run.attempt(problem.name, f"{side.who} {side.variants['factor']}"):
            if "factor" not in works:
                side.factor(inputs.matrices[0])
            for work in works:
                key = (side.who, work, side.variants[work])
                data = inputs.right if work == "solve" else inputs.matrices
                if side.who == "finelu" and work == "update":
                    settle(side, inputs)
                timed(getattr(side, work), data, seconds.setdefault(key, []))
                getattr(side, work)(data[0])
                errors[key] = inputs.error(side.solve(inputs.right[0]))
            if "factor" in works and turn < len(made):
                for name, total in totals(side, inputs).items():
                    key = (side.who, name, MKL if side.who == "mkl" else side.variants["factor"])
                    seconds.setdefault(key, []).append(total)
                    errors[key] = inputs.error(side.solve(inputs.right[0]))
        side.rest()
    for key, times in seconds.items():
        who, work, variant = key
        times = [min(times)] if work in TOTALS else times
        timing = Timing.of([1e3 * t for t in times], [1e3 * t for t in times])
        run.records.append(
            Record(problem.name, work, "cpu", who, variant, timing.ms, error=errors.get(key), threads=threads,
                   detail={"calls": vars(timing)})
        )  # fmt: skip


# Tables ---------------------------------------------------------------------------------------------------------------


def sound(record: Record | None) -> bool:
    return record is not None and record.error is not None and record.error <= SOUND


def ratios(run: Run, work: str, variant: str) -> dict[str, float]:
    """matrix -> the peer's time over ours, where both results were right; without the matrix of one row a level."""
    found = {}
    for name, facts in run.matrices.items():
        ours, theirs = (run.one(matrix=name, work=work, variant=v) for v in (FINELU, variant))
        if sound(ours) and sound(theirs) and not facts["apart"]:
            found[name] = ratio(theirs.numeric_ms, ours.numeric_ms)
    return found


def summary(run: Run) -> str:
    """A row a work and peer: how many matrices, mean, median, worst, and on how many we lose."""
    lines = []
    for work in (*WORKS, *TOTALS):
        for variant in PEERS[work]:
            found = ratios(run, work, variant)
            if found:
                worst = min(found, key=lambda name: found[name])
                lost = sum(r < 1 for r in found.values())
                lines.append(
                    (OURS[work], CALLED[work, variant], len(found), mean(found.values()), median(found.values()),
                     found[worst], worst, lost)
                )  # fmt: skip
    header = ("called", "compared with", "matrices", "mean", "median", "worst", "at", "slower on")
    return table(header, lines)


def work_table(run: Run, work: str) -> str:
    lines = []
    for name, facts in run.matrices.items():
        found = [run.one(matrix=name, work=work, variant=v) for v in (FINELU, *PEERS[work])]
        if any(found):
            times = [r and (r.numeric_ms if sound(r) else None) for r in found]
            lines.append((name, facts["n"], facts["nnz"], *times, *(ratio(t, times[0]) for t in times[1:])))
    names = [CALLED[work, v] for v in PEERS[work]]
    return table(("matrix", "n", "nnz", "finelu", *names, *(f"over ours: {n}" for n in names)), lines)


def wrong_table(run: Run) -> str:
    lines = [(r.matrix, r.work, r.who, r.variant, r.error) for r in run.records if not sound(r)]
    return table(("matrix", "work", "library", "variant", "error"), lines) if lines else "Nothing.\n"


def page(run: Run) -> str:
    text = run.heading() + "\n## The peer's time over finelu's, as called\n\n" + summary(run)
    text += (
        "\nMean: geometric. Medians of warm calls in ms below. What the clock includes: the head of "
        "benchmarks/claims/calls.py. The tridiagonal matrix, one row a level, is in no mean.\n"
    )
    for work in (*WORKS, *TOTALS):
        text += f"\n## {OURS[work]}, ms\n\n" + work_table(run, work)
    return text + "\n## Wrong results, in no ratio\n\n" + wrong_table(run) + run.footing()


def measured(options: argparse.Namespace) -> Run:
    run = new_run("calls", gpu=False, machine_name=options.machine, options={"threads": options.threads})
    budget = Budget(options.budget)
    sides(run, options.threads)  # says what is not installed
    for problem in suite(options.matrix_folder, names_of(options.matrices), quick=options.quick):
        if budget.over():
            run.left_out[problem.name] = "the budget was spent"
            continue
        begun = budget.spent()
        try:
            inputs = Inputs(problem)
        except LeftOut as reason:
            run.left_out[problem.name] = str(reason)
            continue
        A = inputs.matrices[0]
        run.matrices[problem.name] = {"n": A.shape[0], "nnz": A.nnz, "apart": problem.apart}
        measure_one(run, problem, inputs, options.threads)
        run.options["seconds"] = round(budget.spent())
        run.save(options.out)
        print(f"{budget.spent():5.0f} s  {problem.name}: {A.shape[0]} rows, {budget.spent() - begun:.1f} s", flush=True)
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.claims.calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--threads", type=int, default=2, help="of finelu and MKL (default: %(default)s)")
    add_source(parser)
    add_options(parser)
    options = parser.parse_args(argv)
    run = Run.load(options.source) if options.source else measured(options)
    target = run.publish(options.out, page(run))
    print("\n" + summary(run) + f"\n{len(run.matrices)} matrices; {target}")
    return 0


if __name__ == "__main__":
    command(main)
