"""Fixed-point sweeps of ParILU and ParILUT, on all threads."""

from __future__ import annotations

import numpy as np

from finelu import deadline
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.atomics import (
    fetch_add,
    fetch_min,
    load_relaxed,
    store_relaxed,
)
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.row_blocks import (
    column_arrays,
    has_long_rows,
    pattern_arrays,
    row_blocks,
    squared_size,
    workspace,
)
from finelu.kernels.cpu.runtime.search import LONGER, place_of
from finelu.kernels.cpu.runtime.sharing import run_items


def sweep(A, F, out, squares, refused, columns=None, damping=1.0, part="whole"):
    """One synchronous fixed-point sweep on the pattern of F; see kernels/reference/sweeps.py.

    A, F : CSR of one dtype, the diagonal of F full; with columns = columns_of(F) lower triangles (Cholesky).
    out (nnz of F,) receives the new values, not F.data itself.  squares (n,) float64 receives sums of |r_ij|^2 of the
    old values by rows (of Cholesky for both triangles), or None.
    refused (2,) int64: [0] counts values that were refused, [1] is the least such row.
    Cost: sum over the entries l_ik of the length of row k of U, or of the rest of row i where that is far shorter,
    multiplications; n values of workspace a thread.
    """
    items = row_blocks(F, columns, searched=True)
    real = F.data.dtype.type(0).real.dtype.type
    by_columns = column_arrays(columns)
    factors = (real(damping), real(1 - damping))
    a = unsigned(A.indptr), unsigned(A.indices), A.data
    blocks = items.size - 1
    room = workspace(blocks, F.n, F.data.dtype)
    run_items(
        _sweep,
        blocks,
        room,
        items,
        *a,
        *pattern_arrays(F),
        F.data,
        *by_columns,
        has_long_rows(F, columns),
        damping != 1,
        *factors,
        *{"whole": (True, True), "lower": (True, False), "upper": (False, True)}[part],
        out,
        squares,
        refused,
        deadline.halt(),
        threads=room.shape[0],
    )
    deadline.check()


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
    looked_up,
    damped,
    new_part,
    old_part,
    lower,
    upper,
    out,
    squares,
    refused,
    halt,
):
    """Row by row: w = a_i on the pattern, then in ascending order of k w -= l_ik u_k, which leaves w[k] final.

    What lands in w outside of the pattern, finite or not, is never read: each row first writes all of its own places.
    Where u_k is far longer than the rest of row i, the columns of that are looked up in it, if looked_up says that
    there are such rows.
    """
    w = workspace[fetch_add(state, 1, 1)]
    zero = a[0] - a[0]
    nan = zero.real / zero.real
    many = np.uint64(LONGER)
    t = next_item(state)
    while t < done.size:
        bad, first_bad = 0, np.int64(diag.size)
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            if halted(halt):
                break
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
            for p in range(lo, hi):
                w[indices[p]] = 0
            for p in range(np.uint64(a_indptr[i]), np.uint64(a_indptr[i + ONE])):
                w[a_indices[p]] = a[p]
            square, bad_before = 0.0, bad
            for p in range(lo, pivot):
                k = np.uint64(indices[p])
                old, s, d = f[p], w[k], np.uint64(diag[k])
                new = old
                if lower:
                    new = divide(s, f[d])
                    if damped:
                        new = new_part * new + old_part * old
                    if not np.isfinite(new):
                        bad += 1
                        new = old
                out[p] = new
                if squares is not None:
                    square += squared_size(s - old * f[d])
                if rows is None:
                    first, last = d + ONE, np.uint64(indptr[k + ONE])
                    if squares is None and not lower:
                        first = place_of(indices, first, last, i)
                    elif squares is None and not upper:
                        last = place_of(indices, first, last, i)
                    if looked_up and last > first + many * (hi - p):
                        for e in range(p + ONE, hi):
                            first = place_of(indices, first, last, indices[e])
                            if first < last and indices[first] == indices[e]:
                                w[indices[e]] -= old * f[first]
                        continue
                    for q in range(first, last):
                        w[indices[q]] -= old * f[q]
                elif squares is None and not lower:
                    w[i] -= old * np.conj(old)
                else:
                    q, last = np.uint64(c_indptr[k]), np.uint64(c_indptr[k + ONE])
                    if looked_up and last > q + many * (hi - p):
                        for e in range(p + ONE, hi):
                            q = place_of(rows, q, last, indices[e])
                            if q < last and rows[q] == indices[e]:
                                w[indices[e]] -= old * np.conj(f[places[q]])
                        continue
                    j = k
                    while j != i:  # row i is one of column k
                        q += ONE
                        j = np.uint64(rows[q])
                        w[j] -= old * np.conj(f[places[q]])
            if rows is not None:
                square *= 2  # for the other triangle
            for p in range(pivot, hi):
                old, s = f[p], w[indices[p]]
                if rows is None:
                    new = s
                    residual = s - old
                else:
                    new = zero + (np.sqrt(s.real) if s.real > 0 else nan)
                    residual = zero + (s.real - (old * np.conj(old)).real)
                if not upper:
                    new = old
                elif damped:
                    new = new_part * new + old_part * old
                if upper and (not np.isfinite(new) or (p == pivot and new == 0)):
                    bad += 1
                    new = old
                out[p] = new
                if squares is not None:
                    square += squared_size(residual)
            if squares is not None:
                squares[i] = square
            if bad > bad_before:
                first_bad = min(first_bad, np.int64(i))
        if bad > 0:
            fetch_add(refused, 0, bad)
            fetch_min(refused, 1, first_bad)
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


def sweeps(A, F, count, squares, refused, columns=None, damping=1.0):
    """`count` of them, one after the other; see kernels/reference/sweeps.py."""
    for k in range(count):
        out = np.empty(F.nnz, F.dtype)
        sweep(A, F, out, None if squares is None else squares[k], refused, columns, damping)
        F = F.with_values(out)
    return F.data


def sweep_in_place(A, F, refused, columns=None):
    """An asynchronous sweep that overwrites F.data; see kernels/reference/sweeps.py.

    Arguments as for `sweep`. One thread gives the incomplete factorization on the pattern of F. Several read from each
    other whatever value is there at the time, old or new, so that the result differs from run to run.
    """
    items = row_blocks(F, columns, searched=True)
    by_columns = column_arrays(columns)
    a = unsigned(A.indptr), unsigned(A.indices), A.data
    blocks = items.size - 1
    room = workspace(blocks, F.n, F.data.dtype)
    arguments = room, items, *a, *pattern_arrays(F), F.data, *by_columns, has_long_rows(F, columns), refused
    run_items(_sweep_in_place, blocks, *arguments, deadline.halt(), threads=room.shape[0])
    deadline.check()


@compiled
def _sweep_in_place(
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
    looked_up,
    refused,
    halt,
):
    """As `_sweep`, but l_ik is final before it is used, and each read of another row is of its present value."""
    w = workspace[fetch_add(state, 1, 1)]
    zero = a[0] - a[0]
    nan = zero.real / zero.real
    many = np.uint64(LONGER)
    t = next_item(state)
    while t < done.size:
        bad, first_bad = 0, np.int64(diag.size)
        for i in range(np.uint64(items[t]), np.uint64(items[t + 1])):
            if halted(halt):
                break
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
                    first, last = d + ONE, np.uint64(indptr[k + ONE])
                    if looked_up and last > first + many * (hi - p):
                        for e in range(p + ONE, hi):
                            first = place_of(indices, first, last, indices[e])
                            if first < last and indices[first] == indices[e]:
                                w[indices[e]] -= new * load_relaxed(f, first)
                        continue
                    for q in range(first, last):
                        w[indices[q]] -= new * load_relaxed(f, q)
                else:
                    q, last = np.uint64(c_indptr[k]), np.uint64(c_indptr[k + ONE])
                    if looked_up and last > q + many * (hi - p):
                        for e in range(p + ONE, hi):
                            q = place_of(rows, q, last, indices[e])
                            if q < last and rows[q] == indices[e]:
                                w[indices[e]] -= new * np.conj(load_relaxed(f, np.uint64(places[q])))
                        continue
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
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)
