"""Modules that have moved can still be imported by their old names, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {  # old module : new module
    "finelu.blocks": "finelu.matrix.blocks",
    "finelu.stencil": "finelu.matrix.stencil",
    "finelu.properties": "finelu.matrix.traits",
    "finelu.residual": "finelu.krylov.residual",
    "finelu.solver": "finelu.auto.solve",
    "finelu.sequence": "finelu.auto.sequence",
    "finelu.singular": "finelu.auto.singular",
    "finelu.ladder": "finelu.auto.ladder",
    "finelu.market": "finelu.io.market",
    "finelu.matlab": "finelu.io.matlab",
    "finelu.interop.superlu": "finelu.interop.scipy",
    "finelu.interop.petsc_solve": "finelu.interop.petsc.solve",
}


class _OldModule(ModuleType):
    """Stands for a module that has moved: its attributes are those of the new one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(MODULES[self.__name__]), name)

    def __dir__(self) -> list[str]:
        return dir(import_module(MODULES[self.__name__]))


class _Finder:
    """Makes the old modules; the last of sys.meta_path, so that it is asked only for what is not there."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, _Finder) if name in MODULES else None

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return _OldModule(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        old = module.__name__
        warnings.warn(f"{old} has moved to {MODULES[old]}; import it from there.", DeprecationWarning, stacklevel=2)


def install() -> None:
    """Let the old names be imported."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
