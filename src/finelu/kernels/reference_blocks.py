"""The building blocks for block matrices of any pattern in plain Python: the specification of both backends.

data (nb, n, n) holds the blocks; block row i owns the places indptr[i] <= p < indptr[i + 1], and block p stands in
block column indices[p], ascending in a row. diag (rows,) is the place of the diagonal block of each row. The unknowns
of block row i are x[i n:][:n]. All arrays are C-contiguous.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.reference import gauss_jordan, subtract_block_product


def bsr_residual(indptr, indices, data, x, b, out):
    """out = b - A x, or A x where b is None; all (rows n,). Blocks in the order in which they are stored."""
    n = data.shape[1]
    X = x.reshape(-1, n)
    for i in range(indptr.size - 1):
        r = np.zeros(n, out.dtype) if b is None else b[i * n : (i + 1) * n].copy()
        for p in range(indptr[i], indptr[i + 1]):
            subtract_block_product(data[p], X[indices[p]], r)
        out[i * n : (i + 1) * n] = -r if b is None else r


def bsr_ilu0_factor(indptr, indices, diag, lu, pivoting):
    """lu (nb, n, n), at first the blocks of A, receives those of the factors: (L U)_ij = A_ij where A stores a block.

    Below the diagonal stand the blocks of L, whose diagonal blocks are ones, above it those of U, and on it the
    inverses of U's diagonal blocks. Row by row: L_ik = A_ik U_kk^-1, then A_ij -= L_ik U_kj where row i stores block j,
    k and j ascending; then U_ii is inverted by `gauss_jordan`.
    Returns the first block row with a pivot that is zero or not finite, or with such a block, or -1.
    """
    n = lu.shape[1]
    first = -1
    for i in range(diag.size):
        place = {int(indices[p]): p for p in range(indptr[i], indptr[i + 1])}
        for p in range(indptr[i], diag[i]):
            k = indices[p]
            product = np.zeros((n, n), lu.dtype)
            for u, w, v in np.ndindex(n, n, n):
                product[u, v] += lu[p][u, w] * lu[diag[k]][w, v]
            lu[p] = product
            for q in range(diag[k] + 1, indptr[k + 1]):
                target = place.get(int(indices[q]))
                if target is not None:
                    for u, w, v in np.ndindex(n, n, n):
                        lu[target][u, v] -= lu[p][u, w] * lu[q][w, v]
        good = gauss_jordan(lu[diag[i]], pivoting)
        if not (good and np.isfinite(lu[indptr[i] : indptr[i + 1]]).all()) and first < 0:
            first = i
    return first


def bsr_ilu0_solve(indptr, indices, places, diag, lu, b, x, trans):
    """x = M^-1 b, or M^-T b or M^-H b, all (rows n,): a sweep through the rows and one back.

    "N": y_i = b_i - sum_{j < i} L_ij y_j, then x_i = U_ii^-1 (y_i - sum_{j > i} U_ij x_j); places[p] = p.
    "T": y_i = U_ii^-T (b_i - sum_{j < i} U_ji^T y_j), then x_i = y_i - sum_{j > i} L_ji^T x_j. The pattern is the
        transposed one: row i lists the j with a block (j, i), which lies in lu at places[p]; diag numbers as `places`.
    "H": the same with the conjugates.
    """
    n, rows = lu.shape[1], diag.size
    X, B = x.reshape(-1, n), b.reshape(-1, n)

    def block(p):
        stored = lu[places[p]]
        return stored if trans == "N" else stored.T if trans == "T" else stored.conj().T

    def times_inverse(i, z):
        y = np.zeros(n, x.dtype)
        subtract_block_product(block(diag[i]), z, y)
        return -y

    for i in range(rows):
        z = B[i].copy()
        for p in range(indptr[i], diag[i]):
            subtract_block_product(block(p), X[indices[p]], z)
        X[i] = z if trans == "N" else times_inverse(i, z)
    for i in reversed(range(rows)):
        z = X[i].copy()
        for p in range(diag[i] + 1, indptr[i + 1]):
            subtract_block_product(block(p), X[indices[p]], z)
        X[i] = times_inverse(i, z) if trans == "N" else z


def invert_blocks(blocks, out, pivoting):
    """out = the inverses of blocks (m, n, n) by `gauss_jordan`; out may be blocks. Returns the first bad one or -1."""
    first = -1
    for k in range(blocks.shape[0]):
        out[k] = blocks[k]
        if not gauss_jordan(out[k], pivoting) and first < 0:
            first = k
    return first


def blocks_times(blocks, x, out, trans):
    """out_i = B_i x_i, B_i^T x_i or B_i^H x_i for blocks (m, n, n); x and out (m n,), not the same."""
    n = blocks.shape[1]
    for i in range(blocks.shape[0]):
        B = blocks[i] if trans == "N" else blocks[i].T if trans == "T" else blocks[i].conj().T
        y = np.zeros(n, out.dtype)
        subtract_block_product(B, x[i * n : (i + 1) * n], y)
        out[i * n : (i + 1) * n] = -y
