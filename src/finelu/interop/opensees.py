"""`Solver`: complete factors for OpenSees' `PythonSparse` system of equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.errors import FineluError, MatrixError
from finelu.preconditioners import SparseLU

FORMATS = {"CSR": sp.csr_array, "CSC": sp.csc_array}


class Solver:
    """The object of `ops.system("PythonSparse", {"solver": Solver(), "scheme": "CSR"})`, by `finelu.SparseLU`.

    A matrix with the pattern of the one before is factored without an analysis, and an unchanged one is not factored
    again.
    error : the FineluError or MemoryError of the last call without a solution, for which OpenSees gets -1 and ends its
        step; else None. A mechanism whose matrix is singular only up to rounding gives displacements of some 1e15.
    """

    def __init__(self) -> None:
        self.error: FineluError | MemoryError | None = None
        self._factors: Any = None

    def solve(
        self,
        *,
        index_ptr: Any,
        indices: Any,
        values: Any,
        rhs: Any,
        x: Any,
        matrix_status: str,
        storage_scheme: str,
        **_: Any,
    ) -> int:
        """OpenSees' call: buffers of doubles and 32-bit integers, of which x (n,) is written. Returns 0, or -1 without
        a solution.

        matrix_status : "UNCHANGED", "COEFFICIENTS_CHANGED" or "STRUCTURE_CHANGED".
        """
        self.error = None
        try:
            if self._factors is None or matrix_status != "UNCHANGED":
                self._factor(values, indices, index_ptr, matrix_status, storage_scheme)
            found = self._factors.solve(np.array(np.frombuffer(rhs)))
            if not np.isfinite(found).all():
                raise MatrixError("x holds NaN or Inf: the loads do, or A is singular or out of the range of doubles.")
            np.frombuffer(x)[:] = found
        except (FineluError, MemoryError) as error:
            self.error, self._factors = error, None
            return -1
        return 0

    def _factor(self, values: Any, indices: Any, index_ptr: Any, status: str, scheme: str) -> None:
        if scheme not in FORMATS:
            raise MatrixError(f"scheme={scheme!r}; 'CSR' or 'CSC' is needed.")
        starts = np.array(np.frombuffer(index_ptr, np.int32))
        parts = np.array(np.frombuffer(values)), np.array(np.frombuffer(indices, np.int32)), starts
        A = FORMATS[scheme](parts, shape=(starts.size - 1,) * 2)
        if self._factors is not None and status == "COEFFICIENTS_CHANGED":
            self._factors.update(A)
        else:
            self._factors = SparseLU().factor(A)
