"""ILU(k): incomplete LU with the fill of level at most k.

Y. Saad, Iterative Methods for Sparse Linear Systems, 2003, section 10.3; the elimination is that of ILU0.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from finelu.device import namespace, on_gpu, to_host
from finelu.errors import ParameterError, ZeroPivot
from finelu.factors import TriangularFactors, checked, shifted
from finelu.kernels import kernels_for
from finelu.matrix import CSR, INT32_LIMIT
from finelu.preconditioners.ilu0 import ILU0Factors
from finelu.preconditioners.recipe import Recipe


@dataclass(frozen=True, kw_only=True, repr=False)
class ILUK(Recipe):
    """Incomplete LU with fill by its level: (L U)_ij = A_ij wherever the level of (i, j) is at most `level`.

    Entries of A have level 0; eliminating k brings (i, j) the levels of (i, k) and (k, j) and 1, and the least counts.
    level : 0 is ILU0; 1 to 3 are usual; n - 1 is the complete factorization.
    shift, variant, triangular, sweeps, precision : as in ILU0, whose kernels eliminate on the larger pattern.
    Cost: the pattern is found on the CPU, in about the time of a sequential elimination on it, once; then as ILU0 on
    that pattern, on the device of A.
    """

    level: int = 1
    shift: float = 0.0
    variant: str = "auto"
    triangular: str = "auto"
    sweeps: int | None = None
    precision: str | None = None

    def factor(self, A) -> ILUKFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError where A has no full diagonal, ZeroPivot, naming the row, where there are no factors.
        """
        if not isinstance(self.level, int) or isinstance(self.level, bool) or self.level < 0:
            raise ParameterError(f"{self!r}: level must be an integer >= 0.")
        return ILUKFactors(self, checked(self, A))


class ILUKFactors(ILU0Factors):
    """M = L U on the pattern of ILU(k), which `update` keeps; L and U share one array.

    report : besides what ILU0 has symbolic_seconds, symbolic_on, factored_on, applied_on.
    """

    def __init__(self, recipe: ILUK, A: CSR):
        TriangularFactors.__init__(self, recipe, A)
        start = perf_counter()
        pattern, places = pattern_of(A, recipe.level)
        device = "GPU" if on_gpu(A.data) else "CPU"
        self.report |= {"symbolic_seconds": perf_counter() - start, "symbolic_on": "CPU"}
        self.report |= {"factored_on": device, "applied_on": device}
        xp = namespace(A.data)
        self._places = places
        self._extended = pattern.with_values(xp.zeros(pattern.nnz, A.dtype))  # A; what is not in A stays 0
        self._triangles = pattern
        self._refresh(A)

    def _analyse(self, once: bool):
        return kernels_for(self.pattern.data).elimination.ilu0_analysis(self._extended, self.recipe.variant, once)

    def _factorize(self, A: CSR) -> None:
        kernels, a, lu = kernels_for(A.data), self._extended.data, self._triangles.data
        a[self._places] = shifted(A, self.recipe.shift)
        bad = kernels.vectors.first_bad(kernels.elimination.ilu0(self._plan, a, lu))
        if bad >= 0:
            raise ZeroPivot(self.recipe, bad, lu[self._triangles.diag[bad]])

    @property
    def nnz(self) -> int:
        return self._triangles.nnz


def pattern_of(A: CSR, level: int) -> tuple[CSR, np.ndarray]:
    """A CSR of undefined values with the pattern of ILU(level), and the places (nnz,) of A's entries, on A's device."""
    xp = namespace(A.data)
    indptr, indices = to_host(A.indptr), to_host(A.indices)
    indptr, indices, places = kernels_for(indptr).fill.pattern_iluk(indptr, indices, level)
    index = A.indices.dtype if indices.size <= INT32_LIMIT else np.dtype(np.int64)
    indptr, indices, places = (xp.asarray(v.astype(index, copy=False)) for v in (indptr, indices, places))
    return CSR(indptr, indices, xp.empty(indices.size, A.dtype), places[A.diag]), places
