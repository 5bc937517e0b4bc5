"""The kernels on the GPU, a `.cu` file and its launchers for each family; specified in kernels/reference."""

from __future__ import annotations

from types import ModuleType

from finelu.kernels.catalogue import family


def __getattr__(name: str) -> ModuleType:
    return family(__name__, name)
