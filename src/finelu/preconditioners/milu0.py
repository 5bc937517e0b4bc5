"""MILU(0): modified incomplete LU without fill.

I. Gustafsson: A class of first order factorization methods, 1978; Y. Saad, Iterative Methods for Sparse Linear Systems,
2003, section 10.3.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finelu.device import namespace, on_gpu, to_host
from finelu.errors import ParameterError, ZeroPivot
from finelu.factors import TriangularFactors, checked, on_host, shifted
from finelu.kernels import kernels_for
from finelu.matrix import CSR
from finelu.preconditioners.ilu0 import ILU0Factors
from finelu.preconditioners.recipe import Recipe

ADVICE = "Try relax=0.95 (or smaller), shift=1e-3 (or larger), a reordering of A, or another recipe."


@dataclass(frozen=True, kw_only=True, repr=False)
class MILU0(Recipe):
    """ILU(0) that adds the fill it drops to the diagonal: L U has the row sums of A, and A's entries off the diagonal.

    relax : the part of the dropped fill that is added, in [0, 1]; 0 is ILU0.
    shift, triangular, sweeps, precision : as in ILU0.
    variant : as in ILU0 on the CPU.
    Cost: as ILU0, on the CPU, for A on the GPU too, where the factors are then applied.
    """

    relax: float = 1.0
    shift: float = 0.0
    variant: str = "auto"
    triangular: str = "auto"
    sweeps: int | None = None
    precision: str | None = None

    def factor(self, A) -> MILU0Factors:
        """Factor A (n, n), anything that `finelu.as_csr` takes. A is not written.

        Raises MatrixError where A has no full diagonal, ZeroPivot, naming the row, where there are no factors.
        """
        if not (isinstance(self.relax, int | float) and not isinstance(self.relax, bool) and 0 <= self.relax <= 1):
            raise ParameterError(f"{self!r}: relax must be a number from 0 to 1.")
        return MILU0Factors(self, checked(self, A))


class MILU0Factors(ILU0Factors):
    """M = L U; L and U share one array, in A's order. report : as ILU0's, and factored_on, applied_on."""

    def __init__(self, recipe: MILU0, A: CSR):
        TriangularFactors.__init__(self, recipe, A)
        self._triangles = A.with_values(namespace(A.data).empty(A.nnz, A.dtype))
        self._host = on_host(A, 0.0)
        self.report |= {"factored_on": "CPU", "applied_on": "GPU" if on_gpu(A.data) else "CPU"}
        self._refresh(A)

    def _analyse(self, once: bool):
        return kernels_for(self._host.data).elimination.milu0_analysis(self._host, self.recipe.variant)

    def _factorize(self, A: CSR) -> None:
        a, lu = to_host(shifted(A, self.recipe.shift)), self._triangles.data
        made = np.empty(A.nnz, A.dtype) if on_gpu(lu) else lu
        bad = kernels_for(a).elimination.milu0(self._plan, a, self.recipe.relax, made)
        if bad >= 0:
            raise ZeroPivot(self.recipe, bad, made[self._host.diag[bad]], advice=ADVICE)
        if made is not lu:
            lu[...] = namespace(lu).asarray(made)
