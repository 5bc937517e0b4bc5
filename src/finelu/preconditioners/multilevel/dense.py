"""What the levels leave, factored by LAPACK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

from finelu.errors import MatrixError, ZeroPivot
from finelu.kernels.operands import CSR
from finelu.preconditioners.multilevel.order import advice, exponents, scaled_by, transposed
from finelu.scaling import equilibrate, times_power

if TYPE_CHECKING:
    from finelu.preconditioners.multilevel.recipe import MultilevelILU

DENSE_SHARE = 0.25  # of S that is stored, from which on it is taken for dense
BALANCED = 12  # rounds of scaling by the largest of each row
DENSE_MOST = 6000  # rows that LAPACK is given at the very most


def is_last(recipe: MultilevelILU, S: CSR, done: int) -> bool:
    """Whether S is LAPACK's."""
    small = S.n <= recipe.dense_size or (S.n <= DENSE_MOST and S.nnz > DENSE_SHARE * S.n**2)
    if not small and done >= recipe.levels - 1:
        if S.n > DENSE_MOST:
            raise MatrixError(
                f"{recipe!r}: {S.n} rows are left after {done} levels, more than are given to LAPACK; allow more "
                f"levels, or a larger condest."
            )
        return True
    return small


def magnitude_of_inverse(inverse: Any) -> Any:
    """W |W^-1 S^-1 W^-1| W for a Hermitian S^-1 and a diagonal W that makes its rows alike in size (Ruiz 2001).

    Positive definite, and S times it has eigenvalues of 1 and -1, as with W = I, for which scales would be lost.
    """
    size, w = abs(inverse), np.zeros(inverse.shape[0], np.int64)  # exponents of W
    for _ in range(BALANCED if w.size else 0):
        more = np.frexp(np.sqrt(np.ldexp(size, -w[:, None] - w).max(axis=0)))[1]
        if not more.any():
            break
        w += more
    values, vectors = np.linalg.eigh(times_power(inverse, -w[:, None] - w))
    found = times_power((vectors * abs(values)) @ vectors.conj().T, w[:, None] + w)
    return (found + found.conj().T) / 2  # to the last bit


def dense_inverse(recipe: MultilevelILU, S: CSR, kind: str, numbers: Any) -> tuple[Any, dict[str, Any]]:
    """(the inverse of what is left, facts), by LAPACK.  numbers : of its rows in A."""
    if S.n == 0:
        return np.zeros((0, 0), S.dtype), {"n": 0, "nnz": 0, "bytes": 0, "rcond": 1.0}
    r, c = exponents(equilibrate(S))
    dense = scaled_by(S, r, c).tosparse().toarray()
    lapack: Any = scipy.linalg.get_lapack_funcs(("getrf", "getri", "gecon"), (dense,))
    getrf, getri, gecon = lapack
    lu, pivots, info = getrf(dense)
    if info > 0:
        rows = np.arange(S.n)
        for i, j in enumerate(pivots[:info]):
            rows[[i, j]] = rows[[j, i]]
        raise ZeroPivot(recipe, numbers[rows[info - 1]], 0.0, "is all that elimination leaves of it", advice(recipe))
    rcond, _ = gecon(lu, np.linalg.norm(dense, 1))
    inverse, _ = getri(lu, pivots)
    with np.errstate(over="ignore"):
        inverse = times_power(inverse, c[:, None] + r)
    bad = ~np.isfinite(inverse).all(axis=0)
    if bad.any():
        raise ZeroPivot(recipe, numbers[bad.argmax()], 0.0, "has no finite reciprocal", advice(recipe))
    if kind != "general":  # to the last bit
        inverse = inverse / 2 + transposed(inverse, "H" if kind == "hermitian" else "T") / 2
    return inverse, {"n": S.n, "nnz": S.n**2, "bytes": inverse.nbytes, "rcond": float(rcond)}
