"""The time that a call may take: whoever sets it says so here, and whatever takes long asks.

`with limited(end)` sets a limit for the calling thread, and for what finelu's own threads do for it. Python code calls
`check` between steps, which raises OutOfTime once the time is over. A compiled kernel is given the array `halt()`,
looks at its number each row or so, and returns early where that is no longer 0; whoever called it calls `check` then.
What cannot be ended, as calls of LAPACK, is called by `finelu.foreign.leavable`.
"""

from __future__ import annotations

import math
import os
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any
from weakref import ref

import numpy as np

from finelu.errors import NoThread, OutOfTime

LONGEST = 1e6  # s that a thread waits for the end of the time: a later one is not set
NEVER = np.zeros(1, np.int64)  # what kernels look at where there is no limit; never written
UNLIMITED: AbstractContextManager[None] = nullcontext()


class _Here(threading.local):
    limit: ref[Limit] | None = None


_here = _Here()


class Watchdog:
    """The thread of this process that sets the numbers which kernels look at, when their time is over.

    It begins with the first limit that a kernel asks for. There is no lock that an exception out of a signal could
    leave taken: who adds a limit and the thread agree by `_wakes`, the time until which the thread sleeps. While the
    thread looks through the limits that is Inf, so that who adds one meanwhile wakes it. Were there ever two threads,
    each would do what is to be done.
    """

    def __init__(self) -> None:
        self._watched: dict[int, tuple[float, Any]] = {}  # by the `id` of the number: the end, and the number
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._wakes, self._begun = math.inf, False

    def watch(self, end: float, halt: Any) -> None:
        """Set halt[0] at `end`. Raises NoThread where the system has none left."""
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
            now, wakes = perf_counter(), math.inf
            for end, halt in tuple(self._watched.values()):
                if end <= now:
                    halt[0] = 1
                    self.forget(halt)
                else:
                    wakes = min(wakes, end)
            self._wakes = wakes
            with suppress(Empty):
                self._woken.get(timeout=None if wakes == math.inf else wakes - now)


_watchdog = Watchdog()


def _after_fork() -> None:
    """The thread is not in a forked process: each limit there asks for another, at the next look at it."""
    global _watchdog
    _watchdog = Watchdog()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Limit:
    """The end of the time, of `perf_counter`, and the number that kernels look at, which is 1 from then on."""

    def __init__(self, end: float):
        self.end = end
        self._halt = np.zeros(1, np.int64)
        self._watchdog: Watchdog | None = None  # that knows of it

    def remaining(self) -> float:
        return 0.0 if self._halt[0] else max(self.end - perf_counter(), 0.0)

    def over(self) -> bool:
        return self.remaining() == 0

    def halt(self) -> Any:
        """(1,) int64, with a thread that sets it in time, from the first call on."""
        if self._watchdog is not _watchdog and not self._halt[0]:
            if self.end <= perf_counter():
                self.expire()
            else:
                _watchdog.watch(self.end, self._halt)
                self._watchdog = _watchdog
        return self._halt

    def expire(self) -> None:
        """The time is over."""
        self._halt[0] = 1

    def close(self) -> None:
        """No thread waits for the end any more."""
        if self._watchdog is not None:
            self._watchdog.forget(self._halt)


def current() -> Limit | None:
    """The limit of the calling thread."""
    found = _here.limit
    return None if found is None else found()


class _Under:
    """`with` it, the calling thread has a limit, or none; that is closed at the end if it is its own."""

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
    """`with` it, the calling thread works for who has this limit."""
    return _Under(limit, own=False)


def limited(end: float) -> AbstractContextManager[None]:
    """`with` it, what is called ends by `end`, of `perf_counter`, or by the limit outside if that is earlier."""
    if end == math.inf or end - perf_counter() > LONGEST:
        return UNLIMITED
    outside = current()
    if outside is not None and outside.end <= end:
        return UNLIMITED  # but for the one outside
    return _Under(Limit(end), own=True)


def remaining() -> float:
    """Seconds until the limit, 0 beyond it; Inf without one."""
    found = _here.limit
    limit = None if found is None else found()
    return math.inf if limit is None else limit.remaining()


def check() -> None:
    """Raise OutOfTime where the time is over."""
    found = _here.limit
    if found is not None and (limit := found()) is not None and limit.over():
        raise OutOfTime


def halt() -> Any:
    """(1,) int64 : what a kernel looks at; no longer 0 once the time is over."""
    found = _here.limit
    limit = None if found is None else found()
    return NEVER if limit is None else limit.halt()
