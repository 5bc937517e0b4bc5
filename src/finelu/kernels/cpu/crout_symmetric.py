"""Incomplete U^T D U in Crout's form with pivots of one or two rows, which defers what would make U^-1 large.

Part of a level of a multilevel factorization (Bollhoefer and Saad 2006; Li and Saad 2005; pairs: Duff and Pralet 2005).
Rows that make no good pivot are deferred: they and the interface between the parts make the Schur complement, which is
the matrix of the next level. Parts do not depend on each other, so threads take them one by one; sums run in ascending
order of the pivots, and the bits do not depend on the number of threads.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from finelu.errors import MatrixError, ParameterError
from finelu.kernels.cpu.crout import farthest, feed, first_coupling
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.arrays import Handed, grown, hand_over
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.crew import run
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lists import members
from finelu.kernels.cpu.runtime.sort import sort, strongest

ESTIMATE, PIVOT = 1, 2  # why a row was deferred
BLOCKS = 256  # of rows of the Schur complement, which threads take one by one
ALONE = 2**12  # with fewer entries it is done before another thread has come

# A row of U while it is made: from BEGIN on entries in columns that were deferred, from FRONT on in columns that are
# pivots, and from NEXT to END, in ascending order, in columns whose turn has not come and of the interface.
BEGIN, FRONT, NEXT, END = range(4)


@dataclass(frozen=True, eq=False)
class SymmetricCroutFactors:
    """A ~ U^T D U (Hermitian: U^H D U) where both a row and its column belong to pivots; see `crout_symmetric`.

    deferred (n,) uint8 : 0, or why the row was deferred: 1, the estimate is too large; 2, the pivot is unfit.
    d (n,), e (n,) : the diagonal of D, and e[k] = D[k, k + 1] != 0 where k and k + 1 are one pivot; 0 elsewhere.
    indptr (n + 1,), indices, data : rows of U without their unit diagonal, ascending, in A's numbering; there are
        entries in columns of pivots, of rows deferred and of the interface, none inside of a pivot of two rows.
    interface : the first row of the interface.  largest_estimate : of the pivots, 0 if there is none.
    dropped_by_tolerance, dropped_by_fill_limit : entries that were not 0.
    deferred_by_estimate, deferred_by_pivot : rows.  pairs_taken : pivots of two rows.
    """

    deferred: np.ndarray
    d: np.ndarray
    e: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    interface: int
    largest_estimate: float
    dropped_by_tolerance: int
    dropped_by_fill_limit: int
    deferred_by_estimate: int
    deferred_by_pivot: int
    pairs_taken: int

    @property
    def n(self) -> int:
        return self.d.size

    @property
    def nnz(self) -> int:
        """The entries of U without its diagonal, and those of D in its upper triangle."""
        pivots = self.interface - self.deferred_by_estimate - self.deferred_by_pivot
        return self.indices.size + pivots + self.pairs_taken


class SchurComplement(NamedTuple):
    """S by rows, sorted, every diagonal entry stored: indptr (m + 1,), indices, data.

    numbers (m,) int64 : the row of A that each row is.  dropped : entries that were not 0 and are left out.
    first_bad : the first row of S with an entry in its upper triangle whose magnitude is not finite, or -1.
    """

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    numbers: np.ndarray
    dropped: int
    first_bad: int


def crout_symmetric(A, pairs, parts, drop_tol, condest, pivot_tol, room, hermitian) -> SymmetricCroutFactors:
    """Factor the parts of A, row by row, rows without a good pivot deferred; see kernels/reference/crout_symmetric.py.

    A : CSR (n, n), sorted, both triangles; A = A^T, or A = A^H if `hermitian`, which is taken on trust. Diagonal
        entries need not be stored. It should be scaled: `drop_tol` and `pivot_tol` compare with 1.
    pairs (n,) uint8 : 1 where k and k + 1 are tried as one pivot, before each of them is tried alone.
    parts (p + 1,) : part t has rows parts[t]..parts[t + 1] - 1; rows from parts[p] on, the interface, are no pivots.
    drop_tol : u_kj is dropped if |u_kj| max(1, |xi|) <= drop_tol, where |xi| estimates the norm of row k of U^-T.
    condest : rows with a larger |xi| are deferred.
    pivot_tol : so are pivots that would make an entry of U larger than 1 / pivot_tol (0: only those that overflow).
    room (n,) : how many entries of a row of U are kept at most, the largest ones.
    Raises MatrixError if an entry couples two parts or the diagonal of a Hermitian A is not real, ParameterError for
    pairs or parts that are none.
    Cost: the multiplications and the sorting of what a step touches; 10 arrays (n,) and 9 more for each
    thread, and U twice while the rows of the threads are put together.
    """
    n = A.indptr.size - 1
    pairs, parts = np.ascontiguousarray(pairs, np.uint8), np.ascontiguousarray(parts, np.int64)
    room = np.ascontiguousarray(room, np.int64)
    _check(A, pairs, parts, drop_tol, condest, pivot_tol, room, hermitian)
    deferred, d, e = np.zeros(n, np.uint8), np.zeros(n, A.data.dtype), np.zeros(n, A.data.dtype)
    place, owner = np.zeros((n, 4), np.int64), np.empty(parts.size - 1, np.int64)
    lists = np.full(n, -1, A.indices.dtype), np.empty(n, A.indices.dtype)
    matrix, nu = (A.indptr, A.indices, A.data), np.zeros(n, A.data.dtype)
    limits = float(drop_tol), float(condest), float(pivot_tol), 1 / pivot_tol if pivot_tol > 0 else np.inf
    result = deferred, d, e
    made = _shared(
        _factor,
        _Made,
        A,
        parts.size - 1,
        matrix,
        pairs,
        parts,
        limits,
        room,
        hermitian,
        place,
        lists,
        nu,
        *result,
        owner,
    )
    indptr, indices, data = _joined(n, parts, place[:, BEGIN], place[:, END], owner, made, A)
    reasons = np.bincount(deferred, minlength=3)
    return SymmetricCroutFactors(
        deferred,
        d,
        e,
        indptr,
        indices,
        data,
        int(parts[-1]),
        max((one.largest for one in made), default=0.0),
        sum(one.by_tolerance for one in made),
        sum(one.by_limit for one in made),
        int(reasons[ESTIMATE]),
        int(reasons[PIVOT]),
        int(np.count_nonzero(e)),
    )


def schur_complement_symmetric(A, factors: SymmetricCroutFactors, drop_tol, hermitian) -> SchurComplement:
    """S = C - U_C^T D U_C (Hermitian: U_C^H D U_C) of the rows deferred and the interface, in ascending order.

    A, hermitian : as for `crout_symmetric`, which made `factors`.
    drop_tol : off the diagonal s_ij is dropped if |s_ij| <= drop_tol min(m_i, m_j), m_i the largest magnitude of row i,
        as in `crout.schur_complement`.
    One triangle is computed and mirrored, so that S is symmetric (Hermitian) in its bits.
    An entry that overflows is kept as it is: look at `first_bad`.
    Cost: half of the products of entries of a row of U_C; room for the triangle before and for S after the dropping.
    """
    if not drop_tol >= 0:
        raise ParameterError(f"schur_complement_symmetric: drop_tol={drop_tol!r}; a number >= 0 is needed.")
    outer = factors.deferred != 0
    outer[factors.interface :] = True
    numbers = np.flatnonzero(outer)
    m = numbers.size
    target = np.full(outer.size, -1, A.indices.dtype)
    target[numbers] = np.arange(m)
    u_indptr = np.zeros_like(factors.indptr)
    with Handed(2) as handed:
        _restricted(factors.indptr, factors.indices, factors.data, target, u_indptr, handed.slots)
        U = u_indptr, handed.take(0, A.indices.dtype), handed.take(1, A.data.dtype)
    columns = np.zeros(m + 1, np.int64), np.empty_like(U[1]), np.empty(U[1].size, np.int64)
    _by_columns(U[0], U[1], *columns)
    blocks = min(BLOCKS, m)
    items, owner = np.arange(blocks + 1) * m // max(blocks, 1), np.empty(blocks, np.int64)
    begin, end = np.zeros(m, np.int64), np.zeros(m, np.int64)
    matrix = A.indptr, A.indices, A.data
    made = _shared(
        _schur,
        _MadeRows,
        A,
        blocks,
        matrix,
        numbers,
        target,
        U,
        columns,
        factors.d,
        factors.e,
        hermitian,
        items,
        begin,
        end,
        owner,
    )
    bad = min((one.bad_row for one in made), default=m)
    starts, triangle = np.zeros(m + 1, np.int64), _joined(m, items, begin, end, owner, made, A)
    with Handed(2) as handed:
        dropped = _mirrored(*triangle, float(drop_tol), hermitian, starts, handed.slots)
        indices, data = handed.take(0, A.indices.dtype), handed.take(1, A.data.dtype)
    return SchurComplement(starts, indices, data, numbers, dropped, bad if bad < m else -1)


def _check(A, pairs, parts, drop_tol, condest, pivot_tol, room, hermitian) -> None:
    n = A.indptr.size - 1
    for name, value in (("drop_tol", drop_tol), ("condest", condest), ("pivot_tol", pivot_tol)):
        if not value >= 0 or (np.isinf(value) and name != "condest"):
            raise ParameterError(f"crout_symmetric: {name}={value!r}; a finite number >= 0 is needed.")
    if parts.size < 1 or parts[0] != 0 or parts[-1] > n or (np.diff(parts) < 0).any():
        raise ParameterError(f"crout_symmetric: parts must ascend from 0 to at most n = {n}.")
    if pairs.shape != (n,) or room.shape != (n,) or (room < 0).any():
        raise ParameterError(f"crout_symmetric: pairs and room must have n = {n} elements, none of room below 0.")
    first = np.flatnonzero(pairs)
    alone = np.isin(first + 1, parts) | (first + 1 >= parts[-1]) | np.isin(first + 1, first)
    if alone.any():
        k = first[alone.argmax()]
        raise ParameterError(
            f"crout_symmetric: pairs[{k}] = 1, but rows {k} and {k + 1} are not of one part, or {k + 1} begins a pair."
        )
    i, j = first_coupling(parts, A.indptr, A.indices)
    if i >= 0:
        raise MatrixError(
            f"crout_symmetric: the entry in row {i}, column {j} couples two parts; put one of the two rows"
            " into the interface."
        )
    if hermitian and A.data.dtype.kind == "c":
        i = _first_not_real(A.indptr, A.indices, A.data)
        if i >= 0:
            raise MatrixError(f"crout_symmetric: the diagonal entry of row {i} is not real, so A is not Hermitian.")


@compiled
def _first_not_real(indptr, indices, data):
    for i in range(indptr.size - 1):
        for p in range(indptr[i], indptr[i + 1]):
            if indices[p] == i and data[p].imag != 0:
                return i
    return -1


def _shared(kernel, kind, A, items, *args) -> list[Any]:
    """What kernel(state, slots, ...) made in each thread that took some of the items, which it claims by state[0].

    kind : of the result, indices and data from the slots and what the kernel returned: `taken`, how many items they
    are of; `slot`, from state[1], which tells the threads apart; and the rest.
    """
    state, made, complete, lock = np.zeros(2, np.int64), [], threading.Event(), threading.Lock()
    failed = []

    def work_on():
        try:
            with Handed(2) as handed:
                numbers = kernel(state, handed.slots, *args)
                one = kind(handed.take(0, A.indices.dtype), handed.take(1, A.data.dtype), *numbers)
            with lock:
                if one.taken:
                    made.append(one)
                if sum(other.taken for other in made) == items:
                    complete.set()
        except BaseException as error:
            failed.append(error)
            complete.set()
            raise

    run(work_on, items if A.indices.size >= ALONE else 1)
    complete.wait()  # for those that are still at their last items
    if failed:
        raise failed[0]
    return made


def _joined(n, items, begin, end, owner, made, A):
    """The rows that the threads have made, each in arrays of its own, as one matrix: indptr (n + 1,), indices, data."""
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(end - begin, out=indptr[1:])
    indices, data = np.empty(indptr[n], A.indices.dtype), np.empty(indptr[n], A.data.dtype)
    for one in made:
        _copy(items, owner, one.slot, begin, end, one.indices, one.data, indptr, indices, data)
    return indptr, indices, data


@compiled
def _copy(items, owner, slot, begin, end, own_indices, own_data, indptr, indices, data):
    for t in range(owner.size):
        if owner[t] == slot:
            for i in range(items[t], items[t + 1]):
                shift = indptr[i] - begin[i]
                for q in range(begin[i], end[i]):
                    indices[q + shift] = own_indices[q]
                    data[q + shift] = own_data[q]


class _Made(NamedTuple):
    """What one thread made: rows in indices and data; which part or block is whose, `owner` tells."""

    indices: Any
    data: Any
    taken: int
    slot: int
    largest: float
    by_tolerance: int
    by_limit: int


@compiled
def _multipliers(u, v, p, d, e, hermitian):
    """(u, v) D of a pivot of two rows p and p + 1; the conjugates of u and v if Hermitian."""
    if hermitian:
        u, v = np.conj(u), np.conj(v)
        return u * d[p] + v * np.conj(e[p]), u * e[p] + v * d[p + 1]
    return u * d[p] + v * e[p], u * e[p] + v * d[p + 1]


@compiled
def _subtract(factor, p, place, columns, values, k, z, seen, found, count):
    """z -= factor times the active entries of row p of U; returns how many columns are in `found` then."""
    for part in range(2):
        for q in range(np.uint64(place[p, 2 * part]), np.uint64(place[p, 2 * part + 1])):  # BEGIN to FRONT, NEXT to END
            j = np.uint64(columns[q])  # unsigned: no negative places to look for
            if seen[j] != k:
                seen[j] = k
                z[j] = 0
                found[count] = j
                count += 1
            z[j] -= factor * values[q]
    return count


@compiled
def _remaining(k, matrix, deferred, before, length, place, columns, values, d, e, hermitian, z, seen, found):
    """Row k of what the pivots before have left of A, in z; found[:count] are its columns besides k; returns count.

    before[:length] : the rows of U with an entry in column k, which is the one at NEXT.
    """
    indptr, indices, data = matrix
    z[k] = 0
    seen[k] = k
    count = 0
    for p in range(indptr[k], indptr[k + 1]):
        j = indices[p]
        if j >= k or deferred[j]:
            z[j] = data[p]
            seen[j] = k
            if j != k:
                found[count] = j
                count += 1
    done = -1
    for m in range(length):
        p = np.int64(before[m])
        if p == done:
            continue
        if p > 0 and e[p - 1] != 0:
            p -= 1
        q = place[p, NEXT]
        if e[p] == 0:
            u = np.conj(values[q]) if hermitian else values[q]
            count = _subtract(u * d[p], p, place, columns, values, k, z, seen, found, count)
        else:
            done = p + 1
            r = place[done, NEXT]
            none = d[p] - d[p]
            u = values[q] if q < place[p, END] and columns[q] == k else none
            v = values[r] if r < place[done, END] and columns[r] == k else none
            u, v = _multipliers(u, v, p, d, e, hermitian)
            count = _subtract(u, p, place, columns, values, k, z, seen, found, count)
            count = _subtract(v, done, place, columns, values, k, z, seen, found, count)
    if hermitian:
        z[k] = z[k].real
    return count


@compiled
def _advance(before, length, place, columns, stop, head, follower):
    """Column k, at NEXT in the rows before[:length] of U, is a pivot for now: on to the lists of what comes next."""
    for m in range(length):
        p = before[m]
        place[p, NEXT] += 1
        _enlist(p, place, columns, stop, head, follower)


@compiled
def _enlist(p, place, columns, stop, head, follower):
    q = place[p, NEXT]
    if q < place[p, END] and columns[q] < stop:
        j = columns[q]
        follower[p] = head[j]
        head[j] = p


@compiled
def _defer(before, length, place, columns, values):
    """Column k, just passed by the rows before[:length] of U, goes to their columns that were deferred."""
    for m in range(length):
        p = before[m]
        q, front = place[p, NEXT] - 1, place[p, FRONT]
        columns[q], columns[front] = columns[front], columns[q]
        values[q], values[front] = values[front], values[q]
        place[p, FRONT] += 1


@compiled
def _fit(k, z, found, count, pivot_tol):
    """Whether z[k] is a pivot: not too small for its row; its reciprocal and products of multipliers are finite."""
    pivot = abs(z[k])
    largest = pivot - pivot
    for m in range(count):
        magnitude = abs(z[found[m]])
        if not np.isfinite(magnitude):
            return False
        largest = max(largest, magnitude)
    if not pivot > pivot_tol * largest:
        return False
    twice = largest + largest  # what a complex division meets on its way
    one = z.dtype.type(1)
    return np.isfinite(pivot) and np.isfinite(one / pivot) and np.isfinite(twice / pivot * twice)


@compiled
def _divided(k, z, found, count):
    for m in range(count):
        z[found[m]] = divide(z[found[m]], z[k])


@compiled
def _size(x):
    return max(abs(x.real), abs(x.imag))


@compiled
def _inverse(a, e, c, hermitian):
    """(p, q, r, largest): D^-1 = [[p, -q], [-q or its conjugate, r]] of D = [[a, e], [e or its conjugate, c]]."""
    largest = max(_size(a), _size(e), _size(c))
    scale = a - a + largest
    a, e, c = divide(a, scale), divide(e, scale), divide(c, scale)
    determinant = a * c - e * (np.conj(e) if hermitian else e)
    p, q, r = divide(c, determinant), divide(e, determinant), divide(a, determinant)
    return divide(p, scale), divide(q, scale), divide(r, scale), largest


@compiled
def _fit_pair(inverse, z, w, found, count, most, hermitian):
    """As `_fit`, for the pivot of two rows with this inverse and the rows z and w: no multiplier above `most`."""
    p, q, r, size = inverse
    if not np.isfinite(abs(p)) or not np.isfinite(abs(q)) or not np.isfinite(abs(r)):
        return False
    q_conj = np.conj(q) if hermitian else q
    for m in range(count):
        j = found[m]
        u, v = abs(p * z[j] - q * w[j]), abs(r * w[j] - q_conj * z[j])
        largest = max(u, v)
        if not np.isfinite(u) or not np.isfinite(v) or largest > most or not np.isfinite(size * largest * largest):
            return False
    return True


@compiled
def _divided_pair(inverse, z, w, found, count, hermitian):
    p, q, r, _ = inverse
    q_conj = np.conj(q) if hermitian else q
    for m in range(count):
        j = found[m]
        z[j], w[j] = p * z[j] - q * w[j], r * w[j] - q_conj * z[j]


@compiled
def _united(k, z, z_seen, z_found, z_count, w, w_seen, w_found, w_count):
    """Columns of either of the rows k and k + 1 in w_found, with zeros where one has none; returns their number."""
    for m in range(w_count):
        j = w_found[m]
        if z_seen[j] != k:
            z[j] = 0
    count = w_count
    for m in range(z_count):
        j = z_found[m]
        if j != k + 1 and w_seen[j] != k + 1:
            w[j] = 0
            w_found[count] = j
            count += 1
    return count


@compiled
def _keep(k, z, found, count, tau, limit, size, used, columns, values, place):
    """Append to U what is kept of row k; returns columns, values, how many were dropped by tolerance, by the limit."""
    large = zeros = 0
    for m in range(count):
        j = found[m]
        magnitude = abs(z[j])
        zeros += magnitude == 0
        found[large] = j
        large += magnitude > tau
    kept = strongest(found, large, tau, limit, z, size) if limit > 0 else 0
    columns, values = grown(columns, used, used + kept), grown(values, used, used + kept)
    place[k, BEGIN] = place[k, FRONT] = used
    for m in range(kept):
        j = found[m]
        columns[used + m] = j
        values[used + m] = z[j]
        place[k, FRONT] += j < k
    place[k, NEXT], place[k, END] = place[k, FRONT], used + kept
    return columns, values, count - large - zeros, large - kept


@compiled
def _sort_rows(start, stop, place, columns, values, z, found):
    """Rows with columns that were deferred have lost their order."""
    for k in range(start, stop):
        begin, end = place[k, BEGIN], place[k, END]
        ascending = True
        for q in range(begin + 1, end):
            ascending &= columns[q - 1] < columns[q]
        if not ascending:
            for q in range(begin, end):
                found[q - begin] = columns[q]
                z[columns[q]] = values[q]
            sort(found, end - begin)
            for q in range(begin, end):
                columns[q] = found[q - begin]
                values[q] = z[columns[q]]


@compiled
def _factor(state, slots, matrix, pairs, parts, limits, room, hermitian, place, lists, nu, deferred, d, e, owner):
    """Step k makes row k of what is left; U by rows, in one list for each column the rows whose NEXT is there.

    What is indexed by a row or column of a part is of one thread alone; of the interface only z, w and `seen` are.
    """
    drop_tol, condest, pivot_tol, most = limits
    head, follower = lists
    t = fetch_add(state, 0, 1)
    here = t < owner.size
    slot = fetch_add(state, 1, 1) if here else 0
    n = room.size if here else 0
    z, w, size = np.empty(n, nu.dtype), np.empty(n, nu.dtype), np.empty(n)
    z_seen, w_seen = np.full(n, -1, head.dtype), np.full(n, -1, head.dtype)
    z_found, w_found = np.empty(n, head.dtype), np.empty(n, head.dtype)
    before, before_w = np.empty(n, head.dtype), np.empty(n, head.dtype)
    columns, values = np.empty(max(n, 1), head.dtype), np.empty(max(n, 1), nu.dtype)
    one = nu.dtype.type(1)
    taken = used = by_tolerance = by_limit = 0
    largest = 0.0
    while t < owner.size:
        taken += 1
        owner[t] = slot
        start, stop = parts[t], parts[t + 1]
        k = start
        while k < stop:
            length = members(head, follower, k, before)
            estimate = np.float64(abs(farthest(one, nu[k])))
            good = np.isfinite(estimate) and estimate <= condest
            if good:
                count = _remaining(
                    k, matrix, deferred, before, length, place, columns, values, d, e, hermitian, z, z_seen, z_found
                )
            else:
                count = 0
            _advance(before, length, place, columns, stop, head, follower)
            if good and pairs[k] and z_seen[k + 1] == k and z[k + 1] != 0:
                common = max(estimate, np.float64(abs(farthest(one, nu[k + 1]))))
                if np.isfinite(common) and common <= condest:
                    length_w = members(head, follower, k + 1, before_w)
                    count_w = _remaining(
                        k + 1,
                        matrix,
                        deferred,
                        before_w,
                        length_w,
                        place,
                        columns,
                        values,
                        d,
                        e,
                        hermitian,
                        w,
                        w_seen,
                        w_found,
                    )
                    # column k of row k + 1 is not active: k < k + 1 was not deferred
                    count_w = _united(k, z, z_seen, z_found, count, w, w_seen, w_found, count_w)
                    inverse = _inverse(z[k], z[k + 1], w[k + 1], hermitian)
                    if _fit_pair(inverse, z, w, w_found, count_w, most, hermitian):
                        _advance(before_w, length_w, place, columns, stop, head, follower)
                        d[k], e[k], d[k + 1] = z[k], z[k + 1], w[k + 1]
                        _divided_pair(inverse, z, w, w_found, count_w, hermitian)
                        z_found[:count_w] = w_found[:count_w]
                        tau = drop_tol / max(1.0, common)
                        for row in range(2):
                            columns, values, small, beyond = _keep(
                                k + row,
                                z if row == 0 else w,
                                z_found if row == 0 else w_found,
                                count_w,
                                tau,
                                room[k + row],
                                size,
                                used,
                                columns,
                                values,
                                place,
                            )
                            used = place[k + row, END]
                            by_tolerance += small
                            by_limit += beyond
                            feed(k + row, stop, one, nu, columns, values, place[k + row, NEXT], used)
                            _enlist(k + row, place, columns, stop, head, follower)
                        largest = max(largest, common)
                        k += 2
                        continue
            if good and _fit(k, z, z_found, count, pivot_tol):
                d[k] = z[k]
                _divided(k, z, z_found, count)
                columns, values, small, beyond = _keep(
                    k, z, z_found, count, drop_tol / max(1.0, estimate), room[k], size, used, columns, values, place
                )
                used = place[k, END]
                by_tolerance += small
                by_limit += beyond
                feed(k, stop, one, nu, columns, values, place[k, NEXT], used)
                _enlist(k, place, columns, stop, head, follower)
                largest = max(largest, estimate)
            else:
                deferred[k] = PIVOT if good else ESTIMATE
                _defer(before, length, place, columns, values)
            k += 1
        _sort_rows(start, stop, place, columns, values, z, z_found)
        t = fetch_add(state, 0, 1)
    hand_over(columns, slots, 0)
    hand_over(values, slots, 1)
    return taken, slot, largest, by_tolerance, by_limit


class _MadeRows(NamedTuple):
    """What one thread made of the Schur complement; bad_row : the first row with an entry that is not finite, or m."""

    indices: Any
    data: Any
    taken: int
    slot: int
    bad_row: int


@compiled
def _restricted(indptr, indices, data, target, begin, slots):
    """The columns of U with target[j] >= 0, numbered by it.

    begin (n + 1,) : zeros; out.  Indices and data come in the slots.
    """
    n = indptr.size - 1
    for k in range(n):
        begin[k + 1] = begin[k]
        for p in range(indptr[k], indptr[k + 1]):
            begin[k + 1] += target[indices[p]] >= 0
    columns, values = np.empty(begin[n], indices.dtype), np.empty(begin[n], data.dtype)
    q = 0
    for p in range(indices.size):
        if target[indices[p]] >= 0:
            columns[q] = target[indices[p]]
            values[q] = data[p]
            q += 1
    hand_over(columns, slots, 0)
    hand_over(values, slots, 1)


@compiled
def _by_columns(indptr, indices, starts, rows, places):
    """starts (m + 1,), zeros, rows and places of the entries of each of m columns, rows ascending: out."""
    m = starts.size - 1
    for j in indices:
        starts[j + 1] += 1
    for j in range(m):
        starts[j + 1] += starts[j]
    place = starts[:-1].copy()
    for k in range(indptr.size - 1):
        for p in range(indptr[k], indptr[k + 1]):
            q = place[indices[p]]
            place[indices[p]] = q + 1
            rows[q] = k
            places[q] = p


@compiled
def _first_from(i, columns, low, high):
    """The first place in low..high whose column is >= i, or high."""
    while low < high:
        middle = (low + high) >> 1
        if columns[middle] < i:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _subtract_from(factor, low, high, columns, values, i, w, seen, found, count):
    for q in range(np.uint64(low), np.uint64(high)):
        j = np.uint64(columns[q])
        if seen[j] != i:
            seen[j] = i
            w[j] = 0
            found[count] = j
            count += 1
        w[j] -= factor * values[q]
    return count


@compiled
def _schur(state, slots, matrix, numbers, target, U, by_columns, d, e, hermitian, items, begin, end, owner):
    """Row i of the upper triangle of S, for each pivot with an entry in column i of U_C, in ascending order."""
    indptr, indices, data = matrix
    u_indptr, columns, values = U
    starts, rows, places = by_columns
    t = fetch_add(state, 0, 1)
    here = t < owner.size
    slot = fetch_add(state, 1, 1) if here else 0
    m = numbers.size if here else 0
    w, seen, found = np.empty(m, data.dtype), np.full(m, -1, columns.dtype), np.empty(m, columns.dtype)
    own_indices, own_data = np.empty(max(m, 1), columns.dtype), np.empty(max(m, 1), data.dtype)
    taken = used = 0
    bad_row = numbers.size
    while t < owner.size:
        taken += 1
        owner[t] = slot
        for i in range(items[t], items[t + 1]):
            w[i] = 0
            seen[i] = i
            count = 0
            for p in range(indptr[numbers[i]], indptr[numbers[i] + 1]):
                j = target[indices[p]]
                if j >= i:
                    w[j] = data[p]
                    seen[j] = i
                    if j > i:
                        found[count] = j
                        count += 1
            done = -1
            for s in range(starts[i], starts[i + 1]):
                p, q = np.int64(rows[s]), places[s]
                if p == done:
                    continue
                if e[p] == 0 and not (p > 0 and e[p - 1] != 0):
                    u = np.conj(values[q]) if hermitian else values[q]
                    high = u_indptr[p + 1]
                    count = _subtract_from(u * d[p], q, high, columns, values, i, w, seen, found, count)
                    continue
                if e[p] == 0:
                    p -= 1
                done = p + 1
                q = _first_from(i, columns, u_indptr[p], u_indptr[done])
                r = _first_from(i, columns, u_indptr[done], u_indptr[done + 1])
                none = d[p] - d[p]
                u = values[q] if q < u_indptr[done] and columns[q] == i else none
                v = values[r] if r < u_indptr[done + 1] and columns[r] == i else none
                u, v = _multipliers(u, v, p, d, e, hermitian)
                count = _subtract_from(u, q, u_indptr[done], columns, values, i, w, seen, found, count)
                count = _subtract_from(v, r, u_indptr[done + 1], columns, values, i, w, seen, found, count)
            if hermitian:
                w[i] = w[i].real
            sort(found, count)
            own_indices = grown(own_indices, used, used + count + 1)
            own_data = grown(own_data, used, used + count + 1)
            begin[i] = used
            own_indices[used] = i
            own_data[used] = w[i]
            used += 1
            for c in range(count):
                j = found[c]
                if w[j] != 0:
                    own_indices[used] = j
                    own_data[used] = w[j]
                    used += 1
            end[i] = used
            for q in range(begin[i], used):
                if not np.isfinite(abs(own_data[q])):
                    bad_row = min(bad_row, i)
        t = fetch_add(state, 0, 1)
    hand_over(own_indices, slots, 0)
    hand_over(own_data, slots, 1)
    return taken, slot, bad_row


@compiled
def _mirrored(indptr, indices, data, drop_tol, hermitian, starts, slots):
    """Both triangles of what is kept of the upper one, whose rows begin with the diagonal; how many were dropped.

    starts (m + 1,) : zeros; out.  Indices and data come in the slots.
    """
    m = indptr.size - 1
    largest = np.zeros(m)
    for i in range(m):
        for p in range(indptr[i], indptr[i + 1]):
            magnitude, j = np.float64(abs(data[p])), indices[p]
            largest[i], largest[j] = max(largest[i], magnitude), max(largest[j], magnitude)
    lower = np.zeros(m, np.int64)
    keep = np.empty(indices.size, np.bool_)
    for i in range(m):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            keep[p] = j == i or not abs(data[p]) <= drop_tol * min(largest[i], largest[j])
            if keep[p]:
                starts[i + 1] += 1
                lower[j] += j != i
    for i in range(m):
        starts[i + 1] += starts[i] + lower[i]
        lower[i] = starts[i]
    out_indices, out = np.empty(starts[m], indices.dtype), np.empty(starts[m], data.dtype)
    for i in range(m):  # the rows before have put theirs of row i to its places, in ascending order
        for p in range(indptr[i], indptr[i + 1]):
            if keep[p]:
                j = indices[p]
                q = lower[i]
                lower[i] += 1
                out_indices[q] = j
                out[q] = data[p]
                if j != i:
                    q = lower[j]
                    lower[j] += 1
                    out_indices[q] = i
                    out[q] = np.conj(data[p]) if hermitian else data[p]
    hand_over(out_indices, slots, 0)
    hand_over(out, slots, 1)
    return 2 * indices.size - m - starts[m]
