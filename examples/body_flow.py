"""Laminar flow around a cylinder or an airfoil in 2D, on blocks of curvilinear grids that meet at interfaces.

    python examples/body_flow.py cylinder --re 40 --png cylinder.png
    python examples/body_flow.py cylinder --re 100 --grid medium --dt 0.1 --device cuda
    python examples/body_flow.py airfoil --re 500 --grid medium --png airfoil.png
    mpirun -n 4 python examples/body_flow.py cylinder --re 100 --mpi

The equations, for pressure p (over the density) and velocity u = (u, v), in units of the diameter or chord and of the
free stream:

    (1/beta) dp/dtau + div u                             = 0
    du/dtau + du/dt + div(u u) + grad p - div(nu grad u) = 0

tau is the pseudo time of artificial compressibility, in which every physical time step (BDF2) or the steady state is
reached. A cylinder lies in an O-grid, an airfoil (NACA 0012, its trailing edge made sharp) in a C-grid, whose two wake
blocks meet along the line behind the airfoil and run against each other there.

Finite volumes for Cartesian velocities in cells between the nodes of a grid. Convective fluxes by flux-difference
splitting along the normal of a face, its states by fifth-order upwind-biased interpolation along the grid line, by
third-order one next to boundaries.
Viscous fluxes from the difference across the face and, where the grid is not orthogonal, from the gradients of both
cells. Second order in all on smooth grids, on any cutting into blocks the same: at an interface three layers of cells,
and one of gradients, come from the block beyond. The Jacobian is that of the first-order residual without the
gradients: a deferred correction, which `BlockILU0` factors block by block and `richardson` solves for all together.

Far away the velocity is given where the free stream enters, and p = 0 where it leaves.

Sources: A. J. Chorin 1967 (artificial compressibility); P. L. Roe 1981 (flux differences); A. Jameson 1974 (sheared
parabolic coordinates, the C-grid); L. Luo, J. R. Edwards, H. Luo, F. Mueller (block ILU in a multi-block flow solver).
Values of others, for the cylinder: S. C. R. Dennis, G.-Z. Chang 1970, B. Fornberg 1980 (Re 40); C. H. K. Williamson
1989 (Re 100).
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from channel_flow import (
    BAD_INPUT,
    CONVERGED,
    INTERRUPTED,
    NOT_CONVERGED,
    Parser,
    at_least,
    canvas,
    make_march,
    not_negative,
    positive,
)
from pseudo_time import DELTA, Diverged, P, U
from scipy.interpolate import CubicSpline, LinearNDInterpolator
from scipy.optimize import brentq

import finelu as fl
from finelu.device import namespace, require_gpu, synchronize, to_host
from finelu.errors import FineluError, ParameterError
from finelu.processes import met_by_all

DEPTH = 3  # layers of cells that a block needs from beyond an interface


# Grids ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    """Blocks of a grid around a body, the order of which is that in which they follow each other around it.

    nodes : {name: (2, I + 1, J + 1)}, x and y; j runs away from the body, i around it, clockwise.
    ends : {name: {face: velocity of the wall (2,), or None far away}}, for the faces that are not interfaces.
    """

    nodes: dict[str, Any]
    interfaces: list[Any]
    ends: dict[str, dict[str, Any]]

    def __post_init__(self):
        for name, nodes in self.nodes.items():
            volume = volumes(nodes)
            if not volume.min() > 0:
                i, j = np.unravel_index(volume.argmin(), volume.shape)
                raise ParameterError(f"block {name}: cell ({i}, {j}) has the volume {volume[i, j]:.3g}, not above 0.")


def volumes(nodes):
    """The volumes of the cells between nodes (2, I + 1, J + 1); below 0 if i and j are left-handed."""
    a, b = nodes[:, 1:, 1:] - nodes[:, :-1, :-1], nodes[:, :-1, 1:] - nodes[:, 1:, :-1]
    return (a[0] * b[1] - a[1] * b[0]) / 2


def pieces(cells, blocks):
    """Where `blocks` nearly equal pieces of a line of cells begin and end."""
    if cells < DEPTH * blocks:
        raise ParameterError(f"{blocks} blocks of {cells} cells in a row; each needs at least {DEPTH}.")
    return [slice(cells * b // blocks, cells * (b + 1) // blocks + 1) for b in range(blocks)]


def ring(nodes, blocks, inner=(0.0, 0.0), outer=None):
    """An O-grid (2, I + 1, J + 1), cut into blocks around; the last nodes along i are the first ones."""
    cut = {f"o{b + 1}": nodes[:, part] for b, part in enumerate(pieces(nodes.shape[1] - 1, blocks))}
    names = list(cut)
    interfaces = [fl.Interface(a, "i+", b, "i-") for a, b in zip(names, names[1:] + names[:1], strict=True)]
    return Blocks(cut, interfaces, {name: {"j-": inner, "j+": outer} for name in names})


def cylinder(cells, blocks=4, distance=50.0):
    """An O-grid around a cylinder of diameter 1, its outer boundary `distance` away from the axis.

    Around, cells are 0.4 of their mean wide in the wake and 1.6 in front; ln r grows by 0.5 to 1.5 times its mean.
    """
    if not distance >= 2:
        raise ParameterError(f"distance={distance:g}; the outer boundary is 2 or more diameters away.")
    t, s = (np.linspace(0, 1, c + 1) for c in cells)
    angle = -2 * math.pi * t + 0.6 * np.sin(2 * math.pi * t)
    r = 0.5 * np.exp(math.log(2 * distance) * (s + s * s) / 2)
    nodes = np.stack((np.cos(angle)[:, None] * r, np.sin(angle)[:, None] * r))
    nodes[:, -1] = nodes[:, 0]
    return ring(nodes, blocks)


def naca0012(x):
    """Half the thickness of the NACA 0012 airfoil, closed at x = 1."""
    return 0.6 * (0.2969 * np.sqrt(x) - 0.1260 * x - 0.3516 * x**2 + 0.2843 * x**3 - 0.1036 * x**4)


def airfoil(cells, blocks=4, distance=50.0):
    """A C-grid around the NACA 0012 airfoil with the chord from x = 0 to 1, in parabolic coordinates.

    z = x + i y = a + w^2, with a in the nose: the half plane Im w > 0 becomes the plane without the line behind a, and
    the airfoil a low hill on the real axis. A quarter of the cells along i lies on each side of the wake. The first
    block is the lower wake, the last the upper one.
    """
    if blocks < 3:
        raise ParameterError(f"{blocks} blocks; a C-grid needs at least 3: lower wake, airfoil, upper wake.")
    if cells[0] < 16:
        raise ParameterError(f"{cells[0]} cells along the C; at least 16 are needed.")
    if not distance >= 2:
        raise ParameterError(f"distance={distance:g}; the outer boundary is 2 or more chords away.")
    a = 1.1019 * 0.12**2 / 2  # half the radius of the nose
    s = np.linspace(0, 1, 2001) ** 2
    w = np.sqrt(s - a + 1j * naca0012(s))
    hill, end, far = CubicSpline(w.real, w.imag), float(w.real[-1]), math.sqrt(distance)
    wake, half = cells[0] // 4, (cells[0] - 2 * (cells[0] // 4)) // 2
    t = np.linspace(0, 1, half + 1)
    body = end * (t + 0.6 * np.sin(math.pi * t) / math.pi)
    first = end * 0.4 * wake / half / (far - end)  # cells as long behind the trailing edge as before it
    growth = brentq(lambda g: g / np.expm1(g) - first, 1e-6, 50)
    behind = end + (far - end) * np.expm1(growth * np.linspace(0, 1, wake + 1)) / np.expm1(growth)
    right = np.concatenate((body, behind[1:]))
    xi = np.concatenate((-right[:0:-1], right))
    away = np.expm1(4 * np.linspace(0, 1, cells[1] + 1)) / np.expm1(4)
    height = np.where(abs(xi) < end, hill(np.minimum(abs(xi), end)), 0.0)[:, None]
    eta = height * (1 - away) + far * away
    nodes = np.stack((xi[:, None] ** 2 - eta**2 + a, 2 * xi[:, None] * eta))
    ranges = [slice(0, wake + 1)]
    ranges += [slice(p.start + wake, p.stop + wake) for p in pieces(2 * half, blocks - 2)]
    ranges.append(slice(wake + 2 * half, None))
    names = ["lower wake", *(f"airfoil {b + 1}" for b in range(blocks - 2)), "upper wake"]
    interfaces = [fl.Interface(a, "i+", b, "i-") for a, b in pairwise(names)]
    interfaces.append(fl.Interface(names[0], "j-", names[-1], "j-", along=("-i", "k")))
    ends: dict[str, dict[str, Any]] = {name: {"j-": (0.0, 0.0), "j+": None} for name in names}
    ends[names[0]], ends[names[-1]] = {"i-": None, "j+": None}, {"i+": None, "j+": None}
    return Blocks({name: nodes[:, r] for name, r in zip(names, ranges, strict=True)}, interfaces, ends)


# Metrics --------------------------------------------------------------------------------------------------------------


def lined(a, axis):
    """A view of a (..., I, J) with one of its axes at the end."""
    return a if axis else a.swapaxes(-1, -2)


def beyond(boundary, near, far):
    """What a parabola through a boundary face and the two cells next to it has a cell's width outside."""
    return (8 * boundary - 6 * near + far) / 3


class End:
    """A boundary: the state on its faces is keeps * (that of the cells) + given.

    velocity : (2,) or (2, faces), of a wall; None far away, where the sign of `entering`, the free stream through the
    faces into the block, decides.  axis, side : -1 at the low end of the axis, else 1.
    """

    def __init__(self, axis, side, face, velocity, stream):
        xp = namespace(face)
        self.axis, self.side, self.face, self.wall = axis, side, face, velocity is not None
        self.cells = (0, 1, 2) if side < 0 else (-1, -2, -3)
        entering = xp.ones(face.shape[1], bool) if self.wall else side * (face[0] * stream[0] + face[1] * stream[1]) < 0
        given = xp.empty_like(face)
        given[...] = xp.asarray(velocity if self.wall else stream, float).reshape(2, -1)
        self.keeps = xp.stack((entering, ~entering, ~entering)).astype(float)
        self.given = xp.concatenate((xp.zeros_like(face[:1]), xp.where(entering, given, 0)))

    def cells_of(self, Q):
        """The three cells next to the faces, of Q with the axis at its end."""
        return tuple(Q[..., c] for c in self.cells)

    def state(self, near, far=None, third=None):
        """On the faces (3, faces); with the second and third cells too, p follows the parabola through all."""
        b = self.keeps * near + self.given
        if far is not None:
            b[P] += self.keeps[P] * (7 * near[P] - 10 * far[P] + 3 * third[P]) / 8
        return b

    def flux(self, near, far=None, third=None):
        """(3, faces) in the direction of the axis: of first order from the cells next to the faces, else of second."""
        b = self.state(near, far, third)
        flux = b * (b[U] * self.face[0] + b[U + 1] * self.face[1])
        flux[P] = b[U] * self.face[0] + b[U + 1] * self.face[1]
        flux[U:] += b[P] * self.face
        if self.wall and far is None:
            flux[U:] += self.side * self.conducts * (near - b)[U:]
        elif self.wall:  # where its velocity does not change along it; far away nothing is conducted
            flux[U:] += self.side * self.conducts_2 * (near - beyond(b, near, far))[U:]
        return flux


class Block:
    """What a flow needs to know of one block: `cells`, its place in a state, and its metrics.

    face[axis] (2, ., faces) : area times unit normal, which points along the axis; lined, as `area` and `normal` are.
    """

    def __init__(self, name, nodes, cells):
        xp = namespace(nodes)
        self.name, self.cells, self.nodes = name, cells, nodes
        self.shape = nodes.shape[1] - 1, nodes.shape[2] - 1
        self.volume = volumes(nodes)
        self.centre = (nodes[:, 1:, 1:] + nodes[:, :-1, :-1] + nodes[:, :-1, 1:] + nodes[:, 1:, :-1]) / 4
        along_j, along_i = nodes[:, :, 1:] - nodes[:, :, :-1], nodes[:, 1:] - nodes[:, :-1]
        self.face = [lined(xp.stack((along_j[1], -along_j[0])), 0), xp.stack((-along_i[1], along_i[0]))]
        self.middle = [lined((nodes[:, :, 1:] + nodes[:, :, :-1]) / 2, 0), (nodes[:, 1:] + nodes[:, :-1]) / 2]
        self.area = [xp.sqrt(face[0] ** 2 + face[1] ** 2) for face in self.face]
        self.normal = [face / area for face, area in zip(self.face, self.area, strict=True)]

    def measure(self, lines, ends, viscosity):
        """Distances and what conducts across faces; lines : the centres along both axes with one more at each end."""
        xp = namespace(self.volume)
        self.ends, self.conducts, self.skew, slopes = ends, [], [], []
        for end in ends:
            near, far, _ = end.cells_of(lined(self.centre, end.axis))
            middle = self.middle[end.axis][..., 0 if end.side < 0 else -1]
            lines[end.axis][..., 0 if end.side < 0 else -1] = beyond(middle, near, far)
            square = viscosity * (end.face**2).sum(axis=0)
            end.conducts = square / abs((end.face * (near - middle)).sum(axis=0))
            end.conducts_2 = square / abs((end.face * (near - beyond(middle, near, far))).sum(axis=0))
        for axis in (0, 1):
            X, face = lines[axis], self.face[axis]
            d = X[..., 1:] - X[..., :-1]
            share = self.area[axis] ** 2 / (face * d).sum(axis=0)
            self.conducts.append(viscosity * share)
            self.skew.append(viscosity * (face - share * d) / 2)
            slopes.append(lined(X[..., 2:] - X[..., :-2], axis))
        (xi_x, xi_y), (eta_x, eta_y) = slopes
        self.inverse = xp.stack((eta_y, -xi_y, -eta_x, xi_x)) / (xi_x * eta_y - xi_y * eta_x)

    def gradient(self, lines):
        """u_x, v_x, u_y, v_y of the cells (4, I, J), of lines with DEPTH cells more at each end: exact for linear u."""
        xi, eta = (lined(lines[a][U:, :, 4:-2] - lines[a][U:, :, 2:-4], a) for a in (0, 1))
        a, b, c, d = self.inverse
        return namespace(xi).concatenate((a * xi + b * eta, c * xi + d * eta))


# The equations in space -----------------------------------------------------------------------------------------------


class BodyFlow:
    """Residual and Jacobian of a flow on the blocks of this process; see pseudo_time for what uses it.

    blocks : Blocks, of all processes.  grid : fl.MultiblockGrid of the blocks of this one.  stream : the velocity far
    away.  beta : of artificial compressibility.  xp : numpy or cupy.
    A state q is (3, cells): p, u and v of the cells of all blocks of this process, one block after the other.
    """

    n = 3

    def __init__(self, blocks, grid, comm=None, *, viscosity, stream=(1.0, 0.0), beta=1.0, xp=np):
        self.grid, self.comm, self.viscosity, self.stream, self.beta, self.xp = grid, comm, viscosity, stream, beta, xp
        self.exchanging, self.blocks, start = 0.0, [], 0
        for name in grid.names:
            nodes = xp.asarray(blocks.nodes[name], float)
            size = (nodes.shape[1] - 1) * (nodes.shape[2] - 1)
            self.blocks.append(Block(name, nodes, slice(start, start + size)))
            start += size
        self.cells = start
        self.all_cells = self.summed(start)
        for block, lines in zip(self.blocks, self._lines([b.centre for b in self.blocks], 1), strict=True):
            ends = []
            for face, velocity in blocks.ends[block.name].items():
                axis, side = "ij".index(face[0]), -1 if face[1] == "-" else 1
                faces = block.face[axis][..., 0 if side < 0 else -1]
                ends.append(End(axis, side, faces, velocity, stream))
            block.measure(lines, ends, viscosity)

    def summed(self, value):
        """The sum over all processes, of a number or a NumPy array."""
        if self.comm is None:
            return value
        clock = perf_counter()
        total = self.comm.allreduce(value)
        self.exchanging += perf_counter() - clock
        return total

    def parts(self, q):
        """Views (..., I, J) of q (..., cells), block by block."""
        return [q[..., b.cells].reshape(*q.shape[:-1], *b.shape) for b in self.blocks]

    def start(self):
        """The free stream, which stands still at the walls."""
        q = self.xp.zeros((self.n, self.cells))
        for d in (0, 1):
            q[U + d] = self.stream[d]
        for block, part in zip(self.blocks, self.parts(q), strict=True):
            for end in block.ends:
                if end.wall:
                    wall = block.middle[end.axis][..., 0 if end.side < 0 else -1][..., None]
                    distance = ((lined(block.centre, end.axis) - wall) ** 2).sum(axis=0)
                    lined(part, end.axis)[U:] *= 1 - self.xp.exp(-distance / 0.04)
        return q

    def _lines(self, parts, depth):
        """Each part (c, I, J) along both axes: lined, `depth` cells from beyond at each end, copies at boundaries.

        Collective over the processes.
        """
        xp = self.xp
        arrays = {b.name: xp.moveaxis(part, 0, -1)[:, :, None] for b, part in zip(self.blocks, parts, strict=True)}
        synchronize(parts[0])
        clock = perf_counter()
        ghosts = self.grid.exchange(arrays, depth=depth)
        synchronize(parts[0])
        self.exchanging += perf_counter() - clock
        lines = []
        for block, part in zip(self.blocks, parts, strict=True):
            pair = []
            for axis in (0, 1):
                inside = lined(part, axis)
                Q = xp.empty((*inside.shape[:-1], inside.shape[-1] + 2 * depth))
                Q[..., depth:-depth] = inside
                for side, place, own in (
                    ("-", slice(None, depth), slice(0, 1)),
                    ("+", slice(-depth, None), slice(-1, None)),
                ):
                    ghost = ghosts[block.name].get("ij"[axis] + side)
                    if ghost is None:
                        Q[..., place] = inside[..., own]
                    else:
                        Q[..., place] = lined(xp.moveaxis(ghost[:, :, 0], -1, 0), axis)
                pair.append(Q)
            lines.append(pair)
        return lines

    def _gradients(self, lines):
        """Block.gradient of all blocks; gives the lines, of q, the cell that a boundary has outside."""
        for block, pair in zip(self.blocks, lines, strict=True):
            for end in block.ends:
                Q = pair[end.axis]
                near, far, third = end.cells_of(Q[..., DEPTH:-DEPTH])
                Q[..., DEPTH - 1 if end.side < 0 else -DEPTH] = beyond(end.state(near, far, third), near, far)
        return [b.gradient(pair) for b, pair in zip(self.blocks, lines, strict=True)]

    def vorticity(self, q):
        """The vorticity of the cells, block by block; collective over the processes."""
        return [g[1] - g[2] for g in self._gradients(self._lines(self.parts(q), DEPTH))]

    def residual(self, q, order=2, at=None):
        """R(q) (3, cells): dq/dtau + R = 0 (of the pressure: (1/beta) dp/dtau). Cost: some hundred passes over q.

        order : 1 is what the Jacobian is of.  at : the state of the upwind coefficients, q itself if left out.
        """
        R = self.xp.empty_like(q)
        lines = self._lines(self.parts(q), DEPTH)
        fixed = lines if at is None else self._lines(self.parts(at), DEPTH)
        gradients = self._lines(self._gradients(lines), 1) if order == 2 else [None] * len(self.blocks)
        for block, part, pair, slopes, base in zip(self.blocks, self.parts(R), lines, gradients, fixed, strict=True):
            for axis in (0, 1):
                flux = self._fluxes(block, axis, pair[axis], slopes and slopes[axis], base[axis])
                for end in block.ends:
                    if end.axis == axis:
                        cells = end.cells_of(pair[axis][..., DEPTH:-DEPTH])
                        flux[..., 0 if end.side < 0 else -1] = end.flux(*cells[: 3 if order == 2 else 1])
                net = flux[..., 1:] - flux[..., :-1]
                if axis == 0:
                    part[...] = lined(net, 0)
                else:
                    part += net
            part /= block.volume
        return R

    def _upwinding(self, left, right, normal):
        """|A| of flux-difference splitting at the mean state: (U / c, |U|, c, and weights of the momentum).

        U is the normal velocity. The matrix M of artificial compressibility has the eigenvalues U, U + c and U - c,
        c^2 = U^2 + beta, so |M| = |U| + (U/c) (M - U) + ((c - |U|)/c^2) (M - U)^2. Of a jump (dp, du), dU = du . n, it
        gives (dp + U dU) / c to the mass flux and |U| du + mean (a dp + b dU) + n (d dp + e dU) to the momentum.
        """
        mean = (left[U:] + right[U:]) / 2
        through = mean[0] * normal[0] + mean[1] * normal[1]
        c = self.xp.sqrt(through * through + self.beta)
        a = (c - abs(through)) / (c * c)
        ratio = through / c
        return mean, ratio, abs(through), c, (a, ratio + a * through, ratio - a * through, a * self.beta)

    def _fluxes(self, block, axis, Q, slopes, base):
        """(3, ., faces) through the faces of one axis; slopes : lines of gradients, None for those of first order."""
        near_left, near_right, normal = Q[..., 2:-3], Q[..., 3:-2], block.normal[axis]
        left, right = (near_left, near_right) if slopes is None else self._states(block, axis, Q)
        mean, ratio, speed, c, (a, b, d, e) = self._upwinding(base[..., 2:-3], base[..., 3:-2], normal)
        jump = right - left
        on_left, on_right = (q[U] * normal[0] + q[U + 1] * normal[1] for q in (left, right))
        across = on_right - on_left
        flux = self.xp.empty_like(left)
        flux[P] = (on_left + on_right - jump[P] / c - ratio * across) / 2
        flux[U:] = left[U:] * on_left + right[U:] * on_right - speed * jump[U:] - mean * (a * jump[P] + b * across)
        flux[U:] += normal * (left[P] + right[P] - d * jump[P] - e * across)
        flux[U:] /= 2
        flux *= block.area[axis]
        flux[U:] -= block.conducts[axis] * (near_right - near_left)[U:]
        if slopes is not None:
            both = slopes[..., 1:] + slopes[..., :-1]
            flux[U:] -= block.skew[axis][0] * both[:2] + block.skew[axis][1] * both[2:]
        return flux

    def _states(self, block, axis, Q):
        """On both sides of the faces, through five cells along the grid line; through three near boundaries."""
        a, b, c, d, e, f = (Q[..., s : Q.shape[-1] - 5 + s] for s in range(6))
        left, right = (2 * a - 13 * b + 47 * c + 27 * d - 3 * e) / 60, (2 * f - 13 * e + 47 * d + 27 * c - 3 * b) / 60
        for end in block.ends:
            if end.axis == axis:
                near = (..., slice(0, 3) if end.side < 0 else slice(-3, None))
                left[near], right[near] = ((5 * c + 2 * d - b) / 6)[near], ((5 * d + 2 * c - e) / 6)[near]
        return left, right

    def force(self, q):
        """The force of the flow on the walls, (2,), a NumPy array; collective over the processes."""
        total = self.xp.zeros(2)
        for block, part in zip(self.blocks, self.parts(q), strict=True):
            for end in block.ends:
                if end.wall:
                    total += end.side * end.flux(*end.cells_of(lined(part, end.axis)))[U:].sum(axis=1)
        return self.summed(to_host(total))

    # What PseudoTime asks for.

    def new_blocks(self):
        """Memory for the blocks of the Jacobian, {name: (7, I, J, 1, 3, 3)}."""
        return {b.name: self.xp.empty((7, *b.shape, 1, self.n, self.n)) for b in self.blocks}

    def jacobian(self, q, blocks):
        """Write dR/dq of the first-order residual, at fixed upwind coefficients, into blocks."""
        xp = self.xp
        for block, pair in zip(self.blocks, self._lines(self.parts(q), 1), strict=True):
            entries = xp.moveaxis(blocks[block.name][:, :, :, 0], (3, 4), (1, 2))  # (7, 3, 3, I, J)
            entries[...] = 0
            for axis in (0, 1):
                B, volume = lined(entries, axis), lined(block.volume, axis)
                ends = [end for end in block.ends if end.axis == axis]
                own = {end.side: dict(self._end_derivatives(end, pair[axis])) for end in ends}
                for (r, c), left, right in self._face_derivatives(block, axis, pair[axis]):
                    for end in ends:
                        value = own[end.side].get((r, c), 0.0)
                        if end.side < 0:
                            left[..., 0], right[..., 0] = 0, value
                        else:
                            left[..., -1], right[..., -1] = value, 0
                    B[DELTA, r, c] += (left[..., 1:] - right[..., :-1]) / volume
                    B[2 - axis, r, c] -= left[..., :-1] / volume
                    B[4 + axis, r, c] += right[..., 1:] / volume

    def _face_derivatives(self, block, axis, Q):
        """((row, column), dF/dleft, dF/dright) of the fluxes through all faces, as if there were no boundary."""
        left, right, normal, area = Q[..., :-1], Q[..., 1:], block.normal[axis], block.area[axis]
        mean, ratio, speed, c, (a, b, d, e) = self._upwinding(left, right, normal)
        half = area / 2
        on_left, on_right = (q[U] * normal[0] + q[U + 1] * normal[1] for q in (left, right))
        yield (P, P), half / c, -half / c
        for k in (0, 1):
            through = half * normal[k]
            yield (P, U + k), through * (1 + ratio), through * (1 - ratio)
            by_p = half * (mean[k] * a + normal[k] * d)
            yield (U + k, P), through + by_p, through - by_p
            by_u = mean[k] * b + normal[k] * e
            for m in (0, 1):
                here = half * normal[m] * (left[U + k] + by_u)
                there = half * normal[m] * (right[U + k] - by_u)
                if k == m:
                    here += half * (on_left + speed) + block.conducts[axis]
                    there += half * (on_right - speed) - block.conducts[axis]
                yield (U + k, U + m), here, there

    def _end_derivatives(self, end, Q):
        """((row, column), derivative by the adjacent cells) of the first-order flux through a boundary."""
        b, keeps, face = end.state(Q[..., 1 if end.side < 0 else -2]), end.keeps, end.face
        for k in (0, 1):
            yield (P, U + k), face[k] * keeps[U + k]
            yield (U + k, P), face[k] * keeps[P]
            for m in (0, 1):
                value = b[U + k] * face[m] * keeps[U + m]
                if k == m:
                    value += (b[U] * face[0] + b[U + 1] * face[1]) * keeps[U + k]
                    if end.wall:
                        value += end.side * end.conducts
                yield (U + k, U + m), value

    def rates(self, q):
        """The sum over both axes of the largest wave speed over the width (cells,): 1 / the time step of CFL 1."""
        total = self.xp.zeros(self.cells)
        for block, part, out in zip(self.blocks, self.parts(q), self.parts(total), strict=True):
            for axis in (0, 1):
                face = lined(block.face[axis][..., 1:] + block.face[axis][..., :-1], axis) / 2
                through = part[U] * face[0] + part[U + 1] * face[1]
                out += abs(through) + self.xp.sqrt(through**2 + self.beta * (face**2).sum(axis=0))
            out /= block.volume
        return total

    def diagonals(self, blocks):
        return [(b.cells, blocks[b.name][DELTA].reshape(-1, self.n, self.n)) for b in self.blocks]

    def matrix(self, blocks):
        return fl.MultiblockMatrix(self.grid, blocks)

    def scale_rows(self, q, blocks):
        return []  # all rows are of one size

    def limited(self, q, new):
        return new, 0

    def root_mean_squares(self, R, q):
        squares = self.summed(to_host((R * R).sum(axis=1)))
        return tuple(math.sqrt(v / self.all_cells) for v in squares)


def flow_on(blocks, comm=None, **parameters):
    """The BodyFlow on all blocks, or with comm on the share of this process."""
    names = list(blocks.nodes)
    if comm is not None:
        if comm.size > len(names):
            raise ParameterError(f"{comm.size} processes for {len(names)} blocks; each needs one, see --blocks.")
        names = list(np.array_split(names, comm.size)[comm.rank])
    shapes = {str(n): (blocks.nodes[n].shape[1] - 1, blocks.nodes[n].shape[2] - 1, 1) for n in names}
    return BodyFlow(blocks, fl.MultiblockGrid(shapes, blocks.interfaces, comm), comm, **parameters)


# What is measured -----------------------------------------------------------------------------------------------------


def gathered(flow, q):
    """{name: (3, I, J)} of all blocks on the host, on the first process; None on the others."""
    own = {b.name: to_host(part) for b, part in zip(flow.blocks, flow.parts(q), strict=True)}
    if flow.comm is None:
        return own
    every = flow.comm.gather(own)
    return None if every is None else {name: part for own in every for name, part in own.items()}


def bubble(blocks, state):
    """Length of the recirculation behind a cylinder, in diameters; 0 if there is none. On an O-grid from angle 0."""
    names = list(blocks.nodes)
    sides = []
    for name, (first, second) in ((names[0], (0, 1)), (names[-1], (-1, -2))):
        x = blocks.nodes[name]
        x = (x[0, 1:, 1:] + x[0, :-1, :-1] + x[0, :-1, 1:] + x[0, 1:, :-1]) / 4
        both = np.stack((x, state[name][U]))
        sides.append((9 * both[:, first] - both[:, second]) / 8)  # on the axis, where both are even
    x, u = sum(sides) / 2
    roots = CubicSpline(np.r_[0.5, x], np.r_[0.0, u]).roots(extrapolate=False)
    roots = roots[(roots > 0.51) & (roots < 20)]
    return float(roots[-1] - 0.5) if roots.size else 0.0


@dataclass(frozen=True)
class Cycle:
    """Strouhal number, mean drag and the amplitude of lift over the last periods; `drift` of it between them."""

    periods: int
    strouhal: float
    drag: float
    lift: float
    drift: float


def cycle(times, drag, lift, periods=5):
    """The Cycle of a history; None where the lift crosses its mean too seldom, or its amplitude changes by a half.

    Crossings and extrema are those of cubic splines, which follow BDF2's steps to fourth order.
    """
    times, drag, lift = (np.asarray(a) for a in (times, drag, lift))
    late = times > times[-1] / 3
    if late.sum() < 8:
        return None
    middle = (lift[late].max() + lift[late].min()) / 2
    curve = CubicSpline(times[late], lift[late] - middle)
    rising = curve.roots(extrapolate=False)
    rising = rising[curve(rising, 1) > 0]
    periods = min(periods, len(rising) - 1)
    if periods < 2:
        return None
    begin, end = rising[-1 - periods], rising[-1]
    turns = curve.derivative().roots(extrapolate=False)
    peaks = abs(curve(turns[(turns > begin) & (turns < end)]))
    lift, drift = float(peaks.mean()), float(np.ptp(peaks) / peaks.mean())
    if drift > 0.5:
        return None
    mean = float(CubicSpline(times, drag).integrate(begin, end) / (end - begin))
    return Cycle(periods, periods / (end - begin), mean, lift, drift)


# The command line -----------------------------------------------------------------------------------------------------

SIZES = {  # cells around and away from the body, and the physical time step
    "cylinder": {"coarse": (80, 56, 0.1), "medium": (120, 84, 0.1 / 1.5), "fine": (180, 126, 0.1 / 2.25)},
    "airfoil": {"coarse": (128, 40, 0.02), "medium": (256, 80, 0.01), "fine": (512, 160, 0.005)},
}
UNTIL = {"cylinder": 60.0, "airfoil": 20.0}  # time that a flow is followed for
LEAST = {"cylinder": 1, "airfoil": 3}  # blocks of a grid
ONSET = 47.0  # Reynolds number from which the flow around a cylinder is unsteady


def degrees(text):
    value = float(text)
    if not abs(value) <= 90:
        raise argparse.ArgumentTypeError(f"{text} is not between -90 and 90")
    return value


def parser():
    top = Parser(description=__doc__.split("\n\n")[0])
    cases = top.add_subparsers(dest="case", required=True, metavar="cylinder|airfoil")
    for name, about, re, distance in (
        ("cylinder", "O-grid; steady up to Re 47, above with vortex shedding", 40.0, 50.0),
        ("airfoil", "NACA 0012 in a C-grid; steady, or in time with --dt", 500.0, 50.0),
    ):
        case = cases.add_parser(name, help=about, description=about)
        case.add_argument("--re", type=positive, default=re, help=f"Reynolds number (default {re:g})")
        case.add_argument("--grid", choices=("coarse", "medium", "fine"), default="coarse", help="(default coarse)")
        case.add_argument("--cells", type=at_least(4), nargs=2, metavar=("I", "J"), help="around and away, for --grid")
        case.add_argument(
            "--blocks", type=at_least(1), help=f"that the grid is cut into (default {LEAST[name]}, or one a process)"
        )
        case.add_argument("--distance", type=positive, default=distance, help=f"of the outer boundary ({distance:g})")
        if name == "airfoil":
            case.add_argument("--alpha", type=degrees, default=0.0, help="angle of attack in degrees (default 0)")
        case.add_argument("--dt", type=not_negative, help="physical time step; 0: steady (default by --re and --grid)")
        case.add_argument(
            "--steps", type=at_least(1), help=f"the most pseudo steps (500), or physical ones (to time {UNTIL[name]:g})"
        )
        case.add_argument("--beta", type=positive, help="of artificial compressibility (default 1, in time 10)")
        case.add_argument(
            "--method", choices=("correct", "gmres"), help="for the linear systems (gmres; correct with --mpi)"
        )
        case.add_argument("--corrections", type=at_least(1), default=60, help="the most in a pseudo step (default 60)")
        case.add_argument("--rtol", type=positive, help="of a linear solve (default 0.05, in time 0.2)")
        case.add_argument(
            "--cfl", type=positive, help="of the first pseudo step (default 5, in time that of --cfl-max)"
        )
        case.add_argument("--cfl-max", type=positive, default=1000.0, help="that it may grow to (default 1000)")
        case.add_argument("--tolerance", type=positive, help="fall of the residual (default 1e-6, in time 3e-3)")
        case.add_argument("--every", type=at_least(1), default=20, help="steps between printed lines (default 20)")
        case.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to work (default cpu)")
        case.add_argument("--mpi", action="store_true", help="deal the blocks out to the processes of mpirun")
        case.add_argument("--png", type=Path, metavar="FILE", help="draw vorticity, and wall pressure or history")
    return top


def disturb(flow, q):
    """Push the fluid behind the body aside, for vortices to be shed soon."""
    for block, part in zip(flow.blocks, flow.parts(q), strict=True):
        x, y = block.centre
        part[U + 1] += 0.5 * flow.xp.exp(-((x - 1.5) ** 2) - y**2)


def coefficients(flow, q):
    """The coefficients of drag and lift, along the free stream and across it."""
    (x, y), (a, b) = flow.force(q), flow.stream
    return 2 * (x * a + y * b), 2 * (y * a - x * b)


def run_steady(args, flow, q, march, say):
    """The steady state; with a line for each `every` steps."""
    done: list[Any] = []

    def watch(step):
        done.append(step)
        if len(done) == 1:
            say("  step    CFL        p        u        v  corrections")
        if len(done) == 1 or len(done) % args.every == 0:
            residuals = "".join(f"{r:9.1e}" for r in step.residuals)
            say(f"{len(done):6d} {step.cfl:6.4g}{residuals}  {step.corrections:11d}")

    q, _ = march.steady(q, tolerance=args.tolerance or 1e-6, steps=args.steps or 500, watch=watch)
    return q, done, None


def run_in_time(args, flow, q, march, say, dt):
    """The flow after the last step, with the history (times, drag, lift)."""
    done: list[Any] = []
    history: list[tuple[float, float, float]] = []
    count = args.steps or math.ceil(UNTIL[args.case] / dt)
    say("      time      drag      lift  pseudo steps  corrections")

    def watch(time, q, steps):
        done.extend(steps)
        history.append((time, *coefficients(flow, q)))
        if len(history) == 1 or len(history) % args.every == 0 or len(history) == count:
            corrections = sum(step.corrections for step in steps)
            say(f"{time:10.4g} {history[-1][1]:9.4f} {history[-1][2]:9.4f} {len(steps):13d} {corrections:12d}")

    disturb(flow, q)
    q = march.in_time(q, dt, count, tolerance=args.tolerance or 3e-3, watch=watch)
    return q, done, np.array(history).T


def report(args, blocks, state, drag, lift, history, say):
    """What the flow is compared by, next to the values of others."""
    if history is None and args.case == "cylinder":
        known = " (others: drag 1.50 to 1.55, length 2.2 to 2.35)" if args.re == 40 else ""
        say(f"drag {drag:.5f}, length of the recirculation {bubble(blocks, state):.5f}{known}")
        return
    if history is None:
        say(f"drag {drag:.5f}, lift {lift:.5f}")
        return
    known = " (others: Strouhal 0.164 to 0.166)" if args.case == "cylinder" and args.re == 100 else ""
    result = cycle(*history)
    if result is None:
        say("no periods that repeat themselves; allow more --steps")
    else:
        say(
            f"Strouhal {result.strouhal:.5f}, mean drag {result.drag:.5f}, lift amplitude {result.lift:.5f} "
            f"over the last {result.periods} periods, in which it changes by {result.drift:.1%}{known}"
        )


def draw(figure, axes, args, blocks, state, history):
    """Vorticity with streamlines, and the pressure on the wall or the history of drag and lift."""
    flow = flow_on(blocks, viscosity=1 / args.re, stream=stream_of(args))
    q = np.concatenate([state[b.name].reshape(3, -1) for b in flow.blocks], axis=1)
    window, most = {"cylinder": ((-1.5, 8.0, -2.5, 2.5), 4), "airfoil": ((-0.4, 2.6, -0.8, 0.8), 15)}[args.case]
    for block, values in zip(flow.blocks, flow.vorticity(q), strict=True):
        colours = axes[0].pcolormesh(*block.nodes, values, cmap="RdBu_r", vmin=-most, vmax=most)
    figure.colorbar(colours, ax=axes[0], label="vorticity", shrink=0.7)
    x, y = np.concatenate([b.centre.reshape(2, -1) for b in flow.blocks], axis=1)
    near = (x > window[0] - 1) & (x < window[1] + 1) & (abs(y) < window[3] + 1)
    grid = np.linspace(*window[:2], 160), np.linspace(*window[2:], 90)
    velocity = LinearNDInterpolator(np.c_[x, y][near], q[U:, near].T)(*np.meshgrid(*grid))
    u, v = np.moveaxis(velocity, -1, 0)
    axes[0].streamplot(*grid, u, v, color="0.3", linewidth=0.4, density=1.3, arrowsize=0.5)
    walls = [(end, b, part) for b, part in zip(flow.blocks, flow.parts(q), strict=True) for end in b.ends if end.wall]
    outline = np.concatenate([b.nodes[..., 0] for _, b, _ in walls], axis=1)
    axes[0].fill(*outline, color="0.85", zorder=3)
    axes[0].set(xlim=window[:2], ylim=window[2:], aspect="equal", xlabel="x", ylabel="y")
    axes[0].set_title(f"{args.case}, Re = {args.re:g}, {cells_in(flow.cells, len(flow.blocks))}")
    if history is None:
        x = np.concatenate([b.middle[1][0, :, 0] for _, b, _ in walls])
        pressure = np.concatenate([end.state(*end.cells_of(part))[P] for end, _, part in walls])
        axes[1].plot(x, 2 * pressure, label="pressure coefficient of the wall")
        axes[1].set(xlabel="x")
    else:
        axes[1].plot(history[0], history[1], label="drag coefficient")
        axes[1].plot(history[0], history[2], label="lift coefficient")
        axes[1].set(xlabel="t", ylim=(-1, 2))
    axes[1].legend()
    axes[1].grid(alpha=0.3)
    figure.savefig(args.png, dpi=120)


def cells_in(cells, blocks):
    return f"{cells} cells in {blocks} block{'s' if blocks > 1 else ''}"


def stream_of(args):
    angle = math.radians(getattr(args, "alpha", 0.0))
    return math.cos(angle), math.sin(angle)


def run(args, comm, say):
    begin = perf_counter()
    figure, axes = canvas(args.png)
    *cells, dt = SIZES[args.case][args.grid]
    cells = args.cells or cells
    if args.dt is not None:
        dt = args.dt
    elif args.case == "airfoil" or args.re < ONSET:
        dt = 0.0
    args.blocks = args.blocks or max(LEAST[args.case], 1 if comm is None else comm.size)
    args.beta = args.beta or (10.0 if dt else 1.0)  # with 1, drag jumps in the first small steps on 270 x 189 cells
    blocks = {"cylinder": cylinder, "airfoil": airfoil}[args.case](cells, args.blocks, args.distance)
    xp = np if args.device == "cpu" else require_gpu()
    if xp is not np and comm is not None:
        xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
    flow = flow_on(blocks, comm, viscosity=1 / args.re, stream=stream_of(args), beta=args.beta, xp=xp)
    say(f"{args.case}, Re {args.re:g}: {cells_in(flow.all_cells, args.blocks)}, boundary at {args.distance:g}")
    args.method = args.method or ("gmres" if comm is None else "correct")
    args.cfl = args.cfl or (args.cfl_max if dt else 5.0)
    args.rtol = args.rtol or (0.2 if dt else 0.05)
    march = make_march(flow, args)
    q = flow.start()
    if dt:
        q, done, history = run_in_time(args, flow, q, march, say, dt)
    else:
        q, done, history = run_steady(args, flow, q, march, say)
    drag, lift = coefficients(flow, q)
    state = gathered(flow, q)
    if state is not None:
        report(args, blocks, state, drag, lift, history, say)
    total = {part: sum(step.seconds[part] for step in done) for part in done[0].seconds}
    corrections = sum(step.corrections for step in done)
    say(f"{len(done)} pseudo steps, {corrections} corrections, {perf_counter() - begin:.1f} s in all")
    say("main loop: " + ", ".join(f"{name} {total[part]:.2f} s" for part, name in PARTS.items()))
    if figure is not None and state is not None:
        draw(figure, axes, args, blocks, state, history)
        say(f"drew {args.png}")


PARTS = {"FACT": "BILU FACT", "SOLVE": "BILU SOLV/CORR", "RHS": "RHS", "AFILL": "AFILL", "MPI": "MPI"}


def ended(comm, text, status):
    """Say why, once where all processes met it; where one did, end the others, which wait for it."""
    alone = comm is not None and not met_by_all(comm)
    if comm is None or alone or comm.rank == 0:
        print(f"process {comm.rank}: {text}" if alone else text, file=sys.stderr, flush=True)
    if alone:
        comm.Abort(status)
    return status


def main(arguments=None):
    """Exit status: 0 converged, 1 not, 2 bad input, 130 interrupted."""
    args = parser().parse_args(arguments)
    comm = None

    def say(*words, file=None):
        if comm is None or comm.rank == 0:
            print(*words, file=file, flush=True)

    try:
        if args.mpi:
            try:
                from mpi4py import MPI
            except ImportError as error:
                raise ParameterError("--mpi needs mpi4py, which is not installed.") from error
            comm = MPI.COMM_WORLD
        run(args, comm, say)
    except Diverged as error:
        return ended(comm, f"not converged: {error}", NOT_CONVERGED)
    except FineluError as error:
        return ended(comm, f"error: {error}", BAD_INPUT)
    except MemoryError as error:
        return ended(comm, f"error: the grid does not fit into memory ({error}); take fewer cells.", BAD_INPUT)
    except KeyboardInterrupt:
        say("interrupted", file=sys.stderr)
        return INTERRUPTED
    return CONVERGED


if __name__ == "__main__":
    sys.exit(main())
