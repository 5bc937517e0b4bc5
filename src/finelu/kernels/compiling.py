"""The time of Numba for compiling kernels, or loading compiled ones from the disk, and the one line that reports it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from time import perf_counter

from finelu.threads import import_numba

ONCE = "finelu: compiling kernels, once: some seconds; `finelu warmup` compiles them all"
EACH_TIME = (
    "finelu: compiling kernels, some seconds in every process, as no folder for them can be written; "
    "set NUMBA_CACHE_DIR to one"
)

eager = False  # see `compile_eagerly`
_lock = threading.Lock()
_quiet = 0  # number of active blocks without the line
_said = False
_kept = True


class _Clock:
    """The seconds in which at least one thread has compiled or fetched a kernel, and the listeners to them."""

    def __init__(self) -> None:
        self.spent, self.depth, self.since = 0.0, 0, 0.0
        self.listeners: list[Callable[[bool], object]] = []

    def begin(self) -> None:
        with _lock:
            self.depth += 1
            first = self.depth == 1
            if first:
                self.since = perf_counter()
        if first:
            self._tell(True)

    def end(self) -> None:
        with _lock:
            self.depth -= 1
            last = self.depth == 0
            if last:
                self.spent += perf_counter() - self.since
        if last:
            self._tell(False)

    def _tell(self, begins: bool) -> None:
        for listener in [*self.listeners]:
            with suppress(OSError):  # the reader of a pipe is gone: the time is counted all the same
                listener(begins)


_clock = _Clock()


def _after_fork() -> None:
    """A child has none of its parent's threads, of which one may have been compiling."""
    global _lock
    _lock, _clock.depth = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def listen() -> None:
    """Listen to all compilations and loads of Numba from now on: the one listener of a process."""
    import_numba()
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, started):
            if started.kind == "numba:compiler_lock":
                _clock.begin()
            elif started.data["dispatcher"].py_func.__module__.startswith("finelu."):
                begun()

        def on_end(self, ended):
            if ended.kind == "numba:compiler_lock":
                _clock.end()

    listener = Listener()
    event.register("numba:compile", listener)
    event.register("numba:compiler_lock", listener)


def compile_seconds() -> float:
    """These seconds of this process so far: their difference between two calls is the part of what lies between."""
    listen()
    return _clock.spent + (perf_counter() - _clock.since if _clock.depth else 0.0)


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


def begun() -> None:
    """A kernel is being compiled: a line on stderr, if that is a terminal, once a process."""
    global _said
    if not _said:
        _said = tell(ONCE if _kept else EACH_TIME)


def tell(line: str) -> bool:
    """Print a line on stderr if that is a terminal and a line is wanted: whether it was printed."""
    with suppress(AttributeError, ValueError, OSError):  # no stream at all, a closed one, a terminal that has gone
        if not _quiet and sys.stderr.isatty():
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
