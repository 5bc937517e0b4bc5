"""MultilevelILU: the recipe and its factors; the order of a level; a level; the rest, dense."""

from finelu.preconditioners.multilevel.recipe import MultilevelFactors, MultilevelILU

__all__ = ["MultilevelFactors", "MultilevelILU"]
