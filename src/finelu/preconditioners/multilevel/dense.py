"""The inverse, or pseudoinverse, of the matrix that remains after the levels, by LAPACK, or by cuSOLVER."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from finelu import deadline
from finelu.device import namespace, to_host
from finelu.errors import MatrixError, ZeroPivot
from finelu.foreign import leavable
from finelu.kernels.operands import CSR
from finelu.matrix.vectors import ldexp
from finelu.preconditioners.multilevel.order import advice, transposed
from finelu.preconditioners.multilevel.settings import Settings
from finelu.scaling import dual_exponents
from finelu.threads import one_blas_thread

DENSE_SHARE = 0.25  # stored part of S from which on it counts as dense
BALANCED = 20  # rounds of scaling by the largest of each row
NOISE = 8  # roundings, up to which a singular value counts as 0
POWERS = 12  # steps of a power iteration whose result is only needed to its order of magnitude
HOST_MOST = 1000  # the most rows of a matrix on a GPU that LAPACK factors
DENSE_MOST = 6000  # the most rows that LAPACK factors at all
LONG = 400  # rows from which on LAPACK takes tens of milliseconds
ALONE = 500  # rows up to which it takes one thread: on busy cores several wait for each other up to 50 times as long


def is_last(recipe: Settings, S: CSR, done: int) -> bool:
    """Whether LAPACK should factor S, as the last level."""
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
    """The inverse of the rest (m, m), or its pseudoinverse.

    null, left : (m, k) null vectors of the rest, and of its adjoint; k is 0 for an inverse.
    facts : its part of the report.
    """

    inverse: Any
    null: Any
    left: Any
    facts: dict[str, Any]


def magnitude_of_inverse(inverse: Any) -> Any:
    """W |W^-1 S^-1 W^-1| W for a Hermitian S^-1 and a diagonal W that equilibrates its rows (Ruiz 2001).

    It is positive definite, and S times it has eigenvalues of 1 and -1, as with W = I, where scales would be lost. An
    eigenvalue of a pseudoinverse that is 0 up to rounding is replaced by the smallest of the others.
    """
    xp = namespace(inverse)
    if inverse.shape[0] == 0:
        return inverse
    w = -_balance(abs(inverse))[0]
    with _threads(inverse):
        values, vectors = _by_lapack(xp.linalg.eigh, ldexp(inverse, -w[:, None] - w))
        values = abs(values)
        none = values <= NOISE * np.finfo(values.dtype).eps * values.max()
        if bool(none.all()):  # all are 0
            return xp.identity(inverse.shape[0], inverse.dtype)
        values = xp.where(none, xp.where(none, values.max(), values).min(), values)
        found = ldexp((vectors * values) @ vectors.conj().T, w[:, None] + w)
    return (found + found.conj().T) / 2  # to the last bit


def last_of(recipe: Settings, S: CSR, kind: str, numbers: Any, like: Any) -> Last:
    """The inverse of the rest, on the device of `like`; its pseudoinverse if it is singular up to rounding.

    S counts as singular if a change of each entry by NOISE roundings can make it singular, for any scaling of its rows
    and columns. Singular values of S, scaled by a matching, then count as 0 up to S.n roundings of the largest.
    numbers : the rows of A. A large S on a GPU is factored there, others by LAPACK.
    Raises ZeroPivot if S^-1 has entries that are not finite. Cost: 3 S.n^3; twice that, and a matching, if half of the
    digits would be lost; some 25 S.n^3 for a pseudoinverse.
    """
    device = namespace(like)
    if S.n == 0:
        none = device.zeros((0, 0), S.dtype)
        return Last(none, none, none, {"n": 0, "nnz": 0, "bytes": 0, "rcond": 1.0, "nullity": 0})
    S = S.on(device if S.n > HOST_MOST else np)
    xp = namespace(S.data)
    whole, eps = S.tosparse().toarray(), np.finfo(S.dtype).eps
    null = left = xp.zeros((S.n, 0), S.dtype)
    with np.errstate(all="ignore"), _threads(whole):
        r, c = _balance(abs(whole))
        inverse, rcond, distance = _inverse(ldexp(whole, r[:, None] + c))
        if not rcond > eps**0.5:  # NaN, too: in a better scale it may be regular, and half of the digits are lost here
            r, c = _scales(S, kind, xp) or (r, c)
            dense = ldexp(whole, r[:, None] + c)
            inverse, rcond, distance = _inverse(dense)
            if not distance > NOISE * eps:
                try:
                    inverse, null, left = _pseudoinverse(dense, kind == "hermitian")
                except np.linalg.LinAlgError as error:
                    raise ZeroPivot(
                        recipe, numbers[0], 0.0, f"is left with rows that have no inverse ({error})", advice(recipe)
                    ) from None
        null, left = ldexp(null, c[:, None]), ldexp(left, r[:, None])
        inverse = ldexp(inverse, c[:, None] + r)
    bad = ~xp.isfinite(inverse).all(axis=0)
    if bool(bad.any()):
        raise ZeroPivot(recipe, numbers[int(bad.argmax())], 0.0, "has no finite reciprocal", advice(recipe))
    if kind != "general":  # to the last bit
        inverse = inverse / 2 + transposed(inverse, "H" if kind == "hermitian" else "T") / 2
    rcond = rcond if rcond > 0 else 0.0
    facts = {"n": S.n, "nnz": S.n**2, "bytes": inverse.nbytes, "rcond": rcond, "nullity": null.shape[1]}
    inverse, null, left = (device.asarray(xp.ascontiguousarray(x)) for x in (inverse, null, left))
    return Last(inverse, null, left, facts)


def _threads(dense: Any) -> AbstractContextManager[None]:
    """A block in which BLAS has the threads that pay for a matrix of this size."""
    return one_blas_thread() if namespace(dense) is np and dense.shape[0] <= ALONE else nullcontext()


def _by_lapack(function: Any, dense: Any) -> Any:
    """function(dense); a long call is abandoned when the time is over."""

    def quietly() -> Any:
        with np.errstate(all="ignore"):  # a thread has its own
            return function(dense)

    deadline.check()
    return leavable(quietly) if namespace(dense) is np and dense.shape[0] > LONG else quietly()


def without_rounding(S: CSR, more: Callable[[], tuple[Any, Any]] | None = None) -> CSR:
    """S with zeros in rows and columns that hold only rounding; S itself if it is large, or has no such rows.

    S : the rest of a matrix that was scaled by a matching, so that a small row or column comes from cancellation.
    The scaling of the next level would otherwise make rounding as large as other entries.
    more : function that returns the exponents of rows and columns by which S differs from the scale of a matching,
        `to_matching`; None if S has that scale. (If rows and columns were only brought to 1, one may be small without
        cancellation.) It is called only if a row or column of S is small.
    """
    if not 0 < S.n <= DENSE_MOST:
        return S
    rows, columns = np.repeat(np.arange(S.n), np.diff(to_host(S.indptr))), to_host(S.indices)
    size = abs(to_host(S.data))
    noise = _small(S.n, rows, columns, size) & (size > 0)
    if more is not None and noise.any():
        r, c = more()
        noise = _small(S.n, rows, columns, np.ldexp(size, r[rows] + c[columns])) & (size > 0)
    if not noise.any():
        return S
    data = S.data.copy()
    data[namespace(data).asarray(noise)] = 0
    return S.with_values(data)


def _small(n: int, rows: Any, columns: Any, size: Any) -> Any:
    """A mask of the entries in rows or columns without an entry of more than NOISE roundings of 1."""
    by_row, by_column = np.zeros(n, size.dtype), np.zeros(n, size.dtype)
    np.maximum.at(by_row, rows, size)
    np.maximum.at(by_column, columns, size)
    return np.minimum(by_row[rows], by_column[columns]) <= NOISE * np.finfo(size.dtype).eps


def to_matching(S: CSR, kind: str, powers: tuple[Any, Any], rows: Any, columns: Any) -> tuple[Any, Any]:
    """`more` of `without_rounding`, for S with exponents `powers` of scales, in `rows` and `columns`; 0 without a
    matching."""
    found = _scales(S, kind, np)
    if found is None:
        return np.zeros_like(rows), np.zeros_like(columns)
    return (found[0] - powers[0])[rows], (found[1] - powers[1])[columns]


def _inverse(dense: Any) -> tuple[Any, float, float]:
    """The inverse, 1 / (||S|| ||S^-1||), and `_distance`; None, 0.0, 0.0 if there is none."""
    xp = namespace(dense)
    try:
        inverse = _by_lapack(xp.linalg.inv, dense)
    except np.linalg.LinAlgError:
        return None, 0.0, 0.0
    rcond = 1 / float(xp.linalg.norm(dense, 1) * xp.linalg.norm(inverse, 1))
    return inverse, rcond, _distance(dense, inverse)


def _distance(dense: Any, inverse: Any) -> float:
    """About 1 / rho(|S^-1| |S|): relative changes of the entries of S that are smaller leave it regular.

    The same for every scaling of rows and columns (Bauer 1966; Demmel 1992). By power iteration.
    """
    xp = namespace(dense)
    size, size_of_inverse = abs(dense), abs(inverse)
    x, rho = xp.ones(dense.shape[0], size.dtype), np.inf
    for _ in range(POWERS):
        deadline.check()
        x = size_of_inverse @ (size @ x)
        rho = float(x.max())
        if not 0 < rho < np.inf:
            return 0.0
        x = x / rho
    return 1 / rho


def _scales(S: CSR, kind: str, xp: Any) -> tuple[Any, Any] | None:
    """Exponents of scales for which no entry of S is above 1, and those of a matching are about 1; None without one."""
    try:
        r, c = dual_exponents(S.on(np), symmetric=kind != "general")
    except MatrixError:  # structurally singular
        return None
    return xp.asarray(r), xp.asarray(c)


def _pseudoinverse(dense: Any, hermitian: bool) -> tuple[Any, Any, Any]:
    """The pseudoinverse, and orthonormal vectors that the matrix, and its adjoint, take to 0 up to rounding."""
    xp = namespace(dense)
    if hermitian:
        values, vectors = _by_lapack(xp.linalg.eigh, dense)
        size, left, right = abs(values), vectors, vectors
    else:
        left, values, right = _by_lapack(svd, dense)
        size, right = values, right.conj().T
    none = size <= max(NOISE, size.size) * np.finfo(size.dtype).eps * size.max()
    inverse = (right[:, ~none] / values[~none]) @ left[:, ~none].conj().T
    return inverse.astype(dense.dtype), right[:, none], left[:, none]


def svd(M: Any) -> tuple[Any, Any, Any]:
    """Left singular vectors, values, and right ones as rows, of a finite M (n, k), k <= n, where it is; by the QR
    iteration on the host where divide and conquer does not converge."""
    xp = namespace(M)
    try:
        found = xp.linalg.svd(M, full_matrices=False)
    except np.linalg.LinAlgError:
        found = scipy.linalg.svd(to_host(M), full_matrices=False, check_finite=False, lapack_driver="gesvd")
    left, values, right = (xp.asarray(part) for part in found)
    return left, values, right


def _balance(size: Any) -> tuple[Any, Any]:
    """Exponents r, c (m,): the largest of each row and column of 2^(r_i + c_j) size_ij is near 1 (Ruiz 2001)."""
    xp = namespace(size)
    r, c = xp.zeros(size.shape[0], np.int64), xp.zeros(size.shape[1], np.int64)
    for _ in range(BALANCED):
        deadline.check()
        scaled = xp.ldexp(size, r[:, None] + c)
        by_row, by_column = (xp.frexp(xp.sqrt(scaled.max(axis=axis)))[1] for axis in (1, 0))
        if not bool(by_row.any()) and not bool(by_column.any()):
            break
        r, c = r - by_row, c - by_column
    return r, c
