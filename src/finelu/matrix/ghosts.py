"""The values of cells beyond the interfaces of a process, brought from where they live."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from finelu.errors import DeviceError
from finelu.processes import agreed, as_long, kept_for, received, takes_device_buffers


class Ghosts:
    """Brings the values of `count` cells beyond interfaces: first those of this process, then those of others.

    comm : the communicator, or None.  xp : numpy or cupy, where the vectors live.
    wanted : {process: the cells (m,) wanted of it, by its own numbers}.  own : those of this process, by its numbers.
    needed : whether this process sends or receives anything; the others do what they must.
    `begin(x)` gathers and sends, `finish()` waits and gives the values; between them the caller does what needs none.
    On a GPU the values are sent by NCCL where all processes have it and a GPU of their own, so that no host waits for
    its GPU; else by MPI itself, where it takes the memory of a GPU, or through locked memory of the host, by a copy
    while the caller's kernels run. All matrices of a grid share it: one product at a time.
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
        self.cells = xp.asarray(np.concatenate(cells))  # gathered at once: own ghosts, and what is sent
        self.own = self.cells[: self.local]
        self.needed = at > 0 or self.count > 0
        self.connection = connected(comm, xp, bool(self.sent or self.received))
        self._rooms: dict[Any, Room] = {}

    def begin(self, x: Any) -> None:
        """Take the values x (cells, n) of the cells that others want, and send them."""
        key = x.shape[1], x.dtype
        if key not in self._rooms:
            self._rooms[key] = self._kind()(self)
        self._room = self._rooms[key]
        gathered = self.xp.take(x, self.cells, axis=0)
        values = self.xp.empty((self.count, x.shape[1]), x.dtype)
        values[: self.local] = gathered[: self.local]
        self._room.begin(gathered, values)

    def finish(self) -> Any:
        """(count, n) : the values, once they are there."""
        return self._room.finish()

    def _kind(self) -> type[Room]:
        if self.xp is np or self.comm is None:
            return Room
        if self.connection is not None:
            return Queued
        return Direct if takes_device_buffers() else Staged


def connected(comm: Any, xp: Any, talks: bool) -> Any:
    """NCCL between the GPUs of these processes, made once for them; None where nothing is to be sent, where one of them
    has no GPU of its own or no NCCL, and, with a warning, where NCCL cannot connect them. All must call it."""
    if comm is None:
        return None
    own = None
    if xp is not np:
        from finelu.kernels.cuda.runtime import nccl

        if nccl.library().calls is not None:
            own = bytes(xp.cuda.runtime.getDeviceProperties(xp.cuda.runtime.getDevice())["uuid"])
    given = comm.allgather((own, talks))
    gpus = tuple(gpu for gpu, _ in given)
    if None in gpus or len(set(gpus)) < len(gpus) or not any(talking for _, talking in given):
        return None
    kept = kept_for(comm)
    if gpus not in kept:
        kept[gpus] = _opened(comm)
    return kept[gpus]


def _opened(comm: Any) -> Any:
    from finelu.kernels.cuda.runtime import nccl

    try:
        identity = agreed(comm, lambda: nccl.new_identity() if comm.rank == 0 else b"")
        identity = comm.bcast(identity, root=0)
        return agreed(comm, lambda: nccl.Connection(identity, comm.rank, comm.size), named=True)
    except DeviceError as error:
        warnings.warn(f"{error} Cells at interfaces go another way, which takes longer.", stacklevel=2)
        return None


class Room:
    """An exchange on the host: MPI reads what was gathered and writes into the result."""

    def __init__(self, ghosts: Ghosts):
        self.ghosts = ghosts

    def begin(self, gathered: Any, values: Any) -> None:
        self.gathered, self.values = gathered, values  # MPI reads and writes them until `finish`
        self._post(gathered, values)

    def _post(self, gathered: Any, values: Any) -> None:
        comm, into = self.ghosts.comm, [(rank, values[part]) for rank, part in self.ghosts.received]
        self.arriving = [(comm.Irecv(buffer, rank), buffer) for rank, buffer in into]
        self.leaving = [comm.Isend(gathered[part], rank) for rank, part in self.ghosts.sent]

    def finish(self) -> Any:
        for request, buffer in self.arriving:
            received(request, buffer)
        for request in self.leaving:
            request.Wait()
        return self.values


class Queued(Room):
    """An exchange between GPUs by NCCL: it is queued on a stream of its own, and the host waits for no GPU.

    The lengths of the messages go by MPI before them: NCCL would wait for ever, or write anything, where they differ.
    """

    def __init__(self, ghosts: Ghosts):
        super().__init__(ghosts)
        cuda = ghosts.xp.cuda
        self.connection = ghosts.connection
        self.ready, self.arrived = (cuda.Event(disable_timing=True) for _ in range(2))

    def begin(self, gathered: Any, values: Any) -> None:
        comm, ghosts = self.ghosts.comm, self.ghosts
        leaving = [(rank, gathered[part]) for rank, part in ghosts.sent]
        arriving = [(rank, values[part]) for rank, part in ghosts.received]
        lengths = np.empty(len(arriving), np.int64)
        coming = [comm.Irecv(lengths[k : k + 1], rank) for k, (rank, _) in enumerate(arriving)]
        leaving_lengths = [comm.Isend(np.array([array.nbytes]), rank) for rank, array in leaving]
        stream = ghosts.xp.cuda.get_current_stream()
        stream.wait_event(self.arrived)  # of an exchange that nobody finished, whose arrays are given up here
        self.gathered, self.values = gathered, values
        self.ready.record(stream)
        for request in coming + leaving_lengths:
            request.Wait()
        for (rank, array), length in zip(arriving, lengths.tolist(), strict=True):
            as_long(rank, length, array.nbytes)
        self.connection.stream.wait_event(self.ready)
        self.connection.exchange(leaving, arriving)
        self.arrived.record(self.connection.stream)

    def finish(self) -> Any:
        self.ghosts.xp.cuda.get_current_stream().wait_event(self.arrived)
        return self.values


class Direct(Room):
    """An exchange between GPUs by an MPI that takes their memory."""

    def begin(self, gathered: Any, values: Any) -> None:
        self.gathered, self.values = gathered, values
        self.ghosts.xp.cuda.get_current_stream().synchronize()  # MPI does not know of the stream
        self._post(gathered, values)


class Staged(Room):
    """An exchange between GPUs through locked memory of the host.

    A stream of its own copies what is sent to the host, while the kernels run that the caller queues after `begin`.
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
            self.read.synchronize()  # what was received before
        into = [(rank, self.into[part.start - local : part.stop - local]) for rank, part in ghosts.received]
        self.arriving = [(ghosts.comm.Irecv(buffer, rank), buffer) for rank, buffer in into]
        self.leaving = [
            ghosts.comm.Isend(self.out[part.start - local : part.stop - local], rank) for rank, part in ghosts.sent
        ]
        super().finish()
        if self.into.size:
            own, cuda = self.values[local:], ghosts.xp.cuda
            stream, to_device = cuda.get_current_stream(), cuda.runtime.memcpyHostToDevice
            cuda.runtime.memcpyAsync(own.data.ptr, self.into.ctypes.data, own.nbytes, to_device, stream.ptr)
            self.read.record()
        return self.values
