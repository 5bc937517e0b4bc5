"""Launchers of candidates.cu: the entries that ParILUT may add to its factors, and the distance of L U from A."""

from __future__ import annotations

import cupy
import numpy as np

from finelu import deadline
from finelu.device import require_room
from finelu.kernels.cuda.indices import shifted
from finelu.kernels.cuda.runtime.launch import NULL, blocks, kernel
from finelu.kernels.cuda.runtime.memory import set_zero
from finelu.kernels.cuda.runtime.row_products import BLOCK, LONG_BLOCK, long_grid, operands, shape
from finelu.kernels.operands import INT32_LIMIT

LARGE = 2**28  # bytes, from which on it is worth asking whether they are free
ROUNDS = 40  # in which a bound for small products is looked for


class _Search:
    """The number of candidates of each row, and the memory from which the fill reads it."""

    def __init__(self, A, F, columns):
        self.A, self.F, self.columns, self.symmetric = A, F, columns, columns is not None
        n, below, above = F.n, F.below / F.n, (F.nnz - F.n - F.below) / F.n
        above = below if self.symmetric else above
        products = below * above * (0.5 if self.symmetric else 1.0)
        self.lanes, self.slots = shape(above, 1.3 * (products + F.nnz / n))
        self.counts = cupy.empty(n, np.int64)
        self.is_long, self.long_rows = cupy.empty(n, np.uint8), cupy.empty(n, F.indices.dtype)
        self.places = cupy.empty(n + 2, np.int64)  # where the candidates of each row begin; how many rows are long
        self.stops, self.n_long, self.any_long = self.places[1 : n + 1], self.places[n + 1 :], True
        set_zero(self.places[:1])
        self.grid = long_grid(n, F.dtype.itemsize + 1)
        self.bits = cupy.empty(self.grid * ((n + 31) // 32), np.uint32)

    def count(self, least: float) -> int:
        """Count the candidates; returns how many there are."""
        set_zero(self.n_long)
        self._run(False, least, NULL, NULL, NULL, NULL, NULL)
        cupy.cumsum(self.counts, out=self.stops)
        total, n_long = (int(v) for v in self.places[-2:].get())
        self.any_long = n_long > 0
        return total

    def fill(self, least, starts, indices, values, squares):
        work = cupy.empty(self.grid * self.F.n if self.any_long else 0, self.F.dtype)
        self._run(True, least, starts, indices, values, squares, work)

    def _run(self, fill, least, starts, indices, values, squares, work):
        F = self.F
        index, item = F.indices.dtype, F.dtype.itemsize
        head = (*operands(self.A, F, self.columns), np.float64(least), self.counts)
        tail = (starts, indices, values, squares)
        kernel("candidates", "short_candidates", F.dtype, index, self.lanes, self.slots, self.symmetric, fill)(
            (blocks(F.n * self.lanes, BLOCK),),
            (BLOCK,),
            (*head, self.is_long, self.long_rows, self.n_long, *tail),
            shared_mem=BLOCK // self.lanes * self.slots * (item + index.itemsize + 3),
        )
        if self.any_long or not fill:
            kernel("candidates", "long_candidates", F.dtype, index, self.symmetric, fill)(
                (self.grid,), (LONG_BLOCK,), (*head, self.long_rows, self.n_long, *tail, work, self.bits)
            )


def candidates(A, F, columns=None, least=0.0, most=None):
    """The entries of A and of L U that F does not store, and R = A - L U there; see
    kernels/reference/candidates.py:candidates.

    most : the largest number of candidates. If there are more, candidates that A does not store are left out if all
        their products are smaller than a bound; the bound is raised until at most `most` candidates remain. If F has
        32-bit indices, `most` is at most the largest number that they can count.
    Returns indptr, indices, values, squares (2, n) and the number of candidates left out. Waits for the host at each
    count: once, twice with `least`, and up to 41 times more if `most` is exceeded.
    """
    if F.indices.dtype == np.int32:
        most = INT32_LIMIT if most is None else min(most, INT32_LIMIT)
    search = _Search(A, F, columns)
    total = search.count(0.0)
    kept = total if least == 0 else search.count(least)
    if most is not None and kept > most:
        top = float(abs(F.data).max())
        low, high = max(least, 1e-300), min(2.0 * top * top, 1e300) + 1e-300
        low = max(low, high * 1e-40)
        for _ in range(ROUNDS):
            deadline.check()
            least = low**0.5 * high**0.5
            kept = search.count(least)
            if kept > most:
                low = least
            elif kept >= 0.95 * most or high / low < 1.0001:
                break
            else:
                high = least
        if kept > most:
            least = high
            kept = search.count(least)
    index = F.indices.dtype if max(kept, F.nnz) <= INT32_LIMIT else np.dtype(np.int64)
    indptr = shifted(search.places[:-1], 0, index)
    entry = F.indices.itemsize + F.data.itemsize
    if entry * kept >= LARGE:  # asking for the free memory takes some time
        require_room(f"{kept} candidates", entry * kept, F.data, "give memory_limit, in bytes")
    indices, values = cupy.empty(kept, F.indices.dtype), cupy.empty(kept, F.dtype)
    squares = cupy.empty((2, F.n), np.float64)
    search.fill(least, shifted(indptr, 0, F.indices.dtype), indices, values, squares)
    return indptr, indices, values, squares, total - kept
