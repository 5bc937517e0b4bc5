"""Launchers of elimination.cu: the paper's four variants, two others, and the choice among them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from finelu.device import free_memory
from finelu.errors import ParameterError, meant
from finelu.kernels.cuda.indices import pointers as pointers_of
from finelu.kernels.cuda.levels import levels_on_device
from finelu.kernels.cuda.runtime.launch import NULL, blocks, device_limits, for_each, kernel, optional
from finelu.kernels.cuda.runtime.memory import set_pending
from finelu.kernels.cuda.runtime.schedule import EARLY_ROWS, level_order, padding_for
from finelu.kernels.operands import Triangle

BLOCK = 128  # threads of a thread block
RESIDENT = 16  # thread blocks of a multiprocessor, for kernels that go over an array
BATCH = 4  # as in elimination.cu
VERY_LONG = 1024  # as in elimination.cu: rows that have no part in the table
TABLE_BYTES_PER_ENTRY = 512  # some ten times what the entry itself takes with 128 entries a row
# Measured on an H200, see benchmarks/results. With fewer entries natural order without an analysis beats level order
# with it. Threads that poll the L2 cache at a time: in natural order all rows are resident, in level order 8 levels.
NATURAL_ORDER_NNZ = 500_000
NATURAL_THREADS, LEVEL_THREADS = 1_700_000, 300_000
IC0_VARIANTS = MILU0_VARIANTS = ("adapt", "natural", "levs", "table")
ILU0_VARIANTS = ("shared", "vect", *IC0_VARIANTS)
UPDATES = dict.fromkeys(IC0_VARIANTS, "SEARCH") | {"shared": "INTERSECT", "vect": "VECTOR", "table": "TABLE"}


@dataclass(eq=False)
class EliminationPlan:
    """The plan of ILU(0), MILU(0) or IC(0) for a pattern: the order of rows, the shape of the kernel, all workspace.

    kind : "LU", "MODIFIED" or "CHOLESKY", as in elimination.cu.
    variant : the one chosen.  provisional : it was chosen for one factorization, and another is better for many.
    A : the matrix whose pattern it is.  order : rows in level order, or None for natural order.  depth : levels, or
    None if they were not needed.  lanes, per_lane : threads a row and entries a thread in registers.  ahead : the next
    batch of reference rows is looked up early.  short : every row fits into the registers.  padding : bytes of shared
    memory that a block asks for, see padding_for.  base, table : where rows meet (variant "table").  inverse (n,) :
    1 / pivot, counter, and bad : device place of the first bad row, all in words, of which the last says whether an
    elimination was refused, see `Refusal`.  work : scratch of the kernel.
    sums (n,) : of MILU(0), the sum of each row's entries above the diagonal; else None.
    """

    kind: str
    variant: str
    provisional: bool
    A: Any
    order: Any
    depth: int | None
    lanes: int
    per_lane: int
    ahead: bool
    short: bool
    padding: int
    base: Any
    table: Any
    inverse: Any
    counter: Any
    words: Any
    bad: Any
    work: Any
    sums: Any

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name not in ("inverse", "counter", "bad")}

    def __setstate__(self, state) -> None:
        self.__dict__.update(state)
        self.inverse, self.counter, self.bad = _parts(self.words, self.A.dtype)


def _parts(words, dtype):
    """(inverse, counter, bad) in one array of words, which are set pending together."""
    return words[:-3].view(dtype), words[-3:-2], words[-2:-1].view(np.int32)


def _lower(A) -> Triangle:
    return Triangle(A.n, A.indptr[:-1], A.diag, A.indices, False, None, None, False, A.below, A.longest[1], A.dtype)


def _row_shape(longest: int, mean: float, enough: float, long_rows_by_few: bool) -> tuple[int, int]:
    """(threads a row, entries a thread in registers): a warp a row, or as few threads, 8 or more, as are `enough`.

    Rows that do not fit into the registers are long rows; `long_rows_by_few`: fewer threads than a warp may have some.
    """
    fits = min(longest, 2 * mean) if long_rows_by_few else longest
    lanes = 32
    while lanes > 8 and lanes // 2 * 4 >= fits and lanes > enough:
        lanes //= 2
    per_lane = 1
    while per_lane < 4 and lanes * per_lane < (fits if lanes < 32 else longest):
        per_lane *= 2
    return lanes, per_lane


def _enough(variant: str, A, depth: int | None) -> float:
    """The threads that a row needs: for "adapt" the mean number of entries of a row, rounded up to a power of two;
    otherwise as many as the rows that are resident at a time may have, all of them or those of eight levels."""
    if variant == "adapt":
        return 2 ** math.ceil(math.log2(A.nnz / A.n))
    return NATURAL_THREADS / A.n if depth is None else LEVEL_THREADS / (8 * A.n / depth)


def _intersections(kind: str, A, modest: bool):
    """The table of match_rows and the place of each row's part in it; None where it would be too large.

    Too large is a quarter of the free memory; with `modest` also TABLE_BYTES_PER_ENTRY for an entry of A.
    """
    sizes, index = cupy.empty(A.n, np.int64), A.indices.dtype
    given = index.type(A.n), index.type(VERY_LONG), A.indptr, A.diag, sizes
    for_each("elimination", "table_sizes", (index,), *given)
    base, total = pointers_of(sizes)
    most = free_memory(A.data) // 4
    if modest:
        most = min(most, TABLE_BYTES_PER_ENTRY * A.nnz)
    if total * A.indices.itemsize > most:
        return None
    table = cupy.empty(max(total, 1), A.indices.dtype)
    kernel("elimination", "match_rows", A.indices.dtype, "CHOLESKY" if kind == "CHOLESKY" else "LU")(
        (blocks(A.n * 32, BLOCK), min(1 + A.longest[1] // 32, 65535)),
        (BLOCK,),
        (A.indices.dtype.type(A.n), A.indptr, A.indices, A.diag, base, table),
    )
    return base, table


def _analysis(kind: str, A, variant: str, variants: tuple[str, ...], once: bool) -> EliminationPlan:
    if variant not in (*variants, "auto"):
        raise ParameterError(
            f"variant={variant!r} is not offered on the GPU for this recipe; "
            f"one of {', '.join(variants)}, auto is needed." + meant(variant, (*variants, "auto"))
        )
    longest = A.longest[0]
    by_warp = variant in ("shared", "vect")
    many_references = A.below > BATCH * A.n  # a row has several batches of them
    provisional = False
    order, depth, base, table = None, None, NULL, NULL
    if variant == "auto" and once and A.nnz <= NATURAL_ORDER_NNZ and longest <= 64 and A.nnz <= 24 * A.n:
        # all rows find room at once, and one factorization does not pay for the level sets
        variant, provisional = "natural", True
    if variant == "auto" and longest <= 32 and (not many_references or (once and A.below <= 3 * BATCH * A.n)):
        # the search takes no longer than the wait for the reference rows; or, once, less than the table
        variant, provisional = "levs", many_references
    if variant in ("auto", "table"):
        intersections = _intersections(kind, A, modest=variant == "auto")
        if intersections is not None:
            variant = "table"
            base, table = intersections
        elif variant == "table":
            raise ParameterError("variant='table' would take more than a quarter of the free GPU memory; use 'levs'.")
        else:
            variant = "levs"
    if variant in ("levs", "table"):
        lower = _lower(A)
        level, deepest = levels_on_device(lower)
        if A.n <= EARLY_ROWS:  # the host makes the next launches ready while the levels are found
            order = level_order(lower, level, deepest, None, per_lane=1 << 20)[0]
        depth = deepest.item() + 1
        if order is None:
            order = level_order(lower, level, deepest, depth, per_lane=1 << 20)[0]
    if by_warp:
        lanes, per_lane = 32, 1 if longest <= 32 else 2 if longest <= 64 else 4
    else:
        enough, few = _enough(variant, A, depth), kind != "CHOLESKY"
        lanes, per_lane = _row_shape(longest, A.nnz / A.n, enough, long_rows_by_few=few)
        # Rows that do not fit are slow with few lanes: where a warp holds each, and there are threads for a level of
        # warps, these take 0.7 times as long (one matrix on an H100: rows of up to 34 entries, 5800 rows a level).
        if lanes * per_lane < longest <= 64 and depth is not None and 32 * A.n / depth <= LEVEL_THREADS:
            lanes, per_lane = 32, 2
    short = longest <= lanes * per_lane
    ahead = (many_references or not short) and not by_warp
    padding = BLOCK * A.indices.itemsize if by_warp else 0
    if depth is not None:
        padding = padding_for(8 * A.n / depth * lanes / 32, BLOCK)
    words = cupy.empty(A.n * A.dtype.itemsize // 4 + 3, np.uint32)  # inverse, counter and bad, pending in one go
    work = cupy.empty(0 if short else A.nnz, A.dtype)
    inverse, counter, bad = _parts(words, A.dtype)
    return EliminationPlan(
        *(kind, variant, provisional, A, order, depth, lanes, per_lane, ahead, short, padding, base, table),
        *(inverse, counter, words, bad, work, cupy.empty(A.n, A.dtype) if kind == "MODIFIED" else None),
    )


def ilu0_analysis(A, variant: str = "auto", once: bool = False) -> EliminationPlan:
    """The plan of ILU(0) for the pattern of A, a CSR with a full diagonal.

    once : "auto" may weigh the cost of the analysis against a single factorization; else it is for many.
    """
    return _analysis("LU", A, variant, ILU0_VARIANTS, once)


def milu0_analysis(A, variant: str = "auto", once: bool = False) -> EliminationPlan:
    """The plan of MILU(0); arguments as in ilu0_analysis."""
    return _analysis("MODIFIED", A, variant, MILU0_VARIANTS, once)


def ic0_analysis(L, variant: str = "auto", once: bool = False) -> EliminationPlan:
    """The plan of IC(0) for the pattern of L, the lower triangle of A by rows, diagonal last; as ilu0_analysis."""
    return _analysis("CHOLESKY", L, variant, IC0_VARIANTS, once)


@dataclass(frozen=True, eq=False)
class Refusal:
    """The place where `queue_alike` refuses an elimination: it writes the mark to `unlike` (1,) int32.

    places (2,) int32 : of the first bad row, and of `unlike`.
    """

    mark: int
    places: Any

    @property
    def unlike(self):
        return self.places[1:]

    def verdict(self) -> tuple[int, bool]:
        """The first bad row, or -1, and whether the elimination was refused: then all is as before. Waits."""
        bad, unlike = self.places.get().tolist()
        return bad, unlike == self.mark


def refusal(plan: EliminationPlan, out, mark: int) -> Refusal | None:
    """One of this mark, above 0; None where `out` does not lie as pend_unless wants it, or has too many rows for it."""
    if plan.A.n >= 2**30 or out.data.ptr % 16:
        return None
    return Refusal(mark, plan.words[-2:].view(np.int32))


def _pend(plan: EliminationPlan, out, refusal: Refusal | None, rounds: int) -> None:
    """Make all that an elimination writes pending, unless it is refused."""
    if refusal is None:
        for array in (out, plan.words, *([] if plan.sums is None else [plan.sums])):
            set_pending(array)
        return
    ranges = [v for array in (out, plan.inverse, plan.sums) for v in _range(array)]
    grid = min(blocks(out.nbytes // 16, BLOCK), RESIDENT * device_limits()["processors"])
    last = np.uint32(rounds), plan.counter, plan.bad
    kernel("elimination", "pend_unless")((grid,), (BLOCK,), (np.int32(refusal.mark), refusal.unlike, *ranges, *last))


def _range(array):
    return (np.int64(0), NULL) if array is None else (np.int64(array.nbytes // 4), array)


def _factor(kind: str, plan: EliminationPlan, a, out, relax: float = 0.0, refusal: Refusal | None = None):
    assert plan.kind == kind
    A, index, grid = plan.A, plan.A.indices.dtype, blocks(plan.A.n * plan.lanes, BLOCK)
    _pend(plan, out, refusal, grid)
    shape = plan.lanes, plan.per_lane, UPDATES[plan.variant], plan.ahead, plan.short
    kernel("elimination", "eliminate", out.dtype, index, *shape, plan.kind)(
        (grid,),
        (BLOCK,),
        (
            *(index.type(A.n), optional(plan.order), A.indptr, A.indices, A.diag, plan.base, plan.table, a),
            *(plan.work, out, plan.inverse, plan.bad, plan.counter, np.float64(relax), optional(plan.sums)),
        ),
        shared_mem=plan.padding,
    )
    return plan.bad


def ilu0(plan: EliminationPlan, a, lu, refusal: Refusal | None = None):
    """ILU(0) of the values a (nnz,) into lu (nnz,), L below and U on and above the diagonal; returns the place of the
    first bad row, see first_bad. Allocates nothing, waits for nothing.

    refusal : the elimination changes nothing if it has been refused there by the time it runs.
    """
    return _factor("LU", plan, a, lu, refusal=refusal)


def milu0(plan: EliminationPlan, a, relax, lu, refusal: Refusal | None = None):
    """MILU(0) of the values a (nnz,) into lu (nnz,); returns the place of the first bad row. As `ilu0`."""
    return _factor("MODIFIED", plan, a, lu, relax, refusal)


def ic0(plan: EliminationPlan, a, l):
    """IC(0) of the lower triangle's values a (nnz,) into l (nnz,); returns the place of the first bad row."""
    return _factor("CHOLESKY", plan, a, l)
