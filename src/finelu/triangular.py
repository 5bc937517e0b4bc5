"""Sparse triangular solves: analysed once, solved as often as wanted, updated with new values.

Methods on the GPU: `sync_free` (Dufrechou & Ezzatti 2018), `level_packed` (ILUPACK on GPUs, 2019, section 4.2),
`one_block` (level order in the shared memory of one multiprocessor), `jacobi`, `isai`; on the CPU: `sequential`,
`levels`, `jacobi`, `isai`. `auto` takes the exact method that was measured to be fastest for such level sets. On the
CPU it begins with `sequential`, and computes the level sets once its solves have taken as long as that does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.device import as_any_other, namespace, on_gpu, require_one_device
from finelu.errors import MatrixError, NoFactors, ParameterError, ZeroPivot, counted, meant
from finelu.kernels import kernels_for
from finelu.kernels.operands import Triangle, narrowed
from finelu.matrix import CSR, as_csr
from finelu.matrix.in_range import in_range, is_finite

DEFAULT_SWEEPS = {"jacobi": 10, "isai": 1}


def triangle(A: CSR, lower: bool, unit: bool, trans: str = "N") -> Triangle:
    """The strict lower (or upper) triangle of A and its diagonal, for trans "N", or transposed for "T" and "H".

    N only counts entries; T and H sort the entries by columns, on A's device.
    Raises MatrixError if `unit` is false and A misses diagonal entries.
    """
    xp, kernels = namespace(A.data), kernels_for(A.data)
    indices, index = kernels.indices, A.indices.dtype
    if A.missing:
        if not unit:
            as_csr(A)  # raises, naming the row
        rows = xp.searchsorted(A.indptr, xp.arange(A.nnz, dtype=index), side="right") - 1
        before = A.indptr[:-1] + xp.bincount(rows[A.indices < rows], minlength=A.n).astype(index)
        begin, end = (A.indptr[:-1], before) if lower else (before + (A.diag >= 0), A.indptr[1:])
        begin, end = begin.astype(index, copy=False), end.astype(index, copy=False)
        entries, longest = int((end - begin).sum(dtype=np.int64)), int((end - begin).max())
    elif lower:
        begin, end = A.indptr[:-1], A.diag
        _, longest, _, entries = A.facts
    else:
        begin, end = indices.shifted(A.diag, 1), A.indptr[1:]
        _, _, longest, below = A.facts
        entries = A.nnz - A.n - below
    diag = None if unit else A.diag
    if trans == "N":
        return Triangle(A.n, begin, end, A.indices, not lower, diag, None, False, entries, longest, A.dtype)
    # Column by column; the rows of each column stay in order.
    if xp is np:
        indptr, rows, source = kernels.graph.transposed_places(begin, end, A.indices)
    else:
        pointers, _ = indices.pointers(indices.lengths(begin, end))
        row, place = indices.entries(pointers, entries, begin)
        column = kernels.vectors.gather(A.indices, place)
        by_column = xp.argsort(column, kind="stable")
        indptr = indices.starts(kernels.vectors.gather(column, by_column), A.n)
        rows, source = (kernels.vectors.gather(v, by_column) for v in (row, place))
    indptr = indptr.astype(index, copy=False)
    return Triangle(
        A.n,
        indptr[:-1],
        indptr[1:],
        rows.astype(index, copy=False),
        lower,
        diag,
        source,
        trans == "H",
        entries,
        indices.longest(indptr),
        A.dtype,
    )


class TriangularSolver:
    """Solve T x = b, T^T x = b or T^H x = b for the lower or upper triangle T of a sparse matrix.

    A : anything that `as_csr` takes; only the wanted triangle is read (L and U may share one matrix).
    lower : True for the lower triangle, False for the upper one.
    unit : whether its diagonal counts as ones (then none need be stored).
    trans : "N", "T" or "H".
    method : a name in the docstring of the module, or "auto".
    sweeps : of `jacobi` (default 10) and `isai` (default 1, each further one a correction); an error for other methods.
    check : True raises ZeroPivot here and in `update` for a zero diagonal entry, and MatrixError in `solve` on the CPU
        for an x that is not finite; False leaves this to the caller, and does not wait for a GPU.
    Cost: the analysis once, then O(nnz) a solve. levels, level_packed, one_block and auto analyse the levels; auto on
    the CPU does so with the 20th solve, or later if the kernels of the analysis were never compiled. A CSR of finelu is
    kept without a copy, any other matrix on the CPU is copied.
    Attributes: method (the one in use), levels (their number; None before the analysis), n, dtype, and plan, that of
    the kernels, with the values of the last update.
    """

    @ignore_fp_errors
    def __init__(
        self,
        A: Any,
        *,
        lower: bool = True,
        unit: bool = False,
        trans: str = "N",
        method: str = "auto",
        sweeps: int | None = None,
        check: bool = True,
    ) -> None:
        given, A = A, as_csr(A, diagonal=False)
        if A.missing and not unit:
            row = int(namespace(A.data).flatnonzero(A.diag < 0)[0])
            raise MatrixError(
                f"A stores no diagonal entry in row {row} ({counted(A.missing, 'such row')}), and a triangular solve "
                "divides by it. Store it, or pass unit=True for a diagonal of ones."
            )
        if given is not A and not on_gpu(A.data):
            A = A.copy()  # so that later changes of the arrays of `given` do not change a solve
        kernels = kernels_for(A.data)
        if trans not in ("N", "T", "H"):
            raise ParameterError(f"trans={trans!r}; one of N, T, H is needed.")
        if method not in (*kernels.triangular.TRIANGULAR_METHODS, "auto"):
            device = "GPU" if on_gpu(A.data) else "CPU"
            offered = ", ".join((*kernels.triangular.TRIANGULAR_METHODS, "auto"))
            raise ParameterError(
                f"method={method!r} is not offered on the {device}; one of {offered} is needed."
                + meant(method, (*kernels.triangular.TRIANGULAR_METHODS, "auto"))
            )
        if sweeps is not None and (method not in DEFAULT_SWEEPS or sweeps < 1):
            raise ParameterError(
                f"sweeps={sweeps} has no meaning with method={method!r}; it is for jacobi and isai, >= 1."
            )
        self.lower, self.unit, self.trans = lower, unit, trans
        self.n, self.dtype, self.check = A.n, A.dtype, check
        self._kernels, self._xp, self._nnz, self._like = kernels, namespace(A.data), A.nnz, A.data
        operand = triangle(A, lower, unit, trans)
        self.nnz = operand.entries + (0 if unit else A.n)
        self.plan = kernels.triangular.triangular_plan(operand, method, sweeps or DEFAULT_SWEEPS.get(method, 1))
        self._load(A.data)

    def __getstate__(self) -> Any:
        modules = ("_kernels", "_xp")
        return {name: value for name, value in self.__dict__.items() if name not in modules}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        self._kernels, self._xp = kernels_for(self._like), namespace(self._like)

    @property
    def method(self) -> str:
        """The method in use; "auto" may change to another on the CPU after some solves."""
        return str(self.plan.method)

    @property
    def levels(self) -> int | None:
        depth: int | None = self.plan.depth
        return depth

    @ignore_fp_errors
    def update(self, data: Any) -> TriangularSolver:
        """Take new values; the analysis is kept. Returns self.

        data : (nnz,), the new values in the order of A's entries, in A's dtype; or, except for isai, in single
            precision where A has double: solves then read them as they are, and compute in double.
        The array may be kept rather than copied: do not change it before the next update.
        """
        require_one_device(data, self._like, "the new values and the analysis")
        stored = data.dtype == self.dtype or (data.dtype == narrowed(self.dtype) and self.plan.method != "isai")
        if data.shape != (self._nnz,) or not stored:
            raise MatrixError(
                f"new values have shape {data.shape} and dtype {data.dtype}; ({self._nnz},) of {self.dtype} is needed."
            )
        self._load(data)
        return self

    def _load(self, data: Any) -> None:
        self._valid = False
        bad = self.plan.load(data, self.check and not self.unit)
        if self.check and not self.unit:
            row = self._kernels.vectors.first_bad(bad)
            if row >= 0:
                raise ZeroPivot(
                    self, row, "zero or too small", "has no finite reciprocal", "Store a larger one, or pass unit=True."
                )
        self._valid = True

    def multiply(self, data: Any, x: Any) -> Any:
        """T x for x (n,), with the values `data` (nnz,) in place of A's; of a triangle with trans="N", unchecked."""
        return self._kernels.triangular.triangle_product(self.plan.triangle, data, x)

    @ignore_fp_errors
    def solve(self, b: Any, out: Any = None) -> Any:
        """x (n,) or (n, k) with T x = b, in a new array or in `out` (C-contiguous, of x's dtype, apart from b).

        x has the dtype of the triangle; complex in that precision if b is complex: a real triangle then solves for both
        parts of b at once, as for twice as many columns. On the CPU it is finite, as that of
        `Factors.solve`.
        """
        require_one_device(b, self._like, "the right-hand side and the triangle")
        b = as_any_other(self._xp.asarray(b))
        if b.ndim not in (1, 2) or b.shape[0] != self.n:
            raise MatrixError(f"the right-hand side has shape {b.shape}, but the triangle has {self.n} rows.")
        parts = b.dtype.kind == "c" and self.dtype.kind != "c"
        dtype = np.result_type(self.dtype, np.complex64) if parts else self.dtype
        if not np.can_cast(b.dtype, dtype, "same_kind"):
            raise MatrixError(f"the right-hand side has dtype {b.dtype}, which does not go into {dtype}.")
        if out is not None and (
            out.shape != b.shape
            or out.dtype != dtype
            or not out.flags.c_contiguous
            or self._xp.may_share_memory(out, b)
        ):
            raise MatrixError(
                f"out must be a C-contiguous {dtype} array of shape {b.shape} that shares no memory with b."
            )
        if not parts:
            x = self.apply(b, out)
            if not self.check or on_gpu(x) or is_finite(x):
                return x
            found = in_range(x, b, self.apply, repr(self))
            if out is None:
                return found
            out[...] = found
            return out
        columns = self._xp.ascontiguousarray(b, dtype=dtype).reshape(self.n, -1).view(self.dtype)
        x = self.apply(columns)
        x = in_range(x, columns, self.apply, repr(self)) if self.check else x
        x = x.view(dtype).reshape(b.shape)
        if out is None:
            return x
        out[...] = x
        return out

    def apply(self, b: Any, out: Any = None) -> Any:
        """`solve` without its checks: for callers with `ignore_fp_errors` that have checked b's device, shape and
        dtype."""
        if not self._valid:
            raise NoFactors(self)
        b = self._xp.ascontiguousarray(b, dtype=self.dtype)
        out = self._xp.empty_like(b) if out is None else out
        if b.size:
            self._kernels.triangular.solve_in_turn([self.plan], b, out)
        return out

    def __repr__(self) -> str:
        side = "lower" if self.lower else "upper"
        return f"TriangularSolver(n={self.n}, {side}, unit={self.unit}, trans={self.trans!r}, method={self.method!r})"


def levels(A: Any) -> tuple[int, int]:
    """The number of level sets of A's lower and of its upper triangle: the longest chains of dependent rows."""
    A = as_csr(A, diagonal=False)
    kernels = kernels_for(A.data)
    below, above = (kernels.levels.levels(triangle(A, lower, True))[1] for lower in (True, False))
    return below, above
