"""Kernels that a solve lacks, compiled for later calls by a process in the background.

The process solves the same system, in a Python of its own at the lowest priority, and keeps the kernels in the user's
cache folder, where this process finds them at its next call. One such process works at a time: for this process, and
for the folder. On two cores or more it begins a second one, which compiles the kernels that it needs last (ahead.py).
Each reads the system from a pipe whose end tells it that the process that began it has ended, however that came.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from finelu import compiling
from finelu.machine_code import BACKGROUND, background_is_wanted, folder
from finelu.threads import available_cores, get_num_threads, set_num_threads

PROGRAM = """
import sys
sys.path[:] = {path!r}
from finelu.auto import background
{work}
"""
SOLVES = "call = background.first_received(); from finelu.auto.solve import solve; solve(**call)"
AHEAD = "call = background.received()[1]; from finelu.auto.ahead import compile_last; compile_last(**call)"
BEGUN = (
    "finelu: a process in the background compiles kernels, while SciPy looks for the answer (FINELU_BACKGROUND=0: wait)"
)
FAILED = "finelu: the process that compiles kernels in the background ended with status {}, so calls compile their own"
LEAST_PRIORITY = 19  # of `os.nice`
MOST_THREADS = 2  # of the process
LIMIT = 30.0  # s that its solve may take, without compiling
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")  # variables: how many processes a launcher began


class _Background:
    """process : the last one that was begun and not ended from here.  tried : the keys of all systems that had one;
    the last is `key`.  shared : whether a second call relies on it.  failed : whether one ended by a failure."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.tried: set[Any] = set()
        self.key: Any = None
        self.forked = self.said = self.shared = self.failed = False
        self.lock = threading.RLock()

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
    if not background_is_wanted() or compiling.eager or _background.forked or _has_failed() or _is_one_of_many():
        return False
    return _is_python() and _is_kept() and (_background.works or key not in _background.tried)


def _has_failed() -> bool:
    """Whether such a process ended by a failure, as the next would; a line says so once."""
    process = _background.process
    if process is not None and (status := process.poll()) and not _background.failed:
        _background.failed = True
        compiling.tell(FAILED.format(status))
    return _background.failed


def _is_one_of_many() -> bool:
    """Whether MPI began this process together with others, whose processes in the background would be as many."""
    several = any(os.environ.get(name, "") not in ("", "0", "1") for name in SIZES)
    return several or os.environ.get("PMIX_RANK", "0") != "0"


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
            _background.shared = True
            return True
        end()
        _background.key, _background.shared = key, False
        _background.tried.add(key)
        packed = pickle.dumps((min(get_num_threads(), MOST_THREADS), call | {"time_limit": LIMIT}), protocol=5)
        try:
            _background.process = _begun(SOLVES, packed)
        except (OSError, RuntimeError):  # no more processes; no more threads
            return False
        _background.said = _background.said or compiling.tell(BEGUN)
        return True


def _begun(work: str, packed: bytes) -> subprocess.Popen[bytes]:
    """A new process for this work, which is sent `packed`. Raises OSError or RuntimeError if there can be none."""
    environment = os.environ | {BACKGROUND: "0", compiling.SILENT: "1"}
    environment |= {"FINELU_CACHE": "", "NUMBA_CACHE_DIR": str(folder())}  # whatever the working folder is now
    path = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str | os.PathLike)]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM.format(path=path, work=work)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # a Ctrl-C is for this process
    )
    try:
        threading.Thread(target=_send, args=(process.stdin, packed), name="finelu_background", daemon=True).start()
    except RuntimeError:
        _end(process)
        raise
    return process


def _send(pipe: Any, packed: bytes) -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})  # of this thread: it may end the program
    left = memoryview(packed)
    with suppress(OSError, ValueError):  # it has ended
        while left:
            left = left[pipe.write(left) :]


@atexit.register
def end(key: Any = None) -> None:
    """End the process; with a key only if it was begun for that system, and no other call relies on it."""
    with _background.lock:
        if key is not None and (key != _background.key or _background.shared):
            return
        process, _background.process = _background.process, None
        if process is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    with suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]


def first_received() -> dict[str, Any]:
    """In the process: the call, once no other such process works on this folder, and a second one has begun."""
    sent = received()
    _wait_for_others()
    if available_cores() > 1:
        with suppress(OSError, RuntimeError):  # no more processes; no more threads: this one compiles all
            _background.process = _begun(AHEAD, pickle.dumps(sent, protocol=5))
    return sent[1]


def received() -> tuple[int, dict[str, Any]]:
    """In each of the two processes: the number of threads, which it has from then on, and the call."""
    if hasattr(os, "nice"):
        os.nice(LEAST_PRIORITY)
    count, call = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_num_threads(count)
    return count, call


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
