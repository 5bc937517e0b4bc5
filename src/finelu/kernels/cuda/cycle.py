"""Launchers of cycle.cu: the begin of a cycle of a Krylov method, and the copy of a verified x."""

from __future__ import annotations

import cupy
import cupyx
import numpy as np

from finelu.kernels.cuda.runtime.launch import over_elements, single_thread


class Snapshot:
    """A copy of state and norms in pinned memory: `post` queues it behind the work so far, `read` waits for that,
    `ready` tells whether it would not have to. Where norms follow state in memory it is a single one."""

    def __init__(self, state, norms):
        self.source = (state, norms)
        room = cupyx.empty_pinned(state.nbytes + norms.nbytes, np.uint8)
        self.copy = room[: state.nbytes].view(state.dtype), room[state.nbytes :].view(norms.dtype)
        self.done = cupy.cuda.Event(disable_timing=True)
        follows = norms.data.ptr == state.data.ptr + state.nbytes
        sizes = [room.nbytes] if follows else [state.nbytes, norms.nbytes]
        self._copies = [
            (copy.ctypes.data, array.data.ptr, size)
            for copy, array, size in zip(self.copy, self.source, sizes, strict=not follows)
        ]

    def post(self):
        stream = cupy.cuda.get_current_stream()
        for target, source, size in self._copies:
            cupy.cuda.runtime.memcpyAsync(target, source, size, cupy.cuda.runtime.memcpyDeviceToHost, stream.ptr)
        self.done.record(stream)

    def ready(self) -> bool:
        return self.done.done

    def read(self):
        self.done.synchronize()
        return self.copy


def begin_cycle(state, norms, history, checks):
    single_thread("cycle", "begin_cycle", norms.dtype, state, norms, history, checks)


def claim_unless_it_follows(state, norms, norm):
    single_thread("cycle", "claim_unless_it_follows", norms.dtype, state, norms, norm)


def keep_verified(state, x, verified):
    over_elements("cycle", "keep_verified", x, state, x, verified)


def unless_finite(x, norm):
    over_elements("cycle", "unless_finite", x, x, norm)
