"""Jacobi: the baseline that every other recipe has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finelu.device import namespace, on_gpu
from finelu.errors import ZeroPivot
from finelu.factors import Factors
from finelu.kernels.operands import CSR
from finelu.matrix import as_csr, checked_csr
from finelu.matrix.batch import Batch
from finelu.preconditioners.batch import Prepared, block_diagonal_plan
from finelu.preconditioners.block_jacobi import times, times_into
from finelu.preconditioners.recipe import Recipe


@dataclass(frozen=True, kw_only=True, repr=False)
class Jacobi(Recipe):
    """M = diag(A). Cost: O(n), fully parallel. Source: Saad 2003, section 4.1."""

    batched = ()
    keeps_symmetry = keeps_definite = True

    def factor(self, A: Any) -> JacobiFactors:
        """Raises MatrixError if A has no full diagonal; ZeroPivot, naming the row, if a diagonal entry is 0."""
        return JacobiFactors(self, as_csr(A))

    def prepared(self, batch: Batch) -> Prepared:
        """On the diagonal alone."""
        return block_diagonal_plan(batch, checked_csr(batch.pattern), 1)


class JacobiFactors(Factors):
    """M = diag(A), kept as its reciprocal."""

    well_formed = capturable = True

    def __init__(self, recipe: Jacobi, A: CSR):
        super().__init__(recipe, A)
        self._refresh(A)

    def _refresh(self, A: CSR) -> None:
        xp = namespace(A.data)
        d = A.data[A.diag]
        bad = xp.flatnonzero(abs(d) < xp.finfo(A.dtype).tiny)
        if bad.size:
            raise ZeroPivot(self.recipe, int(bad[0]), d[bad[0]])
        self._inverse = 1 / d

    def _apply(self, R: Any, trans: str) -> Any:
        inverse = self._inverse.conj() if trans == "H" else self._inverse
        if on_gpu(R) or (R.ndim == 1 and R.dtype.kind != "c"):  # a complex product has bits of its own in each library
            return R * (inverse if R.ndim == 1 else inverse[:, None])
        return times(inverse[:, None, None], R, "N")

    def _apply_into(self, R: Any, trans: str, out: Any) -> None:
        if R.ndim == 1 or on_gpu(R):
            super()._apply_into(R, trans, out)
            return
        inverse = self._inverse.conj() if trans == "H" else self._inverse
        times_into(inverse[:, None, None], R, "N", out)

    @property
    def nnz(self) -> int:
        return self.shape[0]
