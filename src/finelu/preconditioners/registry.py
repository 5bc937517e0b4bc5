"""The recipes by their names: finelu's own, those that a program registers, and those of installed packages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from finelu.errors import ParameterError, meant, plain
from finelu.factors import Factors
from finelu.preconditioners.recipe import Recipe

GROUP = "finelu.recipes"
TAKEN = ("auto", "none", "solve", "splu", "spilu")  # other values of the same options

R = TypeVar("R", bound=type[Recipe])

_registered: dict[str, type[Recipe]] = {}


def register(kind: R) -> R:
    """Make a recipe known by its `name`, to `solve`, `compare`, the command line and PETSc; returns it.

    For a class of your program, as a decorator or called. An installed package names its recipes in the entry-point
    group "finelu.recipes" instead, and need not be imported: `spai0 = "package.module:SPAI0"`, where the class has the
    name "spai0". `compare` works in a process of its own, which must be able to import the class.
    Raises ParameterError if `kind` is not a recipe, or if another recipe has its name.
    """
    if not (isinstance(kind, type) and issubclass(kind, Recipe)):
        raise ParameterError(f"register takes a subclass of finelu.Recipe, not {kind!r}.")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", kind.name):
        raise ParameterError(f"{kind.__name__}: name={kind.name!r} is not allowed; use small letters, digits and _.")
    known = _registered.get(kind.name)
    spelt = {plain(kind.name), plain(kind.__name__)}
    others = {
        plain(word) for other in _registered.values() if other is not known for word in (other.name, other.__name__)
    }
    same_place = known is not None and (known.__module__, known.__qualname__) == (kind.__module__, kind.__qualname__)
    if kind.name in TAKEN or spelt & others or (known is not None and not same_place):
        raise ParameterError(f"{kind.__name__}: the name {kind.name!r} is taken; give the class another `name`.")
    _registered[kind.name] = kind
    return kind


@cache
def _installed() -> dict[str, EntryPoint]:
    """The recipes of installed packages; none is imported."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _registered}


def _loaded(point: EntryPoint) -> type[Recipe]:
    try:
        kind = point.load()
    except Exception as error:
        raise ParameterError(
            f"the recipe {point.name!r} of {point.value} cannot be loaded: {type(error).__name__}: {error}."
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Recipe) and kind.name == point.name):
        raise ParameterError(
            f"the recipe {point.name!r} of {point.value} is {kind!r}; a subclass of finelu.Recipe with this `name` is "
            "needed."
        )
    return kind


class _Recipes(Mapping[str, type[Recipe]]):
    """Name -> class; those of installed packages are imported when they are looked up."""

    def __getitem__(self, name: str) -> type[Recipe]:
        if name not in _registered and name in _installed():
            register(_loaded(_installed()[name]))
        return _registered[name]

    def __iter__(self) -> Iterator[str]:
        yield from list(_registered)
        yield from (name for name in _installed() if name not in _registered)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in _registered or name in _installed()

    def __repr__(self) -> str:
        return f"<recipes: {', '.join(self)}>"


RECIPES: Mapping[str, type[Recipe]] = _Recipes()


def recipe_name(name: str, *others: str) -> str:
    """The key of RECIPES that `name` means, or one of `others`; a ParameterError that lists them for anything else.

    Names of classes are understood, too, and "_", "-" and the size of letters make no difference.
    """
    known = {plain(kind.__name__): key for key, kind in _registered.items()}
    known |= {plain(key): key for key in (*RECIPES, *others)}
    if plain(name) in known:
        return known[plain(name)]
    offered = (*others, *RECIPES)
    raise ParameterError(
        f"there is no recipe {name!r}; one of {', '.join(offered)} is needed."
        + meant(name, (*(kind.__name__ for kind in _registered.values()), *offered))
    )


def recipe_of(given: Any, *others: str) -> Any:
    """The recipe that `given` means: itself, the default one of its class or name; for one of `others`, this name.

    Raises ParameterError for anything else.
    """
    if isinstance(given, Recipe):
        return given
    if isinstance(given, type) and issubclass(given, Recipe):
        return given()
    if isinstance(given, str):
        name = recipe_name(given, *others)
        return name if name in others else RECIPES[name]()
    if isinstance(given, Factors):
        raise ParameterError(f"recipe is {given!r}, made already; give them to a Krylov method: gmres(A, b, M=F).")
    raise ParameterError(
        f"recipe is of type {type(given).__name__}; a recipe such as finelu.ILU0() or a name, one of "
        f"{', '.join((*others, *RECIPES))}, is needed."
    )
