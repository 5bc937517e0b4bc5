"""The recipes, one a file. `RECIPES` maps the names that the command line takes to them."""

from importlib import import_module
from typing import Any

from finelu.errors import ParameterError, meant, plain
from finelu.factors import Factors
from finelu.preconditioners.block_ilu import BlockILU0, SingularBlock
from finelu.preconditioners.block_jacobi import BlockJacobi
from finelu.preconditioners.direct import SparseLU
from finelu.preconditioners.ic0 import IC0
from finelu.preconditioners.ict import ICT
from finelu.preconditioners.ilu0 import ILU0
from finelu.preconditioners.iluk import ILUK
from finelu.preconditioners.ilut import ILUT
from finelu.preconditioners.jacobi import Jacobi
from finelu.preconditioners.milu0 import MILU0
from finelu.preconditioners.multilevel import MultilevelILU
from finelu.preconditioners.parilu import ParIC, ParILU
from finelu.preconditioners.parilut import ParICT, ParILUT
from finelu.preconditioners.recipe import Recipe

# From the cheapest set-up to the dearest: the order in which `compare` measures them.
RECIPES = {
    "jacobi": Jacobi,
    "block_jacobi": BlockJacobi,
    "ic0": IC0,
    "ilu0": ILU0,
    "milu0": MILU0,
    "paric": ParIC,
    "parilu": ParILU,
    "iluk": ILUK,
    "ict": ICT,
    "ilut": ILUT,
    "multilevel": MultilevelILU,
    "parilut": ParILUT,
    "parict": ParICT,
    "block_ilu0": BlockILU0,
    "sparse_lu": SparseLU,
}

# Hermitian positive for a Hermitian positive A, and so fit for cg; the first four look at one triangle of A alone.
HERMITIAN_RECIPES = ("ic0", "ict", "paric", "parict")
DEFINITE_RECIPES = (*HERMITIAN_RECIPES, "jacobi", "block_jacobi")
HOST_RECIPES = ("sparse_lu",)  # factored and applied on the CPU, wherever A lives


def recipe_name(name: str, *others: str) -> str:
    """The key of RECIPES that `name` means, or one of `others`; a ParameterError that lists them for anything else.

    Names of classes are understood, too, and "_", "-" and the size of letters make no difference.
    """
    known = {plain(kind.__name__): key for key, kind in RECIPES.items()}
    known |= {plain(key): key for key in (*RECIPES, *others)}
    if plain(name) in known:
        return known[plain(name)]
    offered = (*others, *RECIPES)
    raise ParameterError(
        f"there is no recipe {name!r}; one of {', '.join(offered)} is needed."
        + meant(name, (*(kind.__name__ for kind in RECIPES.values()), *offered))
    )


def recipe_of(given, *others: str):
    """The recipe that is meant: `given` itself, the default one of its class, or that of a name; of `others` the name.

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


def __getattr__(name: str) -> Any:
    if name == "correct":  # its place of before
        return import_module("finelu.krylov.richardson").correct
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


__all__ = [
    "DEFINITE_RECIPES",
    "HERMITIAN_RECIPES",
    "HOST_RECIPES",
    "IC0",
    "ICT",
    "ILU0",
    "ILUK",
    "ILUT",
    "MILU0",
    "RECIPES",
    "BlockILU0",
    "BlockJacobi",
    "Jacobi",
    "MultilevelILU",
    "ParIC",
    "ParICT",
    "ParILU",
    "ParILUT",
    "SingularBlock",
    "SparseLU",
    "recipe_name",
    "recipe_of",
]
