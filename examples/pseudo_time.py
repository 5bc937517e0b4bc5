"""Implicit pseudo time steps of artificial compressibility, steady and within BDF2: what the flow examples share.

A flow has n unknowns a cell, p first, then the velocity; xp, numpy or cupy; beta; and the methods

    residual(q), rates(q)                as of channel_flow.Flow, of a state q (n, ...) of all cells of this process
    new_blocks(), jacobian(q, blocks)    memory for the blocks of dR/dq, and those blocks
    diagonals(blocks), matrix(blocks)    (cells, their diagonal blocks), and the matrix of the blocks
    scale_rows(q, blocks, b)             of the linear system, where rows differ in size
    limited(q, new)                      what is left of a new state that is too far from q, and the values held
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
from finelu.device import synchronize
from finelu.errors import FineluError, ParameterError, ZeroPivot

P, U, K = 0, 1, 4  # places of the unknowns in a cell; the velocity stands before K, in 3D from U to U + 2
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
        self.factors = None

    def residual(self, q, past=None):
        """R(q), and with past = (a / dt, s) the physical time term a q / dt + s of all but the pressure."""
        R = self.flow.residual(q)
        if past is not None:
            R[U:] += past[0] * q[U:] + past[1]
        return R

    def system(self, q, R, past=None):
        """The matrix and the right-hand side of a pseudo step from q; the matrix lives until the next call."""
        flow, xp = self.flow, self.flow.xp
        flow.jacobian(q, self.blocks)
        rates = flow.rates(q) / self.cfl
        for cells, delta in flow.diagonals(self.blocks):
            for r in range(flow.n):
                delta[..., r, r] += rates[cells] / flow.beta if r == P else rates[cells]
                if past is not None and r != P:
                    delta[..., r, r] += past[0]
        b = xp.ascontiguousarray(-xp.moveaxis(R, 0, -1))
        flow.scale_rows(q, self.blocks, b)
        return flow.matrix(self.blocks), b.ravel()

    def step(self, q, past=None):
        """One pseudo step from q: the new state, and a Step."""
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
        A, b = self.system(q, R, past)
        lap("AFILL")
        x, iterations, reduction, held, cfl = None, 0, math.inf, 0, self.cfl
        try:
            self.factors = BlockILU0().factor(A) if self.factors is None else self.factors.update(A)
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
            q, held = flow.limited(q, q + xp.moveaxis(x.reshape(*q.shape[1:], flow.n), -1, 0))
            self.cfl = min(cfl * (1.5 if reduction <= self.rtol else 0.8 if reduction > 0.5 else 1), self.cfl_max)
        else:
            self.cfl = cfl / 2
            if self.cfl < 1e-3:
                raise Diverged(f"{self.method} does not solve the linear systems, even at a CFL number of {cfl:g}.")
        lap("SOLVE")
        return q, Step(cfl, residuals, iterations, reduction, held, seconds)

    def steady(self, q, *, tolerance=1e-6, steps=500, past=None, watch: Callable = lambda step: None):
        """Pseudo steps until the levels of the residual have each fallen to `tolerance` of their largest.

        Returns q and the list of steps. Diverged where `steps` of them do not reach it.
        """
        done: list[Step] = []
        largest = None
        while len(done) < steps:
            q, step = self.step(q, past)
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
        """`steps` physical time steps dt by BDF2, the first by BDF1; watch(time, q, pseudo steps) after each."""
        before = None
        for m in range(1, steps + 1):
            old = q[U:].copy()
            past = (1 / dt, -old / dt) if before is None else (1.5 / dt, (before - 4 * old) / (2 * dt))
            q, done = self.steady(q, tolerance=tolerance, past=past)
            before = old
            watch(m * dt, q, done)
        return q
