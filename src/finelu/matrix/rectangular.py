"""The check of a matrix of any shape, for least squares: a sorted CSR of scipy.sparse or cupyx.scipy.sparse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.device import as_any_other, namespace, on_gpu, sparse_module
from finelu.errors import MatrixError
from finelu.kernels.operands import CSR, INT32_LIMIT
from finelu.matrix.vectors import (
    DTYPES,
    NATIVE,
    all_finite,
    as_dtype,
    native,
    power_of_two,
    require_no_mask,
    times_power,
)


def as_rows(A: Any, dtype: Any = None) -> Any:
    """A (m, n) as a csr_matrix on its device: sorted rows, no duplicates, finite values of one of the four dtypes.

    A : scipy.sparse or cupyx.scipy.sparse in any format, a dense array, or finelu's CSR. A is not written; the result
        shares its arrays if possible.
    dtype : convert the values to this dtype.
    Raises MatrixError for an empty matrix, for NaN or Inf, for other values than numbers, and for indices that do not
    fit the shape. Cost: a few passes over the entries.
    """
    S = _by_rows(A)
    if len(S.shape) != 2 or 0 in S.shape:
        raise MatrixError(f"A has shape {tuple(S.shape)}; a matrix with rows and columns is needed.")
    xp = namespace(S.data)
    data = S.data if S.data.dtype in NATIVE else _as_floats(S.data)
    data = data if dtype is None else as_dtype(data, dtype)
    index = np.int32 if max(*S.shape, data.size) <= INT32_LIMIT else np.int64
    arrays = S.indptr.astype(index, copy=False), S.indices.astype(index, copy=False), data
    indptr, indices, data = (as_any_other(xp.ascontiguousarray(array)) for array in arrays)
    fits = bool((indptr[1:] >= indptr[:-1]).all()) and int(indptr[0]) == 0 and int(indptr[-1]) <= indices.size
    if fits and not on_gpu(data):  # SciPy allows arrays that are longer than the pattern
        indices, data = indices[: indptr[-1]], data[: indptr[-1]]
    fits = fits and indices.size == data.size
    if not fits or (indices.size and not (int(indices.min()) >= 0 and int(indices.max()) < S.shape[1])):
        raise MatrixError("A has row pointers or column indices that do not fit its shape; the arrays are corrupt.")
    if not all_finite(data):
        place = int(xp.argmax(~xp.isfinite(data)))
        row = int(xp.searchsorted(indptr, xp.asarray(place, indptr.dtype), side="right")) - 1
        raise MatrixError(f"A holds NaN or Inf in row {row}; find where they come from before solving.")
    made = sparse_module(data).csr_matrix((data, indices, indptr), shape=S.shape)
    if not made.has_canonical_format:
        made = made.copy()
        made.sum_duplicates()
    return made


def scaled(S: Any, damp: float) -> tuple[Any, float, int]:
    """2^-p S, 2^-p damp and p, for an S of `as_rows`: p = 0, and S itself, unless squares may over- or underflow."""
    largest = max(float(abs(S.data).max()) if S.nnz else 0.0, damp)
    power = power_of_two(S.dtype, math.frexp(largest)[1])
    if power == 0:
        return S, damp, 0
    made = sparse_module(S.data).csr_matrix((times_power(S.data, -power), S.indices, S.indptr), shape=S.shape)
    return made, float(np.ldexp(damp, -power)), power


def rows_of(S: Any) -> CSR:
    """The rows of a matrix of `as_rows` for the kernels of products, which read no shape: its `n` is that of rows."""
    return CSR(S.indptr, S.indices, S.data, None)


def _by_rows(A: Any) -> Any:
    given: Any = A
    if isinstance(given, CSR):
        return given.tosparse()
    if sp.issparse(given):
        return (A if A.dtype.isnative else native(A)).tocsr()
    if hasattr(A, "to_scipy_sparse"):  # PyData's sparse arrays
        return A.to_scipy_sparse().tocsr()
    if on_gpu(A):
        csp = sparse_module(A)
        return A.tocsr() if csp.issparse(A) else csp.csr_matrix(A if A.dtype in NATIVE else _as_floats(A))
    require_no_mask(A, "A")
    try:
        dense = native(np.asarray(A))
    except Exception as error:
        raise MatrixError(f"A is a {type(A).__name__}, which cannot be read as a matrix ({error}).") from error
    if hasattr(A, "matvec"):
        raise MatrixError(
            f"A is a {type(A).__name__}, whose entries are not known; give A as a sparse matrix. finelu.lsmr(A, b), "
            "lsqr and cgls need only products."
        )
    if dense.ndim != 2 or dense.dtype.kind not in "biufc":
        raise MatrixError(
            f"A is a {type(A).__name__} of shape {dense.shape} and dtype {dense.dtype}; a sparse matrix or a "
            "two-dimensional array of numbers is needed."
        )
    return sp.csr_matrix(_as_floats(dense) if dense.dtype == np.float16 else dense)


def _as_floats(values: Any) -> Any:
    """Integers and booleans, and other real numbers, as float64."""
    if values.dtype.kind not in "biuf":
        raise MatrixError(
            f"A holds values of dtype {values.dtype}; one of {', '.join(DTYPES)} is needed (integers become float64)."
        )
    return values.astype(np.float64)
