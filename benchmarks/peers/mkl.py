"""Intel MKL through ctypes: ILU(0) (dcsrilu0) and the triangular solve (mkl_sparse_d_trsv), float64, int32.

The library is PyPI's `mkl`; FINELU_MKL may name another libmkl_rt.so or the folder that holds one.
MKL has no IC(0). dcsrilu0 runs on one thread whatever the number asked for; the triangular solve is threaded.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import PeerError

# mkl_spblas.h
OPERATION_NON_TRANSPOSE = 10
MATRIX_TYPE_TRIANGULAR = 23
FILL_MODE_LOWER, FILL_MODE_UPPER = 40, 41
DIAG_NON_UNIT, DIAG_UNIT = 50, 51
INDEX_BASE_ZERO = 0
STATUS = (
    "success",
    "not initialized",
    "allocation failed",
    "invalid value",
    "execution failed",
    "internal error",
    "not supported",
)

# The manual's return codes of dcsrilu0.
ILU0_ERRORS = {
    -101: "a row stores no diagonal entry",
    -102: "a pivot is zero",
    -103: "a pivot is too small",
    -104: "out of memory",
    -105: "n is not positive",
    -106: "the column indices of a row are not ascending",
}


class _Descr(ctypes.Structure):
    """struct matrix_descr, passed by value."""

    _fields_ = [("type", c_int), ("mode", c_int), ("diag", c_int)]


def find() -> Path | None:
    """The path of libmkl_rt, or None: FINELU_MKL, then this environment's lib folder, then the loader's own search."""
    named = os.environ.get("FINELU_MKL")
    if named:
        path = Path(named)
        return next(iter(sorted(path.glob("libmkl_rt.so*"))), None) if path.is_dir() else path
    found = sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))
    if found:
        return found[0]
    system = ctypes.util.find_library("mkl_rt")
    return Path(system) if system else None


def available() -> bool:
    """Whether libmkl_rt can be found (it is loaded at first use)."""
    return find() is not None


@cache
def library() -> ctypes.CDLL:
    """libmkl_rt with the argument types of the functions used here; PeerError if it is not installed."""
    path = find()
    if path is None:
        raise PeerError("MKL was not found; `pip install mkl`, or set FINELU_MKL to libmkl_rt.so.")
    try:
        lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise PeerError(f"MKL at {path} cannot be loaded: {error}") from error
    integers, doubles = POINTER(c_int), c_void_p
    lib.dcsrilu0.argtypes = [integers, doubles, c_void_p, c_void_p, doubles, c_void_p, doubles, integers]
    lib.dcsrilu0.restype = None
    lib.mkl_sparse_d_create_csr.argtypes = [
        POINTER(c_void_p),
        c_int,
        c_int,
        c_int,
        c_void_p,
        c_void_p,
        c_void_p,
        c_void_p,
    ]
    lib.mkl_sparse_set_sv_hint.argtypes = [c_void_p, c_int, _Descr, c_int]
    lib.mkl_sparse_optimize.argtypes = [c_void_p]
    lib.mkl_sparse_d_trsv.argtypes = [c_int, c_double, c_void_p, _Descr, c_void_p, c_void_p]
    lib.mkl_sparse_destroy.argtypes = [c_void_p]
    lib.MKL_Set_Num_Threads.argtypes = [c_int]
    lib.MKL_Set_Num_Threads.restype = None
    lib.mkl_get_version_string.argtypes = [c_char_p, c_int]
    lib.mkl_get_version_string.restype = None
    return lib


def version() -> str:
    """MKL's own version text, as "2026.0.2 ..."."""
    text = ctypes.create_string_buffer(256)
    library().mkl_get_version_string(text, len(text))
    words = text.value.decode().split("Version", 1)[-1].split("for", 1)[0]
    return " ".join(words.split())


def set_num_threads(threads: int) -> None:
    """The number of threads that MKL's later calls may use."""
    library().MKL_Set_Num_Threads(threads)


@contextmanager
def num_threads(threads: int) -> Iterator[None]:
    """MKL with this many threads, and a pause before and after: idle threads of a library spin for some 0.2 s."""
    set_num_threads(threads)
    time.sleep(0.25)
    yield
    time.sleep(0.25)


def _check(status: int, call: str) -> None:
    if status:
        raise PeerError(f"MKL {call}: {STATUS[status] if status < len(STATUS) else status}")


class ILU0:
    """dcsrilu0 for one matrix: the 1-based copies are made here, once; `factor` is the timed call.

    A : object with indptr, indices (int32), data (float64), sorted rows (scipy.sparse CSR or finelu's CSR).
    `lu` (nnz,) holds the factors after `factor()`, in A's order.
    """

    def __init__(self, A):
        self._lib = library()
        self._n = c_int(A.indptr.size - 1)
        self._indptr = A.indptr.astype(np.int32) + np.int32(1)
        self._indices = A.indices.astype(np.int32) + np.int32(1)
        self._data = np.ascontiguousarray(A.data, np.float64)
        self.lu = np.empty_like(self._data)
        self._ipar = np.zeros(128, np.int32)
        self._ipar[1] = 6  # messages to the screen, of which ipar[5] = 0 says none
        self._dpar = np.zeros(128)
        self._dpar[30] = 0.0  # only a pivot of exactly 0 stops it
        self._error = c_int(0)

    def load(self, data: Any) -> None:
        """New values (nnz,) float64, in the order of the old ones; they are read where they are."""
        self._data = np.ascontiguousarray(data, np.float64)

    def factor(self) -> np.ndarray:
        """Compute the factors; PeerError if MKL refuses the matrix."""
        self._lib.dcsrilu0(
            byref(self._n),
            self._data.ctypes.data,
            self._indptr.ctypes.data,
            self._indices.ctypes.data,
            self.lu.ctypes.data,
            self._ipar.ctypes.data,
            self._dpar.ctypes.data,
            byref(self._error),
        )
        if self._error.value:
            raise PeerError(f"MKL dcsrilu0: {ILU0_ERRORS.get(self._error.value, self._error.value)}")
        return self.lu


class TriangularSolve:
    """mkl_sparse_d_trsv with a triangle, analysed in the constructor (hint for many calls, then optimize) or not.

    T : CSR, int32 and float64, of which the other triangle is not read; unit : the diagonal is one and not read.
    """

    def __init__(self, T, *, lower: bool, unit: bool, optimize: bool = True):
        self._lib = library()
        self._handle = c_void_p()
        given = ((T.indptr, np.int32), (T.indices, np.int32), (T.data, np.float64))
        self._arrays = tuple(np.ascontiguousarray(array, dtype) for array, dtype in given)
        indptr, indices, data = (a.ctypes.data for a in self._arrays)
        n = T.indptr.size - 1
        self._descr = _Descr(
            MATRIX_TYPE_TRIANGULAR,
            FILL_MODE_LOWER if lower else FILL_MODE_UPPER,
            DIAG_UNIT if unit else DIAG_NON_UNIT,
        )
        lib = self._lib
        _check(
            lib.mkl_sparse_d_create_csr(byref(self._handle), INDEX_BASE_ZERO, n, n, indptr, indptr + 4, indices, data),
            "mkl_sparse_d_create_csr",
        )
        if not optimize:
            return
        many = 10_000
        _check(
            lib.mkl_sparse_set_sv_hint(self._handle, OPERATION_NON_TRANSPOSE, self._descr, many),
            "mkl_sparse_set_sv_hint",
        )
        _check(lib.mkl_sparse_optimize(self._handle), "mkl_sparse_optimize")

    def solve(self, b: Any, out: Any) -> Any:
        """out = T^-1 b, both (n,) float64 and contiguous. A NaN in `out` beforehand stays: MKL multiplies it by 0."""
        status = self._lib.mkl_sparse_d_trsv(
            OPERATION_NON_TRANSPOSE, 1.0, self._handle, self._descr, b.ctypes.data, out.ctypes.data
        )
        _check(status, "mkl_sparse_d_trsv")
        return out

    def close(self) -> None:
        """Free MKL's copy of the matrix."""
        if self._handle:
            self._lib.mkl_sparse_destroy(self._handle)
            self._handle = c_void_p()
