"""The kernels: `kernels_for(array)` gives those of the device where the array lives.

`kernels_for(a).pattern.add(...)` names the family and the function: kernels/reference/pattern.py specifies it, and
kernels/cpu/pattern.py and kernels/cuda/pattern.py hold its two forms, with the same name, arguments and meaning.
`catalogue.py` lists the families, and says why a form is missing where one is.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from finelu.device import on_gpu


def kernels_for(array) -> ModuleType:
    """The package of kernels for the device that `array` lives on; its families are imported at first use."""
    return _package("cuda" if on_gpu(array) else "cpu")


@cache
def _package(device: str) -> ModuleType:
    return import_module(f"finelu.kernels.{device}")
