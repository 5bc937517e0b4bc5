"""From a `.cu` file to a kernel that can be launched: compiled by NVRTC at first use, kept on disk by CuPy."""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from importlib.resources import files

import cupy

CUDA_TYPES = {
    "float32": "float",
    "float64": "double",
    "complex64": "Complex<float>",
    "complex128": "Complex<double>",
    "int32": "int",
    "int64": "long long",
}
_lock = threading.Lock()


@lru_cache(maxsize=None)
def source(stem: str) -> str:
    """The text of `<stem>.cu` with the shared headers in place of the includes, so that CuPy's cache sees every change."""
    folder = files(__package__)

    def header(match):
        return (folder / match.group(1)).read_text().replace("#pragma once", "")

    return re.sub(r'#include "(\w+\.cuh)"', header, (folder / f"{stem}.cu").read_text())


@lru_cache(maxsize=None)
def _compiled(stem: str, template_id: str, device: int):
    # Contraction to fused multiply-adds is on (CUDA's default); fast math is never set: it would break NaN tests.
    module = cupy.RawModule(code=source(stem), options=("-std=c++17",), name_expressions=(template_id,))
    return module.get_function(template_id)


def kernel(stem: str, function: str, *arguments):
    """The kernel `function<arguments>` of `<stem>.cu` for the current device.

    arguments : dtype names ("float64", "int32", ...), integers or booleans: the template arguments in their order.
    """
    names = [CUDA_TYPES.get(a, a) if isinstance(a, str) else str(a).lower() for a in arguments]
    template_id = f"{function}<{', '.join(names)}>" if names else function
    with _lock:
        return _compiled(stem, template_id, cupy.cuda.Device().id)


@lru_cache(maxsize=None)
def device_limits(device: int | None = None) -> dict[str, int]:
    """Multiprocessors, resident threads of one, and the shared memory that one block can have, of a device."""
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id if device is None else device)
    return {
        "processors": properties["multiProcessorCount"],
        "threads": properties["maxThreadsPerMultiProcessor"],
        "shared": properties["sharedMemPerBlockOptin"],
        "shared_plain": properties["sharedMemPerBlock"],
    }


def blocks(items: int, per_block: int) -> int:
    return max(1, -(-int(items) // per_block))
