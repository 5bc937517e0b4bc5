"""NCCL, NVIDIA's library for messages between GPUs, by ctypes: where it is, and messages in the order of a stream.

Names and numbers are those of nccl.h, version 2; point-to-point messages are there from 2.7 on.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from finelu.errors import DeviceError
from finelu.kernels.cuda.runtime.libraries import cuda_version, places

VERSION = 2
BYTES = 1  # ncclUint8, of ncclDataType_t

_pointer, _int, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class Identity(ctypes.Structure):
    """ncclUniqueId: what the processes that are to be connected have in common."""

    _fields_ = [("internal", ctypes.c_byte * 128)]


PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "ncclGetUniqueId": (_pointer,),
    "ncclCommInitRank": (_pointer, _int, Identity, _int),
    "ncclCommDestroy": (_pointer,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclSend": (_pointer, _size, _int, _int, _pointer, _pointer),
    "ncclRecv": (_pointer, _size, _int, _int, _pointer, _pointer),
}


class Library(NamedTuple):
    """calls : its functions, declared; None where there is no library.  missing : then why, in words."""

    calls: Any
    missing: str = ""


@cache
def library() -> Library:
    """NCCL for the version of CUDA that CuPy uses."""
    return found(cuda_version())


def found(cuda: int) -> Library:
    """NCCL out of the wheel for this major version of CUDA, or where the loader finds it."""
    wheel = f"nvidia-nccl-cu{cuda}"
    missing = f"NCCL is not installed: pip install {wheel}"
    for name in places(wheel, "nccl", VERSION):
        try:
            calls = ctypes.CDLL(name)
            for function, types in PROTOTYPES.items():
                getattr(calls, function).argtypes, getattr(calls, function).restype = types, _int
            calls.ncclGetErrorString.argtypes, calls.ncclGetErrorString.restype = (_int,), ctypes.c_char_p
            return Library(calls)
        except (OSError, AttributeError) as error:
            if os.path.isabs(name):
                missing = f"NCCL cannot be loaded: {error}"
    return Library(None, missing)


def new_identity() -> bytes:
    """For one of the processes to make, and all to be given."""
    identity, calls = Identity(), library().calls
    _check(calls, calls.ncclGetUniqueId(ctypes.byref(identity)))
    return bytes(identity)


class Connection:
    """Between the GPU that is current and those of other processes, each with one of its own; all make it together.

    stream : where messages are in order; they wait for nothing else, and nothing for them.
    Raises DeviceError where NCCL cannot connect them.
    """

    def __init__(self, identity: bytes, rank: int, size: int):
        cupy = import_module("cupy")
        self._calls, self._handle = library().calls, _pointer()
        given = Identity.from_buffer_copy(identity)
        _check(self._calls, self._calls.ncclCommInitRank(ctypes.byref(self._handle), size, given, rank))
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def exchange(self, leaving: Iterable[tuple[int, Any]], arriving: Iterable[tuple[int, Any]]) -> None:
        """Queue messages, all at once: to each process of `leaving` its CuPy array, which is contiguous, and from each
        of `arriving` into its array. The other processes queue the same messages."""
        calls, pointer = self._calls, self.stream.ptr
        _check(calls, calls.ncclGroupStart())
        try:
            for rank, array in leaving:
                _check(calls, calls.ncclSend(array.data.ptr, array.nbytes, BYTES, rank, self._handle, pointer))
            for rank, array in arriving:
                _check(calls, calls.ncclRecv(array.data.ptr, array.nbytes, BYTES, rank, self._handle, pointer))
        finally:
            ended = calls.ncclGroupEnd()
        _check(calls, ended)

    def close(self) -> None:
        """For all processes to call; the stream is waited for."""
        if self._handle:
            self.stream.synchronize()
            self._calls.ncclCommDestroy(self._handle)
            self._handle = _pointer()


def _check(calls: Any, status: int) -> None:
    if status:
        raise DeviceError(f"NCCL: {calls.ncclGetErrorString(status).decode()}; NCCL_DEBUG=INFO says more.")
