"""Matrix Market files, read strictly: a line is held against the grammar before SciPy makes numbers of it.

SciPy's reader is fast and rounds correctly, but by itself it takes 1.0D+05 for 1 and 2,5 for 2, adds both triangles of
a symmetric file up, and ends the process on some files that are cut off. It is handed lines of one kind, in pieces
that end at a line's end, under a header that was made here.
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

from finelu.device import free_memory
from finelu.errors import FileError

CHUNK = 2**24  # bytes of text that are held at once
SPARE = 2**24  # bytes of comments, blank lines and padding in all, beside LONG for each entry
LONG = 1024  # bytes: the longest line of the format's definition
ROW = 100  # bytes of memory that a row costs once a matrix is worked with: row pointers, b, x, diagonal, levels
DEFLATED = 1032  # bytes of text that a byte of a compressed file can stand for, at most
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
    """What the header of a file declares. line : the number of the line with the sizes."""

    coordinate: bool
    field: str
    symmetry: str
    rows: int
    columns: int
    entries: int
    line: int

    @property
    def words(self) -> str:
        value = _FIELDS[self.field][1]
        return f"row, column (from 1 on), {value}" if self.coordinate else value

    @property
    def index(self) -> type:
        """The dtype of rows and columns."""
        return np.int32 if max(self.rows, self.columns) < 2**31 else np.int64

    def grammar(self) -> re.Pattern[bytes]:
        """As many lines of entries as follow each other."""
        fields = [_INDEX, _INDEX] * self.coordinate + _FIELDS[self.field][0]
        return re.compile(rb"(?>[ \t]*+" + rb"[ \t]++".join(fields) + rb"[ \t\r]*+\n)*+")


def read_market(path, compressed: bool) -> sp.coo_matrix | np.ndarray:
    """The matrix of a Matrix Market file, symmetric storage expanded: a coo_matrix, or an array (rows, columns).

    float64, or complex128 for the field complex. Entries of one place stay apart. A file whose symmetry is not general
    may hold the lower or the upper triangle.
    Raises FileError with the line and its text for what is no number, index or header of the format, for more or fewer
    entries than declared, for (i, j) beside (j, i) in symmetric storage unless one of them is 0, and, before memory is
    taken, for sizes that do not fit into it or into the file.
    Cost: 2 to 6 times that of SciPy's reader; 16 MB of text at once, and each entry twice.
    """
    _check_compressed(path, compressed)
    with _opened(path, compressed) as file:
        layout = _header(path, file)
        _check_sizes(path, layout, os.path.getsize(path) * (DEFLATED if compressed else 1))
        parts, found = [], 0
        for text in _lines_of_entries(path, file, layout):
            part = _numbers(text, layout)
            if bad := _bad_entry(part, text, layout):
                raise _at_entry(path, compressed, found + bad[0], bad[1])
            parts.append((*(indices.astype(layout.index, copy=False) for indices in part[:-1]), part[-1]))
            found += part[-1].size
    if not layout.coordinate:
        return _dense(path, compressed, layout, np.concatenate([np.empty(0), *(v for (v,) in parts)]))
    i: Any
    j: Any
    i, j = (np.concatenate([np.empty(0, layout.index), *(p[c] for p in parts)]) for c in (0, 1))
    value = np.concatenate([np.empty(0), *(p[2] for p in parts)])
    del parts
    if layout.symmetry != "general":
        _check_triangle(path, compressed, layout, i, j, value)
        mirrored = i != j
        i, j, value = (
            np.concatenate([i, j[mirrored]]),
            np.concatenate([j, i[mirrored]]),
            np.concatenate([value, _mirror(value[mirrored], layout)]),
        )
    return sp.coo_matrix((value, (i, j)), shape=(layout.rows, layout.columns))


def _opened(path, compressed: bool):
    return gzip.open(path, "rb") if compressed else open(path, "rb")


def _check_compressed(path, compressed: bool) -> None:
    """The name says whether a file is compressed, and must be right."""
    with open(path, "rb") as file:
        start = file.read(len(GZIP))
    if start == GZIP and not compressed:
        raise FileError(f"{path}: is compressed; name it .mtx.gz.")
    if start != GZIP and compressed:
        raise FileError(f"{path}: is not compressed; name it .mtx if it is Matrix Market's text.")


def _shown(text: bytes) -> str:
    text = text.strip(b" \t\r\n")
    return ascii(text[:60].decode("latin-1")) + (" ..." if len(text) > 60 else "")


def _header(path, file) -> Layout:
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
    )


def _check_sizes(path, layout: Layout, text: int) -> None:
    """Refuse what is larger than a file of `text` bytes can hold, or than the memory."""
    shortest = 2 * (2 * layout.coordinate + len(_FIELDS[layout.field][0]))  # each a digit and a space
    if layout.entries * shortest - 1 > text:
        raise FileError(
            f"{path}: line {layout.line} declares {layout.entries} entries, more than a file of this length can hold; "
            "it is truncated or corrupt."
        )
    check_memory(path, layout.rows, layout.columns, needed_bytes(layout))


def needed_bytes(layout: Layout) -> int:
    """What the entries take while a file is read, and while rows are made of them."""
    value = 16 if layout.field == "complex" else 8
    if not layout.coordinate:  # rows and columns of its entries are found as int64
        return layout.rows * layout.columns * 2 * (value + 16)
    copies = 2 if layout.symmetry == "general" else 4  # as read, and as the rows of the whole matrix
    return layout.entries * copies * (value + 2 * np.dtype(layout.index).itemsize)


def check_memory(path, rows: int, columns: int, of_entries: int = 0) -> None:
    """Raise FileError where a matrix with `of_entries` bytes of entries leaves no room to work with it."""
    needed, free = ROW * (rows + columns) // 2 + of_entries, free_memory(np)
    if needed > free:
        raise FileError(
            f"{path}: {rows} x {columns}: such a matrix needs about {needed / 1e9:.3g} GB of memory to work with, and "
            f"{free / 1e9:.3g} GB are free; the file may be corrupt."
        )


def _pieces(path, file, number: int) -> Iterator[bytes]:
    """The rest of a file, whole lines at a time; the last one ends with a newline, too. number : of the first line."""
    rest = b""
    while chunk := file.read(CHUNK):
        cut = chunk.rfind(b"\n") + 1
        if not cut and len(rest) + len(chunk) >= CHUNK:
            raise FileError(f"{path}: line {number}: {len(rest) + len(chunk)} bytes and still no end; it is corrupt.")
        if cut:
            piece, rest = rest + chunk[:cut], b""
            number += piece.count(b"\n")
            yield piece
        rest += chunk[cut:]
    if rest:
        yield rest + b"\n"


def _lines_of_entries(path, file, layout: Layout) -> Iterator[bytes]:
    """The lines of entries and no others, a piece at a time; together as many as were declared."""
    grammar = layout.grammar()
    number, found, read = layout.line + 1, 0, 0
    for piece in _pieces(path, file, number):
        kept, start, lines = [], 0, piece.count(b"\n")
        while start < len(piece):
            match = grammar.match(piece, start)
            assert match is not None  # no line at all is a match, too
            end = match.end()
            count = lines if end == len(piece) and not start else piece.count(b"\n", start, end)
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
                f"{path}: line {number}: {read / 1e6:.0f} MB for {found} entries; remove what is not needed."
            )
        if any(kept):
            yield b"".join(kept)
    if found < layout.entries:
        raise FileError(
            f"{path}: ends in line {number - 1} with {found} of the {layout.entries} entries that line {layout.line} "
            "declares; it is truncated."
        )


def _numbers(text: bytes, layout: Layout) -> tuple[np.ndarray, ...]:
    """Rows, columns (from 0 on) and values of lines of entries; of an array the values alone."""
    count = text.count(b"\n")
    kind, sizes = ("coordinate", f"{_BOUND} {_BOUND} {count}") if layout.coordinate else ("array", f"{count} 1")
    head = f"%%MatrixMarket matrix {kind} {_FIELDS[layout.field][2]} general\n{sizes}\n"
    A: Any = scipy.io.mmread(io.BytesIO(head.encode() + text.translate(_FORTRAN, b"+\r")))
    return (A.row, A.col, A.data) if layout.coordinate else (A[:, 0],)


def _bad_entry(part: tuple[np.ndarray, ...], text: bytes, layout: Layout) -> tuple[int, str] | None:
    """The first entry outside the matrix, or whose number is too large for a float64, and what to say of it."""
    if layout.coordinate:
        outside = (part[0] >= layout.rows) | (part[1] >= layout.columns)
        if outside.any():
            return int(np.argmax(outside)), f"outside of a matrix of {layout.rows} x {layout.columns}."
    infinite = np.isinf(part[-1].view(np.float64).reshape(part[-1].size, -1)).sum(axis=1)
    if infinite.any() and infinite.sum() > text.lower().count(
        b"inf"
    ):  # those that say so are left to the checks of a matrix
        lines = text.lower().split(b"\n")
        k = next(k for k in np.flatnonzero(infinite) if infinite[k] > lines[k].count(b"inf"))
        return int(k), "larger than any number in double precision."
    return None


def _at_entry(path, compressed: bool, entry: int, problem: str) -> FileError:
    """The error of an entry (from 0 on), with its line."""
    seen = -1  # the line of the sizes
    with _opened(path, compressed) as file:
        for number, line in enumerate(file, 1):
            if line.strip() and not line.lstrip().startswith(b"%"):
                if seen == entry:
                    return FileError(f"{path}: line {number}: {_shown(line)}: {problem}")
                seen += 1
    return FileError(f"{path}: entry {entry + 1}: {problem} The file changes while it is read.")


def _mirror(value: np.ndarray, layout: Layout) -> np.ndarray:
    if layout.symmetry == "hermitian":
        return np.conj(value)
    return -value if layout.symmetry == "skew-symmetric" else value


def _check_triangle(path, compressed: bool, layout: Layout, i, j, value) -> None:
    """Refuse entries other than 0 whose mirror image is stored, too, and diagonals that the symmetry does not allow."""
    bad = np.zeros(0, int)
    if layout.symmetry == "skew-symmetric":
        bad, problem = np.flatnonzero((i == j) & (value != 0)), "the diagonal of a skew-symmetric matrix is 0."
    elif layout.symmetry == "hermitian":
        bad, problem = np.flatnonzero((i == j) & (np.imag(value) != 0)), "the diagonal of a Hermitian matrix is real."
    if not bad.size and (i > j).any() and (i < j).any():
        marks = [np.flatnonzero(side & (value != 0)) for side in (i > j, i < j)]
        n = layout.rows
        lower, upper = (
            sp.csr_matrix((np.ones(k.size, bool), (a[k], b[k])), shape=(n, n))
            for k, a, b in ((marks[0], i, j), (marks[1], j, i))
        )
        both = lower.multiply(upper).tocoo()
        if both.nnz:
            row, column = int(both.row[0]), int(both.col[0])
            pair = (((i == row) & (j == column)) | ((i == column) & (j == row))) & (value != 0)
            places = np.flatnonzero(pair)
            bad = places[i[places] != i[places[0]]][:1]
            problem = (
                f"({row + 1}, {column + 1}) and ({column + 1}, {row + 1}) are both stored, where one stands for both "
                f"as the header says {layout.symmetry}; store one triangle, or say general."
            )
    if bad.size:
        raise _at_entry(path, compressed, int(bad[0]), problem)


def _dense(path, compressed: bool, layout: Layout, value: np.ndarray) -> np.ndarray:
    if layout.symmetry == "general":
        return value.reshape((layout.rows, layout.columns), order="F")
    column, row = np.triu_indices(layout.rows, 1 if layout.symmetry == "skew-symmetric" else 0)
    _check_triangle(path, compressed, layout, row, column, value)
    A = np.zeros((layout.rows, layout.columns), value.dtype)
    A[column, row] = _mirror(value, layout)
    A[row, column] = value
    return A
