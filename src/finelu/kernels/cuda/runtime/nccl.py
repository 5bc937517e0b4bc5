"""NCCL, NVIDIA's library for messages between GPUs, by ctypes: where it is, and messages in the order of a stream.

Names and numbers are those of nccl.h, version 2; point-to-point messages exist from 2.7 on.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from finelu.errors import DeviceError
from finelu.kernels.cuda.runtime.libraries import cuda_version, declared, places

VERSION = 2  # of the library, its major one
BYTES = 1  # ncclUint8, of ncclDataType_t

_pointer, _int, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class Identity(ctypes.Structure):
    """ncclUniqueId: the same for all processes that are to be connected."""

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


@cache
def library() -> Any:
    """The functions of NCCL, for the version of CUDA that CuPy uses; None where it is not installed."""
    return found(cuda_version())


def found(cuda: int) -> Any:
    """NCCL out of the wheel for this major version of CUDA, or where the loader finds it, its functions declared; None,
    with a warning where one is there that cannot be used."""
    broken = ""
    for name in places(f"nvidia-nccl-cu{cuda}", "nccl", VERSION):
        try:
            calls = declared(ctypes.CDLL(name), PROTOTYPES)
            calls.ncclGetErrorString.argtypes, calls.ncclGetErrorString.restype = (_int,), ctypes.c_char_p
            return calls
        except (OSError, AttributeError) as error:
            if os.path.isabs(name) or isinstance(error, AttributeError):
                broken = f"NCCL cannot be used, so cells go between GPUs another way, which takes longer: {error}"
    if broken:
        warnings.warn(broken, stacklevel=2)
    return None


def new_identity() -> bytes:
    """A new identity: one process makes it, and all receive it."""
    identity, calls = Identity(), library()
    _check(calls, calls.ncclGetUniqueId(ctypes.byref(identity)))
    return bytes(identity)


class Connection:
    """Between the GPU that is current and those of other processes, each with one of its own; all make it together.

    Messages are in order on a stream of their own. Arrays are kept until the next exchange, and the current stream
    waits for the messages before that: no other array has their memory while they are written.
    Raises DeviceError where NCCL cannot connect them.
    """

    def __init__(self, identity: bytes, rank: int, size: int):
        self._cuda = import_module("cupy").cuda
        self._calls, self._handle = library(), _pointer()
        given = Identity.from_buffer_copy(identity)
        _check(self._calls, self._calls.ncclCommInitRank(ctypes.byref(self._handle), size, given, rank))
        self._stream = self._cuda.Stream(non_blocking=True)
        self._ready, self._done = (self._cuda.Event(disable_timing=True) for _ in range(2))
        self._arrays: tuple[Any, Any] = ((), ())

    def exchange(self, leaving: Sequence[tuple[int, Any]], arriving: Sequence[tuple[int, Any]]) -> None:
        """Queue messages behind the current stream, all at once: to each process of `leaving` its CuPy array, which is
        contiguous, and from each of `arriving` into its array. The other processes queue the same messages."""
        calls, stream, current = self._calls, self._stream.ptr, self._cuda.get_current_stream()
        current.wait_event(self._done)  # which a caller that met an error may not have waited for
        self._arrays = leaving, arriving
        self._ready.record(current)
        self._stream.wait_event(self._ready)
        _check(calls, calls.ncclGroupStart())
        try:
            for rank, array in leaving:
                _check(calls, calls.ncclSend(array.data.ptr, array.nbytes, BYTES, rank, self._handle, stream))
            for rank, array in arriving:
                _check(calls, calls.ncclRecv(array.data.ptr, array.nbytes, BYTES, rank, self._handle, stream))
        finally:
            ended = calls.ncclGroupEnd()
            self._done.record(self._stream)
        _check(calls, ended)

    def wait(self) -> None:
        """Work that is queued next on the current stream begins after the messages."""
        self._cuda.get_current_stream().wait_event(self._done)

    def close(self) -> None:
        """Wait for the messages and end the connection; all processes call this."""
        if self._handle:
            self._stream.synchronize()
            self._calls.ncclCommDestroy(self._handle)
            self._handle = _pointer()


def _check(calls: Any, status: int) -> None:
    if status:
        raise DeviceError(f"NCCL: {calls.ncclGetErrorString(status).decode()}; NCCL_DEBUG=INFO says more.")
