"""What the levels leave: its inverse, or pseudoinverse, by LAPACK, or by cuSOLVER."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finelu.device import namespace
from finelu.errors import MatrixError, ZeroPivot
from finelu.kernels.operands import CSR
from finelu.preconditioners.multilevel.order import advice, transposed
from finelu.scaling import times_power

if TYPE_CHECKING:
    from finelu.preconditioners.multilevel.recipe import MultilevelILU

DENSE_SHARE = 0.25  # of S that is stored, from which on it is taken for dense
BALANCED = 12  # rounds of scaling by the largest of each row
NOISE = 8  # roundings of the largest singular value, up to which one counts as 0: beyond, it can still be told from it
HOST_MOST = 1000  # rows that LAPACK is given for a matrix on a GPU
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


class Last(NamedTuple):
    """The inverse of what is left (m, m), or its pseudoinverse.

    null, left : (m, k) the vectors that it takes to 0, and those that its adjoint takes to 0; k is 0 of an inverse.
    facts : what the report says of it.
    """

    inverse: Any
    null: Any
    left: Any
    facts: dict[str, Any]


def magnitude_of_inverse(inverse: Any) -> Any:
    """W |W^-1 S^-1 W^-1| W for a Hermitian S^-1 and a diagonal W that makes its rows alike in size (Ruiz 2001).

    Positive definite, and S times it has eigenvalues of 1 and -1, as with W = I, for which scales would be lost. An
    eigenvalue that is 0 but for rounding, of a pseudoinverse, counts as the smallest of the others.
    """
    xp = namespace(inverse)
    if inverse.shape[0] == 0:
        return inverse
    w = -_balance(abs(inverse))[0]
    values, vectors = xp.linalg.eigh(times_power(inverse, -w[:, None] - w))
    values = abs(values)
    none = values <= NOISE * np.finfo(values.dtype).eps * values.max()
    values = xp.where(none, xp.where(none, values.max(), values).min(), values)
    found = times_power((vectors * values) @ vectors.conj().T, w[:, None] + w)
    return (found + found.conj().T) / 2  # to the last bit


def last_of(recipe: MultilevelILU, S: CSR, kind: str, numbers: Any, like: Any) -> Last:
    """The inverse of what is left, on the device of `like`; its pseudoinverse where it is singular but for rounding.

    numbers : of its rows in A. A large one of a GPU is factored there, others by LAPACK. Singular values, of S scaled
    to rows and columns alike in size, that are below NOISE roundings of the largest count as 0.
    Raises ZeroPivot where S^-1 has entries that are not finite. Cost: 2 S.n^3; 20 S.n^3 of a pseudoinverse.
    """
    device = namespace(like)
    S = S.on(device if S.n > HOST_MOST else np)
    xp = namespace(S.data)
    if S.n == 0:
        none = device.zeros((0, 0), S.dtype)
        return Last(none, none, none, {"n": 0, "nnz": 0, "bytes": 0, "rcond": 1.0, "nullity": 0})
    dense = S.tosparse().toarray()
    r, c = _balance(abs(dense))
    dense = times_power(dense, r[:, None] + c)
    null = left = xp.zeros((S.n, 0), S.dtype)
    with np.errstate(all="ignore"):
        try:
            inverse = xp.linalg.inv(dense)
            rcond = 1 / float(xp.linalg.norm(dense, 1) * xp.linalg.norm(inverse, 1))
        except np.linalg.LinAlgError:
            rcond = 0.0
        if not rcond > NOISE * np.finfo(S.dtype).eps:  # NaN, too
            rcond = rcond if rcond > 0 else 0.0
            inverse, null, left = _pseudoinverse(dense, kind == "hermitian")
        inverse = times_power(inverse, c[:, None] + r)
        null, left = times_power(null, c[:, None]), times_power(left, r[:, None])
    bad = ~xp.isfinite(inverse).all(axis=0)
    if bool(bad.any()):
        raise ZeroPivot(recipe, numbers[int(bad.argmax())], 0.0, "has no finite reciprocal", advice(recipe))
    if kind != "general":  # to the last bit
        inverse = inverse / 2 + transposed(inverse, "H" if kind == "hermitian" else "T") / 2
    facts = {"n": S.n, "nnz": S.n**2, "bytes": inverse.nbytes, "rcond": rcond, "nullity": null.shape[1]}
    return Last(*(device.asarray(xp.ascontiguousarray(x)) for x in (inverse, null, left)), facts)


def _pseudoinverse(dense: Any, hermitian: bool) -> tuple[Any, Any, Any]:
    """The pseudoinverse, and orthonormal vectors that the matrix, and its adjoint, take to 0 but for rounding."""
    xp = namespace(dense)
    if hermitian:
        values, vectors = xp.linalg.eigh(dense)
        size, left, right = abs(values), vectors, vectors
    else:
        left, values, right = xp.linalg.svd(dense)
        size, right = values, right.conj().T
    none = size <= NOISE * np.finfo(size.dtype).eps * size.max()
    inverse = (right[:, ~none] / values[~none]) @ left[:, ~none].conj().T
    return inverse, right[:, none], left[:, none]


def _balance(size: Any) -> tuple[Any, Any]:
    """Exponents r, c (m,) for which the largest of each row and column of 2^(r_i + c_j) size_ij is near 1 (Ruiz 2001)."""
    xp = namespace(size)
    r, c = xp.zeros(size.shape[0], np.int64), xp.zeros(size.shape[1], np.int64)
    for _ in range(BALANCED):
        scaled = xp.ldexp(size, r[:, None] + c)
        by_row, by_column = (xp.frexp(xp.sqrt(scaled.max(axis=axis)))[1] for axis in (1, 0))
        if not bool(by_row.any()) and not bool(by_column.any()):
            break
        r, c = r - by_row, c - by_column
    return r, c
