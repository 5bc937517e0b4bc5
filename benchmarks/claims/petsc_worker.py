"""What `benchmarks.claims.petsc_scaling` runs under mpiexec: a measurement on all processes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl
from benchmarks.harness import ROOT
from benchmarks.harness.record import finite
from benchmarks.harness.suite import files, matrix_folder

MAX_ITERATIONS, RESTART = 1000, 30
REPEATS = 5


class Worker:
    """The measurements on all processes; each method gives a dict, the same on all of them."""

    def __init__(self, words: Sequence[str]):
        import petsc4py

        petsc4py.init(["benchmark", *words])
        from petsc4py import PETSc

        self.PETSc = PETSc
        self.comm = PETSc.COMM_WORLD.tompi4py()

    def matrix(self, name: str) -> tuple[Any, Any, sp.csr_matrix]:
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

    def solver(self, A: Any, rtol: float = 1e-8, most: int = MAX_ITERATIONS) -> Any:
        ksp = self.PETSc.KSP().create()
        ksp.setOperators(A)
        ksp.setType("gmres")
        ksp.setGMRESRestart(RESTART)
        ksp.setTolerances(rtol=rtol, max_it=most)
        ksp.setFromOptions()
        return ksp

    def blocks(self, ksp: Any) -> list[Any]:
        """The PC of each block of this process."""
        pc = ksp.getPC()
        inner = {"asm": "getASMSubKSP", "bjacobi": "getBJacobiSubKSP"}.get(pc.getType())
        return [sub.getPC() for sub in getattr(pc, inner)()] if inner and hasattr(pc, inner) else []

    def filled(self, ksp: Any) -> float | None:
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
        return self.solved(self.solver(A), b)

    def solved(self, ksp: Any, b: Any) -> dict[str, Any]:
        A, x = ksp.getOperators()[0], b.duplicate()
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

    def coupled(self, kind: str, edge: int, boxes: Sequence[int], repeats: int = 1) -> dict[str, Any]:
        """cg for a grid of edge^3 cells in each box, a box a process, or all of them on one process.

        kind : of the 7-point grids, whose conductivities are the same on any number of processes: "constant", "jumps"
            (from 1e-3 to 1e3 at random in each cell), or "layers" (1e3 and 1e-3 in turn, each seven cells thick
            along z). "elasticity": a beam of
            cubes with three unknowns a node, a slab of edge/1.5 planes a process.
        repeats : of the solve, set-up included, the fastest of which counts.
        """
        if kind == "elasticity":
            A, b = self.beam(2 * edge // 3, boxes)
        else:
            A, b = self.cells(kind, edge, boxes)
        runs = [self.solved(self.solver(A, most=2 * MAX_ITERATIONS), b) for _ in range(repeats)]
        return min(runs, key=lambda run: run["seconds"])

    def beam(self, edge: int, boxes: Sequence[int]) -> tuple[Any, Any]:
        """Elasticity on edge x edge cubes across and edge planes of nodes along z for each box, with the rigid body
        modes; the side x = 0 is held."""
        PETSc, comm = self.PETSc, self.comm
        planes = edge * int(np.prod(boxes))
        first, last = (planes * rank // comm.size for rank in (comm.rank, comm.rank + 1))
        low, high = max(first - 1, 0), min(last + 1, planes)  # planes whose cubes reach the own ones
        plane = 3 * edge * (edge + 1)
        own = fl.gallery.elasticity(edge, edge, high - low - 1)[(first - low) * plane : (last - low) * plane].tocsr()
        layout = (plane * (last - first), plane * planes)
        columns = (own.indices + low * plane).astype(PETSc.IntType)
        A = PETSc.Mat().createAIJ((layout, layout), bsize=3, csr=(own.indptr.astype(PETSc.IntType), columns, own.data))
        axes = np.arange(first, last), np.arange(edge + 1), np.arange(1, edge + 1)
        z, y, x = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        modes = []
        for column in fl.rigid_body_modes(np.column_stack([x, y, z - planes / 2])).T:
            mode = A.createVecRight()
            mode.setArray(column)
            for other in modes:
                mode.axpy(-mode.dot(other), other)
            mode.normalize()
            modes.append(mode)
        A.setNearNullSpace(PETSc.NullSpace().create(vectors=modes))
        b = A.createVecLeft()
        b.setArray(np.random.default_rng(7).uniform(-0.5, 0.5, plane * planes)[first * plane : last * plane])
        return A, b

    def cells(self, kind: str, edge: int, boxes: Sequence[int]) -> tuple[Any, Any]:
        """The 7-point grids of `coupled`."""
        PETSc, sizes = self.PETSc, [edge * count for count in boxes]
        grid = PETSc.DMDA().create(
            dim=3,
            sizes=sizes,
            proc_sizes=boxes if self.comm.size > 1 else None,
            stencil_width=1,
            stencil_type=PETSc.DMDA.StencilType.STAR,
        )
        k = np.ones(np.prod(sizes))
        if kind == "jumps":
            k = 10.0 ** np.random.default_rng(5).uniform(-3, 3, k.size)
        elif kind == "layers":
            k = np.repeat(np.where(np.arange(sizes[2]) // 7 % 2, 1e-3, 1e3), sizes[0] * sizes[1])
        ordering, b = grid.getAO(), grid.createGlobalVec()

        def numbered(cells: Any) -> Any:
            return ordering.app2petsc(cells.astype(PETSc.IntType))

        z, y, x = (index.ravel() for index in np.meshgrid(*(range(*r) for r in grid.getRanges()[::-1]), indexing="ij"))
        cells, own, diagonal = (z * sizes[1] + y) * sizes[0] + x, np.arange(x.size), np.zeros(x.size)
        entries = []
        for index, stride, size in ((x, 1, sizes[0]), (y, sizes[0], sizes[1]), (z, sizes[0] * sizes[1], sizes[2])):
            for step in (-1, 1):
                inside = (index + step >= 0) & (index + step < size)
                others = cells[inside] + step * stride
                mean = 2 / (1 / k[cells[inside]] + 1 / k[others])
                diagonal[inside] += mean
                diagonal[~inside] += 2 * k[cells[~inside]]
                entries.append((own[inside], numbered(others), -mean))
        entries.append((own, numbered(cells), diagonal))
        rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        S = sp.csr_matrix((values, (rows, columns)), shape=(x.size, k.size))
        layout = (x.size, k.size)
        csr = S.indptr.astype(PETSc.IntType), S.indices.astype(PETSc.IntType), S.data
        A = PETSc.Mat().createAIJ((layout, layout), csr=csr)
        b.setArray(np.random.default_rng(7).uniform(-0.5, 0.5, k.size)[cells])
        return A, b

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
        self.solver(A, most=2).solve(b, x)  # compiles the kernels, or loads them
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

    def factor_bytes(self, ksp: Any) -> float:
        """Values and indices of the factors of this process, which an application reads once."""
        total = 0.0
        for pc in self.blocks(ksp):
            if pc.getType() == "python":
                F = pc.getPythonContext().factors
                total += F.nnz * (F.dtype.itemsize + F.pattern.indices.dtype.itemsize)
            else:
                total += pc.getFactorMatrix().getInfo()["nz_used"] * 12
        return total

    def copies(self, contexts: Sequence[Any]) -> tuple[int, float]:
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


if __name__ == "__main__":
    sys.exit(worker(sys.argv[1], sys.argv[2:]))
