"""Rutherford-Boeing and Harwell-Boeing files: assembled matrices, each line held to the format in the header.

I. Duff, R. Grimes, J. Lewis: The Rutherford-Boeing sparse matrix collection, 1997. SciPy's reader takes matrices
without symmetry only, and stops without a word where two numbers touch each other, as these formats allow.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.errors import FileError
from finelu.io.limits import check_memory
from finelu.io.paths import FilePath

FORMAT = re.compile(r"\(\s*(?:-?\d+P\s*,?\s*)?(\d*)\s*([IDEFG])\s*(\d+)(?:\.(\d+)(?:E\d+)?)?\s*\)")
VALUES, SHAPES = {"R": 1, "I": 1, "C": 2, "P": 0}, "SUHZR"  # numbers of a value; symmetric, ..., rectangular


def read_harwell(path: FilePath, what: str) -> sp.csc_matrix:
    """The matrix in the file, symmetric, skew and Hermitian storage expanded; a pattern gets ones.

    Right-hand sides that follow the matrix are not read. Raises FileError for elemental matrices, and for lines that do
    not have what the header announces.
    """
    with open(path, encoding="latin-1") as file:
        lines = file.read().splitlines()
    if len(lines) < 4:
        raise FileError(f"{path}: ends within the header of four lines.")
    blocks = [_integer(path, 2, lines[1], k) for k in range(4)][1:]
    kind = lines[2][:3].upper()
    rows, columns, count, elemental = (_integer(path, 3, lines[2], k) for k in range(1, 5))
    if kind[:1] not in VALUES or kind[1:2] not in SHAPES or kind[2:] != "A" or elemental:
        raise FileError(
            f"{path}, line 3: holds a matrix of type {kind!r}; assembled ones are read, such as RUA, RSA, CHA, PSA."
        )
    check_memory(path, rows, columns)
    with_right_hand_sides = len(lines[1].rstrip()) > 56 and _integer(path, 2, lines[1], 4) > 0
    begin, arrays = 5 if with_right_hand_sides else 4, []
    width = (0, 16, 32, 52)
    for k, wanted in enumerate((columns + 1, count, count * VALUES[kind[0]])):
        text = lines[3][width[k] : width[k + 1]]
        arrays.append(_numbers(path, lines, begin, blocks[k], text, wanted, k < 2))
        begin += blocks[k]
    starts, places, values = arrays
    if kind[0] == "P":
        values = np.ones(count)
    elif kind[0] == "C":
        values = values[::2] + 1j * values[1::2]
    A = sp.csc_matrix((values, places - 1, starts - 1), shape=(rows, columns))
    A.check_format(full_check=True)
    if kind[1] in "UR":
        return A
    below, above = sp.tril(A, -1), sp.triu(A, 1)
    if below.nnz and above.nnz:
        raise FileError(f"{path}: holds both triangles of a matrix of type {kind}; one of them is needed.")
    one = below if below.nnz else above
    whole: sp.csc_matrix = A + {"S": one.T, "Z": -one.T, "H": one.conj().T}[kind[1]].tocsc()
    return whole


def _integer(path: FilePath, line: int, text: str, k: int) -> int:
    """The integer in columns 14 k + 1 to 14 k + 14 of a line of the header."""
    field = text[14 * k : 14 * k + 14].strip()
    if not field.isdigit():
        raise FileError(f"{path}, line {line}: columns {14 * k + 1} to {14 * k + 14} hold {field!r}, no integer.")
    return int(field)


def _numbers(
    path: FilePath, lines: list[str], begin: int, count: int, form: str, wanted: int, whole: bool
) -> np.ndarray[Any, Any]:
    """`wanted` numbers from the next `count` lines, in Fortran's format `form`, such as (16I5) or (1P,4D20.12)."""
    if wanted == 0:
        return np.zeros(0)
    match = FORMAT.fullmatch(form.strip().upper())
    if match is None or int(match[3]) == 0 or (whole and match[2] != "I"):  # values may be integers, too
        raise FileError(f"{path}, line 4: {form.strip()!r} is no format of {'integers' if whole else 'numbers'}.")
    each, size = int(match[1] or 1), int(match[3])
    if -(-wanted // each) != count or begin + count > len(lines):
        raise FileError(
            f"{path}: {wanted} numbers in the format {form.strip()} take {-(-wanted // each)} lines; the header says "
            f"{count}, and {max(len(lines) - begin, 0)} are left."
        )
    integer, numbers = match[2] == "I", list[float]()
    for number, line in enumerate(lines[begin : begin + count], begin + 1):
        here = min(each, wanted - len(numbers), len(line) + 1)
        fields = line.split()  # the usual case; SciPy writes numbers narrower than its format says
        if len(fields) != here:
            fields = [line[k * size : (k + 1) * size] for k in range(here)]
        for k, field in enumerate(fields):
            try:
                # without a point Fortran would place one by the format
                if len(field) > size or not (integer or "." in field):
                    raise ValueError
                numbers.append(int(field) if integer else float(field.upper().replace("D", "E")))
            except ValueError:
                raise FileError(
                    f"{path}, line {number}: {field.strip()!r}, number {k + 1} of the line, does not have the format "
                    f"{form.strip()}."
                ) from None
    if len(numbers) < wanted:
        raise FileError(f"{path}: {len(numbers)} numbers of the format {form.strip()}, and {wanted} are announced.")
    return np.array(numbers, np.int64 if integer else np.float64)
