"""Whatever a Krylov method may be given as A or M becomes an object with `@`: the one place that forms products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp

from finelu.device import namespace, on_gpu, same_gpu
from finelu.errors import DeviceError, MatrixError, ParameterError, meant
from finelu.factors import Factors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import DTYPES, as_csr
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.products import BlockProducts
from finelu.matrix.stencil import StencilMatrix
from finelu.matrix.vectors import as_dtype, require_square
from finelu.preconditioners import RECIPES, recipe_of
from finelu.preconditioners.recipe import Recipe
from finelu.processes import largest
from finelu.validation import shown

Apply = Callable[[Any], Any]


class Identity:
    """No preconditioner: it returns the vector itself, so its result must not be written to."""

    recipe = ""
    capturable = True
    deflated = None

    def __matmul__(self, r: Any) -> Any:
        return r

    @property
    def H(self) -> Identity:
        return self

    def scaled(self, factor: float, levels: bool, comm: Any = None) -> Identity:
        """Itself: a multiple of the identity preconditions as well as the identity does."""
        return self


class Operator:
    """`op @ x` for a vector x (n,) of the working dtype: another such vector, not to be written to.

    What leaves the range of numbers is for the solve to judge: callers have `ignore_fp_errors`.

    apply : the function that is called; its results are trusted, so that of the caller's is wrapped by `_checked`.
    given : what the operator was made of, and name : "A" or "M", for reports and errors.
    make_adjoint : a function without arguments that returns the function for A^H x, if there is one: called by `H`.
    matrix : what it multiplies by, where its entries can be looked at: a CSR of the working dtype, a dense array, or
    anything with `tocsr`; else None.
    subtract : gives b - A x for (b, x) in one pass, where A has such a function.
    with_dot : gives A x for (x, y, total) and writes y^H A x to total[0]; in one pass, where A has such a function.
    capturable : whether a product may be recorded as a part of a CUDA graph: it queues the same kernels each time, and
    waits for nothing.
    deflated : what stands for factors M in cg after its `start`, see `Factors.deflated`; None after `scaled`, as Q A
    would be no projection.
    factor : what `apply` gives is multiplied by it; see `scaled`.
    """

    deflated: Any = None
    factor = 1.0
    levels = False
    comm: Any = None

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

    @property
    def recipe(self) -> str:
        """The recipe of factors, else the type of the object."""
        return repr(getattr(self.given, "recipe", type(self.given).__name__))

    def scaled(self, factor: float, levels: bool, comm: Any = None) -> Operator:
        """factor times the operator; factor is a power of two.

        levels : whether x is brought near 1 first, by a power of two that the result is multiplied by; this waits for
        a GPU.  comm : processes over which x is spread, which need the same power.
        """
        other = Operator(self.apply, self.given, self.name, self.make_adjoint, self.matrix)
        other.capturable = self.capturable and not levels
        other.factor, other.levels, other.comm = factor, levels, comm
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
        y = self.apply(x if level == 1 else x / level)
        y = y if self.factor == 1 else y * self.factor
        return y if level == 1 else y * level

    def _largest(self, x: Any) -> float:
        own = float(abs(x).max())
        return own if self.comm is None else largest(self.comm, own)

    def with_dot(self, x: Any, y: Any, total: Any) -> Any:
        product = self @ x
        kernels_for(x).vectors.dot(y, product, total)
        return product

    def residual(self, b: Any, x: Any) -> Any:
        """b - A x in a new array, in one pass where A has one."""
        return b - self @ x if self.subtract is None else self.subtract(b, x)


def no_adjoint(name: str) -> str:
    return (
        f"{name} has no rmatvec, but this method multiplies by {name}^H, too; give {name} as a "
        f"matrix, as Factors, or as a LinearOperator with matvec and rmatvec."
    )


def value_dtype(A: Any) -> np.dtype[Any]:
    """The dtype, one of the four, of the products with A; float64 where A does not say."""
    dtype = getattr(A, "dtype", None)
    if dtype is None:
        dtype = np.asarray(A).dtype if isinstance(A, (list, tuple)) else np.float64
    dtype = np.dtype(dtype)
    if dtype.name in DTYPES:
        return dtype
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def order(A: Any) -> int:
    """n of a square A; a MatrixError if it has no such n."""
    shape = getattr(A, "shape", None)
    if shape is None and isinstance(A, (list, tuple)):
        shape = np.shape(A)
    if shape is None:
        raise MatrixError(f"A is a {type(A).__name__} without a shape; a matrix or a LinearOperator is needed.")
    require_square(shape)
    return int(shape[0])


def location(A: Any) -> Any:
    """An array on the device of A, or None where A does not say where it works (a LinearOperator)."""
    if isinstance(A, CSR | BlockProducts):
        return A.data
    if sp.issparse(A) or hasattr(A, "to_scipy_sparse"):  # of SciPy's not all have an array of values
        return np.empty(0)
    if on_gpu(A) and hasattr(A, "data"):  # cupyx.scipy.sparse and cupy arrays, not CuPy's LinearOperator
        return A.data if on_gpu(A.data) else A
    return np.empty(0) if isinstance(A, (np.ndarray, list, tuple)) else None


def as_operator(A: Any, name: str, like: Any, dtype: Any) -> Any:
    """A as an `Operator` that works on vectors such as `like`, of dtype `dtype`; None gives the `Identity`.

    A : (n, n): finelu's CSR, scipy.sparse or cupyx.scipy.sparse in any format, a dense array, anything with `matvec`
        (StencilMatrix, BlockMatrix, Factors, SciPy's and CuPy's LinearOperator), or a function of one vector; None is
        the identity.
    Sparse and dense matrices are looked at for NaN and Inf, sorted and converted once, in a copy where they need it.
    `H` of the result is their conjugate transpose, or what `rmatvec` applies; a function of a vector has none.
    Raises MatrixError for a wrong shape or values, DeviceError where A and `like` are on different devices.
    """
    if A is None:
        return Identity()
    n = like.size
    if isinstance(A, str | type | Recipe):
        _refuse_recipe(A, name)
    shape = getattr(A, "shape", (n, n) if callable(A) else np.shape(A))
    if name == "M" and not hasattr(A, "matvec") and not callable(A) and (instead := _instead(A)):
        raise MatrixError(f"M is a {type(A).__name__}, which is neither a matrix nor a LinearOperator; {instead}.")
    if tuple(shape) != (n, n):
        raise MatrixError(f"{name} has shape {tuple(shape)}, but the system needs ({n}, {n}).")
    if isinstance(A, Factors) and A.well_formed and A.dtype == dtype and on_gpu(A.pattern.data) == on_gpu(like):
        same_gpu(like, A.pattern.data)
        factors = Operator(
            A.apply, A, name, lambda: lambda r: A.apply(r, "H"), capturable=A.capturable and on_gpu(like)
        )
        factors.deflated = A.deflated
        return factors
    if hasattr(A, "matvec"):
        own = isinstance(A, BlockProducts)
        return Operator(
            _checked(A.matvec, name, like),
            A,
            name,
            (lambda: _checked(A.rmatvec, f"{name}^H", like, no_adjoint(name))) if hasattr(A, "rmatvec") else None,
            A if own else None,
            A.residual if own else None,
            capturable=type(A) in (StencilMatrix, BlockMatrix) and on_gpu(like),
        )
    place = location(A)
    if place is None:
        if callable(A):
            return Operator(_checked(A, name, like), A, name)
        raise MatrixError(f"{name} is a {type(A).__name__}; a matrix, a LinearOperator or factors are needed.")
    if on_gpu(place) != on_gpu(like):
        raise DeviceError(f"{name} is on {_where(place)} but b is on {_where(like)}; move one of them first.")
    if not (isinstance(A, CSR) or hasattr(A, "tocsr") or hasattr(A, "to_scipy_sparse")):
        array = _dense(A, name, like, dtype)
        return Operator(array.__matmul__, A, name, lambda: array.conj().T.__matmul__, array)
    return matrix_operator(_sparse(A, name, dtype), name, given=A)


def matrix_operator(A: CSR, name: str = "A", given: Any = None) -> Operator:
    """A checked matrix of the working dtype as an `Operator`.  given : what the caller has of it, if not A itself."""
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


def _checked(function: Apply, name: str, like: Any, missing: str = "") -> Apply:
    """A function of the caller's as a product: each result is looked at, and brought into the dtype of its argument.

    missing : the error where the function says that it is not implemented, as the rmatvec of a LinearOperator that was
    made without one.
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
        if y.size != x.size or y.ndim > 2:
            raise MatrixError(f"{name} gave an array of shape {y.shape} for a vector of length {x.size}.")
        if y.dtype.kind == "c" and x.dtype.kind != "c":
            raise MatrixError(
                f"{name} gave complex numbers for a real vector, but its dtype does not say so; set its dtype, or "
                f"pass a complex b."
            )
        y = y.reshape(-1).astype(x.dtype, copy=False)
        return namespace(y).ascontiguousarray(y) if gpu else y  # kernels there take the elements one after the other

    return product


def _instead(M: Any) -> str:
    """The text to type for an object that has a preconditioner but is not one itself; "" if it is not known."""
    if callable(getattr(M, "aspreconditioner", None)):
        return "for a solver ml of PyAMG pass M=ml.aspreconditioner()"
    if callable(getattr(M, "solve", None)):
        return "for factors lu of another library pass M=lu.solve"
    return ""


def _refuse_recipe(A: Any, name: str) -> NoReturn:
    """A MatrixError that says what to type where a recipe, its class or a name stands instead of factors."""
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
        return as_csr(A, diagonal=False, dtype=dtype)
    except MatrixError as error:
        if name == "A":
            raise
        raise MatrixError(f"{name} cannot be used; as a matrix A, {error}") from error
