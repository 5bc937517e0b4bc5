"""The exceptions of finelu. Each text has the value, its place, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

SYNONYMS = {
    **dict.fromkeys(("gpu", "nvidia"), ("cuda",)),
    **dict.fromkeys(("tol", "rtol"), ("rtol", "atol")),  # the methods of least squares have atol alone
    **dict.fromkeys(("maxiterations", "iterations", "maxiter", "iterlim"), ("maxiter", "iterlim")),
    **{"host": ("cpu",), "preconditioner": ("m", "recipe"), "m": ("recipe",), "fillfactor": ("fill",)},
}
MOST = 3  # names that are suggested
NAMED = 8  # systems that a message names


def meant(word: object, known: Iterable[object]) -> str:
    """For the end of a message: " Did you mean 'rcm'?", or "".

    Suggested are those of `known` that begin with `word` or have its meaning, or the one with the most similar spelling
    and the same first letter.
    """
    from difflib import get_close_matches

    if not isinstance(word, str) or not (typed := plain(word)):
        return ""
    names = {plain(name): name for name in known if isinstance(name, str)}
    begin = [key for key in names if key.startswith(typed)] if len(typed) > 1 else []
    same = [key for key in SYNONYMS.get(typed, ()) if key in names][:1]
    swapped = [key for key in names if sorted(key) == sorted(typed)]
    like = get_close_matches(typed, [key for key in names if key[:1] == typed[0]], n=1, cutoff=0.75)
    found = [repr(names[key]) for key in (begin[:MOST] or same or swapped[:1] or like)]
    return f" Did you mean {' or '.join(filter(None, (', '.join(found[:-1]), found[-1])))}?" if found else ""


def plain(name: str) -> str:
    """`name` in small letters, without "_" and "-", for comparisons that ignore these differences."""
    return name.lower().replace("_", "").replace("-", "")


def counted(count: int, one: str, many: str = "") -> str:
    """ "1 row" or "3 rows", by the count; `many` if the plural is not `one` with an "s"."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def named_systems(systems: Any) -> str:
    """ "system 3" or "systems 3, 5, ..."."""
    shown = ", ".join(str(s) for s in systems[:NAMED]) + (", ..." if len(systems) > NAMED else "")
    return f"{'system' if len(systems) == 1 else 'systems'} {shown}"


class FineluError(Exception):
    """Base of all exceptions that finelu raises on purpose; the CLI prints them as one line and ends with status 2.

    They can be pickled and copied, whatever the arguments of their class: workers send their exceptions in this way.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[FineluError], args: tuple[Any, ...], attributes: dict[str, Any]) -> FineluError:
    """The exception with this text and these attributes, not made from the arguments of its class."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class MatrixError(FineluError, ValueError):
    """A matrix or a right-hand side that cannot be worked with: wrong shape, NaN, a missing diagonal entry."""


class StructurallySingular(MatrixError, RuntimeError):
    """No permutation of the rows brings an entry other than zero to every place of the diagonal.

    rows : the rows without a partner.  row : the first of them.  count : their number.
    """

    MOST = 8  # rows that are named

    def __init__(self, rows: Iterable[Any]):
        self.rows = tuple(int(row) for row in rows)
        self.row, self.count = self.rows[0], len(self.rows)
        named = ", ".join(map(str, self.rows[: self.MOST])) + (" and others" if self.count > self.MOST else "")
        super().__init__(
            "A is structurally singular: by the places of its nonzeros "
            f"{counted(self.count, 'row is', 'rows are')} not independent, row{'' if self.count == 1 else 's'} "
            f"{named}: equations are missing or given twice. Remove or complete such equations."
        )


class SingularMatrix(FineluError, ArithmeticError, RuntimeError):
    """A matrix without an inverse, as far as its precision can tell. Also a RuntimeError, as SciPy raises it."""


class FileError(FineluError, ValueError):
    """A file that cannot be read as a matrix or vector, or cannot be written."""


class DeviceError(FineluError, RuntimeError):
    """A GPU is needed and missing, or arrays are on different devices."""


class ParameterError(FineluError, ValueError):
    """A parameter value that has no meaning, or that the device does not offer."""


class UnknownParameter(ParameterError, TypeError):
    """A keyword that a function or a recipe does not have. Also a TypeError, as Python raises it.

    what : the function or class.  name : the keyword.  known : the existing keywords.
    """

    def __init__(self, what: str, name: str, known: Iterable[str]):
        super().__init__(f"{what}() got an unexpected keyword argument {name!r}." + meant(name, known))


class WrongType(FineluError, TypeError):
    """An object of the wrong type for its use."""


class DecompositionError(SingularMatrix):
    """LAPACK, or cuSOLVER, found no inverse, eigenvalues or singular values of a small dense matrix."""


class ZeroPivot(FineluError, ArithmeticError, RuntimeError):
    """A factorization met a pivot that is zero, not finite or (for Cholesky) not positive.

    recipe : the recipe that failed.  row : the first row with such a pivot, in A's numbering.
    """

    def __init__(
        self,
        recipe: object,
        row: Any,
        value: Any,
        what: str = "is zero or not finite",
        advice: str = "Try shift=1e-3 (or larger), a reordering of A, or another recipe.",
    ):
        self.recipe, self.row, self.value = recipe, int(row), value
        super().__init__(
            f"{recipe!r}: the pivot of row {self.row} is {value}, which {what}, so there are no such factors. {advice}"
        )


class UnstableFactors(FineluError, ArithmeticError):
    """Factors that were computed, but whose inverse makes Inf or NaN of a vector of moderate numbers.

    recipe : the recipe that made them.
    """

    def __init__(
        self, recipe: object, advice: str = "Try shift=1e-3 (or larger), a reordering of A, or another recipe."
    ):
        self.recipe = recipe
        super().__init__(
            f"{recipe!r}: the factors are unstable: M^-1 v is not finite for a random vector v = A y. {advice}"
        )


class TooManyEntries(MemoryError, FineluError):
    """Factors that would have more entries than allowed.

    most : the allowed number.
    """

    def __init__(self, most: int, recipe: object = None, advice: str = ""):
        self.most = int(most)
        text = f"the factors would have more than {self.most} entries{advice}"
        super().__init__(text if recipe is None else f"{recipe!r}: {text}")


class NoFactors(FineluError, RuntimeError):
    """Factors whose last update failed were asked to solve."""

    def __init__(self, recipe: object):
        super().__init__(f"{recipe!r}: the last update failed, so there are no factors to solve with; update again.")


class NoThread(FineluError, RuntimeError):
    """The system cannot start a thread that the call needs."""

    def __init__(self, what: str, error: object):
        super().__init__(f"no thread can be started to {what} ({error}); raise the limit of threads of this process.")


class OutOfTime(FineluError, TimeoutError):
    """The time limit of a call was reached before its result; see finelu.deadline."""

    def __init__(self) -> None:
        super().__init__("the time limit was reached")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), ()  # as OSError, its base, takes the arguments of an exception apart


class NotConverged(FineluError, ArithmeticError):
    """A solve on whose result others depend, such as gradients, did not converge.

    solution : the last `Solution`.
    """

    def __init__(self, what: str, solution: Any, rtol: float):
        self.solution = solution
        name = f"{solution.method} with {solution.recipe}" if solution.recipe else solution.method or "it"
        status = solution.status.name.capitalize().replace("_", " ")
        super().__init__(
            f"{what} did not converge to rtol={rtol:g}: {name} ended after {counted(solution.iterations, 'iteration')} "
            f"with residual norm {solution.residual_norm:.3e}. {status}: {solution.status.value}."
        )
