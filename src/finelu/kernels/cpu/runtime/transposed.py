"""The transpose of a pattern: where each of its entries is among those of the matrix, kept for the last patterns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import _sparsetools  # type: ignore[attr-defined]

from finelu.recent import MOST, RECENT

PART = 8  # of the bytes that are kept of all patterns: the transpose of one takes at most this part


class Transposed(NamedTuple):
    """The pattern by columns, sorted: column j has rows[starts[j]:starts[j + 1]], and the values of its entries are
    data[places[p]]. They are shared: no caller writes to these arrays. Of a symmetric pattern only the places are kept;
    the rest is its own."""

    starts: Any
    rows: Any
    places: Any


def transposed(indptr: Any, indices: Any, *, known: bool = False) -> Transposed | None:
    """The transpose of a square pattern, from its arrays (n + 1,) and (nnz,) of one dtype.

    known : None is returned if it is not kept. Cost: a comparison of the pattern, or some passes over it.
    """
    kind = "transposed", indices.dtype.char  # a pattern equals one of another dtype
    kept: Transposed | None = RECENT.get(kind, indptr, indices)
    if kept is not None:
        return kept if kept.rows is not None else Transposed(indptr, indices, kept.places)
    if known:
        return None
    n, nnz, index = indptr.size - 1, indices.size, indices.dtype
    found = Transposed(np.empty(n + 1, index), np.empty(nnz, index), np.empty(nnz, index))
    _sparsetools.csr_tocsc(n, n, indptr, indices, np.arange(nnz, dtype=index), *found)
    symmetric = np.array_equal(found.starts, indptr) and np.array_equal(found.rows, indices)
    kept = Transposed(None, None, found.places) if symmetric else found
    size = sum(part.nbytes for part in kept if part is not None)
    if PART * (size + indptr.nbytes + indices.nbytes) <= MOST:
        RECENT.keep(kind, indptr, indices, kept, size, light=True)
    return found
