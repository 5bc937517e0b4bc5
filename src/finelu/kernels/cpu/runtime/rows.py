"""Rows of small dense blocks as one vector each: the innermost operations of the loops over a block.

LLVM does not turn a loop over 6 numbers into vector instructions where it cannot see that the arrays are apart; here
the row is loaded once, stays in registers for all terms, and is stored once. Each element gets the same operations in
the same order as by the loop, so the bits are the same.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload


def add_rows(terms, size, order, a, ia, b, ib, out, io):
    """out[io:io + n] += sum_w a[ia + w] b[ib + w n:ib + w n + n], w ascending.

    size : a tuple of n numbers, terms : one with as many as there are terms, so that both are known to the compiler;
    an empty tuple stands for `order`. The three arrays are of one dtype; places are unsigned.
    """
    raise NotImplementedError("for compiled code only")


def subtract_rows(terms, size, order, a, ia, b, ib, out, io):
    """The same with -=."""
    raise NotImplementedError("for compiled code only")


def _vectors(operation):
    @intrinsic
    def accumulate(typing, terms, size, a, ia, b, ib, out, io):
        m, n = len(terms), len(size)

        def generate(context, builder, signature, args):
            number, width = context.get_data_type(out.dtype), out.dtype.bitwidth // 8
            vector, index = ir.VectorType(number, n), ir.IntType(32)
            undefined, everywhere = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(index, n), [0] * n)

            def address(k):
                kind = signature.args[k]
                view = context.make_array(kind)(context, builder, args[k])
                return cgutils.get_item_pointer(context, builder, kind, view, [args[k + 1]], wraparound=False)

            def row(pointer):
                return builder.bitcast(pointer, vector.as_pointer())

            factors, rows, place = address(2), address(4), row(address(6))
            total = builder.load(place, align=width)
            for w in range(m):
                factor = builder.load(builder.gep(factors, [index(w)]), align=width)
                spread = builder.insert_element(undefined, factor, index(0))
                spread = builder.shuffle_vector(spread, undefined, everywhere)
                values = builder.load(row(builder.gep(rows, [index(w * n)])), align=width)
                total = getattr(builder, operation)(total, builder.fmul(spread, values))
            builder.store(total, place, align=width)
            return context.get_dummy_value()

        return types.void(terms, size, a, ia, b, ib, out, io), generate

    return accumulate


_add, _subtract = _vectors("fadd"), _vectors("fsub")


def _as_vectors(size, out) -> bool:
    return len(size) > 0 and not isinstance(out.dtype, types.Complex)


@overload(add_rows, jit_options={"error_model": "numpy"})
def _add_rows(terms, size, order, a, ia, b, ib, out, io):
    if _as_vectors(size, out):
        return lambda terms, size, order, a, ia, b, ib, out, io: _add(terms, size, a, ia, b, ib, out, io)

    def loops(terms, size, order, a, ia, b, ib, out, io):
        n = np.uint64(len(size)) if len(size) > 0 else order
        for w in range(np.uint64(len(terms)) if len(terms) > 0 else order):
            factor = a[ia + w]
            for v in range(n):
                out[io + v] += factor * b[ib + w * n + v]

    return loops


@overload(subtract_rows, jit_options={"error_model": "numpy"})
def _subtract_rows(terms, size, order, a, ia, b, ib, out, io):
    if _as_vectors(size, out):
        return lambda terms, size, order, a, ia, b, ib, out, io: _subtract(terms, size, a, ia, b, ib, out, io)

    def loops(terms, size, order, a, ia, b, ib, out, io):
        n = np.uint64(len(size)) if len(size) > 0 else order
        for w in range(np.uint64(len(terms)) if len(terms) > 0 else order):
            factor = a[ia + w]
            for v in range(n):
                out[io + v] -= factor * b[ib + w * n + v]

    return loops
