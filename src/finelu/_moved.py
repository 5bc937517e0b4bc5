"""What has moved can be imported by its old name, with a DeprecationWarning. Loaded with finelu: keep it light."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

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
    "finelu.kernels.csr": "finelu.kernels.operands",
    "finelu.kernels.triangle": "finelu.kernels.operands",
}
NAMES = {  # old name : new name, where a module is still there, or its new one does not have the name
    "finelu.preconditioners.correct": "finelu.krylov.richardson.correct",
    "finelu.preconditioners.block_ilu.correct": "finelu.krylov.richardson.correct",
    "finelu.interop.petsc_solve.solve_mtx": "finelu.interop.petsc.solve.solve_mtx",
    **{
        f"finelu.properties.{name}": f"finelu.matrix.traits.{name}"
        for name in ("asymmetry", "block_size", "diagonal", "is_hermitian", "require_hermitian", "symmetry")
    },
}


def named(module: str, name: str) -> object:
    """What `module` once had under this name; for its `__getattr__`. An AttributeError if that was nothing."""
    new = NAMES.get(f"{module}.{name}")
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    home, _, name = new.rpartition(".")
    return getattr(import_module(home), name)


class _OldModule(ModuleType):
    """Stands for a module that has moved: its attributes are those of the new one."""

    def __getattr__(self, name: str) -> object:
        if f"{self.__name__}.{name}" in NAMES:
            return named(self.__name__, name)
        if name == "__all__":
            return [public for public in dir(self) if not public.startswith("_")]
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(MODULES[self.__name__]), name)

    def __dir__(self) -> list[str]:
        return dir(import_module(MODULES[self.__name__]))


class _Finder:
    """Makes the old modules; the last of sys.meta_path, so that it is asked only for what is not there."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> _OldModule:
        return _OldModule(spec.name)

    def exec_module(self, module: _OldModule) -> None:
        warn(module.__name__, 2)


def warn(old: str, above: int) -> None:
    """Say that a module has moved, to the caller that is `above` frames above."""
    import warnings

    warnings.warn(f"{old} has moved to {MODULES[old]}; import it from there.", DeprecationWarning, stacklevel=above + 1)


def module(old: str) -> ModuleType:
    """The old module, for the `__getattr__` of the package that it was in; the warning goes to who asked for it."""
    import warnings

    warn(old, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module(old)


if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.append(_Finder())
