"""ParILU and ParIC: incomplete factorizations on a given pattern, found by fixed-point sweeps.

E. Chow, A. Patel: Fine-grained parallel incomplete LU factorization, 2015; as H. Anzt, E. Chow, J. Dongarra: ParILUT -
a new parallel threshold ILU factorization, 2018, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace, to_host
from finelu.errors import ParameterError
from finelu.factors import CholeskyFactors, LUFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.preconditioners.fixed_point import (
    UPPER_FIRST,
    FixedPoint,
    SweepReport,
    check_fixed_point,
    checked_fixed_point,
    norm_squared,
)
from finelu.preconditioners.recipe import Recipe
from finelu.validation import STORED, choice, count, flag, number

PIVOTS = ("new", "old")
RETRIES = 4  # each with half the damping factor


@dataclass(frozen=True, kw_only=True, repr=False)
class _OnPattern(Recipe):
    """The parameters of ParILU and ParIC."""

    precisions = STORED

    sweeps: int = 5
    asynchronous: bool = False
    level: int = 0
    damping: float = 1.0
    track: bool = False
    pivots: str = "old"
    ordering: str | None = None
    scale: bool = True
    shift: float = 0.0
    triangular: str = "auto"
    triangular_sweeps: int | None = None
    precision: str | None = None

    def check(self) -> None:
        super().check()
        check_fixed_point(self)
        count("sweeps", self.sweeps, 0, of=self)
        count("level", self.level, 0, of=self)
        number("damping", self.damping, 0, 1, open_low=True, of=self)
        flag("track", self.track, of=self)
        flag("asynchronous", self.asynchronous, of=self)
        choice("pivots", self.pivots, PIVOTS, of=self)
        if self.asynchronous and (self.track or self.damping != 1 or self.pivots != "old"):
            raise ParameterError(
                f"{self!r}: track, damping and pivots are for synchronous sweeps; leave them or asynchronous out."
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class ParILU(_OnPattern):
    """Incomplete LU on a given pattern by fixed-point sweeps: towards (L U)_ij = A_ij on it; L has a unit diagonal.

    sweeps : number of sweeps of the fixed-point iteration. Each makes the values of one more level of the dependency
        graph exact, and improves the others.
    asynchronous : a sweep reads the newest values. It converges in fewer sweeps, on one thread in a single one, but the
        result depends on the timing; synchronous sweeps give the same bits in every run. damping, track and pivots are
        for synchronous sweeps only.
    level : the pattern is that of ILU(level); 0 is A's own.
    damping : factor of each update, 0 < damping <= 1. If the residual on the pattern has grown over the sweeps, they
        are repeated with half the damping, up to four times; the report says so.
    track : whether the report has the residual norm ||A - L U||_F on the pattern, of the scaled matrix, after each
        sweep. Otherwise it has the norms before the first and after the last sweep; the latter takes one more pass.
    pivots : "old": a sweep computes l_ij from the old U, as in 2015. "new": it computes U first, and l_ij from the new
        U and its pivots (of Cholesky: from the new pivots). This takes fewer sweeps for the same residual, but a sweep
        takes longer.
    ordering : "rcm" orders A by reverse Cuthill-McKee first. None keeps the order; only for level > 0 dense rows that
        would fill in are moved to the end, see `finelu.ordering.dense_last`.
    scale : symmetric scaling to a unit diagonal, undone in the factors. Residuals are those of the scaled matrix; the
        factors depend on the scaling only by rounding.
    shift, triangular, precision : as in ILU0.
    triangular_sweeps : the parameter `sweeps` of ILU0.
    Cost: for each entry (i, k) below the diagonal the length of row k of U, per sweep; no dependencies.
    """

    def factor(self, A: Any) -> LUFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError if A has no full diagonal; ZeroPivot, naming the row, if a diagonal entry is zero. Updates
        that would not be finite are refused and counted in the report.
        """
        A = checked_fixed_point(self, A)
        numeric = _Sweeps(self, A)
        return LUFactors(
            self, A, numeric, numeric.factorize(A), sweeps=self.triangular_sweeps, arranged=numeric.arranged
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ParIC(_OnPattern):
    """Incomplete Cholesky on a given pattern by fixed-point sweeps: towards (L L^H)_ij = A_ij on it.

    A is Hermitian; see IC0. Parameters as in ParILU. A sweep renews the values of one triangle only.
    """

    hermitian = keeps_symmetry = keeps_definite = True

    def factor(self, A: Any) -> CholeskyFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError if A has no full diagonal or is not Hermitian; ZeroPivot, naming the row, if a diagonal entry
        is not positive. Updates that would not be finite, and pivots that would not be positive, are refused and
        counted in the report.
        """
        A = checked_fixed_point(self, A)
        numeric = _Sweeps(self, A)
        return CholeskyFactors(
            self, A, numeric, numeric.factorize(A), sweeps=self.triangular_sweeps, arranged=numeric.arranged
        )


@dataclass(eq=False, repr=False)
class _PatternReport(SweepReport):
    """sweeps : their number.
    damping : the last one tried. 0, with a warning: the residual grew with every damping, so that the factors are the
        initial values, those of A.
    residual_norms : relative to the Frobenius norm of the scaled matrix.
    """

    sweeps: int | None = None
    damping: float | None = None
    residual_norms: list[float] | None = None


class _Sweeps(FixedPoint):
    """The pattern is found once and kept by `update`, whose result is that of a fresh factorization."""

    report: _PatternReport
    _start: CSR | None = None
    _places: Any = None

    def __init__(self, recipe: _OnPattern, A: CSR):
        report = _PatternReport(variant="asynchronous" if recipe.asynchronous else "synchronous")
        super().__init__(recipe, A, report, fills=recipe.level > 0)

    def factorize(self, A: CSR) -> CSR:
        start = perf_counter()
        recipe, report = self.recipe, self.report
        report.pattern_residual = None
        B, d = self.scaled(A)
        if self._start is None:
            self._start, self._places = self.pattern(B, recipe.level)
        damping = recipe.damping
        for _ in range(RETRIES + 1):
            self.forget_refused()
            initial = self.initial(self._start, self._places, B)
            F, norms = self._swept(B, initial, damping)
            # the residual may oscillate, between L and U
            if len(norms) < 2 or (min(norms[1:][-2:]) <= norms[0] and np.isfinite(norms[-1])):
                break
            damping /= 2
        else:
            F, norms, damping = initial, norms[:1], 0.0  # the initial values are better than all that were found
            self.forget_refused()
        report.sweeps, report.damping = recipe.sweeps, damping
        report.residual_norms = norms if recipe.track or len(norms) < 3 else [norms[0], norms[-1]]
        self.report_refused()
        if damping == 0:
            report.warn(
                f"the residual grew over the sweeps, with damping={recipe.damping / 2**RETRIES:g} too; the "
                "initial values were taken. Try shift=1e-2, ordering='rcm', more sweeps, or another recipe."
            )
        if norms:
            self.report_residual(norms[-1])
        elif recipe.asynchronous:
            self.report_residual(float(to_host(self.residual(B, F).sum()) / norm_squared(B, self.cholesky)) ** 0.5)
        factors = self.finished(F, d)
        report.numeric_seconds = perf_counter() - start
        return factors

    def _swept(self, B: CSR, F: CSR, damping: float) -> tuple[CSR, list[float]]:
        """F after the sweeps, and the residual norms on the pattern before each and after the last."""
        recipe, xp, kernels = self.recipe, namespace(B.data), kernels_for(B.data)
        number = recipe.sweeps
        if recipe.asynchronous:
            for _ in range(number):
                F = self.sweep(B, F)
            return F, []
        squares = xp.empty((number + 1, F.n), np.float64)  # before each sweep, and after the last
        if recipe.pivots == "old":
            columns = self.columns(F) if self.cholesky else None
            F = F.with_values(kernels.sweeps.sweeps(B, F, number, squares, self.refused, columns, damping))
        else:
            for sums in squares[:number]:
                F = self.swept(B, F, UPPER_FIRST, sums, damping)
        squares[number] = self.residual(B, F)
        norms = np.sqrt(to_host(squares.sum(axis=1)) / norm_squared(B, self.cholesky))
        return F, [float(v) for v in norms]
