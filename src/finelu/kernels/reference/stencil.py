"""Block matrices on the 7-point stencil of a grid: residual, block ILU(0) and its solves. The specification."""

from __future__ import annotations

import numpy as np

from finelu.kernels.reference.blocks import gauss_jordan, product, subtract_block_product, subtract_product

# Block matrices on the 7-point stencil of an I x J x K grid. blocks (7, I, J, K, n, n), those of a cell in the order
# of STENCIL; the unknowns of cell (i, j, k) are `x[((i J + j) K + k) n:][:n]`.

STENCIL = ((0, 0, -1), (0, -1, 0), (-1, 0, 0), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))


def neighbour(cell, offset, shape, periodic=(False, False, False)):
    """The cell at `offset` from `cell`, round the grid where it is periodic; None outside."""
    moved = [c + o for c, o in zip(cell, offset, strict=True)]
    for axis in range(3):
        if not 0 <= moved[axis] < shape[axis]:
            if not periodic[axis]:
                return None
            moved[axis] %= shape[axis]
    return tuple(moved)


def stencil_residual(blocks, periodic, x, b, out):
    """out = b - A x, or A x where b is None; all (N,). Terms in the order of STENCIL; blocks outside count for none."""
    shape, n = blocks.shape[1:4], blocks.shape[-1]
    X = x.reshape(*shape, n)
    for c, cell in enumerate(np.ndindex(shape)):
        r = np.zeros(n, out.dtype) if b is None else b[c * n : (c + 1) * n].copy()
        for place, offset in enumerate(STENCIL):
            other = neighbour(cell, offset, shape, periodic)
            if other is not None:
                subtract_block_product(blocks[place][cell], X[other], r)
        out[c * n : (c + 1) * n] = -r if b is None else r


def block_ilu_factor(blocks, d, pivoting):
    """d (I, J, K, n, n) receives the inverses of the diagonal blocks of M = (D + E) D^-1 (D + F).

    d_ijk = (delta - alpha d_k-1 eta_k-1 - beta d_j-1 zeta_j-1 - gamma d_i-1 epsilon_i-1)^-1, the products from left to
    right, terms outside of the grid left out: couplings across the ends of a periodic grid are not factored.
    Returns the first cell ((i J + j) K + k) with a pivot that is zero or not finite, or with such an inverse, or -1.
    """
    shape, first = blocks.shape[1:4], -1
    for c, cell in enumerate(np.ndindex(shape)):
        d[cell] = blocks[3][cell]
        for place in range(3):
            other = neighbour(cell, STENCIL[place], shape)
            if other is not None:
                left = product(blocks[place][cell], d[other])
                subtract_product(left, blocks[6 - place][other], d[cell])
        if not gauss_jordan(d[cell], pivoting) and first < 0:
            first = c
    return first


def block_ilu_solve(blocks, d, b, x, trans):
    """x = M^-1 b, or M^-T b or M^-H b, all (N,): a sweep through the cells and one back.

    "N": y = d (b - alpha y_k-1 - beta y_j-1 - gamma y_i-1), x = y - d (epsilon x_i+1 + zeta x_j+1 + eta x_k+1).
    "T", "H": the same with the transposed matrix, whose blocks stand at the neighbours.
    """
    shape, n = blocks.shape[1:4], blocks.shape[-1]
    X, B = x.reshape(*shape, n), b.reshape(*shape, n)

    def block(place, cell, other):
        if trans == "N":
            return blocks[place][cell]
        transposed = blocks[6 - place][other].T
        return transposed.conj() if trans == "H" else transposed

    def times_inverse(cell, z):
        inverse = d[cell] if trans == "N" else d[cell].T if trans == "T" else d[cell].conj().T
        y = np.zeros(n, x.dtype)
        subtract_block_product(inverse, z, y)
        return -y

    cells = list(np.ndindex(shape))
    for cell, places in [(c, (0, 1, 2)) for c in cells] + [(c, (4, 5, 6)) for c in reversed(cells)]:
        z = B[cell].copy() if places[0] == 0 else np.zeros(n, x.dtype)
        for place in places:
            other = neighbour(cell, STENCIL[place], shape)
            if other is not None:
                subtract_block_product(block(place, cell, other), X[other], z)
        X[cell] = times_inverse(cell, z) + (0 if places[0] == 0 else X[cell])
