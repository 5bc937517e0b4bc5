"""`Columns` on the CPU for methods whose steps have a form for several columns: their vectors are the columns of
arrays (n, k), row-major, so that a product or a step is one pass for all of them.

A column computes what it computes alone, to the bit. Columns that are done are taken out of the arrays once ENOUGH of
them are; until then they are carried along, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from finelu import deadline
from finelu.device import namespace
from finelu.kernels import kernels_for, monitor
from finelu.krylov.columns import ENOUGH, Columns, takes_columns
from finelu.krylov.loop import ROOM, Loop
from finelu.krylov.operators import Identity
from finelu.matrix import CSR
from finelu.result import Solution

# Columns from which on they take less time in arrays together. On one thread 8 with IC0 took 0.77 of the time of single
# ones, 5 1.08; 8 with Schwarz 0.6 to 0.9, 5 0.8 to 1.2.
FEWEST = 8
AT_ONCE = 1024  # rows that are transposed at a time: a cache holds them


class Rows:
    """An array (n, k) of vectors."""

    def __init__(self, array: Any):
        self.array = array

    @property
    def real(self) -> Rows:
        return Rows(self.array.real)

    def fill(self, value: float) -> None:
        self.array.fill(value)


class Small(Rows):
    """Scalars, (all columns,), or small arrays, (all columns, m)."""

    @property
    def real(self) -> Small:
        return Small(self.array.real)


class Made(Rows):
    """A vector that a product has made; its memory is taken for another once nothing refers to it: pages of a large
    array that is new take longer to get than to fill."""

    def __init__(self, array: Any, free: list[Any]):
        super().__init__(array)
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.array)


def put(rows: Any, columns: dict[int, Any]) -> None:
    """rows[:, place] = column for each place."""
    for begin in range(0, rows.shape[0], AT_ONCE):
        part = rows[begin : begin + AT_ONCE]
        for place, column in columns.items():
            part[:, place] = column[begin : begin + AT_ONCE]


def take(rows: Any, columns: dict[int, Any]) -> None:
    """column = rows[:, place] for each place."""
    for begin in range(0, rows.shape[0], AT_ONCE):
        part = rows[begin : begin + AT_ONCE]
        for place, column in columns.items():
            column[begin : begin + AT_ONCE] = part[:, place]


def by_columns(X: Any) -> Any:
    """X (n, k), with each column contiguous."""
    if namespace(X) is not np or X.flags.f_contiguous:
        return namespace(X).asfortranarray(X)
    columns = np.empty(X.shape[::-1], X.dtype)
    take(X, dict(enumerate(columns)))
    return columns.T


def by_rows(columns: Sequence[Any]) -> Any:
    """(n, k), row-major, from its columns."""
    if (xp := namespace(columns[0])) is not np:
        return xp.stack(columns, axis=1)
    X = np.empty((columns[0].size, len(columns)), columns[0].dtype)
    put(X, dict(enumerate(columns)))
    return X


class ColumnsInRows(Columns):
    """Several solves in progress, in the terms of `Loop`.

    which : the columns in the arrays, whose number c has the place c of `which`.
    states, norms, histories : of all columns; those of a loop are rows of them.
    """

    @staticmethod
    def alone(loop: Loop) -> bool:
        """Whether columns of this kind that do not suit iterate one after the other, which takes less time."""
        return loop.method.by_rows and loop.xp is np

    @staticmethod
    def suits(loops: list[Loop]) -> bool:
        """Whether these loops can run so, and gain by it: in memory that is not of a GPU, with one A and M, and without
        a look at x."""
        first = loops[0]
        return (
            ColumnsInRows.alone(first)
            and len(loops) >= FEWEST
            and all(loop.callback is None and loop.scale == 1 for loop in loops)
            and all(loop.A is first.A and loop.M is first.M for loop in loops)
        )

    def __init__(self, loops: list[Loop]):
        super().__init__(loops)
        first, k = loops[0], len(loops)
        self.which = np.arange(k)
        self.watched = any(loop.watch is not None for loop in loops)
        self.states = np.stack([loop.state for loop in loops])
        self.all_norms = np.stack([loop.norms for loop in loops])
        for loop, state, norms in zip(loops, self.states, self.all_norms, strict=True):
            loop.state, loop.norms = state, norms
            loop.norm = norms[monitor.NORM : monitor.NORM + 1]
        self._share_histories()
        self._spare = 0  # iterations that need no look at the loops
        self._vectors: list[Rows] = []
        self._free: list[Any] = []  # arrays (n, k) of products that are no longer needed
        self.A, self.M = (InRows(self, name) for name in ("A", "M"))  # type: ignore[assignment]
        self.xp, self.kernels = self, Kernels(self, first.kernels.columns)  # type: ignore[assignment]
        (self.x,) = self.vectors(1)  # type: ignore[assignment]
        self.best: Rows | None = None
        self.state, self.norms = Small(self.states), Small(self.all_norms)  # type: ignore[assignment]
        self.norm = Small(self.all_norms[:, monitor.NORM])  # type: ignore[assignment]
        self.given: Rows | None = None  # the right-hand sides, and the residuals of a stationary method
        self.rest: Rows | None = None
        self.rests: list[Any] = []  # of each column

    def _share_histories(self) -> None:
        room = max(max(loop.history.size for loop in self.loops), min(ROOM, self.maxiter + 1))
        shared = np.zeros((len(self.loops), room), self.real)
        for row, loop in zip(shared, self.loops, strict=True):
            row[: loop.history.size] = loop.history
            if loop.checks.size < room:
                loop.checks = loop.longer(loop.checks, room)
            loop.history = row
        self.histories = shared

    @property
    def history(self) -> Small:  # type: ignore[override]
        return Small(self.histories)

    def keeps_best(self) -> Rows:  # type: ignore[override]
        for loop in self.loops:
            loop.keeps_best()
        (self.best,) = self.vectors(1)
        return self.best

    def vectors(self, k: int) -> list[Rows]:  # type: ignore[override]
        made = [Rows(np.zeros((self.loops[0].b.size, self.which.size), self.dtype)) for _ in range(k)]
        self._vectors += made
        return made

    def room(self) -> Made:
        """A vector with any contents."""
        shape = self.loops[0].b.size, self.which.size
        while self._free:
            array = self._free.pop()
            if array.shape == shape:
                return Made(array, self._free)
        return Made(np.empty(shape, self.dtype), self._free)

    def scalars(self, k: int) -> list[Small]:  # type: ignore[override]
        return [Small(np.zeros(len(self.loops), self.dtype)) for _ in range(k)]

    def real_scalar(self) -> Small:  # type: ignore[override]
        return Small(np.zeros(len(self.loops), self.real))

    real_factor = real_scalar  # type: ignore[assignment]

    def zeros(self, m: int, dtype: Any) -> Small:
        return Small(np.zeros((len(self.loops), m), dtype))

    def empty_like(self, like: Rows) -> Made:
        return self.room()

    def residual(self, A: InRows, x: Rows) -> Rows:
        """b - A x, in the same vector each time."""
        if self.given is None or self.rest is None:
            self.given, self.rest = self.vectors(2)
            put(self.given.array, {place: self.loops[c].b for place, c in enumerate(self.which)})
            self.rests = [np.empty_like(loop.b) for loop in self.loops]
        A.subtracted(self.given, x, self.rest)
        return self.rest

    def forget(self) -> None:
        """Nothing is recorded."""

    def copyto(self, to: Rows, given: Rows) -> None:  # type: ignore[override]
        np.copyto(to.array, given.array)

    def repeated(self, step: Callable[[], None]) -> Callable[[], None]:
        return step

    def cycle(self, r: Rows) -> bool:  # type: ignore[override]
        self._write_back(range(self.which.size))
        first = {}
        for c in self.going:
            own = self.rests[c] if self.rests else np.empty(self.loops[c].b.size, self.dtype)
            if self.loops[c].cycle(own):
                first[c] = own
        self.active = self.going = tuple(first)
        if not first:
            self.which = np.arange(0)
            return False
        self.which, self._spare = np.array(self.going), 0
        for vector in self._vectors:
            if vector.array.shape[1] != len(first):
                vector.array = np.empty((vector.array.shape[0], len(first)), self.dtype)
        put(r.array, dict(enumerate(first.values())))
        if self.given is not None:
            put(self.given.array, {place: self.loops[c].b for place, c in enumerate(self.going)})
        for rows, columns in self._shared():
            put(rows.array, {place: columns[c] for place, c in enumerate(self.going)})
        return True

    def _shared(self) -> list[tuple[Any, list[Any]]]:
        """The vectors that the loops have, too, and those of all columns there."""
        shared: list[tuple[Any, list[Any]]] = [(self.x, [loop.x for loop in self.loops])]
        if self.best is not None:
            shared.append((self.best, [loop.best for loop in self.loops]))
        return shared if self.rest is None else [*shared, (self.rest, self.rests)]

    def _write_back(self, places: Any) -> None:
        """The loops of these columns get their vectors, once they have begun."""
        begun = [(int(place), int(c)) for place in places if self.loops[c := self.which[place]].cycles]
        for rows, columns in self._shared():
            take(rows.array, {place: columns[c] for place, c in begun})

    def goes_on(self) -> bool:
        deadline.check()
        stopped = any(self.loops[c].stopped for c in self.active)
        if self._spare > 0 and not stopped and (self.states[self.active, monitor.CODE] == monitor.RUNNING).all():
            self._spare -= 1
            return True
        self.active = tuple(c for c in self.active if self.loops[c].goes_on())
        if any(self.loops[c].history.base is not self.histories for c in self.active):
            self._share_histories()
        done = max((self.loops[c].iterations for c in self.active), default=0)
        self._spare = 0 if self.watched else min(self.maxiter, self.histories.shape[1] - 1) - done - 2
        stopped = any(self.loops[c].stopped for c in self.which)  # which the kernels do not know
        if self.active and (stopped or len(self.active) <= ENOUGH * self.which.size):
            self._take_out()
        return bool(self.active)

    def _take_out(self) -> None:
        """The arrays of the columns that go on."""
        going = np.isin(self.which, self.active)
        self._write_back(np.flatnonzero(~going))
        self._keep(going)

    def _keep(self, going: Any) -> None:
        """Keep the places of the arrays for which `going` is True."""
        for vector in self._vectors:
            vector.array = np.ascontiguousarray(vector.array[:, going])
        self.which = self.which[going]

    def singly(self, *rows: Rows) -> list[tuple[Any, ...]]:  # type: ignore[override]
        """As `Columns.singly`; vectors are copies."""
        parts: list[Any] = []
        places = {int(c): place for place, c in enumerate(self.which) if c in self.active}
        for each in rows:
            if isinstance(each, Small):
                own = {c: each.array[c : c + 1] if each.array.ndim == 1 else each.array[c] for c in places}
            else:
                own = {c: np.empty(each.array.shape[0], each.array.dtype) for c in places}
                take(each.array, {place: own[c] for c, place in places.items()})
            parts.append(own)
        return [(self.loops[c], *(own[c] for own in parts)) for c in places]

    def without(self, some: list[Loop]) -> bool:
        """As `Columns.without`. These loops have their vectors already."""
        if some:
            self._keep(np.array([self.loops[c] not in some for c in self.which], bool))
        return super().without(some)

    def rejoin(self) -> None:
        raise NotImplementedError("a method whose cycle has an end of its own has no steps for columns in rows")

    def tell(self) -> None:
        """No loop has a callback."""

    def end(self) -> list[Solution]:
        return [loop.end() for loop in self.loops]


class InRows:
    """Products with A or M for the columns in the arrays."""

    def __init__(self, columns: ColumnsInRows, name: str):
        self.columns, self.shared = columns, getattr(columns.loops[0], name)
        self.takes_columns = takes_columns(self.shared)
        self.of_matrix = isinstance(getattr(self.shared, "matrix", None), CSR)

    @property
    def deflated(self) -> Deflated | None:
        form = self.shared.deflated
        return None if form is None else Deflated(self.columns, form)

    def __matmul__(self, x: Rows) -> Rows:
        if isinstance(self.shared, Identity):
            return x
        product, k = self.columns.room(), x.array.shape[1]
        if k > 1 and self.takes_columns:
            self.shared.apply(x.array, out=product.array)
            return product
        for c in range(k):
            product.array[:, c] = self.shared @ np.ascontiguousarray(x.array[:, c])
        return product

    def residual(self, b: Any, x: Rows) -> Rows:
        return self.columns.residual(self, x)

    def subtracted(self, b: Rows, x: Rows, out: Rows) -> None:
        """out = b - A x."""
        if self.takes_columns and self.shared.subtract is None:
            np.subtract(b.array, (self @ x).array, out=out.array)
            return
        for c in range(x.array.shape[1]):
            out.array[:, c] = self.shared.residual(*(np.ascontiguousarray(v.array[:, c]) for v in (b, x)))

    def with_dot(self, x: Rows, y: Rows, total: Rows) -> Rows:
        if not self.of_matrix or x.array.shape[1] == 1:
            product = self @ x
            self.columns.kernels.vectors.dot(y, product, total)
            return product
        product = self.columns.room()
        arrays = (v.array for v in (x, y, total, product))
        kernels_for(x.array).products.columns_with_dots(self.shared.apply, self.columns.which, *arrays)
        return product


class Deflated:
    """The cheaper form of M in cg, see preconditioners/schwarz/deflation.py, for the columns in the arrays."""

    def __init__(self, columns: ColumnsInRows, form: Any):
        self.columns, self.form, self.moves = columns, form, form.moves

    def start(self, A: InRows, x: Rows, r: Rows) -> bool:
        """Whether all columns may take this form."""
        places = range(self.columns.which.size)
        of_x, of_r = ({place: np.empty(v.array.shape[0], v.array.dtype) for place in places} for v in (x, r))
        for rows, columns in ((x, of_x), (r, of_r)):
            take(rows.array, columns)
        started = [self.form.start(A.shared, of_x[place], of_r[place]) for place in places]
        for rows, columns in ((x, of_x), (r, of_r)):
            put(rows.array, columns)
        return all(started)

    def __matmul__(self, r: Rows) -> Rows:
        if r.array.shape[1] == 1:
            return Rows((self.form @ np.ascontiguousarray(r.array[:, 0]))[:, None])
        return Rows(self.form @ r.array)

    def turn(self, state: Rows, r: Rows, rho: Rows, rho_old: Rows, p: Rows, move: Any = None) -> None:
        columns = self.columns
        if self.form.overlaps:
            z = self @ r
            columns.kernels.vectors.dot(r, z, rho)
            columns.kernels.recurrences.direction(state, rho.real, rho_old.real, z, p, None, None)
        else:
            arrays = (v.array for v in (state, r, rho, rho_old, p))
            self.form.turn_columns(columns.which, *arrays, columns.room().array, tuple(v.array for v in move))


class Kernels:
    """The steps for columns, under the families that have them for one."""

    def __init__(self, columns: ColumnsInRows, family: Any):
        self._columns, self._family = columns, family
        self.vectors = self.recurrences = self

    def __getattr__(self, name: str) -> Any:
        kernel, columns = getattr(self._family, name), self._columns

        def step(*arguments: Any) -> None:
            kernel(columns.which, *(a.array if isinstance(a, Rows) else a for a in arguments))

        setattr(self, name, step)
        return step
