"""A in the form for the libraries: without stored zeros, and in the range of their arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import of_nonzeros
from finelu.matrix.vectors import ldexp
from finelu.preconditioners.direct.library import is_mirrored
from finelu.scaling import equilibrate

FITTING = 8  # powers of two that the largest entries of rows and columns may be from 1 for scales to be kept
FEW_ZEROS = 0.01  # part of the entries: more zeros may be left out of complete factors, which fill in less without them
WIDE = 0.5  # of the exponents of a dtype: a product of two numbers beyond may be none


@dataclass(eq=False)
class Prepared:
    """A in the form for the libraries.

    matrix : A on the host without stored zeros. If A has magnitudes so far from 1 that numbers could leave the range in
        a library, the matrix is in double precision and scaled.
    kept : the places of its entries among those of A, None for all.
    row_scale, column_scale (n,) : powers of two, so that nothing is rounded; None without a scaling.
    """

    matrix: CSR
    kept: np.ndarray | None
    row_scale: np.ndarray | None = None
    column_scale: np.ndarray | None = None

    def like(self, other: Prepared) -> bool:
        """Whether the analysis of `other` is valid for this matrix."""
        same = self.matrix.indices is other.matrix.indices or self.matrix.same_pattern(other.matrix)
        return same and self.matrix.dtype == other.matrix.dtype


def prepared(A: CSR, before: Prepared | None = None, *, scaled: bool = False) -> Prepared:
    """Prepare A for the libraries.

    before : the result for earlier values, or None. Its entries are kept if A has no other nonzero ones, and its scales
        if they fit.
    scaled : whether to scale in any case.
    Cost: some passes over the values.
    """
    A = A.on(np)
    extremes = kernels_for(A.data).inspection.extremes(A.data)
    S, kept = A, None
    if before is not None and before.kept is not None and A.nnz >= before.kept.size:
        data = A.data[before.kept]
        if np.count_nonzero(data) == extremes[0]:
            S, kept = before.matrix.with_values(data), before.kept
    may_lose = kept is None and extremes[0] < A.nnz and (before is None or before.kept is not None)
    if may_lose and not _has_few_zeros(A, extremes[0]):  # else new zeros are kept as entries
        S, kept = of_nonzeros(A, extremes[0])
    in_range = not scaled and _is_in_range(S, extremes)
    return Prepared(S, kept) if in_range else _brought_into_range(S, kept, before)


def _has_few_zeros(A: CSR, nonzeros: int) -> bool:
    """Whether few entries of A are zeros, and none on the diagonal, which therefore shows that the structural rank is
    full. They stay entries: where they come and go with the values, as in Jacobians, the pattern would change."""
    few = 0 < A.nnz - nonzeros <= FEW_ZEROS * A.nnz
    return few and A.missing == 0 and bool(A.data[A.diag].all())


def _brought_into_range(S: CSR, kept: np.ndarray | None, before: Prepared | None) -> Prepared:
    symmetric = is_mirrored(S) or is_mirrored(S, conjugated=False)
    S = S.with_values(S.data.astype(np.result_type(S.dtype, np.float64)))
    if before is not None and before.row_scale is not None and before.column_scale is not None:
        scales = before.row_scale, before.column_scale
        found = Prepared(_scaled(S, *scales), kept, *scales)
        fits = all(abs(np.log2(sizes[sizes > 0])).max(initial=0.0) <= FITTING for sizes in _largest(found.matrix))
        if fits and (not symmetric or np.array_equal(*scales)):
            return found
    scales = equilibrate(S, symmetric=symmetric)
    return Prepared(_scaled(S, *scales), kept, *scales)


def _is_in_range(S: CSR, extremes: tuple[int, float, float]) -> bool:
    """Whether S has no numbers near the ends of the range. Small normal numbers do no harm if their row and their
    column have larger ones.  extremes : of its values, see the kernel."""
    _, least, largest = extremes
    limits = np.finfo(S.dtype)
    low, high = 2.0 ** (WIDE * limits.minexp), 2.0 ** (WIDE * limits.maxexp)
    if largest > high or least < limits.tiny:
        return False
    has_small_line = kernels_for(S.data).graph.has_small_line
    return bool(least >= low) or not has_small_line(S.indptr, S.indices, S.data, low)


def _sizes(S: CSR) -> Any:
    """(nnz,) : the larger of the real and imaginary part of each entry, since the magnitude may overflow."""
    sizes = abs(S.data.view(S.data.real.dtype))
    return np.maximum(sizes[::2], sizes[1::2]) if S.dtype.kind == "c" else sizes


def _largest(S: CSR) -> tuple[Any, Any]:
    """The largest of the sizes in each row (n,), and in each column (n,); 0 for a row or column without an entry."""
    sizes = _sizes(S)
    by_row = np.where(
        np.diff(S.indptr) > 0, np.maximum.reduceat(np.append(sizes, sizes.dtype.type(0)), S.indptr[:-1]), 0
    )
    return by_row, largest_of_columns(S)


def largest_of_columns(S: CSR) -> Any:
    """(n,) : the largest of the sizes in each column; 0 for one without an entry."""
    sizes = _sizes(S)
    largest = np.zeros(S.n, sizes.dtype)
    np.maximum.at(largest, S.indices, sizes)
    return largest


def _scaled(S: CSR, row_scale: Any, column_scale: Any) -> CSR:
    of_rows, of_columns = (np.log2(scale).astype(np.int32) for scale in (row_scale, column_scale))
    exponents = np.repeat(of_rows, np.diff(S.indptr)) + of_columns[S.indices]
    return S.with_values(ldexp(S.data, exponents))
