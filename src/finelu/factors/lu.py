"""LU factors: M = L U, where L has a unit diagonal."""

from __future__ import annotations

from typing import Any

from finelu.device import sparse_module
from finelu.factors.triangles import Solve, TriangularFactors
from finelu.matrix import lower_triangle


def _lower(trans: str) -> Solve:
    return Solve(lower=True, unit=True, trans=trans)


def _upper(trans: str) -> Solve:
    return Solve(lower=False, unit=False, trans=trans)


class LUFactors(TriangularFactors):
    """M = L U; L and U share one matrix, in A's order or, permuted, in that of `permutation`."""

    SOLVES = {
        "N": (_lower("N"), _upper("N")),
        "T": (_upper("T"), _lower("T")),
        "H": (_upper("H"), _lower("H")),
    }

    @property
    def L(self) -> Any:
        """(n, n) CSR on the device of A: the unit lower factor, its diagonal of ones stored."""
        self._require_valid()
        L, _ = lower_triangle(self._triangles)
        L.data[L.diag] = 1
        return L.tosparse()

    @property
    def U(self) -> Any:
        """(n, n) CSR on the device of A: the upper factor."""
        self._require_valid()
        return sparse_module(self._triangles.data).triu(self._triangles.tosparse(), format="csr")
