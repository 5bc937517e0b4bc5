"""Recipes on the command line: made from text as their fields declare, and listed in the help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import typer.core

from finelu.errors import ParameterError, meant

if TYPE_CHECKING:
    from finelu.preconditioners.recipe import Recipe


def named_values(settings: Sequence[str]) -> dict[str, str]:
    """name -> value of settings such as "shift=1e-3"."""
    pairs = [setting.partition("=") for setting in settings]
    for name, equals, _ in pairs:
        if not equals:
            raise ParameterError(f"--set {name}: NAME=VALUE is needed, as in --set shift=1e-3.")
    return {name.replace("-", "_"): value for name, _, value in pairs}


def recipe_from_text(name: str, parameters: dict[str, str]) -> Recipe | None:
    """The recipe of this name, a key of RECIPES, with these parameters; None for "none"."""
    from finelu.preconditioners import RECIPES

    kind: Any = RECIPES.get(name)
    hints = {} if kind is None else get_type_hints(kind)
    names = [] if kind is None else [field.name for field in fields(kind)]
    for parameter in parameters:
        if parameter not in names:
            raise ParameterError(
                f"recipe {name} has no parameter {parameter!r}; it has {', '.join(names) if names else 'none'}."
                + meant(parameter, names)
            )
    values = {key: _converted(key, text, hints[key]) for key, text in parameters.items()}
    return None if kind is None else kind(**values)


def _converted(name: str, text: str, hint: Any) -> Any:
    from finelu.preconditioners.recipe import value_of

    try:
        return value_of(text, hint)
    except ValueError:
        kinds = get_args(hint) or (hint,)
        names = " or ".join("an array, in Python," if k is Any else getattr(k, "__name__", str(k)) for k in kinds)
        names = names.replace("Sweeps", "a list such as initial=scaled,update=2,")
        raise ParameterError(f"{name}={text!r}; {names} is needed.") from None


class RecipeHelp(typer.core.TyperCommand):
    """A command whose help lists the recipes, their parameters and the methods; only the help imports them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from finelu.krylov import METHODS
        from finelu.preconditioners import RECIPES

        parameters = {name: [field.name for field in fields(kind)] for name, kind in RECIPES.items()}
        lists = {"recipe": ", ".join(RECIPES), "recipes": ", ".join(RECIPES), "method": ", ".join(sorted(METHODS))}
        for option in self.params:
            owners = [name for name in RECIPES if option.name in parameters[name]]
            names = lists.get(option.name or "") or ", ".join(owners)
            if isinstance(option, typer.core.TyperOption) and option.help:
                option.help = option.help.replace("{names}", names)
        super().format_help(ctx, formatter)
