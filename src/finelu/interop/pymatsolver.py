"""`Solver`: complete factors for pymatsolver, and so for SimPEG."""

from __future__ import annotations

import copy
from typing import Any

from finelu.preconditioners import SparseLU

try:
    from pymatsolver.solvers import Base
except ImportError as error:
    raise ImportError("finelu.interop.pymatsolver needs pymatsolver: pip install pymatsolver.") from error


class Solver(Base):  # type: ignore[misc]
    """A x = b by the complete factors of A, by `finelu.SparseLU`; all columns of b at once.

    A : (n, n), sparse. It is factored when the object is made, and its transpose shares the factors.
    keywords : pymatsolver's own, is_symmetric, is_positive_definite, is_hermitian, check_accuracy, check_rtol and
        check_atol.
    Raises what `SparseLU.factor` raises.
    """

    def __init__(self, A: Any, **keywords: Any):
        super().__init__(A, **keywords)
        self.factors = SparseLU().factor(A)
        self._trans = "N"

    def _solve_single(self, rhs: Any) -> Any:
        return self.factors.solve(rhs, self._trans)

    _solve_multiple = _solve_single

    def transpose(self) -> Solver:
        if self.is_symmetric:
            return self
        other = copy.copy(self)
        other._A, other._trans = self.A.T, "N" if self._trans == "T" else "T"
        return other
