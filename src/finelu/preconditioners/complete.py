"""The libraries that make a complete L U for `SparseLU`: SciPy's SuperLU, and KLU where nbklu is installed.

Each is an object with `nnz`, the entries of L and U without the unit diagonal, and `solve(r, trans)` for r (n,) or
(n, k) on the host. Both work by columns, with 32-bit indices.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from finelu.errors import FineluError, ParameterError, SingularMatrix
from finelu.ordering import Fill
from finelu.threads import one_blas_thread

PIVOT = 0.01  # of the largest entry of its column that a diagonal entry must have to be the pivot
BLAS_SHARES = 2**14  # entries up to which BLAS has no block large enough to share out
AMD, COLUMNS, GIVEN = 0, 1, 2  # of KLU: minimum degree of A + A^T, COLAMD, the order that the columns have


class SuperLU:
    """SciPy's SuperLU; options as of `scipy.sparse.linalg.splu`. S. Li: An overview of SuperLU, 2005."""

    def __init__(self, columns: sp.csc_matrix, singular: str, **options: Any):
        """singular : what the error says where A is."""
        try:
            with self._alone(columns.nnz > BLAS_SHARES):
                self._lu: Any = splu(columns, **options)
        except RuntimeError as error:
            if "singular" not in str(error):
                raise FineluError(f"SparseLU: SuperLU gave up: {error}") from error
            raise SingularMatrix(singular) from error
        self.nnz = int(self._lu.nnz) - columns.shape[0]

    def solve(self, r: Any, trans: str) -> Any:
        with self._alone(r.ndim == 1 and self.nnz > BLAS_SHARES):
            return self._lu.solve(r, trans)

    @staticmethod
    def _alone(wanted: bool) -> Any:
        return one_blas_thread() if wanted else nullcontext()


@cache
def nbklu() -> Any:
    """The package, or None where it is not installed, or not as it is needed."""
    try:
        library = import_module("nbklu")
        return library if callable(library.KLUSolver) else None
    except (ImportError, OSError, AttributeError):
        return None


class KLU:
    """KLU, for matrices whose factors stay sparse: blocks of a triangular form, each factored column by column.

    It computes in double precision. T. A. Davis, E. Palamadai Natarajan: Algorithm 907: KLU, a direct sparse solver for
    circuit simulation problems, 2010.
    """

    def __init__(self, columns: sp.csc_matrix, ordering: int):
        """Analyse a pattern; `factor` makes the factors.

        Raises ParameterError where nbklu is not installed, SingularMatrix where the pattern is singular.
        """
        self._library = nbklu()
        if self._library is None:
            raise ParameterError(
                "backend='klu' needs nbklu, which is not installed: pip install 'finelu[direct]', or use 'superlu'."
            )
        self.ordering, self._complex = ordering, columns.dtype.kind == "c"
        self._solver = self._library.KLUSolver(index_bits=32, complex_values=self._complex, singular_as_error=True)
        weakref.finalize(self, self._solver.close).atexit = False  # which frees analysis and factors: nothing else does
        self._solver.common.ordering, self._solver.common.tol = ordering, PIVOT
        self._pattern = columns.indptr, columns.indices
        self._turns = threading.Lock()  # a solve works in memory of the factors
        n, analyse = columns.shape[0], self._solver.analyze_given if ordering == GIVEN else self._solver.analyze
        self._called("symbolic", "A is singular, as its pattern shows.", analyse, n, *self._pattern)
        found = self._solver.symbolic
        if ordering != GIVEN and found.structural_rank < n:  # with an order that is given it is not set
            raise SingularMatrix(f"A is singular: its {n} rows have structural rank {found.structural_rank}.")
        self.expected = None
        if ordering == AMD:
            self.expected = Fill(int(found.lnz + found.unz + found.nzoff) - n, float(found.est_flops))

    def holds_for(self, columns: sp.csc_matrix) -> bool:
        """Whether the analysis is one of this pattern."""
        same = zip(self._pattern, (columns.indptr, columns.indices), strict=True)
        return self._complex == (columns.dtype.kind == "c") and all(np.array_equal(a, b) for a, b in same)

    def factor(self, columns: sp.csc_matrix, singular: str) -> KLU:
        """Factor a matrix of the pattern that was analysed. singular : what the error says where A is."""
        values = columns.data.astype(np.complex128 if self._complex else np.float64, copy=False)
        with self._turns:
            self._called("numeric", singular, self._solver.factor, values)
        numeric = self._solver.numeric
        self.nnz = int(numeric.lnz + numeric.unz + numeric.nzoff) - columns.shape[0]
        return self

    def _called(self, made: str, singular: str, function: Any, *arguments: Any) -> None:
        """Call nbklu. made : the attribute that it sets.  singular : what the error says where it finds A to be."""
        try:
            function(*arguments)
        except self._library.KLUException as error:
            setattr(self._solver, made, None)  # it is null, and to free that ends the process
            if isinstance(error, self._library.KLUSingularException):
                raise SingularMatrix(singular) from error
            if isinstance(error, self._library.KLUOutOfMemoryException | self._library.KLUTooLargeException):
                raise MemoryError(f"SparseLU: KLU finds no room ({error})") from error
            raise FineluError(f"SparseLU: KLU gave up: {error}") from error

    def solve(self, r: Any, trans: str) -> Any:
        b = np.array(r.T, np.complex128 if self._complex else np.float64, order="C")  # a row for each right-hand side
        with self._turns:
            x = self._solver.solve_(b) if trans == "N" else self._solver.tsolve_(b, conj_solve=int(trans == "H"))
        return x.T.astype(r.dtype, copy=False)
