"""What ILU0, IC0, ILUK and MILU0 have in common: elimination on a pattern that `update` keeps."""

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
    """symbolic_seconds : how long it took to find the pattern of ILU(k)."""

    symbolic_seconds: float | None = None


class Elimination:
    """The numeric part: a plan, which depends on the pattern alone, and the values in the memory of `factors`.

    With variant="auto" the first plan weighs its own cost. Where another is faster from then on, it is made once the
    factorizations so far took as long as the search for it; on a GPU at the first update. Subclasses give
    `_analyse(once)`, the plan for one factorization or for many, `_eliminate(A)`, which fills `factors`, or fails with
    what `_broken` makes of the first bad row, and where they can `_queue`, for `queue`.
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
        """As `factorize`, for an A on a GPU that may not be finite, or not on `pattern`: with one wait for both.

        It queues the look at A and the elimination. The function that is returned waits for them and says whether A
        was fine; else `factors` have the values that they had. It raises ZeroPivot. None: nothing was queued, as only
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
