"""SciPy's arguments that finelu's methods do not have, translated into theirs before the method begins."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
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
WITHOUT_TYPE = (
    "gmres called without specifying `callback_type`. callback(x) is called after each cycle, and maxiter counts "
    "iterations; callback_type='x' calls it with x, too, and maxiter counts cycles, as in SciPy; with 'pr_norm' or "
    "'legacy' it gets a norm after each iteration, as it does by default in SciPy."
)


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
        self.shift = number("shift", self.shift, low=-np.inf)
        flag("show", self.show)
        flag("check", self.check)

    @classmethod
    def taken(cls, options: dict[str, Any], names: Iterable[str]) -> Call | None:
        """The call with those of `names` that are in `options`, from which they are removed; None without any."""
        given = {name: options.pop(name) for name in names if name in options}
        return cls(**given) if given else None

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
            maxiter = (10 * system.unknowns if maxiter is None else count("maxiter", maxiter)) * self.cycle
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
    warnings.warn(WITHOUT_TYPE, DeprecationWarning, stacklevel=4)


def shifted(A: Any, shift: float) -> Any:
    """A - shift I: a matrix if the entries of A are known, else an operator.

    A : as for the Krylov methods.  shift : a finite real number.
    Raises MatrixError if A is not square.
    """
    n = order(A)
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
