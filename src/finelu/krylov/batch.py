"""Solutions of a `Batch`: the claims of convergence of all systems, and the result that names those without one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu.device import namespace, to_host
from finelu.krylov.residual import batch_norms
from finelu.matrix.batch import Batch
from finelu.result import BatchSolution, Status

Note = tuple[tuple[int, ...], str]
BAD_VALUES = "its values hold NaN or Inf; x is 0. Find where they come from before solving"
BAD_RHS = "its right-hand side holds NaN or Inf; x is 0. Find where they come from before solving"


def tolerances(batch: Batch, b: Any, rtol: float, atol: float) -> Any:
    """max(rtol ||b||, atol) (k,), float64 on the host, for b (k, n) or (1, n)."""
    sizes = to_host(namespace(b).sqrt((abs(b) ** 2).sum(axis=1))).astype(np.float64)
    return np.maximum(rtol * np.broadcast_to(sizes, batch.k), atol)


@dataclass
class BatchClaims:
    """The figures of x (k, n) once a kernel has ended, and the claims that follow. All arrays (k,) on the host.

    tolerance : max(rtol ||b||, atol).  norms : ||b - A x||, reliable where they decide.
    converged : whether norms <= tolerance.  notes : the systems that hold NaN or Inf, whose x becomes 0.
    finite : whether values and right-hand side of a system are finite.
    """

    batch: Batch
    b: Any
    x: Any
    tolerance: Any
    norms: Any
    converged: Any
    finite: Any
    notes: list[Note]

    @classmethod
    def of(cls, batch: Batch, b: Any, x: Any, norms: Any, roundings: Any, tolerance: Any) -> BatchClaims:
        """norms, roundings (k,) : as the kernels of `batch` give them for x."""
        xp = namespace(b)
        norms = batch_norms(batch, b, x, to_host(norms).astype(np.float64), to_host(roundings), tolerance)
        converged, finite, notes = norms <= tolerance, np.ones(batch.k, bool), list[Note]()
        if not converged.all():
            good = [to_host(xp.isfinite(v).all(axis=1)) for v in (batch.values, b)]
            for held, sentence in zip(good, (BAD_VALUES, BAD_RHS), strict=True):
                bad = np.flatnonzero(~np.broadcast_to(held, batch.k) & finite)
                if bad.size:
                    notes.append((tuple(bad.tolist()), sentence))
                    finite[bad], converged[bad], norms[bad] = False, False, np.nan
                    x[xp.asarray(bad)] = 0
        return cls(batch, b, x, tolerance, norms, converged, finite, notes)

    def open(self) -> Any:
        """The systems that have not converged although they hold neither NaN nor Inf."""
        return np.flatnonzero(~self.converged & self.finite)

    def note(self, systems: Iterable[int], sentence: str) -> None:
        if systems := tuple(int(s) for s in systems):
            self.notes.append((systems, sentence))

    def solution(
        self, status: Any, iterations: Any, errors: Any, method: str, recipe: str, seconds: float
    ) -> BatchSolution:
        """The BatchSolution; status (k,) of Status for the systems of `open`, of which others need none."""
        status = np.array(status, object)
        status[self.converged], status[~self.finite] = Status.CONVERGED, Status.NOT_FINITE
        errors = np.where(self.finite, to_host(errors), np.nan)
        return BatchSolution(
            self.x,
            status,
            to_host(iterations),
            self.norms,
            errors,
            self.tolerance,
            method,
            recipe,
            tuple(self.notes),
            {"solve": seconds},
        )
