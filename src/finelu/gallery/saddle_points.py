"""Saddle points: flows in a closed box, and a quadratic programme with constraints."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import scipy.sparse as sp

from finelu.device import Array, Sparse
from finelu.errors import ParameterError
from finelu.gallery.building import positive, sorted_csr
from finelu.gallery.patterns import random_dominant


def stokes(n: int, store_zeros: bool = False) -> sp.csr_matrix:
    """Stokes flow in a closed box, n x n cells, velocities on the faces and pressures in the cells: [[V, B^T], [B, 0]].

    2 n (n - 1) velocities, then n^2 - 1 pressures (the last is held at 0, which makes the matrix nonsingular).
    store_zeros : store the zero diagonal entries of the pressures; otherwise these rows have no diagonal entry.
    Symmetric indefinite. Source: Harlow and Welch 1965 (staggered grid); Benzi, Golub and Liesen 2005.
    """
    if positive(n=n) < 2:
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
    if positive(n=n) < 2 or not reynolds > 0:
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
    if positive(m=m) > positive(n=n):
        raise ParameterError(f"kkt: {m} constraints on {n} variables cannot be independent; m <= n is needed.")
    H = random_dominant(n, density, seed, hermitian=True)
    return _saddle(H, random_dominant(n, density, seed + 1)[:m], store_zeros)


def _saddle(H: Sparse, J: Sparse, store_zeros: bool) -> sp.csr_matrix:
    K: Sparse = sp.bmat([[H, J.T], [J, None]], format="coo")
    if store_zeros:
        zero = np.arange(H.shape[0], K.shape[0])
        data, i, j = np.append(K.data, np.zeros(zero.size)), np.append(K.row, zero), np.append(K.col, zero)
        K = sp.coo_matrix((data, (i, j)), shape=K.shape)
    return sorted_csr(K)
