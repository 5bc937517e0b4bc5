"""Applications of factors on a GPU that are recorded: one launch instead of one for each of their kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from finelu.device import on_gpu
from finelu.kernels import kernels_for


class Applications:
    """apply(r, trans) of factors, a new array; after `calls` calls as a graph of kernels, one for each trans.

    apply is called directly on the CPU, for several columns, while the caller records, and if the recording fails. It
    must queue the same kernels each time and wait for nothing. It is not stored, so that the factors do not refer to
    themselves. Threads take turns: a graph has one array for r and one for the result.
    Memory of a graph: all arrays of one apply, as long as this object is kept. It cannot be pickled.
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
            result = apply(r, trans)  # arrays that apply makes at first use, and keeps, do not belong to the graph
            calls = self._calls[trans] = self._calls.get(trans, 0) + 1
            if calls == self._before:
                recording = kernels_for(r).recording
                with suppress(*recording.FAILURES):  # a failed recording has run nothing
                    self._graphs[trans] = recording.Recorded(lambda x: apply(x, trans), r.size, r.dtype)
            return _into(out, result)

    def forget(self) -> None:
        """Record anew: to be called after an array that apply reads was replaced."""
        self._graphs, self._calls = {}, {}


def _into(out: Any, result: Any) -> Any:
    if out is None:
        return result
    out[...] = result
    return out
