"""Operators: any A or M that a Krylov method accepts, as an object with `@`. All products are formed here."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp

from finelu.device import namespace, on_gpu, same_gpu
from finelu.errors import DeviceError, MatrixError, ParameterError, meant
from finelu.factors import Factors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import DTYPES, checked_csr
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.products import BlockProducts
from finelu.matrix.stencil import StencilMatrix
from finelu.matrix.vectors import as_dtype, norm, require_no_mask, require_square
from finelu.preconditioners import RECIPES, recipe_of
from finelu.preconditioners.recipe import Recipe
from finelu.processes import largest
from finelu.validation import shown

Apply = Callable[[Any], Any]


class Identity:
    """No preconditioner. The product is the vector itself, so it must not be written to."""

    recipe = ""
    capturable = True
    deflated = None

    def __matmul__(self, r: Any) -> Any:
        return r

    @property
    def H(self) -> Identity:
        return self

    def scaled(self, factor: float, levels: bool, comm: Any = None) -> Identity:
        """The identity itself, since a multiple of it is an equally good preconditioner."""
        return self


class Lengthening:
    """A function that forms products A v, and the largest ||A v|| / ||v|| of some of them: a lower bound of ||A||.

    It looks at the products number 1, 2, 4, 8, ..., so that looking costs next to nothing. In a Krylov method these
    vectors soon have a part along those that A makes longest.
    """

    def __init__(self, product: Apply):
        self.product, self.calls, self.most = product, 0, 0.0

    def __call__(self, v: Any) -> Any:
        y = self.product(v)
        self.calls += 1
        if self.calls & (self.calls - 1) == 0 and (length := norm(v)) > 0:
            self.most = max(self.most, norm(y) / length)
        return y


class Operator:
    """`op @ x` for a vector x (n,) of the working dtype: another such vector, which must not be written to.

    The solve handles overflow, underflow and NaN; callers run under `ignore_fp_errors`.

    apply : the function that forms the product. Its results are trusted, so a caller's function is wrapped by
        `_checked`.
    given : the object from which the operator was made.  recipe : its recipe, if it is factors, or else its type.
    name : "A" or "M", for reports and errors.
    make_adjoint : a function without arguments that returns the function for A^H x, or None; called by `H`.
    matrix : the matrix, if its entries are accessible: a CSR of the working dtype, a dense array, or anything with
        `tocsr`; else None.
    subtract : a function of (b, x) that returns b - A x in one pass, or None.
    with_dot : a function of (x, y, total) that returns A x and writes y^H A x to total[0]; by default in two steps.
    capturable : whether a product may be recorded as a part of a CUDA graph: it queues the same kernels each time, and
        waits for nothing.
    deflated : the object that cg applies instead of factors M after its `start`, see `Factors.deflated`; None after
        `scaled`, as Q A would not be a projection.
    factor : a power of two by which the product is multiplied; see `scaled`.
    lengthening : for an A on the host that is known by its products only: what these have shown of its norm.
    """

    deflated: Any = None
    factor = 1.0
    levels = False
    comm: Any = None
    lengthening: Lengthening | None = None

    def __init__(
        self,
        apply: Apply,
        given: Any,
        name: str,
        make_adjoint: Callable[[], Apply] | None = None,
        matrix: Any = None,
        subtract: Callable[[Any, Any], Any] | None = None,
        with_dot: Callable[[Any, Any, Any], Any] | None = None,
        capturable: bool = False,
    ):
        self.apply = apply
        self.given = given
        self.name = name
        self.make_adjoint = make_adjoint
        self.matrix = matrix
        self.subtract = subtract
        if with_dot is not None:
            self.with_dot = with_dot  # type: ignore[method-assign, assignment]
        self.capturable = capturable

    @cached_property
    def recipe(self) -> str:
        """How the object that was given prints its recipe, or the name of its class."""
        return repr(getattr(self.given, "recipe", type(self.given).__name__))

    def scaled(self, factor: float, levels: bool, comm: Any = None) -> Operator:
        """factor times the operator; factor is a power of two.

        levels : whether x is divided by a power of two first, to bring it near 1, and the result multiplied by it; this
            waits for the GPU.
        comm : the processes over which x is spread, which need the same power of two.
        """
        other = Operator(self.apply, self.given, self.name, self.make_adjoint, self.matrix)
        other.capturable = self.capturable and not levels
        other.factor, other.levels, other.comm = self.factor * factor, levels, comm
        other.lengthening = self.lengthening
        return other

    @property
    def H(self) -> Operator:
        """The conjugate transpose as an operator with the same (real) factor; a matrix is transposed here, once."""
        if self.make_adjoint is None:
            raise MatrixError(no_adjoint(self.name))
        adjoint = Operator(self.make_adjoint(), self.given, f"{self.name}^H")
        adjoint.factor, adjoint.levels, adjoint.comm = self.factor, self.levels, self.comm
        return adjoint

    def __matmul__(self, x: Any) -> Any:
        level = math.ldexp(1.0, math.frexp(self._largest(x))[1] - 1) if self.levels else 1.0
        level = level if math.isfinite(level) and level > 0 else 1.0
        x = x if level == 1 else x / level
        if self.factor == 1:
            y = self.apply(x)
        else:  # half of its exponent before the product, which may leave the range of numbers for an x of another level
            first = 1.0 if self.levels else math.ldexp(1.0, math.frexp(self.factor)[1] // 2)
            y = self.apply(x if first == 1 else x * first) * (self.factor / first)
        return y if level == 1 else y * level

    def _largest(self, x: Any) -> float:
        own = float(abs(x).max())
        return own if self.comm is None else largest(self.comm, own)

    def with_dot(self, x: Any, y: Any, total: Any) -> Any:
        product = self @ x
        kernels_for(x).vectors.dot(y, product, total)
        return product

    def residual(self, b: Any, x: Any) -> Any:
        """b - A x in a new array, in one pass if A has a function for that."""
        return b - self @ x if self.subtract is None else self.subtract(b, x)


def no_adjoint(name: str) -> str:
    return (
        f"{name} has no rmatvec, but this method multiplies by {name}^H, too; give {name} as a "
        f"matrix, as Factors, or as a LinearOperator with matvec and rmatvec."
    )


def value_dtype(A: Any) -> np.dtype[Any]:
    """The dtype, one of the four, of products with A; float64 if A has no dtype."""
    dtype = getattr(A, "dtype", None)
    if dtype is None:
        dtype = np.asarray(A).dtype if isinstance(A, (list, tuple)) else np.float64
    dtype = np.dtype(dtype)
    if dtype.name in DTYPES:
        return dtype
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def order(A: Any) -> int:
    """The order n of a square A. Raises MatrixError if A is not square."""
    shape = getattr(A, "shape", None)
    if shape is None and isinstance(A, (list, tuple)):
        shape = np.shape(A)
    if shape is None:
        raise MatrixError(f"A is a {type(A).__name__} without a shape; a matrix or a LinearOperator is needed.")
    if isinstance(A, np.ma.MaskedArray):
        require_no_mask(A, "A")
    require_square(shape)
    return int(shape[0])


def location(A: Any) -> Any:
    """An array on the device of A, or None if that device is unknown (a LinearOperator)."""
    if isinstance(A, CSR | BlockProducts):
        return A.data
    if sp.issparse(A) or hasattr(A, "to_scipy_sparse"):  # not all of SciPy's formats have an array of values
        return np.empty(0)
    if on_gpu(A) and hasattr(A, "data"):  # cupyx.scipy.sparse and cupy arrays, not CuPy's LinearOperator
        return A.data if on_gpu(A.data) else A
    return np.empty(0) if isinstance(A, (np.ndarray, list, tuple)) else None


def as_operator(A: Any, name: str, like: Any, dtype: Any) -> Any:
    """A as an `Operator` for vectors of the length and device of `like`, and of dtype `dtype`; `Identity` for None.

    A : (n, n): finelu's CSR, scipy.sparse or cupyx.scipy.sparse in any format, a dense array, anything with `matvec`
        (StencilMatrix, BlockMatrix, Factors, SciPy's and CuPy's LinearOperator), or a function of one vector; None is
        the identity. M may also be SciPy's SuperLU, or another object with `solve`, or a hierarchy of PyAMG.
    Sparse and dense matrices are checked for NaN and Inf, sorted and converted once, in a copy if needed.
    `H` of the result is the conjugate transpose of a matrix, or applies `rmatvec`; a function of a vector has no `H`.
    Raises MatrixError for a wrong shape or values, DeviceError if A and `like` are on different devices.
    """
    if A is None:
        return Identity()
    n = like.size
    if isinstance(A, str | type | Recipe):
        _refuse_recipe(A, name)
    if name == "M" and not hasattr(A, "matvec"):
        A = _solver_of(A)
    shape = getattr(A, "shape", (n, n) if callable(A) else np.shape(A))
    if tuple(shape) != (n, n):
        raise MatrixError(f"{name} has shape {tuple(shape)}, but the system needs ({n}, {n}).")
    gpu = on_gpu(like)
    if isinstance(A, Factors) and A.well_formed and A.dtype == dtype and on_gpu(A.pattern.data) == gpu:
        if gpu:
            same_gpu(like, A.pattern.data)
        factors = Operator(A.apply, A, name, lambda: lambda r: A.apply(r, "H"), capturable=A.capturable and gpu)
        factors.deflated = A.deflated
        return factors
    if hasattr(A, "matvec"):
        made = isinstance(A, Factors)  # a method tests their results itself
        own, product = isinstance(A, BlockProducts), checked_product(A.solved if made else A.matvec, name, like)
        adjoint = partial(A.solved, trans="H") if made else getattr(A, "rmatvec", None)
        lengthening = Lengthening(product) if name == "A" and not (own or gpu) else None
        operator = Operator(
            product if lengthening is None else lengthening,
            A,
            name,
            None if adjoint is None else (lambda: checked_product(adjoint, f"{name}^H", like, no_adjoint(name))),
            A if own else None,
            A.residual if own else None,
            capturable=type(A) in (StencilMatrix, BlockMatrix) and gpu,
        )
        operator.lengthening = lengthening
        return operator
    place = location(A)
    if place is None:
        if callable(A):
            return Operator(checked_product(A, name, like), A, name)
        raise MatrixError(f"{name} is a {type(A).__name__}; a matrix, a LinearOperator or factors are needed.")
    if on_gpu(place) != gpu:
        raise DeviceError(f"{name} is on {_where(place)} but b is on {_where(like)}; move one of them first.")
    if not (isinstance(A, CSR) or hasattr(A, "tocsr") or hasattr(A, "to_scipy_sparse")):
        array = _dense(A, name, like, dtype)
        return Operator(array.__matmul__, A, name, lambda: array.conj().T.__matmul__, array)
    return matrix_operator(_sparse(A, name, dtype), name, given=A)


def matrix_operator(A: CSR, name: str = "A", given: Any = None) -> Operator:
    """A checked matrix of the working dtype as an `Operator`.  given : the caller's object, if that is not A itself."""
    Product = kernels_for(A.data).products.Product
    product = Product(A)
    return Operator(
        product,
        A if given is None else given,
        name,
        lambda: Product(A.tosparse().conj().T.tocsr()),
        A,
        with_dot=product.with_dot,
        capturable=on_gpu(A.data),
    )


def checked_product(function: Apply, name: str, like: Any, missing: str = "", length: int | None = None) -> Apply:
    """A caller's function as a product: each result is checked, and converted to the dtype of its argument.

    missing : the text of the error if the function raises NotImplementedError, as the rmatvec of a LinearOperator made
        without one does.
    length : of the results, None for that of the argument.
    """
    gpu = on_gpu(like)

    def product(x: Any) -> Any:
        try:
            y = function(x)
        except NotImplementedError as error:
            if not missing:
                raise
            raise MatrixError(missing) from error
        if on_gpu(y) != gpu:
            raise DeviceError(f"{name} gave a vector on another device than it was given; move {name} first.")
        y = y if gpu else np.asarray(y)
        if y.size != (x.size if length is None else length) or y.ndim > 2:
            raise MatrixError(f"{name} gave an array of shape {y.shape} for a vector of length {x.size}.")
        if y.dtype.kind == "c" and x.dtype.kind != "c":
            raise MatrixError(
                f"{name} gave complex numbers for a real vector, but its dtype does not say so; set its dtype, or "
                f"pass a complex b."
            )
        y = y.reshape(-1).astype(x.dtype, copy=False)
        return namespace(y).ascontiguousarray(y) if gpu else y  # kernels there take the elements one after the other

    return product


def _solver_of(M: Any) -> Any:
    """What applies the preconditioner that M has: SciPy's SuperLU and other factors solve, a hierarchy of PyAMG does a
    cycle; else M itself."""
    if callable(getattr(M, "aspreconditioner", None)):
        return M.aspreconditioner()
    if callable(M) or not callable(getattr(M, "solve", None)):
        return M
    if not hasattr(M, "perm_c"):  # SuperLU has it, and solves with the adjoint, too
        return M.solve
    return SimpleNamespace(shape=M.shape, matvec=M.solve, rmatvec=lambda r: M.solve(r, "H"))


def _refuse_recipe(A: Any, name: str) -> NoReturn:
    """Raise MatrixError for a recipe, its class or its name instead of factors, and say what to type."""
    needed = (
        "a matrix or a LinearOperator is needed." if name == "A" else "factors, such as ILU0().factor(A), are needed."
    )
    try:
        recipe = recipe_of(A)
    except ParameterError:
        what = "a str" if isinstance(A, str) else "the class"
        raise MatrixError(f"{name} is {what}, {shown(A)}; {needed}{meant(A, RECIPES)}") from None
    if name == "A":
        raise MatrixError(f"A is the recipe {recipe!r}; {needed}")
    raise MatrixError(f"{name} is the recipe {recipe!r}, but factors are needed: {name}=finelu.{recipe!r}.factor(A).")


def _where(array: Any) -> str:
    return "the GPU" if on_gpu(array) else "the host"


def _dense(A: Any, name: str, like: Any, dtype: Any) -> Any:
    xp = namespace(like)
    dense = xp.asarray(A)
    if dense.dtype.kind not in "biufc":
        raise MatrixError(f"{name} has dtype {dense.dtype}; numbers are needed.")
    bad = ~xp.isfinite(dense)
    if bool(bad.any()):
        raise MatrixError(
            f"{name} holds NaN or Inf in row {int(xp.argmax(bad.any(axis=1)))}; find where they come from."
        )
    return as_dtype(dense, dtype)


def _sparse(A: Any, name: str, dtype: Any) -> CSR:
    try:
        return checked_csr(A, diagonal=False, dtype=dtype)
    except MatrixError as error:
        if name == "A":
            raise
        raise MatrixError(f"{name} cannot be used; as a matrix A, {error}") from error
