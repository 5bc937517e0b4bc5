"""The recipes, one a file. `RECIPES` maps the names that the command line takes to them."""

from finelu.preconditioners.ic0 import IC0
from finelu.preconditioners.ilu0 import ILU0
from finelu.preconditioners.jacobi import BlockJacobi, Jacobi

RECIPES = {"ilu0": ILU0, "ic0": IC0, "jacobi": Jacobi, "block_jacobi": BlockJacobi}

__all__ = ["IC0", "ILU0", "RECIPES", "BlockJacobi", "Jacobi"]
