"""`Batch`: many matrices with one pattern."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.device import as_any_other, namespace, on_gpu, same_gpu, to_host
from finelu.errors import DeviceError, MatrixError
from finelu.kernels.operands import CSR
from finelu.matrix.door import as_csr
from finelu.matrix.vectors import NATIVE, dense_numbers


class Batch:
    """k sparse matrices (n, n) that store entries at the same places.

    A : a sparse matrix that gives the places; only its pattern counts.
    values (k, nnz) : row s has the entries of matrix s, in the order of A.data. float32, float64, complex64 or
        complex128; integers become float64. On the device of A.
    The values are not copied if they are contiguous, and if the rows of A are sorted. They may hold NaN or Inf: results
    name the systems that do.
    Raises MatrixError if A is not square, or stores an entry twice; if values have another shape, or no row.

    pattern : a CSR, whose own values have no meaning.  values (k, nnz) : in the order of `pattern`.
    known : analyses of the pattern that were made for this Batch, and those with its pattern.
    k, n, nnz, dtype; shape (k, n, n); len(batch) = k; batch[s] : matrix s, a CSR matrix of scipy.sparse or cupyx.
    """

    def __init__(self, A: Any, values: Any):
        self._begin(*_ordered(A), {}, values)

    def _begin(self, pattern: CSR, order: Any, known: dict[str, Any], given: Any) -> None:
        """given (k, nnz) : in the order of the A that has given the pattern."""
        values = dense_numbers(given, "values")
        if on_gpu(values) != on_gpu(pattern.data):
            raise DeviceError("the pattern and the values of a Batch are on different devices; move one of them first.")
        same_gpu(values, pattern.data)
        if values.ndim != 2 or values.shape[1] != pattern.nnz:
            raise MatrixError(
                f"values has shape {values.shape}, but the pattern has {pattern.nnz} entries; shape "
                f"(k, {pattern.nnz}) is needed, a row for each of the k matrices."
            )
        if not values.shape[0]:
            raise MatrixError(f"values has shape {values.shape}: a Batch of no matrices; k >= 1 rows are needed.")
        xp = namespace(values)
        if values.dtype not in NATIVE:
            values = values.astype(xp.complex128 if values.dtype.kind == "c" else xp.float64)
        values = values if order is None else xp.take(values, order, axis=1)
        self._set(pattern, order, known, xp.ascontiguousarray(values))

    def _set(self, pattern: CSR, order: Any, known: dict[str, Any], values: Any) -> None:
        self.pattern, self.values, self.known, self._order = pattern, values, known, order
        self.k, self.nnz = (int(size) for size in values.shape)
        self.n, self.dtype = pattern.n, values.dtype
        self.shape = self.k, self.n, self.n

    @classmethod
    @ignore_fp_errors
    def of(cls, matrices: Iterable[Any]) -> Batch:
        """The Batch of these matrices, anything that `finelu.as_csr` takes, whose patterns are equal.

        Raises MatrixError, naming the first matrix with another pattern and the row, and for no matrices.
        """
        found = [as_csr(A, diagonal=False) for A in matrices]
        if not found:
            raise MatrixError("a Batch of no matrices; at least one is needed.")
        first = found[0]
        for s, A in enumerate(found):
            if not first.same_pattern(A):
                raise MatrixError(_difference(first, A, s))
        xp = namespace(first.data)
        return cls(first.tosparse(), xp.stack([A.data for A in found]))

    def with_values(self, values: Any) -> Batch:
        """The Batch of the same pattern, with its analyses, and other values (k, nnz), in the order of the A that this
        one was made of. k may differ."""
        batch = object.__new__(type(self))
        batch._begin(self.pattern, self._order, self.known, values)
        return batch

    def __len__(self) -> int:
        return self.k

    def __getitem__(self, s: int) -> Any:
        return self.pattern.with_values(self.values[s]).tosparse()

    def __repr__(self) -> str:
        return f"<Batch of {self.k} matrices {self.n} x {self.n} with {self.nnz} entries each, {self.dtype}>"

    def right_hand_sides(self, b: Any, name: str = "b") -> Any:
        """b as (k, n), or as (1, n) if it is one vector (n,) for all systems, in the dtype of the results.

        Raises MatrixError, naming the wanted shapes, for any other shape.
        """
        b = dense_numbers(b, name)
        if on_gpu(b) != on_gpu(self.values):
            where = ("the GPU", "the host") if on_gpu(b) else ("the host", "the GPU")
            raise DeviceError(f"{name} is on {where[0]} but the Batch is on {where[1]}; move one of them first.")
        same_gpu(b, self.values)
        if b.shape not in ((self.n,), (1, self.n), (self.k, self.n)):
            turned = " It seems to be transposed: a row is the right-hand side of a system." * (
                b.shape == (self.n, self.k)
            )
            raise MatrixError(
                f"{name} has shape {b.shape}, but the Batch has {self.k} systems of {self.n} rows; shape "
                f"({self.k}, {self.n}) is needed, or ({self.n},) for all systems.{turned}"
            )
        xp = namespace(b)
        dtype = np.result_type(self.dtype, b.dtype)
        return as_any_other(xp.ascontiguousarray(b.reshape(-1, self.n).astype(dtype, copy=False)))

    def in_dtype(self, dtype: Any) -> Batch:
        """The Batch with its values in this dtype; itself if they are."""
        return self if self.dtype == dtype else self._like(self.values.astype(dtype))

    def _like(self, values: Any) -> Batch:
        """The Batch with these values, in the order of `pattern`."""
        batch = object.__new__(type(self))
        batch._set(self.pattern, self._order, self.known, values)
        return batch


def _ordered(A: Any) -> tuple[CSR, Any]:
    """The pattern of A, sorted, and the places (nnz,) in A.data of its entries; None if they are 0, 1, 2, ..."""
    if isinstance(A, CSR):
        return A, None
    numbered = getattr(A, "copy", lambda: A)()
    try:
        xp = namespace(A.data)
        numbered.data = xp.arange(1, A.data.size + 1, dtype=np.float64)
        pattern = as_csr(numbered, diagonal=False)
    except (AttributeError, TypeError):
        raise MatrixError(
            f"the pattern of a Batch is a {type(A).__name__}; a sparse matrix is needed, whose entries the values "
            "(k, nnz) follow. Batch.of(matrices) takes a list of matrices."
        ) from None
    order = pattern.data.astype(np.int64) - 1
    if pattern.nnz < A.data.size:
        raise MatrixError("the pattern of a Batch stores an entry twice; sum its duplicates, and its values, first.")
    return pattern, None if bool((order[1:] > order[:-1]).all()) else order


def _difference(first: CSR, A: CSR, s: int) -> str:
    """The message for matrix s, A, whose pattern differs from that of the first."""
    if on_gpu(first.data) != on_gpu(A.data):
        return f"matrix {s} of a Batch is on another device than matrix 0; move one of them first."
    if A.n != first.n:
        return f"matrix {s} of a Batch has {A.n} rows, but matrix 0 has {first.n}; all must have one pattern."
    both = [(to_host(B.indptr), to_host(B.indices)) for B in (first, A)]
    row = next(
        i for i in range(A.n) if not np.array_equal(*(indices[indptr[i] : indptr[i + 1]] for indptr, indices in both))
    )
    return (
        f"matrix {s} of a Batch stores entries in row {row} at other places than matrix 0; all must have one pattern: "
        "store zeros where an entry is missing."
    )
