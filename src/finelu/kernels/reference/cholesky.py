"""A complete L D L^H or L D M^H of a sparse matrix without pivoting, and the solves with it. The specification.

Source: T. A. Davis: Direct methods for sparse linear systems, 2006, chapter 4 (the elimination tree and the rows of L).
"""

from __future__ import annotations

import numpy as np


class Cholesky:
    """L D L^H = W A W in an order of the rows, for a Hermitian A, CSR, and real weights W; L D M^H for any other A.

    indptr, indices : the pattern of A, which is symmetric.  order (n,) : row order[k] is eliminated k-th.
    parent (n,) : the elimination tree of A + A^T by rows `order`, or -1 for a root. The order is a postorder of it.
    """

    def __init__(self, indptr, indices, order, parent):
        self.indptr, self.indices, self.order, self.parent = indptr, indices, order, parent

    def factor(self, data, weights, opposite=None):
        """Factor W A W, with ones on the diagonal where a weight is 0; returns the pivots (n,), in A's order. Behind a
        pivot of 0 they mean nothing.

        data : of A, float64 or complex128, of which the entries before the diagonal in that order are read.
        opposite : the values of A^H in the same pattern, of which the same entries are read; None for a Hermitian A,
            whose M is L and whose pivots are real.
        """
        n, hermitian = self.order.size, opposite is None
        dense, other = np.zeros((n, n), data.dtype), np.zeros((n, n), data.dtype)
        for i in range(n):
            for p in range(self.indptr[i], self.indptr[i + 1]):
                j = self.indices[p]
                dense[i, j] = weights[i] * data[p] * weights[j]
                other[i, j] = weights[i] * (data if hermitian else opposite)[p] * weights[j]
            dense[i, i] += weights[i] == 0
        dense, other = (v[np.ix_(self.order, self.order)] for v in (dense, other))
        self.L, self.M, self.weights = np.eye(n, dtype=data.dtype), np.eye(n, dtype=data.dtype), weights
        self.d = d = np.zeros(n, np.float64 if hermitian else data.dtype)
        for i in range(n):
            for j in range(i):
                left = dense[i, j] - (self.L[i, :j] * d[:j]) @ self.M[j, :j].conj()
                below = other[i, j] - (self.M[i, :j] * d[:j].conj()) @ self.L[j, :j].conj()
                self.L[i, j] = left / d[j] if d[j] != 0 else left
                self.M[i, j] = below / d[j].conj() if d[j] != 0 else below
            pivot = dense[i, i] - (self.L[i, :i] * d[:i]) @ self.M[i, :i].conj()
            d[i] = pivot.real if hermitian else pivot
        pivots = np.empty_like(d)
        pivots[self.order] = d
        return pivots

    def solve(self, g, out, adjoint=False):
        """out = W (W A W)^-1 W g, for g (n,) or (n, k) and such an `out`, or with W A^H W."""
        first, second, d = (self.M, self.L, self.d.conj()) if adjoint else (self.L, self.M, self.d)
        weights, d = (v.reshape(-1, *[1] * (g.ndim - 1)) for v in (self.weights, d))
        x = np.linalg.solve(first, (weights * g)[self.order]) / d
        out[self.order] = weights[self.order] * np.linalg.solve(second.conj().T, x)
