"""PARDISO of MKL, if pypardiso is installed, which brings MKL and finds it."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.sparse import _sparsetools

from finelu.device import free_memory
from finelu.errors import FineluError, SingularMatrix
from finelu.factors import Columns
from finelu.foreign import leavable
from finelu.kernels import kernels_for
from finelu.preconditioners.direct.library import (
    HERMITIAN,
    LONG_ENTRIES,
    TRANSPOSED,
    Library,
    Spare,
    installed,
    required,
)
from finelu.recent import RECENT
from finelu.threads import get_num_threads

MINIMUM_DEGREE, DISSECTION = 0, 3  # orderings of PARDISO, the second by all threads
DEFINITE, INDEFINITE, GENERAL = 2, -2, 11  # its kinds of real matrices
COMPLEX_SYMMETRIC = 6  # its kind of complex matrices with A = A^T
OF_COMPLEX = {DEFINITE: 4, INDEFINITE: -4, GENERAL: 13}
ANALYSE, FACTOR, SOLVE, FREE_FACTORS, FREE = 11, 22, 33, 0, -1  # its phases
NO_MEMORY = (-2, -8, -9)  # its errors
ZERO_PIVOT = (-4, -6, -7)  # its errors where A is singular
ERRORS = {
    -1: "its input is inconsistent",
    -2: "it finds no memory",
    -3: "it finds no order",
    -4: "a pivot is zero",
    -5: "an error of its own",
    -6: "its matching fails",
    -7: "a diagonal matrix is singular",
    -8: "the factors have more entries than 32-bit integers count",
    -9: "it finds no memory for its files",
    -10: "it cannot open its files",
    -11: "it cannot read or write its files",
    -12: "it is called with integers of 64 bits where it takes 32",
    -13: "it was interrupted",
    -15: "it does not offer that",
}
DIRECTIONS = {"N": 0, "H": 1, "T": 2}
OPENMP = ("libiomp5.so", "libiomp5.dylib", "libiomp5md.dll")  # MKL's own
ALONE_WORK = 5e8  # flops up to which MKL takes one thread: more save up to 25 ms, and lose more on busy cores
# Entries of the factors a row from which on, and columns from which on, one thread solves for columns of a real matrix
# together in less time than one by one. Time together over that one by one, for 16 columns: definite 1.15 at 13 entries
# a row, 1.06 at 23, 0.83 at 65, 0.63 at 104; general 4.9 at 4, 1.7 at 41, 1.06 at 114, 0.79 at 167. For 8 columns about
# 1 at the last but one of each. Of all other kinds it is 0.25 to 0.42.
ENTRIES_TOGETHER, COLUMNS_TOGETHER = {DEFINITE: 30, GENERAL: 130}, 8
RequireRoom: TypeAlias = Callable[[int], None] | None  # see `Library`
REFINED = 2  # steps of refinement in a solve if A was scaled: scalings of before lose digits


@cache
def mkl() -> Any:
    """MKL, a library of C functions; None if pypardiso is not installed, or finds no MKL with 32-bit integers."""
    if os.environ.get("MKL_INTERFACE_LAYER", "").upper().startswith("ILP64"):
        return None
    try:
        library = _beside_python() or _by_pypardiso()
        return library if library is not None and library.pardiso and library.MKL_Set_Num_Threads_Local else None
    except (ImportError, OSError, AttributeError, ValueError):  # the last by `find_spec`
        return None


def _beside_python() -> Any:
    """MKL where pip and conda put it, in 2 ms; None without pypardiso, or if MKL is not there, or another is wanted."""
    if "PYPARDISO_MKL_RT" in os.environ or not find_spec("pypardiso"):
        return None
    folder = Path(sys.prefix, *(("Library", "bin") if os.name == "nt" else ("lib",)))
    found = [file for file in folder.glob("*mkl_rt*") if ".so" in file.name or file.suffix in (".dll", ".dylib")]
    for file in sorted(found, key=lambda file: len(file.name)):
        with suppress(OSError):  # it is damaged
            return ctypes.CDLL(str(file))
    return None


def _by_pypardiso() -> Any:
    """The MKL that pypardiso finds as it is imported, which takes it some tenths of a second."""
    package = installed("pypardiso", "PyPardisoSolver")
    return None if package is None else package.ps.libmkl


class Pardiso(Library):
    """L U, L D L^H, L D L^T or L L^H by dense blocks, with pivots exchanged inside of a block, on all cores.

    O. Schenk, K. Gaertner: Solving unsymmetric sparse systems of linear equations with PARDISO, 2004; On fast
    factorization pivoting methods for sparse symmetric indefinite systems, 2006.
    It computes in double precision. Unless A turns out to be definite, A is scaled, and a matching brings its large
    entries next to the diagonal. With a given order this is done only if pivots are too small without it. A pivot that
    is too small is replaced by a larger one: `replaced` counts them.
    An analysis is kept in `RECENT` once its factors are gone, and the next matrix with this pattern takes it. If it is
    without scaling and matching, which depend on values, the next factors have on one thread the same bits as after a
    new analysis; else they are scaled and matched by earlier values, as in an update. On several threads the bits of
    all factors differ from run to run.
    """

    name = "pardiso"

    def __init__(self, columns: Columns, ordering: int, symmetry: str, order: Any = None, work: float | None = None):
        """Analyse a pattern.

        ordering : PARDISO's number of the ordering.
        symmetry : of A, as `symmetry` has it, if only one triangle is to be read; else "".
        order (n,) : an order of the rows and columns to use instead of PARDISO's own, or None.
        work : the expected number of flops, None if it is not counted. Up to ALONE_WORK, or for a small A without a
            count, MKL works on one thread.
        Raises ParameterError if pypardiso is not installed.
        """
        required(mkl(), "pardiso", "pypardiso, and MKL with 32-bit integers, which are not installed", "mkl")
        order = None if order is None else order.astype(np.int32)
        super().__init__(columns, ordering, symmetry, order, work)
        self.symmetry, self._conjugated = symmetry, self._complex and symmetry == HERMITIAN
        kind = "pardiso", ordering, symmetry, self._complex, work, get_num_threads()
        spare: Spare | None = RECENT.get(kind, *self.pattern)
        called = None if spare is None else spare.take()
        if called is not None and not called.is_in(order):
            called.free()
            called = None
        if called is None:
            rows = _triangle(columns) if symmetry else _by_rows(columns)
            alone = rows.places.size <= LONG_ENTRIES if work is None else work <= ALONE_WORK
            called = _Called(rows, np.complex128 if self._complex else np.float64, ordering, order, alone=alone)
        self._called = called
        self._freed = weakref.finalize(self, _given_back, called, kind, self.pattern)
        self._freed.atexit = False
        self._long = called.values.size > LONG_ENTRIES
        self._turns = threading.Lock()  # a call keeps its state in memory of the factors, so calls take turns

    def factor(self, columns: Columns, singular: Callable[[], str], require_room: RequireRoom = None) -> Pardiso:
        """Factor a matrix of the analysed pattern.  singular : gives the text of the error."""
        values = columns.data[self._called.places]
        values[self._called.gaps] = 0
        with self._turns:
            if self._called.is_bad:
                self._called.free()
                self._called.is_bad = False
            self._called.values[:] = values.conj() if self._conjugated else values  # columns below are rows above
            kinds = [OF_COMPLEX.get(kind, kind) if self._complex else kind for kind in self._kinds(columns)]
            given = kinds, require_room
            made = leavable(self._called.factored_as, *given, freed=self._freed) if self._long else None
            if not (self._called.factored_as(*given) if made is None else made):
                raise SingularMatrix(singular())
            self.nnz, self.replaced = self._called.nnz, self._called.replaced
            self.from_earlier = self._called.from_earlier
        return self

    def _kinds(self, columns: Columns) -> tuple[int, ...]:
        """The kinds of matrix that A may be, in the order in which they are tried."""
        if not self.symmetry:
            return (GENERAL,)
        if self.symmetry == TRANSPOSED:
            return (COMPLEX_SYMMETRIC,)
        was_indefinite = self._called.kind in (INDEFINITE, OF_COMPLEX[INDEFINITE])
        may_be_definite = not was_indefinite and bool((columns.tosparse().diagonal().real > 0).all())
        return (DEFINITE, INDEFINITE) if may_be_definite else (INDEFINITE,)

    def solve(self, r: Any, trans: str) -> Any:
        if r.dtype.kind == "c" and not self._complex:
            return self.solve(r.real, trans) + 1j * self.solve(r.imag, trans)
        conjugate = self._complex and trans == {HERMITIAN: "T", TRANSPOSED: "H"}.get(self.symmetry)  # that is conj(A)
        b = np.asfortranarray(r.conj() if conjugate else r, self._called.values.dtype)
        with self._turns:
            x = self._called.solve_all(b, "N" if self.symmetry else trans)
        return (x.conj() if conjugate else x).astype(r.dtype, order="C", copy=False)

    def let_go(self) -> None:
        self._called.is_bad = True


class _Called:
    """PARDISO's state for one pattern, and the calls of PARDISO."""

    def __init__(self, rows: _Rows, dtype: Any, ordering: int, order: Any, *, alone: bool):
        """rows : the pattern by rows, as `_by_rows` and `_triangle` give it.
        alone : whether MKL works on one thread.

        The number of threads stays from an analysis on: MKL ends the process if later calls have fewer.
        """
        self._mkl, self._alone, self._count = mkl(), alone, 1
        self.values, self._ordering, self._order = np.empty(rows.places.size, dtype), ordering, order
        self._has_factors = False  # whether their memory is in use already
        self.is_bad = False  # whether the analysis is not to be used again
        self.from_earlier = False  # as in `Library`
        self.gaps = np.flatnonzero(rows.places == 0)
        self.places = np.maximum(rows.places - 1, 0)  # where A holds the entries
        self._starts, self._indices = rows.starts, rows.indices
        self._handle, self._parameters, self.kind = np.zeros(64, np.int64), np.zeros(64, np.int32), 0
        fixed = self.values, self._starts, self._indices, order, self._handle, self._parameters
        self._pointers = [None if array is None else array.ctypes.data_as(ctypes.c_void_p) for array in fixed]

    @property
    def nnz(self) -> int:
        return int(self._parameters[17])

    @property
    def replaced(self) -> int:
        return int(self._parameters[13])

    def is_in(self, order: Any) -> bool:
        """Whether the analysis is of this order, or of PARDISO's own for None."""
        return self._order is None if order is None else np.array_equal(self._order, order)

    def without_factors(self) -> int:
        """Free the factors, but not the analysis, unless it was of no good. Returns the bytes that are
        kept."""
        if not self.kind or self.replaced or self.is_bad or self._call(FREE_FACTORS):
            self.free()
            return 0
        self._has_factors = False
        own = self.values, self.gaps, self.places, self._starts, self._indices, self._handle, self._parameters
        return 1024 * int(self._parameters[15]) + sum(array.nbytes for array in own)

    def factored_as(self, kinds: list[int], require_room: RequireRoom) -> bool:
        """Factor as the first of these kinds that is possible, and return whether one was; see `factor`."""
        return any(self.factor(kind, require_room) for kind in kinds)

    def factor(self, kind: int, require_room: RequireRoom) -> bool:
        """Factor the values as a matrix of this kind; False if a pivot is 0, or A is not of that kind.

        require_room : called before factors are made that do not take the memory of earlier ones.
        Scaling and matching are kept from one call to the next, unless pivots are replaced.
        """
        made = self.from_earlier = False
        try:
            if kind == self.kind and kind in (DEFINITE, OF_COMPLEX[DEFINITE]):  # a new analysis would be the same
                made = self._factored(require_room)
            else:
                again = kind == self.kind and self._factored(require_room) and not self.replaced
                made, self.from_earlier = again or self._anew(kind, require_room), again
        finally:
            if not made:  # an incomplete state is useless
                self.free()
        return made

    def _anew(self, kind: int, require_room: RequireRoom) -> bool:
        definite = kind in (DEFINITE, OF_COMPLEX[DEFINITE])
        matched = kind in (INDEFINITE, OF_COMPLEX[INDEFINITE], COMPLEX_SYMMETRIC)
        in_vain = matched and kind == self.kind and self._parameters[4]  # it was just factored by that order
        by_order = self._order is not None and not in_vain
        if by_order and self._begun(kind, require_room, given=True) and not self.replaced:
            return True
        return (self._order is None or not definite) and self._begun(kind, require_room, given=False)

    def _begun(self, kind: int, require_room: RequireRoom, *, given: bool) -> bool:
        """Analyse and factor anew.  given : whether to use the given order, without a matching."""
        self.free()
        self.kind, self._count = kind, 1 if self._alone else get_num_threads()
        definite, general = (kind in (real, OF_COMPLEX[real]) for real in (DEFINITE, GENERAL))
        matched = not (definite or given)
        scaled = matched or general
        small = 13 if general else 8 if matched else 6  # digits from the largest entry to such a pivot
        own, counted, two_rows, from_zero = 1, -1, 1, 1
        chosen = (
            own,
            self._ordering,
            given,
            scaled * REFINED,
            small,
            scaled,
            matched,
            counted,
            two_rows,
            from_zero,
        )
        self._parameters[[0, 1, 4, 7, 9, 10, 12, 17, 20, 34]] = chosen
        return self._made(ANALYSE) and self._factored(require_room)

    def _factored(self, require_room: RequireRoom) -> bool:
        """Factor by the present analysis."""
        if require_room is not None and not self._has_factors:
            require_room(self.nnz)
        self._has_factors = self._made(FACTOR)
        return self._has_factors

    def _made(self, phase: int) -> bool:
        error = self._call(phase)
        if error in NO_MEMORY and not self._is_small:
            raise MemoryError(f"SparseLU: PARDISO is out of memory: its error {error}, {ERRORS[error]}")
        if error and error not in ZERO_PIVOT:
            raise _gave_up(error)
        return not error

    @property
    def _is_small(self) -> bool:
        """Whether even dense factors fit in memory. MKL also reports a lack of memory for other failures."""
        return float(self._starts.size) ** 2 * self.values.itemsize <= free_memory(self.values) / 2

    def solve_all(self, b: Any, trans: str) -> Any:
        """x (n,) or (n, k), in the order of Fortran as b: all columns together, or one by one if that is faster."""
        least = ENTRIES_TOGETHER.get(self.kind)
        if b.ndim == 1 or least is None or self._count > 1:
            return self.solve(b, trans)
        if b.shape[1] >= COLUMNS_TOGETHER and self.nnz >= least * (self._starts.size - 1):
            return self.solve(b, trans)
        x = np.empty_like(b)
        for j in range(b.shape[1]):
            x[:, j] = self.solve(b[:, j], trans)
        return x

    def solve(self, b: Any, trans: str) -> Any:
        x = np.empty_like(b)
        if not b.size:
            return x
        self._parameters[11] = DIRECTIONS[trans]
        if error := self._call(SOLVE, b, x):
            raise _gave_up(error)
        return x

    def free(self) -> None:
        """Free the memory that PARDISO keeps."""
        if self.kind:
            self._call(FREE)
            self._handle[:], self._parameters[:], self.kind, self._has_factors = 0, 0, 0, False

    def _call(self, phase: int, b: Any = None, x: Any = None) -> int:
        one, n, silent, error = (ctypes.c_int32(value) for value in (1, self._starts.size - 1, 0, 0))
        columns = ctypes.c_int32(1 if b is None or b.ndim == 1 else b.shape[1])
        kind, what = ctypes.c_int32(self.kind), ctypes.c_int32(phase)
        *A, order, handle, parameters = self._pointers
        by = ctypes.byref
        with _threads(self._mkl, self._count):
            order = order if self._parameters[4] else None
            pardiso = self._mkl["pardiso"]  # an object of its own: pypardiso may have set the types of `.pardiso`
            pardiso.restype = None
            pardiso(
                handle, by(one), by(one), by(kind), by(what), by(n), *A, order, by(columns),
                parameters, by(silent), _at(b), _at(x), by(error),
            )  # fmt: skip
        return error.value


def _given_back(called: _Called, kind: tuple[Any, ...], pattern: tuple[Any, Any]) -> None:
    """Keep an analysis whose factors are gone for the next matrix with this pattern, if it can be of use."""
    if size := called.without_factors():
        RECENT.keep(kind, *pattern, Spare(called, called.free), size)


def _gave_up(error: int) -> FineluError:
    """The exception for an error number of MKL."""
    why = ERRORS.get(error, "which its manual does not name")
    if error in NO_MEMORY:
        why += ", though even dense factors would fit in memory: so it speaks of other failures, too"
    return FineluError(f"SparseLU: PARDISO gave up: its error {error}, {why}. Try backend='superlu'.")


@contextmanager
def _threads(library: Any, count: int) -> Iterator[None]:
    """Let MKL, the library, use `count` threads. They do not spin for more work, which would occupy cores."""
    openmp = _openmp()
    threads = library.MKL_Set_Num_Threads_Local(count)
    waits = openmp.kmp_get_blocktime() if openmp else 0
    try:
        if openmp:
            openmp.kmp_set_blocktime(0)
        yield
    finally:
        library.MKL_Set_Num_Threads_Local(threads)
        if openmp:
            openmp.kmp_set_blocktime(waits)


@cache
def _openmp() -> Any:
    """Intel's OpenMP library if MKL has loaded it, else None."""
    mkl().MKL_Get_Max_Threads()  # this call loads it
    for name in OPENMP:
        with suppress(OSError):
            return ctypes.CDLL(name, mode=getattr(os, "RTLD_NOLOAD", 0) | ctypes.DEFAULT_MODE)
    return None


def _at(array: Any) -> Any:
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)


class _Rows(NamedTuple):
    """The pattern that PARDISO is given: starts (n + 1,) and indices (m,) by rows, int32, and places (m,), those of the
    entries among A's by columns, from 1 on; 0 for an entry that A does not store."""

    starts: Any
    indices: Any
    places: Any


def _by_rows(columns: Columns) -> _Rows:
    n, nnz = columns.shape[0], columns.nnz
    starts, indices = np.empty(n + 1, np.int32), np.empty(nnz, np.int32)
    given, places = np.arange(1, nnz + 1, dtype=np.int32), np.empty(nnz, np.int32)
    _sparsetools.csr_tocsc(n, n, columns.indptr, columns.indices, given, starts, indices, places)
    return _Rows(starts, indices, places)


def _triangle(columns: Columns) -> _Rows:
    """The upper triangle of a symmetric pattern and its whole diagonal."""
    n, most = columns.shape[0], columns.nnz + columns.shape[0]
    starts, indices, places = np.empty(n + 1, np.int32), np.empty(most, np.int32), np.empty(most, np.int32)
    given = columns.indptr, columns.indices  # by columns below the diagonal is by rows above it
    kernels_for(places).graph.behind_diagonal(*given, starts, indices, places)
    return _Rows(starts, indices[: starts[n]].copy(), places[: starts[n]].copy())
