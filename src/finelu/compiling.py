"""The time of Numba for compiling kernels, and the two lines on stderr that tell of it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

BEGUN = "finelu: compiling kernels at their first use"
DONE = "finelu: compiled {} in {:.1f} s"
EACH_TIME = "; every process compiles them anew, as no folder for them can be written: set FINELU_CACHE to one"
SILENT = "FINELU_SILENT"  # a variable: no such lines in this process

eager = False  # see `compile_eagerly`
_lock = threading.Lock()
_quiet = 0  # number of active blocks without the line
_said = False
_kept = True
untold, _told = 0, 0.0  # kernels that were compiled since the last line of it, and the seconds until then


class _Clock:
    """The seconds in which at least one thread has compiled or fetched a kernel, and the listeners to them."""

    def __init__(self) -> None:
        self.depth = 0
        self.spent: tuple[float, float | None] = 0.0, None  # the seconds until the last end, and when it last began
        self.listeners: list[Callable[[bool], object]] = []

    def begin(self) -> None:
        with _lock:
            self.depth += 1
            first = self.depth == 1
            if first:
                self.spent = self.spent[0], perf_counter()
        if first:
            self._tell(True)

    def end(self) -> None:
        with _lock:
            self.depth -= 1
            last = self.depth == 0
            if last:
                self.spent = compile_seconds(), None
        if last:
            self._tell(False)

    def _tell(self, begins: bool) -> None:
        for listener in [*self.listeners]:
            with suppress(OSError):  # the reader of a pipe is gone: the time is counted all the same
                listener(begins)


_clock = _Clock()
begin, end = _clock.begin, _clock.end


def _after_fork() -> None:
    """A child has none of its parent's threads, of which one may have been compiling."""
    global _lock
    _lock, _clock.depth, _clock.spent = threading.Lock(), 0, (compile_seconds(), None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def compile_seconds() -> float:
    """These seconds of this process so far: their difference between two calls is the part of what lies between."""
    spent, since = _clock.spent  # both of one moment, whatever other threads do
    return spent if since is None else spent + perf_counter() - since


def now() -> float:
    """The seconds of `perf_counter` without those in which any thread compiles, for time limits; never less."""
    present = perf_counter()
    spent, since = _clock.spent
    return (present if since is None else min(present, since)) - spent


@contextmanager
def compile_clock(tell: Callable[[float | None], object] = lambda _: None) -> Iterator[Callable[[], float]]:
    """A clock of these seconds since the block began. tell(None) is called when such a time begins, tell(seconds) when
    it has ended."""
    start = compile_seconds()

    def listener(begins: bool) -> None:
        tell(None if begins else compile_seconds() - start)

    _clock.listeners.append(listener)
    try:
        yield lambda: compile_seconds() - start
    finally:
        _clock.listeners.remove(listener)


@contextmanager
def quietly(wanted: bool = True) -> Iterator[None]:
    """A block without the line, in all threads, as several may work on one call."""
    global _quiet
    with _lock:
        _quiet += wanted
    try:
        yield
    finally:
        with _lock:
            _quiet -= wanted


def compile_eagerly() -> None:
    """From now on also compile kernels that pay only if they are compiled already, as for a measurement."""
    global eager
    eager = True


class KernelMissing(BaseException):
    """Ends a call that has another answer than by its kernels. No handler of errors takes it for one."""

    def __init__(self, answer: Any):
        super().__init__()
        self.answer = answer


class _Here(threading.local):
    """otherwise : a function that returns another answer for the call which this thread works on, or a false one; None
    if the call has to wait. It is called before a kernel is compiled, on any thread of the call, and must not call
    kernels.
    waits : see `waiting`.
    """

    otherwise: Callable[[], Any] | None = None
    waits = False


here = _Here()


@contextmanager
def waiting() -> Iterator[None]:
    """A block in which calls wait for their kernels."""
    before, here.waits = here.waits, True
    try:
        yield
    finally:
        here.waits = before


def begun() -> None:
    """A kernel is being compiled: a line on stderr, once a process. Raises KernelMissing, see `here`."""
    global _said, untold, _told
    if (otherwise := here.otherwise) is not None:
        here.otherwise = None  # while it is asked
        try:
            answer = otherwise()
        finally:
            here.otherwise = otherwise
        if answer:
            raise KernelMissing(answer)
    if not untold:
        _told = _clock.spent[0]  # what others have compiled before
    untold += not _quiet
    if not _said:
        _said = tell(BEGUN)


class Calls(threading.local):
    """The number of public calls that this thread is in."""

    depth = 0


calls = Calls()


def ended() -> None:
    """The outermost call of a thread has ended in which kernels were compiled: a line on stderr says how many."""
    global untold, _told
    total = compile_seconds()
    count, seconds, untold, _told = untold, total - _told, 0, total
    kernels = "1 kernel" if count == 1 else f"{count} kernels"
    tell(DONE.format(kernels, seconds) + ("" if _kept else EACH_TIME))


def tell(line: str) -> bool:
    """Print a line on stderr, if a line is wanted: whether it was printed."""
    with suppress(AttributeError, ValueError, OSError):  # no stream at all, a closed one, a terminal that has gone
        if sys.stderr is not None and not _quiet and not os.environ.get(SILENT):
            print(line, file=sys.stderr)
            return True
    return False


def not_kept() -> None:
    """Compiled code could not be written to the disk; the line says so, where it is printed."""
    global _kept
    _kept = False


def kept() -> bool:
    """Whether all that was compiled so far could be kept."""
    return _kept
