"""How finelu's own arithmetic treats overflow, underflow and division by zero: never as an exception or a warning."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def judged(function: Callable[P, R]) -> Callable[P, R]:
    """`function` within np.errstate(all="ignore"), whatever the caller's is.

    For the public doors: `solve`, the Krylov methods, `factor`, `update`, and `solve` of factors. What NumPy computes
    behind them may leave the range of numbers, be it a norm, a product with A or a scaled pivot, and each result is
    judged by its value: by a Status, a ZeroPivot, a MatrixError that names the row. The caller's errstate is about the
    caller's arithmetic; were it heeded, np.errstate(all="raise") would turn an underflow that means nothing into an
    exception, and a warning made an error would do so, too. The compiled kernels know no errstate, so this also makes
    one behaviour of two. The doors have it, not each expression, since every expression behind them may be met by
    numbers as small or large as A holds. A function that the caller gives (a LinearOperator, a callback, a watch) is
    called within it. Cost: less than a microsecond.
    """

    @wraps(function)
    def door(*args: P.args, **kwargs: P.kwargs) -> R:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return door
