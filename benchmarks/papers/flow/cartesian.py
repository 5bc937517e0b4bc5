"""Incompressible Navier-Stokes in 2D and 3D, whose Jacobians are block matrices on the 7-point stencil.

The equations, for pressure p (over the density), velocity u = (u, v, w) and, with six unknowns, k and omega:

    (1/beta) dp/dtau + div u                                              = 0
    du/dtau + du/dt + div(u u) + grad p - div((nu + nu_t) grad u)         = f
    dk/dtau + dk/dt + div(u k) - div((nu + nu_t/2) grad k)                = nu_t S^2 - 0.09 k omega
    domega/dtau + domega/dt + div(u omega) - div((nu + nu_t/2) grad omega) = (5/9) S^2 - (3/40) omega^2

tau is the pseudo time of artificial compressibility, in which every physical time step (BDF2) or the steady state is
reached; nu_t = k / omega, S^2 = 2 S_ij S_ij. With four unknowns nu_t = 0. The two scalars are those of the k-omega
model of Wilcox 1988, except that of the eddy stress the part div(nu_t (grad u)^T) is left out, which vanishes in a
developed channel, and that (2/3) k is part of p. No limiters, no cross diffusion, no low-Reynolds terms, walls by
k = 0 and a large omega: enough to couple all six unknowns of a cell with each other and with those of its neighbours;
it was compared with a law of the wall and with nothing else.

Finite volumes on a Cartesian grid whose cells may differ in width along each axis. Convective fluxes by flux-difference
splitting with the eigenvalues of artificial compressibility. The residual takes the face states from polynomials
through five cell averages where the cells of an axis are equal (fifth order on one axis), else, and next to boundaries,
through three (third order); in all it is of second order. The Jacobian takes the cells themselves: a deferred
correction, whose matrix is the exact derivative of the first-order residual at fixed upwind coefficients. The scalars
are convected by first-order upwind, by the very mass flux of the continuity equation, and stay positive.

Array code for numpy and cupy alike. Each pseudo step assembles J, refreshes the factors of BlockILU0 by `update`, and
solves J dq = -R by the correction iteration x <- x + M^-1 (b - J x), or by GMRES.

Sources: A. J. Chorin 1967 (artificial compressibility); P. L. Roe 1981 (flux differences); L. Luo, J. R. Edwards,
H. Luo, F. Mueller (block ILU on structured grids, and its use in a flow solver); D. C. Wilcox 1988 (k and omega).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.papers.flow.pseudo_time import DELTA, Equations, K, P, U
from finelu import StencilMatrix
from finelu.device import namespace, to_host
from finelu.errors import ParameterError

OMEGA = 5  # place of omega in a cell, after those of p, of the velocity (U, U + 1, U + 2) and of k
ALPHA, BETA, BETA_STAR, SIGMA = 5 / 9, 3 / 40, 9 / 100, 1 / 2  # Wilcox 1988


# Boundaries -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Boundary:
    """The state on a boundary face: b = keeps * q + given, q the state of the adjacent cell.

    keeps : (n,) of 0 and 1: 1 where the cell's value, and with it a zero normal gradient, stands on the face.
    given : (n, ...), broadcast over the faces: what stands there else.
    """

    kind: str
    keeps: tuple[int, ...]
    given: Any

    def state(self, q):
        """The state on the faces, of the adjacent cells q (n, ...)."""
        xp = namespace(q)
        column = (slice(None),) + (None,) * (q.ndim - 1)
        given = xp.asarray(self.given, q.dtype)
        return xp.asarray(self.keeps, q.dtype)[column] * q + (given if given.ndim > 1 else given[column])


def wall(n, velocity=(0.0, 0.0, 0.0), omega=0.0):
    """No slip: the velocity of the wall, k = 0, omega given (above 0); the pressure of the fluid."""
    if n == 6 and not omega > 0:
        raise ParameterError(f"omega={omega!r} at a wall; with six unknowns it must be above 0.")
    return Boundary("wall", (1,) + (0,) * (n - 1), (0.0, *velocity, 0.0, omega)[:n])


def inflow(given):
    """Velocity and scalars are given, (n, ...), the first of which is not looked at; the pressure is the fluid's."""
    given = given.copy()
    given[P] = 0
    return Boundary("inflow", (1,) + (0,) * (len(given) - 1), given)


def outflow(n, pressure=0.0):
    """The pressure is given, all else leaves with a zero gradient. Where flow comes back in, it is as in the cell."""
    return Boundary("outflow", (0,) + (1,) * (n - 1), (pressure,) + (0.0,) * (n - 1))


def symmetry(n, axis):
    """Nothing crosses: the normal velocity is 0, all else has a zero gradient."""
    return Boundary("symmetry", tuple(int(c != U + axis) for c in range(n)), (0.0,) * n)


# The equations in space -----------------------------------------------------------------------------------------------


def along(q, axis):
    """A view of q (..., I, J, K) with one of the three axes moved to the end."""
    return namespace(q).moveaxis(q, q.ndim - 3 + axis, -1)


class Flow(Equations):
    """Residual and Jacobian of a flow on a grid.

    widths : three 1-D arrays, the widths of the cells along i, j and k.  boundaries : for each axis "periodic", or a
    pair of Boundary, low side first.  n : 4 (p, u, v, w) or 6 (k and omega too).  viscosity : nu.  force : f, three
    numbers.  beta : of artificial compressibility, best near the largest velocity squared.  xp : numpy or cupy.
    A state q is (n, I, J, K).
    """

    def __init__(self, widths, boundaries, *, n=4, viscosity, force=(0.0, 0.0, 0.0), beta=1.0, xp=np):
        if n not in (4, 6):
            raise ParameterError(f"n={n!r}; a flow has 4 unknowns a cell (p, u, v, w) or 6 (k and omega too).")
        self.n, self.viscosity, self.force, self.beta, self.xp = n, viscosity, force, beta, xp
        self.widths = [xp.asarray(h, np.float64) for h in widths]
        self.shape = tuple(len(h) for h in widths)
        self.equal = tuple(float(h.max() - h.min()) <= 1e-12 * float(h.max()) for h in self.widths)
        self.boundaries = tuple(None if b == "periodic" else b for b in boundaries)
        self.periodic = tuple(b is None for b in self.boundaries)
        self.names = ("p", "u", "v", "w", "k", "omega")[:n]
        self.diffusing = [0.0] + [1.0] * 3 + [SIGMA] * (n - 4)  # the share of nu_t that each unknown feels

    # Faces: between cells f and f + 1 along an axis, and, where it is not periodic, one at each end.

    def _pairs(self, Q, axis):
        """The cells on both sides of the faces inside; Q has the axis at its end."""
        if self.periodic[axis]:
            return Q, self.xp.roll(Q, -1, -1)
        return Q[..., :-1], Q[..., 1:]

    def _ends(self, Q, axis):
        """(boundary, index of its cell, sign of the outward normal) of both ends."""
        return () if self.periodic[axis] else zip(self.boundaries[axis], (0, -1), (-1, 1), strict=True)

    def _distances(self, axis):
        """From centre to centre across the faces inside, and the weight of the left cell in what stands there."""
        left, right = self._pairs(self.widths[axis], axis)
        return (left + right) / 2, right / (left + right)

    def _differences(self, axis, inside, low, high):
        """High face minus low face of each cell; low and high are None on a periodic axis."""
        xp = self.xp
        if self.periodic[axis]:
            return inside - xp.roll(inside, 1, -1)
        faces = xp.concatenate((low[..., None], inside, high[..., None]), axis=-1)
        return faces[..., 1:] - faces[..., :-1]

    def _reconstructed(self, Q, axis):
        """States on both sides of the faces inside.

        Of cells with two neighbours on each side, from the polynomial through the five averages where the cells are
        equal; of the others from the parabola through three. A cell at an end that is not periodic lacks a neighbour;
        there the line through its own average and the next one.
        """
        xp, h = self.xp, self.widths[axis]
        left, right = self._pairs(Q, axis)
        if left.shape[-1] == 0:
            return left, right
        step = right - left
        hl, hr = self._pairs(h, axis)
        if self.periodic[axis]:
            before, after = xp.roll(step, 1, -1), xp.roll(step, -1, -1)
            hll, hrr = xp.roll(hl, 1), xp.roll(hr, -1)
        else:
            line = step * (2 / (hl + hr))  # repeated beyond the ends: there the parabola is a line
            before = xp.concatenate((line[..., :1], line[..., :-1]), -1)
            after = xp.concatenate((line[..., 1:], line[..., -1:]), -1)
            hll, hrr = xp.concatenate((h[:1], hl[:-1])), xp.concatenate((hr[1:], h[-1:]))
            before, after = before * ((hll + hl) / 2), after * ((hr + hrr) / 2)
        on_left = left + hl * (
            (hll + hl) / ((hl + hr) * (hll + hl + hr)) * step + hr / ((hll + hl) * (hll + hl + hr)) * before
        )
        on_right = right - hr * (
            (hr + hrr) / ((hl + hr) * (hl + hr + hrr)) * step + hl / ((hr + hrr) * (hl + hr + hrr)) * after
        )
        if self.equal[axis] and len(h) >= 5:
            wide = xp.concatenate((Q[..., -2:], Q, Q[..., :2]), -1) if self.periodic[axis] else Q
            a, b, c, d, e = (wide[..., s : wide.shape[-1] - 4 + s] for s in range(5))
            low, high = (2 * e - 13 * d + 47 * c + 27 * b - 3 * a) / 60, (2 * a - 13 * b + 47 * c + 27 * d - 3 * e) / 60
            if self.periodic[axis]:
                return high, xp.roll(low, -1, -1)
            on_left[..., 2:-1], on_right[..., 1:-2] = high, low
        return on_left, on_right

    def _eddy(self, Q):
        """nu_t, or 0.0 with four unknowns."""
        return Q[K] / Q[OMEGA] if self.n == 6 else 0.0

    def residual(self, q, order=2, at=None):
        """R(q) (n, I, J, K): dq/dtau + R = 0 (of the pressure: (1/beta) dp/dtau). Cost: some fifty passes over q.

        order : 1 takes cell averages as face states.  at : the state of what the Jacobian holds fixed, the upwind
        coefficients and nu_t in the production of k; q itself if left out.
        """
        xp, out = self.xp, self.xp.zeros_like(q)
        at = q if at is None else at
        for axis in range(3):
            Q, h = along(q, axis), self.widths[axis]
            left, right = self._pairs(Q, axis)
            fine = self._reconstructed(Q[:K], axis) if order == 2 else (left[:K], right[:K])
            inside = self._convection(axis, *fine, left, right, *self._pairs(along(at, axis), axis))
            distance, weight = self._distances(axis)
            self._diffuse(inside, left, right, distance, weight)
            ends = []
            for boundary, cell, sign in self._ends(Q, axis):
                b = boundary.state(Q[..., cell])
                stress = xp.zeros_like(b)
                self._diffuse(stress, Q[..., cell], b, h[cell] / 2, 0.0)
                if order == 2 and boundary.keeps[P] and len(h) > 1:  # a line through the two cells next to the face
                    near, far = (0, 1) if sign < 0 else (-1, -2)
                    b[P] += (Q[P, ..., near] - Q[P, ..., far]) * h[near] / (h[near] + h[far])
                normal = b[U + axis]
                flux = b * normal
                flux[P] = normal
                flux[U + axis] += b[P]
                ends.append(flux + sign * stress)
            along(out, axis)[...] += self._differences(axis, inside, *(ends or (None, None))) / h
        for d in range(3):
            out[U + d] -= self.force[d]
        if self.n == 6:
            _, squared = self._strain(q)
            out[K] -= at[K] / at[OMEGA] * squared - BETA_STAR * q[K] * q[OMEGA]
            out[OMEGA] -= ALPHA * squared - BETA * q[OMEGA] ** 2
        return out

    def _convection(self, axis, left, right, cell_left, cell_right, at_left, at_right):
        """Convective fluxes (n, ..., faces); left and right are the states of the flow on the faces inside."""
        xp, a = self.xp, U + axis
        mean = (at_left[U:K] + at_right[U:K]) / 2
        ratio, speed, c, (weight_p, weight_u, _, _) = self.upwinding(mean[axis])
        dp, du = right[P] - left[P], right[a] - left[a]
        flux = xp.empty_like(cell_left)
        flux[P] = (left[a] + right[a]) / 2 - (dp / c + ratio * du) / 2
        for d in range(U, U + 3):
            if d == a:
                flux[d] = (left[a] ** 2 + right[a] ** 2 + left[P] + right[P]) / 2
                flux[d] -= (ratio * dp + (c + ratio * ratio * c) * du) / 2
            else:
                flux[d] = (left[d] * left[a] + right[d] * right[a]) / 2
                flux[d] -= (speed * (right[d] - left[d]) + mean[d - U] * (weight_p * dp + weight_u * du)) / 2
        for s in range(K, self.n):
            flux[s] = xp.maximum(flux[P], 0) * cell_left[s] + xp.minimum(flux[P], 0) * cell_right[s]
        return flux

    def _diffuse(self, flux, left, right, distance, weight):
        """Take the diffusive fluxes from left to right off `flux`; weight : of the left state in nu_t on the face."""
        eddy = weight * self._eddy(left) + (1 - weight) * self._eddy(right)
        for r in range(U, self.n):
            flux[r] -= (self.viscosity + self.diffusing[r] * eddy) * (right[r] - left[r]) / distance

    def _gradient_weights(self, axis):
        """du/dx_axis of a cell = below u_{i-1} + own u_i + above u_{i+1}, by linear interpolation to the faces.

        At an end `own` leaves the boundary face out.
        """
        xp, h = self.xp, self.widths[axis]
        _, weight = self._distances(axis)
        if self.periodic[axis]:
            return -xp.roll(weight, 1) / h, (weight - xp.roll(1 - weight, 1)) / h, (1 - weight) / h
        none = xp.zeros(1)
        low, high = xp.concatenate((weight, none)), xp.concatenate((none, weight))
        beyond = xp.concatenate((1 - weight, none)), xp.concatenate((none, 1 - weight))
        return -high / h, (low - beyond[1]) / h, beyond[0] / h

    def _strain(self, q):
        """gradient[d][a] = du_d/dx_a of the cells, and S^2 = 2 S_ij S_ij."""
        gradient: list[list[Any]] = [[None] * 3 for _ in range(3)]
        for axis in range(3):
            _, weight = self._distances(axis)
            Q = along(q[U : U + 3], axis)
            left, right = self._pairs(Q, axis)
            inside = weight * left + (1 - weight) * right
            ends = [b.state(along(q, axis)[..., cell])[U : U + 3] for b, cell, _ in self._ends(Q, axis)]
            slopes = self._differences(axis, inside, *(ends or (None, None))) / self.widths[axis]
            for d in range(3):
                gradient[d][axis] = self.xp.moveaxis(slopes[d], -1, axis)
        squared = sum((gradient[d][a] + gradient[a][d]) ** 2 for d in range(3) for a in range(3)) / 2
        return gradient, squared

    def jacobian(self, q, blocks):
        """Write dR/dq of the first-order residual into blocks (7, I, J, K, n, n).

        Exact, with the upwind coefficients held, and nu_t in the production of k, whose derivative by k would take the
        steps away from the turbulent solution to k = 0. Temporary arrays have the size of one unknown, not of the
        blocks, and are 25 at most. Cost: up to 35 entries a face, each added to the four blocks that it belongs to.
        """
        blocks[...] = 0
        xp = self.xp
        entries = xp.moveaxis(blocks, (4, 5), (1, 2))  # (7, n, n, I, J, K)
        for axis in range(3):
            B, Q, h = along(entries, axis), along(q, axis), self.widths[axis]
            below, above = 2 - axis, 4 + axis
            if self.periodic[axis]:
                here = there = slice(None)
            else:
                here, there = slice(0, -1), slice(1, None)
            for r, c, left, right in self._face_derivatives(axis, *self._pairs(Q, axis)):
                B[DELTA, r, c][..., here] += left / h[here]
                B[above, r, c][..., here] += right / h[here]
                if self.periodic[axis]:
                    left, right = xp.roll(left, 1, -1), xp.roll(right, 1, -1)
                B[below, r, c][..., there] -= left / h[there]
                B[DELTA, r, c][..., there] -= right / h[there]
            for boundary, cell, sign in self._ends(Q, axis):
                for r, c, value in self._end_derivatives(axis, boundary, Q[..., cell], h[cell], sign):
                    B[DELTA, r, c][..., cell] += value / h[cell]
        if self.n == 6:
            self._add_sources(q, entries)

    def _face_derivatives(self, axis, left, right):
        """(row, column, dF/dleft, dF/dright) of the fluxes through the faces inside."""
        xp, a = self.xp, U + axis
        mean = (left[U:K] + right[U:K]) / 2
        ratio, speed, c, (weight_p, weight_u, _, _) = self.upwinding(mean[axis])
        distance, weight = self._distances(axis)
        eddy = weight * self._eddy(left) + (1 - weight) * self._eddy(right)
        by_p, of_left, of_right = 0.5 / c, (1 + ratio) / 2, (1 - ratio) / 2  # of the mass flux
        yield P, P, by_p, -by_p
        yield P, a, of_left, of_right
        yield a, P, of_left, of_right
        mass = (left[a] + right[a]) / 2 - ((right[P] - left[P]) / c + ratio * (right[a] - left[a])) / 2
        for r in range(U, self.n):
            diffusion = (self.viscosity + self.diffusing[r] * eddy) / distance
            if r == a:
                normal = (c + ratio * ratio * c) / 2
                yield r, a, left[a] + normal + diffusion, right[a] - normal - diffusion
            elif r < K:
                yield r, r, (left[a] + speed) / 2 + diffusion, (right[a] - speed) / 2 - diffusion
                by_jump = mean[r - U] * weight_p / 2
                yield r, P, by_jump, -by_jump
                by_jump = mean[r - U] * weight_u / 2
                yield r, a, left[r] / 2 + by_jump, right[r] / 2 - by_jump
            else:
                carried = xp.where(mass > 0, left[r], right[r])
                yield r, r, xp.maximum(mass, 0) + diffusion, xp.minimum(mass, 0) - diffusion
                yield r, P, carried * by_p, -carried * by_p
                yield r, a, carried * of_left, carried * of_right
            if self.n == 6:
                slope = self.diffusing[r] * (right[r] - left[r]) / distance
                on_left, on_right = -slope * weight / left[OMEGA], -slope * (1 - weight) / right[OMEGA]
                yield r, K, on_left, on_right
                yield r, OMEGA, -on_left * self._eddy(left), -on_right * self._eddy(right)

    def _end_derivatives(self, axis, boundary, q, h, sign):
        """(row, column, derivative by the cell's own state) of the outward flux through the faces of a boundary."""
        a, keeps = U + axis, boundary.keeps
        b = boundary.state(q)
        eddy = self._eddy(b)
        one = self.xp.ones_like(q[P])
        if keeps[a]:
            yield P, a, sign * one
        if keeps[P]:
            yield a, P, sign * one
        for r in range(U, self.n):
            if keeps[r]:
                yield r, r, sign * b[a]
            else:
                yield r, r, (self.viscosity + self.diffusing[r] * eddy) * 2 / h * one
            if keeps[a]:
                yield r, a, sign * b[r]
            if self.n == 6:
                slope = self.diffusing[r] * (b[r] - q[r]) * 2 / h
                if keeps[K]:
                    yield r, K, -slope / b[OMEGA]
                if keeps[OMEGA]:
                    yield r, OMEGA, slope * eddy / b[OMEGA]

    def _add_sources(self, q, entries):
        """The derivatives of production and destruction, in the cell and, through the strain, in its neighbours."""
        gradient, _ = self._strain(q)
        k, omega = q[K], q[OMEGA]
        delta = entries[DELTA]
        delta[K, K] += BETA_STAR * omega
        delta[K, OMEGA] += BETA_STAR * k
        delta[OMEGA, OMEGA] += 2 * BETA * omega
        for axis in range(3):
            below, own, above = self._gradient_weights(axis)
            h = self.widths[axis]
            for d in range(3):
                stretching = along(2 * (gradient[d][axis] + gradient[axis][d]), axis)
                centre = own.copy()
                for boundary, cell, sign in self._ends(q, axis):
                    centre[cell] += sign * boundary.keeps[U + d] / h[cell]
                for r, factor in ((K, along(k / omega, axis)), (OMEGA, ALPHA)):
                    weighted = factor * stretching
                    for place, weight in ((2 - axis, below), (DELTA, centre), (4 + axis, above)):
                        along(entries[place, r, U + d], axis)[...] -= weighted * weight

    def rates(self, q):
        """The sum over the axes of the largest wave speed over the width (I, J, K): 1 / the time step of CFL 1."""
        total = self.xp.zeros(self.shape)
        for axis in range(3):
            u = along(q[U + axis], axis)
            along(total, axis)[...] += (abs(u) + self.xp.sqrt(u * u + self.beta)) / self.widths[axis]
        return total

    # What PseudoTime asks for.

    def new_blocks(self):
        """Memory for the blocks of the Jacobian."""
        return self.xp.empty((7, *self.shape, self.n, self.n))

    def diagonals(self, blocks):
        """(cells, their diagonal blocks): here all at once."""
        return ((..., blocks[DELTA]),)

    def matrix(self, blocks):
        return StencilMatrix(blocks, self.periodic)

    def scale_rows(self, q, blocks):
        """Rows of k and omega get the size of the others, for one norm to serve all."""
        scales = [(K, q[K].max()), (OMEGA, q[OMEGA].copy())] if self.n == 6 else []
        for s, size in scales:
            blocks[..., s, :] /= size[..., None]
        return scales

    def limited(self, q, new):
        """The new state with scalars that changed by a factor of 4 at most, and how many were held there."""
        if self.n == 4:
            return new, 0
        least, most = q[K:] / 4, q[K:] * 4
        held = int(((new[K:] < least) | (new[K:] > most)).sum())
        new[K:] = self.xp.clip(new[K:], least, most)
        return new, held

    def root_mean_squares(self, R, q):
        """The root mean square over the cells of the residual of each unknown; that of omega relative to its value."""
        squares = self.xp.stack([((R[r] / q[r] if r == OMEGA else R[r]) ** 2).mean() for r in range(self.n)])
        return tuple(math.sqrt(v) for v in to_host(squares).tolist())
