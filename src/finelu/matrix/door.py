"""The checks of A and b, done once: any matrix becomes a checked, sorted CSR, any vector a checked array. All other
modules trust the result. The caller's arrays are not changed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from finelu.arithmetic import ignore_fp_errors
from finelu.device import as_any_other, namespace, on_gpu, same_gpu, sparse_module, to_host
from finelu.errors import DeviceError, MatrixError, counted
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, INT32_LIMIT
from finelu.matrix.products import BlockProducts
from finelu.matrix.vectors import (
    DTYPES,
    NATIVE,
    as_dtype,
    dense_numbers,
    loses,
    native,
    require_no_mask,
    require_square,
)
from finelu.recent import RECENT


@ignore_fp_errors
def as_csr(A: Any, *, diagonal: bool = True, dtype: Any = None) -> CSR:
    """Turn A into a checked `CSR` on the device where it lives.

    A : (n, n), scipy.sparse or cupyx.scipy.sparse in any format (matrix or array), a StencilMatrix or BlockMatrix (all
        entries of its blocks, zeros among them), a NumPy or CuPy array, a np.matrix, or a CSR (returned as it is).
        Integers and booleans become float64. Explicit zeros are entries.
    diagonal : whether every diagonal entry must be stored (an incomplete factorization divides by them).
    dtype : convert the values to this dtype.
    Returns a CSR that shares A's arrays if possible: a write to these changes A, even a read-only one.
    Raises MatrixError, naming the first bad row and the number of bad rows, for a matrix that is not square, is empty,
    holds NaN or Inf, or misses diagonal entries. Duplicate entries are summed and unsorted rows sorted in a copy.
    Cost: one pass over the entries; a conversion only if the format, order or dtype needs it.
    """
    return checked_csr(A, diagonal=diagonal, dtype=dtype)


def checked_csr(A: Any, *, diagonal: bool = True, dtype: Any = None) -> CSR:
    """`as_csr` for callers with `ignore_fp_errors`."""
    if isinstance(A, CSR):
        if diagonal and A.missing:
            raise _gaps(A)
        return A if dtype is None or A.dtype == dtype else A.with_values(as_dtype(A.data, dtype))
    S = _to_csr_format(A)
    require_square(S.shape)
    n = S.shape[0]
    xp = namespace(S.data)
    data = S.data if dtype is None else as_dtype(S.data, dtype)
    if data.dtype not in NATIVE:
        if data.dtype.kind not in "biuf":
            raise MatrixError(
                f"A holds values of dtype {data.dtype}; one of {', '.join(DTYPES)} is needed (integers become float64)."
            )
        data = data.astype(xp.float64)
    index = np.int32 if max(n, S.indices.size) <= INT32_LIMIT else np.int64
    indptr = S.indptr.astype(index, copy=False)
    indices = S.indices.astype(index, copy=False)
    if not on_gpu(data):  # SciPy allows arrays that are longer than the pattern; CuPy's kernels do not
        indices, data = indices[: indptr[-1]], data[: indptr[-1]]
    data = xp.ascontiguousarray(data[: indices.size])
    indptr, indices, data = as_any_other(indptr), as_any_other(indices), as_any_other(data)

    if data.size < indices.size:
        raise MatrixError(f"A has {data.size} values for {indices.size} column indices; the arrays are corrupt.")
    diag, found = _inspect(indptr, indices, data)
    if found.corrupt >= 0:
        raise MatrixError(
            f"A has row pointers or column indices that do not fit its arrays in row {found.corrupt}; "
            "the arrays are corrupt."
        )
    if found.unsorted:
        known = None if on_gpu(data) else _sorting(indptr, indices, n)
        if known is not None:
            indptr, indices, data, diag = known[0].copy(), known[1].copy(), data[known[2]], known[3].copy()
            found = found._replace(missing=known[4])
        else:
            indptr, indices, data = _sorted_copy(indptr, indices, data, n)
            diag, found = _inspect(indptr, indices, data)
    if found.not_finite:
        raise MatrixError(
            f"A holds NaN or Inf in row {found.first_not_finite} "
            f"({counted(found.not_finite, 'such entry', 'such entries')}); find where they come from before solving."
        )
    result = CSR(indptr, indices, data, diag)
    result.__dict__["missing"] = found.missing  # the cached property
    if diagonal and found.missing:
        raise _gaps(result)
    return result


def on_pattern(given: CSR, pattern: CSR) -> CSR | None:
    """`given`, of `as_large`, with the index arrays of `pattern` and its own values; None if the patterns differ, or a
    value is not finite. Cost: one pass over pattern and values."""
    arrays = given.indptr, given.indices, given.data, pattern.indptr, pattern.indices
    return pattern.with_values(given.data) if kernels_for(pattern.data).inspection.alike(*arrays) else None


def as_large(A: Any, pattern: CSR) -> CSR | None:
    """A as an unchecked CSR with as many rows and entries as `pattern`, and with its places of the diagonal.

    None if `as_csr` has to check A: if A is no CSR of scipy.sparse (of cupyx.scipy.sparse, if `pattern` is on a GPU)
    with values of one of finelu's dtypes, or if it shares its arrays with `pattern`, so that both may have been
    changed.
    """
    given: Any = A
    if not sparse_module(pattern.data).issparse(A) or given.format != "csr" or given.shape != pattern.shape:
        return None
    indptr, indices, data = given.indptr, given.indices, given.data
    if data.size != pattern.nnz or data.dtype not in NATIVE or not data.flags.c_contiguous:
        return None
    indptr, indices, data = (as_any_other(array) for array in (indptr, indices, data))
    share = namespace(pattern.data).may_share_memory
    if share(indptr, pattern.indptr) or share(indices, pattern.indices):
        return None
    same_gpu(data, pattern.data)
    return CSR(indptr, indices, data, pattern.diag)


def full_csr(indptr: Any, indices: Any, data: Any) -> CSR:
    """The CSR with these arrays, which are valid and sorted and have a full diagonal; only its places are searched."""
    diag, _ = _inspect(indptr, indices, data)
    result = CSR(indptr, indices, data, diag)
    result.__dict__["missing"] = 0
    return result


def without_zeros(A: CSR) -> CSR:
    """A without its stored zeros, on the host; A itself, on its device, if it stores none.

    For complete factors, where stored zeros only add fill; in incomplete factorizations they are entries by definition.
    Cost: one pass over the values.
    """
    return of_nonzeros(A, int(namespace(A.data).count_nonzero(A.data)))[0]


def of_nonzeros(A: CSR, nnz: int) -> tuple[CSR, np.ndarray | None]:
    """`without_zeros` of an A with that many entries that are not 0, and their places (nnz,) among those of A; None if
    A stores no zeros. The places are kept for the last patterns."""
    if nnz == A.nnz:
        return A, None
    A = A.on(np)
    known: tuple[CSR, np.ndarray] | None = RECENT.get("nonzero", A.indptr, A.indices)
    if known is not None and known[1].size == nnz and (data := A.data[known[1]]).all():
        return known[0].with_values(data), known[1]
    index = np.int32 if max(A.n, nnz) <= INT32_LIMIT else np.int64
    starts, diag = np.empty(A.n + 1, index), np.empty(A.n, index)
    columns, values, kept = np.empty(nnz, index), np.empty(nnz, A.dtype), np.empty(nnz, np.int64)
    without = kernels_for(values).inspection.without_zeros
    without(A.indptr, A.indices, A.data, starts, columns, values, diag, kept)
    S = CSR(starts, columns, values, diag)
    size = S.indptr.nbytes + S.indices.nbytes + S.diag.nbytes + kept.nbytes
    RECENT.keep("nonzero", A.indptr, A.indices, (S.with_values(values[:0]), kept), size, light=True)
    return S, kept


def lower_triangle(A: CSR) -> tuple[CSR, Any]:
    """The lower triangle of A with its diagonal, by rows, diagonal last; and the places (nnz_L,) of its values in A."""
    kernels = kernels_for(A.data)
    indices, gather = kernels.indices, kernels.vectors.gather
    if on_gpu(A.data):
        begin = A.indptr[:-1]
        indptr, total = indices.pointers(indices.lengths(begin, indices.shifted(A.diag, 1)))
        _, places = indices.entries(indptr, total, begin)
        columns, values = gather(A.indices, places), gather(A.data, places)
    else:
        indptr, columns, values, places = kernels.pattern.lower_triangle(A.indptr, A.indices, A.data, A.diag)
    L = CSR(indptr, columns, values, indices.shifted(indptr[1:], -1))
    L.__dict__["missing"] = 0
    return L, places


class _Found(NamedTuple):
    """The result of the kernel `inspect`."""

    corrupt: int
    unsorted: int
    not_finite: int
    first_not_finite: int
    missing: int
    first_missing: int


def _inspect(indptr: Any, indices: Any, data: Any) -> tuple[Any, _Found]:
    """The places of the diagonal (n,), and the faults."""
    diag = namespace(data).empty(indptr.size - 1, indices.dtype)
    return diag, _Found(*kernels_for(data).inspection.inspect(indptr, indices, data, diag))


def _gaps(A: CSR) -> MatrixError:
    """The error for an A that misses diagonal entries."""
    first = int(namespace(A.data).flatnonzero(A.diag < 0)[0])
    return MatrixError(
        f"A stores no diagonal entry in row {first} ({counted(A.missing, 'such row')}); an incomplete factorization "
        "divides by it. Store it as 0 and give shift=1e-3, or store a small number; or permute A so that its diagonal "
        "has no gaps."
    )


def _to_csr_format(A: Any) -> Any:
    """A as a CSR object of scipy or cupyx, or a MatrixError; shares arrays with A where it can."""
    given: Any = A
    if sp.issparse(given) or isinstance(given, BlockProducts):
        require_square(A.shape)  # before SciPy raises an error of its own, for 3 dimensions
        return (A if isinstance(given, BlockProducts) or A.dtype.isnative else native(A)).tocsr()
    if hasattr(A, "to_scipy_sparse"):  # PyData's sparse arrays
        require_square(A.shape)
        return A.to_scipy_sparse().tocsr()
    if on_gpu(A):
        import cupyx.scipy.sparse as csp

        if getattr(A, "format", "") != "csr" and loses(A.data if csp.issparse(A) else A):
            return csp.csr_matrix(_to_csr_format(A.get()))
        if csp.issparse(A):
            return A.tocsr()
        require_square(A.shape)
        return csp.csr_matrix(A if str(A.dtype) in DTYPES else A.astype(np.float64))
    require_no_mask(A, "A")
    try:
        dense = native(np.asarray(A))
    except Exception as error:
        raise MatrixError(f"A is a {type(A).__name__}, which cannot be read as a matrix ({error}).") from error
    if dense.ndim != 2 or dense.dtype.kind not in "biufc":
        if hasattr(A, "matvec"):
            raise MatrixError(
                f"A is a {type(A).__name__}, whose entries are not known, but factors are made of them; give A as a "
                "sparse matrix. The Krylov methods need only products: finelu.gmres(A, b), finelu.cg(A, b)."
            )
        if dense.dtype == object and dense.ndim == 0:
            raise MatrixError(f"A is a {type(A).__name__}; a sparse matrix or a two-dimensional array is needed.")
        raise MatrixError(
            f"A is a {type(A).__name__} of shape {dense.shape} and dtype {dense.dtype}; "
            "a sparse matrix or a two-dimensional array of numbers is needed."
        )
    return sp.csr_matrix(dense.astype(np.float64) if dense.dtype == np.float16 else dense)


def _sorted_copy(indptr: Any, indices: Any, data: Any, n: int) -> tuple[Any, Any, Any]:
    """Sorted rows without duplicates, in new arrays."""
    if loses(data):
        there = _sorted_copy(to_host(indptr), to_host(indices), to_host(data), n)
        return tuple(map(namespace(data).asarray, there))
    S = sparse_module(data).csr_matrix((data.copy(), indices.copy(), indptr.copy()), shape=(n, n))
    S.has_sorted_indices = False
    S.has_canonical_format = False
    S.sum_duplicates()
    return S.indptr.astype(indptr.dtype, copy=False), S.indices.astype(indices.dtype, copy=False), S.data


def _sorting(indptr: Any, indices: Any, n: int) -> tuple[Any, Any, Any, Any, int] | None:
    """The sorted pattern (indptr, indices), the place of each of its entries in the given one, its diagonal, and how
    many entries that misses, on the host; None if entries appear twice. Kept for the last patterns: no caller writes to
    these arrays."""
    known: tuple[Any, Any, Any, Any, int] | None = RECENT.get("sorted", indptr, indices)
    if known is None:
        index = indptr.dtype
        S = sp.csr_matrix((np.arange(indices.size, dtype=index), indices.copy(), indptr.copy()), shape=(n, n))
        S.sort_indices()
        if not S.has_canonical_format:
            return None
        pattern = S.indptr.astype(index, copy=False), S.indices.astype(index, copy=False)
        diag, found = _inspect(*pattern, np.zeros(S.data.size))
        known = *pattern, S.data, diag, found.missing
        RECENT.keep("sorted", indptr, indices, known, sum(part.nbytes for part in known[:4]), light=True)
    return known


def check_vector(b: Any, n: int, like: Any, name: str = "b") -> Any:
    """b as an array on the device of `like`, (n,) or (n, k), of finite numbers; a MatrixError names the fault.

    A column (n, 1) is kept as (n, 1). Integers become float64. A valid array is not copied.
    """
    b = dense_numbers(b, name)
    if on_gpu(b) != on_gpu(like):
        where = ("the GPU", "the host") if on_gpu(b) else ("the host", "the GPU")
        raise DeviceError(f"{name} is on {where[0]} but A is on {where[1]}; move one of them first.")
    if b.ndim not in (1, 2) or b.shape[0] != n:
        turned = b.ndim == 2 and b.shape[1] == n
        hint = f": its right-hand sides are rows, pass {name}.T" if turned else ""
        raise MatrixError(f"{name} has shape {b.shape}, but A has {n} rows; shape ({n},) or ({n}, k) is needed{hint}.")
    xp = namespace(b)
    if b.dtype not in NATIVE:
        b = b.astype(xp.complex128 if b.dtype.kind == "c" else xp.float64)
    place = kernels_for(b).vectors.first_not_finite(xp.ascontiguousarray(b).reshape(-1)) if b.size else -1
    if place >= 0:
        row, column = divmod(place, b.size // n)
        at = f"row {row}" if b.size == n else f"column {column}, row {row}"
        raise MatrixError(f"{name} holds NaN or Inf in {at}; find where it comes from before solving.")
    return b
