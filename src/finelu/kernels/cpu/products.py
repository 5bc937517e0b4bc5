"""Products of a sparse matrix with a vector, rows shared out among threads."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.atomics import fetch_add, store_release, wait_until_done
from finelu.kernels.cpu.levels import CALL, unsigned
from finelu.kernels.cpu.recurrences import compiled
from finelu.threads import get_num_threads, run

ROW, ENTRY = 0.6, 0.6  # ns, measured as in levels.py
GRAIN = 40_000.0  # ns of an item
ONE = np.uint64(1)


class Product:
    """y = A x for a square A in CSR, sorted and without duplicates, with x (n,) of A's dtype.

    The terms of a row are added in ascending order of columns, as SciPy adds them: the bits are the same on any number
    of threads. Cost: one pass over the entries; no other thread is asked where it would come too late.
    """

    def __init__(self, S):
        self.data = S.data
        self.pattern = (unsigned(S.indptr), unsigned(S.indices))
        n = S.shape[0]
        work = ROW * n + ENTRY * S.nnz
        self.threads = get_num_threads() if work > 4 * CALL else 1
        pieces = 1 if self.threads == 1 else max(2 * self.threads, int(work / GRAIN))
        # the last row of each item is that in which its share of rows and entries ends
        share = np.arange(n + 1) * ROW + S.indptr * ENTRY
        self.items = np.searchsorted(share, np.linspace(0, share[-1], pieces + 1)).astype(np.uint64)
        self.items[-1] = n

    def __call__(self, x):
        x, y = np.ascontiguousarray(x), np.empty(x.size, self.data.dtype)
        state, done = np.zeros(1, np.int64), np.zeros(self.items.size - 1, np.int8)
        run(_times, self.threads, state, done, self.items, *self.pattern, self.data, x, y)
        return y


@compiled
def _times(state, done, items, indptr, indices, data, x, y):
    """y = A x; several threads may run it on the same arguments, see wait_until_done."""
    while True:
        t = fetch_add(state, 0, 1)
        if t >= done.size:
            break
        for i in range(items[t], items[t + 1]):
            total = data.dtype.type(0)
            for p in range(indptr[i], indptr[i + ONE]):
                total += data[p] * x[indices[p]]
            y[i] = total
        store_release(done, t, 1)
    wait_until_done(done, 0, done.size)
