"""min ||A x - b||_2 for A of any shape: the problem, checked once, its limits, and the bidiagonalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from finelu.device import namespace
from finelu.errors import MatrixError
from finelu.kernels import kernels_for
from finelu.krylov.operators import as_operator, checked_product, location, no_adjoint, value_dtype
from finelu.krylov.residual import Residual
from finelu.krylov.system import real
from finelu.matrix import check_vector, norm
from finelu.matrix.rectangular import as_rows, rows_of, scaled
from finelu.matrix.vectors import as_dtype, times_power
from finelu.validation import count, number


class Step(NamedTuple):
    """The norms after an iteration, by the recurrence.

    residual : ||b - A x||, with damp (||b - A x||^2 + damp^2 ||x - x0||^2)^(1/2).
    normal : (s^H M s)^(1/2) for s = A^H (b - A x) - damp^2 (x - x0); ||s|| without M.
    condition : a lower bound of the condition number of A R^-1, where M = R^-1 R^-H; of A without M.
    """

    residual: float
    normal: float
    condition: float


class Limits(NamedTuple):
    """See `lsmr`.  of_x : the factor of ||A|| ||x|| in the test of A x = b, if it is not atol."""

    atol: float
    btol: float
    conlim: float
    maxiter: int
    of_x: float | None = None

    @classmethod
    def checked(cls, atol: Any, btol: Any, conlim: Any, maxiter: Any, usual: int) -> Limits:
        """The limits of a caller; conlim = 0 stands for Inf.  usual : maxiter where None is given."""
        conlim = number("conlim", conlim, infinite=True) or math.inf
        most = usual if maxiter is None else count("maxiter", maxiter)
        return cls(number("atol", atol, infinite=True), number("btol", btol, infinite=True), conlim, most)

    def of_residual(self, problem: LeastSquares, norm_b: float, x_norm: float) -> float:
        """||b - A x|| up to which x solves A x = b."""
        return self.btol * norm_b + (self.atol if self.of_x is None else self.of_x) * problem.longest * x_norm


@dataclass(eq=False)
class Product:
    """`product @ x` for A or A^H: the attributes of an `Operator` that `Residual` reads.

    matrix : a CSR of the rows, or None if A is known by its products only.
    """

    apply: Callable[[Any], Any]
    matrix: Any = None
    factor: float = 1.0
    lengthening: None = None

    def __matmul__(self, x: Any) -> Any:
        return self.apply(x)


class LeastSquares:
    """min ||b - A x||^2 + damp^2 ||x - x0||^2, the same A for each b.

    A : (m, n), anything that `as_rows` takes, or a LinearOperator with matvec and rmatvec.  b : (m,) or (m, k).
    M : approximates (A^H A + damp^2 I)^-1, Hermitian positive definite, as `as_operator` takes it; None: the identity.

    A residual is stacked: r = b - A x, and with damp also -damp (x - x0) below it. So the iterations see a problem
    without damp, whose matrix is [A; damp I].
    A and damp are those that were given times 2^-power, so that no square over- or underflows; b and x0 are as given.
    """

    def __init__(self, A: Any, b: Any, x0: Any, M: Any, damp: float):
        operator = hasattr(A, "matvec")
        A = A if operator else as_rows(A)
        self.m, self.n = self.shape = _shape(A)
        self.damp = number("damp", damp)
        place = location(A)
        self.b = check_vector(b, self.m, b if place is None else place)
        if self.b.ndim == 2 and self.b.shape[1] == 0:
            raise MatrixError(f"b has shape {self.b.shape}; at least one column is needed.")
        self.x0 = None if x0 is None else check_vector(x0, self.n, self.b, "x0")
        if self.x0 is not None and self.x0.shape[1:] not in ((), self.b.shape[1:]):
            raise MatrixError(f"x0 has shape {self.x0.shape}; ({self.n},) or the columns of b are needed.")
        given = [value_dtype(A), self.b.dtype, self.b.dtype if self.x0 is None else self.x0.dtype]
        if M is not None and value_dtype(M).kind == "c":
            given.append(np.dtype(np.complex64))
        self.dtype = np.result_type(*given)
        self.real = real(self.dtype)
        self.b = as_dtype(self.b, self.dtype)
        self.x0 = None if self.x0 is None else as_dtype(self.x0, self.dtype)
        self.xp, self.kernels = namespace(self.b), kernels_for(self.b)
        like = self.xp.empty(self.n, self.dtype)
        self.precondition(M)
        self.power = 0
        self.longest = self.damp  # a lower bound of the 2-norm of [A; damp I]
        if operator:
            self.A, self.H = self._by_products(A, like)
        else:
            self.A, self.H = self._by_entries(A)
        self.residual = Residual(self.A, self.b.reshape(self.m, -1)[:, 0])
        self.normal_residual = Residual(self.H, like)

    def _by_entries(self, A: Any) -> tuple[Product, Product]:
        A, self.damp, self.power = scaled(as_rows(A, self.dtype), self.damp)
        adjoint = A.conj().T.tocsr()
        adjoint.sort_indices()
        made = []
        for S in (A, adjoint):
            rows = rows_of(S)
            product = self.kernels.products.Product(rows)
            made.append(Product(partial(_into_new, product, S.shape[0], self.dtype), rows))
        squares = self.xp.bincount(A.indices, abs(A.data).astype(np.float64) ** 2, self.n)
        self.longest = math.hypot(math.sqrt(float(squares.max())), self.damp)
        return made[0], made[1]

    def _by_products(self, A: Any, like: Any) -> tuple[Product, Product]:
        if not hasattr(A, "rmatvec"):
            raise MatrixError(no_adjoint("A"))
        forward = checked_product(A.matvec, "A", like, "", self.m)
        adjoint = checked_product(A.rmatvec, "A^H", like, no_adjoint("A"), self.n)
        return Product(partial(self._seen, forward)), Product(partial(self._seen, adjoint))

    def _seen(self, product: Callable[[Any], Any], x: Any) -> Any:
        """A product of which only the result is known: it shows how long A makes vectors."""
        y = product(x)
        size = norm(x)
        if size > 0 and math.isfinite(length := norm(y) / size):
            self.longest = max(self.longest, math.hypot(length, self.damp))
        return y

    def precondition(self, M: Any) -> None:
        """Take another M."""
        self.of_M: int | None = None
        self.M = as_operator(M, "M", self.xp.empty(self.n, self.dtype), self.dtype)
        self.preconditioned = M is not None

    def with_right_hand_side(self, b: Any) -> LeastSquares:
        """The same problem with another b (m,) of the working dtype, and x0 = 0."""
        other = copy(self)
        other.b, other.x0 = b, None
        return other

    # products with [A; damp I]

    def forward(self, v: Any) -> Any:
        """[A; damp I] v in a new array."""
        if self.damp == 0:
            return self.A @ v
        u = self.xp.empty(self.m + self.n, self.dtype)
        u[: self.m] = self.A @ v
        self.xp.multiply(v, self.real.type(self.damp), out=u[self.m :])
        return u

    def adjoint(self, u: Any) -> Any:
        """[A; damp I]^H u in a new array."""
        s = self.H @ u[: self.m]
        return s if self.damp == 0 else s + self.real.type(self.damp) * u[self.m :]

    def weighted(self, s: Any) -> tuple[Any, float]:
        """M s, and (s^H M s)^(1/2): NaN if M is not positive definite, as far as s shows."""
        if not self.preconditioned:
            return s, norm(s)
        z = self.M @ s if self.power == 0 else self._with_scaled(s)
        out = self.xp.zeros(1, self.dtype)
        self.kernels.vectors.dot(s, z, out)
        square = float(out[0].real)
        return z, math.sqrt(square) if square >= 0 else math.nan

    def _with_scaled(self, s: Any) -> Any:
        """M s times a constant that keeps it in range, for an M of the A that was given: 1 or 4^power."""
        if self.of_M is None:
            size = norm(self.M @ s)
            fits = 0 < size < math.inf and 4 * abs(math.frexp(size)[1]) < 3 * np.finfo(self.real).maxexp
            self.of_M = 0 if fits else self.power
        return times_power(self.M @ times_power(s, self.of_M), self.of_M)


def _into_new(product: Any, rows: int, dtype: Any, x: Any) -> Any:
    return product(x, namespace(x).empty(rows, dtype))


def _shape(A: Any) -> tuple[int, int]:
    shape = getattr(A, "shape", None)
    if shape is None or len(shape) != 2 or 0 in shape:
        raise MatrixError(f"A has shape {shape}; a matrix or LinearOperator with rows and columns is needed.")
    return int(shape[0]), int(shape[1])


def bidiagonalization(problem: LeastSquares, r: Any) -> Iterator[tuple[float, float, Any]]:
    """beta_1, alpha_1, v_1, then those with index 2, 3, ... of the Golub-Kahan process for A R^-1; v is R^-1 times its
    vector, where M = R^-1 R^-H.

    It needs products with M only, and so no R. It ends after a beta or alpha of 0, or an alpha of NaN where M is not
    positive definite.  r : begins it, and is overwritten.
    Source: S. R. Arridge, M. M. Betcke, L. Harhanen: Iterated preconditioned LSQR method for inverse problems on
    unstructured grids, 2014.
    """
    beta = norm(r)
    s = problem.adjoint(r)
    s = s / beta
    while True:
        z, alpha = problem.weighted(s)
        v = z / alpha if alpha > 0 else z
        yield beta, alpha, v
        if not alpha > 0 or beta == 0:
            return
        u = problem.forward(v)
        r *= alpha / beta  # r is beta u: its norm is not made 1
        u -= r
        p = s / alpha
        r, beta = u, norm(u)
        if beta == 0:
            yield 0.0, 0.0, v
            return
        s = problem.adjoint(r)
        s = s / beta - beta * p
