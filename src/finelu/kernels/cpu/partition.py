"""Couplings, matchings and contractions of graphs, and the grid that a pattern shows."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.atomics import fetch_add, fetch_min, load_acquire
from finelu.kernels.cpu.runtime.items import by_items, complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled, nested, ready
from finelu.kernels.cpu.runtime.row_blocks import even_blocks, even_items
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.threads import get_num_threads

ONE = 2.0**20  # the weight of a coupling as large as the diagonal
LARGEST = 2.0**30  # that of any
NONE = np.uint64(2**32)  # the keys of weights that are not 0 are larger, the others smaller
ALIKE = np.uint32(2**32 - 2**20)  # the bits of a score that are compared before the hash
CHUNK, ALONE = 2**9, 2**12  # vertices of an item; up to which one thread is as fast as several
SHORT = 8  # entries among which one is sought one by one


@nested
def _row_size(i, indptr, data, diag):
    """|a_ii|, or where that is 0 or not stored the largest magnitude of row i."""
    size = 0.0
    if diag[i] >= 0:
        size = _size(data[diag[i]])
    if size == 0.0:
        for p in range(indptr[i], indptr[i + 1]):
            size = max(size, _size(data[p]))
    return size


@nested
def _size(a):
    return np.float64(abs(a.real)) + np.float64(abs(a.imag))


def couplings(indptr, indices, data, diag, weights):
    """Weights of the entries, and how many have no mirror image; see kernels/reference/partition.py.

    Row i weighs both entries of a pair (i, j), (j, i), j > i; those below the diagonal that none has weighed are alone.
    """
    items, scale = even_blocks(indptr), np.empty(diag.size)
    unpaired = np.zeros(items.size - 1, np.int64)
    A = indptr, indices, data, diag
    for kernel in (_begin_weights, _weigh_pairs, _weigh_others):
        run_items(kernel, items.size - 1, items, *A, scale, weights, unpaired)
    return int(unpaired.sum())


@by_items
def _begin_weights(t, items, indptr, indices, data, diag, scale, weights, unpaired):
    """scale (n,), and weights of -1 below the diagonal, of 0 on it."""
    for i in range(items[t], items[t + 1]):
        size = _row_size(i, indptr, data, diag)
        scale[i] = 1.0 / np.sqrt(size) if size > 0.0 else 0.0
        for p in range(indptr[i], indptr[i + 1]):
            if indices[p] > i:
                break
            weights[p] = -1 if indices[p] < i else 0


@by_items
def _weigh_pairs(t, items, indptr, indices, data, diag, scale, weights, unpaired):
    for i in range(items[t], items[t + 1]):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            if j <= i:
                continue
            q, end = indptr[j], indptr[j + 1]
            while end - q > SHORT:
                middle = (q + end) // 2
                if indices[middle] > i:
                    end = middle
                else:
                    q = middle
            while q < end and indices[q] < i:
                q += 1
            if q < end and indices[q] == i:
                weights[p] = weights[q] = _weight(_size(data[p]) + _size(data[q]), scale[i] * scale[j])
            else:
                weights[p] = _weight(_size(data[p]), scale[i] * scale[j])
                unpaired[t] += 1


@by_items
def _weigh_others(t, items, indptr, indices, data, diag, scale, weights, unpaired):
    for i in range(items[t], items[t + 1]):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            if j >= i:
                break
            if weights[p] < 0:
                weights[p] = _weight(_size(data[p]), scale[i] * scale[j])
                unpaired[t] += 1


@nested
def _weight(size, scale):
    ratio = 0.5 * size * scale * ONE
    if size == 0.0:
        return np.int64(0)
    return np.int64(ratio + 0.5) if ratio < LARGEST else np.int64(LARGEST)


@compiled
def both_directions(indptr, indices, weights, begin, end, neighbours, both):
    """The graph with each entry at both of its ends; see kernels/reference/partition.py."""
    n = begin.size
    count = np.zeros(n, np.int64)
    for i in range(n):
        count[i] += indptr[i + 1] - indptr[i]
        for p in range(indptr[i], indptr[i + 1]):
            count[indices[p]] += 1
    place = 0
    for i in range(n):
        begin[i] = place
        end[i] = place
        place += count[i]
    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            here = end[i]
            end[i] = here + 1
            there = end[j]
            end[j] = there + 1
            neighbours[here], both[here] = j, weights[p]
            neighbours[there], both[there] = i, weights[p]


@nested
def _mixed(i, j):
    """A hash of the pair {i, j}."""
    h = np.uint32(np.uint32(min(i, j)) * np.uint32(0x9E3779B1)) ^ np.uint32(max(i, j))
    h = np.uint32((h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B))
    h = np.uint32((h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ h >> np.uint32(16))


def _threads_for(n: int) -> int:
    return get_num_threads() if n > ALONE else 1


def propose(begin, end, neighbours, weights, sizes, most, before, wish):
    """A round of proposals; see kernels/reference/partition.py. `before` is not written."""
    n = sizes.size
    graph = begin, end, neighbours, weights, sizes
    run_items(_propose, -(-n // CHUNK), *graph, most, before, wish, threads=_threads_for(n))


@by_items
def _propose(t, begin, end, neighbours, weights, sizes, most, before, wish):
    """Items are CHUNK vertices each."""
    for i in range(t * CHUNK, min((t + 1) * CHUNK, sizes.size)):
        v = np.uint32(before[i])
        u = np.uint32(before[v])
        free = u == v or np.uint32(before[u]) != v
        if v != i and (u == i or free):
            wish[i] = v
            continue
        best, highest = np.uint32(i), NONE
        own = np.float32(sizes[i])
        room = most - np.int64(sizes[i])
        for p in range(np.uint64(begin[i]), np.uint64(end[i])):
            j = np.uint32(neighbours[p])
            size = sizes[j]
            score = np.float32(np.float32(weights[p]) / (own * np.float32(size))).view(np.uint32)
            key = np.uint64(score & ALIKE) << np.uint64(32) | np.uint64(_mixed(np.uint32(i), j))
            if size <= room and (key > highest or (key == highest and j < best)):
                v = np.uint32(before[j])
                if v == j or np.uint32(before[v]) != j:
                    best, highest = j, key
        wish[i] = best


def contract(begin, end, neighbours, weights, sizes, wish, most, owner, starts, stops, adjacent, sums, totals):
    """The graph of the pairs; see kernels/reference/partition.py.

    The lists of an item's coarse vertices follow each other; they begin where there is room for all entries before.
    """
    n = sizes.size
    firsts = np.empty(-(-n // CHUNK), np.int64)
    threads = min(_threads_for(n), firsts.size)
    count = _enumerate(begin, end, sizes, wish, owner, totals, firsts, threads)
    places = np.empty((threads, count), np.uint32)
    graph = begin, end, neighbours, weights, wish
    lists = starts, stops, adjacent, sums
    run_items(_contract, firsts.size, graph, most, owner, totals[:count], firsts, places, lists, threads=threads)
    return count


@nested
def _partner(i, wish):
    j = np.uint32(wish[i])
    return j if np.uint32(wish[j]) == i else np.uint32(i)


def _enumerate(begin, end, sizes, wish, owner, totals, firsts, threads):
    """The coarse vertices and their sizes, and how many there are.  firsts : the number of entries before each item."""
    counts = np.empty((firsts.size, 2), np.int64)
    run_items(_count_pairs, firsts.size, begin, end, wish, counts, threads=threads)
    before = np.cumsum(counts, axis=0) - counts
    firsts[:] = before[:, 1]
    run_items(_number_pairs, firsts.size, before, sizes, wish, owner, totals, threads=threads)
    return int(counts[:, 0].sum())


@by_items
def _count_pairs(t, begin, end, wish, counts):
    """counts[t] : the pairs with their lower vertices in item t, and the entries of both."""
    pairs, entries = np.int64(0), np.int64(0)
    for i in range(t * CHUNK, min((t + 1) * CHUNK, wish.size)):
        j = _partner(i, wish)
        if j < i:
            continue
        pairs += 1
        entries += end[i] - begin[i]
        if j > i:
            entries += end[j] - begin[j]
    counts[t, 0], counts[t, 1] = pairs, entries


@by_items
def _number_pairs(t, before, sizes, wish, owner, totals):
    count = before[t, 0]
    for i in range(t * CHUNK, min((t + 1) * CHUNK, wish.size)):
        j = _partner(i, wish)
        if j < i:
            continue
        owner[i] = count
        totals[count] = sizes[i]
        if j > i:
            owner[j] = count
            totals[count] += sizes[j]
        count += 1


@compiled
def _contract(state, done, graph, most, owner, totals, firsts, places, lists):
    """Items are the pairs with their lower vertices among CHUNK vertices each.

    place[d] : where in the list of a coarse vertex its neighbour d is, if it is there.
    """
    (begin, end, neighbours, weights, wish), (starts, stops, adjacent, sums) = graph, lists
    place = places[fetch_add(state, 1, 1)]
    check = 2 * np.int64(totals.max()) > most
    t = next_item(state)
    while t < done.size:
        first = np.uint64(firsts[t])
        for i in range(t * CHUNK, min((t + 1) * CHUNK, wish.size)):
            j = _partner(i, wish)
            if j < i:
                continue
            c = np.uint32(owner[i])
            room = most - np.int64(totals[c])
            found = np.uint32(0)
            v = np.uint32(i)
            while True:
                for p in range(np.uint64(begin[v]), np.uint64(end[v])):
                    w = weights[p]
                    d = np.uint32(owner[np.uint32(neighbours[p])])
                    if w == 0 or d == c or (check and totals[d] > room):
                        continue
                    k = place[d]
                    q = first + np.uint64(k)
                    if k < found and np.uint32(adjacent[q]) == d:
                        sums[q] += w
                    else:
                        q = first + np.uint64(found)
                        adjacent[q] = d
                        sums[q] = w
                        place[d] = found
                        found += np.uint32(1)
                if v == j:
                    break
                v = j
            starts[c] = first
            first += np.uint64(found)
            stops[c] = first
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


@nested
def _root(parent, c):
    while parent[c] != c:
        parent[c] = parent[parent[c]]
        c = parent[c]
    return c


@compiled
def settle(begin, end, neighbours, weights, sizes, size, part):
    """Vertices much smaller than `size` join others; see kernels/reference/partition.py."""
    n = sizes.size
    parent, rows = np.empty(n, np.int32), np.empty(n, np.int64)
    for c in range(n):
        parent[c] = c
        rows[c] = sizes[c]
    most = size + size // 4
    for c in range(n):
        own = _root(parent, c)
        if 4 * rows[own] >= size:
            continue
        best, heaviest = -1, 0
        for p in range(begin[c], end[c]):
            d = _root(parent, neighbours[p])
            if d == own or rows[own] + rows[d] > most:
                continue
            w = weights[p]
            if w > heaviest or (w == heaviest and w > 0 and d < best):
                best, heaviest = d, w
        if best >= 0:
            parent[own] = best
            rows[best] += rows[own]
    packed, room, count = -1, 0, 0
    for c in range(n):
        part[c] = -1
    for c in range(n):
        own = _root(parent, c)
        if part[own] < 0:
            if 4 * rows[own] >= size:
                part[own] = count
                count += 1
            else:
                if rows[own] > room:
                    packed, room = count, size
                    count += 1
                part[own] = packed
                room -= rows[own]
        if own != c:
            part[c] = part[own]
    return count


def grid_couplings(indptr, indices, data, diag, nx, ny, hole, sums):
    """Whether rows are the nodes of a grid, and the couplings along its directions; see kernels/reference/partition.py.

    Rows are shared out among threads. The sums are of integers: they have one value in any order.
    """
    items = even_blocks(indptr)
    first, found = np.array([diag.size]), np.empty((items.size - 1, 6), np.int64)
    run_items(_grid_couplings, items.size - 1, items, indptr, indices, data, diag, nx, ny, hole, first, found)
    found.sum(axis=0, out=sums)
    return int(first[0]) if first[0] < diag.size else -1


@by_items
def _grid_couplings(t, items, indptr, indices, data, diag, nx, ny, hole, first, found):
    """found[t] : the sums of item t.  first[0] : the first row that fits no grid; items behind it are passed over."""
    plane = nx * ny
    u = items[t] + (items[t] >= hole)
    x, y = u % nx, u // nx % ny
    sum_x, sum_y, sum_z, count_x, count_y, count_z = 0, 0, 0, 0, 0, 0
    i, end = items[t], items[t + 1] if items[t] < load_acquire(first, 0) else items[t]
    while i < end:
        size = _row_size(i, indptr, data, diag)
        scale = ONE / size if size > 0.0 else 0.0
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            j = np.int64(indices[p])
            r = j + (j >= hole) - u
            if r == 0:
                continue
            dy, dz = 0, 0
            if r > plane // 2:
                r, dz = r - plane, 1
            elif r < -(plane // 2):
                r, dz = r + plane, -1
            if r > nx // 2:
                r, dy = r - nx, 1
            elif r < -(nx // 2):
                r, dy = r + nx, -1
            if x + r >= nx:
                r, dy = r - nx, dy + 1
            elif x + r < 0:
                r, dy = r + nx, dy - 1
            if y + dy >= ny:
                dy, dz = dy - ny, dz + 1
            elif y + dy < 0:
                dy, dz = dy + ny, dz - 1
            if abs(r) > 1 or abs(dy) > 1 or abs(dz) > 1:
                fetch_min(first, 0, i)
                end = i
                break
            ratio = _size(data[p]) * scale
            w = np.int64(ratio + 0.5) if ratio < ONE else np.int64(ONE)
            if r != 0:
                sum_x, count_x = sum_x + w, count_x + 1
            if dy != 0:
                sum_y, count_y = sum_y + w, count_y + 1
            if dz != 0:
                sum_z, count_z = sum_z + w, count_z + 1
        i += 1
        step = 1 + (i == hole)
        u, x = u + step, x + step
        if x >= nx:
            x, y = x - nx, y + 1
            if y == ny:
                y = 0
    found[t, 0], found[t, 1], found[t, 2] = sum_x, sum_y, sum_z
    found[t, 3], found[t, 4], found[t, 5] = count_x, count_y, count_z


def bricks(nx, ny, nz, kx, ky, kz, hole, parts):
    """The brick of each node; see kernels/reference/partition.py."""
    x, y, z = (np.arange(n, dtype=np.int64) * k // n for n, k in ((nx, kx), (ny, ky), (nz, kz)))
    lines = (kx * (y + ky * z[:, None])).reshape(-1)  # of each line along x, its first brick
    items = even_items(lines.size, parts.size)
    run_items(_bricks, items.size - 1, items, x, lines, hole, parts)


@by_items
def _bricks(t, items, x, lines, hole, parts):
    """The parts of the lines of item t. One node has no part: those behind it are one place before their number."""
    for line in range(items[t], items[t + 1]):
        first = line * x.size
        for i in range(x.size):
            u = first + i
            if u != hole:
                parts[u - (u > hole)] = lines[line] + x[i]


def is_compiled():
    """Whether the kernels that match and contract have been compiled before, for some dtypes."""
    return ready(_propose) and ready(_contract)
