"""ILUT by rows, ILUT in Crout's form, and ICT: factorizations that find their pattern as they proceed, on one thread;
ICT on several where A consists of diagonal blocks.

Each keeps some entries of the row (or column) that it has just computed: the largest of those above a threshold. The
computed row is a dense vector, with a list of the columns that have an entry, so that the cost of a step depends on
these columns only. Sums run in ascending order of the eliminated unknown. Among equal magnitudes those with smaller
indices are kept.
"""

from __future__ import annotations

import numpy as np

from finelu import deadline
from finelu.kernels.cpu.graph import transposed
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.arrays import Handed, grown, hand_over
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lists import enlist, members
from finelu.kernels.cpu.runtime.sort import pop, push, strongest
from finelu.kernels.operands import Factored
from finelu.threads import each, get_num_threads

RANGES, RANGE = 4, 30_000  # of each thread for ICT; entries of A in one


def ilut(A, tau, fill, most) -> Factored:
    """ILUT by rows (Saad 1994); see kernels/reference/threshold.py.

    A : checked CSR with a full diagonal, on the host.  tau (n,) float64: threshold of each row, for the rest of an
        entry when its turn comes to be divided by the pivot, and for entries of U.
    fill : of a row of A with l entries below the diagonal and u above it, max(1, int(fill l)) and max(1, int(fill u))
        are kept.  most : stop once there are more entries than this.
    Cost: a heap operation for each entry below the diagonal that is touched, and the multiplications.
    """
    indptr, diag = np.zeros(A.n + 1, np.int64), np.empty(A.n, np.int64)
    limits = tau, float(fill), most, _capacity(A.nnz, most)
    with Handed(2) as handed:
        rows, stored, pivot = _ilut(
            A.indptr, A.indices, A.diag, A.data, *limits, indptr, diag, handed.slots, deadline.halt()
        )
        deadline.check()
        if rows < A.n:
            return _stopped(A, rows, stored, pivot)
        indices = handed.take(0, A.indices.dtype)[:stored].copy()
        data = handed.take(1, A.data.dtype)[:stored].copy()
    return Factored(rows, stored, pivot, indptr, indices, data, diag)


def ilut_crout(A, tau_rows, tau_columns, fill, most) -> Factored:
    """ILUT in Crout's form (Li, Saad & Chow 2003); see kernels/reference/threshold.py.

    As `ilut`; tau_rows (n,) is for rows of U, tau_columns (n,) for columns of L before the division by the pivot, and
    the columns of L are limited as the columns of A.
    """
    columns = transposed(A.indptr, A.indices, A.data)
    begin, limits = np.zeros((2, A.n + 1), np.int64), (tau_rows, tau_columns, float(fill), most, _capacity(A.nnz, most))
    with Handed(4) as handed:
        rows, stored, pivot = _ilut_crout(
            A.indptr, A.indices, A.diag, A.data, *columns, *limits, begin[0], begin[1], handed.slots, deadline.halt()
        )
        deadline.check()
        if rows < A.n:
            return _stopped(A, rows, stored, pivot)
        l_indices, l_data, u_indices, u_data = (handed.take(e, (A.indices, A.data)[e % 2].dtype) for e in range(4))
    indptr, diag = np.zeros_like(begin[0]), np.empty(A.n, np.int64)
    indices, data = np.empty(stored, A.indices.dtype), np.empty(stored, A.data.dtype)
    _joined(*transposed(begin[0], l_indices, l_data), begin[1], u_indices, u_data, indptr, indices, data, diag)
    return Factored(rows, stored, pivot, indptr, indices, data, diag)


def ict(L, tau, fill, most) -> Factored:
    """ICT, column by column from the lower triangle of A; see kernels/reference/threshold.py.

    L : checked CSR with a full diagonal, on the host; entries above it are not read.  tau (n,) is for columns before
        the division by the root of the pivot; fill, most as in `ilut`, of columns of the lower triangle and entries of
        the factor.
    """
    bounds, stored = _ranges(L, most), 0
    made = _ict_in_ranges(L, bounds, tau, fill, most)
    for first, last, found in zip(bounds[:-1].tolist(), bounds[1:].tolist(), made, strict=True):
        stored += found.stored
        if found.rows < last - first:
            return _stopped(L, first + found.rows, stored, found.pivot)
    pivot, indptr, indices, data = made[-1].pivot, made[0].indptr, made[0].indices, made[0].data
    if len(made) > 1:
        ends = np.cumsum([0, *(found.stored for found in made)])
        indptr = np.concatenate([ends[:1], *(found.indptr[1:] + end for found, end in zip(made, ends))])
        indices, data = _behind_one_another(made, ends[-1])
    return Factored(L.n, stored, pivot, indptr, indices, data, indptr[1:] - 1)


def _ranges(L, most):
    """The rows at which ranges for the threads begin, n last: no entry couples rows of two of them, as in the diagonal
    blocks of subdomains. One range if entries are limited to `most`, which are counted in order."""
    threads = get_num_threads()
    pieces = min(RANGES * threads, L.nnz // RANGE) if threads > 1 and most >= L.n * (L.n + 1) // 2 else 1
    if pieces < 2:
        return np.array([0, L.n])
    leftmost = np.minimum.accumulate(L.indices[L.indptr[:-1]][::-1])[::-1]  # of this row and all behind it
    begins = np.flatnonzero(leftmost >= np.arange(L.n))
    wanted = np.searchsorted(L.indptr, np.arange(pieces) * (L.nnz // pieces))
    return np.unique(np.append(begins[np.searchsorted(begins, wanted, "right") - 1], L.n))


def _ict_in_ranges(L, bounds, tau, fill, most) -> list[Factored]:
    """`_ict_in_range` for all ranges."""
    return each(bounds.size - 1, lambda t: _ict_in_range(L, *bounds[t : t + 2].tolist(), tau, fill, most))


def _ict_in_range(L, first, last, tau, fill, most) -> Factored:
    """The rows first..last - 1 of the factor, which no entry couples to others, with the numbers of all columns."""
    columns = _lower_columns(L, first, last)
    begin, capacity = np.zeros(last - first + 1, np.int64), _capacity(int(columns[0][-1]), most)
    with Handed(2) as handed:
        arguments = tau[first:last], float(fill), most, capacity, begin, handed.slots, deadline.halt()
        done, stored, pivot = _ict(*columns, *arguments)
        deadline.check()
        if done < last - first:
            return Factored(done, stored, pivot, *(begin[:0],) * 4)
        kinds = columns[1].dtype, columns[2].dtype
        del columns
        indptr, indices, data = transposed(begin, *(handed.take(k, kind) for k, kind in enumerate(kinds)))
    if first:
        indices += indices.dtype.type(first)
    return Factored(done, stored, pivot, indptr, indices, data, begin[:0])


def _behind_one_another(made, total):
    """The indices and the data of ranges in one array each, (total,)."""
    indices, data = np.empty(total, made[0].indices.dtype), np.empty(total, made[0].data.dtype)
    end = 0
    for found in made:
        for whole, part in ((indices, found.indices), (data, found.data)):
            whole[end : end + found.stored] = part
        end += found.stored
    return indices, data


def _stopped(A, rows, stored, pivot) -> Factored:
    nothing = np.empty(0, np.int64)
    return Factored(rows, stored, pivot, nothing, A.indices[:0], A.data[:0], nothing)


def _capacity(nnz: int, most: int) -> int:
    """The number of entries that get memory at first; it doubles if there are more."""
    return max(min(2 * nnz, most), 1)


def _lower_columns(A, first, last):
    """The lower triangle of the rows first..last - 1 of A, which no entry couples to others, by columns: (indptr,
    indices, data), sorted, so that the diagonal is first in each; numbered from 0 on."""
    starts, rows = np.zeros(last - first + 1, np.int64), slice(first, last)
    nnz = int((A.diag[rows] - A.indptr[rows]).sum(dtype=np.int64)) + last - first
    indices, values = np.empty(nnz, A.indices.dtype), np.empty(nnz, A.data.dtype)
    _transpose_lower(first, A.indptr[rows], A.indices, A.diag[rows], A.data, starts, indices, values)
    return starts, indices, values


@compiled
def _transpose_lower(first, indptr, indices, diag, data, starts, rows, values):
    """As `_lower_columns`.  starts (n + 1,) int64, zeros, rows (nnz,), values (nnz,) : out."""
    n = diag.size
    for i in range(n):
        for p in range(indptr[i], diag[i] + 1):
            starts[indices[p] - first + 1] += 1
    for j in range(n):
        starts[j + 1] += starts[j]
    place = starts[:-1].copy()
    for i in range(n):
        for p in range(indptr[i], diag[i] + 1):
            j = indices[p] - first
            q = place[j]
            place[j] = q + 1
            rows[q] = i
            values[q] = data[p]


@compiled
def _joined(l_indptr, l_indices, l_data, u_indptr, u_indices, u_data, indptr, indices, data, diag):
    """L without its diagonal and U in one matrix, both by rows, and the places of its diagonal.  indptr : zeros."""
    m = 0
    for i in range(diag.size):
        for p in range(l_indptr[i], l_indptr[i + 1]):
            indices[m] = l_indices[p]
            data[m] = l_data[p]
            m += 1
        diag[i] = m
        for p in range(u_indptr[i], u_indptr[i + 1]):
            indices[m] = u_indices[p]
            data[m] = u_data[p]
            m += 1
        indptr[i + 1] = m


@compiled
def allowed(fill, entries, n):
    """The number of entries of a part that are kept if A has `entries` there."""
    return n if np.isinf(fill) else max(1, int(min(fill * entries, n)))


@compiled
def _ilut(indptr, indices, diag, a, tau, fill, most, capacity, begin, pivots, slots, halt):
    """Row by row: scatter into w, subtract multiples of rows of U in ascending order, from a heap; keep, store."""
    n = diag.size
    columns, values = np.empty(capacity, indices.dtype), np.empty(capacity, a.dtype)
    w, size = np.empty(n, a.dtype), np.empty(n)
    seen = np.full(n, -1, indices.dtype)  # the last row that touched w[j]
    heap, lower, upper = np.empty_like(seen), np.empty_like(seen), np.empty_like(seen)
    stored = 0
    for i in range(n):
        waiting = below = above = 0
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            w[j] = a[p]
            seen[j] = i
            if j < i:
                heap[waiting] = j
                waiting += 1
            elif j > i:
                upper[above] = j
                above += 1
        most_below, most_above = allowed(fill, waiting, n), allowed(fill, above, n)
        while waiting > 0:
            if halted(halt):
                return i, stored, w[i]
            k = heap[0]
            waiting = pop(heap, waiting)
            if abs(w[k]) <= tau[i]:
                continue
            factor = divide(w[k], values[pivots[k]])
            if not np.isfinite(factor):
                return i, stored, factor
            w[k] = factor
            lower[below] = k
            below += 1
            for q in range(pivots[k] + 1, begin[k + 1]):
                j = columns[q]
                if seen[j] != i:
                    seen[j] = i
                    w[j] = 0
                    if j < i:
                        waiting = push(heap, waiting, j)
                    else:
                        upper[above] = j
                        above += 1
                w[j] -= factor * values[q]
        below = strongest(lower, below, 0.0, most_below, w, size)
        above = strongest(upper, above, tau[i], most_above, w, size)
        if below < 0 or above < 0 or not np.isfinite(w[i]) or w[i] == 0:
            return i, stored, w[i]
        needed = stored + below + 1 + above
        if needed > most:
            return i, needed, w[i]
        columns, values = grown(columns, stored, needed), grown(values, stored, needed)
        for e in range(below):
            columns[stored] = lower[e]
            values[stored] = w[lower[e]]
            stored += 1
        columns[stored] = i
        values[stored] = w[i]
        pivots[i] = stored
        stored += 1
        for e in range(above):
            columns[stored] = upper[e]
            values[stored] = w[upper[e]]
            stored += 1
        begin[i + 1] = stored
    hand_over(columns, slots, 0)
    hand_over(values, slots, 1)
    return n, stored, w[n - 1]


@compiled
def _ilut_crout(
    indptr,
    indices,
    diag,
    a,
    c_indptr,
    c_indices,
    c_data,
    tau_rows,
    tau_columns,
    fill,
    most,
    capacity,
    l_begin,
    u_begin,
    slots,
    halt,
):
    """Step k makes row k of U in z and column k of L in w from the rows of U and columns of L before.

    Each earlier row of U has a place u_next: its first entry in a column >= k, and stands in the list of that column;
    so the list of k holds the rows i with u_ik != 0, and their later entries lie behind that place. The same for L.
    """
    n = diag.size
    u_columns, u_values = np.empty(capacity, indices.dtype), np.empty(capacity, a.dtype)
    l_rows, l_values = np.empty(capacity, indices.dtype), np.empty(capacity, a.dtype)
    u_next, l_next = np.empty(n, np.int64), np.empty(n, np.int64)
    z, w, size = np.empty(n, a.dtype), np.empty(n, a.dtype), np.empty(n)
    z_seen, w_seen = np.full(n, -1, indices.dtype), np.full(n, -1, indices.dtype)
    u_head, l_head = np.full(n, -1, indices.dtype), np.full(n, -1, indices.dtype)
    u_follower, l_follower = np.empty_like(u_head), np.empty_like(u_head)
    right, under = np.empty_like(u_head), np.empty_like(u_head)
    with_l, with_u = np.empty_like(u_head), np.empty_like(u_head)
    stored = 0
    for k in range(n):
        z[k] = a[diag[k]]
        z_seen[k] = k
        rights = unders = 0
        for p in range(diag[k] + 1, indptr[k + 1]):
            j = indices[p]
            z[j] = a[p]
            z_seen[j] = k
            right[rights] = j
            rights += 1
        for p in range(c_indptr[k], c_indptr[k + 1]):
            i = c_indices[p]
            if i > k:
                w[i] = c_data[p]
                w_seen[i] = k
                under[unders] = i
                unders += 1
        if halted(halt):
            return k, stored, z[k]
        most_right, most_under = allowed(fill, rights, n), allowed(fill, unders, n)
        l_count, u_count = members(l_head, l_follower, k, with_l), members(u_head, u_follower, k, with_u)
        for e in range(l_count):
            i = with_l[e]
            factor = l_values[l_next[i]]
            for q in range(u_next[i], u_begin[i + 1]):
                j = u_columns[q]
                if z_seen[j] != k:
                    z_seen[j] = k
                    z[j] = 0
                    right[rights] = j
                    rights += 1
                z[j] -= factor * u_values[q]
        for e in range(u_count):
            i = with_u[e]
            factor = u_values[u_next[i]]
            for q in range(l_next[i], l_begin[i + 1]):
                j = l_rows[q]
                if j > k:
                    if w_seen[j] != k:
                        w_seen[j] = k
                        w[j] = 0
                        under[unders] = j
                        unders += 1
                    w[j] -= l_values[q] * factor
        for e in range(l_count):
            i = with_l[e]
            l_next[i] += 1
            enlist(l_head, l_follower, i, l_next[i], l_begin[i + 1], l_rows)
        for e in range(u_count):
            i = with_u[e]
            u_next[i] += 1
            enlist(u_head, u_follower, i, u_next[i], u_begin[i + 1], u_columns)
        rights = strongest(right, rights, tau_rows[k], most_right, z, size)
        unders = strongest(under, unders, tau_columns[k], most_under, w, size)
        good = rights >= 0 and unders >= 0 and np.isfinite(z[k]) and z[k] != 0
        for e in range(unders):
            w[under[e]] = divide(w[under[e]], z[k])
            good &= np.isfinite(w[under[e]])
        if not good:
            return k, stored, z[k]
        stored += rights + 1 + unders
        if stored > most:
            return k, stored, z[k]
        u_used, l_used = u_begin[k], l_begin[k]
        u_columns = grown(u_columns, u_used, u_used + rights + 1)
        u_values = grown(u_values, u_used, u_used + rights + 1)
        l_rows, l_values = grown(l_rows, l_used, l_used + unders), grown(l_values, l_used, l_used + unders)
        u_columns[u_used] = k
        u_values[u_used] = z[k]
        for e in range(rights):
            u_columns[u_used + 1 + e] = right[e]
            u_values[u_used + 1 + e] = z[right[e]]
        for e in range(unders):
            l_rows[l_used + e] = under[e]
            l_values[l_used + e] = w[under[e]]
        u_begin[k + 1], l_begin[k + 1] = u_used + 1 + rights, l_used + unders
        u_next[k], l_next[k] = u_used + 1, l_used
        enlist(u_head, u_follower, k, u_next[k], u_begin[k + 1], u_columns)
        enlist(l_head, l_follower, k, l_next[k], l_begin[k + 1], l_rows)
    hand_over(l_rows, slots, 0)
    hand_over(l_values, slots, 1)
    hand_over(u_columns, slots, 2)
    hand_over(u_values, slots, 3)
    return n, stored, z[n - 1]


@compiled
def _ict(c_indptr, c_indices, c_data, tau, fill, most, capacity, begin, slots, halt):
    """Step k makes column k of L in w from the columns before that have an entry in row k; lists as in Crout's form."""
    n = c_indptr.size - 1
    following = np.empty(n, np.int64)
    rows, values = np.empty(capacity, c_indices.dtype), np.empty(capacity, c_data.dtype)
    w, size = np.empty(n, c_data.dtype), np.empty(n)
    seen, head = np.full(n, -1, c_indices.dtype), np.full(n, -1, c_indices.dtype)
    follower, under, before = np.empty_like(head), np.empty_like(head), np.empty_like(head)
    square = c_data[0].real
    for k in range(n):
        square = c_data[c_indptr[k]].real
        unders = 0
        for p in range(c_indptr[k] + 1, c_indptr[k + 1]):
            i = c_indices[p]
            w[i] = c_data[p]
            seen[i] = k
            under[unders] = i
            unders += 1
        if halted(halt):
            return k, begin[k], square
        limit = allowed(fill, unders, n)
        count = members(head, follower, k, before)
        for e in range(count):
            j = before[e]
            own = values[following[j]]
            factor = np.conj(own)
            square -= (own * factor).real
            for q in range(following[j] + 1, begin[j + 1]):
                i = rows[q]
                if seen[i] != k:
                    seen[i] = k
                    w[i] = 0
                    under[unders] = i
                    unders += 1
                w[i] -= values[q] * factor
            following[j] += 1
            enlist(head, follower, j, following[j], begin[j + 1], rows)
        unders = strongest(under, unders, tau[k], limit, w, size)
        stored = begin[k]
        if unders < 0 or not np.isfinite(square) or square <= 0:
            return k, stored, square
        w[k] = np.sqrt(square)
        for e in range(unders):
            w[under[e]] = divide(w[under[e]], w[k])
            if not np.isfinite(w[under[e]]):
                return k, stored, square
        needed = stored + 1 + unders
        if needed > most:
            return k, needed, square
        rows, values = grown(rows, stored, needed), grown(values, stored, needed)
        rows[stored] = k
        values[stored] = w[k]
        for e in range(unders):
            rows[stored + 1 + e] = under[e]
            values[stored + 1 + e] = w[under[e]]
        begin[k + 1] = needed
        following[k] = stored + 1
        enlist(head, follower, k, following[k], needed, rows)
    hand_over(rows, slots, 0)
    hand_over(values, slots, 1)
    return n, begin[n], square
