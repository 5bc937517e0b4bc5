"""The threads of the CPU kernels: their number, and how several of them run a kernel."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from weakref import ref

from finelu import deadline
from finelu.compiling import here
from finelu.errors import ParameterError

MOST_THREADS = 2**15  # more than any one machine runs; a larger number is a typing error
PAUSES = 20e-6, 1e-3  # s between two checks whether a task is over: the first pause, and the longest
AT_EXIT = 1.0  # s that a process waits at its end for threads that are still at work

_lock = threading.Lock()
_pool: _Pool | None = None
_wanted: int | None = None
_begun: list[ref[Task]] = []  # tasks of `begin`, some of them over; never changed in place, as others read it meanwhile
_limited = 0  # callers that have BLAS on one thread
_limit: Any = None  # the object that gives BLAS its threads back


_importing = threading.RLock()


def _renew_import_lock() -> None:
    """Renew the lock of imports in a child process, where no other thread can hold it."""
    global _importing
    _importing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_import_lock)


def import_numba() -> None:
    """Import Numba by one thread alone: where several import it at once, the locks of its modules and those of
    llvmlite's functions wait for one another, for ever. It imports nothing of finelu's, and so waits for no other."""
    with _importing:
        import numba  # noqa: F401


def available_cores() -> int:
    """The number of cores that this process may run on; in a container at most its share of their time."""
    return max(1, min(_bound_cores(), math.ceil(min(_quota(), MOST_THREADS))))


def bound() -> bool:
    """Whether this process is bound to some of the machine's cores."""
    return _bound_cores() < (os.cpu_count() or 1)


def _bound_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# What a control group's time is limited by, of version 2, in one file, and of version 1, in two: quota and period.
QUOTAS = (("/sys/fs/cgroup/cpu.max",), ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"))


@cache
def _quota() -> float:
    """How many cores' time the container of this process gets; inf without a limit.

    More threads than that are stopped together for most of each period, and threads that wait for them wait as long.
    """
    for files in QUOTAS:
        try:
            quota, period = " ".join(Path(name).read_text() for name in files).split()
            if quota not in ("max", "-1"):
                return float(quota) / float(period)
        except (OSError, ValueError):  # not there, or of another form
            continue
    return math.inf


def set_num_threads(threads: int) -> None:
    """Let later calls use up to `threads` threads, the calling one counted; results do not depend on it.

    The default is the environment variable FINELU_NUM_THREADS, else the number of cores of this process. Later plans
    are made for this number; an earlier plan keeps its schedule and runs it on up to `threads` threads.
    Raises ParameterError for anything but an integer from 1 to 32768.
    """
    global _pool, _wanted
    if isinstance(threads, bool) or not hasattr(threads, "__index__") or not 1 <= threads <= MOST_THREADS:
        raise ParameterError(f"set_num_threads({threads!r}): a positive integer up to {MOST_THREADS} is needed.")
    with _lock:
        idle, _pool = _pool, None
        _wanted = int(threads)
    if idle is not None:
        idle.end()  # its queued tasks are still done


def chosen() -> bool:
    """Whether the user has set the number of threads."""
    return _wanted is not None or bool(os.environ.get("FINELU_NUM_THREADS"))


def get_num_threads() -> int:
    """The number of threads that a call may use, the calling one counted."""
    return _wanted if _wanted is not None else _from_environment()


def _from_environment() -> int:
    text = os.environ.get("FINELU_NUM_THREADS", "")
    if not text:
        return available_cores()
    threads = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= threads <= MOST_THREADS:
        raise ParameterError(f"FINELU_NUM_THREADS={text!r}; a positive integer up to {MOST_THREADS} is needed.")
    return threads


def run(kernel: Callable[..., Any], threads: int, *args: Any) -> None:
    """kernel(*args) on the calling thread, joined by up to min(threads, get_num_threads()) - 1 others.

    The kernel distributes its work itself and returns once all of it is done (cpu/runtime/items.py). A helper thread
    that did not start in time is cancelled. One that starts late finds nothing to do, and one that is about to return
    writes nothing more. Neither is waited for; both hold references to `args`. If an exception ends the call, the
    helpers are waited for first, so that no thread writes to an array that its owner has back.
    """
    if threads == 1:
        kernel(*args)
        return
    team = _Team(kernel, args, min(threads, get_num_threads()) - 1)
    try:
        team.call()
        kernel(*args)
        team.over = True
    finally:
        team.end()


def each(items: int, make: Callable[..., Any], begin: Callable[[], Any] | None = None) -> list[Any]:
    """[make(t) for t in range(items)], shared among the threads.

    make : Python code that spends most of its time in kernels without Python's lock. If it raises, the other items are
        made all the same, and then the first failure is raised. After KernelMissing, or what else is no Exception, no
        further item is begun.
    begin : called once per thread; its result is then the second argument of make.
    """
    if items == 0:
        return []
    numbers, ended = iter(range(items)), SimpleQueue[None]()  # in C: no interrupt leaves its lock taken
    made: list[Any] = [None] * items
    failures: list[BaseException] = []

    def work() -> None:
        own: tuple[Any, ...] | None = () if begin is None else None
        for t in numbers:  # each number goes to one thread
            try:
                if own is None and begin is not None:
                    own = (begin(),)
                made[t] = make(t, *(own or ()))
            except Exception as failure:
                failures.append(failure)
            except BaseException as failure:
                failures.insert(0, failure)
                for _ in numbers:  # no further item is begun
                    ended.put(None)
                raise
            finally:
                ended.put(None)

    try:
        run(work, items)
        for _ in range(items):
            ended.get()
        if failures:
            raise failures[0]
    finally:
        failures.clear()  # it holds the frames that hold the list, and so all their arrays
    return made


class _Team:
    """The helpers of a call. The calling thread starts the first helper, and each helper up to two more, since to start
    one takes as long as a small kernel."""

    def __init__(self, kernel: Callable[..., Any], args: tuple[Any, ...], wanted: int):
        self._kernel, self._args, self._wanted = kernel, args, wanted
        self._helpers: list[Task] = []
        self._lock = threading.Lock()
        self.over = False  # all work is done

    def call(self) -> None:
        """Start one more helper, if one is still wanted."""
        with self._lock:
            if self._wanted and not self.over:
                self._wanted -= 1
                task = Task(self._help)
                self._helpers.append(task)  # before a thread may take it: `end` knows of all
                _submit(task)

    def _help(self) -> None:
        self.call()
        self.call()
        if not self.over:
            self._kernel(*self._args)

    def end(self) -> None:
        """No further helper joins. Unless all work is done, those that have joined are waited for."""
        while True:
            try:
                with self._lock:
                    self._wanted = 0
                running = [helper for helper in self._helpers if not helper.cancel()]
                if not self.over:
                    for helper in running:
                        helper.wait()
                return
            except KeyboardInterrupt:
                if self.over:
                    raise
                # else it is one more, while the first is on its way


class Task:
    """A call for a thread. One operation on a dictionary decides whether a thread takes it or it is cancelled: there is
    no lock that an exception from a signal could leave taken."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...] = ()):
        self._work: Any = function, args
        self._limit, self._otherwise = deadline.current(), here.otherwise  # of the caller, which they may keep alive
        self._taken: dict[str, bool] = {}  # "by a thread", once that is settled
        self._over, self._result = False, None
        self._error: BaseException | None = None

    @classmethod
    def over_with(cls, result: Any) -> Task:
        """A task that is already over."""
        task = cls(lambda: result)
        task.run()
        return task

    def run(self) -> None:
        """Run the function, unless the task was cancelled; called by one thread."""
        if self._taken.setdefault("by a thread", True):
            (function, args), self._work = self._work, None
            limit, self._limit = self._limit, None
            before, here.otherwise, self._otherwise = here.otherwise, self._otherwise, None
            try:
                with deadline.under(limit):
                    self._result = function(*args)
            except BaseException as error:
                self._error = error
            here.otherwise = before
            del function, args
            self._over = True

    def cancel(self) -> bool:
        """Cancel the task; False if a thread has begun it."""
        cancelled = not self._taken.setdefault("by a thread", False)
        if cancelled:
            self._work = None
        return cancelled

    def done(self) -> bool:
        """Whether the task is over, or cancelled."""
        return self._over or not self._taken.get("by a thread", True)

    def wait(self, *, limited: bool = False) -> None:
        """Wait until it is over; with `limited`, raises OutOfTime if the caller's time is over before."""
        pause, longest = PAUSES
        while not self.done():
            if limited:
                deadline.check()
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def result(self) -> Any:
        """Wait for the result of a task that is not cancelled. Raises the exception of the function; OutOfTime, while
        the task goes on, if the caller's time is over before."""
        self.wait(limited=True)
        if self._error is not None:
            raise self._error
        return self._result


class _Pool:
    """Threads that do one task after the other."""

    def __init__(self, count: int):
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._tasks,), name=f"finelu_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> Task:
        self._tasks.put(task)
        return task

    def end(self) -> None:
        """Finish the queued tasks, then stop the threads."""
        for _ in self._threads:
            self._tasks.put(None)

    def join(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(limit - time.monotonic(), 0.0))


def _work(tasks: SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # nothing is kept while it waits


def begin(function: Callable[..., Any], *args: Any) -> Task:
    """Begin function(*args) on another thread; meanwhile kernels of the calling thread use one thread less."""
    global _begun
    task = Task(function, args)
    with _lock:
        _begun = [*(old for old in _begun if _goes_on(old)), ref(task)]
    return _submit(task)


def _goes_on(begun: ref[Task]) -> bool:
    task = begun()
    return task is not None and not task.done()


def aside() -> int:
    """The number of threads that tasks of `begin` occupy now."""
    return sum(map(_goes_on, _begun))


def _submit(task: Task) -> Task:
    global _pool
    with _lock:
        if _pool is None:
            _end_at_exit()
            _pool = _Pool(max(get_num_threads() - 1, 1))
        return _pool.submit(task)


@cache
def _end_at_exit() -> None:
    """Leave no thread inside of a kernel while the process ends: called before modules imported later are shut down."""

    def end() -> None:
        if _pool is not None:
            _pool.end()
            _pool.join(AT_EXIT)

    atexit.register(end)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS use the calling thread only, for libraries that call it for small blocks.

    More BLAS threads would gain nothing for these, and afterwards spin for tens of milliseconds, which takes the cores
    from the next kernels.
    """
    global _limited, _limit
    counted = False
    try:
        with _lock:
            if _limit is None:
                _limit = _blas().limit(limits=1, user_api="blas")
            _limited, counted = _limited + 1, True
        yield
    finally:
        with _lock:
            _limited -= counted
            if not _limited and _limit is not None:
                _limit.restore_original_limits()
                _limit = None


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _after_fork() -> None:
    """A child process has none of its parent's threads: it makes its own pool when it needs one."""
    global _lock, _pool, _begun, _limited, _limit
    _lock, _pool, _begun, _limited = threading.Lock(), None, [], 0
    if _limit is not None:
        _limit.restore_original_limits()
        _limit = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
