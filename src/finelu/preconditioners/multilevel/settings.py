"""The parameters of MultilevelILU, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finelu.device import on_gpu
from finelu.errors import (
    ParameterError,
)
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.ordering import ORDERINGS
from finelu.preconditioners.recipe import ON_CPU, Recipe, checked
from finelu.validation import choice, count, flag, number

FORMS = ("auto", "crout", "independent")


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings(Recipe):
    """The parameters and facts of `MultilevelILU`, which explains them, for the modules that it consists of."""

    keeps_symmetry = True
    full_diagonal = False

    drop_tol: float | None = None
    condest: float = 20.0
    fill: float | None = None
    ordering: str | None = "auto"
    matching: bool = True
    symmetric: bool | None = None
    definite: bool = False
    low_memory: bool | None = None
    parts: int = 1
    form: str = "auto"
    dense_size: int = 500
    levels: int = 30
    shift: float = 0.0
    triangular: str = "auto"
    precision: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "crout":
            object.__setattr__(self, "factored_on", ON_CPU)


def matrix_of(recipe: Settings, A: Any) -> CSR:
    if recipe.drop_tol is not None:
        number("drop_tol", recipe.drop_tol, of=recipe)
    number("condest", recipe.condest, 1, infinite=True, of=recipe)
    if recipe.fill is not None:
        number("fill", recipe.fill, infinite=True, of=recipe)
    number("shift", recipe.shift, of=recipe)
    for name, least in (("parts", 1), ("dense_size", 0), ("levels", 1)):
        count(name, getattr(recipe, name), least, of=recipe)
    choice("ordering", recipe.ordering, ORDERINGS, of=recipe)
    flag("matching", recipe.matching, of=recipe)
    flag("symmetric", recipe.symmetric, optional=True, of=recipe)
    flag("low_memory", recipe.low_memory, optional=True, of=recipe)
    flag("definite", recipe.definite, of=recipe)
    choice("form", recipe.form, FORMS, of=recipe)
    if recipe.form == "independent" and (recipe.ordering != "auto" or recipe.parts != 1):
        raise ParameterError(f"{recipe!r}: independent sets have an order of their own; leave ordering and parts out.")
    if recipe.definite and recipe.symmetric is False:
        raise ParameterError(f"{recipe!r}: M is not symmetric with symmetric=False; leave it out for definite=True.")
    matrix = checked(recipe, A, diagonal=recipe.shift > 0)
    if recipe.form == "independent" and not on_gpu(matrix.data):
        raise ParameterError(f"{recipe!r}: independent sets are for an A on a GPU; leave form out.")
    methods = kernels_for(matrix.data).triangular.TRIANGULAR_METHODS
    choice("triangular", recipe.triangular, (*methods, "auto"), of=recipe)
    return matrix
