"""The recording of a whole application, or of the step of an iteration, which is then started as one."""

from __future__ import annotations

import threading
from contextlib import suppress

import cupy
from cupy.cuda.memory import OutOfMemoryError
from cupy_backends.cuda.api.driver import CUDADriverError
from cupy_backends.cuda.api.runtime import CUDARuntimeError

from finelu.kernels.cuda.runtime.memory import Counters

# The call of a step with which its recording begins. Recording takes the host about as long as two calls, and a launch
# saves it most of one: it has paid after three or four launches more. A solve of fewer iterations is not kept waiting.
RECORDED_FROM = 4

FAILURES = (CUDARuntimeError, CUDADriverError, OutOfMemoryError)

_streams = threading.local()


class _Graph:
    """What function() queues on the current stream, as a graph of kernels; `result` is what it returned.

    function must queue the same work each time, without waiting for the host, and must have been called before: what
    it makes at first use and keeps would else be recorded, but not made. What it allocates belongs to the graph as long
    as that is there.
    """

    def __init__(self, function):
        self._memory: list = []
        self._home = cupy.cuda.get_current_stream()
        stream = _recording_stream()
        self._counters = Counters(stream)
        try:
            with cupy.cuda.using_allocator(self._allocate), self._counters, stream:
                stream.begin_capture()
                try:
                    self.result = function()
                except BaseException:
                    with suppress(CUDARuntimeError):  # of the recording that this ends
                        stream.end_capture()
                    raise
                self._graph = stream.end_capture()
        finally:
            if cupy.cuda.get_current_stream() != self._home:  # CuPy forgets one that was set by `use`
                self._home.use()

    def _allocate(self, size: int):
        """Memory that is given to no other array, even once it is freed here: the graph writes to it at each launch.

        It comes from where that of the current stream does and goes back there with the graph, in the order of that
        stream, even if a launch has not ended then.
        """
        with self._home:
            memory = cupy.get_default_memory_pool().malloc(size)
        self._memory.append(memory)
        return memory

    def launch(self, stream):
        self._graph.launch(stream)


def _recording_stream():
    """A stream for this thread to record on, one a device: work that others queue meanwhile is not recorded.

    Another one where an interrupt has left it in the middle of a recording.
    """
    streams = _streams.__dict__
    device = cupy.cuda.runtime.getDevice()
    if device not in streams or streams[device].is_capturing():
        streams[device] = cupy.cuda.Stream(non_blocking=True)
    return streams[device]


def capturing() -> bool:
    """Whether what the current stream is given is being recorded: then no other graph can be launched there."""
    return cupy.cuda.get_current_stream().is_capturing()


class Recorded:
    """A function of a vector (n,), recorded once as a graph of kernels: one launch instead of one for each of them.

    function(x) must queue the same work each time, on the current stream, without waiting for the host, and must have
    been called before: what it makes at first use and keeps would else be recorded, but not made. What it allocates
    belongs to the graph as long as that is there. Calls may come from any stream, one after the other: on the device
    each waits for the one before, whose places for x and the result it takes.
    """

    def __init__(self, function, n: int, dtype):
        self._done = cupy.cuda.Event(disable_timing=True)  # the last call
        self._x = cupy.empty(n, dtype)
        self._graph = _Graph(lambda: function(self._x))

    def __call__(self, x):
        """A new array with function(x), queued on the current stream."""
        stream = cupy.cuda.get_current_stream()
        stream.wait_event(self._done)
        cupy.copyto(self._x, x)
        self._graph.launch(stream)
        y = self._graph.result.copy()
        self._done.record(stream)
        return y


class Repeated:
    """The step of an iteration: step() must queue the same work on the same arrays each time, without waiting for the
    host, all of it on one stream. From the RECORDED_FROM-th call on it is a graph, one launch; not where the recording
    fails, for want of memory or since another thread waits for the whole device meanwhile: the numbers are the same.
    """

    def __init__(self, step):
        self._step, self._calls, self._graph, self._records = step, 0, None, True

    def __call__(self):
        if self._graph is None:
            self._calls += 1
            if self._calls < RECORDED_FROM or not self._records:
                self._step()
                return
            try:
                self._graph = _Graph(self._step)
            except FAILURES:  # nothing of the step has run
                self._records = False
                self._step()
                return
        self._graph.launch(cupy.cuda.get_current_stream())

    def forget(self):
        """The step is recorded again: for whoever replaces an array of it. What has been launched goes on."""
        self._graph = None
