"""Matrices and vectors in files, read and written by all processes of PETSc's world together."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import scipy.sparse as sp
from petsc4py import PETSc

from finelu.errors import FileError, MatrixError
from finelu.io import read_vector, write_array
from finelu.io.market import Layout, common_place, expanded, read_layout, read_part, stored_twice
from finelu.io.paths import FilePath, extension
from finelu.io.petsc import MAT_CLASSID, VEC_CLASSID
from finelu.processes import agreed, on_first

MARKET, BINARY = (".mtx", ".mtx.gz"), (".petsc", ".dat", ".bin")
CHUNK = 2**24  # column indices of a binary file that are checked together
SEED = 0  # of the random right-hand side: the one of `finelu solve`


def read_system(comm: Any, path: FilePath, b: FilePath | None) -> tuple[PETSc.Mat, PETSc.Vec]:
    """A and b, spread over the processes in equal shares of the rows; b is random if there is no file of it."""
    A = _assembled(comm, path) if extension(path) in MARKET else _loaded(comm, path)
    if A.getSize()[0] != A.getSize()[1]:
        raise MatrixError(f"{path}: A has shape {A.getSize()}; a square matrix is needed.")
    return A, _right_hand_side(comm, A, b)


def write_vector(comm: Any, path: FilePath, x: PETSc.Vec) -> None:
    if extension(path) == ".petsc":
        x.view(PETSc.Viewer().createBinary(str(path), "w", comm=PETSc.COMM_WORLD))
        return
    scatter, whole = PETSc.Scatter.toZero(x)
    scatter.scatter(x, whole)
    on_first(comm, lambda: write_array(path, whole.getArray(readonly=True)))


# Matrix Market --------------------------------------------------------------------------------------------------------


def _assembled(comm: Any, path: FilePath) -> PETSc.Mat:
    """The matrix of a Matrix Market file: each process reads its lines, and sends the entries to their rows."""
    compressed = extension(path) == ".mtx.gz"
    layout = agreed(comm, lambda: _checked_layout(path, compressed))
    i, j, value = agreed(comm, lambda: _finite(path, *read_part(path, compressed, layout, comm.rank, comm.size)))
    found = comm.allreduce(value.size)
    if found != layout.entries:
        raise FileError(
            f"{path}: {layout.entries} entries are announced, but there are {found}; the file is truncated."
        )
    A = PETSc.Mat().create(PETSc.COMM_WORLD)
    A.setSizes((layout.rows, layout.columns))
    A.setFromOptions()
    A.setUp()
    first, last = A.getOwnershipRange()
    both_triangles = layout.symmetry != "general" and all(any(comm.allgather(s.any())) for s in (i > j, i < j))
    row, column, data = expanded(layout, i, j, value)
    is_mirrored = np.arange(row.size) >= i.size
    ends = np.array(comm.allgather(last))
    row, column, data, is_mirrored = _exchanged(
        comm, np.searchsorted(ends, row, side="right"), row, column, data, is_mirrored
    )
    shape = (last - first, layout.columns)
    if both_triangles:
        agreed(comm, lambda: _check_apart(path, layout, shape, first, row, column, data, is_mirrored))
    own = sp.csr_matrix((data, (row - first, column)), shape=shape)  # duplicates are summed
    index = PETSc.IntType
    A.setPreallocationCSR((own.indptr.astype(index), own.indices.astype(index), own.data.astype(PETSc.ScalarType)))
    A.assemble()
    return A


def _checked_layout(path: FilePath, compressed: bool) -> Layout:
    layout = read_layout(path, compressed)
    if not layout.coordinate:
        raise FileError(f"{path}: holds a dense matrix; PETSc works on sparse ones.")
    if layout.field == "complex" and np.dtype(PETSc.ScalarType).kind != "c":
        raise FileError(f"{path}: holds complex values; this PETSc was built for real ones.")
    if max(layout.rows, layout.columns) > np.iinfo(PETSc.IntType).max:
        raise FileError(f"{path}: {layout.rows} x {layout.columns} rows and columns; this PETSc has 32-bit indices.")
    return layout


def _finite(path: FilePath, i: np.ndarray, j: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, ...]:
    if not np.isfinite(value).all():
        bad = int(np.flatnonzero(~np.isfinite(value))[0])
        raise MatrixError(f"{path}: A holds NaN or Inf in row {i[bad]}; find where it comes from before solving.")
    return i, j, value


def _exchanged(comm: Any, owner: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """The parts of these arrays, from all processes, whose owner this process is."""
    order = np.argsort(owner, kind="stable")
    cuts = np.searchsorted(owner[order], np.arange(1, comm.size))
    return tuple(np.concatenate(comm.alltoall(np.split(array[order], cuts))) for array in arrays)


def _check_apart(
    path: FilePath,
    layout: Layout,
    shape: tuple[int, int],
    first: int,
    row: np.ndarray,
    column: np.ndarray,
    data: np.ndarray,
    is_mirrored: np.ndarray,
) -> None:
    """Refuse entries other than 0 in the own rows that are stored in both triangles."""
    sides = ((data != 0) & (row != column) & side for side in (is_mirrored, ~is_mirrored))
    mirrored, stored = ((row[side] - first, column[side]) for side in sides)
    if place := common_place(shape, mirrored, stored):
        raise FileError(f"{path}: {stored_twice(layout, place[0] + first, place[1])}")


# PETSc's binary format ------------------------------------------------------------------------------------------------


def _loaded(comm: Any, path: FilePath) -> PETSc.Mat:
    on_first(comm, lambda: _check_binary_matrix(path))
    A = PETSc.Mat().create(PETSc.COMM_WORLD)
    A.setFromOptions()
    viewer = None  # kept until A is loaded
    try:
        viewer = PETSc.Viewer().createBinary(str(path), "r", comm=PETSc.COMM_WORLD)
        A.load(viewer)
    except PETSc.Error as error:
        raise FileError(
            f"{path}: PETSc cannot load it (error {error.ierr}); it must be a binary Mat of {_number_types()}."
        ) from error
    return A


def _number_types() -> str:
    return f"{np.dtype(PETSc.ScalarType)} values and {np.dtype(PETSc.IntType)} indices, as this PETSc has them"


def _check_binary_matrix(path: FilePath) -> None:
    """Find errors before PETSc loads the file: one process reads it, and if that failed the others would wait."""
    index, scalar = np.dtype(PETSc.IntType).newbyteorder(">"), np.dtype(PETSc.ScalarType)
    needed = f"PETSc cannot load it: a binary Mat of {_number_types()} is needed, and"
    try:
        with open(path, "rb") as file:
            header = np.fromfile(file, index, 4)
            if header.size < 4 or header[0] != MAT_CLASSID:
                raise FileError(f"{path}: {needed} this does not begin like one.")
            rows, columns, nnz = map(int, header[1:])
            if min(rows, columns, nnz) < 0:
                raise FileError(f"{path}: {needed} this announces shape {(rows, columns)} and {nnz} entries.")
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


def _check_binary_vector(path: FilePath, n: int) -> None:
    """The same for a right-hand side; its header has 32-bit integers, or 64-bit ones."""
    scalar = np.dtype(PETSc.ScalarType)
    needed = f"PETSc cannot load it: a binary Vec of {n} {_number_types()} is needed, and"
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


# The right-hand side --------------------------------------------------------------------------------------------------


def _right_hand_side(comm: Any, A: PETSc.Mat, path: FilePath | None) -> PETSc.Vec:
    b = A.createVecLeft()
    first, last = b.getOwnershipRange()
    n = b.getSize()
    if path is None:
        stream = np.random.PCG64(SEED)
        stream.advance(first)  # each number is one step
        b.setArray(np.random.Generator(stream).uniform(-0.5, 0.5, last - first))
        return b
    if extension(path) == ".petsc":
        on_first(comm, lambda: _check_binary_vector(path, n))
        try:
            b.load(PETSc.Viewer().createBinary(str(path), "r", comm=PETSc.COMM_WORLD))
        except PETSc.Error as error:
            raise FileError(f"{path}: PETSc cannot load it as a Vec of {n} {_number_types()}.") from error
        return b

    v = on_first(comm, lambda: _checked_vector(path, n))
    if v is not None:
        b.setValues(np.arange(n, dtype=PETSc.IntType), v)
    b.assemble()
    return b


def _checked_vector(path: FilePath, n: int) -> np.ndarray:
    v = read_vector(path)
    if v.shape != (n,):
        raise MatrixError(f"{path}: has shape {v.shape}, but A has {n} rows.")
    if v.dtype.kind == "c" and np.dtype(PETSc.ScalarType).kind != "c":
        raise FileError(f"{path}: holds complex values; this PETSc was built for real ones.")
    if not np.isfinite(v).all():
        raise MatrixError(f"{path}: holds NaN or Inf in row {int(np.flatnonzero(~np.isfinite(v))[0])}.")
    return v.astype(PETSc.ScalarType)
