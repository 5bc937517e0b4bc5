"""What all recipes have in common: how they print themselves, and how their parameters are read from text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np

from finelu.arithmetic import judged
from finelu.errors import ParameterError
from finelu.matrix import shown

LONGEST = 300  # characters of a parameter
LARGEST = 2**63 - 1


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe:
    """Parameters of a preconditioner; `factor(A)` of a subclass makes factors.

    A recipe prints itself as the shortest call that makes it again: only what differs from the default is named.
    `factor` of every subclass is `judged`: numbers out of range are for it to find, not for NumPy to raise.
    Raises ParameterError for arrays, lists and the like, and for integers beyond 64 bits; `factor` for all else that a
    parameter cannot be.
    """

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "factor" in vars(cls):
            cls.factor = judged(vars(cls)["factor"])

    def __post_init__(self):
        for f in fields(self):
            value = getattr(self, f.name)
            many = hasattr(value, "__len__") and not isinstance(value, str)
            if many or (isinstance(value, int) and abs(value) > LARGEST):
                what = f"one value is needed, no {type(value).__name__}" if many else "the integer is beyond 64 bits"
                raise ParameterError(f"{type(self).__name__}({f.name}=...): {what}.")

    def __repr__(self):
        changed = ((f.name, getattr(self, f.name)) for f in fields(self) if not same(getattr(self, f.name), f.default))
        return f"{type(self).__name__}({', '.join(f'{name}={shown(value, LONGEST)}' for name, value in changed)})"


def same(value, default) -> bool:
    """Whether they are equal; what is neither a number nor of the default's type, and may not compare, is not."""
    return value is default or (isinstance(value, type(default) | int | float | np.number) and bool(value == default))


def value_of(text: str, hint, true: Collection[str] = ("true",), false: Collection[str] = ("false",)) -> Any:
    """`text` as the first of the types of `hint` (int, float, bool, str, None or a union of them) that takes it.

    true, false : what is meant by them, in small letters. ValueError if no type takes it.
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
    if str in kinds:
        return text
    raise ValueError(text)
