"""The recipes, one a file. `RECIPES` maps the names that the command line takes to them; `register` adds others."""

from finelu.preconditioners.block_ilu import BlockILU0, SingularBlock
from finelu.preconditioners.block_jacobi import BlockJacobi
from finelu.preconditioners.cpr import CPR
from finelu.preconditioners.direct import SparseLU
from finelu.preconditioners.ic0 import IC0
from finelu.preconditioners.icne import ICNE
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
from finelu.preconditioners.schwarz import Schwarz, rigid_body_modes
from finelu.preconditioners.sweeps import Sweeps

# finelu's own, from the cheapest set-up to the most expensive: the order in which help texts name them and `compare`
# measures them.
OWN: tuple[type[Recipe], ...] = (
    *(Jacobi, BlockJacobi, IC0, ILU0, MILU0, Schwarz, ParIC, ParILU, ILUK, ICT, ILUT, MultilevelILU, ParILUT, ParICT),
    *(BlockILU0, CPR, SparseLU),
)
for _kind in OWN:
    register(_kind)


__all__ = [
    "CPR",
    "IC0",
    "ICNE",
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
    "Schwarz",
    "SingularBlock",
    "SparseLU",
    "Sweeps",
    "recipe_name",
    "recipe_of",
    "register",
    "rigid_body_modes",
]
