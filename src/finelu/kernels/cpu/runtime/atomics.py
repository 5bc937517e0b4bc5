"""Atomic operations on the elements of integer arrays, for kernels that several threads run at once."""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from finelu.kernels.cpu.runtime.jit import nested

X86 = platform.machine() in ("x86_64", "AMD64")


def _address(context, builder, kind, array, index):
    view = context.make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, view, [index], wraparound=False)


@intrinsic
def fetch_add(typing, array, index, value):
    """array[index] += value, whole; returns the previous value. Acquires and releases."""

    def generate(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", address, args[2], "acq_rel")

    return array.dtype(array, types.intp, array.dtype), generate


@intrinsic
def exchange(typing, array, index, value):
    """array[index] = value, whole; returns the previous value. No read or write of this thread passes it."""

    def generate(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("xchg", address, args[2], "seq_cst")

    return array.dtype(array, types.intp, array.dtype), generate


@intrinsic
def fetch_min(typing, array, index, value):
    """array[index] = min(array[index], value), whole; returns the previous value. Signed integers only."""

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


def _parts(builder, kind, address):
    """The address of a real number, or those of the parts of a complex one, which are read and written one by one."""
    if isinstance(kind, types.Complex):
        return [cgutils.gep_inbounds(builder, address, 0, part) for part in (0, 1)]
    return [address]


@intrinsic
def load_relaxed(typing, array, index):
    """array[index], read anew, old or new while another thread writes it; says nothing about other elements.

    Of a complex number each part is; the two may be of different writes.
    """

    def generate(context, builder, signature, args):
        kind = signature.return_type
        address = _address(context, builder, signature.args[0], args[0], args[1])
        parts = [
            builder.load_atomic(part, "monotonic", context.get_abi_sizeof(part.type.pointee))
            for part in _parts(builder, kind, address)
        ]
        if len(parts) == 1:
            return parts[0]
        number = context.make_complex(builder, kind)
        number.real, number.imag = parts
        return number._getvalue()

    return array.dtype(array, types.intp), generate


@intrinsic
def store_relaxed(typing, array, index, value):
    """array[index] = value, whole (of a complex number each part); says nothing about other elements."""

    def generate(context, builder, signature, args):
        kind = signature.args[0].dtype
        address = _address(context, builder, signature.args[0], args[0], args[1])
        values = [args[2]]
        if isinstance(kind, types.Complex):
            number = context.make_complex(builder, kind, args[2])
            values = [number.real, number.imag]
        for part, value in zip(_parts(builder, kind, address), values, strict=True):
            builder.store_atomic(value, part, "monotonic", context.get_abi_sizeof(value.type))
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), generate


@intrinsic
def _pause(typing):
    def generate(context, builder, signature, args):
        if X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


_yield = types.ExternalFunction("sched_yield", types.int32())


@nested
def relax(rounds):
    """What a waiting thread does between two looks: pause; let another thread run, once it has waited for some tens of
    microseconds, as Linux may give that one milliseconds before this one goes on."""
    if rounds < 1000:
        _pause()
    else:
        _yield()
