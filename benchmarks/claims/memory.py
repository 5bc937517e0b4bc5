"""Claim: the peak of what a factorization takes on the CPU, in bytes for each entry of A.

`python -m benchmarks.claims.memory` factors each matrix by each recipe in a process of its own, after a small system
has compiled its kernels, and reads from the system how far the resident memory rose above its earlier size (`peak`),
and what stays with the factors (`kept`). Allocations of 64 KiB and more are given back to the system at once, so that
no request is hidden by memory that was free before. A itself does not count. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import scipy.sparse as sp

import finelu
from benchmarks.claims.parilut import spd
from benchmarks.harness.case import loaded
from benchmarks.harness.clock import Budget
from benchmarks.harness.options import add_options, command
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import names_of, suite
from benchmarks.harness.table import mean, table
from finelu.compiling import compile_seconds

NAMES = ("ani7", "cage11", "topopt3d_060", "of_squareBend_p", "poisson7:60")
SMALL = "poisson7:8"
RECIPES: dict[str, Callable[[int], Any]] = {  # of the number of A's entries
    "Jacobi()": lambda nnz: finelu.Jacobi(),
    "ILU0()": lambda nnz: finelu.ILU0(),
    "IC0()": lambda nnz: finelu.IC0(),
    "MILU0()": lambda nnz: finelu.MILU0(),
    "ILUK(level=1)": lambda nnz: finelu.ILUK(level=1),
    "ILUT()": lambda nnz: finelu.ILUT(),
    "ILUT(nnz=A.nnz)": lambda nnz: finelu.ILUT(nnz=nnz),
    "ICT()": lambda nnz: finelu.ICT(),
    "ICT(nnz=A.nnz)": lambda nnz: finelu.ICT(nnz=nnz),
    "ParILU()": lambda nnz: finelu.ParILU(),
    "ParIC()": lambda nnz: finelu.ParIC(),
    "ParILUT()": lambda nnz: finelu.ParILUT(),
    "ParICT()": lambda nnz: finelu.ParICT(),
    "BlockILU0(block_size=4)": lambda nnz: finelu.BlockILU0(block_size=4),
    "BlockJacobi(block_size=4)": lambda nnz: finelu.BlockJacobi(block_size=4),
    "MultilevelILU()": lambda nnz: finelu.MultilevelILU(),
    "SparseLU()": lambda nnz: finelu.SparseLU(),
}
UNTRIMMED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
LIMIT = 120.0  # seconds of a process


def status(key: str) -> int:
    """Bytes: VmRSS, the resident memory now, or VmHWM, the most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def factor(recipe: str, name: str, folder: Path | None) -> None:
    """In a process of its own: print peak and kept bytes, and the entries of the factors, as JSON."""
    small = sp.csr_matrix(finelu.gallery.problem(SMALL))
    RECIPES[recipe](small.nnz).factor(small)
    (problem,) = suite(folder, [name])
    S = problem.load()
    compiled = -1.0
    while compiled != compile_seconds():  # again, if that took memory
        F, compiled = None, compile_seconds()
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        F = RECIPES[recipe](S.nnz).factor(S)
        peak, kept = status("VmHWM") - before, status("VmRSS") - before
    print(json.dumps({"peak": peak / S.nnz, "kept": kept / S.nnz, "nnz": int(getattr(F, "nnz", 0)) / S.nnz}))


def measure(run: Run, name: str, folder: Path | None) -> None:
    for recipe in RECIPES:
        if recipe.startswith(("IC", "ParIC")) and not run.matrices[name]["spd"]:
            continue
        if recipe.startswith("BlockILU0") and run.matrices[name]["n"] % 4:
            continue  # no blocks of 4
        arguments = [sys.executable, "-m", "benchmarks.claims.memory", "--one", recipe, name]
        arguments += ["--matrix-folder", str(folder)] if folder else []
        with run.attempt(name, recipe):
            done = subprocess.run(
                arguments, env=os.environ | UNTRIMMED, capture_output=True, text=True, timeout=LIMIT, check=False
            )
            if done.returncode:
                raise RuntimeError((done.stderr.strip() or f"ended with {done.returncode}").splitlines()[-1])
            detail: dict[str, Any] = json.loads(done.stdout)
            run.records.append(Record(name, "factor", "cpu", "finelu", recipe, None, detail=detail))


def claim_table(run: Run) -> str:
    """A row a recipe: bytes for each entry of A."""
    lines = []
    for recipe in RECIPES:
        found = run.find(variant=recipe)
        if found:
            peaks = [(r.detail["peak"], r.matrix) for r in found]
            kept, entries = (mean(r.detail[key] for r in found) for key in ("kept", "nnz"))
            worst, at = max(peaks)
            lines.append((recipe, len(found), mean(p for p, _ in peaks), worst, at, kept, entries))
    return table(("recipe", "matrices", "peak, mean", "worst", "at", "kept, mean", "entries of L + U over A's"), lines)


def page(run: Run) -> str:
    text = f"{run.heading()}\nBytes for each entry of A, int32 and float64.\n\n{claim_table(run)}\n"
    lines = [(r.matrix, r.variant, r.detail["peak"], r.detail["kept"], r.detail["nnz"]) for r in run.records]
    return text + table(("matrix", "recipe", "peak", "kept", "entries over A's"), lines) + run.footing()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.memory", description=__doc__)
    add_options(parser)
    parser.add_argument("--one", nargs=2, metavar=("RECIPE", "MATRIX"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        factor(*options.one, options.matrix_folder)
        return 0
    run = new_run("memory", gpu=False, machine_name=options.machine)
    budget = Budget(options.budget)
    chosen = suite(options.matrix_folder, names_of(options.matrices) or list(NAMES), quick=options.quick)
    for name, S in loaded(run, budget, chosen):
        run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "spd": spd(S)}
        measure(run, name, options.matrix_folder)
        run.save(options.out)
        print(f"{budget.spent():5.0f} s  {name}", flush=True)
    path = run.publish(options.out, page(run))
    print(f"\n{claim_table(run)}{len(run.failures)} failures; {path}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    command(main)
