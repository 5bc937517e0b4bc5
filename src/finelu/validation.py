"""Checks of parameters: a number, an integer, one of the offered names. Each check has one function.

`of` is the recipe that a parameter belongs to; without it the parameter is an argument of a function, and the message
has its value. NumPy's scalars are numbers; True and False are not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from finelu.errors import ParameterError, meant

PRECISIONS = (None, "float32", "float64")
STORED = (*PRECISIONS, "auto", "half")  # also in single or half precision only for the solves


def number(
    name: str,
    value: Any,
    low: float = 0.0,
    high: float = math.inf,
    *,
    open_low: bool = False,
    infinite: bool = False,
    of: Any = None,
) -> float:
    """`value` as a float from low (above low, if open_low) to high; else a ParameterError.

    It may be a real number of Python or of NumPy; for a function also a Decimal, a Fraction or an array without
    dimensions (recipes keep the object itself, and compute with it).  infinite : whether Inf is allowed, too.
    """
    given = value
    if type(value) is float and (low < value < high or (value == low and not open_low)):
        return value
    if of is None and isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    kinds = Real | Decimal if of is None else int | float | np.integer | np.floating
    if isinstance(value, bool | np.bool_) or not isinstance(value, kinds):
        raise _refused(of, name, given, _interval(low, high, open_low, infinite) if of is not None else "a number")
    try:
        result = float(value)
    except (OverflowError, ValueError):  # a ValueError for a signaling NaN
        result = math.nan
    if not ((low < result or (result == low and not open_low)) and result <= high and (infinite or result < math.inf)):
        shorter = result if math.isfinite(result) else given
        raise _refused(of, name, shorter, _interval(low, high, open_low, infinite, in_words=of is None))
    return result


def count(name: str, value: Any, least: int = 0, most: int | None = None, *, of: Any = None) -> int:
    """`value` as an int from `least` to `most`; else a ParameterError."""
    if most is not None:
        wanted = f"an integer from {least} to {most}"
    else:
        wanted = "an integer" if of is None else f"an integer >= {least}"
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        result = operator.index(value)
    except TypeError:
        raise _refused(of, name, value, wanted) from None
    if result < least or (most is not None and result > most):
        raise _refused(of, name, result, wanted if of is not None or most is not None else f"at least {least}")
    return result


def choice(name: str, value: Any, offered: Iterable[str | bool | None], *, of: Any = None) -> None:
    """A ParameterError, with the most similar name, unless `value` is one of the offered ones."""
    offered = tuple(offered)
    if (value is None or type(value) is str) and value in offered:
        return
    plain = bool(value) if isinstance(value, np.bool_) else value
    if any(plain is one or (isinstance(one, str) and isinstance(plain, str) and plain == one) for one in offered):
        return
    if all(isinstance(one, str) for one in offered):
        wanted = f"one of {', '.join(map(str, offered))}"
    elif len(offered) > 3:
        wanted = f"one of {', '.join(map(repr, offered))}"
    else:
        wanted = f"{', '.join(map(repr, offered[:-1]))} or {offered[-1]!r}"
    raise ParameterError(str(_refused(of, name, value, wanted)) + meant(value, offered))


def flag(name: str, value: Any, *, optional: bool = False, of: Any = None) -> None:
    """A ParameterError unless `value` is True or False, or None if it is optional."""
    if value is not True and value is not False:
        choice(name, value, (True, False, None) if optional else (True, False), of=of)


def require_functions(**given: Any) -> None:
    """A ParameterError that names the first of these that is neither None nor callable."""
    for name, one in given.items():
        if one is not None and not callable(one):
            raise ParameterError(f"{name}={shown(one)}; a function or None is needed.")


def shown(value: Any, most: int = 60) -> str:
    """`value` for a message of one line, cut to `most` characters."""
    try:
        text = str(value) if isinstance(value, int | float | np.number) else repr(value)
    except ValueError:  # an int of more digits than Python writes
        return "an integer of thousands of digits"
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _interval(low: float, high: float, open_low: bool, infinite: bool, *, in_words: bool = False) -> str:
    if high < math.inf:
        return f"a number > {low:g} and <= {high:g}" if open_low else f"a number from {low:g} to {high:g}"
    kind = "a number" if infinite else "a finite number"
    if in_words and low == 0 and not open_low:
        return f"{kind}, zero or larger,"
    return f"{kind} {'>' if open_low else '>='} {low:g}"


def _refused(of: Any, name: str, value: Any, wanted: str) -> ParameterError:
    if of is None:
        return ParameterError(f"{name}={shown(value)}; {wanted} is needed.")
    return ParameterError(f"{of!r}: {name} must be {wanted}.")
