"""Claim: inside PETSc, finelu's ILU(0) is PETSc's own iteration for iteration, a call costs below 10 us more than the
factors alone, its stronger recipes save iterations at equal fill, and a failure on one process never hangs the others.

This process starts the others: `mpiexec -n P python -m benchmarks.petsc_scaling --worker ...`, the mpiexec beside this
Python or in the PATH. Parts, all but the last two by default:

    agreement   iterations with PETSc's ILU(0) and with finelu's, for asm and bjacobi, on --ranks processes
    overhead    one apply through petsc4py beside Factors.solve, one process
    fill        iterations of PETSc's ILU(k) and of finelu's recipes with at most its fill, real matrices, 2 processes
    failures    100 runs in which one process fails, in its set-up or while it is applied, for asm, bjacobi, the PC
                alone and the smoother of gamg: whether all end, with what reason, after what time
    subdomains  iterations against the number of subdomains, overlap, and multigrid around the smoother
    weak        weak scaling: --rows rows a process; time an iteration beside the memory's bandwidth
    files       finelu solve --petsc: time of its parts for --file

    python -m benchmarks.petsc_scaling --parts agreement,overhead,fill,failures,subdomains
    python -m benchmarks.petsc_scaling --parts weak --ranks 1,2,4,8,16 --rows 100000
    python -m benchmarks.petsc_scaling --parts weak --ranks 1,2,4,8 --rows 1000000 --device cuda
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
from collections.abc import Iterator, Sequence
from datetime import date
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl
from benchmarks.common import RESULTS, command, files, finite, machine, matrix_folder, table, write
from finelu.errors import DeviceError, ParameterError

ROOT = Path(__file__).resolve().parents[1]
OURS = "-sub_pc_type python -sub_pc_python_type finelu.interop.petsc.PC"
TRUE = "-ksp_pc_side right"  # so that GMRES looks at the true residual
PARTS = ("agreement", "overhead", "fill", "failures", "subdomains", "weak", "files")
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
MAX_ITERATIONS, RESTART = 1000, 30
REPEATS = 5
LIMIT = 600  # seconds of one start of mpiexec


# This side: the process that starts the others ------------------------------------------------------------------------


def started(ranks: int, part: str, options: Sequence[str] = (), limit: float = LIMIT, **arguments) -> dict[str, Any]:
    """What the worker of this part gives on so many processes; {"error": why} where it fails, or does not end.

    Either with "status", that of mpiexec, None where it had to be ended.
    """
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpiexec is None:
        raise DeviceError("there is no mpiexec; install an MPI, such as pip's mpich.")
    program = [sys.executable, "-m", "benchmarks.petsc_scaling", "--worker", json.dumps({"part": part, **arguments})]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    if part == "weak":  # a process is a core
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
    return {"error": (stderr.strip().splitlines() or ["nothing was said"])[-1]} | status


def said(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def agreement(given) -> Iterator[dict[str, Any]]:
    for name in given.matrices or AGREEMENT:
        for ranks in given.ranks:
            for outer in ("asm", "bjacobi"):
                line: dict[str, Any] = {"matrix": name, "ranks": ranks, "outer": outer}
                for who, inner in (("petsc", "-sub_pc_type ilu"), ("finelu", OURS)):
                    found = started(ranks, "solve", f"{TRUE} -pc_type {outer} {inner}".split(), matrix=name)
                    line |= {f"{who}_{key}": found.get(key) for key in ("iterations", "reason", "residual", "error")}
                said(f"{name} {outer} on {ranks}: {line['petsc_iterations']} and {line['finelu_iterations']}")
                yield line


def overhead(given) -> Iterator[dict[str, Any]]:
    for n in (8, 24, 46):
        yield started(1, "overhead", n=n)


def fill(given) -> Iterator[dict[str, Any]]:
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
                said(f"{name} ILU({level}): no fill is known: {line['petsc'].get('error')}")
            else:
                line["parilut"] = first_that_fits(
                    ranks, name, room, "parilut", ({"fill": share * room} for share in (1.0, 0.99, 0.95, 0.9))
                )
                line["multilevel"] = best_multilevel(ranks, name, room)
                said(
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


def first_that_fits(ranks: int, name: str, room: float, recipe: str, offers) -> dict[str, Any]:
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


def failures(given) -> Iterator[dict[str, Any]]:
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
            said(f"{k + 1} failures")


def subdomains(given) -> Iterator[dict[str, Any]]:
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
        said(f"{blocks} subdomains")
    for size in (20, 40, 60):
        for what, outer in (
            ("asm alone", f"-pc_type asm {OURS}"),
            ("gamg, ILU(0) smoother", f"-pc_type gamg -mg_levels_pc_type asm {OURS.replace('-sub', '-mg_levels_sub')}"),
        ):
            found = started(2, "solve", f"{TRUE} {outer}".split(), matrix=f"grid:{size}")
            yield {"matrix": f"grid:{size}", "recipe": what, "coarse": True} | found


def weak(given) -> Iterator[dict[str, Any]]:
    inner = f"{OURS} -sub_finelu_recipe {given.recipe} -sub_finelu_device {given.device}"
    for outer, who, options in (
        ("asm", "petsc ilu", "-pc_type asm -sub_pc_type ilu"),
        ("asm", f"finelu {given.recipe}", f"-pc_type asm {inner}"),
        ("bjacobi", f"finelu {given.recipe}", f"-pc_type bjacobi {inner}"),
    ):
        for ranks in given.ranks:
            device = given.device if who.startswith("finelu") else "cpu"
            found = started(ranks, "weak", options.split(), rows=given.rows, bind=given.bind, device=device)
            said(f"{outer} {who} on {ranks}: {found.get('ms_an_iteration') or found}")
            yield {"outer": outer, "who": who, "ranks": ranks} | found


def from_files(given) -> Iterator[dict[str, Any]]:
    if given.file is None:
        raise ParameterError("the part files needs --file A.mtx.")
    for ranks in given.ranks:
        yield {"ranks": ranks} | started(ranks, "file", path=str(given.file))


# Tables ---------------------------------------------------------------------------------------------------------------


def page(results: dict[str, list[dict[str, Any]]], facts: dict[str, Any]) -> str:
    text = f"# petsc-scaling, {facts['name']}, {facts['date']}\n\n"
    text += "\n".join(f"- {key}: {value}" for key, value in facts.items() if value not in (None, "")) + "\n"
    for part, lines in results.items():
        if lines:
            text += f"\n## {part}\n\n" + TABLES[part.partition(" ")[0]](lines)
    return text


def converged(x, *who) -> bool:
    return all((x[f"{name}_reason"] or 0) > 0 for name in who)


def agreement_table(lines):
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


def overhead_table(lines):
    header = ("rows", "Factors.solve, us", "PCApply, us", "more, us", "of it the copy to y, us")
    rows = (
        (x["n"], x["solve_us"], x["apply_us"], x["apply_us"] - x["solve_us"], x["copy_us"])
        if "apply_us" in x
        else (x.get("error"), "", "", "", "")
        for x in lines
    )
    return "Medians of many calls, one process, one thread, ILU0.\n\n" + table(header, rows)


def fill_table(lines):
    def told(found):
        return (
            f"{found['iterations']}{'' if found.get('reason', 0) > 0 else ' *'}" if "iterations" in found else "fails"
        )

    def number(found):
        return found["iterations"] if found.get("reason", -1) > 0 else np.inf

    header = ("matrix", "k", "fill", "PETSc ILU(k)", "ParILUT", "its fill", "MultilevelILU", "its fill", "drop_tol")
    skipped, lines = [x for x in lines if "parilut" not in x], [x for x in lines if "parilut" in x]
    rows = [
        (x["matrix"], x["level"], x["petsc"].get("fill"), *(told(x[who]) for who in ("petsc", "parilut")),
         x["parilut"].get("fill"), told(x["multilevel"]), x["multilevel"].get("fill"), x["multilevel"].get("drop_tol"))
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


def failures_table(lines):
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


def subdomains_table(lines):
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


def weak_table(lines):
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


def files_table(lines):
    names = list(dict.fromkeys(name for x in lines for name in x.get("seconds", {})))
    rows = ((x["ranks"], x.get("iterations"), *(x.get("seconds", {}).get(name) for name in names)) for x in lines)
    return table(("processes", "iterations", *(f"{name}, s" for name in names)), rows)


TABLES = {
    "agreement": agreement_table,
    "overhead": overhead_table,
    "fill": fill_table,
    "failures": failures_table,
    "subdomains": subdomains_table,
    "weak": weak_table,
    "files": files_table,
}
MEASURE = {
    "agreement": agreement,
    "overhead": overhead,
    "fill": fill,
    "failures": failures,
    "subdomains": subdomains,
    "weak": weak,
    "files": from_files,
}


# That side: the processes under mpiexec -------------------------------------------------------------------------------


class Worker:
    """The measurements on all processes; each method gives a dict, the same on all of them."""

    def __init__(self, words: Sequence[str]):
        import petsc4py

        petsc4py.init(["benchmark", *words])
        from petsc4py import PETSc

        self.PETSc = PETSc
        self.comm = PETSc.COMM_WORLD.tompi4py()

    def matrix(self, name: str):
        """A spread over the processes: "grid:N", convection and diffusion on N^3 points, or a file of the suite."""
        PETSc = self.PETSc
        if name.startswith("grid:"):
            S = fl.gallery.convection_diffusion(int(name.removeprefix("grid:")), peclet=50.0, wind=(4.0, 2.0, 1.0))
        else:
            S = sp.csr_matrix(fl.read_matrix(files(matrix_folder())[name]))
        n = S.shape[0]
        A = PETSc.Mat().create()
        A.setSizes(n)
        A.setFromOptions()
        A.setUp()
        first, last = A.getOwnershipRange()
        own = S[first:last]
        A.setPreallocationCSR((own.indptr.astype(PETSc.IntType), own.indices.astype(PETSc.IntType), own.data))
        A.assemble()
        b = A.createVecLeft()
        b.setArray(np.random.default_rng(7).uniform(-0.5, 0.5, n)[first:last])
        return A, b, S

    def solver(self, A, rtol=1e-8, most=MAX_ITERATIONS):
        ksp = self.PETSc.KSP().create()
        ksp.setOperators(A)
        ksp.setType("gmres")
        ksp.setGMRESRestart(RESTART)
        ksp.setTolerances(rtol=rtol, max_it=most)
        ksp.setFromOptions()
        return ksp

    def blocks(self, ksp):
        """The PC of each block of this process."""
        pc = ksp.getPC()
        inner = {"asm": "getASMSubKSP", "bjacobi": "getBJacobiSubKSP"}.get(pc.getType())
        return [sub.getPC() for sub in getattr(pc, inner)()] if inner and hasattr(pc, inner) else []

    def filled(self, ksp) -> float | None:
        """Entries of all factors over those of the blocks; None where a block has none."""
        entries, stored, without = 0.0, 0.0, 0
        for pc in self.blocks(ksp):
            stored += pc.getOperators()[1].getInfo()["nz_used"]
            if pc.getType() == "python":
                F = pc.getPythonContext().factors
                entries += F.nnz if F is not None else 0
                without += F is None
            else:
                try:
                    entries += pc.getFactorMatrix().getInfo()["nz_used"]
                except self.PETSc.Error:
                    without += 1
        entries, stored, without = (self.comm.allreduce(value) for value in (entries, stored, without))
        return entries / stored if entries and not without else None

    def solve(self, matrix: str) -> dict[str, Any]:
        A, b, _ = self.matrix(matrix)
        ksp = self.solver(A)
        x = b.duplicate()
        begin = time.perf_counter()
        ksp.solve(b, x)
        seconds = time.perf_counter() - begin
        r = b.duplicate()
        A.mult(x, r)
        r.aypx(-1.0, b)
        reason = ksp.getConvergedReason()
        return {
            "n": A.getSize()[0],
            "iterations": ksp.getIterationNumber(),
            "reason": reason,
            "residual": r.norm() / b.norm(),
            "fill": self.filled(ksp),
            "seconds": seconds,
        } | ({"error": f"PETSc's reason {reason}"} if reason in (-9, -11) else {})

    def overhead(self, n: int) -> dict[str, Any]:
        """A block of its own: PCApply through petsc4py, and the solve inside it called directly, in turn."""
        from finelu.interop.petsc import PC

        PETSc = self.PETSc
        fl.set_num_threads(1)
        S = fl.gallery.convection_diffusion(n, peclet=50.0)
        csr = (S.indptr.astype(PETSc.IntType), S.indices.astype(PETSc.IntType), S.data)
        A = PETSc.Mat().createAIJ(S.shape, csr=csr, comm=PETSc.COMM_SELF)
        pc = PETSc.PC().create(PETSc.COMM_SELF)
        pc.setOperators(A)
        pc.setType("python")
        pc.setPythonContext(PC())
        pc.setUp()
        F = pc.getPythonContext().factors
        x, y = A.createVecs()
        x.setArray(np.random.default_rng(0).standard_normal(S.shape[0]))
        b = x.getArray(readonly=True)
        z = F.solve(b)
        out = np.empty_like(z)
        calls = {"apply": lambda: pc.apply(x, y), "solve": lambda: F.solve(b), "copy": lambda: np.copyto(out, z)}
        times: dict[str, list[float]] = {name: [] for name in calls}
        repeats = max(int(2e6 / S.shape[0]), 50)
        for _ in range(40):
            for name, call in calls.items():
                begin = time.perf_counter()
                for _ in range(repeats):
                    call()
                times[name].append(1e6 * (time.perf_counter() - begin) / repeats)
        assert np.array_equal(y.getArray(), z)
        return {"n": S.shape[0]} | {f"{name}_us": float(np.median(t)) for name, t in times.items()}

    def failure(self, kind: str, bad: int, anew: bool) -> dict[str, Any]:
        """A block of the process `bad` fails in its set-up, or its second apply; then what made it fail is taken away.

        kind : of its matrix, or "set-up", "apply": the method of the PC raises, of every one on that process.
        anew : the next solve is by a new solver.
        """
        from finelu.interop.petsc import PC

        PETSc = self.PETSc
        good = fl.gallery.convection_diffusion(8, peclet=20.0)
        n = good.shape[0]
        row = n * bad // self.comm.size + 7
        S = good
        if kind == "missing":
            S = S.tolil()
            S[row, row] = 0.0
            S = sp.csr_matrix(S)
            S.eliminate_zeros()
        A = PETSc.Mat().createAIJ(((None, n), (None, n)))
        first, last = A.getOwnershipRange()
        own = sp.csr_matrix(S)[first:last]
        A.setPreallocationCSR((own.indptr.astype(PETSc.IntType), own.indices.astype(PETSc.IntType), own.data))
        A.setOption(PETSc.Mat.Option.NEW_NONZERO_LOCATION_ERR, False)
        A.assemble()
        columns = good[row]
        mine = first <= row < last
        if kind == "pivot" and mine:
            A.setValues([row], columns.indices, np.zeros(columns.nnz))
        if kind == "nan" and mine:
            A.setValue(row, row, np.nan)
        A.assemble()
        b = A.createVecLeft()
        b.set(1.0)
        x = b.duplicate()
        ksp = self.solver(A)
        name, after = ("_set_up", 0) if kind == "set-up" else ("_solve", 1)
        method = getattr(PC, name)
        calls: list[int] = []

        def fails(pc, *arguments):
            calls.append(0)
            return method(pc, *arguments) if len(calls) <= after else 1 / 0

        injected = kind in ("set-up", "apply") and self.comm.rank == bad
        if injected:
            setattr(PC, name, fails)
        begin = time.perf_counter()
        ksp.solve(b, x)
        failed_seconds, failed = time.perf_counter() - begin, ksp.getConvergedReason()
        if injected:
            assert len(calls) > after, "nothing failed"
            setattr(PC, name, method)
        if mine:
            A.setValues([row], columns.indices, columns.data)
        A.assemble()
        ksp = self.solver(A) if anew else ksp
        ksp.solve(b, x)
        reasons = failed, ksp.getConvergedReason()
        everywhere = all(found == reasons for found in self.comm.allgather(reasons))
        return {"reasons": reasons, "everywhere": everywhere, "failed_seconds": failed_seconds}

    def weak(self, rows: int, bind: bool, device: str) -> dict[str, Any]:
        """A box of about `rows` points a process, and the example's convection and diffusion on all boxes together."""
        import resource

        PETSc, comm = self.PETSc, self.comm
        from mpi4py import MPI

        sys.argv = ["example"]
        spec = spec_from_file_location("example", ROOT / "examples" / "petsc_convection_diffusion.py")
        example = module_from_spec(spec)
        spec.loader.exec_module(example)
        edge = round(rows ** (1 / 3))
        boxes = MPI.Compute_dims(comm.size, 3)
        grid = PETSc.DMDA().create(
            dim=3,
            sizes=tuple(edge * count for count in boxes),
            proc_sizes=tuple(boxes),
            stencil_width=1,
            stencil_type=PETSc.DMDA.StencilType.STAR,  # with BOX, the default, rows would store 20 zeros
        )
        begin = time.perf_counter()
        A = example.assemble(grid, np.array([50.0, 20.0, 10.0]))
        assembly = time.perf_counter() - begin
        b = A.createVecLeft()
        first, last = b.getOwnershipRange()
        b.setArray(np.random.default_rng(first).uniform(-0.5, 0.5, last - first))
        x = b.duplicate()
        self.solver(A, most=2).solve(b, x)  # compiles, or loads what was compiled
        comm.Barrier()
        ksp = self.solver(A)
        begin = time.perf_counter()
        ksp.setUp()
        ksp.setUpOnBlocks()
        comm.Barrier()
        setup = time.perf_counter() - begin
        ksp.solve(b, x)
        iterations, reason = ksp.getIterationNumber(), ksp.getConvergedReason()
        steps = 2 * RESTART
        ksp.setTolerances(rtol=0.0, atol=0.0, max_it=steps)
        contexts = [pc.getPythonContext() for pc in self.blocks(ksp) if pc.getType() == "python"]
        best = None
        for _ in range(REPEATS):
            comm.Barrier()
            before = sum(c.seconds["solve"] for c in contexts)
            begin = time.perf_counter()
            ksp.solve(b, x)
            comm.Barrier()
            taken = time.perf_counter() - begin, sum(c.seconds["solve"] for c in contexts) - before
            best = taken if best is None else min(best, taken)
        steps = ksp.getIterationNumber()
        own, nnz = last - first, A.getInfo(PETSc.Mat.InfoType.LOCAL)["nz_used"]
        vectors = 3 + 4 + 2 * (RESTART + 1) / 2 + 2  # of the product, of the solve, of the orthogonalization twice
        a_step = 12 * nnz + self.factor_bytes(ksp) + 8 * own * vectors
        gpus, copy_ms = self.copies(contexts) if device != "cpu" else (None, None)
        return {
            "n": A.getSize()[0],
            "rows_a_process": own,
            "entries": comm.allreduce(nnz),
            "gpus": gpus,
            "assembly_seconds": assembly,
            "setup_seconds": setup,
            "factor_seconds": comm.allreduce(sum(c.seconds["factor"] for c in contexts), op=MPI.MAX),
            "iterations": iterations,
            "reason": reason,
            "steps": steps,
            "ms_an_iteration": 1e3 * best[0] / steps,
            "pc_ms": 1e3 * comm.allreduce(best[1], op=MPI.MAX) / steps if contexts else None,
            "copy_ms": copy_ms,
            "gbs": comm.allreduce(a_step) * steps / best[0] / 1e9,
            "triad_gbs": self.triad(),
            "mib": comm.allreduce(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, op=MPI.MAX),
        }

    def factor_bytes(self, ksp) -> float:
        """Values and indices of the factors of this process, which an application reads once."""
        total = 0.0
        for pc in self.blocks(ksp):
            if pc.getType() == "python":
                F = pc.getPythonContext().factors
                total += F.nnz * (F.dtype.itemsize + F.pattern.indices.dtype.itemsize)
            else:
                total += pc.getFactorMatrix().getInfo()["nz_used"] * 12
        return total

    def copies(self, contexts) -> tuple[int, float]:
        """How many GPUs there are, and ms of the copies of an application, of the slowest process."""
        import socket

        import cupy
        from mpi4py import MPI

        comm = self.comm
        taken = {(socket.gethostname(), context._number) for context in contexts}
        gpus = len(set().union(*comm.allgather(taken)))
        best = np.inf
        with contexts[0]._current():
            host = np.ones(contexts[0].factors.shape[0])
            out = np.empty_like(host)
            for _ in range(20):
                comm.Barrier()
                begin = time.perf_counter()
                cupy.asarray(host).get(out=out)
                best = min(best, time.perf_counter() - begin)
        assert np.array_equal(out, host)
        return gpus, 1e3 * comm.allreduce(best, op=MPI.MAX)

    def triad(self) -> float:
        """GB/s of a = b + s c of all processes at once, by Numba, beyond the caches."""
        from numba import njit

        @njit
        def triad(a, b, c, s):
            for i in range(a.size):
                a[i] = b[i] + s * c[i]

        n = 2**23
        a, b, c = np.zeros(n), np.ones(n), np.ones(n)
        triad(a, b, c, 2.0)
        best = np.inf
        for _ in range(10):
            self.comm.Barrier()
            begin = time.perf_counter()
            triad(a, b, c, 2.0)
            self.comm.Barrier()
            best = min(best, time.perf_counter() - begin)
        return 24 * n * self.comm.size / best / 1e9

    def file(self, path: str) -> dict[str, Any]:
        from finelu.interop.petsc import solve_mtx

        outcome = solve_mtx(path)
        return {name: value for name, value in vars(outcome).items() if name != "x"}


def worker(task: str, words: Sequence[str]) -> int:
    arguments = json.loads(task)
    part = arguments.pop("part")
    if part != "weak":
        arguments.pop("bind", None)
    side = Worker(words)
    result = getattr(side, part)(**arguments)
    if side.comm.rank == 0:
        print("RESULT " + json.dumps(finite(result)), flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:1] == ["--worker"]:
        return worker(argv[1], argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="agreement,overhead,fill,failures,subdomains")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of processes, with commas between them")
    parser.add_argument("--matrices", default="", help="names of the parts agreement and fill")
    parser.add_argument("--rows", type=int, default=100_000, help="of each process, for weak")
    parser.add_argument("--recipe", default="ilu0", help="of weak")
    parser.add_argument("--device", default="cpu", help="of weak: cpu or cuda")
    parser.add_argument("--bind", action="store_true", help="bind each process of weak to a core (MPICH, Open MPI)")
    parser.add_argument("--file", type=Path, help="a matrix for files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    parser.add_argument("--machine", default="", help="a name for this machine in file names and tables")
    given = parser.parse_args(argv)
    given.ranks = [int(text) for text in given.ranks.split(",")]
    given.matrices = [name for name in given.matrices.split(",") if name]
    parts = given.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        raise ParameterError(f"there is no part {sorted(unknown)[0]!r}; there are {', '.join(PARTS)}.")
    facts = machine(given.device == "cuda", given.machine) | {"date": date.today().isoformat()}
    stem = given.out / f"petsc-scaling-{facts['name']}-{facts['date']}"
    known = json.loads(stem.with_suffix(".json").read_text()) if stem.with_suffix(".json").exists() else {}
    results = known.get("results", {})  # of the same day and machine: parts may be measured one by one
    given.out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        key = f"{part} {given.device}" if part == "weak" else part
        results[key] = []
        for line in MEASURE[part](given):
            results[key].append(line)
            ordered = {key: results[key] for part in PARTS for key in results if key.partition(" ")[0] == part}
            write(stem.with_suffix(".json"), json.dumps(finite({"machine": facts, "results": ordered}), indent=1))
            write(stem.with_suffix(".md"), page(ordered, facts))
        print(f"\n## {key}\n\n" + TABLES[part](results[key]))
    return 0


if __name__ == "__main__":
    command(main)
