"""Fixed-point sweeps of ParILU and ParILUT, on all threads."""

from __future__ import annotations

import numpy as np

from finelu import deadline
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.atomics import fetch_add, fetch_min, load_relaxed, store_relaxed
from finelu.kernels.cpu.runtime.halting import halted
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.row_blocks import has_long_rows, pattern_arrays, row_blocks, squared_size, workspace
from finelu.kernels.cpu.runtime.search import LONGER, place_of
from finelu.kernels.cpu.runtime.sharing import run_items


def sweep(A, F, out, squares, refused, columns=None, damping=1.0, part="whole"):
    """One synchronous fixed-point sweep on the pattern of F; see kernels/reference/sweeps.py.

    A, F : CSR of one dtype, the diagonal of F full; with columns = columns_of(F) lower triangles (Cholesky).
    out (nnz of F,) receives the new values, not F.data itself.  squares (n,) float64 receives sums of |r_ij|^2 of the
    old values by rows (for Cholesky over both triangles), or is None.
    refused (2,) int64: [0] counts values that were refused, [1] is the least such row.
    Cost: sum over the entries l_ik of the length of row k of U, or of the rest of row i where that is far shorter,
    multiplications; n values of workspace for each thread.
    """
    _run(A, F, out, squares, refused, columns, damping, part)


def sweeps(A, F, count, squares, refused, columns=None, damping=1.0):
    """`count` of them, one after the other; see kernels/reference/sweeps.py."""
    for k in range(count):
        out = np.empty(F.nnz, F.dtype)
        sweep(A, F, out, None if squares is None else squares[k], refused, columns, damping)
        F = F.with_values(out)
    return F.data


def sweep_in_place(A, F, refused, columns=None):
    """An asynchronous sweep that overwrites F.data; see kernels/reference/sweeps.py.

    Arguments as for `sweep`. One thread gives the incomplete factorization on the pattern of F. Several threads read
    either the old or the new values of each other's rows, so that the result differs from run to run.
    """
    _run(A, F, None, None, refused, columns, 1.0, "whole")


def _run(A, F, out, squares, refused, columns, damping, part):
    """As `sweep`, or where out is None as `sweep_in_place`."""
    items = row_blocks(F, columns, searched=True)
    room = workspace(items.size - 1, F.n, F.data.dtype)
    real = F.data.dtype.type(0).real.dtype.type
    matrix, factors = (unsigned(A.indptr), unsigned(A.indices), A.data), (*pattern_arrays(F), F.data)
    columns, looked_up = None if columns is None else tuple(map(unsigned, columns)), has_long_rows(F, columns)
    parts, shares = (looked_up, part != "upper", part != "lower"), (damping != 1, real(damping), real(1 - damping))
    arguments = room, items, matrix, factors, columns, parts, shares, out, squares, refused, deadline.halt()
    run_items(_sweep, items.size - 1, *arguments, threads=len(room))
    deadline.check()


@compiled
def _sweep(state, done, workspace, items, A, F, columns, part, shares, out, squares, refused, halt):
    """Row by row: w = a_i on the pattern, then in ascending order of k w -= l_ik u_k, which leaves w[k] final.

    What lands in w outside of the pattern, finite or not, is never read: each row first writes all of its own places.
    If u_k is far longer than the rest of row i, the columns of the latter are looked up in it; looked_up says whether
    there are such rows.
    Where out is None, new values replace those of F at once: l_ik is final before it is used, and each read of another
    row gives its present value.
    """
    a_indptr, a_indices, a = A
    indptr, indices, diag, f = F
    if columns is not None:
        c_indptr, rows, places = columns
    (looked_up, lower, upper), (damped, new_part, old_part) = part, shares
    if out is None:
        lower, upper, damped = True, True, False  # constants for the compiler
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
                    new = divide(s, _value(f, d, out))
                    if damped:
                        new = new_part * new + old_part * old
                    if not np.isfinite(new):
                        bad += 1
                        new = _value(f, p, out)  # not `old`: a choice of two values would delay what needs l_ik
                _set(f, p, new, out)
                l = new if out is None else old
                if squares is not None:
                    square += squared_size(s - old * f[d])
                if columns is None:
                    first, last = d + ONE, np.uint64(indptr[k + ONE])
                    if squares is None and not lower:
                        first = place_of(indices, first, last, i)
                    elif squares is None and not upper:
                        last = place_of(indices, first, last, i)
                    if looked_up and last > first + many * (hi - p):
                        for e in range(p + ONE, hi):
                            first = place_of(indices, first, last, indices[e])
                            if first < last and indices[first] == indices[e]:
                                w[indices[e]] -= l * _value(f, first, out)
                        continue
                    for q in range(first, last):
                        w[indices[q]] -= l * _value(f, q, out)
                elif squares is None and not lower:
                    w[i] -= l * np.conj(l)
                else:
                    q, last = np.uint64(c_indptr[k]), np.uint64(c_indptr[k + ONE])
                    if looked_up and last > q + many * (hi - p):
                        for e in range(p + ONE, hi):
                            q = place_of(rows, q, last, indices[e])
                            if q < last and rows[q] == indices[e]:
                                w[indices[e]] -= l * np.conj(_value(f, np.uint64(places[q]), out))
                        continue
                    j = k
                    while j != i:  # row i is one of column k
                        q += ONE
                        j = np.uint64(rows[q])
                        w[j] -= l * np.conj(_value(f, np.uint64(places[q]), out))
            if columns is not None:
                square *= 2  # for the other triangle
            for p in range(pivot, hi):
                old, s = f[p], w[indices[p]]
                if columns is None:
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
                    new = _value(f, p, out)
                _set(f, p, new, out)
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


@compiled
def _value(f, p, out):
    """f[p], which another thread may be writing if out is None."""
    return load_relaxed(f, p) if out is None else f[p]


@compiled
def _set(f, p, value, out):
    """The new value of entry p goes to out, or where that is None to f."""
    if out is None:
        store_relaxed(f, p, value)
    else:
        out[p] = value
