"""Claim: inside PETSc, finelu's ILU(0) is PETSc's own iteration for iteration, a call costs below 10 us more than the
factors alone, its stronger recipes save iterations at equal fill, and a failure on one process never hangs the others.

This process starts the others: `mpiexec -n P python -m benchmarks.claims.petsc_worker ...`, with the
mpiexec in the folder of this Python or in the PATH. Parts, all but the last three by default:

    agreement   iterations with PETSc's ILU(0) and with finelu's, for asm and bjacobi, on --ranks processes
    overhead    one apply through petsc4py compared with Factors.solve, one process
    fill        iterations of PETSc's ILU(k) and of finelu's recipes with at most its fill, real matrices, 2 processes
    failures    100 runs in which one process fails, in its set-up or while it is applied, for asm, bjacobi, the PC
                alone and the smoother of gamg: whether all end, with what reason, after what time
    subdomains  iterations against the number of subdomains, overlap, and multigrid around the smoother
    coupled     iterations of cg with Schwarz against the number of processes, with as many rows on each, for constant
                and for random conductivities, layers and elasticity; the same system on one process; others
    multigrid   time and iterations of cg with Schwarz, gamg and BoomerAMG (if PETSc has hypre), set-up included, from
                10^5 to 4*10^6 rows on two processes of one thread
    weak        weak scaling: --rows rows a process; time of an iteration and bandwidth of the memory
    files       finelu solve --petsc: time of its parts for --file

    python -m benchmarks.claims.petsc_scaling --parts agreement,overhead,fill,failures,subdomains
    python -m benchmarks.claims.petsc_scaling --parts weak --ranks 1,2,4,8,16 --rows 100000
    python -m benchmarks.claims.petsc_scaling --parts weak --ranks 1,2,4,8 --rows 1000000 --device cuda
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.claims.petsc_tables import TABLES, page
from benchmarks.harness import ROOT
from benchmarks.harness.options import add_place, command
from benchmarks.harness.record import ENDING, machine, page_of, read, replace_text, write
from finelu.errors import DeviceError, ParameterError

OURS = "-sub_pc_type python -sub_pc_python_type finelu.interop.petsc.PC"
TRUE = "-ksp_pc_side right"  # so that GMRES looks at the true residual
PARTS = ("agreement", "overhead", "fill", "failures", "subdomains", "coupled", "multigrid", "weak", "files")
AGREEMENT = ("grid:24", "grid:64", "memplus", "cage11", "of_pitzDaily_U", "opm_egg_3ph", "orsirr_1", "sherman3")
HARDER = (
    "orsirr_1", "bayer10", "cryg2500", "fidapex6", "mipt_two_wells_tpfa", "of_airfoil_nuTilda", "of_hotRoom_h",
    "of_pitzDaily_p", "opm_egg_3ph", "sherman3", "trilinos_nsjac", "tumorAntiAngiogenesis_2", "qccfd_cavity_pc_128",
    "ng_dg_convdiff_b6", "ng_helmholtz_k40", "topopt3d_060",
)  # fmt: skip
ALONE = "-pc_type python -pc_python_type finelu.interop.petsc.PC"
SMOOTHER = f"-pc_type gamg -pc_gamg_coarse_eq_limit 20 -mg_levels_pc_type asm {OURS.replace('-sub', '-mg_levels_sub')}"
OUTER = {
    "asm": f"-pc_type asm {OURS}",
    "bjacobi": f"-pc_type bjacobi {OURS}",
    "alone": ALONE,
    "gamg, Richardson": f"{SMOOTHER} -mg_levels_ksp_type richardson",
    "gamg, Chebyshev": SMOOTHER,  # heals by a new solver: docs/petsc.md
}
RUNS = 100
LIMIT = 600  # seconds of one start of mpiexec


def started(
    ranks: int, part: str, options: Sequence[str] = (), limit: float = LIMIT, one_thread: bool = False, **arguments
) -> dict[str, Any]:
    """The result of the worker of this part on `ranks` processes; {"error": why} where it fails, or does not end.

    Either has "status", the exit status of mpiexec, None where it had to be ended.
    """
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpiexec is None:
        raise DeviceError("there is no mpiexec; install an MPI, such as pip's mpich.")
    program = [
        sys.executable,
        "-m",
        "benchmarks.claims.petsc_worker",
        json.dumps({"part": part, **arguments}),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    if part == "weak" or one_thread:  # a process is a core
        environment["FINELU_NUM_THREADS"] = "1"
    words = [mpiexec, *(["-bind-to", "core"] if arguments.get("bind") else []), "-n", str(ranks), *program, *options]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(words, **pipes, text=True, env=environment, cwd=ROOT, start_new_session=True) as process:
        try:
            stdout, stderr = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"error": f"no end after {limit:g} s", "status": None}
    status = {"status": process.returncode}
    for line in stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT ")) | status
    return {"error": (stderr.strip().splitlines() or ["no message"])[-1]} | status


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def agreement(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in given.matrices or AGREEMENT:
        for ranks in given.ranks:
            for outer in ("asm", "bjacobi"):
                line: dict[str, Any] = {"matrix": name, "ranks": ranks, "outer": outer}
                for who, inner in (("petsc", "-sub_pc_type ilu"), ("finelu", OURS)):
                    found = started(ranks, "solve", f"{TRUE} -pc_type {outer} {inner}".split(), matrix=name)
                    line |= {f"{who}_{key}": found.get(key) for key in ("iterations", "reason", "residual", "error")}
                report(f"{name} {outer} on {ranks}: {line['petsc_iterations']} and {line['finelu_iterations']}")
                yield line


def overhead(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for n in (8, 24, 46):
        yield started(1, "overhead", n=n)


def fill(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """For each level k of PETSc's ILU: what finelu's recipes reach with no more fill than it has."""
    ranks = 2
    for name in given.matrices or HARDER:
        for level in (0, 1):
            options = f"{TRUE} -pc_type asm -sub_pc_type ilu -sub_pc_factor_levels {level}".split()
            line: dict[str, Any] = {
                "matrix": name,
                "level": level,
                "petsc": started(ranks, "solve", options, matrix=name),
            }
            room = line["petsc"].get("fill")
            if room is None:  # nothing to compare with
                report(f"{name} ILU({level}): no fill is known: {line['petsc'].get('error')}")
            else:
                line["parilut"] = first_that_fits(
                    ranks, name, room, "parilut", ({"fill": share * room} for share in (1.0, 0.99, 0.95, 0.9))
                )
                line["multilevel"] = best_multilevel(ranks, name, room)
                report(
                    f"{name} ILU({level}) {line['petsc'].get('iterations')} at {room:.3g}: "
                    + ", ".join(f"{who} {line[who].get('iterations')}" for who in ("parilut", "multilevel"))
                )
            yield line


def fits(found: dict[str, Any], room: float) -> bool:
    return found.get("fill") is not None and found["fill"] <= room


def with_recipe(ranks: int, name: str, recipe: str, values: dict[str, float]) -> dict[str, Any]:
    options = f"{TRUE} -pc_type asm {OURS} -sub_finelu_recipe {recipe}"
    options += "".join(f" -sub_finelu_{key} {value}" for key, value in values.items())
    return started(ranks, "solve", options.split(), matrix=name) | values


def first_that_fits(
    ranks: int, name: str, room: float, recipe: str, offers: Iterable[dict[str, float]]
) -> dict[str, Any]:
    """The first of the parameters that keep to the room; what fails without factors has no fill, and fails."""
    for values in offers:
        found = with_recipe(ranks, name, recipe, values)
        if found.get("fill") is None or fits(found, room):
            return found
    return {"error": "more fill than allowed"}


def best_multilevel(ranks: int, name: str, room: float) -> dict[str, Any]:
    """MultilevelILU with the smallest of some drop tolerances that keeps to the room."""
    best: dict[str, Any] = {"error": "more fill than allowed at each drop tolerance"}
    for drop_tol in (0.5, 0.2, 0.1, 0.03, 0.01, 0.001):
        found = with_recipe(ranks, name, "multilevel", {"dense_size": 50, "drop_tol": drop_tol})
        if found.get("fill") is None:
            return best if "fill" in best else found
        if not fits(found, room):
            break
        best = found
    return best


def failures(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Seconds from the failure's solve to the end of all processes are below the time of the whole start."""
    for k in range(RUNS):
        outer = list(OUTER)[k // 4 % len(OUTER)]
        kind = ("pivot", "nan", "missing", "apply")[k % 4]
        if outer.startswith("gamg"):  # with which other parts of PETSc would meet such a matrix first
            kind = ("set-up", "apply")[k % 2]
        ranks = 2 + k // (4 * len(OUTER)) % 2
        bad = k // (8 * len(OUTER)) % ranks
        begin = time.perf_counter()
        anew = outer == "gamg, Chebyshev"
        found = started(ranks, "failure", OUTER[outer].split(), limit=60, kind=kind, bad=bad, anew=anew)
        found |= {"kind": kind, "ranks": ranks, "bad": bad, "outer": outer, "seconds": time.perf_counter() - begin}
        yield found
        if (k + 1) % 10 == 0:
            report(f"{k + 1} failures")


def subdomains(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """On two processes, which share the subdomains: what counts is their number."""
    kinds = {
        "ILU(0)": "-sub_finelu_recipe ilu0",
        "ILUT(1e-3)": "-sub_finelu_recipe ilut -sub_finelu_drop_tol 1e-3",
        "SparseLU": "-sub_finelu_recipe sparse_lu",
    }
    name = "grid:40"
    for blocks in (2, 4, 8, 16, 32, 64):
        for what, recipe in kinds.items():
            for overlap in (0, 1, 2):
                options = f"{TRUE} -pc_type asm -pc_asm_blocks {blocks} -pc_asm_overlap {overlap} {OURS} {recipe}"
                found = started(2, "solve", options.split(), matrix=name)
                yield {"matrix": name, "subdomains": blocks, "recipe": what, "overlap": overlap} | found
        report(f"{blocks} subdomains")
    for size in (20, 40, 60):
        for what, outer in (
            ("asm alone", f"-pc_type asm {OURS}"),
            ("gamg, ILU(0) smoother", f"-pc_type gamg -mg_levels_pc_type asm {OURS.replace('-sub', '-mg_levels_sub')}"),
        ):
            found = started(2, "solve", f"{TRUE} {outer}".split(), matrix=f"grid:{size}")
            yield {"matrix": f"grid:{size}", "recipe": what, "coarse": True} | found


COUPLED = {
    "Schwarz": f"{ALONE} -finelu_recipe schwarz",
    "Schwarz in each": "-pc_type bjacobi " + OURS + " -sub_finelu_recipe schwarz",
    "ILU0, asm": f"-pc_type asm -pc_asm_type basic {OURS}",
    "gamg": "-pc_type gamg",
}
EDGE = 24  # cells along the box of a process
BOXES = {1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 2, 1), 8: (2, 2, 2), 16: (4, 2, 2)}


def coupled(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Processes may be more than cores: what counts is iterations."""
    for kind in ("constant", "jumps", "layers", "elasticity"):
        for ranks in (1, 2, 4, 8, 16):
            boxes = BOXES[ranks]
            line: dict[str, Any] = {"kind": kind, "ranks": ranks, "rows": ranks * EDGE**3}
            for who, processes in (*((who, ranks) for who in COUPLED), ("Schwarz on one", 1)):
                options = f"-ksp_type cg -ksp_norm_type unpreconditioned {COUPLED[who.removesuffix(' on one')]}"
                found = started(processes, "coupled", options.split(), kind=kind, edge=EDGE, boxes=boxes)
                line[who] = {key: found.get(key) for key in ("iterations", "reason", "residual", "error")}
                line["rows"] = found.get("n", line["rows"])
            report(
                f"{kind} on {ranks}: "
                + ", ".join(f"{who} {line[who]['iterations']}" for who in (*COUPLED, "Schwarz on one"))
            )
            yield line


MULTIGRID = {
    "Schwarz": COUPLED["Schwarz"],
    "gamg": COUPLED["gamg"],
    "BoomerAMG": "-pc_type hypre",
    "BoomerAMG, threshold 0.5": "-pc_type hypre -pc_hypre_boomeramg_strong_threshold 0.5",
}


def multigrid(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each process solves twice: the first time loads kernels."""
    for kind in ("constant", "jumps"):
        for edge in (37, 79, 126):
            line: dict[str, Any] = {"kind": kind, "rows": 2 * edge**3}
            for who, preconditioner in MULTIGRID.items():
                options = f"-ksp_type cg -ksp_norm_type unpreconditioned {preconditioner}"
                task: dict[str, Any] = {"kind": kind, "edge": edge, "boxes": (2, 1, 1), "repeats": 2}
                found = started(2, "coupled", options.split(), one_thread=True, **task)
                line[who] = {key: found.get(key) for key in ("iterations", "reason", "seconds", "error")}
            report(f"{kind}, {line['rows']}: " + ", ".join(f"{who} {line[who]['seconds']}" for who in MULTIGRID))
            yield line


def weak(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    inner = f"{OURS} -sub_finelu_recipe {given.recipe} -sub_finelu_device {given.device}"
    for outer, who, options in (
        ("asm", "petsc ilu", "-pc_type asm -sub_pc_type ilu"),
        ("asm", f"finelu {given.recipe}", f"-pc_type asm {inner}"),
        ("bjacobi", f"finelu {given.recipe}", f"-pc_type bjacobi {inner}"),
    ):
        for ranks in given.ranks:
            device = given.device if who.startswith("finelu") else "cpu"
            found = started(ranks, "weak", options.split(), rows=given.rows, bind=given.bind, device=device)
            report(f"{outer} {who} on {ranks}: {found.get('ms_an_iteration') or found}")
            yield {"outer": outer, "who": who, "ranks": ranks} | found


def from_files(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if given.file is None:
        raise ParameterError("the part files needs --file A.mtx.")
    for ranks in given.ranks:
        yield {"ranks": ranks} | started(ranks, "file", path=str(given.file))


MEASURE = {
    "agreement": agreement,
    "overhead": overhead,
    "fill": fill,
    "failures": failures,
    "subdomains": subdomains,
    "coupled": coupled,
    "multigrid": multigrid,
    "weak": weak,
    "files": from_files,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="agreement,overhead,fill,failures,subdomains,coupled")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of processes, with commas between them")
    parser.add_argument("--matrices", default="", help="names of the parts agreement and fill")
    parser.add_argument("--rows", type=int, default=100_000, help="of each process, for weak")
    parser.add_argument("--recipe", default="ilu0", help="of weak")
    parser.add_argument("--device", default="cpu", help="of weak: cpu or cuda")
    parser.add_argument("--bind", action="store_true", help="bind each process of weak to a core (MPICH, Open MPI)")
    parser.add_argument("--file", type=Path, help="a matrix for files")
    add_place(parser)
    given = parser.parse_args(argv)
    given.ranks = [int(text) for text in given.ranks.split(",")]
    given.matrices = [name for name in given.matrices.split(",") if name]
    parts = given.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        raise ParameterError(f"there is no part {sorted(unknown)[0]!r}; there are {', '.join(PARTS)}.")
    facts = machine(given.device == "cuda", given.machine) | {"date": date.today().isoformat()}
    path = given.out / f"petsc-scaling-{facts['name']}-{facts['date']}{ENDING}"
    known = read(path) if path.exists() else {}
    results = known.get("results", {})  # of the same day and machine: parts may be measured one by one
    for part in parts:
        key = f"{part} {given.device}" if part == "weak" else part
        results[key] = []
        for line in MEASURE[part](given):
            results[key].append(line)
            ordered = {key: results[key] for part in PARTS for key in results if key.partition(" ")[0] == part}
            write(path, {"machine": facts, "results": ordered})
            replace_text(page_of(path), page(ordered, facts))
        print(f"\n## {key}\n\n" + TABLES[part](results[key]))
    return 0


if __name__ == "__main__":
    command(main)
