"""From a matrix file to a solution on many processes, by PETSc: `solve_mtx`, and `finelu solve A.mtx --petsc`.

PETSc is imported when it is needed, for it reads its options when it starts.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from finelu.errors import FileError, FineluError, MatrixError, ParameterError
from finelu.io import VECTOR_FORMATS, WRITABLE_FORMATS, check_apart, check_writable, read_vector, write_array

MARKET, BINARY = (".mtx", ".mtx.gz"), (".petsc", ".dat", ".bin")
CHUNK = 2**24  # bytes of a compressed file that are looked at together
SEED = 0  # of the right-hand side that is made where none is given: the one of `finelu solve`
CONTEXT = "finelu.interop.petsc.PC"
MAT_CLASSID, VEC_CLASSID = 1211216, 1211214  # of PETSc's binary format, in which all numbers are big-endian
CLAIM = 10.0  # times the tolerance, up to which ||b - A x|| agrees with a convergence that KSP has told
PATIENCE = 5.0  # seconds for the other processes to meet an error, too
# What launchers call the number of a process.
RANK = (
    "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "PALS_RANKID", "FLUX_TASK_RANK",
    "SLURM_PROCID",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `solve_mtx` did, the same on all processes but for x.

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


def solve_mtx(path, b=None, *, output=None, partition: str | None = None, rtol: float = 1e-8, maxiter: int = 2000):
    """Solve A x = b for the matrix of a file, on all processes of PETSc's world; all of them must call it.

    path : Matrix Market (.mtx, .mtx.gz), of which each process reads its share of the lines, or PETSc binary (.petsc,
        .dat, .bin) of the number types of this PETSc. Its rows are spread in equal shares.
    b : file of the right-hand side; None: random, the same on any number of processes.
    output : file for x, written by one process (.npy, .npz, .mtx, .txt) or by all (.petsc).
    partition : spreads the rows by the MatPartitioning of this name ("parmetis", "ptscotch": as PETSc was built), of
        the pattern of A + A^T, or by "metis", on one process (needs pymetis). x has A's order all the same.
    rtol, maxiter : of the solver, which PETSc's options choose; where they do not, it is GMRES, preconditioned from
        the right by the additive Schwarz method with ILU(0) of finelu in each subdomain.
    Returns an `Outcome`. Raises FileError, MatrixError and ParameterError, the same on all processes, but for what
        PETSc meets on one alone, such as no memory; the program must then end (`python -m mpi4py` sees to it).
    Memory a process: its share of A four times while A is read; of b, x all on the first where a file needs it.
    """
    from petsc4py import PETSc

    world = PETSc.COMM_WORLD
    comm = _mpi(world)
    _agreed(comm, lambda: _check(path, b, output, rtol, maxiter))
    seconds = {}
    clock = perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = perf_counter()
        seconds[name], clock = comm.allreduce(now - clock, op=_max()), now

    A = _read(PETSc, comm, Path(path))
    rhs = _right_hand_side(PETSc, comm, A, b)
    lap("read")
    rows, cut = (None, None) if partition is None else _partitioned(PETSc, comm, A, partition)
    M, f = (A, rhs) if rows is None else (A.createSubMatrix(rows, rows), rhs.getSubVector(rows))
    lap("partition")
    ksp = _solver(PETSc, M, rtol, maxiter)
    lap("set-up")
    u = f.duplicate()
    _petsc_calls(PETSc, lambda: ksp.solve(f, u))
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
        _write(PETSc, comm, output, x)
    names = {value: name for name, value in vars(PETSc.KSP.ConvergedReason).items() if name.isupper()}
    reason = ksp.getConvergedReason()
    # what KSP claims may be of a preconditioned norm, or of a recurrence that has drifted
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


def _check(path, b, output, rtol: float, maxiter: int) -> None:
    file = Path(path)
    if _kind(path) not in (*MARKET, *BINARY):
        raise FileError(f"{path}: with PETSc a matrix is read from {', '.join((*MARKET, *BINARY))}.")
    if not file.is_file():
        raise FileError(f"{path}: there is no such file.")
    if b is not None and _kind(b) not in VECTOR_FORMATS:
        raise FileError(f"{b}: unknown extension for a vector; known are {', '.join(VECTOR_FORMATS)}.")
    if output is not None:
        check_writable(output, (*WRITABLE_FORMATS, ".petsc"))
        check_apart([output], [path] if b is None else [path, b])
    if not (isinstance(rtol, int | float) and math.isfinite(rtol) and rtol >= 0):
        raise ParameterError(f"rtol={rtol}; a finite number >= 0 is needed.")
    if not isinstance(maxiter, int) or maxiter < 1:
        raise ParameterError(f"maxiter={maxiter}; at least 1 is needed.")


def _kind(path) -> str:
    name = str(path).lower()
    return ".mtx.gz" if name.endswith(".mtx.gz") else Path(name).suffix


# All processes together -----------------------------------------------------------------------------------------------


def _mpi(world):
    try:
        import mpi4py  # noqa: F401
    except ImportError as error:
        raise ImportError("finelu.interop.petsc.solve_mtx needs mpi4py: pip install mpi4py.") from error
    return world.tompi4py()


def _max():
    from mpi4py import MPI

    return MPI.MAX


def _agreed(comm, work: Callable[[], Any]) -> Any:
    """work() on each process; what it raises on one of them, all raise, where the others would wait for ever."""
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    failed = comm.allgather(failure is not None)
    if any(failed):
        raise comm.bcast(failure, root=failed.index(True))
    return result


def _petsc_calls(PETSc, work: Callable[[], Any]) -> None:
    """work() with PETSc's errors as one line."""
    try:
        work()
    except PETSc.Error as error:
        if isinstance(error.__cause__, FineluError):  # of PC.setFromOptions
            raise ParameterError(str(error.__cause__)) from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ParameterError(f"PETSc: {lines[-1] if lines else error}") from error


# Reading and writing --------------------------------------------------------------------------------------------------


def _read(PETSc, comm, path: Path):
    if _kind(path) in BINARY:
        _agreed(comm, lambda: _check_binary_matrix(PETSc, path) if comm.rank == 0 else None)
        A = PETSc.Mat().create(PETSc.COMM_WORLD)
        A.setFromOptions()
        viewer = None
        try:
            viewer = PETSc.Viewer().createBinary(str(path), "r", comm=PETSc.COMM_WORLD)
            A.load(viewer)
        except PETSc.Error as error:
            raise FileError(
                f"{path}: PETSc cannot load it (error {error.ierr}); it must be a binary Mat of {_numbers(PETSc)}."
            ) from error
    else:
        A = _assembled(PETSc, comm, path)
    if A.getSize()[0] != A.getSize()[1]:
        raise MatrixError(f"{path}: A has shape {A.getSize()}; a square matrix is needed.")
    return A


def _numbers(PETSc) -> str:
    return f"{np.dtype(PETSc.ScalarType)} values and {np.dtype(PETSc.IntType)} indices, as this PETSc has them"


def _check_binary_matrix(PETSc, path) -> None:
    """What the process that reads would find out alone, for which the others would wait in PETSc's loading."""
    index, scalar = np.dtype(PETSc.IntType).newbyteorder(">"), np.dtype(PETSc.ScalarType)
    needed = f"PETSc cannot load it: a binary Mat of {_numbers(PETSc)} is needed, and"
    try:
        with open(path, "rb") as file:
            header = np.fromfile(file, index, 4)
            if header.size < 4 or header[0] != MAT_CLASSID:
                raise FileError(f"{path}: {needed} this does not begin like one.")
            rows, columns, nnz = map(int, header[1:])
            if min(rows, columns, nnz) < 0:
                raise FileError(f"{path}: {needed} this is said to be of shape {(rows, columns)}, {nnz} entries.")
            size, end = os.stat(path).st_size, (4 + rows) * index.itemsize
            if size >= end:
                lengths = np.fromfile(file, index, rows)
                stored = int(lengths.sum(dtype=np.int64))
                nnz = stored if nnz == np.iinfo(index).max else nnz  # which stands for: too many for such an integer
                if stored != nnz or (lengths < 0).any():
                    raise FileError(f"{path}: {needed} the rows of this have {stored} entries together, not {nnz}.")
                end += nnz * (index.itemsize + scalar.itemsize)
            if size < end:
                raise FileError(f"{path}: {needed} this ends after {size} of {end} bytes or more; it is truncated.")
            for first in range(0, nnz, CHUNK):
                indices = np.fromfile(file, index, min(CHUNK, nnz - first))
                if indices.min() < 0 or indices.max() >= columns:
                    raise FileError(f"{path}: {needed} this has entries beyond its {columns} columns.")
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error}).") from error


def _check_binary_vector(PETSc, path, n: int) -> None:
    """The same for a right-hand side; its head is of 32-bit integers, or of 64-bit ones."""
    scalar = np.dtype(PETSc.ScalarType)
    needed = f"PETSc cannot load it: a binary Vec of {n} {_numbers(PETSc)} is needed, and"
    try:
        with open(path, "rb") as file:
            data, size = file.read(16), os.stat(path).st_size
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error}).") from error
    for index in (np.dtype(">i4"), np.dtype(">i8")):
        if len(data) >= 2 * index.itemsize and np.frombuffer(data, index, 1)[0] == VEC_CLASSID:
            rows = int(np.frombuffer(data, index, 2)[1])
            if rows != n:
                raise FileError(f"{path}: {needed} this has {rows}.")
            end = 2 * index.itemsize + n * scalar.itemsize
            if size < end:
                raise FileError(f"{path}: {needed} this ends after {size} of {end} bytes; it is truncated.")
            return
    raise FileError(f"{path}: {needed} this does not begin like one.")


def _assembled(PETSc, comm, path: Path):
    """The matrix of a Matrix Market file: each process brings its lines, PETSc sends the entries to their rows."""
    (shape, entries), start = _agreed(comm, lambda: _header(PETSc, path))

    def share():
        text, count = _lines(path, start, entries, comm.rank, comm.size)
        return _parsed(PETSc, path, shape, text, count), count

    coo, count = _agreed(comm, share)
    found = comm.allreduce(count)
    if found != entries:
        raise FileError(f"{path}: {entries} entries are announced, but there are {found}; the file is truncated.")
    A = PETSc.Mat().create(PETSc.COMM_WORLD)
    A.setSizes(shape)
    A.setFromOptions()
    A.setUp()
    first, last = A.getOwnershipRange()
    ends = np.array(comm.allgather(last))
    owner = np.searchsorted(ends, coo.row, side="right")
    order = np.argsort(owner, kind="stable")
    cuts = np.searchsorted(owner[order], np.arange(1, comm.size))
    parts = (np.split(part[order], cuts) for part in (coo.row, coo.col, coo.data))
    row, column, data = (np.concatenate(comm.alltoall(part)) for part in parts)
    own = sp.csr_matrix((data, (row - first, column)), shape=(last - first, shape[1]))  # duplicates are summed
    index = PETSc.IntType
    A.setPreallocationCSR((own.indptr.astype(index), own.indices.astype(index), own.data.astype(PETSc.ScalarType)))
    A.assemble()
    return A


def _open(path: Path):
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")


def _header(PETSc, path: Path):
    """((rows, columns), entries), and where they begin, after the banner, comments and sizes."""
    try:
        with _open(path) as file:
            banner = file.readline()
            words = banner.lower().split()
            if len(words) != 5 or words[0] != b"%%matrixmarket" or words[1] != b"matrix":
                raise FileError(f"{path}: is not a Matrix Market file; its first line is {banner[:60]!r}.")
            if words[2] != b"coordinate":
                raise FileError(f"{path}: holds a dense matrix; PETSc works on sparse ones.")
            if words[3] == b"complex" and np.dtype(PETSc.ScalarType).kind != "c":
                raise FileError(f"{path}: holds complex values; this PETSc was built for real ones.")
            line = banner
            while line and (line.startswith(b"%") or not line.strip()):
                line = file.readline()
            sizes = line.split()
            if len(sizes) != 3 or not all(size.isdigit() for size in sizes):
                raise FileError(f"{path}: rows, columns and entries are expected where {line[:60]!r} stands.")
            rows, columns, entries = map(int, sizes)
            if max(rows, columns) > np.iinfo(PETSc.IntType).max:
                raise FileError(f"{path}: {rows} x {columns} rows and columns; this PETSc has 32-bit indices.")
            return ((rows, columns), entries), (banner, file.tell())
    except (OSError, EOFError) as error:
        raise FileError(f"{path}: cannot be read ({error}).") from error


def _lines(path: Path, start, entries: int, rank: int, size: int):
    """The banner and this process's share of the lines, and their number: by bytes, if compressed by lines."""
    banner, begin = start
    try:
        with _open(path) as file:
            if path.suffix == ".gz":
                text = _numbered(file, begin, entries * rank // size, entries * (rank + 1) // size, rank == size - 1)
            else:
                end = path.stat().st_size
                first, last = (begin + (end - begin) * k // size for k in (rank, rank + 1))
                text = _between(file, begin, first, last)
    except (OSError, EOFError) as error:
        raise FileError(f"{path}: cannot be read ({error}); fetch it again.") from error
    text = re.sub(rb"\n\s+", b"\n", text).strip()
    if b"\0" in text:
        raise FileError(f"{path}: holds a NUL byte; the file is corrupt.")
    return banner + b"%d %d %d\n" + text, text.count(b"\n") + bool(text)


def _between(file, begin: int, first: int, last: int) -> bytes:
    """The lines that begin at a byte of [first, last)."""
    file.seek(max(first - 1, begin))
    if first > begin:
        file.readline()  # the end of the line before
    at = file.tell()
    if at >= last:
        return b""
    text = file.read(last - at)
    return text if text.endswith(b"\n") else text + file.readline()


def _numbered(file, begin: int, first: int, last: int, to_the_end: bool) -> bytes:
    """The lines of these numbers, counted from the byte `begin`."""
    file.seek(begin)
    parts, number = [], 0  # of the line that the chunk begins in
    while chunk := file.read(CHUNK):
        count = chunk.count(b"\n")
        if number + count >= first:
            low = _after_line(chunk, first - number)
            high = len(chunk) if to_the_end or number + count < last else _after_line(chunk, last - number)
            parts.append(chunk[low:high])
        number += count
        if number >= last and not to_the_end:
            break
    return b"".join(parts)


def _after_line(chunk: bytes, lines: int) -> int:
    """Where in the chunk so many lines have ended."""
    if lines <= 0:
        return 0
    ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10)
    return int(ends[lines - 1]) + 1


def _parsed(PETSc, path: Path, shape, text: bytes, count: int):
    banner, sizes, entries = text.split(b"\n", 2)
    try:
        part = io.BytesIO(banner + b"\n" + sizes % (*shape, count) + b"\n" + entries + b"\n")
        coo = sp.coo_matrix(scipy.io.mmread(part))
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise FileError(f"{path}: cannot be read as Matrix Market ({reason}; lines are those of a part).") from error
    if not np.isfinite(coo.data).all():
        bad = int(np.flatnonzero(~np.isfinite(coo.data))[0])
        raise MatrixError(f"{path}: A holds NaN or Inf in row {coo.row[bad]}; find where it comes from before solving.")
    return coo


def _right_hand_side(PETSc, comm, A, path):
    b = A.createVecLeft()
    first, last = b.getOwnershipRange()
    n = b.getSize()
    if path is None:
        stream = np.random.PCG64(SEED)
        stream.advance(first)  # each number is one step
        b.setArray(np.random.Generator(stream).uniform(-0.5, 0.5, last - first))
        return b
    if _kind(path) == ".petsc":
        _agreed(comm, lambda: _check_binary_vector(PETSc, path, n) if comm.rank == 0 else None)
        try:
            b.load(PETSc.Viewer().createBinary(str(path), "r", comm=PETSc.COMM_WORLD))
        except PETSc.Error as error:
            raise FileError(f"{path}: PETSc cannot load it as a Vec of {n} {_numbers(PETSc)}.") from error
        return b

    def values():
        if comm.rank > 0:
            return None
        v = read_vector(path)
        if v.shape != (n,):
            raise MatrixError(f"{path}: has shape {v.shape}, but A has {n} rows.")
        if v.dtype.kind == "c" and np.dtype(PETSc.ScalarType).kind != "c":
            raise FileError(f"{path}: holds complex values; this PETSc was built for real ones.")
        if not np.isfinite(v).all():
            raise MatrixError(f"{path}: holds NaN or Inf in row {int(np.flatnonzero(~np.isfinite(v))[0])}.")
        return v.astype(PETSc.ScalarType)

    v = _agreed(comm, values)
    if comm.rank == 0:
        b.setValues(np.arange(n, dtype=PETSc.IntType), v)
    b.assemble()
    return b


def _write(PETSc, comm, path, x) -> None:
    if _kind(path) == ".petsc":
        x.view(PETSc.Viewer().createBinary(str(path), "w", comm=PETSc.COMM_WORLD))
        return
    scatter, whole = PETSc.Scatter.toZero(x)
    scatter.scatter(x, whole)
    _agreed(comm, lambda: write_array(path, whole.getArray(readonly=True)) if comm.rank == 0 else None)


# Rows to processes ----------------------------------------------------------------------------------------------------


def _partitioned(PETSc, comm, A, name: str):
    """IS of the rows of A that this process takes, and how many entries couple rows of different ones."""
    transposed = A.transpose(PETSc.Mat())
    graph = A.copy()
    graph.axpy(1.0, transposed, structure=PETSc.Mat.Structure.DIFFERENT_NONZERO_PATTERN)
    first = A.getOwnershipRange()[0]
    if name == "metis":
        parts = _by_metis(PETSc, comm, graph)
    else:
        partitioning = PETSc.MatPartitioning().create(PETSc.COMM_WORLD)
        found = PETSc.IS()
        try:
            adjacency = graph.convert("mpiadj", PETSc.Mat())
            partitioning.setAdjacency(adjacency)
            partitioning.setType(name)
            partitioning.setFromOptions()
            partitioning.apply(found)
        except PETSc.Error as error:
            raise ParameterError(
                f"partition={name!r}: this PETSc has no such partitioning, or it failed (error {error.ierr}); "
                "parmetis, ptscotch and others come with PETSc as it was configured; metis needs pymetis alone."
            ) from error
        parts = found.getIndices()
    mine = comm.alltoall([np.flatnonzero(parts == k) + first for k in range(comm.size)])
    rows = PETSc.IS().createGeneral(np.concatenate(mine).astype(PETSc.IntType), comm=PETSc.COMM_WORLD)
    owner = A.createVecRight()
    owner.setArray(parts.astype(float))
    indptr, indices, _ = A.getValuesCSR()
    columns, places = np.unique(indices, return_inverse=True)
    local = PETSc.Vec().createSeq(columns.size)
    wanted = PETSc.IS().createGeneral(columns.astype(PETSc.IntType), comm=PETSc.COMM_SELF)
    PETSc.Scatter().create(owner, wanted, local, None).scatter(owner, local)
    of_column = local.getArray(readonly=True).real.astype(int)[places]
    cut = comm.allreduce(int((of_column != np.repeat(parts, np.diff(indptr))).sum()))
    return rows, cut


def _by_metis(PETSc, comm, graph):
    """The part of each own row, found on the first process."""
    indptr, indices, _ = graph.getValuesCSR()
    gathered = comm.gather((np.diff(indptr), indices), root=0)

    def parts():
        if comm.rank > 0:
            return None
        try:
            pymetis = import_module("pymetis")
        except ImportError as error:
            raise ParameterError("partition='metis' needs pymetis: pip install 'finelu[metis]'.") from error
        lengths, columns = (np.concatenate(part) for part in zip(*gathered, strict=True))
        rows = np.repeat(np.arange(lengths.size), lengths)
        apart = columns != rows
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows[apart], minlength=lengths.size))])
        _, found = pymetis.part_graph(comm.size, xadj=starts.astype(int), adjncy=columns[apart].astype(int))
        ends = np.cumsum([lengths.size for lengths, _ in gathered])[:-1]
        return np.split(np.asarray(found), ends)

    return comm.scatter(_agreed(comm, parts), root=0)


# The solver -----------------------------------------------------------------------------------------------------------


def _solver(PETSc, A, rtol: float, maxiter: int):
    """The KSP, set up."""
    options = PETSc.Options()
    ksp = PETSc.KSP().create(A.getComm())
    ksp.setOperators(A)
    ksp.setTolerances(rtol=rtol, max_it=maxiter)
    if not options.hasName("ksp_type"):
        ksp.setType("gmres")
        ksp.setPCSide(PETSc.PC.Side.RIGHT)
    of_blocks = {}
    if not options.hasName("pc_type"):
        ksp.getPC().setType("asm")
        if not options.hasName("sub_pc_type"):
            of_blocks = {"sub_pc_type": "python", "sub_pc_python_type": CONTEXT}
    of_blocks = {name: value for name, value in of_blocks.items() if not options.hasName(name)}
    for name, value in of_blocks.items():
        options.setValue(name, value)
    try:
        _petsc_calls(PETSc, lambda: (ksp.setFromOptions(), ksp.setUp(), ksp.setUpOnBlocks()))
    finally:
        for name in of_blocks:  # other solvers of the program have not asked for them
            options.delValue(name)
    return ksp


# finelu solve A.mtx --petsc -------------------------------------------------------------------------------------------

VALUES = {"-b": "b", "--rhs": "b", "-o": "output", "--output": "output", "--partition": "partition"}
NUMBERS = {"--rtol": ("rtol", float), "--maxiter": ("maxiter", int)}


def command(arguments: Sequence[str]) -> int:
    """`finelu solve A.mtx --petsc [...]`: the arguments after "solve"; returns the exit status of this process."""
    as_json = "--json" in arguments
    try:
        path, given, for_petsc = _command_line(list(arguments))
    except ParameterError as error:
        if _launched_first():
            return _told(error, as_json)
        sleep(1.0)  # some launchers end all processes when one ends: let the first say why
        return 2
    try:
        import petsc4py
    except ImportError:
        return _told(ParameterError("--petsc needs petsc4py, the one of your PETSc: see docs/petsc.md."), as_json)
    petsc4py.init(["finelu", *for_petsc])
    from petsc4py import PETSc

    first = PETSc.COMM_WORLD.getRank() == 0
    try:
        outcome = solve_mtx(path, **given)
    except FineluError as error:
        if isinstance(error.__cause__, PETSc.Error) and not _met_by_all(_mpi(PETSc.COMM_WORLD)):
            _told(error, as_json)  # by this process: the others wait inside PETSc
            _mpi(PETSc.COMM_WORLD).Abort(2)
        return _told(error, as_json) if first else 2
    except BaseException:
        if PETSc.COMM_WORLD.getSize() > 1:  # the others would wait for this one
            import traceback

            traceback.print_exc()
            _mpi(PETSc.COMM_WORLD).Abort(70)
        raise
    if first:
        _shown(path, given, outcome, as_json)
    return 0 if outcome.converged else 1


def _launched_first() -> bool:
    """Whether this is the first process, by the launcher: before MPI starts there is nothing else to tell."""
    return next((int(text) for name in RANK if (text := os.environ.get(name, "")).isdecimal()), 0) == 0


def _met_by_all(comm) -> bool:
    """Whether all processes come here, within PATIENCE."""
    arrived = comm.Ibarrier()
    end = perf_counter() + PATIENCE
    while not arrived.Test():
        if perf_counter() > end:
            return False
        sleep(0.01)
    return True


def _command_line(arguments: list[str]) -> tuple[str, dict[str, Any], list[str]]:
    """The matrix, the parameters of solve_mtx, and what is left for PETSc."""
    paths: list[str] = []
    given: dict[str, Any] = {}
    left: list[str] = []
    while arguments:
        word = arguments.pop(0)
        name, equals, value = word.partition("=")
        if name in VALUES or name in NUMBERS:
            if not equals and not arguments:
                raise ParameterError(f"{name} needs a value.")
            text = value if equals else arguments.pop(0)
            try:
                key, kind = NUMBERS.get(name) or (VALUES[name], str)
                given[key] = kind(text)
            except ValueError:
                raise ParameterError(f"{name} {text}: a number is needed.") from None
        elif word in ("--petsc", "--json"):
            continue
        elif word.startswith("--"):
            known = ", ".join((*VALUES, *NUMBERS, "--json"))
            raise ParameterError(
                f"{word} has no meaning with --petsc; there are {known}, and PETSc's options, such as "
                "-sub_finelu_recipe ilut."
            )
        elif word.startswith("-") or left:
            left.append(word)
        else:
            paths.append(word)
    if len(paths) != 1:
        raise ParameterError(f"one matrix file, before PETSc's options, is needed; there are {len(paths)}.")
    return paths[0], given, left


def _told(error: Exception, as_json: bool) -> int:
    text = " ".join(str(error).split())
    where = sys.stdout if as_json else sys.stderr
    print(json.dumps({"error": text}) if as_json else f"finelu: {text}", file=where, flush=True)
    return 2


def _shown(path: str, given: dict[str, Any], outcome: Outcome, as_json: bool) -> None:
    facts = {name: value for name, value in vars(outcome).items() if name != "x" and value is not None}
    if as_json:
        print(json.dumps({"matrix": path, **given, **facts}))
        return
    times = ", ".join(f"{name} {value:.3g} s" for name, value in facts.pop("seconds").items())
    low, high = facts["rows"]
    rows = {
        "n": facts["n"],
        "nnz": facts["nnz"],
        "right-hand side": given.get("b", f"uniform in [-0.5, 0.5], seed {SEED}"),
        "processes": f"{facts['processes']}, of {low} to {high} rows",
        "solver": f"{facts['ksp']}, {facts['pc']} (-ksp_view shows all)",
        "status": f"{'converged' if outcome.converged else 'not converged'}: {outcome.reason}",
        "iterations": outcome.iterations,
        "relative residual": f"{outcome.relative_residual:.3e} (true, of the x returned)",
        "time": times,
    }
    if outcome.cut is not None:
        rows["partition"] = f"{given['partition']}: {outcome.cut} entries couple rows of different processes"
    if "output" in given:
        rows["output"] = given["output"]
    from rich.console import Console
    from rich.table import Table

    table = Table(title=path, show_header=False)
    for name, value in rows.items():
        table.add_row(name, str(value))
    Console(highlight=False).print(table)
