"""Claim: with finelu's simple rule, most real systems for which ILU(0) or IC(0) exists are solved to 1e-8.

Every matrix of a folder (FINELU_MATRICES, or ../shared/matrices) is factored and solved on the CPU: by the rule of
`finelu solve`, that is IC(0) with CG where A is Hermitian with a positive diagonal, else ILU(0) with GMRES(30); by
ILU(0) with GMRES(30) also where the IC(0) of the rule breaks down or CG does not converge; and by ILU(0) with BiCGStab.
Each solve is judged by ||b - A x||_2 / ||b||_2, computed here with SciPy from the matrix as it was read.

    python -m benchmarks.claims.solve_all [--matrices memplus,fv2] [--seconds 60] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import finelu as fl
from benchmarks.harness.options import add_place, command
from benchmarks.harness.record import ENDING, machine, page_of, replace_text, write
from benchmarks.harness.suite import files, matrix_folder
from benchmarks.harness.table import table
from finelu.errors import FileError, MatrixError, ParameterError, ZeroPivot
from finelu.matrix import as_csr
from finelu.matrix.traits import traits

SEED, RTOL, MAXITER, RESTART = 0, 1e-8, 2000, 30
RULE, FALLBACK, ALTERNATIVE = "rule", "fallback", "alternative"
ROUNDING = 1.01  # the residual here and that of finelu are rounded differently


@dataclass(frozen=True)
class Outcome:
    """One attempt at one matrix.

    part : RULE, FALLBACK (ILU0 with gmres after the rule failed) or ALTERNATIVE (ILU0 with bicgstab).
    factor_ms : of the second factorization, so that nothing is compiled in it; analysis of the solves included.
    residual : ||b - A x||_2 / ||b||_2.  status : finelu's own, "no factors", "time limit" or "wrong" (a claim of
    convergence that the residual contradicts).  solved : the residual is at most RTOL.
    """

    part: str
    recipe: str
    method: str
    status: str
    solved: bool = False
    reason: str = ""
    factor_ms: float | None = None
    iterations: int | None = None
    residual: float | None = None


def reason_of(error: MatrixError | ZeroPivot) -> str:
    """Why there are no factors, in a few words."""
    if isinstance(error, ZeroPivot):
        what = "is not positive" if isinstance(error.recipe, fl.IC0) else "is zero or not finite"
        return f"the pivot of row {error.row} {what}"
    missing = re.search(r"no diagonal entry in row (\d+)(?: \((\d+) such rows\))?", str(error))
    return f"no diagonal entry in {missing[2] or 1} rows (first: {missing[1]})" if missing else str(error)


def attempt(part: str, S: Any, b: Any, factors: Any, recipe: Any, method: str, seconds: float) -> Outcome:
    """Solve with `factors`, a pair of the factors of `recipe` and the ms they took, or the error they ended in."""
    name = f"{method}({RESTART})" if method == "gmres" else method
    if isinstance(factors, Exception):
        return Outcome(part, repr(recipe), name, "no factors", reason=reason_of(factors))
    F, factor_ms = factors
    options: dict[str, Any] = {"restart": RESTART} if method == "gmres" else {}
    end = time.perf_counter() + seconds
    solution = getattr(fl, method)(
        S, b, M=F, rtol=RTOL, maxiter=MAXITER, watch=lambda *_: time.perf_counter() > end, **options
    )
    residual = float(np.linalg.norm(b - S @ solution.x) / np.linalg.norm(b))
    solved = residual <= ROUNDING * RTOL
    status = solution.status.name.lower().replace("_", " ")
    if solution.status is fl.Status.INTERRUPTED:
        status = "time limit"
    elif solution.converged and not solved:
        status = "wrong"
    return Outcome(part, repr(recipe), name, status, solved, "", factor_ms, solution.iterations, residual)


def factored(recipe: Any, A: Any) -> Any:
    """(factors, ms), or the error that says why there are none; timed at the second time."""
    try:
        recipe.factor(A)
        start = time.perf_counter()
        F = recipe.factor(A)
    except (MatrixError, ZeroPivot) as error:
        return error
    return F, 1e3 * (time.perf_counter() - start)


def solve_one(S: Any, seconds: float) -> Iterator[Outcome]:
    """The attempts at one matrix (scipy.sparse, as it was read)."""
    b = np.random.default_rng(SEED).uniform(-0.5, 0.5, S.shape[0])
    A = as_csr(S, diagonal=False)
    ilu0 = factored(fl.ILU0(), A)
    if traits(A).definite:
        first = attempt(RULE, S, b, factored(fl.IC0(), A), fl.IC0(), "cg", seconds)
        yield first
        if not first.solved:
            yield attempt(FALLBACK, S, b, ilu0, fl.ILU0(), "gmres", seconds)
    else:
        yield attempt(RULE, S, b, ilu0, fl.ILU0(), "gmres", seconds)
    yield attempt(ALTERNATIVE, S, b, ilu0, fl.ILU0(), "bicgstab", seconds)


def counts(results: dict[str, dict[str, Any]]) -> list[tuple[str, int]]:
    """The last table of the page: (what, how many matrices)."""
    attempts = [[Outcome(**o) for o in r["outcomes"]] for r in results.values()]

    def number(*parts: str) -> int:
        return sum(any(o.solved and o.part in parts for o in outcomes) for outcomes in attempts)

    with_factors = [outcomes for outcomes in attempts if any(o.status != "no factors" for o in outcomes)]
    lines = [
        ("matrices", len(attempts)),
        ("with an ILU(0) or IC(0)", len(with_factors)),
        ("solved by the rule", number(RULE)),
        ("solved by the rule or its fallback", number(RULE, FALLBACK)),
        ("solved by ILU0() and bicgstab", number(ALTERNATIVE)),
        ("solved by any of them", number(RULE, FALLBACK, ALTERNATIVE)),
    ]
    ends = Counter(
        [o for o in outcomes if o.part != ALTERNATIVE][-1].status
        for outcomes in with_factors
        if not any(o.solved for o in outcomes)
    )
    return lines + [(f"solved by none; the rule or its fallback ended with: {end}", k) for end, k in ends.most_common()]


def page(facts: dict[str, Any], results: dict[str, dict[str, Any]]) -> str:
    """The Markdown page: the rule and its fallback, bicgstab, the matrices without factors, the counts."""
    lines, without = [], []
    for name, result in results.items():
        outcomes = [Outcome(**o) for o in result["outcomes"]]
        other = outcomes[-1]
        if all(o.status == "no factors" for o in outcomes):
            without.append((name, result["n"], result["nnz"], "; ".join(dict.fromkeys(o.reason for o in outcomes))))
            continue
        columns = (other.iterations, other.residual, "no factors" if other.reason else other.status)
        for k, o in enumerate(outcomes[:-1]):
            status = f"no factors: {o.reason}" if o.reason else o.status
            ours = (o.recipe, o.factor_ms, o.method, o.iterations, o.residual, status)
            lines.append((name, result["n"], result["nnz"], *ours, *(columns if k == 0 else ("", "", ""))))
    header = ("matrix", "n", "nnz", "recipe", "factor ms", "method", "iterations", "residual", "status")
    header += ("bicgstab: iterations", "residual", "status")
    heading = [f"# Every real matrix: what converges, {facts['name']}, {facts['date']}", ""]
    heading += [f"- {key}: {value}" for key, value in facts.items() if key not in ("name", "date")]
    heading += [
        "",
        f"b is uniform in [-0.5, 0.5] (seed {SEED}); rtol {RTOL:g}, at most {MAXITER} iterations (inner ones of GMRES) "
        f"and {facts['seconds a solve, at most']:g} s a solve. residual: ||b - A x||_2 / ||b||_2, computed from the "
        "matrix as it was read. factor ms: all of `factor`, analysis included, kernels compiled. The second line of a "
        "matrix is the fallback, ILU(0) with GMRES(30). The last three columns are ILU(0) with BiCGStab: two products "
        "with A and two solves with L and U an iteration.",
        "",
    ]
    return (
        "\n".join(heading)
        + "\n"
        + table(header, lines)
        + "\n## Without factors\n\n"
        + table(("matrix", "n", "nnz", "why"), without)
        + "\n## Counts\n\n"
        + table(("what", "matrices"), counts(results))
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.solve_all", description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", default="", help="names with commas between them (default: the whole folder)")
    parser.add_argument("--matrix-folder", type=Path, default=matrix_folder(), help="folder of the matrices")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of a solve (default: %(default)s)")
    add_place(parser)
    options = parser.parse_args(argv)
    found = files(options.matrix_folder)
    if not found:
        raise FileError(f"{options.matrix_folder}: there is no matrix here; set FINELU_MATRICES to a folder with some.")
    names = options.matrices.split(",") if options.matrices else list(found)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ParameterError(f"there is no matrix {', '.join(unknown)} in {options.matrix_folder}.")

    m = machine(gpu=False, name=options.machine)
    facts = {"name": options.machine or f"{m['cores']}-core {m['cpu']}", "date": date.today().isoformat()}
    facts |= {key: m[key] for key in ("commit", "cpu", "cores", "python", "finelu", "numpy", "scipy", "numba")}
    facts |= {"threads": fl.get_num_threads(), "seconds a solve, at most": options.seconds}
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        S = fl.read_matrix(found[name]).tocsr()
        results[name] = {"n": S.shape[0], "nnz": S.nnz, "outcomes": []}
        for outcome in solve_one(S, options.seconds):
            results[name]["outcomes"].append(asdict(outcome))
            print(f"{name}: {outcome.recipe}, {outcome.method}: {outcome.status} {outcome.reason}", flush=True)
    path = options.out / f"solve-all-cpu-{facts['date']}{ENDING}"
    record = {"machine": facts, "rtol": RTOL, "maxiter": MAXITER, "restart": RESTART, "seed": SEED, "matrices": results}
    write(path, record)
    replace_text(page_of(path), page(facts, results))
    for what, number in counts(results):
        print(f"{number:4d} {what}")
    wrong = [name for name, r in results.items() if any(o["status"] == "wrong" for o in r["outcomes"])]
    if wrong:
        print(f"a claim of convergence was wrong for {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    command(main)
