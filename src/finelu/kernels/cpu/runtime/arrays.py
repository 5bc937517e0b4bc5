"""Arrays that a kernel makes, on their way to Python; for kernels that know only in the end how large they are.

Numba turns a returned array, or named tuple, into Python's by calling Python code while it is still inside the kernel,
and does not look whether that has raised. After a Ctrl-C it has, as the signal waits for the first Python code. So a
kernel that Python calls returns numbers alone, and leaves the arrays that it has made in the slots of a `Handed`.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.runtime.nrt import MemInfo
from numba.extending import intrinsic

from finelu.kernels.cpu.runtime.jit import compiled


@intrinsic
def hand_over(typing, array, slots, index):
    """slots[:, index] = where the memory of `array` is, and its size. `array` : whole, made in this kernel."""

    def generate(context, builder, signature, args):
        kind, table = signature.args[:2]
        context.nrt.incref(builder, kind, args[0])  # that of the slot
        made = context.make_array(kind)(context, builder, args[0])
        view = context.make_array(table)(context, builder, args[1])
        memory = builder.ptrtoint(made.meminfo, ir.IntType(64))
        for row, value in enumerate((memory, made.nitems)):
            place = [context.get_constant(types.intp, row), args[2]]
            builder.store(value, cgutils.get_item_pointer(context, builder, table, view, place, wraparound=False))
        return context.get_dummy_value()

    return types.void(array, slots, types.intp), generate


class Handed:
    """Room for `count` arrays in a `with` block, whose end frees those that were not taken, as after a Ctrl-C.

    Without __del__: an interrupt that comes there is lost.
    """

    def __init__(self, count: int):
        self.slots = np.zeros((2, count), np.int64)

    def take(self, index: int, dtype) -> np.ndarray:
        """The array that the kernel has left in this slot, once."""
        size = int(self.slots[1, index])
        return np.ndarray((size,), dtype, buffer=self._memory(index))

    def _memory(self, index: int) -> MemInfo:
        address, self.slots[0, index] = int(self.slots[0, index]), 0
        return MemInfo(address)  # owns what the slot owned

    def __enter__(self) -> Handed:
        return self

    def __exit__(self, *_) -> None:
        for index in range(self.slots.shape[1]):
            if self.slots[0, index]:
                self._memory(index)


@compiled
def grown(array, used, needed):
    """The array, or one with more room and the same first `used` elements."""
    if needed <= array.size:
        return array
    larger = np.empty(max(needed, 2 * array.size), array.dtype)
    for p in range(used):
        larger[p] = array[p]
    return larger
