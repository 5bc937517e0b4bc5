"""Permutations of a matrix, kept apart from its values so that new ones can follow the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from finelu.errors import ParameterError
from finelu.kernels import namespace, to_host
from finelu.matrix import CSR, as_csr

ORDERINGS = (None, "rcm")


@dataclass(frozen=True, eq=False)
class Permutation:
    """P A P^T, whose row i is row order[i] of A; on the device of A.

    order, inverse (n,) : order[inverse[i]] = i.  pattern : of P A P^T.  places (nnz,) : the value of its place p is
    A.data[places[p]].  mirrored (nnz,), of the lower triangle of a Hermitian matrix : whether that value comes from the
    other side of the diagonal, so that its conjugate is meant; else None.
    """

    order: Any
    inverse: Any
    pattern: CSR
    places: Any
    mirrored: Any

    def matrix(self, A: CSR) -> CSR:
        """P A P^T for an A with the pattern that was permuted. Cost: one pass over the entries."""
        data = A.data[self.places]
        if self.mirrored is not None and data.dtype.kind == "c":
            data = namespace(data).where(self.mirrored, data.conj(), data)
        return self.pattern.with_values(data)


def rcm(A: CSR) -> np.ndarray:
    """The reverse Cuthill-McKee order (n,) of A + A^T: row order[i] of A becomes row i. On the host.

    Cost: O(nnz) and a transposition. Source: SciPy's reverse_cuthill_mckee, as the papers on ParILUT use it.
    """
    S = _ones(A)
    return reverse_cuthill_mckee((S + S.T).tocsr(), symmetric_mode=True).astype(np.int64)


def permutation(A: CSR, ordering: str | None, *, hermitian: bool = False) -> Permutation | None:
    """The symmetric permutation that `ordering` makes of A: "rcm", or None for none.

    hermitian : A is the lower triangle, with the diagonal, of a Hermitian matrix, and so will be P A P^T.
    The pattern is permuted on the host, whose result moves to the device of A. Cost: O(nnz), and the ordering's.
    """
    if ordering not in ORDERINGS:
        raise ParameterError(f"ordering={ordering!r}; one of {', '.join(map(repr, ORDERINGS))} is needed.")
    if ordering is None:
        return None
    xp, index = namespace(A.data), A.indices.dtype
    order = rcm(A)
    inverse = np.empty_like(order)
    inverse[order] = np.arange(A.n)
    rows, columns = inverse[np.repeat(np.arange(A.n), np.diff(to_host(A.indptr)))], inverse[to_host(A.indices)]
    mirrored = columns > rows
    if hermitian:
        rows, columns = np.maximum(rows, columns), np.minimum(rows, columns)
    S = sp.csr_matrix((np.arange(A.nnz), (rows, columns)), shape=A.shape)  # its values: the places in A
    S.sort_indices()
    places = S.data
    diag = np.flatnonzero(S.indices == np.repeat(np.arange(A.n), np.diff(S.indptr)))
    moved = (xp.asarray(v.astype(index)) for v in (order, inverse, S.indptr, S.indices, diag, places))
    order, inverse, indptr, indices, diag, on_device = moved
    pattern = CSR(indptr, indices, A.data[on_device], diag)
    return Permutation(order, inverse, pattern, on_device, xp.asarray(mirrored[places]) if hermitian else None)


def hermitian_pattern(A: CSR) -> CSR:
    """A + A^T of a lower triangle A: the whole pattern, with values that mean nothing. On the host."""
    S = _ones(A)
    return as_csr((S + S.T).tocsr())


def _ones(A: CSR) -> sp.csr_matrix:
    """A with ones for values, on the host."""
    return sp.csr_matrix((np.ones(A.nnz), to_host(A.indices), to_host(A.indptr)), shape=A.shape)
