"""The answer of `solve` by NumPy and SciPy alone, while finelu's kernels are compiled in the background.

Complete factors by SciPy's SuperLU, and steps of refinement, where a bound of their fill shows that they are cheap;
else conjugate gradients, for a Hermitian A with a positive diagonal. x has to pass the same test as that of any rung:
`Criterion` judges it, with NumPy's forms of the kernels that it calls.
"""

from __future__ import annotations

import copy
import math
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from finelu import deadline
from finelu.auto import background
from finelu.auto.attempt import REFINEMENTS
from finelu.auto.choose import SYMMETRIC_PATTERN
from finelu.auto.cost import COLUMN_FILL
from finelu.auto.ladder import TINY
from finelu.auto.precision import precise
from finelu.auto.rates import RATES
from finelu.compiling import now
from finelu.device import USABLE, free_memory, on_gpu
from finelu.errors import FineluError, OutOfTime
from finelu.krylov.criterion import Criterion
from finelu.krylov.residual import Residual
from finelu.matrix import CSR
from finelu.matrix.vectors import NATIVE, dense_numbers, native
from finelu.ordering import Fill
from finelu.preconditioners import Jacobi, SparseLU
from finelu.preconditioners.direct.analysis import COLAMD, MMD, SHORT
from finelu.preconditioners.direct.library import PIVOT
from finelu.preconditioners.direct.superlu import SuperLU, structurally_singular
from finelu.result import Attempt, Solution, Status
from finelu.threads import one_blas_thread

MOST_SECONDS = 3.0  # that this answer is expected to take at most: kernels take more than twice as long to compile
LEAST_FILL = 10.0  # entries of L and U for one of A, as a rule: a bound that would be too large is not looked for
LEAST_ITERATIONS = 50  # of conjugate gradients that are worth beginning
DENSE = 10.0  # times the square root of the number of rows: a row with more entries is ordered last
MOST_SQUARES = 1e7  # products that A^H A may take, whose pattern bounds the fill where rows are exchanged
MOST_SHARE = 0.5  # of the time that is left: the usual way needs the rest where this one finds nothing
OVERRUN = 2.0  # times the expected time at most, after which the attempt ends
WORK = 20.0  # times the bytes of A: what this way takes besides factors
LEAST_RTOL = 1e-14  # that refinement reaches soon
NEAR = 1e3  # roundings of a row below which a tolerance takes exact sums
EXACT_SECONDS = 3e-6  # per entry of A, for the exact sums of all steps
BLOCK = 4096  # rows whose exact sums are formed together
SPLIT = 2.0**27 + 1  # times a number of 53 digits, to divide it into two with 26 each
CHEAP = "a bound of its cost is small"
DEFINITE = "A may be positive definite, and complete factors may be costly"
MEANWHILE = (
    "kernels were not compiled yet: SciPy gave this answer. A process in the background compiles them as long as this "
    "program runs; `finelu warmup` compiles all of them once"
)
COSTLY = (
    f"SciPy was expected to take more than {MOST_SECONDS:g} s or too much memory, so this call compiled its kernels"
)
NO_PROCESS = "no process could be begun to compile kernels in the background, so this call compiled its own"
NO_ANSWER = "SciPy found no answer that passes the test, so this call compiled its kernels"
LATE = "SciPy had no answer in time, so this call compiled its kernels"
FAILED = "the answer by SciPy failed ({!r}), so this call compiled its kernels"


class FirstAnswer:
    """The answer for one call of `solve` with the default recipe and method, on the host.

    bool(answer) tells whether there is to be one. There is none if kernels cannot be compiled in the background, if it
    is not expected to be cheap, or where A or b may be faulty, which the usual way reports.

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
        with suppress(Exception):  # the usual way takes A and b, or says what is wrong with them
            if (system := taken(*given)) is not None:
                A, self.b = precise(_csr(system[0]), system[1], rtol)
                self._A = A.tosparse().astype(self.b.dtype, copy=False)
        if self._A is not None and background.possible(self._key):
            try:
                self.recipe = self._chosen()
                self.refused = "" if self else COSTLY
            except Exception as error:
                self.refused = FAILED.format(error)
        if not self:
            self._A = self.b = None

    def __bool__(self) -> bool:
        return self.recipe is not None

    def solve(self) -> list[Solution] | None:
        """A Solution for each column of b; None if one does not pass its test. Meanwhile kernels are compiled."""
        A, b = self.given
        begun, start = False, now()
        try:
            call = {"A": sp.csr_array(A.tosparse() if isinstance(A, CSR) else A), "b": np.asarray(b)}
            call |= {"rtol": self.rtol, "atol": self.atol, "criterion": self.criterion, "memory_limit": self.memory}
            begun, self.refused = background.begin(self._key, call), NO_PROCESS
            if begun:
                with deadline.limited(start + self._seconds(OVERRUN * MOST_SECONDS)), one_blas_thread():
                    solutions = self._solutions()
                self.refused = "" if solutions else NO_ANSWER
                if solutions:
                    return solutions
        except OutOfTime:
            self.refused = LATE
        except FineluError:
            self.refused = NO_ANSWER
        except Exception as error:
            self.refused = FAILED.format(error)
        if begun:
            background.end(self._key)
        self._A = self.b = None
        return None

    def _seconds(self, most: float) -> float:
        """This time, but no more than the usual way can spare."""
        return min(most, MOST_SHARE * (self.end - now()))

    def _solutions(self) -> list[Solution] | None:
        start = now()
        F = self._factors() if isinstance(self.recipe, SparseLU) else None
        found, made = [], now() - start
        for column in self.b.reshape(self._A.shape[0], -1).T:
            if (solution := self._solve(np.ascontiguousarray(column), F, made)) is None:
                return None
            found.append(solution)
            made = 0.0
        return found

    @property
    def _key(self) -> Any:
        A = self.given[0]
        return self._A.shape, self._A.nnz, str(A.dtype), str(self.b.dtype), self.b.ndim, self.rtol, self.criterion

    def _chosen(self) -> SparseLU | Jacobi | None:
        """The recipe of an answer that is expected to be cheap."""
        A, n, seconds = self._A, self._A.shape[0], self._seconds(MOST_SECONDS)
        row, entry, flop = RATES.of("superlu")
        diagonal, columns = A.diagonal(), self.b.size // n
        memory = USABLE * free_memory(A.data) if self.memory is None else self.memory
        memory -= WORK * (A.data.nbytes + A.indices.nbytes)
        wanted = max(self.rtol, self.atol / (euclidean(self.b.ravel()) or 1.0))  # at least, of all columns
        if wanted < LEAST_RTOL or memory < 0:
            return None
        if wanted < NEAR * (A.nnz / n + 1) * np.finfo(A.dtype).eps:
            seconds -= columns * EXACT_SECONDS * A.nnz
        if LEAST_FILL * (row * n + entry * A.nnz) <= seconds:
            pattern, longest = _pattern(A), int(np.diff(A.indptr).max())
            paired = pattern.multiply(pattern.T).nnz >= SYMMETRIC_PATTERN * A.nnz
            largest = np.zeros(n, A.data.real.dtype)
            np.maximum.at(largest, A.indices, abs(A.data))
            kept = bool(diagonal.all()) and bool((abs(diagonal) >= PIVOT * largest).all())
            ordering, fill = (MMD if paired and kept else COLAMD), Fill(0, math.inf)
            if ordering == MMD:
                fill = fill_bound(pattern)
            elif float((np.diff(A.indptr).astype(float) ** 2).sum()) <= MOST_SQUARES:
                fill = fill_bound(pattern.T @ pattern)  # whichever rows are exchanged: George & Ng 1985
            expected = row * n + entry * fill.nnz + flop * fill.flops
            sparse = not paired and A.nnz <= SHORT * n and longest <= DENSE * math.sqrt(n)
            if sparse and RATES.columnwise * A.nnz < expected:
                expected, fill = RATES.columnwise * A.nnz, Fill(COLUMN_FILL * A.nnz, 0.0)
            expected += columns * (RATES.overhead + RATES.cg * fill.nnz)
            if expected <= seconds and fill.nnz * (A.dtype.itemsize + A.indices.itemsize) <= memory:
                return SparseLU(ordering=ordering, backend="superlu")
        self._most = int(seconds / columns / (RATES.overhead + RATES.cg * (A.nnz + n)))
        worth = self._most >= LEAST_ITERATIONS and bool((diagonal.real > 0).all())
        return Jacobi() if worth and (A - A.conj().T).count_nonzero() == 0 else None

    def _factors(self) -> SuperLU:
        columns, singular = sp.csc_matrix(self._A), "A is singular"
        columns.eliminate_zeros()
        if structurally_singular(columns):
            raise FineluError(singular)
        if self.recipe.ordering == COLAMD:
            return SuperLU(columns, lambda: singular, permc_spec="COLAMD")
        symmetric: dict[str, Any] = {"options": {"SymmetricMode": True}, "diag_pivot_thresh": PIVOT}
        return SuperLU(columns, lambda: singular, permc_spec="MMD_AT_PLUS_A", **symmetric)

    def _solve(self, b: Any, F: SuperLU | None, made: float) -> Solution | None:
        """The solution for a column, None if it does not pass the test.

        F : factors; None for conjugate gradients.  made : their seconds.
        """
        A, check = self._A, Criterion(self.criterion, Residual(_Operator(_csr(self._A)), b, NUMPY), b)
        start, x, r = now(), np.zeros_like(b), b
        size = scale = euclidean(b)
        target, norms, steps = max(self.rtol * scale, self.atol), [scale], 0
        if scale == math.inf:
            return None
        if target >= scale:  # x = 0 is good enough
            history = np.array(norms)
            return Solution(x, Status.CONVERGED, 0, scale, history, recurrence=history, seen=(MEANWHILE,))
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
            tolerance=target,
        )


def euclidean(v: Any) -> float:
    """||v||_2 of a vector that is not empty, without a kernel, in double precision; no square leaves the range."""
    most = float(abs(v).max())
    return most * float(np.linalg.norm(_wide(v) / most)) if 0 < most < math.inf else most


def _wide(v: Any) -> Any:
    return v.astype(np.result_type(v.dtype, np.float64), copy=False)


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


def taken(A: Any, b: Any) -> tuple[sp.csr_array, Any] | None:
    """A, sorted and without duplicates, and b, in dtypes that kernels take, with finite numbers; None for others, and
    where b is near the smallest numbers.

    Raises ValueError or MatrixError for what is no matrix or vector.
    """
    if isinstance(A, CSR):
        A = None if on_gpu(A.data) else A.tosparse()
    dense = type(A) in (np.ndarray, np.matrix) and A.ndim == 2
    if not (sp.issparse(A) or dense) or on_gpu(b):
        return None
    if hasattr(A, "check_format"):
        copy.copy(A).check_format(full_check=True)  # it may give A other arrays
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
    largest = abs(b).max(axis=0)
    usual = np.isfinite(S.data).all() and ((largest == 0) | ((largest >= TINY) & (largest < math.inf))).all()
    return (S, b) if usual and S.nnz else None


def _csr(A: sp.csr_array) -> CSR:
    """The matrix as classes of finelu take it; the places of its diagonal are not known."""
    return CSR(A.indptr, A.indices, A.data, np.full(A.shape[0], -1, A.indices.dtype))


def _pattern(A: sp.csr_array) -> sp.csr_array:
    return sp.csr_array((np.ones(A.nnz, np.int32), A.indices, A.indptr), shape=A.shape)


def _conjugate_gradients(A: sp.csr_array, b: Any, tolerance: float, most: int) -> tuple[Any, list[float]]:
    """x of A x = b after at most `most` iterations, and the norm of the residual after each.

    b : not 0.
    The diagonal of A is the preconditioner. Saad 2003, Algorithm 9.1.
    """
    inverse, real, scale = 1 / A.diagonal().real, A.dtype.type(0).real.dtype.type, euclidean(b)
    x, r, norms = np.zeros_like(b), b / real(scale), [math.inf]
    z = inverse * r
    p, rz = z.copy(), _inner(r, z)
    while norms[-1] > tolerance and len(norms) <= most:
        deadline.check()
        Ap = A @ p
        curvature = _inner(p, Ap)
        if not curvature > 0:  # A is not definite
            break
        alpha = real(rz / curvature)
        x += alpha * p
        r -= alpha * Ap
        z = inverse * r
        rz, before = _inner(r, z), rz
        p = z + real(rz / before) * p
        norms.append(scale * euclidean(r))
    return real(scale) * x, norms[1:]


def _inner(u: Any, v: Any) -> float:
    """The real part of u^H v, added up in double precision."""
    return float(np.vdot(_wide(u), _wide(v)).real)


class _Operator:
    """A for `Residual`, which passes its arrays to kernels."""

    factor, lengthening = 1.0, None

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
    sums = np.full(start.size, np.nan)
    for begin in range(0, start.size, BLOCK):
        deadline.check()
        places = indptr[begin : begin + BLOCK + 1]
        entries, places, terms = slice(places[0], places[-1]), (places - places[0]).tolist(), []
        for pair in products:
            a, b = (v[entries].astype(np.float64) for v in pair)
            product, (high, low), (of_b, rest) = a * b, _halves(a), _halves(b)
            terms += [product.tolist(), (((high * of_b - product) + high * rest + low * of_b) + low * rest).tolist()]
        for i, first in enumerate(start[begin : begin + BLOCK].tolist()):
            row = [v for term in terms for v in term[places[i] : places[i + 1]]]
            with suppress(OverflowError):
                sums[begin + i] = math.fsum([first, *row]) if all(map(math.isfinite, row)) else math.nan
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
