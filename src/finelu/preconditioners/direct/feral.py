"""feral, if feral-solver is installed."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np

from finelu import deadline
from finelu.errors import FineluError, ParameterError, SingularMatrix
from finelu.factors import Columns
from finelu.foreign import Owner
from finelu.preconditioners.direct.library import HERMITIAN, Library, Spare, installed, required
from finelu.recent import RECENT
from finelu.threads import get_num_threads

ENTRY = 24  # bytes that an entry of factors takes at most: a value, and its share of rows and of the analysis

_lock = threading.Lock()


@cache
def feral() -> Any:
    """The package, or None if it is not installed or has no class `Solver`."""
    return installed("feral", "Solver")


@dataclass(eq=False)
class _Solver:
    """A solver of feral in a box of its thread.

    entries : of its factors, 0 if there are none, or bad ones.
    definite : whether all its matrices were.
    """

    owner: Owner
    box: list[Any]
    entries: int = 0
    definite: bool = True


def _given_back(state: _Solver, kind: tuple[Any, ...], pattern: tuple[Any, Any]) -> None:
    """Keep a solver that is used no more for the next matrix with its pattern, if it can be of use."""
    free = partial(state.owner.drop, state.box)
    if state.entries:
        RECENT.keep(kind, *pattern, Spare(state, free), ENTRY * state.entries)
    else:
        free()


class LDL(Library):
    """feral: L D L^T of a real symmetric matrix, with pivots of one or two rows, by dense fronts, on all cores.

    J. W. H. Liu: The multifrontal method for sparse matrix solution, 1992; J. R. Bunch, L. Kaufman: Some stable methods
    for calculating inertia and solving symmetric linear systems, 1977.
    A solver of feral is bound to one thread. All solvers share the same thread, unless an abandoned call still runs on
    it. A solver is kept in `RECENT` once it is used no more, and the next matrix with its pattern takes it. If all its
    matrices were definite, the factors have the same bits as after a new analysis; else rows may be paired by earlier
    values, as in an update, since feral's analysis looks at them where the diagonal is weak.
    """

    name = "feral"
    symmetry = HERMITIAN
    _owners: ClassVar[list[Owner]] = []  # more than one if abandoned calls still run

    def __init__(self, columns: Columns, ordering: str):
        """Analyse a symmetric pattern.

        ordering : feral's name of the ordering: "auto", "amd", "amf" or "metis".
        Raises ParameterError if feral-solver is not installed, or for complex values.
        """
        self._library = required(feral(), "feral", "feral-solver, which is not installed", "direct")
        if columns.dtype.kind == "c":
            raise ParameterError("backend='feral' takes real matrices, but A is complex; use 'superlu'.")
        super().__init__(columns, ordering)
        n = columns.shape[0]
        self._lower = np.flatnonzero(columns.indices >= np.repeat(np.arange(n), np.diff(columns.indptr)))
        starts = np.searchsorted(self._lower, columns.indptr)
        self._triangle = n, starts.astype(np.int64), columns.indices[self._lower].astype(np.int64)
        self._values: Any = None  # the values of the lower triangle
        self._kind = "feral", ordering, get_num_threads() > 1
        spare: Spare | None = RECENT.get(self._kind, *self.pattern)
        state = None if spare is None else spare.take()
        if state is not None and not state.owner.usable:
            state.owner.drop(state.box)
            state = None
        self._begin(state)

    def _begin(self, state: _Solver | None = None) -> None:
        """Take a solver, or make an empty box for one on a usable thread, which is started if there is none."""
        if state is None:
            with _lock:
                owner = next((owner for owner in LDL._owners if owner.usable), None)
                if owner is None:
                    owner = Owner()
                    LDL._owners.append(owner)
            state = _Solver(owner, owner.box())
        self._state = state
        self._dropped = weakref.finalize(self, _given_back, state, self._kind, self.pattern)
        self._dropped.atexit = False

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call function(box, *args) on the thread of the solver, which is in the box.

        A solver made in another process stays there. A solver whose thread still runs an abandoned call is dropped
        after that call, and made anew on another thread.
        """
        if not self._state.owner.usable:
            self._state.entries = 0
            self._dropped()
            self._begin()
        return self._state.owner.call(function, self._state.box, *args)

    def factor(self, columns: Columns, singular: Callable[[], str], require_room: Any = None) -> LDL:
        """Factor a symmetric matrix of the analysed pattern.  singular : gives the text of the error."""
        self._values = columns.data[self._lower].astype(np.float64)
        if self._state.box and not self._state.entries:
            self._dropped()
            self._begin()
        self._state.entries = 0
        inertia = self._inertia()
        if inertia is None or inertia.n_zero:
            raise SingularMatrix(singular())
        self._state.entries = self.nnz
        return self

    def _inertia(self) -> Any:
        """Factor, and return the inertia, None if unknown. A solver that other values were for gives way to a new one
        if it fails."""
        had_others, inertia = bool(self._state.box), None
        try:
            inertia, self.nnz = self._call(self._factored)
        except FineluError:
            deadline.check()
            if not had_others:
                raise
        if had_others and (inertia is None or inertia.n_zero):
            self._dropped()
            self._begin()
            inertia, self.nnz = self._call(self._factored)
            had_others = False
        if inertia is None or inertia.n_pos < self._triangle[0]:
            self._state.definite = False
        self.from_earlier = had_others and not self._state.definite
        return inertia

    def _factored(self, box: list[Any]) -> tuple[Any, int]:
        """Factor on the thread of the solver. Returns the inertia, None if unknown, and the number of entries."""
        if not box:
            box.append(self._library.Solver(ordering=self.how[0], parallel=get_num_threads() > 1))
        solver = box[0]
        try:
            solver.factor(self._library.CscMatrix(*self._triangle, self._values))
        except BaseException as error:  # a panic of Rust is not an Exception; no Ctrl-C arrives on this thread
            raise FineluError(f"SparseLU: feral gave up: {error}") from error
        return solver.inertia, int(solver.factor_nnz or 0)

    def solve(self, r: Any, trans: str) -> Any:
        if r.dtype.kind == "c":
            return self._call(self._of, r.real) + 1j * self._call(self._of, r.imag)
        return self._call(self._of, r).astype(r.dtype, copy=False)

    def let_go(self) -> None:
        self._state.entries = 0

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
