"""IC(0): incomplete Cholesky without fill, for Hermitian positive definite matrices.

J. A. Meijerink, H. A. van der Vorst 1977; on the GPU the row-wise synchronization-free elimination of M. Freire,
E. Dufrechou, P. Ezzatti: A synchronization-free incomplete LU factorization for GPUs with level-set analysis.
"""

from __future__ import annotations

from dataclasses import dataclass

from finelu.device import namespace
from finelu.errors import ZeroPivot
from finelu.factors import TriangularFactors, checked, shifted
from finelu.kernels import kernels_for
from finelu.matrix import CSR, lower_triangle
from finelu.matrix.traits import require_hermitian
from finelu.preconditioners.recipe import Recipe


@dataclass(frozen=True, kw_only=True, repr=False)
class IC0(Recipe):
    """Incomplete Cholesky without fill: (L L^H)_ij = A_ij wherever the lower triangle of A stores an entry.

    A is Hermitian; the lower triangle is what is factored. Two entries that should be conjugates may differ by 1e-6
    (1e-3 in single precision) of the larger of them, or of the root of their rows' diagonal entries' product; the
    report has a warning where that is more than 1000 roundings.
    shift, triangular, sweeps, precision : as in ILU0.  variant : as in ILU0, without "shared" and "vect".
    Cost: for each entry (i, j) of the lower triangle the length of row j; half the memory of ILU0.
    """

    shift: float = 0.0
    variant: str = "auto"
    triangular: str = "auto"
    sweeps: int | None = None
    precision: str | None = None

    def factor(self, A) -> IC0Factors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError where A has no full diagonal or is not Hermitian, ZeroPivot, naming the row, where a pivot is
        not positive: A is not positive definite, or is, but has no incomplete factorization; a shift helps then.
        """
        return IC0Factors(self, checked(self, A))


class IC0Factors(TriangularFactors):
    """M = L L^H; the solve with L^H uses the transposed pattern of L, analysed once."""

    def __init__(self, recipe: IC0, A: CSR):
        super().__init__(recipe, A)
        self._lower, self._places = lower_triangle(A)
        self._triangles = self._lower.with_values(namespace(A.data).empty(self._lower.nnz, A.dtype))
        self._refresh(A)

    def _analyse(self, once: bool):
        return kernels_for(self.pattern.data).elimination.ic0_analysis(self._lower, self.recipe.variant, once)

    def _factorize(self, A: CSR) -> None:
        self.report.pop("warning", None)
        unlike = require_hermitian(self.recipe, A)
        if unlike:
            self._warn(unlike)
        kernels, values = kernels_for(A.data), self._triangles.data
        bad = kernels.vectors.first_bad(
            kernels.elimination.ic0(self._plan, shifted(A, self.recipe.shift)[self._places], values)
        )
        if bad >= 0:
            raise ZeroPivot(self.recipe, bad, "not a positive number", "a Cholesky factorization needs")

    def _sequence(self, trans: str):
        return (True, False, "N"), (True, False, "H")

    def _apply(self, R, trans: str):
        if trans == "T" and self.dtype.kind == "c":  # M is Hermitian, so M^T = conj(M)
            return super()._apply(R.conj(), "N").conj()
        return super()._apply(R, "N")

    @property
    def nnz(self) -> int:
        return self._lower.nnz

    @property
    def L(self):
        """(n, n) CSR on the device of A: the Cholesky factor."""
        self._require_valid()
        return self._triangles.tosparse().copy()

    @property
    def U(self):
        """(n, n) CSR on the device of A: L^H."""
        return self.L.conj().T.tocsr()
