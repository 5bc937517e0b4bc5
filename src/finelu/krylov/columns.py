"""A Krylov method for several right-hand sides at once: each column has a `Loop` of its own, so its own scalars, norms,
history and end; products with A and M are formed for all columns that still iterate.

The code of a method is that for one right-hand side: `Columns` looks like a `Loop`, but its vectors and scalars are
`Stack`s, and a kernel runs for one column after the other; in a recorded step those of different columns run at
the same time, and products wait for all of them. A column computes what it computes alone; on the CPU, where
products with several columns have the bits of products with one, it has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from finelu import deadline
from finelu.factors import Factors
from finelu.kernels import monitor
from finelu.krylov.loop import Loop, updates_of
from finelu.krylov.operators import Identity, Operator
from finelu.krylov.system import System
from finelu.matrix import CSR
from finelu.result import Solution

# The part of the columns of a recorded step that still iterate, up to which it is recorded anew without the others.
ENOUGH = 0.75


class Stack:
    """An array for each column.

    parts : the arrays, None for a column that has none.
    whole (k, ...), which : the parts of the columns `which` side by side, if they lie in one array; else None, ().
    """

    def __init__(self, parts: list[Any], whole: Any = None, which: tuple[int, ...] = ()):
        self.parts, self.whole, self.which = parts, whole, which

    @property
    def real(self) -> Stack:
        return Stack([part.real for part in self.parts])

    def fill(self, value: float) -> None:
        for part in self.parts:
            part.fill(value)

    @property
    def size(self) -> int:
        """The elements of one column."""
        return int(self.parts[0].size)

    def rows(self, which: tuple[int, ...], xp: Any) -> Any:
        """(len(which), ...) : the parts of these columns side by side, a copy if they do not lie so."""
        if self.which == which:
            return self.whole
        rows = xp.empty((len(which), *self.parts[which[0]].shape), self.parts[which[0]].dtype)
        for row, c in zip(rows, which, strict=True):
            xp.copyto(row, self.parts[c])  # one by one: cupy.stack brings addresses from the host, which no graph keeps
        return rows


class Columns:
    """Several solves in progress, in the terms of `Loop`; a method that runs on it uses no other attributes.

    loops : one for each column; their systems have the same A and M.
    active : the columns that take part in the next step.
    going : the columns of the present cycle.
    """

    comm = None
    recorded: Any = None

    def __init__(self, loops: list[Loop]):
        first = loops[0]
        self.loops, self.method = loops, first.method
        self.one, self.dtype, self.real, self.maxiter = first.xp, first.dtype, first.real, first.maxiter
        self.active = self.going = tuple(range(len(loops)))
        self.A, self.M = (Together(self, name) for name in ("A", "M"))
        self.xp, self.kernels = Arrays(self), Kernels(self, first.kernels)
        gpu = first.xp is not np
        self.branch: Any = first.kernels.recording.branch if gpu else lambda c: nullcontext()
        self.join: Any = first.kernels.recording.join if gpu else lambda: None
        self.x, self.b, self.state, self.norms, self.norm = (
            self.each(name) for name in ("x", "b", "state", "norms", "norm")
        )

    def each(self, name: str) -> Stack:
        """An attribute of each loop."""
        return Stack([getattr(loop, name) for loop in self.loops])

    @property
    def history(self) -> Stack:
        return self.each("history")

    def keeps_best(self) -> Stack:
        return Stack([loop.keeps_best() for loop in self.loops])

    def doubts_restarts(self) -> None:
        for loop in self.loops:
            loop.doubts_restarts()

    def made(self, shape: Any, dtype: Any) -> Stack:
        """A Stack of zeros."""
        count = len(self.loops)
        whole = self.one.zeros((count, *np.atleast_1d(shape)), dtype)
        return Stack(list(whole), whole, tuple(range(count)))

    def vectors(self, k: int) -> list[Stack]:
        return [self.made(self.x.size, self.dtype) for _ in range(k)]

    def copyto(self, to: Stack, given: Stack) -> None:
        self.xp.copyto(to, given)

    def scalars(self, k: int) -> list[Stack]:
        return [self.made(1, self.dtype) for _ in range(k)]

    def real_scalar(self) -> Stack:
        return self.made(1, self.real)

    real_factor = real_scalar

    def repeated(self, step: Callable[[], None]) -> Callable[[], None]:
        """As `Loop.repeated`; what was recorded for other columns, other arrays of the histories, or factors that a
        callback has updated since, is dropped."""
        if not all(loop.A.capturable and loop.M.capturable for loop in self.loops):
            return step
        self.recorded = recorded = self.loops[0].kernels.recording.Repeated(step)
        made_for: list[Any] = []

        def launch() -> None:
            now = [(self.active, updates_of(self.M.shared)), *(self.loops[c].history for c in self.active)]
            if (
                len(now) != len(made_for)
                or now[0] != made_for[0]
                or any(a is not b for a, b in zip(now[1:], made_for[1:]))
            ):
                recorded.forget()
                made_for[:] = now
            recorded()

        return launch

    def cycle(self, r: Stack) -> bool:
        """Whether another cycle is due for any column. Columns whose cycle ended earlier have waited for this."""
        self.active = self.going = tuple(c for c in self.going if self.loops[c].cycle(r.parts[c]))
        return bool(self.active)

    def goes_on(self) -> bool:
        """Whether one more iteration is due for any column; others take no part in it."""
        deadline.check()
        running = tuple(c for c in self.active if self.loops[c].goes_on())
        ended = all(c in running or self.loops[c].code != monitor.RUNNING for c in self.active)
        # kernels leave a column as it is that has ended by its norms: to record the step anew takes longer
        if self.recorded is None or not ended or len(running) <= ENOUGH * len(self.active):
            self.active = running
        return bool(running)

    def singly(self, *stacks: Stack) -> list[tuple[Any, ...]]:
        """(loop, *arrays) of each active column, for what the host decides for one column after the other. The arrays
        may be written to, except vectors of `ColumnsInRows`."""
        return [(self.loops[c], *(stack.parts[c] for stack in stacks)) for c in self.active]

    def without(self, some: list[Loop]) -> bool:
        """Leave columns out of this cycle; whether others are active."""
        self.active = tuple(c for c in self.active if self.loops[c] not in some)
        return bool(self.active)

    def rejoin(self) -> None:
        """All columns of the cycle take part in what ends it."""
        self.active = self.going

    def tell(self) -> None:
        for c in self.active:
            self.loops[c].tell()

    def end(self) -> list[Solution]:
        self.recorded = None
        return [loop.end() for loop in self.loops]


class Together:
    """Products with A or M for all active columns."""

    deflated = None

    def __init__(self, columns: Columns, name: str):
        self.columns = columns
        self.each = [getattr(loop, name) for loop in columns.loops]
        self.shared = columns.loops[0].system.A if name == "A" else columns.loops[0].system.M
        self.takes_columns = takes_columns(self.shared)
        self.rests: list[Any] = [None] * len(self.each)

    def residual(self, b: Stack, x: Stack) -> Stack:
        """b - A x of the active columns; of others, that of their last step."""
        columns = self.columns
        columns.join()
        together = self.takes_columns and getattr(self.shared, "subtract", None) is None
        product = self @ x if together and len(columns.active) > 1 else None
        for c in columns.active:
            if product is None:
                self.rests[c] = self.each[c].residual(b.parts[c], x.parts[c])
            else:
                self.rests[c] = b.parts[c] - product.parts[c]
        return Stack(list(self.rests))

    def __matmul__(self, x: Stack) -> Stack:
        if isinstance(self.shared, Identity):
            return x
        columns, shared = self.columns, self.shared
        columns.join()
        parts: list[Any] = [None] * len(self.each)
        # a system with extreme numbers has multiples of A and M of its own
        which = tuple(c for c in columns.active if self.takes_columns and self.each[c] is shared)
        if len(which) > 1:
            whole = columns.one.ascontiguousarray(shared.apply(x.rows(which, columns.one).T).T)
            for part, c in zip(whole, which, strict=True):
                parts[c] = part
        else:
            whole, which = None, ()
        for c in columns.active:
            if parts[c] is None:
                parts[c] = self.each[c] @ x.parts[c]
        return Stack(parts, whole, which)

    def with_dot(self, x: Stack, y: Stack, total: Stack) -> Stack:
        product = self @ x
        self.columns.kernels.vectors.dot(y, product, total)
        return product


def takes_columns(operator: Any) -> bool:
    """Whether the product of an operator takes (n, k), in less time than one column after the other."""
    given = operator.given if isinstance(operator, Operator) else None
    of_factors = isinstance(given, Factors) and given.together and operator.apply == given.apply
    return of_factors or isinstance(getattr(operator, "matrix", None), CSR)


def gains(system: System, count: int) -> bool:
    """Whether that many columns with this A and M take less time together."""
    by = system.A if isinstance(system.M, Identity) else system.M
    given = by.given if isinstance(by, Operator) else None
    return takes_columns(by) and count >= (given.together_from if isinstance(given, Factors) else 2)


class Arrays:
    """The functions of numpy or cupy that methods call, for Stacks."""

    def __init__(self, columns: Columns):
        self.columns = columns

    def zeros(self, shape: Any, dtype: Any, order: str = "C") -> Stack:
        return Stack([self.columns.one.zeros(shape, dtype, order) for _ in self.columns.loops])

    def empty_like(self, like: Stack) -> Stack:
        return Stack([None if part is None else self.columns.one.empty_like(part) for part in like.parts])

    def copyto(self, to: Stack, given: Stack) -> None:
        for c in self.columns.active:
            with self.columns.branch(c):
                self.columns.one.copyto(to.parts[c], given.parts[c])


class Kernels:
    """The families of kernels, each kernel for one active column after the other."""

    def __init__(self, columns: Columns, kernels: Any):
        self._columns, self._kernels = columns, kernels

    def __getattr__(self, family: str) -> Any:
        found = _Family(self._columns, getattr(self._kernels, family))
        setattr(self, family, found)
        return found


class _Family:
    def __init__(self, columns: Columns, family: Any):
        self._columns, self._family = columns, family

    def __getattr__(self, name: str) -> Any:
        kernel, columns = getattr(self._family, name), self._columns

        def each(*arguments: Any) -> None:
            stacks = [argument.parts if isinstance(argument, Stack) else None for argument in arguments]
            for c in columns.active:
                with columns.branch(c):
                    kernel(*[a if parts is None else parts[c] for a, parts in zip(arguments, stacks, strict=True)])

        setattr(self, name, each)
        return each
