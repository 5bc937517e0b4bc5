"""Parts of about the same number of rows, strongly coupled inside, for preconditioners made of subdomains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu import ordering, validation
from finelu.device import namespace, on_gpu, to_host
from finelu.errors import MatrixError, ParameterError
from finelu.kernels import kernels_for
from finelu.kernels.operands import INT32_LIMIT
from finelu.matrix import CSR
from finelu.matrix.looks import distinct, has_islands, uneven

METHODS = ("auto", "aggregate", "geometric", "natural", "metis")
ROUNDS = 3  # rounds of proposals before pairs are contracted
LEAST_MATCHED = 50  # matching ends unless one vertex in this many finds a partner
FEW = 8_000  # vertices, and a 16th of the entries, up to which the host is faster than launches on a GPU
# The largest ratio of the couplings of a grid's directions with which bricks have equal sides; the least coupling, as a
# part of the largest one, that counts for the sides of others.
ALIKE, LEAST_COUPLING = 4.0, 1e-8
TOLERATED = 1.3  # the most rows of a brick in units of `size`
WINDOWS, WINDOW, LONGEST = (0.5, 0.382, 0.618, 0.236, 0.764), 64, 27  # where rows are looked at first; of a stencil
SAMPLE, TORN, SELDOM = 4096, 10.0, 500  # rows; times all couplings to the own part; rows of which one may be torn
METIS_TOTAL = 2**30  # sum of the weights for METIS, which adds up 32-bit integers


@dataclass(frozen=True, eq=False)
class Partition:
    """A partition of the rows.

    parts (n,) int32, on the device of A : the part of each row.
    count : the parts are 0, ..., count - 1, none of them empty, in the order of their first rows.
    method : the method that was used, never "auto".
    grid : that of which the parts are bricks; None for other parts.
    """

    parts: Any
    count: int
    method: str
    grid: Grid | None = None

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """nx, ny, nz of the grid, 1 for a missing direction; None for other parts."""
        return None if self.grid is None else self.grid.shape


@dataclass(frozen=True)
class Grid:
    """A grid with node (i, j, k) at number i + nx (j + ny k), neighbours at most one step apart in each direction.

    shape : nx, ny, nz; 1 for a missing direction.
    hole : the number of the node that has no row, since it was eliminated (a grounded cell); A.n if there is none, or
        it is the last one.
    couplings : the mean of |a_ij| / |a_ii|, at most 1 each, over the entries along x, y, z; 0 for none.
    """

    shape: tuple[int, int, int]
    hole: int
    couplings: tuple[float, float, float]

    @property
    def alike(self) -> bool:
        """Whether the couplings along all directions are about the same."""
        found = [c for c, nodes in zip(self.couplings, self.shape, strict=True) if nodes > 1]
        return bool(found) and 0 < max(found) <= ALIKE * min(found)


def partition(A: CSR, size: int, method: str = "auto", *, of_aggregates: int | None = None) -> Partition:
    """Parts of about `size` rows of A, on its device.

    A : a checked CSR, without need of a diagonal.
    method : how rows are put together.
        "aggregate": the pairs with the largest couplings, then pairs of pairs, and so on, up to `size` rows; small
        aggregates that remain join a neighbour, up to 1.25 size, or else are packed together, up to `size`.
        "geometric": bricks of the grid that the pattern shows, up to 1.3 size; their sides are equal if couplings are
        alike in all directions, up to a factor of 4, else as the roots of the couplings; a node may be missing, such as
        a grounded cell, if bricks are two or more wide. "natural": consecutive rows, up to `size`. "metis": METIS,
        k-way, on the host, by the same couplings; mostly up to about 1.03 size, without guarantee. "auto": "geometric"
        for a grid, on a GPU only if its couplings are alike in all directions, else "aggregate"; also "aggregate" where
        couplings jump from cell to cell or at small islands of cells (`has_islands`), or, on the CPU, where bricks
        would tear cells apart that are far more strongly coupled than the others. The same parts in every run and for
        any number of threads. Each method but "auto", which may choose another on a GPU, finds the same parts there.
    of_aggregates : the size of aggregates, also those of method="aggregate"; None: `size`.
    Raises ParameterError for a size below 1, and for "metis" if METIS is not installed; MatrixError for "geometric" if
    A has no grid. Cost: a few passes over the entries, about 10 for "aggregate".
    """
    size = min(validation.count("size", size, 1), INT32_LIMIT)
    of_aggregates = size if of_aggregates is None else validation.count("of_aggregates", of_aggregates, 1)
    validation.choice("method", method, METHODS)
    if A.n > INT32_LIMIT:
        raise MatrixError(f"A has {A.n} rows; parts are made of up to {INT32_LIMIT}.")
    if method in ("auto", "geometric"):
        grid = grid_of(A)
        if grid is not None and A.n < math.prod(grid.shape) and grid.shape[0] < 2 * _cuts(grid, size)[0]:
            grid = None  # the brick of the hole may be empty
        if grid is None and method == "geometric":
            raise MatrixError(
                "method='geometric': the pattern of A is not that of a grid in natural order (a 5-, 7-, 9-, 19- or "
                "27-point stencil, x fastest); use 'aggregate'."
            )
        if grid is not None and (
            method == "geometric" or ((grid.alike or not on_gpu(A.data)) and not uneven(A) and not has_islands(A))
        ):
            found = bricks(A, grid, size)
            if method == "geometric" or on_gpu(A.data) or not _tears(A, found.parts):
                return found
    if method == "natural":
        return _consecutive(A, size)
    return _by_metis(A, size) if method == "metis" else _aggregated(A, min(of_aggregates, INT32_LIMIT))


# Bricks --------------------------------------------------------------------------------------------------------------


def grid_of(A: CSR) -> Grid | None:
    """The grid in natural order such that A couples only neighbours; None if there is none.

    A chain counts as a grid of one direction. Rows may have fewer entries than the stencil. Cost: one pass over the
    entries, or a test of some hundred rows if these do not fit.
    """
    indptr, indices, diag = _indices(A)
    kernels, sums = kernels_for(A.data).partition, np.empty(6, np.int64)
    for nx, ny in _guesses(indptr, indices):
        holes = [A.n]
        for hole in holes:
            row = kernels.grid_couplings(indptr, indices, A.data, diag, nx, ny, hole, sums)
            if row < 0:
                break
            if hole == A.n and A.n % (nx * ny):
                holes += _holes(indptr, indices, row, nx, ny)
        if row < 0:
            sum_x, sum_y, sum_z, *counts = (int(v) for v in sums)
            along = (s / max(c, 1) / 2**20 for s, c in zip((sum_x, sum_y, sum_z), counts, strict=True))
            x, y, z = along
            return Grid((nx, ny, -(-A.n // (nx * ny))), hole, (x, y, z))
    return None


def _holes(indptr: Any, indices: Any, misfit: int, nx: int, ny: int) -> list[int]:
    """The numbers that the node without a row may have, if `misfit` is the first row that fits no whole grid: those of
    rows that are not coupled to the one before.

    If lines have their first nodes at multiples of nx before the gap, these are one less behind it. A row fits unless
    the gap lies before a neighbour of it: a plane ahead at most, a line if there is one plane.
    """
    n = indptr.size - 1
    reach = nx * ny if nx * ny < n else nx
    first, last = max(misfit - nx, 0), min(misfit + reach + nx + 1, n)
    begins = _at(indptr, [(first, last + 1)])
    columns = _at(indices, [(int(begins[0]), int(begins[-1]))])
    rows = np.repeat(np.arange(first, last), np.diff(begins))
    coupled = np.zeros(last - first, np.bool_)
    coupled[rows[columns == rows - 1] - first] = True
    alone = first + np.flatnonzero(~coupled)
    before, behind = (alone[alone % nx == at] for at in (0, nx - 1))
    inside = alone[(alone % nx > 0) & (alone % nx < nx - 1)]
    found: list[int] = np.concatenate([inside[:1], before[-1:], behind[:1]]).tolist()
    return found


def _guesses(indptr: Any, indices: Any) -> list[tuple[int, int]]:
    """(nx, ny) of the grids that some rows fit; the smallest nx ny first."""
    n = indptr.size - 1
    firsts = sorted({min(int(at * n), max(n - WINDOW, 0)) for at in WINDOWS})
    windows = [slice(first, min(first + WINDOW, n)) for first in firsts]
    bounds = _at(indptr, [(w.start, w.stop + 1) for w in windows])
    bounds = np.split(bounds, np.cumsum([w.stop - w.start + 1 for w in windows])[:-1])
    if max(int(np.diff(b).max()) for b in bounds) > LONGEST:
        return []
    columns = _at(indices, [(int(b[0]), int(b[-1])) for b in bounds]).astype(np.int64)
    rows = np.concatenate([np.repeat(np.arange(w.start, w.stop), np.diff(b)) for w, b in zip(windows, bounds)])
    steps = distinct(abs(columns - rows))
    steps = steps[steps > 0]
    if not steps.size or steps.size > LONGEST or steps[0] != 1:
        return []
    shapes = {(n, 1)} if steps.size == 1 else set()
    for nx in (int(step) for step in steps[1:4] if n % step in (0, step - 1)):
        shapes |= {(nx, -(-n // nx))} | {(nx, int(step) // nx) for step in steps if step > nx and step % nx == 0}
    fitting = []
    for nx, ny in sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape)):
        apart = [
            columns % nx - rows % nx,
            columns // nx % ny - rows // nx % ny,
            columns // (nx * ny) - rows // (nx * ny),
        ]
        if n % (nx * ny) in (0, nx * ny - 1) and (n % nx or all((abs(d) <= 1).all() for d in apart)):
            fitting.append((nx, ny))
    return fitting


def _at(v: Any, ranges: list[tuple[int, int]]) -> Any:
    """The values of v in these ranges, one after the other, on the host."""
    if not on_gpu(v):
        return np.concatenate([v[begin:end] for begin, end in ranges])
    places = namespace(v).asarray(np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in ranges]))
    return to_host(kernels_for(v).vectors.gather(v, places))


def bricks(A: CSR, grid: Grid, size: int) -> Partition:
    """The bricks of `grid`, that of A, of about `size` rows."""
    cuts = _cuts(grid, size)
    return Partition(_parts_of_bricks(A, grid.shape, cuts, grid.hole), math.prod(cuts), "geometric", grid)


def _tears(A: CSR, parts: Any) -> bool:
    """Whether these parts tear small strongly coupled groups of rows apart: in some rows, one in 500 or more, a
    coupling to another part is more than TORN times all those to their own. Bricks do where cells that conduct far
    better than most are scattered: on 40^3 cells, a tenth of which conduct 10^4 times as well, cg took 585 iterations
    with bricks and 179 with aggregates.

    A : on the CPU. Cost: a look at 4096 rows.
    """
    rows = np.linspace(0, A.n - 1, min(A.n, SAMPLE)).astype(np.int64)
    begins = A.indptr[rows].astype(np.int64)
    counts = A.indptr[rows + 1] - begins
    of_row = np.repeat(np.arange(rows.size), counts)
    places = np.arange(of_row.size) + np.repeat(begins - np.cumsum(counts) + counts, counts)
    columns, sizes = A.indices[places], abs(A.data[places])
    own = parts[columns] == parts[rows][of_row]
    inside = np.bincount(of_row, np.where(own & (columns != rows[of_row]), sizes, 0), rows.size)
    limit = np.where(inside > 0, TORN * inside, np.inf)  # rows alone in their parts have nothing to compare with
    torn = np.bincount(of_row[~own & (sizes > limit[of_row])], minlength=rows.size)
    return SELDOM * int(np.count_nonzero(torn)) >= rows.size


def _parts_of_bricks(A: CSR, shape: Any, cuts: Any, hole: int) -> Any:
    parts = namespace(A.data).empty(A.n, np.int32)
    kernels_for(A.data).partition.bricks(*shape, *cuts, hole, parts)
    return parts


def _cuts(grid: Grid, size: int) -> list[int]:
    """The number of bricks along each direction. Their sides are equal if couplings are alike, else as the roots of the
    couplings, at least 1: in coordinates in which these are alike, bricks are cubes."""
    shape, weights, largest = grid.shape, [1.0, 1.0, 1.0], max(grid.couplings)
    if not grid.alike and 0 < largest < math.inf:
        weights = [math.sqrt(max(c, LEAST_COUPLING * largest)) for c in grid.couplings]
    cuts, rest, left = [1, 1, 1], float(size), [k for k in range(3) if shape[k] > 1]
    while left:
        scale = (rest / math.prod(weights[k] for k in left)) ** (1 / len(left))
        sides = {k: scale * weights[k] for k in left}
        misfits = {k: max(side / shape[k], 1 / side, 1.0) for k, side in sides.items()}
        k = min(left, key=lambda k: (-misfits[k], sides[k], shape[k]))
        cuts[k] = max(1, round(shape[k] / max(sides[k] if grid.alike else round(sides[k]), 1.0)))
        rest /= shape[k] / cuts[k]
        left.remove(k)
    lengths = [-(-n // k) for n, k in zip(shape, cuts, strict=True)]
    while math.prod(lengths) > TOLERATED * size:
        k = max(range(3), key=lambda k: (lengths[k] > 1, lengths[k] / weights[k]))
        cuts[k] += 1
        lengths[k] = -(-shape[k] // cuts[k])
    return cuts


# Aggregates ----------------------------------------------------------------------------------------------------------

Graph = tuple[
    Any, Any, Any, Any, Any
]  # begin, end, neighbours, weights, sizes, as kernels/reference/partition.py has them


def _aggregated(A: CSR, size: int) -> Partition:
    xp, most = namespace(A.data), size + size // 4
    graph, symmetric = _graph(A)
    if not symmetric:
        graph, _ = _contracted(graph, _own(A.n, A.data), most)
    owners = []
    while True:
        n = graph[-1].size
        if n <= FEW and on_gpu(graph[-1]) and _host_is_faster(graph):
            graph = _on_host(graph)
        place = namespace(graph[-1])
        wish = _own(n, graph[-1])
        for _ in range(ROUNDS):
            before, wish = wish, place.empty(n, np.int32)
            kernels_for(wish).partition.propose(*graph, size, before, wish)
        graph, owner = _contracted(graph, wish, most)
        owners.append(owner)
        if LEAST_MATCHED * (n - graph[-1].size) < n:
            break
    few = _on_host(graph)
    parts = np.empty(few[-1].size, np.int32)
    count = kernels_for(parts).partition.settle(*few, size, parts)
    for owner in reversed(owners):
        parts = kernels_for(owner).vectors.gather(namespace(owner).asarray(parts), owner)
    return Partition(xp.asarray(parts), count, "aggregate")


def _own(n: int, like: Any) -> Any:
    """(n,) int32: each vertex is its own part."""
    return kernels_for(like).indices.progression(n, 0, 1, np.int32, like)


def _host_is_faster(graph: Graph) -> bool:
    """Whether the host is faster for these few vertices; False if its kernels were never compiled."""
    return int(graph[1][-1]) <= 16 * FEW and kernels_for(np.empty(0)).partition.is_compiled()


def _on_host(graph: Graph) -> Graph:
    """The graph in host memory, itself if it is there."""
    if not on_gpu(graph[-1]):
        return graph
    begin, end, neighbours, weights, sizes = (to_host(v) for v in _without_gaps(graph))
    return begin, end, neighbours, weights, sizes


def _without_gaps(graph: Graph) -> Graph:
    """The graph with its lists one after the other; a contracted graph has gaps between them."""
    begin, end, neighbours, weights, sizes = graph
    kernels = kernels_for(sizes)
    pointers, total = kernels.indices.pointers(kernels.indices.lengths(begin, end))
    _, places = kernels.indices.entries(pointers, total, begin)
    gather = kernels.vectors.gather
    return pointers[:-1], pointers[1:], gather(neighbours, places), gather(weights, places), sizes


def _graph(A: CSR) -> tuple[Graph, bool]:
    """The couplings of A, and whether the two entries of each pair agree; otherwise a pair is listed once per entry."""
    xp, kernels = namespace(A.data), kernels_for(A.data).partition
    indptr, indices, diag = _indices(A)
    weights, sizes = xp.empty(A.nnz, np.int64), kernels_for(A.data).indices.progression(A.n, 1, 0, np.int32, A.data)
    if not kernels.couplings(indptr, indices, A.data, diag, weights):
        return (indptr[:-1], indptr[1:], indices, weights, sizes), True
    begin, end = xp.empty(A.n, np.int64), xp.empty(A.n, np.int64)
    neighbours, both = xp.empty(2 * A.nnz, np.int32), xp.empty(2 * A.nnz, np.int64)
    kernels.both_directions(indptr, indices, weights, begin, end, neighbours, both)
    return (begin, end, neighbours, both, sizes), False


def _contracted(graph: Graph, wish: Any, most: int) -> tuple[Graph, Any]:
    """The graph of the pairs in `wish`, and the coarse vertex of each vertex."""
    xp, n, entries = namespace(wish), wish.size, graph[2].size
    owner, sizes = xp.empty(n, np.int32), xp.empty(n, np.int32)
    begin, end = xp.empty(n, np.int64), xp.empty(n, np.int64)
    neighbours, weights = xp.empty(entries, np.int32), xp.empty(entries, np.int64)
    count = kernels_for(wish).partition.contract(*graph, wish, most, owner, begin, end, neighbours, weights, sizes)
    return (begin[:count], end[:count], neighbours, weights, sizes[:count]), owner


def _indices(A: CSR) -> tuple[Any, Any, Any]:
    """indptr, indices, diag with the index types of the kernels; usually without a copy of `indices`."""
    shifted = kernels_for(A.data).indices.shifted
    return shifted(A.indptr, 0, np.int64), shifted(A.indices, 0, np.int32), shifted(A.diag, 0, np.int64)


# Others --------------------------------------------------------------------------------------------------------------


def _consecutive(A: CSR, size: int) -> Partition:
    count = -(-A.n // size)
    return Partition(_parts_of_bricks(A, (A.n, 1, 1), (count, 1, 1), A.n), count, "natural")


def _by_metis(A: CSR, size: int) -> Partition:
    metis = ordering._metis("method='metis'", "aggregate")
    host = A.on(np)
    graph, _ = _graph(host)
    vertices = np.arange(A.n, dtype=np.int32)
    graph, _ = _contracted(graph, vertices, INT32_LIMIT)  # pairs of entries become one
    begin, end, neighbours, weights, _ = graph
    index, starts = metis.zero_copy_dtype(), np.concatenate([[0], np.cumsum(end - begin)])
    entries = int(starts[-1])
    if entries > np.iinfo(index).max:
        raise ParameterError(f"A + A^T has {entries} entries, more than the {index} indices of this METIS count.")
    places = np.arange(entries) + np.repeat(begin - starts[:-1], end - begin)  # there may be gaps between the lists
    weights = weights[places]
    share = min(1.0, METIS_TOTAL / max(float(weights.sum(dtype=np.float64)), 1.0))
    scaled = np.maximum(weights * share, 1.0).astype(index)
    count = max(1, round(A.n / size))
    parts = np.zeros(A.n, np.int64)
    if count > 1:
        adjacency = metis.CSRAdjacency(starts.astype(index), neighbours[places].astype(index))
        options = metis.Options(seed=ordering.SEED)
        cut = metis.part_graph(count, adjacency, eweights=scaled, recursive=False, options=options)
        parts = np.asarray(cut.vertex_part, np.int64)
    _, firsts, parts = np.unique(parts, return_index=True, return_inverse=True)
    number = np.empty(firsts.size, np.int32)
    number[np.argsort(firsts)] = np.arange(firsts.size)
    return Partition(namespace(A.data).asarray(number[parts]), firsts.size, "metis")
