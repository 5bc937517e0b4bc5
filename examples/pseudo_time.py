"""Implicit pseudo time steps of artificial compressibility, steady and within BDF2: what the flow examples share.

A flow has n unknowns a cell, p first, then the velocity; xp, numpy or cupy; beta; and the methods

    residual(q), rates(q)                as of channel_flow.Flow, of a state q (n, ...) of all cells of this process
    new_blocks(), jacobian(q, blocks)    memory for the blocks of dR/dq, and those blocks
    diagonals(blocks), matrix(blocks)    (cells, their diagonal blocks), and the matrix of the blocks
    scale_rows(q, blocks)                where they differ in size: the list of (row of a cell, size), divided by it
    limited(q, new)                      what is left of a new state that is too far from q, and the values held
    summed(value)                        over all processes, of a NumPy array
    root_mean_squares(R, q)              of the residual of each unknown, over all cells of all processes
    exchanging                           seconds that the processes have exchanged values for
"""

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
    seconds : of the residual (RHS), of filling the matrix (AFILL), of its factors (FACT), of the linear solve (SOLVE),
    and of what was exchanged for the first two (MPI).
    """

    cfl: float
    residuals: tuple[float, ...]
    corrections: int
    reduction: float  # of the linear residual; from 1 on the step was left out
    held: int  # scalars that the step would have changed by more than a factor of 4, and that were held there
    seconds: dict[str, float]

    @property
    def levels(self):
        """The residual of the flow, of p and velocity together, then of k and of omega."""
        return (math.hypot(*self.residuals[:K]), *self.residuals[K:])


class Diverged(FineluError):
    """The pseudo steps do not lead to a solution."""


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
        self.factors = self.matrix_cfl = None

    def residual(self, q, past=None):
        """R(q), and with past = (a / dt, s) the physical time term a q / dt + s of all but the pressure."""
        R = self.flow.residual(q)
        if past is not None:
            R[U:] += past[0] * q[U:] + past[1]
        return R

    def system(self, q, R, past=None):
        """The matrix and the right-hand side of a pseudo step from q; the matrix lives until the next call."""
        return self._make_matrix(q, past), self._right_hand_side(R)

    def _make_matrix(self, q, past):
        flow = self.flow
        flow.jacobian(q, self.blocks)
        rates = flow.rates(q) / self.cfl
        for cells, delta in flow.diagonals(self.blocks):
            for r in range(flow.n):
                delta[..., r, r] += rates[cells] / flow.beta if r == P else rates[cells]
                if past is not None and r != P:
                    delta[..., r, r] += past[0]
        self.scales = flow.scale_rows(q, self.blocks)
        self.A, self.matrix_cfl, self.seen = flow.matrix(self.blocks), self.cfl, []
        return self.A

    def _right_hand_side(self, R):
        b = self.flow.xp.ascontiguousarray(-self.flow.xp.moveaxis(R, 0, -1))
        for row, size in self.scales:
            b[..., row] /= size
        return b.ravel()

    def _combined(self, q, b):
        """The combination of the states that steps with this matrix began from, q the latest, with the smallest
        right-hand side, as that of a linear system would be: what Krylov's methods do for those.

        Source: C. W. Oosterlee, T. Washio 2000.
        """
        self.seen = [*self.seen, (q, b)][-WINDOW:]
        before = self.seen[:-1]
        if not before:
            return q, b
        D = self.flow.xp.stack([b - other for _, other in before])
        both = self.flow.summed(to_host(D @ self.flow.xp.concatenate((D, b[None])).T))
        weights = np.linalg.lstsq(both[:, :-1], both[:, -1], rcond=1e-12)[0]
        steps = [q - other for other, _ in before]
        for weight, dq, db in zip(weights.tolist(), steps, D, strict=True):
            q, b = q - weight * dq, b - weight * db
        return q, b

    def step(self, q, past=None, keep=False):
        """One pseudo step from q: the new state, and a Step. keep : with the matrix of the step before, if that was at
        the same CFL number."""
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
        if keep := keep and self.cfl == self.matrix_cfl:
            A = self.A
        else:
            A = self._make_matrix(q, past)
        begun, b = self._combined(q, self._right_hand_side(R))
        lap("AFILL")
        x, iterations, reduction, held, cfl = None, 0, math.inf, 0, self.cfl
        try:
            if self.factors is None:
                self.factors = BlockILU0().factor(A)
            elif not keep:
                self.factors.update(A)
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

        keep : whether a step goes on with the matrix of the one before, unless the residual has more than doubled.
        Returns q and the list of steps. Diverged where `steps` of them do not reach it.
        """
        done: list[Step] = []
        largest = None
        while len(done) < steps:
            grew = len(done) > 1 and any(b > 2 * a for a, b in zip(done[-2].levels, done[-1].levels, strict=True))
            q, step = self.step(q, past, keep=keep and bool(done) and not grew)
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
