"""Many systems of one pattern: LANES of them at once, a system a lane of vector registers, and the groups by threads.

All indices are read once for a group, and its numbers are interleaved: those of an entry, or of an unknown, lie side by
side. The last group has the last system in its remaining lanes, too, whose results are not kept. The kernels are free
of races: an item is a group, and writes only to the rows of its systems and to the workspace of its thread. The bits of
a system depend neither on its lane and group nor on the number of threads.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.products import less
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.indices import unsigned
from finelu.kernels.cpu.runtime.items import by_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lanes import LANES, subtract_multiples, subtract_products
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.threads import get_num_threads

TILE = 64  # entries that are interleaved together, so that they stay in the first cache
NORM, ROUNDING, BACKWARD = range(3)  # rows of `figures`


def prepared(plan):
    """The plan as the kernels of this device take it."""
    return tuple(unsigned(part) if part.dtype.kind == "i" else part for part in plan)


def room(systems, entries, like):
    """Room for the factors of that many systems, of the dtype of `like`; `solve` reads them."""
    return np.empty((_groups(systems), entries * LANES), like.dtype)


def factor(plan, values, guard, positive, lu, first_bad, replaced):
    """The factors of every system; see kernels/reference/batch.py."""
    groups, threads = shared_groups(values.shape[0])
    work = tuple(np.empty((threads, size * LANES), values.dtype) for size in (values.shape[1], plan[2].size))
    numbers = values.real.dtype.type(guard), bool(positive), values.dtype.type(1)
    run_items(_factor_all, groups, plan, values, numbers, work, lu, first_bad, replaced, threads=threads)


def solve(plan, lu, r, x):
    """x = (L U)^-1 r for every system; see kernels/reference/batch.py."""
    groups, threads = shared_groups(x.shape[0])
    vectors = np.empty((threads, 3, x.shape[1] * LANES), x.dtype)
    run_items(_solve_all, groups, plan, lu, r, vectors, x, threads=threads)


def solve_direct(matrix, plan, values, b, limits, tolerance, x, norms, roundings, errors, steps, first_bad, replaced):
    """x = A^-1 b for every system, refined; see kernels/reference/batch.py. Factors of a group stay in the cache."""
    groups, threads = shared_groups(values.shape[0])
    lu = np.empty((threads, plan[1].size * LANES), values.dtype)
    work = lu, *workspace(threads, matrix, values, 5)
    real = values.real.dtype.type
    guard, wanted, most = limits
    pivoting = real(guard), False, values.dtype.type(1)
    numbers = pivoting, (real(wanted), tolerance), most, np.finfo(values.dtype).eps
    results = x, norms, roundings, errors, steps, (first_bad, replaced)
    run_items(_solve_direct_all, groups, pattern_of(matrix), plan, values, b, numbers, work, *results, threads=threads)


def residual_twice(matrix, values, b, x, which, norms):
    """Norms of b - A x in twice the precision; see kernels/reference/batch.py. Threads share the systems."""
    parts = (_parts(v) for v in (values, x, b))
    run_items(_residual_twice, which.size, pattern_of(matrix), which, *parts, norms)


def _parts(v):
    """(k, m, 1), or for complex numbers (k, m, 2): real and imaginary parts."""
    return v.view(v.real.dtype).reshape(*v.shape, 2 if v.dtype.kind == "c" else 1)


def _groups(systems):
    return -(-systems // LANES)


def shared_groups(systems):
    """The groups, and the threads that share them."""
    groups = _groups(systems)
    return groups, min(get_num_threads(), groups)


def pattern_of(matrix):
    return unsigned(matrix.indptr), unsigned(matrix.indices)


def workspace(threads, matrix, like, vectors):
    """For each thread the interleaved entries of a group of matrices, `vectors` vectors, magnitudes, and figures."""
    n, nnz = matrix.indptr.size - 1, matrix.indices.size
    return (
        np.empty((threads, nnz * LANES), like.dtype),
        np.empty((threads, vectors, n * LANES), like.dtype),
        np.empty((threads, n * LANES), like.real.dtype),
        np.empty((threads, 2, 3, LANES), like.real.dtype),
    )


@compiled
def _factor_all(state, done, plan, values, numbers, work, lu, first_bad, replaced):
    me = fetch_add(state, 1, 1)
    known, t = 0, next_item(state)
    while t < done.size:
        interleave(values, t * LANES, work[0][me])
        factor_group(plan, work[0][me], numbers, t * LANES, work[1][me], lu[t], first_bad, replaced)
        t = complete(state, done, t)
    wait_until_done(done, known, done.size)


@compiled
def _solve_all(state, done, plan, lu, r, vectors, x):
    me = fetch_add(state, 1, 1)
    known, t = 0, next_item(state)
    while t < done.size:
        interleave(r, t * LANES, vectors[me, 0])
        solve_group(plan, lu[t], vectors[me, 0], vectors[me, 1], vectors[me, 2])
        keep(vectors[me, 2], t * LANES, x)
        t = complete(state, done, t)
    wait_until_done(done, known, done.size)


@compiled
def _solve_direct_all(state, done, pattern, plan, values, b, numbers, work, x, norms, roundings, errors, steps, bad):
    pivoting, wanted, most, eps = numbers
    me = fetch_add(state, 1, 1)
    known, t = 0, next_item(state)
    while t < done.size:
        lu, a, vectors, sizes, figures = work[0][me], work[1][me], work[2][me], work[3][me], work[4][me]
        rhs, y, r, spare = vectors[1], vectors[2], vectors[3], vectors[4]
        first = t * LANES
        interleave(values, first, a)
        factor_group(plan, a, pivoting, first, vectors[0], lu, *bad)
        interleave(b, first, rhs)
        solve_group(plan, lu, rhs, vectors[0], y)
        residual_group(pattern, a, rhs, y, eps, r, sizes, figures[0])
        count = min(LANES, steps.size - first)
        steps[first : first + count] = 0
        for _ in range(most):
            if not _refined(
                pattern, plan, a, lu, rhs, wanted, eps, vectors[0], spare, y, r, sizes, figures, first, steps
            ):
                break
        keep(y, first, x)
        keep_figures(figures[0], first, norms, roundings, errors)
        t = complete(state, done, t)
    wait_until_done(done, known, done.size)


@compiled
def _refined(pattern, plan, a, lu, rhs, wanted, eps, room, better, y, r, sizes, figures, first, steps):
    """A step of refinement for the systems that miss what is wanted; whether one of them has gained.

    r is 0 for the others, and becomes so for a system that did not gain, which keeps its y.
    """
    old, new = figures[0], figures[1]
    some = False
    for lane in range(LANES):
        if _misses(old, lane, wanted, first):
            some = True
        else:
            r[lane::LANES] = 0
    if not some:
        return False
    solve_group(plan, lu, r, room, better)
    for e in range(np.uint64(y.size)):
        better[e] += y[e]
    residual_group(pattern, a, rhs, better, eps, r, sizes, new)
    gained = False
    for lane in range(LANES):
        if _misses(old, lane, wanted, first) and new[BACKWARD, lane] < old[BACKWARD, lane]:
            gained = True
            old[:, lane] = new[:, lane]
            y[lane::LANES] = better[lane::LANES]
            if first + lane < steps.size:
                steps[first + lane] += 1
        else:
            r[lane::LANES] = 0
    return gained


@compiled
def _misses(figures, lane, wanted, first):
    """Whether a system, whose figures are finite, has too large a backward error, or residual."""
    error, tolerance = wanted
    s = min(first + lane, tolerance.size - 1)
    return figures[BACKWARD, lane] > error or figures[NORM, lane] > tolerance[s]


@by_items
def _residual_twice(t, pattern, which, values, x, b, norms):
    s = which[t]
    indptr, indices = pattern
    of_b = min(s, b.shape[0] - 1)
    total = 0.0
    for i in range(indptr.size - 1):
        for part in range(x.shape[2]):
            high, low = np.float64(b[of_b, i, part]), 0.0
            for p in range(indptr[i], indptr[i + 1]):
                j = indices[p]
                if x.shape[2] == 1:
                    high, low = less(high, low, values[s, p, 0], x[s, j, 0])
                else:  # the real part, then the imaginary one
                    high, low = less(high, low, values[s, p, 0], x[s, j, part])
                    high, low = less(high, low, values[s, p, 1] if part else -values[s, p, 1], x[s, j, 1 - part])
            total += (high + low) * (high + low)
    norms[t] = np.sqrt(total)


# A group of systems -------------------------------------------------------------------------------------------------


@compiled
def interleave(rows, first, out):
    """out[p * LANES + lane] = rows[first + lane, p]; of one row alone, or beyond the last, the last one."""
    length, last = rows.shape[1], rows.shape[0] - 1
    for begin in range(0, length, TILE):
        end = min(begin + TILE, length)
        for lane in range(LANES):
            row = rows[min(first + lane, last)]
            for p in range(np.uint64(begin), np.uint64(end)):
                out[p * np.uint64(LANES) + np.uint64(lane)] = row[p]


@compiled
def keep(y, first, x):
    """The rows of x that belong to the systems of a group."""
    for lane in range(min(LANES, x.shape[0] - first)):
        row = x[first + lane]
        for i in range(np.uint64(row.size)):
            row[i] = y[i * np.uint64(LANES) + np.uint64(lane)]


@compiled
def keep_figures(figures, first, norms, roundings, errors):
    for lane in range(min(LANES, norms.size - first)):
        norms[first + lane] = figures[NORM, lane]
        roundings[first + lane] = figures[ROUNDING, lane]
        errors[first + lane] = figures[BACKWARD, lane]


@compiled
def factor_group(plan, a, pivoting, first, w, lu, first_bad, replaced):
    """The factors of a group, with the reciprocals of the pivots on the diagonal; w: room for a row.

    pivoting : guard and positive, as in `factor`, and a 1 of the dtype.

    An update may fall outside of the pattern of the row: it changes an element of w that no later step reads, since
    each row sets those of its own pattern first.
    """
    indptr, indices, diag, places, weights, rows = plan[:6]
    guard, positive, one = pivoting
    largest = np.empty(LANES, weights.dtype)
    here = min(LANES, first_bad.size - first)
    first_bad[first : first + here] = -1
    replaced[first : first + here] = 0
    for i in range(np.int64(diag.size)):
        largest[:] = 0
        begin, pivot, end = np.int64(indptr[i]), np.int64(diag[i]), np.int64(indptr[i + 1])
        for p in range(begin, end):
            at, source, weight = np.int64(indices[p]) * LANES, np.int64(places[p]) * LANES, weights[p]
            if weight == 0:
                for lane in range(LANES):
                    w[at + lane] = 0
            else:
                for lane in range(LANES):
                    w[at + lane] = a[source + lane] * weight
                    largest[lane] = max(largest[lane], abs(w[at + lane]))
        for p in range(begin, pivot):
            j = np.int64(indices[p])
            other = np.int64(diag[j])
            for lane in range(LANES):
                lu[p * LANES + lane] = w[j * LANES + lane] * lu[other * LANES + lane]
            subtract_multiples(w, indices, other + 1, np.int64(indptr[j + 1]), lu, p, lu)
        for p in range(pivot, end):
            at = np.int64(indices[p]) * LANES
            for lane in range(LANES):
                lu[p * LANES + lane] = w[at + lane]
        for lane in range(LANES):
            v = lu[pivot * LANES + lane]
            size, least = abs(v), guard * largest[lane]
            if size < least:
                v = v * (least / size) if size > 0 else v + least
                if lane < here:
                    replaced[first + lane] += 1
            lu[pivot * LANES + lane] = divide(one, v)
            bad = not (size < np.inf and v != 0) or (positive and not v.real > 0)
            if lane < here and bad and first_bad[first + lane] < 0:
                first_bad[first + lane] = rows[i]


@compiled
def solve_group(plan, lu, r, y, x):
    """x = (L U)^-1 r in the order and the scaling of A; y: room for a vector."""
    indptr, indices, diag, _, _, rows, columns, row_scale, column_scale = plan
    n = np.int64(diag.size)
    for i in range(n):
        source, scale = np.int64(rows[i]) * LANES, row_scale[i]
        for lane in range(LANES):
            y[i * LANES + lane] = r[source + lane] * scale
        subtract_products(y, i, True, indices, 0, lu, np.int64(indptr[i]), np.int64(diag[i]))
    for t in range(n):
        i = n - 1 - t
        pivot = np.int64(diag[i])
        subtract_products(y, i, True, indices, 0, lu, pivot + 1, np.int64(indptr[i + 1]))
        target, scale = np.int64(columns[i]) * LANES, column_scale[i]
        for lane in range(LANES):
            y[i * LANES + lane] = y[i * LANES + lane] * lu[pivot * LANES + lane]
            x[target + lane] = y[i * LANES + lane] * scale


@compiled
def residual_group(pattern, a, b, x, eps, r, sizes, figures):
    """r = b - A x; its norm, that of its possible rounding, and the componentwise backward error, as rows of figures.

    sizes : room for |A| |x| + |b|.
    """
    indptr, indices = pattern
    figures[:] = 0
    least = np.finfo(sizes.dtype).tiny
    for i in range(np.int64(indptr.size - 1)):
        at = i * LANES
        for lane in range(LANES):
            r[at + lane] = b[at + lane]
            sizes[at + lane] = abs(b[at + lane])
        begin, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
        for p in range(begin, end):
            other = np.int64(indices[p]) * LANES
            for lane in range(LANES):
                v = a[p * LANES + lane] * x[other + lane]
                r[at + lane] -= v
                sizes[at + lane] += abs(v)
        roundings = (end - begin + 1) * eps
        for lane in range(LANES):
            v, size = abs(r[at + lane]), sizes[at + lane]
            figures[NORM, lane] += v * v
            figures[ROUNDING, lane] += (roundings * size) * (roundings * size)
            figures[BACKWARD, lane] = max(figures[BACKWARD, lane], v / max(size, least))
    for lane in range(LANES):
        figures[NORM, lane] = np.sqrt(figures[NORM, lane])
        figures[ROUNDING, lane] = np.sqrt(figures[ROUNDING, lane])
        if not figures[NORM, lane] < np.inf:
            figures[BACKWARD, lane] = np.nan
