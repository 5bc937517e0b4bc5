"""The kernels of subdomains.py for several vectors at once, the columns of arrays (n, k), row-major.

A part is solved after the other, LANES columns of it in each vector register, whatever the patterns of the others are.
Each column has the bits that it has alone.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu._interleaved import substitute_columns
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.items import by_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lanes import LANES
from finelu.kernels.monitor import CODE, RUNNING


@compiled
def solve_in_columns(
    state, done, items, starts, groups, lanes, row_starts, r, x, k, blocks, rows, in_scale, out_scale, scattered,
    coarse, sums, Z, workspaces, first_triangle, second_triangle,
):  # fmt: skip
    t = next_item(state)
    s = workspaces[fetch_add(state, 1, 1) if t < done.size else 0]
    stride = blocks * LANES
    while t < done.size:
        for g in range(items[t], items[t + 1]):
            base, end = row_starts[g], row_starts[g + 1]
            for lane in range(lanes[g]):
                p = groups[g, lane]
                if p < 0:
                    continue
                first, size = starts[p], starts[p + 1] - starts[p]
                for i in range(size):
                    given, own = r[rows[first + i] * k : (rows[first + i] + 1) * k], s[i * stride : (i + 1) * stride]
                    for c in range(k):
                        own[c] = given[c]
                    own[k:] = 0
                if coarse is not None:
                    _correct_columns(p, *coarse[2:], s, stride)
                if in_scale is not None:
                    for i in range(size):
                        for c in range(k):
                            s[i * stride + c] *= in_scale[first + i]
                s[size * stride : (end - base + 1) * stride] = 0
                substitute_columns(s, blocks, size, g, lane, lanes[g], base, end, *first_triangle)
                substitute_columns(s, blocks, size, g, lane, lanes[g], base, end, *second_triangle)
                for i in range(size):
                    at = rows[first + i] if scattered else first + i
                    found, own = x[at * k : (at + 1) * k], s[i * stride : (i + 1) * stride]
                    for c in range(k):
                        v = own[c] if out_scale is None else own[c] * out_scale[first + i]
                        found[c] = own[c] = v
                if sums is not None:
                    b, couplings, ends, coupled, values, conjugate, of, restricted, dots = sums
                    of_part = couplings[p], couplings[p + 1], ends, coupled, values, conjugate
                    _add_up_columns(*of_part, s, stride, k, of)
                    own = slice(first, first + size)
                    V = None if Z is None else Z[own]
                    _add_up_parts(b, rows[own], s, stride, k, V, conjugate, restricted[p], dots[p])
                if coarse is not None and coarse[0]:
                    _prolong_columns_of_part(rows[first : first + size], p, coarse[1], coarse[7], x)
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


@compiled
def _correct_columns(p, starts, vectors, coupled, values, m, q, r, stride):
    """r -= A Z q in part p, for the columns of q (parts * m, k)."""
    for e in range(np.uint64(starts[p]), np.uint64(starts[p + 1])):
        at = np.int64(coupled[e]) * stride
        for column in range(m):
            v, of = values[e * m + column], q[vectors[e] * m + column]
            for j in range(of.size):
                r[at + j] -= v * of[j]


@compiled
def _prolong_columns_of_part(rows, p, Z, q, x):
    """x += Z q in part p, for the columns of q (parts * m, k)."""
    m, k = 1 if Z is None else Z.shape[1], q.shape[1]
    for i in range(rows.size):
        own = x[rows[i] * k : (rows[i] + 1) * k]
        for column in range(m):
            of = q[p * m + column]
            if Z is None:
                for c in range(k):
                    own[c] += of[c]
            else:
                z = Z[rows[i], column]
                for c in range(k):
                    own[c] += z * of[c]


@compiled
def _add_up_columns(begin, end, ends, coupled, values, conjugate, x, stride, k, sums):
    """As `_add_up_couplings`, for k columns of x: those of a coarse vector are side by side in `sums`."""
    m = values.shape[1]
    for c in range(begin, end):
        for column in range(m):
            own = sums[c * m + column]
            own[:] = 0
            for e in range(ends[c], ends[c + 1]):
                v = values[e, column]
                v = np.conj(v) if conjugate else v
                row = x[coupled[e] * stride : coupled[e] * stride + k]
                for j in range(k):
                    own[j] += v * row[j]


@compiled
def _add_up_parts(r, rows, x, stride, k, Z, conjugate, restricted, dots):
    """As `_add_up`, for k columns: those of a coarse vector are side by side in `restricted`."""
    restricted[:] = 0
    dots[:] = 0
    for i in range(rows.size):
        b, own = r[rows[i] * k : (rows[i] + 1) * k], x[i * stride : i * stride + k]
        for c in range(k):
            dots[c] += np.conj(b[c]) * own[c]
        if Z is None:
            for c in range(k):
                restricted[c] += b[c]
        else:
            for column in range(Z.shape[1]):
                z, total = Z[i, column], restricted[column * k : (column + 1) * k]
                z = np.conj(z) if conjugate else z
                for c in range(k):
                    total[c] += z * b[c]


@by_items
def restrict_columns(t, items, starts, rows, values, r, conjugate, m, g):
    for p in range(items[t], items[t + 1]):
        for i in range(starts[p], starts[p + 1]):
            given = r[rows[i]]
            for column in range(m):
                total = g[p * m + column]
                if values is None:
                    for c in range(given.size):
                        total[c] += given[c]
                else:
                    v = np.conj(values[i, column]) if conjugate else values[i, column]
                    for c in range(given.size):
                        total[c] += v * given[c]


@by_items
def prolong_columns(t, items, parts, Z, q, x):
    for i in range(items[t], items[t + 1]):
        own = x[i]
        if Z is None:
            of = q[parts[i]]
            for c in range(own.size):
                own[c] += of[c]
        else:
            for column in range(Z.shape[1]):
                z, of = Z[i, column], q[np.int64(parts[i]) * Z.shape[1] + column]
                for c in range(own.size):
                    own[c] += z * of[c]


@compiled
def factors_of_directions(which, states, rho, rho_old, moving, beta):
    for c in range(which.size):
        moving[c] = states[which[c], CODE] == RUNNING
        if moving[c]:
            beta[c] = rho[which[c]].real / rho_old[which[c]].real


@by_items
def directions(t, items, moving, beta, parts, Z, q, z, p):
    m = 1 if Z is None else Z.shape[1]
    for i in range(items[t], items[t + 1]):
        own, total = p[i], z[i]
        for column in range(m):
            of = q[np.int64(parts[i]) * m + column]
            if Z is None:
                for c in range(own.size):
                    total[c] += of[c]
            else:
                v = Z[i, column]
                for c in range(own.size):
                    total[c] += v * of[c]
        for c in range(own.size):
            v = total[c] + beta[c] * own[c]
            own[c] = v if moving[c] else own[c]


@by_items
def coarse_residual_columns(t, items, pointers, part, values, q, r, out):
    m = values.shape[1]
    for i in range(items[t], items[t + 1]):
        total, given = out[i], r[i]
        for c in range(total.size):
            total[c] = given[c]
        for p in range(pointers[i], pointers[i + 1]):
            for column in range(m):
                v, of = values[p, column], q[np.int64(part[p]) * m + column]
                for c in range(total.size):
                    total[c] -= v * of[c]
