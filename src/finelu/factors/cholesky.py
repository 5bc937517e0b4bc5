"""Cholesky factors: M = L L^H, Hermitian and positive definite."""

from __future__ import annotations

from typing import Any

from finelu.factors.triangles import Solve, TriangularFactors


class CholeskyFactors(TriangularFactors):
    """M = L L^H; the solve with L^H uses the transposed pattern of L, analysed once. `nnz` counts L alone."""

    SOLVES = dict.fromkeys("NTH", (Solve(lower=True, unit=False, trans="N"), Solve(lower=True, unit=False, trans="H")))
    CONJUGATED = "T"  # M = M^H, so M^T = conj(M)

    @property
    def L(self) -> Any:
        """(n, n) CSR on the device of A: the Cholesky factor."""
        self._require_valid()
        return self._triangles.tosparse().copy()

    @property
    def U(self) -> Any:
        """(n, n) CSR on the device of A: L^H."""
        return self.L.conj().T.tocsr()
