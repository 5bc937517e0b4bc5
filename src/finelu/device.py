"""Where an array lives: its device, the module of its functions, and the memory that is free there."""

from __future__ import annotations

import math
import os
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.errors import DeviceError

Array = Any  # a NumPy or a CuPy array; CuPy has no published types
Sparse = Any  # a matrix or an array of scipy.sparse or cupyx.scipy.sparse
Dtype = Any  # anything that numpy.dtype takes


def on_gpu(array: object) -> bool:
    """Whether `array` is a CuPy array or cupyx sparse matrix; does not import CuPy."""
    kind = type(array)
    return kind is not np.ndarray and _is_of_cupy(kind.__module__)


@cache
def _is_of_cupy(module: str) -> bool:
    return module.split(".")[0] in ("cupy", "cupyx")


def namespace(array: object) -> ModuleType:
    """numpy or cupy: the module whose functions take `array`."""
    return sys.modules["cupy"] if on_gpu(array) else np


def to_host(array: Any) -> Any:
    """`array` as a NumPy array or scipy.sparse matrix; copies only from a GPU."""
    return array.get() if on_gpu(array) else array


def copied(array: Array) -> Array:
    """A C-contiguous copy, on the device of the array: on a GPU by the driver, since CuPy would compile a kernel."""
    if not on_gpu(array):
        return array.copy(order="C")
    cupy = import_module("cupy")
    array = cupy.ascontiguousarray(array)
    copy = cupy.empty_like(array)
    copy.data.copy_from_device_async(array.data, array.nbytes)
    return copy


def require_gpu() -> ModuleType:
    """cupy, if a GPU can be used; else a DeviceError that names the missing part."""
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        raise DeviceError(
            "device 'cuda' was asked for, but CuPy is not installed; install finelu[cuda13] or finelu[cuda12], "
            "or use device 'cpu'."
        ) from error
    try:
        cupy.cuda.runtime.getDeviceCount()
        cupy.cuda.Device().compute_capability  # noqa: B018 - fails where the driver does
    except Exception as error:
        raise DeviceError(
            f"device 'cuda' was asked for, but no GPU can be used here ({str(error).splitlines()[0]}); "
            "use device 'cpu'."
        ) from error
    return cupy


def same_gpu(a: Array, b: Array) -> None:
    """A DeviceError if a and b are arrays of different GPUs, or not of the current one."""
    if on_gpu(a):
        current = namespace(a).cuda.runtime.getDevice()
        ours, theirs = a.data.device_id, b.data.device_id
        if not ours == theirs == current:
            raise DeviceError(
                f"arrays of GPU {ours} and GPU {theirs} met while GPU {current} is current; "
                "put them on one, and make it current (with cupy.cuda.Device(...))."
            )


def require_one_device(a: Array, b: Array, what: str) -> None:
    """A DeviceError unless a and b are both on the host, or both on the current GPU.  what : both of them, in words."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return
    if on_gpu(a) != on_gpu(b):
        raise DeviceError(f"{what} are on different devices; move one of them first.")
    same_gpu(a, b)


def synchronize(array: object) -> None:
    """Wait until the work queued on the device of `array` is done (nothing to do on the CPU)."""
    if "cupy" in sys.modules and on_gpu(array):
        import_module("cupy").cuda.get_current_stream().synchronize()


ALWAYS_FREE = 2**26  # bytes that any process has that runs at all: less is not worth asking for
USABLE = 0.8  # part of the free memory that factors may take


def free_memory(array: object) -> int:
    """Free bytes on the device of `array`; on the host, within the limit of a container (cgroup)."""
    if on_gpu(array):
        cupy = import_module("cupy")
        return int(cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes())
    return int(min(_machine_memory(), _container_memory()))


def lies_in_order(array: Any) -> bool:
    """Whether kernels for several columns take an array (n,) or (n, k) as it lies: row-major, on the CPU also
    column-major."""
    return bool(array.flags.c_contiguous or (array.flags.f_contiguous and not on_gpu(array)))


def require_room(what: str, needed: int, array: object, advice: str) -> None:
    """Raise a MemoryError that names the request, if it exceeds the free memory on the device of `array`."""
    free = free_memory(array)
    if needed > free:
        raise MemoryError(f"{what} take {needed / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free; {advice}.")


def _machine_memory() -> int:
    try:  # the memory that the kernel would give, its caches included
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # no Linux
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not known on this system: more than any machine has
        return 2**48


# folder, limit, used memory, and its part that is a cache of files: control groups of both versions
CONTAINERS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _container_memory() -> float:
    for folder, limit, used, files in CONTAINERS:
        try:
            most, now = ((Path(folder) / name).read_text().strip() for name in (limit, used))
            if most == "max":
                return math.inf
            facts = dict(line.split() for line in (Path(folder) / "memory.stat").read_text().splitlines())
            return max(int(most) - int(now) + int(facts.get(files, 0)), 0)
        except (OSError, ValueError):
            continue
    return math.inf


def sparse_module(array: object) -> ModuleType:
    """scipy.sparse, or cupyx.scipy.sparse for arrays on the GPU."""
    if on_gpu(array):
        return import_module("cupyx.scipy.sparse")
    return sp


def as_any_other(v: Any) -> Any:
    """v; if v is a read-only array of NumPy (for example from JAX or a file), the same memory without that flag.

    Numba would compile each kernel anew for read-only arguments, and no kernel of finelu writes to a caller's array.
    """
    return v if not isinstance(v, np.ndarray) or v.flags.writeable else np.asarray(_Memory(v))


class _Memory:
    """The memory of an array, which is kept alive."""

    def __init__(self, v: np.ndarray[Any, Any]):
        self._owner = v
        address, _ = v.__array_interface__["data"]
        self.__array_interface__ = v.__array_interface__ | {"data": (address, False)}
