"""The recipes, one a file. `RECIPES` maps the names that the command line takes to them; `register` adds others."""

from finelu.preconditioners.block_ilu import BlockILU0, SingularBlock, correct
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
from finelu.preconditioners.registry import RECIPES, recipe_name, recipe_of, register

# finelu's own, in the order in which help texts and comparisons name them.
OWN: tuple[type[Recipe], ...] = (
    *(ILU0, IC0, ILUK, MILU0, ILUT, ICT, ParILU, ParIC, ParILUT, ParICT),
    *(MultilevelILU, Jacobi, BlockJacobi, BlockILU0, SparseLU),
)
for _kind in OWN:
    register(_kind)

HERMITIAN_RECIPES = tuple(kind.name for kind in OWN if kind.hermitian)
DEFINITE_RECIPES = tuple(kind.name for kind in OWN if kind.keeps_definite)

__all__ = [
    "DEFINITE_RECIPES",
    "HERMITIAN_RECIPES",
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
    "Recipe",
    "SingularBlock",
    "SparseLU",
    "correct",
    "recipe_name",
    "recipe_of",
    "register",
]
