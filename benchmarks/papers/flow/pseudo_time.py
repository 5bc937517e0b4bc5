"""Implicit pseudo time steps of artificial compressibility, steady and within BDF2: what the flows share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from finelu import BlockILU0, Status, gmres, richardson
from finelu.device import synchronize, to_host
from finelu.errors import FineluError, ParameterError, ZeroPivot

P, U, K = 0, 1, 4  # places of the unknowns in a cell; the velocity stands before K, in 3D from U to U + 2
WINDOW = 12  # states that are combined
DELTA = 3  # place of the diagonal blocks; of the neighbour below along axis a: 2 - a, above: 4 + a


@dataclass(frozen=True)
class Step:
    """What one pseudo step did.

    residuals : of each unknown, before the step; root mean squares over the cells, that of omega over its value.
    seconds : of the residual (RHS), of filling the matrix and combining states (AFILL), of its factors (FACT), of the
    linear solve (SOLVE), and of what was exchanged for the first two (MPI).
    """

    cfl: float
    residuals: tuple[float, ...]
    corrections: int
    reduction: float  # of the linear residual; from 1 on the step was left out
    held: int  # scalars that the step would have changed by more than a factor of 4, and that were held there
    seconds: dict[str, float]

    @property
    def levels(self):
        return levels_of(self.residuals)


def levels_of(residuals):
    """The residual of the flow, of p and velocity together, then of k and of omega."""
    return (math.hypot(*residuals[:K]), *residuals[K:])


class Diverged(FineluError):
    """The pseudo steps do not lead to a solution."""


class Equations:
    """A flow: n unknowns a cell, p first, then the velocity; their names; xp, numpy or cupy; beta; and the methods

        residual(q), rates(q)                as in CurvedFlow, for a state q (n, ...) of all cells of this process
        new_blocks(), jacobian(q, blocks)    memory for the blocks of dR/dq, and those blocks
        diagonals(blocks), matrix(blocks)    (cells, their diagonal blocks), and the matrix of the blocks
        root_mean_squares(R, q)              the residual of each unknown, over all cells of all processes

    with those below, which are right for one process and rows of one size.
    """

    exchanging = 0.0  # seconds in which the processes have exchanged values

    def summed(self, value):
        """The sum of a number or a NumPy array over all processes."""
        return value

    def scale_rows(self, q, blocks):
        """Divide rows of different size: the list of (row of a cell, size)."""
        return []

    def limited(self, q, new):
        """The new state, limited to be near q, and the number of limited values."""
        return new, 0

    def upwinding(self, through):
        """|A| of flux-difference splitting: (U / c, |U|, c, weights a, b, d, e), of the mean velocity U through a face.

        The matrix M of artificial compressibility has the eigenvalues U, also for what is convected, U + c and U - c,
        c^2 = U^2 + beta, so |M| = |U| + (U/c) (M - U) + ((c - |U|)/c^2) (M - U)^2. Of a jump (dp, du), dU = du . n, it
        gives (dp + U dU) / c to the mass flux and |U| du + mean (a dp + b dU) + n (d dp + e dU) to the momentum.
        """
        c = self.xp.sqrt(through * through + self.beta)
        a = (c - abs(through)) / (c * c)
        ratio = through / c
        return ratio, abs(through), c, (a, ratio + a * through, ratio - a * through, a * self.beta)


class PseudoTime:
    """Implicit pseudo steps: (Gamma / dtau + I_t a / dt + J) dq = -R(q), Gamma = diag(1/beta, 1, ...), local dtau.

    method : "correct", the correction iteration, or "gmres".  corrections : the most of them in a step.  rtol : of the
    linear solve.  cfl : the first CFL number. It grows by half, up to cfl_max, after each step whose linear solve
    reached rtol, falls by a fifth where that did not even halve its residual, and is halved, the step left out, where
    the residual grew or the matrix has no factors.
    """

    def __init__(self, flow, *, method="correct", corrections=20, rtol=0.1, cfl=5.0, cfl_max=1000.0):
        if method not in ("correct", "gmres"):
            raise ParameterError(f"method={method!r}; 'correct' or 'gmres' is needed.")
        for name, value in (("rtol", rtol), ("cfl", cfl), ("cfl_max", cfl_max)):
            if not (math.isfinite(value) and value > 0):
                raise ParameterError(f"{name}={value!r}; a finite number above 0 is needed.")
        if corrections < 1:
            raise ParameterError(f"corrections={corrections!r}; at least 1 is needed.")
        self.flow, self.method, self.corrections, self.rtol = flow, method, corrections, rtol
        self.cfl, self.cfl_max = min(cfl, cfl_max), cfl_max
        self.blocks = flow.new_blocks()
        self.A = self.factors = self.factored = None  # the matrix, factors, and the matrix that these are of

    def residual(self, q, past=None):
        """R(q), and with past = (a / dt, s) the physical time term a q / dt + s of all but the pressure."""
        R = self.flow.residual(q)
        if past is not None:
            R[U:] += past[0] * q[U:] + past[1]
        return R

    def system(self, q, R, past=None):
        """The matrix and the right-hand side of a pseudo step from q; the matrix lives until the next call."""
        self._make_matrix(q, past)
        return self.A, self._right_hand_side(R)

    def _make_matrix(self, q, past):
        flow = self.flow
        self.A, self.seen, self.levels = None, [], []
        flow.jacobian(q, self.blocks)
        rates = flow.rates(q) / self.cfl
        for cells, delta in flow.diagonals(self.blocks):
            for r in range(flow.n):
                delta[..., r, r] += rates[cells] / flow.beta if r == P else rates[cells]
                if past is not None and r != P:
                    delta[..., r, r] += past[0]
        self.scales = flow.scale_rows(q, self.blocks)
        self.A, self.matrix_cfl = flow.matrix(self.blocks), self.cfl

    def _serves(self, levels):
        """Whether the matrix of the steps before still leads on: the residual has not grown to twice what it was, and
        the last steps, as many as are combined, have brought it to a quarter."""
        if self.A is None or self.cfl != self.matrix_cfl:
            return False
        grew = any(now > 2 * last for now, last in zip(levels, self.levels[-1], strict=True))
        slow = len(self.levels) >= WINDOW and any(
            now > first / 4 for now, first in zip(levels, self.levels[-WINDOW], strict=True)
        )
        return not (grew or slow)

    def _right_hand_side(self, R):
        b = self.flow.xp.ascontiguousarray(-self.flow.xp.moveaxis(R, 0, -1))
        for row, size in self.scales:
            b[..., row] /= size
        return b.ravel()

    def _combined(self, q, b):
        """The combination of the states that steps with this matrix began from, q the latest, with the smallest
        right-hand side, as that of a linear system would be: what Krylov's methods do for those. With that side.

        Source: C. W. Oosterlee, T. Washio 2000.
        """
        before = self.seen
        self.seen = [*before, (q, b)][-WINDOW:]
        if not before:
            return q, b
        D = self.flow.xp.stack([b - other for _, other in before])
        products = np.column_stack([to_host(product) for product in (D @ D.T, D @ b)])
        products = self.flow.summed(products)
        weights = np.linalg.lstsq(products[:, :-1], products[:, -1], rcond=1e-12)[0].tolist()
        combined = q.copy()
        for weight, (other, _), change in zip(weights, before, D, strict=True):
            combined -= weight * (q - other)
            b = b - weight * change
        return combined, b

    def step(self, q, past=None, keep=False):
        """One pseudo step from q: the new state, and a Step. keep : with the matrix of the step before, as long as that
        leads on, and from the best combination of the states since."""
        flow, xp = self.flow, self.flow.xp
        seconds = dict.fromkeys(("RHS", "AFILL", "FACT", "SOLVE", "MPI"), 0.0)
        clock, exchanging = perf_counter(), flow.exchanging

        def lap(name):
            nonlocal clock, exchanging
            synchronize(q)
            exchanged = flow.exchanging - exchanging
            seconds[name] += perf_counter() - clock - exchanged
            seconds["MPI"] += exchanged
            clock, exchanging = perf_counter(), flow.exchanging

        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is Diverged
            R = self.residual(q, past)
            residuals = flow.root_mean_squares(R, q)
        if not all(math.isfinite(v) for v in residuals):
            raise Diverged(
                f"the pseudo steps diverged (a residual is not finite); try a cfl_max below {self.cfl_max:g}."
            )
        lap("RHS")
        if not (keep and self._serves(levels_of(residuals))):
            self._make_matrix(q, past)
        A, begun, b = self.A, q, self._right_hand_side(R)
        if keep:
            self.levels.append(levels_of(residuals))
            begun, b = self._combined(q, b)
        lap("AFILL")
        x, iterations, reduction, held, cfl = None, 0, math.inf, 0, self.cfl
        try:
            if self.factored is not A:
                self.factored = None
                self.factors = BlockILU0().factor(A) if self.factors is None else self.factors.update(A)
                self.factored = A
            lap("FACT")
            if self.method == "correct":
                solution = richardson(A, b, M=self.factors, maxiter=self.corrections, rtol=self.rtol)
            else:
                solution = gmres(A, b, M=self.factors, rtol=self.rtol, maxiter=self.corrections)
            x, iterations = solution.x, solution.iterations
            length = solution.history[0]  # of b: each solve starts from 0
            if solution.status is not Status.NOT_FINITE:
                reduction = float(solution.residual_norm / length) if length else 0.0
        except ZeroPivot:
            lap("FACT")
        if reduction < 1:
            q, held = flow.limited(q, begun + xp.moveaxis(x.reshape(*q.shape[1:], flow.n), -1, 0))
            self.cfl = min(cfl * (1.5 if reduction <= self.rtol else 0.8 if reduction > 0.5 else 1), self.cfl_max)
        else:
            self.cfl = cfl / 2
            if self.cfl < 1e-3:
                raise Diverged(f"{self.method} does not solve the linear systems, even at a CFL number of {cfl:g}.")
        lap("SOLVE")
        return q, Step(cfl, residuals, iterations, reduction, held, seconds)

    def steady(self, q, *, tolerance=1e-6, steps=500, past=None, keep=False, watch: Callable = lambda step: None):
        """Pseudo steps until the levels of the residual have each fallen to `tolerance` of their largest.

        keep : as in `step`, from the second one on. Returns q and the list of steps. Diverged where `steps` of them do
        not reach it.
        """
        done: list[Step] = []
        largest = None
        self.A = None  # of other equations
        while len(done) < steps:
            q, step = self.step(q, past, keep)
            done.append(step)
            watch(step)
            largest = [max(pair) for pair in zip(largest or step.levels, step.levels, strict=True)]
            fallen = max(now / most if most else 0.0 for now, most in zip(step.levels, largest, strict=True))
            if fallen <= tolerance:
                return q, done
        raise Diverged(
            f"{steps} pseudo steps brought the residual to {fallen:.1e} of its largest, not to {tolerance:g}; allow "
            "more of them, or change cfl_max."
        )

    def in_time(self, q, dt, steps, *, tolerance=1e-4, watch: Callable = lambda time, q, done: None):
        """`steps` physical time steps dt by BDF2, the first by BDF1; watch(time, q, pseudo steps) after each.

        The pseudo steps of one share a matrix. They begin with the state before: one from a polynomial through several
        would make more of what their tolerance leaves of slow errors, step by step.
        """
        old = None
        for m in range(1, steps + 1):
            before, old = old, q[U:].copy()
            past = (1 / dt, -old / dt) if before is None else (1.5 / dt, (before - 4 * old) / (2 * dt))
            q, done = self.steady(q, tolerance=tolerance, past=past, keep=True)
            watch(m * dt, q, done)
        return q
