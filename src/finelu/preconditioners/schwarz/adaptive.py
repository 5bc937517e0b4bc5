"""A near null space that is found: the constants of each unknown of a node, and vectors that cg hardly reduces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, log
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu, sparse_module, to_host
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import full_csr
from finelu.matrix.looks import LARGEST_BLOCK
from finelu.preconditioners.schwarz.conjugate import conjugate_gradients, inner, inner_of_columns

SEED = 20050801  # of the random vectors
MOST_ROWS = 0.5  # part of the rows that must be those of nodes with the same number of unknowns
STEPS, MEASURED = 16, 6  # of cg with which a vector is smoothed, and the last ones, by which convergence is measured
ADDED = 3  # vectors that are added at a time, twice
# Vectors are added if more iterations than SLOW are expected for the REDUCTION of the error in the norm of A. A cube of
# elastic material shows 60 to 65, long bars and plates 110 to 135.
SLOW, REDUCTION = 90.0, 1e-8


@dataclass
class Nodes:
    """The nodes of a matrix, whose rows are the unknowns of one node each.

    starts (count + 1,) : node k has the rows order[starts[k]:starts[k + 1]], int64 on the host.
    size : the unknowns of most nodes.  order (n,) : None for rows in their own order.
    """

    starts: Any
    size: int
    order: Any = None
    _kept: tuple[CSR, CSR] | None = field(default=None, init=False, repr=False)

    @property
    def count(self) -> int:
        return int(self.starts.size) - 1

    def of_rows(self, A: CSR) -> Any:
        """(n,) int32 : the node of each row, on the device of A."""
        nodes = np.repeat(np.arange(self.count, dtype=np.int32), np.diff(self.starts))
        return namespace(A.data).asarray(self._by_rows(nodes))

    def unknowns(self) -> Any:
        """(n,) : the unknown of its node that each row is, on the host. If a node has more than `size` rows, several of
        them are the same unknown."""
        lengths = np.diff(self.starts)
        inside = np.arange(self.starts[-1]) - np.repeat(self.starts[:-1], lengths)
        return self._by_rows(inside * self.size // np.repeat(np.maximum(lengths, self.size), lengths))

    def matrix(self, A: CSR) -> CSR:
        """(count, count) : the sums of the magnitudes of the entries of A that couple two nodes, kept for one A."""
        if self._kept is None or self._kept[0] is not A:
            self._kept = A, self._made(A)
        return self._kept[1]

    def _made(self, A: CSR) -> CSR:
        xp, of_rows = namespace(A.data), self.of_rows(A)
        products = kernels_for(A.data).subdomains.coarse_products
        pointers, node, sums = products(A.indptr, A.indices, abs(A.data), of_rows, self.count, None)
        make, sums = sparse_module(A.data).csr_matrix, sums.reshape(-1)
        if self.order is not None:
            of_nodes = make((sums, node, pointers), shape=(A.n, self.count))[xp.asarray(self.order)]
            pointers, node, sums = of_nodes.indptr, of_nodes.indices, of_nodes.data
        S = make((sums, node, pointers[xp.asarray(self.starts)]), shape=(self.count, self.count))
        S.sum_duplicates()
        return full_csr(S.indptr, S.indices, S.data)

    def _by_rows(self, values: Any) -> Any:
        """Values in the order of nodes, by rows."""
        if self.order is None:
            return values
        found = np.empty_like(values)
        found[self.order] = values
        return found


def nodes_of(A: CSR, size: int = 1) -> Nodes | None:
    """The nodes of A: rows of `size` unknowns each, or if that is 1, rows with entries in the same columns, preferably
    consecutive ones.

    None if less than half of the rows are those of nodes with the same number of unknowns, 2 to 8. Columns count as the
    same if their number, the first, the last, and their sum are. Cost: a pass over the columns where A is, a few over
    the rows on the host, and a sort of these if nodes are not consecutive.
    """
    if size > 1 and A.n % size == 0:
        return Nodes(np.arange(0, A.n + 1, size), size)
    rows = _columns_in_short(A)
    starts = _starts(rows)
    if size := _usual_length(starts):
        runs = np.diff(starts)
        if A.n % size == 0 and not (starts[:-1][runs == size] % size).any():
            return Nodes(np.arange(0, A.n + 1, size), size)
        inside = (np.arange(A.n) - np.repeat(starts[:-1], runs)) % size  # a long run is several nodes
        return Nodes(np.append(np.flatnonzero(inside == 0), A.n), size)
    weights = np.random.default_rng(SEED).integers(1 << 62, size=len(rows))
    order = np.argsort(weights @ rows, kind="stable")  # the rows of a node ascend
    starts = _starts(rows[:, order])
    if size := _usual_length(starts):
        first = np.argsort(order[starts[:-1]])  # nodes in the order of their first rows
        lengths = np.diff(starts)[first]
        ends = np.cumsum(lengths)
        moved = np.arange(A.n) + np.repeat(starts[:-1][first] - (ends - lengths), lengths)
        return Nodes(np.append(0, ends), size, order[moved])
    return None


def _columns_in_short(A: CSR) -> Any:
    """(4, n) int64 on the host : of the columns of each row their number, the first, the last, and their sum."""
    xp, begin, end = namespace(A.data), A.indptr[:-1], A.indptr[1:]
    if on_gpu(A.data):
        columns = A.with_values(A.indices.astype(np.float64))  # whose sums are exact
        sums = kernels_for(columns.data).products.Product(columns)(xp.ones(A.n))
    else:
        sums = np.add.reduceat(A.indices, begin, dtype=np.int64)
    found = (end - begin, A.indices[begin], A.indices[end - 1], sums)
    return to_host(xp.stack([v.astype(np.int64) for v in found]))


def _starts(rows: Any) -> Any:
    """The first of each run of equal columns of `rows`, and their number at the end."""
    first = np.append(True, (rows[:, 1:] != rows[:, :-1]).any(axis=0))
    return np.append(np.flatnonzero(first), first.size)


def _usual_length(starts: Any) -> int:
    """The length, 2 to 8, of the runs that have most of the rows; 0 if these are less than half of all."""
    held = np.bincount(np.diff(starts), minlength=LARGEST_BLOCK + 1)[: LARGEST_BLOCK + 1] * np.arange(LARGEST_BLOCK + 1)
    held[:2] = 0
    size = int(np.argmax(held))
    return size if held[size] >= MOST_ROWS * starts[-1] else 0


def constants(nodes: Nodes | None, A: CSR) -> Any:
    """(n, size) : the constant of each unknown of the nodes, on the device of A; without nodes of all rows."""
    if nodes is None:
        return namespace(A.data).ones((A.n, 1), A.data.real.dtype)
    return namespace(A.data).asarray(np.eye(nodes.size, dtype=A.data.real.dtype)[nodes.unknowns()])


def smoothed(factors: Any, A: CSR, number: int) -> tuple[Any, float]:
    """A vector (n,) that cg with these factors hardly reduces, and the expected iterations of a solve.

    factors : Hermitian positive definite, with a coarse space.  number : of the random vector with which it begins.
    It is what some steps of cg for A x = 0 leave of a random x. These minimize x^H A x, so that the components remain
    that the next steps would not reduce (M. Brezina et al., Adaptive smoothed aggregation, 2005). The iterations are
    counted by the last of the steps; inf if a curvature is not positive. Cost: `STEPS` iterations of cg.
    """
    times_A = kernels_for(A.data).products.Product(A)
    x, r = _started(factors, A, times_A, number)
    energies = [-inner(x, r)]
    steps = conjugate_gradients(times_A, _applied(factors), r)
    for _, (p, rho, curvature) in zip(range(STEPS), steps, strict=False):
        if not (0 < curvature < inf and 0 < rho < inf):
            return x, inf
        x += p * (rho / curvature)
        energies.append(energies[-1] - rho**2 / curvature)
    first, last = energies[-1 - MEASURED], energies[-1]
    if not 0 < last < first:
        return x, 0.0  # nothing but rounding is left
    return x, 2 * MEASURED * log(REDUCTION) / log(last / first)


def smoothed_together(factors: Any, A: CSR, numbers: Iterable[int]) -> list[Any]:
    """The vector of `smoothed` for each of the numbers, to the bit. On the CPU all of them take a step at once, which
    reads A and the factors once; unless one of them ends early."""
    numbers, products = list(numbers), kernels_for(A.data).products
    if len(numbers) > 1 and not on_gpu(A.data):
        times_A = products.Product(A)
        X, R = (np.stack(v, axis=1) for v in zip(*(_started(factors, A, times_A, k) for k in numbers), strict=True))
        steps = conjugate_gradients(times_A, _applied(factors), R, inner_of_columns)
        for _, (P, rho, curvature) in zip(range(STEPS), steps, strict=False):
            if not ((curvature > 0) & (curvature < inf) & (rho > 0) & (rho < inf)).all():
                break
            X += P * (rho / curvature)
        else:
            return list(X.T)
    return [smoothed(factors, A, number)[0] for number in numbers]


def _applied(factors: Any) -> Any:
    """The function r -> M r, in its cheaper form for residuals without a coarse component if there is one."""
    deflated = factors.deflated
    return (factors if deflated is None else deflated).__matmul__


def _started(factors: Any, A: CSR, times_A: Any, number: int) -> tuple[Any, Any]:
    """The random vector x of that number, and -A x; without a coarse component for the cheaper form of M."""
    coarse = factors.coarse
    x = np.random.default_rng((SEED, number)).uniform(-1, 1, A.n).astype(A.data.real.dtype)
    x = namespace(A.data).asarray(x).astype(A.dtype)
    if factors.deflated is not None:
        q, _ = coarse.closely(coarse.restrict(-times_A(x)))
        coarse.prolong(q, x)
    return x, -times_A(x)
