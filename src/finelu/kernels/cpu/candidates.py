"""The entries that ParILUT may add to its factors, on all threads."""

from __future__ import annotations

import numpy as np

from finelu import deadline
from finelu.device import require_room
from finelu.kernels.cpu.runtime.arrays import renumbered
from finelu.kernels.cpu.runtime.atomics import fetch_add, load_acquire, relax, store_release
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.row_blocks import pattern_arrays, row_blocks, squared_size, window
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.runtime.sort import sort_by_bitmap
from finelu.kernels.cpu.vectors import gather
from finelu.kernels.operands import INT32_LIMIT
from finelu.threads import get_num_threads

WAITING = 2**19  # candidates that a thread holds back, or as many as F has entries, before it waits for the others
ROOM = 16  # candidates that room is made for, per entry of A and F; only the part that is used takes memory
BIN = np.uint64(44)  # bits of a float64 below its sign, its exponent and the first 8 of its fraction


def candidates(A, F, columns=None, least=0.0, most=None):
    """The candidates of F: the entries of A and of L U that F does not store, with R = A - L U there.

    A, F, columns : as for `sweep`.  least : places where every product l_ik u_kj is smaller in magnitude are left out,
    unless A has them.  most : if there are more candidates, `least` is raised until there are not; those of A stay.
    Returns indptr (n + 1,), indices ascending in a row, values, of F's dtypes; squares (2, n) float64, the sums of
    |r_ij|^2 by rows over the pattern of F and over all candidates, left out or not (for Cholesky over both triangles);
    left_out, the number of candidates left out.
    Cost: as a sweep with squares, and the sorting of the new columns of a row. Memory: room for 16 nnz is asked for, of
    which only the used part is taken; if there are more candidates, or more than `most`, the work is done again.
    """
    matrix, factors = (unsigned(A.indptr), unsigned(A.indices), A.data), (*pattern_arrays(F), F.data)
    by_columns = None
    if columns is not None:
        indptr, rows, places = columns
        by_columns = unsigned(indptr), unsigned(rows), gather(F.data, places)
    items = row_blocks(F, columns)
    arguments, places = (items, matrix, factors, by_columns), window(items, F, A)
    real = F.data.dtype.type(0).real.dtype.type
    cut = real(least) if least > 0 else None
    room = min(ROOM * (A.nnz + F.nnz), INT32_LIMIT)
    if most is not None:
        room = min(room, int(most))
    found = _found(arguments, F, places, cut, room)
    if most is not None and found[-2] > most:
        cut = _raised(arguments, F, real, least, int(most))
        found = _found(arguments, F, places, cut, int(most))
    if found[-2] > found[1].size:
        entry = F.indices.itemsize + F.data.itemsize
        require_room(f"{found[-2]} candidates", entry * found[-2], F.data, "give memory_limit, in bytes")
        found = _found(arguments, F, places, cut, found[-2])
    indptr, indices, values, squares, total, left_out = found
    return indptr, indices[:total], values[:total], squares, left_out


def _found(arguments, F, places, least, room):
    """(indptr, indices, values, squares, total, left_out); of more than `room` candidates only the number is right."""
    pointer = np.dtype(F.indptr.dtype if room <= INT32_LIMIT else np.int64)
    indptr, indices, values = np.empty(F.n + 1, pointer), np.empty(room, F.indices.dtype), np.empty(room, F.data.dtype)
    squares = np.empty(2 * F.n, np.float64).reshape(2, F.n)
    blocks = arguments[0].size - 1
    sizes = np.full(blocks, -1, np.int64)
    indptr[0] = 0
    waiting = min(WAITING, F.nnz)
    threads, (reach, size), index = min(blocks, get_num_threads()), places, unsigned(F.indices).dtype
    # zeros by the system, page by page as a thread reads them; for other memory NumPy asks for pages of 2 MiB
    w, marks = np.zeros((threads, size), F.data.dtype), np.zeros((threads, 2, size), index)
    numbers, columns = (
        np.zeros((threads, F.n + waiting), F.data.dtype),
        np.zeros((threads, 2 * F.n + waiting + 1), index),
    )
    out = indptr, indices, values, squares
    arguments = (w, marks, numbers, columns), *arguments, reach, least, sizes, out, deadline.halt()
    left_out = run_items(_candidates, blocks, *arguments, threads=threads)
    deadline.check()
    return indptr, indices, values, squares, int(sizes.sum()), left_out


@compiled
def _candidates(state, done, own, items, A, F, by_columns, reach, least, sizes, results, halt):
    """Row by row into the thread's own memory; a finished block is copied to its place once the ones before it are.

    w is zero between rows. mark[j] == i + 1 if row i has met column j, in F first; so `met` collects the others
    without a branch: its values behind `count` are overwritten. Where block t begins is known once sizes[s] is there
    for all s < t, that is once these are finished. Until then the thread goes on with other blocks; the finished ones
    that wait are queue[head:tail], a row for each: block, how many of its entries have their place already, begin and
    end of the others in `mine`. before[1] is where block before[0] begins. A thread that has no block or no memory left
    waits for its oldest one. The first block that is not finished belongs to a thread that waits for no other: so all
    end.

    own : w (threads, size) and marks (threads, 2, size), zeros, for the columns of a block, see `window`; numbers and
        columns for `mine` and `met`, a row a thread.
    """
    n, (out_indptr, out_indices, out, _) = F[2].size, results
    t = fetch_add(state, 0, 1)
    slot = fetch_add(state, 1, 1) if t < done.size else 0
    mine_values, met, mine = own[2][slot], own[3][slot, : n + 1], own[3][slot, n + 1 :]
    seen = np.zeros((n >> 6) + 1, np.uint64), np.zeros((n >> 12) + 1, np.uint64)
    queue = np.empty((1024, 4), np.int64)
    before = np.zeros(2, np.int64)
    head = tail = 0
    size = np.uint64(0)
    while t < done.size:
        first = max(items[t] - reach, 0)
        w = renumbered(own[0][slot], first)
        marks = renumbered(own[1][slot, 0], first), renumbered(own[1][slot, 1], first)
        placed, begin, size, left_out, head = _rows(
            t,
            items,
            A,
            F,
            by_columns,
            least,
            w,
            marks,
            met,
            seen,
            mine,
            mine_values,
            size,
            queue,
            head,
            tail,
            before,
            done,
            sizes,
            results,
            halt,
        )
        fetch_add(state, 2, left_out)
        store_release(sizes, t, placed + np.int64(size - begin))
        queue[tail, 0] = t
        queue[tail, 1] = placed
        queue[tail, 2] = begin
        queue[tail, 3] = size
        tail += 1
        t = fetch_add(state, 0, 1)
        last = t >= done.size or tail == queue.shape[0]
        while head < tail and _begins(before, sizes, queue[head, 0], last):
            _place(queue[head], before, done, items, mine, mine_values, out_indptr, out_indices, out)
            head += 1
        if head == tail:
            head = tail = 0
            size = np.uint64(0)
    wait_until_done(done, 0, done.size)


@compiled
def _rows(
    t,
    items,
    A,
    F,
    by_columns,
    least,
    w,
    marks,
    met,
    seen,
    mine,
    mine_values,
    size,
    queue,
    head,
    tail,
    before,
    done,
    sizes,
    results,
    halt,
):
    """The candidates of block t go to `mine`, from `size` on; see `_candidates`, for which w and marks vary, and a loop
    in which they do takes a fifth longer.

    Returns how many of them have their place already, begin and end of the others, how many were left out, and the
    first block of the queue that waits.
    """
    (a_indptr, a_indices, a), (indptr, indices, diag, f) = A, F
    if by_columns is not None:
        c_indptr, rows, by_column = by_columns
    out_indptr, out_indices, out, squares = results
    (mark, wanted), (words, pages) = marks, seen
    n = diag.size
    placed, begin, left_out = 0, size, 0
    for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
        if halted(halt):
            break
        lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
        count, stamp = np.uint64(0), i + ONE
        for p in range(lo, hi):
            mark[indices[p]] = stamp
        for p in range(np.uint64(a_indptr[i]), np.uint64(a_indptr[i + ONE])):
            j = np.uint64(a_indices[p])
            w[j] = a[p]
            met[count] = j
            count += np.uint64(mark[j] != stamp)
            mark[j] = stamp
            if least is not None:
                wanted[j] = stamp
        held = new = 0.0
        for p in range(lo, pivot):
            k = np.uint64(indices[p])
            l, d = f[p], np.uint64(diag[k])
            held += squared_size(w[k] - l * f[d])
            w[k] = 0
            if by_columns is None:
                for q in range(d + ONE, np.uint64(indptr[k + ONE])):
                    j = np.uint64(indices[q])
                    product = l * f[q]
                    w[j] -= product
                    met[count] = j
                    count += np.uint64(mark[j] != stamp)
                    mark[j] = stamp
                    if least is not None and abs(product) >= least:
                        wanted[j] = stamp
            else:
                q = np.uint64(c_indptr[k])
                j = k
                while j != i:  # row i is one of column k
                    q += ONE
                    j = np.uint64(rows[q])
                    product = l * np.conj(by_column[q])
                    w[j] -= product
                    met[count] = j
                    count += np.uint64(mark[j] != stamp)
                    mark[j] = stamp
                    if least is not None and abs(product) >= least:
                        wanted[j] = stamp
        if by_columns is not None:
            held *= 2  # for the other triangle
        for p in range(pivot, hi):
            s = w[indices[p]]
            w[indices[p]] = 0
            if by_columns is None:
                held += squared_size(s - f[p])
            else:
                r = np.float64(s.real - (f[p] * np.conj(f[p])).real)
                held += r * r
        sort_by_bitmap(met, count, words, pages)
        for e in range(count):
            j = np.uint64(met[e])
            r = w[j]
            w[j] = 0
            new += squared_size(r)
            if least is not None and wanted[j] != stamp:
                left_out += 1
                continue
            mine[size] = j
            mine_values[size] = r
            size += ONE
        squares[0, i] = held
        squares[1, i] = new if by_columns is None else 2 * new
        out_indptr[i + ONE] = placed + np.int64(size - begin)
        if size > mine_values.size - n:
            while head < tail:
                _begins(before, sizes, queue[head, 0], True)
                _place(queue[head], before, done, items, mine, mine_values, out_indptr, out_indices, out)
                head += 1
            _begins(before, sizes, t, True)
            _copy(mine, mine_values, begin, size, np.uint64(before[1] + placed), out_indices, out)
            placed, begin, size = placed + np.int64(size - begin), np.uint64(0), np.uint64(0)
    return placed, begin, size, left_out, head


@compiled
def _begins(before, sizes, t, wait):
    """Move `before` on to block t; where a block before that is not finished, wait for it, or stay there: False."""
    rounds = 0
    while before[0] < t:
        size = load_acquire(sizes, before[0])
        if size >= 0:
            before[0] += 1
            before[1] += size
            rounds = 0
        elif wait:
            relax(rounds)
            rounds += 1
        else:
            return False
    return True


@compiled
def _place(waiting, before, done, items, mine, mine_values, out_indptr, out_indices, out):
    """Copy a finished block, the one that `before` has reached, to its place."""
    t, placed, begin, end = waiting
    at = before[1]
    _copy(mine, mine_values, np.uint64(begin), np.uint64(end), np.uint64(at + placed), out_indices, out)
    for i in range(items[t], items[t + 1]):
        out_indptr[i + 1] += at
    store_release(done, t, 1)


@compiled
def _copy(indices, values, begin, end, at, out_indices, out):
    """Copy the entries begin..end to the places from `at` on, if there is room for all of them."""
    if at + end - begin <= np.uint64(out.size):
        for e in range(begin, end):
            out_indices[at + e - begin] = indices[e]
            out[at + e - begin] = values[e]


def _raised(arguments, F, real, least, most):
    """The smallest tried threshold >= least that leaves at most `most` candidates; 256 are tried between 1 and 2.

    If A has more entries outside of F, all other candidates are left out.
    """
    counts, own = np.zeros((0x7FF << 52 >> int(BIN)) + 1, np.int64), np.zeros(1, np.int64)  # the last bin: infinite
    run_items(_weigh, arguments[0].size - 1, *arguments, counts, own, deadline.halt())
    deadline.check()
    above = own[0] + np.cumsum(counts[::-1])[::-1]
    first = np.uint64(np.count_nonzero(above > most))
    edge = np.array([min(first, np.uint64(counts.size - 1))]) << BIN
    least = max(float(least), float(edge.view(np.float64)[0]))
    cut = real(least)
    return np.nextafter(cut, real(np.inf)) if cut < least else cut


@compiled
def _weigh(state, done, items, A, F, by_columns, counts, own, halt):
    """counts[b] : the candidates whose largest product begins with the bits b as a float64; own[0] : those of A."""
    (a_indptr, a_indices, _), (indptr, indices, diag, f) = A, F
    if by_columns is not None:
        c_indptr, rows, by_column = by_columns
    n = diag.size
    t = fetch_add(state, 0, 1)
    here = t < done.size
    mark, met = np.full(n if here else 0, n, indices.dtype), np.empty(n + 1 if here else 0, indices.dtype)
    largest, mine = np.zeros(n if here else 0), np.zeros(counts.size if here else 0, np.int64)
    bits = largest.view(np.uint64)
    while t < done.size:
        entries = 0
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            if halted(halt):
                break
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
            count = np.uint64(0)
            for p in range(lo, hi):
                mark[indices[p]] = i
            for p in range(np.uint64(a_indptr[i]), np.uint64(a_indptr[i + ONE])):
                entries += mark[a_indices[p]] != i
                mark[a_indices[p]] = i
            for p in range(lo, pivot):
                k = np.uint64(indices[p])
                if by_columns is None:
                    for q in range(np.uint64(diag[k]) + ONE, np.uint64(indptr[k + ONE])):
                        j = np.uint64(indices[q])
                        largest[j] = max(largest[j], np.float64(abs(f[p] * f[q])))
                        met[count] = j
                        count += np.uint64(mark[j] != i)
                        mark[j] = i
                else:
                    q = np.uint64(c_indptr[k])
                    j = k
                    while j != i:  # row i is one of column k
                        q += ONE
                        j = np.uint64(rows[q])
                        largest[j] = max(largest[j], np.float64(abs(f[p] * np.conj(by_column[q]))))
                        met[count] = j
                        count += np.uint64(mark[j] != i)
                        mark[j] = i
            for e in range(count):
                mine[bits[met[e]] >> BIN] += 1
                largest[met[e]] = 0
            for p in range(lo, hi):
                largest[indices[p]] = 0
            for p in range(np.uint64(a_indptr[i]), np.uint64(a_indptr[i + ONE])):
                largest[a_indices[p]] = 0
        fetch_add(own, 0, entries)
        next = fetch_add(state, 0, 1)
        if next >= done.size:
            for b in range(mine.size):
                if mine[b] > 0:
                    fetch_add(counts, b, mine[b])
        store_release(done, t, 1)
        t = next
    wait_until_done(done, 0, done.size)
