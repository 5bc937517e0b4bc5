"""External libraries: found independently of other libraries in the process, and called so that a call can be
abandoned."""

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
from scipy.sparse.linalg._isolve import iterative
from scipy.sparse.linalg._isolve.lsmr import lsmr as lsmr
from scipy.sparse.linalg._isolve.lsqr import lsqr as lsqr
from scipy.sparse.linalg._isolve.minres import minres as minres

from finelu import deadline
from finelu.errors import OutOfTime
from finelu.threads import AT_EXIT

# SciPy's own functions, even if a program has put others, perhaps finelu's, into scipy.sparse.linalg.
splu, spilu = linsolve.splu, linsolve.spilu
bicg, bicgstab, cg, gmres = iterative.bicg, iterative.bicgstab, iterative.cg, iterative.gmres
use_solver, MatrixRankWarning = linsolve.use_solver, linsolve.MatrixRankWarning

LOOK = 0.05  # s between two looks at the deadline
FASTEST = 1e11  # flops a second, more than any core: a call that would still exceed the remaining time is not begun
MOST_LEFT = 4  # abandoned calls that may go on at a time, each with its memory and its share of the cores
_lock = threading.RLock()  # an import may call a library
_owners: list[Owner] = []  # all that have threads
_idle: list[Owner] = []


def with_own_symbols(package: str) -> ModuleType:
    """Import a package such that its extension modules call their own functions, not those of the same name in a
    library, perhaps of another version, that was loaded for the whole process (RTLD_GLOBAL).

    The first import in a process counts. Systems other than Linux bind symbols in this way anyway. During the import
    the flags of dlopen are set for the whole process (RTLD_NOW, RTLD_LOCAL, RTLD_DEEPBIND), and so also hold for
    extension modules that another thread imports meanwhile. A package bound in this way ignores functions that
    LD_PRELOAD replaces, such as allocators and sanitizers: if LD_PRELOAD is set, the package is bound as usual.
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
    """Raise OutOfTime if this work cannot end in the remaining time, however fast the machine is."""
    if flops > FASTEST * deadline.remaining():
        raise OutOfTime


class Owner:
    """A thread that creates, uses and deletes objects which no other thread may use; it runs one call after the other.

    Unlike a pool, it also takes calls from a finalizer, which may run inside of any other call.
    left : an abandoned call goes on, for which no thread waits; no other call may begin here before it is over.
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
        """Whether a call may begin here: the thread belongs to this process, and no abandoned call goes on."""
        return self._process == os.getpid() and not self.left and self._thread.is_alive()

    def box(self) -> list[Any]:
        """A list for the objects of the thread, which deletes them: at the latest when the process ends."""
        new: list[Any] = []
        self._alive[id(new)] = new
        return new

    def drop(self, box: list[Any]) -> None:
        """Delete the objects in a box; for a finalizer."""
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
        """function(*args), which can be neither interrupted nor ended: at a Ctrl-C, or when the caller's time is over,
        it is abandoned, or cancelled if it has not begun. It must release Python's lock, and must not write to arrays
        that the caller has back. It waits while MOST_LEFT abandoned calls go on."""
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
                future.add_done_callback(self._is_over)  # called at once if the call is over
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
        """Before the process ends: delete the thread's objects and end it. A thread that is still in a call at `limit`
        (of `monotonic`) is stopped, since its data are about to be freed."""
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
        _idle.append(owner)  # reused once it is usable


def heard() -> bool:
    """Whether the calling thread may be stopped while a library works: by a Ctrl-C, or by the end of its time."""
    return deadline.current() is not None or threading.current_thread() is threading.main_thread()


def leavable(function: Callable[..., Any], *args: Any, freed: Any = None) -> Any:
    """function(*args): by `Owner.call` if the calling thread may be stopped, else directly.

    freed : a `weakref.finalize` that frees the data of the function; after an abandoned call its thread runs it.
    Cost: 0.1 ms.
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
    """SciPy's SuperLU keeps its memory in data of the thread, which Python deletes at the end of a process, even for a
    thread that is at work. This keeps them."""
    with suppress(AttributeError):
        of_thread, keep = ctypes.pythonapi.PyThreadState_GetDict, ctypes.pythonapi.Py_IncRef
        of_thread.restype, keep.argtypes, keep.restype = ctypes.c_void_p, [ctypes.c_void_p], None
        keep(of_thread())


def _stop(thread: threading.Thread) -> None:
    """Stop a thread in a handler for a signal, if that has no other use; otherwise do nothing."""
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


_of_parent: list[Owner] = []  # in a forked child, which does not have their threads, their objects are never freed

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
