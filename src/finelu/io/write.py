"""Vectors and matrices written to files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import IO, Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from finelu.device import to_host
from finelu.errors import FileError
from finelu.io.paths import FilePath, check_writable, extension
from finelu.io.replace import replacing


def write_array(path: FilePath, x: Any) -> None:
    """Write a vector (n,), columns (n, k) or, as .npz or .mtx, a sparse matrix; arrays on the GPU are copied first.

    The file is replaced as a whole, as `finelu.io.replace.replacing` describes.
    All digits are kept; .txt, .csv and .mtx do not keep the precision, so float32 is read as float64.
    Raises FileError for an unknown extension, a folder that does not exist, or an array that the format cannot hold.
    """
    check_writable(path)
    kind = extension(path)
    x = to_host(x)
    if sp.issparse(x):
        if kind not in (".npz", ".mtx"):
            raise FileError(f"{path}: {kind} cannot hold a sparse matrix; write .npz or .mtx.")
    else:
        x = np.asarray(x)
        if x.ndim not in (1, 2) or x.dtype.kind not in "biufc":
            raise FileError(f"{path}: shape {x.shape} and dtype {x.dtype} are not a vector or columns of numbers.")
    with replacing(path) as file:
        WRITERS[kind](file, x)


def _write_npz(file: IO[bytes], x: Any) -> None:
    is_sparse: bool = sp.issparse(x)  # not asked in the `if`: SciPy's stubs would then take `tocsr` from x
    if is_sparse:
        sp.save_npz(file, x.tocsr())
    else:
        np.savez(file, x=x)


def _write_market(file: IO[bytes], x: Any) -> None:
    scipy.io.mmwrite(file, x if sp.issparse(x) or x.ndim == 2 else x[:, None], symmetry="general")


def _write_txt(file: IO[bytes], x: Any, delimiter: str = " ") -> None:
    np.savetxt(file, x, "%d" if x.dtype.kind in "biu" else "%.17g", delimiter)


WRITERS: dict[str, Callable[[IO[bytes], Any], None]] = {
    ".npy": np.save,
    ".npz": _write_npz,
    ".mtx": _write_market,
    ".txt": _write_txt,
    ".csv": partial(_write_txt, delimiter=","),
}
