"""Launchers of products.cu: the sweeps and the candidates of ParILU and ParILUT."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.kernels.csr import INT32_LIMIT
from finelu.kernels.cuda.launch import blocks, device_limits, kernel

BLOCK, LONG_BLOCK = 128, 512  # as in products.cu
LEAST_SLOTS = {8: 64, 16: 128, 32: 256}
MOST_SLOTS = {8: 256, 16: 512, 32: 1024}
WORK_BYTES = 2**30  # that dense rows may take
ROUNDS = 40  # in which a bound for small products is looked for


def _null():
    return np.uint64(0)


def _shape(mean: float, wanted: float) -> tuple[int, int]:
    """(threads a row, slots of its table) for `mean` entries of a row of U and tables of about `wanted` entries."""
    lanes = 8 if mean <= 12 else 16 if mean <= 24 else 32
    slots = 64
    while slots < 1024 and slots < 2 * wanted:
        slots *= 2
    while slots > MOST_SLOTS[lanes]:
        lanes *= 2
    return lanes, max(slots, LEAST_SLOTS[lanes])


def _long_grid(n: int, bytes_a_row: int) -> int:
    """Blocks for long rows: two a multiprocessor, as far as their dense rows find room."""
    return max(1, min(2 * device_limits()["processors"], WORK_BYTES // max(n * bytes_a_row, 1)))


def _operands(A, F, columns):
    by_columns = (_null(),) * 3 if columns is None else columns
    return (F.indices.dtype.type(F.n), A.indptr, A.indices, A.data, F.indptr, F.indices, F.diag, F.data, *by_columns)


def _sweep(A, F, out, squares, refused, columns, damping, in_place):
    index, symmetric = F.indices.dtype, columns is not None
    longest = F.longest[0]
    mean = F.below / F.n if symmetric else (F.nnz - F.n - F.below) / F.n
    lanes, slots = _shape(mean, min(longest, 512))
    most = slots // 2
    arguments = (
        *_operands(A, F, columns),
        np.float64(damping),
        out,
        _null() if squares is None else squares,
        refused,
        np.int32(most),
    )
    kernel("products", "short_sweep", F.dtype, index, lanes, slots, symmetric, in_place)(
        (blocks(F.n * lanes, BLOCK),),
        (BLOCK,),
        arguments,
        shared_mem=BLOCK // lanes * slots * (F.dtype.itemsize + index.itemsize),
    )
    if longest > most:
        launch = kernel("products", "long_sweep", F.dtype, index, symmetric, in_place)
        row = F.n * F.dtype.itemsize
        in_shared = row <= launch.max_dynamic_shared_size_bytes
        grid = device_limits()["processors"] if in_shared else _long_grid(F.n, F.dtype.itemsize)
        work = cupy.empty(0 if in_shared else grid * F.n, F.dtype)
        launch((grid,), (LONG_BLOCK,), (*arguments, work, np.int32(in_shared)), shared_mem=row if in_shared else 0)


def sweep(A, F, out, squares, refused, columns=None, damping=1.0):
    """One synchronous fixed-point sweep; see kernels/reference.py:sweep. squares may be None. Waits for nothing."""
    _sweep(A, F, out, squares, refused, columns, damping, False)


def sweep_in_place(A, F, refused, columns=None):
    """An asynchronous sweep; see kernels/reference.py:sweep_in_place. Rows read what is there, new or old."""
    _sweep(A, F, F.data, None, refused, columns, 1.0, True)


def set_zero(array) -> None:
    cupy.cuda.runtime.memsetAsync(array.data.ptr, 0, array.nbytes, cupy.cuda.get_current_stream().ptr)


class _Search:
    """The count of the candidates of each row, and what the fill needs to know of it."""

    def __init__(self, A, F, columns):
        self.A, self.F, self.columns, self.symmetric = A, F, columns, columns is not None
        n, below, above = F.n, F.below / F.n, (F.nnz - F.n - F.below) / F.n
        above = below if self.symmetric else above
        products = below * above * (0.5 if self.symmetric else 1.0)
        self.lanes, self.slots = _shape(above, 1.3 * (products + F.nnz / n))
        self.counts = cupy.empty(n, np.int64)
        self.is_long, self.long_rows = cupy.empty(n, np.uint8), cupy.empty(n, F.indices.dtype)
        self.places = cupy.empty(n + 2, np.int64)  # where the candidates of each row begin; how many rows are long
        self.stops, self.n_long, self.any_long = self.places[1 : n + 1], self.places[n + 1 :], True
        set_zero(self.places[:1])
        self.grid = _long_grid(n, F.dtype.itemsize + 1)
        self.bits = cupy.empty(self.grid * ((n + 31) // 32), np.uint32)

    def count(self, least: float) -> int:
        """Count the candidates; returns how many there are."""
        set_zero(self.n_long)
        self._run(False, least, _null(), _null(), _null(), _null(), _null())
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
        head = (*_operands(self.A, F, self.columns), np.float64(least), self.counts)
        tail = (starts, indices, values, squares)
        kernel("products", "short_candidates", F.dtype, index, self.lanes, self.slots, self.symmetric, fill)(
            (blocks(F.n * self.lanes, BLOCK),),
            (BLOCK,),
            (*head, self.is_long, self.long_rows, self.n_long, *tail),
            shared_mem=BLOCK // self.lanes * self.slots * (item + index.itemsize + 3),
        )
        if self.any_long or not fill:
            kernel("products", "long_candidates", F.dtype, index, self.symmetric, fill)(
                (self.grid,), (LONG_BLOCK,), (*head, self.long_rows, self.n_long, *tail, work, self.bits)
            )


def candidates(A, F, columns=None, least=0.0, most=None):
    """The places of A and of L U that F has not, and R = A - L U there; see kernels/reference.py:candidates.

    most : so many at most: of the candidates that come of products only, those whose products are all smaller than some
        bound are left out, and the bound is raised until this is so.
        A's own places always stay. Where F has 32-bit indices, no more than they can count.
    Returns indptr, indices, values, squares (2, n) and how many were left out. Waits for the host for each count: once,
    twice with `least`, up to 41 times more where `most` is exceeded.
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
    indptr = search.places[:-1].astype(index)
    indices, values = cupy.empty(kept, F.indices.dtype), cupy.empty(kept, F.dtype)
    squares = cupy.empty((2, F.n), np.float64)
    search.fill(least, indptr.astype(F.indices.dtype, copy=False), indices, values, squares)
    return indptr, indices, values, squares, total - kept
