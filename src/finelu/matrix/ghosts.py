"""The values of cells beyond the interfaces of a process, brought from where they live."""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.processes import received, takes_device_buffers


class Ghosts:
    """Brings the values of `count` cells beyond interfaces: first those of this process, then those of others.

    comm : the communicator, or None.  xp : numpy or cupy, where the vectors live.
    wanted : {process: the cells (m,) wanted of it, by its own numbers}.  own : those of this process, by its numbers.
    needed : whether this process sends or receives anything; the others do what they must.
    `begin(x)` gathers and sends, `finish()` waits and gives the values; between them the caller does what needs none.
    On a GPU the values go through locked memory of the host, by a copy while the caller's kernels run, or by MPI itself
    where it takes the memory of a GPU. All matrices of a grid share it: one product at a time.
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
        self._rooms: dict[Any, Room] = {}

    def begin(self, x: Any) -> None:
        """Take the values x (cells, n) of the cells that others want, and send them."""
        key = x.shape[1], x.dtype
        if key not in self._rooms:
            kind = Room if self.xp is np or self.comm is None else Direct if takes_device_buffers() else Staged
            self._rooms[key] = kind(self)
        self._room = self._rooms[key]
        gathered = self.xp.take(x, self.cells, axis=0)
        values = self.xp.empty((self.count, x.shape[1]), x.dtype)
        values[: self.local] = gathered[: self.local]
        self._room.begin(gathered, values)

    def finish(self) -> Any:
        """(count, n) : the values, once they are there."""
        return self._room.finish()


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
