"""The libraries that make a complete L U, or L D L^T, for `SparseLU`: SciPy's SuperLU; KLU where nbklu is installed,
feral where feral-solver is; `pardiso` has one more, and `cudss` the one that works on a GPU.

Each makes an object with `nnz`, the entries of the factors without a unit diagonal, and `solve(r, trans)` for r (n,) or
(n, k) on the host. All work by columns. Those that can be missing analyse a pattern first: `name`, `how` (what
they were made with, after the matrix), `expected` (the fill, or None), `symmetric` (whether they read one triangle),
`holds_for(columns)`, and `factor(columns, singular)`, which may come again. `replaced` counts pivots that are not A's.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from finelu import deadline, foreign
from finelu.errors import FineluError, OutOfTime, ParameterError, SingularMatrix
from finelu.foreign import Owner, require_time
from finelu.kernels.operands import CSR
from finelu.ordering import Fill
from finelu.threads import get_num_threads, one_blas_thread

PIVOT = 0.01  # of the largest entry of its column that a diagonal entry must have to be the pivot
BLAS_SHARES = 2**14  # entries up to which BLAS has no block large enough to share out
ALIKE = 32  # roundings by which the two entries of a symmetric matrix may differ where one of them is left out
LONG_WORK = 1e7  # flops from which on a factorization can be left, which takes 0.1 ms; as many as a core does in 3 ms
LONG_ENTRIES = 10_000  # of A, likewise, where the work is not counted
KLU_RATE = 2e9  # flops a second that KLU reaches where it is fast: many matrices take up to four times as long
KLU_ENTRY = 200.0  # flops that take as long, at this rate, as KLU takes to analyse an entry
_lock = threading.Lock()
AMD, COLUMNS, GIVEN = 0, 1, 2  # of KLU: minimum degree of A + A^T, COLAMD, the order that the columns have
NO_SCALE = 0  # of KLU: rows divided by their largest entries would let it take pivots that are small in their columns


class SuperLU:
    """SciPy's SuperLU; options as in `scipy.sparse.linalg.splu`. S. Li: An overview of SuperLU, 2005.

    SciPy gives the memory of factors back on the thread alone that has made them.
    """

    replaced = 0

    def __init__(self, columns: sp.csc_matrix, singular: str, work: float | None = None, **options: Any):
        """singular : what the error says where A is.  work : flops that are expected, None where they are not counted.

        Raises OutOfTime where the time of the caller is over, or too short for it."""
        require_time(work or 0.0)
        self._made: list[Any] = []
        try:
            if foreign.heard() and (columns.nnz > LONG_ENTRIES if work is None else work > LONG_WORK):
                with foreign.lent() as owner:
                    self._made = owner.box()
                    weakref.finalize(self, owner.drop, self._made).atexit = False
                    owner.call(self._make, self._made, columns, options)
            else:
                self._make(self._made, columns, options)
        except RecursionError:
            raise
        except RuntimeError as error:
            if "singular" not in str(error):
                raise FineluError(f"SparseLU: SuperLU gave up: {error}") from error
            raise SingularMatrix(singular) from error
        self.nnz = int(self._made[0].nnz) - columns.shape[0]

    @classmethod
    def _make(cls, made: list[Any], columns: sp.csc_matrix, options: dict[str, Any]) -> None:
        with cls._alone(columns.nnz > BLAS_SHARES):
            made.append(foreign.splu(columns, **options))

    def solve(self, r: Any, trans: str) -> Any:
        with self._alone(self.nnz > BLAS_SHARES):
            return self._made[0].solve(r, trans)

    def pivots(self) -> Any:
        """(n,) : the magnitude of the pivot of each column."""
        factors = self._made[0]
        return abs(factors.U.diagonal())[factors.perm_c]

    @staticmethod
    def _alone(wanted: bool) -> Any:
        return one_blas_thread() if wanted else nullcontext()


@cache
def nbklu() -> Any:
    """The package, or None where it is not installed, or not as it is needed."""
    return installed("nbklu", "KLUSolver")


@cache
def feral() -> Any:
    """The package, or None where it is not installed, or not as it is needed."""
    return installed("feral", "Solver")


def installed(package: str, solver: str) -> Any:
    """The package, or None where it is not installed, or has no such solver."""
    try:
        library = foreign.with_own_symbols(package)
        return library if callable(getattr(library, solver)) else None
    except (ImportError, OSError, AttributeError):
        return None


def is_mirrored(A: CSR, *, conjugated: bool = True) -> bool:
    """Whether each entry is that on the other side of the diagonal, or its conjugate, up to rounding of the entry
    itself."""
    return A.mirrored()[3 if conjugated else 4] <= ALIKE * float(np.finfo(A.dtype).eps)


class KLU:
    """KLU, for matrices whose factors stay sparse: blocks of a triangular form, each factored column by column.

    It computes in double precision. A call of it lets no other thread run, and can neither be ended nor left: a Ctrl-C
    is heard after it, and it does not begin where the caller has less time than it is expected to take.
    T. A. Davis, E. Palamadai Natarajan: Algorithm 907: KLU, a direct sparse solver for circuit simulation problems,
    2010.
    """

    name = "klu"
    symmetric, replaced = False, 0

    def __init__(self, columns: sp.csc_matrix, ordering: int, expected: Fill | None = None):
        """Analyse a pattern; `factor` makes the factors.  expected : the fill, where it is known; KLU counts that of
        its AMD by itself, and for COLAMD the time is not known either.

        Raises ParameterError where nbklu is not installed, SingularMatrix where the pattern is singular, OutOfTime
        where the time of the caller is too short.
        """
        self._library = nbklu()
        if self._library is None:
            raise ParameterError(
                "backend='klu' needs nbklu, which is not installed: pip install 'finelu[direct]', or use 'superlu'."
            )
        if KLU_ENTRY * columns.nnz > KLU_RATE * deadline.remaining():
            raise OutOfTime
        self._complex = columns.dtype.kind == "c"
        self._solver = self._library.KLUSolver(index_bits=32, complex_values=self._complex, singular_as_error=True)
        weakref.finalize(self, self._solver.close).atexit = False  # analysis and factors: nothing else frees them
        common = self._solver.common
        common.ordering, common.tol, common.scale = ordering, PIVOT, NO_SCALE
        self._pattern = columns.indptr, columns.indices
        self._turns = threading.Lock()  # a solve works in memory of the factors
        n, analyse = columns.shape[0], self._solver.analyze_given if ordering == GIVEN else self._solver.analyze
        self._called("symbolic", "A is singular, as its pattern shows.", analyse, n, *self._pattern)
        found = self._solver.symbolic
        if ordering != GIVEN and found.structural_rank < n:  # with an order that is given it is not set
            raise SingularMatrix(f"A is singular: its {n} rows have structural rank {found.structural_rank}.")
        if ordering == AMD:
            expected = Fill(int(found.lnz + found.unz + found.nzoff) - n, float(found.est_flops))
        self.expected, self.how = expected, (ordering, expected)

    @property
    def has_time(self) -> bool:
        """Whether `factor` may begin, as far as it is known how long it takes."""
        return self.expected is None or self.expected.flops <= KLU_RATE * deadline.remaining()

    def holds_for(self, columns: sp.csc_matrix) -> bool:
        """Whether the analysis is one of this pattern."""
        same = zip(self._pattern, (columns.indptr, columns.indices), strict=True)
        return self._complex == (columns.dtype.kind == "c") and all(np.array_equal(a, b) for a, b in same)

    def factor(self, columns: sp.csc_matrix, singular: str) -> KLU:
        """Factor a matrix of the pattern that was analysed. singular : what the error says where A is."""
        values = columns.data.astype(np.complex128 if self._complex else np.float64, copy=False)
        if not self.has_time:
            raise OutOfTime
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


class LDL:
    """feral: L D L^T of a real symmetric matrix, with pivots of one or two rows, by dense fronts, on all cores.

    J. W. H. Liu: The multifrontal method for sparse matrix solution, 1992; J. R. Bunch, L. Kaufman: Some stable methods
    for calculating inertia and solving symmetric linear systems, 1977.
    A solver of feral lives on one thread: all of them do on the same one, as long as no call goes on there that was
    left.
    """

    name = "feral"
    expected = None
    symmetric, replaced = True, 0
    _owners: ClassVar[list[Owner]] = []  # new ones where calls that were left go on

    def __init__(self, columns: sp.csc_matrix, ordering: str):
        """For a symmetric pattern.  ordering : of feral: "auto", "amd", "amf", "metis".

        Raises ParameterError where feral-solver is not installed, or for complex values.
        """
        self._library = feral()
        if self._library is None:
            raise ParameterError(
                "backend='feral' needs feral-solver, which is not installed: pip install 'finelu[direct]', or use "
                "'superlu'."
            )
        if columns.dtype.kind == "c":
            raise ParameterError("backend='feral' takes real matrices, but A is complex; use 'superlu'.")
        self.how, self._pattern = (ordering,), (columns.indptr, columns.indices)
        n = columns.shape[0]
        self._lower = np.flatnonzero(columns.indices >= np.repeat(np.arange(n), np.diff(columns.indptr)))
        starts = np.searchsorted(self._lower, columns.indptr)
        self._triangle = n, starts.astype(np.int64), columns.indices[self._lower].astype(np.int64)
        self._values: Any = None  # of the lower triangle
        self._begin()

    def _begin(self) -> None:
        """A place for a solver, on a thread that is there for it."""
        with _lock:
            owner = next((owner for owner in LDL._owners if owner.usable), None)
            if owner is None:
                owner = Owner()
                LDL._owners.append(owner)
        self._owner, self._solver = owner, owner.box()
        self._dropped = weakref.finalize(self, owner.drop, self._solver)
        self._dropped.atexit = False

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """function(box, *args) on the thread of the solver, which is in the box. One that was made in another process
        stays there; one that waits behind a call that was left is dropped after that, and made anew elsewhere."""
        if not self._owner.usable:
            self._dropped()
            self._begin()
        return self._owner.call(function, self._solver, *args)

    def holds_for(self, columns: sp.csc_matrix) -> bool:
        """Whether the analysis is one of this pattern."""
        same = zip(self._pattern, (columns.indptr, columns.indices), strict=True)
        return all(np.array_equal(a, b) for a, b in same)

    def factor(self, columns: sp.csc_matrix, singular: str) -> LDL:
        """Factor a symmetric matrix of the pattern that was analysed. singular : what the error says where A is."""
        self._values = columns.data[self._lower].astype(np.float64)
        inertia, self.nnz = self._call(self._factored)
        if inertia is None or inertia.n_zero:
            raise SingularMatrix(singular)
        return self

    def _factored(self, box: list[Any]) -> tuple[Any, int]:
        """Its inertia, None where that is not known, and how many entries it has."""
        if not box:
            box.append(self._library.Solver(ordering=self.how[0], parallel=get_num_threads() > 1))
        solver = box[0]
        try:
            solver.factor(self._library.CscMatrix(*self._triangle, self._values))
        except BaseException as error:  # a panic of Rust is no Exception; nothing else can come on this thread
            raise FineluError(f"SparseLU: feral gave up: {error}") from error
        return solver.inertia, int(solver.factor_nnz or 0)

    def solve(self, r: Any, trans: str) -> Any:
        if r.dtype.kind == "c":
            return self._call(self._of, r.real) + 1j * self._call(self._of, r.imag)
        return self._call(self._of, r).astype(r.dtype, copy=False)

    def _of(self, box: list[Any], r: Any) -> Any:
        if not box:
            self._factored(box)
        try:
            return box[0].solve(np.ascontiguousarray(r, np.float64))
        except BaseException as error:
            raise FineluError(f"SparseLU: feral gave up: {error}") from error


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    LDL._owners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
