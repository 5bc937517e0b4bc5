"""Matrices and vectors in files. What cannot be read or written is a `FileError` with the path and the place in it.

Matrix Market is read by `finelu.market`, .mat by `finelu.matlab`, .npz by SciPy's reader, .npy and .txt by NumPy's:
what a file announces is compared with its length before memory is taken for it. PETSc's binary format has no reader on
PyPI (petsc4py needs a PETSc), so its few fields are read here.
"""

from __future__ import annotations

import errno
import io
import math
import os
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import scipy.io
import scipy.sparse as sp

from finelu.device import free_memory, to_host
from finelu.errors import FileError
from finelu.market import DEFLATED, check_memory, read_market
from finelu.matlab import read_mat

MATRIX_FORMATS = (".mtx", ".mtx.gz", ".npz", ".npy", ".mat", ".petsc", ".dat", ".bin")
VECTOR_FORMATS = (*MATRIX_FORMATS, ".txt")
WRITABLE_FORMATS = (".npy", ".npz", ".mtx", ".txt")


def read_matrix(path):
    """The matrix in a file, as a sorted scipy.sparse.csr_matrix of float32/64 or complex64/128 without duplicates.

    .mtx, .mtx.gz : Matrix Market, coordinate or array; symmetric, skew and Hermitian storage of either triangle is
        expanded, a pattern gets ones, integers become float64, and Fortran's exponents (1.0D+05) are read as such.
        Every line must be what the format says. Entries of one place are added up.
    .npz : as scipy.sparse.save_npz writes it, any format.  .npy : a dense array.
    .mat : MATLAB up to version 7: the only sparse matrix in it, or SuiteSparse's `Problem.A`.
    .petsc .dat .bin : PETSc binary, the first Mat in it; double precision; 32 or 64-bit indices are told
        apart by the first bytes, real or complex values by the length of the file.
    Explicit zeros stay entries. Raises FileError with the path and what is wrong where; for sizes beyond the memory or
    the length of the file before memory is taken.
    """
    A = _read(path, "matrix", MATRIX_FORMATS)
    if A.ndim != 2:
        raise FileError(f"{path}: holds an array of shape {A.shape}, not a matrix.")
    check_memory(path, *A.shape)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # other precisions; `as_csr` refuses the Inf that this gives
            A = sp.csr_matrix(A, dtype=_floating(path, A.dtype))
        A.sum_duplicates()
    except MemoryError as error:
        raise FileError(f"{path}: a matrix of {A.shape[0]} rows does not fit into memory.") from error
    return A


def read_vector(path):
    """The vector in a file, (n,), or several as the columns of an (n, k) array; float32/64 or complex64/128.

    The formats are those of `read_matrix` and .txt (numpy.savetxt: a row a line). A sparse n x 1 matrix becomes dense,
    a single row or column an (n,). .npz and .mat : the only dense array in the file, or SuiteSparse's `Problem.b`;
    PETSc : the first Vec.
    Raises FileError with the path and what is wrong where.
    """
    x = _read(path, "vector", VECTOR_FORMATS)
    if sp.issparse(x):
        if 1 not in x.shape:
            raise FileError(f"{path}: holds a sparse matrix of shape {x.shape}; a vector is needed.")
        check_memory(path, *x.shape)
        x = x.toarray()
    if x.ndim not in (1, 2) or x.size == 0:
        raise FileError(f"{path}: holds an array of shape {x.shape}; a vector (n,) or columns (n, k) are needed.")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(x.reshape(-1) if 1 in x.shape else x, dtype=_floating(path, x.dtype))


def write_array(path, x):
    """Write a vector (n,), columns (n, k) or, as .npz or .mtx, a sparse matrix; arrays on the GPU are fetched first.

    It is written as `replacing` says: what the path names stays what it is.
    All digits are kept; .txt and .mtx do not keep the precision, so float32 is read as float64.
    Raises FileError for an unknown extension, a folder that is not there, or an array that the format cannot hold.
    """
    check_writable(path)
    kind = _extension(path)
    x = to_host(x)
    if sp.issparse(x):
        if kind not in (".npz", ".mtx"):
            raise FileError(f"{path}: {kind} cannot hold a sparse matrix; write .npz or .mtx.")
    else:
        x = np.asarray(x)
        if x.ndim not in (1, 2) or x.dtype.kind not in "biufc":
            raise FileError(f"{path}: shape {x.shape} and dtype {x.dtype} are not a vector or columns of numbers.")
    with replacing(path) as file:
        _WRITERS[kind](file, x)


@contextmanager
def replacing(path, what: str = "x") -> Iterator[IO[bytes]]:
    """A binary file for the new content of `path`, which is as it was if the block fails.

    A new file, or one of a single name, is written beside `path` and renamed in one step, and keeps its mode. What a
    rename would turn into something else is written into once the block has ended: a file of several names, of another
    owner or with an access list, one in a folder that takes no new file, a FIFO, a device. A symbolic link stays one.
    A regular file that is written into has a complete copy beside it until that is done, unless its folder takes no
    new file; the room that it needs on the disk is set aside first, where the file system can. What fails all the
    same leaves it half written, and the copy, which the FileError names.
    what : names the content in the FileError of a failure.
    """
    try:
        beside, whole = _beside(path)
        if beside is None:
            buffer = io.BytesIO()
            yield buffer
            _overwrite(path, buffer.getvalue())
            return
        keep = False
        try:
            with open(beside, "wb") as file:
                yield file
            if not (whole and _renamed(beside, path)):
                content = beside.read_bytes()
                keep = True
                _overwrite(path, content)
                keep = False
        except _Untouched:
            keep = False
            raise
        except OSError as error:
            if not keep:
                raise
            raise FileError(
                f"{path}: was left half written ({error.strerror or error}); {what} is complete in {beside}."
            ) from error
        finally:
            if not keep:
                beside.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror or error}); {what} was not written.") from error


def _beside(path) -> tuple[Path | None, bool]:
    """A new, empty file in the folder of `path`, and whether it can take its place; None where none is of use.

    It has the mode of `path` if it can, and is for its owner alone if not.
    """
    target = Path(os.path.realpath(path))
    old = _status(path)
    if old is not None and not (stat.S_ISREG(old.st_mode) and os.access(target.parent, os.W_OK | os.X_OK)):
        return None, False
    beside = target.with_name(f".{secrets.token_hex(8)}.part")  # short, whatever the length of the target's name
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600)
    try:
        if old is None:
            return beside, True
        new = os.fstat(descriptor)
        same = (new.st_uid, new.st_gid, _attributes(beside)) == (old.st_uid, old.st_gid, _attributes(target))
        if same and old.st_nlink == 1:
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            return beside, True
        return beside, False
    finally:
        os.close(descriptor)


def _renamed(beside: Path, path) -> bool:
    """Whether the file could take the name of `path`; a single file that is mounted takes no other."""
    try:
        os.replace(beside, os.path.realpath(path))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _attributes(path) -> list[str]:
    """The names of the extended attributes of a file, access lists among them, where the system has such."""
    try:
        return sorted(os.listxattr(path)) if hasattr(os, "listxattr") else []
    except OSError:  # a file system without them
        return []


class _Untouched(OSError):
    """What was to be written into is as it was."""


def _overwrite(path, content: bytes) -> None:
    """Write into what is there. A regular file gets its room first, so that a full disk leaves it as it was."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError as error:
        raise _Untouched(*error.args) from error
    with open(descriptor, "wb") as file:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if regular and content and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, 0, len(content))
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot set room aside
                    raise _Untouched(*error.args) from error
        file.write(content)
        file.flush()
        if regular:
            file.truncate(len(content))


def _status(path) -> os.stat_result | None:
    """What `path` leads to, or None where there is nothing yet."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def check_writable(path, formats=WRITABLE_FORMATS):
    """Raise FileError if no file of these formats could be written to `path`; for asking before a long computation."""
    kind = _extension(path)
    if kind not in formats:
        raise FileError(f"{path}: unknown extension {kind!r} for writing; use one of {', '.join(formats)}.")
    try:
        folder = Path(os.path.realpath(path)).parent
        old = _status(path)
    except (OSError, ValueError) as error:  # a name that is too long, links in a circle, a NUL
        raise FileError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error}).") from error
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise FileError(f"{path}: is a directory; name a file.")
    if old is not None and stat.S_ISSOCK(old.st_mode):
        raise FileError(f"{path}: is a socket; name a file.")
    if old is not None and not os.access(path, os.W_OK):
        raise FileError(f"{path}: no permission to write to it.")
    if old is None and not folder.is_dir():
        raise FileError(f"{path}: there is no folder {folder}; make it first.")
    if old is None and not os.access(folder, os.W_OK | os.X_OK):
        raise FileError(f"{path}: no permission to write into {folder}.")


def check_apart(outputs: Sequence, inputs: Sequence):
    """Raise FileError if an output is the same file as an input or another output, whatever the names."""
    for k, path in enumerate(outputs):
        for others, what in ((inputs, "an input"), (outputs[:k], "an output")):
            for other in others:
                if _same_file(path, other):
                    known = "" if other == path else f", as {other}"
                    raise FileError(f"{path}: is {what}, too{known}; name another file to write.")


def _same_file(path, other) -> bool:
    """Whether both lead to one file, which need not be there yet; what is written to a device is not kept."""
    try:
        if os.path.exists(path) and os.path.exists(other):
            return os.path.isfile(path) and os.path.samefile(path, other)
        return os.path.realpath(path) == os.path.realpath(other)
    except (OSError, ValueError):  # no name of a file: reading it will say so
        return False


# Reading -------------------------------------------------------------------------------------------------------------


def _read(path, what, formats):
    """The array or sparse matrix in a file, by the reader of its extension; every failure is a FileError."""
    kind = _extension(path)
    file = Path(path)
    if file.is_dir():
        raise FileError(f"{path}: is a directory; name a file in it.")
    if not file.exists():
        raise FileError(f"{path}: there is no such file.")
    if kind not in formats:
        raise FileError(f"{path}: unknown extension {kind!r} for a {what}; known are {', '.join(formats)}.")
    try:
        if file.stat().st_size == 0:
            raise FileError(f"{path}: the file is empty.")
        with np.errstate(all="ignore", invalid="raise"):  # "invalid": no number where an index is needed
            x = _READERS[kind](path, what)
        if hasattr(x, "check_format"):  # compressed rows or columns, whose readers trust the indices in the file
            x.check_format(full_check=True)
        return x
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(f"{path}: announces more entries than fit into memory; it may be corrupt.") from error
    except Exception as error:  # whatever a reader meets in a bad file; they raise a dozen kinds
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if kind.endswith(".gz") and isinstance(error, EOFError):
            reason = "the compressed data end too early: the file is truncated, fetch it again"
        reason = reason.splitlines()[0].rstrip(".")
        raise FileError(f"{path}: cannot be read as {_FORMAT_NAMES[kind]} ({reason}).") from error


def _extension(path):
    name = os.fspath(path).lower()
    return ".mtx.gz" if name.endswith(".mtx.gz") else os.path.splitext(name)[1]


def _floating(path, dtype):
    """The dtype to work in: one of the four, or float64 for integers and booleans; other precisions go to double."""
    if dtype.kind in "biu":
        return np.float64
    if dtype.kind not in "fc":
        raise FileError(f"{path}: holds values of dtype {dtype}; numbers are needed.")
    if dtype.newbyteorder("=").name in ("float32", "complex64"):
        return dtype.newbyteorder("=")
    return np.complex128 if dtype.kind == "c" else np.float64


def _matrix_market(path, what):
    return read_market(path, compressed=_extension(path) == ".mtx.gz")


def _npy(path, what):
    with open(path, "rb") as file:
        _check_array(path, file, os.path.getsize(path))
        file.seek(0)
        x = np.load(file, allow_pickle=False)
    if what == "matrix" and x.ndim != 2:
        raise FileError(f"{path}: holds an array of shape {x.shape}, not a matrix.")
    return x


def _check_array(path, file, size, name=""):
    """Refuse an array in NumPy's format that its header makes larger than the `size` bytes which are there."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): (2, np.lib.format.read_array_header_1_0), (2, 0): (4, np.lib.format.read_array_header_2_0)}
    if version not in readers:
        raise FileError(f"{path}: {name}is an array of NumPy's format {version}, which no array of numbers needs.")
    width, reader = readers[version]
    length = file.read(width)
    header = file.read(min(int.from_bytes(length, "little"), 2**16))
    if not header.isascii() or b"\\" in header:  # NumPy would warn of it on its way to an error
        raise FileError(f"{path}: {name}has a header that NumPy does not write; it is corrupt.")
    shape, _, dtype = reader(io.BytesIO(length + header))
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise FileError(
            f"{path}: {name}announces an array of shape {shape} and dtype {dtype} in a file of {size} bytes; "
            "it is truncated or corrupt."
        )
    return dtype


def _npz(path, what):
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if (needed := sum(member.file_size for member in members)) > free_memory(np):
            raise FileError(f"{path}: announces {needed / 1e9:.3g} GB of arrays, which do not fit into memory.")
        for member in members:
            if member.file_size > DEFLATED * (member.compress_size + 1):
                raise FileError(f"{path}: {member.filename} cannot be as large as announced; the file is corrupt.")
            with archive.open(member) as file:
                dtype = _check_array(path, file, member.file_size, f"{member.filename} ")
            if member.filename in _INDEX_ARRAYS and dtype.kind not in "iu":
                raise FileError(f"{path}: {member.filename} holds values of dtype {dtype}; integers are needed.")
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        if "format" in archive.files:
            return sp.load_npz(file)
        arrays = {name: archive[name] for name in archive.files}
    return _only(path, what, {name: x for name, x in arrays.items() if x.dtype.kind in "biufc"}, arrays)


_INDEX_ARRAYS = [f"{name}.npy" for name in ("indptr", "indices", "row", "col", "coords", "offsets", "shape")]


def _mat(path, what):
    variables = read_mat(path)
    problem, field = variables.get("Problem"), "A" if what == "matrix" else "b"
    if isinstance(problem, dict) and problem.get(field) is not None:
        return problem[field]
    numbers = {
        name: x for name, x in variables.items() if sp.issparse(x) or getattr(x, "dtype", _OTHER).kind in "biufc"
    }
    return _only(path, what, {name: x for name, x in numbers.items() if sp.issparse(x) == (what == "matrix")}, numbers)


_OTHER = np.dtype(object)  # of what is no array


def _only(path, what, fitting, all_of_them):
    """The single value of `fitting`; otherwise a FileError that says what the file holds."""
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    held = ", ".join(f"{name} {x.shape} {'sparse' if sp.issparse(x) else x.dtype}" for name, x in all_of_them.items())
    many = f"{len(fitting)} variables could be the {what}" if fitting else f"no variable is a {what}"
    raise FileError(f"{path}: {many} (it holds {held or 'nothing'}); save a file with just that one.")


def _txt(path, what):
    with open(path, encoding="utf-8") as file:
        text = file.read().splitlines()
    numbers = [line.partition("#")[0] for line in text]
    if not any(line.strip() for line in numbers):
        raise FileError(f"{path}: holds no numbers.")
    has_imaginary = any("j" in line for line in numbers)
    return np.loadtxt(text, dtype=complex if has_imaginary else float, ndmin=1)


_MAT, _VEC = 1211216, 1211214  # PETSc's MAT_FILE_CLASSID and VEC_FILE_CLASSID, which open each object in a file


def _petsc(path, what):
    """The first Mat or Vec of a PETSc binary file, read as `PetscViewerBinaryOpen` documents it.

    All numbers are big-endian. Mat: class id, rows, columns, nnz (-1: dense), the length of each row, column indices,
    values. Vec: class id, length, values. Index and value types are PETSc's at the time of writing and stored nowhere.
    """
    raw = np.fromfile(path, np.uint8)
    start = bytes(raw[:8])
    ids = [id_.to_bytes(4) for id_ in (_MAT, _VEC)]
    if start[:4] in ids:
        index = np.dtype(">i4")
    elif start[:4] == bytes(4) and start[4:] in ids:
        index = np.dtype(">i8")
    else:
        raise FileError(f"{path}: is not a PETSc binary file (it opens with {start.hex()}, no Mat or Vec).")
    at = 0

    def take(count, dtype, name):
        nonlocal at
        end = at + count * dtype.itemsize
        if count < 0 or end > raw.size:
            raise FileError(f"{path}: truncated or corrupt: {count} {name} should begin at byte {at} of {raw.size}.")
        at, begin = end, at
        return raw[begin:end].view(dtype)

    def scalar_of(count):
        """The value type that makes the object end where the file or the next object does."""
        for scalar in (np.dtype(">f8"), np.dtype(">c16")):
            end = at + count * scalar.itemsize
            rest = raw[end : end + index.itemsize]
            if end == raw.size or (rest.size == index.itemsize and int(rest.view(index)[0]) in (_MAT, _VEC)):
                return scalar
        raise FileError(
            f"{path}: truncated or corrupt: {count} values in double precision should follow byte {at} of {raw.size}."
        )

    while at < raw.size:
        if int(take(1, index, "class id")[0]) == _VEC:
            n = int(take(1, index, "length")[0])
            x = take(n, scalar_of(n), "values")
            if what == "vector":
                return x
            continue
        rows, columns, nnz = (int(k) for k in take(3, index, "sizes"))
        if min(rows, columns) < 0:
            raise FileError(f"{path}: corrupt: a matrix of {rows} x {columns}.")
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


def _native(x):
    return x.astype(x.dtype.newbyteorder("="))


_READERS: dict[str, Callable] = {
    ".mtx": _matrix_market,
    ".mtx.gz": _matrix_market,
    ".npz": _npz,
    ".npy": _npy,
    ".mat": _mat,
    ".petsc": _petsc,
    ".dat": _petsc,
    ".bin": _petsc,
    ".txt": _txt,
}
_FORMAT_NAMES = {
    ".mtx": "Matrix Market",
    ".mtx.gz": "compressed Matrix Market",
    ".npz": "a NumPy archive",
    ".npy": "a NumPy array",
    ".mat": "a MATLAB file",
    ".petsc": "PETSc binary",
    ".dat": "PETSc binary",
    ".bin": "PETSc binary",
    ".txt": "a text file of numbers",
}


# Writing -------------------------------------------------------------------------------------------------------------


def _write_npz(file, x):
    if sp.issparse(x):
        sp.save_npz(file, x.tocsr())
    else:
        np.savez(file, x=x)


def _write_matrix_market(file, x):
    scipy.io.mmwrite(file, x if sp.issparse(x) or x.ndim == 2 else x[:, None], symmetry="general")


def _write_txt(file, x):
    np.savetxt(file, x, fmt="%d" if x.dtype.kind in "biu" else "%.17g")


_WRITERS: dict[str, Callable] = {
    ".npy": np.save,
    ".npz": _write_npz,
    ".mtx": _write_matrix_market,
    ".txt": _write_txt,
}
