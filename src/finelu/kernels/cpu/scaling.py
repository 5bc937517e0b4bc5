"""Scaling of entries by vectors over rows and columns, and by pivots; on all threads."""

from __future__ import annotations

import math

import numpy as np

from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.atomics import fetch_add, fetch_min
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.row_blocks import even_blocks
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.runtime.workers import run
from finelu.threads import get_num_threads

BLOCK = 4096  # rows


def scale(A, out, below, above):
    """out (nnz,) = A's values, times left[i] right[j]; see kernels/reference/scaling.py. Returns out."""
    ones = np.ones(A.n, np.float64 if A.data.real.dtype == np.float64 else np.float32)
    (lower_left, lower_right), (upper_left, upper_right) = (
        tuple(ones if v is None else v for v in pair) for pair in (below, above)
    )
    items = even_blocks(A.indptr)
    arguments = (A.indptr, A.indices, A.data, lower_left, lower_right, upper_left, upper_right, out)
    run_items(_scale, items.size - 1, items, *arguments)
    return out


@by_items
def _scale(t, items, indptr, indices, a, lower_left, lower_right, upper_left, upper_right, out):
    """Threads take blocks of rows; entries are written by one of them each."""
    for i in range(items[t], items[t + 1]):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            if j < i:
                out[p] = a[p] * lower_left[i] * lower_right[j]
            else:
                out[p] = a[p] * upper_left[i] * upper_right[j]


def divide_by_pivots(F, out, refused):
    """Divide entries below the diagonal by pivots; see kernels/reference/scaling.py. Returns out."""
    items = -(-F.n // BLOCK)
    state, done = np.zeros(1, np.int64), np.zeros(items, np.int8)
    arguments = (F.indptr, F.indices, F.diag, out, refused)
    run(_divide_by_pivots, min(get_num_threads(), items), state, done, *arguments)
    return out


@by_items
def _divide_by_pivots(t, indptr, indices, diag, out, refused):
    """Threads take blocks of rows; entries below the diagonal are written by one of them each, pivots only read."""
    for i in range(t * BLOCK, min(diag.size, (t + 1) * BLOCK)):
        bad = 0
        for p in range(indptr[i], diag[i]):
            pivot = diag[indices[p]]
            new = divide(out[p], out[pivot])
            if np.isfinite(new):
                out[p] = new
            else:
                bad += 1
        if bad > 0:
            fetch_add(refused, 0, bad)
            fetch_min(refused, 1, i)


def pivots(A, cholesky: bool):
    """(d, bad, plain): see kernels/reference/scaling.py."""
    d = np.empty(A.n, A.data.real.dtype)
    found = np.array([A.n, 1], np.int64)
    run_items(_pivots, -(-A.n // BLOCK), A.diag, A.data, bool(cholesky), d, found)
    return d, int(found[0]) if found[0] < A.n else -1, bool(found[1])


@by_items
def _pivots(t, diag, a, cholesky, d, found):
    """found : the first bad row, and whether all pivots are positive real numbers. Threads take blocks of rows."""
    one = d.dtype.type(1)
    for i in range(t * BLOCK, min(diag.size, (t + 1) * BLOCK)):
        value = a[diag[i]]
        size = abs(value)
        d[i] = one / np.sqrt(size) if size > 0 else one
        if not np.isfinite(value) or (not value.real > 0 if cholesky else value == 0):
            fetch_min(found, 0, i)
        if not (value.real > 0 and value.imag == 0):
            fetch_min(found, 1, 0)


def first_unusable(F) -> int:
    """The first row with a value that is not finite or a zero pivot, or -1."""
    first, items = np.array([F.n], np.int64), even_blocks(F.indptr)
    run_items(_first_unusable, items.size - 1, items, F.indptr, F.diag, F.data, first)
    return int(first[0]) if first[0] < F.n else -1


@by_items
def _first_unusable(t, items, indptr, diag, f, first):
    for i in range(items[t], items[t + 1]):
        good = f[diag[i]] != 0
        for p in range(indptr[i], indptr[i + 1]):
            good &= np.isfinite(f[p])
        if not good:
            fetch_min(first, 0, i)
            break


def dropping_weights(F, diagonal, cholesky):
    """What entries are multiplied by before they are compared; see kernels/reference/scaling.py."""
    roots, by_weights, by_roots = (np.empty(F.n, F.data.real.dtype) for _ in range(3))
    arguments = F.diag, F.data, diagonal, bool(cholesky), roots, by_weights, by_roots
    run_items(_dropping_weights, -(-F.n // BLOCK), *arguments)
    return roots, by_weights, by_roots


@by_items
def _dropping_weights(t, diag, f, diagonal, cholesky, roots, by_weights, by_roots):
    """Threads take blocks of rows."""
    one = roots.dtype.type(1)
    for i in range(t * BLOCK, min(diag.size, (t + 1) * BLOCK)):
        pivot = abs(f[diag[i]])
        root = pivot if cholesky else np.sqrt(pivot)
        roots[i] = root
        by_weights[i] = one / np.sqrt(root * max(np.sqrt(abs(diagonal[i])), root))
        by_roots[i] = one / root


def row_norms(indptr, data):
    """The 2-norm of each row (n,) float64; see kernels/reference/scaling.py."""
    norms = np.empty(indptr.size - 1)
    items = even_blocks(indptr)
    parts = data.view(data.real.dtype)  # of a complex number both, one after the other
    run_items(_row_norms, items.size - 1, items, indptr, parts, parts.size // max(data.size, 1), norms)
    return norms


@by_items
def _row_norms(t, items, indptr, parts, width, norms):
    for i in range(items[t], items[t + 1]):
        begin, end = np.uint64(width * indptr[i]), np.uint64(width * indptr[i + 1])
        largest, total = 0.0, 0.0
        for p in range(begin, end):
            largest = max(largest, np.float64(abs(parts[p])))
        scale = largest if largest > 0 else 1.0
        for p in range(begin, end):
            part = np.float64(parts[p]) / scale
            total += part * part
        norms[i] = scale * np.sqrt(total)


def definite_scale(A, out) -> bool:
    """Whether A may be positive definite, and scales for its diagonal; see kernels/reference/scaling.py. Cost: a pass
    over the entries, up to the first that says no."""
    items = -(-A.n // BLOCK)
    state, done, bad = np.zeros(1, np.int64), np.zeros(items, np.int8), np.zeros(1, np.int64)
    limit = out.dtype.type(1 + 8 * np.finfo(out.dtype).eps)
    arguments = (A.indptr, A.indices, A.diag, A.data, limit, out, bad)
    run(_definite_scale, min(get_num_threads(), items), state, done, *arguments)
    return bad[0] == 0


@by_items
def _definite_scale(t, indptr, indices, diag, a, limit, out, bad):
    """Threads take blocks of rows; none of them looks further once one has found that A is not definite."""
    n = indptr.size - 1
    one = limit / limit
    for i in range(t * BLOCK, min(n, (t + 1) * BLOCK)):
        d = a[diag[i]]
        if bad[0] or not d.real > 0 or d.imag != 0:
            bad[0] = 1
            break
        out[i] = math.ldexp(one, -(math.frexp(d.real)[1] // 2))
        root = np.sqrt(d.real)
        for p in range(indptr[i], indptr[i + 1]):
            there = a[diag[indices[p]]].real
            if not (there > 0 and abs(a[p]) <= root * np.sqrt(there) * limit):
                bad[0] = 1
