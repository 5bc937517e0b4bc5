"""From a matrix file to a solution on many processes, by PETSc: `solve_mtx`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from petsc4py import PETSc

from finelu.errors import FileError
from finelu.interop.petsc.files import BINARY, MARKET, read_system, write_vector
from finelu.interop.petsc.partition import partitioned
from finelu.interop.petsc.processes import in_one_line, mpi
from finelu.io import VECTOR_FORMATS, WRITABLE_FORMATS, check_apart, check_writable
from finelu.io.paths import FilePath, extension
from finelu.processes import agreed, largest
from finelu.validation import count, number

CONTEXT = "finelu.interop.petsc.PC"
CLAIM = 10.0  # times the tolerance, up to which ||b - A x|| agrees with a convergence that KSP reports


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `solve_mtx` did, the same on all processes except for x.

    x : PETSc Vec, spread over the processes in rows of A's order.  converged : PETSc says so, and ||b - A x||_2 is no
    more than ten times the tolerance, whatever norm PETSc has looked at.  reason : PETSc's, by its name.
    residual_norm : ||b - A x||_2, computed from x.  rows : the fewest and the most of a process.  seconds : read,
    partition, set-up of the preconditioner, solve, of the slowest process.
    """

    converged: bool
    reason: str
    iterations: int
    residual_norm: float
    relative_residual: float
    n: int
    nnz: int
    processes: int
    rows: tuple[int, int]
    cut: int | None
    ksp: str
    pc: str
    seconds: dict[str, float]
    x: Any = field(repr=False)


def solve_mtx(
    path: FilePath,
    b: FilePath | None = None,
    *,
    output: FilePath | None = None,
    partition: str | None = None,
    rtol: float = 1e-8,
    maxiter: int = 2000,
) -> Outcome:
    """Solve A x = b for the matrix of a file, on all processes of PETSc's world; all of them must call it.

    path : Matrix Market (.mtx, .mtx.gz), of which each process reads its share of the lines, or PETSc binary (.petsc,
        .dat, .bin) of the number types of this PETSc. Its rows are spread in equal shares.
    b : file of the right-hand side; None: random, the same on any number of processes.
    output : file for x, written by one process (.npy, .npz, .mtx, .txt, .csv) or by all (.petsc).
    partition : spreads the rows by the MatPartitioning of this name ("parmetis", "ptscotch": as PETSc was built), of
        the pattern of A + A^T, or by "metis", on one process (needs pymetis). x has A's order all the same.
    rtol, maxiter : of the solver, which PETSc's options choose; where they do not, it is GMRES, preconditioned from
        the right by the additive Schwarz method with ILU(0) of finelu in each subdomain.
    Returns an `Outcome`. Raises FileError, MatrixError and ParameterError, the same on all processes, except for errors
        that PETSc meets on one alone, such as no memory; the program must then end (`python -m mpi4py` sees to it).
    Memory a process: its share of A four times while A is read; on the first, all of b and x where a file needs it.
    """
    comm = mpi(PETSc.COMM_WORLD)
    agreed(comm, lambda: _check(path, b, output, rtol, maxiter))
    seconds: dict[str, float] = {}
    clock = perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = perf_counter()
        seconds[name], clock = largest(comm, now - clock), now

    A, rhs = read_system(comm, path, b)
    lap("read")
    rows, cut = (None, None) if partition is None else partitioned(comm, A, partition)
    M, f = (A, rhs) if rows is None else (A.createSubMatrix(rows, rows), rhs.getSubVector(rows))
    lap("partition")
    ksp = _solver(M, rtol, maxiter)
    lap("set-up")
    u = f.duplicate()
    in_one_line(lambda: ksp.solve(f, u))
    lap("solve")
    x = rhs.duplicate()
    if rows is None:
        u.copy(x)
    else:
        scatter = PETSc.Scatter().create(u, None, x, rows)
        scatter.scatter(u, x)
    r = rhs.duplicate()
    A.mult(x, r)
    r.aypx(-1.0, rhs)
    residual, norm_b = r.norm(), rhs.norm()
    counts = comm.allgather(M.getLocalSize()[0])
    if output is not None:
        write_vector(comm, output, x)
    names = {value: name for name, value in vars(PETSc.KSP.ConvergedReason).items() if name.isupper()}
    reason = ksp.getConvergedReason()
    # KSP may look at a preconditioned norm, or at that of a recurrence that has drifted
    wanted = math.inf if reason != PETSc.KSP.ConvergedReason.CONVERGED_RTOL else ksp.getTolerances()[0] * norm_b
    return Outcome(
        converged=reason > 0 and residual <= CLAIM * wanted,
        reason=names.get(reason, str(reason)),
        iterations=ksp.getIterationNumber(),
        residual_norm=residual,
        relative_residual=residual / norm_b if norm_b > 0 else residual,
        n=A.getSize()[0],
        nnz=int(A.getInfo(PETSc.Mat.InfoType.GLOBAL_SUM)["nz_used"]),
        processes=comm.size,
        rows=(min(counts), max(counts)),
        cut=cut,
        ksp=ksp.getType(),
        pc=ksp.getPC().getType(),
        seconds=seconds,
        x=x,
    )


def _check(path: FilePath, b: FilePath | None, output: FilePath | None, rtol: float, maxiter: int) -> None:
    if extension(path) not in (*MARKET, *BINARY):
        raise FileError(f"{path}: with PETSc a matrix is read from {', '.join((*MARKET, *BINARY))}.")
    if not Path(path).is_file():
        raise FileError(f"{path}: there is no such file.")
    if b is not None and extension(b) not in VECTOR_FORMATS:
        raise FileError(f"{b}: unknown extension for a vector; known are {', '.join(VECTOR_FORMATS)}.")
    if output is not None:
        check_writable(output, (*WRITABLE_FORMATS, ".petsc"))
        check_apart([output], [path] if b is None else [path, b])
    number("rtol", rtol)
    count("maxiter", maxiter, 1)


def _solver(A: PETSc.Mat, rtol: float, maxiter: int) -> PETSc.KSP:
    """The KSP, set up."""
    options = PETSc.Options()
    ksp = PETSc.KSP().create(A.getComm())
    ksp.setOperators(A)
    ksp.setTolerances(rtol=rtol, max_it=maxiter)
    if not options.hasName("ksp_type"):
        ksp.setType("gmres")
        ksp.setPCSide(PETSc.PC.Side.RIGHT)
    of_blocks: dict[str, str] = {}
    if not options.hasName("pc_type"):
        ksp.getPC().setType("asm")
        if not options.hasName("sub_pc_type"):
            of_blocks = {"sub_pc_type": "python", "sub_pc_python_type": CONTEXT}
    of_blocks = {name: value for name, value in of_blocks.items() if not options.hasName(name)}
    for name, value in of_blocks.items():
        options.setValue(name, value)
    try:
        in_one_line(lambda: (ksp.setFromOptions(), ksp.setUp(), ksp.setUpOnBlocks()))
    finally:
        for name in of_blocks:  # not meant for other solvers of the program
            options.delValue(name)
    return ksp
