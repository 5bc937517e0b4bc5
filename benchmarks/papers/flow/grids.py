"""Body-fitted grids of several blocks: a cylinder's O-grid, an airfoil's C-grid, six blocks around a sphere.

Nodes are (d, I + 1, J + 1) in two dimensions, (d, I + 1, J + 1, K + 1) in three, right-handed. Faces that coincide in
space meet: the interfaces are found from the nodes.

Sources: A. Jameson 1974 (sheared parabolic coordinates, the C-grid); C. Ronchi, R. Iacono, P. S. Paolucci 1996 (the
equiangular cubed sphere).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq
from scipy.spatial import cKDTree

from finelu import Interface
from finelu.device import namespace
from finelu.errors import ParameterError
from finelu.matrix.interfaces import tangents

DEPTH = 3  # layers of cells that a block needs from beyond an interface


# Geometry of cells ----------------------------------------------------------------------------------------------------


def along(X, axis, part):
    """X[part] along one of its last axes, -1 the last."""
    return X[(..., part, *(slice(None),) * (-1 - axis))]


def steps(X, axis):
    return along(X, axis, slice(1, None)) - along(X, axis, slice(None, -1))


def means(X, axes):
    """The means of the corners along each of the axes."""
    for axis in axes:
        X = (along(X, axis, slice(1, None)) + along(X, axis, slice(None, -1))) / 2
    return X


def others(d, axis):
    """The axes from -d to -1 without one of them, in cyclic order."""
    return [(axis + d + a) % d - d for a in range(1, d)]


def normal(axis, *edges):
    """The vector (d, ...) perpendicular to d - 1 edges, which follow `axis` cyclically in a right-handed system."""
    xp, first = namespace(edges[0]), edges[0]
    if len(edges) == 1:
        return xp.stack((first[1], -first[0]) if axis == -2 else (-first[1], first[0]))
    a, b = edges
    return xp.stack([a[k - 2] * b[k - 1] - a[k - 1] * b[k - 2] for k in range(3)])


def face_vectors(X, axis):
    """Area times unit normal of the faces between cells along an axis, pointing along it: (d, ...)."""
    free = others(len(X), axis)
    if len(X) == 2:
        return normal(axis, steps(X, free[0]))
    low, high = (along(X, free[1], part) for part in (slice(None, -1), slice(1, None)))
    (a, b), (c, e) = ([along(Y, free[0], part) for part in (slice(None, -1), slice(1, None))] for Y in (low, high))
    return normal(axis, e - a, c - b) / 2


def volumes(X):
    """The volumes of the cells between nodes, by Gauss's theorem; below 0 if the axes are left-handed."""
    d = len(X)
    centre, total = means(X, range(-d, 0)), 0.0
    for axis in range(-d, 0):
        middle, face = means(X, others(d, axis)), face_vectors(X, axis)
        for part, sign in ((slice(1, None), 1), (slice(None, -1), -1)):
            total = total + sign * ((along(middle, axis, part) - centre) * along(face, axis, part)).sum(axis=0)
    return total / d


# Blocks ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    """Blocks of a grid around a body.

    nodes : {name: (d, I + 1, J + 1[, K + 1])}.
    ends : {name: {face: the unknowns at a wall without the pressure, or None far away}}, for the faces that are not
        interfaces: numbers, or (unknowns, faces...).
    interfaces : of the faces that coincide.
    """

    nodes: dict[str, Any]
    ends: dict[str, dict[str, Any]]

    def __post_init__(self):
        for name, nodes in self.nodes.items():
            volume = volumes(nodes)
            if not volume.min() > 0:
                cell = tuple(int(i) for i in np.unravel_index(volume.argmin(), volume.shape))
                raise ParameterError(f"block {name}: cell {cell} has the volume {volume[cell]:.3g}, not above 0.")
        object.__setattr__(self, "interfaces", find_interfaces(self.nodes, self.ends))

    def distances(self, x):
        """From points x (d, ...) to the middle of the nearest face of a wall, NumPy arrays; inf where there is none.

        Walls are polyhedra here: the distance from the curved wall would be wrong by more than a cell next to it.
        """
        walls = [np.empty((len(x), 0))]
        for name, ends in self.ends.items():
            for face, value in ends.items():
                if value is not None:
                    axis = "ijk".index(face[0]) - len(x)
                    X = along(self.nodes[name], axis, 0 if face[1] == "-" else -1)
                    walls.append(means(X, range(1 - len(x), 0)).reshape(len(x), -1))
        return cKDTree(np.concatenate(walls, axis=1).T).query(x.reshape(len(x), -1).T)[0].reshape(x.shape[1:])


def find_interfaces(nodes, ends):
    """The Interfaces of blocks: pairs of faces whose nodes coincide, those in `ends` left out.

    Raises ParameterError for a face that meets no other. Cost: the square of the number of faces.
    """
    faces = {}
    for name, X in nodes.items():
        for axis in range(-X.ndim + 1, 0):
            for side, place in (("-", 0), ("+", -1)):
                face = "ijk"[axis + X.ndim - 1] + side
                if face not in ends[name]:
                    faces[name, face] = along(X, axis, place)
    found, open_faces = [], dict.fromkeys(faces)
    centres = {key: X.reshape(len(X), -1).mean(axis=1) for key, X in faces.items()}
    for one, other in combinations(faces, 2):
        if np.allclose(centres[one], centres[other], atol=1e-9):
            axes = parallels(faces[one], faces[other], tangents(other[1]))
            if axes:
                found.append(Interface(*one, *other, axes))
                open_faces.pop(one), open_faces.pop(other)
    if open_faces:
        name, face = next(iter(open_faces))
        raise ParameterError(f"face {face} of block {name} meets no other face, and no boundary is given for it.")
    return found


def parallels(one, other, names):
    """The axes of `other`, named by `names`, that run along those of `one`, as in Interface; None if nodes differ."""
    flat = one.ndim == 2  # in two dimensions k is the second axis
    for swapped, *flips in product((False, True), repeat=one.ndim):
        turned = other if flat or not swapped else other.swapaxes(-1, -2)
        turned = turned[(..., *(slice(None, None, -1 if flip else None) for flip in flips))]
        if turned.shape == one.shape and np.allclose(turned, one, rtol=0, atol=1e-9):
            order = names[::-1] if swapped and not flat else names
            return tuple(("-" if flip else "") + name for flip, name in zip((*flips, False), order, strict=False))
    return None


def pieces(cells, blocks):
    """Where `blocks` nearly equal pieces of a line of cells begin and end."""
    if cells < DEPTH * blocks:
        raise ParameterError(f"{blocks} blocks of {cells} cells in a row; each needs at least {DEPTH}.")
    return [slice(cells * b // blocks, cells * (b + 1) // blocks + 1) for b in range(blocks)]


def outward(cells, distance):
    """Radii from 1/2 to `distance`: ln r grows by 0.5 to 1.5 times its mean."""
    s = np.linspace(0, 1, cells + 1)
    return 0.5 * np.exp(math.log(2 * distance) * (s + s * s) / 2)


def far_enough(distance, unit):
    if not distance >= 2:
        raise ParameterError(f"distance={distance:g}; the outer boundary is 2 or more {unit} away.")


def ring(nodes, blocks, inner=(0.0, 0.0), outer=None):
    """An O-grid (2, I + 1, J + 1), cut into blocks around; the last nodes along i are the first ones."""
    cut = {f"o{b + 1}": nodes[:, part] for b, part in enumerate(pieces(nodes.shape[1] - 1, blocks))}
    return Blocks(cut, {name: {"j-": inner, "j+": outer} for name in cut})


def cylinder(cells, blocks=4, distance=50.0):
    """An O-grid around a cylinder of diameter 1, its outer boundary `distance` away from the axis.

    Around, cells are 0.4 of their mean wide in the wake and 1.6 in front.
    """
    far_enough(distance, "diameters")
    t, r = np.linspace(0, 1, cells[0] + 1), outward(cells[1], distance)
    angle = -2 * math.pi * t + 0.6 * np.sin(2 * math.pi * t)
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
    far_enough(distance, "chords")
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
    ends: dict[str, dict[str, Any]] = {name: {"j-": (0.0, 0.0), "j+": None} for name in names}
    ends[names[0]], ends[names[-1]] = {"i-": None, "j+": None}, {"i+": None, "j+": None}
    return Blocks({name: nodes[:, r] for name, r in zip(names, ranges, strict=True)}, ends)


HOT_WALL = (0.0, 0.0, 0.0, 1.0, 0.0)  # at rest, of temperature 1, without turbulence


def sphere(cells, shells=1, distance=20.0, inner=HOT_WALL, outer=None):
    """Six blocks around a sphere of diameter 1, as from a cube blown up to it, cut into `shells` along the radius.

    cells : (m, L), m along each edge of the cube and L from the sphere to the outer boundary, `distance` from its
    centre. i and j run along the sphere, k away from it. Angles are equal along each edge; no point has an axis.
    Blocks of a shell follow each other, the innermost first.
    """
    far_enough(distance, "diameters")
    r, tangent = outward(cells[1], distance), np.tan(np.linspace(-math.pi / 4, math.pi / 4, cells[0] + 1))
    nodes, ends = {}, {}
    for shell, part in enumerate(pieces(cells[1], shells)):
        for axis, sign in product(range(3), (1, -1)):
            first, second = ((axis + 1) % 3, (axis + 2) % 3)[::sign]
            direction = np.empty((3, cells[0] + 1, cells[0] + 1))
            direction[axis], direction[first], direction[second] = sign, tangent[:, None], tangent
            direction /= np.sqrt((direction**2).sum(axis=0))
            name = f"{'+-'[sign < 0]}{'xyz'[axis]} {shell + 1}"
            nodes[name] = direction[..., None] * r[part]
            ends[name] = ({"k-": inner} if shell == 0 else {}) | ({"k+": outer} if shell == shells - 1 else {})
    return Blocks(nodes, ends)
