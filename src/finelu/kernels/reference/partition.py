"""Parts: couplings, matchings and contractions of graphs, and the grid that a pattern shows. The specification.

A graph: begin, end (n,) int64, neighbours and weights (entries,) int32 and int64, sizes (n,) int32. Vertex i stands for
sizes[i] rows; its neighbours are those at begin[i] <= p < end[i], in any order, each with a weight, 0 for none. Unless
stated otherwise the weights are symmetric and no neighbour is listed twice. Weights are integers, so that their sums
are the same in any order, and the chosen neighbour has the largest of distinct keys. So no result depends on the order
of events, except the order of neighbours.
"""

from __future__ import annotations

import numpy as np

ONE = 2**20  # the weight of a coupling as large as the diagonal
LARGEST = 2**30  # the largest weight
ROUNDED = 20  # bits of 23 of the fraction of a float32


def magnitude(a) -> float:
    """|Re a| + |Im a| in double precision, which rounds the same way everywhere."""
    return float(abs(np.real(a))) + float(abs(np.imag(a)))


def diagonal_sizes(indptr, data, diag):
    """The magnitude of a_ii, or the largest one of row i where that is 0 or not stored, for each i."""
    sizes = []
    for i, place in enumerate(diag):
        size = magnitude(data[place]) if place >= 0 else 0.0
        sizes.append(size or max(map(magnitude, data[indptr[i] : indptr[i + 1]]), default=0.0))
    return sizes


def couplings(indptr, indices, data, diag, weights):
    """The weight of each entry off the diagonal: the mean of |a_ij| and |a_ji| over sqrt(|a_ii a_jj|), times ONE.

    indptr, diag int64, indices int32, data : of A, by rows, sorted.  weights (nnz,) int64 : out, 0 on the diagonal.
    Returns how many entries (i, j) have no entry (j, i): the weights are symmetric if there are none.
    """
    entries = {(i, int(indices[p])): p for i in range(diag.size) for p in range(indptr[i], indptr[i + 1])}
    scale = [1 / np.sqrt(size) if size > 0 else 0.0 for size in diagonal_sizes(indptr, data, diag)]
    unpaired = 0
    for (i, j), p in entries.items():
        q = entries.get((j, i))
        unpaired += q is None
        size = magnitude(data[p]) + (0.0 if q is None else magnitude(data[q]))
        ratio = 0.5 * size * (scale[i] * scale[j]) * ONE
        weights[p] = 0 if i == j or size == 0 else int(ratio + 0.5) if ratio < LARGEST else LARGEST
    return unpaired


def both_directions(indptr, indices, weights, begin, end, neighbours, both):
    """The graph in which each entry (i, j) makes j a neighbour of i and i one of j; neighbours may be there twice.

    indptr, indices, weights : of A, by rows.  begin, end (n,), neighbours, both (2 nnz,), their weights : out.
    """
    n = begin.size
    lists = [[] for _ in range(n)]
    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            lists[i].append((indices[p], weights[p]))
            lists[indices[p]].append((i, weights[p]))
    end[:] = np.cumsum([len(found) for found in lists])
    begin[:] = end - [len(found) for found in lists]
    for place, (j, w) in enumerate(entry for found in lists for entry in found):
        neighbours[place], both[place] = j, w


def mixed(i, j) -> int:
    """A hash of the pair {i, j}, 32 bits."""
    h = (min(i, j) * 0x9E3779B1 ^ max(i, j)) & 0xFFFFFFFF
    h = ((h ^ h >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ h >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ h >> 16


def key(weight, a, b, i, j):
    """The key that orders pairs: the weight over the product of the sizes a and b, as a float32 without its last
    ROUNDED bits, then the hash.

    Where couplings grow steadily along a line, each vertex wishes the next one, and only the last two match. Couplings
    that differ by less than an eighth count as alike, so that the hash chooses among them.
    """
    score = np.float32(np.float32(weight) / (np.float32(a) * np.float32(b)))
    return score.view(np.uint32) >> ROUNDED, mixed(int(i), int(j))


def partner(i, wish):
    """The vertex with which i is matched, each being the other's wish; i itself if there is none."""
    return wish[i] if wish[wish[i]] == i else i


def propose(begin, end, neighbours, weights, sizes, most, before, wish):
    """A round of proposals: each vertex wishes the neighbour with the largest key among those that are not matched yet.

    most : the most rows of a pair.  before (n,) int32 : the wishes of the previous round; wish[i] = i at first.
    wish (n,) int32 : out. A vertex that is matched, or whose wish is not matched yet, keeps its wish; i itself means
    none. A round matches at least one pair if any is possible: the one with the largest key of all.
    """
    for i in range(sizes.size):
        kept = before[i] != i and partner(before[i], before) in (i, before[i])
        found = [
            (*key(weights[p], sizes[i], sizes[j], i, j), -j)
            for p, j in ((p, neighbours[p]) for p in range(begin[i], end[i]))
            if weights[p] > 0 and sizes[i] + sizes[j] <= most and partner(j, before) == j
        ]
        wish[i] = before[i] if kept else -max(found)[2] if found else i


def contract(begin, end, neighbours, weights, sizes, wish, most, owner, starts, stops, adjacent, sums, totals):
    """The graph whose vertices are the pairs and the vertices that are left over, in the order of their lower vertices.

    most : neighbours are left out if both together have more rows. owner (n,) int32 : the coarse vertex of each vertex.
    starts, stops, adjacent, sums, totals : the coarse graph, in arrays of the sizes of the fine one; out. Weights
    between the same two are added up. Returns how many coarse vertices there are.
    """
    n = sizes.size
    lower = [i for i in range(n) if partner(i, wish) >= i]
    for c, i in enumerate(lower):
        owner[i] = owner[partner(i, wish)] = c
        totals[c] = sum(sizes[v] for v in {i, int(partner(i, wish))})
    place = 0
    for c, i in enumerate(lower):
        found = {}
        for v in sorted({i, int(partner(i, wish))}):
            for p in range(begin[v], end[v]):
                d = int(owner[neighbours[p]])
                if d != c and weights[p] > 0 and totals[c] + totals[d] <= most:
                    found[d] = found.get(d, 0) + int(weights[p])
        starts[c], stops[c] = place, place + len(found)
        adjacent[place : stops[c]], sums[place : stops[c]] = list(found), list(found.values())
        place = stops[c]
    return len(lower)


def settle(begin, end, neighbours, weights, sizes, size, part):
    """Parts 0, 1, ..., in the order of their first vertices, out of vertices of which some are small.

    One after the other, each vertex with less than size / 4 rows joins the neighbour of the largest weight with which
    it has at most 5/4 size rows, including those that have joined it before. The remaining small ones are packed
    together in their order, up to `size` rows.  part (n,) int32 : out. Returns the number of parts.
    """
    n = sizes.size
    head, rows = np.arange(n), sizes.astype(np.int64)  # head: of the vertices that are together

    def small(c):
        return 4 * rows[c] < size

    for c in range(n):
        own = head[c]
        near = [(int(weights[p]), -int(head[neighbours[p]])) for p in range(begin[c], end[c])]
        near = [(w, d) for w, d in near if w > 0 and -d != own and rows[own] + rows[-d] <= size + size // 4]
        if small(own) and near:
            joined = -max(near)[1]
            rows[joined] += rows[own]
            head[head == own] = joined
    number, packed, room, count = {}, -1, 0, 0
    for own in head:
        if own not in number:
            if not small(own) or rows[own] > room:
                number[own] = count
                count += 1
                if small(own):
                    packed, room = number[own], size
            else:
                number[own] = packed
            room -= rows[own] if small(own) else 0
    part[:] = [number[own] for own in head]
    return count


def node_of(row, hole):
    """The number of a row's node in a grid where the node `hole` has none."""
    return int(row) + int(row >= hole)


def grid_couplings(indptr, indices, data, diag, nx, ny, hole, sums):
    """Whether nodes i + nx (j + ny k) are those (i, j, k) of a grid, and entries go a step in each direction at most.

    hole : the node that no row has; the number of rows, or more, if none is missing before the last row.
    sums (6,) int64 : of the entries with a step along x, y, z the |a_ij| in units of |a_ii|, at most 1, times ONE; and
    how many they are; out. Returns the first row with an entry that goes further, or -1; then sums are undefined.
    """
    found = [0] * 6
    for i, size in enumerate(diagonal_sizes(indptr, data, diag)):
        scale = ONE / size if size > 0 else 0.0
        for p in range(indptr[i], indptr[i + 1]):
            u, v = node_of(i, hole), node_of(indices[p], hole)
            steps = v % nx - u % nx, v // nx % ny - u // nx % ny, v // (nx * ny) - u // (nx * ny)
            if max(map(abs, steps)) > 1:
                return i
            for k in range(3):
                if steps[k]:
                    found[k] += int(min(magnitude(data[p]) * scale, ONE) + 0.5)
                    found[3 + k] += 1
    sums[:] = found
    return -1


def bricks(nx, ny, nz, kx, ky, kz, hole, parts):
    """parts[row] = the brick of the row's node i + nx (j + ny k), numbered like nodes, of kx, ky, kz along each
    direction, whose sides differ by one at most.

    parts int32 : out, for all nodes, or for all but the `hole`.
    """
    for row in range(parts.size):
        node = node_of(row, hole)
        i, j, k = node % nx, node // nx % ny, node // (nx * ny)
        parts[row] = i * kx // nx + kx * (j * ky // ny + ky * (k * kz // nz))
