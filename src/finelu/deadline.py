"""The time limit of a call: set here, and tested by all long work.

`with limited(end)` sets a limit for the calling thread, and for the work of finelu's threads for it. Python code calls
`check` between steps, which raises OutOfTime once the time is over. A compiled kernel gets the array `halt()`, reads
its number about once per row, and returns early if it is no longer 0; its caller then calls `check`. Calls that cannot
be ended, such as those of LAPACK, are made by `finelu.foreign.leavable`. The clock of limits stands still while a
thread compiles kernels: a limit is for the work.
"""

from __future__ import annotations

import math
import os
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any
from weakref import ref

import numpy as np

from finelu.compiling import now
from finelu.errors import NoThread, OutOfTime

LONGEST = 1e6  # s that a thread waits for the end of the time; a later end is no limit
LEAST_WAIT = 1e-3  # s; the clock may stand still
NEVER = np.zeros(1, np.int64)  # the number that kernels read without a limit; never written
UNLIMITED: AbstractContextManager[None] = nullcontext()


class _Here(threading.local):
    limit: ref[Limit] | None = None


_here = _Here()


class Watchdog:
    """The thread of this process that sets the numbers which kernels read, when their time is over.

    It begins with the first limit for a kernel. There is no lock that an exception from a signal could leave taken:
    `_wakes` is the time until which the thread sleeps, and a caller that adds an earlier limit wakes it. While the
    thread goes through the limits `_wakes` is Inf, so that a caller that adds one meanwhile wakes it, too. Two such
    threads would do no harm.
    """

    def __init__(self) -> None:
        self._watched: dict[int, tuple[float, Any]] = {}  # by the `id` of the number: the end, and the number
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._wakes, self._begun = math.inf, False

    def watch(self, end: float, halt: Any) -> None:
        """Set halt[0] at `end`. Raises NoThread if the system cannot start a thread."""
        if not self._begun:
            try:
                threading.Thread(target=self._run, name="finelu_deadline", daemon=True).start()
            except RuntimeError as error:
                raise NoThread("keep a time limit", error) from error
            self._begun = True
        self._watched[id(halt)] = end, halt
        if end < self._wakes:
            self._woken.put(None)

    def forget(self, halt: Any) -> None:
        self._watched.pop(id(halt), None)

    def _run(self) -> None:
        while True:
            self._wakes = math.inf
            present, wakes = now(), math.inf
            for end, halt in tuple(self._watched.values()):
                if end <= present:
                    halt[0] = 1
                    self.forget(halt)
                else:
                    wakes = min(wakes, end)
            self._wakes = wakes
            with suppress(Empty):
                self._woken.get(timeout=None if wakes == math.inf else max(wakes - present, LEAST_WAIT))


_watchdog = Watchdog()


def _after_fork() -> None:
    """A forked process does not have the thread: each limit starts another one at its next use."""
    global _watchdog
    _watchdog = Watchdog()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Limit:
    """The end of the time, of `compiling.now`, and the number that kernels read, which is 1 from then on."""

    def __init__(self, end: float):
        self.end = end
        self._halt = np.zeros(1, np.int64)
        self._watchdog: Watchdog | None = None  # the one that watches this limit

    def remaining(self) -> float:
        return 0.0 if self._halt[0] else max(self.end - now(), 0.0)

    def over(self) -> bool:
        return self.remaining() == 0

    def halt(self) -> Any:
        """(1,) int64; from the first call on a thread sets it in time."""
        if self._watchdog is not _watchdog and not self._halt[0]:
            if self.end <= now():
                self.expire()
            else:
                _watchdog.watch(self.end, self._halt)
                self._watchdog = _watchdog
        return self._halt

    def expire(self) -> None:
        """The time is over."""
        self._halt[0] = 1

    def close(self) -> None:
        """Let no thread wait for the end any longer."""
        if self._watchdog is not None:
            self._watchdog.forget(self._halt)


def current() -> Limit | None:
    """The limit of the calling thread."""
    found = _here.limit
    return None if found is None else found()


class _Under:
    """A context in which the calling thread has a limit, or none; it is closed at the end if it was made here."""

    def __init__(self, limit: Limit | None, *, own: bool):
        self._limit, self._own = limit, own

    def __enter__(self) -> None:
        self._before = _here.limit
        # A Ctrl-C may leave the reference there, but not the limit itself.
        _here.limit = None if self._limit is None else ref(self._limit)

    def __exit__(self, *_: object) -> None:
        _here.limit = self._before
        if self._own and self._limit is not None:
            self._limit.close()


def under(limit: Limit | None) -> AbstractContextManager[None]:
    """A context in which the calling thread has this limit."""
    return _Under(limit, own=False)


def limited(end: float) -> AbstractContextManager[None]:
    """A context in which calls end by `end`, of `compiling.now`, or by an outer limit if that is earlier."""
    if end == math.inf or end - now() > LONGEST:
        return UNLIMITED
    outside = current()
    if outside is not None and outside.end <= end:
        return UNLIMITED  # except for an outer limit
    return _Under(Limit(end), own=True)


def remaining() -> float:
    """Seconds until the limit, 0 beyond it; Inf without one."""
    found = _here.limit
    limit = None if found is None else found()
    return math.inf if limit is None else limit.remaining()


def check() -> None:
    """Raise OutOfTime if the time is over."""
    found = _here.limit
    if found is not None and (limit := found()) is not None and limit.over():
        raise OutOfTime


def halt() -> Any:
    """(1,) int64 : the number that kernels read; no longer 0 once the time is over."""
    found = _here.limit
    limit = None if found is None else found()
    return NEVER if limit is None else limit.halt()
