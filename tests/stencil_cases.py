"""Blocks on grids, and the matrices that they mean: what the tests of stencil matrices and block ILU share."""

import numpy as np
from checks import values

from finelu.kernels import reference
from finelu.matrix.stencil import OFFSETS

OPEN = (False, False, False)
SHAPES = [
    (1, 1, 1),
    (3, 1, 1),
    (1, 4, 1),
    (1, 1, 5),
    (4, 3, 1),
    (1, 5, 2),
    (5, 1, 3),
    (3, 4, 5),
    (7, 2, 11),
    (2, 37, 1),
]


def random_blocks(shape, n, dtype="float64", seed=0):
    """Dominant blocks (7, I, J, K, n, n); what points outside of the grid is not zero."""
    blocks = values((7, *shape, n, n), dtype, seed)
    blocks[3] += (7 * n * np.eye(n)).astype(dtype)
    return blocks


def dense(blocks, periodic=OPEN):
    """A by its definition, as a dense array."""
    _, I, J, K, n, _ = blocks.shape
    A = np.zeros((I * J * K, n, I * J * K, n), blocks.dtype)
    for cell in np.ndindex(I, J, K):
        for place, offset in enumerate(OFFSETS):
            other = reference.stencil.neighbour(cell, offset, (I, J, K), periodic)
            if other is not None:
                r, c = (np.ravel_multi_index(v, (I, J, K)) for v in (cell, other))
                A[r, :, c, :] += blocks[place][cell]
    return A.reshape(I * J * K * n, -1)
