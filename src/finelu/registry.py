"""Registries of classes by name: finelu's own, those that a program registers, and those of installed packages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from threading import Lock
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from finelu.errors import ParameterError, meant, plain


class Named(Protocol):
    """A class that is registered by its `name`."""

    name: ClassVar[str]


T = TypeVar("T", bound=Named)
_registering = Lock()


class Registry(Mapping[str, type[T]], Generic[T]):
    """A mapping from names to classes. The classes of installed packages are imported when they are looked up.

    base : the class from which all registered classes derive, a public name of finelu.
    word : the word for such a class in messages.
    group : the entry-point group in which a package names its classes.
    taken : reserved names, which mean something else.
    registered : the classes of finelu and of the program, in the order of their registration.
    """

    def __init__(self, base: type[T], word: str, group: str, taken: tuple[str, ...]):
        self.base, self.word, self.group, self.taken = base, word, group, taken
        self.registered: dict[str, type[T]] = {}

    def register(self, kind: Any) -> Any:
        """Make a class known by its `name`, and return it.

        Raises ParameterError if `kind` is not a subclass of `base`, or if another class has its name.
        """
        if not (isinstance(kind, type) and issubclass(kind, self.base)):
            raise ParameterError(f"register takes a subclass of finelu.{self.base.__name__}, not {kind!r}.")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", kind.name):
            raise ParameterError(
                f"{kind.__name__}: name={kind.name!r} is not allowed; use small letters, digits and _."
            )
        with _registering:
            known = self.registered.get(kind.name)
            spelt = {plain(kind.name), plain(kind.__name__)}
            others = {
                plain(word)
                for other in self.registered.values()
                if other is not known
                for word in (other.name, other.__name__)
            }
            of_another = known is not None and _place(known) != _place(kind)
            if kind.name in self.taken or spelt & others or of_another:
                raise ParameterError(
                    f"{kind.__name__}: the name {kind.name!r} is taken; give the class another `name`."
                )
            self.registered[kind.name] = kind
        return kind

    def key(self, name: str, *others: str) -> str:
        """The key, or the one of `others`, that `name` means. Raises ParameterError, with a list of all, if there is
        none.

        Names of classes are understood, too; "_", "-" and the case of letters make no difference.
        """
        known = {plain(kind.__name__): key for key, kind in list(self.registered.items())}
        known |= {plain(key): key for key in (*self, *others)}
        if plain(name) in known:
            return known[plain(name)]
        offered = (*others, *self)
        raise ParameterError(
            f"there is no {self.word} {name!r}; one of {', '.join(offered)} is needed."
            + meant(name, (*(kind.__name__ for kind in list(self.registered.values())), *offered))
        )

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        """The entry points of installed packages; no class is imported."""
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.registered}

    def _loaded(self, point: EntryPoint) -> type[T]:
        try:
            kind = point.load()
        except Exception as error:
            raise ParameterError(
                f"the {self.word} {point.name!r} of {point.value} cannot be loaded: {type(error).__name__}: {error}."
            ) from error
        if not (isinstance(kind, type) and issubclass(kind, self.base) and kind.name == point.name):
            raise ParameterError(
                f"the {self.word} {point.name!r} of {point.value} is {kind!r}; a subclass of "
                f"finelu.{self.base.__name__} with this `name` is needed."
            )
        return kind

    def __getitem__(self, name: str) -> type[T]:
        if name not in self.registered and name in self._installed:
            self.register(self._loaded(self._installed[name]))
        return self.registered[name]

    def __iter__(self) -> Iterator[str]:
        yield from list(self.registered)
        yield from (name for name in self._installed if name not in self.registered)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.registered or name in self._installed

    def __repr__(self) -> str:
        return f"<{self.word}s: {', '.join(self)}>"


def _place(kind: type) -> tuple[str, str]:
    """The module and qualified name of a class: a module that is loaded again defines the same class."""
    return kind.__module__, kind.__qualname__
