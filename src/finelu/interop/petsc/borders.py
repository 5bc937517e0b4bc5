"""Rows that a border between processes cuts off from what they are coupled to most move across it, for `SharedSchwarz`.

Parts end at the border of a process. Where it cuts strong couplings, neither the factors of the parts nor their vectors
follow these. So a row moves to the process to whose rows it is coupled most, with parts and factors of that one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
from petsc4py import PETSc

from finelu.interop.petsc.processes import together_in_steps
from finelu.interop.petsc.rows import Product, rows_of
from finelu.kernels.operands import CSR

# A row follows the one to which it is coupled most, if that coupling is more than STRONG of its diagonal entry, and of
# all its couplings together, and more than NEAR times any other. So a border cuts none of the groups that strong
# couplings make; in a grid with constant coefficients no row follows another.
STRONG, NEAR = 0.3, 1.02
STEPS = 12  # from row to row: one that is farther from the first of its group stays
HELD = 0.5  # of the same two: a row then moves to a process that holds it by more
# In each pass some rows move, and those follow that are coupled to them most. On four grids of 8000 random
# conductivities, one a process, cg takes 82, 69 and 69 iterations with 2, 4 and 6 passes alone.
PASSES = 4
LARGEST = 1.25  # times the most rows of a process: if one would have more, no row moves


class Borders:
    """The rows that moved, for all processes of mpi4py's communicator `comm`. All methods are collective.

    moved : their number, of all processes.
    """

    def __init__(self, comm: Any):
        self.comm = comm
        self.moved = 0
        self._known: Any = None  # the pattern of the own diagonal block for which the rows have moved
        self._P: Product | None = None

    def destroy(self) -> None:
        """Give PETSc's matrix back; the rows are where A has them."""
        if self._P is not None:
            self._P.destroy()
        self._P, self._known, self.moved = None, None, 0

    def decide(self, A: PETSc.Mat, block: CSR | None, size: int) -> None:
        """Find the rows that move. Where the diagonal blocks of all processes have the pattern that they had, the same.

        block : the diagonal block of this process, None without rows.
        size : of nodes, consecutive rows that move together.
        Raises what one process meets on all of them, as `Together`; then no row has moved.
        """
        pattern = () if block is None else (block.indptr, block.indices)
        known = self._known
        same = known is not None and len(known) == len(pattern) and all(map(np.array_equal, known, pattern))
        if self.comm.allreduce(same) == self.comm.size:
            return
        self.destroy()
        found = together_in_steps(self.comm, _moves(self.comm, A, size))
        if found is not None:
            moved, csr, layout = found
            self._P = Product(PETSc.Mat().createAIJ(layout, csr=csr, comm=A.getComm()))
            self.moved = moved
        self._known = pattern

    def matrix(self, A: PETSc.Mat) -> PETSc.Mat:
        """A with the rows where they moved, a new matrix if some did."""
        return A if self._P is None else A.ptap(self._P.matrix)

    def there(self, v: Any) -> Any:
        """The own rows of a vector, or of columns (own, m), where they moved; None as it is."""
        if self._P is None or v is None:
            return v
        if v.ndim == 2:
            return np.stack([self._P(np.ascontiguousarray(column), adjoint=True) for column in v.T], axis=1)
        return self._P(v, adjoint=True)

    def back(self, v: Any) -> Any:
        """The inverse of `there` for a vector."""
        return v if self._P is None else self._P(v)


# The generators below run on all processes, see `finelu.processes.agreed_steps`: a `yield` sends an object to each
# process, and receives one from each.
Steps = Generator[Iterable[Any], list[Any], Any]


def _moves(comm: Any, A: PETSc.Mat, size: int) -> Steps:
    """(the number of rows that move, CSR and layout of the matrix that moves them); None if none moves."""
    process = yield from _processes(comm, A, size)
    if process is None:
        return None
    moved = sum((yield [int((process != comm.rank).sum())] * comm.size))
    if moved == 0:
        return None
    return moved, *(yield from _permutation(comm, process))


def _processes(comm: Any, A: PETSc.Mat, size: int) -> Steps:
    """(own rows,) : the process to which each row moves, most to the own one; None on all processes if none moves."""
    first, last = (row // size for row in A.getOwnershipRange())
    bounds = np.asarray(A.getOwnershipRanges()) // size
    n = last - first
    own = rows_of(A)
    columns = own.indices // size
    nodes = np.repeat(np.arange(own.shape[0]), np.diff(own.indptr)) // size
    strength = abs(own.data)
    diagonal = np.bincount(nodes, np.where(columns == nodes + first, strength, 0), minlength=n)
    apart = columns != nodes + first
    nodes, columns, strength = nodes[apart], columns[apart], strength[apart]
    if size > 1:  # the couplings of two nodes count together
        of_nodes = sp.csr_matrix((strength, (nodes, columns)), shape=(n, bounds[-1]))
        nodes = np.repeat(np.arange(n), np.diff(of_nodes.indptr))
        columns, strength = of_nodes.indices.astype(np.int64), of_nodes.data
    total = np.maximum(diagonal, np.bincount(nodes, strength, minlength=n))
    outside = (columns < first) | (columns >= last)
    wanted, places = np.unique(columns[outside], return_inverse=True)
    asked = yield np.split(wanted, np.searchsorted(wanted, bounds[1:-1]))

    def at_columns(values: Any) -> Steps:
        """What `values` (own nodes,) of all processes are at `columns`."""
        found = np.empty(columns.size, values.dtype)
        found[~outside] = values[columns[~outside] - first]
        found[outside] = np.concatenate((yield [values[rows - first] for rows in asked]))[places]
        return found

    led = _led(nodes, strength, STRONG * total)
    follows = np.where(led < 0, -1, np.append(columns, -1)[led])
    mutual = np.append((yield from at_columns(follows)), -1)[led] == np.arange(first, last)
    smaller = np.arange(first, last) < follows
    leads = (led < 0) | (mutual & ((np.arange(first, last) + follows) % 2 == smaller))  # one of a mutual pair
    process = np.where(leads, comm.rank, -1)
    for _ in range(STEPS):
        process = np.where(process < 0, np.append((yield from at_columns(process)), -1)[led], process)
    process = np.where(process < 0, comm.rank, process)
    changed = sum((yield [int((process != comm.rank).sum())] * comm.size))
    for k in range(PASSES):
        at = yield from at_columns(process)
        held = sp.csr_matrix((strength, (nodes, at)), shape=(n, comm.size)).tocoo()
        towards = held.col > process[held.row] if k % 2 else held.col < process[held.row]  # so that no two swap
        moving = towards & (held.data > HELD * total[held.row])
        process[held.row[moving]] = held.col[moving]
        changed += sum((yield [int(moving.sum())] * comm.size))
        if k == 1 and not changed:
            return None
    becomes = np.max(np.sum((yield [np.bincount(process, minlength=comm.size)] * comm.size), axis=0))
    return None if becomes > LARGEST * np.diff(bounds).max() else np.repeat(process, size)


def _led(nodes: Any, strength: Any, bound: Any) -> Any:
    """(n,) : the place of each node's strongest coupling if it is above `bound` (n,), and no other is near; else -1."""
    order = np.lexsort((-strength, nodes))
    starts = np.flatnonzero(np.diff(nodes[order], prepend=-1))
    first = order[starts]
    after = np.append(order, 0)[starts + 1]
    second = np.where((starts + 1 < nodes.size) & (nodes[after] == nodes[first]), strength[after], 0.0)
    led = np.full(bound.size, -1)
    chosen = first[(strength[first] > bound[nodes[first]]) & (strength[first] > NEAR * second)]
    led[nodes[chosen]] = chosen
    return led


def _permutation(comm: Any, process: Any) -> Steps:
    """CSR and layout of P (own rows, rows after the moves) with P^T A P on `process`, in the order that the rows have
    in A."""
    counts = np.bincount(process, minlength=comm.size)
    came = np.array((yield counts.tolist()))
    first = sum((yield [int(came.sum())] * comm.size)[: comm.rank])
    begins = np.array((yield (first + np.cumsum(came) - came).tolist()))  # of the own rows, on each process
    order = np.argsort(process, kind="stable")
    columns = np.empty(process.size, PETSc.IntType)
    columns[order] = np.arange(process.size) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
    csr = np.arange(process.size + 1, dtype=PETSc.IntType), columns, np.ones(process.size)
    return csr, ((process.size, None), (int(came.sum()), None))
