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

    def check(self) -> None:
        super().check()
        if self.drop_tol is not None:
            number("drop_tol", self.drop_tol, of=self)
        number("condest", self.condest, 1, infinite=True, of=self)
        if self.fill is not None:
            number("fill", self.fill, infinite=True, of=self)
        for name, least in (("parts", 1), ("dense_size", 0), ("levels", 1)):
            count(name, getattr(self, name), least, of=self)
        choice("ordering", self.ordering, ORDERINGS, of=self)
        flag("matching", self.matching, of=self)
        flag("symmetric", self.symmetric, optional=True, of=self)
        flag("low_memory", self.low_memory, optional=True, of=self)
        flag("definite", self.definite, of=self)
        choice("form", self.form, FORMS, of=self)
        if self.form == "independent" and (self.ordering != "auto" or self.parts != 1):
            raise ParameterError(
                f"{self!r}: independent sets have an order of their own; leave ordering and parts out."
            )
        if self.definite and self.symmetric is False:
            raise ParameterError(f"{self!r}: M is not symmetric with symmetric=False; leave it out for definite=True.")


def matrix_of(recipe: Settings, A: Any) -> CSR:
    """A as checked by `as_csr`; a ParameterError for what does not fit its device."""
    matrix = checked(recipe, A, diagonal=recipe.shift > 0)
    if recipe.form == "independent" and not on_gpu(matrix.data):
        raise ParameterError(f"{recipe!r}: independent sets are for an A on a GPU; leave form out.")
    methods = kernels_for(matrix.data).triangular.TRIANGULAR_METHODS
    choice("triangular", recipe.triangular, (*methods, "auto"), of=recipe)
    return matrix
