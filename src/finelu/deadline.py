"""The time that a call may take: whoever sets it says so here, and whatever takes long asks.

`with limited(end)` sets a limit for the calling thread, and for what finelu's own threads do for it. Python code calls
`check` between steps, which raises OutOfTime once the time is over. A compiled kernel is given the array `halt()`,
looks at its number each row or so, and returns early where that is no longer 0; whoever called it calls `check` then.
What cannot be ended, as calls of LAPACK, is called by `finelu.foreign.leavable`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from weakref import ref

import numpy as np

from finelu.errors import OutOfTime

LONGEST = 1e6  # s that a thread waits for the end of the time: a later one is not set
NEVER = np.zeros(1, np.int64)  # what kernels look at where there is no limit; never written

_here = threading.local()


class Limit:
    """The end of the time, of `perf_counter`, and the number that kernels look at, which is 1 from then on."""

    def __init__(self, end: float):
        self.end = end
        self._halt = np.zeros(1, np.int64)
        self._watchdog: threading.Timer | None = None
        self._lock = threading.Lock()

    def remaining(self) -> float:
        return 0.0 if self._halt[0] else max(self.end - perf_counter(), 0.0)

    def over(self) -> bool:
        return self.remaining() == 0

    def halt(self) -> Any:
        """(1,) int64, with a thread that sets it in time, from the first call on."""
        with self._lock:
            if self._watchdog is None and not self._halt[0]:
                wait = max(self.end - perf_counter(), 0.0)
                self._watchdog = threading.Timer(wait, self._halt.__setitem__, (0, 1))
                self._watchdog.name, self._watchdog.daemon = "finelu_deadline", True
                self._watchdog.start()
        return self._halt

    def expire(self) -> None:
        """The time is over."""
        self._halt[0] = 1

    def close(self) -> None:
        """No thread waits for the end any more."""
        if self._watchdog is not None:
            self._watchdog.cancel()


def current() -> Limit | None:
    """The limit of the calling thread."""
    found = getattr(_here, "limit", None)
    return None if found is None else found()


@contextmanager
def under(limit: Limit | None) -> Iterator[None]:
    """The calling thread works for who has this limit."""
    before = getattr(_here, "limit", None)
    try:
        _here.limit = None if limit is None else ref(limit)  # a Ctrl-C may leave it there, but not the limit itself
        yield
    finally:
        _here.limit = before


@contextmanager
def limited(end: float) -> Iterator[None]:
    """Let what is called inside end by `end`, of `perf_counter`, or by the limit outside if that is earlier."""
    outside = current()
    if end - perf_counter() > LONGEST or (outside is not None and outside.end <= end):
        yield
        return
    limit = Limit(end)
    try:
        with under(limit):
            yield
    finally:
        limit.close()


def remaining() -> float:
    """Seconds until the limit, 0 beyond it; Inf without one."""
    limit = current()
    return math.inf if limit is None else limit.remaining()


def check() -> None:
    """Raise OutOfTime where the time is over."""
    limit = current()
    if limit is not None and limit.over():
        raise OutOfTime


def halt() -> Any:
    """(1,) int64 : what a kernel looks at; no longer 0 once the time is over."""
    limit = current()
    return NEVER if limit is None else limit.halt()
