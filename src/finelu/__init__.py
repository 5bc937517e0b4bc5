"""finelu: fine-grained parallel incomplete factorizations, triangular solves and Krylov methods on CPU and GPU.

A recipe makes factors, and factors precondition a Krylov method:

    import finelu as fl

    F = fl.ILU0().factor(A)
    solution = fl.gmres(A, b, M=F, rtol=1e-8)

Importing finelu is cheap: each name, and each module such as `finelu.ordering`, is loaded at first use. They are listed
in `__init__.pyi`.
"""

from importlib import import_module

__version__ = "0.2.0"

_SOURCES: dict[str, str] = {}  # name -> the module to import it from
with open(__file__ + "i", encoding="utf-8") as _stub:
    for _line in _stub:
        if _line.startswith("from "):  # from MODULE import NAME as NAME
            _, _module, _, _name, *_ = _line.split()
            _SOURCES[_name] = _module

_MODULES = [name for name, module in _SOURCES.items() if module == "finelu"]
# gallery is the only module in it: `from finelu import *` must not define an `io`.
__all__ = ["__version__", "gallery", *(name for name in _SOURCES if name not in _MODULES)]


def __getattr__(name: str) -> object:
    if name not in _SOURCES:
        from finelu.errors import meant

        text = f"module 'finelu' has no attribute {name!r}."
        hint = " Factors come from a recipe: finelu.SparseLU().factor(A), or finelu.ILU0().factor(A)."
        text += hint if name == "factor" else meant(name, __dir__())
        raise AttributeError(text, name=name, obj=None)  # obj: Python would suggest once more
    if name in _MODULES:
        return import_module(f"finelu.{name}")
    value = getattr(import_module(_SOURCES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({"__version__", *_SOURCES})
