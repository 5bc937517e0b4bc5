"""Initial values of device memory, written in stream order; objects that are kept as long as an array."""

from __future__ import annotations

import threading
import weakref

import cupy
import numpy as np

_counters: dict = {}
_kept: dict[tuple, tuple] = {}


def set_bytes(array, byte: int) -> None:
    """Every byte of `array` (contiguous) becomes `byte`, in the order of the stream."""
    cupy.cuda.runtime.memsetAsync(array.data.ptr, byte, array.nbytes, cupy.cuda.get_current_stream().ptr)


def set_zero(array) -> None:
    set_bytes(array, 0)


def set_pending(array) -> None:
    """Fill with 0xff bytes, in stream order: every value and counter in it is pending (see finelu.cuh)."""
    set_bytes(array, 0xFF)


def counter():
    """A word (1,) uint32 for `last_block` of sums.cuh: 0 before and after each kernel; those of a stream share it."""
    key = _of_stream(cupy.cuda.get_current_stream())
    found = _counters.get(key)
    if found is None:
        found = _counters[key] = cupy.zeros(1, np.uint32)
    return found


class Counters:
    """While it is entered, `counter` gives this one for `stream`: work recorded there may run on another later."""

    def __init__(self, stream):
        self._key, self._counter = _of_stream(stream), cupy.zeros(1, np.uint32)

    def __enter__(self):
        _counters[self._key] = self._counter

    def __exit__(self, *_):
        del _counters[self._key]


def _of_stream(stream):
    # the default stream of a thread has one number in all threads
    return cupy.cuda.runtime.getDevice(), stream.ptr, threading.get_ident() if stream.ptr == 2 else 0


def new_bad():
    """A place (1,) int32 for the first bad row that a kernel meets, pending."""
    bad = cupy.empty(1, np.int32)
    set_pending(bad)
    return bad


def while_alive(array, key: tuple, make):
    """make(), once for this key while `array` lives, which the result must not hold."""
    found = _kept.get(key)
    if found is None:
        alive = weakref.ref(array, lambda _: _kept.pop(key, None))
        found = _kept.setdefault(key, (make(), alive))
    return found[0]
