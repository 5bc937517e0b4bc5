"""Dense vectors: which are taken, whether they are finite, and how long they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.device import as_any_other, namespace, on_gpu
from finelu.errors import MatrixError
from finelu.kernels import kernels_for

DTYPES = ("float32", "float64", "complex64", "complex128")


def require_square(shape: Any) -> None:
    """A MatrixError unless `shape` is (n, n), n > 0."""
    if len(shape) != 2:
        raise MatrixError(f"A has shape {tuple(shape)}; a square matrix is needed.")
    if shape[0] != shape[1]:
        raise MatrixError(
            f"A has shape {tuple(shape)}; a square matrix is needed. scipy.sparse.linalg.lsqr(A, b) and lsmr(A, b) "
            "solve the least squares problem of another."
        )
    if shape[0] == 0:
        raise MatrixError("A is empty (0 x 0); there is nothing to solve.")


def dense_numbers(b: Any, name: str) -> Any:
    """b as a dense array of numbers, on the device where it is; a MatrixError says what else it is."""
    if sp.issparse(b) or type(b).__module__.startswith("cupyx"):
        raise MatrixError(f"{name} is a sparse {type(b).__name__}; pass a dense array (its toarray()).")
    given = type(b).__name__
    if not on_gpu(b):
        try:
            b = np.asarray(b)
        except Exception as error:
            raise MatrixError(f"{name} is a {given}, which cannot be read as an array ({error}).") from error
    if b.dtype.kind not in "biufc":
        raise MatrixError(f"{name} has dtype {b.dtype}, of a {given}; numbers are needed.")
    return as_any_other(native(b))


def native(v: Any) -> Any:
    """v, an array or a sparse matrix, with its values in this machine's order of bytes, the only one that SciPy and the
    kernels take; v itself, if they are."""
    return v if v.dtype.isnative else v.astype(v.dtype.newbyteorder("="))


def all_finite(values: Any) -> bool:
    """Whether `values` holds neither NaN nor Inf, in one pass that needs no memory: their sum would show it.

    A sum of finite numbers may overflow too; only then each of them is looked at.
    """
    xp = namespace(values)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(xp.isfinite(values.sum())) or bool(xp.isfinite(values).all())


def norm(v: Any) -> float:
    """||v||_2, by finelu's own kernel: BLAS may wake all its threads for it."""
    xp = namespace(v)
    v = xp.ascontiguousarray(v)
    out = xp.zeros(1, v.real.dtype)
    kernels_for(v).vectors.norm(v, out)
    return float(out[0])
