"""What Numba spends on compiling kernels or fetching compiled ones from the disk, which a later call does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
