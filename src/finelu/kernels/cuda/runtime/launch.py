"""From a `.cu` file to a kernel that can be launched: compiled by NVRTC at first use, kept on disk by CuPy."""

from __future__ import annotations

import re
import threading
from functools import cache
from importlib.resources import files

import cupy
import numpy as np

from finelu.errors import ParameterError
from finelu.kernels import monitor
from finelu.kernels.cuda.runtime.constants import header
from finelu.kernels.cuda.runtime.memory import counter

CUDA_TYPES = {
    "float32": "float",
    "float64": "double",
    "complex64": "Complex<float>",
    "complex128": "Complex<double>",
    "int32": "int",
    "int64": "long long",
}
NULL = np.uint64(0)  # a pointer to nothing
BLOCK = 256  # threads of a block, where nothing speaks for another number
MOST_COLUMNS = 65535  # of a grid's second dimension
_lock = threading.Lock()
_kernels: dict = {}


@cache
def source(stem: str) -> str:
    """The text of `<stem>.cu` of kernels/cuda, the headers in place of the includes, so that CuPy's cache sees every
    change."""
    folder = files("finelu.kernels.cuda")

    def included(match: re.Match[str]) -> str:
        if match.group(1) == "runtime/constants.cuh":
            return header(vars(monitor))
        return (folder / match.group(1)).read_text().replace("#pragma once", "")

    return re.sub(r'#include "([\w/]+\.cuh)"', included, (folder / f"{stem}.cu").read_text())


def _compiled(stem: str, template_id: str):
    # Contraction to fused multiply-adds is on (CUDA's default); fast math is never set: it would break NaN tests.
    module = cupy.RawModule(code=source(stem), options=("-std=c++17",), name_expressions=(template_id,))
    function = module.get_function(template_id)
    # All that a block can have, once: plans of several threads ask for different sizes of the same kernel.
    function.max_dynamic_shared_size_bytes = device_limits()["shared"] - function.shared_size_bytes
    return function


def kernel(stem: str, function: str, *arguments):
    """The kernel `function<arguments>` of `<stem>.cu` for the current device.

    arguments : dtypes (or their names), integers, booleans or names of constants: the template arguments in order.
    """
    key = (stem, function, arguments, cupy.cuda.runtime.getDevice())
    found = _kernels.get(key)
    if found is None:
        names = [CUDA_TYPES.get(str(a), str(a)) if not isinstance(a, bool) else str(a).lower() for a in arguments]
        with _lock:
            found = _kernels[key] = _compiled(stem, f"{function}<{', '.join(names)}>" if names else function)
    return found


def device_limits() -> dict[str, int]:
    """Multiprocessors, compute capability (90 for 9.0), shared memory of a block in bytes, of the current device."""
    return _device_limits(cupy.cuda.runtime.getDevice())


@cache
def _device_limits(device: int) -> dict[str, int]:
    properties = cupy.cuda.runtime.getDeviceProperties(device)
    return {
        "processors": properties["multiProcessorCount"],
        "capability": 10 * properties["major"] + properties["minor"],
        "shared": properties["sharedMemPerBlockOptin"],
        "shared_plain": properties["sharedMemPerBlock"],
    }


def blocks(items: int, per_block: int) -> int:
    return max(1, -(-int(items) // per_block))


def optional(array):
    """The array as an argument of a kernel, a null pointer for None."""
    return NULL if array is None else array


def over_elements(stem: str, function: str, x, *arguments) -> None:
    """Launch the kernel of x's dtype with a thread for each element of x; its first argument is their number."""
    kernel(stem, function, x.dtype)((blocks(x.size, BLOCK),), (BLOCK,), (np.int64(x.size), *arguments))


def summing(stem: str, function: str, x, *arguments) -> None:
    """Launch the kernel of x's dtype that forms sums over the elements of x; its first arguments are their number,
    room for what its blocks leave, and the counter of `last_block`."""
    n = x.size
    grid = min(blocks(n, BLOCK), 8 * device_limits()["processors"])
    room = cupy.empty(4 * grid, np.float64)  # for a block two sums of any type
    kernel(stem, function, x.dtype)((grid,), (BLOCK,), (np.int64(n), room, counter(), *arguments))


def single_thread(stem: str, function: str, dtype, *arguments) -> None:
    """Launch the kernel of a dtype with one thread."""
    kernel(stem, function, dtype)((1,), (1,), arguments)


def by_columns(n: int, like):
    """(n,) or (n, columns), as `like`; the columns as a grid's dimension and as an argument."""
    columns = 1 if like.ndim == 1 else like.shape[1]
    if columns > MOST_COLUMNS:
        raise ParameterError(f"{columns} right-hand sides at once; the GPU takes at most {MOST_COLUMNS}.")
    return cupy.empty((n, *like.shape[1:]), like.dtype), columns, np.int32(columns)
