"""The libraries that make a complete L U, or L D L^T, for `SparseLU`: SciPy's SuperLU; KLU where nbklu is installed,
feral where feral-solver is; `pardiso` has one more, and `cudss` the one that works on a GPU.

Each makes an object with `nnz`, the entries of the factors without a unit diagonal, and `solve(r, trans)` for r (n,) or
(n, k) on the host. All work by columns. Those that can be missing analyse a pattern first: `name`, `how` (what
they were made with, after the matrix), `expected` (the fill, or None), `symmetric` (whether they read one triangle),
`holds_for(columns)`, and `factor(columns, singular)`, which may come again. `replaced` counts pivots that are not A's.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from finelu.errors import FineluError, ParameterError, SingularMatrix
from finelu.kernels.operands import CSR
from finelu.ordering import Fill
from finelu.threads import get_num_threads, one_blas_thread

PIVOT = 0.01  # of the largest entry of its column that a diagonal entry must have to be the pivot
BLAS_SHARES = 2**14  # entries up to which BLAS has no block large enough to share out
ALIKE = 32  # roundings by which the two entries of a symmetric matrix may differ where one of them is left out
_lock = threading.Lock()
AMD, COLUMNS, GIVEN = 0, 1, 2  # of KLU: minimum degree of A + A^T, COLAMD, the order that the columns have


class SuperLU:
    """SciPy's SuperLU; options as of `scipy.sparse.linalg.splu`. S. Li: An overview of SuperLU, 2005."""

    replaced = 0

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
    return installed("nbklu", "KLUSolver")


@cache
def feral() -> Any:
    """The package, or None where it is not installed, or not as it is needed."""
    return installed("feral", "Solver")


def installed(package: str, solver: str) -> Any:
    """The package, or None where it is not installed, or has no such solver."""
    try:
        library = import_module(package)
        return library if callable(getattr(library, solver)) else None
    except (ImportError, OSError, AttributeError):
        return None


def is_mirrored(A: CSR, *, conjugated: bool = True) -> bool:
    """Whether each entry is that on the other side of the diagonal, or its conjugate, but for rounding of the entry
    itself."""
    return A.mirrored()[3 if conjugated else 4] <= ALIKE * float(np.finfo(A.dtype).eps)


class KLU:
    """KLU, for matrices whose factors stay sparse: blocks of a triangular form, each factored column by column.

    It computes in double precision. T. A. Davis, E. Palamadai Natarajan: Algorithm 907: KLU, a direct sparse solver for
    circuit simulation problems, 2010.
    """

    name = "klu"
    symmetric, replaced = False, 0

    def __init__(self, columns: sp.csc_matrix, ordering: int):
        """Analyse a pattern; `factor` makes the factors.

        Raises ParameterError where nbklu is not installed, SingularMatrix where the pattern is singular.
        """
        self._library = nbklu()
        if self._library is None:
            raise ParameterError(
                "backend='klu' needs nbklu, which is not installed: pip install 'finelu[direct]', or use 'superlu'."
            )
        self.how, self._complex = (ordering,), columns.dtype.kind == "c"
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


class _Owner:
    """The thread that makes, uses and drops the solvers of feral, as these want it: one call after the other.

    Unlike a pool, it takes calls from where an object is finalized, which may be within any other.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="finelu-feral", daemon=True)
        self._thread.start()
        atexit.register(self.end)

    def begin(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, function, args))
        return future

    def end(self) -> None:
        """Before the process ends: the thread does what it has been asked for, drops all solvers, and is no more."""
        if self is LDL._owner:
            LDL._owner = None
            self._calls.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, args = call
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
            del call, future, function, args  # nothing is kept while it waits
        for solver in LDL._alive.values():
            solver.clear()


class LDL:
    """feral: L D L^T of a real symmetric matrix, with pivots of one or two rows, by dense fronts, on all cores.

    J. W. H. Liu: The multifrontal method for sparse matrix solution, 1992; J. R. Bunch, L. Kaufman: Some stable methods
    for calculating inertia and solving symmetric linear systems, 1977.
    A solver of feral lives on one thread: all of them do on the same one, which also drops them.
    """

    name = "feral"
    expected = None
    symmetric, replaced = True, 0
    _owner: _Owner | None = None
    _alive: ClassVar[dict[int, list[Any]]] = {}  # by the place of each solver: in a forked child they stay for good

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
        """A place for a solver."""
        self._solver: list[Any] = []
        self._process = os.getpid()
        self._alive[id(self._solver)] = self._solver
        weakref.finalize(self, self._drop, self._solver, self._process).atexit = False

    @classmethod
    def _drop(cls, solver: list[Any], process: int) -> None:
        if cls._owner is not None and process == os.getpid():
            cls._owner.begin(cls._forget, solver)

    @classmethod
    def _forget(cls, solver: list[Any]) -> None:
        del cls._alive[id(solver)]
        solver.clear()

    @classmethod
    def _call(cls, function: Callable[..., Any], *args: Any) -> Any:
        """function(*args) on the thread of the solvers."""
        with _lock:
            owner = cls._owner = cls._owner or _Owner()
        return owner.begin(function, *args).result()

    def holds_for(self, columns: sp.csc_matrix) -> bool:
        """Whether the analysis is one of this pattern."""
        same = zip(self._pattern, (columns.indptr, columns.indices), strict=True)
        return all(np.array_equal(a, b) for a, b in same)

    def factor(self, columns: sp.csc_matrix, singular: str) -> LDL:
        """Factor a symmetric matrix of the pattern that was analysed. singular : what the error says where A is."""
        self._values = columns.data[self._lower].astype(np.float64)
        self._is_forked()
        inertia, self.nnz = self._call(self._factored)
        if inertia is None or inertia.n_zero:
            raise SingularMatrix(singular)
        return self

    def _factored(self) -> tuple[Any, int]:
        """Its inertia, None where that is not known, and how many entries it has."""
        if not self._solver:
            self._solver.append(self._library.Solver(ordering=self.how[0], parallel=get_num_threads() > 1))
        solver = self._solver[0]
        try:
            solver.factor(self._library.CscMatrix(*self._triangle, self._values))
        except BaseException as error:  # a panic of Rust is no Exception; nothing else can come on this thread
            raise FineluError(f"SparseLU: feral gave up: {error}") from error
        return solver.inertia, int(solver.factor_nnz or 0)

    def solve(self, r: Any, trans: str) -> Any:
        self._is_forked()
        if r.dtype.kind == "c":
            return self._call(self._of, r.real) + 1j * self._call(self._of, r.imag)
        return self._call(self._of, r).astype(r.dtype, copy=False)

    def _is_forked(self) -> None:
        """A solver that was made in another process, whose thread is not in this one, is left where it is."""
        if self._process != os.getpid():
            with _lock:
                if self._process != os.getpid():
                    self._begin()

    def _of(self, r: Any) -> Any:
        if not self._solver:
            self._factored()
        try:
            return self._solver[0].solve(np.ascontiguousarray(r, np.float64))
        except BaseException as error:
            raise FineluError(f"SparseLU: feral gave up: {error}") from error


def _after_fork() -> None:
    global _lock
    LDL._owner, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
