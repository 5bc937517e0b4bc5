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
from finelu.matrix.vectors import ldexp_by_host
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
EXCEEDS = "its solution is out of the range of numbers; x is 0. Scale its matrix or its right-hand side"


def _norms_of_rows(v: Any) -> Any:
    """(k,) : float64, on the host."""
    parts = v.view(v.real.dtype)
    return to_host(namespace(v).sqrt((parts * parts).sum(axis=1, dtype=np.float64)))


@dataclass
class BatchTargets:
    """The right-hand sides as kernels take them, and what is wanted of their systems.

    b (k, n), or (1, n) : each row times a power of two where squares of norms might leave the range of numbers.
    power (k,) : 2^-power b is what was given, and 2^-power x its solution.
    tolerance (k,) : max(rtol ||b||, atol) for this b, finite, float64.
    wanted (k,) : the same for what was given. On the host, as power and tolerance.
    """

    b: Any
    power: Any
    tolerance: Any
    wanted: Any

    @classmethod
    def of(cls, batch: Batch, b: Any, rtol: float, atol: float) -> BatchTargets:
        """b (k, n), or (1, n) : as given."""
        sizes, most = _norms_of_rows(b), np.finfo(b.dtype).maxexp // 6  # a sixth of the range, as in power_of_two
        power = np.zeros(len(b), np.int64)
        far = np.flatnonzero(~((sizes > 2.0**-most) & (sizes < 2.0**most)))
        if far.size:
            largest = abs(to_host(b[namespace(b).asarray(far)]).view(b.real.dtype)).max(axis=1)
            power[far] = -np.frexp(np.where(np.isfinite(largest), largest, 0))[1]
        if power.any():
            b = ldexp_by_host(b, power[:, None])
            sizes = _norms_of_rows(b)
        sizes, power = (np.broadcast_to(each, batch.k) for each in (sizes, power))
        both = np.maximum(rtol * sizes, np.ldexp(atol, power)), np.maximum(np.ldexp(rtol * sizes, -power), atol)
        return cls(b, power, *np.minimum(both, np.finfo(np.float64).max))

    def scaled_back(self, batch: Batch, x: Any, norms: Any, errors: Any) -> Any:
        """x becomes 2^-power x, or 0 if that is out of range; which systems (k,) have become 0.

        Where digits are lost, norms become those of the x that is left, and the backward errors are not known any more.
        """
        xp = namespace(x)
        given = ldexp_by_host(x, -self.power[:, None])
        exceeds = to_host(~xp.isfinite(given).all(axis=1))
        given[xp.asarray(np.flatnonzero(exceeds))] = 0
        left = ldexp_by_host(given, self.power[:, None])
        changed = np.flatnonzero((to_host(left) != to_host(x)).any(axis=1))
        if changed.size:
            again = xp.empty(changed.size, np.float64)
            kernels = kernels_for(x).batch
            kernels.residual_twice(batch.pattern, batch.values, self.b, left, xp.asarray(changed), again)
            norms[changed], errors[changed] = to_host(again), np.nan
        x[:] = given
        return exceeds


@dataclass
class BatchClaims:
    """The figures of x (k, n) once a kernel has ended, and the claims that follow. All arrays (k,) on the host.

    tolerance : max(rtol ||b||, atol).  norms : ||b - A x||, reliable where they decide.  errors : backward errors.
    converged : whether norms <= tolerance, both finite.
    notes : the systems that hold NaN or Inf, whose x becomes 0.
    finite : whether values and right-hand side of a system are finite.
    exceeds : whether the x of a kernel is out of the range of numbers, and so has become 0.
    """

    x: Any
    tolerance: Any
    norms: Any
    errors: Any
    converged: Any
    finite: Any
    exceeds: Any
    notes: list[Note]

    @classmethod
    def of(cls, batch: Batch, targets: BatchTargets, x: Any, norms: Any, roundings: Any, errors: Any) -> BatchClaims:
        """norms, roundings, errors (k,) : as the kernels of `batch` give them for x and the b of the targets."""
        b, power, tolerance = targets.b, targets.power, targets.tolerance
        xp, errors = namespace(b), to_host(errors)
        norms = batch_norms(batch, b, x, to_host(norms).astype(np.float64), to_host(roundings), tolerance)
        finite, exceeds, notes = np.ones(batch.k, bool), np.zeros(batch.k, bool), list[Note]()
        converged = norms <= tolerance
        if power.any():
            exceeds = targets.scaled_back(batch, x, norms, errors)
            converged &= norms <= tolerance
        norms = np.ldexp(norms, -power)
        converged &= np.isfinite(norms)
        if not converged.all():
            good = [to_host(xp.isfinite(v).all(axis=1)) for v in (batch.values, b)]
            for held, sentence in zip(good, (BAD_VALUES, BAD_RHS), strict=True):
                bad = np.flatnonzero(~np.broadcast_to(held, batch.k) & finite)
                if bad.size:
                    notes.append((tuple(bad.tolist()), sentence))
                    finite[bad], converged[bad], norms[bad], errors[bad] = False, False, np.nan, np.nan
                    x[xp.asarray(bad)] = 0
        return cls(x, targets.wanted, norms, errors, converged, finite, exceeds & finite, notes)

    def open(self) -> Any:
        """The systems that have not converged although they hold neither NaN nor Inf."""
        return np.flatnonzero(~self.converged & self.finite)

    def note(self, systems: Iterable[int], sentence: str) -> None:
        if systems := tuple(int(s) for s in systems):
            self.notes.append((systems, sentence))

    def solution(self, status: Any, iterations: Any, method: str, recipe: str, seconds: float) -> BatchSolution:
        """The BatchSolution; status (k,) of Status for the systems of `open`, of which others need none."""
        status = np.array(status, object)
        status[self.converged], status[~self.finite] = Status.CONVERGED, Status.NOT_FINITE
        return BatchSolution(
            self.x,
            status,
            to_host(iterations),
            self.norms,
            self.errors,
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
            takes = ", ".join(known for known in TAKEN if known in given)
            raise ParameterError(f"{name}={shown(value)}: for a Batch {method} takes {takes}.")
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
    x, targets = xp.empty((k, batch.n), b.dtype), BatchTargets.of(batch, b, rtol, atol)
    tolerance = xp.asarray(targets.tolerance.astype(b.real.dtype))
    norms, roundings, errors = (xp.empty(k, b.real.dtype) for _ in range(3))
    iterations, code = (xp.empty(k, np.int64) for _ in range(2))
    restart: tuple[int, ...] = ()
    if method == "gmres":
        wanted = option["restart"]
        restart = (count("restart", RESTART if wanted is None else wanted, 1),)
    results = x, norms, roundings, errors, iterations, code
    run = getattr(kernels_for(b).batch_krylov, method)
    run(batch.pattern, plan, lu, batch.values, targets.b, tolerance, most, *restart, *results)
    claims = BatchClaims.of(batch, targets, x, norms, roundings, errors)
    claims.note(np.flatnonzero(claims.exceeds), EXCEEDS)
    if M is not None:
        claims.note(np.flatnonzero((M.failed >= 0) & claims.finite), f"{M.recipe!r} has no factors of it")
    status = np.array([STATUS[int(c)] for c in to_host(code)], object)
    status[claims.exceeds] = Status.NOT_FINITE
    recipe = "" if M is None else repr(M.recipe)
    solution = claims.solution(status, iterations, method, recipe, perf_counter() - start)
    if option["raise_on_failure"] and not solution.all_converged:
        s = int(np.flatnonzero(~solution.converged)[0])
        raise NotConverged(f"system {s} of the Batch", solution[s], rtol)
    return solution
