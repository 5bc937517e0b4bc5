"""KLU, if nbklu is installed."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from finelu import deadline
from finelu.errors import FineluError, OutOfTime, SingularMatrix
from finelu.factors import Columns, by_columns_in_memory
from finelu.ordering import Fill
from finelu.preconditioners.direct.library import PIVOT, Library, Spare, installed, required
from finelu.recent import RECENT

KLU_RATE = 2e9  # flops a second that KLU reaches where it is fast: many matrices take up to four times as long
KLU_ENTRY = 200.0  # flops that take as long, at this rate, as KLU takes to analyse an entry
AMD, COLUMNS, GIVEN = 0, 1, 2  # of KLU: minimum degree of A + A^T, COLAMD, the order that the columns have
# Kept pivots are tried again in factors with at least WORTH entries, of which the trial takes 0.02 to 0.03 ms, and
# with up to WORTH_WORK flops an entry. Time of the trial, as a part of that of new factors, on grids in two and three
# dimensions, winds and random networks of 400 to 250,000 rows: 0.6 to 0.75 up to 80 flops an entry, 0.8 at 100 to
# 165, 0.9 at 200, 1.0 at 220 and 1.5 at 580; on circuits, power systems and distillation columns with pivots off the
# diagonal: 0.35 to 0.55. The copy of L and U that shows whether the pivots stand is 0.01 to 0.1 of it.
WORTH, WORTH_WORK = 2_000, 180.0
# The largest entry of L with which pivots stand. KLU keeps a diagonal pivot of at least PIVOT times the largest entry
# of its column, so entries of L up to 1 / PIVOT; if all pivots are on the diagonal they are those that KLU would
# choose, and the margin is for the rounding of L, some 1e-16 of an entry. Else entries may be ten times as large, so
# that all pivots pass the test of KLU's own default, 0.001.
STANDS, STANDS_OFF_DIAGONAL = (1 - 1e-12) / PIVOT, 10 / PIVOT
# With pivots off the diagonal U may have grown: no entry is larger than GROWN times the largest of A (new factors of
# 17 real matrices had up to 2e4 times that). The smallest pivot is at least LEAST times the largest: rounding does not
# take the place of a pivot that is 0, which a factorization from the beginning would report.
GROWN, LEAST = 1e6, 1e-13
ENTRY = 24  # bytes that an entry of factors takes at most: a value, a row, and room that KLU leaves
SYMBOLIC = 32  # bytes of an analysis a row: four permutations and estimates of 4 and 8 bytes
NO_SCALE = 0  # of KLU: rows divided by their largest entries would let it take pivots that are small in their columns


@cache
def nbklu() -> Any:
    """The package, or None if it is not installed or has no class `KLUSolver`."""
    return installed("nbklu", "KLUSolver")


class _Analysis:
    """KLU's analysis of a pattern, which the factors of several matrices may share; freed with the last of them."""

    def __init__(self, solver: Any):
        self.solver = solver
        self.idle: list[Any] = []  # a solver without factors, for the next matrix
        weakref.finalize(self, solver.close).atexit = False

    def taken(self) -> Any:
        """A solver without factors that no one else has; None if there is none."""
        try:
            return self.idle.pop()
        except IndexError:
            return None


def _free(solver: Any) -> None:
    """Free the factors of a solver, but not the analysis."""
    solver.symbolic = None
    solver.close()


def _entries(solver: Any) -> int:
    """The number of entries of a solver's factors, diagonal blocks and the rest."""
    return int(solver.numeric.lnz + solver.numeric.unz + solver.numeric.nzoff)


def _largest(v: Any) -> float:
    """The largest magnitude in an array that is not empty; NaN if it has a NaN."""
    return float(max(v.max(), -v.min()) if v.dtype.kind == "f" else abs(v).max())


def _is_worth(solver: Any, expected: Fill | None = None) -> bool:
    """Whether a solver has factors whose pivots may be tried again for other values: enough entries, and not too much
    work.  expected : the fill that was expected; if it was that of much work, or None, the work is counted."""
    if solver.numeric is None or _entries(solver) < WORTH:
        return False
    most = WORTH_WORK * _entries(solver)
    return bool((expected is not None and expected.flops <= most) or solver.flops() <= most)


def _given_back(solver: Any, analysis: _Analysis, kind: tuple[Any, ...], worth: bool, owned: bool) -> None:
    """Keep factors that are used no more for the next matrix with their pattern, if these can be of use; the analysis
    was held until now. They belong to the entry of RECENT alone, which counts them, and so are freed if it is not made.
    RECENT has the pattern, so a solver that waits has none.

    worth : see `_is_worth`.  owned : see `Recent.keep`.
    """
    pattern, solver.Ap, solver.Ai = (solver.Ap, solver.Ai), None, None
    if not worth:
        _free(solver)
        analysis.idle[:] = [solver]
        return
    size = SYMBOLIC * solver.n + ENTRY * _entries(solver)
    RECENT.keep(kind, *pattern, (analysis, Spare(solver, partial(_free, solver))), size, owned=owned)


class KLU(Library):
    """KLU, for matrices whose factors stay sparse: blocks of a triangular form, each factored column by column.

    It computes in double precision. A call of KLU blocks all other threads, and can be neither ended nor abandoned. So
    a Ctrl-C takes effect after the call, and a call does not begin if it is expected to take longer than the caller's
    remaining time.
    Factors of earlier values, if their work is moderate, see WORTH_WORK, are computed anew with the same pivots, in 0.6
    to 0.8 of the time. A factorization from the beginning follows if L has large entries, or, with pivots off the
    diagonal, U. Pivots that are all on the diagonal are then those that KLU would choose, so that the bits are the same
    as without earlier values; others may be those of the values before.
    T. A. Davis, E. Palamadai Natarajan: Algorithm 907: KLU, a direct sparse solver for circuit simulation problems,
    2010.
    """

    name = "klu"
    _solver: Any = None

    def __init__(self, columns: Columns, ordering: int, expected: Fill | None = None, *, owned: bool = True):
        """Analyse a pattern; `factor` makes the factors.

        ordering : AMD, COLUMNS or GIVEN.
        expected : the fill if it is known. KLU counts the fill of its own AMD; that of COLAMD stays unknown. If the
            caller's time is limited, that of AMD, which is seldom more, decides whether `factor` may begin.
        owned : whether no one writes to the pattern of `columns` any more, so that no copy of it is kept.
        Raises ParameterError if nbklu is not installed, SingularMatrix if the pattern is singular, OutOfTime if the
        caller's time is too short.
        """
        self._library = required(nbklu(), "klu", "nbklu, which is not installed", "direct")
        if KLU_ENTRY * columns.nnz > KLU_RATE * deadline.remaining():
            raise OutOfTime
        super().__init__(columns)
        n, kind = columns.shape[0], ("klu", ordering, self._complex)
        kept: tuple[_Analysis, Spare | None] | None = RECENT.get(kind, *self.pattern)
        if kept is None:
            kept = RECENT.keep(kind, *self.pattern, (self._analysed(n, ordering), None), SYMBOLIC * n, owned=owned)
        analysis, spare = kept
        solver = None if spare is None else spare.take()
        self._worth = None if solver is None else True  # as `_is_worth`, which takes some time; None: to be asked
        if solver is None:
            solver = analysis.taken() or self._new(ordering)
            solver.n, solver.symbolic = n, analysis.solver.symbolic
        solver.Ap, solver.Ai = (np.ascontiguousarray(v, np.int32) for v in self.pattern)
        self._solver, self._analysis, self._kind, self._owned = solver, analysis, kind, owned
        self._turns = threading.Lock()  # a solve uses memory of the factors, so solves take turns
        found = solver.symbolic
        if ordering != GIVEN and found.structural_rank < n:  # KLU does not set the rank with a given order
            raise SingularMatrix(f"A is singular: its {n} rows have structural rank {found.structural_rank}.")
        if ordering == AMD:
            expected = Fill(int(found.lnz + found.unz + found.nzoff) - n, float(found.est_flops))
        self.expected, self.how = expected, (ordering, expected)
        self._least = expected
        if ordering == COLUMNS and deadline.current() is not None:
            self._least = KLU(columns, AMD, owned=owned).expected

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:  # at the end `sys` may be gone
        """Takes a few microseconds less than `weakref.finalize`."""
        if self._solver is not None and not ends():
            if self._analysis.solver.symbolic is None:  # the garbage collector freed it before, in the same cycle
                _free(self._solver)
                return
            worth = _is_worth(self._solver, self.expected) if self._worth is None else self._worth
            _given_back(self._solver, self._analysis, self._kind, worth, self._owned)

    def _new(self, ordering: int) -> Any:
        """An nbklu solver; only its `close` frees analysis and factors."""
        solver = self._library.KLUSolver(index_bits=32, complex_values=self._complex, singular_as_error=True)
        solver.common.ordering, solver.common.tol, solver.common.scale = ordering, PIVOT, NO_SCALE
        return solver

    def _analysed(self, n: int, ordering: int) -> _Analysis:
        analysis = _Analysis(self._new(ordering))
        analyse = analysis.solver.analyze_given if ordering == GIVEN else analysis.solver.analyze
        self._called(
            analysis.solver, "symbolic", lambda: "A is singular, as its pattern shows.", analyse, n, *self.pattern
        )
        analysis.solver.Ap = analysis.solver.Ai = None  # only `symbolic` is used from now on
        return analysis

    @property
    def has_time(self) -> bool:
        """Whether `factor` may begin: its expected time, if known, fits the caller's remaining time."""
        return self._least is None or self._least.flops <= KLU_RATE * deadline.remaining()

    def factor(self, columns: Columns, singular: Callable[[], str], require_room: Any = None) -> KLU:
        """Factor a matrix of the analysed pattern.  singular : gives the text of the error."""
        values = columns.data.astype(np.complex128 if self._complex else np.float64, copy=False)
        if not self.has_time:
            raise OutOfTime
        with self._turns:
            stand = self._pivots_stand(values)
            if not stand:
                self._worth = None
                self._called(self._solver, "numeric", singular, self._solver.factor, values)
            self.from_earlier = stand and self._solver.common.noffdiag > 0
        self.nnz = _entries(self._solver) - columns.shape[0]
        return self

    def let_go(self) -> None:
        self._worth = False

    def _pivots_stand(self, values: Any) -> bool:
        """Whether there are factors of earlier values whose pivots are large enough for these; then the factors are
        those of these values now."""
        solver = self._solver
        if self._worth is None:
            self._worth = _is_worth(solver, self.expected)
        if not self._worth:
            return False
        try:
            solver.refactor(values)
            least = solver.rcond()  # which also looks at the pivots of blocks of one row
            found, off_diagonal = solver.extract(), bool(solver.common.noffdiag)
        except (self._library.KLUException, MemoryError):  # there may be no room for a copy of the factors
            return False
        if off_diagonal and not (least >= LEAST and _largest(found["Ux"]) <= GROWN * _largest(values)):
            return False
        return _largest(found["Lx"]) <= (STANDS_OFF_DIAGONAL if off_diagonal else STANDS)

    def _called(self, solver: Any, made: str, singular: Callable[[], str], function: Any, *arguments: Any) -> None:
        """Call nbklu.

        made : the attribute of the solver that the call sets.  singular : gives the text of the error for a singular A.
        """
        try:
            function(*arguments)
        except self._library.KLUException as error:
            setattr(solver, made, None)  # it is null, and freeing null would end the process
            if isinstance(error, self._library.KLUSingularException):
                raise SingularMatrix(singular()) from error
            if isinstance(error, self._library.KLUOutOfMemoryException | self._library.KLUTooLargeException):
                raise MemoryError(f"SparseLU: KLU is out of memory ({error})") from error
            raise FineluError(f"SparseLU: KLU gave up: {error}") from error

    def solve(self, r: Any, trans: str) -> Any:
        columns = by_columns_in_memory(r)
        wide = np.complex128 if self._complex else np.float64
        b = columns.T.astype(wide, order="C", copy=columns is r)  # a row for each right-hand side, which is written to
        with self._turns:
            x = self._solver.solve_(b) if trans == "N" else self._solver.tsolve_(b, conj_solve=int(trans == "H"))
        return x.T.astype(r.dtype, copy=False)
