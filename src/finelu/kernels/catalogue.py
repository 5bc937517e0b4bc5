"""The families of kernels: what each is for, and why a form of one is missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

FAMILIES = (
    "arnoldi",
    "blocks",
    "candidates",
    "crout",
    "crout_symmetric",
    "cycle",
    "elimination",
    "fill",
    "graph",
    "inspection",
    "levels",
    "matching",
    "memory",
    "pattern",
    "products",
    "recording",
    "recurrences",
    "scaling",
    "selection",
    "stencil",
    "sweeps",
    "threshold",
    "triangular",
    "vectors",
)


def family(package: str, name: str) -> ModuleType:
    """The module of a family, imported at first use; an AttributeError for any other name."""
    if name not in FAMILIES:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return import_module(f"{package}.{name}")
