"""Arithmetic on LANES numbers that lie side by side: unknowns of as many independent systems, solved at once.

Numba's vectorizer does not keep sums of a loop in vector registers, so the loop is written for LLVM. The numbers are
those of separate operations: products are rounded before they are subtracted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

LANES = 8  # double precision fills a register of AVX-512, two of AVX2


def subtract_products(x, i, alike, columns, offset, values, begin, end):
    """x_i -= v_e x_c for the entries begin <= e < end, in their order, in each of the lanes.

    x : unknown i has the places from i * LANES on, one a lane.
    values : entry e has those from e * LANES on; of x's dtype or narrower.
    alike : entry e has the column c = columns[e + offset] in all lanes; else columns[e * LANES + lane + offset].
    """
    raise TypeError("only kernels call it")


def _of_floats(alike: bool) -> Callable:
    @intrinsic
    def subtract(typing, x, i, columns, offset, values, begin, end):
        def generate(context, builder, signature, args):
            arrays = signature.args[0], signature.args[2], signature.args[4]
            X, C, V = (
                context.make_array(kind)(context, builder, args[k]).data
                for kind, k in zip(arrays, (0, 2, 4), strict=True)
            )
            wide, narrow = (context.get_data_type(kind.dtype) for kind in (arrays[0], arrays[2]))
            word, lanes = args[1].type, ir.Constant(args[1].type, LANES)
            vector, stored = ir.VectorType(wide, LANES), ir.VectorType(narrow, LANES)

            def at(base, place, kind):
                first = builder.gep(base, [builder.mul(place, lanes)])
                return builder.bitcast(first, kind.as_pointer())

            def load(base, place, kind, size):
                return builder.load(at(base, place, kind), align=size)

            size, stored_size = (context.get_abi_sizeof(kind) for kind in (wide, narrow))
            total = cgutils.alloca_once_value(builder, load(X, args[1], vector, size))
            one = ir.Constant(word, 1)
            with cgutils.for_range_slice(builder, args[5], args[6], one, word) as (entry, _):
                v = load(V, entry, stored, stored_size)
                v = v if wide == narrow else builder.fpext(v, vector)
                if alike:
                    column = builder.load(builder.gep(C, [builder.add(entry, args[3])]))
                    others = load(X, builder.zext(column, word), vector, size)
                else:
                    others = ir.Constant(vector, ir.Undefined)
                    first = builder.add(builder.mul(entry, lanes), args[3])
                    for lane in range(LANES):
                        number = ir.Constant(word, lane)
                        column = builder.load(builder.gep(C, [builder.add(first, number)]))
                        place = builder.add(builder.mul(builder.zext(column, word), lanes), number)
                        other = builder.load(builder.gep(X, [place]))
                        others = builder.insert_element(others, other, ir.Constant(ir.IntType(32), lane))
                builder.store(builder.fsub(builder.load(total), builder.fmul(v, others)), total)
            builder.store(builder.load(total), at(X, args[1], vector), align=size)
            return context.get_dummy_value()

        return types.void(x, types.intp, columns, types.intp, values, types.intp, types.intp), generate

    return subtract


_subtract_alike, _subtract_apart = _of_floats(alike=True), _of_floats(alike=False)


@overload(subtract_products, inline="never", jit_options={"error_model": "numpy"})
def _subtract_products(x, i, alike, columns, offset, values, begin, end):
    if isinstance(x.dtype, types.Float):

        def of_floats(x, i, alike, columns, offset, values, begin, end):
            if alike:
                _subtract_alike(x, i, columns, offset, values, begin, end)
            else:
                _subtract_apart(x, i, columns, offset, values, begin, end)

        return of_floats

    def of_complex_numbers(x, i, alike, columns, offset, values, begin, end):
        for lane in range(LANES):
            total = x[i * LANES + lane]
            for e in range(begin, end):
                c = columns[e + offset] if alike else columns[e * LANES + lane + offset]
                total -= values[e * LANES + lane] * x[np.int64(c) * LANES + lane]
            x[i * LANES + lane] = total

    return of_complex_numbers


def subtract_multiples(x, columns, begin, end, factors, p, values):
    """x_c -= f_p v_e for the entries begin <= e < end, where c = columns[e], in each of the lanes.

    x, factors, values : unknown, or entry, i has the places from i * LANES on, one a lane; all of one dtype. No column
        appears twice, and x shares no memory with the others.
    """
    raise TypeError("only kernels call it")


@intrinsic
def _subtract_multiples_of_floats(typing, x, columns, begin, end, factors, p, values):
    def generate(context, builder, signature, args):
        kinds = signature.args
        X, C, F, V = (context.make_array(kinds[k])(context, builder, args[k]).data for k in (0, 1, 4, 6))
        number, word = context.get_data_type(kinds[0].dtype), args[2].type
        vector, size = ir.VectorType(number, LANES), context.get_abi_sizeof(number)
        lanes, one = ir.Constant(word, LANES), ir.Constant(word, 1)

        def at(base, place):
            return builder.bitcast(builder.gep(base, [builder.mul(place, lanes)]), vector.as_pointer())

        factor = builder.load(at(F, args[5]), align=size)
        with cgutils.for_range_slice(builder, args[2], args[3], one, word) as (entry, _):
            column = builder.zext(builder.load(builder.gep(C, [entry])), word)
            product = builder.fmul(factor, builder.load(at(V, entry), align=size))
            builder.store(builder.fsub(builder.load(at(X, column), align=size), product), at(X, column), align=size)
        return context.get_dummy_value()

    return types.void(x, columns, types.intp, types.intp, factors, types.intp, values), generate


@overload(subtract_multiples, inline="never", jit_options={"error_model": "numpy"})
def _subtract_multiples(x, columns, begin, end, factors, p, values):
    if isinstance(x.dtype, types.Float):

        def of_floats(x, columns, begin, end, factors, p, values):
            _subtract_multiples_of_floats(x, columns, begin, end, factors, p, values)

        return of_floats

    def of_complex_numbers(x, columns, begin, end, factors, p, values):
        for e in range(begin, end):
            for lane in range(LANES):
                x[np.int64(columns[e]) * LANES + lane] -= factors[p * LANES + lane] * values[e * LANES + lane]

    return of_complex_numbers


def add_up_rows(s, first, second, count, result):
    """In each of the lanes the sum of conj(s_k) t_k, and that of s_k, for k < count in this order.

    s : s_k has the places from first + k LANES on, one a lane, t_k those from second + k LANES on; the sums are written
        from `result` on, and from result + LANES on.
    """
    raise TypeError("only kernels call it")


@intrinsic
def _add_up_rows_of_floats(typing, s, first, second, count, result):
    def generate(context, builder, signature, args):
        kind = signature.args[0]
        data = context.make_array(kind)(context, builder, args[0]).data
        number, word = context.get_data_type(kind.dtype), args[1].type
        vector, size = ir.VectorType(number, LANES), context.get_abi_sizeof(number)
        lanes, zero, one = ir.Constant(word, LANES), ir.Constant(word, 0), ir.Constant(word, 1)
        sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES)) for _ in range(2)]

        def at(place):
            return builder.bitcast(builder.gep(data, [place]), vector.as_pointer())

        with cgutils.for_range_slice(builder, zero, args[3], one, word) as (k, _):
            row = builder.mul(k, lanes)
            a, b = (builder.load(at(builder.add(begin, row)), align=size) for begin in args[1:3])
            for total, term in zip(sums, (builder.fmul(a, b), a), strict=True):
                builder.store(builder.fadd(builder.load(total), term), total)
        for total, place in zip(sums, (args[4], builder.add(args[4], lanes)), strict=True):
            builder.store(builder.load(total), at(place), align=size)
        return context.get_dummy_value()

    return types.void(s, types.intp, types.intp, types.intp, types.intp), generate


@overload(add_up_rows, inline="never", jit_options={"error_model": "numpy"})
def _add_up_rows(s, first, second, count, result):
    if isinstance(s.dtype, types.Float):

        def of_floats(s, first, second, count, result):
            _add_up_rows_of_floats(s, first, second, count, result)

        return of_floats

    def of_complex_numbers(s, first, second, count, result):
        for lane in range(LANES):
            dot = total = s.dtype.type(0)
            for k in range(count):
                a = s[first + k * LANES + lane]
                dot += np.conj(a) * s[second + k * LANES + lane]
                total += a
            s[result + lane], s[result + LANES + lane] = dot, total

    return of_complex_numbers
