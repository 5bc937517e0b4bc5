"""The recipes, one a file. `RECIPES` maps the names that the command line takes to them."""

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

RECIPES = {
    "ilu0": ILU0,
    "ic0": IC0,
    "iluk": ILUK,
    "milu0": MILU0,
    "ilut": ILUT,
    "ict": ICT,
    "parilu": ParILU,
    "paric": ParIC,
    "parilut": ParILUT,
    "parict": ParICT,
    "multilevel": MultilevelILU,
    "jacobi": Jacobi,
    "block_jacobi": BlockJacobi,
    "block_ilu0": BlockILU0,
    "sparse_lu": SparseLU,
}

# Hermitian positive for a Hermitian positive A, and so fit for cg; the first four look at one triangle of A alone.
HERMITIAN_RECIPES = ("ic0", "ict", "paric", "parict")
DEFINITE_RECIPES = (*HERMITIAN_RECIPES, "jacobi", "block_jacobi")

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
    "SingularBlock",
    "SparseLU",
    "correct",
]
