"""The answer of `solve` by NumPy and SciPy alone, while finelu's kernels are compiled in the background.

Complete factors by SciPy's SuperLU, and steps of refinement, where a bound of their fill shows that they are cheap;
else conjugate gradients, for a Hermitian A with a positive diagonal. x has to pass the same test as that of any rung:
`Criterion` judges it, with NumPy's forms of the kernels that it calls.
"""

from __future__ import annotations

import math
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee, structural_rank

from finelu import deadline
from finelu.auto import background
from finelu.auto.attempt import REFINEMENTS
from finelu.auto.choose import SYMMETRIC_PATTERN
from finelu.auto.cost import COLUMN_FILL, RATES, SECONDS, USABLE
from finelu.auto.ladder import TINY
from finelu.auto.precision import precise
from finelu.compiling import now
from finelu.device import free_memory, on_gpu
from finelu.errors import FineluError
from finelu.krylov.criterion import Criterion
from finelu.krylov.residual import Residual
from finelu.matrix import CSR
from finelu.matrix.vectors import NATIVE, dense_numbers, native
from finelu.ordering import Fill
from finelu.preconditioners import Jacobi, SparseLU
from finelu.preconditioners.direct.analysis import COLAMD, MMD, SHORT
from finelu.preconditioners.direct.library import PIVOT
from finelu.preconditioners.direct.superlu import SuperLU
from finelu.result import Attempt, Solution, Status
from finelu.threads import one_blas_thread

MOST_SECONDS = 3.0  # that this answer is expected to take at most: kernels take more than twice as long to compile
LEAST_FILL = 10.0  # entries of L and U for one of A, as a rule: a bound that would be too large is not looked for
LEAST_ITERATIONS = 50  # of conjugate gradients that are worth beginning
DENSE = 10.0  # times the square root of the number of rows: a row with more entries is ordered last
MOST_SQUARES = 1e7  # products that A^H A may take, whose pattern bounds the fill where rows are exchanged
SPLIT = 2.0**27 + 1  # times a number of 53 digits, to divide it into two with 26 each
CHEAP = "its cost, bounded before, is small"
DEFINITE = "A may be positive definite, and complete factors may be costly"
MEANWHILE = "kernels were not compiled yet: SciPy gave this answer, and a process in the background compiles them"
COSTLY = f"no answer by SciPy was expected within {MOST_SECONDS:g} s, so this call compiled its kernels"
NO_PROCESS = "no process could be begun to compile kernels in the background, so this call compiled its own"
NO_ANSWER = "SciPy found no answer that passes the test, so this call compiled its kernels"


class FirstAnswer:
    """The answer for one call of `solve` with the default recipe and method, on the host. It is false if there is none:
    if kernels cannot be compiled in the background, if the answer is not expected to be cheap, or where A or b may be
    faulty, which the usual way reports.

    Calls no kernel. Cost: a reverse Cuthill-McKee ordering, and some passes over the entries.
    given : A and b, as `solve` takes them.
    criterion : see `Criterion`.
    memory : bytes for the factors, None for a part of the free memory.
    end : a time of `compiling.now`.

    Attributes:
    b : (n,) or (n, k), in the dtype of x.
    recipe : that of the answer, None without any.
    refused : why the call has to compile its kernels, in words; "" if it does not, or was never asked to do otherwise.
    """

    def __init__(self, given: tuple[Any, Any], rtol: float, atol: float, criterion: str, memory: Any, end: float):
        self.given, self.rtol, self.atol, self.criterion = given, rtol, atol, criterion
        self.memory, self.end = memory, end
        self.recipe: Any = None
        self.refused = ""
        self._A: Any = None
        self.b: Any = None
        self._most = 0  # iterations of conjugate gradients
        with suppress(FineluError, MemoryError, ValueError):  # ValueError: arrays that are no matrix
            if (system := _taken(*given)) is not None:
                A, self.b = precise(_csr(system[0]), system[1], rtol)
                self._A = A.tosparse().astype(self.b.dtype, copy=False)
        if self._A is not None and background.possible(self._key):
            with suppress(MemoryError):
                self.recipe = self._chosen()
            self.refused = "" if self else COSTLY

    def __bool__(self) -> bool:
        return self.recipe is not None

    def solve(self) -> list[Solution] | None:
        """A Solution for each column of b; None if one does not pass its test. Meanwhile kernels are compiled."""
        A, b = self.given
        call = {"A": sp.csr_array(A.tosparse() if isinstance(A, CSR) else A), "b": np.asarray(b), "rtol": self.rtol}
        call |= {"atol": self.atol, "criterion": self.criterion, "memory_limit": self.memory}
        if not background.begin(self._key, call):
            self.refused = NO_PROCESS
            return None
        found = []
        try:
            with deadline.limited(self.end), one_blas_thread():
                start = now()
                F = self._factors() if isinstance(self.recipe, SparseLU) else None
                made = now() - start
                for column in self.b.reshape(self._A.shape[0], -1).T:
                    found.append(self._solve(np.ascontiguousarray(column), F, made))
                    made = 0.0
        except (FineluError, MemoryError):
            found = [None]
        solutions = [solution for solution in found if solution is not None]
        if len(solutions) == len(found):
            return solutions
        background.end(self._key)
        self.refused = NO_ANSWER
        return None

    @property
    def _key(self) -> Any:
        A = self.given[0]
        return self._A.shape, self._A.nnz, str(A.dtype), str(self.b.dtype), self.b.ndim, self.rtol, self.criterion

    def _chosen(self) -> SparseLU | Jacobi | None:
        """The recipe of an answer that is expected to be cheap."""
        A, n, seconds = self._A, self._A.shape[0], min(MOST_SECONDS, (self.end - now()) / 2)
        row, entry, flop = SECONDS["superlu"]
        diagonal, columns = A.diagonal(), self.b.size // n
        if LEAST_FILL * (row * n + entry * A.nnz) <= seconds:
            pattern, longest = _pattern(A), int(np.diff(A.indptr).max())
            paired = pattern.multiply(pattern.T).nnz >= SYMMETRIC_PATTERN * A.nnz
            ordering, fill = (MMD if paired and bool(diagonal.all()) else COLAMD), Fill(0, math.inf)
            if ordering == MMD:
                fill = fill_bound(pattern)
            elif float((np.diff(A.indptr).astype(float) ** 2).sum()) <= MOST_SQUARES:
                fill = fill_bound(pattern.T @ pattern)  # whichever rows are exchanged: George & Ng 1985
            expected = row * n + entry * fill.nnz + flop * fill.flops
            sparse = not paired and A.nnz <= SHORT * n and longest <= DENSE * math.sqrt(n)
            if sparse and RATES.columnwise * A.nnz < expected:
                expected, fill = RATES.columnwise * A.nnz, Fill(COLUMN_FILL * A.nnz, 0.0)
            expected += columns * (RATES.overhead + RATES.cg * fill.nnz)
            memory = USABLE * free_memory(A.data) if self.memory is None else self.memory
            if expected <= seconds and fill.nnz * (A.dtype.itemsize + A.indices.itemsize) <= memory:
                return SparseLU(ordering=ordering, backend="superlu")
        self._most = int(seconds / columns / (RATES.overhead + RATES.cg * (A.nnz + n)))
        worth = self._most >= LEAST_ITERATIONS and bool((diagonal.real > 0).all())
        return Jacobi() if worth and (A - A.conj().T).count_nonzero() == 0 else None

    def _factors(self) -> SuperLU:
        columns, singular = sp.csc_matrix(self._A), "A is singular"
        columns.eliminate_zeros()
        if not columns.diagonal().all() and structural_rank(columns) < columns.shape[0]:  # SuperLU fails for it
            raise FineluError(singular)
        if self.recipe.ordering == COLAMD:
            return SuperLU(columns, singular, permc_spec="COLAMD")
        symmetric: dict[str, Any] = {"options": {"SymmetricMode": True}, "diag_pivot_thresh": PIVOT}
        return SuperLU(columns, singular, permc_spec="MMD_AT_PLUS_A", **symmetric)

    def _solve(self, b: Any, F: SuperLU | None, made: float) -> Solution | None:
        """The solution for a column, None if it does not pass the test.

        F : factors; None for conjugate gradients.  made : their seconds.
        """
        A, check = self._A, Criterion(self.criterion, Residual(_Operator(_csr(self._A)), b, NUMPY), b)
        start, x, r = now(), np.zeros_like(b), b
        size = scale = euclidean(b)
        target, norms, steps = max(self.rtol * scale, self.atol), [scale], 0
        if not TINY <= scale < math.inf or target >= scale:
            return None
        while size > target and steps < REFINEMENTS:
            deadline.check()
            if F is not None:
                correction, of_step = F.solve(r, "N"), [0.0]
            else:
                rest, tolerance = check.correction(x, r, size, target) if steps else (r, target)
                correction, of_step = _conjugate_gradients(A, rest, tolerance / 2, self._most + 1 - len(norms))
            better, steps = x + correction, steps + 1
            rest, reached = check(b, better, target)
            if not reached <= size / 2 or not np.isfinite(better).all():
                return None
            x, r, size = better, rest, reached
            norms += [*of_step[:-1], reached]
        if size > target:
            return None
        norms[-1] = check.norm
        recipe, method, why = repr(self.recipe), *(("cg", DEFINITE) if F is None else ("refinement", CHEAP))
        attempt = Attempt(recipe, method, why, "solved", len(norms) - 1, made, now() - start, size / scale)
        seen = f"{A.shape[0]} rows, {A.nnz} entries", MEANWHILE, check.sentence()
        return Solution(
            x=x,
            status=Status.CONVERGED,
            iterations=len(norms) - 1,
            residual_norm=check.norm,
            history=np.array(norms),
            recurrence=np.array(norms),
            row_residual=check.rows if check.looks_at_rows else None,
            method=method,
            recipe=recipe,
            seen=tuple(text for text in seen if text),
            attempts=(attempt,),
        )


def euclidean(v: Any) -> float:
    """||v||_2, without a kernel."""
    return float(np.linalg.norm(v))


def fill_bound(pattern: sp.csr_array) -> Fill:
    """A bound of the fill of complete factors with this pattern and its transpose, by a good order of the rows.

    It is that of the reverse Cuthill-McKee order with dense rows last, where each row fills in from its first entry to
    the diagonal; minimum degree leaves less, as experience has it.
    """
    n, both = pattern.shape[0], (pattern + pattern.T).tocsr()
    short = np.flatnonzero(np.diff(both.indptr) <= max(DENSE * math.sqrt(n), SHORT))
    last = n - short.size
    inner = both[short][:, short].tocsr() if last else both
    order = reverse_cuthill_mckee(inner, symmetric_mode=True)
    place, first = np.empty(order.size, np.int64), np.arange(order.size)
    place[order] = np.arange(order.size)
    np.minimum.at(first, np.repeat(place, np.diff(inner.indptr)), place[inner.indices])
    width = (np.arange(order.size) - first + last).astype(float)
    entries, flops = 2 * width.sum() + n + float(last) ** 2, 2 * ((width + 1) ** 2).sum() + float(last) ** 3
    return Fill(int(entries), float(flops))


def _taken(A: Any, b: Any) -> tuple[sp.csr_array, Any] | None:
    """A, sorted and without duplicates, and b, in dtypes that kernels take, with finite numbers; None for others.

    Raises ValueError or MatrixError for what is no matrix or vector.
    """
    if isinstance(A, CSR):
        A = None if on_gpu(A.data) else A.tosparse()
    dense = type(A) in (np.ndarray, np.matrix) and A.ndim == 2
    if not (sp.issparse(A) or dense) or on_gpu(b):
        return None
    if hasattr(A, "check_format"):
        A = A.copy()  # the check may write to A
        A.check_format(full_check=True)
    b, n = dense_numbers(b, "b"), A.shape[0]
    if A.dtype.kind not in "biufc" or A.shape != (n, n) or b.ndim not in (1, 2) or b.shape[0] != n or not b.size:
        return None
    S = sp.csr_array(native(A))
    if S.dtype not in NATIVE:
        S = S.astype(np.complex128 if S.dtype.kind == "c" else np.float64)
    if b.dtype not in NATIVE:
        b = b.astype(np.complex128 if b.dtype.kind == "c" else np.float64)
    if not S.has_canonical_format:
        S = S.copy()
        S.sum_duplicates()
    finite = bool(np.isfinite(S.data).all()) and bool(np.isfinite(b).all())
    return (S, b) if finite and S.nnz else None


def _csr(A: sp.csr_array) -> CSR:
    """The matrix as classes of finelu take it; the places of its diagonal are not known."""
    return CSR(A.indptr, A.indices, A.data, np.full(A.shape[0], -1, A.indices.dtype))


def _pattern(A: sp.csr_array) -> sp.csr_array:
    return sp.csr_array((np.ones(A.nnz, np.int32), A.indices, A.indptr), shape=A.shape)


def _conjugate_gradients(A: sp.csr_array, b: Any, tolerance: float, most: int) -> tuple[Any, list[float]]:
    """x of A x = b after at most `most` iterations, and the norm of the residual after each.

    The diagonal of A is the preconditioner. Saad 2003, Algorithm 9.1.
    """
    inverse = 1 / A.diagonal().real
    x, r, norms = np.zeros_like(b), b.copy(), [math.inf]
    z = inverse * r
    p, rz = z.copy(), float(np.vdot(r, z).real)
    while norms[-1] > tolerance and len(norms) <= most:
        deadline.check()
        Ap = A @ p
        curvature = float(np.vdot(p, Ap).real)
        if not curvature > 0:  # A is not definite
            break
        alpha = x.real.dtype.type(rz / curvature)
        x += alpha * p
        r -= alpha * Ap
        z = inverse * r
        rz, before = float(np.vdot(r, z).real), rz
        p = z + x.real.dtype.type(rz / before) * p
        norms.append(euclidean(r))
    return x, norms[1:]


class _Operator:
    """A for `Residual`, which passes its arrays to kernels."""

    factor = 1.0

    def __init__(self, matrix: CSR):
        self.matrix = matrix

    def __matmul__(self, x: Any) -> Any:
        return self.matrix.tosparse() @ x


def _norm(v: Any, out: Any) -> None:
    out[0] = euclidean(v)


def _residual(
    indptr: Any, indices: Any, data: Any, x: Any, b: Any, factor: float, r: Any, bound: Any, eps: float | None = None
) -> None:
    """See kernels/reference/products.py."""

    def size(v: Any) -> Any:
        return abs(v) if v.dtype.kind == "f" else abs(v.real) + abs(v.imag)

    real, shape = bound.dtype.type, (b.size, b.size)
    eps, factor = real(np.finfo(real).eps if eps is None else eps), real(factor)
    r[:] = b - factor * (sp.csr_array((data, indices, indptr), shape=shape) @ x)
    sizes = sp.csr_array((size(data), indices, indptr), shape=shape) @ size(x)
    bound[:] = (np.diff(indptr) + 1).astype(real) * eps * (factor * sizes + size(b))


def _residual_twice(indptr: Any, indices: Any, data: Any, x: Any, b: Any, factor: float, r: Any) -> None:
    """See kernels/reference/products.py. Here it is added up exactly, too."""
    x = x[indices]
    if r.dtype.kind == "f":
        r[:] = factor * _exact_sums(indptr, b / factor, (-data, x))
        return
    r.real = factor * _exact_sums(indptr, b.real / factor, (-data.real, x.real), (data.imag, x.imag))
    r.imag = factor * _exact_sums(indptr, b.imag / factor, (-data.real, x.imag), (-data.imag, x.real))


def _magnitudes_of_terms(indptr: Any, bound: Any, factor: float) -> Any:
    """See kernels/reference/products.py."""
    return bound / (np.diff(indptr) + 1) * factor


def _exact_sums(indptr: Any, start: Any, *products: tuple[Any, Any]) -> Any:
    """start_i + the sum of the products of row i, rounded once; NaN for a row whose terms leave the range.

    products : of pairs of arrays (nnz,). The rounding error of a product is a number, too (Dekker 1971), and Python's
    fsum adds up without rounding.
    """
    terms = []
    for pair in products:
        a, b = (v.astype(np.float64) for v in pair)
        product, (high, low), (of_b, rest) = a * b, _halves(a), _halves(b)
        terms += [product.tolist(), (((high * of_b - product) + high * rest + low * of_b) + low * rest).tolist()]
    sums, places = np.full(start.size, np.nan), indptr.tolist()
    for i, first in enumerate(start.tolist()):
        row = [v for term in terms for v in term[places[i] : places[i + 1]]]
        with suppress(OverflowError):
            sums[i] = math.fsum([first, *row]) if all(map(math.isfinite, row)) else math.nan
    return sums


def _halves(a: Any) -> tuple[Any, Any]:
    """Two numbers whose sum is a, with half of its digits each."""
    high = SPLIT * a
    high = high - (high - a)
    return high, a - high


_vectors = SimpleNamespace(norm=_norm)
_products = SimpleNamespace(
    residual=_residual, residual_twice=_residual_twice, magnitudes_of_terms=_magnitudes_of_terms
)
# What `Residual` asks a system for
NUMPY = SimpleNamespace(xp=np, decides=np, comm=None, kernels=SimpleNamespace(vectors=_vectors, products=_products))
