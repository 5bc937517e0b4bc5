"""Modules that have moved can still be imported by their old names, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {  # old module : new module
    "finelu.blocks": "finelu.matrix.blocks",
    "finelu.stencil": "finelu.matrix.stencil",
    "finelu.residual": "finelu.krylov.residual",
    "finelu.solver": "finelu.auto.solve",
    "finelu.sequence": "finelu.auto.sequence",
    "finelu.singular": "finelu.auto.singular",
    "finelu.ladder": "finelu.auto.ladder",
    "finelu.market": "finelu.io.market",
    "finelu.matlab": "finelu.io.matlab",
    "finelu.interop.superlu": "finelu.interop.scipy",
    "finelu.interop.petsc_solve": "finelu.interop.petsc_command",
}


class _OldModule(ModuleType):
    """Stands for a module that has moved: its attributes are those of the new one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(MODULES[self.__name__]), name)

    def __dir__(self) -> list[str]:
        return dir(import_module(MODULES[self.__name__]))


class _Finder(MetaPathFinder, Loader):
    """Makes the old modules; the last of sys.meta_path, so that it is asked only for what is not there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _OldModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        warnings.warn(f"{old} has moved to {MODULES[old]}; import it from there.", DeprecationWarning, stacklevel=2)


def install() -> None:
    """Let the old names be imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
