"""`Solver`: complete factors as sfepy's linear solver "ls.finelu", which the import of this module registers."""

from __future__ import annotations

from typing import Any

from finelu.interop import scipy

try:
    from sfepy.solvers import register_solver
    from sfepy.solvers.ls import ScipySuperLU
except ImportError as error:
    raise ImportError("finelu.interop.sfepy needs sfepy: pip install sfepy.") from error


class Solver(ScipySuperLU):  # type: ignore[misc]
    """sfepy's "ls.scipy_superlu", with its parameters `use_presolve` and `use_mtx_digest`, by `finelu.spsolve` and, if
    `use_presolve`, `finelu.factorized`.

    In a problem file: `solvers = {"ls": ("ls.finelu", {}), ...}`. Matrices of one pattern share its analysis.
    """

    name = "ls.finelu"
    _parameters = ScipySuperLU._parameters

    def __init__(self, conf: Any, **keywords: Any):
        super().__init__(conf, **keywords)
        self.sls = scipy  # the module whose functions sfepy calls


register_solver(Solver)
