"""The Krylov methods of scipy.sparse.linalg by finelu's, with SciPy's meaning, for programs that cannot be edited.

`bicg`, `bicgstab`, `cg`, `gmres` and `minres` have SciPy's arguments, and return the tuple (x, info); `lsmr` and `lsqr`
alike, and return SciPy's tuples. Systems that finelu's methods refuse are solved by SciPy's own: those that `cg` finds
not to be positive definite, `minres` not to be symmetric, and those with NaN, without rows or of the wrong shape, for
which SciPy's may raise its own error. So are least-squares problems without iterations, and those
with limits that finelu's refuse, as a maxiter of 1e3.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from finelu import foreign, krylov
from finelu.arithmetic import require_known
from finelu.errors import MatrixError, ParameterError
from finelu.interop.scipy.system import of_scipy
from finelu.krylov.conventions import CALLBACK_TYPES
from finelu.krylov.least_squares import LeastSquares, Limits
from finelu.krylov.system import System
from finelu.result import LeastSquaresSolution, Solution, Status
from finelu.validation import choice

OF_SCIPY = 20  # iterations of a cycle of SciPy's gmres
REFUSED = (Status.INDEFINITE, Status.INDEFINITE_PRECONDITIONER, Status.NOT_SYMMETRIC)  # where SciPy's methods go on
WITHOUT_TYPE = (
    "gmres called without specifying `callback_type`. As SciPy's, it calls callback with a norm, and maxiter counts "
    "iterations: callback_type='legacy'."
)

Pair = tuple[Any, int]


class Raised(Exception):
    """An exception of the caller's callback, `args[0]`, on its way out of the solve, which StopIteration would end."""


class Called:
    """A callback as SciPy calls it: what it returns has no meaning, and each of its exceptions passes through.

    calls : the number of its calls.
    """

    def __init__(self, callback: Callable[[Any], object]):
        self.callback, self.calls = callback, 0

    def __call__(self, v: Any) -> None:
        self.calls += 1
        try:
            self.callback(v)
        except Exception as error:
            raise Raised(error) from None

    def later(self) -> Callable[[Any], object]:
        """The callback for the same solve once more: it is not called again for the iterations that it has seen."""
        seen = iter(range(self.calls))
        return lambda v: self.callback(v) if next(seen, None) is None else None


def in_place_of(theirs: Callable[..., Pair], ours: Callable[..., Solution]) -> Callable[..., Pair]:
    """`ours`, a function of `finelu.krylov`, in place of `theirs`, the function of SciPy."""
    known = inspect.signature(theirs)

    @wraps(theirs)
    def function(*args: Any, **kwargs: Any) -> Pair:
        given = _arguments(theirs, known, args, kwargs)
        if "callback_type" in known.parameters:
            _complete(given)
        if "shift" in known.parameters:
            _simplify(given)
        callback, found, error = given.get("callback"), None, None
        called = None if callback is None else Called(callback)
        try:
            found = ours(**given | {"callback": called})
        except Raised as raised:
            error = raised.args[0]
        except MatrixError:
            if not (given.get("check") or _is_refused(given)):  # the caller's operator raised it
                raise
        if error is not None:  # raised here, where it gets no other exception as its context
            raise error
        if found is not None and found.status not in REFUSED:
            return found.x, found.info
        return theirs(**given | {"callback": None if called is None else called.later()})

    function.__module__, function.__qualname__ = __name__, function.__name__  # where pickle finds it
    return function


def _arguments(theirs: Any, known: inspect.Signature, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; an UnknownParameter for a keyword that SciPy's function does not have."""
    try:
        return known.bind(*args, **kwargs).arguments
    except TypeError:
        require_known(theirs, theirs.__name__, kwargs)
        raise


def _is_refused(given: dict[str, Any]) -> bool:
    """Whether finelu's methods refuse A, b, x0 or M."""
    try:
        System.checked(given["A"], given["b"], given.get("x0"), given.get("M"))
    except MatrixError:
        return True
    return False


def least_squares_in_place_of(
    theirs: Callable[..., tuple[Any, ...]], ours: Callable[..., LeastSquaresSolution]
) -> Callable[..., tuple[Any, ...]]:
    """`ours`, lsmr or lsqr of `finelu.krylov`, in place of `theirs`, the function of SciPy."""
    known = inspect.signature(theirs)

    @wraps(theirs)
    def function(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = _arguments(theirs, known, args, kwargs)
        asked = given | {name: bool(given[name]) for name in ("show", "calc_var") if name in given}
        if "iter_lim" in asked:
            asked["maxiter"] = asked.pop("iter_lim")
        if asked.get("maxiter") == 0:
            return theirs(**given | {"A": of_scipy(given["A"])})
        b = np.atleast_1d(asked["b"])
        b = b.reshape(-1) if b.size == max(b.shape) else b  # a column is a vector
        try:
            asked["b"] = b.astype(np.result_type(b, float), copy=False)  # SciPy computes in double precision
            if b.ndim == 1:
                return tuple(ours(**asked))
        except (MatrixError, ParameterError):
            if not _is_no_problem(asked):  # the caller's operator raised it
                raise
        return theirs(**given)

    function.__module__, function.__qualname__ = __name__, function.__name__
    return function


def _is_no_problem(asked: dict[str, Any]) -> bool:
    """Whether finelu's methods refuse A, b, x0, damp or a limit."""
    try:
        LeastSquares(asked["A"], asked["b"], asked.get("x0"), None, asked.get("damp", 0.0))
        atol, btol, conlim = (asked.get(name, 0.0) for name in ("atol", "btol", "conlim"))
        Limits.checked(atol, btol, conlim, asked.get("maxiter"), usual=1)
    except (MatrixError, ParameterError):
        return True
    return False


def _complete(given: dict[str, Any]) -> None:
    """The arguments of gmres with SciPy's defaults: a cycle has 20 iterations; maxiter counts cycles without a
    callback; a callback without callback_type gets norms, and maxiter then counts iterations."""
    choice("callback_type", given.get("callback_type"), CALLBACK_TYPES)
    if given.get("callback") is None:
        given["callback_type"] = "x"
    elif given.get("callback_type") is None:
        warnings.warn(WITHOUT_TYPE, DeprecationWarning, stacklevel=3)
        given["callback_type"] = "legacy"
    if given.get("restart") is None:
        given["restart"] = OF_SCIPY


def _simplify(given: dict[str, Any]) -> None:
    """The arguments of minres, which SciPy takes in other forms, too: 0 and 1 as flags, a shift in an array."""
    given |= {name: bool(given[name]) for name in ("show", "check") if name in given}
    if isinstance(given.get("shift"), np.ndarray) and given["shift"].size == 1:
        given["shift"] = given["shift"].item()


bicg = in_place_of(foreign.bicg, krylov.bicg)
bicgstab = in_place_of(foreign.bicgstab, krylov.bicgstab)
cg = in_place_of(foreign.cg, krylov.cg)
gmres = in_place_of(foreign.gmres, krylov.gmres)
minres = in_place_of(foreign.minres, krylov.minres)
lsmr = least_squares_in_place_of(foreign.lsmr, krylov.lsmr)
lsqr = least_squares_in_place_of(foreign.lsqr, krylov.lsqr)
