"""ILU(0): incomplete LU without fill.

M. Freire, E. Dufrechou, P. Ezzatti: A synchronization-free incomplete LU factorization for GPUs with level-set
analysis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finelu.device import namespace
from finelu.errors import ZeroPivot
from finelu.factors import LUFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix.batch import Batch
from finelu.preconditioners.batch import Prepared, own_plan
from finelu.preconditioners.elimination import Elimination
from finelu.preconditioners.recipe import Recipe, checked, shifted
from finelu.validation import STORED


@dataclass(frozen=True, kw_only=True, repr=False)
class ILU0(Recipe):
    """Incomplete LU without fill: (L U)_ij = A_ij wherever A stores an entry; L has a unit diagonal.

    shift : moves the diagonal away from zero before factoring, by this fraction of |A_ii| (of the largest |A_ij| of the
        row where A_ii is 0).
    variant : the elimination kernel. GPU: "shared" (patterns intersected in shared memory), "vect" (the same, with a
        binary search for long rows), "adapt" (a binary search; the mean length of the rows decides how many threads
        share a row), "natural" (adapt, but the number of rows decides), "levs" (natural, with rows in level order),
        "table" (levs, with the pattern intersections computed once and kept). CPU:
        "sequential", "levels" (level sets, or blocks of rows in the order of their levels, shared by threads). "auto"
        chooses by the sizes: for the first factorization the kernel with the least time for analysis and numeric part
        together; later the kernel for many factorizations, once those so far took as long as its analysis (GPU: at the
        first update). All give the same factors: the same bits on the CPU, on any number of threads; equal to a few
        ulps on the GPU.
    triangular, sweeps : method of the triangular solves and its sweeps, see `finelu.triangular`.
    precision : "float32" or "float64" for the factors, None for A's own. "auto": A's own, and rounded to single
        precision for the solves, which compute in double, if that changes M by at most 1e-3 on a random vector and no
        entry is beyond the range of single precision; see the report's `stored`. Each factorization then takes a solve
        and a product more. "half": real factors on a GPU, with triangular="jacobi", are stored in half precision for
        the solves, their diagonal excepted; ParameterError if an entry is out of its range. If only the rows of a
        transposed triangle are out of it, transposed solves read unrounded values; see `stored_since`.
    Cost: for each entry (i, k) below the diagonal the length of row k; depth: the level sets of A's lower triangle.
    """

    batched = ("shift",)
    keeps_symmetry = True
    precisions = STORED

    shift: float = 0.0
    variant: str = "auto"
    triangular: str = "auto"
    sweeps: int | None = None
    precision: str | None = None

    def factor(self, A: Any) -> LUFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError if A has no full diagonal; ZeroPivot, naming the row, if there are no factors.
        """
        A = checked(self, A).with_own_pattern()  # the factors have it, too
        numeric = ILU0Elimination(self, A.with_values(namespace(A.data).empty(A.nnz, A.dtype)))
        return LUFactors(self, A, numeric, numeric.factorize(A), sweeps=self.sweeps)

    def prepared(self, batch: Batch) -> Prepared:
        """On the pattern of A itself. Raises MatrixError if the diagonal has gaps."""
        return own_plan(batch, self.shift)


class ILU0Elimination(Elimination):
    """L and U in one array, in A's order."""

    def _analyse(self, once: bool) -> Any:
        lu = self.factors
        return kernels_for(lu.data).elimination.ilu0_analysis(lu, self.recipe.variant, once)

    def _values(self, A: CSR) -> Any:
        """The values to be factored, on the pattern of the factors."""
        return shifted(A, self.recipe.shift)

    def _start(self, A: CSR, *refusal: Any) -> Any:
        """Start the kernel; returns its first bad row, which on a GPU is not known before the kernel ends."""
        return kernels_for(A.data).elimination.ilu0(self.plan, self._values(A), self.factors.data, *refusal)

    def _eliminate(self, A: CSR) -> None:
        bad = kernels_for(A.data).vectors.first_bad(self._start(A))
        if bad >= 0:
            raise self._broken(bad)

    @property
    def _queues(self) -> bool:
        return bool(self.recipe.shift == 0)  # shifted values wait for the device

    def _queue(self, A: CSR, refusal: Any) -> None:
        self._start(A, refusal)

    def _broken(self, row: int) -> ZeroPivot:
        lu = self.factors
        return ZeroPivot(self.recipe, row, lu.data[lu.diag[row]])
