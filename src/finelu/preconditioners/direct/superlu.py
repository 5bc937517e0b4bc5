"""SuperLU, which comes with SciPy."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools
from scipy.sparse.csgraph import structural_rank

from finelu import foreign
from finelu.errors import FineluError, SingularMatrix
from finelu.foreign import require_time
from finelu.preconditioners.direct.library import LONG_ENTRIES, LONG_WORK
from finelu.threads import one_blas_thread

BLAS_SHARES = 2**14  # entries up to which BLAS has no block large enough to share out


def structurally_singular(S: Any) -> bool:
    """Whether no order of the rows brings an entry other than 0 to every place of the diagonal of S, a CSR or CSC
    object of SciPy. SuperLU then may write beyond its arrays. Cost: a matching if the diagonal has a 0."""
    n, diagonal = S.shape[0], np.zeros(S.shape[0], S.dtype)
    _sparsetools.csr_diagonal(0, n, n, S.indptr, S.indices, S.data, diagonal)
    if np.count_nonzero(diagonal) == n:
        return False
    if S.count_nonzero() < S.nnz:
        S = S.copy()
        S.eliminate_zeros()
    return bool(structural_rank(S.T if S.format == "csc" else S) < n)


class SuperLU:
    """SciPy's SuperLU; options as in `scipy.sparse.linalg.splu`. S. Li: An overview of SuperLU, 2005.

    SciPy frees the memory of factors only on the thread that made them.
    """

    replaced, from_earlier = 0, False

    def __init__(self, columns: sp.csc_matrix, singular: Callable[[], str], work: float | None = None, **options: Any):
        """Factor a matrix.

        singular : gives the text of the error for a singular A.
        work : the expected number of flops, None if it is not counted.
        Raises OutOfTime if the caller's time is over, or too short for the factorization.
        """
        require_time(work or 0.0)
        self._made: list[Any] = []
        try:
            if foreign.heard() and (columns.nnz > LONG_ENTRIES if work is None else work > LONG_WORK):
                with foreign.lent() as owner:
                    self._made = owner.box()
                    weakref.finalize(self, owner.drop, self._made).atexit = False
                    owner.call(self._make, self._made, columns, options)
            else:
                self._make(self._made, columns, options)
        except RecursionError:
            raise
        except RuntimeError as error:
            if "singular" not in str(error):
                raise FineluError(f"SparseLU: SuperLU gave up: {error}") from error
            raise SingularMatrix(singular()) from error
        self.nnz = int(self._made[0].nnz) - columns.shape[0]

    @classmethod
    def _make(cls, made: list[Any], columns: sp.csc_matrix, options: dict[str, Any]) -> None:
        with cls._alone(columns.nnz > BLAS_SHARES):
            made.append(foreign.splu(columns, **options))

    def solve(self, r: Any, trans: str) -> Any:
        with self._alone(self.nnz > BLAS_SHARES):
            return self._made[0].solve(r, trans)

    def pivots(self) -> Any:
        """(n,) : the magnitude of the pivot of each column."""
        factors = self._made[0]
        return abs(factors.U.diagonal())[factors.perm_c]

    @staticmethod
    def _alone(wanted: bool) -> Any:
        return one_blas_thread() if wanted else nullcontext()
