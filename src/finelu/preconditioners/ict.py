"""ICT: incomplete Cholesky by threshold, for Hermitian positive definite matrices.

M. T. Jones, P. E. Plassmann: An improved incomplete Cholesky factorization, 1995; computed as N. Li, Y. Saad, E. Chow:
Crout versions of ILU for general sparse matrices, 2003.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from finelu.device import on_gpu
from finelu.factors import CholeskyFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import lower_triangle
from finelu.preconditioners.dense_rows import DenseLast
from finelu.preconditioners.recipe import Recipe
from finelu.preconditioners.threshold import Threshold, check_threshold, checked_threshold, keeps_all, row_norms
from finelu.validation import STORED


@dataclass(frozen=True, kw_only=True, repr=False)
class ICT(Recipe):
    """Incomplete Cholesky whose pattern follows the values: small entries are dropped, the largest are kept.

    A is Hermitian; see IC0.
    drop_tol : an entry of column j of L is dropped if |l_ij| l_jj is at most drop_tol times the 2-norm of column j
        of A.
    fill : column j of L keeps its largest max(1, int(fill * entries)) entries, where column j of A has `entries` below
        the diagonal; the diagonal is always kept. float("inf"): no limit.
    nnz : the wanted number of entries of L + L^H, the diagonal counted once: A.nnz is the number of IC0; see ILUT.
    shift, triangular, sweeps, precision : as in ILU0; norms are those of the shifted matrix.
    Dense rows that would fill in are first moved to the end, see `finelu.ordering.dense_last`; F.permutation has the
    order.
    L has the pattern of the L of ILUT(form="crout"), at half its cost. On the CPU threads share diagonal blocks that
    are not coupled, and nothing else; on a GPU a warp makes a column, and waits for the columns that it needs.
    """

    hermitian = keeps_symmetry = keeps_definite = True
    precisions = STORED

    drop_tol: float = 1e-3
    fill: float = 10.0
    nnz: int | None = None
    shift: float = 0.0
    triangular: str = "auto"
    sweeps: int | None = None
    precision: str | None = None

    @property
    def complete(self) -> bool:
        return keeps_all(self)

    def check(self) -> None:
        super().check()
        check_threshold(self)

    def factor(self, A: Any) -> CholeskyFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes. A is not written.

        Raises MatrixError if A has no full diagonal or is not Hermitian; ZeroPivot, naming the row, if a pivot is not
        positive: A is not positive definite, or it is but has no such factorization, where a shift helps.
        """
        A = checked_threshold(self, A)
        order = DenseLast(A)
        numeric = Threshold(self, _runs, order=order)
        triangles = numeric.factorize(A)
        return CholeskyFactors(self, A, numeric, triangles, sweeps=self.sweeps, arranged=order.arranged, trial=True)


def _runs(recipe: ICT, A: CSR) -> Callable[[float, int], Any]:
    """See `Threshold`."""
    kernels, fill, norms = kernels_for(A.data), recipe.fill, row_norms(A)
    L = lower_triangle(A)[0] if on_gpu(A.data) else A  # the CPU's kernel reads the lower triangle inside of A
    return lambda drop_tol, most: kernels.threshold.ict(L, drop_tol * norms, fill, most)
