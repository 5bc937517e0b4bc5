"""Scaling of entries by vectors over rows and columns, and by pivots. The specification."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def scale(A, out, below, above):
    """out (nnz,) = a_ij left[i] right[j]; (left, right) = below where j < i, and above elsewhere.

    The vectors are real, (n,); None: a vector of ones. out may be A's own values. Returns out.
    """
    for i in range(A.n):
        for p in range(A.indptr[i], A.indptr[i + 1]):
            left, right = below if A.indices[p] < i else above
            value = A.data[p] * (1 if left is None else left[i])
            out[p] = value * (1 if right is None else right[A.indices[p]])
    return out


def divide_by_pivots(F, out, refused):
    """Below the diagonal out_ij / out_jj; only the pattern of F is read. An entry stays unchanged if the quotient is
    not finite, and is counted in `refused` (2,), see `sweep`. Returns out."""
    for i in range(F.n):
        for p in range(F.indptr[i], F.diag[i]):
            pivot = F.diag[F.indices[p]]
            with np.errstate(all="ignore"):
                new = out[p] / out[pivot]
            if np.isfinite(new):
                out[p] = new
            else:
                refused[0] += 1
                refused[1] = min(refused[1], i)
    return out


def pivots(A, cholesky):
    """d (n,), d_i = 1 / sqrt(|a_ii|) or 1 if that is 0; the first row whose pivot is not finite or zero (for
    Cholesky, not positive), or -1; and whether all pivots are positive real numbers."""
    values = [A.data[p] for p in A.diag]
    d = [1 / np.sqrt(abs(v)) if v != 0 else 1 for v in values]
    bad = [i for i, v in enumerate(values) if not np.isfinite(v) or (not v.real > 0 if cholesky else v == 0)]
    plain = all(v.real > 0 and v.imag == 0 for v in values)
    return np.array(d, A.data.real.dtype), bad[0] if bad else -1, plain


def first_unusable(F):
    """The first row with a value that is not finite or a zero pivot, or -1."""
    for i in range(F.n):
        if not np.isfinite(F.data[F.indptr[i] : F.indptr[i + 1]]).all() or F.data[F.diag[i]] == 0:
            return i
    return -1


def dropping_weights(F, diagonal, cholesky):
    """(roots, 1 / weights, 1 / roots), each (n,) real: roots_i = sqrt|f_ii|, for Cholesky |f_ii|, and
    weights_i = sqrt(roots_i max(sqrt|d_i|, roots_i)) for the diagonal d (n,)."""
    pivots = np.array([abs(F.data[p]) for p in F.diag])
    roots = pivots if cholesky else np.sqrt(pivots)
    weights = np.sqrt(roots * np.maximum(np.sqrt(abs(diagonal)), roots))
    return roots, 1 / weights, 1 / roots


def row_norms(indptr, data):
    """The 2-norm of each row (n,) float64, without overflow or underflow on the way. No row is empty."""
    norms = []
    for begin, end in pairwise(indptr):
        size = np.abs(data[begin:end].astype(np.result_type(data.dtype, np.float64)))
        scale = max(size.max(), np.finfo(np.float64).tiny)
        norms.append(scale * np.sqrt(((size / scale) ** 2).sum()))
    return np.array(norms)


def definite_scale(A, out):
    """Whether A, whose diagonal is full, may be positive definite: so are all matrices of two of its rows and columns,
    up to rounding. out (n,), real: powers of two that bring the diagonal to between 1/2 and 2 from both sides."""
    d = A.data[A.diag]
    if (d.real <= 0).any() or (d.imag != 0).any():
        return False
    out[:] = np.ldexp(np.ones_like(out), -(np.frexp(d.real)[1] // 2))
    root = np.sqrt(d.real)
    limit = 1 + 8 * np.finfo(out.dtype).eps
    return all(
        abs(A.data[p]) <= root[i] * root[A.indices[p]] * limit
        for i in range(A.n)
        for p in range(A.indptr[i], A.indptr[i + 1])
    )
