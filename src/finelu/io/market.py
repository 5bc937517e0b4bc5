"""Matrix Market files, read strictly: each line is checked against the grammar before SciPy reads its numbers.

SciPy's reader is fast and rounds correctly. But it reads 1.0D+05 as 1 and 2,5 as 2, adds up both triangles of a
symmetric file, and ends the process on some truncated files. This module gives it only whole lines of entries, with a
new header for them.
"""

from __future__ import annotations

import gzip
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from finelu.errors import FileError
from finelu.io.limits import DEFLATED, check_memory
from finelu.io.paths import FilePath

CHUNK = 2**24  # bytes of text that are held at once
SPARE = 2**24  # bytes allowed for all comments, blank lines and padding, in addition to LONG for each entry
LONG = 1024  # bytes: the longest line of the format's definition
GZIP = b"\x1f\x8b"  # opens a compressed file

_INDEX = rb"0*+[1-9][0-9]{0,17}+"
_INTEGER = rb"[+-]?+[0-9]++"
_REAL = (
    rb"[+-]?+(?:(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eEdD][+-]?+[0-9]++)?+|[nN][aA][nN]"
    rb"|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?+)"
)
# field -> the grammar of its values, the same in words, and the field that SciPy reads them as
_FIELDS: dict[str, tuple[list[bytes], str, str]] = {
    "real": ([_REAL], "a real number", "real"),
    "double": ([_REAL], "a real number", "real"),
    "complex": ([_REAL, _REAL], "a real and an imaginary part", "complex"),
    "integer": ([_INTEGER], "an integer", "real"),
    "unsigned-integer": ([_INTEGER], "an integer", "real"),
    "pattern": ([], "nothing more", "pattern"),
}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
_FORTRAN = bytes.maketrans(b"dD", b"ee")
_BOUND = 10**18  # indices have at most 18 digits


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The header of a file.

    line : the number of the line with the sizes.  begin : the byte after it (in a compressed file: of its text).
    """

    coordinate: bool
    field: str
    symmetry: str
    rows: int
    columns: int
    entries: int
    line: int
    begin: int

    @property
    def words(self) -> str:
        value = _FIELDS[self.field][1]
        return f"row, column (from 1 on), {value}" if self.coordinate else value

    @property
    def index(self) -> type[np.signedinteger[Any]]:
        """The dtype of rows and columns."""
        return np.int32 if max(self.rows, self.columns) < 2**31 else np.int64

    def grammar(self) -> re.Pattern[bytes]:
        """Matches all consecutive lines of entries."""
        fields = [_INDEX, _INDEX] * self.coordinate + _FIELDS[self.field][0]
        return re.compile(rb"(?>[ \t]*+" + rb"[ \t]++".join(fields) + rb"[ \t\r]*+\n)*+")


def read_market(path: FilePath, compressed: bool) -> sp.coo_matrix | np.ndarray:
    """The matrix of a Matrix Market file, symmetric storage expanded: a coo_matrix, or an array (rows, columns).

    float64, or complex128 for the field complex. Duplicate entries are kept apart. A file whose symmetry is not general
    may hold the lower or the upper triangle.
    Raises FileError with the line and its text for text that is not a number, index or header of the format; for more
    or fewer entries than declared; for (i, j) together with (j, i) in symmetric storage, unless one of them is 0; and,
    before memory is taken, for sizes that do not fit into memory or the file.
    Cost: 2 to 6 times that of SciPy's reader; 16 MB of text at once, and each entry twice.
    """
    layout = read_layout(path, compressed)
    check_memory(path, layout.rows, layout.columns, needed_bytes(layout))
    with _opened(path, compressed) as file:
        lines = _Lines(path, file, layout.begin, layout.line + 1)
        stored = _entries(lines, layout, whole=True)
        if layout.coordinate:
            _check_triangle(lines, layout, *stored)
            i, j, value = expanded(layout, *stored)
            return sp.coo_matrix((value, (i, j)), shape=(layout.rows, layout.columns))
        (value,) = stored
        if layout.symmetry == "general":
            return value.reshape((layout.rows, layout.columns), order="F")
        j, i = np.triu_indices(layout.rows, 1 if layout.symmetry == "skew-symmetric" else 0)
        _check_triangle(lines, layout, i, j, value)
    A = np.zeros((layout.rows, layout.columns), value.dtype)
    A[j, i] = _mirrored(layout, value)
    A[i, j] = value
    return A


def read_layout(path: FilePath, compressed: bool) -> Layout:
    """The header. Raises FileError, also if the file is too short for that many entries."""
    with open(path, "rb") as raw:
        start = raw.read(len(GZIP))
    if start == GZIP and not compressed:
        raise FileError(f"{path}: is compressed; name it .mtx.gz.")
    if start != GZIP and compressed:
        raise FileError(f"{path}: is not compressed; name it .mtx if it is Matrix Market's text.")
    with _opened(path, compressed) as file:
        layout = _header(path, file)
    shortest = 2 * (2 * layout.coordinate + len(_FIELDS[layout.field][0]))  # each a digit and a space
    if layout.entries * shortest - 1 > os.path.getsize(path) * (DEFLATED if compressed else 1):
        raise FileError(
            f"{path}: line {layout.line} declares {layout.entries} entries, more than a file of this length can hold; "
            "it is truncated or corrupt."
        )
    return layout


def read_part(path: FilePath, compressed: bool, layout: Layout, part: int, parts: int) -> tuple[np.ndarray, ...]:
    """Rows, columns (from 0 on) and values in one of `parts` shares of a coordinate file, as stored: not expanded.

    The shares have equal lengths in bytes; in a compressed file, which is decompressed from its beginning, in lines.
    Raises FileError as `read_market` does, except for two faults that only all shares together show: fewer entries than
    declared, and entries that are stored in both triangles.
    """
    with _opened(path, compressed) as file:
        if compressed:
            begin, text = _share_of_lines(file, layout, part, parts)
        else:
            begin, text = _share_of_bytes(file, layout, os.path.getsize(path), part, parts)
        try:
            return _part(_Lines(path, io.BytesIO(text), 0, 1), layout)
        except FileError:  # once more, with the number of the first line, which takes time to count
            file.seek(layout.begin)
            before = sum(file.read(min(CHUNK, begin - at)).count(b"\n") for at in range(layout.begin, begin, CHUNK))
            return _part(_Lines(path, io.BytesIO(text), 0, layout.line + 1 + before), layout)


def expanded(layout: Layout, i: np.ndarray, j: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, ...]:
    """Rows, columns and values with the mirror images that the symmetry adds, which come last."""
    if layout.symmetry == "general":
        return i, j, value
    apart = i != j
    return (
        np.concatenate([i, j[apart]]),
        np.concatenate([j, i[apart]]),
        np.concatenate([value, _mirrored(layout, value[apart])]),
    )


def common_place(
    shape: tuple[int, int], first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> tuple[int, int] | None:
    """A place of a matrix that is in both lists of (rows, columns)."""
    A, B = (sp.csr_matrix((np.ones(i.size, bool), (i, j)), shape=shape) for i, j in (first, second))
    both = A.multiply(B).tocoo()
    return (int(both.row[0]), int(both.col[0])) if both.nnz else None


def stored_twice(layout: Layout, row: int, column: int) -> str:
    """The problem with an entry (from 0 on) and its mirror image in one file."""
    return (
        f"({row + 1}, {column + 1}) and ({column + 1}, {row + 1}) are both stored, where one stands for both "
        f"as the header says {layout.symmetry}; store one triangle, or say general."
    )


def needed_bytes(layout: Layout) -> int:
    """The bytes of the entries while a file is read, and while rows are made of them."""
    value = 16 if layout.field == "complex" else 8
    if not layout.coordinate:  # rows and columns of its entries are found as int64
        return layout.rows * layout.columns * 2 * (value + 16)
    copies = 2 if layout.symmetry == "general" else 4  # as read, and as the rows of the whole matrix
    return layout.entries * copies * (value + 2 * np.dtype(layout.index).itemsize)


# The header ----------------------------------------------------------------------------------------------------------


def _opened(path: FilePath, compressed: bool) -> io.BufferedIOBase:
    return gzip.open(path, "rb") if compressed else open(path, "rb")


def _shown(text: bytes) -> str:
    text = text.strip(b" \t\r\n")
    return ascii(text[:60].decode("latin-1")) + (" ..." if len(text) > 60 else "")


def _header(path: FilePath, file: io.BufferedIOBase) -> Layout:
    first = file.readline(SPARE)
    words = first.decode("latin-1").lower().split()
    if not words or words[0] not in ("%%matrixmarket", "%matrixmarket"):
        raise FileError(f"{path}: line 1: {_shown(first)}: not a Matrix Market file, which opens with %%MatrixMarket.")
    known = (("matrix",), ("coordinate", "array"), tuple(_FIELDS), _SYMMETRIES)
    rest = words[5:]
    if len(words) < 5 or (rest and not rest[0].startswith("%")):
        raise FileError(
            f"{path}: line 1: {_shown(first)}: {len(words) - 1} words follow %%MatrixMarket where 4 are "
            "needed, such as matrix coordinate real general."
        )
    for word, choices in zip(words[1:5], known, strict=True):
        if word not in choices:
            raise FileError(f"{path}: line 1: {word!a}; {', '.join(choices)} can be read.")
    coordinate, field, symmetry = words[2] == "coordinate", words[3], words[4]
    if field == "pattern" and (not coordinate or symmetry == "skew-symmetric"):
        raise FileError(f"{path}: line 1: {_shown(first)}: a pattern is coordinate, and not skew-symmetric.")

    number, spare = 1, 0
    while True:
        line = file.readline(SPARE)
        number += 1
        spare += len(line)
        if not line:
            raise FileError(f"{path}: ends in line {number - 1}, before the line with the sizes; it is truncated.")
        if spare >= SPARE:
            raise FileError(f"{path}: line {number}: {spare / 1e6:.0f} MB and still no sizes; remove the comments.")
        if line.strip() and not line.lstrip().startswith(b"%"):
            break
    wanted = ("rows", "columns", "entries") if coordinate else ("rows", "columns")
    sizes = line.split()
    if len(sizes) != len(wanted) or not all(re.fullmatch(rb"0*[0-9]{1,18}", size) for size in sizes):
        raise FileError(f"{path}: line {number}: {_shown(line)}: the sizes are needed: {', '.join(wanted)}.")
    rows, columns, *entries = map(int, sizes)
    if min(rows, columns) < 1:
        raise FileError(
            f"{path}: line {number}: a matrix of {rows} x {columns}; at least one row and column is needed."
        )
    if symmetry != "general" and rows != columns:
        raise FileError(f"{path}: line {number}: {rows} x {columns} and {symmetry}, which only a square matrix can be.")
    stored = {"general": rows * columns, "skew-symmetric": rows * (rows - 1) // 2}.get(symmetry, rows * (rows + 1) // 2)
    return Layout(
        coordinate=coordinate,
        field=field,
        symmetry=symmetry,
        rows=rows,
        columns=columns,
        entries=entries[0] if coordinate else stored,
        line=number,
        begin=file.tell(),
    )


# Entries -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Lines:
    """Lines of entries: `file` from its byte `begin` on.  number : of the first line, for errors."""

    path: FilePath
    file: io.BufferedIOBase
    begin: int
    number: int

    def at_entry(self, entry: int, problem: str) -> FileError:
        """The error of an entry (from 0 on), with its line."""
        self.file.seek(self.begin)
        for number, line in enumerate(self.file, self.number):
            if line.strip() and not line.lstrip().startswith(b"%"):
                if entry == 0:
                    return FileError(f"{self.path}: line {number}: {_shown(line)}: {problem}")
                entry -= 1
        return FileError(f"{self.path}: {problem} The file changes while it is read.")


def _entries(lines: _Lines, layout: Layout, whole: bool) -> tuple[np.ndarray, ...]:
    """Rows, columns (from 0 on) and values of the entries; for an array only the values.

    whole : the lines must hold all entries that the header declares.
    """
    parts, found = [], 0
    for text in _lines_of_entries(lines, layout, whole):
        part = _numbers(text, layout)
        if bad := _bad_entry(part, text, layout):
            raise lines.at_entry(found + bad[0], bad[1])
        parts.append((*(indices.astype(layout.index, copy=False) for indices in part[:-1]), part[-1]))
        found += part[-1].size
    indices = (
        np.concatenate([np.empty(0, layout.index), *(p[c] for p in parts)]) for c in range(2 * layout.coordinate)
    )
    return (*indices, np.concatenate([np.empty(0), *(p[-1] for p in parts)]))


def _part(lines: _Lines, layout: Layout) -> tuple[np.ndarray, ...]:
    i, j, value = _entries(lines, layout, whole=False)
    _check_triangle(lines, layout, i, j, value)
    return i, j, value


def _share_of_bytes(file: io.BufferedIOBase, layout: Layout, size: int, part: int, parts: int) -> tuple[int, bytes]:
    """The lines that begin within a share of the bytes: the byte of the first one, and their text."""

    def next_line(k: int) -> int:
        at = layout.begin + (size - layout.begin) * k // parts
        if at <= layout.begin:
            return layout.begin
        file.seek(at - 1)
        file.readline(SPARE)
        return file.tell()

    begin, end = next_line(part), next_line(part + 1)
    file.seek(begin)
    return begin, file.read(end - begin)


def _share_of_lines(file: io.BufferedIOBase, layout: Layout, part: int, parts: int) -> tuple[int, bytes]:
    """A share of the lines: the byte of the first one, and their text; the last share goes to the end of the file."""
    first, last = (layout.entries * k // parts for k in (part, part + 1))
    to_the_end = part == parts - 1
    found: list[bytes] = []
    number, at, begin = 0, layout.begin, layout.begin  # lines and bytes before the chunk
    file.seek(at)
    while (chunk := file.read(CHUNK)) and (to_the_end or number < last):
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + 1
        low, high = (
            0 if line <= number else int(ends[line - number - 1]) if line - number <= ends.size else len(chunk)
            for line in (first, last)
        )
        if text := chunk[low : None if to_the_end else high]:
            begin = begin if found else at + low
            found.append(text)
        number, at = number + ends.size, at + len(chunk)
    return begin, b"".join(found)


def _pieces(lines: _Lines) -> Iterator[bytes]:
    """Whole lines, a chunk at a time; the last one ends with a newline, too."""
    rest, number = b"", lines.number
    lines.file.seek(lines.begin)
    while chunk := lines.file.read(CHUNK):
        cut = chunk.rfind(b"\n") + 1
        if not cut and len(rest) + len(chunk) >= CHUNK:
            raise FileError(
                f"{lines.path}: line {number}: {len(rest) + len(chunk)} bytes and still no end; it is corrupt."
            )
        if cut:
            piece, rest = rest + chunk[:cut], b""
            number += piece.count(b"\n")
            yield piece
        rest += chunk[cut:]
    if rest:
        yield rest + b"\n"


def _lines_of_entries(lines: _Lines, layout: Layout, whole: bool) -> Iterator[bytes]:
    """The lines of entries without comments and blank lines, a chunk at a time, at most as many as declared."""
    grammar = layout.grammar()
    path, number, found, read = lines.path, lines.number, 0, 0
    for piece in _pieces(lines):
        kept, start, in_piece = [], 0, piece.count(b"\n")
        while start < len(piece):
            match = grammar.match(piece, start)
            assert match is not None  # it matches an empty text, too
            end = match.end()
            count = in_piece if end == len(piece) and not start else piece.count(b"\n", start, end)
            if found + count > layout.entries:
                raise FileError(
                    f"{path}: line {number + layout.entries - found}: an entry more than the {layout.entries} that "
                    f"line {layout.line} declares."
                )
            kept.append(piece[start:end])
            found, number = found + count, number + count
            if end < len(piece):
                start = piece.index(b"\n", end) + 1
                line = piece[end:start]
                if line.strip() and not line.lstrip().startswith(b"%"):
                    raise FileError(f"{path}: line {number}: {_shown(line)}: expected: {layout.words}.")
                number += 1
            else:
                start = end
        read += len(piece)
        if read > SPARE + LONG * found + CHUNK:
            raise FileError(
                f"{path}: line {number}: {read / 1e6:.0f} MB for {found} entries; remove comments and blank lines."
            )
        if any(kept):
            yield b"".join(kept)
    if whole and found < layout.entries:
        raise FileError(
            f"{path}: ends in line {number - 1} with {found} of the {layout.entries} entries that line {layout.line} "
            "declares; it is truncated."
        )


def _numbers(text: bytes, layout: Layout) -> tuple[np.ndarray, ...]:
    """Rows, columns (from 0 on) and values of lines of entries; for an array only the values."""
    count = text.count(b"\n")
    kind, sizes = ("coordinate", f"{_BOUND} {_BOUND} {count}") if layout.coordinate else ("array", f"{count} 1")
    head = f"%%MatrixMarket matrix {kind} {_FIELDS[layout.field][2]} general\n{sizes}\n"
    A: Any = scipy.io.mmread(io.BytesIO(head.encode() + text.translate(_FORTRAN, b"+\r")), spmatrix=True)
    return (A.row, A.col, A.data) if layout.coordinate else (A[:, 0],)


def _bad_entry(part: tuple[np.ndarray, ...], text: bytes, layout: Layout) -> tuple[int, str] | None:
    """The first entry outside the matrix, or whose number is too large for a float64, and the message for it."""
    if layout.coordinate:
        outside = (part[0] >= layout.rows) | (part[1] >= layout.columns)
        if outside.any():
            return int(np.argmax(outside)), f"outside of a matrix of {layout.rows} x {layout.columns}."
    infinite = np.isinf(part[-1].view(np.float64).reshape(part[-1].size, -1)).sum(axis=1)
    if infinite.any() and infinite.sum() > text.lower().count(b"inf"):  # `as_csr` refuses a written "inf"
        lines = text.lower().split(b"\n")
        k = next(k for k in np.flatnonzero(infinite) if infinite[k] > lines[k].count(b"inf"))
        return int(k), "larger than any number in double precision."
    return None


def _mirrored(layout: Layout, value: np.ndarray) -> np.ndarray:
    if layout.symmetry == "hermitian":
        return value.conj()
    return -value if layout.symmetry == "skew-symmetric" else value


def _check_triangle(lines: _Lines, layout: Layout, i: np.ndarray, j: np.ndarray, value: np.ndarray) -> None:
    """Refuse entries other than 0 whose mirror image is stored, too, and diagonals that the symmetry does not allow."""
    if layout.symmetry == "general":
        return
    if layout.symmetry == "skew-symmetric":
        bad, problem = (i == j) & (value != 0), "the diagonal of a skew-symmetric matrix is 0."
    elif layout.symmetry == "hermitian":
        bad, problem = (i == j) & (np.imag(value) != 0), "the diagonal of a Hermitian matrix is real."
    else:
        bad, problem = np.zeros(i.size, bool), ""
    if not bad.any() and (i > j).any() and (i < j).any():
        lower, upper = ((i > j) & (value != 0), (i < j) & (value != 0))
        if place := common_place((layout.rows, layout.columns), (i[lower], j[lower]), (j[upper], i[upper])):
            row, column = place
            pair = (((i == row) & (j == column)) | ((i == column) & (j == row))) & (value != 0)
            bad, problem = pair & (i != i[np.argmax(pair)]), stored_twice(layout, row, column)
    if bad.any():
        raise lines.at_entry(int(np.argmax(bad)), problem)
