"""Claim: of each real system `solve` finds x, or shows within a minute that it is singular or that the precision ends.

Every matrix of a folder (FINELU_MATRICES, or ../shared/matrices) with b = A 1 and with random b: finelu.solve(A, b,
time_limit=..., certify=True), called a second time, so that kernels are compiled. The residual is computed here from
the matrix as it was read.

    python -m benchmarks.claims.certified [--matrices memplus,fv2] [--seconds 60] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import finelu as fl
from benchmarks.harness.options import add_place, command
from benchmarks.harness.record import ENDING, machine, page_of, replace_text, write
from benchmarks.harness.suite import files, matrix_folder
from benchmarks.harness.table import table
from finelu import Status
from finelu.errors import FileError

ENDED = (Status.CONVERGED, Status.SINGULAR, Status.NUMERICALLY_SINGULAR, Status.PRECISION_LIMIT)
RTOL, SEED = 1e-8, 0


def right_hand_sides(S: Any) -> dict[str, np.ndarray]:
    n = S.shape[0]
    return {"A 1": S @ np.ones(n), "random": np.random.default_rng(SEED).standard_normal(n)}


def solve_one(S: Any, b: np.ndarray, seconds: float) -> dict[str, Any]:
    fl.solve(S, b, RTOL, time_limit=seconds)
    begin = time.perf_counter()
    solution = fl.solve(S, b, RTOL, time_limit=seconds, certify=True)
    spent = time.perf_counter() - begin
    residual = float(np.linalg.norm(b - S @ solution.x) / np.linalg.norm(b))
    return {
        "status": solution.status.name.lower().replace("_", " "),
        "ended": solution.status in ENDED,
        "false": bool(solution.converged and residual > 1.01 * RTOL),
        "recipe": solution.recipe,
        "seconds": spent,
        "residual": residual,
        "row_residual": solution.row_residual,
        **asdict(solution.certificate),
    }


def page(facts: dict[str, Any], results: dict[str, Any]) -> str:
    lines = [f"# Real systems with their certificates, {facts['name']}, {facts['date']}", ""]
    lines += [f"- {key}: {value}" for key, value in facts.items() if key not in ("name", "date")]
    found = [o for r in results.values() for o in r["outcomes"].values()]
    counts = ", ".join(f"{number} {what}" for what, number in Counter(o["status"] for o in found).most_common())
    lines += [
        "",
        f"{len(results)} matrices, {len(found)} systems: {counts}; {sum(o['false'] for o in found)} false claims;",
    ]
    lines[-1] += f" the longest took {max(o['seconds'] for o in found):.3g} s, certificate included."
    header = ("matrix", "n", "b", "status", "recipe", "s", "residual", "of equilibrated rows", "normwise error")
    header += ("componentwise error", "condition", "error of x, at most", "least residual")
    keys = (
        "status",
        "recipe",
        "seconds",
        "residual",
        "row_residual",
        "normwise",
        "componentwise",
        "condition",
        "error",
    )
    rows = (
        (name, r["n"], b, *(o[key] for key in (*keys, "least_residual")))
        for name, r in results.items()
        for b, o in r["outcomes"].items()
    )
    return "\n".join([*lines, "", table(header, rows)])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.certified", description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", default="", help="names with commas between them (default: the whole folder)")
    parser.add_argument("--matrix-folder", type=Path, default=matrix_folder(), help="folder of the matrices")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of a solve (default: %(default)s)")
    add_place(parser)
    options = parser.parse_args(argv)
    found = files(options.matrix_folder)
    if not found:
        raise FileError(f"{options.matrix_folder}: there is no matrix here; set FINELU_MATRICES to a folder with some.")
    m = machine(gpu=False, name=options.machine)
    facts = {"name": options.machine or f"{m['cores']}-core {m['cpu']}", "date": date.today().isoformat()}
    facts |= {key: m[key] for key in ("commit", "cpu", "cores", "python", "finelu", "numpy", "scipy", "numba")}
    facts |= {"threads": fl.get_num_threads(), "seconds a solve, at most": options.seconds}
    results: dict[str, Any] = {}
    for name in options.matrices.split(",") if options.matrices else found:
        S = fl.read_matrix(found[name]).tocsr()
        outcomes = {kind: solve_one(S, b, options.seconds) for kind, b in right_hand_sides(S).items()}
        results[name] = {"n": S.shape[0], "nnz": S.nnz, "outcomes": outcomes}
        print(name, *(f"{kind}: {o['status']}, {o['seconds']:.2g} s;" for kind, o in outcomes.items()), flush=True)
    path = options.out / f"certified-{facts['cores']}-core-{facts['date']}{ENDING}"
    write(path, {"machine": facts, "rtol": RTOL, "seed": SEED, "matrices": results})
    replace_text(page_of(path), page(facts, results))
    bad = [name for name, r in results.items() if any(o["false"] or not o["ended"] for o in r["outcomes"].values())]
    print(f"{len(results)} matrices; without an end of the kind claimed: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    command(main)
