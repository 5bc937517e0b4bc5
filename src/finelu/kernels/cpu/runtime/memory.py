"""Large arrays that take the memory of earlier ones: what the system gives anew, it fills with zeros at first touch."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager

import numpy as np

SMALL = 2**20  # bytes; below, there is nothing to gain

_local = threading.local()


class _Pool:
    """Memory that is free to be used again."""

    def __init__(self):
        self.free, self.open = [], True

    def take(self, size):
        """The smallest free memory of at least `size` bytes, or new one."""
        fitting = [e for e, memory in enumerate(self.free) if memory.nbytes >= size]
        if not fitting:
            return np.empty(size + size // 8, np.uint8)  # the next may be a little larger
        return self.free.pop(min(fitting, key=lambda e: self.free[e].nbytes))

    def give_back(self, memory):
        if self.open:
            self.free.append(memory)

    def close(self):
        self.open = False
        self.free.clear()


@contextmanager
def reusing_memory():
    """Inside, in this thread, `empty` takes memory of arrays that it made earlier and that are gone.

    At the end all memory that is free goes back to the system, and the rest as soon as its arrays are gone. An array
    may lie in a larger piece of memory, so copy what is to stay for long.
    """
    outer, _local.pool = getattr(_local, "pool", None), _Pool()
    try:
        yield
    finally:
        _local.pool.close()
        _local.pool = outer


def empty(size: int, dtype) -> np.ndarray:
    """An array (size,) of any values; inside `reusing_memory` of memory that is free, if any is large enough."""
    dtype = np.dtype(dtype)
    pool, needed = getattr(_local, "pool", None), size * dtype.itemsize
    if pool is None or needed < SMALL:
        return np.empty(size, dtype)
    memory = pool.take(needed)
    array = np.frombuffer(memoryview(memory), dtype, size)  # views of it hold it, not its memory
    weakref.finalize(array, pool.give_back, memory).atexit = False
    return array
