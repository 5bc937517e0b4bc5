"""The values of cells beyond the interfaces of a process, fetched from the processes that have them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from finelu.device import on_gpu
from finelu.errors import DeviceError, ParameterError
from finelu.kernels.cuda.runtime import nccl
from finelu.processes import agreed, kept_for, kind_of, of_one_kind, receive, received, send, takes_device_buffers


class Ghosts:
    """Fetches the values of `count` cells beyond interfaces: first those of this process, then those of others.

    comm : the communicator, or None.  xp : numpy or cupy, the module of the vectors.
    wanted : {process: the cells (m,) wanted from it, by its own numbers}.  own : the wanted cells of this process.
    needed : whether this process sends or receives anything.
    `begin(x)` gathers and sends; `finish()` waits and returns the values. In between the caller does work that does not
    need them. On a GPU the values are sent by NCCL, if all processes have it and a GPU of their own, so that no host
    waits for its GPU. Otherwise they are sent by MPI itself, if it takes GPU memory, or through locked memory of the
    host, which is copied while the caller's kernels run. The matrices of a grid on the same devices share this object:
    one product at a time.
    """

    def __init__(self, comm: Any, xp: Any, wanted: dict[int, Any], own: Any):
        self.comm, self.xp = comm, xp
        self.received: list[tuple[int, slice]] = []
        at = own.size
        for rank in sorted(wanted):
            self.received.append((rank, slice(at, at + wanted[rank].size)))
            at += wanted[rank].size
        self.count, self.local = at, own.size
        asked = [None] if comm is None else comm.alltoall([wanted.get(rank) for rank in range(comm.size)])
        self.sent: list[tuple[int, slice]] = []
        cells, at = [own], own.size
        for rank, theirs in enumerate(asked):
            if theirs is not None and theirs.size:
                self.sent.append((rank, slice(at, at + theirs.size)))
                cells.append(theirs)
                at += theirs.size
        self.cells = xp.asarray(np.concatenate(cells))  # gathered at once: own ghosts, and the cells to be sent
        self.own = self.cells[: self.local]
        self.needed = at > 0 or self.count > 0
        self.connection = connected(comm, xp, bool(self.sent or self.received))
        self._rooms: dict[Any, Room] = {}

    def begin(self, x: Any) -> None:
        """Gather from x (cells, n) the values that other processes want, and send them."""
        key = x.shape[1], x.dtype
        if key not in self._rooms:
            self._rooms[key] = self._kind()(self)
        self._room = self._rooms[key]
        gathered = self.xp.take(x, self.cells, axis=0)
        values = self.xp.empty((self.count, x.shape[1]), x.dtype)
        values[: self.local] = gathered[: self.local]
        self._room.begin(gathered, values)

    def finish(self) -> Any:
        """Wait for the values, and return them, (count, n)."""
        return self._room.finish()

    def _kind(self) -> type[Room]:
        if self.xp is np or self.comm is None:
            return Room
        if self.connection is not None:
            return Queued
        return Direct if takes_device_buffers() else Staged


def connected(comm: Any, xp: Any, talks: bool) -> Any:
    """NCCL between the GPUs of these processes, made once for them. All must call it.

    None if none of them `talks`, or if one has no GPU of its own, no NCCL, or FINELU_NCCL=0 in its environment. Also
    None, with a warning, if all meet an error of NCCL while they are connected; if only some do, the others wait.
    """
    if comm is None:
        return None
    given = comm.allgather((agreed(comm, lambda: _gpu(xp)), talks))
    gpus = tuple(gpu for gpu, _ in given)
    if None in gpus or len(set(gpus)) < len(gpus) or not any(talking for _, talking in given):
        return None
    kept = kept_for(comm)
    if gpus not in kept:
        kept[gpus] = _opened(comm)
    return kept[gpus]


def gpu_of(array: Any) -> int:
    """The number of its GPU in this machine; -1 for the host."""
    number: int = array.device.id if on_gpu(array) else -1
    return number


def _gpu(xp: Any) -> tuple[str, str] | None:
    """The machine of the current GPU, and its bus address there, if NCCL may use it."""
    from mpi4py import MPI

    wish = os.environ.get("FINELU_NCCL", "1")
    if wish not in ("0", "1"):
        raise ParameterError(f"FINELU_NCCL={wish!r}; 0, or 1, or nothing, is needed.")
    if xp is np or wish == "0" or nccl.library() is None:
        return None
    return MPI.Get_processor_name(), str(xp.cuda.runtime.deviceGetPCIBusId(xp.cuda.runtime.getDevice()))


def _opened(comm: Any) -> Any:
    try:
        identity = agreed(comm, lambda: nccl.new_identity() if comm.rank == 0 else b"")
        identity = comm.bcast(identity, root=0)
        return agreed(comm, lambda: nccl.Connection(identity, comm.rank, comm.size), named=True)
    except DeviceError as error:
        text = f"{error} Cells at interfaces go another way, which takes longer."
        agreed(comm, lambda: _warn(text) if comm.rank == 0 else None)
        return None


def _warn(text: str) -> None:
    """A warning at the line of the program that called finelu."""
    level, frame = 2, sys._getframe().f_back
    while frame is not None and frame.f_globals.get("__name__", "").startswith("finelu."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def queue(comm: Any, connection: Any, leaving: Sequence[tuple[int, Any]], arriving: Sequence[tuple[int, Any]]) -> None:
    """Send each array of `leaving` to its process and fill those of `arriving`, by NCCL: queued like a kernel, the host
    waits for no GPU.

    It waits for the hosts of its neighbours, though: MPI first compares the kinds of the messages, since NCCL would
    wait for ever, or write garbage, if they differ. Raises MatrixError if they do.
    """
    kinds = np.empty((len(arriving), 2), np.int64)
    requests = [comm.Irecv(kinds[k], rank) for k, (rank, _) in enumerate(arriving)]
    requests += [comm.Isend(np.array(kind_of(array)), rank) for rank, array in leaving]
    for request in requests:
        request.Wait()
    due = [(rank, tuple(kind), array) for (rank, array), kind in zip(arriving, kinds.tolist(), strict=True)]
    wrong = {rank for rank, kind, array in due if kind != kind_of(array)}
    # Neighbours that agree with this process queue their messages: so must it, whatever the others do.
    connection.exchange(*([(rank, array) for rank, array in way if rank not in wrong] for way in (leaving, arriving)))
    for rank, kind, array in due:
        of_one_kind(rank, kind, array)


def post(comm: Any, leaving: Sequence[tuple[int, Any]], arriving: Sequence[tuple[int, Any]]) -> Callable[[], None]:
    """Send each array of `leaving` to its process and receive into those of `arriving`, by MPI. Returns the function
    that waits for all of them; it raises MatrixError if an array of another kind arrives."""
    incoming = [(receive(comm, array, rank), array) for rank, array in arriving]
    outgoing = [(send(comm, array, rank), array) for rank, array in leaving]

    def wait() -> None:
        for request, array in incoming:
            received(request, array)
        for request, _ in outgoing:
            request.Wait()

    return wait


class Room:
    """An exchange on the host: MPI reads what was gathered and writes into the result."""

    def __init__(self, ghosts: Ghosts):
        self.ghosts = ghosts

    def begin(self, gathered: Any, values: Any) -> None:
        self.gathered, self.values = gathered, values  # MPI reads and writes them until `finish`
        self._post(gathered, values)

    def _post(self, gathered: Any, values: Any) -> None:
        leaving = [(rank, gathered[part]) for rank, part in self.ghosts.sent]
        arriving = [(rank, values[part]) for rank, part in self.ghosts.received]
        self.wait = post(self.ghosts.comm, leaving, arriving)

    def finish(self) -> Any:
        self.wait()
        return self.values


class Queued(Room):
    """An exchange between GPUs by NCCL, see `queue`, all of it in `begin`, before other kernels fill the GPU."""

    def begin(self, gathered: Any, values: Any) -> None:
        ghosts, self.values = self.ghosts, values
        leaving = [(rank, gathered[part]) for rank, part in ghosts.sent]
        arriving = [(rank, values[part]) for rank, part in ghosts.received]
        queue(ghosts.comm, ghosts.connection, leaving, arriving)

    def finish(self) -> Any:
        self.ghosts.connection.wait()
        return self.values


class Direct(Room):
    """An exchange between GPUs by an MPI that takes their memory."""

    def begin(self, gathered: Any, values: Any) -> None:
        self.gathered, self.values = gathered, values
        self.ghosts.xp.cuda.get_current_stream().synchronize()  # MPI does not know of the stream
        self._post(gathered, values)


class Staged(Room):
    """An exchange between GPUs through locked memory of the host.

    A stream of its own copies the values to be sent to the host, while kernels run that the caller queues after
    `begin`.
    """

    def __init__(self, ghosts: Ghosts):
        super().__init__(ghosts)
        cuda = ghosts.xp.cuda
        self.stream = cuda.Stream(non_blocking=True)
        self.ready, self.copied, self.read = (cuda.Event(disable_timing=True) for _ in range(3))
        self.out: Any = None
        self.into: Any = None

    def begin(self, gathered: Any, values: Any) -> None:
        self.gathered, self.values = gathered, values
        own, runtime = gathered[self.ghosts.local :], self.ghosts.xp.cuda.runtime
        if self.out is None:
            from cupyx import empty_pinned

            self.out, self.into = (empty_pinned(v.shape, v.dtype) for v in (own, values[self.ghosts.local :]))
        if self.out.size:
            self.ready.record()
            self.stream.wait_event(self.ready)
            to_host = runtime.memcpyDeviceToHost
            runtime.memcpyAsync(self.out.ctypes.data, own.data.ptr, own.nbytes, to_host, self.stream.ptr)
            self.copied.record(self.stream)

    def finish(self) -> Any:
        ghosts, local = self.ghosts, self.ghosts.local
        if self.out.size:
            self.copied.synchronize()
        if self.into.size:
            self.read.synchronize()  # of the previous exchange
        into = [(rank, self.into[part.start - local : part.stop - local]) for rank, part in ghosts.received]
        out_of = [(rank, self.out[part.start - local : part.stop - local]) for rank, part in ghosts.sent]
        self.wait = post(ghosts.comm, out_of, into)
        super().finish()
        if self.into.size:
            own, cuda = self.values[local:], ghosts.xp.cuda
            stream, to_device = cuda.get_current_stream(), cuda.runtime.memcpyHostToDevice
            cuda.runtime.memcpyAsync(own.data.ptr, self.into.ctypes.data, own.nbytes, to_device, stream.ptr)
            self.read.record()
        return self.values
