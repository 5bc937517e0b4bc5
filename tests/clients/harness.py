"""Examples of a client, each with the client's default solver and with finelu: results compared, solvers timed.

`with_<client>.py` has the function `examples() -> list[Example]`. This file runs them, in the client's environment:

    python harness.py CLIENT FILE    # writes to FILE, as JSON, the rows of the table, or why there are none
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse.linalg

import finelu
from finelu.recent import RECENT

REPEATS = 3  # the shortest of these runs counts, after one that may compile
SOLVERS = (
    *("spsolve", "splu", "spilu", "factorized", "spsolve_triangular"),
    *("bicg", "bicgstab", "cg", "gmres", "minres", "eigs", "eigsh"),
)


@dataclass(frozen=True)
class Example:
    """One computation by a client.

    run : computes, with the client's default solver, what is compared: an array, or several.
    finelu : computes the same with finelu; None: `run`, inside of `finelu.install`.
    modules : with which words the names of the modules begin that took SciPy's functions when they were imported:
        `install` and the clock replace them there, too.
    tolerance : of the relative difference of the results, in 2-norms.
    """

    name: str
    run: Callable[[], Any]
    finelu: Callable[[], Any] | None = None
    modules: tuple[str, ...] = ()
    tolerance: float = 1e-8


@dataclass
class Row:
    """A line of the table.

    default, finelu, again : seconds in the solvers; again: those of finelu once the analyses are known.
    wrong : whether the results differ.
    """

    example: str
    outcome: str
    wrong: bool = False
    rows: int = 0
    calls: int = 0
    default: float = 0.0
    finelu: float = 0.0
    again: float = 0.0
    difference: float = 0.0


class Clock:
    """Adds up the time of the functions that it watches; a call inside of another is part of that one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seconds, self.calls, self.rows, self._depth = 0.0, 0, 0, 0

    @contextmanager
    def running(self, *arguments: Any) -> Iterator[None]:
        """arguments : of the call; the largest matrix among them is the system's."""
        self._depth += 1
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.seconds += time.perf_counter() - begun
                self.calls += 1
                shapes = [getattr(a, "shape", ()) for a in arguments]
                self.rows = max([self.rows, *(shape[0] for shape in shapes if len(shape) == 2)])

    def watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed, and so are the solves of the factors that it returns."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.running(*args):
                result = function(*args, **kwargs)
            if hasattr(result, "solve"):
                return Factors(self, result)
            return self.watch(result) if callable(result) else result

        return timed


class Factors:
    """Factors with a timed `solve`."""

    def __init__(self, clock: Clock, factors: Any):
        self._factors, self.solve = factors, clock.watch(factors.solve)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._factors, name)


CLOCK = Clock()
watch = CLOCK.watch


@contextmanager
def watched(modules: list[ModuleType]) -> Iterator[None]:
    """Watch the solvers of SciPy, or those that stand in their place, by the names that these modules have for them."""
    places = [
        (module, name, function)
        for module in dict.fromkeys((scipy.sparse.linalg, *modules))
        for name, function in list(vars(module).items())
        if name in SOLVERS and getattr(function, "__module__", "").startswith(("scipy.", "finelu."))
    ]
    for module, name, function in places:
        setattr(module, name, CLOCK.watch(function))
    try:
        yield
    finally:
        for place in places:
            setattr(*place)


def forget() -> None:
    """Drop all that finelu has kept. Factors that are dropped give back an analysis, which is then kept: so twice."""
    for _ in range(2):
        RECENT.__init__()


def measured(example: Example, by_finelu: bool) -> tuple[Any, float]:
    """The result, and the seconds in the solvers."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(example.modules)]
    adapter = example.finelu if by_finelu else None
    with finelu.install(*modules) if by_finelu and adapter is None else nullcontext(), watched(modules):
        CLOCK.reset()
        result = (adapter or example.run)()
        return result, CLOCK.seconds


def difference(found: Any, expected: Any) -> float:
    """The largest relative difference of two results, array by array; Inf if NaN is in one of them alone."""
    if isinstance(expected, list | tuple):
        if len(found) != len(expected):
            return np.inf
        return max(difference(a, b) for a, b in zip(found, expected, strict=True))
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return np.inf
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))


def compared(example: Example) -> Row:
    """Run an example once by both, then in turns for the times."""
    times: dict[str, list[float]] = {"default": [], "finelu": [], "again": []}
    try:
        expected, _ = measured(example, by_finelu=False)
    except Exception as error:
        return Row(example.name, f"not run: the client's own solver fails: {_named(error)}")
    rows, calls = CLOCK.rows, CLOCK.calls
    try:
        found, _ = measured(example, by_finelu=True)
        for _ in range(REPEATS):
            for which, seconds in times.items():
                if which == "finelu":
                    forget()
                seconds.append(measured(example, which != "default")[1])
    except Exception as error:
        return Row(example.name, f"fails: {_named(error)}", wrong=True, rows=rows, calls=calls)
    apart = difference(found, expected)
    wrong = not apart <= example.tolerance
    outcome = f"differs by more than {example.tolerance:.0e}" if wrong else "agrees"
    return Row(example.name, outcome, wrong, rows, calls, *map(min, times.values()), apart)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def main() -> None:
    _, client, path = sys.argv
    warnings.simplefilter("ignore")
    try:
        examples = import_module(f"with_{client}").examples
    except ImportError as error:
        answer: Any = f"it is installed, but cannot be imported: {_named(error)}"
    else:
        answer = [asdict(compared(example)) for example in examples()]
    with open(path, "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    sys.modules["harness"] = sys.modules["__main__"]  # with_*.py imports the one that runs
    main()
