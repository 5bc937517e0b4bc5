"""Networks of resistors."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp

from finelu.device import Array
from finelu.errors import ParameterError
from finelu.gallery.building import positive, sorted_csr


def ecology2_like(nx: int = 1000, ny: int = 1000) -> sp.csr_matrix:
    """Like ecology2 (McRae, SuiteSparse): 999,999 rows and 4,995,991 entries at the default size.

    Currents between the cells of a landscape, an nx x ny grid with conductance 10 between neighbours. The middle cell
    is held at 0 and left out, which gives exactly the published counts, and ecology1's range of values (-10 to 40). The
    held cell and the conductances of the original are not known to us. Symmetric positive definite, row sums 0 except
    next to the held cell.
    """
    positive(nx=nx, ny=ny)
    n = nx * ny
    if n < 2:
        raise ParameterError("ecology2_like needs at least two cells, since one of them is held at 0.")
    cell = np.arange(n).reshape(ny, nx)
    i = np.concatenate([cell[:, :-1].ravel(), cell[:-1].ravel()])
    j = np.concatenate([cell[:, 1:].ravel(), cell[1:].ravel()])
    A = laplacian(i, j, np.full(i.size, 10.0), np.zeros(n))
    kept = np.delete(np.arange(n), cell[ny // 2, nx // 2])
    return sorted_csr(A[kept][:, kept])


def g3_circuit_like(n: int = 1_585_478, seed: int = 0) -> sp.csr_matrix:
    """Like G3_circuit (Okuyucu, SuiteSparse): 1,585,478 rows and 7,660,826 entries at the default size.

    The mesh of a chip's supply: parallel wires of n nodes in all, joined to the next wire at most nodes (as many
    resistors per node as the published matrix has entries), conductances over two decades, and every 256th node or so
    tied to the supply. Pattern and values are our own. Symmetric positive definite, weakly diagonally dominant.
    seed : of the random conductances and of the joints that are left out.
    """
    positive(n=n)
    rng = np.random.default_rng(seed)
    width = math.isqrt(n - 1) + 1
    node = np.arange(n)
    along = node[(node % width < width - 1) & (node < n - 1)]
    across = node[: max(n - width, 0)]
    joints = min(across.size, round(n * 3_037_674 / 1_585_478) - along.size)
    across = np.sort(rng.choice(across, joints, replace=False))
    i, j = np.concatenate([along, across]), np.concatenate([along + 1, across + width])
    supply = ((node % width % 16 == 0) & (node // width % 16 == 0)).astype(float)
    return laplacian(i, j, 10 ** rng.uniform(-1, 1, i.size), supply)


def laplacian(i: Array, j: Array, conductance: Array, ground: Array) -> sp.csr_matrix:
    """The nodal matrix of resistors between nodes i and j (each pair once) and from every node to ground."""
    n = ground.size
    diagonal = ground + np.bincount(i, conductance, n) + np.bincount(j, conductance, n)
    node = np.arange(n)
    data = np.concatenate([-conductance, -conductance, diagonal])
    return sorted_csr(sp.coo_matrix((data, (np.concatenate([i, j, node]), np.concatenate([j, i, node]))), shape=(n, n)))
