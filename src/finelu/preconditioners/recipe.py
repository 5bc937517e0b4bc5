"""The base class of all recipes: their facts, their printed form, and the checks of A."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from typing import Any, ClassVar, Self, get_args, get_type_hints

import numpy as np

from finelu import deadline
from finelu.arithmetic import ignore_fp_errors, require_known
from finelu.device import namespace, on_gpu, to_host
from finelu.errors import ParameterError
from finelu.factors import Factors
from finelu.kernels.operands import CSR
from finelu.matrix import checked_csr
from finelu.matrix.batch import Batch
from finelu.preconditioners.batch import BatchFactors, Prepared
from finelu.validation import PRECISIONS, choice, number, shown

LONGEST = 300  # characters of a parameter
LARGEST = 2**63 - 1  # integer of a parameter
ON_DEVICE, ON_CPU = "device of A", "CPU"


@dataclass(frozen=True, kw_only=True, repr=False)
class Parameters:
    """Named values that print as the shortest call that makes them again: only those that differ from the default.

    arrays : parameters that may be arrays, which are kept as `ArrayParameter`.
    Raises ParameterError for other arrays, lists and the like, for integers beyond 64 bits, and as `check` does.
    """

    arrays: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, *args: Any, **parameters: Any) -> Self:
        if not parameters.keys() <= cls.__dataclass_fields__.keys():
            require_known(cls.__init__, cls.__name__, parameters)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            many = hasattr(value, "__len__") and not isinstance(value, str)
            if many and f.name in self.arrays:
                try:
                    object.__setattr__(self, f.name, ArrayParameter(value))
                except ValueError:
                    raise ParameterError(
                        f"{type(self).__name__}({f.name}=...): an array is needed, no {type(value).__name__} of "
                        "rows of different lengths."
                    ) from None
                continue
            if many or (isinstance(value, int) and abs(value) > LARGEST):
                what = f"one value is needed, no {type(value).__name__}" if many else "the integer is beyond 64 bits"
                raise ParameterError(f"{type(self).__name__}({f.name}=...): {what}.")
        self.check()

    def check(self) -> None:
        """Raise ParameterError, naming the parameter, for a value without a meaning. It is called once, when the object
        is made."""

    def __repr__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        changed = ((f.name, getattr(self, f.name)) for f in fields(self) if not same(getattr(self, f.name), f.default))
        return f"{type(self).__name__}({', '.join(f'{name}={shown(value, LONGEST)}' for name, value in changed)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe(Parameters):
    """Parameters of a preconditioner; `factor(A)` of a subclass makes factors.

    `factor` of every subclass runs under `ignore_fp_errors`: it tests its results for overflow itself, and NumPy raises
    nothing. A parameter without a meaning is refused when the recipe is made, by `check`; `factor` raises
    ParameterError for what does not fit A.

    The facts of a recipe are attributes of its class. Code that depends on them, such as the choice of the method in
    `finelu solve`, or of the recipes in `finelu compare`, reads them here:
    name : the key in `RECIPES`; the name of the class in small letters, if not given.
    hermitian : needs A = A^H, and factors only its lower triangle.
    keeps_symmetry : M = M^T if A = A^T.
    keeps_hermitian : M = M^H if A = A^H; the value of keeps_symmetry, if not given.
    keeps_definite : M is Hermitian positive definite if A is, so that cg and minres can take it.
    full_diagonal : needs a stored entry for every row of A's diagonal.
    normal : M is about A^H A, for least squares, and A has any shape; such a recipe is not for A x = b.
    matrices : the kinds of matrix with an algorithm of their own; "CSR" stands for all that `finelu.as_csr` takes.
    factored_on, applied_on : "device of A" or "CPU".
    precisions : the values of the parameter `precision`, if there is one.
    batched : the parameters that have an effect on a `Batch`; None: the recipe does not take one.
    """

    name: ClassVar[str] = ""
    hermitian: ClassVar[bool] = False
    keeps_symmetry: ClassVar[bool] = False
    keeps_hermitian: ClassVar[bool] = False
    keeps_definite: ClassVar[bool] = False
    full_diagonal: ClassVar[bool] = True
    normal: ClassVar[bool] = False
    matrices: ClassVar[tuple[str, ...]] = ("CSR",)
    factored_on: ClassVar[str] = ON_DEVICE
    applied_on: ClassVar[str] = ON_DEVICE
    precisions: ClassVar[tuple[str | None, ...]] = PRECISIONS
    batched: ClassVar[tuple[str, ...] | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "factor" in vars(cls):
            cls.factor = _door(vars(cls)["factor"])  # type: ignore[assignment,method-assign]
        if "keeps_symmetry" in vars(cls) and "keeps_hermitian" not in vars(cls):
            cls.keeps_hermitian = cls.keeps_symmetry
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    @property
    def complete(self) -> bool:
        """Whether these parameters leave nothing out of the factors, see `Factors.complete`."""
        return False

    def check(self) -> None:
        number("shift", getattr(self, "shift", 0.0), of=self)
        precision = getattr(self, "precision", None)
        choice("precision", precision, self.precisions, of=self)
        if precision == "auto" and getattr(self, "triangular", None) == "isai":
            raise ParameterError(
                f"{self!r}: isai solves with inverses, which precision='auto' does not round; leave it out."
            )
        if precision == "half" and getattr(self, "triangular", None) != "jacobi":
            raise ParameterError(
                f"{self!r}: half precision is for triangular='jacobi'; exact solves wait for levels, and gain nothing."
            )

    def factor(self, A: Any) -> Factors:
        """Factors of A (n, n), which is not written; of a `Batch` its BatchFactors."""
        raise NotImplementedError(f"{type(self).__name__} has no factor(A).")

    def prepared(self, batch: Batch) -> Prepared:
        """The plan by which the matrices of a Batch are factored, by recipes that take one: those with `batched`."""
        raise NotImplementedError(f"{type(self).__name__} has no prepared(batch).")


def _door(factor: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The method `factor` of a recipe with `ignore_fp_errors`; of a Batch it makes BatchFactors."""

    @wraps(factor)
    def door(self: Recipe, A: Any) -> Any:
        return _factored_together(self, A) if isinstance(A, Batch) else factor(self, A)

    return ignore_fp_errors(door)


def _factored_together(recipe: Recipe, batch: Batch) -> BatchFactors:
    if recipe.batched is None:
        raise ParameterError(f"{recipe!r} does not factor a Batch; Jacobi, BlockJacobi, ILU0, IC0, ILUK, SparseLU do.")
    for f in fields(recipe):
        if f.name not in recipe.batched and not same(getattr(recipe, f.name), f.default):
            raise ParameterError(f"{recipe!r}: {f.name} has no effect on a Batch; leave it out.")
    return BatchFactors(recipe, batch, recipe.prepared(batch))


class ArrayParameter:
    """An array that a recipe was given: a copy of its own, equal to another of the same numbers."""

    def __init__(self, array: Any):
        self.array = array.copy() if on_gpu(array) else np.array(array)

    def _content(self) -> tuple[Any, ...]:
        host = to_host(self.array)
        return host.shape, str(host.dtype), host.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayParameter) and (self is other or self._content() == other._content())

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        return f"<{self.array.dtype} array of shape {self.array.shape}>"


def same(value: Any, default: Any) -> bool:
    """True if value equals default. An object of another type that is not a number counts as different (it may not
    support ==)."""
    return value is default or (isinstance(value, type(default) | int | float | np.number) and bool(value == default))


def value_of(text: str, hint: Any, true: Collection[str] = ("true",), false: Collection[str] = ("false",)) -> Any:
    """`text` as the first of the types of `hint` (int, float, bool, str, None, a class of parameters such as `Sweeps`,
    given as "initial=scaled,update=2", or a union of them) that takes it.

    true, false : the texts, in small letters, for True and False. ValueError if no type takes `text`.
    """
    kinds = get_args(hint) or (hint,)
    for kind in kinds:
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        if kind is bool and text.lower() in (*true, *false):
            return text.lower() in true
        if kind is type(None) and text.lower() == "none":
            return None
        if isinstance(kind, type) and issubclass(kind, Parameters) and "=" in text:
            hints, values = get_type_hints(kind), dict[str, Any]()
            for name, _, value in (part.strip().partition("=") for part in text.split(",")):
                if name not in hints:
                    raise ValueError(text)
                values[name] = value_of(value, hints[name], true, false)
            return kind(**values)
    if str in kinds:
        return text
    raise ValueError(text)


def checked(recipe: Any, A: Any, *, diagonal: bool | None = None) -> CSR:
    """A as checked by `as_csr`, in the precision of the recipe.

    diagonal : whether all its entries must be stored; None: by the recipe's facts.
    """
    deadline.check()
    A = checked_csr(A, diagonal=recipe.full_diagonal if diagonal is None else diagonal)
    if recipe.precision == "half" and not (on_gpu(A.data) and A.dtype.kind == "f"):
        what = "A is complex" if on_gpu(A.data) else "A is on the host"
        raise ParameterError(f"{recipe!r}: {what}, and half precision is for real matrices on a GPU; take 'auto'.")
    return (
        A
        if recipe.precision in (None, "auto", "half")
        else checked_csr(A, diagonal=False, dtype=in_precision(recipe.precision, A.dtype))
    )


def in_precision(precision: str, dtype: Any) -> np.dtype[Any]:
    """The real or complex dtype, as `dtype` is, of this precision."""
    return np.result_type(precision, np.complex64 if np.dtype(dtype).kind == "c" else np.float32)


def shifted(A: CSR, shift: float) -> Any:
    """A's values with the diagonal moved away from zero by `shift` times |A_ii|; a zero entry becomes `shift` times the
    largest magnitude of its row. A's own array if shift is 0."""
    if shift == 0:
        return A.data
    xp = namespace(A.data)
    data = A.data.copy()
    d = data[A.diag]
    zero = d == 0
    if bool(zero.any()):
        largest = xp.asarray(abs(A.tosparse()).max(axis=1).toarray()).ravel()
        d = xp.where(zero, shift * largest.astype(A.dtype), d * (1 + shift))
    else:
        d = d * (1 + shift)
    data[A.diag] = d.astype(A.dtype)
    return data


def on_host(A: CSR, shift: float) -> CSR:
    """A with its diagonal shifted, in the memory of the host."""
    return A.with_values(shifted(A, shift)).on(np)
