"""Matrices and vectors read from files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.errors import FileError
from finelu.io.arrays import read_npy, read_npz, read_txt
from finelu.io.harwell import read_harwell
from finelu.io.limits import check_memory
from finelu.io.market import read_market
from finelu.io.matlab import read_variable
from finelu.io.paths import FilePath, extension, variable
from finelu.io.petsc import read_petsc

_BOTH = (".mtx", ".mtx.gz", ".npz", ".npy", ".mat", ".petsc", ".dat", ".bin")
MATRIX_FORMATS = (*_BOTH, ".rb", ".hb", ".rua", ".rsa")
VECTOR_FORMATS = (*_BOTH, ".txt", ".csv")
UNPACK = {".gz": "gunzip", ".xz": "unxz", ".bz2": "bunzip2", ".zst": "unzstd", ".zip": "unzip"}
UNPACK |= dict.fromkeys((".tar", ".tgz"), "tar xf")


def read_matrix(path: FilePath) -> sp.csr_matrix:
    """The matrix in a file, as a sorted scipy.sparse.csr_matrix of float32/64 or complex64/128 without duplicates.

    .mtx, .mtx.gz : Matrix Market, coordinate or array; symmetric, skew and Hermitian storage of either triangle is
        expanded, a pattern gets ones, integers become float64, and Fortran's exponents (1.0D+05) are read as such.
        Every line must follow the format. Duplicate entries are summed.
    .npz : as scipy.sparse.save_npz writes it, any format.  .npy : a dense array.
    .mat : MATLAB up to version 7: the only sparse matrix in it, or SuiteSparse's `Problem.A`.
    file.mat:K file.npz:K : the variable K of several; "file.mat:Problem.K" is a field of a structure.
    .rb .hb .rua .rsa : Rutherford-Boeing and Harwell-Boeing, assembled matrices; symmetric storage is expanded.
    .petsc .dat .bin : PETSc binary, the first Mat in it; double precision; 32 and 64-bit indices are distinguished by
        the first bytes, real and complex values by the length of the file.
    Explicit zeros stay entries. Raises FileError with the path, the fault and its place; for sizes beyond the memory or
    the length of the file before memory is taken.
    """
    A = _read(path, "matrix", MATRIX_FORMATS)
    if A.ndim != 2:
        raise FileError(f"{path}: holds an array of shape {A.shape}, not a matrix.")
    check_memory(path, *A.shape)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # other precisions; `as_csr` refuses a resulting Inf
            S = sp.csr_matrix(A, dtype=_floating(path, A.dtype))
        S.sum_duplicates()
    except MemoryError as error:
        raise FileError(f"{path}: a matrix of {A.shape[0]} rows does not fit into memory.") from error
    return S


def read_vector(path: FilePath) -> np.ndarray:
    """The vector in a file, (n,), or several as the columns of an (n, k) array; float32/64 or complex64/128.

    The formats are those of `read_matrix` up to .bin, .txt and .csv (numpy.savetxt: one row per line, numbers between
    blanks or commas). A sparse n x 1 matrix becomes
    dense, a single row or column an (n,).
    .npz .mat : the only dense array in the file, or SuiteSparse's `Problem.b`.
    .petsc .dat .bin : the first Vec.
    Raises FileError with the path, the fault and its place.
    """
    x = _read(path, "vector", VECTOR_FORMATS)
    is_sparse: bool = sp.issparse(x)  # not asked in the `if`: SciPy's stubs would then take the shape from x
    if is_sparse:
        if 1 not in x.shape:
            raise FileError(f"{path}: holds a sparse matrix of shape {x.shape}; a vector is needed.")
        check_memory(path, *x.shape)
        x = x.toarray()
    if x.ndim not in (1, 2) or x.size == 0:
        raise FileError(f"{path}: holds an array of shape {x.shape}; a vector (n,) or columns (n, k) are needed.")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(x.reshape(-1) if 1 in x.shape else x, dtype=_floating(path, x.dtype))


def _read(path: FilePath, what: str, formats: Sequence[str]) -> Any:
    """The array or sparse matrix in a file, by the reader of its extension; every failure is a FileError."""
    inner, name = (path, "") if extension(path) in formats else variable(path)
    file, kind = Path(inner), extension(inner)
    try:
        if file.is_dir():
            raise FileError(f"{path}: is a directory; name a file in it.")
        if not file.exists():
            raise FileError(f"{file}: there is no such file.")
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise FileError(f"{path}: cannot be read ({error.strerror}).") from error
    if kind not in formats:
        if unpack := "tar xf" if file.suffixes[-2:-1] == [".tar"] else UNPACK.get(kind):
            raise FileError(
                f"{path}: unpack it first ({unpack} {file.name}); .mtx.gz is the only compressed form read."
            )
        unknown = f"unknown extension {kind!r}" if kind else "the name has no extension, which tells the format,"
        raise FileError(f"{path}: {unknown} for a {what}; known are {', '.join(formats)}.")
    reader, form = READERS[kind]
    try:
        if file.stat().st_size == 0:
            raise FileError(f"{path}: the file is empty.")
        with np.errstate(all="ignore", invalid="raise"):  # "invalid": a NaN instead of an index
            x = READERS_OF_ONE[kind](file, what, name) if name else reader(file, what)
        if hasattr(x, "check_format"):  # compressed rows or columns, whose readers trust the indices in the file
            x.check_format(full_check=True)
        return x
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(f"{path}: announces more entries than fit into memory; it may be corrupt.") from error
    except Exception as error:  # readers of other packages raise a dozen kinds for a bad file
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if kind.endswith(".gz") and isinstance(error, EOFError):
            reason = "the compressed data end too early: the file is truncated, fetch it again"
        reason = reason.splitlines()[0].rstrip(".")
        raise FileError(f"{path}: cannot be read as {form} ({reason}).") from error


def _floating(path: FilePath, dtype: np.dtype[Any]) -> Any:
    """The dtype to work in: one of the four, or float64 for integers and booleans; other precisions become double."""
    if dtype.kind in "biu":
        return np.float64
    if dtype.kind not in "fc":
        raise FileError(f"{path}: holds values of dtype {dtype}; numbers are needed.")
    if dtype.newbyteorder("=").name in ("float32", "complex64"):
        return dtype.newbyteorder("=")
    return np.complex128 if dtype.kind == "c" else np.float64


_PETSC = read_petsc, "PETSc binary"
# extension -> reader(path, "matrix" or "vector"), and the name of the format
READERS: dict[str, tuple[Callable[[FilePath, str], Any], str]] = {
    ".mtx": (lambda path, what: read_market(path, compressed=False), "Matrix Market"),
    ".mtx.gz": (lambda path, what: read_market(path, compressed=True), "compressed Matrix Market"),
    ".npz": (read_npz, "a NumPy archive"),
    ".npy": (read_npy, "a NumPy array"),
    ".mat": (read_variable, "a MATLAB file"),
    ".petsc": _PETSC,
    ".dat": _PETSC,
    ".bin": _PETSC,
    ".txt": (read_txt, "a text file of numbers"),
    ".csv": (read_txt, "a text file of numbers"),
    **dict.fromkeys((".rb", ".hb", ".rua", ".rsa"), (read_harwell, "a Rutherford-Boeing file")),
}
READERS_OF_ONE = {".npz": read_npz, ".mat": read_variable}  # take the name of a variable, too
