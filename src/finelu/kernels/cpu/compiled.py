"""How the kernels are compiled, and how their machine code is kept for later processes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from numba import config, njit
from numba.core import event
from numba.core.caching import FunctionCache

from finelu.errors import DeviceError
from finelu.kernels import compiling

if config.DISABLE_JIT:
    raise DeviceError(
        "NUMBA_DISABLE_JIT is set, but the kernels of the CPU are nothing without Numba's compiler; unset it."
    )


PATIENCE = 10.0  # s that one process waits for another that keeps a kernel, which takes milliseconds

_locks: set[IO] = set()  # open ones; a child that is forked meanwhile has no use for them
_stuck = False  # somebody kept the others waiting for longer: nobody is waited for again


class Cache(FunctionCache):
    """Numba's cache on the disk, but what cannot be written there is used all the same, and processes take turns.

    Without turns, two that compile one function for two dtypes at once may give both the same file.
    """

    def save_overload(self, sig, data):
        try:
            with _alone(Path(self.cache_path)) as alone:
                if alone:
                    super().save_overload(sig, data)
                else:
                    compiling.not_kept()
        except OSError:  # no room, or no permission any more
            compiling.not_kept()


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether no other process is inside, for this folder; on file systems without locks, True."""
    with open(folder / "finelu.lock", "w") as lock:
        _locks.add(lock)
        try:
            yield _taken(lock)
        finally:
            _locks.discard(lock)
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # closing it is not enough where a child has the same open file


def _taken(lock: IO) -> bool:
    """Whether the lock is ours now, after waiting at most PATIENCE seconds for it."""
    global _stuck
    end = time.monotonic() + (0.0 if _stuck else PATIENCE)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                break
            time.sleep(0.01)
        except OSError:  # no locks here
            return True
    if not _stuck:
        _stuck = True
        compiling.tell(f"finelu: another process has held {lock.name} for {PATIENCE:g} s; kernels are not kept")
    return False


def _forked() -> None:
    """In a child, whose copy of an open lock would hold it for as long as the child lives."""
    for lock in _locks:
        lock.close()
    _locks.clear()


os.register_at_fork(after_in_child=_forked)


def compiled(function: Callable, **options) -> Callable:
    """Numba's njit, as all kernels need it."""
    kernel = njit(nogil=True, error_model="numpy", **options)(function)
    try:
        kernel._cache = Cache(function)  # where Numba's decorator puts its own, with cache=True
    except RuntimeError:  # none of the folders that it knows can be written
        compiling.not_kept()
    return kernel


# Sums in the order that the vector unit likes, the same in every run; NaN and Inf stay what they are. Not BLAS: NumPy's
# and SciPy's each bring their own threads, which wait for one another when both are called in turn.
summing = partial(compiled, fastmath={"reassoc"})


class _Listener(event.Listener):
    def on_start(self, started):
        if started.data["dispatcher"].py_func.__module__.startswith("finelu."):
            compiling.begun()

    def on_end(self, _):
        """Nothing to say."""


event.register("numba:compile", _Listener())
