"""Convergence criteria beyond a small norm of b - A x.

A single norm over rows of very different size is dominated by the large rows: a boundary condition imposed by a penalty
of 1e12 hides every other equation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from finelu.device import namespace
from finelu.errors import ParameterError, meant
from finelu.kernels.operands import CSR
from finelu.krylov.residual import MANY, UNEVEN, Residual, largest, terms_are_even

CRITERIA = ("auto", "residual", "backward")
LIMIT = 4  # roundings of |A| |x| + |b|, up to which a residual is at the limit of the precision
SETTLED = 1e-3  # of an element of x, that a correction may change it by where x counts as known
OUTGROWN = 1e-2  # of the norm of b: rounding of |A| |x| beyond it shows an x that has grown along a null vector
# A correction aims at this part of the residual that would do if rows kept their shares of the norm: they do not quite.
AIM = 1 / 8


def criterion_asked(criterion: Any) -> str:
    """The name of the criterion, or a ParameterError."""
    if criterion in CRITERIA:
        return str(criterion)
    raise ParameterError(
        f"criterion={criterion!r}; one of {', '.join(map(repr, CRITERIA))} is needed." + meant(criterion, CRITERIA)
    )


class Criterion:
    """`criterion(b, x, tolerance)` gives b - A x and its size; x passes if that is at most `tolerance`, rtol ||b||_2.

    kind : how the size is defined:
        "residual": ||b - A x||_2.
        "auto": ||b - A x||_2. If the sums of |A| over the rows differ by more than 1e4, and the terms |A| |x| + |b|
        of the rows do, too, the size is at least ||D (b - A x)||_2 ||b||_2 / ||D b||_2, with D the reciprocals of these
        sums: an x that passes also solves the row-equilibrated system D A x = D b to rtol.
        "backward": max_i |b - A x|_i / (|A| |x| + |b|)_i times ||b||_2, the componentwise backward error of Oettli and
        Prager 1964: x solves a system whose entries differ from A's and b's by no more than rtol of each.
    residual : the `Residual` of A, for vectors like b.
    b : the right-hand side, the same in each call.
    row_sums : takes what was found of A's rows, for the criteria of other right-hand sides with the same A.

    Attributes after a call:
    norm : ||b - A x||_2.
    rows : the residual norm of the equilibrated system relative to ||D b||, or the backward error; None if neither was
        computed.
    uneven : the ratio of the largest to the smallest row sum of |A|.

    For an A without entries (a LinearOperator), and for block and stencil matrices, "auto" does not look at rows.
    Cost: that of `Residual`; if the terms of rows differ, one more pass over the entries for all calls together.
    """

    def __init__(self, kind: str, residual: Residual, b: Any, row_sums: dict[Any, Any] | None = None):
        self.kind, self.residual, self.b = kind, residual, namespace(b).ascontiguousarray(b)
        self.norm = math.inf
        self.rows: float | None = None
        self.uneven = 1.0
        self.looks_at_rows = kind == "backward"  # whether the test is more than the norm
        self._x: Any = None  # the x of the last call
        self._sizes: Any = None  # the sizes of the rows; False if they are even
        self._row_sums: dict[Any, Any] = {} if row_sums is None else row_sums
        self._of_b = self._of_scaled_b = 0.0
        self.by_rows = False  # whether the size is that of the rows by themselves
        if kind == "backward" and residual.matrix is None:
            raise ParameterError("criterion='backward' looks at the entries of A, but A is known by its products only.")

    def __call__(self, b: Any, x: Any, tolerance: float) -> tuple[Any, float]:
        r, self.norm = self.residual(b, x, tolerance)
        self.rows, self.by_rows, self._x = None, False, x
        if self.kind == "residual" or not math.isfinite(self.norm):
            return r, self.norm
        if self.kind == "backward":
            return self._backward(b, x, r, tolerance)
        if self._sizes is None and not terms_are_even(self.residual.bound, self.residual.noise):
            self._sizes = self._looked_at()
            self.looks_at_rows = self._sizes is not False
        if not self.looks_at_rows:
            return r, self.norm
        sizes = self._sizes
        ratio = self._of_scaled_b / self._of_b
        r, size = self._resolved(b, x, r, lambda v: self.residual.size(v / sizes), tolerance * ratio)
        self.rows = size / self._of_scaled_b
        self.by_rows = size / ratio > self.norm
        return r, max(self.norm, size / ratio)

    def _backward(self, b: Any, x: Any, r: Any, tolerance: float) -> tuple[Any, float]:
        xp = namespace(b)
        self._of_b = self._of_b or self.residual.size(self.b)
        if self._of_b == 0:
            return r, self.norm
        terms = self.residual.magnitudes(b, x)
        if not math.isfinite(largest(terms)):  # the backward error of such a row is unknown
            self.rows = math.inf
            return r, math.inf
        terms = xp.where(terms > 0, terms, 1)  # terms of 0 mean that the whole row is 0, and so is its residual
        r, size = self._resolved(b, x, r, lambda v: largest(abs(v) / terms), tolerance / self._of_b)
        self.rows, self.by_rows = size, True
        return r, size * self._of_b

    def _resolved(self, b: Any, x: Any, r: Any, measure: Callable[[Any], float], tolerance: float) -> tuple[Any, float]:
        """(r, measure(r)) for r = b - A x, formed in twice the precision if rounding may dominate `measure(r)`."""
        size, bound = measure(r), self._bound(b, x)
        noise = measure(bound)
        if noise > max(tolerance, size / 100):
            r, part = self.residual.twice(b, x)
            size = measure(r)
            if part * noise > tolerance:
                size = max(size, part * noise)
        return r, size

    def _bound(self, b: Any, x: Any) -> Any:
        if self.residual.bound is None:
            self.residual.bound = self.residual._rounding(b, x)[0]
        return self.residual.bound

    def _looked_at(self) -> Any:
        """The sums of |A| over the rows (the largest of them for empty rows); False if the rows are even."""
        if self.b.dtype not in self._row_sums:
            self._row_sums[self.b.dtype] = self._sums()
        sums, self.uneven = self._row_sums[self.b.dtype]
        if sums is False:
            return False
        self._of_b = self.residual.size(self.b)
        self._of_scaled_b = self.residual.size(self.b / sums)
        return sums if 0 < self._of_scaled_b < math.inf else False

    def _sums(self) -> tuple[Any, float]:
        """The sums of |A| over the rows, and the ratio of the largest to the smallest; (False, 1) if they are even."""
        matrix, xp = self.residual.matrix, namespace(self.b)
        if isinstance(matrix, CSR):
            one, none = xp.full(self.b.size, 1 / MANY, self.b.dtype), xp.zeros(self.b.size, self.b.dtype)
            sums = self.residual.magnitudes(none, one)  # the sums of A / MANY: few overflow, and only ratios matter
        elif is_array(matrix):
            sums = abs(matrix).sum(axis=1).astype(self.b.real.dtype)
        else:
            return False, 1.0
        sums = xp.where(sums > 0, sums, xp.asarray(largest(sums) or 1.0, sums.dtype))
        least, most = float(sums.min()), float(sums.max())
        return (sums, most / least) if most > UNEVEN * least and math.isfinite(most) else (False, 1.0)

    def rounding(self, b: Any, x: Any) -> float:
        """The part of the size that one rounding of |A| |x| + |b| in each row accounts for."""
        self(b, x, 0.0)
        if not self.by_rows:
            return self.residual.rounding(b, x)
        eps, terms = float(np.finfo(b.dtype).eps), self.residual.magnitudes(b, x)
        if self.kind == "backward":
            return eps * self._of_b if bool((terms > 0).any()) else 0.0
        return eps * self.residual.size(terms / self._sizes) * self._of_b / self._of_scaled_b

    def reaches(self, b: Any, x: Any, least: float) -> bool:
        """Whether `rounding` is at least that. Where the last call was for this x, its bound of the rounding mostly
        shows that it is less, without a pass over A. x must not have changed since then."""
        if self.has_seen(x) and not self.by_rows and 0 < self.residual.noise < least:
            return False
        return self.rounding(b, x) >= least

    def has_seen(self, x: Any) -> bool:
        """Whether the last call had this x."""
        return x is self._x

    def correction(self, x: Any, r: Any, size: float, tolerance: float) -> tuple[Any, float]:
        """(r, tolerance) of a system A d = r whose solution d should bring the size of b - A (x + d) below `tolerance`,
        as far as a norm can ensure that.

        r, size : the residual of x and its size, as returned by a call.
        Rows whose residual is only rounding of their terms are set to 0, since no change of x removes it, and it would
        dominate the norm.
        """
        if not self.looks_at_rows:
            return r, tolerance
        if not self.has_seen(x):
            r, size = self(self.b, x, tolerance)
        if not self.by_rows or size <= tolerance:
            return r, tolerance
        rest = namespace(r).where(abs(r) > self.residual.bound, r, 0)
        length = self.residual.size(rest)
        return (rest, length * min(1.0, tolerance / size) * AIM) if length > 0 else (r, tolerance)

    def sentence(self) -> str:
        """The result of the test by rows, in words, for `explain`; "" if there was no such test."""
        if self.rows is None:
            return ""
        if self.kind == "backward":
            return f"the componentwise backward error, max |b - A x|_i / (|A| |x| + |b|)_i, is {self.rows:.1e}"
        return (
            f"rows of A differ in size by {self.uneven:.0e}, so a second test scales them to one size: the relative "
            f"residual of the scaled system is {self.rows:.1e}, that of A x = b is {self.norm / self._of_b:.1e}"
        )


def backward_error(residual: Residual, b: Any, x: Any) -> tuple[float, Any]:
    """The componentwise backward error of x, max |b - A x|_i / (|A| |x| + |b|)_i, and b - A x, formed in twice the
    precision."""
    terms = residual.magnitudes(b, x)
    r, _ = residual.twice(b, x)
    return largest(abs(r) / namespace(b).where(terms > 0, terms, 1)), r


def settled(residual: Residual, solve: Callable[[Any], Any], b: Any, x: Any) -> float:
    """The componentwise backward error of x if x is as accurate as the precision allows; else NaN.

    x is that accurate, however large b - A x is, if both conditions hold:
    1. Each row of b - A x is only rounding of its terms.
    2. solve(b - A x), where solve(r) is about A^-1 r, changes each element of x by at most the fraction SETTLED of it.
       Without this condition an x that has grown along a null vector would pass.
    """
    error, r = backward_error(residual, b, x)
    if not error <= LIMIT * float(np.finfo(b.dtype).eps):
        return math.nan
    return error if bool((abs(solve(r)) <= SETTLED * abs(x)).all()) else math.nan


def is_array(matrix: Any) -> bool:
    """Whether it is a dense array, here or on a GPU."""
    return hasattr(matrix, "__array_interface__") or hasattr(matrix, "__cuda_array_interface__")
