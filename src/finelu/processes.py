"""Collective operations of the processes of an MPI communicator: agree on results, raise one's exception on all,
end."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Generator, Iterable
from functools import cache
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, TypeVar

from finelu import threads
from finelu.errors import FineluError, MatrixError

PATIENCE = 5.0  # seconds for the other processes to meet an error, too
PASSED_ON = 0.2  # seconds for a launcher to pass on the output of a process, which it may drop if the process aborts
DEFECT = 70  # exit status if the processes cannot go on together: EX_SOFTWARE

Result = TypeVar("Result")

_together = False
_kept: Any = None  # the key under which a communicator has its private one
_belongings: Any = None  # the key under which a private one has the objects made for it
_share: int | None = None  # threads that `share_cores` has set


def largest(comm: Any, value: float) -> float:
    """The largest value of all processes."""
    return float(max(comm.allgather(value)))


def agreed(comm: Any, work: Callable[[], Result], *, named: bool = False) -> Result:
    """work() on each process. An exception on one of them is raised on all, as the others would wait for ever.

    named : whether the text of the error says which process met it.
    """
    failure: Exception | None = None
    own: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failure, own = _sendable(error), error
    failed = comm.allgather(failure is not None)
    if any(failed):
        first = failed.index(True)
        raised: Exception = comm.bcast(failure, root=first)
        raise (_named(raised, first) if named else raised) from (own if named and first == comm.rank else None)
    return result


def agreed_steps(comm: Any, steps: Generator[Iterable[Any], list[Any], Result]) -> Result:
    """What `steps` returns, a generator that all processes run: each `yield` gives one object for each process, and
    receives that of each. An exception on one of them is raised on all, with the number of that process: it travels
    with the objects, so that none waits for a process that has failed."""
    came, over = None, False
    while True:
        failure: Exception | None = None
        own: Exception | None = None
        sent: Iterable[Any] = [None] * comm.size
        try:
            sent = list(steps.send(came))  # type: ignore[arg-type]  # a generator begins with None
        except StopIteration as end:
            result, over = end.value, True
        except Exception as error:
            failure, own = _sendable(error), error
        found = comm.alltoall([(failure, part) for part in sent])
        for rank, (met, _) in enumerate(found):
            if met is not None:
                raise _named(met, rank) from (own if rank == comm.rank else None)
        if over:
            return result  # type: ignore[no-any-return]
        came = [part for _, part in found]


def _named(error: Exception, rank: int) -> Exception:
    """The error of this process, with its number in the text; a RuntimeError for one that holds other facts."""
    if isinstance(error, FineluError) or (len(error.args) == 1 and isinstance(error.args[0], str)):
        error.args = (f"process {rank}: {error}",)
        return error
    return RuntimeError(f"process {rank}: {type(error).__name__}: {error}")


def _sendable(error: Exception) -> Exception:
    """The exception, or, if it cannot be pickled and made again, its kind and text: other processes wait for it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


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


def private(comm: Any) -> Any:
    """A communicator of finelu's own for the same processes, which the program does not use; one for each `comm`.
    Collective at its first call."""
    global _kept
    from mpi4py import MPI

    if _kept is None:
        _kept = MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, own: own.Free())
    own = comm.Get_attr(_kept)
    if own is None:
        own = comm.Dup()
        comm.Set_attr(_kept, own)
    return own


def kept_for(comm: Any) -> dict[Any, Any]:
    """Objects kept for a communicator of finelu's own; those with a `close` are closed when the communicator is freed
    or the program ends MPI. At the end of Python itself nothing is closed."""
    global _belongings
    from mpi4py import MPI

    if _belongings is None:
        _belongings = MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, kept: _closed(kept))
    kept: dict[Any, Any] | None = comm.Get_attr(_belongings)
    if kept is None:
        comm.Set_attr(_belongings, kept := {})
    return kept


def _closed(kept: dict[Any, Any]) -> None:
    for thing in kept.values():
        if hasattr(thing, "close"):
            thing.close()


# Arrays are sent as bytes, their dtypes as tags: MPI itself does not distinguish kinds of numbers.


def send(comm: Any, array: Any, rank: int) -> Any:
    """The request of sending a contiguous array to a process."""
    from mpi4py import MPI

    return comm.Isend([array, MPI.BYTE], rank, tag=array.dtype.num)


def receive(comm: Any, array: Any, rank: int) -> Any:
    """The request, for `received`, of the next array that this process sends."""
    from mpi4py import MPI

    return comm.Irecv([array, MPI.BYTE], rank, tag=MPI.ANY_TAG)


def received(request: Any, array: Any) -> None:
    """Wait for an array; a MatrixError if it does not have the size and dtype of `array`, which receives it."""
    from mpi4py import MPI

    status = MPI.Status()
    try:
        request.Wait(status)
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_TRUNCATE:
            raise
        raise MatrixError(
            f"a process sent more than the {array.nbytes} bytes due; all processes need numbers of one dtype."
        ) from error
    of_one_kind(status.source, (status.Get_count(MPI.BYTE), status.tag), array)


def kind_of(array: Any) -> tuple[int, int]:
    """Its bytes, and the number of its dtype."""
    return array.nbytes, array.dtype.num


def of_one_kind(rank: int, given: tuple[int, ...], array: Any) -> None:
    """A MatrixError if a process sends an array of another kind than this one."""
    if given != kind_of(array):
        what = f"{given[0]} bytes" if given[0] != array.nbytes else "numbers of another dtype"
        raise MatrixError(
            f"process {rank} sent {what} where {array.nbytes} bytes of {array.dtype} were due; all processes need "
            "numbers of one dtype."
        )


def share_cores(comm: Any) -> None:
    """Divide the cores of a machine among the processes that run on it, unless they are bound to cores of their own or
    the user has set a number of threads. Collective."""
    global _share
    from mpi4py import MPI

    here = comm.Split_type(MPI.COMM_TYPE_SHARED)  # collective, whatever each process decides
    size = here.size
    here.Free()
    if not threads.bound() and (not threads.chosen() or threads.get_num_threads() == _share):
        _share = max(threads.available_cores() // size, 1)
        threads.set_num_threads(_share)


def end_together() -> None:
    """From now on an uncaught exception on this process ends all processes of MPI, once its message is printed: the
    others would wait for this one for ever."""
    global _together
    from mpi4py import MPI

    if _together:
        return
    _together, before, comm = True, sys.excepthook, MPI.COMM_WORLD

    def ending(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            before(kind, error, trace)
            print(f"process {comm.rank} of {comm.size} met an error; all of them end.", file=sys.stderr, flush=True)
            sleep(PASSED_ON)
        finally:
            comm.Abort(DEFECT)

    sys.excepthook = ending


@cache
def takes_device_buffers() -> bool:
    """Whether the MPI of this process reports that it sends from, and receives into, the memory of a GPU."""
    import ctypes

    from mpi4py import MPI

    for library in (MPI.__file__, None):
        try:
            return bool(ctypes.CDLL(library).MPIX_Query_cuda_support())
        except (AttributeError, OSError):
            continue
    return False
