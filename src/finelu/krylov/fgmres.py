"""The flexible generalized minimal residual method: GMRES with another preconditioner at each step."""

from __future__ import annotations

from typing import Any

from finelu.krylov.gmres import arnoldi
from finelu.krylov.loop import Loop
from finelu.krylov.method import Method
from finelu.result import Solution


class FGMRES(Method):
    """`gmres` for an M that may change from one application to the next, such as a solver or a function of a vector.

    Arguments as in `gmres`. The preconditioned vectors are kept: memory 2 restart + 7 vectors, and the vectors of a
    recorded iteration as in `gmres`. Each cycle applies M once less than in `gmres`.
    Source: Saad 1993; Saad 2003, Alg. 9.6.
    """

    restarts = True

    @classmethod
    def together(cls, options: dict[str, Any]) -> bool:
        return True

    @staticmethod
    def iterate(loop: Loop, *, restart: int | None = None, orthogonalization: str = "mgs") -> Solution:
        """Saad 2003, Alg. 9.6."""
        return arnoldi(loop, restart, orthogonalization, "flexible")


fgmres = FGMRES.solve
