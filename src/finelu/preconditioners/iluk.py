"""ILU(k): incomplete LU with the fill of level at most k.

Y. Saad, Iterative Methods for Sparse Linear Systems, 2003, section 10.3; the elimination is that of ILU0.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace, require_room, synchronize, to_host
from finelu.errors import ZeroPivot
from finelu.factors import LUFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, INT32_LIMIT
from finelu.matrix import checked_csr
from finelu.matrix.batch import Batch
from finelu.preconditioners.batch import Prepared, natural_plan
from finelu.preconditioners.dense_rows import DenseLast
from finelu.preconditioners.ilu0 import ILU0Elimination
from finelu.preconditioners.recipe import Recipe, checked, shifted
from finelu.validation import STORED, count

LONG = 1000  # rows with more entries behind the diagonal may fill in more than the memory holds


@dataclass(frozen=True, kw_only=True, repr=False)
class ILUK(Recipe):
    """Incomplete LU with fill by its level: (L U)_ij = A_ij wherever the level of (i, j) is at most `level`.

    Entries of A have level 0. Eliminating k gives (i, j) the level of (i, k) plus that of (k, j) plus 1; the least of
    these is the level of (i, j).
    level : 0 is ILU0; 1 to 3 are usual; n - 1 is the complete factorization.
    shift, variant, triangular, sweeps, precision : as in ILU0, whose kernels eliminate on the larger pattern.
    Dense rows that would fill in are first moved to the end, see `finelu.ordering.dense_last`; F.permutation has the
    order.
    Cost: the pattern takes about the time of one elimination on it (on the CPU a sequential one) and is found once;
    then the cost of ILU0 on that pattern. Both on the device of A.
    """

    batched = ("level", "shift")
    keeps_symmetry = True
    precisions = STORED

    level: int = 1
    shift: float = 0.0
    variant: str = "auto"
    triangular: str = "auto"
    sweeps: int | None = None
    precision: str | None = None

    def check(self) -> None:
        super().check()
        count("level", self.level, 0, of=self)

    def factor(self, A: Any) -> LUFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError if A has no full diagonal; ZeroPivot, naming the row, if there are no factors; MemoryError if
        they do not fit into memory.
        """
        A = checked(self, A)
        numeric = _ILUKElimination(self, A)
        return LUFactors(self, A, numeric, numeric.factorize(A), sweeps=self.sweeps, arranged=numeric.order.arranged)

    def prepared(self, batch: Batch) -> Prepared:
        """On the pattern of ILU(level), in A's own order. Raises MatrixError if the diagonal has gaps."""
        A = checked_csr(batch.pattern)
        pattern, inside = pattern_of(A, self.level)
        xp = namespace(A.data)
        places = xp.full(pattern.nnz, -1, np.int64)
        places[inside] = xp.arange(A.nnz)
        return natural_plan(batch, pattern, places, self.shift)


class _ILUKElimination(ILU0Elimination):
    """ILU0's elimination on the pattern of ILU(k); A is extended by zeros."""

    def __init__(self, recipe: ILUK, A: CSR):
        start = perf_counter()
        self.order = DenseLast(A)
        pattern, self._places = pattern_of(self.order.matrix(A), recipe.level)
        super().__init__(recipe, pattern)
        self.report.dense_last = self.order.moved
        synchronize(A.data)
        self.report.symbolic_seconds = perf_counter() - start
        self._extended = namespace(A.data).zeros(pattern.nnz, A.dtype)  # what is not in A stays 0

    def _values(self, A: CSR) -> Any:
        self._extended[self._places] = shifted(self.order.matrix(A), self.recipe.shift)
        return self._extended

    def _broken(self, row: int) -> ZeroPivot:
        lu = self.factors
        return ZeroPivot(self.recipe, self.order.row(row), lu.data[lu.diag[row]])


def pattern_of(A: CSR, level: int) -> tuple[CSR, Any]:
    """A CSR of undefined values with the pattern of ILU(level), and the places (nnz,) of A's entries, where A lives.

    Raises MemoryError, before any work, if a lower bound of its entries does not fit into memory.
    """
    if level > 0 and A.longest[2] > LONG:
        entry = A.data.itemsize + A.indices.itemsize
        least = _least_entries(A)
        require_room(f"the {least} entries or more of ILU({level})", entry * least, A.data, "take ILU0, or reorder A")
    indptr, indices, places = kernels_for(A.data).fill.pattern_iluk(A.indptr, A.indices, level)
    index = A.indices.dtype if indices.size <= INT32_LIMIT else np.dtype(np.int64)
    indptr, indices, places = (v.astype(index, copy=False) for v in (indptr, indices, places))
    diag = kernels_for(A.data).vectors.gather(places, A.diag)
    return CSR(indptr, indices, namespace(A.data).empty(indices.size, A.dtype), diag), places


def _least_entries(A: CSR) -> int:
    """A lower bound of the entries of ILU(1): each row has at least as many as the longest row of U that it uses."""
    indptr, indices, diag = (to_host(part).astype(np.int64) for part in (A.indptr, A.indices, A.diag))
    lengths = np.diff(indptr)
    behind = indptr[1:] - diag - 1
    of_entries = np.where(indices < np.repeat(np.arange(A.n), lengths), behind[indices], 0)
    return int(np.maximum(lengths, np.maximum.reduceat(of_entries, indptr[:-1])).sum())
