"""Block ILU(0) on a grid by the sequential global algorithm in natural order, as one writes it; compiled by Numba.

The diagonal blocks are inverted by Gauss-Jordan as in the paper's fine-grained scheme, or, by the functions with `lu`,
kept as their L U factors as in the sequential code that it is compared with.

The baseline of the block ILU paper: Luo, Edwards, Luo, Mueller, "A fine-grained block ILU scheme on regular structures
for GPGPUs". The kernels of finelu are compared with it.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.jit import compiled


@compiled
def sequential_factor(blocks, d):
    """d of block_ilu_factor without pivoting, by Algorithms 2 and 5, cell after cell; returns the first bad cell."""
    _, I, J, K, n, _ = blocks.shape
    product = np.empty((n, n), d.dtype)
    first = -1
    for i in range(I):
        for j in range(J):
            for k in range(K):
                D = d[i, j, k]
                for u in range(n):
                    for v in range(n):
                        D[u, v] = blocks[3, i, j, k, u, v]
                if k > 0:
                    _subtract_triple(blocks[0, i, j, k], d[i, j, k - 1], blocks[6, i, j, k - 1], product, D)
                if j > 0:
                    _subtract_triple(blocks[1, i, j, k], d[i, j - 1, k], blocks[5, i, j - 1, k], product, D)
                if i > 0:
                    _subtract_triple(blocks[2, i, j, k], d[i - 1, j, k], blocks[4, i - 1, j, k], product, D)
                for r in range(n):
                    pivot = D[r, r]
                    if (pivot == 0 or not np.isfinite(pivot)) and first < 0:
                        first = (i * J + j) * K + k
                    for u in range(n):
                        if u != r:
                            D[u, r] = -(D[u, r] / pivot)
                            D[r, u] = D[r, u] / pivot
                    for u in range(n):
                        if u != r:
                            for v in range(n):
                                if v != r:
                                    D[u, v] += D[u, r] * D[r, v] * pivot
                    D[r, r] = 1 / pivot
    return first


@compiled
def sequential_lu_factor(blocks, d):
    """The factorized diagonal blocks as their L U factors, in place and without pivoting; returns the first bad cell.

    L has ones on its diagonal, which are not stored; the pivots lie on the diagonal of U.
    """
    _, I, J, K, n, _ = blocks.shape
    product = np.empty((n, n), d.dtype)
    first = -1
    for i in range(I):
        for j in range(J):
            for k in range(K):
                D = d[i, j, k]
                for u in range(n):
                    for v in range(n):
                        D[u, v] = blocks[3, i, j, k, u, v]
                if k > 0:
                    _subtract_solved(blocks[0, i, j, k], d[i, j, k - 1], blocks[6, i, j, k - 1], product, D)
                if j > 0:
                    _subtract_solved(blocks[1, i, j, k], d[i, j - 1, k], blocks[5, i, j - 1, k], product, D)
                if i > 0:
                    _subtract_solved(blocks[2, i, j, k], d[i - 1, j, k], blocks[4, i - 1, j, k], product, D)
                for r in range(n):
                    pivot = D[r, r]
                    if (pivot == 0 or not np.isfinite(pivot)) and first < 0:
                        first = (i * J + j) * K + k
                    for u in range(r + 1, n):
                        D[u, r] /= pivot
                        for v in range(r + 1, n):
                            D[u, v] -= D[u, r] * D[r, v]
    return first


@compiled
def _subtract_solved(A, LU, C, solved, out):
    """out -= A (L U)^-1 C, by substitutions in the columns of C."""
    n = out.shape[0]
    for v in range(n):
        for u in range(n):
            solved[v, u] = C[u, v]
        _substitute(LU, solved[v])
    for u in range(n):
        for v in range(n):
            total = out[u, v]
            for w in range(n):
                total -= A[u, w] * solved[v, w]
            out[u, v] = total


@compiled
def _substitute(LU, x):
    """x = (L U)^-1 x."""
    n = x.size
    for u in range(n):
        total = x[u]
        for v in range(u):
            total -= LU[u, v] * x[v]
        x[u] = total
    for u in range(n - 1, -1, -1):
        total = x[u]
        for v in range(u + 1, n):
            total -= LU[u, v] * x[v]
        x[u] = total / LU[u, u]


@compiled
def _subtract_triple(A, B, C, product, out):
    """out -= A B C."""
    n = out.shape[0]
    for u in range(n):
        for v in range(n):
            total = A[u, 0] * B[0, v]
            for w in range(1, n):
                total += A[u, w] * B[w, v]
            product[u, v] = total
    for u in range(n):
        for v in range(n):
            total = out[u, v]
            for w in range(n):
                total -= product[u, w] * C[w, v]
            out[u, v] = total


@compiled
def sequential_solve(blocks, d, b, x):
    """x = M^-1 b by Algorithm 3, cell after cell; x and b (I, J, K, n)."""
    _, I, J, K, n, _ = blocks.shape
    z = np.empty(n, x.dtype)
    for i in range(I):
        for j in range(J):
            for k in range(K):
                for u in range(n):
                    z[u] = b[i, j, k, u]
                if k > 0:
                    _subtract_product(blocks[0, i, j, k], x[i, j, k - 1], z)
                if j > 0:
                    _subtract_product(blocks[1, i, j, k], x[i, j - 1, k], z)
                if i > 0:
                    _subtract_product(blocks[2, i, j, k], x[i - 1, j, k], z)
                for u in range(n):
                    total = d[i, j, k, u, 0] * z[0]
                    for v in range(1, n):
                        total += d[i, j, k, u, v] * z[v]
                    x[i, j, k, u] = total
    for i in range(I - 1, -1, -1):
        for j in range(J - 1, -1, -1):
            for k in range(K - 1, -1, -1):
                for u in range(n):
                    z[u] = 0
                if i < I - 1:
                    _subtract_product(blocks[4, i, j, k], x[i + 1, j, k], z)
                if j < J - 1:
                    _subtract_product(blocks[5, i, j, k], x[i, j + 1, k], z)
                if k < K - 1:
                    _subtract_product(blocks[6, i, j, k], x[i, j, k + 1], z)
                _subtract_product(d[i, j, k], -z, x[i, j, k])


@compiled
def sequential_lu_solve(blocks, d, b, x):
    """The same with d of sequential_lu_factor: two substitutions instead of a product with an inverse."""
    _, I, J, K, n, _ = blocks.shape
    z = np.empty(n, x.dtype)
    for i in range(I):
        for j in range(J):
            for k in range(K):
                for u in range(n):
                    z[u] = b[i, j, k, u]
                if k > 0:
                    _subtract_product(blocks[0, i, j, k], x[i, j, k - 1], z)
                if j > 0:
                    _subtract_product(blocks[1, i, j, k], x[i, j - 1, k], z)
                if i > 0:
                    _subtract_product(blocks[2, i, j, k], x[i - 1, j, k], z)
                _substitute(d[i, j, k], z)
                for u in range(n):
                    x[i, j, k, u] = z[u]
    for i in range(I - 1, -1, -1):
        for j in range(J - 1, -1, -1):
            for k in range(K - 1, -1, -1):
                for u in range(n):
                    z[u] = 0
                if i < I - 1:
                    _subtract_product(blocks[4, i, j, k], x[i + 1, j, k], z)
                if j < J - 1:
                    _subtract_product(blocks[5, i, j, k], x[i, j + 1, k], z)
                if k < K - 1:
                    _subtract_product(blocks[6, i, j, k], x[i, j, k + 1], z)
                _substitute(d[i, j, k], z)
                for u in range(n):
                    x[i, j, k, u] += z[u]


@compiled
def sequential_residual(blocks, x, b, out):
    """out = b - A x by Algorithm 7 on a grid that is not periodic, cell after cell; x, b and out (I, J, K, n)."""
    _, I, J, K, _, _ = blocks.shape
    for i in range(I):
        for j in range(J):
            for k in range(K):
                r = out[i, j, k]
                r[:] = b[i, j, k]
                if k > 0:
                    _subtract_product(blocks[0, i, j, k], x[i, j, k - 1], r)
                if j > 0:
                    _subtract_product(blocks[1, i, j, k], x[i, j - 1, k], r)
                if i > 0:
                    _subtract_product(blocks[2, i, j, k], x[i - 1, j, k], r)
                _subtract_product(blocks[3, i, j, k], x[i, j, k], r)
                if i < I - 1:
                    _subtract_product(blocks[4, i, j, k], x[i + 1, j, k], r)
                if j < J - 1:
                    _subtract_product(blocks[5, i, j, k], x[i, j + 1, k], r)
                if k < K - 1:
                    _subtract_product(blocks[6, i, j, k], x[i, j, k + 1], r)


@compiled
def _subtract_product(A, x, out):
    """out -= A x."""
    for u in range(out.size):
        total = out[u]
        for v in range(x.size):
            total -= A[u, v] * x[v]
        out[u] = total
