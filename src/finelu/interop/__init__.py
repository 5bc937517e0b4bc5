"""Interfaces of other packages: `scipy` (functions for SciPy's direct solvers), `torch`, `jax`, `lineax`, `pyamg`,
`petsc`, `fipy`, `pymatsolver` (and SimPEG), `devsim`, `opensees`, `sfepy`.

Each module needs only its own package, and is imported at its first use, such as `finelu.interop.torch`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

_MODULES = (
    "adjoint",
    "devsim",
    "fipy",
    "jax",
    "lineax",
    "opensees",
    "petsc",
    "pyamg",
    "pymatsolver",
    "scipy",
    "sfepy",
    "torch",
)


def __getattr__(name: str) -> ModuleType:
    from finelu.errors import meant

    if name not in _MODULES:
        text = f"module 'finelu.interop' has no attribute {name!r}."
        raise AttributeError(text + meant(name, _MODULES), name=name, obj=None)
    try:
        return import_module(f"finelu.interop.{name}")
    except ImportError as error:  # so that hasattr and completion find out, too; `import finelu.interop.torch` says it
        raise AttributeError(str(error), name=name, obj=None) from error


def __dir__() -> list[str]:
    return list(_MODULES)
