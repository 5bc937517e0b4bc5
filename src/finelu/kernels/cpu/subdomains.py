"""Solves with the diagonal blocks of subdomains, which threads share; and the vectors of a coarse space."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu._coarse_products import (
    coarse_blocks,
    coarse_matrix,
    coarse_products,
    coarse_residual,
    couple,
    couple_rows,
)
from finelu.kernels.cpu._interleaved import Interleaved, in_groups, substitute
from finelu.kernels.cpu._orthonormal import orthonormal
from finelu.kernels.cpu._prolongation import direction_with_coarse, prolong, step_and_direction, steps_and_directions
from finelu.kernels.cpu._subdomain_columns import restrict_columns, solve_in_columns
from finelu.kernels.cpu.indices import pointers as list_pointers
from finelu.kernels.cpu.levels import levels
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import by_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lanes import LANES, add_up_rows
from finelu.kernels.cpu.runtime.row_blocks import COPY, even_items, threads_for, workspace
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.operands import require_indices

__all__ = [
    "coarse_blocks",
    "coarse_matrix",
    "coarse_products",
    "couple",
    "couple_rows",
    "direction_with_coarse",
    "orthonormal",
    "prolong",
    "step_and_direction",
    "steps_and_directions",
]

FAR = 6  # times as long as cheap operations on neighbouring entries take those on entries anywhere in memory


def inside(starts, rows, indptr, indices):
    """The block-diagonal matrix of the parts; see kernels/reference/subdomains.py."""
    items = even_items(starts.size - 1, indices.size + rows.size)
    A = unsigned(indptr), unsigned(indices)
    where = workspace(items.size - 1, indptr.size - 1, rows.dtype)
    arguments = items, starts, rows, *A, where
    counts, none = np.empty(rows.size, indices.dtype), np.empty(0, indices.dtype)
    run_items(_inside, items.size - 1, *arguments, False, counts, none, none, threads=where.shape[0])
    pointers, total = list_pointers(counts)
    require_indices("the diagonal blocks", total, pointers.dtype)
    columns, places = (np.empty(total, indices.dtype) for _ in range(2))
    run_items(_inside, items.size - 1, *arguments, True, pointers, columns, places, threads=where.shape[0])
    return pointers, columns, places


@compiled
def _inside(state, done, items, starts, rows, indptr, indices, workspaces, fill, pointers, columns, places):
    """With `fill` the entries of each row are written from its place in `pointers` on; else they are counted there."""
    t = next_item(state)
    where = workspaces[
        fetch_add(state, 1, 1) if t < done.size else 0
    ]  # the position of a row, for rows of the part; else any value
    while t < done.size:
        for p in range(items[t], items[t + 1]):
            first, last = starts[p], starts[p + 1]
            for k in range(first, last):
                where[rows[k]] = k
            for k in range(first, last):
                i, at = np.uint64(rows[k]), pointers[k] if fill else 0
                for place in range(indptr[i], indptr[i + ONE]):
                    j = indices[place]
                    other = where[j]
                    if first <= other < last and rows[other] == j:
                        if fill:
                            columns[at] = other
                            places[at] = place
                        at += 1
                if not fill:
                    pointers[k] = at
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


class SubdomainSolve:
    """Two triangular solves in each part, several parts at a time; see kernels/reference/subdomains.py.

    plans : `Natural`, of two triangles, whose values are copied, see _interleaved.py. Parts that are few for the
        threads, or unlike others, are solved one by one; that changes no bits.
    narrow : "", or how the copies of double precision are of single, if all fit its range: "adjoint", of plans of L
        and U whose L is (D^-1 U)^H, or of L and L^H, which the rounded ones are, too; "each", of L with a unit diagonal
        and U, where L and D^-1 U are rounded one by one.
    """

    def __init__(self, starts, plans, narrow=""):
        self.starts, self.plans, self._narrow = starts, plans, narrow
        work = int(starts[-1]) + sum(plan.triangle.entries for plan in plans)
        threads = threads_for(work, 2 * COPY)
        self._groups, full = in_groups(starts, plans, even_items(starts.size - 1, work), threads)
        sizes = np.append(np.diff(starts), 0)  # -1, no part, has none
        heights = sizes[self._groups].max(axis=1)
        self._row_starts = np.concatenate([[0], np.cumsum(heights)]).astype(np.int64)
        self._lanes = np.where(np.arange(heights.size) < full, LANES, 1)
        self._room = int((self._lanes * (heights + 1)).max(initial=0))
        self._items = even_items(self._groups.shape[0], work)
        layout = starts, self._groups, self._lanes, self._row_starts, self._items
        self._triangles = [Interleaved(*layout, plan) for plan in plans]
        self.load()

    @property
    def levels(self) -> int:
        """The most level sets of a triangle of a part."""
        return max(levels(plan.triangle)[1] for plan in self.plans)

    def load(self):
        """The plans have new values."""
        first, second = self._triangles
        cholesky = first.plan.triangle.diag is not None
        mirrored = second.plan if self._narrow == "adjoint" else None
        narrow = self._narrow and second.load(narrow=True, squared=cholesky)
        if narrow and first.load(narrow=True, mirrored=mirrored):
            return
        for triangle in self._triangles:
            triangle.load(narrow=False)

    @property
    def stored(self):
        """The dtype of the entries that a solve reads."""
        return self._triangles[0].stored

    def solve(self, r, x, rows, before=None, after=None, scattered=True, correction=None, sums=None):
        """See kernels/reference/subdomains.py."""
        if r.ndim == 2:
            self._solve_columns(r, x, rows, before, after, scattered, correction, sums)
            return
        Z = out = None
        if sums is not None:
            Z, c, restricted = sums.Z, sums.couplings, sums.restricted.reshape(sums.dots.size, -1)
            couplings = c.starts, c.ends, unsigned(c.rows), c.values
            out = r, *couplings, sums.conjugate, sums.of, restricted, sums.dots
        coarse = None
        if correction is not None and scattered:
            coarse = *_corrected(correction), correction.q
        elif correction is not None:
            r = coarse_residual(correction.products, correction.q, r)
        items = self._items
        room = workspace(items.size - 1, 2 * (self._room + LANES), x.dtype)
        layout = self.starts, self._groups, self._lanes, self._row_starts
        arguments = *layout, r, x, unsigned(rows), before, after, scattered, coarse, out, Z
        triangles = (triangle.arguments() for triangle in self._triangles)
        run_items(_solve, items.size - 1, items, *arguments, room, *triangles, threads=room.shape[0])

    def _solve_columns(self, r, x, rows, before, after, scattered, correction, sums):
        """For r (n, k), row-major."""
        out = None
        if sums is not None:
            c, Z = sums.couplings, np.ones((1, 1), x.dtype) if sums.Z is None else sums.Z
            values, Z = (v.conj() if sums.conjugate and v.dtype.kind == "c" else v for v in (c.values, Z))
            written = (v.reshape(-1) for v in (sums.of, sums.restricted, sums.dots))
            out = r.reshape(-1), c.starts, c.ends, unsigned(c.rows), values, Z, *written
        items, k, coarse = self._items, r.shape[1], None
        if correction is not None and scattered:
            coarse = *_corrected(correction), correction.q
        elif correction is not None:
            r = coarse_residual(correction.products, correction.q, r)
        blocks = -(-k // LANES)
        height = int(np.diff(self._row_starts).max(initial=0))
        room = workspace(items.size - 1, (2 * height + 2) * blocks * LANES, x.dtype)
        layout = self.starts, self._groups, self._lanes, self._row_starts
        own = r.reshape(-1), x.reshape(-1), np.uint64(k), blocks
        arguments = *layout, *own, unsigned(rows), before, after, scattered, coarse, out
        triangles = (triangle.arguments() for triangle in self._triangles)
        run_items(solve_in_columns, items.size - 1, items, *arguments, room, *triangles, threads=room.shape[0])


def _corrected(correction):
    """What the kernels read of a `Correction` besides q: whether Z q is added, Z, and the entries of A Z by parts."""
    c = correction.couplings
    entries = c.bounds, unsigned(c.vectors), unsigned(c.rows), c.values.reshape(-1)
    return correction.added, correction.Z, *entries, np.uint64(c.values.shape[1])


@compiled
def _solve(
    state,
    done,
    items,
    starts,
    groups,
    lanes,
    row_starts,
    r,
    x,
    rows,
    in_scale,
    out_scale,
    scattered,
    coarse,
    sums,
    Z,
    workspaces,
    first_triangle,
    second_triangle,
):
    """A workspace has the unknowns of a group, its right-hand side once more, and two sums a lane, in this order."""
    t = next_item(state)
    s = workspaces[fetch_add(state, 1, 1) if t < done.size else 0]
    given, result = s.size // 2 - LANES, s.size - 2 * LANES
    while t < done.size:
        for g in range(items[t], items[t + 1]):
            base, end, count = row_starts[g], row_starts[g + 1], lanes[g]
            for lane in range(count):
                p, one = groups[g, lane], s[lane::count]
                first = np.uint64(0 if p < 0 else starts[p])
                size = np.uint64(0 if p < 0 else starts[p + 1] - starts[p])
                if sums is not None and Z is None and count == LANES:
                    same = s[given + lane :: LANES]
                    for k in range(size):
                        one[k] = same[k] = r[rows[first + k]]
                    same[size : end - base] = 0
                else:
                    for k in range(size):
                        one[k] = r[rows[first + k]]
                if coarse is not None:
                    _, _, begins, vectors, corrected, products, m, q = coarse
                    begin, stop = (np.uint64(begins[p]), np.uint64(begins[p + 1])) if p >= 0 else (first, first)
                    for e in range(begin, stop):
                        if m == ONE:  # no inner loop
                            one[corrected[e]] -= products[e] * q[vectors[e]]
                        else:
                            for column in range(m):
                                one[corrected[e]] -= products[e * m + column] * q[vectors[e] * m + column]
                if in_scale is not None:
                    for k in range(size):
                        one[k] *= in_scale[first + k]
                one[size : end - base + 1] = 0
            substitute(s, g, count, base, end, *first_triangle)
            substitute(s, g, count, base, end, *second_triangle)
            if sums is not None and Z is None and count == LANES:
                add_up_rows(s, given, 0, end - base, result)
            for lane in range(count):
                p, one = groups[g, lane], s[lane::count]
                if p < 0:
                    continue
                first, size = np.uint64(starts[p]), np.uint64(starts[p + 1] - starts[p])
                for k in range(size):
                    v = one[k] if out_scale is None else one[k] * out_scale[first + k]
                    x[rows[first + k] if scattered else first + k] = one[k] = v
                if sums is not None:
                    b, couplings, ends, coupled, values, conjugate, of, restricted, dots = sums
                    own = slice(first, first + size)
                    _add_up_couplings(couplings[p], couplings[p + 1], ends, coupled, values, conjugate, one, of)
                    if Z is None and count == LANES:
                        dots[p], restricted[p, 0] = s[result + lane], s[result + LANES + lane]
                    else:
                        dots[p] = _add_up(b, rows[own], one, None if Z is None else Z[own], conjugate, restricted[p])
                if coarse is not None and coarse[0]:
                    _prolong_part(np.uint64(p), rows[first : first + size], coarse[1], coarse[6], coarse[7], x)
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


@compiled
def _prolong_part(p, rows, Z, m, q, x):
    """x += Z q in part p."""
    for k in range(rows.size):
        if Z is None:
            x[rows[k]] += q[p]
        else:
            for column in range(m):
                x[rows[k]] += Z[rows[k], column] * q[p * m + column]


@compiled
def _add_up_couplings(begin, end, ends, coupled, values, conjugate, x, sums):
    """sums[c] = the sum of conj(v) x over the entries of coupling c, for begin <= c < end; x of the part."""
    for c in range(begin, end):
        for column in range(values.shape[1]):
            total = x.dtype.type(0)
            for e in range(np.uint64(ends[c]), np.uint64(ends[c + 1])):
                v = values[e, column]
                total += (np.conj(v) if conjugate else v) * x[coupled[e]]
            sums[c, column] = total


@compiled
def _add_up(r, rows, x, Z, conjugate, restricted):
    """r^H x in a part, and its Z^H r."""
    dot = total = x.dtype.type(0)
    restricted[:] = 0
    for k in range(np.uint64(rows.size)):
        b = r[rows[k]]
        dot += np.conj(b) * x[k]
        if Z is None:
            total += b  # in a register
        else:
            for column in range(restricted.size):
                z = Z[k, column]
                restricted[column] += (np.conj(z) if conjugate else z) * b
    if Z is None:
        restricted[0] = total
    return dot


def restrict(starts, rows, values, r, conjugate):
    """Sums of conj(v_k) r[rows_k] in each part; see kernels/reference/subdomains.py."""
    columns = 1 if values is None else values.shape[1]
    if r.ndim == 2:
        g = np.zeros(((starts.size - 1) * columns, r.shape[1]), r.dtype)
        items = even_items(starts.size - 1, rows.size * columns * r.shape[1])
        run_items(restrict_columns, items.size - 1, items, starts, rows, values, r, conjugate, columns, g)
        return g
    g = np.zeros((starts.size - 1, columns), r.dtype)
    items = even_items(starts.size - 1, rows.size * columns)
    run_items(_restrict, items.size - 1, items, starts, rows, values, r, conjugate, g)
    return g.reshape(-1)


@by_items
def _restrict(t, items, starts, rows, values, r, conjugate, g):
    for p in range(items[t], items[t + 1]):
        if g.shape[1] == 1:  # the sum of one column stays in a register
            total = g[p, 0]
            for k in range(starts[p], starts[p + 1]):
                if values is None:
                    total += r[rows[k]]
                else:
                    total += (np.conj(values[k, 0]) if conjugate else values[k, 0]) * r[rows[k]]
            g[p, 0] = total
        elif values is not None:
            for k in range(starts[p], starts[p + 1]):
                v = r[rows[k]]
                for c in range(g.shape[1]):
                    g[p, c] += (np.conj(values[k, c]) if conjugate else values[k, c]) * v


def sum_couplings(couplings, sums, less=None):
    """The sums of each coarse vector over its couplings; see kernels/reference/subdomains.py."""
    out = np.zeros((couplings.vector_starts.size - 1, sums.shape[1]), sums.dtype)
    items = even_items(out.shape[0], FAR * couplings.members.size * sums.shape[1])
    run_items(_sum_couplings, items.size - 1, items, couplings.vector_starts, couplings.members, sums, out)
    total = out.reshape(-1)
    return total if less is None else less - total


@by_items
def _sum_couplings(t, items, starts, members, sums, out):
    m = out.shape[1]
    for q in range(items[t], items[t + 1]):
        if m < LANES:
            for column in range(m):
                total = out[q, column]  # in a register
                for k in range(starts[q], starts[q + 1]):
                    total += sums[members[k], column]
                out[q, column] = total
        else:
            for k in range(starts[q], starts[q + 1]):
                for column in range(m):
                    out[q, column] += sums[members[k], column]
