"""Products of a matrix with vectors, and residuals. The specification."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from finelu.kernels.operands import CSR
from finelu.kernels.reference.vectors import dot


class Product:
    """y = A x for a square sparse A by rows and x (n,) or (n, k) of its dtype. The terms of a row are added in their
    order; with several columns on a GPU in an order that depends on k.

    out : where y goes, a new array if None.
    """

    def __init__(self, S):
        self.indptr, self.indices, self.data = S.indptr, S.indices, S.data

    def __call__(self, x, out=None):
        y = np.empty(x.shape, self.data.dtype) if out is None else out
        y[:] = 0
        for i in range(x.shape[0]):
            for p in range(self.indptr[i], self.indptr[i + 1]):
                y[i] += self.data[p] * x[self.indices[p]]
        return y

    def with_dot(self, x, y, total):
        """A x, and total[0] = y^H A x, in one pass."""
        product = self(x)
        dot(y, product, total)
        return product


def residual(indptr, indices, data, x, b, factor, r, bound, eps=None):
    """r = b - factor A x, and bound_i = (k_i + 1) eps (factor |A| |x| + |b|)_i for the k_i entries of row i.
    eps : None for that of the dtype; 1 gives bound in units of eps, so that it cannot underflow by it.

    r (n,) and b in the dtype of data and x, bound (n,) in its real one; factor is a power of two. bound limits the
    rounding error of r (Higham 2002, section 3.5). |a| is |Re a| + |Im a|.
    """

    def size(v):
        return abs(v.real) + abs(v.imag)

    eps = np.finfo(bound.dtype).eps if eps is None else eps
    for i in range(r.size):
        row = range(indptr[i], indptr[i + 1])
        r[i] = b[i] - factor * sum((data[p] * x[indices[p]] for p in row), start=r.dtype.type(0))
        sizes = sum(size(data[p]) * size(x[indices[p]]) for p in row)
        bound[i] = (len(row) + 1) * eps * (factor * sizes + size(b[i]))


def residual_twice(indptr, indices, data, x, b, factor, r):
    """r = b - factor A x, as if added up in twice the precision of float64 (in float64 for single precision) and then
    rounded. Here it is added up exactly. factor is a power of two."""

    def product(a, b):
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    def exact(v):
        return Fraction(float(v.real)), Fraction(float(v.imag))

    for i in range(r.size):
        parts = list(exact(b[i]))
        for p in range(indptr[i], indptr[i + 1]):
            terms = product(exact(data[p]), exact(x[indices[p]]))
            parts = [part - Fraction(factor) * term for part, term in zip(parts, terms)]
        r[i] = float(parts[0]) if r.dtype.kind == "f" else complex(*map(float, parts))


def subtract_product(M, x, y=None):
    """y - M x, or M x where y is None. M : a sparse matrix, or a CSR."""
    product = (M.tosparse() if isinstance(M, CSR) else M).toarray() @ x
    return product if y is None else y - product


def magnitudes_of_terms(indptr, bound, factor):
    """The sum of the magnitudes of the terms of each row, (n,) float64, for the `bound` of `residual`, which counts the
    k + 1 terms of a row, with eps = 1 / factor."""
    return np.array([v / (b - a + 1) * factor for v, a, b in zip(bound, indptr, indptr[1:])], np.float64)


def dense_product(matrix, x):
    """matrix x, matrix (n, n)."""
    return matrix @ x
