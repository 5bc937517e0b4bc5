"""ILUT: incomplete LU by dual threshold, by rows or in Crout's form.

Y. Saad: ILUT: a dual threshold incomplete LU factorization, 1994. N. Li, Y. Saad, E. Chow: Crout versions of ILU for
general sparse matrices, 2003.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from finelu.factors import LUFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.preconditioners.dense_rows import DenseLast
from finelu.preconditioners.recipe import ON_CPU, Recipe
from finelu.preconditioners.threshold import (
    Threshold,
    check_threshold,
    checked_threshold,
    column_norms,
    keeps_all,
    row_norms,
)
from finelu.validation import STORED, choice

FORMS = ("row", "crout")


@dataclass(frozen=True, kw_only=True, repr=False)
class ILUT(Recipe):
    """Incomplete LU whose pattern follows the values: small entries are dropped, the largest are kept.

    drop_tol : an entry is dropped if its magnitude is at most drop_tol times the 2-norm of row i of A; an entry l_ij
        is tested before its division by the pivot u_jj, so that it does not matter how the rows of A are scaled.
        form="crout": columns of L are tested against the norms of the columns of A.
    fill : row i of L (U) keeps its largest max(1, int(fill * entries)) entries, where row i of A has `entries` below
        (above) the diagonal; the diagonal is always kept. float("inf"): no limit. form="crout": columns of A and L
        instead of rows.
    form : "row" makes L and U row by row; "crout" makes a column of L and a row of U together, so that L and U^T have
        the same pattern if A is symmetric.
    nnz : the wanted number of entries of L + U, the diagonal counted once: A.nnz is the number of ILU0. Larger factors,
        usually with 1.2 to 3 times as many entries, are made first, and their smallest entries dropped, compared as in
        ParILUT. The result takes fewer iterations than factors of that size by a threshold alone. drop_tol is the first
        threshold; usually one to three factorizations are made, and `report` has their number. There are fewer entries,
        and a warning, if fill allows no more or the number jumps. ZeroPivot is raised if no threshold gives 90% of nnz,
        and some break down.
    shift, triangular, sweeps, precision : as in ILU0; norms are those of the shifted matrix.
    Dense rows that would fill in are first moved to the end, see `finelu.ordering.dense_last`; F.permutation has the
    order.
    Cost: O(n m^2) with m entries a row of L and U; on the CPU sequential. On a GPU a warp makes a row, and waits for
    the rows that it needs. form="crout" is factored on the CPU, even for A on a GPU, and then applied on the GPU.
    drop_tol=0 with fill=inf is the complete factorization.
    """

    precisions = STORED

    drop_tol: float = 1e-3
    fill: float = 10.0
    form: str = "row"
    nnz: int | None = None
    shift: float = 0.0
    triangular: str = "auto"
    sweeps: int | None = None
    precision: str | None = None

    def check(self) -> None:
        super().check()
        check_threshold(self)
        choice("form", self.form, FORMS, of=self)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.form, str) and self.form == "crout":
            object.__setattr__(self, "factored_on", ON_CPU)

    @property
    def complete(self) -> bool:
        return keeps_all(self)

    def factor(self, A: Any) -> LUFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes. A is not written.

        Raises MatrixError if A has no full diagonal; ZeroPivot, naming the row, if there are no factors.
        """
        A = checked_threshold(self, A)
        order = DenseLast(A)
        numeric = Threshold(self, runs, order=order, on_host=self.form == "crout")
        triangles = numeric.factorize(A)
        return LUFactors(self, A, numeric, triangles, sweeps=self.sweeps, arranged=order.arranged, trial=True)


def runs(recipe: ILUT, A: CSR) -> Callable[[float, int], Any]:
    """See `Threshold`."""
    kernels, fill, rows = kernels_for(A.data), recipe.fill, row_norms(A)
    if recipe.form == "row":
        return lambda drop_tol, most: kernels.threshold.ilut(A, drop_tol * rows, fill, most)
    columns = column_norms(A)
    return lambda drop_tol, most: kernels.threshold.ilut_crout(A, drop_tol * rows, drop_tol * columns, fill, most)
