"""MATLAB files up to version 7: the arrays of numbers in them, sparse matrices, and the fields of a structure.

SciPy's reader ends the process on some damaged structures. This module compares each length with the available bytes
before it is used.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.device import free_memory
from finelu.errors import FileError
from finelu.io.arrays import named, only
from finelu.io.limits import DEFLATED, check_memory
from finelu.io.paths import FilePath

_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15  # elements that hold others
_STRUCTURE, _SPARSE, _DOUBLE, _SINGLE, _LAST_NUMBER = 2, 5, 6, 7, 15  # classes; the others from 6 to 15 are integers
_COMPLEX = 0x0800  # flag of a complex array
_VERSION_4, _TEXT_4, _SPARSE_4 = ("f8", "f4", "i4", "i2", "u2", "u1"), 1, 2


def read_variable(path: FilePath, what: str, name: str = "") -> Any:
    """The variable `name`, such as "K" or "Problem.K"; without a name the field A (what "matrix") or b ("vector") of
    SuiteSparse's `Problem`, or the only variable of that kind."""
    variables = read_mat(path)
    if name:
        fields = {f"{key}.{field}": x for key, s in variables.items() if isinstance(s, dict) for field, x in s.items()}
        held = {key: x for key, x in (variables | fields).items() if sp.issparse(x) or _is_numeric(x)}
        return named(path, name, held)
    problem, field = variables.get("Problem"), "A" if what == "matrix" else "b"
    if isinstance(problem, dict) and problem.get(field) is not None:
        return problem[field]
    numbers = {name: x for name, x in variables.items() if sp.issparse(x) or _is_numeric(x)}
    return only(path, what, {name: x for name, x in numbers.items() if sp.issparse(x) == (what == "matrix")}, numbers)


def _is_numeric(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "biufc"


def read_mat(path: FilePath) -> dict[str, Any]:
    """Name -> variable: an array of at least two dimensions, a csc_matrix, or for a structure (the first of several) a
    dict of its fields. Variables and fields without numbers, and structures within structures, are None.

    Raises FileError for a file of version 7.3, and for lengths and kinds that do not fit together.
    """
    content = Path(path).read_bytes()
    if content[:4] == b"\x89HDF" or (len(content) > 128 and content[124:128] in (b"\x00\x02IM", b"\x02\x00MI")):
        raise FileError(f"{path}: is a MATLAB 7.3 file; save it with MATLAB's '-v7' option.")
    if 0 in content[:4]:
        return _version_4(path, content)
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(content[124:128])
    if order is None:
        raise FileError(f"{path}: is not a MATLAB file, or a damaged one (its header ends with {content[124:128]!a}).")
    variables = {}
    for kind, data in _elements(_Bytes(path, order, memoryview(content)[128:])):
        if kind == _COMPRESSED:
            kind, data = _inflated(data)
        if kind != _MATRIX:
            raise data.damaged(f"holds an element of kind {kind} where a variable is needed")
        name, value = _variable(data, whole=True)
        if name:  # MATLAB's own annotations have no name
            variables[name] = value
    return variables


def _version_4(path: FilePath, content: bytes) -> dict[str, Any]:
    """Each variable is a header of five integers, a name, and one array, also for text and sparse matrices."""
    variables = {}
    order = "<" if 0 <= int.from_bytes(content[:4], "little") <= 5000 else ">"
    part = _Bytes(path, order, memoryview(content))
    while part.at < len(content):
        if len(content) - part.at < 20:
            raise part.damaged("ends within the header of a variable")
        kind, rows, columns, is_complex, length = (int(k) for k in np.frombuffer(content, order + "i4", 5, part.at))
        endian, zero, stored, what = kind // 1000, kind // 100 % 10, kind // 10 % 10, kind % 10
        known = endian == (order == ">") and zero == 0 and stored < len(_VERSION_4) and what <= 2
        if not known or kind < 0 or min(rows, columns) < 0 or is_complex not in (0, 1) or length < 1:
            raise part.damaged(f"holds a variable of kind {kind}, {rows} x {columns}, that no MATLAB writes")
        begin = part.at + 20 + length
        dtype = np.dtype(order + _VERSION_4[stored])
        count = rows * columns * (1 + is_complex)
        if begin + count * dtype.itemsize > len(content):
            raise part.damaged(f"ends before the {rows} x {columns} numbers of a variable")
        name = content[part.at + 20 : begin].partition(b"\0")[0].decode("latin-1")
        x = np.frombuffer(content, dtype, count, begin).astype(dtype.newbyteorder("="))
        x = x[: x.size // 2] + 1j * x[x.size // 2 :] if is_complex else x
        x = x.reshape((rows, columns), order="F")
        variables[name] = None if what == _TEXT_4 else _sparse_4(part, x) if what == _SPARSE_4 else x
        part.at = begin + count * dtype.itemsize
    return variables


def _sparse_4(part: _Bytes, x: np.ndarray) -> sp.csc_matrix:
    """The matrix from rows of `x`: row, column, real and perhaps imaginary part of an entry; the last has the shape."""
    if x.shape[0] < 1 or x.shape[1] not in (3, 4):
        raise part.damaged(f"holds a sparse matrix as {x.shape[0]} x {x.shape[1]} numbers")
    places = x[:, :2]
    if places.dtype.kind == "c" or not ((places >= 0) & (places < 2**31) & (places == np.floor(places))).all():
        raise part.damaged("holds a sparse matrix whose rows or columns are no integers")
    i, j = places[:-1].T.astype(np.int64) - 1
    shape = tuple(places[-1].astype(np.int64).tolist())
    check_memory(part.path, *shape)
    values = x[:-1, 2] + 1j * x[:-1, 3] if x.shape[1] == 4 else x[:-1, 2]
    return sp.coo_matrix((values, (i, j)), shape=shape).tocsc()


@dataclass
class _Bytes:
    """A part of the file, and how far it has been read."""

    path: FilePath
    order: str
    data: memoryview
    at: int = 0

    def damaged(self, what: str) -> FileError:
        return FileError(f"{self.path}: truncated or damaged: it {what}.")

    def numbers(self, kind: int) -> np.ndarray:
        """The numbers in an element of this kind."""
        if kind not in _STORED:
            raise self.damaged(f"holds an element of kind {kind} where numbers are needed")
        dtype = np.dtype(self.order + _STORED[kind])
        if len(self.data) % dtype.itemsize:
            raise self.damaged(f"holds {len(self.data)} bytes of numbers of {dtype.itemsize} bytes")
        return np.frombuffer(self.data, dtype).astype(dtype.newbyteorder("="))


def _element(part: _Bytes) -> tuple[int, _Bytes]:
    """The next element: its kind and its bytes."""
    begin = part.at + 8
    if begin > len(part.data):
        raise part.damaged(f"ends after {len(part.data)} of the {begin} bytes of an element")
    kind, size = (int(k) for k in np.frombuffer(part.data[part.at : begin], part.order + "u4"))
    if kind >> 16:  # a short one, within the eight bytes
        kind, size, begin = kind & 0xFFFF, kind >> 16, part.at + 4
        if size > 4:
            raise part.damaged(f"holds {size} bytes in a place for 4")
        part.at += 8
    else:
        part.at = begin + size + (-size % 8 if kind != _COMPRESSED else 0)
    if begin + size > len(part.data):
        raise part.damaged(f"holds {len(part.data) - begin} of the {size} bytes that an element announces")
    return kind, _Bytes(part.path, part.order, part.data[begin : begin + size])


def _elements(part: _Bytes) -> Iterator[tuple[int, _Bytes]]:
    while part.at < len(part.data):
        yield _element(part)


def _inflated(part: _Bytes) -> tuple[int, _Bytes]:
    """The element that is compressed in `part`."""
    stream = zlib.decompressobj()
    tag = stream.decompress(part.data, 8)
    if len(tag) < 8:
        raise part.damaged("ends within a compressed variable")
    size = int(np.frombuffer(tag, part.order + "u4")[1])
    if size > DEFLATED * len(part.data) or size > free_memory(np):
        raise part.damaged(f"announces a variable of {size} bytes, which it cannot hold or the memory cannot")
    inner = stream.decompress(stream.unconsumed_tail, size) if size else b""
    stream.decompress(stream.unconsumed_tail, 8)  # the checksum, if present: MATLAB may leave it out
    return _element(_Bytes(part.path, part.order, memoryview(tag + inner)))


def _variable(part: _Bytes, whole: bool) -> tuple[str, Any]:
    """The name and the value of a variable. whole : read structures, too."""
    if not part.data:  # an empty variable, in a structure
        return "", np.zeros((0, 0))
    kind, data = _element(part)
    flags = data.numbers(kind)
    if kind != 6 or flags.size != 2:
        raise part.damaged("holds a variable without its kind")
    what, is_complex = int(flags[0]) & 0xFF, bool(int(flags[0]) & _COMPLEX)
    if what not in (_STRUCTURE, _SPARSE, *range(_DOUBLE, _LAST_NUMBER + 1)):  # cells, text, functions, objects
        return "", None
    kind, data = _element(part)
    shape = tuple(data.numbers(kind).tolist())
    if kind != 5 or len(shape) < 2 or min(shape) < 0:
        raise part.damaged(f"holds a variable of shape {shape}")
    _, name = _element(part)
    title = bytes(name.data).decode("latin-1")
    if what == _STRUCTURE and whole:
        return title, _structure(part, shape)
    if what == _SPARSE:
        return title, _sparse(part, shape, is_complex)
    return title, None if what == _STRUCTURE else _array(part, shape, what, is_complex)


def _array(part: _Bytes, shape: tuple[int, ...], what: int, is_complex: bool) -> np.ndarray:
    needed = math.prod(shape) * (16 if is_complex else 8) * 2  # while it is converted
    if needed > free_memory(np):
        raise part.damaged(f"holds an array of shape {shape}, which needs {needed / 1e9:.3g} GB of memory")
    x = _values(part, is_complex, math.prod(shape))
    kinds = {_DOUBLE: (np.float64, np.complex128), _SINGLE: (np.float32, np.complex64)}
    if what in kinds:  # MATLAB stores whole numbers in fewer bytes
        x = x.astype(kinds[what][is_complex])
    return x.reshape(shape, order="F")


def _values(part: _Bytes, is_complex: bool, count: int | None = None) -> np.ndarray:
    """Real numbers, or complex ones from their two parts. count : how many there must be."""
    parts = []
    for _ in range(1 + is_complex):
        kind, data = _element(part)
        parts.append(data.numbers(kind))
    if {x.size for x in parts} != {parts[0].size if count is None else count}:
        raise part.damaged(f"holds {parts[-1].size} numbers where {parts[0].size if count is None else count} are due")
    return parts[0] + 1j * parts[1] if is_complex else parts[0]


def _sparse(part: _Bytes, shape: tuple[int, ...], is_complex: bool) -> sp.csc_matrix:
    arrays = []
    for _ in range(2):
        kind, data = _element(part)
        arrays.append(data.numbers(kind))
    rows, starts = arrays
    x = _values(part, is_complex)
    nnz = int(starts[-1]) if starts.size else -1
    if len(shape) != 2 or starts.size != shape[1] + 1 or not 0 <= nnz <= min(rows.size, x.size):
        raise part.damaged(
            f"holds a sparse matrix of shape {shape} with {starts.size} starts of columns, {nnz} entries"
        )
    if rows.dtype.kind == "f" or starts.dtype.kind == "f":
        raise part.damaged("holds a sparse matrix whose rows are no integers")
    return sp.csc_matrix((x[:nnz], rows[:nnz], starts), shape=shape)


def _structure(part: _Bytes, shape: tuple[int, ...]) -> dict[str, Any]:
    """The fields of the first of the structures."""
    kind, data = _element(part)
    length = data.numbers(kind)
    _, names = _element(part)
    if length.size != 1 or length[0] < 1 or len(names.data) % int(length[0]):
        raise part.damaged(f"holds a structure whose names have {length.tolist()} of {len(names.data)} bytes")
    fields = {}
    step = int(length[0])
    for k in range(len(names.data) // step if math.prod(shape) else 0):
        title = bytes(names.data[k * step : (k + 1) * step]).partition(b"\0")[0].decode("latin-1")
        kind, data = _element(part)
        if kind != _MATRIX:
            raise part.damaged(f"holds an element of kind {kind} as the field {title}")
        fields[title] = _variable(data, whole=False)[1]
    return fields
