"""The building blocks of ParILU and ParILUT: sweeps, candidates, adding and removing entries, on all threads.

Rows are shared out as blocks of consecutive ones of about equal work. A block's result depends on its input only, and
what blocks must know of one another (where their entries begin) are sums of integers, so that the bits do not depend on
the number of threads. Row i of A - L U is made in a dense vector w: for each k < i of the row, l_ik times all of row k
of U is subtracted, without a look at where it falls.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import intrinsic

from finelu.kernels import require_room
from finelu.kernels.cpu.arithmetic import divide
from finelu.kernels.cpu.atomics import (
    fetch_add,
    fetch_min,
    load_acquire,
    load_relaxed,
    relax,
    store_relaxed,
    store_release,
    wait_until_done,
)
from finelu.kernels.cpu.elimination import ONE
from finelu.kernels.cpu.levels import unsigned
from finelu.kernels.cpu.memory import empty
from finelu.kernels.cpu.recurrences import compiled
from finelu.kernels.csr import CSR, INT32_LIMIT
from finelu.threads import get_num_threads, run

# Work is counted in multiplications.
ROW, ENTRY = 16, 3  # what a row, and an entry of it, cost besides
GRANULE, GRANULES = 32, 2**14  # so many neighbouring rows stay together, fewer where there would be few such granules
GRAIN = 2**15  # of a block: its candidates stay in the second-level cache
WAITING = 2**19  # candidates that a thread holds back before it waits for the others
ALONE = 2**17  # less is done before another thread has come
COPY = 2**14  # entries of a block where each is only looked at
ROOM = 16  # candidates that room is made for, per entry of A and F; only the part that is used takes memory
FEW = 12  # so many columns are sorted by insertion
BIN = np.uint64(44)  # bits of a float64 below its sign, its exponent and the first 8 of its fraction


@intrinsic
def _lowest_bit(typing, bits):
    """The place of the lowest bit that is set; bits != 0."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), generate


@compiled
def _square(x):
    """|x|^2 in double precision."""
    re, im = np.float64(x.real), np.float64(x.imag)
    return re * re + im * im


def _share(kernel, blocks, *args, threads=None):
    """kernel(state, done, *args) by the threads, which claim blocks 0, 1, ... by state[0], and workspaces by state[1].

    Returns what the threads added up in state[2].
    """
    state = np.zeros(3, np.int64)
    run(kernel, blocks if threads is None else threads, state, np.zeros(blocks, np.int8), *args)
    return int(state[2])


def _workspace(blocks, size, dtype):
    """(threads, size) : an array for each thread that may come."""
    threads = min(blocks, get_num_threads())
    return empty(threads * size, dtype).reshape(threads, size)


def _blocks(F, columns):
    """Blocks of rows of about equal work: items (blocks + 1,)."""
    granule = max(1, min(GRANULE, F.n // GRANULES))
    granules = -(-F.n // granule)
    work = np.empty(granules, np.int64)
    chunks = (F.nnz + F.n) // COPY + 1 if F.nnz >= ALONE else 1
    c_indptr = None if columns is None else unsigned(columns[0])
    _share(_estimate, chunks, granule, unsigned(F.indptr), unsigned(F.indices), unsigned(F.diag), c_indptr, work)
    total = np.cumsum(work)
    blocks = max(1, int(total[-1] // GRAIN)) if total[-1] >= ALONE else 1
    inner = np.searchsorted(total, np.arange(1, blocks) * (total[-1] / blocks)) + 1
    return np.minimum(np.unique(np.concatenate([[0], inner, [granules]])) * granule, F.n)


@compiled
def _estimate(state, done, granule, indptr, indices, diag, c_indptr, work):
    """work (granules,) : the multiplications that the rows of a granule take, as if all were like the longest."""
    t = fetch_add(state, 0, 1)
    while t < done.size:
        for g in range(t * work.size // done.size, (t + 1) * work.size // done.size):
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
                    products += np.uint64(indptr[k + ONE]) - np.uint64(diag[k])
                else:
                    products += np.uint64(c_indptr[k + ONE]) - np.uint64(c_indptr[k])
            entries = np.int64(np.uint64(indptr[end]) - np.uint64(indptr[begin]))
            work[g] = ROW * granule + ENTRY * entries + np.int64(products * below // max(longest, ONE))
        store_release(done, t, 1)
        t = fetch_add(state, 0, 1)
    wait_until_done(done, 0, done.size)


def _even(indptr):
    """Blocks of rows of about equal numbers of entries: items (blocks + 1,)."""
    n, nnz = indptr.size - 1, int(indptr[-1])
    blocks = max(1, (nnz + n) // COPY) if nnz + n >= ALONE else 1
    inner = np.searchsorted(indptr, np.arange(1, blocks) * (nnz / blocks))
    return np.unique(np.concatenate([[0], inner, [n]]))


def columns_of(F):
    """The lower triangle F by columns: indptr (n + 1,), rows (nnz,) ascending, places (nnz,) in F.data.

    Cost: a counting sort; besides the result n integers for each of up to 2 nnz / n threads.
    """
    n, index = F.n, F.indices.dtype
    parts = max(1, min(get_num_threads(), 2 * F.nnz // n)) if F.nnz >= ALONE else 1
    items = np.unique(np.concatenate([[0], np.searchsorted(F.indptr, np.arange(1, parts) * (F.nnz / parts)), [n]]))
    parts = items.size - 1
    starts = np.zeros((parts, n), F.indptr.dtype)
    indptr, rows, places = empty(n + 1, F.indptr.dtype), empty(F.nnz, index), empty(F.nnz, index)
    _share(_count_columns, parts, items, unsigned(F.indptr), unsigned(F.indices), starts)
    _start_columns(starts, indptr)
    pattern = unsigned(F.indptr), unsigned(F.indices)
    _share(_fill_columns, parts, items, *pattern, unsigned(starts), rows, places)
    return indptr, rows, places


@compiled
def _count_columns(state, done, items, indptr, indices, counts):
    """counts[t, j] : entries of column j in part t of the rows."""
    t = fetch_add(state, 0, 1)
    while t < done.size:
        mine = counts[t]
        for p in range(np.uint64(indptr[items[t]]), np.uint64(indptr[items[t + 1]])):
            mine[indices[p]] += 1
        store_release(done, t, 1)
        t = fetch_add(state, 0, 1)
    wait_until_done(done, 0, done.size)


@compiled
def _start_columns(starts, indptr):
    """Counts become the places where each part's entries of a column begin."""
    total = 0
    for j in range(starts.shape[1]):
        indptr[j] = total
        for t in range(starts.shape[0]):
            count = starts[t, j]
            starts[t, j] = total
            total += count
    indptr[starts.shape[1]] = total


@compiled
def _fill_columns(state, done, items, indptr, indices, starts, rows, places):
    t = fetch_add(state, 0, 1)
    while t < done.size:
        next = starts[t]
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
                q = next[indices[p]]
                next[indices[p]] = q + ONE
                rows[q] = i
                places[q] = p
        store_release(done, t, 1)
        t = fetch_add(state, 0, 1)
    wait_until_done(done, 0, done.size)


def _columns(columns):
    return (None, None, None) if columns is None else tuple(unsigned(x) for x in columns)


def _pattern(F):
    return unsigned(F.indptr), unsigned(F.indices), unsigned(F.diag)


def sweep(A, F, out, squares, refused, columns=None, damping=1.0):
    """One synchronous fixed-point sweep on the pattern of F; see kernels/reference.py.

    A, F : CSR of one dtype, the diagonal of F full; with columns = columns_of(F) lower triangles (Cholesky).
    out (nnz of F,) receives the new values, not F.data itself.  squares (n,) float64 receives sums of |r_ij|^2 of the
    old values by rows, or None.  refused (2,) int64: [0] counts values that were refused, [1] is the least such row.
    Cost: sum over the entries l_ik of the length of row k of U, multiplications; n values of workspace a thread.
    """
    items = _blocks(F, columns)
    real = F.data.dtype.type(0).real.dtype.type
    by_columns = _columns(columns)
    factors = (real(damping), real(1 - damping))
    a = unsigned(A.indptr), unsigned(A.indices), A.data
    blocks = items.size - 1
    workspace = _workspace(blocks, F.n, F.data.dtype)
    _share(
        _sweep,
        blocks,
        workspace,
        items,
        *a,
        *_pattern(F),
        F.data,
        *by_columns,
        damping != 1,
        *factors,
        out,
        squares,
        refused,
        threads=workspace.shape[0],
    )


@compiled
def _sweep(
    state,
    done,
    workspace,
    items,
    a_indptr,
    a_indices,
    a,
    indptr,
    indices,
    diag,
    f,
    c_indptr,
    rows,
    places,
    damped,
    new_part,
    old_part,
    out,
    squares,
    refused,
):
    """Row by row: w = a_i on the pattern, then in ascending order of k w -= l_ik u_k, which leaves w[k] final.

    What lands in w outside of the pattern, finite or not, is never read: each row first writes all of its own places.
    """
    t = fetch_add(state, 0, 1)
    w = workspace[fetch_add(state, 1, 1) if t < done.size else 0]
    zero = a[0] - a[0]
    nan = zero.real / zero.real
    while t < done.size:
        bad, first_bad = 0, np.int64(diag.size)
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
            for p in range(lo, hi):
                w[indices[p]] = 0
            for p in range(np.uint64(a_indptr[i]), np.uint64(a_indptr[i + ONE])):
                w[a_indices[p]] = a[p]
            square, bad_before = 0.0, bad
            for p in range(lo, pivot):
                k = np.uint64(indices[p])
                old, s, d = f[p], w[k], np.uint64(diag[k])
                new = divide(s, f[d])
                if damped:
                    new = new_part * new + old_part * old
                if not np.isfinite(new):
                    bad += 1
                    new = old
                out[p] = new
                if squares is not None:
                    square += _square(s - old * f[d])
                if rows is None:
                    for q in range(d + ONE, np.uint64(indptr[k + ONE])):
                        w[indices[q]] -= old * f[q]
                else:
                    q = np.uint64(c_indptr[k])
                    j = k
                    while j != i:  # row i is one of column k
                        q += ONE
                        j = np.uint64(rows[q])
                        w[j] -= old * np.conj(f[places[q]])
            for p in range(pivot, hi):
                old, s = f[p], w[indices[p]]
                if rows is None:
                    new = s
                    residual = s - old
                else:
                    new = zero + (np.sqrt(s.real) if s.real > 0 else nan)
                    residual = zero + (s.real - (old * np.conj(old)).real)
                if damped:
                    new = new_part * new + old_part * old
                if not np.isfinite(new) or (p == pivot and new == 0):
                    bad += 1
                    new = old
                out[p] = new
                if squares is not None:
                    square += _square(residual)
            if squares is not None:
                squares[i] = square
            if bad > bad_before:
                first_bad = min(first_bad, np.int64(i))
        if bad > 0:
            fetch_add(refused, 0, bad)
            fetch_min(refused, 1, first_bad)
        store_release(done, t, 1)
        t = fetch_add(state, 0, 1)
    wait_until_done(done, 0, done.size)


def sweeps(A, F, count, squares, refused, columns=None, damping=1.0):
    """`count` of them, one after the other; see kernels/reference.py."""
    for k in range(count):
        out = empty(F.nnz, F.dtype)
        sweep(A, F, out, None if squares is None else squares[k], refused, columns, damping)
        F = F.with_values(out)
    return F.data


def sweep_in_place(A, F, refused, columns=None):
    """An asynchronous sweep that overwrites F.data; see kernels/reference.py.

    Arguments as for `sweep`. One thread gives the incomplete factorization on the pattern of F. Several read from each
    other whatever value is there at the time, old or new, so that the result differs from run to run.
    """
    items = _blocks(F, columns)
    by_columns = _columns(columns)
    a = unsigned(A.indptr), unsigned(A.indices), A.data
    blocks = items.size - 1
    workspace = _workspace(blocks, F.n, F.data.dtype)
    arguments = workspace, items, *a, *_pattern(F), F.data, *by_columns, refused
    _share(_sweep_in_place, blocks, *arguments, threads=workspace.shape[0])


@compiled
def _sweep_in_place(
    state, done, workspace, items, a_indptr, a_indices, a, indptr, indices, diag, f, c_indptr, rows, places, refused
):
    """As `_sweep`, but l_ik is final before it is used, and each read of another row is of what is there just then."""
    t = fetch_add(state, 0, 1)
    w = workspace[fetch_add(state, 1, 1) if t < done.size else 0]
    zero = a[0] - a[0]
    nan = zero.real / zero.real
    while t < done.size:
        bad, first_bad = 0, np.int64(diag.size)
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
            for p in range(lo, hi):
                w[indices[p]] = 0
            for p in range(np.uint64(a_indptr[i]), np.uint64(a_indptr[i + ONE])):
                w[a_indices[p]] = a[p]
            bad_before = bad
            for p in range(lo, pivot):
                k = np.uint64(indices[p])
                d = np.uint64(diag[k])
                new = divide(w[k], load_relaxed(f, d))
                if not np.isfinite(new):
                    bad += 1
                    new = load_relaxed(f, p)
                else:
                    store_relaxed(f, p, new)
                if rows is None:
                    for q in range(d + ONE, np.uint64(indptr[k + ONE])):
                        w[indices[q]] -= new * load_relaxed(f, q)
                else:
                    q = np.uint64(c_indptr[k])
                    j = k
                    while j != i:  # row i is one of column k
                        q += ONE
                        j = np.uint64(rows[q])
                        w[j] -= new * np.conj(load_relaxed(f, np.uint64(places[q])))
            for p in range(pivot, hi):
                s = w[indices[p]]
                new = s if rows is None else zero + (np.sqrt(s.real) if s.real > 0 else nan)
                if not np.isfinite(new) or (p == pivot and new == 0):
                    bad += 1
                else:
                    store_relaxed(f, p, new)
            if bad > bad_before:
                first_bad = min(first_bad, np.int64(i))
        if bad > 0:
            fetch_add(refused, 0, bad)
            fetch_min(refused, 1, first_bad)
        store_release(done, t, 1)
        t = fetch_add(state, 0, 1)
    wait_until_done(done, 0, done.size)


def candidates(A, F, columns=None, least=0.0, most=None):
    """The candidates of F: the places of A and of L U that F has not, with R = A - L U there; see kernels/reference.py.

    A, F, columns : as for `sweep`.  least : places where every product l_ik u_kj is smaller in magnitude are left out,
    unless A has them.  most : if there would be more candidates, `least` is raised until there are not; A's own stay.
    Returns indptr (n + 1,), indices ascending in a row, values, of F's dtypes; squares (2, n) float64, sums of |r_ij|^2
    by rows over the pattern of F and over the candidates; left_out, how many were.
    Cost: as a sweep with squares, and the sorting of what is new in a row. Memory: room for 16 nnz is asked for, of
    which the system takes what is used; if there are more candidates, or more than `most`, the work is done again.
    """
    items = _blocks(F, columns)
    arguments = items, unsigned(A.indptr), unsigned(A.indices), A.data, *_pattern(F), F.data, *_columns(columns)
    real = F.data.dtype.type(0).real.dtype.type
    cut = real(least) if least > 0 else None
    room = min(ROOM * (A.nnz + F.nnz), INT32_LIMIT)
    if most is not None:
        room = min(room, int(most))
    found = _found(arguments, F, cut, room)
    if most is not None and found[-2] > most:
        cut = _raised(arguments, F, real, least, int(most))
        found = _found(arguments, F, cut, int(most))
    if found[-2] > found[1].size:
        entry = F.indices.itemsize + F.data.itemsize
        require_room(f"{found[-2]} candidates", entry * found[-2], F.data, "give memory_limit, in bytes")
        found = _found(arguments, F, cut, found[-2])
    indptr, indices, values, squares, total, left_out = found
    return indptr, indices[:total], values[:total], squares, left_out


def _found(arguments, F, least, room):
    """(indptr, indices, values, squares, total, left_out); of more than `room` candidates only the number is right."""
    index = np.dtype(F.indptr.dtype if room <= INT32_LIMIT else np.int64)
    indptr, indices, values = empty(F.n + 1, index), empty(room, F.indices.dtype), empty(room, F.data.dtype)
    squares = empty(2 * F.n, np.float64).reshape(2, F.n)
    blocks = arguments[0].size - 1
    ends = np.full(blocks + 1, -1, np.int64)
    ends[0] = indptr[0] = 0
    numbers = _workspace(blocks, 2 * F.n + WAITING, F.data.dtype)
    columns = _workspace(blocks, 4 * F.n + WAITING + 1, unsigned(F.indices).dtype)
    arguments = numbers, columns, *arguments, least, ends, indptr, indices, values, squares
    left_out = _share(_candidates, blocks, *arguments, threads=len(numbers))
    return indptr, indices, values, squares, int(ends[-1]), left_out


@compiled
def _candidates(
    state,
    done,
    numbers,
    columns,
    items,
    a_indptr,
    a_indices,
    a,
    indptr,
    indices,
    diag,
    f,
    c_indptr,
    rows,
    places,
    least,
    ends,
    out_indptr,
    out_indices,
    out,
    squares,
):
    """Row by row into the thread's own memory; a finished block is copied to its place once the ones before it are.

    w is zero between rows. mark[j] == i if row i has met column j, in F first; so `met` collects the others, without a
    branch: what it holds behind `count` is overwritten.
    ends[t], where block t begins, is known once all blocks before it are finished. Until then the thread goes on with
    other blocks; the finished ones that wait are queue[head:tail], a row for each: block, how many of its entries have
    their place already, begin and end of the others in `mine`. A thread that has no block or no memory left waits for
    its oldest one. The oldest of all that wait can be placed, by a thread that waits for no other: so all end.
    """
    n = diag.size
    t = fetch_add(state, 0, 1)
    slot = fetch_add(state, 1, 1) if t < done.size else 0
    w, mine_values = numbers[slot, :n], numbers[slot, n:]
    mark, wanted, met, mine = (
        columns[slot, :n],
        columns[slot, n : 2 * n],
        columns[slot, 2 * n : 3 * n + 1],
        columns[slot, 3 * n + 1 :],
    )
    words, pages = np.zeros((n >> 6) + 1, np.uint64), np.zeros((n >> 12) + 1, np.uint64)
    if t < done.size:
        w[:] = 0
        mark[:] = n
        if least is not None:
            wanted[:] = n
    queue = np.empty((1024, 4), np.int64)
    head = tail = 0
    size = np.uint64(0)
    while t < done.size:
        placed, begin, left_out = 0, size, 0
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
            count = np.uint64(0)
            for p in range(lo, hi):
                mark[indices[p]] = i
            for p in range(np.uint64(a_indptr[i]), np.uint64(a_indptr[i + ONE])):
                j = np.uint64(a_indices[p])
                w[j] = a[p]
                met[count] = j
                count += np.uint64(mark[j] != i)
                mark[j] = i
                if least is not None:
                    wanted[j] = i
            held = new = 0.0
            for p in range(lo, pivot):
                k = np.uint64(indices[p])
                l, d = f[p], np.uint64(diag[k])
                held += _square(w[k] - l * f[d])
                w[k] = 0
                if rows is None:
                    for q in range(d + ONE, np.uint64(indptr[k + ONE])):
                        j = np.uint64(indices[q])
                        product = l * f[q]
                        w[j] -= product
                        met[count] = j
                        count += np.uint64(mark[j] != i)
                        mark[j] = i
                        if least is not None and abs(product) >= least:
                            wanted[j] = i
                else:
                    q = np.uint64(c_indptr[k])
                    j = k
                    while j != i:  # row i is one of column k
                        q += ONE
                        j = np.uint64(rows[q])
                        product = l * np.conj(f[places[q]])
                        w[j] -= product
                        met[count] = j
                        count += np.uint64(mark[j] != i)
                        mark[j] = i
                        if least is not None and abs(product) >= least:
                            wanted[j] = i
            for p in range(pivot, hi):
                s = w[indices[p]]
                w[indices[p]] = 0
                if rows is None:
                    held += _square(s - f[p])
                else:
                    r = np.float64(s.real - (f[p] * np.conj(f[p])).real)
                    held += r * r
            _sort(met, count, words, pages)
            for e in range(count):
                j = np.uint64(met[e])
                r = w[j]
                w[j] = 0
                if least is not None and wanted[j] != i:
                    left_out += 1
                    continue
                new += _square(r)
                mine[size] = j
                mine_values[size] = r
                size += ONE
            squares[0, i] = held
            squares[1, i] = new
            out_indptr[i + ONE] = placed + np.int64(size - begin)
            if size > mine_values.size - n:
                while head < tail:
                    _place(queue[head], ends, done, items, mine, mine_values, out_indptr, out_indices, out)
                    head += 1
                _copy(mine, mine_values, begin, size, np.uint64(_turn(ends, t) + placed), out_indices, out)
                placed, begin, size = placed + np.int64(size - begin), np.uint64(0), np.uint64(0)
        fetch_add(state, 2, left_out)
        queue[tail, 0] = t
        queue[tail, 1] = placed
        queue[tail, 2] = begin
        queue[tail, 3] = size
        tail += 1
        t = fetch_add(state, 0, 1)
        last = t >= done.size or tail == queue.shape[0]
        while head < tail and (last or load_acquire(ends, queue[head, 0]) >= 0):
            _place(queue[head], ends, done, items, mine, mine_values, out_indptr, out_indices, out)
            head += 1
        if head == tail:
            head = tail = 0
            size = np.uint64(0)
    wait_until_done(done, 0, done.size)


@compiled
def _turn(ends, t):
    """Where block t begins, once it is known."""
    rounds = 0
    while load_acquire(ends, t) < 0:
        relax(rounds)
        rounds += 1
    return ends[t]


@compiled
def _place(waiting, ends, done, items, mine, mine_values, out_indptr, out_indices, out):
    """Copy a finished block to its place, and tell where the next one begins."""
    t, placed, begin, end = waiting
    at = _turn(ends, t)
    store_release(ends, t + 1, at + placed + end - begin)
    _copy(mine, mine_values, np.uint64(begin), np.uint64(end), np.uint64(at + placed), out_indices, out)
    for i in range(items[t], items[t + 1]):
        out_indptr[i + 1] += at
    store_release(done, t, 1)


@compiled
def _copy(indices, values, begin, end, at, out_indices, out):
    """Entries begin..end to the places from `at` on, unless the room ends before."""
    if at + end - begin <= np.uint64(out.size):
        for e in range(begin, end):
            out_indices[at + e - begin] = indices[e]
            out[at + e - begin] = values[e]


@compiled
def _sort(columns, count, words, pages):
    """Sort columns[:count], all different: a few by insertion, more by a bitmap whose words are marked in `pages`.

    words (n / 64,), pages (n / 4096,) : zero before and after.
    """
    if count <= FEW:
        for e in range(ONE, count):
            key, g = columns[e], e
            while g > 0 and columns[g - ONE] > key:
                columns[g] = columns[g - ONE]
                g -= ONE
            columns[g] = key
        return
    first = last = np.uint64(columns[0])
    for e in range(count):
        first, last = min(first, np.uint64(columns[e])), max(last, np.uint64(columns[e]))
    if (last - first) >> np.uint64(12) > count << np.uint64(2):  # too far apart
        columns[:count].sort()
        return
    low, six = np.uint64(63), np.uint64(6)
    for e in range(count):
        j = np.uint64(columns[e])
        words[j >> six] |= ONE << (j & low)
        pages[j >> np.uint64(12)] |= ONE << ((j >> six) & low)
    e = np.uint64(0)
    for page in range(first >> np.uint64(12), (last >> np.uint64(12)) + ONE):
        marked = pages[page]
        pages[page] = 0
        while marked != 0:
            word = (page << six) | _lowest_bit(marked)
            marked &= marked - ONE
            bits = words[word]
            words[word] = 0
            while bits != 0:
                columns[e] = (word << six) | _lowest_bit(bits)
                bits &= bits - ONE
                e += ONE


def _raised(arguments, F, real, least, most):
    """The smallest threshold >= least of those that are looked at, 256 between 1 and 2, that leaves `most` candidates.

    If A has more entries outside of F, all other candidates are to go.
    """
    counts, own = np.zeros((0x7FF << 52 >> int(BIN)) + 1, np.int64), np.zeros(1, np.int64)  # the last bin: infinite
    _share(_weigh, arguments[0].size - 1, *arguments, counts, own)
    above = own[0] + np.cumsum(counts[::-1])[::-1]
    first = np.uint64(np.count_nonzero(above > most))
    edge = np.array([min(first, np.uint64(counts.size - 1))]) << BIN
    least = max(float(least), float(edge.view(np.float64)[0]))
    cut = real(least)
    return np.nextafter(cut, real(np.inf)) if cut < least else cut


@compiled
def _weigh(state, done, items, a_indptr, a_indices, a, indptr, indices, diag, f, c_indptr, rows, places, counts, own):
    """counts[b] : candidates whose largest product begins with the bits b as a float64; own[0] : those that A has."""
    n = diag.size
    t = fetch_add(state, 0, 1)
    here = t < done.size
    mark, met = np.full(n if here else 0, n, indices.dtype), np.empty(n + 1 if here else 0, indices.dtype)
    largest, mine = np.zeros(n if here else 0), np.zeros(counts.size if here else 0, np.int64)
    bits = largest.view(np.uint64)
    while t < done.size:
        entries = 0
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
            count = np.uint64(0)
            for p in range(lo, hi):
                mark[indices[p]] = i
            for p in range(np.uint64(a_indptr[i]), np.uint64(a_indptr[i + ONE])):
                entries += mark[a_indices[p]] != i
                mark[a_indices[p]] = i
            for p in range(lo, pivot):
                k = np.uint64(indices[p])
                if rows is None:
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
                        largest[j] = max(largest[j], np.float64(abs(f[p] * np.conj(f[places[q]]))))
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


def add(F, indptr, indices, values, scaled=False):
    """F with candidates, as a CSR with ascending columns; see kernels/reference.py.

    indptr (n + 1,), indices, values : ascending in a row, none of them in F.  scaled : a new l_ij is r_ij / u_jj.
    Returns a CSR; its index arrays are int64 where int32 cannot count its entries. Cost: one pass.
    """
    nnz = F.nnz + values.size
    wide = np.int64 if nnz > INT32_LIMIT else F.indptr.dtype
    new_indptr, new_diag = np.add(F.indptr, indptr, dtype=wide), empty(F.n, wide)
    new_indices, data = empty(nnz, np.int64 if nnz > INT32_LIMIT else F.indices.dtype), empty(nnz, F.data.dtype)
    items = _even(new_indptr)
    more = unsigned(indptr), unsigned(indices), values
    out = unsigned(new_indptr), new_indices, new_diag, data
    _share(_add, items.size - 1, items, *_pattern(F), F.data, *more, bool(scaled), *out)
    return CSR(new_indptr, new_indices, data, new_diag)


@compiled
def _add(
    state,
    done,
    items,
    indptr,
    indices,
    diag,
    f,
    more_indptr,
    more_indices,
    more,
    scaled,
    out_indptr,
    out_indices,
    out_diag,
    out,
):
    """Row by row: merge what is below the diagonal, then what is above."""
    t = fetch_add(state, 0, 1)
    while t < done.size:
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            pivot, q, end = np.uint64(diag[i]), np.uint64(more_indptr[i]), np.uint64(more_indptr[i + ONE])
            middle, m = q, np.uint64(out_indptr[i])
            while middle < end and more_indices[middle] < i:
                middle += ONE
            p = np.uint64(indptr[i])
            while q < middle:  # the diagonal ends row p
                j, k = indices[p], more_indices[q]
                old = j < k
                out_indices[m] = j if old else k
                value = more[q]
                if scaled and not old:
                    value = divide(value, f[diag[k]])
                out[m] = f[p] if old else value
                m += ONE
                p += np.uint64(old)
                q += np.uint64(not old)
            while p <= pivot:
                out_indices[m] = indices[p]
                out[m] = f[p]
                m += ONE
                p += ONE
            out_diag[i] = m - ONE
            stop = np.uint64(indptr[i + ONE])
            while q < end and p < stop:
                j, k = indices[p], more_indices[q]
                old = j < k
                out_indices[m] = j if old else k
                out[m] = f[p] if old else more[q]
                m += ONE
                p += np.uint64(old)
                q += np.uint64(not old)
            while p < stop:
                out_indices[m] = indices[p]
                out[m] = f[p]
                m += ONE
                p += ONE
            while q < end:
                out_indices[m] = more_indices[q]
                out[m] = more[q]
                m += ONE
                q += ONE
        store_release(done, t, 1)
        t = fetch_add(state, 0, 1)
    wait_until_done(done, 0, done.size)


def magnitudes(F):
    """|values| of F strictly below (k_L,) and strictly above (k_U,) the diagonal, in the order of their places."""
    items = _even(F.indptr)
    below = np.zeros(items.size, np.int64)
    _below(items, F.indptr, F.diag, below)
    real = F.data.dtype.type(0).real.dtype
    lower, upper = empty(int(below[-1]), real), empty(F.nnz - F.n - int(below[-1]), real)
    _share(_magnitudes, items.size - 1, items, unsigned(F.indptr), unsigned(F.diag), F.data, below, lower, upper)
    return lower, upper


@compiled
def _below(items, indptr, diag, below):
    """below[t] : the entries below the diagonal in the blocks before t; out, zeros."""
    for t in range(items.size - 1):
        total = 0
        for i in range(items[t], items[t + 1]):
            total += diag[i] - indptr[i]
        below[t + 1] = below[t] + total


@compiled
def _magnitudes(state, done, items, indptr, diag, f, below, lower, upper):
    t = fetch_add(state, 0, 1)
    while t < done.size:
        l = np.uint64(below[t])
        u = np.uint64(indptr[items[t]]) - np.uint64(items[t]) - l
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            pivot = np.uint64(diag[i])
            for p in range(np.uint64(indptr[i]), pivot):
                lower[l] = abs(f[p])
                l += ONE
            for p in range(pivot + ONE, np.uint64(indptr[i + ONE])):
                upper[u] = abs(f[p])
                u += ONE
        store_release(done, t, 1)
        t = fetch_add(state, 0, 1)
    wait_until_done(done, 0, done.size)


def remove(F, least, drop):
    """F without its smallest entries, as a CSR; see kernels/reference.py.

    least (2,) reals, drop (2,) integers: thresholds, and how many entries to drop, below and above the diagonal.
    Returns a CSR of F's dtypes. Cost: a pass over the values and a copy of what stays.
    """
    real = F.data.dtype.type(0).real.dtype.type
    items = _even(F.indptr)
    blocks = items.size - 1
    least = real(least[0]), real(least[1])
    counts = np.zeros((blocks + 1, 4), np.int64)  # smaller and equal, below the diagonal, then above
    _share(_tally, blocks, items, unsigned(F.indptr), unsigned(F.diag), F.data, *least, counts)
    smaller, ties = counts[:, 0::2].sum(axis=0), counts[:, 1::2].sum(axis=0)
    want = np.clip(np.array([int(drop[0]), int(drop[1])]) - smaller, 0, ties)
    before = np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(counts[:blocks, 1::2], axis=0)])  # ties, by blocks
    dropped = np.diff(before * want // np.maximum(ties, 1), axis=0) + counts[:blocks, 0::2]
    kept = np.diff(F.indptr[items].astype(np.int64)) - dropped.sum(axis=1)
    begin = np.concatenate([[0], np.cumsum(kept)])
    nnz = int(begin[-1])
    indptr, diag = empty(F.n + 1, F.indptr.dtype), empty(F.n, F.diag.dtype)
    indices, data = empty(nnz, F.indices.dtype), empty(nnz, F.data.dtype)
    arguments = items, *_pattern(F), F.data, *least, before * want % np.maximum(ties, 1), want, ties, begin
    _share(_keep, blocks, *arguments, indptr, indices, diag, data)
    return CSR(indptr, indices, data, diag)


@compiled
def _tally(state, done, items, indptr, diag, f, least_below, least_above, counts):
    """counts[t] : values of block t smaller than and equal to the threshold, below the diagonal and above."""
    t = fetch_add(state, 0, 1)
    while t < done.size:
        smaller = ties = 0  # of both sides, 32 bits each
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            pivot = np.uint64(diag[i])
            for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
                size = abs(f[p])
                least = least_below if p < pivot else least_above
                one = 0 if p == pivot else 1 if p < pivot else 1 << 32
                smaller += one if size < least else 0
                ties += one if size == least else 0
        counts[t, 0] = smaller & 0xFFFFFFFF
        counts[t, 1] = ties & 0xFFFFFFFF
        counts[t, 2] = smaller >> 32
        counts[t, 3] = ties >> 32
        store_release(done, t, 1)
        t = fetch_add(state, 0, 1)
    wait_until_done(done, 0, done.size)


@compiled
def _keep(
    state,
    done,
    items,
    indptr,
    indices,
    diag,
    f,
    least_below,
    least_above,
    rests,
    want,
    ties,
    begin,
    out_indptr,
    out_indices,
    out_diag,
    out,
):
    """Row by row: every entry is written to the next free place, which moves on if the entry stays.

    Behind the last entry that stays in a block nothing is written: the place is another block's.
    """
    t = fetch_add(state, 0, 1)
    while t < done.size:
        m, end = np.uint64(begin[t]), np.uint64(begin[t + 1])
        rest_below, rest_above = rests[t, 0], rests[t, 1]
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            pivot = np.uint64(diag[i])
            out_indptr[i] = m
            for p in range(np.uint64(indptr[i]), pivot):
                size = abs(f[p])
                out_indices[m] = indices[p]
                out[m] = f[p]
                keep = not size < least_below
                if size == least_below:
                    rest_below += want[0]
                    keep = rest_below < ties[0]
                    rest_below -= 0 if keep else ties[0]
                m += np.uint64(keep)
            out_indices[m] = i
            out[m] = f[pivot]
            out_diag[i] = m
            m += ONE
            for p in range(pivot + ONE, np.uint64(indptr[i + ONE])):
                if m == end:
                    break
                size = abs(f[p])
                out_indices[m] = indices[p]
                out[m] = f[p]
                keep = not size < least_above  # so that NaN stays
                if size == least_above:
                    rest_above += want[1]
                    keep = rest_above < ties[1]
                    rest_above -= 0 if keep else ties[1]
                m += np.uint64(keep)
        store_release(done, t, 1)
        t = fetch_add(state, 0, 1)
    if t == done.size:  # one of the threads claims this one
        out_indptr[diag.size] = begin[done.size]
    wait_until_done(done, 0, done.size)
