"""Krylov methods for a `Batch`, the claims of convergence of its systems, and the result that names the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace, to_host
from finelu.errors import MatrixError, NotConverged, ParameterError
from finelu.kernels import kernels_for, monitor
from finelu.krylov.residual import batch_norms
from finelu.matrix.batch import Batch
from finelu.preconditioners.batch import BatchFactors, diagonal_of_ones
from finelu.preconditioners.recipe import same
from finelu.result import BatchSolution, Status
from finelu.validation import count, flag, number, shown

Note = tuple[tuple[int, ...], str]
METHODS = ("cg", "bicgstab", "gmres")
TAKEN = ("rtol", "atol", "maxiter", "M", "raise_on_failure", "restart")  # parameters for a Batch
RESTART = 30  # iterations of a cycle of gmres, as in gmres.py
STATUS = {
    monitor.RUNNING: Status.MAX_ITERATIONS,
    monitor.CONVERGED: Status.STAGNATED,  # by the kernel, but not if its rounding is counted
    monitor.STAGNATED: Status.STAGNATED,
    monitor.BREAKDOWN: Status.BREAKDOWN,
    monitor.INDEFINITE: Status.INDEFINITE,
    monitor.INDEFINITE_PRECONDITIONER: Status.INDEFINITE_PRECONDITIONER,
    monitor.NOT_FINITE: Status.NOT_FINITE,
}
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


def iterate_batch(method: str, batch: Batch, b: Any, given: dict[str, tuple[Any, Any]]) -> BatchSolution:
    """The Krylov method of this name for all systems of a batch, from x = 0; each ends for itself.

    given : the keywords of the call, with their defaults: (value, default).
    Raises ParameterError for a method or a keyword that a Batch does not have, MatrixError if M is not of this Batch.
    """
    start = perf_counter()
    if method not in METHODS:
        raise ParameterError(f"{method} does not take a Batch; {', '.join(METHODS)} do.")
    for name, (value, default) in given.items():
        if name not in TAKEN and not same(value, default):
            raise ParameterError(f"{name}={shown(value)}: for a Batch {method} takes {', '.join(TAKEN[:5])}.")
    option = {name: value for name, (value, _) in given.items()}
    rtol, atol = number("rtol", option["rtol"]), number("atol", option["atol"])
    flag("raise_on_failure", option["raise_on_failure"])
    most = 10 * batch.n if option["maxiter"] is None else count("maxiter", option["maxiter"], 0)
    b = batch.right_hand_sides(b)
    M = option["M"]
    if M is not None and not (isinstance(M, BatchFactors) and M.shape == batch.shape):
        raise MatrixError(f"M is a {type(M).__name__}; for a Batch M is recipe.factor(batch), of {batch.k} systems.")
    batch, xp, k = batch.in_dtype(b.dtype), namespace(b), batch.k
    if M is not None and M.dtype != b.dtype:
        raise MatrixError(f"M is {M.dtype}, but A and b are {b.dtype}; factor batch.in_dtype({str(b.dtype)!r}).")
    plan, lu = diagonal_of_ones(batch) if M is None else (M.plan, M.lu)
    x, tolerance = xp.empty((k, batch.n), b.dtype), tolerances(batch, b, rtol, atol)
    norms, roundings, errors = (xp.empty(k, b.real.dtype) for _ in range(3))
    iterations, code = (xp.empty(k, np.int64) for _ in range(2))
    restart: tuple[int, ...] = ()
    if method == "gmres":
        wanted = option["restart"]
        restart = (count("restart", RESTART if wanted is None else wanted, 1),)
    results = x, norms, roundings, errors, iterations, code
    run = getattr(kernels_for(b).batch_krylov, method)
    run(batch.pattern, plan, lu, batch.values, b, xp.asarray(tolerance.astype(b.real.dtype)), most, *restart, *results)
    claims = BatchClaims.of(batch, b, x, norms, roundings, tolerance)
    if M is not None:
        claims.note(np.flatnonzero((M.failed >= 0) & claims.finite), f"{M.recipe!r} has no factors of it")
    status = np.array([STATUS[int(c)] for c in to_host(code)], object)
    recipe = "" if M is None else repr(M.recipe)
    solution = claims.solution(status, iterations, errors, method, recipe, perf_counter() - start)
    if option["raise_on_failure"] and not solution.all_converged:
        s = int(np.flatnonzero(~solution.converged)[0])
        raise NotConverged(f"system {s} of the Batch", solution[s], rtol)
    return solution
