"""The recording of a whole application, which is then started as one."""

from __future__ import annotations

import cupy


class Recorded:
    """A function of a vector (n,), recorded once as a graph of kernels: one launch instead of one for each of them.

    function(x) must queue the same work each time, on the current stream, without waiting for the host, and must have
    been called before: what it makes at first use and keeps would else be recorded, but not made. What it allocates
    belongs to the graph as long as that is there. Calls may come from any stream, one after the other: on the device
    each waits for the one before, whose places for x and the result it takes.
    """

    def __init__(self, function, n: int, dtype):
        self._memory: list = []
        self._done = cupy.cuda.Event(disable_timing=True)  # the last call
        stream = cupy.cuda.Stream(non_blocking=True)
        with cupy.cuda.using_allocator(self._allocate), stream:
            self._x = cupy.empty(n, dtype)
            stream.begin_capture()
            try:
                self._y = function(self._x)
            finally:
                self._graph = stream.end_capture()

    def _allocate(self, size: int):
        """Memory that is given to no other array, even once it is freed here: the graph writes to it at each launch."""
        memory = cupy.get_default_memory_pool().malloc(size)
        self._memory.append(memory)
        return memory

    def __call__(self, x):
        """A new array with function(x), queued on the current stream."""
        stream = cupy.cuda.get_current_stream()
        stream.wait_event(self._done)
        cupy.copyto(self._x, x)
        self._graph.launch(stream)
        y = self._y.copy()
        self._done.record(stream)
        return y
