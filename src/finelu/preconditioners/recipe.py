"""What all recipes have in common: how they print themselves."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe:
    """Parameters of a preconditioner; `factor(A)` of a subclass makes factors.

    A recipe prints itself as the shortest call that makes it again: only what differs from the default is named.
    """

    def __repr__(self):
        changed = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed)})"
