"""Files of NumPy and SciPy: .npy, .npz and text. A length is compared with the file before memory is taken for it."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import scipy.sparse as sp

from finelu.device import free_memory
from finelu.errors import FileError
from finelu.io.limits import DEFLATED
from finelu.io.paths import FilePath

INDEX_ARRAYS = [f"{name}.npy" for name in ("indptr", "indices", "row", "col", "coords", "offsets", "shape")]
# Bytes that a byte of a member of an archive can stand for; the other kinds of compression have no such bound.
MOST = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: DEFLATED}


def read_npy(path: FilePath, what: str) -> np.ndarray:
    with open(path, "rb") as file:
        _check_array(path, file, os.path.getsize(path))
        file.seek(0)
        x: np.ndarray = np.load(file, allow_pickle=False)
    if what == "matrix" and x.ndim != 2:
        raise FileError(f"{path}: holds an array of shape {x.shape}, not a matrix.")
    return x


def read_npz(path: FilePath, what: str, name: str = "") -> Any:
    """The array `name`; without a name the sparse matrix of scipy.sparse.save_npz, or the only array of numbers."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if (needed := sum(member.file_size for member in members)) > free_memory(np):
            raise FileError(f"{path}: announces {needed / 1e9:.3g} GB of arrays, which do not fit into memory.")
        for member in members:
            if member.file_size > MOST.get(member.compress_type, math.inf) * (member.compress_size + 1):
                raise FileError(f"{path}: {member.filename} cannot be as large as announced; the file is corrupt.")
            with archive.open(member) as part:
                dtype = _check_array(path, part, member.file_size, f"{member.filename} ")
            if member.filename in INDEX_ARRAYS and dtype.kind not in "iu":
                raise FileError(f"{path}: {member.filename} holds values of dtype {dtype}; integers are needed.")
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
        if "format" in content.files and not name:
            return sp.load_npz(file)
        arrays = {key: content[key] for key in content.files}
    if name:
        return named(path, name, arrays)
    return only(path, what, {name: x for name, x in arrays.items() if x.dtype.kind in "biufc"}, arrays)


def read_txt(path: FilePath, what: str) -> np.ndarray:
    """The array that numpy.savetxt wrote, one row per line, its numbers between commas if there are any, else between
    blanks; complex if a number has an imaginary part."""
    with open(path, encoding="utf-8") as file:
        text = file.read().splitlines()
    numbers = [line.partition("#")[0] for line in text]
    if not any(line.strip() for line in numbers):
        raise FileError(f"{path}: holds no numbers.")
    has_imaginary = any("j" in line for line in numbers)
    between = "," if any("," in line for line in numbers) else None
    return np.loadtxt(text, dtype=complex if has_imaginary else float, delimiter=between, ndmin=1)


def only(path: FilePath, what: str, fitting: Mapping[str, Any], all_of_them: Mapping[str, Any]) -> Any:
    """The single value of `fitting`; otherwise a FileError that lists the variables of the file."""
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    many = f"{len(fitting)} variables could be the {what}" if fitting else f"no variable is a {what}"
    name = f"name one, as in {path}:{next(iter(fitting))}" if fitting else "save a file with just that one"
    raise FileError(f"{path}: {many} (it holds {_held(all_of_them)}); {name}.")


def named(path: FilePath, name: str, variables: Mapping[str, Any]) -> Any:
    """The variable of this name; otherwise a FileError that lists those of the file."""
    if name in variables:
        return variables[name]
    raise FileError(f"{path}: no variable of numbers is named {name} (it holds {_held(variables)}).")


def _held(variables: Mapping[str, Any]) -> str:
    kinds = (f"{name} {x.shape} {'sparse' if sp.issparse(x) else x.dtype}" for name, x in variables.items())
    return ", ".join(kinds) or "nothing"


def _check_array(path: FilePath, file: IO[bytes], size: int, name: str = "") -> np.dtype[Any]:
    """The dtype of an array in NumPy's format; a FileError if its header announces more than the `size` bytes."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): (2, np.lib.format.read_array_header_1_0), (2, 0): (4, np.lib.format.read_array_header_2_0)}
    if version not in readers:
        raise FileError(f"{path}: {name}is an array of NumPy's format {version}, which no array of numbers needs.")
    width, reader = readers[version]
    length = file.read(width)
    header = file.read(min(int.from_bytes(length, "little"), 2**16))
    if not header.isascii() or b"\\" in header:  # NumPy would warn before it raises
        raise FileError(f"{path}: {name}has a header that NumPy does not write; it is corrupt.")
    shape, _, dtype = reader(io.BytesIO(length + header))
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise FileError(
            f"{path}: {name}announces an array of shape {shape} and dtype {dtype} in a file of {size} bytes; "
            "it is truncated or corrupt."
        )
    return dtype
