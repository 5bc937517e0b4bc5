"""Claim: at the same size ParILUT's factors take at most 0.92 times the iterations of Ginkgo's, and at most 1.1 times
those of ILUT, by the geometric mean; ParICT's likewise compared with Ginkgo's ParICT and with ICT.

`python -m benchmarks.claims.parilut_quality` factors each matrix with a full diagonal by every recipe, all with as many
entries as A has, and counts iterations of GMRES (full, up to 300), or of CG where A is symmetric with a positive
diagonal, to a relative residual of 1e-8 for b = A x, x random. "Ginkgo" takes five steps, with exact selection, on one
thread, where pyGinkgo is installed; "in place" is finelu's own form of that: asynchronous sweeps without scaling, new
values r_ij / u_jj. A ratio is that of the matrices on which both converge; those on which one side alone does are
counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.claims.parilut import spd
from benchmarks.harness.case import loaded, to_gpu
from benchmarks.harness.clock import Budget
from benchmarks.harness.options import add_device, add_options, command, wants_gpu
from benchmarks.harness.record import Record, Run, RunEnded, new_run
from benchmarks.harness.suite import files, matrix_folder, names_of, suite
from benchmarks.harness.table import cell, mean, table
from benchmarks.peers import PeerError, ginkgo
from finelu.errors import FineluError

MOST, RTOL, SEED = 300, 1e-8, 0
ROWS, ENTRIES = (300, 60_000), 1_500_000  # of the matrices: more would take hours of GMRES
OURS, STEPS = "default", 5
WANTED = {"Ginkgo": 0.92, "ILUT": 1.1}
SUMMARY = {
    "Ginkgo": "Ginkgo's ParILUT and ParICT, five steps, exact selection",
    "ILUT": "ILUT and ICT",
    "ILU0": "ILU(0) and IC(0)",
    "synchronous": "five steps of synchronous sweeps",
    "in place": "five steps of asynchronous sweeps on one thread, not scaled",
    "5 steps": "five steps with exact values",
}
PEERS = tuple(SUMMARY)
WORST = 1.1  # times the iterations with Ginkgo's factors: beyond, a matrix is named


def recipes(cholesky: bool, nnz: int) -> dict[str, Any]:
    """Name -> recipe, all of nnz entries in L + U."""
    Adapted, Threshold, Plain = (
        (finelu.ParICT, finelu.ICT, finelu.IC0) if cholesky else (finelu.ParILUT, finelu.ILUT, finelu.ILU0)
    )
    return {
        OURS: Adapted(),
        "5 steps": Adapted(steps=STEPS),
        "synchronous": Adapted(steps=STEPS, sweep="synchronous"),
        "in place": Adapted(steps=STEPS, sweep="asynchronous", sweeps=finelu.Sweeps(initial="scaled"), scale=False),
        "ILUT": Threshold(nnz=nnz),
        "ILU0": Plain(),
    }


def preconditioners(S: sp.csr_matrix, A: Any, cholesky: bool, device: str) -> dict[str, Callable[[], Any]]:
    """Name -> a function that makes M."""
    made: dict[str, Callable[[], Any]] = {
        who: partial(recipe.factor, A) for who, recipe in recipes(cholesky, S.nnz).items()
    }
    if device == "cpu" and ginkgo.available():
        made["Ginkgo"] = partial(ginkgo.preconditioner, S, cholesky, STEPS)
    return made


def measure(run: Run, name: str, S: sp.csr_matrix, device: str) -> None:
    """Every recipe on one matrix."""
    b = S @ np.random.default_rng(SEED).standard_normal(S.shape[0])
    A = finelu.as_csr(S)
    if device == "gpu":
        import cupy

        A, b = to_gpu(A), cupy.asarray(b)
    for cholesky in (True, False) if run.matrices[name]["spd"] else (False,):
        method = "cg" if cholesky else "gmres"
        for who, make in preconditioners(S, A, cholesky, device).items():
            detail: dict[str, Any] = {"iterations": MOST, "converged": False}
            begin, end = perf_counter(), None
            try:
                F = make()
                end = perf_counter()
                more = {} if cholesky else {"restart": MOST}
                solution = getattr(finelu, method)(A, b, M=F, rtol=RTOL, maxiter=MOST, **more)
                detail = {"iterations": solution.iterations, "converged": solution.converged}
                detail |= {"nnz": getattr(F, "nnz", None), "seconds": perf_counter() - begin}
                detail["why"] = solution.status.name
            except (FineluError, PeerError) as error:
                detail["why"] = type(error).__name__
            if not detail["converged"]:
                detail["iterations"] = MOST
            ms = 1e3 * (end - begin) if end else None
            library = "Ginkgo" if who == "Ginkgo" else "finelu"
            run.records.append(Record(name, method, device, library, who, ms, detail=detail))


def pairs(run: Run, method: str, theirs: str) -> Iterator[tuple[str, Record, Record]]:
    """The matrices with our record and theirs, where there are both."""
    for name in run.matrices:
        ours, other = (run.one(matrix=name, work=method, variant=who) for who in (OURS, theirs))
        if ours and other:
            yield name, ours, other


def ratios(run: Run, method: str, theirs: str) -> list[tuple[float, str]]:
    """(our iterations over theirs, matrix) of the matrices on which both converge, the worst last."""
    return sorted(
        (ours.detail["iterations"] / max(other.detail["iterations"], 1), name)
        for name, ours, other in pairs(run, method, theirs)
        if ours.detail["converged"] and other.detail["converged"]
    )


def alone(run: Run, method: str, theirs: str) -> tuple[list[str], list[str]]:
    """The matrices on which only ours converges, and those on which only theirs does."""
    found = [(name, a.detail["converged"], b.detail["converged"]) for name, a, b in pairs(run, method, theirs)]
    return [name for name, a, b in found if a > b], [name for name, a, b in found if a < b]


def claim_table(run: Run) -> str:
    header = ("iterations of the default over those of", "method", "matrices", "wanted", "mean", "worst", "at", "holds",
              "only ours converges on", "only theirs on")  # fmt: skip
    lines = []
    for theirs in PEERS:
        for method in ("gmres", "cg"):
            found = ratios(run, method, theirs)
            if found:
                average, wanted = mean(max(r, 1e-3) for r, _ in found), WANTED.get(theirs)
                assert average is not None
                holds = "-" if wanted is None else "yes" if average <= wanted else "no"
                worst, at = found[-1]
                only = [", ".join(names) or "-" for names in alone(run, method, theirs)]
                lines.append(
                    (called(theirs, method), method, len(found), cell(wanted), f"{average:.3f}", f"{worst:.2f}", at,
                     holds, *only)
                )  # fmt: skip
    return table(header, lines)


def called(theirs: str, method: str) -> str:
    return {"ILUT": "ICT", "ILU0": "IC0"}.get(theirs, theirs) if method == "cg" else theirs


def summary(run: Run) -> str:
    """A row a peer: mean and worst ratio of each method; how many matrices one side alone solves."""
    lines = []
    for theirs in PEERS:
        cells = [SUMMARY[theirs]]
        for method in ("gmres", "cg"):
            found = ratios(run, method, theirs)
            worst, at = found[-1]
            cells += [f"{mean(max(r, 1e-3) for r, _ in found):.2f} ({len(found)} matrices)", f"{worst:.2f}, {at}"]
            cells.append(", ".join(str(len(names)) for names in alone(run, method, theirs)))
        lines.append(cells)
    each = ("mean", "worst", "only ours, theirs")
    return table(("compared with", *(f"{m}, {what}" for m in ("`gmres`", "`cg`") for what in each)), lines)


def count_table(run: Run) -> str:
    names = [*recipes(False, 1), *(["Ginkgo"] if run.find(variant="Ginkgo") else [])]
    lines = []
    for name, facts in run.matrices.items():
        for method in ("cg", "gmres"):
            found = {r.variant: r for r in run.find(matrix=name, work=method)}
            if found:
                counts = (
                    str(found[w].detail["iterations"]) if found[w].detail["converged"] else found[w].detail["why"]
                    for w in names
                )
                lines.append((name, facts["n"], method, *counts))
    return table(("matrix", "n", "method", *names), lines)


def page(run: Run) -> str:
    text = f"{run.heading()}\nIterations to {RTOL:g}, at most {MOST}; ILUT and ILU0 stand for ICT and IC0 with cg.\n\n"
    beyond = [f"{name} ({r:.2f}, {m})" for m in ("gmres", "cg") for r, name in ratios(run, m, "Ginkgo") if r > WORST]
    text += claim_table(run) + f"\nMore than {WORST} times Ginkgo's: {', '.join(beyond) or 'none'}.\n\n"
    return text + count_table(run) + run.footing()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.parilut_quality", description=__doc__)
    add_device(parser, "on the GPU", "on the CPU, one thread")
    add_options(parser)
    options = parser.parse_args(argv)
    gpu = wants_gpu(options)
    finelu.set_num_threads(1)  # so that sweeps in place are what they are called
    run = new_run("parilut-quality-gpu" if gpu else "parilut-quality", gpu=gpu, machine_name=options.machine)
    run.machine["peer"] = ginkgo.version() if ginkgo.available() and not gpu else "Ginkgo is not installed"
    budget, complete = Budget(options.budget), True
    try:
        names = names_of(options.matrices) or list(files(options.matrix_folder or matrix_folder()))
        chosen = suite(options.matrix_folder, [] if options.quick else names, quick=options.quick)
        for name, S in loaded(run, budget, chosen):
            if not (ROWS[0] <= S.shape[0] <= ROWS[1] and S.nnz <= ENTRIES):
                run.left_out[name] = "of another size"
                continue
            if S.dtype.kind == "c" or (S.diagonal() == 0).any():
                run.left_out[name] = "without a full diagonal, or complex"
                continue
            run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "spd": spd(S)}
            with run.attempt(name, "all recipes"):
                measure(run, name, S, "gpu" if gpu else "cpu")
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {name}", flush=True)
    except (RunEnded, KeyboardInterrupt):
        complete = False
    path = run.publish(options.out, page(run))
    print(f"\n{claim_table(run)}{len(run.failures)} failures; {path}")
    return 0 if complete and not run.failures else 1


if __name__ == "__main__":
    command(main)
