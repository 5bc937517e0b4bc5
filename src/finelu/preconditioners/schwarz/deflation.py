"""The balanced form for residuals that the coarse space does not see: one product with E^-1 instead of two."""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.device import namespace
from finelu.matrix.vectors import norm


class Deflated:
    """z = P^H M^-1 r + Q r, for factors of the balanced form P^H M^-1 P + Q: the same vector wherever Z^H r = 0.

    That is so in cg for all residuals after one with Z^H r = 0, as z is orthogonal in A to what Z spans (J. M. Tang,
    R. Nabben, C. Vuik, Y. A. Erlangga, 2009, section 3.3 and A-DEF2 there: Q r takes out what rounding brings in).
    """

    def __init__(self, factors: Any):
        self._factors = factors

    def start(self, A: Any, x: Any, r: Any) -> bool:
        """x += Q r, r -= A Q r, for r = b - A x. Whether Z^H r = 0 afterwards: not where the factors are of another A.

        Waits for a GPU.
        """
        coarse = self._factors.coarse
        step = namespace(r).zeros_like(r)
        coarse.prolong(coarse.solve(coarse.restrict(r)), step)
        x += step
        r -= A @ step
        return norm(coarse.restrict(r)) <= float(np.sqrt(np.finfo(r.dtype).eps)) * norm(r)

    def __matmul__(self, r: Any) -> Any:
        coarse = self._factors.coarse
        z = namespace(r).empty_like(r)
        self._factors.local_solve(r, z)
        # z + Z E^-1 (Z^H r - (A Z)^H z)
        coarse.prolong(coarse.solve(coarse.restrict(r) - coarse.moments(z)), z)
        return z
