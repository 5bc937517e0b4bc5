"""Test problems, each with its source, for the documentation, the tests, the benchmarks and the command line.

Every function returns a sorted scipy.sparse.csr_matrix without duplicates, float64 and int32 unless it says otherwise,
and takes O(nnz) time and memory. A `..._like` problem has the size and the kind of a published matrix, not its values;
its docstring says what agrees. On grids, x runs fastest: node (i, j, k) is row i + nx * (j + ny * k).

`problem("poisson7:100")` builds a matrix from a text, `small()` gives a list of small named ones for tests.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from finelu.device import Array, Dtype, Sparse
from finelu.errors import ParameterError, counted, meant
from finelu.matrix import DTYPES


@dataclass(frozen=True, eq=False)
class Problem:
    """A matrix A and its name, the text that `problem` takes; `str()` gives the name, as pytest wants for its ids."""

    name: str
    A: sp.csr_matrix

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        size = f"{counted(self.A.shape[0], 'row')}, {counted(self.A.nnz, 'entry', 'entries')}"
        return f"Problem({self.name!r}, {size}, {self.A.dtype})"


# Grids ---------------------------------------------------------------------------------------------------------------


def poisson5(nx: int, ny: int | None = None) -> sp.csr_matrix:
    """-Laplace(u) by 5 points on an nx x ny grid (ny = nx if left out), u = 0 on the boundary, scaled by h^2: 4 and -1.

    Symmetric positive definite. Source: Saad, Iterative Methods for Sparse Linear Systems, 2003, section 2.2.
    """
    return _stencil(nx, nx if ny is None else ny, 1, {(0, 0, 0): 4.0} | _neighbours(2, -1.0))


def poisson7(nx: int, ny: int | None = None, nz: int | None = None) -> sp.csr_matrix:
    """-Laplace(u) by 7 points on an nx x ny x nz grid (each nx if left out), u = 0 around, scaled by h^2: 6 and -1.

    Symmetric positive definite. Source: Saad, Iterative Methods for Sparse Linear Systems, 2003, section 2.2.
    """
    shape = nx, nx if ny is None else ny, nx if nz is None else nz
    return _stencil(*shape, {(0, 0, 0): 6.0} | _neighbours(3, -1.0))


def poisson27(nx: int, ny: int | None = None, nz: int | None = None) -> sp.csr_matrix:
    """The 27-point operator 26, -1 on an nx x ny x nz grid (each nx if left out), zero outside.

    Symmetric positive definite. Source: the HPCG benchmark, Dongarra, Heroux and Luszczek 2016, section 2.
    """
    shape = nx, nx if ny is None else ny, nx if nz is None else nz
    return _stencil(*shape, {d: -1.0 if any(d) else 26.0 for d in product((-1, 0, 1), repeat=3)})


def convection_diffusion(
    nx: int,
    ny: int | None = None,
    nz: int | None = None,
    peclet: float = 100.0,
    wind: tuple[float, float, float] = (1.0, 1.0, 1.0),
    scheme: str = "upwind",
) -> sp.csr_matrix:
    """-Laplace(u) + peclet * wind . grad(u) by 7 points, u = 0 on the boundary, spacing h = 1 / (nx + 1), times h^2.

    peclet : ratio of convection to diffusion over the unit length; peclet * h is the cell's.
    wind : direction, scaled to length 1.
    scheme : "upwind" (first order, always an M-matrix) or "central" (second order; off-diagonal entries change sign
        and the diagonal is no longer dominant once peclet * h > 2).
    Unsymmetric for peclet != 0. Source: Saad 2003, section 2.2.4; Elman, Silvester and Wathen 2014, chapter 6.
    """
    shape = nx, nx if ny is None else ny, nx if nz is None else nz
    _positive(nx=nx)
    direction = np.asarray(wind, float)
    if direction.shape != (3,) or not 0 < np.linalg.norm(direction) < np.inf:
        raise ParameterError(f"wind = {tuple(np.ravel(direction))} is not a direction; give three numbers, not all 0.")
    cell = peclet / (nx + 1) * direction / np.linalg.norm(direction)
    return _convection(shape, (1.0, 1.0, 1.0), cell, 0.0, scheme)


def atmosmodd_like(nx: int = 148, ny: int = 148, nz: int = 58) -> sp.csr_matrix:
    """Like atmosmodd (Bourchtein, SuiteSparse): 1,270,432 rows and 8,814,880 entries at the default size.

    A 7-point grid of 148 x 148 x 58 has exactly these counts. The values are our own: upwind convection and diffusion
    with a small reaction term, a flat domain (vertical coupling 10 times the horizontal one) and a wind that turns
    round the vertical axis, with cell Peclet numbers up to 2. Unsymmetric values, symmetric pattern, an M-matrix.
    """
    _positive(nx=nx, ny=ny, nz=nz)
    x = np.linspace(-1, 1, nx)[None, None, :]
    y = np.linspace(-1, 1, ny)[None, :, None]
    z = np.linspace(0, 1, nz)[:, None, None]
    return _convection((nx, ny, nz), (1.0, 1.0, 10.0), (2 * y, -2 * x, 0.2 * z), 0.01, "upwind")


def apache2_like(nx: int = 8, ny: int = 297, nz: int = 301) -> sp.csr_matrix:
    """Like apache2 (SuiteSparse): 715,176 rows and 4,817,870 entries at the default size; apache1 is (8, 101, 100).

    A 7-point grid of 8 x 297 x 301 has exactly these counts (8 x 101 x 100 has apache1's). The values are our own,
    between those published for apache1 (-90000 and 180016): coupling 90000 across the thin direction x, whose two
    faces are insulated, and 4 along y and z, with u = 0 on these four faces. Symmetric positive definite, but a row's
    sum is as small as 1e-5 of its diagonal.
    """
    _positive(nx=nx, ny=ny, nz=nz)
    x = np.arange(nx)
    diagonal = 90000.0 * ((x > 0).astype(float) + (x < nx - 1)) + 16.0
    values = {(0, 0, 0): diagonal[None, None, :]} | _neighbours(3, -4.0)
    return _stencil(nx, ny, nz, values | {(-1, 0, 0): -90000.0, (1, 0, 0): -90000.0})


def helmholtz(n: int, k: float, absorbing: bool = True) -> sp.csr_matrix:
    """-Laplace(u) - k^2 u by 5 points on an n x n grid, spacing h = 1 / (n + 1), times h^2. k : waves per 2 pi units.

    absorbing : the boundary lets waves out, du/dn = i k u to first order: complex128, symmetric, not Hermitian.
        If False, u = 0 on the boundary: float64, symmetric, indefinite once k^2 exceeds the lowest eigenvalue, 2 pi^2.
    Ten points a wavelength means k = 2 pi (n + 1) / 10. Source: Ernst and Gander 2012, "Why it is difficult to solve
    Helmholtz problems with classical iterative methods".
    """
    _positive(n=n)
    kh = k / (n + 1)
    diagonal: Any = 4.0 - kh**2
    if absorbing:
        edge = np.zeros(n)
        edge[0] += 1
        edge[-1] += 1
        diagonal = diagonal - (1 + 1j * kh) * (edge[None, :, None] + edge[None, None, :])
    return _stencil(n, n, 1, {(0, 0, 0): diagonal} | _neighbours(2, -1.0))


# Finite elements -----------------------------------------------------------------------------------------------------


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
    _positive(level=level)
    points, triangles = _coarse_mesh()
    for _ in range(level - 1):
        points, triangles = _refine(points, triangles)
    corners = points[triangles]
    edge = np.roll(corners, -1, axis=1) - np.roll(corners, 1, axis=1)  # (T, 3, 2): the edge opposite each corner
    area = 0.5 * abs(edge[:, 0, 0] * edge[:, 1, 1] - edge[:, 0, 1] * edge[:, 1, 0])
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
    return _csr(A)


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


def elasticity(nx: int, ny: int, nz: int, poisson_ratio: float = 0.3) -> sp.csr_matrix:
    """A linear elastic block of nx x ny x nz trilinear cubes, held at x = 0, free elsewhere; Young's modulus is 1.

    Three rows a node, u_x u_y u_z in turn, 3 nx (ny + 1)(nz + 1) in all and up to 81 entries a row; the zeros inside
    3 x 3 blocks are stored, as BSR needs. Symmetric positive definite. poisson_ratio : in (-1, 0.5); near 0.5 the
    material is nearly incompressible and the matrix ill-conditioned. Source: Zienkiewicz and Taylor 2000, chapter 8.
    """
    _positive(nx=nx, ny=ny, nz=nz)
    if not -1 < poisson_ratio < 0.5:
        raise ParameterError(f"poisson_ratio = {poisson_ratio} is outside (-1, 0.5).")
    element = _elastic_cube(poisson_ratio)
    shape = (nz + 1, ny + 1, nx)  # nodes; those at x = 0 are held and left out
    blocks = np.zeros((*shape, 27, 3, 3))
    present: Array = np.zeros((*shape, 27), bool)
    for (a, corner_a), (b, corner_b) in product(enumerate(product((0, 1), repeat=3)), repeat=2):  # corners as z, y, x
        d = [q - p for p, q in zip(corner_a, corner_b, strict=True)]
        z, y = (slice(1, None) if p else slice(None, -1) for p in corner_a[:2])  # nodes that are corner a of some cube
        x = (slice(1, None) if d[2] < 0 else slice(None)) if corner_a[2] else slice(None, -1)
        slot = 9 * d[0] + 3 * d[1] + d[2] + 13
        blocks[z, y, x, slot] += element[a, :, b, :]
        present[z, y, x, slot] = True
    n = math.prod(shape)
    steps = [nx * ((ny + 1) * dz + dy) + dx for dz, dy, dx in product((-1, 0, 1), repeat=3)]
    columns = np.arange(n)[:, None] + np.array(steps)
    present = present.reshape(n, 27)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    data = blocks.reshape(n, 27, 3, 3)[present]
    return _csr(sp.bsr_matrix((data, columns[present], indptr), shape=(3 * n, 3 * n)))


def _elastic_cube(poisson_ratio: float) -> Array:
    """Stiffness (8, 3, 8, 3) of the unit cube, by 2 x 2 x 2 Gauss points; corners count z slowest, x fastest."""
    first = poisson_ratio / ((1 + poisson_ratio) * (1 - 2 * poisson_ratio))  # Lame's constants for Young's modulus 1
    shear = 0.5 / (1 + poisson_ratio)
    corners = np.array(list(product((0, 1), repeat=3)))[:, ::-1]
    stiffness = np.zeros((8, 3, 8, 3))
    for point in product((0.5 - 0.5 / math.sqrt(3), 0.5 + 0.5 / math.sqrt(3)), repeat=3):
        hat = np.where(corners == 1, point, 1 - np.array(point))
        slope = 2.0 * corners - 1
        g = np.stack([slope[:, i] * np.delete(hat, i, axis=1).prod(axis=1) for i in range(3)], axis=1)  # (8, 3)
        stiffness += first * np.einsum("ai,bj->aibj", g, g) + shear * np.einsum("aj,bi->aibj", g, g)
        stiffness += shear * np.einsum("ak,bk,ij->aibj", g, g, np.eye(3))
    return stiffness / 8


def black_oil(
    nx: int, ny: int | None = None, nz: int | None = None, decades: float = 4.0, courant: float = 5.0, seed: int = 0
) -> sp.csr_matrix:
    """Newton's matrix of an implicit time step of water, oil and gas in rock: 3 x 3 blocks, zeros in them stored.

    The cells of an nx x ny x nz grid (each nx if left out) have three unknowns, pressure and the saturations of water
    and gas; their rows are the balances of water, oil and gas. The flux of a phase is T m (p_i - p_j), with the
    mobility m of the cell upstream: elliptic in the pressure, hyperbolic in the saturations. Water is injected along
    one vertical edge, and all phases are produced along the opposite one, both at given pressures.
    decades : of the permeability, which is smooth within a layer and differs between layers; across them it is a tenth.
    courant : the mean part of a cell's content that flows out of it in the time step.
    seed : of the permeability.
    Neither symmetric nor definite. Source: Aziz and Settari 1979, chapter 5; mobilities: Corey 1954.
    """
    shape = nx if nz is None else nz, nx if ny is None else ny, nx
    n = _positive(nz=shape[0]) * _positive(ny=shape[1]) * _positive(nx=nx)
    if not (0 <= decades < math.inf and 0 < courant < math.inf):
        raise ParameterError(f"black_oil: decades = {decades} and courant = {courant}; both must be positive numbers.")
    rock = _permeability(shape, decades, seed)
    k, j, i = (index.ravel() for index in np.indices(shape))
    of_injector, of_producer = np.hypot(i, j) + 1, np.hypot(nx - 1 - i, shape[1] - 1 - j) + 1  # distances
    p = 200 + 20 * np.log(of_producer / of_injector) + 0.2 * k
    near = of_producer / (of_injector + of_producer)
    water, gas = 0.15 + 0.5 * near**2, 0.02 + 0.2 * (1 - near)
    filled, viscosity = np.stack([water, 1 - water - gas, gas], axis=1), np.array([0.5, 2.0, 0.05])
    mobility = filled**2 / viscosity
    by_unknowns = np.array([[0.0, 1, 0], [0, -1, -1], [0, 0, 1]])  # derivatives of the three saturations
    slope = (2 * filled / viscosity)[:, :, None] * by_unknowns

    entries, outflow, cell = list[tuple[Array, Array, Array]](), np.zeros(n), np.arange(n).reshape(shape)
    for axis, geometry in ((2, 2.0), (1, 2.0), (0, 5.0)):  # cells of 10 x 10 x 2: area over distance, a tenth across
        a, b = (np.moveaxis(cell, axis, 0)[part].ravel() for part in (slice(None, -1), slice(1, None)))
        T, drop = geometry * 2 / (1 / rock[a] + 1 / rock[b]), p[a] - p[b]
        up = np.where(drop >= 0, a, b)
        np.add.at(outflow, up, T * abs(drop) * mobility[up].sum(axis=1))
        flux = (T * drop)[:, None, None] * slope[up]
        by_pressure = np.zeros_like(flux)
        by_pressure[:, :, 0] = T[:, None] * mobility[up]
        for row, sign in ((a, 1), (b, -1)):
            entries += [(row, up, sign * flux), (row, a, sign * by_pressure), (row, b, -sign * by_pressure)]

    stays = np.tile(by_unknowns, (n, 1, 1))
    stays[:, :, 0] = filled * np.array([1e-4, 2e-4, 5e-3])  # compressibilities of rock and fluid
    entries.append((cell.ravel(), cell.ravel(), (outflow.mean() or 1) / courant * stays))
    injector, producer = cell[:, 0, 0], cell[:, -1, -1]
    injected, produced = np.zeros((2, shape[0], 3, 3))
    injected[:, 0, 0] = 4 * rock[injector] / viscosity[0]
    produced[...] = 40 * rock[producer][:, None, None] * slope[producer]  # its pressure is lower by 10
    produced[:, :, 0] = 4 * rock[producer][:, None] * mobility[producer]
    entries += [(injector, injector, injected), (producer, producer, produced)]
    rows, columns, blocks = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    within = np.arange(3)
    i, j = (3 * rows)[:, None, None] + within[:, None], (3 * columns)[:, None, None] + within
    i, j, values = (array.ravel() for array in np.broadcast_arrays(i, j, blocks))
    return _csr(sp.coo_matrix((values, (i, j)), shape=(3 * n, 3 * n)))


def _permeability(shape: tuple[int, int, int], decades: float, seed: int) -> Array:
    """(nz ny nx,) : between 1 and 10^decades, by random waves in the layers, and a random mean of each layer."""
    rng = np.random.default_rng(seed)
    _, ny, nx = shape
    y, x = np.arange(ny)[:, None], np.arange(nx)
    exponents = np.empty(shape)
    for layer in exponents:
        waves, phases = rng.normal(0, 0.15, (12, 2)), rng.uniform(0, 2 * np.pi, 12)
        layer[...] = rng.normal() + sum(np.cos(u * y + v * x + t) for (u, v), t in zip(waves, phases, strict=True)) / 3
    exponents -= exponents.min()
    return (10 ** (decades * exponents / (exponents.max() or 1))).ravel()


# Networks ------------------------------------------------------------------------------------------------------------


def ecology2_like(nx: int = 1000, ny: int = 1000) -> sp.csr_matrix:
    """Like ecology2 (McRae, SuiteSparse): 999,999 rows and 4,995,991 entries at the default size.

    Currents between the cells of a landscape, an nx x ny grid with conductance 10 between neighbours. The middle cell
    is held at 0 and left out, which gives exactly the published counts, and ecology1's range of values (-10 to 40). The
    held cell and the conductances of the original are not known to us. Symmetric positive definite, row sums 0 except
    next to the held cell.
    """
    _positive(nx=nx, ny=ny)
    n = nx * ny
    if n < 2:
        raise ParameterError("ecology2_like needs at least two cells, since one of them is held at 0.")
    cell = np.arange(n).reshape(ny, nx)
    i = np.concatenate([cell[:, :-1].ravel(), cell[:-1].ravel()])
    j = np.concatenate([cell[:, 1:].ravel(), cell[1:].ravel()])
    A = _laplacian(i, j, np.full(i.size, 10.0), np.zeros(n))
    kept = np.delete(np.arange(n), cell[ny // 2, nx // 2])
    return _csr(A[kept][:, kept])


def g3_circuit_like(n: int = 1_585_478, seed: int = 0) -> sp.csr_matrix:
    """Like G3_circuit (Okuyucu, SuiteSparse): 1,585,478 rows and 7,660,826 entries at the default size.

    The mesh of a chip's supply: parallel wires of n nodes in all, joined to the next wire at most nodes (as many
    resistors per node as the published matrix has entries), conductances over two decades, and every 256th node or so
    tied to the supply. Pattern and values are our own. Symmetric positive definite, weakly diagonally dominant.
    seed : of the random conductances and of the joints that are left out.
    """
    _positive(n=n)
    rng = np.random.default_rng(seed)
    width = math.isqrt(n - 1) + 1
    node = np.arange(n)
    along = node[(node % width < width - 1) & (node < n - 1)]
    across = node[: max(n - width, 0)]
    joints = min(across.size, round(n * 3_037_674 / 1_585_478) - along.size)
    across = np.sort(rng.choice(across, joints, replace=False))
    i, j = np.concatenate([along, across]), np.concatenate([along + 1, across + width])
    supply = ((node % width % 16 == 0) & (node // width % 16 == 0)).astype(float)
    return _laplacian(i, j, 10 ** rng.uniform(-1, 1, i.size), supply)


def _laplacian(i: Array, j: Array, conductance: Array, ground: Array) -> sp.csr_matrix:
    """The nodal matrix of resistors between nodes i and j (each pair once) and from every node to ground."""
    n = ground.size
    diagonal = ground + np.bincount(i, conductance, n) + np.bincount(j, conductance, n)
    node = np.arange(n)
    data = np.concatenate([-conductance, -conductance, diagonal])
    return _csr(sp.coo_matrix((data, (np.concatenate([i, j, node]), np.concatenate([j, i, node]))), shape=(n, n)))


# Markov chains -------------------------------------------------------------------------------------------------------


def cage(length: int, field: float = 0.1) -> sp.csr_matrix:
    """The cage model of a polymer in a gel: column j holds the probabilities of the moves out of state j.

    length : of the polymer in monomers, 3 to 15. cage(10) has 11,397 rows and 150,645 entries, cage(13) 445,315 and
        7,479,343; it takes some seconds and 1 GB.
    field : the electric field that drives monomers along edges, in units of k T.
    A state is a walk of length - 1 steps on a tree, each of whose vertices has three edges towards it and three away
    from it, up to symmetries of the tree and the direction of the walk. A monomer moves if both its neighbours are at
    one vertex. Not symmetric; columns sum to 1. Takes O(length^2) time and memory for an entry.
    Source: A. van Heukelum, G. T. Barkema, R. H. Bisseling, DNA electrophoresis studied with the cage model, J. Comput.
    Phys. 180, 2002. Pattern and order are those of the matrices cage3 to cage15 of the SuiteSparse collection, values
    up to rounding.
    """
    if not 3 <= _positive(length=length) <= 15:
        raise ParameterError(f"length={length}; 3 to 15 is needed (64 bits hold no longer walk).")
    if not math.isfinite(field):
        raise ParameterError(f"field={field}; a finite number is needed.")
    walks, away = _walks(length)
    codes, first = np.unique(_walk_codes(walks, away), return_index=True)
    walks, away = walks[:, first], away[:, first]
    rows, columns, rates = [], [], []
    for i in range(length):
        end = i in (0, length - 1)
        j = np.arange(codes.size) if end else np.flatnonzero(walks[i - 1] == walks[i + 1])  # the states that can move
        held_by = walks[1 if i == 0 else i - 1, j]
        for direction in (True, False):
            joined = _joined(walks[:, j], away[:, j], held_by, direction)
            rate = 1 / (3 * length * (1 + np.exp(-2 * field if direction else 2 * field)))
            others = 3 - joined.sum(axis=0)  # neighbours that no monomer is at, which are alike by symmetry
            for vertex, ways in [*enumerate(joined.astype(np.int64)), (length, others)]:
                k = np.flatnonzero(ways)
                moved, steps = walks[:, j[k]], away[:, j[k]]
                moved[i] = vertex
                steps[max(i - 1, 0) : i] = direction
                steps[i : i + 1] = not direction
                rows.append(np.searchsorted(codes, _walk_codes(moved, steps)))
                columns.append(j[k])
                rates.append(rate * ways[k])
    places = np.concatenate(rows), np.concatenate(columns)
    A = _csr(sp.coo_matrix((np.concatenate(rates), places), shape=(codes.size,) * 2))
    A.setdiag(0)  # a move to a state alike
    A.setdiag(1 - np.asarray(A.sum(axis=0)).ravel())
    return _csr(A)


def _walks(length: int) -> tuple[Array, Array]:
    """All walks up to symmetries of the tree: [monomer, walk] its vertex, by the number of the first monomer there, and
    [step, walk] whether the edge leads away from the vertex before it."""
    walks, away = np.zeros((1, 1), np.int8), np.zeros((0, 1), bool)
    for _ in range(1, length):
        walk, vertex, direction = [], [], []
        for way in (True, False):
            joined = _joined(walks, away, walks[-1], way)
            for number, possible in enumerate([*joined, joined.sum(axis=0) < 3]):  # the last: to a new vertex
                walk.append(np.flatnonzero(possible))
                vertex.append(np.full(walk[-1].size, number, np.int8))
                direction.append(np.full(walk[-1].size, way))
        k = np.concatenate(walk)
        walks = np.vstack([walks[:, k], np.concatenate(vertex)])
        away = np.vstack([away[:, k], np.concatenate(direction)])
    return walks, away


def _joined(walks: Array, away: Array, at: Array, direction: bool) -> Array:
    """[vertex, walk]: whether the walk takes an edge of this direction from the vertex `at` to this one, or back."""
    found = np.zeros(walks.shape, bool)
    for step, is_away in enumerate(away):
        a, b = walks[step], walks[step + 1]
        for start, end, leads_away in ((a, b, is_away), (b, a, ~is_away)):
            k = np.flatnonzero((start == at) & (leads_away == direction))
            found[end[k], k] = True
    return found


def _walk_codes(walks: Array, away: Array) -> Array:
    """A number for each walk, the same for its reverse: bits of the monomers that share a vertex, then of the steps."""

    def one_way(walks: Array, away: Array) -> Array:
        distances = range((len(walks) - 1) // 2 * 2, 0, -2)
        code = np.zeros(walks.shape[1], np.uint64)
        for bit in np.vstack([*(walks[:-d] == walks[d:] for d in distances), ~away]):
            code = (code << np.uint64(1)) | bit
        return code

    return np.minimum(one_way(walks, away), one_way(walks[::-1], ~away[::-1]))


# Saddle points -------------------------------------------------------------------------------------------------------


def stokes(n: int, store_zeros: bool = False) -> sp.csr_matrix:
    """Stokes flow in a closed box, n x n cells, velocities on the faces and pressures in the cells: [[V, B^T], [B, 0]].

    2 n (n - 1) velocities, then n^2 - 1 pressures (the last is held at 0, which makes the matrix nonsingular).
    store_zeros : store the zero diagonal entries of the pressures; otherwise these rows have no diagonal entry.
    Symmetric indefinite. Source: Harlow and Welch 1965 (staggered grid); Benzi, Golub and Liesen 2005.
    """
    if _positive(n=n) < 2:
        raise ParameterError("stokes needs n >= 2: one cell has no inner face.")
    eye, eye_inner = sp.identity(n), sp.identity(n - 1)
    normal = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(n - 1, n - 1))
    wall = np.full(n, 2.0)
    wall[[0, -1]] = 3.0  # the velocity along a wall vanishes half a cell away
    tangential: Sparse = sp.diags([-np.ones(n - 1), wall, -np.ones(n - 1)], [-1, 0, 1])
    difference = sp.diags([1.0, -1.0], [0, -1], shape=(n, n - 1))
    kron = partial(sp.kron, format="csr")  # its default format stores the zeros of dense blocks
    u = kron(eye, normal) + kron(tangential, eye_inner)
    v = kron(eye_inner, tangential) + kron(normal, eye)
    divergence = sp.hstack([kron(eye, difference), kron(difference, eye)]).tocsr()[:-1]
    return _saddle(sp.block_diag([u, v]), divergence, store_zeros)


def navier_stokes(n: int, reynolds: float = 100.0) -> sp.csr_matrix:
    """Newton's matrix of a flow in a closed box by Taylor-Hood elements: [[V, B^T], [B, 0]].

    2 n^2 triangles; 2 (2 n - 1)^2 velocities, then (n + 1)^2 - 1 pressures (the first is held at 0). V is diffusion,
    times 1 / reynolds, and the linearized convection by an eddy that fills the box, of speed 1. Nonsymmetric values in
    a symmetric pattern, without diagonal entries in the rows of the pressures. Source: Elman, Silvester, Wathen 2014.
    """
    if _positive(n=n) < 2 or not reynolds > 0:
        raise ParameterError("navier_stokes needs n >= 2, for a velocity in each direction, and reynolds > 0.")
    total, cell = (2 * n + 1) ** 2, np.divmod(np.arange(n * n), n)
    velocities: list[Array] = []
    pressures: list[Array] = []
    for lower in (True, False):  # the two triangles of each square
        corners = np.array([[0, 0], [2, 0], [0, 2]] if lower else [[2, 2], [0, 2], [2, 0]])
        node, vertex, blocks, divergence = _taylor_hood(n, reynolds, cell, corners)
        row, column = np.repeat(node, 6, axis=1), np.tile(node, (1, 6))
        for p, q in product(range(2), repeat=2):
            velocities.append(_triplets(row + p * total, column + q * total, blocks[:, p, q]))
        row = np.repeat(vertex, 6, axis=1)
        for p in range(2):
            pressures.append(_triplets(row, np.tile(node + p * total, (1, 3)), divergence[:, :, p]))
    inner = np.zeros((2 * n + 1, 2 * n + 1), bool)
    inner[1:-1, 1:-1] = True
    free = np.flatnonzero(np.tile(inner.ravel(), 2))
    V, B = (
        sp.coo_matrix((values, (rows.astype(int), columns.astype(int)))).tocsr()[:, free]
        for rows, columns, values in (np.concatenate(parts, axis=1) for parts in (velocities, pressures))
    )
    A = _saddle(V[free], B[1:], False)
    A.eliminate_zeros()
    return A


def _triplets(rows: Array, columns: Array, values: Array) -> Array:
    """Rows, columns and values of the entries of element matrices; values are those of one cell, or of each."""
    cells = rows.shape[0]
    repeated = np.broadcast_to(values, (cells, *values.shape[-2:]))
    return np.stack([rows.ravel().astype(float), columns.ravel(), repeated.ravel()])


def _taylor_hood(n: int, reynolds: float, cell: tuple[Array, Array], corners: Array) -> tuple[Array, ...]:
    """(nodes of each triangle (cells, 6), vertices (cells, 3), V (cells, 2, 2, 6, 6), B (3, 6, 2)) of one triangle in
    each square, by quadrature of degree 5 (Radon 1948); corners (3, 2) : in halves of a square."""
    i, j = cell
    near, far = (6 - np.sqrt(15)) / 21, (6 + np.sqrt(15)) / 21
    points = np.array([[1 / 3] * 3, *(np.roll([1 - 2 * s, s, s], k) for s in (near, far) for k in range(3))])
    weights = np.array([9 / 40] + 3 * [(155 - np.sqrt(15)) / 1200] + 3 * [(155 + np.sqrt(15)) / 1200]) / (2 * n * n)
    first, second = np.array([0, 1, 2]), np.array([1, 2, 0])  # the ends of the edges
    place = np.concatenate([corners, (corners[first] + corners[second]) // 2])
    node = 2 * j[:, None] + place[:, 0] + (2 * n + 1) * (2 * i[:, None] + place[:, 1])
    vertex = j[:, None] + corners[:, 0] // 2 + (n + 1) * (i[:, None] + corners[:, 1] // 2)
    slope = np.linalg.inv(np.column_stack([np.ones(3), corners / (2 * n)]))[1:].T  # of barycentric coordinates
    left, right = points[:, first, None], points[:, second, None]
    value = np.concatenate([points * (2 * points - 1), 4 * (left * right)[..., 0]], axis=1)
    of_edges = 4 * (left * slope[second] + right * slope[first])
    grad = np.concatenate([(4 * points - 1)[..., None] * slope, of_edges], axis=1)
    x, y = (np.pi * (2 * k[:, None] + points @ corners[:, axis]) / (2 * n) for k, axis in ((j, 0), (i, 1)))
    wind = np.stack([np.sin(x) ** 2 * np.sin(2 * y), -np.sin(2 * x) * np.sin(y) ** 2], axis=-1)
    along, across = np.sin(2 * x) * np.sin(2 * y), 2 * np.sin(x) ** 2 * np.cos(2 * y)
    slopes = np.pi * np.stack([along, across, -2 * np.cos(2 * x) * np.sin(y) ** 2, -along], axis=-1)
    V = np.einsum("q,qi,cqab,qj->cabij", weights, value, slopes.reshape(*along.shape, 2, 2), value)
    diffusion = np.einsum("q,qia,qja->ij", weights, grad, grad) / reynolds
    both = diffusion + np.einsum("q,qi,cqa,qja->cij", weights, value, wind, grad)
    V[:, 0, 0] += both
    V[:, 1, 1] += both
    return node, vertex, V, -np.einsum("q,qk,qia->kia", weights, points, grad)


def kkt(n: int, m: int, density: float = 0.01, seed: int = 0, store_zeros: bool = False) -> sp.csr_matrix:
    """A random quadratic programme with n variables and m <= n equality constraints: [[H, J^T], [J, 0]].

    H : symmetric positive definite, and J : of full rank, are parts of `random_dominant` matrices of this density.
    store_zeros : store the zero diagonal entries of the last m rows; otherwise these rows have no diagonal entry.
    Symmetric indefinite, nonsingular, n + m rows. Source: Nocedal and Wright 2006, section 16.1.
    """
    if _positive(m=m) > _positive(n=n):
        raise ParameterError(f"kkt: {m} constraints on {n} variables cannot be independent; m <= n is needed.")
    H = random_dominant(n, density, seed, hermitian=True)
    return _saddle(H, random_dominant(n, density, seed + 1)[:m], store_zeros)


def _saddle(H: Sparse, J: Sparse, store_zeros: bool) -> sp.csr_matrix:
    K: Sparse = sp.bmat([[H, J.T], [J, None]], format="coo")
    if store_zeros:
        zero = np.arange(H.shape[0], K.shape[0])
        data, i, j = np.append(K.data, np.zeros(zero.size)), np.append(K.row, zero), np.append(K.col, zero)
        K = sp.coo_matrix((data, (i, j)), shape=K.shape)
    return _csr(K)


# Patterns that are easy or hard to solve in parallel -----------------------------------------------------------------


def random_dominant(
    n: int, density: float = 0.01, seed: int = 0, dtype: Dtype = "float64", hermitian: bool = False
) -> sp.csr_matrix:
    """A random strictly diagonally dominant matrix: a_ii = 1 + sum of |a_ij|, so every ILU(0) of it exists.

    density : number of places that are drawn, as a part of n^2, 0 to 1 (some coincide, so a little fewer are filled).
    Off-diagonal values are uniform in (-1, 1), real and imaginary part each; values at one place are summed.
    dtype : float32, float64, complex64 or complex128. hermitian : A = A^H, positive definite.
    Source: Meijerink and van der Vorst 1977; Manteuffel 1980 (H-matrices have an incomplete factorization).
    """
    _positive(n=n)
    if not 0 <= density <= 1:
        raise ParameterError(f"density = {density} is outside 0..1.")
    if dtype not in DTYPES:
        raise ParameterError(f"dtype = {dtype!r} is not one of {', '.join(DTYPES)}." + meant(dtype, DTYPES))
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, n, (2, round(density * n * n)))
    i, j = i[i != j], j[i != j]
    data = rng.uniform(-1, 1, i.size)
    if np.dtype(dtype).kind == "c":
        data = data + 1j * rng.uniform(-1, 1, i.size)
    R = sp.coo_matrix((data, (i, j)), shape=(n, n)).tocsr()
    if hermitian:
        R = 0.5 * (R + R.conj().T)
    return _csr(R + sp.diags(1.0 + np.asarray(abs(R).sum(axis=1)).ravel())).astype(dtype)


def tridiagonal(n: int, lower: float = -1.0, diagonal: float = 2.0, upper: float = -1.0) -> sp.csr_matrix:
    """Constant entries on the diagonal and next to it; by default -u'' on n inner points, symmetric positive definite.

    The worst case for level sets: n levels of one row. Source: Golub and Van Loan 2013, section 4.8.
    """
    return _stencil(n, 1, 1, {(-1, 0, 0): lower, (0, 0, 0): diagonal, (1, 0, 0): upper})


def bidiagonal(n: int, lower: float = -1.0, diagonal: float = 2.0) -> sp.csr_matrix:
    """Lower bidiagonal with constant entries: a triangular matrix whose solve is a chain of n steps."""
    return _stencil(n, 1, 1, {(-1, 0, 0): lower, (0, 0, 0): diagonal})


def arrow(n: int) -> sp.csr_matrix:
    """Dense last row and column of -1, elsewhere diagonal: 2 levels, and one row as long as the matrix.

    The diagonal is 2, and n in the last row: symmetric positive definite, and without fill: ILU(0) is the full LU.
    Source: Davis, Direct Methods for Sparse Linear Systems, 2006, chapter 7 (fill-reducing orders).
    """
    _positive(n=n)
    rest, last = np.arange(n - 1), np.full(n - 1, n - 1)
    i, j = np.concatenate([rest, last, rest, [n - 1]]), np.concatenate([last, rest, rest, [n - 1]])
    data = np.concatenate([np.full(2 * (n - 1), -1.0), np.full(n - 1, 2.0), [float(n)]])
    return _csr(sp.coo_matrix((data, (i, j)), shape=(n, n)))


# Building blocks -----------------------------------------------------------------------------------------------------


def _positive(**sizes: Any) -> Any:
    """The last of these sizes, all positive whole numbers; otherwise a ParameterError that names the first bad one."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ParameterError(f"{name} = {size!r} is not a positive whole number.")
    return size


def _neighbours(dimensions: int, value: float) -> dict[tuple[int, ...], Any]:
    """The two offsets along each of the first `dimensions` axes, each with this value."""
    units = ((1, 0, 0), (0, 1, 0), (0, 0, 1))[:dimensions]
    return {tuple(sign * u for u in unit): value for unit in units for sign in (-1, 1)}


def _stencil(nx: int, ny: int, nz: int, values: dict[tuple[int, ...], Any]) -> sp.csr_matrix:
    """The matrix of a stencil on a grid, with nothing outside.

    values : offset (dx, dy, dz), each -1, 0 or 1 -> a number or an array that broadcasts to (nz, ny, nx).
    """
    _positive(nx=nx, ny=ny, nz=nz)
    offsets = sorted(values, key=lambda d: d[::-1])  # columns of a row then ascend
    data: Array = np.empty((nz, ny, nx, len(offsets)), np.result_type(float, *values.values()))
    present: Array = np.ones(data.shape, bool)
    for slot, offset in enumerate(offsets):
        data[..., slot] = values[offset]
        for axis, d in enumerate(offset[::-1]):
            if d:
                outside: list[Any] = [slice(None)] * 3
                outside[axis] = slice(0, 1) if d < 0 else slice(-1, None)
                present[(*outside, slot)] = False
    n = nx * ny * nz
    columns = np.arange(n)[:, None] + np.array([dx + nx * (dy + ny * dz) for dx, dy, dz in offsets])
    present = present.reshape(n, -1)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    return _csr(sp.csr_matrix((data.reshape(n, -1)[present], columns[present], indptr), shape=(n, n)))


def _convection(
    shape: tuple[int, int, int], diffusion: Iterable[Any], cell_peclet: Iterable[Any], reaction: float, scheme: str
) -> sp.csr_matrix:
    """Seven points: diffusion along x, y, z, convection with these cell Peclet numbers, and a reaction term."""
    values: dict[tuple[int, ...], Any] = {(0, 0, 0): reaction}
    for axis, (d, p) in enumerate(zip(diffusion, cell_peclet, strict=True)):
        if scheme == "upwind":
            lower, upper = d * (1 + np.maximum(p, 0)), d * (1 + np.maximum(-p, 0))
        elif scheme == "central":
            lower, upper = d * (1 + p / 2), d * (1 - p / 2)
        else:
            raise ParameterError(f"scheme = {scheme!r} is neither 'upwind' nor 'central'.")
        step = tuple(int(axis == a) for a in range(3))
        values[tuple(-s for s in step)], values[step] = -lower, -upper
        values[0, 0, 0] = values[0, 0, 0] + lower + upper
    return _stencil(*shape, values)


def _csr(A: Sparse) -> sp.csr_matrix:
    """A as a sorted csr_matrix without duplicates."""
    result = sp.csr_matrix(A)
    result.sum_duplicates()
    return result


# Look-up by name -----------------------------------------------------------------------------------------------------

PROBLEMS: dict[str, Callable[..., sp.csr_matrix]] = {
    function.__name__: function
    for function in (
        poisson5, poisson7, poisson27, convection_diffusion, atmosmodd_like, apache2_like, helmholtz,
        anisotropic_triangles, elasticity, black_oil, ecology2_like, g3_circuit_like, cage, stokes, navier_stokes, kkt,
        random_dominant, tridiagonal, bidiagonal, arrow,
    )
}  # fmt: skip

PAPER_SIZES: dict[str, str] = {f"ani{level}": f"anisotropic_triangles:{level}" for level in range(3, 8)} | {
    **{f"cage{length}": f"cage:{length}" for length in range(10, 14)},
    "apache1": "apache2_like:8,101,100",
    "apache2": "apache2_like",
    "atmosmodd": "atmosmodd_like",
    "ecology2": "ecology2_like",
    "G3_circuit": "g3_circuit_like",
}
"""Matrices that papers measure -> the text of our problem of that kind and size (see there what agrees)."""


def problem(text: str) -> sp.csr_matrix:
    """The problem that a text names: "poisson7:100", "helmholtz:200,k=40", "random_dominant:50,dtype=float32", "ani5".

    Before the colon stands a function of this module (a key of `PROBLEMS`) or, alone, a key of `PAPER_SIZES`; after it
    its arguments as in Python, where words may stand without quotes. Returns a csr_matrix.
    Raises ParameterError for an unknown name (listing the known ones) and for arguments that do not fit.
    """
    name, _, given = PAPER_SIZES.get(text, text).partition(":")
    if name not in PROBLEMS:
        known = [*PROBLEMS, *PAPER_SIZES]
        raise ParameterError(
            f"no test problem is called {name!r}; one of {', '.join(known)} is needed." + meant(name, known)
        )
    function = PROBLEMS[name]
    try:
        call = ast.parse(f"f({given})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise SyntaxError
        keywords = {str(k.arg): _literal(k.value) for k in call.keywords}
        bound = inspect.signature(function).bind(*map(_literal, call.args), **keywords)
        return function(*bound.args, **bound.kwargs)
    except ParameterError:
        raise
    except (SyntaxError, TypeError, ValueError) as error:
        raise ParameterError(
            f"{text!r}: the arguments do not fit {name}{_plain_signature(function)}; "
            f"write their values after a colon, as in poisson7:100 or helmholtz:200,k=40."
        ) from error


def _plain_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of `function` without its annotations."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=signature.empty)


def _literal(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def small() -> list[Problem]:
    """A list of small `Problem`s for tests: all have a full diagonal and an ILU(0). Those of `small_spd` come first."""
    return small_spd() + [Problem(text, problem(text)) for text in SMALL_GENERAL]


def small_spd() -> list[Problem]:
    """A list of small Hermitian positive definite `Problem`s for tests, all with an IC(0)."""
    return [Problem(text, problem(text)) for text in SMALL_SPD]


SMALL_SPD = (
    "tridiagonal:1",
    "tridiagonal:70",
    "poisson5:9,7",
    "poisson7:5,4,3",
    "poisson27:4,5,3",
    "anisotropic_triangles:2",
    "apache2_like:4,5,6",
    "ecology2_like:9,8",
    "g3_circuit_like:150",
    "arrow:70",
    "random_dominant:90,0.05,3,float32,hermitian=True",
    "random_dominant:90,0.05,4,complex64,hermitian=True",
    "random_dominant:90,0.05,4,complex128,hermitian=True",
)
SMALL_GENERAL = (
    "elasticity:3,2,2",
    "random_dominant:40,0",
    "bidiagonal:60",
    "convection_diffusion:8,7,1,peclet=50",
    "convection_diffusion:5,4,3,peclet=9,scheme=central",
    "atmosmodd_like:5,4,3",
    "helmholtz:9,6",
    "helmholtz:9,3,absorbing=False",
    "random_dominant:120,0.03,1,float32",
    "random_dominant:120,0.03,2,float64",
    "random_dominant:120,0.03,3,complex64",
    "random_dominant:120,0.03,4,complex128",
)
