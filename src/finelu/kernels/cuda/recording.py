"""CUDA graphs: all launches of an application, or of a step of an iteration, recorded and started by one call."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager, suppress

import cupy
from cupy_backends.cuda.api.driver import CUDADriverError
from cupy_backends.cuda.api.runtime import CUDARuntimeError

from finelu.kernels.cuda.runtime.memory import Counters

# The call of a step after which it is recorded. Recording takes the host about as long as two calls, and a launch
# saves it most of one: it has paid after three or four launches more. A shorter solve is not kept waiting.
RECORDED_FROM = 3

BRANCHES = 32  # of a graph at most

# The errors with which a recording may end; OutOfMemoryError of CuPy's pools is a MemoryError.
FAILURES = (CUDARuntimeError, CUDADriverError, MemoryError)

_streams = threading.local()


class _Graph:
    """The work that function() queues on the current stream, as a graph of kernels; `result` is its return value.

    function must queue the same work each time, without waiting for the host, and must have been called before: the
    creation of objects that it makes at first use and keeps would only be recorded. Arrays that it allocates belong to
    the graph as long as that exists; the caller must keep the other arrays that it reads and writes as long.
    """

    def __init__(self, function):
        self._memory: list = []
        self._home, self._allocator = cupy.cuda.get_current_stream(), cupy.cuda.get_allocator()  # the caller's
        stream = self._stream = _recording_stream()
        self._branches: dict = {}  # the stream of each
        self._open: set = set()  # those that have begun since the last `join`
        self._counters, self._entered = [Counters(stream)], ExitStack()
        try:
            with cupy.cuda.using_allocator(self._allocate), self._entered, stream:
                self._entered.enter_context(self._counters[0])
                stream.begin_capture()
                _streams.graph = self
                try:
                    self.result = function()
                    self._join()
                except BaseException:
                    with suppress(CUDARuntimeError):  # of the recording that this ends
                        stream.end_capture()
                    raise
                finally:
                    _streams.graph = None
                self._graph = stream.end_capture()
        finally:
            if cupy.cuda.get_current_stream() != self._home:  # CuPy forgets one that was set by `use`
                self._home.use()

    def _allocate(self, size: int):
        """Memory that is given to no other array, even once it is freed here: the graph writes to it at each launch.

        It comes from the allocator and the stream that were current when the recording began, as the arrays of a step
        that is not recorded do, and goes back there with the graph. A launch on that stream need not have ended then:
        a pool of CuPy's gives the memory to the same stream again, whose work comes after the launch; cudaFreeAsync
        frees it in the order of that stream; and cudaFree, where there is no pool, waits for the device.
        """
        with self._home:  # which is not recorded: else cudaMallocAsync would become a part of the graph
            memory = self._allocator(size)
        self._memory.append(memory)
        return memory

    def _branch(self, number: int):
        """The stream of a branch, which begins after all work up to the last `join`, and more."""
        number %= BRANCHES
        found = self._branches.get(number)
        if found is None:
            found = self._branches[number] = _recording_stream(number)
            with self._home:  # its zero is written once, not at each launch
                self._counters.append(Counters(found))
            self._entered.enter_context(self._counters[-1])
        if number not in self._open:
            self._open.add(number)
            found.wait_event(_now(self._stream))
        return found

    def _join(self) -> None:
        """What follows comes after the work of all branches."""
        for number in sorted(self._open):
            self._stream.wait_event(_now(self._branches[number]))
        self._open.clear()

    def launch(self, stream):
        self._graph.launch(stream)


def _now(stream):
    event = cupy.cuda.Event(disable_timing=True)
    event.record(stream)
    return event


def _recording_stream(branch: int | None = None):
    """A stream for this thread to record on, one a device and branch: work that others queue meanwhile is not recorded.

    Another one where an interrupt has left it in the middle of a recording.
    """
    streams = _streams.__dict__.setdefault("streams", {})
    key = cupy.cuda.runtime.getDevice(), branch
    if key not in streams or streams[key].is_capturing():
        streams[key] = cupy.cuda.Stream(non_blocking=True)
    return streams[key]


@contextmanager
def branch(number: int):
    """While a step is recorded, the graph may run the work of this branch at the same time as that of others, until
    `join`. It may read what was written before the branch began, and what the branch itself has written. Without a
    recording it has no effect."""
    graph = getattr(_streams, "graph", None)
    if graph is None:
        yield
        return
    with graph._branch(number):
        yield


def join() -> None:
    """What is recorded from now on may read what all branches have written."""
    graph = getattr(_streams, "graph", None)
    if graph is not None:
        graph._join()


def capturing() -> bool:
    """Whether work on the current stream is being recorded: then no other graph can be launched there."""
    return cupy.cuda.get_current_stream().is_capturing()


class Recorded:
    """A function of a vector (n,), recorded once as a graph of kernels: one launch instead of one for each of them.

    function(x) must queue the same work each time, on the current stream, without waiting for the host, and must have
    been called before: the creation of objects that it makes at first use and keeps would only be recorded. Arrays that
    it allocates belong to the graph as long as that exists; the caller must keep the other arrays that it reads and
    writes as long. Calls may come from any stream, one after the other: on the device each call waits for the previous
    one, whose arrays for x and the result it reuses, and the first for work that was queued before the recording. Calls
    on another stream must have ended before the graph is deleted, since its memory is freed in the order of the
    recording's stream.
    """

    def __init__(self, function, n: int, dtype):
        self._done = cupy.cuda.Event(disable_timing=True)  # the last call
        self._x = cupy.empty(n, dtype)
        self._graph = _Graph(lambda: function(self._x))
        self._done.record(cupy.cuda.get_current_stream())  # the end of earlier work in the graph's memory

    def __call__(self, x, out=None):
        """function(x) in `out`, which may be x, or in a new array; queued on the current stream."""
        stream = cupy.cuda.get_current_stream()
        stream.wait_event(self._done)
        cupy.copyto(self._x, x)
        self._graph.launch(stream)
        if out is None:
            out = self._graph.result.copy()
        else:
            cupy.copyto(out, self._graph.result)
        self._done.record(stream)
        return out


class Repeated:
    """The step of an iteration: step() must queue the same work on the same arrays each time, without waiting for the
    host, all of it on one stream except what a `branch` takes. After the RECORDED_FROM-th call it is a graph, one
    launch; not where the recording fails, without enough memory or since another thread waits for the whole device
    meanwhile: the numbers are the same. The graph keeps all arrays that step() makes, each in memory of its own, until
    it is dropped; step() itself is kept, and with it the arrays that it refers to.
    """

    def __init__(self, step):
        self._step, self._calls, self._graph, self._records = step, 0, None, True

    def __call__(self):
        if self._graph is not None:
            self._graph.launch(cupy.cuda.get_current_stream())
            return
        self._step()
        self._calls += 1
        if self._calls >= RECORDED_FROM and self._records:  # while the device works
            try:
                self._graph = _Graph(self._step)
            except FAILURES:  # none of the work to be recorded has run
                self._records = False

    def forget(self):
        """Record the step again: to be called after an array of it was replaced. Launched work goes on."""
        self._graph, self._calls = None, 0
