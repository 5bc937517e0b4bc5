"""The kernels on the CPU, in Numba, a module for each family; specified in kernels/reference."""

from __future__ import annotations

from types import ModuleType

from numba.core.registry import cpu_target

from finelu.kernels.catalogue import family

# Made before the listener of runtime/jit.py, which would take this for compilation: Numba locks its compiler for it.
target = cpu_target.target_context


def __getattr__(name: str) -> ModuleType:
    return family(__name__, name)
