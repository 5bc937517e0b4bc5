"""Launchers of cycle.cu: where a cycle of a Krylov method begins, and what it keeps."""

from __future__ import annotations

import cupy
import cupyx

from finelu.kernels.cuda.runtime.launch import over_elements, single_thread


class Snapshot:
    """A copy of state and norms in pinned memory: `post` queues it behind the work so far, `read` waits for that,
    `ready` tells whether it would not have to."""

    def __init__(self, state, norms):
        self.source = (state, norms)
        self.copy = tuple(cupyx.empty_pinned(array.shape, array.dtype) for array in self.source)
        self.done = cupy.cuda.Event(disable_timing=True)

    def post(self):
        for array, copy in zip(self.source, self.copy, strict=True):
            array.get(out=copy, blocking=False)
        self.done.record()

    def ready(self) -> bool:
        return self.done.done

    def read(self):
        self.done.synchronize()
        return self.copy


def begin_cycle(state, norms, history, checks):
    single_thread("cycle", "begin_cycle", norms.dtype, state, norms, history, checks)


def keep_verified(state, x, verified):
    over_elements("cycle", "keep_verified", x, state, x, verified)
