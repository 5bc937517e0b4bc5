"""The deflated conjugate gradient method: all residuals orthogonal to a recycled space, all directions conjugate to it.

Source: Y. Saad, M. Yeung, J. Erhel, F. Guyomarc'h: A deflated version of the conjugate gradient algorithm, SIAM Journal
on Scientific Computing 21, 2000, with a preconditioner. In its notation W^T A W is the identity here, as
`RecycledSpace.fit` makes it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from finelu.device import to_host
from finelu.krylov.block import times
from finelu.krylov.loop import Loop
from finelu.krylov.recycle import RecycledSpace
from finelu.result import Solution, Status

PATIENCE = 1.5  # times the iterations that a solve without vectors is expected to take, after which W is left out
REPEATED = 20  # iterations after which the residual is made orthogonal to the space again, which rounding undoes
ENDED = (Status.CONVERGED, Status.STAGNATED)  # of solves that went as far as they could


def deflated_cg(loop: Loop, space: RecycledSpace) -> Solution:
    """Preconditioned conjugate gradients with W^H r = 0 for all residuals and W^H A p = 0 for all directions.

    If that fails, or takes much longer than cg without vectors, plain cg goes on: from the best x, or from x0 if
    rounding of the best one's residual is above the tolerance. A space that may be renewed then forgets its W, if plain
    cg has led further.
    """
    A, M, x, best, k = loop.A, loop.M, loop.x, loop.keeps_best(), loop.kernels
    state, norms = loop.state, loop.norms
    r, p = loop.vectors(2)
    rho, rho_old, curvature = loop.scalars(3)
    definite = space.fit(A, loop.b, energy=True)
    if not definite:
        loop.fail(Status.INDEFINITE)
    W, image = (space.W, space.image) if definite else (None, None)
    mu = loop.xp.zeros(space.size, loop.dtype)
    directions, most, failed = Directions(loop, space), math.inf, False

    def deflate(v: Any) -> None:
        """v -= W mu, with mu = (A W)^H v: then v is conjugate to W."""
        if W is not None:
            k.arnoldi.moments(image, v, mu)
            k.arnoldi.take_off(state, W, mu, v)

    def step(again: bool = False) -> None:
        q = A.with_dot(p, p, curvature)  # alpha = (r, z) / (A p, p)
        k.recurrences.cg_step(state, norms, loop.history, rho, curvature, rho_old, p, q, x, best, r)
        if again:
            k.arnoldi.moments(W, r, mu)
            k.arnoldi.take_off(state, image, mu, r)
            k.arnoldi.take_off(state, W, -mu, x)
        z = M @ r
        k.vectors.dot(r, z, rho)
        k.recurrences.direction(state, rho.real, rho_old.real, z, p, None, None)  # p = beta p + z - W mu
        deflate(p)

    iteration = loop.repeated(step)

    def without() -> bool:
        nonlocal W, failed
        W, failed = None, True
        loop.forget()
        return True

    def plainly() -> bool:
        """Whether the iteration goes on without W, with which it has failed."""
        return bool(space.size) and not failed and loop.resumed(r) and without()

    while loop.cycle(r) or plainly():
        if loop.cycles == 1:
            most = PATIENCE * space.usual * _decades(loop.seen_norm, loop.tolerance)
        if W is not None:  # x += W W^H r, which may be the solution: then what follows would be rounding
            k.arnoldi.moments(W, r, mu)
            k.arnoldi.take_off(state, W, -mu, x)
            if not (loop.moved(r) or plainly()):
                break
        z = M @ r
        loop.copyto(p, z)
        k.vectors.dot(r, z, rho)
        deflate(p)
        directions.begin(rho, mu)
        steps = 0
        while loop.goes_on():
            if W is not None and loop.launched > most:
                if loop.left_off():
                    without()
                break
            steps += 1
            again = W is not None and steps % REPEATED == 0
            if directions.wanted:
                directions.take(p)
                step(again)
                directions.follow(curvature, rho, mu)
            elif again:
                step(again)
            else:
                iteration()
            loop.tell()
    solution = loop.end()
    fallen = _decades(float(loop.history[0]), loop.tolerance)
    if not space.size and solution.status in ENDED and loop.iterations and 0 < fallen < math.inf:
        space.usual = loop.iterations / fallen
    if failed:
        if space.renew and loop.led_further(solution):
            space.drop()
    else:
        directions.into(space, min(directions.count, loop.iterations))
    return solution


def _decades(before: float, after: float) -> float:
    """How many decades a residual norm falls; 0 if it does not."""
    return math.log10(before / after) if 0 < after < before else math.inf if before > after == 0 else 0.0


class Directions:
    """The first directions of a solve, and the numbers of its recurrence, from which harmonic Ritz vectors are formed.

    P (n, most) : p_j.  rho (most + 1,), curvature (most,) : r_j^H z_j and p_j^H A p_j.
    mu (m, most + 1) : (A W)^H z_j.
    """

    def __init__(self, loop: Loop, space: RecycledSpace):
        self.loop, self.count, self.cycles = loop, 0, 0
        most = min(space.directions, loop.maxiter, loop.b.size) if space.renew else 0
        self.P = loop.xp.zeros((loop.b.size, most), loop.dtype, order="F")
        self.rho, self.curvature = (loop.xp.zeros(most + 1, loop.dtype) for _ in range(2))
        self.mu = loop.xp.zeros((most + 1, space.size), loop.dtype)

    @property
    def wanted(self) -> bool:
        """Whether the next direction is to be kept: in the first cycle only; later ones have other recurrences."""
        return self.cycles == 1 and self.count < self.P.shape[1]

    def begin(self, rho: Any, mu: Any) -> None:
        self.cycles += 1
        if self.cycles == 1:
            self.rho[:1], self.mu[0] = rho, mu
        elif self.cycles == 2:
            self.count = min(self.count, self.loop.iterations)

    def take(self, p: Any) -> None:
        self.P[:, self.count] = p

    def follow(self, curvature: Any, rho: Any, mu: Any) -> None:
        self.curvature[self.count : self.count + 1] = curvature
        self.count += 1
        self.rho[self.count : self.count + 1], self.mu[self.count] = rho, mu

    def into(self, space: RecycledSpace, steps: int) -> None:
        """W of `space` becomes the k harmonic Ritz vectors of M^-1 A with the smallest values, in the space of W and
        the first `steps` directions; nothing if there are fewer than two.

        With V = [W, p_j / sqrt(p_j^H A p_j)], V^H A V = I, they are V y for G y = theta y, G = (A V)^H M^-1 (A V). As
        A p_j = (r_j - r_(j+1)) / alpha_j, and the r_j are orthogonal in the product with M^-1, the part of G for the
        p_j is tridiagonal, and known from the recurrence.
        """
        if steps < 2:
            return
        m = space.size
        rho, curvature = to_host(self.rho[: steps + 1]).real, to_host(self.curvature[:steps]).real
        mu = to_host(self.mu[: steps + 1])
        unit, alpha = np.sqrt(curvature), rho[:steps] / curvature
        per = alpha * unit  # A p_j / unit = (r_j - r_(j+1)) / per
        G = np.zeros((m + steps, m + steps), mu.dtype)
        G[m:, m:] = np.diag((rho[:-1] + rho[1:]) / per**2)
        off = -rho[1:-1] / (per[:-1] * per[1:])
        G[m:, m:] += np.diag(off, 1) + np.diag(off, -1)
        if m:
            image = space.image
            own = to_host(image.conj().T @ times(self.loop.M, image))
            space.solves += m
            G[:m, :m] = (own + own.conj().T) / 2
            G[:m, m:] = (mu[:-1] - mu[1:]).T / per
            G[m:, :m] = G[:m, m:].conj().T
        if not np.isfinite(G).all():
            return
        _, vectors = np.linalg.eigh(G)
        y = vectors[:, : space.k].astype(mu.dtype)
        xp = self.loop.xp
        W = self.P[:, :steps] @ xp.asarray((y[m:] / unit[:, None]).astype(mu.dtype))
        if m:
            W += space.W @ xp.asarray(y[:m])
        space.W, space.image, space.origin = xp.asfortranarray(W), None, None
