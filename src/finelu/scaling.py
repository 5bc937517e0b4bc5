"""Scalings of rows and columns, and the matching that brings large entries to the diagonal. On the host."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

from finelu import deadline
from finelu.arithmetic import ignore_fp_errors
from finelu.device import namespace, sparse_module, to_host
from finelu.errors import MatrixError, StructurallySingular
from finelu.kernels import kernels_for
from finelu.matrix import as_csr
from finelu.matrix.vectors import as_dtype, ldexp
from finelu.validation import count

TOLERANCE = 2.0**-44  # of a dual variable, relative to the largest logarithm: a few roundings of long sums
ROUNDINGS = 1000  # magnitudes of an assembled matrix count as symmetric up to this many roundings of the largest
SWEEPS = 20  # over rows and columns, at most
BALANCED = 1 / 16  # equilibration ends once |log2| of every norm is at most this


@dataclass(frozen=True, eq=False)
class Matching:
    """A matching of rows with columns, and the scaling that belongs to it; all on the host.

    columns (n,) : columns[i] is matched to row i, so that A[:, columns] has the matched entries on its diagonal.
    row_scale, column_scale (n,), in the real dtype of A : |row_scale_i a_ij column_scale_j| <= 1, and = 1 for matched
        entries. order (n,), first (n,), of a symmetric matching; else None : an order of the rows in which two rows
        that are matched to each other are neighbours; first[p] is True if order[p] and order[p + 1] are such a pair.
    """

    columns: np.ndarray
    row_scale: np.ndarray
    column_scale: np.ndarray
    order: np.ndarray | None = None
    first: np.ndarray | None = None


@ignore_fp_errors
def matching(A: Any, *, symmetric: bool = False, power_of_two: bool = False) -> Matching:
    """The matching of rows with columns whose entries have the largest product, and the scaling to 1 of those entries.

    A : (n, n), as `as_csr` takes it, without need of a diagonal; stored zeros are no entries. Magnitudes may be as
        large
        or small as the dtype allows: all sums are of logarithms.
    symmetric : |A| is symmetric. Both sides get one scale, the geometric mean of the two, for which the same holds. The
        cycles of the matching are cut into pairs of rows. Each odd cycle leaves one single row, the one with the
        largest scaled diagonal entry.
    power_of_two : round all factors down to powers of two, so that scaling is exact. Matched entries then have
        magnitudes above 1/4 instead of 1.
    The factors are determined up to one number for each connected part of A, and are centred around 1. Factors whose
    exponent does not fit the dtype of A are clipped to its smallest or largest normal power of two, and others lowered
    so that no scaled entry exceeds 1; the matched entries are then smaller than 1.
    An entry is rounding if it is at most 1000 roundings of the largest entry of its row and of its column, once A is
    equilibrated. If the best matching contains such entries, and another matching does not, the other one is taken. All
    entries of A are scaled to at most 1 even then, which may make matched entries in rows and columns with rounding
    smaller than 1.
    "= 1" and "<= 1" hold to the rounding of the dtype and of logarithms, about 1e-13 times the largest |log2 |a_ij||.
    Raises StructurallySingular, naming a row, if there is no such matching; MatrixError for symmetric=True if |A| is
    not symmetric. Cost: O(n nnz log n) at worst, usually a few passes over the entries; deterministic.
    Source: I. S. Duff, J. Koster: On algorithms for permuting large entries to the diagonal of a sparse matrix, 2001;
    M. Olschowka, A. Neumaier: A new pivoting strategy for Gaussian elimination, 1996 (the scaling);
    I. S. Duff, S. Pralet: Strategies for scaling and pivoting for sparse symmetric indefinite problems, 2005 (pairs).
    """
    A = as_csr(A, diagonal=False)
    dtype = np.dtype(A.data.real.dtype)
    rows, indices, logs = _logarithms(A)
    if symmetric:
        rows, indices, logs = _symmetrized(A.n, rows, indices, logs, np.finfo(dtype).eps)
    columns, v = _matched(A.n, rows, indices, -logs)
    deadline.check()
    sound = _sound(A.n, rows, indices, logs, columns, np.finfo(dtype).eps)
    if sound is not None:
        with suppress(StructurallySingular):  # every matching contains such entries
            columns, v = _matched(A.n, rows[sound], indices[sound], -logs[sound])
    u = -_largest(logs + v[indices], rows, A.n)
    v = -_largest(logs + u[rows], indices, A.n)
    if symmetric:
        u = v = _clipped_symmetric((u + v) / 2, rows, indices, logs, dtype, power_of_two)
    else:
        shift = _centre(u, v, columns, rows, indices)
        u, v = _clipped(u + shift, rows, indices, logs, dtype, power_of_two)
    row_scale, column_scale = np.exp2(u).astype(dtype), np.exp2(v).astype(dtype)
    if not symmetric:
        return Matching(columns, row_scale, column_scale)
    on_diagonal = rows == indices
    diagonal = np.full(A.n, -np.inf)
    diagonal[rows[on_diagonal]] = logs[on_diagonal] + 2 * u[rows[on_diagonal]]
    order, first = np.empty(A.n, np.int64), np.empty(A.n, bool)
    kernels_for(columns).matching.cut_cycles(columns, diagonal, order, first)
    return Matching(columns, row_scale, column_scale, order, first)


def dual_exponents(A: Any, *, symmetric: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Whole u, v (n,) such that 2^(u_i + v_j) |a_ij| is at most 1, and above 1/8 in the matching of largest product.

    As `matching`, but over all entries, also those that are rounding, and without clipping of the exponents.
    """
    A = as_csr(A, diagonal=False)
    rows, indices, logs = _logarithms(A)
    if symmetric:
        rows, indices, logs = _symmetrized(A.n, rows, indices, logs, np.finfo(A.data.real.dtype).eps)
    _, v = _matched(A.n, rows, indices, -logs)
    u = -_largest(logs + v[indices], rows, A.n)
    v = -_largest(logs + u[rows], indices, A.n)
    if symmetric:
        u = v = (u + v) / 2
    u, v = (np.floor(x).astype(np.int64) for x in (u, v))
    return u, v


def _sound(n: int, rows: Any, indices: Any, logs: Any, columns: Any, eps: float) -> Any:
    """A mask of the entries that are more than rounding of their row and column; None if all matched ones are.

    Rounding: at most ROUNDINGS eps times the largest entry of the row, and of the column, once both are about 1.
    """
    limit = np.log2(ROUNDINGS * eps)

    def noise(logs: Any) -> Any:
        return logs <= limit + np.minimum(_largest(logs, rows, n)[rows], _largest(logs, indices, n)[indices])

    matched = columns[rows] == indices
    if not (noise(logs) & matched).any():
        return None
    u, v = _balanced(n, rows, indices, logs, symmetric=False, sweeps=SWEEPS)  # rows and columns of any size
    small = noise(logs + u[rows] + v[indices])
    return ~small if (small & matched).any() else None


def require_matching(A: Any) -> None:
    """Raise StructurallySingular, naming a row, if no matching of A exists. Cost: as `matching`."""
    A = as_csr(A, diagonal=False)
    rows, indices, logs = _logarithms(A)
    _matched(A.n, rows, indices, np.zeros_like(logs))


def unmatched(A: Any) -> np.ndarray:
    """The rows that a largest matching of A leaves out, none if A is structurally regular; by SciPy. It takes O(sqrt(n)
    nnz) operations at most, but looks at no time limit."""
    A = as_csr(A, diagonal=False)
    rows, indices, logs = _logarithms(A)
    nonzeros = sp.csr_matrix((np.ones_like(logs), indices, _pointers(rows, A.n)), shape=A.shape)
    return np.flatnonzero(maximum_bipartite_matching(nonzeros, perm_type="column") < 0)


def _matched(n: int, rows: Any, indices: Any, weights: Any) -> tuple[Any, Any]:
    """The lightest matching (n,) and the dual variables of the columns (n,)."""
    columns, v = np.empty(n, np.int64), np.empty(n)
    kernels_for(columns).matching.lightest_matching(_pointers(rows, n), indices, weights, columns, v)
    if (columns < 0).any():
        raise StructurallySingular(np.flatnonzero(columns < 0))
    return columns, v


@ignore_fp_errors
def equilibrate(A: Any, *, symmetric: bool = False, sweeps: int = SWEEPS) -> tuple[np.ndarray, np.ndarray]:
    """Powers of two row_scale (n,), column_scale (n,) that bring the largest magnitude of each row and column near 1.

    A : (n, n), as `as_csr` takes it, without need of a diagonal. The largest magnitude of each row and column of the
        scaled matrix is from 0.45 to 2.2 once the iteration has ended, which takes one sweep for each halving of log2
        |a_ij|. A row or column of zeros has the scale 1.
    symmetric : one scale for both sides, for the larger of the norms of row i and column i.
    sweeps : the most sweeps; it ends earlier if the matrix is equilibrated. Factors in the real dtype of A, clipped to
    its smallest and largest normal power of two. All sums are of logarithms, so magnitudes may have any size. Raises
    ParameterError for sweeps < 1. Cost: O(nnz) a sweep; on the host.
    Source: D. Ruiz: A scaling algorithm to equilibrate both rows and columns norms in matrices, 2001.
    """
    sweeps = count("sweeps", sweeps, 1)
    A = as_csr(A, diagonal=False)
    rows, indices, logs = _logarithms(A)
    u, v = _balanced(A.n, rows, indices, logs, symmetric, sweeps)
    dtype = np.dtype(A.data.real.dtype)
    low, high = _range(dtype)
    return tuple(np.exp2(np.clip(np.rint(x), low, high)).astype(dtype) for x in (u, v))


def by_largest(A: Any) -> tuple[np.ndarray, np.ndarray]:
    """Powers of two row_scale (n,), column_scale (n,) that bring the largest magnitude of each row, and then of each
    column, to between 1/2 and 1; 1 for rows and columns of zeros. Cost: two passes over the entries; on the host."""
    rows, indices, logs = _logarithms(A)
    by_row = _largest(logs, rows, A.n)
    empty = ~np.isfinite(by_row), ~np.isfinite(_largest(logs, indices, A.n))
    u = np.where(empty[0], 0.0, -by_row)
    u, v = _clipped(u, rows, indices, logs, A.data.real.dtype, whole=True)
    scales = (np.exp2(np.where(none, 0.0, x)).astype(A.data.real.dtype) for none, x in zip(empty, (u, v), strict=True))
    row_scale, column_scale = scales
    return row_scale, column_scale


def even_exponents(S: Any) -> Any:
    """e (n,) int32, where S is: the largest part of an entry of 2^e_j times column j is from 1/2 to 1; e_j = 0 for a
    column of zeros.  S : (m, n), a csr_matrix of scipy.sparse or cupyx.scipy.sparse. Cost: one pass over the entries.
    """
    xp, data = namespace(S.data), as_dtype(S.data, np.result_type(S.data.dtype, np.float64))  # which flushes nothing
    parts, none = xp.maximum(abs(data.real), abs(data.imag)), np.iinfo(np.int32).min
    largest = xp.full(S.shape[1], none, np.int32)
    xp.maximum.at(largest, S.indices, xp.where(parts > 0, xp.frexp(parts)[1], np.int32(none)))
    return -xp.where(largest > none, largest, 0)


def with_columns_times(S: Any, exponents: Any) -> Any:
    """2^exponents[j] times column j of S; both as in `even_exponents`. Exact, except for entries that become subnormal.
    Cost: one pass over the entries."""
    data = ldexp(S.data, exponents[S.indices])
    return sparse_module(S.data).csr_matrix((data, S.indices, S.indptr), shape=S.shape)


def _balanced(n: int, rows: Any, indices: Any, logs: Any, symmetric: bool, sweeps: int) -> tuple[Any, Any]:
    """u, v (n,) for which the largest logs + u + v of each row and column are about 0; see `equilibrate`."""
    u, v = np.zeros(n), np.zeros(n)
    for _ in range(sweeps):
        deadline.check()
        scaled = logs + u[rows] + v[indices]
        by_row, by_column = _largest(scaled, rows, n), _largest(scaled, indices, n)
        if symmetric:
            by_row = by_column = np.maximum(by_row, by_column)
        by_row, by_column = (np.where(np.isfinite(x), x, 0.0) for x in (by_row, by_column))  # no entry: leave it
        if max(abs(by_row).max(), abs(by_column).max()) <= BALANCED:
            break
        u, v = u - by_row / 2, v - by_column / 2
    return u, v


def _logarithms(A: Any) -> tuple[Any, Any, Any]:
    """Rows, columns and log2 of the magnitude of the entries that are not zero, by rows; on the host."""
    indptr, indices, data = (to_host(part) for part in (A.indptr, A.indices, A.data))
    rows = np.repeat(np.arange(A.n), np.diff(indptr))
    kept = data != 0
    rows, indices, data = rows[kept], indices[kept].astype(np.int64), data[kept]
    if data.dtype.kind != "c":
        return rows, indices, np.log2(abs(data.astype(np.float64)))
    parts = np.sort(abs(np.stack([data.real, data.imag]).astype(np.float64)), axis=0)
    with np.errstate(under="ignore"):  # the magnitude may leave the range of numbers although its parts do not
        return rows, indices, np.log2(parts[1]) + np.log2(1 + (parts[0] / parts[1]) ** 2) / 2


def _symmetrized(n: int, rows: Any, indices: Any, logs: Any, eps: float) -> tuple[Any, Any, Any]:
    """The larger of |a_ij| and |a_ji| for both, or a MatrixError if they differ by more than rounding."""
    largest, least = logs.max(initial=0.0), logs.min(initial=0.0)
    S = sp.csr_matrix((np.exp2(logs - largest), (rows, indices)), shape=(n, n))
    difference = abs(S - S.T).tocoo()
    if difference.nnz and difference.data.max() > ROUNDINGS * eps:
        i, j = (int(x[np.argmax(difference.data)]) for x in (difference.row, difference.col))
        raise MatrixError(
            f"symmetric=True, but the entries ({i}, {j}) and ({j}, {i}) of A differ in magnitude; leave symmetric out."
        )
    S = sp.csr_matrix((logs - least + 1, (rows, indices)), shape=(n, n))  # positive: more than a missing entry's 0
    both = sp.coo_matrix(S.maximum(S.T.tocsr()).tocsr())
    return both.row.astype(np.int64), both.col.astype(np.int64), both.data + (least - 1)


def _pointers(rows: Any, n: int) -> Any:
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])


def _largest(x: Any, index: Any, n: int) -> Any:
    """The largest x of each index (n,), -inf for an index without x."""
    largest = np.full(n, -np.inf)
    np.maximum.at(largest, index, x)
    return largest


def _centre(u: Any, v: Any, columns: Any, rows: Any, indices: Any) -> Any:
    """The number to add to u, and subtract from v, so that in each connected part both reach equally far from 0."""
    matched, part = np.empty_like(columns), np.empty_like(columns)
    matched[columns] = np.arange(columns.size)
    count = kernels_for(columns).matching.connected_parts(rows, matched[indices], part)
    of_column = np.empty_like(part)
    of_column[columns] = part
    parts, x = np.concatenate([part, of_column]), np.concatenate([u, -v])
    return (_largest(-x, parts, count) - _largest(x, parts, count))[part] / 2


def _range(dtype: Any) -> tuple[Any, Any]:
    return np.finfo(dtype).minexp, np.finfo(dtype).maxexp - 1


def _clipped(u: Any, rows: Any, indices: Any, logs: Any, dtype: Any, whole: bool) -> tuple[Any, Any]:
    """u and v within the exponents of dtype, whole if asked, with logs + u + v <= 0; v is as large as that allows."""
    low, high = _range(dtype)
    down = np.floor if whole else np.asarray
    u = np.clip(down(u), low, high)
    v = down(-_largest(logs + u[rows], indices, u.size))
    if v.min() < low:  # u gives way to what v is raised to; there is room, as the smallest factors shrink all below 1
        v = np.maximum(v, low)
        u = np.minimum(u, down(-_largest(logs + v[indices], rows, u.size)))
    return u, np.minimum(v, high)


def _clipped_symmetric(s: Any, rows: Any, indices: Any, logs: Any, dtype: Any, whole: bool) -> Any:
    """As `_clipped`, with one s for both sides."""
    low, high = _range(dtype)
    down = np.floor if whole else np.asarray
    s = np.clip(down(s), low, high)
    excess = _largest(logs + s[rows] + s[indices], rows, s.size)
    # Only clipping leaves more than rounding. The factors of all rows on both sides are lowered, to the smallest one.
    return np.where(excess > TOLERANCE * max(1.0, abs(logs).max()), np.maximum(down(s - excess), low), s)
