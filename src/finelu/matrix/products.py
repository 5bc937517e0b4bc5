"""Products with block matrices, shared by `StencilMatrix`, `BlockMatrix` and `MultiblockMatrix`."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.device import namespace, require_one_device
from finelu.errors import MatrixError
from finelu.kernels import kernels_for
from finelu.matrix.vectors import DTYPES, dense_numbers


class BlockProducts:
    """The base of block matrices: products with vectors, on the device of `data`, in the wider dtype.

    Subclasses define data (..., n, n), shape, astype, tocsr, T, and
    most_in_row : an upper bound of the entries of a row.
    _stored() : the arrays of the entries, if these are not `data` alone.
    _at_one_place : the most blocks that are added to each other.
    _product(x, b, out) : out = b - A x, or A x without b, for contiguous vectors of the matrix's dtype.
    """

    data: Any
    shape: Any
    astype: Any
    tocsr: Any
    T: Any
    most_in_row: Any
    _at_one_place = 1
    comm: Any = None  # the processes over which the rows are spread
    _product: Any
    _wider: dict[np.dtype[Any], Any]  # the matrix in other dtypes, which Krylov methods use repeatedly

    @property
    def n_block(self) -> int:
        """Rows of a block."""
        return int(self.data.shape[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.data.dtype
        return dtype

    @cached_property
    def H(self) -> Any:
        """A^H as a matrix of its own, kept."""
        transposed = self.T
        if self.dtype.kind == "c":
            namespace(self.data).conj(transposed.data, out=transposed.data)
        return transposed

    def matvec(self, x: Any) -> Any:
        """A x. x : (N,) or (N, k) on the device of A; the result has the wider dtype of the two."""
        return self._applied(x, None)

    def residual(self, b: Any, x: Any) -> Any:
        """b - A x, both (N,) or both (N, k), in one pass over the blocks for each column."""
        return self._applied(x, b)

    def rmatvec(self, x: Any) -> Any:
        """A^H x; A^H is made at the first call, in memory of its own, and kept."""
        return self.H.matvec(x)

    def __matmul__(self, x: Any) -> Any:
        return self.matvec(x)

    def norm_bound(self) -> float:
        """An upper bound of || |A| ||_2, by a Frobenius norm, over all processes, which must all call it; Inf if it
        overflows. One pass over all blocks, also those that point outside of the grid; waits for the device."""
        parts = self._stored()
        norms = namespace(self.data).empty(len(parts), self.data[:0].real.dtype)
        for k, part in enumerate(parts):
            kernels_for(part).vectors.norm(part.reshape(-1), norms[k : k + 1])
        own = math.hypot(*norms.tolist())
        whole = own if self.comm is None else math.hypot(*self.comm.allgather(own))
        return math.sqrt(self._at_one_place) * (1 + float(np.finfo(norms.dtype).eps)) * whole  # norms are rounded

    def _stored(self) -> list[Any]:
        return [self.data]

    @ignore_fp_errors
    def _applied(self, x: Any, b: Any) -> Any:
        x = self._checked(x, "x")
        if b is not None:
            b = self._checked(b, "b")
            if b.shape != x.shape:
                raise MatrixError(f"b has shape {b.shape}, but x has {x.shape}; they must agree.")
        dtype = np.result_type(self.dtype, x.dtype, *([] if b is None else [b.dtype]))
        if dtype != self.dtype:
            if dtype not in self._wider:
                self._wider[dtype] = self.astype(dtype)
            return self._wider[dtype]._applied(x, b)
        xp = namespace(self.data)
        out = xp.empty(x.shape, dtype)
        if x.ndim == 1:
            own, right = (None if v is None else xp.ascontiguousarray(v, dtype=dtype) for v in (x, b))
            self._product(own, right, out)
            return out
        column = xp.empty(x.shape[0], dtype)
        for c in range(x.shape[1]):
            own, right = (None if v is None else xp.ascontiguousarray(v[:, c], dtype=dtype) for v in (x, b))
            self._product(own, right, column)
            out[:, c] = column
        return out

    def _checked(self, x: Any, name: str) -> Any:
        x = dense_numbers(x, name)
        require_one_device(x, self.data, f"{name} and the blocks")
        if x.ndim not in (1, 2) or x.shape[0] != self.shape[0]:
            raise MatrixError(
                f"{name} has shape {x.shape}, but A has {self.shape[0]} rows; shape ({self.shape[0]},) or "
                f"({self.shape[0]}, k) is needed."
            )
        return x if str(x.dtype) in DTYPES else x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
