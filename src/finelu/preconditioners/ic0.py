"""IC(0): incomplete Cholesky without fill, for Hermitian positive definite matrices.

J. A. Meijerink, H. A. van der Vorst 1977; on the GPU the row-wise synchronization-free elimination of M. Freire,
E. Dufrechou, P. Ezzatti: A synchronization-free incomplete LU factorization for GPUs with level-set analysis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finelu.device import namespace
from finelu.errors import ZeroPivot
from finelu.factors import CholeskyFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import lower_triangle
from finelu.matrix.batch import Batch
from finelu.matrix.hermitian import require_hermitian
from finelu.preconditioners.batch import Prepared, own_plan
from finelu.preconditioners.elimination import Elimination
from finelu.preconditioners.recipe import Recipe, checked, shifted
from finelu.validation import STORED


@dataclass(frozen=True, kw_only=True, repr=False)
class IC0(Recipe):
    """Incomplete Cholesky without fill: (L L^H)_ij = A_ij wherever the lower triangle of A stores an entry.

    A is Hermitian; only its lower triangle is factored. Two entries that should be conjugates may differ by 1e-6 (1e-3
    in single precision) times the larger of them, or times the root of the product of their rows' diagonal entries; the
    report has a warning if the difference exceeds 1000 roundings.
    shift, triangular, sweeps, precision : as in ILU0.  variant : as in ILU0, without "shared" and "vect".
    Cost: for each entry (i, j) of the lower triangle the length of row j; half the memory of ILU0.
    """

    batched = ("shift",)
    hermitian = keeps_symmetry = keeps_definite = True
    precisions = STORED

    shift: float = 0.0
    variant: str = "auto"
    triangular: str = "auto"
    sweeps: int | None = None
    precision: str | None = None

    def factor(self, A: Any) -> CholeskyFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError if A has no full diagonal or is not Hermitian; ZeroPivot, naming the row, if a pivot is not
        positive: A is not positive definite, or it is but has no incomplete factorization, where a shift helps.
        """
        A = checked(self, A)
        lower, places = lower_triangle(A)
        numeric = _IC0Elimination(self, lower, places)
        return CholeskyFactors(self, A, numeric, numeric.factorize(A), sweeps=self.sweeps)

    def prepared(self, batch: Batch) -> Prepared:
        """That of ILU0: for a Hermitian A it is L D L^H with the M of the Cholesky factors, in twice their memory."""
        return own_plan(batch, self.shift)


class _IC0Elimination(Elimination):
    """L on the pattern of the lower triangle, whose values are at `places` of A's."""

    def __init__(self, recipe: IC0, lower: CSR, places: Any):
        super().__init__(recipe, lower.with_values(namespace(lower.data).empty(lower.nnz, lower.dtype)))
        self._places = places
        self._given = None if recipe.shift else lower.data  # of the A that is factored first

    def _analyse(self, once: bool) -> Any:
        L = self.factors
        return kernels_for(L.data).elimination.ic0_analysis(L, self.recipe.variant, once)

    def _eliminate(self, A: CSR) -> None:
        self.report.warning = require_hermitian(self.recipe, A) or None
        kernels = kernels_for(A.data)
        values, self._given = self._given, None
        if values is None:
            values = kernels.vectors.gather(shifted(A, self.recipe.shift), self._places)
        bad = kernels.vectors.first_bad(kernels.elimination.ic0(self.plan, values, self.factors.data))
        if bad >= 0:
            raise self._broken(bad)

    def _broken(self, row: int) -> ZeroPivot:
        return ZeroPivot(self.recipe, row, "not a positive number", "a Cholesky factorization needs")
