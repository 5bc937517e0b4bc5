"""Preconditioned conjugate gradients of which every operation is a call of Intel MKL; float64, int32.

The preconditioner is ILU(0) by dcsrilu0, applied by two mkl_sparse_d_trsv; the product is mkl_sparse_d_mv or, with the
dot product in the same call, mkl_sparse_d_dotmv; the vectors are those of cblas. `benchmarks.peers.mkl` finds MKL.
"""

from __future__ import annotations

from ctypes import POINTER, byref, c_double, c_int, c_void_p
from dataclasses import dataclass
from functools import cache
from math import sqrt
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.peers import mkl

MATRIX_TYPE_GENERAL = 20
GENERAL = (MATRIX_TYPE_GENERAL, 0, 0)
MANY = 10_000  # calls that MKL is to expect
MV, OPTIMIZED_MV, DOTMV = PRODUCTS = ("mv", "optimized mv", "optimized dotmv")


@dataclass(frozen=True)
class Setting:
    """How MKL is called.

    threads : of the triangular solves; the rest has as many as `mkl.set_num_threads` says.
    optimized : whether mkl_sparse_optimize looks at the triangles.
    product : one of PRODUCTS; an optimized matrix gets a hint and mkl_sparse_optimize.
    """

    threads: int
    optimized: bool = True
    product: str = OPTIMIZED_MV

    @property
    def triangles(self) -> str:
        return f"{'optimized ' if self.optimized else ''}trsv on {self.threads}"


@cache
def library() -> Any:
    """As mkl.library, with the argument types of the functions used here."""
    lib = mkl.library()
    scalar, vector = c_double, c_void_p
    lib.mkl_sparse_set_mv_hint.argtypes = [c_void_p, c_int, mkl._Descr, c_int]
    lib.mkl_sparse_set_dotmv_hint.argtypes = [c_void_p, c_int, mkl._Descr, c_int]
    lib.mkl_sparse_d_mv.argtypes = [c_int, scalar, c_void_p, mkl._Descr, vector, scalar, vector]
    lib.mkl_sparse_d_dotmv.argtypes = [*lib.mkl_sparse_d_mv.argtypes, POINTER(c_double)]
    lib.cblas_ddot.argtypes = [c_int, vector, c_int, vector, c_int]
    lib.cblas_ddot.restype = c_double
    lib.cblas_daxpy.argtypes = [c_int, scalar, vector, c_int, vector, c_int]
    lib.cblas_daxpby.argtypes = [c_int, scalar, vector, c_int, scalar, vector, c_int]
    lib.MKL_Set_Num_Threads_Local.argtypes = [c_int]
    return lib


class ILU0:
    """dcsrilu0 of A, a CSR as `mkl.ILU0` takes it, and its two triangles; all of it is set-up."""

    def __init__(self, A: Any, setting: Setting):
        self._lib, self._threads = library(), setting.threads
        values = mkl.ILU0(A).factor()
        LU = sp.csr_matrix((values, A.indices, A.indptr), shape=A.shape)
        self._lib.MKL_Set_Num_Threads_Local(self._threads)
        try:
            self._lower = mkl.TriangularSolve(LU, lower=True, unit=True, optimize=setting.optimized)
            self._upper = mkl.TriangularSolve(LU, lower=False, unit=False, optimize=setting.optimized)
        finally:
            self._lib.MKL_Set_Num_Threads_Local(0)
        self._y, self._z = np.zeros(A.shape[0]), np.zeros(A.shape[0])

    def solve(self, r: Any, out: Any = None) -> Any:
        """(L U)^-1 r into out, (n,) and contiguous as r is; without it into a vector that the next call overwrites."""
        out = self._z if out is None else out
        self._lib.MKL_Set_Num_Threads_Local(self._threads)
        try:
            self._lower.solve(r, self._y)
            return self._upper.solve(self._y, out)
        finally:
            self._lib.MKL_Set_Num_Threads_Local(0)

    def close(self) -> None:
        self._lower.close()
        self._upper.close()


class Product:
    """A p, and p^T A p, as the setting says; the work of the constructor is set-up."""

    def __init__(self, A: Any, product: str):
        self._lib, self._handle, self._descr = library(), c_void_p(), mkl._Descr(*GENERAL)
        given = ((A.indptr, np.int32), (A.indices, np.int32), (A.data, np.float64))
        self._arrays = tuple(np.ascontiguousarray(array, dtype) for array, dtype in given)
        indptr, indices, data = (a.ctypes.data for a in self._arrays)
        self._n, self._fused, self._total = A.shape[0], product == DOTMV, c_double()
        create = self._lib.mkl_sparse_d_create_csr
        size, ends = (self._n, self._n), (indptr, indptr + 4)
        mkl._check(create(byref(self._handle), mkl.INDEX_BASE_ZERO, *size, *ends, indices, data), "create_csr")
        if product != MV:
            hint = self._lib.mkl_sparse_set_dotmv_hint if self._fused else self._lib.mkl_sparse_set_mv_hint
            mkl._check(hint(self._handle, mkl.OPERATION_NON_TRANSPOSE, self._descr, MANY), "hint of the product")
            mkl._check(self._lib.mkl_sparse_optimize(self._handle), "mkl_sparse_optimize")

    def with_dot(self, p: int, q: int) -> float:
        """q = A p, both addresses of vectors; returns p^T q."""
        arguments = (mkl.OPERATION_NON_TRANSPOSE, 1.0, self._handle, self._descr, p, 0.0, q)
        if self._fused:
            mkl._check(self._lib.mkl_sparse_d_dotmv(*arguments, byref(self._total)), "mkl_sparse_d_dotmv")
            return self._total.value
        mkl._check(self._lib.mkl_sparse_d_mv(*arguments), "mkl_sparse_d_mv")
        return float(self._lib.cblas_ddot(self._n, p, 1, q, 1))

    def close(self) -> None:
        self._lib.mkl_sparse_destroy(self._handle)


def cg(A: Product, b: Any, M: ILU0, rtol: float, maxiter: int, end: float) -> tuple[np.ndarray, int, bool]:
    """x, iterations, whether the residual that the method carries along fell to rtol ||b||; from x = 0.

    The operations of `finelu.cg` (Saad 2003, Alg. 9.1).  end : of perf_counter, after which no iteration begins.
    """
    lib, n = library(), b.size
    x, r, z, p, q = (np.zeros(n) for _ in range(5))
    xs, rs, zs, ps, qs = (v.ctypes.data for v in (x, r, z, p, q))
    np.copyto(r, b)
    M.solve(r, z)
    np.copyto(p, z)
    rho = lib.cblas_ddot(n, rs, 1, zs, 1)
    tolerance = rtol * sqrt(lib.cblas_ddot(n, rs, 1, rs, 1))
    for k in range(1, maxiter + 1):
        curvature = A.with_dot(ps, qs)
        if not curvature > 0:  # where finelu.cg ends, too
            return x, k - 1, False
        alpha = rho / curvature
        lib.cblas_daxpy(n, alpha, ps, 1, xs, 1)
        lib.cblas_daxpy(n, -alpha, qs, 1, rs, 1)
        if sqrt(lib.cblas_ddot(n, rs, 1, rs, 1)) <= tolerance:
            return x, k, True
        if perf_counter() > end:
            return x, k, False
        M.solve(r, z)
        rho, old = lib.cblas_ddot(n, rs, 1, zs, 1), rho
        lib.cblas_daxpby(n, 1.0, zs, 1, rho / old, ps, 1)
    return x, maxiter, False
