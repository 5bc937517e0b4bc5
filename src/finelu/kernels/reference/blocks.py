"""The building blocks in plain Python: slow, short and obviously right, the specification of both backends.

Sums run over the entries of a row in ascending order of columns. The CPU gives the same bits, whatever the number of
threads; the GPU multiplies by reciprocals and adds up in trees, so it agrees to a few units in the last place.
"""

from __future__ import annotations

import math

import numpy as np


def subtract_block_product(block, x, out):
    """out_u -= block_uv x_v, v ascending."""
    for u in range(out.size):
        for v in range(x.size):
            out[u] -= block[u, v] * x[v]


def subtract_product(a, b, out):
    """out_uv -= a_uw b_wv, w ascending."""
    n = out.shape[0]
    for u, w, v in np.ndindex(n, n, n):
        out[u, v] -= a[u, w] * b[w, v]


def product(a, b):
    """a b, with the terms of each element added in ascending order."""
    out, n = np.zeros_like(a), a.shape[0]
    for u, w, v in np.ndindex(n, n, n):
        out[u, v] += a[u, w] * b[w, v]
    return out


def gauss_jordan(d, pivoting):
    """d (n, n) becomes its inverse, in place (Algorithm 5). Returns whether all pivots and the inverse are usable.

    pivoting : rows are scaled by powers of two, so that the largest |re| + |im| of each is from 1 to 2, and the columns
    of the result by the same. Row r is first exchanged with the row u >= r of the largest |re d_ur| + |im d_ur|, the
    first of equals; the same columns of the result are exchanged in reverse order.
    """
    n, good = d.shape[0], True
    swaps = []
    powers = np.array([power_against(row) for row in d]) if pivoting else np.ones(n)
    d *= powers[:, None].astype(d.real.dtype)
    for r in range(n):
        if pivoting:
            best = r
            for u in range(r + 1, n):
                if abs(d[u, r].real) + abs(d[u, r].imag) > abs(d[best, r].real) + abs(d[best, r].imag):
                    best = u
            swaps.append(best)
            d[[r, best]] = d[[best, r]]
        pivot = d[r, r]
        good = good and bool(pivot != 0 and np.isfinite(pivot))
        reciprocal = d.dtype.type(1) / pivot
        d[r, r] = 1
        for v in range(n):
            d[r, v] = d[r, v] * reciprocal
        for u in range(n):
            if u != r:
                factor = d[u, r]
                d[u, r] = 0
                for v in range(n):
                    d[u, v] -= factor * d[r, v]
    for r, best in reversed(list(enumerate(swaps))):
        d[:, [r, best]] = d[:, [best, r]]
    d *= powers.astype(d.real.dtype)
    return good and bool(np.isfinite(d).all())


def power_against(row):
    """The power of two that brings the largest |re| + |im| of `row` to 1 to 2, as far as there is one in float32 or
    float64, whichever the row is in."""
    largest = float((abs(row.real) + abs(row.imag)).max())
    limit = np.finfo(row.dtype).maxexp - 2
    exponent = math.frexp(largest)[1] - 1 if largest < math.inf else limit
    return math.ldexp(1.0, -min(max(exponent, -limit - 1), limit))


def bsr_residual(indptr, indices, data, x, b, out):
    """out = b - A x, or A x where b is None; x is (columns n,), the rest (rows n,). Blocks in the order of storage."""
    n = data.shape[1]
    X = x.reshape(-1, n)
    for i in range(indptr.size - 1):
        r = np.zeros(n, out.dtype) if b is None else b[i * n : (i + 1) * n].copy()
        for p in range(indptr[i], indptr[i + 1]):
            subtract_block_product(data[p], X[indices[p]], r)
        out[i * n : (i + 1) * n] = -r if b is None else r


def bsr_accumulate(rows, indptr, indices, data, x, out, subtract):
    """out_rows[i] += (A x)_i, or -= where `subtract`, for each block row i of A; no other row of out changes.

    rows : block rows of out, each once, one for each of A's.  x : (columns n,).  out : (m n,). Blocks in the order of
    storage.
    """
    n = data.shape[1]
    X, OUT = x.reshape(-1, n), out.reshape(-1, n)
    for i in range(indptr.size - 1):
        r = OUT[rows[i]].copy() if subtract else -OUT[rows[i]]
        for p in range(indptr[i], indptr[i + 1]):
            subtract_block_product(data[p], X[indices[p]], r)
        OUT[rows[i]] = r if subtract else -r


def bsr_ilu0_factor(indptr, indices, diag, lu, pivoting):
    """lu (nb, n, n), at first the blocks of A, receives those of the factors: (L U)_ij = A_ij where A stores a block.

    Below the diagonal stand the blocks of L, whose diagonal blocks are ones, above it those of U, and on it the
    inverses of U's diagonal blocks. Row by row: L_ik = A_ik U_kk^-1, then A_ij -= L_ik U_kj where row i stores block j,
    k and j ascending; then U_ii is inverted by `gauss_jordan`.
    Returns the first block row with a pivot that is zero or not finite, or with such a block, or -1.
    """
    first = -1
    for i in range(diag.size):
        place = {int(indices[p]): p for p in range(indptr[i], indptr[i + 1])}
        for p in range(indptr[i], diag[i]):
            k = indices[p]
            lu[p] = product(lu[p], lu[diag[k]])
            for q in range(diag[k] + 1, indptr[k + 1]):
                target = place.get(int(indices[q]))
                if target is not None:
                    subtract_product(lu[p], lu[q], lu[target])
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
    """out_i = B_i x_i, B_i^T x_i or B_i^H x_i for blocks (m, n, n); x and out (m n,) or (m n, k), not the same."""
    n = blocks.shape[1]
    if x.ndim == 2:
        for c in range(x.shape[1]):
            blocks_times(blocks, x[:, c], out[:, c], trans)
        return
    for i in range(blocks.shape[0]):
        B = blocks[i] if trans == "N" else blocks[i].T if trans == "T" else blocks[i].conj().T
        y = np.zeros(n, out.dtype)
        subtract_block_product(B, x[i * n : (i + 1) * n], y)
        out[i * n : (i + 1) * n] = -y
