"""NVIDIA's libraries that are called by ctypes: where they are, and for which CUDA."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ctypes.util import find_library
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any


def places(wheel: str, name: str, version: int) -> Iterator[str]:
    """The names under which lib<name>.so of this major version may be loaded: in the wheel, then as the loader finds
    it."""
    with suppress(PackageNotFoundError):
        for file in distribution(wheel).files or ():
            if file.name.startswith(f"lib{name}.so"):
                yield str(file.locate())
    yield f"lib{name}.so.{version}"
    if (other := find_library(name)) is not None:
        yield other


def declared(calls: Any, prototypes: Mapping[str, tuple[Any, ...]]) -> Any:
    """The library, with the types of these functions, which return ints. AttributeError if one is missing."""
    for name, types in prototypes.items():
        function = getattr(calls, name)
        function.argtypes, function.restype = types, ctypes.c_int
    return calls


def cuda_version() -> int:
    """The major version of the CUDA that CuPy uses."""
    return int(import_module("cupy").cuda.runtime.runtimeGetVersion()) // 1000
