"""MultilevelILU. recipe : its parameters.  factors : levels and a dense remainder.  level : one level.  independent :
a level by independent sets.  order : of a level.  dense : the remainder.  settings : what all of these are given."""

from finelu.preconditioners.multilevel.factors import MultilevelFactors
from finelu.preconditioners.multilevel.recipe import MultilevelILU

__all__ = ["MultilevelFactors", "MultilevelILU"]
