"""The recipes by their names: finelu's own, those that a program registers, and those of installed packages."""

from __future__ import annotations

from typing import Any, TypeVar

from finelu.errors import ParameterError
from finelu.factors import Factors
from finelu.preconditioners.recipe import Recipe
from finelu.registry import Registry

R = TypeVar("R", bound=type[Recipe])

RECIPES: Registry[Recipe] = Registry(Recipe, "recipe", "finelu.recipes", ("auto", "none", "solve", "splu", "spilu"))


def register(kind: R) -> R:
    """Make a recipe known by its `name`, to `solve`, `compare`, the command line and PETSc; returns it.

    For a class of your program, as a decorator or called. An installed package names its recipes in the entry-point
    group "finelu.recipes" instead, and need not be imported: `spai0 = "package.module:SPAI0"`, where the class has the
    name "spai0". `compare` works in a process of its own, which must be able to import the class.
    Raises ParameterError if `kind` is not a recipe, or if another recipe has its name.
    """
    known: R = RECIPES.register(kind)
    return known


def recipe_name(name: str, *others: str) -> str:
    """The key of RECIPES that `name` means, or one of `others`; a ParameterError that lists them for anything else.

    Names of classes are understood, too, and "_", "-" and the size of letters make no difference.
    """
    return RECIPES.key(name, *others)


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
