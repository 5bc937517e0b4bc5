"""Several columns at once: the entries of a row are read once, and meet LANES columns in vector registers.

A *tile* holds up to LANES columns side by side, so that a row of it is one cache line of float64. Where a block of
columns is narrower, its last column is repeated: the copies compute the same bits, and are written to the same place.
Tiles lie behind each other; the blocks of a row-major array whose number of columns is a multiple of LANES are tiles as
they lie. Row i of a tile begins at i * stride + first.

Numba's vectorizer does not keep such sums in vector registers, so their loop is written for LLVM. Products are rounded
before they are added, and terms are added in the order of the entries: the bits are those of one column alone.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.numpy_support import as_dtype

from finelu.kernels.cpu.runtime.lanes import LANES
from finelu.kernels.cpu.runtime.prefetch import fetch_to_write

LINE = 64  # bytes of a cache line
AHEAD = 24  # rows: from 12 to 48 are as good
KEPT = 2**25  # bytes of tiles that a thread keeps; larger ones take far longer to fill than to get


def blocks_of(columns: int, threads: int) -> tuple[int, int]:
    """(blocks, width): blocks of up to `width` columns, one for each thread if there are enough columns."""
    width = max(min(-(-columns // threads), LANES), 1)
    return -(-columns // width), width


def flat(a):
    """(elements, distance of rows, distance of columns) of a (n, k) that is contiguous in either order: its elements as
    they lie, and the distances as uint64."""
    n, k = a.shape
    elements, steps = (a.reshape(-1), (k, 1)) if a.flags.c_contiguous else (a.T.reshape(-1), (1, n))
    return elements, *map(np.uint64, steps)


class _Kept(threading.local):
    """The memory of the last tiles of a thread: new pages would take longer than a solve of a small system."""

    memory = np.empty(0, np.uint8)


_kept = _Kept()


def lie_in_tiles(a) -> bool:
    """Whether the columns of a (n, k) lie in tiles."""
    return bool(a.flags.c_contiguous and a.shape[1] % LANES == 0)


def in_place(a):
    """(elements, stride, distance of the first elements of tiles) of an array of which `lie_in_tiles` holds."""
    return a.reshape(-1), np.uint64(a.shape[1]), np.uint64(LANES)


def tiles_of(blocks: int, n: int, dtype):
    """As `in_place`: tiles with any contents, each at the beginning of a cache line. The memory is the thread's own
    until it asks again."""
    row = -(-n * LANES * dtype.itemsize // LINE) * LINE
    memory = _kept.memory
    if memory.size < blocks * row + LINE:
        memory = np.empty(blocks * row + LINE, np.uint8)
        if memory.size <= KEPT:
            _kept.memory = memory
    first = -memory.ctypes.data % LINE
    elements = memory[first : first + blocks * row].view(dtype)
    return elements, np.uint64(LANES), np.uint64(row // dtype.itemsize)


class _Rows:
    """Vectors of LANES numbers of a tile, in the code that an intrinsic generates.

    A complex number is two elements, the real part first. Products and quotients are rounded as those of two numbers.
    """

    def __init__(self, context: Any, builder: Any, kind: Any):
        self.context, self.builder = context, builder
        self.is_complex = isinstance(kind.dtype, types.Complex)
        self.real = context.get_data_type(kind.dtype.underlying_float if self.is_complex else kind.dtype)
        self.size = context.get_abi_sizeof(self.real)
        self.length = LANES * (2 if self.is_complex else 1)
        self.vector, self.number = ir.VectorType(self.real, self.length), ir.IntType(32)
        self.undefined = ir.Constant(self.vector, ir.Undefined)
        self.zero = ir.Constant(self.vector, [0.0] * self.length)

    def data(self, kind: Any, array: Any) -> Any:
        return self.context.make_array(kind)(self.context, self.builder, array).data

    def _at(self, data: Any, place: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(data, [place]), self.vector.as_pointer())

    def row(self, i: Any, stride: Any, first: Any) -> Any:
        """The place of row i of a tile."""
        return self.builder.add(self.builder.mul(i, stride), first)

    def load(self, data: Any, place: Any) -> Any:
        return self.builder.load(self._at(data, place), align=self.size)

    def store(self, vector: Any, data: Any, place: Any) -> None:
        self.builder.store(vector, self._at(data, place), align=self.size)

    def side_by_side(self, step: Any, last: Any) -> Any:
        """Whether all lanes have elements of their own, one behind the other."""
        builder = self.builder
        full = builder.icmp_unsigned("==", last, ir.Constant(last.type, LANES - 1))
        return builder.and_(full, builder.icmp_unsigned("==", step, ir.Constant(step.type, 1)))

    def elements(self, data: Any, place: Any, step: Any, last: Any) -> Any:
        """For each lane its elements, (number in the vector, address): lane e has place + min(e, last) step of data."""
        builder = self.builder
        for lane in range(LANES):
            number = ir.Constant(place.type, lane)
            number = builder.select(builder.icmp_unsigned("<", number, last), number, last)
            address = builder.gep(data, [builder.add(place, builder.mul(number, step))])
            if self.is_complex:
                zero, parts = ir.Constant(self.number, 0), [ir.Constant(self.number, part) for part in (0, 1)]
                yield from ((2 * lane + k, builder.gep(address, [zero, part])) for k, part in enumerate(parts))
            else:
                yield lane, address

    def gather(self, data: Any, place: Any, step: Any, last: Any) -> Any:
        found = cgutils.alloca_once(self.builder, self.vector)
        with self.builder.if_else(self.side_by_side(step, last)) as (together, apart):
            with together:
                self.builder.store(self.load(data, place), found)
            with apart:
                vector = self.undefined
                for number, address in self.elements(data, place, step, last):
                    element = self.builder.load(address)
                    vector = self.builder.insert_element(vector, element, ir.Constant(self.number, number))
                self.builder.store(vector, found)
        return self.builder.load(found)

    def scatter(self, vector: Any, data: Any, place: Any, step: Any, last: Any) -> None:
        with self.builder.if_else(self.side_by_side(step, last)) as (together, apart):
            with together:
                self.store(vector, data, place)
            with apart:
                for number, address in self.elements(data, place, step, last):
                    element = self.builder.extract_element(vector, ir.Constant(self.number, number))
                    self.builder.store(element, address)

    def widened(self, a: Any) -> Any:
        """The number, of this precision or of less, in this precision."""
        builder = self.builder
        if not self.is_complex:
            return a if a.type == self.real else builder.fpext(a, self.real)
        parts = [builder.extract_value(a, part) for part in (0, 1)]
        if parts[0].type == self.real:
            return a
        wide = ir.Constant(ir.LiteralStructType([self.real, self.real]), ir.Undefined)
        for place, part in enumerate(parts):
            wide = builder.insert_value(wide, builder.fpext(part, self.real), place)
        return wide

    def spread(self, a: Any) -> Any:
        """The real number in all elements."""
        one = self.builder.insert_element(self.undefined, a, ir.Constant(self.number, 0))
        zeros = ir.Constant(ir.VectorType(self.number, self.length), None)
        return self.builder.shuffle_vector(one, self.undefined, zeros)

    def exchanged(self, x: Any) -> Any:
        """The real and the imaginary part of each number exchanged."""
        order = ir.Constant(ir.VectorType(self.number, self.length), [k ^ 1 for k in range(self.length)])
        return self.builder.shuffle_vector(x, x, order)

    def spread_signs(self, a: Any, first: float) -> Any:
        """The real number times `first`, 1 or -1, in the real parts, times -`first` in the imaginary ones."""
        return self.builder.fmul(self.spread(a), ir.Constant(self.vector, [first, -first] * LANES))

    def product(self, a: Any, x: Any) -> Any:
        """a x of a number and a row."""
        fmul, part = self.builder.fmul, self.builder.extract_value
        if not self.is_complex:
            return fmul(self.spread(a), x)
        cross = fmul(self.spread_signs(part(a, 1), -1.0), self.exchanged(x))
        return self.builder.fadd(fmul(self.spread(part(a, 0)), x), cross)

    def conjugate(self, a: Any) -> Any:
        """The number conjugated."""
        if not self.is_complex:
            return a
        builder = self.builder
        return builder.insert_value(a, builder.fneg(builder.extract_value(a, 1)), 1)

    def conjugate_product(self, x: Any, y: Any) -> Any:
        """conj(x) y of two rows."""
        fmul, builder = self.builder.fmul, self.builder
        if not self.is_complex:
            return fmul(x, y)

        def doubled(part: int) -> Any:
            order = [k - k % 2 + part for k in range(self.length)]
            places = ir.Constant(ir.VectorType(self.number, self.length), order)
            return builder.shuffle_vector(x, x, places)

        signs = ir.Constant(self.vector, [1.0, -1.0] * LANES)
        return builder.fadd(fmul(doubled(0), y), fmul(fmul(doubled(1), signs), self.exchanged(y)))

    def quotient(self, x: Any, direct: Any, cross: Any, scale: Any) -> Any:
        """A row divided by the number of which `divisor` has made the others."""
        fmul = self.builder.fmul
        if not self.is_complex:
            return self.builder.fdiv(x, self.spread(scale))
        crossed = fmul(self.spread_signs(cross, 1.0), self.exchanged(x))
        return fmul(self.builder.fadd(fmul(self.spread(direct), x), crossed), self.spread(scale))

    def with_terms(
        self, totals: list[Any], combine: Any, X: Any, tiles: list[Any], columns: Any, values: Any, begin: Any, end: Any
    ) -> list[Any]:
        """Each of `totals` combined with values[p] times row columns[p] of its tile of X for begin <= p < end, in this
        order. An entry is read once for all tiles.

        tiles : (stride, first) of each tile."""
        builder = self.builder
        sums = [cgutils.alloca_once_value(builder, total) for total in totals]
        with cgutils.for_range_slice(builder, begin, end, ir.Constant(begin.type, 1), begin.type) as (entry, _):
            column = builder.zext(builder.load(builder.gep(columns, [entry])), begin.type)
            value = self.widened(builder.load(builder.gep(values, [entry])))
            for total, tile in zip(sums, tiles, strict=True):
                term = self.product(value, self.load(X, self.row(column, *tile)))
                builder.store(combine(builder.load(total), term), total)
        return [builder.load(total) for total in sums]

    def with_entries(
        self, total: Any, combine: Any, X: Any, tile: Any, columns: Any, column: Any, column_step: Any, values: Any,
        value: Any, step: Any, count: Any,
    ) -> Any:  # fmt: skip
        """`total` combined with values[value + e step] times row columns[column + e column_step] of X for e < count."""
        builder, total, word = self.builder, cgutils.alloca_once_value(self.builder, total), count.type
        with cgutils.for_range_slice(builder, ir.Constant(word, 0), count, ir.Constant(word, 1), word) as (entry, _):
            at = builder.add(column, builder.mul(entry, column_step))
            row = builder.zext(builder.load(builder.gep(columns, [at])), word)
            v = builder.load(builder.gep(values, [builder.add(value, builder.mul(entry, step))]))
            term = self.product(self.widened(v), self.load(X, self.row(row, *tile)))
            builder.store(combine(builder.load(total), term), total)
        return builder.load(total)

    def combination(self, X: Any, tile: Any, row: Any, values: Any, value: Any, step: Any, count: Any) -> Any:
        """The sum of values[value + e step] times row `row` + e of X for e < count."""
        builder, total, word = self.builder, cgutils.alloca_once_value(self.builder, self.zero), count.type
        with cgutils.for_range_slice(builder, ir.Constant(word, 0), count, ir.Constant(word, 1), word) as (entry, _):
            v = builder.load(builder.gep(values, [builder.add(value, builder.mul(entry, step))]))
            x = self.load(X, self.row(builder.add(row, entry), *tile))
            builder.store(builder.fadd(builder.load(total), self.product(v, x)), total)
        return builder.load(total)


@intrinsic
def read_row(typing, tile, stride, first, i, a, place, step, last):
    """Row i of the tile is a[place + min(e, last) step], e = 0, 1, ..."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        tile, a = (rows.data(signature.args[k], args[k]) for k in (0, 4))
        rows.store(rows.gather(a, *args[5:]), tile, rows.row(args[3], *args[1:3]))
        return context.get_dummy_value()

    return types.void(tile, *[types.uint64] * 3, a, *[types.uint64] * 3), generate


@intrinsic
def fetch_row(typing, tile, stride, first, i):
    """Let the line of row i of the tile come into the caches to be written; there need not be such a row."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        fetch_to_write(builder, builder.gep(rows.data(signature.args[0], args[0]), [rows.row(args[3], *args[1:3])]))
        return context.get_dummy_value()

    return types.void(tile, *[types.uint64] * 3), generate


@intrinsic
def write_row(typing, tile, stride, first, i, a, place, step, last):
    """The reverse of `read_row`."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        tile, a = (rows.data(signature.args[k], args[k]) for k in (0, 4))
        rows.scatter(rows.load(tile, rows.row(args[3], *args[1:3])), a, *args[5:])
        return context.get_dummy_value()

    return types.void(tile, *[types.uint64] * 3, a, *[types.uint64] * 3), generate


def _solve_rows(context, builder, signature, args, firsts):
    """The code of `solve_row` for the tiles that begin at `firsts`."""
    rows = _Rows(context, builder, signature.args[0])
    x, (columns, values) = rows.data(signature.args[0], args[0]), map(rows.data, signature.args[-8:-6], args[-8:-6])
    i, begin, end, divided, *scales = args[-9], *args[-6:]
    tiles = [(args[1], first) for first in firsts]
    places = [rows.row(i, *tile) for tile in tiles]
    totals = [rows.load(x, place) for place in places]
    totals = rows.with_terms(totals, builder.fsub, x, tiles, columns, values, begin, end)
    solved = [cgutils.alloca_once_value(builder, total) for total in totals]
    with builder.if_then(builder.trunc(divided, ir.IntType(1))):
        for total, slot in zip(totals, solved, strict=True):
            builder.store(rows.quotient(total, *scales), slot)
    for slot, place in zip(solved, places, strict=True):
        rows.store(builder.load(slot), x, place)
    return context.get_dummy_value()


@intrinsic
def solve_row(typing, tile, stride, first, i, columns, values, begin, end, divided, direct, cross, scale):
    """x_i = (x_i - values[p] x_columns[p] - ...) / d in each lane; `divided` False: not divided.

    direct, cross, scale : of `divisor(d)`.
    """

    def generate(context, builder, signature, args):
        return _solve_rows(context, builder, signature, args, args[2:3])

    numbers = types.uint64, types.uint64, types.boolean, direct, cross, scale
    return types.void(tile, *[types.uint64] * 3, columns, values, *numbers), generate


@intrinsic
def solve_row_of_two(
    typing, tile, stride, first, second, i, columns, values, begin, end, divided, direct, cross, scale
):
    """`solve_row` for the tiles that begin at `first` and `second`: what is read of the row is read once."""

    def generate(context, builder, signature, args):
        return _solve_rows(context, builder, signature, args, args[2:4])

    numbers = types.uint64, types.uint64, types.boolean, direct, cross, scale
    return types.void(tile, *[types.uint64] * 4, columns, values, *numbers), generate


@intrinsic
def subtract_entries(typing, tile, stride, first, i, columns, column, values, value, step, column_step, count):
    """Row i of the tile -= values[value + e step] times row columns[column + e column_step], e = 0, ..., count - 1.

    values : of the tile's dtype or narrower.
    """

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, columns, values = (rows.data(signature.args[k], args[k]) for k in (0, 4, 6))
        place = rows.row(args[3], *args[1:3])
        entries = columns, args[5], args[9], values, args[7], args[8], args[10]
        rows.store(rows.with_entries(rows.load(X, place), builder.fsub, X, args[1:3], *entries), X, place)
        return context.get_dummy_value()

    places = [types.uint64] * 3
    return types.void(tile, *places, columns, types.uint64, values, types.uint64, *places), generate


@intrinsic
def sum_entries(typing, tile, stride, first, i, columns, column, values, value, step, column_step, count):
    """Row i of the tile = the sum of the terms that `subtract_entries` subtracts."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, columns, values = (rows.data(signature.args[k], args[k]) for k in (0, 4, 6))
        entries = columns, args[5], args[9], values, args[7], args[8], args[10]
        total = rows.with_entries(rows.zero, builder.fadd, X, args[1:3], *entries)
        rows.store(total, X, rows.row(args[3], *args[1:3]))
        return context.get_dummy_value()

    places = [types.uint64] * 3
    return types.void(tile, *places, columns, types.uint64, values, types.uint64, *places), generate


@intrinsic
def subtract_inner(typing, tile, stride, first, i, columns, values, begin, end):
    """Row i of the tile -= the sum of values[p] times row columns[p], begin <= p < end, in four sums, of every fourth
    entry each as far as four are left, the others in the first."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, columns, values = (rows.data(signature.args[k], args[k]) for k in (0, 4, 5))
        begin, end = args[6:]
        word, four = begin.type, ir.Constant(begin.type, 4)
        rest = builder.add(begin, builder.and_(builder.sub(end, begin), ir.Constant(word, -4)))
        sums = [cgutils.alloca_once_value(builder, rows.zero) for _ in range(4)]

        def add(k, entry):
            row = builder.zext(builder.load(builder.gep(columns, [entry])), word)
            v = builder.load(builder.gep(values, [entry]))
            term = rows.product(v, rows.load(X, rows.row(row, *args[1:3])))
            builder.store(builder.fadd(builder.load(sums[k]), term), sums[k])

        with cgutils.for_range_slice(builder, begin, rest, four, word) as (entry, _):
            for k in range(4):
                add(k, builder.add(entry, ir.Constant(word, k)))
        with cgutils.for_range_slice(builder, rest, end, ir.Constant(word, 1), word) as (entry, _):
            add(0, entry)
        a, b, c, d = (builder.load(total) for total in sums)
        total, place = builder.fadd(builder.fadd(a, b), builder.fadd(c, d)), rows.row(args[3], *args[1:3])
        rows.store(builder.fsub(rows.load(X, place), total), X, place)
        return context.get_dummy_value()

    return types.void(tile, *[types.uint64] * 3, columns, values, types.uint64, types.uint64), generate


@intrinsic
def subtract_from_rows(typing, tile, stride, first, i, columns, values, begin, end):
    """Row columns[p] of the tile -= conj(values[p]) times row i, begin <= p < end."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, columns, values = (rows.data(signature.args[k], args[k]) for k in (0, 4, 5))
        word, x = args[6].type, rows.load(X, rows.row(args[3], *args[1:3]))
        with cgutils.for_range_slice(builder, *args[6:], ir.Constant(word, 1), word) as (entry, _):
            row = builder.zext(builder.load(builder.gep(columns, [entry])), word)
            place = rows.row(row, *args[1:3])
            term = rows.product(rows.conjugate(builder.load(builder.gep(values, [entry]))), x)
            rows.store(builder.fsub(rows.load(X, place), term), X, place)
        return context.get_dummy_value()

    return types.void(tile, *[types.uint64] * 3, columns, values, types.uint64, types.uint64), generate


@intrinsic
def divide_row_by_real(typing, tile, stride, first, i, d):
    """Row i of the tile /= d, a real number."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, place = rows.data(signature.args[0], args[0]), rows.row(args[3], *args[1:3])
        rows.store(builder.fdiv(rows.load(X, place), rows.spread(args[4])), X, place)
        return context.get_dummy_value()

    return types.void(tile, *[types.uint64] * 3, types.float64), generate


@intrinsic
def sum_rows(typing, tile, stride, first, i, row, values, value, step, count):
    """Row i of the tile = the sum of values[value + e step] times row `row` + e of the tile, e < count."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, values = (rows.data(signature.args[k], args[k]) for k in (0, 5))
        rows.store(rows.combination(X, args[1:3], args[4], values, *args[6:]), X, rows.row(args[3], *args[1:3]))
        return context.get_dummy_value()

    return types.void(tile, *[types.uint64] * 4, values, *[types.uint64] * 3), generate


@intrinsic
def inner_rows(typing, tile, stride, first, i, left, right, count):
    """Row i of the tile = the sum of conj(row `left` + e) times row `right` + e of the tile, e < count, in each
    lane."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, word = rows.data(signature.args[0], args[0]), args[3].type
        total = cgutils.alloca_once_value(builder, rows.zero)
        zero, one = ir.Constant(word, 0), ir.Constant(word, 1)
        with cgutils.for_range_slice(builder, zero, args[6], one, word) as (entry, _):
            x, y = (rows.load(X, rows.row(builder.add(args[k], entry), *args[1:3])) for k in (4, 5))
            builder.store(builder.fadd(builder.load(total), rows.conjugate_product(x, y)), total)
        rows.store(builder.load(total), X, rows.row(args[3], *args[1:3]))
        return context.get_dummy_value()

    return types.void(tile, *[types.uint64] * 6), generate


@intrinsic
def scale_row(typing, tile, stride, first, i, factor):
    """Row i of the tile *= factor, of the tile's dtype."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, place = rows.data(signature.args[0], args[0]), rows.row(args[3], *args[1:3])
        rows.store(rows.product(args[4], rows.load(X, place)), X, place)
        return context.get_dummy_value()

    return types.void(tile, *[types.uint64] * 3, tile.dtype), generate


@intrinsic
def divide_row(typing, tile, stride, first, i, direct, cross, scale):
    """Row i of the tile /= the number of which `divisor` has made the others."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, place = rows.data(signature.args[0], args[0]), rows.row(args[3], *args[1:3])
        rows.store(rows.quotient(rows.load(X, place), *args[4:]), X, place)
        return context.get_dummy_value()

    return types.void(tile, *[types.uint64] * 3, direct, cross, scale), generate


@intrinsic
def multiply_row(typing, tile, stride, first, columns, values, begin, end, y, place, step, last):
    """y[place + min(e, last) step] = values[p] x + ... with row columns[p] of the tile as x, begin <= p < end."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        tile, columns, values, y = (rows.data(signature.args[k], args[k]) for k in (0, 3, 4, 7))
        (total,) = rows.with_terms([rows.zero], builder.fadd, tile, [args[1:3]], columns, values, *args[5:7])
        rows.scatter(total, y, *args[8:])
        return context.get_dummy_value()

    numbers = types.uint64, types.uint64, y, types.uint64, types.uint64, types.uint64
    return types.void(tile, types.uint64, types.uint64, columns, values, *numbers), generate


@intrinsic
def combine_rows(typing, tile, stride, first, row, values, value, step, count, y, place, y_step, last):
    """y[place + min(e, last) y_step] = the sum of values[value + e step] times row `row` + e of the tile, e < count."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, values, y = (rows.data(signature.args[k], args[k]) for k in (0, 4, 8))
        rows.scatter(rows.combination(X, args[1:3], args[3], values, *args[5:8]), y, *args[9:])
        return context.get_dummy_value()

    places = [types.uint64] * 3
    return types.void(tile, *places, values, *places, y, *places), generate


@intrinsic
def combine_rows_as_they_lie(typing, x, row, place, values, value, step, count, y, to):
    """y[to:to + LANES] = values[value] x[place:place + LANES] + values[value + step] times those `row` elements on, and
    so on: `count` terms, at least one. The line of y that is AHEAD rows further on is fetched to be written."""

    def generate(context, builder, signature, args):
        rows = _Rows(context, builder, signature.args[0])
        X, values, y = (rows.data(signature.args[k], args[k]) for k in (0, 3, 7))
        _, row, place, _, value, step, count, _, to = args

        def term(entry):
            v = builder.load(builder.gep(values, [builder.add(value, builder.mul(entry, step))]))
            return rows.product(v, rows.load(X, builder.add(place, builder.mul(entry, row))))

        fetch_to_write(builder, builder.gep(y, [builder.add(to, builder.mul(row, ir.Constant(row.type, AHEAD)))]))
        zero, one = (ir.Constant(count.type, k) for k in (0, 1))
        total = cgutils.alloca_once_value(builder, term(zero))
        with cgutils.for_range_slice(builder, one, count, one, count.type) as (entry, _):
            builder.store(builder.fadd(builder.load(total), term(entry)), total)
        rows.store(builder.load(total), y, to)
        return context.get_dummy_value()

    numbers = [types.uint64] * 3
    return types.void(x, types.uint64, types.uint64, values, *numbers, y, types.uint64), generate


def divisor(d):
    """(direct, cross, scale) of a number d that several are divided by: Smith's method, as in arithmetic.py."""
    raise TypeError("only kernels call it")


@overload(divisor, jit_options={"error_model": "numpy"})
def _divisor(d):
    if not isinstance(d, types.Complex):
        return lambda d: (d, d, d)
    one = as_dtype(d.underlying_float).type(1)

    def smith(d):
        if abs(d.real) >= abs(d.imag):
            if d.real == 0 and d.imag == 0:
                return one, one - one, one / abs(d.real)
            ratio = d.imag / d.real
            return one, ratio, one / (d.real + d.imag * ratio)
        ratio = d.real / d.imag
        return ratio, one, one / (d.imag + d.real * ratio)

    return smith
