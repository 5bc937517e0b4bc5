"""`solver_callback`: complete factors for DEVSIM, and `use`, which makes it DEVSIM's solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.errors import FineluError
from finelu.preconditioners import SparseLU


class _Factors:
    """The factors of the Jacobians of one solver of DEVSIM. trans : "T" if it solves with the transposed matrix."""

    def __init__(self, n: int, trans: str):
        self.n, self.trans = n, trans
        self._factors: Any = None

    def factor(self, call: dict[str, Any]) -> None:
        dtype = np.complex128 if call["is_complex"] else np.float64
        parts = np.array(call["Ax"]).view(dtype), np.array(call["Ai"]), np.array(call["Ap"])
        A = sp.csc_array(parts, shape=(self.n, self.n))
        if call["is_same_symbolic"] and self._factors is not None:
            self._factors.update(A)
        else:
            self._factors = SparseLU().factor(A)

    def solve(self, call: dict[str, Any]) -> Any:
        b = np.array(call["b"]).view(np.complex128 if call["is_complex"] else np.float64)
        return self._factors.solve(b, self.trans).view(np.float64)


def solver_callback(**call: Any) -> dict[str, Any]:
    """DEVSIM's `solver_callback`: the actions "init", "factor" and "solve", by `finelu.SparseLU`.

    A Jacobian with the pattern of the one before (`is_same_symbolic`) is factored without an analysis. Factors that
    cannot be made or used are answered by status False and the message of the error.
    """
    answer: dict[str, Any] = {"status": True, "message": ""}
    try:
        if call["action"] == "init":
            trans = "T" if call["transpose"] else "N"
            return answer | {"solver_object": _Factors(call["n"], trans), "matrix_format": "csc"}
        if call["action"] == "factor":
            call["solver_object"].factor(call)
            return answer
        return answer | {"x": call["solver_object"].solve(call)}
    except FineluError as error:
        return {"status": False, "message": str(error)}


def use() -> None:
    """Make `solver_callback` DEVSIM's direct solver, for all devices."""
    try:
        import devsim
    except ImportError as error:
        raise ImportError("finelu.interop.devsim.use needs DEVSIM: pip install devsim.") from error
    devsim.set_parameter(name="direct_solver", value="custom")
    devsim.set_parameter(name="solver_callback", value=solver_callback)
