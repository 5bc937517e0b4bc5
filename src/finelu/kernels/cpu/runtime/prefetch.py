"""Prefetching of memory, for kernels whose next addresses are known but far apart."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

READ, WRITE, KEEP, DATA = 0, 1, 3, 1  # the arguments of llvm.prefetch: for a read or a write, into all caches, data


@intrinsic
def prefetch(typing, array, index):
    """Let the line of array[index] come into the caches; changes nothing. The array has one or two dimensions, of two
    the line of its row."""

    def generate(context, builder, signature, args):
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, args[0])
        indices = [args[1]] + [context.get_constant(types.intp, 0)] * (kind.ndim - 1)
        element = cgutils.get_item_pointer(context, builder, kind, view, indices, wraparound=False)
        _fetch(builder, element, READ)
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def fetch_to_write(builder: Any, address: Any) -> None:
    """Code that lets the line at an address come into the caches to be written; it may lie beyond an array."""
    _fetch(builder, address, WRITE)


def _fetch(builder: Any, address: Any, use: int) -> None:
    address, number = builder.bitcast(address, ir.IntType(8).as_pointer()), ir.IntType(32)
    form = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
    called = builder.module.declare_intrinsic("llvm.prefetch", [address.type], form)
    builder.call(called, [address, number(use), number(KEEP), number(DATA)])
