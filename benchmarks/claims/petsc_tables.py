"""The tables of `benchmarks.claims.petsc_scaling`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.claims.petsc_worker import MAX_ITERATIONS
from benchmarks.harness.table import table


def page(results: dict[str, list[dict[str, Any]]], facts: dict[str, Any]) -> str:
    text = f"# petsc-scaling, {facts['name']}, {facts['date']}\n\n"
    text += "\n".join(f"- {key}: {value}" for key, value in facts.items() if value not in (None, "")) + "\n"
    for part, lines in results.items():
        if lines:
            text += f"\n## {part}\n\n" + TABLES[part.partition(" ")[0]](lines)
    return text


def converged(x: dict[str, Any], *who) -> bool:
    return all((x[f"{name}_reason"] or 0) > 0 for name in who)


def agreement_table(lines: Sequence[dict[str, Any]]) -> str:
    both = [x for x in lines if converged(x, "petsc", "finelu")]
    same = sum(x["petsc_iterations"] == x["finelu_iterations"] for x in both)
    header = ("matrix", "outer", "processes", "PETSc's ilu", "finelu ILU0", "true residual")
    names = ("matrix", "outer", "ranks", "petsc_iterations", "finelu_iterations", "finelu_residual")
    text = f"GMRES(30), preconditioned from the right, to 1e-8; {same} of {len(both)} the same where both converge.\n\n"
    text += table(header, ([x[name] for name in names] for x in both))
    rest = [x for x in lines if x not in both]
    if rest:
        header = ("matrix", "outer", "processes", "PETSc's ilu", "its reason", "finelu ILU0", "its reason", "error")
        names = ("matrix", "outer", "ranks", "petsc_iterations", "petsc_reason", "finelu_iterations", "finelu_reason")
        text += "\nNot both converge:\n\n" + table(
            header, ([*(x[name] for name in names), x["petsc_error"] or x["finelu_error"]] for x in rest)
        )
    return text


def overhead_table(lines: Sequence[dict[str, Any]]) -> str:
    header = ("rows", "Factors.solve, us", "PCApply, us", "more, us", "of it the copy to y, us")
    rows = (
        (x["n"], x["solve_us"], x["apply_us"], x["apply_us"] - x["solve_us"], x["copy_us"])
        if "apply_us" in x
        else (x.get("error"), "", "", "", "")
        for x in lines
    )
    return "Medians of many calls, one process, one thread, ILU0.\n\n" + table(header, rows)


def fill_table(lines: Sequence[dict[str, Any]]) -> str:
    def shown(found):
        return (
            f"{found['iterations']}{'' if found.get('reason', 0) > 0 else ' *'}" if "iterations" in found else "fails"
        )

    def number(found):
        return found["iterations"] if found.get("reason", -1) > 0 else np.inf

    header = ("matrix", "k", "fill", "PETSc ILU(k)", "ParILUT", "its fill", "MultilevelILU", "its fill", "drop_tol")
    skipped, lines = [x for x in lines if "parilut" not in x], [x for x in lines if "parilut" in x]
    rows = [
        (x["matrix"], x["level"], x["petsc"].get("fill"), *(shown(x[who]) for who in ("petsc", "parilut")),
         x["parilut"].get("fill"), shown(x["multilevel"]), x["multilevel"].get("fill"), x["multilevel"].get("drop_tol"))
        for x in lines
    ]  # fmt: skip
    text = (
        f"GMRES(30), preconditioned from the right, to 1e-8 in at most {MAX_ITERATIONS} iterations (* not reached), "
        "asm, 2 processes.\n\n"
    )
    text += table(header, rows) + "\n"
    for level in (0, 1):
        chosen = [x for x in lines if x["level"] == level]
        both = [(number(x["petsc"]), min(number(x["parilut"]), number(x["multilevel"]))) for x in chosen]
        fewer = sum(ours < theirs for theirs, ours in both)
        equal = sum(ours == theirs < np.inf for theirs, ours in both)
        text += f"\nk = {level}: fewer iterations on {fewer} of {len(both)}, as many on {equal}.\n"
    for x in skipped:
        text += f"\n{x['matrix']}, k = {x['level']}: PETSc has no factors ({x['petsc'].get('error')}).\n"
    return text


def failures_table(lines: Sequence[dict[str, Any]]) -> str:
    hung = [x for x in lines if "reasons" not in x]
    reasons = sorted({tuple(x["reasons"]) for x in lines if "reasons" in x})
    status = sum(x["status"] == 0 for x in lines)
    text = (
        f"{len(lines)} runs: {len(lines) - len(hung)} ended by themselves, {len(hung)} did not; {status} with "
        f"exit status 0; the longest took {max(x['seconds'] for x in lines):.1f} s, start of Python and MPI included; "
        f"the solve that failed {max((x.get('failed_seconds', 0) for x in lines), default=0):.2f} s at most.\n\n"
    )
    header = ("outer", "fails", "runs", "all processes have PETSc's reason", "the next set-up heals")
    rows = []
    for outer, kind in dict.fromkeys((x["outer"], x["kind"]) for x in lines):
        chosen = [x for x in lines if (x["outer"], x["kind"]) == (outer, kind)]
        ended = [x for x in chosen if "reasons" in x]
        rows.append(
            (outer, kind, len(chosen), sum(x["reasons"][0] < 0 and x["everywhere"] for x in ended),
             sum(x["reasons"][1] > 0 for x in ended))
        )  # fmt: skip
    text += table(header, rows) + f"\nReasons met (failed, healed): {reasons}\n"
    for x in hung:
        text += f"\n{x['outer']}, {x['kind']}, {x['ranks']} processes: {x['error']}\n"
    return text


def subdomains_table(lines: Sequence[dict[str, Any]]) -> str:
    plain = [x for x in lines if not x.get("coarse")]
    recipes = tuple(dict.fromkeys(x["recipe"] for x in plain))
    header = ("subdomains", "overlap", *recipes)
    found = {(x["subdomains"], x["overlap"], x["recipe"]): x.get("iterations") for x in plain}
    places = dict.fromkeys((x["subdomains"], x["overlap"]) for x in plain)
    rows = [(*place, *(found.get((*place, recipe), "") for recipe in recipes)) for place in places]
    text = (
        "7-point convection-diffusion 40^3, restricted asm, GMRES(30), preconditioned from the right, to 1e-8: "
        "iterations.\n\n" + table(header, rows)
    )
    header = ("grid", "preconditioner", "iterations")
    rows = [(x["matrix"], x["recipe"], x.get("iterations")) for x in lines if x.get("coarse")]
    return text + "\nWith a coarse space, 2 processes:\n\n" + table(header, rows)


def coupled_table(lines: Sequence[dict[str, Any]]) -> str:
    names = [name for name in lines[0] if isinstance(lines[0][name], dict)]

    def shown(found: dict[str, Any]) -> Any:
        return found["iterations"] if (found["reason"] or 0) > 0 else f"not solved: {found['error'] or found['reason']}"

    rows = [(x["kind"], x["ranks"], x["rows"], *(shown(x[name]) for name in names)) for x in lines]
    return (
        "Iterations of cg to 1e-8 on 7-point grids, and for elasticity with the rigid body modes. Each process has a "
        "cube of cells, or a slab of a beam; conductivities are constant, from 1e-3 to 1e3 at random in each cell "
        "(jumps), or 1e3 and 1e-3 in layers of seven cells along z. Schwarz: one coarse space for all. Schwarz "
        "in each: one of "
        "its own in each process, by bjacobi. Schwarz on one: the same system on one process.\n\n"
        + table(("conductivities", "processes", "rows", *names), rows)
    )


def multigrid_table(lines: Sequence[dict[str, Any]]) -> str:
    names = [name for name in lines[0] if isinstance(lines[0][name], dict)]

    def shown(found: dict[str, Any]) -> Any:
        if (found["reason"] or 0) <= 0:
            return f"not solved: {found['error'] or found['reason']}"
        return f"{found['seconds']:.2f} ({found['iterations']})"

    rows = [(x["kind"], x["rows"], *(shown(x[name]) for name in names)) for x in lines]
    return (
        "cg to 1e-8 on 7-point grids, two processes of one thread: seconds of set-up and solve, the faster of two, and "
        "iterations. Conductivities are constant, or from 1e-3 to 1e3 at random in each cell.\n\n"
        + table(("conductivities", "rows", *names), rows)
    )


def weak_table(lines: Sequence[dict[str, Any]]) -> str:
    header = ("outer", "inner", "processes", "GPUs", "rows", "set-up, s", "efficiency", "ms an iteration", "efficiency",
              "preconditioner, ms", "efficiency", "copies of it, ms", "GB/s of the solve", "GB/s triad",
              "iterations to 1e-8", "largest process, MiB")  # fmt: skip
    rows = []
    for x in lines:
        if "ms_an_iteration" not in x:
            rows.append((x["outer"], x["who"], x["ranks"], x.get("error")))
            continue
        same = [y for y in lines if (y["outer"], y["who"]) == (x["outer"], x["who"]) and "ms_an_iteration" in y]
        first = min(same, key=lambda y: y["ranks"])
        of_first = {
            name: first[name] / x[name] if first[name] and x[name] else ""
            for name in ("setup_seconds", "ms_an_iteration", "pc_ms")
        }
        gpus = "" if x["gpus"] is None else f"{x['gpus']}{' (shared)' if x['ranks'] > x['gpus'] else ''}"
        rows.append(
            (x["outer"], x["who"], x["ranks"], gpus, x["n"], x["setup_seconds"], of_first["setup_seconds"],
             x["ms_an_iteration"], of_first["ms_an_iteration"], x["pc_ms"], of_first["pc_ms"], x["copy_ms"], x["gbs"],
             x["triad_gbs"], x["iterations"], x["mib"])
        )  # fmt: skip
    rows = [(*row, *("" for _ in range(len(header) - len(row)))) for row in rows]
    return (
        "GMRES(30), 60 iterations, the fastest of some runs, one thread a process. Efficiency: the time of the fewest "
        "processes over this one. Copies: of one vector to the GPU and one back, all processes at once, timed alone. "
        "Bytes are those that must move: the matrix and the factors once, the vectors of products, solves and "
        "orthogonalization once each.\n\n" + table(header, rows)
    )


def files_table(lines: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for x in lines for name in x.get("seconds", {})))
    rows = ((x["ranks"], x.get("iterations"), *(x.get("seconds", {}).get(name) for name in names)) for x in lines)
    return table(("processes", "iterations", *(f"{name}, s" for name in names)), rows)


TABLES = {
    "agreement": agreement_table,
    "overhead": overhead_table,
    "fill": fill_table,
    "failures": failures_table,
    "subdomains": subdomains_table,
    "coupled": coupled_table,
    "multigrid": multigrid_table,
    "weak": weak_table,
    "files": files_table,
}
