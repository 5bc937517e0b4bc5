"""Reports of factorizations: a dataclass for each family of recipes, which is a mapping and prints as a table."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, repr=False)
class Report(MutableMapping[str, Any]):
    """Facts about factors, by name: `report.warning`, or `report["warning"]`.

    As a mapping it leaves out facts that are None: `"warning" in report`, `report.get("warning")`, `dict(report)`.
    factored_on, applied_on : "CPU" or "GPU".
    warning : a message for the user.
    numeric_seconds : of the last factorization or update. All seconds are the host's: a GPU may still be at work.
    """

    factored_on: str | None = None
    applied_on: str | None = None
    numeric_seconds: float | None = None
    warning: str | None = None

    def __getitem__(self, name: str) -> Any:
        value = vars(self).get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        if callable(getattr(type(self), name, None)):
            raise KeyError(f"{name!r} is a method of the report; give the fact another name.")
        setattr(self, name, value)

    def __delitem__(self, name: str) -> None:
        self[name]  # a KeyError if it is missing
        setattr(self, name, None)

    def __iter__(self) -> Iterator[str]:
        return (name for name, value in vars(self).items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __ior__(self, facts: MutableMapping[str, Any] | dict[str, Any]) -> Report:
        self.update(facts)
        return self

    def warn(self, text: str) -> None:
        """Add to the warning."""
        self.warning = "; ".join([*filter(None, [self.warning]), text])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        rows = [(name, line) for name, value in self.items() for line in _lines(value)]
        begins = [k == 0 or rows[k - 1][0] != name for k, (name, _) in enumerate(rows)]
        lines = (f"{name if first else '':{width}}  {line}" for (name, line), first in zip(rows, begins, strict=True))
        return "\n".join(line.rstrip() for line in lines)


@dataclass(eq=False, repr=False)
class TriangularReport(Report):
    """The report of factors that are applied by triangular solves.

    variant : the elimination kernel.
    analysis_seconds : of the analysis of the pattern for the factorization.
    triangular_seconds : of the analyses of the solves.
    triangular : method and number of levels of each triangle that is solved with.
    trial_residual : see `finelu.factors.trial_residual`.
    dense_last : the number of dense rows that were moved to the end, since they would fill in, see
        `finelu.ordering.dense_last`; None for 0.
    With precision="auto" or "half" also:
    stored, stored_since : the dtype in which solves read the factors; why it is double precision where it is.
    rounding_change : ||M'^-1 M y - y|| / ||y|| for a random y, M' being the rounded M; for jacobi
        ||M'^-1 r - M^-1 r|| / ||M^-1 r|| for a random r; of Cholesky factors the same of L. None if entries are beyond
        the range of single precision.
    """

    variant: str | None = None
    analysis_seconds: float = 0.0
    triangular_seconds: float | None = None
    triangular: dict[str, dict[str, Any]] = field(default_factory=dict)
    trial_residual: float | None = None
    dense_last: int | None = None
    stored: str | None = None
    stored_since: str | None = None
    rounding_change: float | None = None


def _lines(value: Any) -> list[str]:
    """The text of a fact: a line, or for several dicts a table."""
    if isinstance(value, dict):
        return [f"{name}: {_text(one)}" for name, one in value.items()] or ["-"]
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        names = list(dict.fromkeys(name for one in value for name in one))
        cells = [names, *([_text(one[name]) if name in one else "" for name in names] for one in value)]
        widths = [max(len(row[k]) for row in cells) for k in range(len(names))]
        return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    return [_text(value)]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value)) or "-"
    return str(value)
