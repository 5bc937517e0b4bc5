"""Solvers of whole systems that several benchmarks compare with finelu's.

solver(S, b, end, extra) -> dict: x; iterations; status, "" if the solver claims success; setup, seconds of each; fill.
end: time.perf_counter() at which to stop.  extra: what one benchmark hands to its solvers, or None.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as splinalg

import finelu

RTOL, RESTART, MAXITER = 1e-8, 50, 500
WARM_UP = ("poisson5:9,8", "convection_diffusion:9,8", "helmholtz:9,k=3,absorbing=False", "stokes:6")
Solver = Callable[..., dict[str, Any]]


class OutOfTime(Exception):
    """Raised in the callback of a peer, since the limit was reached."""


def finelu_gmres(S: sp.csr_matrix, b: Any, M: Any, end: float, maxiter: int = MAXITER) -> dict[str, Any]:
    solution = finelu.gmres(
        S,
        b,
        M=M,
        rtol=RTOL,
        restart=RESTART,
        maxiter=maxiter,
        watch=lambda *_: time.perf_counter() > end,
    )
    status = "" if solution.converged else solution.status.name.lower().replace("_", " ")
    status = {"interrupted": "time", "max iterations": f"{maxiter} iterations"}.get(status, status)
    return {"x": solution.x, "iterations": solution.iterations, "status": status}


def int32_csr(S: sp.csr_matrix) -> sp.csr_matrix:
    """S as ilupp takes it."""
    return sp.csr_matrix((S.data, S.indices.astype(np.int32), S.indptr.astype(np.int32)), shape=S.shape)


def ilupp_multilevel(S: sp.csr_matrix, threshold: float | None) -> Any:
    import ilupp

    A = int32_csr(S)
    return ilupp.ILUppPreconditioner(A) if threshold is None else ilupp.ILUppPreconditioner(A, threshold=threshold)


def scipy_spilu(S: sp.csr_matrix, b: Any, end: float, extra: Any = None, maxiter: int = MAXITER) -> dict[str, Any]:
    begin, count = time.perf_counter(), 0
    F = splinalg.spilu(sp.csc_matrix(S))
    setup = time.perf_counter() - begin

    def watch(_):
        nonlocal count
        count += 1
        if time.perf_counter() > end:
            raise OutOfTime

    M = splinalg.LinearOperator(S.shape, F.solve, dtype=S.dtype)
    options = {"restart": RESTART, "maxiter": maxiter // RESTART, "callback": watch, "callback_type": "pr_norm"}
    x, info = splinalg.gmres(S, b, M=M, rtol=RTOL, **options)
    status = "" if info == 0 else f"{maxiter} iterations" if count >= maxiter else "breakdown"
    return {"x": x, "iterations": count, "status": status, "setup": [setup], "fill": F.nnz / S.nnz}


def scipy_splu(S: sp.csr_matrix, b: Any, end: float, extra: Any = None, **settings) -> dict[str, Any]:
    begin = time.perf_counter()
    F = splinalg.splu(sp.csc_matrix(S), **settings)
    setup = time.perf_counter() - begin
    return {"x": F.solve(b), "iterations": None, "status": "", "setup": [setup], "fill": F.nnz / S.nnz}
