"""PETSc's binary format: the first Mat or Vec of a file, read without petsc4py."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.errors import FileError
from finelu.io.paths import FilePath

MAT_CLASSID, VEC_CLASSID = 1211216, 1211214  # PETSc's MAT_FILE_CLASSID and VEC_FILE_CLASSID, which open each object


def read_petsc(path: FilePath, what: str) -> Any:
    """The first Mat (what "matrix") or Vec ("vector"), read as `PetscViewerBinaryOpen` documents it.

    All numbers are big-endian. Mat: class id, rows, columns, nnz (-1: dense), the length of each row, column indices,
    values. Vec: class id, length, values. The types of indices and values are those of the PETSc that wrote the file,
    and are not stored in it.
    """
    raw = np.fromfile(path, np.uint8)
    start = bytes(raw[:8])
    index: np.dtype[Any]
    ids = [id_.to_bytes(4) for id_ in (MAT_CLASSID, VEC_CLASSID)]
    if start[:4] in ids:
        index = np.dtype(">i4")
    elif start[:4] == bytes(4) and start[4:] in ids:
        index = np.dtype(">i8")
    else:
        raise FileError(f"{path}: is not a PETSc binary file (it opens with {start.hex()}, no Mat or Vec).")
    at = 0

    def take(count: int, dtype: np.dtype[Any], name: str) -> Any:
        nonlocal at
        end = at + count * dtype.itemsize
        if count < 0 or end > raw.size:
            raise FileError(f"{path}: truncated or corrupt: {count} {name} should begin at byte {at} of {raw.size}.")
        at, begin = end, at
        return raw[begin:end].view(dtype)

    def scalar_of(count: int) -> np.dtype[Any]:
        """The value type with which the object ends at the end of the file or at the next object."""
        for scalar in (np.dtype(">f8"), np.dtype(">c16")):
            end = at + count * scalar.itemsize
            rest = raw[end : end + index.itemsize]
            if end == raw.size or (
                rest.size == index.itemsize and int(rest.view(index)[0]) in (MAT_CLASSID, VEC_CLASSID)
            ):
                return scalar
        raise FileError(
            f"{path}: truncated or corrupt: {count} values in double precision should follow byte {at} of {raw.size}."
        )

    while at < raw.size:
        if int(take(1, index, "class id")[0]) == VEC_CLASSID:
            n = int(take(1, index, "length")[0])
            x = take(n, scalar_of(n), "values")
            if what == "vector":
                return x
            continue
        rows, columns, nnz = (int(k) for k in take(3, index, "sizes"))
        if min(rows, columns) < 0:
            raise FileError(f"{path}: corrupt: a matrix of {rows} x {columns}.")
        A: Any
        if nnz == -1:
            A = take(rows * columns, scalar_of(rows * columns), "values").reshape(rows, columns)
        else:
            lengths, indices = take(rows, index, "row lengths"), take(nnz, index, "column indices")
            if lengths.sum(dtype=np.int64) != nnz or (nnz and not 0 <= indices.min() <= indices.max() < columns):
                raise FileError(
                    f"{path}: corrupt: row lengths or columns do not fit {rows} x {columns}, {nnz} entries."
                )
            data = take(nnz, scalar_of(nnz), "values")
            indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            A = sp.csr_matrix((_native(data), _native(indices), indptr), shape=(rows, columns))
        if what == "matrix":
            return A
    raise FileError(f"{path}: holds no {'Mat' if what == 'matrix' else 'Vec'}.")


def _native(x: np.ndarray) -> np.ndarray:
    return x.astype(x.dtype.newbyteorder("="))
