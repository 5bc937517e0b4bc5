"""SciPy's arguments that finelu's methods do not have, translated into theirs before the method begins."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from finelu.device import namespace, sparse_module
from finelu.errors import MatrixError
from finelu.krylov.loop import Callback, Watch
from finelu.krylov.operators import location, order, value_dtype
from finelu.krylov.system import System
from finelu.matrix import CSR, as_csr
from finelu.matrix.vectors import norm
from finelu.result import Solution, Status
from finelu.validation import choice, count, flag, number

# The arguments, with their defaults, that the functions of these methods have for `Call`.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "gmres": {"callback_type": None},
    "minres": {"shift": 0.0, "show": False, "check": False},
}
CALLBACK_TYPES = (None, "x", "pr_norm", "legacy")
UNTOLD = (
    "gmres called without specifying `callback_type`. callback(x) is called after each cycle, and maxiter counts "
    "iterations; callback_type='x' calls it with x, too, and maxiter counts cycles, as in SciPy; with 'pr_norm' or "
    "'legacy' it gets a norm after each iteration, as it does by default in SciPy."
)
UNTOLD_SCIPY = (
    "gmres called without specifying `callback_type`. As SciPy's, it calls callback with a norm, and maxiter counts "
    "iterations: callback_type='legacy'."
)
OF_SCIPY = 20  # iterations of a cycle of SciPy's gmres


@dataclass
class Call:
    """The arguments of SciPy's `gmres` and `minres` in a call, by their names there.

    cycle : the iterations that maxiter counts as one.
    """

    callback_type: str | None = None
    shift: float = 0.0
    show: bool = False
    check: bool = False
    cycle: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        choice("callback_type", self.callback_type, CALLBACK_TYPES)
        flag("show", self.show)
        flag("check", self.check)

    def matrix(self, A: Any) -> Any:
        """A, or A - shift I."""
        return shifted(A, self.shift) if self.shift != 0 else A

    def arguments(
        self, system: System, maxiter: int | None, restart: int | None, callback: Callback, watch: Watch
    ) -> tuple[int | None, Callback, Watch]:
        """(maxiter, callback, watch) in finelu's meaning.  restart : the iterations of a cycle, None by default."""
        if self.callback_type in ("x", "pr_norm"):
            from finelu.krylov.gmres import RESTART  # which imports this module

            length = count("restart", RESTART if restart is None else restart, 1)
            self.cycle = max(min(length, system.unknowns), 1)
            maxiter = None if maxiter is None else count("maxiter", maxiter) * self.cycle
        if self.show:
            watch = shown(watch)
        if callback is not None and self.callback_type in ("pr_norm", "legacy"):
            watch, callback = with_norms(watch, callback, norm(system.b)), None
        return maxiter, callback, watch

    def result(self, found: Solution) -> Solution:
        """The solution, whose `info` counts as maxiter does."""
        if self.check and found.status is Status.NOT_SYMMETRIC:
            raise MatrixError(f"check=True: {found.status.value}.")
        if self.show:
            print(f"{found.method}: {found.status.name.lower()}, {found.status.value}", file=sys.stdout)
        return replace(found, cycle=self.cycle)


def warn_of_callback() -> None:
    """The warning of SciPy's gmres, for a callback whose type is not given: the default here is another one."""
    warnings.warn(UNTOLD, DeprecationWarning, stacklevel=4)


def as_scipy(method: Callable[..., Solution]) -> Callable[..., tuple[Any, int]]:
    """The function of a method with SciPy's meaning wherever the two differ, for programs that cannot be edited.

    It returns the tuple (x, info). In gmres a cycle has 20 iterations by default, maxiter counts cycles, and a callback
    without callback_type is a "legacy" one: it gets norms, and maxiter counts iterations.
    """
    takes_type = "callback_type" in ARGUMENTS.get(method.__name__, {})

    @wraps(method)
    def function(*args: Any, **kwargs: Any) -> tuple[Any, int]:
        if takes_type:
            if kwargs.get("callback") is None:
                kwargs["callback_type"] = "x"
            elif kwargs.get("callback_type") is None:
                warnings.warn(UNTOLD_SCIPY, DeprecationWarning, stacklevel=2)
                kwargs["callback_type"] = "legacy"
            kwargs["restart"] = OF_SCIPY if kwargs.get("restart") is None else kwargs["restart"]
        solution = method(*args, **kwargs)
        return solution.x, solution.info

    return function


def shifted(A: Any, shift: float) -> Any:
    """A - shift I: a matrix if the entries of A are known, else an operator.

    A : as for the Krylov methods.  shift : a real number.
    Raises MatrixError if A is not square, ParameterError if shift is not a finite number.
    """
    shift, n = number("shift", shift, low=-np.inf), order(A)
    if hasattr(A, "matvec"):
        dtype = value_dtype(A)
        return spla.LinearOperator((n, n), matvec=lambda x: A.matvec(x) - dtype.type(shift) * x, dtype=dtype)
    place = location(A)
    if isinstance(A, CSR) or sp.issparse(A) or hasattr(A, "tocsr") or hasattr(A, "to_scipy_sparse"):
        matrix = as_csr(A, diagonal=False).tosparse()
        return matrix - shift * sparse_module(place).identity(n, dtype=matrix.dtype, format="csr")
    xp = namespace(place)
    return xp.asarray(A) - shift * xp.eye(n, dtype=value_dtype(A))


def with_norms(watch: Watch, callback: Callable[[Any], object], size: float) -> Watch:
    """A watch that also calls callback(||b - A x|| / ||b||) after each iteration.  size : ||b||."""

    def seen(iteration: int, norm: float) -> bool:
        stop = watch is not None and watch(iteration, norm) is True
        return (iteration > 0 and callback(np.float64(norm) / size) is True) or stop

    return seen


def shown(watch: Watch) -> Watch:
    """A watch that also prints each norm."""

    def seen(iteration: int, norm: float) -> object:
        print(f"{iteration:8d}  {norm:.6e}", file=sys.stdout)
        return None if watch is None else watch(iteration, norm)

    return seen
