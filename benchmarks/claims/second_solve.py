"""Claim: a second `solve` with the pattern of the first and other values takes half of its time where factors are
complete.

    python -m benchmarks.claims.second_solve [--matrices memplus,lhr01] [--repeats 9]

Each of the real matrices of MATRICES that complete factors serve is solved by `finelu.solve` with nothing kept of any
pattern, and at once again with other values: D A D, D within 1% of 1 and random, so that a symmetric A stays symmetric.
Times are those of the processor, the least of some pairs, with other values in each: set OMP_NUM_THREADS,
OPENBLAS_NUM_THREADS, MKL_NUM_THREADS and FINELU_NUM_THREADS to 1 on a machine that does other work, too. The second x
need not have the bits that the same call has with nothing kept where pivots lie off the diagonal, or PARDISO matches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims.programs import forget
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_options, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import matrix_folder
from benchmarks.harness.table import mean, table

MATRICES = (
    *("memplus", "adder_dcop_05", "bayer10", "lhr01", "mahindas", "1138_bus", "trilinos_basker_powersys"),
    *("lp_stocfor3_aug", "hifir_stokes_TH", "bcsstk09", "bcsstk10", "bcsstk20", "662_bus", "685_bus", "west0479"),
    *("west0497", "pf_ACTIVSg70k"),
)
REPEATS, CHANGE, RTOL = 7, 0.01, 1e-8
FIRST, SECOND, BOTH = "first", "second", "solve"


def changed(S: sp.csr_matrix, seed: int) -> sp.csr_matrix:
    """D S D."""
    d = 1 + CHANGE * np.random.default_rng(seed).uniform(-1, 1, S.shape[0])
    return sp.csr_matrix((S.data * np.repeat(d, np.diff(S.indptr)) * d[S.indices], S.indices, S.indptr), shape=S.shape)


def measure(run: Run, name: str, S: sp.csr_matrix, repeats: int) -> None:
    b = S @ np.random.default_rng(0).uniform(-0.5, 0.5, S.shape[0])
    given = [changed(S, k) for k in range(repeats + 2)]
    times: dict[str, list[float]] = {FIRST: [], SECOND: []}
    found: dict[str, Any] = {}
    for k in range(repeats + 1):  # the first pair only warms up
        forget()
        for variant, A in ((FIRST, given[k]), (SECOND, given[k + 1])):
            begun = time.process_time()
            found[variant] = finelu.solve(A, b, RTOL, verbose=False)
            if k:
                times[variant].append(1e3 * (time.process_time() - begun))
    forget()
    alone = finelu.solve(given[-1], b, RTOL, verbose=False)
    last = found[SECOND].attempts[-1]
    same = bool(np.array_equal(alone.x, found[SECOND].x))
    for variant, each in times.items():
        s = found[variant]
        A = given[-1] if variant == SECOND else given[-2]
        residual = float(np.linalg.norm(b - A @ s.x) / np.linalg.norm(b))
        detail = {
            "each": each,
            "converged": s.converged,
            "recipe": last.recipe,
            "method": last.method,
            "same bits": same,
        }
        run.records.append(Record(name, BOTH, "cpu", "finelu", variant, min(each), None, residual, detail=detail))


def ratio(run: Run, name: str) -> float | None:
    first, second = (run.one(matrix=name, variant=variant) for variant in (FIRST, SECOND))
    if first is None or second is None or not (first.detail["converged"] and second.detail["converged"]):
        return None
    served = second.detail["recipe"].startswith("SparseLU")
    return first.numeric_ms / second.numeric_ms if served and first.numeric_ms and second.numeric_ms else None


def claims(run: Run) -> str:
    found = {name: r for name in run.matrices if (r := ratio(run, name)) is not None}
    if not found:
        return ""
    worst = min(found, key=lambda name: found[name])
    line = ("first over second", len(found), f"{mean(found.values()):.2f}", f"{found[worst]:.2f} {worst}")
    return table(("time of `solve`", "matrices", "mean", "least"), [line])


def page(run: Run) -> str:
    lines = []
    for name, facts in run.matrices.items():
        first, second = (run.one(matrix=name, variant=variant) for variant in (FIRST, SECOND))
        if first is not None and second is not None:
            d = second.detail
            bits = "yes" if d["same bits"] else "no"
            times = first.numeric_ms, second.numeric_ms, ratio(run, name)
            lines.append((name, facts["n"], facts["nnz"], *times, d["method"], d["recipe"], bits))
    heads = ("matrix", "rows", "entries", "first", "second", "ratio", "method", "recipe", "bits as if alone")
    return f"{run.heading()}\n{claims(run)}\n## ms of the processor\n\n{table(heads, lines)}{run.footing()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.second_solve", description=__doc__)
    add_options(parser)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="pairs of calls, of which the fastest count")
    options = parser.parse_args(argv)
    run = new_run("second-solve", gpu=False, machine_name=options.machine)
    run.options = {"repeats": options.repeats, "threads": finelu.get_num_threads(), "times": "processor"}
    folder = options.matrix_folder or matrix_folder()
    names = options.matrices.split(",") if options.matrices else MATRICES[:6] if options.quick else MATRICES

    def one(name: str, _: None) -> str:
        S = sp.csr_matrix(finelu.read_matrix(folder / f"{name}.mtx.gz"))
        run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz}
        with run.attempt(name, BOTH):
            measure(run, name, S, options.repeats)
        found = ratio(run, name)
        return "" if found is None else f"{found:.2f}"

    return carry_out(run, ((name, None) for name in names), one, options, page, claims)


if __name__ == "__main__":
    command(main)
