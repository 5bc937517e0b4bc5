"""The steps before a factorization: the choice of a library, matching, ordering, and a count of the fill."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

from finelu.errors import (
    FineluError,
    ParameterError,
    SingularMatrix,
    StructurallySingular,
)
from finelu.factors import Arrangement, Columns
from finelu.kernels.operands import CSR, INT32_LIMIT
from finelu.matrix.traits import MatrixTraits, dense_row
from finelu.ordering import Fill, OrderingJob, complete_fill, with_little_fill
from finelu.preconditioners.direct import feral, klu, pardiso
from finelu.preconditioners.direct.library import HERMITIAN, Library, symmetry
from finelu.preconditioners.direct.prepared import Prepared, prepared
from finelu.recent import RECENT
from finelu.scaling import by_largest, matching, require_matching

COLAMD, MMD = "colamd", "mmd"
QUICK, QUICK_ENTRIES = 2000, 30_000  # rows and entries up to which columns alone are ordered instead of a matching
TINY = 400  # rows up to which SuperLU orders by itself, as a count takes longer
KLU_WORK = 65.0  # flops an entry of L and U, up to which KLU takes less time than SuperLU does
# The same where SuperLU has an order already, and neither blocks nor a matching help KLU. In 17 records of `regret` the
# median of KLU's time over SuperLU's was 0.7 to 1.0 up to 36 flops an entry, 0.9 to 1.3 for three pressures and
# velocities at 43, and 1.2 to 1.4 for six systems of 3e7 flops or more at 63 to 74.
WHOLE_WORK = 45.0
# Flops up to which KLU takes less time in any case, as its factors stay in the cache. For 28 random networks of 100 to
# 1000 rows, with 3 to 12 entries each, it took 0.36 to 0.72 of SuperLU's time up to 1.05e7 flops, 0.64 to 1.24 of it at
# 1.2e7 to 2.1e7, and 1.4 to 2.8 times as long from 3.7e7 on.
KLU_FLOPS = 1e7
LDL_WORK = 1e4  # flops a row of L and U, from which on feral takes less time than SuperLU does
PARDISO_WORK, SYMMETRIC_WORK = 2e4, 2e3  # likewise of PARDISO, and where A is symmetric, so that it works on a half
# Mean entries a row, and rows, up to which KLU is expected to be taken for a symmetric A: meshes in two dimensions with
# four neighbours, whose factors take 11 to 13 times the root of the rows flops a row.
FOUR, FOUR_ROWS = 5, 20_000
LARGEST = 0.9  # of the rows, up to which the largest block of a triangular form leaves KLU far less work than the whole
UNEVEN = 2.0  # mean rows, from which length of the longest one on short rows are those of a network
SHORT = 12  # mean entries a row, up to which factors with columns ordered alone stay sparse, as experience has it
REPLACED = "pivots replaced"  # of a pattern, in RECENT: PARDISO replaced pivots
FERAL_ORDERINGS = {"auto": "auto", "amd": "amd", "nd": "metis"}
PARDISO_ORDERINGS = {"auto": pardiso.DISSECTION, "mmd": pardiso.MINIMUM_DEGREE, "nd": pardiso.DISSECTION}
WEAK = 0.1  # of the largest entry of its column: a smaller diagonal entry is weak
MODERATE = 20  # mean entries of few rows, up to which exchanges of rows take less time than a matching
MIRRORED = 0.95  # part of the entries with a partner, from which a pattern counts as symmetric
CANCELLED = 1e-3  # of the sum of the sizes of the terms: a sum up to that is weak, or rounding
FEW = 0.01  # of all columns: from that many weak ones on rows are matched, as pivots off the diagonal fill in more


@dataclass(eq=False)
class Analysis:
    """The result of the steps before a factorization.

    arranged : order and scaling of the rows and columns.
    matched : whether rows were permuted to bring large entries to the diagonal.
    fill : the counted fill, or None.
    seconds : the time of the analysis.
    library : the analysis by KLU, feral or PARDISO if one of them is used, else None.
    by_itself : the order that SuperLU finds as it factors: COLAMD (of the columns) or MMD (of A + A^T); "" if none.
    prepared : the matrix that was analysed, None if the caller has it.
    columns : the matrix to factor, see `columns_of`, if the analysis has made it; else None.
    full_rank : whether a matching of rows and columns is known to exist, which SuperLU needs.
    """

    arranged: Arrangement
    matched: bool
    fill: Fill | None
    seconds: float
    library: Library | None = None
    by_itself: str = ""
    prepared: Prepared | None = None
    columns: Columns | None = None
    full_rank: bool = False


def analysed(recipe: Any, A: CSR, *, counted: bool = False, job: OrderingJob | None = None) -> Analysis:
    """Matching and ordering of A, on any device, and the fill that follows from them, after A is prepared for the
    libraries.

    counted : whether to count the fill of small systems, too.
    job : an order already begun for A, used with the ordering "auto"; or None.
    Raises StructurallySingular if no matching is complete and the recipe has no shift.
    """
    found = prepared(A)
    return replace(analyse(recipe, found.matrix, counted=counted, job=job), prepared=found)


def analyse(recipe: Any, A: CSR, *, counted: bool = False, job: OrderingJob | None = None) -> Analysis:
    """`analysed` for a prepared A."""
    start = perf_counter()
    require_indices(recipe, "A", A.nnz)
    if recipe.backend == "auto" and recipe.ordering == "auto" and recipe.matching is None and not recipe.shift:
        if A.n <= TINY and job is None:  # of few rows nothing depends on the symmetry
            return _by_library_if_better(A, None, "")[0] or _analysed(recipe, A, counted, None, start)
        with A.unchanged(A.mirrored()):
            found, job = _by_library_if_better(A, job, symmetry(A))
            return found or _analysed(recipe, A, counted, job, start)
    return _analysed(recipe, A, counted, job, start)


def _analysed(recipe: Any, A: CSR, counted: bool, job: OrderingJob | None, start: float) -> Analysis:
    """`analyse`, begun at `start`, by the library that the recipe names, or by SuperLU."""
    plain = Arrangement()
    if recipe.backend == "feral":
        columns = columns_of(recipe, plain, A)
        ldl = feral.LDL(columns, _of_feral(recipe))
        return Analysis(plain, False, with_little_fill(A, "amd")[1], perf_counter() - start, ldl, columns=columns)
    if recipe.backend == "pardiso":
        if not np.diff(A.indptr).all():
            require_matching(A)  # says which rows
        columns = columns_of(recipe, plain, A)
        blocks = pardiso.Pardiso(columns, _of_pardiso(recipe), symmetry(A))
        return Analysis(plain, False, None, perf_counter() - start, blocks, columns=columns)
    any_order = recipe.ordering == "auto" and recipe.backend != "klu"
    few = any_order and is_quick(A) and not counted
    late = _with_late_gaps(recipe, A, job) if any_order and recipe.matching is None and not few else None
    if late is not None:
        order, counts = late
        return Analysis(plain.ordered(order), False, counts, perf_counter() - start)
    arranged, matched, by_itself = _matched(recipe, A, few=few)
    if few and (by_itself or A.n <= TINY):
        return Analysis(arranged, matched, None, perf_counter() - start, by_itself=by_itself or MMD)
    fill: Fill | None = None
    if not by_itself and not (recipe.backend == "klu" and recipe.ordering in ("auto", None)):
        order, fill = _ordered(recipe, arranged.matrix(A), None) if matched else _ordered(recipe, A, job)
        arranged = arranged.ordered(order)
    if recipe.backend != "klu":
        return Analysis(arranged, matched, fill, perf_counter() - start, by_itself=by_itself)
    columns = columns_of(recipe, arranged, A)
    made = _by_klu(recipe, columns, A, fill)
    return Analysis(arranged, matched, made.expected, perf_counter() - start, made, by_itself, columns=columns)


def _matched(recipe: Any, A: CSR, *, few: bool) -> tuple[Arrangement, bool, str]:
    """(arrangement, matched, by_itself): the rows matched to the columns of A, and scales; whether rows were permuted;
    COLAMD if SuperLU orders the columns, else "".

    few : whether A is so small that rows are exchanged instead.
    """
    rows = row_scale = column_scale = None
    by_klu = recipe.backend == "klu"
    by_itself, matched = COLAMD if recipe.ordering == COLAMD else "", recipe.matching
    if matched is None and not by_klu:
        matched = not by_itself and needs_matching(A)
        if matched and few and not recipe.shift and A.nnz <= MODERATE * A.n:
            matched, by_itself = False, COLAMD
            row_scale, column_scale = by_largest(A)
    if matched:
        try:
            found = matching(A)
        except StructurallySingular:
            if not recipe.shift:
                raise
            rows = _partial_matching(A)
        else:
            rows = np.argsort(found.columns)  # the row of A matched to each column
            row_scale, column_scale = found.row_scale, found.column_scale
    elif not by_itself and not by_klu and (scale := _dense_rows_scaled(A)) is not None:
        row_scale = scale  # without it dense rows become pivots before the others, and fill these in
    if rows is None and row_scale is None:
        return Arrangement(), bool(matched), by_itself
    columns, ones = np.arange(A.n), np.ones(A.n, A.data.real.dtype)
    rows, row_scale = columns if rows is None else rows, ones if row_scale is None else row_scale
    column_scale = ones if column_scale is None else column_scale
    return Arrangement(rows, columns, row_scale[rows], column_scale), bool(matched), by_itself


def _with_late_gaps(recipe: Any, A: CSR, job: OrderingJob | None) -> tuple[np.ndarray, Fill] | None:
    """An order of A whose diagonal has gaps or zeros, and its fill, if elimination fills these before they are pivots:
    a saddle point whose multipliers have many unknowns each. No matching is needed then, which would make a symmetric
    pattern unsymmetric. None if there is no such order, or other diagonal entries are weak.
    """
    stored = A.diag >= 0
    stored[stored] = A.data[A.diag[stored]] != 0
    gaps, lengths = np.flatnonzero(~stored), np.diff(A.indptr)
    if not gaps.size or not lengths[gaps].all() or _dense_rows_scaled(A) is not None:
        return None
    if not _follow(A, gaps, lengths) or A.mirrored()[-1] < MIRRORED * A.nnz:  # the order takes short rows first
        return None
    sizes, largest = abs(A.data), np.zeros(A.n, A.data.real.dtype)
    np.maximum.at(largest, A.indices, sizes)
    if np.count_nonzero(sizes[A.diag[stored]] < WEAK * largest[stored]) > FEW * A.n:
        return None
    order, fill = _ordered(recipe, A, job)
    place = np.empty(A.n, np.int64)
    place[order] = np.arange(A.n)
    return (order, fill) if _follow(A, gaps, place) and _fill_in(A, gaps, place) else None


def _fill_in(A: CSR, gaps: np.ndarray, place: np.ndarray) -> bool:
    """Whether elimination fills nearly all of the gaps k in numbers: the sum of a_kj a_jk / a_jj, over the j whose
    place (n,) is before that of k, does not cancel. What earlier elimination adds to these entries is left out."""
    S = A.tosparse()
    diagonal = S.diagonal()
    earlier = sp.csr_matrix(S[gaps].multiply(S[:, gaps].T)).tocoo()
    row, column = earlier.coords
    used = (diagonal[column] != 0) & (place[column] < place[gaps[row]])
    row, terms = row[used], earlier.data[used] / diagonal[column[used]]
    sums, sizes = np.zeros(gaps.size, terms.dtype), np.zeros(gaps.size, terms.real.dtype)
    np.add.at(sums, row, terms)
    np.add.at(sizes, row, abs(terms))
    return int(np.count_nonzero(abs(sums) <= CANCELLED * sizes)) <= FEW * gaps.size


def _follow(A: CSR, rows: np.ndarray, place: np.ndarray) -> bool:
    """Whether nearly all of the rows, none of them empty, have a column whose place (n,) is before their own."""
    lengths = np.diff(A.indptr)[rows]
    begins = np.cumsum(lengths) - lengths
    entries = np.arange(int(lengths.sum())) + np.repeat(A.indptr[rows] - begins, lengths)
    first = np.minimum.reduceat(place[A.indices[entries]], begins)
    return int(np.count_nonzero(first >= place[rows])) <= FEW * rows.size


def _by_klu(recipe: Any, columns: Columns, A: CSR, fill: Fill | None) -> klu.KLU:
    how = {"auto": klu.AMD, COLAMD: klu.COLUMNS}.get(recipe.ordering or "", klu.GIVEN)
    try:
        return klu.KLU(columns, how, fill)
    except SingularMatrix:
        require_matching(A)  # says which rows
        raise


def _by_library_if_better(
    A: CSR, job: OrderingJob | None, kind: str, *, light: bool = False
) -> tuple[Analysis | None, OrderingJob | None]:
    """The analysis by the library that is expected to take less time than SuperLU, or None; and the job of an order.

    kind : the symmetry of A, as `symmetry` has it.
    light : whether to try KLU only.
    """
    start = perf_counter()

    def analysis(library: Library) -> Analysis:
        return Analysis(arranged, False, fill, perf_counter() - start, library, columns=columns)

    def by_blocks(fill: Fill | None) -> bool:
        """Whether PARDISO or feral is wanted for this fill."""
        may_be = A.n > TINY and may_be_by_blocks(A, symmetric=symmetric, real=real, fill=fill)
        return may_be and (symmetric or not needs_matching(A))

    symmetric, real = bool(kind), bool(kind) and A.dtype.kind != "c"
    # KLU's own order and count take less time than ours, of few rows a quarter. They come first where that is most of
    # the solve, or KLU likely to be taken, and tell whether another library is wanted.
    by_itself = klu.nbklu() is not None and ((is_quick(A) and A.missing == 0) or _is_sparse(A))
    if job is None and symmetric and not by_itself and by_blocks(None):
        job = OrderingJob(A, aside=False)
    fill = job.found()[2] if job else None
    if klu.nbklu() is not None and _fits_klu(A, fill, symmetric=symmetric, wanted=job is not None and by_blocks(fill)):
        try:
            # A given order takes the place of blocks. That of a symmetric pattern expects pivots on the diagonal: where
            # this has gaps, KLU fills in several times as much, and so matches and orders by itself.
            gaps = symmetric and A.missing > 0
            order = job.found()[1] if symmetric and job and not gaps else None
            arranged = Arrangement() if order is None else Arrangement().ordered(order)
            columns = arranged.by_columns(A)
            found = klu.KLU(columns, klu.AMD if order is None else klu.GIVEN, None if gaps else fill)
        except (FineluError, MemoryError):  # SuperLU reports the error, or needs less
            return None, job
        by_klu, of_blocks = found.expected, fill if gaps and fill is not None else found.expected
        fits = by_klu is not None and is_light(by_klu) and found.has_time
        if fits and by_blocks(of_blocks) and gaps and job is None:  # they are matched for KLU alone
            job = OrderingJob(A, aside=False)
            of_blocks = job.found()[2]
        if fits and not by_blocks(of_blocks):
            fill = by_klu
            return analysis(found), job
        fill = of_blocks
    if light or not by_blocks(fill):
        return None, job
    job = job or OrderingJob(A, aside=False)
    _, order, fill = job.found()
    if not may_be_by_blocks(A, symmetric=symmetric, real=real, fill=fill):
        return None, job
    arranged = Arrangement()
    columns = arranged.by_columns(A)
    failed = RECENT.get(REPLACED, A.indptr, A.indices) and fits_feral(A.dtype, kind, fill.flops / A.n)
    if failed or pardiso.mkl() is None:
        return analysis(feral.LDL(columns, "auto")), job
    if job.is_long:
        return analysis(pardiso.Pardiso(columns, pardiso.DISSECTION, kind, None, fill.flops)), job
    matched = symmetric and needs_matching(A)  # a given order excludes a matching
    given = None if matched else order
    return analysis(pardiso.Pardiso(columns, pardiso.MINIMUM_DEGREE, kind, given, fill.flops)), job


def fits_feral(dtype: Any, kind: str, work: float) -> bool:
    """Whether feral is installed, and expected to take less time than SuperLU.

    kind : the symmetry of A, as `symmetry` has it.  work : flops a row.
    """
    return kind == HERMITIAN and dtype.kind != "c" and work >= LDL_WORK and feral.feral() is not None


def light_by_klu(A: CSR) -> Analysis | None:
    """The analysis by KLU of an A with short rows, such as that of a circuit or a network: an unsymmetric one, or one
    whose factors stay sparse.

    None if KLU is not installed, or is not expected to take less time than the other libraries.
    """
    if klu.nbklu() is None or A.nnz > SHORT * A.n:
        return None
    known = prepared(A)
    kind = symmetry(A if known.row_scale is None else known.matrix)  # that of A is known, and zeros are no entries
    if kind and not _is_sparse(known.matrix):
        return None
    found = _by_library_if_better(known.matrix, None, kind, light=True)[0]
    return found and replace(found, prepared=known)


def _fits_klu(A: CSR, fill: Fill | None, *, symmetric: bool, wanted: bool) -> bool:
    """Whether to try KLU.

    fill : the fill of the whole pattern, None if it is not counted.
    wanted : whether another library takes less time for that fill.
    """
    if _has_border(A):  # KLU exchanges its rows with others, and fills in far more than it counts
        return False
    light = not wanted and (fill is None or is_light(fill))
    if light and fill is not None and not is_light(fill, WHOLE_WORK):
        light = needs_matching(A)
    return light or (not symmetric and _has_blocks(A))


def is_light(fill: Fill, work: float = KLU_WORK) -> bool:
    """Whether KLU is expected to take less time than SuperLU for factors with this fill.

    work : flops an entry, up to which it does.
    """
    return fill.flops <= max(work * fill.nnz, KLU_FLOPS)


def _has_border(A: CSR) -> bool:
    """Whether dense rows of A have no entry on the diagonal."""
    return A.missing > 0 and (scale := _dense_rows_scaled(A)) is not None and bool((A.diag[scale != 1] < 0).any())


def _has_blocks(A: CSR) -> bool:
    """Whether rows and columns of A, with a full diagonal, can be permuted to a block triangular form, which KLU
    uses, and no block has nearly all rows."""
    pattern = sp.csr_matrix((np.ones(A.nnz), A.indices, A.indptr), shape=A.shape)  # SciPy takes real ones only
    blocks, of_rows = connected_components(pattern, connection="strong")
    return bool(blocks > 1 and np.bincount(of_rows).max() <= LARGEST * A.n)


def _is_network(A: CSR) -> bool:
    """Whether rows of A are short, and one is far longer than the others, as in a network, where factors stay
    sparse."""
    longest = A.longest[0] if "facts" in vars(A) else int(np.diff(A.indptr).max())
    return A.nnz <= SHORT * A.n and longest * A.n >= UNEVEN * A.nnz


def _is_sparse(A: CSR) -> bool:
    """Whether the factors of a symmetric A stay so sparse that KLU is likely to be taken."""
    return (A.nnz <= FOUR * A.n and A.n <= FOUR_ROWS) or _is_network(A)


def is_quick(A: CSR | MatrixTraits) -> bool:
    """Whether A is so small that exchanges of rows take less time than a matching."""
    return A.n <= QUICK and A.nnz <= QUICK_ENTRIES


def may_be_by_blocks(A: CSR | MatrixTraits, *, symmetric: bool, real: bool, fill: Fill | None = None) -> bool:
    """Whether "auto" may choose PARDISO or feral for a matrix with this fill.

    real : whether A is real and symmetric.  fill : the fill, None if unknown: then only the other conditions count.
    """
    if pardiso.mkl() is None:
        return feral.feral() is not None and real and (fill is None or fill.flops >= LDL_WORK * A.n)
    return fill is None or fill.flops >= (SYMMETRIC_WORK if symmetric else PARDISO_WORK) * A.n


def _of_feral(recipe: Any) -> str:
    """The feral name of the recipe's ordering."""
    ordering = recipe.ordering or ""
    if recipe.matching or ordering not in FERAL_ORDERINGS:
        given = "matching=True" if recipe.matching else f"ordering={recipe.ordering!r}"
        raise ParameterError(
            f"{recipe!r}: backend='feral' takes no {given}; it orders by {', '.join(map(repr, FERAL_ORDERINGS))}, and "
            "chooses its pivots by itself."
        )
    return FERAL_ORDERINGS[ordering]


def _of_pardiso(recipe: Any) -> int:
    """The PARDISO number of the recipe's ordering."""
    if recipe.ordering not in PARDISO_ORDERINGS or recipe.matching is not None:
        given = f"ordering={recipe.ordering!r}" if recipe.matching is None else f"matching={recipe.matching}"
        raise ParameterError(
            f"{recipe!r}: backend='pardiso' takes no {given}; it orders by "
            f"{', '.join(map(repr, PARDISO_ORDERINGS))}, and matches what is not definite."
        )
    return PARDISO_ORDERINGS[recipe.ordering]


def needs_matching(A: CSR) -> bool:
    """Whether the diagonal of an A on the host has gaps, zeros, or many entries that are small in their columns.

    Diagonal entries of dense rows do not count: these rows come last, after elimination has filled them, see
    `_dense_rows_scaled`.
    """
    scale = _dense_rows_scaled(A)
    if A.missing > 0 and (scale is None or (A.diag[scale == 1] < 0).any()):
        return True
    sizes, diagonal, largest = abs(A.data), np.ones(A.n, A.data.real.dtype), np.zeros(A.n, A.data.real.dtype)
    if scale is not None:
        sizes = sizes * np.repeat(scale, np.diff(A.indptr))
    np.maximum.at(largest, A.indices, sizes)
    if scale is None:
        diagonal = sizes[A.diag]
    else:
        diagonal, largest = sizes[A.diag[scale == 1]], largest[scale == 1]
    return bool(not diagonal.all() or np.count_nonzero(diagonal < WEAK * largest) > FEW * A.n)


def _dense_rows_scaled(A: CSR) -> Any:
    """Scales of the rows (n,); None without dense rows.

    The scale of a dense row is the largest power of two that does not exceed 1 / entries, so that sums formed there by
    elimination do not exceed an earlier pivot. The scale of other rows is 1.
    """
    lengths = np.diff(A.indptr)
    dense = lengths > dense_row(A.n)
    if not dense.any() or dense.all():
        return None
    return np.where(dense, np.exp2(-np.ceil(np.log2(np.maximum(lengths, 1)))), 1).astype(A.data.real.dtype)


def _ordered(recipe: Any, A: Any, job: OrderingJob | None) -> tuple[np.ndarray, Fill]:
    if recipe.ordering is None:
        return np.arange(A.shape[0]), complete_fill(A)
    return with_little_fill(A, recipe.ordering, job)


def require_indices(recipe: Any, what: str, nnz: int) -> None:
    if nnz > INT32_LIMIT:
        raise MemoryError(
            f"{recipe!r}: {what} would have about {nnz} entries, more than the 32-bit indices of its library count; "
            "use an incomplete factorization."
        )


def _partial_matching(A: CSR) -> np.ndarray:
    """The row for each column (n,), by a matching with as many nonzero entries as possible."""
    S = A.tosparse().copy()
    S.eliminate_zeros()
    rows = maximum_bipartite_matching(S, perm_type="row").astype(np.int64)
    rows[rows < 0] = np.setdiff1d(np.arange(A.n), rows)
    return rows


def columns_of(recipe: Any, arranged: Arrangement, A: CSR) -> Columns:
    """The matrix to factor: A in its order, scaled and shifted, stored by columns."""
    columns = arranged.by_columns(A)
    if not recipe.shift:
        return columns
    S = columns.tosparse()
    d, largest = S.diagonal(), abs(S.data).max(initial=0.0) or 1.0
    S = S + recipe.shift * sp.diags(np.where(d == 0, largest, d).astype(S.dtype), format="csc")
    return Columns(S.indptr.astype(np.int32), S.indices.astype(np.int32), S.data, S.shape)
