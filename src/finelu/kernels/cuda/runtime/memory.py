"""Values for device memory to begin with, in stream order."""

from __future__ import annotations

import cupy
import numpy as np


def set_bytes(array, byte: int) -> None:
    """Every byte of `array` (contiguous) becomes `byte`, in the order of the stream."""
    cupy.cuda.runtime.memsetAsync(array.data.ptr, byte, array.nbytes, cupy.cuda.get_current_stream().ptr)


def set_zero(array) -> None:
    set_bytes(array, 0)


def set_pending(array) -> None:
    """Fill with 0xff bytes, in stream order: every value and counter in it is pending (see finelu.cuh)."""
    set_bytes(array, 0xFF)


def new_bad():
    """A place (1,) int32 for the first bad row that a kernel meets, pending."""
    bad = cupy.empty(1, np.int32)
    set_pending(bad)
    return bad
