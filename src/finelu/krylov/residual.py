"""b - A x with a norm that is reliable in spite of rounding: the basis of every claim of convergence."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu, to_host
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import checked_csr
from finelu.matrix.batch import Batch

PROBES = 2  # products that show how large the terms of a row of A x are
BELOW = 1000  # times eps^2 of double precision and ||b||: what is smaller is 0, as a tolerance of 0 asks for
CHUNK = 256  # rows of a dense matrix that are looked at together
UNEVEN = 1e4  # times by which rows of A differ in size, from which on one norm of b - A x does not do justice to all
MANY = 1024.0  # a power of two about as large as a row has entries
OPERATOR = 4  # roundings of the terms of a product that is known by its results only
LONGER = 100.0  # times by which A may lengthen a vector more than it has lengthened those of the iterations


class Measures:
    """Norms of vectors, for subclasses that have the vectors' device as `xp` and `kernels`."""

    xp: Any
    decides: Any  # numpy or cupy: the module whose arrays receive the norms
    kernels: Any

    def size(self, v: Any) -> float:
        """||v||_2 on the host, which waits for the device."""
        return self.sizes(v)[0]

    def sizes(self, *vectors: Any) -> list[float]:
        """||v||_2 of vectors of one precision, with one wait for all."""
        out = self.decides.zeros(len(vectors), vectors[0].real.dtype)
        for k, v in enumerate(vectors):
            self.kernels.vectors.norm(v, out[k : k + 1])
        found: list[float] = out.tolist()
        return found


class Residual(Measures):
    """`residual(b, x, tolerance)` for one A and vectors of one dtype.

    It returns b - A x and its 2-norm. The rounding of row i, with k_i entries, is at most
    (k_i + 1) eps (|A| |x| + |b|)_i (Higham 2002, section 3.5). If the norm of these bounds exceeds `tolerance` and a
    hundredth of the result, both are formed again in twice the precision. If the rounding of that may also exceed
    `tolerance`, the returned norm is at least the bound of that rounding. So a norm below `tolerance` holds for A, b
    and x as they are stored.
    If no entries of A are known (a LinearOperator, a function), the returned norm is at least an estimate of the
    rounding: the elements of A (g x), g random, are as large as their terms in the mean square. The estimate is at most
    ||A|| ||x||. So the two products that it takes are spared where `lengthening` of A shows that rounding is far below
    the tolerance. After a single iteration that has seen multiples of x only, so that then a large rounding shows by
    its part in b - A x itself.

    A : the operator; its `matrix`, if its entries are accessible, is a CSR of this dtype, a dense array, or an object
        with `tocsr`, `bounds` and perhaps `norm_bound`.
    like : a vector of this dtype, on the device of all others.
    system : a `System` whose kernels are used, and over whose processes the rows are spread: all of them then call
        this.

    Attributes after a call:
    noise : the norm of the possible rounding of the result, before it was formed again; 0 if it was not computed.
    bound (n,) : the possible rounding of each row; None if no entries of A were read.

    Cost: one pass over the entries; if the result is formed again, another, four times as expensive.
    """

    def __init__(self, A: Any, like: Any, system: Any = None):
        self.matrix, self.product, self.dtype, self.factor = A.matrix, A.__matmul__, like.dtype, A.factor
        self.lengthening = A.lengthening
        self._entries: CSR | None = A.matrix if isinstance(A.matrix, CSR) else None
        self.noise = 0.0
        self.bound: Any = None
        if system is not None:
            self.xp, self.decides, self.kernels, self.comm = system.xp, system.decides, system.kernels, system.comm
        else:
            self.xp = self.decides = namespace(like)
            self.kernels, self.comm = kernels_for(like), None

    def __call__(self, b: Any, x: Any, tolerance: float, formed: Any = None) -> tuple[Any, float]:
        """formed : b - A x as the operator forms it, if the caller has it; None: it is formed here."""
        self.noise, self.bound = 0.0, None
        b, x = self.xp.ascontiguousarray(b), self.xp.ascontiguousarray(x)
        if self.matrix is None:
            return self._by_products(b, x, tolerance, b - self.product(x) if formed is None else formed)
        if isinstance(self.matrix, CSR) or not self._harmless(b, x, tolerance):
            return self._by_entries(b, x, tolerance)
        r = b - self.product(x)
        return r, self.size(r)

    def magnitudes(self, b: Any, x: Any) -> Any:
        """|A| |x| + |b| for each row; None if no entries of A are known."""
        if self.matrix is None:
            return None
        terms, _ = self._rounding(b, x, eps=1 / MANY)  # with the true eps this may under- or overflow
        A = self._entries or self._by_rows()
        return self.kernels.products.magnitudes_of_terms(A.indptr, terms, MANY)

    def twice(self, b: Any, x: Any) -> tuple[Any, float]:
        """b - A x, formed in twice the precision and rounded, and a factor.

        The remaining error of each row is at most the factor times `bound`: (k + 1)^2 eps^2 (|A| |x| + |b|), with the
        eps of double precision.
        """
        b, x = self.xp.ascontiguousarray(b), self.xp.ascontiguousarray(x)
        A = self._entries or self._by_rows()
        r = self.xp.empty_like(b)
        values = x if self.comm is None else self.matrix.with_ghosts(x)
        self.kernels.products.residual_twice(A.indptr, A.indices, A.data, values, b, self.factor, r)
        most = int((A.indptr[1:] - A.indptr[:-1]).max()) + 1
        most = most if self.comm is None else max(self.comm.allgather(most))
        return r, most * float(np.finfo(np.float64).eps) ** 2 / float(np.finfo(b.dtype).eps)

    def rounding(self, b: Any, x: Any) -> float:
        """The norm of one rounding of |A| |x| + |b| in each row."""
        return float(np.finfo(b.dtype).eps) * self.size(self.magnitudes(b, x))

    def _by_entries(self, b: Any, x: Any, tolerance: float) -> tuple[Any, float]:
        bound, r = self._rounding(b, x)
        self.bound = bound
        size, self.noise = self.sizes(r, bound)
        if self.noise <= max(tolerance, size / 100):
            return r, size
        accurate, part = self.twice(b, x)
        size, rest = self.size(accurate), part * self.noise
        square = float(np.finfo(np.float64).eps) ** 2
        if not math.isfinite(size):
            return accurate, math.inf
        return accurate, size if rest <= max(tolerance, BELOW * square * self.size(b)) else max(size, rest)

    def _rounding(self, b: Any, x: Any, eps: float | None = None) -> tuple[Any, Any]:
        A = self._entries or self._by_rows()
        b, x = self.xp.ascontiguousarray(b), self.xp.ascontiguousarray(x)
        r, bound = self.xp.empty_like(b), self.xp.empty(b.size, b.real.dtype)
        x = x if self.comm is None else self.matrix.with_ghosts(x)
        self.kernels.products.residual(A.indptr, A.indices, A.data, x, b, self.factor, r, bound, eps)
        return bound, r

    def _by_rows(self) -> CSR:
        """The entries of a matrix that is no CSR: found once, when they are first needed."""
        if self.comm is None:
            self._entries = checked_csr(self.matrix, diagonal=False, dtype=self.dtype)
        else:
            A = self.matrix.astype(self.dtype).extended()
            self._entries = CSR(A.indptr, A.indices, A.data, None)
        return self._entries

    def _harmless(self, b: Any, x: Any, tolerance: float) -> bool:
        """Whether norms alone show that rounding stays below the tolerance, so that no pass over A is needed."""
        of_x, of_b = self.sizes(x, b)
        eps = 2 * float(np.finfo(b.dtype).eps)  # twice for the parts of complex numbers

        def stays_below(entries: int, size: float) -> bool:  # size : an upper bound of || |A| ||_2
            return bool((entries + 1) * eps * (size * self.factor * of_x + of_b) <= tolerance)

        if self._quick_bound is not None and stays_below(*self._quick_bound):
            return True
        entries, rows, columns = self._bounds
        return stays_below(entries, math.sqrt(rows) * math.sqrt(columns))

    @cached_property
    def _quick_bound(self) -> tuple[int, float] | None:
        """The most entries of a row, and a bound of || |A| ||_2 that takes less time than `_bounds`, and is mostly
        larger. It is formed wherever the blocks are: all processes must make the same collective calls."""
        if not hasattr(self.matrix, "norm_bound"):
            return None
        return self.matrix.most_in_row, self.matrix.norm_bound()

    @cached_property
    def _bounds(self) -> tuple[int, float, float]:
        """The most entries of a row, and upper bounds of the sums of magnitudes over a row and over a column."""
        if hasattr(self.matrix, "bounds"):
            entries, row, column = self.matrix.bounds()
            return entries, row, column
        A = self.matrix
        rows, columns = 0.0, self.xp.zeros(A.shape[1], A.real.dtype)
        for i in range(0, A.shape[0], CHUNK):
            sizes = abs(A[i : i + CHUNK])
            rows = max(rows, float(sizes.sum(axis=1).max()))
            columns += sizes.sum(axis=0)
        return A.shape[1], rows, float(columns.max())

    def _by_products(self, b: Any, x: Any, tolerance: float, r: Any) -> tuple[Any, float]:
        size, part = self.size(r), OPERATOR * float(np.finfo(b.dtype).eps)
        if size > tolerance or self._is_short(b, x, tolerance / part):
            return r, size
        random = np.random.default_rng(0)
        probes = [self.xp.asarray(random.standard_normal(x.size).astype(b.real.dtype)) for _ in range(PROBES)]
        terms = sum(self.size(self.product(x * probe)) for probe in probes)  # NaN stays NaN
        noise = part * (terms + self.size(b))
        self.noise = noise if math.isfinite(noise) else math.inf
        return r, size if self.noise <= tolerance else max(size, self.noise)

    def _is_short(self, b: Any, x: Any, limit: float) -> bool:
        """Whether the products so far show that the terms of A x and b stay below the limit, with much to spare."""
        if self.lengthening is None:
            return False
        of_x, of_b = self.sizes(x, b)
        return bool(LONGER * PROBES * self.factor * self.lengthening.most * of_x + of_b <= limit)


def largest(v: Any) -> float:
    """The largest magnitude in an array, on the host; 0 for an empty one."""
    if not v.size:
        return 0.0
    return kernels_for(v).vectors.largest(v) if on_gpu(v) else float(abs(v).max())


def terms_are_even(bound: Any, norm: float) -> bool:
    """Whether the terms of the rows differ little, judged by the bounds of their rounding; False if these are unknown,
    or so small that they have underflowed.

    norm : the norm of the bounds, which is no less than the largest.
    """
    if bound is None:
        return False
    least = UNEVEN * float(bound.min())
    return least >= np.finfo(bound.dtype).tiny and (least >= norm or least >= float(bound.max()))


def batch_norms(batch: Batch, b: Any, x: Any, norms: Any, roundings: Any, tolerance: Any) -> Any:
    """||b - A x|| (k,) of the systems of a batch, on the host, for claims that norms <= tolerance.

    norms, roundings (k,) : as formed in the precision of x, with bounds of their rounding. Where rounding may hide that
    a norm exceeds its tolerance, it is formed again in twice the precision; a bound of what rounding still hides is
    added where it decides.
    b (k, n), or (1, n); x (k, n), on the device of the batch. Cost: of such systems ten products with A.
    """
    doubtful = np.flatnonzero((norms <= tolerance) & ~(norms + roundings <= tolerance))
    if doubtful.size:
        xp = namespace(x)
        again = xp.empty(doubtful.size, np.float64)
        kernels = kernels_for(x).batch
        kernels.residual_twice(batch.pattern, batch.values, b, x, xp.asarray(doubtful), again)
        found = to_host(again)
        bounds = found + float(np.finfo(np.float64).eps) * roundings[doubtful]
        norms[doubtful] = np.where(bounds <= tolerance[doubtful], found, bounds)
    return norms
