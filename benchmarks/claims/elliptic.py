"""Claim: `finelu.solve` answers elliptic, parabolic and pressure systems sooner than algebraic multigrid.

A x = b to ||b - A x|| <= 1e-8 ||b||, b uniform in [-0.5, 0.5], from the matrix in memory on, set-up included: by
`finelu.solve` as called; by `Schwarz()` with cg, or bicgstab where A is not symmetric; by AMGCL (see
benchmarks/peers/amgcl.py), smoothed aggregation and Ruge-Stüben, each with SPAI-0; by pyamg's smoothed aggregation and
Ruge-Stüben with its defaults; by hypre's BoomerAMG in PETSc on one process (see benchmarks/peers/boomeramg.py); for
elastic bodies by AMGCL and pyamg with the rigid body modes as near null space, which finelu is not given, and with rows
node by node, also where finelu has them field by field. A round calls each solver once; the medians of the rounds
count, and of each library its fastest setting. The first round warms up. The residual is computed here; where a
library's own is too small, its tolerance is halved until the true one passes.

    python -m benchmarks.claims.elliptic --threads 2 [--matrices poisson7:100,jumps] [--seconds 20]
    python -m benchmarks.claims.elliptic --threads 16 --solvers finelu,Schwarz,AMGCL --budget 280
    python -m benchmarks.claims.elliptic --gpu --solvers finelu,Schwarz    # A and b on the GPU
    python -m benchmarks.claims.elliptic --threads 1 --processor --solvers finelu,Schwarz,BoomerAMG

With --processor the time of the processor counts, for one thread: a busy machine lengthens that much less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.case import release_gpu
from benchmarks.harness.clock import synchronized
from benchmarks.harness.course import carry_out
from benchmarks.harness.options import add_device, add_options, add_source, command, wants_gpu
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.suite import Problem, files, matrix_folder, names_of
from benchmarks.harness.table import cell, mean, ratio, table
from benchmarks.peers import amgcl, boomeramg
from finelu.device import to_host
from finelu.errors import ParameterError
from finelu.gallery.elements import irregular_triangles
from finelu.recent import RECENT

RTOL, ROUNDED, SEED, MOST, ROUNDS = 1e-8, 1.01, 0, 1000, 7
HALVED = 6  # times that a tolerance is halved at most
REST = 0.02  # seconds until threads of the solver before have gone to sleep
FAR = 3.0  # times the least time so far, from which a solver of others is not called again
FINELU, SCHWARZ, AMGCL, PYAMG, BOOMERAMG = SOLVERS = ("finelu", "Schwarz", "AMGCL", "pyamg", "BoomerAMG")
Clock = Callable[[], float]
BY_FIELD = "by_field=True"
QUICK = ("poisson7:24", "elasticity:6,4,4")

# The systems ----------------------------------------------------------------------------------------------------------


def diffusion(conductivity: Any, walls: str = "") -> sp.csr_matrix:
    """-div(k grad u) by finite volumes on cubes, with harmonic means of k (nz, ny, nx) at their faces.

    walls : of "z-", "z+", "y-", "y+", "x-", "x+", the sides without a flow; u = 0 at the others.
    """
    k = np.asarray(conductivity, float)
    n, cell_of = k.size, np.arange(k.size).reshape(k.shape)
    diagonal, rows, columns, values = np.zeros(k.shape), [], [], []
    for axis, name in enumerate("zyx"):
        k_along, d = np.moveaxis(k, axis, 0), np.moveaxis(diagonal, axis, 0)
        cells = np.moveaxis(cell_of, axis, 0)
        face = 2 * k_along[1:] * k_along[:-1] / (k_along[1:] + k_along[:-1])
        d[1:] += face
        d[:-1] += face
        for side, end in (("-", 0), ("+", -1)):
            if name + side not in walls:
                d[end] += 2 * k_along[end]
        for one, other in ((cells[1:], cells[:-1]), (cells[:-1], cells[1:])):
            rows.append(one.ravel())
            columns.append(other.ravel())
            values.append(-face.ravel())
    rows.append(cell_of.ravel())
    columns.append(cell_of.ravel())
    values.append(diagonal.ravel())
    A = sp.csr_matrix((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(n, n))
    A.sort_indices()
    return A


def jumps() -> sp.csr_matrix:
    """80^3 cells, conductivities from 10^-3 to 10^3 at random."""
    return diffusion(10 ** np.random.default_rng(1).uniform(-3, 3, (80, 80, 80)))


def layers() -> sp.csr_matrix:
    """80^3 cells in layers of five, conductivities 1 and 10^4 in turn."""
    k = np.where(np.arange(80) // 5 % 2 == 0, 1.0, 1e4)
    return diffusion(np.broadcast_to(k[:, None, None], (80, 80, 80)))


def dam_break() -> sp.csr_matrix:
    """The pressure equation of a column of water in a tank of 64 x 32 x 44 cells, open at the top; 1 / density is 1 and
    1000."""
    z, y, x = np.meshgrid(np.arange(44), np.arange(32), np.arange(64), indexing="ij")
    return diffusion(np.where((x < 24) & (z < 26) & (y >= 0), 1.0, 1e3), "z- y- y+ x- x+")


def flat27() -> sp.csr_matrix:
    """Trilinear elements, 60^3 inner nodes, ten times as wide as high: 27 points, couplings of both signs."""
    n = 60
    K = sp.diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    M = sp.diags_array([np.ones(n - 1), 4 * np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1]) / 6

    def element(a: Any, b: Any, c: Any) -> Any:
        return sp.kron(a, sp.kron(b, c))

    A = sp.csr_matrix(100 * element(K, M, M) + element(M, K, M) + element(M, M, K))
    A.sort_indices()
    return A


MADE: dict[str, Callable[[], sp.csr_matrix]] = {
    "jumps": jumps,
    "layers": layers,
    "dam_break": dam_break,
    "flat27": flat27,
}
SYSTEMS = (
    *("poisson7:100", "poisson5:1000,1000", "poisson27:60", "jumps", "parabolic_fem_nat", "ani7", "dam_break"),
    *("flat27", "layers", "ng_heatsink2d", "of_squareBend_p", "convection_diffusion:60,peclet=100", "ecology2_like"),
)
BODIES = (
    *("elasticity:33,33,33", "elasticity:100,20,20", "elasticity:70,70,6", "elasticity:420,8,8"),
    *("elasticity:70,35,14,core=0.001", "elasticity:33,33,33,0.49", "elasticity:33,33,33,by_field=True"),
    "elastic_triangles:6",
)


def matrix(name: str, folder: Any) -> sp.csr_matrix:
    """The system of that name, CSR with int32 indices."""
    S = MADE[name]() if name in MADE else Problem(name, files(folder or matrix_folder()).get(name)).load()
    return sp.csr_matrix((S.data, S.indices.astype(np.int32), S.indptr.astype(np.int32)), shape=S.shape)


def modes_of(name: str) -> Any:
    """The rigid body modes of a body of the gallery, in the order of its rows; None for other systems."""
    kind, _, given = name.partition(":")
    sizes = [int(word) for word in given.split(",") if word.isdigit()]
    if kind == "elastic_triangles":
        points, _ = irregular_triangles(sizes[0])
        modes = finelu.rigid_body_modes(points[points[:, 0] > 0])
    elif kind == "elasticity":
        nx, ny, nz = sizes
        z, y, x = np.meshgrid(np.arange(nz + 1), np.arange(ny + 1), np.arange(1, nx + 1), indexing="ij")
        modes = finelu.rigid_body_modes(np.column_stack([x.ravel(), y.ravel(), z.ravel()]))
    else:
        return None
    if BY_FIELD in given:
        modes[by_nodes(modes)] = modes.copy()
    return modes


def by_nodes(modes: Any) -> Any:
    """The rows node by node, as the peers need them, of a body with these modes whose rows come field by field."""
    return np.arange(modes.shape[0]).reshape(unknowns_of(modes), -1).T.ravel()


def unknowns_of(modes: Any) -> int:
    """The unknowns of a node with these rigid body modes (n, 3) or (n, 6)."""
    return 2 if modes.shape[1] == 3 else 3


# The solvers ----------------------------------------------------------------------------------------------------------


class Solver:
    """One setting of one library for one system.

    call(rtol) : (x, seconds, detail).  times : of the rounds after the first, in seconds.
    rows : of the system in the order of x, None for their own order.
    """

    def __init__(self, who: str, variant: str, call: Callable[[float], tuple[Any, float, dict[str, Any]]]):
        self.who, self.variant, self.call = who, variant, call
        self.rtol, self.times, self.residual, self.ended = RTOL, [], np.inf, ""
        self.detail: dict[str, Any] = {}
        self.rows: Any = None

    @property
    def ours(self) -> bool:
        return self.who in (FINELU, SCHWARZ)

    @property
    def seconds(self) -> float:
        return median(self.times) if self.times else np.inf

    def run(self, S: sp.csr_matrix, b: Any, *, warm: bool) -> None:
        """Call it once; in the first round, `warm`, find the tolerance with which a peer's true residual passes."""
        self.ended = "an error"  # unless this returns
        for halved in range(1 + HALVED * (warm and not self.ours)):
            RECENT.forget()  # orders and analyses of the call before
            self.rtol *= 0.5 if halved else 1.0
            x, seconds, self.detail = self.call(self.rtol)
            if self.rows is not None:
                x = x[np.argsort(self.rows)]
            self.residual = float(np.linalg.norm(b - S @ x) / np.linalg.norm(b))
            if self.residual <= ROUNDED * RTOL or self.detail["iterations"] >= MOST:
                break
        self.ended = "" if self.residual <= ROUNDED * RTOL else f"residual {self.residual:.1e}"
        if not (warm or self.ended):
            self.times.append(seconds)


def of_finelu(A: Any, b: Any, symmetric: bool, elastic: bool, clock: Clock) -> list[Solver]:
    def solve(rtol: float) -> tuple[Any, float, dict[str, Any]]:
        start = clock()
        found = finelu.solve(A, b, rtol=rtol)
        seconds = clock() - start
        tried = [f"{a.recipe} {a.method}" for a in found.attempts]
        return to_host(found.x), seconds, {"iterations": found.iterations, "tried": tried}

    def schwarz(near_nullspace: str | None) -> Solver:
        def call(rtol: float) -> tuple[Any, float, dict[str, Any]]:
            start = clock()
            F = finelu.Schwarz(near_nullspace=near_nullspace).factor(A)
            middle = clock()
            found = (finelu.cg if symmetric else finelu.bicgstab)(A, b, M=F, rtol=rtol, maxiter=MOST)
            seconds = clock() - start
            detail = {"parts": F.report.partition, "largest": F.report.largest, "levels": F.report.rows_of_levels}
            return to_host(found.x), seconds, detail | {"iterations": found.iterations, "setup": middle - start}

        return Solver(SCHWARZ, "near null space found" if near_nullspace else "constants", call)

    return [Solver(FINELU, "solve", solve), schwarz(None), *([schwarz("auto")] if elastic else [])]


def of_amgcl(system: amgcl.System, symmetric: bool, modes: Any) -> list[Solver]:
    def solver(setting: str) -> Solver:
        def call(rtol: float) -> tuple[Any, float, dict[str, Any]]:
            found = system.solve(setting, "cg" if symmetric else "bicgstab", rtol, MOST)
            return found.x, found.setup + found.solve, {"iterations": found.iterations, "setup": found.setup}

        return Solver(AMGCL, setting, call)

    if modes is None:
        settings: tuple[str, ...] = amgcl.SETTINGS
    else:
        settings = amgcl.SETTINGS_IN_THE_PLANE if unknowns_of(modes) == 2 else amgcl.SETTINGS_WITH_MODES
    return [solver(setting) for setting in settings]


def of_boomeramg(system: boomeramg.System, symmetric: bool, clock: Clock) -> list[Solver]:
    def solver(setting: str) -> Solver:
        def call(rtol: float) -> tuple[Any, float, dict[str, Any]]:
            found = system.solve(setting, "cg" if symmetric else "bicgstab", rtol, MOST, clock)
            return found.x, found.setup + found.solve, {"iterations": found.iterations, "setup": found.setup}

        return Solver(BOOMERAMG, f"threshold {setting}", call)

    return [solver(setting) for setting in boomeramg.SETTINGS]


def of_pyamg(S: sp.csr_matrix, b: Any, symmetric: bool, modes: Any, clock: Clock) -> list[Solver]:
    import pyamg

    def solver(variant: str, hierarchy: Callable[..., Any], **options: Any) -> Solver:
        def call(rtol: float) -> tuple[Any, float, dict[str, Any]]:
            start, residuals = clock(), []
            levels = hierarchy(S, **options)
            middle = clock()
            accel = "cg" if symmetric else "bicgstab"
            x = levels.solve(b, tol=rtol, maxiter=MOST, accel=accel, residuals=residuals)
            seconds = clock() - start
            return x, seconds, {"iterations": len(residuals) - 1, "setup": middle - start}

        return Solver(PYAMG, variant, call)

    if modes is not None:
        blocks = sp.bsr_matrix(S, blocksize=(unknowns_of(modes),) * 2)
        return [solver("modes", lambda S, **options: pyamg.smoothed_aggregation_solver(blocks, **options), B=modes)]
    aggregation: dict[str, Any] = {} if symmetric else {"symmetry": "nonsymmetric"}
    return [
        solver("aggregation", pyamg.smoothed_aggregation_solver, **aggregation),
        solver("ruge_stuben", pyamg.ruge_stuben_solver),
    ]


def measure(run: Run, name: str, S: sp.csr_matrix, wanted: Sequence[str], seconds: float, *, gpu: bool) -> None:
    """The rounds for one system, which end after `seconds`, but not before the first that is timed."""
    symmetric = bool(run.matrices[name]["symmetric"])
    b, modes = np.random.default_rng(SEED).uniform(-0.5, 0.5, S.shape[0]), modes_of(name)
    with ExitStack() as held:
        A, right = S, b
        if gpu:
            import cupy
            from cupyx.scipy.sparse import csr_matrix

            A, right = csr_matrix(S), cupy.asarray(b)
        clock: Clock = time.process_time if run.options["processor"] else lambda: synchronized(gpu)
        solvers = of_finelu(A, right, symmetric, modes is not None, clock)
        rows = None if modes is None or BY_FIELD not in name else by_nodes(modes)
        T, c, M = (S, b, modes) if rows is None else (S[rows][:, rows], b[rows], modes[rows])
        peers: list[Solver] = []
        if AMGCL in wanted:
            system = held.enter_context(closing(amgcl.System(T, c, M, run.options["threads"])))
            peers += of_amgcl(system, symmetric, M)
        if PYAMG in wanted:
            peers += of_pyamg(T, c, symmetric, M, clock)
        if BOOMERAMG in wanted and modes is None:
            peers += of_boomeramg(boomeramg.System(S, b), symmetric, clock)
        for solver in peers:
            solver.rows = rows
        solvers += peers
        solvers = [solver for solver in solvers if solver.who in wanted]
        begin = time.perf_counter()
        for turn in range(ROUNDS + 1):
            if turn > 1 and time.perf_counter() - begin > seconds:
                break
            for solver in solvers[turn % len(solvers) :] + solvers[: turn % len(solvers)]:
                best = min((s.seconds for s in solvers), default=np.inf)
                if solver.ended or (solver.times and not solver.ours and solver.seconds > FAR * best):
                    continue
                time.sleep(REST)
                with run.attempt(name, f"{solver.who} {solver.variant}"):
                    solver.run(S, b, warm=turn == 0)
    for solver in solvers:
        ms = 1e3 * solver.seconds if solver.times else None
        detail = solver.detail | {"times": solver.times, "ended": solver.ended, "rtol": solver.rtol}
        what = (name, "solution", "gpu" if gpu else "cpu", solver.who, solver.variant, ms)
        threads = 0 if gpu else run.options["threads"]
        run.records.append(Record(*what, error=solver.residual, threads=threads, detail=detail))


# The page -------------------------------------------------------------------------------------------------------------


def best(run: Run, name: str, who: str) -> Record | None:
    """The fastest setting of a library that solved the system."""
    solved = [r for r in run.find(name, who=who) if r.numeric_ms is not None]
    return min(solved, key=lambda r: r.numeric_ms or 0.0, default=None)


def against(run: Run, name: str, peer: str, who: str = FINELU) -> float | None:
    """How many times sooner `who` answers than the peer; None where one of them did not."""
    ours, theirs = best(run, name, who), best(run, name, peer)
    return ratio(theirs and theirs.numeric_ms, ours and ours.numeric_ms)


def claims(run: Run) -> str:
    lines = []
    groups = (("elliptic, parabolic, pressure", False), ("elastic bodies, modes given to the peer", True))
    for what, elastic in groups:
        names = [name for name in run.matrices if (modes_of(name) is not None) == elastic]
        for who in (FINELU, SCHWARZ):
            for peer in (AMGCL, PYAMG, BOOMERAMG):
                ratios = {name: r for name in names if (r := against(run, name, peer, who)) is not None}
                if ratios:
                    worst = min(ratios, key=lambda name: ratios[name])
                    lines.append((what, who, peer, len(ratios), mean(ratios.values()), ratios[worst], worst))
    return table(("systems", "ours", "peer", "cases", "times sooner, mean", "least", "there"), lines)


def times(run: Run) -> str:
    lines = []
    for name, facts in run.matrices.items():
        line: list[Any] = [name, facts["n"]]
        for who in SOLVERS:
            found = best(run, name, who)
            iterations = found and found.detail.get("iterations")
            line += [found and found.numeric_ms, iterations]
            if who == FINELU:
                line.append("; then ".join(found.detail["tried"]) if found else None)
            if who not in (FINELU, SCHWARZ):
                line.append(found and found.variant)
        lines.append((*line, *(against(run, name, peer) for peer in (AMGCL, PYAMG, BOOMERAMG))))
    heads = ("system", "rows", "solve, ms", "iterations", "by", "Schwarz, ms", "iterations")
    heads += ("AMGCL, ms", "iterations", "setting", "pyamg, ms", "iterations", "setting")
    heads += ("BoomerAMG, ms", "iterations", "setting")
    return table((*heads, "AMGCL / solve", "pyamg / solve", "BoomerAMG / solve"), lines)


def page(run: Run) -> str:
    ended = [(r.matrix, f"{r.who} {r.variant}", r.detail["ended"]) for r in run.records if r.detail["ended"]]
    text = f"{run.heading()}\n{claims(run)}\n## Times\n\n{times(run)}"
    return text + ("\n## Not solved\n\n" + table(("system", "by", "why"), ended) if ended else "") + run.footing()


def wanted_solvers(run: Run, text: str) -> list[str]:
    """The libraries of --solvers that can take part; the run says why others do not."""
    wanted = text.split(",")
    if unknown := [who for who in wanted if who not in SOLVERS]:
        raise ParameterError(f"--solvers: there is no {', '.join(unknown)}; choose from {', '.join(SOLVERS)}.")
    if AMGCL in wanted and (reason := amgcl.missing()):
        run.left_out[AMGCL] = reason
    if run.options["processor"] and AMGCL in wanted:
        run.left_out[AMGCL] = "its process tells the time that passed, not that of the processor"
    if BOOMERAMG in wanted and (reason := boomeramg.missing()):
        run.left_out[BOOMERAMG] = reason
    try:
        run.machine[PYAMG] = package_version(PYAMG)
    except PackageNotFoundError:
        run.left_out[PYAMG] = "not installed (pip install pyamg)"
    return [who for who in wanted if who not in run.left_out]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.elliptic", description=__doc__.splitlines()[0])
    add_device(parser, "A and b on the GPU; --solvers finelu,Schwarz", "on the CPU")
    add_options(parser)
    add_source(parser)
    parser.add_argument("--threads", type=int, default=finelu.get_num_threads(), help="(default: %(default)s)")
    parser.add_argument("--solvers", default=",".join(SOLVERS), help="(default: %(default)s)")
    parser.add_argument("--processor", action="store_true", help="the time of the processor; with --threads 1")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the rounds of a system (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.source:
        run = Run.load(options.source)
        run.publish(options.out, page(run))
        return 0
    gpu = wants_gpu(options)
    if options.processor and (gpu or options.threads != 1):
        raise ParameterError("--processor adds up the time of all threads; give --cpu --threads 1.")
    name = "elliptic-gpu" if gpu else f"elliptic-cpu-{options.threads}-threads"
    name += "-processor" if options.processor else ""
    run = new_run(name, gpu=gpu, machine_name=options.machine)
    run.options = {"threads": options.threads, "seconds": options.seconds, "processor": options.processor}
    finelu.set_num_threads(options.threads)
    wanted = wanted_solvers(run, options.solvers)
    asked = names_of(options.matrices)

    def one(name: str, _: str) -> str:
        try:
            S = matrix(name, options.matrix_folder)
        except ParameterError:
            if asked:
                raise
            run.left_out[name] = "not in the folder of matrices"
            return ""
        symmetric = abs(S - S.T).max() <= 1e-14 * abs(S).max()
        run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "symmetric": bool(symmetric)}
        measure(run, name, S, wanted, options.seconds, gpu=gpu)
        if gpu:
            release_gpu()
        return ", ".join(
            f"{r.who} {r.variant} {cell(r.numeric_ms)} ms ({r.detail.get('iterations')})" for r in run.find(name)
        )

    names = asked or (QUICK if options.quick else (*SYSTEMS, *BODIES))
    return carry_out(run, ((name, name) for name in names), one, options, page, claims)


if __name__ == "__main__":
    command(main)
