"""Looks at some rows of a matrix: how couplings go, unknowns that belong together, and what a flow carries."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.device import namespace, on_gpu, to_host
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.recent import of_pattern

LARGEST_BLOCK = 8  # unknowns of a node that are looked for
BLOCK_FILL = 0.9  # part of the entries that blocks of the application store at least
# Rows that are looked at; the ratio of opposite entries of a row; the part of the rows with larger ones in two
# directions, from which on they are islands, and for `uneven`. Cells in blocks of 2 x 2 x 2 or balls 2 cells in radius
# that conduct 10^4 times as well as the others around them, a tenth of all, are 3.5% to 5%, balls 4 cells in radius 2%.
LOOKED_AT, LARGER, ISLANDS, OFTEN = 512, 10.0, 0.02, 0.15
# Rows that `has_strong_pairs` looks at; times the other couplings of a row; rows of which one must have such a pair.
# So it is in 3.6% of the rows where a tenth of the cells conduct 10^4 times as well as the others, in 6% where
# conductivities are 10^-3 to 10^3 at random; in 0.2% with a fiftieth of the cells, in 0.7% of an OpenFOAM pressure.
PAIRS_LOOKED_AT, DOMINANT, SELDOM = 4096, 10.0, 50
CANCELLED = 0.1  # times the magnitudes of a row's entries, that their sum is at most, for `cancelling`
MORE, HALF = 1.5, 0.5  # ratio of opposite entries from which one is upstream; part of the couplings, for `turns`
CROSSED, CARRIED = 0.45, 0.02  # the smaller of two sums as a part of the larger one, both of all couplings: `crosses`
NODES_LOOKED_AT = 64  # rows of those that `alike` looks at
WINDOW, WINDOWS = 840, 8  # places that `likely_block_size` looks at: a multiple of 2 to 8, before them; their number
GLANCE = 120  # consecutive rows at each of them
BOTH_WAYS, ONE_WAY = 0.9, 0.5  # least result of `two_way` for a pressure, and the largest for all other unknowns
CELLS = 64  # spread over A, that `two_way` looks at, with their neighbours


def uneven(A: CSR) -> bool:
    """Whether couplings jump from cell to cell of a grid, not just from layer to layer: in 15% of some rows those to
    opposite neighbours, i - k and i + k, differ by more than a factor of ten in two directions k.

    A : columns ascending. Cost: a look at 512 rows, on the host.
    """
    return jumping(A) > OFTEN


def jumping(A: CSR) -> float:
    """The part of some rows whose couplings to opposite neighbours differ by more than a factor of ten in two
    directions: more than `ISLANDS` where small groups of cells conduct far better than those around them, more than
    `OFTEN` where couplings jump from cell to cell.

    A : columns ascending. Cost: a look at 512 rows, on the host.
    """
    rows, _, before, after = _opposite(A)
    with np.errstate(over="ignore"):
        differ = np.maximum(before, after) > LARGER * np.minimum(before, after)
    _, directions = np.unique(rows[differ], return_counts=True)
    return int((directions >= 2).sum()) / min(A.n, LOOKED_AT)


def has_islands(A: CSR) -> bool:
    """Whether small groups of cells conduct far better than those around them, see `jumping`, and no coupling of the
    rows looked at is positive, as between the unknowns of elasticity. False where A has a `skew` part, since opposite
    couplings then differ by the flow.

    Cost: three looks at 512 rows, on the host.
    """
    if not ISLANDS < jumping(A) <= OFTEN or skew(A) > CARRIED:
        return False
    i, j, data = _entries(A, np.linspace(0, A.n - 1, min(A.n, LOOKED_AT)).astype(np.int64), values=True)
    return not bool((data[i != j].real > 0).any())


def has_strong_pairs(A: CSR) -> bool:
    """Whether in some rows, one in 50 or more, one coupling is more than ten times all others together: strong
    couplings are scattered as lines and dots, not as regions, in which a row has several.

    Cost: a look at 4096 rows, on the host.
    """
    rows = np.linspace(0, A.n - 1, min(A.n, PAIRS_LOOKED_AT)).astype(np.int64)
    i, j, data = _entries(A, rows, values=True)
    of_row, sizes = np.searchsorted(rows, i), np.where(i == j, 0, abs(data).astype(np.float64))
    largest = np.zeros(rows.size)
    np.maximum.at(largest, of_row, sizes)
    top = sizes == largest[of_row]  # left out of the sums, in which others could be lost
    with np.errstate(over="ignore"):
        alike = (np.bincount(of_row, top, rows.size) - 1).clip(0) * largest
        others = alike + np.bincount(of_row, np.where(top, 0, sizes), rows.size)
    return SELDOM * int(((others > 0) & (largest > DOMINANT * others)).sum()) >= rows.size


def turns(A: CSR) -> bool:
    """Whether a flow on a grid turns: of the couplings of some rows to opposite neighbours, i - k and i + k, the first
    is larger by half in 15% of the rows, and the second in 15%. This holds for numbers k of half of all couplings.

    A : on the CPU, columns ascending. Cost: a look at 512 rows.
    """
    _, apart, before, after = _opposite(A)
    turning = 0.0
    for k in np.unique(apart):
        first, second = before[apart == k], after[apart == k]
        if min(int((first > MORE * second).sum()), int((second > MORE * first).sum())) > OFTEN * first.size:
            turning += float(first.sum() + second.sum())
    return turning > HALF * float(before.sum() + after.sum())


def crosses(A: CSR) -> bool:
    """Whether a flow on a grid goes along the order of the rows in one direction and against it in another, so that
    factors of the whole in this order do not follow it. Of the couplings of some rows to opposite neighbours, i - k and
    i + k, the sum by which the first are larger, and that by which the second are, differ by a factor of at most 2.2;
    together they are more than 2% of the couplings.

    A : on the CPU, columns ascending. Cost: a look at 512 rows.
    """
    _, _, before, after = _opposite(A)
    along, against = (float(np.maximum(d, 0).sum()) for d in (before - after, after - before))
    carried = along + against > CARRIED * float(before.sum() + after.sum())
    return carried and min(along, against) > CROSSED * max(along, against)


def skew(A: CSR) -> float:
    """The sum of |a_ij - conj(a_ji)| over that of |a_ij| + |a_ji|, for the entries off the diagonal of some rows: 0 for
    a diffusion, 1 for a flow without one.

    A : columns ascending. Cost: a look at 512 rows and at the rows to which they are coupled, on the host.
    """
    i, j, ahead = _entries(A, np.linspace(0, A.n - 1, min(A.n, LOOKED_AT)).astype(np.int64), values=True)
    wide = np.result_type(ahead.dtype, np.float64)
    i, j, ahead = (found[i != j] for found in (i, j, ahead.astype(wide)))
    if not ahead.any():
        return 0.0
    k, l, entries = _entries(A, distinct(j), values=True)
    keys, wanted = k * A.n + l, j * A.n + i
    places = np.searchsorted(keys, wanted).clip(max=keys.size - 1)
    back = np.where(keys[places] == wanted, entries[places], 0).astype(wide).conj()
    with np.errstate(over="ignore", invalid="ignore"):  # no such flow where sums overflow
        share = float(abs(ahead - back).sum() / (abs(ahead) + abs(back)).sum())
    return share if share <= 1 else 1.0


def _opposite(A: CSR) -> tuple[Any, Any, Any, Any]:
    """The pairs of entries (i, i - k) and (i, i + k), k > 0, of some rows, on the host: i, k, and the magnitudes of
    both."""
    rows, columns, data = _entries(A, np.linspace(0, A.n - 1, min(A.n, LOOKED_AT)).astype(np.int64), values=True)
    first, end = (np.searchsorted(rows, rows, side) for side in ("left", "right"))  # of each entry's row
    opposite = first + end - 1 - np.arange(rows.size)
    apart = rows - columns
    paired = (apart > 0) & (columns[opposite] == rows + apart)
    return rows[paired], apart[paired], abs(data[paired]), abs(data[opposite[paired]])


def alike(A: CSR, most: int) -> float:
    """(b - 1) / b for rows of which b have entries in the same columns, in the mean of some rows.

    A : columns ascending.
    most : the entries of a row, beyond which it is left out.
    Cost: a look at 64 rows and at the rows to which they are coupled, on the host.
    """
    rows = distinct(np.linspace(0, A.n - 1, NODES_LOOKED_AT).astype(np.int64))
    rows = rows[_ends(A, rows)[0] <= most]
    if not rows.size:
        return 0.0
    i, j, _ = _entries(A, rows)
    lengths, first, last = _ends(A, j)
    own = np.flatnonzero(i == j)
    own = own[np.searchsorted(i[own], i)]
    alike = (lengths == lengths[own]) & (first == first[own]) & (last == last[own])
    i, j = i[alike], j[alike]
    looked_at = distinct(j)
    of, columns, _ = _entries(A, looked_at)
    ends = np.searchsorted(of, looked_at, "right")
    sums = np.add.reduceat(columns, np.append(0, ends[:-1]))
    same = sums[np.searchsorted(looked_at, i)] == sums[np.searchsorted(looked_at, j)]
    together = np.bincount(np.searchsorted(rows, i[same]), minlength=rows.size)
    together = np.where(together > LARGEST_BLOCK, 1, together)  # dense blocks are no nodes
    return float((1 - 1 / together).mean())


def _ends(A: CSR, rows: Any) -> tuple[Any, Any, Any]:
    """The number of entries, the first and the last column of each of these rows, on the host."""
    xp, gather = namespace(A.data), kernels_for(A.data).vectors.gather if on_gpu(A.data) else np.take  # few of them
    begin, end = to_host(gather(A.indptr, xp.asarray(np.concatenate([rows, rows + 1])))).reshape(2, -1).astype(np.int64)
    first, last = to_host(gather(A.indices, xp.asarray(np.concatenate([begin, end - 1])))).reshape(2, -1)
    return end - begin, first, last


def cancelling(A: CSR) -> float:
    """The part of some rows whose entries add up to at most a tenth of their magnitudes, as those of an elliptic
    operator do, which takes constants to zero; those of a mass matrix, or where reaction outweighs diffusion, do not.

    A : on the CPU. Cost: a look at 512 rows.
    """
    looked_at = np.linspace(0, A.n - 1, min(A.n, LOOKED_AT)).astype(np.int64)
    rows, _, data = _entries(A, looked_at, values=True)
    of_row, data = np.searchsorted(looked_at, rows), data.astype(np.float64)
    with np.errstate(over="ignore"):
        sums, sizes = (np.bincount(of_row, values, looked_at.size) for values in (data, abs(data)))
    return float((abs(sums) <= CANCELLED * sizes).mean())


def block_size(A: CSR) -> int:
    """The largest b <= 8 that divides n and for which the b x b blocks that A touches are nearly full; 1 if none.

    Cost: one pass over the entries a divisor of n.
    """
    S = to_host(A.tosparse()).tocoo()
    if S.nnz == 0:
        return 1
    for b in range(LARGEST_BLOCK, 1, -1):
        if A.n % b == 0:
            touched = sp.coo_matrix((np.ones(S.nnz, np.int8), (S.row // b, S.col // b)), shape=(A.n // b, A.n // b))
            if S.nnz >= BLOCK_FILL * b * b * touched.tocsr().nnz:
                return b
    return 1


def likely_block_size(A: CSR) -> int:
    """As `block_size`, by a look at 120 consecutive rows in each of 8 places; 1 where those in the middle have none.

    Cost: a copy of at most 960 rows, from a GPU to the host, and a few passes over their entries there; where there
    are no blocks, of 120 rows; nothing for a pattern that was looked at before.
    """
    if "likely_block_size" not in A.__dict__:
        A.__dict__["likely_block_size"] = _likely_block_size(A)
    found: int = A.__dict__["likely_block_size"]
    return found


def _likely_block_size(A: CSR) -> int:
    starts = WINDOW * np.linspace(0, (A.n - 1) // WINDOW, min(WINDOWS, (A.n - 1) // WINDOW + 1)).astype(np.int64)
    sizes = [b for b in range(LARGEST_BLOCK, 1, -1) if A.n % b == 0]
    i, j, _ = _entries(A, _consecutive(A, starts[starts.size // 2 :][:1]))
    sizes = [b for b in sizes if _fill_of_blocks(A, i, j, b) >= BLOCK_FILL / 2]
    if not sizes:
        return 1
    i, j, _ = _entries(A, _consecutive(A, starts))
    return next((b for b in sizes if _fill_of_blocks(A, i, j, b) >= BLOCK_FILL), 1)


def distinct(v: Any) -> Any:
    """The different values of v, ascending, by a sort: `np.unique` hashes integers, which takes longer."""
    s = np.sort(v)
    new = np.ones(s.size, np.bool_)
    np.not_equal(s[1:], s[:-1], out=new[1:])
    return s[new]


def _consecutive(A: CSR, starts: Any) -> Any:
    """GLANCE rows from each of the starts on."""
    rows = (starts[:, None] + np.arange(GLANCE)).ravel()
    return rows[rows < A.n]


def _entries(A: CSR, rows: Any, values: bool = False) -> tuple[Any, Any, Any]:
    """The row and the column of each entry of these rows, and with `values` its value, on the host."""
    xp, gather = namespace(A.data), kernels_for(A.data).vectors.gather if on_gpu(A.data) else np.take  # few of them
    begin, end = to_host(gather(A.indptr, xp.asarray(np.concatenate([rows, rows + 1])))).reshape(2, -1).astype(np.int64)
    lengths = end - begin
    ends = np.cumsum(lengths)
    places = xp.asarray(np.arange(ends[-1]) + np.repeat(begin - (ends - lengths), lengths))
    data = to_host(gather(A.data, places)) if values else None
    return np.repeat(rows, lengths), to_host(gather(A.indices, places)).astype(np.int64), data


def _fill_of_blocks(A: CSR, i: Any, j: Any, b: int) -> float:
    """The entries (i, j) over those of all b x b blocks that they touch, among rows that belong to whole blocks."""
    whole = i % WINDOW < GLANCE // b * b
    i, j = i[whole], j[whole]
    return float(i.size / max(b * b * distinct(i // b * A.n + j // b).size, 1))


def flow(A: CSR) -> int:
    """The unknowns of a cell, if couplings by one of them go both ways, and those by all others downstream; else 0.

    Cost: as `likely_block_size` and `two_way`.
    """
    size = of_pattern(A, likely_block_size)
    ratios = np.sort(two_way(A, size)) if size > 1 else np.zeros(2)
    return size if ratios[-1] >= BOTH_WAYS and ratios[-2] <= ONE_WAY else 0


def two_way(A: CSR, size: int) -> Any:
    """(size,) on the host : for each unknown of a cell, how similar opposite couplings of cells by it are, 0 to 1.

    size : of a cell, in consecutive rows. A coupling of two cells by an unknown is the sum of the magnitudes of its
    column in their block; the result is the sum of the lesser one of each pair over the sum of the larger ones. A
    pressure has almost 1, and a quantity that a flow carries downstream only, almost 0. 0 if no cells are coupled.
    Cost: a look at some hundred cells, on the host; nothing in a block of `A.unchanged` with the same comparison as in
    the one where they were looked at.
    """
    compared, known = A.__dict__.get("_mirrored"), A.__dict__.get("_two_way")
    if compared is None or known is None or known[0] is not compared or known[1] != size:
        known = compared, size, _two_way(A, size)
        if compared is not None:
            A.__dict__["_two_way"] = known
    return known[2]


def _two_way(A: CSR, size: int) -> Any:
    cells = distinct(np.linspace(0, A.n // size - 1, CELLS).astype(np.int64))

    def of(cells: Any, values: bool = False) -> tuple[Any, Any, Any]:
        return _entries(A, (cells[:, None] * size + np.arange(size)).ravel(), values)

    cells = distinct(np.append(of(cells)[1] // size, cells))
    i, j, data = of(cells, values=True)
    row, column, m = np.searchsorted(cells, i // size), np.searchsorted(cells, j // size), cells.size
    apart = (cells[np.minimum(column, m - 1)] == j // size) & (column != row)
    row, column, unknown = row[apart], column[apart], j[apart] % size
    couplings, of_entries = np.unique(row * m + column, return_inverse=True)
    ratios, other = np.zeros(size), couplings % m * m + couplings // m
    place = np.minimum(np.searchsorted(couplings, other), max(couplings.size - 1, 0))
    paired = couplings[place] == other
    for u in range(size):
        of_it = np.where(unknown == u, abs(data[apart]), 0).astype(np.float64)
        there = np.bincount(of_entries, of_it, couplings.size)
        back = np.where(paired, there[place], 0) if couplings.size else there
        larger = np.maximum(there, back).sum() + there[~paired].sum()
        ratios[u] = np.minimum(there, back).sum() / larger if larger > 0 else 0.0
    return ratios
