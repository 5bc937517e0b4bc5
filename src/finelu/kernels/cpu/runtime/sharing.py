"""Loops over independent rows, which threads share."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.workers import run
from finelu.threads import get_num_threads

ROW, ENTRY = 0.6, 0.6  # ns, measured as in schedule.py
GRAIN = 40_000.0  # ns of an item
STEPS = 2**14  # places, at least, at which the rows of a large matrix may be divided
SHARED = 60_000.0  # ns of work from which threads share it: helpers in compiled code come within a few us


def shared_out(indptr, nnz: int):
    """The rows at which items of work begin, n last; one item where one thread is as fast."""
    n = indptr.size - 1
    work = ROW * n + ENTRY * nnz
    threads = get_num_threads() if work > SHARED else 1
    if threads == 1:
        return np.array([0, n], np.uint64)
    # the last rows of each item are those in which its share of rows and entries ends
    step = max(n // STEPS, 1)
    share = np.arange(0, n + 1, step) * ROW + indptr[::step] * ENTRY
    pieces = max(2 * threads, int(work / GRAIN))
    items = np.searchsorted(share, np.linspace(0, share[-1], pieces + 1)).astype(np.uint64) * np.uint64(step)
    items[-1] = n
    return items


def run_items(kernel, count: int, *arguments, threads: int | None = None) -> int:
    """kernel(state, done, *arguments) by up to `threads` threads, as many as there are items if None.

    They take items 0, 1, ..., count - 1 by state[0] and workspaces by state[1]; see items.py.
    Returns their sum in state[2].
    """
    state = np.zeros(3, np.int64)
    run(kernel, count if threads is None else threads, state, np.zeros(count, np.int8), *arguments)
    return int(state[2])
