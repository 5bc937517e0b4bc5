"""A x = b as SciPy's functions take it: formats, dtypes and warnings; residuals in roundings; refinement."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import SparseEfficiencyWarning, _sparsetools

from finelu.errors import MatrixError, WrongType
from finelu.factors import Columns
from finelu.kernels.operands import CSR
from finelu.matrix import as_csr
from finelu.matrix.vectors import require_no_mask
from finelu.recent import RECENT

BLOCK = 2**21  # numbers of a sparse right-hand side that are dense at a time, 16 MiB
CACHED = 2**16  # numbers of a dense one at a time, if a library solves column by column: all passes are in the cache
LARGE = 16.0  # roundings, up to which a step of refinement is made at once
NOISE = 1e3  # times n eps: the part of a row's size up to which its sum is rounding, as in the paper
STEPS = 5  # of refinement, at most: one or two are usual
MANY = 0.9  # of the stored entries: if fewer are not 0, the zeros among them are many
EPS, TINIEST = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).tiny)
_csr_products = _sparsetools.csr_matvec, _sparsetools.csr_matvecs
_csc_products = _sparsetools.csc_matvec, _sparsetools.csc_matvecs
FLOATING = "fdFD"  # the dtypes of SciPy's direct solvers; others become the first that holds all their numbers


CORRUPT = "A has row pointers or column indices that do not fit its shape; the arrays are corrupt."


class Corrupt(MatrixError):
    """Pointers or indices that do not fit the shape of A."""

    def __init__(self, text: str = CORRUPT) -> None:
        super().__init__(text)


class System:
    """A square matrix by rows or by columns, sorted, with floating-point values.

    S : the object of SciPy; it may share the caller's arrays.
    n : the number of rows.  dtype : of A as floating point.
    """

    def __init__(self, S: Any):
        self.S, self.n, self.dtype = S, S.shape[0], S.dtype

    @classmethod
    def of(cls, A: Any, converted: str, not_square: str, depth: int) -> System:
        """The system with any A that SciPy takes.

        converted, depth : as in `compressed`.
        not_square : that of the MatrixError, with {} for the shape.
        """
        A = compressed(A, converted, depth)
        if A.ndim != 2 or A.shape[0] != A.shape[1]:
            raise MatrixError(not_square.format(A.shape))
        if not A.has_canonical_format:
            A = _canonical(A)
        if A.dtype.char not in FLOATING:
            wide = next((char for char in FLOATING if np.can_cast(A.dtype, char)), None)
            if wide is None:
                raise WrongType(f"A has dtype {A.dtype}; it is solved in float32, float64, complex64 or complex128.")
            A = A.astype(wide)
        return cls(A)

    def require_indices(self) -> None:
        """A MatrixError if indices do not fit: the libraries, and SciPy's conversions, would read beyond arrays."""
        S = self.S
        starts, indices = S.indptr, S.indices
        fits = starts[0] == 0 and bool((starts[1:] >= starts[:-1]).all()) and starts[-1] <= indices.size
        if not fits or (indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < self.n):
            raise Corrupt

    @property
    def by_rows(self) -> bool:
        return bool(self.S.format == "csr")

    def in_double(self) -> Columns:
        """A in double precision, with 32-bit indices, as the columns of A; or, if A is by rows, of A^T.

        Stored zeros would fill in. They are left out if they are many; a few stay, so that the pattern does not change
        with the values.
        """
        indptr, indices = (v.astype(np.int32, copy=False) for v in (self.S.indptr, self.S.indices))
        data = self.S.data.astype(np.complex128 if self.dtype.kind == "c" else np.float64, copy=False)
        indices, data = indices[: indptr[-1]], data[: indptr[-1]]
        if np.count_nonzero(data) < MANY * data.size:
            kept = np.flatnonzero(data)
            indptr = np.searchsorted(kept, indptr).astype(np.int32)
            indices, data = indices[kept], data[kept]
        return Columns(indptr, indices, data, self.S.shape)


def compressed(A: Any, converted: str, depth: int) -> Any:
    """A as an object of SciPy, by rows or by columns.

    converted : the text of the SparseEfficiencyWarning for another format.
    depth : the number of calls from the caller of the public function to here, that one counted.
    """
    A = of_scipy(A)
    if getattr(A, "format", "") in ("csc", "csr") and sp.issparse(A):
        return A
    if hasattr(A, "matvec"):  # raises for an operator; a matrix of finelu has its entries
        A = as_csr(A, diagonal=False).tosparse()
    require_no_mask(A, "A")
    try:
        found = sp.csc_array(A)
    except (TypeError, ValueError) as error:
        raise MatrixError(f"A is a {type(A).__name__}, which is not read as a matrix: {error}") from error
    warnings.warn(converted, SparseEfficiencyWarning, stacklevel=depth)
    return found


def _canonical(A: Any) -> Any:
    """A, CSR or CSC, sorted and without duplicates, of which no array is to be written to. The order of its entries is
    kept for its pattern."""
    kind = "sorted", A.format
    known = RECENT.get(kind, A.indptr, A.indices)
    if known is None:
        places = type(A)((np.arange(A.indices.size), A.indices, A.indptr), shape=A.shape, copy=True)
        places.sort_indices()
        if places.data.size != A.data.size or not places.has_canonical_format:  # with duplicates
            S = A.copy()
            S.sum_duplicates()
            return S
        known = places.indices, places.data
        RECENT.keep(kind, A.indptr, A.indices, known, sum(part.nbytes for part in known))
    S = copy(A)  # SciPy's constructor checks the arrays once more, which takes as long as a small solve
    S.indices, S.data = known[0], A.data.take(known[1])
    S.has_canonical_format = True
    return S


def of_scipy(A: Any) -> Any:
    """A, or the object of SciPy for a sparse array of PyData and for a CSR of finelu."""
    if isinstance(A, CSR):
        return A.tosparse()
    return A.to_scipy_sparse().tocsc() if hasattr(A, "to_scipy_sparse") else A


def numbers(b: Any) -> Any:
    """b as an array. Raises MatrixError for lists of several lengths, and for masked elements."""
    require_no_mask(b, "b")
    try:
        return np.asarray(b)
    except ValueError as error:
        raise MatrixError(f"b is a {type(b).__name__}, which is not read as an array: {error}") from error


class Equation:
    """A x = b in double precision, and the error of x in each column: the largest of its rows.

    The error of a row is |b - A x|_i in roundings of its sum, (longest + 1) eps (|A| |x| + |b|)_i. A row whose sum is
    rounding itself, at most NOISE n eps s_i, may have a large error that no step of refinement makes small; so s_i is
    added to its sum, the size that the row has for the largest element of x, with all columns of A scaled to one size.
    Source: M. Arioli, J. W. Demmel, I. S. Duff: Solving sparse linear systems with sparse backward error,
    1989.

    columns, by_rows : A as in `System.in_double`.  b : (n,) or (n, k), or CSC (n, k).
    longest : the largest number of entries in a row of A.
    """

    def __init__(self, columns: Columns, by_rows: bool, b: Any, longest: int):
        self.columns, self.by_rows, self.longest, self.b = columns, by_rows, longest, b
        self._unit = (longest + 1) * EPS
        self._sizes = abs(columns.data)
        self._sizes *= self._unit
        self._add, self._add_columns = _csr_products if by_rows else _csc_products

    @property
    def finite(self) -> Any:
        """Whether all numbers of b are finite: (), or (k,) for each column."""
        nothing: Any = self.b * 0  # NaN for what is not finite
        return np.asarray(nothing.sum(axis=0)).reshape(self.b.shape[1:]) == 0

    def errors(self, x: Any, b: Any, large: float = 1.0) -> tuple[Any, Any]:
        """(errors, A x - b). The errors, () or (k,), are 1 where they are at most that, and NaN where x is not finite.

        x, b : (n,) or (n, k), in the order of C.
        large : up to that an error counts though the sum of its row may be rounding; that takes a pass over A to tell.
        Cost: two products.
        """
        r, sizes, roundings = np.negative(b), abs(x), abs(b)
        roundings *= self._unit
        roundings += TINIEST
        indptr, indices, data, (n, _) = self.columns
        if x.ndim == 1:  # SciPy's products without its checks of operands, which take as long as a small solve
            self._add(n, n, indptr, indices, data, x, r)
            self._add(n, n, indptr, indices, self._sizes, sizes, roundings)
        else:
            shape = n, n, x.shape[1]
            self._add_columns(*shape, indptr, indices, data, x.ravel(), r.ravel())
            self._add_columns(*shape, indptr, indices, self._sizes, sizes.ravel(), roundings.ravel())
        of_r = abs(r)
        fits = of_r < roundings  # not if both are Inf
        if np.count_nonzero(fits) == fits.size:  # as nearly always
            return np.ones(b.shape[1:]), r
        above, sizes = np.flatnonzero(~fits), sizes.reshape(len(b), -1)  # NaN is, too
        of_r, roundings = (v.reshape(-1)[above] for v in (of_r, roundings))
        return self._above(above, sizes, of_r, roundings, large).reshape(b.shape[1:]), r

    def _above(self, places: Any, sizes: Any, of_r: Any, roundings: Any, large: float) -> Any:
        """The errors (k,), which only elements at these places may make larger than 1.

        sizes (n, k) : of x.  of_r, roundings : of the elements at the places.
        """
        column = places % sizes.shape[1]
        errors, of_places = np.ones(sizes.shape[1]), of_r / roundings
        high = np.flatnonzero(of_places > large)
        if high.size:
            (of_rows, of_columns), found = self._scales, np.flatnonzero(np.bincount(column[high]))
            largest = np.zeros(errors.size)
            largest[found] = (sizes[:, found] * of_columns[:, None]).max(axis=0)
            whole = self._unit * of_rows[places[high] // errors.size] * largest[column[high]]
            noise = roundings[high] <= NOISE * len(sizes) * EPS * whole
            of_places[high[noise]] = of_r[high[noise]] / (roundings[high[noise]] + whole[noise])
        np.maximum.at(errors, column, of_places)
        return errors

    @cached_property
    def _scales(self) -> tuple[Any, Any]:
        """(rows, columns), both (n,): the largest entry of each column of A, of which each row is divided by its own
        largest; and the sums of the sizes in each row, each divided by that of its column."""
        sizes = abs(self.columns.data)
        largest = np.maximum(self._by_line(np.maximum, sizes, rows=True), TINIEST)
        columns = self._by_line(np.maximum, sizes / self._of_entries(largest, rows=True), rows=False)
        columns[columns == 0] = 1.0
        return self._by_line(np.add, sizes / self._of_entries(columns, rows=False), rows=True), columns

    def _by_line(self, function: Any, values: Any, *, rows: bool) -> Any:
        """function, as np.add, of the values of each row, or of each column: (n,); 0 for one without entries."""
        starts, indices = self.columns.indptr, self.columns.indices
        found = np.zeros(starts.size - 1)
        if rows != self.by_rows:
            function.at(found, indices, values)
        elif values.size:
            stored = starts[1:] > starts[:-1]
            found[stored] = function.reduceat(values, starts[:-1][stored])
        return found

    def _of_entries(self, of_lines: Any, *, rows: bool) -> Any:
        """What each entry has of its row, or of its column: (nnz,)."""
        if rows != self.by_rows:
            return of_lines[self.columns.indices]
        return np.repeat(of_lines, np.diff(self.columns.indptr))

    def refined(self, solve: Callable[[Any], Any], at_once: int | None = None) -> tuple[Any, Any]:
        """(x, errors) after steps of refinement: each column for as long as a step helps it and its error is above 1.

        solve : b -> x, approximately. A sparse b is solved by blocks of columns, and x is CSC.
        at_once : the numbers in a block of columns of a dense b; None: all.
        errors : that of each column, () or (k,), as `errors` has it.
        """
        B, is_sparse = self.b, sp.issparse(self.b)
        if not is_sparse and (B.ndim == 1 or at_once is None or B.size <= at_once):
            return self._refined(solve, B)
        found, errors = [], np.empty(B.shape[1])
        X = None if is_sparse else np.empty(B.shape, B.dtype)
        for i, end in self._blocks(BLOCK if at_once is None else at_once):
            part = B[:, i:end]
            x, errors[i:end] = self._refined(solve, part.toarray(order="F") if is_sparse else part)
            if X is None:
                found.append(sp.csc_array(x))
            else:
                X[:, i:end] = x
        return sp.hstack(found, format="csc") if X is None else X, errors

    def tested(self, x: Any) -> Any:
        """The error of each column of an x of b's shape; CSC if b is."""
        B: Any = self.b
        if not sp.issparse(self.b):
            return self.errors(np.ascontiguousarray(x), np.ascontiguousarray(B))[0]
        dense = ((x[:, i:end].toarray("C"), B[:, i:end].toarray("C")) for i, end in self._blocks(BLOCK))
        return np.concatenate([self.errors(*block)[0] for block in dense])

    def _blocks(self, numbers: int) -> list[tuple[int, int]]:
        """The columns of b that are taken at a time: from, to."""
        n, k = self.b.shape
        width = max(1, numbers // n)
        return [(i, i + width) for i in range(0, k, width)]

    def _refined(self, solve: Callable[[Any], Any], b: Any) -> tuple[Any, Any]:
        x, b = np.ascontiguousarray(solve(b)), np.ascontiguousarray(b)  # as the products take them
        found, r = self.errors(x, b, LARGE)
        if found.max() == 1:
            return x, found
        X, B, errors = x.reshape(len(b), -1), b.reshape(len(b), -1), found.reshape(-1)
        wanted = np.flatnonzero((errors > 1) & (errors < np.inf))  # no step helps a column that is not finite
        r = r.reshape(X.shape)[:, wanted]
        for _ in range(STEPS):
            if not wanted.size:
                break
            other = np.ascontiguousarray(X[:, wanted])
            other -= solve(r)
            smaller, rest = self.errors(other, np.ascontiguousarray(B[:, wanted]))
            helped = smaller < errors[wanted]
            goes_on = helped & (smaller > 1)
            if not helped.all():
                wanted, other, smaller, goes_on = wanted[helped], other[:, helped], smaller[helped], goes_on[helped]
                rest = rest[:, helped]
            X[:, wanted], errors[wanted] = other, smaller
            wanted, r = wanted[goes_on], rest[:, goes_on]
        return x, found

    def dense(self) -> Any:
        """The matrix of `columns` (n, n), stored by columns as LAPACK takes it."""
        n, found = self.columns.shape[0], np.zeros(self.columns.shape, self.columns.dtype)
        _sparsetools.csr_todense(n, n, self.columns.indptr, self.columns.indices, self.columns.data, found)
        return found.T


def longest_row(columns: Columns, by_rows: bool) -> int:
    """The largest number of entries in a row of A, which is a column of `columns` if A is by rows."""
    indptr, indices = columns.indptr, columns.indices
    return int(((indptr[1:] - indptr[:-1]) if by_rows else np.bincount(indices, minlength=1)).max())
