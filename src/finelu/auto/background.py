"""Kernels that a solve lacks, compiled for later calls by a process in the background.

The process solves the same system, in a Python of its own at the lowest priority, and keeps the kernels in the user's
cache folder, where this process finds them at its next call. One such process works at a time: for this process, and
for the folder. It reads the system from a pipe whose end tells it that this process has ended, however that came.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from finelu import compiling
from finelu.machine_code import BACKGROUND, background_is_wanted, folder
from finelu.threads import get_num_threads, set_num_threads

PROGRAM = """
import sys
sys.path[:] = {path!r}
from finelu.auto import background
from finelu.auto.solve import solve
solve(**background.received())
"""
BEGUN = (
    "finelu: SciPy gives this answer, while a process in the background compiles kernels (FINELU_BACKGROUND=0: wait)"
)
LEAST_PRIORITY = 19  # of `os.nice`


class _Background:
    """process : the last one that was begun.  tried : the keys of all systems for which one was; the last is `key`."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.tried: set[Any] = set()
        self.key: Any = None
        self.forked = self.said = False
        self.lock = threading.Lock()

    @property
    def works(self) -> bool:
        return self.process is not None and self.process.poll() is None


_background = _Background()


def _after_fork() -> None:
    """A child has no such process: it neither begins one nor keeps its parent's alive."""
    global _background
    before, _background = _background.process, _Background()
    _background.forked = True
    if before is not None:
        before.returncode = 0  # so that nothing waits for the parent's
        with suppress(OSError):
            before.stdin.close()  # type: ignore[union-attr]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def possible(key: Any) -> bool:
    """Whether such a process works, or can be begun for a system that none has solved before.

    key : of the system, hashable.
    Raises ParameterError if the variable is neither 0 nor 1.
    """
    if not background_is_wanted() or compiling.eager or _background.forked or not _is_python() or not _is_kept():
        return False
    return _background.works or key not in _background.tried


def _is_python() -> bool:
    """Whether a new Python can be begun: a program that embeds Python may be something else."""
    return Path(sys.executable or "").name.lower().startswith("python") and not getattr(sys, "frozen", False)


def _is_kept() -> bool:
    """Whether the user's cache folder can be written, as far as its rights tell."""
    where = folder()
    while where is not None and not where.exists() and where != where.parent:
        where = where.parent
    return compiling.kept() and where is not None and where.is_dir() and os.access(where, os.W_OK)


def begin(key: Any, call: dict[str, Any]) -> bool:
    """Begin the process, unless one works already; False if the system starts no more.

    key : as in `possible`.  call : the arguments of `solve`, which can be pickled.
    """
    with _background.lock:
        if _background.works:
            return True
        _background.key = key
        _background.tried.add(key)
        packed = pickle.dumps((get_num_threads(), call), protocol=5)
        environment = os.environ | {BACKGROUND: "0", compiling.SILENT: "1"}
        environment |= {"FINELU_CACHE": "", "NUMBA_CACHE_DIR": str(folder())}  # whatever the working folder is now
        try:
            _background.process = process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM.format(path=sys.path)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # a Ctrl-C is for this process
            )
            threading.Thread(target=_send, args=(process.stdin, packed), name="finelu_background", daemon=True).start()
        except (OSError, RuntimeError):  # no more processes; no more threads
            end()
            return False
        _background.said = _background.said or compiling.tell(BEGUN)
        return True


def _send(pipe: Any, packed: bytes) -> None:
    left = memoryview(packed)
    with suppress(OSError, ValueError):  # it has ended
        while left:
            left = left[pipe.write(left) :]


@atexit.register
def end(key: Any = None) -> None:
    """End the process; with a key only if it was begun for that system."""
    process = _background.process
    if key in (None, _background.key) and process is not None and process.poll() is None:
        process.kill()
        process.wait()


def received() -> dict[str, Any]:
    """In the process: the call, once no other such process works on this folder."""
    if hasattr(os, "nice"):
        os.nice(LEAST_PRIORITY)
    threads, call = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_num_threads(threads)
    _wait_for_others()
    return dict(call)


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # not by `buffer`, whose lock would be taken when Python ends
    os._exit(1)


def _wait_for_others() -> None:
    """Wait until this process alone has the lock, which it keeps to its end. Without locks it does not wait."""
    where = folder()
    with suppress(ImportError, OSError):
        import fcntl  # Windows has none

        assert where is not None
        where.mkdir(parents=True, exist_ok=True)
        fcntl.flock(os.open(where / "background.lock", os.O_RDWR | os.O_CREAT, 0o666), fcntl.LOCK_EX)
