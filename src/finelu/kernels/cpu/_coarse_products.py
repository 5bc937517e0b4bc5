"""A Z for a coarse space Z, by rows and by couplings of parts, and the matrix Z^H A Z; threads share the rows."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from finelu.kernels.cpu._subdomain_columns import coarse_residual_columns
from finelu.kernels.cpu.indices import grouped
from finelu.kernels.cpu.indices import pointers as list_pointers
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.indices import ONE, unsigned
from finelu.kernels.cpu.runtime.items import by_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.row_blocks import even_items, workspace
from finelu.kernels.cpu.runtime.sharing import run_items, shared_out
from finelu.kernels.operands import Couplings, require_indices

FEW = 32  # parts of vectors among which those of a part of rows are sorted by insertion


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


def couple_rows(indptr, indices, data, parts, starts, members, Z):
    """The couplings of A Z, made from A in one pass; see kernels/reference/subdomains.py.

    An item of parts writes from the place on that its entries of A have among those of all items: it has no more
    couplings and no more entries of A Z. What was written is then put together.
    """
    count, m = starts.size - 1, 1 if Z is None else Z.shape[1]
    items = even_items(count, 2 * (parts.size + indices.size))
    rows = unsigned(indptr), unsigned(indices), data, parts, starts, members
    room = np.zeros(items.size, np.int64)
    run_items(_rows_of_items, items.size - 1, items, rows[0], starts, members, room[1:])
    np.cumsum(room, out=room)
    places = workspace(items.size - 1, 2 * count, np.int32)
    short = np.uint16 if int(np.diff(starts).max()) <= 2**16 else np.int32  # positions within a part
    total = int(room[-1])
    found = tuple(np.empty(total, kind) for kind in (np.int32, np.int32, short, np.int32))
    values = np.empty((total, m), data.dtype)
    per_part, per_item = np.empty(count, np.int32), np.zeros((2, items.size), np.int64)
    arguments = items, room, *rows, Z, places, per_part, per_item[:, 1:], found, values
    run_items(_couple_rows, items.size - 1, *arguments, threads=places.shape[0])
    np.cumsum(per_item, axis=1, out=per_item)
    couplings, entries = (int(number) for number in per_item[:, -1])
    require_indices("A Z", entries, np.dtype(np.int32))
    begins = np.zeros(count + 1, np.int32)
    np.cumsum(per_part, out=begins[1:])
    of_couplings = np.empty(couplings + 1, np.int32), np.empty(couplings, np.int32)
    of_couplings[0][-1] = entries
    of_entries = np.empty(entries, short), np.empty(entries, np.int32), np.empty(entries, np.int32)
    of_entries = *of_entries, np.empty((entries, m), data.dtype)
    run_items(_put_together, items.size - 1, room, per_item, found, values, *of_couplings, *of_entries)
    by_vectors, vector_starts = grouped(of_couplings[1], count)
    return Couplings(begins, of_couplings[0], *of_entries, vector_starts, by_vectors)


@by_items
def _rows_of_items(t, items, indptr, starts, members, room):
    """room[t] : the entries of the rows of item t."""
    total = np.int64(0)
    for s in range(starts[items[t]], starts[items[t + 1]]):
        i = np.uint64(members[s])
        total += np.int64(indptr[i + ONE] - indptr[i])
    room[t] = total


@compiled
def _couple_rows(
    state, done, items, room, indptr, indices, data, parts, starts, members, Z, workspaces, per_part, per_item,
    found, values,
):  # fmt: skip
    """per_part[p] : the couplings of part p.  per_item[:, t] : the couplings and entries of item t, which are written
    from room[t] on: of each coupling the part of its vectors and its number of entries, and of each entry its position
    within the part, its row, and its values."""
    of_vectors, numbers, local, of_rows = found
    m, count = values.shape[1], parts.dtype.type(per_part.size)
    t = next_item(state)
    place = workspaces[fetch_add(state, 1, 1) if t < done.size else 0]
    in_row, in_part = place[:count], place[count:]  # of a part in `met` and in `seen`, for those there; else any value
    met, sums = np.empty(64, np.int32), np.empty((64, m), values.dtype)
    seen, begins = np.empty(64, np.int32), np.empty(64, np.int32)
    kept, kept_local, kept_values = np.empty(64, np.int32), np.empty(64, np.int32), np.empty((64, m), values.dtype)
    while t < done.size:
        coupling, entry = np.int64(room[t]), np.int64(room[t])
        for p in range(items[t], items[t + 1]):
            begin, end = np.uint64(starts[p]), np.uint64(starts[p + 1])
            most = np.int64(0)
            for s in range(begin, end):
                i = np.uint64(members[s])
                most += np.int64(indptr[i + ONE] - indptr[i])
            if most > kept.size:
                kept, kept_local = np.empty(2 * most, np.int32), np.empty(2 * most, np.int32)
                kept_values = np.empty((2 * most, m), values.dtype)
                met, sums = np.empty(2 * most, np.int32), np.empty((2 * most, m), values.dtype)
                seen, begins = np.empty(2 * most, np.int32), np.empty(2 * most, np.int32)
            parts_seen, entries = np.int32(0), 0
            for s in range(begin, end):
                i = np.uint64(members[s])
                in_this = np.int32(0)
                k = np.int32(0)
                previous = np.int32(-1)
                for e in range(indptr[i], indptr[i + ONE]):
                    j = indices[e]
                    q = np.int32(parts[j])
                    if q != previous:
                        previous, k = q, in_row[q]
                        if not (0 <= k < in_this and met[k] == q):
                            k, in_row[q], met[in_this] = in_this, in_this, q
                            for c in range(m):
                                sums[k, c] = 0
                            in_this += np.int32(1)
                    if Z is None:
                        sums[k, 0] += data[e]
                    else:
                        for c in range(m):
                            sums[k, c] += data[e] * Z[j, c]
                for k in range(in_this):
                    not_zero = False
                    for c in range(m):
                        not_zero = not_zero or sums[k, c] != 0
                    if not not_zero:
                        continue
                    q = met[k]
                    at = in_part[q]
                    if not (0 <= at < parts_seen and seen[at] == q):
                        at, in_part[q], seen[parts_seen], begins[parts_seen] = parts_seen, parts_seen, q, 0
                        parts_seen += np.int32(1)
                    begins[at] += 1
                    kept[entries], kept_local[entries] = at, s - begin
                    for c in range(m):
                        kept_values[entries, c] = sums[k, c]
                    entries += 1
            place_of = _ranked(seen, parts_seen)
            for rank in range(parts_seen):
                k = place_of[rank]
                of_vectors[coupling + rank], numbers[coupling + rank] = seen[k], begins[k]
                begins[k], entry = entry - np.int64(room[t]), entry + begins[k]
            first = np.int64(room[t])
            for e in range(entries):
                at = first + np.int64(begins[kept[e]])
                begins[kept[e]] += 1
                local[at], of_rows[at] = kept_local[e], members[begin + np.uint64(kept_local[e])]
                for c in range(m):
                    values[at, c] = kept_values[e, c]
            coupling += np.int64(parts_seen)
            per_part[p] = parts_seen
        per_item[0, t], per_item[1, t] = coupling - room[t], entry - room[t]
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


@compiled
def _ranked(numbers, count):
    """The places of the first `count` numbers, in ascending order of these."""
    if count > FEW:
        return np.argsort(numbers[:count])
    order = np.empty(count, np.int64)
    for k in range(count):
        at = k
        while at > 0 and numbers[order[at - 1]] > numbers[k]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = k
    return order


@by_items
def _put_together(
    t, room, per_item, found, values, ends, vectors, local, of_rows, of_entries, sorted_values
):  # fmt: skip
    of_vectors, numbers, all_local, all_rows = found
    entry = per_item[1, t]
    source = np.int64(room[t])
    for k in range(per_item[0, t + 1] - per_item[0, t]):
        c = per_item[0, t] + k
        vectors[c], ends[c] = of_vectors[room[t] + k], entry
        for _ in range(numbers[room[t] + k]):
            local[entry], of_rows[entry], of_entries[entry] = all_local[source], all_rows[source], vectors[c]
            for column in range(values.shape[1]):
                sorted_values[entry, column] = values[source, column]
            entry, source = entry + 1, source + 1


def coarse_blocks(products, rows, Z, conjugate, couplings, order):
    """The blocks of Z^H A Z; see kernels/reference/subdomains.py."""
    c, m = couplings, couplings.values.shape[1]
    blocks = np.zeros((c.members.size, m, m), np.result_type(c.values.dtype, np.float64))
    items = even_items(c.members.size, c.values.size * m)
    run_items(_sum_blocks, items.size - 1, items, c.ends, c.of_rows, c.values, Z, conjugate, blocks)
    return blocks


def coarse_matrix(products, rows, parts, count, Z, conjugate, couplings, order):
    """Z^H A Z, as a sparse matrix; see kernels/reference/subdomains.py."""
    c, m = couplings, couplings.values.shape[1]
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
