"""The base of ILU0, IC0, ILUK and MILU0: elimination on a pattern that `update` keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from finelu import deadline
from finelu.device import on_gpu
from finelu.errors import ZeroPivot
from finelu.factors.report import TriangularReport
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR

MOST_LOOKS = 2**31 - 1  # marks of `queue`


@dataclass(eq=False, repr=False)
class EliminationReport(TriangularReport):
    """symbolic_seconds : time to compute the pattern of ILU(k)."""

    symbolic_seconds: float | None = None


class Elimination:
    """The numeric part: a plan, which depends only on the pattern, and the values in the memory of `factors`.

    With variant="auto" the first plan is the best for a single factorization, its own cost included. If another plan is
    faster for further ones, it is made once the factorizations so far took as long as the search for it; on a GPU at
    the first update. Subclasses implement `_analyse(once)`, the plan for one factorization or for many;
    `_eliminate(A)`, which fills `factors`, or raises the error of `_broken` for the first bad row; and, if they can,
    `_queue`, for `queue`.
    """

    def __init__(self, recipe: Any, factors: CSR):
        self.recipe, self.factors, self.report = recipe, factors, EliminationReport()
        self.plan: Any = None
        self._factorizations = 0
        self._looks = 0

    @property
    def _plan_serves(self) -> bool:
        return self.plan is not None and not 0 < self.plan.provisional <= self._factorizations

    def factorize(self, A: CSR) -> CSR:
        """The factors of A, in the memory of the last ones."""
        if not self._plan_serves:
            start = perf_counter()
            once, self.plan = self.plan is None, None  # the old plan's memory is free for the new one
            self.plan = self._analyse(once)
            self.report.variant, self.report.analysis_seconds = self.plan.variant, perf_counter() - start
        deadline.check()
        start = perf_counter()
        self._factorizations += 1
        self._eliminate(A)
        self.report.numeric_seconds = perf_counter() - start
        return self.factors

    def queue(self, A: CSR, pattern: CSR) -> Callable[[], bool] | None:
        """As `factorize`, with a single wait, for an A on a GPU that may not be finite, or not on `pattern`.

        It queues the check of A and the elimination. The returned function waits for both and returns whether A was
        valid; if not, `factors` keep their old values. It raises ZeroPivot. Returns None, with nothing queued, if only
        `factorize` can do it.
        """
        if not (self._queues and on_gpu(A.data) and self._plan_serves):
            return None
        start, kernels = perf_counter(), kernels_for(A.data)
        self._looks = self._looks % MOST_LOOKS + 1
        refusal = kernels.elimination.refusal(self.plan, self.factors.data, self._looks)
        theirs = pattern.indptr, pattern.indices
        look = kernels.inspection.queue_alike
        if refusal is None or not look(A.indptr, A.indices, A.data, *theirs, refusal.mark, refusal.unlike):
            return None
        self._queue(A, refusal)
        self._factorizations += 1

        def verdict() -> bool:
            bad, refused = refusal.verdict()
            self.report.numeric_seconds = perf_counter() - start
            if bad >= 0 and not refused:
                raise self._broken(bad)
            return not refused

        return verdict

    def _analyse(self, once: bool) -> Any:
        raise NotImplementedError

    def _eliminate(self, A: CSR) -> None:
        raise NotImplementedError

    @property
    def _queues(self) -> bool:
        """Whether there is a `_queue`, and nothing before it waits for the device."""
        return False

    def _queue(self, A: CSR, refusal: Any) -> None:
        """Queue the elimination of A on a GPU, which may be refused."""
        raise NotImplementedError

    def _broken(self, row: int) -> ZeroPivot:
        raise NotImplementedError
