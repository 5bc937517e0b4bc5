"""Libraries that are not finelu's: how they are found, whatever else the process has loaded, and called so that a call
can be left."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from importlib import import_module
from queue import SimpleQueue
from time import monotonic, sleep
from types import ModuleType
from typing import Any

from scipy.sparse.linalg._dsolve import linsolve

from finelu import deadline
from finelu.errors import OutOfTime
from finelu.threads import AT_EXIT

# SciPy's own, even where a program has put others, finelu's perhaps, into scipy.sparse.linalg.
splu, spilu = linsolve.splu, linsolve.spilu

LOOK = 0.05  # s between two looks at the deadline
FASTEST = 1e11  # flops a second that no core does: what would take longer than the time left even so is not begun
MOST_LEFT = 4  # calls that go on at a time though no caller waits, each with its memory and its share of the cores
_lock = threading.RLock()  # what is imported may call a library
_owners: list[Owner] = []  # all that have threads
_idle: list[Owner] = []


def with_own_symbols(package: str) -> ModuleType:
    """Import a package whose extension modules are to call the functions that they bring, and not others of these names
    that a library has which was loaded for the whole process (RTLD_GLOBAL), perhaps of another version.

    The first import in a process counts. Other systems than Linux bind symbols so anyway. While this imports, it sets
    what dlopen is given for the whole process (RTLD_NOW, RTLD_LOCAL, RTLD_DEEPBIND), so that this holds for extension
    modules, too, that another thread imports meanwhile. Functions that LD_PRELOAD puts in the place of others, as
    allocators and sanitizers do, are not called by a package so bound: where that is set, it is
    bound as others are.
    """
    if package in sys.modules or not hasattr(os, "RTLD_DEEPBIND") or os.environ.get("LD_PRELOAD"):
        return import_module(package)
    with _lock:
        before = sys.getdlopenflags()
        sys.setdlopenflags(os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        try:
            return import_module(package)
        finally:
            sys.setdlopenflags(before)


def require_time(flops: float) -> None:
    """Raises OutOfTime where this work cannot end in the time that is left, however fast the machine is."""
    if flops > FASTEST * deadline.remaining():
        raise OutOfTime


class Owner:
    """A thread that makes, uses and drops what no other thread may; it does one call after the other.

    Unlike a pool, it takes calls from where an object is finalized, which may be within any other.
    left : a call goes on that no other thread waits for, and none is to begin here before it is over.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._alive: dict[int, list[Any]] = {}  # by the place of each box: in a forked child they stay for good
        self._process, self.left = os.getpid(), False
        self._thread = threading.Thread(target=self._run, name="finelu-library", daemon=True)
        self._thread.start()
        with _lock:
            _owners.append(self)

    @property
    def usable(self) -> bool:
        """Whether a call may begin here: it is of this process, and no call goes on that was left."""
        return self._process == os.getpid() and not self.left and self._thread.is_alive()

    def box(self) -> list[Any]:
        """What the thread makes goes in here, to be dropped by it: at the latest when the process ends."""
        new: list[Any] = []
        self._alive[id(new)] = new
        return new

    def drop(self, box: list[Any]) -> None:
        """For a finalizer."""
        if self._process == os.getpid():
            self.begin(self._drop, box)

    def _drop(self, box: list[Any]) -> None:
        self._alive.pop(id(box), None)
        box.clear()

    def begin(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, function, args))
        return future

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """function(*args), which can neither be interrupted nor ended: it is left to itself at a Ctrl-C, and when the
        time of the caller is over, or taken back, if it has not begun. It must let other threads run, and write to
        nothing that the caller has back. It waits while MOST_LEFT calls go on that were left."""
        deadline.check()
        while sum(owner.left for owner in _owners) >= MOST_LEFT:
            sleep(min(LOOK, deadline.remaining()))
            deadline.check()
        future: Future[Any] = Future()
        try:
            self._calls.put((future, function, args))
            while True:
                with suppress(NotYet):
                    if not future.done():
                        future.exception(min(LOOK, max(deadline.remaining(), 0.0)))
                if future.done():
                    return future.result()
                deadline.check()
        except BaseException:
            if not future.cancel() and not future.done():
                self.left = True
                future.add_done_callback(self._is_over)  # at once, if it is so meanwhile
            raise

    def _is_over(self, _: Future[Any]) -> None:
        self.left = False

    def _run(self) -> None:
        _keep_what_belongs_to_this_thread()
        while (call := self._calls.get()) is not None:
            future, function, args = call
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del call, future, function, args  # nothing is kept while it waits
        for box in list(self._alive.values()):
            box.clear()

    def end(self, limit: float) -> None:
        """Before the process ends: the thread drops what it has made, and is no more; one that is in a call at `limit`
        (of `monotonic`) stands still from then on, as all that it works on goes."""
        self._calls.put(None)
        self._thread.join(max(limit - monotonic(), 0.0))
        if self._thread.is_alive():
            _stop(self._thread)


@contextmanager
def lent() -> Iterator[Owner]:
    """An owner for a call, which no other thread has meanwhile."""
    with _lock:
        owner = next((owner for owner in _idle if owner.usable), None)
        if owner is not None:
            _idle.remove(owner)
    owner = owner or Owner()
    try:
        yield owner
    finally:
        _idle.append(owner)  # to be had again once it is usable


def heard() -> bool:
    """Whether the calling thread has something to hear while a library works: a Ctrl-C, or the end of its time."""
    return deadline.current() is not None or threading.current_thread() is threading.main_thread()


def leavable(function: Callable[..., Any], *args: Any, freed: Any = None) -> Any:
    """function(*args), by `Owner.call` where the calling thread has something to hear, else at once.

    freed : a `weakref.finalize` that gives back what the function works on; after a call that was left, its thread does
    so. Cost: 0.1 ms.
    """
    if not heard():
        return function(*args)
    with lent() as owner:
        try:
            return owner.call(function, *args)
        except BaseException:
            if owner.left and freed is not None and (rest := freed.detach()) is not None:
                owner.begin(rest[1], *rest[2])
            raise


def _keep_what_belongs_to_this_thread() -> None:
    """SuperLU, as SciPy has it, keeps its memory by what belongs to a thread, and Python takes that away when a process
    ends, even from a thread that is at work."""
    with suppress(AttributeError):
        of_thread, keep = ctypes.pythonapi.PyThreadState_GetDict, ctypes.pythonapi.Py_IncRef
        of_thread.restype, keep.argtypes, keep.restype = ctypes.c_void_p, [ctypes.c_void_p], None
        keep(of_thread())


def _stop(thread: threading.Thread) -> None:
    """Let a thread stand still in a handler for a signal that has no other use; else nothing is done."""
    with suppress(AttributeError, OSError, ValueError):
        libc, number = ctypes.CDLL(None), signal.SIGRTMAX - 1
        if thread.ident is not None and signal.getsignal(number) is signal.SIG_DFL:
            libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
            libc.signal(number, ctypes.cast(libc.pause, ctypes.c_void_p))
            signal.pthread_kill(thread.ident, number)


def _end() -> None:
    limit = monotonic() + AT_EXIT
    for owner in list(_owners):
        owner.end(limit)


atexit.register(_end)


def _after_fork() -> None:
    global _lock, _idle, _owners
    _lock, _idle = threading.RLock(), []
    _of_parent.extend(_owners)
    _owners = []


_of_parent: list[Owner] = []  # in a forked child, which has none of their threads, what they have made stays for good

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
