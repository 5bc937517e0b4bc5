"""Solves with the diagonal blocks of subdomains, which threads share; and the vectors of a coarse space."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from finelu.kernels.cpu._interleaved import Interleaved, in_groups, substitute
from finelu.kernels.cpu._orthonormal import orthonormal
from finelu.kernels.cpu._prolongation import direction_with_coarse, prolong, step_and_direction, steps_and_directions
from finelu.kernels.cpu._subdomain_columns import coarse_residual_columns, restrict_columns, solve_in_columns
from finelu.kernels.cpu.indices import grouped
from finelu.kernels.cpu.indices import pointers as list_pointers
from finelu.kernels.cpu.levels import levels
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import by_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lanes import LANES
from finelu.kernels.cpu.runtime.row_blocks import COPY, even_items, threads_for, workspace
from finelu.kernels.cpu.runtime.sharing import run_items, shared_out
from finelu.kernels.operands import Couplings, require_indices

__all__ = ["direction_with_coarse", "orthonormal", "prolong", "step_and_direction", "steps_and_directions"]

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
    narrow : whether the copies of double precision are of single, if all fit its range; only of plans of L and U whose
        L is (D^-1 U)^H, or of L and L^H.
    """

    def __init__(self, starts, plans, narrow=False):
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
        narrow = self._narrow and second.load(narrow=True, squared=cholesky)
        if narrow and first.load(narrow=True, mirrored=second.plan):
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
        room = workspace(items.size - 1, self._room, x.dtype)
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
    t = next_item(state)
    s = workspaces[fetch_add(state, 1, 1) if t < done.size else 0]
    while t < done.size:
        for g in range(items[t], items[t + 1]):
            base, end, count = row_starts[g], row_starts[g + 1], lanes[g]
            for lane in range(count):
                p, one = groups[g, lane], s[lane::count]
                first = np.uint64(0 if p < 0 else starts[p])
                size = np.uint64(0 if p < 0 else starts[p + 1] - starts[p])
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
            for lane in range(count):
                p, one = groups[g, lane], s[lane::count]
                if p < 0:
                    continue
                first, size = np.uint64(starts[p]), np.uint64(starts[p + 1] - starts[p])
                for k in range(size):
                    v = one[k] if out_scale is None else one[k] * out_scale[first + k]
                    x[rows[first + k] if scattered else first + k] = one[k] = v
                if sums is not None:
                    given, couplings, ends, coupled, values, conjugate, of, restricted, dots = sums
                    own = slice(first, first + size)
                    _add_up_couplings(couplings[p], couplings[p + 1], ends, coupled, values, conjugate, one, of)
                    dots[p] = _add_up(given, rows[own], one, None if Z is None else Z[own], conjugate, restricted[p])
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


def coarse_products(indptr, indices, data, parts, count, Z):
    """A Z by rows; see kernels/reference/subdomains.py."""
    n, m = indptr.size - 1, 1 if Z is None else Z.shape[1]
    items = shared_out(indptr, indices.size)
    places = workspace(items.size - 1, count, np.int64)
    arguments = items, unsigned(indptr), unsigned(indices), data, parts, Z, places
    counts, none, nothing = np.empty(n, np.int32), np.empty(0, np.int32), np.empty((0, m), data.dtype)
    run_items(_coarse_products, items.size - 1, *arguments, False, counts, none, nothing, threads=places.shape[0])
    pointers, total = list_pointers(counts)
    require_indices("A Z", total, pointers.dtype)
    part, values = np.empty(total, np.int32), np.empty((total, m), data.dtype)
    run_items(_coarse_products, items.size - 1, *arguments, True, pointers, part, values, threads=places.shape[0])
    return pointers, part, values


@compiled
def _coarse_products(state, done, items, indptr, indices, data, parts, Z, workspaces, fill, pointers, part, values):
    m = values.shape[1]
    t = next_item(state)
    place = workspaces[
        fetch_add(state, 1, 1) if t < done.size else 0
    ]  # of a part in `met`, for parts of this row; else any value
    met, sums = np.empty(64, np.int64), np.empty((64, m), values.dtype)
    while t < done.size:
        for i in range(items[t], items[t + 1]):
            begin, end, count = indptr[i], indptr[i + ONE], 0
            if end - begin > met.size:
                met, sums = np.empty(2 * (end - begin), np.int64), np.empty((2 * (end - begin), m), values.dtype)
            previous, k = np.int64(-1), np.int64(0)
            for e in range(begin, end):
                j = indices[e]
                p = np.int64(parts[j])
                if p != previous:
                    previous, k = p, place[p]
                    if not (0 <= k < count and met[k] == p):
                        k, place[p], met[count] = count, count, p
                        for c in range(m):
                            sums[k, c] = 0
                        count += 1
                if Z is None:
                    sums[k, 0] += data[e]
                else:
                    for c in range(m):
                        sums[k, c] += data[e] * Z[j, c]
            at = pointers[i] if fill else 0
            for k in range(count):
                kept = False
                for c in range(m):
                    kept = kept or sums[k, c] != 0
                if kept:
                    if fill:
                        part[at] = met[k]
                        for c in range(m):
                            values[at, c] = sums[k, c]
                    at += 1
            if not fill:
                pointers[i] = at
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


def coarse_residual(products, q, r):
    """r - A Z q; see kernels/reference/subdomains.py."""
    values = products[2]
    out = np.empty_like(r)
    if r.ndim == 2:
        items = even_items(r.shape[0], r.size + values.size * r.shape[1])
        run_items(coarse_residual_columns, items.size - 1, items, *products, q, r, out)
        return out
    items = even_items(r.size, r.size + values.size)
    run_items(_coarse_residual, items.size - 1, items, *products, q.reshape(-1, values.shape[1]), r, out)
    return out


@by_items
def _coarse_residual(t, items, pointers, part, values, q, r, out):
    for i in range(items[t], items[t + 1]):
        total = r[i]
        for p in range(pointers[i], pointers[i + 1]):
            for c in range(values.shape[1]):
                total -= values[p, c] * q[part[p], c]
        out[i] = total


def couple(products, rows, parts, starts, members):
    """The couplings of A Z; see kernels/reference/subdomains.py. The order is None: no caller needs it here."""
    _, part, values = products
    count = starts.size - 1
    items = even_items(count, parts.size + part.size)
    places = workspace(items.size - 1, count, np.int64)
    of_parts = np.zeros((2, count + 1), np.int32)  # couplings and entries, then where those of each part begin
    arguments = items, starts, members, products, places
    short = np.uint16 if int(np.diff(starts).max()) <= 2**16 else np.int32  # positions within a part
    none, nothing = np.empty(0, np.int32), np.empty((0, values.shape[1]), values.dtype)
    no_room = none, none, np.empty(0, short), none, none, nothing
    run_items(_couple, items.size - 1, *arguments, False, of_parts, no_room, threads=places.shape[0])
    of_parts = np.concatenate([np.zeros((2, 1), np.int32), np.cumsum(of_parts[:, :-1], axis=1, dtype=np.int32)], axis=1)
    couplings, entries = (int(number) for number in of_parts[:, -1])
    ends, of_vectors = np.empty(couplings + 1, np.int32), np.empty(couplings, np.int32)
    local, of_rows, sorted_values = np.empty(entries, short), np.empty(entries, np.int32), np.empty_like(values)
    ends[-1] = entries
    of_entries = np.empty_like(of_rows)
    filled = ends, of_vectors, local, of_rows, of_entries, sorted_values
    run_items(_couple, items.size - 1, *arguments, True, of_parts, filled, threads=places.shape[0])
    by_vectors, vector_starts = grouped(of_vectors, count)
    by_rows = of_parts[0].copy(), ends, local, of_rows, of_entries, sorted_values
    return Couplings(*by_rows, vector_starts, by_vectors), None


@compiled
def _couple(state, done, items, starts, members, products, workspaces, fill, of_parts, results):
    """The parts of vectors that each part of rows meets, in ascending order, and their entries by rows; each part has
    its own places to write to. Without `fill` only the numbers of both."""
    (pointers, part, values), (ends, of_vectors, local, of_rows, of_entries, sorted_values) = products, results
    t = next_item(state)
    place = workspaces[
        fetch_add(state, 1, 1) if t < done.size else 0
    ]  # of a part in `met`, for those of this part; else any value
    while t < done.size:
        for p in range(items[t], items[t + 1]):
            first, last = starts[p], starts[p + 1]
            entries = 0
            for s in range(first, last):
                entries += pointers[members[s] + 1] - pointers[members[s]]
            room = min(entries, place.size)
            met, numbers, count = np.empty(room, np.int64), np.empty(room, np.int64), 0
            for s in range(first, last):
                for e in range(pointers[members[s]], pointers[members[s] + 1]):
                    q = part[e]
                    k = place[q]
                    if not (0 <= k < count and met[k] == q):
                        k, place[q], met[count], numbers[count] = count, count, q, 0
                        count += 1
                    numbers[k] += 1
            if not fill:
                of_parts[0, p], of_parts[1, p] = count, entries
                continue
            total = np.int64(of_parts[1, p])
            at = np.empty(count, np.int64)
            for rank, k in enumerate(np.argsort(met[:count])):
                place[met[k]] = rank
                of_vectors[of_parts[0, p] + rank] = met[k]
                ends[of_parts[0, p] + rank] = at[rank] = total
                total += numbers[k]
            for s in range(first, last):
                i = members[s]
                for e in range(pointers[i], pointers[i + 1]):
                    k = place[part[e]]
                    local[at[k]], of_rows[at[k]], of_entries[at[k]] = s - first, i, part[e]
                    for column in range(values.shape[1]):
                        sorted_values[at[k], column] = values[e, column]
                    at[k] += 1
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


def coarse_blocks(products, rows, Z, conjugate, couplings, order):
    """The blocks of Z^H A Z; see kernels/reference/subdomains.py."""
    c, m = couplings, products[2].shape[1]
    blocks = np.zeros((c.members.size, m, m), np.result_type(c.values.dtype, np.float64))
    items = even_items(c.members.size, c.values.size * m)
    run_items(_sum_blocks, items.size - 1, items, c.ends, c.of_rows, c.values, Z, conjugate, blocks)
    return blocks


def coarse_matrix(products, rows, parts, count, Z, conjugate, couplings, order):
    """Z^H A Z, as a sparse matrix; see kernels/reference/subdomains.py."""
    c, m = couplings, products[2].shape[1]
    blocks = coarse_blocks(products, rows, Z, conjugate, couplings, order)
    of_vectors = np.empty(c.members.size, np.int32)
    of_vectors[c.members] = np.repeat(np.arange(count, dtype=np.int32), np.diff(c.vector_starts))
    return sp.bsr_matrix((blocks, of_vectors, c.starts), shape=(count * m, count * m)).tocsr()


@by_items
def _sum_blocks(t, items, ends, of_rows, values, Z, conjugate, blocks):
    """blocks[c] = the sum of Z_i^H v over the entries of coupling c, or of Z_i^T v."""
    for c in range(items[t], items[t + 1]):
        for e in range(ends[c], ends[c + 1]):
            for b in range(values.shape[1]):
                if Z is None:
                    blocks[c, 0, b] += values[e, b]
                else:
                    for a in range(values.shape[1]):
                        z = Z[of_rows[e], a]
                        blocks[c, a, b] += (np.conj(z) if conjugate else z) * values[e, b]
