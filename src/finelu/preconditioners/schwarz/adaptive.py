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
from finelu.matrix.traits import LARGEST_BLOCK
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
    """Consecutive rows of a matrix that are the unknowns of one node each.

    starts (count + 1,) : the first row of each node, int64 on the host.  size : the unknowns of most nodes.
    """

    starts: Any
    size: int
    _kept: tuple[CSR, CSR] | None = field(default=None, init=False, repr=False)

    @property
    def count(self) -> int:
        return int(self.starts.size) - 1

    def of_rows(self, A: CSR) -> Any:
        """(n,) int32 : the node of each row, on the device of A."""
        nodes = np.repeat(np.arange(self.count, dtype=np.int32), np.diff(self.starts))
        return namespace(A.data).asarray(nodes)

    def matrix(self, A: CSR) -> CSR:
        """(count, count) : the sums of the magnitudes of the entries of A that couple two nodes, kept for one A."""
        if self._kept is None or self._kept[0] is not A:
            self._kept = A, self._made(A)
        return self._kept[1]

    def _made(self, A: CSR) -> CSR:
        xp, of_rows = namespace(A.data), self.of_rows(A)
        products = kernels_for(A.data).subdomains.coarse_products
        pointers, node, sums = products(A.indptr, A.indices, abs(A.data), of_rows, self.count, None)
        indptr = pointers[xp.asarray(self.starts)]
        shape = (self.count, self.count)
        S = sparse_module(A.data).csr_matrix((sums.reshape(-1), node, indptr), shape=shape)
        S.sum_duplicates()
        return full_csr(S.indptr, S.indices, S.data)


def nodes_of(A: CSR, size: int = 1) -> Nodes | None:
    """The nodes of A: rows of `size` unknowns each, or if that is 1, consecutive rows with entries in the same columns.

    None if less than half of the rows are those of nodes with the same number of unknowns, 2 to 8. Columns count
    as the same if their number, the first, the last, and their sum are. Cost: a pass over the columns, on the host.
    """
    if size > 1 and A.n % size == 0:
        return Nodes(np.arange(0, A.n + 1, size), size)
    indptr, indices = to_host(A.indptr).astype(np.int64), to_host(A.indices)
    sums = np.add.reduceat(indices, indptr[:-1], dtype=np.int64)
    rows = np.stack([np.diff(indptr), indices[indptr[:-1]], indices[indptr[1:] - 1], sums])
    first = np.append(True, (rows[:, 1:] != rows[:, :-1]).any(axis=0))
    starts = np.append(np.flatnonzero(first), A.n)
    runs = np.diff(starts)
    held = np.bincount(runs, minlength=LARGEST_BLOCK + 1)[: LARGEST_BLOCK + 1] * np.arange(LARGEST_BLOCK + 1)
    held[:2] = 0
    size = int(np.argmax(held))
    if held[size] < MOST_ROWS * A.n:
        return None
    if A.n % size == 0 and not (starts[:-1][runs == size] % size).any():
        return Nodes(np.arange(0, A.n + 1, size), size)
    inside = (np.arange(A.n) - np.repeat(starts[:-1], runs)) % size  # a long run is several nodes
    return Nodes(np.append(np.flatnonzero(inside == 0), A.n), size)


def constants(nodes: Nodes | None, A: CSR) -> Any:
    """(n, size) : the constant of each unknown of the nodes, on the device of A; without nodes of all rows."""
    if nodes is None:
        return namespace(A.data).ones((A.n, 1), A.data.real.dtype)
    unknown = np.arange(A.n) - np.repeat(nodes.starts[:-1], np.diff(nodes.starts))
    return namespace(A.data).asarray(np.eye(nodes.size, dtype=A.data.real.dtype)[unknown])


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
