"""Prefetching of memory, for kernels whose next addresses are known but far apart."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

READ, KEEP, DATA = 0, 3, 1  # the arguments of llvm.prefetch: for a read, into all levels of cache, data


@intrinsic
def prefetch(typing, array, index):
    """Let the line of array[index] come into the caches; changes nothing. The array has one or two dimensions, of two
    the line of its row."""

    def generate(context, builder, signature, args):
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, args[0])
        indices = [args[1]] + [context.get_constant(types.intp, 0)] * (kind.ndim - 1)
        element = cgutils.get_item_pointer(context, builder, kind, view, indices, wraparound=False)
        address = builder.bitcast(element, ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        called = builder.module.declare_intrinsic("llvm.prefetch", [address.type], form)
        builder.call(called, [address, number(READ), number(KEEP), number(DATA)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate
