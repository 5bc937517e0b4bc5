"""Orderings, and permutations that are kept apart from the values of a matrix, so that new values can be permuted."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, reverse_cuthill_mckee

from finelu import deadline, threads, validation
from finelu.device import namespace, on_gpu, to_host
from finelu.errors import OutOfTime, ParameterError
from finelu.foreign import spilu, with_own_symbols
from finelu.kernels import kernels_for
from finelu.kernels.operands import INT32_LIMIT
from finelu.matrix import CSR, as_csr, without_zeros
from finelu.matrix.traits import dense_row
from finelu.recent import RECENT
from finelu.threads import each

METIS_WORK = 1e4  # flops of the complete L U per entry of the graph from which on METIS takes less time than they do
METIS_SECONDS = 1.5e-6  # time of METIS per entry of the graph
SEED = 1  # of METIS: the same order in every run
# Parts of an elimination tree: the most work of a lowest part and of those above, as parts of all work; the least rows
# of a part; entries of a row beyond which an incomplete factorization takes no longer for it.
SUBTREE, PIECE, LEAST_ROWS, LONG = 1 / 64, 1 / 8, 2000, 40
# Cuts by level sets: the least rows for which they are tried; the largest ratio of the longest row to the mean one; the
# least rows of a region; the most cuts; the rows of a separator that cost as much as one row too many in a half; the
# least part of a region in its smaller half.
MANY, ALIKE, LEAST_CUT, MOST_CUTS, UNEVEN, LEAST_HALF = 20_000, 4.0, 6000, 6, 0.25, 0.4
# The most rows of a path of separators, as a part of all; the same where complete factors of the regions have more than
# FILLED times their entries: 8 for triangles, 14 to 20 for a cube, but 1 for a tree, which `amd` orders without fill.
SEPARATING, SEPARATING_FILLED, FILLED = 0.12, 0.3, 5.0
# Dense rows go last if the products of an elimination exceed this per entry of A, and this in all; the part of the
# products that the new order may leave.
COSTLY, LEAST_COSTLY, CHEAPER = 32, 2**20, 0.5


@dataclass(frozen=True, eq=False)
class Permutation:
    """P A P^T, whose row i is row order[i] of A; on the device of A.

    order, inverse (n,) : order[inverse[i]] = i.
    pattern : of P A P^T.
    places (nnz,) : value p of P A P^T is A.data[places[p]].
    mirrored (nnz,), for the lower triangle of a Hermitian matrix : whether value p comes from the other side of the
        diagonal, so that its conjugate is taken; else None.
    """

    order: Any
    inverse: Any
    pattern: CSR
    places: Any
    mirrored: Any

    def matrix(self, A: CSR) -> CSR:
        """P A P^T for an A with the permuted pattern. Cost: one pass over the entries."""
        data = A.data[self.places]
        if self.mirrored is not None and data.dtype.kind == "c":
            data = namespace(data).where(self.mirrored, data.conj(), data)
        return self.pattern.with_values(data)


def rcm(A: CSR) -> np.ndarray:
    """The reverse Cuthill-McKee order (n,) of A + A^T: row order[i] of A becomes row i. On the host.

    Cost: O(nnz) and a transposition. Source: SciPy's reverse_cuthill_mckee, as the papers on ParILUT use it.
    """
    return reverse_cuthill_mckee(adjacency(A), symmetric_mode=True).astype(np.int64)


def repeated_rcm(A: CSR) -> np.ndarray:
    """The reverse Cuthill-McKee order (n,) of A + A^T, repeated as long as that lowers the mean |i - j| of the entries.

    A breadth-first search takes equal rows in the order in which they are stored, so that a second search, which begins
    with the order of the first, finds another one, where rows of a level often have the same direction in all levels.
    For rows in any order it is mostly the second or the first. On the host.
    Cost: that of two or more `rcm`.
    """
    S, order, least = adjacency(A), np.arange(A.n), math.inf
    while True:
        deadline.check()
        found = reverse_cuthill_mckee(S, symmetric_mode=True).astype(np.int64)
        S = S[found][:, found]
        S.sort_indices()
        distance = mean_distance(S)
        if distance >= least:
            return order
        order, least = order[found], distance


def mean_distance(S: sp.csr_matrix) -> float:
    """The mean |i - j| of the entries (i, j) of S; 0 if there are none."""
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    return float(abs(rows - S.indices).sum(dtype=np.float64) / max(S.nnz, 1))


def minimum_degree(A: Any) -> np.ndarray:
    """A multiple minimum degree order (n,) of A + A^T, which keeps the fill of factors low: row order[i] comes i-th.

    A : as `as_csr` takes it, without need of a diagonal; only its pattern counts. The order is on the host.
    Raises ParameterError if A + A^T has more entries than SuperLU's 32-bit indices can count.
    Cost: that of a minimum degree ordering; nearly linear for short rows, far more with rows as long as A.
    Source: J. W. H. Liu: Modification of the minimum-degree algorithm by multiple elimination, 1985, in SciPy's
    SuperLU,
    followed by a postorder of the elimination tree.
    """
    return _minimum_degree(_graph(as_csr(A, diagonal=False)))


def _minimum_degree(S: Any) -> np.ndarray:
    S = sp.csr_matrix(S * 1e-30 + sp.identity(S.shape[0], format="csr"))
    if S.nnz > INT32_LIMIT:
        raise ParameterError(
            f"ordering='mmd': A + A^T has {S.nnz} entries; SuperLU takes up to {INT32_LIMIT}. Use 'nd' or 'rcm'."
        )
    by_columns = (S.data, S.indices.astype(np.int32), S.indptr.astype(np.int32))  # S is symmetric
    # All entries off the diagonal are dropped at once, and columns are eliminated one by one: the least work that
    # SuperLU can do in addition to the ordering.
    factors = spilu(
        sp.csc_matrix(by_columns, shape=S.shape),
        drop_tol=0.5,
        fill_factor=1,
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0,
        panel_size=1,
        relax=1,
        drop_rule="basic",
    )
    return np.argsort(factors.perm_c)  # column j goes to perm_c[j]


def amd(A: Any) -> np.ndarray:
    """An approximate minimum degree order (n,) of A + A^T, which keeps the fill low: row order[i] of A comes i-th.

    A : as `as_csr` takes it, without need of a diagonal; only its pattern counts. The order is on the host. Rows with
    more than 10 sqrt(n) entries, 16 at least, come last.
    Cost: nearly O(nnz) for short rows, O(n nnz) at worst.
    Source: P. R. Amestoy, T. A. Davis, I. S. Duff: An approximate minimum degree ordering algorithm, 1996.
    """
    return _amd(_graph(as_csr(A, diagonal=False)))


def _amd(S: Any, halt: Any = None) -> np.ndarray:
    """`amd` of the graph S.  halt (1,) : set by another thread to end it; the order is then meaningless."""
    return _minimum_degree_of(S.indptr, S.indices, S.shape[0], halt)[0]


def _minimum_degree_of(indptr: Any, indices: Any, most: int, halt: Any = None) -> tuple[np.ndarray, bool]:
    """The minimum degree order (n,), and whether it has ended early, as all rows that were left had a degree above
    `most`."""
    n = indptr.size - 1
    order, halt = np.empty(n, indices.dtype), deadline.halt() if halt is None else halt
    left = kernels_for(order).minimum_degree.minimum_degree(
        indptr.astype(indices.dtype, copy=False), indices, dense_row(n), most, halt, order
    )
    deadline.check()
    return order.astype(np.int64), left > 0


def dense_last(A: CSR) -> tuple[np.ndarray, int] | None:
    """(A's own order (n,), but with dense rows that would fill in last; the number of these rows).

    A : with a full diagonal.
    The order is on the host; None if no row moves, as for nearly all A. A row moves if it has more than 10 sqrt(n)
    entries behind the diagonal, and as many below it in its column. Rows move only if A's own order makes more than a
    million products l_ik u_kj, and more than 32 for each entry of A, before any fill, and the new order at most half.
    Cost: a pass over the row pointers; if some rows are this long, a few passes over the entries.
    """
    dense = dense_row(A.n)
    if A.longest[2] <= dense:
        return None
    rows, columns = _places(A)
    below, behind = _neighbours(rows, columns, A.n)
    moved = (below > dense) & (behind > dense)
    before = float(below @ behind)
    if not moved.any() or before <= max(COSTLY * A.nnz, LEAST_COSTLY):
        return None
    order = np.argsort(moved, kind="stable")
    below, behind = _reordered(rows, columns, order)
    return (order, int(moved.sum())) if float(below @ behind) <= CHEAPER * before else None


def products(A: CSR) -> float:
    """The products l_ik u_kj that elimination of A makes before any fill, with dense rows last.

    It is the sum over the entries (i, k) below the diagonal of the length of row k of U.
    Cost: a few passes over the entries.
    """
    rows, columns = _places(A)
    dense = np.bincount(rows, minlength=A.n) > dense_row(A.n)
    below, behind = _reordered(rows, columns, np.argsort(dense, kind="stable"))
    return float(below @ behind)


def _places(A: CSR) -> tuple[Any, Any]:
    """Row and column of each entry, on the host."""
    return np.repeat(np.arange(A.n), np.diff(to_host(A.indptr))), to_host(A.indices)


def _reordered(rows: Any, columns: Any, order: Any) -> tuple[Any, Any]:
    """`_neighbours` of the matrix by rows `order`."""
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return _neighbours(place[rows], place[columns], order.size)


def _neighbours(rows: Any, columns: Any, n: int) -> tuple[Any, Any]:
    """Entries below the diagonal of each column, and behind the diagonal of each row; the products of the two numbers
    are the work of eliminating each unknown, before any fill."""
    below = columns < rows
    return np.bincount(columns[below], minlength=n), np.bincount(rows[columns > rows], minlength=n)


def nested_dissection(A: Any) -> np.ndarray:
    """A nested dissection order (n,) of A + A^T, which keeps fill low, by METIS: row order[i] comes i-th. On the host.

    A : as `as_csr` takes it, without need of a diagonal; only its pattern counts. The same order in every run.
    Raises ParameterError if pymetis is not installed. Cost: about O(nnz log n).
    Source: G. Karypis, V. Kumar: A fast and high quality multilevel scheme for partitioning irregular graphs, 1998.
    """
    return _nested_dissection(_metis("ordering='nd'"), _graph(as_csr(A, diagonal=False)))


def _nested_dissection(metis: Any, S: Any) -> np.ndarray:
    if not _metis_in_time(S.nnz):
        raise OutOfTime
    order, _ = metis.nested_dissection(_adjacency(metis, S), options=metis.Options(seed=SEED))
    return np.asarray(order, np.int64)


@dataclass(frozen=True)
class Fill:
    """Size and work of a complete L U. nnz : entries of L and U, a unit diagonal not counted.  flops : to compute
    them."""

    nnz: int
    flops: float


def complete_fill(A: Any, order: Any = None) -> Fill:
    """The fill and the work of the complete L U of A by rows `order`, with pivots from the diagonal, without doing it.

    A : as `as_csr` takes it, without need of a diagonal; only the pattern of A + A^T counts, without stored zeros.
    order : (n,), None for A's own.
    An upper bound if A's pattern is not symmetric; pivots off the diagonal may fill in more. Cost: nearly O(nnz).
    Raises ParameterError for an order that is no permutation of the rows.
    """
    S = _graph(without_zeros(as_csr(A, diagonal=False)))
    if order is not None and not np.array_equal(np.sort(order), np.arange(S.shape[0])):
        raise ParameterError(f"order is no permutation of the {S.shape[0]} rows; each must appear once.")
    return _complete_fill(S, order)


def _complete_fill(S: Any, order: Any) -> Fill:
    return _postordered(S, np.arange(S.shape[0]) if order is None else order)[1]


def _postordered(S: Any, order: Any) -> tuple[np.ndarray, Fill]:
    """An order with the same fill, in which the columns of each subtree are neighbours, and that fill.

    Neighbouring columns then have nearly the same rows, so that a factorization by supernodes can combine them.
    """
    deadline.check()
    _, post, count = _tree(S, order)
    below = (count - 1).astype(float)
    return order[post], Fill(nnz=int(2 * count.sum() - count.size), flops=float((below + 2 * below**2).sum()))


def _tree(S: Any, order: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The elimination tree of S by rows `order`: parents, a postorder, entries of the Cholesky factor's columns."""
    starts, columns = np.empty_like(S.indptr), np.empty_like(S.indices)
    parent, post, count = (np.empty(S.shape[0], np.int64) for _ in range(3))
    kernels = kernels_for(parent)
    kernels.graph.permuted_graph(S.indptr, S.indices, order, starts, columns)
    kernels.fill.elimination_tree(starts, columns, parent)
    kernels.fill.postorder(parent, post)
    kernels.fill.column_counts(starts, columns, parent, post, count)
    return parent, post, count


def elimination_tree(A: CSR, order: Any) -> np.ndarray:
    """(n,) : the row above each row in the elimination tree of A + A^T by rows `order`, or -1. A is on the host.

    Cost: nearly O(nnz).
    """
    return _tree(_graph(A), order)[0]


class Subtrees(NamedTuple):
    """The result of `by_subtrees`: order (n,), starts (p + 1,), above (p,).

    bounded : whether the rows with many entries keep the order that they have in A.
    """

    order: np.ndarray
    starts: np.ndarray
    above: np.ndarray
    bounded: bool = False


def by_subtrees(A: Any, ordering: str, fill: float = math.inf) -> Subtrees:
    """An order with little fill whose rows are grouped by parts, and the parts, which are the nodes of a forest.

    A : as `as_csr` takes it, without need of a diagonal; only its pattern counts.  ordering : one of `ORDERS`.
    fill : the most entries of a row of an incomplete factor, relative to the mean row. If rows have about one length,
        `amd` ends once all rows that are left would have more. They keep their order: the factor loses as much of them
        in any order.
    Returns order (n,), starts (p + 1,) and above (p,): the number of the next part above, which is larger, or -1. The
    elimination of a row changes only rows of its own part and of the parts above it. The result is the same for any
    number of threads. Parts are subtrees of the elimination tree of the ordering, with at least about 2000 rows and at
    most a 64th of the work. The rest above them is cut once more, at an 8th of the work. From 20,000 rows on, if rows
    have about one length, as those of a mesh, and small sets separate them, the parts are the regions between
    separators, which `amd` orders on all threads, and the separators. Larger sets do where minimum degree would keep
    no fill low: complete factors of the regions have many times their entries. Cost: that of the ordering, and nearly
    O(nnz).
    """
    A = as_csr(A, diagonal=False)
    S, n = _graph(A), A.n
    alike = np.diff(S.indptr).max() <= ALIKE * S.nnz / n
    most = int(min(fill * A.nnz / n, n)) if alike and fill < math.inf else n
    if ORDERS[ordering] is amd:
        if n >= MANY and alike and (found := _cut(S, most)) is not None:
            return found
        order, bounded = _minimum_degree_of(S.indptr, S.indices, most)
    else:
        order, bounded = ORDERS[ordering](A), False
    if n < 4 * LEAST_ROWS:
        return Subtrees(order, np.array([0, n]), np.array([-1]), bounded)
    parent, post, count = _tree(S, order)
    place = np.empty(n, np.int64)
    place[post] = np.arange(n)
    parent = np.where(parent >= 0, place[parent], -1)[post]
    work = np.minimum(count[post], LONG).astype(float)
    total = float(work.sum())
    small = total * max(SUBTREE, LEAST_ROWS / n)
    large = max(total * PIECE, small)
    part, above = np.empty(n, np.int64), np.empty(n, np.int64)
    parts = kernels_for(part).fill.subtrees(parent, work, small, large, part, above)
    starts = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=parts))])
    return Subtrees(order[post][np.argsort(part, kind="stable")], starts, above[:parts], bounded)


def _cut(S: Any, most: int) -> Subtrees | None:
    """As `by_subtrees`, by level sets that repeatedly halve the regions between separators; None if they are too large.

    A. George, J. W. H. Liu: An automatic nested dissection algorithm for irregular finite element problems, 1978.
    """
    n, kernels = S.shape[0], kernels_for(S.indices)
    cuts = min(max(int(math.log2(n / LEAST_CUT)), 1), MOST_CUTS)
    label, level, queue = np.zeros(n, np.int64), np.empty(n, np.int64), np.empty(n, S.indices.dtype)
    regions: list[Any] = [np.arange(n)]
    separators: list[list[Any]] = []
    longest = 0  # rows on the longest path from the top to a region: these are not factored at the same time as others
    for _ in range(cuts):
        deadline.check()
        starts = np.cumsum([0, *(rows.size for rows in regions)])

        def halved(t: int, regions: list[Any] = regions, starts: Any = starts) -> tuple[Any, Any, Any]:
            return _halved(S, regions[t], label, level, queue[starts[t] : starts[t + 1]])

        found = each(len(regions), halved)
        separators.append([middle for _, middle, _ in found])
        longest += max(middle.size for middle in separators[-1])
        if longest > SEPARATING_FILLED * n:
            return None
        regions = [half for first, _, last in found for half in (first, last)]
        for t, rows in enumerate([*regions, *separators[-1]]):
            label[rows] = t if t < len(regions) else -1
    place = np.full(n, -1)
    for rows in regions:
        place[rows] = np.arange(rows.size)

    def ordered(t: int) -> tuple[Any, bool, Any]:
        starts, columns, _ = kernels.graph.block(S.indptr, S.indices, S.indices, regions[t], place)
        order, bounded = _minimum_degree_of(starts, columns, most)
        return order, bounded, sp.csr_matrix((columns, columns, starts), shape=(order.size, order.size))

    made = each(len(regions), ordered)
    if longest > SEPARATING * n:
        fill = sum(_complete_fill(inside, order).nnz for order, _, inside in made)
        if fill <= FILLED * sum(inside.nnz + order.size for order, _, inside in made):
            return None
    levels = [[rows[order] for rows, (order, _, _) in zip(regions, made, strict=True)], *reversed(separators)]
    first = np.cumsum([0, *map(len, levels)])
    above = [first[k + 1] + np.arange(len(parts)) // 2 for k, parts in enumerate(levels[:-1])]
    order = [rows for parts in levels for rows in parts]
    starts = np.cumsum([0, *(rows.size for rows in order)])
    return Subtrees(
        np.concatenate(order), starts, np.concatenate([*above, [-1]]), any(bounded for _, bounded, _ in made)
    )


def _halved(S: Any, rows: Any, label: Any, level: Any, queue: Any) -> tuple[Any, Any, Any]:
    """(one half, the separator, the other half) of the rows of one label, each ascending."""
    if rows.size == 0:
        return rows, rows, rows
    sets = kernels_for(S.indices).graph.level_sets
    sets(S.indptr, S.indices, rows, label, int(rows[0]), level, queue)
    depth = sets(S.indptr, S.indices, rows, label, int(queue[-1]), level, queue)  # from the one that is farthest
    distance = level[rows]
    sizes = np.bincount(distance, minlength=depth)
    before = np.cumsum(sizes) - sizes
    middle = np.flatnonzero((before + sizes >= LEAST_HALF * rows.size) & (before <= (1 - LEAST_HALF) * rows.size))
    cost = sizes + UNEVEN * abs(before + sizes / 2 - rows.size / 2)
    at = middle[cost[middle].argmin()]
    return rows[distance < at], rows[distance == at], rows[distance > at]


def with_little_fill(A: Any, ordering: str = "auto", job: OrderingJob | None = None) -> tuple[np.ndarray, Fill]:
    """The order (n,) for a complete L U of A, in a postorder of its elimination tree, and the fill of that.

    A : as `as_csr` takes it, without need of a diagonal; only its pattern counts, without stored zeros.
    ordering : one of `ORDERS`; "auto" is `amd`, or, if the factorization is expected to take longer than METIS and
        pymetis is installed, the better of that and `nested_dissection`.
    job : the OrderingJob of "auto" for this A, if one was started.
    Cost: those of the orderings; for a pattern that "auto" has ordered lately a pass over it, see `finelu.recent`.
    """
    A = without_zeros(as_csr(A, diagonal=False))
    if ordering != "auto":
        return _postordered(_graph(A), ORDERS[ordering](A))
    entries, order, fill = (job or OrderingJob(A, aside=False)).found()
    if metis := _metis_for(entries, fill):
        other: tuple[np.ndarray, Fill] | None = RECENT.get("metis", A.indptr, A.indices)
        if other is None:
            S = _graph(A)
            other = _postordered(S, _nested_dissection(metis, S))
            other[0].flags.writeable = False
            RECENT.keep("metis", A.indptr, A.indices, other, other[0].nbytes)
        if other[1].flops < fill.flops:
            return other
    return order, fill


def _metis_for(entries: int, fill: Fill) -> Any:
    """METIS, if it is installed and worth its time for a graph with these entries; else None."""
    return _installed("pymetis") if _metis_is_worth(entries, fill) else None


def _metis_is_worth(entries: int, fill: Fill) -> bool:
    """Whether METIS takes less time than a factorization with that fill, and has that time."""
    return fill.flops > METIS_WORK * entries and _metis_in_time(entries)


def _metis_in_time(entries: int) -> bool:
    """Whether METIS may begin with such a graph: it can neither be ended nor abandoned, since it blocks other
    threads."""
    return bool(METIS_SECONDS * entries <= deadline.remaining())


class OrderingJob:
    """The first part of `with_little_fill`, `amd` and its fill, computed at once or in a second thread.

    Call `end` before A changes.
    """

    @staticmethod
    def possible() -> bool:
        """Whether a second thread is available, and the kernel is compiled."""
        return threads.get_num_threads() > 1 and kernels_for(np.empty(0)).minimum_degree.is_compiled()

    def __init__(self, A: CSR, *, aside: bool = True):
        """A : on the host.  aside : True starts it in another thread; False does it now."""
        self._A, self._halt, self._process = A, np.zeros(1, np.int64), os.getpid()
        self._task = threads.begin(_begin, A, self._halt) if aside else self._here()

    def _here(self) -> threads.Task:
        return threads.Task.over_with(_begin(self._A))

    @property
    def over(self) -> bool:
        """Whether `found` returns without waiting."""
        return self._task.done() or self._process != os.getpid()

    def found(self) -> tuple[int, np.ndarray, Fill]:
        """(entries of A + A^T off the diagonal, order, fill); computed here if no thread has started it."""
        if self._task.cancel() or not (self._task.done() or self._process == os.getpid()):  # a fork has no thread
            self._task = self._here()
        found: tuple[int, np.ndarray, Fill] = self._task.result()
        return found

    @property
    def goes_on(self) -> bool:
        """Whether `with_little_fill` goes on to METIS."""
        entries, _, fill = self.found()
        return _metis_is_worth(entries, fill) and find_spec("pymetis") is not None  # its import takes 5 ms

    @property
    def is_long(self) -> bool:
        """Whether a nested dissection takes less time than a factorization by this order."""
        entries, _, fill = self.found()
        return bool(fill.flops > METIS_WORK * entries)

    def end(self) -> None:
        """Stop the thread, and wait for it."""
        self._halt[0] = 1
        running = self._process == os.getpid() and not self._task.cancel()
        while running:
            try:
                self._task.wait()
                running = False
            except KeyboardInterrupt:  # one more, while the first is on its way
                pass


def _begin(A: CSR, halt: Any = None) -> Any:
    """(entries of A + A^T off the diagonal, without stored zeros; an order by `amd`; its fill); None after a halt."""
    A = without_zeros(A)
    known = RECENT.get("amd", A.indptr, A.indices)
    if known is not None:
        return known
    S = _graph(A)
    order = _amd(S, halt)
    if halt is not None and halt[0]:
        return None
    order, fill = _postordered(S, order)
    order.flags.writeable = False
    return RECENT.keep("amd", A.indptr, A.indices, (S.nnz, order, fill), order.nbytes)


def parts(A: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """An order (n,) by parts that no entry of A + A^T couples, with the rows that separate them last; and their starts.

    A : as `as_csr` takes it, without need of a diagonal; only its pattern counts.
    Returns order (n,) and starts (count + 1,): part k is order[starts[k]:starts[k + 1]], the separator
    order[starts[count]:], each in A's order; on the host, the same in every run. The parts have about the same number
    of rows; some are empty if A is too small, or too full, for this number of parts.
    Raises ParameterError for a count that is not from 1 to n, or if pymetis is not installed.
    Cost: about O(nnz log count), for the bisections by METIS. Each separator is a smallest set of rows that touches
    all entries between the halves (Koenig's theorem, by a maximum matching of their ends).
    """
    A = as_csr(A, diagonal=False)
    count = validation.count("count", count, 1, A.n)
    metis = _metis("parts(A, count)") if count > 1 else None
    inside, separators = _dissected(metis, _graph(A), np.arange(A.n), count)
    order = np.concatenate([*inside, np.sort(np.concatenate([np.empty(0, np.int64), *separators]))])
    return order, np.cumsum([0, *(part.size for part in inside)])


ORDERS = {"rcm": rcm, "mmd": minimum_degree, "amd": amd, "nd": nested_dissection, "auto": amd}
ORDERINGS = (None, *ORDERS)


def permutation(A: CSR, ordering: str | None, *, hermitian: bool = False) -> Permutation | None:
    """The symmetric permutation of A by `ordering`, one of `ORDERINGS`; None for None. "rcm" is `repeated_rcm`.

    hermitian : A is the lower triangle, with the diagonal, of a Hermitian matrix, and so is the result for P A P^T.
    The pattern is permuted on the host and moved to the device of A. Cost: O(nnz), and that of the ordering.
    """
    validation.choice("ordering", ordering, ORDERINGS)
    if ordering is None:
        return None
    return permuted(A, repeated_rcm(A) if ordering == "rcm" else ORDERS[ordering](A), hermitian=hermitian)


def permuted(A: CSR, order: Any, *, hermitian: bool = False) -> Permutation:
    """As `permutation`, by an order (n,) on the host."""
    xp, index = namespace(A.data), A.indices.dtype
    inverse = np.empty_like(order)
    inverse[order] = np.arange(A.n)
    rows, columns = inverse[np.repeat(np.arange(A.n), np.diff(to_host(A.indptr)))], inverse[to_host(A.indices)]
    mirrored = columns > rows
    if hermitian:
        rows, columns = np.maximum(rows, columns), np.minimum(rows, columns)
    S = sp.csr_matrix((np.arange(A.nnz), (rows, columns)), shape=A.shape)  # its values: the places in A
    S.sort_indices()
    places = S.data
    diag = np.flatnonzero(S.indices == np.repeat(np.arange(A.n), np.diff(S.indptr)))
    moved = (xp.asarray(v.astype(index)) for v in (order, inverse, S.indptr, S.indices, diag, places))
    order, inverse, indptr, indices, diag, on_device = moved
    pattern = CSR(indptr, indices, A.data[on_device], diag)
    return Permutation(order, inverse, pattern, on_device, xp.asarray(mirrored[places]) if hermitian else None)


def hermitian_pattern(A: CSR) -> CSR:
    """A + A^T of a lower triangle A: the whole pattern, with meaningless values. On the host."""
    return as_csr(adjacency(A))


def adjacency(A: CSR) -> sp.csr_matrix:
    """The pattern of A + A^T, with meaningless values, on the host."""
    S = _ones(A)
    return sp.csr_matrix(S + S.T)


def _ones(A: CSR) -> sp.csr_matrix:
    """A with ones for values, on the host."""
    return sp.csr_matrix((np.ones(A.nnz), to_host(A.indices), to_host(A.indptr)), shape=A.shape)


def _graph(A: CSR) -> sp.csr_matrix:
    """The pattern of A + A^T without its diagonal, rows sorted, all values 1; on the host."""
    index: Any = np.int32 if max(A.n, 2 * A.nnz) <= INT32_LIMIT else np.int64
    if not on_gpu(A.data) and A.is_known_to_be_paired:
        starts, columns = np.empty(A.n + 1, index), np.empty(A.nnz + 1, index)
        kernels_for(columns).graph.without_diagonal(A.indptr, A.indices, starts, columns)
        columns = columns[: starts[-1]].copy()
        return sp.csr_matrix((np.ones(columns.size), columns, starts), shape=A.shape)
    starts, columns = np.empty(A.n + 1, index), np.empty(2 * A.nnz, index)
    kernels_for(columns).graph.symmetric_graph(to_host(A.indptr), to_host(A.indices), starts, columns)
    columns = columns[: starts[-1]]
    return sp.csr_matrix((np.ones(columns.size), columns, starts), shape=A.shape)


def _installed(module: str) -> Any:
    """The module, or None."""
    try:
        return with_own_symbols(module)
    except ImportError:
        return None


def _metis(what: str, instead: str = "mmd") -> Any:
    """METIS. Raises ParameterError if `what` needs it and pymetis is not installed."""
    metis = _installed("pymetis")
    if metis is None:
        raise ParameterError(
            f"{what} needs 'finelu[metis]', which is not installed: pip install 'finelu[metis]', or use {instead!r}."
        )
    return metis


def _adjacency(metis: Any, S: Any) -> Any:
    index = metis.zero_copy_dtype()
    if S.nnz > np.iinfo(index).max:
        raise ParameterError(f"A + A^T has {S.nnz} entries, more than the {index} indices of this METIS count.")
    return metis.CSRAdjacency(S.indptr.astype(index), S.indices.astype(index))


def _dissected(metis: Any, S: Any, rows: Any, count: int) -> tuple[Any, Any]:
    """The parts and the separators of the graph S of `rows`, two lists, by recursive bisection."""
    if count == 1:
        return [rows], []
    left = count // 2
    if rows.size > 1:
        if not _metis_in_time(S.nnz):
            raise OutOfTime
        shares = [left / count, (count - left) / count]
        options = metis.Options(seed=SEED)
        cut = metis.part_graph(2, _adjacency(metis, S), tpwgts=shares, recursive=True, options=options)
        side = np.asarray(cut.vertex_part)
        side[_separator(S, side)] = 2
    else:
        side = np.zeros(rows.size, np.int64)
    inside: list[Any] = []
    separators = [rows[side == 2]]
    for half, share in enumerate((left, count - left)):
        kept = np.flatnonzero(side == half)
        more, between = _dissected(metis, S[kept][:, kept], rows[kept], share)
        inside, separators = inside + more, separators + between
    return inside, separators


def _separator(S: Any, side: Any) -> Any:
    """A smallest set of vertices that touches every edge of S between side 0 and side 1.

    Koenig's theorem: alternating paths begin at the unmatched vertices of the larger side. The separator is the
    vertices of the larger side that none of them reaches, and those of the smaller side that one reaches.
    """
    ends = S.tocoo()
    larger = int((side == 1).sum() > (side == 0).sum())
    between = (side[ends.row] == larger) & (side[ends.col] == 1 - larger)
    if not between.any():
        return np.empty(0, np.int64)
    left, i = np.unique(ends.row[between], return_inverse=True)
    right, j = np.unique(ends.col[between], return_inverse=True)
    n, m = left.size, right.size
    edges = sp.csr_matrix((np.ones(i.size), (i, j)), shape=(n, m))
    partner = np.empty(n, np.int64)  # of each on the left, or -1
    match = kernels_for(partner).matching.lightest_matching
    match(edges.indptr, edges.indices, np.zeros(edges.nnz), partner, np.empty(m))
    matched = np.flatnonzero(partner >= 0)
    source = np.flatnonzero(partner < 0)
    # To the right by any edge, back by matched edges only; an additional vertex leads to the unmatched ones.
    heads = np.concatenate([i, n + partner[matched], np.full(source.size, n + m)])
    tails = np.concatenate([n + j, matched, source])
    paths = sp.csr_matrix((np.ones(heads.size), (heads, tails)), shape=(n + m + 1, n + m + 1))
    reached = np.zeros(n + m + 1, bool)
    reached[breadth_first_order(paths, n + m, return_predecessors=False)] = True
    return np.concatenate([left[~reached[:n]], right[reached[n : n + m]]])
