"""The public functions: inside of them overflow, underflow and division by zero are never an exception or a warning,
and the error for an unknown keyword suggests the most similar one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from traceback import walk_tb
from typing import Any, ParamSpec, TypeVar

import numpy as np

from finelu import compiling
from finelu.compiling import calls
from finelu.errors import DecompositionError, FineluError, UnknownParameter

P = ParamSpec("P")
R = TypeVar("R")


def ignore_fp_errors(function: Callable[P, R]) -> Callable[P, R]:
    """`function` within np.errstate(all="ignore"), whatever the caller's is.

    For the public functions: `solve`, the Krylov methods, `factor`, `update`, and `solve` of factors. Inside of them a
    norm, a product with A or a scaled pivot may leave the range of numbers, and each result is tested by its value: by
    a Status, a ZeroPivot, a MatrixError that names the row. The caller's errstate is for the caller's arithmetic.
    Inside of finelu, np.errstate(all="raise") would turn a harmless underflow into an exception, and so would a warning
    that is made an error. The compiled kernels ignore errstate, so that CPU kernels and NumPy behave alike. Whole
    functions have it, not single expressions, since numbers as small or large as those of A may occur in every
    expression. A function of the caller (a LinearOperator, a callback, a watch) is called within it. Cost: less than a
    microsecond. Raises UnknownParameter, which is a TypeError, for a keyword that `function` does not have, and
    DecompositionError instead of a LinAlgError from finelu's own calls of LAPACK or cuSOLVER.
    """

    @wraps(function)
    def door(*args: P.args, **kwargs: P.kwargs) -> R:
        calls.depth += 1
        try:
            with np.errstate(all="ignore"):
                return function(*args, **kwargs)
        except np.linalg.LinAlgError as error:
            if _is_of_finelu(error) and not isinstance(error, FineluError):
                raise DecompositionError(f"a small dense matrix has no such decomposition: {error}.") from error
            raise
        except TypeError:
            require_known(function, function.__qualname__.removesuffix(".__init__"), kwargs)
            raise
        finally:
            calls.depth -= 1
            if compiling.untold and not calls.depth:
                compiling.ended()

    return door


def _is_of_finelu(error: BaseException) -> bool:
    """Whether finelu's own code raised the error, not a function of the caller."""
    names = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    names = [name for name in names if name.partition(".")[0] not in ("numpy", "scipy", "cupy")]
    return names[-1].partition(".")[0] == "finelu"


def require_known(function: Callable[..., Any], name: str, keywords: Iterable[str]) -> None:
    """Raise UnknownParameter for the first of the keywords that `function`, shown as `name`, does not have."""
    known = signature(function).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for keyword in keywords:
        if keyword not in known:
            raise UnknownParameter(name, keyword, (other for other in known if other != "self")) from None
