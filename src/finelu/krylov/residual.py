"""b - A x with a norm that rounding cannot have made: what every claim of convergence stands on."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from finelu.kernels import kernels_for, namespace
from finelu.kernels.csr import CSR
from finelu.matrix import as_csr, norm

PROBES = 2  # products that tell how large the terms of a row of A x are
OPERATOR = 4  # roundings of the terms of a product that is known by its results only


class Residual:
    """`residual(b, x, tolerance)` for an A that `as_operator` has made into an Operator, and vectors of one dtype.

    Gives b - A x and its 2-norm. Where rounding alone, at most (k_i + 1) eps (|A| |x| + |b|)_i in a row of k_i entries
    (Higham 2002, section 3.5), is a vector longer than `tolerance`, and more than a hundredth of the result, both are
    formed again in twice the precision. So a norm below `tolerance` is one of A, b and x as they are stored.
    Where no entries of A are known (a LinearOperator, a function) the norm is no less than what rounding may bring,
    estimated from two more products: the elements of A (g x), g random, are as large as their terms in the mean square.
    noise : what rounding may have put into the last result, before it was formed again; 0 where that was not asked.
    Cost: one pass over the entries; another, four times as expensive, where it is formed again.
    """

    def __init__(self, operator, dtype):
        self.operator, self.dtype = operator, dtype
        self.noise = 0.0

    def __call__(self, b, x, tolerance: float):
        self.noise = 0.0
        matrix, xp = self.operator.matrix, namespace(b)
        b, x = xp.ascontiguousarray(b), xp.ascontiguousarray(x)
        if matrix is None:
            return self._by_products(b, x, tolerance)
        if isinstance(matrix, CSR) or not self._harmless(matrix, b, x, tolerance):
            return self._by_entries(b, x, tolerance)
        r = b - self.operator @ x
        return r, norm(r)

    def magnitudes(self, b, x):
        """|A| |x| + |b| for each row; None where no entries of A are known."""
        if self.operator.matrix is None:
            return None
        A, xp = self._entries, namespace(b)
        bound, _ = self._rounding(b, x)
        return bound / ((A.indptr[1:] - A.indptr[:-1] + 1) * float(xp.finfo(bound.dtype).eps))

    def _by_entries(self, b, x, tolerance: float):
        bound, r = self._rounding(b, x)
        size, self.noise = norm(r), norm(bound)
        if self.noise <= max(tolerance, size / 100):
            return r, size
        A = self._entries
        accurate = namespace(b).empty_like(r)
        kernels_for(b).residual_twice(A.indptr, A.indices, A.data, x, b, self.operator.factor, accurate)
        size = norm(accurate)
        return accurate, size if math.isfinite(size) else math.inf

    def _rounding(self, b, x):
        A, xp = self._entries, namespace(b)
        r, bound = xp.empty_like(b), xp.empty(b.size, b.real.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            kernels_for(b).residual(A.indptr, A.indices, A.data, x, b, self.operator.factor, r, bound)
        return bound, r

    @cached_property
    def _entries(self) -> CSR:
        matrix = self.operator.matrix
        return matrix if isinstance(matrix, CSR) else as_csr(matrix, diagonal=False, dtype=self.dtype)

    def _harmless(self, matrix, b, x, tolerance: float) -> bool:
        """Whether norms alone show that rounding stays below the tolerance, so that A is not needed entry by entry."""
        eps = 2 * float(np.finfo(b.dtype).eps)  # twice for the parts of complex numbers
        return (b.size + 1) * eps * (self._size_of_matrix * norm(x) + norm(b)) <= tolerance

    @cached_property
    def _size_of_matrix(self) -> float:
        """The Frobenius norm of a dense matrix or of blocks."""
        matrix = self.operator.matrix
        values = matrix.data if hasattr(matrix, "tocsr") else matrix
        return norm(values.reshape(-1)) * self.operator.factor

    def _by_products(self, b, x, tolerance: float):
        r = b - self.operator @ x
        size = norm(r)
        if size > tolerance:
            return r, size
        random = np.random.default_rng(0)
        probes = [namespace(b).asarray(random.standard_normal(b.size).astype(b.real.dtype)) for _ in range(PROBES)]
        terms = max(norm(self.operator @ (x * probe)) for probe in probes)
        self.noise = OPERATOR * float(np.finfo(b.dtype).eps) * (terms + norm(b))
        return r, size if self.noise <= tolerance else max(size, self.noise)
