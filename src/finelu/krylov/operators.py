"""Whatever a Krylov method may be given as A or M becomes an object with `@`, whose results are checked vectors."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp

from finelu.device import namespace, on_gpu
from finelu.errors import DeviceError, MatrixError, ParameterError, meant
from finelu.kernels.cpu.products import Product
from finelu.matrix import CSR, DTYPES, as_csr, shown
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.stencil import StencilMatrix
from finelu.preconditioners import RECIPES, recipe_of
from finelu.preconditioners.recipe import Recipe


class Identity:
    """The preconditioner that is none: gives back the very vector, so nobody may write into what it returns."""

    factor = 1.0  # means nothing here: a multiple of the identity preconditions as well as the identity
    levels = False

    def __matmul__(self, r):
        return r

    @property
    def H(self):
        return self


class Operator:
    """`op @ x` for a vector x (n,): a vector of the working dtype on x's device, not to be written into.

    What leaves the range of numbers is for the solve to judge: callers are `judged`.

    apply : the function that is called.  name : "A" or "M", for errors.  factor : what it gives is multiplied by it.
    levels : whether x is brought near 1 first, by a power of two that what it gives is multiplied by; waits for a GPU.
    make_adjoint : a function without arguments that gives the function for A^H x, if that can be had: called by `H`.
    matrix : what it multiplies by, where its entries can be looked at: a CSR of the working dtype, a dense array, or
    anything with `tocsr`; else None.
    """

    def __init__(self, apply, name: str, make_adjoint=None, matrix=None):
        self.apply = apply
        self.name = name
        self.factor = 1.0
        self.levels = False
        self.make_adjoint = make_adjoint
        self.matrix = matrix

    @property
    def H(self) -> Operator:
        """The conjugate transpose as an operator with the (real) factor of now; a matrix is transposed here, once."""
        if self.make_adjoint is None:
            raise MatrixError(self._no_adjoint)
        adjoint = Operator(self._named(self.make_adjoint()), f"{self.name}^H")
        adjoint.factor, adjoint.levels = self.factor, self.levels
        return adjoint

    @property
    def _no_adjoint(self) -> str:
        return (
            f"{self.name} has no rmatvec, but this method multiplies by {self.name}^H, too; give {self.name} as a "
            f"matrix, as Factors, or as a LinearOperator with matvec and rmatvec."
        )

    def _named(self, rmatvec):
        def product(x):
            try:
                return rmatvec(x)
            except NotImplementedError as error:  # a LinearOperator that was made without rmatvec has one that raises
                raise MatrixError(self._no_adjoint) from error

        return product

    def __matmul__(self, x):
        level = math.ldexp(1.0, math.frexp(float(abs(x).max()))[1] - 1) if self.levels else 1.0
        level = level if math.isfinite(level) and level > 0 else 1.0
        y = self.apply(x if level == 1 else x / level)
        if on_gpu(y) != on_gpu(x):
            raise DeviceError(f"{self.name} gave a vector on another device than it was given; move {self.name} first.")
        y = y if on_gpu(y) else np.asarray(y)
        if y.size != x.size or y.ndim > 2:
            raise MatrixError(f"{self.name} gave an array of shape {y.shape} for a vector of length {x.size}.")
        if y.dtype.kind == "c" and x.dtype.kind != "c":
            raise MatrixError(
                f"{self.name} gave complex numbers for a real vector, but its dtype does not say so; set its dtype, or "
                f"pass a complex b."
            )
        y = y.reshape(-1).astype(x.dtype, copy=False)
        y = y if self.factor == 1 else y * self.factor
        return y if level == 1 else y * level


def value_dtype(A) -> np.dtype:
    """The dtype, one of the four, of the products with A; float64 for what says nothing of it."""
    dtype = getattr(A, "dtype", None)
    if dtype is None:
        dtype = np.asarray(A).dtype if isinstance(A, (list, tuple)) else np.float64
    dtype = np.dtype(dtype)
    if dtype.name in DTYPES:
        return dtype
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def order(A) -> int:
    """n of a square A; a MatrixError if it has no such n."""
    shape = getattr(A, "shape", None)
    if shape is None and isinstance(A, (list, tuple)):
        shape = np.shape(A)
    if shape is None:
        raise MatrixError(f"A is a {type(A).__name__} without a shape; a matrix or a LinearOperator is needed.")
    if len(shape) != 2 or shape[0] != shape[1]:
        raise MatrixError(f"A has shape {tuple(shape)}; a square matrix is needed.")
    if shape[0] == 0:
        raise MatrixError("A is empty (0 x 0); there is nothing to solve.")
    return int(shape[0])


def location(A):
    """An array on the device of A, or None where A does not say where it works (a LinearOperator)."""
    if isinstance(A, CSR | StencilMatrix | BlockMatrix):
        return A.data
    if sp.issparse(A) or hasattr(A, "to_scipy_sparse"):  # of SciPy's not all have an array of values
        return np.empty(0)
    if on_gpu(A) and hasattr(A, "data"):  # cupyx.scipy.sparse and cupy arrays, not CuPy's LinearOperator
        return A.data if on_gpu(A.data) else A
    return np.empty(0) if isinstance(A, (np.ndarray, list, tuple)) else None


def as_operator(A, name: str, like, dtype):
    """A as an `Operator` that works on vectors such as `like`, of dtype `dtype`.

    A : (n, n): finelu's CSR, scipy.sparse or cupyx.scipy.sparse in any format, a dense array, anything with `matvec`
        (StencilMatrix, BlockMatrix, Factors, SciPy's and CuPy's LinearOperator), or a function of one vector; None is
        the identity.
    Sparse and dense matrices are looked at for NaN and Inf, sorted and converted once, in a copy where they need it.
    `H` of the result is their conjugate transpose, or what `rmatvec` applies; a function of a vector has none.
    Raises MatrixError for a wrong shape or values, DeviceError where A and `like` are on different devices.
    """
    if A is None:
        return Identity()
    _refuse_recipe(A, name)
    n = like.size
    shape = getattr(A, "shape", (n, n) if callable(A) else np.shape(A))
    if tuple(shape) != (n, n):
        raise MatrixError(f"{name} has shape {tuple(shape)}, but the system needs ({n}, {n}).")
    if hasattr(A, "matvec"):
        matrix = A if isinstance(A, StencilMatrix | BlockMatrix) else None
        return Operator(A.matvec, name, (lambda: A.rmatvec) if hasattr(A, "rmatvec") else None, matrix)
    place = location(A)
    if place is None:
        if callable(A):
            return Operator(A, name)
        raise MatrixError(f"{name} is a {type(A).__name__}; a matrix, a LinearOperator or factors are needed.")
    if on_gpu(place) != on_gpu(like):
        raise DeviceError(f"{name} is on {_where(place)} but b is on {_where(like)}; move one of them first.")
    if not (isinstance(A, CSR) or hasattr(A, "tocsr") or hasattr(A, "to_scipy_sparse")):
        array = _dense(A, name, like, dtype)
        return Operator(array.__matmul__, name, lambda: array.conj().T.__matmul__, array)
    csr = _sparse(A, name, dtype)
    S = csr.tosparse()
    S.has_sorted_indices = True
    S.has_canonical_format = True  # as_csr saw to it; a look again would wait for the GPU
    return Operator(_product(S), name, lambda: _product(S.conj().T.tocsr()), csr)


def _refuse_recipe(A, name: str) -> None:
    """A MatrixError that says what to type where a recipe, its class or a name stands instead of factors."""
    if not isinstance(A, str | type | Recipe):
        return
    needed = (
        "a matrix or a LinearOperator is needed." if name == "A" else "factors, as of ILU0().factor(A), are needed."
    )
    try:
        recipe = recipe_of(A)
    except ParameterError:
        what = "a str" if isinstance(A, str) else "the class"
        raise MatrixError(f"{name} is {what}, {shown(A)}; {needed}{meant(A, RECIPES)}") from None
    if name == "A":
        raise MatrixError(f"A is the recipe {recipe!r}; {needed}")
    raise MatrixError(f"{name} is the recipe {recipe!r}, but factors are needed: {name}=finelu.{recipe!r}.factor(A).")


def _product(S):
    return S.__matmul__ if on_gpu(S) else Product(S)


def _where(array) -> str:
    return "the GPU" if on_gpu(array) else "the host"


def _dense(A, name, like, dtype):
    xp = namespace(like)
    dense = xp.asarray(A)
    if dense.dtype.kind not in "biufc":
        raise MatrixError(f"{name} has dtype {dense.dtype}; numbers are needed.")
    bad = ~xp.isfinite(dense)
    if bool(bad.any()):
        raise MatrixError(
            f"{name} holds NaN or Inf in row {int(xp.argmax(bad.any(axis=1)))}; find where they come from."
        )
    return dense.astype(dtype, copy=False)


def _sparse(A, name, dtype):
    try:
        return as_csr(A, diagonal=False, dtype=dtype)
    except MatrixError as error:
        if name == "A":
            raise
        raise MatrixError(f"{name} cannot be used; as a matrix A, {error}") from error
