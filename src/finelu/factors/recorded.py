"""Applications of factors on a GPU that are recorded: one launch instead of one for each of their kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from finelu.device import on_gpu
from finelu.kernels import kernels_for


class Applications:
    """apply(r, trans) of factors, a new array, after `calls` of them as a graph of kernels, one for each trans.

    As it is on the CPU, for several columns, while the caller records, and where the recording fails. apply queues the
    same kernels each time and waits for nothing; it is not kept, as the factors that have this would then refer to
    themselves. Threads take turns: a graph has one place for r and one for the result.
    Memory of a graph: all that apply makes, as long as this is kept. Not to be pickled.
    """

    def __init__(self, calls: int = 1):
        self._before = calls
        self._graphs: dict[str, Any] = {}
        self._calls: dict[str, int] = {}
        self._lock = threading.RLock()

    def __call__(self, apply: Callable[[Any, str], Any], r: Any, trans: str, out: Any = None) -> Any:
        """The result, in `out` if that is given."""
        if not on_gpu(r) or r.ndim > 1 or kernels_for(r).recording.capturing():
            return _into(out, apply(r, trans))
        with self._lock:
            graph = self._graphs.get(trans)
            if graph is not None:
                return graph(r, out)
            result = apply(r, trans)  # what this makes at first use, and keeps, is none of the graph's
            calls = self._calls[trans] = self._calls.get(trans, 0) + 1
            if calls == self._before:
                recording = kernels_for(r).recording
                with suppress(*recording.FAILURES):  # nothing of what was to be recorded has run
                    self._graphs[trans] = recording.Recorded(lambda x: apply(x, trans), r.size, r.dtype)
            return _into(out, result)

    def forget(self) -> None:
        """Record anew: for whoever replaces an array that apply reads."""
        self._graphs, self._calls = {}, {}


def _into(out: Any, result: Any) -> Any:
    if out is None:
        return result
    out[...] = result
    return out
