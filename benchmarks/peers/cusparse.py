"""cuSPARSE through ctypes: SpSV, csrilu02 and csric02, float64 with int32 indices, on CuPy's current stream.

The library is the one that CuPy itself loads, so that both use the same CUDA context; FINELU_CUSPARSE may name another
libcusparse.so. Signatures and constants are those of cusparse.h in CUDA 13.0, where csrilu02 and csric02 are
deprecated but still there. Every class keeps its buffers, so that `analyse` and the numeric call can be timed alone.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.peers import PeerError

# cusparse.h and library_types.h
OPERATION_NON_TRANSPOSE = 0
INDEX_BASE_ZERO = 0
INDEX_32I = 2
R_64F = 1
SPMAT_FILL_MODE, SPMAT_DIAG_TYPE = 0, 1
FILL_MODE_LOWER, FILL_MODE_UPPER = 0, 1
DIAG_TYPE_NON_UNIT, DIAG_TYPE_UNIT = 0, 1
SPSV_ALG_DEFAULT = 0
STATUS_ZERO_PIVOT = 9
POLICIES = {"NO_LEVEL": 0, "USE_LEVEL": 1}

_MATRIX = [
    c_void_p,
    c_int,
    c_int,
    c_void_p,
    c_void_p,
    c_void_p,
    c_void_p,
]  # handle, m, nnz, descr, values, offsets, columns
_SPSV = [c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p]
SIGNATURES = {
    "cusparseCreate": [POINTER(c_void_p)],
    "cusparseSetStream": [c_void_p, c_void_p],
    "cusparseGetVersion": [c_void_p, POINTER(c_int)],
    "cusparseCreateMatDescr": [POINTER(c_void_p)],  # general and zero-based unless changed
    "cusparseDestroyMatDescr": [c_void_p],
    "cusparseCreateCsr": [
        POINTER(c_void_p),
        c_int64,
        c_int64,
        c_int64,
        c_void_p,
        c_void_p,
        c_void_p,
        c_int,
        c_int,
        c_int,
        c_int,
    ],
    "cusparseSpMatSetAttribute": [c_void_p, c_int, c_void_p, c_size_t],
    "cusparseDestroySpMat": [c_void_p],
    "cusparseCreateDnVec": [POINTER(c_void_p), c_int64, c_void_p, c_int],
    "cusparseDestroyDnVec": [c_void_p],
    "cusparseSpSV_createDescr": [POINTER(c_void_p)],
    "cusparseSpSV_destroyDescr": [c_void_p],
    "cusparseSpSV_bufferSize": [*_SPSV, POINTER(c_size_t)],
    "cusparseSpSV_analysis": [*_SPSV, c_void_p],
    "cusparseSpSV_solve": _SPSV,
}
for _name in ("csrilu02", "csric02"):
    SIGNATURES |= {
        f"cusparseCreate{_name.capitalize()}Info": [POINTER(c_void_p)],
        f"cusparseDestroy{_name.capitalize()}Info": [c_void_p],
        f"cusparseX{_name}_zeroPivot": [c_void_p, c_void_p, POINTER(c_int)],
        f"cusparseD{_name}_bufferSize": [*_MATRIX, c_void_p, POINTER(c_int)],
        f"cusparseD{_name}_analysis": [*_MATRIX, c_void_p, c_int, c_void_p],
        f"cusparseD{_name}": [*_MATRIX, c_void_p, c_int, c_void_p],
    }


def find() -> Path | None:
    """The path of libcusparse: FINELU_CUSPARSE, or that of CuPy's path finder, pip's nvidia folders, the toolkit."""
    named = os.environ.get("FINELU_CUSPARSE")
    if named:
        return Path(named)
    if find_spec("cuda") and find_spec("cuda.pathfinder"):
        from cuda import pathfinder

        try:
            return Path(pathfinder.load_nvidia_dynamic_lib("cusparse").abs_path)
        except (pathfinder.DynamicLibNotFoundError, OSError, RuntimeError):
            pass  # the places below are looked at next
    packages = find_spec("nvidia")
    folders = [Path(p) for p in packages.submodule_search_locations] if packages else []
    places = [p for f in folders for p in (f / "cu13/lib", f / "cusparse/lib")]
    places += [Path(os.environ.get("CUDA_PATH", "/usr/local/cuda")) / "lib64"]
    return next((lib for place in places for lib in sorted(place.glob("libcusparse.so.*"))), None)


def declare(lib: ctypes.CDLL, signatures: dict[str, list]) -> ctypes.CDLL:
    """Give these functions their argument types; PeerError names those that this version no longer has."""
    missing = [name for name in signatures if not hasattr(lib, name)]
    if missing:
        raise PeerError(f"this cuSPARSE has no {', '.join(missing)}")
    for name, arguments in signatures.items():
        getattr(lib, name).argtypes = arguments
        getattr(lib, name).restype = c_int
    return lib


@cache
def library() -> ctypes.CDLL:
    path = find()
    if path is None:
        raise PeerError("libcusparse was not found; set FINELU_CUSPARSE to libcusparse.so.12.")
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise PeerError(f"cuSPARSE at {path} cannot be loaded: {error}") from error
    lib.cusparseGetErrorString.argtypes = [c_int]
    lib.cusparseGetErrorString.restype = c_char_p
    return declare(lib, SIGNATURES)


def call(name: str, *arguments: Any) -> None:
    """A function of the library; PeerError with its own words if it fails."""
    lib = library()
    status = getattr(lib, name)(*arguments)
    if status:
        raise PeerError(f"{name}: {lib.cusparseGetErrorString(status).decode()}")


@cache
def _new_handle() -> c_void_p:
    handle = c_void_p()
    call("cusparseCreate", byref(handle))
    return handle


def handle() -> c_void_p:
    """One handle for the process, on CuPy's current stream. CuPy must have made its context before."""
    import cupy

    h = _new_handle()
    call("cusparseSetStream", h, cupy.cuda.get_current_stream().ptr)
    return h


def version() -> str:
    """The library's version, as "12.6.3"."""
    number = c_int()
    call("cusparseGetVersion", handle(), byref(number))
    return f"{number.value // 1000}.{number.value // 100 % 10}.{number.value % 100}"


class SpSV:
    """y = T^-1 b by the generic API, for a triangle on the GPU.

    T : CSR of CuPy arrays (indptr, indices int32; data float64) holding one triangle only, so that no entry is read in
        vain; unit : the diagonal is one and not stored.
    pairs : list of (b, y) arrays; `solve(i)` works on pair i modulo their number.
    Call `analyse` before `solve`; each `renew` forgets the analysis, so that it can be timed again.
    """

    def __init__(self, T, pairs, *, lower: bool, unit: bool):
        import cupy

        self._arrays = (T.indptr, T.indices, T.data, pairs)  # kept alive: the descriptors hold bare pointers
        self._handle = handle()
        n, nnz = T.indptr.size - 1, T.data.size
        self._matrix = c_void_p()
        call(
            "cusparseCreateCsr",
            byref(self._matrix),
            n,
            n,
            nnz,
            T.indptr.data.ptr,
            T.indices.data.ptr,
            T.data.data.ptr,
            INDEX_32I,
            INDEX_32I,
            INDEX_BASE_ZERO,
            R_64F,
        )
        fill = c_int(FILL_MODE_LOWER if lower else FILL_MODE_UPPER)
        diag = c_int(DIAG_TYPE_UNIT if unit else DIAG_TYPE_NON_UNIT)
        call("cusparseSpMatSetAttribute", self._matrix, SPMAT_FILL_MODE, byref(fill), ctypes.sizeof(fill))
        call("cusparseSpMatSetAttribute", self._matrix, SPMAT_DIAG_TYPE, byref(diag), ctypes.sizeof(diag))
        self._vectors = [tuple(self._vector(v) for v in pair) for pair in pairs]
        self._one = c_double(1.0)
        self._analysis = c_void_p()
        self.renew()
        size = c_size_t()
        call("cusparseSpSV_bufferSize", *self._arguments(0), byref(size))
        self._buffer = cupy.empty(max(size.value, 1), cupy.uint8)

    @staticmethod
    def _vector(values) -> c_void_p:
        vector = c_void_p()
        call("cusparseCreateDnVec", byref(vector), values.size, values.data.ptr, R_64F)
        return vector

    def _arguments(self, i: int):
        b, y = self._vectors[i % len(self._vectors)]
        return (
            self._handle,
            OPERATION_NON_TRANSPOSE,
            byref(self._one),
            self._matrix,
            b,
            y,
            R_64F,
            SPSV_ALG_DEFAULT,
            self._analysis,
        )

    def renew(self) -> None:
        if self._analysis:
            call("cusparseSpSV_destroyDescr", self._analysis)
            self._analysis = c_void_p()
        call("cusparseSpSV_createDescr", byref(self._analysis))

    def analyse(self) -> None:
        call("cusparseSpSV_analysis", *self._arguments(0), self._buffer.data.ptr)

    def solve(self, i: int = 0) -> None:
        call("cusparseSpSV_solve", *self._arguments(i))

    def close(self) -> None:
        """Free the descriptors; the device must be idle."""
        call("cusparseSpSV_destroyDescr", self._analysis)
        for vector in (v for pair in self._vectors for v in pair):
            call("cusparseDestroyDnVec", vector)
        call("cusparseDestroySpMat", self._matrix)


class _IncompleteFactorization:
    """csrilu02 or csric02: `load` the values, `analyse` the pattern, `factor` in place into `values`."""

    def __init__(self, name: str, A, policy: str):
        import cupy

        self._name, self._policy = name, POLICIES[policy]
        self._A, self.values = A, A.data.copy()
        self._handle = handle()
        self._descr, self._info = c_void_p(), c_void_p()
        call("cusparseCreateMatDescr", byref(self._descr))
        self.renew()
        size = c_int()
        call(f"cusparseD{name}_bufferSize", *self._arguments(), byref(size))
        self._buffer = cupy.empty(max(size.value, 1), cupy.uint8)

    def _arguments(self):
        return (
            self._handle,
            self._A.indptr.size - 1,
            self.values.size,
            self._descr,
            self.values.data.ptr,
            self._A.indptr.data.ptr,
            self._A.indices.data.ptr,
            self._info,
        )

    def renew(self) -> None:
        """Forget the analysis, so that it can be timed again."""
        if self._info:
            call(f"cusparseDestroy{self._name.capitalize()}Info", self._info)
            self._info = c_void_p()
        call(f"cusparseCreate{self._name.capitalize()}Info", byref(self._info))

    def load(self) -> None:
        """The values of A again, as the factorization overwrites them; a copy on the device, queued."""
        self.values[...] = self._A.data

    def analyse(self) -> None:
        call(f"cusparseD{self._name}_analysis", *self._arguments(), self._policy, self._buffer.data.ptr)

    def factor(self) -> None:
        call(f"cusparseD{self._name}", *self._arguments(), self._policy, self._buffer.data.ptr)

    def zero_pivot(self) -> int:
        """The first row with a pivot of zero (or, for csric02, not positive), or -1; waits for the device."""
        row = c_int(-1)
        name = f"cusparseX{self._name}_zeroPivot"
        status = getattr(library(), name)(self._handle, self._info, byref(row))
        if status not in (0, STATUS_ZERO_PIVOT):
            raise PeerError(f"{name}: {library().cusparseGetErrorString(status).decode()}")
        return row.value

    def close(self) -> None:
        """Free the descriptors; the device must be idle."""
        call(f"cusparseDestroy{self._name.capitalize()}Info", self._info)
        call("cusparseDestroyMatDescr", self._descr)


class Csrilu02(_IncompleteFactorization):
    """ILU(0) of A, a CSR of CuPy arrays; policy "USE_LEVEL" or "NO_LEVEL". `values` become L and U in A's order."""

    def __init__(self, A, policy: str):
        super().__init__("csrilu02", A, policy)


class Csric02(_IncompleteFactorization):
    """IC(0) of the matrix whose lower triangle with diagonal is L, a CSR of CuPy arrays; `values` become the factor."""

    def __init__(self, L, policy: str):
        super().__init__("csric02", L, policy)
