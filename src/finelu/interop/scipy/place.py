"""`install`: finelu's functions as those of scipy.sparse.linalg, for programs that cannot be edited."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections import Counter
from types import ModuleType
from typing import Any

import scipy.sparse.linalg

from finelu.errors import WrongType
from finelu.interop.scipy.direct import factorized, splu, spsolve
from finelu.interop.scipy.ilut import spilu
from finelu.interop.scipy.triangular import spsolve_triangular

DIRECT = (spsolve, splu, spilu, factorized, spsolve_triangular)
METHODS = ("bicg", "bicgstab", "cg", "gmres", "minres", "lsmr", "lsqr")
OF_SCIPY = {name: getattr(scipy.sparse.linalg, name) for name in (*METHODS, *(f.__name__ for f in DIRECT))}


NAMED = 4  # modules that a warning names

Place = tuple[ModuleType, str]  # a name of a module
_turn = threading.Lock()
_before: dict[Place, Any] = {}  # SciPy's functions that are replaced
_users: Counter[Place] = Counter()  # how many `Installed` replace them


class Installed:
    """finelu's functions as those of SciPy, until `undo` or the end of a `with`.

    There may be several at a time, also in several threads; the end of the last one puts SciPy's functions back.
    replaced : the names that are finelu's meanwhile, such as "scipy.sparse.linalg.spsolve".
    """

    def __init__(self, modules: tuple[ModuleType, ...]):
        from finelu.interop.scipy import iterative  # only here: the import of the Krylov methods takes 0.1 s

        self._places: list[Place] = []
        of_finelu = {function.__name__: function for function in DIRECT}
        of_finelu |= {name: getattr(iterative, name) for name in METHODS}
        with _turn:
            for module in dict.fromkeys((scipy.sparse.linalg, *modules)):
                for name, value in list(vars(module).items()):
                    place = module, name
                    known = next((key for key, function in OF_SCIPY.items() if value is function), None)
                    if known is not None:
                        _before[place] = value
                        setattr(module, name, of_finelu[known])
                    if place in _before:
                        _users[place] += 1
                        self._places.append(place)
        self.replaced = tuple(f"{module.__name__}.{name}" for module, name in self._places)

    def undo(self) -> None:
        """Put SciPy's functions back, unless another `Installed` still replaces them. A second call does nothing."""
        with _turn:
            while self._places:
                place = self._places.pop()
                _users[place] -= 1
                if not _users[place]:
                    setattr(*place, _before.pop(place))

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"Installed({', '.join(self.replaced)})" if self._places else "Installed(undone)"


def install(*modules: ModuleType) -> Installed:
    """Replace functions of `scipy.sparse.linalg` by finelu's, for programs that cannot be edited.

    These are spsolve, splu, spilu, factorized, spsolve_triangular, and the Krylov methods bicg, bicgstab, cg, gmres and
    minres, with SciPy's results (x, info) and SciPy's meaning of maxiter and callback of gmres; lsmr and lsqr, with
    SciPy's tuples. What a method of finelu refuses and SciPy's does not, such as cg an indefinite A, goes to SciPy's
    own.
    modules : modules that were imported before, and took SciPy's functions by `from scipy.sparse.linalg import ...`:
        they keep these, unless they are given here. A package is not its submodules: give these. There is a warning for
        a module that has none of SciPy's functions. Functions that a program keeps elsewhere, such as in a dict or as a
        default argument, are not reached.
    Returns an object that undoes it, at the end of a `with` or by `undo()`; if there are several, the last one does.
    Modules that are imported meanwhile by `from scipy.sparse.linalg import ...` keep finelu's. The change holds for all
    threads of the process.
    """
    for module in modules:
        if not inspect.ismodule(module):
            raise WrongType(f"install takes modules, not a {type(module).__name__}.")
    for module in modules:
        if not _holds_any(module):
            loaded, start = list(sys.modules.items()), f"{module.__name__}."
            inside = sorted(name for name, other in loaded if name.startswith(start) and _holds_any(other))
            more = ", ..." if len(inside) > NAMED else ""
            instead = f" install({', '.join(inside[:NAMED])}{more}) reaches those that do." if inside else ""
            warnings.warn(f"{module.__name__} holds none of SciPy's solvers.{instead}", stacklevel=2)
    return Installed(modules)


def _holds_any(module: Any) -> bool:
    """Whether a module holds one of SciPy's functions that finelu replaces, or finelu's own that is in its place."""
    now = {name: getattr(scipy.sparse.linalg, name) for name in OF_SCIPY}
    known = {id(function) for functions in (OF_SCIPY, now) for function in functions.values()}
    return not known.isdisjoint(map(id, getattr(module, "__dict__", {}).values()))
