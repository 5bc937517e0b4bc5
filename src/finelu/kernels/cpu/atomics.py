"""Atomic operations on the elements of integer arrays, for kernels that several threads run at once."""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

PAUSE = {"x86_64": "pause", "AMD64": "pause", "aarch64": "yield", "arm64": "yield"}.get(platform.machine(), "")


def _address(context, builder, kind, array, index):
    view = context.make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, view, [index], wraparound=False)


@intrinsic
def fetch_add(typing, array, index, value):
    """array[index] += value, whole; returns what was there before. Acquires and releases."""

    def generate(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", address, args[2], "acq_rel")

    return array.dtype(array, types.intp, array.dtype), generate


@intrinsic
def fetch_min(typing, array, index, value):
    """array[index] = min(array[index], value), whole; returns what was there before. Signed integers only."""

    def generate(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("min", address, args[2], "acq_rel")

    return array.dtype(array, types.intp, array.dtype), generate


@intrinsic
def load_acquire(typing, array, index):
    """array[index], read anew; what its writer wrote before store_release is visible after."""

    def generate(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1])
        kind = context.get_data_type(signature.return_type)
        return builder.load_atomic(address, "acquire", context.get_abi_sizeof(kind), typ=kind)

    return array.dtype(array, types.intp), generate


@intrinsic
def store_release(typing, array, index, value):
    """array[index] = value, after everything that this thread wrote before."""

    def generate(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1])
        size = context.get_abi_sizeof(context.get_data_type(signature.args[2]))
        builder.store_atomic(args[2], address, "release", size)
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), generate


@intrinsic
def _pause(typing):
    def generate(context, builder, signature, args):
        if PAUSE:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(ir.InlineAsm(kind, PAUSE, "", side_effect=True), [])
        return context.get_dummy_value()

    return types.void(), generate


_yield = types.ExternalFunction("sched_yield", types.int32())


@njit(nogil=True)
def relax(rounds):
    """What a waiting thread does between two looks: pause, and from some microseconds on let another thread run."""
    if rounds < 200:
        _pause()
    else:
        _yield()
