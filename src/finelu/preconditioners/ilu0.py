"""ILU(0): incomplete LU without fill.

M. Freire, E. Dufrechou, P. Ezzatti: A synchronization-free incomplete LU factorization for GPUs with level-set
analysis.
"""

from __future__ import annotations

from dataclasses import dataclass

from finelu.device import namespace
from finelu.errors import ZeroPivot
from finelu.factors import TriangularFactors, checked, shifted
from finelu.kernels import kernels_for
from finelu.matrix import CSR, lower_triangle, sparse_module
from finelu.preconditioners.recipe import Recipe


@dataclass(frozen=True, kw_only=True, repr=False)
class ILU0(Recipe):
    """Incomplete LU without fill: (L U)_ij = A_ij wherever A stores an entry; L has a unit diagonal.

    shift : moves the diagonal away from zero before factoring, by this fraction of |A_ii| (of the largest |A_ij| of the
        row where A_ii is 0).
    variant : how rows are eliminated. GPU: "shared" (patterns intersected in shared memory), "vect" (binary search
        where rows are long), "adapt" (threads a row from the row lengths), "levs" (adapt, rows dispatched in level
        order), "table" (levs, with the places where rows meet looked up once and kept). CPU: "sequential", "levels"
        (level sets, or blocks of rows in the order of their levels, shared by threads). "auto" chooses from the sizes:
        for the first factorization so that analysis and numeric part together are fast, and anew at the first update,
        for many. All give the same factors: the same bits on the CPU, on any number of threads; equal to a few ulps on
        the GPU.
    triangular, sweeps : method of the triangular solves and its sweeps, see `finelu.triangular`.
    precision : "float32" or "float64" for the factors, None for A's own.
    Cost: for each entry (i, k) below the diagonal the length of row k; depth: the level sets of A's lower triangle.
    """

    shift: float = 0.0
    variant: str = "auto"
    triangular: str = "auto"
    sweeps: int | None = None
    precision: str | None = None

    def factor(self, A) -> ILU0Factors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError where A has no full diagonal, ZeroPivot, naming the row, where there are no factors.
        """
        return ILU0Factors(self, checked(self, A))


class ILU0Factors(TriangularFactors):
    """M = L U; L and U share one array, in A's order."""

    def __init__(self, recipe: ILU0, A: CSR):
        super().__init__(recipe, A)
        self._triangles = A.with_values(namespace(A.data).empty(A.nnz, A.dtype))
        self._refresh(A)

    def _analyse(self, once: bool):
        return kernels_for(self.pattern.data).elimination.ilu0_analysis(self.pattern, self.recipe.variant, once)

    def _factorize(self, A: CSR) -> None:
        kernels, lu = kernels_for(A.data), self._triangles.data
        bad = kernels.vectors.first_bad(kernels.elimination.ilu0(self._plan, shifted(A, self.recipe.shift), lu))
        if bad >= 0:
            raise ZeroPivot(self.recipe, bad, lu[A.diag[bad]])

    def _sequence(self, trans: str):
        lower, upper = (True, True, trans), (False, False, trans)
        return (lower, upper) if trans == "N" else (upper, lower)

    @property
    def nnz(self) -> int:
        return self.pattern.nnz

    @property
    def L(self):
        """(n, n) CSR on the device of A: the unit lower factor, its diagonal of ones stored."""
        self._require_valid()
        L, _ = lower_triangle(self._triangles)
        L.data[L.diag] = 1
        return L.tosparse()

    @property
    def U(self):
        """(n, n) CSR on the device of A: the upper factor."""
        self._require_valid()
        return sparse_module(self._triangles.data).triu(self._triangles.tosparse(), format="csr")
