"""What the processes of an MPI communicator do together: agree on results, raise the exception of one on all, end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, TypeVar

from finelu import threads
from finelu.errors import FineluError

PATIENCE = 5.0  # seconds for the other processes to meet an error, too
DEFECT = 70  # exit status where the processes cannot go on together: EX_SOFTWARE

Result = TypeVar("Result")

_together = False


def largest(comm: Any, value: float) -> float:
    """The largest value of all processes."""
    return float(max(comm.allgather(value)))


def agreed(comm: Any, work: Callable[[], Result], *, named: bool = False) -> Result:
    """work() on each process. An exception on one of them is raised on all, as the others would wait for ever.

    named : whether the text of an error of finelu's says which process met it.
    """
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failure = error
    failed = comm.allgather(failure is not None)
    if any(failed):
        first = failed.index(True)
        raised: Exception = comm.bcast(failure, root=first)
        if named and isinstance(raised, FineluError):
            raised.args = (f"process {first}: {raised}",)
        raise raised
    return result


def on_first(comm: Any, work: Callable[[], Result]) -> Result | None:
    """work() on the first process, None on the others; an exception is raised on all."""
    return agreed(comm, lambda: work() if comm.rank == 0 else None)


def met_by_all(comm: Any) -> bool:
    """Whether all processes come here, within PATIENCE."""
    arrived = comm.Ibarrier()
    end = perf_counter() + PATIENCE
    while not arrived.Test():
        if perf_counter() > end:
            return False
        sleep(0.01)
    return True


def share_cores(comm: Any) -> None:
    """Divide the cores of a machine among the processes that run on it, unless they are bound to cores of their own or
    the user has set a number of threads."""
    from mpi4py import MPI

    if not threads.chosen() and not threads.bound():
        here = comm.Split_type(MPI.COMM_TYPE_SHARED)
        size = here.size
        here.Free()
        threads.set_num_threads(max(threads.available_cores() // size, 1))


def end_together(comm: Any) -> None:
    """From now on an exception that nothing catches on this process ends all of them, once its message is printed: the
    others would wait for this one for ever."""
    global _together
    if _together:
        return
    _together, before = True, sys.excepthook

    def ending(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            before(kind, error, trace)
            print(f"process {comm.rank} of {comm.size} met an error; all of them end.", file=sys.stderr, flush=True)
        finally:
            comm.Abort(DEFECT)

    sys.excepthook = ending


@cache
def takes_device_buffers() -> bool:
    """Whether the MPI of this process sends from, and receives into, the memory of a GPU: what it says of itself."""
    import ctypes

    from mpi4py import MPI

    for library in (MPI.__file__, None):
        try:
            return bool(ctypes.CDLL(library).MPIX_Query_cuda_support())
        except (AttributeError, OSError):
            continue
    return False
