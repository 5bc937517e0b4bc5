"""Incompressible flow on blocks of curvilinear grids that meet at interfaces, in two or three dimensions.

The equations, for pressure p (over the density), velocity u and, with six unknowns, temperature T and chi = nu~ / nu of
the turbulence model of Spalart and Allmaras (turbulence.py), in units of the body and of the free stream:

    (1/beta) dp/dtau + div u                                                   = 0
    du/dtau + du/dt + div(u u) + grad p - div((nu + nu_t) (grad u + grad u^T)) = 0
    dT/dtau + dT/dt + div(u T) - div((nu/Pr + nu_t/Pr_t) grad T)               = 0

tau is the pseudo time of artificial compressibility. Finite volumes for Cartesian velocities in cells between the nodes
of a grid. Convective fluxes by flux-difference splitting along the normal of a face, scalars by the mass flux; states
by fifth-order upwind-biased interpolation along the grid line, by third-order one next to boundaries. Viscous fluxes
from the difference across the face and, where the grid is not orthogonal, from the gradients of both cells. Second
order in all on smooth grids, on any cutting into blocks the same: at an interface three layers of cells, and one of
gradients, come from the block beyond. The Jacobian is that of the first-order residual without the gradients: a
deferred correction, which `BlockILU0` factors block by block and `richardson` solves for all together.

Far away the velocity and the scalars are given where the free stream enters, and p = 0 where it leaves.

Sources: A. J. Chorin 1967 (artificial compressibility); P. L. Roe 1981 (flux differences); L. Luo, J. R. Edwards,
H. Luo, F. Mueller (block ILU in a multi-block flow solver).
"""

from __future__ import annotations

import math
from time import perf_counter

import numpy as np

import finelu as fl
from benchmarks.papers.flow import turbulence
from benchmarks.papers.flow.grids import DEPTH, face_vectors, means, normal, others, volumes
from benchmarks.papers.flow.pseudo_time import DELTA, Equations, P, U
from finelu.device import namespace, synchronize, to_host
from finelu.errors import ParameterError

# Metrics --------------------------------------------------------------------------------------------------------------


def dot(a, b):
    """The sum over the first axis of a times b."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def beyond(boundary, near, far):
    """What a parabola through a boundary face and the two cells next to it has a cell's width outside."""
    return (8 * boundary - 6 * near + far) / 3


class End:
    """A boundary of the blocks of a group: the state on its faces is keeps * (that of the cells) + given.

    axis, side : -d to -1, and -1 at the low end of the axis, else 1.  face : (d, blocks, ...), area times normal.
    values : for each block the unknowns at a wall without p, (n - 1,) or (n - 1, ...), more of them ignored; None far
    away, where the sign of `entering`, the free stream through the faces into the block, decides.
    """

    def __init__(self, axis, side, face, values, stream):
        xp = namespace(face)
        self.axis, self.side, self.face, self.wall = axis, side, face, values[0] is not None
        self.cells = (0, 1, 2) if side < 0 else (-1, -2, -3)
        entering = xp.ones(face.shape[1:], bool) if self.wall else side * dot(face, stream[: len(face)]) < 0
        given = xp.empty((len(stream), *face.shape[1:]))
        for b, value in enumerate(values):
            of_block = xp.asarray(stream if value is None else value, float)[: len(stream)]
            given[:, b] = of_block.reshape(len(stream), *(of_block.shape[1:] or (1,) * (face.ndim - 2)))
        self.keeps = xp.stack((entering, *[~entering] * len(stream))).astype(float)
        self.given = xp.concatenate((xp.zeros_like(face[:1]), xp.where(entering, given, 0)))

    def cells_of(self, Q):
        """The three cells next to the faces, of Q with the axis at its end."""
        return tuple(Q[..., c] for c in self.cells)

    def state(self, near, far=None, third=None):
        """On the faces (n, ...); with the second and third cells too, p follows the parabola through all."""
        b = self.keeps * near + self.given
        if far is not None:
            b[P] += self.keeps[P] * (7 * near[P] - 10 * far[P] + 3 * third[P]) / 8
        return b

    def through(self, b):
        return dot(b[U : U + len(self.face)], self.face)

    def flux(self, diffusivities, near, far=None, third=None):
        """(n, ...) in the direction of the axis: of first order from the cells next to the faces, else of second.

        Far away nothing is diffused, and along a wall velocity and scalars are taken not to change.
        """
        b = self.state(near, far, third)
        through = self.through(b)
        flux = b * through
        flux[P] = through
        flux[U : U + len(self.face)] += b[P] * self.face
        if self.wall:
            jump = near - b if far is None else near - beyond(b, near, far)
            share = self.side * (self.share if far is None else self.share_2)
            for r, (kappa, _) in enumerate(diffusivities(b), start=U):
                flux[r] += share * kappa * jump[r]
        return flux


class Group:
    """Blocks of one shape with the same kinds of boundaries, side by side in each array: what a flow needs of them.

    cells : their place in a state.  nodes : (d, blocks, I + 1, J + 1[, K + 1]).  Axes are -d to -1; arrays of the faces
    along one have it at their end: face (area times unit normal, which points along the axis), middle, area, normal,
    share (area over distance) and skew, the part of the face vector that is not along the line between the centres.
    """

    def __init__(self, names, nodes, start):
        xp = namespace(nodes)
        self.names, self.nodes, self.d = names, nodes, len(nodes)
        self.axes = range(-self.d, 0)
        self.shape = tuple(c - 1 for c in nodes.shape[2:])
        self.cells = slice(start, start + len(names) * math.prod(self.shape))
        self.volume, self.centre = volumes(nodes), means(nodes, self.axes)
        self.face = {a: self.lined(face_vectors(nodes, a), a) for a in self.axes}
        self.middle = {a: self.lined(means(nodes, others(self.d, a)), a) for a in self.axes}
        self.area = {a: xp.sqrt(dot(face, face)) for a, face in self.face.items()}
        self.normal = {a: self.face[a] / self.area[a] for a in self.axes}
        self.share, self.skew = {}, {}

    @staticmethod
    def lined(a, axis):
        """A view of a with one of its axes at the end."""
        return namespace(a).moveaxis(a, axis, -1)

    @staticmethod
    def unlined(a, axis):
        return namespace(a).moveaxis(a, -1, axis)

    def measure(self, lines, ends):
        """Distances across faces; lines : the centres along each axis with one more at each end."""
        xp = namespace(self.volume)
        self.ends, slopes = ends, []
        for end in ends:
            near, far, _ = end.cells_of(self.lined(self.centre, end.axis))
            place = 0 if end.side < 0 else -1
            middle = self.middle[end.axis][..., place]
            ghost = lines[end.axis][..., place] = beyond(middle, near, far)
            square = dot(end.face, end.face)
            end.share, end.share_2 = (square / abs(dot(end.face, near - x)) for x in (middle, ghost))
        for axis in self.axes:
            X, face = lines[axis], self.face[axis]
            d = X[..., 1:] - X[..., :-1]
            self.share[axis] = self.area[axis] ** 2 / dot(face, d)
            self.skew[axis] = (face - self.share[axis] * d) / 2
            slopes.append(self.unlined(X[..., 2:] - X[..., :-2], axis))
        across = [normal(a, *(slopes[b] for b in others(self.d, a))) for a in self.axes]
        self.inverse = xp.stack(across) / dot(slopes[0], across[0])  # [axis, direction]

    def gradient(self, lines, depth):
        """d u_c / d x_m of all unknowns but p, (d, n - 1, blocks, I, ...), of lines with `depth` cells more at each
        end: exact for linear u."""
        total = 0.0
        for axis in self.axes:
            Q = lines[axis][U:]
            last = Q.shape[-1] - depth
            difference = self.unlined(Q[..., depth + 1 : last + 1] - Q[..., depth - 1 : last - 1], axis)
            total = total + self.inverse[axis][:, None] * difference
        return total


# The equations in space -----------------------------------------------------------------------------------------------


class CurvedFlow(Equations):
    """Residual and Jacobian of a flow on the blocks of this process; see pseudo_time for what uses it.

    blocks : grids.Blocks, of all processes.  grid : fl.MultiblockGrid of the blocks of this one, those of a group one
    after the other.  stream : all unknowns but p far away: d velocities and, in three dimensions, T and chi or neither.
    beta : of artificial compressibility.  xp : numpy or cupy.
    A state q is (n, cells): the unknowns of the cells of all blocks of this process, one block after the other.
    """

    def __init__(self, blocks, grid, comm=None, *, viscosity, stream=(1.0, 0.0), beta=1.0, xp=np):
        self.grid, self.comm, self.viscosity, self.stream, self.beta, self.xp = grid, comm, viscosity, stream, beta, xp
        self.n, self.d = len(stream) + 1, blocks.nodes[grid.names[0]].ndim - 1
        self.velocity, self.scalars = slice(U, U + self.d), range(U + self.d, self.n)
        if self.n not in (self.d + 1, self.d + 3):
            raise ParameterError(
                f"{self.n - 1} values of the stream; {self.d}, or {self.d + 2} with T and chi, are needed."
            )
        self.names = ("p", *"uvw"[: self.d], "T", "chi")[: self.n]
        self.exchanging, self.groups, start = 0.0, [], 0
        for names in grouped(blocks, grid.names):
            nodes = xp.asarray(np.stack([blocks.nodes[name] for name in names], axis=1), float)
            self.groups.append(Group(names, nodes, start))
            start = self.groups[-1].cells.stop
        self.cells, self.all_cells = start, self.summed(start)
        for group, lines in zip(self.groups, self._lines([g.centre for g in self.groups], 1), strict=True):
            ends = []
            for place in blocks.ends[group.names[0]]:
                axis, side = "ijk".index(place[0]) - self.d, -1 if place[1] == "-" else 1
                faces = group.face[axis][..., 0 if side < 0 else -1]
                ends.append(End(axis, side, faces, [blocks.ends[name][place] for name in group.names], stream))
            group.measure(lines, ends)
            group.distance = xp.asarray(blocks.distances(to_host(group.centre)))

    def summed(self, value):
        """The sum over all processes, of a number or a NumPy array."""
        if self.comm is None:
            return value
        clock = perf_counter()
        total = self.comm.allreduce(value)
        self.exchanging += perf_counter() - clock
        return total

    def parts(self, q):
        """Views (..., blocks, I, J[, K]) of q (..., cells), group by group."""
        return [q[..., g.cells].reshape(*q.shape[:-1], len(g.names), *g.shape) for g in self.groups]

    def by_name(self, q):
        """{name: (..., I, J[, K])}, views of q (..., cells)."""
        pairs = zip(self.groups, self.parts(q), strict=True)
        return {name: part[..., b, *[slice(None)] * self.d] for g, part in pairs for b, name in enumerate(g.names)}

    @property
    def centres(self):
        """The centres of all cells (d, cells)."""
        return self.xp.concatenate([g.centre.reshape(self.d, -1) for g in self.groups], axis=1)

    @property
    def volumes(self):
        return self.xp.concatenate([g.volume.ravel() for g in self.groups])

    def start(self):
        """The free stream, which stands still at the walls."""
        q = self.xp.zeros((self.n, self.cells))
        for r, value in enumerate(self.stream, start=U):
            q[r] = value
        for group, part in zip(self.groups, self.parts(q), strict=True):
            part[U:] *= 1 - self.xp.exp(-(group.distance**2) / 0.04)
        return q

    def _lines(self, parts, depth):
        """Each part (c, blocks, I, ...) along each axis, {axis: lined}, `depth` cells from beyond at each end, copies
        at boundaries. Collective over the processes."""
        xp, arrays = self.xp, {}
        for group, part in zip(self.groups, parts, strict=True):
            cells = xp.moveaxis(part, 0, -1)
            for b, name in enumerate(group.names):
                arrays[name] = cells[b] if self.d == 3 else cells[b][:, :, None]
        synchronize(parts[0])
        clock = perf_counter()
        ghosts = self.grid.exchange(arrays, depth=depth)
        synchronize(parts[0])
        self.exchanging += perf_counter() - clock
        found = []
        for group, part in zip(self.groups, parts, strict=True):
            lines = {}
            for axis in group.axes:
                inside = group.lined(part, axis)
                Q = xp.empty((*inside.shape[:-1], inside.shape[-1] + 2 * depth))
                Q[..., depth:-depth] = inside
                for side, place, own in (
                    ("-", slice(None, depth), slice(0, 1)),
                    ("+", slice(-depth, None), slice(-1, None)),
                ):
                    face = "ijk"[axis + self.d] + side
                    for b, name in enumerate(group.names):
                        ghost = ghosts[name].get(face)
                        if ghost is None:
                            Q[:, b, ..., place] = inside[:, b, ..., own]
                        else:
                            ghost = xp.moveaxis(ghost if self.d == 3 else ghost[:, :, 0], -1, 0)
                            Q[:, b, ..., place] = group.lined(ghost, axis)
                lines[axis] = Q
            found.append(lines)
        return found

    def _gradients(self, lines, depth):
        """Group.gradient of all groups; gives the lines, of q, the cell that a boundary has outside."""
        for group, along in zip(self.groups, lines, strict=True):
            for end in group.ends:
                Q = along[end.axis]
                near, far, third = end.cells_of(Q[..., depth:-depth])
                Q[..., depth - 1 if end.side < 0 else -depth] = beyond(end.state(near, far, third), near, far)
        return [g.gradient(along, depth) for g, along in zip(self.groups, lines, strict=True)]

    def _vorticity(self, gradient):
        """The vorticity, a number in two dimensions, (3, ...) in three."""
        if self.d == 2:
            return gradient[0, 1] - gradient[1, 0]
        return self.xp.stack([gradient[a, b] - gradient[b, a] for a, b in ((1, 2), (2, 0), (0, 1))])

    def vorticity(self, q):
        """The vorticity of the cells of each group; collective over the processes."""
        return [self._vorticity(g) for g in self._gradients(self._lines(self.parts(q), DEPTH), DEPTH)]

    def residual(self, q, order=2, at=None):
        """R(q) (n, cells): dq/dtau + R = 0 (of the pressure: (1/beta) dp/dtau). Cost: some hundred passes over q.

        order : 1 is what the Jacobian is of.  at : the state of the upwind coefficients and of the gradients in the
        source of chi, q itself if left out.
        """
        R = self.xp.empty_like(q)
        lines = self._lines(self.parts(q), DEPTH)
        fixed = lines if at is None else self._lines(self.parts(at), DEPTH)
        none = [None] * len(self.groups)
        gradients = self._gradients(fixed, DEPTH) if order == 2 or self.scalars else none
        slopes = self._lines([g.reshape(-1, *g.shape[2:]) for g in gradients], 1) if order == 2 else none
        every = zip(self.groups, self.parts(R), lines, gradients, slopes, fixed, self.parts(q), strict=True)
        for group, part, along, gradient, slope, base, own in every:
            total = 0.0
            for axis in group.axes:
                Q = along[axis]
                flux = self._fluxes(group, axis, Q, slope and slope[axis], base[axis])
                for end in group.ends:
                    if end.axis == axis:
                        cells = end.cells_of(Q[..., DEPTH:-DEPTH])[: 3 if order == 2 else 1]
                        flux[..., 0 if end.side < 0 else -1] = end.flux(self._diffusivities, *cells)
                total = total + group.unlined(flux[..., 1:] - flux[..., :-1], axis)
            part[...] = total / group.volume
            if self.scalars:
                part[-1] -= self._source(turbulence.source, group, gradient, own)
                part[-1] -= self.viscosity * turbulence.CB2 / turbulence.SIGMA * dot(gradient[:, -1], gradient[:, -1])
        return R

    def _source(self, function, group, gradient, q):
        vorticity = self._vorticity(gradient)
        return function(q[-1], self.xp.sqrt(dot(vorticity, vorticity)), group.distance, self.viscosity)

    def _diffusivities(self, q):
        """(kappa, its derivative by chi) of each unknown but p, at a state q."""
        nu = self.viscosity
        if not self.scalars:
            return [(nu, 0.0)] * self.d
        (eddy, eddy_by), (own, own_by) = turbulence.eddy(q[-1]), turbulence.spread(q[-1])
        heat = nu * (1 / turbulence.PRANDTL + eddy / turbulence.PRANDTL_T), nu * eddy_by / turbulence.PRANDTL_T
        chi = nu / turbulence.SIGMA * (1 + own), nu / turbulence.SIGMA * own_by
        return [(nu * (1 + eddy), nu * eddy_by)] * self.d + [heat, chi]

    def _fluxes(self, group, axis, Q, slopes, base):
        """(n, ...) through the faces of one axis; slopes : lines of gradients, None for those of first order."""
        near_left, near_right, normal, v = Q[..., 2:-3], Q[..., 3:-2], group.normal[axis], self.velocity
        left, right = (near_left, near_right) if slopes is None else self._states(group, axis, Q)
        mean = (base[v][..., 2:-3] + base[v][..., 3:-2]) / 2
        ratio, speed, c, (a, b, d, e) = self.upwinding(dot(mean, normal))
        jump = right - left
        on_left, on_right = dot(left[v], normal), dot(right[v], normal)
        across = on_right - on_left
        flux = self.xp.empty_like(left)
        flux[P] = (on_left + on_right - jump[P] / c - ratio * across) / 2
        flux[v] = left[v] * on_left + right[v] * on_right - speed * jump[v] - mean * (a * jump[P] + b * across)
        flux[v] += normal * (left[P] + right[P] - d * jump[P] - e * across)
        flux[v] /= 2
        for s in self.scalars:
            flux[s] = self.xp.maximum(flux[P], 0) * left[s] + self.xp.minimum(flux[P], 0) * right[s]
        flux *= group.area[axis]
        diffusivities = self._diffusivities((near_left + near_right) / 2)
        change = near_right - near_left
        if slopes is not None:
            both = (slopes[..., 1:] + slopes[..., :-1]).reshape(self.d, self.n - 1, *slopes.shape[1:-1], -1)
        for r, (kappa, _) in enumerate(diffusivities):
            gradient = group.share[axis] * change[U + r]
            if slopes is not None:
                gradient = gradient + dot(group.skew[axis], both[:, r])
                if self.scalars and r < self.d:  # the eddies' part of (grad u)^T; that of nu has no divergence
                    eddies = (kappa - self.viscosity) / kappa
                    gradient = gradient + eddies * dot(group.face[axis], both[r, : self.d]) / 2
            flux[U + r] -= kappa * gradient
        return flux

    def _states(self, group, axis, Q):
        """On both sides of the faces, through five cells along the grid line; through three near boundaries."""
        a, b, c, d, e, f = (Q[..., s : Q.shape[-1] - 5 + s] for s in range(6))
        left, right = (2 * a - 13 * b + 47 * c + 27 * d - 3 * e) / 60, (2 * f - 13 * e + 47 * d + 27 * c - 3 * b) / 60
        for end in group.ends:
            if end.axis == axis:
                near = (..., slice(0, 3) if end.side < 0 else slice(-3, None))
                left[near], right[near] = ((5 * c + 2 * d - b) / 6)[near], ((5 * d + 2 * c - e) / 6)[near]
        return left, right

    def through_walls(self, q):
        """What flows into the walls of each unknown, (n,), and their area, a NumPy array (n + 1,); collective."""
        total = self.xp.zeros(self.n + 1)
        for group, part in zip(self.groups, self.parts(q), strict=True):
            for end in group.ends:
                if end.wall:
                    flux = end.flux(self._diffusivities, *end.cells_of(group.lined(part, end.axis)))
                    total[:-1] += end.side * flux.reshape(self.n, -1).sum(axis=1)
                    total[-1] += self.xp.sqrt(dot(end.face, end.face)).sum()
        return self.summed(to_host(total))

    def wall_pressure(self, q):
        """({name: middles of the faces (d, ...)}, {name: p there}) of the blocks of this process with a wall."""
        middles, pressures = {}, {}
        for group, part in zip(self.groups, self.parts(q), strict=True):
            for end in group.ends:
                if end.wall:
                    middle = group.middle[end.axis][..., 0 if end.side < 0 else -1]
                    state = end.state(*end.cells_of(group.lined(part, end.axis)))
                    middles |= {name: middle[:, b] for b, name in enumerate(group.names)}
                    pressures |= {name: state[P, b] for b, name in enumerate(group.names)}
        return middles, pressures

    def force(self, q):
        """The force of the flow on the walls, (d,), a NumPy array; collective over the processes."""
        return self.through_walls(q)[self.velocity]

    # What PseudoTime asks for.

    def new_blocks(self):
        """Memory for the blocks of the Jacobian, (blocks, 7, I, J, K, n, n) for each group."""
        flat = [1] * (3 - self.d)
        return [self.xp.empty((len(g.names), 7, *g.shape, *flat, self.n, self.n)) for g in self.groups]

    def jacobian(self, q, blocks):
        """Write dR/dq of the first-order residual into blocks.

        At fixed upwind coefficients and gradients in the source of chi, of which only what damps chi counts.
        """
        xp = self.xp
        lines = self._lines(self.parts(q), 1)
        gradients = self._gradients(lines, 1) if self.scalars else [None] * len(self.groups)
        every = zip(self.groups, lines, gradients, self.parts(q), blocks, strict=True)
        for group, along, gradient, part, memory in every:
            memory[...] = 0
            entries = xp.moveaxis(memory, (1, -2, -1), (0, 1, 2))  # (7, n, n, blocks, I, J, K)
            entries = entries if self.d == 3 else entries[..., 0]
            for axis in group.axes:
                B, volume = group.lined(entries, axis), group.lined(group.volume, axis)
                ends = [end for end in group.ends if end.axis == axis]
                own = {end.side: dict(self._end_derivatives(end, along[axis])) for end in ends}
                below, above = 2 - (axis + self.d), 4 + (axis + self.d)
                for (r, c), left, right in self._face_derivatives(group, axis, along[axis]):
                    for end in ends:
                        value = own[end.side].pop((r, c), 0.0)
                        if end.side < 0:
                            left[..., 0], right[..., 0] = 0, value
                        else:
                            left[..., -1], right[..., -1] = value, 0
                    B[DELTA, r, c] += (left[..., 1:] - right[..., :-1]) / volume
                    B[below, r, c] -= left[..., :-1] / volume
                    B[above, r, c] += right[..., 1:] / volume
            if self.scalars:
                entries[DELTA, -1, -1] += self._source(turbulence.damping, group, gradient, part)

    def _face_derivatives(self, group, axis, Q):
        """((row, column), dF/dleft, dF/dright) of the fluxes through all faces, as if there were no boundary."""
        left, right, normal, area = Q[..., :-1], Q[..., 1:], group.normal[axis], group.area[axis]
        mean = (left[self.velocity] + right[self.velocity]) / 2
        ratio, speed, c, (a, b, d, e) = self.upwinding(dot(mean, normal))
        half, share, xp = area / 2, group.share[axis], self.xp
        on_left, on_right = dot(left[self.velocity], normal), dot(right[self.velocity], normal)
        diffusivities = self._diffusivities((left + right) / 2)
        of_left, of_right = half * (1 + ratio), half * (1 - ratio)  # of the mass flux by the velocities
        yield (P, P), half / c, -half / c
        for k in range(self.d):
            yield (P, U + k), of_left * normal[k], of_right * normal[k]
            by_p = half * (mean[k] * a + normal[k] * d)
            yield (U + k, P), half * normal[k] + by_p, half * normal[k] - by_p
            by_u = mean[k] * b + normal[k] * e
            for m in range(self.d):
                here = half * normal[m] * (left[U + k] + by_u)
                there = half * normal[m] * (right[U + k] - by_u)
                if k == m:
                    diffusion = share * diffusivities[k][0]
                    here += half * (on_left + speed) + diffusion
                    there += half * (on_right - speed) - diffusion
                yield (U + k, U + m), here, there
        if not self.scalars:
            return
        mass = half * (on_left + on_right - (right[P] - left[P]) / c - ratio * (on_right - on_left))
        for s in self.scalars:
            diffusion, carried = share * diffusivities[s - U][0], xp.where(mass > 0, left[s], right[s])
            yield (s, s), xp.maximum(mass, 0) + diffusion, xp.minimum(mass, 0) - diffusion
            yield (s, P), carried * half / c, -carried * half / c
            for k in range(self.d):
                yield (s, U + k), carried * of_left * normal[k], carried * of_right * normal[k]
        for r, (_, by_chi) in enumerate(diffusivities, start=U):
            value = -share * by_chi * (right[r] - left[r]) / 2
            yield (r, self.n - 1), value, value.copy()

    def _end_derivatives(self, end, Q):
        """((row, column), derivative by the adjacent cells) of the first-order flux through a boundary."""
        b, keeps, face = end.state(Q[..., 1 if end.side < 0 else -2]), end.keeps, end.face
        through, diffusivities = end.through(b), self._diffusivities(b)
        for r in range(U, self.n):
            if r < U + self.d:
                k = r - U
                yield (P, r), face[k] * keeps[r]
                yield (r, P), face[k] * keeps[P]
            for m in range(self.d):
                value = b[r] * face[m] * keeps[U + m]
                if r == U + m:
                    value += self._kept(end, r, through, diffusivities)
                yield (r, U + m), value
            if r >= U + self.d:
                yield (r, r), self._kept(end, r, through, diffusivities)

    def _kept(self, end, r, through, diffusivities):
        """By how much the flux of an unknown through a boundary grows with its value in the cell, at the same flow."""
        diffusion = end.side * end.share * diffusivities[r - U][0] if end.wall else 0.0
        return through * end.keeps[r] + diffusion

    def rates(self, q):
        """The sum over the axes of the largest wave speed over the width (cells,): 1 / the time step of CFL 1."""
        total = self.xp.zeros(self.cells)
        for group, part, out in zip(self.groups, self.parts(q), self.parts(total), strict=True):
            for axis in group.axes:
                face = group.unlined(group.face[axis][..., 1:] + group.face[axis][..., :-1], axis) / 2
                through = dot(part[self.velocity], face)
                out += abs(through) + self.xp.sqrt(through**2 + self.beta * dot(face, face))
            out /= group.volume
        return total

    def diagonals(self, blocks):
        """(cells, their diagonal blocks), block by block."""
        found, at = [], 0
        for block in (block for memory in blocks for block in memory):
            delta = block[DELTA].reshape(-1, self.n, self.n)
            found.append((slice(at, at + len(delta)), delta))
            at += len(delta)
        return found

    def matrix(self, blocks):
        every = (block for memory in blocks for block in memory)
        return fl.MultiblockMatrix(self.grid, dict(zip(self.grid.names, every, strict=True)))

    def root_mean_squares(self, R, q):
        squares = self.summed(to_host((R * R).sum(axis=1)))
        return tuple(math.sqrt(v / self.all_cells) for v in squares)


def grouped(blocks, names):
    """The names of blocks of one shape with the same kinds of boundaries, in lists."""
    found = {}
    for name in names:
        kinds = tuple((face, value is None) for face, value in blocks.ends[name].items())
        found.setdefault((blocks.nodes[name].shape, kinds), []).append(name)
    return list(found.values())


def flow_on(blocks, comm=None, kind=CurvedFlow, **parameters):
    """The flow on all blocks, or with comm on the share of this process; kind : CurvedFlow or a subclass."""
    names = list(blocks.nodes)
    if comm is not None:
        if comm.size > len(names):
            raise ParameterError(f"{comm.size} processes for {len(names)} blocks; each needs one, see --blocks.")
        names = [str(name) for name in np.array_split(names, comm.size)[comm.rank]]
    shapes = {}
    for name in (name for group in grouped(blocks, names) for name in group):
        cells = [c - 1 for c in blocks.nodes[name].shape[1:]]
        shapes[name] = (*cells, *[1] * (3 - len(cells)))
    return kind(blocks, fl.MultiblockGrid(shapes, blocks.interfaces, comm), comm, **parameters)


def gathered(flow, q):
    """{name: (n, I, J[, K])} of all blocks on the host, on the first process; None on the others."""
    own = {name: to_host(part) for name, part in flow.by_name(q).items()}
    if flow.comm is None:
        return own
    every = flow.comm.gather(own)
    return None if every is None else {name: part for own in every for name, part in own.items()}
