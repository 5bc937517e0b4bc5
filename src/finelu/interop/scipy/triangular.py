"""`spsolve_triangular` with the signature and conventions of SciPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.arithmetic import ignore_fp_errors
from finelu.errors import MatrixError, SingularMatrix, WrongType, ZeroPivot
from finelu.interop.scipy.system import FLOATING, compressed, numbers
from finelu.matrix import as_csr
from finelu.triangular import TriangularSolver


class SingularTriangle(SingularMatrix, np.linalg.LinAlgError):
    """A triangle with a zero on its diagonal. Also a LinAlgError, as SciPy raises it."""


@ignore_fp_errors
def spsolve_triangular(
    A: Any,
    b: Any,
    lower: bool = True,
    overwrite_A: bool = False,
    overwrite_b: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """Solve A x = b for a triangular A. Instead of `scipy.sparse.linalg.spsolve_triangular`.

    A : (n, n), sparse; others than CSR and CSC are converted, with a SparseEfficiencyWarning. Only the wanted triangle
        is read.
    b : (n,) or (n, k).
    lower : True for the lower triangle, False for the upper one.
    overwrite_A, overwrite_b : permissions that are accepted and not used: neither A nor b is written.
    unit_diagonal : whether the diagonal counts as ones, whatever is stored there.
    Returns x, of b's shape, in the dtype to which A, b and float32 are promoted.
    Raises SingularTriangle, a LinAlgError, for a zero on the diagonal; MatrixError, a ValueError, for other shapes,
    and for NaN or Inf in the triangle. For several solves with one A, `finelu.TriangularSolver` analyses it once.
    """
    A = compressed(A, "CSC or CSR matrix format is required. Converting to CSC matrix.", depth=4)
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise MatrixError(f"A must be a square matrix but its shape is {A.shape}.")
    b, unit = numbers(b), int(bool(unit_diagonal))
    if b.ndim not in (1, 2):
        raise MatrixError(f"b must have 1 or 2 dims but its shape is {b.shape}.")
    if A.shape[0] != b.shape[0]:
        raise MatrixError(
            "The size of the dimensions of A must be equal to the size of the first dimension of b but the shape of A "
            f"is {A.shape} and the shape of b is {b.shape}."
        )
    dtype = np.promote_types(np.promote_types(A.dtype, np.float32), b.dtype)
    if dtype.char not in FLOATING:
        raise WrongType(f"A has dtype {A.dtype} and b {b.dtype}; no x is computed in a dtype that holds both.")
    if not b.size:
        return np.zeros(b.shape, dtype)
    if not np.isfinite(A.data).all():  # the other triangle, and a diagonal that counts as ones, may have NaN
        A = sp.tril(A, -unit) if lower else sp.triu(A, unit)
    T = as_csr(A.astype(dtype, copy=False), diagonal=False)
    if not unit and not _full_diagonal(T):
        raise SingularTriangle("A is singular: zero entry on diagonal.")
    try:
        return TriangularSolver(T, lower=bool(lower), unit=bool(unit)).solve(b.astype(dtype, copy=False))
    except ZeroPivot as error:
        raise SingularTriangle(f"A is singular: {error}") from error


def _full_diagonal(T: Any) -> bool:
    return not T.missing and bool(T.data[T.diag].all())
