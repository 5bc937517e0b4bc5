"""Factors of a `Batch`: one plan for its pattern, and the numbers of every matrix.

A plan says where the entries of A come in L + U. On the pattern of A it is that of ILU0, on larger ones that of ILUK,
on the diagonal that of Jacobi. On the pattern of complete factors it is a complete L U, for which `complete_plan`
chooses a matching and an order with little fill. Rows are not exchanged: that would give each matrix a pattern of its
own.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from finelu.arithmetic import ignore_fp_errors
from finelu.device import free_memory, namespace, on_gpu, require_room, to_host
from finelu.errors import MatrixError, StructurallySingular, counted, named_systems
from finelu.factors import Report
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, BatchPlan
from finelu.matrix import as_csr
from finelu.matrix.batch import Batch
from finelu.matrix.in_range import in_range, is_finite
from finelu.ordering import with_little_fill
from finelu.scaling import Matching, matching

SAMPLE = 16  # matrices, at most, whose entries decide the matching and the scaling
HERMITIAN = 1e-6  # relative difference of two entries that should be conjugates, in double precision; in single 1e-3


class Prepared(NamedTuple):
    """A BatchPlan as the kernels of its device take it, and the entries of its L + U."""

    entries: int
    plan: tuple[Any, ...]


class BatchFactors:
    """Approximations M_s of the matrices of a Batch, whose inverses can be applied together.

    `F.solve(R)` is M_s^-1 r_s for each row r_s of R; the Krylov methods take F as M. `update` repeats the numeric part.
    recipe : the frozen recipe that made it.  batch : the Batch.  shape (k, n, n), dtype.
    failed (k,) : -1, or the first row of matrix s whose pivot is zero, not finite or, for IC0, not positive. Such a
        matrix has no factors, and rows of `solve` that belong to it have no meaning.
    replaced (k,) : the number of pivots that were replaced by larger ones, of SparseLU.
    report : `numeric_seconds`, and a warning that names systems without factors.
    """

    def __init__(self, recipe: Any, batch: Batch, prepared: Prepared):
        self.recipe, self.batch = recipe, batch
        self.guard = guard_of(batch.dtype) if recipe.complete else 0.0
        self.shape, self.dtype, (self.nnz, self.plan) = batch.shape, batch.dtype, prepared
        kernels = kernels_for(batch.values).batch
        require_room(
            f"the factors of {counted(batch.k, 'system')}",
            batch.k * self.nnz * batch.dtype.itemsize,
            batch.values,
            f"factor {_fitting(batch, self.nnz)} at a time",
        )
        self.report = Report()
        self.report.factored_on = self.report.applied_on = "GPU" if on_gpu(batch.values) else "CPU"
        self.lu = kernels.room(batch.k, self.nnz, batch.values)
        self._refresh(batch)

    @ignore_fp_errors
    def update(self, values: Any) -> BatchFactors:
        """Factor matrices of the same pattern anew; returns self.

        values : (k, nnz), in the order of the A that the Batch was made of; or a Batch of the same pattern. k stays.
        Raises MatrixError for other patterns and shapes.
        """
        if isinstance(values, Batch):
            if not values.pattern.same_pattern(self.batch.pattern):
                raise MatrixError("update needs the pattern that was factored, but this Batch has another one.")
            batch = values
        else:
            batch = self.batch.with_values(values)
        if batch.k != self.batch.k:
            raise MatrixError(
                f"update was given {counted(batch.k, 'matrix', 'matrices')}, but the factors are of {self.batch.k}."
            )
        if np.result_type(batch.dtype, self.dtype) != self.dtype:
            raise MatrixError(f"update was given {batch.dtype} values, but the factors are {self.dtype}. Factor anew.")
        self._refresh(batch.in_dtype(self.dtype))
        return self

    def _refresh(self, batch: Batch) -> None:
        start = perf_counter()
        xp = namespace(batch.values)
        failed, replaced = (xp.empty(batch.k, np.int64) for _ in range(2))
        positive = bool(self.recipe.hermitian)
        if positive:
            _require_hermitian(self.recipe, batch)
        results = self.lu, failed, replaced
        kernels_for(batch.values).batch.factor(self.plan, batch.values, self.guard, positive, *results)
        self.batch, self.failed, self.replaced = batch, to_host(failed), to_host(replaced)
        self.report.warning = None
        if broken := np.flatnonzero(self.failed >= 0).tolist():
            self.report.warn(
                f"{counted(len(broken), 'system')} of {batch.k} without factors: {named_systems(broken)}; the pivot of "
                f"row {self.failed[broken[0]]} of system {broken[0]} is zero or not finite"
                + (" or not positive" if positive else "")
            )
        self.report["numeric_seconds"] = perf_counter() - start

    @ignore_fp_errors
    def solve(self, R: Any) -> Any:
        """M_s^-1 r_s for the rows r_s of R (k, n), or for one R (n,) for all; (k, n), on the device of the batch.

        On the CPU it is finite, as that of `Factors.solve`, except for systems without factors, see `failed`.
        Raises MatrixError for a wrong shape or, on the CPU, if the result leaves the range of its dtype. Cost: one pass
        over the factors.
        """
        R = self.batch.right_hand_sides(R, "the right-hand side")
        x = self._solved(R)
        if on_gpu(x) or is_finite(x):
            return x
        made = self.failed < 0
        given, room = np.broadcast_to(R, x.shape), np.zeros_like(x, dtype=np.result_type(R, x))

        def solve(V: Any) -> Any:
            room[made] = V.T
            return self._solved(room)[made].T

        x[made] = in_range(x[made].T, given[made].T, solve, repr(self.recipe), self.dtype).T
        return x

    def _solved(self, R: Any) -> Any:
        xp, R = namespace(R), namespace(R).ascontiguousarray(R)
        if R.dtype.kind == "c" and self.dtype.kind != "c":
            return self._solved(R.real) + 1j * self._solved(R.imag)
        x = xp.empty((self.batch.k, self.batch.n), self.dtype)
        kernels_for(x).batch.solve(self.plan, self.lu, R.astype(self.dtype, copy=False), x)
        return x

    __matmul__ = solve

    def __repr__(self) -> str:
        device = "GPU" if on_gpu(self.batch.values) else "CPU"
        return (
            f"BatchFactors({self.recipe!r}, {counted(self.batch.k, 'system')}, n={self.batch.n}, nnz={self.nnz}, "
            f"{self.dtype}, {device})"
        )


def guard_of(dtype: Any) -> float:
    """The part of the largest entry of its row below which a pivot of complete factors is replaced."""
    return float(np.sqrt(np.finfo(dtype).eps))


def _fitting(batch: Batch, entries: int) -> int:
    """The number of systems whose factors, with that many entries each, fit into the free memory; 1 at least."""
    return max(int(free_memory(batch.values) // (entries * batch.dtype.itemsize)), 1)


# Plans --------------------------------------------------------------------------------------------------------------


def own_plan(batch: Batch, shift: float) -> Prepared:
    """The plan on the pattern of the matrices themselves. Raises MatrixError if the diagonal has gaps."""
    A = as_csr(batch.pattern)
    return natural_plan(batch, A, np.arange(A.nnz), shift)


def natural_plan(batch: Batch, pattern: CSR, places: Any, shift: float = 0.0) -> Prepared:
    """The plan on `pattern`, a CSR with a full diagonal, in A's own order and scaling.

    places (nnz,) : entry p of the pattern begins as entry places[p] of A, or as 0 if that is -1.
    shift : the diagonal is multiplied by 1 + shift.
    """
    real, places, n = np.empty(0, batch.dtype).real.dtype, to_host(places), pattern.n
    weights = (places >= 0).astype(real)
    weights[to_host(pattern.diag)] *= 1 + real.type(shift)
    order, ones = np.arange(n, dtype=np.int32), np.ones(n, real)
    return _on_device(batch, pattern, places, weights, order, order, ones, ones)


def diagonal_of_ones(batch: Batch) -> tuple[Any, Any]:
    """(plan, factors) of M = 1 for all matrices."""
    n = batch.n
    pattern = CSR(np.arange(n + 1), np.arange(n), np.empty(n), np.arange(n))
    prepared = natural_plan(batch, pattern, np.arange(n))
    lu = kernels_for(batch.values).batch.room(batch.k, prepared.entries, batch.values)
    lu.fill(1)
    return prepared.plan, lu


def block_diagonal_plan(batch: Batch, A: CSR, size: int, shift: float = 0.0) -> Prepared:
    """The plan on the diagonal blocks of A, of `size` rows each, the last perhaps of fewer."""
    A = A.on(np)
    first = np.arange(A.n) // size * size
    lengths = np.minimum(size, A.n - first)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    row = np.repeat(np.arange(A.n), lengths)
    indices = np.arange(indptr[-1]) - indptr[row] + first[row]
    keys = np.repeat(np.arange(A.n), np.diff(A.indptr)) * np.int64(A.n) + A.indices
    wanted = row * np.int64(A.n) + indices
    places = np.minimum(np.searchsorted(keys, wanted), A.nnz - 1)
    places[keys[places] != wanted] = -1
    pattern = CSR(indptr, indices, np.empty(indices.size), indptr[:-1] + np.arange(A.n) - first)
    return natural_plan(batch, pattern, places, shift)


def complete_plan(batch: Batch) -> Prepared:
    """The plan of complete factors, kept with the pattern of the batch.

    The matching with the largest product, its scaling, and an order with little fill are those of a typical matrix:
    each entry has the geometric mean of its magnitudes in up to 16 of the systems. An entry that is zero, or not
    finite, in one of them is not matched, unless the pattern has no matching without it. Entries that are zero in all
    systems are left out; a plan that has left out an entry which is no longer zero is made anew.
    Raises StructurallySingular if no matrix with this pattern has an inverse.
    """
    key = f"complete in {batch.dtype}"
    kept: tuple[Prepared, Any] | None = batch.known.get(key)
    if kept is None or (kept[1].size and bool(batch.values[:, kept[1]].any())):
        A, typical = batch.pattern.on(np), _typical(batch)
        unused = np.flatnonzero(typical == 0)
        unused = unused[to_host(~batch.values[:, unused].any(axis=0))]
        try:
            found = matching(A.with_values(typical), power_of_two=True)
        except StructurallySingular:
            found = matching(A.with_values(np.ones(A.nnz)), power_of_two=True)
            unused = unused[:0]
        kept = batch.known[key] = _complete(batch, A, found, unused), namespace(batch.values).asarray(unused)
    return kept[0]


def _typical(batch: Batch) -> Any:
    """(nnz,) : the geometric mean of the magnitudes of each entry in a sample of the systems."""
    sample = np.unique(np.linspace(0, batch.k - 1, min(batch.k, SAMPLE)).astype(np.int64))
    sizes = to_host(abs(batch.values[sample])).astype(np.float64)
    sizes = sizes[np.isfinite(sizes).all(axis=1)]
    if not sizes.size:
        return np.ones(batch.nnz)
    with np.errstate(divide="ignore"):
        return np.exp2(np.log2(sizes).mean(axis=0))


def _complete(batch: Batch, A: CSR, found: Matching, unused: Any) -> Prepared:
    """unused : entries of A that the factors do not have."""
    rows, columns = np.argsort(found.columns), np.arange(A.n)  # the row of A that is matched to each column
    numbers = np.arange(1.0, A.nnz + 1)
    numbers[unused] = 0
    numbered = sp.csr_matrix((numbers, A.indices, A.indptr), shape=A.shape, copy=True)
    numbered.eliminate_zeros()
    order, _ = with_little_fill(as_csr(numbered[rows], diagonal=False))
    rows, columns = rows[order], columns[order]
    B = as_csr(numbered[rows][:, columns])
    indptr, indices, of = kernels_for(B.data).fill.pattern_iluk(B.indptr, B.indices, A.n)
    places = np.full(indices.size, -1, np.int64)
    places[of] = B.data.astype(np.int64) - 1
    row_scale, column_scale = found.row_scale[rows], found.column_scale[columns]
    pattern = CSR(indptr, indices, np.empty(indices.size), of[B.diag])
    row = np.repeat(np.arange(A.n), np.diff(indptr))
    weights = np.where(places >= 0, row_scale[row] * column_scale[indices], 0)
    return _on_device(batch, pattern, places, weights, rows, columns, row_scale, column_scale)


def _on_device(
    batch: Batch, pattern: CSR, places: Any, weights: Any, rows: Any, columns: Any, row_scale: Any, column_scale: Any
) -> Prepared:
    """The plan in the types that kernels take, prepared where the batch is."""
    xp, real = namespace(batch.values), np.empty(0, batch.dtype).real.dtype
    if pattern.nnz >= 2**31:
        raise MatrixError(f"the factors of one system have {pattern.nnz} entries, more than a Batch can count.")
    whole = pattern.indptr, pattern.indices, pattern.diag, np.maximum(places, 0), rows, columns
    indptr, indices, diag, places, rows, columns = (xp.asarray(to_host(part).astype(np.int32)) for part in whole)
    weights, *scales = (xp.asarray(part.astype(real)) for part in (weights, row_scale, column_scale))
    plan = BatchPlan(indptr, indices, diag, places, weights, rows, columns, *scales)
    return Prepared(pattern.nnz, kernels_for(batch.values).batch.prepared(plan))


def _require_hermitian(recipe: Any, batch: Batch) -> None:
    """A MatrixError that names the first matrix that is not Hermitian."""
    xp, A = namespace(batch.values), batch.pattern.on(np)
    numbered = sp.csr_matrix((np.arange(1.0, A.nnz + 1), A.indices, A.indptr), shape=A.shape)
    turned = numbered.T.tocsr()
    turned.sort_indices()
    if not (np.array_equal(turned.indptr, A.indptr) and np.array_equal(turned.indices, A.indices)):
        raise MatrixError(f"{recipe!r} needs Hermitian matrices, but the pattern of the Batch is not symmetric.")
    mirror = xp.asarray(turned.data.astype(np.int64) - 1)
    values, sizes = batch.values, abs(batch.values)
    roots = xp.sqrt(sizes[:, batch.pattern.diag])
    rows = xp.asarray(np.repeat(np.arange(A.n), np.diff(A.indptr)))
    limits = xp.maximum(xp.maximum(sizes, sizes[:, mirror]), roots[:, rows] * roots[:, batch.pattern.indices])
    tolerance = HERMITIAN if batch.dtype.char in "dD" else HERMITIAN**0.5
    bad = to_host((abs(values - values[:, mirror].conj()) > tolerance * limits).any(axis=1))
    if bad.any():
        which = named_systems(np.flatnonzero(bad).tolist())
        raise MatrixError(f"{recipe!r} needs Hermitian matrices, but not Hermitian in the Batch: {which}.")
