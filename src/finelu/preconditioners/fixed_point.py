"""The base of ParILU, ParIC, ParILUT and ParICT: factors of the scaled and ordered matrix, computed by sweeps.

H. Anzt, E. Chow, J. Dongarra: ParILUT - a new parallel threshold ILU factorization, 2018, section 2;
E. Chow, A. Patel: Fine-grained parallel incomplete LU factorization, 2015.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu import deadline
from finelu.device import copied, namespace, to_host
from finelu.errors import ZeroPivot, counted
from finelu.factors import Arrangement
from finelu.factors.report import TriangularReport
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import lower_triangle
from finelu.matrix.hermitian import require_hermitian
from finelu.ordering import ORDERINGS, dense_last, hermitian_pattern, permutation, permuted
from finelu.preconditioners.iluk import pattern_of
from finelu.preconditioners.recipe import checked, shifted
from finelu.validation import choice, flag

WORSE, SMALL = 10.0, 1e-3  # times the first residual on the pattern, or this, if larger: then an update warns
UPPER_FIRST = ("upper", "lower")
NO_ROW = 2**62  # the row that `refused` names while nothing was refused


def check_fixed_point(recipe: Any) -> None:
    """A ParameterError for an ordering or scale that has no meaning."""
    choice("ordering", recipe.ordering, ORDERINGS, of=recipe)
    flag("scale", recipe.scale, of=recipe)


def checked_fixed_point(recipe: Any, A: Any) -> CSR:
    """As `checked`; the factors of a recipe that is not for Hermitian matrices get a pattern of their own."""
    matrix = checked(recipe, A)
    return matrix if recipe.hermitian else matrix.with_own_pattern()  # the factors may have it, too


@dataclass(eq=False, repr=False)
class SweepReport(TriangularReport):
    """refused : the number of updates that were not finite, with a warning if there are any.
    refused_row : the first row with a refused update.
    pattern_residual : ||A - L U||_F on the pattern, relative to ||A||_F, of the scaled matrix; a warning if it is much
        larger after an update than after the factorization.
    """

    refused: int = 0
    refused_row: int | None = None
    pattern_residual: float | None = None


class FixedPoint:
    """The numeric part: factors of B = D P A P^T D, where D gives B a unit diagonal, turned into those of P A P^T.

    The scaling is undone in the values; the permutation, `arranged`, is part of the factors' `solve`. For Cholesky B is
    the lower triangle. Subclasses implement `factorize(A)`.
    fills : whether the factors may have entries that A does not have: dense rows of an unordered A are then moved last.
    """

    diagonal: Any = None  # of D, whether it is used or not
    _last_columns: tuple[Any, Any] | None = None  # the column indices of a pattern, and the pattern by columns
    _first_residual: float | None = None

    def __init__(self, recipe: Any, A: CSR, report: SweepReport, *, fills: bool):
        self.recipe, self.report, self.cholesky = recipe, report, recipe.hermitian
        self._half = lower_triangle(A) if self.cholesky else None
        lower = A if self._half is None else self._half[0]
        self._permuted = permutation(lower, recipe.ordering, hermitian=self.cholesky)
        if fills and recipe.ordering is None and (found := dense_last(A)) is not None:
            self._permuted = permuted(lower, found[0], hermitian=self.cholesky)
            report.dense_last = found[1]
        order = None if self._permuted is None else self._permuted.order
        self.arranged = None if order is None else Arrangement(order, order)
        self._fresh = namespace(A.data).array([0, NO_ROW], np.int64)
        self.refused = copied(self._fresh)

    # B, and the conversion of its factors to those of A

    def scaled(self, A: CSR) -> tuple[CSR, Any]:
        """B, and the diagonal d (n,) of D (None without scaling)."""
        self._unlike = require_hermitian(self.recipe, A) if self.cholesky else ""
        xp = namespace(A.data)
        B = A.with_values(shifted(A, self.recipe.shift))
        if self._half is not None:
            lower, places = self._half
            B = lower.with_values(kernels_for(B.data).vectors.gather(B.data, places))
        if self._permuted is not None:
            B = self._permuted.matrix(B)
        scaling = kernels_for(B.data).scaling
        d, at, self._plain = scaling.pivots(B, self.cholesky)
        if at >= 0:
            what = "is not a positive number" if self.cholesky else "is zero or not finite"
            raise ZeroPivot(self.recipe, self._row(at), B.data[int(B.diag[at])], what)
        self.diagonal = d
        if not self.recipe.scale:
            return B, None
        return B.with_values(scaling.scale(B, xp.empty_like(B.data), (d, d), (d, d))), d

    def _row(self, i: int) -> int:
        """The row of A that is row i of P A P^T."""
        return i if self.arranged is None else self.arranged.row(i)

    def rescaled(self, F: CSR, d: Any) -> CSR:
        """The factors of B from those of P A P^T; d is None without scaling."""
        if d is None:
            return F.with_values(F.data.copy())
        e = 1 / d
        below, above = ((d, None), (d, None)) if self.cholesky else ((d, e), (d, d))
        return F.with_values(kernels_for(F.data).scaling.scale(F, namespace(F.data).empty_like(F.data), below, above))

    def finished(self, F: CSR, d: Any) -> CSR:
        """The factors of P A P^T from those of B.

        Raises ZeroPivot if they cannot be applied: sweeps keep only finite values, but A may be so badly scaled that B,
        or the unscaled factors, overflow.
        """
        xp, scaling = namespace(F.data), kernels_for(F.data).scaling
        if d is not None:
            e = 1 / d
            below, above = ((e, None), (e, None)) if self.cholesky else ((e, d), (e, e))
            F = F.with_values(scaling.scale(F, xp.empty_like(F.data), below, above))
        i = scaling.first_unusable(F)
        if i >= 0:
            pivot = F.data[int(F.diag[i])]
            good = bool(xp.isfinite(pivot)) and bool(pivot != 0)
            what = "has an entry in its row or column that is not finite" if good else "is zero or not finite"
            raise ZeroPivot(self.recipe, self._row(i), pivot, what)
        return F

    # the pattern to begin with

    def pattern(self, B: CSR, level: int) -> tuple[CSR, Any]:
        """The pattern of ILU(level) (its lower triangle), and the places (nnz of B) of B's entries in it."""
        if level == 0:
            return B, None
        if not self.cholesky:
            return pattern_of(B, level)
        xp, whole = namespace(B.data), hermitian_pattern(B)
        pattern, places = pattern_of(whole, level)
        lower, kept = lower_triangle(pattern)
        number = np.empty(pattern.nnz, B.indices.dtype)  # of an entry of the pattern in its lower triangle
        number[kept] = np.arange(kept.size)
        places = number[places[lower_triangle(whole)[1]]]
        lower = CSR(*(xp.asarray(part) for part in (lower.indptr, lower.indices, lower.data, lower.diag)))
        return lower, xp.asarray(places)

    def initial(self, pattern: CSR, places: Any, B: CSR) -> CSR:
        """The values of B on the pattern, 0 where B has none: the initial L and U (2018, section 3.2).

        Entries below the diagonal are divided by the pivot of their column, for Cholesky by its root: if the pivots are
        not one, for instance negative or complex, B itself is far from L.
        """
        xp = namespace(B.data)
        data = B.data.copy() if places is None else xp.zeros(pattern.nnz, B.dtype)
        if places is not None:
            data[places] = B.data
        if not self.recipe.scale or not self._plain:
            if self.cholesky:
                data[pattern.diag] = xp.sqrt(B.data[B.diag].real)
            kernels_for(data).scaling.divide_by_pivots(pattern, data, self.refused)
        return pattern.with_values(data)

    # sweeps

    def columns(self, F: CSR) -> Any:
        """F by columns, which Cholesky needs; those of the last pattern are kept."""
        if self._last_columns is None or self._last_columns[0] is not F.indices:
            self._last_columns = F.indices, kernels_for(F.data).pattern.columns_of(F)
        return self._last_columns[1]

    def sweep(self, B: CSR, F: CSR) -> CSR:
        """One sweep of the fixed-point iteration. An asynchronous one overwrites F's own values; a synchronous one
        computes U first, and L from the new U."""
        if self.recipe.asynchronous:
            columns = self.columns(F) if self.cholesky else None
            kernels_for(F.data).sweeps.sweep_in_place(B, F, self.refused, columns)
            return F
        return self.swept(B, F, UPPER_FIRST)

    def swept(self, B: CSR, F: CSR, parts: tuple[str, ...], squares: Any = None, damping: float = 1.0) -> CSR:
        """F after a synchronous sweep of its parts, "upper", "lower" or "whole", each of which reads the new values of
        those before it. For Cholesky the upper part is the diagonal.

        squares (n,) : out, the squares of the residual on the pattern before the sweep, a sum a row; or None.
        """
        kernels, columns = kernels_for(F.data), self.columns(F) if self.cholesky else None
        for part in parts:
            deadline.check()
            out = namespace(F.data).empty(F.nnz, F.dtype)
            kernels.sweeps.sweep(B, F, out, squares, self.refused, columns, damping, part)
            F, squares = F.with_values(out), None
        return F

    def residual(self, B: CSR, F: CSR) -> Any:
        """The squares of the residual on the pattern, a sum a row (n,), by a synchronous sweep that changes nothing."""
        xp, columns = namespace(F.data), self.columns(F) if self.cholesky else None
        out, squares = xp.empty(F.nnz, F.dtype), xp.empty(F.n, np.float64)
        kernels_for(F.data).sweeps.sweep(B, F, out, squares, copied(self.refused), columns)
        return squares

    # the report

    def report_refused(self) -> None:
        """Begin the warning of this factorization with the updates that the sweeps refused, and reset their count."""
        report, (count, row) = self.report, (int(v) for v in to_host(self.refused))
        report.refused, report.refused_row, report.warning = count, None, self._unlike or None
        if count:
            report.refused_row = row = self._row(row)
            report.warn(
                f"{counted(count, 'update was', 'updates were')} refused, the first in row {row}: a value was not "
                f"finite, or a pivot was not {'positive' if self.cholesky else 'usable'}; the values before them were "
                f"kept. Try shift=1e-2."
            )
            self.forget_refused()

    def forget_refused(self) -> None:
        self.refused = copied(self._fresh)

    def report_residual(self, residual: float) -> None:
        """Report the residual norm on the pattern, relative to the matrix, and warn if it is much worse than that of
        the first factorization."""
        self.report.pattern_residual = residual
        if self._first_residual is None:
            self._first_residual = residual
        elif not residual <= WORSE * max(self._first_residual, SMALL):
            self.report.warn(
                f"the residual norm on the pattern is {residual:.1e} after the update; it was "
                f"{self._first_residual:.1e} when A was factored. Factor A anew, or take more sweeps"
            )


def norm_squared(B: CSR, cholesky: bool) -> Any:
    """||B||_F^2 in double precision, on the host; for Cholesky, where B is a lower triangle, of both triangles."""
    xp, values = namespace(B.data), B.data.astype(np.result_type(B.dtype, np.float64), copy=False)
    squares = xp.empty(2, values.dtype)
    dot = kernels_for(values).vectors.dot  # NumPy's would wake the threads of BLAS, which stay awake
    dot(values, values, squares[:1])
    if not cholesky:
        return to_host(squares[:1])[0].real
    diagonal = kernels_for(values).vectors.gather(values, B.diag)
    dot(diagonal, diagonal, squares[1:])
    both, once = to_host(squares).real
    return 2 * both - once
