"""MILU(0): modified incomplete LU without fill.

I. Gustafsson: A class of first order factorization methods, 1978; Y. Saad, Iterative Methods for Sparse Linear Systems,
2003, section 10.3.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finelu.device import namespace
from finelu.errors import ZeroPivot
from finelu.factors import LUFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.preconditioners.ilu0 import ILU0Elimination
from finelu.preconditioners.recipe import Recipe, checked
from finelu.validation import STORED, number

ADVICE = "Try relax=0.95 (or smaller), shift=1e-3 (or larger), a reordering of A, or another recipe."


@dataclass(frozen=True, kw_only=True, repr=False)
class MILU0(Recipe):
    """ILU(0) that adds the fill it drops to the diagonal: L U has the row sums of A, and A's entries off the diagonal.

    relax : the part of the dropped fill that is added, in [0, 1]; 0 is ILU0.
    shift, triangular, sweeps, precision : as in ILU0.
    variant : as in ILU0; on a GPU "adapt", "natural", "levs", "table" or "auto".
    Cost: as ILU0. On a GPU the dropped fill of a row is the difference of two sums, and has their rounding error.
    """

    keeps_symmetry, keeps_hermitian = True, False  # the sum of a row's dropped fill is complex, if A is
    precisions = STORED

    relax: float = 1.0
    shift: float = 0.0
    variant: str = "auto"
    triangular: str = "auto"
    sweeps: int | None = None
    precision: str | None = None

    def check(self) -> None:
        super().check()
        number("relax", self.relax, 0, 1, of=self)

    def factor(self, A: Any) -> LUFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError if A has no full diagonal; ZeroPivot, naming the row, if there are no factors.
        """
        A = checked(self, A).with_own_pattern()  # the factors have it, too
        numeric = _MILU0Elimination(self, A.with_values(namespace(A.data).empty(A.nnz, A.dtype)))
        return LUFactors(self, A, numeric, numeric.factorize(A), sweeps=self.sweeps)


class _MILU0Elimination(ILU0Elimination):
    """The same with the dropped fill added to the diagonal."""

    def _analyse(self, once: bool) -> Any:
        lu = self.factors
        return kernels_for(lu.data).elimination.milu0_analysis(lu, self.recipe.variant, once)

    def _start(self, A: CSR, *refusal: Any) -> Any:
        operands = self._values(A), float(self.recipe.relax), self.factors.data
        return kernels_for(A.data).elimination.milu0(self.plan, *operands, *refusal)

    def _broken(self, row: int) -> ZeroPivot:
        lu = self.factors
        return ZeroPivot(self.recipe, row, lu.data[lu.diag[row]], advice=ADVICE)
