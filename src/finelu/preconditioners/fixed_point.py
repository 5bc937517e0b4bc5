"""What ParILU, ParIC, ParILUT and ParICT have in common: factors of the scaled and ordered matrix, found by sweeps.

H. Anzt, E. Chow, J. Dongarra: ParILUT - a new parallel threshold ILU factorization, 2018, section 2;
E. Chow, A. Patel: Fine-grained parallel incomplete LU factorization, 2015.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.device import namespace, to_host
from finelu.errors import ParameterError, ZeroPivot, meant
from finelu.factors import TriangularFactors, checked, shifted
from finelu.kernels import kernels_for
from finelu.matrix import CSR, is_number, lower_triangle
from finelu.matrix.traits import require_hermitian
from finelu.ordering import ORDERINGS, hermitian_pattern, permutation
from finelu.preconditioners.iluk import pattern_of
from finelu.preconditioners.threshold import Chosen

PIVOTS = ("new", "old")
WORSE, SMALL = 10.0, 1e-3  # times the first residual on the pattern, or this, if larger: then an update warns
NOBODY = 2**62  # the row that `refused` names while nothing was refused


def checked_fixed_point(recipe, A) -> CSR:
    """As `checked`, and what these recipes have besides."""
    if recipe.ordering not in ORDERINGS:
        raise ParameterError(
            f"{recipe!r}: ordering must be one of {', '.join(map(repr, ORDERINGS))}."
            + meant(recipe.ordering, ORDERINGS)
        )
    if recipe.pivots not in PIVOTS:
        raise ParameterError(f"{recipe!r}: pivots must be one of {', '.join(PIVOTS)}." + meant(recipe.pivots, PIVOTS))
    for name in ("asynchronous", "scale"):
        if not isinstance(getattr(recipe, name), bool):
            raise ParameterError(f"{recipe!r}: {name} must be True or False.")
    if recipe.asynchronous and recipe.pivots != "old":
        raise ParameterError(f"{recipe!r}: asynchronous sweeps divide by the pivot that is there; leave pivots out.")
    return checked(recipe, A)


def whole_number(recipe, name: str, least: int) -> None:
    """A ParameterError unless the parameter is an integer that is at least `least`."""
    value = getattr(recipe, name)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{recipe!r}: {name} must be an integer >= {least}.")


def fraction(recipe, name: str, low: float, high: float, *, open_low: bool = False) -> None:
    """A ParameterError unless the parameter is a number from low to high."""
    value = getattr(recipe, name)
    good = is_number(value) and low <= value <= high
    if not good or (open_low and value == low):
        wanted = f"> {low:g} and <= {high:g}" if open_low else f"from {low:g} to {high:g}"
        raise ParameterError(f"{recipe!r}: {name} must be a number {wanted}.")


class FixedPointFactors(TriangularFactors):
    """Factors of B = D P A P^T D, D such that B has a unit diagonal, applied as those of A.

    L and U are those of P A P^T: the scaling is undone in the values, the permutation (`permutation` (n,), or None) is
    part of `solve`. Subclasses give `_factorize`; of Cholesky (`cholesky`) B is the lower triangle.
    """

    cholesky = False
    permutation: Any = None
    _unlike = ""  # what `require_hermitian` warns of
    _diagonal: Any = None  # of D, whether it is used or not
    _first_residual: float | None = None
    _last_columns: tuple[Any, Any] | None = None  # the column indices of a pattern, and the pattern by columns

    def __init__(self, recipe, A: CSR):
        TriangularFactors.__init__(self, recipe, A)
        self._half = lower_triangle(A) if self.cholesky else None
        lower = A if self._half is None else self._half[0]
        self._permuted = permutation(lower, recipe.ordering, hermitian=self.cholesky)
        if self._permuted is not None:
            self.permutation = self._permuted.order
        self._fresh = namespace(A.data).array([0, NOBODY], np.int64)
        self._refused = self._fresh.copy()
        self._refresh(A)

    # B, and from its factors to those of A

    def _scaled(self, A: CSR) -> tuple[CSR, Any]:
        """B, and the diagonal d (n,) of D (None without scaling)."""
        self._unlike = require_hermitian(self.recipe, A) if self.cholesky else ""
        xp = namespace(A.data)
        B = A.with_values(shifted(A, self.recipe.shift))
        if self._half is not None:
            lower, places = self._half
            B = lower.with_values(B.data[places])
        if self._permuted is not None:
            B = self._permuted.matrix(B)
        d, at, self._plain = kernels_for(B.data).scaling.pivots(B, self.cholesky)
        if at >= 0:
            what = "is not a positive number" if self.cholesky else "is zero or not finite"
            raise ZeroPivot(self.recipe, self._row(at), B.data[int(B.diag[at])], what)
        self._diagonal = d
        d = d if self.recipe.scale else None
        if d is not None:
            B = B.with_values(kernels_for(B.data).scaling.scale(B, xp.empty_like(B.data), (d, d), (d, d)))
        return B, d

    def _row(self, i: int) -> int:
        """The row of A that is row i of P A P^T."""
        return i if self.permutation is None else int(self.permutation[i])

    def _unscaled(self, F: CSR, d) -> CSR:
        """The factors of P A P^T from those of B."""
        if d is None:
            return F
        e = 1 / d
        below, above = ((e, None), (e, None)) if self.cholesky else ((e, d), (e, e))
        return F.with_values(kernels_for(F.data).scaling.scale(F, namespace(F.data).empty_like(F.data), below, above))

    def _rescaled(self, F: CSR, d) -> CSR:
        """The factors of B from those of P A P^T."""
        if d is None:
            return F.with_values(F.data.copy())
        e = 1 / d
        below, above = ((d, None), (d, None)) if self.cholesky else ((d, e), (d, d))
        return F.with_values(kernels_for(F.data).scaling.scale(F, namespace(F.data).empty_like(F.data), below, above))

    def _set(self, F: CSR, d) -> None:
        """Take the factors of B; the triangular solves are analysed anew where the pattern is another.

        Raises ZeroPivot where they cannot be applied: sweeps keep no value that is not finite, but A may be so badly
        scaled that B, or what the scaling is undone in, overflows.
        """
        factors, xp = self._unscaled(F, d), namespace(F.data)
        i = kernels_for(F.data).scaling.first_unusable(factors)
        if i >= 0:
            pivot = factors.data[int(F.diag[i])]
            good = bool(xp.isfinite(pivot)) and bool(pivot != 0)
            what = "has an entry beside it that is not finite" if good else "is zero or not finite"
            raise ZeroPivot(self.recipe, self._row(i), pivot, what)
        if not hasattr(self, "_triangles") or factors.indices is not self._triangles.indices:
            self._solvers = {}
        self._triangles = factors

    # the pattern to begin with

    def _pattern(self, B: CSR, level: int) -> tuple[CSR, Any]:
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

    def _initial(self, pattern: CSR, places, B: CSR) -> CSR:
        """The values of B on the pattern, 0 where B has none: the initial L and U (2018, section 3.2).

        What is below the diagonal is divided by the pivot of its column, and of Cholesky by its root: if they are not
        one, negative and complex ones for instance, B itself is far from L.
        """
        xp = namespace(B.data)
        data = B.data.copy() if places is None else xp.zeros(pattern.nnz, B.dtype)
        if places is not None:
            data[places] = B.data
        if not self.recipe.scale or not self._plain:
            ones = data.copy()
            ones[pattern.diag] = 1
            if self.cholesky:
                data[pattern.diag] = xp.sqrt(B.data[B.diag].real)
            kernels_for(data).scaling.use_new_pivots(pattern.with_values(ones), data, self._refused)
        return pattern.with_values(data)

    # sweeps

    @staticmethod
    def _norm_squared(B: CSR):
        """||B||_F^2 in double precision, on its device; of Cholesky of the lower triangle, as residual norms are."""
        values = B.data.astype(np.result_type(B.dtype, np.float64), copy=False)
        return namespace(values).vdot(values, values).real

    def _columns(self, F: CSR):
        """F by columns, for Cholesky; those of the last pattern are kept."""
        if not self.cholesky:
            return None
        if self._last_columns is None or self._last_columns[0] is not F.indices:
            self._last_columns = F.indices, kernels_for(F.data).pattern.columns_of(F)
        return self._last_columns[1]

    def _sweep(self, B: CSR, F: CSR, columns, squares=None, damping: float = 1.0) -> CSR:
        """One sweep of the fixed-point iteration; F's own values are overwritten if it is asynchronous."""
        kernels = kernels_for(F.data)
        if self.recipe.asynchronous:
            kernels.sweeps.sweep_in_place(B, F, self._refused, columns)
            return F
        out = kernels.memory.empty(F.nnz, F.dtype)
        kernels.sweeps.sweep(B, F, out, squares, self._refused, columns, damping)
        if self.recipe.pivots == "new" and damping == 1:
            kernels.scaling.use_new_pivots(F, out, self._refused)
        return F.with_values(out)

    def _residual(self, B: CSR, F: CSR, columns):
        """The squares of the residual on the pattern, a sum a row (n,), by a synchronous sweep that changes nothing."""
        kernels, squares = kernels_for(F.data), namespace(F.data).empty(F.n, np.float64)
        kernels.sweeps.sweep(B, F, kernels.memory.empty(F.nnz, F.dtype), squares, self._refused.copy(), columns)
        return squares

    def _count_refused(self) -> None:
        """Report what the sweeps refused since the last time, and forget it."""
        count, row = (int(v) for v in to_host(self._refused))
        self.report["refused"] = count
        self.report.pop("refused_row", None)
        self.report.pop("warning", None)
        if self._unlike:
            self._warn(self._unlike)
        if count:
            self.report["refused_row"] = row = self._row(row)
            self._warn(
                f"{count} updates were refused, the first in row {row}: they were not finite, or a pivot was not "
                f"{'positive' if self.cholesky else 'usable'}; the values before them were kept. Try shift=1e-2."
            )
            self._forget_refused()

    def _compare(self, residual: float) -> None:
        """Report the residual norm on the pattern, relative to the matrix, and warn where it is much worse than that of
        the first factorization."""
        self.report["pattern_residual"] = residual
        if self._first_residual is None:
            self._first_residual = residual
        elif not residual <= WORSE * max(self._first_residual, SMALL):
            self._warn(
                f"the residual norm on the pattern is {residual:.1e} after the update; it was "
                f"{self._first_residual:.1e} when A was factored. Factor A anew, or take more sweeps"
            )

    def _forget_refused(self) -> None:
        self._refused = self._fresh.copy()

    # TriangularFactors

    def _analyse(self, once: bool):
        return Chosen("asynchronous" if self.recipe.asynchronous else "synchronous")

    def _apply(self, R, trans: str):
        if self._permuted is None:
            return super()._apply(R, trans)
        return super()._apply(R[self._permuted.order], trans)[self._permuted.inverse]

    @property
    def _triangular_sweeps(self) -> int | None:
        return self.recipe.triangular_sweeps

    @property
    def nnz(self) -> int:
        return self._triangles.nnz
