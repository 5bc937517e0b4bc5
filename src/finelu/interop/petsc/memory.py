"""PETSc's matrices and vectors as arrays of NumPy and CuPy, which share its memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from petsc4py import PETSc

from finelu.factors import Factors

ON_HOST, ON_CUDA = 0, 1  # PetscMemType


def csr_arrays(P: PETSc.Mat, cupy: Any) -> tuple[Any, Any, Any]:
    """indptr, indices, data of a seqaij matrix, as views where PETSc has them: the values on the GPU where both are."""
    pointers = i, j, a, kind = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    call_petsc("MatSeqAIJGetCSRAndMemType", ctypes.c_void_p(P.handle), *map(ctypes.byref, pointers))
    n = P.getSize()[0]
    if kind.value == ON_HOST:
        indptr = _host_view(i.value, n + 1, PETSc.IntType)
        nnz = int(indptr[-1])
        return indptr, _host_view(j.value, nnz, PETSc.IntType), _host_view(a.value, nnz, PETSc.ScalarType)
    if kind.value != ON_CUDA or cupy is None:
        indptr, indices, data = P.getValuesCSR()
        return indptr, indices, data
    indptr, indices = P.getRowIJ()  # the pattern is on the host in any case
    return indptr, indices, _device_view(cupy, a.value or 0, int(indptr[-1]), P)


def call_petsc(name: str, *arguments: Any) -> None:
    """Call a function of the libpetsc that petsc4py has loaded, one which petsc4py itself does not offer."""
    status = getattr(ctypes.CDLL(PETSc.__file__), name)(*arguments)
    if status:
        raise PETSc.Error(status)


def _host_view(address: int | None, count: int, dtype: Any) -> np.ndarray:
    dtype = np.dtype(dtype)
    if count == 0:
        return np.empty(0, dtype)
    assert address is not None
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype, count)  # not read-only: Numba would compile kernels once more for such arrays


def _device_view(cupy: Any, address: int, count: int, owner: Any) -> Any:
    dtype = np.dtype(PETSc.ScalarType)
    memory = cupy.cuda.UnownedMemory(address, count * dtype.itemsize, owner)
    return cupy.ndarray(count, dtype, cupy.cuda.MemoryPointer(memory, 0))


def readable(v: PETSc.Vec | PETSc.Mat) -> Any:
    """The numbers of a vector, or of a dense matrix; PETSc locks those that a preconditioner is applied to."""
    return v.getDenseArray(readonly=True) if isinstance(v, PETSc.Mat) else v.getArray(readonly=True)


def writable(v: PETSc.Vec | PETSc.Mat) -> Any:
    return v.getDenseArray() if isinstance(v, PETSc.Mat) else v.getArray()


class _Borrowed:
    """The memory of an array, but no reference to it.

    A thread of a kernel may keep its arguments for a moment after the kernel has returned. If it kept PETSc's own
    array, it would be the one that returns the memory to PETSc, which allows that on one thread only.
    """

    def __init__(self, array: np.ndarray):
        interface = array.__array_interface__
        # Not read-only: Numba would compile kernels once more for such arrays.
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}


def borrowed(array: np.ndarray) -> np.ndarray:
    """The same memory in an array that holds no reference to `array`, which must outlive it."""
    return np.asarray(_Borrowed(array))


def copy_to_host(found: Any, host: np.ndarray) -> None:
    """host = found, an array of the GPU; straight into the memory of `host` where possible."""
    if found.dtype == host.dtype and found.flags.c_contiguous and host.flags.c_contiguous:
        found.get(out=host)
    else:
        host[...] = found.get()


def is_on_gpu(v: PETSc.Vec | PETSc.Mat) -> bool:
    return isinstance(v, PETSc.Vec) and "cuda" in v.getType() and not v.boundToCPU()


@contextmanager
def cuda_array(cupy: Any, v: PETSc.Vec, mode: str) -> Iterator[Any]:
    """The memory of a CUDA vector as a CuPy array. mode : "r" or "w"."""
    handle = v.getCUDAHandle(mode)
    try:
        yield _device_view(cupy, handle, v.getLocalSize(), v)
    finally:
        v.restoreCUDAHandle(handle, mode)


def bytes_of(thing: Any, known: set[int] | None = None) -> int:
    """Memory of the arrays that belong to factors, each counted once."""
    known = set() if known is None else known
    if id(thing) in known:
        return 0
    known.add(id(thing))
    if isinstance(thing, ModuleType):  # an array namespace; NumPy 1.26 has `nbytes` and `dtype` itself
        return 0
    if hasattr(thing, "nbytes") and hasattr(thing, "dtype"):
        base = getattr(thing, "base", None)
        return bytes_of(base, known) if hasattr(base, "nbytes") else int(thing.nbytes)
    parts: Any
    if isinstance(thing, dict):
        parts = thing.values()
    elif isinstance(thing, list | tuple):
        parts = thing
    elif isinstance(thing, Factors) or type(thing).__module__.startswith("finelu."):
        slots = (getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ()))
        parts = (*vars(thing).values(), *slots) if hasattr(thing, "__dict__") else tuple(slots)
    else:
        return 0
    return sum(bytes_of(part, known) for part in parts)
