"""Claim: as a user calls them on a GPU, ILU(0), its new values and its solves take less time than cuSPARSE's.

    python -m benchmarks.claims.calls_gpu --budget 200
    python -m benchmarks.claims.calls_gpu --from benchmarks/results/calls-gpu-....json.gz   # its page again

Each call begins with a CSR matrix or a vector of CuPy, as a program has it, and ends with the result, from an idle
device to an idle device; checks, copies, analyses and Python are inside of the clock on both sides:

    work     finelu                 cuSPARSE, through ctypes
    factor   `ILU0().factor(A)`     csrilu02: buffer size, analysis, factorization; SpSV of L and U: the first two
    update   `F.update(A)`          a copy of the values, csrilu02 and its look for a zero pivot
    solve    `F.solve(b)`           SpSV_solve with L and with U, in buffers that are there

csrilu02 takes the better one of its policies, USE_LEVEL and NO_LEVEL. update and solve are timed after SETTLED calls of
both, matrices and right-hand sides as in `calls`, in turn; medians. One more call is checked as there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any

import finelu
from benchmarks.claims.calls import FINELU, OURS, ROUNDS, WORKS, Inputs, Ours, settle, sound, timed
from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import Budget, Timing, synchronized
from benchmarks.harness.options import add_options, add_source, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import LeftOut, Problem, names_of, suite
from benchmarks.harness.table import mean, ratio, table
from benchmarks.peers import cusparse

POLICIES = "USE_LEVEL", "NO_LEVEL"
SLOW = 0.8  # a ratio below which a matrix is counted
CALLED = {"factor": "csrilu02 and SpSV's analyses", "update": "csrilu02", "solve": "SpSV with L and U"}


class OursOnGpu(Ours):
    variant = FINELU

    def close(self) -> None:
        """Nothing is to be freed by hand."""


class CuSparse:
    """csrilu02 with one of its policies, and SpSV with both triangles of its result."""

    who = "cusparse"

    def __init__(self, policy: str, right: list[Any]):
        import cupy

        self.variant, self.peer, self.triangles = policy, None, []
        self.right, self.y, self.x = right, cupy.empty_like(right[0]), cupy.empty_like(right[0])

    def factor(self, A: Any) -> None:
        from finelu.kernels.operands import CSR

        self.close()
        self.peer = cusparse.Csrilu02(CSR(A.indptr, A.indices, A.data, None), self.variant)
        self.peer.analyse()
        self._eliminate()
        LU = CSR(A.indptr, A.indices, self.peer.values, None)
        self.triangles = [
            cusparse.SpSV(LU, [(b, self.y) for b in self.right], lower=True, unit=True),
            cusparse.SpSV(LU, [(self.y, self.x)], lower=False, unit=False),
        ]
        for triangle in self.triangles:
            triangle.analyse()

    def update(self, A: Any) -> None:
        self.peer.values[...] = A.data
        self._eliminate()

    def _eliminate(self) -> None:
        self.peer.factor()
        if self.peer.zero_pivot() >= 0:
            raise ZeroDivisionError("csrilu02 met a zero pivot")

    def solve(self, b: Any) -> Any:
        lower, upper = self.triangles
        lower.solve(next(i for i, v in enumerate(self.right) if v is b))
        upper.solve(0)
        return self.x

    def checked(self, b: Any) -> Any:
        """`solve` after an update: SpSV has read the values in its analysis."""
        for triangle in self.triangles:
            triangle.analyse()
        return self.solve(b)

    def close(self) -> None:
        if self.peer is not None:
            for part in (*self.triangles, self.peer):
                part.close()
            self.peer, self.triangles = None, []


def measure_one(run: Run, problem: Problem, inputs: Inputs) -> None:
    """All works of all sides on one matrix, each checked by a solve with its result."""
    import cupy
    import cupyx.scipy.sparse as csp

    right = [cupy.asarray(b) for b in inputs.right]
    matrices = [
        csp.csr_matrix(tuple(cupy.asarray(v) for v in (S.data, S.indices, S.indptr)), shape=S.shape)
        for S in inputs.matrices
    ]
    sides: list[Any] = [OursOnGpu(finelu.get_num_threads()), *(CuSparse(policy, right) for policy in POLICIES)]
    seconds: dict[tuple[str, str], list[float]] = {}
    errors: dict[tuple[str, str], float] = {}
    for _ in range(ROUNDS):
        for side in sides:
            with run.attempt(problem.name, side.variant):
                for work in WORKS:
                    key, data = (side.variant, work), right if work == "solve" else matrices
                    if work == "update":
                        settle(side, SimpleNamespace(matrices=matrices, right=right))
                    timed(getattr(side, work), data, seconds.setdefault(key, []), lambda: synchronized(gpu=True))
                    getattr(side, work)(data[0])
                    x = getattr(side, "checked", side.solve)(right[0])
                    errors[key] = inputs.error(x.get())
            synchronized(gpu=True)
    for side in sides:
        side.close()
    for (variant, work), times in seconds.items():
        timing = Timing.of([1e3 * t for t in times], [1e3 * t for t in times])
        who = "finelu" if variant == FINELU else "cusparse"
        error, detail = errors.get((variant, work)), {"calls": vars(timing)}
        run.records.append(Record(problem.name, work, "gpu", who, variant, timing.ms, error=error, detail=detail))


# Tables ---------------------------------------------------------------------------------------------------------------


def best(run: Run, name: str, work: str) -> float | None:
    """ms of cuSPARSE's better policy."""
    found = [run.one(matrix=name, work=work, variant=policy) for policy in POLICIES]
    return min((r.numeric_ms for r in found if r is not None and sound(r)), default=None)


def own(run: Run, name: str, work: str) -> float | None:
    found = run.one(matrix=name, work=work, variant=FINELU)
    return found.numeric_ms if found is not None and sound(found) else None


def ratios(run: Run, work: str) -> dict[str, float]:
    """matrix -> cuSPARSE's time over ours, where both results were right; without the matrix of one row a level."""
    both = {name: (own(run, name, work), best(run, name, work)) for name in run.matrices}
    return {
        name: theirs / ours
        for name, (ours, theirs) in both.items()
        if ours and theirs and not run.matrices[name]["apart"]
    }


def summary(run: Run) -> str:
    lines = []
    for work in WORKS:
        found = ratios(run, work)
        if found:
            worst, slow = min(found, key=lambda name: found[name]), sum(r < SLOW for r in found.values())
            values = found.values()
            lines.append(
                (OURS[work], CALLED[work], len(found), mean(values), median(values), found[worst], worst, slow)
            )
    return table(("called", "compared with", "matrices", "mean", "median", "worst", "at", f"below {SLOW}"), lines)


def page(run: Run) -> str:
    text = run.heading() + "\n## cuSPARSE's time over finelu's, as called\n\n" + summary(run)
    text += (
        "\nMean: geometric. Medians of warm calls in ms below. What the clock includes: the head of "
        "benchmarks/claims/calls_gpu.py. The tridiagonal matrix, one row a level, is in no mean.\n"
    )
    for work in WORKS:
        lines = []
        for name, facts in run.matrices.items():
            ours, theirs = own(run, name, work), best(run, name, work)
            lines.append((name, facts["n"], facts["nnz"], ours, theirs, ratio(theirs, ours)))
        heads = ("matrix", "n", "nnz", "finelu", f"cuSPARSE: {CALLED[work]}", "over ours")
        text += f"\n## {OURS[work]}, ms\n\n" + table(heads, lines)
    wrong = [(r.matrix, r.work, r.who, r.variant, r.error) for r in run.records if not sound(r)]
    text += "\n## Wrong results, in no ratio\n\n"
    text += table(("matrix", "work", "library", "variant", "error"), wrong) if wrong else "Nothing.\n"
    return text + run.footing()


def measured(options: argparse.Namespace) -> Run:
    run = new_run("calls-gpu", gpu=True, machine_name=options.machine)
    budget = Budget(options.budget)
    for problem in suite(options.matrix_folder, names_of(options.matrices), quick=options.quick):
        if budget.over():
            run.left_out[problem.name] = "the budget was spent"
            continue
        try:
            inputs = Inputs(problem)
        except LeftOut as reason:
            run.left_out[problem.name] = str(reason)
            continue
        A = inputs.matrices[0]
        run.matrices[problem.name] = {"n": A.shape[0], "nnz": A.nnz, "apart": problem.apart}
        measure_one(run, problem, inputs)
        release_gpu()
        run.save(options.out)
        found = [ratio(best(run, problem.name, work), own(run, problem.name, work)) for work in WORKS]
        print(f"{budget.spent():5.0f} s  {problem.name}: {found}", flush=True)
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.claims.calls_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source(parser)
    add_options(parser)
    options = parser.parse_args(argv)
    run = Run.load(options.source) if options.source else measured(options)
    target = run.publish(options.out, page(run))
    print("\n" + summary(run) + f"\n{len(run.matrices)} matrices; {target}")
    return 0


if __name__ == "__main__":
    command(main)
