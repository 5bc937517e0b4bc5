"""Launchers of pattern.cu: entries added to and removed from the factors; magnitudes; a triangle by columns."""

from __future__ import annotations

from functools import cached_property

import cupy
import numpy as np

from finelu.errors import MatrixError, ParameterError
from finelu.kernels.cuda.indices import queue_pointers
from finelu.kernels.cuda.runtime.launch import NULL, blocks, device_limits, kernel
from finelu.kernels.cuda.runtime.memory import set_zero
from finelu.kernels.cuda.runtime.schedule import lanes_for
from finelu.kernels.operands import CSR, INT32_LIMIT

BLOCK, AHEAD = 256, 2  # as in pattern.cu
FACTS, PARTS, PART = 4, 11, 5  # words of the facts of a matrix; of the state of `remove`; of a block in it
RESIDENT = 5  # blocks a multiprocessor that work at the same time, PARTS_EACH in pattern.cu
FEW_ROWS = 2**14  # up to here every block adds up all rows, which is faster than another kernel
MOST = 2**32 - 1  # entries, so that the product of two numbers of them has 64 bits


class _Facts:
    """Facts of a matrix that a kernel has counted, on the device: read once, when they are first wanted."""

    def __init__(self, words):
        self.words = words

    @cached_property
    def read(self) -> tuple[int, int, int, int]:
        """The facts of a CSR."""
        longest, below, above, all_below = (int(word) for word in self.words.get())
        return longest, below, above, all_below


class _Counted(CSR):
    """A CSR with a full diagonal whose facts wait in `counted`."""

    counted: _Facts

    @cached_property
    def facts(self) -> tuple[int, int, int, int]:
        return self.counted.read

    def with_values(self, data) -> CSR:
        return _counted(self.indptr, self.indices, data, self.diag, self.counted)

    def copy(self) -> CSR:
        return _counted(self.indptr.copy(), self.indices.copy(), self.data.copy(), self.diag.copy(), self.counted)


def _counted(indptr, indices, data, diag, counted: _Facts) -> CSR:
    A = _Counted(indptr, indices, data, diag)
    A.__dict__.update(missing=0, counted=counted)
    return A


def facts(A) -> tuple[int, int, int, int]:
    """CSR.facts of A. The host waits once. Cost: one launch, a pass over indptr and diag."""
    found, index = cupy.empty(FACTS, np.int64), A.indices.dtype
    set_zero(found)
    grid = min(blocks(A.n, BLOCK), RESIDENT * device_limits()["processors"])
    kernel("pattern", "row_facts", index)((grid,), (BLOCK,), (index.type(A.n), A.indptr, A.diag, found))
    return _Facts(found).read


def _real(F) -> np.dtype:
    return np.dtype(F.data.dtype.char.lower())


def _rows(n: int, entries: int):
    """(lanes a row, rows a block), as arguments of a kernel, and the grid, for rows of `entries` in all."""
    lanes = lanes_for(entries / n)
    per_block = BLOCK // lanes * (4 if n * lanes > 2**21 else 1)
    return (np.int32(lanes), np.int32(per_block)), blocks(n, per_block)


def _parts(n: int, entries: int):
    """(lanes a row) as an argument, and the grid of a kernel whose blocks must be few."""
    lanes = lanes_for(entries / n)
    return np.int32(lanes), min(blocks(n * lanes, BLOCK), RESIDENT * device_limits()["processors"])


def add(B, F, indptr, indices, values, scaled=False):
    """B, and F with candidates, as a CSR with ascending columns; see kernels/reference/pattern.py. The host waits for
    nothing.

    indptr (n + 1,), indices, values : ascending in a row, none of them in F.  scaled : a new l_ij is r_ij / u_jj,
    else r_ij |u_jj| / u_jj. The index arrays of both are int64 where int32 cannot count the entries of F. Cost: two
    launches, one pass over F.
    """
    n, nnz = F.n, F.nnz + values.size
    index = np.dtype(np.int64) if nnz > INT32_LIMIT else F.indices.dtype
    old, new = (F.indptr, F.indices, F.diag, F.data), (indptr, indices, values)
    if any(a.dtype != index for a in (F.indptr, F.indices, F.diag, indptr, indices)):
        old = (*(a.astype(index, copy=False) for a in old[:3]), F.data)
        new = (*(a.astype(index, copy=False) for a in new[:2]), values)
    out = cupy.empty(n + 1, index), cupy.empty(nnz, index), cupy.empty(n, index), cupy.empty(nnz, F.data.dtype)
    facts = cupy.zeros(FACTS, np.int64)
    shape, grid = _rows(n, nnz)
    kernel("pattern", "add", F.data.dtype, index)(
        (grid,), (BLOCK,), (index.type(n), *shape, np.int32(scaled), *old, *new, *out, facts)
    )
    return B.with_index(index), _counted(out[0], out[1], out[3], out[2], _Facts(facts))


def remove(F, least, drop, values=None):
    """F without its smallest entries, as a CSR; see kernels/reference/pattern.py.

    least (2,) reals on the device, drop (2,) integers: thresholds, and how many entries to drop, below and above the
    diagonal.  values (nnz,) : what is returned of the entries that stay, if not F's. The host waits once, for the new
    size. Cost: three launches, a pass over the values and one over all; 4 n integers besides the result. MatrixError
    for an F of more than 2^32 - 1 entries.
    """
    n, index, real = F.n, F.indices.dtype, _real(F)
    if F.nnz > MOST:
        raise MatrixError(f"F has {F.nnz} entries; remove counts up to {MOST}. Use a smaller fill.")
    least = cupy.ascontiguousarray(cupy.asarray(least, real))
    if least.shape != (2,) or len(drop) != 2:
        raise ParameterError(f"least of shape {least.shape}, drop of {len(drop)}: two numbers each, below and above.")
    lanes, parts = _parts(n, F.nnz)
    counts = cupy.empty(4 * n, index)
    state = cupy.empty(PARTS + PART * parts, np.int64)
    indptr, diag = cupy.empty(n + 1, index), cupy.empty(n, index)
    number, types = index.type(n), (F.data.dtype, index)
    kernel("pattern", "remove_count", *types)(
        (parts,), (BLOCK,), (number, lanes, F.indptr, F.diag, F.data, least, counts, state)
    )
    wanted = np.int64(drop[0]), np.int64(drop[1])
    kernel("pattern", "remove_rows", index)(
        (parts,), (BLOCK,), (number, *wanted, F.indptr, F.diag, counts, indptr, diag, state)
    )
    longest, most_below, most_above, below, nnz = (int(word) for word in state[: FACTS + 1].get())
    indices, data = cupy.empty(nnz, index), cupy.empty(nnz, F.data.dtype)
    shape, grid = _rows(n, F.nnz)
    pattern, values = (F.indptr, F.indices, F.diag), F.data if values is None else values
    arguments = (number, *shape, *pattern, F.data, values, least, counts, indptr, state, indices, data)
    kernel("pattern", "remove_write", *types)((grid,), (BLOCK,), arguments)
    kept = CSR(indptr, indices, data, diag)
    kept.__dict__.update(missing=0, facts=(longest, most_below, most_above, below))
    return kept


def values_at(B, F):
    """The values of B at the places of F (nnz of F,), 0 where B has no entry; see kernels/reference/pattern.py.

    The host waits for nothing. Cost: one launch, a search in a row of B for each entry of F; a copy of the indices that
    are not as wide as the others.
    """
    index, out = np.promote_types(B.indices.dtype, F.indices.dtype), cupy.empty(F.nnz, B.data.dtype)
    B, F = B.with_index(index), F.with_index(index)
    shape, grid = _rows(F.n, F.nnz)
    arguments = (index.type(F.n), *shape, B.indptr, B.indices, B.data, F.indptr, F.indices, out)
    kernel("pattern", "values_at", B.data.dtype, index)((grid,), (BLOCK,), arguments)
    return out


def magnitudes(F):
    """|values| of F strictly below (k_L,) and strictly above (k_U,) the diagonal, in the order of their places.

    The host waits where F.below is not known yet. Cost: one launch for few rows, else two; one pass.
    """
    n, index, real = F.n, F.indices.dtype, _real(F)
    lower, upper = cupy.empty(F.below, real), cupy.empty(F.nnz - n - F.below, real)
    lanes, parts = _parts(n, F.nnz)
    sums = NULL
    if n > FEW_ROWS:
        sums = cupy.empty(2 * parts, np.int64)
        kernel("pattern", "sum_below", index)((parts,), (BLOCK,), (index.type(n), F.indptr, F.diag, sums))
    kernel("pattern", "magnitudes", F.data.dtype, index)(
        (parts,), (BLOCK,), (index.type(n), lanes, F.indptr, F.diag, F.data, sums, lower, upper)
    )
    return lower, upper


def columns_of(F):
    """The lower triangle F by columns: indptr (n + 1,), rows (nnz,) ascending, places (nnz,) in F.data.

    The host waits for nothing. Cost: a counting sort by atomics, whose result does not depend on their order: five
    launches; 2 nnz + n integers besides the result.
    """
    n, nnz, index = F.n, F.nnz, F.indices.dtype
    counts = cupy.zeros(n, index)
    rows, places, found = cupy.empty(nnz, index), cupy.empty(nnz, index), cupy.empty(2 * nnz, index)
    grid = min(blocks(nnz, AHEAD * BLOCK), 4 * RESIDENT * device_limits()["processors"])
    ranks = rows  # until they are sorted
    kernel("pattern", "count_columns", index)((grid,), (BLOCK,), (np.int64(nnz), F.indices, counts, ranks))
    indptr, _ = queue_pointers(counts)
    shape, grid = _rows(n, nnz)
    shape = (index.type(n), *shape)
    kernel("pattern", "scatter_columns", index)((grid,), (BLOCK,), (*shape, F.indptr, F.indices, indptr, ranks, found))
    kernel("pattern", "sort_columns", index)((grid,), (BLOCK,), (*shape, indptr, found, rows, places))
    return indptr, rows, places
