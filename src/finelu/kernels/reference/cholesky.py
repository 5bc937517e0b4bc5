"""A complete L D L^H of a sparse matrix without pivoting, and the solves with it. The specification.

Source: T. A. Davis: Direct methods for sparse linear systems, 2006, chapter 4 (the elimination tree and the rows of L).
"""

from __future__ import annotations

import numpy as np


class Cholesky:
    """L D L^H = W A W in an order of the rows, for a Hermitian A, CSR, and real weights W.

    indptr, indices : the pattern of A.  order (n,) : row order[k] is eliminated k-th.
    parent (n,) : the elimination tree of A + A^T by rows `order`, or -1 for a root. The order is a postorder of it.
    """

    def __init__(self, indptr, indices, order, parent):
        self.indptr, self.indices, self.order, self.parent = indptr, indices, order, parent

    def factor(self, data, weights):
        """Factor W A W, with ones on the diagonal where a weight is 0; returns the pivots (n,), in A's order. Behind a
        pivot of 0 they mean nothing.

        data : of A, float64 or complex128, of which the entries before the diagonal in that order are read.
        """
        n = self.order.size
        dense = np.zeros((n, n), data.dtype)
        for i in range(n):
            for p in range(self.indptr[i], self.indptr[i + 1]):
                dense[i, self.indices[p]] = weights[i] * data[p] * weights[self.indices[p]]
            dense[i, i] += weights[i] == 0
        dense = dense[np.ix_(self.order, self.order)]
        self.L, self.d, self.weights = np.eye(n, dtype=data.dtype), np.zeros(n), weights
        for i in range(n):
            for j in range(i):
                left = dense[i, j] - (self.L[i, :j] * self.d[:j]) @ self.L[j, :j].conj()
                self.L[i, j] = left / self.d[j] if self.d[j] != 0 else left
            self.d[i] = dense[i, i].real - (abs(self.L[i, :i]) ** 2) @ self.d[:i]
        pivots = np.empty(n)
        pivots[self.order] = self.d
        return pivots

    def solve(self, g, out):
        """out = W (W A W)^-1 W g, for g (n,) or (n, k) and such an `out`."""
        weights, d = (v.reshape(-1, *[1] * (g.ndim - 1)) for v in (self.weights, self.d))
        x = np.linalg.solve(self.L, (weights * g)[self.order]) / d
        out[self.order] = weights[self.order] * np.linalg.solve(self.L.conj().T, x)
