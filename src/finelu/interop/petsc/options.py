"""The recipe and the device that PETSc's options ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

from petsc4py import PETSc

from finelu.errors import ParameterError, meant
from finelu.preconditioners import ILU0, RECIPES
from finelu.preconditioners.recipe import value_of

ANY_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
TRUE, FALSE = ("", "1", "true", "yes", "on"), ("0", "false", "no", "off")
OF_TYPE = {int: "an integer", float: "a number", bool: "true or false", str: "a name", type(None): "none"}
OF_FIELDS = "a list such as initial=scaled,update=2"
# Prefixes of solvers inside another preconditioner.
INNER = re.compile(r"(sub|coarse|mg_levels_\d+|mg_fine|mg_coarse|fieldsplit_\w+)_$")
SMOOTHER = re.compile(r"mg_levels_\d+_(sub_)?$")
NUMBER = re.compile(r"(?<=_)\d+_")  # what PETSc leaves out of a prefix in search of options that hold for all levels


def from_options(prefix: str, recipe: Any, device: str) -> tuple[Any, str]:
    """The recipe and the device that `-<prefix>finelu_*` ask for; options that are not given leave them as they are.

    Any recipe of `finelu.preconditioners.RECIPES` can be named, and any of its fields set.
    """
    given: dict[str, str] = {}
    named: dict[str, str] = {}  # the options as the user writes them
    for place in reversed(list(prefixes(prefix))):
        options = PETSc.Options(f"{place}finelu_")
        for key in options.getAll():
            given[key] = options.getString(key, "")  # which marks the option as used
            named[key] = f"-{place}finelu_{key}"
    device = checked_device(named.get("device", "device"), given.pop("device", device))
    name = given.pop("recipe", None)
    if name is not None and name not in RECIPES:
        raise ParameterError(
            f"{named['recipe']} {name}: no such recipe; one of {', '.join(RECIPES)} is needed." + meant(name, RECIPES)
        )
    if name is None:
        recipe = ILU0() if recipe is None else recipe
        name = recipe.name
    elif type(recipe) is not RECIPES[name]:
        recipe = RECIPES[name]()
    hints = get_type_hints(type(recipe))
    offered = [field.name for field in fields(recipe)]
    for key in given:
        if key not in offered:
            known = ", ".join(f"-{prefix}finelu_{key}" for key in ("recipe", "device", *offered))
            raise ParameterError(f"{named[key]}: no such option with recipe {name}; there are {known}.")
    values = {key: _converted(named[key], text, hints[key]) for key, text in given.items()}
    return replace(recipe, **values), device


def checked_device(name: str, device: str) -> str:
    if not isinstance(device, str) or not ANY_DEVICE.fullmatch(device):
        raise ParameterError(f"{name} {device}: cpu, cuda or cuda:<number> is needed.")
    return device


def prefixes(prefix: str) -> Iterator[str]:
    """Where PETSc looks for an option, in its order: "mg_levels_1_sub_", then "mg_levels_sub_"."""
    yield prefix
    for number in NUMBER.finditer(prefix):
        yield from prefixes(prefix[: number.start()] + prefix[number.end() :])


def in_chebyshev(prefix: str) -> bool:
    """Whether the options of this prefix say that the PC smooths by Chebyshev's method, multigrid's default."""
    smoother = SMOOTHER.search(prefix) is not None
    return smoother and PETSc.Options(prefix.removesuffix("sub_")).getString("ksp_type", "chebyshev") == "chebyshev"


def is_inner(prefix: str) -> bool:
    """Whether a PC of this prefix belongs to a solver inside another preconditioner."""
    return INNER.search(prefix) is not None


def _converted(option: str, text: str, hint: Any) -> Any:
    kinds = get_args(hint) or (hint,)
    try:
        if not text and bool not in kinds:
            raise ValueError(text)
        return value_of(text, hint, TRUE, FALSE)
    except ValueError:
        names = (OF_TYPE.get(kind) or OF_FIELDS for kind in kinds if kind is not Any)
        raise ParameterError(f"{option} {text}: {' or '.join(names)} is needed.") from None
