"""Arrays that a kernel returns to Python, for kernels that know the sizes of their results only at the end; and arrays
whose elements have other numbers.

Numba converts a returned array, or named tuple, by calling Python code inside of the kernel, and does not check whether
that code has raised. After a Ctrl-C it has, as the signal is handled by the first Python code. So a kernel that Python
calls returns only numbers, and leaves its arrays in the slots of a `Handed`.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.core.runtime.nrt import MemInfo
from numba.extending import intrinsic

from finelu.kernels.cpu.runtime.jit import compiled


@intrinsic
def hand_over(typing, array, slots, index):
    """slots[:, index] = the address of the memory of `array`, and its size. `array` : whole, made in this kernel."""

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


@intrinsic
def renumbered(typing, array, first):
    """The elements of `array` (m,), contiguous, under the numbers first, ..., first + m - 1. Others must not be asked
    for."""

    def generate(context, builder, signature, args):
        made = context.make_array(signature.args[0])(context, builder, args[0])
        made.data = builder.gep(made.data, [builder.neg(args[1])])
        return impl_ret_borrowed(context, builder, signature.return_type, made._getvalue())

    return array(array, types.int64), generate


class Handed:
    """Slots for `count` arrays in a `with` block, whose end frees those that were not taken, for example after a
    Ctrl-C.

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
