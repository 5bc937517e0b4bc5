"""The precision in which a system is solved: single, double, or first single and then double."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from finelu.auto.attempt import joined
from finelu.matrix import CSR
from finelu.matrix.vectors import as_dtype, underflows
from finelu.result import Solution, Status

SINGLE = 1e-5  # the least rtol that single precision is trusted with
DOUBLE = frozenset(map(np.dtype, (np.float64, np.complex128)))
BEYOND_PRECISION = (Status.PRECISION_LIMIT, Status.NUMERICALLY_SINGULAR, Status.NOT_FINITE)


def precise(A: CSR, b: Any, rtol: float) -> tuple[CSR, Any]:
    """A and b in a precision that can reach rtol; b in the dtype of x."""
    if A.dtype == b.dtype and A.dtype in DOUBLE:
        return A, b
    double = rtol < SINGLE or underflows(A.data)
    dtype = np.result_type(A.dtype, b.dtype, *([np.float64] if double else []))
    of_A = np.result_type(A.dtype, np.empty(0, dtype).real.dtype)
    return as_dtype(A, of_A), as_dtype(b, dtype)


def may_need_double(solution: Solution, b: Any) -> bool:
    """Whether double precision may reach the tolerance that single precision did not.

    b : the right-hand side in the dtype of that solve.
    """
    return solution.status in BEYOND_PRECISION and b.real.dtype == np.float32


def after(first: Solution, second: Solution) -> Solution:
    """The second solution, in double precision from the x of the first, with the iterations and attempts of both."""
    return replace(
        joined(first, second),
        seen=(*second.seen, "single precision was not enough; then A and b were taken in double"),
    )
