"""The balanced form for residuals without a coarse component: one product with E^-1 instead of two."""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu
from finelu.kernels import kernels_for
from finelu.matrix import norm

ROUNDINGS = 1e4  # of Z^H r, that may be left of it where nothing else is left of r


class Deflated:
    """z = P^H M^-1 r + Q r, for factors of the balanced form P^H M^-1 P + Q: the same vector if Z^H r = 0.

    In cg Z^H r = 0 holds for all residuals after the first one with it, since z is A-orthogonal to the span of Z (J. M.
    Tang, R. Nabben, C. Vuik, Y. A. Erlangga, 2009, section 3.3 and A-DEF2 there: Q r removes the rounding in it).
    """

    def __init__(self, factors: Any):
        self._factors = factors

    def start(self, A: Any, x: Any, r: Any) -> bool:
        """x += Q r, r -= A Q r, for r = b - A x. Returns whether Z^H r = 0 afterwards: not if the factors are of
        another A. Where E is solved on levels Z^H r is small instead; the form of `__matmul__` allows for that (section
        4.6 there).

        Waits for a GPU.
        """
        coarse, xp = self._factors.coarse, namespace(r)
        step = xp.zeros(r.shape, r.dtype)
        before = coarse.restrict(r)
        q, part = coarse.closely(before)
        coarse.prolong(q, step)
        coarse.prolong(q, x)
        kernels_for(r).vectors.difference(r, A @ step, r)
        left, size, eps = norm(coarse.restrict(r)), norm(r), float(np.finfo(r.dtype).eps)
        return bool(left <= max(eps**0.5 * size, max(part, ROUNDINGS * eps) * norm(before)))

    def __matmul__(self, r: Any) -> Any:
        factors, coarse = self._factors, self._factors.coarse
        z = namespace(r).empty_like(r)
        sums = None if factors.overlaps else coarse.sums(r.dtype, r.size // r.shape[0])
        factors.local_solve(r, z, sums)
        rest = coarse.rest(sums) if sums else coarse.restrict(r) - coarse.moments_of(z)
        coarse.prolong(coarse.solve(rest), z)  # z + Z E^-1 (Z^H r - (A Z)^H z)
        return z

    @property
    def moves(self) -> bool:
        """Whether `turn` takes a step of x, too: on the CPU, whose time is that of reading vectors, without overlap."""
        return not (self.overlaps or on_gpu(self._factors.parts))

    def turn(self, state: Any, r: Any, rho: Any, rho_old: Any, p: Any, move: Any = None) -> None:
        """The next direction of cg: z = M r, rho = r^H z, p = z + (rho / rho_old) p.

        Without overlap z is never stored: r^H z comes from sums over the parts.
        move : (alpha, kept, x, best), of kernels/reference/recurrences.py:residual_step: x takes that step before p
            changes; only if `moves`.
        """
        factors, coarse = self._factors, self._factors.coarse
        if factors.overlaps:
            kernels, z = kernels_for(r), self @ r
            kernels.vectors.dot(r, z, rho)
            kernels.recurrences.direction(state, rho.real, rho_old.real, z, p, None, None)
            return
        x, sums = namespace(r).empty_like(r), coarse.sums(r.dtype)
        factors.local_solve(r, x, sums)
        q = coarse.correct(sums, rho)
        coarse.add_direction(state, rho, rho_old, q, x, p, move)

    def turn_columns(self, which: Any, states: Any, r: Any, rho: Any, rho_old: Any, p: Any, x: Any, move: Any) -> None:
        """`turn` for the columns of r (n, k) and p, on the CPU; without overlap. `which`, `states` and scalars as in
        kernels/cpu/columns.py. x (n, k) has any contents."""
        factors, coarse, k = self._factors, self._factors.coarse, which.size
        r, x = (v.reshape(-1) if k == 1 else v for v in (r, x))
        sums, own = coarse.sums(r.dtype, k), np.empty(k, rho.dtype)
        factors.local_solve(r, x, sums)
        q = coarse.correct(sums, own)
        rho[which] = own
        coarse.add_directions(which, states, rho, rho_old, q.reshape(-1, k), x.reshape(-1, k), p, move)

    @property
    def overlaps(self) -> bool:
        """Whether rows are in several parts."""
        return bool(self._factors.overlaps)
