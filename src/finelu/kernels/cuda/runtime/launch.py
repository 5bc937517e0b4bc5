"""From a `.cu` file to a kernel that can be launched: by the machine code in a wheel (binaries.py), else by NVRTC at
the first use (nvrtc.py)."""

from __future__ import annotations

import threading
from functools import cache

import cupy
import numpy as np

from finelu.errors import ParameterError
from finelu.kernels.cuda.runtime.binaries import archive
from finelu.kernels.cuda.runtime.memory import counter
from finelu.kernels.cuda.runtime.nvrtc import machine_code

CUDA_TYPES = {
    "float16": "Half",
    "float32": "float",
    "float64": "double",
    "complex64": "Complex<float>",
    "complex128": "Complex<double>",
    "int32": "int",
    "int64": "long long",
}
NULL = np.uint64(0)  # a pointer to nothing
BLOCK = 256  # threads of a block, where nothing speaks for another number
MOST_ACROSS = 32  # columns that a group of threads takes at a time, at most a warp
MOST_COLUMNS = 65535  # of a grid's second dimension
NOT_ITS_CODE = (200, 209)  # CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU
_lock = threading.Lock()
_kernels: dict = {}


def _loaded(code: bytes, name: str):
    module = cupy.cuda.function.Module()
    module.load(code)
    return module.get_function(name)


def _carried(stem: str, template_id: str):
    """The kernel from machine code that came with finelu, or None."""
    carried = archive(device_limits()["capability"])
    found = carried and carried.find(stem, template_id)
    if not found:
        return None
    try:
        return _loaded(*found)
    except cupy.cuda.driver.CUDADriverError as error:
        if error.status not in NOT_ITS_CODE:
            raise
        carried.refuse(error)
        return None


def _compiled(stem: str, template_id: str):
    return _loaded(*machine_code(stem, template_id))


def _made(stem: str, template_id: str):
    found = _carried(stem, template_id) or _compiled(stem, template_id)
    # All that a block can have, once: plans of several threads ask for different sizes of the same kernel.
    driver = cupy.cuda.driver
    static = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, found.ptr)
    most = device_limits()["shared"] - static
    driver.funcSetAttribute(found.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most)
    return found


def most_shared(function) -> int:
    """Bytes of shared memory that a launch of a kernel can ask for."""
    driver = cupy.cuda.driver
    return driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function.ptr)


def kernel(stem: str, function: str, *arguments):
    """The kernel `function<arguments>` of `<stem>.cu` for the current device.

    arguments : dtypes (or their names), integers, booleans or names of constants: the template arguments in order.
    Returns CuPy's function of a module, to be called with the grid and the block, which are tuples, and the arguments.
    """
    key = (stem, function, arguments, cupy.cuda.runtime.getDevice())
    found = _kernels.get(key)
    if found is None:
        names = [CUDA_TYPES.get(str(a), str(a)) if not isinstance(a, bool) else str(a).lower() for a in arguments]
        template_id = f"{function}<{', '.join(names)}>" if names else function
        with _lock:
            found = _kernels[key] = _kernels.get(key) or _made(stem, template_id)
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


def for_each(
    stem: str, function: str, types: tuple, n, *arguments, lanes: int = 1, columns: int = 1, block: int = BLOCK
) -> None:
    """Launch a kernel with `lanes` threads for each of n items; of none nothing is launched.

    types : the template arguments, as `kernel` takes them.
    n : the first argument of the kernel, a NumPy integer of its type.
    columns : of right-hand sides, the second dimension of the grid.
    """
    if n and columns:
        kernel(stem, function, *types)((blocks(int(n) * lanes, block), columns), (block,), (n, *arguments))


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


def across(columns: int):
    """((number of columns, columns of a group, log2 of its threads along them) int32, the groups of columns: blocks in
    the second dimension of the grid); see runtime/columns.cuh."""
    groups = max(-(-columns // MOST_ACROSS), 1)
    each = -(-columns // groups)
    return (np.int32(columns), np.int32(each), np.int32(max(each - 1, 0).bit_length())), groups


def by_columns(n: int, like):
    """(an array (n,) or (n, columns), as `like`; the number of columns)."""
    columns = 1 if like.ndim == 1 else like.shape[1]
    if columns > MOST_COLUMNS:
        raise ParameterError(f"{columns} right-hand sides at once; the GPU takes at most {MOST_COLUMNS}.")
    return cupy.empty((n, *like.shape[1:]), like.dtype), columns
