"""Factors that are applied by triangular solves, whose sequence is data."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from finelu.device import lies_in_order, namespace, synchronize, to_host
from finelu.errors import ParameterError
from finelu.factors.arranged import Arrangement
from finelu.factors.base import Factors, random_numbers
from finelu.factors.report import TriangularReport
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, narrowed
from finelu.triangular import DEFAULT_SWEEPS, TriangularSolver

PERIOD = 4093  # numbers of the random vector on which rounding is tried, a prime: it repeats them
# Change of M by rounding to single precision, on a random vector. With 283 factors of 55 real matrices it was at most
# 2.2e-4: 220 of them led to 1e-8 with and without rounding, in the same number of iterations up to one of 256, and 63
# in neither case. With 22 others it was 1.1e-3 to 8e43.
MOST_CHANGE = 1e-3


class Solve(NamedTuple):
    """A solve with the lower or the upper triangle; `unit`: its diagonal counts as ones.  trans : "N", "T", "H"."""

    lower: bool
    unit: bool
    trans: str


class Numeric(Protocol):
    """The numeric part of a factorization: made from the pattern of A, kept by the factors, and repeated by
    `update`."""

    @property
    def report(self) -> TriangularReport: ...

    def factorize(self, A: CSR) -> CSR:
        """The triangles of the factors in one matrix, which is the numeric part's; or an error. A is not written."""
        ...


class TriangularFactors(Factors):
    """Factors that are two triangles; `SOLVES` of a subclass lists the solves of M^-1, M^-T and M^-H in their order.

    numeric : makes the triangles.  triangles : the first ones.  sweeps : of the triangular solves.
    arranged : the order of the factors' rows, if it is not A's.  trial : whether factors are tried by a solve, see
    `trial_residual`. The solves with M are made with the factors, those with its transpose when they are first needed;
    all are kept.

    With precision="auto" in the recipe they read the values in single precision, and compute with them in double, as
    long as that changes M little: `_store` rounds the values and measures it. A transposed solve reads the same
    numbers, so M^-H is the adjoint of M^-1, and M = L L^H stays Hermitian and definite.
    """

    SOLVES: ClassVar[dict[str, tuple[Solve, ...]]]
    well_formed = capturable = True
    CONJUGATED: ClassVar[str] = ""  # the trans for which complex M^-1 is conj(M^-1 conj(r))

    def __init__(
        self,
        recipe: Any,
        A: CSR,
        numeric: Numeric,
        triangles: CSR,
        *,
        sweeps: int | None,
        arranged: Arrangement | None = None,
        trial: bool = False,
    ):
        self._solvers: dict[Solve, TriangularSolver] = {}
        self._in_turn: dict[str, Callable[[Any, Any], None]] = {}  # (r, x) -> x = M^-1 r, M^-T r or M^-H r
        self._reported: tuple[Solve, ...] = ()  # the solves that existed when the triangles were taken
        super().__init__(recipe, A, report=numeric.report)
        self._conjugated = self.CONJUGATED if self.dtype.kind == "c" else ""
        self._numeric, self._sweeps, self._arranged, self._trial = numeric, sweeps, arranged, trial
        self._triangles = triangles
        self._rounds = getattr(recipe, "precision", None) in ("auto", "half")
        self._stored = triangles.data  # the values that the solves read
        self._assemble(A, triangles)

    @property  # type: ignore[override]  # more facts than the base's
    def report(self) -> TriangularReport:
        """The report; its `triangular` has the present methods of the solves, which "auto" may change after some."""
        self._report.triangular = {
            ("lower" if solve.lower else "upper") + ("" if solve.trans == "N" else f" {solve.trans}"): {
                "method": self._solvers[solve].method,
                "levels": self._solvers[solve].levels,
            }
            for solve in self._reported
        }
        return self._report

    @report.setter
    def report(self, report: Any) -> None:
        self._report: TriangularReport = report

    def _refresh(self, A: CSR) -> None:
        self._assemble(A, self._numeric.factorize(A))

    def _updated_at_once(self, A: CSR) -> bool:
        queue = getattr(self._numeric, "queue", None)  # see preconditioners/elimination.py
        if queue is None or self._trial:
            return False
        with self._lock:
            valid, self._valid = self._valid, False
            verdict = queue(A, self.pattern)
            done = False
            if verdict is not None:
                self.updates += 1
                if not self._rounds:
                    self._load(self._triangles.data)  # while the device is at work
                done = verdict()
                if done and self._rounds:
                    self._store()
            self._valid = done or valid
        return done

    def _assemble(self, A: CSR, triangles: CSR) -> None:
        """Take triangles: solves are analysed anew if their pattern is new."""
        start = perf_counter()
        if triangles.indices is not self._triangles.indices:
            self._reported, self._solvers, self._in_turn = (), {}, {}
            self._stored = triangles.data  # the rounded values are those of the old pattern
        self._triangles = triangles
        if self._rounds:
            self._store()
        else:
            self._load(triangles.data)
        for solve in self.SOLVES["N"]:
            self._solver(solve)
        self._reported = tuple(self._solvers)
        self._report.triangular_seconds = perf_counter() - start
        if self._trial:
            self._try_solve(A, lambda v: self._apply(v, "N"))

    def _load(self, values: Any) -> None:
        """Have all solves read these values."""
        self._stored = values
        for solver in self._solvers.values():
            solver.update(values)

    def _store(self) -> None:
        """Store the triangles in single precision for the solves, which have them in double, if that pays and M changes
        little.

        With M' for the rounded M, M'^-1 M y is compared with y, which is random; where solves are approximate, M'^-1 r
        with M^-1 r for a random r. Of M = L L^H the same is done with L: its adjoint changes as much. Cost: a solve, a
        product, and a pass over the values; waits for the device.
        """
        if self.recipe.precision == "half":
            self._store_half()
            return
        values = self._triangles.data
        xp, kernels, report, single = namespace(values), kernels_for(values), self._report, narrowed(self.dtype)
        report.stored, report.stored_since, report.rounding_change = str(self.dtype), None, None
        if single == self.dtype:
            self._load(values)
            return
        solvers = [self._solver(solve) for solve in self.SOLVES["N"] if solve.trans == "N"]
        if not any(kernels.triangular.bound_by_bytes(solver.plan) for solver in solvers):
            report.stored_since = "the time of exact solves is that of rows that wait for each other, not of the bytes"
            self._load(values)
            return
        kept = self._stored.dtype == single and self._stored.size == values.size
        rounded = self._stored if kept else xp.empty(values.size, single)
        found = xp.empty(3)  # whether entries are out of range, the norms of the change and of y
        kernels.vectors.rounded(values, rounded, found[:1])
        n = self.shape[0]
        y = r = xp.tile(xp.asarray(random_numbers(PERIOD).astype(self.dtype)), -(-n // PERIOD))[:n]
        if self.recipe.triangular in DEFAULT_SWEEPS:
            self._load(values)
            y = _in_turn(solvers, r)
        else:
            for solver in reversed(solvers):
                r = solver.multiply(values, r)
        self._load(rounded)
        x = _in_turn(solvers, r)
        kernels.vectors.difference(x, y, x)
        kernels.vectors.norm(x, found[1:2])
        kernels.vectors.norm(y, found[2:])
        beyond, change, size = map(float, to_host(found))
        if beyond:
            report.stored_since = "the factors have an entry or a pivot beyond the range of single precision"
        elif not (math.isfinite(change) and 0 < size < math.inf):
            report.stored_since = "the test of the change by rounding overflows"
        elif (by := change / size) > MOST_CHANGE:
            report.rounding_change = by
            report.stored_since = (
                f"rounding to single precision changes M too much: by {by:.1e}, and {MOST_CHANGE:g} is allowed"
            )
        else:
            report.rounding_change, report.stored = by, str(single)
        if report.stored_since:
            self._load(values)

    def _store_half(self) -> None:
        """Store the triangles without their diagonals in half precision for the solves, and measure the change as
        `_store` does for jacobi. Raises ParameterError if an entry is out of range, or a solve is not finite; for the
        rows of transposed triangles, which are others, see `_load_half`.

        Cost: two solves, and two passes over the values; waits for the device.
        """
        values, room = self._triangles.data, self._stored
        xp, kernels, report = namespace(values), kernels_for(values), self._report
        if room.dtype != np.float16 or room.size != values.size:
            room = xp.empty(values.size, np.float16)
        needed = [self._solver(solve) for solve in self.SOLVES["N"]]
        solvers = [solver for solver in needed if solver.trans == "N"]
        r = xp.tile(xp.asarray(random_numbers(PERIOD).astype(self.dtype)), -(-self.shape[0] // PERIOD))[: self.shape[0]]
        self._load(values)
        y = _in_turn(solvers, r)
        lost, norms = xp.zeros(1), xp.empty(2, self.dtype)
        for solver in needed:
            solver.plan.load_half(values, room, lost)
        self._stored = room
        x = _in_turn(solvers, r)
        kernels.vectors.difference(x, y, x)
        kernels.vectors.norm(x, norms[:1])
        kernels.vectors.norm(y, norms[1:])
        change, size = map(float, to_host(norms))
        if float(to_host(lost)[0]) or not (math.isfinite(change) and 0 < size < math.inf):
            raise ParameterError(
                f"{self.recipe!r}: the factors of this A are out of the range of half precision; leave precision out, "
                "or take 'auto'."
            )
        report.stored, report.stored_since, report.rounding_change = "float16", None, change / size
        for solver in self._solvers.values():
            if solver not in needed:
                self._load_half(solver)

    def _load_half(self, solver: TriangularSolver) -> None:
        """Have the solve of a transposed triangle read half precision. If a row of it is out of that range, the solve
        reads the values as they are, and the report says so."""
        values, lost = self._triangles.data, namespace(self._stored).zeros(1)
        solver.plan.load_half(values, self._stored, lost)
        if float(to_host(lost)[0]):
            solver.update(values)
            self._report.stored_since = f"transposed solves read {self.dtype}: columns are out of the range of half"

    def solvers(self, trans: str = "N") -> tuple[TriangularSolver, ...]:
        """The solves of M^-1 ("N"), M^-T ("T") or M^-H ("H"), in their order."""
        return tuple(self._solver(solve) for solve in self.SOLVES[trans])

    def only_solves(self, trans: str) -> bool:
        """Whether `solvers(trans)` alone compute M^-1 r, without a permutation or a conjugate before and after."""
        return self._arranged is None and trans != self._conjugated

    def _solver(self, solve: Solve) -> TriangularSolver:
        if solve in self._solvers:  # without the lock: a forked child's copy of it may be held for ever
            return self._solvers[solve]
        with self._lock:
            if solve not in self._solvers:
                method, sweeps = self.recipe.triangular, self._sweeps
                solver = TriangularSolver(self._triangles, **solve._asdict(), method=method, sweeps=sweeps, check=False)
                if self._stored.dtype == np.float16:
                    self._load_half(solver)
                elif self._stored.dtype != self.dtype:
                    solver.update(self._stored)
                synchronize(self._triangles.data)  # another thread may use it on another stream
                self._solvers[solve] = solver
            return self._solvers[solve]

    def _apply(self, R: Any, trans: str, out: Any = None) -> Any:
        """M^-1 R in a new array, or in `out`, which `lies_in_order`, and which may be R if `only_solves(trans)`."""
        solve_in_turn = self._in_turn.get(trans)
        if solve_in_turn is None:
            plans = [self._solver(solve).plan for solve in self.SOLVES[trans]]
            solve_in_turn = self._in_turn[trans] = partial(kernels_for(R).triangular.solve_in_turn, plans)
        conjugate, arranged = trans == self._conjugated, self._arranged
        R = R.conj() if conjugate else R
        R = R if arranged is None else arranged.gather_scaled(R, trans)
        if not (R.flags.c_contiguous or lies_in_order(R)):  # the usual one without a call
            R = R.copy(order="C")
        x = np.empty_like(R) if out is None else out  # of CuPy for its own arrays
        if R.size:
            solve_in_turn(R, x)
        x = x if arranged is None else arranged.scatter_scaled(x, trans)
        return x.conj() if conjugate else x

    def _apply_into(self, R: Any, trans: str, out: Any) -> None:
        if not (self.only_solves(trans) and lies_in_order(out)):
            return super()._apply_into(R, trans, out)
        self._apply(R, trans, out)
        return None

    @property
    def triangles(self) -> CSR:
        """Both triangles, or the Cholesky factor, in one matrix, which an update may replace."""
        return self._triangles

    @property
    def permutation(self) -> Any:
        """(n,) on the device of A: row i of L U is row permutation[i] of A; None if the orders are the same."""
        return None if self._arranged is None else self._arranged.rows

    @property
    def nnz(self) -> int:
        return self._triangles.nnz


def _in_turn(solvers: list[TriangularSolver], x: Any) -> Any:
    """The solution of the solves, each of the result of the one before."""
    for solver in solvers:
        x = solver.apply(x)
    return x
