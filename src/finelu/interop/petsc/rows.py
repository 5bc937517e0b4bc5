"""The rows of a process in the terms of SciPy: its diagonal block, and what couples it to other processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from petsc4py import PETSc

from finelu.errors import MatrixError
from finelu.interop.petsc.memory import csr_arrays
from finelu.kernels.operands import CSR, INT32_LIMIT, Mirrored
from finelu.matrix import as_csr
from finelu.matrix.traits import symmetry


def own_block(A: PETSc.Mat) -> CSR | None:
    """The diagonal block of this process, with values of its own; None without rows."""
    block = A.getDiagonalBlock() if A.getComm().getSize() > 1 else A
    rows, columns = block.getSize()
    if rows != columns:
        raise MatrixError(f"the block of this process has shape {(rows, columns)}; a square one is needed.")
    if rows == 0:
        return None
    indptr, indices, data = csr_arrays(block, None)
    index = np.int32 if max(rows, indices.size) <= INT32_LIMIT else np.int64
    arrays = data.copy(), indices.astype(index), indptr.astype(index)
    return as_csr(sp.csr_matrix(arrays, shape=(rows, columns)))


def rows_of(A: PETSc.Mat) -> Any:
    """The rows of this process (own, all) in the terms of SciPy."""
    indptr, indices, data = A.getValuesCSR()
    return sp.csr_matrix((data, indices, indptr), shape=(A.getLocalSize()[0], A.getSize()[1]))


def facts(block: CSR | None) -> tuple[bool, bool]:
    """Whether the diagonal block of a process is Hermitian, and whether its diagonal is positive."""
    if block is None:
        return True, True
    return symmetry(block) == "hermitian", bool((block.data[block.diag].real > 0).all())


def couplings_of(A: PETSc.Mat) -> tuple[Any, Any, Any]:
    """Rows, columns and values of the entries that couple the rows of this process to those of others."""
    own = rows_of(A).tocoo()
    first, last = A.getOwnershipRange()
    outside = (own.col < first) | (own.col >= last)
    rows, columns, values = own.row[outside].astype(np.int64), own.col[outside].astype(np.int64), own.data[outside]
    if not np.isfinite(values).all():
        row = int(rows[np.argmin(np.isfinite(values))])
        raise MatrixError(f"row {row} couples to another process by NaN or Inf.")
    return rows + first, columns, values


def mirrored_across(comm: Any, bounds: Any, rows: Any, columns: Any, values: Any) -> Mirrored:
    """The comparison of A with its adjoint, in the entries that couple rows of different processes.

    bounds (processes + 1,) : the first row of each process.  rows, columns, values : of these entries of this process.
    A difference counts relative to the larger of the two entries.
    """
    owners = np.searchsorted(bounds, columns, side="right") - 1
    order = np.argsort(owners, kind="stable")
    cuts = np.searchsorted(owners[order], np.arange(1, comm.size))
    sent = zip(*(np.split(array[order], cuts) for array in (columns, rows, values)), strict=True)
    got = zip(*comm.alltoall(list(sent)), strict=True)
    opposite_rows, opposite_columns, opposite = (np.concatenate(arrays) for arrays in got)
    n = int(bounds[-1])
    keys = rows * n + columns, opposite_rows * n + opposite_columns
    every = np.union1d(*keys)
    a, b = np.zeros((2, every.size), values.dtype)
    a[np.searchsorted(every, keys[0])] = values
    b[np.searchsorted(every, keys[1])] = opposite
    size = np.maximum(abs(a), abs(b))
    found = [size.max(initial=0.0)]
    for difference in (abs(a - b.conj()), abs(a - b)):
        found += [difference.max(initial=0.0), (difference / np.where(size > 0, size, 1)).max(initial=0.0)]
    largest, adjoint, adjoint_relative, transposed, transposed_relative = np.max(comm.allgather(found), axis=0)
    return largest, adjoint, transposed, adjoint_relative, transposed_relative, every.size


class Product:
    """v -> A v, or A^H v, for the own rows of vectors."""

    def __init__(self, matrix: PETSc.Mat):
        self.matrix = matrix
        self._right, self._left = matrix.createVecs()

    def __call__(self, v: Any, adjoint: bool = False) -> Any:
        source, target = (self._left, self._right) if adjoint else (self._right, self._left)
        out = np.empty(target.getLocalSize(), PETSc.ScalarType)
        source.placeArray(v)
        target.placeArray(out)
        (self.matrix.multHermitian if adjoint else self.matrix.mult)(source, target)
        source.resetArray()
        target.resetArray()
        return out

    def destroy(self) -> None:
        for thing in (self._right, self._left, self.matrix):
            thing.destroy()
