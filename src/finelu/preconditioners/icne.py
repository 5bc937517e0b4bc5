"""ICNE: incomplete Cholesky of the normal equations, a preconditioner for least squares.

N. Gould, J. Scott: The state-of-the-art of preconditioners for sparse linear least-squares problems, 2017, where
such factors are the best of nine kinds (RIF and incomplete QR among them); by threshold as in M. T. Jones,
P. E. Plassmann: An improved incomplete Cholesky factorization, 1995.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu import deadline
from finelu.device import namespace, on_gpu, require_one_device, to_host
from finelu.errors import MatrixError, ZeroPivot, counted
from finelu.factors import Arrangement, CholeskyFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import as_csr, lower_triangle
from finelu.matrix.rectangular import as_rows, scaled
from finelu.matrix.traits import dense_row
from finelu.matrix.vectors import times_power
from finelu.ordering import amd
from finelu.preconditioners.recipe import Recipe
from finelu.preconditioners.threshold import (
    FIRST,
    LARGEST,
    Attempt,
    Threshold,
    ThresholdReport,
    Trial,
    row_norms,
)
from finelu.validation import choice, number

ORDERINGS = ("degree", "amd", None)
FILL = 10.0  # times the root of the columns over the entries of A: the default of `fill`
AT_ONCE = 2**22  # products of entries that are formed together
COARSER = 4.0  # times by which drop_tol grows until the factor fits
COARSEST = 1.0  # a drop_tol beyond which L is diagonal
LIFT, LIFTED = 1e-3, 4.0  # the shift after a bad pivot, and times by which it grows after another
LARGEST_LIFT = 1e4  # beyond it L is nearly diagonal, and a bad pivot has another cause


@dataclass(frozen=True, kw_only=True, repr=False)
class ICNE(Recipe):
    """Incomplete Cholesky of the normal equations of A (m, n): L L^H is about D (A^H A + damp^2 I) D, permuted.

    The factors are M for `lsmr`, `lsqr` and `cgls`: R = L^H P D^-1 is a right preconditioner of A. D makes the columns
    of [A; damp I] unit vectors. A^H A is formed by parts of its rows, and only its lower triangle is kept.
    drop_tol : an entry of column j of L is dropped if |l_ij| l_jj is at most drop_tol times the 2-norm of column j of
        the scaled A^H A. 0 drops none.
    fill : the most entries of the lower triangle of A^H A, and of L, for each entry of A. If A^H A has more, its
        smallest entries are left out; if L has more, drop_tol is raised by factors of 4. None: 10 (n / nnz)^(1/2), with
        which L takes some hundred products for each entry of A. float("inf"): no limit.
    damp : as that of the method.
    shift : is added to the unit diagonal of the scaled matrix; None: eps^(2/3), so that dependent columns of A have
        pivots. After a bad pivot, 1e-3, 4e-3, ... are tried; the report has the shift that was needed.
    ordering : "degree" takes columns of A first whose rows of A^H A have few entries, in their own order where these
        numbers differ by less than a factor of 4: levels of a factor before those of one with longer columns. "amd"
        is an approximate minimum degree, which fills in less, but may take longer than all else. None keeps the order.
    triangular, sweeps : as in ILU0.
    Rows of A with more than 10 sqrt(n) entries (and more than 16) are left out, since they would make A^H A dense; each
    costs the method an iteration or two. The report has their number.
    Memory: at most 2 fill entries for each of A, and some 4 million more while A^H A is formed. Cost: a product for
    each pair of entries of a row of A; sequential on the CPU. On a GPU L is computed there, A^H A on the host.
    """

    normal = hermitian = keeps_symmetry = keeps_definite = True

    drop_tol: float = 1e-3
    fill: float | None = None
    damp: float = 0.0
    shift: float | None = None
    ordering: str | None = "degree"
    triangular: str = "auto"
    sweeps: int | None = None

    @property
    def nnz(self) -> None:
        """No wanted number of entries, which `Threshold` asks for."""
        return None

    def check(self) -> None:
        number("drop_tol", self.drop_tol, of=self)
        number("fill", 1.0 if self.fill is None else self.fill, open_low=True, infinite=True, of=self)
        number("damp", self.damp, of=self)
        number("shift", self.shift or 0.0, of=self)
        choice("ordering", self.ordering, ORDERINGS, of=self)

    def factor(self, A: Any) -> NormalFactors:
        """Factor A (m, n), m and n of any size, anything that `finelu.lsmr` takes but an operator. A is not written.

        Raises MatrixError for an A that `lsmr` refuses.
        """
        return self._factored(as_rows(A), None)

    def _factored(self, given: Any, order: Any) -> NormalFactors:
        """`factor` for A by rows.  order (n,) : of the columns, on the host; None: by `ordering`."""
        S = to_host(given)
        fill = FILL * math.sqrt(S.shape[1] / max(S.nnz, 1)) if self.fill is None else self.fill
        most = math.inf if math.isinf(fill) else fill * S.nnz + S.shape[1]
        normal = normal_equations(S, self.damp, most)
        order = _order(normal.matrix, self.ordering) if order is None else order
        C = as_csr(normal.matrix.tosparse()[order][:, order])
        order, scale = order.astype(C.indices.dtype), normal.scale[order]
        if on_gpu(given.data):
            xp = namespace(given.data)
            C, order, scale = C.on(xp), xp.asarray(order), xp.asarray(scale)
        recipe, numeric, triangles = self._eliminated(C, most)
        report = NormalReport(**vars(numeric.report))
        report.shift, report.dense_rows, report.left_out = recipe.shift, normal.dense_rows, normal.left_out
        numeric.report = report
        if normal.empty:
            rows = ", dense rows aside" if normal.dense_rows else ""
            report.warn(f"{counted(normal.empty, 'column')} of A {'is' if normal.empty == 1 else 'are'} 0{rows}")
        arranged = Arrangement(order, order, scale, scale)
        return NormalFactors(self, C, numeric, triangles, sweeps=self.sweeps, arranged=arranged)

    def _eliminated(self, C: CSR, most: float) -> tuple[ICNE, Threshold, CSR]:
        """The recipe with the shift that was needed, and the factor of C, which has a unit diagonal."""
        shift = float(np.finfo(C.dtype).eps) ** (2 / 3) if self.shift is None else self.shift
        while True:
            recipe = replace(self, shift=shift)
            numeric = Threshold(recipe, _runs, partial(_first_that_fits, most))
            try:
                return recipe, numeric, numeric.factorize(C)
            except ZeroPivot:
                if shift >= LARGEST_LIFT:
                    raise
                shift = LIFT if shift < LIFT else LIFTED * shift


@dataclass(eq=False, repr=False)
class NormalReport(ThresholdReport):
    """shift : that was added to the unit diagonal.
    dense_rows : rows of A that were left out.  left_out : entries of the lower triangle of A^H A that were.
    """

    shift: float | None = None
    dense_rows: int | None = None
    left_out: int | None = None


class NormalFactors(CholeskyFactors):
    """M of `ICNE`: P^T D^-1 L L^H D^-1 P, about A^H A + damp^2 I (n, n)."""

    def update(self, A: Any, f: Any = None) -> NormalFactors:
        """Factor another matrix with as many columns, in the same order of these. Returns self.

        Only the order is kept, so A may have other rows and entries. f : as in `Factors.update`.
        Raises MatrixError for other numbers of columns, and for a complex A if the factors are real; what `factor`
        raises. The old factors stay valid then. Cost: that of `ICNE.factor` without the order.
        """
        if f is not None:
            self._require_point(A, f)
            return self
        given = as_rows(A)
        require_one_device(given.data, self.pattern.data, "A and the factors")
        if given.shape[1] != self.shape[1]:
            raise MatrixError(f"update was given {given.shape[1]} columns, but the factors have {self.shape[1]}.")
        if given.dtype.kind == "c" and self.dtype.kind != "c":
            raise MatrixError(
                f"update was given {given.dtype} values, but the factors are {self.dtype}. Factor A anew."
            )
        assert self._arranged is not None
        with self._lock:
            made = self.recipe._factored(as_rows(given, self.dtype), to_host(self._arranged.rows))
            self.__dict__ = vars(made) | {"_lock": self._lock, "updates": self.updates + 1}
        return self


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """D (A^H A + damp^2 I) D, whose diagonal is 1, on the host.

    matrix : (n, n).  scale (n,) : the diagonal of D.
    dense_rows : rows of A that were left out.  left_out : entries of A^H A that were.  empty : columns of A without an
    entry other than 0; their D_jj is 1.
    """

    matrix: CSR
    scale: Any
    dense_rows: int
    left_out: int
    empty: int


def normal_equations(S: Any, damp: float, most: float) -> NormalEquations:
    """S : (m, n) scipy.sparse CSR.  most : the largest number of entries of the lower triangle that are kept."""
    n = S.shape[1]
    dense = np.diff(S.indptr) > dense_row(n)
    S = S[~dense] if dense.any() else S
    S, damp, power = scaled(S, damp)
    squares = np.bincount(S.indices, abs(S.data).astype(np.float64) ** 2, n) + damp**2
    empty = squares == 0
    scale = (1 / np.sqrt(np.where(empty, 1.0, squares))).astype(S.data.real.dtype)
    unit = sp.csr_matrix((S.data * scale[S.indices], S.indices, S.indptr), shape=S.shape)
    rows, columns, values, left_out = _lower_triangle(unit, most - n)
    diagonal = np.arange(n)
    entries = np.concatenate([values, values.conj(), np.ones(n, values.dtype)])
    places = np.concatenate([rows, columns, diagonal]), np.concatenate([columns, rows, diagonal])
    matrix = as_csr(sp.csr_matrix((entries, places), shape=(n, n)))
    return NormalEquations(matrix, times_power(scale, -power), int(dense.sum()), left_out, int(empty.sum()))


def _lower_triangle(S: Any, most: float) -> tuple[Any, Any, Any, int]:
    """Rows, columns and values of S^H S below its diagonal, the largest `most`, and the number of those left out.

    A few million products are formed together. If more than `most` entries are kept, the smaller half of these goes;
    of equal ones the later.
    """
    adjoint = S.conj().T.tocsr()
    ones = sp.csr_matrix((np.ones(adjoint.nnz), adjoint.indices, adjoint.indptr), shape=adjoint.shape)
    work = np.cumsum(ones @ np.diff(S.indptr).astype(np.float64))
    kept: list[Any] = []
    first = count = left_out = 0
    least = 0.0  # the largest magnitude among those left out
    while first < work.size:
        deadline.check()
        limit = AT_ONCE + (work[first - 1] if first else 0.0)
        last = max(int(np.searchsorted(work, limit, side="right")), first + 1)
        part = sp.tril(adjoint[first:last] @ S, first - 1)
        part, left = _larger((part.row + first, part.col, part.data), least)
        kept.append(part)
        count, left_out, first = count + part[2].size, left_out + left, last
        if count > most:
            sizes = np.concatenate([abs(values) for _, _, values in kept])
            place = count - 1 - int(most) // 2
            least = float(np.partition(sizes, place)[place])
            equal = np.flatnonzero(sizes == least)[: int(most) // 2 - int((sizes > least).sum())]  # that have room
            chosen = sizes > least
            chosen[equal] = True
            entries = (np.concatenate(arrays)[chosen] for arrays in zip(*kept, strict=True))
            kept, count, left_out = [tuple(entries)], int(chosen.sum()), left_out + int((~chosen).sum())
    rows, columns, values = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    return rows, columns, values, left_out


def _larger(entries: tuple[Any, Any, Any], least: float) -> tuple[tuple[Any, Any, Any], int]:
    """The entries (rows, columns, values) above `least` in magnitude, and the number of the others."""
    rows, columns, values = entries
    if least == 0:
        return entries, 0
    larger = abs(values) > least
    return (rows[larger], columns[larger], values[larger]), values.size - int(larger.sum())


def _order(C: CSR, ordering: str | None) -> Any:
    """The order (n,) of the columns, on the host."""
    if ordering == "amd":
        return amd(C)
    if ordering == "degree":
        return np.argsort(np.log2(np.diff(C.indptr)) // 2, kind="stable")
    return np.arange(C.n)


def _runs(recipe: ICNE, C: CSR) -> Callable[[float, int], Any]:
    """See `Threshold`."""
    kernels, norms = kernels_for(C.data), row_norms(C)
    L = lower_triangle(C)[0] if on_gpu(C.data) else C  # the CPU's kernel reads the lower triangle inside of C
    return lambda drop_tol, most: kernels.threshold.ict(L, drop_tol * norms, math.inf, most)


def _first_that_fits(most: float, recipe: ICNE, trial: Trial, guess: float) -> tuple[Attempt, int]:
    """The first attempt with drop_tol, COARSER times that, ... whose L has at most `most` entries; and their number."""
    drop_tol, tried = recipe.drop_tol, 1
    while True:
        made = trial(drop_tol, LARGEST if math.isinf(most) else 2 * int(most))
        if made.good or made.broken or drop_tol > COARSEST:
            return made, tried
        drop_tol, tried = max(COARSER * drop_tol, FIRST), tried + 1
