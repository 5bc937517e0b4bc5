"""Blocks of consecutive rows of about equal work, for the kernels of ParILU and ParILUT."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.search import LONG, LONGER
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.threads import get_num_threads

# Work is counted in multiplications.
ROW, ENTRY = 16, 3  # additional cost of a row, and of an entry of it
GRANULE, GRANULES = 32, 2**14  # rows of a granule, which is not divided; fewer where there would be fewer granules
GRAIN = 2**15  # of a block: its candidates stay in the second-level cache
ALONE = 2**17  # less work is done before another thread has started
COPY = 2**14  # entries of a block of cheap operations


def threads_for(entries: int, alone: int = ALONE) -> int:
    """The number of threads that may share work on that many entries: one for fewer than `alone`."""
    return get_num_threads() if entries >= alone else 1


@compiled
def squared_size(x):
    """|x|^2 in double precision."""
    re, im = np.float64(x.real), np.float64(x.imag)
    return re * re + im * im


def workspace(blocks, size, dtype):
    """(threads, size) : an array for each thread that may come."""
    threads = min(blocks, get_num_threads())
    return np.empty(threads * size, dtype).reshape(threads, size)


def row_blocks(F, columns, *, searched=False):
    """Blocks of rows of about equal work: items (blocks + 1,).

    searched : if a row of U is far longer than the row it is subtracted from, the entries of the shorter row are looked
        up in it, see `search`; otherwise the whole longer row is scanned.
    """
    granule = max(1, min(GRANULE, F.n // GRANULES))
    granules = -(-F.n // granule)
    work = np.empty(granules, np.int64)
    chunks = (F.nnz + F.n) // COPY + 1 if threads_for(F.nnz) > 1 else 1
    c_indptr = None if columns is None else unsigned(columns[0])
    most = LONGER if searched else F.n
    pattern = unsigned(F.indptr), unsigned(F.indices), unsigned(F.diag)
    run_items(_estimate, chunks, chunks, granule, *pattern, c_indptr, np.uint64(most), work)
    total = np.cumsum(work)
    blocks = max(1, int(total[-1] // GRAIN)) if total[-1] >= ALONE else 1
    inner = np.searchsorted(total, np.arange(1, blocks) * (total[-1] / blocks)) + 1
    return np.minimum(np.unique(np.concatenate([[0], inner, [granules]])) * granule, F.n)


@by_items
def _estimate(t, count, granule, indptr, indices, diag, c_indptr, most, work):
    """work (granules,) : the multiplications for the rows of a granule, as if all were like the longest.

    count : of the items, which share the granules.
    most : the most entries of a row of U that are scanned, per entry of the row that it is subtracted from.
    """
    for g in range(t * work.size // count, (t + 1) * work.size // count):
        begin, end = np.uint64(g * granule), np.uint64(min((g + 1) * granule, diag.size))
        below, longest, lo, pivot = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
        for i in range(begin, end):
            length = np.uint64(diag[i]) - np.uint64(indptr[i])
            below += length
            if length > longest:
                longest, lo, pivot = length, np.uint64(indptr[i]), np.uint64(diag[i])
        products = np.uint64(0)
        for p in range(lo, pivot):
            k = np.uint64(indices[p])
            if c_indptr is None:
                length = np.uint64(indptr[k + ONE]) - np.uint64(diag[k])
            else:
                length = np.uint64(c_indptr[k + ONE]) - np.uint64(c_indptr[k])
            products += min(length, most * (longest + ONE))
        entries = np.int64(np.uint64(indptr[end]) - np.uint64(indptr[begin]))
        work[g] = ROW * granule + ENTRY * entries + np.int64(products * below // max(longest, ONE))


def window(items, *patterns):
    """(reach, size) : the rows of a block that begins with row i, and all rows of the patterns that meet in them, have
    no columns but those of the `size` ones from max(i - reach, 0) on.

    A thread needs no more places for them, the same ones again and again. The rows that meet in row i are those of its
    columns. One thread would take each of n places once: they are as good.
    """
    n = patterns[0].n
    if min(items.size - 1, get_num_threads()) == 1:
        return n, n
    reach = max(map(reach_of, patterns))
    size = int(np.diff(items).max()) + 3 * reach
    return (2 * reach, size) if size < n else (n, n)


def reach_of(A):
    """How far from the diagonal entries are at most; A keeps that of its pattern."""
    known = A.__dict__
    if "reach" not in known:
        items = even_blocks(A.indptr)
        found = np.zeros(items.size - 1, np.int64)
        run_items(_reaches, items.size - 1, items, A.indptr, A.indices, found)
        known["reach"] = int(found.max())
    return known["reach"]


@by_items
def _reaches(t, items, indptr, indices, found):
    """found[t] : how far from the diagonal entries of the rows of item t are. Columns ascend."""
    reach = 0
    for i in range(items[t], items[t + 1]):
        if indptr[i] < indptr[i + 1]:
            first, last = np.int64(indices[indptr[i]]), np.int64(indices[indptr[i + 1] - 1])
            reach = max(reach, i - first, last - i)
    found[t] = reach


def has_long_rows(F, columns):
    """Whether a row of U, or a column of L, has more than LONG entries, see `search`; F keeps that of its pattern."""
    if columns is None:
        return F.longest[2] > LONG
    known = F.__dict__
    if "longest_column" not in known:
        known["longest_column"] = int(np.diff(columns[0]).max())
    return known["longest_column"] > LONG


def even_blocks(indptr):
    """Blocks of rows of about equal numbers of entries: items (blocks + 1,)."""
    n, nnz = indptr.size - 1, int(indptr[-1])
    blocks = max(1, (nnz + n) // COPY) if threads_for(nnz + n) > 1 else 1
    return row_parts(indptr, nnz, blocks)


def even_items(count: int, work: int):
    """The parts, or rows, at which items of about COPY units of work begin; one item where one thread is as fast."""
    items = max(min(count, work // COPY), 1) if threads_for(work, 2 * COPY) > 1 else 1
    return np.arange(items + 1) * count // items


def row_parts(indptr, nnz: int, parts: int):
    """As `even_blocks`, for up to that many parts."""
    if parts == 1:
        return np.array([0, indptr.size - 1])
    shares = (np.arange(1, parts) * (nnz / parts)).astype(indptr.dtype)  # of another dtype, all of indptr is converted
    begins = 0, *np.searchsorted(indptr, shares).tolist(), indptr.size - 1
    return np.array(list(dict.fromkeys(begins)))  # ascending


def pattern_arrays(F):
    return unsigned(F.indptr), unsigned(F.indices), unsigned(F.diag)
