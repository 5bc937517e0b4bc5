"""What ILU0, IC0, ILUK and MILU0 have in common: elimination on a pattern that `update` keeps."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from finelu.factors.report import TriangularReport
from finelu.kernels.operands import CSR


@dataclass(eq=False, repr=False)
class EliminationReport(TriangularReport):
    """symbolic_seconds : how long it took to find the pattern of ILU(k)."""

    symbolic_seconds: float | None = None


class Elimination:
    """The numeric part: a plan, which depends on the pattern alone, and the values in the memory of `factors`.

    With variant="auto" the first plan weighs its own cost. Where another is faster from then on, it is made once the
    factorizations so far took as long as the search for it; on a GPU at the first update. Subclasses give
    `_analyse(once)`, the plan for one factorization or for many, and `_eliminate(A)`, which fills `factors` or raises
    ZeroPivot.
    """

    def __init__(self, recipe: Any, factors: CSR):
        self.recipe, self.factors, self.report = recipe, factors, EliminationReport()
        self.plan: Any = None
        self._factorizations = 0

    def factorize(self, A: CSR) -> CSR:
        """The factors of A, in the memory of the last ones."""
        if self.plan is None or 0 < self.plan.provisional <= self._factorizations:
            start = perf_counter()
            once, self.plan = self.plan is None, None  # the old plan's memory is free for the new one
            self.plan = self._analyse(once)
            self.report.variant, self.report.analysis_seconds = self.plan.variant, perf_counter() - start
        start = perf_counter()
        self._factorizations += 1
        self._eliminate(A)
        self.report.numeric_seconds = perf_counter() - start
        return self.factors

    def _analyse(self, once: bool) -> Any:
        raise NotImplementedError

    def _eliminate(self, A: CSR) -> None:
        raise NotImplementedError
