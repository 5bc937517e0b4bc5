"""Inspection of a matrix: whether it is valid, where its diagonal is, and whether it equals its transpose."""

from __future__ import annotations

import math

import numpy as np

from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled, nested
from finelu.kernels.cpu.runtime.row_blocks import COPY, even_blocks, row_parts, threads_for
from finelu.kernels.cpu.runtime.sharing import run_items, shared_out
from finelu.threads import get_num_threads

CHUNK = 2**16  # numbers that a thread looks at at a time
SMALL = 2**15  # rows and entries up to which one pass takes less time than the division of the work
ROWS = 2**13  # rows of an item of `diagonal`


def inspect(indptr, indices, data, diag):
    """Soundness of a CSR matrix, and its diagonal; see the specification. Stops at the first corrupt row.

    Threads share the rows; one thread inspects a small matrix, and once more a matrix with any fault.
    """
    n = indptr.size - 1
    if n + indices.size > SMALL and indptr[0] == 0 and indptr[n] == indices.size == data.size:
        items = np.maximum.accumulate(np.clip(even_blocks(indptr), 0, n))
        missing = np.zeros((items.size - 1, 2), np.int64)
        run_items(_sound, items.size - 1, items, indptr, indices, diag, missing)
        if missing[:, 0].min() >= 0 and finite(data):
            rows = missing[missing[:, 0] > 0]
            return -1, 0, 0, -1, int(missing[:, 0].sum()), int(rows[0, 1]) if rows.size else -1
    return _inspect_by_one(indptr, indices, data, diag)


@by_items
def _sound(t, items, indptr, indices, diag, missing):
    """missing[t] : how many rows of item t store no diagonal entry, and the first; -1 for unsorted or corrupt rows."""
    missing[t, 0], missing[t, 1] = _missing(items[t], items[t + 1], indptr, indices, diag)


@nested
def _missing(first, end, indptr, indices, diag):
    """How many of the rows first, ..., end - 1 store no diagonal entry, and the first of them; -1 for unsorted or
    corrupt rows."""
    n, nnz = diag.size, indices.size
    good = True
    missing, first_missing = 0, -1
    for i in range(first, end):
        lo, hi = np.int64(indptr[i]), np.int64(indptr[i + 1])
        if lo < 0 or lo > hi or hi > nnz:
            good = False
            break
        below = 0
        previous = -1
        for p in range(np.uint64(lo), np.uint64(hi)):
            j = np.int64(indices[p])
            good &= j > previous
            below += j < i
            previous = j
        good &= previous < n
        if lo + below < hi and indices[lo + below] == i:
            diag[i] = lo + below
        else:
            diag[i] = -1
            first_missing = i if missing == 0 else first_missing
            missing += 1
    return (missing if good else -1), first_missing


@compiled
def _inspect_by_one(indptr, indices, data, diag):
    """`inspect` on one thread, which finds all faults only if there are any."""
    n = diag.size
    if indptr[0] == 0 and indptr[n] == indices.size and data.size == indices.size:
        missing, first_missing = _missing(0, n, indptr, indices, diag)
        nothing = data.dtype.type(0)
        for value in data:
            nothing += value - value  # NaN of a NaN or an infinite number
        if missing >= 0 and nothing == 0:
            return -1, 0, 0, -1, missing, first_missing
    return _faults(indptr, indices, data, diag)


def finite(data) -> bool:
    """Whether no number (n,) is NaN or Inf: at the speed at which they are read, by all threads."""
    real = data.real.dtype
    bits = data.view(np.uint64 if real == np.float64 else np.uint32)
    exponent = bits.dtype.type(0x7FF << 52 if real == np.float64 else 0xFF << 23)
    count = -(-bits.size // CHUNK)
    bad = np.zeros(max(count, 1), np.int64)
    run_items(_without_exponent, count, bits, exponent, bad, threads=threads_for(bits.size))
    return not bad.any()


@by_items
def _without_exponent(t, bits, exponent, bad):
    found = 0
    for p in range(np.uint64(t * CHUNK), np.uint64(min(bits.size, (t + 1) * CHUNK))):
        found += (bits[p] & exponent) == exponent
    bad[t] = found


def same(a, b) -> bool:
    """Whether two integer arrays (n,) of one dtype are equal: at the speed at which they are read, by all threads."""
    if a.size != b.size or a.dtype != b.dtype:
        return False
    count = -(-a.size // CHUNK)
    unlike = np.zeros(max(count, 1), np.int64)
    run_items(_unlike, count, a, b, unlike, threads=threads_for(a.size))
    return not unlike.any()


def alike(indptr, indices, data, pattern_indptr, pattern_indices) -> bool:
    """Whether a matrix has the places of another and finite values; see kernels/reference/inspection.py."""
    return same(indptr, pattern_indptr) and same(indices, pattern_indices) and finite(data)


@by_items
def _unlike(t, a, b, unlike):
    found = np.int64(0)
    for p in range(np.uint64(t * CHUNK), np.uint64(min(a.size, (t + 1) * CHUNK))):
        found += a[p] != b[p]
    unlike[t] = found


@nested
def _faults(indptr, indices, data, diag):
    """`inspect` of a matrix with any fault."""
    n = indptr.size - 1
    unsorted = not_finite = missing = 0
    first_not_finite = first_missing = -1
    if indptr[0] != 0 or indptr[n] != indices.size:
        return 0, unsorted, not_finite, first_not_finite, missing, first_missing
    for i in range(n):
        diag[i] = -1
        previous = -1
        if indptr[i] < 0 or indptr[i] > indptr[i + 1] or indptr[i + 1] > indices.size:
            return i, unsorted, not_finite, first_not_finite, missing, first_missing
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            if j < 0 or j >= n:
                return i, unsorted, not_finite, first_not_finite, missing, first_missing
            if j <= previous:
                unsorted += 1
            previous = j
            if j == i:
                diag[i] = p
            if not np.isfinite(data[p]):
                not_finite += 1
                if first_not_finite < 0:
                    first_not_finite = i
        if diag[i] < 0:
            missing += 1
            if first_missing < 0:
                first_missing = i
    return -1, unsorted, not_finite, first_not_finite, missing, first_missing


ROUNDINGS = 1000  # of the largest entry of its row, up to which a diagonal entry counts as not stored
SEARCH = 4  # times what an entry costs in a product
# Threads up to which one alone, which walks along all rows and searches for nothing, takes no longer: 3 to 8 ns an
# entry on seven matrices of 4,000 to 290,000 entries, where searches took 9 to 28.
ALONE = 3
SURELY = 1 - 1e-6  # times a bound: what is below it is below the bound for any rounding
STEPS = np.uint64(8)  # before a search by halves


def mirrored(indptr, indices, data, diag):
    """The comparison of A with its transpose; see kernels/reference/inspection.py. Four threads or more share the rows.

    Cost: two passes over the entries by one thread; by several a search in row j for each entry (i, j) below the
    diagonal, and above it too unless the pattern is symmetric.
    """
    pattern, n = (unsigned(indptr), unsigned(indices)), indptr.size - 1
    items = shared_out(indptr, SEARCH * data.size)
    count = items.size - 1
    if count == 1 or get_num_threads() <= ALONE:
        return _mirrored_by_one(*pattern, data, diag)
    root, sizes, counts = np.empty(n), np.zeros((count, 5)), np.zeros((count, 3), np.int64)
    run_items(_roots, count, items, pattern[0], data, diag, root)
    run_items(_below, count, items, *pattern, data, diag, root, sizes, counts)
    on_diagonal, paired, above = counts.sum(axis=0).tolist()
    if paired < above:  # as many entries above the diagonal as below have a partner
        run_items(_alone_above, count, items, *pattern, data, root, sizes)
    return *sizes.max(axis=0, initial=0.0).tolist(), on_diagonal + 2 * paired


@by_items
def _roots(t, items, indptr, data, diag, root):
    """The root of |a_ii|, or where that is not stored or rounding of its row of the row's largest entry."""
    _fill_roots(items[t], items[t + 1], indptr, data, diag, root)


@nested
def _fill_roots(first, end, indptr, data, diag, root):
    """`_roots` of the rows first, ..., end - 1. Returns the largest magnitude of their entries."""
    most, noise = 0.0, ROUNDINGS * np.finfo(data.real.dtype).eps
    for i in range(first, end):
        size = abs(data[diag[i]]) if diag[i] >= 0 else abs(data.dtype.type(0))
        largest = size
        for p in range(indptr[i], indptr[i + ONE]):
            largest = max(largest, abs(data[p]))
        root[i] = math.sqrt(largest if size <= noise * largest else size)
        most = max(most, largest)
    return most


@by_items
def _below(t, items, indptr, indices, data, diag, root, sizes, counts):
    """sizes[t] of the entries on and below the diagonal and their partners; counts[t]: on it, below with a partner,
    above."""
    largest = adjoint = transposed = by_root = by_root_transposed = 0.0
    on_diagonal = paired = above = 0
    for i in range(items[t], items[t + 1]):
        end = indptr[i + ONE]
        for p in range(indptr[i], end):
            j, a = indices[p], data[p]
            if j > i:
                above += np.int64(end - p)
                break
            b = data.dtype.type(0)
            if j == i:
                on_diagonal += 1
                b = a
            else:
                start = np.uint64(diag[j] + 1) if diag[j] >= 0 else np.uint64(indptr[j])
                q = _place(start, np.uint64(indptr[j + ONE]), indices, i)
                if q < indptr[j + ONE]:
                    paired += 1
                    b = data[q]
            largest = max(largest, abs(a), abs(b))
            one, other = abs(a - np.conj(b)), abs(a - b)
            if one > 0:
                adjoint, by_root = max(adjoint, one), max(by_root, _relative(one, a, b, root[i] * root[j]))
            if other > 0:
                transposed = max(transposed, other)
                by_root_transposed = max(by_root_transposed, _relative(other, a, b, root[i] * root[j]))
    # One by one: Numba compiles seconds of shapes and messages for a row that is set to a tuple.
    sizes[t, 0], sizes[t, 1], sizes[t, 2] = largest, adjoint, transposed
    sizes[t, 3], sizes[t, 4] = by_root, by_root_transposed
    counts[t, 0], counts[t, 1], counts[t, 2] = on_diagonal, paired, above


@by_items
def _alone_above(t, items, indptr, indices, data, root, sizes):
    """sizes[t] with the entries above the diagonal that have no partner."""
    for i in range(items[t], items[t + 1]):
        for p in range(indptr[i], indptr[i + ONE]):
            j, a = indices[p], data[p]
            end = np.uint64(indptr[j + ONE])
            if j > i and a != 0 and _place(np.uint64(indptr[j]), end, indices, i) == end:
                relative = _relative(abs(a), a, data.dtype.type(0), root[i] * root[j])
                for k in range(5):
                    sizes[t, k] = max(sizes[t, k], abs(a) if k < 3 else relative)


@compiled
def _mirrored_by_one(indptr, indices, data, diag):
    """`mirrored` by one thread. It takes the rows in their order, so that the partners (j, i) of their entries come in
    the order of row j: `ahead[j]` is the place behind the last one, and entries that are passed on the way to the next
    one have no partner."""
    root, ahead, zero = np.empty(diag.size), np.empty(diag.size, np.uint64), data.dtype.type(0)
    adjoint = transposed = by_root = by_root_transposed = 0.0
    on_diagonal = paired = 0
    largest = _fill_roots(np.uint64(0), np.uint64(diag.size), indptr, data, diag, root)
    for i in range(np.uint64(diag.size)):
        p, end = np.uint64(indptr[i]), np.uint64(indptr[i + ONE])
        while p < end and indices[p] <= i:
            j, a, b = indices[p], data[p], zero
            if j == i:
                on_diagonal += 1
                b = a
            else:
                q, last = ahead[j], np.uint64(indptr[j + ONE])
                while q < last and indices[q] < i:
                    alone = abs(data[q])
                    adjoint, transposed = max(adjoint, alone), max(transposed, alone)
                    size = root[j] * root[indices[q]]
                    by_root = _raised(by_root, alone, data[q], zero, size)
                    by_root_transposed = _raised(by_root_transposed, alone, data[q], zero, size)
                    q += ONE
                if q < last and indices[q] == i:
                    paired += 1
                    b = data[q]
                    q += ONE
                ahead[j] = q
            one, other = abs(a - np.conj(b)), abs(a - b)
            adjoint, transposed = max(adjoint, one), max(transposed, other)
            by_root = _raised(by_root, one, a, b, root[i] * root[j])
            by_root_transposed = _raised(by_root_transposed, other, a, b, root[i] * root[j])
            p += ONE
        ahead[i] = p
    for j in range(np.uint64(diag.size)):
        for q in range(ahead[j], np.uint64(indptr[j + ONE])):
            alone = abs(data[q])
            adjoint, transposed = max(adjoint, alone), max(transposed, alone)
            size = root[j] * root[indices[q]]
            by_root = _raised(by_root, alone, data[q], zero, size)
            by_root_transposed = _raised(by_root_transposed, alone, data[q], zero, size)
    return largest, adjoint, transposed, by_root, by_root_transposed, on_diagonal + 2 * paired


@nested
def _raised(most, difference, a, b, size):
    """The larger of `most` and `_relative` of the difference, which is formed only where it may be the larger one."""
    if difference > 0 and difference >= SURELY * most * max(size, abs(a), abs(b)):
        return max(most, _relative(difference, a, b, size))
    return most


@compiled
def _place(low, end, indices, j):
    """The place of column j in the ascending indices[low:end], or end."""
    near = low + STEPS
    while low < end and low < near and indices[low] < j:
        low += ONE
    high = end if low == near else low
    while low < high:
        middle = (low + high) >> ONE
        if indices[middle] < j:
            low = middle + ONE
        else:
            high = middle
    return low if low < end and indices[low] == j else end


@compiled
def _relative(difference, a, b, size):
    """The difference of a and b in units of `size`, or of the larger of the two where that is more."""
    return difference / max(size, abs(a), abs(b)) if difference < np.inf else np.inf


# By the bytes of a real number: the integers of this size, the mask of all bits but the sign, and 1.
WHOLE = {whole().itemsize: (whole, whole(np.iinfo(whole).max), whole(1)) for whole in (np.int32, np.int64)}


def extremes(values):
    """The number of values that are not 0, the least of their sizes and the largest; see the specification."""
    if values.dtype.kind == "c" or not values.flags.c_contiguous:
        return _extremes(values)
    whole, size, one = WHOLE[values.itemsize]
    count, least, largest = _extremes_of_bits(values.view(whole), size, one)
    if count == 0:
        return 0, np.inf, 0.0
    return count, *np.array((least, largest), whole).view(values.dtype).tolist()


@compiled
def _extremes(values):
    count, least, largest = 0, np.inf, 0.0
    for value in values:
        size = np.float64(max(abs(value.real), abs(value.imag)))
        if size > 0:
            count += 1
            least, largest = min(least, size), max(largest, size)
    return count, least, largest


@compiled
def _extremes_of_bits(bits, size, one):
    """`extremes` of finite real numbers by their bits, whose order without the sign is that of their sizes: at the
    speed at which they are read.  size : the mask of all bits but the sign."""
    count, least, largest = 0, size, bits.dtype.type(0)
    for p in range(np.uint64(bits.size)):
        given = bits[p] & size
        count += given != 0
        least, largest = min(least, (given - one) & size), max(largest, given)  # a 0 becomes the largest number
    return count, least + one if count else least, largest


@compiled
def without_zeros(indptr, indices, data, starts, columns, values, diag, kept):
    """A CSR matrix without its stored zeros; see the specification."""
    q = np.uint64(0)
    starts[0] = 0
    for i in range(np.uint64(indptr.size - 1)):
        diag[i] = -1
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            if data[p] != 0:
                j = indices[p]
                if j == i:
                    diag[i] = q
                columns[q], values[q], kept[q] = j, data[p], p
                q += ONE
        starts[i + ONE] = q


def diagonal(data, diag):
    """Rows without a diagonal entry, with one of 0, without a positive one; see kernels/reference/inspection.py.

    Threads share the rows.
    """
    items = -(-diag.size // ROWS)
    if items <= 1:
        return _diagonal_by_one(data, diag)
    found = np.zeros((items, 5), np.int64)
    run_items(_diagonal, items, data, diag, found, threads=threads_for(diag.size, SMALL))
    missing, _, zero, _, others = found.sum(axis=0).tolist()
    first = [found[found[:, k] > 0, k + 1] for k in (0, 2)]
    return missing, int(first[0][0]) if missing else -1, zero, int(first[1][0]) if zero else -1, others


@by_items
def _diagonal(t, data, diag, found):
    """found[t] : `diagonal` of the rows of item t."""
    first = t * ROWS
    missing, first_missing, zero, first_zero, others = _diagonal_of(first, min(first + ROWS, diag.size), data, diag)
    found[t, 0], found[t, 1], found[t, 2], found[t, 3], found[t, 4] = missing, first_missing, zero, first_zero, others


@compiled
def _diagonal_by_one(data, diag):
    return _diagonal_of(0, diag.size, data, diag)


@nested
def _diagonal_of(first, end, data, diag):
    """`diagonal` of the rows first, ..., end - 1."""
    missing = zero = others = 0
    first_missing = first_zero = -1
    for i in range(first, end):
        if diag[i] < 0:
            first_missing = i if missing == 0 else first_missing
            missing += 1
            others += 1
            continue
        d = data[diag[i]]
        if d == 0:
            first_zero = i if zero == 0 else first_zero
            zero += 1
        others += not (d.real > 0 and d.imag == 0)
    return missing, first_missing, zero, first_zero, others


def signs(indptr, data, diag, tolerance, share):
    """(sum of the entries off the diagonal with its sign, of those with the other, rows they do not outweigh, rows
    whose diagonal does not outweigh them by far).

    A real, in CSR, with all diagonal entries data[diag[i]]. The third counts rows with |a_ii| + sign(a_ii) sum of the
    others >= -tolerance |a_ii|, the fourth those where their magnitudes add up to more than share |a_ii|. Threads share
    the rows; the items, whose sums are added up, are the same for any number of them. Cost: one pass.
    """
    parts = (diag.size + data.size) // COPY + 1
    if parts == 1:
        return _signs_by_one(*(unsigned(v) for v in (indptr, diag)), data, tolerance, share)
    items = row_parts(indptr, data.size, parts)
    sums, rows = np.zeros((items.size - 1, 2)), np.zeros((items.size - 1, 2), np.int64)
    pattern = (unsigned(v) for v in (indptr, diag))
    threads = threads_for(diag.size + data.size, SMALL)
    run_items(_signs, items.size - 1, items, *pattern, data, tolerance, share, sums, rows, threads=threads)
    return *sums.sum(axis=0).tolist(), *rows.sum(axis=0).tolist()


@by_items
def _signs(t, items, indptr, diag, data, tolerance, share, sums, rows):
    """sums[t], rows[t] : the sums and the numbers of rows of `signs`, for the rows of item t."""
    first, end = np.uint64(items[t]), np.uint64(items[t + 1])
    found = _signs_of(first, end, indptr, diag, data, tolerance, share)
    sums[t, 0], sums[t, 1] = found[0], found[1]
    rows[t, 0], rows[t, 1] = found[2], found[3]


@compiled
def _signs_by_one(indptr, diag, data, tolerance, share):
    return _signs_of(np.uint64(0), np.uint64(diag.size), indptr, diag, data, tolerance, share)


@nested
def _signs_of(first, end, indptr, diag, data, tolerance, share):
    """`signs` of the rows first, ..., end - 1."""
    same = opposite = 0.0
    fine = coupled = 0
    for i in range(first, end):
        place = np.uint64(diag[i])
        d = data[place]
        sign = np.float64(1.0 if d >= 0 else -1.0)
        total, others = np.float64(abs(d)), 0.0
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            if p != place:
                a = sign * np.float64(data[p])
                total += a
                others += abs(a)
                same += a if a > 0 else 0.0  # no branches, which signs that are mixed would let a core guess
                opposite -= 0.0 if a > 0 else a
        fine += total >= -tolerance * abs(d)
        coupled += others > share * abs(d)
    return same, opposite, fine, coupled
