"""Rows that do not depend on each other, shared out among threads."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.schedule import CALL
from finelu.threads import get_num_threads, run

ROW, ENTRY = 0.6, 0.6  # ns, measured as in schedule.py
GRAIN = 40_000.0  # ns of an item


def shared_out(indptr, nnz: int):
    """How many threads take part, and the rows at which items of work begin, n last."""
    n = indptr.size - 1
    work = ROW * n + ENTRY * nnz
    threads = get_num_threads() if work > 4 * CALL else 1
    if threads == 1:
        return 1, np.array([0, n], np.uint64)
    # the last row of each item is that in which its share of rows and entries ends
    share = np.arange(n + 1) * ROW + indptr * ENTRY
    pieces = max(2 * threads, int(work / GRAIN))
    items = np.searchsorted(share, np.linspace(0, share[-1], pieces + 1)).astype(np.uint64)
    items[-1] = n
    return threads, items


def run_items(kernel, threads, items, *arguments) -> None:
    state, done = np.zeros(1, np.int64), np.zeros(items.size - 1, np.int8)
    run(kernel, threads, state, done, items, *arguments)
