"""Distribution of rows over processes such that few entries couple rows of different processes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from petsc4py import PETSc

from finelu.errors import ParameterError
from finelu.processes import on_first


def partitioned(comm: Any, A: PETSc.Mat, name: str) -> tuple[PETSc.IS, int]:
    """IS of the rows of A that this process takes, and how many entries couple rows of different processes.

    name : of a MatPartitioning of PETSc, or "metis". It partitions the graph of A + A^T.
    """
    transposed = A.transpose(PETSc.Mat())
    graph = A.copy()
    graph.axpy(1.0, transposed, structure=PETSc.Mat.Structure.DIFFERENT_NONZERO_PATTERN)
    first = A.getOwnershipRange()[0]
    if name == "metis":
        parts = _by_metis(comm, graph)
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


def _by_metis(comm: Any, graph: PETSc.Mat) -> np.ndarray:
    """The part of each own row, computed on the first process."""
    indptr, indices, _ = graph.getValuesCSR()
    gathered = comm.gather((np.diff(indptr), indices), root=0)

    def parts() -> list[np.ndarray]:
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

    own: np.ndarray = comm.scatter(on_first(comm, parts), root=0)
    return own
