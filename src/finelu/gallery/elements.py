"""Finite elements: diffusion and elasticity on irregular triangles, and an elastic block of cubes."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from finelu.device import Array
from finelu.errors import ParameterError
from finelu.gallery.building import positive, sorted_csr


def anisotropic_triangles(
    level: int, ratio: float = 1000.0, unit_diagonal: bool = True, rcm: bool = True
) -> sp.csr_matrix:
    """The ANI family: -div(diag(ratio, 1) grad u), linear elements on irregular triangles, unit square, u = 0 around.

    level : number of the matrix; level 1 is the coarse mesh and each further one halves every edge. The rows are
        36, 171, 741 (ANI3), 3081, 12561 (ANI5), 50721, 203841 (ANI7): 36 + 135 (m - 1) + 50 (m - 1)(m - 2) with
        m = 2^(level - 1).
    unit_diagonal : scale symmetrically so that the diagonal is 1, as fixed-point factorizations want.
    rcm : reverse Cuthill-McKee order, as in the paper, in which NumPy's argsort decides between nodes of equal degree;
        otherwise coarse nodes come first.
    Symmetric positive definite, not an M-matrix. Source: Chow, Anzt, Dongarra, ParILUT, SISC 40(4), 2018, section 4.1.
    The paper does not print its mesh. Ours has as many inner nodes, edges and triangles (36, 135, 100), hence exactly
    its rows, but other coordinates: the entries differ, and their number (no zeros are stored) does by about 1%.
    """
    points, triangles = irregular_triangles(level)
    edge, area = _edges(points, triangles)
    product_xx, product_yy = (edge[:, :, None, i] * edge[:, None, :, i] for i in (0, 1))
    stiffness = (product_xx + ratio * product_yy) / (4 * area[:, None, None])
    rows, columns = np.repeat(triangles, 3, axis=1), np.tile(triangles, 3)
    A = sp.coo_matrix((stiffness.ravel(), (rows.ravel(), columns.ravel())), shape=(len(points),) * 2).tocsr()
    inner = np.flatnonzero(((points > 0) & (points < 1)).all(axis=1))
    A = A[inner][:, inner]
    if rcm:
        order = reverse_cuthill_mckee(A, symmetric_mode=True)
        A = A[order][:, order]
    if unit_diagonal:
        d = 1 / np.sqrt(A.diagonal())
        A.data *= np.repeat(d, np.diff(A.indptr)) * d[A.indices]  # one product d_i d_j: symmetric to the last bit
        A.setdiag(1.0)
    return sorted_csr(A)


def irregular_triangles(level: int) -> tuple[Array, Array]:
    """Points (P, 2) of the unit square and corners (T, 3) int64 of its 100 * 4^(level - 1) triangles, counterclockwise.

    The mesh of `anisotropic_triangles` and `elastic_triangles`. The points of level 1 come first, then those of level
    2.
    """
    positive(level=level)
    points, triangles = _coarse_mesh()
    for _ in range(level - 1):
        points, triangles = _refine(points, triangles)
    return points, triangles


def _edges(points: Array, triangles: Array) -> tuple[Array, Array]:
    """(T, 3, 2) : the edge opposite each corner; (T,) : the areas."""
    corners = points[triangles]
    edge = np.roll(corners, -1, axis=1) - np.roll(corners, 1, axis=1)
    return edge, 0.5 * abs(edge[:, 0, 0] * edge[:, 1, 1] - edge[:, 0, 1] * edge[:, 1, 0])


def _coarse_mesh() -> tuple[Array, Array]:
    """66 points of the unit square, 30 of them on its boundary, and their 100 Delaunay triangles; always the same."""
    jitter = np.random.default_rng(1).uniform(-0.3, 0.3, (6, 6, 2))
    inner = (np.stack(np.meshgrid(np.arange(1, 7), np.arange(1, 7)), axis=-1) + jitter) / 7
    x, y = np.arange(8) / 8, np.arange(7) / 7
    sides = [(x, 0 * x), (0 * y + 1, y), (1 - x, 0 * x + 1), (0 * y, 1 - y)]
    points = np.concatenate([inner.reshape(-1, 2)] + [np.stack(side, axis=-1) for side in sides])
    from scipy.spatial import Delaunay  # only here: its import takes 70 ms

    return points, Delaunay(points).simplices.astype(np.int64)


def _refine(points: Array, triangles: Array) -> tuple[Array, Array]:
    """Every triangle cut into four at the middles of its edges; the old points keep their numbers."""
    n = len(points)
    ends = np.sort(triangles[:, [[1, 2], [2, 0], [0, 1]]], axis=2)  # (T, 3, 2): the edge opposite each corner
    edges, middle = np.unique(ends[:, :, 0] * n + ends[:, :, 1], return_inverse=True)
    points = np.concatenate([points, 0.5 * (points[edges // n] + points[edges % n])])
    a, b, c = triangles.T
    p, q, r = (n + middle.reshape(-1, 3)).T
    return points, np.concatenate([np.stack(t, axis=1) for t in ((a, r, q), (b, p, r), (c, q, p), (p, q, r))])


def elastic_triangles(level: int, poisson_ratio: float = 0.3, by_field: bool = False) -> sp.csr_matrix:
    """A linear elastic square in plane strain, linear elements on irregular triangles, held at x = 0, free elsewhere.

    The mesh of `anisotropic_triangles` with the nodes of its boundary, except those at x = 0; Young's modulus is 1. Two
    rows a node, u_x u_y in turn: 58, 216, 832, 3264, 12,928, 51,456 or 205,312 nodes for level 1 to 7.
    poisson_ratio, by_field : as in `elasticity`. Symmetric positive definite. Source: Zienkiewicz and Taylor 2000,
    chapter 4.
    """
    first, shear = _lame(poisson_ratio)
    points, triangles = irregular_triangles(level)
    edge, area = _edges(points, triangles)
    slope = np.stack([-edge[:, :, 1], edge[:, :, 0]], axis=2) / (2 * area[:, None, None])  # (T, 3, 2): of the hats
    stiffness = first * np.einsum("tai,tbj->tabij", slope, slope) + shear * np.einsum("taj,tbi->tabij", slope, slope)
    stiffness += shear * np.einsum("tak,tbk,ij->tabij", slope, slope, np.eye(2))
    stiffness *= area[:, None, None, None, None]
    free = points[:, 0] > 0
    number = np.cumsum(free) - 1
    a, b = np.broadcast_arrays(triangles[:, :, None], triangles[:, None, :])
    kept = free[a] & free[b]
    a, b, blocks = number[a[kept]], number[b[kept]], stiffness[kept]
    n, unknown = int(free.sum()), np.arange(2)
    rows, columns = 2 * a[:, None, None] + unknown[:, None], 2 * b[:, None, None] + unknown
    rows, columns, values = (v.ravel() for v in np.broadcast_arrays(rows, columns, blocks))
    A = sp.coo_matrix((values, (rows, columns)), shape=(2 * n, 2 * n)).tocsr()
    return _fields_in_turn(A, 2) if by_field else sorted_csr(A)


def elasticity(
    nx: int, ny: int, nz: int, poisson_ratio: float = 0.3, core: float = 1.0, by_field: bool = False
) -> sp.csr_matrix:
    """A linear elastic block of nx x ny x nz trilinear cubes, held at x = 0, free elsewhere; Young's modulus is 1.

    Three rows a node, u_x u_y u_z in turn, 3 nx (ny + 1)(nz + 1) in all and up to 81 entries a row; the zeros inside
    3 x 3 blocks are stored, as BSR needs. Symmetric positive definite. Source: Zienkiewicz and Taylor 2000, chapter 8.
    poisson_ratio : in (-1, 0.5); near 0.5 the material is nearly incompressible and the matrix ill-conditioned.
    core : Young's modulus of the middle third of the layers in z, as in a sandwich of two materials.
    by_field : u_x of all nodes first, then u_y, then u_z.
    """
    positive(nx=nx, ny=ny, nz=nz)
    if not 0 < core < math.inf:
        raise ParameterError(f"core = {core} is not a positive number.")
    element = _elastic_cube(poisson_ratio)
    layer = np.arange(nz)
    modulus = np.where((3 * layer >= nz) & (3 * layer < 2 * nz), core, 1.0)[:, None, None, None, None]
    shape = (nz + 1, ny + 1, nx)  # nodes; those at x = 0 are held and left out
    blocks = np.zeros((*shape, 27, 3, 3))
    present: Array = np.zeros((*shape, 27), bool)
    for (a, corner_a), (b, corner_b) in product(enumerate(product((0, 1), repeat=3)), repeat=2):  # corners as z, y, x
        d = [q - p for p, q in zip(corner_a, corner_b, strict=True)]
        z, y = (slice(1, None) if p else slice(None, -1) for p in corner_a[:2])  # nodes that are corner a of some cube
        x = (slice(1, None) if d[2] < 0 else slice(None)) if corner_a[2] else slice(None, -1)
        slot = 9 * d[0] + 3 * d[1] + d[2] + 13
        blocks[z, y, x, slot] += modulus * element[a, :, b, :]
        present[z, y, x, slot] = True
    n = math.prod(shape)
    steps = [nx * ((ny + 1) * dz + dy) + dx for dz, dy, dx in product((-1, 0, 1), repeat=3)]
    columns = np.arange(n)[:, None] + np.array(steps)
    present = present.reshape(n, 27)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    data = blocks.reshape(n, 27, 3, 3)[present]
    A = sorted_csr(sp.bsr_matrix((data, columns[present], indptr), shape=(3 * n, 3 * n)))
    return _fields_in_turn(A, 3) if by_field else A


def _fields_in_turn(A: sp.csr_matrix, unknowns: int) -> sp.csr_matrix:
    """A with the first unknown of all nodes first, then the second, ..., from an order by nodes."""
    order = np.arange(A.shape[0]).reshape(-1, unknowns).T.ravel()
    return sorted_csr(A[order][:, order])


def _lame(poisson_ratio: float) -> tuple[float, float]:
    """Lame's constants for Young's modulus 1."""
    if not -1 < poisson_ratio < 0.5:
        raise ParameterError(f"poisson_ratio = {poisson_ratio} is outside (-1, 0.5).")
    return poisson_ratio / ((1 + poisson_ratio) * (1 - 2 * poisson_ratio)), 0.5 / (1 + poisson_ratio)


def _elastic_cube(poisson_ratio: float) -> Array:
    """Stiffness (8, 3, 8, 3) of the unit cube, by 2 x 2 x 2 Gauss points; corners count z slowest, x fastest."""
    first, shear = _lame(poisson_ratio)
    corners = np.array(list(product((0, 1), repeat=3)))[:, ::-1]
    stiffness = np.zeros((8, 3, 8, 3))
    for point in product((0.5 - 0.5 / math.sqrt(3), 0.5 + 0.5 / math.sqrt(3)), repeat=3):
        hat = np.where(corners == 1, point, 1 - np.array(point))
        slope = 2.0 * corners - 1
        g = np.stack([slope[:, i] * np.delete(hat, i, axis=1).prod(axis=1) for i in range(3)], axis=1)  # (8, 3)
        stiffness += first * np.einsum("ai,bj->aibj", g, g) + shear * np.einsum("aj,bi->aibj", g, g)
        stiffness += shear * np.einsum("ak,bk,ij->aibj", g, g, np.eye(3))
    return stiffness / 8
