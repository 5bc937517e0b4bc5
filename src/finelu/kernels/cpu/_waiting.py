"""Blocks of rows that wait for each other's rows, for a single elimination by many threads.

A search for a schedule takes longer than one elimination of short rows. Here all threads share what is looked for:
where blocks of consecutive rows begin, which blocks a block needs, and how late. A row then waits for the rows that it
needs, not for the ends of their blocks, so that a block may follow close behind another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finelu.kernels.cpu.runtime.atomics import load_acquire, relax, store_release
from finelu.kernels.cpu.runtime.indices import unsigned
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled, ready
from finelu.kernels.cpu.runtime.row_blocks import window
from finelu.kernels.cpu.runtime.schedule import COMPILES
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.threads import available_cores, get_num_threads

MANY_THREADS = 8  # threads from which on rows wait for each other: on two of a busy machine up to 18 times as long
OVERLAP = 16  # mean entries of a row below the diagonal from which on a row is a block: such rows overlap enough
BLOCK = 8000.0  # ns of a block of several rows, by the estimate of elimination.py
PARTS = 16  # of a block; a part that is complete is announced to other threads
TAKES = 500.0  # ns until a thread has a block, and the rows that it needs first
LINE = 64  # flags of a cache line
GAIN = 0.5  # of the time of one thread that the blocks may take by their estimate

_done_alone = 0.0  # ns of work in this process that one thread did since the kernels of blocks were not compiled


@dataclass(frozen=True, eq=False)
class Waiting:
    """Blocks of consecutive rows, taken one at a time by `threads`, each after all that it needs.

    first (m + 1,) : where each block begins, n last.  order (m,) : the blocks as they are taken.
    part : rows of a block after which the finished ones are made known.
    reach, size : see `window`; a thread has a workspace of that size.
    """

    threads: int
    first: np.ndarray
    order: np.ndarray
    part: int
    reach: int
    size: int

    def state(self):
        """As `Schedule.state`; the flags are those of the finished rows, see `_flag`. state[2] numbers the threads."""
        n = int(self.first[-1])
        return np.array([0, n, 0], np.int64), np.zeros((n // LINE + 1) * LINE, np.int8)

    def workspaces(self, dtype):
        """(threads, size) zeros."""
        return np.zeros((self.threads, self.size), dtype)


def waiting(A, diag, below: int, work: float) -> Waiting | None:
    """How all threads share a single elimination of `work` ns on the pattern of A, with `below` entries below the
    diagonal; None if they are few, or would gain little. diag (n,) : as A's; of a lower triangle the last of each row.

    Cost: for short rows two passes over the rows and one over the entries below the diagonal, by all threads.
    """
    n, threads = diag.size, min(get_num_threads(), available_cores())  # waiting for others costs more than it gains
    if threads < MANY_THREADS:
        return None
    if below >= OVERLAP * n:
        first = np.arange(n + 1)
        return Waiting(threads, first, first[:-1], 1, *window(first, A))
    if not _affordable(work):
        return None
    shift = max(int(BLOCK * n / work).bit_length() - 1, 1)
    rows = 1 << shift
    first = np.empty((n + rows // 2 >> shift) + 1, np.int64)
    blocks = first.size - 1
    if blocks < 2 * threads:
        return None
    first[0], first[blocks] = 0, n
    pattern = A.indptr, unsigned(A.indices), diag
    shares = min(4 * threads, blocks)
    run_items(_cut, shares, shares, rows, *pattern, first)
    (needed, late), counts = np.empty((2, A.nnz), np.int32), np.empty(blocks, np.int64)
    run_items(_needs, shares, shares, shift, first, *pattern, needed, late, counts)
    needs = (A.indptr[first[:-1]].astype(np.int64), counts, needed, late)
    part = max(rows // PARTS, 1)
    start, rank, each = np.empty(blocks), np.empty(blocks), work / n
    _starts(*needs, each, part, start, rank)
    order = np.argsort(rank, kind="stable")
    time = _makespan(order, first, *needs, each, part, np.zeros(threads), start)
    return Waiting(threads, first, order, part, *window(first, A)) if time <= GAIN * work else None


def _affordable(work: float) -> bool:
    """Whether the kernels of blocks are compiled, or such work of one thread has taken as long as that would."""
    global _done_alone
    if _done_alone < COMPILES and ready(_needs):
        _done_alone = COMPILES  # the disk is not asked again
    _done_alone += work  # threads that add at once may lose one addend
    return _done_alone > COMPILES


@by_items
def _cut(t, shares, rows, indptr, indices, diag, first):
    """first[b] : of the rows nearest to b * rows the one whose nearest column is farthest, such as the begin of a line
    of a grid."""
    n, blocks = diag.size, first.size - 1
    for b in range(max(t * blocks // shares, 1), (t + 1) * blocks // shares):
        begin = b * rows - rows // 2
        farthest = -1
        for i in range(begin, min(begin + rows, n)):
            nearest = np.int64(indices[diag[i] - 1]) if diag[i] > indptr[i] else -1
            if i - nearest > farthest:
                farthest = i - nearest
                first[b] = i


@by_items
def _needs(t, shares, shift, first, indptr, indices, diag, needed, late, counts):
    """Which blocks each block needs, counts[b] of them at needed[indptr[first[b]]:], and `late`: how many rows these
    have to be ahead of it, at least; negative if they may be behind."""
    blocks = first.size - 1
    half = 1 << (shift - 1)
    place = np.full(blocks, -1, np.int64)  # of a block in `needed`
    for b in range(t * blocks // shares, (t + 1) * blocks // shares):
        begin, end = np.int64(indptr[first[b]]), np.int64(indptr[first[b]])
        for i in range(first[b], first[b + 1]):
            for p in range(indptr[i], diag[i]):
                k = np.int64(indices[p])
                if k >= first[b]:
                    break
                other = (k + half) >> shift
                other -= k < first[other]
                ahead = np.int32((k - first[other]) - (i - first[b]) + 1)
                if place[other] < begin:
                    place[other] = end
                    needed[end] = other
                    late[end] = ahead
                    end += 1
                else:
                    late[place[other]] = max(late[place[other]], ahead)
        counts[b] = end - begin


@compiled
def _starts(begin, counts, needed, late, each, part, start, rank):
    """start[b] : ns until block b may begin on any number of threads, each row taking as long.  rank[b] : the same, but
    no less than that of a block that it needs, even if only later."""
    for b in range(begin.size):
        start[b] = rank[b] = 0.0
        for e in range(begin[b], begin[b] + counts[b]):
            start[b] = max(start[b], start[needed[e]] + (late[e] + part) * each)
            rank[b] = max(rank[b], rank[needed[e]])
        rank[b] = max(rank[b], start[b])


@compiled
def _makespan(order, first, begin, counts, needed, late, each, part, free, start):
    """ns until the threads, free (threads,) zeros, that take the blocks in this order have done all."""
    for b in order:
        who = np.argmin(free)
        start[b] = free[who] + TAKES
        for e in range(begin[b], begin[b] + counts[b]):
            start[b] = max(start[b], start[needed[e]] + (late[e] + part) * each)
        free[who] = start[b] + (first[b + 1] - first[b]) * each
    return free.max()


@compiled
def _flag(i, part, done):
    """The place of row i in `done`. Rows that are made known one by one are in different cache lines than those next to
    them, as each is waited for while others are made known."""
    return (i % LINE) * (done.size // LINE) + i // LINE if part == 1 else i


@compiled
def wait_for_row(done, k, part):
    """Wait until row k is complete."""
    at, rounds = _flag(np.int64(k), part, done), 0
    while load_acquire(done, at) == 0:
        relax(rounds)
        rounds += 1


@compiled
def publish(done, begin, end, part):
    """Rows begin..end - 1 are complete, for all threads to see."""
    for i in range(begin, end):
        store_release(done, _flag(i, part, done), 1)


@compiled
def wait_for_all(done, first, part):
    """Wait for the last row of each block, the last to be made known."""
    for b in range(1, first.size):
        wait_for_row(done, first[b] - 1, part)
