"""The kernels of subdomains.py for several vectors at once, the columns of arrays (n, k), row-major.

A part is solved after the other, LANES columns of it in each vector register, whatever the patterns of the others are.
Each column has the bits that it has alone.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu._interleaved import substitute_columns
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.columns import inner_rows, read_row, scale_row, sum_entries, sum_rows, write_row
from finelu.kernels.cpu.runtime.indices import ONE
from finelu.kernels.cpu.runtime.items import by_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lanes import LANES
from finelu.kernels.monitor import CODE, RUNNING


@compiled
def solve_in_columns(
    state, done, items, starts, groups, lanes, row_starts, r, x, k, blocks, rows, in_scale, out_scale, scattered,
    coarse, sums, workspaces, first_triangle, second_triangle,
):  # fmt: skip
    """As `_solve` of subdomains.py, for k columns in `blocks` tiles, whose rows are those of a part of s.

    sums : None; or (b, couplings, ends, coupled, values, Z, of, restricted, dots) with conj(values) and conj(Z), or
        Z = [1] for the constant, (1, 1).
    """
    t = next_item(state)
    s = workspaces[fetch_add(state, 1, 1) if t < done.size else 0]
    stride, width = np.uint64(blocks * LANES), np.uint64(LANES)
    while t < done.size:
        for g in range(items[t], items[t + 1]):
            base, end = row_starts[g], row_starts[g + 1]
            for lane in range(lanes[g]):
                p = groups[g, lane]
                if p < 0:
                    continue
                first, size = starts[p], starts[p + 1] - starts[p]
                for i in range(size):
                    row = np.uint64(rows[first + i]) * k
                    for block in range(blocks):
                        tile = np.uint64(block) * width
                        read_row(s, stride, tile, np.uint64(i), r, row + tile, ONE, min(width, k - tile) - ONE)
                if coarse is not None:
                    _correct_columns(p, *coarse[2:], s, stride)
                if in_scale is not None:
                    for i in range(size):
                        for block in range(blocks):
                            scale_row(
                                s, stride, np.uint64(block) * width, np.uint64(i), s.dtype.type(in_scale[first + i])
                            )
                s[size * stride : (end - base + 1) * stride] = 0
                substitute_columns(s, blocks, size, g, lane, lanes[g], base, end, *first_triangle)
                substitute_columns(s, blocks, size, g, lane, lanes[g], base, end, *second_triangle)
                for i in range(size):
                    row = np.uint64(rows[first + i] if scattered else first + i) * k
                    for block in range(blocks):
                        tile = np.uint64(block) * width
                        if out_scale is not None:
                            scale_row(s, stride, tile, np.uint64(i), s.dtype.type(out_scale[first + i]))
                        write_row(s, stride, tile, np.uint64(i), x, row + tile, ONE, min(width, k - tile) - ONE)
                if sums is not None:
                    b, couplings, ends, coupled, values, Z, of, restricted, dots = sums
                    of_part = couplings[p], couplings[p + 1], ends, coupled, values
                    result = np.uint64(end - base + 1)  # the row of s behind the others
                    _sum_couplings(of_part, s, stride, blocks, result, k, of)
                    _sum_part(b, rows, p, first, size, s, stride, blocks, result, k, Z, restricted, dots)
                if coarse is not None and coarse[0]:
                    _prolong_columns_of_part(rows[first : first + size], p, coarse[1], coarse[7], x)
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


@compiled
def _correct_columns(p, starts, vectors, coupled, values, m, q, r, stride):
    """r -= A Z q in part p, for the columns of q (parts * m, k)."""
    for e in range(np.uint64(starts[p]), np.uint64(starts[p + 1])):
        at = np.uint64(coupled[e]) * stride
        for column in range(m):
            v, of = values[e * m + column], q[vectors[e] * m + column]
            for j in range(stride):  # the copies of the last column, too
                r[at + j] -= v * of[min(j, np.uint64(of.size) - ONE)]


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
def _sum_couplings(of_part, s, stride, blocks, result, k, of):
    """As `_add_up_couplings`: the columns of a coarse vector are side by side in `of`.  result : a row of s to use."""
    begin, end, ends, coupled, values = of_part
    m, width = np.uint64(values.shape[1]), np.uint64(LANES)
    V = values.reshape(-1)
    for c in range(begin, end):
        first, count = np.uint64(ends[c]), np.uint64(ends[c + 1] - ends[c])
        for column in range(values.shape[1]):
            at = (np.uint64(c) * m + np.uint64(column)) * k
            value = first * m + np.uint64(column)
            for block in range(blocks):
                tile = np.uint64(block) * width
                sum_entries(s, stride, tile, result, coupled, first, V, value, m, ONE, count)
                write_row(s, stride, tile, result, of, at + tile, ONE, min(width, k - tile) - ONE)


@compiled
def _sum_part(b, rows, p, first, size, s, stride, blocks, result, k, Z, restricted, dots):
    """As `_add_up`: the columns of a coarse vector are side by side in `restricted`. The rows of b come behind
    `result` in s."""
    width, given, count = np.uint64(LANES), result + ONE, np.uint64(size)
    m, one = np.uint64(Z.shape[1]), Z.shape[0] == 1
    V, of_part = Z.reshape(-1), np.uint64(p)
    for block in range(blocks):
        tile = np.uint64(block) * width
        last = min(width, k - tile) - ONE
        for i in range(size):
            read_row(s, stride, tile, given + np.uint64(i), b, np.uint64(rows[first + i]) * k + tile, ONE, last)
        inner_rows(s, stride, tile, result, given, np.uint64(0), count)
        write_row(s, stride, tile, result, dots, of_part * k + tile, ONE, last)
        for column in range(Z.shape[1]):
            value = np.uint64(column) if one else np.uint64(first) * m + np.uint64(column)
            sum_rows(s, stride, tile, result, given, V, value, np.uint64(0) if one else m, count)
            at = (of_part * m + np.uint64(column)) * k + tile
            write_row(s, stride, tile, result, restricted, at, ONE, last)


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
def directions(t, items, moving, beta, parts, Z, q, z, p, alpha, kept, x, best):
    m = 1 if Z is None else Z.shape[1]
    for i in range(items[t], items[t + 1]):
        own, total = p[i], z[i]
        at, better = x[i], best[i]
        for c in range(own.size):
            if kept[c]:
                better[c] = at[c]
            if alpha[c] != 0:
                at[c] += alpha[c] * own[c]
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
