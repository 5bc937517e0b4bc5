"""What Numba spends on compiling kernels or fetching compiled ones from the disk, and the one line that tells of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

ONCE = "finelu: compiling kernels, once: some seconds; `finelu warmup` compiles them all"
EACH_TIME = (
    "finelu: compiling kernels, some seconds in every process, as no folder for them can be written; "
    "set NUMBA_CACHE_DIR to one"
)

_lock = threading.Lock()
_quiet = 0  # blocks that want no line
_said = False
_kept = True


@contextmanager
def compile_clock(tell: Callable[[float | None], object] = lambda _: None) -> Iterator[Callable[[], float]]:
    """A clock of those seconds since the block began. tell(None), tell(seconds): such a time begins, has ended."""
    from numba.core import event

    class Clock(event.TimingListener):
        def on_start(self, started):
            if self._depth == 0:
                tell(None)
            super().on_start(started)

        def on_end(self, ended):
            super().on_end(ended)
            if self._depth == 0:
                tell(self.duration)

    with event.install_listener("numba:compiler_lock", Clock()) as clock:
        yield lambda: clock.duration if clock.done else 0.0


@contextmanager
def quietly(wanted: bool = True) -> Iterator[None]:
    """Without the line, in all threads, as several may work on one call."""
    global _quiet
    with _lock:
        _quiet += wanted
    try:
        yield
    finally:
        with _lock:
            _quiet -= wanted


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
